"""Labelled images of unequal classes: epochs in which every class comes equally often, and adjusted logits.

Shapes: N labelled images, B images in a batch, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from semisilo.common.learning.losses import cross_entropy

__all__ = ["LabelledSampling", "adjust_logits", "adjusted_loss", "class_balanced_order", "class_shares", "epoch_order",
           "smoothed_shares"]

LabelledSampling = Literal["shuffled", "class_balanced"]

_ABSENT = 0.5
"""Images that a class without any counts as, so that its logarithm is finite."""


def class_shares(labels_N: Tensor, num_classes: int) -> Tensor:
    """pi: share of each class among labelled images, float64 (K,), on the CPU; sums to 1.

    A class without images counts as half an image: its share is above 0, and small.
    Args:
        labels_N: int64, 0..K-1, at least one.
    """
    counts_K = torch.bincount(labels_N.cpu(), minlength=num_classes).double()
    counts_K = torch.where(counts_K > 0, counts_K, torch.full_like(counts_K, _ABSENT))
    return counts_K / counts_K.sum()


def smoothed_shares(counts_K: Tensor, smoothing: float) -> Tensor:
    """(n_c + smoothing n / K) / (n (1 + smoothing)): shares of K classes, of which none is 0; float64 (K,).

    Args:
        counts_K: n_c, not negative, their sum n above 0.
        smoothing: share of n that is counted once more, evenly; above 0.
    """
    counts_K = counts_K.double().cpu()
    total = counts_K.sum()
    return (counts_K + smoothing * total / len(counts_K)) / (total * (1.0 + smoothing))


def class_balanced_order(labels_N: Tensor, generator: torch.Generator) -> Tensor:
    """Which image comes when in an epoch of N images in which all classes come equally often; int64 (N,), on the CPU.

    Each of the C classes that occur comes floor(N / C) times; the rest of N goes one each to classes that are drawn.
    The images of a class are gone through in an order that is drawn anew whenever all have come, so within a class no
    image comes two times more than another. Then everything is shuffled.

    Args:
        labels_N: int64, on the CPU, at least one.
        generator: on the CPU; advanced.
    Source: class-aware sampling, Shen, Lin and Huang, ECCV 2016, section 3; class-balanced sampling of Kang et al.,
        ICLR 2020, Eq. 1 with q = 0, drawn without replacement.
    """
    present_C = torch.unique(labels_N)
    each, rest = divmod(len(labels_N), len(present_C))
    more_C = torch.zeros(len(present_C), dtype=torch.int64)
    more_C[torch.randperm(len(present_C), generator=generator)[:rest]] = 1
    chosen: list[Tensor] = []
    for label, more in zip(present_C.tolist(), more_C.tolist(), strict=True):
        members = torch.nonzero(labels_N == label).flatten()
        wanted = each + more
        orders = [members[torch.randperm(len(members), generator=generator)]
                  for _ in range(-(-wanted // len(members)))]
        chosen.append(torch.cat([*orders, members[:0]])[:wanted])
    together = torch.cat(chosen)
    return together[torch.randperm(len(together), generator=generator)]


def epoch_order(count: int, generator: torch.Generator, *, balance_N: Tensor | None = None) -> Tensor:
    """Which of `count` images comes when in an epoch, int64 (count,), on the CPU.

    Args:
        balance_N: labels by which classes are to come equally often; None: every image once, in random order.
        generator: on the CPU; advanced.
    """
    if balance_N is None:
        return torch.randperm(count, generator=generator)
    return class_balanced_order(balance_N, generator)


def adjust_logits(logits_BK: Tensor, shares_K: Tensor, *, tau: float) -> Tensor:
    """f + tau log pi: what a loss is taken of, so that f itself is for classes of equal size.

    Args:
        shares_K: pi, above 0, any float type and device.
        tau: at least 0; 1 makes softmax f consistent for the balanced error.
    Source: logit-adjusted softmax cross-entropy, Menon et al., ICLR 2021, Eq. 10. Nothing is added when predicting.
    """
    return logits_BK + (tau * shares_K.log()).to(logits_BK.device, logits_BK.dtype)


def adjusted_loss(labels_N: Tensor, tau: float, loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy
                  ) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss of (logits_BK, labels_B) that is `loss_of` the adjusted logits; `loss_of` itself with tau = 0.

    Args:
        labels_N: of all images that are trained on; their shares are pi.
    """
    if tau == 0:
        return loss_of
    shares: dict[int, Tensor] = {}

    def loss(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
        classes = logits_BK.shape[-1]
        if classes not in shares:
            shares[classes] = class_shares(labels_N, classes)
        return loss_of(adjust_logits(logits_BK, shares[classes], tau=tau), labels_B)

    return loss
