"""Rounds are chosen, and studies stopped, by validation images: the test images have no part in it, a restart no other
outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load_file

from semisilo.api.results import read_run
from semisilo.common.data.formats import archive
from semisilo.common.errors import BadConfiguration, SemisiloError
from semisilo.common.measures.gain import gain_of
from semisilo.common.measures.study_measure import parse_measure
from semisilo.common.models.exported import read_facts
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.simulation import SimulationResult, run
from semisilo.simulation.output import export_run
from semisilo.simulation.result import read_result
from tests.processes import CRASHING
from tests.semisilo.studies import study

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("pictures_left_blank")

STANDING = {"lr": 1e-12}
"""With it nothing is learnt, so that no round is better than round 0."""


def digits(folder: Path, *, permuted: bool) -> str:
    """The embedded digits as a file, with the labels of the test images as they are or in another order."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = archive.digits("train", source="digits"), archive.digits("test", source="digits")
    labels = np.array(test.labels_N)
    if permuted:
        labels = np.random.default_rng(0).permutation(labels)
    np.savez(folder / "digits.npz", train_images=train.images, train_labels=train.labels_N, test_images=test.images,
             test_labels=labels)
    return str(folder / "digits.npz")


def stored(result: SimulationResult) -> tuple[StudyState, str, set[str]]:
    """State and reason of the study, and the state files that it has kept."""
    ledger = Ledger(result.folder / "ledger.sqlite", waits=False)
    try:
        row = ledger.study(result.study)
    finally:
        ledger.close()
    states = result.folder / "studies" / result.study / "states"
    return row.state, row.reason, {path.name for path in states.iterdir()}


def tables(source: str, *, rounds: int = 6, **changes: Any) -> dict[str, Any]:
    return study("semifl", rounds=rounds, silos=2, split={"fraction": 0.2, "num_validation": 40},
                 simulation={"data": source}, **{"study": {"patience": 2, "keep_every": 100}, **changes})


@pytest.mark.slow
def test_permuting_the_labels_of_the_test_images_changes_no_choice_no_state_and_no_stop(tmp_path: Path) -> None:
    true, permuted = (run(tables(digits(tmp_path / name, permuted=name == "permuted")), out=tmp_path / name / "run",
                          device="cpu") for name in ("true", "permuted"))
    assert [each.accuracy for each in true.rounds] != [each.accuracy for each in permuted.rounds], "a control"
    assert true.choice == permuted.choice
    assert true.digest == permuted.digest
    assert len(true.rounds) == len(permuted.rounds)
    assert stored(true) == stored(permuted)
    assert true.model.read_bytes() == permuted.model.read_bytes()
    for name in ("selection_score", "selection_error", "validation_auroc"):
        assert [each.metrics[name] for each in true.rounds] == [each.metrics[name] for each in permuted.rounds]


@pytest.mark.slow
def test_a_study_that_no_longer_gets_better_ends_early_and_says_why(tmp_path: Path) -> None:
    result = run(tables(digits(tmp_path, permuted=False), settings=STANDING), out=tmp_path / "run", device="cpu")
    state, reason, _ = stored(result)
    assert state is StudyState.COMPLETED
    assert reason == "stopped after round 2 of 6: accuracy on validation images has not risen for 2 rounds"
    assert [each.round for each in result.rounds if each.state == RoundState.COMPLETED] == [0, 1, 2]
    assert result.choice.round == 2, "rounds that cannot be told apart: the latest"
    again = run(tables(digits(tmp_path, permuted=False), settings=STANDING), out=tmp_path / "run", device="cpu")
    assert (again.digest, len(again.rounds)) == (result.digest, 3)


@pytest.mark.slow
def test_without_patience_all_rounds_are_made(tmp_path: Path) -> None:
    result = run(tables(digits(tmp_path, permuted=False), rounds=3, settings=STANDING, study={"patience": 0}),
                 out=tmp_path / "run", device="cpu")
    assert stored(result)[1] == ""
    assert len(result.rounds) == 4


@pytest.mark.slow
@pytest.mark.parametrize("crash", [
    "semisilo.coordinator.rounds.study_lifecycle:StudyLifecycle.write_model:1:before",
    "semisilo.coordinator.ledger.ledger:Ledger.commit_round:3:after"])
def test_a_coordinator_that_was_killed_stops_after_the_same_round_with_the_same_model(tmp_path: Path, crash: str
                                                                                      ) -> None:
    resumed = killed_then_resumed(tmp_path, tables(digits(tmp_path, permuted=False), settings=STANDING), crash)
    assert stored(resumed)[1] != ""


def killed_then_resumed(tmp_path: Path, study_of: dict[str, Any], crash: str) -> SimulationResult:
    """Runs a study, kills it, goes on with it, and holds it against one that was not disturbed."""
    path, out = tmp_path / "study.toml", tmp_path / "out"
    path.write_text(tomli_w.dumps(study_of))
    code = (f"from pathlib import Path; from semisilo.simulation import run; run(Path({str(path)!r}),"
            f" out=Path({str(out)!r}), device='cpu', engine='process')")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(CRASHING), str(ROOT)]), SEMISILO_TEST_CRASH=crash)
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    resumed = run(path, out=out, device="cpu")
    undisturbed = run(path, out=tmp_path / "undisturbed", device="cpu")
    assert (resumed.digest, resumed.choice) == (undisturbed.digest, undisturbed.choice)
    assert stored(resumed)[1] == stored(undisturbed)[1]
    assert resumed.model.read_bytes() == undisturbed.model.read_bytes()
    return resumed


@pytest.mark.slow
def test_the_model_that_is_left_and_that_is_exported_are_those_of_the_chosen_round(tmp_path: Path) -> None:
    """The rounds before the last are given other scores, as if the last had spoilt the model."""
    result = run(tables(digits(tmp_path, permuted=False), rounds=3, study={"patience": 0}), out=tmp_path / "run",
                 device="cpu")
    ledger = Ledger(result.folder / "ledger.sqlite", waits=False)
    for number, score in ((0, 0.1), (1, 0.9), (2, 0.5), (3, 0.5)):
        ledger.query("UPDATE round SET metrics_json = ? WHERE number = ?",
                     f'{{"selection_score":{score},"selection_error":0.05}}', number)
    ledger.close()
    found = export_run(result.folder, out=tmp_path / "out", formats=("safetensors",))
    last = export_run(result.folder, out=tmp_path / "last", round="last", formats=("safetensors",))
    assert (found.facts.model.round, found.facts.model.chosen) == (1, "chosen")
    assert found.facts.model.choice == ("round 1, accuracy 90.0 % on 40 validation images; the last round, 3, has"
                                        " 50.0 %")
    assert found.facts.model.choice in (found.folder / "model_card.md").read_text()
    one, other = load_file(found.model), load_file(last.model)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def alone(source: str, **changes: Any) -> dict[str, Any]:
    """A study that trains labels alone, by the paper's recipe in few epochs."""
    settings = {"patience": 0, "labelled_only_baseline": True, "baseline_recipe": "paper", "baseline_epochs": 40}
    return tables(source, rounds=1, study=settings, **changes)


@pytest.mark.slow
def test_where_the_rounds_learn_nothing_labels_alone_are_handed_over_and_it_is_said_first(tmp_path: Path) -> None:
    result = run(alone(digits(tmp_path, permuted=False), settings=STANDING), out=tmp_path / "run", device="cpu")
    choice = result.choice
    assert choice.labels_alone
    assert choice.labels_alone_score is not None
    assert choice.score is not None
    assert choice.labels_alone_score > choice.score
    assert choice.text.startswith("labels alone, without any silo: accuracy ")
    assert choice.conclusion.startswith("The model handed over is that of labels alone, without any silo: ")
    assert choice.conclusion.endswith("; labels alone are handed over, so there is no gain.")
    found = export_run(result.folder, formats=("safetensors",))
    assert found.folder == result.folder / "export-labels-alone"
    assert (found.facts.model.chosen, found.facts.model.choice) == ("labels-alone", choice.text)
    left, exported = load_file(result.model), load_file(found.model)
    assert left.keys() == exported.keys()
    assert all(np.array_equal(left[name], exported[name]) for name in left)
    facts = read_facts(result.model)
    assert (facts.method, facts.round) == ("labels-alone", None)
    last = export_run(result.folder, round="last", formats=("safetensors",))
    assert (last.facts.model.chosen, last.folder) == ("last", result.folder / "export-round-1")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [pytest.param("paper", marks=pytest.mark.slow), "strong"])
def test_without_test_images_validation_images_choose_between_the_rounds_and_labels_alone(tmp_path: Path, recipe: str
                                                                                         ) -> None:
    train = archive.digits("train", source="digits")
    np.savez(tmp_path / "digits.npz", images=train.images, labels=train.labels_N)
    settings = {"patience": 0, "labelled_only_baseline": True, "baseline_recipe": recipe, "baseline_epochs": 40}
    result = run(tables(str(tmp_path / "digits.npz"), rounds=1, study=settings, settings=STANDING),
                 out=tmp_path / "run", device="cpu")
    assert result.choice.labels_alone
    assert result.choice.labels_alone_score is not None
    assert result.choice.labels_alone_score > 0.3
    assert result.choice.conclusion.endswith("There are no test images to compare it with labels alone on.")
    found = export_run(result.folder, out=tmp_path / "out", formats=("safetensors",))
    assert (found.facts.model.chosen, found.facts.test) == ("labels-alone", None)
    assert read_facts(result.model).method == "labels-alone"


@pytest.mark.slow
def test_the_gain_of_a_study_that_is_over_is_of_both_models_answers_to_each_test_image(tmp_path: Path) -> None:
    """Log, table in Python and card have the same interval; it is narrower than one of the two models' own numbers."""
    settings = {"labelled_only_baseline": True, "baseline_recipe": "paper", "baseline_epochs": 1}
    result = run(study("semifl", rounds=1, silos=2, split={"num_validation": 0}, study=settings),
                 out=tmp_path / "run", device="cpu")
    ledger = Ledger(result.folder / "ledger.sqlite", waits=False)
    row = ledger.study(result.study)
    ran = read_run(ledger, result.study, result.folder)
    ledger.close()
    assert row.paired is not None
    assert row.frozen is not None
    assert row.baseline is not None
    assert (row.paired.round, row.paired.patients) == (result.choice.round, 0)
    assert set(row.paired.intervals) == {"accuracy", "balanced_accuracy", "auroc"}
    last = result.rounds[-1].metrics
    for measure, interval in row.paired.intervals.items():
        value = last[measure] - row.baseline.metrics[measure]
        assert interval.low < value < interval.high
        alone = gain_of(parse_measure(measure), classes=row.classes, images=row.frozen.test_counts, federated=last,
                        labels_alone=row.baseline.metrics)
        assert alone is not None
        assert alone.interval is not None
        assert interval.high - interval.low < alone.interval.high - alone.interval.low
    assert ", paired by image, " in result.choice.conclusion
    assert "paired by image, " in str(ran)
    card = export_run(result.folder, out=tmp_path / "out", formats=("safetensors",)).facts
    assert card.gain is not None
    assert (card.gain.interval, card.gain.paired) == (row.paired.intervals["accuracy"], True)
    other = export_run(result.folder, out=tmp_path / "other", round="0", formats=("safetensors",)).facts
    assert other.paired is None, "of another round nothing was compared"


@pytest.mark.slow
def test_where_the_rounds_score_higher_theirs_is_handed_over(tmp_path: Path) -> None:
    """Labels alone are given a lower score, whatever they have on the test images."""
    result = run(alone(digits(tmp_path, permuted=False)), out=tmp_path / "run", device="cpu")
    ledger = Ledger(result.folder / "ledger.sqlite", waits=False)
    for score, handed_over in ((0.0, False), (2.0, True)):
        ledger.query("UPDATE study SET baseline_json = json_set(baseline_json, '$.metrics.validation_accuracy', ?)",
                     score)
        assert read_result(ledger, result.study, folder=result.folder).choice.labels_alone is handed_over
    ledger.query("UPDATE study SET baseline_json = json_set(baseline_json, '$.model_digest', '')")
    assert not read_result(ledger, result.study, folder=result.folder).choice.labels_alone, "there is no such model"
    ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("crash", [
    "semisilo.coordinator.rounds.study_lifecycle:StudyLifecycle.write_model:2:before",
    "semisilo.coordinator.rounds.study_lifecycle:note_model_written:2:before"])
def test_labels_alone_are_handed_over_with_the_same_bytes_after_a_kill(tmp_path: Path, crash: str) -> None:
    study_of = alone(digits(tmp_path, permuted=False), settings=STANDING)
    killed_then_resumed(tmp_path, study_of, crash)


def test_patience_with_too_few_labels_and_no_validation_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SemisiloError, match="patience = 1 looks at validation images"):
        run(study("semifl", rounds=2, split={"num_validation": 0}, study={"patience": 1}), out=tmp_path / "run",
            device="cpu")


def test_a_share_of_the_labels_in_a_simulation_is_held_out_of_those_that_are_dealt(tmp_path: Path) -> None:
    result = run(study("semifl", rounds=1, silos=2, split={"num_validation": 0}, data={"validation_share": "50%"}),
                 out=tmp_path / "run", device="cpu")
    assert result.choice.num_validation == 10
    assert "on 10 validation images" in result.choice.text
    with pytest.raises(BadConfiguration, match="no effect beside named validation images"):
        run(study("semifl", rounds=1, silos=2, data={"validation_share": "50%"}), out=tmp_path / "other", device="cpu")
