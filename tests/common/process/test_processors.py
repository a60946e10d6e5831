"""How many processors there are: never more than may be used, never none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semisilo.common.process.processors import usable_processors


@pytest.mark.parametrize(("quota", "expected"), [
    ("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), ("rubbish", 8),
    ("5 0", 8), (None, 8)])
def test_the_quota_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None,
                                         expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota + "\n")
    assert usable_processors(file) == expected


def test_where_a_system_cannot_say_what_is_allowed_its_processors_count(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_processors(tmp_path / "none") == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_processors(tmp_path / "none") == 1
