"""What every reader of image files gives, whatever the format: a header, and squares of the study.

Shapes: C channels, S side of the square.

Tests: tests/common/data/formats/test_registry.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import Reading
from semisilo.common.data.formats.pixels import Geometry, Range

__all__ = ["Header", "OpenedImage", "Picture", "chosen", "part_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What the first bytes of a file say."""

    size: tuple[int, int]
    """(width, height)."""
    channels: Literal[1, 3]
    bits: int
    pictures: int
    """How many it holds, before a setting chooses."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Picture:
    """One decoded picture."""

    square: NDArray[np.uint8]
    """(C, S, S)."""
    width: int
    height: int
    channels: int
    """1 or 3, of the file."""
    bits: int
    """Of each value in the file."""
    part: int | None = None
    """Frame, page or slice, from 0, where several of the file count."""
    divided: Range | None = None
    """What its values were divided by, where the source decides that."""
    of_volume: bool = False
    """Whether its range is that of a volume of which other slices count as well."""
    unwindowed: bool = False
    """Shown over the whole range of its bits, for want of a window in the file or the study."""
    burned_in: bool = False
    """Whether the file says that there is writing in the picture, which may name the patient."""
    patient: str = ""
    """A key of the patient, where the file names one: `semisilo.common.data.form.patient_key`."""


class OpenedImage(Protocol):
    """An image file as its reader gives it; whatever is wrong with the file may be raised by both."""

    def header(self, reading: Reading) -> Header:
        """Without decoding pixels. Raises: UnusableError; NoPictureError; BadData when a package is missing."""

    def pictures(self, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> list[Picture]:
        """Those that count, decoded and brought to the study's form.

        Args:
            ranges: what values of more than 8 bits are divided by, where the source decides that.
        Raises: as `header`.
        """


def chosen(number: int, which: int | str) -> list[int]:
    """Which of `number` pictures count: the first, the middle one, all, or some spread evenly."""
    if which == "first":
        return [0]
    if which == "middle":
        return [number // 2]
    if which == "all" or (isinstance(which, int) and which >= number):
        return list(range(number))
    assert isinstance(which, int)
    return [(2 * index + 1) * number // (2 * which) for index in range(which)]


def part_of(those: list[int], number: int, index: int) -> int | None:
    """What a picture's name says behind the file's; nothing for the first where no other counts."""
    return index if len(those) > 1 or (number > 1 and those != [0]) else None
