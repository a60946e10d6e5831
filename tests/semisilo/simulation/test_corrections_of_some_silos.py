"""Fed-SHVR's corrections where a round asks some of the silos and `largest_weight` cuts the counts of large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.secure_sums.sums import sum_row
from semisilo.simulation import run
from tests.semisilo.studies import study


def tables(silos_per_round: int, variant: str = "fed_shvr", **others: Any) -> dict[str, Any]:
    """Six silos of very different size, so that the counts of the larger ones are cut in most rounds."""
    return study("fed_shvr", "labels-at-silo", rounds=4, silos=6, settings={"variant": variant}, split={
        "name": "class_mismatch", "labelled_per_class": None, "labelled_per_silo": 12, "mismatch_ratio": 0.0,
        "classes_per_silo": 6, "sizes": "literal", "dirichlet": 0.6, "fraction": 0.4},
        participation={"silos_per_round": silos_per_round}, model={"name": "small_cnn", "normalisation": "group"},
        **others)


@pytest.mark.slow
def test_a_sum_goes_on_whichever_silos_a_round_asks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = run(tables(2), out=tmp_path, device="cpu")
    assert [each.metrics["correction_epoch"] for each in found.rounds] == [1.0] * 5
    assert found.rounds[-1].metrics["correction_silos"] > 2
    assert not [each for each in caplog.records if "restarts" in each.getMessage()]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["fed_shvr", "fed_sh"])
def test_behind_masks_silos_weigh_alike_in_every_round_where_a_correction_hangs_on_it(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, variant: str) -> None:
    """Without a correction a round's own silos say what they weigh by, as with other methods."""
    found = run(tables(3, variant, privacy={"secure_aggregation": True}), out=tmp_path, device="cpu")
    ledger = Ledger(tmp_path / "ledger.sqlite")
    forms = [sum_row(ledger, "study", round, "train").form for round in range(1, 5)]
    ledger.close()
    references = {form.weight_reference for form in forms if form is not None}
    assert len(references) == 1 if variant == "fed_shvr" else len(references) > 1
    if variant == "fed_shvr":
        assert [each.metrics["correction_epoch"] for each in found.rounds] == [1.0] * 5
        assert not [each for each in caplog.records if "restarts" in each.getMessage()]
