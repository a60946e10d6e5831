"""Whether the operator has paused or stopped a study: asked by the engine between its steps and in every wait."""

from __future__ import annotations

import logging

from coordinator.bulletin import Bulletin, StandbyReason
from coordinator.ledger import Ledger
from coordinator.states import StudyState

__all__ = ["OperatorsWord"]

_LOG = logging.getLogger("semisilo.coordinator")


class OperatorsWord:
    """What the operator has said last, as `coordinator pause`, `resume` and `stop` leave it in the ledger."""

    def __init__(self, *, ledger: Ledger, bulletin: Bulletin) -> None:
        self._ledger = ledger
        self._bulletin = bulletin

    async def has_stopped(self, name: str) -> bool:
        """Waits while the study is paused; True when the operator has stopped it."""
        if self._ledger.study_state(name) is StudyState.PAUSED:
            board = self._bulletin
            before = (board.reason, board.text, board.activity)
            _LOG.info("study %s is paused; go on with: coordinator resume", name)
            # Every silo reads this text, so what one of them has given as its reason is not in it.
            board.set(reason=StandbyReason.PAUSED, text="paused", activity="")
            while self._ledger.study_state(name) is StudyState.PAUSED:
                await board.wait(1.0)
            board.set(reason=before[0], text=before[1], activity=before[2])
            _LOG.info("study %s is %s", name, self._ledger.study_state(name))
        return self._ledger.study_state(name) is StudyState.STOPPED
