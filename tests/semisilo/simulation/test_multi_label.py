"""Studies whose images have several labels or none, simulated: two digits side by side, ten classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semisilo.common.errors import BadConfiguration
from semisilo.common.models.exported import read_facts
from semisilo.prediction.predictor import predict
from semisilo.silo.compute.messages import EvaluateFile
from semisilo.silo.compute.operations import Operations
from semisilo.silo.site.home import JoinChoice
from semisilo.simulation import run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.output import export_run
from semisilo.simulation.settings import load_simulated_study
from tests.two_digits import CLASSES, write_two_digits

ON_LABELS = {"local_epochs": 1, "labelled_batch": 32}
SMALL = {**ON_LABELS, "unlabelled_batch": 32}
CASES: dict[str, dict[str, Any]] = {
    "semifl": {"name": "semifl", **SMALL, "coordinator_epochs": 8, "confidence_threshold": 0.8},
    "fedavg-fixmatch": {"name": "fedavg", "scenario": "labels-at-coordinator", "objective": "fixmatch", **SMALL,
                        "coordinator_epochs": 8, "lr": 0.05, "momentum": 0.9, "lambda_s": 1.0,
                        "class_weights": "balanced"},
    "fedavg-sl": {"name": "fedavg", "scenario": "labels-at-silo", "objective": "sl", **ON_LABELS, "local_epochs": 8,
                  "lr": 0.05, "momentum": 0.9, "lambda_s": 1.0},
    "fedprox": {"name": "fedprox", "scenario": "labels-at-silo", "objective": "fixmatch", **SMALL, "local_epochs": 4,
                "lr": 0.05, "momentum": 0.9, "lambda_s": 1.0},
    "fednova": {"name": "fednova", "scenario": "labels-at-silo", "objective": "sl", **ON_LABELS, "local_epochs": 8,
                "lr": 0.05, "momentum": 0.9, "lambda_s": 1.0},
    "scaffold": {"name": "scaffold", "scenario": "labels-at-silo", "objective": "sl", **ON_LABELS, "local_epochs": 8,
                 "lr": 0.4, "lambda_s": 1.0},
    "fedmix": {"name": "fedmix", **SMALL, "coordinator_epochs": 12, "lr": 0.02, "momentum": 0.9, "lambda_s": 1.0,
               "lambda_1": 1.0, "lambda_2": 0.1, "confidence_threshold": 0.6, "negative_threshold": 0.3},
    "self_training": {"name": "self_training", **SMALL, "warm_up_steps": 40, "coordinator_steps": 5},
    "self_training-at-silo": {"name": "self_training", "scenario": "labels-at-silo", **SMALL, "warm_up_rounds": 1},
    "self_training-at-both": {"name": "self_training", "scenario": "labels-at-both", **SMALL, "warm_up_steps": 40,
                              "coordinator_steps": 5, "labelled_steps": 10},
}
ROUNDS = {"fedavg-sl": 6, "fednova": 6, "fedprox": 8}
"""Of those that learn slowly from the few labels of two silos; others have two."""
QUICK = {"semifl"}
"""What differs between the others is tested with one label for an image."""
LEAST = 0.6
"""Macro AUROC after these rounds; guessing has 0.5, with a standard error below 0.02 on these images."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_digits(tmp_path_factory.mktemp("two") / "two.npz", train=500, test=200)


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    """An export sets torch's numerics for its process."""
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    yield
    torch.set_deterministic_debug_mode(mode)
    torch.set_num_threads(threads)


def tables_of(images: Path, method: dict[str, Any], *, rounds: int = 2, silos: int = 2, **study: Any) -> dict[str, Any]:
    """The tables of a study over the two-digit images."""
    split: dict[str, Any] = {"name": "iid", "silos": silos}
    scenario = method.get("scenario", "labels-at-coordinator")
    if scenario != "labels-at-silo":
        split["num_labelled"] = 80
    if scenario != "labels-at-coordinator":
        split["labelled_per_class"] = 4
    return {"study": {"task": "multi_label", "rounds": rounds, "labelled_only_baseline": False, **study},
            "model": {"name": "small_cnn", "normalisation": "group"}, "method": method,
            "data": {"image": {"size": 12, "channels": 1, "resize": "stretch", "mean": [0.3], "std": [0.3]}},
            "simulation": {"data": str(images), "split": split}}


@pytest.mark.slow
@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow)
                                  for case in CASES])
def test_a_method_that_is_defined_for_several_labels_learns_them(images: Path, tmp_path: Path, case: str) -> None:
    found = run(tables_of(images, CASES[case], rounds=ROUNDS.get(case, 2)), out=tmp_path / "run", device="cpu",
                engine="process")
    last = dict(found.rounds[-1].metrics)
    assert last["auroc"] > LEAST
    assert {f"auroc/{name}" for name in CLASSES} | {f"average_precision/{name}" for name in CLASSES} <= set(last)
    assert not [name for name in last if "accuracy" in name], "whether an image is right hangs on cut-offs"
    assert read_facts(found.model).task == "multi_label", "whoever uses it would take one class for the answer"
    assert predict(found.model, np.zeros((2, 12, 12, 1), np.uint8)).multi_label
    told = {name for each in found.silos for name in each.metrics}
    if "sl" not in case and case not in ("scaffold", "fednova"):
        assert {"label_ratio", "threshold_accuracy"} <= told


@pytest.mark.slow
def test_a_site_measures_the_model_that_was_handed_over_as_the_coordinator_does(images: Path, tmp_path: Path) -> None:
    found = run(tables_of(images, CASES["fedavg-sl"], rounds=1), out=tmp_path / "run", device="cpu", engine="process")
    with np.load(images) as arrays:
        np.savez(tmp_path / "site.npz", train_images=arrays["test_images"], train_labels=arrays["test_labels"])
    measured = Operations(lambda fraction, text: None).evaluate_file(EvaluateFile(
        path=found.model, stop_file=tmp_path / "stop",
        choice=JoinChoice(source=str(images), test=str(tmp_path / "site.npz"))))
    assert (measured.why_not, measured.class_names) == ("", CLASSES)
    for name, each in zip(CLASSES, measured.classes, strict=True):
        assert each.images + (each.others or 0) == 200, "every image is a question of each class"
        # In batches of another size some images of almost the same probability change places: one pair of 11,000 each.
        assert each.auroc == pytest.approx(found.rounds[-1].metrics[f"auroc/{name}"], abs=5e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("torch_as_before")
def test_the_model_that_a_study_writes_has_the_thresholds_that_an_export_chooses(images: Path, tmp_path: Path) -> None:
    """Silos fetch that file, and 0.5 is seldom a good threshold."""
    for part, num_validation in (("with", 60), ("without", 0)):
        tables = tables_of(images, CASES["semifl"], rounds=1)
        tables["simulation"]["split"]["num_validation"] = num_validation
        found = run(tables, out=tmp_path / part, device="cpu", engine="process")
        written = read_facts(found.model).thresholds
        exported = export_run(found.folder, out=tmp_path / f"export-{part}", formats=("safetensors",), device="cpu")
        assert written == pytest.approx(read_facts(exported.model).thresholds, abs=1e-6)  # in another memory format
        assert (len(written), len(set(written)) > 1) == ((10, True) if num_validation else (0, False))


@pytest.mark.slow
def test_the_same_study_gives_the_same_bits_again(images: Path, tmp_path: Path) -> None:
    tables = tables_of(images, CASES["semifl"])
    first, second = (run(tables, out=tmp_path / str(number), device="cpu") for number in range(2))
    assert first.digest == second.digest


@pytest.mark.parametrize(("method", "study", "text"), [
    ({"name": "fedmatch"}, {}, "not defined for the method fedmatch. It is for: self_training, semifl, fedmix, fedavg"),
    *(({"name": name}, {}, f"not defined for the method {name}") for name in ("fed_shvr", "local", "fedrgd", "fedsgd")),
    *(({"name": "fedavg", "objective": objective}, {}, "Choose .sl. or .fixmatch.")
      for objective in ("uda", "pseudo_label", "mean_teacher")),
    ({"name": "semifl", "task": "multi_label"}, {}, "'task' belongs in .study."),
    ({"name": "semifl"}, {"measure": "accuracy"}, "hangs on a cut-off"),
    ({"name": "semifl"}, {"measure": "recall:3"}, "hangs on a cut-off"),
    ({"name": "semifl"}, {"local_accuracy": True}, "local_accuracy = true has no meaning"),
    ({"name": "semifl"}, {"task": "single_label", "measure": "average_precision"}, 'task = "multi_label"'),
])
def test_what_is_not_defined_for_several_labels_is_refused_by_name(images: Path, method: dict[str, Any],
                                                                  study: dict[str, Any], text: str) -> None:
    with pytest.raises(BadConfiguration, match=text):
        load_simulated_study(tables_of(images, method, **study))


@pytest.mark.parametrize(("split", "text"), [
    ({"name": "batch_iid"}, "deals images of one class each"),
    ({"name": "shards"}, "Choose iid or dirichlet_semifl"), ({"label_imbalance": 5.0}, "label_imbalance"),
    ({"num_labelled": [8] * 10}, "Give one number"), ({"num_labelled": 5000}, "num_labelled = 5000")])
def test_splits_that_count_classes_are_refused_by_name(images: Path, split: dict[str, Any], text: str) -> None:
    tables = tables_of(images, {"name": "semifl"})
    tables["simulation"]["split"] |= split
    with pytest.raises(BadConfiguration) as caught:
        deal_study(load_simulated_study(tables))
    assert text in caught.value.line()


def test_findings_are_dealt_unevenly_by_the_rarest_one(images: Path) -> None:
    tables = tables_of(images, {"name": "semifl"})
    even = deal_study(load_simulated_study(tables))
    tables["simulation"]["split"] |= {"name": "dirichlet_semifl", "dirichlet": 0.5}
    uneven = deal_study(load_simulated_study(tables))
    assert uneven.non_iidness() > even.non_iidness() + 0.1
    assert len(uneven.split.coordinator) == 80
    labelled = uneven.coordinator_set("labelled")
    assert labelled is not None
    assert labelled.labels_N is not None
    assert bool((labelled.labels_N.sum(dim=0) > 0).all()), "every finding is among the labels"


def test_images_of_which_nothing_is_known_are_dealt_to_silos_and_to_nobody_as_labelled(
        images: Path, tmp_path: Path) -> None:
    """With the coordinator's own labels beside them silos' labels are for diagnostics alone, and may all be missing."""
    with np.load(images) as arrays:
        pixels, rows = arrays["train_images"][:90], arrays["train_labels"][:90].astype(np.int8)
    rows[::3] = -1
    for name, unknown in (("hub", rows[:30]), ("some", rows[30:60]), ("none", np.full_like(rows[60:], -1))):
        np.savez(tmp_path / f"{name}.npz", images=pixels[:30], labels=unknown, classes=np.array(CLASSES))
    tables = tables_of(images, CASES["semifl"])
    tables["simulation"] = {"sites": [str(tmp_path / "some.npz"), str(tmp_path / "none.npz")],
                            "labelled": str(tmp_path / "hub.npz"), "test": str(tmp_path / "hub.npz"),
                            "split": {"name": "natural", "silos": 2}}
    dealt = deal_study(load_simulated_study(tables))
    labelled = dealt.coordinator_set("labelled")
    assert labelled is not None
    assert dealt.test is not None
    assert (len(labelled), len(dealt.test)) == (20, 20)
    assert [len(part) for part in dealt.split.silos] == [30, 30]


@pytest.mark.slow
def test_labels_alone_are_measured_by_auroc(images: Path, tmp_path: Path) -> None:
    for recipe in ("strong", "paper"):
        found = run(tables_of(images, CASES["self_training"], labelled_only_baseline=True, baseline_recipe=recipe,
                              baseline_epochs=20), out=tmp_path / recipe, device="cpu")
        assert found.labelled_only_accuracy is None
        alone = {each.name: each.labels_alone for each in found.beside if each.labels_alone is not None}
        assert alone["auroc"] > LEAST
        assert not [name for name in alone if "accuracy" in name]
