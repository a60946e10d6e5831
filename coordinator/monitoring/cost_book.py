"""Sums of the ledger's costs that are kept up to date by reading only what was added since the last look.

A long study has millions of cost rows; the page asks every second. Rows are only ever added to that table.
"""

from __future__ import annotations

from collections import defaultdict

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.traffic import costs_between, last_cost_row
from semisilo.coordinator.monitoring.traffic import StudyCosts

__all__ = ["CostBook"]

_STRETCH = 100_000
"""Rows that are read at a time."""


class CostBook:
    """The sums of all studies."""

    def __init__(self) -> None:
        self._last_row = 0
        self._studies: defaultdict[str, StudyCosts] = defaultdict(StudyCosts)

    def refresh(self, ledger: Ledger) -> None:
        """Adds what was written since the last call."""
        last = last_cost_row(ledger)
        while self._last_row < last:
            until = min(last, self._last_row + _STRETCH)
            for cost in costs_between(ledger, self._last_row, until):
                self._studies[cost.study].add(cost)
            self._last_row = until

    def study(self, name: str) -> StudyCosts:
        """The sums of one study, to be read only."""
        return self._studies.get(name) or StudyCosts()
