"""What `silo disclosures` shows: lines of the record, chosen, added up, and written as a table or as CSV.

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from semisilo.common.errors import UsageError
from semisilo.common.text.describe import describe_bytes
from semisilo.common.text.logs import printable
from semisilo.common.text.spreadsheet import no_formula
from semisilo.common.text.wrapped import wrapped
from semisilo.silo.site.disclosures import KINDS, Broken, Line

__all__ = ["Chosen", "as_csv", "as_json", "as_text", "choose", "csv_pieces", "json_pieces"]

_COLUMNS = ("time", "kind", "study", "round", "phase", "method", "groups", "bytes", "digest", "num_examples", "metrics",
            "text", "content", "update_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Lines of the record, oldest first."""

    lines: tuple[Line, ...]
    broken: tuple[Broken, ...]
    """Lines that cannot be read: of the whole record, whatever was asked for."""


def choose(lines: Iterable[Line | Broken], *, study: str | None = None, kinds: Sequence[str] = (),
           since: float | None = None) -> Chosen:
    """The lines that were asked for. One without a readable time is in, whatever `since` says: nothing is hidden.

    Raises: UsageError for a kind that there is not.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"--kind: there is no '{printable(kind, limit=60)}'.",
                             remedy=f"Known: {', '.join(KINDS)}.")
    found: list[Line] = []
    broken: list[Broken] = []
    for line in lines:
        if isinstance(line, Broken):
            broken.append(line)
        elif ((study is None or line.study == study) and (not kinds or line.kind in kinds)
              and (since is None or line.unix is None or line.unix >= since)):
            found.append(line)
    return Chosen(lines=tuple(found), broken=tuple(broken))


def totals(chosen: Chosen) -> dict[str, dict[str, int]]:
    """Kind -> {"lines", "bytes"}, in the order of `KINDS`."""
    order = (*KINDS, *sorted({line.kind for line in chosen.lines} - set(KINDS)))
    return {kind: {"lines": len(of), "bytes": sum(line.bytes for line in of)} for kind in order
            if (of := [line for line in chosen.lines if line.kind == kind])}


def as_json(chosen: Chosen, *, path: str) -> dict[str, object]:
    """Plain JSON types: the record's path, its lines, their totals, and lines that cannot be read."""
    return {"record": path, "lines": [asdict(line) for line in chosen.lines], "totals": totals(chosen),
            "broken": [asdict(line) for line in chosen.broken]}


def as_csv(chosen: Chosen) -> str:
    """A table for a spreadsheet, one line a line, with a header. Tables within a cell are JSON.

    What begins like a formula gets an apostrophe: names of studies come from elsewhere, and a spreadsheet would run it.
    """
    return "".join(csv_pieces(chosen.lines))


def csv_pieces(lines: Iterable[Line]) -> Iterator[str]:
    """`as_csv`, line by line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    yield out.getvalue()
    for line in lines:
        out.seek(0)
        out.truncate()
        writer.writerow([_cell(getattr(line, name)) for name in _COLUMNS])
        yield out.getvalue()


def json_pieces(lines: Iterable[Line | Broken], *, path: str) -> Iterator[str]:
    """`as_json` as text, line by line."""
    yield f'{{"record": {json.dumps(path)}, "lines": ['
    broken: list[Broken] = []
    sums: dict[str, dict[str, int]] = {}
    comma = ""
    for line in lines:
        if isinstance(line, Broken):
            broken.append(line)
            continue
        of = sums.setdefault(line.kind, {"lines": 0, "bytes": 0})
        of["lines"] += 1
        of["bytes"] += line.bytes
        yield f"{comma}\n{json.dumps(asdict(line), ensure_ascii=False)}"
        comma = ","
    yield f'],\n"totals": {json.dumps(sums)}, "broken": {json.dumps([asdict(line) for line in broken])}}}\n'


def as_text(chosen: Chosen, *, width: int | None = None) -> list[str]:
    """For a person, newest last.

    Args:
        width: of the terminal; where a line would be longer, what left stands below when it left. None: whole lines.
    """
    if not chosen.lines:
        return ["The record holds nothing that was asked for."]
    rows = []
    for line in chosen.lines:
        where = f"{line.study} {line.round}" if line.study else ""
        rows.append((_moment(line), line.kind, where, describe_bytes(line.bytes), line.digest[:12], _what(line)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    texts: list[str] = [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]:>{widths[3]}}  "
             f"{row[4]:<{widths[4]}}  {row[5]}".rstrip() for row in rows]
    if width is not None and max(map(len, texts)) > width:
        texts = []
        for row in rows:
            texts += [f"{row[0]}  {row[1]}", *wrapped("", ", ".join(filter(None, row[2:5])), indent=2, width=width),
                      *wrapped("", row[5], indent=2, width=width)]
    texts.append("")
    texts += [f"{count['lines']} {kind}{'' if count['lines'] == 1 else 's'}: {describe_bytes(count['bytes'])}"
              for kind, count in totals(chosen).items()]
    return texts


def _what(line: Line) -> str:
    """What left, on a line."""
    if line.kind == "update":
        # Numbered ones, such as how many images of each class got a pseudo-label, under one name.
        names = sorted({re.sub(r"/\d+$", "/*", name) for name in line.metrics})
        metrics = f", {len(line.metrics)} numbers: {', '.join(names)}" if names else ""
        budget = f"; epsilon {line.content['epsilon']:.3g} spent here so far" if isinstance(
            line.content.get("epsilon"), float) else ""
        return printable(f"{', '.join(line.groups)}; {line.num_examples} examples{metrics}{budget}", limit=200)
    if line.kind == "announcement":
        methods = line.content.get("methods", [])
        content = {**line.content, "methods": len(methods)} if isinstance(methods, list) else line.content
        return printable(", ".join(f"{name} {' and '.join(map(str, value)) if isinstance(value, list) else value}"
                                   for name, value in content.items()), limit=200)
    return printable(line.text, limit=200)


def _moment(line: Line) -> str:
    return printable(line.time, limit=30) if line.unix is None else \
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.unix))


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        value = " ".join(value)
    elif isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False, sort_keys=True) if value else ""
    if isinstance(value, str):
        return no_formula(printable(value, limit=4000))
    return value
