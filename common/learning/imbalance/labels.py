"""Labelled images of unequal classes: epochs in which every class comes equally often, and adjusted logits.

Shapes: N labelled images, B images in a batch, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from semisilo.common.learning.losses import cross_entropy, example_losses

__all__ = ["LabelledSampling", "adjust_logits", "adjusted_loss", "class_balanced_order", "class_shares",
           "class_weights", "epoch_order", "finding_shares", "log_odds", "smoothed_shares", "weighted_loss"]

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


def finding_shares(rows_NK: Tensor) -> Tensor:
    """Share of the images that show each class, of multi-hot rows, float64 (K,), on the CPU; above 0 and below 1.

    A class that no image shows counts as shown by half an image, one that all show as by all but half. Rows of which a
    class is not known (-1) do not count for it.
    """
    rows_NK = rows_NK.cpu()
    known_K, shown_K = (rows_NK >= 0).sum(dim=0).double().clamp(min=1), (rows_NK == 1).sum(dim=0).double()
    return torch.minimum(torch.maximum(shown_K, torch.full_like(shown_K, _ABSENT)), known_K - _ABSENT) / known_K


def log_odds(shares_K: Tensor) -> Tensor:
    """log(pi / (1 - pi)), float32 (K,): what a two-class problem's prior adds to its logit.

    Source: logit adjustment, Menon et al., ICLR 2021, Eq. 10, of two classes, whose softmax is a sigmoid of the
        difference of their logits.
    """
    return torch.logit(shares_K.double()).float()


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


def class_weights(labels_N: Tensor, wanted: Sequence[float] | str, num_classes: int) -> Tensor | None:
    """Weights in the loss of labelled images, float32 (K,); None where none are wanted.

        one class for an image:  "balanced" is N / (K N_c)
        several findings:        "balanced" is N_without / N_with, the weight of a class where it is shown

    A class that no image shows has the weight of one that half an image does.
    Args:
        labels_N: of all images that are trained on, in either form.
        wanted: "balanced", or a number for every class.
    Source: scikit-learn's `compute_class_weight`, after King and Zeng 2001; torch's `BCEWithLogitsLoss(pos_weight)`.
    """
    if not isinstance(wanted, str):
        return torch.tensor(wanted, dtype=torch.float32) if wanted else None
    if not wanted:
        return None
    if labels_N.ndim == 2:
        shares_K = finding_shares(labels_N)
        return ((1.0 - shares_K) / shares_K).float()
    counts_K = torch.bincount(labels_N.cpu(), minlength=num_classes).double().clamp(min=_ABSENT)
    return (len(labels_N) / (num_classes * counts_K)).float()


def weighted_loss(labels_N: Tensor, wanted: Sequence[float] | str,
                  loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss of (logits_BK, labels_B): the mean over the images of `example_losses` with `class_weights`; `loss_of`
    itself where no weights are wanted. It is not divided by the sum of the weights, so that the loss of an image does
    not hang on which others are in its batch."""
    if not wanted:
        return loss_of
    weights: dict[int, Tensor] = {}

    def loss(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
        classes = logits_BK.shape[-1]
        if classes not in weights:
            found_K = class_weights(labels_N, wanted, classes)
            assert found_K is not None
            weights[classes] = found_K.to(logits_BK.device)
        return example_losses(logits_BK, labels_B, weights[classes]).mean()

    return loss


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
