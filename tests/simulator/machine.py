"""A computer of the federation: its disk, its clock, and the process that runs on it, which may be killed.

A process is a `Life`. All that it makes (callbacks, tasks, work in threads) carries it in its context, so that a dead
one is not run any further: it stops where it is, as after kill -9, and none of its `finally` blocks does anything.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulator.disk import Disk
from tests.simulator.loop import LIFE, Killed, SeededLoop

__all__ = ["BEFALLS", "AimedDeath", "FileError", "Life", "Machine", "PointOfDeath", "Relapse"]

_CHANGES = frozenset({"create", "mkdir", "unlink", "replace", "link", "write", "sql write"})
_NAMES = frozenset({"open", "create", "list", "stat", "mkdir", "unlink", "replace", "link", "touch", "sql open"})
BEFALLS = {
    errno.EIO: (_CHANGES | _NAMES | {"read", "truncate", "sync", "sql read"}) - {"sql open"},
    errno.EACCES: _NAMES,
    errno.EROFS: _CHANGES | {"touch"},
    errno.ENOSPC: _CHANGES - {"unlink"} | {"sync"},
    errno.EMFILE: frozenset({"open", "create", "list", "sql open"}),
    errno.ENFILE: frozenset({"open", "create", "list", "sql open"}),
}
"""Which operations an error can befall: those of `semisilo` on files, and statements of SQLite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PointOfDeath:
    """When a process dies: at the so-manieth event of a kind on its machine, counted over all its lives from the
    beginning of a stretch."""

    kind: str
    """"callback": between two awaits; "disk": within a change of a file; "commit": around a commit of the ledger;
    "message": when a message reaches the machine; "message a": one of that silo's line."""
    number: int
    after: bool = False
    """Whether the event still happens."""
    power: bool = False
    """Whether the machine loses its power, so that its disk forgets what was not synchronised."""
    down_seconds: float = 1.0
    """Until it starts again."""
    rots: bool = False
    """Whether a byte of every file that a silo could make or fetch again has changed when it starts again."""
    then: Relapse | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AimedDeath:
    """A process dies shortly after something that happens seldom: of the moments of a run, most are the same few kinds
    over and over, and the windows in which a mistake shows lie around the others."""

    mark: str
    """The first words of a statement that changes the ledger, or what is done to a name and in which folder: a name is
    unlinked, linked, or given by a rename, which overwrites a file of that name or replaces nothing ("replace")."""
    occurrence: int
    """Which, counted from 1 over all lives of the machine, from the beginning of a stretch."""
    kind: str
    """Of the events that are counted from then on, as of `PointOfDeath`."""
    later: int
    """So many of them go by before the one that it dies at."""
    after: bool = False
    power: bool = False
    down_seconds: float = 1.0
    rots: bool = False
    then: Relapse | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Relapse:
    """Another death, soon after a process that died has started again: what it believes of what it has found may not
    be on the disk yet, and what it tells others outlives it."""

    machine: str
    """Where: the same one, or one that has to do with it."""
    death: PointOfDeath
    """Its events are counted from that start on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileError:
    """An operation on a file of a machine, or a statement of its ledger, fails."""

    machine: str
    number: int
    """Which, of those that this error can befall, counted from 1 over all lives of the machine."""
    errno: int
    for_seconds: float = 0.0
    """So long all that it can befall fail from then on; 0: that one alone."""


_EVERYTHING_SHARE = 0.3
"""Of the losses of power: nothing lasts that was not made to last, on the disk or in the ledger. Else chance decides
for each folder, file and commit, and what needs several of them lost would come too seldom."""


class Life:
    """One process."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.alive = True
        self.serves = False
        """Whether it has begun its work: before, an error of the system may end it, and whoever started it does so
        again."""
        self._tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)

    def may_run(self) -> bool:
        """Counts a callback; False when the process is dead, or dies just now."""
        machine = self.machine
        if not self.alive or machine.deaths:
            if self.alive:
                machine.event("callback")
            return self.alive
        machine.counted["callback"] += 1
        return True

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Tasks of dead processes must not be collected while the simulation runs: that would run their `finally`."""
        self._tasks.append(task)
        if len(self._tasks) > 400 and self.alive:
            self._tasks = [each for each in self._tasks if not each.done()]

    def check(self) -> None:
        """Raises: Killed when the process is dead."""
        if not self.alive:
            raise Killed

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of this process."""
        return self.machine.loop.create_task(work, context=self.context.copy())


@dataclass
class Machine:
    """A computer."""

    name: str
    index: int
    loop: SeededLoop
    draw: random.Random
    on_death: Callable[[Machine, PointOfDeath], None]
    """Told when a process has died."""
    on_error: Callable[[Machine, str], None] = lambda machine, kind: None
    """Told of the first operation that fails, and of its kind."""
    clock_ahead: float = 0.0
    """What its wall clock is ahead of the true time, seconds."""
    deaths: list[PointOfDeath] = field(default_factory=list)
    """To come."""
    aims: list[AimedDeath] = field(default_factory=list)
    """To come, once their marks have."""
    awaited: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    """Marks, and who is told when they are reached."""
    compute_deaths: set[int] = field(default_factory=set)
    """Numbers of the calls in which its compute process dies."""
    compute_failures: set[int] = field(default_factory=set)
    """Numbers of the calls that fail for good: the study ends until somebody queues it again."""
    counted: Counter[str] = field(default_factory=Counter)
    life: Life | None = None
    file_error: FileError | None = None
    """To come, or here."""
    has_errors: bool = False
    """Whether operations are counted: where an error of the system is to come, or has been."""

    def __post_init__(self) -> None:
        self.disk = Disk(self, self.index)
        self.on_power_loss: list[Callable[[bool], None]] = []
        """Told whether all is lost that was not made to last."""
        self.on_kill: list[Callable[[], None]] = []

    def begin(self) -> Life:
        """A new process."""
        assert self.life is None or not self.life.alive, "one process at a time"
        self.life = Life(self)
        return self.life

    def event(self, kind: str, *, done: bool = False) -> None:
        """Something happens here; the process may die of it. Called before it, and after it with `done`."""
        if not done:
            self.counted[kind] += 1
        if not self.deaths:
            return
        for death in self.deaths:
            if death.kind == kind and death.number <= self.counted[kind] and death.after is done \
                    and self.life is not None and self.life.alive:
                self.deaths.remove(death)
                self.kill(death)
                break

    def expect_compute_death(self, number: int) -> None:
        """In its so-manieth call from now on, or one of the next.

        Not in two calls on end: a silo refuses what its process has died of twice.
        """
        number += self.counted["operation"]
        while self.compute_deaths & {number - 1, number, number + 1}:
            number += 1
        self.compute_deaths.add(number)

    def expect_death(self, death: PointOfDeath) -> None:
        """Its events are counted from now on."""
        self.deaths.append(replace(death, number=self.counted[death.kind] + death.number))

    def aim(self, aim: AimedDeath) -> None:
        """Its mark is counted from now on."""
        self.aims.append(replace(aim, occurrence=self.counted[f"mark: {aim.mark}"] + aim.occurrence))

    def expect(self, error: FileError) -> None:
        """From now on operations are counted, and fail as this says."""
        self.file_error, self.has_errors = error, True

    def mark(self, what: str) -> None:
        """Something happens that a death may be aimed at; called where there are `aims` or marks are `awaited`."""
        self.counted[f"mark: {what}"] += 1
        if self.awaited:
            told = [act for mark, act in self.awaited if mark == what]
            self.awaited = [each for each in self.awaited if each[0] != what]
            for act in told:
                act()
        for aim in self.aims:
            if aim.mark == what and aim.occurrence == self.counted[f"mark: {what}"]:
                self.aims.remove(aim)
                self.deaths.append(PointOfDeath(
                    kind=aim.kind, number=self.counted[aim.kind] + 1 + aim.later, after=aim.after, power=aim.power,
                    down_seconds=aim.down_seconds, rots=aim.rots, then=aim.then))
                break

    def operate(self, kind: str) -> int:
        """Something is asked of the operating system or of SQLite; the number of the error that it fails with, or 0."""
        if not self.has_errors or LIFE.get() is None:
            return 0  # nobody counts; or somebody looks at it from outside
        self.counted[f"file: {kind}"] += 1
        error = self.file_error
        if error is None or kind not in BEFALLS[error.errno]:
            return 0
        number = sum(self.counted[f"file: {each}"] for each in BEFALLS[error.errno])
        if number < error.number:
            return 0
        if number == error.number:
            self.on_error(self, kind)
            if not error.for_seconds:
                self.file_error = None
            else:
                self.loop.call_later(error.for_seconds, self._well_again, context=contextvars.Context())
        return error.errno

    def _well_again(self) -> None:
        self.file_error = None

    def kill(self, death: PointOfDeath) -> None:
        """The process dies now."""
        assert self.life is not None
        self.life.alive = False
        for act in self.on_kill:
            act()
        if death.power:
            everything = self.draw.random() < _EVERYTHING_SHARE
            self.disk.lose_power(everything=everything)
            for act in self.on_power_loss:
                act(everything)
        if death.rots:
            self.disk.rot()
        self.disk.close_all()
        self.on_death(self, death)
