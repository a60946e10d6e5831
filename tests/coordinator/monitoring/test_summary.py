from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.coordinator.ledger.costs import Cost, Direction, Kind, add_costs, costs_of
from semisilo.coordinator.ledger.records import RoundRow
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.ledger.tasks import add_site_evaluation
from semisilo.coordinator.monitoring.outcomes import outcomes_of
from semisilo.coordinator.monitoring.results.study_numbers import seconds_left
from semisilo.coordinator.monitoring.summary import audit, summarise
from semisilo.coordinator.monitoring.traffic import cost_lines
from tests.coordinator.cost_rows import book_of_rows, totals_of_rows, traffic_of_rows
from tests.coordinator.ledger_fixture import (
    DENSE_BYTES,
    LABELLED_ONLY,
    OVERHEAD,
    PAYLOAD_DOWN,
    PAYLOAD_UP,
    SECONDS_PER_ROUND,
    SILOS,
    WIRE_DOWN,
    WIRE_UP,
    accuracy_after,
    fill_study,
)
from tests.newcombe import newcombe


def _cost(round: int, silo: str, direction: Direction, kind: Kind, size: int, *, estimated: bool = False) -> Cost:
    return Cost(study="s", round=round, phase="train", silo=silo, direction=direction, kind=kind, item="x", bytes=size,
                estimated=estimated)


def _round(number: int, opened: float, closed: float | None) -> RoundRow:
    return RoundRow(study="s", number=number, state=RoundState.COMPLETED if closed else RoundState.COLLECTING, phase=0,
                    phases=(), sample=(), opened_unix=opened, closed_unix=closed, start_digest="", state_digest="",
                    metrics={}, reason="")


def test_a_transfer_is_one_silo_in_one_round_however_many_streams_and_groups_it_takes() -> None:
    traffic = traffic_of_rows([_cost(1, "a", "down", "payload", 60), _cost(1, "a", "down", "payload", 40),
                          _cost(1, "b", "down", "payload", 100), _cost(2, "a", "down", "payload", 100),
                          _cost(1, "a", "up", "payload", 50)], dense_bytes=100)
    assert (traffic.downloads, traffic.uploads) == (3, 1)
    assert traffic.share_down == pytest.approx(1.0)
    assert traffic.share_up == pytest.approx(0.5)
    assert traffic.dense_total == 400


def test_wire_bytes_without_a_silo_are_overhead_and_an_estimate_is_marked() -> None:
    traffic = traffic_of_rows([_cost(1, "a", "down", "wire", 10), _cost(1, "", "down", "wire", 3),
                          _cost(1, "", "up", "wire", 4)])
    assert (traffic.wire_down, traffic.wire_up, traffic.wire) == (13, 4, 17)
    assert (traffic.overhead_down, traffic.overhead_up, traffic.overhead) == (3, 4, 7)
    assert not traffic.estimated
    assert traffic.share is None, "there is nothing to compare with"
    assert traffic_of_rows([_cost(1, "a", "up", "wire", 1, estimated=True)]).estimated


def test_over_several_phases_the_answer_that_stands_out_counts() -> None:
    assert outcomes_of([("a", TaskState.UPDATED), ("a", TaskState.ABSTAINED), ("b", TaskState.EXPIRED),
                        ("b", TaskState.UPDATED), ("c", TaskState.UPDATED), ("c", TaskState.UPDATED)]) == {
        "a": TaskState.ABSTAINED, "b": TaskState.EXPIRED, "c": TaskState.UPDATED}


def test_time_left_is_the_median_of_finished_rounds_for_those_that_are_left() -> None:
    assert seconds_left([_round(0, 0, 50)], planned=5, now_unix=60) is None, "round 0 says nothing of rounds with silos"
    done = [_round(0, 0, 50), _round(1, 50, 60), _round(2, 60, 80)]
    assert seconds_left(done, planned=5, now_unix=80) == pytest.approx(3 * 15)
    assert seconds_left([*done, _round(3, 80, None)], planned=5, now_unix=85) == pytest.approx(3 * 15 - 5)
    assert seconds_left([*done, _round(3, 80, None)], planned=5, now_unix=999) == pytest.approx(2 * 15), \
        "a round that takes too long leaves the others their time"
    assert seconds_left([*done, _round(3, 80, 9980)], planned=5, now_unix=9980) == pytest.approx(2 * 20), \
        "the coordinator was off in the third"


def test_time_left_of_what_goes_on_is_by_rounds_that_began_since() -> None:
    done = [_round(0, 0, 50), _round(1, 50, 60), _round(2, 60, 5080)]
    assert seconds_left(done, planned=5, now_unix=5080, since_unix=5000) is None
    assert seconds_left([*done, _round(3, 5080, 5090)], planned=5, now_unix=5090, since_unix=5000) == pytest.approx(20)


def test_a_study_is_summed_up_from_its_ledger(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=8)
    study = summarise(filled.ledger, "first")
    assert study.labelled_only == LABELLED_ONLY
    assert study.accuracy == accuracy_after(8)
    assert study.gain is not None
    assert study.gain.value == pytest.approx(accuracy_after(8) - LABELLED_ONLY)
    exact = newcombe(round(355 * accuracy_after(8)), round(355 * LABELLED_ONLY), 355)  # the fixture's shares are not
    assert study.gain.interval is not None
    assert (study.gain.interval.low, study.gain.interval.high) == pytest.approx((exact.low, exact.high), abs=0.001)
    assert (study.completed_rounds, study.planned_rounds, study.silos) == (8, 8, SILOS)
    assert [entry.accuracy for entry in study.rounds] == [accuracy_after(number) for number in range(9)]
    assert study.rounds[4].seconds == pytest.approx(SECONDS_PER_ROUND)
    # 8 rounds of 3 silos download; an abstention, a late answer and a refusal are not uploads.
    assert (study.traffic.downloads, study.traffic.uploads) == (24, 21)
    assert study.traffic.payload_down == 24 * PAYLOAD_DOWN
    assert study.traffic.payload_up == 21 * PAYLOAD_UP
    assert study.traffic.wire == 24 * (WIRE_DOWN + 1200) + 21 * WIRE_UP + OVERHEAD
    assert study.traffic.dense_total == 45 * DENSE_BYTES


def test_every_kind_of_answer_is_told_apart(tmp_path: Path) -> None:
    rounds = summarise(fill_study(tmp_path / "fed", rounds=7, done=6, collecting=True).ledger, "first").rounds
    assert rounds[3].outcomes[SILOS[2]] is TaskState.ABSTAINED
    assert rounds[3].reasons == {SILOS[2]: "no_confident_example"}
    assert rounds[3].label_ratio[SILOS[2]] == 0.0
    assert rounds[5].outcomes[SILOS[0]] is TaskState.EXPIRED
    assert rounds[6].outcomes[SILOS[1]] is TaskState.REFUSED
    assert "METHOD_NOT_PERMITTED" in rounds[6].reasons[SILOS[1]]
    assert (rounds[7].count(TaskState.UPDATED), rounds[7].count(TaskState.OPEN), rounds[7].seconds) == (1, 2, None)


def test_the_costs_of_a_summary_are_those_of_all_rows_and_none_of_them_is_read(tmp_path: Path) -> None:
    """A study of a thousand silos and five hundred rounds has seven million: they took five gigabytes of memory."""
    ledger = fill_study(tmp_path / "federation", rounds=4).ledger
    asked: list[str] = []
    ledger._db.set_trace_callback(asked.append)
    study = summarise(ledger, "first")
    ledger._db.set_trace_callback(None)
    assert not [sql for sql in asked if "FROM cost " in sql]
    rows = costs_of(ledger, "first")
    assert study.traffic == traffic_of_rows(rows, dense_bytes=DENSE_BYTES)
    assert [entry.traffic for entry in study.rounds] == [traffic_of_rows(
        (row for row in rows if row.round == entry.number), dense_bytes=DENSE_BYTES) for entry in study.rounds]
    assert study.wire_by_silo == book_of_rows(rows).by_silo
    assert cost_lines(study.costs) == cost_lines(totals_of_rows(rows))


def test_a_failed_round_has_no_accuracy_and_costs_all_the_same(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=3, done=1, collecting=True)
    before = summarise(filled.ledger, "first").traffic.wire
    filled.ledger.fail_round(filled.ledger.round("first", 2), reason="1 of 2 answers within round_limit")
    add_costs(filled.ledger, [Cost(study="first", round=2, phase="train", silo=SILOS[0], direction="up", kind="wire",
                                   item="tcp", bytes=77)])
    study = summarise(filled.ledger, "first")
    assert study.rounds[2].accuracy is None
    assert study.rounds[2].reason == "1 of 2 answers within round_limit"
    assert study.completed_rounds == 1
    assert study.accuracy == accuracy_after(1)
    assert study.traffic.wire == before + 77


def test_the_audit_notices_an_altered_event(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=2)
    intact = audit(filled.ledger, "first")
    assert intact.problem == ""
    assert intact.events == len(filled.ledger.query("SELECT * FROM event"))
    assert dict(intact.kinds)["round_completed"] == 3
    with sqlite3.connect(filled.federation.ledger) as db:
        db.execute("DROP TRIGGER event_is_append_only_1")
        db.execute("UPDATE event SET detail_json = '{}' WHERE number = 4")
    assert "event 4 was altered" in audit(filled.ledger, "first").problem


# At the sites ---------------------------------------------------------------------------------------------------------


_NO_IMAGES = (ClassResult(images=0, correct=0),) * 8
"""Of the other digits."""


def test_a_site_is_shown_with_the_model_that_is_handed_over_or_its_newest_and_others_as_silent(tmp_path: Path) -> None:
    ledger = fill_study(tmp_path / "federation", rounds=4, done=4).ledger
    assert summarise(ledger, "first").sites == ()
    for silo, number in ((SILOS[0], 4), (SILOS[0], 3), (SILOS[1], 2), (SILOS[1], 1)):
        add_site_evaluation(ledger, silo, SiteEvaluation(study="first", round=number, classes=(
            ClassResult(images=8, correct=6), ClassResult(images=2, correct=number % 2), *_NO_IMAGES)), now_unix=1.0)
    first, second, third = summarise(ledger, "first").sites
    assert [(each.silo, each.round, each.handed_over, each.model) for each in (first, second, third)] == [
        (SILOS[0], 4, True, "round 4, handed over"), (SILOS[1], 2, False, "round 2"), (SILOS[2], None, False, "")]
    assert first.scores is not None
    assert (first.scores.count, first.scores.accuracy.value) == (10, 0.6)
    assert list(first.texts) == ["accuracy", "balanced accuracy"]
    assert first.texts["accuracy"].startswith("60.0 % (")
    assert (third.scores, third.texts) == (None, {})
