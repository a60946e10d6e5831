"""The paper's line of labels alone: the same network trained on the coordinator's labels by the paper's recipe.

The strong line, which is the default, is in `semisilo.coordinator.compute.strong_baseline`; how either is worked on in
`semisilo.coordinator.compute.labels_alone`.

Source: SemiFL's "partially supervised" bound (Diao et al., NeurIPS 2022, Table 1): SGD 0.1 on a cosine over 400 epochs,
momentum 0.9 (Nesterov), weight decay 5e-4, gradient norm at most 1, batches of 250, or of 10 for 1000 labels and fewer,
weak augmentation, batch-norm statistics of the labelled images. The last epoch counts, not the best.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from semisilo.common.config import to_dict
from semisilo.common.learning import tensors
from semisilo.common.learning.evaluation import AnyEvaluation, Evaluation, evaluation_steps
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
from semisilo.coordinator.compute.labels_alone import LabelledOnly, LabelsAlone, Recipe, SavedWork, sets_of
from semisilo.coordinator.ledger.records import EndedBy

__all__ = ["PAPER_EPOCHS", "PaperLabelsAlone", "PaperRecipe"]

PAPER_EPOCHS = 400
"""Of the paper's recipe."""
_LR = 0.1
_MANY_LABELS = 1000
_POINTS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperRecipe(Recipe):
    """How it is trained. With a budget the cosine ends with the epochs that fit."""

    epochs: int = PAPER_EPOCHS
    """Passes over the labelled images."""
    lr: float = _LR
    """Learning rate of the first epoch; falls to 0 on a cosine."""
    batch_size: int = 0
    """0 gives the paper's: 10 up to 1000 labels, 250 above."""
    patience: int = 0
    """Ends once the accuracy on validation images, or with several labels the AUROC, has not risen for so many epochs;
    0 for never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedPaperWork(SavedWork):
    """Where a training by this recipe stands."""

    parameters: dict[str, Tensor]
    momentum: dict[str, Tensor]
    passes: dict[str, Any]
    passes_generators: dict[str, Tensor]
    model_generators: dict[str, Tensor]
    planned: int
    ended: str
    validation: list[Any]


class PaperLabelsAlone(LabelsAlone[PaperRecipe, SavedPaperWork]):
    """The work on this line. About 20 points of its history if all epochs are made."""

    _saved_type = SavedPaperWork

    def __init__(self, environment: Environment, recipe: PaperRecipe, *, file: Path | None = None) -> None:
        """See `LabelsAlone`."""
        labelled, _ = sets_of(environment)
        batch_size = recipe.batch_size or (250 if len(labelled) > _MANY_LABELS else 10)
        super().__init__(environment, replace(recipe, batch_size=batch_size), file=file)

    def _begin(self, saved: SavedPaperWork | None) -> None:
        environment = self._environment
        self._model = unloaded_model(environment.build_model, seed=environment.seed, device=environment.device)
        tensors.load_into(self._model, initial_model(environment.build_model, environment.seed) if saved is None
                          else saved.parameters)
        self._passes = LabelledPasses(
            self._model, self._labelled, form=environment.image, augmentation=environment.augmentation,
            sgd=SGDSettings(lr=self._recipe.lr), batch_size=self._recipe.batch_size, seed=environment.seed,
            purpose="labelled_only", momentum=None if saved is None else saved.momentum,
            position=None if saved is None else PassesPosition(**saved.passes, generators=saved.passes_generators))
        self._randomness = PausedRandomness(environment.seed, "labelled_only_model", device=environment.device,
                                            states=None if saved is None else saved.model_generators)
        self._planned = 0 if saved is None else saved.planned
        self._ended: EndedBy | None = None if saved is None else _ended(saved.ended)
        self._validation: list[tuple[int, float]] = [] if saved is None else [
            (epoch, accuracy) for epoch, accuracy in saved.validation]
        self._measured: tuple[int, AnyEvaluation | None] | None = None

    @property
    def epochs(self) -> int:
        """See `LabelsAlone`."""
        return self._passes.epochs

    @property
    def planned(self) -> int:
        """See `LabelsAlone`."""
        return self._planned or self._recipe.epochs

    @property
    def fraction(self) -> float:
        """See `LabelsAlone`."""
        return min(1.0, self._passes.images / (self.planned * len(self._labelled)))

    def _randomness_on(self) -> AbstractContextManager[None]:
        return self._randomness.on()

    def _position(self) -> SavedPaperWork:
        position = self._passes.position()
        passes = to_dict(replace(position, generators={}))
        del passes["generators"]
        return SavedPaperWork(
            parameters=tensors.parameters_of(self._model), momentum=self._passes.momentum(), passes=passes,
            passes_generators=position.generators, model_generators=self._randomness.states, planned=self._planned,
            ended=self._ended or "", validation=[[epoch, accuracy] for epoch, accuracy in self._validation])

    # The work ---------------------------------------------------------------------------------------------------------

    def _work(self) -> Generator[float, None, None]:
        passes = self._passes
        while self._ended is None:
            if passes.epochs and passes.batches == 0:
                self._plan()
                if self._is_point(passes.epochs) and (not self._history or self._history[-1].epoch != passes.epochs):
                    yield from self._measure()
                self._ended = self._reason_to_end()
                if self._ended is not None:
                    break
            for _ in passes.run(lr=cosine_lr(self._recipe.lr, round=passes.epochs + 1, rounds=self.planned)):
                yield 0.0
                if self._is_spent():
                    self._ended = "budget"
                    break
        check_finite(tensors.parameters_of(self._model), where="on labels only")
        if self._measured is None or self._measured[0] != passes.images:
            yield from self._measure()
        assert self._measured is not None
        validation = yield from self._on_validation(self._model)
        self.found = LabelledOnly(
            evaluation=self._measured[1], validation=validation, history=tuple(self._history), epochs=passes.epochs,
            asked=self._recipe.epochs,
            ended=self._ended, lr=self._recipe.lr, batch_size=self._recipe.batch_size, steps=passes.end().steps,
            num_labelled=len(self._labelled), recipe="paper",
            description=f"the paper's recipe: weak views, learning rate {self._recipe.lr:g},"
                        f" batches of {self._recipe.batch_size}",
            parameters=tensors.parameters_of(self._model), statistics=self._statistics)

    def _plan(self) -> None:
        """With a budget: how many epochs fit, so that the learning rate comes down within it."""
        done = self._passes.epochs
        if not self._planned and (more := self._fitting(done)) is not None:
            self._planned = min(self._recipe.epochs, done + max(0, int(more)))

    def _reason_to_end(self) -> EndedBy | None:
        """Why no further epoch is begun; None when one is."""
        if self._passes.epochs >= self.planned:
            return "epochs" if self.planned == self._recipe.epochs else "budget"
        if self._recipe.patience and self._validation:
            best = max(self._validation, key=lambda entry: (entry[1], -entry[0]))[0]
            if self._passes.epochs - best >= self._recipe.patience:
                return "flat"
        return None

    def _is_point(self, epoch: int) -> bool:
        return epoch % max(1, self._recipe.epochs // _POINTS) == 0 or epoch >= self.planned

    def _measure(self) -> Generator[float, None, None]:
        """After the last whole epoch, or where the budget has ended one."""
        environment, passes = self._environment, self._passes
        yield from self._load_statistics(self._model, self._labelled.images_NCHW, purpose="labelled_only_batch_norm")
        measured = None
        if self._test is not None:
            measured = yield from evaluation_steps(self._model, self._test, form=environment.image)
        validation = environment.data.validation
        if self._recipe.patience and validation is not None and len(validation) and passes.batches == 0:
            on_validation = yield from evaluation_steps(self._model, validation, form=environment.image)
            worth = on_validation.accuracy if isinstance(on_validation, Evaluation) else on_validation.areas.macro
            self._validation.append((passes.epochs, worth or 0.0))
        self._measured = passes.images, measured
        if measured is not None:
            self._add_point(measured, epoch=passes.epochs, loss=passes.loss if passes.loss == passes.loss else 0.0)


def _ended(text: str) -> EndedBy | None:
    return text if text in ("epochs", "budget", "flat") else None  # type: ignore[return-value]
