"""The audit trail for the page: events by filter, and the hash chain checked a stretch at a time."""

from __future__ import annotations

from semisilo.common.audit.chain import ChainWalk
from semisilo.coordinator.ledger.events import chain_of, find_events
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.monitoring.facts import EventFacts, EventsFacts

__all__ = ["MOST_EVENTS", "ChainCheck", "events_of"]

MOST_EVENTS = 500
"""In one answer."""
_STRETCH = 4000


class ChainCheck:
    """Recomputes the chain from where it stopped, and again from the beginning when told to."""

    def __init__(self) -> None:
        self.complete = False
        """Whether all events that there were have been checked once."""
        self.kinds: set[str] = set()
        """Kinds of events that were met."""
        self.problem = ""
        """What is wrong; empty while nothing is."""
        self._walk = ChainWalk()
        self._newest = (0, "")
        """Number and chain of the last event when all had been checked."""

    @property
    def checked(self) -> int:
        """Events that have been checked since the beginning."""
        return self._walk.number

    @property
    def intact(self) -> bool | None:
        """None until every event has been looked at once."""
        return False if self.problem else True if self.complete else None

    def again(self) -> None:
        """Starts from the first event; what is known stays until then. A problem that was found stays."""
        self._walk = ChainWalk()

    def go_on(self, ledger: Ledger) -> bool:
        """Checks the next stretch; True when there may be more."""
        if self.problem:
            return False
        rows = ledger.events_after(self._walk.number, limit=_STRETCH)
        for event in rows:
            self.problem = self._walk.step(event)
            if self.problem:
                return False
            self.kinds.add(event.kind)
        if len(rows) == _STRETCH:
            return True
        # Who rewrites the end, or all, of a chain leaves it sound: against that helps what was seen before.
        number, chain = self._newest
        if number and chain_of(ledger, number) != chain:
            self.problem = f"event {number} was altered or removed since it was checked"
        self._newest = (self._walk.number, self._walk.chain)
        self.complete = True
        return False


def events_of(ledger: Ledger, check: ChainCheck, *, study: str = "", silo: str = "", kind: str = "", before: int = 0,
              limit: int = 100) -> EventsFacts:
    """The newest events that fit, at most `limit`, of numbers below `before` where that is not 0."""
    limit = min(max(1, limit), MOST_EVENTS)
    found = find_events(ledger, study=study, silo=silo, kind=kind, before=before, limit=limit + 1)
    events = tuple(EventFacts(number=event.number, unix=event.unix, kind=event.kind, study=event.study,
                              detail=event.detail, chain=event.chain) for event in found[:limit])
    return EventsFacts(events=events, chain_intact=check.intact, chain_problem=check.problem, checked=check.checked,
                       first_number=events[-1].number if events else 0, more=len(found) > limit,
                       kinds=tuple(sorted(check.kinds)))
