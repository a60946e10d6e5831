"""The task service: what a silo may ask, for its own tasks only, and how an update becomes accepted exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import math
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from semisilo.common.errors import (
    BadPayload,
    DiskFull,
    LayoutMismatch,
    PayloadNotServed,
    SemisiloError,
    StorageDamaged,
    SystemTrouble,
    TaskClosed,
    UpdateConflict,
    WrongBase,
)
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.common.methods.contract import Meaning, TaskSpec, TensorSpec
from semisilo.common.payload.manifest import GroupManifest
from semisilo.common.payload.usage import FRAMING, parts_of
from semisilo.coordinator.compute.messages import CheckUpdate, Tasks
from semisilo.coordinator.ledger.costs import costs_of
from semisilo.coordinator.ledger.encodings import encodings_of
from semisilo.coordinator.ledger.records import DeclaredUpdate
from semisilo.coordinator.ledger.secure_sums.roster import roster_entries
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import site_evaluations
from semisilo.coordinator.rounds import task_service
from semisilo.coordinator.rounds.runtime import StandbyReason
from semisilo.coordinator.rounds.task_service import Hello, Standby, UpdateDeclaration
from tests.coordinator.federation_in_memory import (
    BASE,
    LAYOUT,
    Coordinator,
    content_of,
    id_of,
    payload_of_blocks,
    study_config,
)
from tests.processes import PATIENCE_SECONDS

SILOS = ("alpha", "beta")
MODEL = GroupManifest("model", Meaning.DIFFERENCE, BASE, LAYOUT, 34)


@contextlib.asynccontextmanager
async def collecting(folder: Path, **options: Any) -> AsyncIterator[tuple[Coordinator, dict[str, TaskSpec]]]:
    """A coordinator whose first round waits for both silos."""
    coordinator = Coordinator(folder, **options)
    coordinator.ledger.query("PRAGMA synchronous = OFF")
    coordinator.enroll(*SILOS)
    coordinator.ledger.queue_study("s", study_config(quorum=2, round_timeout="1h", round_limit="2h"))
    engine = asyncio.ensure_future(coordinator.engine.run_next())
    try:
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        tasks = {}
        for silo in SILOS:
            task = await coordinator.ask(silo)
            assert isinstance(task, TaskSpec)
            tasks[silo] = task
        yield coordinator, tasks
    finally:
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()


async def until(coordinator: Coordinator, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def state_of(coordinator: Coordinator, task: TaskSpec) -> TaskState:
    row = coordinator.ledger.task(task.task_id)
    assert row is not None
    return row.state


def statements(coordinator: Coordinator, of: str) -> list[str]:
    """Where the ledger notes from now on which statements about a table it is asked."""
    found: list[str] = []
    coordinator.ledger._db.set_trace_callback(lambda sql: found.append(sql) if f"FROM {of}" in sql else None)
    return found


def test_a_declaration_and_its_bytes_ask_for_their_task_once_in_each_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            update_id, service = id_of(task, content), coordinator.task_service
            for of, most in (("task ", 1), ("declared_update WHERE update_id", 1), ("phase", 1), ("study", 0)):
                asked = statements(coordinator, of)
                found = service.asked_for("alpha", task.task_id, update_id)
                assert found.wants_manifest(num_groups=1, num_tensors=1)
                with pytest.raises(BadPayload):
                    await service.begin_update("alpha", task.task_id, update_id, UpdateDeclaration(
                        digest="0" * 64, size_bytes=1, groups=(), example_count=1, metrics={}, training_seconds=0.0),
                        asked=found)
                assert len(asked) == most, of
            await coordinator.begin(task, content)
            for of, most in (("task ", 1), ("declared_update", 1), ("study", 0)):
                asked = statements(coordinator, of)
                service.awaited("alpha", update_id)
                assert len(asked) == most, of
            coordinator.ledger._db.set_trace_callback(None)
            known = service.asked_for("alpha", task.task_id, update_id)
            assert known.known is not None
            assert not known.wants_manifest(num_groups=10_000, num_tensors=10_000), "it is not looked at"
    asyncio.run(scenario())


# Whose task -----------------------------------------------------------------------------------------------------------


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
                await task_service.upload("beta", id_of(task, content))
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


# Declarations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update_id", [
    "", "a" * 15, "a" * 65, "A" * 32, "../../../etc/passwd", "a" * 31 + "/", "a" * 31 + "\n", "a" * 31 + "\0",
    ("a" * 32) + ".part", "ä" * 32, "g" * 32, "１" * 32])
def test_an_update_id_is_plain_hex(tmp_path: Path, update_id: str) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            with pytest.raises(BadPayload, match="update_id"):
                await coordinator.begin(tasks["alpha"], b"x" * 100, update_id=update_id or "\0")
            with pytest.raises(BadPayload, match="update_id"):
                await coordinator.task_service.upload("alpha", update_id)
            assert coordinator.spool.total_bytes() == 0
    asyncio.run(scenario())


REFUSED: list[tuple[str, dict[str, Any], type[SemisiloError], str]] = [
    ("undeclared group", {"groups": (MODEL, replace(MODEL, name="patients"))}, BadPayload, "patients"),
    ("no group", {"groups": ()}, BadPayload, "model"),
    ("another meaning", {"groups": (replace(MODEL, meaning=Meaning.VALUES, base=""),)}, BadPayload, "model"),
    ("another base", {"groups": (replace(MODEL, base="0" * 64),)}, WrongBase, "base"),
    ("another shape", {"groups": (replace(MODEL, tensors=(TensorSpec("weight", (2, 2), "float32"),)),)},
     LayoutMismatch, "weight"),
    ("another type", {"groups": (replace(MODEL, tensors=(TensorSpec("weight", (4,), "int32"),)),)}, LayoutMismatch,
     "weight"),
    ("another tensor", {"groups": (replace(MODEL, tensors=(*LAYOUT, TensorSpec("x", (1,), "float32"))),)},
     LayoutMismatch, "2 tensors"),
    ("no bytes", {"size_bytes": 0}, BadPayload, "0 bytes"),
    ("a negative size", {"size_bytes": -1}, BadPayload, "-1 bytes"),
    ("more bytes than can be", {"size_bytes": 2**62}, BadPayload, "at most"),
    ("fewer bytes than its groups", {"size_bytes": 33}, BadPayload, "fewer bytes"),
    ("a negative count", {"example_count": -1}, BadPayload, "example_count"),
    ("a count that weights cannot be computed with", {"example_count": 2**62}, BadPayload, "example_count"),
    ("a negative time", {"training_seconds": -0.1}, BadPayload, "time"),
    ("no time at all", {"training_seconds": math.nan}, BadPayload, "time"),
    ("an undeclared metric", {"metrics": {"loss": 1.0, "patient_age": 60.0}}, BadPayload, "patient_age"),
    ("a metric that is no number", {"metrics": {"loss": math.nan}}, BadPayload, "loss"),
    ("an infinite metric", {"metrics": {"loss": math.inf}}, BadPayload, "loss"),
    ("a class in digits that are none", {"metrics": {"pseudo_labels/\u00b2": 1.0}}, BadPayload, "has no metric"),
    ("a class in digits of another script", {"metrics": {"pseudo_labels/\u0661": 1.0}}, BadPayload, "has no metric"),
    ("a class with zeros in front", {"metrics": {"pseudo_labels/01": 1.0}}, BadPayload, "has no metric"),
    ("a class that no memory has room for", {"metrics": {"pseudo_labels/99999999999": 1.0}}, BadPayload,
     "has no metric"),
    ("how right its labels are, which no silo knows", {"metrics": {"pseudo_label_accuracy": 1.0}}, BadPayload,
     "in a simulation only"),
    ("how right those it kept are", {"metrics": {"threshold_accuracy": 1.0}}, BadPayload, "in a simulation only"),
    ("a class that the study has not", {"metrics": {"pseudo_labels/2": 1.0}}, BadPayload, "it has 2"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "error", "word"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_declaration_that_the_task_does_not_allow_is_refused_before_a_byte_is_taken(
        tmp_path: Path, changes: dict[str, Any], error: type[SemisiloError], word: str) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            content = content_of(tasks["alpha"])
            with pytest.raises(error, match=word):
                await coordinator.begin(tasks["alpha"], content, **changes)
            assert coordinator.ledger.unfinished_updates("s", 1) == []
            assert coordinator.spool.total_bytes() == 0
            assert state_of(coordinator, tasks["alpha"]) is TaskState.OPEN
            assert (await coordinator.begin(tasks["alpha"], content)).state == "send"  # the control
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


def test_one_update_id_stands_for_one_content(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            name = "a" * 32
            first = await coordinator.begin(tasks["alpha"], b"x" * 100, update_id=name)
            assert await coordinator.begin(tasks["alpha"], b"x" * 100, update_id=name) == first
            with pytest.raises(UpdateConflict):
                await coordinator.begin(tasks["alpha"], b"y" * 100, update_id=name)
            with pytest.raises(UpdateConflict):
                await coordinator.begin(tasks["alpha"], b"x" * 100, update_id=name, size_bytes=2**40)
            with pytest.raises(UpdateConflict):
                await coordinator.begin(tasks["beta"], b"x" * 100, update_id=name)
    asyncio.run(scenario())


def test_a_task_never_has_two_updates_so_a_silo_cannot_fill_ledger_or_spool(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task = tasks["alpha"]
            for number in range(50):
                name = f"{number:032x}"
                await coordinator.begin(task, b"x%099d" % number, update_id=name)
                partial, _ = await coordinator.task_service.upload("alpha", name)
                with partial:
                    partial.append(b"x" * 10, offset=0, crc32=zlib.crc32(b"x" * 10))
            assert coordinator.ledger.unfinished_updates("s", 1) == [f"{49:032x}"]
            assert coordinator.spool.total_bytes() == 10
            assert len(list((tmp_path / "spool" / "incoming").iterdir())) == 2  # one partial file and its journal
            with pytest.raises(TaskClosed, match="not declared"):
                await coordinator.task_service.upload("alpha", f"{48:032x}")
            await coordinator.deliver(task, content_of(task))
            assert state_of(coordinator, task) is TaskState.UPDATED
    asyncio.run(scenario())


# Uploads --------------------------------------------------------------------------------------------------------------


def test_an_upload_resumes_from_what_is_on_disk_and_is_accepted_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            assert (await coordinator.begin(task, content)).resume_offset == 0
            partial, _ = await coordinator.task_service.upload("alpha", id_of(task, content))
            with partial:
                partial.append(content[:40], offset=0, crc32=zlib.crc32(content[:40]))
            assert (await coordinator.begin(task, content)).resume_offset == 40
            await coordinator.deliver(task, content)
            assert (await coordinator.begin(task, content)).state == "have"
            up = {row.item: row.bytes for row in costs_of(coordinator.ledger, "s") if row.direction == "up"}
            assert up == {"model": 34, "manifest": len(content) - 34}
            another = await coordinator.begin(task, b"another".ljust(100), update_id="b" * 32)
            assert (another.state, "over" in another.reason) == ("refused", True)
            assert coordinator.task_service.abstain("alpha", task.task_id, "none", {}).state == "refused"
            assert coordinator.task_service.refuse("alpha", task.task_id, "X", "no").state == "refused"
            assert state_of(coordinator, task) is TaskState.UPDATED
    asyncio.run(scenario())


def test_two_uploads_of_the_same_update_that_end_together_count_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            await coordinator.begin(task, content)
            partial, update = await coordinator.task_service.upload("alpha", id_of(task, content))
            partial.append(content, offset=0, crc32=zlib.crc32(content))
            partial.finish(update.digest)
            second, _ = await coordinator.task_service.upload("alpha", id_of(task, content))
            await asyncio.gather(coordinator.task_service.accept("alpha", update, partial),
                                 coordinator.task_service.accept("alpha", update, second))
            second.close()
            assert sum(row.count for row in costs_of(coordinator.ledger, "s") if row.item == "model") == 1
            assert len(coordinator.ledger.query("SELECT 1 FROM event WHERE kind = 'task_updated'")) == 1
    asyncio.run(scenario())


class HeldUp:
    """The compute process takes one request at a time and is slow: what waits for it is counted."""

    def __init__(self, coordinator: Coordinator, kind: type[Any]) -> None:
        self.waiting = 0
        self.answered = 0
        self.may = asyncio.Event()
        self._ask, self._kind = coordinator.compute.call, kind
        coordinator.compute.call = self._call  # type: ignore[method-assign]

    async def _call(self, request: Any, **more: Any) -> Any:
        if not isinstance(request, self._kind):
            return await self._ask(request, **more)
        self.waiting += 1
        await self.may.wait()
        self.waiting -= 1
        self.answered += 1
        return await self._ask(request, **more)


async def whole(coordinator: Coordinator, task: TaskSpec, content: bytes, name: str) -> DeclaredUpdate:
    """An update whose bytes have all come."""
    await coordinator.begin(task, content, update_id=name)
    update = coordinator.task_service.awaited(task.silo, name)
    await coordinator.task_service.store(update, content)
    return update


async def hang_up(*calls: asyncio.Future[Any]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def test_an_update_that_is_brought_again_and_again_is_checked_once(tmp_path: Path) -> None:
    """A silo may hang up and come back fifty times a second; what it leaves behind no limit on calls counts."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            compute, service = HeldUp(coordinator, CheckUpdate), coordinator.task_service
            update = await whole(coordinator, task, content, id_of(task, content))
            for _ in range(50):
                assert service.has_all(update)
                call = asyncio.ensure_future(service.accept("alpha", update, None))
                await until(coordinator, lambda: service.is_accepting(update))
                await asyncio.sleep(0.001)
                await hang_up(call)
            await until(coordinator, lambda: compute.waiting == 1)
            staying = [asyncio.ensure_future(service.accept("alpha", update, None)) for _ in range(3)]
            await asyncio.sleep(0.05)
            assert compute.waiting == 1
            assert sum("_accept_or_remove" in repr(each.get_coro()) for each in asyncio.all_tasks()) == 1
            compute.may.set()
            await asyncio.gather(*staying)
            assert (compute.answered, service.is_accepting(update)) == (1, False)
            assert state_of(coordinator, task) is TaskState.UPDATED
    asyncio.run(scenario())


def test_an_update_that_is_replaced_while_it_waits_for_its_check_goes_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, compute, service = tasks["alpha"], HeldUp(coordinator, CheckUpdate), coordinator.task_service
            for number in range(20):
                update = await whole(coordinator, task, b"x%099d" % number, f"{number:032x}")
                call = asyncio.ensure_future(service.accept("alpha", update, None))
                await until(coordinator, lambda update=update: update.update_id in service._acceptances)  # type: ignore[misc]
                await hang_up(call)
            beta = asyncio.ensure_future(coordinator.deliver(tasks["beta"], content_of(tasks["beta"])))
            # The first is being checked; of the others the last and beta's wait for that.
            await until(coordinator, lambda: len(service._acceptances) == 3 and len(coordinator.spool.digests()) == 3
                        and compute.waiting == 1)
            compute.may.set()
            await beta
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
            assert compute.answered == 3
            await until(coordinator, lambda: service._acceptances == {})
    asyncio.run(scenario())


def test_an_update_whose_phase_closes_while_it_waits_for_its_check_is_not_checked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            compute, service = HeldUp(coordinator, CheckUpdate), coordinator.task_service
            updates = [await whole(coordinator, tasks[silo], content_of(tasks[silo]),
                                   id_of(tasks[silo], content_of(tasks[silo]))) for silo in SILOS]
            calls = [asyncio.ensure_future(service.accept(silo, update, None))
                     for silo, update in zip(SILOS, updates, strict=True)]
            await until(coordinator, lambda: compute.waiting == 1 and service._acceptances[updates[1].update_id].waits)
            coordinator.ledger.cancel_tasks("beta", reason="the operator has ended it")
            compute.may.set()
            await calls[0]
            with pytest.raises(TaskClosed):
                await calls[1]
            assert compute.answered == 1
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


def test_however_often_a_silo_asks_how_far_its_update_has_come_one_thread_looks(tmp_path: Path) -> None:
    """After a restart all of it has to be read, and the threads are there for other silos as well."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            await coordinator.begin(task, content)
            partial, _ = await coordinator.task_service.upload("alpha", id_of(task, content))
            with partial:
                partial.append(content[:40], offset=0, crc32=zlib.crc32(content[:40]))
            look, looks, may = coordinator.spool.partial, 0, threading.Event()

            def slow(*args: Any, **more: Any) -> Any:
                nonlocal looks
                looks += 1
                assert may.wait(PATIENCE_SECONDS)
                return look(*args, **more)

            with mock.patch.object(coordinator.spool, "partial", slow):
                for number in range(20):
                    call: Any = (coordinator.begin(task, content) if number % 2 else
                                 coordinator.task_service.upload("alpha", id_of(task, content)))
                    call = asyncio.ensure_future(call)
                    await asyncio.sleep(0.001)
                    await hang_up(call)
                staying = [asyncio.ensure_future(coordinator.begin(task, content)) for _ in range(3)]
                await until(coordinator, lambda: looks >= 1)
                await asyncio.sleep(0.02)
                assert looks == 1
                may.set()
                assert {answer.resume_offset for answer in await asyncio.gather(*staying)} == {40}
            await coordinator.deliver(task, content)
    asyncio.run(scenario())


def test_bytes_that_do_not_have_the_declared_digest_are_dropped_and_may_come_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            await coordinator.begin(task, content)
            partial, update = await coordinator.task_service.upload("alpha", id_of(task, content))
            wrong = bytes(len(content))
            with partial:
                partial.append(wrong, offset=0, crc32=zlib.crc32(wrong))
                with pytest.raises(BadPayload, match="SHA-256"):
                    await coordinator.task_service.accept("alpha", update, partial)
            assert state_of(coordinator, task) is TaskState.OPEN
            assert (await coordinator.deliver(task, content)).resume_offset == 0
            assert state_of(coordinator, task) is TaskState.UPDATED
    asyncio.run(scenario())


def test_an_update_that_is_in_the_spool_already_needs_no_bytes(tmp_path: Path) -> None:
    """As when the coordinator died between the end of the upload and its record."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            await coordinator.begin(task, content)
            partial, update = await coordinator.task_service.upload("alpha", id_of(task, content))
            partial.append(content, offset=0, crc32=zlib.crc32(content))
            partial.finish(update.digest)
            with pytest.raises(BadPayload, match="has 100"):  # beta claims the same digest with another size
                await coordinator.begin(tasks["beta"], content, size_bytes=99)
            assert (await coordinator.deliver(task, content)).resume_offset == len(content)
            assert state_of(coordinator, task) is TaskState.UPDATED
    asyncio.run(scenario())


def test_an_update_whose_name_the_disk_did_not_keep_is_not_accepted_before_it_does(tmp_path: Path) -> None:
    """Its file is there under its name: the disk failed when the folder was to be synchronised."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            broken = mock.Mock(side_effect=OSError(errno.EIO, "broken"))
            with mock.patch("semisilo.common.storage.store.sync_folder", broken):
                for _ in range(2):  # the second time nothing more is sent
                    with pytest.raises(SystemTrouble):
                        await coordinator.deliver(task, content)
            assert coordinator.spool.has(hashlib.sha256(content).hexdigest())
            assert state_of(coordinator, task) is TaskState.OPEN
            assert (await coordinator.deliver(task, content)).resume_offset == len(content)
            assert coordinator.spool.lasts(hashlib.sha256(content).hexdigest())
            assert state_of(coordinator, task) is TaskState.UPDATED
    asyncio.run(scenario())


@contextlib.asynccontextmanager
async def gathering(coordinator: Coordinator, tasks: Mapping[str, TaskSpec],
                    ) -> AsyncIterator[tuple[dict[str, asyncio.Future[None]], list[bool]]]:
    """Both updates are checked among many silos, and wait to be answered together; the answers by silo, and lasting
    transactions since."""
    service, ledger = coordinator.task_service, coordinator.ledger
    coordinator.runtime.connected.update({f"other-{number}": 1 for number in range(1000)})
    commits, transaction = list[bool](), ledger.transaction

    @contextlib.contextmanager
    def counted(*, lasting: bool = True) -> Iterator[Any]:
        if lasting and not ledger._inside:
            commits.append(lasting)
        with transaction(lasting=lasting) as db:
            yield db
    updates = {silo: await whole(coordinator, tasks[silo], content_of(tasks[silo]),
                                 id_of(tasks[silo], content_of(tasks[silo]))) for silo in SILOS}
    ledger.transaction = counted  # type: ignore[method-assign]
    with mock.patch.object(task_service, "_LONGEST_GATHERING_SECONDS", 2 * PATIENCE_SECONDS), \
            mock.patch.object(task_service, "_GATHERING_SECONDS_PER_SILO", PATIENCE_SECONDS):
        calls = {silo: asyncio.ensure_future(service.accept(silo, update, None)) for silo, update in updates.items()}
        await until(coordinator, lambda: len(service._checked) == len(SILOS))
    assert not commits
    assert not any(call.done() for call in calls.values())
    yield calls, commits


def test_updates_of_many_silos_are_answered_with_one_wait_for_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            async with gathering(coordinator, tasks) as (calls, commits):
                coordinator.task_service._answer_checked()
                assert len(commits) == 1
                await asyncio.gather(*calls.values())
            assert [state_of(coordinator, tasks[silo]) for silo in SILOS] == [TaskState.UPDATED] * 2
            ends = [event.kind for event in coordinator.ledger.events_after(0, limit=1000)]
            assert ends.count("task_updated") == 2
    asyncio.run(scenario())


def test_an_update_alone_among_many_silos_is_answered_in_a_moment(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            coordinator.runtime.connected.update({f"other-{number}": 1 for number in range(1000)})
            async with asyncio.timeout(PATIENCE_SECONDS):
                await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            assert state_of(coordinator, tasks["alpha"]) is TaskState.UPDATED
    asyncio.run(scenario())


def test_of_updates_that_wait_together_one_that_cannot_be_taken_hinders_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            async with gathering(coordinator, tasks) as (calls, _):
                coordinator.ledger.cancel_tasks("alpha", reason="the operator has ended it")
                coordinator.task_service._answer_checked()
                await calls["beta"]
                with pytest.raises(TaskClosed, match="the operator has ended it"):
                    await calls["alpha"]
            assert [state_of(coordinator, tasks[silo]) for silo in SILOS] == [TaskState.CANCELLED, TaskState.UPDATED]
            assert [task.silo for task, _ in coordinator.ledger.accepted_updates("s", 1, 0)] == ["beta"]
    asyncio.run(scenario())


def test_an_update_whose_phase_closes_during_its_check_is_late(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            def close(operation: str, arguments: dict[str, Any]) -> None:
                if operation == "check_update":
                    coordinator.compute.before = lambda operation, arguments: None
                    coordinator.ledger.close_phase(coordinator.ledger.phase("s", 1, 0))
            coordinator.compute.before = close
            with pytest.raises(TaskClosed, match="phase closed"):
                await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            assert state_of(coordinator, tasks["alpha"]) is TaskState.EXPIRED
            assert coordinator.ledger.accepted_updates("s", 1, 0) == []
    asyncio.run(scenario())


def test_an_update_that_another_one_replaces_during_its_check_is_not_accepted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            await coordinator.begin(task, content)
            partial, update = await coordinator.task_service.upload("alpha", id_of(task, content))
            partial.append(content, offset=0, crc32=zlib.crc32(content))
            acceptance = asyncio.ensure_future(coordinator.task_service.accept("alpha", update, partial))
            coordinator.compute.after = lambda operation, arguments: coordinator.ledger.query(
                "DELETE FROM declared_update") and None if operation == "check_update" else None
            with pytest.raises(TaskClosed, match="another update"):
                await acceptance
            assert state_of(coordinator, task) is TaskState.OPEN
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
                service._late_tasks.clear()  # the coordinator has started again
            late = coordinator.ledger.query("SELECT detail_json FROM event WHERE kind = 'update_late' ORDER BY number")
            assert [json.loads(row["detail_json"])["task_id"] for row in late] == [first.task_id, second.task_id]
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


# Room -----------------------------------------------------------------------------------------------------------------


def test_a_full_spool_refuses_and_takes_the_update_once_there_is_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path, spool_bytes=150) as (coordinator, tasks):
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            with pytest.raises(DiskFull) as caught:
                await coordinator.deliver(tasks["beta"], content_of(tasks["beta"]))
            assert caught.value.retry
            assert state_of(coordinator, tasks["beta"]) is TaskState.OPEN
            coordinator.spool.limit_bytes = 1000
            await coordinator.deliver(tasks["beta"], content_of(tasks["beta"]))
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
    asyncio.run(scenario())


def test_what_a_late_silo_has_sent_half_does_not_stay_in_the_spool(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["beta"], content_of(tasks["beta"])
            await coordinator.begin(task, content)
            partial, update = await coordinator.task_service.upload("beta", id_of(task, content))
            partial.append(content[:40], offset=0, crc32=zlib.crc32(content[:40]))
            assert coordinator.task_service.still_wanted(update)
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            coordinator.roster.revoke("beta")
            coordinator.ledger.move_deadline(coordinator.ledger.phase("s", 1, 0), deadline_unix=0, limit_unix=0)
            coordinator.runtime.notify()
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED
                        and coordinator.spool.total_bytes() == 0)  # it is tidied up once the ledger says so
            assert not coordinator.task_service.still_wanted(update)
            assert list((tmp_path / "spool" / "incoming").iterdir()) == []
            with pytest.raises(BadPayload, match="ended here"):  # the stream that was open
                partial.append(content[40:], offset=40, crc32=zlib.crc32(content[40:]))
    asyncio.run(scenario())


def test_what_a_late_silo_has_sent_whole_does_not_stay_in_the_spool_and_an_accepted_update_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["beta"], content_of(tasks["beta"])
            await coordinator.begin(task, content)
            late = coordinator.task_service.awaited("beta", id_of(task, content))
            accepted = tasks["alpha"]
            await coordinator.deliver(accepted, content_of(accepted))
            again = coordinator.ledger.declared_update(id_of(accepted, content_of(accepted)))
            assert again is not None
            with pytest.raises(TaskClosed):  # the same content, under another id
                await coordinator.task_service.accept("alpha", replace(again, update_id="other"), None)
            assert coordinator.spool.has(again.digest), "it is still to be folded"
            coordinator.roster.revoke("beta")
            coordinator.runtime.notify()  # as `serve` does when the roster has changed
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED)
            await coordinator.task_service.store(late, content)  # its last byte comes after the round was tidied up
            with pytest.raises(TaskClosed):
                await coordinator.task_service.accept("beta", late, None)
            assert not coordinator.spool.has(late.digest)
    asyncio.run(scenario())


# Studies --------------------------------------------------------------------------------------------------------------


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
        monkeypatch.setattr(task_service, "_FEW_SILOS", 20)
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


# What silos say of the global model -----------------------------------------------------------------------------------


def evaluation(round: int = 0, *, study: str = "s", correct: int = 6, classes: int = 2,
               labels_alone: bool = False, model_digest: str = "") -> SiteEvaluation:
    return SiteEvaluation(study=study, round=round, labels_alone=labels_alone, model_digest=model_digest, classes=(
        ClassResult(images=10, correct=correct), *(ClassResult(images=5, correct=1),) * (classes - 1)))


async def say(coordinator: Coordinator, silo: str, *evaluations: SiteEvaluation) -> None:
    await coordinator.task_service.await_task(silo, Hello(
        version="0", methods=("semifl",), labelled_count=0, unlabelled_count=10, evaluations=evaluations),
        timeout_seconds=0)


def noted(coordinator: Coordinator) -> dict[str, SiteEvaluation]:
    return site_evaluations(coordinator.ledger, "s", round=0)


def test_the_tasks_of_the_first_phase_name_the_round_whose_model_they_bring_and_the_measure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            assert [(task.model_round, task.measure) for task in tasks.values()] == [(0, "accuracy")] * 2
            now = coordinator.ledger.committed_digest("s")
            assert [task.model_digest for task in tasks.values()] == [now] * 2
    asyncio.run(scenario())


def test_an_evaluation_of_a_silo_that_has_answered_is_noted_once_with_an_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            await say(coordinator, "alpha", evaluation())
            assert noted(coordinator) == {}, "it has had no part in the study yet"
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            await say(coordinator, "alpha", evaluation())
            await say(coordinator, "alpha", evaluation(correct=9), evaluation())
            assert noted(coordinator) == {"alpha": evaluation()}
            events = coordinator.ledger.query("SELECT detail_json FROM event WHERE kind = 'site_evaluation'")
            assert len(events) == 1
            assert json.loads(events[0]["detail_json"])["correct"] == 7
    asyncio.run(scenario())


def test_an_evaluation_of_a_model_that_is_another_one_by_now_is_dropped(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a silo sends it that was restarted while the study went back and did the round again."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            await say(coordinator, "alpha", evaluation(correct=9, model_digest="ab" * 32))
            assert noted(coordinator) == {}
            assert "an evaluation of silo alpha is dropped: the model of its round is another one by now" in caplog.text
            await say(coordinator, "alpha", evaluation(model_digest=tasks["alpha"].model_digest))
            assert noted(coordinator) == {"alpha": evaluation()}
    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", [
    evaluation(1), evaluation(10**9), evaluation(classes=3), evaluation(classes=1), evaluation(study="other"),
    evaluation(labels_alone=True)], ids=["open round", "far round", "more classes", "fewer", "unknown study",
                                         "no labels alone"])
def test_an_evaluation_that_cannot_be_of_the_study_is_dropped_and_the_silo_goes_on(
        tmp_path: Path, wrong: SiteEvaluation, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            await say(coordinator, "alpha", wrong, evaluation())
            assert coordinator.ledger.query("SELECT count(*) AS n FROM site_evaluation")[0]["n"] == 1
            assert noted(coordinator) == {"alpha": evaluation()}
            assert "an evaluation of silo alpha is dropped" in caplog.text
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
