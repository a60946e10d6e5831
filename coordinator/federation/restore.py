"""`coordinator restore`: a federation folder from a backup, checked before any command takes it for one.

Tests: tests/coordinator/federation/test_backup.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.audit.chain import RESTORED
from semisilo.common.errors import SemisiloError, StorageDamaged, UsageError
from semisilo.common.process.folder_owner import refuse_for_root
from semisilo.common.storage.durable import sync_folder, write_durably
from semisilo.coordinator.federation.authority import load_authority
from semisilo.coordinator.federation.backup import StudyFacts, named_files, study_facts
from semisilo.coordinator.federation.backup_archive import BackupManifest, read_archive
from semisilo.coordinator.federation.folder import open_federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster

__all__ = ["RestoreFacts", "restore"]

_LOG = logging.getLogger("semisilo.coordinator")
_STAGING = ".restoring"
_MOVED = ".moving"
"""In that folder: the names of what is moved out of it at the end, as JSON."""
_PARTS = ("payloads", "spool", "studies")
_MAY_BE_THERE = ("lost+found",)
"""An empty disk has it."""


_ELSEWHERE = "Restore into a new folder, and move it when coordinator status says what you expect."


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreFacts:
    """What `coordinator restore` has done."""

    folder: str
    federation: str
    made_unix: float
    """When the backup was taken."""
    files: int
    content_bytes: int
    studies: tuple[StudyFacts, ...]
    left_out: tuple[str, ...]
    """What the backup does not hold and must be put back."""
    withdrawn_invitations: int
    """Open invitations of the backup, which may have been used since: they no longer work."""


def restore(archive: Path, folder: Path, *, by: str = "") -> RestoreFacts:
    """Makes `folder` the federation that was backed up.

    Open invitations end, since one may have been used after the backup; the ledger's events say that it was restored.
    What a restore has left that was killed is removed first, and nothing else.

    Args:
        by: who does it, for the audit trail.
    Raises: UsageError when the archive is not there, the folder is in use, or this is root and the folder or the one
        in which it is made is another account's; StorageDamaged when the backup is damaged
        or does not hold what its ledger names; DiskFull. The folder is as it was then.
    """
    if not archive.is_file():
        raise UsageError(f"{archive}: no such file.", remedy="Name the archive that coordinator backup has written.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} exists and is not an empty folder.", remedy=_ELSEWHERE)
    new = not folder.exists()
    there = folder.absolute()
    refuse_for_root(next(each for each in (there, *there.parents) if each.is_dir()))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    staging = folder / _STAGING
    with _alone(folder):
        if not (folder / "federation.toml").exists():
            _take_back(folder)  # what a restore that was killed has left
        if any(entry.name not in _MAY_BE_THERE for entry in folder.iterdir()):
            raise UsageError(f"{folder} exists and is not an empty folder.", remedy=_ELSEWHERE)
        with contextlib.suppress(OSError):  # one that is somebody else's; coordinator serve says so
            folder.chmod(0o700)
        try:
            staging.mkdir(mode=0o700)
            manifest = read_archive(archive, into=staging)
            _check(staging, manifest, archive)
            withdrawn = _note(staging, manifest, by)
            for part in _PARTS:
                (staging / part).mkdir(exist_ok=True)
            studies = study_facts(staging / "ledger.sqlite")
            names = sorted(path.name for path in staging.iterdir() if path.name != "federation.toml")
            write_durably(staging / _MOVED, json.dumps(names).encode())
            for name in names:
                os.replace(staging / name, folder / name)
            sync_folder(folder)
            os.replace(staging / "federation.toml", folder / "federation.toml")
            # The folder is the federation now, whatever is left of the other one and whatever fails.
            try:
                sync_folder(folder)
            except OSError as error:
                _LOG.warning("%s is restored, and the system does not confirm that it is on the disk for good: %s;"
                             " check the disk and the log of the system", folder, error.strerror or error)
            shutil.rmtree(staging, ignore_errors=True)
        except BaseException:
            if not (folder / "federation.toml").exists():
                _take_back(folder)
                if new and not any(folder.iterdir()):
                    folder.rmdir()
            raise
    return RestoreFacts(folder=str(folder), federation=manifest.federation, made_unix=manifest.made_unix,
                        files=len(manifest.files), content_bytes=manifest.total_bytes,
                        studies=studies, left_out=manifest.left_out,
                        withdrawn_invitations=withdrawn)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """So that no restore takes another one, which is under way, for one that was killed."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SemisiloError(f"Another 'coordinator restore' into {folder} is running.",
                                remedy="Wait for it to end.") from None
        yield
    finally:
        os.close(handle)


def _take_back(folder: Path) -> None:
    """Removes what an unfinished restore has put into a folder: `federation.toml`, which comes last, is not there."""
    staging = folder / _STAGING
    try:
        names = json.loads((staging / _MOVED).read_bytes())
    except (OSError, ValueError):  # it has moved nothing yet
        names = []
    if not (staging / "federation.toml").exists():  # it had finished, and the federation has lost its file since
        names = []
    for name in names if isinstance(names, list) else []:
        path = folder / str(name)
        if path.parent == folder and not (staging / path.name).exists():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    shutil.rmtree(staging, ignore_errors=True)


def _check(folder: Path, manifest: BackupManifest, archive: Path) -> None:
    """Whether the files make a federation that can go on.

    Raises: StorageDamaged, naming what is wrong.
    """
    try:
        federation = open_federation(folder)
        if not federation.ledger.is_file():  # else an empty one would be made here
            raise StorageDamaged("there is no ledger in it")
        name = load_authority(federation.authority).federation
        if {name, federation.name} != {manifest.federation}:
            raise StorageDamaged(f"it is of federation '{manifest.federation}', its authority of '{name}'")
        with contextlib.closing(Ledger(federation.ledger)) as ledger:
            ledger.check_events()
            needed = named_files(ledger).needed
        digests = {file.path: file.sha256 for file in manifest.files}
        for path, digest in needed.items():
            if digests.get(path) != digest:
                raise StorageDamaged(f"{path}, which its ledger names, is not in it")
    except SemisiloError as error:
        raise StorageDamaged(f"{archive}: not a backup to continue from: {error.text.rstrip('.')}.",
                             remedy="Use another backup.") from None


def _note(folder: Path, manifest: BackupManifest, by: str) -> int:
    """Ends open invitations and writes the restore into the audit trail; returns how many there were."""
    with contextlib.closing(Ledger(folder / "ledger.sqlite")) as ledger, ledger.acted_by(by), \
            ledger.transaction():
        withdrawn = LedgerRoster(ledger).withdraw_invitations(time.time())
        ledger.event(RESTORED, backup_made_unix=manifest.made_unix, invitations_withdrawn=withdrawn)
    return withdrawn
