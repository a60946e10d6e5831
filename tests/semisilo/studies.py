"""Small studies with simulated silos for tests: embedded digits, three silos, two rounds."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from semisilo.common.methods import METHODS

__all__ = ["CASES", "study"]

CASES = [(spec.name, scenario) for spec in METHODS.values() for scenario in spec.scenarios]
"""Every method in every scenario that it defines."""

_SMALL = {"local_epochs": 1, "confidence_threshold": 0.11, "labelled_batch": 20,
          "unlabelled_batch": 20, "lr": 0.02, "batch_size": 20}
_AT_COORDINATOR = {"coordinator_epochs": 1, "warm_up_steps": 3, "coordinator_steps": 2}
_AT_SILO = {"warm_up_rounds": 1, "labelled_steps": 2}
_AT_BOTH = {**_AT_COORDINATOR, "labelled_steps": 2}
"""Set where a method has such a setting, the last three in their scenario: so that little is trained and everybody
sends something."""
_OF_SCENARIO = {
    "labels-at-coordinator": (_AT_COORDINATOR, {"num_labelled": 20}),
    "labels-at-silo": (_AT_SILO, {"labelled_per_class": 1}),
    "labels-at-both": (_AT_BOTH, {"num_labelled": 20, "labelled_per_class": 1, "labelled_silos": 1,
                                  "labelled_classes": 5})}
"""Settings, and who gets labels."""


def study(method: str = "semifl", scenario: str = "labels-at-coordinator", *, rounds: int = 2, silos: int = 3,
          simulation: dict[str, Any] | None = None, split: dict[str, Any] | None = None,
          settings: dict[str, Any] | None = None, **tables: dict[str, Any]) -> dict[str, Any]:
    """The tables of a study file.

    Args:
        simulation, split, settings: keys of [simulation], of its split and of [method] that are added or replaced.
        tables: likewise of any other table.
    """
    known = {field.name for field in dataclasses.fields(METHODS[method].settings)}
    of_scenario, labels = _OF_SCENARIO[scenario]  # those of another one are refused
    small = {key: value for key, value in {**_SMALL, **of_scenario, "objective": "fixmatch"}.items() if key in known}
    base: dict[str, Any] = {
        "study": {"seed": 5, "rounds": rounds, "labelled_only_baseline": False},
        "model": {"name": "small_cnn"},
        "data": {"image": {"size": 8, "channels": 1, "mean": [0.3], "std": [0.4]}},
        "augmentation": {"policy": "small", "without": ["Invert", "Solarize"]},
        "method": {"name": method, "scenario": scenario, **small, **(settings or {})},
        "simulation": {"data": "digits", "split": {
            "name": "iid", "silos": silos, "fraction": 0.12, "num_validation": 20, **labels, **(split or {})},
            **(simulation or {})},
    }
    for name, keys in tables.items():
        base[name] = {**base.get(name, {}), **keys}
    return copy.deepcopy(base)
