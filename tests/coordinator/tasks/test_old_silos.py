"""Silos of an earlier version, which skip what they do not know of a task: they are not given it, and hear why."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from semisilo.common.config import to_dict
from semisilo.common.methods.contract import TaskSpec
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.studies.study_file import config_from_dict
from semisilo.coordinator.tasks.task_service import Hello, Standby
from tests.coordinator.federation_in_memory import Coordinator, content_of
from tests.processes import PATIENCE_SECONDS

CONFIG = to_dict(config_from_dict({
    "study": {"rounds": 3, "start_with": 2, "seed": 7, "labelled_only_baseline": False},
    "data": {"labelled": "digits", "test": "digits", "image": {"size": 8, "channels": 1}},
    "model": {"name": "small_cnn", "normalisation": "group"},
    "method": {"name": "fedavg", "objective": "fixmatch", "scenario": "labels-at-coordinator"},
    "privacy": {"dp": {"noise_multiplier": 1.0}},
    "participation": {"round_timeout": "5s", "round_limit": "20s", "quorum": 1}}, where="test"))
NEW = Hello(version="0.1.0", methods=("fedavg",), labelled_count=0, unlabelled_count=10)
OLD = replace(NEW, version="0.0.9", capabilities=frozenset())


def test_a_silo_that_does_not_know_differential_privacy_trains_nothing_in_its_place(tmp_path: Path) -> None:
    """The round goes on with the other one, and the task's reason says what to do."""
    async def scenario() -> None:
        coordinator = Coordinator(tmp_path)
        coordinator.enroll("alpha", "beta")
        coordinator.ledger.queue_study("s", CONFIG)
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        await coordinator.task_service.await_task("beta", OLD, timeout_seconds=0)
        ask = coordinator.task_service.await_task
        task = await ask("alpha", NEW, timeout_seconds=0.1)
        while isinstance(task, Standby):
            task = await ask("alpha", NEW, timeout_seconds=0.1)
        assert task.dp is not None
        assert isinstance(await ask("beta", OLD, timeout_seconds=0), Standby)
        refused = next(each for each in coordinator.ledger.tasks("s", 1, 0) if each.silo == "beta")
        assert refused.state is TaskState.REFUSED
        assert refused.reason.startswith("NOT_PERMITTED: its semisilo 0.0.9 does not know differential privacy"
                                         " ([privacy.dp]), and would work without; it takes part once it has been"
                                         " upgraded to ")
        assert "silo 'beta' is asked nothing: its semisilo 0.0.9" in coordinator.task_service.warnings.text("beta")
        assert coordinator.task_service.warnings.text("alpha") == ""
        await coordinator.deliver(task, content_of(task))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while coordinator.ledger.round("s", 1).closed_unix is None:
                await asyncio.sleep(0.01)
        assert coordinator.ledger.round("s", 1).state == "completed"
        # It is upgraded.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not isinstance(await ask("beta", NEW, timeout_seconds=0.1), TaskSpec):
                pass
        assert coordinator.task_service.warnings.text("beta") == ""
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()
    asyncio.run(asyncio.wait_for(scenario(), 60))
