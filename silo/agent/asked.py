"""What the coordinator has asked of this silo, and what became of it: `<home>/asked.jsonl`, one JSON object a line.

A line when a task comes, one when it ends. For people only: a task that is given again counts on in the same line, what
left is in the record of disclosures, and a power failure may lose the last lines. The file is bounded: where it has
grown too large, the older half goes.

Tests: tests/silo/agent/test_asked.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from semisilo.common.config import canonical_json
from semisilo.common.text.logs import printable
from semisilo.common.wire import round_service_pb2 as pb

__all__ = ["AskedRecord", "AskedTask", "read_asked"]

_MOST_BYTES = 4 * 2**20
"""Of the file; a task has about a thousand."""
_MOST_SETTINGS_BYTES = 8 * 1024
_MOST_TEXT = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedTask:
    """One task."""

    task_id: str
    study: str
    round: int
    rounds: int
    phase: str
    method: str
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the method, as the task had them; empty where they were too large to be kept."""
    download_bytes: int = 0
    """Of its payloads, whether they were here already or not."""
    unix: float
    """When it came first."""
    times: int = 1
    """How often it was given: again after a restart, or when it was put off."""
    ended_unix: float = 0.0
    """0 while it is under way, or when the agent was stopped before."""
    outcome: str = ""
    """See `semisilo.silo.agent.task_runner.OutcomeKind`; empty as long as there is none."""
    code: str = ""
    """Of the error, where it was refused."""
    text: str = ""
    """What became of it, for the person here: it may name files."""


class AskedRecord:
    """Written by the one agent."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def came(self, task: pb.Task, *, now_unix: float) -> None:
        """Notes a task, as it came: nothing of it is checked yet. Raises: OSError, ValueError; the caller may ignore
        it."""
        self._append({
            "event": "came", "unix": now_unix, "task_id": printable(task.task_id, limit=700),
            "study": printable(task.study, limit=128), "round": task.round, "rounds": task.round_count,
            "phase": printable(task.phase, limit=128), "method": printable(task.method, limit=128),
            "settings": _settings(task.settings_json),
            "download_bytes": sum(each.size_bytes for each in task.payloads)})

    def ended(self, task: pb.Task, *, outcome: str, code: str, text: str, now_unix: float) -> None:
        """Notes what became of it. Raises: OSError, ValueError; the caller may ignore it."""
        self._append({"event": "ended", "unix": now_unix, "task_id": printable(task.task_id, limit=700),
                      "outcome": outcome, "code": code, "text": printable(text, limit=_MOST_TEXT)})

    def _append(self, entry: Mapping[str, object]) -> None:
        # In ASCII: what a stranger has sent may hold half of a surrogate pair, which is no UTF-8.
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(handle).st_size
            if os.write(handle, line) != len(line):
                os.ftruncate(handle, size)
        finally:
            os.close(handle)
        if size + len(line) > _MOST_BYTES:
            kept = self._path.read_bytes()[-_MOST_BYTES // 2:].partition(b"\n")[2]
            temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(kept)
            temporary.chmod(0o600)
            os.replace(temporary, self._path)


def read_asked(path: Path) -> tuple[AskedTask, ...]:
    """What was asked, oldest first. What cannot be read, or ends what the record does not have any more, is left out;
    nothing where there is no record."""
    try:
        with path.open("rb") as file:
            content = file.read(2 * _MOST_BYTES)
    except OSError:
        return ()
    found: dict[str, AskedTask] = {}
    for raw in content.splitlines():
        try:
            entry = json.loads(raw)
            _take(found, entry)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return tuple(found.values())


def _take(found: dict[str, AskedTask], entry: Mapping[str, object]) -> None:
    event, name, unix = entry["event"], str(entry["task_id"]), _number(entry["unix"])
    before = found.get(name)
    if event == "came":
        settings = entry["settings"]
        if not isinstance(settings, Mapping):
            raise TypeError
        found[name] = AskedTask(
            task_id=name, study=str(entry["study"]), round=int(_number(entry["round"])),
            rounds=int(_number(entry["rounds"])), phase=str(entry["phase"]), method=str(entry["method"]),
            settings=settings, download_bytes=int(_number(entry["download_bytes"])),
            unix=unix if before is None else before.unix, times=1 if before is None else before.times + 1)
    elif event == "ended" and before is not None:
        found[name] = replace(before, ended_unix=unix, outcome=str(entry["outcome"]), code=str(entry["code"]),
                              text=str(entry["text"]))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    return value


def _settings(text: str) -> Mapping[str, object]:
    """A method's settings of a task; none where they are no table, or a large one, or what nobody could show: numbers
    without an end, text that is no Unicode."""
    if len(text) > _MOST_SETTINGS_BYTES:
        return {}
    try:
        found = json.loads(text or "{}")
        canonical_json(found).encode()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
