"""What a silo says about its pseudo-labels in every round: how many it kept, of which classes, and how right they are.

"label_ratio"             kept / labelled with a pseudo-label
"pseudo_labels/<label>"   how many of the kept ones have that class; of soft labels the sum of the class's shares
"pseudo_label_accuracy"   of all pseudo-labels, where the truth is known (simulations)
"threshold_accuracy"      of the kept ones, likewise

With several labels for an image every class of every image counts: kept are those that are known to be shown or not,
and "pseudo_labels/<label>" is on how many images the class is known to be shown.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["PseudoLabelReport"]


class PseudoLabelReport:
    """Adds up over batches; for methods that label in every step, over one epoch (the last), so that every image counts
    once."""

    def __init__(self) -> None:
        self._seen = self._kept = self._right = self._right_kept = self._known = self._known_kept = 0
        self._histogram_K = torch.zeros(0, dtype=torch.float64)

    def add(self, hard_label_B: Tensor, keep_B: Tensor, truth_B: Tensor | None, *,
            soft_BK: Tensor | None = None) -> None:
        """
        Args:
            hard_label_B: int64 (B,), any device; or multi-hot rows (B, K), -1 where a class is not known.
            keep_B: bool (B,): which pseudo-labels enter training. Not looked at of multi-hot rows, which say it
                themselves.
            truth_B: int64 (B,) in a simulation, or multi-hot rows, -1 where a class is not known, else None. Never used
                in training.
            soft_BK: soft pseudo-labels whose shares make the histogram instead, float (B, K).
        """
        hard_label_B, keep_B = hard_label_B.cpu(), keep_B.cpu()
        if hard_label_B.ndim == 2:
            self._add((hard_label_B == 1).sum(dim=0).double())
            self._count(hard_label_B.flatten(), hard_label_B.flatten() >= 0,
                        None if truth_B is None else truth_B.cpu().flatten())
            return
        self._count(hard_label_B, keep_B, truth_B)
        if soft_BK is None:
            self._add(torch.bincount(hard_label_B[keep_B]).double())
        else:
            self._add(soft_BK.cpu().double()[keep_B].sum(dim=0))

    def _count(self, hard_label_B: Tensor, keep_B: Tensor, truth_B: Tensor | None) -> None:
        self._seen += len(hard_label_B)
        self._kept += int(keep_B.sum())
        if truth_B is not None:
            known_B = truth_B.cpu() >= 0
            right_B = known_B & (hard_label_B == truth_B.cpu())
            self._known += int(known_B.sum())
            self._known_kept += int(known_B[keep_B].sum())
            self._right += int(right_B.sum())
            self._right_kept += int(right_B[keep_B].sum())

    def _add(self, counts_K: Tensor) -> None:
        """Adds counts; a batch in which the highest classes do not occur has fewer of them."""
        longer, shorter = sorted((self._histogram_K, counts_K), key=len, reverse=True)
        self._histogram_K = longer.clone()
        self._histogram_K[: len(shorter)] += shorter

    def metrics(self) -> Mapping[str, float]:
        """The numbers above; classes that got no pseudo-label are left out. Empty when nothing was added."""
        if not self._seen:
            return {}
        found = {"label_ratio": self._kept / self._seen}
        found |= {f"pseudo_labels/{label}": count for label, count in enumerate(self._histogram_K.tolist()) if count}
        if self._known:
            found["pseudo_label_accuracy"] = self._right / self._known
        if self._known_kept:
            found["threshold_accuracy"] = self._right_kept / self._known_kept
        return found
