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

__all__ = ["REQUEST_ID_KEY", "TRACEPARENT_KEY", "TRACE_VARIABLE", "bind", "bound", "call_in", "log_context",
           "new_request_id", "new_trace_id", "trace_of_surroundings", "traceparent"]

REQUEST_ID_KEY = "x-request-id"
"""Metadata of an RPC: its id, made by the silo; both sides write it into their log lines."""
TRACEPARENT_KEY = "traceparent"
"""Metadata of an RPC, as of HTTP: which trace it belongs to, by the W3C's Trace Context."""
TRACE_VARIABLE = "TRACEPARENT"
"""Environment variable: a trace that whoever starts a process wants it to be part of."""
_REQUEST_ID = re.compile(r"[0-9A-Za-z-]{8,64}")
_TRACEPARENT = re.compile(r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})"
                          r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?", re.ASCII)
_CONTEXT: ContextVar[Mapping[str, object]] = ContextVar("semisilo_log_context")


def log_context() -> Mapping[str, object]:
    """What is bound here, by name."""
    return _CONTEXT.get({})


def bind(**fields: object) -> None:
    """Adds to what the lines of this task are about, until its end; None takes a field away."""
    bound_now = {**log_context(), **fields}
    if None in fields.values():
        bound_now = {name: value for name, value in bound_now.items() if value is not None}
    _CONTEXT.set(bound_now)


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


def new_trace_id() -> str:
    """32 hex digits from the operating system: of the trace whose id $TRACEPARENT has, where there is one."""
    return trace_of_surroundings()[0] or os.urandom(16).hex()


def trace_of_surroundings() -> tuple[str, str]:
    """Trace and flags of $TRACEPARENT, as a scheduler or a script may set it; two empty texts where it says none.

    Raises: nothing: what is no traceparent is as if it were not there.
    """
    match = _parsed(os.environ.get(TRACE_VARIABLE, ""))
    return ("", "") if match is None else (match["trace"], match["flags"])


def traceparent(trace_id: str, request_id: str) -> str:
    """The W3C's header for a call. Its span is the call's id; a call is sampled if the surroundings say so.

    Args:
        trace_id: 32 hex digits. request_id: of `new_request_id`.
    Source: W3C Trace Context, version 00, section 3.2.
    """
    return f"00-{trace_id}-{request_id}-{trace_of_surroundings()[1] or '00'}"


def call_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """What the lines about a call are to have of it: `request_id` and `trace_id`, as the caller has sent them.

    Hostile until checked: what is missing, or something else, is made anew. A caller that sends a traceparent alone, as
    tools of others do, has its span as the id.
    """
    texts = [(key, value) for key, value in metadata or () if isinstance(value, str)]
    traces = [value for key, value in texts if key == TRACEPARENT_KEY]
    match = _parsed(traces[0]) if len(traces) == 1 else None  # of several nobody knows which one counts
    request = next((value for key, value in texts if key == REQUEST_ID_KEY and _REQUEST_ID.fullmatch(value)), "")
    return {"request_id": request or (match["parent"] if match else new_request_id()),
            "trace_id": match["trace"] if match else os.urandom(16).hex()}


def _parsed(text: str) -> re.Match[str] | None:
    """A valid traceparent; of a later version the part that this one knows."""
    match = _TRACEPARENT.fullmatch(text) if len(text) <= 512 else None
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"]):
        return None
    return match if int(match["trace"], 16) and int(match["parent"], 16) else None
