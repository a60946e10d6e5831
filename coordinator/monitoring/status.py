"""The facts behind `coordinator status`: from the ledger and `live.json`, without asking the running process."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from common.describe import describe_bytes, describe_seconds, describe_share
from common.logs import printable
from coordinator.costs import costs_of
from coordinator.federation import Federation, folder_option
from coordinator.ledger import Ledger
from coordinator.live import PRESENT_SECONDS, LiveSilo, LiveStatus
from coordinator.roster import LedgerRoster, SiloRow
from coordinator.rows import RoundRow, StudyRow
from coordinator.states import RoundState, StudyState, TaskState
from coordinator.summary import (
    accuracy_in,
    labelled_only_accuracy,
    outcomes_of,
    planned_rounds,
    seconds_left,
    traffic_of,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CostFacts", "InvitationFacts", "RefusalFacts", "RoundFacts", "SiloFacts", "StatusFacts", "StudyFacts",
           "gather", "open_invitations", "render"]

_DAY = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFacts:
    """One study of the queue."""

    name: str
    state: str
    method: str
    round: int
    rounds: int
    accuracy: float | None
    """After the last committed round that was measured."""
    labelled_only_accuracy: float | None
    seconds_left: float | None
    """Estimated; None before the first finished round and after the end."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloFacts:
    """One silo. Times are Unix seconds."""

    name: str
    state: str
    """"revoked", "left" (on its own wish), "enrolled" (never joined), "connected" or "away"; "away by policy" while it
    takes no task because its own policy says so; "joined" while `serve` is not running."""
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
class InvitationFacts:
    """An invitation that can still be used."""

    silo: str
    expires_unix: float


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
    """Of the open phase; None while no silo works."""
    quorum: int
    tasks: dict[str, int]
    """Task state -> silos."""
    waiting_for: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostFacts:
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
    """Everything that `status` shows; `common.config.to_dict` makes JSON types of it."""

    federation: str
    address: str
    folder: str
    unix: float
    running: bool
    live: LiveStatus | None
    studies: tuple[StudyFacts, ...]
    silos: tuple[SiloFacts, ...]
    invitations: tuple[InvitationFacts, ...]
    refusals: tuple[RefusalFacts, ...]
    """Of studies that have not ended, by silo."""
    current_round: RoundFacts | None
    costs: tuple[CostFacts, ...]


def gather(federation: Federation, ledger: Ledger, live: LiveStatus | None, *,
           now_unix: float | None = None) -> StatusFacts:
    """Reads the facts; `live` is what `coordinator.live.read` gave, None when `serve` is not running."""
    now = time.time() if now_unix is None else now_unix
    rows = ledger.studies()
    studies, current, costs = [], None, []
    for row in rows:
        rounds = ledger.rounds(row.name)
        studies.append(_study_facts(row, rounds, now))
        if rounds and rounds[-1].closed_unix is None and row.ended_unix is None and current is None:
            current = _round_facts(ledger, row, rounds[-1])
        if rounds:
            costs.append(_cost_facts(ledger, row))
    return StatusFacts(
        federation=federation.name, address=federation.config.address.public, folder=str(federation.folder), unix=now,
        running=live is not None, live=live, studies=tuple(studies), silos=_silo_facts(ledger, live, now),
        invitations=open_invitations(ledger, now), refusals=_refusals(ledger),
        current_round=current, costs=tuple(costs))


def open_invitations(ledger: Ledger, now: float) -> tuple[InvitationFacts, ...]:
    """Invitations that can still be used, by silo."""
    rows = ledger.query("SELECT silo, expires_unix FROM invitation WHERE used_unix IS NULL AND expires_unix > ?"
                        " ORDER BY silo", now)
    return tuple(InvitationFacts(silo=row["silo"], expires_unix=row["expires_unix"]) for row in rows)


def _refusals(ledger: Ledger) -> tuple[RefusalFacts, ...]:
    """A silo whose newest closed task was refused: what is in the way is still there."""
    rows = ledger.query(
        "SELECT silo, study, round, task.reason AS reason, max(closed_unix) AS closed_unix, task.state AS state"
        " FROM task JOIN study ON study.name = task.study WHERE study.ended_unix IS NULL AND closed_unix IS NOT NULL"
        " GROUP BY silo, study ORDER BY silo, study")
    return tuple(RefusalFacts(silo=row["silo"], study=row["study"], round=row["round"], reason=row["reason"],
                              unix=row["closed_unix"]) for row in rows if row["state"] == TaskState.REFUSED)


def _study_facts(row: StudyRow, rounds: list[RoundRow], now: float) -> StudyFacts:
    measured = [accuracy for entry in rounds if entry.state is RoundState.COMPLETED
                and (accuracy := accuracy_in(entry.metrics)) is not None]
    planned = planned_rounds(row)
    return StudyFacts(name=row.name, state=str(row.state), method=str(row.config.get("method", {}).get("name", "?")),
                      round=rounds[-1].number if rounds else 0, rounds=planned,
                      accuracy=measured[-1] if measured else None, labelled_only_accuracy=labelled_only_accuracy(row),
                      seconds_left=None if row.ended_unix else seconds_left(rounds, planned=planned, now_unix=now),
                      reason=row.reason)


def _round_facts(ledger: Ledger, study: StudyRow, row: RoundRow) -> RoundFacts:
    phases = ledger.query("SELECT * FROM phase WHERE study = ? AND round = ? ORDER BY number DESC LIMIT 1",
                          study.name, row.number)
    phase = phases[0] if phases else None
    answers: dict[str, TaskState] = {}
    if phase is not None:
        answers = outcomes_of((task["silo"], TaskState(task["state"])) for task in ledger.query(
            "SELECT silo, state FROM task WHERE study = ? AND round = ? AND phase = ?",
            study.name, row.number, phase["number"]))
    return RoundFacts(
        study=study.name, number=row.number, rounds=planned_rounds(study), state=str(row.state),
        phase=phase["name"] if phase is not None else "", opened_unix=row.opened_unix,
        deadline_unix=phase["deadline_unix"] if phase is not None and row.state is RoundState.COLLECTING
        and study.state is not StudyState.PAUSED else None,
        quorum=phase["quorum"] if phase is not None else 0,
        tasks={str(state): count for state, count in sorted(Counter(answers.values()).items())},
        waiting_for=tuple(sorted((silo for silo, state in answers.items() if state is TaskState.OPEN), key=str.encode)))


def _cost_facts(ledger: Ledger, study: StudyRow) -> CostFacts:
    traffic = traffic_of(costs_of(ledger, study.name), dense_bytes=int((study.frozen or {}).get("dense_bytes", 0)))
    return CostFacts(study=study.name, payload_down=traffic.payload_down, payload_up=traffic.payload_up,
                     message_down=traffic.message_down, message_up=traffic.message_up, wire_down=traffic.wire_down,
                     wire_up=traffic.wire_up, overhead=traffic.overhead, dense_bytes=traffic.dense_total,
                     share_of_dense=traffic.share, estimated=traffic.estimated)


def _silo_facts(ledger: Ledger, live: LiveStatus | None, now: float) -> tuple[SiloFacts, ...]:
    def heard(row: SiloRow) -> LiveSilo | None:
        said = live.silos.get(row.name) if live is not None else None
        return said if said is not None and now - said.unix <= PRESENT_SECONDS else None

    def state(row: SiloRow) -> str:
        if row.revoked_unix is not None:
            return "revoked"
        if row.left_unix is not None:
            return "left"
        if row.joined_unix is None:
            return "enrolled"
        if row.is_away(now):
            return "away by policy"
        if live is None:
            return "joined"
        present = row.name in live.connected or heard(row) is not None \
            or (row.seen_unix is not None and now - row.seen_unix <= PRESENT_SECONDS)
        return "connected" if present else "away"

    def doing(row: SiloRow) -> str:
        said = heard(row)
        open_task = ledger.open_task(row.name) if said is not None else None
        return f"{said.stage} {100 * said.fraction:.0f} %" if said is not None and open_task is not None else ""

    return tuple(SiloFacts(
        name=row.name, state=state(row), doing=doing(row), seen_unix=row.seen_unix, version=row.version,
        labelled_count=row.labelled_count, unlabelled_count=row.unlabelled_count,
        away_reason=row.away_reason if row.is_away(now) else "",
        away_until_unix=row.away_until_unix if row.is_away(now) else None,
        certificate_days_left=(row.certificate_not_after_unix - now) / _DAY) for row in LedgerRoster(ledger).silos())


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
    present = sum(silo.state == "connected" or silo.name in live.connected for silo in facts.silos)
    line = Text.assemble(("serve is running", "green"), f" (process {live.pid}), {_count(present, 'silo')} connected")
    doing = live.activity or live.text
    if doing:
        progress = f" {100 * live.fraction:.0f} %" if live.activity and live.fraction > 0 else ""
        line.append(f": {printable(doing, limit=200)}{progress}")
    return line


def _study_table(facts: StatusFacts) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("study", "left"), ("state", "left"), ("method", "left"), ("round", "right"),
                          ("accuracy", "right"), ("labelled only", "right"), ("time left", "right")):
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for study in facts.studies:
        table.add_row(study.name, study.state, study.method, f"{study.round}/{study.rounds}", _number(study.accuracy),
                      _number(study.labelled_only_accuracy),
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
    styles = {"revoked": "red", "connected": "green", "away": "yellow", "away by policy": "yellow"}
    for silo in facts.silos:
        seen = "never" if silo.seen_unix is None else f"{describe_seconds(facts.unix - silo.seen_unix)} ago"
        days = silo.certificate_days_left
        table.add_row(silo.name, Text(silo.doing or silo.state, styles.get(silo.state, "dim")), seen,
                      Text("expired", "red") if days <= 0 else Text(f"{days:.0f} days", "yellow" if days < 7 else ""),
                      str(silo.labelled_count + silo.unlabelled_count) if silo.version else "–",
                      *([str(silo.labelled_count) if silo.version else "–"] if labels else []), silo.version or "–")
    return table


def _cost_table(cost: CostFacts) -> Table:
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


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
