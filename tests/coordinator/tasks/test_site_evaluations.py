"""What silos say of global models is noted once, and dropped where it cannot be."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.coordinator.ledger.tasks import site_evaluations
from semisilo.coordinator.tasks.task_service import Hello
from tests.coordinator.federation_in_memory import (
    Coordinator,
    content_of,
)
from tests.coordinator.tasks.collecting import collecting


def evaluation(round: int = 0, *, study: str = "s", correct: int = 6, classes: int = 2,
               labels_alone: bool = False, model_digest: str = "") -> SiteEvaluation:
    return SiteEvaluation(study=study, round=round, labels_alone=labels_alone, model_digest=model_digest, classes=(
        ClassResult(images=10, correct=correct), *(ClassResult(images=5, correct=1),) * (classes - 1)))


async def say(coordinator: Coordinator, silo: str, *evaluations: SiteEvaluation) -> None:
    await coordinator.task_service.await_task(silo, Hello(
        version="0", methods=("semifl",), labelled_count=0, unlabelled_count=10, evaluations=evaluations),
        timeout_seconds=0)


def noted(coordinator: Coordinator) -> dict[str, SiteEvaluation]:
    return site_evaluations(coordinator.ledger, "s", round=0)


def test_an_evaluation_of_a_silo_that_has_answered_is_noted_once_with_an_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            await say(coordinator, "alpha", evaluation())
            assert noted(coordinator) == {}, "it has had no part in the study yet"
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            await say(coordinator, "alpha", evaluation())
            await say(coordinator, "alpha", evaluation(correct=9), evaluation())
            assert noted(coordinator) == {"alpha": evaluation()}
            events = coordinator.ledger.query("SELECT detail_json FROM event WHERE kind = 'site_evaluation'")
            assert len(events) == 1
            assert json.loads(events[0]["detail_json"])["correct"] == 7
    asyncio.run(scenario())


def test_an_evaluation_of_a_model_that_is_another_one_by_now_is_dropped(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a silo sends it that was restarted while the study went back and did the round again."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            await say(coordinator, "alpha", evaluation(correct=9, model_digest="ab" * 32))
            assert noted(coordinator) == {}
            assert "an evaluation of silo alpha is dropped: the model of its round is another one by now" in caplog.text
            await say(coordinator, "alpha", evaluation(model_digest=tasks["alpha"].model_digest))
            assert noted(coordinator) == {"alpha": evaluation()}
    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", [
    evaluation(1), evaluation(10**9), evaluation(classes=3), evaluation(classes=1), evaluation(study="other"),
    evaluation(labels_alone=True)], ids=["open round", "far round", "more classes", "fewer", "unknown study",
                                         "no labels alone"])
def test_an_evaluation_that_cannot_be_of_the_study_is_dropped_and_the_silo_goes_on(
        tmp_path: Path, wrong: SiteEvaluation, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            await say(coordinator, "alpha", wrong, evaluation())
            assert coordinator.ledger.query("SELECT count(*) AS n FROM site_evaluation")[0]["n"] == 1
            assert noted(coordinator) == {"alpha": evaluation()}
            assert "an evaluation of silo alpha is dropped" in caplog.text
    asyncio.run(scenario())
