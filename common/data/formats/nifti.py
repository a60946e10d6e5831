"""NIfTI volumes (.nii, .nii.gz): slices as pictures of 8 bits.

**Which way up.** The volume is turned to the nearest axes of the body by its header, then cut as radiologists look at
it, and as DICOM has it: axial slices show the front above and the patient's right on the left, from feet to head;
coronal ones the head above and the right on the left, from back to front; sagittal ones the head above and the front on
the left, from left to right. Voxels are taken as square. Of several volumes (time, directions) the first counts.

**Grey.** Values are the stored ones, scaled by `scl_slope` and `scl_inter`. Black and white are the study's
[centre, width]; or else the header's `cal_min` and `cal_max`; or else, for 8 bits, 0 and 255; or else the smallest and
the largest value of the volume, since the intensities of magnetic resonance have no unit. NaN and infinities are black.

**Hostile until checked.** The header comes first, of a .gz too: it says how many bytes follow, and no more are taken.

Shapes: X, Y, Z voxels along the file's axes; H rows, W columns.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semisilo.common.data.form import Reading
from semisilo.common.data.formats import grey
from semisilo.common.data.formats.extras import needed, silence
from semisilo.common.data.formats.picture import Header, Picture, chosen
from semisilo.common.data.formats.pixels import Geometry, UnusableError, fitted
from semisilo.common.data.formats.registry import NIFTI
from semisilo.common.data.room import check_room
from semisilo.common.errors import BadData

__all__ = ["OpenedVolume", "open_nifti"]

_HEADERS = {348: "Nifti1Header", 540: "Nifti2Header"}
_LARGEST = 2**33
"""Bytes of one volume."""
_FACING: dict[str, tuple[int, int, int]] = {"axial": (2, 1, 0), "coronal": (1, 2, 0), "sagittal": (0, 2, 1)}
"""Axes of the body (0 to the right, 1 to the front, 2 to the head): cut along, down the rows, along the columns. Rows
run against their axis in every view, and so do columns."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenedVolume:
    """A volume whose header has been checked."""

    path: Path
    shape: tuple[int, int, int]
    """X, Y, Z."""
    dtype: np.dtype[Any]
    offset: int
    slope: float
    intercept: float
    shown: tuple[float, float] | None
    """cal_min and cal_max, where they say something."""
    turned: tuple[tuple[int, bool], ...]
    """For each axis of the body (right, front, head): the file's axis, and whether that runs against it."""

    def header(self, reading: Reading) -> Header:
        """See `OpenedImage`."""
        return Header(size=self.size(reading.axis), channels=1, bits=8 * self.dtype.itemsize,
                      pictures=self.count(reading.axis))

    def pictures(self, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> list[Picture]:
        """See `OpenedImage`. A slice always has its number in its name."""
        those = chosen(self.count(reading.axis), reading.slices)
        width, height = self.size(reading.axis)
        together = len(those) > 1 and reading.window == "file" and not self._says_its_range
        return [Picture(square=fitted(Image.fromarray(shown), form), width=width, height=height, channels=1,
                        bits=8 * self.dtype.itemsize, part=number, of_volume=together)
                for number, shown in zip(those, self.slices(those, reading), strict=True)]

    def count(self, axis: str) -> int:
        """How many slices there are."""
        return self.shape[self.turned[_FACING[axis][0]][0]]

    def size(self, axis: str) -> tuple[int, int]:
        """(width, height) of a slice."""
        _, down, along = _FACING[axis]
        return self.shape[self.turned[along][0]], self.shape[self.turned[down][0]]

    def slices(self, numbers: list[int], reading: Reading) -> list[NDArray[np.uint8]]:
        """The pictures (H, W) of these slices, counted from 0.

        Raises: UnusableError with a reason that holds nothing of the header.
        """
        volume = self._stored()
        cut, down, along = _FACING[reading.axis]
        order = [self.turned[axis][0] for axis in (cut, down, along)]
        facing = volume.transpose(order)
        facing = facing[tuple(slice(None, None, -1) if self.turned[axis][1] else slice(None)
                              for axis in (cut, down, along))]
        facing = facing[:, ::-1, ::-1]
        ends = self._ends(volume, reading)
        return [grey.rounded(self._curve(np.ascontiguousarray(facing[number]), reading, ends)) for number in numbers]

    def _stored(self) -> NDArray[Any]:
        size = math.prod(self.shape) * self.dtype.itemsize
        check_room(2 * size, what="A NIfTI volume's values", remedy="Use a machine with more memory.")
        try:
            with _opened(self.path) as file:
                file.seek(self.offset)
                data = file.read(size)
        except MemoryError:
            raise UnusableError("it does not fit into memory") from None
        except (OSError, EOFError, zlib.error) as error:
            raise UnusableError("it is damaged or cut off") from error
        if len(data) < size:
            raise UnusableError("it is cut off: its header declares more voxels than it holds")
        return np.frombuffer(data, dtype=self.dtype).reshape(self.shape, order="F")

    def _scaled(self, stored: NDArray[Any]) -> NDArray[np.float64]:
        return stored.astype(np.float64) * self.slope + self.intercept

    @property
    def _says_its_range(self) -> bool:
        """Whether black and white follow from the header alone."""
        return self.shown is not None or (self.dtype == np.uint8 and (self.slope, self.intercept) == (1.0, 0.0))

    def _ends(self, volume: NDArray[Any], reading: Reading) -> tuple[float, float]:
        if reading.window != "file":
            return 0.0, 0.0
        if self._says_its_range:
            return (0.0, 255.0) if self.shown is None else self.shown
        low, high = math.inf, -math.inf
        for plane in np.moveaxis(volume, int(np.argmax(volume.strides)), 0):  # little memory beside the volume
            seen = _finite_ends(self._scaled(plane))
            low, high = min(low, seen[0]), max(high, seen[1])
        return low, high

    def _curve(self, stored: NDArray[Any], reading: Reading, ends: tuple[float, float]) -> NDArray[np.float64]:
        values = self._scaled(stored)
        finite = np.isfinite(values)
        values = np.where(finite, values, 0.0)
        if reading.window == "image":
            ends = _finite_ends(np.where(finite, values, np.nan))
        shown = (grey.spread(values, *ends) if isinstance(reading.window, str)
                 else grey.linear_exact(values, *reading.window))
        return np.where(finite, shown, 0.0)


def open_nifti(path: Path) -> OpenedVolume:
    """Reads and checks a header.

    Raises: UnusableError for a file that cannot be read; BadData when nibabel is not installed.
    """
    library = needed("nibabel", NIFTI)
    silence("nibabel", "nibabel.global")
    try:
        with _opened(path) as file:
            start = file.read(540)
        if len(start) < 348:
            raise UnusableError("it is empty" if not start else "it is damaged or cut off")
        return _checked(library, path, start)
    except (UnusableError, BadData):
        raise
    except PermissionError:
        raise UnusableError("this user may not read it") from None
    except Exception:  # a library on bytes of any kind; what it says may hold a name
        raise UnusableError("it is damaged, or not a NIfTI file") from None


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Bytes as they are, or unpacked, whatever the name says."""
    file = path.open("rb")
    start = file.read(2)
    file.seek(0)
    if start != b"\x1f\x8b":
        return file
    return _Unpacked(file)


class _Unpacked(gzip.GzipFile):
    """Unpacks as much as is asked for; closes the file below."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._below = file

    def close(self) -> None:
        super().close()
        self._below.close()


def _checked(library: Any, path: Path, start: bytes) -> OpenedVolume:
    sizes = (int.from_bytes(start[:4], "little"), int.from_bytes(start[:4], "big"))
    size = next((found for found in sizes if found in _HEADERS), None)
    if size is None or len(start) < size:
        raise UnusableError("it is not a NIfTI file")
    header = getattr(library, _HEADERS[size]).from_fileobj(io.BytesIO(start[:size]), check=False)
    if header["magic"].tobytes()[:2] != b"n+":
        raise UnusableError("it is an Analyze pair or no NIfTI file; save it as one .nii")
    count = int(header["dim"][0])
    dims = [int(value) for value in header["dim"][1 : 1 + max(0, min(count, 7))]]
    if not 2 <= count <= 7 or min(dims) < 1:
        raise UnusableError("its header declares no volume")
    shape = (dims[0], dims[1], dims[2] if count > 2 else 1)
    dtype = header.get_data_dtype()
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise UnusableError("its voxels are colours or complex numbers, which are not read")
    limit = Image.MAX_IMAGE_PIXELS or 89_478_485
    largest = sorted(shape)[1] * sorted(shape)[2]
    if largest > limit or math.prod(shape) * dtype.itemsize > _LARGEST:
        raise UnusableError(f"{' x '.join(map(str, shape))} voxels are too many")
    offset = int(header["vox_offset"]) or size + 4
    if not size <= offset <= 2**26:
        raise UnusableError("its header is damaged")
    packed = path.stat().st_size
    with path.open("rb") as file:
        most = packed * 1100 if file.read(2) == b"\x1f\x8b" else packed  # deflate packs at most 1032 to 1
    if offset + math.prod(shape) * dtype.itemsize > most:
        raise UnusableError("it is cut off: its header declares more voxels than it holds")
    slope, intercept = header.get_slope_inter()
    low, high = float(header["cal_min"]), float(header["cal_max"])
    shown = (low, high) if math.isfinite(low) and math.isfinite(high) and high > low else None
    return OpenedVolume(path, shape, dtype, offset, 1.0 if slope is None else float(slope),
                        0.0 if intercept is None else float(intercept), shown, _turned(library, header))


def _turned(library: Any, header: Any) -> tuple[tuple[int, bool], ...]:
    affine = header.get_best_affine()
    if not np.isfinite(affine).all():
        raise UnusableError("its header does not say how the volume lies")
    found = library.orientations.io_orientation(affine)
    if np.isnan(found).any() or sorted(found[:, 0]) != [0, 1, 2]:
        raise UnusableError("its header does not say how the volume lies")
    by_body = {int(body): (axis, direction < 0) for axis, (body, direction) in enumerate(found)}
    return tuple(by_body[body] for body in range(3))


def _finite_ends(values: NDArray[np.float64]) -> tuple[float, float]:
    seen = values[np.isfinite(values)]
    return (float(seen.min()), float(seen.max())) if seen.size else (math.inf, -math.inf)
