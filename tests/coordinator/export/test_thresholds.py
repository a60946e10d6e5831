"""Thresholds of classes that are each a yes or no: what they are chosen for, and on which images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadData, UsageError
from semisilo.common.measures.finding_calibration import PlattScaling
from semisilo.common.measures.findings import CHOSEN_ON_VALIDATION, NOT_CHOSEN
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.exported import ModelFacts, OperatingPoint, facts_from_json
from semisilo.coordinator.export.operating_point import wanted_points
from semisilo.coordinator.export.thresholds import choose_thresholds, threshold_in_words, thresholds_in_words
from tests.each_of import each_of

CLASSES = ("edema", "effusion", "hernia")
RANDOM = np.random.default_rng(2)
ROWS_NK = (RANDOM.random((200, 3)) < (0.4, 0.2, 0.0)).astype(np.int8)
LOGITS_NK = (RANDOM.normal(size=(200, 3)) + 2 * ROWS_NK).astype(np.float32)
FACTS = ModelFacts(model=ModelSettings(name="small_cnn", classes=CLASSES), study="s", method="semifl", round=1,
                   state="", task="multi_label",
                   image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,), resize="stretch"))


def test_a_point_for_every_class_leaves_named_classes_and_those_without_images_alone() -> None:
    wanted = wanted_points(("sensitivity 90% for every class", "specificity 95% for effusion"), CLASSES)
    assert [(each.label, each.measure) for each in wanted] == [
        ("edema", "sensitivity"), ("effusion", "specificity"), ("hernia", "sensitivity")]
    found = choose_thresholds(LOGITS_NK, ROWS_NK, classes=CLASSES, wanted=wanted, calibrate=False)
    assert [point.label for point in found.operating_points] == ["edema", "effusion"]
    assert (found.rates[0].sensitivity or 0) >= 0.9
    assert (found.rates[1].specificity or 0) >= 0.95
    assert found.thresholds[2] == 0.5, "no image shows it"
    facts = replace(FACTS, thresholds=found.thresholds, operating_points=found.operating_points)
    assert facts_from_json(facts.to_json(), where="x") == facts
    assert thresholds_in_words(facts) == ("sensitivity 90 % for edema, specificity 95 % for effusion on the validation"
                                          f" images; for the others {CHOSEN_ON_VALIDATION}")
    assert threshold_in_words(facts, "effusion", shown=9) == "specificity 95 %"
    assert threshold_in_words(facts, "hernia", shown=0) == "0.5: no validation image shows it"
    assert threshold_in_words(replace(facts, operating_points=()), "edema", shown=9) == "largest F1"


def test_thresholds_of_fitted_probabilities_find_the_same_images() -> None:
    wanted = wanted_points(("sensitivity 90% for edema",), CLASSES)
    plain, fitted = (choose_thresholds(LOGITS_NK, ROWS_NK, classes=CLASSES, wanted=wanted, calibrate=each)
                     for each in (False, True))
    assert plain.scaling == ()
    assert fitted.scaling[2] == PlattScaling()
    assert plain.thresholds != fitted.thresholds
    assert [(each.found, each.spared) for each in plain.rates] == [(each.found, each.spared) for each in fitted.rates]


@each_of(("texts", "says"), [
    (("sensitivity 90% for edem",), "no class 'edem'"), (("sensitivity 0% for every class",), "above 0"),
    (("sensitivity 90% for edema", "specificity 90% for edema"), "'edema' is named twice"),
    (("sensitivity 90% for every class", "specificity 90% for every class"), "'every class' is named twice")])
def test_points_that_are_not_understood_are_refused_by_name(texts: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        wanted_points(texts, CLASSES)


def test_a_class_of_that_name_is_meant_itself() -> None:
    (point,) = wanted_points(("sensitivity 90% for every class",), ("every class", "other"))
    assert (point.label, point.asked_of_all) == ("every class", False)


def test_a_named_class_without_validation_images_is_refused() -> None:
    with pytest.raises(UsageError, match="validation images of 'hernia'"):
        choose_thresholds(LOGITS_NK, ROWS_NK, classes=CLASSES, calibrate=False,
                          wanted=wanted_points(("sensitivity 90% for hernia",), CLASSES))


def test_facts_that_contradict_themselves_are_refused() -> None:
    point = OperatingPoint(label="edema", measure="sensitivity", level=0.9, threshold=0.4)
    for wrong in ({"scaling": (PlattScaling(),)}, {"operating_points": (point,)},
                  {"operating_points": (point,), "thresholds": (0.5, 0.5, 0.5)},
                  {"operating_points": (replace(point, label="x"),), "thresholds": (0.4, 0.5, 0.5)},
                  {"scaling": (PlattScaling(),) * 3, "task": "single_label"}):
        with pytest.raises(ValueError, match=r"scaling|operating point"):
            replace(FACTS, **wrong)  # type: ignore[arg-type]
    text = replace(FACTS, scaling=(PlattScaling(2.0, 1.0),) * 3).to_json()
    with pytest.raises(BadData):
        facts_from_json(text.replace('"slope":2.0', '"slope":-2.0'), where="x")
    assert '"scaling"' not in FACTS.to_json(), "files that do not use it are those of before"
    assert thresholds_in_words(FACTS) == NOT_CHOSEN
