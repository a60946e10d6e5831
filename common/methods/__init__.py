"""The table of methods: what each is called, where it comes from, what crosses and what it discloses.

The halves live in `coordinator/strategies/<name>.py` and `silo/trainers/<name>.py`; spec and settings are here.
Settings are dataclasses whose fields carry the paper's symbols; they travel as canonical JSON. Methods of others come
as plug-ins (common/plugins.py); they cannot take a name that is in this table.
"""

from __future__ import annotations

from common.methods.fed_shvr import FED_SHVR
from common.methods.fedavg import FEDAVG
from common.methods.fedmatch import FEDMATCH
from common.methods.fedmix import FEDMIX
from common.methods.fednova import FEDNOVA
from common.methods.fedprox import FEDPROX
from common.methods.fedrgd import FEDRGD
from common.methods.fedsgd import FEDSGD
from common.methods.local import LOCAL
from common.methods.scaffold import SCAFFOLD
from common.methods.semifl import SEMIFL, SemiFLSettings
from common.methods.spec import MethodPlugin, MethodSpec, Scenario, check_metrics, is_declared

__all__ = ["METHODS", "MethodPlugin", "MethodSpec", "Scenario", "SemiFLSettings", "check_metrics",
           "find_method", "is_declared"]

METHODS: dict[str, MethodSpec] = {
    spec.name: spec for spec in (SEMIFL, FED_SHVR, FEDMATCH, FEDMIX, FEDAVG, FEDPROX, FEDNOVA, SCAFFOLD, LOCAL, FEDRGD,
                               FEDSGD)}


def find_method(name: str) -> MethodSpec:
    """The spec of a method: built in, or an installed plug-in's.

    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be used.
    """
    if name in METHODS:
        return METHODS[name]
    from common.plugins import find_plugin  # later: looking through what is installed takes its time

    return find_plugin(name).spec
