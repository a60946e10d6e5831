"""A coordinator whose first round waits for both silos, for tests of what silos ask of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from semisilo.common.methods.contract import TaskSpec
from semisilo.coordinator.ledger.states import TaskState
from tests.coordinator.federation_in_memory import (
    Coordinator,
    study_config,
)
from tests.processes import PATIENCE_SECONDS

SILOS = ("alpha", "beta")


@contextlib.asynccontextmanager
async def collecting(folder: Path, **options: Any) -> AsyncIterator[tuple[Coordinator, dict[str, TaskSpec]]]:
    """A coordinator whose first round waits for both silos."""
    coordinator = Coordinator(folder, **options)
    coordinator.ledger.query("PRAGMA synchronous = OFF")
    coordinator.enroll(*SILOS)
    coordinator.ledger.queue_study("s", study_config(quorum=2, round_timeout="1h", round_limit="2h"))
    engine = asyncio.ensure_future(coordinator.engine.run_next())
    try:
        await asyncio.gather(*(coordinator.ask(silo, timeout_seconds=0) for silo in SILOS))
        tasks = {}
        for silo in SILOS:
            task = await coordinator.ask(silo)
            assert isinstance(task, TaskSpec)
            tasks[silo] = task
        yield coordinator, tasks
    finally:
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        coordinator.close()


async def until(coordinator: Coordinator, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def state_of(coordinator: Coordinator, task: TaskSpec) -> TaskState:
    row = coordinator.ledger.task(task.task_id)
    assert row is not None
    return row.state


def statements(coordinator: Coordinator, of: str) -> list[str]:
    """Where the ledger notes from now on which statements about a table it is asked."""
    found: list[str] = []
    coordinator.ledger._db.set_trace_callback(lambda sql: found.append(sql) if f"FROM {of}" in sql else None)
    return found


class HeldUp:
    """The compute process takes one request at a time and is slow: what waits for it is counted."""

    def __init__(self, coordinator: Coordinator, kind: type[Any]) -> None:
        self.waiting = 0
        self.answered = 0
        self.may = asyncio.Event()
        self._ask, self._kind = coordinator.compute.call, kind
        coordinator.compute.call = self._call  # type: ignore[method-assign]

    async def _call(self, request: Any, **more: Any) -> Any:
        if not isinstance(request, self._kind):
            return await self._ask(request, **more)
        self.waiting += 1
        await self.may.wait()
        self.waiting -= 1
        self.answered += 1
        return await self._ask(request, **more)


async def hang_up(*calls: asyncio.Future[Any]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
