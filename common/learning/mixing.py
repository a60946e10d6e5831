"""FedMix in equations: mixing three models, labels from several views, and the loss of a silo.

Source: Zhang et al., FedMix (arXiv 2110.13388). The paper's equations are lost; these are the reconstructions that the
specification gives, with its numbers for them.

Shapes: A views of an image, B images in a batch, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from semisilo.common.learning.agreement import psi_regulariser
from semisilo.common.learning.losses import (
    ClassThresholds,
    PseudoLabels,
    Threshold,
    cross_entropy,
    finding_labels,
    first_argmax,
    reaches,
)
from semisilo.common.learning.tensors import check_same_layout

__all__ = ["FedMixLoss", "LabelRule", "fedmix_client_loss", "fedmix_mix", "fedmix_pseudo", "mean_over_views"]

LabelRule = Literal["mean", "vote"]


@dataclass(frozen=True, slots=True)
class FedMixLoss:
    """The loss of one batch at a silo and its parts before their weights; all are scalars ()."""

    loss: Tensor
    ce: Tensor
    l2: Tensor
    l1: Tensor


def fedmix_mix(psi: Mapping[str, Tensor], sigma: Mapping[str, Tensor], w: Mapping[str, Tensor], *, mix_alpha: float,
               mix_beta: float, mix_gamma: float) -> dict[str, Tensor]:
    """w_next = mix_alpha * psi + mix_beta * sigma + mix_gamma * w, as new tensors; oracle X5.

    A model of weight 0 is left out of the sum, so that mix_gamma = 1 gives the bits of `w`.

    Args:
        psi: aggregate of the silos' models.
        sigma: what the coordinator has trained on labels.
        w: the global model that both started from. All three have the same layout.
        mix_alpha, mix_beta, mix_gamma: not negative, sum 1.
    Raises: LayoutMismatch.
    Source: FedMix Eq. 9.
    """
    check_same_layout(w, psi)
    check_same_layout(w, sigma)
    parts = [(weight, part) for weight, part in ((mix_alpha, psi), (mix_beta, sigma), (mix_gamma, w)) if weight]
    (first, start), rest = parts[0], parts[1:]
    mixed = {name: start[name] * first for name in w}
    for weight, part in rest:
        mixed = {name: torch.add(tensor, part[name], alpha=weight) for name, tensor in mixed.items()}
    return mixed


def mean_over_views(prob_views_ABK: Tensor) -> Tensor:
    """p_bar = 1/A sum_a p_a, float (B, K).

    Added view by view, in order, so that every device sums alike.
    """
    total_BK = torch.zeros_like(prob_views_ABK[0])
    for prob_BK in prob_views_ABK:
        total_BK = total_BK + prob_BK
    return total_BK / len(prob_views_ABK)


def fedmix_pseudo(prob_views_ABK: Tensor, confidence_threshold: Threshold, *,
                  rule: LabelRule = "mean") -> PseudoLabels:
    """One label per image from A views of it; oracle X6.

        mean:  label = argmax p_bar
        vote:  label = the class that most views have as their argmax
        kept where p_bar[label] >= confidence_threshold

    Equal numbers go to the lowest class. `max_prob_B` of the result is p_bar[label]. Both rules keep the same images
    with the same labels where the threshold is above 3/4: a class with such a mean wins the vote as well.

    Args:
        prob_views_ABK: class probabilities of every view, float, at least one view.
        confidence_threshold: 0..1, or one for each class, (K,); or `ClassThresholds` for probabilities of classes that
            do not exclude each other: then each class is labelled by itself, by its mean over the views.
    Source: FedMix Eq. 8.
    """
    mean_BK = mean_over_views(prob_views_ABK)
    if isinstance(confidence_threshold, ClassThresholds):
        return finding_labels(mean_BK, confidence_threshold)
    if rule == "mean":
        label_B = first_argmax(mean_BK)
    else:
        num_classes = prob_views_ABK.shape[-1]
        votes_ABK = functional.one_hot(first_argmax(prob_views_ABK), num_classes)
        label_B = first_argmax(votes_ABK.sum(dim=0))
    confidence_B = mean_BK.gather(1, label_B[:, None]).squeeze(1)
    return PseudoLabels(confidence_B, label_B, reaches(confidence_B, label_B, confidence_threshold))


def fedmix_client_loss(logits_BK: Tensor | None, hard_label_B: Tensor, keep_B: Tensor, *, psi: Mapping[str, Tensor],
                       sigma: Mapping[str, Tensor], lambda_1: float, lambda_2: float, lambda_l1: float) -> FedMixLoss:
    """L_u = lambda_1 mean over kept CE(label, logits) + lambda_2 ||sigma - psi||^2 + lambda_l1 ||psi||_1; oracle X7.

    Args:
        logits_BK: float, of the images that are to be learnt; None where none is kept, for then nobody needs them.
        hard_label_B: int64 pseudo-labels, or multi-hot rows.
        keep_B: bool, which images enter.
        psi: the silo's trainable parameters.
        sigma: the coordinator's, same layout and device; not changed.
    Returns: the norms are sums over all elements, neither means nor square roots; 0 where their weight is.
    Raises: LayoutMismatch.
    Source: FedMix Eq. 7.
    """
    pull = psi_regulariser(sigma, psi, lambda_l2=lambda_2, lambda_l1=lambda_l1)
    ce = torch.zeros_like(pull.loss)
    if logits_BK is not None and bool(keep_B.any()):
        ce = cross_entropy(logits_BK[keep_B], hard_label_B[keep_B])
    return FedMixLoss(lambda_1 * ce + pull.loss, ce, pull.l2, pull.l1)
