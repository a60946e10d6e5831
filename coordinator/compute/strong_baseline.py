"""The strong line of labels alone: what the coordinator could make of its labels without any silo.

Strong and weak views mixed in pairs, an exponential average of the weights that is evaluated with batch-norm statistics
of its own, as many steps as the study spends, within bounds, a learning rate from a small search on validation images
or, where there are none, by cross-validation on the labels; imbalanced labels with logit adjustment, unless the study
is about accuracy. Test images are measured, and nothing is chosen by them
(docs/decisions/0027-a-strong-line-of-labels-alone.md).

It is worked on in slices (`semisilo.coordinator.compute.labels_alone`), the search included.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semisilo.common.data.image_set import ImageSet
from semisilo.common.data.multi_hot import strata_of
from semisilo.common.learning.averaged_training import (
    AveragedPosition,
    AveragedTraining,
    enough_steps,
    log_prior,
)
from semisilo.common.learning.evaluation import AnyEvaluation, evaluation_steps, inference_batches, logits_of
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import SGDSettings
from semisilo.common.learning.tensors import load_into
from semisilo.common.learning.training import check_finite, unloaded_model
from semisilo.common.measures.study_measure import (
    ACCURACY,
    BALANCED_ACCURACY,
    parse_measure,
    score_of,
)
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage.checkpoint import YOUNGER
from semisilo.coordinator.compute.labels_alone import LabelledOnly, LabelsAlone, Recipe, SavedWork
from semisilo.coordinator.compute.recipe_search import (
    LEARNING_RATES,
    Trial,
    chosen_rate,
    class_weights,
    folds_of,
    next_trial,
    num_trials,
    rightly_answered,
)
from semisilo.coordinator.ledger.records import LOGIT_ADJUSTMENT, EndedBy
from semisilo.coordinator.strategies.self_training import warm_up_steps

__all__ = ["StrongLabelsAlone", "StrongRecipe", "batch_size_of", "images_of_study", "planned_steps"]

_MANY_LABELS = 1000
_SEARCH_SHARE = 0.5
"""Steps of all trials together, as a share of the training's."""
_POINTS = 4
_PIECE = 250
_MEASURED_ON = 1000
"""Images whose batch-norm statistics a trial is measured with, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StrongRecipe(Recipe):
    """What is asked for."""

    epochs: int = 0
    """Passes over the labels; 0 for as many as `planned_steps` gives."""
    study_images: int = 0
    """Labelled images that the study itself looks at in all rounds, each counted as often as it is looked at."""
    num_classes: int
    measure: str = str(BALANCED_ACCURACY)
    """What the study is about: with "accuracy" the labels' frequencies stay in the model, and rates are compared by
    it."""


def batch_size_of(num_labelled: int) -> int:
    """Images in a step."""
    return 64 if num_labelled > _MANY_LABELS else 32


def planned_steps(recipe: StrongRecipe, *, num_labelled: int, batch_size: int) -> int:
    """Steps of the last training, at least 1.

    With `epochs`, those passes; else `enough_steps` for the labels and the study.
    """
    if recipe.epochs:
        return max(1, -(-recipe.epochs * num_labelled // batch_size))
    return enough_steps(num_labelled, batch_size=batch_size, least_images=recipe.study_images)


def images_of_study(settings: object, *, rounds: int, num_labelled: int) -> int:
    """Labelled images that training at the coordinator looks at in all rounds, and as many again for each local epoch:
    how many images silos have is not known when the line is begun. Before round 1 self-training counts with the steps
    of a warm-up of its own, also where the line is its warm-up: it cannot count on itself.

    Args:
        settings: of the method; what it does not have counts as 0.
    """
    epochs = int(getattr(settings, "coordinator_epochs", 0)) + int(getattr(settings, "local_epochs", 0))
    images = rounds * epochs * num_labelled + int(getattr(settings, "final_epochs", 0)) * num_labelled
    if isinstance(settings, SelfTrainingSettings):
        steps = rounds * settings.coordinator_steps + warm_up_steps(settings, num_labelled)
        images += settings.labelled_batch * steps
    return images


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedStrongWork(SavedWork):
    """Where a search, or the training after it, stands."""

    right: list[Any]
    """Of each trial: rate, fold, and 0 or 1 for each answer on a held-out image."""
    steps: int
    trial_steps: int
    planned: bool
    searching: bool
    done: int
    loss: float
    factor: float
    good_steps: int
    parameters: dict[str, Tensor]
    average: dict[str, Tensor]
    momentum: dict[str, Tensor]
    by_patient: bool = field(default=False, metadata=YOUNGER)
    """Whether whole patients were held out. Work that an earlier version began goes on with the images that it held
    out."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A fold: what its trials learn from, and what they are measured on."""

    learns_n: Tensor
    """Indices of labelled images, int64."""
    held: ImageSet
    """The set of the held-out images: the labelled or the validation images."""
    held_n: Tensor
    """Their indices in it, int64."""
    labels_n: Tensor
    """Their labels: int64, or multi-hot rows."""


class StrongLabelsAlone(LabelsAlone[StrongRecipe, SavedStrongWork]):
    """The work on this line."""

    _saved_type = SavedStrongWork

    def _begin(self, saved: SavedStrongWork | None) -> None:
        environment, recipe = self._environment, self._recipe
        assert self._labelled.labels_N is not None
        self._labels_N = self._labelled.labels_N
        self._batch_size = batch_size_of(len(self._labelled))
        measure = parse_measure(recipe.measure)
        self._alike = measure.weighs_classes_alike
        self._adjusted = self._alike and log_prior(self._labels_N, recipe.num_classes) is not None
        self._by_patient = saved is None or saved.by_patient
        self._parts = self._search_parts()
        if not self._tell_rates_apart(self._parts):
            self._parts = []
        # Of labels that are balanced their folds are; validation images may be as frequent as they come.
        self._weights = [class_weights(part.labels_n, balanced=self._adjusted or (self._alike and (
            measure.kind == "recall" or part.held is not self._labelled))).tolist() for part in self._parts]
        self._model = unloaded_model(environment.build_model, seed=environment.seed, device=environment.device)
        self._averaged = unloaded_model(environment.build_model, seed=environment.seed, device=environment.device)
        self._initial = initial_model(environment.build_model, environment.seed)
        self._asked = self._steps = planned_steps(recipe, num_labelled=len(self._labelled), batch_size=self._batch_size)
        self._trial_steps = self._trial_length(self._steps)
        self._planned, self._searching = False, True
        self._right: dict[Trial, Sequence[bool]] = {}
        self._left_at: AveragedPosition | None = None
        if saved is not None and saved.searching and not self._parts:
            saved = None  # of an earlier version, in the middle of a trial that is none any more
        if saved is not None:
            self._right = {Trial(rate, fold): [bool(each) for each in right]
                           for rate, fold, right in saved.right if self._parts}
            self._steps, self._trial_steps, self._planned = saved.steps, saved.trial_steps, saved.planned
            self._searching = saved.searching
            self._left_at = AveragedPosition(
                done=saved.done, parameters=saved.parameters, average=saved.average, momentum=saved.momentum,
                factor=saved.factor, good_steps=saved.good_steps, loss=saved.loss)
        self._training = self._next_training()

    def _position(self) -> SavedStrongWork:
        at = self._training.position()
        return SavedStrongWork(
            right=[[trial.rate, trial.fold, [int(each) for each in right]] for trial, right in self._right.items()],
            steps=self._steps, trial_steps=self._trial_steps, planned=self._planned, searching=self._searching,
            done=at.done, loss=at.loss, factor=at.factor, good_steps=at.good_steps, parameters=at.parameters,
            average=at.average, momentum=at.momentum, by_patient=self._by_patient)

    # How far it is ----------------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        """Of the last training; 0 while the learning rate is searched for."""
        return 0 if self._trial is not None else self._epochs(self._training.done)

    @property
    def planned(self) -> int:
        """Whole passes that it will have made at its end, as far as is known."""
        return self._epochs(self._steps)

    @property
    def doing(self) -> str:
        """What it is at, for a person, where that is not the last training."""
        if self._trial is None:
            return ""
        return f"search for the learning rate, trial {len(self._right) + 1} of {num_trials(len(self._parts))}"

    @property
    def fraction(self) -> float:
        """Share that is done, 0 to 1."""
        return min(1.0, self._done() / (num_trials(len(self._parts)) * self._trial_steps + self._steps))

    def _done(self) -> int:
        return len(self._right) * self._trial_steps + self._training.done

    def _epochs(self, steps: int) -> int:
        return steps * self._batch_size // len(self._labelled)

    # Work -------------------------------------------------------------------------------------------------------------

    def _next_training(self) -> AveragedTraining:
        """The trial that is to come, or the last training, from where it was left."""
        self._trial = next_trial(self._right, self._weights) if self._searching else None
        self._searching = self._trial is not None
        return self._made(self._trial)

    def _made(self, trial: Trial | None) -> AveragedTraining:
        """The training of a trial; None for the last training."""
        self._lr = LEARNING_RATES[chosen_rate(self._right, self._weights) if trial is None else trial.rate]
        position, self._left_at = self._left_at, None
        # The trials of a fold see the same images in the same order, from the same weights: less is chance.
        return AveragedTraining(
            self._environment, self._model, self._labelled,
            chosen_n=None if trial is None else self._parts[trial.fold].learns_n, initial=self._initial,
            sgd=SGDSettings(lr=self._lr), steps=self._steps if trial is None else self._trial_steps,
            batch_size=self._batch_size,
            position=position, log_prior_K=None if not self._alike else log_prior(
                self._labels_N if trial is None else self._labels_N[self._parts[trial.fold].learns_n],
                self._recipe.num_classes),
            purpose="labels_alone" if trial is None else f"labels_alone_fold_{trial.fold}")

    def _work(self) -> Generator[float, None, None]:
        if not self._parts and self._recipe.budget_seconds and not self._planned:
            for _ in self._training.run():  # so far that it is known what fits
                yield 0.0
                if self._plan() or self._planned:
                    self._training = self._made(None)
                    break
        while (trial := self._trial) is not None:
            for _ in self._training.run():
                yield 0.0
                if self._plan() or self._is_spent(_SEARCH_SHARE):
                    break
            if self._is_spent(_SEARCH_SHARE):  # the rest of the budget is for the training
                self._searching, self._trial, self._training = False, None, self._made(None)
            elif self._training.done == self._trial_steps:
                self._right[trial] = yield from self._tried(trial)
                self._training = self._next_training()
            else:  # of other lengths from now on
                self._training = self._next_training()
        ended: EndedBy = "epochs" if self._steps == self._asked else "budget"
        for point in range(1, _POINTS + 1):
            until = self._steps * point // _POINTS
            if self._training.done > until or (ended == "budget" and self._is_spent()):
                continue
            for _ in self._training.run(until):
                yield 0.0
                if self._is_spent():
                    ended = "budget"
                    break
            epoch = self._epochs(until)
            if self._training.done == until < self._steps and epoch not in (at.epoch for at in self._history):
                yield from self._measured()
        test = yield from self._measured()
        check_finite(self._training.average(), where="on labels only")
        validation = yield from self._on_validation(self._averaged)
        self.found = LabelledOnly(
            evaluation=test, validation=validation, crossfit=self._crossfit(), history=tuple(self._history),
            epochs=self._epochs(self._training.done), asked=self._epochs(self._asked), ended=ended, lr=self._lr,
            batch_size=self._batch_size, steps=self._training.done, loss=self._training.loss,
            num_labelled=len(self._labelled), recipe="strong", description=self._description(),
            parameters=self._training.average(), statistics=self._statistics)

    def _measured(self) -> Generator[float, None, AnyEvaluation | None]:
        """A point of the history: the average of the weights on the test images; None without these."""
        yield from self._load_average(self._labelled.images_NCHW)
        if self._test is None:
            return None
        found = yield from evaluation_steps(self._averaged, self._test, form=self._environment.image)
        self._add_point(found, epoch=self._epochs(self._training.done), loss=self._training.loss)
        return found

    def _load_average(self, images_NCHW: Tensor) -> Generator[float, None, None]:
        """The averaged weights, with batch-norm statistics of their own measured on these images."""
        load_into(self._averaged, self._training.average())
        yield from self._load_statistics(self._averaged, images_NCHW, purpose="labels_alone_batch_norm")

    def _tried(self, trial: Trial) -> Generator[float, None, list[bool]]:
        """Which answers on the held-out images a trial has right; none where a logit is not finite: it diverged, and
        NaN would count as the class that it happens to fall on."""
        part = self._parts[trial.fold]
        few_n = part.learns_n[torch.randperm(len(part.learns_n), generator=torch_generator(
            self._environment.seed, "labels_alone_few"))[:_MEASURED_ON]]
        yield from self._load_average(self._labelled.images_NCHW[few_n])
        self._averaged.eval()
        right, finite = list[bool](), True
        for cut in inference_batches(len(part.held_n), _PIECE):
            images_BCHW = part.held.images_NCHW[part.held_n[cut]]
            logits_BK = logits_of(self._averaged, images_BCHW, self._environment.image)
            right += rightly_answered(logits_BK.cpu(), part.labels_n[cut]).tolist()
            finite = finite and bool(torch.isfinite(logits_BK).all())
            yield 0.0
        return right if finite else [False] * len(right)

    # The search -------------------------------------------------------------------------------------------------------

    def _search_parts(self) -> list[_Part]:
        """The folds; with validation images these alone are measured on."""
        everything_n = torch.arange(len(self._labelled))
        validation = self._environment.data.validation
        if validation is not None and len(validation) and validation.labels_N is not None:
            return [_Part(everything_n, validation, torch.arange(len(validation)), validation.labels_N.cpu())]
        parts = []
        strata_N = torch.from_numpy(strata_of(self._labels_N.cpu().numpy()))
        for held_n in folds_of(strata_N, seed=self._environment.seed,
                               patients=self._labelled.patients if self._by_patient else ()):
            rest = torch.ones(len(self._labelled), dtype=torch.bool)
            rest[held_n] = False
            parts.append(_Part(everything_n[rest], self._labelled, held_n, self._labels_N[held_n].cpu()))
        return parts

    @staticmethod
    def _tell_rates_apart(parts: Sequence[_Part]) -> bool:
        """Whether the held-out images say which rate is better: not those of one class, which the model has all right
        that always answers it."""
        labels_n = torch.cat([part.labels_n for part in parts]) if parts else torch.empty(0, dtype=torch.int64)
        if labels_n.ndim == 2:
            return bool(class_weights(labels_n, balanced=False).any())
        return len(set(labels_n.tolist())) > 1

    def _trial_length(self, steps: int) -> int:
        trials = num_trials(len(self._parts))
        return max(1, int(_SEARCH_SHARE * steps / trials)) if trials else 0

    def _crossfit(self) -> dict[str, float]:
        """What the labels themselves say of the recipe: of trials that were shorter and had fewer labels, so rather
        less than the training reaches. {} with validation images, where no label could be held out, and with several
        labels for an image, which have no accuracy. Balanced accuracy only where labels of every class were held out:
        of a class with one label none can be, and without it the number would be of another question."""
        rate = LEARNING_RATES.index(self._lr)
        folds = [trial.fold for trial in self._right if trial.rate == rate]
        if not folds or self._environment.data.validation is not None or self._labels_N.ndim == 2:
            return {}
        labels_n = torch.cat([self._parts[fold].labels_n for fold in sorted(folds)])
        right_n = torch.tensor([each for fold in sorted(folds) for each in self._right[Trial(rate, fold)]])
        classes = self._recipe.num_classes
        images_K = torch.bincount(labels_n, minlength=classes).tolist()
        hits_K = torch.bincount(labels_n[right_n], minlength=classes).tolist()
        found: dict[str, float] = {}
        for measure in (ACCURACY, BALANCED_ACCURACY) if all(images_K) else (ACCURACY,):
            score = score_of(measure, classes=("",) * classes, hits_K=hits_K, images_K=images_K,
                             areas_K=(None,) * classes)
            if score is not None:
                found |= {f"crossfit_{measure}": score.value, f"crossfit_{measure}_error": score.error}
        return found

    def _description(self) -> str:
        parts = ["strong and weak views with MixUp", "average of the weights",
                 f"learning rate {self._lr:g}{' found on ' + self._held_out() if self._right else ''}",
                 f"{self._training.done} steps of {self._batch_size} images{self._shorter()}"]
        if self._adjusted:
            parts.insert(2, LOGIT_ADJUSTMENT)
        return ", ".join(parts)

    def _shorter(self) -> str:
        """That the bounds on its steps have made it shorter than the study, where they have."""
        steps = self._recipe.study_images // self._batch_size
        return f" (the study takes {steps})" if not self._recipe.epochs and steps > self._asked else ""

    def _held_out(self) -> str:
        folds = {trial.fold for trial in self._right}
        return "validation images" if self._environment.data.validation is not None else \
            f"held-out labels, {len(folds)} fold{'s' * (len(folds) != 1)}"

    # The budget -------------------------------------------------------------------------------------------------------

    def _plan(self) -> bool:
        """With a budget, once: how many steps fit. True when they are fewer, so that the search begins anew."""
        fits = None if self._planned else self._fitting(self._done())
        if fits is None:
            return False
        self._planned = True
        trials = num_trials(len(self._parts))
        if fits + self._done() >= trials * self._trial_steps + self._steps:
            return False
        self._steps = max(1, int(fits / (1 + (_SEARCH_SHARE if trials else 0))))
        self._trial_steps, self._right = self._trial_length(self._steps), {}
        return True
