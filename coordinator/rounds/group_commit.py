"""Waiting for the disk together: many transactions that are to last share one flush of the ledger.

A flush takes milliseconds in which nothing else would happen, were it part of each transaction: with a thousand silos
that is seconds in every round. So an answer to a silo is committed at once, and told to it once a flush has ended that
began after the commit. Known to databases as group commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["GroupCommit"]


class GroupCommit:
    """Belongs to one event loop."""

    def __init__(self, flush: Callable[[], None] | None) -> None:
        """`flush` puts on disk what was committed before it was called, and raises where it cannot; runs in a thread,
        never twice at the same time. None where nothing waits for the disk, as in a simulation."""
        self._flush = flush
        self._running: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    async def on_disk(self) -> None:
        """Returns when everything that was committed before this call is on disk.

        Raises: what `flush` has raised, now and ever after: what it was to write is neither on disk nor tried again by
            the system, so that no later flush could promise it.
        """
        if self._flush is None:
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._flush_after(self._running))
        # Who hangs up does not take the flush from the others.
        await asyncio.shield(self._next)

    async def _flush_after(self, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        if self._failure is None:
            try:
                assert self._flush is not None
                await asyncio.to_thread(self._flush)
            except Exception as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure
