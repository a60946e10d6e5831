"""A mean whose weights become known one by one."""

from __future__ import annotations

import pytest
import torch

from semisilo.coordinator.strategies.parts.weighted_mean import WeightedMean
from semisilo.coordinator.strategies.parts.weights import share_weights
from tests.each_of import each_of

NOTHING = WeightedMean(None, 0.0, 0)


def _mean(weights: list[float], values: list[list[float]]) -> WeightedMean:
    found = NOTHING
    for weight, value in zip(weights, values, strict=True):
        found = found.plus({"w": torch.tensor(value, dtype=torch.float64)}, weight)
    return found


@pytest.mark.parametrize(("scores", "models", "weights", "aggregate"), [
    ([0.5, 0.3, 0.2], [[1, 0], [2, 10], [-1, 5]], [0.5, 0.3, 0.2], [0.9, 4.0]),  # M4
    ([0.0, 0.0], [[1, 0], [3, 4]], [0.5, 0.5], [2.0, 2.0]),  # M5
])
def test_oracles_m4_and_m5_reliability(scores: list[float], models: list[list[float]], weights: list[float],
                                       aggregate: list[float]) -> None:
    found = _mean(scores, models).mean()
    assert found is not None
    assert found["w"].tolist() == pytest.approx(aggregate, abs=1e-5)
    assert share_weights(scores) == pytest.approx(weights, abs=1e-5)


@each_of("scores", [[0.0, 0.6, 0.2], [0.6, 0.0, 0.2], [0.6, 0.2, 0.0], [0.0, 0.0, 0.8]])
def test_a_score_of_zero_has_no_weight_wherever_it_stands(scores: list[float]) -> None:
    models = [[1.0], [10.0], [100.0]]
    expected = sum(weight * model[0] for weight, model in zip(share_weights(scores), models, strict=True))
    found = _mean(scores, models)
    mean = found.mean()
    assert mean is not None
    assert float(mean["w"]) == pytest.approx(expected)
    assert found.count == 3


def test_one_alone_is_its_own_mean_and_nothing_has_none() -> None:
    found = _mean([0.25], [[4.0]]).mean()
    assert found is not None
    assert found["w"].tolist() == [4.0]
    assert NOTHING.mean() is None
