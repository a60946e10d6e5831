"""Study files that an operator makes without an editor: from the template that `coordinator new` writes, or like a
study that there is, with a few settings chosen. Whatever else is to be set is set in the file.

Tests: tests/coordinator/studies/test_drafts.py.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import tomli_w

from semisilo.common.errors import UsageError
from semisilo.common.methods import METHODS, Scenario, find_method
from semisilo.common.models.own.model_file import file_of
from semisilo.common.storage.durable import write_durably
from semisilo.coordinator.federation.folder import WHERE_KEYS_ARE_EXPLAINED, Federation, study_template
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.studies.queue import create_study
from semisilo.coordinator.studies.study_file import load_study

__all__ = ["MethodChoice", "ScenarioChoice", "StudyChoices", "StudyDraft", "create_draft", "drafts_of", "study_choices"]

_PATHS = (("data", "labelled"), ("data", "validation"), ("data", "test"), ("model", "weights"))
"""Settings that may be paths from the study's folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyDraft:
    """What is chosen; what is left out is as in the template, or as in the study that it is like."""

    name: str
    like: str = ""
    """A study of this federation; empty for the template."""
    scenario: str = ""
    """Of the template; empty for labels at the coordinator."""
    method: str = ""
    """With its default settings, where it is another one."""
    model: str = ""
    rounds: int | None = None
    start_with: int | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioChoice:
    """One template."""

    name: str
    method: str
    """That of the template."""
    rounds: int
    start_with: int
    seed: int
    model: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodChoice:
    """One method that may be chosen."""

    name: str
    source: str
    scenarios: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyChoices:
    """What a new study may be, as GET /api/choices has it."""

    scenarios: tuple[ScenarioChoice, ...]
    methods: tuple[MethodChoice, ...]
    drafts: tuple[str, ...]
    """Studies with a file that were never queued."""


def study_choices(federation: Federation, ledger: Ledger) -> StudyChoices:
    """The templates, the methods that are built in, and the drafts there are."""
    return StudyChoices(
        scenarios=tuple(_choice(each) for each in get_args(Scenario)),
        methods=tuple(MethodChoice(name=spec.name, source=spec.source, scenarios=spec.scenarios)
                      for spec in METHODS.values()),
        drafts=drafts_of(federation, ledger))


def _choice(scenario: Scenario) -> ScenarioChoice:
    text = study_template(scenario)

    def value(key: str, table: str) -> str:
        found = re.search(rf'^{key} = "?([^"\s]+)', text[text.index(f"[{table}]"):], re.MULTILINE)
        assert found is not None, key
        return found[1]

    return ScenarioChoice(name=scenario, method=value("name", "method"), model=value("name", "model"),
                          rounds=int(value("rounds", "study")), start_with=int(value("start_with", "study")),
                          seed=int(value("seed", "study")))


def drafts_of(federation: Federation, ledger: Ledger) -> tuple[str, ...]:
    """Studies with a file that the ledger does not know, by name."""
    known = {row.name for row in ledger.studies()}
    return tuple(sorted(name for path in federation.studies.glob("*/study.toml")
                        if (name := path.parent.name) not in known))


def create_draft(federation: Federation, ledger: Ledger, draft: StudyDraft) -> Path:
    """Makes `studies/NAME/study.toml`; returns its path. What is wrong with the choices leaves nothing behind.

    Raises: UsageError for a name that does not fit or is taken; UnknownName; BadConfiguration as `coordinator queue`
        has it.
    """
    if ":" in draft.model:
        raise UsageError(f"'{draft.model[:80]}' is a model factory, which is code: it is named in the study file only.",
                         remedy="Choose a network of coordinator models, or write it into the file at the hub.")
    network = ""
    if draft.like:
        text = _like(federation, ledger, draft)
        network = "" if draft.model else file_of(str(ledger.study(draft.like).config.get("model", {}).get("name", "")))
        scenario: Scenario = "labels-at-coordinator"
    else:
        found = draft.scenario or "labels-at-coordinator"
        if found not in get_args(Scenario):
            raise UsageError(f"There is no scenario {found!r}.", remedy=f"There are {', '.join(get_args(Scenario))}.")
        scenario = next(each for each in get_args(Scenario) if each == found)
        text = _from_template(draft, scenario)
    fresh = not (federation.studies / draft.name).exists()
    path = create_study(federation, draft.name, scenario=scenario)
    copied: Path | None = None
    try:
        copied = _copied(network, federation.studies / draft.like, path.parent) if network else None
        write_durably(path, text.encode())
        load_study(path)
    except BaseException:
        path.unlink(missing_ok=True)
        if fresh:
            shutil.rmtree(path.parent, ignore_errors=True)
        elif copied is not None:
            copied.unlink(missing_ok=True)
        raise
    return path


def _copied(file: str, old: Path, new: Path) -> Path | None:
    """Copies the file that builds a network, which lies beside the study file; what is there already stays.

    Returns: the copy; None where there is none.
    """
    target = new / file
    if target.exists() or not (old / file).is_file():
        return None  # whether it is that file is looked at with the study
    target.parent.mkdir(exist_ok=True)
    write_durably(target, (old / file).read_bytes())
    return target


def _from_template(draft: StudyDraft, scenario: Scenario) -> str:
    """The template with its lines changed, so that its comments stay."""
    text, given = study_template(scenario), _choice(scenario)
    for key, old, new in (("rounds", given.rounds, draft.rounds), ("start_with", given.start_with, draft.start_with),
                          ("seed", given.seed, draft.seed)):
        if new is not None:
            text = text.replace(f"\n{key} = {old}", f"\n{key} = {new}", 1)
    if draft.model:
        text = text.replace(f'\nname = "{given.model}"', f"\nname = {_quoted(draft.model)}", 1)
    if draft.method and draft.method != given.method:
        find_method(draft.method)
        begin, end = text.index("[method]\n"), text.index("[participation]\n")
        text = (f'{text[:begin]}[method]\nname = {_quoted(draft.method)}\nscenario = "{scenario}"\n'
                f"# its settings: methods/{draft.method}.md of the documentation\n\n{text[end:]}")
    return text


def _like(federation: Federation, ledger: Ledger, draft: StudyDraft) -> str:
    """The settings of a study as it was queued, with what was chosen; its images are those of that study."""
    row = ledger.study(draft.like)
    tables: dict[str, dict[str, Any]] = {name: dict(table) for name, table in row.config.items()
                                         if isinstance(table, Mapping)}
    if not tables.get("method", {}).get("name"):
        raise UsageError(f"Study '{draft.like}' was refused before its file could be read.",
                         remedy="Begin with the template, or another study.")
    settings = tables["method"].pop("settings", {})
    if draft.method and draft.method != tables["method"]["name"]:
        find_method(draft.method)
        settings = {key: value for key, value in settings.items() if key == "scenario"}
        tables["method"] = {"name": draft.method}
    else:
        # A study file says its task in [study].
        settings = {key: value for key, value in settings.items()
                    if key != "task" and key not in find_method(tables["method"]["name"]).set_by_strategy}
    tables["method"] |= settings
    chosen = {("study", "rounds"): draft.rounds, ("study", "start_with"): draft.start_with,
              ("study", "seed"): draft.seed, ("model", "name"): draft.model or None}
    for (table, key), value in chosen.items():
        if value is not None:
            tables.setdefault(table, {})[key] = value
    tables.get("model", {}).pop("classes", None)
    if draft.model:
        tables["model"].pop("factory_sha256", None)  # of the file of the other network
    for table, key in _PATHS:
        if (text := tables.get(table, {}).get(key)):
            tables[table][key] = _moved(str(text), old=federation.studies / row.name,
                                        new=federation.studies / draft.name)
    return f"# Like study {row.name}.\n{WHERE_KEYS_ARE_EXPLAINED}\n{tomli_w.dumps(_given(tables))}"


def _moved(text: str, *, old: Path, new: Path) -> str:
    """A path from one study's folder, from another one's; what is no file there, such as "digits", stays."""
    file, mark, rest = text.partition("#")
    if Path(file).is_absolute() or not (old / file).exists():
        return text
    return f"{os.path.relpath(old / file, new)}{mark}{rest}"


def _given(value: Any) -> Any:  # Any: what a JSON text may hold
    """Without what TOML has no word for: a setting that is None is one that is left out."""
    if isinstance(value, Mapping):
        return {key: _given(each) for key, each in value.items() if each is not None}
    return [_given(each) for each in value] if isinstance(value, (list, tuple)) else value


def _quoted(text: str) -> str:
    return tomli_w.dumps({"x": text}).removeprefix("x = ").strip()
