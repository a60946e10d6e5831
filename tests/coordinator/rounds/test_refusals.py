"""A study in which every silo refuses pauses after three such rounds, and nothing takes its rounds for training."""

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
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.monitoring.status import gather
from semisilo.coordinator.monitoring.summary import audit, summarise
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.report.page import render_page
from semisilo.coordinator.rounds.study_lifecycle import pause_when_refused
from semisilo.simulation import run as simulate
from tests.coordinator.federation.test_operate import Operator, events
from tests.coordinator.federation_in_memory import Coordinator, study_config
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
REASON = ("in 3 rounds every silo refused; last: BAD_DATA: picture 17 is broken (beta). Mend it there, then:"
          " coordinator resume")


def many_rounds(rounds: int = 10) -> dict[str, Any]:
    config = study_config()
    return {**config, "study": {**config["study"], "rounds": rounds}}


async def answers(coordinator: Coordinator, number: int, **given: str) -> None:
    """Answers a round: "refuse", "abstain" or "late" by silo."""
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
    coordinator.runtime.notify()
    await until(coordinator, lambda: coordinator.ledger.round("s", number).state is RoundState.COMPLETED)


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
    assert (last.number, last.state) == (number, RoundState.COMPLETED)


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


@pytest.mark.parametrize("third", [{"alpha": "abstain", "beta": "refuse"}, dict.fromkeys(TWO, "abstain")])
def test_another_answer_than_a_refusal_ends_the_row(tmp_path: Path, third: dict[str, str]) -> None:
    coordinator = start(tmp_path, config=many_rounds())

    async def scenario() -> None:
        engine = await opened(coordinator)
        for number, given in enumerate((ALL, ALL, third, ALL, ALL, ALL), 1):
            await answers(coordinator, number, **given)
        await is_paused_after(coordinator, 6)
        await end(engine)
    asyncio.run(scenario())


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
    assert "Mend it there, then: coordinator resume" in text


def test_what_no_silo_has_part_in_is_shown_as_no_gain_of_the_federation(tmp_path: Path) -> None:
    filled = refused_study(tmp_path / "hub")
    summary = summarise(filled.ledger, "first")
    assert (summary.updates, summary.accuracy, summary.gain) == (0, 0.518, None)
    page = render_page(federation="f", address="a:1", study=summary, silos=filled.roster.silos(), figures=(),
                       audit=audit(filled.ledger, "first"), state_digest="")
    assert "no update of any silo was accepted" in page
    assert "Federated accuracy" not in page
    assert "+1.8" not in page
    found = PageReader(PageSource(federation="f", address="a:1", ledger=filled.ledger.path, read_only=False),
                       filled.ledger).study("first")
    assert (found.accuracy, found.labelled_only_accuracy, found.gain) == (0.518, 0.5, None)


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
