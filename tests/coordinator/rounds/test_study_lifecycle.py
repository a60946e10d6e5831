"""Whether a study is stopped or paused: questions change nothing and block nobody, waiting says so to everyone.

The rest of the module is tested where it can be seen: `test_operate.py` (pause, stop and the model that is left),
`test_refusals.py` (a study in which every silo refuses), `test_engine.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from semisilo.common.measures.study_measure import ACCURACY
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import LOGIT_ADJUSTMENT
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.study_lifecycle import OperatorRequests, model_to_write, refused_rounds, stopped_early
from tests.coordinator.ledger_fixture import SILOS, fill_study, open_collecting_round
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


@pytest.mark.parametrize("adjusted", [True, False])
def test_the_file_of_labels_alone_is_written_with_how_they_were_trained(ledger: Ledger, adjusted: bool) -> None:
    """What its probabilities stand for hangs on it."""
    description = f"strong and weak views with MixUp, {LOGIT_ADJUSTMENT}" if adjusted else "weak views"
    row = ledger.study("first")
    assert row.frozen is not None
    assert row.baseline is not None
    ledger.set_study_facts("first", frozen=dataclasses.replace(row.frozen, num_validation=100),
                           baseline=dataclasses.replace(row.baseline, metrics={"validation_accuracy": 0.9},
                                                        description=description, model_digest="cd" * 32))
    last = ledger.last_round("first")
    assert last is not None
    for number in range(last.number + 1):
        ledger.query("UPDATE round SET metrics_json = ? WHERE number = ?", json.dumps({"selection_score": 0.5}), number)
    found = model_to_write(ledger, "first")
    assert found is not None
    assert (found.labels_alone, found.adjusted, found.state) == (True, adjusted, "cd" * 32)


def test_rounds_with_updates_are_no_refused_rounds(ledger: Ledger) -> None:
    assert refused_rounds(ledger, "first") == ""


def test_an_outage_does_not_end_a_study_by_its_patience(ledger: Ledger) -> None:
    """Only committed rounds say that a model no longer gets better."""
    settings = SimpleNamespace(patience=2, rounds=100)
    last = ledger.last_round("first")
    assert last is not None
    best = last.number - 1  # one committed round has come after it
    for number in range(last.number + 1):
        ledger.query("UPDATE round SET metrics_json = ? WHERE number = ?", json.dumps(
            {"selection_score": 0.9 if number == best else 0.5, "selection_error": 0.01}), number)
    for number in range(last.number + 1, last.number + 4):
        open_collecting_round(ledger, "first", number, SILOS)
        ledger.set_round_state("first", number, RoundState.FAILED)
    assert stopped_early(ledger, "first", settings, ACCURACY) == ""  # type: ignore[arg-type]
    open_collecting_round(ledger, "first", last.number + 4, SILOS)
    ledger.close_phase(ledger.phase("first", last.number + 4, 0))
    ledger.set_round_state("first", last.number + 4, RoundState.EVALUATING, state_digest="ab" * 32)
    ledger.commit_round("first", last.number + 4, metrics={"selection_score": 0.5, "selection_error": 0.01})
    assert stopped_early(ledger, "first", settings, ACCURACY) == (  # type: ignore[arg-type]
        f"stopped after round {last.number + 4} of 100: accuracy on validation images has not risen for 2 rounds")
