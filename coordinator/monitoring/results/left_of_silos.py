"""What has left each hospital in a study, as the coordinator has received it: updates with their tensor groups and
bytes, the numbers beside them, and what else a silo has said. The hospital's own record is `silo disclosures`.

Tests: tests/coordinator/monitoring/results/test_left_of_silos.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import past_answers, past_uploads, rollbacks_of
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.ledger.tasks import received_answers, site_evaluation_counts
from semisilo.coordinator.ledger.traffic import wire_by_silo

__all__ = ["LeftOfSilo", "left_of_silos"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOfSilo:
    """Of one silo, in one study."""

    silo: str
    updates: int
    """Updates that arrived whole; also those that were not folded."""
    groups: Mapping[str, int]
    """Tensor group -> encoded bytes, of these updates together; by name."""
    numbers: tuple[str, ...]
    """Names of the numbers that came with them and with abstentions, by name; those by class or the like once, as
    "pseudo_labels/*"."""
    refusals: int
    """Tasks that it refused; a refusal says why, and sends nothing else."""
    evaluations: int
    """Models of rounds that count of which it said what they are worth on its own test images."""
    wire_bytes: int
    """Up, on its connections, while rounds of the study were under way; 0 where nobody counted."""

    @property
    def payload_bytes(self) -> int:
        """Of all groups."""
        return sum(self.groups.values())


@dataclass(slots=True)
class _Counted:
    updates: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    refusals: int = 0


def left_of_silos(ledger: Ledger, study: str) -> tuple[LeftOfSilo, ...]:
    """Every silo that was asked, in byte order of names. What came in rounds that the study went back behind has left
    as well; of evaluations in them nothing is kept."""
    found: dict[str, _Counted] = {}
    for answer in received_answers(ledger, study):
        counted = found.setdefault(answer.silo, _Counted())
        counted.numbers |= {_kind(name) for name in answer.metrics}
        if answer.groups is None:
            counted.refusals += answer.state is TaskState.REFUSED
            continue
        counted.updates += 1
        for group, size in answer.groups.items():
            counted.groups[group] = counted.groups.get(group, 0) + size
    back = rollbacks_of(ledger, study)
    for gone in (answer for each in back for answer in past_answers(ledger, each.number)):
        counted = found.setdefault(gone.silo, _Counted())
        counted.numbers |= {_kind(name) for name in gone.metrics}
        counted.updates += gone.example_count is not None
        counted.refusals += gone.example_count is None and gone.state is TaskState.REFUSED
    for (silo, group), size in past_uploads(ledger, study).items() if back else ():
        counted = found.setdefault(silo, _Counted())
        counted.groups[group] = counted.groups.get(group, 0) + size
    evaluations = site_evaluation_counts(ledger, study)
    wire = wire_by_silo(ledger, study)
    return tuple(LeftOfSilo(
        silo=silo, updates=each.updates, groups=dict(sorted(each.groups.items())), numbers=tuple(sorted(each.numbers)),
        refusals=each.refusals, evaluations=evaluations.get(silo, 0), wire_bytes=wire.get((silo, "up"), 0))
        for silo, each in sorted(found.items(), key=lambda pair: pair[0].encode()))


def _kind(name: str) -> str:
    kind, slash, _ = name.partition("/")
    return f"{kind}/*" if slash else name
