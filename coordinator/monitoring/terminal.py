"""Live rounds on the terminal of `coordinator serve`: the round, what each silo does, accuracy and bytes.

Away from a terminal nothing is shown: the log lines of "semisilo" say the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from common.describe import describe_bytes, describe_seconds, describe_share
from common.logs import LineFormatter, printable
from coordinator.bulletin import Bulletin, SiloProgress
from coordinator.costs import Cost
from coordinator.ledger import Ledger
from coordinator.live import PRESENT_SECONDS
from coordinator.roster import LedgerRoster, SiloRow
from coordinator.rows import RoundRow, StudyRow
from coordinator.states import RoundState, StudyState, TaskState
from coordinator.summary import (
    Traffic,
    accuracy_in,
    labelled_only_accuracy,
    outcomes_of,
    planned_rounds,
    seconds_left,
    traffic_of,
)

if TYPE_CHECKING:
    from coordinator.federation import Federation

__all__ = ["Display", "sparkline"]

_LOG = logging.getLogger("semisilo.coordinator")
_FRAME_SECONDS = 0.25
_READ_SECONDS = 1.0
_BLOCKS = "▁▂▃▄▅▆▇█"
_RECENT_ROUNDS = 40
_ANSWER_WORDS = {TaskState.UPDATED: ("done", "green"), TaskState.ABSTAINED: ("abstained", "yellow"),
                 TaskState.REFUSED: ("refused", "red"), TaskState.EXPIRED: ("late", "red"),
                 TaskState.CANCELLED: ("cancelled", "red")}


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the ledger says, read about once a second."""

    study: StudyRow | None = None
    rounds: tuple[RoundRow, ...] = ()
    silos: tuple[SiloRow, ...] = ()
    answers: dict[str, TaskState] = field(default_factory=dict)
    """Answers to the last round."""
    label_ratio: dict[str, float] = field(default_factory=dict)
    """Of each silo's last answer."""
    silo_bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Silo -> (down, up) on the wire in this study."""
    traffic: Traffic = field(default_factory=Traffic)


class Display:
    """Draws the bulletin and the ledger four times a second while `run` is under way."""

    def __init__(self, ledger: Ledger, roster: LedgerRoster, bulletin: Bulletin, console: Console, *,
                 federation: Federation | None = None) -> None:
        self._ledger = ledger
        self._roster = roster
        self._bulletin = bulletin
        self._console = console
        self._federation = federation
        self._facts = _Facts()
        self._read_again = 0.0

    async def run(self) -> None:
        """Draws until cancelled, with the log above; when the console is no terminal it only waits."""
        if not self._console.is_terminal:
            await asyncio.Event().wait()
        with _log_through(self._console), Live(console=self._console, auto_refresh=False, transient=False,
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
        except Exception:
            _LOG.exception("the live view has failed and is off; the study goes on")
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
            parts += [self._study_line(facts.study), *self._round_lines(facts.study), Text(self._doing(), "cyan")]
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
        title = Text.assemble(("federation ", "dim"), (self._federation.name, "bold"), ("  at  ", "dim"),
                              self._federation.config.address.public)
        if self._bulletin.page:
            title.append("  page  ", "dim").append(self._bulletin.page)
        return Rule(title, style="dim", align="left")

    def _study_line(self, study: StudyRow) -> RenderableType:
        style = {StudyState.FAILED: "red", StudyState.PAUSED: "yellow", StudyState.STOPPED: "yellow",
                 StudyState.COMPLETED: "green"}.get(study.state, "")
        line = Text.assemble(("study ", "dim"), (study.name, "bold"), ("   method ", "dim"),
                             str(study.config.get("method", {}).get("name", "?")), "   ", (str(study.state), style))
        if study.reason:
            line.append(f": {printable(study.reason, limit=800)}", "red")
        return line

    def _round_lines(self, study: StudyRow) -> Iterator[RenderableType]:
        planned = planned_rounds(study)
        over = sum(row.closed_unix is not None and row.number > 0 for row in self._facts.rounds)
        number = self._facts.rounds[-1].number if self._facts.rounds else 0
        line = Table.grid(padding=(0, 1))
        left = None if study.ended_unix else seconds_left(self._facts.rounds, planned=planned, now_unix=time.time())
        line.add_row(Text(f"round {number}/{planned}"),
                     _bar(over / max(planned, 1), width=32),
                     Text("" if left is None else f"about {describe_seconds(left)} left", "dim"))
        yield line

    def _doing(self) -> str:
        bulletin = self._bulletin
        parts = [f"phase {bulletin.phase}"] if bulletin.phase else []
        waiting = [silo for silo, state in self._facts.answers.items() if state is TaskState.OPEN]
        if bulletin.activity:
            progress = f" {100 * bulletin.fraction:.0f} %" if bulletin.fraction > 0 else ""
            parts.append(f"{printable(bulletin.activity, limit=100)}{progress}")
        elif waiting:
            named = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
            parts.append(f"waiting for {named}")
        if bulletin.text and not waiting:
            parts.append(printable(bulletin.text, limit=200))
        return ": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:]) or "idle"

    def _silo_table(self) -> RenderableType:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
        table.add_column("silo", no_wrap=True, overflow="ellipsis", max_width=18)
        table.add_column("state", no_wrap=True, width=11, overflow="ellipsis")
        table.add_column("progress", no_wrap=True, width=14)
        for name in ("images", "label ratio", "down", "up"):
            table.add_column(name, justify="right", no_wrap=True)
        room = max(3, self._console.height - 10)
        shown = self._facts.silos if len(self._facts.silos) <= room else self._facts.silos[: room - 1]
        for silo in shown:
            word, style = self._silo_state(silo)
            down, up = self._facts.silo_bytes.get(silo.name, (0, 0))
            images = silo.labelled_count + silo.unlabelled_count
            table.add_row(silo.name, Text(word, style), self._silo_progress(silo.name),
                          str(images) if silo.joined_unix else "–",
                          describe_share(self._facts.label_ratio.get(silo.name)), describe_bytes(down),
                          describe_bytes(up))
        if len(shown) < len(self._facts.silos):
            table.add_row(Text(f"and {len(self._facts.silos) - len(shown)} more", "dim"))
        return table

    def _silo_state(self, silo: SiloRow) -> tuple[str, str]:
        if silo.revoked_unix is not None:
            return "revoked", "red"
        if silo.left_unix is not None:
            return "left", "dim"
        answer = self._facts.answers.get(silo.name)
        if answer is TaskState.OPEN:
            progress = self._current_progress(silo.name)
            if progress is not None and self._is_present(silo):
                return progress.stage, "cyan"
            if silo.is_away(time.time()):
                return silo.away_reason, "yellow"
            return ("asked", "") if self._is_present(silo) else ("away", "yellow")
        if answer is not None and self._facts.rounds and self._facts.rounds[-1].closed_unix is None:
            return _ANSWER_WORDS[answer]
        if silo.joined_unix is None:
            return "enrolled", "dim"
        if silo.is_away(time.time()):
            return silo.away_reason, "yellow"
        return ("connected", "green") if self._is_present(silo) else ("away", "yellow")

    def _is_present(self, silo: SiloRow) -> bool:
        if silo.name in self._bulletin.connected:
            return True
        progress = self._bulletin.silos.get(silo.name)
        last = max(silo.seen_unix or 0.0, progress.unix if progress is not None else 0.0)
        return time.time() - last <= PRESENT_SECONDS

    def _silo_progress(self, silo: str) -> RenderableType:
        progress = self._current_progress(silo)
        if progress is None or self._facts.answers.get(silo) is not TaskState.OPEN:
            return ""
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(_bar(progress.fraction, width=8),
                     Text(f"{100 * progress.fraction:3.0f} %"))
        return line

    def _current_progress(self, silo: str) -> SiloProgress | None:
        progress = self._bulletin.silos.get(silo)
        return progress if progress is not None and progress.stage else None

    def _footer(self) -> Iterator[RenderableType]:
        facts = self._facts
        if facts.study is None:
            return
        measured = [accuracy for row in facts.rounds if row.state is RoundState.COMPLETED
                    and (accuracy := accuracy_in(row.metrics)) is not None]
        baseline = labelled_only_accuracy(facts.study)
        if measured or baseline is not None:
            line = Text.assemble(("accuracy ", "dim"))
            if measured:
                line.append("".join(f"{value:.3f} " for value in measured[-3:-1])).append(f"{measured[-1]:.3f}", "bold")
                line.append(f"  {sparkline(measured[-_RECENT_ROUNDS:])}", "green")
            if baseline is not None:
                line.append("  labelled only ", "dim").append(f"{baseline:.3f}")
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
        study = next((row for row in studies if row.name == self._bulletin.study), studies[-1] if studies else None)
        silos = tuple(self._roster.silos())
        if study is None:
            return _Facts(silos=silos)
        rounds = tuple(self._ledger.rounds(study.name))
        number = rounds[-1].number if rounds else 0
        tasks = self._ledger.query("SELECT silo, state FROM task WHERE study = ? AND round = ? ORDER BY phase",
                                   study.name, number)
        silo_bytes, traffic = self._read_traffic(study)
        return _Facts(study=study, rounds=rounds, silos=silos, label_ratio=self._read_label_ratio(study.name),
                      answers=outcomes_of((row["silo"], TaskState(row["state"])) for row in tasks),
                      silo_bytes=silo_bytes, traffic=traffic)

    def _read_label_ratio(self, study: str) -> dict[str, float]:
        """Of the answers of the last two rounds, so that a silo keeps its number while it works on the next."""
        result: dict[str, float] = {}
        for row in self._ledger.query(
                "SELECT silo, metrics_json FROM task WHERE study = ? AND round >="
                " (SELECT max(number) - 1 FROM round WHERE study = ?) ORDER BY round, phase", study, study):
            ratio = json.loads(row["metrics_json"]).get("label_ratio")
            if isinstance(ratio, (int, float)):
                result[row["silo"]] = float(ratio)
        return result

    def _read_traffic(self, study: StudyRow) -> tuple[dict[str, tuple[int, int]], Traffic]:
        rows = self._ledger.query(
            "SELECT round, silo, direction, kind, sum(bytes) AS bytes, max(estimated) AS estimated FROM cost"
            " WHERE study = ? AND kind != 'message' GROUP BY round, silo, direction, kind", study.name)
        costs = [Cost(study=study.name, round=row["round"], phase="", silo=row["silo"], direction=row["direction"],
                      kind=row["kind"], item="", bytes=row["bytes"], estimated=bool(row["estimated"])) for row in rows]
        silo_bytes: dict[str, tuple[int, int]] = {}
        for cost in costs:
            if cost.kind == "wire":
                down, up = silo_bytes.get(cost.silo, (0, 0))
                silo_bytes[cost.silo] = (down + cost.bytes, up) if cost.direction == "down" else (down, up + cost.bytes)
        return silo_bytes, traffic_of(costs, dense_bytes=int((study.frozen or {}).get("dense_bytes", 0)))


def _bar(fraction: float, *, width: int) -> ProgressBar:
    return ProgressBar(total=1.0, completed=fraction, width=width, complete_style="cyan", finished_style="cyan")


def sparkline(values: Sequence[float]) -> str:
    """One character per value, from the smallest (▁) to the largest (█); equal values give a low line."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)


@contextmanager
def _log_through(console: Console) -> Iterator[None]:
    """Lets log lines scroll by above the live view: handlers that write to a terminal give way for the time."""
    root = logging.getLogger()
    silenced = [handler for handler in root.handlers if isinstance(handler, logging.StreamHandler)
                and not isinstance(handler, logging.FileHandler) and _is_terminal(handler)]
    handler = _ConsoleHandler(console)
    for other in silenced:
        root.removeHandler(other)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for other in silenced:
            root.addHandler(other)


def _is_terminal(handler: logging.StreamHandler) -> bool:  # type: ignore[type-arg]
    return bool(getattr(handler.stream, "isatty", lambda: False)())


class _ConsoleHandler(logging.Handler):
    """Prints above the live view, in the format of the plain log."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(LineFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
        self._console.print(Text(self.format(record), style), soft_wrap=True)
