"""The facts behind `coordinator status`: from the ledger and `live.json`, without asking the running process."""

from __future__ import annotations

import time
from dataclasses import dataclass

from semisilo.common.text.describe import describe_progress
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import notices_of
from semisilo.coordinator.ledger.oversight.rollback import rollbacks_of
from semisilo.coordinator.ledger.oversight.study_cards import count_signatures, has_card, silos_without_key
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster, OpenInvitation, open_invitations
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.tasks import first_update, last_refusals, open_tasks
from semisilo.coordinator.ledger.traffic import study_totals
from semisilo.coordinator.monitoring.results.study_numbers import planned_rounds
from semisilo.coordinator.monitoring.silo_state import SiloState, activities_of
from semisilo.coordinator.monitoring.study_facts import StudyFacts, open_round_facts, study_facts
from semisilo.coordinator.monitoring.traffic import StudyCosts
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.studies.participation import participation_of

__all__ = ["CardFacts", "NoticeLine", "RefusalFacts", "RoundFacts", "SiloFacts", "StatusCost", "StatusFacts", "gather"]

_DAY = 86400.0


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
    certificate_days_left: float | None
    """None where it has no certificate that counts: it is revoked, has left, or is simulated."""
    labelled_count: int
    unlabelled_count: int
    version: str
    away_reason: str = ""
    """Why it takes no task by its own policy; empty when it takes tasks."""
    away_until_unix: float | None = None
    silent_unix: float | None = None
    """When it was last heard, while it is silent: no round asks it until it calls again."""
    set_aside_reason: str = ""
    """Why the operator leaves it out; empty also where no reason was given."""


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
class NoticeLine:
    """The last of its kind that an operator should hear of a silo, in a study that has not ended."""

    silo: str
    kind: str
    study: str
    """Empty outside of studies."""
    round: int
    text: str
    times: int
    unix: float
    line: str
    """All of it for a person."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """The study card of a study."""

    signed: int
    """Of these silos those that have signed it; others may have, and have left."""
    silos: int
    """Members of the federation; those that no task has reached have not been asked."""
    without_key: int
    """Of these, those for which no key stands in the roster: their signatures are not kept."""


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
    silenced: str
    """What keeps a `serve` that runs from saying what it does; empty where nothing does."""
    studies: tuple[StudyFacts, ...]
    silos: tuple[SiloFacts, ...]
    invitations: tuple[OpenInvitation, ...]
    refusals: tuple[RefusalFacts, ...]
    """Of studies that have not ended, by silo."""
    notices: tuple[NoticeLine, ...]
    """Of the study that runs or is next, or else of the last one, and of silos since it was queued."""
    rollbacks: dict[str, str]
    """Study -> when, why and how far it last went back to an earlier round."""
    cards: dict[str, CardFacts]
    """Study that has begun and has not ended -> who has signed its card."""
    current_round: RoundFacts | None
    costs: tuple[StatusCost, ...]


def gather(federation: Federation, ledger: Ledger, live: LiveStatus | None, *,
           now_unix: float | None = None) -> StatusFacts:
    """Reads the facts; `live` is what `semisilo.coordinator.rounds.live_file.read` gave, None when `serve` is not
    running."""
    now = time.time() if now_unix is None else now_unix
    rows, runs = ledger.studies(), ledger.next_study()
    silenced = federation.silenced() if live is None else ""
    studies, costs = [], []
    current: RoundFacts | None = None
    for row in rows:
        rounds = round_heads(ledger, row.name)
        studies.append(study_facts(row, rounds, participation_of(ledger, row), now_unix=now, live=live,
                                   first_update=first_update(ledger, row.name)))
        if runs is not None and row.name == runs.name and rounds:
            current = _round_facts(ledger, row, rounds[-1])
        if rounds:
            costs.append(_status_cost(ledger, row))
    return StatusFacts(
        federation=federation.name, address=federation.config.address.public, folder=str(federation.folder), unix=now,
        running=live is not None or silenced != "", live=live, silenced=silenced, studies=tuple(studies),
        silos=_silo_facts(ledger, live, now), invitations=open_invitations(ledger, now), refusals=_refusals(ledger),
        notices=_notices(ledger, runs or (rows[-1] if rows else None)), cards=_cards(ledger, rows), rollbacks={
            row.name: found[-1].text for row in rows if (found := rollbacks_of(ledger, row.name))},
        current_round=current, costs=tuple(costs))


def _cards(ledger: Ledger, rows: list[StudyRow]) -> dict[str, CardFacts]:
    members = LedgerRoster(ledger).members()
    without_key = len(silos_without_key(ledger, members))
    return {row.name: CardFacts(signed=count_signatures(ledger, row.name, silos=members), silos=len(members),
                                without_key=without_key)
            for row in rows if row.ended_unix is None and has_card(ledger, row.name)}


def _notices(ledger: Ledger, row: StudyRow | None) -> tuple[NoticeLine, ...]:
    """Of a study; without any of what silos have announced."""
    found = notices_of(ledger, "", since_unix=0.0) if row is None else \
        notices_of(ledger, row.name, since_unix=row.queued_unix)
    return tuple(NoticeLine(silo=each.silo, kind=str(each.kind), study=each.study, round=each.round, text=each.text,
                            times=each.times, unix=each.unix, line=each.line) for each in found)


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
        doing=doing(row.name), seen_unix=activities[row.name].seen_unix, version=row.version,
        labelled_count=row.labelled_count, unlabelled_count=row.unlabelled_count,
        away_reason=row.away_reason if row.is_away(now) else "",
        away_until_unix=row.away_until_unix if row.is_away(now) else None,
        silent_unix=row.silent_unix if activities[row.name].state is SiloState.SILENT else None,
        set_aside_reason=row.set_aside_reason,
        certificate_days_left=(row.certificate_not_after_unix - now) / _DAY if row.certificate_not_after_unix else None)
        for row in members)
