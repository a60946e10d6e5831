"""Measures updates before they are folded: the norm of each, and its cosine to their mean.

    u_k    what an update changes: its group of differences or gradients; of one that overwrites, less its base
    mean   m = 1/n sum u_k / |u_k|, over the updates of a phase that are not 0

Every u_k counts the same in the mean, so that the longest does not make its own direction that of the round. The norm
is over all elements. The cosine is from elements of a sample that is drawn anew in each round (named seed
"update_sample"), since all updates together do not fit into memory: of s elements its standard error is about 1 /
sqrt(s), and where the model has no more than s elements it is exact.

Tests: tests/coordinator/compute/test_update_measures.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from semisilo.common.learning.outliers import UpdateMeasure
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods.contract import Meaning, TensorGroup, Tensors

__all__ = ["BATCH_NORM", "UpdateMeasures", "change_of"]

_ELEMENTS_IN_MEMORY = 2**22
"""Of all updates of a phase together, 16 MiB."""
_MOST_SAMPLED = 2**16
_LEAST_SAMPLED = 2**10
BATCH_NORM = "batch_norm"
"""The group of static batch-norm statistics. Beside others it is no part of u_k; alone it is all that there is."""


def change_of(groups: Mapping[str, TensorGroup], bases: Mapping[str, Tensors]) -> list[Tensor]:
    """u_k as flat float32 tensors in order of groups and tensors; empty where an update has none to measure.

    Args:
        groups: of the update, decoded.
        bases: by digest, what groups that overwrite were to overwrite.
    """
    found: list[Tensor] = []
    for name, group in groups.items():
        if name == BATCH_NORM and len(groups) > 1:
            continue
        base = bases.get(group.base) if group.meaning is Meaning.OVERWRITE else None
        found += [(tensor if base is None else tensor - base[key]).reshape(-1).float()
                  for key, tensor in group.tensors.items() if tensor.is_floating_point()]
    return found


class UpdateMeasures:
    """Takes in the updates of a phase one by one."""

    def __init__(self, *, seed: int, round: int, num_updates: int) -> None:
        self._seed, self._round = seed, round
        self._sampled = min(_MOST_SAMPLED, max(_LEAST_SAMPLED, _ELEMENTS_IN_MEMORY // max(1, num_updates)))
        self.weights: Mapping[str, float] = {}
        """What the strategy multiplies each update by, where it says so: set by who folds them."""
        self._norms: dict[str, float] = {}
        self._samples: dict[str, Tensor] = {}
        self._index: list[Tensor] | None = None
        self._scratch = torch.empty(0, dtype=torch.float64)

    def add(self, silo: str, change: list[Tensor]) -> None:
        """Measures one update; `change` as `change_of` gives it, the same layout for every silo."""
        total = sum(tensor.numel() for tensor in change)
        if not total:
            return
        self._norms[silo] = math.sqrt(sum(self._sum_of_squares(tensor) for tensor in change))
        if total <= self._sampled:
            self._samples[silo] = torch.cat(change)
            return
        if self._index is None:
            self._index = self._drawn([tensor.numel() for tensor in change])
        self._samples[silo] = torch.cat([tensor.index_select(0, index)
                                         for tensor, index in zip(change, self._index, strict=True)])

    def _drawn(self, lengths: list[int]) -> list[Tensor]:
        """Of each tensor, which elements are in the sample; the same for every update."""
        generator = torch_generator(self._seed, "update_sample", round=self._round)
        drawn = torch.randint(sum(lengths), (self._sampled,), generator=generator).sort().values
        ends = list(itertools.accumulate(lengths, initial=0))
        at = torch.searchsorted(drawn, torch.tensor(ends)).tolist()
        return [drawn[first:last] - start
                for start, (first, last) in zip(ends, itertools.pairwise(at), strict=False)]

    def _sum_of_squares(self, tensor: Tensor) -> float:
        """In float64, in memory that is used for every tensor: fresh memory of that size costs more than the sum."""
        count = tensor.numel()
        if self._scratch.numel() < count:
            self._scratch = torch.empty(count, dtype=torch.float64)
        values = self._scratch[:count].copy_(tensor)
        return float(torch.mul(values, values, out=values).sum())

    def result(self) -> dict[str, UpdateMeasure]:
        """What was measured, by silo in the order in which they came; updates without anything to measure are not in
        it."""
        units = {silo: sample.double() / length for silo, sample in self._samples.items()
                 if (length := float(torch.linalg.vector_norm(sample.double()))) > 0}
        cosines: dict[str, float] = {}
        if len(units) > 1:
            mean = torch.stack(list(units.values())).mean(dim=0)
            if (length := float(torch.linalg.vector_norm(mean))) > 0:
                cosines = {silo: max(-1.0, min(1.0, float(unit @ mean) / length)) for silo, unit in units.items()}
        return {silo: UpdateMeasure(norm=norm, cosine=cosines.get(silo)) for silo, norm in self._norms.items()}
