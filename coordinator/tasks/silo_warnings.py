"""What a silo should hear beside its tasks, and the operator as well: that its identity is in use twice, that its
memory is lost.

Tests: tests/coordinator/tasks/test_silo_warnings.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from semisilo.coordinator.federation.token_bucket import TokenBucket
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.oversight.rollback import has_undone_rounds
from semisilo.coordinator.ledger.records import TaskRow
from semisilo.coordinator.tasks.silo_processes import SiloProcesses

__all__ = ["SiloWarnings"]

_LOG = logging.getLogger("semisilo.coordinator")
_TOO_OLD, _KEY_NOT_TAKEN, _CLOCK = "too_old", "key_not_taken", "clock"
_TWICE_SECONDS = 3600.0
"""One notice in that time about an identity that is in use twice: it lasts, and both may call at any rate."""


class SiloWarnings:
    """Looks at what silos say of themselves when they ask for a task; of silos that do not name their process, as in a
    simulation, it says nothing."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            ledger: where notices go.
            clock: seconds, never steps.
        """
        self._ledger = ledger
        self._clock = clock
        self._processes = SiloProcesses(clock=clock)
        self._told_twice: dict[str, TokenBucket] = {}
        self._memories: dict[str, str] = {}
        """Silo -> the study whose memory it last said to have."""
        self._lost: dict[str, str] = {}
        """Silo -> the task at which it had lost its memory."""
        self._texts: dict[str, dict[str, str]] = {}

    def text(self, silo: str) -> str:
        """What to tell a silo now, a line; empty when there is nothing."""
        return ". ".join(self._texts.get(silo, {}).values())

    def called(self, silo: str, process: bytes, *, address: str, memory_study: str, memory_round: int) -> None:
        """A silo has asked for a task.

        Args:
            process: what its process calls itself.
            address: where the call comes from; may be empty.
            memory_study, memory_round: the newest memory that it says to have.
        """
        if memory_round:
            self._memories[silo] = memory_study
        places = self._processes.heard(silo, process, address=address)
        if places is None:
            self._set(silo, NoticeKind.USED_TWICE, "")
            return
        one, other = (place or "an unknown address" for place in places)
        text = f"its identity is in use twice: a process at {one} and one at {other} call in turn"
        self._set(silo, NoticeKind.USED_TWICE, f"silo '{silo}': {text}; stop the one that should not be there, or if it"
                  f" is not yours, ask the coordinator's operator to run: coordinator revoke {silo}")
        bucket = self._told_twice.setdefault(silo, TokenBucket(1, 1 / _TWICE_SECONDS))
        if bucket.take(self._clock()) == 0.0:
            _LOG.warning("%s: %s", silo, text)
            add_notice(self._ledger, NoticeKind.USED_TWICE, silo=silo, text=text)

    def given(self, task: TaskRow, process: bytes, *, memory_study: str, memory_round: int) -> None:
        """A silo gets a task, with what it said when it asked for it. A silo that has memory names study and round, and
        the study alone where the method keeps nothing; one whose memory was wiped names none."""
        silo, last = task.silo, task.spec.last_folded_round
        if self._lost.get(silo) == task.task_id:  # it is given again
            return
        wiped = not memory_study
        emptied = (memory_study == task.study == self._memories.get(silo) and not memory_round
                   and not has_undone_rounds(self._ledger, task.study))  # going back drops what came later
        if not (process and last and (wiped or emptied)):
            self._set(silo, NoticeKind.MEMORY_LOST, "")
            return
        self._lost[silo] = task.task_id
        self._memories.pop(silo, None)
        text = (f"its update of round {last} was folded, and it has come back without its memory"
                f"{' of any study' if wiped else ''}")
        self._set(silo, NoticeKind.MEMORY_LOST, f"silo '{silo}', study {task.study}: {text}; it goes on, and what the"
                  " method keeps at silos begins anew: look whether its home folder is the one that it had")
        _LOG.warning("%s, round %d: %s: %s", task.study, task.round, silo, text)
        add_notice(self._ledger, NoticeKind.MEMORY_LOST, study=task.study, round=task.round, silo=silo, text=text)

    def too_old(self, silo: str, text: str) -> None:
        """A silo was not given a task that it would not do as it is asked, which is noted with the task; with an empty
        text it is of age."""
        self._set(silo, _TOO_OLD, text)

    def key_not_taken(self, silo: str, text: str) -> None:
        """The key that a silo gives for secure sums does not stand for it; with an empty text the one that it gives
        does."""
        self._set(silo, _KEY_NOT_TAKEN, text)

    def clock(self, silo: str, text: str) -> None:
        """A silo's clock and the coordinator's differ; with an empty text nothing says so."""
        self._set(silo, _CLOCK, text)

    def _set(self, silo: str, kind: str, text: str) -> None:
        if text:
            self._texts.setdefault(silo, {})[kind] = text
        else:
            self._texts.get(silo, {}).pop(kind, None)
