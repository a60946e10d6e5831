"""What needs a person, from ledgers as the engine leaves them."""

from __future__ import annotations

import shutil
import time
from collections import namedtuple
from pathlib import Path

import pytest

from semisilo.common.methods.contract import Phase
from semisilo.coordinator.federation.authority import create_authority, ensure_coordinator_certificate
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.monitoring.alerts.open_alerts import Alert, AlertKind, Severity, open_alerts
from semisilo.coordinator.rounds.live_file import LiveStatus
from tests.coordinator.ledger_fixture import fill_study, open_federation_with_silos, study_config
from tests.coordinator.rounds.test_refusals import refused_study

DAY = 86400.0


def found(ledger: Ledger, *, live: LiveStatus | None = None, folder: Path | None = None, later: float = 0.0
          ) -> dict[AlertKind, Alert]:
    alerts = open_alerts(ledger, live, folder=folder, now_unix=time.time() + later)
    assert len({each.id for each in alerts}) == len(alerts)
    return {each.kind: each for each in alerts}


def living(**said: str) -> LiveStatus:
    return LiveStatus(pid=1, unix=time.time(), study="first", connected=("clinic-north", "hospital-a", "hospital-b"),
                      **said)


def test_a_study_that_runs_well_needs_nobody(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=12, done=7, collecting=True)  # the refusal of round 6 was not the last
    assert found(filled.ledger, live=living()) == {}


def test_a_finished_study_is_good_to_know_for_a_day(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=2)
    alert = found(filled.ledger)[AlertKind.STUDY_FINISHED]
    assert (alert.severity, alert.study, alert.title) == (Severity.INFO, "first", "first is complete")
    assert "round 2 has an accuracy of" in alert.text
    assert found(filled.ledger, later=1.01 * DAY) == {}


def test_a_failed_study_presses_for_a_week(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3, complete=False)
    filled.ledger.set_study_state("first", StudyState.FAILED, reason="the disk\nis full")
    alert = found(filled.ledger)[AlertKind.STUDY_FAILED]
    assert (alert.severity, alert.text) == (Severity.CRITICAL, "the disk is full")
    assert "coordinator queue first" in alert.remedy
    assert found(filled.ledger, later=7.01 * DAY) == {}


def test_a_study_that_paused_by_itself_and_the_silos_that_refuse_are_named(tmp_path: Path) -> None:
    filled = refused_study(tmp_path / "hub")
    alerts = open_alerts(filled.ledger, None, folder=None, now_unix=time.time())
    assert [(each.kind, each.silo) for each in alerts] == [
        (AlertKind.STUDY_PAUSED, ""), *((AlertKind.SILO_REFUSES, each) for each in
                                        ("clinic-north", "hospital-a", "hospital-b"))]
    assert "METHOD_NOT_PERMITTED" in alerts[1].text


def test_one_that_an_operator_paused_needs_nobody(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3, done=1, complete=False)
    filled.ledger.set_study_state("first", StudyState.PAUSED)
    assert found(filled.ledger) == {}


def test_a_phase_past_its_deadline_says_for_whom_it_waits(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3, done=1, collecting=True)
    assert found(filled.ledger, live=living(), later=1790) == {}
    alert = found(filled.ledger, live=living(), later=1810)[AlertKind.QUORUM_MISSING]
    assert alert.title == "Round 2 of first waits for its quorum"
    assert alert.text.startswith("2 answers are needed; hospital-a, hospital-b have not answered.")


def test_a_study_that_waits_for_silos_is_listed(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "hub")
    filled.ledger.queue_study("first", study_config(rounds=3))
    assert found(filled.ledger) == {}, "what is queued waits for its turn"
    filled.ledger.set_study_state("first", StudyState.PREPARING)
    filled.ledger.set_study_state("first", StudyState.WAITING)
    says = living(reason="waiting_for_silos", text="2 of 3 silos have joined")
    assert found(filled.ledger, live=says)[AlertKind.STUDY_WAITS].text == "2 of 3 silos have joined"


def test_rounds_that_failed_one_after_another_are_one_thing_until_a_round_is_committed(tmp_path: Path) -> None:
    ledger = fill_study(tmp_path / "hub", rounds=6, done=1, complete=False).ledger
    ids = set()
    for number in (2, 3):
        row = ledger.open_round("first", number, start_digest="", sample=(), phases=(Phase("train"),))
        ledger.fail_round(row, reason="no quorum within 2 d")
        alert = found(ledger)[AlertKind.ROUNDS_FAILED]
        ids.add(alert.id)
    assert alert.title == "Rounds 2 to 3 of first have failed"
    assert len(ids) == 1
    ledger.open_round("first", 4, start_digest="", sample=(), phases=(Phase("train"),))
    assert AlertKind.ROUNDS_FAILED in found(ledger), "the open round says nothing yet"
    ledger.set_round_state("first", 4, RoundState.EVALUATING, state_digest="d")
    ledger.commit_round("first", 4, metrics={})
    assert AlertKind.ROUNDS_FAILED not in found(ledger)


def test_silos_that_are_silent_or_stand_out_or_whose_certificate_ends_are_listed(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=6, done=2, collecting=True)
    filled.roster.silent("hospital-b", heard_unix=1_000_000_000.0)
    add_notice(filled.ledger, NoticeKind.STANDS_OUT, silo="hospital-a", text="its norm is 31", study="first", round=2)
    with filled.ledger.transaction() as db:
        db.execute("UPDATE certificate SET not_after_unix = ? WHERE silo = 'clinic-north'", (time.time() + 4 * DAY,))
    there = LiveStatus(pid=1, unix=time.time(), connected=("clinic-north", "hospital-a"))
    alerts = found(filled.ledger, live=there)
    assert alerts.keys() == {AlertKind.SILO_SILENT, AlertKind.SILO_STANDS_OUT, AlertKind.SILO_CERTIFICATE}
    assert "coordinator set-aside hospital-b" in alerts[AlertKind.SILO_SILENT].remedy
    assert alerts[AlertKind.SILO_STANDS_OUT].text == "hospital-a, round 2: its norm is 31"
    assert alerts[AlertKind.SILO_CERTIFICATE].silo == "clinic-north"
    assert AlertKind.SILO_STANDS_OUT not in found(filled.ledger, later=1.1 * DAY)


def test_what_the_system_refuses_is_passed_on(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=6, done=2, collecting=True)
    alert = found(filled.ledger, live=living(trouble="No space left on device."))[AlertKind.SYSTEM_TROUBLE]
    assert (alert.severity, alert.text) == (Severity.CRITICAL, "No space left on device.")


def test_the_hubs_certificates_and_its_disk_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100e9, 94e9, 6e9))
    filled = open_federation_with_silos(tmp_path / "hub", silos=())
    folder = filled.federation.folder
    create_authority(folder / "authority", "lung-federation", now=time.time())
    ensure_coordinator_certificate(folder / "authority", now=time.time())
    assert found(filled.ledger, folder=folder) == {}
    assert found(filled.ledger, folder=folder, later=75 * DAY) == {}
    assert "coordinator ends on" in found(filled.ledger, folder=folder, later=77 * DAY)[AlertKind.HUB_CERTIFICATE].title
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100e9, 96e9, 4e9))
    alert = found(filled.ledger, folder=folder)[AlertKind.DISK_LOW]
    assert alert.text == "4.00 GB of 100.00 GB are free at the federation folder."
