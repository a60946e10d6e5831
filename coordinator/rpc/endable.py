"""A call that somebody else may end, wherever it has come to, with an error that its caller hears.

Tests: tests/coordinator/rpc/test_silo_calls.py and test_stranger_calls.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from semisilo.common.errors import SemisiloError

__all__ = ["Endable"]


class Endable:
    """The task that runs `block`, until the block ends."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._problem: SemisiloError | None = None

    @contextmanager
    def block(self) -> Iterator[None]:
        """Around what may be ended at any `await`. Raises: what `end` was given."""
        self._task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if self._problem is None or self._task is None:
                raise
            self._task.uncancel()
            raise self._problem from None
        finally:
            self._task = None

    def end(self, problem: SemisiloError) -> None:
        """Ends the block with an error, if it still runs."""
        if self._task is not None and self._problem is None:
            self._problem = problem
            self._task.cancel()
