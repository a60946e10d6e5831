"""Method plug-ins for tests, as an installer would leave them in a folder on the module path."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

METHOD = '''
from dataclasses import dataclass
from semisilo.common.methods.contract import Meaning
from semisilo.common.methods import MethodPlugin, MethodSpec

@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    scenario: str = "labels-at-coordinator"
    strength: float = 0.5

PLUGIN = MethodPlugin(
    spec=MethodSpec(name={name!r}, source="nowhere", scenarios=("labels-at-coordinator",),
                    down={{"model": Meaning.VALUES}}, up={{"model": Meaning.DIFFERENCE, "gossip": Meaning.VALUES}},
                    metrics=("chatter",), settings=Settings, discloses="nothing"),
    strategy="{module}_halves:Strategy", trainer="{module}_halves:Trainer")
'''
HALVES = '''
from dataclasses import dataclass

@dataclass(frozen=True)
class State:
    round: int = 0

class Strategy:
    State = State

    def __init__(self, settings, environment):
        pass

    def start(self, initial):
        return State()

    def phases(self, state, round):
        return ()

    def task(self, state, phase, silo, kept, *, round):
        raise NotImplementedError

    def expects(self, state, phase, *, round):
        return {}

    def begin(self, state, phase, headers, *, round):
        return None

    def fold(self, state, tally, header, groups, kept):
        return tally, None

    def finish(self, state, phase, tally, *, round):
        return state

    def model(self, state):
        return {}, {}

class Trainer:
    Memory = type(None)

    def train(self, task, data, memory):
        raise NotImplementedError
'''
"""Both halves, with all that they must have and nothing that they do."""


def install(site: Path, *, name: str = "gossip", module: str = "gossip_plugin", value: str = "",
            method: str | None = None, halves: str = HALVES, package: str = "gossip-method") -> None:
    """Writes a plug-in and its entry point into a folder, as an installer would."""
    facts = site / f"{package.replace('-', '_')}-2.1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.1\n")
    (facts / "entry_points.txt").write_text(f"[semisilo.methods]\n{name} = {value or module + ':PLUGIN'}\n")
    (site / f"{module}.py").write_text(METHOD.format(name=name, module=module) if method is None else method)
    (site / f"{module}_halves.py").write_text(halves)


@contextlib.contextmanager
def on_the_module_path(folder: Path) -> Iterator[Path]:
    """Imports find what is in `folder`; afterwards what came from there is forgotten."""
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path[:] = path
        for module in set(sys.modules) - before:
            file = getattr(sys.modules[module], "__file__", None)
            if file is not None and Path(file).is_relative_to(folder):
                del sys.modules[module]
