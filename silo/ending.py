"""With what status an upload ended, where gRPC for Python forgets it.

A coordinator may end an upload while the silo still writes: the phase has closed, the silo is revoked, bytes are
damaged. The write that is under way then fails, and gRPC for Python lays INTERNAL, "Internal error from Core", over the
status that the coordinator sent, whether that has come already or is a moment behind (grpc/grpc#36066). Such a failure
would be tried again for ever, since the silo cannot tell it from a hiccup.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio

__all__ = ["Ending"]


class Ending:
    """Keeps the status with which a call ended first, before a failed write can hide it."""

    def __init__(self, call: Any) -> None:
        """
        Args:
            call: a call of grpc.aio that has not ended.
        """
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def of(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """What the coordinator, or the line, has to say; `error` is what gRPC says at the end of the call."""
        if _only_a_failed_write(error) and self._first is not None:
            return self._first
        return error

    def _note(self, call: Any) -> None:
        code = _at_once(call.code())
        if self._first is None and code not in (None, grpc.StatusCode.OK):
            self._first = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), _at_once(call.trailing_metadata())
                                               or grpc.aio.Metadata(), details=_at_once(call.details()))


def _only_a_failed_write(error: grpc.aio.AioRpcError) -> bool:
    """A coordinator's INTERNAL brings metadata."""
    return error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata()


def _at_once(reading: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that need not wait, as those of a call that has ended; None when it would.

    A callback cannot await, and a turn of the event loop later the status may be another.
    """
    try:
        reading.send(None)
    except StopIteration as finished:
        return finished.value
    finally:
        reading.close()
    return None
