"""The bound and the rules of [robust] where strategies average: against the rules on whole vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration
from semisilo.common.learning import tensors
from semisilo.common.learning.robust.coordinatewise import coordinate_median, trimmed_mean
from semisilo.common.learning.robust.geometric_median import geometric_median_weights
from semisilo.common.learning.robust.inner_products import inner_products, squared_distances
from semisilo.common.learning.robust.krum import multi_krum
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fed_shvr import FedSHVRSettings
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.fednova import FedNovaSettings
from semisilo.common.methods.fedrgd import FedRGDSettings
from semisilo.common.methods.fedsgd import FedSGDSettings
from semisilo.common.methods.parts.robust import RobustSettings
from semisilo.common.methods.scaffold import ScaffoldSettings
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.models.factory import initial_model
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates
from semisilo.coordinator.strategies.fed_shvr import FedSHVRStrategy
from semisilo.coordinator.strategies.fedavg import FedAvgStrategy
from semisilo.coordinator.strategies.fednova import FedNovaStrategy
from semisilo.coordinator.strategies.fedrgd import FedRGDStrategy
from semisilo.coordinator.strategies.fedsgd import FedSGDStrategy
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.coordinator.strategies.scaffold import ScaffoldStrategy
from semisilo.coordinator.strategies.semifl import SemiFLStrategy
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
PLAIN = RobustSettings(norm_bound=0.0)


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int = 12) -> ImageSet:
    labels_N = torch.arange(count) % 3
    images_NCHW = (60 * labels_N[:, None, None, None] + torch.arange(16).reshape(1, 1, 4, 4)).to(torch.uint8)
    return ImageSet(images_NCHW=images_NCHW, labels_N=labels_N, names=tuple(map(str, range(count))))


def _environment(robust: RobustSettings, *, data: CoordinatorData | None = None) -> Environment:
    return Environment(seed=1, rounds=3, num_silos=5, data=data or CoordinatorData(), build_model=_net, image=FORM,
                       augmentation=AugmentationSettings(policy="none"), num_classes=3, robust=robust)


def _vectors(*lengths: float) -> list[dict[str, Tensor]]:
    """Differences of these lengths, which point about the same way."""
    generator, shape = torch.Generator().manual_seed(7), initial_model(_net, 1)
    found = []
    for length in lengths:
        one = {name: 1 + 0.3 * torch.randn(tensor.shape, generator=generator) for name, tensor in shape.items()}
        found.append(tensors.scale(one, length / tensors.norm(one)))
    return found


def _flat(vectors: Sequence[Mapping[str, Tensor]]) -> Tensor:
    return torch.stack([torch.cat([tensor.reshape(-1) for tensor in each.values()]) for each in vectors])


class _Round:
    """A training phase of a strategy: begun, appraised, folded, finished."""

    def __init__(self, strategy: Any, vectors: Sequence[Mapping[str, Tensor]], *, group: str = "model",
                 metrics: Sequence[Mapping[str, float]] | None = None, appraise: bool = True,
                 counts: Sequence[int] | None = None) -> None:
        self.strategy, self.before = strategy, strategy.start(initial_model(_net, 1))
        headers = tuple(UpdateHeader(f"silo-{index}", 10 if counts is None else counts[index],
                                     {} if metrics is None else metrics[index]) for index in range(len(vectors)))
        updates = [{group: TensorGroup(each, Meaning.DIFFERENCE)} for each in vectors]
        tally = strategy.begin(self.before, TRAIN, headers, round=1)
        self.told: Mapping[str, float] = {}
        if appraise:
            with SpooledUpdates(headers, lambda index: updates[index], norms=[None] * len(headers), scratch=Path(),
                                block_bytes=4 * len(headers) * 7) as spooled:
                tally, self.told = strategy.appraise(self.before, TRAIN, tally, spooled, round=1)
        for header, each in zip(headers, updates, strict=True):
            tally, _ = strategy.fold(self.before, tally, header, each, None)
        self.tally = tally
        self.after = strategy.finish(self.before, TRAIN, tally, round=1)

    @property
    def step(self) -> Tensor:
        """What the round has changed of the model, flat."""
        return _flat([tensors.subtract(self.after.w, self.before.w)])[0]


def _fedavg(robust: RobustSettings, **settings: Any) -> FedAvgStrategy:
    return FedAvgStrategy(FedAvgSettings(weighting="uniform", **settings), _environment(robust))


def test_without_a_cut_the_bits_are_those_without_a_bound() -> None:
    honest = _vectors(1.0, 2.0, 0.5, 4.9, 1.0)
    plain = _Round(_fedavg(PLAIN), honest, appraise=False)
    bounded = _Round(_fedavg(RobustSettings()), honest)
    assert bounded.told == {}
    assert tensors.digest(bounded.after.w) == tensors.digest(plain.after.w)


@pytest.mark.slow
def test_an_update_beyond_the_bound_counts_with_its_direction_and_five_medians() -> None:
    vectors = _vectors(1.0, 2.0, 1000.0, 1.5, 0.5)
    found = _Round(_fedavg(RobustSettings()), vectors)
    vectors[2] = tensors.scale(vectors[2], 5 * 1.5 / 1000.0)
    torch.testing.assert_close(found.step, _flat(vectors).mean(dim=0), atol=1e-5, rtol=1e-4)
    assert found.told["updates_cut"] == 1
    assert found.told["update_norm_limit"] == pytest.approx(7.5, rel=1e-5)


RULES = [
    pytest.param(RobustSettings(rule="norm_clipping"),
                 lambda v_ND: (v_ND * (1.5 / v_ND.norm(dim=1)).clamp_max(1.0)[:, None]).mean(dim=0),
                 id="norm_clipping"),
    pytest.param(RobustSettings(rule="coordinate_median", norm_bound=0), coordinate_median, id="coordinate_median"),
    pytest.param(RobustSettings(rule="trimmed_mean", byzantine_silos=2, norm_bound=0),
                 lambda v_ND: trimmed_mean(v_ND, trim=2), id="trimmed_mean"),
    pytest.param(RobustSettings(rule="geometric_median", norm_bound=0), lambda v_ND: torch.tensor(
        geometric_median_weights(inner_products([v_ND]), [0.2] * 5)) @ v_ND, id="geometric_median"),
    pytest.param(RobustSettings(rule="multi_krum", byzantine_silos=1, norm_bound=0), lambda v_ND: v_ND[
        multi_krum(squared_distances(inner_products([v_ND])), 1)].mean(dim=0), id="multi_krum")]


@pytest.mark.parametrize(("robust", "reference"), RULES)
def test_a_rule_is_that_of_whole_vectors(robust: RobustSettings, reference: Any) -> None:
    vectors = _vectors(1.0, 2.0, 1000.0, 1.5, 0.5)
    found = _Round(_fedavg(robust), vectors)
    torch.testing.assert_close(found.step, reference(_flat(vectors)).float(), atol=1e-5, rtol=1e-4)
    assert float(found.step.norm()) < 3, "the long one must not count as it came"
    assert float(_Round(_fedavg(PLAIN), vectors).step.norm()) > 100


@pytest.mark.parametrize(("robust", "reference"), RULES)
def test_a_gradient_is_averaged_by_the_same_rules(robust: RobustSettings, reference: Any) -> None:
    settings = FedSGDSettings(scenario="labels-at-silo", weighting="uniform", lr=1.0, momentum=0.0, nesterov=False,
                              weight_decay=0.0, clip_norm=0.0)
    vectors = _vectors(1.0, 2.0, 1000.0, 1.5, 0.5)
    found = _Round(FedSGDStrategy(settings, _environment(robust)), vectors, group="gradient")
    torch.testing.assert_close(-found.step, reference(_flat(vectors)).float(), atol=1e-5, rtol=1e-4)


@each_of("rule", ["geometric_median", "judge"])
def test_three_liars_of_ten_do_not_own_a_rule_by_announcing_a_billion_images(rule: Any) -> None:
    """They send the opposite of what the others do. From weights by counts they had 1.0 of the geometric median, and
    more than half of what the judge learns."""
    images = _images()
    strategy = FedAvgStrategy(FedAvgSettings(weighting="size"), _environment(
        RobustSettings(rule=rule, byzantine_silos=3), data=CoordinatorData(validation=images)))
    pixels_MD = images.images_NCHW.flatten(1).float() / 255
    wanted_MK = torch.nn.functional.one_hot(images.labels_N, 3).float() - 1 / 3
    better = {"1.weight": wanted_MK.T @ pixels_MD, "1.bias": torch.zeros(3)}
    generator = torch.Generator().manual_seed(3)
    honest = [{name: 0.005 * (tensor + 0.2 * torch.randn(tensor.shape, generator=generator))
               for name, tensor in better.items()} for _ in range(7)]
    found = _Round(strategy, [*honest, *[tensors.scale(each, -1.0) for each in honest[:3]]],
                   counts=[100] * 7 + [10**9] * 3)
    assert sum(found.tally.weights[f"silo-{index}"] for index in range(7, 10)) < 0.2
    assert float(found.step @ _flat([better])[0]) > 0


def test_an_update_of_no_images_has_no_voice_in_a_rule() -> None:
    robust = RobustSettings(rule="geometric_median")
    found = _Round(FedAvgStrategy(FedAvgSettings(weighting="size"), _environment(robust)), _vectors(1, 1, 1, 1),
                   counts=[10, 10, 10, 0])
    assert found.tally.weights["silo-3"] == 0.0


@each_of("robust", [
    RobustSettings(rule="coordinate_median", byzantine_silos=2), RobustSettings(rule="multi_krum", byzantine_silos=1),
    RobustSettings(rule="norm_clipping", byzantine_silos=2), RobustSettings(rule="trimmed_mean", byzantine_silos=2)])
def test_with_fewer_updates_than_the_rule_needs_nothing_is_taken_over(robust: RobustSettings) -> None:
    found = _Round(_fedavg(robust), _vectors(1.0, 1.0, 1.0, 1.0))
    assert float(found.step.norm()) == 0
    assert found.told == {"updates_left_out": 4.0}


def test_fltrust_follows_the_step_on_the_coordinators_labels() -> None:
    """One class's weights grow with its images: a linear model on one pass of plain descent moves so."""
    environment = _environment(RobustSettings(rule="fltrust"), data=CoordinatorData(labelled=_images()))
    settings = SemiFLSettings(coordinator_epochs=0, local_epochs=2, labelled_batch=4, lr=0.1)
    labelled = FedAvgStrategy(FedAvgSettings(
        scenario="labels-at-coordinator", objective="fixmatch", coordinator_epochs=2, labelled_batch=4, lr=0.1,
        lambda_s=1.0, nesterov=True, momentum=0.9, weak_view="none"), _environment(PLAIN, data=environment.data))
    begun = labelled.start(initial_model(_net, 1))
    step = tensors.subtract(begun.sent[0], begun.w)  # a step on the same labels, in another order
    strategy = SemiFLStrategy(settings, environment)
    against = tensors.scale(step, -1.0)
    found = _Round(strategy, [tensors.scale(step, 100.0), against, against])
    assert found.tally.weights["silo-0"] > 0
    assert found.tally.weights["silo-1"] == found.tally.weights["silo-2"] == 0
    assert found.told["updates_left_out"] == 2
    assert _Round(strategy, [against, against]).tally.delta is None


@pytest.mark.parametrize("rule", ["fltrust", "judge"])
def test_a_rule_that_looks_at_labels_is_refused_where_there_are_none(rule: Any) -> None:
    with pytest.raises(BadConfiguration, match=rule):
        _fedavg(RobustSettings(rule=rule))


def test_fednova_bounds_what_a_silo_makes_of_its_number_of_steps() -> None:
    """A silo that says one step for a hundred would count a hundred times."""
    vectors, settings = _vectors(1.0, 1.0, 1.0, 1.0, 1.0), FedNovaSettings(weighting="uniform")
    metrics = [{"steps": 100.0}] * 4 + [{"steps": 1.0}]
    plain = _Round(FedNovaStrategy(settings, _environment(PLAIN)), vectors, metrics=metrics)
    bounded = _Round(FedNovaStrategy(settings, _environment(RobustSettings())), vectors, metrics=metrics)
    together = (4 * 100 + 1) / 5
    assert plain.tally.weights["silo-4"] == pytest.approx(0.2 * together)
    assert bounded.tally.weights["silo-4"] == pytest.approx(0.2 * 5 * together / 100, rel=1e-5)
    assert bounded.tally.weights["silo-0"] == plain.tally.weights["silo-0"]
    median = _Round(FedNovaStrategy(settings, _environment(RobustSettings(rule="coordinate_median", norm_bound=0))),
                    vectors, metrics=metrics)
    stretched = [tensors.scale(each, together / metric["steps"]) for each, metric in zip(vectors, metrics, strict=True)]
    torch.testing.assert_close(median.step, coordinate_median(_flat(stretched)), atol=1e-6, rtol=1e-4)


@each_of(("strategy", "settings"), [
    (ScaffoldStrategy, ScaffoldSettings()), (FedSHVRStrategy, FedSHVRSettings(correction_at="silo")),
    (FedSHVRStrategy, FedSHVRSettings(correction_at="coordinator"))])
def test_a_cut_begins_the_sum_of_control_variates_anew(strategy: Any, settings: Any) -> None:
    metrics = [{"steps": 2.0}] * 4
    honest = _Round(strategy(settings, _environment(RobustSettings())), _vectors(1, 1, 1, 1), metrics=metrics)
    lying = _Round(strategy(settings, _environment(RobustSettings())), _vectors(1, 1, 1, 1000), metrics=metrics)
    assert honest.after.c_sum is not None
    assert honest.after.correction_epoch == 1
    assert lying.after.c_sum is None
    assert lying.after.correction_epoch == 2
    assert float(lying.step.norm()) < 3


def test_fedrgd_bounds_every_difference() -> None:
    environment = _environment(RobustSettings(), data=CoordinatorData(labelled=_images()))
    strategy = FedRGDStrategy(FedRGDSettings(groups=1, coordinator_epochs=0), environment)
    vectors = _vectors(1, 1, 1, 1000)
    found = _Round(strategy, vectors)
    expected = (_flat(vectors[:3]).sum(dim=0) + _flat(vectors)[3] * 5 / 1000) / 5  # and the coordinator's own, 0
    torch.testing.assert_close(found.step, expected, atol=1e-5, rtol=1e-4)


def test_who_has_taken_part_is_counted_also_where_nothing_is_taken_over() -> None:
    found = _Round(_fedavg(RobustSettings(rule="coordinate_median", byzantine_silos=2)), _vectors(1, 1))
    assert found.tally.participation == {"silo-0": 1, "silo-1": 1}
    assert replace(found.tally, settled=False).plus("silo-0", _vectors(1)[0], like=found.before.w).delta is not None
