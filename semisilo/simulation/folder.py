"""The folder of a simulation: that of a federation with the silos' folders beside it, and what is simulated there.

Tests: tests/semisilo/simulation/test_measuring.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from semisilo.common.config import ABSENT_AT_DEFAULT, Tables, canonical_json, from_dict, to_dict
from semisilo.common.errors import BadConfiguration, UsageError
from semisilo.common.models.own.code_stamp import code_stamp
from semisilo.common.storage.durable import write_durably
from semisilo.coordinator.federation.folder import CoordinatorFolder
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.simulation.dealing import Dealt
from semisilo.simulation.parts import write_coordinator
from semisilo.simulation.settings import SimulatedStudy
from semisilo.simulation.source_stamp import source_stamp
from semisilo.simulation.splits.splits import WholePatients

__all__ = ["RecordSource", "SimulationFolder", "SimulationRecord", "begin", "holds"]

_RECORD = "simulation.json"
_CALLED = {"code": "code of the method or network", "digest": "digest of its images"}
"""What a part of the record is called where its name does not say it."""
_DIAGNOSTICS = ("stationarity_gap", "forgetting")
"""Settings of [simulation] that change no bits: they may be turned on and off between two calls."""
_FORMAT = 1
_MOST_NAMED = 3
"""Settings that differ which an error names."""
_LONGEST_NAMED = 40
"""Characters of their values."""
_WRITTEN_LAST = "study.toml"
"""In the folder of a study: where it is, so is all else that `write_coordinator` writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSource:
    """Where a simulation's images come from, so that they can be dealt again."""

    folder: str
    """Where relative paths of table [simulation] start."""
    tables: Tables
    """Of the study file, without [simulation]."""
    simulation: Tables
    """Table [simulation], defaults filled in."""
    stamp: str = ""
    """Of the files when they were dealt last: `semisilo.simulation.source_stamp.source_stamp`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationRecord:
    """What is simulated in a folder: `simulation.json`."""

    format: int
    study: str
    config: Tables
    """The study as the coordinator knows it: a `StudyConfig`, in plain types."""
    simulation: Tables
    """Table [simulation] without what changes no bits."""
    digest: str
    """Of the images as they were dealt."""
    source: RecordSource | None = None
    """None in a folder of an earlier version."""
    patients: WholePatients | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """What it took that no patient is in two parts; None where that took nothing."""
    code: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """Of a method plug-in and the package that builds the network: `semisilo.common.models.own.code_stamp.code_stamp`.
    Empty where both are built in."""


@dataclass(frozen=True, slots=True)
class SimulationFolder(CoordinatorFolder):
    """The paths in the folder of a simulation: a coordinator's, and the silos' beside them."""

    @property
    def silos(self) -> Path:
        """One folder per silo."""
        return self.folder / "silos"

    @property
    def record(self) -> Path:
        """What is simulated here, so that it is not gone on with as another one."""
        return self.folder / _RECORD

    def read_record(self) -> SimulationRecord:
        """What `begin` has noted. Raises: UsageError when this is no simulation's folder, or not of this version."""
        try:
            record = from_dict(SimulationRecord, json.loads(self.record.read_bytes()))
            if record.format == _FORMAT and self.ledger.exists():
                return record
        except (OSError, ValueError, BadConfiguration):
            pass
        raise UsageError(f"{self.folder} holds no simulation.",
                         remedy="Name a folder that `semisilo simulate` has written, such as runs/NAME; of a federation"
                                " it is `coordinator report`.")

    def begun_digest(self) -> str:
        """The digest of what was dealt for the simulation that was begun here, "" for none; also where it was killed
        before its ledger was there."""
        try:
            found = json.loads(self.record.read_bytes())
        except (OSError, ValueError):
            return ""
        digest = found.get("digest") if isinstance(found, dict) else None
        return digest if isinstance(digest, str) else ""

    @contextmanager
    def lock(self, *, to_read: bool = False) -> Iterator[None]:
        """Held while a simulation runs here; the kernel lets go of it however the process ends.

        Args:
            to_read: whether others may read here meanwhile as well.
        Raises: UsageError when another process has it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, (fcntl.LOCK_SH if to_read else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"{self.folder}: another simulation runs here.",
                                 remedy="Wait for it, or choose another folder.") from None
            yield
        finally:
            os.close(handle)


def holds(folder: SimulationFolder, study: SimulatedStudy) -> bool:
    """Whether a folder is known to hold just this simulation, without dealing its images: its settings are the same,
    and the files that the images come from look untouched. False says nothing: `begin` finds out, from the images."""
    try:
        before = folder.read_record()
    except UsageError:
        return False
    now = _source(study, stamp=source_stamp(study))
    return (bool(now.stamp) and before.study == study.name and before.code == _code_of(study)
            and canonical_json(before.source) == canonical_json(now))


def begin(folder: SimulationFolder, dealt: Dealt, *, stamp: str) -> None:
    """Notes what is simulated in a folder and writes the coordinator's part; to be called before every run.

    A simulation of other settings that ended before it had a model gives way: a mistake in a study file shows there,
    and is corrected.

    Args:
        stamp: of the files that the images come from, taken before they were read.
    Raises: UsageError when the folder holds something else.
    """
    study = dealt.study
    now = SimulationRecord(
        format=_FORMAT, study=study.name, config=to_dict(dealt.config),
        simulation=_without_diagnostics(to_dict(study.simulation)), digest=dealt.digest(),
        source=_source(study, stamp=stamp), patients=dealt.split.patients, code=_code_of(study))
    if folder.record.exists():
        before = json.loads(folder.record.read_bytes())
        before["simulation"] = _without_diagnostics(before.get("simulation", {}))
        wanted = {key: value for key, value in to_dict(now).items() if key != "source"}
        changed = [key for key in wanted if canonical_json(before.get(key)) != canonical_json(wanted[key])]
        if changed and _has_begun(folder, str(before.get("study", ""))):
            parts = " and another ".join(_CALLED.get(key, key) for key in changed)
            raise UsageError(f"{folder.folder} holds a simulation with another {parts}{_differing(before, wanted)}.",
                             remedy="Choose another folder (--out; from Python out=), or remove that one.")
        if changed:
            _clear(folder, str(before.get("study", "")))
            _write_record(folder, now)
        elif before.get("source") != to_dict(now.source):  # files have moved, or diagnostics were turned on
            _write_record(folder, now)
    elif any(path.name != "lock" and not _is_half_a_record(path) for path in folder.folder.iterdir()):
        raise UsageError(f"{folder.folder} is not empty, and holds no simulation.",
                         remedy="Choose another folder (--out; from Python out=).")
    else:
        for path in filter(_is_half_a_record, list(folder.folder.iterdir())):
            path.unlink()
        _write_record(folder, now)
    if not (folder.studies / study.name / _WRITTEN_LAST).exists():
        write_coordinator(dealt, folder.studies / study.name)


def _write_record(folder: SimulationFolder, record: SimulationRecord) -> None:
    """Also where the name of a folder is no UTF-8, as on a disk of long ago; `json.loads` takes such bytes back."""
    write_durably(folder.record, canonical_json(record).encode("utf-8", "surrogatepass") + b"\n")


def _is_half_a_record(path: Path) -> bool:
    """What a kill leaves of the first file that is written here: `write_durably` renames it."""
    return path.name.startswith(f".{_RECORD}.") and path.suffix == ".tmp"


def _differing(before: Tables, now: Tables) -> str:
    """Which settings of two records differ, and how, for an error; empty where none does."""
    found = []
    for part, prefix in (("config", ()), ("simulation", ("simulation",))):
        there, here = (dict(_settings_in(each.get(part), prefix)) for each in (before, now))
        found += [f"{_key_text(key)} = {_value_text(there, key)} there, {_value_text(here, key)} here"
                  for key in sorted(there.keys() | here.keys()) if there.get(key) != here.get(key)]
    more = len(found) - _MOST_NAMED
    return f": {'; '.join(found[:_MOST_NAMED])}{f'; and {more} more' if more > 0 else ''}" if found else ""


def _settings_in(tables: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where each value of tables stands, and the value as JSON."""
    if isinstance(tables, dict) and tables:
        for key, value in tables.items():
            yield from _settings_in(value, (*path, str(key)))
    else:
        yield path, canonical_json(tables)


def _key_text(path: tuple[str, ...]) -> str:
    return f"[{path[0]}] {'.'.join(path[1:])}".rstrip()


def _value_text(settings: Mapping[tuple[str, ...], str], path: tuple[str, ...]) -> str:
    text = settings.get(path, "nothing")
    return text if len(text) <= _LONGEST_NAMED else f"{text[:_LONGEST_NAMED]}..."


def _has_begun(folder: SimulationFolder, study: str) -> bool:
    """Whether there is a model of a study: a committed round, if only round 0."""
    if not folder.ledger.exists():
        return False
    ledger = Ledger(folder.ledger, waits=False)
    try:
        return ledger.committed_digest(study) != ""
    finally:
        ledger.close()


def _clear(folder: SimulationFolder, study: str) -> None:
    """Removes all that a simulation has written, but for its record, which the next one replaces. What says that a
    study's files are whole goes first."""
    (folder.studies / study / _WRITTEN_LAST).unlink(missing_ok=True)
    for path in (folder.studies, folder.payloads, folder.spool, folder.silos):
        shutil.rmtree(path, ignore_errors=True)
    for ending in ("", "-wal", "-shm"):
        folder.ledger.with_name(f"{folder.ledger.name}{ending}").unlink(missing_ok=True)


def _source(study: SimulatedStudy, *, stamp: str) -> RecordSource:
    return RecordSource(folder=str(study.folder), tables=to_dict(study.tables), simulation=to_dict(study.simulation),
                        stamp=stamp)


def _code_of(study: SimulatedStudy) -> str:
    return code_stamp(study.draft.method.name, study.draft.model.name)


def _without_diagnostics(simulation: Tables) -> Tables:
    return {key: value for key, value in simulation.items() if key not in _DIAGNOSTICS}
