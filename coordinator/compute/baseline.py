"""The labelled-only line: the same network trained on the coordinator's labels alone, as well as they allow.

Source: SemiFL's "partially supervised" bound (Diao et al., NeurIPS 2022, Table 1): SGD 0.1 on a cosine over 400 epochs,
momentum 0.9 (Nesterov), weight decay 5e-4, gradient norm at most 1, batches of 250, or of 10 for 1000 labels and fewer,
weak augmentation, batch-norm statistics of the labelled images. The last epoch counts, not the best.

It is worked on in slices, in time that nobody else needs, and may be left after every batch: what is on disk then, or
in memory, gives the same bits as one run (docs/decisions/0022-labels-alone-beside-the-rounds.md).
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData, StorageDamaged
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import Evaluation, evaluation_steps
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.training import (
    LabelledPasses,
    PassesPosition,
    PausedRandomness,
    SGDSettings,
    check_finite,
    cosine_lr,
    unloaded_model,
)
from semisilo.common.methods.contract import Environment
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.ledger.records import EndedBy, HistoryPoint

__all__ = ["LabelledOnly", "LabelsAlone", "Recipe", "train_labelled_only"]

_EPOCHS = 400
_LR = 0.1
_MANY_LABELS = 1000
_POINTS = 20
_KNOWN_AFTER = 0.05
"""Share of a budget after which it is known how many epochs fit into it."""
_PLANNED_SHARE = 0.95
"""Share of a budget that is planned for; the rest is for epochs that take longer than those before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How it is trained."""

    epochs: int = _EPOCHS
    """Passes over the labelled images."""
    lr: float = _LR
    """Learning rate of the first epoch; falls to 0 on a cosine."""
    batch_size: int = 0
    """0 gives the paper's: 10 up to 1000 labels, 250 above."""
    budget_seconds: float = 0.0
    """Time that it may work; 0 for as long as it takes. The cosine then ends with the epochs that fit."""
    patience: int = 0
    """Ends once the accuracy on validation images has not risen for so many epochs; 0 for never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledOnly:
    """What labels alone give."""

    evaluation: Evaluation
    """Of the last epoch, on the test images."""
    history: tuple[HistoryPoint, ...]
    """About 20 points if all epochs were made, evenly spaced; the last is the last epoch."""
    epochs: int
    """Whole passes that were made."""
    asked: int
    """Whole passes that were asked for."""
    ended: EndedBy
    lr: float
    batch_size: int
    steps: int
    num_labelled: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Saved:
    """The file of work that is not done: all that the rest follows from."""

    recipe: dict[str, Any]
    num_labelled: int
    parameters: dict[str, Tensor]
    momentum: dict[str, Tensor]
    passes: dict[str, Any]
    passes_generators: dict[str, Tensor]
    model_generators: dict[str, Tensor]
    planned: int
    seconds: float
    ended: str
    history: list[Any]
    validation: list[Any]


class LabelsAlone:
    """The work on one line. Not to be gone on with after an error."""

    def __init__(self, environment: Environment, recipe: Recipe, *, file: Path | None = None) -> None:
        """Goes on from `file` if it is there and of the same work, else from the study's own initial model.

        Raises: BadData without labelled or test images.
        """
        self._environment = environment
        self._labelled, self._test = _sets(environment)
        self._recipe = replace(recipe, batch_size=recipe.batch_size or (
            250 if len(self._labelled) > _MANY_LABELS else 10))
        self._file = file
        self._model = unloaded_model(environment.build_model, seed=environment.seed, device=environment.device)
        saved = self._saved()
        tensors.load_into(self._model, initial_model(environment.build_model, environment.seed) if saved is None
                          else saved.parameters)
        self._passes = LabelledPasses(
            self._model, self._labelled, form=environment.image, augmentation=environment.augmentation,
            sgd=SGDSettings(lr=recipe.lr), batch_size=self._recipe.batch_size, seed=environment.seed,
            purpose="labelled_only", momentum=None if saved is None else saved.momentum,
            position=None if saved is None else PassesPosition(**saved.passes, generators=saved.passes_generators))
        self._randomness = PausedRandomness(environment.seed, "labelled_only_model", device=environment.device,
                                            states=None if saved is None else saved.model_generators)
        self._planned = 0 if saved is None else saved.planned
        self._seconds = 0.0 if saved is None else saved.seconds
        self._ended: EndedBy | None = None if saved is None else _ended(saved.ended)
        self._history = [] if saved is None else [HistoryPoint(*point) for point in saved.history]
        self._validation: list[tuple[int, float]] = [] if saved is None else [
            (epoch, accuracy) for epoch, accuracy in saved.validation]
        self._measured: tuple[int, Evaluation] | None = None
        self._began = time.monotonic()
        self._steps = self._work()
        self.found: LabelledOnly | None = None
        """What it has come to, once it is done."""

    @property
    def epochs(self) -> int:
        """Whole passes so far."""
        return self._passes.epochs

    @property
    def planned(self) -> int:
        """Whole passes that it will have made at its end, as far as is known: fewer than asked for with a budget."""
        return self._planned or self._recipe.epochs

    @property
    def fraction(self) -> float:
        """Share that is done, 0 to 1."""
        return min(1.0, self._passes.images / (self.planned * len(self._labelled)))

    @property
    def seconds_left(self) -> float | None:
        """Of work, if the rest is like what is done; None before the first batch."""
        if not self._passes.images:
            return None
        left = self._seconds * (1 / self.fraction - 1) if self.fraction else 0.0
        budget = self._recipe.budget_seconds
        return min(left, max(0.0, budget - self._seconds)) if budget else left

    def work(self, seconds: float) -> None:
        """Works until the first batch that ends after `seconds`, or to the end.

        Raises: ComputeFailed when training has diverged.
        """
        self._began = time.monotonic()
        with self._randomness.on():
            for _ in self._steps:
                self._environment.report(self.fraction, f"training on {len(self._labelled)} labelled images only")
                if time.monotonic() - self._began >= seconds:
                    break
        self._seconds += time.monotonic() - self._began

    def save(self) -> None:
        """Writes where it stands to its file, durably. Not while statistics or accuracy are measured: that is done
        again from before it."""
        assert self._file is not None
        position = self._passes.position()
        passes = to_dict(replace(position, generators={}))
        del passes["generators"]
        checkpoint.save(self._file, _Saved(
            recipe=to_dict(self._recipe), num_labelled=len(self._labelled),
            parameters=tensors.parameters_of(self._model), momentum=self._passes.momentum(), passes=passes,
            passes_generators=position.generators, model_generators=self._randomness.states, planned=self._planned,
            seconds=self._seconds, ended=self._ended or "",
            history=[[point.epoch, point.loss, point.accuracy] for point in self._history],
            validation=[[epoch, accuracy] for epoch, accuracy in self._validation]))

    def _saved(self) -> _Saved | None:
        if self._file is None or not self._file.exists():
            return None
        try:
            saved = checkpoint.load(self._file, _Saved)
            same = from_dict(Recipe, saved.recipe) == self._recipe and saved.num_labelled == len(self._labelled)
        except (StorageDamaged, BadData):
            return None  # of another version: it is begun again
        return saved if same else None

    # The work ---------------------------------------------------------------------------------------------------------

    def _work(self) -> Generator[float, None, None]:
        passes = self._passes
        while self._ended is None:
            if passes.epochs and passes.batches == 0:
                self._plan()
                if self._is_point(passes.epochs) and (not self._history or self._history[-1].epoch != passes.epochs):
                    yield from self._measure_point()
                self._ended = self._reason_to_end()
                if self._ended is not None:
                    break
            for _ in passes.run(lr=cosine_lr(self._recipe.lr, round=passes.epochs + 1, rounds=self.planned)):
                yield 0.0
                if self._is_budget_spent():
                    self._ended = "budget"
                    break
        check_finite(tensors.parameters_of(self._model), where="on labels only")
        if self._measured is None or self._measured[0] != passes.images:
            yield from self._measure_point()
        assert self._measured is not None
        self.found = LabelledOnly(
            evaluation=self._measured[1], history=tuple(self._history), epochs=passes.epochs, asked=self._recipe.epochs,
            ended=self._ended, lr=self._recipe.lr, batch_size=self._recipe.batch_size, steps=passes.end().steps,
            num_labelled=len(self._labelled))

    def _plan(self) -> None:
        """With a budget: how many epochs fit, so that the learning rate comes down within it."""
        budget, spent, done = self._recipe.budget_seconds, self._spent(), self._passes.epochs
        if budget and not self._planned and spent >= _KNOWN_AFTER * budget:
            more = max(0, int((_PLANNED_SHARE * budget - spent) / (spent / done)))
            self._planned = min(self._recipe.epochs, done + more)

    def _reason_to_end(self) -> EndedBy | None:
        """Why no further epoch is begun; None when one is."""
        if self._passes.epochs >= self.planned:
            return "epochs" if self.planned == self._recipe.epochs else "budget"
        if self._recipe.patience and self._validation:
            best = max(self._validation, key=lambda entry: (entry[1], -entry[0]))[0]
            if self._passes.epochs - best >= self._recipe.patience:
                return "flat"
        return None

    def _spent(self) -> float:
        return self._seconds + time.monotonic() - self._began

    def _is_budget_spent(self) -> bool:
        return 0 < self._recipe.budget_seconds <= self._spent()

    def _is_point(self, epoch: int) -> bool:
        return epoch % max(1, self._recipe.epochs // _POINTS) == 0 or epoch >= self.planned

    def _measure_point(self) -> Generator[float, None, None]:
        """A point of the history: after the last whole epoch, or where the budget has ended one."""
        environment, passes = self._environment, self._passes
        found = yield from batch_norm.measuring_steps(
            self._model, self._labelled.images_NCHW, form=environment.image,
            generator=torch_generator(environment.seed, "labelled_only_batch_norm"))
        batch_norm.load(self._model, batch_norm.to_tensors(found))
        measured = yield from evaluation_steps(self._model, self._test, form=environment.image)
        validation = environment.data.validation
        if self._recipe.patience and validation is not None and len(validation) and passes.batches == 0:
            on_validation = yield from evaluation_steps(self._model, validation, form=environment.image)
            self._validation.append((passes.epochs, on_validation.accuracy))
        self._measured = passes.images, measured
        if self._history and self._history[-1].epoch == passes.epochs:
            self._history.pop()  # measured again, further on
        loss = passes.loss if passes.loss == passes.loss else 0.0
        self._history.append(HistoryPoint(passes.epochs, loss, measured.accuracy))


def train_labelled_only(environment: Environment, *, epochs: int = _EPOCHS, lr: float = _LR,
                        batch_size: int = 0) -> LabelledOnly:
    """All of it at once, from the study's own initial model; see `Recipe`.

    Raises: BadData without labelled or test images; ComputeFailed when training has diverged.
    """
    alone = LabelsAlone(environment, Recipe(epochs=epochs, lr=lr, batch_size=batch_size))
    alone.work(float("inf"))
    assert alone.found is not None
    return alone.found


def _sets(environment: Environment) -> tuple[ImageSet, ImageSet]:
    labelled, test = environment.data.labelled, environment.data.test
    if labelled is None or len(labelled) == 0 or labelled.labels_N is None:
        raise BadData("The labelled-only line needs labelled images at the coordinator; there are none.",
                      remedy="Name them in [data] labelled of the study.")
    if test is None or len(test) == 0:
        raise BadData("The labelled-only line needs test images; there are none.",
                      remedy="Name them in [data] test of the study.")
    return labelled, test


def _ended(text: str) -> EndedBy | None:
    return text if text in ("epochs", "budget", "flat") else None  # type: ignore[return-value]
