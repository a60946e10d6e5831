"""The trained model of labels alone: its file, and what its probabilities stand for.

Tests: tests/coordinator/export/test_export.py, tests/semisilo/simulation/test_choice.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import StorageDamaged
from semisilo.common.learning.averaged_training import log_prior
from semisilo.common.learning.imbalance.labels import class_shares, finding_shares
from semisilo.common.learning.imbalance.prevalence import implied_prior
from semisilo.common.storage import checkpoint
from semisilo.coordinator.ledger.records import BaselineRecipe

__all__ = ["LabelsAloneModel", "prior_of_labels_alone", "read_labels_alone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelsAloneModel:
    """The content of the file `LABELS_ALONE_MODEL`."""

    parameters: dict[str, Tensor]
    batch_norm: dict[str, Tensor]
    """Empty for a network without static batch-norm."""

    @property
    def tensors(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Parameters and statistics, as a strategy gives those of its model."""
        return self.parameters, self.batch_norm


def read_labels_alone(path: Path, *, digest: str) -> LabelsAloneModel:
    """The model in a file.

    Args:
        digest: SHA-256, hex, that the ledger has of the file.
    Raises: StorageDamaged when it is not there, or not the file that the ledger names.
    """
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise StorageDamaged(f"{path}: is missing.") from None
    if found != digest:
        raise StorageDamaged(f"{path}: is not the file that the ledger names.")
    return checkpoint.load(path, LabelsAloneModel)


def prior_of_labels_alone(labelled: ImageSet | None, num_classes: int, *, recipe: BaselineRecipe) -> tuple[float, ...]:
    """The class prior that the probabilities of labels alone stand for: uniform where the strong recipe was adjusted
    for imbalanced labels, else that of the labels; empty without any. With several labels for an image the share of
    images that show each class.

    Args:
        labelled: what they were trained on.
    """
    if labelled is None or labelled.labels_N is None or len(labelled) == 0:
        return ()
    adjusted = recipe == "strong" and log_prior(labelled.labels_N, num_classes) is not None
    if labelled.labels_N.ndim == 2:
        return (0.5,) * num_classes if adjusted else tuple(finding_shares(labelled.labels_N).tolist())
    shares_K = class_shares(labelled.labels_N, num_classes).numpy()
    return tuple(implied_prior(shares_K, logit_adjustment=1.0 if adjusted else 0.0).tolist())
