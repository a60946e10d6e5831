"""A model whose images may have several labels, from a study to its card, to predictions and back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from semisilo.common.errors import UsageError


@pytest.mark.slow
def test_a_model_of_several_labels_is_handed_over_with_thresholds_and_predicts_by_them(tmp_path: Path) -> None:
    from semisilo.common.models.exported import read_facts
    from semisilo.prediction.predictor import predict
    from semisilo.simulation import run
    from semisilo.simulation.output import export_run, write_output
    from tests.semisilo.simulation.test_multi_label import CASES, tables_of
    from tests.two_digits import CLASSES, write_two_digits

    images = write_two_digits(tmp_path / "two.npz", train=500, test=200)
    tables = tables_of(images, CASES["self_training"])
    tables["simulation"]["split"]["num_validation"] = 100
    result = run(tables, out=tmp_path / "run", device="cpu")
    page = write_output(result).read_text()
    for words in ("AUROC of every class", "Rightly without", "Calibration error", "on 200 test images"):
        assert words in page
    assert "ccuracy of" not in page
    assert "Test accuracy" not in page
    folder = export_run(tmp_path / "run", out=tmp_path / "out", round="last", calibrate=True,
                        operating_point=("sensitivity 80% for every class", "specificity 90% for 4")).folder
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
    assert found.measures is not None
    assert found.measures.auroc_macro == card["findings"]["auroc_macro"]
    assert found.measures.expected_error_macro_with_scaling == card["findings"]["expected_error_macro_with_scaling"]
    assert found.measures.expected_error_macro_with_scaling < found.measures.expected_error_macro
    by_name = {each["name"]: each for each in card["thresholds"]}
    assert by_name["4"]["chosen_for"] == "specificity 90 %"
    assert by_name["4"]["validation"]["specificity"] >= 0.9
    assert all(each["validation"]["sensitivity"] >= 0.8 for name, each in by_name.items() if name != "4")
    assert {point.label for point in facts.operating_points} == set(CLASSES)
    assert (folder / "reliability.png").stat().st_size > 10_000
    for words in ("Operating points", "Calibration", "Rightly without", "come together", "F1, micro",
                  "sensitivity 80 % for 9"):
        assert words in text
    graph = predict(folder / "model.onnx", f"{images}#test", device="cpu")
    assert np.allclose(graph.probabilities, found.probabilities, atol=1e-4)
    metadata = {each.key: each.value for each in onnx.load(str(folder / "model.onnx")).metadata_props}
    assert json.loads(metadata["thresholds"]) == list(facts.thresholds)
    assert json.loads(metadata["slopes"]) == [each.slope for each in facts.scaling]
    assert "sigmoid of slopes" in metadata["output"]
    with pytest.raises(UsageError, match="--no-operating-point is"):
        predict(folder, f"{images}#test", device="cpu", operating_point=False)
    with pytest.raises(UsageError, match="--prevalence is for models whose images have one class"):
        predict(folder, f"{images}#test", device="cpu", prevalence="estimate")
