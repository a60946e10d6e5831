"""Disks of a few megabytes that are full for a while, under a silo's home and under the coordinator's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.processes import FederationOfProcesses, Undisturbed, federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@contextmanager
def _small_disk(folder: Path, mib: int) -> Iterator[None]:
    """Meanwhile a folder with all that it holds lies on a file system of its own."""
    aside = folder.with_name(f"{folder.name}.aside")
    folder.rename(aside)
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder],
                                      capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True, symlinks=True)
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    """Meanwhile nothing more fits on the disk of a folder, whatever is removed from it."""
    filler = folder / "filler"

    def fill() -> None:
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    fill()
    try:
        yield
    finally:
        filler.unlink()


def _says(processes: FederationOfProcesses, name: str) -> bool:
    """Whether the process has said what is in the way."""
    log = processes.log(name)
    return any(text in log for text in ("No space left on device", "does not fit on the disk", "not so much is free",
                                        "is full"))


def test_full_disks_make_a_study_wait_and_change_no_bits(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation(tmp_path, copies=False) as processes:
        processes.serve()
        for silo in processes.silos:
            processes.enroll(silo)
        processes.kill("coordinator")
        try:
            with _small_disk(tmp_path / "alpha", 64), _small_disk(processes.hub, 128):
                processes.serve()
                processes.join("alpha")
                processes.wait_for(lambda: "connected to" in processes.log("alpha"))
                with _full(tmp_path / "alpha"):
                    processes.join("beta")  # now the first round begins
                    processes.wait_for(lambda: _says(processes, "alpha"))
                processes.wait_for(lambda: bool(processes.query("SELECT 1 FROM task WHERE state = 'updated'")))
                with _full(processes.hub):
                    processes.wait_for(lambda: _says(processes, "coordinator") or _says(processes, "beta"))
                    assert all(process.poll() is None for process in processes.running.values())
                digest = processes.finish()
                assert digest == undisturbed.digest
                assert processes.query("SELECT count(*) FROM task WHERE state <> 'updated'") == [(0,)]
        finally:
            processes.stop()
        for name in ("coordinator", "alpha", "beta"):
            assert "Traceback" not in (tmp_path / f"{name}.log").read_text(errors="replace")
