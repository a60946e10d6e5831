"""The audit trail as a file for others: JSON for programs and for a check of the chain, CSV for a spreadsheet.

Times are ISO 8601 in UTC, with the zone.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semisilo.common.audit.chain import ChainedEvent
from semisilo.common.config import canonical_json
from semisilo.common.errors import BadData
from semisilo.common.text.logs import printable
from semisilo.common.text.spreadsheet import no_formula

__all__ = ["ExportAbout", "csv_lines", "json_pieces", "moment", "read_export"]

_COLUMNS = ("number", "time", "unix", "by", "origin", "kind", "study", "round", "silo", "detail", "chain")
_CELL_LETTERS = 30_000
"""A spreadsheet takes 32,767 in a cell."""
_HEAD_END, _END = ', "events": [\n', "]}\n"
"""The ends of the first and of the last line of a JSON export; each line between them is an event."""
_HEAD_LETTERS = 10_000
"""Longer than the first line is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportAbout:
    """What an export holds."""

    federation: str
    exported_unix: float
    complete: bool
    """Whether these are all events, so that the chain can be checked."""


def moment(unix: float) -> str:
    """A time that means the same everywhere, "2026-01-31T12:00:05.250+00:00"."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")


def json_pieces(events: Iterable[ChainedEvent], about: ExportAbout) -> Iterator[str]:
    """One JSON document, an event a line, piece by piece."""
    head = {"federation": about.federation, "exported": moment(about.exported_unix), "complete": about.complete}
    yield json.dumps(head, ensure_ascii=False)[:-1] + _HEAD_END
    separator = ""
    for event in events:
        detail = event.detail
        entry = {"number": event.number, "time": moment(event.unix), "unix": event.unix, "by": detail.get("by", ""),
                 "kind": event.kind, "study": event.study, "detail": detail, "chain": event.chain}
        yield separator + json.dumps(entry, ensure_ascii=False)
        separator = ",\n"
    yield "\n" + _END if separator else _END


def csv_lines(events: Iterable[ChainedEvent]) -> Iterator[str]:
    """A table with a header, an event a line. What begins like a formula gets an apostrophe: names and reasons come
    from elsewhere, and a spreadsheet would run it."""
    yield _row(_COLUMNS)
    for event in events:
        detail = event.detail
        named = {"number": event.number, "time": moment(event.unix), "unix": event.unix, "kind": event.kind,
                 "study": event.study, "detail": event.detail_json, "chain": event.chain}
        yield _row([_cell(named[name] if name in named else detail.get(name, "")) for name in _COLUMNS])


def read_export(path: Path) -> Iterator[ChainedEvent]:
    """The events of a complete JSON export, as they were written: one at a time where it is as `json_pieces` makes it,
    whose memory is that of one event; else, where a program has laid it out anew, after all of it was read.

    Raises: BadData when it is none, or holds only some of the events.
    """
    where = f"{path}: not an export of an audit trail"
    remedy = "Ask the coordinator's operator for: coordinator audit --format json"
    try:
        for entry in _entries(path, remedy):
            yield ChainedEvent(number=int(entry["number"]), unix=float(entry["unix"]), kind=str(entry["kind"]),
                               study=str(entry["study"]), detail_json=canonical_json(entry["detail"]),
                               chain=str(entry["chain"]))
    except (OSError, ValueError, RecursionError, TypeError, KeyError, OverflowError) as error:
        reason = f": {error.strerror}" if isinstance(error, OSError) else ""
        raise BadData(f"{where}{reason}.", remedy=remedy) from None


def _entries(path: Path, remedy: str) -> Iterator[Any]:
    """Raises: BadData where the export says that it holds only some; what reading and JSON raise, and KeyError."""
    def whole(complete: object) -> None:
        if complete is not True:
            raise BadData(f"{path} holds only some of the events.", remedy=f"{remedy}, without --study and --since.")

    with path.open(encoding="utf-8") as file:
        head = file.readline(_HEAD_LETTERS)
        if not head.endswith(_HEAD_END):
            document = json.loads(head + file.read())
            entries = document["events"]
            whole(document["complete"])
            yield from entries
            return
        whole(json.loads(head + _END)["complete"])
        before = ""  # the last line has no comma behind it, and the one after it ends the document
        for line in file:
            if line.rstrip() == _END.rstrip() and not file.read().strip():
                if before:
                    yield json.loads(before)
                return
            if before:
                if not before.endswith(",\n"):
                    raise ValueError("no comma between two events")
                yield json.loads(before[:-2])
            before = line
    raise ValueError("it is cut short")


def _row(cells: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return no_formula(printable(value, limit=_CELL_LETTERS))
    return value if isinstance(value, (int, float)) else canonical_json(value)
