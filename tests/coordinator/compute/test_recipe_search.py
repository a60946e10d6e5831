"""The search of labels alone: folds, successive halving and the choice, against small cases that are done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from semisilo.coordinator.compute.recipe_search import (
    LEARNING_RATES,
    Estimate,
    Trial,
    chosen_rate,
    class_weights,
    estimate,
    folds_of,
    next_trial,
    num_trials,
    trial_estimate,
)
from tests.each_of import each_of


@each_of(("labels", "sizes"), [
    ([0] * 6 + [1] * 6, [4, 4, 4]), ([0] * 5 + [1] * 2, [4, 3]), ([0] * 4 + [1], [2, 1, 1]), ([0, 1, 2], []),
    ([3] * 3 + [5] * 3, [2, 2, 2])])
def test_folds_hold_out_every_image_of_a_class_with_two_once_and_deal_each_class_evenly(
        labels: list[int], sizes: list[int]) -> None:
    labels_N = torch.tensor(labels)
    folds = folds_of(labels_N, seed=1)
    assert sorted(map(len, folds), reverse=True) == sizes
    held = torch.cat(folds).tolist() if folds else []
    counts = torch.bincount(labels_N)
    assert sorted(held) == [image for image, label in enumerate(labels) if sizes and counts[label] > 1]
    for label in set(labels):
        of_it = [int((labels_N[fold] == label).sum()) for fold in folds]
        assert not of_it or max(of_it) - min(of_it) <= 1


def test_the_same_seed_gives_the_same_folds_and_another_one_others() -> None:
    labels_N = torch.arange(40) % 4
    one, same, other = (torch.cat(folds_of(labels_N, seed=seed)).tolist() for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_all_images_of_a_patient_are_held_out_together_and_no_fold_takes_a_class_away(seed: int) -> None:
    """40 patients with 1 to 6 images of three classes, one of which is rare; one image is of nobody known."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 7, 40)
    patients = [f"p{number}" for number, size in enumerate(sizes) for _ in range(size)] + [""]
    labels = [int(random.choice(3, p=[0.6, 0.35, 0.05] if number > 2 else [0, 0, 1])) if random.random() < 0.3
              else number % 2 if number > 2 else 2 for number, size in enumerate(sizes) for _ in range(size)] + [0]
    labels_N = torch.tensor(labels)
    folds = folds_of(labels_N, seed=seed, patients=patients)
    assert 2 <= len(folds) <= 3
    held = torch.cat(folds).tolist()
    assert len(held) == len(set(held))
    for fold in folds:
        out = set(fold.tolist())
        here = {patients[index] for index in out} - {""}
        assert not here & {patients[index] for index in range(len(labels)) if index not in out}
        assert {labels[index] for index in range(len(labels)) if index not in out} == set(labels)
    assert len(held) > 0.9 * len(labels)
    of_first = [int((labels_N[fold] == 0).sum()) for fold in folds]
    assert max(of_first) - min(of_first) <= 8, "each class is dealt as evenly as whole patients allow"
    again = folds_of(labels_N, seed=seed, patients=patients)
    assert all(torch.equal(one, other) for one, other in zip(folds, again, strict=True))


@each_of(("labels", "patients", "held"), [
    ([0, 0, 0, 1, 1], "aabcd", {0, 1, 2, 3, 4}),  # two patients of either class
    ([0, 0, 1, 1, 1], "aabbb", set()),  # one patient of either class: nobody can be held out
    ([0, 0, 0, 1, 1], "abccc", {0, 1})])  # c alone has class 1
def test_a_patient_who_alone_has_a_class_is_held_out_nowhere(labels: list[int], patients: str, held: set[int]) -> None:
    folds = folds_of(torch.tensor(labels), seed=1, patients=list(patients))
    assert {index for fold in folds for index in fold.tolist()} == held


def test_where_no_patient_is_known_the_folds_are_those_of_before() -> None:
    labels_N = torch.arange(40) % 4
    for plain, unknown in zip(folds_of(labels_N, seed=1), folds_of(labels_N, seed=1, patients=[""] * 40), strict=True):
        assert torch.equal(plain, unknown)


@each_of(("folds", "trials"), [(0, 0), (1, 3), (2, 5), (3, 7)])
def test_all_rates_are_tried_on_the_first_folds_and_the_best_two_on_the_rest(folds: int, trials: int) -> None:
    weights = [[1.0, 1.0]] * folds
    right: dict[Trial, list[bool]] = {}
    while (trial := next_trial(right, weights)) is not None:
        assert trial not in right
        right[trial] = [trial.rate > 0, True]  # the first rate is the worst
    assert len(right) == trials == num_trials(folds)
    if folds > 1:
        assert {trial.rate for trial in right if trial.fold == folds - 1} == {1, 2}


def test_a_rate_is_chosen_over_the_first_only_where_it_is_clearly_better() -> None:
    def choice(hits: int, *, of: int = 20) -> int:
        weights = [[1.0] * of]
        none = [False] * of
        right = {Trial(0, 0): none, Trial(1, 0): [index < hits for index in range(of)], Trial(2, 0): none}
        return chosen_rate(right, weights)

    # With h of n better, none worse: d = h / n, its error sqrt(d (1 - d) / n); d > 2 errors where h > 4 n / (n + 4).
    assert [choice(hits) for hits in (0, 1, 3, 4, 20)] == [0, 0, 0, 1, 1]
    assert chosen_rate({}, []) == 0


def test_two_images_of_a_rare_class_do_not_change_the_rate() -> None:
    """Of 20 and 2 images, in balanced accuracy: both rare ones better is +50 points, and by the spread of the images
    themselves its error 18.5; one image of that class weighs 25. Of three, which weigh 17 each, it is enough."""
    def choice(rare: int, better: int) -> int:
        labels = torch.tensor([0] * 20 + [1] * rare)
        weights = [class_weights(labels, balanced=True).tolist()]
        none = [False] * len(labels)
        return chosen_rate({Trial(0, 0): none, Trial(1, 0): [False] * 20 + [index < better for index in range(rare)],
                            Trial(2, 0): none}, weights)

    assert (choice(2, 2), choice(3, 2), choice(3, 3)) == (0, 0, 1)
    assert chosen_rate({Trial(rate, 0): [rate > 0] * 3 for rate in range(3)}, [[0.0] * 3]) == 0, "nothing is weighed"


def test_a_rate_that_was_dropped_is_not_chosen_whatever_its_first_fold_says() -> None:
    weights = [[1.0] * 10] * 2
    right = {Trial(0, 0): [False] * 10, Trial(1, 0): [True] * 10, Trial(2, 0): [True] * 10,
             Trial(0, 1): [True] * 10, Trial(2, 1): [True] * 10}
    assert chosen_rate(right, weights) == 2
    assert len(LEARNING_RATES) == 3


def test_an_estimate_is_a_weighted_mean_with_its_standard_error() -> None:
    found = estimate([1.0, 1.0, 0.0, 1.0], [1.0] * 4)
    assert found == Estimate(0.75, pytest.approx(math.sqrt(0.75 * 0.25 / 4)))
    assert estimate([], []) == Estimate(0.0, 0.0)


def test_with_balanced_weights_the_estimate_is_the_mean_recall() -> None:
    labels_N = torch.tensor([0] * 8 + [1] * 2)
    right = [True] * 8 + [True, False]
    weights = class_weights(labels_N, balanced=True).tolist()
    assert estimate([float(each) for each in right], weights).value == pytest.approx((1.0 + 0.5) / 2)
    assert class_weights(labels_N, balanced=False).tolist() == [1.0] * 10
    assert trial_estimate({Trial(0, 0): right}, [weights], 0).value == pytest.approx(0.75)
