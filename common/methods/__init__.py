"""What both sides know of the methods: each one's name, source, settings, what crosses and what it discloses.

The halves live in `coordinator/strategies/<name>.py` and `silo/trainers/<name>.py`; a method's spec and settings are in
`common/methods/<name>.py`, and `builtin.py` lists them all. Settings are dataclasses whose fields carry the paper's
symbols; they travel as canonical JSON.
"""

from __future__ import annotations

from semisilo.common.methods.builtin import METHODS
from semisilo.common.methods.spec import (
    MethodPlugin,
    MethodSpec,
    Scenario,
    check_metrics,
    coordinator_has_labels,
    is_declared,
    silos_have_labels,
)

__all__ = ["METHODS", "MethodPlugin", "MethodSpec", "Scenario", "check_metrics", "coordinator_has_labels",
           "find_method", "is_declared", "silos_have_labels"]


def find_method(name: str) -> MethodSpec:
    """The spec of a method: built in, or an installed plug-in's.

    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be used.
    """
    if name in METHODS:
        return METHODS[name]
    from semisilo.common.methods.plugins import find_plugin  # later: looking through what is installed takes its time

    return find_plugin(name).spec
