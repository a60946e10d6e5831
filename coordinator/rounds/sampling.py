"""Whom a round may ask: waits until enough silos have joined, and until enough of them are not away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from coordinator.bulletin import Bulletin, StandbyReason
from coordinator.compute_steps import RunningStudy
from coordinator.operators_word import OperatorsWord
from coordinator.roster import LedgerRoster

__all__ = ["Availability"]

_LOG = logging.getLogger("semisilo.coordinator")


class Availability:
    """The roster, as a study that waits for silos sees it."""

    def __init__(self, *, roster: LedgerRoster, bulletin: Bulletin, operator: OperatorsWord,
                 clock: Callable[[], float]) -> None:
        self._roster = roster
        self._bulletin = bulletin
        self._operator = operator
        self._clock = clock

    async def members(self, study: RunningStudy, wanted: int) -> list[str]:
        """The roster once it has `wanted` silos; empty when the operator stops the study before."""
        while not await self._operator.has_stopped(study.name):
            if len(members := self._roster.members()) >= wanted:
                return members
            self._bulletin.reason, self._bulletin.activity = StandbyReason.WAITING_FOR_SILOS, ""
            self._bulletin.text = f"{len(members)} of {wanted} silos have joined"
            await self._bulletin.wait(1.0)
        return []

    async def for_round(self, study: RunningStudy) -> tuple[list[str], int]:
        """Members that may be asked in a round, once there is a quorum of them, and how many to ask.

        Those who are away by their own policy (outside working hours, daily budget used up) are not asked: a round in
        which they are missed would only wait for its deadline. Nobody, when the operator stops the study before.
        """
        participation, told = study.config.participation, False
        while True:
            members = await self.members(study, 1)
            away = self._roster.away_until(self._clock())
            there = [silo for silo in members if silo not in away]
            size = min(participation.sample_size(len(members)), len(there)) if members else 0
            enough = len(there) >= max(1, participation.quorum_of(participation.sample_size(len(members))))
            if not members or enough or await self._operator.has_stopped(study.name):
                self._bulletin.text = ""
                return (there, size) if enough else ([], 0)
            back = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(away[silo] for silo in members if silo in away)))
            if not told:
                _LOG.info("too few silos to open a round: %s away by their own policy; the next is back on %s",
                          ", ".join(silo for silo in members if silo in away), back)
                told = True
            self._bulletin.reason, self._bulletin.activity = StandbyReason.WAITING_FOR_SILOS, ""
            self._bulletin.text = (f"{len(members) - len(there)} of {len(members)} silos are away by their own policy, "
                                   f"the next is back on {back}")
            await self._bulletin.wait(1.0)
