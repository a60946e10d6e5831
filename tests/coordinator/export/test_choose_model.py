"""Which model is handed over: the last, the best, or that of a round; and none whose file is gone."""

from __future__ import annotations

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


def test_the_last_is_the_last_committed_the_best_the_most_accurate_and_a_number_itself(filled: Filled) -> None:
    assert (chosen(filled, "last"), chosen(filled, "best"), chosen(filled, "2"), chosen(filled, "02")) == (4, 4, 2, 2)
    filled.ledger.query("UPDATE round SET metrics_json = ? WHERE number IN (2, 3)", '{"accuracy":0.99}')
    assert chosen(filled, "best") == 2, "the earliest of equals"


@pytest.mark.parametrize(("rule", "said"), [
    ("1", "round 1 is no longer kept"), ("5", "no committed round 5"), ("9999999999", "is none of last, best"),
    ("-1", "is none of last, best"), ("worst", "is none of last, best"), ("", "is none of last, best")])
def test_what_cannot_be_chosen_is_refused_with_the_rounds_that_can(filled: Filled, rule: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        chosen(filled, rule)
    assert "kept: 0, 2, 3, 4" in caught.value.remedy


def test_without_test_images_no_round_is_the_best(filled: Filled) -> None:
    filled.ledger.query("UPDATE round SET metrics_json = '{}'")
    with pytest.raises(UsageError, match="no round is known to be the best"):
        chosen(filled, "best")
    assert chosen(filled, "last") == 4


def test_a_study_without_a_committed_round_and_one_that_there_is_not_are_told_apart(filled: Filled) -> None:
    ledger = filled.ledger
    ledger.queue_study("second", study_config(rounds=1))
    with pytest.raises(UsageError, match="no committed round yet"):
        choose_model(ledger, "second", rule="last", study_folder=folder_of(filled))
    with pytest.raises(UnknownName):
        choose_model(ledger, "third", rule="last", study_folder=folder_of(filled))
    assert ledger.round("first", 5).state is RoundState.COLLECTING, "a control: there is an open one"
