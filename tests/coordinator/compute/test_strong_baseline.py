"""The strong line of labels alone: it learns, is the same however it is cut, and test images choose nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.measures.intervals import standard_error
from semisilo.common.measures.study_measure import ACCURACY, parse_measure
from semisilo.common.methods.contract import CoordinatorData, Environment
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.coordinator.compute import labels_alone
from semisilo.coordinator.compute.labels_alone import LabelledOnly
from semisilo.coordinator.compute.recipe_search import LEARNING_RATES, Trial
from semisilo.coordinator.compute.strong_baseline import (
    StrongLabelsAlone,
    StrongRecipe,
    images_of_study,
    planned_steps,
)
from tests.coordinator.compute.test_baseline import _Clock, _drawing, _environment, _halves
from tests.each_of import each_of

RECIPE = StrongRecipe(epochs=40, num_classes=2)


def trained(environment: Environment, recipe: StrongRecipe = RECIPE) -> LabelledOnly:
    alone = StrongLabelsAlone(environment, recipe)
    alone.work(float("inf"))
    assert alone.found is not None
    return alone.found


def _without_validation(**changes: Any) -> Environment:
    return _environment(data=CoordinatorData(labelled=_halves(20, 0), test=_halves(101, 1)), **changes)


def test_it_learns_and_says_how_and_what_the_labels_themselves_let_expect() -> None:
    found = trained(_without_validation())
    assert found.evaluation.accuracy > 0.9
    assert (found.recipe, found.epochs, found.steps, found.ended) == ("strong", 40, 25, "epochs")
    assert "3 folds" in found.description
    assert found.validation is None
    assert 0.5 < found.crossfit["crossfit_accuracy"] <= 1
    assert found.crossfit.keys() == {f"crossfit_{name}{end}" for name in ("accuracy", "balanced_accuracy")
                                     for end in ("", "_error")}
    assert found.history[-1].accuracy == found.evaluation.accuracy


def test_with_validation_images_the_search_is_on_them() -> None:
    found = trained(_environment(data=CoordinatorData(
        labelled=_halves(20, 0), test=_halves(101, 1), validation=_halves(30, 2))))
    assert found.validation is not None
    assert found.validation.count == 30
    assert found.crossfit == {}
    assert "validation images" in found.description


def test_test_images_choose_nothing() -> None:
    """Other test images change what is measured and no bit of the model."""
    others = CoordinatorData(labelled=_halves(20, 0), test=ImageSet(
        _halves(50, 9).images_NCHW, 1 - (torch.arange(50) % 2), tuple(map(str, range(50)))))
    one, other = trained(_without_validation()), trained(_environment(data=others))
    assert one.lr == other.lr
    assert all(torch.equal(tensor, other.parameters[name]) for name, tensor in one.parameters.items())
    assert one.evaluation != other.evaluation


def test_trials_are_measured_on_held_out_labels_alone() -> None:
    """The test images are 101, the labels 20: what a trial has right is of labels that it has not learnt from."""
    alone = StrongLabelsAlone(_without_validation(), RECIPE)
    alone.work(float("inf"))
    held = {trial.fold: len(right) for trial, right in alone._right.items()}
    assert sum(held.values()) == 20
    for part in alone._parts:
        assert part.held is alone._labelled
        assert not set(part.held_n.tolist()) & set(part.learns_n.tolist())


@pytest.mark.parametrize("task", ["single_label", "multi_label"])
def test_a_trial_that_diverges_has_no_answer_right(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """NaN would pass for the last class, or for no finding at all: by chance as many as a model that has learnt."""
    def found(diverges: bool) -> dict[int, list[bool]]:
        labelled = _halves(20, 0)
        assert labelled.labels_N is not None
        if task == "multi_label":
            labelled = replace(labelled, labels_N=torch.stack([1 - labelled.labels_N, labelled.labels_N], 1).to(
                torch.int8))
        data = CoordinatorData(labelled=labelled, validation=labelled)
        alone = StrongLabelsAlone(_environment(data=data), RECIPE)
        if diverges:
            def average() -> dict[str, torch.Tensor]:
                return {name: torch.full_like(tensor, math.nan) for name, tensor in alone._initial.items()}
            monkeypatch.setattr(alone._training, "average", average)
        while not alone._right:
            alone.work(0.0)
        return {trial.rate: list(right) for trial, right in alone._right.items()}

    assert any(found(False)[0])
    assert not any(found(True)[0])


def _of_patients() -> Environment:
    """20 labelled images of eight patients."""
    labelled = replace(_halves(20, 0), patients=tuple(f"p{index // 2 % 8}" for index in range(20)))
    return _environment(data=CoordinatorData(labelled=labelled, test=_halves(101, 1)))


def test_trials_hold_out_whole_patients() -> None:
    alone = StrongLabelsAlone(_of_patients(), RECIPE)
    assert len(alone._parts) > 1
    for part in alone._parts:
        held, learns = ({alone._labelled.patients[index] for index in index_n.tolist()}
                        for index_n in (part.held_n, part.learns_n))
        assert not held & learns


def test_work_of_an_earlier_version_goes_on_with_the_images_that_it_held_out(tmp_path: Path) -> None:
    """Its answers are of those: with others they would be counted for the wrong images."""
    file, environment = tmp_path / "alone.safetensors", _of_patients()
    plain = _environment(data=replace(environment.data, labelled=replace(environment.data.labelled, patients=())))
    earlier = StrongLabelsAlone(plain, RECIPE, file=file)
    while not earlier._right:
        earlier.work(0.0)
    earlier._by_patient = False
    earlier.save()
    alone = StrongLabelsAlone(environment, RECIPE, file=file)
    assert alone._right.keys() == earlier._right.keys()
    for mine, its in zip(alone._parts, earlier._parts, strict=True):
        assert torch.equal(mine.held_n, its.held_n)
    alone.work(float("inf"))
    assert alone.found is not None


@pytest.mark.slow
def test_left_after_any_batch_and_gone_on_with_by_another_process_the_bits_are_those_of_one_run(tmp_path: Path) -> None:
    environment, file = _drawing(23), tmp_path / "alone.safetensors"
    recipe = StrongRecipe(epochs=12, num_classes=2)
    whole = trained(environment, recipe)
    alone, lives, searched = StrongLabelsAlone(environment, recipe, file=file), 1, False
    for slice_ in range(400):
        torch.manual_seed(slice_)  # what others draw meanwhile
        before = torch.random.get_rng_state()
        alone.work(0.0)
        assert torch.equal(torch.random.get_rng_state(), before)
        if alone.found is not None:
            break
        if slice_ % 2 == 0:
            alone.save()
        if slice_ % 5 == 4:  # killed: what was not saved is done again
            searched = searched or bool(alone.doing)
            alone, lives = StrongLabelsAlone(environment, recipe, file=file), lives + 1
    assert lives > 3
    assert searched
    assert alone.found == whole
    assert alone.found is not None
    assert all(torch.equal(tensor, whole.parameters[name]) for name, tensor in alone.found.parameters.items())
    assert all(torch.equal(tensor, whole.statistics[name]) for name, tensor in alone.found.statistics.items())


def test_a_file_of_another_recipe_is_begun_again(tmp_path: Path) -> None:
    file = tmp_path / "alone.safetensors"
    alone = StrongLabelsAlone(_drawing(23), RECIPE, file=file)
    alone.work(0.0)
    alone.save()
    assert StrongLabelsAlone(_drawing(23), RECIPE, file=file).fraction > 0
    assert StrongLabelsAlone(_drawing(23), StrongRecipe(epochs=41, num_classes=2), file=file).fraction == 0
    assert StrongLabelsAlone(_drawing(24), RECIPE, file=file).fraction == 0
    file.write_bytes(b"{}")
    assert StrongLabelsAlone(_drawing(23), RECIPE, file=file).fraction == 0


@pytest.mark.slow
@pytest.mark.parametrize("images", [23, 2])  # with folds to search on, and without
def test_a_budget_ends_it_with_the_steps_that_fit(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    clock = _Clock(0.5)
    monkeypatch.setattr(labels_alone, "time", clock)
    data = CoordinatorData(labelled=_halves(images, 0), test=_halves(20, 1))
    found = trained(_environment(data=data), StrongRecipe(budget_seconds=120.0, num_classes=2))
    assert found.ended == "budget"
    assert found.epochs < found.asked
    assert 1 <= found.steps < 600
    assert clock.now < 150


def test_a_budget_that_is_not_spent_changes_no_bits() -> None:
    assert trained(_drawing(23), StrongRecipe(epochs=12, budget_seconds=1e6, num_classes=2)) == \
        trained(_drawing(23), StrongRecipe(epochs=12, num_classes=2))


def test_without_labelled_or_test_images_it_is_refused() -> None:
    with pytest.raises(BadData, match="labelled-only line needs"):
        trained(_environment(data=CoordinatorData(labelled=_halves(4, 0))))


def _rare(count: int, rare: int, seed: int) -> ImageSet:
    """Two classes that overlap, of which the second is rare: the fewer a threshold finds, the higher the accuracy."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(count) < rare).long()
    pixels = 100 + 20 * torch.randn(count, 1, 4, 4, generator=generator) + 8 * labels[:, None, None, None]
    return ImageSet(pixels.clamp(0, 255).to(torch.uint8), labels, tuple(map(str, range(count))))


@pytest.mark.slow
def test_where_the_study_is_about_accuracy_labels_alone_are_trained_for_accuracy() -> None:
    """5 % of the labels and of the test images are of the rare class: answering "no" to all is right for 95 %."""
    environment = _environment(data=CoordinatorData(labelled=_rare(60, 3, 0), test=_rare(1000, 50, 1)))
    found = {measure: trained(environment, StrongRecipe(epochs=150, num_classes=2, measure=measure))
             for measure in ("accuracy", "balanced_accuracy")}
    accuracy, balanced = found["accuracy"], found["balanced_accuracy"]
    assert accuracy.evaluation.accuracy > balanced.evaluation.accuracy + 0.05
    assert accuracy.evaluation.balanced_accuracy < balanced.evaluation.balanced_accuracy
    assert ["logit adjustment" in each.description for each in (accuracy, balanced)] == [False, True]
    assert StrongRecipe(num_classes=2).measure == "balanced_accuracy"


@each_of(("measure", "weights"), [
    ("accuracy", [1.0] * 6), ("balanced_accuracy", [1 / 4] * 4 + [1 / 2] * 2), ("auroc", [1 / 4] * 4 + [1 / 2] * 2),
    ("recall:rare", [1 / 4] * 4 + [1 / 2] * 2)])
def test_rates_are_compared_by_the_measure_of_the_study(measure: str, weights: list[float]) -> None:
    validation = ImageSet(_halves(6, 2).images_NCHW, torch.tensor([0] * 4 + [1] * 2), tuple("abcdef"))
    environment = _environment(data=CoordinatorData(
        labelled=_rare(60, 3, 0), test=_halves(4, 1), validation=validation))
    alone = StrongLabelsAlone(environment, StrongRecipe(num_classes=2, measure=measure))
    assert alone._weights == [pytest.approx(weights)]


def _uneven(count: int, others: int) -> ImageSet:
    """So many images of class 0, then so many of class 1."""
    halves = _halves(2 * max(count, others), 0)
    labels = halves.labels_N
    assert labels is not None
    return halves.subset(torch.cat([torch.nonzero(labels == label).flatten()[:number]
                                    for label, number in enumerate((count, others))]))


@each_of(("others", "searched", "estimated"), [(0, False, set()), (1, False, set()),
                                               (2, True, {"crossfit_accuracy", "crossfit_balanced_accuracy"})])
def test_labels_of_one_class_alone_can_be_held_out_and_then_nothing_is_searched_or_estimated(
        others: int, searched: bool, estimated: set[str]) -> None:
    data = CoordinatorData(labelled=_uneven(20, others), test=_halves(40, 1))
    found = trained(_environment(data=data), StrongRecipe(epochs=20, num_classes=2))
    assert ("found on" in found.description) == searched
    assert {name for name in found.crossfit if not name.endswith("_error")} == estimated
    assert all(value > 0 for name, value in found.crossfit.items() if name.endswith("_error"))


def test_what_the_labels_let_expect_has_the_errors_of_all_other_shares() -> None:
    """Wilson's; and where the study has a third class without labels there is no balanced accuracy."""
    data = CoordinatorData(labelled=_uneven(12, 6), test=_halves(40, 1))
    alone = StrongLabelsAlone(_environment(data=data), StrongRecipe(epochs=20, num_classes=2))
    alone.work(float("inf"))
    assert alone.found is not None
    crossfit = alone.found.crossfit
    of_all = [(int(label), bool(right)) for fold, part in enumerate(alone._parts)
              for label, right in zip(part.labels_n, alone._right[Trial(LEARNING_RATES.index(alone.found.lr), fold)],
                                      strict=True)]
    hits, images = [[sum(right or counted for each, right in of_all if each == label) for label in range(2)]
                    for counted in (False, True)]
    assert images == [12, 6]
    assert crossfit["crossfit_accuracy"] == pytest.approx(sum(hits) / 18)
    assert crossfit["crossfit_accuracy_error"] == pytest.approx(standard_error(sum(hits), 18))
    assert crossfit["crossfit_balanced_accuracy"] == pytest.approx((hits[0] / 12 + hits[1] / 6) / 2)
    assert crossfit["crossfit_balanced_accuracy_error"] == pytest.approx(
        math.hypot(standard_error(hits[0], 12), standard_error(hits[1], 6)) / 2)
    three = trained(_environment(data=data), StrongRecipe(epochs=20, num_classes=3, measure="accuracy"))
    assert {"crossfit_accuracy", "crossfit_accuracy_error"} == set(three.crossfit)


@each_of(("recipe", "labels", "steps"), [
    (StrongRecipe(num_classes=2), 20, 600), (StrongRecipe(num_classes=2), 100, 2500),
    (StrongRecipe(num_classes=2, study_images=96000), 100, 3000), (StrongRecipe(num_classes=2), 400, 4000),
    (StrongRecipe(num_classes=2, epochs=3), 100, 10)])
def test_it_takes_as_many_steps_as_the_study_within_bounds(recipe: StrongRecipe, labels: int, steps: int) -> None:
    assert planned_steps(recipe, num_labelled=labels, batch_size=32) == steps


def test_where_the_bounds_make_it_shorter_than_the_study_it_says_so() -> None:
    """60 labels and 100 rounds of self-training: 6062 batches of 32, of which labels alone take at most 4000."""
    images = images_of_study(SelfTrainingSettings(warm_up_steps=None), rounds=100, num_labelled=60)
    for study_images, said in ((images, f" (the study takes {images // 32})"), (4000 * 32, ""), (0, "")):
        recipe = StrongRecipe(num_classes=2, study_images=study_images)
        alone = StrongLabelsAlone(_environment(data=CoordinatorData(labelled=_halves(60, 0), test=_halves(4, 1))),
                                  recipe)
        assert alone._description().endswith(f" steps of 32 images{said}")
    assert images // 32 > 4000 == planned_steps(StrongRecipe(num_classes=2, study_images=images), num_labelled=60,
                                                batch_size=32)


def test_what_a_study_looks_at_follows_from_its_settings() -> None:
    assert images_of_study(SemiFLSettings(coordinator_epochs=4, local_epochs=3), rounds=10, num_labelled=20) == 1400
    assert images_of_study(SelfTrainingSettings(coordinator_steps=5, local_epochs=3, labelled_batch=8, warm_up_steps=9),
                           rounds=10, num_labelled=20) == 10 * 3 * 20 + 8 * (10 * 5 + 9)
    assert images_of_study(object(), rounds=10, num_labelled=20) == 0


@pytest.mark.parametrize("measure", ["balanced_accuracy", "auroc"])
def test_validation_images_as_they_come_count_by_class_where_the_measure_does_though_labels_are_balanced(
        measure: str) -> None:
    """A rate that gave up the rare class was chosen by their accuracy."""
    validation = ImageSet(_halves(6, 2).images_NCHW, torch.tensor([0] * 4 + [1] * 2), tuple("abcdef"))
    environment = _environment(measure=parse_measure(measure), data=CoordinatorData(
        labelled=_halves(20, 0), test=_halves(4, 1), validation=validation))
    alone = StrongLabelsAlone(environment, replace(RECIPE, measure=measure))
    assert alone._weights == [pytest.approx([0.25] * 4 + [0.5] * 2)]
    plain = StrongLabelsAlone(replace(environment, measure=ACCURACY), replace(RECIPE, measure="accuracy"))
    assert plain._weights == [[1.0] * 6]
