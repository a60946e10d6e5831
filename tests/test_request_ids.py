"""One RPC, one id: a search for it finds the lines of both sides, and nobody can write into the other's log with it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semisilo.common.errors import PayloadNotServed, TaskClosed
from semisilo.common.methods.contract import PayloadRef
from semisilo.common.storage.store import PayloadStore
from semisilo.common.text.log_context import (
    REQUEST_ID_KEY,
    TRACE_VARIABLE,
    TRACEPARENT_KEY,
    bound,
    call_in,
    new_trace_id,
)
from semisilo.common.text.logs import CALLS, FORMAT_VARIABLE, set_up_logging
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.link.link import Link, LinkSettings
from semisilo.silo.link.retrying_calls import Backoff
from tests.coordinator.federation_in_memory import content_of, id_of
from tests.coordinator.hub_over_tls import SILOS, Hub, begin, hello, hub
from tests.each_of import each_of


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    root, calls = logging.getLogger(), logging.getLogger(CALLS)
    before, level, calls_level = list(root.handlers), root.level, calls.level
    stream = io.StringIO()
    set_up_logging(stream=stream, log_format="json", verbose=True)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    calls.setLevel(calls_level)
    logging.captureWarnings(False)


def lines(log: io.StringIO, **fields: Any) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in found if fields.items() <= line.items()]


def link_of(made: Hub, silo: str) -> Link:
    def channel() -> grpc.aio.Channel:
        made.connect(made.credentials[silo])
        return made.channels[-1]
    return Link(channel, silo=silo, settings=LinkSettings(backoff=Backoff(first_seconds=0.01)))


def test_each_call_of_a_silo_is_one_id_in_the_lines_of_both_sides(tmp_path: Path, log: io.StringIO) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            task, link = made.tasks["alpha"], link_of(made, "alpha")
            answer = await link.await_task(hello)
            assert answer.task.task_id == task.task_id
            payload = task.payloads[0]
            await link.download(task.task_id, payload, PayloadStore(tmp_path / "cache"))
            content = content_of(task)
            path = tmp_path / "update"
            path.write_bytes(content)
            assert (await link.upload(begin(task, content), path)).accepted
            await link.close()
    asyncio.run(scenario())
    for rpc in ("AwaitTask", "DownloadPayload", "BeginUpdate", "SubmitUpdate"):
        ours = lines(log, logger=CALLS, rpc=rpc, message=f"{rpc}: the coordinator has answered")
        assert len(ours) == 1, rpc
        request = ours[0]["request_id"]
        theirs = lines(log, logger=CALLS, message=f"{rpc}: answered", request_id=request)
        assert len(theirs) == 1, rpc
        assert theirs[0]["silo"] == ours[0]["silo"] == "alpha"
        assert 0 <= theirs[0]["seconds"] <= ours[0]["seconds"] + 1
    submitted = lines(log, message="SubmitUpdate: answered")[0]
    assert (submitted["study"], submitted["round"], submitted["task_id"]) == ("s", 1, f"s/1/0-train/{SILOS[0]}")
    identities = {line["request_id"] for line in lines(log, logger=CALLS)}
    assert len(identities) >= 4
    for line in lines(log, logger=CALLS):
        assert len({other["trace_id"] for other in lines(log, request_id=line["request_id"])}) == 1
    assert len({line["trace_id"] for line in lines(log, logger=CALLS)}) == len(identities), "no task binds them here"


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@each_of(("sent", "valid"), [
    (f"00-{TRACE}-{SPAN}-01", True), (f"00-{TRACE}-{SPAN}-00", True),
    (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True), (f"00-{TRACE}-{SPAN}-01-more", False),
    (f"ff-{TRACE}-{SPAN}-01", False), (f"00-{'0' * 32}-{SPAN}-01", False), (f"00-{TRACE}-{'0' * 16}-01", False),
    (f"00-{TRACE.upper()}-{SPAN}-01", False), (f"00-{TRACE}-{SPAN}", False), ("", False),
    (f"00-{TRACE}-{SPAN}-01\n", False), (f"cc-{TRACE}-{SPAN}-01-" + "x" * 1000, False)])
def test_a_traceparent_is_taken_as_the_w3c_says_and_nothing_else_is(sent: str, valid: bool) -> None:
    """The examples of Trace Context, sections 3.2.2 and 4.3."""
    found = call_in([(TRACEPARENT_KEY, sent)])
    assert (found["trace_id"] == TRACE) == (found["request_id"] == SPAN) == valid
    assert len(found["trace_id"]) == 32
    assert call_in([(REQUEST_ID_KEY, "my-own-id-0001"), (TRACEPARENT_KEY, sent)])["request_id"] == "my-own-id-0001"


def test_of_two_traceparents_none_counts() -> None:
    two = [(TRACEPARENT_KEY, f"00-{TRACE}-{SPAN}-01"), (TRACEPARENT_KEY, f"00-{'1' * 32}-{SPAN}-01")]
    assert call_in(two)["trace_id"] not in (TRACE, "1" * 32)


def test_calls_for_a_task_are_one_trace_and_that_of_whoever_started_the_process(
        tmp_path: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    async def scenario(folder: Path) -> None:
        folder.mkdir()
        async with hub(folder) as made:
            link = link_of(made, "alpha")
            with bound(task_id="t", trace_id=new_trace_id()):
                for _ in range(2):
                    with link._calls.request("ReportProgress") as metadata:
                        await made.silos["alpha"].ReportProgress(
                            pb.ReportProgressRequest(task_id=made.tasks["alpha"].task_id), timeout=300,
                            metadata=metadata)
                    sent.append(dict(metadata)[TRACEPARENT_KEY])
            await link.close()

    asyncio.run(scenario(tmp_path / "first"))
    monkeypatch.setenv(TRACE_VARIABLE, f"00-{TRACE}-{SPAN}-01")
    asyncio.run(scenario(tmp_path / "second"))
    (own, first, flags), (same, second, _), (outside, _, taken), _ = (each.split("-")[1:] for each in sent)
    assert (own, flags) == (same, "00")
    assert first != second
    assert (outside, taken) == (TRACE, "01")
    theirs = lines(log, message="ReportProgress: answered")
    assert [line["trace_id"] for line in theirs] == [own, own, TRACE, TRACE]
    assert [line["request_id"] for line in theirs][:2] == [first, second]


def test_an_error_has_the_id_and_the_code_at_both_ends(tmp_path: Path, log: io.StringIO) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            link = link_of(made, "alpha")
            with pytest.raises(TaskClosed):
                await link.declare(pb.BeginUpdateRequest(task_id="none/1/0-train/alpha", update_id="ab" * 8,
                                                         abstention=pb.Abstention(reason="x")))
            wrong = PayloadRef(hashlib.sha256(b"other").hexdigest(), 10, ("model",))
            with pytest.raises(PayloadNotServed):
                await link.download(made.tasks["alpha"].task_id, wrong, PayloadStore(tmp_path / "cache"))
            await link.close()
    asyncio.run(scenario())
    for rpc, code in (("BeginUpdate", "TASK_CLOSED"), ("DownloadPayload", "PAYLOAD_NOT_SERVED")):
        theirs, = lines(log, message=f"{rpc}: refused")
        assert theirs["error_code"] == code
        ours, = lines(log, message=f"{rpc}: failed: {code}")
        assert ours["request_id"] == theirs["request_id"]
        assert lines(log, logger="semisilo.silo", level="debug", request_id=ours["request_id"])


def test_a_stranger_cannot_write_lines_with_its_id(tmp_path: Path, log: io.StringIO) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            for sent in ("x" * 300, "spaces and more", 'a","level":"critical'):
                await made.silos["alpha"].ReportProgress(
                    pb.ReportProgressRequest(task_id=made.tasks["alpha"].task_id), timeout=300,
                    metadata=((REQUEST_ID_KEY, sent),))
            kept = "my-own-id-0001"
            await made.silos["alpha"].ReportProgress(
                pb.ReportProgressRequest(task_id=made.tasks["alpha"].task_id), timeout=300,
                metadata=((REQUEST_ID_KEY, kept),))
            assert lines(log, message="ReportProgress: answered", request_id=kept)
    asyncio.run(scenario())
    assert "xxxxxxxx" not in log.getvalue()
    assert "spaces and more" not in log.getvalue()
    assert "critical" not in log.getvalue()
    assert len({line["request_id"] for line in lines(log, message="ReportProgress: answered")}) == 4


def test_an_error_that_is_the_hubs_own_business_is_found_by_the_id_that_the_silo_is_told(
        tmp_path: Path, log: io.StringIO) -> None:
    async def scenario() -> str:
        async with hub(tmp_path) as made:
            task = made.tasks["alpha"]
            path = made.coordinator.payloads.path(task.payloads[0].digest)
            path.unlink()
            call = made.silos["alpha"].DownloadPayload(
                pb.DownloadPayloadRequest(task_id=task.task_id, digest=bytes.fromhex(task.payloads[0].digest)),
                timeout=300, metadata=((REQUEST_ID_KEY, "0123456789abcdef"),))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in call:
                    pass
            return str(caught.value.details())
    assert "request 0123456789abcdef" in asyncio.run(scenario())
    found = lines(log, level="error", request_id="0123456789abcdef")
    assert len(found) == 1
    assert "is missing" in found[0]["message"]


def test_updates_with_equal_ids_of_requests_are_still_apart(tmp_path: Path, log: io.StringIO) -> None:
    """The id is for reading logs: nothing is decided by it."""
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            for silo in SILOS:
                task = made.tasks[silo]
                answer = await made.silos[silo].BeginUpdate(begin(task, content_of(task)), timeout=300,
                                                            metadata=((REQUEST_ID_KEY, "00000000"),))
                assert answer.state == pb.BeginUpdateResponse.STATE_SEND
            assert {made.coordinator.ledger.declared_update(id_of(made.tasks[silo], content_of(made.tasks[silo])))
                    is not None for silo in SILOS} == {True}
    asyncio.run(scenario())
