"""A few slots at the front for those who use them: downloads to quick lines go one after the other.

Eight streams at once keep two cores busier than two streams after two others: every chunk arrives in bits, and each bit
wakes both ends. So a download waits for a slot. Whoever moves little keeps nobody waiting: it loses its slot at the
next look and goes on without one, so that slow lines are served side by side. A silo has one slot or waits for one: its
other streams go without, and it keeps nobody waiting for more than one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
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
        self._silos: set[str] = set()
        """That have a slot or wait for one."""

    @asynccontextmanager
    async def slot(self, silo: str) -> AsyncIterator[TransferSlot]:
        """Waits for a slot; it is free again at the end of the block, or as soon as little moves.

        Args:
            silo: whose stream it is. Where it has or awaits a slot already, this stream goes without one, at once.
        """
        if silo in self._silos:
            without = TransferSlot(lambda: None)
            try:
                yield without
            finally:
                without.leave()
            return
        self._silos.add(silo)
        try:
            await self._free.acquire()
        except BaseException:
            self._silos.discard(silo)
            raise

        def left() -> None:
            self._silos.discard(silo)
            self._free.release()

        slot = TransferSlot(left)
        try:
            yield slot
        finally:
            slot.leave()


class TransferSlot:
    """One slot, until `leave`."""

    def __init__(self, left: Callable[[], None]) -> None:
        """
        Args:
            left: called once, when the slot is free.
        """
        self.moved_bytes = 0
        """To be added to by the stream."""
        self._left: Callable[[], None] | None = left
        self._before = 0
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def leave(self) -> None:
        """Gives the slot to the next; may be repeated."""
        self._timer.cancel()
        left, self._left = self._left, None
        if left is not None:
            left()

    def _look(self) -> None:
        if self.moved_bytes - self._before < _QUICK_BYTES:
            self.leave()
        else:
            self._before = self.moved_bytes
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
