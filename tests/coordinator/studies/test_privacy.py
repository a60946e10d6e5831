"""What the report and the card say that a study has spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.studies.privacy import privacy_of


@dataclass(frozen=True)
class Round:
    number: int
    outcomes: dict[str, TaskState]
    silo_metrics: dict[str, dict[str, float]]


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
