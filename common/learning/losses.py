"""Losses as pure functions, each with its equation.

Shapes: B images in a batch, K classes. Losses are means over the images that enter them, with natural logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["PseudoLabels", "cross_entropy", "first_argmax", "mix", "mix_loss", "pseudo_labels", "reaches"]


@dataclass(frozen=True, slots=True)
class PseudoLabels:
    """What a model says about unlabelled images."""

    max_prob_B: Tensor
    """q: the largest class probability, float (B,)."""
    hard_label_B: Tensor
    """The class that has it; the lowest one where several do. int64 (B,)."""
    keep_B: Tensor
    """Whether q reaches the threshold. bool (B,)."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Of all images of several batches, at least one, in their order; on the CPU."""
        return cls(*(torch.cat([getattr(part, each.name).cpu() for part in parts]) for each in fields(cls)))


def cross_entropy(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
    """CE = -mean_b log softmax(logits_b)[label_b]; a scalar ().

    Args:
        logits_BK: float, unnormalised.
        labels_B: int64, 0..K-1.
    """
    return functional.cross_entropy(logits_BK, labels_B)


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


def pseudo_labels(logits_BK: Tensor, confidence_threshold: float | Tensor) -> PseudoLabels:
    """p = softmax(logits); q = max p; label = argmax p; kept where q >= confidence_threshold. Oracles S1 and S2.

    A row of NaN is not kept. A threshold for each class, (K,), is that of the label.
    Source: SemiFL section 3.3, after FixMatch (Sohn et al., NeurIPS 2020) Eq. 4.
    """
    prob_BK = torch.softmax(logits_BK, dim=-1)
    max_prob_B = prob_BK.amax(dim=-1)
    label_B = first_argmax(prob_BK)
    return PseudoLabels(max_prob_B, label_B, reaches(max_prob_B, label_B, confidence_threshold))


def mix(a: Tensor, b: Tensor, lam: float) -> Tensor:
    """lam * a + (1 - lam) * b, for normalised images of equal shape. Source: MixUp, Zhang et al. 2018, Eq. 1."""
    return lam * a + (1.0 - lam) * b


def mix_loss(mix_logits_BK: Tensor, y_fix_B: Tensor, y_mix_B: Tensor, lam: float) -> Tensor:
    """L_mix = lam * CE(f(x_mix), y_fix) + (1 - lam) * CE(f(x_mix), y_mix); a scalar (). Oracle S3.

    Args:
        mix_logits_BK: of `mix(weak(x_fix), weak(x_mix), lam)`.
        y_fix_B, y_mix_B: int64 hard pseudo-labels of the two.
        lam: one Beta(a, a) draw for the whole batch, 0..1.
    Source: SemiFL (Diao et al., NeurIPS 2022) Eq. 4.
    """
    return lam * cross_entropy(mix_logits_BK, y_fix_B) + (1.0 - lam) * cross_entropy(mix_logits_BK, y_mix_B)
