"""Slots at the front: quick downloads one after the other, slow ones beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from semisilo.coordinator.rpc import transfer_slots
from semisilo.coordinator.rpc.transfer_slots import TransferSlots

LOOK_SECONDS = 0.5
"""So long that a busy machine does not make a slow stream of a quick one, which moves ten times from look to look."""


@pytest.fixture
def rare_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_slots, "_LOOK_SECONDS", LOOK_SECONDS)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("rare_looks")
def test_quick_streams_take_turns() -> None:
    async def run() -> None:
        slots, inside, most = TransferSlots(2), 0, 0

        async def stream(silo: str) -> None:
            nonlocal inside, most
            async with slots.slot(silo) as slot:
                inside += 1
                most = max(most, inside)
                for _ in range(12):  # longer than a look
                    slot.moved_bytes += 4 * 2**20
                    await asyncio.sleep(LOOK_SECONDS / 10)
                inside -= 1

        await asyncio.gather(*(stream(silo) for silo in "abcde"))
        assert (inside, most) == (0, 2)
    asyncio.run(asyncio.wait_for(run(), 300))


def test_slow_streams_keep_nobody_waiting() -> None:
    """Twenty that move nothing until the last of them has begun: with slots kept it would never begin."""
    async def run() -> None:
        slots, begun = TransferSlots(2), 0
        everyone = asyncio.Event()

        async def stream(silo: str) -> None:
            nonlocal begun
            async with slots.slot(silo):
                begun += 1
                if begun == 20:
                    everyone.set()
                await everyone.wait()

        await asyncio.gather(*(stream(f"silo-{number}") for number in range(20)))
        async with slots.slot("a"), slots.slot("b"):  # every slot has come back, once
            third = asyncio.ensure_future(slots.slot("c").__aenter__())
            await asyncio.sleep(0)
            assert not third.done()
            third.cancel()
    asyncio.run(asyncio.wait_for(run(), 300))


def test_a_stream_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    async def run() -> None:
        slots = TransferSlots(1)
        for _ in range(3):
            try:
                async with slots.slot("a"):
                    raise ConnectionResetError
            except ConnectionResetError:
                pass
            async with slots.slot("a"):
                waiting = asyncio.ensure_future(slots.slot("c").__aenter__())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
    asyncio.run(asyncio.wait_for(run(), 300))


@pytest.mark.slow
@pytest.mark.usefixtures("rare_looks")
def test_a_silo_waits_for_one_slot_and_its_other_streams_go_without() -> None:
    """Thirty downloads of one silo let the first of another wait for them all."""
    async def run() -> None:
        slots, order = TransferSlots(1), list[str]()
        end = asyncio.Event()

        async def stream(silo: str) -> None:
            async with slots.slot(silo) as slot:
                order.append(silo)
                while not end.is_set():
                    slot.moved_bytes += 4 * 2**20
                    await asyncio.sleep(LOOK_SECONDS / 10)

        first = [asyncio.ensure_future(stream("greedy")) for _ in range(30)]
        await until(lambda: len(order) >= 30)
        assert order == ["greedy"] * 30, "one with the slot, and all others without"
        honest = asyncio.ensure_future(stream("honest"))
        later = [asyncio.ensure_future(stream("greedy")) for _ in range(3)]
        await asyncio.sleep(2.2 * LOOK_SECONDS)  # two looks
        assert order[30:] == ["greedy"] * 3, "the honest one waits for the one slot"
        first[0].cancel()
        await until(lambda: len(order) > 33)
        assert order[33:] == ["honest"]
        waiting = asyncio.ensure_future(slots.slot("greedy").__aenter__())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert slots._silos == {"honest"}
        end.set()
        await asyncio.gather(*first, honest, *later, return_exceptions=True)
        assert slots._silos == set()
    asyncio.run(asyncio.wait_for(run(), 300))
