"""Labels alone as work that is done in slices, may be left after every batch, and goes on from its file.

What is learnt, and how, is a recipe's: `semisilo.coordinator.compute.baseline` has the paper's, which stays as a named
choice, `semisilo.coordinator.compute.strong_baseline` the strong one. Here is what both have in common: time and
budget, the file of work that is not done, and how a model is measured. It is done in time that nobody else needs; what
is on disk, or in memory, gives the same bits as one run (docs/decisions/0022-labels-alone-beside-the-rounds.md).

Tests: tests/coordinator/compute/test_baseline.py, tests/coordinator/compute/test_strong_baseline.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData, StorageDamaged
from semisilo.common.learning import batch_norm
from semisilo.common.learning.evaluation import AnyEvaluation, Evaluation, evaluation_steps
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods.contract import Environment
from semisilo.common.storage import checkpoint
from semisilo.coordinator.ledger.records import BaselineRecipe, EndedBy, HistoryPoint

__all__ = ["LabelledOnly", "LabelsAlone", "Recipe", "SavedWork", "sets_of"]

_KNOWN_AFTER = 0.05
"""Share of a budget after which it is known how much fits into it."""
_PLANNED_SHARE = 0.95
"""Share of a budget that is planned for; the rest is for work that takes longer than that before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What is asked for, whatever the recipe."""

    epochs: int
    """Passes over the labelled images."""
    budget_seconds: float = 0.0
    """Time that it may work; 0 for as long as it takes. Less is made then, and the learning rate comes down within
    it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedWork:
    """The file of work that is not done: all that the rest follows from. A recipe adds where its training stands."""

    recipe: dict[str, Any] = field(default_factory=dict)
    num_labelled: int = 0
    seconds: float = 0.0
    history: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledOnly:
    """What labels alone give."""

    evaluation: AnyEvaluation | None
    """Of the last epoch, on the test images; None where there are none."""
    validation: AnyEvaluation | None = None
    """The same on the validation images; None where there are none."""
    crossfit: Mapping[str, float] = field(default_factory=dict)
    """Cross-validated estimates on the labels, each with its standard error under NAME_error; {} where none was
    made."""
    history: tuple[HistoryPoint, ...]
    """Evenly spaced points on the test images; the last is the last epoch."""
    epochs: int
    """Whole passes that were made."""
    asked: int
    """Whole passes that were asked for."""
    ended: EndedBy
    lr: float
    batch_size: int
    steps: int
    loss: float = 0.0
    """Of the strong recipe's last step, mixed as it was."""
    num_labelled: int
    recipe: BaselineRecipe = "paper"
    description: str = ""
    """How it was trained, in words."""
    parameters: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """Of the model that was measured, as `semisilo.common.learning.tensors.parameters_of` gives them."""
    statistics: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """Its batch-norm statistics, as `semisilo.common.learning.batch_norm.load` takes them."""


R = TypeVar("R", bound=Recipe)
S = TypeVar("S", bound=SavedWork)


class LabelsAlone(ABC, Generic[R, S]):
    """The work on one line. Not to be gone on with after an error."""

    _saved_type: ClassVar[type[Any]]
    """What its file holds: the class S."""

    def __init__(self, environment: Environment, recipe: R, *, file: Path | None = None) -> None:
        """Goes on from `file` if it is there and of the same work, else from the study's own initial model.

        Raises: BadData without labelled or test images.
        """
        self._environment = environment
        self._labelled, self._test = sets_of(environment)
        self._recipe = recipe
        self._file = file
        self._statistics: dict[str, Tensor] = {}
        saved = self._saved()
        self._seconds = 0.0 if saved is None else saved.seconds
        self._history = [] if saved is None else [HistoryPoint(*point) for point in saved.history]
        self._began = time.monotonic()
        self._begin(saved)
        self._work_steps = self._work()
        self.found: LabelledOnly | None = None
        """What it has come to, once it is done."""

    # The recipe's part ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, saved: S | None) -> None:
        """Builds what is trained, from where it was left; None: from the beginning."""

    @abstractmethod
    def _work(self) -> Generator[float, None, None]:
        """The work to its end, which sets `found`; may be left after each step, for good."""

    @abstractmethod
    def _position(self) -> S:
        """Where the training stands; what is common to all recipes is filled in by `save`."""

    def _randomness_on(self) -> AbstractContextManager[None]:
        """What a slice draws from torch's global generator, where the recipe's seeds do not name it step by step."""
        return nullcontext()

    @property
    @abstractmethod
    def epochs(self) -> int:
        """Whole passes so far; 0 while something is searched for."""

    @property
    @abstractmethod
    def planned(self) -> int:
        """Whole passes that it will have made at its end, as far as is known: fewer than asked for with a budget."""

    @property
    @abstractmethod
    def fraction(self) -> float:
        """Share that is done, 0 to 1; 0 before the first batch alone."""

    @property
    def doing(self) -> str:
        """What it is at besides its epochs, for a person; empty during them."""
        return ""

    # Slices -----------------------------------------------------------------------------------------------------------

    @property
    def seconds_left(self) -> float | None:
        """Of work, if the rest is like what is done; None before the first batch."""
        if not self.fraction:
            return None
        left = self._seconds * (1 / self.fraction - 1)
        budget = self._recipe.budget_seconds
        return min(left, max(0.0, budget - self._seconds)) if budget else left

    def work(self, seconds: float) -> None:
        """Works until the first batch that ends after `seconds`, or to the end.

        Raises: ComputeFailed when training has diverged.
        """
        self._began = time.monotonic()
        with self._randomness_on():
            for _ in self._work_steps:
                self._environment.report(self.fraction, f"training on {len(self._labelled)} labelled images only")
                if time.monotonic() - self._began >= seconds:
                    break
        self._seconds += time.monotonic() - self._began
        self._began = time.monotonic()

    def save(self) -> None:
        """Writes where it stands to its file, durably. What is being measured is measured again."""
        assert self._file is not None
        checkpoint.save(self._file, replace(
            self._position(), recipe=to_dict(self._recipe), num_labelled=len(self._labelled), seconds=self._seconds,
            history=[[point.epoch, point.loss, point.accuracy, *(() if point.auroc is None else (point.auroc,))]
                     for point in self._history]))

    def _saved(self) -> S | None:
        """What the file holds; None without one, and where it is of other work or of another version: it is begun
        again."""
        if self._file is None or not self._file.exists():
            return None
        try:
            saved: S = checkpoint.load(self._file, self._saved_type)
            same = from_dict(type(self._recipe), saved.recipe) == self._recipe
        except (StorageDamaged, BadData):
            return None
        return saved if same and saved.num_labelled == len(self._labelled) else None

    # The budget -------------------------------------------------------------------------------------------------------

    def _fitting(self, done: float) -> float | None:
        """How much more fits into the budget, in whatever `done` is counted; below 0 where even that was too much. None
        without a budget, and until enough of it is spent to tell."""
        budget, spent = self._recipe.budget_seconds, self._spent()
        if not budget or not done or spent < _KNOWN_AFTER * budget:
            return None
        return (_PLANNED_SHARE * budget - spent) * done / spent

    def _spent(self) -> float:
        return self._seconds + time.monotonic() - self._began

    def _is_spent(self, share: float = 1.0) -> bool:
        """Whether that share of the budget is; never without one."""
        return 0 < share * self._recipe.budget_seconds <= self._spent()

    # Measuring --------------------------------------------------------------------------------------------------------

    def _load_statistics(self, model: nn.Module, images_NCHW: Tensor, *, purpose: str) -> Generator[float, None, None]:
        """Measures a model's batch-norm statistics on images, and gives them to it."""
        found = yield from batch_norm.measuring_steps(
            model, images_NCHW, form=self._environment.image,
            generator=torch_generator(self._environment.seed, purpose))
        self._statistics = batch_norm.to_tensors(found)
        batch_norm.load(model, self._statistics)

    def _add_point(self, measured: AnyEvaluation, *, epoch: int, loss: float) -> None:
        """A point of the history; one that stands for the same epoch gives way. Added once all that is measured with it
        is: work that is left before then measures all of it again."""
        self._history = [point for point in self._history if point.epoch < epoch]
        self._history.append(
            HistoryPoint(epoch, loss, measured.accuracy) if isinstance(measured, Evaluation) else
            HistoryPoint(epoch, loss, None, measured.areas.macro))

    def _on_validation(self, model: nn.Module) -> Generator[float, None, AnyEvaluation | None]:
        """A model on the validation images; None where there are none."""
        images = self._environment.data.validation
        if images is None or len(images) == 0:
            return None
        return (yield from evaluation_steps(model, images, form=self._environment.image))


def sets_of(environment: Environment) -> tuple[ImageSet, ImageSet | None]:
    """The labelled and the test images; None without these. Raises: BadData without labelled images, and without
    test and validation images: nothing would be known of the model then."""
    labelled, test = environment.data.labelled, environment.data.test
    if labelled is None or len(labelled) == 0 or labelled.labels_N is None:
        raise BadData("The labelled-only line needs labelled images at the coordinator; there are none.",
                      remedy="Name them in [data] labelled of the study.")
    if test is not None and len(test):
        return labelled, test
    validation = environment.data.validation
    if validation is None or len(validation) == 0:
        raise BadData("The labelled-only line needs test or validation images; there are none.",
                      remedy="Name them in [data] test or [data] validation of the study.")
    return labelled, None
