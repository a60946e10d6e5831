"""How many processors may be used: those of the process, and what a container is given of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semisilo.common.process.processors import usable_processors


@pytest.mark.parametrize(("quota", "expected"), [
    ("max 100000", 8), ("300000 100000", 3), ("350000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8),
    ("nonsense", 8), (None, 8)])
def test_a_container_gets_what_its_quota_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None,
                                             expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_processors(quota=tmp_path / "cpu.max") == expected
