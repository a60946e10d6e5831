"""The silo's end of the wire: transfers go on where they were cut, calls are repeated, and what is hopeless is not."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import grpc.aio
import pytest

from semisilo.common.errors import (
    BadPayload,
    CertificateExpired,
    CertificateRevoked,
    ClockSkew,
    DiskFull,
    PayloadNotServed,
    SemisiloError,
    TaskClosed,
    UnknownSilo,
    Unreachable,
    WrongAuthority,
    WrongBase,
    by_code,
    known_codes,
)
from semisilo.common.methods.contract import PayloadRef
from semisilo.common.rpc import chunks
from semisilo.common.rpc.convert import reference_to_proto
from semisilo.common.storage.store import PartialFile, PayloadStore
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.link.link import Link, LinkSettings
from semisilo.silo.link.retrying_calls import Backoff, is_answer, is_fatal, waits
from tests.each_of import each_of
from tests.proxy import Proxy
from tests.silo.fake_coordinator import FakeCoordinator, random_bytes, serving

QUICK = LinkSettings(call_seconds=5.0, stall_seconds=5.0, backoff=Backoff(first_seconds=0.02, largest_seconds=0.2))
MIB = 2**20


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 300))


def open_to(port: int) -> Callable[[], grpc.aio.Channel]:
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200),
               ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    return lambda: grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


@asynccontextmanager
async def linked(port: int, **options: Any) -> Any:
    link = Link(open_to(port), silo="a", **{"settings": QUICK, **options})
    try:
        yield link
    finally:
        await link.close()


def hello() -> pb.AwaitTaskRequest:
    request = pb.AwaitTaskRequest(version="0")
    request.poll_timeout.FromMilliseconds(100)
    return request


def declaration(path: Path, data: bytes) -> pb.BeginUpdateRequest:
    path.write_bytes(data)
    reference = PayloadRef(hashlib.sha256(data).hexdigest(), len(data), ("model",))
    return pb.BeginUpdateRequest(task_id="t", update_id="0123456789abcdef",
                                 update=pb.UpdateDeclaration(payload=reference_to_proto(reference)))


# Downloads ------------------------------------------------------------------------------------------------------------


def test_a_download_goes_on_from_what_is_on_disk_after_every_cut(tmp_path: Path) -> None:
    """12 MiB over connections that die after 2 MiB each: with attempts that began from the start it would never end."""
    async def work() -> None:
        coordinator = FakeCoordinator()
        reference = coordinator.add_file(random_bytes(12 * MIB))
        store = PayloadStore(tmp_path)
        seen: list[int] = []
        async with serving(coordinator) as port:
            with Proxy("127.0.0.1", port) as proxy:
                proxy.cut_after_down_bytes = 2 * MIB
                async with linked(proxy.port) as link:
                    path = await link.download("t", reference, store, on_bytes=seen.append)
                assert path.read_bytes() == coordinator.files[reference.digest]
        offsets = [offset for _, offset in coordinator.downloads]
        assert len(offsets) >= 6
        assert offsets == sorted(offsets)
        assert offsets[-1] > 8 * MIB
        assert seen == sorted(seen)
        assert seen[-1] == reference.size_bytes
    run(work())


def test_a_download_that_a_crash_cut_goes_on_in_the_next_process(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(hang_downloads=1)
        reference = coordinator.add_file(random_bytes(MIB))
        async with serving(coordinator) as port:
            async with linked(port) as link:
                first = asyncio.ensure_future(link.download("t", reference, PayloadStore(tmp_path)))
                await until(lambda: any(path.stat().st_size > 0 for path in tmp_path.rglob("*.journal")))  # a chunk
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
            async with linked(port) as link:
                path = await link.download("t", reference, PayloadStore(tmp_path))
        assert path.read_bytes() == coordinator.files[reference.digest]
        assert coordinator.downloads[1] == (reference.digest, coordinator.chunk_bytes)
    run(work())


def test_a_transfer_for_which_no_thread_can_be_started_is_tried_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with TasksMax of systemd: `silo join` ended with a stack trace."""
    refused: list[int] = []

    class Writer(chunks._Writer):
        def __init__(self, partial: PartialFile) -> None:
            if len(refused) < 3:
                refused.append(1)
                raise RuntimeError("can't start new thread")
            super().__init__(partial)

    monkeypatch.setattr(chunks, "_Writer", Writer)
    troubles: list[str] = []

    def cause() -> SemisiloError | None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        coordinator = FakeCoordinator()
        reference = coordinator.add_file(random_bytes(2 * MIB))
        async with serving(coordinator) as port, linked(
                port, diagnose=cause, on_trouble=lambda error, failures: troubles.append(error.line())) as link:
            path = await link.download("t", reference, PayloadStore(tmp_path))
        assert path.read_bytes() == coordinator.files[reference.digest]
    run(work())
    assert len(troubles) == 3
    assert "TasksMax" in troubles[0]


@pytest.mark.parametrize(("size", "chunk_bytes", "parts"), [(100_000, 100_000, 0), (100_000, 65_536, 1),
                                                            (MIB, MIB, 1)])
def test_a_small_payload_that_comes_in_one_piece_is_written_once(
        tmp_path: Path, size: int, chunk_bytes: int, parts: int) -> None:
    """It took a file that it could be resumed from, a journal, and four threads one after the other."""
    async def work() -> None:
        coordinator = FakeCoordinator(chunk_bytes=chunk_bytes)
        reference, seen = coordinator.add_file(random_bytes(size)), list[int]()
        store = PayloadStore(tmp_path)
        async with serving(coordinator) as port, linked(port) as link:
            with mock.patch.object(PayloadStore, "partial", autospec=True, side_effect=PayloadStore.partial) as opened:
                path = await link.download("t", reference, store, on_bytes=seen.append)
        assert path.read_bytes() == coordinator.files[reference.digest]
        assert opened.call_count == parts
        assert seen[-1] == size
        assert not any(store.folder.joinpath("incoming").iterdir())
    run(work())


def test_a_small_payload_that_was_cut_goes_on_and_a_damaged_one_is_fetched_again(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(chunk_bytes=40_000, hang_downloads=1)
        reference = coordinator.add_file(random_bytes(100_000))
        async with serving(coordinator) as port, linked(port, settings=replace(QUICK, stall_seconds=0.3)) as link:
            await link.download("t", reference, PayloadStore(tmp_path / "cut"))
            assert [offset for _, offset in coordinator.downloads] == [0, 40_000]
            coordinator.chunk_bytes = 100_000
            coordinator.alter = lambda data, attempt: data if attempt > 2 else data[::-1]
            path = await link.download("t", reference, PayloadStore(tmp_path / "damaged"))
        assert path.read_bytes() == coordinator.files[reference.digest]
        assert [offset for _, offset in coordinator.downloads[2:]] == [0, 0]
    run(work())


def test_a_payload_that_is_here_is_not_asked_for(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator()
        reference = coordinator.add_file(b"here already")
        store = PayloadStore(tmp_path)
        temporary = store.temporary()
        temporary.write_bytes(b"here already")
        store.add_file(temporary)
        async with serving(coordinator) as port, linked(port) as link:
            await link.download("t", reference, store)
        assert coordinator.downloads == []
    run(work())


@pytest.mark.parametrize(("damaged", "good"), [(1, True), (2, True), (3, False)])
def test_a_payload_with_the_wrong_digest_is_fetched_again_at_most_twice(
        tmp_path: Path, damaged: int, good: bool) -> None:
    async def work() -> None:
        def alter(data: bytes, attempt: int) -> bytes:
            return data if attempt >= damaged else data[:-1] + bytes([data[-1] ^ 1])
        coordinator = FakeCoordinator(alter=alter)
        reference = coordinator.add_file(random_bytes(200_000))
        async with serving(coordinator) as port, linked(port) as link:
            if good:
                path = await link.download("t", reference, PayloadStore(tmp_path))
                assert path.read_bytes() == coordinator.files[reference.digest]
            else:
                with pytest.raises(BadPayload, match="damaged 3 times"):
                    await link.download("t", reference, PayloadStore(tmp_path))
        assert coordinator.downloads == [(reference.digest, 0)] * min(3, damaged + 1)
    run(work())


def test_a_stream_that_goes_on_after_the_declared_end_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(alter=lambda data, attempt: data + b"x" * 100_000)
        reference = coordinator.add_file(random_bytes(100_000))
        async with serving(coordinator) as port, linked(port) as link:
            with pytest.raises(BadPayload):
                await link.download("t", reference, PayloadStore(tmp_path))
        assert max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 100_000
    run(work())


@pytest.mark.slow
def test_a_stream_in_which_nothing_moves_is_cut_and_gone_on_with(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(hang_downloads=1)
        reference = coordinator.add_file(random_bytes(MIB))
        settings = LinkSettings(stall_seconds=2.0, backoff=QUICK.backoff)
        async with serving(coordinator) as port, linked(port, settings=settings) as link:
            await link.download("t", reference, PayloadStore(tmp_path))
        assert coordinator.downloads == [(reference.digest, 0), (reference.digest, coordinator.chunk_bytes)]
    run(work())


def test_what_the_coordinator_answers_on_purpose_is_not_repeated(tmp_path: Path) -> None:
    async def work() -> None:
        for error in (PayloadNotServed("no"), TaskClosed("late")):
            asked: list[str] = []

            def fault(rpc: str, request: Any, error: SemisiloError = error, asked: list[str] = asked) -> SemisiloError:
                asked.append(rpc)
                return error
            coordinator = FakeCoordinator(fault=fault)
            reference = coordinator.add_file(b"data of a payload")
            async with serving(coordinator) as port, linked(port) as link:
                with pytest.raises(type(error), match=error.text):
                    await link.download("t", reference, PayloadStore(tmp_path))
            assert asked == ["DownloadPayload"]
    run(work())


_TRIED_AGAIN = {
    # What the coordinator's own machine or program is in the way of, and its operator may mend:
    "FAILED", "BAD_DATA", "COMPUTE_FAILED", "DISK_FULL", "PORT_IN_USE", "NO_SUCH_ADDRESS", "PLUGIN_FAILED",
    "PROCESS_GROUP_LOST", "STORAGE_DAMAGED", "SYSTEM_TROUBLE",
    # The line, and what only time changes:
    "CLOCK_SKEW", "CONNECTION_REFUSED", "STUDY_NOT_OPEN", "TOO_MANY_CALLS", "UNREACHABLE",
    # No coordinator answers a silo's calls with these: they are this side's own, or of other ports.
    "INVITATION_EXPIRED", "INVITATION_INVALID", "INVITATION_USED", "TENSORS_MISSING"}


def test_every_code_is_either_tried_again_or_an_answer_or_the_end() -> None:
    """A silo whose signature was refused asked for ever, in the same way and with the same answer."""
    kinds = {code: (code in _TRIED_AGAIN, is_answer(by_code(code)("")), is_fatal(by_code(code)("")))
             for code in known_codes()}
    assert {code: found for code, found in kinds.items() if sum(found) != 1} == {}


# Uploads --------------------------------------------------------------------------------------------------------------


def test_an_upload_goes_on_from_what_the_coordinator_has_after_every_cut(tmp_path: Path) -> None:
    async def work() -> None:
        data = random_bytes(12 * MIB)
        request = declaration(tmp_path / "update", data)
        coordinator = FakeCoordinator()
        async with serving(coordinator) as port:
            with Proxy("127.0.0.1", port) as proxy:
                proxy.cut_after_up_bytes = 2 * MIB
                async with linked(proxy.port) as link:
                    verdict = await link.upload(request, tmp_path / "update")
        assert verdict.accepted
        assert coordinator.accepted == {request.update_id: data}
        offsets = [offset for _, offset in coordinator.uploads if offset >= 0]  # a cut may come before the first chunk
        assert len(offsets) >= 6
        assert offsets == sorted(offsets)
    run(work())


def test_an_update_stays_at_home_until_the_coordinator_has_a_place_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        data = random_bytes(MIB)
        request = declaration(tmp_path / "update", data)
        coordinator = FakeCoordinator(slot=asyncio.Event())
        sent: list[int] = []
        async with serving(coordinator) as port, linked(port) as link:
            uploading = asyncio.ensure_future(link.upload(request, tmp_path / "update", on_bytes=sent.append))
            await until(lambda: bool(coordinator.begins))
            await asyncio.sleep(0.2)
            assert sent == []
            assert coordinator.slot is not None
            coordinator.slot.set()
            assert (await uploading).accepted
        assert sent[-1] == len(data)
        assert coordinator.accepted == {request.update_id: data}
    run(work())


def test_an_upload_whose_answer_was_lost_is_not_sent_again(tmp_path: Path) -> None:
    async def work() -> None:
        request = declaration(tmp_path / "update", random_bytes(100_000))
        coordinator = FakeCoordinator()
        lost = iter([True, False])

        def objection(update_id: str) -> SemisiloError | None:
            if next(lost):  # accepted, but the connection breaks before the answer
                coordinator.accepted[update_id] = bytes(coordinator.spool[update_id])
                return DiskFull("stands for a cut")
            return None
        coordinator.objection = objection
        async with serving(coordinator) as port, linked(port) as link:
            assert (await link.upload(request, tmp_path / "update")).accepted
        assert len(coordinator.uploads) == 1
        assert len(coordinator.begins) == 2
        assert coordinator.begins[0] == coordinator.begins[1]
    run(work())


def test_an_update_that_is_wholly_there_but_not_recorded_needs_no_byte(tmp_path: Path) -> None:
    async def work() -> None:
        data = random_bytes(100_000)
        request = declaration(tmp_path / "update", data)
        coordinator = FakeCoordinator(spool={request.update_id: bytearray(data)})
        async with serving(coordinator) as port, linked(port) as link:
            assert (await link.upload(request, tmp_path / "update")).accepted
        assert coordinator.uploads == [(request.update_id, -1)]
    run(work())


def test_a_late_update_is_dropped_with_the_coordinators_reason(tmp_path: Path) -> None:
    async def work() -> None:
        request = declaration(tmp_path / "update", random_bytes(1000))
        coordinator = FakeCoordinator(refuse_reason="the round is closed")
        async with serving(coordinator) as port, linked(port) as link:
            verdict = await link.upload(request, tmp_path / "update")
        assert (verdict.accepted, verdict.reason) == (False, "the round is closed")
        assert coordinator.uploads == []
    run(work())


def test_a_phase_that_closes_during_the_upload_ends_it_with_the_reason(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator()

        def fault(rpc: str, request: Any) -> SemisiloError | None:
            if rpc == "SubmitUpdate":
                coordinator.refuse_reason = "the round is closed"
                return TaskClosed("closed while it was on its way")
            return None
        coordinator.fault = fault
        request = declaration(tmp_path / "update", random_bytes(3 * MIB))
        async with serving(coordinator) as port, linked(port) as link:
            verdict = await link.upload(request, tmp_path / "update")
        assert verdict.reason == "the round is closed"
    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("where", ["SubmitUpdate", "SubmitUpdate chunk"])
def test_the_reason_for_which_an_upload_is_ended_early_is_heard_at_the_first_time(tmp_path: Path, where: str) -> None:
    """The silo still writes when the coordinator ends the call. gRPC for Python then says "Internal error from Core"
    instead of the reason, at nearly every try of ours in both places before `semisilo.silo.link.transfers` was there:
    the upload of a revoked silo was repeated for ever."""
    async def work() -> None:
        asked: list[str] = []

        def fault(rpc: str, request: Any) -> SemisiloError | None:
            asked.append(rpc)
            return CertificateRevoked("The operator has revoked silo 'a'.") if rpc == where else None
        request = declaration(tmp_path / "update", random_bytes(8 * MIB))
        coordinator = FakeCoordinator(fault=fault)
        async with serving(coordinator) as port, linked(port) as link:
            for _ in range(20):
                coordinator.spool.clear()
                with pytest.raises(CertificateRevoked, match="operator has revoked"):
                    await link.upload(request, tmp_path / "update")
        assert asked.count("BeginUpdate") == asked.count("SubmitUpdate") == 20
    run(work())


def test_an_objection_to_the_declaration_is_raised_and_one_to_the_bytes_when_it_comes_again(tmp_path: Path) -> None:
    async def work() -> None:
        request = declaration(tmp_path / "update", random_bytes(1000))
        coordinator = FakeCoordinator(fault=lambda rpc, _: WrongBase("other base") if rpc == "BeginUpdate" else None)
        async with serving(coordinator) as port, linked(port) as link:
            with pytest.raises(WrongBase, match="other base"):
                await link.upload(request, tmp_path / "update")
        coordinator = FakeCoordinator(objection=lambda _: BadPayload("not what was declared"))
        async with serving(coordinator) as port, linked(port) as link:
            with pytest.raises(BadPayload, match="not what was declared"):
                await link.upload(request, tmp_path / "update")
        assert [offset for _, offset in coordinator.uploads] == [0, -1, -1, -1]  # the first has brought the bytes
    run(work())


def test_an_offset_outside_of_the_update_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        request = declaration(tmp_path / "update", random_bytes(1000))
        coordinator = FakeCoordinator(spool={request.update_id: bytearray(1001)})
        async with serving(coordinator) as port, linked(port) as link:
            with pytest.raises(BadPayload, match="1001"):
                await link.upload(request, tmp_path / "update")
    run(work())


@pytest.mark.parametrize("size", [3 * MIB, 200_000])
def test_the_rate_of_an_upload_is_that_of_the_line_not_of_the_buffers(tmp_path: Path, size: int) -> None:
    """3 MiB disappear into the socket's buffers at once; the line behind them carries 8 MiB a second. A small one
    says nothing about the line."""
    async def work() -> None:
        request = declaration(tmp_path / "update", random_bytes(size))
        async with serving(FakeCoordinator()) as port:
            with Proxy("127.0.0.1", port) as proxy:
                proxy.bytes_per_second = 8.0 * MIB
                async with linked(proxy.port) as link:
                    assert link.upload_rate == 0.0
                    assert (await link.upload(request, tmp_path / "update")).accepted
                    rate = link.upload_rate
        if size < MIB:
            assert rate == 0.0
        else:
            assert 0 < rate <= 10 * MIB
    run(work())


# Patience -------------------------------------------------------------------------------------------------------------


def test_what_the_silos_own_clock_denies_is_tried_again_until_the_clocks_agree() -> None:
    async def work() -> None:
        asked: list[str] = []
        told: list[SemisiloError] = []

        def fault(rpc: str, request: Any) -> SemisiloError | None:
            asked.append(rpc)
            return CertificateExpired("ended") if len(asked) < 5 else None

        def denied(error: SemisiloError) -> SemisiloError:
            return ClockSkew("not by this clock") if isinstance(error, CertificateExpired) else error
        async with serving(FakeCoordinator(fault=fault)) as port, \
                linked(port, by_own_clock=denied) as link:  # what reports how far the work is ends nobody's work either
            with pytest.raises(ClockSkew):
                await link.report_progress(pb.ReportProgressRequest(task_id="t"))
        asked.clear()
        async with serving(FakeCoordinator(fault=fault)) as port, \
                linked(port, by_own_clock=denied, on_trouble=lambda error, failures: told.append(error),
                       diagnose=lambda: Unreachable("answers now")) as link:
            await link.await_task(hello)
        assert len(asked) == 5
        assert {error.text for error in told} == {"not by this clock"}, "what is known is not looked for"
    run(work())


@each_of("error", [CertificateRevoked("revoked"), CertificateExpired("expired"), UnknownSilo("unknown"),
                   WrongAuthority("wrong")])
def test_what_no_repetition_can_mend_is_raised_at_the_first_time(error: SemisiloError) -> None:
    async def work() -> None:
        asked: list[str] = []

        def fault(rpc: str, request: Any) -> SemisiloError:
            asked.append(rpc)
            return error
        async with serving(FakeCoordinator(fault=fault)) as port, linked(port) as link:
            with pytest.raises(type(error), match=error.text):
                await link.await_task(hello)
        assert asked == ["AwaitTask"]
    run(work())


def test_the_silo_comes_back_when_the_coordinator_does() -> None:
    async def work() -> None:
        troubles: list[int] = []
        coordinator = FakeCoordinator()
        async with serving(coordinator) as port:
            pass
        async with linked(port, on_trouble=lambda error, failures: troubles.append(failures)) as link:
            waiting = asyncio.ensure_future(link.await_task(hello))
            await until(lambda: len(troubles) >= 2)
            assert not waiting.done()
            async with serving(coordinator, port=port):
                answer = await waiting
        assert answer.standby.study == "first"
        assert troubles == list(range(1, len(troubles) + 1))
    run(work())


def test_an_unforeseen_failure_of_the_coordinator_is_repeated_with_growing_pauses() -> None:
    async def work() -> None:
        times: list[float] = []

        def fault(rpc: str, request: Any) -> SemisiloError | None:
            times.append(asyncio.get_running_loop().time())
            return SemisiloError("a fault") if len(times) < 7 else None
        backoff = Backoff(first_seconds=0.005, largest_seconds=10.0, jitter=0.0)
        async with serving(FakeCoordinator(fault=fault)) as port, linked(
                port, settings=LinkSettings(backoff=backoff)) as link:
            await link.await_task(hello)
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(pause >= 0.005 * 2**number for number, pause in enumerate(pauses))
    run(work())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_the_cause_is_looked_for_at_the_second_failure_and_then_now_and_then_and_keeps_its_wording() -> None:
    async def work() -> None:
        told: list[tuple[int, str]] = []
        looked: list[int] = []

        def diagnose() -> SemisiloError:
            looked.append(len(told) + 1)
            return Unreachable("the cable is out")
        settings = LinkSettings(backoff=Backoff(first_seconds=0.01, largest_seconds=0.02), diagnose_every_seconds=0.3)
        async with linked(free_port(), settings=settings, diagnose=diagnose,
                          on_trouble=lambda error, failures: told.append((failures, error.text))) as link:
            began = time.monotonic()
            waiting = asyncio.ensure_future(link.await_task(hello))
            await until(lambda: len(looked) >= 2 and len(told) > 4)
            waiting.cancel()
        assert looked[0] == 2
        assert len(looked) <= 1 + (time.monotonic() - began) / 0.3
        assert {text for _, text in told[1:]} == {"the cable is out"}, "between two looks as well"
        assert told[0][1] != "the cable is out"
    run(work())


def test_a_cause_that_no_repetition_can_mend_ends_the_attempts() -> None:
    async def work() -> None:
        async with linked(free_port(), diagnose=lambda: CertificateExpired("ended on Tuesday")) as link:
            with pytest.raises(CertificateExpired, match="Tuesday"):
                await link.await_task(hello)
    run(work())


def test_pauses_double_up_to_the_largest_and_differ_from_silo_to_silo() -> None:
    backoff = Backoff(first_seconds=0.2, largest_seconds=30.0, jitter=0.5)
    drawn = list(itertools.islice(waits(backoff, silo="a"), 20))
    for number, pause in enumerate(drawn):
        nominal = min(30.0, 0.2 * 2**number)
        assert nominal / 2 <= pause <= nominal
    assert drawn == list(itertools.islice(waits(backoff, silo="a"), 20))
    assert drawn != list(itertools.islice(waits(backoff, silo="b"), 20))
    assert drawn != list(itertools.islice(waits(backoff, silo="a", seed=1), 20))
