"""Losses as pure functions, each with its equation.

Labels come in two forms, and a loss takes either: one class for each image, int64 (B,); or, where an image may show
several findings or none, multi-hot rows (B, K) of 1 (shows it), 0 (does not) and, in pseudo-labels, -1 (not known).

Shapes: B images in a batch, K classes. Losses are means over the images that enter them, with natural logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["ClassThresholds", "PseudoLabels", "Threshold", "cross_entropy", "example_losses", "finding_labels",
           "first_argmax", "mix", "mix_loss", "pseudo_labels", "reaches"]


@dataclass(frozen=True, slots=True)
class ClassThresholds:
    """Where every class of an image gets a pseudo-label of its own: what the class's probability must reach."""

    positive: float
    """The image shows the class where its probability is at least this. 0..1."""
    negative: float
    """It does not where the probability is at most this; between the two the class is not known. Below `positive`."""


Threshold = float | Tensor | ClassThresholds
"""A number, or one for each class, (K,): of the likeliest class of an image. Or of every class by itself."""


@dataclass(frozen=True, slots=True)
class PseudoLabels:
    """What a model says about unlabelled images."""

    max_prob_B: Tensor
    """q: the largest class probability, float (B,). Of several findings the mean over the classes of max(p, 1 - p)."""
    hard_label_B: Tensor
    """The class that has it; the lowest one where several do. int64 (B,). Of several findings multi-hot rows, int8
    (B, K), -1 where a class is not known."""
    keep_B: Tensor
    """Whether q reaches the threshold; of several findings, whether any class is known. bool (B,)."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Of all images of several batches, at least one, in their order; on the CPU."""
        return cls(*(torch.cat([getattr(part, each.name).cpu() for part in parts]) for each in fields(cls)))


def cross_entropy(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
    """CE = -mean_b log softmax(logits_b)[label_b]; a scalar (). Of several findings the mean of `example_losses`.

    Args:
        logits_BK: float, unnormalised.
        labels_B: int64 (B,), 0..K-1; or multi-hot rows, int8 (B, K); or soft labels, the probabilities of the classes,
            float (B, K), for which it is -mean_b sum_k p_bk log softmax(logits_b)[k].
    """
    if labels_B.ndim == 2 and not labels_B.is_floating_point():
        return example_losses(logits_BK, labels_B).mean()
    return functional.cross_entropy(logits_BK, labels_B)


def example_losses(logits_BK: Tensor, labels_B: Tensor, weights_K: Tensor | None = None) -> Tensor:
    """The loss of every image, float (B,).

        one class:         -log softmax(f)[y]
        several findings:  -sum_k [y_k log s(f_k) + (1 - y_k) log(1 - s(f_k))] over the known classes, s the sigmoid

    The classes are summed, not averaged: the gradient on a class's logit, s(f_k) - y_k, is then of the size of
    cross-entropy's, softmax(f)_k - y_k, and so are the learning rates and weights that methods were published with.
    Args:
        labels_B: int64 (B,); or multi-hot rows (B, K) of 1, 0 and -1. A class that is not known adds neither value nor
            gradient.
        weights_K: of one class: the loss of an image times the weight of its class. Of several: the first of both terms
            times the weight, torch's `pos_weight`. None: 1 for all.
    """
    if labels_B.ndim == 1:
        losses_B = functional.cross_entropy(logits_BK, labels_B, reduction="none")
        return losses_B if weights_K is None else losses_B * weights_K[labels_B]
    losses_BK = functional.binary_cross_entropy_with_logits(
        logits_BK, labels_B.clamp(min=0).to(logits_BK.dtype), pos_weight=weights_K, reduction="none")
    return torch.where(labels_B >= 0, losses_BK, torch.zeros_like(losses_BK)).sum(dim=-1)


def first_argmax(values_BK: Tensor) -> Tensor:
    """Index of the largest value, the lowest one where several are equal; int64 (B,).

    `torch.argmax` promises no order among equals, and machines differ. A row that holds NaN gives K - 1.
    """
    last = values_BK.shape[-1] - 1
    index_K = torch.arange(last + 1, device=values_BK.device)
    is_max_BK = values_BK == values_BK.amax(dim=-1, keepdim=True)
    return torch.where(is_max_BK, index_K, last).amin(dim=-1)


def reaches(confidence_B: Tensor, label_B: Tensor, confidence_threshold: float | Tensor) -> Tensor:
    """Whether a label's probability is at least the threshold, or that of its class; bool (B,).

    Args:
        label_B: int64.
        confidence_threshold: a number, or one for each class, (K,), on any device. NaN reaches nothing.
    """
    if isinstance(confidence_threshold, Tensor):
        return confidence_B >= confidence_threshold.to(confidence_B.device, confidence_B.dtype)[label_B]
    return confidence_B >= confidence_threshold


def pseudo_labels(logits_BK: Tensor, confidence_threshold: Threshold) -> PseudoLabels:
    """p = softmax(logits); q = max p; label = argmax p; kept where q >= confidence_threshold. Oracles S1 and S2.

    A row of NaN is not kept. A threshold for each class, (K,), is that of the label. With `ClassThresholds` every class
    is labelled by itself: see `finding_labels`.
    Source: SemiFL section 3.3, after FixMatch (Sohn et al., NeurIPS 2020) Eq. 4.
    """
    if isinstance(confidence_threshold, ClassThresholds):
        return finding_labels(torch.sigmoid(logits_BK), confidence_threshold)
    prob_BK = torch.softmax(logits_BK, dim=-1)
    max_prob_B = prob_BK.amax(dim=-1)
    label_B = first_argmax(prob_BK)
    return PseudoLabels(max_prob_B, label_B, reaches(max_prob_B, label_B, confidence_threshold))


def finding_labels(prob_BK: Tensor, thresholds: ClassThresholds) -> PseudoLabels:
    """Of every class by itself: 1 where p >= positive, 0 where p <= negative, else -1; NaN is not known.

    An image is kept where any of its classes is known; in its loss only these count.
    Args:
        prob_BK: probability of each class, float; classes do not exclude each other.
    Source: FixMatch's Eq. 4, class by class as two-class problems; both cut-offs as in Rizve et al., "In defense of
        pseudo-labeling" (UPS), ICLR 2021, Eq. 3, without its uncertainty.
    """
    found_BK = torch.full_like(prob_BK, -1, dtype=torch.int8)
    found_BK[prob_BK <= thresholds.negative] = 0
    found_BK[prob_BK >= thresholds.positive] = 1
    return PseudoLabels(torch.maximum(prob_BK, 1.0 - prob_BK).mean(dim=-1), found_BK, (found_BK >= 0).any(dim=-1))


def mix(a: Tensor, b: Tensor, lam: float) -> Tensor:
    """lam * a + (1 - lam) * b, for normalised images of equal shape. Source: MixUp, Zhang et al. 2018, Eq. 1."""
    return lam * a + (1.0 - lam) * b


def mix_loss(mix_logits_BK: Tensor, y_fix_B: Tensor, y_mix_B: Tensor, lam: float) -> Tensor:
    """L_mix = lam * CE(f(x_mix), y_fix) + (1 - lam) * CE(f(x_mix), y_mix); a scalar (). Oracle S3.

    Args:
        mix_logits_BK: of `mix(weak(x_fix), weak(x_mix), lam)`.
        y_fix_B, y_mix_B: hard pseudo-labels of the two, in either form.
        lam: one Beta(a, a) draw for the whole batch, 0..1.
    Source: SemiFL (Diao et al., NeurIPS 2022) Eq. 4.
    """
    return lam * cross_entropy(mix_logits_BK, y_fix_B) + (1.0 - lam) * cross_entropy(mix_logits_BK, y_mix_B)
