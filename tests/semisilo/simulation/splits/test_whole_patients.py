"""No patient is in two parts of any named split, and the parts have what the rule gives them as nearly as can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from semisilo.common.data.form import file_key
from semisilo.common.data.split_settings import SplitName, SplitSettings
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.methods.spec import Scenario
from semisilo.simulation.splits.named_splits import deal
from semisilo.simulation.splits.splits import Split, class_distributions, non_iidness
from tests.each_of import each_of

CLASSES, SILOS = 10, 5
NAMES = get_args(SplitName)
SCENARIOS = ("labels-at-coordinator", "labels-at-silo", "labels-at-both")


def settings_of(name: str, scenario: str, **more: object) -> SplitSettings:
    own: dict[str, object] = {"name": name, "silos": SILOS, **more}
    if name == "class_mismatch":
        own |= {"mismatch_ratio": 0.5, "labelled_per_silo": 6, "classes_per_silo": 6}
    elif scenario != "labels-at-coordinator":
        own |= {"labelled_per_class": 2}
    if scenario != "labels-at-silo":
        own |= {"num_labelled": 20}
    if name in ("dirichlet_semifl", "dirichlet_fedmix", "shvr_noniid", "prevalence_shift"):
        own |= {"dirichlet": 1.0}
    return SplitSettings(**own)


def images_of(seed: int, number: int, per_patient: int, *, mixed: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels and patients: about `per_patient` images each; of one class unless `mixed`; one in ten is not known."""
    random = np.random.default_rng(seed)
    patient = random.integers(0, max(1, number // per_patient), size=number)
    label = random.integers(0, CLASSES, size=number) if mixed else patient % CLASSES
    known = random.random(number) < 0.9
    return label, tuple(f"p{each}" if there else "" for each, there in zip(patient.tolist(), known.tolist(),
                                                                            strict=True))


def sites_of(name: str, patients: Sequence[str]) -> np.ndarray | tuple[()]:
    """Whose each image is, by its patient; those of unknown patients are of the first site."""
    return np.array([int(each[1:] or 0) % SILOS for each in patients]) if name == "natural" else ()


def homes(split: Split) -> list[np.ndarray]:
    silos = [np.concatenate((part, split.labelled[index])) if split.labelled else part
             for index, part in enumerate(split.silos)]
    return [split.test, split.validation, split.coordinator, *silos]


def in_two(split: Split, patients: Sequence[str]) -> set[str]:
    """Patients with images in two parts."""
    held = [{patients[index] for index in part.tolist()} - {""} for part in homes(split)]
    return {patient for first, second in combinations(held, 2) for patient in first & second}


@pytest.mark.slow
@settings(max_examples=40, derandomize=True, database=None)
@given(name=st.sampled_from(NAMES), scenario=st.sampled_from(SCENARIOS), seed=st.integers(0, 10**6),
       per_patient=st.sampled_from([1, 2, 4]), mixed=st.booleans(), held_out=st.sampled_from([0, 20, "10%"]),
       more=st.sampled_from([{}, {"fraction": 0.7}, {"unlabelled_imbalance": 3.0}, {"all_labelled": True}]))
def test_no_patient_is_in_two_parts_of_any_split(name: str, scenario: Scenario, seed: int, per_patient: int,
                                                 mixed: bool, held_out: int | str, more: dict[str, object]) -> None:
    labels, patients = images_of(seed, 800, per_patient, mixed=mixed)

    sites = sites_of(name, patients)

    def dealt(patients: tuple[str, ...]) -> Split:
        return deal(labels, settings_of(name, scenario, num_test=held_out, num_validation=held_out, **more),
                    num_classes=CLASSES, seed=seed, scenario=scenario, patients=patients, sites=sites)

    try:
        alone = dealt(())
    except (BadConfiguration, BadData, ValueError):
        return  # the settings do not fit each other
    try:
        whole = dealt(patients)
    except BadData:
        assume(False)  # too few patients
    assert not in_two(whole, patients)
    everything, before = np.concatenate(homes(whole)), np.concatenate(homes(alone))
    assert set(everything) <= set(before), "what the rule leaves unused stays unused"
    if whole.patients is None:
        assert not in_two(alone, patients)
        assert all(map(np.array_equal, homes(whole), homes(alone)))
    else:
        assert whole.patients.left_out == len(before) - len(everything)
    for mine, rules in ((whole.coordinator, alone.coordinator), *zip(whole.labelled, alone.labelled, strict=True)):
        if not more.get("all_labelled") or rules is alone.coordinator:
            assert (np.bincount(labels[mine], minlength=CLASSES) <= np.bincount(labels[rules], minlength=CLASSES)).all()
    for mine, rules in zip(homes(whole)[3:], homes(alone)[3:], strict=True):
        assert set(labels[mine]) <= set(labels[rules]), "a silo gets no class that the rule does not give it"


def test_without_the_rule_of_patients_the_same_images_have_them_in_several_parts() -> None:
    labels, patients = images_of(1, 400, 5, mixed=False)
    alone = deal(labels, settings_of("iid", "labels-at-coordinator", num_test=40), num_classes=CLASSES, seed=1,
                 scenario="labels-at-coordinator")
    assert len(in_two(alone, patients)) > 50


@each_of("name", NAMES)
def test_a_patient_with_one_image_each_changes_nothing(name: str) -> None:
    scenario: Scenario = "labels-at-silo"
    labels = np.random.default_rng(2).integers(0, CLASSES, size=400)
    asked = settings_of(name, scenario, num_test=20)
    patients = tuple(f"p{index}" for index in range(400))
    alone, whole = (deal(labels, asked, num_classes=CLASSES, seed=3, scenario=scenario, patients=each,
                         sites=sites_of(name, patients)) for each in ((), patients))
    assert whole.patients is None
    assert all(map(np.array_equal, homes(whole), homes(alone)))


def test_numbers_are_those_of_the_rule_where_whole_patients_can_make_them_up() -> None:
    """100 patients with 4 images of one class: 40 for the test and 40 for validation are ten patients each, and of 20
    labelled ones of ten classes, 2 each, the other 2 of each patient are left out."""
    labels = np.repeat(np.arange(100) % CLASSES, 4)
    patients = tuple(f"p{index // 4}" for index in range(400))
    split = deal(labels, settings_of("iid", "labels-at-coordinator", num_test=40, num_validation=40), seed=5,
                 num_classes=CLASSES, scenario="labels-at-coordinator", patients=patients)
    assert not in_two(split, patients)
    assert split.patients is not None
    assert np.bincount(labels[split.coordinator]).tolist() == [2] * 10
    assert len(split.test) == pytest.approx(40, abs=8)
    assert len(split.validation) == pytest.approx(40, abs=8)
    assert (split.patients.num_patients, split.patients.left_out) == (100, 20)
    sizes = [len(part) for part in split.silos]
    assert max(sizes) - min(sizes) <= 4, "a silo has at most one patient more than another"
    assert sum(sizes) + len(split.test) + len(split.validation) + 20 + 20 == 400


def test_silos_keep_the_shares_of_classes_that_the_rule_draws() -> None:
    labels, patients = images_of(7, 4000, 5, mixed=False)
    for name in ("dirichlet_semifl", "batch_noniid", "shards"):
        alone, whole = (deal(labels, settings_of(name, "labels-at-coordinator"), num_classes=CLASSES, seed=8,
                             scenario="labels-at-coordinator", patients=each) for each in ((), patients))
        assert not in_two(whole, patients)
        before, now = (class_distributions(labels, each, num_classes=CLASSES) for each in (alone, whole))
        assert np.abs(before - now).max() < 0.05
        assert non_iidness(now) == pytest.approx(non_iidness(before), abs=0.03)
        assert [len(part) for part in whole.silos] == pytest.approx([len(part) for part in alone.silos], abs=15)


def test_images_that_stream_keep_the_shares_of_every_step() -> None:
    labels, patients = images_of(9, 4000, 5, mixed=False)
    alone, whole = (deal(labels, settings_of("streaming_noniid", "labels-at-coordinator", steps=3), num_classes=CLASSES,
                         seed=10, scenario="labels-at-coordinator", patients=each) for each in ((), patients))
    for before, now in zip(alone.steps, whole.steps, strict=True):
        for first, second in zip(before, now, strict=True):
            assert np.bincount(labels[second], minlength=CLASSES) == pytest.approx(
                np.bincount(labels[first], minlength=CLASSES), abs=12)


def test_patients_of_a_test_set_beside_are_left_out() -> None:
    labels, patients = images_of(11, 400, 5, mixed=False)
    tested = {"p3", "p4"}
    split = deal(labels, settings_of("iid", "labels-at-coordinator"), num_classes=CLASSES, seed=12,
                 scenario="labels-at-coordinator", patients=patients, tested=tested)
    assert not {patients[index] for part in homes(split) for index in part} & tested
    assert split.patients is not None
    assert split.patients.left_out >= sum(patient in tested for patient in patients)


def test_patients_and_files_of_unknown_ones_are_counted_apart() -> None:
    labels = np.repeat(np.arange(100) % CLASSES, 4)
    patients = tuple(f"p{index // 4}" if index < 240 else file_key(str(index // 4)) for index in range(400))
    split = deal(labels, settings_of("iid", "labels-at-coordinator"), seed=5, num_classes=CLASSES,
                 scenario="labels-at-coordinator", patients=patients)
    assert split.patients is not None
    assert split.patients.kept == "60 patients and 40 files"
    assert not in_two(split, patients)


def test_images_of_the_coordinators_own_keep_their_place() -> None:
    """The first 40 are its own file's; what their patients have elsewhere no silo gets."""
    labels, patients = images_of(13, 400, 5, mixed=True)
    split = deal(labels, SplitSettings(name="iid", silos=SILOS), num_classes=CLASSES, seed=14, apart=40,
                 scenario="labels-at-coordinator", patients=patients)
    assert split.coordinator.tolist() == list(range(40))
    assert not in_two(split, patients)


def test_too_few_patients_are_said_and_not_dealt() -> None:
    labels = np.tile(np.arange(CLASSES), 40)
    with pytest.raises(BadData, match="3 patients kept whole leave no image at silo"):
        deal(labels, settings_of("iid", "labels-at-coordinator"), num_classes=CLASSES, seed=15,
             scenario="labels-at-coordinator", patients=tuple(f"p{index % 3}" for index in range(400)))
