"""Rules that look at every coordinate by itself: median and trimmed mean.

Shapes: N updates, D coordinates, which may be any block of all.
Tests: tests/common/learning/robust/test_coordinatewise.py.
Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates",
ICML 2018, definitions 1 and 2.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["coordinate_median", "trimmed_mean", "trimmed_statistics"]


def coordinate_median(updates_ND: Tensor) -> Tensor:
    """The median of every coordinate, (D,) of the updates' dtype; of an even number the mean of the middle two.

    Args:
        updates_ND: finite, N at least 1.
    """
    count = updates_ND.shape[0]
    return trimmed_mean(updates_ND, trim=(count - 1) // 2)


def trimmed_mean(updates_ND: Tensor, *, trim: int) -> Tensor:
    """The mean of every coordinate without its `trim` smallest and `trim` largest values, (D,) of the updates' dtype.

    Args:
        updates_ND: finite.
        trim: N > 2 * trim.
    """
    count = updates_ND.shape[0]
    assert count > 2 * trim >= 0
    kept_MD = updates_ND.sort(dim=0).values[trim:count - trim]
    return kept_MD.double().mean(dim=0).to(updates_ND.dtype)


def trimmed_statistics(mean_NC: Tensor, var_NC: Tensor, *, trim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the pooled values of N silos whose statistics may lie: every silo counts alike.

        m = trimmed mean of mean_n        v = trimmed mean of var_n + (mean_n - m)^2

    Without trimming, and with equal numbers of values, these are exactly those of all values together.
    Args:
        mean_NC, var_NC: of each silo and channel, finite, variances at least 0.
        trim: N > 2 * trim.
    Returns: (C,) each; the variance is never below 0.
    """
    mean_C = trimmed_mean(mean_NC, trim=trim)
    return mean_C, trimmed_mean(var_NC + (mean_NC - mean_C).square(), trim=trim)
