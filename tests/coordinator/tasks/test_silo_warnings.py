"""A copied identity and a memory that was lost are said to the silo, and named in the ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

from semisilo.common.methods.contract import TaskSpec
from semisilo.coordinator.ledger.oversight.notices import notices_of
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.tasks.task_service import Hello
from tests.coordinator.federation_in_memory import Coordinator, content_of, study_config
from tests.each_of import each_of

A, B = b"a", b"b"


class _Scene:
    """A coordinator, and silos that say what memory they have."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    async def ask(self, silo: str = "alpha", *, process: bytes = A, memory: tuple[str, int] = ("", 0),
                  seconds: float = 60.0) -> TaskSpec | None:
        hello = Hello(version="0", methods=("semifl",), labelled_count=0, unlabelled_count=10, process=process,
                      address="10.0.0.1" if process == A else "10.0.0.2", memory_study=memory[0],
                      memory_round=memory[1])
        answer = await self.coordinator.task_service.await_task(silo, hello, timeout_seconds=seconds)
        return answer if isinstance(answer, TaskSpec) else None

    async def round(self, memory: tuple[str, int]) -> int:
        """Both silos answer a round; which."""
        tasks = await asyncio.gather(self.ask(memory=memory), self.ask("beta", memory=memory))
        for task in tasks:
            assert task is not None
            await self.coordinator.deliver(task, content_of(task))
        assert tasks[0] is not None
        return tasks[0].round

    def warning(self, silo: str = "alpha") -> str:
        return self.coordinator.task_service.warnings.text(silo)

    def notices(self) -> list[tuple[str, str, int]]:
        return [(each.silo, str(each.kind), each.times)
                for each in notices_of(self.coordinator.ledger, "s", since_unix=0.0)]


def run(folder: Path, scenario: object) -> None:
    async def all_of_it() -> None:
        coordinator = Coordinator(folder)
        coordinator.ledger.query("PRAGMA synchronous = OFF")
        coordinator.enroll("alpha", "beta")
        config = study_config(quorum=2, round_timeout="1h", round_limit="2h")
        coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "rounds": 5}})
        engine = asyncio.ensure_future(coordinator.engine.run_next())
        try:
            await scenario(_Scene(coordinator))  # type: ignore[operator]
        finally:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            coordinator.close()
    asyncio.run(all_of_it())


def test_two_processes_with_one_identity_are_told_to_the_silo_and_named_once_an_hour(tmp_path: Path) -> None:
    async def scenario(scene: _Scene) -> None:
        await scene.round(("", 0))
        for _ in range(3):
            for process in (A, B):
                await scene.ask(process=process, memory=("s", 0), seconds=0)
        assert "silo 'alpha': its identity is in use twice: a process at 10.0.0.1 and one at 10.0.0.2 call in turn" in \
            scene.warning()
        assert "coordinator revoke alpha" in scene.warning()
        assert scene.warning("beta") == ""
        for _ in range(50):
            for process in (A, B):
                await scene.ask(process=process, memory=("s", 0), seconds=0)
        assert scene.notices() == [("alpha", "used_twice", 1)]
        events = scene.coordinator.ledger.query("SELECT 1 FROM event WHERE kind = 'silo_used_twice'")
        assert len(events) == 1
    run(tmp_path, scenario)


def test_a_silo_that_comes_back_without_its_memory_is_named_and_told_once(tmp_path: Path) -> None:
    async def scenario(scene: _Scene) -> None:
        await scene.round(("", 0))
        assert scene.notices() == [], "it has had none yet"
        await scene.round(("s", 1))
        for _ in range(3):
            await scene.ask(process=B)
        assert scene.warning().startswith("silo 'alpha', study s: its update of round 2 was folded, and it has come"
                                          " back without its memory of any study; it goes on")
        assert scene.notices() == [("alpha", "memory_lost", 1)]
        await scene.round(("s", 2))
        await scene.round(("s", 3))
        assert scene.warning() == ""
        assert scene.notices() == [("alpha", "memory_lost", 1)]
    run(tmp_path, scenario)


def test_a_memory_whose_files_are_gone_is_lost_and_that_of_a_method_without_any_is_not(tmp_path: Path) -> None:
    async def scenario(scene: _Scene) -> None:
        await scene.round(("", 0))
        await scene.round(("s", 0))
        assert scene.notices() == [], "the method keeps nothing"
        await scene.round(("s", 2))
        await asyncio.gather(scene.ask(memory=("s", 0)), scene.ask("beta", memory=("s", 3)))
        assert scene.notices() == [("alpha", "memory_lost", 1)]
        assert "without its memory;" in scene.warning()
    run(tmp_path, scenario)


@each_of("gone, notices", [(RoundState.COMPLETED, []), (RoundState.CANCELLED, [("alpha", "memory_lost", 1)])])
def test_only_going_back_over_a_committed_round_explains_a_memory_that_is_empty(
        tmp_path: Path, gone: RoundState, notices: list[tuple[str, str, int]]) -> None:
    async def scenario(scene: _Scene) -> None:
        await scene.round(("", 0))
        await scene.round(("s", 1))
        ledger = scene.coordinator.ledger
        with ledger.transaction() as db:
            db.execute("INSERT INTO rollback (study, to_round, unix, origin, operator, reason) VALUES ('s', 2, 0.0, '',"
                       " '', '')")
            db.execute("INSERT INTO past_round SELECT 1, study, number, ?, sample_json, opened_unix, closed_unix,"
                       " state_digest, metrics_json, reason FROM round WHERE number = 1", (gone,))
        await asyncio.gather(scene.ask(memory=("s", 0)), scene.ask("beta", memory=("s", 2)))
        assert scene.notices() == notices
    (tmp_path / gone).mkdir()
    run(tmp_path / gone, scenario)


def test_a_silo_that_does_not_name_its_process_is_not_judged(tmp_path: Path) -> None:
    async def scenario(scene: _Scene) -> None:
        await scene.round(("s", 1))
        await scene.ask(process=b"")
        assert (scene.warning(), scene.notices()) == ("", [])
    run(tmp_path, scenario)
