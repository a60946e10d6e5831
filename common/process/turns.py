"""Turns of the threads of one process at what it has once only: torch's settings and its global generator.

A study's numerics hold for the whole process, and dropout and first weights are drawn from its one generator. A thread
that trained while another began a simulation, exported a model or predicted would go on with the other's settings and
draws, and so end with other bits. A simulation is alone from its first operation to its last one (`one_simulation`).
Its operations, and whatever else sets or draws, come one after another (`at_torch`).

Tests: tests/common/process/test_turns.py, tests/semisilo/api/test_simulate.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["at_torch", "one_simulation"]

_torch = threading.RLock()
_simulation = threading.RLock()


@contextmanager
def at_torch() -> Iterator[None]:
    """Meanwhile no other thread of this process sets torch's settings or draws from its generator; waits for one that
    does. What runs here leaves both as they were. To be had again by the thread that has it."""
    with _torch:
        yield


@contextmanager
def one_simulation(on_wait: Callable[[], None]) -> Iterator[None]:
    """Meanwhile no other thread of this process simulates; waits for one that does. Before `at_torch`, never in it.

    Args:
        on_wait: called when there is one to wait for.
    """
    if not _simulation.acquire(blocking=False):
        on_wait()
        _simulation.acquire()
    try:
        yield
    finally:
        _simulation.release()


def _begin_in_a_copy() -> None:
    """A copy of this process has none of the threads that had a turn."""
    global _torch, _simulation
    _torch, _simulation = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_a_copy)
