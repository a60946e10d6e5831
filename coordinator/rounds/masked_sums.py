"""Secure sums behind masks, as a coordinator with real silos makes them. Needs cryptography; a simulation has none.

Tests: tests/coordinator/rounds/test_secure_sums.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from semisilo.common.errors import BadSignature, SecureSumFailed
from semisilo.common.methods.contract import Phase, SumStep
from semisilo.common.secure_aggregation.context import told_alike
from semisilo.common.secure_aggregation.conversion import MAX_ROSTER, answer_from_proto, question_to_hex
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.messages import (
    STEPS,
    Confirmation,
    MaskSeed,
    Member,
    RoundKeys,
    SecureSum,
    Shares,
    UnmaskAnswer,
    in_order,
)
from semisilo.common.secure_aggregation.roster import Roster, roster_of
from semisilo.common.wire import secure_aggregation_pb2 as pb
from semisilo.coordinator.ledger.records import RoundRow
from semisilo.coordinator.ledger.secure_sums.roster import roster_entries
from semisilo.coordinator.ledger.secure_sums.sums import step_answers
from semisilo.coordinator.rounds.secure_sums import Sums
from semisilo.coordinator.secure_aggregation.sum import check_confirmation, deliveries, list_members, unmasking

__all__ = ["MaskedSums"]

_LOG = logging.getLogger("semisilo.coordinator")


class MaskedSums(Sums):
    """The sums of the study that runs, behind masks."""

    steps = STEPS

    def questions(self, row: RoundRow, phase: Phase, asked: Collection[str], *,
                  form: MaskForm | None = None) -> dict[str, str]:
        """See `Sums.questions`."""
        question = self._question(row, phase)
        if phase.step == "keys":
            roster = roster_entries(self._ledger, number=self._row(row, phase).roster_number)
            if len(roster) > MAX_ROSTER:
                raise SecureSumFailed(f"the roster of silos has {len(roster)} entries, and {MAX_ROSTER} are possible")
            return dict.fromkeys(asked, question_to_hex(replace(question, roster=roster)))
        question = replace(question, members=self._members(row, phase))
        if phase.step == "shares":
            listed = {each.silo for each in question.members}
            return {silo: question_to_hex(question) for silo in asked if silo in listed}
        question = replace(question, form=form or self._row(row, phase).form)
        if phase.step == "mask":
            sealed = deliveries(self._shares(row, phase))
            return {silo: question_to_hex(replace(question, sealed=sealed[silo])) for silo in asked}
        question = replace(question, survivors=self._survivors(row, phase))
        if phase.step == "unmask":
            question = replace(question, confirmations=self._confirmations(row, phase, question.members))
            signed = {each.silo for each in question.confirmations}
            return {silo: question_to_hex(question) for silo in asked if silo in signed}
        return dict.fromkeys(asked, question_to_hex(question))

    def seeds(self, row: RoundRow) -> tuple[MaskSeed, ...]:
        """See `Sums.seeds`."""
        phase = row.phases[row.phase]
        answers = {silo: answer for silo, answer in self._answers(row, phase, "unmask").items()
                   if isinstance(answer, UnmaskAnswer)}
        unmasked = unmasking(
            self._total(row, phase), context=self._context(row, phase), members=self._members(row, phase),
            shares=self._shares(row, phase), survivors=self._survivors(row, phase), answers=answers)
        for silo in unmasked.wrong:
            _LOG.warning("%s, round %d: %s has sent wrong shares; the sum is made without them", row.study, row.number,
                         silo)
        return unmasked.seeds

    # What is known ----------------------------------------------------------------------------------------------------

    def _total(self, row: RoundRow, phase: Phase) -> SecureSum:
        found = self._row(row, phase)
        return SecureSum(federation=self._federation, study=row.study, round=row.number, phase=found.phase,
                         nonce=found.nonce, threshold=found.threshold)

    def _answers(self, row: RoundRow, phase: Phase, step: SumStep) -> dict[str, object]:
        return {silo: answer_from_proto(pb.SecureAnswer.FromString(answer), step) for silo, answer in step_answers(
            self._ledger, row.study, row.number, self._number(row, phase, step)).items()}

    def _members(self, row: RoundRow, phase: Phase) -> tuple[Member, ...]:
        keys = {silo: answer for silo, answer in self._answers(row, phase, "keys").items()
                if isinstance(answer, RoundKeys)}
        return list_members(self._total(row, phase), keys, self._roster_of(row, phase).present)

    def _roster_of(self, row: RoundRow, phase: Phase) -> Roster:
        """As it was when the sum was opened."""
        return roster_of(roster_entries(self._ledger, number=self._row(row, phase).roster_number))

    def _shares(self, row: RoundRow, phase: Phase) -> dict[str, Shares]:
        return {silo: answer for silo, answer in self._answers(row, phase, "shares").items()
                if isinstance(answer, Shares)}

    def _survivors(self, row: RoundRow, phase: Phase) -> tuple[str, ...]:
        number = self._number(row, phase, "mask")
        return in_order([task.silo for task, _ in self._ledger.accepted_updates(row.study, row.number, number)])

    def _context(self, row: RoundRow, phase: Phase) -> bytes:
        found = self._row(row, phase)
        assert found.form is not None
        task = self._ledger.tasks(row.study, row.number, self._number(row, phase, "mask"))[0].spec
        return told_alike(task, phase=found.phase, form=found.form,
                          roster=self._roster_of(row, phase).head.digest())

    def _confirmations(self, row: RoundRow, phase: Phase, members: Sequence[Member]) -> tuple[Confirmation, ...]:
        """Signatures under the list that are right; whose is not, is named."""
        total, context = self._total(row, phase), self._context(row, phase)
        survivors, right = self._survivors(row, phase), []
        for silo, signature in self._answers(row, phase, "confirm").items():
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
