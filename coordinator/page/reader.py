"""What the page shows, read from the ledger through a connection of its own. Used from one thread.

Nothing here asks the running coordinator: what it is doing comes in as a `LiveStatus`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import __version__
from common.encodings import describe_encoding
from common.errors import SemisiloError, UnknownName, UnknownSilo
from common.methods import METHODS, find_method
from coordinator.encodings import encodings_of
from coordinator.forecast import Forecast, forecast_of
from coordinator.ledger import Ledger
from coordinator.live import PRESENT_SECONDS, LiveSilo, LiveStatus
from coordinator.page.audit_trail import ChainCheck, events_of
from coordinator.page.cost_book import CostBook, StudyCosts
from coordinator.page.facts import (
    BySilo,
    CostFacts,
    DoingFacts,
    EncodingFacts,
    EventsFacts,
    FederationFacts,
    LiveFacts,
    OpenRoundFacts,
    PhaseFacts,
    RoundDetail,
    SiloLine,
    SiloOfStudy,
    StudyDetail,
    StudyLine,
    TaskFacts,
    TrafficFacts,
    TwoWays,
)
from coordinator.page.study_book import StudyBook, finite, silo_over_all_rounds
from coordinator.refusals import has_updates
from coordinator.roster import LedgerRoster, SiloRow
from coordinator.rows import PhaseRow, RoundRow, StudyRow
from coordinator.states import RoundState, StudyState, TaskState
from coordinator.status import open_invitations
from coordinator.summary import Traffic, accuracy_in, labelled_only_accuracy, planned_rounds, seconds_left

__all__ = ["PageReader", "PageSource"]

_DAY = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSource:
    """Whose page it is."""

    federation: str
    address: str
    ledger: Path
    read_only: bool


class PageReader:
    """Keeps sums up to date and answers the page. `live` is None when `coordinator serve` is not running."""

    def __init__(self, source: PageSource, ledger: Ledger, *, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self.ledger = ledger
        self._clock = clock
        self._costs = CostBook()
        self._books: dict[str, StudyBook] = {}
        self.check = ChainCheck()

    # Federation -------------------------------------------------------------------------------------------------------

    def federation(self, live: LiveStatus | None, *, revision: int = 0) -> FederationFacts:
        """The federation at a glance."""
        now = self._clock()
        self._costs.refresh(self.ledger)
        studies = self.ledger.studies()
        return FederationFacts(
            federation=self._source.federation, address=self._source.address, version=__version__, now_unix=now,
            serving=live is not None, read_only=self._source.read_only, revision=revision,
            live=self.live(live), studies=tuple(self._study_line(row, now) for row in studies),
            silos=self.silos(live), invitations=open_invitations(self.ledger, now))

    def live(self, live: LiveStatus | None) -> LiveFacts | None:
        """What `serve` is doing, with what the ledger knows of the open phase."""
        if live is None:
            return None
        phase = self._open_phase(live.study)
        paused = self._paused_unix(live.study)
        return LiveFacts(
            study=live.study, round=live.round, rounds=live.rounds, phase=live.phase, reason=live.reason,
            activity=live.activity, fraction=live.fraction, text=live.text, paused_unix=paused,
            deadline_unix=phase.deadline_unix if phase is not None and paused is None else None)

    def silos(self, live: LiveStatus | None) -> tuple[SiloLine, ...]:
        """The roster by name."""
        now = self._clock()
        rows = self.ledger.query("SELECT * FROM wire_by_day WHERE day = date(?, 'unixepoch', 'localtime')", now)
        today: dict[tuple[str, str], int] = {(row["silo"], row["direction"]): row["bytes"] for row in rows}
        owed = self._owed() if live is not None else {}
        return tuple(_silo_line(row, live, owed.get(row.name), today, now)
                     for row in LedgerRoster(self.ledger).silos())

    def _owed(self) -> dict[str, float]:
        """Silo -> deadline of the task that it has not answered, in a study that is not over."""
        return {row["silo"]: row["deadline_unix"] for row in self.ledger.query(
            "SELECT task.silo, phase.deadline_unix FROM task JOIN study ON study.name = task.study AND study.state = ?"
            " JOIN round ON round.study = task.study AND round.number = task.round AND round.closed_unix IS NULL"
            " JOIN phase ON phase.study = task.study AND phase.round = task.round AND phase.number = task.phase"
            " WHERE task.state = ?", StudyState.RUNNING, TaskState.OPEN)}

    def _study_line(self, row: StudyRow, now: float) -> StudyLine:
        book = self._book(row.name)
        rounds = book.rows()
        measured = [accuracy for entry in rounds if entry.state is RoundState.COMPLETED
                    and (accuracy := accuracy_in(entry.metrics)) is not None]
        return StudyLine(
            name=row.name, state=str(row.state), method=_method(row), scenario=_scenario(row),
            round=rounds[-1].number if rounds else 0, rounds=planned_rounds(row),
            accuracy=measured[-1] if measured else None, labelled_only_accuracy=labelled_only_accuracy(row),
            seconds_left=None if row.ended_unix else seconds_left(rounds, planned=planned_rounds(row), now_unix=now),
            reason=row.reason, wire_bytes=self._costs.study(row.name).wire())

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
        frozen = row.frozen or {}
        dense, classes = int(frozen.get("dense_bytes", 0)), tuple(str(each) for each in frozen.get("classes", ()))
        rounds = book.rows()
        lines = book.lines(costs, dense_bytes=dense)
        completed = [line for line in lines if line.state == RoundState.COMPLETED and line.number > 0]
        accuracy, alone = completed[-1].accuracy if completed else None, labelled_only_accuracy(row)
        planned, paused = planned_rounds(row), self._paused_unix(name)
        left = None if row.ended_unix else seconds_left(rounds, planned=planned, now_unix=now)
        over = [line for line in lines if line.number > 0 and line.seconds is not None]
        forecast = None if row.ended_unix else forecast_of(
            [line.wire_down + line.wire_up for line in over], spent_bytes=costs.wire(),
            open_round_bytes=sum(line.wire_down + line.wire_up for line in lines if line.seconds is None),
            rounds_left=max(0, planned - len(over)), seconds_left=left, now_unix=now, paused=paused is not None)
        return StudyDetail(
            name=name, state=str(row.state), reason=row.reason, method=_method(row), scenario=_scenario(row),
            source=_about(row, "source"), discloses=_about(row, "discloses"), settings=_settings(row), classes=classes,
            queued_unix=row.queued_unix, started_unix=row.started_unix, ended_unix=row.ended_unix, paused_unix=paused,
            rounds_planned=planned, rounds_completed=len(completed), accuracy=accuracy, labelled_only_accuracy=alone,
            gain=None if accuracy is None or alone is None or not has_updates(self.ledger, name)
            else accuracy - alone,
            seconds=None if row.started_unix is None else max(0.0, (row.ended_unix or now) - row.started_unix),
            seconds_left=left, num_parameters=int(frozen.get("num_parameters", 0)), dense_bytes=dense,
            detail_from=book.detail_from, open_round=self._open_round(row, rounds), rounds=lines,
            silos=book.silos(costs, num_classes=len(classes)), cost=self._cost(name, costs, dense, forecast))

    def silo_of_study(self, name: str, silo: str) -> SiloOfStudy:
        """One silo over all rounds of a study.

        Raises: UnknownName, UnknownSilo.
        """
        row = self.ledger.study(name)
        self._costs.refresh(self.ledger)
        book, costs = self._book(name), self._costs.study(name)
        known = book.silos(costs, num_classes=0)
        if silo not in {each.name for each in known}:
            raise UnknownSilo(f"No silo of that name was asked in study '{name}'.")
        return silo_over_all_rounds(
            self.ledger, name, silo, rows=book.rows(), costs=costs,
            total_examples=sum(each.examples for each in known), num_classes=len((row.frozen or {}).get("classes", ())))

    def _open_phase(self, study: str) -> PhaseRow | None:
        """The phase in which silos work."""
        last = self.ledger.last_round(study) if study else None
        if last is None or last.state is not RoundState.COLLECTING:
            return None
        return self.ledger.phase(study, last.number, last.phase)

    def _open_round(self, study: StudyRow, rounds: list[RoundRow]) -> OpenRoundFacts | None:
        if not rounds or rounds[-1].closed_unix is not None or study.ended_unix is not None:
            return None
        row = rounds[-1]
        phase = self._open_phase(study.name)
        states = self.ledger.task_states(study.name, row.number, row.phase)
        named = row.phases[row.phase]["name"] if row.phase < len(row.phases) else ""
        return OpenRoundFacts(
            number=row.number, state=str(row.state), phase=named, opened_unix=row.opened_unix,
            deadline_unix=None if phase is None else phase.deadline_unix,
            limit_unix=None if phase is None else phase.limit_unix, quorum=0 if phase is None else phase.quorum,
            tasks={str(state): count for state, count in sorted(Counter(states.values()).items())},
            waiting_for=tuple(silo for silo, state in states.items() if state is TaskState.OPEN))

    def _cost(self, name: str, costs: StudyCosts, dense: int, forecast: Forecast | None) -> CostFacts:
        traffic = costs.traffic(dense_bytes=dense)
        return CostFacts(
            payload=TwoWays(down=traffic.payload_down, up=traffic.payload_up),
            message=TwoWays(down=traffic.message_down, up=traffic.message_up),
            wire=TwoWays(down=traffic.wire_down, up=traffic.wire_up),
            overhead=TwoWays(down=traffic.overhead_down, up=traffic.overhead_up), dense_total=traffic.dense_total,
            share_of_dense=traffic.share, estimated=traffic.estimated,
            by_group=tuple({"group": item, "down": ways["down"], "up": ways["up"]}
                           for item, ways in costs.items("payload")),
            by_rpc=tuple({"rpc": item, "down": ways["down"], "up": ways["up"]}
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
        dense = int((self.ledger.study(study).frozen or {}).get("dense_bytes", 0))
        if row is None:
            raise UnknownName(f"Study '{study}' has no round {number}.")
        self._costs.refresh(self.ledger)
        traffic = self._costs.study(study).traffic(dense_bytes=dense, round=number)
        silos = self.ledger.query("SELECT silo, direction, sum(bytes) AS bytes FROM cost WHERE study = ? AND round = ?"
                                   " AND kind = 'wire' GROUP BY silo, direction", study, number)
        by_silo: dict[str, dict[str, int]] = {}
        for each in silos:
            by_silo.setdefault(each["silo"], {"down": 0, "up": 0})[each["direction"]] += each["bytes"]
        heard = live.silos if live is not None and (live.study, live.round) == (study, number) else {}
        phases = tuple(self._phase(study, number, phase, heard) for phase in self.ledger.query(
            "SELECT * FROM phase WHERE study = ? AND round = ? ORDER BY number", study, number))
        return RoundDetail(
            study=study, number=number, state=str(row.state), reason=row.reason, opened_unix=row.opened_unix,
            closed_unix=row.closed_unix, sample=row.sample, phases=phases, metrics=finite(row.metrics),
            traffic=_traffic_facts(traffic, _by_silo(by_silo)), state_digest=row.state_digest)

    def _phase(self, study: str, number: int, phase: Any, heard: Mapping[str, LiveSilo]) -> PhaseFacts:
        rows = self.ledger.query(
            "SELECT task.*, example_count, training_seconds, size_bytes, groups_json FROM task"
            " LEFT JOIN declared_update ON declared_update.update_id = task.update_id"
            " WHERE study = ? AND round = ? AND phase = ?", study, number, phase["number"])
        return PhaseFacts(
            name=phase["name"], quorum=phase["quorum"], opened_unix=phase["opened_unix"],
            deadline_unix=phase["deadline_unix"], limit_unix=phase["limit_unix"], closed_unix=phase["closed_unix"],
            tasks=tuple(_task_facts(row, heard) for row in sorted(rows, key=lambda row: row["silo"].encode())))

    # The audit trail --------------------------------------------------------------------------------------------------

    def events(self, **wanted: Any) -> EventsFacts:
        """`coordinator.page.audit_trail.events_of`, with the chain checked as far as it has got."""
        self.check.go_on(self.ledger)
        return events_of(self.ledger, self.check, **wanted)


def _silo_line(row: SiloRow, live: LiveStatus | None, deadline: float | None, today: dict[tuple[str, str], int],
               now: float) -> SiloLine:
    said = live.silos.get(row.name) if live is not None else None
    said = said if said is not None and now - said.unix <= PRESENT_SECONDS and deadline is not None else None
    return SiloLine(
        name=row.name, state=_silo_state(row, live, deadline, said, now), doing=_doing(said), seen_unix=row.seen_unix,
        certificate_days_left=(row.certificate_not_after_unix - now) / _DAY if row.certificate_not_after_unix else None,
        labelled_count=row.labelled_count, unlabelled_count=row.unlabelled_count, version=row.version,
        away_reason=row.away_reason if row.is_away(now) else "", methods=row.methods,
        bytes_today_down=today.get((row.name, "down"), 0),
        bytes_today_up=today.get((row.name, "up"), 0))


def _silo_state(row: SiloRow, live: LiveStatus | None, deadline: float | None, said: LiveSilo | None,
                now: float) -> str:
    if row.revoked_unix is not None:
        return "revoked"
    if row.left_unix is not None:
        return "left"
    if row.joined_unix is None:
        return "enrolled"
    if row.is_away(now):
        return "away"
    if live is None:
        return "joined"
    if deadline is not None and now > deadline:
        return "late"
    present = row.name in live.connected or said is not None or (row.seen_unix is not None
                                                                 and now - row.seen_unix <= PRESENT_SECONDS)
    return ("working" if said is not None else "connected") if present else "away"


def _doing(said: LiveSilo | None) -> DoingFacts | None:
    return DoingFacts(stage=said.stage, fraction=said.fraction, text=said.text) if said is not None else None


def _task_facts(row: Any, heard: Mapping[str, LiveSilo]) -> TaskFacts:
    return TaskFacts(
        silo=row["silo"], state=row["state"], given_unix=row["given_unix"], closed_unix=row["closed_unix"],
        reason=row["reason"], example_count=row["example_count"], training_seconds=row["training_seconds"],
        update_bytes=row["size_bytes"], groups=json.loads(row["groups_json"] or "{}"),
        metrics=finite(json.loads(row["metrics_json"])),
        doing=_doing(heard.get(row["silo"])) if row["state"] == TaskState.OPEN else None)


def _by_silo(sums: Mapping[str, Mapping[Any, int]]) -> tuple[BySilo, ...]:
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


def _method(row: StudyRow) -> str:
    return str(row.config.get("method", {}).get("name", "?"))


def _scenario(row: StudyRow) -> str:
    method = row.config.get("method", {})
    return str({**method, **method.get("settings", {})}.get("scenario", ""))


def _about(row: StudyRow, field: str) -> str:
    """What the method declares of itself; empty for a plug-in that is not installed here."""
    name = _method(row)
    try:
        return str(getattr(METHODS[name] if name in METHODS else find_method(name), field))
    except SemisiloError:
        return ""


def _settings(row: StudyRow) -> dict[str, dict[str, Any]]:
    """The tables of the study file; the method's own settings stand in [method], as a person writes them."""
    tables = {name: dict(table) for name, table in row.config.items() if isinstance(table, dict)}
    if "method" in tables:
        own = tables["method"].pop("settings", {})
        tables["method"] |= own
    return tables
