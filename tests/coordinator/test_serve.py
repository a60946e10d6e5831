"""`coordinator serve` beside what goes wrong with its ledger. `cli/test_main.py` and `tests/test_restart.py` have the
rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from semisilo.common.process.child import ComputeDied
from semisilo.coordinator import serve
from semisilo.coordinator.federation.folder import create_federation
from semisilo.coordinator.ledger.costs import Cost, add_costs
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.studies.queue import create_study
from tests.coordinator.ledger_fixture import study_config
from tests.processes import PATIENCE_SECONDS, free_ports


@pytest.fixture
def server(tmp_path: Path) -> Iterator[serve._Server]:
    federation = create_federation(tmp_path / "hub", name="lung", address=f"127.0.0.1:{free_ports()}")
    ledger = Ledger(federation.ledger, waits=False)
    yield serve._Server(federation, ledger, Console())
    ledger.close()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reached():
            await asyncio.sleep(0.01)


def test_a_coordinator_whose_ledger_was_removed_says_so_once_and_makes_no_other(
        server: serve._Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(serve, "_CHECKPOINT_SECONDS", 0.01)
    path = server._ledger.path
    caplog.set_level(logging.INFO)

    def told(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    async def scenario() -> None:
        checkpoints = asyncio.ensure_future(server._checkpoint())
        for each in path.parent.glob("ledger.sqlite*"):
            each.rename(each.with_name(f"moved-{each.name}"))
        await until(lambda: told("is gone") == 1)
        await asyncio.sleep(0.1)
        assert not path.exists()
        assert told("is gone") == 1
        for each in path.parent.glob("moved-*"):
            each.rename(each.with_name(each.name.removeprefix("moved-")))
        await until(lambda: told("is there again") == 1)
        checkpoints.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await checkpoints

    asyncio.run(scenario())


@pytest.mark.parametrize("deaths", [2, 3])
def test_a_compute_process_that_is_killed_while_it_starts_is_started_again(
        server: serve._Server, monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    starts = 0

    async def start() -> None:
        nonlocal starts
        starts += 1
        if starts <= deaths:
            raise ComputeDied("The compute process was killed by signal 9 during 'start'.")

    monkeypatch.setattr(server._compute, "start", start)
    with pytest.raises(ComputeDied) if deaths == 3 else contextlib.nullcontext():
        asyncio.run(server._start_compute())
    assert starts == 3


def test_a_start_names_studies_whose_file_was_edited_since_they_were_queued(
        server: serve._Server, caplog: pytest.LogCaptureFixture) -> None:
    path = create_study(server._federation, "second")
    assert server._queue_studies() is False
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    path.write_text(path.read_text().replace("rounds = ", "rounds = 1"))
    assert server._queue_studies() is False
    line, = (each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING)
    assert line.startswith("study second: ")
    assert line.endswith("coordinator queue second")


def test_a_start_estimates_what_the_last_process_could_not_write_of_its_open_round(server: serve._Server) -> None:
    ledger = server._ledger
    ledger.queue_study("s", study_config(rounds=2))
    ledger.open_round("s", 0, start_digest="0" * 64, sample=(), phases=())
    add_costs(ledger, [Cost(study="s", round=0, phase="train", silo="alpha", direction="up", kind="payload",
                            item="model", bytes=100, count=1)])
    for _ in range(2):  # once, however often it starts
        server._estimate_lost_costs()
    assert {(row["kind"], row["bytes"], row["estimated"]) for row in ledger.query("SELECT * FROM cost")} == {
        ("payload", 100, 0), ("message", 100, 1), ("wire", 100, 1)}
    ledger.set_study_state("s", StudyState.STOPPED)
    ledger.query("DELETE FROM cost WHERE kind <> 'payload'")
    server._estimate_lost_costs()
    assert len(ledger.query("SELECT * FROM cost")) == 1


def test_what_an_upload_that_went_on_had_sent_before_a_kill_is_estimated_once_its_round_is_over(
        server: serve._Server) -> None:
    """The payload is counted whole when it is accepted, the wire from where the transfer goes on."""
    ledger = server._ledger
    ledger.queue_study("s", study_config(rounds=2))
    ledger.open_round("s", 0, start_digest="0" * 64, sample=(), phases=())
    server._estimate_lost_costs()
    payload = Cost(study="s", round=0, phase="train", silo="alpha", direction="up", kind="payload", item="model",
                   bytes=100, count=1)
    add_costs(ledger, [payload, replace(payload, kind="wire", item="tcp", bytes=41)])

    def wire() -> int:
        return sum(row["bytes"] for row in ledger.query("SELECT bytes FROM cost WHERE kind = 'wire'"))

    asyncio.run(server._settle_once())
    assert wire() == 41  # more may come
    ledger.set_round_state("s", 0, RoundState.CANCELLED)
    for _ in range(2):
        asyncio.run(server._settle_once())
        assert wire() == 100
