"""Validation images held out of the labelled ones, and images that stand in two sets: found before any training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data import image_set
from semisilo.common.data.image_set import ImageSet, part_of
from semisilo.common.data.pixel_digests import pixel_digests, telling_digests
from semisilo.common.data.readers import read_images
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.measures.gain import ImageCounts
from semisilo.common.measures.independent_images import IndependentImages
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.studies.held_out import (
    check_apart,
    check_patients_apart,
    draw_validation,
    held_out_share,
)
from semisilo.coordinator.studies.images import StudyData, _digest_of, read_study_data
from semisilo.coordinator.studies.study_file import StudyConfig, config_from_dict
from tests.each_of import each_of

GENERATOR = np.random.default_rng(3)


def write(path: Path, labels: list[int], *, seed: int) -> None:
    """Random pixels: no two images are alike."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    np.savez(path, images=pixels, labels=np.array(labels))


def read(folder: Path, *, study: dict[str, object] | None = None, before: StudyData | None = None,
         **data: object) -> StudyData:
    return read_study_data(study_of(study=study, **data), folder=folder,
                           frozen=None if before is None else before.frozen)


def study_of(*, study: dict[str, object] | None = None, **data: object) -> StudyConfig:
    return config_from_dict({
        "study": {"seed": 4, **(study or {})}, "model": {"name": "small_cnn"}, "method": {"name": "semifl"},
        "data": {"labelled": "labelled.npz", "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.25]},
                 **data}}, where="study")


# What is drawn --------------------------------------------------------------------------------------------------------


def test_two_hundred_labels_spare_a_fifth_and_fewer_spare_none() -> None:
    assert (held_out_share(None, 200), held_out_share(None, 199)) == (0.2, 0.0)
    assert (held_out_share(0.0, 5000), held_out_share(0.5, 10)) == (0.0, 0.5)


def test_the_share_of_every_class_is_drawn_one_at_least_and_never_the_last_one() -> None:
    labels = np.repeat([0, 1, 2, 3], [100, 12, 2, 1])
    drawn = draw_validation(labels, 0.2, seed=1, num_classes=5)
    assert np.bincount(labels[drawn], minlength=5).tolist() == [20, 2, 1, 0, 0]
    assert (np.diff(drawn) > 0).all(), "sorted, none twice"
    assert np.array_equal(drawn, draw_validation(labels, 0.2, seed=1, num_classes=5))
    assert not np.array_equal(drawn, draw_validation(labels, 0.2, seed=2, num_classes=5))
    assert len(draw_validation(labels, 0.0, seed=1, num_classes=5)) == 0


@each_of(("classes", "each", "share", "wanted"), [
    (120, 2, 0.2, 48), (120, 2, 0.1, 24), (100, 3, 0.2, 60), (50, 4, 0.1, 20), (50, 4, 0.2, 50), (10, 10, 0.2, 20),
    (10, 13, 0.2, 30), (3, 2, 0.2, 3), (2, 2, 0.1, 2), (5, 1, 0.2, 0)])
def test_of_many_small_classes_not_far_more_than_the_share_is_held_out(classes: int, each: int, share: float,
                                                                      wanted: int) -> None:
    labels = np.repeat(np.arange(classes), each)
    drawn = draw_validation(labels, share, seed=1, num_classes=classes)
    assert len(drawn) == wanted
    counts = np.bincount(labels[drawn], minlength=classes)
    assert counts.max() - counts.min() <= 1
    some = draw_validation(labels, share, seed=2, num_classes=classes)
    if wanted < classes and wanted:
        assert set(labels[some]) != set(labels[drawn]), "not always the first classes"


def test_of_few_large_and_many_small_classes_each_has_one_where_the_share_is_enough_for_that() -> None:
    """2600 images of which a fifth is 520; a fifth of each class, and one at least, is 700."""
    labels = np.repeat(np.arange(302), [1000, 1000, *[2] * 300])
    counts = np.bincount(labels[draw_validation(labels, 0.2, seed=1, num_classes=302)])
    assert counts.tolist() == [110, 110, *[1] * 300]
    few = np.repeat(np.arange(101), [100, *[2] * 100])
    counts = np.bincount(few[draw_validation(few, 0.1, seed=1, num_classes=101)], minlength=101)
    assert (counts[0], counts[1:].sum(), counts[1:].max()) == (10, 20, 1)


@each_of("patients", [False, True])
def test_a_study_that_an_earlier_version_began_keeps_its_validation_images(patients: bool) -> None:
    """It held out one image of each of 120 classes."""
    labels = np.repeat(np.arange(120), 2)
    known = tuple(f"p{index}" for index in range(240)) if patients else ()
    first = draw_validation(labels, 0.2, seed=1, num_classes=120, patients=known)
    assert len(first) == 48
    again = draw_validation(labels, 0.2, seed=1, num_classes=120, patients=known, drawn_before=48)
    assert np.array_equal(again, first)
    earlier = draw_validation(labels, 0.2, seed=1, num_classes=120, patients=known, drawn_before=120)
    assert np.bincount(labels[earlier]).tolist() == [1] * 120


def test_of_very_many_labels_no_more_than_two_thousand_are_held_out() -> None:
    labels = np.repeat([0, 1], [30_000, 10_000])
    drawn = draw_validation(labels, 0.2, seed=1, num_classes=2)
    assert np.bincount(labels[drawn]).tolist() == [1500, 500]


def test_an_image_that_stands_twice_is_not_held_out() -> None:
    """All images of class 0 are pairs, of class 1 there is one that is none."""
    labels = np.array([0, 0, 0, 0, 1, 1, 1])
    digests = [b"a", b"a", b"b", b"b", b"c", b"c", b"d"]
    assert draw_validation(labels, 0.9, seed=1, num_classes=2, digests=digests).tolist() == [6]


# A study that is opened -----------------------------------------------------------------------------------------------


def test_a_study_with_many_labels_holds_some_out_and_trains_on_the_rest(tmp_path: Path) -> None:
    write(tmp_path / "labelled.npz", [0, 1, 2, 3] * 60, seed=1)
    found = read(tmp_path)
    labelled, validation = found.images.labelled, found.images.validation
    assert labelled is not None
    assert validation is not None
    assert validation.labels_N is not None
    assert (found.frozen.num_labelled, found.frozen.num_validation, found.frozen.num_held_out) == (192, 48, 48)
    assert torch.bincount(validation.labels_N).tolist() == [12] * 4
    assert sorted(labelled.names + validation.names) == sorted(f"labelled.npz[{index}]" for index in range(240)) \
        or len(set(labelled.names) | set(validation.names)) == 240
    again = read(tmp_path, before=found)
    assert again.frozen == found.frozen
    assert again.images.validation is not None
    assert again.images.validation.names == validation.names


def test_a_study_with_few_labels_or_none_to_spare_trains_on_all(tmp_path: Path) -> None:
    write(tmp_path / "labelled.npz", [0, 1] * 99, seed=1)
    found = read(tmp_path)
    assert (found.frozen.num_labelled, found.frozen.num_validation, found.frozen.num_held_out) == (198, 0, 0)
    write(tmp_path / "labelled.npz", [0, 1] * 100, seed=1)
    assert read(tmp_path, validation_share="0%").frozen.num_validation == 0
    assert read(tmp_path, validation_share="10%").frozen.num_validation == 20


def test_a_study_that_began_without_holding_images_out_goes_on_with_all_of_them(tmp_path: Path) -> None:
    """One that an earlier version began, which knew neither the share nor the measure."""
    write(tmp_path / "labelled.npz", [0, 1] * 150, seed=1)
    whole = read(tmp_path, validation_share="0%")
    earlier = replace(whole, frozen=replace(whole.frozen, measure="", measure_reason=""))
    found = read(tmp_path, before=earlier)
    assert found.frozen == earlier.frozen
    assert found.images.validation is None
    assert found.images.labelled is not None
    assert len(found.images.labelled) == 300


def test_patience_without_validation_images_is_refused_when_they_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "labelled.npz", [0, 1] * 20, seed=1)
    with pytest.raises(BadConfiguration, match="patience = 3 looks at validation images") as caught:
        read(tmp_path, study={"patience": 3})
    assert "validation_share" in caught.value.remedy
    assert read(tmp_path, study={"patience": 3}, validation_share="20%").frozen.num_validation == 8


def test_where_nothing_can_be_held_out_a_stated_share_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "labelled.npz", [0, 1, 2], seed=1)
    with pytest.raises(BadData, match="none can be held out"):
        read(tmp_path, validation_share="20%")


# The measure ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("labels", "measure", "said"), [
    ([0, 1] * 10, "accuracy", "balanced, 10 images of the largest class to 10"),
    ([0] * 16 + [1] * 10, "balanced_accuracy", "imbalanced, 16 images of the largest class to 10")])
def test_the_measure_follows_the_labels_and_is_frozen_with_its_reason(tmp_path: Path, labels: list[int], measure: str,
                                                                      said: str) -> None:
    write(tmp_path / "labelled.npz", labels, seed=1)
    found = read(tmp_path).frozen
    assert found.measure == measure
    assert said in found.measure_reason
    assert said in found.choice_line
    stated = read(tmp_path, study={"measure": "recall:1"}).frozen
    assert (stated.measure, stated.measure_reason) == ("recall:1", "as the study file says")


def test_without_labels_the_measure_follows_the_validation_images(tmp_path: Path) -> None:
    write(tmp_path / "validation.npz", [0] * 4 + [1], seed=2)
    method = {"name": "fedavg", "scenario": "labels-at-silo"}
    config = config_from_dict({
        "study": {}, "model": {"name": "small_cnn"}, "method": method,
        "data": {"validation": "validation.npz", "classes": ["0", "1"],
                 "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.25]}}}, where="study")
    found = read_study_data(config, folder=tmp_path, frozen=None).frozen
    assert (found.measure, found.num_validation) == ("balanced_accuracy", 5)
    assert "the validation images are imbalanced" in found.measure_reason


@each_of(("tests", "stated", "said"), [
    ([0] * 8 + [1] * 2, "", True), ([0] * 6 + [1] * 4, "", False), ([0] * 8 + [1] * 2, "accuracy", False)])
def test_where_only_test_images_show_an_imbalance_the_measure_to_set_is_named_and_not_taken(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, tests: list[int], stated: str, said: bool) -> None:
    caplog.clear()
    write(tmp_path / "test.npz", tests, seed=2)
    config = config_from_dict({
        "study": {"measure": stated}, "model": {"name": "small_cnn"},
        "method": {"name": "fedavg", "scenario": "labels-at-silo"},
        "data": {"test": "test.npz", "classes": ["0", "1"],
                 "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.25]}}}, where="study")
    assert read_study_data(config, folder=tmp_path, frozen=None).frozen.measure == "accuracy"
    assert ("8 of the largest class to 2 of the smallest: set [study] measure = \"balanced_accuracy\"" in caplog.text
            ) == said


def test_a_recall_of_a_class_that_there_is_not_is_refused_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "labelled.npz", [0, 1], seed=1)
    with pytest.raises(BadConfiguration, match="there is no class '2'"):
        read(tmp_path, study={"measure": "recall:2"})


# Images that stand twice ----------------------------------------------------------------------------------------------


def images(*pixels: int, name: str) -> ImageSet:
    """Of one value each but for a black corner."""
    content = torch.tensor(pixels, dtype=torch.uint8).reshape(-1, 1, 1, 1).repeat(1, 1, 4, 4)
    content[..., 0, 0] = 0
    return ImageSet(content, torch.zeros(len(pixels), dtype=torch.int64),
                    tuple(f"{name}{index}.png" for index in range(len(pixels))))


def telling(sets: dict[str, ImageSet]) -> dict[str, list[bytes]]:
    return {name: telling_digests(each, pixel_digests(each)) for name, each in sets.items()}


def test_images_with_the_same_pixels_in_two_sets_are_told_with_number_and_names() -> None:
    sets = {"labelled": images(1, 2, 3, name="l"), "validation": images(9, 2, name="v"), "test": images(3, 1, 7, 9,
                                                                                                       name="t")}
    with pytest.raises(BadData) as caught:
        check_apart(sets, telling(sets))
    line = caught.value.line()
    assert "\n" not in line
    assert "1 of 2 validation images have the pixels of labelled ones (v1.png = l1.png)" in line
    assert "2 of 4 test images have the pixels of labelled ones (t0.png = l2.png, t1.png = l0.png)" in line
    assert "1 of 4 test images have the pixels of validation ones (t3.png = v0.png)" in line
    assert "Remove them from one of the two sets" in line


def test_sets_that_are_apart_pass_whatever_stands_twice_within_one() -> None:
    sets = {"labelled": images(1, 1, name="l"), "test": images(2, 2, name="t")}
    check_apart(sets, telling(sets))


def with_blank_edges(path: Path, *, seed: int, scans: int = 12) -> None:
    """Slices of so many scans, 8 of each, of which the first and the last are black."""
    slices = np.random.default_rng(seed).integers(0, 256, (scans, 8, 8, 8), dtype=np.uint8)
    slices[:, [0, -1]] = 0
    np.savez(path, images=slices.reshape(-1, 8, 8), labels=np.repeat(np.arange(scans) % 2, 8),
             patients=np.repeat(np.arange(scans), 8) + 100 * seed)


def test_black_slices_are_nobodys_twins_and_do_not_keep_their_patient_from_being_held_out(tmp_path: Path) -> None:
    with_blank_edges(tmp_path / "labelled.npz", seed=1)
    with_blank_edges(tmp_path / "test.npz", seed=2)
    found = read(tmp_path, test="test.npz", validation_share="25%")
    assert (found.frozen.num_held_out, found.frozen.validation_patients, found.frozen.plain_images) == (16, 2, True)
    again = read(tmp_path, test="test.npz", validation_share="25%", before=found)
    assert again.images.validation.names == found.images.validation.names  # type: ignore[union-attr]


def test_a_study_that_held_out_no_black_images_goes_on_with_those_that_it_has(tmp_path: Path) -> None:
    """An earlier version took no image that stands twice, were it black."""
    pixels = np.random.default_rng(1).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    pixels[[3, 8, 11, 20, 30]] = 0
    labels = np.arange(40) % 2
    np.savez(tmp_path / "labelled.npz", images=pixels, labels=labels)
    digests = [bytes([0]) if not image.any() else image.tobytes() for image in pixels]
    drawn = draw_validation(labels, 0.25, seed=4, num_classes=2, digests=digests)
    now = read(tmp_path, validation_share="25%")
    assert now.images.validation is not None
    assert [int(name.rpartition("[")[2][:-1]) for name in now.images.validation.names] != drawn.tolist()
    labelled = read_images(str(tmp_path / "labelled.npz"), size=8, channels=1).images
    rest = np.setdiff1d(np.arange(40), drawn)
    frozen = replace(now.frozen, plain_images=False, num_held_out=len(drawn), **{
        f"{name}_digest": _digest_of(part, pixel_digests(part)) for name, part in (
            ("labelled", labelled.subset(rest)), ("validation", labelled.subset(drawn)))})
    again = read(tmp_path, validation_share="25%", before=replace(now, frozen=frozen)).images.validation
    assert again is not None
    assert [int(name.rpartition("[")[2][:-1]) for name in again.names] == drawn.tolist()


def test_a_study_whose_test_images_were_trained_on_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    write(tmp_path / "labelled.npz", [0, 1] * 5, seed=1)
    write(tmp_path / "test.npz", [0, 1] * 5, seed=1)
    with pytest.raises(BadData, match="10 of 10 test images have the pixels of labelled ones"):
        read(tmp_path, test="test.npz")
    write(tmp_path / "test.npz", [0, 1] * 5, seed=2)
    assert read(tmp_path, test="test.npz").frozen.num_test == 10, "a control: with others it opens"


def test_of_test_images_with_several_labels_those_known_not_to_show_a_class_are_counted(tmp_path: Path) -> None:
    rows = np.array([[1, 0], [0, -1], [0, -1], [1, 1], [-1, 0]], dtype=np.int8)
    for name, seed in (("labelled", 1), ("test", 2)):
        np.savez(tmp_path / f"{name}.npz", images=np.random.default_rng(seed).integers(0, 256, (5, 8, 8)).astype(
            np.uint8), labels=rows, classes=np.array(["a", "b"]))
    opened = read(tmp_path, study={"task": "multi_label"}, test="test.npz")
    assert (opened.frozen.num_test, opened.frozen.test_images, opened.frozen.test_without) == (5, (2, 1), (2, 2))
    assert opened.frozen.test_counts == ImageCounts(5, (2, 1), (2, 2))
    again = read(tmp_path, study={"task": "multi_label"}, test="test.npz", before=replace(opened, frozen=replace(
        opened.frozen, test_without=())))
    assert again.frozen.test_without == (), "a study that an earlier version began"


# On a disk ------------------------------------------------------------------------------------------------------------


def test_a_part_that_is_too_large_for_memory_lies_on_the_disk_with_the_same_pixels(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ImageSet(torch.from_numpy(GENERATOR.integers(0, 256, (9, 1, 4, 4), dtype=np.uint8)), torch.arange(9),
                     tuple("abcdefghi"))
    wanted = np.array([8, 0, 3, 3])
    expected = whole.subset(wanted)
    monkeypatch.setattr(image_set, "_place", lambda count, channels, size, disk: tmp_path)
    monkeypatch.setattr(image_set, "_BLOCK", 3)
    found = part_of(whole, wanted, disk=tmp_path)
    assert torch.equal(found.images_NCHW, expected.images_NCHW)
    assert expected.labels_N is not None
    assert found.labels_N is not None
    assert torch.equal(found.labels_N, expected.labels_N)
    assert found.names == expected.names


# Patients -------------------------------------------------------------------------------------------------------------


@each_of("per_patient", [1, 3, 7, 25])
def test_all_images_of_a_patient_are_held_out_or_none(per_patient: int) -> None:
    labels = np.repeat([0, 1, 2], [150, 75, 75])
    patients = [f"p{index // per_patient}" for index in range(len(labels))]
    drawn = draw_validation(labels, 0.2, seed=1, num_classes=3, patients=patients)
    held = {patients[index] for index in drawn}
    assert set(drawn) == {index for index, patient in enumerate(patients) if patient in held}
    for label, wanted in enumerate((30, 15, 15)):
        number = int((labels[drawn] == label).sum())
        assert 1 <= number <= wanted + per_patient, (label, number)
        assert number > wanted - per_patient or per_patient > wanted
    assert np.array_equal(drawn, draw_validation(labels, 0.2, seed=1, num_classes=3, patients=patients))


def test_images_of_unknown_patients_stand_for_themselves_beside_those_of_known_ones() -> None:
    labels = np.repeat([0, 1], 20)
    patients = ["p", "p", *[""] * 38]
    drawn = draw_validation(labels, 0.25, seed=1, num_classes=2, patients=patients)
    assert [int((labels[drawn] == label).sum()) for label in (0, 1)] == [5, 5], "a quarter of each class"
    assert ({0, 1} & set(drawn.tolist())) in (set(), {0, 1}), "and the known one whole or not at all"


def test_the_last_patient_of_a_class_and_one_with_an_image_that_stands_twice_are_not_held_out() -> None:
    labels = np.array([0] * 8 + [1] * 4)
    patients = ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    drawn = draw_validation(labels, 0.25, seed=1, num_classes=2, patients=patients)
    assert {patients[index] for index in drawn} in ({"a"}, {"b"}), "c is the only one of its class"
    digests = [b"%d" % index for index in range(12)]
    digests[0] = digests[11]
    for seed in range(5):
        drawn = draw_validation(labels, 0.25, seed=seed, num_classes=2, patients=patients, digests=digests)
        assert {patients[index] for index in drawn} == {"b"}
    drawn = draw_validation(labels, 0.25, seed=1, num_classes=2, patients=[""] * 12)
    assert np.array_equal(drawn, draw_validation(labels, 0.25, seed=1, num_classes=2)), "as before, where none is known"


def test_a_patient_in_two_sets_is_refused_with_the_names_of_images() -> None:
    def images(*patients: str) -> ImageSet:
        return ImageSet(torch.zeros(len(patients), 1, 2, 2, dtype=torch.uint8), None,
                        tuple(f"{index}.png" for index in range(len(patients))), patients)

    check_patients_apart({"labelled": images("a", "b", ""), "test": images("c", ""), "validation": images("d")})
    with pytest.raises(BadData, match=r"1 patient of the test images have labelled ones as well \(1.png and 0.png\)"):
        check_patients_apart({"labelled": images("a", "b"), "test": images("c", "a", "a")})


def folders(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng([ord(letter) for letter in name]).integers(0, 256, (8, 8), dtype=np.uint8)
                        ).save(folder / name)


def test_a_study_keeps_patients_apart_and_freezes_how_many_there_are(tmp_path: Path) -> None:
    folders(tmp_path, *(f"l/{name}/P{patient}_{name}{image}.png" for name in ("cat", "dog") for patient in range(10)
                        for image in range(3)), *(f"t/{name}/Q{name}_0.png" for name in ("cat", "dog")))
    data = {"labelled": "l", "test": "t", "validation_share": "20%", "patient": "name"}
    found = read(tmp_path, **data)
    frozen, validation, labelled = found.frozen, found.images.validation, found.images.labelled
    assert validation is not None
    assert labelled is not None
    assert not set(validation.patients) & set(labelled.patients)
    assert (frozen.by_patient, frozen.labelled_patients, frozen.validation_patients, frozen.test_patients) == (
        True, 8, 2, 2)
    assert read(tmp_path, before=found, **data).images.validation.names == validation.names  # type: ignore[union-attr]
    plain = read(tmp_path, **{**data, "patient": "none"})
    assert (plain.frozen.by_patient, plain.frozen.labelled_patients) == (False, 0)
    earlier = replace(plain, frozen=replace(plain.frozen, measure="", measure_reason=""))
    again = read(tmp_path, before=earlier, **data)
    assert again.images.validation.names == plain.images.validation.names, "as it began"  # type: ignore[union-attr]
    folders(tmp_path, "t/cat/P3_again.png")
    with pytest.raises(BadData, match=r"1 patient of the test images have labelled ones as well") as caught:
        read(tmp_path, **data)
    assert 'patient = "none"' in caught.value.remedy


def test_a_study_freezes_what_test_images_of_few_patients_are_worth(tmp_path: Path) -> None:
    folders(tmp_path, *(f"l/{name}/P{image}_0.png" for name in ("cat", "dog") for image in range(5)),
            *(f"t/cat/Q{patient}_{image}.png" for patient in range(2) for image in range(3)), "t/dog/R0_0.png")
    data = {"labelled": "l", "test": "t", "patient": "name"}
    found = read(tmp_path, **data)
    worth = IndependentImages(3, 49 / 19, (2.0, 1.0), (1.0, 2.0))
    assert (found.frozen.num_test, found.frozen.test_patients, found.frozen.test_counts.independent) == (7, 3, worth)
    assert from_dict(FrozenStudy, to_dict(found.frozen), where="ledger") == found.frozen
    assert read(tmp_path, **{**data, "patient": "none"}).frozen.test_counts.independent is None
    earlier = replace(found, frozen=replace(found.frozen, test_independent=None))
    again = read(tmp_path, before=earlier, **data)
    assert again.frozen.test_independent is None
    assert again.frozen.test_counts.independent == IndependentImages(
        3, 3.0, (18 / 7, 1.0), (1.0, 18 / 7)), "it knows how many patients there are"


def stacks(folder: Path, *names: str, pages: int = 4) -> None:
    """TIFF files of several pages, no two alike."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng([ord(letter) for letter in name])
        content = random.integers(0, 256, (pages, 8, 8), dtype=np.uint8)
        first, *others = map(Image.fromarray, content)
        first.save(folder / name, save_all=True, append_images=others)


STACKS = [f"l/{name}/{number}.tif" for name in ("cat", "dog") for number in range(10)]
ALL_PAGES = {"labelled": "l", "validation_share": "20%",
             "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.25], "reading": {"frames": "all"}}}


def files_of(images: ImageSet | None) -> set[str]:
    assert images is not None
    return {name.partition("[")[0] for name in images.names}


def test_pages_of_a_file_whose_patient_nobody_knows_are_held_out_together(tmp_path: Path) -> None:
    stacks(tmp_path, *STACKS)
    stacks(tmp_path, "t/cat/0.tif", "t/dog/0.tif")  # other files of the same names are no trouble
    found = read(tmp_path, test="t", **ALL_PAGES)
    frozen, labelled, validation = found.frozen, found.images.labelled, found.images.validation
    assert files_of(validation)
    assert not files_of(validation) & files_of(labelled)
    assert (frozen.by_file, frozen.by_patient, frozen.num_labelled + frozen.num_validation) == (True, False, 80)
    assert (frozen.labelled_patients, frozen.test_patients) == (0, 0), "files are not counted as patients"
    again = read(tmp_path, before=found, test="t", **ALL_PAGES)
    assert again.images.validation.names == validation.names  # type: ignore[union-attr]


def test_a_study_that_held_out_single_pages_goes_on_with_them(tmp_path: Path) -> None:
    stacks(tmp_path, *STACKS)
    single = read(tmp_path, patient="none", **ALL_PAGES)
    assert files_of(single.images.validation) & files_of(single.images.labelled)
    assert not single.frozen.by_file
    assert "by_file" not in to_dict(single.frozen)
    again = read(tmp_path, before=single, **ALL_PAGES)
    assert again.images.validation.names == single.images.validation.names  # type: ignore[union-attr]
    assert again.images.labelled.patients == (), "nor are folds of labels alone others"  # type: ignore[union-attr]


def test_pages_of_a_patient_are_his_and_a_single_page_stands_for_itself(tmp_path: Path) -> None:
    stacks(tmp_path, "l/cat/P1_0.tif", "l/cat/P1_1.tif", "l/dog/P2_0.tif")
    none = {**ALL_PAGES, "validation_share": "0%"}
    whole = read(tmp_path, patient="name", **none).frozen
    assert (whole.by_file, whole.by_patient) == (False, True)
    first = {**none, "image": {**none["image"], "reading": {}}}  # type: ignore[dict-item]
    assert not read(tmp_path, **first).frozen.by_file


def test_dicom_files_that_a_setting_leaves_out_are_not_told_as_files_that_are_no_images(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    from tests.common.data.formats.test_dicom import made

    for name in ("cat", "dog"):
        (tmp_path / "l" / name).mkdir(parents=True)
        for number, view in enumerate(("PA", "LL", "PA")):
            pixels = np.random.default_rng([number, len(name), ord(name[0])]).integers(0, 256, (8, 8), dtype=np.uint8)
            made(tmp_path / "l" / name / f"{number}.dcm", pixels, ViewPosition=view, PatientID=f"{name}{number}")
    (tmp_path / "l" / "cat" / "report.pdf").write_bytes(b"%PDF")
    found = read(tmp_path, labelled="l", dicom={"ViewPosition": "PA"})
    assert (found.frozen.num_labelled, found.frozen.labelled_patients) == (4, 4)
    assert (found.frozen.skipped, found.frozen.num_broken) == (("labelled: cat/report.pdf: not an image",), 0)


# Opened again ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path: Path) -> StudyData:
    """Of 40 labelled images a quarter are held out; 10 test images."""
    write(tmp_path / "labelled.npz", [0, 1] * 20, seed=1)
    write(tmp_path / "test.npz", [0, 1] * 5, seed=2)
    return read(tmp_path, test="test.npz", validation_share="25%")


@each_of(("name", "labels", "seed", "said"), [
    ("labelled", [0, 1] * 18, 1, "labelled images then, "),
    ("labelled", [0, 1] * 20, 3, "as many labelled images as then, 30, but other ones or other labels"),
    ("labelled", [1, 0] * 20, 1, "as many labelled images as then, 30, but other ones or other labels"),
    ("test", [0, 1] * 6, 2, "10 test images then, 12 now"),
    ("test", [0, 1] * 5, 3, "as many test images as then, 10, but other ones or other labels")])
def test_a_study_that_is_opened_again_with_other_images_is_refused(
        begun: StudyData, tmp_path: Path, name: str, labels: list[int], seed: int, said: str) -> None:
    again = {"before": begun, "test": "test.npz", "validation_share": "25%"}
    file = tmp_path / f"{name}.npz"
    kept = file.read_bytes()
    write(file, labels, seed=seed)
    with pytest.raises(BadData, match="are not those with which the study was started") as caught:
        read(tmp_path, **again)  # type: ignore[arg-type]
    assert said in caught.value.line()
    assert "Restore them" in caught.value.line()
    file.write_bytes(kept)
    assert read(tmp_path, **again).frozen == begun.frozen  # type: ignore[arg-type]


def test_test_images_that_came_among_the_labelled_ones_after_the_start_are_refused_in_these_words(
        begun: StudyData, tmp_path: Path) -> None:
    (tmp_path / "labelled.npz").write_bytes((tmp_path / "test.npz").read_bytes())
    with pytest.raises(BadData, match="10 of 10 test images have the pixels of labelled ones"):
        read(tmp_path, before=begun, test="test.npz", validation_share="25%")


@each_of("where", ["labelled", "validation"])
def test_where_sets_may_have_changed_images_in_two_of_them_are_told_and_measure_nothing(
        begun: StudyData, tmp_path: Path, where: str) -> None:
    """Exporting a model refused them, while it told every other change of the images."""
    config = study_of(test="test.npz", **({"validation": "validation.npz"} if where == "validation" else
                                          {"validation_share": "25%"}))
    copied = (tmp_path / "test.npz").read_bytes()
    if where == "validation":
        write(tmp_path / "labelled.npz", [0, 1] * 20, seed=1)
        write(tmp_path / "validation.npz", [0, 1] * 5, seed=7)
        begun = read_study_data(config, folder=tmp_path, frozen=None)
    (tmp_path / f"{where}.npz").write_bytes(copied)
    found = read_study_data(config, folder=tmp_path, frozen=begun.frozen, may_have_changed=True)
    assert found.images.test is None
    assert found.changes["test"].endswith("so nothing is measured on them")
    assert " of 10 test images have the pixels of " in found.changes["test"]
    assert "(" not in found.changes["test"], "names of files do not go onto a card"
    assert where in found.changes


def test_patients_in_two_sets_are_told_where_sets_may_have_changed(tmp_path: Path) -> None:
    folders(tmp_path, "labelled/a/p1/1.png", "labelled/b/p2/2.png", "test/a/p3/3.png", "test/b/p4/4.png")
    config = study_of(labelled="labelled", test="test", patient="folder")
    first = read_study_data(config, folder=tmp_path, frozen=None).frozen
    (tmp_path / "test/a/p3").rename(tmp_path / "test/a/p1")
    with pytest.raises(BadData, match="1 patient of the test images have labelled ones as well"):
        read_study_data(config, folder=tmp_path, frozen=first)
    found = read_study_data(config, folder=tmp_path, frozen=first, may_have_changed=True)
    assert found.images.test is None
    assert found.changes["test"].startswith("1 patient of the test images have labelled ones as well")


def test_labelled_and_test_images_that_change_places_are_refused_though_none_stands_in_both(tmp_path: Path) -> None:
    paths = [tmp_path / "labelled.npz", tmp_path / "test.npz"]
    for seed, path in enumerate(paths):
        write(path, [0, 1] * 5, seed=seed)
    first = read(tmp_path, test="test.npz")
    with pytest.raises(BadData, match=r"as many labelled images as then, 10, .*; as many test images as then, 10"):
        read(tmp_path, before=first, labelled="test.npz", test="labelled.npz")


def test_the_order_of_images_is_no_change_of_them(tmp_path: Path) -> None:
    pixels = GENERATOR.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    labels = np.array([0, 1, 0, 1, 0, 1])
    np.savez(tmp_path / "labelled.npz", images=pixels, labels=labels)
    first = read(tmp_path)
    np.savez(tmp_path / "labelled.npz", images=pixels[::-1], labels=labels[::-1])
    assert read(tmp_path, before=first).changes == {}


def test_other_pixels_that_other_versions_read_are_told_and_not_refused_but_another_number_is(
        begun: StudyData, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A mended decoder makes other pixels of the same files, and no study should end with an upgrade."""
    earlier = replace(begun, frozen=replace(begun.frozen, read_with="semisilo 0.0.1"))
    write(tmp_path / "test.npz", [0, 1] * 5, seed=3)
    found = read(tmp_path, before=earlier, test="test.npz", validation_share="25%")
    assert (found.frozen, found.changes) == (earlier.frozen, {})
    assert "then with semisilo 0.0.1" in caplog.text
    write(tmp_path / "test.npz", [0, 1] * 6, seed=2)
    with pytest.raises(BadData, match="10 test images then, 12 now"):
        read(tmp_path, before=earlier, test="test.npz", validation_share="25%")


def test_a_study_of_a_version_without_digests_is_held_to_the_number_of_its_images(begun: StudyData, tmp_path: Path
                                                                                ) -> None:
    earlier = replace(begun, frozen=replace(begun.frozen, labelled_digest="", validation_digest="", test_digest="",
                                            read_with=""))
    again = {"before": earlier, "test": "test.npz", "validation_share": "25%"}
    write(tmp_path / "test.npz", [0, 1] * 5, seed=3)
    assert read(tmp_path, **again).frozen == earlier.frozen  # type: ignore[arg-type]
    write(tmp_path / "test.npz", [0, 1] * 6, seed=3)
    with pytest.raises(BadData, match="10 test images then, 12 now"):
        read(tmp_path, **again)  # type: ignore[arg-type]
