"""What a silo keeps between rounds, on disk: per study one committed memory and at most one pending answer.

`memory.json` is the index, replaced atomically; memory files lie beside it as `<sha256>.safetensors` (what the trainer
keeps, and what lossy updates have left out: `semisilo.silo.compute.lossy_update`), updates in a payload store of their
own; `authority` beside them says whose studies they are of. The compute process writes all these files first;
`record_pending` then names them in the index, before the update is sent. So at every instant the index names only files
that are whole, and a file that it does not name is rubbish.

The rule (docs/architecture.md, "Silo memory"): every task says which round of this silo was folded last. When that is
the pending round, pending becomes committed; otherwise it is dropped. Trainers see committed memory only. What is of a
study that had gone back more often than the task says is of rounds that a restored coordinator knows nothing of.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from semisilo.common.config import ABSENT_AT_DEFAULT, canonical_json, from_dict
from semisilo.common.errors import BadConfiguration, DiskFull, StorageDamaged
from semisilo.common.methods.contract import PayloadRef, try_of
from semisilo.common.storage.durable import naming, sync_found, write_durably
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.common.storage.store import hash_file
from semisilo.common.text.describe import describe_bytes
from semisilo.silo.site.stores import open_outgoing

__all__ = ["UNUSED_DAYS", "CommittedMemory", "PendingUpdate", "SiloMemory", "update_id_of"]

_LOG = logging.getLogger("semisilo.memory")
_INDEX = "memory.json"
_OWNER = "authority"
"""A file of its own: the index keeps the form that earlier versions read."""
_AUTHORITY = re.compile("[0-9a-f]{64}")
UNUSED_DAYS = 90
"""What was kept for a study goes when none of its files has changed for so long, by a clock that has said so for a day;
a study that comes back after all starts without memory."""
_DAY_SECONDS = 86400.0
_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedMemory:
    """The memory that the next trainer of a study sees."""

    round: int
    """The last folded round that it includes."""
    digest: str
    """SHA-256 of its file, hex; empty when the trainer keeps nothing."""
    residuals: str = ""
    """SHA-256 of the file of what lossy updates have left out, hex; empty when there is nothing."""
    gone_back: int = field(default=0, metadata=ABSENT_AT_DEFAULT)
    """How often the study had gone back to an earlier round when it was folded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingUpdate:
    """The last answer to a task: sent, or about to be, and not known to be folded."""

    round: int
    task_id: str
    """Names no task when the answer itself is lost and only its memory is left: see `_lost`."""
    update_id: str
    memory: str = ""
    """SHA-256 of the memory file to commit when the round is folded, hex; empty: the committed one stays."""
    residuals: str = ""
    """The same of what lossy updates have left out."""
    earlier: tuple[str, str] = ("", "")
    """`memory` and `residuals` after the earlier phases of the round: what stays when this answer is not wanted."""
    payload: PayloadRef | None = None
    """The update's payload in the outgoing store; None for an abstention."""
    abstention: str = ""
    num_examples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    """How long training took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    committed: CommittedMemory | None = None
    pending: PendingUpdate | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Index:
    format: int = _FORMAT
    latest: str = ""
    """The study that was worked on last."""
    studies: dict[str, _Kept] = field(default_factory=dict)


class SiloMemory:
    """The durable memory of one silo. Used by one agent at a time (the agent's lock sees to that)."""

    def __init__(self, folder: Path, *, outgoing: Path | None = None, clock: Callable[[], float] = time.time,
                 monotonic: Callable[[], float] = time.monotonic) -> None:
        """Opens or creates the memory in `folder`; `outgoing` is the store of updates (default: a folder inside);
        `clock` gives Unix seconds, `monotonic` seconds that never step."""
        self.folder = folder
        self._clock = clock
        self._monotonic = monotonic
        self._looked_unused: dict[str, float] = {}
        """Study -> since when it has looked unused at every look, of `monotonic`."""
        self.outgoing = open_outgoing(folder / "outgoing" if outgoing is None else outgoing)
        folder.mkdir(parents=True, exist_ok=True)
        self._last_bytes: dict[str, int] = {}
        """Study -> size of the last update of it in the life of this process."""
        self._whole: dict[str, tuple[int, int, int]] = {}
        self._index = self._load()

    def belong_to(self, authority: str) -> None:
        """Memory of another federation's studies goes; that of which nobody knows whose it is counts as this one's.

        Args:
            authority: `authority_id` of the federation's.
        """
        before = self._owner()
        if before == authority:
            return
        if before:
            if self._index.studies:
                _LOG.info("what was kept for studies of another federation is removed: %s",
                          ", ".join(sorted(self._index.studies)))
            self._write(_Index())  # first: what is killed here has nothing of another federation's
        write_durably(self.folder / _OWNER, f"{authority}\n".encode())
        self._collect()

    def is_of_another(self, authority: str) -> bool:
        """Whether what is kept is of another federation's studies, as far as it is known whose it is."""
        return self._owner() not in ("", authority)

    def _owner(self) -> str:
        owner = self.folder / _OWNER
        found = owner.read_text(errors="replace").strip() if owner.exists() else ""
        return found if _AUTHORITY.fullmatch(found) else ""  # damaged: it names none

    def resolve(self, study: str, last_folded_round: int, *, round: int = 0, task_id: str = "") -> None:
        """Applies the rule of the module to what a new task says.

        Args:
            study: study of the task.
            last_folded_round: the last round whose update from this silo was folded; 0 for none.
            round: round of the task. A pending answer to an earlier phase of the same round stays undecided, unless
                that was before the round was begun again.
            task_id: a pending answer to this very task stays, so that it is sent again and not trained again.
        """
        if last_folded_round and study not in self._index.studies:
            _LOG.warning("study %s: the coordinator folded an update of round %d of this silo, and nothing is known of"
                         " it here: this silo's memory was wiped, or %s is not the folder that it had; training starts"
                         " without it", study, last_folded_round, self.folder)
        kept = self._index.studies.get(study, _Kept())
        committed, pending = _of_this_past(study, kept, _gone_back(task_id))
        if pending is not None and pending.round == last_folded_round:
            before = committed or CommittedMemory(round=0, digest="")
            digest, residuals = pending.memory or before.digest, pending.residuals or before.residuals
            committed = (CommittedMemory(round=pending.round, digest=digest, residuals=residuals,
                                         gone_back=_gone_back(pending.task_id))
                         if digest or residuals else None)
            pending = None
        elif pending is not None and pending.task_id != task_id and not (
                pending.round == round > last_folded_round and try_of(pending.task_id) == try_of(task_id)):
            if not pending.abstention:
                _LOG.info("study %s: the update of round %d was not used; what it left in memory is dropped", study,
                          pending.round)
            pending = None
        if committed is not None and committed.round != last_folded_round:
            _LOG.warning("study %s: the memory of round %d does not fit: the coordinator folded round %d last;"
                         " it is dropped and training starts without it", study, committed.round, last_folded_round)
            committed = None
        self._put(study, _Kept(committed=committed, pending=pending))
        self._forget_unused(study)
        self._collect()

    def committed(self, study: str) -> Path | None:
        """The memory file that a trainer may see, verified; None when there is none or it is lost."""
        kept = self._index.studies.get(study, _Kept())
        if kept.committed is None or not kept.committed.digest:
            return None
        path = self._memory_path(kept.committed.digest)
        if _digest(path) == kept.committed.digest:
            return path
        _LOG.warning("study %s: memory file %s is missing or damaged; training goes on without memory", study, path)
        self._put(study, replace(kept, committed=None))
        return None

    def residuals(self, study: str, *, round: int) -> tuple[Path | None, Path | None]:
        """The files of what lossy updates have left out: committed, and after an earlier phase of `round`; verified.

        None where there is none or it is lost: what was left out then stays out, and the next update starts anew.
        """
        kept = self._index.studies.get(study, _Kept())
        pending = kept.pending if kept.pending is not None and kept.pending.round == round else None
        return (self._whole_residuals(study, "" if kept.committed is None else kept.committed.residuals),
                self._whole_residuals(study, "" if pending is None else pending.residuals))

    def _whole_residuals(self, study: str, digest: str) -> Path | None:
        path = self._memory_path(digest)
        if not digest or _digest(path) == digest:
            return path if digest else None
        _LOG.warning("study %s: what earlier updates left out is lost: %s is missing or damaged", study, path)
        return None

    def pending_for(self, task_id: str) -> PendingUpdate | None:
        """The answer to `task_id` that only needs sending (again); None when the task must be done."""
        for study, kept in self._index.studies.items():
            pending = kept.pending
            if pending is None or pending.task_id != task_id:
                continue
            broken = [path for path, digest in self._files(pending) if _digest(path) != digest]
            if not broken:
                return pending
            _LOG.warning("the answer to task %s cannot be sent again: %s is missing or damaged; the task is done again",
                         task_id, broken[0])
            # An earlier phase of the round may have left the memory; it does not go with this answer.
            memory, residuals = (each if self._is_whole(each) else "" for each in (pending.memory, pending.residuals))
            self._put(study, replace(kept, pending=None if not (memory or residuals) else PendingUpdate(
                round=pending.round, task_id=_lost(pending.task_id), update_id="", memory=memory, residuals=residuals)))
            return None
        return None

    def record_pending(self, study: str, *, round: int, task_id: str, update_id: str, memory: Path | None = None,
                       residuals: Path | None = None, payload: PayloadRef | None = None, abstention: str = "",
                       num_examples: int = 0, metrics: Mapping[str, float] | None = None,
                       seconds: float = 0.0) -> PendingUpdate:
        """Makes an answer and its memory durable, in one step. To be called before a byte of it is sent.

        A later phase of a round replaces the answer of an earlier one, but not its memory, when it brings none of its
        own (`memory` is None, or just the committed file that it was given). `residuals` is None where they stay as
        they are.

        Raises: StorageDamaged when a file that is named is not there.
        """
        kept = self._index.studies.get(study, _Kept())
        digest = "" if memory is None else memory.name.removesuffix(STATE_ENDING)
        before = kept.pending
        if kept.committed is not None and digest == kept.committed.digest:
            digest = ""
        left_out = "" if residuals is None else residuals.name.removesuffix(STATE_ENDING)
        earlier = ("", "")
        if before is not None and before.round == round:
            earlier = before.earlier if before.task_id == task_id else (before.memory, before.residuals)
            digest, left_out = digest or earlier[0], left_out or earlier[1]
        pending = PendingUpdate(round=round, task_id=task_id, update_id=update_id, memory=digest, residuals=left_out,
                                earlier=earlier, payload=payload, abstention=abstention, num_examples=num_examples,
                                metrics=dict(metrics or {}), seconds=seconds)
        for path, _ in self._files(pending):
            if not path.is_file():
                raise StorageDamaged(f"{path}: written for task {task_id}, but not there.")
        self._put(study, replace(kept, pending=pending))
        self._last_bytes[study] = 0 if payload is None else payload.size_bytes
        return pending

    def check_room(self, study: str) -> None:
        """Whether what the next answer leaves would fit on the disk, if it takes as much as the last one: to be asked
        before hours of training that could not be kept. Memory is written beside the committed one; of an update, what
        does not fit into a file that is written over.

        Raises: DiskFull.
        """
        kept = self._index.studies.get(study, _Kept()).committed
        memory = 0 if kept is None else sum(self._size(digest) for digest in (kept.digest, kept.residuals))
        needed = memory + max(0, self._last_bytes.get(study, 0) - self.outgoing.spare_bytes)
        if needed and needed > shutil.disk_usage(self.folder).free:
            raise DiskFull(f"{self.folder}: training would leave {describe_bytes(needed)} here, and not so much is"
                           " free.", remedy="Free some space.")

    def is_sound(self, study: str, last_folded_round: int) -> bool:
        """Whether all that the coordinator counts on is here, whole: what `resolve` would drop or miss is not."""
        if study not in self._index.studies:
            return not last_folded_round
        kept = self._index.studies[study]
        committed, pending = kept.committed, kept.pending
        folded = {each.round for each in (committed, pending) if each is not None}
        files = [] if pending is None else self._files(pending)
        if committed is not None:
            files += [(self._memory_path(digest), digest) for digest in (committed.digest, committed.residuals)
                      if digest]
        return ((committed is None or last_folded_round in folded)
                and all(_digest(path) == digest for path, digest in files))

    def refused(self, task_id: str) -> None:
        """The coordinator does not want the answer to a task: what it left in memory is dropped, so that a later phase
        of the round cannot bring it in. What earlier phases of the round left stays undecided."""
        for study, kept in self._index.studies.items():
            pending = kept.pending
            if pending is None or not task_id or pending.task_id != task_id:
                continue
            memory, residuals = pending.earlier
            self._put(study, replace(kept, pending=None if not (memory or residuals) else PendingUpdate(
                round=pending.round, task_id=_lost(pending.task_id), update_id="", memory=memory, residuals=residuals)))
            return

    def state(self) -> tuple[str, int]:
        """(study, round) of the newest memory at hand, for AwaitTask; round 0 when there is none or it is lost."""
        study = self._index.latest
        kept = self._index.studies.get(study, _Kept())
        if kept.pending is not None and self._all_whole(kept.pending.memory, kept.pending.residuals):
            return study, kept.pending.round
        if kept.committed is None or not self._all_whole(kept.committed.digest, kept.committed.residuals):
            return study, 0
        if kept.pending is not None and not kept.pending.abstention:
            return study, kept.pending.round
        return study, kept.committed.round

    def _forget_unused(self, present: str) -> None:
        """A coordinator does not say that a study is over for good, and each leaves files as large as its model.

        A clock may step by months and back again, so a study goes only when it has looked unused for a day.
        """
        oldest, now = self._clock() - UNUSED_DAYS * _DAY_SECONDS, self._monotonic()
        self._looked_unused = {
            study: self._looked_unused.get(study, now) for study, kept in self._index.studies.items()
            if study != present and (changed := self._changed_unix(kept)) is not None and changed < oldest}
        unused = [study for study, since in self._looked_unused.items() if now - since >= _DAY_SECONDS]
        if unused:
            self._write(replace(self._index, studies={study: kept for study, kept in self._index.studies.items()
                                                      if study not in unused}))
            for study in unused:
                _LOG.info("study %s: what training kept for it is removed: it was last used more than %d days ago",
                          study, UNUSED_DAYS)

    def _changed_unix(self, kept: _Kept) -> float | None:
        """When the newest file of a study was written, Unix seconds; None where it has none."""
        paths = [] if kept.pending is None else [path for path, _ in self._files(kept.pending)]
        if kept.committed is not None:
            paths += [self._memory_path(digest) for digest in (kept.committed.digest, kept.committed.residuals)
                      if digest]
        found = list[float]()
        for path in paths:
            try:
                found.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(found, default=None)

    # Files ------------------------------------------------------------------------------------------------------------

    def _memory_path(self, digest: str) -> Path:
        return self.folder / f"{digest}{STATE_ENDING}"

    def _size(self, digest: str) -> int:
        try:
            return self._memory_path(digest).stat().st_size if digest else 0
        except FileNotFoundError:
            return 0

    def _all_whole(self, *digests: str) -> bool:
        """Whether there is a file to name, and all that are named are whole."""
        named = [digest for digest in digests if digest]
        return bool(named) and all(map(self._is_whole, named))

    def _is_whole(self, digest: str) -> bool:
        """Whether a memory file has its digest; read again only when it looks changed, for this is asked every poll."""
        if not digest:
            return False
        path = self._memory_path(digest)
        try:
            found = path.stat()
        except FileNotFoundError:
            return False
        looks = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._whole.get(digest) != looks:
            if _digest(path) != digest:
                return False
            self._whole[digest] = looks
        return True

    def _files(self, pending: PendingUpdate) -> list[tuple[Path, str]]:
        files = [(self._memory_path(digest), digest) for digest in (pending.memory, pending.residuals) if digest]
        if pending.payload is not None:
            files.append((self.outgoing.path(pending.payload.digest), pending.payload.digest))
        return files

    def _put(self, study: str, kept: _Kept) -> None:
        changed = replace(self._index, latest=study, studies={**self._index.studies, study: kept})
        if changed != self._index:
            self._write(changed)
            self._collect()

    def _load(self) -> _Index:
        path = self.folder / _INDEX
        sync_found(path)  # an answer that is sent upon it must not be forgotten with it
        try:
            with naming(path):
                content = json.loads(path.read_bytes())
            if isinstance(content, dict) and isinstance(written := content.get("format"), int) and written > _FORMAT:
                raise StorageDamaged(f"{path}: written by a newer version (format {written}).",
                                     remedy="Upgrade semisilo on this machine.")
            return from_dict(_Index, content, where=str(path))
        except FileNotFoundError:
            return _Index()
        except (ValueError, BadConfiguration) as error:
            aside = path.with_suffix(".damaged")
            os.replace(path, aside)
            _LOG.warning("%s is damaged (%s) and is kept as %s; this silo goes on without memory", path, error, aside)
            return _Index()

    def _write(self, index: _Index) -> None:
        """Replaces the index; after a crash at any instant either the old or the new one is there, whole."""
        write_durably(self.folder / _INDEX, canonical_json(index).encode() + b"\n")
        self._index = index

    def _collect(self) -> None:
        """Removes the files that the index does not name; never before the index that forgets them is durable."""
        pending = [kept.pending for kept in self._index.studies.values() if kept.pending is not None]
        committed = [kept.committed for kept in self._index.studies.values() if kept.committed is not None]
        named = {digest for each in committed for digest in (each.digest, each.residuals)}
        named |= {digest for each in pending for digest in (each.memory, each.residuals, *each.earlier)}
        self._whole = {digest: looks for digest, looks in self._whole.items() if digest in named}
        try:
            for path in self.folder.iterdir():
                if path.name.endswith((STATE_ENDING, ".tmp")) and path.name.removesuffix(STATE_ENDING) not in named:
                    path.unlink(missing_ok=True)
            self.outgoing.collect({each.payload.digest for each in pending if each.payload is not None})
        except OSError as error:
            _LOG.warning("files that are no longer needed could not be removed from %s: %s", self.folder, error)


def _lost(task_id: str) -> str:
    """In the place of a task's name where its answer is lost: names no task, and tells which try of the round it was
    of."""
    tried = try_of(task_id)
    return f"////{tried}" if tried else ""


def _gone_back(task_id: str) -> int:
    """How often a task's study had gone back to an earlier round, by the task's name (`task_id_of`)."""
    tried = try_of(task_id)
    return int(tried) if re.fullmatch("[0-9]{1,9}", tried) else 0


def _of_this_past(study: str, kept: _Kept, gone_back: int) -> tuple[CommittedMemory | None, PendingUpdate | None]:
    """What is kept, without what is of a past that the coordinator does not have: it was restored from a backup of
    before its study went back, and rounds of both pasts have the same numbers."""
    committed, pending = kept.committed, kept.pending
    if committed is not None and committed.gone_back > gone_back:
        _LOG.warning("study %s: the memory of round %d is of after the study went back to an earlier round, and the"
                     " coordinator is restored to before that; it is dropped and training starts without it", study,
                     committed.round)
        committed = None
    if pending is not None and _gone_back(pending.task_id) > gone_back:
        _LOG.info("study %s: the update of round %d is of after the study went back to an earlier round, and the"
                  " coordinator is restored to before that; what it left in memory is dropped", study, pending.round)
        pending = None
    return committed, pending


def update_id_of(task_id: str, content: str) -> str:
    """Names an answer: the same for every repetition of the same answer to the same task; 32 hex digits.

    Args:
        content: the digest of the update's payload, or what is answered instead, and what tells its task from another
            of the same name.
    """
    return hashlib.sha256(f"{task_id}\n{content}".encode()).hexdigest()[:32]


def _digest(path: Path) -> str:
    """SHA-256 of a file, hex; empty when it is not there. Raises: OSError, which says nothing of what it holds."""
    try:
        return hash_file(path)
    except FileNotFoundError:
        return ""
