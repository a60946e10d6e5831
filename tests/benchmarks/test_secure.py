"""The benchmark of secure aggregation: its sums are whole ones, and its page says what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.secure.measure import measure_bytes_of_messages, measure_protocol, measure_vectors
from benchmarks.secure.results import silo_seconds, write_results

MACHINE = {"cpu": "A CPU", "cores": 2, "kernel": "6", "python": "3.11", "date": "2026-01-01", "load_before": 0.1,
           "load_after": 0.2, "version": "0.1"}


def facts(seconds: float) -> dict[str, float]:
    return {"processor": seconds, "lowest": seconds, "highest": seconds, "wall": 2 * seconds}


def test_the_page_has_sums_and_ratios_of_what_was_measured(tmp_path: Path) -> None:
    """0.1 + 0.2 + 0.3 s are 0.6; with 0.2 s of writing 0.8, four times 0.2 and twice 0.4."""
    names: dict[str, float] = {"quantise": 0.1, "masks": 0.2, "pack": 0.3, "write": 0.2, "plain raw": 0.2,
                               "plain auto": 0.4, "hub: unpack and add, a silo": 0.5,
                               "hub: take self masks away": 0.6, "hub: decode": 0.7}
    row: dict[str, Any] = {"parameters": 1000, "silos": 3, "bits": 16, "dense_bytes": 4000,
                           "bytes": {"masked": 2000, "plain auto": 3600},
                           "seconds": {name: facts(seconds) for name, seconds in names.items()}}
    assert silo_seconds(row) == pytest.approx(0.6)
    protocol = measure_protocol(silos=3, repeats=1) | {"bytes": measure_bytes_of_messages(3)}
    write_results({"machine": MACHINE, "quick": False, "vectors": [row], "protocol": [protocol]}, tmp_path / "R.md")
    text = (tmp_path / "R.md").read_text()
    assert "| **0.60** | 1.20 | 0.200 | 0.200 | 0.400 | 4.0 | 2.0 |" in text
    assert "| 1,000 | 16 | 2,000 | 0.500 | 0.900 |" in text


def test_bytes_of_messages_are_those_of_the_fields() -> None:
    """Three silos of names of 7 letters. Sent: keys 128; two names and two sealed shares of 132 + 16 bytes and a
    commitment of 32; a name and a signature of 64; three names and three shares of 66."""
    assert measure_bytes_of_messages(3)["sent"] == 128 + 2 * (7 + 148) + 32 + 71 + 3 * (7 + 66)


def test_small_vectors_are_measured_with_their_bytes() -> None:
    row = measure_vectors(parameters=1000, silos=3, bits=20, repeats=2)
    assert row["level"] == (2**19 - 1) // 3
    assert 2500 < row["bytes"]["masked"] < 2900
    assert silo_seconds(row) > 0
