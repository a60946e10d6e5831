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

from semisilo.common.audit.chain import ChainedEvent
from semisilo.common.config import canonical_json
from semisilo.common.errors import BadData
from semisilo.common.text.logs import printable
from semisilo.common.text.spreadsheet import no_formula

__all__ = ["ExportAbout", "csv_lines", "json_pieces", "moment", "read_export"]

_COLUMNS = ("number", "time", "unix", "by", "origin", "kind", "study", "round", "silo", "detail", "chain")
_CELL_LETTERS = 30_000
"""A spreadsheet takes 32,767 in a cell."""


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
    yield json.dumps(head, ensure_ascii=False)[:-1] + ', "events": ['
    separator = "\n"
    for event in events:
        detail = event.detail
        entry = {"number": event.number, "time": moment(event.unix), "unix": event.unix, "by": detail.get("by", ""),
                 "kind": event.kind, "study": event.study, "detail": detail, "chain": event.chain}
        yield separator + json.dumps(entry, ensure_ascii=False)
        separator = ",\n"
    yield "\n]}\n"


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
    """The events of a complete JSON export, as they were written.

    Raises: BadData when it is none, or holds only some of the events.
    """
    where = f"{path}: not an export of an audit trail"
    remedy = "Ask the coordinator's operator for: coordinator audit --format json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entries, complete = document["events"], document["complete"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        reason = f": {error.strerror}" if isinstance(error, OSError) else ""
        raise BadData(f"{where}{reason}.", remedy=remedy) from None
    if complete is not True:
        raise BadData(f"{path} holds only some of the events.", remedy=f"{remedy}, without --study and --since.")
    for entry in entries:
        try:
            yield ChainedEvent(number=int(entry["number"]), unix=float(entry["unix"]), kind=str(entry["kind"]),
                               study=str(entry["study"]), detail_json=canonical_json(entry["detail"]),
                               chain=str(entry["chain"]))
        except (TypeError, KeyError, ValueError, OverflowError):
            raise BadData(f"{where}.", remedy=remedy) from None


def _row(cells: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return no_formula(printable(value, limit=_CELL_LETTERS))
    return value if isinstance(value, (int, float)) else canonical_json(value)
