"""What a plug-in's trainer returns by mistake names it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.errors import PluginFailed
from semisilo.common.methods.contract import TensorGroup, Update
from semisilo.common.storage.state_files import StateFiles
from semisilo.silo.compute import operations
from semisilo.silo.trainers.plugged_in import build_trainer
from semisilo.silo.trainers.semifl import SemiFLTrainer
from tests.plugin_kit import install, on_the_module_path

WHAT = "The trainer 'gossip_plugin_halves:Trainer' of the method plug-in 'gossip' returned "


@dataclass(frozen=True)
class Kept:
    rounds: Any = 0


@dataclass(frozen=True)
class Other:
    rounds: int = 0


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path) -> Iterator[None]:
    install(tmp_path)
    with on_the_module_path(tmp_path):
        yield


def returning(answer: object) -> Any:
    class Half:
        Memory = Kept

        def train(self, task: Any, data: Any, memory: Any) -> Any:
            return answer

    return build_trainer(Half, "gossip")


UPDATE = Update(groups={"model": TensorGroup({})})


@pytest.mark.parametrize(("answer", "words"), [
    (None, "a NoneType from train, not the pair of an Update and what it keeps."),
    (UPDATE, "a Update from train, not the pair of an Update and what it keeps."),
    (({}, None), "a tuple from train, not the pair of an Update and what it keeps."),
    ((Update(), None), "an Update with neither tensor groups nor an abstention."),
    ((UPDATE, Other()), "a Other to keep, and its Memory is Kept: the next task could not read it.")])
def test_what_it_should_not_return_is_said(answer: object, words: str) -> None:
    """Its memory would be dropped before each task, without a word but in the log."""
    with pytest.raises(PluginFailed) as caught:
        returning(answer).train(None, None, None)
    assert caught.value.text == f"{WHAT}{words}"


@pytest.mark.parametrize("answer", [(UPDATE, None), (UPDATE, Kept()), (Update(abstention="no_data"), Kept())])
def test_what_it_should_return_is_handed_on(answer: object) -> None:
    assert returning(answer).train(None, None, None) == answer
    assert returning(answer).Memory is Kept


def test_a_memory_that_cannot_be_written_names_it(tmp_path: Path) -> None:
    files = StateFiles(tmp_path / "memory")
    with pytest.raises(PluginFailed) as caught:
        operations._saved(files, Kept(torch.zeros(2)), returning((UPDATE, None)))
    assert caught.value.text.startswith(f"{WHAT}a Kept that cannot be written: TypeError: ")
    with pytest.raises(TypeError):
        operations._saved(files, Kept(torch.zeros(2)), SemiFLTrainer())


def test_a_built_in_method_is_what_it_was() -> None:
    assert type(build_trainer(SemiFLTrainer, "semifl")) is SemiFLTrainer
