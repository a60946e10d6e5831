"""Imbalanced labels and pools, and silos with another prevalence each: counts by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semisilo.common.config import from_dict
from semisilo.common.data.split_settings import SplitSettings
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.simulation.splits.named_splits import deal
from semisilo.simulation.splits.prevalence_split import prevalence_shift
from semisilo.simulation.splits.splits import Split, labelled_selection, long_tail, long_tailed_part
from tests.each_of import each_of

LABELS = np.random.default_rng(4).permutation(np.repeat(np.arange(3), 200))


def _deal(seed: int = 1, scenario: Any = "labels-at-coordinator", **settings: Any) -> Split:
    return deal(LABELS, SplitSettings(**settings), num_classes=3, seed=seed, scenario=scenario)


def _counts(part: Any) -> list[int]:
    return np.bincount(LABELS[part], minlength=3).tolist()


@each_of(("total", "classes", "imbalance", "counts"), [
    (111, 3, 100.0, [100, 10, 1]),  # 1, 1/10, 1/100
    (30, 3, 10.0, [21, 7, 2]),  # shares 1, 0.3162, 0.1 of 1.4162: 21.18, 6.70, 2.12; the largest fraction gets the one
    (3, 3, 100.0, [1, 1, 1]), (4, 3, 100.0, [2, 1, 1]), (7, 1, 10.0, [7])])
def test_a_long_tail_by_hand(total: int, classes: int, imbalance: float, counts: list[int]) -> None:
    assert long_tail(total, classes, imbalance).tolist() == counts


def test_fewer_labels_than_classes_are_refused() -> None:
    with pytest.raises(BadConfiguration, match="fewer than one"):
        long_tail(2, 3, 10.0)


def test_labels_at_the_coordinator_by_list_or_by_imbalance() -> None:
    assert _counts(_deal(name="iid", silos=2, num_labelled=(5, 1, 9)).coordinator) == [5, 1, 9]
    assert _counts(_deal(name="iid", silos=2, num_labelled=30, label_imbalance=10.0).coordinator) == [21, 7, 2]


def test_equal_counts_as_a_list_are_the_images_of_the_plain_number() -> None:
    whole = labelled_selection(LABELS, 15, 3, 7)
    assert labelled_selection(LABELS, (5, 5, 5), 3, 7).tolist() == whole.tolist()
    more = labelled_selection(LABELS, (8, 5, 2), 3, 7)
    assert set(whole[LABELS[whole] == 0]) < set(more[LABELS[more] == 0]), "the same order is gone on with"


def test_the_pool_falls_from_class_to_class_and_the_labelled_images_are_not_in_it() -> None:
    """190 of class 0 are left, 200 of each other: n_0 = 190, then 190 / sqrt(10) = 60.08 and 19."""
    split = _deal(name="iid", silos=1, num_labelled=(10, 1, 1), unlabelled_imbalance=10.0)
    assert _counts(split.silos[0]) == [190, 60, 19]
    assert _counts(split.coordinator) == [10, 1, 1]
    assert not set(split.silos[0]) & set(split.coordinator)
    pool = np.flatnonzero(LABELS >= 0)
    assert long_tailed_part(LABELS, pool, num_classes=3, imbalance=4.0, seed=1).tolist() \
        == sorted(long_tailed_part(LABELS, pool, num_classes=3, imbalance=4.0, seed=1))
    assert _counts(long_tailed_part(LABELS, pool, num_classes=3, imbalance=4.0, seed=1)) == [200, 100, 50]


def test_a_rare_last_class_makes_all_others_as_small_as_the_imbalance_says() -> None:
    """2 images of class 2 at 10 : 1: n_0 = 20, n_1 = 6."""
    labels = np.array([0] * 100 + [1] * 100 + [2] * 2)
    part = long_tailed_part(labels, np.arange(202), num_classes=3, imbalance=10.0, seed=1)
    assert np.bincount(labels[part]).tolist() == [20, 6, 2]
    with pytest.raises(BadData, match="Class 2 has 0"):
        long_tailed_part(labels, np.arange(200), num_classes=3, imbalance=10.0, seed=1)


def test_the_pool_is_imbalanced_with_labels_at_silos_as_well() -> None:
    split = _deal(scenario="labels-at-silo", name="iid", silos=2, labelled_per_class=5, unlabelled_imbalance=10.0)
    assert [_counts(part) for part in split.labelled] == [[5, 5, 5]] * 2
    assert sum(map(len, split.silos)) == 2 * ((190 + 60 + 19) // 2)


def test_stated_prevalences_are_kept_exactly_and_silos_are_of_one_size() -> None:
    """Class 0 is wanted 1.2 times, class 1 0.5, class 2 0.3 of a silo: 200 / 1.2 = 166 images each."""
    rows = ((0.9, 0.05, 0.05), (0.3, 0.45, 0.25))
    split = prevalence_shift(LABELS, 2, num_classes=3, seed=1, prevalences=rows)
    assert [len(part) for part in split.silos] == [166, 166]
    for part, row in zip(split.silos, rows, strict=True):
        assert np.abs(np.array(_counts(part)) - 166 * np.array(row)).max() < 1
    assert not set(split.silos[0]) & set(split.silos[1])


@pytest.mark.slow
def test_drawn_prevalences_lie_around_the_shares_of_the_pool() -> None:
    """Dir(c C pi) has mean pi, and of each share the variance pi (1 - pi) / (c C + 1)."""
    labels = np.repeat(np.arange(2), (9000, 1000))
    for concentration in (1.0, 10.0):
        shares = []
        for seed in range(60):
            split = prevalence_shift(labels, 4, num_classes=2, seed=seed, dirichlet=concentration)
            assert len({len(part) for part in split.silos}) == 1
            shares += [float((labels[part] == 1).mean()) for part in split.silos]
        deviation = (0.1 * 0.9 / (2 * concentration + 1)) ** 0.5
        assert np.mean(shares) == pytest.approx(0.1, abs=4 * deviation / 240**0.5)
        assert np.std(shares) == pytest.approx(deviation, rel=0.2)


def test_the_same_seed_deals_alike_and_another_otherwise() -> None:
    def dealt(seed: int) -> list[list[int]]:
        return [part.tolist() for part in _deal(seed, name="prevalence_shift", silos=3, num_labelled=3).silos]

    assert dealt(1) == dealt(1)
    assert dealt(1) != dealt(2)


@each_of(("settings", "says"), [
    ({"num_labelled": (1, 0, 2)}, "every class needs"),
    ({"num_labelled": (1, 1, 2), "label_imbalance": 2.0}, "no effect"),
    ({"num_labelled": 6, "label_imbalance": 1.0}, "above 1"),
    ({"num_labelled": 6, "unlabelled_imbalance": 0.5}, "above 1"),
    ({"num_labelled": 6, "prevalences": ((1.0, 0.0, 0.0),) * 2}, "prevalences has no effect"),
    ({"num_labelled": 6, "name": "prevalence_shift", "prevalences": ((1.0, 0.0, 0.0),)}, "1 rows for 2"),
    ({"num_labelled": 6, "name": "prevalence_shift", "prevalences": ((0.5, 0.0, 0.0),) * 2}, "row 1"),
    ({"num_labelled": 6, "name": "prevalence_shift", "prevalences": ((1.0, 0.0),) * 2, "dirichlet": 1.0}, "dirichlet"),
])
def test_settings_that_do_nothing_or_do_not_fit_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SplitSettings(**{"name": "iid", "silos": 2, **settings})


def test_what_does_not_fit_the_classes_or_the_scenario_is_refused() -> None:
    with pytest.raises(BadConfiguration, match="2 numbers for 3 classes"):
        _deal(name="iid", silos=2, num_labelled=(1, 2))
    with pytest.raises(BadConfiguration, match="a share for each of 3"):
        _deal(name="prevalence_shift", silos=2, num_labelled=3, prevalences=((0.5, 0.5),) * 2)
    with pytest.raises(BadConfiguration, match="label_imbalance has no effect"):
        _deal(scenario="labels-at-silo", name="iid", silos=2, labelled_per_class=1, label_imbalance=2.0)
    with pytest.raises(BadConfiguration, match="cannot give 700 silos"):
        _deal(name="prevalence_shift", silos=700, num_labelled=3, dirichlet=0.01)


def test_a_study_file_says_them() -> None:
    found = from_dict(SplitSettings, {"name": "prevalence_shift", "silos": 2, "num_labelled": [4, 2],
                                      "prevalences": [[0.9, 0.1], [0.5, 0.5]]})
    assert found.num_labelled == (4, 2)
    assert found.prevalences == ((0.9, 0.1), (0.5, 0.5))
