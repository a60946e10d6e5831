"""Masked updates that came with too few others to be added up: their silos have refused nothing."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from semisilo.common.methods.contract import Meaning, TaskSpec
from semisilo.common.payload.manifest import GroupManifest
from semisilo.common.secure_aggregation.messages import MASKED_GROUP
from semisilo.coordinator.ledger.states import ENDED_ROUND, RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import answers_of_round, last_refusals, refusal_reasons, silos_that_refused_all
from semisilo.coordinator.monitoring.outcomes import outcomes_of
from semisilo.coordinator.monitoring.participants import participants_of
from semisilo.coordinator.monitoring.study_book import StudyBook
from semisilo.coordinator.monitoring.summary import summarise
from semisilo.coordinator.monitoring.traffic import StudyCosts
from semisilo.coordinator.rounds.study_lifecycle import refused_rounds
from semisilo.coordinator.studies.participation import participation_of
from tests.coordinator.federation_in_memory import Coordinator, id_of
from tests.coordinator.rounds.test_engine import behind_masks, until
from tests.coordinator.rounds.test_sampling import call
from tests.coordinator.rounds.test_silent_silos import is_open, scenario

FOUR = ("alpha", "beta", "delta", "gamma")


async def masked_update(coordinator: Coordinator, task: TaskSpec, *, phase: int = 0) -> None:
    """What a silo sends behind its masks."""
    layout = coordinator.ledger.phase("s", task.round, phase).expects[MASKED_GROUP].tensors
    content = f"masked {task.round} {task.silo}".encode().ljust(100)
    answer = await coordinator.begin(task, content, example_count=0, metrics={}, groups=(
        GroupManifest(MASKED_GROUP, Meaning.VALUES, "", layout, 34),))
    assert answer.state == "send"
    partial, update = await coordinator.task_service.updates.upload(task.silo, id_of(task, content))
    with partial:
        partial.append(content, offset=0, crc32=zlib.crc32(content))
        await coordinator.task_service.updates.accept(task.silo, update, partial)


async def answers(coordinator: Coordinator, number: int, *, abstain: Sequence[str], refuse: Sequence[str] = ()) -> None:
    """All of the four answer a round; who does nothing else sends a masked update."""
    assert await is_open(coordinator, number) == FOUR
    for silo in FOUR:
        row = coordinator.ledger.open_task(silo, study="s")
        assert row is not None
        if silo in abstain:
            coordinator.task_service.abstain(silo, row.task_id, "no_confident_example", {})
        elif silo in refuse:
            coordinator.task_service.refuse(silo, row.task_id, "BAD_DATA", "picture 17 is broken.")
        else:
            await masked_update(coordinator, row.spec)
    await until(coordinator, lambda: coordinator.ledger.round("s", number).state in ENDED_ROUND)


def summed(folder: Path, *, rounds: int, threshold: int) -> Coordinator:
    coordinator = Coordinator(folder)
    coordinator.compute.num_labelled = 0
    coordinator.enroll(*FOUR)
    config = behind_masks()
    coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "start_with": 4, "rounds": rounds},
                                         "privacy": {"secure_aggregation": True, "threshold": threshold}})
    return coordinator


def text_of(coordinator: Coordinator) -> str:
    return participation_of(coordinator.ledger, coordinator.ledger.study("s")).text


def test_silos_whose_masked_updates_were_not_added_up_are_no_refusers(tmp_path: Path) -> None:
    """After three rounds the study paused, and said to fix something at silos that had done as they were asked."""
    coordinator = summed(tmp_path, rounds=5, threshold=3)

    async def work() -> None:
        await call(coordinator, *FOUR)
        for number in range(1, 5):
            await answers(coordinator, number, abstain=("alpha", "beta"))
            assert coordinator.ledger.round("s", number).state is RoundState.COMPLETED
            assert coordinator.ledger.task_states("s", number, 0)["gamma"] is TaskState.REFUSED, "it is not folded"
        assert await is_open(coordinator, 5) == FOUR
        assert coordinator.ledger.study_state("s") is StudyState.RUNNING
        assert refused_rounds(coordinator.ledger, "s", start_with=4) == ""
        assert silos_that_refused_all(coordinator.ledger, "s") == {}
        assert (last_refusals(coordinator.ledger), list(refusal_reasons(coordinator.ledger, "s"))) == ([], [])
        assert text_of(coordinator) == (
            "has run on 2 of 4 silos; sent no update: alpha, beta; update not added up: delta, gamma")
    scenario(coordinator, work)


def test_page_report_and_card_count_no_refusal_where_a_masked_update_was_not_added_up(tmp_path: Path) -> None:
    """They counted one for each such round; who really refuses, or drops out, is counted as before."""
    coordinator = summed(tmp_path, rounds=5, threshold=3)

    async def work() -> None:
        ledger = coordinator.ledger
        await call(coordinator, *FOUR)
        await answers(coordinator, 1, abstain=("alpha", "beta"))
        await answers(coordinator, 2, abstain=("alpha",), refuse=("beta",))
        book = StudyBook("s")
        book.refresh(ledger)
        lines = book.lines(StudyCosts(), ledger.study("s"))
        assert [line.counts for line in lines[1:3]] == [
            {"abstained": 2, "answered": 2}, {"abstained": 1, "refused": 1, "answered": 2}]
        assert lines[2].outcomes == {"alpha": "abstained", "beta": "refused", "delta": "answered", "gamma": "answered"}
        assert outcomes_of(answers_of_round(ledger, "s", 1))["gamma"] is TaskState.ANSWERED, "for the terminal"
        summary = summarise(ledger, "s")
        assert [entry.count(TaskState.REFUSED) for entry in summary.rounds[:3]] == [0, 0, 1]
        assert summary.rounds[1].reasons["gamma"] == "too few masked updates came to add them up"
        found = participants_of(summary, up_to=2)
        assert {silo: (part.outcomes[TaskState.REFUSED], part.took_part) for silo, part in found.items()} == {
            "alpha": (0, True), "beta": (1, True), "delta": (0, False), "gamma": (0, False)}
    scenario(coordinator, work)


def test_who_really_refuses_is_told_from_who_was_not_added_up(tmp_path: Path) -> None:
    coordinator = summed(tmp_path, rounds=5, threshold=3)

    async def work() -> None:
        await call(coordinator, *FOUR)
        for number in range(1, 4):
            await answers(coordinator, number, abstain=("alpha",), refuse=("beta",))
        await until(coordinator, lambda: coordinator.ledger.study_state("s") is StudyState.PAUSED)
        assert coordinator.ledger.study("s").reason.startswith(
            "the study is to start with 4 silos, and 1 refused every round, so that 3 take part; last: BAD_DATA:"
            " picture 17 is broken (beta)")
        assert [task.silo for task in last_refusals(coordinator.ledger)] == ["beta"]
        assert text_of(coordinator) == (
            "has run on 1 of 4 silos; refused every round: beta (BAD_DATA); sent no update: alpha; update not added up:"
            " delta, gamma")
    scenario(coordinator, work)


def test_once_an_update_is_added_up_the_silo_has_taken_part(tmp_path: Path) -> None:
    coordinator = summed(tmp_path, rounds=3, threshold=3)

    async def work() -> None:
        await call(coordinator, *FOUR)
        await answers(coordinator, 1, abstain=("alpha", "beta"))
        await answers(coordinator, 2, abstain=("alpha",))
        assert text_of(coordinator) == "has run on 4 of 4 silos; sent no update: alpha"
    scenario(coordinator, work)
