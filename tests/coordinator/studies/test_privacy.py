"""What the report and the card say that a study has spent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of
from semisilo.coordinator.export.card import card_privacy
from semisilo.coordinator.ledger.oversight.rollback import PastAnswer, roll_back
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.monitoring.summary import summarise
from semisilo.coordinator.studies.privacy import WentBack, privacy_of, went_back
from tests.coordinator.ledger_fixture import fill_study


@dataclass(frozen=True)
class Round:
    number: int
    outcomes: dict[str, TaskState]
    silo_metrics: dict[str, dict[str, float]]

    @property
    def updated(self) -> frozenset[str]:
        return frozenset(silo for silo, outcome in self.outcomes.items() if outcome is TaskState.UPDATED)


def rounds() -> list[Round]:
    both = {"a": TaskState.UPDATED, "b": TaskState.UPDATED}
    return [Round(0, {}, {}), Round(1, both, {"a": {"epsilon": 1.0}, "b": {"epsilon": 1.5}}),
            Round(2, {"a": TaskState.UPDATED, "b": TaskState.REFUSED}, {"a": {"epsilon": 1.25}})]


def config(**dp: Any) -> dict[str, Any]:
    return {"privacy": {"dp": {"noise_multiplier": 2.0, "delta": 1e-6, **dp}}}


def test_studies_without_it_say_nothing() -> None:
    assert privacy_of({}, rounds()) is None
    assert privacy_of({"privacy": {"dp": None}}, rounds()) is None


def test_of_images_it_is_what_silos_last_said() -> None:
    found = privacy_of(config(), rounds())
    assert found is not None
    assert [(each.silo, each.epsilon, each.updates) for each in found.silos] == [("a", 1.25, 2), ("b", 1.5, 1)]
    assert found.epsilon == 1.5
    assert "coordinator included" in found.promise
    assert found.how == "clip 1, noise 2 times the clip, delta 1e-06"


def test_of_images_what_came_with_an_update_that_was_left_out_was_spent() -> None:
    """As of a silo that was set aside when its update was there: the coordinator has had it."""
    later = [*rounds(), Round(3, {"b": TaskState.REFUSED, "c": TaskState.REFUSED, "d": TaskState.REFUSED},
                              {"b": {"epsilon": 1.75}, "c": {"epsilon": 1.0}, "d": {}})]
    found = privacy_of(config(), later)
    assert found is not None
    assert [(each.silo, each.epsilon, each.updates) for each in found.silos] == [
        ("a", 1.25, 2), ("b", 1.75, 1), ("c", 1.0, 0)]
    found = privacy_of(config(unit="silo"), [Round(each.number, each.outcomes, {}) for each in later])
    assert found is not None
    assert [(each.silo, each.updates) for each in found.silos] == [("a", 2), ("b", 1)]


def test_up_to_a_round() -> None:
    found = privacy_of(config(), rounds(), up_to=1)
    assert found is not None
    assert [each.epsilon for each in found.silos] == [1.0, 1.5]


def test_of_silos_it_follows_from_how_many_of_their_updates_were_taken_in() -> None:
    found = privacy_of(config(unit="silo"), rounds())
    assert found is not None
    assert [each.epsilon for each in found.silos] == [
        epsilon_of([NoisySteps(noise_multiplier=2.0, sampling_rate=1.0, steps=count)], 1e-6) for count in (2, 1)]
    assert "not the coordinator" in found.promise


def test_a_masked_update_counts_whatever_its_silo_does_in_later_steps(tmp_path: Path) -> None:
    """The sum has it: a silo that is too slow to sign the list of survivors, or to help to unmask, has spent as much as
    the others."""
    ledger = fill_study(tmp_path / "federation", done=2).ledger
    tables = {"privacy": {**config(unit="silo")["privacy"], "secure_aggregation": True}}
    before = privacy_of(tables, summarise(ledger, "first").rounds)
    silo = summarise(ledger, "first").silos[0]
    with ledger.transaction() as db:
        for table, where, changes in (
                ("phase", "number = 0", {"number": 1, "name": "train-confirm", "step": "confirm"}),
                ("task", f"phase = 0 AND silo = '{silo}'", {"task_id": "s/2/1-train-confirm/x", "phase": 1,
                                                           "state": TaskState.EXPIRED, "update_id": None})):
            row = {**dict(db.execute(f"SELECT * FROM {table} WHERE study = 'first' AND round = 2 AND {where}"
                                     ).fetchone()), **changes}
            db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                       tuple(row.values()))
    late = summarise(ledger, "first")
    assert late.rounds[-1].outcomes[silo] is TaskState.EXPIRED
    assert before is not None
    assert [each.updates for each in before.silos] == [2] * len(before.silos)
    assert privacy_of(tables, late.rounds) == before


def gone(round: int, silo: str, epsilon: float = 0.0, state: TaskState = TaskState.UPDATED) -> PastAnswer:
    return PastAnswer(round=round, phase="train", silo=silo, state=state, reason="", example_count=None, norm=None,
                      cosine=None, metrics={"epsilon": epsilon} if epsilon else {})


PAST = (WentBack(to_round=1, answers=(gone(2, "a", 2.0), gone(2, "b"), gone(3, "a"), gone(3, "c", 0.5),
                                      gone(3, "b", 1.75, TaskState.REFUSED))),)


def test_rounds_that_no_longer_count_were_spent() -> None:
    """Silos had their models, and after going back other models come of the same silos."""
    found = privacy_of(config(unit="silo"), rounds(), past=PAST)
    assert found is not None
    assert [(each.silo, each.updates) for each in found.silos] == [("a", 4), ("b", 2), ("c", 1)]
    assert found.epsilon == epsilon_of([NoisySteps(noise_multiplier=2.0, sampling_rate=1.0, steps=4)], 1e-6)
    found = privacy_of(config(), rounds(), past=PAST)
    assert found is not None
    assert [(each.silo, each.epsilon) for each in found.silos] == [("a", 2.0), ("b", 1.75), ("c", 0.5)]


def test_up_to_a_round_counts_what_came_before_it_in_time() -> None:
    """Round 1 was made before the study went back to it, round 2 after; but what was gone before a second, deeper
    return came before all that was made since."""
    def updates(up_to: int, *more: WentBack) -> dict[str, int]:
        found = privacy_of(config(unit="silo"), rounds(), past=(*PAST, *more), up_to=up_to)
        assert found is not None
        return {each.silo: each.updates for each in found.silos}

    assert updates(1) == {"a": 1, "b": 1}
    assert updates(2) == {"a": 4, "b": 2, "c": 1}
    assert updates(1, WentBack(to_round=0, answers=(gone(1, "c"),))) == {"a": 3, "b": 2, "c": 2}


def test_the_ledger_tells_of_rounds_that_are_gone_where_somebody_asks(tmp_path: Path) -> None:
    ledger = fill_study(tmp_path / "federation", done=4).ledger
    roll_back(ledger, "first", 2, operator="", reason="")
    assert went_back(ledger, "first") == ()
    with ledger.transaction() as db:
        db.execute("UPDATE study SET config_json = json_set(config_json, '$.privacy', json(?))",
                   (json.dumps(config(unit="silo")["privacy"]),))
    summary = summarise(ledger, "first")
    found = card_privacy(summary, up_to=2, names=True)
    before = privacy_of(summary.row.config, summary.rounds)
    after = privacy_of(summary.row.config, summary.rounds, past=summary.went_back)
    assert found is not None
    assert before is not None
    assert after is not None
    assert found == before, "the model of round 2 was there before"
    assert after.epsilon > before.epsilon
    assert {number for each in summary.went_back for number in (a.round for a in each.answers)} == {3, 4}


@pytest.mark.parametrize(("dp", "honest"), [
    ({}, "more than half of its threshold."), ({"honest_silos": 5}, "5 silos.")])
def test_behind_masks_silos_are_hidden_from_the_coordinator_as_well(dp: dict[str, Any], honest: str) -> None:
    tables = config(unit="silo", **dp)
    found = privacy_of({"privacy": {**tables["privacy"], "secure_aggregation": True}}, rounds())
    assert found is not None
    assert found.epsilon == privacy_of(config(unit="silo"), rounds()).epsilon  # type: ignore[union-attr]
    assert "the coordinator included" in found.promise
    assert found.promise.endswith(honest)


def test_a_target_is_told_as_such() -> None:
    found = privacy_of(config(noise_multiplier=0.0, target_epsilon=3.0), [])
    assert found is not None
    assert (found.noise_multiplier, found.epsilon) == (None, 0.0)
    assert "target of epsilon 3" in found.how


def test_where_silos_share_the_noise_of_images_the_promise_says_how_many_have_to() -> None:
    tables = config(honest_silos=5)
    found = privacy_of({"privacy": {**tables["privacy"], "secure_aggregation": True}}, rounds())
    assert found is not None
    assert "learns of one image, as long as 5 silos of every sum add theirs" in found.promise
