"""The splits of Fed-SHVR against the numbers of data.md sections 3.6 and 3.7."""

from __future__ import annotations

import numpy as np
import pytest

from semisilo.common.errors import BadConfiguration, BadData
from semisilo.simulation.splits.shvr_splits import class_mismatch, fit_to_margins, labelled_classes, shvr_noniid
from semisilo.simulation.splits.splits import Split, class_distributions, labelled_at_silos, non_iidness

MNIST_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST = np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST_COUNTS))
CIFAR = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 5000))


def sizes(split: Split) -> np.ndarray:
    return np.array([len(part) for part in split.silos])


def steps_of(unlabelled: np.ndarray) -> np.ndarray:
    """tau_k = floor(E * M_k / B_u) with E = 2, B_u = 32 (fedshvr.md section 2)."""
    return 2 * unlabelled // 32


def mnist_labels(seed: int) -> np.ndarray:
    classes = labelled_classes(10, classes_per_silo=2, num_classes=10)
    return np.concatenate(labelled_at_silos(MNIST, 10, per_class=30, num_classes=10, seed=seed, classes=classes))


def test_silo_k_has_labels_of_digits_2k_and_2k_plus_1_and_every_digit_is_at_two_silos():
    classes = labelled_classes(10, classes_per_silo=2, num_classes=10)
    assert classes[:6] == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (0, 1))
    assert np.bincount(np.array(classes).ravel()).tolist() == [2] * 10
    with pytest.raises(BadConfiguration, match="classes_per_silo = 11"):
        labelled_classes(10, classes_per_silo=11, num_classes=10)


@pytest.mark.parametrize("form", ["literal", "range_matched"])
def test_all_59400_unlabelled_digits_are_dealt(form):
    split = shvr_noniid(MNIST, 10, num_classes=10, seed=1, sizes=form, labelled=mnist_labels(1))
    assert sizes(split).sum() == 59_400
    assert len(split.coordinator) == 600
    assert non_iidness(class_distributions(MNIST, split, num_classes=10)) > 0.7, "Dir(0.1) over ten is far from even"


def test_range_matched_digits_give_the_published_numbers_of_steps():
    """The specification: tau_k about 240 to 500 (published 270 to 500). M_k uniform in 4320..8000 times a factor that
    is 1 for a mean of 5940 (of the draws: 6160, standard error 336), so 0.8..1.2 holds for four standard errors."""
    for seed in range(5):
        split = shvr_noniid(MNIST, 10, num_classes=10, seed=seed, labelled=mnist_labels(seed))
        tau = steps_of(sizes(split))
        assert 230 <= tau.min() <= 330
        assert 420 <= tau.max() <= 560


def test_literal_digits_have_the_described_extremes():
    """"A smallest M_k of 100 to 2,000 and a largest of 10,000 to 16,000 typically" (fedshvr.md section 10.3)."""
    found = np.array([sizes(shvr_noniid(MNIST, 10, num_classes=10, seed=seed, sizes="literal")) for seed in range(9)])
    assert 100 < np.median(found.min(1)) < 2000
    assert 10_000 < np.median(found.max(1)) < 16_000


def test_fitting_reaches_both_margins_from_the_published_kind_of_start():
    """The specification saw 50 to 230 sweeps; here the median of 20 draws is asked to lie there."""
    generator = np.random.default_rng(3)
    columns = np.array(MNIST_COUNTS, dtype=float) - 60
    sweeps = []
    for _ in range(20):
        rows = generator.uniform(4320, 8000, 10)
        rows *= columns.sum() / rows.sum()
        fitted, count = fit_to_margins(generator.dirichlet(np.full(10, 0.1), size=10), rows_K=rows, columns_C=columns)
        assert np.abs(fitted.sum(1) - rows).max() < 1e-6
        assert np.allclose(fitted.sum(0), columns, rtol=1e-12)
        assert (fitted >= 0).all()
        sweeps.append(count)
    assert 50 <= np.median(sweeps) <= 230


def test_fitting_gives_the_product_form_of_a_known_case():
    """From a matrix of ones the fit is the outer product of the margins over the total; a second sweep finds it done.
    From an outer product that has the margins already, nothing changes but for the 1e-6."""
    rows, columns = np.array([1.0, 3.0]), np.array([2.0, 0.0, 2.0])
    fitted, sweeps = fit_to_margins(np.ones((2, 3)), rows_K=rows, columns_C=columns)
    assert np.allclose(fitted, np.outer(rows, columns) / 4)
    assert sweeps == 1
    # Odds ratios survive fitting: here (1 * 4) / (2 * 3), and the margins 2, 2 / 2, 2 leave one unknown a with
    # a^2 / (2 - a)^2 = 2 / 3.
    ratio = np.sqrt(2 / 3)
    fitted, _ = fit_to_margins(np.array([[1.0, 2.0], [3.0, 4.0]]), rows_K=[2, 2], columns_C=[2, 2])
    assert fitted[0, 0] == pytest.approx(2 * ratio / (1 + ratio), abs=1e-5)


def test_fitting_stops_after_the_largest_number_of_sweeps():
    start = np.array([[1.0, 0.0], [0.0, 1.0]])
    _, sweeps = fit_to_margins(start, rows_K=[9, 1], columns_C=[1, 9], max_sweeps=3)
    assert sweeps == 3


def test_uneven_digits_follow_from_the_seed_and_need_enough_images():
    one, again, other = ([part.tolist() for part in shvr_noniid(MNIST, 10, num_classes=10, seed=seed).silos]
                         for seed in (1, 1, 2))
    assert one == again != other
    with pytest.raises(BadConfiguration, match="3 unlabelled images"):
        shvr_noniid(np.arange(3), 4, num_classes=10, seed=1)
    with pytest.raises(BadConfiguration, match="dirichlet"):
        shvr_noniid(MNIST, 10, num_classes=10, seed=1, dirichlet=0.0)


def test_a_class_without_images_is_dealt_to_nobody():
    labels = np.repeat([0, 2], 500)
    for form in ("literal", "range_matched"):
        split = shvr_noniid(labels, 3, num_classes=3, seed=1, sizes=form)
        assert sizes(split).sum() == 1000


@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_each_silo_has_100_labels_of_six_classes_and_the_asked_share_of_other_images(ratio):
    split = class_mismatch(CIFAR, 40, mismatch_ratio=ratio, num_classes=10, seed=1)
    assert sum(map(len, split.labelled)) == 4000
    for labelled, unlabelled in zip(split.labelled, split.silos, strict=True):
        counts = np.bincount(CIFAR[labelled], minlength=10)
        assert sorted(counts[counts > 0].tolist()) == [16, 16, 17, 17, 17, 17]
        strange = (counts[CIFAR[unlabelled]] == 0).sum()
        assert abs(strange - ratio * len(unlabelled)) <= 0.5, "no pool runs out at this size"
    assert len({tuple(np.unique(CIFAR[part])) for part in split.labelled}) > 10, "the classes are random"


def test_range_matched_classes_give_the_published_steps_and_amount():
    """tau_k 40 to 90; in all about 41,600: 40 * 1040, standard error sqrt(40 / 12) * 800 = 1461, of which three."""
    for seed in range(5):
        amounts = sizes(class_mismatch(CIFAR, 40, mismatch_ratio=0.5, num_classes=10, seed=seed))
        assert 40 <= steps_of(amounts).min() <= 50
        assert 80 <= steps_of(amounts).max() <= 90
        assert abs(amounts.sum() - 41_600) < 3 * 1461


def test_literal_amounts_are_20000_in_all_and_leave_many_silos_with_nothing():
    for seed in range(5):
        split = class_mismatch(CIFAR, 40, mismatch_ratio=0.5, num_classes=10, seed=seed, sizes="literal")
        assert sizes(split).sum() == 20_000
        assert (sizes(split) == 0).sum() > 10


def test_within_a_group_the_classes_are_even():
    split = class_mismatch(CIFAR, 40, mismatch_ratio=0.5, num_classes=10, seed=1)
    counts = np.bincount(CIFAR[split.silos[0]], minlength=10)
    has = np.isin(np.arange(10), CIFAR[split.labelled[0]])
    assert np.ptp(counts[has]) <= 1
    assert np.ptp(counts[~has]) <= 1
    assert counts[~has].sum() == round(0.5 * counts.sum())


def test_an_exhausted_class_is_replaced_within_its_group_and_then_there_are_fewer():
    """Two classes, one labelled per silo, and only the other class at every silo: 2 silos want 90 % of all images, of
    classes that have half of them each."""
    labels = np.repeat([0, 1], 1000)
    split = class_mismatch(labels, 2, mismatch_ratio=1.0, num_classes=2, seed=1, classes_per_silo=1,
                           labelled_per_silo=10)
    for labelled, unlabelled in zip(split.labelled, split.silos, strict=True):
        assert not set(labels[labelled]) & set(labels[unlabelled])
    assert sizes(split).max() <= 1000
    seeds = [class_mismatch(labels, 2, mismatch_ratio=1.0, num_classes=2, seed=seed, classes_per_silo=1,
                            labelled_per_silo=10) for seed in range(12)]
    same = [split for split in seeds if labels[split.labelled[0]][0] == labels[split.labelled[1]][0]]
    assert same, "in half of the draws both silos have labels of the same class"
    assert all(sizes(split).sum() <= 1000 for split in same), "the other class has 1000 images and no more"


def test_class_mismatch_is_repeatable_and_scales_with_the_images_per_silo():
    one, again, other = (class_mismatch(CIFAR, 40, mismatch_ratio=0.5, num_classes=10, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.silos, again.silos, strict=True))
    assert not np.array_equal(one.silos[0], other.silos[0])
    # A tenth of the images and of the labels: 64 to 144 instead of 640 to 1440.
    small = sizes(class_mismatch(CIFAR[:5000], 40, mismatch_ratio=0.5, num_classes=10, seed=1, labelled_per_silo=10))
    assert 64 <= small.min() < 75
    assert 133 < small.max() <= 144


@pytest.mark.parametrize(("change", "error", "said"), [
    ({"mismatch_ratio": 1.5}, BadConfiguration, "between 0 and 1"),
    ({"classes_per_silo": 10}, BadConfiguration, "no image is of another class"),
    ({"classes_per_silo": 0}, BadConfiguration, "classes_per_silo = 0"),
    ({"labelled_per_silo": 2000}, BadData, "fewer than the"),
    ({"dirichlet": 0.0}, BadConfiguration, "dirichlet"),
])
def test_numbers_that_do_not_fit_are_refused(change, error, said):
    settings = {"mismatch_ratio": 0.5, "num_classes": 10, "seed": 1, **change}
    with pytest.raises(error, match=said):
        class_mismatch(CIFAR, 40, **settings)


def test_with_labels_of_every_class_there_is_no_other_class():
    split = class_mismatch(CIFAR, 10, mismatch_ratio=0.0, num_classes=10, seed=1, classes_per_silo=10)
    assert all(len(set(CIFAR[part])) == 10 for part in split.silos)
