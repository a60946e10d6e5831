"""The strategy's work before round 1, on disk now and then: after a kill it goes on from there instead of anew.

Tests: tests/coordinator/compute/test_operations.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from semisilo.common.errors import BadData, StorageDamaged, SystemTrouble
from semisilo.common.storage import checkpoint

__all__ = ["SavingPace", "StartWork"]

T = TypeVar("T")

_LOG = logging.getLogger("semisilo.study")
_SAVE_SECONDS = 30.0
"""Work that a kill may cost, or more where writing takes long."""
_SAVING_SHARE = 0.05
"""Share of the time that writing it may take."""


@dataclass(kw_only=True, slots=True)
class SavingPace:
    """When work that is under way is to be written down; an error of the system is no reason to end it."""

    what: str
    """For the log."""
    next_: float = 0.0

    def start(self) -> None:
        """Nothing is to be written before a while has gone by."""
        self.next_ = time.monotonic() + _SAVE_SECONDS

    def save(self, write: Callable[[], Any]) -> None:
        """Calls `write` where it is time to."""
        if (began := time.monotonic()) < self.next_:
            return
        try:
            write()
        except SystemTrouble as error:  # nobody waits for this file: it is tried again
            _LOG.warning("%s: where it stands is not written: %s", self.what, error.line())
        self.next_ = began + max(_SAVE_SECONDS, (time.monotonic() - began) / _SAVING_SHARE)


class StartWork:
    """`semisilo.common.methods.contract.StartWork` in one file of the study's folder."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pace = SavingPace(what="work before round 1")
        self._pace.start()

    def left(self, kind: type[T]) -> T | None:
        """What a process before this one has left; None without a file, and where it is damaged or of another kind."""
        if not self._file.exists():
            return None
        try:
            return checkpoint.load(self._file, kind)
        except (StorageDamaged, BadData):
            return None

    def keep(self, position: Callable[[], Any]) -> None:
        """Writes where the work stands, durably, every half minute."""
        self._pace.save(lambda: checkpoint.save(self._file, position()))

    def done(self) -> None:
        """Forgets it: the state that it led to is on disk."""
        self._file.unlink(missing_ok=True)
