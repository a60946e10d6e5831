"""A silo's images by scenario and round: steps advance, labels count where they should, sources stay apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisilo.common.data.form import ImageForm, Reading
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.methods import Scenario
from semisilo.common.methods.contract import SiloData
from semisilo.silo.compute.images import SiloImages, read_silo_images, survey_silo_images
from semisilo.silo.compute.messages import Surveyed
from semisilo.silo.site.home import JoinChoice

FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
CLASSES = ("cat", "dog")


def images(*values: int, labels: bool = False) -> ImageSet:
    """Images that are their value all over."""
    values_N = torch.tensor(values, dtype=torch.uint8)
    return ImageSet(values_N[:, None, None, None].expand(-1, 1, 8, 8).clone(),
                    values_N.to(torch.int64) if labels else None, tuple(map(str, values)))


def values(found: ImageSet | None) -> list[int]:
    return [] if found is None else [int(value) for value in found.images_NCHW[:, 0, 0, 0]]


def seen(silo: SiloImages, round: int) -> list[int]:
    return values(silo.data(round=round, scenario="labels-at-silo").unlabelled)


# Rounds and scenarios -------------------------------------------------------------------------------------------------


def test_steps_advance_with_the_rounds_and_the_last_one_stays() -> None:
    """data.md 3.4: with ten rounds a step, rounds 1 to 10 use step 1, and so on; a late silo starts at the current."""
    silo = SiloImages(labelled=images(1, labels=True), unlabelled=images(10, 20, 11, 30, 21),
                      steps_N=np.array([0, 1, 0, 2, 1]), rounds_per_step=10)
    by_round = {number: seen(silo, number) for number in (1, 10, 11, 20, 21, 30, 31, 500)}
    assert by_round == {1: [10, 11], 10: [10, 11], 11: [20, 21], 20: [20, 21], 21: [30], 30: [30], 31: [30], 500: [30]}
    assert all(values(silo.data(round=number, scenario="labels-at-silo").labelled) == [1] for number in by_round)


def test_a_step_without_images_leaves_none_and_an_image_of_no_step_is_always_there() -> None:
    silo = SiloImages(unlabelled=images(10, 30), steps_N=np.array([0, 2]))
    assert [seen(silo, number) for number in (1, 2, 3)] == [[10], [], [30]]
    assert silo.data(round=2, scenario="labels-at-silo").unlabelled is None
    always = SiloImages(unlabelled=images(5, 10, 30), steps_N=np.array([-1, 0, 2]))
    assert [seen(always, number) for number in (1, 2, 3)] == [[5, 10], [5], [5, 30]]


def test_without_steps_every_round_has_the_same_images_without_a_copy() -> None:
    unlabelled = images(1, 2)
    silo = SiloImages(unlabelled=unlabelled)
    assert silo.data(round=1, scenario="labels-at-silo").unlabelled is unlabelled
    assert silo.data(round=9, scenario="labels-at-coordinator").unlabelled is unlabelled


def test_with_labels_at_the_coordinator_all_images_are_unlabelled() -> None:
    silo = SiloImages(labelled=images(1, 2, labels=True), unlabelled=images(10, 20), steps_N=np.array([0, 1]),
                      test=images(7, labels=True))
    data = silo.data(round=2, scenario="labels-at-coordinator")
    assert data.labelled is None
    assert values(data.unlabelled) == [1, 2, 20]
    assert data.unlabelled is not None
    assert data.unlabelled.labels_N is None
    assert values(data.test) == [7]
    alone = SiloImages(labelled=images(1, labels=True)).data(round=1, scenario="labels-at-coordinator").unlabelled
    assert alone is not None
    assert alone.labels_N is None


def test_a_simulation_may_keep_the_truth_of_unlabelled_images() -> None:
    silo = SiloImages(unlabelled=images(1, 2, labels=True), steps_N=np.array([0, 1]))
    found = silo.data(round=2, scenario="labels-at-silo").unlabelled
    assert found is not None
    assert found.labels_N is not None
    assert found.labels_N.tolist() == [2]


def test_empty_sets_are_none() -> None:
    empty = images(1).subset([])
    assert SiloImages(labelled=empty, unlabelled=empty, test=empty).data(
        round=1, scenario="labels-at-silo") == SiloData()


@pytest.mark.parametrize(("steps", "rounds", "text"), [
    (np.array([0]), 1, "2 unlabelled images but steps"), (np.array([0, 1]), 0, "rounds_per_step = 0")])
def test_steps_that_do_not_fit_are_our_own_mistake(steps: np.ndarray, rounds: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SiloImages(unlabelled=images(1, 2), steps_N=steps, rounds_per_step=rounds)


# Reading --------------------------------------------------------------------------------------------------------------


def picture(path: Path, value: int, *, plain: bool = False) -> None:
    """With a dot unless it is plain."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("L", (8, 8), value)
    if not plain:
        image.putpixel((7, 7), 255)
    image.save(path)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Folders "scans" (class folders), "known" (class folders) and "test" (class folders)."""
    for name, value in (("scans/dog/a.png", 10), ("scans/b.png", 20), ("known/dog/c.png", 30), ("known/cat/d.png", 40),
                        ("test/dog/e.png", 50)):
        picture(tmp_path / name, value)
    return tmp_path


def choice(site: Path, *, source: str, labelled: str = "", test: str = "") -> JoinChoice:
    return JoinChoice(source=str(site / source), labelled=str(site / labelled) if labelled else "",
                      test=str(site / test) if test else "")


def read(chosen: JoinChoice, scenario: Scenario, *, round: int = 1) -> SiloData:
    found = read_silo_images(chosen, FORM, classes=CLASSES, scenario=scenario)
    assert found.images.unlabelled is None or found.images.unlabelled.labels_N is None, "labels are dropped at once"
    return found.images.data(round=round, scenario=scenario)


def test_labelled_images_are_those_of_the_source_or_those_that_were_named_apart(site: Path) -> None:
    scenarios: tuple[Scenario, ...] = ("labels-at-silo", "labels-at-both")
    for scenario in scenarios:
        whole = read(choice(site, source="scans"), scenario)
        assert (values(whole.labelled), values(whole.unlabelled), whole.test) == ([10], [20], None)
        apart = read(choice(site, source="scans", labelled="known", test="test"), scenario)
        assert (values(apart.labelled), values(apart.unlabelled), values(apart.test)) == ([40, 30], [20, 10], [50])
        assert apart.labelled is not None
        assert apart.labelled.labels_N is not None
        assert apart.labelled.labels_N.tolist() == [0, 1], "the study's order of classes"


def test_test_images_with_the_pixels_of_one_to_train_on_are_not_tested_with(site: Path) -> None:
    for name, value in (("copy_of_a", 10), ("copy_of_b", 20)):
        picture(site / "test" / "dog" / f"{name}.png", value)
    found = read_silo_images(choice(site, source="scans", test="test"), FORM, classes=CLASSES,
                             scenario="labels-at-coordinator")
    assert (values(found.images.test), found.twins) == ([50], ("dog/copy_of_a.png", "dog/copy_of_b.png"))
    assert len(values(found.images.unlabelled)) == 2, "they are trained on"
    (site / "test" / "dog" / "e.png").unlink()
    with pytest.raises(BadData, match=r"every test image has the pixels of one to train on, first dog/copy_of_a\.png"):
        read(choice(site, source="scans", test="test"), "labels-at-coordinator")


def test_plain_images_are_nobodys_twins(site: Path) -> None:
    """Slices beside the body, for example."""
    for name in ("scans/dog/black.png", "scans/black.png", "test/dog/black.png", "test/cat/black.png"):
        picture(site / name, 0, plain=True)
    found = read_silo_images(choice(site, source="scans", test="test"), FORM, classes=CLASSES,
                             scenario="labels-at-silo")
    assert (values(found.images.test), found.twins) == ([0, 0, 50], ())


def test_with_labels_at_the_coordinator_what_was_named_apart_is_unlabelled_as_well(site: Path) -> None:
    picture(site / "known" / "zebra" / "x.png", 60)  # no class of the study: it does not matter
    found = read(choice(site, source="scans", labelled="known"), "labels-at-coordinator")
    assert (found.labelled, values(found.unlabelled)) == (None, [40, 30, 60, 20, 10])
    assert survey_silo_images(choice(site, source="scans", labelled="known")) == Surveyed(
        labelled=3, unlabelled=2, test=0, steps=0)


def test_counts_are_those_of_what_is_read(site: Path) -> None:
    assert survey_silo_images(choice(site, source="scans", test="test")) == Surveyed(
        labelled=1, unlabelled=1, test=1, steps=0, layout="class folders: dog; 1 image beside them without a label")


def test_steps_stay_when_labels_do_not_count(site: Path) -> None:
    stack = np.array([1, 2, 3], np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    np.savez(site / "part.npz", labelled_images=stack[:1], labelled_labels=np.array([1]), unlabelled_images=stack[1:],
             unlabelled_steps=np.array([0, 1]), rounds_per_step=2)
    chosen = choice(site, source="part.npz")
    assert survey_silo_images(chosen) == Surveyed(labelled=1, unlabelled=2, test=0, steps=2)
    at_silo = [read(chosen, "labels-at-silo", round=number) for number in (1, 2, 3)]
    assert [(values(data.labelled), values(data.unlabelled)) for data in at_silo] == [
        ([1], [2]), ([1], [2]), ([1], [3])]
    assert [values(read(chosen, "labels-at-coordinator", round=number).unlabelled) for number in (1, 3)] == [
        [1, 2], [1, 3]]
    with_more = choice(site, source="part.npz", labelled="known")
    assert values(read(with_more, "labels-at-coordinator", round=3).unlabelled) == [40, 30, 1, 3]
    assert values(read(with_more, "labels-at-silo", round=3).unlabelled) == [1, 3]


def test_an_empty_part_leaves_the_silo_without_images_and_takes_part_all_the_same(site: Path) -> None:
    np.savez(site / "part.npz", unlabelled_images=np.zeros((0, 8, 8), np.uint8))
    chosen = choice(site, source="part.npz")
    assert survey_silo_images(chosen) == Surveyed(labelled=0, unlabelled=0, test=0, steps=0)
    assert read(chosen, "labels-at-silo") == read(chosen, "labels-at-coordinator") == SiloData()
    assert values(read(choice(site, source="part.npz", labelled="known"), "labels-at-coordinator").unlabelled) == [
        40, 30]


def test_progress_runs_over_all_sources(site: Path) -> None:
    heard: list[float] = []
    read_silo_images(choice(site, source="scans", labelled="known", test="test"), FORM, classes=CLASSES,
                     scenario="labels-at-silo", progress=lambda share, text: heard.append(share))
    assert heard == pytest.approx([1 / 3, 2 / 3, 1.0])


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["labelled", "test"])
def test_a_class_that_the_study_does_not_know_is_refused_with_its_folder(site: Path, kind: str) -> None:
    picture(site / "known" / "zebra" / "x.png", 60)
    with pytest.raises(BadData, match=r"known: folder 'zebra' is not a class of the study"):
        read(choice(site, source="scans", **{kind: "known"}), "labels-at-silo")


@pytest.mark.parametrize("kind", ["labelled", "test"])
def test_a_source_that_must_have_labels_and_has_none_is_refused_before_any_study(site: Path, kind: str) -> None:
    picture(site / "flat" / "a.png", 60)
    with pytest.raises(BadData, match=f"flat: has no labels, but was named as {kind} images"):
        survey_silo_images(choice(site, source="scans", **{kind: "flat"}))


@pytest.mark.parametrize(("source", "other"), [
    ("scans", "scans"), ("scans", "scans/dog"), ("scans/dog", "scans"), ("a.npz", "a.npz"), ("a.npz", "a.npz#train"),
    ("a.npz#test", "a.npz#test")])
def test_sources_that_hold_the_same_images_are_refused(site: Path, source: str, other: str) -> None:
    for chosen in (choice(site, source=source, labelled=other), choice(site, source=source, test=other),
                   choice(site, source="elsewhere", labelled=source, test=other)):
        with pytest.raises(BadData, match="hold the same images") as caught:
            survey_silo_images(chosen)
        with pytest.raises(BadData, match="hold the same images"):
            read(chosen, "labels-at-silo")
        assert str(site / other) in caught.value.text
        assert "'labelled' and 'unlabelled'" in caught.value.remedy


def test_parts_of_one_file_and_a_file_in_a_folder_of_images_are_apart(site: Path) -> None:
    stack = np.zeros((2, 8, 8), np.uint8)
    np.savez(site / "scans" / "a.npz", train_images=stack, test_images=stack, test_labels=np.array([0, 1]))
    assert survey_silo_images(choice(site, source="scans", test="scans/a.npz#test")).test == 2
    assert survey_silo_images(choice(site, source="scans/a.npz#train", test="scans/a.npz#test")).unlabelled == 2


def test_the_studys_reading_makes_the_pixels_of_all_sources(site: Path) -> None:
    """Values of 16 bits: with the window [1500, 1000] a value of 1250 is a quarter of the way, 64 of 255, and 1500 half
    of it."""
    for name, value in (("scans/dog/a", 1250), ("scans/b", 1250), ("test/dog/e", 1500)):
        Image.fromarray(np.full((8, 8), value, np.uint16)).save(site / f"{name}.png")
    form = replace(FORM, reading=Reading(window=(1500.0, 1000.0)))
    for scenario in ("labels-at-silo", "labels-at-coordinator"):
        found = read_silo_images(choice(site, source="scans", test="test"), form, classes=CLASSES,
                                 scenario=scenario).images
        assert {*values(found.labelled), *values(found.unlabelled)} == {64}
        assert values(found.test) == [128]


# What a site says of its images ---------------------------------------------------------------------------------------


def test_folders_without_labels_are_unlabelled_whatever_they_are_called(site: Path) -> None:
    chosen = replace(choice(site, source="scans"), use_labels=False)
    found = read(chosen, "labels-at-silo")
    assert found.labelled is None
    assert values(found.unlabelled) == [20, 10]
    counts = survey_silo_images(chosen)
    assert (counts.labelled, counts.unlabelled) == (0, 2)


def test_a_patient_is_not_trained_on_and_tested_with(site: Path) -> None:
    for name, value in (("train/dog/P1_a.png", 1), ("train/dog/P2_a.png", 2), ("held/dog/P2_b.png", 3)):
        picture(site / name, value)
    by_name = replace(choice(site, source="train", test="held"), patient="name")
    with pytest.raises(BadData, match=r"^1 patient of the test images are among .* first the one of dog/P2_b.png"
                       ) as caught:
        read(by_name, "labels-at-silo")
    assert 'patient = "none"' in caught.value.remedy
    assert read(replace(by_name, patient="none"), "labels-at-silo").test is not None
    (site / "held/dog/P2_b.png").rename(site / "held/dog/P3_b.png")
    assert read(by_name, "labels-at-silo").test is not None


def test_sources_of_a_site_with_several_ranges_of_16_bits_are_said_in_its_log(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, brightest in (("scans/a", 3000), ("test/cat/a", 60000), ("test/dog/b", 2000)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(name)).integers(0, brightest, (8, 8)).astype(np.uint16)
        pixels[0, 0] = brightest
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    choice = JoinChoice(source=str(tmp_path / "scans"), test=str(tmp_path / "test"))

    def said(form: ImageForm) -> list[str]:
        caplog.clear()
        read_silo_images(choice, form, classes=("cat", "dog"), scenario="labels-at-coordinator")
        return [record.getMessage() for record in caplog.records if "is white" in record.getMessage()]

    assert said(form) == [
        f"values of 16 bits: 4095 is white in {tmp_path / 'scans'}, 65535 is white in {tmp_path / 'test'}. Each source"
        " is read by its own values; if they are of one kind, ask for a study with [data.image.reading] window"]
    assert said(replace(form, reading=Reading(window=(2048, 4096)))) == []
