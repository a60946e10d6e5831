from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from semisilo.common.numerics.numerics import left_as_it_was
from semisilo.common.process.compute import InlineCompute, OnProgress
from semisilo.common.process.messages import Handler, Request
from semisilo.common.process.turns import at_torch, one_simulation

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 30.0
A_WHILE = 0.2
"""For somebody who must wait to go on, if nothing made it wait."""


@dataclass(frozen=True, slots=True)
class Drawn:
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class Draw(Request[Drawn]):
    """Draws twice from torch's own generator, as dropout does in two batches."""


def in_a_thread(body: Callable[[], object]) -> threading.Event:
    """Set when it has ended."""
    ended = threading.Event()

    def work() -> None:
        body()
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    return ended


def drawn(between: Callable[[], object] = lambda: None) -> Drawn:
    """What an operation draws that something happens to between its draws."""
    class Operations:
        def __init__(self, progress: OnProgress) -> None:
            """It reports none."""

        def handlers(self) -> tuple[Handler, ...]:
            return (Draw.handled_by(self.draw),)

        def draw(self, request: Draw) -> Drawn:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(7)
                first = float(torch.rand(()))
                between()
                return Drawn(first, float(torch.rand(())))

    async def call() -> Drawn:
        compute = InlineCompute(Operations)
        try:
            return await compute.call(Draw())
        finally:
            await compute.close()

    return asyncio.run(call())


def test_nobody_draws_while_an_operation_does() -> None:
    ended: list[threading.Event] = []

    def other() -> None:
        with at_torch():
            torch.rand(())

    def disturb() -> None:
        ended.append(in_a_thread(other))
        ended[0].wait(A_WHILE)

    assert drawn(disturb) == drawn()
    assert ended[0].wait(SECONDS), "its turn comes"


def test_torch_is_left_as_it_was_only_when_no_operation_is_at_work() -> None:
    entered, leaves = threading.Event(), threading.Event()

    def other() -> None:
        with left_as_it_was():
            entered.set()
            leaves.wait(SECONDS)

    undisturbed = drawn()
    ended = in_a_thread(other)
    assert entered.wait(SECONDS)

    def disturb() -> None:
        leaves.set()
        ended.wait(A_WHILE)

    assert drawn(disturb) == undisturbed
    assert ended.wait(SECONDS)


def test_the_numerics_of_the_process_are_left_as_they_were_too() -> None:
    from semisilo.common.methods.numerics import Numerics
    from semisilo.common.numerics import numerics
    from semisilo.common.numerics.side_by_side import lanes

    with left_as_it_was():
        numerics.apply(Numerics(threads=1, precision="fp32", memory_format="contiguous"), processors=3)
        before = numerics.record(), lanes()
        with left_as_it_was():
            numerics.apply(Numerics(threads=2, precision="bf16", memory_format="channels_last", deterministic=False),
                           processors=2)
            assert numerics.record() != before[0]
        assert (numerics.record(), lanes()) == before


def test_of_two_simulations_the_second_says_that_it_waits_and_then_goes_on() -> None:
    said, at_work = threading.Event(), []

    def second() -> None:
        with one_simulation(said.set):
            at_work.append(True)

    with one_simulation(lambda: None), one_simulation(lambda: None):  # in its own thread nobody waits
        assert not said.is_set()
        ended = in_a_thread(second)
        assert said.wait(SECONDS)
        assert not at_work
    assert ended.wait(SECONDS)


def test_a_copy_of_a_process_waits_for_no_thread_that_it_does_not_have() -> None:
    code = """
import os, threading
from semisilo.common.process.turns import at_torch, one_simulation
held, over = threading.Event(), threading.Event()
def hold():
    with one_simulation(print), at_torch():
        held.set(); over.wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
if (pid := os.fork()) == 0:
    with one_simulation(print), at_torch():
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
over.set()
"""
    done = subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=SECONDS)
    assert (done.stdout, done.stderr) == ("7\n", "")
