"""Silos of which nothing is heard: no round asks them or waits for them until they call again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from semisilo.common.methods.contract import Phase, TaskSpec
from semisilo.coordinator.compute.messages import Phases
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.rounds.hearing import SILENT_SECONDS
from semisilo.coordinator.tasks.task_service import Hello, Standby
from tests.coordinator.federation_in_memory import Coordinator, content_of, study_config
from tests.coordinator.rounds.test_engine import Clock, until

SILOS = ("alpha", "beta", "gamma")


def begun(folder: Path, *, clock: Clock, quorum: int = 2, phases: tuple[Phase, ...] | None = None,
          rounds: int = 3) -> Coordinator:
    """A coordinator with three silos and a study that starts with them."""
    coordinator = Coordinator(folder, clock=clock, phases=phases)
    coordinator.ledger.query("PRAGMA synchronous = OFF")
    coordinator.enroll(*SILOS)
    config = study_config(quorum=quorum, round_timeout="1h", round_limit="2h")
    coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "start_with": 3, "rounds": rounds}})
    return coordinator


async def call(coordinator: Coordinator, silos: Sequence[str]) -> dict[str, TaskSpec | Standby]:
    """These silos ask for a task, as they do every 25 s."""
    return {silo: await coordinator.ask(silo, timeout_seconds=0) for silo in silos}


async def passes(coordinator: Coordinator, clock: Clock, seconds: float, *, heard: Sequence[str]) -> None:
    """Time goes by, in which only some silos call."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(end, clock.now + 25.0)
        await call(coordinator, heard)
        await asyncio.sleep(0)
        coordinator.hearing.look()


async def is_open(coordinator: Coordinator, number: int, phase: int = 0) -> tuple[str, ...]:
    """Waits until silos work in a phase; who was asked in it."""
    def opened() -> bool:
        row = coordinator.ledger.last_round("s")
        return row is not None and (row.number, row.phase, row.state) == (number, phase, RoundState.COLLECTING)
    await until(coordinator, opened)
    return tuple(coordinator.ledger.task_states("s", number, phase))


async def answer(coordinator: Coordinator, silos: Sequence[str]) -> None:
    """These silos send their updates."""
    for silo, task in (await call(coordinator, silos)).items():
        assert isinstance(task, TaskSpec), (silo, task)
        await coordinator.deliver(task, content_of(task))
    coordinator.runtime.notify()


async def falls_silent_in_round_1(coordinator: Coordinator, clock: Clock) -> None:
    """The study begins with everyone; then gamma dies, and the first round closes at its deadline without it."""
    await call(coordinator, SILOS)
    assert await is_open(coordinator, 1) == SILOS
    heard = SILOS[:2]
    await answer(coordinator, heard)
    await passes(coordinator, clock, 3601.0, heard=heard)
    await until(coordinator, lambda: coordinator.ledger.round("s", 1).closed_unix is not None)


def scenario(coordinator: Coordinator, work: Callable[[], Any]) -> None:
    """Runs the engine beside what silos do."""
    async def both() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        try:
            await work()
        finally:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            coordinator.close()
    asyncio.run(asyncio.wait_for(both(), 300))


def events(coordinator: Coordinator, kind: str) -> list[str]:
    return [json.loads(row["detail_json"])["silo"] for row in coordinator.ledger.query(
        "SELECT detail_json FROM event WHERE kind = ? ORDER BY number", kind)]


def test_a_silo_that_dies_costs_one_round_and_is_asked_again_once_it_calls(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = begun(tmp_path, clock=clock, rounds=4)

    async def work() -> None:
        died = clock.now
        await falls_silent_in_round_1(coordinator, clock)
        assert coordinator.ledger.task_states("s", 1, 0)["gamma"] is TaskState.EXPIRED
        assert await is_open(coordinator, 2) == ("alpha", "beta")
        assert coordinator.ledger.round("s", 2).sample == ("alpha", "beta")
        assert coordinator.roster.silos()[2].silent_unix == died
        before = clock.now
        await answer(coordinator, ("alpha", "beta"))
        await until(coordinator, lambda: coordinator.ledger.round("s", 2).closed_unix is not None)
        assert clock.now == before, "nobody waited for it"
        assert await is_open(coordinator, 3) == ("alpha", "beta")
        # It comes back in the middle of a round in which it was not asked, and waits for the next one.
        assert isinstance((await call(coordinator, ("gamma",)))["gamma"], Standby)
        assert coordinator.hearing.look() == {}
        assert coordinator.roster.silos()[2].silent_unix is None
        await answer(coordinator, ("alpha", "beta"))
        assert await is_open(coordinator, 4) == SILOS
        assert (events(coordinator, "silo_silent"), events(coordinator, "silo_heard")) == (["gamma"], ["gamma"])
    scenario(coordinator, work)


def test_a_silo_that_was_asked_and_fell_silent_may_answer_until_the_deadline(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = begun(tmp_path, clock=clock)

    async def work() -> None:
        await call(coordinator, SILOS)
        await is_open(coordinator, 1)
        await answer(coordinator, ("alpha", "beta"))
        await passes(coordinator, clock, 1800.0, heard=("alpha", "beta"))
        assert coordinator.roster.silos()[2].silent_unix is not None
        assert coordinator.ledger.round("s", 1).state is RoundState.COLLECTING
        await answer(coordinator, ("gamma",))
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).closed_unix is not None)
        assert set(coordinator.ledger.task_states("s", 1, 0).values()) == {TaskState.UPDATED}
        await call(coordinator, SILOS)
        assert await is_open(coordinator, 2) == SILOS
    scenario(coordinator, work)


def test_below_the_quorum_no_round_is_burnt_and_everyone_hears_what_is_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = begun(tmp_path, clock=clock, quorum=2)

    async def work() -> None:
        await call(coordinator, SILOS)
        await is_open(coordinator, 1)
        await answer(coordinator, SILOS)  # two die in the moment in which the round is over
        await until(coordinator, lambda: coordinator.ledger.last_round("s").number == 2)  # type: ignore[union-attr]
        await is_open(coordinator, 2)
        await answer(coordinator, ("alpha",))
        await passes(coordinator, clock, 7300.0, heard=("alpha",))
        await until(coordinator, lambda: coordinator.ledger.round("s", 2).state is RoundState.FAILED)
        await until(coordinator, lambda: coordinator.runtime.text ==
                    "2 of 3 silos are silent: no call for 3 min 0 s; a round needs 2")
        await passes(coordinator, clock, 7200.0, heard=("alpha",))
        last = coordinator.ledger.last_round("s")
        assert last is not None
        assert last.number == 2, "it waits"
        assert coordinator.ledger.study_state("s") is StudyState.RUNNING
        await call(coordinator, ("beta",))
        assert await is_open(coordinator, 3) == ("alpha", "beta")
        assert coordinator.runtime.text == ""
    scenario(coordinator, work)


def test_when_nobody_is_heard_the_study_waits_and_says_so(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = begun(tmp_path, clock=clock, quorum=0)

    async def work() -> None:
        await call(coordinator, SILOS)
        await is_open(coordinator, 1)
        coordinator.ledger.set_study_state("s", StudyState.PAUSED)
        await until(coordinator, lambda: coordinator.runtime.reason == "paused")
        await answer_paused(coordinator, SILOS)
        await passes(coordinator, clock, 3600.0, heard=())
        coordinator.ledger.set_study_state("s", StudyState.RUNNING)
        await until(coordinator, lambda: coordinator.runtime.text.startswith("3 of 3 silos are silent"))
        assert coordinator.ledger.last_round("s").number == 1  # type: ignore[union-attr]
        await call(coordinator, SILOS)
        assert await is_open(coordinator, 2) == SILOS
    scenario(coordinator, work)


async def answer_paused(coordinator: Coordinator, silos: Sequence[str]) -> None:
    """Silos that were given their tasks before a pause still hand in their updates."""
    for silo in silos:
        task = coordinator.ledger.open_task(silo, study="s")
        assert task is not None
        await coordinator.deliver(task.spec, content_of(task.spec))


TWO_PHASES = (Phase("train"), Phase("statistics", asks="roster", quorum="any"))


def test_a_later_phase_does_not_wait_for_who_has_died_in_an_earlier_one(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = begun(tmp_path, clock=clock, phases=TWO_PHASES)

    async def work() -> None:
        await call(coordinator, SILOS)
        assert await is_open(coordinator, 1) == SILOS
        await answer(coordinator, ("alpha", "beta"))
        await passes(coordinator, clock, 3601.0, heard=("alpha", "beta"))
        assert await is_open(coordinator, 1, phase=1) == ("alpha", "beta")
        await answer(coordinator, ("alpha", "beta"))
        await until(coordinator, lambda: coordinator.ledger.round("s", 1).state is RoundState.COMPLETED)
        assert await is_open(coordinator, 2) == ("alpha", "beta")
    scenario(coordinator, work)


def test_a_later_phase_asks_silent_silos_as_well_where_its_quorum_needs_them(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = begun(tmp_path, clock=clock, quorum=3, phases=(Phase("train"), Phase("again")))

    async def work() -> None:
        await call(coordinator, SILOS)
        await is_open(coordinator, 1)
        await answer(coordinator, ("alpha", "beta"))
        await passes(coordinator, clock, 600.0, heard=("alpha", "beta"))
        task = coordinator.ledger.open_task("gamma", study="s")
        assert task is not None
        await coordinator.deliver(task.spec, content_of(task.spec))  # without a call: it is silent still
        assert await is_open(coordinator, 1, phase=1) == SILOS
    scenario(coordinator, work)


def test_who_is_silent_survives_a_restart_and_nobody_else_becomes_so(tmp_path: Path) -> None:
    clock = Clock()
    first = begun(tmp_path, clock=clock)

    async def before() -> None:
        await falls_silent_in_round_1(first, clock)
        await is_open(first, 2)
        first.ledger.set_study_state("s", StudyState.PAUSED)
        await until(first, lambda: first.runtime.reason == "paused")
        await answer_paused(first, ("alpha", "beta"))
    scenario(first, before)
    clock.now += 7 * 86400  # the coordinator is off for a week: silos could not be heard
    second = Coordinator(tmp_path, clock=clock)

    async def after() -> None:
        second.ledger.set_study_state("s", StudyState.RUNNING)
        assert await is_open(second, 3) == ("alpha", "beta"), "gamma was silent before, the others were not"
    scenario(second, after)


def test_a_round_that_was_open_asks_the_same_silos_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    first = begun(tmp_path, clock=clock)

    async def before() -> None:
        await falls_silent_in_round_1(first, clock)
        assert await is_open(first, 2) == ("alpha", "beta")
    scenario(first, before)
    second = Coordinator(tmp_path, clock=clock)

    async def after() -> None:
        await until(second, lambda: second.runtime.reason == "collecting")
        assert isinstance((await call(second, ("gamma",)))["gamma"], Standby)  # it is back, too late for this one
        assert await is_open(second, 2) == ("alpha", "beta")
        assert second.ledger.round("s", 2).sample == ("alpha", "beta")
        await answer(second, ("alpha", "beta"))
        assert await is_open(second, 3) == SILOS
    scenario(second, after)


def test_a_coordinator_that_has_slept_gives_every_silo_the_whole_time_anew(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = begun(tmp_path, clock=clock)
    hearing = coordinator.hearing

    async def work() -> None:
        await call(coordinator, SILOS)
        assert hearing.look() == {}
        clock.now += 3600.0
        assert hearing.look() == {}
        await passes(coordinator, clock, SILENT_SECONDS, heard=("beta",))
        assert hearing.look() == {}
        clock.now += 1.0
        assert sorted(hearing.look()) == ["alpha", "gamma"]
        coordinator.runtime.connected["gamma"] = 1
        coordinator.runtime.called["alpha"] = clock.now
        assert hearing.look() == {}
        coordinator.close()
    asyncio.run(work())


def test_a_method_is_told_of_silos_that_may_give_it_something(tmp_path: Path) -> None:
    """Not of one that has fallen silent before it gave anything, nor of one that does not permit the method."""
    clock = Clock()
    coordinator = begun(tmp_path, clock=clock, rounds=4, quorum=1)
    told: list[int] = []
    coordinator.compute.before = lambda operation, request: told.append(request.silos) if isinstance(
        request, Phases) else None

    async def work() -> None:
        await falls_silent_in_round_1(coordinator, clock)
        assert await is_open(coordinator, 2) == ("alpha", "beta")
        assert told == [3, 2], "gamma has never answered"
        await coordinator.task_service.await_task("beta", Hello(
            version="0", methods=("fedmix",), labelled_count=0, unlabelled_count=10), timeout_seconds=0)
        await answer(coordinator, ("alpha",))
        await passes(coordinator, clock, 3601.0, heard=("alpha",))
        await until(coordinator, lambda: len(told) > 2)
        assert told[2] == 1
    scenario(coordinator, work)
