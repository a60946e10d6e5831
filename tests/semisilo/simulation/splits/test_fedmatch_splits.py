"""The splits of FedMatch and FedMix against the numbers of data.md sections 3.4 and 3.5."""

from __future__ import annotations

import numpy as np
import pytest

from semisilo.common.errors import BadConfiguration, BadData
from semisilo.simulation.splits.fedmatch_splits import (
    batch_iid,
    batch_noniid,
    dirichlet_fedmix,
    kind_distributions,
    streaming_noniid,
)
from semisilo.simulation.splits.splits import Split, class_distributions, non_iidness
from tests.each_of import each_of

CIFAR = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
"""CIFAR-10, training and test images pooled: 6000 of each class."""
FASHION = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 6250))
"""As many as Fashion-MNIST has without the 500 labelled ones and 7000 for test and validation, evenly."""
SMALL = np.random.default_rng(2).permutation(np.repeat(np.arange(10), 60))


def sizes(split: Split) -> list[int]:
    return [len(part) for part in split.silos]


def listed(split: Split) -> list[list[int]]:
    return [part.tolist() for part in split.silos]


def test_batch_iid_gives_every_silo_the_same_number_of_each_class():
    """4900 of class 0 and 4930 of the others for 100 silos: 49 each, and 30 of nine classes unused."""
    labels = np.repeat(np.arange(10), [4900, *[4930] * 9])
    split = batch_iid(labels, 100, num_classes=10, seed=1)
    assert all(np.bincount(labels[part]).tolist() == [49] * 10 for part in split.silos)
    assert sum(sizes(split)) == 49_000, "the papers' 490 each"
    assert non_iidness(class_distributions(labels, split, num_classes=10)) == 0


def test_batch_iid_follows_from_the_seed_and_leaves_out_the_labelled_images():
    held = np.arange(100)
    split = batch_iid(SMALL, 5, num_classes=10, seed=3, labelled=held)
    assert np.array_equal(split.coordinator, held)
    assert min(part.min() for part in split.silos) >= 100
    assert listed(split) == listed(batch_iid(SMALL, 5, num_classes=10, seed=3, labelled=held))
    assert listed(split) != listed(batch_iid(SMALL, 5, num_classes=10, seed=4, labelled=held))


def test_the_ten_kinds_are_the_first_rotated_and_every_row_and_column_adds_up_to_one():
    kinds = kind_distributions(10)
    assert kinds[0].tolist() == [.50, .15, .03, .03, .03, .02, .03, .03, .03, .15]
    assert kinds[1].tolist() == [.15, .50, .15, .03, .03, .03, .02, .03, .03, .03]
    assert np.allclose(kinds.sum(0), 1)
    assert np.allclose(kinds.sum(1), 1)
    assert (kinds.argmax(1) == np.arange(10)).all()
    assert np.allclose(kinds[np.arange(10), (np.arange(10) + 5) % 10], 0.02), "the opposite class"


def test_batch_noniid_gives_each_kind_half_its_images_of_its_own_class():
    """The first 80 of 100 silos, before any class runs out: multinomial counts of 550, whose sum over the silos of a
    kind has a standard deviation of sqrt(n p (1 - p)) <= sqrt(8 * 550 / 4) = 33; five of those are allowed."""
    labels = CIFAR[:55_000]
    split = batch_noniid(labels, 100, num_classes=10, seed=1)
    assert set(sizes(split)[:80]) == {550}
    assert all(size <= 550 for size in sizes(split))
    for kind in range(10):
        counts = sum(np.bincount(labels[split.silos[silo]], minlength=10) for silo in range(kind, 80, 10))
        assert np.abs(counts - 8 * 550 * kind_distributions(10)[kind]).max() < 5 * 33


def test_batch_noniid_takes_no_image_twice_and_gives_fewer_when_a_class_is_exhausted():
    """Classes 0 and 1 alone. Kinds 0 and 1 want 65 % of their 50 images of these, kinds 3 to 8 only 5 or 6 %, and the
    rest of classes that nobody has."""
    labels = np.repeat([0, 1], 250)
    split = batch_noniid(labels, 10, num_classes=10, seed=1)
    assert max(sizes(split)) <= 50
    assert max(sizes(split)[3:9]) < 15
    assert min(sizes(split)[:2]) > 15


def test_batch_noniid_is_repeatable_and_uneven():
    one, again, other = (listed(batch_noniid(SMALL, 10, num_classes=10, seed=seed)) for seed in (1, 1, 2))
    assert one == again != other
    split = batch_noniid(CIFAR, 100, num_classes=10, seed=1)
    # By symmetry the mean over all pairs is that over the 99 others of a silo: 9 of its own kind, at distance 0, and 10
    # of each other kind. The samples of 600 add a little.
    distances = [0.5 * np.abs(kind_distributions(10)[0] - row).sum() for row in kind_distributions(10)]
    expected = 10 * sum(distances) / 99
    assert non_iidness(class_distributions(CIFAR, split, num_classes=10)) == pytest.approx(expected, abs=0.06)


def test_the_uneven_splits_of_fedmatch_are_refused_for_other_numbers_of_classes():
    for split in (batch_noniid, streaming_noniid):
        with pytest.raises(BadConfiguration, match="defined for 10 classes; there are 8"):
            split(np.arange(80) % 8, 5, num_classes=8, seed=1)


def test_streaming_gives_ten_equal_steps_of_625_images():
    """62,500 images and 10 silos: 6250 each, 625 per step, where no class ran out before (the first silos)."""
    split = streaming_noniid(FASHION, 10, num_classes=10, seed=1)
    assert {len(steps) for steps in split.steps} == {10}
    assert [len(step) for step in split.steps[0]] == [625] * 10
    for held, steps in zip(split.silos, split.steps, strict=True):
        assert len({len(step) for step in steps}) == 1, "equal steps"
        assert 6000 < len(held) <= 6250
    # A step is a random tenth of the silo's images: the own class has 50 %, give or take 5 sqrt(625) / 2 = 62 images.
    own = [(FASHION[step] == 0).sum() for step in split.steps[0]]
    assert all(abs(count - 312.5) < 62.5 for count in own)


def test_streaming_shuffles_across_the_steps_and_leaves_the_remainder_unused():
    split = streaming_noniid(SMALL, 10, num_classes=10, seed=1, steps=7)  # 60 wanted: 8 per step
    assert [len(step) for step in split.steps[0]] == [8] * 7
    assert all(len(held) % 7 == 0 for held in split.silos)
    assert split.steps[0][0].max() > split.steps[0][1].min(), "not in file order"
    again = streaming_noniid(SMALL, 10, num_classes=10, seed=1, steps=7)
    assert all(np.array_equal(one, other) for a, b in zip(split.steps, again.steps, strict=True)
               for one, other in zip(a, b, strict=True))
    with pytest.raises(BadConfiguration, match="too few for 61 steps"):
        streaming_noniid(SMALL, 10, num_classes=10, seed=1, steps=61)
    with pytest.raises(BadConfiguration, match="steps = 0"):
        streaming_noniid(SMALL, 10, num_classes=10, seed=1, steps=0)


def test_dirichlet_fedmix_has_the_described_sizes_and_classes():
    """"Some 580, some below 50", classes from all ten to fewer than two (FedMix on its Figure 3)."""
    labels = CIFAR[:55_000]
    split = dirichlet_fedmix(labels, 100, mu=0.1, num_classes=10, seed=1)
    assert sizes(split)[:10] == [580] * 10, "the first silos get what they want"
    assert max(sizes(split)) == 580
    assert min(sizes(split)) < 50
    num_classes = [len(set(labels[part])) for part in split.silos]
    assert min(num_classes) == 1
    assert max(num_classes) >= 6
    assert sum(sizes(split)) <= 55_000


def test_dirichlet_fedmix_grows_even_with_mu_and_follows_from_the_seed():
    def skew(mu: float) -> float:
        split = dirichlet_fedmix(CIFAR, 100, mu=mu, num_classes=10, seed=1)
        return non_iidness(class_distributions(CIFAR, split, num_classes=10))

    skews = [skew(mu) for mu in (0.1, 1, 10, 100)]
    assert skews == sorted(skews, reverse=True)
    even = dirichlet_fedmix(CIFAR, 100, mu=1e9, num_classes=10, seed=1, images_per_silo=580)
    assert np.bincount(CIFAR[even.silos[0]]).tolist() == [58] * 10, "in the limit 58 of each class"
    one, again, other = (listed(dirichlet_fedmix(SMALL, 4, mu=1, num_classes=10, seed=s)) for s in (1, 1, 2))
    assert one == again != other


@each_of("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_dirichlet_fedmix_refuses_what_is_no_concentration(wrong):
    with pytest.raises(BadConfiguration, match="dirichlet"):
        dirichlet_fedmix(SMALL, 4, mu=wrong, num_classes=10, seed=1)


def test_too_many_silos_and_labels_out_of_range_are_refused():
    for split in (batch_iid, batch_noniid, lambda *a, **k: dirichlet_fedmix(*a, mu=1, **k)):
        with pytest.raises(BadConfiguration, match="600 unlabelled images cannot be dealt to 601 silos"):
            split(SMALL, 601, num_classes=10, seed=1)
        with pytest.raises(BadConfiguration, match="num_silos"):
            split(SMALL, 0, num_classes=10, seed=1)
        with pytest.raises(BadData, match="out of range"):
            split(SMALL + 5, 5, num_classes=10, seed=1)
