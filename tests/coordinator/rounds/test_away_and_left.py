"""Silos that take no task by their own policy, and silos that have left: who is asked, waited for and shown how."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from semisilo.common.methods.contract import TaskSpec
from semisilo.coordinator.cli.status import render
from semisilo.coordinator.federation.folder import create_federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.monitoring.status import gather
from semisilo.coordinator.rounds.runtime import StandbyReason
from semisilo.coordinator.tasks.task_service import Hello, Standby
from tests.coordinator.federation_in_memory import Coordinator, content_of, study_config
from tests.processes import PATIENCE_SECONDS

HELLO = Hello(version="0", methods=("semifl",), labelled_count=0, unlabelled_count=10)


def away(seconds: float) -> Hello:
    return replace(HELLO, away_reason="outside working hours", away_until_unix=time.time() + seconds)


def running(folder: Path, work: Callable[[Coordinator], object], *, silos: tuple[str, ...] = ("alpha", "beta"),
            **participation: object) -> None:
    async def scenario() -> None:
        coordinator = Coordinator(folder)
        coordinator.ledger.query("PRAGMA synchronous = OFF")
        coordinator.enroll(*silos)
        coordinator.ledger.queue_study("s", study_config(**participation))
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        try:
            await work(coordinator)  # type: ignore[misc]
        finally:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            coordinator.close()
    asyncio.run(asyncio.wait_for(scenario(), 300))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def events(coordinator: Coordinator, kind: str) -> list[dict[str, object]]:
    return [json.loads(row["detail_json"]) for row in coordinator.ledger.query(
        "SELECT detail_json FROM event WHERE kind = ? ORDER BY number", kind)]


# Away -----------------------------------------------------------------------------------------------------------------


def test_a_silo_that_is_away_is_not_asked_and_the_round_goes_on_without_it(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        await coordinator.task_service.await_task("beta", away(3600), timeout_seconds=0)
        task = await coordinator.ask("alpha")
        while isinstance(task, Standby):
            task = await coordinator.ask("alpha")
        assert coordinator.ledger.round("s", 1).sample == ("alpha",)
        await coordinator.deliver(task, content_of(task))
        await until(lambda: coordinator.ledger.round("s", 1).closed_unix is not None)
        assert coordinator.ledger.round("s", 1).state == "completed"
        # It takes tasks again, and is asked in the next round that opens.
        standby = await coordinator.task_service.await_task("beta", HELLO, timeout_seconds=0)
        assert isinstance(standby, (Standby, TaskSpec))
        assert [event["silo"] for event in events(coordinator, "silo_away")] == ["beta"]
        assert [event["silo"] for event in events(coordinator, "silo_back")] == ["beta"]
    running(tmp_path, work, quorum=1, round_timeout="1h", round_limit="2h")


def test_a_silo_that_comes_and_goes_all_the_time_does_not_fill_the_audit_trail(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = Coordinator(tmp_path)
        coordinator.enroll("beta")
        for _ in range(50):
            await coordinator.task_service.await_task("beta", away(3600), timeout_seconds=0)
            await coordinator.task_service.await_task("beta", HELLO, timeout_seconds=0)
        await coordinator.task_service.await_task("beta", away(3600), timeout_seconds=0)
        assert coordinator.roster.silos()[0].away_reason == "outside working hours"  # known all the same
        assert len(events(coordinator, "silo_away")) + len(events(coordinator, "silo_back")) == 20
        coordinator.close()
    asyncio.run(work())


def test_no_round_opens_below_the_quorum_and_everyone_hears_why(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        await coordinator.task_service.await_task("beta", away(3600), timeout_seconds=0)
        await coordinator.task_service.await_task("alpha", HELLO, timeout_seconds=0)
        await until(lambda: "away by their own policy" in coordinator.runtime.text)
        standby = await coordinator.ask("alpha", timeout_seconds=0.2)
        assert isinstance(standby, Standby)
        assert standby.reason is StandbyReason.WAITING_FOR_SILOS
        assert "1 of 2 silos are away by their own policy" in standby.text
        last = coordinator.ledger.last_round("s")
        assert last is not None
        assert last.number == 0
        task = await coordinator.task_service.await_task("beta", HELLO, timeout_seconds=PATIENCE_SECONDS)
        assert isinstance(task, TaskSpec)
        assert coordinator.ledger.round("s", 1).sample == ("alpha", "beta")
        assert coordinator.runtime.text == ""
    running(tmp_path, work, quorum=2, round_timeout="1h", round_limit="2h")


def test_a_silo_that_goes_away_with_an_open_task_gets_it_no_more_until_it_is_back(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in ("alpha", "beta")))
        task = await coordinator.ask("beta")
        assert isinstance(task, TaskSpec)
        gone = await coordinator.task_service.await_task("beta", away(600), timeout_seconds=0)
        assert isinstance(gone, Standby)
        back = await coordinator.task_service.await_task("beta", HELLO, timeout_seconds=PATIENCE_SECONDS)
        assert isinstance(back, TaskSpec)
        assert back.task_id == task.task_id
    running(tmp_path, work, quorum=2, round_timeout="1h", round_limit="2h")


def test_a_round_with_its_quorum_does_not_wait_for_who_will_be_back_after_its_deadline(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in ("alpha", "beta")))
        task = await coordinator.ask("alpha")
        assert isinstance(task, TaskSpec)
        await coordinator.task_service.await_task("beta", away(1800), timeout_seconds=0)  # back before the deadline
        await coordinator.deliver(task, content_of(task))
        await asyncio.sleep(0.3)
        assert coordinator.ledger.round("s", 1).closed_unix is None
        await coordinator.task_service.await_task("beta", away(7200), timeout_seconds=0)  # after it
        await until(lambda: coordinator.ledger.round("s", 1).closed_unix is not None)
        states = coordinator.ledger.task_states("s", 1, 0)
        assert states == {"alpha": TaskState.UPDATED, "beta": TaskState.EXPIRED}
    running(tmp_path, work, quorum=1, round_timeout="1h", round_limit="2h")


def test_a_time_that_cannot_be_is_cut_to_a_month_and_one_in_the_past_lasts_until_the_next_call(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        for seconds in (1e18, -5.0, -1e9):
            await coordinator.task_service.await_task("beta", away(seconds), timeout_seconds=0)
            row = next(row for row in coordinator.roster.silos() if row.name == "beta")
            assert row.is_away(time.time() + 60)  # for as long as a poll may take
            assert row.away_until_unix - time.time() <= (31 * 86400 if seconds > 0 else 120)
        await coordinator.task_service.await_task("beta", HELLO, timeout_seconds=0)
        row = next(row for row in coordinator.roster.silos() if row.name == "beta")
        assert not row.is_away(time.time())
    running(tmp_path, work)


def test_no_round_waits_for_a_silo_whose_clock_is_slow(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It says that it is away, until a moment that has passed at the coordinator: it takes no task all the same, and
    every round asked it and waited for its whole time."""
    async def work(coordinator: Coordinator) -> None:
        for number in (1, 2):
            await coordinator.task_service.await_task("beta", away(-1200), timeout_seconds=0)
            task = await coordinator.ask("alpha")
            while isinstance(task, Standby):
                task = await coordinator.ask("alpha")
            assert (task.round, coordinator.ledger.round("s", number).sample) == (number, ("alpha",))
            await coordinator.deliver(task, content_of(task))
            await until(lambda number=number: coordinator.ledger.round("s", number).closed_unix is not None)
        assert "which is 20 min " in coordinator.task_service.warnings.text("beta")
        assert sum("by the coordinator's clock" in each for each in caplog.messages) == 1
        await coordinator.task_service.await_task("beta", away(-10), timeout_seconds=0)  # a slow network does that
        assert coordinator.task_service.warnings.text("beta") == ""
    running(tmp_path, work, quorum=1, round_timeout="1h", round_limit="2h")


# Left -----------------------------------------------------------------------------------------------------------------


def test_a_silo_that_leaves_is_no_member_its_task_is_cancelled_and_an_invitation_lets_it_back(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in ("alpha", "beta")))
        task = await coordinator.ask("beta")
        assert isinstance(task, TaskSpec)
        left = coordinator.roster.leave("beta")
        assert coordinator.roster.leave("beta") == left  # a repeat changes nothing
        assert len(events(coordinator, "silo_left")) == 1
        row = coordinator.ledger.task(task.task_id)
        assert row is not None
        assert (row.state, row.reason) == (TaskState.CANCELLED, "the silo has left the federation")
        assert coordinator.roster.members() == ["alpha"]
        status = coordinator.roster.silo_status("beta")
        assert status is not None
        assert (status.revoked, status.left_unix) == (False, left)
        assert not coordinator.roster.accepts("beta", 2)
        assert coordinator.roster.has_issued("beta", 2)
        assert not coordinator.roster.has_issued("alpha", 2)
        coordinator.enroll("beta")
        again = coordinator.roster.silo_status("beta")
        assert again is not None
        assert again.left_unix is None
        assert coordinator.roster.members() == ["alpha"]  # until it asks for a task
        await coordinator.ask("beta", timeout_seconds=0)
        assert coordinator.roster.members() == ["alpha", "beta"]
        coordinator.ledger.check_events()
    running(tmp_path, work, quorum=2, round_timeout="1h", round_limit="2h")


# Shown ----------------------------------------------------------------------------------------------------------------


def test_status_shows_who_has_left_who_is_away_until_when_and_what_was_refused(tmp_path: Path) -> None:
    federation = create_federation(tmp_path / "lung", name="lung", address="hub.example:8443")
    work = Coordinator(tmp_path / "lung")
    work.close()
    ledger = Ledger(federation.ledger)
    roster = LedgerRoster(ledger)
    for number, silo in enumerate(("alpha", "beta", "gamma")):
        token = bytes([number]) * 32
        roster.add_invitation(silo=silo, token_hash=token, expires_unix=4e9)
        roster.use_invitation(token, key_fingerprint=token, certificate_der=b"", serial=number, not_after_unix=4e9)
        roster.joined(silo, version="0", methods=(), labelled_count=0, unlabelled_count=1, memory_study="",
                      memory_round=0)
    until_unix = 4_000_000_000.0
    roster.away("beta", reason="outside working hours", until_unix=until_unix)
    roster.leave("gamma")
    ledger.queue_study("s", study_config())
    ledger.query("INSERT INTO task (task_id, study, round, phase, silo, state, spec_json, opened_unix, closed_unix,"
                 " reason) VALUES ('s/1/0-train/alpha', 's', 1, 0, 'alpha', 'refused', '{}', 1, 2,"
                 " 'DAILY_BUDGET: used up until noon')")
    facts = gather(federation, ledger, None)
    assert {silo.name: silo.state for silo in facts.silos} == {
        "alpha": "joined", "beta": "away by policy", "gamma": "left"}
    beta = facts.silos[1]
    assert (beta.away_reason, beta.away_until_unix) == ("outside working hours", until_unix)
    (refusal,) = facts.refusals
    assert (refusal.silo, refusal.round, refusal.reason) == ("alpha", 1, "DAILY_BUDGET: used up until noon")
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    render(console, facts)
    shown = console.export_text()
    assert "silo beta: outside working hours until 2096-10-02 07:06 UTC, by its own policy" in shown
    assert "silo alpha refused round 1 of s: DAILY_BUDGET: used up until noon" in shown
    # Once it has answered a later task, what was in the way is no news any more.
    ledger.query("INSERT INTO task (task_id, study, round, phase, silo, state, spec_json, opened_unix, closed_unix)"
                 " VALUES ('s/2/0-train/alpha', 's', 2, 0, 'alpha', 'updated', '{}', 3, 4)")
    assert gather(federation, ledger, None).refusals == ()


def test_who_waited_for_an_approval_is_not_away_once_the_study_is_over(tmp_path: Path) -> None:
    """It may have ended with the study, and was away for a week then."""
    async def scenario() -> None:
        coordinator = Coordinator(tmp_path)
        coordinator.enroll("alpha", "beta")
        until_unix = time.time() + 7 * 86_400
        waits = replace(HELLO, away_reason="the study awaits approval there", away_until_unix=until_unix,
                        awaits_approval=True)
        rests = replace(HELLO, away_reason="outside working hours", away_until_unix=until_unix)

        async def told() -> dict[str, str]:
            for silo, hello in (("alpha", waits), ("beta", rests)):
                await coordinator.task_service.await_task(silo, hello, timeout_seconds=0.0)
            return {row.name: row.away_reason for row in coordinator.roster.silos()}

        try:
            coordinator.runtime.set(reason=StandbyReason.NOT_SAMPLED, study="s")
            assert await told() == {"alpha": "the study awaits approval there", "beta": "outside working hours"}
            coordinator.runtime.set(reason=StandbyReason.NO_STUDY)
            for _ in range(2):  # an older silo says so with every call
                assert await told() == {"alpha": "", "beta": "outside working hours"}
            assert len(events(coordinator, "silo_away")) == 2
            assert len(events(coordinator, "silo_back")) == 1
        finally:
            coordinator.close()
    asyncio.run(asyncio.wait_for(scenario(), 300))
