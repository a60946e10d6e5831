"""Which model of a study is handed over: of the last round, the best one, or a certain one. From the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semisilo.common.errors import UsageError
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import RoundRow, StudyRow
from semisilo.coordinator.ledger.states import RoundState

__all__ = ["STUDY_TEST", "ChosenModel", "choose_model"]

STUDY_TEST = "the study's test images"
"""How a card calls the images that the study itself measures on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenModel:
    """A committed round whose state is on disk."""

    study: StudyRow
    round: RoundRow
    rule: str
    """How it was chosen: "last", "best" or the number."""

    @property
    def file_name(self) -> str:
        """Of the state, within the study's folder `states`."""
        return f"{self.round.state_digest}{STATE_ENDING}"


def choose_model(ledger: Ledger, study: str, *, rule: str, study_folder: Path) -> ChosenModel:
    """The committed round that a rule names.

    Args:
        rule: "last": of the last committed round; "best": highest accuracy on the study's test images, the earliest of
            equals; or the number of a round.
    Raises: UnknownName for a study that there is not; UsageError, with the rounds to choose from, when there is no such
        round or its state is not kept.
    """
    row = ledger.study(study)
    committed = [each for each in ledger.rounds(study) if each.state is RoundState.COMPLETED and each.state_digest]
    if not committed or row.frozen is None:
        raise UsageError(f"Study '{study}' has no committed round yet, so there is no model to export.",
                         remedy="Run it first: coordinator serve.")
    states = study_folder / "states"
    kept = [each for each in committed if (states / f"{each.state_digest}{STATE_ENDING}").exists()]
    numbers = ", ".join(str(each.number) for each in kept) or "none"
    if rule == "last":
        chosen = committed[-1]
    elif rule == "best":
        measured = [each for each in committed if "accuracy" in each.metrics]
        if not measured:
            raise UsageError(f"Study '{study}' has no test images, so no round is known to be the best.",
                             remedy=f"Choose --round last, or a number: {numbers}.")
        chosen = max(measured, key=lambda each: (each.metrics["accuracy"], -each.number))
    elif rule.isdecimal() and len(rule) < 10:
        found = [each for each in committed if each.number == int(rule)]
        if not found:
            raise UsageError(f"Study '{study}' has no committed round {int(rule)}.",
                             remedy=f"Rounds whose model is kept: {numbers}.")
        chosen = found[0]
    else:
        raise UsageError(f"--round {rule}: is none of last, best or the number of a round.",
                         remedy=f"Rounds whose model is kept: {numbers}.")
    if chosen not in kept:
        raise UsageError(f"The model of round {chosen.number} is no longer kept.",
                         remedy=f"Rounds whose model is kept: {numbers}; [study] keep_every says how many.")
    return ChosenModel(study=row, round=chosen, rule=rule)
