"""`coordinator backup`: one file from which a federation goes on, taken while `serve` runs.

What it must hold follows from the ledger: a copy of the ledger is made, as SQLite makes one beside those who write, and
hard links keep the files that this copy names; the archive is written from those without holding anyone up. Where the
disk knows no hard links the files are copied. When a file went away meanwhile, as those of a round do that was just
committed, all is begun again; the last time nobody may commit until the files are linked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from semisilo.common import __version__
from semisilo.common.config import canonical_json
from semisilo.common.errors import SemisiloError, StorageDamaged, UsageError
from semisilo.common.models.own.model_file import file_of
from semisilo.common.storage.durable import write_durably
from semisilo.common.storage.state_files import STATE_ENDING
from semisilo.common.storage.store import hash_file
from semisilo.coordinator.federation.backup_archive import (
    FORMAT,
    ArchivedFile,
    BackupManifest,
    read_archive,
    write_archive,
)
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.federation.invitations import authority_of
from semisilo.coordinator.ledger.cleanup import returnable, states_to_keep
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import kept_after
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.records import (
    LABELS_ALONE_FILE,
    LABELS_ALONE_MODEL,
    NOISE_KEY,
    START_FILE,
    RoundRow,
    StudyRow,
)
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.snapshot import check_copy, copy_ledger, no_commits
from semisilo.coordinator.ledger.states import ENDED_ROUND, ENDED_STUDY, RoundState, StudyState, TaskState

__all__ = ["BackupFacts", "NamedFiles", "StudyFacts", "back_up", "last_backup_unix", "named_files", "study_facts"]

LAST_BACKUP = ".backup.json"
"""In the federation's folder: which archive was made last, for those who watch."""
_STAGING = ".backup"
_LOCK = ".backup.lock"
_ENDING = ".tar.zst"
_ATTEMPTS = 5
_OF_A_STUDY = ("study.toml", "model.safetensors", NOISE_KEY, START_FILE, LABELS_ALONE_FILE, LABELS_ALONE_MODEL)
_MADE_AGAIN = re.compile(r"states|report|export-round-\d+|export-labels-alone|contact-sheet(-.*)?\.png")
"""Of the states those go along that the ledger names; reports and exports are written anew from
ledger and states, contact sheets from images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFacts:
    """Where a study stands in a backup."""

    name: str
    state: str
    round: int
    """The last committed one; -1 before round 0 is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupFacts:
    """What `coordinator backup` has done."""

    archive: str
    federation: str
    made_unix: float
    archive_bytes: int
    files: int
    content_bytes: int
    studies: tuple[StudyFacts, ...]
    left_out: tuple[str, ...]
    """What the archive lacks and a restore needs: mostly images."""
    removed: tuple[str, ...]
    """Older archives that were rotated out."""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Files that a ledger names, path from the federation folder -> SHA-256."""

    needed: dict[str, str] = field(default_factory=dict)
    """Without these a study cannot go on."""
    awaited: dict[str, str] = field(default_factory=dict)
    """Of open rounds, too: what a study that has failed goes on with once it is queued again, and masked updates whose
    sum is not made yet. Archives and folders of earlier versions may lack them: neither is refused for that."""
    kept: dict[str, str] = field(default_factory=dict)
    """States of earlier rounds that are still there, for a person to look at; of a study that is over, what it is
    exported, gone back in and started again from (`coordinator queue`)."""


def back_up(federation: Federation, destination: Path, *, now: float, keep: int = 0,
            with_data: bool = False) -> BackupFacts:
    """Writes `destination/NAME-TIME.tar.zst`, reads it again to its end, then removes old ones.

    Args:
        destination: a folder; made if it is not there. Better on another disk.
        now: Unix seconds, for the name.
        keep: how many archives of this federation stay there, this one included; 0 for all.
        with_data: takes along what lies beside the study files, too: images.
    Raises: UsageError; DiskFull; StorageDamaged when a file that a study needs is missing or damaged, or what `restore`
        would refuse: the authority's key is missing, or the audit trail was altered; BadConfiguration when the
        authority is another federation's. Then there is no archive, and nothing was removed.
    """
    if destination.exists() and not destination.is_dir():
        raise UsageError(f"{destination} is not a folder.", remedy="Name a folder for the archives.")
    try:
        destination.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileNotFoundError:  # as in /proc
        raise UsageError(f"{destination}: this folder cannot be made here.",
                         remedy="Make the folder, or name another one for the archives.") from None
    with _alone(federation) as staging:
        for rest in destination.glob(f".{federation.name}-*{_ENDING}.part"):
            rest.unlink(missing_ok=True)  # of a backup that was killed
        target = _free_name(destination, federation.name, now)
        named, studies = _stage(federation, staging)
        _refuse_what_restore_would(federation, staging / "ledger.sqlite")
        sources = _sources(federation, staging, named, studies)
        left_out, data = _beside(federation, studies)
        if with_data:
            sources |= {path: (federation.folder / path, "") for path in data}
            left_out = [path for path in left_out if path.startswith("/")]
        manifest = BackupManifest(
            format=FORMAT, semisilo=__version__, federation=federation.name, made_unix=now, with_data=with_data,
            files=tuple(_described(path, *sources[path]) for path in sorted(sources, key=_order)),
            left_out=tuple(left_out))
        part = target.with_name(f".{target.name}.part")
        try:
            write_archive(part, manifest, {path: source for path, (source, _) in sources.items()})
            read_archive(part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
        _sync(destination)
        with contextlib.suppress(OSError):  # the archive is there, and that is what counts
            write_durably(federation.folder / LAST_BACKUP, canonical_json(
                {"archive": str(target.absolute()), "made_unix": now}).encode() + b"\n", mode=0o600)
        archive_bytes = target.stat().st_size
        removed = _rotate(target, federation.name, keep, now=now) if keep else []
        return BackupFacts(archive=str(target), federation=federation.name, made_unix=now,
                           archive_bytes=archive_bytes, files=len(manifest.files),
                           content_bytes=manifest.total_bytes,
                           studies=study_facts(staging / "ledger.sqlite"), left_out=manifest.left_out,
                           removed=tuple(removed))


def named_files(ledger: Ledger) -> NamedFiles:
    """The files that a ledger names. Pure reading of rows; whether they are there is another question."""
    named = NamedFiles()
    for study in ledger.studies():
        rounds = ledger.rounds(study.name)
        folder = f"studies/{study.name}/states"
        is_open = bool(rounds) and rounds[-1].state not in ENDED_ROUND
        if study.state in ENDED_STUDY:
            if is_open and study.state is StudyState.FAILED:
                named.awaited.update(_files_of_round(ledger, rounds[-1]) | _masked_updates(ledger, rounds[-1]))
            named.kept.update({f"{folder}/{digest}{STATE_ENDING}": digest for digest in _states_of_what_is_over(
                ledger, study)})
            continue
        states = {digest for row in rounds for digest in (row.start_digest, row.state_digest)} - {""}
        named.kept.update({f"{folder}/{digest}{STATE_ENDING}": digest for digest in states})
        needed = ledger.kept_digests(study.name) | {ledger.committed_digest(study.name)}
        if is_open:
            needed |= {rounds[-1].start_digest, rounds[-1].state_digest}
            named.needed.update(_files_of_round(ledger, rounds[-1]))
            named.awaited.update(_masked_updates(ledger, rounds[-1]))
        named.needed.update({f"{folder}/{digest}{STATE_ENDING}": digest for digest in needed - {""}})
    return named


def _states_of_what_is_over(ledger: Ledger, study: StudyRow) -> set[str]:
    """Digests of what export, rollback and another start of a study that is over begin with: the states of its
    last rounds, the one that is handed over, the best one where labels alone may take that one's place; for each round
    that it can go back to by these, what it would hand over then and what the strategy kept for silos; and what it
    keeps for them now. Those of every so many rounds, which a hub keeps as long as it has room, stay out: archives
    would hold them of every study there has ever been."""
    heads = round_heads(ledger, study.name)
    beyond = 1 + max((head.number for head in heads), default=0)
    best = study.frozen is not None and study.frozen.keeps_best
    found = states_to_keep(heads, every=beyond, best=best) | ledger.kept_digests(study.name)
    for head in returnable(heads):
        found |= {digest for _, digest in kept_after(ledger, study.name, head.number).values() if digest is not None}
    return found


def study_facts(ledger: Path) -> tuple[StudyFacts, ...]:
    """Where the studies of a ledger stand, in order of the queue."""
    opened = Ledger(ledger)
    try:
        return tuple(StudyFacts(name=study.name, state=str(study.state), round=max(
            (row.number for row in opened.rounds(study.name) if row.state is RoundState.COMPLETED), default=-1))
            for study in opened.studies())
    finally:
        opened.close()


def _files_of_round(ledger: Ledger, row: RoundRow) -> dict[str, str]:
    """Of a round that is not over: what silos have still to fetch, and what they have delivered."""
    found: dict[str, str] = {}
    for task in ledger.tasks(row.study, row.number, row.phase):
        if task.state is TaskState.OPEN:
            found |= {f"payloads/{payload.digest}": payload.digest for payload in task.spec.payloads if payload.digest}
    for _, update in ledger.accepted_updates(row.study, row.number, row.phase):
        found[f"spool/{update.digest}"] = update.digest
    return found


def _masked_updates(ledger: Ledger, row: RoundRow) -> dict[str, str]:
    """Of an open round in which masks are being taken off: the updates of the step "mask" before."""
    number = row.phase
    if number >= len(row.phases) or row.phases[number].step not in ("confirm", "unmask"):
        return {}
    while row.phases[number].step != "mask":
        number -= 1
    return {f"spool/{update.digest}": update.digest
            for _, update in ledger.accepted_updates(row.study, row.number, number)}


# Taking the snapshot --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(federation: Federation) -> Iterator[Path]:
    """An empty folder on the federation's disk; what an earlier backup has left when it was killed goes first."""
    staging = federation.folder / _STAGING
    handle = _open_lock(federation.folder / _LOCK)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SemisiloError(f"Another 'coordinator backup' of {federation.folder} is running.",
                                remedy="Wait for it to end.") from None
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(handle)


def _open_lock(path: Path) -> int:
    """One that another account has made can be locked as well, if only it can be read. To write first: network folders
    lock nothing that was opened to read."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def last_backup_unix(federation: Federation) -> float | None:
    """When the last archive was made whole, Unix seconds; None where nothing says so."""
    try:
        made = json.loads((federation.folder / LAST_BACKUP).read_bytes())["made_unix"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(made) if isinstance(made, int | float) else None


def _stage(federation: Federation, staging: Path) -> tuple[dict[str, str], list[StudyRow]]:
    """Copies the ledger and links the files that it names into `staging`; returns those and the studies.

    Raises: StorageDamaged when a file is missing that a study needs.
    """
    copy, lacking = staging / "ledger.sqlite", set[str]()
    for attempt in range(1, _ATTEMPTS + 1):
        # `serve` waits at its next commit while it may not, on the thread that answers silos.
        with no_commits(federation.ledger) if attempt == _ATTEMPTS else contextlib.nullcontext():
            copy.unlink(missing_ok=True)
            copy_ledger(federation.ledger, copy)
            ledger = Ledger(copy)
            try:
                named, studies = named_files(ledger), ledger.studies()
            finally:
                ledger.close()  # takes the write-ahead log into the file
            every = {**named.kept, **named.awaited, **named.needed}
            linked = {path: _link(federation.folder / path, staging / path) for path in every}
        there = {path: digest for path, digest in every.items()
                 if linked[path] or _copied(federation.folder / path, staging / path, digest)}
        missing = sorted(named.needed.keys() - there.keys())
        before, lacking = lacking, named.awaited.keys() - there.keys()
        if not missing and (not lacking or lacking == before or attempt == _ATTEMPTS):
            check_copy(copy, federation.ledger)
            return there, studies
    raise StorageDamaged(f"{federation.folder / missing[0]} is missing or damaged, and a study needs it.",
                         remedy="Restore it from an earlier backup, or end the study.")


def _refuse_what_restore_would(federation: Federation, ledger: Path) -> None:
    """An archive that cannot be restored must not take the place of one that can.

    Args:
        ledger: the copy.
    Raises: StorageDamaged; BadConfiguration.
    """
    with contextlib.closing(Ledger(ledger)) as copy:
        authority_of(federation, LedgerRoster(copy))
        try:
            copy.check_events()
        except StorageDamaged as error:
            raise StorageDamaged(error.text.replace(str(ledger), str(federation.ledger)),
                                 remedy=error.remedy) from None


def _link(source: Path, target: Path) -> bool:
    """The same file under another name, which its owner may remove and will not write into; False if that cannot be."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.link(source, target)
    except FileExistsError:
        return True  # of an attempt before: equal names are equal files
    except OSError:
        return False
    return True


def _copied(source: Path, target: Path, digest: str) -> bool:
    """Copies a file where links cannot be. It may have been collected since: then False."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(source, target)
        if hash_file(target) == digest:
            return True
    target.unlink(missing_ok=True)
    return False


def _sources(federation: Federation, staging: Path, named: dict[str, str],
             studies: list[StudyRow]) -> dict[str, tuple[Path, str]]:
    """Path in the archive -> (where its content is, SHA-256 if it is known)."""
    found = {path: (staging / path, digest) for path, digest in named.items()}
    found["ledger.sqlite"] = (staging / "ledger.sqlite", "")
    archives = _archives_of(federation.name)  # each would hold all before it
    alone = [file for file in federation.folder.iterdir() if not file.name.startswith((".", "ledger.sqlite"))
             and file != federation.live and not archives.fullmatch(file.name)]
    for file in [*alone, *federation.authority.iterdir(), *_model_files(federation, studies), *(
            file for study in federation.studies.iterdir() for name in _OF_A_STUDY if (file := study / name).exists())]:
        if file.is_symlink() or not file.is_file() or file.name.startswith("."):
            continue
        path = file.relative_to(federation.folder).as_posix()
        copy = staging / path
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):  # replaced in this instant, or only there for one
            shutil.copyfile(file, copy)
            found[path] = (copy, "")
    return found


def _model_files(federation: Federation, studies: list[StudyRow]) -> list[Path]:
    """What a study starts from, and after a restart goes on with, where it lies in the folder: a file of weights, and
    the file that builds its network."""
    found = []
    for study in studies:
        model = study.config.get("model", {})
        for name in (model.get("weights", ""), file_of(model.get("name", ""))):
            path = federation.studies / study.name / name
            if name and path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(
                    federation.studies.resolve()):
                found.append(Path(os.path.normpath(path)))
    return found


def _beside(federation: Federation, studies: list[StudyRow]) -> tuple[list[str], list[str]]:
    """What lies beside the files of studies, as (paths for a person, files); links are named and never followed."""
    paths, files, taken = [], [], set(_model_files(federation, studies))
    archives = _archives_of(federation.name)
    for study in sorted(path for path in federation.studies.iterdir() if path.is_dir()):
        for entry in sorted(study.iterdir()):
            if entry.name in _OF_A_STUDY or entry.name.startswith(".") or _MADE_AGAIN.fullmatch(entry.name) \
                    or entry in taken or archives.fullmatch(entry.name):
                continue
            path = entry.relative_to(federation.folder).as_posix()
            if entry.is_symlink():
                paths.append(str(entry.absolute()))
            elif entry.is_dir():
                inside = [file for file in sorted(entry.rglob("*")) if file.is_file() and not file.is_symlink()
                          and file not in taken and not archives.fullmatch(file.name)]
                if inside:
                    paths.append(f"{path}/")
                    files += [file.relative_to(federation.folder).as_posix() for file in inside]
            elif entry.is_file():
                paths.append(path)
                files.append(path)
    # Named sets, such as "digits", lie nowhere: as paths they would be in the study's folder.
    wanted = [(federation.studies / study.name / str(study.config.get(table, {}).get(key) or "").partition("#")[0])
              for study in studies for table, key in (("data", "labelled"), ("data", "validation"), ("data", "test"),
                                                      ("model", "weights"))]
    elsewhere = {str(path.resolve()) for path in wanted if not path.resolve().is_relative_to(
        federation.studies.resolve())}
    return paths + sorted(elsewhere - {str(Path(path).resolve()) for path in paths}), files


def _described(path: str, source: Path, digest: str) -> ArchivedFile:
    try:
        return ArchivedFile(path=path, bytes=source.stat().st_size, sha256=digest or hash_file(source))
    except FileNotFoundError:
        raise StorageDamaged(f"{path}: the file went away while it was copied.", remedy="Try again.") from None
    except ValueError as error:
        raise UsageError(f"This file cannot be backed up: {error}", remedy="Give it another name.") from None


def _order(path: str) -> tuple[bool, bytes]:
    """`federation.toml` last: without it no command takes a folder for a federation."""
    return path == "federation.toml", os.fsencode(path)


# Archives in a folder -------------------------------------------------------------------------------------------------


def _free_name(destination: Path, federation: str, now: float) -> Path:
    while True:
        path = destination / f"{federation}-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}{_ENDING}"
        if not path.exists():
            return path
        now += 1.0  # two within one second


def _rotate(new: Path, federation: str, keep: int, *, now: float) -> list[str]:
    """Removes the oldest archives of this federation beside the one that was just written; returns what is gone."""
    ours = _archives_of(federation)
    found = list[tuple[float, str]]()
    for path in new.parent.iterdir():
        named = ours.fullmatch(path.name)
        if named is not None and path != new and path.is_file():
            with contextlib.suppress(ValueError):  # no date: not ours
                made = datetime.strptime(named[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
                found.append((made if made <= now else _seen(path, now), path.name))
    gone = [new.with_name(name) for _, name in sorted(found)[:max(0, len(found) + 1 - keep)]]
    for path in gone:
        path.unlink(missing_ok=True)
    _sync(new.parent)
    return [str(path) for path in gone]


def _archives_of(federation: str) -> re.Pattern[str]:
    """Names of archives, with the time as their group."""
    return re.compile(rf"{re.escape(federation)}-(\d{{8}}T\d{{6}}Z){re.escape(_ENDING)}")


def _seen(path: Path, now: float) -> float:
    """For an archive that says to be made later than now, as one made while the clock was ahead: when it was first
    found here, in Unix seconds. From then on it grows old as the others do. Its file keeps that time."""
    if (found := path.stat().st_mtime) <= now:
        return found
    with contextlib.suppress(OSError):
        os.utime(path, (now, now))
    return now


def _sync(folder: Path) -> None:
    from semisilo.common.storage.durable import sync_folder

    sync_folder(folder)
