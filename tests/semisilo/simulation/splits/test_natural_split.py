"""Silos that have what was collected at their site."""

from __future__ import annotations

import numpy as np
import pytest

from semisilo.common.data.split_settings import SplitSettings
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.simulation.splits.named_splits import deal
from semisilo.simulation.splits.natural_split import labelled_at_sites, natural

SITES = np.array([-1, -1, 0, 0, 1, 1, 1, 2])
LABELS = np.array([0, 1, 0, 1, 1, 1, 0, 1])


def parts(found: tuple[np.ndarray, ...]) -> list[list[int]]:
    return [part.tolist() for part in found]


def test_every_silo_has_what_its_site_has_but_for_what_is_labelled() -> None:
    split = natural(SITES, 3, labelled=[5, 0, 1])
    assert parts(split.silos) == [[2, 3], [4, 6], [7]]
    assert split.coordinator.tolist() == [0, 1, 5]


def test_a_site_of_which_nothing_is_left_is_named() -> None:
    with pytest.raises(BadConfiguration, match="Site 4 of 4 has no image left"):
        natural(SITES, 4)


def test_a_site_whose_images_all_have_labels_is_one_still() -> None:
    assert parts(natural(SITES, 3, labelled=[7]).silos) == [[2, 3], [4, 5, 6], []]


def test_labels_are_drawn_at_each_site_from_its_own_as_far_as_it_has_them() -> None:
    found = labelled_at_sites(LABELS, SITES, 3, per_class=2, num_classes=2, seed=1, classes=[(0, 1), (0, 1), (0, 1)],
                              without=[0, 1])
    assert parts(found) == [[2, 3], [4, 5, 6], [7]]
    found = labelled_at_sites(LABELS, SITES, 3, per_class=1, num_classes=2, seed=1, classes=[(0,), (1,), ()])
    assert parts(found)[0] == [2]
    assert found[1].tolist() in ([4], [5])
    assert parts(found)[2] == []


def test_which_are_labelled_follows_from_the_seed() -> None:
    labels, sites = np.zeros(200, dtype=np.int64), np.repeat([0, 1], 100)
    one, again, other = (parts(labelled_at_sites(labels, sites, 2, per_class=10, num_classes=1, seed=seed,
                                                 classes=[(0,)] * 2)) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert [len(part) for part in one] == [10, 10]


def test_a_site_without_an_image_of_its_classes_is_named() -> None:
    with pytest.raises(BadData, match="Site 3 of 3 has no image of the classes"):
        labelled_at_sites(LABELS, SITES, 3, per_class=1, num_classes=2, seed=1, classes=[(0,), (0,), (0,)])
    with pytest.raises(BadConfiguration, match="labelled_per_class = 0"):
        labelled_at_sites(LABELS, SITES, 3, per_class=0, num_classes=2, seed=1, classes=[(0,)] * 3)


def test_what_is_held_out_is_of_all_sites_and_nobody_gets_the_images_of_another() -> None:
    labels, sites = np.tile(np.arange(4), 100), np.repeat(np.arange(4), 100)
    split = deal(labels, SplitSettings(name="natural", silos=4, num_labelled=40, num_test=80, num_validation=40),
                 num_classes=4, seed=1, scenario="labels-at-coordinator", sites=sites)
    assert [set(sites[part].tolist()) for part in split.silos] == [{0}, {1}, {2}, {3}]
    assert set(sites[split.test].tolist()) == set(sites[split.validation].tolist()) == {0, 1, 2, 3}
    assert sum(map(len, split.silos)) == 400 - 40 - 80 - 40


def test_whoever_has_the_same_number_at_two_sites_is_two_patients() -> None:
    """Nobody's images go to another site, and none that is labelled or tested with stays at one."""
    labels, sites = np.tile(np.arange(4), 100), np.repeat(np.arange(4), 100)
    patients = tuple(f"p{number}" for number in (np.arange(400) % 100 // 4).tolist())
    both = {f"{patient} at {site}": (patient, site) for patient, site in zip(patients, sites.tolist(), strict=True)}
    split = deal(labels, SplitSettings(name="natural", silos=4, num_labelled=16, num_test=40, labelled_per_class=1),
                 num_classes=4, seed=1, scenario="labels-at-both", sites=sites, patients=patients, tested={"p7"})
    assert split.patients is not None
    assert split.patients.num_patients == len(both) == 100
    whole = [np.concatenate((part, split.labelled[index])) for index, part in enumerate(split.silos)]
    assert [set(sites[part].tolist()) for part in whole] == [{0}, {1}, {2}, {3}]
    held = [{(patients[index], int(sites[index])) for index in part.tolist()}
            for part in (*whole, split.coordinator, split.test)]
    assert sum(map(len, held)) == len(set().union(*held))
    assert {patient for part in held for patient, _ in part} == {f"p{number}" for number in range(25)} - {"p7"}
