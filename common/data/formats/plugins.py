"""Formats of others: installed plug-ins of the entry point group `semisilo.formats`, used only where they are named.

A plug-in is code that its owner has installed on this machine, as any package; none comes over the network. It is
imported for a source only if whoever owns the images names it: [data] formats of silo.toml at a silo, of the study file
for the coordinator's images. An entry point names an `ImageFormat`; its reader may be made of arrays:

    SLIDE = ImageFormat(name="slide", suffixes=(".slide",), open=lambda path: opened_array(read_my_slide(path)))

Tests: tests/common/data/formats/test_plugins.py.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from semisilo.common.data.formats import registry
from semisilo.common.data.formats.registry import IMAGE_FORMATS, SOURCE_FORMATS, ImageFormat
from semisilo.common.errors import BadConfiguration
from semisilo.common.system_errors import is_error_of_code

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from semisilo.common.data.form import Reading
    from semisilo.common.data.formats.picture import Header, OpenedImage, Picture
    from semisilo.common.data.formats.pixels import Geometry

__all__ = ["GROUP", "format_plugin", "installed_formats", "open_by_plugin", "opened_array",
           "use_formats"]

GROUP = "semisilo.formats"
_SUFFIX = re.compile(r"(\.[a-z0-9_-]+)+", re.ASCII)


def installed_formats() -> tuple[str, ...]:
    """Names of the installed plug-ins, sorted; none of them is imported for it."""
    return tuple(sorted({entry.name for entry in _entries(tuple(sys.path))}))


def use_formats(names: Sequence[str]) -> None:
    """From now on files of these plug-ins' formats, and of no others', are images in this process.

    Raises: BadConfiguration for a name that is not installed, or a plug-in that cannot be used.
    """
    registry.others = tuple(format_plugin(name) for name in names)


def format_plugin(name: str) -> ImageFormat:
    """An installed plug-in, imported.

    Raises: BadConfiguration, naming the package, when there is none, several, or one that cannot be used.
    """
    return _plugin(name, tuple(sys.path))


def opened_array(*pictures: NDArray[Any], patient: str = "") -> OpenedImage:
    """What a reader returns that has the pictures of a file as arrays.

    Args:
        pictures: each (H, W), or (H, W, 3) for colour; uint8, uint16, or fractions from 0 to 1. How deeper ones become
            8 bits is the study's, [data.image.reading], and without a window the whole source's, as for other files.
        patient: who it is, where the file says so: kept as a key, and never sent.
    Raises: UnusableError for arrays that are no pictures.
    """
    import numpy as np  # only where pixels are: light commands look for names

    from semisilo.common.data.formats.pixels import UnusableError

    arrays = tuple(np.asarray(each) for each in pictures)
    if not arrays:
        raise UnusableError("it holds no picture")
    for array in arrays:
        if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (1, 3)):
            raise UnusableError(f"its reader gives an array of the shape {array.shape}, not (H, W) or (H, W, 3)")
    return _Arrays(arrays, patient)


def open_by_plugin(plugin: ImageFormat, path: Path) -> OpenedImage:
    """A file by the reader of a plug-in. Raises: UnusableError where that ends the process, or gives something else
    than an opened image; what the reader raises."""
    from semisilo.common.data.formats.pixels import UnusableError

    try:
        opened: object = plugin.open(path)
    except (SystemExit, KeyboardInterrupt) as error:
        if not is_error_of_code(error):
            raise
        raise UnusableError(f"its reader ends with {type(error).__name__}") from error
    if not (hasattr(opened, "header") and hasattr(opened, "pictures")):
        raise UnusableError(f"its reader gives a {type(opened).__name__}, not what opened_array() returns")
    return cast("OpenedImage", opened)


@dataclass(frozen=True, slots=True, eq=False)
class _Arrays:
    """`OpenedImage` of arrays."""

    arrays: tuple[NDArray[Any], ...]
    patient: str

    def header(self, reading: Reading) -> Header:
        """See `OpenedImage`."""
        from semisilo.common.data.formats.picture import Header

        first = self.arrays[0]
        return Header(size=(first.shape[1], first.shape[0]), channels=_channels(first), bits=8 * first.dtype.itemsize,
                      pictures=len(self.arrays))

    def pictures(self, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> list[Picture]:
        """See `OpenedImage`."""
        from PIL import Image

        from semisilo.common.data.form import patient_key
        from semisilo.common.data.formats.picture import Picture, chosen, part_of
        from semisilo.common.data.formats.pixels import eight_bits, fitted

        those, found = chosen(len(self.arrays), reading.frames), []
        for index in those:
            array = self.arrays[index]
            values = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
            shown, divided = eight_bits(values, reading=reading, ranges=ranges)
            found.append(Picture(
                square=fitted(Image.fromarray(shown), form), divided=divided, width=array.shape[1],
                height=array.shape[0], channels=_channels(array), bits=8 * array.dtype.itemsize,
                part=part_of(those, len(self.arrays), index), patient=patient_key(self.patient)))
        return found


def _channels(array: NDArray[Any]) -> Literal[1, 3]:
    return 3 if array.ndim == 3 and array.shape[2] == 3 else 1


@functools.lru_cache(maxsize=4)
def _entries(path: tuple[str, ...]) -> tuple[Any, ...]:
    """The entry points. `path` is sys.path: what is found depends on it."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


@functools.lru_cache(maxsize=64)
def _plugin(name: str, path: tuple[str, ...]) -> ImageFormat:
    found = {(entry.value, _package(entry)): entry for entry in _entries(path) if entry.name == name}
    if not found:
        known = ", ".join(installed_formats()) or "none"
        raise BadConfiguration(f"[data] formats: there is no format plug-in '{name}' here.",
                               remedy=f"Install the package that has it. Installed: {known}.")
    if len(found) > 1:
        packages = ", ".join(sorted(package for _, package in found))
        raise BadConfiguration(f"The format '{name}' is offered by more than one package: {packages}.",
                               remedy="Uninstall all but one of them.")
    entry, = found.values()
    what = f"The format plug-in '{name}' of the package {_package(entry)}"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints would stand in the output of a command
            loaded = entry.load()
    except BaseException as error:
        if not is_error_of_code(error):
            raise
        lines = str(error).strip().splitlines()
        raise BadConfiguration(f"{what} cannot be imported: {type(error).__name__}: {lines[0] if lines else ''}",
                               remedy="Fix, reinstall or uninstall it.") from error
    if trouble := _trouble(name, loaded):
        raise BadConfiguration(f"{what} cannot be used: {trouble}.", remedy="Fix, update or uninstall it.")
    assert isinstance(loaded, ImageFormat)
    return loaded


def _trouble(name: str, loaded: object) -> str:
    """Why an object is not a format of that name; empty when it is."""
    if not isinstance(loaded, ImageFormat):
        return f"it names a {type(loaded).__name__}, not an ImageFormat"
    if loaded.name != name:
        return f"its format is called '{loaded.name}'"
    if not loaded.suffixes or not all(isinstance(each, str) and _SUFFIX.fullmatch(each) for each in loaded.suffixes):
        return "its suffixes are not of the form \".slide\", in small letters"
    taken = {suffix for formats in (IMAGE_FORMATS, SOURCE_FORMATS) for each in formats for suffix in each.suffixes}
    if mine := sorted(taken & set(loaded.suffixes)):
        return f"files that end in {mine[0]} have a reader already"
    return "" if callable(loaded.open) else "its reader cannot be called"


def _package(entry: Any) -> str:
    return "of unknown name" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
