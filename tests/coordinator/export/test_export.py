"""Hand-over: what is exported is what was evaluated, the card says what is so, a wrong graph is not handed over."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import semisilo.coordinator.export.export as export_module
from semisilo.common.errors import BadData, NotPermitted, StorageDamaged, UsageError
from semisilo.common.measures.calibration import fit_temperature, probabilities
from semisilo.common.measures.intervals import wilson
from semisilo.common.models.exported import ModelFacts, facts_from_json, logits_of, read_facts, read_model
from semisilo.coordinator.export.card import settings_shown
from semisilo.coordinator.export.card_pages import card_html, card_markdown
from semisilo.coordinator.export.export import ExportChoice, Exported, export_study
from semisilo.coordinator.federation.folder import create_federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import LABELS_ALONE_MODEL
from semisilo.simulation import SimulationResult, run
from tests.coordinator.report.test_report import _Page
from tests.processes import run_command
from tests.semisilo.studies import study

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("simulated_in_one_process", "pictures_left_blank")
"""`hand_over`, which lives longer, has its picture."""


@pytest.fixture(scope="module", autouse=True)
def _torch_as_before() -> Iterator[None]:
    """An export sets torch's numerics for its process."""
    mode = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(mode)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory, simulated_in_one_process: None) -> SimulationResult:
    """Three rounds of SemiFL, with a baseline and a validation set."""
    tables = study("semifl", rounds=3, study={"labelled_only_baseline": True, "baseline_epochs": 20})
    return run(tables, out=tmp_path_factory.mktemp("simulated"), device="cpu")


def exported(result: SimulationResult, out: Path, round: str = "last", **choice: Any) -> Exported:
    """Of the last round: in these few labels alone are better, and would be handed over."""
    ledger = Ledger(result.folder / "ledger.sqlite")
    try:
        return export_study(ledger, result.study, study_folder=result.folder / "studies" / result.study, out=out,
                            choice=ExportChoice(device="cpu", round=round, **choice))
    finally:
        ledger.close()


@pytest.fixture(scope="module")
def hand_over(simulated: SimulationResult, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(simulated, tmp_path_factory.mktemp("out") / "hand-over", calibrate=True)


def images_of(result: SimulationResult, name: str) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    with np.load(result.folder / "studies" / result.study / "data" / f"{name}.npz") as arrays:
        return torch.from_numpy(arrays["images"])[:, None], arrays["labels"].astype(np.int64)


# What is written ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_folder_holds_the_weights_the_graph_and_the_card(hand_over: Exported) -> None:
    assert {path.name for path in hand_over.folder.iterdir()} == {
        "model.safetensors", "model.onnx", "model_card.md", "model_card.html", "model_card.json", "reliability.png"}
    assert (hand_over.folder / "reliability.png").stat().st_size > 5000, "a picture"
    assert 'src="data:image/png;base64,' in (hand_over.folder / "model_card.html").read_text()
    assert json.loads((hand_over.folder / "model_card.json").read_text()) == hand_over.card
    for name, each in hand_over.card["files"].items():
        content = (hand_over.folder / name).read_bytes()
        assert each == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def check_what_is_exported(result: SimulationResult, found: Exported) -> None:
    assert found.card["test"]["accuracy"] == result.accuracy == found.card["recorded_accuracy"]
    model, facts = read_model(found.model)
    images_NCHW, labels_N = images_of(result, "test")
    predicted_N = logits_of(model, images_NCHW, facts.image).numpy().argmax(axis=1)
    assert (predicted_N == labels_N).mean() == result.accuracy
    if found.card["onnx"] is not None:
        assert found.card["onnx"]["images"] == min(found.card["test"]["images"], 250)
        assert found.card["onnx"]["same_predictions"] == found.card["onnx"]["images"]
        assert 0 < found.card["onnx"]["largest_difference"] < 1e-3


@pytest.mark.slow
def test_what_is_exported_is_what_was_evaluated(simulated: SimulationResult, hand_over: Exported) -> None:
    assert hand_over.card["onnx"] is not None
    check_what_is_exported(simulated, hand_over)


@pytest.mark.slow
@pytest.mark.parametrize("formats", [("safetensors",), pytest.param(("safetensors", "onnx"), marks=pytest.mark.slow)])
def test_two_parts_of_fedmatch_are_exported_as_one_model(formats: tuple[str, ...], tmp_path: Path) -> None:
    result = run(study("fedmatch", rounds=1, silos=2, settings={"num_helpers": 1}, split={"num_test": 40}),
                 out=tmp_path / "run", device="cpu")
    check_what_is_exported(result, exported(result, tmp_path / "out", formats=formats))


@pytest.mark.slow
@pytest.mark.parametrize("model", [
    {"name": "wide_resnet_28_2"}, {"name": "resnet18", "normalisation": "group"}, {"name": "mobilenet_v3_small"},
], ids=["wide_resnet_28_2", "resnet18 with group norm", "mobilenet with static batch-norm"])
def test_graphs_of_other_networks_compute_what_was_evaluated(model: dict[str, Any], tmp_path: Path) -> None:
    image = {"size": 8 if model["name"] == "wide_resnet_28_2" else 32, "channels": 1, "mean": [0.3], "std": [0.4]}
    result = run(study("semifl", rounds=1, silos=2, settings={"confidence_threshold": 1.0},  # silos abstain: quicker
                       model=model, data={"image": image}, split={"num_test": 40}), out=tmp_path / "run", device="cpu")
    found = exported(result, tmp_path / "out")
    assert found.card["onnx"] is not None
    check_what_is_exported(result, found)


@pytest.mark.slow
def test_a_graph_standardises_each_image_by_itself_where_the_study_does(tmp_path: Path) -> None:
    image = {"size": 8, "channels": 1, "mean": [0.3], "std": [0.4], "standardise": "image"}
    result = run(study("semifl", rounds=1, silos=2, settings={"confidence_threshold": 1.0}, data={"image": image},
                       split={"num_test": 40}), out=tmp_path / "run", device="cpu")
    found = exported(result, tmp_path / "out")
    check_what_is_exported(result, found)
    assert found.card["model"]["image"]["standardise"] == "image"
    assert "of each image and channel" in (found.folder / "model_card.md").read_text()
    import onnx

    properties = {each.key: each.value for each in onnx.load(str(found.folder / "model.onnx")).metadata_props}
    assert "from each channel of each image its mean over all pixels" in properties["preprocessing"]


@pytest.mark.slow
def test_a_network_with_frozen_parts_is_exported_whole(tmp_path: Path) -> None:
    result = run(study("fedavg", rounds=1, silos=2, model={"name": "small_cnn", "freeze": "backbone"},
                       split={"num_test": 40}), out=tmp_path / "run", device="cpu")
    found = exported(result, tmp_path / "out", formats=("safetensors",))
    assert found.card["test"]["accuracy"] == result.accuracy
    assert found.card["model"]["network"]["frozen"] > found.card["model"]["network"]["parameters"] > 0
    model, facts = read_model(found.model)
    assert (facts.model.freeze, facts.model.weights) == ((), "")
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.slow
def test_a_network_of_timm_that_started_from_a_file_needs_neither_study_nor_file_afterwards(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    save_file(timm.create_model("resnet10t", num_classes=5).state_dict(), str(tmp_path / "weights.safetensors"))
    result = run(study("semifl", rounds=1, silos=2, settings={"confidence_threshold": 1.0}, model={
        "name": "timm/resnet10t", "weights": str(tmp_path / "weights.safetensors"), "freeze": "backbone"},
        data={"image": {"size": 32, "channels": 1, "mean": [0.3], "std": [0.4]}}, split={"num_test": 40}),
        out=tmp_path / "run", device="cpu")
    found = exported(result, tmp_path / "out")
    assert found.card["test"]["accuracy"] == result.accuracy
    images_NCHW, labels_N = images_of(result, "test")
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "weights.safetensors").unlink()
    model, facts = read_model(found.model)
    predicted_N = logits_of(model, images_NCHW, facts.image).numpy().argmax(axis=1)
    assert (predicted_N == labels_N).mean() == result.accuracy
    assert str(tmp_path) not in (found.folder / "model_card.json").read_text()


def test_equal_models_give_equal_files(simulated: SimulationResult, hand_over: Exported, tmp_path: Path) -> None:
    again = exported(simulated, tmp_path / "again", calibrate=True, formats=("safetensors",))
    assert again.model.read_bytes() == hand_over.model.read_bytes()


def test_the_model_that_a_study_leaves_behind_can_be_used_like_an_export(simulated: SimulationResult,
                                                                         tmp_path: Path) -> None:
    found = exported(simulated, tmp_path / "chosen", round="chosen", formats=("safetensors",))
    left, facts = read_model(simulated.model)
    ours, _ = read_model(found.model)
    assert facts.model.classes == tuple(found.card["model"]["classes"])
    for name, tensor in left.state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name])


# The ONNX graph -------------------------------------------------------------------------------------------------------


def test_the_graph_takes_fractions_in_batches_of_any_size_and_says_what_it_is(simulated: SimulationResult,
                                                                              hand_over: Exported) -> None:
    from semisilo.common.models.onnx_runtime import onnx_runtime

    session = onnx_runtime().InferenceSession(str(hand_over.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    model, facts = read_model(hand_over.model)
    images_NCHW, _ = images_of(simulated, "test")
    for size in (1, 3, 64):
        fractions = images_NCHW[:size].numpy().astype(np.float32) / 255
        (logits_BK,) = session.run(["logits"], {"images": fractions})
        assert np.allclose(logits_BK, logits_of(model, images_NCHW[:size], facts.image).numpy(), atol=1e-4)
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == list(facts.model.classes)
    assert "divided by 255" in metadata["preprocessing"]
    assert float(metadata["temperature"]) == facts.temperature != 1.0


def test_the_graph_names_no_place_of_this_machine(hand_over: Exported) -> None:
    content = (hand_over.folder / "model.onnx").read_bytes()
    for word in (str(ROOT), "site-packages", "/usr/lib", str(Path.home())):
        assert word.encode() not in content


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["weight", "constant", "cut", "NaN"])
def test_a_graph_that_differs_from_the_network_is_not_handed_over(
        wrong: str, simulated: SimulationResult, hand_over: Exported, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    def tampered(path: Path, model: torch.nn.Module, facts: ModelFacts) -> None:
        shutil.copy(hand_over.folder / "model.onnx", path)
        if wrong == "cut":
            path.write_bytes(path.read_bytes()[:-1000])
            return
        graph = onnx.load(str(path))
        if wrong == "constant":
            graph.graph.node[-1].op_type = "NoSuchOperator"
        else:
            weights = next(each for each in graph.graph.initializer if each.data_type == 1 and len(each.dims) > 1)
            values = onnx.numpy_helper.to_array(weights).copy()
            values.flat[0] = np.nan if wrong == "NaN" else values.flat[0] + 1.0
            weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
        onnx.save(graph, str(path))

    monkeypatch.setattr(export_module, "write_onnx", tampered)
    with pytest.raises(BadData, match=r"model\.onnx"):
        exported(simulated, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_the_card_says_so(simulated: SimulationResult, tmp_path: Path) -> None:
    found = exported(simulated, tmp_path / "out", formats=("safetensors",))
    assert not (found.folder / "model.onnx").exists()
    assert found.card["onnx"] is None
    assert "No ONNX graph was written." in found.card["limits"]


# The card -------------------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_card_are_those_of_scikit_learn_on_the_same_answers(simulated: SimulationResult,
                                                                               hand_over: Exported) -> None:
    from sklearn.metrics import confusion_matrix, precision_score, roc_auc_score

    model, facts = read_model(hand_over.model)
    images_NCHW, labels_N = images_of(simulated, "test")
    logits_NK = logits_of(model, images_NCHW, facts.image).numpy()
    predicted_N, test = logits_NK.argmax(axis=1), hand_over.card["test"]
    assert test["confusion"] == confusion_matrix(labels_N, predicted_N, labels=range(10)).tolist()
    assert test["accuracy"] == (predicted_N == labels_N).mean() == simulated.accuracy
    interval = wilson(int((predicted_N == labels_N).sum()), len(labels_N))
    assert interval is not None
    assert test["accuracy_interval"] == {"low": interval.low, "high": interval.high}
    assert test["balanced_accuracy_interval"]["low"] <= test["balanced_accuracy"]
    assert test["balanced_accuracy"] <= test["balanced_accuracy_interval"]["high"]
    assert test["auroc_macro"] == pytest.approx(
        roc_auc_score(labels_N, probabilities(logits_NK), multi_class="ovr", average="macro"))
    precisions = precision_score(labels_N, predicted_N, labels=range(10), average=None, zero_division=np.nan)
    ours = [np.nan if each["precision"] is None else each["precision"] for each in test["classes"]]
    assert ours == pytest.approx(precisions, nan_ok=True)


def test_the_temperature_is_fitted_on_validation_images_alone(simulated: SimulationResult, hand_over: Exported) -> None:
    model, facts = read_model(hand_over.model)
    images_NCHW, labels_N = images_of(simulated, "validation")
    wanted = fit_temperature(logits_of(model, images_NCHW, facts.image).numpy(), labels_N)
    assert facts.temperature == hand_over.card["test"]["temperature"] == wanted
    assert hand_over.card["test"]["calibration_with_temperature"]["expected_error"] != \
        hand_over.card["test"]["calibration"]["expected_error"]


def test_a_model_that_is_right_on_all_validation_images_and_wrong_on_a_test_image_is_handed_over_with_finite_numbers(
        simulated: SimulationResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers are made up: right by 50 on validation images, and on test images but for the first."""
    validation, test = (images_of(simulated, name)[1] for name in ("validation", "test"))
    wrong = np.where(np.arange(len(test)) == 0, (test + 1) % 10, test)
    answers = {len(validation): 50.0 * np.eye(10, dtype=np.float32)[validation],
               len(test): 50.0 * np.eye(10, dtype=np.float32)[wrong]}
    assert len(validation) != len(test)
    monkeypatch.setattr(export_module, "logits_of", lambda model, images, form, **more: torch.from_numpy(
        answers[len(images)]))
    monkeypatch.setattr(export_module, "_check_weights", lambda *arguments: None)
    found = exported(simulated, tmp_path / "out", calibrate=True, formats=("safetensors",))
    card = json.loads((found.folder / "model_card.json").read_text(), parse_constant=pytest.fail)
    count = len(validation)
    assert card["test"]["temperature"] == pytest.approx(50 / np.log((count + 1) * 9))
    after = card["test"]["calibration_with_temperature"]["negative_log_likelihood"]
    right, wrong_one = -np.log((count + 1) / (count + 2)), -np.log(1 / (count + 2) / 9)
    assert after == pytest.approx((right * (len(test) - 1) + wrong_one) / len(test))


def test_images_that_have_changed_since_are_told_on_the_card_and_fit_no_probabilities(
        simulated: SimulationResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are held out of others may be ones that were trained on."""
    real = export_module.read_study_data
    changes = {"validation": "40 validation images then, 39 now"}
    monkeypatch.setattr(export_module, "read_study_data", lambda *arguments, **more: replace(
        real(*arguments, **more), changes=changes))
    found = exported(simulated, tmp_path / "out", formats=("safetensors",))
    said = "The coordinator's images are not those with which the study was started: 40 validation images then, 39 now."
    assert said in found.card["limits"]
    with pytest.raises(UsageError, match="are not those of the study any more: 40 validation images then, 39 now"):
        exported(simulated, tmp_path / "other", formats=("safetensors",), calibrate=True)


def test_test_images_that_stand_among_others_by_now_measure_nothing_and_the_card_says_so(
        simulated: SimulationResult, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(simulated.folder / "studies" / simulated.study, folder)
    shutil.copyfile(folder / "data" / "validation.npz", folder / "data" / "test.npz")
    ledger = Ledger(simulated.folder / "ledger.sqlite")
    try:
        found = export_study(ledger, simulated.study, study_folder=folder, out=tmp_path / "out", choice=ExportChoice(
            device="cpu", round="last", formats=("safetensors",)))
    finally:
        ledger.close()
    assert found.card["test"] is None
    assert any("test images have the pixels of validation ones" in each for each in found.card["limits"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["labelled", "validation", "test"])
def test_a_model_is_handed_over_though_images_cannot_be_read_any_more_and_the_card_says_so(
        simulated: SimulationResult, tmp_path: Path, name: str) -> None:
    """Of a study that is over, whose images are archived elsewhere by then."""
    folder = tmp_path / "study"
    shutil.copytree(simulated.folder / "studies" / simulated.study, folder)
    (folder / "data" / f"{name}.npz").unlink()
    ledger = Ledger(simulated.folder / "ledger.sqlite")
    try:
        found = export_study(ledger, simulated.study, study_folder=folder, out=tmp_path / "out", choice=ExportChoice(
            device="cpu", round="last", formats=("safetensors",)))
        with pytest.raises(UsageError) if name != "test" else contextlib.nullcontext():
            export_study(ledger, simulated.study, study_folder=folder, out=tmp_path / "fitted", choice=ExportChoice(
                device="cpu", round="last", formats=("safetensors",), calibrate=True))
    finally:
        ledger.close()
    (said,) = [each for each in found.card["limits"] if f"the {name} images cannot be read" in each]
    assert str(tmp_path) not in said
    if name == "test":
        assert found.card["test"] is None
    else:
        check_what_is_exported(simulated, found)


def test_the_card_names_where_the_model_comes_from(simulated: SimulationResult, hand_over: Exported) -> None:
    found = hand_over.card["provenance"]
    ledger = Ledger(simulated.folder / "ledger.sqlite")
    try:
        assert found["state_sha256"] == simulated.digest == ledger.committed_digest(simulated.study)
        (last,) = ledger.query("SELECT number, chain FROM event ORDER BY number DESC LIMIT 1")
        assert found["event_chain"] == {"head": last["chain"], "events": last["number"], "intact": True}
        assert hand_over.card["settings"] == ledger.study(simulated.study).config
    finally:
        ledger.close()
    text = (simulated.folder / "studies" / simulated.study / "study.toml").read_bytes()
    assert found["study_file_sha256"] == hashlib.sha256(text).hexdigest()
    cost = hand_over.card["cost"]
    assert cost["payload_down"] == sum(each.payload_down for each in simulated.rounds)
    assert cost["payload_up"] == sum(each.payload_up for each in simulated.rounds)
    assert cost["wire_down"] is None
    silos = hand_over.card["data"]["silos"]
    assert silos["count"] == 3
    assert sum(each["updates"] for each in silos["silos"]) == sum(
        each.answers.get("updated", 0) for each in simulated.rounds)


@pytest.mark.slow
def test_a_card_of_a_study_in_which_no_silo_trained_says_so_and_claims_no_gain(
        hand_over: Exported, tmp_path: Path) -> None:
    tables = study("semifl", rounds=1, study={"labelled_only_baseline": True, "baseline_epochs": 1},
                   settings={"confidence_threshold": 1.0})  # every silo abstains
    found = exported(run(tables, out=tmp_path / "run", device="cpu"), tmp_path / "out", formats=("safetensors",))
    text, usual = (each.folder.joinpath("model_card.md").read_text() for each in (found, hand_over))
    assert found.card["cost"]["updates_accepted"] == 0 < hand_over.card["cost"]["updates_accepted"]
    assert any("No update of any silo was taken in" in limit for limit in found.card["limits"])
    assert not any("No update of any silo" in limit for limit in hand_over.card["limits"])
    assert ("| Gain" in text, "| Gain" in usual) == (False, True)


def test_the_card_does_not_tell_where_files_lie_on_the_coordinators_disk() -> None:
    shown = settings_shown({"data": {"test": "/home/mueller/scans/test.npz#test", "labelled": "data/labelled.npz"},
                            "model": {"weights": "C:\\Users\\mueller\\w.pth"}, "study": {"seed": 1}})
    assert shown == {"data": {"test": "test.npz#test", "labelled": "data/labelled.npz"},
                     "model": {"weights": "w.pth"}, "study": {"seed": 1}}


def test_an_altered_ledger_shows_in_the_card(simulated: SimulationResult, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(simulated.folder, copy)
    ledger = Ledger(copy / "ledger.sqlite")
    with ledger.transaction() as db:
        db.execute("DROP TRIGGER event_is_append_only_1")
        db.execute("UPDATE event SET detail_json = '{}' WHERE number = 2")
    try:
        found = export_study(ledger, simulated.study, study_folder=copy / "studies" / simulated.study,
                             out=tmp_path / "out", choice=ExportChoice(formats=("safetensors",), device="cpu"))
    finally:
        ledger.close()
    assert found.card["provenance"]["event_chain"]["intact"] is False


def test_names_of_silos_can_be_left_out(simulated: SimulationResult, hand_over: Exported, tmp_path: Path) -> None:
    found = exported(simulated, tmp_path / "out", formats=("safetensors",), silo_names=False)
    for path in found.folder.glob("model_card.*"):
        assert b"silo-000" not in path.read_bytes()
        assert b"silo-000" in (hand_over.folder / path.name).read_bytes()
    assert [each["silo"] for each in found.card["data"]["silos"]["silos"]] == ["silo 1", "silo 2", "silo 3"]


def test_the_card_says_what_it_is_not_for_and_what_was_not_measured(simulated: SimulationResult, hand_over: Exported,
                                                                    tmp_path: Path) -> None:
    text = (hand_over.folder / "model_card.md").read_text()
    assert "Not for clinical use" in text
    assert "Not measured: differences between patients" in text
    best = exported(simulated, tmp_path / "best", round="best-on-test", formats=("safetensors",))
    assert any("optimistic. Measure it on other images" in line for line in best.card["limits"])
    assert not any("Measure it on other images" in line for line in hand_over.card["limits"])


@pytest.mark.slow
def test_a_study_without_test_images_has_a_card_that_says_so(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.arange(60) % 3)
    result = run(study("semifl", rounds=1, silos=2, simulation={"data": str(tmp_path / "train.npz")},
                       split={"fraction": 1.0, "num_labelled": 6, "num_validation": 0}), out=tmp_path / "run",
                 device="cpu")
    found = exported(result, tmp_path / "out")
    assert found.card["test"] is None
    assert found.card["onnx"]["source"] == "labelled"
    assert "The accuracy was not measured: the coordinator has no test images." in found.card["limits"]
    assert not (found.folder / "reliability.png").exists()
    assert "Not measured: there are no test images." in (found.folder / "model_card.html").read_text()
    with pytest.raises(UsageError, match="validation images, and the study has none"):
        exported(result, tmp_path / "calibrated", calibrate=True)
    with pytest.raises(UsageError, match="no round is known to be the best"):
        exported(result, tmp_path / "best", round="best-on-test")
    with pytest.raises(BadData, match=r"--test .*train\.npz: 6 of 60 test images have the pixels of labelled ones"):
        exported(result, tmp_path / "measured", test=str(tmp_path / "train.npz"), formats=("safetensors",))
    np.savez(tmp_path / "other.npz", images=255 - images, labels=np.arange(60) % 3)
    measured = exported(result, tmp_path / "measured", test=str(tmp_path / "other.npz"), formats=("safetensors",))
    assert measured.card["test"]["images"] == 60
    assert measured.card["recorded_accuracy"] is None


def test_patients_are_counted_on_the_card_where_they_are_known(hand_over: Exported) -> None:
    card = hand_over.facts
    assert "Patients" not in card_markdown(card)
    own = replace(card.data.coordinator, labelled_patients=7, test_patients=2)
    said = card_markdown(replace(card, data=replace(card.data, coordinator=own)))
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in said.splitlines()
            if line.startswith("|")]
    table = rows[rows.index(["Set", "Images", "Patients"]):]
    assert [row[2] for row in table[2:5]] == ["7", "not known" if own.validation else "0", "2"]


@pytest.mark.parametrize(("count", "broken", "said"), [
    (5, 3, "3 files of the coordinator could not be read and were left out; 2 more were left out: no images, or"),
    (1, 1, "1 file of the coordinator could not be read and was left out."),
    (2, 0, "2 files of the coordinator were left out: no images, or without a class."),
    (1, None, "1 file of the coordinator was left out.")])
def test_files_that_are_no_images_are_not_called_unreadable(hand_over: Exported, count: int, broken: int | None,
                                                            said: str) -> None:
    card = hand_over.facts
    assert card.data.coordinator.unreadable_files == 0
    assert "left out" not in card_markdown(card).partition("## Data")[2].partition("## Result")[0]
    own = replace(card.data.coordinator, left_out_files=count, unreadable_files=broken)
    card = replace(card, data=replace(card.data, coordinator=own))
    assert said in card_markdown(card)
    assert said in _Page(card_html(card)).text


def test_names_that_hold_markup_stay_text(hand_over: Exported) -> None:
    card, name = hand_over.facts, "<script>alert(1)</script> | *x*"
    assert card.test is not None
    first, *others = card.test.classes
    card = replace(card, model=replace(card.model, classes=(name, *card.model.classes[1:])),
                   test=replace(card.test, classes=(replace(first, name=name), *others)))
    html, markdown = card_html(card), card_markdown(card)
    page = _Page(html)
    assert "script" not in page.tags
    assert "<script>alert(1)</script> | *x*" in page.text
    row = next(line for line in markdown.splitlines() if "alert" in line and line.startswith("| &lt;"))
    assert r"&lt;script&gt;alert(1)&lt;/script&gt; \| \*x\*" in row
    assert row.replace(r"\|", "").count("|") == 10  # with the recall of labels alone


# Which model, and where to --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_round_can_be_chosen_and_one_that_there_is_not_is_refused(simulated: SimulationResult, tmp_path: Path
                                                                    ) -> None:
    for number in (1, 2):
        found = exported(simulated, tmp_path / str(number), round=str(number), formats=("safetensors",))
        assert found.card["test"]["accuracy"] == simulated.rounds[number].accuracy
        assert found.card["cost"]["payload_up"] == sum(each.payload_up for each in simulated.rounds[:number + 1])
    best = exported(simulated, tmp_path / "best", round="best-on-test", formats=("safetensors",))
    assert best.card["test"]["accuracy"] == max(each.accuracy or 0 for each in simulated.rounds)
    for wrong in ("7", "worst", "-1"):
        with pytest.raises(UsageError) as caught:
            exported(simulated, tmp_path / "wrong", round=wrong)
        assert "0, 1, 2, 3" in caught.value.remedy


def test_a_round_whose_model_is_gone_is_named_with_those_that_are_kept(simulated: SimulationResult, tmp_path: Path
                                                                       ) -> None:
    copy = tmp_path / "run"
    shutil.copytree(simulated.folder, copy)
    ledger = Ledger(copy / "ledger.sqlite")
    state = ledger.round(simulated.study, 1).state_digest
    (copy / "studies" / simulated.study / "states" / f"{state}.safetensors").unlink()
    try:
        with pytest.raises(UsageError, match="round 1 is no longer kept") as caught:
            export_study(ledger, simulated.study, study_folder=copy / "studies" / simulated.study,
                         out=tmp_path / "out", choice=ExportChoice(round="1"))
    finally:
        ledger.close()
    assert "0, 2, 3" in caught.value.remedy


@pytest.mark.slow
def test_an_earlier_export_with_a_file_beside_it_is_refused_and_stays(simulated: SimulationResult, tmp_path: Path
                                                                     ) -> None:
    out = tmp_path / "out"
    exported(simulated, out, formats=("safetensors",))
    card = json.loads((out / "model_card.json").read_text())
    (out / "model.onnx").write_bytes(b"of an export with a graph")
    for extra in ("predictions.csv", "notes/of-a-reader.txt"):
        path = out / extra
        path.parent.mkdir(exist_ok=True)
        path.write_text("kept")
        with pytest.raises(UsageError, match=f"no export has written: {extra}"):
            exported(simulated, out, formats=("safetensors",))
        assert path.read_text() == "kept"
        path.unlink()
    (out / "notes").rmdir()
    (out / "my_net.py").write_text("the network's")  # the card of one that has such a file names it
    (out / "model_card.json").write_text(json.dumps({**card, "files": {**card["files"], "my_net.py": {}}}))
    exported(simulated, out, formats=("safetensors",))
    assert not (out / "model.onnx").exists()
    (out / "model_card.json").write_text("[]")
    with pytest.raises(UsageError, match="not an earlier export"):
        exported(simulated, out, formats=("safetensors",))


def test_a_file_that_is_put_beside_an_earlier_export_while_the_next_is_made_stays(
        simulated: SimulationResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, real = tmp_path / "out", export_module._write
    exported(simulated, out, formats=("safetensors",))
    (tmp_path / ".out.aaaaaaaaaaaa.tmp").mkdir()  # of one that was killed

    def write(*arguments: Any) -> Any:
        (out / "notes.txt").write_text("kept")
        return real(*arguments)

    monkeypatch.setattr(export_module, "_write", write)
    with pytest.raises(UsageError, match=r"no export has written: notes\.txt"):
        exported(simulated, out, formats=("safetensors",))
    assert (out / "notes.txt").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_what_killed_exports_have_left_goes_and_not_what_another_is_writing(tmp_path: Path) -> None:
    """The page kills an export that nobody waits for any more: each left a folder with the model for good."""
    target, left = tmp_path / "out", [tmp_path / f".out.{digit * 12}.tmp" for digit in "ab"]
    others = [tmp_path / name for name in (".out.tmp", ".other.aaaaaaaaaaaa.tmp", "out.aaaaaaaaaaaa.tmp")]
    for path in (*left, *others):
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"weights")
    with export_module._working(target) as work:
        export_module._remove_left(target)
        assert all(path.exists() for path in (work, *left, *others)), "somebody is at work"
    export_module._remove_left(target)
    assert sorted(tmp_path.iterdir()) == sorted(others)
    # Killed between the two names of a replacement: the earlier export has its name again.
    earlier = tmp_path / ".out.cccccccccccc.old"
    others[0].rename(earlier)
    export_module._remove_left(target)
    assert (target / "model.safetensors").exists()
    assert not earlier.exists()


def test_an_earlier_export_that_somebody_has_looked_at_is_replaced(
        simulated: SimulationResult, hand_over: Exported, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(hand_over.folder, out)
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (out / name).write_text("a view")
    exported(simulated, out, formats=("safetensors",))
    assert not (out / "model.onnx").exists()
    (out / ".git").mkdir()
    (out / ".git" / "config").write_text("years of work")
    with pytest.raises(UsageError, match=r"no export has written: \.git/config"):
        exported(simulated, out, formats=("safetensors",))


def test_an_earlier_export_is_replaced_and_other_files_are_not(
        simulated: SimulationResult, hand_over: Exported, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(hand_over.folder, out)
    assert (out / "model.onnx").exists()
    exported(simulated, out, formats=("safetensors",))
    assert not (out / "model.onnx").exists()
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not an earlier export"):
        exported(simulated, other)
    assert [path.name for path in other.iterdir()] == ["chapter.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "thesis"]


def everything_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file() and "sqlite" not in path.name}


def test_the_command_exports_beside_a_running_coordinator_and_changes_nothing(simulated: SimulationResult,
                                                                              tmp_path: Path) -> None:
    """`serve` holds the folder's lock and, at any moment, a transaction of the ledger."""
    federation = create_federation(tmp_path / "hub", name="lung", address="localhost:8443")
    shutil.copytree(simulated.folder / "studies", federation.studies, dirs_exist_ok=True)
    shutil.copy(simulated.folder / "ledger.sqlite", federation.ledger)
    ledger = Ledger(federation.ledger)
    before = everything_in(federation.folder)
    try:
        with federation.lock(), ledger.transaction() as db:
            db.execute("UPDATE study SET reason = 'serving'")
            status, out, err = run_command(
                "semisilo.coordinator.cli.main", "export", "-C", str(federation.folder), "--out", str(tmp_path / "out"),
                "--format", "safetensors", "--device", "cpu", "--round", "last", "--json")
        assert status == 0, err
        card = json.loads(out)["card"]
        assert card["test"]["accuracy"] == simulated.accuracy
        assert {**everything_in(federation.folder)}.items() >= before.items()
        assert len(ledger.query("SELECT * FROM event")) == card["provenance"]["event_chain"]["events"]
        status, _, err = run_command("semisilo.coordinator.cli.main", "export", "-C", str(federation.folder),
                                     "--format", "safetensors", "--patient", "none")
        assert (status, "--patient none: is said of the images of --test" in err) == (2, True)
    finally:
        ledger.close()


# What was handed over is not trusted ----------------------------------------------------------------------------------


def rewritten(model: Path, target: Path, *, facts: dict[str, Any] | None = None,
              tensors: dict[str, torch.Tensor] | None = None, without: str = "") -> Path:
    """A model file with other facts or tensors."""
    from safetensors.torch import save_file

    with safe_open(str(model), framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = json.loads(file.metadata()["semisilo"])
    held |= tensors or {}
    held.pop(without, None)
    for key, value in (facts or {}).items():
        text[key] = {**text[key], **value} if isinstance(value, dict) else value
    save_file(held, str(target), metadata={"semisilo": json.dumps(text)})
    return target


def test_a_small_file_cannot_ask_for_an_enormous_network(hand_over: Exported, tmp_path: Path) -> None:
    """mlp_5000 for 4096 x 4096 colour pixels would be a matrix of a terabyte."""
    path = rewritten(hand_over.model, tmp_path / "m.safetensors", facts={
        "model": {"name": "mlp_5000"}, "image": {"size": 4096, "channels": 3, "mean": [0.5] * 3, "std": [1.0] * 3}})
    with pytest.raises(BadData, match="its tensors are not those of its network"):
        read_model(path)


def test_a_damaged_or_foreign_model_is_refused_with_the_reason(hand_over: Exported, tmp_path: Path) -> None:
    with safe_open(str(hand_over.model), framework="pt") as file:
        name = next(key for key in file.keys() if key.endswith(".weight"))  # noqa: SIM118
        tensor = file.get_tensor(name)
    path = tmp_path / "m.safetensors"
    for tensors, without, text in (
            ({}, name, f"'{name}' is missing"), ({"extra": torch.zeros(3)}, "", "'extra' is"),
            ({name: tensor.double()}, "", "another type"), ({name: torch.full_like(tensor, torch.nan)}, "", "finite")):
        with pytest.raises(BadData, match=text):
            read_model(rewritten(hand_over.model, path, tensors=tensors, without=without))
    for facts, text in (({"format": 9}, "another version"), ({"temperature": 0.0}, "must be above 0"),
                        ({"model": {"classes": ["a"]}}, "two different names"), ({"surprise": 1}, "unknown key"),
                        ({"model": {"freeze": "backbone"}}, "settings of training")):
        with pytest.raises(BadData, match=text):
            read_facts(rewritten(hand_over.model, path, facts=facts))
    path.write_bytes(b"\x00" * 100)
    with pytest.raises(BadData, match="cannot be read as a safetensors file"):
        read_model(path)


def test_code_of_others_is_imported_only_when_the_reader_names_it(hand_over: Exported, tmp_path: Path) -> None:
    path = rewritten(hand_over.model, tmp_path / "m.safetensors", facts={"model": {"name": "antigravity:fly"}})
    with pytest.raises(NotPermitted):
        read_model(path)
    assert "antigravity" not in sys.modules


# Operating point ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_operating_point_stands_in_facts_and_card_with_what_it_gives_on_both_sets(
        simulated: SimulationResult, tmp_path: Path) -> None:
    found = exported(simulated, tmp_path / "out", operating_point="sensitivity 90% for 3", calibrate=True,
                     formats=("safetensors",))
    point, facts = found.card["operating_point"], read_facts(found.model)
    assert facts.operating_point is not None
    assert (facts.operating_point.label, facts.operating_point.measure, facts.operating_point.level) == (
        "3", "sensitivity", 0.9)
    model, _ = read_model(found.model)
    for name in ("validation", "test"):
        images_NCHW, labels_N = images_of(simulated, name)
        p = probabilities(logits_of(model, images_NCHW, facts.image).numpy(), temperature=facts.temperature)[:, 3]
        reached, own = p >= facts.operating_point.threshold, labels_N == 3
        assert point[name]["sensitivity"] == (reached & own).sum() / own.sum()
        assert point[name]["specificity"] == (~reached & ~own).sum() / (~own).sum()
        interval = wilson(int((reached & own).sum()), int(own.sum()))
        assert interval is not None
        assert point[name]["sensitivity_interval"] == {"low": interval.low, "high": interval.high}
    assert point["validation"]["sensitivity"] >= 0.9
    text = card_markdown(found.facts)
    assert "## Operating point" in text
    assert "sensitivity 90 % for 3" in text
    assert any("operating point" in line for line in found.card["limits"])
    plain = exported(simulated, tmp_path / "plain", formats=("safetensors",))
    assert plain.card["operating_point"] is None
    assert plain.card["test"]["accuracy"] == found.card["test"]["accuracy"], "the other numbers are without it"
    assert "## Operating point" not in card_markdown(plain.facts)


@pytest.mark.slow
def test_without_validation_images_an_operating_point_is_refused_with_a_remedy(tmp_path: Path) -> None:
    result = run(study("semifl", rounds=1, silos=2, split={"num_validation": 0}), out=tmp_path / "run", device="cpu")
    with pytest.raises(UsageError, match="validation images") as raised:
        exported(result, tmp_path / "out", operating_point="sensitivity 90% for 3", formats=("safetensors",))
    assert "[data] validation" in (raised.value.remedy or "")
    assert not (tmp_path / "out").exists()


def test_facts_say_what_the_probabilities_stand_for_and_files_without_it_are_read(
        hand_over: Exported, simulated: SimulationResult) -> None:
    facts = read_facts(hand_over.model)
    assert facts.training_prior == pytest.approx((0.1,) * 10), "two labels of each of ten classes"
    finished = simulated.folder / "studies" / simulated.study / "model.safetensors"
    assert read_facts(finished).training_prior == facts.training_prior
    older = json.loads(facts.to_json())
    del older["training_prior"], older["operating_point"]
    assert facts_from_json(json.dumps(older), where="x") == replace(facts, training_prior=(), operating_point=None)
    for wrong in ({"training_prior": [0.5, 0.5]}, {"training_prior": [0.0] + [0.1] * 9},
                  {"operating_point": {"label": "x", "measure": "sensitivity", "level": 0.9, "threshold": 0.5}},
                  {"operating_point": {"label": "3", "measure": "sensitivity", "level": 0.9, "threshold": 2.0}}):
        with pytest.raises(BadData, match=r"training_prior|operating point"):
            facts_from_json(json.dumps({**json.loads(facts.to_json()), **wrong}), where="x")


# Labels alone ---------------------------------------------------------------------------------------------------------


def test_labels_alone_are_handed_over_with_a_card_that_says_what_they_are(
        simulated: SimulationResult, tmp_path: Path) -> None:
    found = exported(simulated, tmp_path / "alone", round="labels-alone", formats=("safetensors",))
    card = found.facts
    assert card.test is not None
    assert card.labelled_only is not None
    assert card.test.accuracy == card.recorded_accuracy == card.labelled_only.accuracy
    assert card.labelled_only.metrics["validation_accuracy"] >= 0
    assert "learning rate" in card.labelled_only.recipe
    assert card.model.chosen == "labels-alone"
    assert card.cost.updates_accepted == 0
    assert any("without any silo" in limit for limit in card.limits)
    assert "trained on labels alone" in (found.folder / "model_card.md").read_text()
    assert "labels alone" in (found.folder / "model_card.md").read_text()
    network, facts = read_model(found.model)
    assert (facts.method, facts.round) == ("labels-alone", None)
    images_NCHW, labels_N = images_of(simulated, "test")
    right = (logits_of(network, images_NCHW, facts.image).numpy().argmax(axis=1) == labels_N).mean()
    assert right == pytest.approx(card.test.accuracy)


def test_labels_alone_that_were_changed_or_never_trained_are_not_handed_over(
        simulated: SimulationResult, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(simulated.folder, folder)
    copy = replace(simulated, folder=folder)
    file = folder / "studies" / copy.study / LABELS_ALONE_MODEL
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(StorageDamaged, match="ledger names"):
        exported(copy, tmp_path / "alone", round="labels-alone", formats=("safetensors",))
    file.unlink()
    with pytest.raises(UsageError, match="is not kept"):
        exported(copy, tmp_path / "alone", round="labels-alone", formats=("safetensors",))
