"""Networks that are handed over from Python: what tells them apart, and how they reach other processes."""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.config import canonical_json
from semisilo.common.errors import BadConfiguration, UsageError
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model
from semisilo.common.models.own import given
from semisilo.common.models.own.given import CannotBePacked, give, given_factory, packed

ROOT = Path(__file__).resolve().parents[4]
SHAPE = {"num_classes": 3, "channels": 1, "size": 8}


class Net(nn.Module):
    def __init__(self, num_classes: int, channels: int, size: int, width: int = 4) -> None:
        super().__init__()
        self.hidden = nn.Linear(channels * size * size, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(self.hidden(images_BCHW.flatten(1))))
        return found


class Other(Net):
    def forward(self, images_BCHW: Tensor) -> Tensor:
        found: Tensor = self.head(torch.tanh(self.hidden(images_BCHW.flatten(1))))
        return found


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    before = dict(given._GIVEN)
    yield
    given._GIVEN.clear()
    given._GIVEN.update(before)


def sha(network: Any) -> str:
    return give(network, **SHAPE).sha256


def wider(num_classes: int, channels: int, size: int) -> nn.Module:
    return Net(num_classes, channels, size, width=5)


def test_a_network_that_is_given_again_is_the_same_one_and_others_are_others() -> None:
    torch.manual_seed(3)
    built = Net(**SHAPE)
    networks = [Net, Other, wider, lambda num_classes, channels, size: Net(num_classes, channels, size, width=6), built]
    first = [sha(each) for each in networks]
    assert len(set(first)) == len(networks)
    torch.manual_seed(99)  # a factory is told from others by what it makes, not by the weights of the day
    assert [sha(each) for each in networks] == first


@dataclass
class Settings:
    drop: float
    kinds: tuple[str, ...] = ("a",)


class Set(Net):
    """What `forward` does follows from settings that are no tensors, and of which nothing is printed."""

    scale = 1.0

    def __init__(self, num_classes: int, channels: int, size: int, *, activation: Any = torch.relu, drop: float = 0.0,
                 settings: Any = None, table: Any = None, kept: Tensor | None = None) -> None:
        super().__init__(num_classes, channels, size)
        self.activation, self._drop, self.settings, self.table = activation, drop, settings, table
        self.log, self.itself = logging.getLogger(__name__), [self]
        self.method = self.forward
        self.register_buffer("kept", kept, persistent=False)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        hidden_BF = functional.dropout(self.activation(self.hidden(images_BCHW.flatten(1))), self._drop, self.training)
        found: Tensor = self.head(hidden_BF * self.scale)
        return found


def halved(x: Tensor) -> Tensor:
    return x / 2


def with_these(**settings: Any) -> Any:
    lock = threading.Lock()

    def build(num_classes: int, channels: int, size: int) -> nn.Module:
        with lock:
            return Set(num_classes, channels, size, **settings)

    return build


def of_a_module(source: str) -> Any:
    """`build` of a module of that text, as a notebook's cell that was run once more."""
    space: dict[str, Any] = {"nn": nn, "Net": Net, "torch": torch, "__name__": "__main__"}
    exec(source, space)
    return space["build"]


CELL = "\ndef build(num_classes, channels, size):\n    used(DROP)\n    return Net(num_classes, channels, size)\n"
ABLATIONS: dict[str, tuple[Any, ...]] = {
    "arguments of partial": tuple(functools.partial(Set, **each) for each in (
        {"activation": functional.relu}, {"activation": torch.tanh}, {"activation": torch.sigmoid},
        {"activation": halved}, {"activation": functools.partial(functional.leaky_relu, negative_slope=0.1)},
        {"activation": functools.partial(functional.leaky_relu, negative_slope=0.2)}, {"drop": 0.5}, {"drop": 0.9})),
    "values around a function": tuple(with_these(drop=each) for each in (0, False, 0.1, 0.2)),
    "lambdas on one line": (lambda **kw: Set(drop=len(kw), **kw), lambda **kw: Set(drop=id(kw) * 0, **kw)),
    "attributes of one that is built": tuple(Set(**SHAPE, **each) for each in (
        {}, {"activation": torch.tanh}, {"settings": Settings(0.1)}, {"settings": Settings(0.2)},
        {"settings": Settings(0.1, ("b",))}, {"table": {"a": [1, 2]}}, {"table": {"a": [1, 3]}},
        {"table": SimpleNamespace(a=1)}, {"table": np.zeros(2)}, {"table": np.ones(2)}, {"table": {1, 2}})),
    "classes": (Set, type("Set", (Set,), {"scale": 2.0}), type("Set", (Set,), {"scale": 3.0})),
    "buffers that are not saved": tuple(functools.partial(Set, kept=each) for each in (torch.zeros(2), torch.ones(2))),
    "torch's own layers, built": tuple(nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, activation=each))
                                       for each in (functional.relu, functional.gelu)),
    "constants and functions of a cell": tuple(of_a_module(before + CELL) for before in (
        "DROP = 0.1\ndef used(x): return x", "DROP = 0.2\ndef used(x): return x",
        "DROP = 0.1\ndef used(x): return 2 * x"))}


@pytest.mark.parametrize("what", ABLATIONS)
def test_a_setting_that_is_no_tensor_makes_another_network_and_the_same_setting_the_same(what: str) -> None:
    torch.manual_seed(0)
    for network in ABLATIONS[what]:
        if isinstance(network, nn.Module):
            for parameter in network.parameters():
                nn.init.zeros_(parameter)
    first = [sha(each) for each in ABLATIONS[what]]
    assert len(set(first)) == len(first)
    torch.manual_seed(99)
    assert [sha(each) for each in ABLATIONS[what]] == first


@pytest.mark.slow
def test_a_network_is_the_same_one_in_the_next_process_whatever_texts_hash_to() -> None:
    code = ("import functools\nfrom tests.common.models.own.test_given import ABLATIONS, sha\n"
            "print([sha(each) for name, networks in ABLATIONS.items() for each in networks if 'built' not in name])\n"
            "from tests.common.models.own.test_given import *\n"
            "torch.manual_seed(1); print(sha(Set(**SHAPE, table={'a', 'b', 'c', 'd'}, settings=Settings(0.1))))\n")
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300,
                           check=True, env={**os.environ, "PYTHONHASHSEED": str(seed)}).stdout for seed in (1, 2)}
    assert len(said) == 1


def test_a_built_network_is_known_by_its_values_and_by_what_is_trained_of_it() -> None:
    built = Net(**SHAPE)
    before = sha(built)
    with torch.no_grad():
        built.head.bias[0] += 1
    changed = sha(built)
    built.head.bias.requires_grad_(False)
    assert len({before, changed, sha(built)}) == 3


def test_code_without_a_source_is_told_apart_by_its_instructions() -> None:
    made = {}
    for sign in "+-":
        space: dict[str, Any] = {"nn": nn, "Net": Net}
        exec(f"def build(num_classes, channels, size):\n    model = Net(num_classes, channels, size)\n"
             f"    model.offset = 2 {sign} 1\n    return model\n", space)
        made[sign] = sha(space["build"])
    assert made["+"] != made["-"]


def test_the_network_starts_with_the_weights_that_it_was_handed_over_with_and_stays_apart_from_the_callers() -> None:
    built = Net(**SHAPE)
    handed = give(built, **SHAPE)
    before = built.head.weight.detach().clone()
    with torch.no_grad():
        built.head.weight.zero_()
    settings = ModelSettings(name=handed.name, factory_sha256=handed.sha256, classes=("a", "b", "c"))
    model = build_model(settings, channels=1, size=8)
    assert handed.name == "given_in_python:Net"
    assert torch.equal(dict(model.named_parameters())["head.weight"], before)
    assert build_model(settings, channels=1, size=8) is not model


def test_a_process_that_was_not_handed_the_network_says_what_it_needs() -> None:
    settings = ModelSettings(name="given_in_python:Net", factory_sha256="0" * 64, classes=("a", "b"))
    with pytest.raises(BadConfiguration, match="handed over from Python") as caught:
        build_model(settings, channels=1, size=8)
    assert "semisilo.predict(network=...)" in caught.value.remedy


@pytest.mark.parametrize(("network", "says"), [
    (lambda num_classes: Net(num_classes, 1, 8), "TypeError"), (lambda **_: 1 / 0, "ZeroDivisionError"),
    (lambda **_: "a network, honestly", "made a str"), (17, "neither a network's name nor a network"),
    (nn.LazyLinear(3), "has lazy layers"), (nn.Linear(3, 3, device="meta"), "weight has no values"),
    (torch.jit.ScriptModule(), "a network of TorchScript")])  # type: ignore[no-untyped-call]
def test_what_is_no_network_is_refused_in_one_line(network: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        give(network, **SHAPE)
    assert "\n" not in caught.value.line()


@pytest.mark.slow
def test_another_process_without_this_file_gets_classes_of_a_notebook(tmp_path: Path) -> None:
    """As `__main__` of a notebook would be: the class is in no file that the other process could import."""
    code = ("import sys\nfrom semisilo.common.models.own.given import give, packed\nfrom torch import nn\n"
            "class Mine(nn.Module):\n"
            "    def __init__(self, num_classes, channels, size):\n"
            "        super().__init__(); self.head = nn.Linear(channels * size * size, num_classes)\n"
            "    def forward(self, images): return self.head(images.flatten(1))\n"
            "handed = give(Mine, num_classes=3, channels=1, size=8)\n"
            "open(sys.argv[1], 'wb').write(packed(handed.sha256)); print(handed.sha256)\n")
    path = tmp_path / "packed"
    done = subprocess.run([sys.executable, "-P", "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    sha256 = done.stdout.strip()
    assert len(sha256) == 64, done.stdout + done.stderr
    assert given_factory(sha256) is None
    given.unpack(path.read_bytes())
    factory = given_factory(sha256)
    assert factory is not None
    assert type(factory(**SHAPE)).__name__ == "Mine"


def test_a_network_that_cannot_leave_this_process_says_why() -> None:
    lock = threading.Lock()

    def build(num_classes: int, channels: int, size: int) -> nn.Module:
        with lock:
            return Net(num_classes, channels, size)

    handed = give(build, **SHAPE)
    with pytest.raises(CannotBePacked, match="TypeError"):
        packed(handed.sha256)
    with pytest.raises(CannotBePacked, match="not handed to this process"):
        packed("0" * 64)


def test_a_trained_network_takes_only_the_class_that_it_was_trained_as() -> None:
    trained = sha(Net)
    assert give(Net, **SHAPE, sha256=trained).sha256 == trained
    with pytest.raises(UsageError, match="another network than the one that was trained"):
        give(Other, **SHAPE, sha256=trained)
    assert give(Net(**SHAPE), **SHAPE, sha256=trained).sha256 == trained  # its weights come from the file
    assert pickle.loads(packed(trained))[0] == trained


def test_a_model_of_an_earlier_version_takes_the_class_that_it_was_trained_as() -> None:
    """The digest as version 1 made it, from its description."""
    members = [inspect.getsource(member) for member in (Net.__init__, Net.forward)]
    net = "\n".join(["class Net", *members])
    tensors = {name: ["torch.float32", list(tensor.shape)] for name, tensor in Net(**SHAPE).state_dict().items()}
    text = canonical_json([net, str(Net(**SHAPE)), net, tensors, list(tensors)])
    before = hashlib.sha256(b"semisilo network v1\0" + text.encode()).hexdigest()
    assert sha(Net) != before
    assert give(Net, **SHAPE, sha256=before).sha256 == before
    with pytest.raises(UsageError, match="another network than the one that was trained"):
        give(Other, **SHAPE, sha256=before)
