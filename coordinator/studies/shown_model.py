"""Which model of a study its numbers are of: while it runs that of the last round, once it is over the one that is
handed over. Every reader asks here, so that no two of them give opposite verdicts.

Tests: tests/coordinator/studies/test_shown_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from semisilo.common.measures.gain import Gain
from semisilo.common.measures.study_measure import StudyMeasure
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.studies.model_choice import ChoiceFacts, gain_of_study, no_silo_in

__all__ = ["ShownModel", "shown_model"]


class _Measured(Protocol):
    """A round, in whatever shape."""

    @property
    def number(self) -> int: ...

    @property
    def state(self) -> RoundState: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownModel:
    """The federated model that accuracy, measure and gain of a study are of."""

    round: int | None = None
    """None before there is one."""
    is_over: bool = False
    """Whether the study is, so that the round is the chosen one."""
    labels_alone: bool = False
    """Whether labels alone are handed over in its place; False while the study runs."""
    has_silos: bool = False
    """Whether an update of a silo was taken in up to that round."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of that round; empty before there is one."""

    @property
    def words(self) -> str:
        """Which one it is, for a person; empty before there is one."""
        if self.round is None:
            return ""
        if not self.is_over:
            return f"round {self.round}, the last one so far"
        return f"round {self.round}; labels alone are handed over" if self.labels_alone else \
            f"round {self.round}, which is handed over"

    @property
    def column(self) -> str:
        """The same as the heading of a column; "federated" before there is one."""
        if self.round is None:
            return "federated"
        return f"federated, round {self.round}" if self.has_silos else f"round {self.round}, without silos"

    @property
    def no_gain(self) -> str:
        """Why nothing was gained, whatever the numbers are; empty where a gain may be spoken of, and before there is a
        model."""
        if self.round is None:
            return ""
        if self.labels_alone:
            return "labels alone are handed over"
        return "" if self.has_silos else no_silo_in(self.round)

    def gain(self, row: StudyRow, *, measure: StudyMeasure | None = None) -> Gain | None:
        """What silos have brought to it on the test images, in the study's measure or another; None also where they
        have no part in what is handed over."""
        return None if self.round is None or self.no_gain else gain_of_study(
            row, self.metrics, self.round, measure=measure)


def shown_model(row: StudyRow, rounds: Sequence[_Measured], choice: ChoiceFacts, *, first_update: int | None
                ) -> ShownModel:
    """The model that a study's numbers are of.

    Args:
        rounds: all of them, in order.
        choice: the study's, of the same rounds.
        first_update: the first committed round that has taken in an update; None without any.
    """
    over = row.ended_unix is not None and choice.round is not None
    if over:
        found = next((each for each in rounds if each.number == choice.round), None)
    else:  # what the coordinator has trained by itself in round 0 is nobody's but its own
        found = next((each for each in reversed(rounds) if each.number > 0 and each.state is RoundState.COMPLETED),
                     None)
    if found is None:
        return ShownModel()
    return ShownModel(round=found.number, is_over=over, labels_alone=over and choice.labels_alone,
                      metrics=found.metrics, has_silos=first_update is not None and first_update <= found.number)
