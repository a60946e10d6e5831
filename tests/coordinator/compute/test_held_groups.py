"""Silos that hold tensor groups: what they are given, and what happens when they hold them no longer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import PayloadNotServed
from semisilo.common.methods.contract import PayloadRef, Phase, TaskSpec
from semisilo.coordinator.ledger.states import StudyState
from tests.coordinator.federation_in_memory import Coordinator, Killed, content_of, study_config

SILOS = ("alpha", "beta")
TWO_PHASES = (Phase("measure", quorum="any"), Phase("train"))


def start(folder: Path, *, tensors: bool = True, **options: Any) -> Coordinator:
    folder.mkdir(exist_ok=True)
    coordinator = Coordinator(folder, **options)
    coordinator.ledger.query("PRAGMA synchronous = OFF")
    coordinator.compute.tensors = tensors
    if not coordinator.roster.silos():
        coordinator.enroll(*SILOS)
        coordinator.ledger.queue_study("s", study_config())
    return coordinator


def final_digest(coordinator: Coordinator) -> str:
    assert coordinator.ledger.study("s").state is StudyState.COMPLETED
    return coordinator.ledger.committed_digest("s")


async def run(coordinator: Coordinator, forgets: Callable[[], bool] = lambda: False) -> None:
    silos = [asyncio.ensure_future(coordinator.silo(name, forgets=forgets)) for name in SILOS]
    try:
        await asyncio.wait_for(coordinator.engine.run_next(), 300)
    finally:
        for silo in silos:
            if silo.done() and not silo.cancelled() and (error := silo.exception()):
                raise error
            silo.cancel()
        await asyncio.gather(*silos, return_exceptions=True)


def row_of(coordinator: Coordinator, task: TaskSpec) -> TaskSpec:
    row = coordinator.ledger.task(task.task_id)
    assert row is not None
    return row.spec


async def asked(coordinator: Coordinator, silo: str, *held: str) -> tuple[TaskSpec, PayloadRef]:
    """The silo's task and its only payload."""
    task = await coordinator.ask(silo, held=held)
    assert isinstance(task, TaskSpec)
    return task, task.payloads[0]


def in_second_round(folder: Path, scenario: Callable[[Coordinator, str], Any]) -> None:
    """Runs a scenario with (coordinator, digest of the tensors of round 1), once round 2 is open; neither silo has
    asked again since its update of round 1."""
    async def work() -> None:
        coordinator = start(folder)
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        try:
            await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
            first = ""
            for silo in SILOS:
                task, payload = await asked(coordinator, silo)
                assert payload.reference == ""
                first = payload.tensors
                await coordinator.deliver(task, content_of(task))
            async with asyncio.timeout(300):
                while coordinator.ledger.open_task("alpha", study="s") is None:
                    await asyncio.sleep(0.01)
            await scenario(coordinator, first)
        finally:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            coordinator.close()
    asyncio.run(asyncio.wait_for(work(), 300))


def test_a_silo_that_has_answered_is_given_a_difference_without_having_asked_in_between(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, first: str) -> None:
        for silo in SILOS:
            _, payload = await asked(coordinator, silo, first)
            assert payload.reference == first
            assert payload.tensors not in ("", first)
        assert coordinator.compute.calls.count("tasks") == 2, "one for each round"
    in_second_round(tmp_path, scenario)


def test_a_silo_that_lost_what_its_task_builds_on_is_given_the_whole_group(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, first: str) -> None:
        before, coded = await asked(coordinator, "alpha", first)
        task, whole = await asked(coordinator, "alpha")
        assert task.task_id == before.task_id
        assert (whole.reference, whole.tensors) == ("", coded.tensors)
        assert whole.digest != coded.digest
        assert row_of(coordinator, task) == task, "the ledger has the new payloads, for after a restart"
        assert coordinator.task_service.payload_for("alpha", task.task_id, whole.digest).is_file()
        with pytest.raises(PayloadNotServed):
            coordinator.task_service.payload_for("alpha", task.task_id, coded.digest)
        # The other silo's task is as it was.
        other, payload = await asked(coordinator, "beta", first)
        assert payload == coded
        assert row_of(coordinator, other).payloads == (coded,)
    in_second_round(tmp_path, scenario)


def test_nothing_but_the_payloads_of_the_task_changes(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, first: str) -> None:
        before, _ = await asked(coordinator, "alpha", first)
        after, _ = await asked(coordinator, "alpha")
        unlike = {name for name in TaskSpec.__slots__ if getattr(before, name) != getattr(after, name)}
        assert unlike == {"payloads"}
    in_second_round(tmp_path, scenario)


def test_payloads_are_written_again_only_when_the_silo_cannot_use_them(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, first: str) -> None:
        _, coded = await asked(coordinator, "alpha", first)
        for held in ([first, "ff" * 32], [coded.tensors], [coded.tensors, first]):
            assert (await asked(coordinator, "alpha", *held))[1] == coded
        assert coordinator.compute.calls.count("tasks") == 2
        for _ in range(3):
            _, whole = await asked(coordinator, "alpha")
            assert whole.reference == ""
        assert coordinator.compute.calls.count("tasks") == 3
        # A payload that stands alone is of use to everyone.
        assert (await asked(coordinator, "alpha", first))[1] == whole
        assert coordinator.compute.calls.count("tasks") == 3
    in_second_round(tmp_path, scenario)


def test_a_group_that_was_held_and_is_lost_is_sent_after_all(tmp_path: Path) -> None:
    """As when a silo fetches in one phase what the next phase names again, and its cache goes in between."""
    async def scenario(coordinator: Coordinator, first: str) -> None:
        task, coded = await asked(coordinator, "alpha", first)
        held = PayloadRef("", 0, ("model",), tensors=coded.tensors)
        row = coordinator.ledger.task(task.task_id)
        assert row is not None
        coordinator.ledger.replace_payloads(row, [held])
        assert (await asked(coordinator, "alpha", coded.tensors))[1] == held
        _, again = await asked(coordinator, "alpha", first)
        assert again == coded, "it still holds what that one needs"
    in_second_round(tmp_path, scenario)


def test_bytes_of_a_payload_that_was_replaced_meanwhile_are_accounted_for(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, first: str) -> None:
        task, coded = await asked(coordinator, "alpha", first)
        _, whole = await asked(coordinator, "alpha")
        for digest, count in ((coded.digest, 5), (whole.digest, 7)):
            coordinator.task_service.downloaded("alpha", task.task_id, digest, count)
        (total,), = coordinator.ledger.query(
            "SELECT sum(bytes) FROM cost WHERE silo = 'alpha' AND direction = 'down' AND round = 2")
        assert total == 12
    in_second_round(tmp_path, scenario)


def test_what_a_silo_says_to_hold_counts_more_than_what_it_was_given(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, first: str) -> None:
        assert coordinator.runtime.held == {silo: frozenset({first}) for silo in SILOS}
        await asked(coordinator, "alpha")
        assert coordinator.runtime.held["alpha"] == frozenset()
    in_second_round(tmp_path, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("phases", [None, TWO_PHASES], ids=["one phase", "two phases"])
def test_whatever_silos_hold_and_lose_the_study_ends_with_the_same_bits(tmp_path: Path, phases: Any) -> None:
    plain = start(tmp_path / "plain", tensors=False, phases=phases)
    asyncio.run(run(plain))
    for seed in range(4):
        coordinator, chance = start(tmp_path / str(seed), phases=phases), random.Random(seed)
        asyncio.run(run(coordinator, forgets=_sometimes(chance, 0.5 if seed else 0.0)))
        assert final_digest(coordinator) == final_digest(plain)
        coordinator.close()


def _sometimes(chance: random.Random, share: float) -> Callable[[], bool]:
    return lambda: chance.random() < share


def test_after_a_restart_of_the_coordinator_the_tasks_it_gave_are_still_right(tmp_path: Path) -> None:
    plain = start(tmp_path / "plain", tensors=False)
    asyncio.run(run(plain))
    first = start(tmp_path / "hub")
    hits = 0

    def kill(operation: str, arguments: dict[str, Any]) -> None:
        nonlocal hits
        hits += operation == "check_update"
        if hits == 3:
            raise Killed

    first.compute.before = kill

    async def until_killed() -> None:
        work = [asyncio.ensure_future(each) for each in (
            *(first.silo(name) for name in SILOS), first.engine.run_next())]
        await asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION, timeout=300)
        for each in work:
            each.cancel()
        assert any(isinstance(result, Killed) for result in await asyncio.gather(*work, return_exceptions=True))

    asyncio.run(until_killed())
    (count,), = first.ledger.query("SELECT count(*) FROM task WHERE round = 2 AND spec_json LIKE '%against%'"
                                   " OR round = 2 AND spec_json NOT LIKE '%\"reference\":\"\"%'")
    assert count > 0, "the open round has differences"
    first.close()
    second = start(tmp_path / "hub")  # its references are lost, and so is what silos hold
    asyncio.run(run(second))
    assert final_digest(second) == final_digest(plain)
