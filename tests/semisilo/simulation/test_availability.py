"""Which simulated silos are there in a round: the documented rules, as functions of seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semisilo.common.data.split_settings import SplitSettings
from semisilo.coordinator.studies.simulation_table import SimulationSettings
from semisilo.simulation import run
from semisilo.simulation.availability import drops_out, probabilities, reachable
from semisilo.simulation.clock import PhaseClock
from tests.each_of import each_of

SILOS = [f"silo-{index:03d}" for index in range(20)]


def settings(**keys: object) -> SimulationSettings:
    return SimulationSettings(data="digits", split=SplitSettings(name="iid", silos=20, num_labelled=10),
                              **keys)  # type: ignore[arg-type]


@each_of("reach", [0.05, 0.3, 0.5, 0.7, 0.95, 1.0])
def test_skewed_probabilities_are_a_ramp_whose_mean_is_the_share_that_was_asked_for(reach: float) -> None:
    """The mean of 2 r (i + 1/2) / K over i = 0 .. K - 1 is r, and likewise of 1 - 2 (1 - r) (i + 1/2) / K."""
    found = np.sort(probabilities(settings(availability="skewed", reachable=reach), 20, seed=1))
    assert found.mean() == pytest.approx(reach)
    assert found[0] >= 0
    assert found[-1] <= 1
    steps = np.diff(found)
    assert np.allclose(steps, 2 * min(reach, 1 - reach) / 20)


def test_the_order_of_skewed_silos_comes_from_the_seed() -> None:
    skewed = settings(availability="skewed", reachable=0.5)
    first, again, other = (probabilities(skewed, 20, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.allclose(np.sort(first), np.sort(other))


@pytest.mark.parametrize("kind", ["uniform", "skewed"])
def test_each_silo_is_there_as_often_as_its_probability_says(kind: str) -> None:
    """Over 2000 rounds the share of a Bernoulli(p) lies within 5 standard deviations, 5 sqrt(p (1 - p) / 2000)."""
    chosen = settings(availability=kind, reachable=0.4)
    chance = probabilities(chosen, 20, seed=3)
    there = np.zeros(20)
    for number in range(1, 2001):
        for silo in reachable(chosen, SILOS, seed=3, round=number):
            there[SILOS.index(silo)] += 1 / 2000
    assert np.all(np.abs(there - chance) <= 5 * np.sqrt(chance * (1 - chance) / 2000) + 1e-9)


def test_somebody_can_be_reached_in_every_round() -> None:
    rare = settings(availability="uniform", reachable=0.001)
    for number in range(1, 200):
        assert reachable(rare, SILOS, seed=1, round=number)


def test_always_means_everybody() -> None:
    assert reachable(settings(), SILOS, seed=1, round=1) == SILOS


def test_a_silo_drops_out_with_its_probability_and_the_same_way_in_every_phase_of_a_round() -> None:
    """600 Bernoulli(0.25) draws: 5 standard deviations of their mean are 5 sqrt(0.1875 / 600) = 0.088."""
    sometimes = settings(dropout=0.25)
    drawn = [drops_out(sometimes, silo, seed=1, round=number) for silo in SILOS for number in range(30)]
    assert abs(np.mean(drawn) - 0.25) < 0.088
    assert drawn == [drops_out(sometimes, silo, seed=1, round=number) for silo in SILOS for number in range(30)]
    assert not any(drops_out(settings(), silo, seed=1, round=1) for silo in SILOS)


@each_of(("keys", "match"), [
    ({"reachable": 0.0}, "reachable = 0.0"), ({"reachable": 1.2}, "reachable = 1.2"), ({"dropout": 1.0}, "dropout"),
    ({"pool_test": True}, "num_test"),
])
def test_settings_that_make_no_sense_are_refused_by_name(keys: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        settings(**keys)


def test_the_clock_stands_still_while_silos_work_and_jumps_to_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.time", lambda: now)
    clock = PhaseClock()
    clock.hold()
    now = 150.0
    assert clock() == 100.0
    clock.jump(400.0)
    clock.release()
    assert clock() == 400.0
    now = 160.0
    assert clock() == 410.0
    clock.hold()
    now = 900.0
    clock.release()
    assert clock() == 900.0, "nobody has jumped beyond the real time"


@pytest.mark.slow
def test_a_round_of_too_few_for_a_sum_behind_masks_fails_and_the_next_one_comes(tmp_path: Path) -> None:
    """Who is there follows from the number of the round: who waited for others in the same round waited for ever."""
    found = run({
        "study": {"seed": 1, "rounds": 6, "labelled_only_baseline": False},
        "model": {"name": "small_cnn", "normalisation": "group"},
        "data": {"image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.3]}}, "augmentation": {"policy": "none"},
        "method": {"name": "fedavg", "labelled_batch": 20, "lr": 0.1, "lambda_s": 1.0},
        "privacy": {"secure_aggregation": True},
        "simulation": {"data": "digits", "availability": "uniform", "reachable": 0.5,
                       "split": {"name": "iid", "silos": 6, "all_labelled": True, "num_test": 100,
                                 "fraction": 0.1}}}, out=tmp_path / "run", device="cpu", engine="process")
    states = [each.state for each in found.rounds]
    assert len(states) == 7
    assert {"completed", "failed"} == set(states)
