"""What the coordinator is doing now, kept in memory: silos waiting in AwaitTask, the display and the page read it.

Two kinds of waiting: the engine's, for anything that a silo or an operator did, and that of silos, for a task. They are
apart because every silo looks into the ledger when it wakes: hundreds of them must not do so at each other's updates.

Tests: tests/coordinator/rounds/test_runtime.py and test_study_lifecycle.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from semisilo.common.text.log_context import bind

__all__ = ["FEW_SILOS", "Account", "RuntimeState", "SiloProgress", "StandbyReason"]

FEW_SILOS = 50
"""Where no more than these are connected each is answered by itself, at once."""
_STOOD_STILL_SECONDS = 10.0
"""By so much a wait must be late to count as one in which the process stood still."""
_TURNS_AT_ONCE = 4
"""So many silos take their tasks in one turn of the event loop, which is some milliseconds."""


class Account(NamedTuple):
    """What bytes are booked to."""

    study: str
    """Empty for what is outside of rounds."""
    round: int
    phase: str
    """"standby" between phases."""


class StandbyReason(StrEnum):
    """What the coordinator waits for or does, which is why a silo without a task has none."""

    WAITING_FOR_SILOS = "waiting_for_silos"
    """Too few silos have joined, or too few of them take tasks."""
    COORDINATOR_WORKING = "coordinator_working"
    """The compute process works: it prepares a phase, averages or evaluates."""
    COLLECTING = "collecting"
    """A phase is open: silos that were asked work."""
    NOT_SAMPLED = "not_sampled"
    """What one silo without a task hears while others work: it was not asked, or has answered. Never the state of the
    coordinator."""
    PAUSED = "paused"
    """The operator has paused the study, or it has paused by itself."""
    NO_STUDY = "no_study"
    """No study runs."""
    SET_ASIDE = "set_aside"
    """What a silo hears that the operator leaves out. Never the state of the coordinator."""

    def for_silo(self) -> StandbyReason:
        """The same, as a silo without a task should hear it."""
        return StandbyReason.NOT_SAMPLED if self is StandbyReason.COLLECTING else self


@dataclass(slots=True)
class SiloProgress:
    """What a silo last said of its work."""

    task_id: str = ""
    stage: str = ""
    fraction: float = 0.0
    text: str = ""
    unix: float = 0.0


@dataclass(slots=True)
class RuntimeState:
    """The current study and activity. `notify` wakes who waits in `wait`, `call` who waits in `wait_for_call`."""

    study: str = ""
    round: int = 0
    rounds: int = 0
    phase: str = ""
    reason: StandbyReason = StandbyReason.NO_STUDY
    """Never NOT_SAMPLED or SET_ASIDE: those are for one silo."""
    text: str = ""
    remedy: str = ""
    """What an operator can do while the reason is WAITING_FOR_SILOS. It names silos, so silos do not read it."""
    activity: str = ""
    """What the compute process is doing, for a person."""
    fraction: float = 0.0
    """Share of the activity that is done, 0..1."""
    labels_alone: str = ""
    """How far labels alone are, and how long they will take; empty while that is not known, and once they are done."""
    silos: dict[str, SiloProgress] = field(default_factory=dict)
    trouble: str = ""
    """What the operating system refuses, so that the study waits, in a line; empty while nothing of this is in the way.
    It names paths, so silos do not read it."""
    page: str = ""
    """Address of the operator page; empty when there is none."""
    delivering: bool = False
    """While the study is paused: whether a phase is open and silos still deliver for it."""
    enrollment: bool = False
    """Whether the port for enrolment listens."""
    connected: dict[str, int] = field(default_factory=dict)
    """Silo -> RPCs in flight."""
    called: dict[str, float] = field(default_factory=dict)
    """Silo -> when one of its RPCs last began or ended; Unix seconds."""
    held: dict[str, frozenset[str]] = field(default_factory=dict)
    """Silo -> digests of the tensor groups that it last said to hold."""
    masked: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    """Silo -> (study, last round in which it has masked an update of it, phase of that), as it last said."""
    stood_still_seconds: float = 0.0
    """How much later the engine's waits have ended than they should: the process was stopped (`docker pause`, SIGSTOP),
    or something held up its event loop, and no silo could deliver meanwhile."""
    _event: asyncio.Event = field(default_factory=asyncio.Event)
    _called: asyncio.Event = field(default_factory=asyncio.Event)
    _turns: deque[asyncio.Future[None]] = field(default_factory=deque)
    _dealing: asyncio.Task[None] | None = None

    def account(self) -> Account:
        """What the traffic of now belongs to: without a study, and while one waits for silos, or is paused and no silo
        delivers for it, to none."""
        if self.reason is StandbyReason.COLLECTING or (self.reason is StandbyReason.PAUSED and self.delivering):
            return Account(self.study, self.round, self.phase)
        if self.reason is StandbyReason.COORDINATOR_WORKING:
            return Account(self.study, self.round, "standby")
        return Account("", 0, "standby")

    def notify(self) -> None:
        """Something that the engine waits for has changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    def call(self) -> None:
        """There may be tasks, or no study any more: silos that wait should look."""
        event, self._called = self._called, asyncio.Event()
        event.set()

    def happening(self) -> asyncio.Event:
        """Set at the next `notify`."""
        return self._event

    async def wait(self, timeout_seconds: float) -> None:
        """Returns at the next `notify`, or after the time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + max(0.0, timeout_seconds)
        await _wait(self._event, timeout_seconds)
        late = loop.time() - end
        if late > _STOOD_STILL_SECONDS:
            self.stood_still_seconds += late

    async def wait_for_call(self, timeout_seconds: float) -> None:
        """Returns at the next `call`, or after the time. Of many who wait a few return at a time, so that others are
        answered in between: a thousand silos that take their tasks in one turn of the event loop would hold it up for
        more than a second."""
        called = self._called
        await _wait(called, timeout_seconds)
        if called.is_set():
            turn = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            if self._dealing is None or self._dealing.done():
                self._dealing = asyncio.ensure_future(self._deal_turns())
            await turn

    async def _deal_turns(self) -> None:
        while self._turns:
            began = time.monotonic()
            for _ in range(min(_TURNS_AT_ONCE, len(self._turns))):
                turn = self._turns.popleft()
                if not turn.done():  # its silo has hung up
                    turn.set_result(None)
            await asyncio.sleep(0)
            # What these turns have brought about, and whatever else came meanwhile, goes first.
            await asyncio.sleep(time.monotonic() - began)

    def set(self, *, reason: StandbyReason | None = None, activity: str | None = None, text: str | None = None,
            study: str | None = None, round: int | None = None, rounds: int | None = None,
            phase: str | None = None) -> None:
        """Changes what is given and wakes who waits; silos only when the reason to wait is another."""
        if reason is not None and reason is not self.reason:
            self.reason = reason
            if reason is not StandbyReason.COORDINATOR_WORKING:
                self.call()
        if activity is not None:
            self.activity, self.fraction = activity, 0.0
        if text is not None:
            self.text = text
        if study is not None:
            self.study = study
            bind(study=study or None, round=None, phase=None)  # what the engine's log lines are about
        if round is not None:
            self.round = round
            bind(round=round)
        if rounds is not None:
            self.rounds = rounds
        if phase is not None:
            self.phase = phase
            bind(phase=phase or None)
        self.notify()

    def progress(self, fraction: float, text: str) -> None:
        """Progress of the compute process; wakes nobody, the display looks by itself."""
        self.fraction = fraction
        if text:
            self.activity = text

    def heard(self, silo: str, *, task_id: str, stage: str, fraction: float, text: str) -> None:
        """Progress of a silo."""
        self.silos[silo] = SiloProgress(task_id=task_id, stage=stage, fraction=fraction, text=text, unix=time.time())


async def _wait(event: asyncio.Event, timeout_seconds: float) -> None:
    # Not asyncio.wait_for: in Python 3.11 it can swallow a cancellation that comes together with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_seconds)):
            await event.wait()
