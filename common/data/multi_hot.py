"""Labels of images that may show several findings or none: a row of 0 and 1 for each image, one column for each class.

Where images are counted or dealt class by class, an image counts as one of the rarest finding that it shows: its
stratum. That keeps rare findings on both sides of a split. numpy alone, since the light processes look at sources too.

Shapes: N images, K classes.

Tests: tests/common/data/test_multi_hot.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = ["NO_FINDING", "class_counts", "findings_of", "is_said", "num_strata", "strata_of", "to_rows"]


NO_FINDING = frozenset(("no finding", "no findings", "no_finding", "nofinding", "none"))
"""What sources say, in small letters, of an image that shows nothing, unless a class is called so."""


def to_rows(findings: Sequence[Sequence[str]], classes: Sequence[str], *, asked: Sequence[str] | None = None,
            unsure: Sequence[Sequence[str]] = ()) -> NDArray[np.int8]:
    """Multi-hot rows, int8 (N, K), of the findings of every image by name; each must be one of the classes.

    Args:
        asked: the classes that the images were asked for; the others are not known, -1. None: all.
        unsure: of each image: further ones that are not known of it; others than `classes` are passed over.
    """
    index = {name: label for label, name in enumerate(classes)}
    rows_NK = np.zeros((len(findings), len(classes)), dtype=np.int8)
    for row_K, names in zip(rows_NK, findings, strict=True):
        row_K[[index[name] for name in names]] = 1
    for row_K, names in zip(rows_NK, unsure, strict=bool(unsure)):
        row_K[[index[name] for name in names if name in index]] = -1
    if asked is not None:
        rows_NK[:, [label for name, label in index.items() if name not in asked]] = -1
    return rows_NK


def findings_of(row_K: Sequence[int], classes: Sequence[str]) -> tuple[str, ...]:
    """The findings of one image by name; () for none."""
    return tuple(name for name, shown in zip(classes, row_K, strict=True) if shown == 1)


def is_said(labels: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether an image has a label, bool (N,), of labels (N,) or multi-hot rows (N, K): -1, or a row of nothing but -1,
    says nothing, and its image is unlabelled."""
    said_N: NDArray[np.bool_] = labels.reshape(len(labels), -1).max(axis=1, initial=-1) >= 0
    return said_N


def class_counts(labels: torch.Tensor | None, num_classes: int) -> tuple[int, ...]:
    """How many images show each class, (K,), of labels in either form; all 0 without any. Multi-hot rows may sum to
    more or less than the number of images."""
    import torch

    if labels is None:
        return (0,) * num_classes
    labels = labels.cpu()
    if labels.ndim == 2:
        return tuple(int(count) for count in (labels == 1).sum(dim=0))
    return tuple(torch.bincount(labels, minlength=num_classes).tolist())


def num_strata(labels: NDArray[np.integer], num_classes: int) -> int:
    """How many strata `strata_of` tells apart: the classes, and of multi-hot rows one more for images without findings.
    """
    return num_classes + 1 if labels.ndim == 2 else num_classes


def strata_of(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """The stratum of every image, int64 (N,): of labels (N,) the label itself; of multi-hot rows (N, K) the finding of
    the row that fewest images show, the first of equals, and K for a row without findings.

    Source: stratifying by the rarest label first, as in iterative stratification: Sechidis, Tsoumakas and Vlahavas,
        ECML PKDD 2011, which goes on with the labels that are left; one pass does for splits of hundreds of images.
    """
    if labels.ndim == 1:
        return labels.astype(np.int64)
    shown_NK = labels == 1
    counts_K = shown_NK.sum(axis=0)
    rank_K = np.empty(len(counts_K), dtype=np.int64)
    order_K = np.argsort(counts_K, kind="stable")
    rank_K[order_K] = np.arange(len(order_K))
    best_N = np.where(shown_NK, rank_K, len(order_K)).min(axis=1)
    strata_N: NDArray[np.int64] = np.append(order_K, len(order_K))[best_N]
    return strata_N
