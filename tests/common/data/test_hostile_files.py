"""Bytes of any kind: a reader gives pictures, or says why not in one line; never another error, never much memory."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from semisilo.common.data.form import Reading
from semisilo.common.data.formats.codestream import stream_size
from semisilo.common.data.readers import read_images, survey
from semisilo.common.errors import BadData

READINGS = (Reading(), Reading(frames="all", slices="all"), Reading(window="image", frames=2, slices=3),
            Reading(window=(40, 400), axis="sagittal", frames="middle"))


def _dicom() -> list[bytes]:
    pytest.importorskip("pydicom")
    from pydicom.data.data_manager import DATA_ROOT

    folder = Path(DATA_ROOT) / "test_files"
    return [(folder / name).read_bytes() for name in (
        "CT_small.dcm", "MR_small.dcm", "MR_small_RLE.dcm", "MR_small_jp2klossless.dcm",
        "MR_small_jpeg_ls_lossless.dcm", "SC_rgb_jpeg_dcmtk.dcm", "SC_rgb_rle_2frame.dcm", "liver_1frame.dcm")]


def _nifti() -> list[bytes]:
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.eye(4))
    return [image.to_bytes(), nibabel.Nifti2Image(np.asarray(image.dataobj), np.eye(4)).to_bytes()]


def _tiff() -> list[bytes]:
    tifffile = pytest.importorskip("tifffile")
    pages = np.random.default_rng(0).integers(0, 65536, (3, 9, 7, 3)).astype(np.uint16)
    written = []
    for more in ({}, {"compression": "zlib"}):
        stream = io.BytesIO()
        tifffile.imwrite(stream, pages, photometric="rgb", **more)
        written.append(stream.getvalue())
    return written


def _pictures() -> list[bytes]:
    written = []
    for form in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "JPEG2000", "PPM"):
        stream = io.BytesIO()
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 7, 3)).astype(np.uint8)).save(stream, form)
        written.append(stream.getvalue())
    return written


def _parquet() -> list[bytes]:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    table = pa.table({"image": [{"bytes": data, "path": "x"} for data in _pictures()], "label": [0, 1, 0, 1, 0, 1, 0]})
    pq.write_table(table, stream, row_group_size=3)
    return [stream.getvalue()]


KINDS: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "dicom": (".dcm", _dicom), "nifti": (".nii", _nifti), "packed": (".nii.gz", _nifti), "tiff": (".tif", _tiff),
    "picture": (".png", _pictures), "parquet": (".parquet", _parquet),
    "table": (".csv", lambda: [b"file,label\na.png,cat\nb.png,dog\n", b"image;cat;dog\na;1;0\nb;0;1\n"])}


@cache
def seeds(kind: str) -> list[bytes]:
    return KINDS[kind][1]()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_are_refused_or_read_and_nothing_else(kind, tmp_path, data):
    suffix = KINDS[kind][0]
    content = bytearray(data.draw(st.sampled_from(seeds(kind))))
    changes = st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=8)
    for offset, value in data.draw(changes):
        content[offset] = value
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    if kind == "packed":
        content = bytearray(gzip.compress(bytes(content)))
    (tmp_path / f"x{suffix}").write_bytes(content)
    if kind == "table":
        Image.new("L", (4, 4)).save(tmp_path / "a.png")
    source = str(tmp_path / f"x{suffix}" if kind in ("parquet", "table") else tmp_path)
    reading = data.draw(st.sampled_from(READINGS))
    for attempt in (lambda: survey(source).num_images,
                    lambda: len(read_images(source, size=8, channels=3, labelled=False, on_error="skip",
                                            reading=reading).images)):
        assert _outcome(attempt)


def _outcome(attempt: Callable[[], int]) -> bool:
    """Whether there is a picture, or one line that says why not."""
    try:
        return attempt() >= 1
    except BadData as error:
        return "\n" not in error.line() and "Traceback" not in error.line()


@pytest.mark.parametrize("suffix", sorted({suffix for suffix, _ in KINDS.values()} | {"", ".npz"}))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=600))
def test_random_bytes_under_any_name_are_refused(suffix, tmp_path, content):
    (tmp_path / f"x{suffix}").write_bytes(content)
    source = str(tmp_path / f"x{suffix}" if suffix in (".parquet", ".csv", ".npz") else tmp_path)
    with pytest.raises(BadData):
        read_images(source, size=8, channels=1, labelled=False, on_error="skip")


@given(st.binary(max_size=300), st.sampled_from([b"", b"\xff\xd8", b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "]))
def test_the_size_of_a_stream_is_told_or_not_but_never_an_error(content, start):
    found = stream_size(start + content)
    assert found is None or len(found) == 2


@pytest.mark.parametrize("form", ["JPEG", "JPEG2000"])
@pytest.mark.parametrize("size", [(1, 1), (640, 480), (17, 2000)])
def test_the_size_of_a_real_stream_is_its_own(form, size):
    stream = io.BytesIO()
    Image.new("L", size).save(stream, form)
    assert stream_size(stream.getvalue()) == size
