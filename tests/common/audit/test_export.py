"""The audit trail as a file: JSON keeps the chain, CSV is safe in a spreadsheet, times say their zone."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.audit.export import ExportAbout, csv_lines, json_pieces, moment, read_export
from semisilo.common.errors import BadData
from tests.audit_kit import NOW, trail, walked


def written(path: Path, *, complete: bool = True) -> Path:
    with path.open("w", encoding="utf-8") as out:
        about = ExportAbout(federation="lung", exported_unix=NOW, complete=complete)
        out.writelines(json_pieces(trail("a", "b"), about))
    return path


def test_json_keeps_the_chain_bit_for_bit(tmp_path: Path) -> None:
    path = written(tmp_path / "audit.json")
    events = list(read_export(path))
    assert events == trail("a", "b")
    assert walked(events).number == 2
    document = json.loads(path.read_text())
    assert document["exported"] == "2027-01-15T08:00:00.000+00:00"
    assert document["events"][0]["time"] == moment(NOW + 1) == "2027-01-15T08:00:01.000+00:00"


def test_an_empty_trail_is_a_document_too(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    with path.open("w") as out:
        out.writelines(json_pieces([], ExportAbout(federation="lung", exported_unix=NOW, complete=True)))
    assert list(read_export(path)) == []


def test_a_part_of_the_trail_cannot_be_checked(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="only some of the events"):
        list(read_export(written(tmp_path / "audit.json", complete=False)))


def test_an_export_that_a_program_has_laid_out_anew_is_read_as_well(tmp_path: Path) -> None:
    path = written(tmp_path / "audit.json")
    text = path.read_text()
    for other in (json.dumps(json.loads(text)), json.dumps(json.loads(text), indent=2), text + "\n", text.rstrip(),
                  text.replace("\n", "\r\n")):
        path.write_bytes(other.encode())
        assert list(read_export(path)) == trail("a", "b")


def test_an_export_that_was_cut_at_any_letter_is_none(tmp_path: Path) -> None:
    path = written(tmp_path / "audit.json")
    text = path.read_text()
    for length in range(len(text.rstrip())):
        path.write_text(text[:length])
        with pytest.raises(BadData, match="not an export"):
            list(read_export(path))
    path.write_text(text.replace("},\n{", "}\n{"))
    with pytest.raises(BadData, match="not an export"):
        list(read_export(path))


def test_a_long_export_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """A hub of years has a million events: 2 GB at a hospital that wants to check them."""
    event, path = trail("a")[0], tmp_path / "audit.json"
    with path.open("w", encoding="utf-8") as out:
        about = ExportAbout(federation="lung", exported_unix=NOW, complete=True)
        out.writelines(json_pieces((replace(event, number=number) for number in range(20_000)), about))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_export(path)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000 < path.stat().st_size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"events": [{}], "complete": true}', "[" * 100_000])
def test_what_is_no_export_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.json"
    path.write_text(text)
    with pytest.raises(BadData, match=r"audit\.json: not an export of an audit trail"):
        list(read_export(path))


def test_a_cell_of_csv_is_no_formula() -> None:
    (event,) = trail("a")
    evil = replace(event, study="=1+1", detail_json='{"by":"@cmd","reason":"-2","silo":"+3"}')
    out = io.StringIO()
    out.writelines(csv_lines([evil]))
    row = next(csv.DictReader(io.StringIO(out.getvalue())))
    assert (row["study"], row["by"], row["silo"]) == ("'=1+1", "'@cmd", "'+3")
    assert (row["time"], row["detail"]) == (moment(NOW + 1), evil.detail_json)
