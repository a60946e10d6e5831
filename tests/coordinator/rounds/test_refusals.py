"""Refusals are no answers for the quorum: rounds without one fail, and a study pauses after three such rounds."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import SemisiloError
from semisilo.common.methods.contract import TaskSpec
from semisilo.coordinator.cli.status import render
from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.ledger.states import ENDED_ROUND, RoundState, StudyState, TaskState
from semisilo.coordinator.monitoring.status import gather
from semisilo.coordinator.monitoring.summary import audit, summarise
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.report.page import render_page
from semisilo.coordinator.rounds import engine as engine_module
from semisilo.coordinator.rounds.study_lifecycle import pause_when_refused
from semisilo.coordinator.tasks.task_service import Hello
from semisilo.simulation import run as simulate
from tests.coordinator.federation.test_operate import Operator, events
from tests.coordinator.federation_in_memory import Coordinator, content_of, study_config
from tests.coordinator.ledger_fixture import (
    SILOS,
    Filled,
    answer,
    digest,
    labelled_only,
    open_collecting_round,
    open_federation_with_silos,
)
from tests.coordinator.ledger_fixture import study_config as filled_config
from tests.coordinator.rounds.test_engine import start, until
from tests.semisilo.studies import study

TWO = ("alpha", "beta")
REASON = ("in 3 rounds every silo refused; last: BAD_DATA: picture 17 is broken (beta). Fix it there, then:"
          " coordinator resume")


def many_rounds(rounds: int = 10, *, start_with: int = 2, **participation: Any) -> dict[str, Any]:
    config = study_config(round_timeout="1h", round_limit="2h", **participation)
    return {**config, "study": {**config["study"], "rounds": rounds, "start_with": start_with}}


async def answers(coordinator: Coordinator, number: int, **given: str) -> None:
    """Answers a round: "refuse", "abstain" or "update" by silo; it is over then."""
    await until(coordinator, lambda: (row := coordinator.ledger.last_round("s")) is not None and row.number >= number
                and row.state is RoundState.COLLECTING)
    for silo, what in given.items():
        task = await coordinator.ask(silo)
        assert isinstance(task, TaskSpec)
        assert task.round == number
        if what == "refuse":
            coordinator.task_service.refuse(silo, task.task_id, "BAD_DATA", "picture 17 is broken.")
        elif what == "abstain":
            coordinator.task_service.abstain(silo, task.task_id, "no_confident_example", {})
        else:
            await coordinator.deliver(task, content_of(task))
    coordinator.runtime.notify()
    await until(coordinator, lambda: coordinator.ledger.round("s", number).state in ENDED_ROUND)


async def opened(coordinator: Coordinator) -> asyncio.Future[Any]:
    engine = asyncio.ensure_future(coordinator.engine.run_next())
    await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in TWO))
    return engine


async def is_paused_after(coordinator: Coordinator, number: int) -> None:
    """Paused after that round, and no other begins."""
    await until(coordinator, lambda: coordinator.ledger.study_state("s") is StudyState.PAUSED)
    await asyncio.sleep(0.05)
    last = coordinator.ledger.last_round("s")
    assert last is not None
    assert last.number == number
    assert last.state in ENDED_ROUND


async def end(engine: asyncio.Future[Any]) -> None:
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)


ALL = dict.fromkeys(TWO, "refuse")


def test_a_study_pauses_after_three_rounds_of_refusals_and_after_a_resume_the_count_starts_anew(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = start(tmp_path, config=many_rounds())

    async def scenario() -> None:
        engine = await opened(coordinator)
        for number in (1, 2, 3):
            await answers(coordinator, number, **ALL)
        await is_paused_after(coordinator, 3)
        assert coordinator.ledger.study("s").reason == REASON
        assert events(coordinator.ledger, "study_paused") == [
            {"before": "running", "reason": REASON, "origin": "coordinator"}]
        assert REASON in caplog.text
        assert "broken" not in coordinator.runtime.text, "every silo reads this text"
        Operator(coordinator).resume()
        for number in (4, 5, 6):
            await answers(coordinator, number, **ALL)
        await is_paused_after(coordinator, 6)
        await end(engine)
    with caplog.at_level(logging.INFO, "semisilo"):
        asyncio.run(scenario())


def test_refusals_pause_a_study_before_its_patience_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(ledger: Ledger, study: str, *_: object) -> str:
        last = ledger.last_round(study)
        return "stopped" if last is not None and last.number >= 3 else ""

    monkeypatch.setattr(engine_module, "stopped_early", ended)
    coordinator = start(tmp_path, config=many_rounds())

    async def scenario() -> None:
        engine = await opened(coordinator)
        for number in (1, 2, 3):
            await answers(coordinator, number, **ALL)
        await is_paused_after(coordinator, 3)
        Operator(coordinator).resume()
        await until(coordinator, lambda: coordinator.ledger.study_state("s") is StudyState.COMPLETED)
        await end(engine)
    asyncio.run(scenario())


@pytest.mark.parametrize("third", [{"alpha": "abstain", "beta": "refuse"}, dict.fromkeys(TWO, "abstain")])
def test_another_answer_than_a_refusal_ends_the_row(tmp_path: Path, third: dict[str, str]) -> None:
    coordinator = start(tmp_path, config=many_rounds(start_with=1))

    async def scenario() -> None:
        engine = await opened(coordinator)
        for number, given in enumerate((ALL, ALL, third, ALL, ALL, ALL), 1):
            await answers(coordinator, number, **given)
        await is_paused_after(coordinator, 6)
        await end(engine)
    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_coordinator_that_was_restarted_counts_the_same(tmp_path: Path, rounds: int) -> None:
    first = start(tmp_path, config=many_rounds())

    async def before() -> None:
        engine = await opened(first)
        for number in range(1, rounds + 1):
            await answers(first, number, **ALL)
        await end(engine)
    asyncio.run(before())
    first.close()
    second = Coordinator(tmp_path)

    async def after() -> None:
        engine = await opened(second)
        for number in range(rounds + 1, 4):
            await answers(second, number, **ALL)
        await is_paused_after(second, 3)
        assert len(events(second.ledger, "study_paused")) == 1
        await end(engine)
    asyncio.run(after())
    second.close()
    third = Coordinator(tmp_path)

    async def resumed() -> None:
        operate.resume(third.ledger, origin="command")
        engine = await opened(third)
        await answers(third, 4, **ALL)
        await answers(third, 5, **ALL)
        assert third.ledger.study_state("s") is StudyState.RUNNING, "two since it was resumed"
        await end(engine)
    asyncio.run(resumed())


def states(coordinator: Coordinator) -> list[RoundState]:
    """Of the rounds with silos."""
    return [row.state for row in coordinator.ledger.rounds("s", first=1)]


def test_two_refusals_do_not_meet_a_quorum_of_two(tmp_path: Path) -> None:
    coordinator = start(tmp_path, config=many_rounds(quorum=2, start_with=3))
    coordinator.enroll("gamma")

    async def scenario() -> None:
        engine = await opened(coordinator)
        await coordinator.ask("gamma", timeout_seconds=0)
        await answers(coordinator, 1, alpha="refuse", beta="refuse", gamma="update")
        assert coordinator.ledger.round("s", 1).reason == \
            "1 of 2 answers (2 refusals beside them), and no other silo is left to ask"
        await answers(coordinator, 2, alpha="abstain", beta="abstain", gamma="update")
        assert states(coordinator)[:2] == [RoundState.FAILED, RoundState.COMPLETED]
        for number in (3, 4, 5):
            await answers(coordinator, number, alpha="refuse", beta="refuse", gamma="update")
        await is_paused_after(coordinator, 5)
        assert coordinator.ledger.study("s").reason.startswith(
            "in 3 rounds silos refused, and too few others were left for the quorum; last: BAD_DATA")
        await end(engine)
    asyncio.run(scenario())


def test_silos_that_refuse_every_round_do_not_count_towards_start_with(tmp_path: Path) -> None:
    """Every round has its quorum of one, and the study was to start with two. Whoever resumes it has been told."""
    coordinator = start(tmp_path, config=many_rounds(8, quorum=1))

    async def scenario() -> None:
        engine = await opened(coordinator)
        for number in (1, 2, 3):
            await answers(coordinator, number, alpha="update", beta="refuse")
        await is_paused_after(coordinator, 3)
        assert states(coordinator) == [RoundState.COMPLETED] * 3
        assert coordinator.ledger.study("s").reason == (
            "the study is to start with 2 silos, and 1 refused every round, so that 1 takes part; last: BAD_DATA:"
            " picture 17 is broken (beta). Fix it there, then: coordinator resume")
        Operator(coordinator).resume()
        for number in range(4, 9):
            await answers(coordinator, number, alpha="update", beta="refuse")
        assert (await engine).state is StudyState.COMPLETED
    asyncio.run(scenario())


def test_a_silo_that_has_given_another_answer_once_counts_towards_start_with(tmp_path: Path) -> None:
    coordinator = start(tmp_path, config=many_rounds(5, quorum=1))

    async def scenario() -> None:
        engine = await opened(coordinator)
        for number in range(1, 6):
            await answers(coordinator, number, alpha="update", beta="abstain" if number == 2 else "refuse")
        assert (await engine).state is StudyState.COMPLETED
    asyncio.run(scenario())


def test_a_study_does_not_start_with_a_silo_whose_policy_does_not_permit_its_method(tmp_path: Path) -> None:
    coordinator = start(tmp_path, config=many_rounds())
    hello = Hello(version="0", methods=("fedavg",), labelled_count=0, unlabelled_count=10)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await coordinator.ask("alpha", timeout_seconds=0)
        await coordinator.task_service.await_task("beta", hello, timeout_seconds=0)
        await until(coordinator, lambda: coordinator.runtime.text == "1 of 2 silos have joined; 1 more cannot take"
                    " part: silo.toml there does not permit semifl")
        assert coordinator.ledger.study_state("s") is StudyState.WAITING
        await coordinator.ask("beta", timeout_seconds=0)  # its policy has been changed
        await until(coordinator, lambda: coordinator.ledger.study_state("s") is StudyState.RUNNING)
        await end(engine)
    asyncio.run(scenario())


def refused_study(folder: Path, *, rounds: int = 3, pause: bool = True) -> Filled:
    """A ledger with rounds that were committed with nothing but refusals."""
    filled = open_federation_with_silos(folder)
    ledger = filled.ledger
    ledger.queue_study("first", filled_config(rounds=rounds))
    ledger.set_study_state("first", StudyState.PREPARING)
    ledger.set_study_facts("first", baseline=labelled_only(0.5), frozen=FrozenStudy(
        classes=("a",), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), num_labelled=30,
        num_validation=0, num_test=300, num_parameters=3, dense_bytes=10))
    ledger.set_study_state("first", StudyState.WAITING)
    ledger.set_study_state("first", StudyState.RUNNING)
    for number in range(1, rounds + 1):
        open_collecting_round(ledger, "first", number, SILOS)
        for silo in SILOS:
            answer(ledger, "first", number, silo, TaskState.REFUSED, ratio=0.0)
        ledger.close_phase(ledger.phase("first", number, 0))
        ledger.set_round_state("first", number, RoundState.EVALUATING, state_digest=digest(str(number)))
        ledger.commit_round("first", number, metrics={"accuracy": 0.518})
    if pause:
        assert pause_when_refused(ledger, "first")
    return filled


def test_status_says_why_the_study_paused_and_what_to_do(tmp_path: Path) -> None:
    filled = refused_study(tmp_path / "hub")
    console = Console(file=io.StringIO(), width=80)
    render(console, gather(filled.federation, filled.ledger, None))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "first: paused: in 3 rounds every silo refused; last: METHOD_NOT_PERMITTED" in text
    assert "Fix it there, then: coordinator resume" in text


def test_what_no_silo_has_part_in_is_shown_as_no_gain_of_the_federation(tmp_path: Path) -> None:
    filled = refused_study(tmp_path / "hub")
    summary = summarise(filled.ledger, "first")
    assert (summary.updates, summary.accuracy, summary.gain) == (0, 0.518, None)
    page = render_page(federation="f", address="a:1", study=summary, silos=filled.roster.silos(), figures=(),
                       audit=audit(filled.ledger, "first"), state_digest="")
    assert "no silo has part in round 3" in page
    assert "Federated accuracy" not in page
    assert "+1.8" not in page
    found = PageReader(PageSource(federation="f", address="a:1", ledger=filled.ledger.path, read_only=False),
                       filled.ledger).study("first")
    assert (found.accuracy, found.labelled_only_accuracy, found.gain) == (0.518, 0.5, None)


@pytest.mark.slow
@pytest.mark.usefixtures("simulated_in_one_process")
def test_a_simulation_in_which_every_silo_refuses_fails_with_the_reason_and_can_be_gone_on_with(
        tmp_path: Path) -> None:
    tables = study(rounds=5, settings={"lr": 1e30, "coordinator_epochs": 0, "clip_norm": 0.0,
                                       "confidence_threshold": 0.0})
    with pytest.raises(SemisiloError, match="In 3 rounds every silo refused; last: "):
        simulate(tables, out=tmp_path, device="cpu")
    ledger = Ledger(tmp_path / "ledger.sqlite")
    (row,) = ledger.studies()
    assert row.state is StudyState.FAILED
    assert "resume" not in row.reason
    assert [entry.number for entry in ledger.rounds(row.name)] == [0, 1, 2, 3]
    assert json.loads(ledger.query("SELECT detail_json FROM event WHERE kind = 'study_paused'")[0][0])["origin"] == \
        "coordinator"
    ledger.close()
    assert len(simulate(tables, out=tmp_path, device="cpu").rounds) == 6  # two more refused rounds are not three
