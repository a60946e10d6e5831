"""`--prevalence`: what a person may write, and the probabilities it gives."""

from __future__ import annotations

import numpy as np
import pytest

from semisilo.common.errors import UsageError
from semisilo.prediction.prevalence import at_prevalence, wanted_prevalence
from tests.each_of import each_of

CLASSES = ("granulocyte (pro-, meta-)", "a", "a=b")
TRAINED = (0.5, 0.3, 0.2)


def test_classes_left_out_share_the_rest_as_in_training() -> None:
    """0.1 is stated; 0.9 goes 0.5 : 0.2 to the others."""
    assert wanted_prevalence("a=0.1", CLASSES, TRAINED) == pytest.approx((0.9 * 5 / 7, 0.1, 0.9 * 2 / 7))


def test_names_hold_commas_brackets_and_equals_signs_and_shares_may_be_in_percent() -> None:
    found = wanted_prevalence("granulocyte (pro-, meta-)=60%, a=b=0.3,a=1e-1", CLASSES, TRAINED)
    assert found == pytest.approx((0.6, 0.1, 0.3))


@each_of(("text", "says"), [
    ("b=0.1", "no class 'b'"), ("a=x", "no share"), ("a=0.1,a=0.2", "named twice"), ("a=1.2", "more than 1"),
    ("a=0.1,a=b=0.1,granulocyte (pro-, meta-)=0.1", "not 1"), ("  ", "says nothing"), ("a", "'a' has no share"),
    ("a=0.1, granulocyte (pro-, meta-)", "meta-\\)' has no share"), ("a = 0.1", "'a' has no share"),
    ("ab", "no class 'ab'"),
    ("a=-0.1", "no share")])
def test_what_is_no_prevalence_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        wanted_prevalence(text, CLASSES, TRAINED)
    assert raised.value.remedy


def test_probabilities_are_brought_to_what_is_stated_or_estimated() -> None:
    """p = 0.8, 0.2 made for 0.5, 0.5; at 0.1: 0.08 : 0.18. Certain images are counted: 3 to 1."""
    found, prevalence = at_prevalence(np.array([[0.8, 0.2]]), "x=0.1", ("x", "y"), (0.5, 0.5))
    assert found[0].tolist() == pytest.approx([0.08 / 0.26, 0.18 / 0.26])
    assert prevalence.describe(("x", "y")) == "prevalence stated: x 10 %, y 90 %"
    certain = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]])
    _, prevalence = at_prevalence(certain, "estimate", ("x", "y"), (0.5, 0.5))
    assert prevalence.shares == pytest.approx((0.75, 0.25))
    assert prevalence.how == "estimated"


def test_a_model_that_does_not_say_its_prior_is_refused() -> None:
    with pytest.raises(UsageError, match="does not say"):
        at_prevalence(np.array([[0.8, 0.2]]), "x=0.1", ("x", "y"), ())
