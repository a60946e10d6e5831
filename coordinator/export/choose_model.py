"""Which model of a study is handed over: of the chosen round, the last one, or a certain one. From the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from semisilo.common.errors import UsageError
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import handed_over_beside, prefers_labels_alone
from semisilo.coordinator.ledger.records import LABELS_ALONE, LABELS_ALONE_MODEL, RoundRow, StudyRow
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.ledger.tasks import first_update
from semisilo.coordinator.studies.model_choice import ChoiceFacts, choice_of

__all__ = ["BEST_ON_TEST", "CHANGED_TEST", "CHOSEN", "STUDY_TEST", "ChosenModel", "choose_model"]

CHOSEN = "chosen"
"""The rule that looks at validation images alone."""
BEST_ON_TEST = "best-on-test"
"""The rule that looks at the test images: its name says so, since they then no longer measure that model."""

STUDY_TEST = "the study's test images"
CHANGED_TEST = "the study's test images, which have changed since it was started"
"""How a card calls the images that the study itself measures on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenModel:
    """A committed round whose state is on disk."""

    study: StudyRow
    round: RoundRow
    rule: str
    """How it was chosen: "chosen", "last", `BEST_ON_TEST`, the number, or `LABELS_ALONE`; then `round` is round 0, with
    the digest and the numbers of that model in the place of its own."""
    choice: ChoiceFacts
    """What the study itself chooses, and why."""

    @property
    def file_name(self) -> str:
        """Of the state, within the study's folder `states`; of labels alone within the study's folder."""
        if self.rule == LABELS_ALONE:
            return LABELS_ALONE_MODEL
        return f"{self.round.state_digest}{STATE_ENDING}"

    @property
    def folder_name(self) -> str:
        """Of its export, where no other is wanted."""
        return f"export-{LABELS_ALONE}" if self.rule == LABELS_ALONE else f"export-round-{self.round.number}"


def choose_model(ledger: Ledger, study: str, *, rule: str, study_folder: Path) -> ChosenModel:
    """The committed round that a rule names.

    Args:
        rule: "chosen": the round that the study has chosen on validation images, or labels alone where these score
            higher on them; without such images the last committed round;
            "last": of the last committed round; `BEST_ON_TEST`: of those kept the one with the highest number on the
            study's test images in the study's measure, the earliest of equals, after which these no longer say what the
            model is worth; the number of a round; or `LABELS_ALONE`: what the coordinator's labels give without any
            silo.
    Raises: UnknownName for a study that there is not; UsageError, with the rounds to choose from, when there is no such
        round or its state is not kept.
    """
    row = ledger.study(study)
    committed = [each for each in ledger.rounds(study) if each.state is RoundState.COMPLETED and each.state_digest]
    if not committed or row.frozen is None:
        raise UsageError(f"Study '{study}' has no committed round yet, so there is no model to export.",
                         remedy="Run it first: coordinator serve.")
    if rule == LABELS_ALONE:
        return _labels_alone(ledger, row, committed, study_folder)
    states = study_folder / "states"
    kept = [each for each in committed if (states / f"{each.state_digest}{STATE_ENDING}").exists()]
    numbers = ", ".join(str(each.number) for each in kept) or "none"
    if rule == CHOSEN:
        found_chosen = handed_over_beside(row, committed)
        assert found_chosen is not None, "there is a committed round"
        if prefers_labels_alone(row, found_chosen, committed):
            return _labels_alone(ledger, row, committed, study_folder)
        chosen = found_chosen
    elif rule == "last":
        chosen = committed[-1]
    elif rule == BEST_ON_TEST:
        metric = row.frozen.study_measure.metric
        measured = [each for each in kept if metric in each.metrics]
        if not measured:
            raise UsageError(f"Study '{study}' has no test images, so no round is known to be the best on them.",
                             remedy=f"Choose --round chosen, or a number: {numbers}.")
        chosen = max(measured, key=lambda each: (each.metrics[metric], -each.number))
    elif rule.isdecimal() and len(rule) < 10:
        found = [each for each in committed if each.number == int(rule)]
        if not found:
            raise UsageError(f"Study '{study}' has no committed round {int(rule)}.",
                             remedy=f"Rounds whose model is kept: {numbers}.")
        chosen = found[0]
    elif rule == "best":
        raise UsageError("--round best: chose by the test images, which then no longer measure the model's accuracy.",
                         remedy=f"Choose --round {CHOSEN}; or, if that is meant, --round {BEST_ON_TEST}.")
    else:
        raise UsageError(f"--round {rule}: is none of {CHOSEN}, last, {LABELS_ALONE}, {BEST_ON_TEST} or the number of a"
                         " round.",
                         remedy=f"Rounds whose model is kept: {numbers}.")
    if chosen not in kept:
        raise UsageError(f"The model of round {chosen.number} is no longer kept.",
                         remedy=f"Rounds whose model is kept: {numbers}; [study] keep_every says how many.")
    return ChosenModel(study=row, round=chosen, rule=rule,
                       choice=choice_of(row, committed, first_update=first_update(ledger, study)))


def _labels_alone(ledger: Ledger, row: StudyRow, committed: Sequence[RoundRow], study_folder: Path) -> ChosenModel:
    """The model of labels alone. Raises: UsageError where it was not trained, not yet, or by an earlier version."""
    trained = row.baseline
    if trained is None:
        raise UsageError(f"Labels alone are not trained in study '{row.name}'.",
                         remedy="They are where [study] labelled_only_baseline is true and the coordinator has labelled"
                                " and test images; wait for the end of the study.")
    if not trained.model_digest or not (study_folder / LABELS_ALONE_MODEL).is_file():
        raise UsageError(f"The model of labels alone of study '{row.name}' is not kept.",
                         remedy="An earlier version has trained it, or its file is gone.")
    return ChosenModel(study=row, rule=LABELS_ALONE,
                       choice=choice_of(row, committed, first_update=first_update(ledger, row.name)),
                       round=replace(committed[0], state_digest=trained.model_digest, metrics=trained.metrics))
