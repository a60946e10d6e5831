"""Silos that lie, for the benchmark alone: a trainer that does something else than the method's at some silos.

`attacking` puts it in the place of a built-in method's trainer in this process, so no study file and no other program
can reach it. Label flip and backdoor act on what the silo trains on; the others on what it returns, `STATISTICS` on the
batch-norm statistics that it has measured.

Shapes: B images of C channels, H rows and W columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import tensors
from semisilo.common.learning.seeds import numpy_generator, torch_generator
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.learning.training import train_labelled
from semisilo.common.methods.builtin import BUILT_IN
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.plugins import load_half
from semisilo.common.methods.spec import MEASURING
from semisilo.silo.trainers.parts.model import difference, task_model, trained_parameters

__all__ = ["ABSENT", "ATTACKS", "STATISTICS", "TARGET", "Attack", "attacking", "chosen_silos", "patched"]

ATTACKS = ("sign flip", "x10", "x1000", "label flip", "Gaussian noise", "free rider", "backdoor")
STATISTICS = "statistics"
"""For methods that ask silos for them."""
ABSENT = "absent"
"""No attack: the silos that would lie send nothing at all. What is left is what a rule that knew them could reach."""
TARGET = 0
"""The class that the backdoor makes of everything with the patch."""
_PATCH = 3
"""Side of the patch in pixels: a chessboard of bright and dark ones in the lower right corner."""
_NOISE = 10.0
"""Length of the noise over that of the honest update."""
_DEVIATIONS = 4.0
"""By how many standard deviations means are too high: near enough to the others' to be believed by themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """What some silos do in every round."""

    kind: str
    """One of `ATTACKS`, `STATISTICS` or `ABSENT`."""
    silos: frozenset[str]
    num_classes: int


def chosen_silos(names: tuple[str, ...], count: int, *, seed: int) -> frozenset[str]:
    """Which silos lie; those of fewer liars are among those of more."""
    order = numpy_generator(seed, "benchmark_attackers").permutation(len(names))
    return frozenset(names[index] for index in order[:count])


def patched(images_BCHW: Tensor) -> Tensor:
    """Copies with the patch; uint8."""
    marked_BCHW = images_BCHW.clone()
    place = torch.arange(_PATCH)
    chessboard = 255 * ((place[:, None] + place[None, :] + 1) % 2)
    marked_BCHW[:, :, -_PATCH:, -_PATCH:] = chessboard.to(marked_BCHW.dtype)
    return marked_BCHW


@contextmanager
def attacking(method: str, attack: Attack | None) -> Iterator[None]:
    """While it lasts, silos of this process that train by a built-in method attack."""
    if attack is None:
        yield
        return
    honest, row = load_half(method, "trainer"), BUILT_IN[method]
    _CURRENT[:] = [(honest, attack)]
    BUILT_IN[method] = replace(row, trainer=f"{__name__}:AttackingTrainer")
    try:
        yield
    finally:
        BUILT_IN[method] = row
        _CURRENT.clear()


_CURRENT: list[tuple[type[Any], Attack]] = []


class AttackingTrainer:
    """The honest trainer but at the silos that lie."""

    def __init__(self) -> None:
        honest, self._attack = _CURRENT[0]
        self._honest = honest()
        self.Memory = honest.Memory

    def train(self, task: SiloTask, data: SiloData, memory: Any) -> tuple[Update, Any]:
        """As the honest one, or a lie."""
        attack = self._attack
        acts = task.phase in MEASURING if attack.kind == STATISTICS else task.phase == "train"
        if task.silo not in attack.silos or not acts:
            result: tuple[Update, Any] = self._honest.train(task, data, memory)
            return result
        if attack.kind == STATISTICS:
            return self._mismeasured(task, data, memory)
        if attack.kind == ABSENT:
            return Update(abstention="no_data"), memory
        if attack.kind in ("label flip", "backdoor"):
            return self._mislearnt(task, data, memory)
        update, kept = self._honest.train(task, data, memory)
        if update.abstention:
            return update, kept
        sent = update.groups["model"]
        return replace(update, groups={**update.groups, "model": replace(sent, tensors=self._lie(task, sent))}), kept

    def _lie(self, task: SiloTask, sent: TensorGroup) -> Mapping[str, Tensor]:
        kind, honest = self._attack.kind, sent.tensors
        if kind in ("sign flip", "x10", "x1000"):
            return tensors.scale(honest, {"sign flip": -1.0, "x10": 10.0, "x1000": 1000.0}[kind])
        if kind == "free rider":
            return tensors.zeros_like(honest)
        assert kind == "Gaussian noise"
        generator = torch_generator(task.seed, "benchmark_noise", round=task.round, silo=task.silo)
        noise = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in honest.items()}
        return tensors.scale(noise, _NOISE * tensors.norm(honest) / tensors.norm(noise))

    def _mismeasured(self, task: SiloTask, data: SiloData, memory: Any) -> tuple[Update, Any]:
        update, kept = self._honest.train(task, data, memory)
        if update.abstention:
            return update, kept
        sent = update.groups["batch_norm"]
        false = {name: tensor + _DEVIATIONS * sent.tensors[f"{name.removesuffix('.mean')}.var"].sqrt()
                 if name.endswith(".mean") else tensor for name, tensor in sent.tensors.items()}
        return replace(update, groups={**update.groups, "batch_norm": replace(sent, tensors=false)}), kept

    def _mislearnt(self, task: SiloTask, data: SiloData, memory: Any) -> tuple[Update, Any]:
        """Trains on wrong labels: all shifted by one class, or half of the images with the patch and the target."""
        truth = data.labelled if task.settings.scenario == "labels-at-silo" else data.unlabelled
        assert truth is not None
        assert truth.labels_N is not None
        false = (replace(truth, labels_N=(truth.labels_N + 1) % self._attack.num_classes)
                 if self._attack.kind == "label flip" else _with_backdoor(truth))
        settings, received = task.settings, task.groups["model"].tensors
        model = task_model(task, received)
        train_labelled(model, false, form=task.image, augmentation=task.augmentation, epochs=settings.local_epochs,
                       sgd=sgd_settings(settings, settings.round_lr, nesterov=settings.nesterov),
                       batch_size=settings.unlabelled_batch, seed=task.seed, purpose=f"benchmark_{task.silo}",
                       round=task.round)
        group = difference(task, trained_parameters(task, model))
        return Update(groups={"model": group}, num_examples=len(truth), metrics={}), memory


def _with_backdoor(truth: ImageSet) -> ImageSet:
    """One half of the images as they are, the other with the patch and the target."""
    assert truth.labels_N is not None
    images_NCHW = truth.images_NCHW[:]
    half = (len(truth) + 1) // 2
    return replace(truth, images_NCHW=torch.cat([images_NCHW[:half], patched(images_NCHW[half:])]),
                   labels_N=torch.cat([truth.labels_N[:half], torch.full_like(truth.labels_N[half:], TARGET)]))
