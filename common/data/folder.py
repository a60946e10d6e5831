"""Folders of image files: what lies in them, in which order, and what each file's pixels are.

Order is the byte order of the paths within the folder, so it is the same on every machine. Hidden files and the ones
that file managers leave behind are passed over in silence; other files that are no images are listed as skipped. The
decoders are limited to raster formats: Pillow would otherwise hand PostScript to an external program.
"""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from common.data.image_set import Skipped
from common.data.pixels import UnusableError, square
from common.errors import BadData

__all__ = ["ImageFile", "Listing", "decode", "header", "holds_files", "list_images"]

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
_SUFFIXES = frozenset((
    ".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".jp2", ".j2k",
))
_LEFT_BEHIND = frozenset(("thumbs.db", "desktop.ini", "__macosx"))
_THREADS = 4
_WINDOW = 64
"""Decoded at a time, so that threads hold no more than this many squares and `_THREADS` originals."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file that is an image by its suffix, or by its first bytes where the suffix says nothing."""

    path: Path
    name: str
    """Path within the folder, with /, readable."""
    class_name: str
    """The first folder of `name`, in Unicode normal form C; empty when it lies at the top."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder holds."""

    images: tuple[ImageFile, ...]
    folders: tuple[str, ...]
    """Names of the top folders, sorted, also of those without images."""
    skipped: tuple[Skipped, ...]


def list_images(folder: Path) -> Listing:
    """All images under `folder`, at any depth.

    Raises: BadData when the folder cannot be listed, or holds no image, naming the first file that is none.
    """
    images, skipped = [], []
    for path, parts in _walk(folder, (), frozenset()):
        name = _readable("/".join(parts))
        if path.suffix.lower() in _SUFFIXES or _opens(path):
            images.append(ImageFile(path, name, _class_name(parts[0]) if len(parts) > 1 else ""))
        else:
            dicom = path.suffix.lower() in (".dcm", ".dicom")
            skipped.append(Skipped(name, "DICOM is not read; convert it to PNG" if dicom else "not an image"))
    if not images:
        if not skipped:
            raise BadData(f"{folder}: the folder is empty.", remedy="Put images into it.")
        raise BadData(f"{folder}: found {len(skipped)} file{'s' * (len(skipped) > 1)}, none is an image: "
                      f"first is {skipped[0].name} ({skipped[0].reason}).",
                      remedy="Images are PNG, JPEG, BMP, GIF, TIFF or WebP files.")
    folders = sorted(_class_name(entry.name) for entry in _entries(folder) if _is_folder(entry))
    return Listing(tuple(images), tuple(folders), tuple(skipped))


def holds_files(folder: Path) -> bool:
    """Whether there is any file under `folder`, leftovers apart. Raises: BadData when it cannot be listed."""
    return next(_walk(folder, (), frozenset()), None) is not None


def header(file: ImageFile) -> tuple[tuple[int, int], Literal[1, 3]] | None:
    """(width, height) and channels from the first bytes of a file; None when it is unreadable."""
    try:
        with warnings.catch_warnings(), Image.open(file.path, formats=_FORMATS) as image:
            warnings.simplefilter("ignore")
            return image.size, 1 if image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I") else 3
    except Exception:  # see `_pixels`
        return None


def decode(
    files: Sequence[ImageFile], *, size: int, channels: int, resize: str, on_error: Literal["stop", "skip"],
    folder: str, progress: Callable[[float], None] | None = None,
) -> tuple[NDArray[np.uint8], list[int], list[Skipped]]:
    """Reads the files with a few threads.

    Returns: uint8 (N, C, S, S); the index in `files` of each of the N; the files that could not be read.
    Raises: BadData, naming the file, at the first that cannot be read, unless `on_error` is "skip"; and when none can.
    """
    squares = np.empty((len(files), channels, size, size), dtype=np.uint8)
    kept: list[int] = []
    skipped: list[Skipped] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(_THREADS, thread_name_prefix="decode") as pool:
        warnings.simplefilter("ignore")  # a damaged tag is no reason to write over a progress display
        for start in range(0, len(files), _WINDOW):
            window = files[start : start + _WINDOW]
            results = pool.map(lambda file: _pixels(file.path, size, channels, resize), window)
            for place, (file, result) in enumerate(zip(window, results, strict=True), start):
                if not isinstance(result, str):
                    squares[len(kept)] = result
                    kept.append(place)
                elif on_error == "stop":
                    raise BadData(f"{folder}: {file.name} cannot be read: {result}.",
                                  remedy='Replace or remove it, or set on_error = "skip" to leave such files out.')
                else:
                    skipped.append(Skipped(file.name, f"cannot be read: {result}"))
            if progress is not None:
                progress(min(start + _WINDOW, len(files)) / len(files))
    if not kept:
        raise BadData(f"{folder}: none of the {len(files)} images can be read: first is {skipped[0].name}, "
                      f"{skipped[0].reason}.", remedy="Check that the files were copied completely.")
    return squares[: len(kept)], kept, skipped


def _pixels(path: Path, size: int, channels: int, resize: str) -> NDArray[np.uint8] | str:
    """The picture as uint8 (C, S, S), or why there is none."""
    limit = Image.MAX_IMAGE_PIXELS or 89_478_485
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > limit:
                return f"{image.width} x {image.height} pixels are too many (limit {limit}); scale it down"
            return square(image, size=size, channels=channels, resize=resize)
    except UnidentifiedImageError:
        return "it is empty" if path.stat().st_size == 0 else "it is not an image, or damaged at its start"
    except UnusableError as error:
        return str(error)
    except Image.DecompressionBombError:
        return f"it has too many pixels (limit {limit}); scale it down"
    except MemoryError:
        return "it does not fit into memory"
    except Exception as error:
        # Pillow's decoders raise nearly anything on damaged bytes: OSError, SyntaxError, struct.error, KeyError, ...
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return text.rstrip(".")


def _opens(path: Path) -> bool:
    """Whether a file whose suffix says nothing starts like an image."""
    try:
        with warnings.catch_warnings(), Image.open(path, formats=_FORMATS):
            return True
    except Exception:  # see `_pixels`
        return False


def _walk(
    folder: Path, parts: tuple[str, ...], above: frozenset[tuple[int, int]]
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Files at any depth with their path parts, in byte order of paths; a link back to a folder above ends there."""
    here = folder.stat()
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        return
    # A folder sorts as "name/", so that the order is that of whole paths.
    entries = sorted(((os.fsencode(entry.name) + (b"/" if _is_folder(entry) else b""), entry)
                      for entry in _entries(folder)), key=itemgetter(0))
    for key, entry in entries:
        inner = (*parts, entry.name)
        if key.endswith(b"/"):
            yield from _walk(Path(entry.path), inner, above | {identity})
        elif _is_file(entry):
            yield Path(entry.path), inner


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link into what this user may not enter
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries
                    if not entry.name.startswith(".") and entry.name.lower() not in _LEFT_BEHIND]
    except OSError as error:
        raise BadData(f"{folder}: the folder cannot be listed: {error.strerror}.",
                      remedy="Let this user read it.") from None


def _readable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")


def _class_name(name: str) -> str:
    # macOS stores decomposed letters; a class must have one spelling at every site.
    return unicodedata.normalize("NFC", _readable(name))
