"""What a simulation says while it runs, where it writes lines."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from semisilo.simulation.display import ConsoleWatcher
from tests.coordinator.ledger_fixture import SECONDS_PER_ROUND, fill_study
from tests.coordinator.tracking.test_tensorboard import commit


def test_what_goes_on_tells_time_left_by_rounds_of_its_own(tmp_path: Path) -> None:
    """The pause before it counted as the length of a round."""
    filled = fill_study(tmp_path, rounds=6, done=3, complete=False)
    filled.ledger.query("UPDATE round SET closed_unix = opened_unix + 10000 WHERE number > 0")
    stream = io.StringIO()
    watcher = ConsoleWatcher(Console(file=stream, width=200))
    watcher.finished(filled.ledger, "first")
    for number in (4, 5, 6):
        commit(filled, number)
        filled.ledger.query("UPDATE round SET closed_unix = opened_unix + ? WHERE number = ?",
                            SECONDS_PER_ROUND, number)
        watcher.finished(filled.ledger, "first")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "going on after round 3"
    assert [line.rpartition(", ")[2] for line in lines[1:3]] == ["8.0 s left", "4.0 s left"]
    assert "left" not in lines[3], "it is done"
