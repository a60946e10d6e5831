"""A comparison file: one base study, variants of it, seeds, and what the paper says of each. See small/*.toml, and
full/*.toml for what can be run at the papers' own scale.

    paper = "semifl"                       the paper whose claim is looked at
    title, claim, scale                    one sentence each: what is compared, the paper's claim, what is smaller here
    seeds = [1, 2, 3]                      a variant may have its own
    [base.<table>] ...                     a study file with a table [simulation]; {data} stands for the data's folder
    [[variant]]
    name = "both"                          line of table and figure
    group = "2 classes per silo"           variants of one group are drawn into one plot
    published = "85.3"                     the paper's number at full scale, as text; left out where there is none
    [variant.set.<table>] ...              what differs from the base
    [variant.choose.<table>]               one setting with a list of values: all are run, and the page shows the one
    lr = [0.1, 0.01]                       with the best accuracy on the validation images after the last round
"""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Comparison", "Variant", "load_comparison", "merged", "study_digest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One line of the comparison."""

    name: str
    group: str
    published: str
    seeds: tuple[int, ...]
    tables: dict[str, Any]
    """The whole study, without its seed."""
    chosen: str = ""
    """Of one among several values of a setting, "lr = 0.1"; several variants then share a name. Else empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What is compared, with which studies."""

    paper: str
    name: str
    """Of the file."""
    title: str
    claim: str
    scale: str
    variants: tuple[Variant, ...]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with changes, table by table; an empty text removes a key."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if isinstance(value, Mapping):
            result[key] = merged(result.get(key, {}), value)
        elif value == "":
            result.pop(key, None)
        else:
            result[key] = value
    return result


def load_comparison(path: Path, *, data: Path) -> Comparison:
    """Reads a comparison file; `{data}` in [simulation] becomes the folder of the image sets.

    Raises: ValueError or KeyError, naming what is wrong.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    variants = []
    for entry in tables["variant"]:
        for chosen, changes in _choices(entry.get("choose", {}), where=path):
            study = merged(merged(tables["base"], entry.get("set", {})), changes)
            study["simulation"]["data"] = study["simulation"]["data"].format(data=data)
            variants.append(Variant(name=entry["name"], group=entry.get("group", ""),
                                    published=str(entry.get("published", "")), tables=study, chosen=chosen,
                                    seeds=tuple(entry.get("seeds", tables["seeds"]))))
    names = [(variant.group, variant.name, variant.chosen) for variant in variants]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: two variants of a group have one name.")
    return Comparison(paper=tables["paper"], name=path.stem, title=tables["title"], claim=tables["claim"],
                      scale=tables["scale"], variants=tuple(variants))


def study_digest(variant: Variant, seed: int) -> str:
    """16 hex digits that change when the study does, wherever its images lie."""
    tables = merged(variant.tables, {"study": {"seed": seed}})
    tables["simulation"]["data"] = Path(tables["simulation"]["data"]).name
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


def _choices(choose: Mapping[str, Any], *, where: Path) -> list[tuple[str, dict[str, Any]]]:
    """What is tried, as text and as changes; one of nothing where there is no choice."""
    settings = [(table, name, values) for table, entries in choose.items() for name, values in entries.items()]
    if not settings:
        return [("", {})]
    if len(settings) > 1:
        raise ValueError(f"{where}: a variant may choose among the values of one setting, not of several.")
    table, name, values = settings[0]
    return [(f"{name} = {value}", {table: {name: value}}) for value in values]
