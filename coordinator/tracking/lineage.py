"""Which of several runs at a tracker a study is told to. A tracker that forgets no number has rounds that are not the
study's any more after `coordinator rollback`, and after the federation went on from a backup: it may have been told of
rounds that the ledger from the backup does not know. Then the study goes on in another run.

Tests: tests/coordinator/tracking/test_lineage.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from semisilo.common.audit.chain import Restore
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import count_undoings, rollbacks_of
from semisilo.coordinator.ledger.oversight.signed_heads import restores_of
from semisilo.coordinator.ledger.tracking import forget_run
from semisilo.coordinator.tracking.facts import RoundFacts

__all__ = ["Lineage", "forget_what_a_restore_undid", "lineage_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """What a study has left behind it."""

    study: str
    rollbacks: int
    """How often it went back behind a committed round."""
    restores: tuple[float, ...]
    """When the federation went on from a backup while it was there, Unix seconds, in order."""
    reason: str
    """Why the run before ended, for a person; "" where this is the first one."""
    unix: float
    """When that was; 0 for the first one."""

    @property
    def key(self) -> str:
        """Tells this run from all others of the study, also from those that a ledger before a restore knew; "" for the
        first one."""
        back = str(self.rollbacks) if self.rollbacks else ""
        return f"{back} restored {self.restores[-1]!r}".lstrip() if self.restores else back

    @property
    def name(self) -> str:
        """What the run is called: "first", then "first (2)"."""
        times = self.rollbacks + len(self.restores)
        return f"{self.study} ({times + 1})" if times else self.study


def lineage_of(ledger: Ledger, study: str) -> Lineage:
    """That of a study now."""
    restores, back = restores_of(ledger, study), rollbacks_of(ledger, study)
    ended = ledger.study(study).ended_unix
    # Of one that was over in the backup no round was done again.
    restores = tuple(each for each in restores if ended is None or each.unix < ended)
    reason, unix = "", 0.0
    times = count_undoings(ledger, study)
    if times:
        reason, unix = back[-1].text, back[-1].unix
    if restores and restores[-1].unix > unix:
        reason, unix = _words(restores[-1]), restores[-1].unix
    return Lineage(study=study, rollbacks=times, restores=tuple(each.unix for each in restores), reason=reason,
                   unix=unix)


def forget_what_a_restore_undid(ledger: Ledger, study: str, target: str, *, last_round: int,
                                rounds: Sequence[RoundFacts]) -> bool:
    """Forgets the run of a study where the next round to tell is the first since a restore: the run may have been told
    of that round before, as it was in the life that the backup ended. Nothing changes while there is nothing to tell,
    so that a restore on trial leaves the runs of the federation alone.

    Args:
        last_round: that the run was told of, by the ledger; -1 for none.
        rounds: those to tell now, in order.
    Returns: whether it was forgotten.
    """
    if not rounds:
        return False
    told = ledger.round(study, last_round) if last_round >= 0 else None
    before = -math.inf if told is None or told.closed_unix is None else told.closed_unix
    if not any(before < each < rounds[0].unix for each in lineage_of(ledger, study).restores):
        return False
    forget_run(ledger, study, target)
    return True


def _words(restore: Restore) -> str:
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(restore.backup_unix))
    return f"the federation went on from its backup of {made}: what came after it no longer counts"
