"""Labels alone are trained beside the rounds, hold nobody up, and are over before the study is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import ComputeFailed, DiskFull
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.text.describe import describe_estimate
from semisilo.coordinator.ledger.records import LABELS_ALONE_FILE, LabelledOnlyResult
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.rounds import engine, labels_alone
from tests.coordinator.federation.test_operate import Operator, events, until
from tests.coordinator.federation_in_memory import Coordinator, Killed, content_of, study_config
from tests.coordinator.rounds.test_engine import SILOS, Clock, final_digest, open_round, run, start, until_killed

FOREVER = 10**9


def begun(folder: Path, *, slices: int, quiet_seconds: float = 0.01, **options: Any) -> Coordinator:
    coordinator = start(folder, **options)
    coordinator.compute.slices_left = slices
    coordinator.engine._labels_alone._quiet_seconds = quiet_seconds
    return coordinator


def slices(coordinator: Coordinator) -> int:
    return coordinator.compute.calls.count("baseline")


async def ended(engine: asyncio.Future[Any]) -> None:
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    coordinator = start(tmp_path_factory.mktemp("undisturbed"))
    asyncio.run(run(coordinator))
    return final_digest(coordinator)


def test_rounds_open_and_close_while_labels_alone_are_at_work(tmp_path: Path) -> None:
    coordinator = begun(tmp_path, slices=FOREVER)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(lambda: slices(coordinator) > 3)  # nobody has joined yet
        assert coordinator.ledger.study_state("s") is StudyState.WAITING
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        for number in (1, 2):
            tasks = [await coordinator.ask(silo, timeout_seconds=300) for silo in SILOS]
            before = slices(coordinator)
            await until(lambda seen=before: slices(coordinator) > seen + 3)  # type: ignore[misc]
            for task in tasks:
                assert isinstance(task, TaskSpec)
                assert task.round == number
                await coordinator.deliver(task, content_of(task))
        assert coordinator.ledger.study("s").baseline is None
        await ended(engine)
    asyncio.run(scenario())


def test_where_silos_answer_at_once_all_of_it_is_done_after_the_last_round(tmp_path: Path, undisturbed: str) -> None:
    coordinator = begun(tmp_path, slices=5, quiet_seconds=1e9)
    asyncio.run(run(coordinator))
    calls = coordinator.compute.calls
    assert calls[-6:] == ["export", *["baseline"] * 5]
    assert final_digest(coordinator) == undisturbed


def test_the_bits_of_the_rounds_do_not_depend_on_when_slices_were(tmp_path: Path, undisturbed: str) -> None:
    coordinator = begun(tmp_path, slices=200, quiet_seconds=0.0)
    asyncio.run(run(coordinator))
    assert slices(coordinator) == 200
    assert "baseline" in coordinator.compute.calls[:coordinator.compute.calls.index("export")]
    assert final_digest(coordinator) == undisturbed
    assert coordinator.ledger.study("s").baseline is not None


def test_in_a_simulation_no_slice_is_before_the_end_of_the_rounds(tmp_path: Path, undisturbed: str) -> None:
    coordinator = begun(tmp_path, slices=5, quiet_seconds=0.0)
    coordinator.engine._labels_alone._beside_rounds = False
    asyncio.run(run(coordinator))
    assert coordinator.compute.calls[-5:] == ["baseline"] * 5
    assert final_digest(coordinator) == undisturbed


def test_how_far_it_is_and_how_long_it_will_take_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="semisilo.coordinator")
    coordinator, seen = begun(tmp_path, slices=41, quiet_seconds=1e9), set()

    def look(operation: str, request: Any) -> None:
        if operation == "baseline":
            seen.add((coordinator.runtime.labels_alone, coordinator.runtime.activity, coordinator.runtime.fraction))

    coordinator.compute.before = look
    asyncio.run(run(coordinator))
    assert ("", "labels alone", 0.0) in seen
    far = "3 of 400 epochs, about 40 min left"
    assert (far, f"labels alone: {far}", 0.25) in seen
    told = [line for line in caplog.messages if line.startswith("labels alone")]
    assert len(told) == 3
    assert "the strong recipe on 4 labelled images" in told[0]
    assert told[1] == "labels alone: about 40 min of work for 397 epochs"
    assert told[2] == "labels alone reach an accuracy of 50.0 %"
    assert coordinator.runtime.labels_alone == ""


def test_while_the_study_is_paused_nothing_is_done(tmp_path: Path) -> None:
    coordinator = begun(tmp_path, slices=FOREVER)
    operator = Operator(coordinator)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        await until(lambda: slices(coordinator) > 3)
        operator.pause()
        await until(lambda: coordinator.runtime.reason == "paused")
        before = slices(coordinator)
        await asyncio.sleep(0.1)
        assert slices(coordinator) == before
        operator.resume()
        await until(lambda: slices(coordinator) > before)
        await ended(engine)
    asyncio.run(scenario())


@pytest.mark.parametrize("act", ["pause", "stop"])
def test_a_study_is_paused_or_stopped_in_the_middle_of_what_is_left_after_its_last_round(
        tmp_path: Path, act: str) -> None:
    coordinator = begun(tmp_path, slices=FOREVER, quiet_seconds=1e9)
    operator = Operator(coordinator)

    async def scenario() -> None:
        study = asyncio.ensure_future(run(coordinator))
        await until(lambda: slices(coordinator) > 3)
        assert (tmp_path / "studies" / "s" / "model.safetensors").exists(), "the model waits for nothing"
        if act == "pause":
            operator.pause()
            await until(lambda: coordinator.runtime.reason == "paused")
            coordinator.compute.slices_left = 2
            operator.resume()
        else:
            operator.stop()
        await study
    asyncio.run(scenario())
    study = coordinator.ledger.study("s")
    assert coordinator.runtime.labels_alone == "", "nobody reads on of work that has ended"
    assert study.state is (StudyState.COMPLETED if act == "pause" else StudyState.STOPPED)
    assert (study.baseline is not None) == (act == "pause")
    assert coordinator.ledger.rounds("s")[-1].number == 3


@pytest.mark.parametrize("every", [1, 4])
def test_a_study_goes_on_without_the_line_where_that_cannot_be_trained(
        tmp_path: Path, undisturbed: str, caplog: pytest.LogCaptureFixture, every: int) -> None:
    """What diverges does so again, a few slices after the file from which it is taken up: not for ever."""
    coordinator = begun(tmp_path, slices=FOREVER, quiet_seconds=0.0)

    def fail(operation: str, request: Any) -> None:
        if operation == "baseline" and slices(coordinator) % every == 0:
            raise ComputeFailed("Training diverged on labels only: a weight is not finite.")

    coordinator.compute.before = fail
    asyncio.run(run(coordinator))
    assert final_digest(coordinator) == undisturbed
    assert coordinator.ledger.study("s").baseline is None
    assert coordinator.ledger.query("SELECT 1 FROM event WHERE kind = 'labels_alone_failed'")
    assert slices(coordinator) == 3 * every
    assert "The study continues without this baseline" in caplog.text


FULL = "/hub/studies/s/labels-alone-model.safetensors: No space left on device."


def fill_disk(coordinator: Coordinator) -> list[str]:
    """There is no room for what labels alone write, until the list is empty."""
    full = [FULL]

    def fails(operation: str, request: Any) -> None:
        if operation == "baseline" and full:
            raise DiskFull(full[0], remedy="Free some space.")

    coordinator.compute.before = fails
    return full


def test_no_round_waits_for_what_the_system_refuses_labels_alone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The study was opened again every few seconds, its phase got a fresh deadline each time, and it never closed."""
    monkeypatch.setattr(labels_alone, "_FIRST_PAUSE_SECONDS", 0.01)
    caplog.set_level(logging.INFO, logger="semisilo.coordinator")
    clock = Clock()
    coordinator = begun(tmp_path, slices=FOREVER, quiet_seconds=0.0, clock=clock, config=study_config(quorum=1))
    full, work = fill_disk(coordinator), coordinator.engine._labels_alone

    async def looked_at(condition: Callable[[], bool]) -> None:
        await until(lambda: coordinator.runtime.notify() or condition())

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
        await looked_at(lambda: slices(coordinator) >= 4)
        assert coordinator.runtime.labels_alone == f"waits: {FULL} Free some space."
        assert coordinator.runtime.trouble == "", "the study does not wait"
        assert work._pause_seconds >= 0.08
        clock.now += 5.1
        await looked_at(lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        assert events(coordinator.ledger, "deadline_moved") == []
        assert coordinator.compute.calls.count("open_study") == 1
        assert sum("labels alone wait" in text for text in caplog.messages) == 1, "it is said once"
        full.clear()
        await looked_at(lambda: "epochs" in coordinator.runtime.labels_alone)
        assert (work._pause_seconds, work._trouble) == (0.01, "")
        await ended(engine)
    asyncio.run(scenario())


@pytest.mark.parametrize("round_0_steps", [0, 7])
def test_where_nothing_else_is_to_be_done_the_study_waits_for_what_the_system_refuses_labels_alone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_0_steps: int) -> None:
    monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 0.01)
    coordinator = begun(tmp_path, slices=3, quiet_seconds=1e9)
    coordinator.compute.round_0_steps = round_0_steps
    full = fill_disk(coordinator)

    async def scenario() -> None:
        study = asyncio.ensure_future(run(coordinator))
        await until(lambda: coordinator.runtime.trouble == f"{FULL} Free some space.")
        assert coordinator.ledger.study_state("s") is (StudyState.PREPARING if round_0_steps else StudyState.RUNNING)
        full.clear()
        await study
    asyncio.run(scenario())
    assert coordinator.ledger.study_state("s") is StudyState.COMPLETED
    assert coordinator.ledger.study("s").baseline is not None


def test_a_line_that_the_ledger_could_not_take_in_a_round_is_not_lost(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_alone, "_FIRST_PAUSE_SECONDS", 0.01)
    coordinator = begun(tmp_path, slices=1, quiet_seconds=0.0)
    ledger, tries = coordinator.ledger, list[Any]()
    real = ledger.set_study_facts

    def set_study_facts(name: str, **facts: Any) -> None:
        if "baseline" in facts:
            tries.append(facts)
            if len(tries) == 1:
                raise DiskFull(FULL)
        real(name, **facts)

    monkeypatch.setattr(ledger, "set_study_facts", set_study_facts)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(lambda: bool(tries))
        await until(lambda: coordinator.runtime.notify() or ledger.study("s").baseline is not None)
        assert (len(tries), coordinator.runtime.labels_alone) == (2, "")
        await ended(engine)
    asyncio.run(scenario())


def test_a_line_that_is_in_the_ledger_is_not_trained_again_and_needs_no_file(tmp_path: Path) -> None:
    first = begun(tmp_path, slices=1)
    file = tmp_path / "studies" / "s" / LABELS_ALONE_FILE
    file.parent.mkdir(parents=True)
    file.touch()

    async def until_done() -> None:
        engine = asyncio.ensure_future(first.engine.run_next())
        await until(lambda: first.ledger.study("s").baseline is not None)
        await ended(engine)

    asyncio.run(until_done())
    assert not file.exists()
    first.ledger.close()
    file.touch()  # killed before it was removed
    second = Coordinator(tmp_path)
    asyncio.run(run(second))
    assert slices(second) == 0
    assert second.ledger.study("s").baseline == LabelledOnlyResult(
        metrics={"accuracy": 0.5}, epochs=400, asked=400, lr=0.1, batch_size=10, steps=1, num_labelled=4, history=())
    assert not file.exists()


# Round 0 that starts from them ----------------------------------------------------------------------------------------


def starting_from_them(folder: Path, *, slices: int = 5) -> Coordinator:
    coordinator = begun(folder, slices=slices, quiet_seconds=0.0)
    coordinator.compute.round_0_steps = 7
    return coordinator


def round_0(coordinator: Coordinator) -> str:
    """What its state was made of."""
    digest = coordinator.ledger.rounds("s")[0].state_digest
    return (coordinator.compute.states / f"{digest}.safetensors").read_text()


OF_LABELS_ALONE = f"{'ab' * 32} 0.25"


@pytest.fixture(scope="module")
def from_them(tmp_path_factory: pytest.TempPathFactory) -> str:
    coordinator = starting_from_them(tmp_path_factory.mktemp("from-them"))
    asyncio.run(run(coordinator))
    return final_digest(coordinator)


@pytest.mark.parametrize("beside_rounds", [True, False])
def test_where_round_0_starts_from_them_they_are_trained_before_it_and_never_again(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, beside_rounds: bool, from_them: str, undisturbed: str
        ) -> None:
    caplog.set_level(logging.INFO, logger="semisilo.coordinator")
    coordinator, seen = starting_from_them(tmp_path), list[tuple[str, float]]()
    coordinator.engine._labels_alone._beside_rounds = beside_rounds

    def look(operation: str, request: Any) -> None:
        if operation == "baseline":
            seen.append((coordinator.runtime.activity, coordinator.runtime.fraction))
        if operation == "prepare":
            assert coordinator.ledger.study("s").baseline is not None
            seen.append((coordinator.runtime.activity, 1.0))

    coordinator.compute.before = look
    asyncio.run(run(coordinator))
    assert coordinator.compute.calls[:7] == ["open_study", *["baseline"] * 5, "prepare"]
    assert slices(coordinator) == 5
    assert seen[0] == ("round 0: labels alone", 0.0)
    assert seen[1] == (f"round 0: labels alone: 3 of 400 epochs, about {describe_estimate(240.0)} left", 0.25)
    assert seen[5] == ("round 0: the model of labels alone", 1.0)
    assert "labels alone, the baseline: the strong recipe on 4 labelled images, before round 1, which starts from" \
           " them" in caplog.messages
    assert round_0(coordinator) == OF_LABELS_ALONE
    assert final_digest(coordinator) == from_them != undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("operation", "count"), [("baseline", 1), ("baseline", 3), ("baseline", 5), ("prepare", 1),
                                                  ("phases", 1)])
def test_a_coordinator_that_is_killed_before_round_1_ends_with_the_same_bits(
        tmp_path: Path, from_them: str, when: str, operation: str, count: int) -> None:
    first = starting_from_them(tmp_path)

    def kill(called: str, request: Any) -> None:
        if called == operation and first.compute.calls.count(called) == count:
            raise Killed

    setattr(first.compute, when, kill)
    asyncio.run(until_killed(first))
    done = first.ledger.study("s").baseline is not None
    assert done == (operation != "baseline")
    first.ledger.close()
    second = Coordinator(tmp_path)
    second.compute.round_0_steps = 7
    asyncio.run(run(second))
    assert final_digest(second) == from_them
    assert slices(second) == (0 if done else 1)


def test_where_they_cannot_be_trained_round_0_trains_its_own_model(tmp_path: Path, undisturbed: str,
                                                                   caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="semisilo.coordinator")
    coordinator = starting_from_them(tmp_path)

    def fail(operation: str, request: Any) -> None:
        if operation == "baseline":
            raise ComputeFailed("Training diverged on labels only: a weight is not finite.")

    coordinator.compute.before = fail
    asyncio.run(run(coordinator))
    assert coordinator.compute.calls[:5] == ["open_study", *["baseline"] * 3, "prepare"]
    assert slices(coordinator) == 3
    assert round_0(coordinator) == "initial"
    assert final_digest(coordinator) == undisturbed
    assert "there is no model of labels alone to start from: round 0 trains its own" in caplog.text


@pytest.mark.parametrize(("steps", "taken"), [(7, True), (8, False)])
def test_a_line_of_another_study_is_started_from_where_it_has_the_steps_of_this_one(
        tmp_path: Path, from_them: str, steps: int, taken: bool) -> None:
    coordinator = starting_from_them(tmp_path)
    line = LabelledOnlyResult(metrics={"accuracy": 0.5}, epochs=4, asked=4, lr=0.1, batch_size=10, steps=steps,
                              loss=0.25, num_labelled=4, history=(), model_digest="ab" * 32)
    coordinator.engine._labels_alone._given = lambda study: line
    asyncio.run(run(coordinator))
    assert slices(coordinator) == (0 if taken else 5)
    assert final_digest(coordinator) == from_them
    baseline = coordinator.ledger.study("s").baseline
    assert baseline is not None
    assert baseline.steps == 7


def test_a_study_of_which_another_line_was_taken_before_goes_on_with_its_own_warm_up(tmp_path: Path,
                                                                                   undisturbed: str) -> None:
    """As a version before has begun it."""
    coordinator = starting_from_them(tmp_path)
    coordinator.ledger.set_study_facts("s", baseline=LabelledOnlyResult(
        metrics={"accuracy": 0.5}, epochs=4, asked=4, lr=0.1, batch_size=10, steps=8, num_labelled=4, history=(),
        model_digest="ab" * 32))
    asyncio.run(run(coordinator))
    assert slices(coordinator) == 0
    assert final_digest(coordinator) == undisturbed


def test_what_a_stopped_study_has_trained_is_not_that_of_the_study_with_other_settings(tmp_path: Path) -> None:
    """It is stopped and queued again while the last slice is under way."""
    coordinator = starting_from_them(tmp_path)

    def queue_again(operation: str, request: Any) -> None:
        if operation == "baseline" and slices(coordinator) == 5:
            coordinator.ledger.set_study_state("s", StudyState.STOPPED)
            coordinator.ledger.requeue_study("s", study_config())

    coordinator.compute.after = queue_again
    asyncio.run(run(coordinator))
    study = coordinator.ledger.study("s")
    assert (study.state, study.baseline) == (StudyState.QUEUED, None)
    assert "prepare" not in coordinator.compute.calls


def test_a_study_is_paused_and_stopped_before_round_0(tmp_path: Path) -> None:
    coordinator = starting_from_them(tmp_path, slices=FOREVER)
    operator = Operator(coordinator)

    async def scenario() -> None:
        study = asyncio.ensure_future(run(coordinator))
        await until(lambda: slices(coordinator) > 3)
        operator.pause()
        await until(lambda: coordinator.runtime.reason == "paused")
        before = slices(coordinator)
        await asyncio.sleep(0.1)
        assert slices(coordinator) == before
        operator.resume()
        await until(lambda: slices(coordinator) > before)
        operator.stop()
        await study
    asyncio.run(scenario())
    assert coordinator.ledger.study("s").state is StudyState.STOPPED
    assert "prepare" not in coordinator.compute.calls
