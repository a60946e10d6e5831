"""Updates: declared, brought, checked, and accepted exactly once; nothing of any other stays."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import hashlib
import math
import threading
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from semisilo.common.errors import (
    BadPayload,
    DiskFull,
    LayoutMismatch,
    SemisiloError,
    SystemTrouble,
    TaskClosed,
    UpdateConflict,
    WrongBase,
)
from semisilo.common.methods.contract import Meaning, TaskSpec, TensorSpec
from semisilo.common.payload.manifest import GroupManifest
from semisilo.coordinator.compute.messages import CheckUpdate
from semisilo.coordinator.ledger.costs import costs_of
from semisilo.coordinator.ledger.records import DeclaredUpdate
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.tasks import update_service
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration
from tests.coordinator.federation_in_memory import (
    BASE,
    LAYOUT,
    Coordinator,
    content_of,
    id_of,
)
from tests.coordinator.tasks.collecting import SILOS, HeldUp, collecting, hang_up, state_of, statements, until
from tests.processes import PATIENCE_SECONDS

MODEL = GroupManifest("model", Meaning.DIFFERENCE, BASE, LAYOUT, 34)


def test_a_declaration_and_its_bytes_ask_for_their_task_once_in_each_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            update_id, service = id_of(task, content), coordinator.task_service.updates
            for of, most in (("task ", 1), ("declared_update WHERE update_id", 1), ("phase", 1), ("study", 0)):
                asked = statements(coordinator, of)
                found = service.asked_for("alpha", task.task_id, update_id)
                assert found.wants_manifest(num_groups=1, num_tensors=1)
                with pytest.raises(BadPayload):
                    await service.begin("alpha", task.task_id, update_id, UpdateDeclaration(
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


@pytest.mark.parametrize("update_id", [
    "", "a" * 15, "a" * 65, "A" * 32, "../../../etc/passwd", "a" * 31 + "/", "a" * 31 + "\n", "a" * 31 + "\0",
    ("a" * 32) + ".part", "ä" * 32, "g" * 32, "１" * 32])
def test_an_update_id_is_plain_hex(tmp_path: Path, update_id: str) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            with pytest.raises(BadPayload, match="update_id"):
                await coordinator.begin(tasks["alpha"], b"x" * 100, update_id=update_id or "\0")
            with pytest.raises(BadPayload, match="update_id"):
                await coordinator.task_service.updates.upload("alpha", update_id)
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
                partial, _ = await coordinator.task_service.updates.upload("alpha", name)
                with partial:
                    partial.append(b"x" * 10, offset=0, crc32=zlib.crc32(b"x" * 10))
            assert coordinator.ledger.unfinished_updates("s", 1) == [f"{49:032x}"]
            assert coordinator.spool.total_bytes() == 10
            assert len(list((tmp_path / "spool" / "incoming").iterdir())) == 2  # one partial file and its journal
            with pytest.raises(TaskClosed, match="not declared"):
                await coordinator.task_service.updates.upload("alpha", f"{48:032x}")
            await coordinator.deliver(task, content_of(task))
            assert state_of(coordinator, task) is TaskState.UPDATED
    asyncio.run(scenario())


def test_an_upload_resumes_from_what_is_on_disk_and_is_accepted_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            assert (await coordinator.begin(task, content)).resume_offset == 0
            partial, _ = await coordinator.task_service.updates.upload("alpha", id_of(task, content))
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
            partial, update = await coordinator.task_service.updates.upload("alpha", id_of(task, content))
            partial.append(content, offset=0, crc32=zlib.crc32(content))
            partial.finish(update.digest)
            second, _ = await coordinator.task_service.updates.upload("alpha", id_of(task, content))
            await asyncio.gather(coordinator.task_service.updates.accept("alpha", update, partial),
                                 coordinator.task_service.updates.accept("alpha", update, second))
            second.close()
            assert sum(row.count for row in costs_of(coordinator.ledger, "s") if row.item == "model") == 1
            assert len(coordinator.ledger.query("SELECT 1 FROM event WHERE kind = 'task_updated'")) == 1
    asyncio.run(scenario())


async def whole(coordinator: Coordinator, task: TaskSpec, content: bytes, name: str) -> DeclaredUpdate:
    """An update whose bytes have all come."""
    await coordinator.begin(task, content, update_id=name)
    update = coordinator.task_service.updates.awaited(task.silo, name)
    await coordinator.task_service.updates.store(update, content)
    return update


def test_an_update_that_is_brought_again_and_again_is_checked_once(tmp_path: Path) -> None:
    """A silo may hang up and come back fifty times a second; what it leaves behind no limit on calls counts."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            compute, service = HeldUp(coordinator, CheckUpdate), coordinator.task_service.updates
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
        said = list[str]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: said.append(f"{what}"))
        async with collecting(tmp_path) as (coordinator, tasks):
            task, compute, service = tasks["alpha"], HeldUp(coordinator, CheckUpdate), coordinator.task_service.updates
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
            gc.collect()
            assert said == [], "that nobody waits for a refused update any more is no error of the program"
    asyncio.run(scenario())


def test_an_update_whose_phase_closes_while_it_waits_for_its_check_is_not_checked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            compute, service = HeldUp(coordinator, CheckUpdate), coordinator.task_service.updates
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


def test_however_often_a_silo_asks_how_far_its_update_has_come_one_thread_looks(tmp_path: Path) -> None:
    """After a restart all of it has to be read, and the threads are there for other silos as well."""
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["alpha"], content_of(tasks["alpha"])
            await coordinator.begin(task, content)
            partial, _ = await coordinator.task_service.updates.upload("alpha", id_of(task, content))
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
                                 coordinator.task_service.updates.upload("alpha", id_of(task, content)))
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
            partial, update = await coordinator.task_service.updates.upload("alpha", id_of(task, content))
            wrong = bytes(len(content))
            with partial:
                partial.append(wrong, offset=0, crc32=zlib.crc32(wrong))
                with pytest.raises(BadPayload, match="SHA-256"):
                    await coordinator.task_service.updates.accept("alpha", update, partial)
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
            partial, update = await coordinator.task_service.updates.upload("alpha", id_of(task, content))
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
    service, ledger = coordinator.task_service.updates, coordinator.ledger
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
    with mock.patch.object(update_service, "_LONGEST_GATHERING_SECONDS", 2 * PATIENCE_SECONDS), \
            mock.patch.object(update_service, "_GATHERING_SECONDS_PER_SILO", PATIENCE_SECONDS):
        calls = {silo: asyncio.ensure_future(service.accept(silo, update, None)) for silo, update in updates.items()}
        await until(coordinator, lambda: len(service._checked) == len(SILOS))
    assert not commits
    assert not any(call.done() for call in calls.values())
    yield calls, commits


def test_updates_of_many_silos_are_answered_with_one_wait_for_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            async with gathering(coordinator, tasks) as (calls, commits):
                coordinator.task_service.updates._answer_checked()
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
                coordinator.task_service.updates._answer_checked()
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
            partial, update = await coordinator.task_service.updates.upload("alpha", id_of(task, content))
            partial.append(content, offset=0, crc32=zlib.crc32(content))
            acceptance = asyncio.ensure_future(coordinator.task_service.updates.accept("alpha", update, partial))
            coordinator.compute.after = lambda operation, arguments: coordinator.ledger.query(
                "DELETE FROM declared_update") and None if operation == "check_update" else None
            with pytest.raises(TaskClosed, match="another update"):
                await acceptance
            assert state_of(coordinator, task) is TaskState.OPEN
    asyncio.run(scenario())


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
            partial, update = await coordinator.task_service.updates.upload("beta", id_of(task, content))
            partial.append(content[:40], offset=0, crc32=zlib.crc32(content[:40]))
            assert coordinator.task_service.updates.still_wanted(update)
            await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
            coordinator.roster.revoke("beta")
            coordinator.ledger.move_deadline(coordinator.ledger.phase("s", 1, 0), deadline_unix=0, limit_unix=0)
            coordinator.runtime.notify()
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED
                        and coordinator.spool.total_bytes() == 0)  # it is tidied up once the ledger says so
            assert not coordinator.task_service.updates.still_wanted(update)
            assert list((tmp_path / "spool" / "incoming").iterdir()) == []
            with pytest.raises(BadPayload, match="ended here"):  # the stream that was open
                partial.append(content[40:], offset=40, crc32=zlib.crc32(content[40:]))
    asyncio.run(scenario())


def test_what_a_late_silo_has_sent_whole_does_not_stay_in_the_spool_and_an_accepted_update_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collecting(tmp_path) as (coordinator, tasks):
            task, content = tasks["beta"], content_of(tasks["beta"])
            await coordinator.begin(task, content)
            late = coordinator.task_service.updates.awaited("beta", id_of(task, content))
            accepted = tasks["alpha"]
            await coordinator.deliver(accepted, content_of(accepted))
            again = coordinator.ledger.declared_update(id_of(accepted, content_of(accepted)))
            assert again is not None
            with pytest.raises(TaskClosed):  # the same content, under another id
                await coordinator.task_service.updates.accept("alpha", replace(again, update_id="other"), None)
            assert coordinator.spool.has(again.digest), "it is still to be folded"
            coordinator.roster.revoke("beta")
            coordinator.runtime.notify()  # as `serve` does when the roster has changed
            await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED)
            # Its last byte comes after the round was tidied up.
            await coordinator.task_service.updates.store(late, content)
            with pytest.raises(TaskClosed):
                await coordinator.task_service.updates.accept("beta", late, None)
            assert not coordinator.spool.has(late.digest)
    asyncio.run(scenario())
