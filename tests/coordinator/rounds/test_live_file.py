from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.config import to_dict
from semisilo.coordinator.rounds.live_file import (
    STALE_SECONDS,
    LiveFile,
    LiveStatus,
    read,
    seconds_between,
    wait_for_enrollment,
    write,
)
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason


def _runtime() -> RuntimeState:
    runtime = RuntimeState(study="first", round=3, rounds=10, phase="train", reason=StandbyReason.COLLECTING,
                           activity="aggregating", fraction=0.5, text="on time")
    runtime.heard("hospital-b", task_id="t", stage="training", fraction=0.25, text="epoch 1")
    runtime.connected = {"hospital-b": 2, "hospital-a": 1}
    return runtime


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    status = LiveStatus.from_runtime(_runtime(), deadline_unix=123.5)
    write(tmp_path / "live.json", status)
    again = read(tmp_path / "live.json")
    assert again == status
    assert again is not None
    assert (again.pid, again.study, again.round, again.rounds) == (os.getpid(), "first", 3, 10)
    assert again.connected == ("hospital-a", "hospital-b")
    assert again.silos["hospital-b"].stage == "training"
    assert again.silos["hospital-b"].fraction == 0.25
    assert list(tmp_path.iterdir()) == [tmp_path / "live.json"], "no temporary file stays"


def test_a_missing_damaged_or_foreign_file_is_no_status(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    assert read(path) is None
    for text in ("", "{", "[]", '{"pid": "one"}', '{"pid": 1, "unix": 1, "unknown": 2}'):
        path.write_text(text)
        assert read(path) is None, text


@pytest.mark.parametrize(("age", "fresh"), [(0.0, True), (STALE_SECONDS - 0.1, True), (STALE_SECONDS + 0.1, False),
                                            (-STALE_SECONDS - 0.1, False)])
def test_an_old_file_or_one_from_the_future_is_no_status(tmp_path: Path, age: float, fresh: bool) -> None:
    write(tmp_path / "live.json", LiveStatus.from_runtime(_runtime(), now_unix=1000.0))
    assert (read(tmp_path / "live.json", now_unix=1000.0 + age) is not None) is fresh


def test_a_file_of_a_process_that_has_gone_is_no_status(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write(tmp_path / "live.json", LiveStatus.from_runtime(_runtime(), pid=gone.pid))
    assert read(tmp_path / "live.json") is None
    for pid in (0, -1, 2**80):
        write(tmp_path / "live.json", LiveStatus.from_runtime(_runtime(), pid=pid))
        assert read(tmp_path / "live.json") is None


def test_progress_that_is_no_share_does_not_break_the_file(tmp_path: Path) -> None:
    runtime = _runtime()
    runtime.fraction = float("nan")
    runtime.heard("hospital-a", task_id="t", stage="training", fraction=float("inf"), text="")
    runtime.heard("hospital-b", task_id="t", stage="training", fraction=7.0, text="")
    write(tmp_path / "live.json", LiveStatus.from_runtime(runtime))
    status = read(tmp_path / "live.json")
    assert status is not None
    assert status.fraction == 0.0
    assert to_dict({name: silo.fraction for name, silo in status.silos.items()}) == {"hospital-a": 0.0,
                                                                                    "hospital-b": 1.0}


def test_an_invitation_waits_until_the_enrolment_port_listens_and_only_where_serve_runs(tmp_path: Path) -> None:
    path, runtime, waited = tmp_path / "live.json", _runtime(), list[float]()

    def passing(seconds: float) -> None:
        waited.append(seconds)
        runtime.enrollment = len(waited) >= 3
        write(path, LiveStatus.from_runtime(runtime))

    assert wait_for_enrollment(path, sleep=passing) == "not serving"
    assert not waited
    write(path, LiveStatus.from_runtime(runtime))
    assert wait_for_enrollment(path, sleep=passing) == "open"
    assert len(waited) == 3
    runtime.enrollment = False
    write(path, LiveStatus.from_runtime(runtime))
    ticks = iter(range(0, 1000, 5))
    assert wait_for_enrollment(path, patience_seconds=15, sleep=lambda seconds: None,
                               now=lambda: float(next(ticks))) == "shut"


def test_a_full_disk_does_not_keep_serve_from_saying_what_is_in_the_way(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten seconds it looked as if nobody served."""
    path, runtime = tmp_path / "live.json", _runtime()
    file = LiveFile(path)
    file.write(LiveStatus.from_runtime(runtime, now_unix=1000.0))
    original = os.open

    def full(name: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(name))
        return original(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", full)
    runtime.trouble = "/hub/states: No space left on device. Free some space."
    file.write(LiveStatus.from_runtime(runtime, now_unix=2000.0))
    found = read(path, now_unix=2000.0)
    assert found is not None
    assert (found.trouble, found.connected, len(found.silos)) == (runtime.trouble, ("hospital-a", "hospital-b"), 1)
    for number in range(100):  # more than the file has room for
        runtime.heard(f"hospital-{number}", task_id="t", stage="training", fraction=0.5, text="epoch 1 of 5")
    file.write(LiveStatus.from_runtime(runtime, now_unix=3000.0))
    found = read(path, now_unix=3000.0)
    assert found is not None
    assert (found.trouble, found.connected, len(found.silos)) == (runtime.trouble, ("hospital-a", "hospital-b"), 0)
    file.remove()
    file.remove()
    assert not path.exists()


def test_a_file_that_is_just_overwritten_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "live.json"
    status = LiveStatus.from_runtime(_runtime())
    write(path, status)
    whole = path.read_text()
    path.write_text(whole[:40] + "\0" * 40)
    monkeypatch.setattr(time, "sleep", lambda seconds: path.write_text(whole))
    assert read(path) == status


def test_of_many_silos_it_is_written_more_seldom_and_is_never_near_to_being_old() -> None:
    """With a thousand silos a writing takes as long as several answers."""
    assert seconds_between(0) == 1.0
    assert seconds_between(1000) == 3.0
    assert 3 * seconds_between(100_000) < STALE_SECONDS
