"""What the kernel refuses to real processes, taken back after a while: the study goes on with the same bits.

Every operation on a file is failed by `tests/simulator/file_errors.py`; here SQLite, gRPC, torch and both compute
processes meet the kernel's own error, or that of a C library in which operations fail (`tests/failing_files/`).
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from semisilo.common.storage.half_written import LEFT_SECONDS
from tests.failing_files import KINDS, FailingFiles, compiled
from tests.processes import FederationOfProcesses, Undisturbed, federation

_LEFT_OVER = ("hub/.live.json.1.tmp", "hub/studies/first/.model.safetensors.0123456789ab.tmp",
              "alpha/status.json.1.tmp", "alpha/memory/.0123456789abcdef.tmp")
_FAILING_SECONDS = 4.0
_NUMBERS = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT)


def _tree(pid: int) -> list[int]:
    """A process and those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _tree(int(child)))]


@contextmanager
def _no_more_files(*pids: int) -> Iterator[None]:
    """Meanwhile no file can be opened there: EMFILE. A compute process may end of it, and another takes its place."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        for pid, limit in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


def _collects(processes: FederationOfProcesses, number: int) -> bool:
    return bool(processes.query(f"SELECT 1 FROM round WHERE number = {number} AND state = 'collecting'"))


@pytest.mark.slow
@pytest.mark.parametrize(("side", "compute", "says"), [
    ("coordinator", False, "Too many open files"), ("coordinator", True, "Too many open files"),
    ("alpha", False, "Too many open files"), ("alpha", True, "put off: ")])
def test_too_many_open_files_make_a_study_wait_and_change_no_bits(
        side: str, compute: bool, says: str, tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation(tmp_path, copies=False) as processes:
        processes.start()
        processes.wait_for(lambda: _collects(processes, 1))
        light, *others = _tree(processes.running[side].pid)
        with _no_more_files(*(others if compute else [light])):
            processes.wait_for(lambda: says in processes.log(side))
            assert processes.running[side].poll() is None
        assert processes.finish() == undisturbed.digest
        assert "Traceback" not in (tmp_path / f"{side}.log").read_text(errors="replace")
        assert processes.query("SELECT count(*) FROM task WHERE state <> 'updated'") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize(("side", "number", "kinds", "permille"), [
    ("coordinator", errno.EIO, KINDS, 1000), ("coordinator", errno.EIO, ("read",), 1000),
    ("coordinator", errno.EIO, KINDS, 100), ("coordinator", errno.EROFS, ("open", "write", "names", "truncate"), 1000),
    ("coordinator", errno.ETIMEDOUT, KINDS, 100),
    ("alpha", errno.EIO, KINDS, 1000), ("alpha", errno.EIO, KINDS, 100), ("alpha", errno.ESTALE, KINDS, 300),
    ("alpha", errno.ENOTCONN, KINDS, 1000), ("alpha", errno.ETIMEDOUT, KINDS, 100)],
    ids=lambda value: errno.errorcode[value] if value in _NUMBERS else None)
def test_a_disk_that_fails_makes_a_study_wait_and_changes_no_bits(
        side: str, number: int, kinds: tuple[str, ...], permille: int, tmp_path: Path,
        undisturbed: Undisturbed) -> None:
    if (library := compiled(tmp_path)) is None:
        pytest.skip("needs Linux and a C compiler")
    with federation(tmp_path, copies=False) as processes:
        folder = processes.hub if side == "coordinator" else tmp_path / side
        files = FailingFiles(library, folder, tmp_path / "control")
        processes.surroundings[side] = files.environment
        processes.start()
        processes.wait_for(lambda: _collects(processes, 1))
        before = files.failed
        with files.failing(number, kinds, permille=permille):
            processes.wait_for(lambda: files.failed > before)
            time.sleep(_FAILING_SECONDS)
            assert processes.running[side].poll() is None
        assert processes.finish() == undisturbed.digest
        said = (tmp_path / f"{side}.log").read_text(errors="replace")
        assert "Traceback" not in said
        assert "is gone" not in said
        assert processes.query("SELECT count(*) FROM task WHERE state <> 'updated'") == [(0,)]


@pytest.mark.slow
def test_what_was_left_half_written_is_removed_while_both_sides_work(tmp_path: Path) -> None:
    with federation(tmp_path) as processes:
        processes.serve()
        for name in processes.silos:
            processes.enroll(name)
        for name in _LEFT_OVER:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half")
            old = time.time() - LEFT_SECONDS - 60
            os.utime(path, (old, old))
        processes.kill("coordinator")
        processes.serve()
        for name in processes.silos:
            processes.join(name)
        processes.wait_for(lambda: not any((tmp_path / name).exists() for name in _LEFT_OVER))
