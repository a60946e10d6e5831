"""Many silos that wait for a task are woken a few at a time; what traffic is booked to."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from tests.each_of import each_of

SILOS = 200
WORK_SECONDS = 0.001


async def taking(runtime: RuntimeState, taken: list[int], number: int) -> None:
    await runtime.wait_for_call(60.0)
    time.sleep(WORK_SECONDS)  # what a silo's task takes of the event loop
    taken.append(number)


@pytest.mark.slow
def test_while_many_silos_take_their_tasks_others_are_answered_after_a_few_of_them() -> None:
    async def scenario() -> None:
        runtime, taken, seen = RuntimeState(), list[int](), list[int]()
        silos = [asyncio.ensure_future(taking(runtime, taken, number)) for number in range(SILOS)]
        await asyncio.sleep(0)
        runtime.call()
        while len(taken) < SILOS:
            seen.append(len(taken))
            await asyncio.sleep(0)
        await asyncio.gather(*silos)
        assert taken == list(range(SILOS))  # in the order in which they have come
        assert max(after - before for before, after in zip(seen, [*seen[1:], SILOS], strict=True)) <= 8
    asyncio.run(scenario())


@each_of(("reason", "account"), [
    (StandbyReason.COLLECTING, ("s", 3, "train")), (StandbyReason.COORDINATOR_WORKING, ("s", 3, "standby")),
    *((reason, ("", 0, "standby")) for reason in (StandbyReason.WAITING_FOR_SILOS, StandbyReason.PAUSED,
                                  StandbyReason.NO_STUDY))])
def test_only_traffic_of_rounds_under_way_is_booked_to_a_study(
        reason: StandbyReason, account: tuple[str, int, str]) -> None:
    runtime = RuntimeState()
    runtime.set(reason=reason, study="s", round=3, phase="train")
    assert runtime.account() == account


def test_a_silo_that_hangs_up_while_it_waits_for_its_turn_keeps_nobody_else_waiting() -> None:
    async def scenario() -> None:
        runtime, taken = RuntimeState(), list[int]()
        silos = [asyncio.ensure_future(taking(runtime, taken, number)) for number in range(40)]
        await asyncio.sleep(0)
        runtime.call()
        while not taken:
            await asyncio.sleep(0)
        for silo in silos[20:30]:
            silo.cancel()
        for silo in silos:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(silo, 30)
        assert taken == [*range(20), *range(30, 40)]
        runtime.call()  # and the next call finds everything in order
        again = asyncio.ensure_future(taking(runtime, taken, 99))
        await asyncio.sleep(0)
        runtime.call()
        await asyncio.wait_for(again, 30)
    asyncio.run(scenario())


def test_who_has_waited_long_enough_returns_without_a_call() -> None:
    async def scenario() -> None:
        await asyncio.wait_for(RuntimeState().wait_for_call(0.01), 30)
    asyncio.run(scenario())
