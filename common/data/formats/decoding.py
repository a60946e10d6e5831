"""From files to squares of a study: which reader a file needs, which of its pictures count, and what went wrong.

Files are decoded by a few threads, some ahead, in their own order; a file of several pictures gives them one after
another. Nothing here knows labels.

Shapes: N pictures, C channels, S side of the square.

Tests: tests/common/data/test_broken_folders.py.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from semisilo.common.data.form import OnError, Reading
from semisilo.common.data.formats import registry
from semisilo.common.data.formats.folder import ImageFile
from semisilo.common.data.formats.picture import Header, OpenedImage, Picture, chosen
from semisilo.common.data.formats.pixels import Geometry, NoPictureError, UnusableError
from semisilo.common.data.formats.plugins import open_by_plugin
from semisilo.common.data.formats.raster import most_pixels, open_raster
from semisilo.common.data.formats.registry import format_of
from semisilo.common.data.image_set import Skipped
from semisilo.common.data.squares import Squares
from semisilo.common.errors import BadData, SystemTrouble
from semisilo.common.system_errors import gone, may_be_of_one_file, source_trouble

__all__ = ["Decoded", "Header", "Picture", "Trouble", "count_pictures", "decode", "decoded", "header", "quiet",
           "ranges_of", "trouble_of"]

ReadT = TypeVar("ReadT")

_MOST_THREADS = 8
_LOOKED_AT = 32
"""Files after the first that cannot be read: if these cannot be, either, leaving files out is no way."""
_HANDFUL = 5
"""So many files that have gone or that the disk fails to read say nothing of their source, be it small."""
_SHARE = 0.1
"""Of its files: nor do so few of a large one."""
_WINDOW = 64
"""Files that are decoded ahead, so that threads hold no more than this many files' squares."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a file gives no picture."""

    reason: str
    broken: bool
    """False for a file that is whole and holds none."""
    away: SystemTrouble | None = None
    """Where the file is not there any more, or its disk fails to read it: what it is if its source has gone away."""


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings meanwhile: a damaged tag is no reason to write over a progress display, and they quote tags."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _threads() -> int:
    """As many as this process has cores; more than a few wait for the disk and for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_THREADS, cores)


def header(file: ImageFile, reading: Reading = Reading()) -> Header | None:
    """What a file says of itself; None when it cannot be read or is no picture.

    Raises: BadData when a package is missing.
    """
    with quiet():
        try:
            return _opened(file).header(reading)
        except BadData:
            raise
        except Exception:  # see `_tried`
            return None


def trouble_of(file: ImageFile, reading: Reading = Reading()) -> Trouble | None:
    """Why a file gives no picture, as far as its header shows; None where that can be read.

    Raises: BadData when a package is missing.
    """
    with quiet():
        found = _tried(file, lambda: _opened(file).header(reading))
    return found if isinstance(found, Trouble) else None


def _opened(file: ImageFile) -> OpenedImage:
    """The file by the reader of its format; what lies within another file, or has no known name, is Pillow's."""
    found = format_of(file.path) if file.content is None else None
    if found is None:
        return open_raster(file.path, file.content)
    return open_by_plugin(found, file.path) if found in registry.others else found.open(file.path)


def count_pictures(files: Sequence[ImageFile], reading: Reading) -> list[int]:
    """How many pictures of each file count; 1 for those that cannot be read, of which decoding says why.

    Looks only into files of which it is not clear.
    """
    def count(file: ImageFile) -> int:
        found = format_of(file.path) if file.content is None else None
        which = reading.slices if found is not None and found.several == "slices" else reading.frames
        clear = not found.several if found is not None else file.path.suffix != ""
        if file.content is not None or which in ("first", "middle", 1) or clear:
            return 1
        try:
            return len(chosen(_opened(file).header(reading).pictures, which))
        except BadData:
            raise
        except Exception:  # see `_tried`
            return 1

    with quiet(), ThreadPoolExecutor(_threads(), thread_name_prefix="count") as pool:
        return list(pool.map(count, files))


def ranges_of(files: Iterable[ImageFile], reading: Reading) -> dict[str, float]:
    """What the values of 16 bits of a source are divided by, for those who decode it in parts: of the kinds that occur;
    quick where no file has more than 8 bits."""
    form, found = Geometry(size=8, channels=1, resize="stretch"), dict[str, float]()
    deep = (file for file in files if (about := header(file, reading)) is not None and about.bits > 8)
    for _ in decoded(deep, form, reading, found):
        pass
    return found


# One file -------------------------------------------------------------------------------------------------------------


def _pictures(file: ImageFile, form: Geometry, reading: Reading, ranges: Mapping[str, float]
              ) -> list[Picture] | Trouble:
    """The pictures of a file that count, or why there are none."""
    return _tried(file, lambda: _opened(file).pictures(form, reading, ranges))


def _tried(file: ImageFile, work: Callable[[], ReadT]) -> ReadT | Trouble:
    """What reading a file gives, or why it gives nothing.

    Raises: BadData when a package is missing; SystemTrouble where disk or share have certainly gone away, whatever is
        to become of single files: what is left of a source would be taken for all of it.
    """
    try:
        return work()
    except BadData:
        raise
    except UnidentifiedImageError:
        try:
            size = len(file.content) if file.content is not None else file.path.stat().st_size
        except OSError as error:
            return _missing(file, error) if isinstance(error, FileNotFoundError) else _of_disk(file, error) or \
                Trouble("it is not an image, or damaged at its start", True)
        return Trouble("it is empty" if size == 0 else "it is not an image, or damaged at its start", True)
    except NoPictureError as error:
        return Trouble(str(error), False)
    except UnusableError as error:
        return _of_disk(file, error) or Trouble(str(error), True)
    except Image.DecompressionBombError:
        return Trouble(f"it has too many pixels (limit {most_pixels()}); scale it down", True)
    except MemoryError:
        return Trouble("it does not fit into memory", True)
    except PermissionError:
        return Trouble("this user may not read it", True)
    except FileNotFoundError as error:
        return _missing(file, error)
    except Exception as error:
        if (found := _of_disk(file, error)) is not None:
            return found
        # Pillow's decoders raise nearly anything on damaged bytes: OSError, SyntaxError, struct.error, KeyError, ...
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Trouble(text.rstrip("."), True)


def _missing(file: ImageFile, error: FileNotFoundError) -> Trouble:
    """A file that has gone since it was listed, or another one that its reader looks for."""
    if not file.path.exists():
        return Trouble("there is no such file", True, gone(file.path))
    name = Path(os.fsdecode(error.filename)).name if isinstance(error.filename, (str, bytes)) else ""
    return Trouble(f"there is no file {name}, which it needs" if name else "there is no file that it needs", True)


def _of_disk(file: ImageFile, error: BaseException) -> Trouble | None:
    """What a disk that fails to read a file makes of it; None for every other error.

    Raises: SystemTrouble for what is never about one file.
    """
    if (trouble := source_trouble(error, file.path)) is None:
        return None
    if not may_be_of_one_file(error):
        raise trouble from error
    return Trouble("the disk fails to read it", True, trouble)


# Many files -----------------------------------------------------------------------------------------------------------


def decoded(files: Iterable[ImageFile], form: Geometry, reading: Reading, ranges: dict[str, float]
            ) -> Generator[tuple[ImageFile, list[Picture] | Trouble]]:
    """Every file with its pictures, or with what is wrong, in order.

    Args:
        ranges: what the values of 16 bits are divided by at least; raised as brighter files are met.
    Raises: BadData when a package is missing.
    """
    ahead: deque[tuple[ImageFile, Future[list[Picture] | Trouble]]] = deque()
    with quiet(), ThreadPoolExecutor(_threads(), thread_name_prefix="decode") as pool:
        try:
            waiting, trouble = iter(files), None
            while True:
                try:
                    while trouble is None and len(ahead) < _WINDOW and (file := next(waiting, None)) is not None:
                        ahead.append((file, pool.submit(_pictures, file, form, reading, dict(ranges))))
                except Exception as error:  # what is wrong with files before it is said first
                    trouble = error
                if not ahead:
                    if trouble is not None:
                        raise trouble
                    return
                file, future = ahead.popleft()
                result = future.result()
                if not isinstance(result, Trouble):
                    for picture in result:
                        if picture.divided is not None:
                            kind, limit = picture.divided
                            ranges[kind] = max(limit, ranges.get(kind, 0.0))
                yield file, result
        finally:
            for _, future in ahead:
                future.cancel()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Decoded:
    """What became of many files."""

    squares: NDArray[np.uint8]
    """uint8 (N, C, S, S), in memory or mapped from a disk."""
    files: list[ImageFile]
    """Of each of the N."""
    names: tuple[str, ...]
    skipped: list[Skipped]
    ranges: dict[str, float]
    """What deep values were divided by."""
    tied: tuple[str, ...]
    """See `semisilo.common.data.image_set.ReadResult`."""
    patients: tuple[str, ...]
    """Of each of the N: a key of the patient that its file names; "" where it names none."""


def decode(files: Callable[[], Iterable[ImageFile]], number: int, *, form: Geometry, reading: Reading,
           on_error: OnError, where: str, ranges: Mapping[str, float] | None = None, num_files: int | None = None,
           progress: Callable[[float], None] | None = None, disk: Path | None = None) -> Decoded:
    """Reads files with a few threads, all with the same range of deep values.

    Args:
        files: called for each pass over the files; there is a second one when a bright 16-bit file comes after dark
            ones.
        number: pictures that these files hold at most, see `count_pictures`.
        where: what is read, for messages.
        ranges: a range that another part of the same source needs.
        num_files: how many files there are, for `progress`; `number` by default.
        disk: a folder on whose disk the squares lie; None for memory.
    Raises: BadData, naming the file, at the first that cannot be read if `on_error` is "stop"; when none can be; when
        a package is missing. SystemTrouble, whatever `on_error` says, where disk or share have gone away: also where
        more than a handful of files and a tenth of them are gone or fail to be read, or those read before are gone.
    """
    known = dict(ranges or {})
    told = progress
    squares = Squares(number, channels=form.channels, size=form.size, disk=disk)
    while True:
        before = dict(known)
        kept: list[ImageFile] = []
        names: list[str] = []
        patients: list[str] = []
        skipped: list[Skipped] = []
        away: list[SystemTrouble] = []
        lowest: dict[str, float] = {}
        of_volumes = False
        total = max(1, number if num_files is None else num_files)
        with closing(decoded(files(), form, reading, known)) as results:
            for done, (file, result) in enumerate(results, 1):
                if isinstance(result, Trouble):
                    if result.away is not None:
                        away.append(result.away)
                        _check_source(away, kept, total=total)
                    if result.broken and on_error == "stop":
                        raise _stopped_at(file, result, where, some=bool(kept), following=results)
                    reason = f"cannot be read: {result.reason}" if result.broken else result.reason
                    skipped.append(Skipped(file.name, reason, result.broken))
                elif len(kept) + len(result) > number:
                    skipped.append(Skipped(file.name, "cannot be read: it changed while it was read", True))
                else:
                    for picture in result:
                        squares.put(len(kept), picture.square)
                        kept.append(file)
                        patients.append(picture.patient)
                        names.append(file.name if picture.part is None else f"{file.name}[{picture.part}]")
                        of_volumes |= picture.of_volume
                        if picture.divided is not None:
                            kind, limit = picture.divided
                            lowest[kind] = min(limit, lowest.get(kind, limit))
                if told is not None and (done % _WINDOW == 0 or done == total):
                    told(min(1.0, done / total))
        if all(limit == known[kind] for kind, limit in lowest.items()):
            break
        assert known != before, "a second pass begins with a larger range"
        told = None
    _check_source(away, kept, total=total)  # it may have gone behind the last that was missed
    if not kept:
        if away:
            raise away[0]
        first = f": first is {skipped[0].name}, {skipped[0].reason}" if skipped else ""
        raise BadData(f"{where}: none of the {len(skipped)} images can be read{first}.", remedy=_ALL_ALIKE)
    return Decoded(squares=squares.finish(len(kept)), files=kept, names=tuple(names), skipped=skipped, ranges=known,
                   tied=(*sorted(lowest), *(["slices of a volume"] if of_volumes else [])), patients=tuple(patients))


def _check_source(away: Sequence[SystemTrouble], kept: Sequence[ImageFile], *, total: int) -> None:
    """Whether files that are gone, or that the disk fails to read, are single ones. A folder in use has such files, and
    a disk may have a bad sector; a share that is unmounted in the middle has lost those that were read as well.

    Raises: SystemTrouble, the first.
    """
    many = len(away) > _HANDFUL and len(away) > _SHARE * total
    if away and (many or (kept and not any(os.path.exists(file.path) for file in (kept[0], kept[-1])))):
        raise away[0]


_ALL_ALIKE = "Check that the files were copied completely and how they were exported."
"""Where no file can be read, so that leaving such files out would leave none."""


def _stopped_at(file: ImageFile, trouble: Trouble, where: str, *, some: bool,
                following: Iterable[tuple[ImageFile, list[Picture] | Trouble]]) -> BadData:
    """The error at a file that cannot be read; says how to leave it out only where that leaves any.

    Args:
        some: whether a file before it can be read.
    Raises: SystemTrouble where disk or share fail to give those after it, too.
    """
    looked_at = _LOOKED_AT if not some else _HANDFUL if trouble.away is not None else 0
    results = [result for _, result in itertools.islice(following, looked_at)]
    if trouble.away is not None and all(isinstance(each, Trouble) and each.away is not None for each in results) and (
            results or not some):
        raise trouble.away
    next_ones = [] if some else [not isinstance(result, Trouble) for result in results]
    text = f"{where}: {file.name} cannot be read: {trouble.reason}"
    if some or any(next_ones):
        return BadData(f"{text}.", remedy='Replace or remove it, or set on_error = "skip" to leave such files out.')
    return BadData(f"{text}{'; nor can those after it' if next_ones else ''}.", remedy=_ALL_ALIKE)

