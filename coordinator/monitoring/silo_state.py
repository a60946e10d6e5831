"""What a silo is doing: the one answer that `status`, the page, the terminal, the metrics and the report give.

The first line that fits counts:

| state | when |
|---|---|
| revoked | the operator has revoked its certificate |
| left | it left on its own wish |
| set aside | the operator leaves it out: it may call, and is asked nothing |
| enrolled | it has a certificate and has never asked for a task |
| away by policy | it takes no task now because its own policy says so (hours, daily budget), and works on none |
| silent | nothing was heard of it for `silent_after`, and no round asks it until it calls again |
| joined | it is a member, and `coordinator serve` is not running, so nobody can know more |
| late | its phase is past its deadline, still waits for it, and the study is not paused |
| working | it has an open task and says that it works on it |
| connected | it is there and does nothing, or has not begun with its task |
| away | nothing was heard of it for `PRESENT_SECONDS` |

Who is away by policy, and who is silent, is in the ledger, and is said also while `serve` is not running. *Late* is a
silo that still owes an answer; when the phase closes without it, the *outcome* of its task is "expired"
(`semisilo.coordinator.monitoring.outcomes`). The words are the same everywhere: in JSON, on the page, as a label of a
metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from semisilo.coordinator.ledger.roster import SiloRow
from semisilo.coordinator.ledger.tasks import OpenTask
from semisilo.coordinator.rounds.live_file import LiveSilo, LiveStatus

__all__ = ["PRESENT_SECONDS", "SiloActivity", "SiloSigns", "SiloState", "activities_of", "activity_of", "is_present"]

PRESENT_SECONDS = 15.0
"""A silo of which something was heard at most so long ago is there, even when none of its calls is in flight: while it
trains it reports every 3 seconds, where there are many silos every 7, so that at least one report may be lost."""


class SiloState(StrEnum):
    """What a silo is doing; the table above says when. The value is the word that people read."""

    REVOKED = "revoked"
    LEFT = "left"
    SET_ASIDE = "set aside"
    ENROLLED = "enrolled"
    JOINED = "joined"
    AWAY_BY_POLICY = "away by policy"
    SILENT = "silent"
    LATE = "late"
    WORKING = "working"
    CONNECTED = "connected"
    AWAY = "away"


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloSigns:
    """All that is known of a silo at one moment."""

    member: SiloRow
    """Its row of the roster."""
    now_unix: float
    """The moment, in Unix seconds."""
    serving: bool
    """Whether `coordinator serve` is running: without it nobody hears of silos."""
    in_call: bool = False
    """Whether one of its RPCs is in flight."""
    called_unix: float = 0.0
    """When its last call began or ended; 0 where `serve` has had none."""
    said: LiveSilo | None = None
    """What it last said of its work."""
    open_task: OpenTask | None = None
    """The task that it owes an answer to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloActivity:
    """What a silo is doing."""

    state: SiloState
    doing: LiveSilo | None
    """Its stage and how far it is, while it works on its open task; also when it is late with that."""
    present: bool
    """Whether it is there, whatever it does."""
    seen_unix: float | None = None
    """When something was last heard of it, be it a call in the middle of a long task; None for never."""


def activity_of(signs: SiloSigns) -> SiloActivity:
    """What a silo is doing, from all that is known of it; see the table of this module."""
    member, present, seen = signs.member, is_present(signs), _seen_unix(signs) or None
    for state, fits in ((SiloState.REVOKED, member.revoked_unix is not None),
                        (SiloState.LEFT, member.left_unix is not None),
                        (SiloState.SET_ASIDE, member.set_aside_unix is not None),
                        (SiloState.ENROLLED, member.joined_unix is None)):
        if fits:
            return SiloActivity(state=state, doing=None, present=present, seen_unix=seen)
    doing = _doing(signs)
    return SiloActivity(state=_state_of_member(signs, present=present, works=doing is not None), doing=doing,
                        present=present, seen_unix=seen)


def is_present(signs: SiloSigns) -> bool:
    """Whether something is heard of a silo now: a call in flight, or one that ended `PRESENT_SECONDS` ago or later."""
    if not signs.serving:
        return False
    return signs.in_call or _is_now(signs, _seen_unix(signs))


def _is_now(signs: SiloSigns, unix: float) -> bool:
    """Whether a moment is as good as now; not one that is still to come, noted before the clock was set back."""
    return abs(signs.now_unix - unix) <= PRESENT_SECONDS


def _seen_unix(signs: SiloSigns) -> float:
    """When something was last heard of a silo; 0 for never. It asks for work once in a task, which may take hours.

    After the clock was set back, the ledger says so of a time that is still to come: what was heard since counts.
    """
    if signs.in_call:
        return signs.now_unix
    heard = (signs.member.seen_unix or 0.0, signs.called_unix, signs.said.unix if signs.said is not None else 0.0)
    return max((unix for unix in heard if unix <= signs.now_unix + PRESENT_SECONDS), default=0.0) or max(heard)


def _doing(signs: SiloSigns) -> LiveSilo | None:
    said = signs.said
    if said is None or not said.stage or signs.open_task is None or not signs.serving:
        return None
    return said if signs.in_call or _is_now(signs, said.unix) else None


def _state_of_member(signs: SiloSigns, *, present: bool, works: bool) -> SiloState:
    if signs.member.is_away(signs.now_unix) and not works:
        return SiloState.AWAY_BY_POLICY
    if signs.member.silent_unix is not None and not present:
        return SiloState.SILENT
    if not signs.serving:
        return SiloState.JOINED
    deadline = signs.open_task.deadline_unix if signs.open_task is not None else None
    if deadline is not None and signs.now_unix > deadline:
        return SiloState.LATE
    if works:
        return SiloState.WORKING
    return SiloState.CONNECTED if present else SiloState.AWAY


def activities_of(members: Iterable[SiloRow], live: LiveStatus | None, tasks: Mapping[str, OpenTask], *,
                  now_unix: float) -> dict[str, SiloActivity]:
    """Silo -> what it is doing.

    Args:
        members: rows of the roster.
        live: what `coordinator serve` is doing; None when it is not running.
        tasks: silo -> the task that it owes an answer to (`semisilo.coordinator.ledger.tasks.open_tasks`).
    """
    in_call = frozenset(live.connected) if live is not None else frozenset[str]()
    said, called = (live.silos, live.called) if live is not None else ({}, {})
    return {member.name: activity_of(SiloSigns(
        member=member, now_unix=now_unix, serving=live is not None, in_call=member.name in in_call,
        called_unix=called.get(member.name, 0.0), said=said.get(member.name),
        open_task=tasks.get(member.name))) for member in members}
