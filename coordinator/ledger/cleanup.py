"""The files that the ledger names: the stores that hold them, and which go when no row needs them any more.

Updates go when their round is over, payloads with it; of the states those stay that `states_to_keep` says. The stores
are those of all studies, and a round stays open while its study has failed, or waits for its turn after a restart: so
what an open round of any study needs stays, whichever study is tidied up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import kept_after
from semisilo.coordinator.ledger.progress import best_committed, handed_over, handed_over_then, round_heads
from semisilo.coordinator.ledger.records import RoundHead
from semisilo.coordinator.ledger.states import RoundState, TaskState

__all__ = ["Cleanup", "open_payloads", "open_spool", "payloads_to_keep", "returnable", "states_to_keep",
           "updates_to_keep"]

_LAST = 3
_SPARE_PAYLOADS = 2
_SPARE_UPDATES = 8
"""Old files that new ones are written over, at most; they go when the disk is short."""


class Cleanup:
    """What rounds and studies leave behind on the disk; which states stay is for `states_to_keep` to say."""

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

    async def remove_updates(self, name: str, number: int) -> None:
        """Removes the updates of a round that is over, also those of which only a part has come.

        Not on the event loop: one of them may just be read, or be waiting for the disk.
        """
        unfinished = self._ledger.unfinished_updates(name, number)
        # In this order: what comes meanwhile is not among those that were there.
        there = await asyncio.to_thread(self._spool.digests)
        gone = there - updates_to_keep(self._ledger)
        await asyncio.to_thread(self._remove_updates, unfinished, gone)

    async def remove_unneeded(self, name: str, *, keep_every: int) -> None:
        """Removes files that no row needs any more; only ever called after a commit, and before tasks are given again.

        A thousand updates take a second to remove, in which silos are answered.

        Args:
            keep_every: the state of every so many rounds stays.
        """
        there = await asyncio.to_thread(lambda: (self._spool.digests(), self._payloads.digests()))
        updates, payloads = there[0] - updates_to_keep(self._ledger), there[1] - payloads_to_keep(self._ledger)
        unfinished = self._ledger.unfinished_updates(name, round_heads(self._ledger, name)[-1].number)

        def remove() -> list[Path]:
            self._remove_updates(unfinished, updates)
            _remove(self._payloads, payloads)
            return list((self._studies / name / "states").glob(f"*{STATE_ENDING}"))
        states = await asyncio.to_thread(remove)
        # An operator may have gone back to an earlier round since, and needs its files. Whoever goes back looks for
        # them in a transaction, perhaps in another process; so it is one here in which the others lose their names.
        # That takes no time; to remove files as large as models would.
        with self._ledger.transaction(lasting=False):
            keep = self._states_to_keep(name, keep_every)
            gone = [_set_aside(file) for file in states if file.name.removesuffix(STATE_ENDING) not in keep]
        await asyncio.to_thread(_unlink, gone)

    def _states_to_keep(self, name: str, keep_every: int) -> set[str]:
        """Digests of the state files that stay as the study stands now."""
        rounds, frozen = round_heads(self._ledger, name), self._ledger.study(name).frozen
        keep = states_to_keep(rounds, every=keep_every, best=frozen is not None and frozen.keeps_best)
        keep |= self._ledger.kept_digests(name)
        for row in returnable(rounds):
            keep |= {digest for _, digest in kept_after(self._ledger, name, row.number).values() if digest is not None}
        return keep

    def _remove_updates(self, unfinished: Iterable[str], gone: Iterable[str]) -> None:
        for update_id in unfinished:
            self._spool.drop_partial(update_id)
        _remove(self._spool, gone)

    def remove_spares(self) -> None:
        """Removes the files that the stores keep to write over, once a study is complete."""
        for store in (self._payloads, self._spool):
            store.drop_spares()


def _set_aside(file: Path) -> Path:
    """Gives a file the name of one that a kill has left half-written (`StateFiles.clean`), under which nobody reads
    it."""
    aside = file.with_name(f".{file.name}.tmp")
    with suppress(FileNotFoundError):
        os.replace(file, aside)
    return aside


def _unlink(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _remove(store: PayloadStore, digests: Iterable[str]) -> None:
    for digest in digests:
        store.recycle(store.path(digest))


def updates_to_keep(ledger: Ledger) -> set[str]:
    """Digests of the updates that open rounds of any study may still fold, behind masks or not: those that were
    accepted, and those that are announced for open tasks, which may be whole before they are accepted."""
    # From the open rounds, of which each study has one at most: an index has them.
    return {row["digest"] for row in ledger.query(
        "SELECT declared_update.digest FROM round CROSS JOIN task ON task.study = round.study AND task.round ="
        " round.number CROSS JOIN declared_update ON declared_update.task_id = task.task_id WHERE round.closed_unix IS"
        " NULL AND (task.state = ? OR task.update_id = declared_update.update_id)", TaskState.OPEN)}


def payloads_to_keep(ledger: Ledger) -> set[str]:
    """Digests of the payloads that open tasks of open rounds of any study bring."""
    return {row["digest"] for row in ledger.query(
        "SELECT DISTINCT json_extract(payload.value, '$.digest') AS digest FROM round CROSS JOIN task ON task.study ="
        " round.study AND task.round = round.number CROSS JOIN json_each(task.spec_json, '$.payloads') AS payload"
        f" WHERE round.closed_unix IS NULL AND task.state = '{TaskState.OPEN}'")} - {""}


def states_to_keep(rounds: Sequence[RoundHead], *, every: int, best: bool = False) -> set[str]:
    """Digests of the state files to keep: of the last 3 rounds, of the one that is handed over as things stand, and of
    every `every`-th; and for each that a study can so go back to, of the one that it would hand over then.

    With another round that one stays or is the new one (`semisilo.common.measures.round_choice`), so it is always here.
    For going back that is at most 3 files more for the last rounds, and at most one for each `every`-th.

    Args:
        best: whether the round with the highest score stays likewise, which labels alone may leave in the place of the
            chosen one (`semisilo.coordinator.ledger.progress.handed_over_beside`).
    """
    keep = {digest for row in rounds[-_LAST:] for digest in (row.start_digest, row.state_digest)}
    committed = [row for row in rounds if row.state is RoundState.COMPLETED]
    keep |= {row.state_digest for row in committed if row.number % every == 0}
    last = {row.number for row in committed[-_LAST - 1:]}
    keep |= {row.state_digest for number, row in handed_over_then(committed).items()
             if number % every == 0 or number in last}
    for index, row in enumerate(committed) if best else ():
        if row.number % every == 0 or row.number in last:
            best_then = best_committed(committed[:index + 1])
            keep |= set() if best_then is None else {best_then.state_digest}
    return keep - {""}


def returnable(rounds: Sequence[RoundHead]) -> list[RoundHead]:
    """The rounds of which also stays what the strategy kept for silos, as it was then, so that a study can go back to
    them: the last 3 committed ones and the one before, from which the first of them began, and the one that is handed
    over as things stand. Where a strategy keeps nothing for silos, a study can go back to all rounds whose state is
    kept."""
    committed = [row for row in rounds if row.state is RoundState.COMPLETED]
    chosen = handed_over(committed)
    return [row for row in committed if row in committed[-_LAST - 1:] or row is chosen]


def open_payloads(folder: Path) -> PayloadStore:
    """What silos may fetch."""
    return PayloadStore(folder, spare_files=_SPARE_PAYLOADS)


def open_spool(folder: Path, *, limit_bytes: int) -> PayloadStore:
    """Updates, until their round is committed."""
    return PayloadStore(folder, limit_bytes=limit_bytes, spare_files=_SPARE_UPDATES)
