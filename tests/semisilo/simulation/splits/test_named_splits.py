"""Splits as a study file names them: the published counts of every row, both scenarios, and what is refused."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from semisilo.common.config import from_dict
from semisilo.common.data.split_settings import SplitName
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.simulation.splits.named_splits import SplitSettings, deal, streaming_step
from semisilo.simulation.splits.splits import Split, class_distributions, non_iidness
from tests.each_of import each_of

POOLED = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
"""CIFAR-10, training and test images together."""
FASHION = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 7000))
TRAIN = np.random.default_rng(2).permutation(np.repeat(np.arange(10), 5000))
MNIST = np.random.default_rng(3).permutation(
    np.repeat(np.arange(10), (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)))
SMALL = np.random.default_rng(4).permutation(np.repeat(np.arange(10), 200))
NAMES = get_args(SplitName)


def dealt(labels: np.ndarray, seed: int, scenario: str, settings: dict[str, object]) -> Split:
    """Where silos keep what their site has, one image after the other is of the next site."""
    asked = SplitSettings(**settings)
    sites = np.arange(len(labels)) % asked.silos if asked.name == "natural" else ()
    return deal(labels, asked, num_classes=10, seed=seed, scenario=scenario, sites=sites)


def at_coordinator(labels: np.ndarray, seed: int = 1, **settings) -> Split:
    return dealt(labels, seed, "labels-at-coordinator", settings)


def at_silos(labels: np.ndarray, seed: int = 1, **settings) -> Split:
    return dealt(labels, seed, "labels-at-silo", settings)


def at_both(labels: np.ndarray, seed: int = 1, **settings) -> Split:
    return dealt(labels, seed, "labels-at-both", settings)


def own(name: str) -> dict[str, object]:
    """What the split needs besides its name, on a small set with labels at silos."""
    if name == "class_mismatch":
        return {"mismatch_ratio": 0.5, "labelled_per_silo": 10}
    return {"labelled_per_class": 2}


def mean_size(split: Split) -> float:
    return float(np.mean([len(part) for part in split.silos]))


# --- The numbers of the papers ----------------------------------------------------------------------------------------

def test_fedmatch_code_cut_with_labels_at_silos():
    """56000 / 2000 / 2000, 5 per class at each of 100 silos: 5000 labelled, about 510 unlabelled each."""
    split = at_silos(POOLED, name="batch_iid", silos=100, num_test=2000, num_validation=2000)
    assert (len(split.test), len(split.validation)) == (2000, 2000)
    assert all(np.bincount(POOLED[part]).tolist() == [5] * 10 for part in split.labelled)
    assert mean_size(split) == pytest.approx(510, abs=10), "510 less what rounding down takes of each of ten classes"
    assert len(split.coordinator) == 0


def test_fedmatch_code_cut_with_labels_at_the_coordinator():
    split = at_coordinator(POOLED, name="batch_iid", silos=100, num_labelled=1000, num_test=2000, num_validation=2000)
    assert np.bincount(POOLED[split.coordinator]).tolist() == [100] * 10
    assert mean_size(split) == pytest.approx(550, abs=10)
    assert split.labelled == ()


def test_fedmatch_paper_cut_given_in_percent():
    """54000 / 3000 / 3000: 49000 unlabelled images of 100 silos are 490 each, and 49000 for the uneven split."""
    split = at_silos(POOLED, name="batch_iid", silos=100, num_test="5%", num_validation="5 %")
    assert (len(split.test), len(split.validation)) == (3000, 3000)
    assert mean_size(split) == pytest.approx(490, abs=10)
    uneven = at_silos(POOLED, name="batch_noniid", silos=100, num_test="5%", num_validation="5%")
    assert max(len(part) for part in uneven.silos) == 490


def test_fedmatch_streaming_of_fashion_mnist():
    """70000 pooled: 63000 / 3500 / 3500, 500 labelled, 62500 unlabelled: 6250 per silo, 625 per step, ten steps."""
    for split in (at_silos(FASHION, name="streaming_noniid", silos=10, num_test="5%", num_validation="5%"),
                  at_coordinator(FASHION, name="streaming_noniid", silos=10, num_labelled=500, num_test="5%",
                                 num_validation="5%")):
        assert (len(split.test), len(split.validation)) == (3500, 3500)
        assert sum(map(len, (*split.labelled, split.coordinator))) == 500
        assert len(split.silos[0]) == 6250
        assert [len(step) for step in split.steps[0]] == [625] * 10


def test_fedmix_non_iid_and_iid():
    """1000 labels at the coordinator, 55000 unlabelled images, 100 silos: up to 580 each, or 55 of each class."""
    common = {"silos": 100, "num_labelled": 1000, "num_test": 2000, "num_validation": 2000}
    split = at_coordinator(POOLED, name="dirichlet_fedmix", dirichlet=0.1, **common)
    assert max(len(part) for part in split.silos) == 580
    assert min(len(part) for part in split.silos) < 50
    assert at_coordinator(POOLED, name="dirichlet_fedmix", images_per_silo=100, **common).silos[0].size == 100
    even = at_coordinator(POOLED, name="fedmix_iid", **common)
    counts = {tuple(np.bincount(POOLED[part])) for part in even.silos}
    assert len(counts) == 1
    assert all(53 <= count <= 56 for count in counts.pop()), "55 less what the random cut takes of a class"


def test_fed_shvr_mnist_iid():
    """60 labelled (6 per digit) and 5940 unlabelled images per silo: 600 and 59400 in all."""
    split = at_silos(MNIST, name="shvr_iid", silos=10)
    assert all(np.bincount(MNIST[part]).tolist() == [6] * 10 for part in split.labelled)
    assert [len(part) for part in split.silos] == [5940] * 10


@pytest.mark.parametrize("sizes", [None, "literal", "range_matched"])
def test_fed_shvr_mnist_non_iid(sizes):
    split = at_silos(MNIST, name="shvr_noniid", silos=10, sizes=sizes)
    for silo, part in enumerate(split.labelled):
        counts = np.bincount(MNIST[part], minlength=10)
        assert counts[2 * silo % 10] == counts[2 * silo % 10 + 1] == 30
        assert len(part) == 60
    assert sum(map(len, split.silos)) == 59_400
    smallest = min(map(len, split.silos))
    assert smallest < 3000 if sizes == "literal" else smallest > 3700


def test_fed_shvr_cifar():
    split = at_silos(TRAIN, name="class_mismatch", silos=40, mismatch_ratio=0.25)
    assert sum(map(len, split.labelled)) == 4000
    strange = [np.isin(TRAIN[unlabelled], TRAIN[labelled], invert=True).mean()
               for labelled, unlabelled in zip(split.labelled, split.silos, strict=True)]
    assert np.allclose(strange, 0.25, atol=0.001)
    literal = at_silos(TRAIN, name="class_mismatch", silos=40, mismatch_ratio=0.25, sizes="literal", dirichlet=0.025)
    assert sum(map(len, literal.silos)) == 20_000


def test_semifl_sizes():
    split = at_coordinator(TRAIN, name="iid", silos=100, num_labelled=4000)
    assert [len(part) for part in split.silos] == [460] * 100
    split = at_coordinator(TRAIN, name="shards", silos=100, num_labelled=4000)
    assert max(len(set(TRAIN[part])) for part in split.silos) == 2
    split = at_coordinator(TRAIN, name="dirichlet_semifl", silos=100, num_labelled=4000, dirichlet=0.3)
    assert sum(map(len, split.silos)) == 46_000


# --- Rules for all ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_every_split_works_with_labels_at_silos_and_follows_from_the_seed(name):
    one, again, other = (at_silos(SMALL, seed, name=name, silos=10, num_test=100, num_validation="5%", **own(name))
                         for seed in (1, 1, 2))
    assert len(one.silos) == len(one.labelled) == 10
    assert (len(one.test), len(one.validation), len(one.coordinator)) == (100, 100, 0)
    assert all(np.array_equal(a, b) for a, b in zip((*one.silos, *one.labelled), (*again.silos, *again.labelled),
                                                    strict=True))
    assert not np.array_equal(one.silos[0], other.silos[0])
    assert all(len(part) == (10 if name == "class_mismatch" else 4 if name == "shvr_noniid" else 20)
               for part in one.labelled)
    assert 0 <= non_iidness(class_distributions(SMALL, one, num_classes=10)) <= 1


@each_of("name", [name for name in NAMES if name != "class_mismatch"])
def test_every_split_but_one_works_with_labels_at_the_coordinator(name):
    split = at_coordinator(SMALL, name=name, silos=10, num_labelled=50, num_validation=100)
    assert np.bincount(SMALL[split.coordinator]).tolist() == [5] * 10
    assert split.labelled == ()
    assert sum(map(len, split.silos)) > 900, "of 1850; the uneven ones leave some unused"
    assert bool(split.steps) is (name == "streaming_noniid")


@each_of("name", [name for name in NAMES if name != "class_mismatch"])
def test_with_labels_at_both_the_coordinator_has_those_of_its_scenario_and_silos_others(name):
    half = {} if name == "shvr_noniid" else {"labelled_classes": 5}
    split = at_both(SMALL, name=name, silos=10, num_labelled=500, labelled_per_class=2, labelled_silos=2,
                    num_validation=100, **half)
    alone = at_coordinator(SMALL, name=name, silos=10, num_labelled=500, num_validation=100)
    assert np.array_equal(split.coordinator, alone.coordinator)
    counts = [np.bincount(SMALL[part], minlength=10).tolist() for part in split.labelled]
    first = 2 if name == "shvr_noniid" else 5
    assert counts[0] == [2] * first + [0] * (10 - first)
    assert counts[1] == [0] * first + [2] * first + [0] * (10 - 2 * first)
    assert counts[2:] == [[0] * 10] * 8
    assert sum(map(len, split.silos)) > 700, "of 1380; the uneven ones leave some unused"
    assert bool(split.steps) is (name == "streaming_noniid")


def test_labelled_silos_and_classes_go_round_with_labels_at_silos_as_well():
    split = at_silos(SMALL, name="iid", silos=4, labelled_per_class=1, labelled_silos=3, labelled_classes=4)
    assert [sorted(SMALL[part].tolist()) for part in split.labelled] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 8, 9], []]
    assert sum(map(len, split.silos)) == 2000 - 12


@each_of("name", NAMES)
def test_the_supervised_bound_has_the_same_parts_with_every_label(name):
    usual = at_silos(SMALL, name=name, silos=10, **own(name))
    bound = at_silos(SMALL, name=name, silos=10, all_labelled=True, **own(name))
    assert all(len(part) == 0 for part in bound.silos)
    assert bound.steps == ()
    for held, labelled, unlabelled in zip(bound.labelled, usual.labelled, usual.silos, strict=True):
        assert np.array_equal(held, np.sort(np.concatenate([labelled, unlabelled])))


def test_the_bound_of_semifl_deals_every_training_image_with_its_label():
    split = at_silos(TRAIN, name="iid", silos=100, all_labelled=True)
    assert [len(part) for part in split.labelled] == [500] * 100


def test_with_labels_at_the_coordinator_the_bound_keeps_its_labelled_images_there():
    split = at_coordinator(SMALL, name="iid", silos=10, num_labelled=50, all_labelled=True)
    assert len(split.coordinator) == 50
    assert [len(part) for part in split.labelled] == [195] * 10


def test_a_fraction_keeps_the_shares_of_the_classes_and_is_drawn_first():
    split = at_coordinator(POOLED, name="iid", silos=10, num_labelled=100, fraction=0.1, num_test="5%")
    assert len(split.test) == 300, "5 % of the tenth"
    everything = np.concatenate([*split.silos, split.coordinator, split.test])
    assert len(everything) == 6000
    assert np.bincount(POOLED[everything]).tolist() == [600] * 10


def test_labelled_silos_of_shards_may_have_labels_of_classes_they_have_no_other_images_of():
    split = at_silos(SMALL, name="shards", silos=10, classes_per_silo=2, labelled_per_class=1)
    assert all(len(set(SMALL[part])) <= 2 for part in split.silos)
    assert all(np.bincount(SMALL[part]).tolist() == [1] * 10 for part in split.labelled)


@each_of(("round", "step"), [(1, 0), (10, 0), (11, 1), (100, 9), (101, 9), (500, 9)])
def test_rounds_1_to_10_use_the_first_step_and_the_last_one_stays(round, step):
    assert streaming_step(round, steps=10, rounds_per_step=10) == step


# --- Refusals ---------------------------------------------------------------------------------------------------------

@each_of(("settings", "said"), [
    ({"name": "shard"}, "Did you mean 'shards'"),
    ({"name": "iid", "dirichlet": 0.1}, 'dirichlet has no effect in the split "iid"'),
    ({"name": "shards", "steps": 3}, 'choose "streaming_noniid"'),
    ({"name": "shvr_iid", "sizes": "literal"}, "sizes has no effect"),
    ({"name": "iid", "mismatch_ratio": 0.1}, "mismatch_ratio has no effect"),
    ({"name": "class_mismatch"}, "needs mismatch_ratio"),
    ({"name": "class_mismatch", "mismatch_ratio": 2.0}, "between 0 and 1"),
    ({"name": "class_mismatch", "mismatch_ratio": 0.5, "labelled_per_class": 3}, "give labelled_per_silo"),
    ({"name": "class_mismatch", "mismatch_ratio": 0.5, "dirichlet": 0.1}, 'unless sizes = "literal"'),
    ({"name": "streaming_noniid", "all_labelled": True, "steps": 10}, "no effect with all_labelled"),
    ({"name": "class_mismatch", "mismatch_ratio": 0.5, "labelled_silos": 3}, "labelled_silos has no effect"),
    ({"name": "shvr_noniid", "labelled_classes": 3}, "give classes_per_silo"),
    ({"name": "iid", "all_labelled": True, "labelled_silos": 3}, "no effect with all_labelled"),
    ({"name": "iid", "labelled_silos": 11}, "labelled_silos = 11: there are only 10 silos"),
    ({"name": "iid", "labelled_classes": 0}, "labelled_classes = 0"),
    ({"name": "iid", "silos": 0}, "silos = 0"),
    ({"name": "iid", "labelled_per_class": 0}, "labelled_per_class = 0"),
    ({"name": "dirichlet_semifl", "dirichlet": -1.0}, "dirichlet = -1"),
    ({"name": "iid", "fraction": 0.0}, "fraction = 0"),
    ({"name": "iid", "num_test": "100%"}, "a share below 100%"),
    ({"name": "iid", "num_validation": "a tenth"}, "a share below 100%"),
    ({"name": "iid", "num_validation": -1}, "must not be negative"),
    ({"name": "iid", "silo": 3}, "unknown key 'silo'"),
])
def test_settings_that_would_not_be_honoured_are_refused_by_name(settings, said):
    with pytest.raises(BadConfiguration) as caught:
        from_dict(SplitSettings, {"silos": 10, **settings}, where="[simulation.split]")
    assert said in caught.value.line()
    assert "[simulation.split]" in caught.value.line()


@each_of(("scenario", "settings", "said"), [
    ("labels-at-coordinator", {"name": "iid", "num_labelled": 10, "labelled_per_class": 1}, "labelled_per_class"),
    ("labels-at-coordinator", {"name": "iid"}, "needs num_labelled"),
    ("labels-at-coordinator", {"name": "class_mismatch", "mismatch_ratio": 0.5}, "labels-at-silo only"),
    ("labels-at-coordinator", {"name": "shvr_noniid", "num_labelled": 10, "classes_per_silo": 2}, "classes_per_silo"),
    ("labels-at-silo", {"name": "iid", "labelled_per_class": 1, "num_labelled": 10}, "num_labelled has no effect"),
    ("labels-at-silo", {"name": "iid"}, "needs labelled_per_class"),
    ("labels-at-coordinator", {"name": "iid", "num_labelled": 10, "labelled_silos": 1}, "labelled_silos has no effect"),
    ("labels-at-both", {"name": "iid", "num_labelled": 10}, "needs labelled_per_class"),
    ("labels-at-both", {"name": "iid", "labelled_per_class": 1}, "needs num_labelled"),
    ("labels-at-both", {"name": "class_mismatch", "mismatch_ratio": 0.5}, "labels-at-silo only"),
    ("labels-at-both", {"name": "iid", "num_labelled": 10, "labelled_per_class": 1, "labelled_classes": 11},
     "labelled_classes = 11: there are only 10 classes"),
    ("labels-at-coordinator", {"name": "iid", "num_labelled": 15}, "multiple of 10"),
    ("labels-at-silo", {"name": "batch_iid", "num_test": 2000}, "cannot be held out of 2000 images"),
])
def test_settings_that_do_not_fit_the_scenario_or_the_set_are_refused(scenario, settings, said):
    with pytest.raises(BadConfiguration) as caught:
        deal(SMALL, SplitSettings(silos=10, **settings), num_classes=10, seed=1, scenario=scenario)
    assert said in caught.value.line()


def test_a_class_with_too_few_images_to_label_is_refused():
    with pytest.raises(BadData, match="fewer than 21 for each of 10 silos"):
        at_silos(SMALL, name="iid", silos=10, labelled_per_class=21)
    with pytest.raises(BadData, match="Class 0 has 195 images, fewer than 20 for each of 10 silos"):
        at_both(SMALL, name="iid", silos=10, num_labelled=50, labelled_per_class=20)


@pytest.mark.slow
def test_sixty_thousand_images_are_dealt_in_well_under_a_second():
    import time

    begun = time.process_time()
    for name in NAMES:
        at_silos(MNIST, name=name, silos=40, **(own(name) | ({} if name == "class_mismatch" else
                                                             {"labelled_per_class": 3})))
    assert (time.process_time() - begun) / len(NAMES) < 0.5
