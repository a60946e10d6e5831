"""A format is a row and a reader: one that is added for a test is read from folders and tables like all others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from PIL import Image

from semisilo.common.data.form import Reading
from semisilo.common.data.formats import registry
from semisilo.common.data.formats.extras import needed
from semisilo.common.data.formats.picture import Header, OpenedImage, Picture, chosen, part_of
from semisilo.common.data.formats.pixels import Geometry, UnusableError, fitted
from semisilo.common.data.formats.registry import (
    DICOM,
    IMAGE_FORMATS,
    NIFTI,
    NPZ,
    PARQUET,
    SOURCE_FORMATS,
    TABLE,
    TIFF,
    ImageFormat,
    format_by_name,
    format_of,
    has_suffix,
    names_of_images,
    source_named,
)
from semisilo.common.data.readers import read_images, survey
from semisilo.common.errors import BadData

ROOT = Path(__file__).resolve().parents[4]
MAGIC = b"GREY"


@dataclass(frozen=True)
class Bands:
    """A made-up format: four letters, then bytes; each is a picture of 4 x 4 pixels of that grey."""

    values: bytes

    def header(self, reading: Reading) -> Header:
        return Header(size=(4, 4), channels=1, bits=8, pictures=len(self.values))

    def pictures(self, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> list[Picture]:
        those = chosen(len(self.values), reading.frames)
        return [Picture(square=fitted(Image.new("L", (4, 4), self.values[number]), form), width=4, height=4, channels=1,
                        bits=8, part=part_of(those, len(self.values), number)) for number in those]


def open_bands(path: Path) -> OpenedImage:
    content = path.read_bytes()
    if not content.startswith(MAGIC) or len(content) == len(MAGIC):
        raise UnusableError("it has no bands")
    return Bands(content[len(MAGIC) :])


BANDS = ImageFormat(name="Bands", suffixes=(".bands", ".bands.raw"), open=open_bands, magic=(0, MAGIC),
                    several="frames")


@pytest.fixture
def with_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it takes to add a format, besides its module."""
    monkeypatch.setattr(registry, "IMAGE_FORMATS", (*IMAGE_FORMATS, BANDS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes: known by either suffix, or by the first bytes alone."""
    for name, content in {"a/one.bands": b"\x0a\x14", "a/TWO.BANDS.RAW": b"\x1e", "b/three": b"\x28\x32\x3c"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(MAGIC + content)
    return tmp_path


@pytest.mark.usefixtures("with_bands")
def test_a_folder_of_a_format_that_is_added_is_read(folder: Path) -> None:
    found = read_images(str(folder), size=2, channels=1)
    assert found.classes == ("a", "b")
    assert found.images.images_NCHW[:, 0, 0, 0].tolist() == [30, 10, 40]  # of each file the first; TWO before one
    every = read_images(str(folder), size=2, channels=1, reading=Reading(frames="all"))
    assert every.images.images_NCHW[:, 0, 0, 0].tolist() == [30, 10, 20, 40, 50, 60]
    assert every.images.names[-1] == "b/three[2]"
    assert survey(str(folder)).sizes == {(4, 4): 3}


@pytest.mark.usefixtures("with_bands")
def test_a_damaged_file_of_a_format_that_is_added_is_named_with_its_reason(folder: Path) -> None:
    (folder / "b" / "empty.bands").write_bytes(MAGIC)
    with pytest.raises(BadData, match=r"b/empty\.bands cannot be read: it has no bands"):
        read_images(str(folder), size=2, channels=1)
    found = read_images(str(folder), size=2, channels=1, on_error="skip")
    assert [each.name for each in found.skipped] == ["b/empty.bands"]


@pytest.mark.usefixtures("with_bands")
def test_a_table_names_files_of_a_format_that_is_added(folder: Path) -> None:
    (folder / "labels.csv").write_text("file,label\none,x\nthree,y\n")
    found = read_images(f"{folder}/labels.csv", size=2, channels=1)
    assert found.classes == ("x", "y")
    assert len(found.images) == 2


def test_the_control_without_its_row_the_same_folder_holds_no_image(folder: Path) -> None:
    with pytest.raises(BadData, match="none is an image") as caught:
        read_images(str(folder), size=2, channels=1)
    assert names_of_images() in caught.value.remedy
    assert "DICOM or NIfTI" in caught.value.remedy


# The rows -------------------------------------------------------------------------------------------------------------


def test_no_two_formats_claim_a_suffix_or_a_name() -> None:
    rows = [*IMAGE_FORMATS, *SOURCE_FORMATS]
    suffixes = [suffix for each in rows for suffix in each.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in suffixes)
    assert len({each.name for each in rows}) == len(rows)


def test_a_name_says_the_format_however_it_is_written(tmp_path: Path) -> None:
    assert format_by_name(Path("scan.DCM")) is DICOM
    assert format_by_name(Path("brain.nii.GZ")) is NIFTI
    assert format_by_name(Path("slide.Tiff")) is TIFF
    assert format_by_name(Path("notes.gz")) is None
    assert source_named("labels.TSV") is TABLE
    assert source_named("rows.parquet") is PARQUET
    assert source_named("images") is None
    assert has_suffix("a.npz", NPZ)
    assert not has_suffix("a.npz", TABLE, PARQUET)
    assert format_of(tmp_path / "nowhere") is None


def test_first_bytes_say_the_format_only_where_the_suffix_says_nothing(tmp_path: Path) -> None:
    start = bytes(128) + b"DICM"
    for name, expected in {"a": DICOM, "a.001": DICOM, "a.tif": TIFF, "b.dcm": DICOM}.items():
        (tmp_path / name).write_bytes(start)
        assert format_of(tmp_path / name) is expected
    (tmp_path / "short").write_bytes(start[:-1])
    assert format_of(tmp_path / "short") is None


def test_pillow_knows_the_formats_that_it_is_to_read() -> None:
    Image.init()
    assert {each.pillow for each in IMAGE_FORMATS if each.pillow} <= set(Image.OPEN)


def test_a_missing_package_is_named_with_the_extra_of_its_format() -> None:
    with pytest.raises(BadData, match="DICOM files need the package 'no_such_package'") as caught:
        needed("no_such_package", DICOM)
    assert "semisilo[dicom]" in caught.value.remedy
    with pytest.raises(BadData, match="Colours need the package"):
        needed("no_such_package", replace(TIFF, extra="x"), what="Colours")


def test_the_page_on_data_names_every_format_its_suffixes_and_its_extra() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    for each in IMAGE_FORMATS:
        line = next((line for line in lines if re.search(rf"\b{re.escape(each.name)}\b", line)), "")
        assert line, each.name
        if not each.pillow:
            assert all(f"`{suffix}`" in line for suffix in each.suffixes), each.name
        assert not each.extra or f"semisilo[{each.extra}]" in page
    for source in SOURCE_FORMATS:
        line = next((line for line in lines if f"{source.suffixes[0]}`" in line), "")
        assert all(suffix in line for suffix in source.suffixes), source.name
        assert source.labels in line
        assert not source.extra or f"semisilo[{source.extra}]" in line


def test_asking_for_a_suffix_loads_no_reader_and_no_library() -> None:
    """Processes without images ask for suffixes too, at every start."""
    code = ("import sys; import semisilo.common.data.formats.registry;"
            "print([name for name in ('numpy', 'PIL', 'torch') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
                          timeout=100)
    assert done.stdout.strip() == "[]"
