"""Means of masked updates as a strategy sees them: one for each group of silos, each as the update of one silo.

Tests: tests/coordinator/secure_aggregation/test_summed_updates.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from semisilo.common.errors import SecureSumFailed
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import ALL_SILOS, GroupLayout, TensorGroup, UpdateHeader
from semisilo.common.methods.parts.secure_sum import STEPS, sums_per_step
from semisilo.common.secure_aggregation.mask_form import MaskForm, SumOutcome, together
from semisilo.common.secure_aggregation.messages import MaskSeed
from semisilo.coordinator.secure_aggregation.groups import MaskedGroup
from semisilo.coordinator.secure_aggregation.masked_updates import add_up, decoded_mean

__all__ = ["SummedUpdates"]

_IN_MEMORY_BYTES = 256 * 2**20
"""Means that take no more together are kept; larger ones are added up anew when they are read again."""


class SummedUpdates:
    """The means of one phase."""

    def __init__(self, form: MaskForm, groups: Sequence[MaskedGroup], paths: Mapping[str, Path],
                 layouts: Mapping[str, GroupLayout], *, settings: object, seed: int, round: int, phase: str,
                 add_masks: Callable[[np.ndarray, Sequence[MaskSeed]], None]) -> None:
        """Adds all of them up once, so that noise is found before anything is folded. A group whose sum is not right is
        left out by itself.

        Args:
            paths: silo -> file of its masked update.
            layouts: of an update in the clear.
            settings: of the method.
            seed, round, phase: of the study and the sum.
            add_masks: adds the masks of seeds to words, in place.
        Raises: SecureSumFailed where no sum is right; StorageDamaged when a file is not what was accepted.
        """
        self._form, self._groups, self._paths, self._layouts = form, list(groups), paths, layouts
        self._per_step = STEPS in form.totals and sums_per_step(settings)
        self._seed, self._round, self._phase = seed, round, phase
        self._add_masks = add_masks
        self._elements = sum(spec.num_elements for layout in layouts.values() for spec in layout.tensors)
        count = len(groups)
        self._mean = lru_cache(maxsize=count if 4 * self._elements * count <= _IN_MEMORY_BYTES else 1)(self._added_up)
        self.left_out: dict[str, str] = {}
        """Silo of a group whose sum is not right -> why."""
        failed: SecureSumFailed | None = None
        found: list[tuple[MaskedGroup, SumOutcome]] = []
        for index, group in enumerate(groups):
            try:
                found.append((group, self._mean(index)[1]))
            except SecureSumFailed as error:
                failed = error
                self.left_out.update(dict.fromkeys(group.silos, error.text))
        if failed is not None:
            if not found:
                raise failed
            self._groups = [group for group, _ in found]
            self._mean.cache_clear()  # the numbers are those of other groups now
        self._outcomes = [outcome for _, outcome in found]

    def __len__(self) -> int:
        """Groups that were added up."""
        return len(self._outcomes)

    @property
    def outcome(self) -> SumOutcome | None:
        """What was learned of all of them together; None where there are none."""
        return together(self._outcomes) if self._outcomes else None

    def header(self, index: int) -> UpdateHeader:
        """What a strategy is told of one: its images as its weight says, the mean of each total."""
        outcome, form = self._outcomes[index], self._form
        return UpdateHeader(
            ALL_SILOS if len(self._outcomes) == 1 else f"group-{index + 1}",
            max(1, round(outcome.weight * form.weight_reference)) if form.weight_reference else outcome.silos,
            dict(zip(form.totals, outcome.totals, strict=True)), weight_reference=form.weight_reference)

    def read(self, index: int) -> Mapping[str, TensorGroup]:
        """The mean of a group; of normalised updates times the mean number of steps.

        Raises: StorageDamaged.
        """
        return self._mean(index)[0]

    def _added_up(self, index: int) -> tuple[dict[str, TensorGroup], SumOutcome]:
        form, group = self._form, self._groups[index]
        total = add_up([self._paths[silo] for silo in group.silos], form, elements=self._elements)
        self._add_masks(total, group.seeds)
        groups, outcome = decoded_mean(total, form, self._layouts, silos=len(group.silos), seed=self._seed,
                                       round=self._round, phase=self._phase, least_weight=group.least_weight)
        if self._per_step:
            steps = outcome.totals[form.totals.index(STEPS)]
            groups = {name: replace(each, tensors=tensors.scale(each.tensors, steps)) for name, each in groups.items()}
        return groups, outcome
