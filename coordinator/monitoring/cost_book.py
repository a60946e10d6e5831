"""Sums of costs that are kept up to date by reading only those of rounds to which something was added since.

A long study has millions of cost rows; the page asks every second. The ledger keeps their sums by round and by silo.
"""

from __future__ import annotations

from collections import defaultdict

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.traffic import (
    last_cost_row,
    round_totals,
    rounds_with_costs,
    studies_with_costs,
    wire_by_silo,
)
from semisilo.coordinator.monitoring.traffic import StudyCosts, silo_ways

__all__ = ["CostBook"]


class CostBook:
    """The sums of all studies."""

    def __init__(self) -> None:
        self._last_row = 0
        self._studies: defaultdict[str, StudyCosts] = defaultdict(StudyCosts)

    def refresh(self, ledger: Ledger) -> None:
        """Reads anew what was added to since the last call."""
        last = last_cost_row(ledger)  # before the sums: what comes in between is read twice
        if last == self._last_row:
            return
        if self._last_row == 0:
            for name in studies_with_costs(ledger):
                self._read(ledger, name, None)
        else:
            changed: defaultdict[str, set[int]] = defaultdict(set)
            for name, number in rounds_with_costs(ledger, after=self._last_row):
                changed[name].add(number)
            for name, rounds in changed.items():
                self._read(ledger, name, rounds)
        self._last_row = last

    def _read(self, ledger: Ledger, name: str, rounds: set[int] | None) -> None:
        study = self._studies[name]
        study.replace(round_totals(ledger, name, rounds=rounds))
        study.by_silo = silo_ways(wire_by_silo(ledger, name))

    def study(self, name: str) -> StudyCosts:
        """The sums of one study, to be read only."""
        return self._studies.get(name) or StudyCosts()
