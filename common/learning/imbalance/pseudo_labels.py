"""Pseudo-labels of unequal classes: predictions aligned with a class prior, and thresholds that follow the confidence.

Shapes: N images of a set, B images in a batch, K classes. Natural logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings
from semisilo.common.data.image_set import ImageSet

__all__ = ["Alignment", "Confidence", "Thresholds", "align_logits", "confidence_of", "labelled_confidence",
           "thresholds_of"]

Thresholds = Literal["fixed", "relative", "class_relative"]

_LEAST_SHARE = 1e-6
"""Shares are taken as at least this, so that no ratio is infinite."""
_SLOWEST = 0.01
"""Weight of a batch in the running mean of predictions, once a hundred have come."""
_VIEW_BATCH = 250


def align_logits(logits_BK: Tensor, target_K: Tensor, mean_K: Tensor, *, strength: float = 1.0) -> Tensor:
    """Logits whose softmax is p (target / mean)^strength, normalised: distribution alignment.

    f + strength (log target - log mean) is that, since softmax normalises. strength = 1 is the published rule, 0 would
    change nothing.

    Args:
        target_K: prior that the predictions shall have on average.
        mean_K: mean of the predictions softmax(f), without gradient. Both are taken as at least 1e-6.
    Source: ReMixMatch, Berthelot et al., ICLR 2020, section 3.1; AdaMatch, Berthelot et al., ICLR 2022, section 3.2.
        The strength is ours.
    """
    shift_K = (target_K.double().clamp_min(_LEAST_SHARE).log().cpu()
               - mean_K.double().clamp_min(_LEAST_SHARE).log().cpu())
    return logits_BK + (strength * shift_K).to(logits_BK.device, logits_BK.dtype)


class Alignment:
    """Distribution alignment over the batches of one task, with a running mean of the predictions.

    The t-th batch enters with weight max(1/t, 0.01): an arithmetic mean at first, then an exponential one of about a
    hundred batches. ReMixMatch has a mean over 128 batches; a silo takes fewer steps in a round, so it must not begin
    slowly.
    """

    def __init__(self, target_of: Callable[[int], Tensor], *, strength: float) -> None:
        """
        Args:
            target_of: from the number of classes, the prior, (K,).
        """
        self._target_of, self._strength = target_of, strength
        self._mean_K: Tensor | None = None
        self._batches = 0

    def batch(self, logits_BK: Tensor) -> Tensor:
        """The aligned logits of a batch, which enters the running mean first."""
        self._batches += 1
        now_K = _mean_prediction(logits_BK)
        weight = max(1.0 / self._batches, _SLOWEST)
        self._mean_K = now_K if self._mean_K is None else (1.0 - weight) * self._mean_K + weight * now_K
        return self._aligned(logits_BK, self._mean_K)

    def position(self) -> tuple[int, Tensor | None]:
        """Where the running mean stands, for `go_back_to`."""
        return self._batches, self._mean_K

    def go_back_to(self, position: tuple[int, Tensor | None]) -> None:
        """Batches that have come since have not entered."""
        self._batches, self._mean_K = position

    def whole(self, logits_NK: Tensor) -> Tensor:
        """The aligned logits of all images, by the mean over just these."""
        return self._aligned(logits_NK, _mean_prediction(logits_NK))

    def _aligned(self, logits_BK: Tensor, mean_K: Tensor) -> Tensor:
        return align_logits(logits_BK, self._target_of(logits_BK.shape[-1]), mean_K, strength=self._strength)


def _mean_prediction(logits_BK: Tensor) -> Tensor:
    return torch.softmax(logits_BK.detach().flatten(0, -2).double(), dim=-1).mean(dim=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Confidence:
    """How sure a model is of labelled images, 0..1."""

    mean: float
    """Mean of the largest probability."""
    by_class: tuple[float, ...]
    """Mean probability of class c over the images of class c; -1 for a class without images."""


def confidence_of(logits_NK: Tensor, labels_N: Tensor) -> Confidence:
    """mean_i max_k p_ik, and for every class the mean of p_ic over its own images.

    Args:
        logits_NK: of at least one image; labels_N: int64, on the same device.
    Source: the mean is AdaMatch's, section 3.2; FreeMatch's Eq. 6 takes the mean of p_ic over all images, since it has
        no labels: with labels the classes' own images do, and a rare class does not count as an uncertain one.
    """
    prob_NK = torch.softmax(logits_NK.double(), dim=-1)
    by_class = []
    for label in range(logits_NK.shape[-1]):
        own_N = prob_NK[labels_N == label, label]
        by_class.append(float(own_N.mean()) if len(own_N) else -1.0)
    return Confidence(mean=float(prob_NK.amax(dim=-1).mean()), by_class=tuple(by_class))


def thresholds_of(kind: Thresholds, tau: float, confidence: Confidence) -> float | Tensor:
    """What a pseudo-label's probability must reach.

        fixed:           tau
        relative:        tau * mean
        class_relative:  tau * mean * by_class[c] / max by_class, a number for each class, float32 (K,)

    A class without labelled images has the threshold of the surest one.
    Source: relative: AdaMatch, Berthelot et al., ICLR 2022, section 3.2; class-wise: FreeMatch, Wang et al., ICLR 2023,
        Eq. 8 (maximum normalisation).
    """
    if kind == "fixed":
        return tau
    if kind == "relative":
        return tau * confidence.mean
    by_class_K = torch.tensor(confidence.by_class, dtype=torch.float64)
    known_K = by_class_K[by_class_K >= 0]
    surest = float(known_K.max()) if len(known_K) else 0.0
    share_K = torch.where(by_class_K >= 0, by_class_K / surest, 1.0) if surest > 0 else torch.ones_like(by_class_K)
    return (tau * confidence.mean * share_K).float()


def labelled_confidence(logits_of: Callable[[Tensor], Tensor], labelled: ImageSet, *,
                        augmentation: AugmentationSettings, generator: torch.Generator, device: str) -> Confidence:
    """`confidence_of` one weak view of every labelled image, in order.

    Args:
        logits_of: from uint8 views (B, C, H, W) on the device to logits (B, K), in evaluation mode, without gradient.
        generator: of the views; advanced.
    """
    labels_N = labelled.labels_N
    assert labels_N is not None
    parts = []
    for first in range(0, len(labelled), _VIEW_BATCH):
        images_BCHW = labelled.images_NCHW[first:first + _VIEW_BATCH].to(device)
        parts.append(logits_of(augment.weak(images_BCHW, augmentation, generator)).float().cpu())
    return confidence_of(torch.cat(parts), labels_N.cpu())
