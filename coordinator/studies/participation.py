"""On how many of how many silos a study ran, and why not on the others: what is said of it first, everywhere.

A silo takes part when a committed round has an update or an abstention of it. One that has refused every round, or
given no answer, or was never asked, for example because the operator has set it aside, does not; nor does one whose
masked updates came with too few others to be added up.

Tests: tests/coordinator/studies/test_participation.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semisilo.common.text.describe import counted
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.states import ENDED_STUDY
from semisilo.coordinator.ledger.tasks import has_answers, silo_parts, silos_that_refused_all

__all__ = ["ParticipationFacts", "RefusingSilo", "participation_of"]

_MOST_NAMES = 3
"""More silos than these are counted, not named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusingSilo:
    """A silo that has refused every round of a study in which it answered."""

    silo: str
    rounds: int
    """In which it refused."""
    reason: str
    """Of the last one: a code of the error catalogue and a line, as the silo gave it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParticipationFacts:
    """On how many of how many silos a study ran."""

    took_part: int = 0
    """Silos with an update or an abstention in a committed round."""
    silos: int = 0
    """Those that were asked, and other members that had joined before its end."""
    refusing: tuple[RefusingSilo, ...] = ()
    """In byte order of names."""
    text: str = ""
    """All of it in one line; empty before a silo has answered."""


def participation_of(ledger: Ledger, study: StudyRow) -> ParticipationFacts:
    """The facts of a study, from the ledger alone."""
    if not has_answers(ledger, study.name):
        return ParticipationFacts()
    parts = silo_parts(ledger, study.name, ended_unix=study.ended_unix)
    refusing = tuple(RefusingSilo(silo=silo, rounds=found.rounds, reason=found.reason)
                     for silo, found in silos_that_refused_all(ledger, study.name).items())
    names = {each.silo for each in refusing}
    others = [part for part in parts if not (part.took_part or part.not_added) and part.silo not in names]
    why = [_listed("refused every round", [each.silo for each in refusing], _codes(refusing)),
           _listed("no answer in a committed round", [part.silo for part in others if part.asked]),
           _listed("set aside", [part.silo for part in others if not part.asked and part.set_aside]),
           _listed("never asked", [part.silo for part in others if not part.asked and not part.set_aside]),
           _listed("sent no update", [part.silo for part in parts if part.only_abstained]),
           _listed("update not added up", [part.silo for part in parts if part.not_added])]
    took_part, ran = sum(part.took_part for part in parts), "ran" if study.state in ENDED_STUDY else "has run"
    return ParticipationFacts(
        took_part=took_part, silos=len(parts), refusing=refusing,
        text="; ".join([f"{ran} on {took_part} of {counted(len(parts), 'silo')}", *filter(None, why)]))


def _listed(what: str, silos: Sequence[str], also: str = "") -> str:
    """"never asked: alpha, beta", or how many where they are many; empty without silos."""
    if not silos:
        return ""
    return f"{what}: {', '.join(silos) if len(silos) <= _MOST_NAMES else len(silos)}{also}"


def _codes(refusing: Sequence[RefusingSilo]) -> str:
    """ (BAD_DATA, DAILY_BUDGET): the codes of what was refused; the whole reasons are told where there is room."""
    found = sorted({each.reason.partition(":")[0] for each in refusing} - {""})
    return f" ({', '.join(found[:_MOST_NAMES])})" if found else ""
