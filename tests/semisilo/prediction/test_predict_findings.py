"""Predictions where an image may show several classes or none, beside what a source knows of them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadData, UsageError
from semisilo.common.measures.finding_calibration import PlattScaling
from semisilo.common.measures.intervals import Interval
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.exported import ModelFacts
from semisilo.prediction.predictor import predict
from semisilo.prediction.terminal import show_measures

CLASSES = ("edema", "effusion", "hernia")
FACTS = ModelFacts(model=ModelSettings(name="small_cnn", classes=CLASSES), study="s", method="semifl", round=1,
                   state="", task="multi_label", thresholds=(0.5, 0.5, 0.5),
                   image=ImageForm(size=2, channels=1, mean=(0.5,), std=(0.5,), resize="stretch"))
PICTURES = np.arange(4, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), dtype=np.uint8)
SHOWN = (("edema", "effusion"), ("effusion",), (), ("edema",))
"""Of each of the four pictures; of `LOGITS` the last one is answered wrongly for edema."""
LOGITS = np.array([[2, 2, -3], [-2, 1, -3], [-2, -2, -3], [-1, -2, -3]], dtype=np.float32)


class ByBrightness:
    """Answers by the value of a picture's first pixel."""

    def __init__(self, facts: ModelFacts = FACTS) -> None:
        self.facts = facts

    def logits(self, images_BCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        return LOGITS[images_BCHW[:, 0, 0, 0]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, picture in enumerate(PICTURES):
        Image.fromarray(picture).save(tmp_path / f"{index}.png")
    return tmp_path


def table(path: Path, *rows: tuple[object, ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def rows_of(path: Path) -> list[list[int]]:
    found = predict(ByBrightness(), path, batch_size=3)
    assert found.truth is not None
    return [[int(cell) for cell in row] for row in found.truth]


def test_cells_with_bars_and_columns_of_0_and_1_are_compared_alike(folder: Path) -> None:
    bars = table(folder / "bars.csv", ("image", "finding"),
                 *((f"{index}.png", "|".join(shown) or "No Finding") for index, shown in enumerate(SHOWN)))
    columns = table(folder / "columns.csv", ("image", *CLASSES),
                    *((f"{index}.png", *(int(name in shown) for name in CLASSES)) for index, shown in enumerate(SHOWN)))
    assert rows_of(bars) == rows_of(columns) == [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]]
    found = predict(ByBrightness(), bars)
    assert found.measures is not None
    edema, effusion, hernia = found.measures.classes
    assert (edema.found, edema.missed, edema.spared, edema.falsely_found) == (1, 1, 2, 0)
    assert (effusion.sensitivity, effusion.specificity, hernia.auroc) == (1.0, 1.0, None)
    assert (found.labelled, found.accuracy, found.measures.exact_match) == (4, None, 0.75)
    row = found.rows()[0]
    assert [row[f"true_{name}"] for name in CLASSES] == [1, 1, 0]
    assert row["findings"] == "edema|effusion"
    console = Console(record=True, width=80)
    show_measures(found.measures, console)
    text = console.export_text()
    assert all(name in text for name in (*CLASSES, "macro", "micro", "95 % interval"))
    assert max(map(len, text.splitlines()[:10])) <= 80
    said = found.to_dict()
    assert said["measures"]["micro"]["sensitivity"] == 3 / 4  # type: ignore[index]
    assert said["right"] is None


def test_what_is_not_known_of_an_image_or_a_class_does_not_count(folder: Path) -> None:
    path = table(folder / "some.csv", ("image", "edema", "effusion"), ("0.png", 1, 1), ("1.png", 0, 1),
                 ("2.png", "", ""), ("3.png", 1, 0))
    found = predict(ByBrightness(), path)
    assert rows_of(path) == [[1, 1, -1], [0, 1, -1], [-1, -1, -1], [1, 0, -1]]
    assert found.labelled == 3
    assert [row["true_hernia"] for row in found.rows()] == ["", "", "", ""]
    assert found.measures is not None
    assert found.measures.classes[2].images + found.measures.classes[2].others == 0


def test_names_that_the_model_does_not_know_are_told_and_the_others_compared(folder: Path) -> None:
    path = table(folder / "other.csv", ("image", "finding"), ("0.png", "edema|mass"), ("1.png", "effusion"))
    found = predict(ByBrightness(), path)
    assert rows_of(path) == [[1, 0, 0], [0, 1, 0]]
    assert found.notes()[-1] == ("not compared, since the model has no such class: 'mass'; its classes are edema,"
                                 " effusion, hernia")


def test_arrays_bring_rows_and_other_labels_are_refused_or_told(folder: Path) -> None:
    rows = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, -1]])
    found = predict(ByBrightness(), (PICTURES, rows))
    assert found.truth is not None
    assert found.truth.tolist() == rows.tolist()
    with pytest.raises(BadData, match=r"labels have the shape \(4,\)"):
        predict(ByBrightness(), (PICTURES, np.zeros(4, dtype=int)))
    with pytest.raises(BadData, match="something other than 0, 1 and -1"):
        predict(ByBrightness(), (PICTURES, 2 * rows))
    np.savez(folder / "named.npz", images=PICTURES, labels=rows[:, [1, 0]], classes=np.array(["effusion", "edema"]))
    assert rows_of(folder / "named.npz")[0] == [1, 1, -1]
    np.savez(folder / "numbers.npz", images=PICTURES, labels=rows[:, :2])
    assert "have 2 columns without names" in predict(ByBrightness(), folder / "numbers.npz").not_compared
    np.savez(folder / "one.npz", images=PICTURES, labels=np.arange(4))
    told = predict(ByBrightness(), folder / "one.npz")
    assert "one class for an image" in told.not_compared
    assert (told.measures, told.labelled) == (None, 0)
    plain = predict(ByBrightness(), folder)
    assert (plain.measures, plain.not_compared, "true_edema" in plain.rows()[0]) == (None, "", False)


def test_the_probabilities_are_those_of_the_fitted_scaling(folder: Path) -> None:
    from dataclasses import replace

    facts = replace(FACTS, scaling=(PlattScaling(2.0, -1.0), PlattScaling(), PlattScaling()))
    found = predict(ByBrightness(facts), PICTURES)
    assert found.probabilities[0].tolist() == pytest.approx([1 / (1 + np.exp(-3.0)), 1 / (1 + np.exp(-2.0)),
                                                             1 / (1 + np.exp(3.0))])
    for option in ({"operating_point": False}, {"prevalence": "edema=0.1"}):
        with pytest.raises(UsageError, match="one class; here"):
            predict(ByBrightness(), PICTURES, **option)  # type: ignore[arg-type]


def test_where_the_source_tells_patients_apart_intervals_go_by_them_and_it_is_said(folder: Path) -> None:
    def said(*patients: str) -> tuple[str, Interval | None]:
        path = table(folder / "of.csv", ("image", "finding", "patient_id"), *(
            (f"{index}.png", "|".join(shown) or "No Finding", patient)
            for index, (shown, patient) in enumerate(zip(SHOWN, patients, strict=True))))
        found = predict(ByBrightness(), path, batch_size=3)
        assert found.measures is not None
        console = Console(record=True, width=200)
        show_measures(found.measures, console)
        return console.export_text(), found.measures.micro.specificity_interval
    by_image, by_patient = said("p", "q", "r", "s"), said("p", "q", "q", "p")
    assert "95 % interval, by image." in by_image[0]
    assert "95 % interval, by patient (2 patients)." in by_patient[0]
    assert by_image[1] is not None
    assert by_patient[1] is not None
    assert by_patient[1].high - by_patient[1].low > by_image[1].high - by_image[1].low
