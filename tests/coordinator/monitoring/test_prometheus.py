"""/metrics: what Prometheus reads is what the ledger says, quickly, and nobody outside can make it grow."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from semisilo.common.errors import known_codes
from semisilo.coordinator.federation.authority import create_authority
from semisilo.coordinator.federation.backup import back_up
from semisilo.coordinator.ledger.costs import costs_of
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import StudyState, TaskState
from semisilo.coordinator.monitoring.ledger_metrics import NOT_ACCEPTED, OTHER_CODE
from semisilo.coordinator.monitoring.prometheus import FORMER, OVERHEAD, Exposition
from semisilo.coordinator.rounds.live_file import LiveSilo, LiveStatus
from semisilo.coordinator.rounds.runtime import RuntimeState
from tests.coordinator.ledger_fixture import (
    LABELLED_ONLY,
    SILOS,
    Filled,
    accuracy_after,
    fill_study,
    open_federation_with_silos,
)


def exposition(filled: Filled, live: LiveStatus | None = None) -> Exposition:
    return Exposition(filled.federation, filled.ledger, live=lambda: live)


def scrape(filled: Filled, live: LiveStatus | None = None) -> dict[str, Metric]:
    text = exposition(filled, live).text().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample of that name and those labels, among others that it may have."""
    found = [sample.value for family in families.values() for sample in family.samples
             if sample.name == name and labels.items() <= sample.labels.items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "fed", rounds=8, done=7, collecting=True)


def test_rounds_accuracy_tasks_and_refusals_are_those_of_the_ledger(filled: Filled) -> None:
    found = scrape(filled)
    assert value(found, "semisilo_study_state", study="first", state="running") == 1
    assert value(found, "semisilo_study_state", study="first", state="completed") == 0
    assert value(found, "semisilo_study_round", study="first") == 8
    assert value(found, "semisilo_study_rounds_planned", study="first") == 8
    assert value(found, "semisilo_study_accuracy_ratio") == accuracy_after(7)
    assert value(found, "semisilo_study_labelled_only_accuracy_ratio") == LABELLED_ONLY
    assert value(found, "semisilo_rounds_total", state="completed") == 7
    assert value(found, "semisilo_round_duration_seconds_count") == 7
    assert value(found, "semisilo_round_duration_seconds_sum") == pytest.approx(28, abs=0.5)
    assert value(found, "semisilo_round_last_duration_seconds") == pytest.approx(4, abs=0.1)
    assert value(found, "semisilo_tasks_total", outcome="updated") == 7 * len(SILOS) - 3 + 1
    assert value(found, "semisilo_tasks_total", outcome="abstained") == 1
    assert value(found, "semisilo_tasks_total", outcome="expired") == 1
    assert value(found, "semisilo_task_refusals_total", code="METHOD_NOT_PERMITTED") == 1
    assert value(found, "semisilo_updates_total", result="accepted") == 7 * len(SILOS) - 2
    assert value(found, "semisilo_phase_tasks", state="open") == len(SILOS) - 1
    deadline = filled.ledger.phase("first", 8, 0).deadline_unix
    assert value(found, "semisilo_phase_deadline_timestamp_seconds") == pytest.approx(deadline)
    assert value(found, "semisilo_silo_label_ratio", silo=SILOS[0]) == 0.9


def test_a_phase_of_a_paused_study_has_no_deadline_that_could_pass(filled: Filled) -> None:
    filled.ledger.set_study_state("first", StudyState.PAUSED)
    found = scrape(filled)
    assert not found["semisilo_phase_deadline_timestamp_seconds"].samples
    assert value(found, "semisilo_phase_tasks", state="open") == len(SILOS) - 1
    filled.ledger.set_study_state("first", StudyState.RUNNING)
    assert scrape(filled)["semisilo_phase_deadline_timestamp_seconds"].samples


def test_the_last_backup_is_there_once_there_is_one(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=2, done=2)
    create_authority(filled.federation.authority, filled.federation.name, now=time.time())
    assert not any(name.startswith("semisilo_last_backup") for name in scrape(filled))
    back_up(filled.federation, tmp_path / "out", now=1_800_000_000.0)
    assert value(scrape(filled), "semisilo_last_backup_timestamp_seconds") == 1_800_000_000.0


def test_bytes_add_up_to_those_of_the_ledger_by_direction_kind_and_silo(filled: Filled) -> None:
    found = scrape(filled)
    costs = costs_of(filled.ledger, "first")
    for direction in ("down", "up"):
        for kind in ("payload", "message", "wire"):
            for silo in (*SILOS, ""):
                wanted = sum(cost.bytes for cost in costs
                             if (cost.direction, cost.kind, cost.silo) == (direction, kind, silo))
                if wanted:
                    assert value(found, "semisilo_bytes_total", direction=direction, kind=kind,
                                 silo=silo or OVERHEAD) == wanted


def test_a_silo_that_is_revoked_has_no_series_and_its_bytes_stay(filled: Filled) -> None:
    before = scrape(filled)
    wire = value(before, "semisilo_bytes_total", direction="up", kind="wire", silo=SILOS[0])
    filled.roster.revoke(SILOS[0])
    after = scrape(filled)
    labelled = {sample.labels.get("silo") for family in after.values() for sample in family.samples}
    assert SILOS[0] not in labelled
    assert value(after, "semisilo_bytes_total", direction="up", kind="wire", silo=FORMER) == wire
    assert value(after, "semisilo_silos", state="revoked") == 1


def test_codes_that_a_silo_makes_up_are_one_series(filled: Filled) -> None:
    before = scrape(filled)
    for silo in SILOS[1:]:
        task = filled.ledger.open_task(silo)
        assert task is not None
        filled.ledger.close_task(task, TaskState.REFUSED, reason=f"MADE_UP_BY_{silo}: x")
    after = scrape(filled)
    codes = {sample.labels["code"] for sample in after["semisilo_task_refusals"].samples}
    assert codes == {*known_codes(), NOT_ACCEPTED, OTHER_CODE}
    assert value(after, "semisilo_task_refusals_total", code=OTHER_CODE) == len(SILOS) - 1
    assert sum(len(family.samples) for family in after.values()) == sum(
        len(family.samples) for family in before.values())


def test_a_first_refusal_is_an_increase_and_studies_that_are_over_have_no_series_of_nothing(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=8, done=7, complete=False)
    assert value(scrape(filled), "semisilo_task_refusals_total", code="BAD_DATA") == 0
    filled.ledger.set_study_state("first", StudyState.STOPPED)
    over = scrape(filled)["semisilo_task_refusals"].samples
    assert [(sample.labels["code"], sample.value) for sample in over] == [("METHOD_NOT_PERMITTED", 1)]


def test_no_counter_falls_when_a_study_goes_back(tmp_path: Path) -> None:
    """Prometheus takes what falls for a restart, and all that is left for new: every alert about it would fire."""
    filled = fill_study(tmp_path / "fed", rounds=12, done=9, complete=False)
    add_notice(filled.ledger, NoticeKind.STANDS_OUT, study="first", round=8, silo=SILOS[0], text="far away")
    filled.ledger.set_study_state("first", StudyState.PAUSED)
    exposed = exposition(filled)

    def counters() -> dict[tuple[str, str], float]:
        return {(sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
                for family in text_string_to_metric_families(exposed.text().decode())
                if family.type in ("counter", "summary") and not family.name.startswith("process")
                for sample in family.samples}

    before = counters()
    roll_back(filled.ledger, "first", 4, operator="ann", reason="")
    after = counters()
    assert before.keys() == after.keys()
    assert {key: (was, after[key]) for key, was in before.items() if after[key] < was - 1e-6} == {}
    assert after["semisilo_rounds_total", '{"state": "completed", "study": "first"}'] == 9
    roll_back(filled.ledger, "first", 2, operator="ann", reason="")
    assert counters() == after


def test_of_a_silo_that_was_set_aside_it_is_said(filled: Filled) -> None:
    """Whoever watches for silos that are away need not hear of it."""
    roster = LedgerRoster(filled.ledger)
    roster.set_aside(SILOS[0], reason="noise")
    found = scrape(filled)
    assert [value(found, "semisilo_silo_set_aside", silo=silo) for silo in SILOS[:2]] == [1, 0]
    roster.take_back(SILOS[0])
    assert value(scrape(filled), "semisilo_silo_set_aside", silo=SILOS[0]) == 0


def test_who_is_connected_and_works_comes_from_the_live_state(filled: Filled) -> None:
    now = time.time()
    live = LiveStatus(pid=1, unix=now, connected=(SILOS[0],),
                      silos={SILOS[1]: LiveSilo(stage="training", fraction=0.5, unix=now)})
    found = scrape(filled, live)
    assert value(found, "semisilo_serving") == 1
    assert value(found, "semisilo_silos", state="working") == 1
    assert value(found, "semisilo_silos", state="connected") == 1
    assert value(found, "semisilo_silos", state="away") == len(SILOS) - 2
    assert value(found, "semisilo_silo_connected", silo=SILOS[0]) == 1
    assert value(found, "semisilo_silo_connected", silo=SILOS[2]) == 0
    nobody = scrape(filled, None)
    assert value(nobody, "semisilo_serving") == 0
    assert value(nobody, "semisilo_silos", state="joined") == len(SILOS), "nobody knows more while serve is down"
    assert value(nobody, "semisilo_silos", state="away") == 0
    seen = {row.name: row.seen_unix for row in filled.roster.silos()}
    assert value(found, "semisilo_silo_last_seen_timestamp_seconds", silo=SILOS[0]) == pytest.approx(now, abs=60)
    assert value(found, "semisilo_silo_last_seen_timestamp_seconds", silo=SILOS[1]) == pytest.approx(now)
    assert value(found, "semisilo_silo_last_seen_timestamp_seconds", silo=SILOS[2]) == pytest.approx(seen[SILOS[2]])


def test_the_machine_and_the_certificates_are_watched(filled: Filled) -> None:
    from semisilo.coordinator.federation.authority import create_authority, ensure_coordinator_certificate

    now = time.time()
    shutil.rmtree(filled.federation.authority)
    create_authority(filled.federation.authority, "lung-federation", now=now)
    ensure_coordinator_certificate(filled.federation.authority, now)
    filled.federation.spool.mkdir(exist_ok=True)
    (filled.federation.spool / "a").write_bytes(b"x" * 1234)
    found = scrape(filled)
    assert value(found, "semisilo_spool_bytes") == 1234
    assert value(found, "semisilo_disk_free_bytes") > 0
    assert value(found, "process_resident_memory_bytes") > 10**6
    assert value(found, "process_cpu_seconds_total") > 0
    days = (value(found, "semisilo_certificate_expiry_timestamp_seconds", certificate="coordinator") - now) / 86400
    assert 89 < days < 91
    ends = value(found, "semisilo_certificate_expiry_timestamp_seconds", certificate="authority")
    assert ends > now + 9 * 365 * 86400
    assert value(found, "semisilo_silo_certificate_expiry_timestamp_seconds", silo=SILOS[0]) == 4e9


def test_open_invitations_are_counted_until_they_are_used_or_over(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "fed")
    assert value(scrape(filled), "semisilo_invitations_open") == 0
    filled.roster.add_invitation(silo="new", token_hash=b"t" * 32, expires_unix=time.time() + 100)
    filled.roster.add_invitation(silo="old", token_hash=b"o" * 32, expires_unix=time.time() - 1)
    assert value(scrape(filled), "semisilo_invitations_open") == 1


def test_an_empty_federation_can_be_scraped_and_so_can_one_whose_folder_lacks_files(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "fed", silos=())
    shutil.rmtree(filled.federation.spool)
    found = scrape(filled, LiveStatus.from_runtime(RuntimeState()))
    assert value(found, "semisilo_spool_bytes") == 0
    assert "semisilo_study_round" not in {sample.name for family in found.values() for sample in family.samples}


def test_only_the_last_studies_that_ended_have_series(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=1)
    for number in range(30):
        filled.ledger.refuse_study(f"broken{number:02}", "no such folder")
    shown = {sample.labels["study"] for sample in scrape(filled)["semisilo_study_state"].samples}
    assert shown == {f"broken{number:02}" for number in range(10, 30)}


@pytest.mark.slow
def test_200_silos_and_100_rounds_take_less_than_a_few_moments(tmp_path: Path) -> None:
    silos = tuple(f"hospital-{number:03}" for number in range(200))
    filled = fill_study(tmp_path / "fed", rounds=101, done=1, complete=False, silos=silos)
    spec = json.dumps({"padding": "x" * 1500})
    metrics = json.dumps({"label_ratio": 0.5, "loss": 0.1, **{f"pseudo_labels/{k}": 1.0 for k in range(10)}})
    now = time.time()
    with filled.ledger.transaction() as db:
        db.executemany("INSERT INTO round VALUES ('first', ?, 'completed', 0, '[]', ?, ?, ?, '', '', ?, '')",
                       [(number, json.dumps(silos), now + number, now + number + 1, '{"accuracy": 0.9}')
                        for number in range(2, 101)])
        db.executemany(
            "INSERT INTO task VALUES (?, 'first', ?, 0, ?, ?, ?, ?, ?, ?, NULL, ?, ?)",
            [(f"{number}/{silo}", number, silo, "refused" if number % 10 == 0 else "updated", spec, now, now, now,
              "BAD_DATA: x", metrics) for number in range(2, 101) for silo in silos])
        db.executemany("INSERT INTO cost VALUES ('first', ?, 'train', ?, 'up', 'wire', 'tcp', 7, 1, 0)",
                       [(number, silo) for number in range(2, 101) for silo in silos])
    metrics_page = exposition(filled)
    metrics_page.text()
    took = []
    for _ in range(5):
        began = time.process_time()  # of this process: what others do on a busy machine is not our doing
        text = metrics_page.text()
        took.append(time.process_time() - began)
    found = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert value(found, "semisilo_tasks_total", outcome="refused") == 2000
    assert value(found, "semisilo_task_refusals_total", code="BAD_DATA") == 2000
    assert min(took) < 0.5, took  # some 0.01 s on an idle machine
    assert len(text) < 300_000


def test_names_follow_the_conventions_of_prometheus(filled: Filled, tmp_path: Path) -> None:
    found = scrape(filled)
    for family in found.values():
        assert family.name.startswith(("semisilo_", "process_")), family.name
        assert family.documentation, family.name
        assert (family.type == "counter") == any(sample.name.endswith("_total") for sample in family.samples) or \
            not family.samples
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    checked = subprocess.run([promtool, "check", "metrics"], input=exposition(filled).text(), capture_output=True,
                             timeout=300, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_the_studys_measure_is_served_by_name_beside_its_accuracy(tmp_path: Path) -> None:
    found = scrape(fill_study(tmp_path / "fed", rounds=8, done=7, measure="recall:9"))
    assert value(found, "semisilo_study_measure_ratio", measure="recall:9") == 0.73
    assert value(found, "semisilo_study_labelled_only_measure_ratio", measure="recall:9") == 0.7
    assert value(found, "semisilo_study_accuracy_ratio") == accuracy_after(7)
