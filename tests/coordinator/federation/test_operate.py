"""Pause, resume, stop and extend: what the ledger, the engine and silos do then, in every state of a study."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadPayload, UnknownName, UsageError
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.cleanup import states_to_keep, updates_to_keep
from semisilo.coordinator.ledger.events import has_gone_back, note_model_written
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import handed_over, round_heads
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.tasks.task_service import Standby
from tests.coordinator.federation_in_memory import Coordinator, Killed, content_of
from tests.coordinator.ledger_fixture import fill_study
from tests.coordinator.rounds.test_engine import SILOS, final_digest, run, start


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    coordinator = start(tmp_path_factory.mktemp("undisturbed"))
    asyncio.run(run(coordinator))
    return final_digest(coordinator)


class Operator:
    """Acts through a connection of its own, as a command does; `notices` is what `serve` does half a second later."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.ledger = Ledger(coordinator.folder / "ledger.sqlite")

    def notices(self) -> None:
        self.coordinator.runtime.notify()
        self.coordinator.runtime.call()

    def pause(self) -> None:
        operate.pause(self.ledger, origin="command")
        self.notices()

    def resume(self, **options: Any) -> None:
        operate.resume(self.ledger, origin="command", **options)
        self.notices()

    def stop(self) -> None:
        operate.stop(self.ledger, origin="command")
        self.notices()


async def until(condition: Callable[[], bool], *, seconds: float = 300) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def events(ledger: Ledger, kind: str) -> list[dict[str, Any]]:
    rows = ledger.query("SELECT detail_json FROM event WHERE kind = ? ORDER BY number", kind)
    return [json.loads(row["detail_json"]) for row in rows]


def act_when(coordinator: Coordinator, act: Callable[[], None], operation: str, *, hit: int = 1) -> None:
    """Acts while the compute process is in the middle of an operation."""
    hits = 0

    def before(name: str, arguments: dict[str, Any]) -> None:
        nonlocal hits
        if name == operation:
            hits += 1
            if hits == hit:
                act()
    coordinator.compute.before = before


STEPS = ("open_study", "prepare", "phases", "tasks", "check_update", "aggregate", "evaluate", "export", "baseline")


@pytest.mark.slow
@pytest.mark.parametrize("operation", STEPS)
def test_a_study_paused_during_any_step_waits_and_ends_with_the_same_bits(tmp_path: Path, undisturbed: str,
                                                                          operation: str) -> None:
    coordinator = start(tmp_path)
    operator = Operator(coordinator)
    act_when(coordinator, operator.pause, operation)

    async def scenario() -> None:
        study = asyncio.ensure_future(run(coordinator))
        await until(lambda: coordinator.runtime.reason == "paused")
        calls = len(coordinator.compute.calls)
        await asyncio.sleep(0.1)
        assert coordinator.ledger.study_state("s") is StudyState.PAUSED
        # Updates of silos are still checked; the engine itself does nothing.
        assert set(coordinator.compute.calls[calls:]) <= {"check_update"}
        operator.resume()
        await study
    asyncio.run(scenario())
    assert final_digest(coordinator) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("operation", STEPS)
def test_a_study_stopped_during_any_step_ends_with_the_model_of_its_last_committed_round(
        tmp_path: Path, operation: str) -> None:
    coordinator = start(tmp_path)
    operator = Operator(coordinator)
    act_when(coordinator, operator.stop, operation, hit=2 if operation in ("phases", "aggregate", "evaluate") else 1)
    asyncio.run(run(coordinator))
    ledger = coordinator.ledger
    assert ledger.study_state("s") is StudyState.STOPPED
    assert {row.state for row in ledger.rounds("s")} <= {RoundState.COMPLETED, RoundState.CANCELLED}
    assert not ledger.query("SELECT 1 FROM task WHERE state = ?", TaskState.OPEN)
    digest = ledger.committed_digest("s")
    model = tmp_path / "studies" / "s" / "model.safetensors"
    assert (model.read_text() == coordinator.compute._read(digest)) if digest else not model.exists()
    assert bool(digest) == (operation != "open_study")
    assert coordinator.spool.digests() == set()
    assert ledger.check_events() > 0


def test_silos_hear_of_the_pause_and_their_answers_are_taken_meanwhile(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    operator = Operator(coordinator)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        task = await coordinator.ask("alpha")
        assert isinstance(task, TaskSpec)
        operator.pause()
        await until(lambda: coordinator.runtime.reason == "paused")
        for silo in SILOS:  # beta has an open task that it has not fetched
            answer = await coordinator.ask(silo, timeout_seconds=0)
            assert isinstance(answer, Standby)
            assert answer.reason == "paused"
        assert coordinator.task_service.report("alpha", task.task_id, stage="training", fraction=0.5, text="") == ""
        assert (await coordinator.deliver(task, content_of(task))).state == "send"
        assert coordinator.ledger.task_states("s", 1, 0)["alpha"] is TaskState.UPDATED
        operator.resume()
        other = await coordinator.ask("beta")
        assert isinstance(other, TaskSpec)
        engine.cancel()
    asyncio.run(scenario())


def test_a_pause_wakes_no_silo_again_and_again(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    operator = Operator(coordinator)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        await coordinator.ask("alpha")
        operator.pause()
        await until(lambda: coordinator.runtime.reason == "paused")
        called = coordinator.runtime._called
        for _ in range(3):
            coordinator.runtime.notify()  # as the second does after which the engine looks again by itself
            await asyncio.sleep(0.05)
            assert coordinator.runtime._called is called
        engine.cancel()
    asyncio.run(scenario())


def test_a_study_that_waits_for_silos_can_be_paused_and_stopped(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path)
    coordinator.enroll("alpha")
    from tests.coordinator.federation_in_memory import study_config
    coordinator.ledger.queue_study("s", study_config())
    operator = Operator(coordinator)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(lambda: coordinator.runtime.reason == "waiting_for_silos")
        operator.pause()
        await until(lambda: coordinator.runtime.reason == "paused")
        coordinator.enroll("beta")
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        await asyncio.sleep(0.05)
        last = coordinator.ledger.last_round("s")
        assert last is not None
        assert last.number == 0
        operator.resume()
        await until(lambda: coordinator.ledger.study_state("s") is StudyState.RUNNING)
        operator.stop()
        row = await engine
        assert row is not None
        assert row.state is StudyState.STOPPED
    asyncio.run(scenario())


def test_the_deadline_stands_still_while_a_study_is_paused(tmp_path: Path) -> None:
    """Opened at 1000 with 5 s: paused at 1002 for an hour, the phase has 3 s left afterwards."""
    now = [1000.0]
    coordinator = start(tmp_path, clock=lambda: now[0])
    operator = Operator(coordinator)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        await coordinator.ask("alpha")
        before = coordinator.ledger.phase("s", 1, 0)
        assert (before.deadline_unix, before.limit_unix) == (1005.0, 1020.0)
        operator.pause()
        await until(lambda: coordinator.runtime.reason == "paused")
        since = operator.ledger.paused_since("s")
        assert since is not None
        now[0] += 3600
        coordinator.runtime.notify()
        await asyncio.sleep(0.05)
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        operator.resume(clock=lambda: since[0] + 3600)
        after = coordinator.ledger.phase("s", 1, 0)
        assert (after.deadline_unix, after.limit_unix) == pytest.approx((4605.0, 4620.0))
        await asyncio.sleep(0.05)
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        engine.cancel()
    asyncio.run(scenario())


def test_killed_while_paused_a_study_is_still_paused_and_ends_with_the_same_bits(tmp_path: Path,
                                                                               undisturbed: str) -> None:
    first = start(tmp_path)
    operator = Operator(first)

    async def until_paused() -> None:
        act_when(first, operator.pause, "check_update", hit=3)  # in round 2
        tasks = [asyncio.ensure_future(first.silo(name)) for name in SILOS]
        engine = asyncio.ensure_future(first.engine.run_next())
        await until(lambda: first.runtime.reason == "paused")
        for task in (engine, *tasks):  # nothing is tidied: the process is gone
            task.cancel()
        await asyncio.gather(engine, *tasks, return_exceptions=True)
    asyncio.run(until_paused())
    first.close()

    second = Coordinator(tmp_path)
    operator = Operator(second)

    async def resumed() -> None:
        study = asyncio.ensure_future(run(second))
        await until(lambda: second.runtime.reason == "paused")
        await asyncio.sleep(0.1)
        assert second.compute.calls == []
        operator.resume()
        await study
    asyncio.run(resumed())
    assert final_digest(second) == undisturbed


def test_a_study_stopped_while_nobody_served_is_tidied_up_at_the_next_start(tmp_path: Path) -> None:
    first = start(tmp_path)

    def die(name: str, arguments: dict[str, Any]) -> None:
        if name == "aggregate" and first.compute.calls.count("aggregate") == 2:
            raise Killed
    first.compute.before = die
    from tests.coordinator.rounds.test_engine import until_killed
    asyncio.run(until_killed(first))
    operate.stop(first.ledger, "s", origin="command")
    digest = first.ledger.committed_digest("s")
    first.close()
    second = Coordinator(tmp_path)
    assert asyncio.run(second.engine.run_next()) is None
    assert second.ledger.round("s", 2).state is RoundState.CANCELLED
    assert (tmp_path / "studies" / "s" / "model.safetensors").read_text() == second.compute._read(digest)
    calls = list(second.compute.calls)
    assert asyncio.run(second.engine.run_next()) is None
    assert second.compute.calls == calls, "the model is written once"


@pytest.mark.slow
def test_a_stopped_study_that_is_queued_again_goes_on_from_its_last_committed_round(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    operator = Operator(coordinator)
    act_when(coordinator, operator.stop, "aggregate", hit=2)
    asyncio.run(run(coordinator))
    coordinator.ledger.requeue_study("s", coordinator.ledger.study("s").config)
    asyncio.run(run(coordinator))
    assert coordinator.ledger.study_state("s") is StudyState.COMPLETED
    assert [row.state for row in coordinator.ledger.rounds("s")] == [RoundState.COMPLETED] * 4


def test_a_silo_at_work_is_told_to_give_up_when_the_study_is_stopped(tmp_path: Path) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        task = await coordinator.ask("alpha")
        assert isinstance(task, TaskSpec)
        Operator(coordinator).stop()
        assert "stopped" in coordinator.task_service.report("alpha", task.task_id, stage="training", fraction=0.5,
                                                            text="")
        assert (await coordinator.begin(task, content_of(task))).state == "refused"
        await engine
    asyncio.run(scenario())


def test_extending_moves_the_deadline_on_and_the_limit_where_needed(tmp_path: Path) -> None:
    now = [1000.0]
    coordinator = start(tmp_path, clock=lambda: now[0])
    ledger = coordinator.ledger

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        await coordinator.ask("alpha")

        def extend(seconds: float) -> tuple[float, float]:
            phase = operate.extend(ledger, seconds, origin="page", clock=lambda: now[0])
            return phase.deadline_unix, phase.limit_unix
        assert extend(4) == (1009.0, 1020.0)
        assert extend(20) == (1029.0, 1029.0)
        now[0] = 1050.0  # long past
        assert extend(10) == (1060.0, 1060.0)
        coordinator.runtime.notify()
        await asyncio.sleep(0.05)
        assert ledger.round("s", 1).state is RoundState.COLLECTING
        operate.pause(ledger, origin="page")
        since = ledger.paused_since("s")
        assert since is not None
        with pytest.raises(UsageError, match="30 days"):
            extend(31 * 86400)
        with pytest.raises(UsageError):
            extend(float("nan"))
        engine.cancel()
    asyncio.run(scenario())
    assert [event["origin"] for event in events(ledger, "deadline_moved")] == ["page"] * 3


def test_what_cannot_be_done_is_refused_with_a_remedy(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    ledger = coordinator.ledger
    with pytest.raises(UsageError, match="No study is running"):
        operate.pause(ledger, origin="command")
    with pytest.raises(UnknownName):
        operate.stop(ledger, "none", origin="command")
    with pytest.raises(UsageError, match="has not begun"):
        operate.pause(ledger, "s", origin="command")
    with pytest.raises(UsageError, match="is not paused"):
        operate.resume(ledger, "s", origin="command")
    with pytest.raises(UsageError, match="no deadline"):
        operate.extend(ledger, 60, "s", origin="command")
    asyncio.run(run(coordinator))
    for act in (operate.pause, operate.stop):
        with pytest.raises(UsageError, match="is completed"):
            act(ledger, "s", origin="command")


def test_a_study_in_the_queue_can_be_stopped_before_it_begins(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    operate.stop(coordinator.ledger, "s", origin="command")
    assert asyncio.run(coordinator.engine.run_next()) is None
    assert coordinator.compute.calls == []


def test_the_open_round_of_a_study_that_is_stopped_in_the_queue_is_over_at_once(tmp_path: Path) -> None:
    """The engine is at another study, maybe for days, and the updates of the round would take room until it looks."""
    coordinator = start(tmp_path)
    failures = ["once"]

    def fail(name: str, request: Any) -> None:
        if name == "aggregate" and failures:
            failures.pop()
            raise BadPayload("a disk that lied")

    coordinator.compute.before = fail
    asyncio.run(run(coordinator))
    ledger = coordinator.ledger
    assert ledger.study_state("s") is StudyState.FAILED
    assert updates_to_keep(ledger) == coordinator.spool.digests() != set()
    ledger.requeue_study("s", ledger.study("s").config)
    operate.stop(ledger, "s", origin="command")
    last = ledger.last_round("s")
    assert last is not None
    assert (last.state, updates_to_keep(ledger)) == (RoundState.CANCELLED, set())


def test_every_action_is_in_the_audit_trail_with_its_origin(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    operator = Operator(coordinator)
    act_when(coordinator, operator.pause, "phases")

    async def scenario() -> None:
        study = asyncio.ensure_future(run(coordinator))
        await until(lambda: coordinator.runtime.reason == "paused")
        operate.resume(operator.ledger, origin="page")
        operator.notices()
        await study
    asyncio.run(scenario())
    operate.revoke(coordinator.ledger, "alpha", origin="page")
    assert [event["origin"] for event in events(coordinator.ledger, "study_paused")] == ["command"]
    assert [event.get("origin") for event in events(coordinator.ledger, "study_running")] == [None, "page"]
    assert [event["origin"] for event in events(coordinator.ledger, "silo_revoked")] == ["page"]
    assert coordinator.ledger.check_events() > 0


def test_a_study_is_moved_on_only_from_where_it_is_thought_to_be(tmp_path: Path) -> None:
    """Between a look at the state and the step that follows from it, a command may come."""
    coordinator = start(tmp_path)
    ledger = coordinator.ledger
    assert ledger.move_study("s", StudyState.QUEUED, StudyState.PREPARING)
    operate.pause(ledger, "s", origin="command")
    assert not ledger.move_study("s", StudyState.PREPARING, StudyState.WAITING)
    assert ledger.study_state("s") is StudyState.PAUSED
    operate.stop(ledger, "s", origin="command")
    assert not ledger.move_study("s", StudyState.RUNNING, StudyState.COMPLETED)
    assert ledger.study_state("s") is StudyState.STOPPED


# Going back -----------------------------------------------------------------------------------------------------------


def scored(folder: Path, *, done: int, scores: dict[int, float]) -> tuple[Ledger, Path, list[Path]]:
    """A paused study with these selection scores (0.6 of other rounds), and on the disk what a clean-up after every
    commit has left: ledger, the study's folder, the state files of its rounds."""
    ledger = fill_study(folder / "federation", rounds=20, done=done, complete=False).ledger
    for number in range(done + 1):
        ledger.query("UPDATE round SET metrics_json = ? WHERE number = ?", json.dumps(
            {"selection_score": scores.get(number, 0.6), "selection_error": 0.05}), number)
    heads, kept = round_heads(ledger, "first"), set[str]()
    for last in range(1, len(heads) + 1):
        kept = (kept | {heads[last - 1].state_digest}) & states_to_keep(heads[:last], every=50)
    study = folder / "federation" / "studies" / "first"
    files = [study / "states" / f"{each.state_digest}{STATE_ENDING}" for each in heads]
    (study / "states").mkdir(parents=True, exist_ok=True)
    for file in files:
        if file.name.removesuffix(STATE_ENDING) in kept:
            file.write_bytes(b"state")
    ledger.set_study_state("first", StudyState.PAUSED)
    return ledger, study, files


@pytest.mark.parametrize("to_round", [10, 11, 12])
def test_after_going_back_the_model_that_is_handed_over_is_there(tmp_path: Path, to_round: int) -> None:
    """Round 13 was the chosen one; without it that is round 5 again."""
    ledger, study, files = scored(tmp_path, done=13, scores={5: 0.8, 13: 0.9})
    operate.rollback(ledger, "first", to_round, study_folder=study, origin="command")
    chosen = handed_over(round_heads(ledger, "first"))
    assert chosen is not None
    assert chosen.number == 5
    assert files[5].exists()


def test_going_back_is_done_where_the_model_handed_over_before_cannot_be_removed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The command said that it had failed, and the study was queued all the same."""
    ledger, study, _ = scored(tmp_path, done=13, scores={5: 0.8})
    model = study / "model.safetensors"
    model.write_bytes(b"of round 13")

    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", read_only)
        assert operate.rollback(ledger, "first", 12, study_folder=study, origin="command").to_round == 12
    assert f"{model}: of an earlier end of the study, cannot be removed: Read-only file system" in caplog.text
    assert (ledger.study_state("first"), has_gone_back(ledger, "first")) == (StudyState.QUEUED, True)
    note_model_written(ledger, "first", "ab" * 32)
    assert not has_gone_back(ledger, "first")


def test_a_round_is_offered_only_where_its_model_to_hand_over_is_there(tmp_path: Path) -> None:
    ledger, study, files = scored(tmp_path, done=13, scores={5: 0.8, 13: 0.9})
    row = ledger.study("first")
    assert operate.offered_returns(ledger, row, study_folder=study) == [0, 5, 10, 11, 12]
    source = PageSource(federation="f", address="", ledger=tmp_path, read_only=False, folder=study.parents[1])
    assert PageReader(source, ledger).study("first").returns == (0, 5, 10, 11, 12), "the page offers these"
    files[5].unlink()  # as an earlier version left it
    assert operate.offered_returns(ledger, row, study_folder=study) == [0]
    with pytest.raises(UsageError, match="its files are gone"):
        operate.rollback(ledger, "first", 12, study_folder=study, origin="command")


def test_no_return_is_offered_while_a_study_runs(tmp_path: Path) -> None:
    ledger, study, _ = scored(tmp_path, done=13, scores={})
    ledger.set_study_state("first", StudyState.RUNNING)
    assert operate.offered_returns(ledger, ledger.study("first"), study_folder=study) == []
