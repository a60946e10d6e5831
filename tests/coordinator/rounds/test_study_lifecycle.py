"""Whether a study is stopped or paused: questions change nothing and block nobody, waiting says so to everyone.

The rest of the module is tested where it can be seen: `test_operate.py` (pause, stop and the model that is left),
`test_refusals.py` (a study in which every silo refuses), `test_engine.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.study_lifecycle import OperatorRequests, refused_rounds
from tests.coordinator.ledger_fixture import fill_study
from tests.processes import PATIENCE_SECONDS


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A study that runs, with three rounds behind it."""
    return fill_study(tmp_path / "federation", done=3, complete=False).ledger


def working() -> RuntimeState:
    return RuntimeState(study="first", round=3, rounds=12, phase="train", reason=StandbyReason.COORDINATOR_WORKING,
                        activity="evaluating", text="on time")


def shown(runtime: RuntimeState) -> tuple[object, ...]:
    return tuple(getattr(runtime, entry.name) for entry in dataclasses.fields(runtime)
                 if not entry.name.startswith("_"))


@pytest.mark.parametrize("state", [StudyState.RUNNING, StudyState.PAUSED, StudyState.STOPPED])
def test_asking_whether_a_study_is_stopped_changes_nothing(ledger: Ledger, state: StudyState) -> None:
    ledger.set_study_state("first", state)
    runtime = working()
    before, events = shown(runtime), ledger.last_event()
    assert OperatorRequests(ledger=ledger, runtime=runtime).is_stopped("first") is (state is StudyState.STOPPED)
    assert shown(runtime) == before
    assert ledger.last_event() == events


def test_who_waits_while_a_study_is_paused_says_so_and_then_all_is_as_before(ledger: Ledger) -> None:
    runtime = working()
    operator = OperatorRequests(ledger=ledger, runtime=runtime)
    before = (runtime.reason, runtime.text, runtime.activity)

    async def scenario() -> None:
        await asyncio.wait_for(operator.wait_while_paused("first"), PATIENCE_SECONDS)
        ledger.set_study_state("first", StudyState.PAUSED)
        waiting = asyncio.ensure_future(operator.wait_while_paused("first"))
        await asyncio.sleep(0.02)
        assert (runtime.reason, runtime.text, runtime.activity) == (StandbyReason.PAUSED, "paused", "")
        runtime.notify()  # something else has happened
        await asyncio.sleep(0.02)
        assert not waiting.done()
        ledger.set_study_state("first", StudyState.RUNNING)
        runtime.notify()
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert (runtime.reason, runtime.text, runtime.activity) == before
    asyncio.run(scenario())


def test_a_study_that_is_stopped_while_it_is_paused_keeps_nobody_waiting(ledger: Ledger) -> None:
    runtime = working()
    operator = OperatorRequests(ledger=ledger, runtime=runtime)
    ledger.set_study_state("first", StudyState.PAUSED)

    async def scenario() -> None:
        waiting = asyncio.ensure_future(operator.wait_while_paused("first"))
        await asyncio.sleep(0.02)
        ledger.set_study_state("first", StudyState.STOPPED)
        runtime.notify()
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert operator.is_stopped("first")
    asyncio.run(scenario())


def test_rounds_with_updates_are_no_refused_rounds(ledger: Ledger) -> None:
    assert refused_rounds(ledger, "first") == ""
