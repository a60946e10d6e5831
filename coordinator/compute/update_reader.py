"""Updates in the spool, as the compute process reads them: what was checked when it arrived is not checked again.

Tests: tests/coordinator/compute/test_operations.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semisilo.common.errors import BadPayload, LayoutMismatch, StorageDamaged, WrongBase
from semisilo.common.learning.tensors import group_digest
from semisilo.common.methods.contract import FROM_TASK, GroupLayout, Meaning, Task, TensorGroup, Tensors, TensorSpec
from semisilo.common.methods.uplink import Uplink
from semisilo.common.payload.codec import ELEMENT_TYPES, Bits, exceeds
from semisilo.common.payload.manifest import GroupManifest, check_base, check_manifest
from semisilo.common.payload.reader import PayloadReader, check_finite
from semisilo.common.payload.torch_tensors import decode_group
from semisilo.common.payload.usage import Encoded, encodings_in
from semisilo.common.storage.store import hash_file

__all__ = ["LARGEST_VALUE", "CheckedFile", "Expected", "SoundFiles", "check_file", "check_groups", "expected_of",
           "group_norm"]

LARGEST_VALUE = 1e12
"""No weight, gradient or statistic of a model that anyone can use comes near it, and the sum over thousands of silos of
what does not exceed it is far from the largest float32, 3.4e38: one silo cannot make a sum infinite."""
_PIECE_ELEMENTS = 1 << 20
_REMEMBERED_FILES = 16_384
"""Some megabytes; of a phase with more silos than that the first updates are hashed once more."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the update of one silo must be."""

    groups: Mapping[str, GroupLayout]
    """Every base is a digest."""
    bases: Mapping[str, Tensors] = field(default_factory=dict)
    """By digest: what the silo was sent in its task and may overwrite."""


def expected_of(layouts: Mapping[str, GroupLayout], task: Task) -> Expected:
    """What a silo's update must be.

    Args:
        layouts: as the strategy expects them of every silo in this phase.
        task: what the strategy asks of this silo.
    """
    groups: dict[str, GroupLayout] = {}
    bases: dict[str, Tensors] = {}
    for name, layout in layouts.items():
        groups[name] = layout
        if layout.base == FROM_TASK:
            assert name in task.groups, f"the update is to overwrite the group {name}, which the task does not send"
            sent = task.groups[name]
            base = group_digest(sent)
            groups[name] = replace(layout, base=base)
            bases[base] = sent.tensors
    return Expected(groups, bases)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedFile:
    """What the check of an update's file has found besides that it is right."""

    held: tuple[str, ...]
    """Digests of the tensors of groups that overwrite: the silo holds them from now on."""
    norms: Mapping[str, float]
    """Euclidean norm of every other group: the file is read to its end anyway."""
    encoded: tuple[Encoded, ...]
    """What its blocks took: the file is open anyway."""


def check_file(path: Path, expected: Expected, uplink: Uplink = Uplink()) -> CheckedFile:
    """Whether the update in a file is what is expected; reads it one tensor at a time, or one group that overwrites.

    Args:
        uplink: the form that the study wants. Only its top-k is held against the update: a silo that sends more numbers
            than the others moves more of the model. All else that it may do costs nothing but bytes.
    Raises: BadPayload, LayoutMismatch or WrongBase, naming the group or tensor.
    """
    held, norms = [], {}
    with PayloadReader(path, require_finite=True) as reader:  # its manifest only; no tensor yet
        check_groups(reader.groups, expected.groups)
        for name, layout in expected.groups.items():
            if layout.meaning is Meaning.OVERWRITE:
                group = decode_group(reader, name, references=expected.bases.get)
                for tensor, values in group.tensors.items():
                    if values.is_floating_point() and values.numel() and float(values.abs().max()) > LARGEST_VALUE:
                        raise _absurd(tensor, name)
                held.append(group_digest(group))
                continue
            squares: list[float] = []
            sent = 0
            # Decoding is half of the check; an infinity or NaN is above the limit as well.
            for spec, bits in reader.tensors(name, require_finite=False):
                if exceeds(bits, ELEMENT_TYPES[spec.dtype], LARGEST_VALUE):
                    check_finite(bits, spec, name)
                    raise _absurd(spec.name, name)
                squares.append(_squares(_numbers(bits, spec)))
                if uplink.top_k < 1 and spec.dtype == "float32":
                    sent += int(np.count_nonzero(bits))
            if uplink.top_k < 1 and layout.meaning is Meaning.DIFFERENCE:
                _check_sent(name, layout, sent, uplink)
            norms[name] = math.sqrt(math.fsum(squares))
        return CheckedFile(held=tuple(held), norms=norms, encoded=encodings_in(reader))


def _check_sent(name: str, layout: GroupLayout, sent: int, uplink: Uplink) -> None:
    """Raises: BadPayload for more numbers than top-k leaves of a group."""
    elements = sum(spec.num_elements for spec in layout.tensors if spec.dtype == "float32")
    if sent > (most := uplink.sent(elements)):
        raise BadPayload(f"The group '{name}' has {sent} numbers that are not zero; of its {elements}, top-k"
                         f" {100 * uplink.top_k:g}% leaves {most}.", remedy="Update the silo.")


def group_norm(group: TensorGroup) -> float:
    """Euclidean norm of all elements; the same bits however the tensors are read."""
    return math.sqrt(math.fsum(_squares((tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy())
                               for tensor in group.tensors.values()))


def _numbers(bits: Bits, spec: TensorSpec) -> NDArray[Any]:
    """Elements as numpy has them; of bfloat16, which it lacks, the same numbers as float32."""
    flat = bits.reshape(-1)
    if spec.dtype == "bfloat16":
        return (flat.astype("<u4") << 16).view("<f4")
    return flat.view(np.dtype(spec.dtype).newbyteorder("<"))


def _squares(values: NDArray[Any]) -> float:
    """Sum of squares, in float64 and in pieces of equal size, so that it depends on no number of threads."""
    flat = values.reshape(-1)
    squares = np.empty(min(flat.size, _PIECE_ELEMENTS), dtype=np.float64)
    return math.fsum(
        float(np.square(piece, out=squares[:piece.size], dtype=np.float64).sum())
        for piece in (flat[start:start + _PIECE_ELEMENTS] for start in range(0, flat.size, _PIECE_ELEMENTS)))


def _absurd(tensor: str, group: str) -> BadPayload:
    return BadPayload(f"Tensor '{tensor}' of the group '{group}': it has a value above {LARGEST_VALUE:.0e}, which is of"
                      " no use in any model.", remedy="Look for a learning rate that is too high.")


class SoundFiles:
    """Which spooled files this process has read to their end and found right, as long as they look untouched."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[int, int, int]] = {}
        self._norms: dict[str, Mapping[str, float]] = {}

    def note(self, path: Path, norms: Mapping[str, float]) -> None:
        """The file was read and is right.

        Args:
            norms: `CheckedFile.norms`.
        """
        self._looks[path.name] = _looks(path)
        self._norms[path.name] = norms
        while len(self._looks) > _REMEMBERED_FILES:  # an update that came too late is never read again
            oldest = next(iter(self._looks))
            self._looks.pop(oldest)
            self._norms.pop(oldest, None)

    def norms(self, path: Path) -> Mapping[str, float] | None:
        """What the check of a file found, as long as it looks untouched; None where nothing is known."""
        known = self._looks.get(path.name)
        return self._norms.get(path.name) if known is not None and path.exists() and known == _looks(path) else None

    def read(self, path: Path, silo: str, expected: Expected, *, again: bool = False) -> dict[str, TensorGroup]:
        """The update in a spooled file, which is called by its digest and was checked when it arrived.

        The SHA-256 is computed again only when the file may have changed since: after a restart, for example.

        Args:
            again: whether it will be read once more, so that what is known of it is kept.
        Raises: StorageDamaged when it is missing or not what was accepted.
        """
        try:
            sound = self._looks.get(path.name) == _looks(path)
            if not again:
                self._looks.pop(path.name, None)
                self._norms.pop(path.name, None)
            if not sound and hash_file(path) != path.name:
                raise StorageDamaged(f"{path}: the spooled update of silo {silo} is damaged.",
                                     remedy="Check the disk. Stop the study, or restore the file from a backup.")
            with PayloadReader(path, require_finite=not sound, max_bytes=_dense_bytes(expected.groups)) as reader:
                check_groups(reader.groups, expected.groups)
                groups = {group.name: decode_group(reader, group.name, references=expected.bases.get)
                          for group in reader.groups}
        except FileNotFoundError:
            raise StorageDamaged(f"{path}: the spooled update of silo {silo} is missing.",
                                 remedy="Stop the study, or restore the file from a backup.") from None
        except (BadPayload, LayoutMismatch, WrongBase) as error:
            raise AssertionError(f"{path}: accepted, and now refused: {error.text}") from error
        if again and not sound:
            self.note(path, {name: group_norm(group) for name, group in groups.items()
                             if group.meaning is not Meaning.OVERWRITE})
        return groups


def _looks(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _dense_bytes(expects: Mapping[str, GroupLayout]) -> int:
    return sum(GroupManifest(name, layout.meaning, layout.base, layout.tensors, 0).dense_bytes
               for name, layout in expects.items())


def check_groups(groups: tuple[GroupManifest, ...], expects: Mapping[str, GroupLayout]) -> None:
    """Compares a payload's manifest with what the strategy expects; every base is a digest.

    Raises: BadPayload, LayoutMismatch, WrongBase.
    """
    check_manifest(groups, allowed={name: layout.meaning for name, layout in expects.items()},
                   layouts={name: layout.tensors for name, layout in expects.items()},
                   max_bytes=_dense_bytes(expects), required=tuple(expects))
    for group in groups:
        check_base(group, expects[group.name].base)
