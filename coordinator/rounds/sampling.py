"""Whom a round may ask: waits until enough silos have joined, and until enough of them are there.

Tests: tests/coordinator/rounds/test_engine.py and test_silent_silos.py.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from semisilo.common.text.describe import counted, describe_moment, describe_seconds
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.rounds.compute_client import RunningStudy
from semisilo.coordinator.rounds.hearing import Hearing
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.study_lifecycle import OperatorRequests

__all__ = ["Availability"]

_LOG = logging.getLogger("semisilo.coordinator")
_LOOK_SECONDS = 5.0
"""Silos that join, call or go away are noticed at once; this is for working hours, which begin without a word, and for
silos that fall silent."""
_NAMED = 5


class Availability:
    """The roster, as a study that waits for silos sees it."""

    def __init__(self, *, roster: LedgerRoster, runtime: RuntimeState, operator: OperatorRequests, hearing: Hearing,
                 clock: Callable[[], float], wait: Callable[[float], Awaitable[None]],
                 on_wait: Callable[[], None] = lambda: None, operated: bool = True) -> None:
        """
        Args:
            operated: whether silos that are away may come back while a study waits for them. In a simulation who is
                there follows from the number of the round, and one of too few silos must fail for the next to come.
            wait: returns after so many seconds, or when something has happened.
            on_wait: told that the study waits for silos, and for nothing else.
        """
        self._roster = roster
        self._runtime = runtime
        self._operator = operator
        self._hearing = hearing
        self._clock = clock
        self._wait = wait
        self._on_wait = on_wait
        self._operated = operated

    async def wait_for_start(self, study: RunningStudy, wanted: int) -> bool:
        """Until `wanted` silos have joined; False when the operator stops the study before.

        A silo whose own policy does not permit the method would refuse every round: it does not count.
        """
        method, told = study.config.method.name, ""
        while await self._may_go_on(study):
            members = self._roster.members()
            able = frozenset(self._roster.members_permitting(method))
            if len(able) >= wanted:
                return True
            text = f"{len(able)} of {wanted} silos have joined"
            if unable := [silo for silo in members if silo not in able]:
                text += f"; {len(unable)} more cannot take part: silo.toml there does not permit {method}"
                if ", ".join(unable) != told:
                    told = ", ".join(unable)
                    _LOG.warning("%s would refuse every round: the method %s is not permitted there. Its silo.toml"
                                 " lists permitted methods in [permit] methods", told, method)
            self._say(text, remedy="Let more silos join: coordinator invite NAME."
                      if len(members) < wanted else "Ask these sites to permit the method in silo.toml.")
            await self._wait(_LOOK_SECONDS)
        return False

    async def wait_for_quorum(self, study: RunningStudy) -> tuple[list[str], int]:
        """Members that may be asked in a round, once there is a quorum of them, and how many to ask. Where updates are
        added up behind masks, that is also enough for a sum: a round of fewer would fail as soon as it is opened.

        Those who are away by their own policy (outside working hours, daily budget used up) and those who are silent
        are not asked: a round in which they are missed would only wait for its deadline. Nobody, when the operator
        stops the study before.
        """
        participation, told = study.config.participation, ""
        while await self._may_go_on(study):
            members = self._roster.members()
            away, silent = self._roster.away_until(self._clock()), self._hearing.look()
            there = [silo for silo in members if silo not in away and silo not in silent]
            wanted = participation.sample_size(len(members))
            quorum = participation.fewest_asked(wanted, num_aside=self._roster.count_aside()) if self._operated \
                else max(1, participation.quorum_of(wanted))
            needed = max(quorum, study.config.privacy.fewest_silos if self._operated else 1)
            if min(wanted, len(there)) >= needed:
                self._runtime.text = ""
                return there, min(wanted, len(there))
            why = self._why_few(members, away=away, silent=silent, wanted=wanted, needed=needed,
                                of_quorum=bool(participation.quorum) and needed == quorum)
            remedy = self._remedy(study, members, there, needed=needed, of_quorum=bool(participation.quorum))
            if told != (told := f"{needed} {remedy}"):
                # Those who are there again by themselves, as after working hours, need nobody.
                _LOG.log(logging.INFO if len(members) >= needed else logging.WARNING,
                         "study %s waits: too few silos to open a round, which needs %d: %s. %s", study.name, needed,
                         _whom(members, away=away, silent=silent) or why, remedy)
            self._say(why, remedy=remedy)
            await self._wait(_LOOK_SECONDS)
        self._runtime.text = ""
        return [], 0

    async def _may_go_on(self, study: RunningStudy) -> bool:
        """Once the study is not paused: whether it is not stopped."""
        await self._operator.wait_while_paused(study.name)
        return not self._operator.is_stopped(study.name)

    def _remedy(self, study: RunningStudy, members: Collection[str], there: Collection[str], *, needed: int,
                of_quorum: bool) -> str:
        """How an operator can end the wait; names silos.

        Args:
            there: members that can be asked.
            of_quorum: whether the study states a quorum: then it counts silos that are gone until they are set aside.
        """
        if not self._operated:
            return ""
        left_out = [silo for silo in members if silo not in there]
        if of_quorum:
            left_out += [silo for silo in self._roster.gone() if silo not in self._roster.aside()]
        ways = []
        if len(members) < needed:
            ways.append("Let another silo join: coordinator invite NAME.")
        if left_out and there and len(there) >= study.config.privacy.fewest_silos:
            ways.append(f"To go on without {', '.join(left_out[:_NAMED])}: coordinator set-aside {left_out[0]}.")
        elif aside := sorted(self._roster.aside()):
            ways.append(f"To ask one again that is set aside: coordinator take-back {aside[0]}.")
        ways.append(f"To end the study with the model so far: coordinator stop {study.name}.")
        return " ".join(ways)

    def _say(self, text: str, *, remedy: str) -> None:
        """What the study waits for, which every silo reads: no other silo's name is in it; and what an operator can
        do."""
        self._on_wait()
        self._runtime.remedy = remedy
        self._runtime.reason, self._runtime.activity, self._runtime.text = StandbyReason.WAITING_FOR_SILOS, "", text

    def _why_few(self, members: Collection[str], *, away: Mapping[str, float], silent: Collection[str],
                 wanted: int, needed: int, of_quorum: bool) -> str:
        """
        Args:
            of_quorum: whether so many are needed since the study states a quorum.
        """
        by_policy = [away[silo] for silo in members if silo in away]
        unheard = sum(silo in silent and silo not in away for silo in members)
        parts = []
        if len(members) < needed:
            why = ", and the quorum needs so many" if of_quorum else ""
            parts.append(f"{len(members)} of {needed} silos have joined{why}")
        elif wanted < needed:
            # A quorum is never above what `silos_per_round` asks of so many members.
            parts.append(f"a round asks {wanted} of {len(members)} silos, and a secure sum takes {needed}: more silos"
                         " have to join")
        if by_policy:
            parts.append(f"{len(by_policy)} of {len(members)} silos are away by their own policy, "
                         f"the next is back on {describe_moment(min(by_policy))}")
        if unheard:
            parts.append(f"{unheard} of {counted(len(members), 'silo')} {'is' if unheard == 1 else 'are'} silent:"
                         f" no call for {describe_seconds(self._hearing.silent_seconds)}; a round needs"
                         f" {needed}")
        return "; ".join(parts)


def _whom(members: Collection[str], *, away: Mapping[str, float], silent: Mapping[str, float]) -> str:
    """Who is not there, and since or until when: for the operator's log."""
    return ", ".join(
        f"{silo} is away by its own policy until {describe_moment(away[silo])}" if silo in away else
        f"{silo} is silent, last heard on {describe_moment(silent[silo])}"
        for silo in members if silo in away or silo in silent)
