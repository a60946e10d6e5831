"""From files to squares of a study: which reader a file needs, which of its pictures count, and what went wrong.

Files are decoded by a few threads, a window at a time, in their own order; a file of several pictures gives them one
after another. Nothing here knows labels.

Shapes: N pictures, C channels, S side of the square.
"""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from common.data.dicom import open_dicom
from common.data.folder import FORMATS, ImageFile, medical
from common.data.form import OnError, Reading
from common.data.image_set import Skipped
from common.data.nifti import open_nifti
from common.data.pixels import Geometry, NoPictureError, Range, UnusableError, eight_bits, fitted, square
from common.data.tiff import deep_colours, has_deep_colours
from common.errors import BadData

__all__ = ["Decoded", "Header", "Picture", "Trouble", "count_pictures", "decode", "decoded", "header", "quiet",
           "ranges_of"]

_THREADS = 4
_WINDOW = 64
"""Decoded at a time, so that threads hold no more than this many files' squares and `_THREADS` originals."""
_DEEP_PNG = 16


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
    unwindowed: bool = False
    """Shown over the whole range of its bits, for want of a window in the file or the study."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a file gives no picture."""

    reason: str
    broken: bool
    """False for a file that is whole and holds none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What the first bytes of a file say."""

    size: tuple[int, int]
    """(width, height)."""
    channels: Literal[1, 3]
    bits: int
    pictures: int
    """How many it holds, before a setting chooses."""


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings meanwhile: a damaged tag is no reason to write over a progress display, and they quote tags."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def header(file: ImageFile, reading: Reading = Reading()) -> Header | None:
    """What a file says of itself; None when it cannot be read or is no picture.

    Raises: BadData when a package is missing.
    """
    with quiet():
        try:
            return _header(file, reading)
        except BadData:
            raise
        except Exception:  # see `_tried`
            return None


def _header(file: ImageFile, reading: Reading) -> Header:
    kind = None if file.content is not None else medical(file.path)
    if kind == "dicom":
        found = open_dicom(file.path)
        return Header(size=(found.width, found.height), channels=3 if found.channels == 3 else 1, bits=found.bits,
                      pictures=found.frames)
    if kind == "nifti":
        volume = open_nifti(file.path)
        return Header(size=volume.size(reading.axis), channels=1, bits=8 * volume.dtype.itemsize,
                      pictures=volume.count(reading.axis))
    with _image(file) as image:
        grey = image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I")
        pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
        return Header(size=image.size, channels=1 if grey else 3, bits=_bits(image), pictures=pages)


def _image(file: ImageFile) -> Image.Image:
    return Image.open(file.path if file.content is None else io.BytesIO(file.content), formats=FORMATS)


def _bits(image: Image.Image) -> int:
    if image.format == "PNG":  # of 16-bit colours Pillow keeps 8; the file's own word is in the header's 25th byte
        file = getattr(image, "fp", None)
        if file is not None:
            place = file.tell()
            file.seek(24)
            depth = file.read(1)
            file.seek(place)
            if depth == bytes([_DEEP_PNG]):
                return _DEEP_PNG
    if image.format == "TIFF" and has_deep_colours(image):
        return 16
    if image.mode == "1":
        return 1
    return 16 if image.mode.startswith("I;16") else 32 if image.mode in ("I", "F") else 8


def count_pictures(files: Sequence[ImageFile], reading: Reading) -> list[int]:
    """How many pictures of each file count; 1 for those that cannot be read, of which decoding says why.

    Looks only into files of which it is not clear.
    """
    def count(file: ImageFile) -> int:
        kind = None if file.content is not None else medical(file.path)
        which = reading.slices if kind == "nifti" else reading.frames
        tiff = kind is None and file.path.suffix.lower() in (".tif", ".tiff", "")
        if file.content is not None or which in ("first", "middle", 1) or not (kind or tiff):
            return 1
        try:
            return len(_chosen(_header(file, reading).pictures, which))
        except BadData:
            raise
        except Exception:  # see `_tried`
            return 1

    with quiet(), ThreadPoolExecutor(_THREADS, thread_name_prefix="count") as pool:
        return list(pool.map(count, files))


def ranges_of(files: Iterable[ImageFile], reading: Reading) -> dict[str, float]:
    """What the values of 16 bits of a source are divided by, for those who decode it in parts; quick where no file has
    more than 8 bits."""
    form, found = Geometry(size=8, channels=1, resize="stretch"), dict[str, float]()
    deep = (file for file in files if (about := header(file, reading)) is not None and about.bits > 8)
    for _ in decoded(deep, form, reading, found):
        pass
    return found


def _chosen(number: int, which: int | str) -> list[int]:
    """Which of `number` pictures count: the first, the middle one, all, or some spread evenly."""
    if which == "first":
        return [0]
    if which == "middle":
        return [number // 2]
    if which == "all" or (isinstance(which, int) and which >= number):
        return list(range(number))
    assert isinstance(which, int)
    return [(2 * place + 1) * number // (2 * which) for place in range(which)]


# One file -------------------------------------------------------------------------------------------------------------


def _tried(file: ImageFile, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> list[Picture] | Trouble:
    """The pictures of a file that count, or why there are none."""
    try:
        kind = None if file.content is not None else medical(file.path)
        if kind == "dicom":
            return _dicom(file, form, reading)
        if kind == "nifti":
            return _nifti(file, form, reading)
        return _raster(file, form, reading, ranges)
    except BadData:
        raise
    except UnidentifiedImageError:
        size = len(file.content) if file.content is not None else file.path.stat().st_size
        return Trouble("it is empty" if size == 0 else "it is not an image, or damaged at its start", True)
    except NoPictureError as error:
        return Trouble(str(error), False)
    except UnusableError as error:
        return Trouble(str(error), True)
    except Image.DecompressionBombError:
        return Trouble(f"it has too many pixels (limit {_limit()}); scale it down", True)
    except MemoryError:
        return Trouble("it does not fit into memory", True)
    except PermissionError:
        return Trouble("this user may not read it", True)
    except FileNotFoundError:
        return Trouble("there is no such file", True)
    except Exception as error:
        # Pillow's decoders raise nearly anything on damaged bytes: OSError, SyntaxError, struct.error, KeyError, ...
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Trouble(text.rstrip("."), True)


def _limit() -> int:
    return Image.MAX_IMAGE_PIXELS or 89_478_485


def _part(chosen: list[int], number: int, place: int) -> int | None:
    return place if len(chosen) > 1 or (number > 1 and chosen != [0]) else None


def _dicom(file: ImageFile, form: Geometry, reading: Reading) -> list[Picture]:
    found = open_dicom(file.path)
    chosen = _chosen(found.frames, reading.frames)
    return [Picture(square=fitted(Image.fromarray(found.frame(number, reading)), form), width=found.width,
                    height=found.height, channels=found.channels, bits=found.bits,
                    part=_part(chosen, found.frames, number),
                    unwindowed=reading.window == "file" and not found.has_window) for number in chosen]


def _nifti(file: ImageFile, form: Geometry, reading: Reading) -> list[Picture]:
    volume = open_nifti(file.path)
    chosen = _chosen(volume.count(reading.axis), reading.slices)
    width, height = volume.size(reading.axis)
    return [Picture(square=fitted(Image.fromarray(shown), form), width=width, height=height, channels=1,
                    bits=8 * volume.dtype.itemsize, part=number)
            for number, shown in zip(chosen, volume.slices(chosen, reading), strict=True)]


def _raster(file: ImageFile, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> list[Picture]:
    found = []
    with _image(file) as image:
        several = image.format == "TIFF" and file.content is None
        pages = getattr(image, "n_frames", 1) if several else 1
        chosen = _chosen(pages, reading.frames) if several else [0]
        for page in chosen:
            if several and page:
                image.seek(page)
            if image.width * image.height > _limit():
                raise UnusableError(f"{image.width} x {image.height} pixels are too many (limit {_limit()}); scale it"
                                    " down")
            width, height, bits = *image.size, _bits(image)
            if several and has_deep_colours(image):
                shown, divided = eight_bits(deep_colours(file.path, page, image.size), reading=reading, ranges=ranges)
                pixels, channels = fitted(Image.fromarray(shown), form), 3
            else:
                channels = 1 if image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I") else 3
                pixels, divided = square(image, form, reading=reading, ranges=ranges)
            found.append(Picture(square=pixels, channels=channels, part=_part(chosen, pages, page), divided=divided,
                                 width=width, height=height, bits=bits))
    return found


# Many files -----------------------------------------------------------------------------------------------------------


def decoded(files: Iterable[ImageFile], form: Geometry, reading: Reading, ranges: dict[str, float]
            ) -> Generator[tuple[ImageFile, list[Picture] | Trouble]]:
    """Every file with its pictures, or with what is wrong, in order.

    Args:
        ranges: what the values of 16 bits are divided by at least; raised as brighter files are met.
    Raises: BadData when a package is missing.
    """
    waiting = iter(files)
    with quiet(), ThreadPoolExecutor(_THREADS, thread_name_prefix="decode") as pool:
        while window := list(itertools.islice(waiting, _WINDOW)):
            known = dict(ranges)
            results = pool.map(partial(_tried, form=form, reading=reading, ranges=known), window)
            for file, result in zip(window, results, strict=True):
                if not isinstance(result, Trouble):
                    for picture in result:
                        if picture.divided is not None:
                            kind, limit = picture.divided
                            ranges[kind] = max(limit, ranges.get(kind, 0.0))
                yield file, result


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Decoded:
    """What became of many files."""

    squares: NDArray[np.uint8]
    """uint8 (N, C, S, S)."""
    files: list[ImageFile]
    """Of each of the N."""
    names: tuple[str, ...]
    skipped: list[Skipped]
    ranges: dict[str, float]
    """What deep values were divided by."""


def decode(files: Callable[[], Iterable[ImageFile]], number: int, *, form: Geometry, reading: Reading,
           on_error: OnError, where: str, ranges: Mapping[str, float] | None = None, num_files: int | None = None,
           progress: Callable[[float], None] | None = None) -> Decoded:
    """Reads files with a few threads, all with the same range of deep values.

    Args:
        files: called for each pass over the files; there is a second one when a bright 16-bit file comes after dark
            ones.
        number: pictures that these files hold at most, see `count_pictures`.
        where: what is read, for messages.
        ranges: a range that another part of the same source needs.
        num_files: how many files there are, for `progress`; `number` by default.
    Raises: BadData, naming the file, at the first that cannot be read if `on_error` is "stop"; when none can be; when
        a package is missing.
    """
    known = dict(ranges or {})
    told = progress
    while True:
        before = dict(known)
        squares = np.empty((number, form.channels, form.size, form.size), dtype=np.uint8)
        kept: list[ImageFile] = []
        names: list[str] = []
        skipped: list[Skipped] = []
        lowest: dict[str, float] = {}
        total = max(1, number if num_files is None else num_files)
        with closing(decoded(files(), form, reading, known)) as results:
            for done, (file, result) in enumerate(results, 1):
                if isinstance(result, Trouble):
                    if result.broken and on_error == "stop":
                        raise BadData(f"{where}: {file.name} cannot be read: {result.reason}.",
                                      remedy='Replace or remove it, or set on_error = "skip" to leave such files out.')
                    reason = f"cannot be read: {result.reason}" if result.broken else result.reason
                    skipped.append(Skipped(file.name, reason, result.broken))
                elif len(kept) + len(result) > number:
                    skipped.append(Skipped(file.name, "cannot be read: it changed while it was read", True))
                else:
                    for picture in result:
                        squares[len(kept)] = picture.square
                        kept.append(file)
                        names.append(file.name if picture.part is None else f"{file.name}[{picture.part}]")
                        if picture.divided is not None:
                            kind, limit = picture.divided
                            lowest[kind] = min(limit, lowest.get(kind, limit))
                if told is not None and (done % _WINDOW == 0 or done == total):
                    told(min(1.0, done / total))
        if all(limit == known[kind] for kind, limit in lowest.items()):
            break
        assert known != before, "a second pass begins with a larger range"
        told = None
    if not kept:
        first = f": first is {skipped[0].name}, {skipped[0].reason}" if skipped else ""
        raise BadData(f"{where}: none of the {len(skipped)} images can be read{first}.",
                      remedy="Check that the files were copied completely.")
    return Decoded(squares=squares[: len(kept)], files=kept, names=tuple(names), skipped=skipped, ranges=known)
