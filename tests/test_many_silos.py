"""One coordinator and many connections: every silo is asked, heard and paid for in every round."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.wire.many_silos import measure


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_thirty_silos_with_connections_of_their_own_all_answer_every_round(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    found = measure(30, parameters=5_000, rounds=3, say=print, keep=tmp_path / "federation", seconds=300)
    assert (found["updates"], found["lost"]) == (90, 0)
    assert len(found["seconds_per_round"]) == 2
    for direction in ("up", "down"):  # a model of 20 kB each way, and what a round says besides
        assert 20_000 < found[f"{direction}_bytes"] < 32_000
