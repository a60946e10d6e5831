"""Studies of a hundred rounds: that they are those of the table but for their length, and that the page follows."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.learning import long
from benchmarks.learning.cells import OURS, digest_of, study_of
from benchmarks.learning.long import CELLS_OF_LONG, METHODS_OF_LONG, ROUNDS


def test_a_long_study_differs_in_its_rounds_and_in_passes_over_the_labels(tmp_path: Path) -> None:
    for cell in CELLS_OF_LONG:
        for method in METHODS_OF_LONG:
            short, studied = (study_of(cell, method, seed=101, folder=tmp_path, rounds=rounds)
                              for rounds in (10, ROUNDS))
            assert [each["study"].pop("rounds") for each in (short, studied)] == [10, 100]
            passes = [each["method"].pop("coordinator_epochs", 0) for each in (short, studied)]
            assert short == studied
            assert passes[0] > passes[1] > 0 or OURS in method, "the steps of labels alone are spread over more rounds"


def test_the_page_follows_from_what_was_run(tmp_path: Path) -> None:
    wanted = {digest_of(study_of(cell, method, seed=seed, folder=tmp_path, rounds=ROUNDS))
              for cell in CELLS_OF_LONG for method in METHODS_OF_LONG for seed in range(101, 110)}
    rows = long.lines()
    assert {row["study"] for row in rows} <= wanted
    assert all(len(row["curve"]) == ROUNDS + 1 for row in rows)
    shutil.copy(long.RESULTS, tmp_path)
    long.write_page(tmp_path)
    assert (tmp_path / "LONG.md").read_text() == (long.HERE / "LONG.md").read_text()
