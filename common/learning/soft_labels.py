"""Soft pseudo-labels and the objective they come from: pure functions, each with its equation.

    F_k(w, v) = CE(w; L_k) + alpha0 CE(w; U_k, v_k) + alpha1 r1(v_k) + alpha2 r2(w; U_k)

v_k is a distribution over the classes for every unlabelled image. r1 keeps the labels away from certainty, and r2 the
model: both are divergences from the uniform distribution, KL(q || uniform) = log K - entropy(q), and are minimised.

Everything works on log-probabilities, so that a saturated softmax stays finite; -inf stands for a probability of 0.
Shapes: B images in a batch, N all unlabelled images, K classes. Natural logarithms; means over the images, but for r2
where its sum is asked for.

Source: Fed-SHVR, Wang et al. (2021), sections II and III. Its Eq. 9 has no 1/M before r2: the mean is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from semisilo.common.learning.losses import first_argmax

__all__ = ["ObjectiveTerms", "PenaltyReduction", "RampShape", "confidence_penalty", "label_regulariser", "objective",
           "ramp", "soft_cross_entropy", "soft_labels"]

RampShape = Literal["sigmoid", "linear", "none"]
PenaltyReduction = Literal["mean", "sum"]
"""Of r2 over the images: their mean, or their sum as Fed-SHVR's Eq. 9 is printed."""


@dataclass(frozen=True, slots=True)
class ObjectiveTerms:
    """F_k and its terms, unweighted; all are scalars ()."""

    ce_labelled: Tensor
    ce_unlabelled: Tensor
    r1: Tensor
    r2: Tensor
    total: Tensor
    """F = ce_labelled + alpha0 ce_unlabelled + alpha1 r1 + alpha2 r2."""


def ramp(shape: RampShape, *, epoch: float, ramp_epochs: int) -> float:
    """The share of alpha0 that counts in an epoch, 0..1; oracles V16 and B10.

        x = min(1, epoch / ramp_epochs);   sigmoid: exp(-5 (1 - x)^2)   linear: x   none: 1

    Args:
        epoch: local epochs so far, the current one included: counted from 1, over all rounds.
        ramp_epochs: epoch at which the whole of alpha0 is reached, at least 1.
    """
    if shape == "none":
        return 1.0
    x = min(1.0, max(0.0, epoch / ramp_epochs))
    return x if shape == "linear" else math.exp(-5.0 * (1.0 - x) ** 2)


def soft_labels(log_probs_BK: Tensor, *, alpha0: float, alpha1: float) -> Tensor:
    """v_ij = f_ij^(alpha0 / alpha1) / sum_c f_ic^(alpha0 / alpha1): the v that minimises F for a given model.

    alpha1 = 0 gives certainty: 1 for the likeliest class, the lowest one where several are. alpha0 = 0 (and alpha1 > 0)
    gives the uniform distribution. alpha0 > alpha1 sharpens what the model says, alpha0 < alpha1 flattens it.
    Oracles V1 to V4.

    Args:
        log_probs_BK: log f, float; -inf allowed.
        alpha0, alpha1: not negative.
    Returns: (B, K), rows sum to 1, without gradient.
    Source: Fed-SHVR Eq. 8.
    """
    log_probs_BK = log_probs_BK.detach()
    if alpha1 == 0:
        hard_B, num_classes = first_argmax(log_probs_BK), log_probs_BK.shape[-1]
        return functional.one_hot(hard_B, num_classes).to(log_probs_BK.dtype)
    if alpha0 == 0:
        return torch.full_like(log_probs_BK, 1.0 / log_probs_BK.shape[-1])
    # With the largest at 0 and a finite exponent no product is 0 * inf.
    exponent = min(alpha0 / alpha1, torch.finfo(log_probs_BK.dtype).max)
    return torch.softmax((log_probs_BK - log_probs_BK.amax(dim=-1, keepdim=True)) * exponent, dim=-1)


def soft_cross_entropy(log_probs_BK: Tensor, v_BK: Tensor) -> Tensor:
    """CE(w; U, v) = -(1/B) sum_i <v_i, log f(u_i)>; a scalar (). Oracle V6."""
    return -(v_BK * _finite(log_probs_BK)).sum(dim=-1).mean()


def label_regulariser(v_BK: Tensor) -> Tensor:
    """r1 = (1/B) sum_i KL(v_i || uniform), 0..log K; a scalar (). It has no gradient in the model. Oracle V6."""
    entropy_B: Tensor = torch.special.entr(v_BK).sum(dim=-1)
    return math.log(v_BK.shape[-1]) - entropy_B.mean()


def confidence_penalty(log_probs_BK: Tensor, *, reduction: PenaltyReduction = "mean") -> Tensor:
    """r2 = R_i KL(f(u_i) || uniform), R the mean or the sum over the B images; a scalar (), 0..log K or 0..B log K.

    Minimised, so it raises the predictions' entropy. Its gradient at the logits of image i is p (log p - <p, log p>),
    over B for the mean. Oracles V6 and V7.
    """
    log_probs_BK = _finite(log_probs_BK)
    mean = math.log(log_probs_BK.shape[-1]) + (log_probs_BK.exp() * log_probs_BK).sum(dim=-1).mean()
    return len(log_probs_BK) * mean if reduction == "sum" else mean


def objective(labelled_log_probs_BK: Tensor | None, labels_B: Tensor | None, unlabelled_log_probs_BK: Tensor | None,
              v_BK: Tensor | None, *, alpha0: float, alpha1: float, alpha2: float,
              r2_reduction: PenaltyReduction = "mean") -> ObjectiveTerms:
    """F_k of one silo, or its estimate from a batch of labelled and a batch of unlabelled images. Oracle V6.

    Args:
        labelled_log_probs_BK, labels_B: log f of labelled images and their classes, int64; None where there are none.
        unlabelled_log_probs_BK, v_BK: log f of unlabelled images and their soft labels; None where there are none.
        r2_reduction: "sum": r2 is a sum over the unlabelled images that are given; all other terms are means.
    Returns: a term that has no images is 0.
    """
    given = labelled_log_probs_BK if labelled_log_probs_BK is not None else unlabelled_log_probs_BK
    zero = torch.zeros(()) if given is None else given.new_zeros(())
    ce_labelled = ce_unlabelled = r1 = r2 = zero
    if labelled_log_probs_BK is not None and labels_B is not None:
        ce_labelled = -labelled_log_probs_BK.gather(1, labels_B[:, None]).mean()
    if unlabelled_log_probs_BK is not None and v_BK is not None:
        ce_unlabelled = soft_cross_entropy(unlabelled_log_probs_BK, v_BK)
        r1, r2 = label_regulariser(v_BK), confidence_penalty(unlabelled_log_probs_BK, reduction=r2_reduction)
    total = ce_labelled + alpha0 * ce_unlabelled + alpha1 * r1 + alpha2 * r2
    return ObjectiveTerms(ce_labelled, ce_unlabelled, r1, r2, total)


def _finite(log_probs_BK: Tensor) -> Tensor:
    """-inf as the lowest number, so that its product with a probability of 0 is 0."""
    return log_probs_BK.clamp_min(torch.finfo(log_probs_BK.dtype).min)
