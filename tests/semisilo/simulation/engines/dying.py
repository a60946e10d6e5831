"""A process of a simulation that dies in every task, and one with a mistake in its method."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from semisilo.common.process.compute_process import Build
from semisilo.silo.compute.messages import Train
from semisilo.simulation.engines.worker import WorkerOperations


class _Dying(WorkerOperations):
    def train(self, request: Train) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")


class _Mistaken(WorkerOperations):
    def train(self, request: Train) -> NoReturn:
        raise ZeroDivisionError("a mistake")


class _OutOfMemory(WorkerOperations):
    def train(self, request: Train) -> NoReturn:
        raise MemoryError("no more")


def dying(descriptor: int) -> Build:
    return lambda progress: _Dying(progress, lambda index: NotImplemented)


def mistaken(descriptor: int) -> Build:
    return lambda progress: _Mistaken(progress, lambda index: NotImplemented)


def out_of_memory(descriptor: int) -> Build:
    return lambda progress: _OutOfMemory(progress, lambda index: NotImplemented)
