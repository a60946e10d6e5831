"""What `coordinator status` prints for people. Apart from the facts, so that `--json` does without rich.

Tests: tests/coordinator/monitoring/test_status.py.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from semisilo.common.measures.study_measure import ACCURACY
from semisilo.common.text.describe import (
    counted,
    describe_bytes,
    describe_estimate,
    describe_metric,
    describe_moment,
    describe_progress,
    describe_seconds,
    describe_share,
)
from semisilo.common.text.logs import printable
from semisilo.common.text.narrow_table import blocks, fitted
from semisilo.coordinator.federation.folder import folder_option
from semisilo.coordinator.ledger.roster import set_aside_text
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.monitoring.results.study_numbers import measure_text
from semisilo.coordinator.monitoring.silo_state import SiloState
from semisilo.coordinator.monitoring.status import RoundFacts, SiloFacts, StatusCost, StatusFacts
from semisilo.coordinator.monitoring.study_facts import StudyFacts

__all__ = ["render"]

_STYLES: Mapping[str, str] = {
    SiloState.REVOKED: "red", SiloState.SET_ASIDE: "yellow", SiloState.CONNECTED: "green", SiloState.WORKING: "green",
    SiloState.SILENT: "red", SiloState.LATE: "yellow", SiloState.AWAY: "yellow", SiloState.AWAY_BY_POLICY: "yellow"}
_GAP = "  "
_LEAST_WIDTH = 4
_LEAST_READABLE = 9
"""Cells of a column whose name is as long; below that rows stand one below the other."""


def _no_study(folder: Path) -> str:
    made = sorted(path.parent.name for path in (folder / "studies").glob("*/study.toml"))
    if not made:
        return f"No studies yet. Make one: coordinator new NAME{folder_option(folder)}"
    others = f", and {len(made) - 1} more" if len(made) > 1 else ""
    return (f"No study is queued yet. There is studies/{made[0]}/study.toml{others}: edit it, then coordinator queue"
            f" {made[0]}{folder_option(folder)}")


def render(console: Console, facts: StatusFacts) -> None:
    """Prints the facts; on a narrow terminal rows of tables stand one below the other."""
    _say(console, Text.assemble(("federation ", "dim"), (facts.federation, "bold"), ("  at ", "dim"), facts.address,
                                ("  in ", "dim"), facts.folder))
    _say(console, _serve_line(facts))
    if facts.live is not None and facts.live.page:
        _say(console, Text.assemble(("operator page at ", "dim"), facts.live.page))
    console.print()
    console.print(fitted(_study_table(facts), console) if facts.studies
                  else Text(_no_study(Path(facts.folder)), "dim"),
                  soft_wrap=not facts.studies)
    for study in facts.studies:
        if study.participation.text:
            _say(console, Text.assemble((f"{study.name}: ", "dim"), (printable(study.participation.text, limit=800),
                                                                     "red" if study.participation.refusing else "")))
        if study.labels_alone:
            _say(console, Text.assemble((f"{study.name}: labels alone: ", "dim"), study.labels_alone))
        if study.choice.conclusion:
            _say(console, Text.assemble((f"{study.name}: ", "dim"), study.choice.conclusion, (" Next: ", "dim"),
                                        f"{study.next_command}{folder_option(facts.folder)}"))
        elif study.choice.text:
            _say(console, Text.assemble((f"model of {study.name}: ", "dim"), study.choice.text))
        if study.test_score is not None and not study.choice.conclusion:
            _say(console, Text.assemble((f"numbers of {study.name}: ", "dim"), f"those of {study.numbers_of}"))
        if study.choice.measure_reason and study.choice.measure != str(ACCURACY):
            _say(console, Text.assemble((f"rounds of {study.name} are compared by ", "dim"), study.choice.title,
                                        (f" ({study.choice.measure_reason})", "dim")))
        if study.reason:
            paused = "paused: " if study.state == StudyState.PAUSED else ""
            _say(console, Text(f"{study.name}: {paused}{printable(study.reason, limit=800)}",
                               "" if study.state == StudyState.COMPLETED else "red"))
        if study.name in facts.rollbacks:
            _say(console, Text.assemble((f"{study.name} ", "dim"), (printable(facts.rollbacks[study.name], limit=800),
                                                                    "yellow")))
        if (card := facts.cards.get(study.name)) is not None and card.signed < card.silos:
            _say(console, Text.assemble(
                (f"{study.name}: ", "dim"), f"{card.signed} of {counted(card.silos, 'silo')}",
                (" have signed its study card; the others do so with their first task", "dim"),
                f", but for {card.without_key} whose key the roster for secure sums does not have"
                if card.without_key else "", (". Who: ", "dim"),
                f"coordinator card {study.name}{folder_option(facts.folder)}"))
        if study.state == StudyState.FAILED:
            _say(console, Text(f"Then queue it again: coordinator queue {study.name}{folder_option(facts.folder)}"))
    beside = next((study for study in reversed(facts.studies) if study.beside), None)
    if beside is not None:
        console.print()
        console.print(fitted(_beside_table(beside), console, titled=True))
    if facts.current_round is not None:
        console.print()
        _say(console, _round_text(facts.current_round, facts.unix))
    console.print()
    console.print(_silo_table(facts) if facts.silos
                  else Text("No silo has enrolled yet. Invite one: coordinator invite NAME"
                            f"{folder_option(facts.folder)}", "dim"), soft_wrap=not facts.silos)
    for silo in facts.silos:
        if silo.away_until_unix is not None:
            _say(console, Text.assemble(("silo ", "dim"), silo.name, (": ", "dim"), (silo.away_reason, "yellow"),
                                        (f" until {describe_moment(silo.away_until_unix)}, by its own policy", "dim")))
    for silo in facts.silos:
        if silo.silent_unix is not None:
            _say(console, Text.assemble(
                ("silo ", "dim"), silo.name, (": ", "dim"),
                (f"silent, last heard on {describe_moment(silo.silent_unix)}"
                 f" ({describe_seconds(facts.unix - silo.silent_unix)} ago)", "red"),
                ("; no round asks it until it calls again. To leave it out: ", "dim"),
                f"coordinator set-aside {silo.name}{folder_option(facts.folder)}"))
    for silo in facts.silos:
        if silo.state == SiloState.SET_ASIDE:
            _say(console, Text.assemble(("silo ", "dim"), silo.name, (": ", "dim"),
                                        (set_aside_text(printable(silo.set_aside_reason)), "yellow"),
                                        (f"; coordinator take-back {silo.name} lets it take part again", "dim")))
    for notice in facts.notices:
        _say(console, Text.assemble(("silo ", "dim"), (printable(notice.line), "yellow")))
    refused_all = {(study.name, each.silo): each.rounds for study in facts.studies
                   for each in study.participation.refusing}
    for refusal in facts.refusals:
        rounds = refused_all.get((refusal.study, refusal.silo))
        which = f"round {refusal.round} of {refusal.study}" if rounds is None else \
            f"every round of {refusal.study} ({rounds})"
        what = f" refused {which}: "
        _say(console, Text.assemble(("silo ", "dim"), refusal.silo, (what, "dim"), (printable(refusal.reason), "red")))
    for invitation in facts.invitations:
        _say(console, Text.assemble(("open invitation for ", "dim"), invitation.silo,
                                    (f", {describe_seconds(invitation.expires_unix - facts.unix)} left", "dim")))
    for cost in facts.costs:
        if cost.wire_down or cost.wire_up or cost.payload_down or cost.payload_up:
            console.print()
            console.print(fitted(_cost_table(cost), console, titled=True))


def _say(console: Console, line: Text) -> None:
    """A line, broken at words on a terminal; a file or a pipe gets it as it is."""
    for part in _broken(line, console.width) if console.is_terminal else [line]:
        console.print(part, soft_wrap=True)


def _broken(line: Text, width: int) -> Iterator[Text]:
    """Lines of at most `width` cells; words that are longer, such as paths, stay whole, so that they can be copied."""
    for part in line.split("\n"):
        start = 0
        for piece in textwrap.wrap(part.plain, width, break_long_words=False, break_on_hyphens=False,
                                   expand_tabs=False, replace_whitespace=False):
            start = part.plain.index(piece, start)
            yield part[start:start + len(piece)]
            start += len(piece)


def _serve_line(facts: StatusFacts) -> Text:
    live = facts.live
    if facts.silenced:
        return Text.assemble(("serve is running", "green"), (", and cannot say here what it does: "
                                                             f"{printable(facts.silenced, limit=500)}", "red"))
    if live is None:
        return Text(f"serve is not running. Start it: coordinator serve{folder_option(facts.folder)}", "yellow")
    present = sum(silo.present for silo in facts.silos)
    line = Text.assemble(("serve is running", "green"), f" (process {live.pid}), {_count(present, 'silo')} connected")
    doing = live.activity or live.text
    if doing:
        progress = f" {describe_progress(live.fraction)}" if live.activity and live.fraction > 0 else ""
        line.append(f": {printable(doing, limit=200)}{progress}")
    if live.remedy:
        line.append(f"\n{live.study} waits for silos. {printable(live.remedy, limit=500)}", "yellow")
    if live.trouble:
        line.append(f"\nstudy {live.study} waits: {printable(live.trouble, limit=500)} It continues automatically.",
                    "red")
    return line


def _study_table(facts: StatusFacts) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    titles = {study.choice.title for study in facts.studies}  # of several, lines below say which study has which
    for name, justify in (("study", "left"), ("state", "left"), ("method", "left"), ("round", "right"),
                          (titles.pop() if len(titles) == 1 else "measure", "right"), ("labelled only", "right"),
                          ("time left", "right")):
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for study in facts.studies:
        table.add_row(study.name, study.state, study.method, f"{study.round}/{study.rounds}",
                      describe_metric(study.choice.metric, study.test_score),
                      describe_metric(study.choice.metric, study.labels_alone_test_score),
                      "–" if study.seconds_left is None else describe_estimate(study.seconds_left))
    return table


def _beside_table(study: StudyFacts) -> Table:
    """The numbers of the study's model beside those of labels alone; those by class are on page and report."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(study.name, overflow="fold")
    for name in (study.federated or "federated", "labels alone"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in study.beside:
        if "/" in each.name:
            continue
        table.add_row(each.words, measure_text(each, each.federated), measure_text(each, each.labels_alone))
    return table


def _round_text(row: RoundFacts, now: float) -> Text:
    line = Text.assemble((f"round {row.number}/{row.rounds} ", "bold"), f"of {row.study}: {row.state}")
    if row.phase:
        line.append(f", phase {row.phase}")
    if row.tasks:
        line.append(f"; {', '.join(f'{count} {state}' for state, count in row.tasks.items())}; quorum {row.quorum}")
    if row.deadline_unix is not None:
        left = row.deadline_unix - now
        line.append(f"; deadline in {describe_seconds(left)}" if left >= 0
                    else f"; {describe_seconds(-left)} past its deadline")
    if row.waiting_for:
        line.append(f"; waiting for {', '.join(row.waiting_for)}")
    return line


def _silo_table(facts: StatusFacts) -> _Rows:
    labels = any(silo.labelled_count for silo in facts.silos)
    columns = [_Column("silo"), _Column("state"), _Column("last seen", "right"),
               _Column("certificate", "right"), _Column("images", "right"),
               *([_Column("labelled", "right")] if labels else []), _Column("version", most=12, first_to_go=True)]
    return _Rows(columns, [_silo_row(silo, facts.unix, labels=labels) for silo in facts.silos])


def _silo_row(silo: SiloFacts, now: float, *, labels: bool) -> list[_Cell]:
    seen = "never" if silo.seen_unix is None else f"{describe_seconds(now - silo.seen_unix)} ago"
    days, known = silo.certificate_days_left, bool(silo.version)
    return [(silo.name, ""),
            (silo.doing if silo.state == SiloState.WORKING else silo.state, _STYLES.get(silo.state, "dim")), (seen, ""),
            ("–", "") if days is None else ("expired", "red") if days <= 0
            else (f"{days:.0f} days", "yellow" if days < 7 else ""),
            (str(silo.labelled_count + silo.unlabelled_count) if known else "–", ""),
            *([(str(silo.labelled_count) if known else "–", "")] if labels else []), (silo.version or "–", "")]


_Cell = tuple[str, str]
"""A text and its style."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    justify: Literal["left", "right"] = "left"
    most: int = 1000
    """Cells that it may take."""
    first_to_go: bool = False
    """Whether it is left out where there is no room for all columns."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """A table of one line for each of perhaps a thousand rows, for which rich's own takes a third of a second."""

    columns: Sequence[_Column]
    rows: Sequence[Sequence[_Cell]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The head and the rows, in columns as wide as what is in them; the widest gives way where that is too much."""
        widths = [min(column.most, max(map(cell_len, (column.name, *(row[number][0] for row in self.rows)))))
                  for number, column in enumerate(self.columns)]
        if any(column.first_to_go for column in self.columns) and _total(widths) > options.max_width:
            kept = [number for number, column in enumerate(self.columns) if not column.first_to_go]
            yield from _Rows([self.columns[number] for number in kept],
                             [[row[number] for number in kept] for row in self.rows]).__rich_console__(console, options)
            return
        while _total(widths) > options.max_width and max(widths) > _LEAST_WIDTH:
            widths[widths.index(max(widths))] -= 1
        if any(width < min(_LEAST_READABLE, cell_len(column.name)) for column, width in zip(
                self.columns, widths, strict=True)):
            cells = [[Text(text, style) for text, style in row] for row in self.rows]
            yield from console.render(blocks([column.name for column in self.columns], cells), options)
            return
        styles = {name: console.get_style(name) for name in {"dim", *(style for row in self.rows for _, style in row)}
                  if name}
        for row in ([(column.name, "dim") for column in self.columns], *self.rows):
            for number, ((text, style), column, width) in enumerate(zip(row, self.columns, widths, strict=True)):
                yield Segment((_GAP if number else "") + _fitted(text, width, column.justify), styles.get(style))
            yield Segment.line()


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fitted(text: str, width: int, justify: Literal["left", "right"]) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    return text + " " * (width - length) if justify == "left" else " " * (width - length) + text


def _cost_table(cost: StatusCost) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"cost of {cost.study}", no_wrap=True, overflow="ellipsis", max_width=30)
    for name in ("down", "up", "both"):
        table.add_column(name, justify="right", no_wrap=True)
    wire = "wire, estimated" if cost.estimated else "wire"
    for name, down, up in (("payload", cost.payload_down, cost.payload_up),
                           ("message", cost.message_down, cost.message_up), (wire, cost.wire_down, cost.wire_up)):
        table.add_row(name, describe_bytes(down), describe_bytes(up), describe_bytes(down + up))
    table.add_row("wire, % of dense", "", "", describe_share(cost.share_of_dense))
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


