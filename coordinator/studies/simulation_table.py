"""Table [simulation] of a study file: what `semisilo simulate` and `semisilo split` deal to silos, and who is there.

Tests: tests/semisilo/simulation/test_availability.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.data.split_settings import SplitSettings

__all__ = ["SimulationSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationSettings:
    """Table [simulation]. Relative paths start at the folder of the study file."""

    data: str
    """What is dealt: `file.npz` (its training part), `file.npz#train`, or a named set such as "digits"; with labels."""
    split: SplitSettings
    """Table [simulation.split]: how it is dealt."""
    labelled: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """The coordinator's labelled images, all of them; `data` is then dealt to the silos alone, and needs no labels
    where the split is "iid". Left out: the split draws them from `data` (`num_labelled`)."""
    test: str = ""
    """What the model is tested on; left out: the test part of `data`, where it has one."""
    pool_test: bool = False
    """Adds the test images to those that are dealt, as FedMatch's papers do; `split.num_test` then holds out others."""
    silos_test: bool = True
    """Whether silos have the test images as well, so that methods can report the accuracy of each silo's own model.
    False saves that time."""
    availability: Literal["always", "uniform", "skewed"] = "always"
    """Which silos can be reached in a round: all; each with probability `reachable`; or each with a probability of its
    own, from about 0 to 2 x `reachable` (above 0.5: from 2 x `reachable` - 1 to 1), evenly spread over the silos in an
    order that the seed draws. At least one can be reached in every round."""
    reachable: float = 0.5
    """Mean share of the silos that can be reached in a round; above 0, at most 1."""
    dropout: float = 0.0
    """Probability that a silo which was asked in a round does not answer any more; 0 to 1."""

    stationarity_gap: bool = False
    """Fed-SHVR: measures after every round how far the federation is from standing still (metrics stationarity_gap,
    stationarity_gradient, stationarity_labels, objective). Takes several passes over all images of all silos."""
    forgetting: bool = False
    """labels-at-silo, -both: the accuracy of each silo's model on its own labelled images before and after its training
    (metrics labelled_accuracy_before and labelled_accuracy_after). Real silos send no such numbers."""

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("data is empty.")
        if not 0 < self.reachable <= 1:
            raise ValueError(f"reachable = {self.reachable}: must be above 0 and at most 1.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout = {self.dropout}: must be at least 0 and below 1.")
        if self.pool_test and not self.split.num_test:
            raise ValueError("pool_test = true leaves nothing to test on: set num_test in the split.")
        if self.split.num_test and not self.pool_test and self.test:
            raise ValueError("test has no effect when the split holds out images itself (num_test).")
