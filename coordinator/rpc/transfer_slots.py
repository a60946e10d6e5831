"""A few slots at the front for those who use them: downloads to quick lines go one after the other.

Eight streams at once keep two cores busier than two streams after two others: every chunk arrives in bits, and each bit
wakes both ends. So a download waits for a slot. Whoever moves little keeps nobody waiting: it loses its slot at the
next look and goes on without one, so that slow lines are served side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["TransferSlot", "TransferSlots"]

_LOOK_SECONDS = 0.05
"""A slow line holds a slot for one look, so a queue of them passes quickly. Shorter looks would take the pause
between two bursts of a quick stream for a slow line."""
_QUICK_BYTES = 2 * 2**20
"""What must move from one look to the next: together 40 MB/s. Streams that are so quick are held up by the
coordinator's cores, not by the line; slower ones are better served side by side."""


class TransferSlots:
    """Slots for streams that move at least 40 MB/s."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[TransferSlot]:
        """Waits for a slot; it is free again at the end of the block, or as soon as little moves."""
        await self._free.acquire()
        slot = TransferSlot(self._free)
        try:
            yield slot
        finally:
            slot.leave()


class TransferSlot:
    """One slot, until `leave`."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self.moved_bytes = 0
        """To be added to by the stream."""
        self._free: asyncio.Semaphore | None = free
        self._before = 0
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def leave(self) -> None:
        """Gives the slot to the next; may be repeated."""
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
