"""RPCs in flight are looked after together: nobody asks the roster while it has not changed, and who must end, ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semisilo.common.errors import CertificateExpired, CertificateRevoked, SemisiloError, TaskClosed, Unreachable
from semisilo.coordinator.federation.enrollment import SiloStatus
from semisilo.coordinator.rpc import call as call_module
from semisilo.coordinator.rpc.call import Call, CallWatch
from semisilo.coordinator.rpc.caller import CallerCertificate

CALLS = 20


class Roster:
    """One that counts how often it is asked."""

    def __init__(self) -> None:
        self.changes = 0
        self.asked = 0
        self.revoked = False

    def version(self) -> tuple[int, int]:
        return 0, self.changes

    def standing(self, silo: str, serial: int) -> tuple[SiloStatus, bool]:
        self.asked += 1
        return SiloStatus(revoked=self.revoked, left_unix=None), serial == 7


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "_LOOK_SECONDS", 0.01)


def identified(watch: CallWatch) -> Call:
    context: Any = SimpleNamespace()
    parts: Any = SimpleNamespace(connected={})
    made = Call(context, federation="f", watch=watch, runtime=parts, meter=parts)
    made._certificate = CallerCertificate(silo="a", serial=7, not_before_unix=0.0, not_after_unix=100.0)
    return made


async def ends(call: Call, *, idle_seconds: float = 1e9, released: asyncio.Event | None = None) -> SemisiloError | None:
    """What a call that waits is ended with; None when nothing ends it before it is released."""
    try:
        with call.watched(idle_seconds=idle_seconds):
            await asyncio.wait_for((released or asyncio.Event()).wait(), 300)
    except SemisiloError as error:
        return error
    return None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)


def test_calls_that_wait_ask_the_roster_only_when_it_has_changed() -> None:
    async def work() -> None:
        roster: Any = Roster()
        watch = CallWatch(roster, clock=lambda: 50.0)
        released = asyncio.Event()
        waiting = [asyncio.ensure_future(ends(identified(watch), released=released)) for _ in range(CALLS)]
        await until(lambda: roster.asked >= CALLS)
        await asyncio.sleep(0.05)
        assert roster.asked == CALLS, "once, since nobody has looked before"
        roster.changes += 1
        await until(lambda: roster.asked >= 2 * CALLS)
        await asyncio.sleep(0.05)
        released.set()
        assert await asyncio.gather(*waiting) == [None] * CALLS
        assert roster.asked == 2 * CALLS
    asyncio.run(work())


def test_of_many_calls_a_part_is_looked_at_in_a_turn_of_the_event_loop_and_all_are_in_the_end(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the roster was held against a thousand calls at once: nobody was answered meanwhile."""
    monkeypatch.setattr(call_module, "_CALLS_AT_ONCE", 4)

    async def work() -> None:
        roster: Any = Roster()
        watch, released, seen = CallWatch(roster, clock=lambda: 50.0), asyncio.Event(), list[int]()
        waiting = [asyncio.ensure_future(ends(identified(watch), released=released)) for _ in range(CALLS)]
        async with asyncio.timeout(300):
            while roster.asked < CALLS:
                seen.append(roster.asked)
                await asyncio.sleep(0)
        seen.append(roster.asked)
        assert max(after - before for before, after in itertools.pairwise(seen)) <= 4
        roster.revoked, roster.changes = True, 1
        assert all(isinstance(each, CertificateRevoked) for each in await asyncio.gather(*waiting))
    asyncio.run(work())


def test_when_the_last_call_has_ended_the_roster_whose_ledger_may_be_closed_is_not_asked() -> None:
    async def work() -> None:
        roster: Any = Roster()
        watch, released, problems = CallWatch(roster, clock=lambda: 50.0), asyncio.Event(), []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        waiting = asyncio.ensure_future(ends(identified(watch), released=released))
        await asyncio.sleep(0)
        released.set()
        await waiting

        def closed() -> tuple[int, int]:
            raise ValueError("the ledger is closed")

        roster.version = closed
        await asyncio.sleep(0.05)
        assert problems == []
        del roster.version  # a later call is looked after again
        later = asyncio.ensure_future(ends(identified(watch)))
        await asyncio.sleep(0.02)
        roster.revoked, roster.changes = True, 1
        assert isinstance(await later, CertificateRevoked)
    asyncio.run(work())


def test_every_call_of_a_silo_ends_when_it_is_revoked_and_others_that_come_later_too() -> None:
    async def work() -> None:
        roster: Any = Roster()
        watch = CallWatch(roster, clock=lambda: 50.0)
        waiting = [asyncio.ensure_future(ends(identified(watch))) for _ in range(CALLS)]
        await asyncio.sleep(0.05)
        roster.revoked, roster.changes = True, 1
        assert {type(error) for error in await asyncio.gather(*waiting)} == {CertificateRevoked}
        await asyncio.sleep(0.05)  # nobody looks any more
        assert type(await ends(identified(watch))) is CertificateRevoked
    asyncio.run(work())


def test_a_call_ends_with_its_certificate_or_when_nothing_moves_though_the_roster_is_the_same() -> None:
    async def work() -> None:
        roster: Any = Roster()
        now = [50.0]
        watch = CallWatch(roster, clock=lambda: now[0])
        waiting = asyncio.ensure_future(ends(identified(watch)))
        assert type(await ends(identified(watch), idle_seconds=0.03)) is Unreachable
        assert not waiting.done()
        now[0] = 101.0
        assert type(await waiting) is CertificateExpired
    asyncio.run(work())


@pytest.mark.slow
@pytest.mark.parametrize(("count", "idle_seconds", "ended"), [(1, 0.5, True), (256 * 1024, 2.0, False)])
def test_bytes_that_drip_are_as_idle_as_none_and_what_adds_up_to_a_chunk_in_time_is_not(
        count: int, idle_seconds: float, ended: bool) -> None:
    async def work() -> None:
        released, call = asyncio.Event(), identified(CallWatch(Roster(), clock=lambda: 50.0))  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(ends(call, idle_seconds=idle_seconds, released=released))
        for _ in range(50):
            await asyncio.sleep(0.05)
            call.moved(count)
        released.set()
        assert type(await waiting) is (Unreachable if ended else type(None))
    asyncio.run(work())


def test_a_call_ends_with_what_its_own_need_raises_though_nothing_moves_and_no_other_call_does() -> None:
    async def work() -> None:
        watch = CallWatch(Roster(), clock=lambda: 50.0)  # type: ignore[arg-type]
        released, other, call = asyncio.Event(), identified(watch), identified(watch)
        waiting = asyncio.ensure_future(ends(other, released=released))
        over: list[str] = []

        def needs() -> None:
            if over:
                raise TaskClosed(over[0])

        async def upload() -> None:
            with call.watched(needs=needs):
                await asyncio.wait_for(asyncio.Event().wait(), 300)

        uploading = asyncio.ensure_future(upload())
        await asyncio.sleep(0.1)
        assert not uploading.done()
        over.append("The round is over.")
        with pytest.raises(TaskClosed, match="round is over"):
            await uploading
        released.set()
        assert await waiting is None
    asyncio.run(work())
