"""Static batch-norm statistics from silos: what one of them claims must not stop the study or silence the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.parts.robust import RobustSettings
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates
from semisilo.coordinator.strategies.parts.batch_norm import StaticStatistics


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), StaticBatchNorm(2))


def _statistics() -> StaticStatistics:
    return StaticStatistics(Environment(
        seed=1, rounds=1, num_silos=3, data=CoordinatorData(), build_model=_net,
        image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)), augmentation=AugmentationSettings()), "silos")


def _of(count: int, mean: float, var: float = 1.0) -> dict[str, Tensor]:
    return {"1.mean": torch.full((2,), mean), "1.var": torch.full((2,), var), "1.count": torch.tensor([count])}


def _merged(answers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    statistics = _statistics()
    tally = statistics.begin({})
    for silo, tensors in answers.items():
        header = UpdateHeader(silo, 50, {})
        tally = statistics.fold(tally, header, {"batch_norm": TensorGroup(dict(tensors), Meaning.VALUES)})
    return statistics.finish(tally, _of(1, 9.0))


def test_silos_count_by_their_values() -> None:
    """mu = (100 * 1 + 300 * 3) / 400; var = (99 * 1 + 299 * 1 + 100 * 1.5^2 + 300 * 0.5^2) / 399."""
    merged = _merged({"a": _of(100, 1.0), "b": _of(300, 3.0)})
    assert merged["1.mean"].tolist() == pytest.approx([2.5, 2.5])
    assert merged["1.var"].tolist() == pytest.approx([698 / 399] * 2)


@pytest.mark.parametrize("wrong", [
    pytest.param(_of(2**53, 7.0), id="a count with which merging leaves what a double can count"),
    pytest.param(_of(2**62, 7.0), id="a count beyond that"), pytest.param(_of(0, 7.0), id="no value"),
    pytest.param(_of(10, 7.0, -1.0), id="a negative variance"),
    pytest.param(_of(10, float("nan")), id="not a number"),
    pytest.param(_of(10, 3e38), id="a mean that makes the variance overflow"),
])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_impossible_statistics_are_left_out_and_the_others_count(wrong: dict[str, Tensor], position: int) -> None:
    honest = [("a", _of(100, 1.0)), ("b", _of(300, 3.0))]
    answers = dict([*honest[:position], ("x", wrong), *honest[position:]])
    merged = _merged(answers)
    for name, tensor in _merged(dict(honest)).items():
        assert torch.equal(merged[name], tensor)


def test_without_answers_the_last_rounds_stay() -> None:
    assert torch.equal(_merged({})["1.mean"], torch.full((2,), 9.0))


def _robust(answers: Mapping[str, Mapping[str, Tensor]], robust: RobustSettings, own: dict[str, Tensor]
            ) -> dict[str, Tensor]:
    statistics = StaticStatistics(Environment(
        seed=1, rounds=1, num_silos=3, data=CoordinatorData(), build_model=_net, robust=robust,
        image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)), augmentation=AugmentationSettings()), "silos")
    headers = tuple(UpdateHeader(silo, 50, {}) for silo in answers)
    groups = [{"batch_norm": TensorGroup(dict(each), Meaning.VALUES)} for each in answers.values()]
    with SpooledUpdates(headers, lambda index: groups[index], norms=[None] * len(headers), scratch=Path()) as updates:
        tally = statistics.appraised(statistics.begin(own), updates)
    for header, each in zip(headers, groups, strict=True):
        tally = statistics.fold(tally, header, each)
    return statistics.finish(tally, _of(1, 9.0))


HONEST = {"a": _of(100, 1.0, 2.0), "b": _of(300, 3.0, 2.0), "c": _of(10, 2.0, 2.0)}


@pytest.mark.parametrize("robust", [RobustSettings(rule="judge", byzantine_silos=1), RobustSettings(rule="judge"),
                                    RobustSettings(rule="trimmed_mean", byzantine_silos=1)])
def test_under_a_rule_one_liar_moves_no_statistics_out_of_the_honest_range(robust: RobustSettings) -> None:
    liar = _of(2**40, 1e9, 1e12)
    found = _robust({**HONEST, "x": liar}, robust, {})
    assert 1.0 <= float(found["1.mean"][0]) <= 3.0
    assert float(found["1.var"][0]) <= 2.0 + 4.0
    plain = _robust({**HONEST, "x": liar}, RobustSettings(), {})
    assert float(plain["1.mean"][0]) > 1e8, "the control: the plain merge believes its mean"
    assert all(torch.equal(plain[name], tensor) for name, tensor in _merged({**HONEST, "x": liar}).items())


def test_with_too_few_answers_the_coordinators_own_statistics_stay() -> None:
    robust, own = RobustSettings(rule="multi_krum", byzantine_silos=2), _of(50, 4.0)
    assert _robust(HONEST, robust, own)["1.mean"].tolist() == [4.0, 4.0]
    assert _robust(HONEST, robust, {})["1.mean"].tolist() == [9.0, 9.0]
