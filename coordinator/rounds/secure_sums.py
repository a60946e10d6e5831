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

from semisilo.common.methods.contract import GroupLayout, Meaning, Phase, SumStep, TensorSpec
from semisilo.common.methods.parts.privacy import PrivacySettings
from semisilo.common.methods.parts.secure_sum import threshold_of
from semisilo.common.secure_aggregation.conversion import (
    SumQuestion,
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
    MaskSeed,
)
from semisilo.common.secure_aggregation.words import packed_bytes
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import RoundRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.secure_sums.roster import roster_number
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


def with_steps(phases: Iterable[Phase], steps: Sequence[SumStep] = STEPS) -> tuple[Phase, ...]:
    """The phases of a round with the steps of a sum for each."""
    return tuple(replace(phase, name=phase.name if step == "mask" else f"{phase.name}-{step}", step=step)
                 for phase in phases for step in steps)


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
    """The sums of the study that runs, without masks, as a simulation has them: there is nobody to hide from, and the
    sum of the same integers is the same. Holds nothing: all of it is in the ledger."""

    steps: tuple[SumStep, ...] = ("mask",)
    """Of a sum, in order."""

    def __init__(self, ledger: Ledger, roster: LedgerRoster, *, federation: str = "") -> None:
        self._ledger = ledger
        self._roster = roster
        self._federation = federation

    def phases(self, settings: PrivacySettings, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        """The phases that a round really has."""
        return with_steps(phases, self.steps) if settings.secure_aggregation else phases

    def asked(self, row: RoundRow, phase: Phase) -> list[str]:
        """Whom a step behind the first asks: who has answered the one before, and still is a member."""
        there = frozenset(self._roster.members())
        return [silo for silo in self._answered(row) if silo in there]

    def fewest(self, row: RoundRow, phase: Phase, settings: PrivacySettings, num_asked: int | None) -> int:
        """Answers that a step cannot do without.

        Args:
            num_asked: silos that the first step of a sum is about to ask; None once the sum is open.
        """
        if not phase.step:
            return 0
        if phase.step == self.steps[0] and num_asked is not None:
            return threshold_of(settings.threshold, settings.min_silos, num_asked)
        return self._row(row, phase).threshold

    def open(self, row: RoundRow, phase: Phase, settings: PrivacySettings, asked: Sequence[str]) -> None:
        """To be called before the questions of a step are made; within the transaction that opens it, or before."""
        if phase.step == self.steps[0]:
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
        note_form(self._ledger, self._row(row, phase), form)
        return form

    def questions(self, row: RoundRow, phase: Phase, asked: Collection[str], *,
                  form: MaskForm | None = None) -> dict[str, str]:
        """`TaskSpec.secure` of each silo that is asked in a step.

        Raises: SecureSumFailed where the answers so far are no use.
        """
        return dict.fromkeys(asked, question_to_hex(replace(self._question(row, phase), form=form)))

    def ready(self, row: RoundRow) -> Ready | None:
        """What is to be added up behind a step; None where another step comes first."""
        phase = row.phases[row.phase]
        if phase.step not in ("mask", self.steps[-1]):
            return None
        last, mask = self._number(row, phase, self.steps[-1]), self._number(row, phase, "mask")
        accepted = len(self._ledger.accepted_updates(row.study, row.number, mask))
        found = self._row(row, phase)
        assert found.form is not None
        if accepted >= found.threshold and row.phase < last:
            return None
        return Ready(phase=mask, after=last + 1, form=found.form, fewest=found.threshold,
                     too_few=accepted < found.threshold)

    def made(self, row: RoundRow, outcome: SumOutcome) -> None:
        """Notes what a sum has come to."""
        note_outcome(self._ledger, self._row(row, row.phases[row.phase]), outcome)

    def seeds(self, row: RoundRow) -> tuple[MaskSeed, ...]:
        """What is to be added to the sum of the words so that all masks vanish; of the last step of a sum.

        Raises: SecureSumFailed where too few right shares have come.
        """
        return ()

    def _row(self, row: RoundRow, phase: Phase) -> SumRow:
        return sum_row(self._ledger, row.study, row.number, method_phase(phase).name)

    def _question(self, row: RoundRow, phase: Phase) -> SumQuestion:
        found = self._row(row, phase)
        return SumQuestion(step=phase.step, phase=found.phase, nonce=found.nonce, threshold=found.threshold)

    def _number(self, row: RoundRow, phase: Phase, step: SumStep) -> int:
        """Number of another step of the same sum among the phases of the round."""
        return row.phases.index(phase) + self.steps.index(step) - self.steps.index(phase.step)

    def _answered(self, row: RoundRow) -> list[str]:
        """Who has answered the step before the present one."""
        before = row.phase - 1
        if row.phases[before].step == "mask":
            return [task.silo for task, _ in self._ledger.accepted_updates(row.study, row.number, before)]
        return list(step_answers(self._ledger, row.study, row.number, before))
