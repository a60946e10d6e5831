"""From study files to the ledger's queue, and what an operator may do with a study."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from semisilo.common.config import canonical_json, to_dict
from semisilo.common.errors import UnknownName, UsageError
from semisilo.common.methods import Scenario
from semisilo.common.storage.durable import sync_folder, write_durably
from semisilo.common.text.names import nearest_name
from semisilo.coordinator.federation.folder import Federation, study_template
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import FrozenStudy, StudyRow
from semisilo.coordinator.ledger.states import ENDED_STUDY, StudyState
from semisilo.coordinator.studies.study_file import StudyConfig, check_participation, config_from_dict, load_study

__all__ = ["create_study", "edited_studies", "queue_new_studies", "queue_study"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_MOST_EDITS = 6
_LONGEST_SHOWN = 100
"""Edits that a message names, and characters of a value in it."""


def create_study(federation: Federation, name: str, *, scenario: Scenario = "labels-at-coordinator") -> Path:
    """Makes `studies/<name>/study.toml` from the template; returns its path.

    Raises: UsageError when the name does not fit or is taken.
    """
    _check_name(name)
    folder = federation.studies / name
    path = folder / "study.toml"
    if path.exists():
        raise UsageError(f"Study '{name}' exists already: {path}.", remedy="Edit that file, or choose another name.")
    (folder / "data").mkdir(parents=True, exist_ok=True)
    write_durably(path, study_template(scenario).encode())
    sync_folder(federation.studies)
    return path


def _check_name(name: str) -> None:
    """Raises: UsageError, with the nearest name that is one."""
    if _NAME.fullmatch(name) is None:
        near = nearest_name(name[:200], also="_-", capitals=True)
        raise UsageError(f"{name[:80]!r} cannot name a study.",
                         remedy="Use letters a to z, digits, '_' and '-', at most 63, beginning with a letter or digit"
                                + (f", for example '{near}'." if near else "."))


def queue_study(federation: Federation, ledger: Ledger, name: str, *,
                check: Callable[[StudyConfig, FrozenStudy | None], None] = lambda config, frozen: None,
                only_check: bool = False) -> StudyConfig:
    """Checks a study file and puts it at the end of the queue, where its settings are frozen.

    A study that waits in the queue and has never begun takes the file as it is now, and keeps its place. One that
    failed before its first round is queued again with the file as it is now; one that failed or was stopped later goes
    on with the settings that it began with.
    Args:
        check: told the settings, and what an earlier beginning has frozen, before anything is queued; raises what is
            wrong with them beyond the file, such as images that cannot be read.
        only_check: queues nothing.
    Raises: UnknownName, BadConfiguration; UsageError when the study is in the queue with these settings, has begun
        with others, or is over; what `check` raises.
    """
    path = federation.studies / name / "study.toml"
    if not path.is_file():
        names = ", ".join(sorted(file.parent.name for file in federation.studies.glob("*/study.toml"))) or "none yet"
        raise UnknownName(f"There is no file {path}.",
                          remedy=f"Studies: {names}. Make one with: coordinator new {name}.")
    _check_name(name)
    config = load_study(path)
    known = _may_be_queued(ledger, name, config, path)
    # Before its first commit it begins anew: with other images, where the operator has mended them.
    check(config, known.frozen if known is not None and ledger.committed_digest(name) else None)
    if only_check:
        return config
    with ledger.transaction():  # a check takes minutes, in which somebody else may have queued it
        known = _may_be_queued(ledger, name, config, path)
        if known is None:
            ledger.queue_study(name, to_dict(config))
        elif known.state in ENDED_STUDY:
            ledger.requeue_study(name, known.config if ledger.committed_digest(name) else to_dict(config))
        else:
            ledger.replace_settings(name, to_dict(config))
    return config


def _may_be_queued(ledger: Ledger, name: str, config: StudyConfig, path: Path) -> StudyRow | None:
    """What the ledger knows of a study that may be queued as things stand, or, while it waits in the queue, may get
    other settings. Raises: UsageError where it may not."""
    known = ledger.find_study(name)
    if known is not None:
        if known.state is StudyState.COMPLETED:
            raise UsageError(f"Study '{name}' is complete.", remedy="Start another one: coordinator new NAME.")
        waits = known.state not in ENDED_STUDY
        if waits and not _is_edited(config, known):
            raise UsageError(f"Study '{name}' is {known.state}.", remedy="It needs no queueing.")
        has_begun = _has_begun(ledger, known) if waits else ledger.committed_digest(name) != ""
        if has_begun and _is_edited(config, known):
            raise _begun_with_others(ledger, known, path, config)
    if not ledger.committed_digest(name):
        check_participation(config, str(path))
    return known


def edited_studies(federation: Federation, ledger: Ledger) -> dict[str, str]:
    """What to say of the studies that are queued or have begun, and whose file has other settings by now, by name."""
    found = {}
    for row in ledger.studies():
        path = federation.studies / row.name / "study.toml"
        if row.state in ENDED_STUDY or not path.is_file():
            continue
        try:
            config = load_study(path)
            if not _is_edited(config, row):
                continue
        except UsageError as error:
            found[row.name] = f"its settings stay those with which it was queued, for {path} is wrong: {error.line()}"
            continue
        found[row.name] = _begun_with_others(ledger, row, path, config).line() if _has_begun(ledger, row) else (
            f"it waits with other settings than {path} has now: {_edits(config, row)}. To take the file as it is:"
            f" coordinator queue {row.name}")
    return found


def _is_edited(config: StudyConfig, row: StudyRow) -> bool:
    """Whether the file has other settings than the ledger. Those that an earlier version did not know are as they are
    when they are left out."""
    return canonical_json(to_dict(config)) != canonical_json(to_dict(_config_then(row)))


def _config_then(row: StudyRow) -> StudyConfig:
    return config_from_dict(row.config, where=f"study {row.name}")


def _edits(config: StudyConfig, row: StudyRow) -> str:
    """What the file says now and the ledger says: "[study] rounds is 9, and was 3". They also differ where the file
    says nothing of a setting and this version has another default than the one that the study was queued with."""
    now, then = _settings_of(to_dict(config)), _settings_of(to_dict(_config_then(row)))
    found = [f"{place} is {_shown(now.get(place))}, and was {_shown(then.get(place))}"
             for place in sorted(now.keys() | then.keys()) if now.get(place) != then.get(place)]
    more = len(found) - _MOST_EDITS
    return "; ".join(found[:_MOST_EDITS] + ([f"and {more} more"] if more > 0 else []))


def _settings_of(tables: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Its place in the file, such as "[method] lr", -> the value of every setting; of those that are left out too."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            # The settings of a method, which the ledger has in a table of their own, stand beside its name.
            found |= _settings_of(value, at if (at, key) == ("method", "settings") else f"{at}.{key}" if at else key)
        else:
            found[f"[{at}] {key}"] = value
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "left out"
    text = canonical_json(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _has_begun(ledger: Ledger, row: StudyRow) -> bool:
    return row.state is not StudyState.QUEUED or ledger.committed_digest(row.name) != ""


def _begun_with_others(ledger: Ledger, row: StudyRow, path: Path, config: StudyConfig) -> UsageError:
    if row.state in ENDED_STUDY:
        remedy = ("To continue it, undo the edit; if nobody has edited it, this version has another default, and what"
                  " it was belongs into the file. Or start another study: coordinator new NAME.")
    elif row.state is not StudyState.QUEUED and ledger.committed_digest(row.name) == "":
        remedy = (f"No round of it is done yet. To begin again with the file: coordinator stop {row.name}, then"
                  f" coordinator queue {row.name}.")
    else:
        remedy = ("It goes on with the settings that it began with. For others start another study: coordinator new"
                  " NAME.")
    return UsageError(f"Study '{row.name}' has begun with other settings than {path} has now:"
                      f" {_edits(config, row)}.", remedy=remedy)


def queue_new_studies(federation: Federation, ledger: Ledger) -> tuple[list[str], dict[str, UsageError]]:
    """What `serve` does when it starts: queues the studies that the ledger does not know and those that have failed.

    A file that is wrong stops no other study: it is marked as failed in the ledger, and tried again at the next start.
    Returns: the names of what is queued, and what is wrong with the others.
    """
    known = {row.name: row for row in ledger.studies()}
    queued, refused = [], {}
    order = list(known)  # of the queue: those that failed keep their order, and new ones follow by name
    names = sorted((path.parent.name for path in federation.studies.glob("*/study.toml")),
                   key=lambda name: (order.index(name) if name in known else len(order), name))
    for name in names:
        if name in known and known[name].state is not StudyState.FAILED:
            continue
        try:
            queue_study(federation, ledger, name)
        except UsageError as error:
            ledger.refuse_study(name, error.line())
            refused[name] = error
        else:
            queued.append(name)
    return queued, refused
