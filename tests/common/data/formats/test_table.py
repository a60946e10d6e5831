"""Tables that say which image shows what, as hospitals and challenges write them."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisilo.common.data import room
from semisilo.common.data.form import ImageForm, Selection
from semisilo.common.data.formats import table as tables
from semisilo.common.data.formats.folder import ImageFile, Listing
from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.partly_labelled import read_partly_labelled, survey_partly_labelled
from semisilo.common.data.preview.preview import look_at
from semisilo.common.data.readers import read_images, survey
from semisilo.common.errors import BadData
from tests.each_of import each_of


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    for number, name in enumerate(("a.png", "b.png", "part_1/c.jpg", "part_2/d.png"), 1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), 10 * number).save(tmp_path / name, quality=100)
    return tmp_path


def table(folder: Path, text: str, name: str = "t.csv", encoding: str = "utf-8") -> str:
    (folder / name).write_bytes(text.encode(encoding))
    return str(folder / name)


def read(source: str, **more: object) -> dict[str, int]:
    images = read_images(source, size=8, channels=1, **more).images
    return dict(zip(images.names, images.labels_N.tolist(), strict=True))


@pytest.mark.parametrize("text", [
    "file,label\na.png,cat\nb.png,dog\npart_1/c.jpg,cat\n",
    "\ufefffilename;diagnosis\r\na.png;cat\r\nb.png;dog\r\npart_1/c.jpg;cat\r\n",
    "lesion_id,image_id,dx,age\n1,a,cat,30\n2,b,dog,40\n3,c,cat,50\n",
    "Image Index,Finding Labels,Patient Age\na.png,cat,1\nb.png,dog,2\nc.jpg,cat,3\n",
    "Path|Class\nC:\\study\\a.png|cat\n./b.png|dog\n/data/part_1/c.jpg|cat\n",
    "image,cat,dog\na,1.0,0.0\nb,0.0,1.0\nc,1.0,0.0\n",
    "image,cat,dog\na,True,False\nb,false,TRUE\nc,1,0\n",
    'file,label\n"a.png","cat"\n\nb.png,dog\n part_1/c.jpg , cat \n',
])
def test_tables_of_many_houses_say_the_same(scans, text):
    source = table(scans, text)
    assert read(source) == {"a.png": 0, "b.png": 1, "part_1/c.jpg": 0}
    assert read_images(source, size=8, channels=1).classes == ("cat", "dog")
    assert read(source, classes=("dog", "eel", "cat")) == {"a.png": 2, "b.png": 0, "part_1/c.jpg": 2}
    found = survey(source)
    assert (found.kind, found.num_images, found.class_counts) == ("table", 3, {"cat": 2, "dog": 1})


def test_tab_separated_files_and_columns_of_any_name_are_read(scans):
    source = table(scans, "who\twhere\twhat\nx\ta.png\tcat\ny\tb.png\tdog\n", "t.tsv")
    with pytest.raises(BadData, match="which column holds the file names") as caught:
        read(source)
    assert "who, where, what" in caught.value.text
    assert "#file=COLUMN" in caught.value.remedy
    assert read(f"{source}#file=where&label=what") == {"a.png": 0, "b.png": 1}
    with pytest.raises(BadData, match="no column 'wat'"):
        read(f"{source}#file=where&label=wat")
    with pytest.raises(BadData, match="'lable=what' is not understood"):
        read(f"{source}#lable=what")


def test_a_folder_and_a_split_can_be_named(scans):
    source = table(scans, "file,label,split\nc,cat,train\nd,dog,test\nd,cat,train\n")
    assert read(f"{source}#split=train&folder=.") == {"part_1/c.jpg": 0, "part_2/d.png": 0}
    with pytest.raises(BadData, match="says 'val'"):
        read(f"{source}#split=val")
    inner = table(scans, "file,label\nd.png,dog\n")
    assert read(f"{inner}#folder=part_2") == {"d.png": 0}
    with pytest.raises(BadData, match=re.escape(f"names 1 image, none of them is in {scans / 'part_1'}.")):
        read(f"{inner}#folder=part_1")
    with pytest.raises(BadData, match="no folder"):
        read(f"{inner}#folder=part_9")


def test_numbers_count_into_the_studys_classes(scans):
    source = table(scans, "file,target\na,0\nb,1.0\nc,0\n")
    assert read_images(source, size=8, channels=1).classes == ("0", "1")
    assert read(source, classes=("benign", "malignant")) == {"a.png": 0, "b.png": 1, "part_1/c.jpg": 0}
    named = table(scans, "file,target\na,7\nb,3\n")
    assert read(named, classes=("3", "7")) == {"a.png": 1, "b.png": 0}, "these are names"
    with pytest.raises(BadData, match="not a class of the study"):
        read(table(scans, "file,target\na,2\nb,0\n"), classes=("benign", "malignant"))


def test_numbers_are_names_where_the_studys_classes_are_numbers(scans):
    """pandas writes 2.0 where a label is missing: counted from 0 it would be the class behind the one that is meant."""
    classes = ("1", "2", "3")
    for labels in ("1.0 3.0 2.0", "1 3 2", "1 3.0 2"):
        one, three, two = labels.split()
        source = table(scans, f"file,target\na,{one}\nb,{three}\nc,{two}\nd,\n")
        assert read(source, classes=classes) == {"a.png": 0, "b.png": 2, "part_1/c.jpg": 1}
    assert read(source, classes=("3", "2", "1")) == {"a.png": 2, "b.png": 0, "part_1/c.jpg": 1}, "in the study's order"
    with pytest.raises(BadData, match="class '0' is not a class of the study"):
        read(table(scans, "file,target\na,0\nb,1\nc,2\n"), classes=classes)
    assert read(table(scans, "file,target\na,0\nb,1.0\nc,1\n"), classes=("none", "grade 1")) == {
        "a.png": 0, "b.png": 1, "part_1/c.jpg": 1}


def test_a_negative_number_among_numbers_is_no_class(scans):
    source = table(scans, "file,target\na,0\nb,-1\nc,1\nd,-1.0\n")
    result = read_images(source, size=8, channels=1)
    assert (result.classes, result.images.names) == (("0", "1"), ("a.png", "part_1/c.jpg"))
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    found = read_partly_labelled(source, form, classes=("benign", "malignant"), use_labels=True)
    assert (found.labelled.labels_N.tolist(), found.unlabelled.names) == ([0, 1], ("b.png", "part_2/d.png"))
    assert read(source, classes=("-1", "0", "1", "-1.0"))["b.png"] == 0, "a study that has such a class keeps it"
    assert read_images(table(scans, "file,label\na,-1\nb,cat\n"), size=8, channels=1).classes == ("-1", "cat")


def test_rows_without_a_label_are_unlabelled(scans):
    source = table(scans, "file,label\na,cat\nb,\nc,NaN\nd,dog\n")
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    found = read_partly_labelled(source, form, classes=("cat", "dog"), use_labels=True)
    assert found.labelled.names == ("a.png", "part_2/d.png")
    assert found.labelled.labels_N.tolist() == [0, 1]
    assert found.unlabelled.names == ("b.png", "part_1/c.jpg")
    assert found.unlabelled.labels_N is None
    counts = survey_partly_labelled(source)
    assert (counts.labelled, counts.unlabelled) == (2, 2)
    hub = read_images(source, size=8, channels=1)
    assert [(item.name, item.reason) for item in hub.skipped] == [
        ("b.png", "has no label"), ("part_1/c.jpg", "has no label")]
    everything = read_partly_labelled(source, form, classes=("cat", "dog"), use_labels=False)
    assert len(everything.unlabelled) == 4


def test_a_table_without_labels_is_a_list_of_images(scans):
    source = table(scans, "file\nb.png\na.png\n")
    assert read_images(source, size=8, channels=1, labelled=False).images.names == ("a.png", "b.png"), "by path"
    with pytest.raises(BadData, match="no label"):
        read(source)


@pytest.mark.parametrize(("rows", "settings", "said"), [
    ("a,cat\na,dog\nb,dog\nb,cat\n", "", "has 4 rows, and none can be used; the first: a.png (listed 2 times, as cat"),
    (",cat\nzzz,dog\n", "", "has 2 rows, and none can be used; the first: row 2 (names no file)"),
    ("a,cat|dog\nb,a|b\n", "#several=skip", "has 2 rows, and none can be used; the first: row 2 (has several labels)"),
])
def test_rows_that_contradict_each_other_are_not_said_to_name_missing_files(scans, rows, settings, said):
    with pytest.raises(BadData, match=re.escape(said)):
        read(table(scans, f"file,label\n{rows}") + settings)


def test_the_folder_of_a_table_without_images_is_named_from_the_root(scans, monkeypatch):
    table(scans, "file,label\nzzz,dog\n")
    monkeypatch.chdir(scans)
    with pytest.raises(BadData, match=re.escape(f"t.csv: names 1 image, none of them is in {scans}.")):
        read("t.csv")


def test_missing_files_and_files_listed_twice_follow_on_error(scans):
    source = table(scans, "file,label\na,cat\nzzz.png,cat\nb,dog\nb,dog\nc,cat\nc,dog\n,cat\n")
    with pytest.raises(BadData) as caught:
        read(source)
    assert caught.value.text.endswith(": part_1/c.jpg: listed 2 times, as cat and dog.")
    result = read_images(source, size=8, channels=1, on_error="skip")
    assert result.images.names == ("a.png", "b.png")
    assert [(item.name, item.reason, item.broken) for item in result.skipped] == [
        ("b.png", "listed 2 times; counted once", False),
        ("part_1/c.jpg", "listed 2 times, as cat and dog", True),
        ("row 8", "names no file", True),
        ("zzz.png", "named in the table, but there is no such image", True)]
    with pytest.raises(BadData, match="3 files cannot be used"):
        read_images(source, size=8, channels=1, on_error="report")


def test_a_name_that_fits_several_images_is_never_guessed(scans):
    Image.new("L", (8, 8)).save(scans / "part_2/c.jpg")
    source = table(scans, "file,label\na,cat\nc.jpg,dog\n")
    result = read_images(source, size=8, channels=1, on_error="skip")
    assert [(item.name, item.reason) for item in result.skipped] == [("c.jpg", "the name fits 2 images in the folder")]
    assert read(table(scans, "file,label\na,cat\npart_2/c.jpg,dog\n")) == {"a.png": 0, "part_2/c.jpg": 1}
    assert read(table(scans, "file,label\na,cat\n/x/part_2/c.jpg,dog\n")) == {"a.png": 0, "part_2/c.jpg": 1}


@pytest.mark.parametrize(("written", "found"), [
    ("p1/1.png", "p1/1.png"), ("/old/disk/p2/1.png", "p2/1.png"), (r"D:\scans\p2\1.png", "p2/1.png"),
    ("p2/1", "p2/1.png"),
    ("p1/in/1.png", "p1/in/1.png"), ("in/1.png", "p1/in/1.png"), ("in/1", "p1/in/1.png"),
    ("/x/p1/in/1.png", "p1/in/1.png"), ("1", None), ("1.png", None), ("/x/1.png", None), ("p3/1.png", None)])
def test_of_files_of_one_name_that_one_is_meant_whose_path_is_written(tmp_path, written, found):
    for name in ("p1/1.png", "p1/in/1.png", "p2/1.png", "p.2/1", "1.x/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        Image.new("L", (8, 8)).save(tmp_path / name, "PNG")
    source = table(tmp_path, f"file,label\n{written},cat\n1.x/2,dog\n")
    names = read_images(source, size=8, channels=1, on_error="skip").images.names
    assert names == ("1.x/2.png", *([found] if found else []))


def test_many_folders_with_files_of_one_name_are_looked_up(tmp_path):
    """Every patient's folder has its 1.png, and the table has paths of another machine."""
    files = [ImageFile(tmp_path / f"P{number}/1.png", f"P{number}/1.png", f"P{number}") for number in range(5000)]
    by_name, began = tables._FilesByName(Listing(tuple(files), (), ())), time.process_time()
    assert [by_name.find(f"/other/disk/{file.name}") for file in files] == files
    assert time.process_time() - began < 20, "by comparing each with all it is over a minute"


def test_no_table_leads_out_of_its_folder(scans, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret.png"
    Image.new("L", (8, 8), 99).save(outside)
    source = table(scans, f"file,label\na,cat\n{outside},dog\n../{outside.parent.name}/secret.png,dog\n")
    result = read_images(source, size=8, channels=1, on_error="skip")
    assert result.images.names == ("a.png",)
    assert len(result.skipped) == 2


@pytest.mark.parametrize(("text", "said"), [
    ("", "no rows"), ("file,label\n", "no rows"), ("file,label\na,\0x\n", "not a table of text"),
    ("image,cat,dog\na,1,1\nb,0,1\n", "1 of 2 rows have several labels"),
    ("file,colour,shape\na,red,round\n", "holds the labels"),
    ('file,label\n"a,cat\n', "not a table"), (f"file,label\na,{'x' * 100_000}\n", "not a table")])
def test_what_is_no_table_is_said_so(scans, text, said):
    with pytest.raises(BadData, match=said) as caught:
        read(table(scans, text))
    assert caught.value.remedy
    assert "\n" not in caught.value.line()


def test_spreadsheets_of_western_europe_are_read(scans):
    (scans / "ü.png").write_bytes((scans / "a.png").read_bytes())
    assert read(table(scans, "file;label\nü.png;gutartig\na;bösartig\n", encoding="cp1252")) == {"a.png": 0, "ü.png": 1}


def test_files_of_several_pictures_give_all_of_them_the_rows_label(scans):
    from semisilo.common.data.form import Reading

    pages = [Image.new("L", (8, 8), value) for value in (1, 2, 3)]
    pages[0].save(scans / "m.tif", save_all=True, append_images=pages[1:])
    source = table(scans, "file,label\nm,dog\na,cat\n")
    images = read_images(source, size=8, channels=1, reading=Reading(frames="all")).images
    assert images.names == ("a.png", "m.tif[0]", "m.tif[1]", "m.tif[2]")
    assert images.labels_N.tolist() == [0, 1, 1, 1]
    assert np.array_equal(images.images_NCHW[1:, 0, 0, 0].numpy(), [1, 2, 3])


# What hospitals have: other columns, several labels, patients ---------------------------------------------------------


FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))


def test_a_table_whose_other_columns_are_no_labels_is_read_where_labels_do_not_count(scans):
    source = table(scans, "file,age,ward\na.png,71,north\nb.png,34,south\n")
    found = read_partly_labelled(source, FORM, classes=("cat", "dog"), use_labels=False)
    assert found.labelled is None
    assert len(found.unlabelled) == 2
    counts = survey_partly_labelled(source)
    assert (counts.labelled, counts.unlabelled) == (0, 2)
    with pytest.raises(BadData, match=r"which column holds the labels\? Its columns: file, age, ward") as caught:
        read_partly_labelled(source, FORM, classes=("cat", "dog"), use_labels=True)
    assert "#label=none" in caught.value.remedy
    found = read_partly_labelled(f"{source}#label=none", FORM, classes=("cat", "dog"), use_labels=True)
    assert found.labelled is None
    assert len(found.unlabelled) == 2
    (question,) = look_at(source, form=Geometry(size=8, channels=1, resize="fit"), at_silo=True).questions
    assert "which column holds the labels" in question


def test_rows_are_numbered_as_a_spreadsheet_shows_them_also_after_empty_ones_and_of_a_split(scans):
    source = table(scans, "\nfile,label,split\n\na,cat,train\n,,\nb,cat,test\n,dog,train\n")
    skipped = read_images(f"{source}#split=train", size=8, channels=1, on_error="skip").skipped
    assert [item.name for item in skipped] == ["row 7"]
    source = table(scans, "file,cat,dog\n\na,1,0\n\nb,2,0\n")
    with pytest.raises(BadData, match="row 5 has neither 0 nor 1 in the column 'cat'"):
        read_images(f"{source}#label=cat,dog", size=8, channels=1)
    source = table(scans, "file,label\n\na.png,cat|dog\nb.png,cat\nc.jpg,dog\n")
    with pytest.raises(BadData, match="row 3 for example"):
        read(source)
    skipped = read_images(f"{source}#several=skip", size=8, channels=1).skipped
    assert [item.name for item in skipped] == ["row 3"]


@pytest.mark.parametrize("text", [
    "Image Index,Finding Labels\na.png,Cardiomegaly|Emphysema\nb.png,Emphysema\nc.jpg,Cardiomegaly\n",
    "file,label\na.png,Emphysema; Cardiomegaly\nb.png,Emphysema\nc.jpg,Cardiomegaly\n",
    "file,Cardiomegaly,Emphysema\na.png,1,1\nb.png,0,1\nc.jpg,1,0\n"])
def test_a_cell_of_several_labels_is_no_class(scans, text):
    source = table(scans, text)
    with pytest.raises(BadData, match=r"1 of 3 rows have several labels, row 2 for example .*one label for each image"
                       ) as caught:
        read(source)
    assert "#several=skip" in caught.value.remedy
    assert len(read_images(source, size=8, channels=1, labelled=False).images) == 3, "labels do not count"
    assert read(f"{source}#several=skip") == {"b.png": 1, "part_1/c.jpg": 0}
    assert read_images(f"{source}#several=skip", size=8, channels=1).classes == ("Cardiomegaly", "Emphysema")
    apart = read_partly_labelled(f"{source}#several=unlabelled", FORM, classes=("Cardiomegaly", "Emphysema"),
                                 use_labels=True)
    assert (apart.labelled.names, apart.unlabelled.names) == (("b.png", "part_1/c.jpg"), ("a.png",))
    with pytest.raises(BadData, match="several=all"):
        read(f"{source}#several=all")


def test_a_name_with_a_comma_is_one_class_unless_its_parts_are_classes_of_their_own(scans):
    source = table(scans, 'file,label\na.png,"pneumonia, viral"\nb.png,healthy\nc.jpg,"pneumonia, viral"\n')
    assert read_images(source, size=8, channels=1).classes == ("healthy", "pneumonia, viral")


def test_a_column_of_patients_tells_them_apart(scans):
    for column, more in (("patient_id", ""), ("Patient ID", ""), ("who", "#patient=who")):
        source = table(scans, f"file,label,{column}\na.png,cat,7\nb.png,dog,8\nc.jpg,dog,7\nd.png,cat,\n")
        images = read_images(f"{source}{more}", size=8, channels=1).images
        of = dict(zip(images.names, images.patients, strict=True))
        assert of["a.png"] == of["part_1/c.jpg"] not in ("", "7")
        assert of["b.png"] not in ("", of["a.png"])
        assert of["part_2/d.png"] == ""
    assert read_images(f"{source}#patient=who", size=8, channels=1, selection=Selection(patient="none")
                       ).images.patients == ()


@each_of("text", [",image,cat,dog\n0,a,1,0\n1,b,0,1\n2,c,1,0\n", "image,cat,,dog\na,1,0,0\nb,0,1,1\nc,1,1,0\n"])
def test_a_column_without_a_name_is_no_class(scans, text):
    """pandas numbers rows in one."""
    assert read_images(table(scans, text), size=8, channels=1).classes == ("cat", "dog")
    assert read(str(scans / "t.csv")) == {"a.png": 0, "b.png": 1, "part_1/c.jpg": 0}


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("settings", ["", "#label=cat,dog,cat"])
def test_two_columns_of_one_name_are_not_taken_for_two_classes(scans, settings, multi_label):
    source = table(scans, "image,cat,dog,cat\na,1,0,0\nb,0,1,0\nc,0,0,1\n") + settings
    with pytest.raises(BadData, match="several columns of labels are called 'cat'"):
        read_images(source, size=8, channels=1, multi_label=multi_label)
    assert len(read_images(source, size=8, channels=1, labelled=False).images) == 3


def test_a_patient_that_a_later_row_of_an_image_names_is_its_patient(scans):
    rows = "a.png,cat,\na.png,cat,7\nb.png,dog,7\n"
    mine, other = read_images(table(scans, f"file,label,patient\n{rows}"), size=8, channels=1).images.patients
    assert mine == other != ""


def test_a_patient_is_one_also_where_another_tables_numbers_have_a_point(scans):
    """pandas writes 7.0 where it does not know the patient of another row."""
    whole, fraction = (
        read_images(table(scans, f"file,label,patient\na.png,cat,{seven}\nb.png,dog,{other}\n"), size=8, channels=1
                    ).images.patients[0] for seven, other in (("7", "8"), ("7.0", "")))
    assert whole == fraction != ""


@pytest.mark.parametrize("text", [
    "file,label\n" + "a,\n" * 4000, "file,label\r\n" + "a,b\r\n" * 4000, "file,label\r" + "a,b\r" * 4000,
    "file,label,patient_id\n" + "".join(f"a,c,p{row}\n" for row in range(4000)),
    "file,label,report\n" + f"a,b,{'x' * 1000}\n" * 300, f"file,label\na,\U0001f600{'x' * 1000}\n" * 300,
    "file," + ",".join(f"c{column}" for column in range(50)) + "\n" + f"a{',0.0' * 50}\n" * 300],
    ids=["shortest", "CRLF", "CR", "patients", "reports", "wide letters", "columns"])
def test_the_memory_of_a_table_is_asked_for_before_its_rows_are_made(scans, monkeypatch, text):
    """A row of three bytes takes 300: what is asked for is enough, and not far too much."""
    source, asked = scans / "t.csv", []
    source.write_bytes(text.encode())
    monkeypatch.setattr(tables, "check_room", lambda needed, **_: asked.append(needed))
    tables.list_table(source, "", source="t.csv")  # what is imported and cached does not count
    tracemalloc.start()
    try:
        tables.list_table(source, "", source="t.csv")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert asked == [asked[0]] * 2
    assert peak < asked[0] < 4 * peak, (peak, asked)


def test_a_table_whose_rows_do_not_fit_into_memory_is_refused(scans, monkeypatch):
    source = table(scans, "file,label\n" + "a.png,cat\n" * 1000)
    monkeypatch.setattr(tables.csv, "reader", lambda *_, **__: pytest.fail("its rows were made"))
    monkeypatch.setattr(room, "free_bytes", lambda: 500_000)
    with pytest.raises(BadData, match=r"t\.csv: its rows need .* of memory") as caught:
        survey(source)
    assert caught.value.remedy == "Split the table, or use a machine with more memory."


def test_millions_of_rows_may_be_a_table():
    """A path as long as those of MIMIC-CXR, and a label, three million times."""
    row = "files/p10/p10000032/s50414267.dcm,Edema\n"
    assert 3_000_000 * len(row) < tables._LARGEST
