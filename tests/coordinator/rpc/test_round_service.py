"""Hostile RPCs over real mutual TLS: every refusal has a code of the catalogue, and the coordinator works on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import pytest

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.audit.record import HeadFinding, find_head
from semisilo.common.audit.signature import check_head
from semisilo.common.errors import BadPayload, SemisiloError, by_code
from semisilo.common.methods.contract import Meaning, TensorSpec
from semisilo.common.payload.manifest import parse_manifest
from semisilo.common.payload.usage import FRAMING, parts_of
from semisilo.common.rpc.convert import evaluation_from_proto, head_from_proto
from semisilo.common.rpc.tls import MAX_CALLS, MESSAGE_LIMIT_BYTES, REQUEST_LIMIT_BYTES
from semisilo.common.storage.store import PayloadStore
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire.tensors_pb2 import Chunk
from semisilo.coordinator.compute.messages import CheckUpdate
from semisilo.coordinator.ledger.costs import costs_of
from semisilo.coordinator.ledger.encodings import encodings_of
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.rpc import round_service, silo_calls
from semisilo.coordinator.rpc.round_service import RoundServicer
from semisilo.coordinator.rpc.transfer_slots import TransferSlot
from semisilo.silo.link.transfers import Ending
from tests.coordinator.federation_in_memory import content_of, id_of, payload_of_blocks
from tests.coordinator.hub_over_tls import (
    MODEL,
    Hub,
    begin,
    deliver,
    ended,
    hello,
    hub,
    pieces,
    refusal,
    stream,
    submit,
)
from tests.processes import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("no_unexpected_errors")


@pytest.fixture
def no_unexpected_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that a stranger sends may reach a place where nobody expected it."""
    yield
    assert [record.getMessage() for record in caplog.records
            if "unexpected" in record.getMessage() or record.exc_info] == []


async def round_goes_on(made: Hub) -> None:
    """The control of every scenario: both silos deliver and the round is committed."""
    for silo, task in made.tasks.items():
        if made.alive(task):
            await deliver(made, silo)
    await until(lambda: made.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


# The audit trail ------------------------------------------------------------------------------------------------------


def test_every_task_brings_a_head_of_the_trail_that_the_ledger_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path, waits=True) as made:
            assert sorted(made.heads) == sorted(made.tasks)
            signed = [head_from_proto(head) for head in made.heads.values()]
            walk = ChainWalk({each.head.number for each in signed})
            made.coordinator.ledger.walk_events(walk)
            for each in signed:
                check_head(each, made.keys.certificate)
                assert find_head(each.head, walk) == HeadFinding()
            await round_goes_on(made)
    asyncio.run(scenario())


# Declarations ---------------------------------------------------------------------------------------------------------


def test_calls_for_another_silos_task_update_or_payload_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, beta = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["beta"]
            await made.silos["alpha"].BeginUpdate(begin(task, content), timeout=300)
            found = [await refusal(call) for call in (
                beta.BeginUpdate(begin(task, content), timeout=300),
                beta.BeginUpdate(pb.BeginUpdateRequest(task_id=task.task_id, abstention=pb.Abstention()), timeout=300),
                beta.BeginUpdate(pb.BeginUpdateRequest(task_id=task.task_id, refusal=pb.Refusal()), timeout=300),
                submit(beta, stream(id_of(task, content), pieces(content))),
                download(beta, task.task_id, task.payloads[0].digest),
                download(beta, made.tasks["beta"].task_id, "f" * 64),
                download(beta, made.tasks["beta"].task_id, "ff"))]
            assert [error.code for error in found] == ["TASK_CLOSED"] * 5 + ["PAYLOAD_NOT_SERVED"] * 2
            request = pb.ReportProgressRequest(task_id=task.task_id, fraction=0.9)
            progress = await beta.ReportProgress(request, timeout=300)
            assert progress.abort
            assert made.coordinator.runtime.silos == {}
            await round_goes_on(made)
            assert [row.silo for row in made.coordinator.ledger.tasks("s", 1, 0)
                    if row.state is TaskState.UPDATED] == ["alpha", "beta"]
    asyncio.run(scenario())


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("path in the update_id", {"update_id": "../../../../tmp/x"}, "BAD_PAYLOAD"),
    ("zero byte in the update_id", {"update_id": "a" * 31 + "\0"}, "BAD_PAYLOAD"),
    ("undeclared group", {"groups": (MODEL, replace(MODEL, name="patients"))}, "BAD_PAYLOAD"),
    ("group twice", {"groups": (MODEL, MODEL)}, "BAD_PAYLOAD"),
    ("no group", {"groups": ()}, "BAD_PAYLOAD"),
    ("wrong meaning", {"groups": (replace(MODEL, meaning=Meaning.VALUES, base=""),)}, "BAD_PAYLOAD"),
    ("wrong base", {"groups": (replace(MODEL, base="00" * 32),)}, "WRONG_BASE"),
    ("short base", {"groups": (replace(MODEL, base="00"),)}, "BAD_PAYLOAD"),
    ("wrong shape", {"groups": (replace(MODEL, tensors=(TensorSpec("weight", (2, 2), "float32"),)),)},
     "LAYOUT_MISMATCH"),
    ("huge shape", {"groups": (replace(MODEL, tensors=(TensorSpec("weight", (2**40, 2**40), "float32"),)),)},
     "BAD_PAYLOAD"),
    ("negative shape", {"groups": (replace(MODEL, tensors=(TensorSpec("weight", (-4,), "float32"),)),)}, "BAD_PAYLOAD"),
    ("more bytes than the elements have", {"groups": (replace(MODEL, encoded_bytes=2**50),)}, "BAD_PAYLOAD"),
    ("oversized", {"size_bytes": 2**40}, "BAD_PAYLOAD"),
    ("oversized beyond belief", {"size_bytes": 2**63 - 1}, "BAD_PAYLOAD"),
    ("negative size", {"size_bytes": -1}, "BAD_PAYLOAD"),
    ("short digest", {"digest": b"x"}, "BAD_PAYLOAD"),
    ("undeclared metric", {"metrics": {"patient_age": 60.0}}, "BAD_PAYLOAD"),
    ("metric NaN", {"metrics": {"loss": math.nan}}, "BAD_PAYLOAD"),
    ("metric infinite", {"metrics": {"loss": math.inf}}, "BAD_PAYLOAD"),
    ("many metrics", {"metrics": {f"m{number}": 1.0 for number in range(1000)}}, "BAD_PAYLOAD"),
    ("negative count", {"example_count": -1}, "BAD_PAYLOAD"),
]


def test_declarations_that_cannot_be_are_refused_with_their_code_and_the_task_stays_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content = made.tasks["alpha"], content_of(made.tasks["alpha"])
            for name, changes, code in WRONG:
                error = await refusal(made.silos["alpha"].BeginUpdate(begin(task, content, **changes), timeout=300))
                assert (name, error.code) == (name, code)
                assert made.alive(task), name
            for outcome in ({}, {"update": pb.UpdateDeclaration()},
                            {"abstention": pb.Abstention(metrics={"patient_age": 60.0})}):
                request = pb.BeginUpdateRequest(task_id=task.task_id, update_id="a" * 32, **outcome)
                assert (await refusal(made.silos["alpha"].BeginUpdate(request, timeout=300))).code == "BAD_PAYLOAD"
            slow = begin(task, content)
            slow.update.training_duration.seconds = 2**62  # no time that Python knows
            assert (await made.silos["alpha"].BeginUpdate(slow, timeout=300)).state == pb.BeginUpdateResponse.STATE_SEND
            assert made.coordinator.spool.total_bytes() == 0
            await round_goes_on(made)
    asyncio.run(scenario())


def test_a_manifest_that_is_longer_than_the_tasks_own_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                   ) -> None:
    """65,536 tensors took 0.8 s, in which nobody else was served, also for a task that does not exist."""
    parsed: list[int] = []

    def parse(message: Any) -> Any:
        parsed.append(sum(len(group.tensors) for group in message.groups))
        return parse_manifest(message)

    monkeypatch.setattr(round_service, "parse_manifest", parse)

    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            many = begin(task, content, groups=(replace(MODEL, tensors=tuple(
                TensorSpec(f"t{number}", (1,), "float32") for number in range(5000))),))
            assert (await refusal(alpha.BeginUpdate(many, timeout=300))).code == "LAYOUT_MISMATCH"
            groups = begin(task, content, groups=tuple(replace(MODEL, name=f"g{number}") for number in range(2000)))
            assert (await refusal(alpha.BeginUpdate(groups, timeout=300))).code == "BAD_PAYLOAD"
            for message in (many, begin(task, content)):
                message.task_id = "no such task"
                assert (await refusal(alpha.BeginUpdate(message, timeout=300))).code == "TASK_CLOSED"
            assert parsed == []
            for _ in range(2):  # the second one is known by its id
                await alpha.BeginUpdate(begin(task, content), timeout=300)
            assert parsed == [len(MODEL.tensors)]
            await deliver(made, "alpha")
            many.task_id, many.update_id = task.task_id, "b" * 32
            late = await alpha.BeginUpdate(many, timeout=300)
            assert (late.state, parsed) == (pb.BeginUpdateResponse.STATE_REFUSED, [len(MODEL.tensors)])
            await round_goes_on(made)
    asyncio.run(scenario())


def test_an_evaluation_of_no_study_or_of_other_classes_is_not_parsed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """And however many a silo sends, the log has a line for each reason: it had 400 in a second."""
    parsed: list[str] = []

    def parse(message: Any) -> Any:
        parsed.append(message.study)
        return evaluation_from_proto(message)

    monkeypatch.setattr(round_service, "evaluation_from_proto", parse)

    async def scenario() -> None:
        async with hub(tmp_path) as made:
            classes = len(made.coordinator.ledger.study("s").classes)
            request = hello()
            for study, count in (("none", classes), ("s", classes + 1), ("s", classes)):
                found = request.evaluations.add(study=study, round=0)
                for _ in range(count):
                    found.classes.add(image_count=1, correct_count=1)
            assert (await made.silos["alpha"].AwaitTask(request, timeout=300)).HasField("task")
            assert parsed == ["s"]
            for number in range(20):
                request.evaluations[0].study, request.evaluations[2].round = f"none {number}", number
                await made.silos["alpha"].AwaitTask(request, timeout=300)
            said = [record.getMessage() for record in caplog.records if "is dropped" in record.getMessage()]
            assert len(said) == 4, said  # no study, other classes, no part in round 0, rounds that are not there
            await round_goes_on(made)
    asyncio.run(scenario())


def test_a_repeated_declaration_and_upload_say_have_and_a_late_one_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            await deliver(made, "alpha")
            for _ in range(3):
                answer = await alpha.BeginUpdate(begin(task, content), timeout=300)
                assert answer.state == pb.BeginUpdateResponse.STATE_HAVE
            again = await refusal(submit(alpha, stream(id_of(task, content), pieces(content))))
            assert again.code == "TASK_CLOSED"
            late = await alpha.BeginUpdate(begin(task, b"other".ljust(100)), timeout=300)
            assert (late.state, "over" in late.reason) == (pb.BeginUpdateResponse.STATE_REFUSED, True)
            await round_goes_on(made)
            assert sum(row.count for row in costs_of(made.coordinator.ledger, "s") if (
                row.kind, row.item, row.silo, row.direction) == ("payload", "model", "alpha", "up")) == 1
    asyncio.run(scenario())


def test_an_abstention_may_be_repeated(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            request = pb.BeginUpdateRequest(task_id=made.tasks["alpha"].task_id, update_id="a" * 32,
                                            abstention=pb.Abstention(reason="no_confident_example\x1b[2J" * 100))
            for _ in range(3):
                answer = await made.silos["alpha"].BeginUpdate(request, timeout=300)
                assert answer.state == pb.BeginUpdateResponse.STATE_HAVE
            reason = made.coordinator.ledger.tasks("s", 1, 0)[0].reason
            assert (len(reason) <= 64, reason.isprintable()) == (True, True)
            await round_goes_on(made)
    asyncio.run(scenario())


# Bytes ----------------------------------------------------------------------------------------------------------------


def damaged(chunks: list[Chunk]) -> dict[str, list[Chunk]]:
    """Streams that are not the content, by what is wrong with them."""
    first, second, *rest = chunks
    return {
        "out of order": [second, first, *rest],
        "repeated": [first, first, second, *rest],
        "one missing": [first, *rest],
        "jump": [first, Chunk(offset=2**60, crc32=second.crc32, data=second.data), *rest],
        "negative offset": [Chunk(offset=-1, crc32=first.crc32, data=first.data), second, *rest],
        "bad checksum": [first, Chunk(offset=second.offset, crc32=second.crc32 ^ 1, data=second.data), *rest],
        "empty chunk": [Chunk(offset=0, crc32=0, data=b""), first, second, *rest],
        "too short": [first, second],
        "too long": [*chunks, Chunk(offset=100, crc32=zlib.crc32(b"x"), data=b"x")],
        "last one too long": [first, second, rest[0],
                              Chunk(offset=90, crc32=zlib.crc32(b"y" * 5000), data=b"y" * 5000)],
        "nothing": [],
    }


def test_a_damaged_stream_is_refused_and_the_upload_goes_on_from_the_last_good_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            chunks = pieces(content)
            assert [len(chunk.data) for chunk in chunks] == [30, 30, 30, 10]
            good = {"out of order": 0, "repeated": 30, "one missing": 30, "jump": 30, "negative offset": 0,
                    "bad checksum": 30, "empty chunk": 0, "too short": 60, "too long": 100, "last one too long": 90,
                    "nothing": 0}
            for number, (name, sent) in enumerate(damaged(chunks).items()):
                update_id = f"{number:032x}"
                await alpha.BeginUpdate(begin(task, content, update_id=update_id), timeout=300)
                messages = stream(update_id, sent) or [pb.SubmitUpdateRequest(update_id=update_id)]
                error = await refusal(submit(alpha, messages))
                assert (name, error.code) == (name, "BAD_PAYLOAD")
                answer = await alpha.BeginUpdate(begin(task, content, update_id=update_id), timeout=300)
                assert (name, answer.resume_offset) == (name, good[name])
                assert made.alive(task), name
            await round_goes_on(made)
    asyncio.run(scenario())


def test_an_update_in_one_piece_needs_no_file_to_resume_from_and_is_checked_as_any_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            whole, spool = Chunk(offset=0, crc32=zlib.crc32(content), data=content), made.coordinator.spool
            more = Chunk(offset=len(content), crc32=zlib.crc32(b"x"), data=b"x")
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            for wrong in ([Chunk(offset=0, crc32=whole.crc32 ^ 1, data=content)], [whole, more]):
                assert (await refusal(submit(alpha, stream(id_of(task, content), wrong)))).code == "BAD_PAYLOAD"
                assert (spool.digests(), list((spool.folder / "incoming").iterdir())) == (set(), [])
            with mock.patch.object(PayloadStore, "partial", side_effect=AssertionError("no partial file is needed")):
                await submit(alpha, stream(id_of(task, content), [whole]))
            assert list((spool.folder / "incoming").iterdir()) == []
            await round_goes_on(made)
    asyncio.run(scenario())


def test_bytes_with_another_digest_are_dropped_and_the_same_update_may_be_sent_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            error = await refusal(submit(alpha, stream(id_of(task, content), pieces(b"z" * 100))))
            assert (error.code, "SHA-256" in error.text) == ("BAD_PAYLOAD", True)
            assert made.coordinator.spool.digests() == set()
            await round_goes_on(made)
    asyncio.run(scenario())


def test_a_stream_names_one_update_in_its_first_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            first, *rest = stream(id_of(task, content), pieces(content))
            codes = [(await refusal(submit(alpha, messages))).code for messages in (
                [], [pb.SubmitUpdateRequest(chunk=first.chunk)], [pb.SubmitUpdateRequest(update_id="../x")],
                [pb.SubmitUpdateRequest(update_id="a" * 32, chunk=first.chunk)],
                [first, pb.SubmitUpdateRequest(), *rest], [first, pb.SubmitUpdateRequest(update_id="b" * 32)])]
            assert codes == ["BAD_PAYLOAD", "BAD_PAYLOAD", "BAD_PAYLOAD", "TASK_CLOSED", "BAD_PAYLOAD", "BAD_PAYLOAD"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            await round_goes_on(made)
    asyncio.run(scenario())


def test_content_that_fails_the_check_ends_the_task_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path, participation={"quorum": 1}) as made:
            task, content, alpha = made.tasks["alpha"], b"bad".ljust(100), made.silos["alpha"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            error = await refusal(submit(alpha, stream(id_of(task, content), pieces(content))))
            assert (error.code, "not finite" in error.text) == ("BAD_PAYLOAD", True)
            row = made.coordinator.ledger.tasks("s", 1, 0)[0]
            assert (row.state, "not finite" in row.reason) == (TaskState.REFUSED, True)
            await round_goes_on(made)
    asyncio.run(scenario())


def test_of_two_uploads_of_one_silo_the_newer_goes_on_and_the_older_is_told_to_try_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path, max_uploads=2) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            first = stream(id_of(task, content), pieces(content))[0]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            older = alpha.SubmitUpdate(timeout=300)
            await older.write(first)
            while not (tmp_path / "hub-files" / "spool" / "incoming").exists() or not made.servicer._uploading:
                await asyncio.sleep(0.01)

            async def newer(attempts: int = 3) -> Any:
                """As silos do: a chunk of the older stream that is written meanwhile is answered by asking anew."""
                answer = await alpha.BeginUpdate(begin(task, content), timeout=300)
                name = pb.SubmitUpdateRequest(update_id=id_of(task, content))
                chunks = pieces(content)[answer.resume_offset // 30:]
                try:
                    return await submit(alpha, stream(id_of(task, content), chunks) or [name])
                except grpc.aio.AioRpcError as error:
                    if attempts == 1 or "was expected" not in (error.details() or ""):
                        raise
                    return await newer(attempts - 1)

            found = await asyncio.gather(newer(), older, return_exceptions=True)
            assert isinstance(found[0], pb.SubmitUpdateResponse), found
            assert isinstance(found[1], grpc.aio.AioRpcError)
            code = dict(found[1].trailing_metadata() or ()).get("semisilo-error-code")
            assert code in ("UNREACHABLE", "BAD_PAYLOAD"), found[1]  # told so while it waited, or at its next chunk
            assert len(made.coordinator.ledger.query("SELECT 1 FROM event WHERE kind = 'task_updated'")) == 1
            await round_goes_on(made)
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_silo_that_says_nothing_gives_its_place_to_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path, max_uploads=1, idle_seconds=2.0) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            silent = alpha.SubmitUpdate(timeout=300)
            await silent.write(stream(id_of(task, content), pieces(content))[0])
            mute = alpha.SubmitUpdate(timeout=300)  # not even a first message
            await deliver(made, "beta")
            errors = [await refusal(call) for call in (silent, mute)]
            assert {error.code for error in errors} == {"UNREACHABLE"}
            assert all(error.retry for error in errors)
            await round_goes_on(made)
    asyncio.run(scenario())


class TakesNothing:
    """The context of a call whose silo has shut its window: what is sent to it stays here until `opened`."""

    def __init__(self, context: Any, opened: asyncio.Event) -> None:
        self._context = context
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def send_initial_metadata(self, metadata: Any) -> None:
        await self._opened.wait()
        await self._context.send_initial_metadata(metadata)


@contextlib.contextmanager
def silo_that_takes_nothing(silo: str, opened: asyncio.Event) -> Iterator[list[str]]:
    """Yields its uploads, by name of the silo, as they arrive."""
    receive, arrived = RoundServicer._receive, list[str]()

    async def shut(self: RoundServicer, name: str, requests: Any, call: Any, context: Any) -> Any:
        if name != silo:
            return await receive(self, name, requests, call, context)
        arrived.append(name)
        return await receive(self, name, requests, call, TakesNothing(context, opened))

    with mock.patch.object(RoundServicer, "_receive", shut):
        yield arrived


def test_a_silo_that_takes_no_answer_loses_its_place_and_hears_of_it_once_it_does(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four calls of one silo, with the windows of their connections shut, kept every other silo out for good."""
    monkeypatch.setattr(round_service, "_CALLED_SECONDS", 0.3)

    async def scenario() -> None:
        opened = asyncio.Event()
        with silo_that_takes_nothing("alpha", opened):
            async with hub(tmp_path, max_uploads=1) as made:
                task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
                await alpha.BeginUpdate(begin(task, content), timeout=300)
                call = alpha.SubmitUpdate(timeout=300)
                await call.write(pb.SubmitUpdateRequest(update_id=id_of(task, content)))
                await until(lambda: made.servicer._uploads.locked())
                await deliver(made, "beta")
                assert not call.done()
                opened.set()
                error = await refusal(call)
                assert (error.code, error.retry, "taken nothing" in error.text) == ("UNREACHABLE", True, True)
                await round_goes_on(made)
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_silo_has_one_place_however_often_it_calls_and_none_once_it_is_revoked(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_service, "_CALLED_SECONDS", 3600.0)

    async def scenario() -> None:
        opened = asyncio.Event()
        with silo_that_takes_nothing("alpha", opened) as arrived:
            async with hub(tmp_path, max_uploads=4) as made:
                task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
                await alpha.BeginUpdate(begin(task, content), timeout=300)
                calls: list[Any] = []
                for _ in range(5):
                    calls.append(alpha.SubmitUpdate(timeout=300))
                    await calls[-1].write(pb.SubmitUpdateRequest(update_id=id_of(task, content)))
                    await until(lambda: len(arrived) == len(calls))
                    await until(lambda: made.servicer._uploads._value == 3)
                await deliver(made, "beta")
                assert made.servicer._uploads._value == 3
                made.coordinator.roster.revoke("alpha")
                await until(lambda: made.servicer._uploads._value == 4)
                assert not any(call.done() for call in calls)
                opened.set()
                assert [(await refusal(call)).code for call in calls] == ["UNREACHABLE"] * 4 + ["CERTIFICATE_REVOKED"]
    asyncio.run(scenario())


async def drip(made: Hub, silo: str, *, seconds: float, offset: int = 0) -> Any:
    """An upload of one byte at a time."""
    task, content = made.tasks[silo], content_of(made.tasks[silo])
    call = made.silos[silo].SubmitUpdate(timeout=300)
    ending = Ending(call)

    async def write() -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it has been ended
            await call.write(pb.SubmitUpdateRequest(update_id=id_of(task, content)))
            for message in stream("", pieces(content, size=1)[offset:]):
                await call.write(message)
                await asyncio.sleep(seconds)
                if call.done():
                    return
            await call.done_writing()

    writing = asyncio.ensure_future(write())
    try:
        return await ended(call, ending)
    finally:
        await writing


@pytest.mark.slow
def test_a_silo_that_lets_bytes_drip_gives_its_place_to_another_and_goes_on_with_what_has_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path, max_uploads=1, idle_seconds=2.0) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            error = await refusal(drip(made, "alpha", seconds=0.3))  # it would take half a minute
            assert (error.code, error.retry) == ("UNREACHABLE", True)
            await deliver(made, "beta")
            answer = await alpha.BeginUpdate(begin(task, content), timeout=300)
            assert 0 < answer.resume_offset < len(content)
            rest = pieces(content, size=1)[answer.resume_offset:]
            await submit(alpha, [pb.SubmitUpdateRequest(update_id=id_of(task, content)), *stream("", rest)])
            await round_goes_on(made)
    asyncio.run(scenario())


def test_an_upload_whose_task_is_over_is_ended_though_nothing_more_arrives(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path, max_uploads=1, idle_seconds=3600.0) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            call = alpha.SubmitUpdate(timeout=300)
            await call.write(stream(id_of(task, content), pieces(content))[0])
            await until(lambda: bool(made.coordinator.spool.total_bytes()))
            made.coordinator.ledger.cancel_tasks("alpha", reason="the operator has ended it")
            assert (await refusal(call)).code == "TASK_CLOSED"
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_slow_upload_gives_its_place_up_only_where_another_silo_waits_for_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pace_of = round_service._Pace

    def quick_pace(slot: TransferSlot, seconds: float) -> round_service._Pace:
        assert seconds == 120.0
        return pace_of(slot, 0.6)

    # Slow within a second, and idle not even on a busy machine.
    monkeypatch.setattr(round_service, "_Pace", quick_pace)

    async def scenario() -> None:
        async with hub(tmp_path, max_uploads=1, idle_seconds=120.0) as made:
            for silo in ("alpha", "beta"):
                await made.silos[silo].BeginUpdate(begin(made.tasks[silo], content_of(made.tasks[silo])), timeout=300)
            slow = asyncio.ensure_future(drip(made, "alpha", seconds=0.2))
            await until(lambda: bool(made.coordinator.spool.total_bytes()))
            await deliver(made, "beta")
            error = await refusal(slow)
            assert (error.code, error.retry, "Other silos wait" in error.text) == ("UNREACHABLE", True, True)
            answer = await made.silos["alpha"].BeginUpdate(
                begin(made.tasks["alpha"], content_of(made.tasks["alpha"])), timeout=300)
            assert answer.resume_offset > 0
            await drip(made, "alpha", seconds=0.02, offset=answer.resume_offset)  # as slow, and nobody waits
            await until(lambda: made.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
    asyncio.run(scenario())


def test_a_silo_that_sends_its_update_and_hangs_up_again_and_again_is_checked_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            ask, may, checks = made.coordinator.compute.call, asyncio.Event(), 0

            async def held_up(request: Any, **more: Any) -> Any:
                nonlocal checks
                if isinstance(request, CheckUpdate):
                    checks += 1
                    await may.wait()
                return await ask(request, **more)

            made.coordinator.compute.call = held_up  # type: ignore[method-assign]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            first = alpha.SubmitUpdate(iter(stream(id_of(task, content), pieces(content))), timeout=300)
            await until(lambda: checks == 1)
            first.cancel()
            for _ in range(30):
                call = alpha.SubmitUpdate(iter([pb.SubmitUpdateRequest(update_id=id_of(task, content))]), timeout=300)
                await call.initial_metadata()  # it is being served
                call.cancel()
            last = asyncio.ensure_future(submit(alpha, [pb.SubmitUpdateRequest(update_id=id_of(task, content))]))
            await asyncio.sleep(0.2)
            assert checks == 1
            may.set()
            assert (await last).size_bytes == len(content)
            assert checks == 1
            await round_goes_on(made)
    asyncio.run(scenario())


class _Superseding:
    """A context of gRPC in which the silo calls anew while initial metadata is on its way to the transport."""

    def __init__(self, context: Any, call: Any) -> None:
        self._context, self._call = context, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def send_initial_metadata(self, metadata: Any) -> None:
        sending = asyncio.ensure_future(self._context.send_initial_metadata(metadata))
        await asyncio.sleep(0)  # it has begun
        self._call.supersede()
        await sending


def test_a_silo_that_calls_anew_while_it_is_answered_is_told_so(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC cannot end a call whose initial metadata was cut off: the silo would wait until its deadline."""
    receive = RoundServicer._receive

    async def superseded(self: RoundServicer, silo: str, requests: Any, call: Any, context: Any) -> Any:
        return await receive(self, silo, requests, call, _Superseding(context, call))

    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            with monkeypatch.context() as patched:
                patched.setattr(RoundServicer, "_receive", superseded)
                call = alpha.SubmitUpdate(timeout=60)
                await call.write(stream(id_of(task, content), pieces(content))[0])
                error = await refusal(call)
            assert (error.code, error.retry) == ("UNREACHABLE", True)
            await round_goes_on(made)
    asyncio.run(scenario())


def test_the_end_of_the_phase_ends_an_upload_that_is_on_its_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task = made.tasks["alpha"]
            content = content_of(task)
            await made.silos["alpha"].BeginUpdate(begin(task, content), timeout=300)
            call = made.silos["alpha"].SubmitUpdate(timeout=300)
            ending = Ending(call)
            first, *rest = stream(id_of(task, content), pieces(content, size=1))
            await call.write(first)
            made.coordinator.ledger.cancel_tasks("alpha", reason="the study was stopped")
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the answer may be here before
                for message in rest:
                    await asyncio.sleep(0.01)
                    await call.write(message)
                await call.done_writing()
            assert (await refusal(ended(call, ending))).code == "TASK_CLOSED"
    asyncio.run(scenario())


def test_a_full_spool_says_disk_full_without_its_path_and_a_later_try_works(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path, spool_bytes=150) as made:
            await deliver(made, "alpha")
            task, content, beta = made.tasks["beta"], content_of(made.tasks["beta"]), made.silos["beta"]
            error = await refusal(beta.BeginUpdate(begin(task, content), timeout=300))
            assert (error.code, error.retry, str(tmp_path) in error.line()) == ("DISK_FULL", True, False)
            made.coordinator.spool.limit_bytes = 1000
            await round_goes_on(made)
    asyncio.run(scenario())


# Downloads ------------------------------------------------------------------------------------------------------------


async def download(stub: Any, task_id: str, digest: str, *, offset: int = 0) -> bytes:
    data = b""
    async for message in stub.DownloadPayload(pb.DownloadPayloadRequest(
            task_id=task_id, digest=bytes.fromhex(digest), offset=offset), timeout=300):
        assert message.chunk.offset == offset + len(data)
        data += message.chunk.data
    return data


def test_a_payload_is_served_from_any_offset_inside_it_and_from_none_outside(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, alpha = made.tasks["alpha"], made.silos["alpha"]
            digest, size = task.payloads[0].digest, task.payloads[0].size_bytes
            whole = await download(alpha, task.task_id, digest)
            assert hashlib.sha256(whole).hexdigest() == digest
            assert await download(alpha, task.task_id, digest, offset=5) == whole[5:]
            assert await download(alpha, task.task_id, digest, offset=size) == b""
            for offset in (-1, size + 1, 2**62):
                error = await refusal(download(alpha, task.task_id, digest, offset=offset))
                assert error.code == "BAD_PAYLOAD"
            down = [row for row in costs_of(made.coordinator.ledger, "s") if row.direction == "down"]
            assert [(row.silo, row.item, row.bytes, row.count) for row in down] == [
                ("alpha", "model", size + size - 5, 2)]
            await round_goes_on(made)
    asyncio.run(scenario())


def test_a_download_that_goes_on_counts_the_encodings_of_the_rest_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            coordinator, task_id = made.coordinator, made.tasks["alpha"].task_id
            payload = payload_of_blocks(coordinator.payloads)
            row = coordinator.ledger.task(task_id)
            assert row is not None
            coordinator.ledger.replace_payloads(row, [payload])
            end = parts_of(coordinator.payloads.path(payload.digest))[-1].start
            rest = await download(made.silos["alpha"], task_id, payload.digest, offset=end)
            assert [(use.encoding, use.bytes) for use in encodings_of(coordinator.ledger, "s")] == [
                (FRAMING, len(rest))]
    asyncio.run(scenario())


# Callers --------------------------------------------------------------------------------------------------------------


def test_a_silo_is_whom_its_certificate_names_whatever_it_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            spoofed = (("silo", "alpha"), ("x-silo", "alpha"), ("authorization", "alpha"))
            answer = await made.silos["beta"].AwaitTask(hello(), metadata=spoofed, timeout=300)
            assert answer.task.task_id == made.tasks["beta"].task_id
            assert "silo" not in {field.name for message in pb.DESCRIPTOR.message_types_by_name.values()
                                  for field in message.fields if message.name.endswith("Request")}
            await round_goes_on(made)
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_flood_of_hellos_with_huge_lists_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silo_calls, "_BYTES_AT_ONCE", 1e9)

    async def scenario() -> None:
        async with hub(tmp_path) as made:
            alpha = made.silos["alpha"]
            own = pb.SiteEvaluation(study="s", classes=[pb.ClassResult(image_count=1), pb.ClassResult()])
            wrong = pb.SiteEvaluation(study="s", classes=[pb.ClassResult(image_count=1, correct_count=2),
                                                           pb.ClassResult()])
            for request in (hello(evaluations=[own] * 9), hello(evaluations=[own, wrong]),
                            hello(held_digests=[b"x" * 32] * 257), hello(labelled_count=-1), hello(memory_round=-1),
                            hello(labelled_count=10**9 + 1), pb.AwaitTaskRequest(unlabelled_count=2**63 - 1),
                            pb.AwaitTaskRequest(methods=["m"] * 100_000)):
                assert (await refusal(alpha.AwaitTask(request, timeout=300))).code == "BAD_PAYLOAD"
            before = len(made.coordinator.ledger.query("SELECT 1 FROM event")) + 1  # that it announces so much more
            for seconds in (2**62, -(2**62), 0):
                request = hello(memory_study="s" * 100_000, labelled_count=10**9)
                request.version, request.methods[:] = "\x1b]0;owned\x07" * 1000, ["\x1b[2J" * 1000] * 256
                request.poll_timeout.seconds = seconds
                answer = await alpha.AwaitTask(request, timeout=300)
                assert answer.task.task_id == made.tasks["alpha"].task_id
            row = made.coordinator.roster.silos()[0]
            assert (len(row.version), len(row.memory_study), len(row.methods)) == (64, 128, 256)
            assert all(text.isprintable() for text in (row.version, *row.methods))
            for _ in range(30):
                await alpha.AwaitTask(request, timeout=300)
            assert len(made.coordinator.ledger.query("SELECT 1 FROM event")) == before
            await round_goes_on(made)
    asyncio.run(scenario())


def test_a_connection_has_a_bounded_number_of_calls_in_flight(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            alpha, most = made.silos["alpha"], 0
            # After this it has to wait.
            made.coordinator.task_service.abstain("alpha", made.tasks["alpha"].task_id, "none", {})
            request = hello()
            request.poll_timeout.seconds, request.poll_timeout.nanos = 0, 200_000_000
            calls = asyncio.gather(*(alpha.AwaitTask(request, timeout=300) for _ in range(20 * MAX_CALLS)),
                                   return_exceptions=True)
            while not calls.done():
                most = max(most, made.coordinator.runtime.connected.get("alpha", 0))
                await asyncio.sleep(0.01)
            refused = [answer for answer in await calls if isinstance(answer, BaseException)]
            assert {answer.code() for answer in refused if isinstance(answer, grpc.aio.AioRpcError)} <= {
                grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert len(refused) < 20 * MAX_CALLS
            assert 1 < most <= MAX_CALLS
            await round_goes_on(made)
    asyncio.run(scenario())


def test_a_message_above_the_limit_is_refused_by_the_transport(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            stranger = made.connect(made.credentials["alpha"], message_limit_bytes=32 * 2**20)
            for size in (REQUEST_LIMIT_BYTES + 1, MESSAGE_LIMIT_BYTES, 3 * MESSAGE_LIMIT_BYTES):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stranger.ReportProgress(pb.ReportProgressRequest(text="x" * size), timeout=300)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert made.coordinator.runtime.silos == {}
            await round_goes_on(made)
    asyncio.run(scenario())


def test_progress_is_bounded_and_printable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            for fraction in (math.nan, math.inf, -math.inf, -3.0, 7.0):
                answer = await made.silos["alpha"].ReportProgress(pb.ReportProgressRequest(
                    task_id=made.tasks["alpha"].task_id, fraction=fraction, text="\x1b[2J\n" * 10_000, stage=99),
                    timeout=300)
                assert not answer.abort
                said = made.coordinator.runtime.silos["alpha"]
                assert 0.0 <= said.fraction <= 1.0
                assert (len(said.text) <= 200, said.text.isprintable(), said.stage) == (True, True, "working")
            await round_goes_on(made)
    asyncio.run(scenario())


@pytest.mark.slow
def test_revoking_a_silo_ends_its_waiting_call_and_every_later_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, content, alpha = made.tasks["alpha"], content_of(made.tasks["alpha"]), made.silos["alpha"]
            await alpha.BeginUpdate(begin(task, content), timeout=300)
            upload = alpha.SubmitUpdate(timeout=300)
            await upload.write(stream(id_of(task, content), pieces(content))[0])
            await asyncio.sleep(0.1)
            made.coordinator.roster.revoke("alpha")
            errors = [await refusal(call) for call in (
                upload, alpha.AwaitTask(hello(), timeout=300), alpha.BeginUpdate(begin(task, content), timeout=300),
                alpha.ReportProgress(pb.ReportProgressRequest(task_id=task.task_id), timeout=300),
                download(alpha, task.task_id, task.payloads[0].digest))]
            assert {error.code for error in errors} == {"CERTIFICATE_REVOKED"}
            made.coordinator.runtime.notify()
            # The answer may be here before the call that gave it has ended there.
            await until(lambda: made.coordinator.runtime.connected.get("alpha", 0) == 0)
    asyncio.run(scenario())


def test_what_the_coordinator_itself_does_wrong_is_told_to_no_stranger(tmp_path: Path,
                                                                       caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> SemisiloError:
        async with hub(tmp_path) as made:
            task = made.tasks["alpha"]
            made.coordinator.payloads.path(task.payloads[0].digest).unlink()
            error = await refusal(download(made.silos["alpha"], task.task_id, task.payloads[0].digest))
            for _ in range(3):
                again = await refusal(download(made.silos["alpha"], task.task_id, task.payloads[0].digest))
                assert again.text == error.text, "the operator finds the line that there is"
            other = await refusal(download(made.silos["beta"], made.tasks["beta"].task_id, task.payloads[0].digest))
            assert other.text != error.text
            return error
    with caplog.at_level(logging.ERROR):
        error = asyncio.run(scenario())
    assert error.code == "STORAGE_DAMAGED"
    assert str(tmp_path) not in error.line()
    request = error.text.partition("request ")[2].rstrip(").")
    assert any(request in record.getMessage() and str(tmp_path) in record.getMessage() for record in caplog.records)
    assert len([record for record in caplog.records if "STORAGE_DAMAGED" in record.getMessage()]) == 2, "one for each"


def test_every_code_that_a_refusal_carries_is_in_the_catalogue() -> None:
    codes = {code for _, _, code in WRONG} | {"TASK_CLOSED", "PAYLOAD_NOT_SERVED", "DISK_FULL", "UNREACHABLE"}
    assert {code: by_code(code).code for code in codes} == {code: code for code in codes}
    assert by_code("BAD_PAYLOAD") is BadPayload


