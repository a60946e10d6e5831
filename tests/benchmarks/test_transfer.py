"""The benchmark of transfers runs to its end: its stand-in has all that the servicer asks of the task service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.wire import transfer
from tests.processes import PATIENCE_SECONDS


@pytest.mark.slow
def test_payloads_move_both_ways_between_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_LONGEST_SECONDS", PATIENCE_SECONDS)
    figures = tmp_path / "figures.json"
    assert transfer.main(["--size", "200000", "--repetitions", "2", "--silos", "2", "--delay-ms", "0", "--folder",
                 str(tmp_path), "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())
    assert [each["what"] for each in found] == ["raw TLS", "raw TLS", "download", "upload"]
    assert all(each["rate"] > 0 for each in found)
