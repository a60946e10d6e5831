"""Parquet files with image files in them, as Hugging Face has them: file.parquet, or a folder of such files.

The column of images is a struct {bytes, path}, or binary. Names of classes come from the schema's metadata where
Hugging Face's `datasets` wrote it, or are the labels' own texts; whole numbers without names count into the study's
list of classes, and negative ones or nothing mean: no label. Settings follow a #, joined by &: image=COLUMN,
label=COLUMN (label=A,B,C are columns of 0 and 1, one for each class; label=none: there are no labels), and in a folder
train, test or another start of file names; by default train where there is one.

Rows are read a row group at a time, one column of images and nothing else, so a file may be larger than memory; what a
row group declares is compared with the memory that is free first. One value may stand for thousands of rows in a few
bytes: so many rows are taken at once that each could be as large as the row group, and labels are short.

Shapes: N rows.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import PATIENT_COLUMNS, patient_key
from semisilo.common.data.formats.extras import needed
from semisilo.common.data.formats.folder import ImageFile, class_name_of, study_spelling
from semisilo.common.data.formats.registry import PARQUET, format_by_name, has_suffix
from semisilo.common.data.multi_hot import NO_FINDING, findings_of
from semisilo.common.data.room import check_room
from semisilo.common.errors import BadData

__all__ = ["Rows", "files_of", "open_rows", "parquet_files"]

_IMAGE_NAMES = ("image", "img", "picture", "image_bytes", "bytes", "jpg", "jpeg", "png", "data", "content")
_LABEL_NAMES = ("label", "labels", "class", "target", "diagnosis", "dx", "category", "finding", "fine_label", "y")
_NO_COLUMN = "none"
"""Of label=: no column holds labels."""
_BATCH = 16
_BATCH_OF_LABELS = 4096
"""Rows that are taken at once, where they may be."""
_LARGEST_BATCH = 2**26
"""Bytes of such rows, if each were as large as the row group."""
_LONGEST_LABEL = 4096
"""Bytes of what says which class or whose an image is."""
_BUFFER = 2**20
_MAX_LABEL = 65535


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """What Parquet files hold, without the images."""

    source: str
    paths: tuple[Path, ...]
    """In byte order."""
    counts: tuple[int, ...]
    """Rows of each file."""
    image: str
    """The column, or the field of it, that holds the bytes."""
    labels_N: NDArray[np.int64] | None
    """-1 where there is none; None when the files have no labels at all. Where images may have several labels (N, K) of
    0, 1 and -1 for what is not known, a row of -1 where nothing is said."""
    classes: tuple[str, ...]
    classes_named: bool
    asked: tuple[str, ...] | None = None
    """As `semisilo.common.data.formats.folder.Listing.asked`."""
    patients: tuple[str, ...] = ()
    """A key of each row's patient, "" where it is not known; () without such a column."""

    @property
    def has_label_N(self) -> NDArray[np.bool_]:
        """Which rows have a label; of several, also those that say that the image shows nothing."""
        if self.labels_N is None:
            return np.zeros(self.number, dtype=bool)
        known: NDArray[np.bool_] = self.labels_N.reshape(self.number, -1).max(axis=1, initial=-1) >= 0
        return known

    @property
    def number(self) -> int:
        """Rows of all files."""
        return sum(self.counts)


def parquet_files(path: Path) -> tuple[Path, ...]:
    """The Parquet files that a path stands for: itself, or those in a folder or in its folder "data"; in byte order.

    None where the folder also holds images or other folders: then the images count, and the file is one of the others.
    """
    if has_suffix(path, PARQUET) and not path.is_dir():
        return (path,)
    if not path.is_dir():
        return ()
    for folder in (path, path / "data"):
        try:
            there = [each for each in folder.iterdir() if not each.name.startswith(".")]
            found = [each for each in there if has_suffix(each, PARQUET) and each.is_file()]
            others = found and any(format_by_name(each) or (each.is_dir() and each.name != "data") for each in there)
        except OSError:
            found, others = [], False
        if found and not others:
            return tuple(sorted(found, key=lambda each: each.name.encode(errors="surrogateescape")))
    return ()


def open_rows(paths: Sequence[Path], settings: str, *, source: str, multi_label: bool | None = False,
              classes: Sequence[str] = ()) -> Rows:
    """Reads the schema and the labels.

    Args:
        classes: the study's, once they are frozen: they keep its spelling.
        settings: what stands behind the #.
        multi_label: whether images may have several labels or none; None: where the file has lists of labels.
    Raises: BadData, naming file and column, when they cannot be read or understood, or pyarrow is not installed.
    """
    spelling = study_spelling(classes)

    def spelled(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(spelling.get(name, name) for name in names)

    named, split = _settings(settings, source)
    chosen = _of_split(tuple(paths), split, source)
    first = _opened(chosen[0], source)
    schema = first.schema_arrow
    features = _features(schema)
    column = _image_column(schema, features, named.get("image"), source)
    columns = named.get("label", "").split(",") if multi_label is not False and "," in named.get("label", "") else []
    columns = [_named_column(schema, name, source) for name in columns]
    label = columns[0] if columns else _label_column(schema, features, named.get("label"), source)
    patient = _patient_column(schema, named.get("patient"), source)
    counts: list[int] = []
    labels: list[Any] = []
    patients: list[str] = []
    for path in chosen:
        file = _opened(path, source)
        if not file.schema_arrow.equals(schema):
            raise BadData(f"{source}: {path.name} has other columns than {chosen[0].name}.",
                          remedy="Give one of them, or write them with the same columns.")
        counts.append(file.metadata.num_rows)
        if label is not None:
            labels += list(zip(*(_column(file, path, name, source) for name in columns), strict=True)) if columns else \
                _column(file, path, label, source)
        if patient is not None:
            patients += [patient_key("" if value is None else str(_whole(value)).strip())
                         for value in _column(file, path, patient, source)]
    if not sum(counts):
        raise BadData(f"{source}: has no rows.", remedy="Add images.")
    whose = tuple(patients) if any(patients) else ()
    feature = features.get(label or "", {})
    inside = feature.get("feature")
    described = feature.get("names", inside.get("names") if isinstance(inside, dict) else None)
    names = tuple(class_name_of(str(each)) for each in described) if isinstance(described, list) else ()
    if len(set(names)) < len(names):
        names = ()
    lists = bool(columns) or any(isinstance(each, list) for each in labels)
    if label is not None and (multi_label or (multi_label is None and lists)):
        rows_NK, found = _findings(labels, tuple(columns), names, source)
        own = spelled(found)
        return Rows(source=source, paths=chosen, counts=tuple(counts), image=column, labels_N=rows_NK, classes=own,
                    classes_named=True, asked=own if columns else None, patients=whose)
    labels_N, found, are_named = _aligned(labels, names, source) if label is not None else (None, (), False)
    return Rows(source=source, paths=chosen, counts=tuple(counts), image=column, labels_N=labels_N,
                classes=spelled(found), classes_named=are_named, patients=whose)


def files_of(rows: Rows, wanted: NDArray[np.bool_] | None = None) -> Iterator[ImageFile]:
    """The images of the wanted rows, one after another; one without bytes is an empty file.

    Raises: BadData, naming the file, when it is damaged or a row group does not fit into memory.
    """
    start = 0
    for path, count in zip(rows.paths, rows.counts, strict=True):
        file = _opened(path, rows.source)
        largest = _check_groups(file, path, rows.source)
        row = 0
        for batch in _batches(file, path, rows, largest):
            for value in batch:
                if row >= count:
                    break
                if wanted is None or wanted[start + row]:
                    class_name, findings = _said(rows, start + row)
                    yield ImageFile(path, f"{path.name}[{row}]", class_name, findings=findings,
                                    unsure=() if findings is None else _unsure(rows, start + row),
                                    patient=rows.patients[start + row] if rows.patients else "",
                                    content=value if isinstance(value, bytes) else b"")
                row += 1
        if row < count:
            raise _damaged(rows.source, path)
        start += count


def _said(rows: Rows, row: int) -> tuple[str, tuple[str, ...] | None]:
    """The class of a row, "" for none; and where there may be several its findings, None where nothing is said."""
    if rows.labels_N is None:
        return "", None
    label = rows.labels_N[row]
    if rows.labels_N.ndim == 2:
        return "", findings_of(label.tolist(), rows.classes) if int(label.max()) >= 0 else None
    return rows.classes[int(label)] if int(label) >= 0 else "", None


def _unsure(rows: Rows, row: int) -> tuple[str, ...]:
    """The classes that are not known of a row of which others are."""
    assert rows.labels_N is not None
    return tuple(name for name, label in zip(rows.classes, rows.labels_N[row].tolist(), strict=True) if label < 0)


def _batches(file: Any, path: Path, rows: Rows, largest: int) -> Iterator[list[Any]]:
    """The values of a few rows, again and again.

    Args:
        largest: bytes of the largest row group.
    """
    field = rows.image.partition(".")[2]
    try:
        for group in range(file.metadata.num_row_groups):
            for batch in file.iter_batches(batch_size=_at_once(_BATCH, largest), row_groups=[group],
                                           columns=[rows.image], use_threads=False):
                values = batch.column(0).to_pylist()
                yield [(value or {}).get(field) for value in values] if field else values
    except GeneratorExit:
        raise
    except MemoryError:
        raise BadData(f"{rows.source}: a row group of {path.name} does not fit into memory.",
                      remedy="Write it with smaller row groups.") from None
    except Exception:  # a library on bytes of any kind
        raise _damaged(rows.source, path) from None


# Opening --------------------------------------------------------------------------------------------------------------


def _settings(text: str, source: str) -> tuple[dict[str, str], str]:
    named: dict[str, str] = {}
    split = ""
    for piece in filter(None, text.split("&")):
        key, mark, value = piece.partition("=")
        if not mark:
            split = piece
        elif key == "split" and value:
            split = value
        elif key in ("image", "label", "patient") and value:
            named[key] = value
        else:
            raise BadData(f"{source}: '{piece}' is not understood.",
                          remedy="Behind the # stand image=COLUMN, label=COLUMN, patient=COLUMN and split=NAME, joined"
                                 " by &.")
    return named, split


def _of_split(paths: tuple[Path, ...], split: str, source: str) -> tuple[Path, ...]:
    if split and len(paths) == 1 and _starts(paths[0]) != split:
        raise BadData(f"{source}: a single file has no split '{split}'.", remedy="Leave that part out.")
    starts = {_starts(path) for path in paths}
    wanted = split or ("train" if "train" in starts else "")
    chosen = tuple(path for path in paths if _starts(path) == wanted) if wanted else paths
    if not chosen:
        raise BadData(f"{source}: has no split '{split}'.",
                      remedy=f"Its files begin with: {', '.join(sorted(starts)[:8])}.")
    return chosen


def _starts(path: Path) -> str:
    """What stands before the numbers of a file: "train" of train-00000-of-00002.parquet."""
    return path.stem.partition("-")[0]


def _opened(path: Path, source: str) -> Any:
    library = needed("pyarrow.parquet", PARQUET)
    if not path.exists():
        raise BadData(f"{source}: no such folder or file.", remedy="Give the place of the images.")
    try:
        # Nothing is read ahead: that would take the memory of a whole column.
        return library.ParquetFile(path, memory_map=False, pre_buffer=False, buffer_size=_BUFFER)
    except PermissionError:
        raise BadData(f"{source}: {path.name}: this user may not read it.", remedy="Let this user read it.") from None
    except Exception:  # a library on bytes of any kind
        raise _damaged(source, path) from None


def _damaged(source: str, path: Path) -> BadData:
    return BadData(f"{source}: {path.name} cannot be read as Parquet: it is damaged or cut off.",
                   remedy="Check that it was copied completely.")


def _check_groups(file: Any, path: Path, source: str) -> int:
    """Bytes of the largest row group, by what the file declares. Raises: BadData where it does not fit into memory.

    Not asked column by column: of damaged statistics there, the library ends the process.
    """
    try:
        sizes = [file.metadata.row_group(number).total_byte_size for number in range(file.metadata.num_row_groups)]
    except Exception:  # a library on bytes of any kind
        raise _damaged(source, path) from None
    largest: int = max(0, *sizes, 0)
    check_room(2 * largest, what=f"{source}: a row group of {path.name}", remedy="Write it with smaller row groups.")
    return largest


def _at_once(most: int, largest: int) -> int:
    """Rows to take at once: the value of each may be as large as the largest row group, for a dictionary holds it once
    for all of them."""
    return max(1, min(most, _LARGEST_BATCH // max(1, largest)))


def _column(file: Any, path: Path, name: str, source: str) -> list[Any]:
    """The labels or patients of all rows, equal texts only once in memory."""
    what = f"{source}: the labels of {path.name}"
    check_room(64 * file.metadata.num_rows, what=what, remedy="Split the file.")
    types = needed("pyarrow.types", PARQUET)
    rows = _at_once(_BATCH_OF_LABELS, _check_groups(file, path, source))
    values: list[Any] = []
    texts: dict[str, str] = {}
    try:
        for batch in file.iter_batches(batch_size=rows, columns=[name], use_threads=False):
            found = batch.column(0)
            entries = found
            if types.is_list(found.type) or types.is_large_list(found.type) or types.is_fixed_size_list(found.type):
                entries = found.flatten()
            if types.is_dictionary(entries.type):  # of which each batch has all
                entries = entries.dictionary_decode()
            if entries.nbytes > _LONGEST_LABEL * (1 + len(entries)):
                raise BadData(f"{source}: {path.name} has an entry of more than {_LONGEST_LABEL} bytes in its column"
                              f" '{name}'.", remedy="Name another column: what says a class or a patient is short.")
            check_room(16 * (entries.nbytes + 8 * len(found)), what=what, remedy="Split the file.")
            values += [texts.setdefault(value, value) if isinstance(value, str) else
                       None if value != value else value for value in found.to_pylist()]  # NaN: nothing is said
    except BadData:
        raise
    except MemoryError:
        raise BadData(f"{what} do not fit into memory.", remedy="Split the file.") from None
    except Exception:  # a library on bytes of any kind
        raise _damaged(source, path) from None
    if len(values) != file.metadata.num_rows:
        raise _damaged(source, path)
    return values


def _whole(value: Any) -> Any:
    """A whole number as one, also where it is a fraction by its type, as pandas writes a column with empty cells."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Columns --------------------------------------------------------------------------------------------------------------


def _features(schema: Any) -> Mapping[str, Mapping[str, object]]:
    """Hugging Face's description of each column; empty where there is none."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: what for name, what in found.items() if isinstance(what, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _image_column(schema: Any, features: Mapping[str, Mapping[str, object]], wanted: str | None, source: str) -> str:
    types = needed("pyarrow.types", PARQUET)

    def field_of(name: str) -> str | None:
        kind = schema.field(name).type
        if types.is_binary(kind) or types.is_large_binary(kind):
            return name
        if types.is_struct(kind) and any(kind.field(index).name == "bytes" for index in range(kind.num_fields)):
            return f"{name}.bytes"
        return None

    columns: list[str] = [name for name in schema.names if schema.names.count(name) == 1]
    if wanted is not None:
        wanted = _as_written(columns, wanted)
        if wanted not in columns or (found := field_of(wanted)) is None:
            raise BadData(f"{source}: has no column '{wanted}' with the bytes of images.",
                          remedy=f"Its columns: {', '.join(schema.names[:12])}.")
        return found
    possible = [name for name in columns if field_of(name) is not None]
    described = [name for name in possible if features.get(name, {}).get("_type") == "Image"]
    usual = [name for want in _IMAGE_NAMES for name in possible if name.casefold() == want]
    for names in (described, usual, possible):
        if names:
            column = field_of(names[0])
            assert column is not None
            return column
    raise BadData(f"{source}: has no column with the bytes of images.",
                  remedy=f"Its columns: {', '.join(schema.names[:12]) or 'none'}.")


def _label_column(schema: Any, features: Mapping[str, Mapping[str, object]], wanted: str | None, source: str
                  ) -> str | None:
    if wanted == _NO_COLUMN and _as_written(schema.names, wanted) not in schema.names:
        return None
    if wanted is not None:
        return _named_column(schema, wanted, source)
    described: list[str] = [name for name in schema.names if features.get(name, {}).get("_type") == "ClassLabel"]
    if len(described) == 1:
        return described[0]
    return next((str(name) for want in _LABEL_NAMES for name in schema.names if name.casefold() == want), None)


def _named_column(schema: Any, wanted: str, source: str) -> str:
    name = _as_written(schema.names, wanted)
    if name not in schema.names:
        raise BadData(f"{source}: has no column '{wanted}'.", remedy=f"Its columns: {', '.join(schema.names[:12])}.")
    return name


def _as_written(names: Sequence[str], wanted: str) -> str:
    """The column that is meant, whichever letters are composed in its name; `wanted` itself where there is none."""
    if wanted in names:
        return wanted
    return next((name for name in names if class_name_of(name) == class_name_of(wanted)), wanted)


def _patient_column(schema: Any, wanted: str | None, source: str) -> str | None:
    """The column that says whose image it is: the wanted one, or one with a usual name, of texts or numbers."""
    types = needed("pyarrow.types", PARQUET)

    def can_be(name: str) -> bool:
        kind = schema.field(name).type
        return bool(schema.names.count(name) == 1 and (
            types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)
            or types.is_floating(kind) or types.is_dictionary(kind)))

    if wanted is not None:
        wanted = _as_written(schema.names, wanted)
        if wanted not in schema.names or not can_be(wanted):
            raise BadData(f"{source}: has no column '{wanted}' of texts or numbers.",
                          remedy=f"Its columns: {', '.join(schema.names[:12])}.")
        return wanted
    return next((str(name) for want in PATIENT_COLUMNS for name in schema.names
                 if name.strip().casefold().replace(" ", "_") == want and can_be(name)), None)


def _findings(labels: list[Any], columns: tuple[str, ...], names: tuple[str, ...], source: str
              ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Rows of 0 and 1, a row of -1 where nothing is said, and the names of the classes: of columns of 0 and 1, of lists
    of names or numbers, or of texts with "|" between names."""
    if columns:
        if not all(value in (0, 1, -1, None) for row in labels for value in row):
            raise BadData(f"{source}: a column of labels holds something other than 0, 1 and -1.",
                          remedy="Columns of 0 and 1 are one for each class; -1 says that it is not known.")
        return np.array([[-1] * len(row) if all(value in (None, -1) for value in row) else
                         [int(value or 0) for value in row]
                         for row in labels], dtype=np.int64), tuple(map(class_name_of, columns))
    said: list[tuple[str, ...] | None] = []
    called = functools.cache(class_name_of)  # equal names only once in memory
    for row, value in enumerate(labels):
        each = value.split("|") if isinstance(value, str) else value
        if each is None or each == [""]:
            said.append(None)
        elif isinstance(each, list) and all(isinstance(one, str) or type(one) is int for one in each):
            if names and any(type(one) is int and not 0 <= one < len(names) for one in each):
                raise BadData(f"{source}: a label of row {row} is out of range.",
                              remedy="Fix the labels or the class names.")
            said.append(tuple(names[one] if names and type(one) is int else called(str(one).strip())
                              for one in each))
        else:
            raise BadData(f"{source}: the labels are neither lists nor texts.",
                          remedy="Name another column, or columns of 0 and 1, one for each class: #label=A,B,C.")
    there = {one for each in said for one in each or ()}
    classes = names or tuple(sorted(one for one in there if one.casefold() not in NO_FINDING))
    index = {name: label for label, name in enumerate(classes)}
    check_room(8 * len(said) * len(classes), what=f"{source}: labels of {len(classes)} classes",
               remedy="Name another column, or split the file.")
    rows_NK = np.zeros((len(said), len(classes)), dtype=np.int64)
    for row_K, each in zip(rows_NK, said, strict=True):
        if each is None:
            row_K[:] = -1
        else:
            row_K[[index[one] for one in each if one in index]] = 1
    return rows_NK, classes


def _aligned(labels: list[Any], names: tuple[str, ...], source: str) -> tuple[NDArray[np.int64], tuple[str, ...], bool]:
    """Indices into the list of classes, that list, and whether it is the file's own."""
    labels = [_whole(label) for label in labels]
    there = {type(label) for label in labels if label is not None}
    if there <= {int, bool}:
        found = np.array([-1 if label is None else min(max(int(label), -1), _MAX_LABEL + 1) for label in labels],
                         dtype=np.int64)
        highest = int(found.max(initial=-1))
        if highest > _MAX_LABEL or (names and highest >= len(names)):
            row = int(found.argmax())
            raise BadData(f"{source}: the label of row {row} is out of range.",
                          remedy="Fix the labels or the class names.")
        return (found, names, True) if names else (found, tuple(str(k) for k in range(highest + 1)), False)
    if there <= {str}:
        called = functools.cache(class_name_of)  # equal names only once in memory
        named = [called((label or "").strip()) for label in labels]
        texts = tuple(sorted(set(named) - {""}))
        index_of = {text: index for index, text in enumerate(texts)}
        return np.array([index_of.get(name, -1) for name in named], dtype=np.int64), texts, True
    raise BadData(f"{source}: the labels are neither whole numbers nor texts.",
                  remedy="Name another column: add #label=COLUMN; or #label=none if none holds labels.")
