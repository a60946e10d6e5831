"""What a probe is asked to do, and the studies that it looks at: the one that was given, with and without protection.

Tests: tests/semisilo/probe/test_probe.py.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semisilo.common.config import Tables, load_toml, to_dict
from semisilo.common.data.readers import survey
from semisilo.common.errors import BadConfiguration, UsageError
from semisilo.common.methods import coordinator_has_labels, silos_have_labels
from semisilo.simulation.settings import SETS, SimulatedStudy, load_simulated_study, name_of

__all__ = ["ProbeSettings", "Protection", "load_probed_study", "probed_tables", "protections"]

_LABELS_PER_CLASS = 10
"""Of the coordinator, where a study without [simulation] is probed on a site's own images."""
_BASELINE = ("labelled_only_baseline", "baseline_recipe", "baseline_epochs", "baseline_budget", "baseline_patience")
_FEWEST_UPDATES = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSettings:
    """How much is tried, and against whom."""

    silo: str = ""
    """The site; empty: the first silo."""
    round: int = 1
    """The round of the study whose update is attacked. The rounds before are trained first, without the site."""
    images: int = 0
    """Most images of the site that are used; 0: all. Fewer are quicker, and give more away."""
    shadows: int = 32
    """Updates that are trained for membership inference, each on a random half of the site's images, and attacked with
    the others. Even, at least 6; 0: no membership inference."""
    epsilons: tuple[float, ...] = ()
    """Also with differential privacy of single images, with these targets for the whole study."""
    others: bool = True
    """Also the average with the other silos of the round."""
    reconstructions: int = 8
    """Updates that are inverted, each of other images; at least 2, or 0: no gradient inversion."""
    searched: int = 8
    """Most images that are searched for at a time."""
    restarts: int = 2
    """Random beginnings of each search."""
    iterations: int = 400
    """Steps of each search."""
    seed: int = 1
    """Of everything that the probe draws."""
    pictures: bool = True
    """Whether pictures of originals and reconstructions are written."""

    def __post_init__(self) -> None:
        if self.shadows and (self.shadows < _FEWEST_UPDATES or self.shadows % 2):
            raise UsageError(f"--shadows {self.shadows}: must be an even number from {_FEWEST_UPDATES}, or 0.",
                             remedy="Choose --shadows 32.")
        if not (self.shadows or self.reconstructions):
            raise UsageError("With --shadows 0 and --reconstructions 0 there is nothing to do.",
                             remedy="Leave one of them out.")
        if self.reconstructions == 1:
            raise UsageError("--reconstructions 1: of one there is no interval.", remedy="Choose 2 or more, or 0.")
        if self.images and self.images < 4:
            raise UsageError(f"--images {self.images}: must be at least 4, or 0 for all.",
                             remedy="Choose --images 200.")
        for epsilon in self.epsilons:
            if not 0 < epsilon < float("inf"):
                raise UsageError(f"--epsilon {epsilon:g}: must be above 0 and finite.", remedy="Choose --epsilon 8.")
        if len(set(self.epsilons)) != len(self.epsilons):
            raise UsageError("--epsilon names the same number twice.", remedy="Leave one of them out.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Protection:
    """The study with one kind of differential privacy, or with none."""

    name: str
    """For folders: "plain", "study", "epsilon-8"."""
    text: str
    """For people; empty without."""
    target_epsilon: float = 0.0
    """For all rounds of the study; 0 where there is none."""
    study: SimulatedStudy


def load_probed_study(study: Path, *, data: str = "", silos: int = 0) -> SimulatedStudy:
    """Reads the study that is to be probed.

    Args:
        study: a study file or its folder, as `semisilo simulate` reads it; of a federation's study, which has no table
            [simulation], `data` says what is dealt.
        data: a site's own labelled images, in the place of [simulation] data; relative to the current folder.
        silos: how many silos they are dealt to where there is no [simulation]; 0: as many as the study starts with, at
            least 5.
    Raises: BadConfiguration, UnknownName, BadData; UsageError for what has no effect.
    """
    path = study / "study.toml" if study.is_dir() else study
    tables, name = load_toml(path), name_of(path.absolute())
    if "simulation" in tables:
        load_simulated_study(path)  # what is wrong is said with the file's name
    if data and data.partition("#")[0] != "digits":
        data = str(Path(data).expanduser().absolute())
    if "simulation" in tables:
        if silos:
            raise UsageError(f"--silos has no effect: {path} has a table [simulation], which says how many there are.",
                             remedy="Change silos of [simulation.split] there.")
        if data:
            tables["simulation"]["data"] = data
            tables["simulation"].pop("test", None)
    elif data:
        tables = _with_simulation(tables, data=data, silos=silos)
    else:
        raise BadConfiguration(f"{path}: table [simulation] is missing: nothing says which images the silos get.",
                               remedy="Name images of your own with their classes: --data /scans.")
    return replace(probed_tables(tables, name=name), folder=path.absolute().parent)


def probed_tables(tables: Mapping[str, Any], *, name: str) -> SimulatedStudy:
    """A study with a table [simulation], without what takes time and changes no update, and with all silos there."""
    kept = copy.deepcopy(dict(tables))
    study = kept.setdefault("study", {})
    for key in _BASELINE:
        study.pop(key, None)
    study["labelled_only_baseline"] = False
    for key in ("stationarity_gap", "forgetting", "dropout", "availability", "reachable"):
        kept["simulation"].pop(key, None)
    return load_simulated_study(kept, name=name)


def _with_simulation(tables: Tables, *, data: str, silos: int) -> Tables:
    """A federation's study as one of simulated silos with a site's own images, all alike."""
    tables = copy.deepcopy(tables)
    study = tables.setdefault("study", {})
    silos = silos or max(5, int(study.pop("start_with", 1)))
    study.pop("start_with", None)
    tables.get("participation", {}).pop("quorum", None)
    of_data = tables.setdefault("data", {})
    for key in (*SETS, "validation_share"):
        of_data.pop(key, None)
    draft = load_simulated_study({**tables, "simulation": {"data": data, "split": {"name": "iid", "silos": silos}}})
    split: dict[str, Any] = {"name": "iid", "silos": silos}
    if coordinator_has_labels(draft.scenario):
        found = survey(data, draft.draft.data.selection).class_counts
        classes = draft.draft.data.classes or tuple(found)
        split["num_labelled"] = _LABELS_PER_CLASS * len(classes)
    if silos_have_labels(draft.scenario):
        split["all_labelled"] = True
    return {**tables, "simulation": {"data": data, "split": split}}


def protections(study: SimulatedStudy, epsilons: tuple[float, ...]) -> tuple[Protection, ...]:
    """The study without protection, with its own [privacy.dp] where that hides single images, and with others.

    Secure aggregation changes who sees what, not what is trained: it is looked at as the average of a round's silos. Of
    [privacy.dp] with unit = "silo" nothing stands between a silo and whoever sees its update, so it is left out, too.
    Raises: BadConfiguration where the method cannot have differential privacy.
    """
    own = study.draft.privacy.dp
    found = [Protection(name="plain", text="", study=_with_privacy(study, None))]
    if own is not None and own.unit == "example":
        told = f"epsilon {own.target_epsilon:g}" if own.target_epsilon else f"noise {own.noise_multiplier:g}"
        found.append(Protection(name="study", text=f"the study's own ({told})", target_epsilon=own.target_epsilon,
                                study=_with_privacy(study, to_dict(own))))
    for epsilon in epsilons:
        kept = {} if own is None else {"clip_norm": own.clip_norm, "delta": own.delta}
        found.append(Protection(name=f"epsilon-{epsilon:g}", text=f"epsilon {epsilon:g}", target_epsilon=epsilon,
                                study=_with_privacy(study, {**kept, "target_epsilon": epsilon})))
    return tuple(found)


def _with_privacy(study: SimulatedStudy, dp: Mapping[str, Any] | None) -> SimulatedStudy:
    tables = copy.deepcopy(dict(study.tables))
    tables.pop("privacy", None)
    if dp is not None:
        tables["privacy"] = {"dp": dict(dp)}
    simulation = _without_none(to_dict(study.simulation))
    found = load_simulated_study({**tables, "simulation": simulation}, name=study.name)
    return replace(found, folder=study.folder)


def _without_none(tables: Tables) -> Tables:
    return {key: _without_none(value) if isinstance(value, dict) else value for key, value in tables.items()
            if value is not None}
