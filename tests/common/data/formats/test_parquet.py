"""Parquet files with images in rows, in Hugging Face's layout and plainer ones."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from semisilo.common.data import room  # noqa: E402
from semisilo.common.data.form import ImageForm, Selection  # noqa: E402
from semisilo.common.data.formats import parquet  # noqa: E402
from semisilo.common.data.formats.pixels import Geometry  # noqa: E402
from semisilo.common.data.partly_labelled import (  # noqa: E402
    check_partly_labelled,
    read_partly_labelled,
    survey_partly_labelled,
)
from semisilo.common.data.preview.preview import look_at, sample_of, tied_in_sample  # noqa: E402
from semisilo.common.data.readers import check_labelled, read_images, survey  # noqa: E402
from semisilo.common.errors import BadData  # noqa: E402

FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (8, 8), value).save(stream, "PNG")
    return stream.getvalue()


def hugging_face(path: Path, labels: list[object], *, names: list[str] | None = None, start: int = 0,
                 rows: int = 3) -> str:
    """As `datasets` writes it: struct {bytes, path}, names of classes in the schema's metadata."""
    images = [{"bytes": png(start + index), "path": f"{index}.png"} for index in range(len(labels))]
    features: dict[str, object] = {"image": {"_type": "Image"}}
    if names is not None:
        features["label"] = {"names": names, "_type": "ClassLabel"}
    table = pa.table({"image": images, "label": pa.array(labels)})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)
    return str(path)


def test_names_of_classes_come_from_the_schema_and_follow_the_studys_order(tmp_path):
    source = hugging_face(tmp_path / "a.parquet", [0, 1, 1, 0, 2], names=["cat", "dog", "eel"])
    result = read_images(source, size=8, channels=1)
    assert result.classes == ("cat", "dog", "eel")
    assert result.images.labels_N.tolist() == [0, 1, 1, 0, 2]
    assert result.images.images_NCHW[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert result.images.names == tuple(f"a.parquet[{row}]" for row in range(5))
    assert read_images(source, size=8, channels=1, classes=("eel", "ant", "dog", "cat")).images.labels_N.tolist() == [
        3, 2, 2, 3, 0]
    with pytest.raises(BadData, match="class 'eel' is not a class of the study"):
        read_images(source, size=8, channels=1, classes=("cat", "dog"))
    found = survey(source)
    assert (found.kind, found.num_images, found.class_counts) == ("parquet", 5, {"cat": 2, "dog": 2, "eel": 1})
    assert found.sizes == {(8, 8): 5}


def test_numbers_without_names_count_into_the_studys_classes(tmp_path):
    source = hugging_face(tmp_path / "a.parquet", [1, 0, 1])
    assert read_images(source, size=8, channels=1).classes == ("0", "1")
    assert read_images(source, size=8, channels=1, classes=("x", "y")).images.labels_N.tolist() == [1, 0, 1]
    with pytest.raises(BadData, match="out of range"):
        read_images(source, size=8, channels=1, classes=("x",))


@pytest.mark.parametrize("missing", [None, float("nan"), -1.0])
def test_whole_numbers_may_be_stored_as_fractions(tmp_path, missing):
    """As pandas stores a column of whole numbers in which a cell is empty."""
    source = hugging_face(tmp_path / "a.parquet", [0.0, missing, 1.0, missing])
    result = read_images(source, size=8, channels=1)
    assert (result.classes, result.images.labels_N.tolist()) == (("0", "1"), [0, 1])
    assert survey_partly_labelled(source).unlabelled == 2
    with pytest.raises(BadData, match="neither whole numbers nor texts"):
        read_images(hugging_face(tmp_path / "b.parquet", [0.0, 0.5]), size=8, channels=1)
    columns = {"image": [png(1), png(2), png(3)], "label": ["a", "b", "a"]}
    whose = []
    for name, patients in (("whole", [7, 7, 8]), ("fractions", [7.0, 7.0, None])):
        pq.write_table(pa.table({**columns, "patient_id": patients}), tmp_path / f"{name}.parquet")
        whose.append(read_images(str(tmp_path / f"{name}.parquet"), size=8, channels=1).images.patients)
    assert whose[0][:2] == whose[1][:2]
    assert whose[1][0] == whose[1][1] != whose[1][2] == ""


@pytest.mark.parametrize("missing", [None, -1])
def test_rows_without_a_label_are_unlabelled(tmp_path, missing):
    source = hugging_face(tmp_path / "a.parquet", [0, missing, 1, missing], names=["cat", "dog"])
    found = read_partly_labelled(source, FORM, classes=("dog", "cat"), use_labels=True)
    assert found.labelled.names == ("a.parquet[0]", "a.parquet[2]")
    assert found.labelled.labels_N.tolist() == [1, 0]
    assert found.unlabelled.names == ("a.parquet[1]", "a.parquet[3]")
    assert found.unlabelled.images_NCHW[:, 0, 0, 0].tolist() == [1, 3]
    counts = survey_partly_labelled(source)
    assert (counts.labelled, counts.unlabelled) == (2, 2)
    hub = read_images(source, size=8, channels=1)
    assert len(hub.images) == 2
    assert [(item.name, item.reason) for item in hub.skipped] == [("2 rows", "have no label")]


def test_images_beside_a_column_that_is_no_label_can_be_used_without(tmp_path):
    source = hugging_face(tmp_path / "a.parquet", [0.25, 0.5, 1.0])
    with pytest.raises(BadData, match="neither whole numbers nor texts") as caught:
        read_images(source, size=8, channels=1, labelled=False)
    assert "#label=none" in caught.value.remedy
    assert len(read_images(f"{source}#label=none", size=8, channels=1, labelled=False).images) == 3
    assert survey_partly_labelled(f"{source}#label=none").unlabelled == 3
    with pytest.raises(BadData, match="has no labels"):
        read_images(f"{source}#label=none", size=8, channels=1)
    pq.write_table(pa.table({"image": [png(1), png(2)], "none": ["a", "b"]}), tmp_path / "b.parquet")
    assert read_images(f"{tmp_path / 'b.parquet'}#label=none", size=8, channels=1).classes == ("a", "b")


@pytest.mark.parametrize(("columns", "settings"), [
    ({"labels": [["a"], [], ["a", "b"]]}, ""), ({"a": [1, 0, 1], "b": [0, 0, 1]}, "#label=a,b")])
def test_a_sample_is_taken_of_images_with_several_labels_too(tmp_path, columns, settings):
    """`silo check` compares it with the study's images; of these it compared none, and said nothing."""
    pq.write_table(pa.table({"image": [png(1), png(2), png(3)], **columns}), tmp_path / "a.parquet")
    source, form = f"{tmp_path / 'a.parquet'}{settings}", Geometry(size=8, channels=1, resize="fit")
    assert [int(square[0, 0, 0]) for square in sample_of(source, form=form)] == [1, 2, 3]
    assert tied_in_sample(source, form=form) == ()


def test_plain_binary_columns_and_texts_as_labels_are_understood(tmp_path):
    table = pa.table({"blob": [b"x", b"y", b"z"], "scan": [png(1), png(2), png(3)], "what": ["dog", None, "cat"]})
    pq.write_table(table, tmp_path / "a.parquet")
    source = f"{tmp_path}/a.parquet#image=scan&label=what"
    result = read_images(source, size=8, channels=1)
    assert result.classes == ("cat", "dog")
    assert result.images.labels_N.tolist() == [1, 0]
    assert len(read_images(source, size=8, channels=1, labelled=False).images) == 3
    with pytest.raises(BadData, match="no column 'wat'"):
        read_images(f"{tmp_path}/a.parquet#image=scan&label=wat", size=8, channels=1)
    with pytest.raises(BadData, match="no column 'what' with the bytes"):
        read_images(f"{tmp_path}/a.parquet#image=what", size=8, channels=1)


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def test_a_class_has_one_spelling_in_texts_names_and_lists(tmp_path):
    def written(name: str, labels: list[object]) -> str:
        pq.write_table(pa.table({"image": [png(index) for index in range(len(labels))], "label": labels}),
                       tmp_path / name)
        return str(tmp_path / name)

    texts = written("a.parquet", [f" {DECOMPOSED}", COMPOSED, "tea ", "  "])
    found = read_partly_labelled(texts, FORM, classes=("tea", COMPOSED), use_labels=True)
    assert found.labelled.labels_N.tolist() == [1, 1, 0]
    assert len(found.unlabelled) == 1, "a text of spaces is no class"
    named = hugging_face(tmp_path / "b.parquet", [0, 1], names=[DECOMPOSED, "tea"])
    assert read_images(named, size=8, channels=1).classes == (COMPOSED, "tea")
    lists = written("c.parquet", [[DECOMPOSED], [COMPOSED, "tea"]])
    found = read_images(lists, size=8, channels=1, multi_label=True)
    assert (found.classes, found.images.labels_N.tolist()) == ((COMPOSED, "tea"), [[1, 0], [1, 1]])


def test_a_column_is_found_in_either_spelling(tmp_path):
    for written, asked in ((DECOMPOSED, COMPOSED), (COMPOSED, DECOMPOSED)):
        source = tmp_path / "a.parquet"
        pq.write_table(pa.table({f"{written} image": [png(1), png(2)], f"{written} label": ["a", "b"],
                                 f"{written} patient": [7, 8], written: [0, 1], "tea": [1, 0]}), source)
        columns = f"image={asked} image&patient={asked} patient&label="
        found = read_images(f"{source}#{columns}{asked} label", size=8, channels=1)
        assert (found.classes, found.images.labels_N.tolist()) == (("a", "b"), [0, 1])
        assert len(set(found.images.patients)) == 2
        found = read_images(f"{source}#{columns}{asked},tea", size=8, channels=1, multi_label=True)
        assert (found.classes, found.images.labels_N.tolist()) == ((COMPOSED, "tea"), [[0, 1], [1, 0]])


@pytest.mark.parametrize(("labels", "names", "multi_label"), [
    (["cat ", DECOMPOSED], None, False), ([0, 1], ["cat ", DECOMPOSED], False),
    ([["cat"], [DECOMPOSED]], None, True), ([[0], [1]], ["cat ", DECOMPOSED], True)])
def test_a_study_keeps_the_spelling_with_which_it_was_begun(labels, names, multi_label, tmp_path):
    """Earlier versions took the names of classes as they were written."""
    begun = (DECOMPOSED, "cat ")
    if names is None:
        source = str(tmp_path / "a.parquet")
        pq.write_table(pa.table({"image": [png(1), png(2)], "label": labels}), source)
    else:
        source = hugging_face(tmp_path / "a.parquet", labels, names=names)
    expected = [[0, 1], [1, 0]] if multi_label else [1, 0]
    found = read_images(source, size=8, channels=1, classes=begun, multi_label=multi_label)
    assert (found.classes, found.images.labels_N.tolist()) == (begun, expected)
    found = read_partly_labelled(source, FORM, classes=begun, use_labels=True, multi_label=multi_label)
    assert found.labelled.labels_N.tolist() == expected
    check_partly_labelled(source, classes=begun, multi_label=multi_label)
    check_labelled(source, classes=begun, multi_label=multi_label)
    assert not look_at(source, form=Geometry(size=8, channels=1, resize="fit"), classes=begun,
                       multi_label=multi_label).misfits


def test_a_folder_of_files_is_one_source_with_splits(tmp_path):
    for name, start in (("train-00000-of-00002", 0), ("train-00001-of-00002", 10), ("test-00000-of-00001", 20)):
        hugging_face(tmp_path / f"set/data/{name}.parquet", [0, 1], names=["cat", "dog"], start=start)
    train, test = (read_images(f"{tmp_path}/set{split}", size=8, channels=1).images for split in ("", "#test"))
    assert train.images_NCHW[:, 0, 0, 0].tolist() == [0, 1, 10, 11], "the train part by default, in byte order"
    assert test.images_NCHW[:, 0, 0, 0].tolist() == [20, 21]
    with pytest.raises(BadData, match="no split 'tset'"):
        read_images(f"{tmp_path}/set#tset", size=8, channels=1)


def test_a_column_says_whose_image_it_is(tmp_path):
    path = tmp_path / "scans.parquet"
    pq.write_table(pa.table({"image": [png(1), png(2), png(3), png(4)], "label": ["a", "b", "a", None],
                             "Patient ID": [7, 8, 7, None], "visit": [1, 1, 2, 2]}), path)
    a, b, c = read_images(str(path), size=8, channels=1).images.patients
    assert a == c
    assert len({a, b, ""}) == 3
    assert read_images(str(path), size=8, channels=1, labelled=False).images.patients == (a, b, a, "")
    assert read_images(str(path), size=8, channels=1, selection=Selection(patient="none")).images.patients == ()
    assert read_images(str(path), size=8, channels=1, selection=Selection(patient="name")).images.patients == ()
    by_visit = read_images(f"{path}#patient=visit", size=8, channels=1).images.patients
    assert by_visit[0] == by_visit[1] != by_visit[2]
    with pytest.raises(BadData, match="no column 'ward'"):
        read_images(f"{path}#patient=ward", size=8, channels=1)
    assert look_at(str(path), form=Geometry(size=8, channels=1, resize="fit")).patients == 0, "of one it is not known"


def test_images_beside_a_parquet_file_are_what_counts(tmp_path):
    hugging_face(tmp_path / "set/about.parquet", [0, 1])
    (tmp_path / "set/cat").mkdir()
    (tmp_path / "set/cat/a.png").write_bytes(png(7))
    result = read_images(f"{tmp_path}/set", size=8, channels=1)
    assert result.images.names == ("cat/a.png",)
    assert [item.name for item in result.skipped] == ["about.parquet"]
    assert len(read_images(f"{tmp_path}/set/about.parquet", size=8, channels=1).images) == 2


def test_broken_rows_follow_on_error(tmp_path):
    images = [{"bytes": png(1), "path": ""}, {"bytes": b"hello", "path": ""}, {"bytes": None, "path": "x.png"}, None]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(images, kind), "label": [0, 0, 1, 1]}), tmp_path / "a.parquet")
    with pytest.raises(BadData, match=r"a\.parquet\[1\] cannot be read: it is not an image"):
        read_images(f"{tmp_path}/a.parquet", size=8, channels=1)
    result = read_images(f"{tmp_path}/a.parquet", size=8, channels=1, on_error="skip")
    assert len(result.images) == 1
    assert [(item.name, item.reason) for item in result.skipped] == [
        ("a.parquet[1]", "cannot be read: it is not an image, or damaged at its start"),
        ("a.parquet[2]", "cannot be read: it is empty"), ("a.parquet[3]", "cannot be read: it is empty")]


@pytest.mark.slow
def test_one_row_group_at_a_time_is_in_memory(tmp_path):
    """10 groups of 8 MB of noise: what Arrow holds at most is a few groups, never the 80 MB."""
    noise = np.random.default_rng(0)
    stream = io.BytesIO()
    Image.new("L", (8, 8)).save(stream, "BMP")
    schema = pa.schema([("image", pa.binary())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, compression="none") as writer:
        for _ in range(10):
            writer.write_table(pa.table({"image": [stream.getvalue() + noise.bytes(2**20) for _ in range(8)]}, schema))
    rows = parquet.open_rows([tmp_path / "a.parquet"], "", source="a")
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for _ in parquet.files_of(rows):
        most, seen = max(most, pa.total_allocated_bytes() - before), seen + 1
    assert seen == 80
    assert most < 50 * 2**20, most


def test_a_row_group_larger_than_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    source = hugging_face(tmp_path / "a.parquet", [0, 1, 0])
    monkeypatch.setattr(room, "free_bytes", lambda: 400)
    with pytest.raises(BadData, match=r"a row group of a\.parquet need .* of memory"):
        read_images(source, size=8, channels=1)


def one_value(path: Path, column: str, value: str | bytes, rows: int, *, dictionary: bool = True) -> Path:
    """A file of a few hundred bytes, which says one value once and means it of every row."""
    named = {"image": pa.array([png(0)] * rows), column: pa.array([value] * rows)}
    pq.write_table(pa.table(named), path, compression="zstd", dictionary_pagesize_limit=2**30, store_schema=False,
                   **({} if dictionary else {"use_dictionary": False, "column_encoding": {column: "DELTA_BYTE_ARRAY"}}))
    return path


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("column", ["label", "patient_id"])
def test_a_label_is_short_and_a_long_one_is_not_multiplied_by_the_rows(tmp_path, monkeypatch, column, dictionary):
    """2000 rows of 32 KiB are 64 MB and a file of some hundred bytes; what is taken at once is 1 MB."""
    source = one_value(tmp_path / "a.parquet", column, "x" * 2**15, 2000, dictionary=dictionary)
    assert source.stat().st_size < 20_000
    monkeypatch.setattr(parquet, "_LARGEST_BATCH", 2**20)
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(BadData, match=rf"a\.parquet has an entry of more than 4096 bytes in its column '{column}'"):
            parquet.open_rows((source,), "", source="a.parquet")
    finally:
        pa.set_memory_pool(usual)
    assert 2**15 < pool.max_memory() < 2**23


def test_labels_of_many_rows_are_read_in_pieces_and_are_what_they_are(tmp_path, monkeypatch):
    """Also where a piece is one row, and where Arrow has made a dictionary of the column."""
    texts = [("a" * 3000, "b", None)[row % 3] for row in range(50)]
    for batch in (1, 2**28):
        monkeypatch.setattr(parquet, "_LARGEST_BATCH", batch)
        for labels in (pa.array(texts), pa.array(texts).dictionary_encode(), pa.array(texts, pa.large_string()),
                       pa.array([None if text is None else [text] for text in texts]),
                       pa.array([None if text is None else [text] for text in texts], pa.list_(pa.string(), 1))):
            try:
                pq.write_table(pa.table({"image": [png(0)] * 50, "label": labels}), tmp_path / "a.parquet",
                               row_group_size=20)
            except pa.ArrowNotImplementedError:  # an older Arrow writes no lists of a fixed length with nulls
                continue
            found = parquet.open_rows((tmp_path / "a.parquet",), "", source="a", multi_label=None)
            assert found.classes == ("a" * 3000, "b")
            if found.labels_N is not None and found.labels_N.ndim == 1:
                assert found.labels_N.tolist() == [(0, 1, -1)[row % 3] for row in range(50)]
            else:
                assert found.labels_N is not None
                assert found.labels_N.tolist() == [([1, 0], [0, 1], [-1, -1])[row % 3] for row in range(50)]


def test_a_column_of_many_short_names_is_no_long_entry(tmp_path, monkeypatch):
    """A dictionary that Arrow has made comes with every piece, all of it."""
    names = [f"patient {number:05d}" for number in range(2000)]
    pq.write_table(pa.table({"image": [png(0)] * 2000, "patient": pa.array(names).dictionary_encode()}),
                   tmp_path / "a.parquet")
    monkeypatch.setattr(parquet, "_LARGEST_BATCH", 1)
    assert len(set(parquet.open_rows((tmp_path / "a.parquet",), "", source="a").patients)) == 2000


@pytest.mark.parametrize("multi_label", [False, True])
def test_texts_of_many_rows_are_in_memory_once(tmp_path, monkeypatch, multi_label):
    monkeypatch.setattr(parquet, "_BATCH_OF_LABELS", 100)
    source = one_value(tmp_path / "a.parquet", "label", "an é " + "x" * 3000, 3000)  # a new text wherever it is changed
    tracemalloc.start()
    try:
        found = parquet.open_rows((source,), "", source="a", multi_label=multi_label)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.labels_N is not None
    assert found.labels_N.tolist() == [[1] if multi_label else 0] * 3000
    assert peak < 3_000_000, peak


def test_lists_of_labels_for_which_there_is_no_memory_are_refused(tmp_path, monkeypatch):
    """A list of 1000 numbers is a few bytes in each row; and rows times classes are more than both."""
    pq.write_table(pa.table({"image": [png(0)] * 100, "label": [list(range(1000))] * 100}), tmp_path / "a.parquet")
    for free, said in ((2**19, "the labels of a.parquet need"), (100 * 1000 * 8 - 1, "labels of 1000 classes need")):
        monkeypatch.setattr(room, "free_bytes", lambda free=free: free)
        monkeypatch.setattr(parquet, "_BATCH_OF_LABELS", 4 if said.startswith("labels") else 100)
        with pytest.raises(BadData, match=said):
            parquet.open_rows((tmp_path / "a.parquet",), "", source="a", multi_label=True)


def test_fewer_images_are_taken_at_once_where_each_may_be_large(tmp_path, monkeypatch):
    """16 rows of one value of 1 MiB: as many as fit into what is taken at once, and one where none does."""
    source = one_value(tmp_path / "a.parquet", "image", png(7) + bytes(2**20), 16)
    assert source.stat().st_size < 5000
    rows = parquet.open_rows((source,), "", source="a")
    taken: list[int] = []
    true = parquet._batches

    def watched(*given):
        for batch in true(*given):
            taken.append(len(batch))
            yield batch

    monkeypatch.setattr(parquet, "_batches", watched)
    for most, expected in ((2**28, [16]), (5 * 2**20, [4] * 4), (1, [1] * 16)):
        monkeypatch.setattr(parquet, "_LARGEST_BATCH", most)
        taken.clear()
        assert [file.content for file in parquet.files_of(rows)] == [png(7) + bytes(2**20)] * 16
        assert taken == expected


@pytest.mark.parametrize("content", [b"", b"hello", b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet_is_said_so(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(BadData, match=r"a\.parquet cannot be read as Parquet") as caught:
        read_images(f"{tmp_path}/a.parquet", size=8, channels=1)
    assert "\n" not in caught.value.line()


def test_files_of_different_columns_are_not_one_source(tmp_path):
    hugging_face(tmp_path / "set/a.parquet", [0, 1])
    pq.write_table(pa.table({"image": [png(1)]}), tmp_path / "set/b.parquet")
    with pytest.raises(BadData, match=r"b\.parquet has other columns than a\.parquet"):
        read_images(f"{tmp_path}/set", size=8, channels=1)


def test_without_pyarrow_one_line_names_the_extra(tmp_path, monkeypatch):
    source = hugging_face(tmp_path / "a.parquet", [0, 1])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BadData, match="pyarrow") as caught:
        read_images(source, size=8, channels=1)
    assert "pip install 'semisilo[parquet]'" in caught.value.line()
