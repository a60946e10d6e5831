"""`silo check`, the agent: what `silo join` last refused or stumbled over, by its own notes.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

from semisilo.common.errors import BadData
from semisilo.common.text.describe import counted
from semisilo.silo.check.finding import Finding
from semisilo.silo.site.home import AgentStatus, SiloHome, StatusFile, home_option

__all__ = ["look_at_tasks"]

SKIP = 'on_error = "skip"'
"""In what a reader of images says where leaving files out would help."""


def look_at_tasks(home: SiloHome) -> list[Finding]:
    """Nothing when the last task was done, or there was none, and the coordinator goes on asking."""
    status, running = StatusFile.load(home.status), home.is_running()
    if running and status.set_aside:
        return [Finding(what="tasks", state="bad", facts={"set_aside": status.set_aside},
                        text=f"No task comes until further notice: {status.set_aside}",
                        remedy="Ask the people at the coordinator why; they let this silo take part again with:"
                               " coordinator take-back SILO"), *_refused_or_in_trouble(home, status, running)]
    return _refused_or_in_trouble(home, status, running)


def _refused_or_in_trouble(home: SiloHome, status: AgentStatus, running: bool) -> list[Finding]:
    facts = {"refusals": status.refusals, "code": status.refusal_code, "last_error": status.last_error}
    if status.refusals:
        tasks = "task was" if status.refusals == 1 else f"{counted(status.refusals, 'task')} were"
        option = home_option(home.folder)
        remedy = "The log of `silo join` has the details."
        if status.refusal_code == BadData.code:
            way = (f'Fix the file, or set on_error = "skip" in [data] of {home.policy}'
                   if SKIP in status.last_refusal else "Do what the refusal says")
            remedy = f"Run: silo data{option} (it looks at every file). {way}; then restart: silo join{option}"
        return [Finding(what="tasks", state="bad" if running else "warning", facts=facts, remedy=remedy,
                        text=f"{'The' if running else 'Before `silo join` ended, the'} last {tasks} refused: "
                             f"{status.refusal_code}: {status.last_refusal}")]
    if status.last_error:
        stopped = status.state if status.state.startswith("stopped; ") else "ended in trouble"
        return [Finding(what="tasks", state="warning", facts=facts,
                        text=f"`silo join` {'is in trouble' if running else stopped}: {status.last_error}")]
    return []
