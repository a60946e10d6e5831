"""What goes wrong in a run, drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulator.machine import AimedDeath, FileError, PointOfDeath
from tests.simulator.network import LineFault

__all__ = ["CHUNK_BYTES", "COORDINATOR", "NAMES", "SILOS", "STATEMENTS", "ClockStep", "ComputeDeath", "FullDisk",
           "Schedule", "draw_schedule"]

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
_OFTEN_SECONDS, _SELDOM_SECONDS = 3.0, 7.0
"""Between reports of a silo on its work; the seldom ones leave a sixth of all messages out."""
_EVENTS = {COORDINATOR: {"callback": 850, "disk": 420, "commit": 138, "message": 160},
           "silo": {"callback": 450, "disk": 210, "message": 40}}
"""The same of events on a machine, for one phase."""
STATEMENTS = (
    ("INSERT INTO round (study,", 4), ("INSERT INTO phase VALUES", 6), ("INSERT INTO event VALUES", 57),
    ("INSERT INTO kept_state SELECT", 4), ("INSERT INTO silo_identity VALUES", 5), ("INSERT OR IGNORE INTO", 19),
    ("UPDATE round SET state", 14), ("UPDATE round SET state_digest", 4), ("UPDATE round SET closed_unix", 4),
    ("UPDATE round SET phase", 3), ("UPDATE phase SET closed_unix", 3), ("UPDATE task SET given_unix", 15),
    ("UPDATE task SET state", 15), ("UPDATE declared_update SET accepted_unix", 13),
    ("UPDATE declared_update SET folded", 4), ("UPDATE silo_state SET last_folded_round", 4),
    ("UPDATE study SET state", 4), ("UPDATE study SET frozen_json", 1), ("DELETE FROM declared_update WHERE", 13),
    ("INSERT INTO step_answer VALUES", 56), ("UPDATE secure_sum SET form_json", 3),
    ("UPDATE secure_sum SET outcome_json", 3))
NAMES = {
    COORDINATOR: (("replace states", 34), ("unlink states", 34), ("replace payloads", 34), ("unlink payloads", 14),
                  ("replace spool", 13), ("unlink spool", 13), ("unlink incoming", 3), ("replace s", 1)),
    "silo": (("replace memory", 12), ("unlink memory", 7), ("replace outgoing", 3), ("unlink outgoing", 2),
             ("replace cache", 7), ("unlink cache", 5), ("link tensors", 7), ("unlink tensors", 9),
             ("unlink incoming", 14), ("replace cards", 3), ("replace secure", 21), ("replace home", 28))}
"""Marks that deaths are aimed at, with how often each is reached in a run without faults: what is done seldom is drawn
as often as what is done all the time."""
_KINDS = {"line": 0.34, "death": 0.2, "aimed": 0.28, "clock": 0.07, "full": 0.04, "compute": 0.04, "outage": 0.03}
"""Of faults, with their shares where all are on."""
_ON_SHARE = 0.65
_ROT_SHARE = 0.2
"""Of the deaths of silos."""
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
    aims: Mapping[str, tuple[AimedDeath, ...]] = field(default_factory=dict)
    report_seconds: float = 3.0
    """How often silos report on their work; above 3 s no longer when a stage begins, as where there are many silos."""
    clock_steps: tuple[ClockStep, ...] = ()
    full_disks: tuple[FullDisk, ...] = ()
    compute_deaths: tuple[ComputeDeath, ...] = ()
    file_error: FileError | None = None

    @property
    def num_faults(self) -> int:
        return (len(self.line_faults) + sum(map(len, self.deaths.values())) + sum(map(len, self.aims.values()))
                + len(self.clock_steps) + len(self.full_disks) + len(self.compute_deaths)
                + (self.file_error is not None))

    @property
    def machines_that_lose_power(self) -> frozenset[str]:
        return frozenset(name for each in (self.deaths, self.aims) for name, deaths in each.items()
                         if any(death.power for death in deaths))

    def lines(self) -> list[str]:
        """For a person."""
        masks = " behind masks" if self.masked else ""
        found = [f"{self.phases} phases{masks}, quorum {self.quorum}, chunks of {self.chunk_bytes} bytes,"
                 f" work of up to {self.slow_seconds:.1f} s"]
        found += [f"line: {fault}" for fault in self.line_faults]
        found += [f"{name}: {death}" for each in (self.deaths, self.aims) for name, deaths in each.items()
                  for death in deaths]
        return [*found, *map(str, self.clock_steps), *map(str, self.full_disks), *map(str, self.compute_deaths),
                *([] if self.file_error is None else [str(self.file_error)])]


def _moment(draw: random.Random, most: int) -> int:
    """One of the first `most` events; every third time an early one, of which there are few."""
    return draw.randint(1, most) if draw.random() < 2 / 3 else int(most ** draw.random())


def _set_right(steps: list[ClockStep], draw: random.Random) -> list[ClockStep]:
    """Half of all clocks are set right again: what was noted meanwhile is of another time."""
    return [ClockStep(machine=step.machine, at_seconds=step.at_seconds + draw.uniform(0.1, 60.0),
                      by_seconds=-step.by_seconds) for step in steps if draw.random() < 0.5]


def _shares(draw: random.Random) -> dict[str, float]:
    """Which kinds of faults a schedule has, and how often each: where all are on at once, each hides what another would
    have shown (swarm testing: Groce et al., ISSTA 2012)."""
    shares = {kind: share * draw.choice((0.3, 1.0, 3.0)) for kind, share in _KINDS.items()
              if draw.random() < _ON_SHARE}
    return shares or dict(_KINDS)


def _aim(draw: random.Random, name: str) -> AimedDeath:
    """A death shortly after something that happens seldom."""
    statement = name == COORDINATOR and draw.random() < 0.65
    mark, most = draw.choice(STATEMENTS if statement else NAMES[COORDINATOR if name == COORDINATOR else "silo"])
    rare = "commit" if name == COORDINATOR else "message"
    return AimedDeath(
        mark=mark, occurrence=int(most ** draw.random()),
        kind=draw.choice((rare, rare, "disk", "callback") if statement else ("disk", "disk", rare, "callback")),
        later=int(12 ** draw.random()) - 1, after=draw.random() < 0.5, power=draw.random() < 0.6,
        down_seconds=draw.choice((0.2, 2.0, 40.0)) * (0.5 + draw.random()), rots=_rots(draw, name))


def _rots(draw: random.Random, name: str) -> bool:
    return name != COORDINATOR and draw.random() < _ROT_SHARE


def draw_schedule(seed: int) -> Schedule:
    """Two to eight faults."""
    draw = random.Random(f"schedule {seed}")
    phases, quorum = 2 if draw.random() < 0.2 else 1, 5 if draw.random() < 0.7 else 3
    chunk_bytes, slow_seconds = draw.choice(CHUNK_BYTES), draw.choice((0.3, 2.0, 8.0))
    report_seconds = draw.choice((_OFTEN_SECONDS, _SELDOM_SECONDS, _SELDOM_SECONDS))
    seconds = _SECONDS + _SECONDS_OF_WORK * phases * slow_seconds
    messages = int(_MESSAGES[phases, chunk_bytes] * (1.0 if report_seconds == _OFTEN_SECONDS else 5 / 6))
    shares = _shares(draw)
    kinds_of_line = draw.sample(_LINE_KINDS, draw.randint(2, len(_LINE_KINDS)))
    lines: list[LineFault] = []
    deaths: dict[str, list[PointOfDeath]] = {}
    aims: dict[str, list[AimedDeath]] = {}
    steps: list[ClockStep] = []
    full: list[FullDisk] = []
    computes: list[ComputeDeath] = []
    for _ in range(draw.choice((2, 2, 3, 3, 4, 5, 6, 8))):
        what = draw.choices(tuple(shares), tuple(shares.values()))[0]
        name = COORDINATOR if draw.random() < 0.4 else draw.choice(SILOS)
        if what == "death":
            kind, events = draw.choice(_DEATH_KINDS), _EVENTS[COORDINATOR if name == COORDINATOR else "silo"]
            kind = kind if kind in events else "disk"
            deaths.setdefault(name, []).append(PointOfDeath(
                kind=kind, number=_moment(draw, phases * events[kind]),
                after=kind != "callback" and draw.random() < 0.5,
                power=draw.random() < 0.5, down_seconds=draw.choice((0.2, 2.0, 40.0)) * (0.5 + draw.random()),
                rots=_rots(draw, name)))
        elif what == "aimed":
            aims.setdefault(name, []).append(_aim(draw, name))
        elif what == "clock":
            steps.append(ClockStep(machine=name, at_seconds=draw.uniform(0, seconds), by_seconds=draw.choice(
                (-86400.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0)) * (0.5 + draw.random())))
        elif what == "full":
            full.append(FullDisk(machine=name, at_seconds=draw.uniform(0, seconds),
                                 for_seconds=draw.choice((0.3, 5.0, 60.0))))
        elif what == "compute" and not any(each.machine == name for each in computes):
            computes.append(ComputeDeath(machine=name, number=draw.randint(1, 40 if name == COORDINATOR else 5)))
        else:
            kind = "outage" if what == "outage" else draw.choice(kinds_of_line)
            lines.append(LineFault(number=draw.randint(1, messages), kind=kind,
                                   seconds=draw.choice((0.05, 0.5, 3.0, 20.0, 70.0, 150.0)) * (0.5 + draw.random())))
    steps += _set_right(steps, random.Random(f"clocks {seed}"))
    masked = random.Random(f"masked {seed}").random() < _MASKED_SHARE
    return Schedule(seed=seed, phases=phases, masked=masked, quorum=quorum, chunk_bytes=chunk_bytes,
                    slow_seconds=slow_seconds, report_seconds=report_seconds,
                    line_faults=tuple(lines), deaths={name: tuple(each) for name, each in deaths.items()},
                    aims={name: tuple(each) for name, each in aims.items()},
                    clock_steps=tuple(steps), full_disks=tuple(full), compute_deaths=tuple(computes))
