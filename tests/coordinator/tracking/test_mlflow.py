"""An MLflow run for each study, in a folder that MLflow keeps itself: made once, told every round, ended with files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import Unreachable
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.tracking.follow import artefacts_of
from semisilo.coordinator.tracking.mlflow_runs import MlflowRuns
from tests.coordinator.ledger_fixture import LABELLED_ONLY, SILOS, Filled, accuracy_after, fill_study
from tests.coordinator.tracking.test_tensorboard import commit

pytestmark = [pytest.mark.skipif(find_spec("mlflow") is None, reason="the extra mlflow is not installed"),
              pytest.mark.usefixtures("pictures_left_blank")]
"""MLflow is imported by the tests: it takes seconds, which every process of pytest would spend only to find them."""


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "fed", rounds=5, done=3, complete=False)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def target(tmp_path: Path) -> str:
    return (tmp_path / "mlruns").as_uri()


def runs_of(filled: Filled, tmp_path: Path) -> MlflowRuns:
    return MlflowRuns(filled.ledger, target(tmp_path), experiment="lung", federation="lung-federation")


def client(tmp_path: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=target(tmp_path))


def all_runs(tmp_path: Path) -> list[Any]:
    found = client(tmp_path)
    return list(found.search_runs([found.get_experiment_by_name("lung").experiment_id]))


def tell(filled: Filled, tmp_path: Path) -> int:
    """As a process that has just started would."""
    return runs_of(filled, tmp_path).catch_up("first", artefacts=artefacts_of(filled.federation, filled.ledger))


def history(tmp_path: Path, name: str) -> list[tuple[int, float]]:
    run, = all_runs(tmp_path)
    return sorted((entry.step, entry.value) for entry in client(tmp_path).get_metric_history(run.info.run_id, name))


@pytest.mark.slow
def test_a_run_has_the_settings_and_every_round_with_its_number(filled: Filled, tmp_path: Path) -> None:
    assert tell(filled, tmp_path) == 4
    run, = all_runs(tmp_path)
    assert run.info.run_name == "first"
    assert run.info.status == "RUNNING"
    assert run.data.params["method.settings.confidence_threshold"] == "0.95"
    assert run.data.params["method.name"] == "semifl"
    assert run.data.tags["semisilo.federation"] == "lung-federation"
    assert history(tmp_path, "model/accuracy") == [(step, pytest.approx(accuracy_after(step))) for step in range(4)]
    assert history(tmp_path, "model/labelled_only_accuracy")[0][1] == pytest.approx(LABELLED_ONLY)
    assert [step for step, _ in history(tmp_path, f"label_ratio/{SILOS[0]}")] == [1, 2, 3]
    closed = filled.ledger.round("first", 3).closed_unix
    entry = max(client(tmp_path).get_metric_history(run.info.run_id, "model/accuracy"), key=lambda each: each.step)
    assert closed is not None
    assert entry.timestamp == round(1000 * closed)


@pytest.mark.slow
def test_the_line_of_labels_alone_that_comes_later_is_told_of_the_rounds_before_it(
        filled: Filled, tmp_path: Path) -> None:
    baseline = filled.ledger.study("first").baseline
    with filled.ledger.transaction() as db:
        db.execute("UPDATE study SET baseline_json = NULL")
    runs, artefacts = runs_of(filled, tmp_path), artefacts_of(filled.federation, filled.ledger)
    runs.catch_up("first", artefacts=artefacts)
    assert history(tmp_path, "model/labelled_only_accuracy") == []
    filled.ledger.set_study_facts("first", baseline=baseline)
    line = [(step, pytest.approx(LABELLED_ONLY)) for step in range(4)]
    for _ in range(2):
        runs.catch_up("first", artefacts=artefacts)
        assert history(tmp_path, "model/labelled_only_accuracy") == line
    tell(filled, tmp_path)  # another process
    assert history(tmp_path, "model/labelled_only_accuracy") == line


def test_a_restart_goes_on_with_the_same_run_and_tells_no_round_twice(filled: Filled, tmp_path: Path) -> None:
    assert tell(filled, tmp_path) == 4
    assert tell(filled, tmp_path) == 0
    commit(filled, 4)
    assert tell(filled, tmp_path) == 1
    assert [step for step, _ in history(tmp_path, "model/accuracy")] == [0, 1, 2, 3, 4]


def test_a_kill_between_making_the_run_and_noting_it_makes_no_second_one(filled: Filled, tmp_path: Path) -> None:
    tell(filled, tmp_path)
    filled.ledger.query("DELETE FROM tracking")
    tell(filled, tmp_path)
    assert len(all_runs(tmp_path)) == 1


def test_the_end_of_a_study_ends_its_run_with_the_report_and_the_model(filled: Filled, tmp_path: Path) -> None:
    tell(filled, tmp_path)
    for number in (4, 5):
        commit(filled, number)
    (filled.federation.studies / "first").mkdir(exist_ok=True)
    (filled.federation.studies / "first" / "model.safetensors").write_bytes(b"model")
    filled.ledger.set_study_state("first", StudyState.COMPLETED)
    assert tell(filled, tmp_path) == 2
    run, = all_runs(tmp_path)
    assert run.info.status == "FINISHED"
    ended = filled.ledger.study("first").ended_unix
    assert ended is not None
    assert run.info.end_time == round(1000 * ended)
    files = client(tmp_path)
    assert {entry.path for entry in files.list_artifacts(run.info.run_id)} == {"report", "model.safetensors"}
    assert "report/index.html" in {entry.path for entry in files.list_artifacts(run.info.run_id, "report")}
    assert tell(filled, tmp_path) == 0


def test_a_study_that_failed_says_why_and_goes_on_in_the_same_run(filled: Filled, tmp_path: Path) -> None:
    filled.ledger.set_study_state("first", StudyState.FAILED, reason="the disk is full")
    tell(filled, tmp_path)
    run, = all_runs(tmp_path)
    assert (run.info.status, run.data.tags["semisilo.reason"]) == ("FAILED", "the disk is full")
    filled.ledger.requeue_study("first", filled.ledger.study("first").config)
    filled.ledger.set_study_state("first", StudyState.PREPARING)
    filled.ledger.set_study_state("first", StudyState.WAITING)
    filled.ledger.set_study_state("first", StudyState.RUNNING)
    commit(filled, 4)
    tell(filled, tmp_path)
    run, = all_runs(tmp_path)
    assert run.info.status == "RUNNING"
    assert [step for step, _ in history(tmp_path, "model/accuracy")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ended", [False, True])
def test_a_study_that_goes_back_goes_on_in_another_run_and_the_one_before_says_so(filled: Filled, tmp_path: Path,
                                                                                  ended: bool) -> None:
    """One run had two values of every round that was done again, and could end with one that was gone."""
    if ended:
        filled.ledger.set_study_state("first", StudyState.STOPPED)
    tell(filled, tmp_path)
    before, = all_runs(tmp_path)
    if not ended:
        filled.ledger.set_study_state("first", StudyState.PAUSED)
    roll_back(filled.ledger, "first", 2, operator="mona", reason="noise")
    assert tell(filled, tmp_path) == 3  # rounds 0 to 2
    for state in (StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING):
        filled.ledger.set_study_state("first", state)
    commit(filled, 3)
    assert tell(filled, tmp_path) == 1
    filled.ledger.query("DELETE FROM tracking")  # a kill before it was noted
    tell(filled, tmp_path)
    old, new = sorted(all_runs(tmp_path), key=lambda run: run.info.run_id != before.info.run_id)
    assert (old.info.run_id, old.info.status) == (before.info.run_id, "KILLED")
    assert old.data.tags["semisilo.reason"].endswith("(mona): round 3 no longer counts; noise")
    assert old.data.tags["semisilo.continued_in"] == new.info.run_id
    assert (new.info.run_name, new.info.status) == ("first (2)", "RUNNING")
    seen = client(tmp_path).get_metric_history(new.info.run_id, "model/accuracy")
    assert {(entry.step, entry.value) for entry in seen} == {
        *((number, accuracy_after(number)) for number in range(3)), (3, 0.5)}
    assert old.data.metrics["model/accuracy"] == accuracy_after(3)


def test_after_a_restore_rounds_that_are_done_again_go_to_another_run(filled: Filled, tmp_path: Path) -> None:
    """One run had two values of each, the lost one and the one that counts."""
    tell(filled, tmp_path)
    before, = all_runs(tmp_path)
    client(tmp_path).log_metric(before.info.run_id, "model/accuracy", 0.9, step=4)  # lost: the backup was made before
    filled.ledger.event("restored", backup_made_unix=1_790_000_000.0, invitations_withdrawn=0)
    assert tell(filled, tmp_path) == 0
    assert [run.info.status for run in all_runs(tmp_path)] == ["RUNNING"], "nothing was done again yet"
    commit(filled, 4)
    assert tell(filled, tmp_path) == 5
    assert tell(filled, tmp_path) == 0
    old, new = sorted(all_runs(tmp_path), key=lambda run: run.info.run_id != before.info.run_id)
    assert (old.info.status, old.data.tags["semisilo.continued_in"]) == ("KILLED", new.info.run_id)
    assert old.data.tags["semisilo.reason"].startswith("the federation went on from its backup of 2026-09-21")
    assert (new.info.run_name, new.info.status) == ("first (2)", "RUNNING")
    seen = client(tmp_path).get_metric_history(new.info.run_id, "model/accuracy")
    assert [(entry.step, entry.value) for entry in seen] == [
        *((number, pytest.approx(accuracy_after(number))) for number in range(4)), (4, 0.5)]


def test_names_that_mlflow_does_not_take_are_changed(filled: Filled, tmp_path: Path) -> None:
    filled.ledger.query("UPDATE round SET metrics_json = ? WHERE number = 2", '{"recall/naïve (T cell)": 0.5}')
    tell(filled, tmp_path)
    assert history(tmp_path, "recall/na_ve _T cell_") == [(2, 0.5)]


def test_a_tracker_that_cannot_be_used_is_one_error_of_the_catalogue(
        filled: Filled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with pytest.raises(Unreachable, match=r"MLflow at http://127\.0\.0\.1:9 "):
        MlflowRuns(filled.ledger, "http://127.0.0.1:9", experiment="x", federation="f").catch_up(
            "first", artefacts=lambda study, folder: [])
    assert not caplog.text, "nothing else says so, at every try"
    assert filled.ledger.query("SELECT count(*) AS n FROM tracking")[0]["n"] == 0
