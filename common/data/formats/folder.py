"""Folders of image files: what lies in them, and in which order.

Order is the byte order of the paths within the folder, so it is the same on every machine. Hidden files and the ones
that file managers leave behind are passed over in silence; other files that are no images are listed as skipped, and so
are folders that cannot be listed, links that lead nowhere, and what lies too deep. Of several links to one folder the
first counts: a few folders with links to each other could otherwise be a million paths. The decoders are limited to
raster formats: Pillow would otherwise hand PostScript to an external program.

Tests: tests/common/data/test_broken_folders.py.
"""

from __future__ import annotations

import errno
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from semisilo.common.data.formats.raster import is_raster
from semisilo.common.data.formats.registry import format_of, names_of_images
from semisilo.common.data.image_set import Skipped
from semisilo.common.errors import BadData
from semisilo.common.system_errors import gone, source_trouble

__all__ = ["ImageFile", "Listing", "class_name_of", "holds_files", "is_left_behind", "list_images", "study_spelling"]

_NAMED = 5
_DEEPEST = 64
"""Folders within each other."""
_AGAIN = "a link to a folder to which another link has led; its files are listed there"
_LEFT_BEHIND = frozenset(("thumbs.db", "desktop.ini", "__macosx"))


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file that is an image by its suffix, or by its first bytes where the suffix says nothing."""

    path: Path
    name: str
    """Path within the folder, with /, readable."""
    class_name: str
    """The first folder of `name`, in Unicode normal form C; empty when it lies at the top. Of a table: what it says."""
    content: bytes | None = None
    """The file itself where it lies within another one, at `path`."""
    patient: str = ""
    """A key of its patient, where folder, name or table say it."""
    findings: tuple[str, ...] | None = None
    """Of a table, where an image may have several labels: all that it shows, () for nothing; None where that is not
    said.
    """

    unsure: tuple[str, ...] = ()
    """Beside `findings`: the classes of which it is not known whether it shows them."""

    @property
    def has_label(self) -> bool:
        """Whether anything says what it shows, be it that it shows nothing."""
        return bool(self.class_name) or self.findings is not None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder holds."""

    images: tuple[ImageFile, ...]
    folders: tuple[str, ...]
    """Names of the top folders, sorted, also of those without images."""
    skipped: tuple[Skipped, ...]
    question: BadData | None = None
    """What must be said before its labels can be used: of a table, or of folders whose names are no text; without them
    it can be read."""
    asked: tuple[str, ...] | None = None
    """Where images have `findings`: the classes that every one of them was asked for. None: all that there are, so that
    what an image does not say it does not show."""

    def spelled_as(self, classes: Sequence[str]) -> Listing:
        """The same with the study's spelling of its classes, as `study_spelling` says."""
        new = study_spelling(classes)
        if not new:
            return self

        def names(found: Sequence[str]) -> tuple[str, ...]:
            return tuple(new.get(name, name) for name in found)

        images = tuple(replace(file, class_name=new.get(file.class_name, file.class_name), unsure=names(file.unsure),
                               findings=None if file.findings is None else names(file.findings))
                       for file in self.images)
        return replace(self, images=images, folders=names(self.folders),
                       asked=None if self.asked is None else names(self.asked))


def list_images(folder: Path) -> Listing:
    """All images under `folder`, at any depth.

    Raises: BadData when the folder cannot be listed, or holds no image, naming the first file that is none;
        SystemTrouble where disk or share have gone away, be it below the folder.
    """
    images, skipped = [], []
    for path, parts, wrong in _walk(folder):
        name = _readable("/".join(parts))
        if wrong:
            skipped.append(Skipped(name, wrong, broken=wrong != _AGAIN))
        elif parts[-1].upper() == "DICOMDIR":
            skipped.append(Skipped(name, "a DICOM directory, no picture"))
        elif format_of(path) or is_raster(path):
            images.append(ImageFile(path, name, class_name_of(parts[0]) if len(parts) > 1 else ""))
        else:
            skipped.append(Skipped(name, "not an image"))
    if not images:
        if not skipped:
            empty = "there is no image in its folders" if any(map(_is_folder, _entries(folder))) \
                else "the folder is empty"
            raise BadData(f"{folder}: {empty}.", remedy="Put images into it.")
        raise BadData(f"{folder}: found {len(skipped)} file{'s' * (len(skipped) > 1)}, none is an image: "
                      f"first is {skipped[0].name} ({skipped[0].reason}).",
                      remedy=f"Images are {names_of_images()} files.")
    names = [entry.name for entry in _entries(folder) if _is_folder(entry)]
    return Listing(tuple(images), tuple(sorted(set(map(class_name_of, names)))), tuple(skipped),
                   question=_of_unreadable(folder, names))


def _of_unreadable(folder: Path, names: Sequence[str]) -> BadData | None:
    """What is to be said before folders count as classes whose names are no text: two of them may look alike."""
    wrong = sorted(os.fsencode(name) for name in names if _readable(name) != name)
    if not wrong:
        return None
    first = ", ".join(f"'{name.decode('utf-8', 'backslashreplace')}'" for name in wrong[:_NAMED])
    return BadData(f"{folder}: the names of {len(wrong)} folder{'s' * (len(wrong) > 1)} are not in UTF-8:"
                   f" {first}{', ...' if len(wrong) > _NAMED else ''}.",
                   remedy="Rename them: the name of a class is a text. Images without a label may stay where they are.")


def holds_files(folder: Path) -> bool:
    """Whether there is any file under `folder`, leftovers apart. Raises: BadData when it cannot be listed."""
    return next(_walk(folder), None) is not None


def _walk(folder: Path) -> Iterator[tuple[Path, tuple[str, ...], str]]:
    """Files at any depth with their path parts, in byte order of paths; a link back to a folder above ends there.

    The text says what is wrong with a folder or file that cannot be looked at or is not entered, and is empty
    otherwise.
    """
    top = _identity(folder, ())
    above, linked = {top}, set[tuple[int, int]]()
    parts: tuple[str, ...] = ()
    levels = [(top, parts, iter(_in_order(_entries(folder))))]
    while levels:
        here, parts, entries = levels[-1]
        if (entry := next(entries, None)) is None:
            above.remove(here)
            levels.pop()
            continue
        path, inner = Path(entry.path), (*parts, entry.name)
        if not _is_folder(entry):
            if _is_file(entry):
                yield path, inner, ""
            elif entry.is_symlink():
                yield path, inner, "a link that leads nowhere, or to where this user may not look"
            continue
        identity = _identity(path, inner)
        if identity in above:
            continue
        if len(levels) > _DEEPEST:
            yield path, inner, f"the folder lies more than {_DEEPEST} folders deep, and is not looked into"
            continue
        if entry.is_symlink():
            if identity in linked:
                yield path, inner, _AGAIN
                continue
            linked.add(identity)
        try:
            found = _entries(path)
        except BadData:
            yield path, inner, "the folder cannot be listed: this user may not read it"
            continue
        above.add(identity)
        levels.append((identity, inner, iter(_in_order(found))))


def _identity(folder: Path, parts: tuple[str, ...]) -> tuple[int, int]:
    """What is the same of a folder by whichever path it is reached.

    Raises: BadData when it cannot be looked at; SystemTrouble where disk or share have gone away.
    """
    try:
        here = folder.stat()
    except OSError as error:
        raise source_trouble(error, folder) or (gone(folder) if parts and error.errno == errno.ENOENT else BadData(
            f"{folder}: cannot be looked at: {error.strerror}.", remedy="Let this user read it.")) from None
    return here.st_dev, here.st_ino


def _in_order(entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    """A folder sorts as "name/", so that the order is that of whole paths."""
    return sorted(entries, key=lambda entry: os.fsencode(entry.name) + (b"/" if _is_folder(entry) else b""))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link into what this user may not enter
        if (trouble := source_trouble(error, Path(entry.path))) is not None:
            raise trouble from error
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError as error:
        if (trouble := source_trouble(error, Path(entry.path))) is not None:
            raise trouble from error
        return False


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries
                    if not is_left_behind(entry.name)]
    except OSError as error:
        raise source_trouble(error, folder) or BadData(f"{folder}: the folder cannot be listed: {error.strerror}.",
                      remedy="Let this user read it.") from None


def is_left_behind(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or one that file managers leave where somebody has looked."""
    return name.startswith(".") or name.lower() in _LEFT_BEHIND


def _readable(name: str) -> str:
    try:
        return os.fsencode(name).decode("utf-8", "replace")
    except UnicodeEncodeError:  # half a character, of an array of text
        return name.encode("utf-8", "replace").decode()


def class_name_of(name: str) -> str:
    """A name as the class that it stands for, of a folder, a column, a cell or an array: a class must have one spelling
    at every site. macOS stores decomposed letters."""
    return unicodedata.normalize("NFC", _readable(name))


def study_spelling(classes: Sequence[str]) -> dict[str, str]:
    """How sources now call classes that a study has in another spelling, and how the study calls them: earlier versions
    took names as they were written, and a study, its silos and its models keep what it began with."""
    return {now: name for name in reversed(classes) for now in (class_name_of(name), class_name_of(name).strip())
            if now and now not in classes}
