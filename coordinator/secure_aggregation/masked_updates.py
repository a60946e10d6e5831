"""Masked updates added up: the mean that comes out when all masks are taken away.

Words are added modulo 2^bits, so the sum is that of the same integers without masks, bit for bit; the coordinator never
has one update.

Tests: tests/silo/compute/test_masked_update.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from semisilo.common.errors import SecureSumFailed, StorageDamaged
from semisilo.common.methods.contract import GroupLayout, TensorGroup
from semisilo.common.payload.manifest import check_manifest
from semisilo.common.payload.reader import PayloadReader
from semisilo.common.secure_aggregation.fixed_point import decode_sum, largest_level
from semisilo.common.secure_aggregation.mask_form import EXTRA_WORDS, MaskForm, SumOutcome, share_count
from semisilo.common.secure_aggregation.messages import MASKED_GROUP
from semisilo.common.secure_aggregation.positions import chosen_positions
from semisilo.common.secure_aggregation.totals import decode_totals
from semisilo.common.secure_aggregation.words import unpack
from semisilo.common.storage.store import hash_file

__all__ = ["add_up", "check_masked", "decoded_mean"]


def add_up(paths: Sequence[Path], form: MaskForm, *, elements: int) -> np.ndarray:
    """The sum of masked updates, masks and all: words modulo 2^bits, uint32 with bits above them undefined.

    Args:
        paths: of their files, called by their digests.
        elements: of an update in the clear.
    Raises: StorageDamaged when a file is not what was accepted.
    """
    count = share_count(form.random_k, elements) + form.extra_words
    total = np.zeros(count, np.uint32)
    for path in paths:
        if hash_file(path) != path.name:
            raise StorageDamaged(f"{path}: a spooled update is damaged.",
                                 remedy="Check the disk. Stop the study, or restore the file from a backup.")
        with PayloadReader(path) as reader:
            ((_, packed),) = reader.tensors(MASKED_GROUP)
        total += unpack(packed, bits=form.bits, count=count)
    return total


def decoded_mean(total: np.ndarray, form: MaskForm, layouts: Mapping[str, GroupLayout], *, silos: int, seed: int,
                 round: int, phase: str, least_weight: float = 0.0) -> tuple[dict[str, TensorGroup], SumOutcome]:
    """The mean of the updates from the sum of their words, and what the next sum's scale follows from.

        mean = sum_k a_k x_k / sum_k a_k          of the totals as well

    Args:
        total: of `add_up`.
        layouts: of an update in the clear.
        silos: that are in the sum.
        seed, round, phase: of the study and the sum, which elements were chosen by.
        least_weight: that the silos' weights add up to at least, where they weigh by size. The mean is divided by that
            sum: with a weight that is forged one silo would make the others' updates as long as it likes.
    Raises: SecureSumFailed where the sum cannot be one of so many silos: some were told other things than others, or
        one of them lied.
    """
    level = largest_level(form.bits, form.silo_count)
    levels, cut = (int(np.rint(each)) for each in decode_sum(total[-EXTRA_WORDS:], bits=form.bits, bound=float(level),
                                                             level=level))
    weight = float(decode_sum(total[-2:-1], bits=form.bits, bound=1.0, level=level)[0])
    most = silos * level
    # A weight of 1 is `level` exactly; any other is rounded once, so a sum of them is half a level for each silo off.
    least = max(1, math.ceil(least_weight * level - silos / 2)) if form.weight_reference else most
    if not least <= levels <= most or not 0 <= cut <= most:
        raise SecureSumFailed(_not_right(silos, f"their weights add up to {weight:.6g}, and to"
                                         f" {'' if least == most else f'{least / level:.6g} to '}{silos} in a sum that"
                                         f" is right"))
    try:
        totals = decode_totals(total[len(total) - form.extra_words:-EXTRA_WORDS], bits=form.bits, level=level,
                               silos=silos)
    except ValueError as error:
        raise SecureSumFailed(_not_right(silos, f"of its totals {error}")) from None
    elements = sum(spec.num_elements for layout in layouts.values() for spec in layout.tensors)
    positions = chosen_positions(seed=seed, round=round, phase=phase, share=form.random_k, elements=elements)
    groups: dict[str, TensorGroup] = {}
    largest, start, bounds = [], 0, iter(form.bounds)
    for name in sorted(layouts, key=str.encode):
        layout, tensors = layouts[name], {}
        for spec in layout.tensors:
            end, bound = start + spec.num_elements, next(bounds)
            first, last = (start, end) if positions is None else np.searchsorted(positions, (start, end))
            values = (decode_sum(total[first:last], bits=form.bits, bound=bound, level=level) / weight).astype(
                np.float32)
            largest.append(float(np.abs(values).max()) if len(values) else 0.0)
            if positions is not None:
                sparse = np.zeros(spec.num_elements, np.float32)
                sparse[positions[first:last] - start] = values
                values = sparse
            tensors[spec.name] = torch.from_numpy(values).reshape(spec.shape)
            start = end
        groups[name] = TensorGroup(tensors, layout.meaning, layout.base)
    return groups, SumOutcome(silos=silos, weight=weight, cut=cut, elements=len(total) - form.extra_words,
                              largest=tuple(largest), totals=tuple(each / weight for each in totals))


def _not_right(silos: int, why: str) -> str:
    return (f"The sum of {silos} masked updates is not used: {why}. Either it is noise, for silos were told different"
            " things, or one of them did not do as it was asked; which one cannot be seen.")


def check_masked(path: Path, layouts: Mapping[str, GroupLayout]) -> None:
    """Whether a file is a masked update of that size. Raises: BadPayload or LayoutMismatch."""
    with PayloadReader(path) as reader:
        check_manifest(reader.groups, allowed={name: layout.meaning for name, layout in layouts.items()},
                       layouts={name: layout.tensors for name, layout in layouts.items()}, required=tuple(layouts),
                       max_bytes=sum(spec.num_elements for layout in layouts.values() for spec in layout.tensors))
        for _ in reader.tensors(MASKED_GROUP):  # decoding is the check
            pass
