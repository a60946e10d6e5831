"""What one silo may ask of the coordinator at a time: a greedy one meets its limits, and the others meet nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semisilo.common.errors import SemisiloError, TooManyCalls
from semisilo.common.rpc.grpc_errors import from_rpc_error
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.coordinator.rpc import silo_calls
from semisilo.coordinator.rpc.caller import CallerCertificate
from semisilo.coordinator.rpc.silo_calls import SiloCalls
from tests.coordinator.hub_over_tls import Hub, deliver, hello, hub, refusal


def error_of(call: Any) -> SemisiloError | None:
    """What a call that is over has ended with."""
    found = None if call.cancelled() else call.exception()
    return from_rpc_error(found) if isinstance(found, grpc.aio.AioRpcError) else None


def greedy(made: Hub, connections: int) -> list[Any]:
    return [made.connect(made.credentials["alpha"]) for _ in range(connections)]


def test_of_many_calls_for_a_task_two_wait_and_the_newer_goes_before_the_older(tmp_path: Path) -> None:
    """1,600 of one silo held up an honest one for 17 s."""
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            made.coordinator.task_service.abstain("alpha", made.tasks["alpha"].task_id, "none", {})
            calls: list[Any] = []
            for stub in greedy(made, 3):
                for _ in range(4):
                    calls.append(asyncio.ensure_future(stub.AwaitTask(hello(), timeout=300)))
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(300):  # a refused call may still be on its way out when its silo has the answer
                while sum(call.done() for call in calls) < 10 or made.coordinator.runtime.connected != {"alpha": 2}:
                    await asyncio.sleep(0.01)
            errors = [error_of(call) for call in calls if call.done()]
            assert all(isinstance(each, TooManyCalls) and each.retry_seconds == 1.0 for each in errors)
            answer = await made.silos["beta"].AwaitTask(hello(), timeout=300)
            assert answer.task.task_id == made.tasks["beta"].task_id
            await deliver(made, "beta")  # the round goes on, and those who wait hear of it
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    asyncio.run(scenario())


def test_a_silo_that_calls_too_often_is_refused_before_its_request_is_read(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silo_calls, "_AT_ONCE", 10)
    monkeypatch.setattr(silo_calls, "_PER_SECOND", 0.01)

    async def scenario() -> None:
        async with hub(tmp_path) as made:
            (stub,) = greedy(made, 1)
            task = made.tasks["alpha"].task_id
            refused = []
            asked: list[str] = []
            for _ in range(20):
                made.coordinator.ledger._db.set_trace_callback(asked.append if refused else None)
                try:
                    await stub.ReportProgress(pb.ReportProgressRequest(task_id=task), timeout=300)
                except grpc.aio.AioRpcError as error:
                    refused.append(from_rpc_error(error))
            made.coordinator.ledger._db.set_trace_callback(None)
            assert 10 <= len(refused) <= 20, "it has called for its task before"
            assert all(isinstance(error, TooManyCalls) and error.retry_seconds > 1 for error in refused)
            assert not [sql for sql in asked if "task" in sql], "the ledger was not asked about a refused call"
            made.connect(made.credentials["alpha"])
            # The limit is the silo's, not the connection's; others have their own.
            assert (await refusal(made.silos["alpha"].AwaitTask(hello(), timeout=300))).code == "TOO_MANY_CALLS"
            await deliver(made, "beta")
    asyncio.run(scenario())


class _Context:
    """The part of a gRPC context that admission needs."""

    def __init__(self, requests: AsyncIterator[bytes]) -> None:
        self.ended = ""
        self.silo = ""
        self._requests = requests

    async def read(self) -> Any:
        return await anext(self._requests, grpc.aio.EOF)

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:10.0.0.1:40000"

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self.ended = dict(trailing_metadata)["semisilo-error-code"]
        raise grpc.aio.AbortError


def test_calls_in_flight_are_bounded_and_a_place_is_free_again_when_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silo_calls, "caller_silo", lambda context, federation: CallerCertificate(
        silo="alpha", serial=1, not_before_unix=0.0, not_after_unix=4e9))

    async def scenario() -> None:
        calls = SiloCalls("testing", request_seconds=0.02)
        release = asyncio.Event()

        async def work(request: Any, context: Any) -> pb.ReportProgressResponse:
            await release.wait()
            return pb.ReportProgressResponse()

        async def requests(*messages: bytes) -> Any:
            for message in messages:
                yield message

        async def silence() -> Any:
            await asyncio.Event().wait()
            yield b""

        admit: Any = calls.unary(work, pb.ReportProgressRequest)

        async def ended(*messages: bytes, given: Any = None) -> str:
            context = _Context(given or requests(*messages))
            try:
                await admit.stream_unary(None, context)
            except grpc.aio.AbortError:
                return context.ended
            return ""

        running = [asyncio.ensure_future(ended(b"")) for _ in range(32)]
        await asyncio.sleep(0)
        assert await ended(b"") == "TOO_MANY_CALLS"
        release.set()
        assert await asyncio.gather(*running) == [""] * 32
        assert await ended(b"") == ""
        assert await ended() == "BAD_PAYLOAD"
        assert await ended(b"\xff\xff") == "BAD_PAYLOAD"
        assert await ended(b"x" * (silo_calls._MAX_REQUEST_BYTES + 1)) == "BAD_PAYLOAD"
        assert await ended(given=silence()) == "UNREACHABLE"
        assert calls._silos["alpha"].in_flight == 0
    asyncio.run(scenario())


def test_requests_that_come_in_part_take_the_memory_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC keeps what has come of a message that somebody reads: 32 times 8 MiB of one silo."""
    monkeypatch.setattr(silo_calls, "caller_silo", lambda context, federation: CallerCertificate(
        silo="alpha", serial=1, not_before_unix=0.0, not_after_unix=4e9))
    now = most = 0

    async def scenario() -> None:
        calls = SiloCalls("testing", request_seconds=0.2)

        async def work(request: Any, context: Any) -> pb.ReportProgressResponse:
            return pb.ReportProgressResponse()

        async def half() -> Any:
            nonlocal now, most
            now += 1
            most = max(most, now)
            try:
                await asyncio.Event().wait()
            finally:
                now -= 1
            yield b""

        admit: Any = calls.unary(work, pb.ReportProgressRequest)
        contexts = [_Context(half()) for _ in range(30)]
        await asyncio.gather(*(admit.stream_unary(None, each) for each in contexts), return_exceptions=True)
        assert sorted(each.ended for each in contexts) == ["TOO_MANY_CALLS"] * 22 + ["UNREACHABLE"] * 8
        assert (now, most) == (0, 8)

        async def whole() -> Any:
            yield b""

        context = _Context(whole())
        await admit.stream_unary(None, context)
        assert context.ended == "", "a place is free again"
    asyncio.run(scenario())


def test_a_silo_whose_requests_are_too_long_together_is_refused_before_they_are_parsed(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty declarations at a time, 165 KB each on the line, let an honest call wait for 16 s."""
    monkeypatch.setattr(silo_calls, "caller_silo", lambda context, federation: CallerCertificate(
        silo=context.silo, serial=1, not_before_unix=0.0, not_after_unix=4e9))
    now = 100.0

    async def scenario() -> None:
        nonlocal now
        calls = SiloCalls("testing", clock=lambda: now)

        async def work(request: Any, context: Any) -> pb.ReportProgressResponse:
            return pb.ReportProgressResponse()

        admit: Any = calls.unary(work, pb.ReportProgressRequest)

        async def ended(length: int, silo: str = "alpha") -> str:
            async def requests() -> Any:
                yield pb.ReportProgressRequest(text="x" * length).SerializeToString()

            context = _Context(requests())
            context.silo = silo
            try:
                await admit.stream_unary(None, context)
            except grpc.aio.AbortError:
                return context.ended
            return ""

        longest = silo_calls._MAX_REQUEST_BYTES - 100
        assert [await ended(longest) for _ in range(2)] == ["", ""], "two of the longest pass at once"
        for _ in range(3):
            assert await ended(longest) == "TOO_MANY_CALLS"
        assert await ended(1000, "beta") == await ended(100) == "", "others, and short ones, meet nothing"
        now += longest / silo_calls._BYTES_PER_SECOND
        assert await ended(longest) == "", "one that is tried again passes: to be refused has cost nothing"
    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sixteen_hundred_calls_of_one_silo_hold_up_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            made.coordinator.task_service.abstain("alpha", made.tasks["alpha"].task_id, "none", {})
            calls = [asyncio.ensure_future(stub.AwaitTask(hello(), timeout=300))
                     for stub in greedy(made, 100) for _ in range(16)]
            await asyncio.sleep(1.0)
            waited = []
            for _ in range(20):
                began = time.process_time()  # both ends are in this process: what others do on the machine is left out
                await made.silos["beta"].AwaitTask(hello(), timeout=300)
                waited.append(time.process_time() - began)
            print(f"an honest call costs {sorted(waited)[10]:.3f} s, at most {max(waited):.3f} s")
            assert made.coordinator.runtime.connected.get("alpha", 0) <= 32, "of all its calls"
            assert sorted(waited)[10] < 1.0
            assert max(waited) < 15.0, "the first may wait behind the handshakes; without limits it was 17 s"
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    asyncio.run(scenario())


def test_whose_connection_it_is_is_told_before_the_request_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silo_calls, "caller_silo", lambda context, federation: CallerCertificate(
        silo="alpha", serial=1, not_before_unix=0.0, not_after_unix=4e9))
    told: list[tuple[str, str]] = []

    async def requests() -> Any:
        assert told == [("ipv4:10.0.0.1:40000", "alpha")]
        yield b""

    async def work(request: Any, context: Any) -> pb.ReportProgressResponse:
        return pb.ReportProgressResponse()

    async def scenario() -> None:
        calls = SiloCalls("testing", called=lambda peer, silo: told.append((peer, silo)))
        handler = calls.unary(work, pb.ReportProgressRequest)
        await handler.stream_unary(None, _Context(requests()))

    asyncio.run(scenario())
    assert len(told) == 1


def test_a_call_leaves_nothing_behind_that_has_to_be_closed(tmp_path: Path) -> None:
    """Of gRPC's iterator of requests a generator was left that waited for more: the collector found thousands at once,
    each took a task to be closed, and nobody was answered for a twentieth of a second."""
    async def scenario() -> None:
        loop, started = asyncio.get_running_loop(), list[str]()

        def task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
            started.append(type(work).__name__)
            return asyncio.Task(work, loop=loop, **options)

        async with hub(tmp_path) as made:
            gc.collect()
            await asyncio.sleep(0)
            loop.set_task_factory(task)
            for _ in range(10):
                await made.silos["alpha"].ReportProgress(
                    pb.ReportProgressRequest(task_id=made.tasks["alpha"].task_id), timeout=300)
            gc.collect()
            await asyncio.sleep(0.05)
            loop.set_task_factory(None)
            assert started
            assert not [name for name in started if "async_generator" in name]
    asyncio.run(scenario())
