"""Which images of a source are labelled: every convention, what is counted and what is read agree, every refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semisilo.common.data.form import ImageForm
from semisilo.common.data.partly_labelled import (
    PartlyLabelled,
    PartlySurvey,
    read_partly_labelled,
    survey_partly_labelled,
)
from semisilo.common.errors import BadData

FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
CLASSES = ("cat", "dog", "owl")


def picture(path: Path, value: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), value).save(path)
    return path


def folder_of(base: Path, *names: str) -> str:
    for number, name in enumerate(names):
        picture(base / name, 10 * number)
    return str(base)


def read(source: str, *, use_labels: bool = True, **options: Any) -> PartlyLabelled:
    return read_partly_labelled(source, FORM, classes=CLASSES, use_labels=use_labels, **options)


def apart(found: PartlyLabelled) -> tuple[list[tuple[str, int]], list[str]]:
    """Names with labels, and names without."""
    assert found.unlabelled is None or found.unlabelled.labels_N is None
    if found.labelled is None:
        labelled = []
    else:
        assert found.labelled.labels_N is not None
        labelled = list(zip(found.labelled.names, found.labelled.labels_N.tolist(), strict=True))
    return labelled, list(found.unlabelled.names) if found.unlabelled is not None else []


def part(path: Path, *, labelled: int = 0, unlabelled: int = 0, **arrays: Any) -> str:
    """A silo's part: labelled image i has the value and the label i, unlabelled image i the value 100 + i."""
    values = {"labelled_images": np.arange(labelled), "unlabelled_images": 100 + np.arange(unlabelled)}
    content = {name: np.ones((len(each), 8, 8), np.uint8) * each[:, None, None].astype(np.uint8)
               for name, each in values.items()}
    np.savez(path, **{**content, "labelled_labels": np.arange(labelled), **arrays})
    return str(path)


# Folders --------------------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, tuple[tuple[str, ...], list[tuple[str, int]], list[str]]] = {
    "labelled and unlabelled": (
        ("labelled/dog/a.png", "labelled/cat/deep/b.png", "unlabelled/c.png", "unlabelled/2024/dog/d.png", "e.png"),
        [("cat/deep/b.png", 0), ("dog/a.png", 1)], ["e.png", "unlabelled/2024/dog/d.png", "unlabelled/c.png"]),
    "labelled alone": (("labelled/owl/a.png",), [("owl/a.png", 2)], []),
    "unlabelled alone": (("unlabelled/a.png",), [], ["unlabelled/a.png"]),
    "class folders": (("dog/a.png", "cat/b.png"), [("cat/b.png", 0), ("dog/a.png", 1)], []),
    "class folders beside unlabelled images": (
        ("dog/a.png", "unlabelled/b.png", "c.png"), [("dog/a.png", 1)], ["c.png", "unlabelled/b.png"]),
    "flat": (("b.png", "a.png"), [], ["a.png", "b.png"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_says_by_its_folders_what_is_labelled(layout: str, tmp_path: Path) -> None:
    names, labelled, unlabelled = LAYOUTS[layout]
    source = folder_of(tmp_path / "scans", *names)
    found = read(source)
    assert apart(found) == (labelled, unlabelled)
    assert found.steps_N is None
    assert survey_partly_labelled(source) == PartlySurvey(labelled=len(labelled), unlabelled=len(unlabelled))
    without = read(source, use_labels=False)
    assert apart(without) == ([], sorted(names)), "all are unlabelled where labels do not count"


def test_each_image_keeps_its_own_pixels(tmp_path: Path) -> None:
    found = read(folder_of(tmp_path, "labelled/dog/a.png", "labelled/cat/b.png", "unlabelled/c.png"))
    assert found.labelled is not None
    assert found.unlabelled is not None
    assert found.labelled.images_NCHW[:, 0, 0, 0].tolist() == [10, 0]
    assert found.unlabelled.images_NCHW[:, 0, 0, 0].tolist() == [20]


def test_an_empty_folder_of_a_kind_holds_none(tmp_path: Path) -> None:
    (tmp_path / "labelled").mkdir()
    (tmp_path / "labelled" / ".DS_Store").write_bytes(b"x")
    source = folder_of(tmp_path, "unlabelled/a.png")
    assert apart(read(source)) == ([], ["unlabelled/a.png"])
    assert survey_partly_labelled(source) == PartlySurvey(labelled=0, unlabelled=1)


def test_files_that_are_left_out_are_told_once_wherever_they_lie(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "labelled/dog/a.png", "labelled/loose.png", "unlabelled/b.png")
    for name in ("notes.txt", "labelled/dog/notes.txt", "unlabelled/notes.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "labelled/dog/damaged.png").write_bytes(b"no picture")
    with pytest.raises(BadData, match=r"labelled: dog/damaged\.png cannot be read"):
        read(source)
    found = read(source, on_error="skip")
    assert apart(found) == ([("dog/a.png", 1)], ["unlabelled/b.png"])
    assert sorted(item.name for item in found.skipped) == [
        "dog/damaged.png", "labelled/dog/notes.txt", "loose.png", "notes.txt", "unlabelled/notes.txt"]


@pytest.mark.parametrize(("names", "text", "remedy"), [
    (("labelled/zebra/a.png",), "labelled: folder 'zebra' is not a class of the study", "cat, dog, owl"),
    (("dogs/a.png",), "scans: folder 'dogs' is not a class", "Did you mean 'dog'?"),
    (("labeled/dog/a.png",), "folder 'labeled' is not a class", "Call it 'labelled'"),
    (("labelled/dog/a.png", "2024/b.png"), "not clear what the folder '2024' beside 'labelled' is", "'unlabelled'"),
    (("labelled/a.png",), "labelled: holds 1 image but no class folders", "folder with its name"),
])
def test_a_folder_whose_labels_cannot_be_told_is_refused_by_name(
        names: tuple[str, ...], text: str, remedy: str, tmp_path: Path) -> None:
    source = folder_of(tmp_path / "scans", *names)
    with pytest.raises(BadData) as caught:
        read(source)
    assert text in caught.value.text
    assert remedy in caught.value.remedy
    assert "\n" not in caught.value.line()
    assert len(apart(read(source, use_labels=False))[1]) == len(names), "where labels do not count it does not matter"


def test_an_unknown_class_folder_is_refused_even_when_it_is_empty(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "unlabelled/a.png")
    (tmp_path / "labelled" / "cow").mkdir(parents=True)
    assert apart(read(source)) == ([], ["unlabelled/a.png"]), "labelled/ holds no file at all"
    (tmp_path / "labelled" / "cow" / "notes.txt").write_text("x")
    with pytest.raises(BadData, match="none is an image"):
        read(source)


# Arrays ---------------------------------------------------------------------------------------------------------------


def test_an_npz_of_two_parts_is_read_apart(tmp_path: Path) -> None:
    source = part(tmp_path / "a.npz", labelled=3, unlabelled=2)
    found = read(source)
    assert apart(found) == ([("a.npz[0]", 0), ("a.npz[1]", 1), ("a.npz[2]", 2)], ["a.npz[0]", "a.npz[1]"])
    assert found.labelled is not None
    assert found.unlabelled is not None
    assert found.labelled.images_NCHW[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert found.unlabelled.images_NCHW[:, 0, 0, 0].tolist() == [100, 101]
    assert survey_partly_labelled(source) == PartlySurvey(labelled=3, unlabelled=2)


@pytest.mark.parametrize(("labelled", "unlabelled"), [(0, 2), (2, 0), (0, 0)])
def test_a_part_may_be_empty(labelled: int, unlabelled: int, tmp_path: Path) -> None:
    source = part(tmp_path / "a.npz", labelled=labelled, unlabelled=unlabelled)
    found = read(source)
    assert tuple(map(len, apart(found))) == (labelled, unlabelled)
    assert survey_partly_labelled(source) == PartlySurvey(labelled=labelled, unlabelled=unlabelled)
    assert len(apart(read(source, use_labels=False))[1]) == labelled + unlabelled


def test_steps_are_read_with_their_length(tmp_path: Path) -> None:
    steps = {"unlabelled_steps": np.array([2, 0, 2]), "rounds_per_step": 10}
    source = part(tmp_path / "a.npz", labelled=1, unlabelled=3, **steps)
    found = read(source)
    assert found.steps_N is not None
    assert (found.steps_N.tolist(), found.rounds_per_step) == ([2, 0, 2], 10)
    assert survey_partly_labelled(source) == PartlySurvey(labelled=1, unlabelled=3, steps=3)


def test_where_labels_do_not_count_labelled_images_come_first_and_are_there_in_every_step(tmp_path: Path) -> None:
    source = part(tmp_path / "a.npz", labelled=2, unlabelled=3, unlabelled_steps=np.array([0, 1, 1]), rounds_per_step=1)
    found = read(source, use_labels=False)
    assert found.labelled is None
    assert found.unlabelled is not None
    assert found.unlabelled.labels_N is None
    assert found.unlabelled.images_NCHW[:, 0, 0, 0].tolist() == [0, 1, 100, 101, 102]
    assert found.steps_N is not None
    assert found.steps_N.tolist() == [-1, -1, 0, 1, 1]


def test_one_part_of_an_npz_can_be_named(tmp_path: Path) -> None:
    source = part(tmp_path / "a.npz", labelled=2, unlabelled=3, unlabelled_steps=np.zeros(3, int), rounds_per_step=1)
    assert tuple(map(len, apart(read(f"{source}#labelled")))) == (2, 0)
    assert read(f"{source}#labelled").steps_N is None
    only = read(f"{source}#unlabelled")
    assert tuple(map(len, apart(only))) == (0, 3)
    assert only.steps_N is not None
    assert survey_partly_labelled(f"{source}#unlabelled") == PartlySurvey(labelled=0, unlabelled=3, steps=1)


def test_class_names_of_a_part_are_mapped_to_the_studys_order(tmp_path: Path) -> None:
    source = part(tmp_path / "a.npz", labelled=2, unlabelled=1, classes=np.array(["owl", "cat"]))
    assert [label for _, label in apart(read(source))[0]] == [2, 0]


@pytest.mark.parametrize("use_labels", [True, False])
def test_images_of_an_npz_with_minus_one_for_a_label_are_unlabelled(tmp_path: Path, use_labels: bool) -> None:
    images, labels = np.arange(4, dtype=np.uint8)[:, None, None] * np.ones((1, 8, 8), np.uint8), [2, -1, 0, -1]
    np.savez(tmp_path / "a.npz", images=images, labels=np.array(labels))
    whole = str(tmp_path / "a.npz")
    found = read(whole, use_labels=use_labels)
    assert apart(found) == (([("a.npz[0]", 2), ("a.npz[2]", 0)], ["a.npz[1]", "a.npz[3]"]) if use_labels else
                            ([], [f"a.npz[{index}]" for index in range(4)]))
    assert survey_partly_labelled(whole) == PartlySurvey(labelled=2, unlabelled=2)
    np.savez(tmp_path / "b.npz", labelled_images=images, labelled_labels=np.array(labels), unlabelled_images=images)
    parts = read(str(tmp_path / "b.npz"), use_labels=use_labels)
    assert tuple(map(len, apart(parts))) == ((2, 6) if use_labels else (0, 8))
    assert survey_partly_labelled(str(tmp_path / "b.npz")) == PartlySurvey(labelled=2, unlabelled=6)


def test_other_arrays_are_labelled_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    images, labels = np.zeros((3, 8, 8), np.uint8), np.array([0, 2, 1])
    np.savez(tmp_path / "medmnist.npz", train_images=images, train_labels=labels, test_images=images[:1])
    source = str(tmp_path / "medmnist.npz")
    assert tuple(map(len, apart(read(source)))) == (3, 0)
    assert [label for _, label in apart(read(f"{source}#train"))[0]] == [0, 2, 1]
    assert tuple(map(len, apart(read(f"{source}#test")))) == (0, 1), "this split has no labels"
    assert tuple(map(len, apart(read(source, use_labels=False)))) == (0, 3)
    assert survey_partly_labelled(source) == PartlySurvey(labelled=3, unlabelled=0)
    assert survey_partly_labelled("digits") == PartlySurvey(labelled=1797, unlabelled=0)


@pytest.mark.parametrize(("arrays", "text"), [
    ({"labelled_labels": np.array([0, 1, 3])}, "label 3 of image 2 is out of range, the study has 3 classes"),
    ({"labelled_labels": np.array([0, 1])}, "3 images but 2 labels"),
    ({"classes": np.array(["cat", "dog", "cow"])}, "class 'cow' is not a class of the study"),
    ({"unlabelled_steps": np.array([0, 1])}, "'unlabelled_steps' but no 'rounds_per_step'"),
    ({"rounds_per_step": np.array(2)}, "'rounds_per_step' but no 'unlabelled_steps'"),
    ({"unlabelled_steps": np.array([0, 1, 2]), "rounds_per_step": np.array(1)}, "2 whole numbers, one per unlabelled"),
    ({"unlabelled_steps": np.array([0.0, 1.0]), "rounds_per_step": np.array(1)}, "2 whole numbers, one per unlabelled"),
    ({"unlabelled_steps": np.array([0, -1]), "rounds_per_step": np.array(1)}, "beyond 0 to"),
    ({"unlabelled_steps": np.array([0, 1]), "rounds_per_step": np.array(0)}, "beyond 1 to"),
    ({"unlabelled_steps": np.array([0, 1]), "rounds_per_step": np.array([1, 1])}, "must be one whole number"),
    ({"unlabelled_images": np.array(3)}, "a single number, which is not a stack of images"),
])
def test_a_part_that_does_not_fit_is_refused_by_key(arrays: dict[str, Any], text: str, tmp_path: Path) -> None:
    source = part(tmp_path / "a.npz", labelled=3, unlabelled=2, **arrays)
    with pytest.raises(BadData) as caught:
        read(source)
    assert text in caught.value.text
    assert source in caught.value.text
    assert caught.value.remedy


def test_labelled_images_without_labels_are_refused_by_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", labelled_images=np.zeros((2, 8, 8), np.uint8))
    with pytest.raises(BadData, match="no key 'labelled_labels'"):
        read(str(tmp_path / "a.npz"))


def test_progress_rises_to_one_over_both_kinds(tmp_path: Path) -> None:
    for source in (folder_of(tmp_path / "f", "labelled/dog/a.png", "unlabelled/b.png"),
                   part(tmp_path / "a.npz", labelled=1, unlabelled=3)):
        heard: list[float] = []
        read(source, progress=lambda share, text, heard=heard: heard.append(share))
        assert heard == sorted(heard)
        assert heard[-1] == 1.0
        assert len(heard) == 2


def test_counting_does_not_import_torch(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "f", "labelled/dog/a.png", "unlabelled/b.png")
    arrays = part(tmp_path / "a.npz", labelled=1, unlabelled=3)
    code = ("import sys; from semisilo.silo.site.home import JoinChoice; "
            "from semisilo.silo.compute.images import survey_silo_images as survey; "
            f"survey(JoinChoice(source={source!r})); survey(JoinChoice(source={arrays!r})); "
            "assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_labels_and_steps_in_one_file_are_read_in_the_order_of_the_studys_classes(tmp_path: Path) -> None:
    """As `semisilo split` writes it; that it does so is tested in tests/semisilo/simulation/test_split.py."""
    pixels = np.ones((12, 8, 8), np.uint8) * np.arange(12, dtype=np.uint8)[:, None, None]
    for name, labelled, unlabelled, steps in (("a", [1, 3, 5], [0, 2, 4, 6], [1, 0, 1, 0]), ("b", [7], [], [])):
        np.savez(tmp_path / f"{name}.npz", labelled_images=pixels[labelled], labelled_labels=np.array(labelled) % 3,
                 classes=np.array(["owl", "cat", "dog"]), unlabelled_images=pixels[np.array(unlabelled, int)],
                 unlabelled_steps=np.array(steps, int), rounds_per_step=np.array(5))
    first, second = (read(str(tmp_path / f"{name}.npz")) for name in "ab")
    assert first.labelled is not None
    assert first.unlabelled is not None
    assert first.labelled.images_NCHW[:, 0, 0, 0].tolist() == [1, 3, 5]
    assert [label for _, label in apart(first)[0]] == [0, 2, 1], "the study's order: cat, dog, owl"
    assert first.unlabelled.images_NCHW[:, 0, 0, 0].tolist() == [0, 2, 4, 6]
    assert first.steps_N is not None
    assert (first.steps_N.tolist(), first.rounds_per_step) == ([1, 0, 1, 0], 5)
    assert tuple(map(len, apart(second))) == (1, 0)
