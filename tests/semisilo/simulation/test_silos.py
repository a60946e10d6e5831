"""A simulated silo: killed and started anew, it does its task again and counts what crossed once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semisilo.common.methods.contract import TaskSpec
from semisilo.common.process.compute import OnProgress
from semisilo.coordinator.ledger.costs import costs_of
from semisilo.coordinator.tasks.task_service import Hello
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.site.policy import Permit, Policy
from semisilo.simulation.silos import SimulatedSilo
from tests.coordinator.federation_in_memory import Coordinator, Killed, study_config


class _Dies:
    """A workplace whose process is killed while it trains."""

    room = 1

    def __init__(self) -> None:
        self.requests: list[Train] = []

    async def train(self, request: Train, *, on_progress: OnProgress | None = None) -> Trained:
        self.requests.append(request)
        raise Killed


def _silo(coordinator: Coordinator, folder: Path) -> SimulatedSilo:
    hello = Hello(version="0", methods=("semifl",), labelled_count=0, unlabelled_count=10)
    return SimulatedSilo("alpha", 0, folder, hello=hello, policy=Policy(permit=Permit()),
                         task_service=coordinator.task_service, ledger=coordinator.ledger,
                         payloads=coordinator.payloads, spool=coordinator.spool, model_files=folder)


def test_a_task_that_is_done_again_after_a_kill_counts_its_download_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = Coordinator(tmp_path)
        coordinator.ledger.query("PRAGMA synchronous = OFF")
        coordinator.enroll("alpha", "beta")
        coordinator.ledger.queue_study("s", study_config(quorum=2, round_timeout="1h", round_limit="2h"))
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        try:
            await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in ("alpha", "beta")))
            task = await coordinator.ask("alpha")
            assert isinstance(task, TaskSpec)
            workplace = _Dies()
            for _ in range(2):
                with pytest.raises(Killed):
                    await _silo(coordinator, tmp_path / "alpha").prepare(task, workplace)
            assert len(workplace.requests) == 2
            (cost,) = (each for each in costs_of(coordinator.ledger, "s") if each.kind == "payload")
            assert (cost.silo, cost.direction, cost.bytes, cost.count) == (
                "alpha", "down", task.payloads[0].size_bytes, 1)
        finally:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            coordinator.close()
    asyncio.run(scenario())
