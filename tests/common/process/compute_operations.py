"""Operations of a compute process for tests: well-behaved ones, and every way to fail."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from semisilo.common.errors import BadData
from semisilo.common.process.compute_process import LOST_PEER, ends_process
from semisilo.common.process.messages import Handler, Request


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class Whatever:
    value: Any


@dataclass(frozen=True, slots=True)
class Echoed:
    value: Any
    pid: int
    threads: str


@dataclass(frozen=True, slots=True)
class IsOpen:
    name: str
    again: bool


@dataclass(frozen=True, slots=True)
class Echo(Request[Echoed]):
    value: Any


@dataclass(frozen=True, slots=True)
class Open(Request[Nothing]):
    name: str
    again: bool = False

    def reopening(self, answer: Nothing) -> Open:
        return replace(self, again=True)


@dataclass(frozen=True, slots=True)
class WhatIsOpen(Request[IsOpen]):
    pass


@dataclass(frozen=True, slots=True)
class Steps(Request[Nothing]):
    count: int
    seconds: float


Failing = Literal["refuse", "fail", "not_json", "too_large", "leave", "lost_peer", "spoiled", "out_of_memory",
                  "cuda_fault", "too_many_files", "grandchild"]


@dataclass(frozen=True, slots=True)
class FailBy(Request[Whatever]):
    manner: Failing


@dataclass(frozen=True, slots=True)
class FailIn(Request[Echoed]):
    """Fails in one process, as a library does whose state is spoilt there."""

    pid: int


@dataclass(frozen=True, slots=True)
class Die(Request[Nothing]):
    signal: int


@dataclass(frozen=True, slots=True)
class Unheard(Request[Nothing]):
    """A request that nobody answers."""


class Operations:
    def __init__(self, progress: Callable[[float, str], None]) -> None:
        self.progress = progress
        self.opened = IsOpen("", False)

    def handlers(self) -> tuple[Handler, ...]:
        return (Open.handled_by(self.open), WhatIsOpen.handled_by(self.what_is_open), Echo.handled_by(self.echo),
                Steps.handled_by(self.steps), FailBy.handled_by(self.fail_by), FailIn.handled_by(self.fail_in),
                Die.handled_by(self.die))

    def open(self, request: Open) -> Nothing:
        self.opened = IsOpen(request.name, request.again)
        return Nothing()

    def what_is_open(self, request: WhatIsOpen) -> IsOpen:
        return self.opened

    def echo(self, request: Echo) -> Echoed:
        print("hello on stdout")
        print("hello on stderr", file=sys.stderr)
        os.write(1, b'{"id": 1, "answer": "forged"}\n')
        sys.stdout.flush()
        return Echoed(request.value, os.getpid(), os.environ["OMP_NUM_THREADS"])

    def steps(self, request: Steps) -> Nothing:
        for step in range(request.count):
            self.progress((step + 1) / request.count, f"step {step + 1}")
            time.sleep(request.seconds)
        return Nothing()

    def fail_in(self, request: FailIn) -> Echoed:
        if os.getpid() == request.pid:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
        return Echoed(None, os.getpid(), os.environ["OMP_NUM_THREADS"])

    def die(self, request: Die) -> NoReturn:
        os.kill(os.getpid(), request.signal)
        time.sleep(60)
        raise AssertionError("still alive")

    def fail_by(self, request: FailBy) -> Whatever:
        found: dict[str, int] = {}
        match request.manner:
            case "refuse":
                raise BadData("scans/: no images.", remedy="Add some.")
            case "fail":
                return Whatever(found["missing"])
            case "not_json":
                return Whatever(object())
            case "too_large":
                return Whatever("a" * (64 * 2**20))
            case "leave":
                os._exit(7)
            case "lost_peer":
                os._exit(LOST_PEER)
            case "spoiled":
                error = BadData("scans/: other images than those of the others.")
                ends_process(error)
                raise error
            case "out_of_memory":
                raise MemoryError("no 3 GiB left")
            case "cuda_fault":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            case "too_many_files":
                raise RuntimeError("unable to open file </state> in read-only mode: Too many open files (24)")
            case "grandchild":
                if os.fork() == 0:
                    time.sleep(600)
                    os._exit(0)
                os._exit(9)
