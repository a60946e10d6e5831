"""The gate: which step is accepted, and that what destroys a model is not taken over."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.measures.study_measure import ACCURACY, BALANCED_ACCURACY, parse_measure
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.models.factory import initial_model
from semisilo.coordinator.strategies.parts.gate import (
    STEPS,
    Gate,
    accepted_area_step,
    accepted_step,
    class_balanced_weights,
    difference_variance,
    evenly,
    images_tried,
    strata_for,
    taken,
    weights_for,
)
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.coordinator.strategies.self_training import SelfTrainingStrategy
from semisilo.coordinator.strategies.semifl import SemiFLStrategy
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _right(**counts: int) -> dict[float, Tensor]:
    """Of ten images, how many are right at each step: the first ones."""
    return {float(name.removeprefix("at_").replace("_", ".")): torch.arange(10) < count
            for name, count in counts.items()}


@each_of(("rights", "expected"), [
    ({"at_0": 8, "at_1": 8}, 1.0), ({"at_0": 8, "at_1": 9}, 1.0),
    ({"at_0": 8, "at_1": 7}, 1.0),  # one of ten lost: -0.1, and its standard error is 0.1
    ({"at_0": 8, "at_1": 6, "at_0_5": 7}, 0.5),  # two: -0.2, with 0.13
    ({"at_0": 8, "at_1": 0, "at_0_5": 2, "at_0_25": 8}, 0.25),
    ({"at_0": 8, "at_1": 0, "at_0_5": 0, "at_0_25": 3}, 0.0)])
def test_the_largest_step_that_is_not_worse_beyond_noise(rights: dict[str, int], expected: float) -> None:
    at = _right(**rights)
    assert accepted_step(lambda step: at[step], torch.full((10,), 0.1, dtype=torch.float64)) == expected


def test_rare_classes_count_as_much_as_frequent_ones() -> None:
    weights = class_balanced_weights(torch.tensor([0] * 8 + [2] * 2))
    assert weights.tolist() == pytest.approx([1 / 16] * 8 + [1 / 4] * 2)
    lost_rare = torch.tensor([True] * 8 + [False] * 2)
    assert accepted_step(lambda step: lost_rare if step else torch.ones(10).bool(), weights) == 0.0


@each_of("counts", [(190, 10), (95, 5), (500, 20), (57, 3), (50, 50), (20, 1), (30, 30, 2)])
def test_one_image_may_be_lost_of_a_rare_class_as_of_a_frequent_one_and_not_two(counts: tuple[int, ...]) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    for label, count in enumerate(counts):
        for measure, may_lose in ((ACCURACY, 1), (BALANCED_ACCURACY, 1)):
            for lost in range(min(count, 3) + 1):
                right = torch.ones(len(labels), dtype=torch.bool)
                right[torch.nonzero(labels == label).flatten()[:lost]] = False
                step = accepted_step(lambda step, right=right: right if step else torch.ones(len(labels)).bool(),
                                     weights_for(measure, labels), strata_for(measure, labels))
                assert step == (1.0 if lost <= may_lose else 0.0)


@pytest.mark.slow
def test_the_variance_of_the_gate_is_that_of_the_mean_over_samples_with_as_many_of_each_class() -> None:
    """Of 40 images of one class and 5 of another, whose answers change with other frequencies: its mean over 4000
    samples against the variance of the mean."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([0] * 40 + [1] * 5)
    weights, strata = class_balanced_weights(labels), strata_for(BALANCED_ACCURACY, labels)
    chance = torch.where(labels == 0, 0.1, 0.6)
    drawn = -(torch.rand(4000, 45, generator=generator) < chance).double()
    means = (drawn * weights).sum(dim=1)
    found = torch.stack([difference_variance(each, weights, strata) for each in drawn]).mean()
    assert float(found) == pytest.approx(float(means.var()), rel=0.06)
    assert float(means.var()) == pytest.approx((0.1 * 0.9 / 40 + 0.6 * 0.4 / 5) / 4, rel=0.06)


@each_of(("counts", "kept"), [
    ((4997, 3), (1997, 3)), ((1990, 10), (1990, 10)), ((3000, 3000), (1000, 1000)), ((5000, 900, 40), (1060, 900, 40)),
    ((2500, 1, 2500, 1), (999, 1, 999, 1))])
def test_of_very_many_images_rare_classes_keep_theirs(counts: tuple[int, ...], kept: tuple[int, ...]) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(2))]
    found = images_tried(labels)
    assert torch.bincount(labels[found]).tolist() == list(kept)
    assert bool((found[1:] > found[:-1]).all())
    if len(labels) > 2000:
        frequent = found[labels[found] == 0].double()
        assert float(frequent.mean()) == pytest.approx(len(labels) / 2, rel=0.1), "not the first ones"


def test_the_gate_looks_at_the_rare_images_of_a_large_set() -> None:
    """3 of 4003 images are of the rare class, none of them among every second one. A model that loses them is not
    accepted in balanced accuracy, and the statistics are of images as frequent as they are."""
    labels = torch.zeros(4003, dtype=torch.int64)
    labels[[1, 3, 5]] = 1
    pixels = torch.zeros(4003, 1, 4, 4, dtype=torch.uint8)
    pixels[[1, 3, 5]] = 255
    data = CoordinatorData(validation=ImageSet(pixels, labels, tuple(map(str, range(4003)))))
    assert not bool(labels[evenly(4003, 2000)].any())
    environment = Environment(seed=1, rounds=1, num_silos=1, data=data, num_classes=2, image=FORM,
                              build_model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
                              augmentation=AugmentationSettings(policy="none"))
    w = {"1.weight": torch.stack([torch.zeros(16), torch.ones(16)]), "1.bias": torch.zeros(2)}
    after = {"1.weight": torch.zeros(2, 16), "1.bias": torch.tensor([1000.0, -1000.0])}
    assert Gate(environment).accepted(w, after, round=1) == 0.0


@each_of(("measure", "expected"), [
    ("accuracy", [1 / 10] * 10), ("balanced_accuracy", [1 / 16] * 8 + [1 / 4] * 2),
    ("auroc", [1 / 16] * 8 + [1 / 4] * 2), ("recall:rare", [1 / 16] * 8 + [1 / 4] * 2)])
def test_images_count_as_in_the_measure_of_the_study(measure: str, expected: list[float]) -> None:
    found = weights_for(parse_measure(measure), torch.tensor([0] * 8 + [2] * 2))
    assert found.tolist() == pytest.approx(expected)
    assert float(found.sum()) == pytest.approx(1.0)


def test_the_gate_of_a_study_about_accuracy_takes_what_answers_no_to_all() -> None:
    """Of 30 images two are of the last class. A model that finds none of it is as accurate as one that finds both and
    calls two other images so, and worse in balanced accuracy."""
    labels = torch.tensor([0] * 28 + [1] * 2)
    pixels = torch.zeros(30, 1, 4, 4, dtype=torch.uint8)
    pixels[[0, 1, 28, 29]] = 255  # what is bright is called rare, two of them rightly
    data = CoordinatorData(validation=ImageSet(pixels, labels, tuple(map(str, range(30)))))

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    w = {"1.weight": torch.stack([torch.zeros(16), torch.ones(16)]), "1.bias": torch.zeros(2)}
    after = {"1.weight": torch.zeros(2, 16), "1.bias": torch.tensor([100.0, -100.0])}
    found = {}
    for measure in (ACCURACY, BALANCED_ACCURACY):
        environment = Environment(seed=1, rounds=1, num_silos=1, data=data, build_model=net, image=FORM, num_classes=2,
                                  augmentation=AugmentationSettings(policy="none"), measure=measure)
        found[measure.kind] = Gate(environment).accepted(w, after, round=1)
    assert found["accuracy"] == 1.0
    assert found["balanced_accuracy"] < 1.0


def test_what_answers_one_class_to_all_is_not_taken_over_in_a_study_about_its_recall() -> None:
    labels = torch.tensor([0] * 8 + [1] * 2)
    pixels = torch.zeros(10, 1, 4, 4, dtype=torch.uint8)
    pixels[8:] = 255
    data = CoordinatorData(validation=ImageSet(pixels, labels, tuple(map(str, range(10)))))

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    w = {"1.weight": torch.stack([torch.zeros(16), torch.ones(16)]), "1.bias": torch.zeros(2)}
    after = {"1.weight": torch.zeros(2, 16), "1.bias": torch.tensor([-1e6, 1e6])}
    environment = Environment(seed=1, rounds=1, num_silos=1, data=data, build_model=net, image=FORM, num_classes=2,
                              augmentation=AugmentationSettings(policy="none"), measure=parse_measure("recall:rare"))
    assert Gate(environment).accepted(w, after, round=1) == 0.0


def test_what_is_taken_of_model_and_momentum() -> None:
    w, after = {"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}
    old, new = {"w": torch.tensor([5.0])}, {"w": torch.tensor([8.0])}
    assert [float(taken(w, after, old, new, step=step)[0]["w"]) for step in (1.0, 0.5, 0.0)] == [3.0, 2.0, 1.0]
    kept = [taken(w, after, old, new, step=step)[1] for step in (1.0, 0.5, 0.0)]
    assert [float(each["w"]) for each in kept if each is not None] == [8.0, 4.0, 5.0]
    broken = {"w": torch.tensor([math.nan])}
    assert float(taken(w, broken, old, broken, step=0.0)[0]["w"]) == 1.0
    assert taken(w, broken, None, broken, step=0.0)[1] is None


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _images() -> ImageSet:
    """Three classes that differ in brightness, so that they are learnt in a few steps."""
    labels = torch.arange(30) % 3
    pixels = (40 + 80 * labels[:, None, None, None] + torch.randint(
        0, 30, (30, 1, 4, 4), generator=torch.Generator().manual_seed(0))).to(torch.uint8)
    return ImageSet(pixels, labels, tuple(map(str, range(30))))


def _environment() -> Environment:
    return Environment(seed=1, rounds=4, num_silos=2, data=CoordinatorData(labelled=_images()), build_model=_net,
                       image=FORM, num_classes=3, augmentation=AugmentationSettings(policy="none"))


@pytest.mark.slow
@pytest.mark.parametrize(("gate", "lies"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("method", ["self_training", "semifl"])
def test_a_collapsed_average_is_not_taken_over_and_a_harmless_one_is(method: str, gate: bool, lies: bool) -> None:
    """A silo that returns the negative of the model ten times over, or next to nothing."""
    strategy = SelfTrainingStrategy(SelfTrainingSettings(
        warm_up_steps=60, coordinator_steps=0, lr=0.1, gate=gate), _environment()) if method == "self_training" else \
        SemiFLStrategy(SemiFLSettings(coordinator_epochs=20, lr=0.1, gate=gate), _environment())
    state = strategy.start(initial_model(_net, 1))
    if method == "semifl":
        strategy._settings = SemiFLSettings(coordinator_epochs=0, final_epochs=0, gate=gate)  # type: ignore[assignment]
    factor = -10.0 if lies else 1e-4
    delta = {name: factor * tensor for name, tensor in state.w.items()}
    header = UpdateHeader("a", 10)
    tally = strategy.begin(state, TRAIN, (header,), round=1)
    group = TensorGroup(delta, Meaning.DIFFERENCE, tensors.digest(state.w))
    tally, _ = strategy.fold(state, tally, header, {"model": group}, None)
    after = strategy.finish(state, TRAIN, tally, round=1)
    told = strategy.diagnostics(after)
    if not gate:
        assert "accepted_step" not in told
        assert all(torch.allclose(after.w[name], -9.0 * state.w[name]) for name in state.w)
    elif lies:
        assert told["accepted_step"] == 0.0
        assert all(torch.equal(after.w[name], state.w[name]) for name in state.w)
        assert after.global_buf is None
    else:
        assert told["accepted_step"] == 1.0
        assert all(torch.allclose(after.w[name], (1 + 1e-4) * state.w[name]) for name in state.w)


def test_an_average_that_is_not_finite_is_not_accepted_and_without_images_there_is_no_gate() -> None:
    environment = _environment()
    strategy = SelfTrainingStrategy(SelfTrainingSettings(warm_up_steps=60, lr=0.1), environment)
    w = strategy.start(initial_model(_net, 1)).w
    broken = {name: torch.full_like(tensor, math.inf) for name, tensor in w.items()}
    assert Gate(environment).accepted(w, broken, round=1) == 0.0
    assert STEPS[0] == 1.0
    bare = Environment(seed=1, rounds=4, num_silos=2, data=CoordinatorData(), build_model=_net, image=FORM,
                       augmentation=AugmentationSettings(policy="none"))
    assert Gate(bare).accepted(w, broken, round=1) == 1.0


def test_of_several_labels_the_largest_step_at_which_the_auroc_is_not_lower_beyond_noise() -> None:
    """A step of 1 forgets the second class, one of a half is as good as nothing, and noise moves a few images."""
    generator = torch.Generator().manual_seed(1)
    rows_NK = (torch.rand(120, 2, generator=generator) < 0.3).to(torch.int8)
    noise_NK = torch.randn(120, 2, generator=generator)
    good_NK = 2.0 * rows_NK + noise_NK

    def forgets(step: float) -> Tensor:
        return good_NK if step < 1 else torch.stack([good_NK[:, 0], noise_NK[:, 1]], dim=1)

    assert accepted_area_step(lambda step: good_NK, rows_NK) == 1.0
    assert accepted_area_step(forgets, rows_NK) == 0.5
    assert accepted_area_step(lambda step: good_NK if step == 0 else -good_NK, rows_NK) == 0.0
    assert accepted_area_step(lambda step: good_NK if step in (0, 0.25) else None, rows_NK) == 0.25
    assert accepted_area_step(lambda step: good_NK + 0.05 * step * noise_NK, rows_NK) == 1.0
    assert accepted_area_step(lambda step: good_NK, torch.zeros_like(rows_NK)) == 1.0, "nothing to compare with"
