"""Slots at the front: quick downloads one after the other, slow ones beside them."""

from __future__ import annotations

import asyncio

from semisilo.coordinator.rpc.transfer_slots import TransferSlots


def test_quick_streams_take_turns() -> None:
    async def run() -> None:
        slots, inside, most = TransferSlots(2), 0, 0

        async def stream() -> None:
            nonlocal inside, most
            async with slots.slot() as slot:
                inside += 1
                most = max(most, inside)
                for _ in range(12):
                    slot.moved_bytes += 4 * 2**20
                    await asyncio.sleep(0.01)
                inside -= 1

        await asyncio.gather(*(stream() for _ in range(5)))
        assert (inside, most) == (0, 2)
    asyncio.run(asyncio.wait_for(run(), 300))


def test_slow_streams_keep_nobody_waiting() -> None:
    """Twenty that move nothing until the last of them has begun: with slots kept it would never begin."""
    async def run() -> None:
        slots, begun = TransferSlots(2), 0
        everyone = asyncio.Event()

        async def stream() -> None:
            nonlocal begun
            async with slots.slot():
                begun += 1
                if begun == 20:
                    everyone.set()
                await everyone.wait()

        await asyncio.gather(*(stream() for _ in range(20)))
        async with slots.slot(), slots.slot():  # every slot has come back, once
            third = asyncio.ensure_future(slots.slot().__aenter__())
            await asyncio.sleep(0)
            assert not third.done()
            third.cancel()
    asyncio.run(asyncio.wait_for(run(), 300))


def test_a_stream_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    async def run() -> None:
        slots = TransferSlots(1)
        for _ in range(3):
            try:
                async with slots.slot():
                    raise ConnectionResetError
            except ConnectionResetError:
                pass
            async with slots.slot():
                waiting = asyncio.ensure_future(slots.slot().__aenter__())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
    asyncio.run(asyncio.wait_for(run(), 300))
