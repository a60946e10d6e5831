"""What the coordinator asked, as the silo keeps it for people: bounded, and readable whatever happened to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire.tensors_pb2 import PayloadReference
from semisilo.silo.agent import asked
from semisilo.silo.agent.asked import AskedRecord, read_asked


def task(number: int = 1, *, settings: str = '{"local_epochs":5}') -> pb.Task:
    return pb.Task(task_id=f"s/{number}/0-train/a", study="s", round=number, round_count=9, phase="train",
                   method="semifl", settings_json=settings, payloads=[PayloadReference(size_bytes=500),
                                                                      PayloadReference(size_bytes=11)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "asked.jsonl"


def test_a_task_stands_there_from_its_coming_to_its_answer(path: Path) -> None:
    record = AskedRecord(path)
    record.came(task(), now_unix=10.0)
    (found,) = read_asked(path)
    assert (found.study, found.round, found.rounds, found.phase, found.method) == ("s", 1, 9, "train", "semifl")
    assert (found.settings, found.download_bytes) == ({"local_epochs": 5}, 511)
    assert (found.outcome, found.ended_unix) == ("", 0.0)
    record.ended(task(), outcome="refused", code="NOT_PERMITTED", text="no", now_unix=12.0)
    (found,) = read_asked(path)
    assert (found.outcome, found.code, found.text, found.unix, found.ended_unix) == ("refused", "NOT_PERMITTED", "no",
                                                                                   10.0, 12.0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_task_that_is_given_again_is_one_task(path: Path) -> None:
    record = AskedRecord(path)
    record.came(task(), now_unix=10.0)
    record.ended(task(), outcome="put_off", code="", text="later", now_unix=11.0)
    record.came(task(), now_unix=20.0)
    (found,) = read_asked(path)
    assert (found.times, found.unix, found.outcome) == (2, 10.0, "")
    record.came(task(2), now_unix=30.0)
    assert [each.round for each in read_asked(path)] == [1, 2]


@pytest.mark.parametrize("settings", ['{"a":"\\ud800"}', '{"\\udfff":1}', '{"a":1e999}', '{"a":NaN}'])
def test_settings_that_nobody_can_show_are_left_out(path: Path, settings: str) -> None:
    record = AskedRecord(path)
    record.came(task(settings=settings), now_unix=10.0)
    (found,) = read_asked(path)
    assert (found.round, found.settings) == (1, {})


def test_the_older_half_goes_when_the_file_has_grown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "_MOST_BYTES", 4096)
    record = AskedRecord(path)
    for number in range(1, 101):
        record.came(task(number), now_unix=number)
        record.ended(task(number), outcome="updated", code="", text="sent", now_unix=number + 0.5)
        assert path.stat().st_size <= 4096
    found = read_asked(path)
    assert [each.round for each in found] == list(range(101 - len(found), 101))
    assert 3 <= len(found) < 20
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("settings", ["", "[1]", "{", "1" * 9000, '{"a":' * 900, '{"long": "' + "x" * 9000 + '"}'])
def test_settings_that_are_none_or_too_large_are_left_out(path: Path, settings: str) -> None:
    AskedRecord(path).came(task(settings=settings), now_unix=1.0)
    (found,) = read_asked(path)
    assert found.settings == {}


def test_what_a_coordinator_writes_cannot_break_a_line(path: Path) -> None:
    hostile = pb.Task(task_id="x\n\x1b[31m", study="s\nt", method="m\r", phase="p\u2028", round=1)
    AskedRecord(path).came(hostile, now_unix=1.0)
    (found,) = read_asked(path)
    assert path.read_bytes().count(b"\n") == 1
    assert all(text.isprintable() for text in (found.task_id, found.study, found.method, found.phase))


def test_lines_that_cannot_be_read_hide_no_others(path: Path) -> None:
    record = AskedRecord(path)
    record.came(task(1), now_unix=1.0)
    entry = json.loads(path.read_text())
    with path.open("a") as file:
        file.write("not json\n[]\n{}\nnull\n" + json.dumps({**entry, "unix": "now"}) + "\n"
                   + json.dumps({**entry, "settings": 3, "task_id": "other"}) + "\n"
                   + json.dumps({"event": "ended", "task_id": "gone", "unix": 2, "outcome": "updated"}) + "\n")
    record.came(task(2), now_unix=3.0)
    assert [(each.round, each.times) for each in read_asked(path)] == [(1, 1), (2, 1)]
    assert read_asked(path.with_name("nothing")) == ()
