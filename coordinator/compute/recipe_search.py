"""Which learning rate labels alone are trained with: found on held-out labels, never on test images.

Shapes: N labelled images, n held-out ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semisilo.common.learning.losses import first_argmax
from semisilo.common.learning.seeds import torch_generator

__all__ = ["LEARNING_RATES", "Estimate", "Trial", "chosen_rate", "class_weights", "estimate", "folds_of", "next_trial",
           "num_trials", "rightly_answered", "trial_estimate"]


LEARNING_RATES = (0.03, 0.1, 0.01)
"""The first one is kept unless another one is clearly better, see `chosen_rate`."""
_CLEARLY = 2.0
"""Standard errors."""
_MOST_FOLDS = 3
"""More would be shorter trials for the same time, and short ones prefer what learns fast to what learns well."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A short training of one learning rate with one part of the labels held out."""

    rate: int
    """Index in `LEARNING_RATES`."""
    fold: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its standard error."""

    value: float
    error: float


def folds_of(labels_N: Tensor, *, seed: int, patients: Sequence[str] = ()) -> list[Tensor]:
    """Held-out images of each fold, each class dealt evenly: as many folds as the smallest class has images, but at
    most 3. Classes of a single image are held out nowhere, and do not count.

    Where patients are known, all images of one are held out together, for what a model has seen of a patient helps it
    with the others of that patient's: then it is patients that are counted and dealt.

    Args:
        patients: a key of each image's, "" where it is not known; () where none is.
    Returns: index tensors int64, ascending; [] where no class has two images.
    """
    if any(patients):
        return _folds_of_patients(labels_N, seed=seed, patients=patients)
    counts = torch.bincount(labels_N.cpu())
    several = counts[counts > 1]
    if not len(several):
        return []
    number = min(_MOST_FOLDS, int(several.min()))
    generator = torch_generator(seed, "labels_alone_folds")
    parts: list[list[int]] = [[] for _ in range(number)]
    dealt = 0
    for label, count in enumerate(counts.tolist()):
        if count < 2:
            continue
        index_n = torch.nonzero(labels_N.cpu() == label).flatten()
        for image in index_n[torch.randperm(count, generator=generator)].tolist():
            parts[dealt % number].append(image)
            dealt += 1
    return [torch.tensor(sorted(part), dtype=torch.int64) for part in parts]


def _folds_of_patients(labels_N: Tensor, *, seed: int, patients: Sequence[str]) -> list[Tensor]:
    """`folds_of` with whole patients; an image of an unknown one stands for itself. A patient who alone has a class is
    held out nowhere, nor is one without whom the rest of a fold would lack a class."""
    groups: dict[str, list[int]] = {}
    for index, patient in enumerate(patients):
        groups.setdefault(patient or f"image {index}", []).append(index)
    members = list(groups.values())
    counts_GK = torch.stack([torch.bincount(labels_N.cpu()[torch.tensor(each)], minlength=int(labels_N.max()) + 1)
                             for each in members])
    having_K = (counts_GK > 0).sum(dim=0)
    several = having_K[having_K > 1]
    if not len(several):
        return []
    number = min(_MOST_FOLDS, int(several.min()))
    generator = torch_generator(seed, "labels_alone_folds")
    parts: list[list[int]] = [[] for _ in range(number)]
    images_FK, groups_FK = torch.zeros((2, number, counts_GK.shape[1]), dtype=torch.int64)
    shuffled = torch.randperm(len(members), generator=generator).tolist()
    # The rarest classes first, while every fold is still open, and of a class who brings most: small ones even it out.
    for group in sorted(shuffled, key=lambda each: (int(having_K[counts_GK[each] > 0].min()),
                                                    -int(counts_GK[each].sum()))):
        has_K = counts_GK[group] > 0
        if int(having_K[has_K].min()) < 2:
            continue
        open_to = [fold for fold in range(number) if bool((groups_FK[fold] + 1 < having_K)[has_K].all())]
        if not open_to:
            continue
        fold = min(open_to, key=lambda each: (int(images_FK[each][has_K].sum()), int(images_FK[each].sum()), each))
        parts[fold] += members[group]
        images_FK[fold] += counts_GK[group]
        groups_FK[fold] += has_K
    return [torch.tensor(sorted(part), dtype=torch.int64) for part in parts if part]


def num_trials(folds: int) -> int:
    """How many trials a search over so many folds makes: all rates on the first half of the folds, rounded down but
    at least one, then the best two on the rest. With one fold, or none, that is each rate once, or no trial."""
    first = _first_folds(folds)
    return len(LEARNING_RATES) * first + 2 * (folds - first)


def next_trial(right: Mapping[Trial, Sequence[bool]], weights: Sequence[Sequence[float]]) -> Trial | None:
    """The trial after those that are done; None when the search is over.

    Successive halving over folds: trials of equal lengths, so that those of a rate are one estimate.

    Args:
        right: of each trial that is done, which held-out images were classified rightly.
        weights: of the held-out images of each fold, see `class_weights`.
    """
    folds = len(weights)
    first = _first_folds(folds)
    for fold in range(first):
        for rate in range(len(LEARNING_RATES)):
            if Trial(rate, fold) not in right:
                return Trial(rate, fold)
    screened = {trial: each for trial, each in right.items() if trial.fold < first}
    best = sorted(range(len(LEARNING_RATES)),
                  key=lambda rate: (-trial_estimate(screened, weights, rate).value, rate))[:2]
    for fold in range(first, folds):
        for rate in sorted(best):
            if Trial(rate, fold) not in right:
                return Trial(rate, fold)
    return None


def chosen_rate(right: Mapping[Trial, Sequence[bool]], weights: Sequence[Sequence[float]]) -> int:
    """Index of the learning rate: the first one, unless another one with as many trials as any is better on the same
    images by more than two standard errors of the difference; then the best of those. The error is at least what the
    heaviest image weighs: where all of a few answers are better, the images themselves show no spread.

    A search on a few dozen labels is noisy, and its trials are shorter than the training, which flatters high rates.
    """
    trials = [sum(trial.rate == rate for trial in right) for rate in range(len(LEARNING_RATES))]
    found, gain = 0, 0.0
    for rate in range(1, len(LEARNING_RATES)):
        shared = [trial.fold for trial in right if trial.rate == rate and Trial(0, trial.fold) in right]
        if not shared or trials[rate] < max(trials):
            continue
        difference = estimate(
            [float(mine) - float(its) for fold in shared
             for mine, its in zip(right[Trial(rate, fold)], right[Trial(0, fold)], strict=True)],
            [weight for fold in shared for weight in weights[fold]])
        weighs = [weight for fold in shared for weight in weights[fold]]
        error = max(difference.error, max(weighs) / math.fsum(weighs)) if any(weighs) else math.inf
        if difference.value > max(_CLEARLY * error, gain):
            found, gain = rate, difference.value
    return found


def trial_estimate(right: Mapping[Trial, Sequence[bool]], weights: Sequence[Sequence[float]],
                   rate: int) -> Estimate:
    """Share of the held-out images that a rate's trials have right, by their weights."""
    folds = sorted(trial.fold for trial in right if trial.rate == rate)
    return estimate([float(each) for fold in folds for each in right[Trial(rate, fold)]],
                    [weight for fold in folds for weight in weights[fold]])


def rightly_answered(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Whether each answer is right, bool: of images with one class (N,); of multi-hot rows one for every class of every
    image, at a probability of 0.5, (N K,)."""
    if labels_N.ndim == 2:
        return ((logits_NK >= 0) == (labels_N == 1)).flatten()
    return first_argmax(logits_NK) == labels_N


def class_weights(labels_N: Tensor, *, balanced: bool) -> Tensor:
    """Weight of every answer, float64, for accuracy (all equal) or balanced accuracy (1 / images of its class); this
    also for the recall of a class, which a rate would raise whose model always answers the class.

    Of multi-hot rows, (N K,): 1 / images of its kind, with or without the class; 0 for a class that has one kind alone.
    """
    labels_N = labels_N.cpu()
    if labels_N.ndim == 2:
        shows_NK = labels_N == 1
        inside_K = shows_NK.sum(dim=0).double()
        outside_K = (labels_N == 0).sum(dim=0).double()
        whole_K = (inside_K > 0) & (outside_K > 0)
        weights_NK = torch.where(shows_NK, 1.0 / inside_K, 1.0 / outside_K) if balanced else torch.ones(
            labels_N.shape, dtype=torch.float64)
        return torch.where(whole_K & (labels_N >= 0), weights_NK, torch.zeros_like(weights_NK)).flatten()
    if not balanced:
        return torch.ones(len(labels_N), dtype=torch.float64)
    return 1.0 / torch.bincount(labels_N).to(torch.float64)[labels_N]


def estimate(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    """m = sum w v / sum w, and its standard error sqrt(sum w^2 (v - m)^2) / sum w; with equal weights s / sqrt(n).

    Source: the ratio estimator of survey sampling, Cochran, "Sampling Techniques", 1977, section 6.
    """
    total = math.fsum(weights)
    if not total:
        return Estimate(0.0, 0.0)
    mean = math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    squares = math.fsum((weight * (value - mean)) ** 2 for weight, value in zip(weights, values, strict=True))
    return Estimate(mean, math.sqrt(squares) / total)


def _first_folds(folds: int) -> int:
    return min(folds, max(1, folds // 2))
