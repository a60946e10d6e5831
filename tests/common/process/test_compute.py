"""The compute process: messages, errors, death in every manner, abort, and what is opened again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadData, ComputeFailed, ProcessGroupLost, SystemTrouble
from semisilo.common.process.child import Child
from semisilo.common.process.compute import ComputeAborted, InlineCompute, ProcessCompute
from semisilo.common.process.messages import Handler, Request
from tests.common.process.compute_operations import (
    Die,
    Echo,
    FailBy,
    FailIn,
    Failing,
    IsOpen,
    Nothing,
    Open,
    Operations,
    Steps,
    Unheard,
    WhatIsOpen,
)

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "broken_operations.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(REPOSITORY))))
    return "tests.common.process.compute_operations:Operations"


def with_process(target: str, body: Callable[[ProcessCompute], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        compute = ProcessCompute(target)
        try:
            await asyncio.wait_for(body(compute), 300)
        finally:
            await compute.close()

    asyncio.run(scenario())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + 300
    while is_alive(pid):
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.02)


def test_a_call_runs_in_another_process_and_prints_go_to_the_log_not_into_the_messages(
        target: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "semisilo.compute")

    async def body(compute: ProcessCompute) -> None:
        answer = await compute.call(Echo(["ä", 1.5, None]))
        assert answer.value == ["ä", 1.5, None]
        assert answer.pid != os.getpid()
        assert answer.pid == compute.pid
        assert answer.threads == "1"
        assert (await compute.call(Echo(2))).pid == answer.pid, "the process is resident"

    with_process(target, body)
    logged = [record.getMessage() for record in caplog.records]
    assert "hello on stdout" in logged
    assert "hello on stderr" in logged


def test_a_stray_common_package_in_the_current_folder_does_no_harm(
        target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stray = tmp_path / "elsewhere"
    stray.mkdir()
    (stray / "common.py").write_text("raise SystemExit('the stray module was imported')\n")
    monkeypatch.chdir(stray)

    async def body(compute: ProcessCompute) -> None:
        assert (await compute.call(Echo(1))).value == 1

    with_process(target, body)


def test_progress_arrives_in_order_and_at_most_about_ten_a_second(target: str) -> None:
    seen: list[tuple[float, str]] = []

    async def body(compute: ProcessCompute) -> None:
        await compute.call(Steps(200, 0.002), on_progress=lambda f, t: seen.append((f, t)))

    started = time.monotonic()
    with_process(target, body)
    seconds = time.monotonic() - started
    assert seen[0] == (1 / 200, "step 1")
    assert seen[-1] == (1.0, "step 200")
    assert seen == sorted(seen)
    assert len(seen) <= 2 + seconds / 0.1


def test_an_error_of_the_catalogue_arrives_as_the_same_class_with_its_remedy(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        with pytest.raises(BadData) as caught:
            await compute.call(FailBy("refuse"))
        assert (caught.value.text, caught.value.remedy) == ("scans/: no images.", "Add some.")
        assert (await compute.call(Echo(1))).value == 1

    with_process(target, body)


@pytest.mark.slow
def test_any_other_error_becomes_compute_failed_and_its_traceback_goes_to_the_log(
        target: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body(compute: ProcessCompute) -> None:
        before = (await compute.call(Echo(1))).pid
        requests: tuple[tuple[Request[Any], str], ...] = (
            (FailBy("fail"), "KeyError: 'missing'"), (FailBy("not_json"), "not JSON serializable"),
            (FailBy("too_large"), "the limit is"), (Unheard(), "no operation 'unheard'"))
        for request, text in requests:
            with pytest.raises(ComputeFailed, match=text):
                await compute.call(request)
        assert (await compute.call(Echo(1))).pid == before, "an ordinary error costs no restart"

    with_process(target, body)
    assert any("Traceback" in record.getMessage() and "compute_operations.py" in record.getMessage()
               for record in caplog.records)


@pytest.mark.parametrize("error", [BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
                                   RuntimeError("can't start new thread")])
def test_a_process_that_the_system_does_not_let_be_started_is_the_systems_trouble(
        target: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio of Python 3.11 waits for each process in a thread of its own, so either may be refused."""
    async def refused(*words: object, **named: object) -> None:
        raise error

    async def body(compute: ProcessCompute) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "create_subprocess_exec", refused)
            with pytest.raises(SystemTrouble) as caught:
                await compute.call(Echo(1))
        assert "TasksMax" in caught.value.remedy
        assert (await compute.call(Echo(1))).value == 1

    with_process(target, body)


def test_a_process_that_dies_in_a_call_is_named_with_signal_or_status_and_the_next_call_works(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        with pytest.raises(ComputeFailed, match=r"killed by signal 9 \(SIGKILL, out of memory\?\) during") as caught:
            await compute.call(Die(signal.SIGKILL))
        assert "smaller batch" in caught.value.remedy
        with pytest.raises(ComputeFailed, match=r"killed by signal 11 \(SIGSEGV\)"):
            await compute.call(Die(signal.SIGSEGV))
        with pytest.raises(ComputeFailed, match="ended with exit status 7"):
            await compute.call(FailBy("leave"))
        assert (await compute.call(Echo(1))).value == 1

    with_process(target, body)


def test_a_process_that_has_lost_another_one_puts_the_call_off(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        with pytest.raises(ProcessGroupLost, match="Another process") as put_off:
            await compute.call(FailBy("lost_peer"))
        assert put_off.value.retry

    with_process(target, body)


def test_an_error_that_ends_the_process_is_answered_by_its_own_name_and_the_next_call_has_a_fresh_process(
        target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        first = (await compute.call(Echo(1))).pid
        with pytest.raises(BadData, match="other images"):
            await compute.call(FailBy("spoiled"))
        assert (await compute.call(Echo(1))).pid != first

    with_process(target, body)


def test_a_process_that_leaves_children_behind_does_not_keep_the_caller_waiting(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        with pytest.raises(ComputeFailed, match="exit status 9"):
            await asyncio.wait_for(compute.call(FailBy("grandchild")), 300)

    with_process(target, body)


@pytest.mark.parametrize(("manner", "text", "remedy"), [
    ("out_of_memory", "Out of memory: MemoryError: no 3 GiB left", "smaller batch"),
    ("cuda_fault", "CUDA error", "log")])
def test_after_lack_of_memory_or_a_device_fault_the_next_call_gets_a_fresh_process(
        target: str, manner: Failing, text: str, remedy: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        before = (await compute.call(Echo(1))).pid
        with pytest.raises(ComputeFailed, match=text) as caught:
            await compute.call(FailBy(manner))
        assert remedy in caught.value.remedy
        assert (await compute.call(Echo(1))).pid != before

    with_process(target, body)


def test_the_request_that_ended_with_an_error_that_nobody_foresaw_is_tried_again_in_a_fresh_process(
        target: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was tried three times in the process whose library had failed, and then the study failed."""
    async def body(compute: ProcessCompute) -> None:
        await compute.call(Open("first"))
        before = (await compute.call(Echo(1))).pid
        failing, refused = FailIn(before), FailBy("refuse")
        for _ in range(2):
            with pytest.raises(BadData):  # an error that was foreseen is none of the process
                await compute.call(refused)
        with pytest.raises(ComputeFailed, match="RuntimeError: cuDNN"):
            await compute.call(failing)
        assert (await compute.call(Echo(1))).pid == before, "another request stays where it is"
        with pytest.raises(ComputeFailed, match="RuntimeError: cuDNN"):
            await compute.call(failing)
        assert compute.pid == before
        assert (await compute.call(failing)).pid == compute.pid != before
        assert await compute.call(WhatIsOpen()) == IsOpen("first", True)

    with_process(target, body)
    assert "'fail_in' is tried again in a fresh compute process" in caplog.text


def test_too_many_open_files_are_an_error_of_the_system_and_the_next_call_gets_a_fresh_process(
        target: str, caplog: pytest.LogCaptureFixture) -> None:
    """A library that could not look at the processor would compute in another way from then on."""
    async def body(compute: ProcessCompute) -> None:
        before = (await compute.call(Echo(1))).pid
        with pytest.raises(SystemTrouble, match="Too many open files") as caught:
            await compute.call(FailBy("too_many_files"))
        assert caught.value.retry
        assert (await compute.call(Echo(1))).pid != before

    with_process(target, body)
    assert "Traceback" not in caplog.text


def test_what_was_opened_is_opened_again_in_the_next_process(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        await compute.call(Open("first"))
        assert await compute.call(WhatIsOpen()) == IsOpen("first", False)
        with pytest.raises(ComputeFailed):
            await compute.call(FailBy("leave"))
        assert await compute.call(WhatIsOpen()) == IsOpen("first", True)
        with pytest.raises(ComputeFailed):
            await compute.call(FailBy("leave"))
        await compute.call(Open("second"))
        assert await compute.call(WhatIsOpen()) == IsOpen("second", False)

    with_process(target, body)


def test_abort_kills_the_running_call_and_leaves_an_idle_process_alone(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        before = (await compute.call(Echo(1))).pid
        await compute.abort()
        assert compute.pid == before
        call = asyncio.ensure_future(compute.call(Steps(1000, 0.1)))
        await asyncio.sleep(0.2)
        await compute.abort()
        with pytest.raises(ComputeAborted):
            await call
        assert not is_alive(before)
        assert (await compute.call(Echo(1))).pid != before

    with_process(target, body)


def test_abort_while_the_process_is_being_started_is_not_lost(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        call = asyncio.ensure_future(compute.call(Steps(1000, 0.1)))
        await asyncio.sleep(0)
        await compute.abort()
        with pytest.raises(ComputeAborted):
            await asyncio.wait_for(call, 300)

    with_process(target, body)


def test_abort_just_after_the_process_has_become_ready_is_not_lost(
        target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Child.receive

    async def body(compute: ProcessCompute) -> None:
        async def aborted_then(child: Child, *arguments: Any, **named: Any) -> Any:
            reply = await receive(child, *arguments, **named)
            await compute.abort()
            return reply

        with monkeypatch.context() as patched:
            patched.setattr(Child, "receive", aborted_then)
            with pytest.raises(ComputeAborted, match="'echo' was aborted"):
                await compute.call(Echo(1))
        assert (await compute.call(Echo(1))).value == 1

    with_process(target, body)


def test_cancelling_a_call_kills_the_process(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        pid = (await compute.call(Echo(1))).pid
        call = asyncio.ensure_future(compute.call(Steps(1000, 0.1)))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        wait_until_gone(pid)

    with_process(target, body)


def test_close_ends_the_process_and_its_running_call(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        pid = (await compute.call(Echo(1))).pid
        call = asyncio.ensure_future(compute.call(Steps(1000, 0.1)))
        await asyncio.sleep(0.2)
        await compute.close()
        with pytest.raises(ComputeAborted):
            await call
        wait_until_gone(pid)
        with pytest.raises(ComputeAborted, match="closed"):
            await compute.call(Echo(1))

    with_process(target, body)


def test_an_idle_process_that_was_killed_is_replaced(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        pid = (await compute.call(Echo(1))).pid
        os.kill(pid, signal.SIGKILL)
        child = compute._child
        assert child is not None
        while child.process.returncode is None:  # until it is known here
            await asyncio.sleep(0.01)
        assert (await compute.call(Echo(1))).pid != pid

    with_process(target, body)


def test_interrupt_and_terminate_leave_the_process_at_work(target: str) -> None:
    async def body(compute: ProcessCompute) -> None:
        pid = (await compute.call(Echo(1))).pid
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert (await compute.call(Echo(1))).pid == pid

    with_process(target, body)


def test_a_library_that_is_missing_is_one_clear_line(target: str) -> None:
    async def scenario() -> None:
        compute = ProcessCompute("broken_operations:Operations")
        with pytest.raises(ComputeFailed, match=r"cannot import what it needs.*a_library_that_is_not_there") as caught:
            await compute.start()
        assert "\n" not in caught.value.line()
        await compute.close()

    asyncio.run(scenario())


def test_the_process_dies_with_its_parent_even_in_the_middle_of_a_call(target: str) -> None:
    program = textwrap.dedent(f"""
        import asyncio
        from semisilo.common.process.compute import ProcessCompute
        from tests.common.process.compute_operations import Steps
        async def main():
            compute = ProcessCompute({target!r})
            await compute.start()
            print(compute.pid, flush=True)
            await compute.call(Steps(10000, 0.1))
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert is_alive(pid)
        parent.kill()
    wait_until_gone(pid)


@dataclass(frozen=True, slots=True)
class Total:
    total: int
    added: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Add(Request[Total]):
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Misbehave(Request[Nothing]):
    manner: str


class Sums:
    """Operations for InlineCompute."""

    def __init__(self, progress: Callable[[float, str], None]) -> None:
        self.progress = progress
        self.total = 0

    def handlers(self) -> tuple[Handler, ...]:
        return Add.handled_by(self.add), Misbehave.handled_by(self.misbehave)

    def add(self, request: Add) -> Total:
        self.total += sum(request.values)
        self.progress(1.0, "added")
        return Total(self.total, request.values)

    def misbehave(self, request: Misbehave) -> Nothing:
        if request.manner == "refuse":
            raise BadData("No images.", remedy="Add some.")
        if request.manner == "fail":
            raise KeyError("missing")
        while True:
            self.progress(0.5, "still")
            time.sleep(0.01)


def test_inline_compute_answers_reports_and_fails_like_a_process() -> None:
    seen: list[tuple[float, str]] = []

    async def scenario() -> None:
        compute = InlineCompute(Sums)
        assert await compute.call(Add((2,))) == Total(2, (2,))
        assert await compute.call(Add((1, 2)), on_progress=lambda f, t: seen.append((f, t))) == Total(5, (1, 2))
        await asyncio.sleep(0)
        assert seen == [(1.0, "added")]
        with pytest.raises(BadData):
            await compute.call(Misbehave("refuse"))
        with pytest.raises(ComputeFailed, match="KeyError"):
            await compute.call(Misbehave("fail"))
        with pytest.raises(ComputeFailed, match="no operation 'unheard'"):
            await compute.call(Unheard())
        call = asyncio.ensure_future(compute.call(Misbehave("endless")))
        await asyncio.sleep(0.05)
        await compute.abort()
        with pytest.raises(ComputeAborted):
            await call
        call = asyncio.ensure_future(compute.call(Misbehave("endless")))
        await asyncio.sleep(0.05)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        assert await compute.call(Add((1,))) == Total(6, (1,)), "a cancelled operation has left the thread"
        await compute.close()
        with pytest.raises(ComputeAborted):
            await compute.call(Add((1,)))

    asyncio.run(asyncio.wait_for(scenario(), 300))


def test_inline_compute_refuses_what_could_not_cross_to_a_process() -> None:
    """Else a simulation would run where a deployment fails."""
    async def scenario() -> None:
        compute = InlineCompute(Operations)
        with pytest.raises(TypeError, match="not JSON serializable"):
            await compute.call(Echo(object()))
        with pytest.raises(ComputeFailed, match="not JSON serializable"):
            await compute.call(FailBy("not_json"))
        await compute.close()

    asyncio.run(asyncio.wait_for(scenario(), 300))
