"""Compute processes that are copies of one: calls, ends, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import ComputeFailed
from semisilo.common.process.compute import ComputeAborted, ComputeDied, ProcessCompute
from semisilo.common.process.nursery import Nursery, can_copy
from tests.common.process.compute_operations import Die, Echo, Steps
from tests.common.process.test_compute import REPOSITORY, is_alive, wait_until_gone

pytestmark = pytest.mark.skipif(not can_copy(), reason="no nurseries on this system")

PLAIN = "tests.common.process.compute_operations:Operations"


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(REPOSITORY))))


def with_nursery(body: Callable[[Nursery], Coroutine[Any, Any, None]], target: str = PLAIN, **options: Any) -> None:
    async def scenario() -> None:
        nursery = Nursery(target, **options)
        try:
            await asyncio.wait_for(body(nursery), 300)
        finally:
            await nursery.close()

    asyncio.run(scenario())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_copies_answer_side_by_side_and_are_gone_when_closed() -> None:
    async def body(nursery: Nursery) -> None:
        first, second = ProcessCompute(nursery.start_child), ProcessCompute(nursery.start_child)
        answers = await asyncio.gather(first.call(Echo([1.5, "a"])), second.call(Echo({"b": None})))
        assert [each.value for each in answers] == [[1.5, "a"], {"b": None}]
        assert answers[0].pid != answers[1].pid
        assert parent_of(answers[0].pid) == parent_of(answers[1].pid) != os.getpid()
        assert (await first.call(Echo(2))).pid == answers[0].pid, "one process for all calls"
        await first.close()
        wait_until_gone(answers[0].pid)
        assert is_alive(answers[1].pid), "the other one is no concern of the first"
        started.extend((answers[1].pid, parent_of(answers[1].pid)))

    started: list[int] = []
    with_nursery(body)
    for pid in started:
        wait_until_gone(pid)


def test_what_is_read_from_a_descriptor_is_read_once_for_all_copies(tmp_path: Path) -> None:
    (tmp_path / "operations_that_read.py").write_text(textwrap.dedent("""
        import os
        from tests.common.process.compute_operations import Echoed, Operations

        def prepared(descriptor):
            read = os.pread(descriptor, 100, 0).decode() + f" in {os.getpid()}"
            class Reading(Operations):
                def echo(self, request):
                    return Echoed(value=read, pid=os.getpid(), threads="")
            return Reading
    """))

    async def body(nursery: Nursery) -> None:
        computes = [ProcessCompute(nursery.start_child) for _ in range(2)]
        answers = [await each.call(Echo(None)) for each in computes]
        assert [each.value for each in answers] == [f"images in {parent_of(answers[0].pid)}"] * 2

    with tempfile.TemporaryFile() as file:
        file.write(b"images")
        file.flush()
        with_nursery(body, "operations_that_read:prepared", handing=[file.fileno()])


def test_a_copy_that_dies_is_named_with_its_signal_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def body(nursery: Nursery) -> None:
        compute = ProcessCompute(nursery.start_child)
        before = (await compute.call(Echo(None))).pid
        with pytest.raises(ComputeDied, match=r"signal 11 \(SIGSEGV\) during 'die'"):
            await compute.call(Die(signal.SIGSEGV))
        with pytest.raises(ComputeDied, match="out of memory"):
            await compute.call(Die(signal.SIGKILL))
        after = await compute.call(Echo("on"))
        assert (after.value, after.pid != before) == ("on", True)

    with_nursery(body)


def test_an_aborted_copy_is_killed_in_the_middle_of_its_call() -> None:
    async def body(nursery: Nursery) -> None:
        compute = ProcessCompute(nursery.start_child)
        pid = (await compute.call(Echo(None))).pid
        running = asyncio.ensure_future(compute.call(Steps(count=10_000, seconds=0.1)))
        await asyncio.sleep(0.05)
        await compute.abort()
        with pytest.raises(ComputeAborted):
            await running
        wait_until_gone(pid)

    with_nursery(body)


def test_when_the_nursery_is_killed_its_copies_die_and_the_next_call_starts_another() -> None:
    async def body(nursery: Nursery) -> None:
        compute = ProcessCompute(nursery.start_child)
        pid = (await compute.call(Echo(None))).pid
        running = asyncio.ensure_future(compute.call(Steps(count=10_000, seconds=0.1)))
        await asyncio.sleep(0.05)
        os.kill(parent_of(pid), signal.SIGKILL)
        with pytest.raises(ComputeDied):
            await running
        wait_until_gone(pid)
        assert (await compute.call(Echo("on"))).value == "on"

    with_nursery(body)


def test_copies_and_nursery_die_with_whoever_has_started_them(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import asyncio, os, signal
        from pathlib import Path
        from semisilo.common.process.compute import ProcessCompute
        from semisilo.common.process.nursery import Nursery
        from tests.common.process.compute_operations import Echo, Steps

        async def main():
            nursery = Nursery({PLAIN!r})
            compute = ProcessCompute(nursery.start_child)
            pid = (await compute.call(Echo(None))).pid
            parent = Path(f"/proc/{{pid}}/stat").read_text().rsplit(")", 1)[1].split()[1]
            print(pid, parent, flush=True)
            asyncio.ensure_future(compute.call(Steps(count=10_000, seconds=0.1)))
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for pid in map(int, done.stdout.split()):
        wait_until_gone(pid)


def test_interrupt_and_terminate_leave_nursery_and_copies_at_work() -> None:
    async def body(nursery: Nursery) -> None:
        compute = ProcessCompute(nursery.start_child)
        pid = (await compute.call(Echo(None))).pid
        for number in (signal.SIGINT, signal.SIGTERM):
            for each in (pid, parent_of(pid)):
                os.kill(each, number)
        answer = await compute.call(Echo("on"))
        assert (answer.value, answer.pid) == ("on", pid)

    with_nursery(body)


@pytest.mark.parametrize(("code", "match"), [
    ("import a_library_that_is_not_there", "cannot import what it needs: .*a_library_that_is_not_there"),
    ("import threading, time; threading.Thread(target=time.sleep, args=(100,), daemon=True).start()\nOperations = None",
     "A process of 2 threads cannot be copied"),
])
def test_what_cannot_be_copied_is_one_clear_line(tmp_path: Path, code: str, match: str) -> None:
    (tmp_path / "other_operations.py").write_text(f"{code}\n")

    async def body(nursery: Nursery) -> None:
        with pytest.raises(ComputeFailed, match=match):
            await nursery.open()

    with_nursery(body, "other_operations:Operations")
