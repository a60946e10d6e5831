"""A table that says which images there are and what they show: file.csv or file.tsv, with images beside it.

`file.csv` alone is enough where the columns have usual names. Otherwise settings follow a #, joined by &:

| setting         | meaning                                                                                     |
|-----------------|---------------------------------------------------------------------------------------------|
| file=COLUMN     | the column of file names                                                                    |
| label=COLUMN    | the column of labels; label=A,B,C are columns of 0 and 1, one for each class ("one-hot");   |
|                 | label=none: the table has none, whatever its other columns are                              |
| folder=FOLDER   | where the images are, from the table's folder on; by default there, at any depth            |
| split=NAME      | only rows whose column "split" ("set", "fold", "partition", "subset") says so               |
| several=WORD    | rows with several labels, where a study takes one: several=skip leaves them out,            |
|                 | several=unlabelled drops the labels                                                         |
| patient=COLUMN  | the column that says whose image it is; by default "patient_id" or the like                 |

A name in the table is a path within the folder, or a file name that occurs once in it, with or without its suffix; no
file outside the folder is ever opened. A row without a label is unlabelled. A cell such as "Cardiomegaly|Emphysema",
and several columns of 1 in a row, are several labels, which is no class: where labels count, such a table is refused
until several= says what becomes of these rows. Whole numbers count into the study's list of classes, from 0, unless its
classes are whole numbers themselves; a negative one among them says that there is no label.

In a study whose images may have several labels or none ([study] task = "multi_label") they are what they are: a row of
columns that are all 0, or a cell that says "No Finding", is an image that shows nothing, and one whose cells are empty
is unlabelled. A -1 in a column says that this class is not known of the image; an empty cell beside others that are
filled counts as 0, for the lists that leave cells empty do so where a report does not mention the class. Where several
rows name an image, it shows what any of them says.

Shapes: none; this makes a `Listing`, as a folder does.
"""

from __future__ import annotations

import csv
import io
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from semisilo.common.data.form import PATIENT_COLUMNS, patient_key
from semisilo.common.data.formats.folder import ImageFile, Listing, class_name_of, list_images
from semisilo.common.data.formats.registry import TABLE, has_suffix
from semisilo.common.data.image_set import Skipped
from semisilo.common.data.multi_hot import NO_FINDING
from semisilo.common.data.room import check_room
from semisilo.common.errors import BadData
from semisilo.common.system_errors import source_trouble
from semisilo.common.text.describe import counted

__all__ = ["COUNTED_ONCE", "is_table", "list_table"]

COUNTED_ONCE = "counted once"
"""What ends a line about an image that several rows name."""

_FILE_NAMES = ("file", "filename", "file_name", "filepath", "file_path", "path", "relative_path", "image", "image_path",
               "image_name", "image_file", "image_id", "image_index", "img", "img_path", "dicom", "id", "name")
_LABEL_NAMES = ("label", "labels", "class", "class_name", "class_id", "label_name", "diagnosis", "dx", "target",
                "category", "finding", "finding_labels", "finding_label", "y")
_SPLIT_NAMES = ("split", "set", "fold", "partition", "subset")
_NO_LABEL = frozenset(("", "nan", "na", "n/a", "null", "?"))
_SETTINGS = ("file", "label", "folder", "split", "several", "patient")
_SEVERAL = ("skip", "unlabelled")
_NO_COLUMN = "none"
"""Of label=: no column holds labels."""
_BETWEEN = "|"
"""What no name of a class holds, and data sets of chest films put between the labels of an image."""
_PERHAPS_BETWEEN = (";", ",", "/", "+", "&")
"""What a name may hold, and what stands between labels where each of them occurs alone, too."""
_NOT_THERE = "named in the table, but there is no such image"
_LARGEST = 2**27
"""Bytes of a table: some three million rows with a path, a label and a patient."""
_TIMES, _ROW, _CELL = 4, 400, 80
"""What a table takes of memory at most, as measured: its text so many times, and bytes for each row and each cell."""
_LONGEST_FIELD = 2**16
_DELIMITERS = (",", ";", "\t", "|")


def is_table(path: Path) -> bool:
    """Whether the name is that of a table."""
    return has_suffix(path, TABLE)


@dataclass(frozen=True, slots=True)
class _Columns:
    file: int
    labels: tuple[int, ...]
    """One column of class names or numbers; several of 0 and 1; none without labels."""
    split: int | None
    patient: int | None
    question: BadData | None = None
    """Why no column of labels was found."""


def list_table(path: Path, settings: str, *, source: str, classes: tuple[str, ...] = (), multi_label: bool = False
               ) -> Listing:
    """The images that a table names, those with a label in `class_name`; in byte order of their paths.

    Rows that name no file, or one that another row calls something else, are listed as skipped.
    Args:
        settings: what stands behind the #.
        classes: the study's classes in label order, once they are frozen: whole numbers count into them.
        multi_label: whether images may have several labels or none: these are then in `findings`.
    Raises: BadData, naming table and column, when it cannot be read or understood, or names no image that is there.
    """
    wanted = _settings(settings, source)
    if multi_label and "several" in wanted:
        raise BadData(f"{source}: several={wanted['several']} has no meaning in a study whose images may have several"
                      " labels.", remedy="Leave that part out.")
    head, rows, lines = _rows(path, source)
    columns = _columns(head, rows, wanted, source)
    called = [head[index] for index in columns.labels]
    if (double := next((name for name in called if called.count(name) > 1), None)) is not None:
        columns = replace(columns, question=BadData(
            f"{source}: several columns of labels are called '{double}'.", remedy="Give each class one column."))
    if columns.split is not None:
        chosen = [at for at, row in enumerate(rows) if _cell(row, columns.split) == wanted["split"]]
        rows, lines = [rows[at] for at in chosen], [lines[at] for at in chosen]
        if not rows:
            raise BadData(f"{source}: no row's column '{head[columns.split]}' says '{wanted['split']}'.",
                          remedy="Fix the part behind #split=.")
    folder = path.parent / wanted.get("folder", "")
    if not folder.is_dir():
        raise BadData(f"{source}: there is no folder {folder}.", remedy="Fix the part behind #folder=.")
    told = [_labels(row, columns, head, line, source) for line, row in zip(lines, rows, strict=True)]
    told = _known(_alone(told), classes) if len(columns.labels) == 1 else told
    if multi_label:
        findings, names = _as_findings(told, rows, columns, head, classes)
        found = _listed([""] * len(rows), findings, names, (), columns, rows, lines, folder, source, columns.question,
                        unsure=_unsure(rows, columns, head, names))
        return replace(found, asked=names) if len(columns.labels) > 1 else found
    several = [line for line, each in zip(lines, told, strict=True) if len(each) > 1]
    left_out: list[Skipped] = []
    question = columns.question
    if several:
        if "several" not in wanted:
            question = question or _several_labels(several, told, source)
        elif wanted["several"] == "skip":
            left_out = [Skipped(f"row {line}", "has several labels", unchosen=True) for line in several]
            kept = [at for at, each in enumerate(told) if len(each) <= 1]
            rows, lines, told = [rows[at] for at in kept], [lines[at] for at in kept], [told[at] for at in kept]
    unsure = next((line for line, row in zip(lines, rows, strict=True) if _says_unknown(row, columns)), None)
    if unsure is not None:
        question = question or BadData(
            f"{source}: row {unsure} says of a class that it is not known (-1), and a study takes one label for each"
            " image.",
            remedy='Set [study] task = "multi_label", or name a column of your own with one label: label=COLUMN.')
    labels = [each[0] if len(each) == 1 else "" for each in told]
    open_rows = [each if len(each) > 1 and "several" not in wanted else None for each in told]
    if len(columns.labels) > 1:
        names = tuple(head[index] for index in columns.labels)
    else:
        names, labels = _as_classes(labels, classes)
    return _listed(labels, open_rows, names, left_out, columns, rows, lines, folder, source, question)


def _listed(labels: list[str], findings: Sequence[tuple[str, ...] | None], names: tuple[str, ...],
            left_out: Sequence[Skipped], columns: _Columns, rows: list[list[str]], lines: Sequence[int], folder: Path,
            source: str, question: BadData | None, *, unsure: Sequence[tuple[str, ...]] = ()) -> Listing:
    """The images of the rows. Raises: BadData when none is there."""
    patients = ["" if columns.patient is None else patient_key(_whole(_cell(row, columns.patient)))
                for row in rows]
    found, skipped = _matched([_cell(row, columns.file) for row in rows], labels, findings, patients, lines,
                              _FilesByName(list_images(folder)), unsure or [()] * len(rows))
    if not found:
        if other := next((each for each in (*skipped, *left_out) if each.reason != _NOT_THERE), None):
            number = counted(len(rows) + len(left_out), "row")
            raise BadData(f"{source}: has {number}, and none can be used; the first: {other.name} ({other.reason}).",
                          remedy="Correct these rows of the table.")
        raise BadData(f"{source}: names {counted(len(rows), 'image')}, none of them is in {folder.absolute()}.",
                      remedy="Name the folder: add #folder=images, from the table's own folder on.")
    return Listing(tuple(found), names, (*left_out, *skipped), question)


def _as_findings(told: Sequence[tuple[str, ...]], rows: Sequence[Sequence[str]], columns: _Columns, head: Sequence[str],
                 classes: tuple[str, ...]) -> tuple[list[tuple[str, ...] | None], tuple[str, ...]]:
    """What each row's image shows, None where the row does not say, and the names of all classes."""
    if len(columns.labels) > 1:
        kept = [index for index in columns.labels if head[index].casefold() not in NO_FINDING or head[index] in classes]
        names = tuple(head[index] for index in kept)
        said = [any(_cell(row, index) and not _is_unknown(_cell(row, index)) for index in columns.labels)
                for row in rows]
        return [tuple(name for name in each if name in names) if is_said else None
                for each, is_said in zip(told, said, strict=True)], names
    pieces = sorted({piece for each in told for piece in each})
    names, renamed = _as_classes([piece for piece in pieces if not _is_nothing(piece, classes)], classes)
    new = dict(zip((piece for piece in pieces if not _is_nothing(piece, classes)), renamed, strict=True))
    return [tuple(new[piece] for piece in each if piece in new) if each else None for each in told], names


def _unsure(rows: Sequence[Sequence[str]], columns: _Columns, head: Sequence[str], names: tuple[str, ...]
            ) -> list[tuple[str, ...]]:
    """The classes of which each row says that it is not known."""
    if len(columns.labels) == 1:
        return [()] * len(rows)
    return [tuple(head[index] for index in columns.labels if head[index] in names and _is_unknown(_cell(row, index)))
            for row in rows]


def _is_nothing(piece: str, classes: tuple[str, ...]) -> bool:
    return piece.casefold() in NO_FINDING and piece not in classes


def _settings(text: str, source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for piece in filter(None, text.split("&")):
        key, mark, value = piece.partition("=")
        if key not in _SETTINGS or not mark or not value:
            raise BadData(f"{source}: '{piece}' is not understood.",
                          remedy="Behind the # stand file=COLUMN, label=COLUMN, folder=FOLDER, split=NAME,"
                                 " several=skip or unlabelled, and patient=COLUMN, joined by &.")
        if key == "several" and value not in _SEVERAL:
            raise BadData(f"{source}: '{piece}' is not understood.", remedy="Write several=skip or several=unlabelled.")
        found[key] = value
    return found


# Reading the table ----------------------------------------------------------------------------------------------------


def _rows(path: Path, source: str) -> tuple[list[str], list[list[str]], list[int]]:
    """The heading, the rows, and the number of each as a spreadsheet shows it; empty rows are passed over.

    Raises: BadData for what is no table, or has more rows than fit into memory.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise BadData(f"{source}: is larger than a table of images can be.", remedy="Is it the right file?")
        data = path.read_bytes()
    except OSError as error:
        raise source_trouble(error, path) or BadData(f"{source}: cannot be read: {error.strerror}.",
                                               remedy="Let this user read it.") from None
    if b"\0" in data[:4096]:
        raise BadData(f"{source}: is not a table of text, whatever its name says.", remedy="Save it as CSV in UTF-8.")
    encoding, errors = "utf-8-sig", "strict"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        encoding, errors = "cp1252", "replace"  # spreadsheets of western Europe
        text = data.decode(encoding, errors)
    ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    cells = ends + sum(map(text.count, _DELIMITERS))
    check_room(_TIMES * sys.getsizeof(text) + _ROW * ends + _CELL * cells, what=f"{source}: its rows",
               remedy="Split the table, or use a machine with more memory.")
    end = text.find("\n")
    first = text if end < 0 else text[:end]
    del text  # what follows takes it from the bytes again, a little at a time
    stream = io.TextIOWrapper(io.BytesIO(data), encoding=encoding, errors=errors, newline="")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(_DELIMITERS, key=first.count)
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        lines = [(number, row) for number, row in enumerate(
            csv.reader(stream, delimiter=delimiter, strict=True), 1)
                 if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise BadData(f"{source}: is not a table: {error}.", remedy="Save it as CSV again.") from None
    if len(lines) < 2:
        raise BadData(f"{source}: the table has no rows.", remedy="It needs a heading and a row for each image.")
    numbers, rows = zip(*lines, strict=True)
    return [class_name_of(cell.strip()) for cell in rows[0]], list(rows[1:]), list(numbers[1:])


def _cell(row: Sequence[str], column: int) -> str:
    return class_name_of(row[column].strip()) if column < len(row) else ""


def _plain(name: str) -> str:
    return "_".join(name.casefold().replace("-", " ").replace(".", " ").replace("_", " ").split())


def _columns(head: list[str], rows: list[list[str]], wanted: dict[str, str], source: str) -> _Columns:
    plain = [_plain(name) for name in head]

    def named(text: str) -> int:
        name = class_name_of(text)
        for names, one in ((head, name), (plain, _plain(name))):
            if one in names:
                return names.index(one)
        raise BadData(f"{source}: has no column '{name}'.", remedy=f"Its columns: {_shown(head)}.")

    def usual(names: tuple[str, ...]) -> int | None:
        return next((plain.index(name) for name in names if name in plain), None)

    file = named(wanted["file"]) if "file" in wanted else usual(_FILE_NAMES)
    if file is None:
        raise BadData(f"{source}: which column holds the file names? Its columns: {_shown(head)}.",
                      remedy="Say it: add #file=COLUMN.")
    split = None
    if "split" in wanted:
        split = usual(_SPLIT_NAMES)
        if split is None:
            raise BadData(f"{source}: has no column 'split', 'set', 'fold', 'partition' or 'subset'.",
                          remedy="Leave the part #split= out.")
    patient = named(wanted["patient"]) if "patient" in wanted else usual(PATIENT_COLUMNS)
    if wanted.get("label") == _NO_COLUMN:
        return _Columns(file, (), split, patient)
    if "label" in wanted:
        return _Columns(file, tuple(named(name) for name in wanted["label"].split(",")), split, patient)
    label = usual(_LABEL_NAMES)
    if label is not None and label != file:
        return _Columns(file, (label,), split, patient)
    # A column without a name is what pandas numbers rows by.
    others = [index for index in range(len(head)) if index not in (file, split, patient) and head[index]]
    ones = [index for index in others if all(
        _flag(cell := _cell(row, index)) is not None or _is_unknown(cell) for row in rows)]
    if others and len(ones) != len(others):
        return _Columns(file, (), split, patient, BadData(
            f"{source}: which column holds the labels? Its columns: {_shown(head)}.",
            remedy="Say it: add #label=COLUMN, #label=A,B,C for columns of 0 and 1, or #label=none if none does."))
    return _Columns(file, tuple(ones), split, patient)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _flag(text: str) -> bool | None:
    """0 or 1, however it is written; None for anything else."""
    if text.casefold() in ("", "false"):
        return False
    if text.casefold() == "true":
        return True
    try:
        value = float(text)
    except ValueError:
        return None
    return bool(value) if value in (0.0, 1.0) else None


def _says_unknown(row: Sequence[str], columns: _Columns) -> bool:
    return len(columns.labels) > 1 and any(_is_unknown(_cell(row, index)) for index in columns.labels)


def _is_unknown(text: str) -> bool:
    """Whether a cell says -1: it is not known whether the image shows the class, as CheXpert and MIMIC-CXR have it."""
    try:
        return float(text) == -1
    except ValueError:
        return False


def _labels(row: list[str], columns: _Columns, head: list[str], line: int, source: str) -> tuple[str, ...]:
    """The labels of a row; none, one, or several."""
    if not columns.labels:
        return ()
    if len(columns.labels) == 1:
        text = _cell(row, columns.labels[0])
        return () if text.casefold() in _NO_LABEL else _pieces(text, _BETWEEN)
    cells = [_cell(row, index) for index in columns.labels]
    flags = [False if _is_unknown(cell) else _flag(cell) for cell in cells]
    if None in flags:
        column = head[columns.labels[flags.index(None)]]
        raise BadData(f"{source}: row {line} has neither 0 nor 1 in the column '{column}'.",
                      remedy="Columns of 0 and 1 are one for each class; -1 says that it is not known.")
    return tuple(head[index] for index, flag in zip(columns.labels, flags, strict=True) if flag)


def _pieces(text: str, between: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(piece.strip() for piece in text.split(between) if piece.strip())) or (text,)


def _alone(told: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The same with labels apart that stand in one cell with a comma or the like between them: where each of them
    stands in a cell of its own, too."""
    single = {each[0] for each in told if len(each) == 1}
    apart: dict[str, tuple[str, ...]] = {}
    for text in single:
        for between in _PERHAPS_BETWEEN:
            pieces = _pieces(text, between)
            if len(pieces) > 1 and all(piece in single for piece in pieces):
                apart[text] = pieces
                break
    return [apart.get(each[0], each) if len(each) == 1 else each for each in told] if apart else told


def _known(told: list[tuple[str, ...]], classes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The same, without a label where that is a negative whole number among whole ones: so it is said of an image that
    its class is not known."""
    there = {piece for each in told for piece in each}
    below = {piece for piece in there if piece.startswith("-") and _number(piece[1:]) is not None} - {*classes}
    if not below or any(_number(piece) is None for piece in there - below):
        return told
    return [() if below.intersection(each) else each for each in told]


def _several_labels(lines: Sequence[int], told: Sequence[tuple[str, ...]], source: str) -> BadData:
    """What is to be said where nothing says what becomes of rows with several labels."""
    first = next(each for each in told if len(each) > 1)
    return BadData(f"{source}: {len(lines)} of {len(told)} rows have several labels, row {lines[0]} for example"
                   f" {_shown(first)}. A study takes one label for each image, unless it says [study] task ="
                   ' "multi_label".',
                   remedy=f"Add {'&' if '#' in source else '#'}several=skip to leave these rows out, several=unlabelled"
                          " to use their images without a label, or a column of your own with one label: label=COLUMN.")


def _as_classes(labels: list[str], classes: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Class names as they occur, and the label of each row as one of them.

    Where the study's classes are whole numbers themselves, a number is the class of this name, also where it is written
    3.0; else whole numbers count into its classes.
    """
    there = {label for label in labels if label}
    number = {label: _number(label) for label in there}
    if not there or None in number.values() or there <= set(classes):
        return tuple(sorted(there)), labels
    numbers = {label: value for label, value in number.items() if value is not None}
    named = {_number(name): name for name in reversed(classes)}
    if named and None not in named:
        called = {label: label if label in classes else named.get(value, str(value))
                  for label, value in numbers.items()}
        return tuple(sorted(set(called.values()))), [called[label] if label else "" for label in labels]
    last = max(numbers.values())
    names = classes if classes and last < len(classes) else tuple(str(value) for value in range(last + 1))
    return names, [names[numbers[label]] if label else "" for label in labels]


def _whole(text: str) -> str:
    """A whole number without the ".0" that spreadsheets and pandas write behind it where the column has empty cells."""
    head, _, tail = text.partition(".")
    return head if head.isascii() and head.isdigit() and tail and not tail.strip("0") else text


def _number(text: str) -> int | None:
    """A small whole number, also written 3.0 as spreadsheets do."""
    head, _, tail = text.partition(".")
    return int(head) if head.isascii() and head.isdigit() and len(head) <= 5 and not tail.strip("0") else None


# Finding the images ---------------------------------------------------------------------------------------------------


class _FilesByName:
    """Files by what a table may call them."""

    def __init__(self, listing: Listing) -> None:
        self._by_path = {unicodedata.normalize("NFC", file.name): file for file in listing.images}
        self._by_name: dict[str, list[ImageFile]] = {}
        self._by_end: dict[str, ImageFile | None] = {}
        for file in listing.images:
            name = unicodedata.normalize("NFC", file.name.rpartition("/")[2])
            for each in {name, name.partition(".")[0], name.rpartition(".")[0]} - {""}:
                self._by_name.setdefault(each, []).append(file)

    def find(self, name: str) -> ImageFile | str:
        """The file, or why there is none."""
        name = name.replace("\\", "/")
        path = name.removeprefix("./")
        if path in self._by_path:
            return self._by_path[path]
        # A path of another machine: the file whose path agrees furthest from the right.
        candidates = self._by_name.get(path.rpartition("/")[2], [])
        if len(candidates) > 1 and (whole := self._of_path(path)) is not None:
            return whole
        if not candidates:
            return _NOT_THERE
        return candidates[0] if len(candidates) == 1 else f"the name fits {len(candidates)} images in the folder"

    def _of_path(self, path: str) -> ImageFile | None:
        """The one file whose whole path the end of `path` is, or whose path, with or without its suffix, ends so; None
        where there is none or several. Looked up: many folders may have a file of the same name."""
        if not self._by_end:
            for name, file in self._by_path.items():
                suffix = name.rpartition("/")[2].rpartition(".")[2]
                for end in (*_ends_of(name), *_ends_of(name.removesuffix(f".{suffix}"))):
                    self._by_end[end] = file if self._by_end.get(end, file) is file else None
        found = [self._by_path[end] for end in _ends_of(path) if end in self._by_path]
        if path in self._by_end:
            if (ends_so := self._by_end[path]) is None:
                return None
            found.append(ends_so)
        return found[0] if found and all(each is found[0] for each in found) else None


def _ends_of(path: str) -> Iterator[str]:
    """A path from each of its parts on, the whole one first."""
    while path:
        yield path
        path = path.partition("/")[2]


def _matched(names: list[str], labels: list[str], findings: Sequence[tuple[str, ...] | None], patients: list[str],
             lines: Iterable[int], files: _FilesByName, unsure: Sequence[tuple[str, ...]]
             ) -> tuple[list[ImageFile], list[Skipped]]:
    rows: dict[str, tuple[ImageFile, set[str], int]] = {}
    skipped: list[Skipped] = []
    of: dict[str, str] = {}
    shows: dict[str, tuple[str, ...]] = {}
    open_: dict[str, set[str]] = {}
    for line, name, label, finding, patient, unknown in zip(lines, names, labels, findings, patients, unsure,
                                                            strict=True):
        if not name:
            skipped.append(Skipped(f"row {line}", "names no file", broken=True))
            continue
        file = files.find(name)
        if isinstance(file, str):
            skipped.append(Skipped(name, file, broken=True))
            continue
        _, seen, count = rows.setdefault(file.name, (file, set(), 0))
        seen.add(label)
        rows[file.name] = (file, seen, count + 1)
        of[file.name] = of.get(file.name) or patient
        if finding is not None:
            shows[file.name] = tuple(dict.fromkeys((*shows.get(file.name, ()), *finding)))
            open_[file.name] = open_.get(file.name, set(unknown)) & set(unknown)  # what any row knows is known
    found = []
    for file, seen, count in rows.values():
        named = seen - {""}
        if len(named) > 1:
            skipped.append(Skipped(file.name, f"listed {count} times, as {' and '.join(sorted(named))}", broken=True))
            continue
        if count > 1 and file.name not in shows:
            skipped.append(Skipped(file.name, f"listed {count} times; {COUNTED_ONCE}", counts=True))
        found.append(ImageFile(file.path, file.name, next(iter(named), ""), patient=of[file.name],
                               findings=shows.get(file.name), unsure=tuple(sorted(open_.get(file.name, ())))))
    found.sort(key=lambda file: file.name.encode())
    skipped.sort(key=lambda item: item.name.encode())
    return found, skipped
