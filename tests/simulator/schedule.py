"""What goes wrong in a run, drawn from its seed.

A run has stretches, each with faults of its own, drawn from a seed of its own. The schedules of a family (a block of
consecutive seeds) share the first stretches with some of their brothers: `branches` runs what is shared once.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.simulator.machine import AimedDeath, FileError, PointOfDeath, Relapse
from tests.simulator.network import LineFault

__all__ = ["BRANCHES", "CHUNK_BYTES", "COORDINATOR", "MESSAGES", "NAMES", "OPERATED_FROM", "SILOS", "STATEMENTS",
           "ClockAtStart", "ClockStep", "ComputeDeath", "FullDisk", "Mark", "Schedule", "Stretch", "StudyRollback",
           "StudyStop", "draw_schedule", "family_of", "path_of", "turns_of"]

COORDINATOR = "coordinator"
SILOS = ("B", "a", "c", "d", "e")
"""In byte order."""
CHUNK_BYTES = (120, 4096)
"""Of a payload of some 200 bytes: two chunks, or one."""
_FAN_OUT = (2, 2, 16)
"""Into so many branches a family parts at the beginning of its second stretch, each of these at that of the third, and
so on."""
BRANCHES = 64
"""Schedules of a family."""
assert _FAN_OUT[0] * _FAN_OUT[1] * _FAN_OUT[2] == BRANCHES
_LINE_KINDS = ("cut", "cut", "cut after", "cut after", "refuse", "half open", "vanish", "stall", "delay", "duplicate",
               "duplicate", "spoil")
_MASKED_EVERY = 10
"""Every so-manieth family: such a run takes three times as long."""
_TWO_STUDIES_EVERY, _TWO_STUDIES = 10, 4
"""Every so-manieth family runs two studies: one fails or is stopped in a round, the other runs meanwhile, and an
operator queues the first again."""
OPERATED_FROM = 10**12
"""Seeds from here on have people as well: an operator who goes back to an earlier round, persons at hospitals who must
approve the study, and clocks that are set right while a machine starts. What smaller seeds draw stays what it was."""
_ROLLBACK_SHARE, _APPROVAL_SHARE, _BOOT_CLOCK_SHARE = 0.45, 0.3, 0.35
"""Of the stretches, the silos, and the stretches."""
_SHARE_OF_TWO_PHASES = 0.12
"""Such a run takes twice as long."""
_DEATH_KINDS = ("callback", "disk", "disk", "commit", "message")
_LAST_BEGINS = ((0.03, 0.0, 0.03), (0.03, 0.03, 0.15), (0.08, 0.15, 0.7), (0.86, 0.72, 0.97))
"""(share of the families, from, to): where their last stretch begins, as a share of a run without faults. Most part in
the last round, in which everything happens that happens in the others, and what lies before it is run once; but what
goes wrong in the beginning is found only by those that part there."""
_BURST_SHARE, _BURST = 0.5, 0.05
"""Of so many schedules the last faults fall into so much of a run, close to each other and to where it parts from its
brothers, instead of anywhere in what is left."""
_FAULTS, _LAST_FAULTS = (0, 0, 0, 1, 2), (2, 2, 2, 2, 3, 3, 4, 6)
"""How many a stretch has, and the last one, which no other schedule shares."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockStep:
    """The wall clock of a machine is set."""

    machine: str
    at_seconds: float
    """From the beginning of its stretch, as all moments and numbers below."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyStop:
    """An operator stops the study that runs."""

    at_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRollback:
    """An operator pauses the study, looks at it for a while, and has it go back to an earlier round; where there is
    none, it goes on."""

    at_seconds: float
    looks_seconds: float
    share: float
    """Which of the rounds that it can go back to, from the first, 0, to the last, 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockAtStart:
    """The wall clock of a machine is set right, or wrong, before its process starts again the next time."""

    machine: str
    by_seconds: float | None
    """None: right."""


_OFTEN_SECONDS, _SELDOM_SECONDS = 3.0, 7.0
"""Between reports of a silo on its work; the seldom ones leave a sixth of all messages out."""
_WORK_SECONDS = (0.3, 2.0, 8.0)
"""The longest work of a compute process."""
_TURNS = {
    (1, False, 120, 3.0): (3080, 3200, 3870), (1, False, 120, 7.0): (2730, 2760, 3010),
    (1, False, 4096, 3.0): (2710, 2850, 3480), (1, False, 4096, 7.0): (2350, 2390, 2600),
    (2, False, 120, 3.0): (5780, 6080, 7290), (2, False, 120, 7.0): (5080, 5160, 5590),
    (2, False, 4096, 3.0): (4980, 5330, 6350), (2, False, 4096, 7.0): (4320, 4380, 4800),
    (1, True, 120, 3.0): (4810, 5030, 5510), (1, True, 120, 7.0): (4520, 4550, 4860),
    (1, True, 4096, 3.0): (4490, 4660, 5260), (1, True, 4096, 7.0): (4210, 4260, 4600),
    (2, True, 120, 3.0): (9290, 9760, 10830), (2, True, 120, 7.0): (8640, 8820, 9350),
    (2, True, 4096, 3.0): (8680, 9130, 10320), (2, True, 4096, 7.0): (8090, 8230, 8820),
}
"""By phases, masks, bytes of a chunk and seconds between reports: callbacks of a run of one study without faults, for
each of `_WORK_SECONDS`. Where stretches begin follows from so many, and a test holds them against such a run. A
schedule is the same whatever a change of the product does to them, until they are measured anew."""
_TWO_STUDIES_TURNS = 4 / 3
"""So many times as many callbacks have two studies of a round less."""
_MESSAGES = {(1, 120, 3.0): 421, (1, 120, 7.0): 317, (1, 4096, 3.0): 378, (1, 4096, 7.0): 272,
             (2, 120, 3.0): 796, (2, 120, 7.0): 588, (2, 4096, 3.0): 699, (2, 4096, 7.0): 499}
"""The same of messages, by phases, bytes of a chunk and seconds between reports."""
_MASKED_MESSAGES = 1.45
_EVENTS = {COORDINATOR: {"callback": 900, "disk": 410, "commit": 149, "message": 159},
           "silo": {"callback": 400, "disk": 260, "message": 38}}
"""The same of events on a machine, for one phase."""
_MASKED_EVENTS = {COORDINATOR: {"callback": 1260, "disk": 256, "commit": 385, "message": 253},
                  "silo": {"callback": 700, "disk": 470, "message": 53}}
_OPERATIONS = {COORDINATOR: 28, "silo": 4}
"""The same of calls of a compute process."""


class Mark(NamedTuple):
    """Something that deaths are aimed at."""

    text: str
    """The first words of a statement that changes the ledger, or what is done to a name and in which folder."""
    times: int
    """How often it is reached in a run without faults: what is done seldom is drawn as often as what is done all the
    time."""
    until: float = 1.0
    """By then a run without faults has reached it for the last time, as a share of the run."""
    needs: str = ""
    """"masks", "phases": several of them, or "chunks": payloads that do not come in one."""


STATEMENTS = (
    Mark("INSERT INTO round (study,", 4, 0.7), Mark("INSERT INTO phase VALUES", 6, 0.7),
    Mark("INSERT INTO event VALUES", 57), Mark("INSERT INTO kept_state SELECT", 4),
    Mark("INSERT INTO silo_identity VALUES", 5, 0.03), Mark("INSERT OR IGNORE INTO", 19, 0.9),
    Mark("UPDATE round SET state", 14), Mark("UPDATE round SET state_digest", 4),
    Mark("UPDATE round SET closed_unix", 4), Mark("UPDATE round SET phase", 3, 0.85, "phases"),
    Mark("UPDATE phase SET closed_unix", 3), Mark("UPDATE task SET given_unix", 15, 0.7),
    Mark("UPDATE task SET state", 15), Mark("UPDATE declared_update SET accepted_unix", 13),
    Mark("UPDATE declared_update SET folded", 4), Mark("UPDATE silo_state SET last_folded_round", 4),
    Mark("UPDATE study SET state", 4), Mark("UPDATE study SET frozen_json", 1, 0.01),
    Mark("DELETE FROM declared_update WHERE", 13, 0.9), Mark("INSERT INTO step_answer VALUES", 56, 1.0, "masks"),
    Mark("UPDATE secure_sum SET form_json", 3, 0.75, "masks"),
    Mark("UPDATE secure_sum SET outcome_json", 3, 1.0, "masks"))
NAMES = {
    COORDINATOR: (Mark("replace states", 34), Mark("unlink states", 34), Mark("replace payloads", 14, 0.7),
                  Mark("overwrite payloads", 20, 0.7), Mark("unlink payloads", 14), Mark("replace spool", 13, 0.9),
                  Mark("unlink spool", 13), Mark("unlink incoming", 3, 0.25), Mark("replace s", 1)),
    "silo": (Mark("replace memory", 7, 0.85), Mark("overwrite memory", 5, 0.85), Mark("unlink memory", 7, 0.85),
             Mark("replace outgoing", 3, 0.85), Mark("unlink outgoing", 2, 0.75), Mark("replace cache", 7, 0.8),
             Mark("unlink cache", 5, 0.8), Mark("link tensors", 7, 0.85), Mark("unlink tensors", 9, 0.85),
             Mark("unlink incoming", 14, 0.8, "chunks"), Mark("overwrite cards", 2, 0.1),
             Mark("overwrite secure", 19, 0.95, "masks"), Mark("replace home", 4, 0.25), Mark("overwrite home", 17))}
MESSAGES = (
    Mark("AwaitTask up", 25), Mark("AwaitTask down", 25), Mark("BeginUpdate up", 15, 0.9),
    Mark("BeginUpdate down", 15, 0.9), Mark("DownloadPayload up", 34, 0.8), Mark("DownloadPayload down", 68, 0.8),
    Mark("SubmitUpdate up", 39, 0.9), Mark("SubmitUpdate down", 26, 0.9), Mark("DescribeStudyCard up", 5, 0.05),
    Mark("DescribeStudyCard down", 5, 0.05), Mark("SignStudyCard up", 5, 0.05), Mark("SignStudyCard down", 5, 0.05))
"""Of which call, and which way. Reports are missing: some studies have none, and nothing follows from one."""
_REQUESTS = tuple(mark for mark in MESSAGES if mark.text.endswith(" up"))
_ENDS = tuple(mark for mark in (*STATEMENTS, *NAMES[COORDINATOR]) if mark.text.startswith("unlink") or mark.text in (
    "UPDATE phase SET closed_unix", "UPDATE round SET closed_unix", "UPDATE study SET state", "replace s"))
"""A phase, a round or a study is over, and what it needed goes."""
_AIMED_SHARE, _ENDS_SHARE = (0.5, 0.8), 0.6
"""Of what befalls lines so much befalls a message of a drawn call, of which there may be few, and of what makes
messages late; of late messages so many come when something is over."""
_KINDS = {"line": 0.26, "death": 0.14, "aimed": 0.24, "relapse": 0.17, "late": 0.09, "clock": 0.04, "full": 0.03,
          "compute": 0.03, "outage": 0.02}
"""Of faults, with their shares where all are on."""
_NAMED = {machine: tuple(mark for mark in marks if not mark.text.startswith("unlink"))
          for machine, marks in NAMES.items()}
"""What gives a file its name."""
_LINE_SECONDS, _HELD_SECONDS = (0.05, 0.5, 3.0, 20.0, 70.0, 150.0), 150.0
"""How long lines are out of order, and how long a message waits at most for what it is to come after."""
_ON_SHARE = 0.65
_ROT_SHARE = 0.2
"""Of the deaths of silos."""
_SECONDS, _SECONDS_OF_WORK = 8.0, 12.0
"""Virtual: how long it lasts at least, and for each second of the longest work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Part of a run. Numbers of messages, events, marks and calls, and seconds, are counted from its beginning."""

    seed: str = "run"
    """Of all that chance decides from there on: delays, random bytes, what a disk forgets."""
    at_turn: int = 0
    """Begins when so many callbacks of the run are over."""
    line_faults: tuple[LineFault, ...] = ()
    deaths: Mapping[str, tuple[PointOfDeath, ...]] = field(default_factory=dict)
    aims: Mapping[str, tuple[AimedDeath, ...]] = field(default_factory=dict)
    clock_steps: tuple[ClockStep, ...] = ()
    full_disks: tuple[FullDisk, ...] = ()
    compute_deaths: tuple[ComputeDeath, ...] = ()
    failures: tuple[int, ...] = ()
    """Numbers of the calls of the coordinator's compute process that fail, and a study with each."""
    stops: tuple[StudyStop, ...] = ()
    rollbacks: tuple[StudyRollback, ...] = ()
    clocks_at_start: tuple[ClockAtStart, ...] = ()

    @property
    def num_faults(self) -> int:
        deaths = [death for each in (self.deaths, self.aims) for of_one in each.values() for death in of_one]
        return (len(self.line_faults) + len(deaths) + sum(death.then is not None for death in deaths)
                + len(self.clock_steps) + len(self.full_disks) + len(self.compute_deaths) + len(self.failures)
                + len(self.stops) + len(self.rollbacks) + len(self.clocks_at_start))

    def lines(self) -> list[str]:
        """For a person."""
        return [*(f"line: {fault}" for fault in self.line_faults),
                *(f"{name}: {death}" for each in (self.deaths, self.aims) for name, deaths in each.items()
                  for death in deaths),
                *map(str, self.clock_steps), *map(str, self.full_disks), *map(str, self.compute_deaths),
                *(f"call {number} of the coordinator's compute process fails" for number in self.failures),
                *map(str, self.stops), *map(str, self.rollbacks), *map(str, self.clocks_at_start)]


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
    studies: int = 1
    """In the queue; where there are several, each has a round less."""
    requeue_seconds: float = 5.0
    """How often an operator looks for studies that have failed or were stopped, and queues them again."""
    operated: bool = False
    """Whether people do something meanwhile, as from seed `OPERATED_FROM` on."""
    approvals: Mapping[str, float] = field(default_factory=dict)
    """Silos at which a person must approve the study -> how often that person looks, seconds."""
    quorum: int = len(SILOS)
    """Answers that a phase must have; below all it also closes without the late ones, at its deadline."""
    chunk_bytes: int = 4096
    slow_seconds: float = 1.0
    """The longest work of a compute process."""
    report_seconds: float = 3.0
    """How often silos report on their work; above 3 s no longer when a stage begins, as where there are many silos."""
    stretches: tuple[Stretch, ...] = (Stretch(),)
    """The first begins with the run."""
    file_error: FileError | None = None

    @property
    def lasts(self) -> bool:
        """Whether a study that is over may begin again, or another come: then silos call on."""
        return self.studies > 1 or self.operated

    @property
    def num_faults(self) -> int:
        return sum(stretch.num_faults for stretch in self.stretches) + (self.file_error is not None)

    def deaths_of(self, machine: str) -> list[PointOfDeath | AimedDeath]:
        """All of them."""
        found: list[PointOfDeath | AimedDeath] = []
        for stretch in self.stretches:
            for each in (stretch.deaths, stretch.aims):
                for name, deaths in each.items():
                    found += deaths if name == machine else ()
                    found += [death.then.death for death in deaths
                              if death.then is not None and death.then.machine == machine]
        return found

    def loses_power(self, machine: str) -> bool:
        """Whether it may."""
        return any(death.power for death in self.deaths_of(machine))

    def lines(self) -> list[str]:
        """For a person."""
        masks = " behind masks" if self.masked else ""
        several = f"{self.studies} studies, " if self.studies > 1 else ""
        found = [f"{several}{self.phases} phases{masks}, quorum {self.quorum}, chunks of {self.chunk_bytes} bytes,"
                 f" work of up to {self.slow_seconds:.1f} s"]
        found += [f"a person at {silo} approves the study, and looks every {seconds:.0f} s"
                  for silo, seconds in self.approvals.items()]
        for stretch in self.stretches:
            found += [f"from callback {stretch.at_turn} on:"] if stretch.at_turn else []
            found += stretch.lines()
        return [*found, *([] if self.file_error is None else [str(self.file_error)])]


# Families -------------------------------------------------------------------------------------------------------------


def family_of(seed: int) -> int:
    """Number of the family."""
    return seed // BRANCHES


def path_of(seed: int) -> tuple[int, ...]:
    """Which branch is taken at the beginning of each stretch: (family, of the second, of the third, ...)."""
    rest, path = seed % BRANCHES, []
    for count in reversed(_FAN_OUT):
        rest, digit = divmod(rest, count)
        path.append(digit)
    return family_of(seed), *reversed(path)


def turns_of(schedule: Schedule) -> float:
    """Callbacks of a run of this kind without faults."""
    of_work = _TURNS[schedule.phases, schedule.masked, schedule.chunk_bytes, schedule.report_seconds]
    return of_work[_WORK_SECONDS.index(schedule.slow_seconds)] * (_TWO_STUDIES_TURNS if schedule.studies > 1 else 1)


def draw_schedule(seed: int) -> Schedule:
    """At least two faults, which no other schedule has, and those of the stretches that it shares."""
    path = path_of(seed)
    draw = random.Random(f"family {path[0]}")
    phases, part = _evenly(path[0])
    plain = Schedule(seed=seed, phases=2 if phases < _SHARE_OF_TWO_PHASES else 1,
                     masked=path[0] % _MASKED_EVERY == _MASKED_EVERY - 1,
                     quorum=5 if draw.random() < 0.7 else 3, chunk_bytes=draw.choice(CHUNK_BYTES),
                     slow_seconds=draw.choice(_WORK_SECONDS),
                     report_seconds=draw.choice((_OFTEN_SECONDS, _SELDOM_SECONDS, _SELDOM_SECONDS)))
    bounds = (0.0, *_moments(draw, part), 1.0)
    if path[0] % _TWO_STUDIES_EVERY == _TWO_STUDIES:
        plain = replace(plain, studies=2, rounds=2, phases=1, requeue_seconds=draw.choice((1.0, 10.0, 60.0)))
    if seed >= OPERATED_FROM:
        plain = replace(plain, operated=True, studies=1, rounds=3, masked=False, approvals={
            silo: draw.choice((5.0, 60.0, 300.0)) for silo in SILOS if draw.random() < _APPROVAL_SHARE})
    return replace(plain, stretches=tuple(
        _Stretches(plain, begin, end, f"stretch {path[:number]}", last=number == len(path)).draw()
        for number, (begin, end) in enumerate(itertools.pairwise(bounds), start=1)))


def _evenly(family: int) -> tuple[float, float]:
    """Two numbers in [0, 1), spread more evenly over neighbouring families than chance would: a search of a few
    minutes has families of every kind. Multiples of 1 / g, where g^3 = g + 1, and of the golden ratio."""
    return (0.5 + family * 0.7548776662466927) % 1.0, (0.5 + family * 0.6180339887498949) % 1.0


def _moments(draw: random.Random, part: float) -> tuple[float, ...]:
    """Where the second stretch begins, and those after it, as shares of a run without faults.

    Args:
        part: in [0, 1): which of `_LAST_BEGINS`.
    """
    ends = itertools.accumulate(share for share, _, _ in _LAST_BEGINS)
    earliest, latest = next((bounds for end, (_, *bounds) in zip(ends, _LAST_BEGINS, strict=True) if part < end),
                            _LAST_BEGINS[-1][1:])
    last = draw.uniform(earliest, latest)
    return *sorted(draw.uniform(0.0, last) for _ in _FAN_OUT[1:]), last


# Faults ---------------------------------------------------------------------------------------------------------------


def _moment(draw: random.Random, most: float) -> int:
    """One of the first `most` events; every third time an early one, of which there are few."""
    most = max(1, int(most))
    return draw.randint(1, most) if draw.random() < 2 / 3 else int(most ** draw.random())


def _shares(draw: random.Random) -> dict[str, float]:
    """Which kinds of faults a stretch has, and how often each: where all are on at once, each hides what another would
    have shown (swarm testing: Groce et al., ISSTA 2012)."""
    shares = {kind: share * draw.choice((0.3, 1.0, 3.0)) for kind, share in _KINDS.items()
              if draw.random() < _ON_SHARE}
    return shares or dict(_KINDS)


class _Stretches:
    """Draws the faults of a stretch."""

    def __init__(self, schedule: Schedule, begin: float, end: float, seed: str, *, last: bool) -> None:
        """From `begin` to `end`, as shares of a run without faults."""
        self._schedule = schedule
        self._begin, self._share = begin, end - begin
        self._seed = seed
        self._last = last
        self._draw = random.Random(f"faults of {seed}")
        if last and self._draw.random() < _BURST_SHARE:
            self._share = min(self._share, _BURST)

    def draw(self) -> Stretch:
        draw, schedule = self._draw, self._schedule
        shares, kinds_of_line = _shares(draw), draw.sample(_LINE_KINDS, draw.randint(2, len(_LINE_KINDS)))
        seconds = self._share * (_SECONDS + _SECONDS_OF_WORK * schedule.phases * schedule.slow_seconds)
        lines: list[LineFault] = []
        deaths: dict[str, list[PointOfDeath]] = {}
        aims: dict[str, list[AimedDeath]] = {}
        steps: list[ClockStep] = []
        full: list[FullDisk] = []
        computes: dict[str, ComputeDeath] = {}
        for _ in range(draw.choice(_LAST_FAULTS if self._last else _FAULTS)):
            what = draw.choices(tuple(shares), tuple(shares.values()))[0]
            name = COORDINATOR if draw.random() < 0.4 else draw.choice(schedule.silos)
            if what == "death":
                deaths.setdefault(name, []).append(self._death(name))
            elif what == "aimed":
                aims.setdefault(name, []).append(self._aim(name))
            elif what == "relapse":
                aims.setdefault(name, []).append(self._aim_twice(name))
            elif what == "clock":
                steps += self._steps(name, seconds)
            elif what == "full":
                full.append(FullDisk(machine=name, at_seconds=draw.uniform(0, seconds),
                                     for_seconds=draw.choice((0.3, 5.0, 60.0))))
            elif what == "compute" and name not in computes:
                computes[name] = ComputeDeath(machine=name, number=_moment(
                    draw, self._share * schedule.phases * _OPERATIONS[_kind_of(name)]))
            else:
                lines.append(self._line_fault(what if what in ("outage", "late") else draw.choice(kinds_of_line)))
        failures, stops = self._ends_of_studies(seconds) if schedule.studies > 1 else ((), ())
        rollbacks, clocks = self._of_people(seconds, deaths, steps) if schedule.operated else ((), ())
        turns = turns_of(schedule)
        return Stretch(seed=self._seed, at_turn=max(int(self._begin > 0), int(self._begin * turns)),
                       line_faults=tuple(lines), deaths={name: tuple(each) for name, each in deaths.items()},
                       aims={name: tuple(each) for name, each in aims.items()}, clock_steps=tuple(steps),
                       full_disks=tuple(full), compute_deaths=tuple(computes.values()), failures=failures, stops=stops,
                       rollbacks=rollbacks, clocks_at_start=clocks)

    def _line_fault(self, kind: str) -> LineFault:
        draw = self._draw
        calls = MESSAGES if kind != "late" else _REQUESTS  # only these meet what the coordinator does meanwhile
        call = self._mark(calls) if draw.random() < _AIMED_SHARE[kind == "late"] else None
        fault = LineFault(
            number=_moment(draw, self._messages()) if call is None else self._occurrence(call), kind=kind,
            call="" if call is None else call.text, seconds=draw.choice(_LINE_SECONDS) * (0.5 + draw.random()))
        if kind != "late":
            return fault
        marks = _ENDS if draw.random() < _ENDS_SHARE else draw.choice((STATEMENTS, NAMES[COORDINATOR]))
        return replace(fault, seconds=_HELD_SECONDS, mark=self._mark(marks).text)

    def _occurrence(self, mark: Mark) -> int:
        """Which one of those that the stretch has; one of the first more often."""
        return int(max(1.0, mark.times * self._share) ** self._draw.random())

    def _ends_of_studies(self, seconds: float) -> tuple[tuple[int, ...], tuple[StudyStop, ...]]:
        """What ends a study before its time."""
        draw = self._draw
        if draw.random() < 0.4:
            return (), ()
        if draw.random() < 0.4:
            return (), (StudyStop(at_seconds=draw.uniform(0, seconds)),)
        return (_moment(draw, self._share * _OPERATIONS[COORDINATOR]),), ()

    def _of_people(self, seconds: float, deaths: dict[str, list[PointOfDeath]], steps: list[ClockStep]
                   ) -> tuple[tuple[StudyRollback, ...], tuple[ClockAtStart, ...]]:
        """What people do; a clock that is set right at a start has been wrong before, and its process has died."""
        draw = self._draw
        rollbacks, clocks = list[StudyRollback](), list[ClockAtStart]()
        if draw.random() < _ROLLBACK_SHARE:
            rollbacks.append(StudyRollback(at_seconds=draw.uniform(0, seconds), share=draw.random(),
                                           looks_seconds=draw.choice((0.0, 0.5, 5.0, 60.0)) * (0.5 + draw.random())))
        if draw.random() < _BOOT_CLOCK_SHARE:
            name = COORDINATOR if draw.random() < 0.6 else draw.choice(self._schedule.silos)
            step = self._steps(name, seconds)[0]
            deaths.setdefault(name, []).append(self._death(name))
            if draw.random() < 0.6:
                steps.append(step)
                clocks.append(ClockAtStart(machine=name, by_seconds=None))
            else:
                clocks.append(ClockAtStart(machine=name, by_seconds=step.by_seconds))
        return tuple(rollbacks), tuple(clocks)

    def _messages(self) -> float:
        schedule = self._schedule
        return (self._share * _MESSAGES[schedule.phases, schedule.chunk_bytes, schedule.report_seconds]
                * (_MASKED_MESSAGES if schedule.masked else 1.0))

    def _death(self, name: str) -> PointOfDeath:
        draw = self._draw
        events = (_MASKED_EVENTS if self._schedule.masked else _EVENTS)[_kind_of(name)]
        kind = draw.choice(_DEATH_KINDS)
        kind = kind if kind in events else "disk"
        return PointOfDeath(
            kind=kind, number=_moment(draw, self._share * self._schedule.phases * events[kind]),
            after=kind != "callback" and draw.random() < 0.5, power=draw.random() < 0.5,
            down_seconds=self._down_seconds(), rots=self._rots(name))

    def _aim(self, name: str) -> AimedDeath:
        """A death shortly after something that happens seldom, and will happen again."""
        draw = self._draw
        statement = name == COORDINATOR and draw.random() < 0.65
        mark = self._mark(STATEMENTS if statement else NAMES[_kind_of(name)])
        rare = "commit" if name == COORDINATOR else "message"
        return AimedDeath(
            mark=mark.text, occurrence=self._occurrence(mark),
            kind=draw.choice((rare, rare, "disk", "callback") if statement else ("disk", "disk", rare, "callback")),
            later=int(12 ** draw.random()) - 1, after=draw.random() < 0.5, power=draw.random() < 0.6,
            down_seconds=self._down_seconds(), rots=self._rots(name))

    def _aim_twice(self, name: str) -> AimedDeath:
        """A death around something that is named, mostly before that is on the disk, and another one, mostly of the
        power, soon after the process has started again. What the second process has believed may be gone then."""
        draw = self._draw
        mark = self._mark(_NAMED[_kind_of(name)])
        other = COORDINATOR if name != COORDINATOR and draw.random() < 0.8 else draw.choice(self._schedule.silos)
        where = name if draw.random() < 0.6 else other
        rare = "commit" if where == COORDINATOR else "message"
        if where == COORDINATOR != name:  # what it does for who comes again
            rare = draw.choice((rare, f"message {name}", f"message {name}"))
        return AimedDeath(
            mark=mark.text, occurrence=self._occurrence(mark), kind="disk",
            later=draw.choice((0, 0, 0, 0, 1)), after=draw.random() < 0.7, power=draw.random() < 0.25,
            down_seconds=self._down_seconds(), rots=self._rots(name, 2 * _ROT_SHARE),
            then=Relapse(machine=where, death=PointOfDeath(
                kind=draw.choice((rare, rare, "message", "disk")), number=int(16 ** draw.random()),
                after=draw.random() < 0.7, power=draw.random() < 0.85, down_seconds=self._down_seconds(),
                rots=self._rots(where))))

    def _mark(self, marks: tuple[Mark, ...]) -> Mark:
        """One that is still to come."""
        return self._draw.choice([mark for mark in marks if self._comes(mark)])

    def _comes(self, mark: Mark) -> bool:
        schedule = self._schedule
        has = {"": True, "masks": schedule.masked, "phases": schedule.masked or schedule.phases > 1,
               "chunks": schedule.chunk_bytes == min(CHUNK_BYTES)}
        return self._begin < mark.until and has[mark.needs]

    def _steps(self, name: str, seconds: float) -> list[ClockStep]:
        """Half of all clocks are set right again: what was noted meanwhile is of another time."""
        draw = self._draw
        step = ClockStep(machine=name, at_seconds=draw.uniform(0, seconds), by_seconds=draw.choice(
            (-86400.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0)) * (0.5 + draw.random()))
        back = replace(step, at_seconds=step.at_seconds + draw.uniform(0.1, 60.0), by_seconds=-step.by_seconds)
        return [step, back] if draw.random() < 0.5 else [step]

    def _down_seconds(self) -> float:
        return self._draw.choice((0.2, 2.0, 40.0)) * (0.5 + self._draw.random())

    def _rots(self, name: str, share: float = _ROT_SHARE) -> bool:
        return name != COORDINATOR and self._draw.random() < share


def _kind_of(machine: str) -> str:
    return machine if machine == COORDINATOR else "silo"
