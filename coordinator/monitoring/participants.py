"""What each silo has brought to a study, over all its rounds or up to one: for the report and the model card."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.monitoring.summary import StudySummary

__all__ = ["Participant", "participants_of"]


@dataclass(slots=True)
class Participant:
    """One silo in one study."""

    outcomes: Counter[TaskState] = field(default_factory=Counter)
    """Answer -> rounds; empty for a silo that was never asked."""
    took_part: bool = False
    """Whether a committed round has an update or an abstention of it."""
    label_ratio: float | None = None
    """Share of its images with a pseudo-label, 0 to 1, in the last round in which it said so."""
    wire_down: int = 0
    """Of all rounds, like the next; 0 where only some count."""
    wire_up: int = 0


def participants_of(study: StudySummary, *, up_to: int | None = None) -> dict[str, Participant]:
    """Silo -> what it has brought, in byte order; silos that were asked, or with which bytes were exchanged.

    Args:
        up_to: the last round that counts; None for all. Bytes are told of all only.
    """
    found: defaultdict[str, Participant] = defaultdict(Participant)
    for entry in study.rounds:
        if up_to is not None and entry.number > up_to:
            continue
        for silo, outcome in entry.outcomes.items():
            found[silo].outcomes[outcome] += 1
            found[silo].took_part |= entry.state is RoundState.COMPLETED and silo in entry.answered
        for silo, ratio in entry.label_ratio.items():
            found[silo].label_ratio = ratio
    for silo, ways in study.wire_by_silo.items() if up_to is None else ():
        if silo:
            found[silo].wire_down, found[silo].wire_up = ways["down"], ways["up"]
    return {silo: found[silo] for silo in sorted(found, key=str.encode)}
