"""`live.json`: what `serve` is doing at this moment, for `coordinator status` in another shell.

Nothing depends on it: it is rewritten every second, of a thousand silos every three, without a disk flush, and a reader
ignores it when it is old.
A full disk does not keep `serve` from writing it; one that takes nothing at all does, which `Federation.silenced` tells
from a `serve` that does not run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from semisilo.common.config import canonical_json, from_dict
from semisilo.common.errors import BadConfiguration
from semisilo.common.storage.shown_file import ShownFile

if TYPE_CHECKING:  # commands read the file, and need no event loop for that
    from semisilo.coordinator.rounds.runtime import RuntimeState

__all__ = ["STALE_SECONDS", "LiveFile", "LiveSilo", "LiveStatus", "read", "seconds_between", "wait_for_enrollment",
           "write"]

STALE_SECONDS = 10.0
_SECONDS, _SECONDS_PER_SILO, _LONGEST_SECONDS = 1.0, 0.002, 3.0
"""Between two writings. One takes ten milliseconds with a thousand silos, in which none of them is answered."""
_TRIES, _TRY_SECONDS = 3, 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveSilo:
    """What a silo last said of its work."""

    stage: str = ""
    """"downloading", "training" or "uploading"."""
    fraction: float = 0.0
    """Share of the stage that is done, 0 to 1."""
    text: str = ""
    unix: float = 0.0
    """When it said so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveStatus:
    """What the coordinator is doing. Times are Unix seconds."""

    pid: int
    unix: float
    """When this was written."""
    study: str = ""
    round: int = 0
    rounds: int = 0
    phase: str = ""
    reason: str = ""
    """What the coordinator waits for or does: a `StandbyReason`."""
    activity: str = ""
    """What the compute process is doing."""
    fraction: float = 0.0
    text: str = ""
    remedy: str = ""
    """What an operator can do while the study waits for silos; empty while it does not."""
    labels_alone: str = ""
    """How far the line of labels alone is, and how long it will take; empty when nothing is to be said."""
    connected: tuple[str, ...] = ()
    """Silos with an RPC in flight, in byte order."""
    silos: dict[str, LiveSilo] = field(default_factory=dict)
    """Progress of silos that work in the current phase."""
    called: dict[str, float] = field(default_factory=dict)
    """Silo -> when its last call began or ended, since `serve` was started."""
    deadline_unix: float | None = None
    """Deadline of the open phase."""
    trouble: str = ""
    """What the operating system refuses, so that the study waits; empty while nothing is in the way."""
    page: str = ""
    """Address of the operator page; empty when there is none."""
    enrollment: bool = False
    """Whether the port for enrolment listens at this moment."""

    @classmethod
    def from_runtime(cls, runtime: RuntimeState, *, deadline_unix: float | None = None, pid: int | None = None,
                     now_unix: float | None = None) -> LiveStatus:
        """A copy of the runtime state, of this process and moment unless told otherwise."""
        from semisilo.coordinator.rounds.runtime import StandbyReason

        return cls(
            pid=os.getpid() if pid is None else pid, unix=time.time() if now_unix is None else now_unix,
            study=runtime.study, round=runtime.round, rounds=runtime.rounds, phase=runtime.phase,
            reason=str(runtime.reason), activity=runtime.activity, fraction=_share(runtime.fraction),
            text=runtime.text, remedy=runtime.remedy if runtime.reason is StandbyReason.WAITING_FOR_SILOS else "",
            labels_alone=runtime.labels_alone, trouble=runtime.trouble,
            connected=tuple(sorted(runtime.connected, key=str.encode)), deadline_unix=deadline_unix, page=runtime.page,
            enrollment=runtime.enrollment,
            called={silo: round(unix, 1) for silo, unix in sorted(runtime.called.items())},
            silos={name: LiveSilo(stage=entry.stage, fraction=_share(entry.fraction), text=entry.text, unix=entry.unix)
                   for name, entry in sorted(runtime.silos.items())})


class LiveFile:
    """The file, as the one process that writes it has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = ShownFile(path, stays_open=True)

    def write(self, status: LiveStatus) -> None:
        """Replaces the file; where the disk is full, without the progress of each silo if need be.

        Raises: OSError where the disk takes nothing at all; the caller may ignore it.
        """
        brief = replace(status, silos={}, called={})
        self._file.write(canonical_json(status), shorter=[
            canonical_json(brief), canonical_json(replace(brief, connected=()))])

    def remove(self) -> None:
        """At the end of `serve`."""
        self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def seconds_between(silos: int) -> float:
    """How often it is written while so many silos are connected: readers hold it for current three times as long."""
    return min(_LONGEST_SECONDS, _SECONDS + silos * _SECONDS_PER_SILO)


def write(path: Path, status: LiveStatus) -> None:
    """Writes the file once. Raises: OSError."""
    ShownFile(path).write(canonical_json(status))


def read(path: Path, *, now_unix: float | None = None) -> LiveStatus | None:
    """What `serve` last wrote; None when there is nothing, it is older than ten seconds or its process has gone."""
    status = None
    for _ in range(_TRIES):
        try:
            status = from_dict(LiveStatus, json.loads(path.read_text(encoding="utf-8")))
            break
        except ValueError:  # it may just be overwritten
            time.sleep(_TRY_SECONDS)
        except (OSError, BadConfiguration):
            return None
    if status is None:
        return None
    now = time.time() if now_unix is None else now_unix
    if abs(now - status.unix) > STALE_SECONDS or not _alive(status.pid):
        return None
    return status


def wait_for_enrollment(path: Path, *, patience_seconds: float = 15.0, sleep: Callable[[float], None] = time.sleep,
                        now: Callable[[], float] = time.monotonic) -> Literal["open", "shut", "not serving"]:
    """Until `serve` listens for silos that enrol; it opens the port within seconds of an invitation, a busy one later.

    Returns: "shut" where it does not in time; "not serving" at once where no `serve` runs here.
    """
    until = now() + patience_seconds
    while (status := read(path)) is not None:
        if status.enrollment:
            return "open"
        if now() >= until:
            return "shut"
        sleep(0.1)
    return "not serving"


def _share(fraction: float) -> float:
    return min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else 0.0


def _alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # it is there and belongs to someone else
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
