"""Weights of a mean that are learned on labelled images: each update counts as far as it makes these images better.

Shapes: N updates.
Tests: tests/common/learning/robust/test_learned_weights.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Look", "faded", "learned_weights"]

Look = Callable[[Tensor], tuple[float, Callable[[], Tensor]]]
"""From weights, float64 (N,) with sum 1, to the loss of the model that they make, and to what gives its derivative by
each weight there, float64 (N,). The second is called at most once, before the next look."""

_LOOKS = 30
_FIRST_CHANGE = 1.0
"""Of the logarithm of a weight, at most, by the first step."""
_LEAST_CHANGE = 0.02
"""A step that would change no logarithm by more is not taken."""
_LEAST_GAIN = 1e-4
"""Nats. A step that gains less is the last."""
_STEEPEST = 2.0
"""Nats. A slope farther from the mean slope counts as this much, so that one look decides over no silo."""
_DIVERGENCE = 0.003
"""lambda."""
_SHRINKS = 0.5
_GROWS = 1.5
_FADE = 3.0
"""Power of the part of its share that a weight is."""


def learned_weights(plain_N: Sequence[float], look: Look) -> list[float]:
    """Weights with sum 1 that make the loss small and stay near the plain ones.

        least of  L(a) + lambda KL(a || p)    over a_k >= 0, sum_k a_k = 1;    a_k <- a_k exp(-step g_k) / Z

    by exponentiated gradient from the plain weights p, lambda = 0.003 nats, with a step that grows while the sum falls
    and is taken back and halved where it does not. At most 30 looks; silos that are alike keep their plain weights.
    Args:
        plain_N: at least 0, not all 0; an update of weight 0 keeps it.
    Source: Kivinen and Warmuth, Information and Computation 132 (1997), for the steps; weights learned on the
        coordinator's data as in Li, Lin, Shang and Wu (FedLAW), ICML 2023. The divergence and the step's control are
        ours.
    """
    plain = torch.tensor(plain_N, dtype=torch.float64)
    counted_N = plain > 0
    log_plain_N = torch.where(counted_N, plain / plain.sum(), 1.0).log()
    log_plain_N[~counted_N] = -math.inf
    log_N, best, step = log_plain_N, math.inf, 0.0
    best_log_N, slope_N, steepest = log_plain_N, torch.zeros_like(plain), 0.0
    for _ in range(_LOOKS):
        weights_N = log_N.exp()
        loss, slopes = look(weights_N)
        away_N = torch.where(counted_N, log_N - log_plain_N, 0.0)
        value = loss + _DIVERGENCE * float((weights_N * away_N).sum())
        if value < best:
            gain, best, best_log_N = best - value, value, log_N
            if gain < _LEAST_GAIN:
                break
            found_N = slopes()
            slope_N = (found_N - (weights_N * found_N).sum()).clamp(-_STEEPEST, _STEEPEST) + _DIVERGENCE * away_N
            steepest = float(slope_N[counted_N].abs().max())
            step = step * _GROWS if step else min(_FIRST_CHANGE / max(steepest, _DIVERGENCE), 1 / _DIVERGENCE)
        else:
            step *= _SHRINKS
        if step * steepest < _LEAST_CHANGE:
            break
        log_N = torch.where(counted_N, torch.log_softmax(best_log_N - step * slope_N, dim=0), -math.inf)
    return [float(weight) for weight in best_log_N.exp()]


def faded(weights_N: Sequence[float], plain_N: Sequence[float]) -> list[float]:
    """Weights below the plain share lose more, so that little adds up to nothing over the rounds.

        b_k = a_k min(1, a_k / p_k)^3 / Z

    A silo that counts half of its share counts a sixteenth of it then, before Z; weights that are at least their
    shares keep their proportions.
    Args:
        weights_N: a, at least 0, with sum 1.
        plain_N: p, at least 0, in any scale; 0 only where a is 0.
    Source: ours.
    """
    total = sum(plain_N)
    kept_N = [weight * min(1.0, weight * total / plain) ** _FADE if plain else 0.0
              for weight, plain in zip(weights_N, plain_N, strict=True)]
    kept = sum(kept_N)
    return [each / kept for each in kept_N]
