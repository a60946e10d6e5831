"""Sources of images that may have several labels or none: tables, Parquet and .npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisilo.common.data.form import ImageForm
from semisilo.common.data.partly_labelled import (
    PartlySurvey,
    check_partly_labelled,
    read_partly_labelled,
    survey_partly_labelled,
)
from semisilo.common.data.readers import check_labelled, read_images, survey
from semisilo.common.errors import BadData

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Five pictures, each of another grey."""
    for number in range(5):
        Image.fromarray(np.full((4, 4), 40 * number + 1, dtype=np.uint8)).save(tmp_path / f"{number}.png")
    return tmp_path


def _table(folder: Path, text: str) -> str:
    (folder / "labels.csv").write_text(text)
    return str(folder / "labels.csv")


def _rows(source: str, classes: tuple[str, ...] | None = None) -> tuple[list[list[int]], tuple[str, ...]]:
    found = read_images(source, size=4, channels=1, classes=classes, multi_label=True)
    assert found.images.labels_N is not None
    return found.images.labels_N.tolist(), found.classes


def test_cells_with_a_bar_between_names_are_several_labels(scans: Path) -> None:
    source = _table(scans, "image,finding\n0.png,Mass|Edema\n1.png,No Finding\n2.png,Edema\n3.png,\n4.png,Mass\n")
    assert _rows(source) == ([[1, 1], [0, 0], [1, 0], [0, 1]], ("Edema", "Mass"))
    assert _rows(source, ("Mass", "Edema", "Hernia"))[0] == [[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_columns_of_0_and_1_are_classes_and_a_class_without_a_column_is_not_known(scans: Path) -> None:
    source = _table(scans, "image,Edema,Mass,No Finding\n0.png,1,1,0\n1.png,0,0,1\n2.png,1,0,0\n3.png,,,\n")
    assert _rows(source) == ([[1, 1], [0, 0], [1, 0]], ("Edema", "Mass"))
    assert _rows(source, ("Mass", "Hernia", "Edema"))[0] == [[1, -1, 1], [0, -1, 0], [0, -1, 1]]


def test_a_class_may_not_be_known_of_an_image_and_an_empty_cell_beside_others_is_0(scans: Path) -> None:
    """As CheXpert and MIMIC-CXR have it: -1.0 where the report is not certain, nothing where it does not say it."""
    source = _table(scans, "image,No Finding,Edema,Mass\n0.png,,1.0,-1.0\n1.png,1.0,,\n2.png,,,0.0\n3.png,,-1.0,\n"
                           "4.png,,-1.0,1.0\n")
    assert _rows(source) == ([[1, -1], [0, 0], [0, 0], [-1, 1]], ("Edema", "Mass"))
    assert _rows(source, ("Mass", "Hernia", "Edema"))[0] == [[-1, -1, 1], [0, -1, 0], [0, -1, 0], [1, -1, -1]]
    found = read_partly_labelled(source, FORM, classes=("Edema", "Mass"), use_labels=True, multi_label=True)
    assert found.unlabelled is not None
    assert found.unlabelled.names == ("3.png",), "nothing is known of it"
    survey_partly_labelled(source)
    for named in (source, source + "#label=Edema,Mass"):
        with pytest.raises(BadData, match=r"row 2 says of a class that it is not known \(-1\)") as caught:
            read_images(named, size=4, channels=1)
        assert 'task = "multi_label"' in caught.value.remedy
    two = _table(scans, "image,Edema,Mass\n0.png,-1,-1\n0.png,0,-1\n0.png,-1,1\n1.png,1,0\n")
    assert _rows(two)[0] == [[0, 1], [1, 0]], "what any row knows is known"


def test_an_image_that_several_rows_name_shows_what_any_of_them_says(scans: Path) -> None:
    source = _table(scans, "image_id,class_name\n0,Mass\n0,Edema\n0,Mass\n1,No finding\n1,No finding\n")
    assert _rows(source + "#label=class_name") == ([[1, 1], [0, 0]], ("Edema", "Mass"))


def test_a_silo_tells_images_that_show_nothing_from_those_of_which_nothing_is_said(scans: Path) -> None:
    source = _table(scans, "image,finding\n0.png,Mass|Edema\n1.png,No Finding\n2.png,\n3.png,?\n4.png,Mass\n")
    found = read_partly_labelled(source, FORM, classes=("Edema", "Mass"), use_labels=True, multi_label=True)
    assert found.labelled is not None
    assert found.unlabelled is not None
    assert found.labelled.labels_N is not None
    assert found.labelled.labels_N.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert found.unlabelled.names == ("2.png", "3.png")
    survey_partly_labelled(source)  # before the study is known, several labels are no reason to refuse
    check_partly_labelled(source, classes=("Edema", "Mass"), multi_label=True)


def test_a_study_with_one_label_for_an_image_still_asks(scans: Path) -> None:
    source = _table(scans, "image,finding\n0.png,Mass|Edema\n1.png,Mass\n")
    with pytest.raises(BadData, match="1 of 2 rows have several labels") as caught:
        read_images(source, size=4, channels=1)
    assert 'task = "multi_label"' in caught.value.text
    with pytest.raises(BadData, match="several=skip has no meaning"):
        read_images(source + "#several=skip", size=4, channels=1, multi_label=True)


def test_folders_cannot_say_several_labels(scans: Path) -> None:
    (scans / "Mass").mkdir()
    (scans / "0.png").rename(scans / "Mass" / "0.png")
    with pytest.raises(BadData, match="class folders cannot say"):
        check_labelled(str(scans), classes=(), multi_label=True)
    found = read_partly_labelled(str(scans), FORM, classes=("Mass", "Edema"), use_labels=True, multi_label=True)
    assert found.labelled is None
    assert found.unlabelled is not None
    assert len(found.unlabelled) == 5
    (scans / "labelled").mkdir()
    with pytest.raises(BadData, match="has a folder 'labelled'"):
        read_partly_labelled(str(scans), FORM, classes=("Mass", "Edema"), use_labels=True, multi_label=True)


def test_an_npz_has_a_row_for_each_image_and_a_column_for_each_class(tmp_path: Path) -> None:
    path, images = tmp_path / "chest.npz", np.random.default_rng(1).integers(0, 255, (3, 5, 5), dtype=np.uint8)
    rows = np.array([[1, 0, 1], [0, 0, 0], [-1, 1, 0]])
    np.savez(path, images=images, labels=rows, classes=np.array(["a", "b", "c"]))
    assert _rows(str(path)) == (rows.tolist(), ("a", "b", "c"))
    assert _rows(str(path), ("c", "a", "b"))[0] == rows[:, [2, 0, 1]].tolist()
    found = survey(str(path))
    assert (found.num_labelled, found.class_counts) == (3, {"a": 1, "b": 1, "c": 1})
    with pytest.raises(BadData, match="one class per image is needed") as caught:
        read_images(str(path), size=4, channels=1)
    assert 'task = "multi_label"' in (caught.value.remedy or "")


def _unsaid(path: Path, **names: str) -> str:
    """An .npz of five images of which two have rows of nothing but -1, under these names of its arrays."""
    images = np.arange(5, dtype=np.uint8)[:, None, None] * np.ones((5, 5, 5), np.uint8)
    rows = np.array([[1, 0], [-1, -1], [-1, 1], [-1, -1], [0, 0]])
    np.savez(path, **{names.get("images", "images"): images, names.get("labels", "labels"): rows,
                      "patients": np.arange(5), "classes": np.array(["a", "b"])})
    return str(path)


def test_a_row_of_an_npz_of_which_nothing_is_known_is_unlabelled(tmp_path: Path) -> None:
    """As in tables and Parquet. A class that the file has no column for changes nothing."""
    source = _unsaid(tmp_path / "x.npz")
    found = read_images(source, size=4, channels=1, multi_label=True)
    assert found.images.labels_N is not None
    assert (found.images.labels_N.tolist(), found.images.names) == (
        [[1, 0], [-1, 1], [0, 0]], ("x.npz[0]", "x.npz[2]", "x.npz[4]"))
    assert len(set(found.images.patients)) == 3
    assert [(each.name, each.reason, each.broken) for each in found.skipped] == [("2 rows", "have no label", False)]
    assert survey(source).num_labelled == 3
    for classes in (("a", "b"), ("b", "c", "a")):
        apart = read_partly_labelled(source, FORM, classes=classes, use_labels=True, multi_label=True)
        assert apart.labelled is not None
        assert apart.unlabelled is not None
        assert apart.labelled.names == ("x.npz[0]", "x.npz[2]", "x.npz[4]")
        assert (apart.unlabelled.names, apart.unlabelled.labels_N) == (("x.npz[1]", "x.npz[3]"), None)
    assert survey_partly_labelled(source) == PartlySurvey(labelled=3, unlabelled=2)
    np.savez(source, images=np.zeros((2, 5, 5), np.uint8), labels=np.full((2, 2), -1))
    for refuses in (lambda: read_images(source, size=4, channels=1, multi_label=True),
                    lambda: check_labelled(source, classes=(), multi_label=True)):
        with pytest.raises(BadData, match="holds 2 images and no label"):
            refuses()
    apart = read_partly_labelled(source, FORM, classes=("a", "b"), use_labels=True, multi_label=True)
    assert apart.labelled is None
    assert apart.unlabelled is not None
    assert len(apart.unlabelled) == 2


def test_of_an_npz_of_two_parts_such_images_are_there_in_every_step(tmp_path: Path) -> None:
    source = _unsaid(tmp_path / "x.npz", images="labelled_images", labels="labelled_labels")
    with np.load(source) as arrays:
        np.savez(source, **arrays, unlabelled_images=np.full((2, 5, 5), 9, np.uint8), unlabelled_steps=np.array([0, 1]),
                 rounds_per_step=3)
    found = read_partly_labelled(source, FORM, classes=("a", "b"), use_labels=True, multi_label=True)
    assert found.labelled is not None
    assert found.unlabelled is not None
    assert found.steps_N is not None
    assert found.labelled.images_NCHW[:, 0, 0, 0].tolist() == [0, 2, 4]
    assert found.unlabelled.images_NCHW[:, 0, 0, 0].tolist() == [1, 3, 9, 9]
    assert found.steps_N.tolist() == [-1, -1, 0, 1]
    assert survey_partly_labelled(source) == PartlySurvey(labelled=3, unlabelled=4, steps=2)


@pytest.mark.parametrize(("labels", "text"), [
    (np.array([0, 1, 2]), "a row for each image"), (np.array([[0, 2], [1, 0], [1, 1]]), "other than 0, 1 and -1"),
    (np.array([[0.5, 1], [0, 1], [0, 1]]), "other than 0, 1 and -1"),
    (np.array([[1], [0], [1]]), "a row for each image")])
def test_an_npz_with_other_labels_is_refused(tmp_path: Path, labels: np.ndarray, text: str) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, images=np.zeros((3, 5, 5), dtype=np.uint8), labels=labels)
    with pytest.raises(BadData, match=text):
        read_images(str(path), size=4, channels=1, multi_label=True)


def test_digits_have_one_class_each() -> None:
    with pytest.raises(BadData, match="every digit is of one class"):
        read_images("digits", size=8, channels=1, multi_label=True)


def test_parquet_has_lists_texts_or_columns(scans: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    content = [(scans / f"{number}.png").read_bytes() for number in range(4)]
    path = scans / "scans.parquet"

    def written(**columns: object) -> str:
        parquet.write_table(pyarrow.table({"image": content, **columns}), path)
        return str(path)

    wanted = [[1, 1], [0, 0], [1, 0]]
    assert _rows(written(label=[["b", "a"], [], ["a"], None])) == (wanted, ("a", "b"))
    assert _rows(written(label=["a|b", "No Finding", "a", ""])) == (wanted, ("a", "b"))
    assert _rows(written(a=[1, 0, 1, None], b=[True, False, False, None]) + "#label=a,b") == (wanted, ("a", "b"))
    assert _rows(written(a=[1, -1, -1, None], b=[-1, 0, None, 1]) + "#label=a,b") == (
        [[1, -1], [-1, 0], [0, 1]], ("a", "b")), "-1: not known; nothing beside what is: 0"
    found = read_partly_labelled(written(label=[["b", "a"], [], ["a"], None]), FORM, classes=("a", "b"),
                                 use_labels=True, multi_label=True)
    assert found.unlabelled is not None
    assert len(found.unlabelled) == 1
    assert survey_partly_labelled(str(path)).labelled == 3


def test_a_preview_counts_the_images_of_every_finding(scans: Path) -> None:
    from semisilo.common.data.formats.pixels import Geometry
    from semisilo.common.data.preview.preview import look_at

    form = Geometry(size=4, channels=1, resize="fit")
    source = _table(scans, "image,finding\n0.png,Mass|Edema\n1.png,No Finding\n2.png,Edema\n3.png,\n4.png,Mass\n")
    found = look_at(source, form=form, multi_label=True)
    assert (found.labelled, found.unlabelled, found.classes) == (4, 1, {"Edema": 2, "Mass": 2})
    assert not found.questions
    assert "several labels" in look_at(source, form=form).questions[0]
    np.savez(scans / "x.npz", images=np.zeros((3, 5, 5), dtype=np.uint8), labels=[[1, 1], [0, 0], [0, 1]])
    found = look_at(str(scans / "x.npz"), form=form)
    assert (found.labelled, found.classes) == (3, {"0": 1, "1": 2})
    assert {tile.class_name for tile in found.tiles} == {"0|1", "no finding", "1"}
