"""Whom a round may ask: waits until enough silos have joined, and until enough of them are not away.

Tests: tests/coordinator/rounds/test_engine.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.rounds.compute_client import RunningStudy
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.study_lifecycle import OperatorRequests

__all__ = ["Availability"]

_LOG = logging.getLogger("semisilo.coordinator")
_LOOK_SECONDS = 5.0
"""Silos that join or go away are noticed at once; this is for working hours, which begin without a word."""


class Availability:
    """The roster, as a study that waits for silos sees it."""

    def __init__(self, *, roster: LedgerRoster, runtime: RuntimeState, operator: OperatorRequests,
                 clock: Callable[[], float], wait: Callable[[float], Awaitable[None]]) -> None:
        """`wait` returns after so many seconds, or when something has happened."""
        self._roster = roster
        self._runtime = runtime
        self._operator = operator
        self._clock = clock
        self._wait = wait

    async def wait_for_members(self, study: RunningStudy, wanted: int) -> list[str]:
        """The roster once it has `wanted` silos; empty when the operator stops the study before."""
        while True:
            await self._operator.wait_while_paused(study.name)
            if self._operator.is_stopped(study.name):
                return []
            if len(members := self._roster.members()) >= wanted:
                return members
            self._runtime.reason, self._runtime.activity = StandbyReason.WAITING_FOR_SILOS, ""
            self._runtime.text = f"{len(members)} of {wanted} silos have joined"
            await self._wait(_LOOK_SECONDS)

    async def wait_for_quorum(self, study: RunningStudy) -> tuple[list[str], int]:
        """Members that may be asked in a round, once there is a quorum of them, and how many to ask.

        Those who are away by their own policy (outside working hours, daily budget used up) are not asked: a round in
        which they are missed would only wait for its deadline. Nobody, when the operator stops the study before.
        """
        participation, told = study.config.participation, False
        while True:
            members = await self.wait_for_members(study, 1)
            if not members:
                self._runtime.text = ""
                return [], 0
            away = self._roster.away_until(self._clock())
            there = [silo for silo in members if silo not in away]
            wanted = participation.sample_size(len(members))
            if len(there) >= max(1, participation.quorum_of(wanted)):
                self._runtime.text = ""
                return there, min(wanted, len(there))
            back = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(away[silo] for silo in members if silo in away)))
            if not told:
                _LOG.info("too few silos to open a round: %s away by their own policy; the next is back on %s",
                          ", ".join(silo for silo in members if silo in away), back)
                told = True
            self._runtime.reason, self._runtime.activity = StandbyReason.WAITING_FOR_SILOS, ""
            self._runtime.text = (f"{len(members) - len(there)} of {len(members)} silos are away by their own policy, "
                                  f"the next is back on {back}")
            await self._wait(_LOOK_SECONDS)
