"""What the coordinator is doing now, kept in memory: silos waiting in AwaitTask, the display and the page read it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Bulletin", "SiloProgress", "StandbyReason"]


class StandbyReason(StrEnum):
    """Why a silo has nothing to do."""

    WAITING_FOR_SILOS = "waiting_for_silos"
    COORDINATOR_WORKING = "coordinator_working"
    NOT_SAMPLED = "not_sampled"
    PAUSED = "paused"
    NO_STUDY = "no_study"


@dataclass(slots=True)
class SiloProgress:
    """What a silo last said of its work."""

    task_id: str = ""
    stage: str = ""
    fraction: float = 0.0
    text: str = ""
    unix: float = 0.0


@dataclass(slots=True)
class Bulletin:
    """The current study and activity. `notify` wakes everyone who waits in `wait`."""

    study: str = ""
    round: int = 0
    rounds: int = 0
    phase: str = ""
    reason: StandbyReason = StandbyReason.NO_STUDY
    text: str = ""
    activity: str = ""
    """What the compute process is doing, for a person."""
    fraction: float = 0.0
    """Share of the activity that is done, 0..1."""
    silos: dict[str, SiloProgress] = field(default_factory=dict)
    connected: dict[str, int] = field(default_factory=dict)
    """Silo -> RPCs in flight."""
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        """Something that others wait for has changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_seconds: float) -> None:
        """Returns at the next `notify`, or after the time."""
        # Not asyncio.wait_for: in Python 3.11 it can swallow a cancellation that comes together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_seconds)):
                await self._event.wait()

    def set(self, *, reason: StandbyReason | None = None, activity: str | None = None, text: str | None = None,
            study: str | None = None, round: int | None = None, rounds: int | None = None,
            phase: str | None = None) -> None:
        """Changes what is given and wakes everyone who waits."""
        if reason is not None:
            self.reason = reason
        if activity is not None:
            self.activity, self.fraction = activity, 0.0
        if text is not None:
            self.text = text
        if study is not None:
            self.study = study
        if round is not None:
            self.round = round
        if rounds is not None:
            self.rounds = rounds
        if phase is not None:
            self.phase = phase
        self.notify()

    def progress(self, fraction: float, text: str) -> None:
        """Progress of the compute process; wakes nobody, the display looks by itself."""
        self.fraction = fraction
        if text:
            self.activity = text

    def heard(self, silo: str, *, task_id: str, stage: str, fraction: float, text: str) -> None:
        """Progress of a silo."""
        self.silos[silo] = SiloProgress(task_id=task_id, stage=stage, fraction=fraction, text=text, unix=time.time())
