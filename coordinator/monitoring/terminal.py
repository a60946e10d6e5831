"""Live rounds on the terminal of `coordinator serve`: the round, what each silo does, accuracy and bytes.

Away from a terminal nothing is shown: the log lines of "semisilo" say the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from semisilo.common.errors import SystemTrouble
from semisilo.common.measures.study_measure import ACCURACY
from semisilo.common.text.describe import (
    describe_bytes,
    describe_estimate,
    describe_metric,
    describe_percentage,
    describe_progress,
    describe_share,
)
from semisilo.common.text.log_above import log_above
from semisilo.common.text.logs import printable
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster, SiloRow
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import OpenTask, answers_of_round, first_update, open_tasks
from semisilo.coordinator.ledger.traffic import study_totals, wire_by_silo
from semisilo.coordinator.monitoring.outcomes import OUTCOME_STYLES, outcomes_of, waiting_for
from semisilo.coordinator.monitoring.results.study_numbers import score_on_test
from semisilo.coordinator.monitoring.silo_state import SiloActivity, SiloState, activities_of
from semisilo.coordinator.monitoring.study_facts import StudyFacts, study_facts
from semisilo.coordinator.monitoring.summary import label_ratios
from semisilo.coordinator.monitoring.traffic import StudyCosts, Traffic, silo_ways
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.studies.participation import participation_of

if TYPE_CHECKING:
    from semisilo.coordinator.federation.folder import Federation

__all__ = ["Display", "sparkline"]

_LOG = logging.getLogger("semisilo.coordinator")
_FRAME_SECONDS = 0.25
_READ_SECONDS = 1.0
_BLOCKS = "▁▂▃▄▅▆▇█"
_RECENT_ROUNDS = 40
_STATE_STYLES = {SiloState.REVOKED: "red", SiloState.LEFT: "dim", SiloState.SET_ASIDE: "yellow",
                 SiloState.ENROLLED: "dim", SiloState.JOINED: "dim", SiloState.AWAY_BY_POLICY: "yellow",
                 SiloState.SILENT: "red", SiloState.LATE: "red", SiloState.WORKING: "cyan",
                 SiloState.CONNECTED: "green", SiloState.AWAY: "yellow"}


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the ledger says, read about once a second."""

    study: StudyRow | None = None
    said: StudyFacts | None = None
    """What every reader says of the study."""
    rounds: tuple[RoundHead, ...] = ()
    silos: tuple[SiloRow, ...] = ()
    answers: dict[str, TaskState] = field(default_factory=dict)
    """Answers to the last round."""
    open_tasks: dict[str, OpenTask] = field(default_factory=dict)
    """Silo -> the task that it owes an answer to."""
    label_ratio: dict[str, float] = field(default_factory=dict)
    """Of each silo's last answer."""
    silo_bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Silo -> (down, up) on the wire in this study."""
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, slots=True)
class _Column:
    """One of the table of silos."""

    name: str
    width: int
    """Cells that it takes at most."""
    cell: Callable[[SiloRow, SiloActivity], RenderableType]
    justify: Literal["left", "right"] = "left"
    needed: int = 0
    """Which one gives way first on a narrow terminal: the one with the largest number."""
    steady: bool = False
    """Always as wide, so that the table does not jump as what is in it changes."""


class Display:
    """Draws the runtime state and the ledger four times a second while `run` is under way."""

    def __init__(self, ledger: Ledger, roster: LedgerRoster, runtime: RuntimeState, console: Console, *,
                 federation: Federation | None = None) -> None:
        self._ledger = ledger
        self._roster = roster
        self._runtime = runtime
        self._console = console
        self._federation = federation
        self._facts = _Facts()
        self._read_again = 0.0

    async def run(self) -> None:
        """Draws until cancelled, with the log above; when the console is no terminal it only waits."""
        if not self._console.is_terminal:
            await asyncio.Event().wait()
        with log_above(self._console), Live(console=self._console, auto_refresh=False, transient=False,
                                            vertical_overflow="crop") as live:
            try:
                while self._draw(live):
                    await asyncio.sleep(_FRAME_SECONDS)
                await asyncio.Event().wait()
            finally:
                self._read_again = 0.0
                self._draw(live)

    def _draw(self, live: Live) -> bool:
        """False when it cannot be drawn: a picture must never be what ends a study."""
        try:
            live.update(self.render(), refresh=True)
        except (SystemTrouble, OSError):  # the next frame may succeed
            return True
        except Exception:
            _LOG.exception("the live view has failed and is off; the study continues")
            return False
        return True

    def render(self) -> RenderableType:
        """One frame."""
        self._refresh()
        facts = self._facts
        parts: list[RenderableType] = [self._title()]
        if facts.study is None:
            parts.append(Text("No study in the queue. Add one: coordinator new NAME, then coordinator queue NAME.",
                              style="dim"))
        else:
            parts += [self._study_line(facts.study), *self._round_lines(), Text(self._doing(), "cyan")]
        if facts.silos:
            parts.append(self._silo_table())
        else:
            parts.append(Text("No silo has enrolled yet. Invite one: coordinator invite NAME", style="dim"))
        parts += self._footer()
        return Group(*parts)

    # Parts ------------------------------------------------------------------------------------------------------------

    def _title(self) -> RenderableType:
        if self._federation is None:
            return Rule("semisilo coordinator", style="dim", align="left")
        name = Text.assemble(("federation ", "dim"), (self._federation.name, "bold"))
        address = Text.assemble(("  at  ", "dim"), self._federation.config.address.public)
        page = Text.assemble(("  page  ", "dim"), self._runtime.page) if self._runtime.page else Text()
        if (whole := Text.assemble(name, address, page)).cell_len + 2 <= self._console.width:
            return Rule(whole, style="dim", align="left")
        return Group(Rule(name, style="dim", align="left"), *(
            Text(f"{part.plain.strip()}", overflow="fold") for part in (address, page) if part.plain))

    def _study_line(self, study: StudyRow) -> RenderableType:
        style = {StudyState.FAILED: "red", StudyState.PAUSED: "yellow", StudyState.STOPPED: "yellow",
                 StudyState.COMPLETED: "green"}.get(study.state, "")
        line = Text.assemble(("study ", "dim"), (study.name, "bold"), ("   method ", "dim"),
                             self._facts.said.method if self._facts.said is not None else "?", "   ",
                             (str(study.state), style))
        if study.reason:
            line.append(f": {printable(study.reason, limit=800)}", "red")
        if self._facts.said is not None and (ran := self._facts.said.participation).text:
            line.append(f"\n{printable(ran.text, limit=400)}", "red" if ran.refusing else "dim")
        return line

    def _round_lines(self) -> Iterator[RenderableType]:
        said = self._facts.said
        if said is None:
            return
        over = sum(row.closed_unix is not None and row.number > 0 for row in self._facts.rounds)
        line = Table.grid(padding=(0, 1))
        left = said.seconds_left
        width = max(6, min(32, self._console.width - 34))
        line.add_row(Text(f"round {said.round}/{said.rounds}"), _bar(over / max(said.rounds, 1), width=width),
                     Text("" if left is None else f"about {describe_estimate(left)} left", "dim"))
        yield line

    def _doing(self) -> str:
        runtime = self._runtime
        if runtime.trouble:
            return f"waits: {printable(runtime.trouble, limit=300)}"
        parts = [f"phase {runtime.phase}"] if runtime.phase else []
        waiting = waiting_for(self._facts.answers)
        if runtime.activity:
            progress = f" {describe_progress(runtime.fraction)}" if runtime.fraction > 0 else ""
            parts.append(f"{printable(runtime.activity, limit=100)}{progress}")
        elif waiting:
            named = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
            parts.append(f"waiting for {named}")
        if runtime.text and not waiting:
            parts.append(printable(runtime.text, limit=200))
        return ": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:]) or "idle"

    def _silo_table(self) -> RenderableType:
        columns = self._columns()
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
        for column in columns:
            table.add_column(column.name, justify=column.justify, no_wrap=True, overflow="ellipsis",
                             width=column.width if column.steady else None, max_width=column.width)
        room = max(3, self._console.height - 11)
        shown = self._facts.silos if len(self._facts.silos) <= room else self._facts.silos[: room - 1]
        now = time.time()
        activities = activities_of(shown, LiveStatus.from_runtime(self._runtime, now_unix=now),
                                   self._facts.open_tasks, now_unix=now)
        for silo in shown:
            table.add_row(*(column.cell(silo, activities[silo.name]) for column in columns))
        if len(shown) < len(self._facts.silos):
            table.add_row(Text(f"and {len(self._facts.silos) - len(shown)} more", "dim"))
        return table

    def _columns(self) -> list[_Column]:
        """Those that the terminal is wide enough for, in their order; the page shows all."""
        wanted = (
            _Column("silo", 18, lambda silo, activity: silo.name, needed=0),
            _Column("state", 14, lambda silo, activity: Text(
                activity.doing.stage if activity.state is SiloState.WORKING and activity.doing is not None
                else activity.state, _STATE_STYLES[activity.state]), needed=1, steady=True),
            _Column("this round", 14, self._this_round, needed=2, steady=True),
            _Column("images", 7, lambda silo, activity: str(silo.labelled_count + silo.unlabelled_count)
                    if silo.joined_unix else "–", "right", needed=5),
            _Column("label ratio", 11, lambda silo, activity: describe_share(self._facts.label_ratio.get(silo.name)),
                    "right", needed=6),
            _Column("down", 9, lambda silo, activity: describe_bytes(self._facts.silo_bytes.get(silo.name, (0, 0))[0]),
                    "right", needed=3),
            _Column("up", 9, lambda silo, activity: describe_bytes(self._facts.silo_bytes.get(silo.name, (0, 0))[1]),
                    "right", needed=4))
        names = max([len("silo"), *(len(silo.name) for silo in self._facts.silos)])
        left, kept = self._console.width, set[str]()
        for column in sorted(wanted, key=lambda each: each.needed):
            left -= (min(names, column.width) if column.name == "silo" else column.width) + 1
            if left < 0:
                break
            kept.add(column.name)
        if "up" not in kept:
            kept.discard("down")
        return [column for column in wanted if column.name in kept] or [wanted[0]]

    def _this_round(self, silo: SiloRow, activity: SiloActivity) -> RenderableType:
        """How far it is, why it does not work, or what it has answered."""
        answer = self._facts.answers.get(silo.name)
        if activity.doing is not None:
            line = Table.grid(padding=(0, 1, 0, 0))
            line.add_row(_bar(activity.doing.fraction, width=8), Text(describe_progress(activity.doing.fraction)))
            return line
        if answer is not None and answer is not TaskState.OPEN and self._facts.rounds \
                and self._facts.rounds[-1].closed_unix is None:
            return Text(answer, OUTCOME_STYLES[answer])
        return Text(silo.away_reason, "yellow") if activity.state is SiloState.AWAY_BY_POLICY else ""

    def _footer(self) -> Iterator[RenderableType]:
        facts, said = self._facts, self._facts.said
        if facts.study is None or said is None:
            return
        measure = facts.study.study_measure
        measured = [score for row in facts.rounds if row.state is RoundState.COMPLETED and row.number > 0
                    and (score := score_on_test(row.metrics, measure)) is not None]
        alone, note = said.labels_alone_test_score, self._runtime.labels_alone or said.labels_alone
        if measured or alone is not None or note:
            line = Text.assemble((f"{measure.title} ", "dim"))
            if measured:
                line.append("".join(f"{describe_metric(measure.metric, value)}  " for value in measured[-3:-1]))
                line.append(describe_metric(measure.metric, measured[-1]), "bold")
                line.append(f"  {sparkline(measured[-_RECENT_ROUNDS:])}", "green")
            if alone is not None:
                line.append("  labelled only ", "dim").append(describe_metric(measure.metric, alone))
            if measure != ACCURACY and said.accuracy is not None:
                line.append(f"  accuracy {describe_percentage(said.accuracy)}", "dim")
            if note:
                line.append(f" ({note})" if alone is not None else f"  labelled only: {note}", "dim")
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line
        traffic = facts.traffic
        if traffic.wire or traffic.payload:
            line = Text.assemble(("wire     ", "dim")).append(describe_bytes(traffic.wire), "bold")
            line.append(f" ({describe_bytes(traffic.wire_down)} down, {describe_bytes(traffic.wire_up)} up)")
            if traffic.share is not None:
                line.append(f", {describe_share(traffic.share)} of dense")
            if traffic.estimated:
                line.append(", estimated", "yellow")
            yield line

    # The ledger -------------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Reads the ledger again after a second, or after 20 times what reading took: rounds come first."""
        start = time.monotonic()
        if start < self._read_again:
            return
        self._facts = self._read()
        took = time.monotonic() - start
        self._read_again = start + max(_READ_SECONDS, 20 * took)

    def _read(self) -> _Facts:
        studies = self._ledger.studies()
        study = next((row for row in studies if row.name == self._runtime.study), studies[-1] if studies else None)
        silos = tuple(self._roster.silos())
        if study is None:
            return _Facts(silos=silos)
        rounds = tuple(round_heads(self._ledger, study.name))
        number = rounds[-1].number if rounds else 0
        costs = StudyCosts(by_silo=silo_ways(wire_by_silo(self._ledger, study.name)))
        costs.replace(study_totals(self._ledger, study.name))
        return _Facts(
            study=study, said=study_facts(
                study, rounds, participation_of(self._ledger, study), now_unix=time.time(),
                first_update=first_update(self._ledger, study.name)), rounds=rounds, silos=silos,
            answers=outcomes_of(answers_of_round(self._ledger, study.name, number)),
            open_tasks=open_tasks(self._ledger),
            label_ratio=label_ratios(self._ledger, study.name, number),
            silo_bytes={silo: (ways["down"], ways["up"]) for silo, ways in costs.by_silo.items()},
            traffic=costs.traffic(dense_bytes=study.dense_bytes))


def _bar(fraction: float, *, width: int) -> ProgressBar:
    return ProgressBar(total=1.0, completed=fraction, width=width, complete_style="cyan", finished_style="cyan")


def sparkline(values: Sequence[float]) -> str:
    """One character per value, from the smallest (▁) to the largest (█); equal values give a low line."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)
