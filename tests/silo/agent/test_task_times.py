"""What the last tasks took: kept on disk, the oldest go, and a damaged file costs a forecast and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semisilo.silo.agent.task_times import TaskTook, note_task, read_tasks

TOOK = TaskTook(study="s", round=1, phase="train", method="semifl", unix=5.0, images=10, train_seconds=2.5)


def test_tasks_are_read_back_oldest_first_and_only_the_last_thirty_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    assert read_tasks(path) == ()
    for number in range(33):
        note_task(path, replace(TOOK, round=number))
    assert read_tasks(path) == tuple(replace(TOOK, round=number) for number in range(3, 33))
    assert [each.name for each in tmp_path.iterdir()] == ["rounds.json"], "nothing is left beside it"


def test_a_file_that_another_process_has_written_since_is_gone_on_from(tmp_path: Path) -> None:
    path, other = tmp_path / "rounds.json", tmp_path / "other.json"
    note_task(path, TOOK)
    for number in range(2, 4):
        note_task(other, replace(TOOK, round=number))
    path.write_text(other.read_text())
    note_task(path, replace(TOOK, round=4))
    assert [took.round for took in read_tasks(path)] == [2, 3, 4]


def test_a_file_that_cannot_be_read_counts_as_none_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    for content in (b"", b"{", b"[]", b'{"tasks": [{"study": 1}]}', b'{"surprise": []}', b"\xff"):
        path.write_bytes(content)
        assert read_tasks(path) == (), content
    note_task(path, TOOK)
    assert read_tasks(path) == (TOOK,)
