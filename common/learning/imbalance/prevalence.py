"""Probabilities for a place where the classes are of other sizes than in training. numpy alone.

Shapes: N images, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["EstimatedPrevalence", "estimate_prevalence", "implied_prior", "reweighted"]

_MOST_STEPS = 1000
_SETTLED = 1e-8
"""Largest change of a class's share at which the estimate stands still."""


@dataclass(frozen=True, slots=True)
class EstimatedPrevalence:
    """Shares of the classes among images without labels."""

    shares: tuple[float, ...]
    steps: int
    settled: bool
    """False where the last step still changed a share."""


def implied_prior(shares: ArrayLike, *, logit_adjustment: float = 0.0, class_balanced: bool = False
                  ) -> NDArray[np.float64]:
    """The class prior that a trained model's probabilities stand for, float64 (K,).

        pi^(1 - tau), normalised; uniform after class-balanced sampling

    A loss on f + tau log pi makes softmax(f + tau log pi) the posterior under pi, so softmax(f) is that under
    pi^(1 - tau): uniform for tau = 1. Source: Menon et al., ICLR 2021, section 4.
    Args:
        shares: pi, above 0.
    """
    pi_K = np.asarray(shares, dtype=np.float64)
    raised_K = np.ones_like(pi_K) if class_balanced else pi_K ** (1.0 - logit_adjustment)
    prior_K: NDArray[np.float64] = raised_K / raised_K.sum()
    return prior_K


def reweighted(probabilities_NK: NDArray[np.float64], *, trained: ArrayLike, prevalence: ArrayLike
               ) -> NDArray[np.float64]:
    """p'(c | x) = p(c | x) prevalence_c / trained_c, normalised over the classes; float64 (N, K).

    It holds where the images of a class look the same at both places, and the probabilities are calibrated.
    Args:
        trained: prior of training, above 0, (K,).
        prevalence: prior of the place, not negative, (K,). A class of prevalence 0 is never given.
    Raises: ValueError for a prior of another length, or not of such numbers.
    Source: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002), Eq. 2.4.
    """
    trained_K, prevalence_K = (np.asarray(each, dtype=np.float64) for each in (trained, prevalence))
    if trained_K.shape != probabilities_NK.shape[1:] or prevalence_K.shape != trained_K.shape:
        raise ValueError(f"{probabilities_NK.shape[1]} classes need as many shares.")
    if not (np.all(trained_K > 0) and np.all(prevalence_K >= 0) and prevalence_K.sum() > 0):
        raise ValueError("shares of training must be above 0, those of the place not negative and not all 0.")
    raised_NK = probabilities_NK * (prevalence_K / trained_K)
    total_N1 = raised_NK.sum(axis=1, keepdims=True)
    # Where only classes of prevalence 0 have a probability, the prevalence is all that is known.
    result: NDArray[np.float64] = np.where(total_N1 > 0, raised_NK / np.where(total_N1 > 0, total_N1, 1.0),
                                           prevalence_K / prevalence_K.sum())
    return result


def estimate_prevalence(probabilities_NK: NDArray[np.float64], *, trained: ArrayLike,
                        smoothing: float = 0.0) -> EstimatedPrevalence:
    """The class shares of images without labels, by expectation and maximisation from the prior of training.

        q_i = `reweighted`(p_i, prevalence_s)
        prevalence_{s+1} = (mean_i q_i + smoothing / K) / (1 + smoothing)

    until no share changes by more than 1e-8, at most 1000 times. The likelihood of the images never falls; with
    smoothing, their likelihood times a Dirichlet prior of 1 + smoothing N / K for each class.
    Args:
        probabilities_NK: of at least one image; of few images the estimate is uncertain.
        smoothing: share of the images that is counted once more, evenly over the classes; not negative.
    Source: Saerens, Latinne and Decaestecker, Neural Computation 14 (2002), Eq. 2.9, which has no smoothing.
    """
    shares_K = np.asarray(trained, dtype=np.float64)
    shares_K = shares_K / shares_K.sum()
    for step in range(1, _MOST_STEPS + 1):
        next_K = reweighted(probabilities_NK, trained=trained, prevalence=shares_K).mean(axis=0)
        if smoothing:
            next_K = (next_K + smoothing / len(next_K)) / (1.0 + smoothing)
        change, shares_K = float(np.abs(next_K - shares_K).max()), next_K
        if change <= _SETTLED:
            return EstimatedPrevalence(tuple(shares_K.tolist()), step, settled=True)
    return EstimatedPrevalence(tuple(shares_K.tolist()), _MOST_STEPS, settled=False)
