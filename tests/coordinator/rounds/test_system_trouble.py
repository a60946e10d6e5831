"""What the operating system refuses for a while: who waits for that, who does not, and for how long it is said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadData, ComputeFailed, SystemTrouble
from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.rounds import engine as engine_module
from tests.coordinator.federation_in_memory import Coordinator, content_of, study_config
from tests.coordinator.rounds.test_engine import SILOS, Clock, open_round, run, start, until
from tests.coordinator.rounds.test_queued_again import life

FULL = "/hub/states: No space left on device."


class Disk:
    """Is full for one operation of the compute process until somebody frees some space."""

    def __init__(self, coordinator: Coordinator, operation: str, *, study: str = "") -> None:
        self.is_full = True
        self.tries = 0
        before: Callable[[str, Any], None] = coordinator.compute.before

        def fails(name: str, request: Any) -> None:
            before(name, request)
            if name == operation and (not study or request.name == study):
                self.tries += 1
                if self.is_full:
                    raise SystemTrouble(FULL, remedy="Free some space.")

        coordinator.compute.before = fails
        coordinator.engine._pause_seconds = 0.01


@pytest.fixture
def stopped(tmp_path: Path) -> Coordinator:
    """Study s was stopped in its first round while nobody served, so that its model is still to be written; t waits."""
    async def until_round_1(coordinator: Coordinator) -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        await until(coordinator, lambda: bool(coordinator.ledger.open_tasks("s", 1, 0)))
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)

    first = life(tmp_path)
    first.enroll(*SILOS)
    for name in ("s", "t"):
        first.ledger.queue_study(name, study_config())
    asyncio.run(until_round_1(first))
    operate.stop(first.ledger, "s", origin="command")
    first.close()
    return life(tmp_path)


@pytest.mark.slow
def test_a_stopped_study_whose_model_cannot_be_written_holds_up_no_other(
        stopped: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    """Its images were on a share that was away: all studies behind it waited, and the log did not name it."""
    disk = Disk(stopped, "open_study", study="s")
    model = stopped.folder / "studies" / "s" / "model.safetensors"

    async def scenario() -> None:
        await run(stopped)
        assert stopped.ledger.study_state("t") is StudyState.COMPLETED
        assert stopped.runtime.trouble == ""
        assert disk.tries == 2, "before the other study and behind it"
        said = f"The model of the stopped study s waits: {FULL} Free some space."
        assert [record.getMessage() for record in caplog.records if "stopped study" in record.getMessage()] == [
            f"{said} It is tried again."]
        engine = asyncio.ensure_future(stopped.engine.run_next())  # nothing else is to be done
        await until(stopped, lambda: stopped.runtime.trouble == said)
        assert (stopped.runtime.activity, model.exists()) == ("", False)
        disk.is_full = False
        assert await asyncio.wait_for(engine, 60) is None
        assert (stopped.runtime.trouble, model.exists()) == ("", True)
        stopped.close()
    with caplog.at_level(logging.INFO, "semisilo"):
        asyncio.run(scenario())


def test_a_stopped_study_is_opened_with_other_images_for_its_model_alone(stopped: Coordinator) -> None:
    opened: dict[str, bool] = {}
    before: Callable[[str, Any], None] = stopped.compute.before

    def noted(name: str, request: Any) -> None:
        before(name, request)
        if name == "open_study":
            opened[request.name] = request.may_have_changed

    stopped.compute.before = noted
    asyncio.run(run(stopped))
    stopped.close()
    assert opened == {"s": True, "t": False}
    assert (stopped.folder / "studies" / "s" / "model.safetensors").exists()


def test_a_stopped_study_is_opened_again_once_another_could_not_be_opened(stopped: Coordinator) -> None:
    """The compute process lets go of one study before it has opened the next; the model of the first still waits."""
    disk = Disk(stopped, "export")
    before: Callable[[str, Any], None] = stopped.compute.before

    def cannot_be_opened(name: str, request: Any) -> None:
        before(name, request)
        if name == "open_study" and request.name == "t":
            stopped.compute.opened, disk.is_full = "", False
            raise BadData("The images of t are away.")
        if name == "export" and not stopped.compute.opened:
            raise ComputeFailed("No study is open in the compute process.")

    stopped.compute.before = cannot_be_opened
    asyncio.run(run(stopped))
    assert stopped.ledger.study_state("t") is StudyState.FAILED
    stopped.close()
    assert (stopped.folder / "studies" / "s" / "model.safetensors").exists()


def test_where_nobody_operates_a_model_that_cannot_be_written_is_an_error(stopped: Coordinator) -> None:
    Disk(stopped, "open_study", study="s")
    stopped.engine._operated = False
    asyncio.run(run(stopped))
    assert stopped.ledger.study_state("t") is StudyState.COMPLETED
    with pytest.raises(SystemTrouble, match="stopped study s"):
        asyncio.run(run(stopped))
    stopped.close()


@pytest.mark.parametrize(("operation", "silos", "text"), [
    ("prepare", (), "0 of 2 silos have joined"), ("prepare", SILOS[:1], "1 of 2 silos have joined"),
    ("open_study", (), "0 of 2 silos have joined")])
def test_what_the_system_refused_is_no_longer_said_while_the_study_waits_for_silos(
        tmp_path: Path, operation: str, silos: tuple[str, ...], text: str) -> None:
    """It was said until the first step with silos was done, which might take days."""
    coordinator = start(tmp_path)
    disk = Disk(coordinator, operation)

    async def scenario() -> None:
        for silo in silos:
            await coordinator.ask(silo, timeout_seconds=0)
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(coordinator, lambda: coordinator.runtime.trouble == f"{FULL} Free some space.")
        disk.is_full = False
        await until(coordinator, lambda: coordinator.runtime.text == text)
        assert coordinator.ledger.study_state("s") is StudyState.WAITING
        assert (coordinator.runtime.trouble, coordinator.engine._pause_seconds) == ("", 1.0)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()
    asyncio.run(scenario())


@pytest.mark.slow
def test_what_the_system_refused_is_no_longer_said_while_a_round_waits_for_its_quorum(tmp_path: Path) -> None:
    coordinator = start(tmp_path, config=study_config(quorum=2))
    disk = Disk(coordinator, "open_study")
    disk.is_full = False

    async def scenario() -> None:
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        await until(coordinator, lambda: coordinator.ledger.study_state("s") is StudyState.RUNNING)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        for silo in SILOS:
            coordinator.roster.away(silo, reason="outside working hours", until_unix=4e9)
            coordinator.ledger.cancel_tasks(silo, reason="of the test")
        disk.is_full = True
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(coordinator, lambda: coordinator.runtime.trouble != "")
        disk.is_full = False
        await until(coordinator, lambda: "are away by their own policy" in coordinator.runtime.text)
        assert coordinator.runtime.trouble == ""
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()
    asyncio.run(scenario())


@pytest.mark.parametrize("extended", [0.0, 3600.0])
def test_while_the_system_refuses_something_an_open_phase_stands_still_and_gets_no_new_deadline(
        tmp_path: Path, extended: float) -> None:
    """It got one at every try, so an error that came again and again held the phase open for good."""
    clock = Clock()
    coordinator = start(tmp_path, clock=clock, config=study_config(quorum=1, round_timeout="10m", round_limit="20m"))
    ledger, refused = coordinator.ledger, list[int]()
    real, phase = ledger.open_tasks, lambda: ledger.phase("s", 1, 0)

    def open_tasks(*args: Any) -> list[str]:
        if refused:
            refused.append(1)
            raise SystemTrouble(FULL, remedy="Free some space.")
        return real(*args)

    ledger.open_tasks = open_tasks  # type: ignore[method-assign]

    async def tries(count: int) -> None:
        refused.append(1)
        coordinator.engine._pause_seconds = 0.01
        await until(coordinator, lambda: len(refused) > count)

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        await coordinator.deliver(tasks["alpha"], content_of(tasks["alpha"]))
        for _ in range(2):
            clock.now += 100.0
            await until(coordinator, lambda: coordinator.engine._seen == (phase(), clock.now))
            await tries(2)
            clock.now += 5000.0
            if extended:
                given = operate.extend(ledger, extended, origin="command", clock=clock)
            refused.clear()
            await until(coordinator, lambda: coordinator.runtime.trouble == "")
            assert not extended or phase() == given, "what an operator gives meanwhile is counted once"
        if not extended:
            assert phase().deadline_unix == pytest.approx(clock.now + 400.0), "after two times 100 s"
            assert phase().limit_unix == pytest.approx(clock.now + 1000.0)
            clock.now += 401.0
            await until(coordinator, lambda: ledger.round("s", 1).state is RoundState.COMPLETED)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_study_waits_while_no_thread_can_be_started(tmp_path: Path) -> None:
    """TasksMax of systemd, pids of a container: Python calls it a RuntimeError, and the study failed."""
    coordinator = start(tmp_path)
    cleanup, refused = coordinator.engine._cleanup, [1]
    real = cleanup.remove_unneeded

    async def remove_unneeded(name: str, *, keep_every: int) -> None:
        if refused:
            refused.append(1)
            raise RuntimeError("can't start new thread")
        await real(name, keep_every=keep_every)

    cleanup.remove_unneeded = remove_unneeded  # type: ignore[method-assign]
    coordinator.engine._pause_seconds = 0.01

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        for task in tasks.values():
            await coordinator.deliver(task, content_of(task))
        await until(coordinator, lambda: "TasksMax" in coordinator.runtime.trouble and len(refused) > 2)
        assert coordinator.ledger.study_state("s") is StudyState.RUNNING
        refused.clear()
        await until(coordinator, lambda: coordinator.runtime.trouble == "" and bool(
            coordinator.ledger.open_tasks("s", 2, 0)))
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()
    asyncio.run(scenario())


def test_pauses_grow_while_a_phase_cannot_be_closed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What goes well up to that point is no sign that the system works again."""
    monkeypatch.setattr(engine_module, "_FIRST_PAUSE_SECONDS", 0.01)
    coordinator = start(tmp_path)
    tries: list[int] = []

    def close_phase(phase: Any) -> None:
        tries.append(1)
        raise SystemTrouble(FULL, remedy="Free some space.")

    coordinator.ledger.close_phase = close_phase  # type: ignore[method-assign]

    async def scenario() -> None:
        engine, tasks = await open_round(coordinator)
        for task in tasks.values():
            await coordinator.deliver(task, content_of(task))
        await until(coordinator, lambda: len(tries) >= 4)
        assert coordinator.engine._pause_seconds >= 0.08
        assert sum("waits:" in text for text in caplog.messages) == 1, "it is said once"
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()
    asyncio.run(scenario())


@pytest.mark.slow
def test_pauses_grow_while_the_same_is_refused_though_the_study_can_be_opened(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = start(tmp_path)
    disk = Disk(coordinator, "phases")

    async def scenario() -> None:
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await until(coordinator, lambda: disk.tries >= 4)
        assert coordinator.engine._pause_seconds >= 0.04
        assert sum("waits:" in record.getMessage() for record in caplog.records) == 1, "it is said once"
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()
    asyncio.run(scenario())
