"""The numbers of a card where images may show several findings or none, and the way to predictions and back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from semisilo.common.errors import ComputeFailed, UsageError
from semisilo.common.measures.study_measure import parse_measure
from semisilo.coordinator.export.findings import (
    CHOSEN_ON_VALIDATION,
    NOT_CHOSEN,
    measure_findings,
    thresholds_for,
)

LOGITS_NK = np.array([[2.0, -1.0], [1.0, 1.0], [-1.0, 3.0], [-2.0, -2.0], [0.5, 0.2]], dtype=np.float32)
ROWS_NK = np.array([[1, 0], [1, 1], [0, 1], [0, 0], [0, -1]], dtype=np.int8)


def test_every_class_is_measured_by_itself_and_at_its_own_threshold() -> None:
    """Class a: two images show it, ranked before all three others. Class b: two of the four that are known, likewise.
    At 0.5 class a is also found in the last image."""
    found = measure_findings(LOGITS_NK, ROWS_NK, classes=("a", "b"), thresholds=(), thresholds_from=NOT_CHOSEN)
    a, b = found.classes
    assert (a.images, a.others, a.found, a.spared, a.auroc, a.threshold) == (2, 3, 2, 2, 1.0, 0.5)
    assert (b.images, b.others, b.found, b.spared, b.auroc) == (2, 2, 2, 2, 1.0)
    assert (a.sensitivity, a.specificity, a.f1) == (1.0, 2 / 3, 0.8)
    assert found.f1_macro == pytest.approx(0.9)
    assert found.exact_match == 0.8, "all but the last, of which class b is not known"
    assert found.metrics == {"auroc": 1.0, "average_precision": 1.0, "auroc/a": 1.0, "auroc/b": 1.0,
                             "average_precision/a": 1.0, "average_precision/b": 1.0}
    for measure in ("auroc", "average_precision"):
        interval = found.interval_of(parse_measure(measure))
        assert interval is not None
        assert interval.low < 1.0 == interval.high, "few images, so that the interval is wide"


def test_thresholds_of_validation_images_part_what_can_be_parted() -> None:
    """Class a is shown by logits 2 and 1 and not by 0.5: halfway between their probabilities."""
    cuts = thresholds_for(LOGITS_NK, ROWS_NK)
    assert cuts[0] == pytest.approx((1 / (1 + np.exp(-1.0)) + 1 / (1 + np.exp(-0.5))) / 2, abs=1e-6)
    found = measure_findings(LOGITS_NK, ROWS_NK, classes=("a", "b"), thresholds=cuts,
                             thresholds_from=CHOSEN_ON_VALIDATION)
    assert (found.exact_match, found.f1_macro) == (1.0, 1.0)


def test_answers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ComputeFailed, match="not finite"):
        measure_findings(np.full((1, 2), np.nan, dtype=np.float32), ROWS_NK[:1], classes=("a", "b"), thresholds=(),
                         thresholds_from=NOT_CHOSEN)


@pytest.mark.slow
def test_a_model_of_several_labels_is_handed_over_with_thresholds_and_predicts_by_them(tmp_path: Path) -> None:
    from semisilo.common.models.exported import read_facts
    from semisilo.prediction.predictor import predict
    from semisilo.simulation import run
    from semisilo.simulation.output import export_run
    from tests.semisilo.simulation.test_multi_label import CASES, tables_of
    from tests.two_digits import CLASSES, write_two_digits

    images = write_two_digits(tmp_path / "two.npz", train=500, test=200)
    tables = tables_of(images, CASES["self_training"])
    tables["simulation"]["split"]["num_validation"] = 100
    run(tables, out=tmp_path / "run", device="cpu")
    folder = export_run(tmp_path / "run", out=tmp_path / "out").folder
    card, facts = json.loads((folder / "model_card.json").read_text()), read_facts(folder / "model.safetensors")
    assert facts.task == "multi_label"
    assert len(facts.thresholds) == len(CLASSES)
    assert card["test"] is None
    assert card["findings"]["images"] == 200
    text = (folder / "model_card.md").read_text()
    assert "Average precision, macro" in text
    assert "Accuracy" not in text
    found = predict(folder, f"{images}#test", device="cpu")
    rows = found.rows()
    assert np.array_equal(found.shown, found.probabilities >= np.array(facts.thresholds))
    assert rows[0]["findings"] == "|".join(name for name in CLASSES if rows[0][f"shown_{name}"])
    assert found.accuracy is None
    with np.load(images) as arrays:
        truth_NK = arrays["test_labels"] == 1
    hits = int((found.shown & truth_NK).sum(axis=0)[3])
    assert hits == card["findings"]["classes"][3]["found"], "the card and the predictions are of the same thresholds"
    with pytest.raises(UsageError, match="--prevalence is for models whose images have one class"):
        predict(folder, f"{images}#test", device="cpu", prevalence="estimate")
