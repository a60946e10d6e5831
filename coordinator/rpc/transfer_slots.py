"""A few places at the front for those who use them: downloads to quick lines go one after the other.

Eight streams at once keep two cores busier than two streams after two others: every chunk arrives in bits, and each bit
wakes both ends. So a download waits for a place. Whoever moves little keeps nobody waiting: it loses its place at the
next look and goes on without one, so that slow lines are served side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Place", "Places"]

_LOOK_SECONDS = 0.05
_QUICK_BYTES = 2 * 2**20
"""What must move from one look to the next."""


class Places:
    """Places for streams that move at least 40 MB/s."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """Waits for a place; it is free again at the end of the block, or as soon as little moves."""
        await self._free.acquire()
        place = Place(self._free)
        try:
            yield place
        finally:
            place.leave()


class Place:
    """One place, until `leave`."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self.moved_bytes = 0
        """To be added to by the stream."""
        self._free: asyncio.Semaphore | None = free
        self._before = 0
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def leave(self) -> None:
        """Gives the place to the next; may be repeated."""
        self._timer.cancel()
        free, self._free = self._free, None
        if free is not None:
            free.release()

    def _look(self) -> None:
        if self.moved_bytes - self._before < _QUICK_BYTES:
            self.leave()
        else:
            self._before = self.moved_bytes
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
