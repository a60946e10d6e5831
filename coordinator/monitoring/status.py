"""The facts behind `coordinator status`: from the ledger and `live.json`, without asking the running process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from semisilo.common.text.describe import (
    describe_bytes,
    describe_percentage,
    describe_progress,
    describe_seconds,
    describe_share,
)
from semisilo.common.text.logs import printable
from semisilo.coordinator.federation.folder import Federation, folder_option
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster, OpenInvitation, open_invitations
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.tasks import last_refusals, open_tasks
from semisilo.coordinator.ledger.traffic import study_totals
from semisilo.coordinator.monitoring.silo_state import SiloState, activities_of
from semisilo.coordinator.monitoring.study_facts import StudyFacts, open_round_facts, study_facts
from semisilo.coordinator.monitoring.summary import planned_rounds
from semisilo.coordinator.monitoring.traffic import StudyCosts
from semisilo.coordinator.rounds.live_file import LiveStatus

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["RefusalFacts", "RoundFacts", "SiloFacts", "StatusCost", "StatusFacts", "gather", "render"]

_DAY = 86400.0
_STYLES: Mapping[str, str] = {
    SiloState.REVOKED: "red", SiloState.CONNECTED: "green", SiloState.WORKING: "green",
    SiloState.LATE: "yellow", SiloState.AWAY: "yellow", SiloState.AWAY_BY_POLICY: "yellow"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloFacts:
    """One silo. Times are Unix seconds."""

    name: str
    state: str
    """A `semisilo.coordinator.monitoring.silo_state.SiloState`."""
    present: bool
    """Whether it is there, whatever it does."""
    doing: str
    """What it works on and how far it is, for example "training 40 %"; empty when it does not."""
    seen_unix: float | None
    certificate_days_left: float
    labelled_count: int
    unlabelled_count: int
    version: str
    away_reason: str = ""
    """Why it takes no task by its own policy; empty when it takes tasks."""
    away_until_unix: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusalFacts:
    """The last task of a study that a silo refused, or whose update was not accepted, if it has answered none since."""

    silo: str
    study: str
    round: int
    reason: str
    """A code of the error catalogue and a line, as the silo gave it."""
    unix: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundFacts:
    """The open round of the running study."""

    study: str
    number: int
    rounds: int
    state: str
    phase: str
    opened_unix: float
    deadline_unix: float | None
    """Of the open phase; None while no silo works or the study is paused."""
    quorum: int
    tasks: dict[str, int]
    """Task state -> silos."""
    waiting_for: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusCost:
    """Bytes of one study so far; `wire` up to the last phase that was settled."""

    study: str
    payload_down: int
    payload_up: int
    message_down: int
    message_up: int
    wire_down: int
    wire_up: int
    overhead: int
    dense_bytes: int
    """What the same transfers would have cost as dense tensors."""
    share_of_dense: float | None
    """Wire bytes over `dense_bytes`."""
    estimated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusFacts:
    """Everything that `status` shows; `semisilo.common.config.to_dict` makes JSON types of it."""

    federation: str
    address: str
    folder: str
    unix: float
    running: bool
    live: LiveStatus | None
    studies: tuple[StudyFacts, ...]
    silos: tuple[SiloFacts, ...]
    invitations: tuple[OpenInvitation, ...]
    refusals: tuple[RefusalFacts, ...]
    """Of studies that have not ended, by silo."""
    current_round: RoundFacts | None
    costs: tuple[StatusCost, ...]


def gather(federation: Federation, ledger: Ledger, live: LiveStatus | None, *,
           now_unix: float | None = None) -> StatusFacts:
    """Reads the facts; `live` is what `semisilo.coordinator.rounds.live_file.read` gave, None when `serve` is not
    running."""
    now = time.time() if now_unix is None else now_unix
    rows = ledger.studies()
    studies, costs = [], []
    current: RoundFacts | None = None
    for row in rows:
        rounds = round_heads(ledger, row.name)
        studies.append(study_facts(row, rounds, now_unix=now, live=live))
        current = current or (_round_facts(ledger, row, rounds[-1]) if rounds else None)
        if rounds:
            costs.append(_status_cost(ledger, row))
    return StatusFacts(
        federation=federation.name, address=federation.config.address.public, folder=str(federation.folder), unix=now,
        running=live is not None, live=live, studies=tuple(studies), silos=_silo_facts(ledger, live, now),
        invitations=open_invitations(ledger, now), refusals=_refusals(ledger),
        current_round=current, costs=tuple(costs))


def _refusals(ledger: Ledger) -> tuple[RefusalFacts, ...]:
    """A silo whose newest closed task was refused: what is in the way is still there."""
    return tuple(RefusalFacts(silo=task.silo, study=task.study, round=task.round, reason=task.reason,
                              unix=task.closed_unix) for task in last_refusals(ledger))


def _round_facts(ledger: Ledger, study: StudyRow, last: RoundHead) -> RoundFacts | None:
    found = open_round_facts(ledger, study, last)
    return None if found is None else RoundFacts(
        study=study.name, number=found.number, rounds=planned_rounds(study), state=found.state, phase=found.phase,
        opened_unix=found.opened_unix, deadline_unix=None if study.state is StudyState.PAUSED else found.deadline_unix,
        quorum=found.quorum, tasks=found.tasks, waiting_for=found.waiting_for)


def _status_cost(ledger: Ledger, study: StudyRow) -> StatusCost:
    costs = StudyCosts()
    costs.replace(study_totals(ledger, study.name))
    traffic = costs.traffic(dense_bytes=study.dense_bytes)
    return StatusCost(study=study.name, payload_down=traffic.payload_down, payload_up=traffic.payload_up,
                      message_down=traffic.message_down, message_up=traffic.message_up, wire_down=traffic.wire_down,
                      wire_up=traffic.wire_up, overhead=traffic.overhead, dense_bytes=traffic.dense_total,
                      share_of_dense=traffic.share, estimated=traffic.estimated)


def _silo_facts(ledger: Ledger, live: LiveStatus | None, now: float) -> tuple[SiloFacts, ...]:
    members = LedgerRoster(ledger).silos()
    activities = activities_of(members, live, open_tasks(ledger), now_unix=now)

    def doing(name: str) -> str:
        found = activities[name].doing
        return f"{found.stage} {describe_progress(found.fraction)}" if found is not None else ""

    return tuple(SiloFacts(
        name=row.name, state=str(activities[row.name].state), present=activities[row.name].present,
        doing=doing(row.name), seen_unix=row.seen_unix, version=row.version, labelled_count=row.labelled_count,
        unlabelled_count=row.unlabelled_count, away_reason=row.away_reason if row.is_away(now) else "",
        away_until_unix=row.away_until_unix if row.is_away(now) else None,
        certificate_days_left=(row.certificate_not_after_unix - now) / _DAY) for row in members)


# For people -----------------------------------------------------------------------------------------------------------


def render(console: Console, facts: StatusFacts) -> None:
    """Prints the facts; fits 80 columns."""
    console.print(Text.assemble(("federation ", "dim"), (facts.federation, "bold"), ("  at ", "dim"), facts.address,
                                ("  in ", "dim"), facts.folder), soft_wrap=True)
    console.print(_serve_line(facts), soft_wrap=True)
    if facts.live is not None and facts.live.page:
        console.print(Text.assemble(("operator page at ", "dim"), facts.live.page), soft_wrap=True)
    console.print()
    console.print(_study_table(facts) if facts.studies
                  else Text(f"No studies yet. Make one: coordinator new NAME{folder_option(facts.folder)}", "dim"),
                  soft_wrap=not facts.studies)
    for study in facts.studies:
        if study.labels_alone:
            console.print(Text.assemble((f"{study.name}: labels alone: ", "dim"), study.labels_alone), soft_wrap=True)
        if study.reason:
            paused = "paused: " if study.state == StudyState.PAUSED else ""
            console.print(Text(f"{study.name}: {paused}{printable(study.reason, limit=800)}", "red"), soft_wrap=True)
        if study.state == StudyState.FAILED:
            console.print(Text(f"Then queue it again: coordinator queue {study.name}{folder_option(facts.folder)}"),
                          soft_wrap=True)
    if facts.current_round is not None:
        console.print()
        console.print(_round_text(facts.current_round, facts.unix), soft_wrap=True)
    console.print()
    console.print(_silo_table(facts) if facts.silos
                  else Text("No silo has enrolled yet. Invite one: coordinator invite NAME"
                            f"{folder_option(facts.folder)}", "dim"), soft_wrap=not facts.silos)
    for silo in facts.silos:
        if silo.away_until_unix is not None:
            console.print(Text.assemble(("silo ", "dim"), silo.name, (": ", "dim"), (silo.away_reason, "yellow"),
                                        (f" until {_utc(silo.away_until_unix)}, by its own policy", "dim")),
                          soft_wrap=True)
    for refusal in facts.refusals:
        what = f" refused round {refusal.round} of {refusal.study}: "
        console.print(Text.assemble(("silo ", "dim"), refusal.silo, (what, "dim"), (printable(refusal.reason), "red")),
                      soft_wrap=True)
    for invitation in facts.invitations:
        console.print(Text.assemble(("open invitation for ", "dim"), invitation.silo,
                                    (f", {describe_seconds(invitation.expires_unix - facts.unix)} left", "dim")))
    for cost in facts.costs:
        if cost.wire_down or cost.wire_up or cost.payload_down or cost.payload_up:
            console.print()
            console.print(_cost_table(cost))


def _serve_line(facts: StatusFacts) -> Text:
    live = facts.live
    if live is None:
        return Text(f"serve is not running. Start it: coordinator serve{folder_option(facts.folder)}", "yellow")
    present = sum(silo.present for silo in facts.silos)
    line = Text.assemble(("serve is running", "green"), f" (process {live.pid}), {_count(present, 'silo')} connected")
    doing = live.activity or live.text
    if doing:
        progress = f" {describe_progress(live.fraction)}" if live.activity and live.fraction > 0 else ""
        line.append(f": {printable(doing, limit=200)}{progress}")
    return line


def _study_table(facts: StatusFacts) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("study", "left"), ("state", "left"), ("method", "left"), ("round", "right"),
                          ("accuracy", "right"), ("labelled only", "right"), ("time left", "right")):
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for study in facts.studies:
        table.add_row(study.name, study.state, study.method, f"{study.round}/{study.rounds}",
                      describe_percentage(study.accuracy), describe_percentage(study.labelled_only_accuracy),
                      "–" if study.seconds_left is None else describe_seconds(study.seconds_left))
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


def _silo_table(facts: StatusFacts) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("silo", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("state", no_wrap=True)
    table.add_column("last seen", justify="right", no_wrap=True)
    table.add_column("certificate", justify="right", no_wrap=True)
    table.add_column("images", justify="right", no_wrap=True)
    labels = any(silo.labelled_count for silo in facts.silos)
    if labels:
        table.add_column("labelled", justify="right", no_wrap=True)
    table.add_column("version", no_wrap=True, overflow="ellipsis", max_width=12)
    for silo in facts.silos:
        seen = "never" if silo.seen_unix is None else f"{describe_seconds(facts.unix - silo.seen_unix)} ago"
        days = silo.certificate_days_left
        state = Text(silo.doing if silo.state == SiloState.WORKING else silo.state, _STYLES.get(silo.state, "dim"))
        table.add_row(silo.name, state, seen,
                      Text("expired", "red") if days <= 0 else Text(f"{days:.0f} days", "yellow" if days < 7 else ""),
                      str(silo.labelled_count + silo.unlabelled_count) if silo.version else "–",
                      *([str(silo.labelled_count) if silo.version else "–"] if labels else []), silo.version or "–")
    return table


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


def _utc(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix))
