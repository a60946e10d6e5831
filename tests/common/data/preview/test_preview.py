"""What `data` shows of a source, and the contact sheet."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisilo.common.data.form import Reading
from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.preview.contact_sheet import contact_sheet
from semisilo.common.data.preview.preview import Tile, look_at
from semisilo.common.data.preview.preview_text import lines
from semisilo.common.errors import BadData

FORM = Geometry(size=16, channels=3, resize="fit")


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """cat: 3 grey (one of 16 bits), dog: 2 in colour and one broken, eel: none; one beside them."""
    for name in ("cat", "dog", "eel"):
        (tmp_path / name).mkdir()
    noise = np.random.default_rng(0)
    for number in range(2):
        Image.fromarray(noise.integers(0, 256, (10, 20)).astype(np.uint8)).save(tmp_path / f"cat/{number}.png")
        Image.fromarray(noise.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(tmp_path / f"dog/{number}.png")
    Image.fromarray(noise.integers(0, 3000, (8, 8)).astype(np.uint16)).save(tmp_path / "cat/deep.png")
    (tmp_path / "dog/bad.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("x")
    return tmp_path


def test_counts_are_those_of_the_folder(scans):
    found = look_at(str(scans), form=FORM)
    assert (found.kind, found.num_files, found.num_images, found.labelled, found.unlabelled) == (
        "class folders", 6, 5, 5, 0)
    assert found.classes == {"cat": 3, "dog": 2, "eel": 0}
    assert found.sizes == {"20x10": 2, "8x8": 3}
    assert list(found.sizes) == ["8x8", "20x10"], "most common first"
    assert (found.channels, found.bits) == ({1: 3, 3: 2}, {8: 4, 16: 1})
    assert [(item.name, item.broken) for item in found.skipped] == [("notes.txt", False), ("dog/bad.png", True)]
    assert found.notes[0] == "class 'eel' has no image here"
    assert "values of 16 bits: 4095" in found.notes[1]
    assert found.misfits == ()
    assert found.facts()["broken"] == 1


def test_classes_are_compared_with_the_studys(scans):
    found = look_at(str(scans), form=FORM, classes=("cat", "Dogs", "fox", "eel"))
    assert found.misfits == ("'dog' is not a class of the study; did you mean 'Dogs'?",)
    assert [note for note in found.notes if "fox" in note] == ["class 'fox' has no image here, and no folder or label"]
    assert look_at(str(scans), form=FORM, classes=("cat", "dog", "eel")).misfits == ()


def test_at_a_silo_folders_tell_labelled_from_unlabelled(scans):
    (scans / "unlabelled").mkdir()
    Image.new("L", (4, 4), 9).save(scans / "unlabelled/u.png")
    Image.new("L", (4, 4), 9).save(scans / "top.png")
    found = look_at(str(scans), form=FORM, at_silo=True)
    assert (found.labelled, found.unlabelled, found.classes) == (5, 2, {"cat": 3, "dog": 2, "eel": 0})
    hub = look_at(str(scans), form=FORM)
    assert hub.classes["unlabelled"] == 1


def test_tables_parquet_and_arrays_are_looked_at_alike(scans):
    (scans / "t.csv").write_text("file,label\ncat/0.png,cat\ndog/0.png,dog\ncat/1.png,\nzzz.png,dog\n")
    found = look_at(f"{scans}/t.csv", form=FORM)
    assert (found.kind, found.num_images, found.labelled, found.unlabelled, found.classes, found.broken) == (
        "table", 3, 2, 1, {"cat": 1, "dog": 1}, 1)
    images = np.random.default_rng(1).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
    np.savez(scans / "a.npz", images=images, labels=np.array([0, 1, 1, 0, 1, 1]))
    arrays = look_at(f"{scans}/a.npz", form=FORM, classes=("x", "y", "z"))
    assert (arrays.kind, arrays.num_images, arrays.classes) == ("npz", 6, {"x": 2, "y": 4, "z": 0})
    assert (arrays.sizes, arrays.channels, arrays.bits) == ({"8x8": 6}, {3: 6}, {8: 6})
    np.savez(scans / "p.npz", labelled_images=images[:2], labelled_labels=np.array([0, 1]),
             unlabelled_images=images[2:])
    part = look_at(f"{scans}/p.npz", form=FORM)
    assert (part.labelled, part.unlabelled, part.classes) == (2, 4, {"0": 1, "1": 1})
    assert look_at("digits#test", form=FORM).num_images == 355
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    content = (scans / "cat/0.png").read_bytes()
    pq.write_table(pa.table({"image": [content] * 3, "label": [0, None, 1]}), scans / "a.parquet")
    rows = look_at(f"{scans}/a.parquet", form=FORM, classes=("x", "y"))
    assert (rows.kind, rows.labelled, rows.unlabelled, rows.classes) == ("Parquet", 2, 1, {"x": 1, "y": 1})
    with pytest.raises(BadData, match="no such folder"):
        look_at(f"{scans}/none", form=FORM)


def test_numbers_beside_classes_that_are_called_by_numbers_are_asked_about(scans):
    """They count into the list of classes, as documented: a label 1 is then the class '2', without a word."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    content = (scans / "cat/0.png").read_bytes()
    pq.write_table(pa.table({"image": [content] * 2, "label": [1, 2]}), scans / "a.parquet")
    pq.write_table(pa.table({"image": [content] * 2, "label": ["1", "2"]}), scans / "named.parquet")
    images = np.zeros((2, 8, 8), dtype=np.uint8)
    np.savez(scans / "a.npz", images=images, labels=np.array([1, 2]))
    np.savez(scans / "named.npz", images=images, labels=np.array([0, 1]), classes=np.array(["1", "2"]))
    for kind in ("parquet", "npz"):
        asked = look_at(f"{scans}/a.{kind}", form=FORM, classes=("1", "2", "3")).questions
        assert len(asked) == 1
        assert "a label 0 is taken for its first class, '1'" in asked[0]
        for source, classes in ((f"named.{kind}", ("1", "2", "3")), (f"a.{kind}", ("0", "1", "2")),
                                (f"a.{kind}", ("a", "b", "c")), (f"a.{kind}", ())):
            assert look_at(f"{scans}/{source}", form=FORM, classes=classes).questions == ()


def test_the_counts_agree_with_what_a_study_reads(scans):
    from semisilo.common.data.readers import read_images

    found = look_at(str(scans), form=FORM)
    read = read_images(str(scans), size=16, channels=3, on_error="skip")
    assert found.num_images == len(read.images)
    assert list(found.classes) == list(read.classes)
    tiles = [tile.square for tile in found.tiles]
    assert len(tiles) == 5
    for square in tiles:
        assert any(np.array_equal(square, image) for image in read.images.images_NCHW.numpy()), "as a study sees it"


def test_files_of_several_pictures_count_as_a_study_counts_them(tmp_path):
    pages = [Image.new("L", (8, 8), 10 * value) for value in range(5)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    assert look_at(str(tmp_path), form=FORM).num_images == 1
    found = look_at(str(tmp_path), form=FORM, reading=Reading(frames="all"))
    assert (found.num_files, found.num_images, len(found.tiles)) == (1, 5, 1)
    assert (found.tiles[0].square == 20).all(), "the middle one stands for the file"


def test_the_text_names_what_is_wrong_and_nothing_that_could_move_the_cursor(scans):
    (scans / "dog/\x1b[2Jevil.png").write_bytes(b"")
    text = "\n".join(lines(look_at(str(scans), form=FORM, classes=("cat", "dog"))))
    assert "class folders, 5 images" in text
    assert "cat        3   60.0%" in text
    assert "dog/bad.png: it is empty" in text
    assert "2 cannot be used" in text
    assert "no fit      'eel' is not a class of the study" in text
    assert "\x1b" not in text


def test_the_sheet_shows_each_class_under_its_name():
    tiles = [Tile("dog", np.full((3, 16, 16), 40, np.uint8)), Tile("cat", np.full((3, 16, 16), 200, np.uint8)),
             Tile("", np.full((1, 16, 16), 90, np.uint8)), *[Tile("cat", np.full((3, 16, 16), 120, np.uint8))] * 9]
    sheet = Image.open(io.BytesIO(contact_sheet(tiles, title="scans", counts={"cat": 30, "dog": 1, "eel": 0},
                                                unlabelled=7)))
    pixels = np.asarray(sheet)
    rows = {value: np.flatnonzero((pixels == value).all(axis=2).sum(axis=1) >= 60) for value in (200, 120, 40, 90)}
    assert all(len(found) for found in rows.values()), "every picture is there, as large as 64 pixels"
    assert rows[200].min() < rows[40].min() < rows[90].min(), "classes in their order, unlabelled ones last"
    assert len(rows[120]) == 128, "ten cats take two rows"


def test_labels_that_are_codes_give_a_few_lines_and_a_sheet_that_can_be_opened(tmp_path):
    """They count from 0, so two diagnoses of five digits are twenty thousand classes: they were as many lines."""
    for name in ("a", "b"):
        Image.new("L", (8, 8), ord(name)).save(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("file,label\na,10234\nb,20345\n")
    found = look_at(str(tmp_path / "t.csv"), form=FORM)
    assert len(found.classes) == 20346
    assert found.notes == (*(f"class '{number}' has no image here" for number in range(5)),
                           "20,339 more classes have no image here: where labels are numbers, each one from 0 to the"
                           " largest is a class")
    sheet = contact_sheet(found.tiles, title="t", counts=found.classes, unlabelled=0)
    assert Image.open(io.BytesIO(sheet)).height < 1000
    np.savez(tmp_path / "n.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 40]))
    assert len(look_at(str(tmp_path / "n.npz"), form=FORM).notes) == 6


def test_of_arrays_too_it_is_said_what_becomes_white(tmp_path):
    deep = np.arange(128, dtype=np.uint16).reshape(2, 8, 8) * 30
    np.savez(tmp_path / "n.npz", images=deep, labels=np.array([0, 1]))
    (note,) = look_at(str(tmp_path / "n.npz"), form=FORM).notes
    assert note.startswith("values of 16 bits: 4095 and above become white")
    (note,) = look_at(str(tmp_path / "n.npz"), form=FORM, reading=Reading(window="image")).notes
    assert note.startswith("each picture is stretched")
    np.savez(tmp_path / "n.npz", images=deep.astype(np.uint8), labels=np.array([0, 1]))
    assert look_at(str(tmp_path / "n.npz"), form=FORM).notes == ()


def test_images_that_a_table_lists_several_times_are_not_said_to_be_left_out(tmp_path):
    """As in lists of boxes: each is an image, and counts once."""
    for name in ("a", "b"):
        Image.new("L", (8, 8), ord(name)).save(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("file,label\na,cat\na,cat\nb,dog\nb,dog\nb,dog\n")
    said = lines(look_at(str(tmp_path / "t.csv"), form=FORM))
    assert "  listed      2 several times; each counts once" in said
    assert not [line for line in said if "left out" in line]


def test_a_source_without_a_readable_picture_still_has_a_sheet(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    found = look_at(str(tmp_path), form=FORM)
    assert (found.num_images, found.broken, found.tiles) == (0, 1, ())
    assert contact_sheet(found.tiles, title="x", counts={}, unlabelled=0).startswith(b"\x89PNG")


def test_progress_rises_to_one(scans):
    seen: list[float] = []
    look_at(str(scans), form=FORM, progress=lambda share, text: seen.append(share))
    assert seen
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_looking_needs_no_torch(scans):
    code = ("import sys; from semisilo.common.data.preview.preview import look_at; "
            "from semisilo.common.data.formats.pixels import Geometry; "
            f"look_at({str(scans)!r}, form=Geometry(size=8, channels=1, resize='fit')); "
            "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
