"""What is measured of a model, of silos' own models, and what a strategy says besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.evaluation import Evaluation
from semisilo.common.measures.study_measure import ACCURACY, BALANCED_ACCURACY, parse_measure
from semisilo.common.methods.contract import CoordinatorData, Environment, ModelSettings, TensorGroup
from semisilo.common.models.exported import ModelFacts, read_facts
from semisilo.common.models.factory import build_model
from semisilo.coordinator.compute import evaluation
from semisilo.coordinator.compute.evaluation import (
    LocalModels,
    MeasuredModel,
    diagnostics_of,
    measure_model,
    selection_of,
)

FORM = ImageForm(size=2, channels=1, mean=(0.0,), std=(1.0,))
CLASSES = ("x", "y", "z")


def images(*labels: int) -> ImageSet:
    pixels = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
    return ImageSet(pixels, torch.tensor(labels), tuple(map(str, range(len(labels)))))


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def saying(label: int) -> dict[str, Tensor]:
    """Parameters with which the network says the same of every image."""
    return {"1.weight": torch.zeros(3, 4), "1.bias": torch.eye(3)[label]}


def environment(build: Any = network, **data: ImageSet) -> Environment:
    return Environment(seed=1, rounds=1, num_silos=1, data=CoordinatorData(**data), build_model=build, image=FORM,
                       augmentation=AugmentationSettings())


def test_each_set_that_is_there_is_measured() -> None:
    """A network that always says y is right where the label is y."""
    sets = {"test": images(1, 1, 1, 0), "validation": images(1, 0), "labelled": images(1, 0, 2, 2, 2)}
    measured_model = measure_model(environment(**sets), CLASSES, saying(1), {})
    found = measured_model.metrics
    assert measured_model.confusion == ((0, 1, 0), (0, 3, 0), (0, 0, 0)), "of the test images: rows are true classes"
    assert (found["accuracy"], found["validation_accuracy"], found["labelled_accuracy"]) == (0.75, 0.5, 0.2)
    for name, key in (("test", "accuracy"), ("validation", "validation_accuracy"), ("labelled", "labelled_accuracy")):
        rest = {other: each for other, each in sets.items() if other != name}
        less = measure_model(environment(**rest), CLASSES, saying(1), {})
        assert key not in less.metrics
        assert bool(less.confusion) is (name != "test")
    assert measure_model(environment(), CLASSES, saying(1), {}) == MeasuredModel()
    assert measure_model(environment(labelled=images()), CLASSES, saying(1), {}) == MeasuredModel()


def test_no_confusion_is_kept_of_very_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluation.MOST_CONFUSED_CLASSES == 64
    monkeypatch.setattr(evaluation, "MOST_CONFUSED_CLASSES", 2)
    found = measure_model(environment(test=images(1, 0)), CLASSES, saying(1), {})
    assert found.confusion == ()
    assert found.metrics["accuracy"] == 0.5


def test_a_large_labelled_set_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluation.MOST_LABELLED == 10_000
    monkeypatch.setattr(evaluation, "MOST_LABELLED", 5)
    for count, measured in ((5, True), (6, False)):
        found = measure_model(environment(test=images(1), labelled=images(*[1] * count)), CLASSES, saying(1),
                              {}).metrics
        assert ("labelled_accuracy" in found) is measured
        assert found["accuracy"] == 1.0


class Own:
    """A strategy of which only the diagnostics are asked for."""

    def diagnostics(self, state: Any) -> Mapping[str, float]:
        return {"loss": state, "steps": 3, "broken": float("inf"), "worse": float("nan")}

    def local_model(self, state: Any, groups: Mapping[str, TensorGroup],
                    kept: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        if kept == "nothing":
            raise BadPayload("This update holds no model.")
        return groups["model"].tensors, {}


def test_diagnostics_are_finite_numbers_and_may_be_missing() -> None:
    assert diagnostics_of(Own(), 0.25) == {"loss": 0.25, "steps": 3.0}  # type: ignore[arg-type]
    assert diagnostics_of(object(), 0.25) == {}  # type: ignore[arg-type]


def measured(strategy: Any, where: Environment, **updates: tuple[dict[str, Tensor], Any]) -> dict[str, float]:
    own = LocalModels(strategy, where)
    for silo, (parameters, kept) in updates.items():
        own.measure(silo, None, {"model": TensorGroup(parameters)} if parameters else {}, kept)
    return own.metrics()


def test_own_models_are_measured_on_the_test_set_and_averaged_over_silos() -> None:
    where = environment(test=images(1, 1, 1, 0), labelled=images(2))
    found = measured(Own(), where, a=(saying(1), None), b=(saying(0), None), c=(saying(2), None))
    assert found == {"local_accuracy": pytest.approx(1 / 3), "local_accuracy/a": 0.75, "local_accuracy/b": 0.25,
                     "local_accuracy/c": 0.0}


def test_an_update_without_a_model_a_study_without_a_test_set_and_a_strategy_without_the_method_give_nothing() -> None:
    where = environment(test=images(1))
    assert measured(Own(), where, a=(saying(1), "nothing"), b=({}, None), c=(saying(1), None)) == {
        "local_accuracy": 1.0, "local_accuracy/c": 1.0}
    assert measured(Own(), where, a=(saying(1), "nothing")) == {}
    assert measured(Own(), environment(labelled=images(1)), a=(saying(1), None)) == {}
    assert measured(object(), where, a=(saying(1), None)) == {}


def test_a_model_whose_batch_norm_nobody_has_measured_is_left_out() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), StaticBatchNorm(3))

    where = replace(environment(test=images(1)), build_model=build)
    parameters = {**saying(1), "2.weight": torch.ones(3), "2.bias": torch.zeros(3)}
    assert measured(Own(), where, a=(parameters, None)) == {}
    assert measure_model(where, CLASSES, parameters, {}) == MeasuredModel()
    statistics = {"2.mean": torch.zeros(3), "2.var": torch.ones(3)}
    assert measure_model(where, CLASSES, parameters, statistics).metrics["accuracy"] == 1.0


def test_images_of_one_class_choose_nothing_by_balanced_accuracy() -> None:
    """The recall of that class would be best of a model that always answers it."""
    one, two = environment(validation=images(1, 1, 1)), environment(validation=images(1, 1, 0))
    for measure, chooses in ((BALANCED_ACCURACY, False), (ACCURACY, True)):
        assert ("selection_score" in measure_model(one, CLASSES, saying(1), {}, measure=measure).metrics) == chooses
    assert measure_model(two, CLASSES, saying(1), {}, measure=BALANCED_ACCURACY).metrics["selection_score"] == 0.5


def test_a_model_that_answers_one_class_to_everything_is_never_chosen_for_its_recall() -> None:
    """Of 100 images ten are rare. A recall of 100 % with none of the others right is none, and one of 90 % is."""
    measure, classes = parse_measure("recall:rare"), ("common", "rare")

    def chosen_by(*confusion: tuple[int, int]) -> dict[str, float]:
        correct = confusion[0][0] + confusion[1][1]
        return selection_of(Evaluation(
            accuracy=correct / 100, loss=0.1, correct=correct, count=100, balanced_accuracy=0.5,
            per_class_recall=(None, None), confusion=confusion, auroc=0.9, per_class_auroc=(0.9, 0.9),
            calibration_error=0.1), classes, measure)
    assert chosen_by((88, 2), (1, 9))["selection_score"] == 0.9
    assert chosen_by((0, 90), (0, 10)) == {}
    assert chosen_by((4, 86), (0, 10)) == {}, "hardly more often than to others"
    assert chosen_by((0, 0), (5, 95)) == {}, "there are no others to see whether it tells them apart"
    assert chosen_by((60, 30), (0, 10))["selection_score"] == 1.0, "which is what was asked for"


@pytest.mark.parametrize("chosen", [True, False])
def test_thresholds_are_not_chosen_on_validation_images_that_are_not_the_studys_any_more(
        tmp_path: Path, chosen: bool) -> None:
    rows = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    validation = ImageSet(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), rows, tuple("abcd"))
    settings = ModelSettings(name="small_cnn", classes=CLASSES, normalisation="group")
    form = ImageForm(size=8, channels=1, mean=(0.0,), std=(1.0,))
    facts = ModelFacts(model=settings, image=form, study="s", method="fedavg", round=1, state="0" * 64,
                       task="multi_label")

    def build() -> nn.Module:
        return build_model(settings, channels=1, size=8)

    evaluation.export_model(tmp_path / "model.safetensors", environment(build, validation=validation),
                            dict(build().state_dict()), {}, facts, with_thresholds=chosen)
    assert len(read_facts(tmp_path / "model.safetensors").thresholds) == (3 if chosen else 0)
