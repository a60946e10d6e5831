"""What the page shows, read from the ledger through a connection of its own. Used from one thread.

Nothing here asks the running coordinator: what it is doing comes in as a `LiveStatus`.

Tests: tests/coordinator/monitoring/test_facts.py.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from semisilo.common import __version__
from semisilo.common.errors import SemisiloError, UnknownName, UnknownSilo
from semisilo.common.measures.gain import gain_interval_text, gain_text, gain_verdict
from semisilo.common.measures.independent_images import by_what
from semisilo.common.methods import METHODS, find_method
from semisilo.common.page.responses import exact
from semisilo.common.payload.usage import describe_encoding
from semisilo.coordinator.federation.operate import offered_returns
from semisilo.coordinator.ledger.costs import Direction
from semisilo.coordinator.ledger.encodings import encodings_of
from semisilo.coordinator.ledger.events import study_notes
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import SiloNotice, notices_of
from semisilo.coordinator.ledger.oversight.rollback import Rollback, rollbacks_of
from semisilo.coordinator.ledger.progress import confusion_of, phases_of_round, round_heads
from semisilo.coordinator.ledger.records import PhaseRow, StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster, SiloRow, open_invitations
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.ledger.tasks import SubmittedTask, first_update, last_refusals, open_tasks, tasks_of_phase
from semisilo.coordinator.ledger.traffic import SiloWay, wire_of_gone_tries, wire_of_round, wire_of_today
from semisilo.coordinator.monitoring.alerts.open_alerts import open_alerts
from semisilo.coordinator.monitoring.audit_trail import ChainCheck, events_of
from semisilo.coordinator.monitoring.cost_book import CostBook
from semisilo.coordinator.monitoring.facts import (
    ByGroup,
    ByRpc,
    BySilo,
    CostFacts,
    DoingFacts,
    EncodingFacts,
    EventsFacts,
    FederationFacts,
    LiveFacts,
    NoticeFacts,
    PastRoundLine,
    PhaseFacts,
    RollbackFacts,
    RoundDetail,
    RoundLine,
    SiloLine,
    SiloOfStudy,
    SiloRefusal,
    StudyDetail,
    StudyLine,
    TaskFacts,
    TrafficFacts,
    TwoWays,
)
from semisilo.coordinator.monitoring.forecast import FORECAST_ROUNDS, Forecast, forecast_of
from semisilo.coordinator.monitoring.results.by_class import by_class, by_class_of_study
from semisilo.coordinator.monitoring.results.comparison import Comparison, compare_studies
from semisilo.coordinator.monitoring.results.study_numbers import (
    accuracy_in,
    method_name,
    scenario_name,
    score_on_test,
    seconds_since_start,
)
from semisilo.coordinator.monitoring.silo_state import SiloActivity, SiloState, activities_of
from semisilo.coordinator.monitoring.study_book import StudyBook, finite, silo_over_all_rounds
from semisilo.coordinator.monitoring.study_facts import open_round_facts, study_facts
from semisilo.coordinator.monitoring.summary import site_lines
from semisilo.coordinator.monitoring.traffic import StudyCosts, Traffic
from semisilo.coordinator.rounds.live_file import LiveSilo, LiveStatus
from semisilo.coordinator.studies.participation import ParticipationFacts, participation_of
from semisilo.coordinator.studies.shown_model import shown_model

__all__ = ["PageReader", "PageSource"]

_DAY = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSource:
    """Whose page it is."""

    federation: str
    address: str
    ledger: Path
    read_only: bool
    folder: Path | None = None
    """Of the federation, for commands that are proposed; None where none are."""


class PageReader:
    """Keeps sums up to date and answers the page. `live` is None when `coordinator serve` is not running."""

    def __init__(self, source: PageSource, ledger: Ledger, *, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self.ledger = ledger
        self._clock = clock
        self._costs = CostBook()
        self._books: dict[str, StudyBook] = {}
        self._participations: dict[str, tuple[float | None, ParticipationFacts]] = {}
        """Study -> (when it ended, its participation then)."""
        self.check = ChainCheck()

    # Federation -------------------------------------------------------------------------------------------------------

    def federation(self, live: LiveStatus | None, *, revision: int = 0) -> FederationFacts:
        """The federation at a glance."""
        now, folder = self._clock(), self._source.folder
        self._costs.refresh(self.ledger)
        studies = self.ledger.studies()
        return FederationFacts(
            federation=self._source.federation, address=self._source.address, version=__version__, now_unix=now,
            folder_option="" if folder is None else f" --folder {shlex.quote(str(folder.resolve()))}",
            serving=live is not None, read_only=self._source.read_only, revision=revision,
            live=self.live(live), studies=tuple(self._study_line(row, now) for row in studies),
            silos=self.silos(live), invitations=open_invitations(self.ledger, now),
            alerts=() if self._source.read_only else open_alerts(self.ledger, live, folder=folder, now_unix=now))

    def live(self, live: LiveStatus | None) -> LiveFacts | None:
        """What `serve` is doing, with what the ledger knows of the open phase."""
        if live is None:
            return None
        phase = self._open_phase(live.study)
        paused = self._paused_unix(live.study)
        return LiveFacts(
            study=live.study, round=live.round, rounds=live.rounds, phase=live.phase, reason=live.reason,
            activity=live.activity, fraction=live.fraction, text=live.text, labels_alone=live.labels_alone,
            trouble=live.trouble, paused_unix=paused,
            deadline_unix=phase.deadline_unix if phase is not None and paused is None else None)

    def silos(self, live: LiveStatus | None) -> tuple[SiloLine, ...]:
        """The roster by name."""
        now = self._clock()
        members, today = LedgerRoster(self.ledger).silos(), wire_of_today(self.ledger, now)
        activities = activities_of(members, live, open_tasks(self.ledger), now_unix=now)
        refusals = {task.silo: SiloRefusal(study=task.study, round=task.round, reason=task.reason)
                    for task in last_refusals(self.ledger)}
        return tuple(_silo_line(row, activities[row.name], refusals.get(row.name), today, now) for row in members)

    def _study_line(self, row: StudyRow, now: float) -> StudyLine:
        facts = study_facts(row, round_heads(self.ledger, row.name), self._participation(row), now_unix=now,
                            first_update=first_update(self.ledger, row.name))
        return StudyLine(
            name=facts.name, state=facts.state, method=facts.method, scenario=scenario_name(row), round=facts.round,
            rounds=facts.rounds, accuracy=facts.accuracy, labelled_only_accuracy=facts.labelled_only_accuracy,
            test_score=facts.test_score, labels_alone_test_score=facts.labels_alone_test_score,
            labels_alone=facts.labels_alone, choice=facts.choice, seconds_left=facts.seconds_left, reason=facts.reason,
            participation=facts.participation, wire_bytes=self._costs.study(row.name).wire())

    def _participation(self, row: StudyRow) -> ParticipationFacts:
        """Of a study that is over it stays the same."""
        known = self._participations.get(row.name)
        if known is not None and row.ended_unix is not None and known[0] == row.ended_unix:
            return known[1]
        found = participation_of(self.ledger, row)
        self._participations[row.name] = row.ended_unix, found
        return found

    def _book(self, study: str) -> StudyBook:
        book = self._books.setdefault(study, StudyBook(study))
        book.refresh(self.ledger)
        return book

    # A study ----------------------------------------------------------------------------------------------------------

    def study(self, name: str) -> StudyDetail:
        """One study.

        Raises: UnknownName.
        """
        now = self._clock()
        row = self.ledger.study(name)
        self._costs.refresh(self.ledger)
        book, costs = self._book(name), self._costs.study(name)
        rounds, first = book.rows(), first_update(self.ledger, name)
        facts = study_facts(row, rounds, self._participation(row), now_unix=now, first_update=first)
        dense, classes = row.dense_bytes, row.classes
        lines = book.lines(costs, row)
        paused = self._paused_unix(name)
        over = [line for line in lines if line.number > 0 and line.seconds is not None]
        forecast = None if row.ended_unix else forecast_of(
            [self._wire_of_try(name, line) for line in over[-FORECAST_ROUNDS:]], spent_bytes=costs.wire(),
            open_round_bytes=sum(self._wire_of_try(name, line) for line in lines if line.seconds is None),
            rounds_left=max(0, facts.rounds - len(over)), seconds_left=facts.seconds_left, now_unix=now,
            paused=paused is not None)
        gain = shown_model(row, rounds, facts.choice, first_update=first).gain(row)
        silos = book.silos(costs, num_classes=len(classes))
        return StudyDetail(
            name=name, state=facts.state, reason=facts.reason, participation=facts.participation,
            method=facts.method, scenario=scenario_name(row),
            source=_about(row, "source"), discloses=_about(row, "discloses"), settings=_settings(row), classes=classes,
            queued_unix=row.queued_unix, started_unix=row.started_unix, ended_unix=row.ended_unix, paused_unix=paused,
            rounds_planned=facts.rounds, accuracy=facts.accuracy, labelled_only_accuracy=facts.labelled_only_accuracy,
            test_score=facts.test_score, labels_alone_test_score=facts.labels_alone_test_score,
            rounds_completed=sum(entry.state is RoundState.COMPLETED and entry.number > 0 for entry in rounds),
            beside=facts.beside, numbers_of=facts.numbers_of, numbers_round=facts.numbers_round,
            federated=facts.federated, no_gain=facts.no_gain,
            labels_alone_recipe="" if row.baseline is None else row.baseline.description,
            gain=None if gain is None else gain.value, gain_interval=None if gain is None else gain.interval,
            gain_text="" if gain is None else gain_text(gain), gain_verdict="" if gain is None else gain_verdict(gain),
            gain_interval_text="" if gain is None else gain_interval_text(gain),
            intervals_by="" if row.frozen is None else by_what(row.frozen.test_counts.independent),
            choice=facts.choice, next_command=facts.next_command,
            seconds=seconds_since_start(row, now), seconds_left=facts.seconds_left,
            num_parameters=0 if row.frozen is None else row.frozen.num_parameters, dense_bytes=dense,
            detail_from=book.detail_from,
            open_round=open_round_facts(self.ledger, row, rounds[-1] if rounds else None), rounds=lines,
            by_class=by_class_of_study(self.ledger, row, rounds, facts.choice),
            silos=silos, sites=site_lines(self.ledger, row, facts.choice, asked=[each.name for each in silos]),
            notices=tuple(_notice(each) for each in notices_of(self.ledger, name, since_unix=row.queued_unix)),
            notes=study_notes(self.ledger, name),
            rollbacks=tuple(_rollback(each, row) for each in rollbacks_of(self.ledger, name)),
            returns=self._returns(row),
            cost=self._cost(name, costs, dense, forecast))

    def _wire_of_try(self, study: str, line: RoundLine) -> int:
        """Bytes of a round, without those of tries that are gone."""
        return line.wire_down + line.wire_up - wire_of_gone_tries(self.ledger, study, line.number)

    def _returns(self, row: StudyRow) -> tuple[int, ...]:
        folder = self._source.folder
        if folder is None or self._source.read_only:
            return ()
        return tuple(offered_returns(self.ledger, row, study_folder=folder / "studies" / row.name))

    def compare(self, names: Sequence[str]) -> Comparison:
        """Studies side by side.

        Raises: UsageError, UnknownName.
        """
        self._costs.refresh(self.ledger)
        return compare_studies(self.ledger, names, costs={name: self._costs.study(name) for name in names},
                               now_unix=self._clock())

    def silo_of_study(self, name: str, silo: str) -> SiloOfStudy:
        """One silo over all rounds of a study.

        Raises: UnknownName, UnknownSilo.
        """
        row = self.ledger.study(name)
        self._costs.refresh(self.ledger)
        book, costs = self._book(name), self._costs.study(name)
        sums = next((each for each in book.silos(costs, num_classes=0) if each.name == silo), None)
        if sums is None:
            raise UnknownSilo(f"No silo of that name was asked in study '{name}'.")
        return silo_over_all_rounds(self.ledger, name, silo, rows=book.rows(), sums=sums, num_classes=len(row.classes))

    def _open_phase(self, study: str) -> PhaseRow | None:
        """The phase in which silos work."""
        last = self.ledger.last_round(study) if study else None
        if last is None or last.state is not RoundState.COLLECTING:
            return None
        return self.ledger.phase(study, last.number, last.phase)

    def _cost(self, name: str, costs: StudyCosts, dense: int, forecast: Forecast | None) -> CostFacts:
        traffic = costs.traffic(dense_bytes=dense)
        return CostFacts(
            payload=TwoWays(down=traffic.payload_down, up=traffic.payload_up),
            message=TwoWays(down=traffic.message_down, up=traffic.message_up),
            wire=TwoWays(down=traffic.wire_down, up=traffic.wire_up),
            overhead=TwoWays(down=traffic.overhead_down, up=traffic.overhead_up), dense_total=traffic.dense_total,
            share_of_dense=traffic.share, estimated=traffic.estimated,
            by_group=tuple(ByGroup(group=item, down=ways["down"], up=ways["up"])
                           for item, ways in costs.items("payload")),
            by_rpc=tuple(ByRpc(rpc=item, down=ways["down"], up=ways["up"])
                         for item, ways in costs.items("message")),
            by_silo=_by_silo(costs.by_silo),
            by_encoding=tuple(EncodingFacts(
                encoding=use.encoding, text=describe_encoding(use.encoding), direction=use.direction, blocks=use.blocks,
                bytes=use.bytes, dense_bytes=use.dense_bytes, saved_bytes=use.saved_bytes)
                for use in encodings_of(self.ledger, name)),
            forecast=forecast)

    def _paused_unix(self, study: str) -> float | None:
        since = self.ledger.paused_since(study)
        return None if since is None else since[0]

    # A round ----------------------------------------------------------------------------------------------------------

    def round(self, study: str, number: int, live: LiveStatus | None = None) -> RoundDetail:
        """One round with all its answers.

        Raises: UnknownName.
        """
        row = next((each for each in self.ledger.rounds(study, first=number)[:1] if each.number == number), None)
        of_study = self.ledger.study(study)
        dense = of_study.dense_bytes
        if row is None:
            raise UnknownName(f"Study '{study}' has no round {number}.")
        self._costs.refresh(self.ledger)
        traffic = self._costs.study(study).traffic(dense_bytes=dense, round=number)
        by_silo: dict[str, dict[Direction, int]] = {}
        for (silo, direction), size in wire_of_round(self.ledger, study, number).items():
            by_silo.setdefault(silo, {"down": 0, "up": 0})[direction] += size
        heard = live.silos if live is not None and (live.study, live.round) == (study, number) else {}
        phases = tuple(self._phase(phase, heard) for phase in phases_of_round(self.ledger, study, number))
        return RoundDetail(
            study=study, number=number, state=str(row.state), reason=row.reason, opened_unix=row.opened_unix,
            closed_unix=row.closed_unix, sample=row.sample, phases=phases, metrics=finite(row.metrics),
            by_class=None if of_study.frozen is None else by_class(
                of_study.classes, finite(row.metrics), images=of_study.frozen.test_images, round=number,
                confusion=confusion_of(self.ledger, study, number), findings_of=of_study.frozen.findings_of,
                independent=of_study.frozen.test_counts.independent),
            traffic=_traffic_facts(traffic, _by_silo(by_silo)), state_digest=row.state_digest)

    def _phase(self, phase: PhaseRow, heard: Mapping[str, LiveSilo]) -> PhaseFacts:
        return PhaseFacts(
            name=phase.name, quorum=phase.quorum, opened_unix=phase.opened_unix, deadline_unix=phase.deadline_unix,
            limit_unix=phase.limit_unix, closed_unix=phase.closed_unix,
            tasks=tuple(_task_facts(task, heard)
                        for task in tasks_of_phase(self.ledger, phase.study, phase.round, phase.number)))

    # The audit trail --------------------------------------------------------------------------------------------------

    def events(self, *, study: str = "", silo: str = "", kind: str = "", before: int = 0,
               limit: int = 100) -> EventsFacts:
        """`semisilo.coordinator.monitoring.audit_trail.events_of`, with the chain checked as far as it has got."""
        self.check.go_on(self.ledger)
        found = events_of(self.ledger, self.check, study=study, silo=silo, kind=kind, before=before, limit=limit)
        return replace(found, events=tuple(replace(each, detail=exact(each.detail)) for each in found.events))


def _silo_line(row: SiloRow, activity: SiloActivity, refusal: SiloRefusal | None, today: Mapping[SiloWay, int],
               now: float) -> SiloLine:
    return SiloLine(
        name=row.name, state=str(activity.state), doing=_doing(activity.doing), seen_unix=activity.seen_unix,
        certificate_days_left=(row.certificate_not_after_unix - now) / _DAY if row.certificate_not_after_unix else None,
        labelled_count=row.labelled_count, unlabelled_count=row.unlabelled_count, version=row.version,
        silent_unix=row.silent_unix if activity.state is SiloState.SILENT else None, refusal=refusal,
        away_reason=row.away_reason if row.is_away(now) else "", set_aside_reason=row.set_aside_reason,
        methods=row.methods,
        bytes_today_down=today.get((row.name, "down"), 0), bytes_today_up=today.get((row.name, "up"), 0))


def _notice(found: SiloNotice) -> NoticeFacts:
    return NoticeFacts(silo=found.silo, kind=str(found.kind), round=found.round, unix=found.unix, text=found.text,
                       times=found.times, line=found.line)


def _rollback(found: Rollback, row: StudyRow) -> RollbackFacts:
    return RollbackFacts(
        to_round=found.to_round, unix=found.unix, origin=found.origin, operator=found.operator, reason=found.reason,
        text=found.text, rounds=tuple(PastRoundLine(
            number=each.number, state=str(each.state), reason=each.reason, opened_unix=each.opened_unix,
            closed_unix=each.closed_unix, accuracy=accuracy_in(each.metrics),
            test_score=score_on_test(each.metrics, row.study_measure)) for each in found.rounds))


def _doing(said: LiveSilo | None) -> DoingFacts | None:
    return DoingFacts(stage=said.stage, fraction=said.fraction, text=said.text) if said is not None else None


def _task_facts(task: SubmittedTask, heard: Mapping[str, LiveSilo]) -> TaskFacts:
    return TaskFacts(
        silo=task.silo, state=str(task.state), given_unix=task.given_unix, closed_unix=task.closed_unix,
        reason=task.reason, example_count=task.example_count, training_seconds=task.training_seconds,
        update_bytes=task.update_bytes, groups=task.groups, metrics=finite(task.metrics), norm=task.norm,
        cosine=task.cosine,
        doing=_doing(heard.get(task.silo)) if task.state is TaskState.OPEN else None)


def _by_silo(sums: Mapping[str, Mapping[Direction, int]]) -> tuple[BySilo, ...]:
    return tuple(BySilo(silo=silo, down=ways["down"], up=ways["up"])
                 for silo, ways in sorted(sums.items(), key=lambda pair: pair[0].encode()))


def _traffic_facts(traffic: Traffic, by_silo: tuple[BySilo, ...]) -> TrafficFacts:
    return TrafficFacts(
        payload=TwoWays(down=traffic.payload_down, up=traffic.payload_up),
        message=TwoWays(down=traffic.message_down, up=traffic.message_up),
        wire=TwoWays(down=traffic.wire_down, up=traffic.wire_up),
        overhead=TwoWays(down=traffic.overhead_down, up=traffic.overhead_up), downloads=traffic.downloads,
        uploads=traffic.uploads, dense_total=traffic.dense_total, share_of_dense=traffic.share,
        estimated=traffic.estimated, by_silo=by_silo)


def _about(row: StudyRow, field: str) -> str:
    """What the method declares of itself; empty for a plug-in that is not installed here."""
    name = method_name(row)
    try:
        return str(getattr(METHODS[name] if name in METHODS else find_method(name), field))
    except SemisiloError:
        return ""


def _settings(row: StudyRow) -> dict[str, dict[str, object]]:
    """The tables of the study file; the method's own settings stand in [method], as a person writes them."""
    tables = {name: dict(table) for name, table in row.config.items() if isinstance(table, dict)}
    if "method" in tables:
        own = tables["method"].pop("settings", {})
        tables["method"] |= own
    return {name: exact(table) for name, table in tables.items()}
