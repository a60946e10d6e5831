"""The study card: equal for equal studies, and held against every task."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from semisilo.common.errors import BadPayload
from semisilo.common.methods import find_method
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.methods.study_card import (
    MAX_CARD_BYTES,
    StudyCard,
    card_from_text,
    changes,
    contradictions,
    digest_of,
)
from tests.each_of import each_of
from tests.study_cards import CARD, TASK


def test_a_card_survives_its_text_and_so_does_its_digest() -> None:
    assert card_from_text(CARD.text()) == CARD
    assert digest_of(CARD.text()) == CARD.digest()
    assert replace(CARD, seed=CARD.seed + 1).digest() != CARD.digest()


def test_what_a_later_version_adds_is_left_out_and_still_signed() -> None:
    told = json.loads(CARD.text())
    told["new"], told["privacy"]["new"] = 1, {"x": 2}
    text = json.dumps(told)
    assert card_from_text(text) == CARD
    assert digest_of(text) != CARD.digest()


@each_of("text", ["", "{", "[]", "null", '{"study": 1}', "[" * 100_000, " " * (MAX_CARD_BYTES + 1)])
def test_a_text_that_is_no_card_is_refused(text: str) -> None:
    with pytest.raises(BadPayload, match="study card"):
        card_from_text(text)


@each_of("value", ['"\\ud800"', '{"\\udfff":1}', "NaN", "Infinity", "1e999"])
def test_a_card_that_nobody_could_show_is_refused(value: str) -> None:
    told = json.loads(CARD.text())
    told["settings"]["local_epochs"] = "HERE"
    with pytest.raises(BadPayload, match="study card"):
        card_from_text(json.dumps(told).replace('"HERE"', value))


def test_a_task_of_the_study_contradicts_nothing_whatever_its_strategy_sets() -> None:
    spec = find_method(TASK.method)
    assert contradictions(CARD, TASK, spec) == []
    assert contradictions(CARD, replace(TASK, round=2, settings={**TASK.settings, "round_lr": 0.5}), spec) == []


@each_of(("changed", "said"), [
    ({"settings": {**TASK.settings, "local_epochs": 99}}, "settings.local_epochs: 5, not 99"),
    ({"seed": 8}, "seed: 7, not 8"), ({"rounds": 99}, "rounds: 3, not 99"),
    ({"uplink": replace(TASK.uplink, top_k=0.1)}, "uplink.top_k"), ({"secure": "00"}, "privacy.secure_aggregation"),
    ({"model": replace(TASK.model, name="cnn13")}, 'model.name: "small_cnn", not "cnn13"'),
    ({"image": replace(TASK.image, size=64)}, "image.size: 8, not 64")])
def test_a_task_that_says_something_else_is_found(changed: dict[str, Any], said: str) -> None:
    task: TaskSpec = replace(TASK, **changed)
    assert any(said in each for each in contradictions(CARD, task, find_method(task.method)))


def test_a_method_that_sends_more_here_than_the_card_says_is_found() -> None:
    card: StudyCard = replace(CARD, sends={"model": "difference"})
    assert any("sends" in each for each in contradictions(card, TASK, find_method(TASK.method)))


def test_changes_are_named_and_not_too_many() -> None:
    after = replace(CARD, seed=9, rounds=4, settings={**CARD.settings, **{f"s{n}": n for n in range(9)}})
    text = changes(CARD, after)
    assert "rounds: 3 is now 4" in text
    assert text.endswith("more")
    assert changes(CARD, CARD) == ""
