"""How images become tensors, and how training images are varied: what a study freezes and every task carries."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from semisilo.common.config import ABSENT_AT_DEFAULT

__all__ = ["DEEP_LIMITS", "LABELLED", "PATIENT_COLUMNS", "UNLABELLED", "AugmentationPolicy", "AugmentationSettings",
           "DicomRules", "ImageForm", "OnError", "PatientRule", "Ranges", "Reading", "Selection", "check_ranges",
           "file_key", "is_of_file", "patient_key", "text_of_file"]

OnError = Literal["stop", "skip", "report"]
"""At a file that cannot be read: stop; leave it out; or read everything, list all that is wrong, then stop."""

LABELLED = "labelled"
UNLABELLED = "unlabelled"
"""Names of the two folders, and of the two parts of an .npz, that say which images have a class; no class of a study
with labels at silos can be called so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a file cannot say of itself: which of its values are black and white, and which of its pictures count.

    Only for files of more than 8 bits or more than one picture. It changes pixels, so a study fixes it for all.
    """

    window: tuple[float, ...] | str = "file"
    """"file": what the file says of itself. "image": from the smallest value of each picture to its largest. Or centre
    and width, in the file's units: Hounsfield units of a CT, stored values of a 16-bit picture."""
    window_number: int = 1
    """Which of a DICOM file's own windows, from 1; the last one where it has fewer."""
    frames: int | str = "first"
    """Of the frames of a DICOM file or the pages of a TIFF: "first", "middle", "all", or a number, spread evenly."""
    axis: Literal["axial", "coronal", "sagittal"] = "axial"
    """How a NIfTI volume is cut."""
    slices: int | str = "middle"
    """Of its slices: "middle", "all", or a number, spread evenly."""

    def __post_init__(self) -> None:
        if isinstance(self.window, str):
            if self.window not in ("file", "image"):
                raise ValueError(f'window = "{self.window}": give "file", "image" or [centre, width].')
        elif len(self.window) != 2 or not all(map(math.isfinite, self.window)) or self.window[1] <= 0:
            raise ValueError(f"window = {list(self.window)}: give [centre, width], the width above 0.")
        if not 1 <= self.window_number <= 99:
            raise ValueError(f"window_number = {self.window_number}: must be between 1 and 99.")
        for name, words in (("frames", ("first", "middle", "all")), ("slices", ("middle", "all"))):
            value = getattr(self, name)
            if isinstance(value, str) and value not in words:
                raise ValueError(f'{name} = "{value}": give {", ".join(map(repr, words))} or a number.')
            if not isinstance(value, str) and not 1 <= value <= 10_000:
                raise ValueError(f"{name} = {value}: must be between 1 and 10000.")


Ranges = tuple[tuple[str, float], ...]
"""What deep values were divided by, as files keep it: kinds ("16 bits", "whole numbers", "fractions") with the value
that is white."""
DEEP_LIMITS: Mapping[str, tuple[float, ...]] = {
    "16 bits": (4095.0, 65535.0),  # not 255: a dark 12-bit scan must not become bright
    "whole numbers": (255.0, 4095.0, 65535.0),
    "fractions": (1.0, 255.0),
}
"""Kinds of deep values, and what may be white of them where no window says it."""


def check_ranges(ranges: Ranges) -> None:
    """Raises: ValueError for what no source is read with."""
    for kind, limit in ranges:
        if limit not in DEEP_LIMITS.get(kind, ()):
            raise ValueError(f"ranges: values of {kind[:40]!r} are never divided by {limit:g}.")


DicomRules = Mapping[str, tuple[str, ...] | str]
"""Keyword of a DICOM tag -> values of which the file must have one; "" stands for a file without the tag."""
AugmentationPolicy = Literal["small", "semifl_official", "fedmatch_official", "fedmix", "none"]
"""Pairs of a weak and a strong augmentation: `semisilo.common.data.augmentation.augment`."""
PatientRule = Literal["auto", "folder", "name", "none"]
"""How an image's patient is known. "auto": the PatientID of a DICOM file, the column of a table or of
Parquet, the key `patients` of an .npz file; "folder": the folder
below that of the class; "name": the file's name up to the first "_". Where that says nothing, slices, pages and
frames of one file belong together. "none": every image stands for itself."""
_KEYWORD = re.compile(r"[A-Z][A-Za-z0-9]{1,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which files of a source count, and which of them are of one patient. Each site says so of its own images."""

    dicom: DicomRules = field(default_factory=dict)
    """What the tags of a DICOM file must say; files of other formats always count."""
    patient: PatientRule = "auto"
    formats: tuple[str, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """Plug-ins of the entry point group `semisilo.formats` whose files are read as well."""

    def __post_init__(self) -> None:
        for keyword, values in self.dicom.items():
            if _KEYWORD.fullmatch(keyword) is None:
                raise ValueError(f"dicom: '{keyword}' is not a keyword of a DICOM tag: write for example Modality = "
                                 '["CR", "DX"].')
            if not values and values != "":
                raise ValueError(f"dicom: {keyword} has no value: give those that count, or leave it out.")

    @property
    def rules(self) -> dict[str, frozenset[str]]:
        """`dicom` as it is compared: values in small letters, without spaces around them."""
        return {keyword: frozenset(value.strip().casefold() for value in (
            (values,) if isinstance(values, str) else values)) for keyword, values in self.dicom.items()}


PATIENT_COLUMNS = ("patient", "patient_id", "patientid", "patient_number", "patient_key", "subject", "subject_id",
                   "subjectid")
"""Names that columns with whose image it is usually have, in small letters and with "_" for a space."""


_OF_FILE = "file "
_FILE_NUMBER = re.compile(r"file [0-9]+")


def patient_key(text: str) -> str:
    """What stands for a patient in memory: equal for equal texts, and not the text itself. "" stays "". Of what
    `text_of_file` gives it is the key of a file."""
    if _FILE_NUMBER.fullmatch(text):
        return f"{_OF_FILE}{patient_key(text.removeprefix(_OF_FILE))}"
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest() if text else ""


def file_key(text: str) -> str:
    """What stands in the place of a patient for the pictures of one file, where that is not known: as `patient_key`,
    and told apart from those by `is_of_file`."""
    return f"{_OF_FILE}{patient_key(text)}"


def text_of_file(number: int) -> str:
    """What a file of arrays says of the patient of images that are of one file, where that is not known: `is_of_file`
    holds of its `patient_key` as well."""
    return f"{_OF_FILE}{number}"


def is_of_file(key: str) -> bool:
    """Whether a key says no more than that pictures are of one file; also of what stands for such a key."""
    return key.startswith(_OF_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageForm:
    """The one form that all images of a study are brought to."""

    size: int
    """Side of the square, in pixels."""
    channels: Literal[1, 3]
    """1 (grey) or 3 (red, green, blue). Grey files are repeated to 3; colour files become luminance for 1."""
    mean: tuple[float, ...]
    """Mean of each channel on the scale 0 to 1."""
    std: tuple[float, ...]
    """Standard deviation of each channel, > 0, on the scale 0 to 1."""
    resize: Literal["fit", "crop", "stretch", "pad"] = "fit"
    """How another size is brought to `size`: pad to a square and scale, centre square and scale, stretch, or pad with
    black without scaling (larger images are refused)."""
    reading: Reading = Reading()
    """How files of more than 8 bits or more than one picture are read."""
    standardise: Literal["study", "image"] = field(default="study", metadata=ABSENT_AT_DEFAULT)
    """Whether a network sees every channel less `mean` and divided by `std`, or of each image less its own mean and
    divided by its own deviation."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 4096:
            raise ValueError(f"size = {self.size}: must be between 1 and 4096.")
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"mean and std need {self.channels} value{'s' * (self.channels != 1)}, one per channel.")
        if not all(0 < value < float("inf") for value in self.std):
            raise ValueError("std must be above 0 in every channel.")


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentationSettings:
    """How training images are varied; the names are those of the specification of data."""

    policy: AugmentationPolicy = "small"
    """Pair of a weak and a strong augmentation."""
    horizontal_flip: bool = False
    """Whether a left-right flip keeps the meaning of an image."""
    vertical_flip: bool = False
    """Whether an up-down flip keeps the meaning of an image."""
    without: tuple[str, ...] = ()
    """Operations of RandAugment to leave out, for example "Invert"."""
