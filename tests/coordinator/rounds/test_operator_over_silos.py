"""An operator over silos, through the engine: going back to an earlier round, setting silos aside, updates left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.errors import SecureSumFailed, TaskClosed, UsageError
from semisilo.common.learning.outliers import UpdateMeasure
from semisilo.common.methods.contract import TaskSpec
from semisilo.coordinator.compute.messages import Aggregate, Aggregated
from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, notices_of
from semisilo.coordinator.ledger.oversight.rollback import past_answers, rollbacks_of
from semisilo.coordinator.ledger.oversight.table_check import compare_tables
from semisilo.coordinator.ledger.progress import round_outcomes, silo_totals
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.monitoring.study_book import StudyBook
from semisilo.coordinator.rounds.runtime import StandbyReason
from semisilo.coordinator.tasks import update_service
from semisilo.coordinator.tasks.task_service import Standby
from tests.coordinator.federation_in_memory import Coordinator, content_of, id_of, study_config

SILOS = ("alpha", "beta", "gamma")


def start(folder: Path, **participation: Any) -> Coordinator:
    folder.mkdir(exist_ok=True)
    coordinator = Coordinator(folder)
    coordinator.enroll(*SILOS)
    config = study_config(**participation)
    config["study"] = {**config["study"], "rounds": 3, "start_with": 3}
    coordinator.ledger.queue_study("s", config)
    return coordinator


async def play(coordinator: Coordinator) -> None:
    """The study until it is over."""
    coordinator.runtime.text = ""  # a silo that reads that the study is over ends
    service = coordinator.task_service
    service._turn = service.updates._turn = asyncio.Lock()  # the last one belongs to another event loop
    await asyncio.gather(coordinator.engine.run_next(), *(coordinator.silo(name) for name in SILOS))


def digests(coordinator: Coordinator) -> list[str]:
    return [row.state_digest for row in coordinator.ledger.rounds("s")]


def back(coordinator: Coordinator, to_round: int, **more: Any) -> None:
    operate.rollback(coordinator.ledger, "s", to_round, study_folder=coordinator.folder / "studies" / "s",
                     origin="command", **more)


async def ended(work: Awaitable[Any]) -> None:
    task = asyncio.ensure_future(work)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(coordinator: Coordinator, condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        coordinator.runtime.notify()
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition never came true")


@asynccontextmanager
async def collecting(coordinator: Coordinator) -> AsyncIterator[dict[str, TaskSpec]]:
    """The engine with round 1 open: silo -> task."""
    engine = asyncio.ensure_future(coordinator.engine.run_next())
    await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
    tasks = {}
    for silo in SILOS:
        task = await coordinator.ask(silo, timeout_seconds=1e9)
        assert isinstance(task, TaskSpec)
        tasks[silo] = task
    yield tasks
    await ended(engine)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The states of a study that never goes back."""
    coordinator = start(tmp_path_factory.mktemp("undisturbed"))
    asyncio.run(play(coordinator))
    return digests(coordinator)


# Going back -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("to_round", [0, 2])
def test_a_study_that_goes_back_trains_on_with_the_bits_of_one_that_never_went_further(
        tmp_path: Path, undisturbed: list[str], to_round: int) -> None:
    coordinator = start(tmp_path)
    asyncio.run(play(coordinator))
    assert digests(coordinator) == undisturbed
    back(coordinator, to_round, reason="beta sent\nnoise", operator="mona")
    row = coordinator.ledger.study("s")
    assert (row.state, row.ended_unix) == (StudyState.QUEUED, None)
    assert [each.number for each in coordinator.ledger.rounds("s")] == list(range(to_round + 1))
    assert {coordinator.ledger.silo_state("s", silo)[0] for silo in SILOS} == {to_round}
    assert all(each.updated == each.asked == to_round for each in silo_totals(coordinator.ledger, "s").values())
    assert sorted(round_outcomes(coordinator.ledger, "s")) == list(range(1, to_round + 1))
    (found,) = rollbacks_of(coordinator.ledger, "s")
    assert (found.to_round, found.origin, found.operator, found.reason) == (to_round, "command", "mona",
                                                                            "beta sent noise")
    assert [each.number for each in found.rounds] == list(range(to_round + 1, 4))
    assert [each.state_digest for each in found.rounds] == undisturbed[to_round + 1:]
    assert {(each.round, each.silo, each.state) for each in past_answers(coordinator.ledger, found.number)} == {
        (number, silo, TaskState.UPDATED) for number in range(to_round + 1, 4) for silo in SILOS}
    asyncio.run(play(coordinator))
    assert digests(coordinator) == undisturbed
    coordinator.ledger.check_events()


def test_a_study_without_the_silo_that_spoilt_it_is_the_study_that_never_had_its_answers(tmp_path: Path) -> None:
    """Going back to round 1 and setting gamma aside gives the bits of a run in which gamma was set aside after it."""
    other = start(tmp_path / "other")

    async def without_gamma_from_round_2() -> None:
        silos = [asyncio.ensure_future(other.silo(name)) for name in SILOS]
        engine = asyncio.ensure_future(other.engine.run_next())
        original = other.ledger.commit_round

        def commit(study: str, round: int, **more: Any) -> None:
            original(study, round, **more)
            if round == 1:
                operate.set_aside(other.ledger, "gamma", origin="command")

        other.ledger.commit_round = commit  # type: ignore[method-assign, assignment]
        await engine
        await asyncio.gather(*silos)

    asyncio.run(without_gamma_from_round_2())
    coordinator = start(tmp_path / "back")
    asyncio.run(play(coordinator))
    assert digests(coordinator)[2:] != digests(other)[2:]
    back(coordinator, 1)
    operate.set_aside(coordinator.ledger, "gamma", origin="command")
    asyncio.run(play(coordinator))
    assert digests(coordinator) == digests(other)


def test_serve_removes_the_model_that_going_back_could_not(tmp_path: Path) -> None:
    """That of a study which was only stopped and queued again stays: no committed round of it has gone."""
    coordinator = start(tmp_path)
    asyncio.run(play(coordinator))
    model = coordinator.folder / "studies" / "s" / "model.safetensors"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_bytes(b"of round 3")
    asyncio.run(coordinator.engine._lifecycle.tidy_up())
    assert model.exists(), "the study is over"
    back(coordinator, 1)
    model.write_bytes(b"of round 3, left by a loss of power")
    asyncio.run(coordinator.engine._lifecycle.tidy_up())
    assert not model.exists()
    model.write_bytes(b"of round 1")
    with coordinator.ledger.acting("coordinator"), coordinator.ledger.transaction() as db:
        db.execute("INSERT INTO rollback (study, to_round, unix, origin, operator, reason, cost_row)"
                   " VALUES ('s', 1, 1, 'coordinator', '', 'it was cancelled when the study was stopped', 0)")
    asyncio.run(coordinator.engine._lifecycle.tidy_up())
    assert model.exists()


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["collect", "aggregate", "phases"])
def test_a_study_that_is_paused_and_goes_back_under_a_step_gives_the_same_bits(
        tmp_path: Path, undisturbed: list[str], operation: str) -> None:
    coordinator = start(tmp_path)
    times = 0

    def interfere(name: str, request: Any) -> None:
        nonlocal times
        times += name == operation
        if name == operation and times == 3:  # of round 3
            operate.pause(coordinator.ledger, "s", origin="command")
            back(coordinator, 1)

    async def scenario() -> None:
        silos = [asyncio.ensure_future(coordinator.silo(name)) for name in SILOS]
        if operation == "collect":
            engine = asyncio.ensure_future(coordinator.engine.run_next())
            held: list[TaskSpec] = []
            original = coordinator.deliver

            async def keep(task: TaskSpec, content: bytes) -> Any:
                if task.round == 3 and not held:
                    held.append(task)
                    operate.pause(coordinator.ledger, "s", origin="command")
                    back(coordinator, 1)
                    coordinator.runtime.notify()
                    with pytest.raises(TaskClosed, match="no such task"):
                        await coordinator.begin(task, content)
                    assert "no such task" in coordinator.task_service.report(
                        task.silo, task.task_id, stage="training", fraction=0.5, text="")
                    return None
                try:
                    return await original(task, content)
                except TaskClosed:
                    return None

            coordinator.deliver = keep  # type: ignore[method-assign]
            await engine
        else:
            coordinator.compute.after = interfere
            await coordinator.engine.run_next()
        assert coordinator.ledger.study("s").state is StudyState.QUEUED
        assert coordinator.ledger.last_round("s").number == 1  # type: ignore[union-attr]
        await coordinator.engine.run_next()
        await asyncio.gather(*silos)

    asyncio.run(scenario())
    assert coordinator.ledger.study("s").state is StudyState.COMPLETED
    assert digests(coordinator) == undisturbed


def test_a_task_after_going_back_is_another_one_for_its_silo(tmp_path: Path) -> None:
    """A silo that has the answer to a task sends it again, though it may be to another model now."""
    coordinator = start(tmp_path)
    asyncio.run(play(coordinator))
    before = {task.task_id for task in coordinator.ledger.tasks("s", 2, 0)}
    for _ in range(2):
        back(coordinator, 1)
        asyncio.run(play(coordinator))
        now = {task.task_id for task in coordinator.ledger.tasks("s", 2, 0)}
        assert not now & before
        before |= now


def test_what_cannot_be_gone_back_to_is_said_with_what_can(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    with pytest.raises(UsageError, match="is queued: it can go back while it is paused or over"):
        back(coordinator, 0)
    asyncio.run(play(coordinator))
    (tmp_path / "studies" / "s" / "states" / f"{digests(coordinator)[1]}.safetensors").unlink()
    for number, why in ((3, "stands at round 3 already"), (9, "has no round 9"), (1, "its files are gone")):
        with pytest.raises(UsageError, match=why) as caught:
            back(coordinator, number)
        assert caught.value.remedy.startswith("It can go back to: 0, 2.")
    assert rollbacks_of(coordinator.ledger, "s") == ()
    assert coordinator.ledger.study("s").state is StudyState.COMPLETED


def test_the_file_of_the_model_that_was_handed_over_goes(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    asyncio.run(play(coordinator))
    model = tmp_path / "studies" / "s" / "model.safetensors"
    assert model.is_file()
    back(coordinator, 2)
    assert not model.exists()
    operate.stop(coordinator.ledger, "s", origin="command")
    asyncio.run(coordinator.engine.run_next())
    assert model.read_text(), "of a study that is stopped the model of its last round is written, though it was before"


def test_the_page_follows_a_study_that_goes_back(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    asyncio.run(play(coordinator))
    book = StudyBook("s")
    book.refresh(coordinator.ledger)
    assert [row.number for row in book.rows()] == [0, 1, 2, 3]
    back(coordinator, 1)
    book.refresh(coordinator.ledger)
    assert [row.number for row in book.rows()] == [0, 1]


# Silos set aside ------------------------------------------------------------------------------------------------------


def test_a_silo_that_is_set_aside_loses_its_task_at_once_and_hears_why(tmp_path: Path) -> None:
    coordinator = start(tmp_path, quorum=3)

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:
            operate.set_aside(coordinator.ledger, "beta", reason="it sends noise", origin="command")
            gamma = tasks["gamma"]
            found = coordinator.task_service.report("beta", tasks["beta"].task_id, stage="training", fraction=0.1,
                                                    text="")
            assert found == "the task is over: set aside at the coordinator: it sends noise"
            answer = await coordinator.ask("beta", timeout_seconds=60)
            assert isinstance(answer, Standby)
            assert (answer.reason, answer.text) == (StandbyReason.SET_ASIDE,
                                                    "set aside at the coordinator: it sends noise")
            for task in (tasks["alpha"], gamma):
                await coordinator.deliver(task, content_of(task))
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
            assert coordinator.ledger.phase("s", 1, 0).quorum == 2, "all of those who still count"
            await until(coordinator, lambda: coordinator.ledger.last_round("s").number == 2)  # type: ignore[union-attr]
            assert coordinator.ledger.round("s", 2).sample == ("alpha", "gamma")
            operate.take_back(coordinator.ledger, "beta", origin="command")
            for silo in ("alpha", "gamma"):
                task = await coordinator.ask(silo, timeout_seconds=1e9)
                assert isinstance(task, TaskSpec)
                await coordinator.deliver(task, content_of(task))
            await until(coordinator, lambda: coordinator.ledger.last_round("s").number == 3)  # type: ignore[union-attr]
            assert coordinator.ledger.round("s", 3).sample == SILOS
            kinds = [row["kind"] for row in coordinator.ledger.query("SELECT kind FROM event ORDER BY number")]
            assert [kind for kind in kinds if kind in ("silo_set_aside", "silo_taken_back")] == ["silo_set_aside",
                                                                                                "silo_taken_back"]
    asyncio.run(scenario())


def exclude(coordinator: Coordinator, silo: str, how: str) -> None:
    if how == "revoke":
        operate.revoke(coordinator.ledger, silo, origin="command")
    else:
        operate.set_aside(coordinator.ledger, silo, reason="it lies", origin="command")


def note_folded(coordinator: Coordinator, *, before: Callable[[], None] = lambda: None) -> list[list[str]]:
    """The silos of each aggregation from now on; `before` is called while one is under way."""
    folded, original = list[list[str]](), coordinator.compute._aggregate

    def aggregate(request: Aggregate) -> Aggregated:
        folded.append([update.header.silo for update in request.updates])
        found = original(request)
        before()
        return found

    coordinator.compute._aggregate = aggregate  # type: ignore[method-assign]
    return folded


@pytest.mark.parametrize(("how", "reason"), [
    ("revoke", "silo revoked"), ("set aside", "set aside at the coordinator: it lies")])
def test_what_a_silo_has_sent_is_not_folded_once_the_operator_has_excluded_it(tmp_path: Path, how: str,
                                                                              reason: str) -> None:
    """The operator saw that it lies, and its update came into the model all the same."""
    coordinator = start(tmp_path, quorum=2)
    folded = note_folded(coordinator)

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:
            for silo in ("alpha", "beta"):
                await coordinator.deliver(tasks[silo], content_of(tasks[silo]))
            exclude(coordinator, "alpha", how)
            await until(coordinator, lambda: coordinator.ledger.task_states("s", 1, 0)["alpha"] is TaskState.REFUSED)
            assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING, "one answer counts"
            coordinator.roster.leave("beta")  # by itself: what it has sent is good
            await coordinator.deliver(tasks["gamma"], content_of(tasks["gamma"]))
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
            assert folded[0] == ["beta", "gamma"]
            assert coordinator.ledger.tasks("s", 1, 0)[0].reason == reason
            assert coordinator.ledger.silo_state("s", "alpha")[0] == 0
            left = coordinator.ledger.query("SELECT detail_json FROM event WHERE kind = 'update_left_out'")
            assert [reason in row["detail_json"] for row in left] == [True]
            assert compare_tables(coordinator.ledger, ChainWalk()) == []
    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["revoke", "set aside"])
def test_a_silo_that_is_excluded_while_its_update_is_folded_is_taken_out_again(tmp_path: Path, how: str) -> None:
    coordinator = start(tmp_path / "a", quorum=2)

    def once() -> None:
        if len(folded) == 1:
            exclude(coordinator, "beta", how)

    folded = note_folded(coordinator, before=once)

    async def scenario(coordinator: Coordinator, *silos: str) -> str:
        async with collecting(coordinator) as tasks:
            for silo in silos:
                await coordinator.deliver(tasks[silo], content_of(tasks[silo]))
            if "beta" not in silos:
                exclude(coordinator, "beta", how)
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
            return coordinator.ledger.round("s", 1).state_digest

    found = asyncio.run(scenario(coordinator, *SILOS))
    assert folded == [["alpha", "beta", "gamma"], ["alpha", "gamma"]]
    assert found == asyncio.run(scenario(start(tmp_path / "b", quorum=2), "alpha", "gamma"))


def test_a_round_that_has_too_few_answers_without_a_revoked_silo_fails(tmp_path: Path) -> None:
    coordinator = start(tmp_path, quorum=3)
    folded = note_folded(coordinator, before=lambda: exclude(coordinator, "beta", "revoke"))

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:
            for silo in SILOS:
                await coordinator.deliver(tasks[silo], content_of(tasks[silo]))
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED)
            assert coordinator.ledger.round("s", 1).reason.startswith("2 of 3 answers, without those of silos")
            assert coordinator.ledger.committed_round("s") == 0
    asyncio.run(scenario())
    assert len(folded) == 1


def test_a_coordinator_that_died_after_an_update_was_left_out_does_not_go_on_with_too_few(tmp_path: Path) -> None:
    coordinator = start(tmp_path, quorum=3)
    gate = list[bool]()

    def dies() -> None:
        gate.append(True)
        raise OSError(28, "as if it had been killed")

    note_folded(coordinator, before=dies)

    async def first() -> None:
        async with collecting(coordinator) as tasks:
            for silo in SILOS:
                await coordinator.deliver(tasks[silo], content_of(tasks[silo]))
            await until(coordinator, lambda: bool(gate))
    asyncio.run(first())
    row = coordinator.ledger.round("s", 1)
    assert row.state is RoundState.AGGREGATING
    exclude(coordinator, "beta", "revoke")
    coordinator.engine._leave_excluded_out(row)  # and it dies again
    coordinator.close()
    coordinator = Coordinator(tmp_path)
    folded = note_folded(coordinator)

    async def second() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED)
        await ended(engine)
    asyncio.run(second())
    assert folded == []


def test_masked_updates_of_an_excluded_silo_are_left_out_before_the_list_is_signed_and_their_sum_after(
        tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    engine = coordinator.engine

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:
            for silo in ("alpha", "beta"):
                await coordinator.deliver(tasks[silo], content_of(tasks[silo]))
    asyncio.run(scenario())
    row = coordinator.ledger.round("s", 1)
    exclude(coordinator, "beta", "revoke")
    for step in ("confirm", "unmask"):
        engine._leave_excluded_out(replace(row, phases=(replace(row.phases[0], step=step),)))
        assert coordinator.ledger.task_states("s", 1, 0)["beta"] is TaskState.UPDATED, "it has been signed"
    reason = "beta: silo revoked, and what it has sent behind masks cannot be taken out of the sum"
    assert engine._spoilt_sums(row, [("alpha", "beta"), ("gamma", "delta")]) == {"alpha": reason, "beta": reason}
    assert engine._spoilt_sums(row, [("gamma", "delta")]) == engine._spoilt_sums(row, []) == {}
    with pytest.raises(SecureSumFailed, match=reason):
        engine._spoilt_sums(row, [("alpha", "beta")])
    engine._leave_excluded_out(replace(row, phases=(replace(row.phases[0], step="mask"),)))
    assert coordinator.ledger.task_states("s", 1, 0)["beta"] is TaskState.REFUSED
    assert [task.silo for task, _ in coordinator.ledger.accepted_updates("s", 1, 0)] == ["alpha"], "the survivors"


@pytest.mark.parametrize("by_another_process", [False, True])
def test_a_round_does_not_fail_for_a_silo_that_was_set_aside_and_taken_back_in_it(
        tmp_path: Path, by_another_process: bool) -> None:
    """Its task is over for good, and a quorum of all was waited for in vain."""
    coordinator = start(tmp_path, quorum=3)

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:
            ledger = Ledger(coordinator.ledger.path) if by_another_process else coordinator.ledger
            operate.set_aside(ledger, "beta", reason="a slip", origin="command")
            operate.take_back(ledger, "beta", origin="command")
            for silo in ("alpha", "gamma"):
                await coordinator.deliver(tasks[silo], content_of(tasks[silo]))
            await until(coordinator, lambda: coordinator.ledger.last_round("s").number == 2)  # type: ignore[union-attr]
            assert coordinator.ledger.round("s", 1).state is RoundState.COMPLETED
            assert coordinator.ledger.round("s", 2).sample == SILOS
    asyncio.run(scenario())


def test_a_silo_that_is_set_aside_is_not_waited_for_at_the_start(tmp_path: Path) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        operate.set_aside(coordinator.ledger, "beta", origin="command")
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(coordinator, lambda: "2 of 3 silos have joined" in coordinator.runtime.text)
        answer = await coordinator.ask("beta", timeout_seconds=60)
        assert isinstance(answer, Standby)
        assert answer.text == "set aside at the coordinator"
        operate.take_back(coordinator.ledger, "beta", origin="command")
        await until(coordinator, lambda: coordinator.ledger.study("s").state is StudyState.RUNNING)
        await ended(engine)
    asyncio.run(scenario())


def test_a_round_whose_silos_are_all_set_aside_fails_and_the_model_stays(tmp_path: Path) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        async with collecting(coordinator):
            for silo in SILOS:
                operate.set_aside(coordinator.ledger, silo, origin="command")
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED)
            assert coordinator.ledger.committed_round("s") == 0
    asyncio.run(scenario())


def test_a_strategy_hears_of_silos_that_take_no_part_any_more(tmp_path: Path) -> None:
    """They may have left something in a sum of the study."""
    coordinator, heard = start(tmp_path), list[tuple[str, ...]]()
    original = coordinator.compute._aggregate

    def aggregate(request: Aggregate) -> Aggregated:
        heard.append(request.gone)
        return original(request)

    coordinator.compute._aggregate = aggregate  # type: ignore[method-assign]

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:
            operate.set_aside(coordinator.ledger, "gamma", origin="command")
            operate.revoke(coordinator.ledger, "beta", origin="command")
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            await until(coordinator, lambda: bool(heard))
    asyncio.run(scenario())
    assert heard[0] == ("beta", "gamma")


@pytest.mark.parametrize(("act", "says"), [
    (lambda ledger: operate.set_aside(ledger, "alpha", origin="page"), "is set aside already"),
    (lambda ledger: operate.take_back(ledger, "beta", origin="page"), "is not set aside")])
def test_what_makes_no_sense_is_one_line(tmp_path: Path, act: Callable[[Any], None], says: str) -> None:
    coordinator = start(tmp_path)
    operate.set_aside(coordinator.ledger, "alpha", origin="page")
    with pytest.raises(UsageError, match=says):
        act(coordinator.ledger)


# Counts and updates ---------------------------------------------------------------------------------------------------


def test_an_update_counts_as_from_no_more_images_than_its_silo_has_announced(tmp_path: Path) -> None:
    coordinator = start(tmp_path)

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:  # all have announced 10
            task = tasks["beta"]
            for _ in range(2):
                await coordinator.begin(task, content_of(task), example_count=10**9)
            await coordinator.deliver(task, content_of(task))
            assert [update.example_count for _, update in coordinator.ledger.accepted_updates("s", 1, 0)] == [10]
            (found,) = notices_of(coordinator.ledger, "s")
            assert (found.silo, found.kind, found.round, found.times) == ("beta", NoticeKind.COUNT_ABOVE, 1, 1)
            assert "from 1000000000 images, and it has announced 10" in found.text
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            assert len(notices_of(coordinator.ledger, "s")) == 1, "alpha says what it has"
    asyncio.run(scenario())


def test_an_update_is_from_no_more_labelled_images_than_its_silo_has_announced(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside nobody else with labels, one that it claims would give it all of FedMatch's sigma."""
    monkeypatch.setattr(update_service, "check_declaration", lambda *args, **kwargs: None)  # semifl has no such metric
    coordinator = start(tmp_path)

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:  # all have announced 10 without a label
            for labelled in (1.0, 7.0, 0.0):
                metrics = {"num_labelled": labelled, "loss": 0.5}
                await coordinator.begin(tasks["beta"], b"%d" % labelled, metrics=metrics)
                update = coordinator.ledger.declared_update(id_of(tasks["beta"], b"%d" % labelled))
                assert update is not None
                assert update.metrics == {"num_labelled": 0.0, "loss": 0.5}
            (found,) = notices_of(coordinator.ledger, "s")
            assert (found.silo, found.kind, found.times) == ("beta", NoticeKind.COUNT_ABOVE, 1)
            assert "from 1 images with a label, and it has announced 0" in found.text
            coordinator.task_service._roster.joined("alpha", version="0", methods=(), labelled_count=3,
                                                    unlabelled_count=7, memory_study="", memory_round=0)
            await coordinator.begin(tasks["alpha"], b"x", metrics={"num_labelled": 3.0})
            update = coordinator.ledger.declared_update(id_of(tasks["alpha"], b"x"))
            assert update is not None
            assert update.metrics == {"num_labelled": 3.0}
            assert len(notices_of(coordinator.ledger, "s")) == 1
    asyncio.run(scenario())
def test_whose_update_was_left_out_is_named_and_the_round_goes_on(tmp_path: Path) -> None:
    coordinator = start(tmp_path)
    fold = coordinator.compute._aggregate

    def without_beta(request: Aggregate) -> Aggregated:
        kept = tuple(each for each in request.updates if each.header.silo != "beta")
        measures = {each.header.silo: UpdateMeasure(norm=1e11 if each.header.silo == "beta" else 1.0, cosine=None)
                    for each in request.updates}
        return replace(fold(replace(request, updates=kept)), left_out={"beta": "not accepted: it breaks the model"},
                       measures=measures, notices={"gamma": "its batch-norm statistics are far from the others'"})

    coordinator.compute._aggregate = without_beta  # type: ignore[method-assign]

    async def scenario() -> None:
        async with collecting(coordinator) as tasks:
            for task in tasks.values():
                await coordinator.deliver(task, content_of(task))
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
    asyncio.run(scenario())
    ledger = coordinator.ledger
    states = {task.silo: (task.state, task.reason) for task in ledger.tasks("s", 1, 0)}
    assert states == {"alpha": (TaskState.UPDATED, ""), "gamma": (TaskState.UPDATED, ""),
                      "beta": (TaskState.REFUSED, "not accepted: it breaks the model")}
    assert {silo: ledger.silo_state("s", silo)[0] for silo in SILOS} == {"alpha": 1, "beta": 0, "gamma": 1}
    assert [(each.silo, each.kind) for each in notices_of(ledger, "s")] == [("beta", NoticeKind.LEFT_OUT),
                                                                            ("beta", NoticeKind.STANDS_OUT),
                                                                            ("gamma", NoticeKind.STANDS_OUT)]
    assert notices_of(ledger, "s")[2].line == "gamma, round 1: its batch-norm statistics are far from the others'"
    rows = ledger.query("SELECT silo, norm FROM task JOIN declared_update USING (update_id) ORDER BY silo")
    assert [tuple(row) for row in rows] == [("alpha", 1.0), ("beta", 1e11), ("gamma", 1.0)]
    assert ledger.query("SELECT 1 FROM event WHERE kind = 'update_left_out'")
