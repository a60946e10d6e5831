"""Members of a secure sum that do not do as they are asked: what that comes to at the coordinator, where the silos' own
code answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadPayload, SecureSumRefused
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.secure_aggregation.conversion import StepAnswer, answer_to_proto, question_from_hex
from semisilo.common.secure_aggregation.messages import RoundKeys, Shares, UnmaskAnswer
from semisilo.coordinator.ledger.oversight.notices import notices_of
from semisilo.coordinator.ledger.secure_sums.complaints import complaints
from semisilo.coordinator.ledger.secure_sums.roster import note_identity
from semisilo.coordinator.ledger.states import ENDED_ROUND, RoundState, TaskState
from semisilo.coordinator.rounds import masked_sums
from semisilo.coordinator.rounds.masked_sums import MaskedSums
from semisilo.coordinator.secure_aggregation.sum import Unmasked, unmasking
from semisilo.silo.agent.secure_steps import SecureSteps
from semisilo.silo.secure_aggregation.store import SecureStore
from semisilo.silo.site.policy import Permit, Policy
from tests.coordinator.federation_in_memory import Coordinator
from tests.coordinator.rounds.test_engine import behind_masks, until
from tests.coordinator.rounds.test_sampling import call
from tests.coordinator.rounds.test_silent_silos import scenario
from tests.coordinator.rounds.test_sums_that_are_not_made import masked_update

SILOS = ("alpha", "beta", "delta", "epsilon", "gamma")
Lie = Callable[[StepAnswer], StepAnswer]


@dataclass
class Sites:
    """All silos of a study, and what some of them answer instead."""

    coordinator: Coordinator
    steps: dict[str, SecureSteps]
    lies: Mapping[tuple[str, str], Lie]
    """(silo, step) -> what it makes of its answer."""
    rounds: int

    async def work(self) -> None:
        """All rounds."""
        ledger = self.coordinator.ledger
        await call(self.coordinator, *SILOS)

        def done() -> bool:
            row = ledger.last_round("s")
            return row is not None and row.number == self.rounds and row.state in ENDED_ROUND

        while not done():
            await until(self.coordinator, lambda: done() or any(ledger.open_task(each, study="s") for each in SILOS))
            for silo in SILOS:
                await self._answer(silo)

    async def _answer(self, silo: str) -> None:
        row = self.coordinator.ledger.open_task(silo, study="s")
        if row is None:
            return
        task, service = row.spec, self.coordinator.task_service
        question = question_from_hex(task.secure)
        try:
            if question.step == "mask":
                self.steps[silo].masking(task, question)
                await masked_update(self.coordinator, task, phase=row.phase)
                return
            answer = self.steps[silo].answer(task, question)
        except SecureSumRefused as error:
            service.refuse(silo, task.task_id, error.code, error.text, against=error.against)
            return
        answer = self.lies.get((silo, question.step), lambda each: each)(answer)
        with contextlib.suppress(BadPayload):
            service.answer_step(silo, task.task_id, answer_to_proto(answer))


def sites(folder: Path, lies: Mapping[tuple[str, str], Lie], *, rounds: int = 1,
          known: Mapping[str, bytes] | None = None) -> Sites:
    """
    Args:
        known: keys that each silo has seen before of others.
    """
    coordinator = Coordinator(folder)
    coordinator.compute.num_labelled, coordinator.compute.tensors = 0, True
    coordinator.engine._sums = MaskedSums(coordinator.ledger, coordinator.roster, federation="f")
    coordinator.enroll(*SILOS)
    steps = {}
    for silo in SILOS:
        store = SecureStore(folder / silo)
        note_identity(coordinator.ledger, silo, store.identity(), now_unix=1.0)
        store.know({other: key for other, key in (known or {}).items() if other != silo})
        steps[silo] = SecureSteps(store, federation="f", silo=silo, policy=Policy(permit=Permit(methods=("fedavg",))))
    config = behind_masks()
    coordinator.ledger.queue_study("s", {**config, "study": {**config["study"], "start_with": 5, "rounds": rounds},
                                         "privacy": {"secure_aggregation": True, "threshold": 3}})
    return Sites(coordinator, steps, lies, rounds)


def states(found: Sites, phase: int, *, round: int = 1) -> dict[str, TaskState]:
    return dict(found.coordinator.ledger.task_states("s", round, phase))


def closed_for(*silos: str) -> Lie:
    """Shares that these cannot open."""
    def closed(answer: StepAnswer) -> StepAnswer:
        assert isinstance(answer, Shares)
        return replace(answer, sealed=tuple(
            replace(each, sealed=bytes(len(each.sealed))) if each.silo in silos else each for each in answer.sealed))
    return closed


def test_with_silos_that_do_as_they_are_asked_a_sum_is_made(tmp_path: Path) -> None:
    found = sites(tmp_path, {})

    async def work() -> None:
        await found.work()
        assert found.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED
        assert set(states(found, 4).values()) == {TaskState.ANSWERED}
    scenario(found.coordinator, work)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 2])
def test_who_seals_no_share_for_some_has_no_part_and_the_others_go_on(tmp_path: Path, kept: int) -> None:
    """Its update was taken; then the others would not sign the list with it on, and the round failed by their
    refusals, which did not name it."""
    def keeps_some(answer: StepAnswer) -> StepAnswer:
        assert isinstance(answer, Shares)
        return replace(answer, sealed=answer.sealed[:kept])

    found = sites(tmp_path, {("beta", "shares"): keeps_some})

    async def work() -> None:
        await found.work()
        others = set(SILOS) - {"beta"}
        assert found.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED
        assert states(found, 4) == dict.fromkeys(others, TaskState.ANSWERED)
        assert states(found, 1) == {**dict.fromkeys(others, TaskState.ANSWERED), "beta": TaskState.REFUSED}
    scenario(found.coordinator, work)


@pytest.mark.slow
@pytest.mark.parametrize("size", [147, 149])
def test_shares_of_a_size_that_nobody_opens_are_not_passed_on(tmp_path: Path, size: int) -> None:
    """All who were given them refused to mask, in turn."""
    def sized(answer: StepAnswer) -> StepAnswer:
        assert isinstance(answer, Shares)
        return replace(answer, sealed=tuple(replace(each, sealed=bytes(size)) for each in answer.sealed))

    found = sites(tmp_path, {("beta", "shares"): sized})

    async def work() -> None:
        await found.work()
        assert found.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED
        assert set(states(found, 2)) == set(SILOS) - {"beta"}
    scenario(found.coordinator, work)


def test_whose_keys_are_not_its_own_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was left out of every sum, and nothing said so."""
    def of_nobody(answer: StepAnswer) -> StepAnswer:
        assert isinstance(answer, RoundKeys)
        return replace(answer, mask_key=bytes(32))

    found = sites(tmp_path, {("beta", "keys"): of_nobody})

    async def work() -> None:
        with caplog.at_level(logging.WARNING, "semisilo.coordinator"):
            await found.work()
        assert found.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED
        assert set(states(found, 1)) == set(SILOS) - {"beta"}
        assert [line for line in caplog.messages if "beta has no part in the sum" in line]
    scenario(found.coordinator, work)


def test_whose_share_is_wrong_may_be_its_keeper_or_its_owner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who was given a wrong share to keep was said to have sent it, alone."""
    def bends_one(answer: StepAnswer) -> StepAnswer:
        assert isinstance(answer, UnmaskAnswer)
        return replace(answer, self_shares=tuple(
            (silo, value[:-1] + bytes([value[-1] ^ 1]) if silo == "gamma" else value)
            for silo, value in answer.self_shares))

    found = sites(tmp_path, {("beta", "unmask"): bends_one})

    async def work() -> None:
        with caplog.at_level(logging.WARNING, "semisilo.coordinator"):
            await found.work()
        assert found.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED
        assert "s, round 1: the sum is made without what beta has sent as shares of secrets of gamma: either it has" \
               " changed them, or was given wrong ones to keep" in caplog.messages
    scenario(found.coordinator, work)


def test_while_masks_are_taken_off_calls_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of a large sum in which somebody lies kept the coordinator from everything else for seconds."""
    found, passed = sites(tmp_path, {}), list[bool]()

    async def work() -> None:
        loop, turned = asyncio.get_running_loop(), list[float]()

        def slow(*args: Any, **named: Any) -> Unmasked:
            loop.call_soon_threadsafe(lambda: turned.append(time.monotonic()))
            end = time.monotonic() + 10.0
            while not turned and time.monotonic() < end:
                time.sleep(0.01)
            passed.append(bool(turned))
            return unmasking(*args, **named)

        monkeypatch.setattr(masked_sums, "unmasking", slow)
        await found.work()
        assert found.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED
        assert passed == [True]
    scenario(found.coordinator, work)


def test_who_signs_another_list_is_named_and_its_update_is_in_the_sum(tmp_path: Path,
                                                                      caplog: pytest.LogCaptureFixture) -> None:
    """With its signature passed on, all others would refuse to unmask."""
    found = sites(tmp_path, {("beta", "confirm"): lambda answer: bytes(64)})

    async def work() -> None:
        with caplog.at_level(logging.WARNING, "semisilo.coordinator"):
            await found.work()
        assert found.coordinator.ledger.round("s", 1).state is RoundState.COMPLETED
        assert set(states(found, 2)) == set(SILOS)
        assert set(states(found, 4)) == set(SILOS) - {"beta"}
        assert "s, round 1: the signature of beta under the list of survivors is wrong" in caplog.messages
    scenario(found.coordinator, work)


def test_shares_that_do_not_open_fail_the_round_and_the_refusals_say_whose_they_are(tmp_path: Path) -> None:
    """The coordinator cannot look into them."""
    found = sites(tmp_path, {("beta", "shares"): closed_for(*SILOS)})

    async def work() -> None:
        await found.work()
        ledger = found.coordinator.ledger
        assert ledger.round("s", 1).state is RoundState.FAILED
        assert states(found, 2) == {**dict.fromkeys(SILOS, TaskState.REFUSED), "beta": TaskState.UPDATED}
        reasons = [row["reason"] for row in ledger.query("SELECT reason FROM task WHERE state = 'refused'")]
        assert len(reasons) == 4
        assert all(reason.endswith("the shares of 'beta' cannot be opened.") for reason in reasons)
    scenario(found.coordinator, work)


def test_whose_shares_do_not_open_is_set_aside_and_the_next_round_goes_on_without_it(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It failed every round, until an operator had read the refusals."""
    found = sites(tmp_path, {("beta", "shares"): closed_for(*SILOS)}, rounds=2)
    ledger = found.coordinator.ledger

    async def work() -> None:
        with caplog.at_level(logging.WARNING, "semisilo.coordinator"):
            await found.work()
        assert [ledger.round("s", number).state for number in (1, 2)] == [RoundState.FAILED, RoundState.COMPLETED]
        assert set(states(found, 0, round=2)) == set(SILOS) - {"beta"}
        reason = "4 silos could not use what it had sent for secure sums of s"
        assert found.coordinator.roster.aside() == {"beta": reason}
        assert [notice.line for notice in notices_of(ledger, "s")] == [
            "beta, round 1: alpha, delta, epsilon, gamma could not use what it had sent for secure sums, or it what"
            " they had: it is set aside"]
        assert [line for line in caplog.messages if line.endswith("To ask it again: coordinator take-back beta")]
        assert complaints(ledger, "s") == ()
    scenario(found.coordinator, work)


def test_who_has_another_key_than_the_others_have_seen_is_set_aside_and_the_next_round_goes_on_without_it(
        tmp_path: Path) -> None:
    """As after a machine that was lost with its home. All others refused every sum, and the study stood still until an
    engineer at each of them had acted."""
    found = sites(tmp_path, {}, rounds=2, known={"beta": b"\7" * 32})
    ledger = found.coordinator.ledger

    async def work() -> None:
        await found.work()
        assert [ledger.round("s", number).state for number in (1, 2)] == [RoundState.FAILED, RoundState.COMPLETED]
        assert states(found, 1) == {**dict.fromkeys(SILOS, TaskState.REFUSED), "beta": TaskState.ANSWERED}
        assert set(states(found, 0, round=2)) == set(SILOS) - {"beta"}
        assert found.coordinator.roster.aside().keys() == {"beta"}
    scenario(found.coordinator, work)


@pytest.mark.slow
def test_whose_shares_two_cannot_open_is_set_aside_though_the_sum_was_made(tmp_path: Path) -> None:
    """It chose whose updates were never added up."""
    found = sites(tmp_path, {("beta", "shares"): closed_for("alpha", "gamma")}, rounds=2)

    async def work() -> None:
        await found.work()
        ledger = found.coordinator.ledger
        assert [ledger.round("s", number).state for number in (1, 2)] == [RoundState.COMPLETED] * 2
        assert states(found, 2) == {**dict.fromkeys(SILOS, TaskState.UPDATED), "alpha": TaskState.REFUSED,
                                    "gamma": TaskState.REFUSED}
        assert states(found, 2, round=2) == dict.fromkeys(set(SILOS) - {"beta"}, TaskState.UPDATED)
    scenario(found.coordinator, work)


def test_of_two_that_complain_of_each_other_none_is_set_aside(tmp_path: Path) -> None:
    found = sites(tmp_path, {("beta", "shares"): closed_for("alpha")}, rounds=2)

    async def work() -> None:
        await found.work()
        assert states(found, 2)["alpha"] is TaskState.REFUSED
        assert set(states(found, 0, round=2)) == set(SILOS)
        assert found.coordinator.roster.aside() == {}
    scenario(found.coordinator, work)


@pytest.mark.slow
@pytest.mark.parametrize(("liar", "step", "failed"), [("beta", "unmask", False), ("beta", "shares", True)])
def test_who_sends_or_deals_wrong_shares_is_set_aside(tmp_path: Path, liar: str, step: str, failed: bool) -> None:
    """Shares of its own secret that do not fit fail the sum; those of others that it has changed do not."""
    def changed(answer: StepAnswer) -> StepAnswer:
        if isinstance(answer, Shares):
            return replace(answer, commitment=bytes(len(answer.commitment)))
        assert isinstance(answer, UnmaskAnswer)
        return replace(answer, self_shares=tuple((silo, bytes([value[0] ^ 1]) + value[1:]) if silo != liar
                                                 else (silo, value) for silo, value in answer.self_shares))

    found = sites(tmp_path, {(liar, step): changed}, rounds=2)

    async def work() -> None:
        await found.work()
        first, second = (found.coordinator.ledger.round("s", number).state for number in (1, 2))
        assert (first, second) == (RoundState.FAILED if failed else RoundState.COMPLETED, RoundState.COMPLETED)
        assert set(found.coordinator.roster.aside()) == {liar}
        assert set(states(found, 0, round=2)) == set(SILOS) - {liar}
    scenario(found.coordinator, work)


@pytest.mark.slow
def test_an_operator_who_takes_it_back_is_not_overruled(tmp_path: Path) -> None:
    found = sites(tmp_path, {("beta", "shares"): closed_for("alpha", "gamma")}, rounds=2)

    async def work() -> None:
        await found.work()
        coordinator = found.coordinator
        coordinator.roster.take_back("beta")
        coordinator.engine._sums.heed_complaints("s", round=2)
        assert coordinator.roster.aside() == {}
    scenario(found.coordinator, work)


@pytest.mark.parametrize("against", ["alpha", "nobody", "delta\n", ""])
def test_a_complaint_names_another_member_of_the_sum(tmp_path: Path, against: str) -> None:
    found = sites(tmp_path, {})

    async def work() -> None:
        await call(found.coordinator, *SILOS)
        ledger, service = found.coordinator.ledger, found.coordinator.task_service

        def asked(step: str) -> TaskSpec | None:
            row = ledger.open_task("alpha", study="s")
            return row.spec if row is not None and question_from_hex(row.spec.secure).step == step else None

        await until(found.coordinator, lambda: asked("keys") is not None)
        for silo in SILOS:
            await found._answer(silo)
        await until(found.coordinator, lambda: asked("shares") is not None)
        task = asked("shares")
        assert task is not None
        service.refuse("alpha", task.task_id, "SECURE_SUM_REFUSED", "no", against=against)
        assert complaints(ledger, "s") == ()
    scenario(found.coordinator, work)
