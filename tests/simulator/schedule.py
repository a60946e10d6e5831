"""What goes wrong in a run, drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulator.machine import FileError, PointOfDeath
from tests.simulator.network import LineFault

__all__ = ["CHUNK_BYTES", "COORDINATOR", "SILOS", "ClockStep", "ComputeDeath", "FullDisk", "Schedule", "draw_schedule"]

COORDINATOR = "coordinator"
SILOS = ("B", "a", "c", "d", "e")
"""In byte order."""
CHUNK_BYTES = (120, 4096)
"""Of a payload of some 200 bytes: two chunks, or one."""
_LINE_KINDS = ("cut", "cut", "cut after", "cut after", "refuse", "half open", "vanish", "stall", "delay", "duplicate",
               "duplicate", "spoil")
_MASKED_SHARE = 0.1
"""Of the schedules: such a run takes three times as long."""
_DEATH_KINDS = ("callback", "disk", "disk", "commit", "message")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockStep:
    """The wall clock of a machine is set."""

    machine: str
    at_seconds: float
    by_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FullDisk:
    """The disk of a machine is full for a while."""

    machine: str
    at_seconds: float
    for_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeDeath:
    """The compute process of a machine dies in its so-manieth call."""

    machine: str
    number: int


_MESSAGES = {(1, 120): 375, (1, 4096): 325, (2, 120): 715, (2, 4096): 632}
"""By phases and bytes of a chunk: messages of a run without faults. Faults are drawn from so many moments; a schedule
is the same whatever a change of the product does to these numbers."""
_EVENTS = {COORDINATOR: {"callback": 850, "disk": 420, "commit": 138, "message": 160},
           "silo": {"callback": 450, "disk": 210, "message": 40}}
"""The same of events on a machine, for one phase."""
_SECONDS, _SECONDS_OF_WORK = 8.0, 12.0
"""Virtual: how long it lasts at least, and for each second of the longest work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """One run."""

    seed: int
    silos: tuple[str, ...] = SILOS
    rounds: int = 3
    phases: int = 1
    """Of a round."""
    masked: bool = False
    """Whether updates are added up behind masks: every phase has five steps then."""
    quorum: int = len(SILOS)
    """Answers that a phase must have; below all it also closes without the late ones, at its deadline."""
    chunk_bytes: int = 4096
    slow_seconds: float = 1.0
    """The longest work of a compute process."""
    line_faults: tuple[LineFault, ...] = ()
    deaths: Mapping[str, tuple[PointOfDeath, ...]] = field(default_factory=dict)
    clock_steps: tuple[ClockStep, ...] = ()
    full_disks: tuple[FullDisk, ...] = ()
    compute_deaths: tuple[ComputeDeath, ...] = ()
    file_error: FileError | None = None

    @property
    def num_faults(self) -> int:
        return (len(self.line_faults) + sum(map(len, self.deaths.values())) + len(self.clock_steps)
                + len(self.full_disks) + len(self.compute_deaths) + (self.file_error is not None))

    @property
    def machines_that_lose_power(self) -> frozenset[str]:
        return frozenset(name for name, deaths in self.deaths.items() if any(death.power for death in deaths))

    def lines(self) -> list[str]:
        """For a person."""
        masks = " behind masks" if self.masked else ""
        found = [f"{self.phases} phases{masks}, quorum {self.quorum}, chunks of {self.chunk_bytes} bytes,"
                 f" work of up to {self.slow_seconds:.1f} s"]
        found += [f"line: {fault}" for fault in self.line_faults]
        found += [f"{name}: {death}" for name, deaths in self.deaths.items() for death in deaths]
        return [*found, *map(str, self.clock_steps), *map(str, self.full_disks), *map(str, self.compute_deaths),
                *([] if self.file_error is None else [str(self.file_error)])]


def _moment(draw: random.Random, most: int) -> int:
    """One of the first `most` events; every third time an early one, of which there are few."""
    return draw.randint(1, most) if draw.random() < 2 / 3 else int(most ** draw.random())


def _set_right(steps: list[ClockStep], draw: random.Random) -> list[ClockStep]:
    """Half of all clocks are set right again: what was noted meanwhile is of another time."""
    return [ClockStep(machine=step.machine, at_seconds=step.at_seconds + draw.uniform(0.1, 60.0),
                      by_seconds=-step.by_seconds) for step in steps if draw.random() < 0.5]


def draw_schedule(seed: int) -> Schedule:
    """Two to eight faults."""
    draw = random.Random(f"schedule {seed}")
    phases, quorum = 2 if draw.random() < 0.2 else 1, 5 if draw.random() < 0.7 else 3
    chunk_bytes, slow_seconds = draw.choice(CHUNK_BYTES), draw.choice((0.3, 2.0, 8.0))
    seconds = _SECONDS + _SECONDS_OF_WORK * phases * slow_seconds
    messages = _MESSAGES[phases, chunk_bytes]
    lines: list[LineFault] = []
    deaths: dict[str, list[PointOfDeath]] = {}
    steps: list[ClockStep] = []
    full: list[FullDisk] = []
    computes: list[ComputeDeath] = []
    for _ in range(draw.choice((2, 2, 3, 3, 4, 5, 6, 8))):
        what = draw.random()
        name = COORDINATOR if draw.random() < 0.4 else draw.choice(SILOS)
        if what < 0.40:
            lines.append(LineFault(number=draw.randint(1, messages), kind=draw.choice(_LINE_KINDS),
                                   seconds=draw.choice((0.05, 0.5, 3.0, 20.0, 70.0, 150.0)) * (0.5 + draw.random())))
        elif what < 0.84:
            kind, events = draw.choice(_DEATH_KINDS), _EVENTS[COORDINATOR if name == COORDINATOR else "silo"]
            kind = kind if kind in events else "disk"
            deaths.setdefault(name, []).append(PointOfDeath(
                kind=kind, number=_moment(draw, phases * events[kind]),
                after=kind != "callback" and draw.random() < 0.5,
                power=draw.random() < 0.5, down_seconds=draw.choice((0.2, 2.0, 40.0)) * (0.5 + draw.random())))
        elif what < 0.91:
            steps.append(ClockStep(machine=name, at_seconds=draw.uniform(0, seconds), by_seconds=draw.choice(
                (-86400.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0)) * (0.5 + draw.random())))
        elif what < 0.95:
            full.append(FullDisk(machine=name, at_seconds=draw.uniform(0, seconds),
                                 for_seconds=draw.choice((0.3, 5.0, 60.0))))
        elif not any(each.machine == name for each in computes):
            computes.append(ComputeDeath(machine=name, number=draw.randint(1, 40 if name == COORDINATOR else 5)))
        else:
            lines.append(LineFault(number=draw.randint(1, messages), kind="cut"))
    steps += _set_right(steps, random.Random(f"clocks {seed}"))
    masked = random.Random(f"masked {seed}").random() < _MASKED_SHARE
    return Schedule(seed=seed, phases=phases, masked=masked, quorum=quorum, chunk_bytes=chunk_bytes,
                    slow_seconds=slow_seconds,
                    line_faults=tuple(lines), deaths={name: tuple(each) for name, each in deaths.items()},
                    clock_steps=tuple(steps), full_disks=tuple(full), compute_deaths=tuple(computes))
