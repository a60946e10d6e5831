"""The tables are held against the audit trail: each kind of row that is altered, added or removed is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.audit.chain import ChainedEvent, ChainWalk, link
from semisilo.common.config import canonical_json
from semisilo.common.errors import StorageDamaged
from semisilo.common.measures.gain import PairedGain
from semisilo.common.measures.intervals import Interval
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.oversight.study_cards import CardSignature, note_card, note_signature
from semisilo.coordinator.ledger.oversight.table_check import compare_tables
from semisilo.coordinator.ledger.roster import LedgerRoster, SimulatedMember
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.ledger.tasks import add_site_evaluation
from tests.coordinator.ledger_fixture import Filled, fill_study, labelled_only, study_config
from tests.study_cards import CARD


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    """A study of six rounds with every kind of answer, a silo that is set aside, one revoked, one renewed."""
    made = fill_study(tmp_path / "hub", done=6, collecting=True)
    made.roster.add_certificate(silo="hospital-a", serial=77, not_after_unix=5e9)
    made.roster.set_aside("clinic-north", reason="noise")
    made.roster.revoke("hospital-b")
    classes = (ClassResult(images=4, correct=3), ClassResult(images=6, correct=5))
    add_site_evaluation(made.ledger, "hospital-a", SiteEvaluation(study="first", round=2, classes=classes),
                        now_unix=1.0)
    note_card(made.ledger, replace(CARD, study="first"), now_unix=1.0)
    note_signature(made.ledger, "first", replace(CARD, study="first").digest(), CardSignature(
        silo="hospital-a", identity=b"i" * 32, signature=b"s" * 64, unix=1.0))
    return made


def compared(ledger: Ledger) -> list[str]:
    return compare_tables(ledger, ChainWalk())


def test_an_honest_ledger_has_no_difference_whatever_has_happened(filled: Filled) -> None:
    ledger, roster = filled.ledger, filled.roster
    assert compared(ledger) == []
    ledger.set_study_state("first", StudyState.STOPPED, reason="enough")
    roll_back(ledger, "first", 2, operator="x", reason="y")
    assert compared(ledger) == []
    ledger.set_study_state("first", StudyState.STOPPED)
    ledger.requeue_study("first", study_config(rounds=9))
    ledger.refuse_study("second", "wrong")
    roster.take_back("clinic-north")
    roster.leave("clinic-north")
    roster.add_invitation(silo="hospital-b", token_hash=b"t" * 32, expires_unix=4e9)
    roster.use_invitation(b"t" * 32, key_fingerprint=b"f" * 32, certificate_der=b"c", serial=99, not_after_unix=4e9)
    assert compared(ledger) == []


def test_a_round_0_that_an_earlier_version_went_on_with_is_no_difference(tmp_path: Path) -> None:
    """It kept the row where a study was queued again before its first commit; a chain of that time is sound."""
    ledger = Ledger(tmp_path / "ledger.sqlite", waits=False)
    ledger.queue_study("a", study_config(rounds=3))
    ledger.move_study("a", StudyState.QUEUED, StudyState.PREPARING)
    ledger.open_round("a", 0, start_digest="", sample=(), phases=())
    ledger.set_study_state("a", StudyState.FAILED, reason="killed")
    with ledger.transaction() as db:  # as version 13 did
        ledger.set_study_state("a", StudyState.QUEUED)
        db.execute("UPDATE study SET ended_unix = NULL WHERE name = 'a'")
        ledger.event("study_requeued", study="a", config=study_config(rounds=3))
    assert compared(ledger) == []
    with ledger.transaction():
        ledger.set_round_state("a", 0, RoundState.EVALUATING, state_digest="s0", metrics={})
        ledger.commit_round("a", 0, metrics={})
    assert compared(ledger) == []
    ledger.close()


PAIRED = PairedGain(round=6, patients=0, intervals={"recall:a b:c": Interval(-0.25, 0.5)})


def test_what_a_study_was_better_by_is_told_and_is_gone_where_it_goes_back(filled: Filled) -> None:
    ledger = filled.ledger
    ledger.set_study_facts("first", paired=PAIRED)
    assert ledger.study("first").paired == PAIRED
    assert compared(ledger) == []
    ledger.query("UPDATE study SET paired_json = replace(paired_json, '0.5', '0.9')")
    assert [line.partition(" is ")[0] for line in compared(ledger)] == ["study first: its paired"]
    ledger.set_study_facts("first", paired=PAIRED)
    ledger.set_study_state("first", StudyState.PAUSED)
    roll_back(ledger, "first", 5, operator="", reason="")
    assert ledger.study("first").paired is None
    assert compared(ledger) == []


def test_what_other_settings_had_measured_is_gone_where_a_study_begins_anew_and_told_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", waits=False)
    ledger.queue_study("a", study_config(rounds=3))
    ledger.move_study("a", StudyState.QUEUED, StudyState.PREPARING)
    ledger.set_study_facts("a", baseline=labelled_only(0.5), paired=PAIRED)
    ledger.set_study_state("a", StudyState.FAILED)
    ledger.requeue_study("a", study_config(rounds=4))
    assert ledger.study("a").baseline is None
    assert ledger.study("a").paired is None
    assert compared(ledger) == []
    ledger.set_study_facts("a", baseline=labelled_only(0.6))
    assert compared(ledger) == []
    ledger.query("UPDATE study SET baseline_json = NULL")
    assert compared(ledger) == ["study a: its baseline is not there in the ledger, and there in the audit trail"]
    ledger.close()


def test_events_of_earlier_versions_that_tell_less_are_no_difference(filled: Filled) -> None:
    """They had no digests of long columns."""
    ledger = filled.ledger
    walked: list[ChainedEvent] = []
    ledger.walk_events(ChainWalk(), look=walked.append)
    for kind in ("1", "2"):
        ledger.query(f"DROP TRIGGER event_is_append_only_{kind}")
    chain = ""
    for each in walked:
        detail = {key: value for key, value in each.detail.items() if key not in ("confusion_digest", "classes_digest")}
        text = canonical_json(detail)
        chain = link(chain, number=each.number, unix=each.unix, kind=each.kind, study=each.study, detail_json=text)
        ledger.query("UPDATE event SET detail_json = ?, chain = ? WHERE number = ?", text, chain, each.number)
    ledger.query("UPDATE confusion SET counts_json = '[]'")
    assert compared(ledger) == []


def test_evaluations_that_stayed_when_an_earlier_version_went_back_are_no_difference(filled: Filled) -> None:
    ledger = filled.ledger
    before = tuple(ledger.query("SELECT * FROM site_evaluation")[0])
    ledger.set_study_state("first", StudyState.STOPPED)
    roll_back(ledger, "first", 1, operator="x", reason="y")
    assert compared(ledger) == []
    ledger.query("INSERT INTO site_evaluation VALUES (?, ?, ?, ?, ?, ?)", *before)
    assert compared(ledger) == []
    ledger.query("UPDATE site_evaluation SET classes_json = '[]'")
    assert any("number of images" in each for each in compared(ledger))


@pytest.mark.parametrize("how", ["set aside", "revoke", "leave"])
def test_a_silo_of_a_simulation_that_the_operator_ends_is_no_difference(tmp_path: Path, how: str) -> None:
    """The check ended with a KeyError."""
    ledger = Ledger(tmp_path / "ledger.sqlite", waits=False)
    roster = LedgerRoster(ledger)
    roster.admit([SimulatedMember(name="a", labelled_count=1, unlabelled_count=2)], version="1", methods=("semifl",))
    if how == "set aside":
        roster.set_aside("a", reason="x")
        roster.take_back("a")
        roster.set_aside("a", reason="x")
    else:
        roster.revoke("a") if how == "revoke" else roster.leave("a")
    assert compared(ledger) == []
    ledger.query("UPDATE silo SET revoked_unix = NULL, left_unix = NULL, set_aside_unix = NULL")
    assert len(compared(ledger)) == 1
    ledger.close()


def test_silos_of_a_simulation_are_no_difference(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", waits=False)
    LedgerRoster(ledger).admit([SimulatedMember(name="a", labelled_count=1, unlabelled_count=2)], version="1",
                               methods=("semifl",))
    assert compared(ledger) == []
    ledger.close()


@pytest.mark.parametrize(("sql", "said"), [
    ("UPDATE round SET state_digest = 'ab' WHERE number = 3", "round 3 of first: its model is ab in the ledger"),
    ("UPDATE round SET metrics_json = '{\"accuracy\":0.999}' WHERE number = 3", "round 3 of first: its metrics"),
    ("UPDATE round SET sample_json = '[]' WHERE number = 3", "round 3 of first: its silos"),
    ("UPDATE round SET state = 'failed' WHERE number = 3", "round 3 of first: its state is failed in the ledger, and"
                                                           " completed in the audit trail"),
    ("DELETE FROM round WHERE number = 7", "round 7 of first is in the audit trail and not in the ledger"),
    ("UPDATE declared_update SET digest = 'ab' WHERE task_id LIKE 'first/2/%/hospital-a'",
     "the update of hospital-a in round 2 of first: its digest is ab"),
    ("UPDATE declared_update SET size_bytes = 1 WHERE task_id LIKE 'first/2/%/hospital-a'", "its bytes is 1"),
    ("UPDATE declared_update SET example_count = 9 WHERE task_id LIKE 'first/2/%/hospital-a'", "example_count is 9"),
    ("DELETE FROM declared_update WHERE task_id LIKE 'first/2/%/hospital-a'", "is in the audit trail and not in the"),
    ("UPDATE declared_update SET accepted_unix = 1, update_id = 'made up' WHERE task_id LIKE 'first/2/%/hospital-a'",
     "update made up is in the ledger and not in the audit trail"),
    ("UPDATE certificate SET revoked_unix = NULL WHERE silo = 'hospital-b'",
     "certificate 3 of hospital-b: its revocation is not there in the ledger, and there in the audit trail"),
    ("UPDATE certificate SET not_after_unix = 9e9 WHERE serial = '77'", "certificate 77 of hospital-a: its end"),
    ("INSERT INTO certificate VALUES ('5', 'hospital-a', 1, 4e9, NULL)", "certificate 5 is in the ledger and not"),
    ("UPDATE certificate SET silo = 'clinic-north' WHERE serial = '77'", "certificate 77 of clinic-north: its silo"),
    ("UPDATE silo SET revoked_unix = NULL WHERE name = 'hospital-b'", "silo hospital-b: its revocation"),
    ("UPDATE silo SET set_aside_unix = NULL WHERE name = 'clinic-north'", "silo clinic-north: its being set aside"),
    ("UPDATE silo SET left_unix = 1 WHERE name = 'hospital-a'", "silo hospital-a: its leaving"),
    ("INSERT INTO silo (name, enrolled_unix) VALUES ('x', 1)", "silo x is in the ledger and not in the audit trail"),
    ("UPDATE study SET state = 'completed'", "study first: its state is completed in the ledger, and running in the"),
    ("UPDATE study SET config_json = '{}'", "study first: its settings"),
    ("UPDATE study SET baseline_json = '{}'", "study first: its baseline"),
    ("UPDATE study SET baseline_json = NULL", "study first: its baseline is not there in the ledger, and there in the"),
    ("UPDATE study SET frozen_json = '{}'", "study first: its frozen"),
    ("UPDATE study SET frozen_json = NULL", "study first: its frozen is not there in the ledger, and there in the"),
    ("UPDATE study SET numerics_json = '{}' WHERE name = 'second'", "study second: its numerics is there in the"),
    ("UPDATE study SET baseline_json = '{}' WHERE name = 'second'", "study second: its baseline is there in the"),
    ("UPDATE confusion SET counts_json = '[]' WHERE round = 3", "round 3 of first: its confusion"),
    ("DELETE FROM confusion WHERE round = 3", "round 3 of first: its confusion"),
    ("UPDATE declared_update SET metrics_json = '{}' WHERE task_id LIKE 'first/2/%/hospital-a'",
     "the update of hospital-a in round 2 of first: its metrics"),
    ("UPDATE task SET metrics_json = '{\"loss\":9.0}' WHERE round = 2 AND silo = 'hospital-a'",
     "the answer of hospital-a in round 2 of first: its metrics"),
    ("UPDATE task SET metrics_json = '{\"loss\":9.0}' WHERE state = 'abstained'", "its abstention of "),
    ("UPDATE task SET metrics_json = '{\"loss\":9.0}' WHERE state = 'refused'", "its metrics is {\"loss\":9.0} in the"),
    ("UPDATE task SET state = 'refused' WHERE state = 'abstained'", "its number of abstentions of "),
    ("UPDATE task SET update_id = (SELECT update_id FROM task WHERE round = 2 AND silo = 'hospital-a') WHERE round = 3"
     " AND silo = 'hospital-a'", "the answer of hospital-a in round 3 of first: its update is ('first', 3"),
    ("UPDATE site_evaluation SET classes_json = replace(classes_json, '\"correct\":3', '\"correct\":4')",
     "the evaluation of hospital-a of round 2 of first: its number of right ones is 9 in the ledger, and 8"),
    ("UPDATE site_evaluation SET classes_json = '{'", "its number of images is -1 in the ledger, and 10"),
    ("UPDATE site_evaluation SET classes_json = replace(classes_json, '\"auroc\":null', '\"auroc\":0.9')",
     "the evaluation of hospital-a of round 2 of first: its classes"),
    ("DELETE FROM site_evaluation", "the evaluation of hospital-a of round 2 of first is in the audit trail and"),
    ("UPDATE site_evaluation SET round = 3", "the evaluation of hospital-a of round 3 of first is in the ledger and"),
    ("UPDATE card_signature SET identity = x'00'", "the signature of hospital-a under the card of first: its key is"),
    ("UPDATE card_signature SET signature = x'00'", "the signature of hospital-a under the card of first: its bytes"),
    ("UPDATE card_signature SET silo = 'hospital-b'", "the signature of hospital-b under the card of first is in"),
    ("DELETE FROM card_signature", "the signature of hospital-a under the card of first is in the audit trail and not"),
    ("UPDATE study_card SET card_json = '{}'", "the card of first: its digest"),
    ("DELETE FROM study_card", "of first is in the audit trail and not in the ledger"),
])
def test_a_row_that_was_altered_is_named(filled: Filled, sql: str, said: str) -> None:
    filled.ledger.queue_study("second", study_config(rounds=2))
    filled.ledger.query("PRAGMA foreign_keys = OFF")
    assert compared(filled.ledger) == []
    filled.ledger.query(sql)
    found = compared(filled.ledger)
    assert any(said in problem for problem in found), found


def test_a_broken_chain_is_said_by_itself(filled: Filled) -> None:
    filled.ledger.query("DROP TRIGGER event_is_append_only_1")
    filled.ledger.query("UPDATE event SET detail_json = '{}' WHERE number = 9")
    with pytest.raises(StorageDamaged, match="event 9 was altered"):
        compared(filled.ledger)
