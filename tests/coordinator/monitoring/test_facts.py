"""Every route of the page over a real ledger: the numbers are those of the report and of `status`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.config import canonical_json, to_dict
from semisilo.common.measures.gain import describe_gain
from semisilo.common.page.responses import to_json
from semisilo.common.payload.usage import Encoded, describe_encoding
from semisilo.coordinator.ledger.costs import Cost, add_costs
from semisilo.coordinator.ledger.encodings import add_encoded
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.monitoring.status import gather
from semisilo.coordinator.monitoring.study_book import CELLS, FEWEST_ROUNDS
from semisilo.coordinator.monitoring.summary import summarise
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.rounds.live_file import LiveSilo, LiveStatus
from tests.coordinator.ledger_fixture import (
    DENSE_BYTES,
    LABELLED_ONLY,
    PHASE,
    SILOS,
    WIRE_DOWN,
    WIRE_UP,
    Filled,
    answer,
    fill_study,
    open_collecting_round,
    open_federation_with_silos,
    study_config,
)
from tests.coordinator.page.page_kit import Page, asking


def live_status(**changes: Any) -> LiveStatus:
    now = time.time()
    return LiveStatus(**{"pid": os.getpid(), "unix": now, "study": "first", "round": 9, "rounds": 12, "phase": PHASE,
                         "reason": "collecting", "connected": (SILOS[1],),
                         "silos": {SILOS[2]: LiveSilo(stage="training", fraction=0.4, text="step 4", unix=now)},
                         **changes})


def reader_of(filled: Filled) -> PageReader:
    return PageReader(PageSource(federation="lung", address="a:1", ledger=filled.ledger.path, read_only=False),
                      filled.ledger)


def facts(value: object) -> Any:
    return json.loads(to_json(value))


def set_metrics(filled: Filled, number: int, silo: str, metrics: dict[str, float]) -> None:
    with filled.ledger.transaction() as db:
        db.execute("UPDATE task SET metrics_json = ? WHERE task_id = ?",
                   (canonical_json(metrics), f"first/{number}/0-{PHASE}/{silo}"))


def test_the_federation_at_a_glance_is_what_status_says(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", done=8, collecting=True)
    status = gather(filled.federation, filled.ledger, None)

    async def work(page: Page) -> None:
        found = await page.get("/api/federation")
        assert (found["federation"], found["serving"], found["live"], found["read_only"]) == (
            "lung-federation", False, None, False)
        (study,) = found["studies"]
        (known,) = status.studies
        assert (study["name"], study["state"], study["round"], study["rounds"], study["accuracy"]) == (
            known.name, known.state, known.round, known.rounds, known.accuracy)
        assert study["labelled_only_accuracy"] == LABELLED_ONLY
        assert study["seconds_left"] == pytest.approx(known.seconds_left, abs=5)
        (cost,) = status.costs
        assert study["wire_bytes"] == cost.wire_down + cost.wire_up
        assert [(silo["name"], silo["state"]) for silo in found["silos"]] == [(name, "joined") for name in SILOS]
    asking(filled, work)


def test_a_silo_is_late_working_connected_or_away(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", done=8, collecting=True)

    def states(live: LiveStatus | None = None) -> dict[str, str]:
        return {silo.name: silo.state for silo in reader_of(filled).silos(live or live_status())}
    # The first has answered and is not there, the second is connected and was asked, the third works.
    assert states() == dict(zip(SILOS, ("away", "connected", "working"), strict=True))
    working = reader_of(filled).silos(live_status())[2]
    assert working.doing is not None
    assert (working.doing.stage, working.doing.fraction) == ("training", 0.4)
    with filled.ledger.transaction() as db:
        db.execute("UPDATE phase SET deadline_unix = ? WHERE round = 9", (time.time() - 1,))
    assert states() == dict(zip(SILOS, ("away", "late", "late"), strict=True))
    filled.roster.revoke(SILOS[2])
    assert states()[SILOS[2]] == "revoked"
    filled.roster.leave(SILOS[1])
    assert states()[SILOS[1]] == "left"


def test_bytes_of_today_are_counted_by_silo_and_yesterday_is_not(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "hub")
    add_costs(filled.ledger, [Cost(study="", round=0, phase="standby", silo=SILOS[0], direction="down", kind=kind,
                                   item="tcp", bytes=size) for kind, size in (("wire", 70), ("wire", 7),
                                                                              ("message", 1000))])
    with filled.ledger.transaction() as db:
        db.execute("INSERT INTO wire_by_day VALUES ('2001-01-01', ?, 'down', 999)", (SILOS[0],))
    silo = reader_of(filled).silos(None)[0]
    assert (silo.bytes_today_down, silo.bytes_today_up) == (77, 0)


def test_a_study_has_the_numbers_of_its_report(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", done=8, collecting=True)
    summary = summarise(filled.ledger, "first")

    async def work(page: Page) -> None:
        study = await page.get("/api/studies/first")
        assert study["accuracy"] == summary.accuracy
        assert summary.gain is not None
        assert study["gain"] == pytest.approx(summary.gain.value)
        assert study["gain_interval"] == to_dict(summary.gain.interval)
        assert ", ".join([study["gain_text"], study["gain_interval_text"], study["gain_verdict"]]) == \
            describe_gain(summary.gain)
        assert study["rounds_completed"] == summary.completed_rounds == 8
        assert study["source"].startswith("Diao")
        assert study["settings"]["method"]["lr"] == 0.03
        assert "settings" not in study["settings"]["method"]
        assert len(study["classes"]) == 10
        cumulative = 0
        for line, entry in zip(study["rounds"], summary.rounds, strict=True):
            cumulative += entry.traffic.wire
            assert line["wire_cumulative"] == cumulative
            assert (line["number"], line["state"], line["accuracy"]) == (entry.number, entry.state, entry.accuracy)
            assert line["outcomes"] == {silo: str(state) for silo, state in entry.outcomes.items()}
            assert line["share_of_dense"] == entry.traffic.share
        cost, traffic = study["cost"], summary.traffic
        assert cost["wire"] == {"down": traffic.wire_down, "up": traffic.wire_up}
        assert cost["payload"] == {"down": traffic.payload_down, "up": traffic.payload_up}
        assert cost["message"] == {"down": traffic.message_down, "up": traffic.message_up}
        assert cost["overhead"] == {"down": traffic.overhead_down, "up": traffic.overhead_up}
        assert (cost["dense_total"], cost["share_of_dense"]) == (traffic.dense_total, traffic.share)
        assert sum(each["down"] + each["up"] for each in cost["by_silo"]) == traffic.wire
        assert sum(each["up"] for each in cost["by_group"]) == traffic.payload_up
        assert sum(each["down"] for each in cost["by_rpc"]) == traffic.message_down
    asking(filled, work)


def test_the_open_round_says_for_whom_it_waits(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", done=8, collecting=True)
    found = reader_of(filled).study("first").open_round
    assert found is not None
    assert (found.number, found.state, found.phase, found.quorum) == (9, "collecting", PHASE, 2)
    assert found.tasks == {"open": 2, "updated": 1}
    assert found.waiting_for == SILOS[1:]
    phase = filled.ledger.phase("first", 9, 0)
    assert (found.deadline_unix, found.limit_unix) == (phase.deadline_unix, phase.limit_unix)


def test_the_forecast_is_what_the_last_rounds_cost(tmp_path: Path) -> None:
    """Rounds 9 to 12 as the mean of rounds 4 to 8; the open ninth round's bytes are part of its own."""
    filled = fill_study(tmp_path / "hub", rounds=12, done=8, collecting=True)
    study = reader_of(filled).study("first")
    by_round = {line.number: line.wire_down + line.wire_up for line in study.rounds}
    expected = sum(by_round.values()) - by_round[9] + 4 * sum(by_round[number] for number in range(4, 9)) / 5
    assert study.cost.forecast is not None
    assert study.cost.forecast.wire_bytes_at_end == round(expected)
    assert study.cost.forecast.seconds_left == study.seconds_left
    over = fill_study(tmp_path / "over", rounds=4)
    assert reader_of(over).study("first").cost.forecast is None


def test_the_forecast_of_a_study_that_went_back_is_of_its_present_tries(tmp_path: Path) -> None:
    """Round 3 has the bytes of two tries; what is to come is like one."""
    filled = fill_study(tmp_path / "hub", rounds=6, done=3, complete=False)
    before = reader_of(filled).study("first")
    filled.ledger.set_study_state("first", StudyState.STOPPED)
    roll_back(filled.ledger, "first", 2, operator="", reason="")
    open_collecting_round(filled.ledger, "first", 3, SILOS)
    again = reader_of(filled).study("first")
    assert again.cost.forecast is not None
    third = next(line for line in before.rounds if line.number == 3)
    one_more = (sum(line.wire_down + line.wire_up for line in before.rounds if line.number in (1, 2))) / 2
    assert again.cost.forecast.wire_bytes_at_end == round(again.cost.wire.down + again.cost.wire.up + 4 * one_more)
    add_costs(filled.ledger, [Cost(study="first", round=3, phase=PHASE, silo=SILOS[0], direction="up", kind="wire",
                                   item="tcp", bytes=third.wire_up)])
    later = reader_of(filled).study("first").cost.forecast
    assert later is not None
    assert later.wire_bytes_at_end == again.cost.forecast.wire_bytes_at_end, "a part of what is to come"


def test_what_each_encoding_saved_is_said_in_words(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", done=2)
    add_encoded(filled.ledger, [Encoded("difference:xor+zstd", 3, 100, 400)], study="first", round=1, direction="up")
    (found,) = facts(reader_of(filled).study("first").cost)["by_encoding"]
    assert (found["direction"], found["blocks"], found["bytes"], found["dense_bytes"], found["saved_bytes"]) == (
        "up", 3, 100, 400, 300)
    assert found["text"] == describe_encoding("difference:xor+zstd")


def test_contribution_is_the_share_of_folded_examples(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=6, done=6)
    study = reader_of(filled).study("first")
    assert sum(silo.contribution for silo in study.silos) == pytest.approx(1)
    examples = {silo: sum(row["example_count"] for row in filled.ledger.query(
        "SELECT example_count FROM declared_update JOIN task USING (update_id) WHERE task.silo = ?", silo))
        for silo in SILOS}
    assert {silo.name: silo.examples for silo in study.silos} == examples
    # Round 3: the last abstains; 5: the first is late; 6: the second refuses.
    assert [(silo.rounds_asked, silo.rounds_updated) for silo in study.silos] == [(6, 5)] * 3
    assert study.silos[1].last_reason.startswith("METHOD_NOT_PERMITTED")
    assert [silo.last_reason_round for silo in study.silos] == [5, 6, 3]


def test_an_update_of_a_round_that_is_not_committed_is_no_contribution(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=6, done=2, collecting=True)
    first = reader_of(filled).study("first").silos[0]
    assert (first.rounds_asked, first.rounds_updated) == (3, 2)
    assert 3 in first.label_ratio


def test_a_change_of_classes_is_marked_as_drift_in_its_round_and_silo_alone(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=8, done=8)
    even = {f"pseudo_labels/{label}": 40.0 for label in range(10)} | {"label_ratio": 0.9}
    for number in range(1, 9):
        for silo in SILOS:
            set_metrics(filled, number, silo, even)
    set_metrics(filled, 7, SILOS[0], {"pseudo_labels/3": 350.0, "pseudo_labels/4": 50.0, "label_ratio": 0.9})
    study = reader_of(filled).study("first")
    marked = [(silo.name, number) for silo in study.silos for number, drift in silo.drift.items() if drift.marked]
    assert marked == [(SILOS[0], 7)]
    histogram = study.silos[0].class_histogram
    assert histogram[7] == (0, 0, 0, 0.875, 0.125, 0, 0, 0, 0, 0)
    assert histogram[6] == (0.1,) * 10
    assert 1 not in study.silos[0].drift, "there is nothing before the first round"


def test_a_label_that_the_study_does_not_have_makes_no_class_of_it(tmp_path: Path) -> None:
    """One such number of one silo made the study's document as long as if it had ten thousand classes."""
    filled = fill_study(tmp_path / "hub", rounds=3)
    for number in range(1, 4):
        set_metrics(filled, number, SILOS[0], {"pseudo_labels/3": 40.0, "pseudo_labels/10": 40.0,
                                               "pseudo_labels/9999": 40.0, "label_ratio": 0.9})
    reader = reader_of(filled)
    for found in (reader.study("first").silos[0], reader.silo_of_study("first", SILOS[0])):
        assert found.class_histogram == dict.fromkeys(range(1, 4), (0, 0, 0, 1, 0, 0, 0, 0, 0, 0))


def test_facts_follow_the_ledger_without_reading_it_all_again(tmp_path: Path) -> None:
    """A reader that has looked at every step agrees with one that sees the ledger for the first time."""
    filled = fill_study(tmp_path / "hub", rounds=12, done=3, collecting=True)
    steady = reader_of(filled)
    ledger = filled.ledger

    def agree() -> Any:
        ours, fresh = (facts(reader.study("first")) for reader in (steady, reader_of(filled)))
        for found in (ours, fresh):
            found["cost"].pop("forecast")  # of this moment, as the others
            for key in ("seconds", "seconds_left"):
                found.pop(key)
        assert ours == fresh
        return ours
    agree()
    for number in range(4, 8):
        for silo in SILOS[0 if number > 4 else 1:]:
            answer(ledger, "first", number, silo, TaskState.UPDATED, ratio=0.5)
            agree()
        ledger.close_phase(ledger.phase("first", number, 0))
        agree()
        ledger.folded("first", number, dict.fromkeys(SILOS))
        ledger.set_round_state("first", number, RoundState.EVALUATING, state_digest="d" * 64)
        ledger.commit_round("first", number, metrics={"accuracy": 0.5})
        add_costs(ledger, [Cost(study="first", round=number, phase="standby", silo="", direction="up", kind="wire",
                                item="tcp", bytes=11)])
        assert agree()["rounds"][-1]["state"] == "completed"
        open_collecting_round(ledger, "first", number + 1, SILOS)
    assert len(agree()["rounds"]) == 9


def test_one_round_in_detail(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", done=8, collecting=True)

    async def work(page: Page) -> None:
        found = await page.get("/api/studies/first/rounds/6")
        assert (found["number"], found["state"], found["sample"]) == (6, "completed", list(SILOS))
        (phase,) = found["phases"]
        tasks = {task["silo"]: task for task in phase["tasks"]}
        assert tasks[SILOS[0]]["groups"] == {"model": DENSE_BYTES}
        assert tasks[SILOS[0]]["training_seconds"] == 1.5
        assert tasks[SILOS[1]]["state"] == "refused"
        assert tasks[SILOS[1]]["update_bytes"] is None
        assert found["traffic"]["by_silo"][0] == {"silo": SILOS[0], "down": WIRE_DOWN, "up": WIRE_UP + 1200}
        assert found["traffic"]["uploads"] == 2
        open_round = await page.get("/api/studies/first/rounds/9")
        assert open_round["closed_unix"] is None
        assert [task["doing"] for task in open_round["phases"][0]["tasks"]] == [
            None, None, {"stage": "training", "fraction": 0.4, "text": "step 4"}]
    asking(filled, work, live=live_status())


def test_events_come_newest_first_by_filter_and_page(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", done=8)

    async def work(page: Page) -> None:
        first = await page.get("/api/events?limit=10")
        assert first["more"]
        assert len(first["events"]) == 10
        second = await page.get(f"/api/events?limit=10&before={first['first_number']}")
        numbers = [event["number"] for event in (*first["events"], *second["events"])]
        assert numbers == list(range(numbers[0], numbers[0] - 20, -1))
        refused = await page.get("/api/events?kind=task_refused")
        assert [event["detail"]["silo"] for event in refused["events"]] == [SILOS[1]]
        of_silo = await page.get(f"/api/events?silo={SILOS[1]}&limit=500")
        assert {event["detail"]["silo"] for event in of_silo["events"]} == {SILOS[1]}
        assert not of_silo["more"]
        assert (await page.get("/api/events?study=none"))["events"] == []
        assert "task_refused" in first["kinds"]
        assert first["chain_intact"] is True
    asking(filled, work)


@pytest.mark.parametrize("damage", ["UPDATE event SET detail_json = '{}' WHERE number = 20",
                                    "DELETE FROM event WHERE number = 20",
                                    "DELETE FROM event WHERE number = (SELECT max(number) FROM event)"])
def test_an_event_that_was_altered_or_removed_is_found(tmp_path: Path, damage: str) -> None:
    filled = fill_study(tmp_path / "hub", done=4)
    reader = reader_of(filled)
    assert reader.events().chain_intact is True
    with filled.ledger.transaction() as db:
        for number in (1, 2):
            db.execute(f"DROP TRIGGER event_is_append_only_{number}")
        db.execute(damage)
    reader.check.again()
    found = reader.events()
    assert found.chain_intact is False
    assert "event" in found.chain_problem


def test_the_chain_is_checked_a_stretch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = fill_study(tmp_path / "hub", done=4)
    monkeypatch.setattr("semisilo.coordinator.monitoring.audit_trail._STRETCH", 20)
    reader = reader_of(filled)
    first = reader.events()
    assert (first.chain_intact, first.checked) == (None, 20)
    while reader.check.go_on(filled.ledger):
        pass
    assert reader.check.intact is True
    assert reader.check.checked == filled.ledger.check_events()


def test_with_many_silos_values_by_silo_begin_late_and_one_silo_has_them_all(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.coordinator.monitoring.study_book.CELLS", 1)
    monkeypatch.setattr("semisilo.coordinator.monitoring.study_book.FEWEST_ROUNDS", 4)
    assert (CELLS, FEWEST_ROUNDS) == (6000, 20)
    filled = fill_study(tmp_path / "hub", rounds=8, done=8)
    reader = reader_of(filled)
    study = reader.study("first")
    assert study.detail_from == 5
    assert [bool(line.outcomes) for line in study.rounds] == [False] * 5 + [True] * 4
    assert study.rounds[3].counts == {"abstained": 1, "updated": 2}
    assert set(study.silos[0].label_ratio) == {6, 7, 8}, "late in round 5"
    alone = reader.silo_of_study("first", SILOS[0])
    assert set(alone.label_ratio) == {1, 2, 3, 4, 6, 7, 8}
    assert (alone.examples, alone.contribution) == (study.silos[0].examples, study.silos[0].contribution)


def test_what_a_silo_sent_is_passed_on_as_text(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=4, done=4)
    with filled.ledger.transaction() as db:
        db.execute("UPDATE silo_total SET last_reason = ? WHERE silo = ?", ("<script>alert(1)</script>", SILOS[0]))

    async def work(page: Page) -> None:
        answer = await page.client.get("/api/studies/first")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json()["silos"][0]["last_reason"] == "<script>alert(1)</script>"
    asking(filled, work)


def test_numbers_that_json_cannot_carry_become_null() -> None:
    assert to_json({"a": float("nan"), "b": [1.0, float("inf")]}) == b'{"a":null,"b":[1.0,null]}'
    assert json.loads(to_json({"x": "\ud800"})) == {"x": "?"}


def test_a_seed_that_a_browser_would_round_is_told_digit_by_digit(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "hub")
    for name, seed in (("large", -(2**63) + 1), ("small", 2**53 - 1)):
        filled.ledger.queue_study(name, {**study_config(rounds=3), "study": {"seed": seed, "rounds": 3}})
    reader = reader_of(filled)
    assert facts(reader.study("large"))["settings"]["study"] == {"seed": "-9223372036854775807", "rounds": 3}
    assert facts(reader.study("small"))["settings"]["study"]["seed"] == 9007199254740991
    seeds = {event["study"]: event["detail"]["config"]["study"]["seed"] for event in facts(reader.events())["events"]
             if event["kind"] == "study_queued"}
    assert seeds == {"large": "-9223372036854775807", "small": 9007199254740991}


def test_a_federation_without_studies_or_silos_has_a_page(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "hub", silos=())

    async def work(page: Page) -> None:
        found = await page.get("/api/federation")
        assert (found["studies"], found["silos"], found["invitations"]) == ([], [], [])
        assert (await page.get("/api/events"))["chain_intact"] is True
    asking(filled, work)


def test_a_study_that_never_began_has_a_page(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "hub")
    filled.ledger.refuse_study("broken", "study.toml: [data]: labelled is missing.")
    study = reader_of(filled).study("broken")
    assert (study.state, study.method, study.rounds) == ("failed", "?", ())
    assert to_dict(study.cost.wire) == {"down": 0, "up": 0}


def test_a_ledger_of_a_hundred_silos_is_answered_quickly(tmp_path: Path) -> None:
    """5 rounds of 100 silos: far from what reading row by row at every look would take, on however busy a machine."""
    silos = tuple(f"silo-{number:03d}" for number in range(100))
    filled = fill_study(tmp_path / "hub", rounds=5, done=5, silos=silos)
    reader = reader_of(filled)
    start = time.process_time()
    to_json(reader.study("first"))
    assert time.process_time() - start < 7.5
    start = time.process_time()
    assert len(to_json(reader.study("first"))) < 500_000
    assert time.process_time() - start < 2.5
