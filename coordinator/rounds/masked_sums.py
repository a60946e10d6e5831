"""Secure sums behind masks, as a coordinator with real silos makes them. Needs cryptography; a simulation has none.

Tests: tests/coordinator/rounds/test_secure_sums.py.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from semisilo.common.errors import BadSignature, SecureSumFailed
from semisilo.common.methods.contract import Phase, SumStep
from semisilo.common.secure_aggregation.context import told_alike
from semisilo.common.secure_aggregation.conversion import SumQuestion, answer_from_proto, question_to_hex
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.messages import (
    STEPS,
    Confirmation,
    Member,
    RoundKeys,
    SecureSum,
    Shares,
    UnmaskAnswer,
    in_order,
)
from semisilo.common.secure_aggregation.roster import MAX_ROSTER, Roster, roster_of
from semisilo.common.text.describe import counted
from semisilo.common.wire import secure_aggregation_pb2 as pb
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.records import RoundRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.secure_sums.complaints import add_complaints, complaints, forget_complaints
from semisilo.coordinator.ledger.secure_sums.roster import roster_entries
from semisilo.coordinator.ledger.secure_sums.sums import step_answers
from semisilo.coordinator.rounds.secure_sums import Ready, Sums
from semisilo.coordinator.secure_aggregation.complaints import at_odds
from semisilo.coordinator.secure_aggregation.groups import MaskedGroup
from semisilo.coordinator.secure_aggregation.sum import check_confirmation, deliveries, list_members, unmasking

__all__ = ["MaskedSums"]

T = TypeVar("T")
_LOG = logging.getLogger("semisilo.coordinator")


class MaskedSums(Sums):
    """The sums of the study that runs, behind masks."""

    steps = STEPS

    def __init__(self, ledger: Ledger, roster: LedgerRoster, *, federation: str) -> None:
        super().__init__(ledger, roster)
        self._federation = federation
        self._replayed: tuple[int, Roster] = 0, Roster()
        """The roster up to an entry, as it was checked last: every group of a sum asks for it."""

    def heed_complaints(self, study: str, *, round: int) -> None:
        """See `Sums.heed_complaints`. A silo could fail every round otherwise, and the coordinator cannot look into
        what it seals for others."""
        heard = complaints(self._ledger, study)
        if not heard:
            return
        members, found = frozenset(self._roster.members()), at_odds(heard)
        # One kill, and the complaints would be heeded again after an operator has taken the silo back.
        with self._ledger.acting("coordinator"), self._ledger.transaction():
            for silo, others in found.items():
                if silo in members:
                    text = (f"{', '.join(others)} could not use what it had sent for secure sums, or it what they had:"
                            " it is set aside")
                    _LOG.warning("%s, round %d: %s: %s. To ask it again: coordinator take-back %s", study, round, silo,
                                 text, silo)
                    add_notice(self._ledger, NoticeKind.AT_ODDS, study=study, round=round, silo=silo, text=text)
                    self._roster.set_aside(silo, reason=f"{counted(len(others), 'silo')} could not use what it had sent"
                                                        f" for secure sums of {study}")  # it reads that: no names
            forget_complaints(self._ledger, study)

    def questions(self, row: RoundRow, phase: Phase, asked: Collection[str], *,
                  form: MaskForm | None = None) -> dict[str, str]:
        """See `Sums.questions`."""
        question = self._question(row, phase)
        if phase.step == "keys":
            roster = roster_entries(self._ledger, number=self._row(row, phase).roster_number)
            if len(roster) > MAX_ROSTER:
                raise SecureSumFailed(f"the roster of silos has {len(roster)} entries, and {MAX_ROSTER} are possible")
            return dict.fromkeys(asked, question_to_hex(replace(question, roster=roster)))
        if phase.step != "shares":
            question = replace(question, form=form or self._row(row, phase).form)
        each = self._of_each(row, self._alive(row, phase, row.phase - 1),
                             lambda group: self._asked_of(row, phase, group, question))
        return {silo: text for found in each for silo, text in found.items() if silo in asked}

    async def unmasked(self, row: RoundRow, ready: Ready) -> tuple[MaskedGroup, ...]:
        """See `Sums.unmasked`. Secrets are put together in a thread: with many silos that takes long, longer where some
        lie, and meanwhile calls are answered."""
        if not ready.groups:
            return ()
        wrong: list[tuple[str, str]] = []
        work = {group: self._unmasking(row, group, wrong)
                for group in self._alive(row, row.phases[row.phase], ready.phase)}
        try:
            return tuple(await asyncio.to_thread(self._of_each, row, work, lambda group: work[group]()))
        finally:
            if wrong:  # without any the ledger has nothing to wait for
                add_complaints(self._ledger, row.study, row.number, wrong)

    def _of_each(self, row: RoundRow, groups: Iterable[tuple[str, ...]],
                 make: Callable[[tuple[str, ...]], T]) -> list[T]:
        """What is made of each group. One that fails does so by itself.

        Raises: SecureSumFailed where all do.
        """
        made: list[T] = []
        failed: SecureSumFailed | None = None
        for group in groups:
            try:
                made.append(make(group))
            except SecureSumFailed as error:
                _LOG.warning("%s, round %d: nothing of %s is added up: %s", row.study, row.number, ", ".join(group),
                             error.text)
                failed = error
        if not made and failed is not None:
            raise failed
        return made

    def _asked_of(self, row: RoundRow, phase: Phase, group: tuple[str, ...], question: SumQuestion) -> dict[str, str]:
        """What the silos of one group are asked behind the first step.

        Raises: SecureSumFailed where the answers so far are no use.
        """
        question = replace(question, members=self._members(row, phase, group))
        if phase.step == "shares":
            listed = {each.silo for each in question.members}
            for silo in (each for each in group if each not in listed and each in self._answers(row, phase, "keys")):
                _LOG.warning("%s, round %d: %s has no part in the sum: its keys are not signed by the identity that it"
                             " takes part with, are none, or are those of another silo", row.study, row.number, silo)
            return dict.fromkeys((each.silo for each in question.members), question_to_hex(question))
        shares = self._shares(row, phase, group)
        if phase.step == "mask":
            return {silo: question_to_hex(replace(question, sealed=sealed))
                    for silo, sealed in deliveries(shares).items()}
        question = replace(question, survivors=self._survivors(row, phase, group))
        if phase.step == "confirm":
            return dict.fromkeys(question.survivors, question_to_hex(question))
        question = replace(question, confirmations=self._confirmations(row, phase, group, question.members))
        return dict.fromkeys((each.silo for each in question.confirmations), question_to_hex(question))

    def _unmasking(self, row: RoundRow, group: tuple[str, ...],
                   wrong: list[tuple[str, str]]) -> Callable[[], MaskedGroup]:
        """What finds out how the masks leave the sum of one group; it looks into the ledger no more, and raises
        SecureSumFailed where too few right shares have come.

        Args:
            wrong: gets (silo, another), of whose secret it has sent no right share.
        """
        phase = row.phases[row.phase]
        survivors = self._survivors(row, phase, group)
        answers = {silo: answer for silo, answer in self._answers(row, phase, "unmask").items()
                   if isinstance(answer, UnmaskAnswer) and silo in group}
        work = functools.partial(
            unmasking, self._total(row, phase), context=self._context(row, phase),
            members=self._members(row, phase, group), shares=self._shares(row, phase, group), survivors=survivors,
            answers=answers)

        def unmasked() -> MaskedGroup:
            try:
                found = work()
            except SecureSumFailed as error:
                wrong.extend((silo, error.against) for silo in answers if error.against not in ("", silo))
                raise
            for silo, owners in found.wrong.items():
                wrong.extend((silo, owner) for owner in owners)
                _LOG.warning("%s, round %d: the sum is made without what %s has sent as shares of secrets of %s: either"
                             " it has changed them, or was given wrong ones to keep", row.study, row.number, silo,
                             ", ".join(owners))
            return MaskedGroup(silos=survivors, seeds=found.seeds)

        return unmasked

    # What is known ----------------------------------------------------------------------------------------------------

    def _total(self, row: RoundRow, phase: Phase) -> SecureSum:
        found = self._row(row, phase)
        return SecureSum(federation=self._federation, study=row.study, round=row.number, phase=found.phase,
                         nonce=found.nonce, threshold=found.threshold)

    def _answers(self, row: RoundRow, phase: Phase, step: SumStep) -> dict[str, object]:
        return {silo: answer_from_proto(pb.SecureAnswer.FromString(answer), step) for silo, answer in step_answers(
            self._ledger, row.study, row.number, self._number(row, phase, step)).items()}

    def _members(self, row: RoundRow, phase: Phase, group: Collection[str]) -> tuple[Member, ...]:
        keys = {silo: answer for silo, answer in self._answers(row, phase, "keys").items()
                if isinstance(answer, RoundKeys) and silo in group}
        return list_members(self._total(row, phase), keys, self._roster_of(row, phase).present)

    def _roster_of(self, row: RoundRow, phase: Phase) -> Roster:
        """As it was when the sum was opened."""
        number = self._row(row, phase).roster_number
        if self._replayed[0] != number:
            self._replayed = number, roster_of(roster_entries(self._ledger, number=number))
        return self._replayed[1]

    def _shares(self, row: RoundRow, phase: Phase, group: Collection[str]) -> dict[str, Shares]:
        return {silo: answer for silo, answer in self._answers(row, phase, "shares").items()
                if isinstance(answer, Shares) and silo in group}

    def _survivors(self, row: RoundRow, phase: Phase, group: Collection[str]) -> tuple[str, ...]:
        number = self._number(row, phase, "mask")
        return in_order([task.silo for task, _ in self._ledger.accepted_updates(row.study, row.number, number)
                         if task.silo in group])

    def _context(self, row: RoundRow, phase: Phase) -> bytes:
        found = self._row(row, phase)
        assert found.form is not None
        task = self._ledger.tasks(row.study, row.number, self._number(row, phase, "mask"))[0].spec
        return told_alike(task, phase=found.phase, form=found.form,
                          roster=self._roster_of(row, phase).head.digest())

    def _confirmations(self, row: RoundRow, phase: Phase, group: Collection[str],
                       members: Sequence[Member]) -> tuple[Confirmation, ...]:
        """Signatures under the list that are right; whose is not, is named."""
        total, context = self._total(row, phase), self._context(row, phase)
        survivors, right = self._survivors(row, phase, group), []
        for silo, signature in self._answers(row, phase, "confirm").items():
            if silo not in group:
                continue
            assert isinstance(signature, bytes)
            confirmation = Confirmation(silo=silo, signature=signature)
            try:
                check_confirmation(total, context=context, members=members, survivors=survivors,
                                   confirmation=confirmation)
            except BadSignature:
                _LOG.warning("%s, round %d: the signature of %s under the list of survivors is wrong", row.study,
                             row.number, silo)
                continue
            right.append(confirmation)
        if len(right) < total.threshold:
            raise SecureSumFailed(f"{len(right)} of {total.threshold} silos have signed the list of survivors.")
        return tuple(right)
