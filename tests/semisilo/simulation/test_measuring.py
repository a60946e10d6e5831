"""What simulations measure beyond a federation: right by independent computation, and without any effect on bits."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from semisilo.cli.main import app
from semisilo.common.data.formats import archive
from semisilo.common.errors import BadConfiguration, BadData, StorageDamaged, UsageError
from semisilo.common.learning.evaluation import evaluate
from semisilo.common.models.factory import model_builder
from semisilo.common.numerics.numerics import apply, left_as_it_was
from semisilo.common.storage.state_files import StateFiles
from semisilo.common.storage.store import hash_file
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.strategies.fed_shvr import FedSHVRState
from semisilo.diagnostics import Problem, labels_of, objective_of, stationarity_gap
from semisilo.simulation import SimulationResult, run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.folder import SimulationFolder
from semisilo.simulation.output import report
from semisilo.simulation.settings import load_simulated_study
from semisilo.simulation.surface import SURFACE_FILE, coordinates, drawn_surface, measure_surface
from tests.each_of import each_of
from tests.semisilo.simulation.test_simulate import killed
from tests.semisilo.studies import study

BOTH = {"stationarity_gap": True, "forgetting": True}
GAP = ("stationarity_gap", "stationarity_gradient", "stationarity_labels", "objective")


def shvr(*, rounds: int = 3, **simulation: Any) -> dict[str, Any]:
    return study("fed_shvr", "labels-at-silo", rounds=rounds, simulation=simulation, settings={"ramp_epochs": 4})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> SimulationResult:
    return run(shvr(**BOTH), out=tmp_path_factory.mktemp("measured"), device="cpu")


@pytest.fixture(scope="module")
def problem(measured: SimulationResult) -> Problem:
    """The objective of round 3, put together from the study file by hand; alpha_0 = exp(-5 (1 - 3/4)^2)."""
    dealt = deal_study(load_simulated_study(shvr(**BOTH)))
    silos = {name: dealt.silos_images()[index].data(round=3, scenario="labels-at-silo")
             for index, name in enumerate(dealt.silos)}
    form = dealt.config.data.image
    ledger = Ledger(measured.folder / "ledger.sqlite")
    frozen = ledger.study("study").frozen
    ledger.close()
    assert frozen is not None
    assert form.size == frozen.image.size
    model = replace(dealt.config.model, classes=frozen.classes)
    return Problem(build_model=model_builder(model, frozen.image, ()), silos=silos, image=frozen.image,
                   alpha0=float(np.exp(-5 * 0.25**2)), alpha1=0.75, alpha2=0.1, seed=5)


def state_after(result: SimulationResult, round: int) -> FedSHVRState:
    ledger = Ledger(result.folder / "ledger.sqlite")
    digest = ledger.round(result.study, round).state_digest
    ledger.close()
    return StateFiles(result.folder / "studies" / result.study / "states").load(digest, FedSHVRState)


# The stationarity gap -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_gap_of_a_round_is_that_of_its_two_models_over_all_silos(measured: SimulationResult, problem: Problem
                                                                     ) -> None:
    w, before = state_after(measured, 3).w, state_after(measured, 2).w
    with left_as_it_was():
        apply(deal_study(load_simulated_study(shvr(**BOTH))).config.numerics)  # as the simulation had them
        expected = stationarity_gap(problem, w, labels_of(problem, w), labels_of(problem, before))
    found = measured.rounds[3].metrics
    assert found["stationarity_gap"] == pytest.approx(expected.gap, rel=1e-6)
    assert found["stationarity_gradient"] == pytest.approx(expected.gradient, rel=1e-6)
    assert found["stationarity_labels"] == pytest.approx(expected.labels, rel=1e-6)
    assert found["objective"] == pytest.approx(expected.objective.total, rel=1e-6)
    assert found["stationarity_labels"] > 0


@pytest.mark.slow
def test_every_round_has_a_gap_and_round_0_has_none(measured: SimulationResult) -> None:
    assert [[name in each.metrics for name in GAP] for each in measured.rounds] == [[False] * 4] + [[True] * 4] * 3


@pytest.mark.slow
def test_measuring_changes_no_bit_and_may_be_turned_on_and_off(tmp_path: Path, measured: SimulationResult) -> None:
    plain = run(shvr(), out=tmp_path / "out", device="cpu")
    assert plain.digest == measured.digest
    assert not any(name in each.metrics for each in plain.rounds for name in (*GAP, "labelled_accuracy_before"))
    assert run(shvr(**BOTH), out=tmp_path / "out", device="cpu") == plain, "it is the same simulation"


@pytest.mark.slow  # quickly: a kill in test_simulate.py
def test_a_simulation_that_was_killed_while_it_measured_has_all_gaps(tmp_path: Path, measured: SimulationResult
                                                                     ) -> None:
    path, out = killed(shvr(**BOTH), tmp_path,
                       crash="semisilo.simulation.measuring:MeasuringOperations.stationarity:2:before")
    resumed = run(path, out=out, device="cpu")
    assert resumed.digest == measured.digest
    assert [each.metrics for each in resumed.rounds] == [each.metrics for each in measured.rounds]


# Forgetting -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_with_one_silo_the_accuracy_after_training_is_that_before_the_next_round(tmp_path: Path) -> None:
    """Its own model is then the average; without batch-norm nothing else is different."""
    tables = study("fedavg", "labels-at-silo", rounds=4, silos=1, simulation={"forgetting": True},
                   split={"labelled_per_class": 3}, model={"normalisation": "group"}, settings={"lr": 0.1})
    metrics = [each.metrics for each in run(tables, out=tmp_path, device="cpu").rounds[1:]]
    before = [each["labelled_accuracy_before"] for each in metrics]
    after = [each["labelled_accuracy_after"] for each in metrics]
    assert after[:-1] == before[1:]
    assert after != before, "the network must learn something, or nothing is tested"


@pytest.mark.slow
def test_before_and_after_are_means_over_the_silos_own_labelled_images(measured: SimulationResult, problem: Problem
                                                                       ) -> None:
    from semisilo.common.learning import batch_norm, tensors

    state, found = state_after(measured, 2), measured.rounds[3].metrics
    model = problem.build_model()
    tensors.load_into(model, state.w)
    batch_norm.load(model, state.batch_norm)
    accuracies = {}
    for silo, data in problem.silos.items():
        assert data.labelled is not None
        accuracies[silo] = evaluate(model, data.labelled, form=problem.image).accuracy
    assert {silo: found[f"labelled_accuracy_before/{silo}"] for silo in accuracies} == accuracies
    for name in ("labelled_accuracy_before", "labelled_accuracy_after"):
        own = [value for key, value in found.items() if key.startswith(f"{name}/")]
        assert len(own) == 3
        assert found[name] == pytest.approx(sum(own) / 3)


def test_what_only_a_simulation_knows_is_in_no_answer_of_a_silo(measured: SimulationResult) -> None:
    said = {name for each in measured.silos for name in each.metrics}
    assert "label_ratio" in said
    assert not any(name.startswith(("labelled_accuracy", "stationarity")) for name in said)


@each_of(("method", "scenario", "setting", "words"), [
    ("semifl", "labels-at-coordinator", "stationarity_gap", "Fed-SHVR's objective, which semifl does not have"),
    ("semifl", "labels-at-coordinator", "forgetting", "the silos have no labelled images"),
    ("fedsgd", "labels-at-silo", "forgetting", "cannot tell the silo's own model"),
])
def test_a_diagnostic_that_the_method_cannot_have_is_refused(method: str, scenario: str, setting: str, words: str
                                                             ) -> None:
    with pytest.raises(BadConfiguration, match=words):
        load_simulated_study(study(method, scenario, simulation={setting: True}))


# The report -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
def test_the_report_is_written_again_with_every_diagnostic(measured: SimulationResult) -> None:
    for name in ("metrics.csv", "metrics.json", "report/index.html"):
        (measured.folder / name).unlink(missing_ok=True)
    shown = CliRunner().invoke(app, ["report", str(measured.folder)])
    assert shown.exit_code == 0, shown.output
    assert measured.digest[:16] in shown.output
    page = (measured.folder / "report" / "index.html").read_text()
    assert "Stationarity gap" in page
    assert "what is remembered" in page
    with (measured.folder / "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["stationarity_gap"]) for line in lines[1:]] == [
        each.metrics["stationarity_gap"] for each in measured.rounds[1:]]
    assert json.loads((measured.folder / "metrics.json").read_text())["digest"] == measured.digest


@pytest.mark.slow
def test_the_report_of_a_simulation_that_was_killed_shows_the_rounds_that_are_done(tmp_path: Path) -> None:
    _, out = killed(study("semifl", rounds=3), tmp_path,
                    crash="semisilo.coordinator.compute.operations:Operations.aggregate:2:before")
    result, page = report(out)
    assert [each.state for each in result.rounds] == ["completed", "completed", "aggregating"]
    assert page.exists()


def test_a_folder_without_a_simulation_is_refused_with_a_remedy(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="holds no simulation") as caught:
            report(folder)
        assert "coordinator report" in caught.value.remedy
    assert not (tmp_path / "nowhere").exists()


def test_help_has_examples_and_options_that_would_have_no_effect_are_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["report", "--help"]).output
    assert "semisilo report runs/study --loss-surface" in told
    refused = CliRunner().invoke(app, ["report", str(tmp_path), "--points", "5"])
    assert isinstance(refused.exception, UsageError)
    assert "no effect" in refused.exception.text


# The loss surface -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def surface(measured: SimulationResult) -> dict[str, Any]:
    told: list[float] = []
    before = hash_file(measured.model)
    path = measure_surface(SimulationFolder(measured.folder), points=3, span=0.5,
                           progress=lambda share, text: told.append(share))
    assert told[-1] == 1.0
    assert hash_file(measured.model) == before
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


@pytest.mark.slow
def test_the_middle_of_the_surface_is_the_objective_of_the_final_model(
        measured: SimulationResult, problem: Problem, surface: dict[str, Any]) -> None:
    w = state_after(measured, 3).w
    expected = objective_of(problem, w, labels_of(problem, w))
    assert surface["alpha0"] == pytest.approx(problem.alpha0)
    assert surface["surface"]["b1"] == surface["surface"]["b2"] == [-0.5, 0.0, 0.5]
    assert surface["surface"]["total"][1][1] == pytest.approx(expected.total, rel=1e-6)
    assert surface["surface"]["r2"][1][1] == pytest.approx(expected.r2, rel=1e-6)
    assert len({value for row in surface["surface"]["total"] for value in row}) == 9


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_drawn")
def test_the_surface_stays_in_later_reports_of_the_same_model(
        measured: SimulationResult, surface: dict[str, Any]) -> None:
    _, page = report(measured.folder)
    assert "Loss around the model" in page.read_text()
    assert (page.parent / "loss_surface.png").read_bytes()[:4] == b"\x89PNG"
    (figure,) = drawn_surface(measured.folder, state=measured.digest)
    assert figure.light_png != figure.dark_png
    assert f"{surface['surface']['total'][1][1]:.4g} at the model itself" in figure.description
    assert "without it" in figure.description
    assert drawn_surface(measured.folder, state="0" * 64) == (), "it is of another model"


def test_a_damaged_surface_is_named(tmp_path: Path) -> None:
    (tmp_path / SURFACE_FILE).write_text('{"state": "a", "surface": {}}')
    with pytest.raises(StorageDamaged, match="cannot be read"):
        drawn_surface(tmp_path, state="a")


@pytest.mark.slow
def test_the_surface_is_refused_for_other_methods_and_for_images_that_are_gone_or_changed(tmp_path: Path) -> None:
    def ignore(share: float, text: str) -> None:
        pass

    other = run(study("semifl", rounds=1), out=tmp_path / "other", device="cpu")
    with pytest.raises(UsageError, match="a simulation of semifl"):
        measure_surface(SimulationFolder(other.folder), points=3, span=1.0, progress=ignore)
    digits = archive.digits("train", source="digits")
    file = tmp_path / "digits.npz"
    np.savez(file, train_images=digits.images, train_labels=digits.labels_N)
    moved = run(study("fed_shvr", "labels-at-silo", rounds=1, simulation={"data": str(file)}), out=tmp_path / "moved",
                device="cpu")
    np.savez(file, train_images=255 - digits.images, train_labels=digits.labels_N)
    with pytest.raises(UsageError, match="no longer those of this simulation"):
        measure_surface(SimulationFolder(moved.folder), points=3, span=1.0, progress=ignore)
    file.unlink()
    with pytest.raises(BadData, match=r"digits\.npz"):
        measure_surface(SimulationFolder(moved.folder), points=3, span=1.0, progress=ignore)


def test_coordinates_have_the_model_in_their_middle() -> None:
    assert coordinates(5, 2.0) == [-2.0, -1.0, 0.0, 1.0, 2.0]
    for points, span in ((4, 1.0), (1, 1.0), (5, 0.0), (5, float("nan"))):
        with pytest.raises(UsageError):
            coordinates(points, span)
