"""The steps of a secure sum as phases of a round: whom each asks, what, and what its answers come to.

A phase of a method whose updates are added up behind masks becomes five phases: keys, shares, mask, confirm, unmask
(`semisilo.common.secure_aggregation.messages`). Only "mask" trains, and has the name of the method's phase. Each step
asks those who have answered the one before, and all of it lies in the ledger, so a coordinator that is killed anywhere
goes on with the same step.

Tests: tests/coordinator/rounds/test_secure_sums.py.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from semisilo.common.errors import SecureSumFailed
from semisilo.common.methods.contract import GroupLayout, Meaning, Phase, SumStep, TensorSpec
from semisilo.common.methods.parts.privacy import PrivacySettings, shares_noise
from semisilo.common.methods.parts.secure_sum import WORD_BITS, threshold_of
from semisilo.common.secure_aggregation.conversion import SumQuestion, question_to_hex
from semisilo.common.secure_aggregation.mask_form import (
    MOMENT_BOUND,
    MaskForm,
    SumOutcome,
    first_bounds,
    next_bounds,
    share_count,
    weight_of,
    wider_bounds,
)
from semisilo.common.secure_aggregation.messages import MASKED_GROUP, NONCE_BYTES, STEPS
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
from semisilo.coordinator.secure_aggregation.groups import MaskedGroup, largest_group, split
from semisilo.coordinator.secure_aggregation.scale import form_with_noise

__all__ = ["STEP_SECONDS", "Ready", "Sums", "elements_of", "masked_layout", "method_phase", "with_steps", "word_count"]

STEP_SECONDS: Mapping[SumStep, float] = {"keys": 60.0, "shares": 60.0, "confirm": 10.0, "unmask": 10.0}
"""How long a step waits beyond its quorum for silos that have not answered it: none of them trains. From step "shares"
on, a silo that is left out can be done without; one that misses the first two has no part in the round."""
_DONE: Mapping[SumStep, str] = {
    "keys": "have sent their keys", "shares": "have shared their secrets", "mask": "have sent an update",
    "confirm": "have signed the list of survivors"}
"""What those who have answered a step have done, for the reason of a round."""


def with_steps(phases: Iterable[Phase], steps: Sequence[SumStep] = STEPS) -> tuple[Phase, ...]:
    """The phases of a round with the steps of a sum for each."""
    return tuple(replace(phase, name=phase.name if step == "mask" else f"{phase.name}-{step}", step=step)
                 for phase in phases for step in steps)


def method_phase(phase: Phase) -> Phase:
    """The phase as the strategy knows it, of any step."""
    name = phase.name if phase.step in ("", "mask") else phase.name.removesuffix(f"-{phase.step}")
    return replace(phase, name=name, step="")


def word_count(expects: Mapping[str, GroupLayout], form: MaskForm) -> int:
    """Words of a masked update: of every element that is sent, and those behind them."""
    return share_count(form.random_k, elements_of(expects)) + form.extra_words


def elements_of(expects: Mapping[str, GroupLayout]) -> int:
    """Numbers of an update in the clear."""
    return sum(spec.num_elements for layout in expects.values() for spec in layout.tensors)


def masked_layout(expects: Mapping[str, GroupLayout], form: MaskForm) -> dict[str, GroupLayout]:
    """What a masked update must hold, where an update in the clear would hold `expects`."""
    size = packed_bytes(word_count(expects, form), form.bits)
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
    groups: tuple[tuple[str, ...], ...]
    """The silos of each sum; none where there are fewer in all of them, and nothing is added up."""


class Sums:
    """The sums of the study that runs, without masks, as a simulation has them: there is nobody to hide from, and the
    sum of the same integers is the same. Holds the study's settings; all else is in the ledger."""

    steps: tuple[SumStep, ...] = ("mask",)
    """Of a sum, in order."""

    def __init__(self, ledger: Ledger, roster: LedgerRoster) -> None:
        self._ledger = ledger
        self._roster = roster
        self._settings = PrivacySettings()
        self._seed = 0

    def begin(self, settings: PrivacySettings, *, seed: int) -> None:
        """To be called with the study that runs, before anything else.

        Args:
            seed: of the study.
        """
        self._settings, self._seed = settings, seed

    def phases(self, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        """The phases that a round really has."""
        return with_steps(phases, self.steps) if self._settings.secure_aggregation else phases

    def begins(self, phase: Phase) -> bool:
        """Whether a phase is the first step of a sum, or of none."""
        return phase.step in ("", self.steps[0])

    def asked(self, row: RoundRow, phase: Phase) -> list[str]:
        """Whom a step behind the first asks: who has answered the one before, is of a group that goes on, and still is
        a member.

        Raises: SecureSumFailed where that is nobody: with groups, each may have lost too many.
        """
        there = frozenset(self._roster.members())
        asked = [silo for group in self._alive(row, phase, row.phase - 1).values() for silo in group
                 if silo in there]
        if not asked:
            raise SecureSumFailed(f"no group has {self._row(row, phase).threshold} silos that"
                                  f" {_DONE[row.phases[row.phase - 1].step]}, and a secure sum takes so many")
        return asked

    def fewest(self, row: RoundRow, phase: Phase, num_asked: int | None) -> int:
        """Answers that a step cannot do without.

        Args:
            num_asked: silos that the first step of a sum is about to ask; None once the sum is open.
        """
        if not phase.step:
            return 0
        if self.begins(phase) and num_asked is not None:
            return self._threshold(num_asked)
        return self._row(row, phase).threshold

    def heed_complaints(self, study: str, *, round: int) -> None:
        """Sets silos aside that others cannot make a sum with; to be called before a round is opened. Without masks
        nobody complains.

        Args:
            round: the last one.
        """

    def open(self, row: RoundRow, phase: Phase, asked: Sequence[str]) -> None:
        """To be called before the questions of a step are made; within the transaction that opens it, or before."""
        if phase.step == self.steps[0]:
            open_sum(self._ledger, study=row.study, round=row.number, phase=method_phase(phase).name,
                     nonce=secrets.token_bytes(NONCE_BYTES), roster_number=roster_number(self._ledger),
                     threshold=self._threshold(len(asked)))

    def form(self, row: RoundRow, phase: Phase, asked: Sequence[str], *, largest_weights: Sequence[float],
             elements: int, reference: int, totals: Sequence[str] = (), images: int = 0,
             contribution: float = 0.0) -> MaskForm:
        """The scale of step "mask": from the last sum of that phase or, where silos clip and add noise, from that;
        noted in the ledger.

        Args:
            asked: silos that are.
            largest_weights: of each tensor of the update the largest magnitude in the model.
            elements: of the update.
            reference: examples of the largest silo; 0 where all weigh the same.
            totals: that the method has added up beside its tensors.
            images, contribution: of a step in which silos share noise: images that a silo's expects, and what one moves
                of its update at most.
        """
        dp, silos = self._settings.dp, self._room(row, phase, asked)
        if shares_noise(dp, secure=True):
            found = form_with_noise(self._settings, elements=elements, silos=silos, images=images,
                                    contribution=contribution, threshold=self._row(row, phase).threshold)
            return self._noted(row, phase, replace(found, bounds=found.bounds * len(largest_weights)))
        return self._noted(row, phase, MaskForm(
            bits=self._settings.word_bits, bounds=self._bounds(row, phase, first_bounds(largest_weights), next_bounds),
            weight_reference=reference, totals=tuple(totals), silo_count=silos, random_k=self._settings.random_share))

    def form_of_moments(self, row: RoundRow, phase: Phase, asked: Sequence[str], *, tensors: int,
                        reference: int) -> MaskForm:
        """The scale of step "mask" where moments of batch-norm statistics are added up: the widest words, all of them.

        Args:
            tensors: of the update.
            reference: examples of the largest silo.
        """
        return self._noted(row, phase, MaskForm(
            bits=max(WORD_BITS), bounds=self._bounds(row, phase, (MOMENT_BOUND,) * tensors, wider_bounds),
            weight_reference=reference, silo_count=self._room(row, phase, asked)))

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
        groups = tuple(self._alive(row, phase, mask).values())
        found = self._row(row, phase)
        assert found.form is not None
        if groups and row.phase < last:
            return None
        return Ready(phase=mask, after=last + 1, form=found.form, fewest=found.threshold, groups=groups)

    def made(self, row: RoundRow, outcome: SumOutcome) -> None:
        """Notes what a sum has come to."""
        note_outcome(self._ledger, self._row(row, row.phases[row.phase]), outcome)

    async def unmasked(self, row: RoundRow, ready: Ready) -> tuple[MaskedGroup, ...]:
        """What takes the masks off each sum; of the last step of a sum. Groups whose masks cannot be taken off are left
        out, and said.

        Raises: SecureSumFailed where that is so of all of them.
        """
        return tuple(MaskedGroup(silos=group, seeds=()) for group in ready.groups)

    def least_weight(self, form: MaskForm, silos: Collection[str]) -> float:
        """What silos weigh in a sum together if each has trained on as many images as it has announced: on those with
        a label, or on those without, whichever are fewer. A silo that announces more now than before can only make the
        sum fail.

        Returns: 0 where all weigh the same, for then their weights are known.
        """
        return math.fsum(weight_of(form, self._roster.announced_at_least(silo)) for silo in silos) \
            if form.weight_reference else 0.0

    def _bounds(self, row: RoundRow, phase: Phase, first: tuple[float, ...],
                after: Callable[[Sequence[float], SumOutcome], tuple[float, ...]]) -> tuple[float, ...]:
        """Of a sum: as they follow from the last one of that phase, if there was one."""
        before = last_sum(self._ledger, row.study, row.number, method_phase(phase).name)
        if before is None or before.form is None or before.outcome is None or len(before.form.bounds) != len(first):
            return first
        return after(before.form.bounds, before.outcome)

    def _room(self, row: RoundRow, phase: Phase, asked: Sequence[str]) -> int:
        """Silos that a sum may have."""
        there, groups = frozenset(asked), self._split(asked) if self.begins(phase) else self._groups(row, phase)
        return max(len(there.intersection(group)) for group in groups)

    def _noted(self, row: RoundRow, phase: Phase, form: MaskForm) -> MaskForm:
        note_form(self._ledger, self._row(row, phase), form)
        return form

    def _threshold(self, num_asked: int) -> int:
        """Of a sum of which the first step asks so many."""
        settings = self._settings
        return threshold_of(settings.threshold, settings.min_silos, largest_group(num_asked, settings.group_size))

    def _row(self, row: RoundRow, phase: Phase) -> SumRow:
        return sum_row(self._ledger, row.study, row.number, method_phase(phase).name)

    def _question(self, row: RoundRow, phase: Phase) -> SumQuestion:
        found = self._row(row, phase)
        return SumQuestion(step=phase.step, phase=found.phase, nonce=found.nonce, threshold=found.threshold)

    def _number(self, row: RoundRow, phase: Phase, step: SumStep) -> int:
        """Number of another step of the same sum among the phases of the round."""
        return row.phases.index(phase) + self.steps.index(step) - self.steps.index(phase.step)

    def _split(self, asked: Collection[str]) -> tuple[tuple[str, ...], ...]:
        return split(asked, size=self._settings.group_size, seed=self._seed)

    def _groups(self, row: RoundRow, phase: Phase) -> tuple[tuple[str, ...], ...]:
        """All silos that the first step of a sum has asked, by group."""
        first = self._number(row, phase, self.steps[0])
        return self._split([task.silo for task in self._ledger.tasks(row.study, row.number, first)])

    def _alive(self, row: RoundRow, phase: Phase, number: int) -> dict[tuple[str, ...], tuple[str, ...]]:
        """Of each group the silos that have answered the step of a number; without groups in which they are too few."""
        answered, threshold = frozenset(self._answered(row, number)), self._row(row, phase).threshold
        found = {group: tuple(silo for silo in group if silo in answered) for group in self._groups(row, phase)}
        return {group: left for group, left in found.items() if len(left) >= threshold}

    def _answered(self, row: RoundRow, number: int) -> list[str]:
        """Who has answered a step."""
        if row.phases[number].step == "mask":
            return [task.silo for task, _ in self._ledger.accepted_updates(row.study, row.number, number)]
        return list(step_answers(self._ledger, row.study, row.number, number))
