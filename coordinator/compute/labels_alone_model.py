"""The file of the trained model of labels alone.

Tests: tests/coordinator/export/test_export.py, tests/semisilo/simulation/test_choice.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from semisilo.common.errors import StorageDamaged
from semisilo.common.storage import checkpoint

__all__ = ["LabelsAloneModel", "read_labels_alone"]


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
