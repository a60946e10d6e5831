"""Which model is handed over: the chosen one, the last, the best on the test images, or that of a round; and none whose
file is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.common.errors import UnknownName, UsageError
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.coordinator.export.choose_model import choose_model
from semisilo.coordinator.ledger.states import RoundState
from tests.coordinator.ledger_fixture import Filled, digest, fill_study, study_config


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    """Four committed rounds and one that is open; the model of round 1 is no longer kept."""
    made = fill_study(tmp_path / "fed", rounds=9, done=4, collecting=True)
    states = folder_of(made) / "states"
    states.mkdir(parents=True)
    for number in (0, 2, 3, 4):
        (states / f"{digest(str(number))}{STATE_ENDING}").touch()
    yield made
    made.ledger.close()


def folder_of(filled: Filled) -> Path:
    return filled.federation.studies / "first"


def chosen(filled: Filled, rule: str) -> int:
    found = choose_model(filled.ledger, "first", rule=rule, study_folder=folder_of(filled))
    assert (found.rule, found.study.name) == (rule, "first")
    assert found.file_name == f"{digest(str(found.round.number))}{STATE_ENDING}"
    return found.round.number


def score(filled: Filled, **scores: float) -> None:
    for name, value in scores.items():
        filled.ledger.query("UPDATE round SET metrics_json = ? WHERE number = ?", json.dumps(
            {"accuracy": 0.1, "selection_score": value, "selection_error": 0.01}), int(name.removeprefix("round")))


def test_the_last_is_the_last_committed_and_a_number_itself(filled: Filled) -> None:
    assert (chosen(filled, "last"), chosen(filled, "2"), chosen(filled, "02")) == (4, 2, 2)


def test_the_chosen_one_is_that_of_the_selection_scores_and_without_any_the_last(filled: Filled) -> None:
    found = choose_model(filled.ledger, "first", rule="chosen", study_folder=folder_of(filled))
    assert (found.round.number, found.choice.text) == (
        4, "round 4, the last one: there are no validation images to choose by")
    score(filled, round2=0.881, round3=0.7, round4=0.85)
    found = choose_model(filled.ledger, "first", rule="chosen", study_folder=folder_of(filled))
    assert found.round.number == 2
    assert found.choice.text.startswith("round 2, accuracy 88.1 % on ")
    assert found.choice.text.endswith("validation images; the last round, 4, has 85.0 %")
    score(filled, round4=0.872)
    assert chosen(filled, "chosen") == 4, "within an error of the best"


def test_the_best_on_the_test_images_is_one_of_those_that_are_kept(filled: Filled) -> None:
    filled.ledger.query("UPDATE round SET metrics_json = ? WHERE number IN (1, 2, 3)", '{"accuracy":0.99}')
    assert chosen(filled, "best-on-test") == 2, "the earliest of equals whose model is there"


def test_the_old_name_of_that_rule_is_refused_with_what_it_was(filled: Filled) -> None:
    with pytest.raises(UsageError, match="chose by the test images") as caught:
        chosen(filled, "best")
    assert "--round best-on-test" in caught.value.remedy


@pytest.mark.parametrize(("rule", "said"), [
    ("1", "round 1 is no longer kept"), ("5", "no committed round 5"), ("9999999999", "is none of chosen, last"),
    ("-1", "is none of chosen, last"), ("worst", "is none of chosen, last"), ("", "is none of chosen, last")])
def test_what_cannot_be_chosen_is_refused_with_the_rounds_that_can(filled: Filled, rule: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        chosen(filled, rule)
    assert "kept: 0, 2, 3, 4" in caught.value.remedy


def test_without_test_images_no_round_is_the_best_on_them(filled: Filled) -> None:
    filled.ledger.query("UPDATE round SET metrics_json = '{}'")
    with pytest.raises(UsageError, match="no round is known to be the best"):
        chosen(filled, "best-on-test")
    assert chosen(filled, "chosen") == 4


def test_a_study_without_a_committed_round_and_one_that_there_is_not_are_told_apart(filled: Filled) -> None:
    ledger = filled.ledger
    ledger.queue_study("second", study_config(rounds=1))
    with pytest.raises(UsageError, match="no committed round yet"):
        choose_model(ledger, "second", rule="last", study_folder=folder_of(filled))
    with pytest.raises(UnknownName):
        choose_model(ledger, "third", rule="last", study_folder=folder_of(filled))
    assert ledger.round("first", 5).state is RoundState.COLLECTING, "a control: there is an open one"
