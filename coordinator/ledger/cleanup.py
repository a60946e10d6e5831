"""Removes the files of rounds that are over: updates, payloads and states that no row of the ledger needs any more."""

from __future__ import annotations

from pathlib import Path

from common.store import PayloadStore
from coordinator.ledger import Ledger
from coordinator.retention import states_to_keep

__all__ = ["Leftovers"]

_STATE_ENDING = ".safetensors"


class Leftovers:
    """What rounds and studies leave behind on the disk; which states stay is for `coordinator.retention` to say."""

    def __init__(self, *, ledger: Ledger, payloads: PayloadStore, spool: PayloadStore, studies: Path) -> None:
        """
        Args:
            payloads: what silos download.
            spool: what silos upload.
            studies: the folder in which every study has one.
        """
        self._ledger = ledger
        self._payloads = payloads
        self._spool = spool
        self._studies = studies

    def remove_updates(self, name: str, number: int) -> None:
        """Removes the updates of a round that is over, also those of which only a part has come."""
        for update_id in self._ledger.unfinished_updates(name, number):
            self._spool.drop_partial(update_id)
        self._spool.collect(set())

    def remove_unneeded(self, name: str, *, keep_every: int) -> None:
        """Removes files that no row needs any more; only ever called after a commit.

        Args:
            keep_every: the state of every so many rounds stays.
        """
        last = self._ledger.last_round(name)
        assert last is not None
        self.remove_updates(name, last.number)
        self._payloads.collect(set())
        keep = states_to_keep(self._ledger.rounds(name), every=keep_every)
        keep |= self._ledger.kept_digests(name)
        for file in (self._studies / name / "states").glob(f"*{_STATE_ENDING}"):
            if file.name.removesuffix(_STATE_ENDING) not in keep:
                file.unlink(missing_ok=True)

    def remove_spares(self) -> None:
        """Removes the files that the stores keep to write over, once a study is complete."""
        for store in (self._payloads, self._spool):
            store.drop_spares()
