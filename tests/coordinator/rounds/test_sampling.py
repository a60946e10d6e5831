"""Where updates are added up behind masks no round is opened that is too small for a sum: the study waits, and says so.

The rest of the module: test_engine.py and test_silent_silos.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.audit.chain import ChainWalk
from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.oversight.table_check import compare_tables
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.monitoring.alerts.open_alerts import AlertKind, open_alerts
from semisilo.coordinator.rounds import sampling
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.tasks.task_service import Hello
from tests.coordinator.federation_in_memory import Coordinator
from tests.coordinator.rounds.test_engine import behind_masks, until
from tests.coordinator.rounds.test_silent_silos import is_open, scenario

THREE = ("alpha", "beta", "gamma")


def masked(folder: Path, *silos: str, start_with: int = 3, **participation: Any) -> Coordinator:
    """A coordinator with these silos and a study of sums."""
    coordinator = Coordinator(folder)
    coordinator.enroll(*silos)
    config = behind_masks(**participation)
    coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "start_with": start_with}})
    return coordinator


async def call(coordinator: Coordinator, *silos: str, away_seconds: float = 0.0) -> None:
    """These silos ask for a task, or say that they take none for a while."""
    for silo in silos:
        await coordinator.task_service.await_task(silo, Hello(
            version="0", methods=("fedavg",), labelled_count=10, unlabelled_count=0,
            away_reason="outside working hours" if away_seconds else "",
            away_until_unix=time.time() + away_seconds), timeout_seconds=0)


async def waits_for(coordinator: Coordinator, text: str) -> None:
    await until(coordinator, lambda: coordinator.runtime.text.startswith(text))


def rounds_opened(coordinator: Coordinator) -> int:
    last = coordinator.ledger.last_round("s")
    assert last is not None
    return last.number


async def abstain(coordinator: Coordinator, *silos: str) -> None:
    """These silos answer the open phase, and it is over."""
    for silo in silos:
        task = coordinator.ledger.open_task(silo, study="s")
        assert task is not None
        coordinator.task_service.abstain(silo, task.task_id, "no_confident_example", {})


def test_no_round_is_burnt_while_a_silo_is_away_that_a_sum_cannot_do_without(tmp_path: Path) -> None:
    """All rounds failed within a second, and the study was complete: half of three were there, as a quorum wants."""
    coordinator = masked(tmp_path, *THREE)
    coordinator.compute.num_labelled = 0

    async def work() -> None:
        await call(coordinator, *THREE)
        assert await is_open(coordinator, 1) == THREE
        await call(coordinator, "gamma", away_seconds=3600.0)  # it still answers what it has taken
        await abstain(coordinator, *THREE)
        await waits_for(coordinator, "1 of 3 silos are away by their own policy")
        assert rounds_opened(coordinator) == 1
        await call(coordinator, "gamma")
        assert await is_open(coordinator, 2) == THREE
    scenario(coordinator, work)


def test_a_study_of_sums_starts_with_as_many_silos_as_a_sum_takes(tmp_path: Path) -> None:
    """The two that joined first ended it, round for round, before the third had joined."""
    coordinator = masked(tmp_path, *THREE, start_with=2)

    async def work() -> None:
        await call(coordinator, *THREE[:2])
        await waits_for(coordinator, "2 of 3 silos have joined")
        assert coordinator.ledger.study_state("s") is StudyState.WAITING
        await call(coordinator, "gamma")
        assert await is_open(coordinator, 1) == THREE
    scenario(coordinator, work)


def test_a_study_of_sums_that_has_begun_waits_for_another_silo_where_one_has_left(tmp_path: Path) -> None:
    coordinator = masked(tmp_path, *THREE, "delta")
    coordinator.compute.num_labelled = 0

    async def work() -> None:
        await call(coordinator, *THREE)
        assert await is_open(coordinator, 1) == THREE
        await abstain(coordinator, *THREE[:2])
        coordinator.roster.revoke("gamma")
        coordinator.runtime.notify()
        await waits_for(coordinator, "2 of 3 silos have joined")
        assert rounds_opened(coordinator) == 1
        await call(coordinator, "delta")
        assert await is_open(coordinator, 2) == ("alpha", "beta", "delta")
    scenario(coordinator, work)


def test_a_share_of_silos_that_is_too_small_for_a_sum_waits_for_more_silos(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_LOOK_SECONDS", 0.05)
    six = (*THREE, "delta", "epsilon", "zeta")
    coordinator = masked(tmp_path, *six, silos_per_round="50%")

    async def work() -> None:
        await call(coordinator, *six[:4])
        await waits_for(coordinator, "a round asks 2 of 4 silos, and a secure sum takes 3: more silos have to join")
        assert rounds_opened(coordinator) == 0
        await call(coordinator, *six[4:])
        assert len(await is_open(coordinator, 1)) == 3
    scenario(coordinator, work)


def test_a_sum_of_which_more_are_required_waits_for_so_many(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path)
    four = ("alpha", "beta", "delta", "gamma")
    coordinator.enroll(*four)
    coordinator.ledger.queue_study("s", {**behind_masks(), "privacy": {"secure_aggregation": True, "threshold": 4}})

    async def work() -> None:
        await call(coordinator, *THREE)
        await waits_for(coordinator, "3 of 4 silos have joined")
        await call(coordinator, "delta")
        assert await is_open(coordinator, 1) == four
    scenario(coordinator, work)


def claims_to_have_masked(coordinator: Coordinator, *silos: str, round: int) -> None:
    for silo in silos:
        coordinator.runtime.masked[silo] = ("s", round, "train")


def test_rounds_that_fail_before_anybody_is_asked_pause_the_study(tmp_path: Path) -> None:
    """Whatever it is that the coordinator did not see before it opened them: here a silo that claims to have had part
    in rounds that are still to come."""
    coordinator = Coordinator(tmp_path)
    coordinator.enroll(*THREE)
    config = behind_masks()
    coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "rounds": 20}})

    async def work() -> None:
        await call(coordinator, *THREE)
        claims_to_have_masked(coordinator, "gamma", round=10**6)
        await until(coordinator, lambda: coordinator.ledger.study_state("s") is StudyState.PAUSED)
        assert rounds_opened(coordinator) == 3
        assert coordinator.ledger.study("s").reason.startswith(
            "3 rounds in a row failed before a silo was asked anything; last: a secure sum takes 3 silos, and 2 can be"
            " asked; gamma masked an update of this round before")
        coordinator.ledger.set_study_state("s", StudyState.RUNNING)
        coordinator.runtime.masked.pop("gamma")
        assert await is_open(coordinator, 4) == THREE
    scenario(coordinator, work)


def test_a_study_of_a_restored_hub_goes_on_behind_the_rounds_that_its_silos_have_had_part_in(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path)
    coordinator.enroll(*THREE)
    config = behind_masks()
    coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "rounds": 20}})

    async def work() -> None:
        await call(coordinator, *THREE)
        claims_to_have_masked(coordinator, *THREE, round=7)
        assert await is_open(coordinator, 8) == THREE
        assert {row.state for row in coordinator.ledger.rounds("s", first=1)[:7]} == {RoundState.FAILED}
    scenario(coordinator, work)


def open_study(folder: Path, *silos: str, **participation: Any) -> Coordinator:
    """A coordinator with these silos and a study in the clear that starts with one."""
    coordinator = Coordinator(folder)
    coordinator.compute.num_labelled = 0
    coordinator.enroll(*silos)
    config = behind_masks(**participation)
    coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "start_with": 1}, "privacy": {}})
    return coordinator


def test_no_round_is_opened_below_the_quorum_that_a_study_states(tmp_path: Path) -> None:
    """It was lowered to those who had joined: with quorum = 3 the first silo alone made round after round."""
    coordinator = open_study(tmp_path, *THREE, quorum=3)

    async def work() -> None:
        await call(coordinator, *THREE[:2])
        await waits_for(coordinator, "2 of 3 silos have joined, and the quorum needs so many")
        assert rounds_opened(coordinator) == 0
        await call(coordinator, "gamma")
        assert await is_open(coordinator, 1) == THREE
        assert coordinator.ledger.phase("s", 1, 0).quorum == 3
        await abstain(coordinator, *THREE)
        assert await is_open(coordinator, 2) == THREE
        await abstain(coordinator, *THREE[:2])
        coordinator.roster.revoke("gamma")
        coordinator.runtime.notify()
        await waits_for(coordinator, "2 of 3 silos have joined, and the quorum needs so many")
    scenario(coordinator, work)


def test_a_silo_that_is_set_aside_counts_for_no_quorum_that_a_study_states(tmp_path: Path) -> None:
    coordinator = open_study(tmp_path, *THREE, quorum=3)

    async def work() -> None:
        await call(coordinator, *THREE[:2])
        await waits_for(coordinator, "2 of 3 silos have joined")
        operate.set_aside(coordinator.ledger, "beta", origin="command")
        coordinator.runtime.notify()
        await waits_for(coordinator, "1 of 2 silos have joined, and the quorum needs so many")
        await call(coordinator, "gamma")
        assert await is_open(coordinator, 1) == ("alpha", "gamma")
    scenario(coordinator, work)


@pytest.mark.parametrize("silos_per_round", ["50%", 2])
def test_a_begun_study_whose_quorum_is_above_what_a_round_asks_goes_on(tmp_path: Path,
                                                                       silos_per_round: int | str) -> None:
    """Its file cannot be changed, and no silo that joined would make a number more: it waited for ever."""
    four = (*THREE, "delta")
    coordinator = open_study(tmp_path, *four, silos_per_round=silos_per_round, quorum=3)

    async def work() -> None:
        await call(coordinator, *four)
        assert len(await is_open(coordinator, 1)) == 2
        assert coordinator.ledger.phase("s", 1, 0).quorum == 2
    scenario(coordinator, work)


def test_a_begun_study_waits_for_the_number_that_a_round_asks_where_its_quorum_is_above(tmp_path: Path) -> None:
    coordinator = open_study(tmp_path, *THREE, silos_per_round=2, quorum=3)

    async def work() -> None:
        await call(coordinator, *THREE[:1])
        await waits_for(coordinator, "1 of 2 silos have joined, and the quorum needs so many")
        assert rounds_opened(coordinator) == 0
        await call(coordinator, *THREE[1:])
        assert len(await is_open(coordinator, 1)) == 2
    scenario(coordinator, work)


@pytest.mark.parametrize("ends", ["left", "revoked"])
def test_a_study_whose_quorum_counts_a_silo_that_is_gone_says_how_to_go_on_and_does_once_it_is_set_aside(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: str) -> None:
    """It waited for a hospital that would never come back, and no command let it go on: a silo that had left could not
    be set aside."""
    coordinator = open_study(tmp_path, *THREE, quorum=3)
    coordinator.compute.num_labelled = 0

    async def work() -> None:
        await call(coordinator, *THREE)
        assert await is_open(coordinator, 1) == THREE
        await abstain(coordinator, *THREE)
        await is_open(coordinator, 2)
        coordinator.roster.leave("gamma") if ends == "left" else coordinator.roster.revoke("gamma")
        await abstain(coordinator, *THREE[:2])
        await waits_for(coordinator, "2 of 3 silos have joined, and the quorum needs so many")
        assert "gamma" not in coordinator.runtime.text, "every silo reads it"
        live = LiveStatus.from_runtime(coordinator.runtime)
        assert live.remedy == ("Let another silo join: coordinator invite NAME. To go on without gamma: coordinator"
                               " set-aside gamma. To end the study with the model so far: coordinator stop s.")
        (waits,) = [alert for alert in open_alerts(coordinator.ledger, live, folder=None, now_unix=time.time())
                    if alert.kind is AlertKind.STUDY_WAITS]
        assert live.remedy in waits.remedy
        (said,) = [entry for entry in caplog.records if "study s waits" in entry.message]
        assert said.levelname == "WARNING"
        assert "2 of 3 silos have joined" in said.message
        assert live.remedy in said.message
        operate.set_aside(coordinator.ledger, "gamma", origin="command")
        coordinator.runtime.notify()
        assert await is_open(coordinator, 3) == THREE[:2]
        assert LiveStatus.from_runtime(coordinator.runtime).remedy == ""
        assert compare_tables(coordinator.ledger, ChainWalk()) == []
    with caplog.at_level("INFO"):
        scenario(coordinator, work)


def test_a_silo_that_is_set_aside_and_then_leaves_is_not_waited_for_again(tmp_path: Path) -> None:
    coordinator = open_study(tmp_path, *THREE, quorum=3)
    coordinator.compute.num_labelled = 0

    async def work() -> None:
        await call(coordinator, *THREE)
        assert await is_open(coordinator, 1) == THREE
        operate.set_aside(coordinator.ledger, "gamma", origin="command")
        coordinator.roster.leave("gamma")
        await abstain(coordinator, *THREE[:2])
        assert await is_open(coordinator, 2) == THREE[:2]
    scenario(coordinator, work)


def test_a_study_that_waits_for_a_silent_silo_names_it_to_the_operator_and_does_not_call_it_a_warning(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = open_study(tmp_path, *THREE, quorum=3)
    coordinator.compute.num_labelled = 0

    async def work() -> None:
        await call(coordinator, *THREE)
        assert await is_open(coordinator, 1) == THREE
        await call(coordinator, "gamma", away_seconds=3600.0)
        await abstain(coordinator, *THREE)
        await waits_for(coordinator, "1 of 3 silos are away by their own policy")
        assert coordinator.runtime.remedy == ("To go on without gamma: coordinator set-aside gamma. To end the study"
                                              " with the model so far: coordinator stop s.")
    with caplog.at_level("INFO"):
        scenario(coordinator, work)
    (said,) = [entry for entry in caplog.records if "study s waits" in entry.message]
    assert said.levelname == "INFO"
