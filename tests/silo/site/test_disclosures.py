"""The record of what left: what is in it, what is told once, what an old or damaged file means, and how it is shown."""

from __future__ import annotations

import csv
import errno
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from semisilo.common.text.cli_errors import run_cli
from semisilo.silo.cli.main import app
from semisilo.silo.site import disclosures
from semisilo.silo.site.disclosure_table import as_text, choose
from semisilo.silo.site.disclosures import (
    Broken,
    Disclosure,
    DisclosureLog,
    Line,
    announcement,
    last_line,
    message,
    read_lines,
)
from tests.synced_paths import synced_paths

OLD = ('{"time":"2026-01-31T12:00:00+00:00","kind":"update","study":"first","round":2,"phase":"train",'
       '"method":"semifl","update_id":"u1","groups":["model"],"bytes":1000,"digest":"ab","num_examples":7,"metrics":{"loss":0.5},"text":""}')
"""A line of version 0.1.0's first days, without content."""


def silo(*words: str) -> int:
    return run_cli(app, words, name="silo")


def update(number: int, study: str = "first") -> Disclosure:
    return Disclosure(kind="update", study=study, round=number, phase="train", method="semifl", update_id=f"u{number}",
                      groups=("model",), bytes=1000 * number, digest=f"{number:064x}", num_examples=7,
                      metrics={"loss": 0.5, "pseudo_labels/0": 3.0, "pseudo_labels/1": 4.0})


def test_a_message_is_recorded_with_its_size_and_digest_and_only_once(tmp_path: Path) -> None:
    log = DisclosureLog(tmp_path / "d.jsonl")
    for _ in range(2):
        log.record(message("enrolment", b"hello", text="public key"))
    DisclosureLog(tmp_path / "d.jsonl").record(message("enrolment", b"hello", text="public key"))
    (line,) = read_lines(tmp_path / "d.jsonl")
    assert isinstance(line, Line)
    assert (line.kind, line.bytes, line.text) == ("enrolment", 5, "public key")
    assert line.digest == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # SHA-256 of "hello"
    assert abs((line.unix or 0) - time.time()) < 60


def test_an_answer_to_another_federation_is_none_of_this_ones_and_is_recorded_again(tmp_path: Path) -> None:
    """Both may have a study `first`, and an abstention may say the same in both."""
    path = tmp_path / "d.jsonl"
    hello = announcement({"silo": "a"}, size_bytes=3)
    DisclosureLog(path).record(update(1, study="old"))
    for authority in ("aa", "bb", "aa"):
        log = DisclosureLog(path, authority=authority)
        log.record(update(1))
        log.record(hello)
    found = [(line.authority, line.kind) for line in read_lines(path) if isinstance(line, Line)]
    assert found == [("", "update"), ("aa", "update"), ("aa", "announcement"), ("bb", "update"),
                     ("bb", "announcement"), ("aa", "announcement")]
    methods = {each: DisclosureLog(path, authority=each) for each in ("aa", "bb", "cc")}
    assert {each: log.method_of("first") for each, log in methods.items()} == {"aa": "semifl", "bb": "semifl", "cc": ""}
    assert methods["cc"].method_of("old") == "semifl", "nobody knows whose it is"


def test_an_answer_under_the_same_name_has_a_line_where_it_says_something_else(tmp_path: Path) -> None:
    """The same payload with other metrics, another reason for the same refusal; after another task, and a restart."""
    path = tmp_path / "d.jsonl"

    def refusal(text: str) -> Disclosure:
        return message("refusal", text.encode(), update_id="r1", study="first", round=1, text=text)

    other = replace(update(1), metrics={"loss": 0.25})
    answers = [update(1), update(2), other, refusal("no"), refusal("no, for another reason"),
               message("abstention", b"a", update_id="a1", metrics={"loss": 0.5}),
               message("abstention", b"b", update_id="a1", metrics={"loss": 0.25})]
    for _ in range(2):
        log = DisclosureLog(path)
        for each in [*answers, *reversed(answers)]:
            log.record(each)
    lines = [line for line in read_lines(path) if isinstance(line, Line)]
    assert [(line.update_id, dict(line.metrics), line.text) for line in lines] == [
        (each.update_id, dict(each.metrics), each.text) for each in answers]


def test_a_second_attempt_that_says_nothing_new_about_the_silo_has_no_line(tmp_path: Path) -> None:
    log = DisclosureLog(tmp_path / "d.jsonl")
    for clock in (b"12:00", b"12:01"):
        log.record(message("check", clock, update_id="check 1"))
    assert len(list(read_lines(tmp_path / "d.jsonl"))) == 1


@pytest.mark.slow
def test_a_line_that_cannot_be_written_takes_no_line_of_another_process_with_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process finds the disk full after another has added a line: what is cut off must not be that one."""
    path = tmp_path / "d.jsonl"
    agent, other = DisclosureLog(path), DisclosureLog(path)
    agent.record(update(1))
    real, begun, written = disclosures._write_line, threading.Event(), threading.Event()

    def full(handle: int, line: bytes, size: int) -> None:
        if threading.current_thread() is not failing:
            return real(handle, line, size)
        begun.set()
        written.wait(1.0)  # the other one would be done by then, if it did not wait
        os.write(handle, line[:10])
        os.ftruncate(handle, size)
        raise OSError(errno.ENOSPC, "No space left on device")

    def fails() -> None:
        with pytest.raises(OSError, match="No space"):
            agent.record(update(2))

    def adds() -> None:
        begun.wait()
        other.record(update(3))
        written.set()

    monkeypatch.setattr(disclosures, "_write_line", full)
    failing, adding = threading.Thread(target=fails), threading.Thread(target=adds)
    for each in (failing, adding):
        each.start()
    for each in (failing, adding):
        each.join(30)
    assert [line.round for line in read_lines(path) if isinstance(line, Line)] == [1, 3]


def test_an_announcement_has_a_line_whenever_it_changes_also_back_again(tmp_path: Path) -> None:
    log = DisclosureLog(tmp_path / "d.jsonl")
    for count in (10, 10, 12, 12, 10):
        log.record(announcement({"labelled_count": count}, size_bytes=80))
    log = DisclosureLog(tmp_path / "d.jsonl")
    log.record(announcement({"labelled_count": 10}, size_bytes=80))
    lines = [line for line in read_lines(tmp_path / "d.jsonl") if isinstance(line, Line)]
    assert [line.content["labelled_count"] for line in lines] == [10, 12, 10]


def test_what_an_announcement_said_is_told_in_words(tmp_path: Path) -> None:
    log = DisclosureLog(tmp_path / "d.jsonl")
    log.record(announcement({"methods": ["fedavg", "semifl"], "capabilities": ["masks", "noise"]}, size_bytes=80))
    text = "\n".join(as_text(choose(read_lines(tmp_path / "d.jsonl"))))
    assert "methods 2, capabilities masks and noise" in text


def test_lines_of_an_earlier_version_are_read_and_damaged_ones_reported(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(f'{OLD}\nnonsense\n\n[1]\n{{"kind":"update","bytes":"many"}}\n{OLD[:40]}')
    found = list(read_lines(path))
    assert isinstance(found[0], Line)
    assert (found[0].study, found[0].bytes, dict(found[0].content)) == ("first", 1000, {})
    assert [(line.number, line.reason.split(":")[0]) for line in found if isinstance(line, Broken)] == [
        (2, "not JSON"), (4, "not an entry of the record"), (5, "its bytes is not what it should be"), (6, "cut short")]
    DisclosureLog(path).record(update(3))  # goes on behind the line that was cut short
    assert [line.round for line in read_lines(path) if isinstance(line, Line)] == [2, 3]
    newest = last_line(path)
    assert newest is not None
    assert newest.round == 3


def test_the_command_chooses_adds_up_and_says_what_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ("--home", str(tmp_path))
    assert silo("disclosures", *home) == 0
    assert capsys.readouterr().out == "The record holds nothing that was asked for.\n"
    log = DisclosureLog(tmp_path / "disclosures.jsonl")
    for entry in (update(1), update(2), update(3, study="second"), message("leaving", b"", text="that it leaves")):
        log.record(entry)
    assert silo("disclosures", *home) == 0
    shown = capsys.readouterr().out
    assert "first 2" in shown
    assert "model; 7 examples, 3 numbers: loss, pseudo_labels/*" in shown
    assert "3 updates: 6.0 kB" in shown
    assert shown.index("first 1") < shown.index("second 3") < shown.index("leaving")
    assert silo("disclosures", *home, "--study", "first", "--kind", "update", "--since", "1h", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert [line["round"] for line in facts["lines"]] == [1, 2]
    assert facts["totals"] == {"update": {"lines": 2, "bytes": 3000}}
    assert facts["broken"] == []
    assert silo("disclosures", *home, "--since", "2099-01-01", "--json") == 0
    assert json.loads(capsys.readouterr().out)["lines"] == []


@pytest.mark.parametrize("words", [("--since", "yesterday"), ("--kind", "updates"), ("--csv", "-", "--json")])
def test_wrong_words_are_one_line_and_status_2(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert silo("disclosures", "--home", str(tmp_path), *words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_broken_line_is_named_and_the_status_is_1_whatever_was_asked_for(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "disclosures.jsonl").write_text(f"{OLD}\nnonsense\n")
    assert silo("disclosures", "--home", str(tmp_path), "--study", "none") == 1
    said = capsys.readouterr()
    assert "line 2 cannot be read: not JSON" in said.err


def test_a_csv_that_has_no_folder_is_said_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "none" / "left.csv"
    assert silo("disclosures", "--home", str(tmp_path), "--csv", str(target)) == 2
    assert f"--csv {target}: there is no folder {target.parent}. Make it, or choose" in capsys.readouterr().err


def test_the_csv_is_a_table_in_which_no_cell_is_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = DisclosureLog(tmp_path / "disclosures.jsonl")
    log.record(update(1))
    log.record(message("refusal", b"x", study="=HYPERLINK(1)", round=4, text="+1\nline, with comma"))
    target = tmp_path / "left.csv"
    assert silo("disclosures", "--home", str(tmp_path), "--csv", str(target)) == 0
    assert "2 lines" in capsys.readouterr().out
    with target.open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert (first["kind"], first["bytes"], first["groups"], json.loads(first["metrics"])["loss"]) == (
        "update", "1000", "model", 0.5)
    assert (second["study"], second["text"]) == ("'=HYPERLINK(1)", "'+1 line, with comma")
    assert silo("disclosures", "--home", str(tmp_path), "--csv", "-") == 0
    assert capsys.readouterr().out == target.read_text()


def test_what_cannot_be_recorded_raises(tmp_path: Path) -> None:
    log = DisclosureLog(tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(OSError, match="directory"):
        log.record(update(1))


def test_a_line_that_the_disk_takes_in_parts_or_refuses_is_there_whole_and_once(tmp_path: Path) -> None:
    log, write = DisclosureLog(tmp_path / "d.jsonl"), os.write
    log.record(update(1))
    with mock.patch("os.write", lambda handle, data: write(handle, data[:7])):
        log.record(update(2))
    with mock.patch("semisilo.silo.site.disclosures.sync_file", side_effect=OSError(errno.EIO, "broken")), \
            pytest.raises(OSError, match="broken"):
        log.record(update(3))
    log.record(update(3))
    assert [line.update_id for line in read_lines(tmp_path / "d.jsonl") if isinstance(line, Line)] == ["u1", "u2", "u3"]


def test_lines_that_are_found_are_on_the_disk_before_they_are_believed(tmp_path: Path) -> None:
    """The process that wrote the last one may have been killed before it could wait for the disk; what has a line is
    not recorded again."""
    path = tmp_path / "d.jsonl"
    DisclosureLog(path).record(update(1))
    with synced_paths() as synced:
        DisclosureLog(path).record(update(1))
    assert synced == [str(path), str(tmp_path)]
