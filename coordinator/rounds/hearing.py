"""Which members are silent: nothing was heard of them for a while, so that no round asks them until they call again.

Who is silent stands in the ledger, with when it was last heard: a coordinator that was killed and started again asks
the same silos as one that was not. Only silence that somebody listens to counts against a silo: at its start, and when
it has slept itself, the coordinator gives everyone the whole time anew.

Tests: tests/coordinator/rounds/test_silent_silos.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection

from semisilo.common.text.describe import describe_moment
from semisilo.coordinator.ledger.roster import HeardMember, LedgerRoster
from semisilo.coordinator.rounds.runtime import RuntimeState

__all__ = ["SILENT_SECONDS", "Hearing"]

_LOG = logging.getLogger("semisilo.coordinator")

SILENT_SECONDS = 180.0
"""A silo that waits calls every 25 s, one that works reports every few seconds. One that has lost its connection needs
up to 55 s to notice (a poll and its deadline) and tries again at least every 30 s: after twice that it is not a matter
of the line."""


class Hearing:
    """Listens to the members of a federation."""

    def __init__(self, *, roster: LedgerRoster, runtime: RuntimeState, clock: Callable[[], float],
                 silent_seconds: float = SILENT_SECONDS) -> None:
        """
        Args:
            silent_seconds: a member that is not heard for so long is silent; infinite where members are always there.
        """
        self._roster = roster
        self._runtime = runtime
        self._clock = clock
        self._silent_seconds = silent_seconds
        self._listens_since = clock()
        self._looked = math.inf
        """When `look` was last called; before that the ledger may know of times that are still to come."""

    @property
    def silent_seconds(self) -> float:
        """A member that is not heard for so long is silent."""
        return self._silent_seconds

    def look(self) -> dict[str, float]:
        """Notes who has fallen silent and who is heard again. To be called more often than `silent_seconds`.

        Returns: silent members -> when they were last heard, Unix seconds.
        """
        if math.isinf(self._silent_seconds):
            return {}
        now = self._clock()
        if not 0 <= now - self._looked <= self._silent_seconds:  # it was asleep, or its clock was set
            self._listens_since = now
            self._forget_the_future(now)
        self._looked = now
        return {member.name: heard for member in self._roster.members_heard()
                if (heard := self._silent_since(member, now)) is not None}

    def _forget_the_future(self, now: float) -> None:
        """After the clock was set back: nobody was heard later than now. Else a silo would be taken for there, or for
        silent, until the clock is as late again."""
        for silo, heard in self._runtime.called.items():
            self._runtime.called[silo] = min(heard, now)
        for member in self._roster.members_heard():
            if member.silent_unix is not None and member.silent_unix > now:
                self._roster.silent(member.name, heard_unix=now)

    def heard(self, silos: Collection[str], *, at_least: int) -> list[str]:
        """Those of some silos that are not silent; all of them where that would be fewer than `at_least`: then the
        silent ones are needed, and have until the deadline to come back."""
        silent = self.look()
        found = [silo for silo in silos if silo not in silent]
        return found if len(found) >= at_least else list(silos)

    def _silent_since(self, member: HeardMember, now: float) -> float | None:
        """When a member was last heard, where it is silent; None where it is not."""
        silo, before = member.name, member.silent_unix
        seen = member.seen_unix if member.seen_unix <= now else 0.0  # noted while the clock was ahead
        heard = now if self._runtime.connected.get(silo) else max(seen, self._runtime.called.get(silo, 0.0))
        if before is not None:
            if heard <= before:
                return before
            self._roster.heard(silo)
            _LOG.info("silo %s is back", silo)
            return None
        if now - max(heard, self._listens_since) <= self._silent_seconds:
            return None
        self._roster.silent(silo, heard_unix=heard)
        _LOG.warning("silo %s is silent: last heard on %s. No round asks it, or waits for it, until it calls again. To"
                     " exclude it for longer: coordinator set-aside %s", silo, describe_moment(heard), silo)
        return heard
