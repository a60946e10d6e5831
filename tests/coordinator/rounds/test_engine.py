"""The round engine over the real ledger and spool, with arithmetic instead of training."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadPayload, TaskClosed
from semisilo.common.methods.contract import Phase, TaskSpec
from semisilo.common.secure_aggregation.mask_form import weight_of
from semisilo.coordinator.compute.messages import CheckUpdate
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, notices_of
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.secure_sums.sums import sum_row
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.rounds import engine
from semisilo.coordinator.rounds.runtime import StandbyReason
from semisilo.coordinator.tasks.task_service import Hello
from tests.coordinator.federation_in_memory import Coordinator, Killed, NoAccounts, content_of, study_config
from tests.processes import PATIENCE_SECONDS

SILOS = ("alpha", "beta")


def start(folder: Path, *, config: dict[str, Any] | None = None, **options: Any) -> Coordinator:
    coordinator = Coordinator(folder, **options)
    coordinator.enroll(*SILOS)
    coordinator.ledger.queue_study("s", config or study_config())
    return coordinator


def bookings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """To what (study, round, phase) bytes are booked, as it happens."""
    booked: list[tuple[str, int, str]] = []

    async def settle(self: NoAccounts, *, study: str, round: int, phase: str) -> None:
        booked.append((study, round, phase))
    monkeypatch.setattr(NoAccounts, "settle", settle)
    return booked


async def run(coordinator: Coordinator, silos: tuple[str, ...] = SILOS) -> None:
    """Runs the study with well-behaved silos until it ends or is killed."""
    tasks = [asyncio.ensure_future(coordinator.silo(name)) for name in silos]
    try:
        await asyncio.wait_for(coordinator.engine.run_next(), 300)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_killed(coordinator: Coordinator) -> None:
    """Runs until Killed comes up in the engine or in a silo's RPC: either way the process is gone."""
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(coordinator.silo(name)) for name in SILOS]
    tasks.append(asyncio.ensure_future(coordinator.engine.run_next()))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION, timeout=300)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(result, Killed) for result in results), results


def final_digest(coordinator: Coordinator) -> str:
    assert coordinator.ledger.study("s").state is StudyState.COMPLETED
    return coordinator.ledger.committed_digest("s")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    coordinator = start(tmp_path_factory.mktemp("undisturbed"))
    asyncio.run(run(coordinator))
    return final_digest(coordinator)


def test_a_study_runs_its_rounds_and_commits_every_one(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    asyncio.run(run(coordinator))
    rounds = coordinator.ledger.rounds("s")
    assert [row.number for row in rounds] == [0, 1, 2, 3]
    assert {row.state for row in rounds} == {RoundState.COMPLETED}
    assert coordinator.ledger.silo_state("s", "alpha")[0] == 3
    assert coordinator.ledger.check_events() > 10
    assert (tmp_path / "studies" / "s" / "model.safetensors").exists()


def test_calls_of_silos_that_bring_no_answer_have_nobody_go_through_all_tasks_or_silos(tmp_path: Path) -> None:
    """With a thousand silos that wait or work, the engine did at every one of their calls."""
    async def scenario() -> None:
        coordinator = start(tmp_path)
        running = asyncio.ensure_future(coordinator.engine.run_next())
        tasks = await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=PATIENCE_SECONDS) for silo in SILOS))
        asked: list[str] = []

        async def wake(times: int, *, after: Callable[[], Awaitable[Any]] | None = None) -> list[str]:
            del asked[:]
            coordinator.ledger._db.set_trace_callback(asked.append)
            if after is not None:
                await after()
            for _ in range(times):
                coordinator.runtime.notify()
                await asyncio.sleep(0.001)
            coordinator.ledger._db.set_trace_callback(None)
            assert sum("FROM task" in sql for sql in asked) >= times // 2, "it looks who has answered"
            return [sql for sql in asked if "count(*) FROM task" in sql or (
                "FROM silo" in sql and "WHERE name = " not in sql)]

        await wake(2)
        assert await wake(50) == []
        assert isinstance(tasks[0], TaskSpec)
        deliver = partial(coordinator.deliver, tasks[0], content_of(tasks[0]))
        counted = [sql for sql in await wake(50, after=deliver) if "count(*)" in sql]
        assert len(counted) == 1, "an answer is counted once"
        assert """silo IN (SELECT value FROM json_each('["alpha"]'))""" in counted[0], "no other is looked at for it"

        async def leave_out() -> None:
            coordinator.roster.set_aside("alpha", reason="of the test")

        counted = [sql for sql in await wake(50, after=leave_out) if "count(*) FROM task" in sql]
        assert len(counted) == 1, "nobody new has answered, and one answer fewer counts"
        LedgerRoster(Ledger(tmp_path / "ledger.sqlite")).set_aside("beta", reason="as in another process")
        assert await wake(4)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize(("num_labelled", "trained"), [(4, 1), (0, 0)])
def test_labels_alone_are_trained_where_the_coordinator_has_labels(
        tmp_path: Path, num_labelled: int, trained: int) -> None:
    coordinator = start(tmp_path)
    coordinator.compute.num_labelled = num_labelled
    asyncio.run(run(coordinator))
    assert coordinator.compute.calls.count("baseline") == trained
    assert (coordinator.ledger.study("s").baseline is not None) == bool(trained)
    assert coordinator.ledger.study("s").state is StudyState.COMPLETED


def test_nothing_of_a_committed_round_stays_in_spool_and_payloads(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    asyncio.run(run(coordinator))
    assert coordinator.spool.digests() == set()
    assert coordinator.payloads.digests() == set()


@pytest.mark.parametrize("round", [1, 3])  # the last: no other round removes what it has left
def test_what_a_coordinator_killed_right_after_a_commit_has_left_is_removed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    first = start(tmp_path)

    async def killed(name: str, *, keep_every: int) -> None:
        last = first.ledger.last_round(name)
        if last is not None and last.number == round:
            raise Killed

    monkeypatch.setattr(first.engine._cleanup, "remove_unneeded", killed)
    asyncio.run(until_killed(first))
    first.close()
    second = Coordinator(tmp_path)
    assert second.spool.digests()
    asyncio.run(run(second))
    assert final_digest(second)
    assert second.spool.digests() == set()


def test_the_order_of_arrival_changes_nothing(tmp_path: Path, undisturbed: str) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        for _ in range(3):
            tasks = [await coordinator.ask(silo) for silo in SILOS]
            for task in reversed(tasks):
                assert isinstance(task, TaskSpec)
                await coordinator.deliver(task, content_of(task))
        await engine
    asyncio.run(scenario())
    assert final_digest(coordinator) == undisturbed


OPERATIONS = ("open_study", "prepare", "phases", "tasks", "check_update", "aggregate", "evaluate", "export", "baseline")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_coordinator_killed_around_any_step_ends_with_the_same_bits(tmp_path: Path, undisturbed: str, operation: str,
                                                                      when: str) -> None:
    first = start(tmp_path)
    hits = 0

    def kill(name: str, arguments: dict[str, Any]) -> None:
        nonlocal hits
        if name == operation:
            hits += 1
            if hits == min(2, 1 if operation in ("open_study", "baseline", "prepare", "export") else 2):
                raise Killed

    setattr(first.compute, when, kill)

    asyncio.run(until_killed(first))
    first.close()
    second = Coordinator(tmp_path)
    asyncio.run(run(second))
    assert final_digest(second) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("method", ["open_round", "open_phase", "close_phase", "commit_round", "accept_update",
                                    "declare_update", "folded"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_coordinator_killed_around_any_transaction_ends_with_the_same_bits(
        tmp_path: Path, undisturbed: str, method: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(tmp_path)
    original: Callable[..., Any] = getattr(first.ledger, method)
    hits = 0

    def killed(*args: Any, **kwargs: Any) -> Any:
        nonlocal hits
        hits += 1
        if hits < 2:
            return original(*args, **kwargs)
        if when == "after" and hits == 2:
            original(*args, **kwargs)
        raise Killed

    monkeypatch.setattr(first.ledger, method, killed)

    asyncio.run(until_killed(first))
    first.close()
    second = Coordinator(tmp_path)
    asyncio.run(run(second))
    assert final_digest(second) == undisturbed


def test_a_resumed_round_keeps_its_sample(tmp_path: Path) -> None:
    config = study_config(silos_per_round=1)
    first = start(tmp_path, config=config)

    async def until_open() -> tuple[str, ...]:
        engine = asyncio.ensure_future(first.engine.run_next())
        for silo in SILOS:
            await first.ask(silo, timeout_seconds=0)
        while (row := first.ledger.last_round("s")) is None or row.number < 1:
            await asyncio.sleep(0.01)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        return row.sample

    sample = asyncio.run(until_open())
    first.close()
    second = Coordinator(tmp_path)
    second.enroll("gamma")
    asyncio.run(run(second, (*SILOS, "gamma")))
    assert second.ledger.round("s", 1).sample == sample
    assert len(sample) == 1


class Clock:
    """Time that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def open_round(coordinator: Coordinator) -> tuple[asyncio.Future[Any], dict[str, TaskSpec]]:
    engine = asyncio.ensure_future(coordinator.engine.run_next())
    await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
    tasks = {}
    for silo in SILOS:
        task = await coordinator.ask(silo, timeout_seconds=1e9)
        assert isinstance(task, TaskSpec)
        tasks[silo] = task
    return engine, tasks


async def until(coordinator: Coordinator, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        coordinator.runtime.notify()
        while not condition():
            await asyncio.sleep(0.01)
            coordinator.runtime.notify()


def test_a_phase_closes_at_its_deadline_with_the_quorum_and_a_late_update_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = start(tmp_path, clock=clock)

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
        await asyncio.sleep(0.05)
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        clock.now += 5.1
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        late = await coordinator.begin(tasks["beta"], content_of(tasks["beta"]))
        assert (late.state, "over" in late.reason) == ("refused", True)
        states = {task.silo: task.state for task in coordinator.ledger.tasks("s", 1, 0)}
        assert states == {"alpha": TaskState.UPDATED, "beta": TaskState.EXPIRED}
        assert coordinator.ledger.query("SELECT * FROM event WHERE kind = 'update_late'")
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
    asyncio.run(scenario())


def test_an_update_that_is_held_against_a_later_model_came_too_late_and_is_not_refused(tmp_path: Path) -> None:
    """Its phase ended while it was checked, and what was checked did not fit any more."""
    clock = Clock()
    coordinator = start(tmp_path, clock=clock)

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
        call = coordinator.compute.call

        async def slow(request: Any, **options: Any) -> Any:
            if isinstance(request, CheckUpdate):
                clock.now += 5.1
                await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
            return await call(request, **options)
        coordinator.compute.call = slow  # type: ignore[method-assign]
        with pytest.raises(TaskClosed):
            await coordinator.deliver(tasks["beta"], b"bad".ljust(100))
        assert coordinator.ledger.task_states("s", 1, 0)["beta"] is TaskState.EXPIRED
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
    asyncio.run(scenario())


def test_below_the_quorum_a_phase_waits_on_and_fails_at_the_round_limit(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    coordinator = start(tmp_path, clock=clock, config=study_config(quorum=2))
    booked = bookings(monkeypatch)

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        start_digest = coordinator.ledger.round("s", 1).start_digest
        await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
        clock.now += 10
        coordinator.runtime.notify()
        await asyncio.sleep(0.05)
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        clock.now += 11
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED)
        assert [each for each in booked if each[1] == 1][-1] == ("s", 1, "train")  # before it is the next round's
        row = coordinator.ledger.round("s", 1)
        assert row.state_digest == start_digest
        assert "beta" in row.reason
        assert coordinator.ledger.silo_state("s", "alpha")[0] == 0
        await until(coordinator, lambda: coordinator.ledger.last_round("s").number == 2)  # type: ignore[union-attr]
        assert coordinator.ledger.round("s", 2).start_digest == start_digest
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
    asyncio.run(scenario())


def test_an_abstention_is_an_answer_and_a_round_without_updates_is_committed(tmp_path: Path) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        for silo, task in tasks.items():
            answer = coordinator.task_service.abstain(silo, task.task_id, "no_confident_example", {"label_ratio": 0.0})
            assert answer.state == "have"
            again = coordinator.task_service.abstain(silo, task.task_id, "no_confident_example", {"label_ratio": 0.0})
            assert again.state == "have"
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        assert coordinator.ledger.silo_state("s", "alpha")[0] == 0
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
    asyncio.run(scenario())


def test_a_revoked_silo_is_not_waited_for(tmp_path: Path) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
        coordinator.roster.revoke("beta")
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        assert coordinator.ledger.tasks("s", 1, 0)[1].state is TaskState.CANCELLED
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
    asyncio.run(scenario())


def test_an_update_that_fails_its_check_ends_the_task_and_not_the_round(tmp_path: Path) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        with pytest.raises(BadPayload, match="not finite"):
            await coordinator.deliver(tasks["alpha"], b"bad".ljust(100))
        await coordinator.deliver(tasks["beta"], content_of(tasks["beta"]))
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        assert coordinator.ledger.tasks("s", 1, 0)[0].state is TaskState.REFUSED
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
    asyncio.run(scenario())


TWO_PHASES = (Phase("train"), Phase("statistics", asks="roster", quorum="any"))


def test_a_phase_that_asks_the_roster_reaches_silos_that_were_not_sampled(tmp_path: Path) -> None:
    coordinator = start(tmp_path, config=study_config(silos_per_round=1), phases=TWO_PHASES)
    asyncio.run(run(coordinator))
    assert len(coordinator.ledger.tasks("s", 1, 0)) == 1
    assert len(coordinator.ledger.tasks("s", 1, 1)) == 2
    final_digest(coordinator)


def test_memory_is_told_to_commit_only_after_the_whole_round_is(tmp_path: Path) -> None:
    coordinator = start(tmp_path, phases=TWO_PHASES)
    seen = []
    coordinator.compute.before = lambda operation, arguments: seen.append(
        (operation, coordinator.ledger.silo_state("s", "alpha")[0])) if operation in ("aggregate", "phases") else None
    asyncio.run(run(coordinator))
    assert seen == [("phases", 0), ("aggregate", 0), ("aggregate", 0), ("phases", 1), ("aggregate", 1),
                    ("aggregate", 1), ("phases", 2), ("aggregate", 2), ("aggregate", 2)]


def test_a_paused_study_gives_no_tasks_and_a_stopped_one_ends(tmp_path: Path) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        coordinator.ledger.set_study_state("s", StudyState.PAUSED)
        await until(coordinator, lambda: coordinator.runtime.reason == "paused")
        answer = await coordinator.ask("alpha", timeout_seconds=0)
        assert not isinstance(answer, TaskSpec)
        coordinator.ledger.set_study_state("s", StudyState.RUNNING)
        await until(coordinator, lambda: coordinator.runtime.reason == "collecting")
        assert isinstance(await coordinator.ask("alpha", timeout_seconds=0), TaskSpec)
        coordinator.ledger.set_study_state("s", StudyState.STOPPED)
        coordinator.runtime.notify()
        row = await asyncio.wait_for(engine, 300)
        assert row.state is StudyState.STOPPED
        assert coordinator.ledger.round("s", 1).state is RoundState.CANCELLED
        late = await coordinator.begin(tasks["beta"], content_of(tasks["beta"]))
        assert late.state == "refused"
    asyncio.run(scenario())


@pytest.mark.parametrize(("act", "answered"), [
    ("pause", 0), ("pause", 1), ("pause", 2), ("pause and stop", 1), ("pause and stop", 2), ("stop", 0)])
def test_what_silos_deliver_before_and_during_a_pause_or_a_stop_is_booked_to_its_phase(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, act: str,
        answered: int) -> None:
    """A study showed more payload than bytes on the wire: those of the seconds before a pause, and all that silos
    delivered during it, were booked to no study."""
    caplog.set_level("INFO")
    coordinator, booked = start(tmp_path, config=study_config(quorum=2)), bookings(monkeypatch)

    async def scenario() -> None:
        running, tasks = await open_round(coordinator)
        booked.clear()
        if "pause" in act:
            coordinator.ledger.set_study_state("s", StudyState.PAUSED)
            await until(coordinator, lambda: coordinator.runtime.reason == "paused")
            for task in list(tasks.values())[:answered]:
                assert coordinator.runtime.account() == ("s", 1, "train")
                await coordinator.deliver(task, content_of(task))
            if answered == 2:  # then what silos ask is of no study
                await until(coordinator, lambda: coordinator.runtime.account() == ("", 0, "standby"))
                assert booked == [("s", 1, "train")]
            else:
                assert coordinator.runtime.account() == ("s", 1, "train")
        if "stop" in act:
            booked.clear()
            coordinator.ledger.set_study_state("s", StudyState.STOPPED)
            coordinator.runtime.notify()
            await asyncio.wait_for(running, 300)
            assert booked == [("s", 1, "train")]
            assert not coordinator.runtime.delivering, "a later pause, with no phase open, would be booked to this one"
            assert [record.getMessage() for record in caplog.records].count("study s is stopped") == 1
        else:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    asyncio.run(scenario())


def test_while_many_silos_work_their_answers_are_not_looked_at_one_by_one(tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads every task: of a thousand silos each answer would cost a thousand rows. The last ones are noticed at
    once."""
    looks: list[None] = []
    real = Ledger.open_tasks

    def counted(ledger: Ledger, study: str, round: int, phase: int) -> list[str]:
        looks.append(None)
        return real(ledger, study, round, phase)
    monkeypatch.setattr(Ledger, "open_tasks", counted)
    monkeypatch.setattr(engine, "FEW_SILOS", 1)
    monkeypatch.setattr(engine, "_PAUSE_SECONDS_PER_SILO", 0.1)

    async def scenario() -> None:
        coordinator = start(tmp_path)
        running, tasks = await open_round(coordinator)
        before, began = len(looks), time.monotonic()
        for _ in range(100):
            coordinator.runtime.notify()
            await asyncio.sleep(0.001)
        assert len(looks) - before <= 2 + (time.monotonic() - began) / 0.2, "two silos: one look in 0.2 s"
        for task in tasks.values():
            await coordinator.deliver(task, content_of(task))
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    asyncio.run(scenario())


def test_an_error_of_the_system_makes_the_study_wait_and_say_so_until_it_is_well(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = start(tmp_path)
    seen: list[tuple[float, str]] = []

    async def work_that_fails() -> StudyRow | None:
        if len(seen) < 3:
            raise OSError(errno.EROFS, "Read-only file system", "/hub/states")
        coordinator.engine._well()
        return None

    async def sleep(seconds: float) -> None:
        seen.append((seconds, coordinator.runtime.trouble))

    monkeypatch.setattr(coordinator.engine, "_run_next", work_that_fails)
    monkeypatch.setattr(engine.asyncio, "sleep", sleep)
    asyncio.run(coordinator.engine.run_next())
    assert [seconds for seconds, _ in seen] == [1.0, 2.0, 4.0]
    assert {trouble for _, trouble in seen} == {
        "/hub/states: Read-only file system. Let the disk be written, or choose another place."}
    assert coordinator.runtime.trouble == ""
    assert [record.getMessage() for record in caplog.records if "waits" in record.getMessage()] == [
        "the coordinator waits: /hub/states: Read-only file system. Let the disk be written, or choose another place."
        " It continues automatically."]


def failing(coordinator: Coordinator, error: BaseException, *, study: str = "s") -> None:
    """The first round of a study meets an error that is none of the catalogue."""
    original = coordinator.engine._open_round

    async def open_round(running: Any, *args: Any) -> Any:
        if running.name == study:
            raise error
        return await original(running, *args)

    coordinator.engine._open_round = open_round  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError("Value out of range: 18446744073709551614"),
                                   AssertionError("a round commits once"), OSError("no errno"),
                                   FileNotFoundError(errno.ENOENT, "No such file", "x")])
def test_an_error_of_the_program_fails_its_study_with_a_traceback_and_the_next_one_runs(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    """It ended the coordinator, and did so again after every restart."""
    coordinator = start(tmp_path)
    coordinator.ledger.queue_study("t", study_config())
    failing(coordinator, error)
    asyncio.run(run(coordinator))
    row = coordinator.ledger.study("s")
    assert row.state is StudyState.FAILED
    assert row.reason.startswith(f"an error that nobody foresaw, {type(error).__name__}: {error}")
    line, = (each for each in caplog.records if each.exc_info)
    assert line.exc_info is not None
    assert line.exc_info[1] is error
    assert line.getMessage().startswith("study s failed: ")
    assert "coordinator queue s" in line.getMessage()
    coordinator.compute.states = tmp_path / "studies" / "t" / "states"
    asyncio.run(run(coordinator))
    assert coordinator.ledger.study("t").state is StudyState.COMPLETED


def test_a_study_that_failed_so_goes_on_from_its_last_round_once_it_is_queued_again(
        tmp_path: Path, undisturbed: str) -> None:
    coordinator = start(tmp_path)
    failing(coordinator, ValueError("once"))
    asyncio.run(run(coordinator))
    coordinator.ledger.requeue_study("s", study_config())
    del coordinator.engine._open_round
    asyncio.run(run(coordinator))
    assert final_digest(coordinator) == undisturbed


def test_settings_that_a_study_takes_in_the_moment_before_it_begins_are_those_it_runs_with(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = start(tmp_path)
    config, chosen = study_config(), coordinator.ledger.next_study()
    assert coordinator.ledger.replace_settings("s", {**config, "study": {**config["study"], "rounds": 1}})
    monkeypatch.setattr(coordinator.ledger, "next_study", lambda: chosen)
    asyncio.run(run(coordinator))
    last = coordinator.ledger.last_round("s")
    assert last is not None
    assert (coordinator.ledger.study("s").state, last.number) == (StudyState.COMPLETED, 1)


def test_a_lack_of_memory_fails_no_study(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    failing(coordinator, MemoryError())
    with pytest.raises(MemoryError):
        asyncio.run(run(coordinator))
    assert coordinator.ledger.study("s").state is StudyState.RUNNING


def behind_masks(**participation: Any) -> dict[str, Any]:
    """Three rounds whose updates are added up, weighed by size."""
    config = study_config(**participation)
    return {**config, "study": {**config["study"], "start_with": 3},
            "method": {"name": "fedavg", "settings": {"scenario": "labels-at-silo", "weighting": "size"}},
            "privacy": {"secure_aggregation": True}}


@pytest.mark.parametrize(("share", "counts", "reference"), [
    ("50%", (100, 100, 20), 100),
    ("50%", (100, 100, 10**7), 200),
    ("40%", (100, 80, 20, 30), 86),
    ("100%", (100, 100, 10**7), 10**7),
    ("100%", (100, 100, 2 * (2**63 - 1)), 10**9),
])
def test_the_size_that_silos_weigh_by_in_a_sum_gives_none_of_them_more_than_its_share(
        tmp_path: Path, share: str, counts: tuple[int, ...], reference: int) -> None:
    """One silo that announced ten million images had the mean of the updates to itself."""
    coordinator = Coordinator(tmp_path)
    silos = ("a", "b", "c", "d")[:len(counts)]
    coordinator.enroll(*silos)
    coordinator.ledger.queue_study("s", behind_masks(largest_weight=share))
    original = coordinator.compute._tasks
    coordinator.compute._tasks = (  # type: ignore[method-assign]
        lambda request: replace(original(request), largest=(1.0,)))

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        for silo, count in zip(silos, counts, strict=True):
            hello = Hello(version="0", methods=("fedavg",), labelled_count=count // 2, unlabelled_count=count // 2)
            await coordinator.task_service.await_task(silo, hello, timeout_seconds=0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not coordinator.ledger.open_tasks("s", 1, 0):
                assert not engine.done()
                await asyncio.sleep(0.01)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)

    asyncio.run(scenario())
    form = sum_row(coordinator.ledger, "s", 1, "train").form
    assert form is not None
    assert form.weight_reference == reference
    if share != "100%":
        weights = [weight_of(form, count) for count in counts]
        assert max(weights) <= float(share.rstrip("%")) / 100 * sum(weights) * 1.01


def test_a_silo_that_announces_far_more_images_than_the_others_is_told_of_once(tmp_path: Path) -> None:
    """What a silo announces first is no jump."""
    coordinator = Coordinator(tmp_path)
    coordinator.enroll(*"abcd")
    coordinator.ledger.queue_study("s", study_config())

    async def scenario() -> None:
        for silo in "abcd":
            hello = Hello(version="0", methods=(), labelled_count=0, unlabelled_count=10**9 if silo == "d" else 100)
            await coordinator.task_service.await_task(silo, hello, timeout_seconds=0)
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not coordinator.ledger.open_tasks("s", 1, 0):
                assert not engine.done()
                await asyncio.sleep(0.01)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)

    asyncio.run(scenario())
    (found,) = notices_of(coordinator.ledger, "s")
    assert (found.silo, found.kind, found.round, found.times) == ("d", NoticeKind.COUNT_LARGE, 1, 1)
    assert "it announces 1000000000 images, and half of the others of the round 100 at most" in found.text
    coordinator.engine._note_large_counts(coordinator.ledger.round("s", 1))
    assert [each.times for each in notices_of(coordinator.ledger, "s")] == [1], "once in a study"


# Several studies ------------------------------------------------------------------------------------------------------


def test_a_study_that_failed_while_it_folded_goes_on_after_another_study_has_run(
        tmp_path: Path, undisturbed: str) -> None:
    coordinator = start(tmp_path)
    coordinator.ledger.queue_study("t", study_config())
    (tmp_path / "studies" / "t").mkdir(parents=True)
    failures = ["once"]

    def fail(operation: str, request: Any) -> None:
        if operation == "aggregate" and request.round == 2 and failures:
            failures.pop()
            raise BadPayload("a disk that lied")

    async def run_next() -> None:
        coordinator.runtime.set(reason=StandbyReason.NO_STUDY, text="")  # which the silos of before have heard
        await run(coordinator)

    async def scenario() -> None:
        await run_next()
        assert coordinator.ledger.study("s").state is StudyState.FAILED
        assert len(coordinator.spool.digests()) == len(SILOS)
        await run_next()
        assert coordinator.ledger.study("t").state is StudyState.COMPLETED
        coordinator.ledger.requeue_study("s", coordinator.ledger.study("s").config)
        await run_next()

    coordinator.compute.before = fail
    asyncio.run(scenario())
    assert final_digest(coordinator) == undisturbed
    assert coordinator.spool.digests() == set()
