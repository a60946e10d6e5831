"""A study file with a table [simulation], and the study of real silos that follows once the images are dealt.

Tests: tests/semisilo/simulation/test_split.py.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semisilo.common.config import Tables, from_dict, load_toml
from semisilo.common.errors import BadConfiguration, SemisiloError
from semisilo.common.methods import Scenario, find_method, silos_have_labels
from semisilo.common.methods.parts.privacy import too_few_silos, too_few_to_sum
from semisilo.common.methods.parts.robust import refused
from semisilo.common.models.own.model_file import file_of, with_digest
from semisilo.coordinator.studies.simulation_table import SimulationSettings
from semisilo.coordinator.studies.study_file import StudyConfig, config_from_dict

__all__ = ["SETS", "SimulatedStudy", "check_names", "load_simulated_study", "name_of", "set_file", "weights_file"]

SETS = ("labelled", "validation", "test")
"""The coordinator's sets of images, as table [data] calls them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStudy:
    """A checked study file of simulated silos."""

    name: str
    folder: Path
    """Where relative paths of table [simulation] start."""
    tables: Mapping[str, Any]
    """All tables but [simulation], as they were written."""
    simulation: SimulationSettings
    draft: StudyConfig
    """The settings before it is known which sets the coordinator gets."""

    @property
    def weights(self) -> Path | None:
        """The file of [model] weights; None without one."""
        named = self.draft.model.weights
        return self.folder / Path(named).expanduser() if named else None

    @property
    def model_file(self) -> Path | None:
        """The file that builds the network; None without one."""
        named = file_of(self.draft.model.name)
        return self.folder / named if named else None

    @property
    def scenario(self) -> Scenario:
        """Who holds labels."""
        scenario: Scenario = self.draft.method.settings.scenario
        return scenario

    def deployable(self, *, classes: tuple[str, ...], sets: tuple[str, ...]) -> Tables:
        """The tables of the same study with real silos.

        Args:
            classes: in label order.
            sets: which of `SETS` the coordinator has; each is a file of the study's folder (`set_file`).
        """
        tables = copy.deepcopy(dict(self.tables))
        if self.weights is not None:
            tables["model"]["weights"] = weights_file(self.weights)
        study, data = tables.setdefault("study", {}), tables["data"]
        study.setdefault("start_with", self.simulation.split.silos)
        tables["data"] = {**{name: set_file(name) for name in SETS if name in sets}, "classes": list(classes),
                          **{key: value for key, value in data.items() if key != "classes"}}
        return tables


def set_file(name: str) -> str:
    """Where one of the coordinator's sets lies in the folder of a study."""
    return f"data/{name}.npz"


def weights_file(source: Path) -> str:
    """Where the file of [model] weights lies in the folder of a study."""
    return f"data/{source.name}"


def load_simulated_study(study: Path | Mapping[str, Any], *, name: str = "", seed: int | None = None,
                         threads: int | None = None) -> SimulatedStudy:
    """Reads and checks a study of simulated silos.

    Args:
        study: a study file or its folder, or the tables of one; relative paths of tables start at the current folder.
        name: what the study is called; empty: after its file or folder.
        seed, threads: take the place of [study] seed and [numerics] threads.
    Raises: BadConfiguration or UnknownName, naming table and key.
    """
    if isinstance(study, Path):
        path = study / "study.toml" if study.is_dir() else study
        tables, where, folder = load_toml(path), str(path), path.absolute().parent
        name = name or name_of(path.absolute())
    else:
        where, folder, name = "study", Path.cwd(), name or "study"
        tables = copy.deepcopy(dict(study))
    if "simulation" not in tables:
        raise BadConfiguration(f"{where}: table [simulation] is missing: nothing says which images the silos get.",
                               remedy='Add [simulation] data = "digits" and'
                                      ' split = { name = "iid", silos = 10, num_labelled = 50 }.')
    simulation = from_dict(SimulationSettings, tables.pop("simulation"), where=f"{where}: [simulation]")
    written, numerics = tables.setdefault("study", {}), tables.setdefault("numerics", {})  # other than tables: below
    if seed is not None and isinstance(written, dict):
        written["seed"] = seed
    if isinstance(numerics, dict):
        # Silos train side by side, and with one thread the bits are those of every machine.
        numerics["threads"] = (threads if threads is not None else numerics.get("threads")) or 1
    draft = _draft(tables, where)
    model = with_digest(draft.model, folder)
    if model != draft.model:
        tables["model"]["factory_sha256"] = model.factory_sha256  # so that another file is another study
        draft = replace(draft, model=model)
    _check_diagnostics(simulation, draft, where)
    _check_robust(simulation, draft, where)
    start_with = tables.get("study", {}).get("start_with", 1)
    if start_with > simulation.split.silos:
        raise BadConfiguration(f"{where}: [study]: start_with = {start_with}: there are only {simulation.split.silos}"
                               " silos.", remedy="Leave it out.")
    return SimulatedStudy(name=name, folder=folder, tables=tables, simulation=simulation,
                          draft=draft)


def check_names(study: SimulatedStudy) -> None:
    """Whether the network and the operations of views that a study names are there; imports torch.

    Raises: UnknownName or BadConfiguration, with the study's name.
    """
    from semisilo.common.data.augmentation.augment import check_settings
    from semisilo.common.models.factory import check_name

    try:
        check_name(study.draft.model.name)
        check_settings(study.draft.augmentation.decided(()))
    except SemisiloError as error:
        raise type(error)(f"study {study.name}: {error.text}", remedy=error.remedy) from None


def _check_robust(simulation: SimulationSettings, draft: StudyConfig, where: str) -> None:
    """Raises: BadConfiguration for a rule of [robust], or privacy of silos, that needs more of them than there are."""
    if why := refused(draft.robust, method=draft.method.name, allowed=find_method(draft.method.name).robust_rules,
                      uplink=draft.wire.uplink_form(), silos=draft.participation.sample_size(simulation.split.silos)):
        raise BadConfiguration(f"{where}: [robust]: {why}")
    if why := too_few_silos(draft.privacy.dp, draft.participation.sample_size(simulation.split.silos)):
        raise BadConfiguration(f"{where}: [privacy.dp]: {why}")
    if why := too_few_to_sum(draft.privacy, draft.participation.sample_size(simulation.split.silos)):
        raise BadConfiguration(f"{where}: [privacy]: {why}")


def _check_diagnostics(simulation: SimulationSettings, draft: StudyConfig, where: str) -> None:
    """Raises: BadConfiguration for a diagnostic that the method cannot have."""
    method = draft.method
    if simulation.stationarity_gap and method.name != "fed_shvr":
        raise BadConfiguration(f"{where}: [simulation]: stationarity_gap = true: the gap is one of Fed-SHVR's"
                               f" objective, which {method.name} does not have.", remedy="Remove that line.")
    if simulation.stationarity_gap:
        for name in ("logit_adjustment", "labelled_sampling", "distribution_alignment"):
            if getattr(method.settings, name) not in (0.0, "shuffled", "none"):
                raise BadConfiguration(f"{where}: [simulation]: stationarity_gap = true: with [method] {name} silos"
                                       " descend on another objective than the gap's.", remedy="Remove one of them.")
    if not simulation.forgetting:
        return
    if not silos_have_labels(method.settings.scenario):
        raise BadConfiguration(f"{where}: [simulation]: forgetting = true: in {method.settings.scenario} the silos have"
                               " no labelled images.", remedy="Remove that line; the coordinator's own labelled images"
                               " are measured in every round.")
    from semisilo.coordinator.strategies import load_strategy  # torch, only here

    if not hasattr(load_strategy(method.name), "local_model"):
        raise BadConfiguration(f"{where}: [simulation]: forgetting = true: of an update of {method.name} the"
                               " coordinator cannot tell the silo's own model.", remedy="Remove that line.")


def name_of(path: Path) -> str:
    """What a study is called after its file, or after the folder of a file `study.toml`, which may be given itself."""
    text = path.name if path.is_dir() else path.parent.name if path.name == "study.toml" else path.stem
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:63] or "study"


def _draft(tables: Tables, where: str) -> StudyConfig:
    """The settings, with all sets of the coordinator as if they were there."""
    data = tables.get("data")
    if not isinstance(data, dict) or "image" not in data:
        raise BadConfiguration(f"{where}: table [data] with image is missing.",
                               remedy="Add [data] image = { size = 28, channels = 1 }.")
    for name in SETS:
        if name in data:
            raise BadConfiguration(f"{where}: [data]: '{name}' has no effect: table [simulation] deals the images.",
                                   remedy="Remove it.")
    # A stated share of the labels is only refused beside validation images that are really dealt.
    sets = [name for name in SETS if not (name == "validation" and "validation_share" in data)]
    config = config_from_dict({**tables, "data": {**data, **{name: set_file(name) for name in sets}}}, where=where)
    for key in find_method(config.method.name).set_by_strategy:
        if key in tables["method"]:
            raise BadConfiguration(f"{where}: [method]: '{key}' is set by the method itself in every task.",
                                   remedy="Remove that line.")
    return config
