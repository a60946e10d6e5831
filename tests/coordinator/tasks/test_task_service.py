"""The task service: what a silo may ask, for its own tasks only."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from semisilo.common.errors import (
    BadPayload,
    PayloadNotServed,
    StorageDamaged,
    TaskClosed,
)
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.payload.usage import FRAMING, parts_of
from semisilo.coordinator.compute.messages import Tasks
from semisilo.coordinator.ledger.encodings import encodings_of
from semisilo.coordinator.ledger.secure_sums.roster import roster_entries
from semisilo.coordinator.ledger.states import StudyState, TaskState
from semisilo.coordinator.rounds.runtime import StandbyReason
from semisilo.coordinator.tasks import task_service
from semisilo.coordinator.tasks.task_service import Hello, Standby
from tests.coordinator.federation_in_memory import (
    Coordinator,
    content_of,
    id_of,
    payload_of_blocks,
    study_config,
)
from tests.coordinator.tasks.collecting import SILOS, HeldUp, collecting, hang_up, state_of, until


def test_a_task_of_another_silo_is_as_unknown_as_one_that_is_not_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task_service, task, content = coordinator.task_service, tasks["alpha"], content_of(tasks["alpha"])
            await coordinator.begin(task, content)
            answers = set()
            for task_id in (task.task_id, "s/1/0-train/nobody", "", "x" * 10_000, "'; DROP TABLE task; --"):
                calls: list[Callable[[], Any]] = [
                    lambda task_id=task_id: task_service.payload_for("beta", task_id, task.payloads[0].digest),
                    lambda task_id=task_id: task_service.abstain("beta", task_id, "none", {}),
                    lambda task_id=task_id: task_service.refuse("beta", task_id, "X", "no")]
                for call in calls:
                    with pytest.raises(TaskClosed) as caught:
                        call()
                    answers.add(caught.value.line())
                with pytest.raises(TaskClosed):
                    await coordinator.begin(replace(task, silo="beta", task_id=task_id), content)
                assert task_service.report("beta", task_id, stage="training", fraction=0.5, text="") != ""
            with pytest.raises(TaskClosed):
                await task_service.updates.upload("beta", id_of(task, content))
            assert len(answers) == 1
            assert state_of(coordinator, task) is TaskState.OPEN
            assert coordinator.runtime.silos == {}
            # the control: its own silo may
            assert task_service.payload_for("alpha", task.task_id, task.payloads[0].digest).is_file()
            assert task_service.report("alpha", task.task_id, stage="training", fraction=0.5, text="") == ""
    asyncio.run(scenario())


def test_only_payloads_that_the_open_task_names_are_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task = tasks["alpha"]
            other = coordinator.payloads.temporary()
            other.write_bytes(b"for beta only")
            secret = coordinator.payloads.add_file(other)
            for digest in (secret, "f" * 64, "", "../ledger.sqlite"):
                with pytest.raises(PayloadNotServed):
                    coordinator.task_service.payload_for("alpha", task.task_id, digest)
            coordinator.task_service.abstain("alpha", task.task_id, "none", {})
            with pytest.raises(TaskClosed):
                coordinator.task_service.payload_for("alpha", task.task_id, task.payloads[0].digest)
    asyncio.run(scenario())


def test_the_encodings_of_a_resumed_download_are_those_of_the_bytes_that_were_sent(tmp_path: Path) -> None:
    """The silo had all blocks already: only the framing behind them is counted, from where the download went on."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            made = payload_of_blocks(coordinator.payloads)
            end = parts_of(coordinator.payloads.path(made.digest))[-1].start
            coordinator.task_service.downloaded("alpha", tasks["alpha"].task_id, made.digest, made.size_bytes - end,
                                                offset=end)
            (use,) = encodings_of(coordinator.ledger, "s")
            assert (use.encoding, use.bytes, use.blocks) == (FRAMING, made.size_bytes - end, 0)
    asyncio.run(scenario())


def test_a_payload_that_is_fetched_again_and_again_is_one_row_of_the_ledger(tmp_path: Path) -> None:
    """A silo may fetch the last byte fifty times a second, for weeks."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, rows = tasks["alpha"], "SELECT bytes, count FROM cost WHERE direction = 'down' AND kind = 'payload'"
            for _ in range(50):
                coordinator.task_service.downloaded("alpha", task.task_id, task.payloads[0].digest, 1,
                                                    offset=task.payloads[0].size_bytes - 1)
            assert [tuple(row) for row in coordinator.ledger.query(rows)] == [(50, 50)]
    asyncio.run(scenario())


def test_a_payload_that_is_missing_on_disk_is_the_coordinators_trouble(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            coordinator.payloads.path(tasks["alpha"].payloads[0].digest).unlink()
            with pytest.raises(StorageDamaged, match="missing"):
                coordinator.task_service.payload_for("alpha", tasks["alpha"].task_id, tasks["alpha"].payloads[0].digest)
    asyncio.run(scenario())


def test_the_same_task_is_told_any_number_of_times_and_noted_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            row = coordinator.ledger.task(tasks["alpha"].task_id)
            assert await coordinator.ask("alpha") == tasks["alpha"]
            assert coordinator.ledger.task(tasks["alpha"].task_id) == row
    asyncio.run(scenario())


@pytest.mark.parametrize("metrics", [{"patient_age": 60.0}, {"loss": math.nan}, {"pseudo_labels/\u00b2": 1.0},
                                     {"pseudo_labels/99999999999": 1.0}, {"pseudo_labels/2": 1.0},
                                     {"pseudo_label_accuracy": 1.0}, {"threshold_accuracy": 1.0}])
def test_the_metrics_of_an_abstention_are_checked_too(tmp_path: Path, metrics: dict[str, float]) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            with pytest.raises(BadPayload):
                coordinator.task_service.abstain("alpha", tasks["alpha"].task_id, "none", metrics)
            assert state_of(coordinator, tasks["alpha"]) is TaskState.OPEN
            coordinator.task_service.abstain("alpha", tasks["alpha"].task_id, "none", {"pseudo_labels/1": 1.0})
            assert state_of(coordinator, tasks["alpha"]) is TaskState.ABSTAINED, "a control"
    asyncio.run(scenario())


def test_a_task_is_written_anew_once_at_a_time_however_often_its_silo_asks(tmp_path: Path) -> None:
    """Each time with other tensors that it claims to hold, and hanging up each time."""
    async def scenario() -> None:
        coordinator = Coordinator(tmp_path)
        coordinator.ledger.query("PRAGMA synchronous = OFF")
        coordinator.compute.tensors = True
        coordinator.enroll(*SILOS)
        coordinator.ledger.queue_study("s", study_config(quorum=2, round_timeout="1h", round_limit="2h"))
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        held: set[str] = set()
        for silo in SILOS:
            task = await coordinator.ask(silo)
            assert isinstance(task, TaskSpec)
            held |= {payload.tensors for payload in task.payloads}
            await coordinator.deliver(task, content_of(task))
        second = await coordinator.ask("alpha", held=held)
        assert isinstance(second, TaskSpec)
        assert second.payloads[0].reference, "it can be read by who holds the first model only"
        compute = HeldUp(coordinator, Tasks)
        for number in range(50):
            call = asyncio.ensure_future(coordinator.ask("alpha", held=() if number % 2 else (f"{number:064x}",)))
            await asyncio.sleep(0.002)
            await hang_up(call)
        last = asyncio.ensure_future(coordinator.ask("alpha", held=()))
        other = asyncio.ensure_future(coordinator.ask("alpha", held=("f" * 64,)))
        await until(coordinator, lambda: compute.waiting >= 1)
        await asyncio.sleep(0.02)
        assert compute.waiting == 1
        compute.may.set()
        for answer in await asyncio.gather(last, other):
            assert isinstance(answer, TaskSpec)
            assert not answer.payloads[0].reference
        assert compute.answered <= 2
        compute.may.clear()
        coordinator.ledger.replace_payloads(coordinator.ledger.task(second.task_id), second.payloads)  # type: ignore[arg-type]
        over = asyncio.ensure_future(coordinator.ask("alpha", held=(), timeout_seconds=0))
        lock = coordinator.task_service._turn
        await until(coordinator, lambda: lock.locked())
        coordinator.ledger.cancel_tasks("alpha", reason="the operator has ended it")
        compute.may.set()
        await over  # the task that was being written, or that there is none: never an error
        await lock.acquire()
        ended = asyncio.ensure_future(coordinator.task_service._written_anew(
            coordinator.ledger.task(second.task_id), frozenset()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        lock.release()
        assert await ended is None
        await hang_up(engine)
        coordinator.close()
    asyncio.run(scenario())


def test_a_late_update_is_noted_once_however_often_it_comes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            coordinator.task_service.abstain("alpha", tasks["alpha"].task_id, "none", {})
            for _ in range(20):
                answer = await coordinator.begin(tasks["alpha"], content_of(tasks["alpha"]))
                assert answer.state == "refused"
            assert len(coordinator.ledger.query("SELECT 1 FROM event WHERE kind = 'update_late'")) == 1
    asyncio.run(scenario())


def test_late_answers_to_several_tasks_in_turn_are_one_event_for_each_task_also_after_a_restart(
        tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            first, service = tasks["alpha"], coordinator.task_service
            second = tasks["beta"]
            for task in (first, second):
                service.abstain(task.silo, task.task_id, "none", {})
            for _ in range(3):
                for _ in range(5):
                    for task in (first, second):
                        assert service.refuse(task.silo, task.task_id, "C", "late").state == "refused"
                service._tasks._late.clear()  # the coordinator has started again
            late = coordinator.ledger.query("SELECT detail_json FROM event WHERE kind = 'update_late' ORDER BY number")
            assert [json.loads(row["detail_json"])["task_id"] for row in late] == [first.task_id, second.task_id]
    asyncio.run(scenario())


def test_the_audit_trail_is_looked_through_once_for_late_answers_however_many_come(tmp_path: Path) -> None:
    """Of a study whose rounds end at their deadlines it has tens of thousands, and each would be read for each."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            service, query, looks = coordinator.task_service, coordinator.ledger.query, []

            def counted(sql: str, *values: object) -> list[sqlite3.Row]:
                looks.extend([sql] if "update_late" in sql else [])
                return query(sql, *values)

            for silo in ("alpha", "beta"):
                service.abstain(silo, tasks[silo].task_id, "none", {})
            with mock.patch.object(coordinator.ledger, "query", counted):
                for silo in ("alpha", "beta"):
                    assert service.refuse(silo, tasks[silo].task_id, "C", "late").state == "refused"
            assert len(looks) == 1
            assert len(query("SELECT 1 FROM event WHERE kind = 'update_late'")) == 2
    asyncio.run(scenario())


def test_a_repeated_abstention_or_refusal_is_one_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            for _ in range(3):
                assert coordinator.task_service.abstain("alpha", tasks["alpha"].task_id, "no\x1b[31m", {"loss": 1.0}) \
                    .state == "have"
                if state_of(coordinator, tasks["beta"]) is TaskState.OPEN:
                    answer = coordinator.task_service.refuse("beta", tasks["beta"].task_id, "X\n", "no\r\n" * 999)
                    assert answer.state == "have"
            alpha = coordinator.ledger.task(tasks["alpha"].task_id)
            beta = coordinator.ledger.task(tasks["beta"].task_id)
            assert alpha is not None
            assert beta is not None
            assert (alpha.reason.isprintable(), beta.reason.isprintable(), len(beta.reason) < 600) == (True,) * 3
            assert len(coordinator.ledger.query("SELECT 1 FROM event WHERE kind LIKE 'task_%'")) == 2
    asyncio.run(scenario())


def test_the_open_task_of_a_failed_study_keeps_no_silo_from_the_next_study(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            coordinator.compute.before = _fail_on("aggregate")
            coordinator.task_service.abstain("alpha", tasks["alpha"].task_id, "none", {})
            await coordinator.deliver(tasks["beta"], content_of(tasks["beta"]))
            await until(coordinator, lambda: coordinator.ledger.study("s").state is StudyState.FAILED)
            with coordinator.ledger.transaction() as db:  # as if it had failed while a silo still worked
                db.execute("UPDATE task SET state = 'open' WHERE silo = 'alpha'")
            coordinator.compute.before = lambda operation, arguments: None
            task = tasks["alpha"]
            assert isinstance(await coordinator.ask("alpha", timeout_seconds=0), Standby)
            assert "is failed" in coordinator.task_service.report("alpha", task.task_id, stage="training", fraction=0,
                                                                  text="")
            late = await coordinator.begin(task, content_of(task))
            assert (late.state, "is failed" in late.reason) == ("refused", True)
            with pytest.raises(TaskClosed, match="is failed"):
                coordinator.task_service.payload_for("alpha", task.task_id, task.payloads[0].digest)
            coordinator.ledger.queue_study("t", study_config())
            coordinator.compute.states = tmp_path / "studies" / "t" / "states"
            engine = asyncio.ensure_future(coordinator.engine.run_next())
            found = await coordinator.ask("alpha")
            assert isinstance(found, TaskSpec)
            assert found.study == "t"
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
    asyncio.run(scenario())


def test_without_a_study_a_silo_is_told_so_and_a_new_study_ends_its_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = Coordinator(tmp_path)
        coordinator.enroll("alpha")
        answer = await coordinator.ask("alpha", timeout_seconds=0)
        assert isinstance(answer, Standby)
        assert answer.reason is StandbyReason.NO_STUDY
        assert coordinator.roster.members() == ["alpha"]
        coordinator.close()
    asyncio.run(scenario())


@pytest.mark.slow
def test_calls_of_many_silos_that_came_together_do_not_end_together_while_there_is_no_study(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand silos called every five seconds in the rhythm in which they had joined, fifty at a time."""
    monkeypatch.setattr(task_service, "_IDLE_POLL_SECONDS", 2.0)
    silos = [f"silo-{number:02}" for number in range(30)]

    async def ends(coordinator: Coordinator) -> list[float]:
        ended: list[float] = []

        async def ask(silo: str) -> None:
            began = asyncio.get_running_loop().time()
            answer = await coordinator.ask(silo, timeout_seconds=60.0)
            assert isinstance(answer, Standby)
            ended.append(asyncio.get_running_loop().time() - began)

        await asyncio.gather(*map(ask, silos))
        return ended

    async def scenario() -> None:
        coordinator = Coordinator(tmp_path)
        for silo in silos:
            coordinator.enroll(silo)
        few = await ends(coordinator)
        assert min(few) > 1.9
        monkeypatch.setattr(task_service, "FEW_SILOS", 20)
        many = await ends(coordinator)
        assert min(many) > 1.9
        assert max(many) - min(many) > 0.4
        coordinator.close()
    asyncio.run(scenario())


def test_a_silo_that_has_answered_is_not_sampled_while_the_coordinator_collects(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            coordinator.task_service.abstain("alpha", tasks["alpha"].task_id, "none", {})
            answer = await coordinator.ask("alpha", timeout_seconds=0)
            assert coordinator.runtime.reason is StandbyReason.COLLECTING
            assert isinstance(answer, Standby)
            assert answer.reason is StandbyReason.NOT_SAMPLED
            assert isinstance(await coordinator.ask("beta", timeout_seconds=0), TaskSpec)
    asyncio.run(scenario())


def _fail_on(operation: str) -> Callable[[str, dict[str, Any]], None]:
    def before(name: str, arguments: dict[str, Any]) -> None:
        if name == operation:
            raise StorageDamaged("A file is missing.")
    return before


def test_the_tasks_of_the_first_phase_name_the_round_whose_model_they_bring_and_the_measure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            assert [(task.model_round, task.measure) for task in tasks.values()] == [(0, "accuracy")] * 2
            now = coordinator.ledger.committed_digest("s")
            assert [task.model_digest for task in tasks.values()] == [now] * 2
    asyncio.run(scenario())


def test_a_silo_that_changes_its_key_all_the_time_ends_no_secure_sum(tmp_path: Path,
                                                                     caplog: pytest.LogCaptureFixture) -> None:
    """512 calls with two keys in turn filled the roster, and every sum failed for good."""
    coordinator = Coordinator(tmp_path)
    coordinator.ledger.query("PRAGMA synchronous = OFF")
    coordinator.enroll("honest", "mallory")
    hello = Hello(version="0", methods=("fedavg",), labelled_count=0, unlabelled_count=10)

    async def call(silo: str, key: bytes) -> None:
        await coordinator.task_service.await_task(silo, replace(hello, identity=key * 32), timeout_seconds=0)

    async def scenario() -> None:
        await call("honest", b"h")
        for number in range(520):
            await call("mallory", b"mn"[number % 2:][:1])
        assert "are not kept: Silo 'mallory' changes its key" in \
            coordinator.task_service.warnings.text("mallory")
        assert coordinator.task_service.warnings.text("honest") == ""
        await call("mallory", b"m")  # that which it had last
        assert coordinator.task_service.warnings.text("mallory") == ""

    events = coordinator.ledger.check_events()
    asyncio.run(scenario())
    assert len(roster_entries(coordinator.ledger)) == 1 + 1 + 2 * 4
    assert coordinator.ledger.check_events() - events <= 12 + 2
    assert sum("no part in secure sums" in each.getMessage() for each in caplog.records) == 1
