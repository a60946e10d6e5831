"""Table [simulation] of a study file: what `semisilo simulate` and `semisilo split` deal to silos, and who is there.

Tests: tests/semisilo/simulation/test_availability.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.data.split_settings import SplitSettings

__all__ = ["SimulationSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationSettings:
    """Table [simulation]. Relative paths start at the folder of the study file."""

    data: str = ""
    """What is dealt: `file.npz` (its training part), `file.npz#train`, or a named set such as "digits"; with labels."""
    sites: tuple[str, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """In the place of `data`: what each silo has, as it was collected there, one source for each; split "natural"."""
    split: SplitSettings
    """Table [simulation.split]: how it is dealt."""
    labelled: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """The coordinator's labelled images, all of them; `data` is then dealt to the silos alone, and needs no labels
    where the split is "iid" or "natural". Left out: the split draws them from `data` (`num_labelled`)."""
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

    @property
    def source(self) -> str:
        """What is dealt, for a person."""
        return self.data or ", ".join(self.sites)

    def __post_init__(self) -> None:
        self._check_images()
        if not 0 < self.reachable <= 1:
            raise ValueError(f"reachable = {self.reachable}: must be above 0 and at most 1.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout = {self.dropout}: must be at least 0 and below 1.")
        if self.pool_test and not self.split.num_test:
            raise ValueError("pool_test = true leaves nothing to test on: set num_test in the split.")
        if self.split.num_test and not self.pool_test and self.test:
            raise ValueError("test has no effect when the split holds out images itself (num_test).")

    def _check_images(self) -> None:
        if self.sites and self.data:
            raise ValueError("data has no effect beside sites, which say what each silo has: leave one of them out.")
        if self.sites and self.split.name != "natural":
            raise ValueError(f'the split "{self.split.name}" deals one set; sites keep what they have: choose'
                             ' split = { name = "natural" }, or give data in the place of sites.')
        if not self.sites and self.split.name == "natural":
            raise ValueError('the split "natural" needs sites: sites = ["north.npz", "south.npz"], one for each silo.')
        if not self.sites and not self.data:
            raise ValueError('data is missing: which images are dealt, such as data = "digits".')
        if not self.sites:
            return
        if not all(self.sites):
            raise ValueError(f"sites: number {self.sites.index('') + 1} is empty.")
        if self.split.silos not in (0, len(self.sites)):
            raise ValueError(f"silos = {self.split.silos}: there are {len(self.sites)} sites. Leave it out.")
        if self.pool_test:
            raise ValueError("pool_test has no effect beside sites: add the images to those of a site.")
        object.__setattr__(self, "split", replace(self.split, silos=len(self.sites)))
