"""A clock that is set while a study runs: phases last as long as they should, and nobody is refused or forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.methods.contract import TaskSpec
from semisilo.coordinator.federation.operate import extend, pause, resume
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.rounds import runtime
from semisilo.coordinator.rounds.clock_steps import ClockSteps
from tests.coordinator.federation_in_memory import Coordinator, content_of, study_config
from tests.coordinator.rounds.test_engine import Clock, open_round, start, until

HOUR = 3600.0


class SettableClock(Clock):
    """The clock of a machine, and beside it the time that really passes."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def steady(self) -> float:
        return self.passed

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.passed += seconds


def test_what_passes_is_no_step_and_small_differences_count_once_they_add_up() -> None:
    clock = SettableClock()
    steps = ClockSteps(clock, steady=clock.steady)
    clock.passes(7 * HOUR)
    assert steps.look() == 0.0
    clock.now -= 3 * HOUR
    assert (steps.look(), steps.look()) == (-3 * HOUR, 0.0)
    for _ in range(3):
        clock.now += 0.4
    assert abs(steps.look() - 1.2) < 1e-6


def test_a_clock_that_nobody_sets_has_no_steps() -> None:
    clock = SettableClock()
    steps = ClockSteps(clock, steady=None)
    clock.now += 40 * 24 * HOUR
    assert steps.look() == 0.0


def in_round(folder: Path, scenario: Callable[[Coordinator, SettableClock, dict[str, TaskSpec]], Awaitable[None]],
             *, quorum: int = 1) -> None:
    """Runs a scenario in the open first round of a study whose phases last 600 s and whose rounds end at 1,200."""
    clock = SettableClock()
    coordinator = start(folder, clock=clock, steady=clock.steady,
                        config=study_config(quorum=quorum, round_timeout="10m", round_limit="20m"))

    async def run() -> None:
        engine, tasks = await open_round(coordinator)
        await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
        await until(coordinator, lambda: coordinator.ledger.count_answers("s", 1, 0) == 1)
        await scenario(coordinator, clock, tasks)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
    asyncio.run(run())


async def is_looked_at(coordinator: Coordinator) -> None:
    """The engine has gone round its loop."""
    for _ in range(10):
        coordinator.runtime.notify()
        await asyncio.sleep(0.005)


async def closes_after(coordinator: Coordinator, clock: SettableClock, seconds: float) -> None:
    """The phase is open just before its time is up, and closed just after."""
    clock.passes(seconds - 1.0)
    await is_looked_at(coordinator)
    assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
    clock.passes(2.0)
    await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)


def test_a_clock_set_back_and_right_again_closes_no_round_early(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, clock: SettableClock, tasks: dict[str, TaskSpec]) -> None:
        before = coordinator.ledger.phase("s", 1, 0)
        for step in (-3 * HOUR, 3 * HOUR):
            clock.now += step
            await is_looked_at(coordinator)
        after = coordinator.ledger.phase("s", 1, 0)
        assert (after.deadline_unix, after.limit_unix) == (before.deadline_unix, before.limit_unix)
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        await coordinator.deliver(tasks["beta"], content_of(tasks["beta"]))
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        assert set(coordinator.ledger.task_states("s", 1, 0).values()) == {TaskState.UPDATED}
    in_round(tmp_path, scenario)


@pytest.mark.parametrize("step", [-HOUR, HOUR, 365 * 24 * HOUR])
def test_a_round_takes_as_long_as_it_took_whoever_sets_the_clock_meanwhile(
        tmp_path: Path, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `coordinator status` foretells the rounds to come from one that took a year, or less than nothing."""
    async def scenario(coordinator: Coordinator, clock: SettableClock, tasks: dict[str, TaskSpec]) -> None:
        def set_by(seconds: float) -> None:
            clock.now += seconds

        monkeypatch.setattr(time, "time", clock)
        opened = coordinator.ledger.round("s", 1).opened_unix
        coordinator.ledger.move_round("s", 1, clock() - opened)  # it was opened by the machine's clock
        set_by(step)
        await is_looked_at(coordinator)
        clock.passes(30.0)
        commit = coordinator.engine._commit

        async def commit_after_another_step(*arguments: Any) -> None:
            set_by(step)
            await commit(*arguments)

        monkeypatch.setattr(coordinator.engine, "_commit", commit_after_another_step)
        await coordinator.deliver(tasks["beta"], content_of(tasks["beta"]))
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        row = coordinator.ledger.round("s", 1)
        assert row.closed_unix is not None
        assert clock() == pytest.approx(1_000_030.0 + 2 * step), "in a phase, and behind the last one"
        assert row.closed_unix - row.opened_unix == pytest.approx(30.0)
    in_round(tmp_path, scenario)


def test_a_coordinator_that_stood_still_closes_no_phase_on_silos_that_could_not_deliver(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker pause`, or SIGSTOP: no clock was set, and the deadline has passed meanwhile."""
    monkeypatch.setattr(runtime, "_STOOD_STILL_SECONDS", 0.2)

    async def scenario(coordinator: Coordinator, clock: SettableClock, tasks: dict[str, TaskSpec]) -> None:
        before = coordinator.ledger.phase("s", 1, 0)
        clock.passes(before.deadline_unix - clock() - 0.1)
        coordinator.runtime.notify()
        await asyncio.sleep(0.02)  # it waits for the deadline now
        time.sleep(1.0)
        clock.passes(1.0)
        await is_looked_at(coordinator)
        after = coordinator.ledger.phase("s", 1, 0)
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        assert after.deadline_unix - before.deadline_unix > 0.5
        assert after.limit_unix - before.limit_unix > 0.5
        await coordinator.deliver(tasks["beta"], content_of(tasks["beta"]))
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
    in_round(tmp_path, scenario)


def test_a_phase_opened_while_the_clock_was_slow_lasts_as_long_as_any(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, clock: SettableClock, _: dict[str, TaskSpec]) -> None:
        clock.passes(100.0)
        clock.now += 40 * 24 * HOUR
        await is_looked_at(coordinator)
        assert len(coordinator.ledger.query("SELECT * FROM event WHERE kind = 'deadline_moved'")) == 1
        await closes_after(coordinator, clock, 500.0)
    in_round(tmp_path, scenario)


def test_a_clock_set_ahead_fails_no_round_that_waits_for_its_quorum(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, clock: SettableClock, _: dict[str, TaskSpec]) -> None:
        clock.now += 24 * HOUR
        await is_looked_at(coordinator)
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        clock.passes(1201.0)
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.FAILED)
    in_round(tmp_path, scenario, quorum=2)


def test_a_phase_opened_while_the_clock_was_ahead_lasts_no_longer_after_a_restart(tmp_path: Path) -> None:
    """A wrong clock at boot that NTP and a restart set right: nothing saw a step, and the phase waited 40 days."""
    clock = SettableClock()
    right = clock.now
    clock.now += 40 * 24 * HOUR

    async def scenario() -> None:
        first = start(tmp_path, clock=clock, steady=clock.steady, config=study_config(quorum=1, round_timeout="10m"))
        engine, _ = await open_round(first)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        clock.now = right
        second = Coordinator(tmp_path, clock=clock, steady=clock.steady)
        again = asyncio.ensure_future(second.engine.run_next())
        await until(second, lambda: second.ledger.phase("s", 1, 0).deadline_unix == right + 600.0)
        assert second.ledger.phase("s", 1, 0).limit_unix <= right + 2 * 24 * HOUR
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
    asyncio.run(scenario())


async def set_while_paused(coordinator: Coordinator, clock: SettableClock, seconds: float) -> None:
    """Pauses the study, sets the clock and resumes the study at once."""
    # Of the ledger's own clock, which notes when a study was paused, nothing is simulated here: it stands still.
    pause(coordinator.ledger, origin="command")
    paused = coordinator.ledger.paused_since("s")
    assert paused is not None
    await is_looked_at(coordinator)
    clock.now += seconds
    resume(coordinator.ledger, origin="command", clock=lambda: paused[0] + seconds)
    await until(coordinator, lambda: coordinator.runtime.text == "")
    await is_looked_at(coordinator)


@pytest.mark.parametrize("paused", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_clock_set_ahead_in_a_phase_holds_it_open_no_longer_after_a_restart_that_set_it_right(
        tmp_path: Path, paused: bool) -> None:
    """The deadline had moved with the clock, and when the phase was opened had not: it waited 40 days. What an operator
    has given it besides is kept."""
    clock = SettableClock()
    ahead, opened = 40 * 24 * HOUR, clock.now

    async def scenario() -> None:
        first = start(tmp_path, clock=clock, steady=clock.steady,
                      config=study_config(quorum=1, round_timeout="10m", round_limit="20m"))
        engine, _ = await open_round(first)
        await is_looked_at(first)
        clock.passes(60.0)
        if paused:
            await set_while_paused(first, clock, ahead)
        else:
            clock.now += ahead
            await is_looked_at(first)
        extend(first.ledger, 2 * HOUR, origin="command", clock=clock)
        moved = first.ledger.phase("s", 1, 0)
        assert moved.deadline_unix == pytest.approx(opened + ahead + 600.0 + 2 * HOUR)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        first.close()
        clock.now -= ahead
        clock.passes(60.0)  # of 600, of which 60 were over
        second = Coordinator(tmp_path, clock=clock, steady=clock.steady)
        again = asyncio.ensure_future(second.engine.run_next())
        await until(second, lambda: second.ledger.phase("s", 1, 0).deadline_unix < opened + ahead)
        phase = second.ledger.phase("s", 1, 0)
        assert phase.opened_unix <= clock.now
        for limit in (phase.deadline_unix, phase.limit_unix):
            assert opened + 600.0 + 2 * HOUR <= limit <= clock.now + 600.0 + 2 * HOUR + 1e-3
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        second.close()
    asyncio.run(scenario())


@pytest.mark.parametrize("hours", [24.0, -24.0])
def test_a_clock_set_during_a_pause_is_counted_once(tmp_path: Path, hours: float) -> None:
    """One that was set back was not counted: the phase waited for a silo that was gone until the old time came."""
    async def scenario(coordinator: Coordinator, clock: SettableClock, _: dict[str, TaskSpec]) -> None:
        before = coordinator.ledger.phase("s", 1, 0)
        await set_while_paused(coordinator, clock, hours * HOUR)
        after = coordinator.ledger.phase("s", 1, 0)
        assert after.deadline_unix == pytest.approx(before.deadline_unix + hours * HOUR)
        assert after.limit_unix == pytest.approx(before.limit_unix + hours * HOUR)
        await closes_after(coordinator, clock, 600.0)
    in_round(tmp_path, scenario)


def test_nobody_was_heard_later_than_now_once_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = Coordinator(tmp_path, clock=clock)
    coordinator.enroll("alpha", "beta")

    async def calls(*silos: str) -> None:
        for silo in silos:
            await coordinator.ask(silo, timeout_seconds=0)
            coordinator.runtime.called[silo] = clock.now

    async def scenario() -> None:
        right = clock.now
        clock.now += 40 * 24 * HOUR
        await calls("alpha", "beta")
        coordinator.hearing.look()
        for _ in range(8):  # beta falls silent while the clock is ahead
            clock.now += 30.0
            await calls("alpha")
            coordinator.hearing.look()
        assert list(coordinator.hearing.look()) == ["beta"]
        clock.now = right
        coordinator.hearing.look()
        clock.now += 1.0
        await calls("beta")
        assert coordinator.hearing.look() == {}, "it has called since"
        for _ in range(8):  # and now alpha dies, which was heard last in a time that has not come yet
            clock.now += 30.0
            await calls("beta")
            coordinator.hearing.look()
        assert list(coordinator.hearing.look()) == ["alpha"]
    asyncio.run(scenario())
