"""Secure sums in groups that each lose a silo: every group is too small then, though all silos together are enough."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.methods.contract import SumStep, TaskSpec
from semisilo.common.secure_aggregation.context import told_alike
from semisilo.common.secure_aggregation.conversion import SumQuestion, answer_to_proto, question_from_hex
from semisilo.common.secure_aggregation.keys import identity_of
from semisilo.common.secure_aggregation.messages import SecureSum, in_order
from semisilo.common.secure_aggregation.roster import roster_of
from semisilo.coordinator.ledger.secure_sums.roster import roster_entries
from semisilo.coordinator.ledger.states import ENDED_ROUND, RoundState, StudyState
from semisilo.coordinator.rounds.engine import Engine, EngineFolders
from semisilo.coordinator.rounds.masked_sums import MaskedSums
from semisilo.coordinator.secure_aggregation.groups import split
from semisilo.coordinator.tasks.task_service import Hello
from semisilo.silo.secure_aggregation.session import (
    SiloSession,
    begin,
    confirm,
    mask_seeds,
    one_vector,
    round_keys,
    share,
    unmask,
)
from semisilo.silo.secure_aggregation.trust import Trust
from tests.coordinator.federation_in_memory import Coordinator, NoAccounts
from tests.coordinator.rounds.test_engine import Clock, behind_masks
from tests.coordinator.rounds.test_sums_that_are_not_made import masked_update
from tests.processes import PATIENCE_SECONDS
from tests.secure_sums import identity_private

SILOS = ("a", "b", "c", "d", "e", "f")
IDENTITIES = {silo: identity_of(identity_private(silo)) for silo in SILOS}
LOST = tuple(group[0] for group in split(SILOS, size=3, seed=7))
"""One of each group of three, without which it is below its threshold."""


class Silos:
    """Honest ones, of which those in `LOST` no longer answer from a step of round 1 on."""

    def __init__(self, coordinator: Coordinator, lost_at: SumStep) -> None:
        self._coordinator = coordinator
        self._lost_at = lost_at
        self._sessions: dict[str, SiloSession] = {}

    async def answer(self) -> bool:
        """All tasks that are open; whether there was any that is answered."""
        answered = False
        for silo in SILOS:
            task = self._coordinator.ledger.open_task(silo, study="s")
            if task is None:
                continue
            question = question_from_hex(task.spec.secure)
            if task.round == 1 and silo in LOST and question.step == self._lost_at:
                continue
            await self._answer(task.spec, question)
            answered = True
        return answered

    async def _answer(self, task: TaskSpec, question: SumQuestion) -> None:
        silo, identity, answer = task.silo, identity_private(task.silo), None
        if question.step == "keys":
            self._sessions[silo] = begin(SecureSum(
                federation="fed", study="s", round=task.round, phase=question.phase, nonce=question.nonce,
                threshold=question.threshold), silo=silo)
            answer = round_keys(self._sessions[silo], identity)
        elif question.step == "shares":
            trust = Trust(silo=silo, identity=IDENTITIES[silo], pinned=IDENTITIES, min_silos=3)
            self._sessions[silo], answer = share(self._sessions[silo], question.members, trust)
        elif question.step == "mask":
            assert question.form is not None
            roster = roster_of(roster_entries(self._coordinator.ledger))
            session, _ = mask_seeds(self._sessions[silo], given=question.sealed, context=told_alike(
                task, phase=question.phase, form=question.form, roster=roster.head.digest()))
            self._sessions[silo] = one_vector(session, hashlib.sha256(silo.encode()).digest())
            await masked_update(self._coordinator, task, phase=2)
            return
        elif question.step == "confirm":
            self._sessions[silo], answer = confirm(self._sessions[silo], in_order(question.survivors), identity)
        else:
            self._sessions[silo], answer = unmask(self._sessions[silo], question.unmasking)
        self._coordinator.task_service.answer_step(silo, task.task_id, answer_to_proto(answer))


def in_groups(folder: Path, clock: Clock) -> Coordinator:
    """Two groups of three silos each, whose updates come behind masks."""
    coordinator = Coordinator(folder, clock=clock)
    coordinator.engine = Engine(
        ledger=coordinator.ledger, roster=coordinator.roster, runtime=coordinator.runtime, compute=coordinator.compute,
        payloads=coordinator.payloads, spool=coordinator.spool, accountant=NoAccounts(), clock=clock,
        hearing=coordinator.hearing, sums=MaskedSums(coordinator.ledger, coordinator.roster, federation="fed"),
        folders=EngineFolders(studies=folder / "studies", payloads=folder / "payloads"))
    coordinator.compute.num_labelled, coordinator.compute.tensors = 0, True
    original = coordinator.compute._tasks
    coordinator.compute._tasks = lambda request: replace(original(request), largest=(1.0,))  # type: ignore[method-assign]
    coordinator.enroll(*SILOS)
    config = behind_masks(quorum=3, round_timeout="10m", round_limit="1h")
    coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "start_with": 6},
                                         "privacy": {"secure_aggregation": True, "group_size": 3}})
    return coordinator


async def work(coordinator: Coordinator, clock: Clock, silos: Silos, done: Callable[[], bool]) -> None:
    """The study runs until something is so, or it is over; where nobody answers any more, time passes."""
    async def call() -> None:
        for silo in SILOS:
            hello = Hello(version="0", methods=("fedavg",), labelled_count=10, unlabelled_count=0,
                          identity=IDENTITIES[silo])
            await coordinator.task_service.await_task(silo, hello, timeout_seconds=0)
            coordinator.runtime.called[silo] = clock.now

    await call()
    engine = asyncio.ensure_future(coordinator.engine.run_next())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not engine.done() and not done():
            version = coordinator.ledger.data_version()
            if not await silos.answer() and coordinator.ledger.data_version() == version:
                clock.now += 61.0
                await call()
            coordinator.runtime.notify()
            await asyncio.sleep(0.001)
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)


NO_GROUP = "no group has 3 silos that {}, and a secure sum takes so many"


@pytest.mark.slow
@pytest.mark.parametrize(("step", "state", "reason"), [
    ("keys", RoundState.FAILED, NO_GROUP.format("have sent their keys")),
    ("shares", RoundState.FAILED, NO_GROUP.format("have shared their secrets")),
    ("mask", RoundState.COMPLETED, ""),
    ("confirm", RoundState.FAILED, NO_GROUP.format("have signed the list of survivors")),
    ("unmask", RoundState.FAILED, "2 shares of the self mask of 'a' have come back, and 3 are needed")])
def test_a_silo_less_in_each_group_costs_the_round_at_most(tmp_path: Path, step: SumStep, state: RoundState,
                                                           reason: str) -> None:
    """In step "shares" it failed the study, and did so again whenever that was queued."""
    clock = Clock()
    coordinator = in_groups(tmp_path, clock)
    ledger = coordinator.ledger

    def next_one_is_open() -> bool:
        last = ledger.last_round("s")
        return last is not None and last.number == 2 and last.state is RoundState.COLLECTING
    asyncio.run(work(coordinator, clock, Silos(coordinator, step), next_one_is_open))
    row = ledger.round("s", 1)
    assert row.state is state
    assert reason in row.reason
    assert ledger.study_state("s") is StudyState.RUNNING
    assert next_one_is_open()


def test_a_study_that_an_earlier_version_has_failed_for_it_goes_on_once_it_is_queued_again(tmp_path: Path) -> None:
    clock = Clock()
    coordinator = in_groups(tmp_path, clock)
    ledger, sums = coordinator.ledger, coordinator.engine._sums
    asked = sums.asked

    def as_before(row: object, phase: object) -> list[str]:
        raise ValueError("silo_count = 0")
    sums.asked = lambda row, phase: (as_before if phase.step == "mask" else asked)(row, phase)  # type: ignore[method-assign]
    silos = Silos(coordinator, "shares")
    asyncio.run(work(coordinator, clock, silos, lambda: False))
    assert ledger.study_state("s") is StudyState.FAILED
    assert ledger.round("s", 1).state not in ENDED_ROUND
    ledger.requeue_study("s", ledger.study("s").config)
    sums.asked = asked  # type: ignore[method-assign]
    asyncio.run(work(coordinator, clock, silos, lambda: ledger.round("s", 1).state in ENDED_ROUND))
    assert (ledger.study_state("s"), ledger.round("s", 1).state) == (StudyState.RUNNING, RoundState.FAILED)
