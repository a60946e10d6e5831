"""A study that is queued again waits behind the one that runs, and its silos keep what they have for it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.errors import BadPayload, StudyNotOpen, SystemTrouble, TaskClosed
from semisilo.common.methods.contract import Phase, TaskSpec
from semisilo.coordinator.compute.messages import Export
from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.oversight.rollback import rollbacks_of, take_cancelled_back
from semisilo.coordinator.ledger.oversight.table_check import compare_tables
from semisilo.coordinator.ledger.secure_sums.sums import open_sum
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.rounds import engine as engine_module
from semisilo.coordinator.rounds.runtime import StandbyReason
from semisilo.coordinator.studies.describe import describe_study
from semisilo.coordinator.tasks.task_service import Standby
from tests.coordinator.federation_in_memory import Coordinator, content_of, study_config
from tests.coordinator.rounds.test_engine import SILOS, behind_masks, run, start, until
from tests.coordinator.tasks.collecting import HeldUp


def life(folder: Path) -> Coordinator:
    """A coordinator whose studies have folders of their own."""
    coordinator = Coordinator(folder)

    def open_folder(operation: str, request: Any) -> None:
        if operation == "open_study":
            coordinator.compute.states = folder / "studies" / request.name / "states"

    coordinator.compute.before = open_folder
    return coordinator


def collects(coordinator: Coordinator, study: str, number: int) -> Callable[[], bool]:
    def is_so() -> bool:
        last = coordinator.ledger.last_round(study)
        return last is not None and last.number == number and last.state is RoundState.COLLECTING \
            and coordinator.runtime.study == study
    return is_so


async def works(coordinator: Coordinator, study: str, number: int) -> asyncio.Future[Any]:
    """The engine, once silos work in a round of a study."""
    engine = asyncio.ensure_future(coordinator.engine.run_next())
    await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
    await until(coordinator, collects(coordinator, study, number))
    return engine


async def end(engine: asyncio.Future[Any]) -> None:
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)


async def one_failed_and_the_next_works(folder: Path) -> tuple[Coordinator, asyncio.Future[Any], TaskSpec]:
    """Study s has failed in its first round, and t is in its first; what alpha was asked in s."""
    coordinator = life(folder)
    coordinator.enroll(*SILOS)
    for name in ("s", "t"):
        coordinator.ledger.queue_study(name, study_config(quorum=2, round_timeout="1h", round_limit="2h"))
    engine = await works(coordinator, "s", 1)
    task = await coordinator.ask("alpha")
    assert isinstance(task, TaskSpec)
    await end(engine)
    coordinator.ledger.set_study_state("s", StudyState.FAILED, reason="of the test")
    return coordinator, await works(coordinator, "t", 1), task


async def answers(coordinator: Coordinator, study: str, number: int) -> None:
    """Both silos send their updates."""
    await until(coordinator, collects(coordinator, study, number))
    for silo in SILOS:
        task = await coordinator.ask(silo)
        assert isinstance(task, TaskSpec)
        assert (task.study, task.round) == (study, number)
        await coordinator.deliver(task, content_of(task))


def queue_again(coordinator: Coordinator, name: str) -> None:
    coordinator.ledger.requeue_study(name, coordinator.ledger.study(name).config)


def test_after_a_restart_the_study_that_was_running_goes_on_before_one_that_is_queued_again(tmp_path: Path) -> None:
    """A start queues again whatever has failed: the earlier study ran, and nothing was told to silos of the later."""
    async def scenario() -> None:
        first, engine, _ = await one_failed_and_the_next_works(tmp_path)
        await end(engine)
        queue_again(first, "s")
        first.close()
        second = life(tmp_path)
        described = describe_study(second.ledger, "alpha")
        assert described is not None
        assert described.name == "t"
        engine = await works(second, "t", 1)
        for number in (1, 2, 3):
            await answers(second, "t", number)
        await engine
        assert second.ledger.study_state("t") is StudyState.COMPLETED
        assert second.ledger.study_state("s") is StudyState.QUEUED
        engine = await works(second, "s", 1)
        for number in (1, 2, 3):
            await answers(second, "s", number)
        await engine
        assert second.ledger.study_state("s") is StudyState.COMPLETED
        second.close()
    asyncio.run(scenario())


@pytest.mark.parametrize("back", [False, True])
def test_an_error_of_the_system_does_not_make_way_for_an_earlier_study(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool) -> None:
    monkeypatch.setattr(engine_module, "_FIRST_PAUSE_SECONDS", 0.01)

    async def scenario() -> None:
        coordinator, engine, _ = await one_failed_and_the_next_works(tmp_path)
        coordinator.engine._pause_seconds = 0.01
        if back:
            monkeypatch.setattr(operate, "returnable_rounds", lambda *_, **__: [0])
            operate.rollback(coordinator.ledger, "s", 0, study_folder=tmp_path / "studies" / "s", origin="command")
        else:
            queue_again(coordinator, "s")
        assert [row.name for row in coordinator.ledger.studies()] == ["t", "s"], "at the end of the queue"
        failures: list[str] = []
        open_folder = coordinator.compute.before

        def full_disk(operation: str, request: Any) -> None:
            open_folder(operation, request)
            if operation == "aggregate" and not failures:
                failures.append(operation)
                raise SystemTrouble("/hub/states: No space left on device.", remedy="Free some space.")

        coordinator.compute.before = full_disk
        for number in (1, 2, 3):
            await answers(coordinator, "t", number)
        await engine
        assert failures
        assert coordinator.ledger.study_state("t") is StudyState.COMPLETED
        assert coordinator.ledger.study_state("s") is StudyState.QUEUED
        coordinator.close()
    asyncio.run(scenario())


def test_a_paused_study_that_goes_back_to_an_earlier_round_keeps_its_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator, engine, _ = await one_failed_and_the_next_works(tmp_path)
        await end(engine)
        coordinator.ledger.queue_study("u", study_config())
        operate.pause(coordinator.ledger, "t", origin="command")
        operate.rollback(coordinator.ledger, "t", 0, study_folder=tmp_path / "studies" / "t", origin="command")
        found = coordinator.ledger.next_study()
        assert found is not None
        assert found.name == "t"
        coordinator.close()
    asyncio.run(scenario())


def test_a_silo_that_works_for_a_study_which_waits_drops_that_and_sends_the_same_once_it_goes_on(
        tmp_path: Path) -> None:
    """Its update was held against the model of the study that runs, which said that the folder is damaged, for ever."""
    async def scenario() -> None:
        coordinator, engine, task = await one_failed_and_the_next_works(tmp_path)
        service, content = coordinator.task_service, content_of(task)
        queue_again(coordinator, "s")
        assert service.report("alpha", task.task_id, stage="training", fraction=0.5, text="") == (
            "the study s waits for its turn")
        calls: list[Callable[[], Any]] = [
            lambda: service.payload_for("alpha", task.task_id, task.payloads[0].digest),
            lambda: service.abstain("alpha", task.task_id, "no_confident_example", {}),
            lambda: service.refuse("alpha", task.task_id, "BAD_DATA", "no")]
        for call in calls:  # not "refused": it would throw away what it has made
            with pytest.raises(TaskClosed, match=r"The study s waits for its turn\."):
                call()
        with pytest.raises(TaskClosed, match=r"The study s waits for its turn\."):
            await coordinator.begin(task, content)
        row = coordinator.ledger.task(task.task_id)
        assert row is not None
        assert row.state is TaskState.OPEN
        for number in (1, 2, 3):
            await answers(coordinator, "t", number)
        await engine
        engine = await works(coordinator, "s", 1)
        again = await coordinator.ask("alpha")
        assert not isinstance(again, Standby)
        assert (again.task_id, content_of(again)) == (task.task_id, content)
        assert (await coordinator.deliver(again, content)).state == "send"
        await end(engine)
        coordinator.close()
    asyncio.run(scenario())


def test_an_update_that_has_come_before_another_study_began_is_taken_once_its_own_goes_on(tmp_path: Path) -> None:
    """Its bytes stay: the silo need not send them twice."""
    async def scenario() -> None:
        coordinator, engine, task = await one_failed_and_the_next_works(tmp_path)
        content = content_of(task)
        queue_again(coordinator, "s")
        coordinator.runtime.study = "s"
        await coordinator.begin(task, content)
        update_id = next(iter(coordinator.ledger.awaited_updates()))
        partial, update = await coordinator.task_service.updates.upload("alpha", update_id)
        with partial:
            partial.append(content, offset=0, crc32=zlib.crc32(content))
            coordinator.runtime.study = "t"
            with pytest.raises(TaskClosed, match="waits for its turn"):
                await coordinator.task_service.updates.accept("alpha", update, partial)
        coordinator.runtime.study = "s"
        assert (await coordinator.begin(task, content)).resume_offset == len(content)
        await end(engine)
        coordinator.close()
    asyncio.run(scenario())


@pytest.mark.parametrize("paused", [False, True])
def test_after_a_restart_an_update_is_held_against_its_own_study_and_not_against_the_one_that_is_open(
        tmp_path: Path, paused: bool) -> None:
    """Before it goes on, the coordinator writes the model of a study that was stopped meanwhile. The silo has trained
    while nobody served, and sends what it has at once: it tries again until its study is open."""
    async def scenario() -> None:
        first, engine, _ = await one_failed_and_the_next_works(tmp_path)
        task = await first.ask("alpha")
        assert isinstance(task, TaskSpec)
        queue_again(first, "s")
        operate.stop(first.ledger, "s", origin="command")
        if paused:
            operate.pause(first.ledger, "t", origin="command")
        await end(engine)
        first.close()
        second = life(tmp_path)
        writing = HeldUp(second, Export)
        engine = asyncio.ensure_future(second.engine.run_next())
        await until(second, lambda: writing.waiting == 1)
        assert second.compute.opened == "s"
        with pytest.raises(StudyNotOpen):
            await second.deliver(task, content_of(task))
        writing.may.set()
        if paused:
            await until(second, lambda: second.runtime.reason is StandbyReason.PAUSED)
            with pytest.raises(StudyNotOpen):
                await second.deliver(task, content_of(task))
            operate.resume(second.ledger, "t", origin="command")
        await until(second, lambda: second.compute.opened == "t")
        assert (await second.begin(task, content_of(task))).resume_offset == len(content_of(task)), "its bytes stay"
        await second.deliver(task, content_of(task))
        assert second.ledger.task_states("t", 1, 0)["alpha"] is TaskState.UPDATED
        assert not second.ledger.query("SELECT 1 FROM event WHERE kind = 'task_refused'")
        await end(engine)
        second.close()
    asyncio.run(scenario())


INSTANTS = [(operation, when) for operation in ("open_study", "prepare") for when in ("before", "after")]


@pytest.mark.slow
@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize(("operation", "when"), [*INSTANTS, ("open_round", "after")])
def test_a_study_that_was_stopped_before_its_first_commit_begins_anew_once_it_is_queued_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, when: str, noticed: bool) -> None:
    """Its round 0 was cancelled, and every further try ended in an error that nobody foresaw."""
    coordinator = start(tmp_path)
    done: list[str] = []

    def stop(name: str = operation, request: object = None) -> None:
        if name != operation or done:
            return
        done.append(name)
        operate.stop(coordinator.ledger, "s", origin="command")
        if not noticed:  # both commands before the engine has looked
            coordinator.ledger.requeue_study("s", many_rounds)

    many_rounds = {**study_config(), "study": {**study_config()["study"], "rounds": 4}}
    if (operation, when) in INSTANTS:
        setattr(coordinator.compute, when, stop)
    else:
        original = getattr(coordinator.ledger, operation)

        def around(*args: Any, **options: Any) -> Any:
            found = original(*args, **options)
            stop()
            return found

        monkeypatch.setattr(coordinator.ledger, operation, around)

    async def scenario() -> None:
        await run(coordinator)
        assert done
        if noticed:
            assert coordinator.ledger.study_state("s") is StudyState.STOPPED
            coordinator.ledger.requeue_study("s", many_rounds)
        assert compare_tables(coordinator.ledger, ChainWalk()) == []
        if not noticed or operation != "prepare":  # a round 0 that is as good as done is committed
            assert not coordinator.ledger.committed_digest("s")
            assert coordinator.ledger.study("s").frozen is None, "it was of other settings"
        await run(coordinator)
        row = coordinator.ledger.study("s")
        assert (row.state, row.reason) == (StudyState.COMPLETED, "")
        assert [each.state for each in coordinator.ledger.rounds("s")] == [RoundState.COMPLETED] * 5
        assert compare_tables(coordinator.ledger, ChainWalk()) == []
    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["phases", "tasks", "check_update", "aggregate", "evaluate"])
def test_a_study_that_was_stopped_and_queued_again_before_the_engine_has_looked_gives_up_the_round(
        tmp_path: Path, operation: str, when: str) -> None:
    """The round went on with cancelled tasks, so it failed, or was made of the few updates that had come."""
    coordinator = start(tmp_path)
    seen: list[str] = []

    def stop_and_queue(name: str, request: object) -> None:
        if name != operation:
            return
        seen.append(name)
        if len(seen) == 2 + (operation == "check_update"):  # in round 2
            operate.stop(coordinator.ledger, "s", origin="command")
            queue_again(coordinator, "s")

    setattr(coordinator.compute, when, stop_and_queue)

    async def scenario() -> None:
        await run(coordinator)
        assert coordinator.ledger.study_state("s") is StudyState.QUEUED
        assert compare_tables(coordinator.ledger, ChainWalk()) == []
        await run(coordinator)
        row = coordinator.ledger.study("s")
        assert (row.state, row.reason) == (StudyState.COMPLETED, "")
        assert [each.state for each in coordinator.ledger.rounds("s")] == [RoundState.COMPLETED] * 4
        assert [[each.number for each in found.rounds] for found in rollbacks_of(coordinator.ledger, "s")] == (
            [] if operation == "phases" else [[2]])  # with it, the round was not open yet
        assert compare_tables(coordinator.ledger, ChainWalk()) == []
        assert coordinator.spool.digests() == set()
    asyncio.run(scenario())


def test_giving_up_the_round_of_a_study_that_failed_frees_the_spool(tmp_path: Path) -> None:
    """It was cancelled by the command, and nobody looked at its updates again."""
    async def scenario() -> None:
        coordinator, engine, task = await one_failed_and_the_next_works(tmp_path)
        await end(engine)
        coordinator.ledger.set_study_state("t", StudyState.FAILED, reason="of the test")
        queue_again(coordinator, "s")
        engine = await works(coordinator, "s", 1)
        await coordinator.deliver(task, content_of(task))
        await end(engine)
        coordinator.ledger.set_study_state("s", StudyState.FAILED, reason="of the test")
        queue_again(coordinator, "s")
        assert len(coordinator.spool.digests()) == 1
        operate.stop(coordinator.ledger, "s", origin="command")
        assert await coordinator.engine.run_next() is None, "no other study"
        assert coordinator.spool.digests() == set()
        looked: list[str] = []
        coordinator.spool.digests = lambda: looked.append("spool") or set()  # type: ignore[method-assign, func-returns-value]
        await coordinator.engine.run_next()
        assert not looked, "once is enough"
        coordinator.close()
    asyncio.run(scenario())


@pytest.mark.slow
def test_the_round_in_which_a_study_was_stopped_is_done_again(tmp_path: Path) -> None:
    """It counted as one of its rounds: a study that was stopped in its last one was complete without it at once."""
    for name in ("undisturbed", "stopped"):
        (tmp_path / name).mkdir()
    undisturbed = start(tmp_path / "undisturbed")
    asyncio.run(run(undisturbed))
    coordinator = start(tmp_path / "stopped")
    ids: list[str] = []
    tasks_of: list[str] = []

    def stop_in_the_last(name: str, request: Any) -> None:
        if name == "tasks" and request.round == 3:
            tasks_of.append(name)
        if name == "check_update" and len(tasks_of) == 1 and not ids:
            ids.extend(each.task_id for each in coordinator.ledger.tasks("s", 3, 0))
            operate.stop(coordinator.ledger, "s", origin="command")

    coordinator.compute.before = stop_in_the_last

    async def scenario() -> None:
        await run(coordinator)
        assert coordinator.ledger.study_state("s") is StudyState.STOPPED
        assert [each.state for each in coordinator.ledger.rounds("s")][3] is RoundState.CANCELLED
        queue_again(coordinator, "s")
        await run(coordinator)

    asyncio.run(scenario())
    assert coordinator.ledger.study_state("s") is StudyState.COMPLETED
    assert [each.state_digest for each in coordinator.ledger.rounds("s")] == [
        each.state_digest for each in undisturbed.ledger.rounds("s")]
    assert not set(ids) & {each.task_id for each in coordinator.ledger.tasks("s", 3, 0)}, "never the same task twice"
    (found,) = rollbacks_of(coordinator.ledger, "s")
    assert (found.to_round, found.origin) == (2, "coordinator")
    assert found.text.endswith(
        "round 3 no longer counts; it was cancelled when the study was stopped, and is done again")
    assert [(each.number, each.state) for each in found.rounds] == [(3, RoundState.CANCELLED)]
    assert compare_tables(coordinator.ledger, ChainWalk()) == []
    assert coordinator.spool.digests() == set()


def test_what_a_phase_of_the_cancelled_round_has_put_aside_is_not_of_the_round_that_is_done_again(
        tmp_path: Path) -> None:
    coordinator = start(tmp_path, phases=(Phase("train"), Phase("statistics")))
    seen: list[str] = []

    def stop_in_the_second_phase(name: str, request: Any) -> None:
        if name == "tasks" and request.round == 1 and request.phase.name == "statistics" and not seen:
            seen.extend(str(coordinator.ledger.silo_state("s", silo, round=1)[1]) for silo in SILOS)
            operate.stop(coordinator.ledger, "s", origin="command")

    coordinator.compute.before = stop_in_the_second_phase

    async def scenario() -> None:
        await run(coordinator)
        queue_again(coordinator, "s")
        engine = await works(coordinator, "s", 1)
        assert "None" not in seen, "the first phase has put something aside"
        assert {coordinator.ledger.silo_state("s", silo, round=1) for silo in SILOS} == {(0, None)}
        await end(engine)

    asyncio.run(scenario())


def test_behind_masks_the_round_in_which_a_study_was_stopped_stays_one_of_its_rounds(tmp_path: Path) -> None:
    """A silo masks an update of a round once, so it would refuse."""
    coordinator = start(tmp_path, config=behind_masks())
    with coordinator.ledger.transaction():
        coordinator.ledger.move_study("s", StudyState.QUEUED, StudyState.PREPARING)
        coordinator.ledger.open_round("s", 0, start_digest="", sample=(), phases=())
        coordinator.ledger.set_round_state("s", 0, RoundState.EVALUATING, state_digest="0" * 64)
        coordinator.ledger.commit_round("s", 0, metrics={})
        row = coordinator.ledger.open_round("s", 1, start_digest="0" * 64, sample=SILOS, phases=())
        open_sum(coordinator.ledger, study="s", round=1, phase="train", nonce=bytes(16), roster_number=0, threshold=2)
        coordinator.ledger.cancel_round(row)
    assert take_cancelled_back(coordinator.ledger, "s") is None
    assert coordinator.ledger.round("s", 1).state is RoundState.CANCELLED
    with coordinator.ledger.transaction() as db:
        db.execute("DELETE FROM secure_sum")
    assert take_cancelled_back(coordinator.ledger, "s") == 1
    assert take_cancelled_back(coordinator.ledger, "s") is None


def test_the_open_round_of_a_study_that_failed_goes_on_once_it_is_queued_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator, engine, task = await one_failed_and_the_next_works(tmp_path)
        await end(engine)
        queue_again(coordinator, "s")
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        assert coordinator.ledger.task_states("s", 1, 0)[task.silo] is TaskState.OPEN
        coordinator.close()
    asyncio.run(scenario())


@pytest.mark.parametrize(("early", "fails_at", "text"), [
    (False, "export", "study s is complete"), (True, "export", "study s is complete"),
    (False, "phases", "0 of 2 silos have joined")])
def test_a_study_without_a_round_left_waits_for_no_silo_to_write_its_model(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool, fails_at: str, text: str) -> None:
    """It failed when all that was left was to write its model; by the time that it was queued again all had left."""
    if early:
        monkeypatch.setattr(engine_module, "stopped_early", lambda ledger, study, *_: (
            "stopped after round 1 of 3" if ledger.last_round(study).number >= 1 else ""))
    coordinator = start(tmp_path)
    ledger, model = coordinator.ledger, tmp_path / "studies" / "s" / "model.safetensors"

    def fails(operation: str, request: Any) -> None:
        if operation == fails_at:
            raise BadPayload("a library that is away")

    coordinator.compute.before = fails
    asyncio.run(run(coordinator))
    assert (ledger.study_state("s"), model.exists()) == (StudyState.FAILED, False)
    coordinator.compute.before = lambda operation, request: None
    for silo in SILOS:
        coordinator.roster.leave(silo)
    ledger.requeue_study("s", ledger.study("s").config)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(coordinator, lambda: coordinator.runtime.text == text)
        await end(engine)
    asyncio.run(scenario())
    over = fails_at == "export"
    assert (ledger.study_state("s"), model.exists()) == (
        StudyState.COMPLETED if over else StudyState.WAITING, over)
    last = ledger.last_round("s")
    assert last is not None
    assert last.number == (1 if early else 3 if over else 0)
