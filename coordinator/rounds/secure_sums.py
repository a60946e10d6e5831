"""The steps of a secure sum as phases of a round: whom each asks, what, and what its answers come to.

A phase of a method whose updates are added up behind masks becomes five phases: keys, shares, mask, confirm, unmask
(`semisilo.common.secure_aggregation.messages`). Only "mask" trains, and has the name of the method's phase. Each step
asks those who have answered the one before, and all of it lies in the ledger, so a coordinator that is killed anywhere
goes on with the same step.

Tests: tests/coordinator/rounds/test_secure_sums.py.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from semisilo.common.errors import BadSignature, SecureSumFailed
from semisilo.common.methods.contract import GroupLayout, Meaning, Phase, SumStep, TaskSpec, TensorSpec
from semisilo.common.methods.parts.privacy import PrivacySettings
from semisilo.common.methods.parts.secure_sum import threshold_of
from semisilo.common.secure_aggregation.context import told_alike
from semisilo.common.secure_aggregation.conversion import (
    MAX_ROSTER,
    SumQuestion,
    answer_from_proto,
    question_to_hex,
)
from semisilo.common.secure_aggregation.mask_form import (
    EXTRA_WORDS,
    MaskForm,
    SumOutcome,
    first_bounds,
    next_bounds,
    share_count,
)
from semisilo.common.secure_aggregation.messages import (
    MASKED_GROUP,
    NONCE_BYTES,
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
from semisilo.common.secure_aggregation.words import packed_bytes
from semisilo.common.wire import secure_aggregation_pb2 as pb
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import RoundRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.secure_sums.roster import roster_entries, roster_number
from semisilo.coordinator.ledger.secure_sums.sums import (
    SumRow,
    last_sum,
    note_form,
    note_outcome,
    open_sum,
    step_answers,
    sum_row,
)

__all__ = ["STEP_SECONDS", "Ready", "Sums", "masked_layout", "method_phase", "with_steps", "word_count"]

_LOG = logging.getLogger("semisilo.coordinator")

STEP_SECONDS: Mapping[SumStep, float] = {"keys": 60.0, "shares": 60.0, "confirm": 10.0, "unmask": 10.0}
"""How long a step waits beyond its quorum for silos that have not answered it: none of them trains. From step "shares"
on, a silo that is left out can be done without; one that misses the first two has no part in the round."""


def with_steps(phases: Iterable[Phase], *, masked: bool = True) -> tuple[Phase, ...]:
    """The phases of a round with the steps of a secure sum for each.

    Args:
        masked: False for step "mask" alone, without masks: in a simulation there is nobody to hide from, and the sum
            of the same integers is the same.
    """
    return tuple(
        replace(phase, name=phase.name if step == "mask" else f"{phase.name}-{step}", step=step)
        for phase in phases for step in (STEPS if masked else ("mask",)))


def method_phase(phase: Phase) -> Phase:
    """The phase as the strategy knows it, of any step."""
    name = phase.name if phase.step in ("", "mask") else phase.name.removesuffix(f"-{phase.step}")
    return replace(phase, name=name, step="")


def word_count(expects: Mapping[str, GroupLayout], *, random_k: float = 1.0) -> int:
    """Words of a masked update: of every element that is sent, and those behind them."""
    elements = sum(spec.num_elements for layout in expects.values() for spec in layout.tensors)
    return share_count(random_k, elements) + EXTRA_WORDS


def masked_layout(expects: Mapping[str, GroupLayout], form: MaskForm) -> dict[str, GroupLayout]:
    """What a masked update must hold, where an update in the clear would hold `expects`."""
    size = packed_bytes(word_count(expects, random_k=form.random_k), form.bits)
    return {MASKED_GROUP: GroupLayout(Meaning.VALUES, "", (TensorSpec("words", (size,), "uint8"),))}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sum:
    """One sum, as far as it is known to all."""

    row: SumRow
    total: SecureSum


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """Masked updates that can be added up, or never will be."""

    phase: int
    """Number of the step "mask" whose updates they are."""
    after: int
    """Number of the phase behind the sum."""
    form: MaskForm
    fewest: int
    """Of which a sum is made."""
    too_few: bool
    """Whether there are fewer; nothing is added up then."""


class Sums:
    """The secure sums of the study that runs. Holds nothing: all of it is in the ledger."""

    def __init__(self, ledger: Ledger, roster: LedgerRoster, *, federation: str, masked: bool = True) -> None:
        """`masked`: see `with_steps`."""
        self._ledger = ledger
        self._roster = roster
        self._federation = federation
        self._masked = masked

    def phases(self, settings: PrivacySettings, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        """The phases that a round really has."""
        return with_steps(phases, masked=self._masked) if settings.secure_aggregation else phases

    def asked(self, row: RoundRow, phase: Phase) -> list[str]:
        """Whom a step behind the first asks: who has answered the one before, and still is a member."""
        there = frozenset(self._roster.members())
        return [silo for silo in self._answered(row) if silo in there]

    def fewest(self, row: RoundRow, phase: Phase, settings: PrivacySettings, num_asked: int) -> int:
        """Answers that a step cannot do without."""
        if not phase.step:
            return 0
        if not self._masked:
            return settings.min_silos
        if phase.step == "keys":
            return threshold_of(settings.threshold, settings.min_silos, num_asked)
        return sum_row(self._ledger, row.study, row.number, method_phase(phase).name).threshold

    def open(self, row: RoundRow, phase: Phase, settings: PrivacySettings, asked: Sequence[str]) -> None:
        """To be called before the questions of a step are made; within the transaction that opens it, or before."""
        if phase.step == "keys" or (phase.step == "mask" and not self._masked):
            open_sum(self._ledger, study=row.study, round=row.number, phase=method_phase(phase).name,
                     nonce=secrets.token_bytes(NONCE_BYTES), roster_number=roster_number(self._ledger),
                     threshold=threshold_of(settings.threshold, settings.min_silos, len(asked)))

    def form(self, row: RoundRow, phase: Phase, settings: PrivacySettings, *, num_silos: int,
             largest_weights: Sequence[float], reference: int) -> MaskForm:
        """The scale of step "mask", from the last sum of that phase; noted in the ledger.

        Args:
            largest_weights: of each tensor of the update the largest magnitude in the model.
            reference: examples of the largest silo; 0 where all weigh the same.
        """
        name = method_phase(phase).name
        before = last_sum(self._ledger, row.study, row.number, name)
        bounds = first_bounds(largest_weights)
        if before is not None and before.form is not None and before.outcome is not None \
                and len(before.form.bounds) == len(bounds):
            bounds = next_bounds(before.form.bounds, before.outcome)
        form = MaskForm(bits=settings.word_bits, bounds=bounds, silo_count=num_silos, weight_reference=reference,
                        random_k=settings.random_share)
        note_form(self._ledger, sum_row(self._ledger, row.study, row.number, name), form)
        return form

    def questions(self, row: RoundRow, phase: Phase, asked: Collection[str], *,
                  form: MaskForm | None = None) -> dict[str, str]:
        """`TaskSpec.secure` of each silo that is asked in a step.

        Raises: SecureSumFailed where the answers so far are no use.
        """
        found = self._sum(row, phase)
        question = SumQuestion(step=phase.step, phase=found.row.phase, nonce=found.row.nonce,
                               threshold=found.row.threshold)
        if phase.step == "keys":
            roster = roster_entries(self._ledger, number=found.row.roster_number)
            if len(roster) > MAX_ROSTER:
                raise SecureSumFailed(f"the roster of silos has {len(roster)} entries, and {MAX_ROSTER} are possible")
            return dict.fromkeys(asked, question_to_hex(replace(question, roster=roster)))
        members = self._members(row, phase, found) if self._masked else ()
        question = replace(question, members=members)
        if phase.step == "shares":
            listed = {each.silo for each in members}
            return {silo: question_to_hex(question) for silo in asked if silo in listed}
        question = replace(question, form=form or found.row.form)
        if phase.step == "mask":
            if not self._masked:
                return dict.fromkeys(asked, question_to_hex(question))
            from semisilo.coordinator.secure_aggregation.sum import deliveries

            sealed = deliveries(self._shares(row, phase))
            return {silo: question_to_hex(replace(question, sealed=sealed[silo])) for silo in asked}
        survivors = self._survivors(row, phase)
        question = replace(question, survivors=survivors)
        if phase.step == "unmask":
            question = replace(question, confirmations=self._confirmations(row, phase, found, members, survivors))
            signed = {each.silo for each in question.confirmations}
            return {silo: question_to_hex(question) for silo in asked if silo in signed}
        return dict.fromkeys(asked, question_to_hex(question))

    def ready(self, row: RoundRow) -> Ready | None:
        """What is to be added up behind a step; None where another step comes first."""
        phase, number = row.phases[row.phase], row.phase
        if phase.step not in ("mask", "unmask"):
            return None
        last = number + (len(STEPS) - 1 - STEPS.index(phase.step) if self._masked else 0)
        mask = self._number(row, phase, "mask")
        accepted = len(self._ledger.accepted_updates(row.study, row.number, mask))
        found = sum_row(self._ledger, row.study, row.number, method_phase(phase).name)
        assert found.form is not None
        if accepted >= found.threshold and number < last:
            return None
        return Ready(phase=mask, after=last + 1, form=found.form, fewest=found.threshold,
                     too_few=accepted < found.threshold)

    def made(self, row: RoundRow, outcome: SumOutcome) -> None:
        """Notes what a sum has come to."""
        note_outcome(self._ledger, sum_row(self._ledger, row.study, row.number,
                                           method_phase(row.phases[row.phase]).name), outcome)

    def seeds(self, row: RoundRow) -> tuple[MaskSeed, ...]:
        """What is to be added to the sum of the words so that all masks vanish; of the last step of a sum.

        Raises: SecureSumFailed where too few right shares have come.
        """
        if not self._masked:
            return ()
        from semisilo.coordinator.secure_aggregation.sum import unmasking

        phase = row.phases[row.phase]
        found = self._sum(row, phase)
        members = self._members(row, phase, found)
        answers = {silo: answer for silo, answer in self._answers(row, phase, "unmask").items()
                   if isinstance(answer, UnmaskAnswer)}
        unmasked = unmasking(found.total, context=self._context(row, phase, found), members=members,
                             shares=self._shares(row, phase), survivors=self._survivors(row, phase), answers=answers)
        for silo in unmasked.wrong:
            _LOG.warning("round %d: %s has sent wrong shares; the sum is made without them", row.number, silo)
        return unmasked.seeds

    # What is known ----------------------------------------------------------------------------------------------------

    def _sum(self, row: RoundRow, phase: Phase) -> _Sum:
        found = sum_row(self._ledger, row.study, row.number, method_phase(phase).name)
        return _Sum(row=found, total=SecureSum(
            federation=self._federation, study=row.study, round=row.number, phase=found.phase, nonce=found.nonce,
            threshold=found.threshold))

    def _number(self, row: RoundRow, phase: Phase, step: SumStep) -> int:
        """Number of another step of the same sum."""
        return row.phases.index(phase) + STEPS.index(step) - STEPS.index(phase.step) if self._masked else row.phase

    def _answers(self, row: RoundRow, phase: Phase, step: SumStep) -> dict[str, object]:
        return {silo: answer_from_proto(pb.SecureAnswer.FromString(answer), step) for silo, answer in step_answers(
            self._ledger, row.study, row.number, self._number(row, phase, step)).items()}

    def _answered(self, row: RoundRow) -> list[str]:
        """Who has answered the step before the present one."""
        before = row.phase - 1
        if row.phases[before].step == "mask":
            return [task.silo for task, _ in self._ledger.accepted_updates(row.study, row.number, before)]
        return list(step_answers(self._ledger, row.study, row.number, before))

    def _members(self, row: RoundRow, phase: Phase, found: _Sum) -> tuple[Member, ...]:
        from semisilo.coordinator.secure_aggregation.sum import list_members

        keys = {silo: answer for silo, answer in self._answers(row, phase, "keys").items()
                if isinstance(answer, RoundKeys)}
        return list_members(found.total, keys, self._roster_of(found.row).present)

    def _roster_of(self, row: SumRow) -> Roster:
        """As it was when the sum was opened."""
        return roster_of(roster_entries(self._ledger, number=row.roster_number))

    def _shares(self, row: RoundRow, phase: Phase) -> dict[str, Shares]:
        return {silo: answer for silo, answer in self._answers(row, phase, "shares").items()
                if isinstance(answer, Shares)}

    def _survivors(self, row: RoundRow, phase: Phase) -> tuple[str, ...]:
        number = self._number(row, phase, "mask")
        return in_order([task.silo for task, _ in self._ledger.accepted_updates(row.study, row.number, number)])

    def _context(self, row: RoundRow, phase: Phase, found: _Sum) -> bytes:
        assert found.row.form is not None
        return told_alike(self._mask_task(row, phase), phase=found.row.phase, form=found.row.form,
                          roster=self._roster_of(found.row).head.digest())

    def _mask_task(self, row: RoundRow, phase: Phase) -> TaskSpec:
        return self._ledger.tasks(row.study, row.number, self._number(row, phase, "mask"))[0].spec

    def _confirmations(self, row: RoundRow, phase: Phase, found: _Sum, members: Sequence[Member],
                       survivors: tuple[str, ...]) -> tuple[Confirmation, ...]:
        """Signatures under the list that are right; whose is not, is named."""
        from semisilo.coordinator.secure_aggregation.sum import check_confirmation

        context, right = self._context(row, phase, found), []
        for silo, signature in self._answers(row, phase, "confirm").items():
            assert isinstance(signature, bytes)
            confirmation = Confirmation(silo=silo, signature=signature)
            try:
                check_confirmation(found.total, context=context, members=members, survivors=survivors,
                                   confirmation=confirmation)
            except BadSignature:
                _LOG.warning("round %d: the signature of %s under the list of survivors is wrong", row.number, silo)
                continue
            right.append(confirmation)
        if len(right) < found.row.threshold:
            raise SecureSumFailed(f"{len(right)} of {found.row.threshold} silos have signed the list of survivors.")
        return tuple(right)
