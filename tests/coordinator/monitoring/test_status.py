from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from semisilo.common.config import to_dict
from semisilo.coordinator.cli.status import render
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.oversight.study_cards import CardSignature, note_card, note_signature
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.secure_sums.roster import note_identity
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.monitoring.status import CardFacts, StatusFacts, gather
from semisilo.coordinator.monitoring.study_facts import open_round_facts
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.studies.queue import create_study
from tests.coordinator.ledger_fixture import (
    DENSE_BYTES,
    LABELLED_ONLY,
    SILOS,
    UNEVEN_ALONE,
    Filled,
    accuracy_after,
    fill_study,
    open_collecting_round,
    open_federation_with_silos,
    study_config,
    uneven_after,
)
from tests.study_cards import CARD


def _text(facts: StatusFacts, *, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    render(console, facts)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _live(*connected: str) -> LiveStatus:
    runtime = RuntimeState(study="first", round=5, rounds=9, activity="aggregating 2 updates", fraction=0.5)
    runtime.connected = dict.fromkeys(connected, 1)
    return LiveStatus.from_runtime(runtime)


@pytest.fixture
def running(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "fed", rounds=9, done=4, collecting=True)


def test_images_with_a_label_are_counted_apart_where_silos_have_any(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=3, labels_at_silo=True)
    facts = gather(filled.federation, filled.ledger, None)
    assert {(silo.labelled_count, silo.unlabelled_count) for silo in facts.silos} == {(50, 420)}
    assert facts.studies[0].labelled_only_accuracy is None
    lines = [line.split() for line in _text(facts).splitlines()]
    assert any(line[-3:] == ["images", "labelled", "version"] for line in lines)
    assert [line[-3:] for line in lines if line and line[0] in SILOS] == [["470", "50", "0.1.0"]] * 3
    without = fill_study(tmp_path / "other", rounds=3)
    assert " labelled  version" not in _text(gather(without.federation, without.ledger, None))


def test_the_open_round_says_for_whom_it_waits_and_until_when(running: Filled) -> None:
    opened = running.ledger.round("first", 5).opened_unix
    facts = gather(running.federation, running.ledger, None, now_unix=opened + 800)
    current = facts.current_round
    assert current is not None
    assert (current.number, current.rounds, current.phase, current.quorum) == (5, 9, "train", 2)
    assert current.tasks == {"open": 2, "updated": 1}
    assert current.waiting_for == SILOS[1:]
    assert current.deadline_unix == opened + 1800
    text = _text(facts, width=200)
    assert "deadline in 16 min 40 s" in text
    assert f"waiting for {SILOS[1]}, {SILOS[2]}" in text


def test_a_study_shows_its_accuracy_beside_the_labelled_only_line(running: Filled) -> None:
    study = gather(running.federation, running.ledger, None).studies[0]
    assert (study.name, study.state, study.method, study.round, study.rounds) == ("first", "running", "semifl", 5, 9)
    assert (study.accuracy, study.labelled_only_accuracy) == (accuracy_after(4), LABELLED_ONLY)
    assert study.seconds_left == pytest.approx(5 * 4 - 2, abs=1.0), "five rounds of 4 s, of which 2 s have passed"


def test_the_score_of_the_search_for_a_rate_does_not_read_like_what_labels_alone_reach(running: Filled) -> None:
    """Of trials that are a fraction as long, on half of the labels: of the demo 50 % beside 88 % on test images."""
    alone = running.ledger.study("first").baseline
    assert alone is not None
    running.ledger.set_study_facts("first", baseline=replace(alone, metrics={
        **alone.metrics, "crossfit_accuracy": 0.5, "crossfit_accuracy_error": 0.109}))
    lines = _text(gather(running.federation, running.ledger, None), width=200).splitlines()
    found = next(line for line in lines if line.startswith("accuracy, cross-validated"))
    assert found.split()[2:] == ["(shorter", "trainings,", "fewer", "labels)", "–", "50.0", "±", "10.9", "%"]


def test_how_many_have_signed_the_card_of_a_study_until_all_have(running: Filled) -> None:
    def text() -> str:
        return _text(gather(running.federation, running.ledger, None), width=200)

    members = LedgerRoster(running.ledger).members()
    assert "study card" not in text(), "it has none yet"
    digest = note_card(running.ledger, replace(CARD, study="first"), now_unix=1.0)
    for signed, silo in enumerate(members):
        assert f"first: {signed} of {len(members)} silos have signed its study card" in text()
        note_signature(running.ledger, "first", digest, CardSignature(silo=silo, identity=b"", signature=b"", unix=2.0))
    assert "study card" not in text()


def test_silos_whose_signature_is_not_kept_are_told_apart_from_those_that_have_yet_to_sign(running: Filled) -> None:
    note_card(running.ledger, replace(CARD, study="first"), now_unix=1.0)
    members = LedgerRoster(running.ledger).members()
    for number, silo in enumerate(members[:-1]):
        note_identity(running.ledger, silo, bytes([number]) * 32, now_unix=1.0)
    facts = gather(running.federation, running.ledger, None)
    assert facts.cards["first"] == CardFacts(signed=0, silos=len(members), without_key=1)
    assert "first task, but for 1 whose key the roster for secure sums does not have. Who:" in _text(facts, width=300)
    note_identity(running.ledger, members[0], b"k" * 32, now_unix=2.0)  # another key is a key
    note_identity(running.ledger, members[-1], b"l" * 32, now_unix=2.0)
    facts = gather(running.federation, running.ledger, None)
    assert facts.cards["first"].without_key == 0
    assert "first task. Who:" in _text(facts, width=300)


def test_a_silo_that_is_gone_does_not_count_among_those_that_have_signed(running: Filled) -> None:
    """Two had signed, one of them was revoked: 2 of 2, while the other one present had not."""
    digest = note_card(running.ledger, replace(CARD, study="first"), now_unix=1.0)
    for silo in SILOS[:2]:
        note_signature(running.ledger, "first", digest, CardSignature(silo=silo, identity=b"", signature=b"", unix=2.0))
    running.roster.revoke(SILOS[0])
    text = _text(gather(running.federation, running.ledger, None), width=300)
    assert "first: 1 of 2 silos have signed its study card" in text


def test_silos_are_revoked_connected_away_or_only_enrolled(running: Filled) -> None:
    running.roster.revoke(SILOS[2])
    running.roster.add_invitation(silo="late-one", token_hash=b"t" * 32, expires_unix=time.time() + 3600)
    states = {silo.name: silo.state for silo in gather(running.federation, running.ledger, _live(SILOS[0])).silos}
    assert states == {SILOS[0]: "connected", SILOS[1]: "away", SILOS[2]: "revoked"}
    facts = gather(running.federation, running.ledger, None)
    assert {silo.name: silo.state for silo in facts.silos}[SILOS[0]] == "joined", "nobody knows while serve is down"
    assert [invitation.silo for invitation in facts.invitations] == ["late-one"]


def test_a_silo_that_trains_is_working_between_its_reports_but_not_for_ever(running: Filled) -> None:
    runtime = RuntimeState(study="first", round=5, rounds=9)
    runtime.heard(SILOS[1], task_id="t", stage="training", fraction=0.42, text="")
    live = LiveStatus.from_runtime(runtime)
    facts = gather(running.federation, running.ledger, live)
    assert [(silo.state, silo.doing) for silo in facts.silos] == [("away", ""), ("working", "training 42 %"),
                                                                  ("away", "")]
    assert "training 42 %" in _text(facts)
    later = gather(running.federation, running.ledger, live, now_unix=time.time() + 60)
    assert [(silo.state, silo.doing) for silo in later.silos] == [("away", "")] * 3


def test_how_far_labels_alone_are_is_said_below_the_studies(running: Filled) -> None:
    assert "labels alone:" not in _text(gather(running.federation, running.ledger, None))
    with running.ledger.transaction() as db:
        db.execute("UPDATE study SET baseline_json = NULL")
    assert "first: labels alone: in work\n" in _text(gather(running.federation, running.ledger, None))
    runtime = RuntimeState(study="first", labels_alone="12 of 400 epochs, about 40 min 0 s left")
    facts = gather(running.federation, running.ledger, LiveStatus.from_runtime(runtime))
    assert "first: labels alone: 12 of 400 epochs, about 40 min 0 s left\n" in _text(facts)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_study_that_waits_in_the_queue_with_an_open_round_is_not_shown_as_the_one_that_runs(
        running: Filled, ahead: bool) -> None:
    """It failed in the middle of a round and was queued again while the next one ran."""
    ledger = running.ledger
    add_notice(ledger, NoticeKind.STANDS_OUT, study="first", round=5, silo=SILOS[0], text="in the first")
    ledger.set_study_state("first", StudyState.FAILED, reason="of the test")
    ledger.queue_study("second", study_config(rounds=3))
    for state in (StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING):
        ledger.set_study_state("second", state)
    open_collecting_round(ledger, "second", 1, SILOS)
    add_notice(ledger, NoticeKind.STANDS_OUT, study="second", round=1, silo=SILOS[0], text="in the second")
    ledger.requeue_study("first", ledger.study("first").config)
    if ahead:  # an earlier version left its place in the queue
        ledger.query("UPDATE study SET position = 0 WHERE name = 'first'")
    facts = gather(running.federation, ledger, None)
    assert facts.current_round is not None
    assert (facts.current_round.study, facts.current_round.number) == ("second", 1)
    assert [each.text for each in facts.notices] == ["in the second"]
    assert open_round_facts(ledger, ledger.study("first"), ledger.last_round("first")) is None
    ledger.fail_round(ledger.round("second", 1), reason="of the test")
    assert gather(running.federation, ledger, None).current_round is None


def test_costs_are_compared_with_dense_transfers(running: Filled) -> None:
    cost, = gather(running.federation, running.ledger, None).costs
    # Four rounds of 3 downloads with 3 + 3 + 2 + 3 updates; one of each so far in the fifth.
    assert cost.dense_bytes == (12 + 11 + 2) * DENSE_BYTES
    assert cost.share_of_dense == pytest.approx((cost.wire_down + cost.wire_up) / cost.dense_bytes)


def test_whether_serve_is_running_is_the_first_thing_said(running: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "serve is not running" in _text(gather(running.federation, running.ledger, None))
    with monkeypatch.context() as patch:
        patch.setattr(type(running.federation), "silenced", lambda self: "/hub: Read-only file system. Fix it.")
        found = gather(running.federation, running.ledger, None)
    assert found.running
    assert "serve is running, and cannot say here what it does: /hub: Read-only file system. Fix it." in _text(found)
    text = _text(gather(running.federation, running.ledger, _live(SILOS[0], SILOS[1])), width=120)
    assert "serve is running" in text
    assert "2 silos connected: aggregating 2 updates 50 %" in text


def test_it_fits_eighty_columns_apart_from_sentences(running: Filled) -> None:
    text = _text(gather(running.federation, running.ledger, _live(SILOS[0])))
    tables = [line for line in text.splitlines() if line.startswith(("first", "study", *SILOS, "silo", "cost", "wire"))]
    assert len(tables) >= 8
    assert max(len(line.rstrip()) for line in tables) <= 80


def test_silos_whose_long_names_end_differently_are_told_apart_where_there_is_room(tmp_path: Path) -> None:
    """All names ended after 23 letters, however wide the terminal was."""
    names = tuple(f"university-hospital-hamburg-radiology-{number}" for number in (1, 2))
    filled = open_federation_with_silos(tmp_path / "fed", silos=names)
    facts = gather(filled.federation, filled.ledger, None)
    assert all(f"{name}  joined" in _text(facts, width=110) for name in names)
    assert max(map(len, (line.rstrip() for line in _text(facts).splitlines() if line.startswith("university")))) <= 80


def test_an_empty_federation_says_what_to_do_next(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "fed", silos=())
    text = _text(gather(filled.federation, filled.ledger, None))
    assert "coordinator new NAME" in text
    assert "coordinator invite NAME" in text
    for name in ("first", "second"):
        create_study(filled.federation, name)
    text = " ".join(_text(gather(filled.federation, filled.ledger, None)).split())
    assert "No study is queued yet. There is studies/first/study.toml, and 1 more: edit it, then coordinator queue" \
        in text


def test_a_failed_study_shows_its_reason(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "fed")
    filled.ledger.queue_study("bad", study_config(rounds=3))
    filled.ledger.set_study_state("bad", StudyState.FAILED, reason="data/labelled: no such folder.\x1b[31m")
    facts = gather(filled.federation, filled.ledger, None)
    assert facts.current_round is None
    text = _text(facts)
    assert "bad: data/labelled: no such folder." in text
    assert f"Then queue it again: coordinator queue bad --folder {filled.federation.folder}\n" in text
    assert "\x1b" not in text


def test_proposed_commands_name_the_folder_where_they_would_not_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                        ) -> None:
    filled = open_federation_with_silos(tmp_path / "my fed")
    monkeypatch.delenv("SEMISILO_FEDERATION", raising=False)

    def said() -> str:
        return _text(gather(filled.federation, filled.ledger, None)).partition("Start it: ")[2].splitlines()[0]
    assert said() == f"coordinator serve --folder '{tmp_path}/my fed'"
    monkeypatch.setenv("SEMISILO_FEDERATION", str(filled.federation.folder))
    assert said() == "coordinator serve"
    monkeypatch.delenv("SEMISILO_FEDERATION")
    monkeypatch.chdir(filled.federation.folder)
    assert said() == "coordinator serve"


def test_the_facts_are_json(running: Filled) -> None:
    facts = gather(running.federation, running.ledger, _live(SILOS[0]))
    again = json.loads(json.dumps(to_dict(facts)))
    assert again["federation"] == "lung-federation"
    assert again["running"] is True
    assert again["live"]["connected"] == [SILOS[0]]
    assert again["current_round"]["waiting_for"] == list(SILOS[1:])


@pytest.mark.slow
def test_status_needs_neither_torch_nor_matplotlib() -> None:
    code = ("import sys, semisilo.coordinator.monitoring.status, semisilo.coordinator.rounds.live_file\n"
            "import semisilo.coordinator.monitoring.terminal, semisilo.coordinator.report.report\n"
            "print([name for name in ('torch', 'matplotlib') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_table_of_studies_has_their_measure_where_it_is_another_than_accuracy(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=9, done=4, collecting=True, measure="balanced_accuracy")
    facts = gather(filled.federation, filled.ledger, None)
    study = facts.studies[0]
    assert (study.test_score, study.labels_alone_test_score) == (
        uneven_after(4)["balanced_accuracy"], UNEVEN_ALONE["balanced_accuracy"])
    head, row = (line.split() for line in _text(facts).splitlines() if "labelled only" in line or "semifl" in line)
    assert "balanced" in head
    assert row[4:8] == ["76.6", "%", "61.7", "%"]


def test_the_measure_of_a_study_by_accuracy_is_its_accuracy(running: Filled) -> None:
    study = gather(running.federation, running.ledger, None).studies[0]
    assert (study.test_score, study.labels_alone_test_score) == (study.accuracy, study.labelled_only_accuracy)
