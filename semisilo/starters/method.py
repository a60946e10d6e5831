"""`semisilo new method NAME`: a package with the three files of a method plug-in, its entry point, and a test.

What it writes is a whole method: silos train on their labels, the coordinator takes the mean weighted by their images.
docs/adding-a-method.md explains each file.

Tests: tests/semisilo/starters/test_method.py.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
from pathlib import Path
from string import Template

from semisilo.common.errors import UsageError
from semisilo.common.methods import METHODS
from semisilo.starters.folder import write_files

__all__ = ["new_method"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)

_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$dist"
version = "0.1"
dependencies = ["semisilo"]

[project.entry-points."semisilo.methods"]
$name = "$name.method:$CONSTANT"

[tool.setuptools]
packages = ["$name"]
"""
_METHOD = '''\
"""What both sides know of $name: what crosses, and its settings. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods import MethodPlugin, MethodSpec
from semisilo.common.methods.contract import Meaning


@dataclass(frozen=True, kw_only=True, slots=True)
class ${Class}Settings:
    """The keys of [method] in a study file; another key is refused by name."""

    scenario: Literal["labels-at-silo"] = "labels-at-silo"
    lr: float = 0.05
    """Learning rate of the silos' SGD."""
    local_epochs: int = 2
    """Passes over a silo's labelled images in a round."""
    batch_size: int = 10
    server_lr: float = 1.0
    """How far the model moves along the mean of the updates. Above 0; 1 is FedAvg."""

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise ValueError(f"server_lr = {self.server_lr}: must be above 0.")


$CONSTANT = MethodPlugin(
    spec=MethodSpec(
        name="$name",
        source="where the method is described",
        scenarios=("labels-at-silo",),
        down={"model": Meaning.VALUES},
        up={"model": Meaning.DIFFERENCE},
        metrics=("train_loss",),
        settings=${Class}Settings,
        discloses="The coordinator sees a silo's model difference, how many images it has, and its training loss.",
    ),
    strategy="$name.strategy:${Class}Strategy",
    trainer="$name.trainer:${Class}Trainer",
)
'''
_TRAINER = '''\
"""What a silo does: no clock, no disk, no network; random numbers from named seeds."""

from semisilo.common.learning import tensors
from semisilo.common.learning.training import SGDSettings, check_finite, train_labelled
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup, Update


class ${Class}Trainer:
    Memory = type(None)
    """What a silo keeps until its next task; a frozen dataclass of tensors, or nothing as here."""

    def train(self, task: SiloTask, data: SiloData, memory: None) -> tuple[Update, None]:
        if data.labelled is None or len(data.labelled) == 0:
            return Update(abstention="no_labelled_data"), None
        sent = task.groups["model"]
        model = task.build_model()
        tensors.load_into(model, sent.tensors)
        model.to(task.device)
        # Your training step goes here; `data.unlabelled` has the images without labels.
        result = train_labelled(
            model, data.labelled, form=task.image, augmentation=task.augmentation,
            sgd=SGDSettings(lr=task.settings.lr), epochs=task.settings.local_epochs,
            batch_size=task.settings.batch_size, seed=task.seed, purpose=f"$name/{task.silo}",
            round=task.round, progress=task.report)
        trained = tensors.parameters_of(model)
        check_finite(trained, where=f"at this silo in round {task.round}")
        delta = TensorGroup(tensors.subtract(trained, sent.tensors), Meaning.DIFFERENCE, tensors.group_digest(sent))
        return Update(groups={"model": delta}, num_examples=len(data.labelled),
                      metrics={"train_loss": result.loss}), None
'''
_STRATEGY = '''\
"""What the coordinator does. Updates come one at a time, in the byte order of the silos' names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from $name.method import ${Class}Settings
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import Environment, GroupLayout, Meaning, Phase, Task, TensorGroup, UpdateHeader

TRAIN = Phase("train")


@dataclass(frozen=True, kw_only=True)
class State:
    """What survives a round."""

    w: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What is carried while updates are folded."""

    total: int
    """Images of all silos whose update was accepted."""
    delta: dict[str, Tensor] | None = None


class ${Class}Strategy:
    State = State
    Tally = Tally

    def __init__(self, settings: ${Class}Settings, environment: Environment) -> None:
        self._settings = settings

    def start(self, initial: Mapping[str, Tensor]) -> State:
        return State(w=dict(initial))

    def phases(self, state: State, round: int) -> tuple[Phase, ...]:
        return (TRAIN,)

    def task(self, state: State, phase: Phase, silo: str, kept: None, *, round: int) -> Task:
        return Task(groups={"model": TensorGroup(state.w)})

    def expects(self, state: State, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        return {"model": GroupLayout(Meaning.DIFFERENCE, tensors.digest(state.w), tensors.specs(state.w))}

    def begin(self, state: State, phase: Phase, headers: tuple[UpdateHeader, ...], *, round: int) -> Tally:
        return Tally(total=sum(header.num_examples for header in headers))

    def fold(self, state: State, tally: Tally, header: UpdateHeader, groups: Mapping[str, TensorGroup],
             kept: None) -> tuple[Tally, None]:
        so_far = tensors.zeros_like(state.w) if tally.delta is None else tally.delta
        share = header.num_examples / tally.total
        return replace(tally, delta=tensors.add(so_far, groups["model"].tensors, factor=share)), None

    def finish(self, state: State, phase: Phase, tally: Tally, *, round: int) -> State:
        if tally.delta is None:  # nobody had an update
            return state
        return State(w=tensors.add(state.w, tally.delta, factor=self._settings.server_lr))

    def model(self, state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return state.w, {}
'''
_TEST = '''\
"""Run with: pip install -e . && pytest"""

import pytest
import torch
from $name.method import ${Class}Settings
from $name.strategy import TRAIN, ${Class}Strategy

import semisilo
from semisilo.common.methods.contract import TensorGroup, UpdateHeader
from semisilo.common.methods.plugins import plugin_names


def test_the_model_moves_by_the_mean_of_the_updates_weighted_by_images() -> None:
    half = ${Class}Strategy(${Class}Settings(server_lr=0.5), None)
    state = half.start({"w": torch.tensor([1.0, 2.0])})
    headers = (UpdateHeader("a", 3), UpdateHeader("b", 1))
    tally = half.begin(state, TRAIN, headers, round=1)
    for header, delta in zip(headers, ([4.0, 0.0], [0.0, 8.0]), strict=True):
        tally, _ = half.fold(state, tally, header, {"model": TensorGroup({"w": torch.tensor(delta)})}, None)
    # (3 * 4 + 1 * 0) / 4 = 3 and (3 * 0 + 1 * 8) / 4 = 2, half of each
    torch.testing.assert_close(half.finish(state, TRAIN, tally, round=1).w["w"], torch.tensor([2.5, 3.0]))


def test_without_an_update_the_model_stays() -> None:
    half = ${Class}Strategy(${Class}Settings(), None)
    state = half.start({"w": torch.ones(2)})
    assert half.finish(state, TRAIN, half.begin(state, TRAIN, (), round=1), round=1) is state


def test_it_learns_in_a_simulation(tmp_path, monkeypatch) -> None:
    assert "$name" in plugin_names(), "the package is not installed: pip install -e ."
    monkeypatch.chdir(tmp_path)
    run = semisilo.simulate(
        data="digits", method={"name": "$name", "lr": 0.1}, silos=2, labelled_per_class=10, rounds=2, engine="process",
        tables={"model": {"normalisation": "group"}, "augmentation": {"policy": "none"}}, progress=False)
    assert run.accuracy > 0.2, "ten digits: 0.1 is chance"


def test_a_setting_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="server_lr"):
        ${Class}Settings(server_lr=0)
'''
_README = """\
# $dist

A method for semisilo: silos train on their labels, the coordinator takes the mean of their updates.

```sh
pip install -e .
pytest
semisilo simulate study.toml
```

| file | what |
|---|---|
| `$name/method.py` | what crosses, and the settings: what both sides know |
| `$name/trainer.py` | what a silo does |
| `$name/strategy.py` | what the coordinator does |

In a federation both sides install this package, and every silo that wants to take part names `$name` in `silo.toml`
under `[permit] methods`, and `train_loss` under `[permit] metrics`: no built-in method sends a number of this name.
docs/adding-a-method.md explains each part.
"""
_STUDY = """\
[study]
rounds = 4

[model]
name = "small_cnn"
normalisation = "group"

[data]
image = { size = 8, channels = 1, mean = [0.305], std = [0.376] }

[augmentation]
policy = "none"

[method]
name = "$name"

[simulation]
data = "digits"
split = { name = "iid", silos = 4, labelled_per_class = 10 }
"""


def new_method(name: str, folder: Path) -> tuple[str, ...]:
    """Writes the package of a method called `name` into a folder of its own below `folder`.

    Returns: the commands to go on with.
    Raises: UsageError for a name that a method or a package cannot have, or a folder that is there already.
    """
    plain = name.replace("-", "_")
    if _NAME.fullmatch(plain) is None or keyword.iskeyword(plain) or plain in ("semisilo", "tests"):
        raise UsageError(f"'{name[:80]}' cannot name a method.",
                         remedy="Use small letters, digits and '_', beginning with a letter, such as my_method.")
    if plain in METHODS:
        raise UsageError(f"The method '{plain}' is built in.", remedy="Choose another name.")
    if plain in ("test", *sys.stdlib_module_names) or importlib.util.find_spec(plain) is not None:
        raise UsageError(f"'{plain}' cannot name a method: `import {plain}` is another package here.",
                         remedy=f"Choose another name, such as my_{plain}.")
    words = {"name": plain, "dist": plain.replace("_", "-"), "CONSTANT": plain.upper(),
             "Class": "".join(part.capitalize() for part in plain.split("_"))}
    texts = {
        "pyproject.toml": _PROJECT, "README.md": _README, "study.toml": _STUDY,
        f"{plain}/__init__.py": '"""A method for semisilo."""\n', f"{plain}/method.py": _METHOD,
        f"{plain}/trainer.py": _TRAINER, f"{plain}/strategy.py": _STRATEGY, f"tests/test_{plain}.py": _TEST}
    target = folder / words["dist"]
    write_files(target, {path: Template(text).substitute(words) for path, text in texts.items()})
    return f"cd {shlex.quote(str(target))}", "pip install -e .", "pytest", "semisilo simulate study.toml"
