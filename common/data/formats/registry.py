"""The formats of files, a row each. Whoever adds one writes a module with its reader, and its row here.

A reader is imported when a file of its format is met: most studies have one format, some readers need packages, and
processes without images ask for suffixes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from semisilo.common.system_errors import may_be_of_one_file, source_trouble

if TYPE_CHECKING:
    from semisilo.common.data.formats.picture import OpenedImage

__all__ = ["DICOM", "DIGITS", "IMAGE_FORMATS", "JPEG", "NIFTI", "NPZ", "PARQUET", "SOURCES", "SOURCE_FORMATS", "TABLE",
           "TIFF", "ImageFormat", "SourceFormat", "format_by_name", "format_of", "has_suffix", "names_of_images",
           "source_named"]

_START = 256
"""Bytes of a file in which every magic lies."""
DIGITS = "digits"
"""The one source that is no file: scikit-learn's scans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFormat:
    """Files that hold pictures: in folders, beside tables."""

    name: str
    """For people."""
    suffixes: tuple[str, ...]
    """Ends of file names, in small letters, with their dots."""
    open: Callable[[Path], OpenedImage]
    """Its reader. Raises: what `OpenedImage` raises."""
    magic: tuple[int, bytes] | None = None
    """Offset and bytes by which a file is known whose suffix says nothing; None where Pillow finds out."""
    pillow: str = ""
    """Pillow's name of the format; empty where the reader is another."""
    several: Literal["", "frames", "slices"] = ""
    """Where a file may hold several pictures: the setting that says which of them count."""
    extra: str = ""
    """What to install for it; for TIFF, for colours of more than 8 bits, for JPEG, for values of 12 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFormat:
    """Files that are a whole source: a path to one, perhaps with # and more, stands where a folder could."""

    name: str
    suffixes: tuple[str, ...]
    labels: str
    """Where its labels are, for people."""
    extra: str = ""


def _pillow(path: Path) -> OpenedImage:
    from semisilo.common.data.formats.raster import open_raster

    return open_raster(path)


def _dicom(path: Path) -> OpenedImage:
    from semisilo.common.data.formats.dicom import open_dicom

    return open_dicom(path)


def _nifti(path: Path) -> OpenedImage:
    from semisilo.common.data.formats.nifti import open_nifti

    return open_nifti(path)


JPEG = ImageFormat(name="JPEG", suffixes=(".jpg", ".jpeg", ".jpe"), open=_pillow, pillow="JPEG",
                   magic=(0, b"\xff\xd8\xff"), extra="dicom")
TIFF = ImageFormat(name="TIFF", suffixes=(".tif", ".tiff"), open=_pillow, pillow="TIFF", several="frames", extra="tiff")
DICOM = ImageFormat(name="DICOM", suffixes=(".dcm", ".dicom", ".ima"), open=_dicom, magic=(128, b"DICM"),
                    several="frames", extra="dicom")
NIFTI = ImageFormat(name="NIfTI", suffixes=(".nii", ".nii.gz"), open=_nifti, several="slices", extra="nifti")

IMAGE_FORMATS: tuple[ImageFormat, ...] = (
    ImageFormat(name="PNG", suffixes=(".png",), open=_pillow, pillow="PNG"),
    JPEG,
    ImageFormat(name="BMP", suffixes=(".bmp",), open=_pillow, pillow="BMP"),
    ImageFormat(name="GIF", suffixes=(".gif",), open=_pillow, pillow="GIF"),
    TIFF,
    ImageFormat(name="WebP", suffixes=(".webp",), open=_pillow, pillow="WEBP"),
    ImageFormat(name="PPM", suffixes=(".ppm", ".pgm", ".pbm"), open=_pillow, pillow="PPM"),
    ImageFormat(name="JPEG 2000", suffixes=(".jp2", ".j2k"), open=_pillow, pillow="JPEG2000"),
    DICOM,
    NIFTI,
)

others: tuple[ImageFormat, ...] = ()
"""Formats of plug-ins that the owner of the images names; set by `semisilo.common.data.formats.plugins.use_formats`."""

TABLE = SourceFormat(name="table", suffixes=(".csv", ".tsv"), labels="a column, or columns of 0 and 1")
PARQUET = SourceFormat(name="Parquet", suffixes=(".parquet",), labels="a column", extra="parquet")
NPZ = SourceFormat(name="npz", suffixes=(".npz",), labels="`train_labels`, `labels`, ...: MedMNIST's layout")

SOURCE_FORMATS: tuple[SourceFormat, ...] = (TABLE, PARQUET, NPZ)
SOURCES = f"Give a folder of images, a .csv, .parquet or .npz file, or {DIGITS}."
"""What to do about a path that is no source."""


def has_suffix(path: Path | str, *formats: ImageFormat | SourceFormat) -> bool:
    """Whether the name is that of a file of one of these formats."""
    return str(path).lower().endswith(tuple(suffix for each in formats for suffix in each.suffixes))


def format_by_name(path: Path) -> ImageFormat | None:
    """The format of an image file by its name alone; None where that says nothing."""
    return next((each for each in (*IMAGE_FORMATS, *others) if has_suffix(path.name, each)), None)


def format_of(path: Path) -> ImageFormat | None:
    """The format by the name, or else by the first bytes; None for a file that only Pillow may know. Raises:
    SystemTrouble where disk or share have gone away."""
    named = format_by_name(path)
    if named is not None:
        return named
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        if (trouble := source_trouble(error, path)) is not None and not may_be_of_one_file(error):
            raise trouble from error
        return None
    return next((each for each in (*IMAGE_FORMATS, *others) if each.magic is not None
                 and start[each.magic[0]:].startswith(each.magic[1])), None)


def source_named(name: str) -> SourceFormat | None:
    """The format of a source by its name; None for a folder, the digits and what is no source."""
    return next((each for each in SOURCE_FORMATS if has_suffix(name, each)), None)


def names_of_images() -> str:
    """All formats of image files, for a sentence: "PNG, JPEG or DICOM"."""
    *first, last = (each.name for each in (*IMAGE_FORMATS, *others))
    return f"{', '.join(first)} or {last}"
