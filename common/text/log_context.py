"""What a log line is about: study, round, silo, request. Kept beside the code that runs, not handed through it.

Each asyncio task has a context of its own, which a task that it starts and a thread of `asyncio.to_thread` copy. So
what one RPC binds is in its own lines and in no other's.

Tests: tests/common/text/test_logs.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["REQUEST_ID_KEY", "bind", "bound", "log_context", "new_request_id", "request_id_in"]

REQUEST_ID_KEY = "x-request-id"
"""Metadata of an RPC: its id, made by the silo; both sides write it into their log lines."""
_REQUEST_ID = re.compile(r"[0-9A-Za-z-]{8,64}")
_CONTEXT: ContextVar[Mapping[str, object]] = ContextVar("semisilo_log_context")


def log_context() -> Mapping[str, object]:
    """What is bound here, by name."""
    return _CONTEXT.get({})


def bind(**fields: object) -> None:
    """Adds to what the lines of this task are about, until its end; None takes a field away."""
    _CONTEXT.set({name: value for name, value in {**log_context(), **fields}.items() if value is not None})


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """The same around a block. What the block itself binds ends with it."""
    before = log_context()
    bind(**fields)
    try:
        yield
    finally:
        _CONTEXT.set(before)


def new_request_id() -> str:
    """16 hex digits from the operating system: nothing that training draws depends on it."""
    return os.urandom(8).hex()


def request_id_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The id that a caller has sent; a new one where it sent none, or something else: hostile until checked."""
    for key, value in metadata or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return new_request_id()
