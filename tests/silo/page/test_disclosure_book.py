"""The record of disclosures as the page reads it: on from where it was, in stretches, whatever happens to the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.silo.page import disclosure_book
from semisilo.silo.page.disclosure_book import DisclosureBook
from semisilo.silo.site.disclosures import Broken, Disclosure, DisclosureLog


def update(number: int, *, study: str = "s", kind: str = "update") -> Disclosure:
    return Disclosure(kind=kind, study=study, round=number, update_id=f"{kind} {study} {number}",  # type: ignore[arg-type]
                      bytes=number, digest=f"{number:064x}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "disclosures.jsonl"


def test_lines_that_came_since_the_last_look_are_added(path: Path) -> None:
    log, book = DisclosureLog(path), DisclosureBook(path)
    assert book.refresh()
    assert (book.left().lines, book.left().whole) == (0, True)
    for number in (1, 2):
        log.record(update(number))
        assert book.refresh()
        assert book.left().lines == number
    log.record(update(3, study="t", kind="refusal"))
    book.refresh()
    left = book.left()
    assert (left.lines, left.bytes) == (3, 6)
    assert [(each.name, each.lines, each.bytes) for each in left.studies] == [("s", 2, 3), ("t", 1, 3)]
    assert [(each.name, each.lines, each.bytes) for each in left.kinds] == [("update", 2, 3), ("refusal", 1, 3)]
    assert sum(day.lines for day in left.days) == 3


def test_a_long_record_is_read_in_stretches_and_answers_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, book = DisclosureLog(path), DisclosureBook(path)
    for number in range(1, 21):
        log.record(update(number))
    monkeypatch.setattr(disclosure_book, "_STRETCH_BYTES", path.stat().st_size // 4)
    looks = [0]
    while not book.refresh():
        assert book.left().whole is False
        assert book.page(limit=1).lines[0].round == book.left().lines
        looks.append(book.left().lines)
    assert len(looks) >= 4
    assert looks == sorted(set(looks))
    assert (book.left().lines, book.left().bytes, book.left().whole) == (20, 210, True)


def test_pages_go_back_from_the_newest_without_a_gap(path: Path) -> None:
    log, book = DisclosureLog(path), DisclosureBook(path)
    for number in range(1, 8):
        log.record(update(number, study="s" if number % 2 else "t"))
    book.refresh()
    seen, before = [], 0
    for _ in range(3):
        page = book.page(before=before, limit=3)
        seen += [line.round for line in page.lines]
        before = page.before
    assert (seen, before, page.total) == ([7, 6, 5, 4, 3, 2, 1], 0, 7)
    assert [line.round for line in book.page(study="s").lines] == [7, 5, 3, 1]
    assert book.page(study="nobody").lines == ()
    assert book.page(kind="refusal").total == 0
    assert len(book.page(limit=10**9).lines) == 7


def test_what_cannot_be_read_is_counted_and_named_and_hides_nothing(path: Path) -> None:
    log, book = DisclosureLog(path), DisclosureBook(path)
    log.record(update(1))
    with path.open("ab") as file:
        file.write(b"not json\n\n[1]\n")
    log.record(update(2))
    book.refresh()
    left = book.left()
    assert (left.lines, left.broken_count) == (2, 2)
    assert [broken.number for broken in left.broken] == [2, 4]
    assert [line.number for line in book.page().lines] == [5, 1]
    assert sum(isinstance(line, Broken) for line in book.lines()) == 2


def test_a_line_that_is_just_being_written_waits_for_its_end(path: Path) -> None:
    log, book = DisclosureLog(path), DisclosureBook(path)
    log.record(update(1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert book.refresh()
    assert (book.left().lines, book.left().broken_count) == (0, 0)
    with path.open("ab") as file:
        file.write(whole[-20:])
    assert book.refresh()
    assert book.left().lines == 1


def test_another_file_in_its_place_is_read_from_its_beginning(path: Path) -> None:
    log, book = DisclosureLog(path), DisclosureBook(path)
    for number in (1, 2, 3):
        log.record(update(number))
    book.refresh()
    path.rename(path.with_name("old"))
    other = DisclosureLog(path)
    for number in (4, 5, 6, 7):  # more than before: its size does not tell
        other.record(update(number))
    book.refresh()
    assert ([line.round for line in book.page().lines], book.left().bytes) == ([7, 6, 5, 4], 22)
    path.unlink()
    book.refresh()
    assert book.left().lines == 0


def test_a_line_without_end_is_no_reason_to_take_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disclosure_book, "_LONGEST_LINE", 2000)
    path.write_bytes(b"x" * 9_000 + b"\n")
    DisclosureLog(path).record(update(1))
    book = DisclosureBook(path)
    while not book.refresh():
        pass
    assert book.left().lines == 1
    assert book.left().broken_count >= 1
