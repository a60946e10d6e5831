"""Silo memory: the rule of committed and pending, loss and damage, and a kill between any two writes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from semisilo.common.errors import DiskFull, StorageDamaged
from semisilo.common.methods.contract import PayloadRef
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.silo.site.memory import SiloMemory, update_id_of
from tests.synced_paths import synced_paths


def write_memory(memory: SiloMemory, content: str) -> Path:
    """A memory file as the compute process leaves it."""
    data = content.encode()
    path = memory.folder / f"{hashlib.sha256(data).hexdigest()}{STATE_ENDING}"
    path.write_bytes(data)
    return path


def write_payload(memory: SiloMemory, content: str) -> PayloadRef:
    """A payload as the compute process leaves it."""
    temporary = memory.outgoing.temporary()
    temporary.write_bytes(content.encode())
    return PayloadRef(digest=memory.outgoing.add_file(temporary), size_bytes=len(content), groups=("model",))


def answer(memory: SiloMemory, round: int, *, phase: str = "train", content: str | None = "",
           abstention: str = "", residuals: str | None = None, task_id: str = "") -> None:
    """Does a task: writes the files and records them. `content` None: the trainer keeps nothing new; `residuals` None:
    what lossy updates have left out stays as it is."""
    left = None if residuals is None else write_memory(memory, residuals)
    file = None if content is None else write_memory(memory, content or f"memory {round} {phase}")
    payload = None if abstention else write_payload(memory, f"update {round} {phase}")
    memory.record_pending("s", round=round, task_id=task_id or f"s/{round}/{phase}", update_id=f"u{round}{phase}",
                          memory=file, residuals=left, payload=payload, abstention=abstention, num_examples=7,
                          metrics={"loss": 0.5}, seconds=1.5)


def seen(memory: SiloMemory) -> str | None:
    """What a trainer would see."""
    path = memory.committed("s")
    return None if path is None else path.read_text()


def test_memory_of_an_update_that_was_refused_is_not_brought_in_by_a_later_phase(tmp_path: Path) -> None:
    """The update came late; the statistics phase of the same round is folded."""
    memory = SiloMemory(tmp_path)
    answer(memory, 1, content="of round 1")
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    answer(memory, 2, content="of the late update")
    memory.refused("s/2/train")
    answer(memory, 2, phase="statistics", content=None)
    memory.resolve("s", 2, round=3, task_id="s/3/train")
    assert seen(memory) == "of round 1"


def test_a_later_answer_that_was_refused_leaves_what_the_earlier_one_kept(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1, content="of the update")
    answer(memory, 1, phase="more", content="of a later phase")
    memory.refused("s/1/more")
    memory = SiloMemory(tmp_path)
    memory.refused("s/1/other")
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    assert seen(memory) == "of the update"


def test_pending_memory_is_committed_only_when_its_round_was_folded(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    assert memory.state() == ("", 0)
    memory.resolve("s", 0, round=1, task_id="s/1/train")
    assert seen(memory) is None
    answer(memory, 1)
    assert seen(memory) is None, "trainers see committed memory only"
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    assert seen(memory) == "memory 1 train"
    answer(memory, 2)
    memory.resolve("s", 1, round=3, task_id="s/3/train")  # round 2 failed, or the update came too late
    assert seen(memory) == "memory 1 train"
    answer(memory, 3)
    memory.resolve("s", 3, round=9, task_id="s/9/train")
    assert seen(memory) == "memory 3 train"
    assert SiloMemory(tmp_path).state() == ("s", 3)


def left_out(memory: SiloMemory, round: int) -> tuple[str | None, ...]:
    """What a task of `round` would see of residuals: committed, and of an earlier phase."""
    return tuple(None if path is None else path.read_text() for path in memory.residuals("s", round=round))


@pytest.mark.parametrize("content", [None, ""], ids=["without memory", "with memory"])
def test_what_an_update_left_out_is_committed_only_when_its_round_was_folded(
        tmp_path: Path, content: str | None) -> None:
    """Also for a method whose trainer keeps nothing."""
    memory = SiloMemory(tmp_path)
    assert left_out(memory, 1) == (None, None)
    answer(memory, 1, content=content, residuals="rest 1")
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    memory = SiloMemory(tmp_path)
    assert left_out(memory, 2) == ("rest 1", None)
    answer(memory, 2, content=content, residuals="rest 2")
    memory.resolve("s", 1, round=3, task_id="s/3/train")  # round 2 failed: its update was sent for nothing
    assert left_out(memory, 3) == ("rest 1", None)
    memory.resolve("s", 1, round=7, task_id="s/7/train")  # rounds without this silo: what it owes stays
    answer(memory, 7, content=content, residuals="rest 7")
    memory.resolve("s", 7, round=8, task_id="s/8/train")
    assert left_out(memory, 8) == ("rest 7", None)
    assert SiloMemory(tmp_path).state() == ("s", 7)
    assert seen(memory) == (None if content is None else "memory 7 train")


def test_an_abstention_leaves_what_was_left_out_as_it_was(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1, residuals="rest 1")
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    answer(memory, 2, content=None, abstention="no_confident_example")
    memory.resolve("s", 1, round=3, task_id="s/3/train")
    assert left_out(memory, 3) == ("rest 1", None)


@pytest.mark.parametrize(("abstention", "residuals"), [("", None), ("", "rest 2"), ("no_data", None)])
def test_a_later_phase_keeps_what_an_earlier_one_left_out(
        tmp_path: Path, abstention: str, residuals: str | None) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1, residuals="rest 1")
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    answer(memory, 2, residuals="rest 2")
    memory.resolve("s", 1, round=2, task_id="s/2/statistics")
    assert left_out(memory, 2) == ("rest 1", "rest 2")
    answer(memory, 2, phase="statistics", content=None, abstention=abstention, residuals=residuals)
    memory.resolve("s", 2, round=3, task_id="s/3/train")
    assert left_out(memory, 3) == ("rest 2", None)


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_a_round_left_that_is_done_again_is_dropped(tmp_path: Path, is_lost: bool) -> None:
    """As after a rollback, or a stop: it was taken for that of an earlier phase of the same round."""
    memory = SiloMemory(tmp_path)
    answer(memory, 1, residuals="rest 1")
    for number, again in enumerate(("", "/1", "/2")):
        memory.resolve("s", 1, round=2, task_id=f"s/2/0-train/a{again}")
        assert left_out(memory, 2) == ("rest 1", None)
        answer(memory, 2, residuals=f"rest {number}", task_id=f"s/2/0-train/a{again}")
        memory.resolve("s", 1, round=2, task_id=f"s/2/1-statistics/a{again}")
        assert left_out(memory, 2) == ("rest 1", f"rest {number}")
        answer(memory, 2, phase="statistics", residuals="other", task_id=f"s/2/1-statistics/a{again}")
        if is_lost:
            memory.refused(f"s/2/1-statistics/a{again}")
            memory = SiloMemory(tmp_path)
            assert left_out(memory, 2) == ("rest 1", f"rest {number}")
            memory.resolve("s", 1, round=2, task_id=f"s/2/2-more/a{again}")
            assert left_out(memory, 2) == ("rest 1", f"rest {number}"), "of an earlier phase of the same try"
    memory.resolve("s", 2, round=3, task_id="s/3/0-train/a/2")
    assert left_out(memory, 3) == ("rest 2" if is_lost else "other", None)


@pytest.mark.parametrize("is_committed", [False, True])
def test_memory_of_rounds_that_a_restored_coordinator_knows_nothing_of_is_dropped(
        tmp_path: Path, is_committed: bool) -> None:
    """The study had gone back and done round 1 again; the coordinator is restored to before that, with its round 1."""
    memory = SiloMemory(tmp_path)
    answer(memory, 1, content="done again", residuals="of that", task_id="s/1/train/silo/1")
    if is_committed:
        memory.resolve("s", 1, round=2, task_id="s/2/train/silo/1")
        memory.resolve("s", 1, round=3, task_id="s/3/train/silo/2")  # gone back once more: round 1 still counts
        assert seen(memory) == "done again"
        assert memory.residuals("s", round=3) != (None, None)
    memory = SiloMemory(tmp_path)
    memory.resolve("s", 1, round=2, task_id="s/2/train/silo")
    assert (seen(memory), memory.residuals("s", round=2)) == (None, (None, None))


def test_an_index_of_a_study_that_never_went_back_has_the_form_that_earlier_versions_read(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1, task_id="s/1/train/silo")
    memory.resolve("s", 1, round=2, task_id="s/2/train/silo")
    committed = json.loads((tmp_path / "memory.json").read_text())["studies"]["s"]["committed"]
    assert set(committed) == {"round", "digest", "residuals"}


def test_a_memory_that_does_not_fit_takes_what_was_left_out_with_it(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 2, residuals="rest 2")
    memory.resolve("s", 2, round=3, task_id="s/3/train")
    memory.resolve("s", 5, round=6, task_id="s/6/train")  # this folder is an old copy
    assert left_out(memory, 6) == (None, None)


def test_a_step_of_the_clock_takes_no_memory(tmp_path: Path) -> None:
    """It was by 100 days for a moment, in which a task of another study came. Another such moment the next day does
    not add up with it."""
    now, seconds = time.time(), 0.0
    memory = SiloMemory(tmp_path, clock=lambda: now, monotonic=lambda: seconds)
    answer(memory, 1)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    for _ in range(3):
        now += 100 * 86400.0
        memory.resolve("other", 0)
        memory.resolve("other", 0)
        assert seen(memory) == "memory 1 train"
        now -= 100 * 86400.0
        memory.resolve("other", 0)
        seconds += 86400.0
    assert seen(memory) == "memory 1 train"


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"rest ?")])
def test_lost_residuals_are_said_so_and_the_trainers_memory_stays(
        tmp_path: Path, damage: Callable[[Path], Any], caplog: pytest.LogCaptureFixture) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1, residuals="rest 1")
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    assert memory.state() == ("s", 1)
    (path, _) = memory.residuals("s", round=2)
    assert path is not None
    damage(path)
    assert memory.state() == ("s", 0)
    assert left_out(memory, 2) == (None, None)
    assert "missing or damaged" in caplog.text
    assert seen(memory) == "memory 1 train"
    answer(memory, 2, residuals="rest 2")
    memory.resolve("s", 2, round=3, task_id="s/3/train")
    assert (memory.state(), left_out(memory, 3)) == (("s", 2), ("rest 2", None))


def test_a_pending_answer_whose_residuals_are_damaged_is_done_again(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1, residuals="rest 1")
    (_, path) = memory.residuals("s", round=1)
    assert path is not None
    path.unlink()
    assert memory.pending_for("s/1/train") is None
    answer(memory, 1, residuals="rest 1")
    assert memory.pending_for("s/1/train") is not None


def test_an_index_from_before_there_were_residuals_is_read(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    answer(memory, 2)
    index = tmp_path / "memory.json"
    assert index.read_text().count(',"residuals":""') == 2
    index.write_text(index.read_text().replace(',"residuals":""', ""))
    assert "residuals" not in index.read_text()
    memory = SiloMemory(tmp_path)
    assert (seen(memory), memory.state(), left_out(memory, 3)) == ("memory 1 train", ("s", 2), (None, None))


def test_the_same_task_asked_again_is_sent_again_and_not_trained_again(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    memory = SiloMemory(tmp_path)
    memory.resolve("s", 0, round=1, task_id="s/1/train")
    pending = memory.pending_for("s/1/train")
    assert pending is not None
    assert (pending.update_id, pending.num_examples) == ("u1train", 7)
    assert (pending.metrics, pending.seconds) == ({"loss": 0.5}, 1.5)
    assert pending.payload is not None
    assert memory.outgoing.path(pending.payload.digest).read_text() == "update 1 train"
    assert memory.pending_for("s/2/train") is None
    memory.resolve("s", 0)
    assert memory.pending_for("s/1/train") is None


def test_an_abstention_that_is_not_folded_leaves_the_memory_as_it_was(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    answer(memory, 2, content=None, abstention="no_confident_example")
    pending = memory.pending_for("s/2/train")
    assert pending is not None
    assert (pending.abstention, pending.payload) == ("no_confident_example", None)
    assert memory.state() == ("s", 1)
    memory.resolve("s", 1, round=3, task_id="s/3/train")
    assert seen(memory) == "memory 1 train"


@pytest.mark.parametrize("handed_back", [None, "memory 1 train"])
def test_a_later_phase_of_a_round_keeps_the_memory_of_the_earlier_one(tmp_path: Path, handed_back: str | None) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    answer(memory, 2)
    memory.resolve("s", 1, round=2, task_id="s/2/statistics")
    assert seen(memory) == "memory 1 train", "the round is not committed yet"
    answer(memory, 2, phase="statistics", content=handed_back)
    memory.resolve("s", 2, round=3, task_id="s/3/train")
    assert seen(memory) == "memory 2 train"


def test_a_folded_round_without_new_memory_keeps_the_old_one_and_counts(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    memory.resolve("s", 1, round=2, task_id="s/2/statistics")
    answer(memory, 2, phase="statistics", content=None)
    assert memory.state() == ("s", 2)
    memory.resolve("s", 2, round=3, task_id="s/3/train")
    assert seen(memory) == "memory 1 train"
    memory.resolve("s", 2, round=4, task_id="s/4/train")
    assert seen(memory) == "memory 1 train"


def test_a_memory_is_sound_when_it_has_what_the_coordinator_counts_on(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    assert memory.is_sound("s", 0)
    assert not memory.is_sound("s", 1), "an update was folded, and nothing of it is here"
    answer(memory, 1)
    assert memory.is_sound("s", 0)
    assert memory.is_sound("s", 1)
    memory.resolve("s", 1, round=2)
    assert memory.is_sound("s", 1)
    assert not memory.is_sound("s", 2), "the index is older than the coordinator's ledger"
    path = memory.committed("s")
    assert path is not None
    path.write_bytes(b"half")
    assert not memory.is_sound("s", 1)


@pytest.mark.parametrize("folded", [0, 1, 7])
def test_memory_of_another_round_than_the_last_folded_one_is_not_used(tmp_path: Path, folded: int) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 2)
    memory.resolve("s", 2, round=3, task_id="s/3/train")
    assert seen(memory) == "memory 2 train"
    memory.resolve("s", folded, round=8, task_id="s/8/train")
    assert seen(memory) is None
    assert memory.state() == ("s", 0)


def test_studies_do_not_share_memory(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    memory.resolve("s", 1)
    memory.resolve("other", 0)
    assert memory.committed("other") is None
    assert memory.state() == ("other", 0)
    assert seen(memory) == "memory 1 train"


def test_what_a_study_has_left_goes_when_it_was_not_used_for_90_days(tmp_path: Path) -> None:
    """Each study leaves files as large as its model, and nobody says to a silo that it is over for good."""
    now, seconds = 1e9, 0.0
    memory = SiloMemory(tmp_path, clock=lambda: now, monotonic=lambda: seconds)
    answer(memory, 1)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    answer(memory, 2)
    files = [*tmp_path.glob(f"*{STATE_ENDING}"), *(path for path in memory.outgoing.folder.iterdir() if path.is_file())]
    assert len(files) == 3
    for days, left in ((89, True), (91, False)):
        for path in files:
            os.utime(path, (now - days * 86400.0,) * 2)
        memory.resolve("s", 1, round=2, task_id="s/2/train")
        assert seen(memory) == "memory 1 train", "the study that is asked for keeps its own, however old"
        for _ in range(2):  # a day apart
            assert all(path.exists() for path in files)
            memory.resolve("other", 0)
            seconds += 86400.0
        assert (memory.pending_for("s/2/train") is not None) == left
        assert all(path.exists() == left for path in files)
    assert SiloMemory(tmp_path).committed("s") is None


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"memory 1 trai?")])
def test_damaged_or_missing_memory_counts_as_lost_and_is_said_so(
        tmp_path: Path, damage: Callable[[Path], Any], caplog: pytest.LogCaptureFixture) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    path = memory.committed("s")
    assert path is not None
    assert memory.state() == ("s", 1)
    damage(path)
    assert memory.state() == ("s", 0)
    assert memory.committed("s") is None
    assert "missing or damaged" in caplog.text


def test_a_silo_whose_memory_was_wiped_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SiloMemory(tmp_path).resolve("s", 0, round=1, task_id="s/1/train")
    SiloMemory(tmp_path).resolve("s", 3, round=4, task_id="s/4/train")
    assert "wiped" not in caplog.text, "a new silo, and a method that keeps nothing"
    SiloMemory(tmp_path / "new").resolve("s", 3, round=4, task_id="s/4/train")
    assert "folded an update of round 3 of this silo" in caplog.text
    assert "wiped" in caplog.text


def test_a_pending_answer_whose_payload_is_damaged_is_done_again(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    pending = memory.pending_for("s/1/train")
    assert pending is not None
    assert pending.payload is not None
    memory.outgoing.path(pending.payload.digest).write_bytes(b"other bytes")
    assert memory.pending_for("s/1/train") is None
    assert "done again" in caplog.text
    memory = SiloMemory(tmp_path)
    assert memory.pending_for("s/1/train") is None
    memory.resolve("s", 0, round=1, task_id="s/1/statistics")
    answer(memory, 1, phase="statistics", content=None)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    assert seen(memory) == "memory 1 train", "its memory was whole"


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"\xff\xfe", b'{"x": 1}', b'{"studies": {"s": {"committed": 3}}}'])
def test_a_damaged_index_counts_as_lost_memory_and_is_put_aside(
        tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer(SiloMemory(tmp_path), 1)
    (tmp_path / "memory.json").write_bytes(content)
    memory = SiloMemory(tmp_path)
    assert memory.state() == ("", 0)
    assert "goes on without memory" in caplog.text
    assert (tmp_path / "memory.damaged").read_bytes() == content
    answer(memory, 2)
    assert SiloMemory(tmp_path).state() == ("s", 2)


def test_an_index_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    newer = '{"format": 2, "what it knows more": 1}'
    (tmp_path / "memory.json").write_text(newer)
    with pytest.raises(StorageDamaged, match="newer version"):
        SiloMemory(tmp_path)
    assert (tmp_path / "memory.json").read_text() == newer


def test_an_update_id_names_one_answer_to_one_task() -> None:
    names = {update_id_of(task, content) for task in ("s/1/train/a", "s/2/train/a") for content in ("ab", "cd")}
    assert len(names) == 4
    assert update_id_of("s/1/train/a", "ab") in names
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in names)


def test_an_answer_whose_files_are_not_there_is_never_recorded(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    with pytest.raises(StorageDamaged):
        memory.record_pending("s", round=1, task_id="t", update_id="u", memory=tmp_path / f"{'0' * 64}{STATE_ENDING}")
    with pytest.raises(StorageDamaged):
        memory.record_pending("s", round=1, task_id="t", update_id="u",
                              payload=PayloadRef(digest="0" * 64, size_bytes=3, groups=("model",)))
    assert memory.pending_for("t") is None


def test_files_that_nothing_names_any_more_are_removed(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path, outgoing=tmp_path / "out")
    for round in range(1, 6):
        answer(memory, round)
        memory.resolve("s", round, round=round + 1, task_id=f"s/{round + 1}/train")
        assert len(list(tmp_path.glob(f"*{STATE_ENDING}"))) == 1
        assert memory.outgoing.digests() == set(), "what was folded is not sent again"
    (tmp_path / ".memory.json.aa.tmp").write_bytes(b"left by a crash")
    answer(memory, 6)
    assert len(list(tmp_path.glob(f"*{STATE_ENDING}"))) == 2
    assert list(tmp_path.glob(".*.tmp")) == []


def test_an_index_that_is_found_is_on_the_disk_before_anything_is_done_upon_it(tmp_path: Path) -> None:
    """The process that wrote it may have been killed before it could wait for the disk: an answer that is sent again
    would outlive the memory that belongs to it if the power went then."""
    answer(SiloMemory(tmp_path), 1)
    with synced_paths() as synced:
        SiloMemory(tmp_path)
    assert synced == [str(tmp_path / "memory.json"), str(tmp_path)]


class Killed(BaseException):
    """Stands for kill -9: nothing of this process runs any more."""


class KillAt:
    """Kills at the n-th operation on the disk, before it is done; every later one fails too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.count = 0
        self.at = at
        for name in ("replace", "fsync", "unlink", "open"):
            monkeypatch.setattr(os, name, self._guard(getattr(os, name)))

    def _guard(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **keywords: Any) -> Any:
            self.count += 1
            if self.count >= self.at:
                raise Killed
            return real(*arguments, **keywords)
        return guarded


STEPS: dict[str, Callable[[SiloMemory], None]] = {
    "first answer": lambda memory: answer(memory, 1, residuals="rest 1"),
    "folded": lambda memory: memory.resolve("s", 1, round=2, task_id="s/2/train"),
    "second answer": lambda memory: answer(memory, 2, residuals="rest 2"),
    "second phase": lambda memory: answer(memory, 2, phase="statistics", content=None),
    "dropped": lambda memory: memory.resolve("s", 1, round=3, task_id="s/3/train"),
    "abstention": lambda memory: answer(memory, 3, content=None, abstention="no_data"),
    "lost": lambda memory: memory.resolve("s", 0, round=4, task_id="s/4/train"),
}


def facts(folder: Path) -> tuple[Any, ...]:
    """All that an agent would act on, from a fresh look at the disk."""
    memory = SiloMemory(folder)
    tasks = [f"s/{round}/{phase}" for round in (1, 2, 3) for phase in ("train", "statistics")]
    return memory.state(), seen(memory), left_out(memory, 2), tuple(memory.pending_for(task) for task in tasks)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_between_any_two_writes_leaves_the_state_before_or_after_and_the_step_can_be_repeated(
        tmp_path: Path, step: str) -> None:
    before_folder, after_folder = tmp_path / "before", tmp_path / "after"
    memory = SiloMemory(before_folder)
    names = list(STEPS)
    for name in names[:names.index(step)]:
        STEPS[name](memory)
    shutil.copytree(before_folder, after_folder)
    STEPS[step](SiloMemory(after_folder))
    before, after = facts(before_folder), facts(after_folder)
    assert before != after, "the step must change something, or this test proves nothing"
    outcomes = set()
    for at in range(1, 100):
        folder = tmp_path / f"killed{at}"
        shutil.copytree(before_folder, folder)
        memory = SiloMemory(folder)
        with pytest.MonkeyPatch.context() as patch:
            killer = KillAt(patch, at)
            try:
                STEPS[step](memory)
                killed = False
            except Killed:
                killed = True
        now = facts(folder)
        assert now in (before, after)
        outcomes.add(now == after)
        if not killed:
            assert killer.count >= 4, "the index was written: a file and its folder were opened and synchronised"
            break
        STEPS[step](SiloMemory(folder))
        assert facts(folder) == after
    else:
        pytest.fail("the step never ended")
    assert outcomes == {False, True}


def test_memory_that_cannot_be_read_for_now_is_not_dropped(tmp_path: Path) -> None:
    memory = SiloMemory(tmp_path)
    answer(memory, 1)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    with mock.patch("semisilo.silo.site.memory.hash_file", side_effect=OSError(errno.EIO, "Input/output error")):
        with pytest.raises(OSError, match="Input/output"):
            memory.committed("s")
        with pytest.raises(OSError, match="Input/output"):
            memory.state()
    assert seen(memory) == "memory 1 train"


def test_memory_of_another_federation_goes_and_that_of_nobody_is_this_ones(tmp_path: Path) -> None:
    """Both federations have a study `s`, and names of tasks say nothing of the federation."""
    answer(SiloMemory(tmp_path), 1)  # of a version that wrote no authority
    memory = SiloMemory(tmp_path)
    memory.belong_to("aa" * 32)
    memory = SiloMemory(tmp_path)
    memory.belong_to("aa" * 32)
    assert memory.pending_for("s/1/train") is not None
    memory.belong_to("bb" * 32)
    memory = SiloMemory(tmp_path)
    assert (memory.pending_for("s/1/train"), memory.state()) == (None, ("", 0))
    assert list(tmp_path.glob(f"*{STATE_ENDING}")) == []
    answer(memory, 1)
    memory.belong_to("bb" * 32)
    assert SiloMemory(tmp_path).pending_for("s/1/train") is not None
    index = json.loads((tmp_path / "memory.json").read_text())
    assert (set(index), index["format"]) == ({"format", "latest", "studies"}, 1), "earlier versions read it"


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe" * 30, b"\0" * 65, b"aa" * 20])
def test_memory_whose_federation_cannot_be_read_any_more_is_this_ones(tmp_path: Path, damage: bytes) -> None:
    SiloMemory(tmp_path).belong_to("aa" * 32)
    answer(SiloMemory(tmp_path), 1)
    (tmp_path / "authority").write_bytes(damage)
    memory = SiloMemory(tmp_path)
    memory.belong_to("aa" * 32)
    assert memory.pending_for("s/1/train") is not None
    assert (tmp_path / "authority").read_text() == "aa" * 32 + "\n"


def test_a_silo_that_is_killed_as_it_moves_on_has_no_memory_of_the_other_federation(tmp_path: Path) -> None:
    SiloMemory(tmp_path).belong_to("aa" * 32)
    answer(memory := SiloMemory(tmp_path), 1)
    writing = "semisilo.silo.site.memory.write_durably"
    with mock.patch(writing, side_effect=[KeyboardInterrupt]), pytest.raises(KeyboardInterrupt):
        memory.belong_to("bb" * 32)
    assert SiloMemory(tmp_path).pending_for("s/1/train") is not None, "nothing has changed yet"

    def index_alone(path: Path, content: bytes) -> None:
        if path.name != "memory.json":
            raise KeyboardInterrupt
        path.write_bytes(content)
    with mock.patch(writing, side_effect=index_alone), pytest.raises(KeyboardInterrupt):
        SiloMemory(tmp_path).belong_to("bb" * 32)
    for authority in ("bb" * 32, "aa" * 32):
        memory = SiloMemory(tmp_path)
        memory.belong_to(authority)
        assert memory.pending_for("s/1/train") is None


def test_room_for_an_answer_like_the_last_is_asked_for_before_it_is_made(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 0
    monkeypatch.setattr("semisilo.silo.site.memory.shutil.disk_usage", lambda path: mock.Mock(free=free))
    memory = SiloMemory(tmp_path)
    memory.check_room("s")  # nothing is known of the first one
    answer(memory, 1, content="m" * 1000, residuals="r" * 500)
    memory.resolve("s", 1, round=2, task_id="s/2/train")
    update = len("update 1 train")
    free = 1500 + update
    memory.check_room("s")
    free -= 1
    with pytest.raises(DiskFull, match=r": training would leave 1\.5 kB here, and not so much is free\.(\n|$)"):
        memory.check_room("s")
    monkeypatch.setattr("semisilo.common.storage.store.SpareFiles.size_bytes", 10**6)
    memory.check_room("s")  # an update is written over an old one
    free = 1500 - 1
    with pytest.raises(DiskFull):
        memory.check_room("s")
    with pytest.raises(DiskFull):
        SiloMemory(tmp_path).check_room("s")
