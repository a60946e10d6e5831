"""Numbers of steps that silos say, and what one of them makes of the step of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fed_shvr import FedSHVRSettings
from semisilo.common.methods.fednova import FedNovaSettings
from semisilo.common.methods.parts.robust import RULES, RobustSettings, Rule
from semisilo.common.models.factory import initial_model
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates
from semisilo.coordinator.strategies.fed_shvr import FedSHVRStrategy
from semisilo.coordinator.strategies.fednova import FedNovaStrategy
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.coordinator.strategies.parts.step_cap import counted_steps
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images() -> ImageSet:
    labels_N = torch.arange(12) % 3
    images_NCHW = (60 * labels_N[:, None, None, None] + torch.arange(16).reshape(1, 1, 4, 4)).to(torch.uint8)
    return ImageSet(images_NCHW=images_NCHW, labels_N=labels_N, names=tuple(map(str, range(12))))


def _counted(settings: RobustSettings, steps: list[float]) -> list[float]:
    return counted_steps(settings, [UpdateHeader(f"silo-{index}", 1) for index in range(len(steps))], steps, round=3)


def test_a_number_counts_as_five_medians_at_most_and_with_a_rule_as_the_median() -> None:
    steps: list[float] = [50, 40, 10**9, 60, 250]
    assert _counted(RobustSettings(), steps) == [50, 40, 300.0, 60, 250]
    assert _counted(RobustSettings(rule="coordinate_median"), steps) == [50, 40, 60.0, 60, 60.0]
    assert _counted(RobustSettings(rule="coordinate_median", norm_bound=0), steps) == [50, 40, 60.0, 60, 60.0]
    assert _counted(RobustSettings(norm_bound=0), steps) == steps
    assert _counted(RobustSettings(rule="judge"), [10, 200, 10, 200]) == [10, 105, 10, 105], "half of them are small"
    assert _counted(RobustSettings(rule="judge"), [10, 10, 10, 10**9]) == [10, 10, 10, 10]
    assert _counted(RobustSettings(), [1, 10**9]) == [1, 10**9], "of two one may lie as well as the other"


def test_the_log_names_who_says_far_more_steps_than_the_others(caplog: pytest.LogCaptureFixture) -> None:
    _counted(RobustSettings(), [50, 50, 10**9, 40])
    assert "silo silo-2 says that it has taken 1e+09 steps, 2e+07 times as many as the median one" in caplog.text
    caplog.clear()
    _counted(RobustSettings(rule="judge"), [50, 60, 70, 90])
    assert not caplog.text, "that some have more images is no news"


def _step(method: Any, settings: Any, robust: RobustSettings, steps: list[float]) -> float:
    """Along the honest direction, of a round in which ten silos send 1 each; the last one half as much."""
    environment = Environment(
        seed=1, rounds=3, num_silos=10, data=CoordinatorData(labelled=_images(), validation=_images()),
        build_model=_net, image=FORM, augmentation=AugmentationSettings(policy="none"), num_classes=3, robust=robust)
    strategy = method(settings, environment)
    before = strategy.start(initial_model(_net, 1))
    headers = tuple(UpdateHeader(f"silo-{index}", 100, {"steps": count}) for index, count in enumerate(steps))
    one = {name: torch.full_like(tensor, 0.01) for name, tensor in before.w.items()}
    updates = [{"model": TensorGroup(tensors.scale(one, 0.5 if index == 9 else 1.0), Meaning.DIFFERENCE)}
               for index in range(10)]
    tally = strategy.begin(before, TRAIN, headers, round=1)
    with SpooledUpdates(headers, lambda index: updates[index], norms=[None] * 10, scratch=Path()) as spooled:
        tally, _ = strategy.appraise(before, TRAIN, tally, spooled, round=1)
    for header, update in zip(headers, updates, strict=True):
        tally, _ = strategy.fold(before, tally, header, update, None)
    after = strategy.finish(before, TRAIN, tally, round=1)
    return tensors.norm(tensors.subtract(after.w, before.w)) / tensors.norm(one)


@each_of(("method", "settings"), [
    (FedNovaStrategy, FedNovaSettings()), (FedNovaStrategy, FedNovaSettings(momentum=0.9)),
    (FedSHVRStrategy, FedSHVRSettings())])
def test_one_silo_s_steps_do_not_stretch_the_step_of_all(method: Any, settings: Any) -> None:
    """Ten silos of 50 steps; one said 10^9, and the step grew from 0.95 to 1.8 million."""
    honest = _step(method, settings, RobustSettings(), [50.0] * 10)
    lying = _step(method, settings, RobustSettings(), [50.0] * 9 + [1e9])
    assert honest == pytest.approx(0.95, rel=1e-4)
    assert lying == pytest.approx(0.9 * (0.9 + 0.1 * 5), rel=1e-4), "the mean of ten, one of which has five medians"
    assert _step(method, settings, RobustSettings(norm_bound=0), [50.0] * 9 + [1e9]) > 1e6, "a control"


@each_of("rule", RULES)
def test_nor_do_three_under_any_rule(rule: Rule) -> None:
    robust = RobustSettings(rule=rule, byzantine_silos=0 if rule == "fltrust" else 3)
    honest, lying = (_step(FedNovaStrategy, FedNovaSettings(), robust, [50.0] * 7 + [count] * 3)
                     for count in (50.0, 1e9))
    assert lying <= honest * (1 + 1e-6)
