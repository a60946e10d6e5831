"""Locks that are held, that are looked at, and that a glance does not keep anybody from taking."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from semisilo.common.storage import lock_file
from semisilo.common.storage.lock_file import is_locked, lock_soon


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def test_a_lock_that_is_held_is_seen_and_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_file, "LOCK_SECONDS", 0.05)
    path = tmp_path / "lock"
    assert not is_locked(path), "there is no such file"
    first, second = opened(path), opened(path)
    assert not is_locked(path)
    assert lock_soon(first)
    assert is_locked(path)
    assert not lock_soon(second)
    os.close(first)
    assert not is_locked(path)
    assert lock_soon(second)
    os.close(second)


def test_a_glance_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    glancing, taking = opened(path), opened(path)
    fcntl.flock(glancing, fcntl.LOCK_SH)
    timer = threading.Timer(0.1, os.close, [glancing])
    began = time.monotonic()
    timer.start()
    assert lock_soon(taking)
    assert time.monotonic() - began >= 0.05
    timer.join()
    os.close(taking)
