"""Updates as they would leave: a silo's own trainer, settings and encoding, on images that the probe chooses.

What is trained is decoded again as its receiver would; of what is attacked, here are the model that an update makes and
the sum that it vanishes in.

Shapes: N images, K classes.

Tests: tests/semisilo/probe/test_probe.py.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.data.image_set import ImageSet, joined
from semisilo.common.errors import UsageError
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.seeds import derive_seed, torch_generator
from semisilo.common.learning.training import loaded_model
from semisilo.common.methods import find_method
from semisilo.common.methods.contract import TensorGroup
from semisilo.common.methods.parts.secure_sum import STEPS, sums_per_step
from semisilo.common.methods.spec import FROZEN
from semisilo.common.models.factory import model_builder
from semisilo.common.payload.torch_tensors import decode_groups
from semisilo.coordinator.strategies.parts.weights import size_weights, uniform_weights
from semisilo.silo.compute.images import SiloImages
from semisilo.silo.compute.messages import Train
from semisilo.silo.compute.received import receive
from semisilo.silo.site.privacy.ledger import PrivacyLedger
from semisilo.silo.site.stores import open_cache, open_outgoing
from semisilo.simulation.engines.one_process import SimulatedOperations

__all__ = ["Leaving", "SiloAtWork", "averaged", "chosen_images", "images_of_round"]

_ATTACKED = ("model", "gradient", "sigma", "psi")
"""Groups of an update that make a model of the site's own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Leaving:
    """An update, as its receiver decodes it."""

    change: Mapping[str, Tensor] | None
    """What it adds to the model that was sent, by parameter; of a gradient a step of the round's learning rate. None
    where the silo abstained: nothing of its images leaves but that."""
    num_examples: int
    steps: float
    """That were trained, where the method tells; else 1."""
    epsilon: float
    """What this update spends by the site's own ledger, at the study's delta; 0 without differential privacy."""


class SiloAtWork:
    """One silo with its task, which it does again and again on other images."""

    def __init__(self, asked: Train, images: SiloImages, *, scratch: Path, seed: int, device: str) -> None:
        """
        Args:
            images: all that it has in the task's round.
            scratch: where files may lie that are gone after each training.
            seed: of the probe: what a site's secret noise follows from.
            device: "cpu" or "cuda"; empty: an accelerator where there is one.
        Raises: UsageError for a method of which no model leaves.
        """
        task = asked.task
        self._asked, self._scratch, self._seed = asked, scratch, seed
        self.images = images
        self.spec = find_method(task.method)
        if not any(group in self.spec.up for group in _ATTACKED):
            raise UsageError(f"The method {task.method} sends no model and no gradient: there is nothing to attack.",
                             remedy="What does leave is listed in docs/privacy.md, method by method.")
        self.settings: Any = from_dict(self.spec.settings, task.settings, where=f"task {task.task_id}: settings")
        self._now: SiloImages = images
        self._operations = SimulatedOperations(lambda fraction, text: None, lambda index: self._now, device=device,
                                               processors=1)
        received = receive(task, self.spec, asked.payloads, open_cache(asked.cache_folder))
        frozen = received.pop(FROZEN, None)
        self.received: Mapping[str, TensorGroup] = received
        self.build = model_builder(task.model, task.image, asked.factories,
                                   frozen=None if frozen is None else frozen.tensors)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def name(self) -> str:
        """The silo's."""
        return self._asked.task.silo

    @property
    def task(self) -> Any:
        """Its task."""
        return self._asked.task

    @cached_property
    def digest(self) -> str:
        """SHA-256, hex, of all that its updates follow from besides the choice of images."""
        task = self._asked.task
        told = {key: value for key, value in to_dict(task).items()
                if key not in ("task_id", "payloads", "deadline_unix", "last_folded_round")}
        return hashlib.sha256(canonical_json({
            "task": told, "groups": {name: tensors.group_digest(group) for name, group in self.received.items()},
            "images": _digest(self.images)}).encode()).hexdigest()

    @cached_property
    def base(self) -> dict[str, Tensor]:
        """The parameters of the model that it was sent."""
        return self._parameters(self.received)

    def update(self, indices: NDArray[np.integer], *, number: int) -> Leaving:
        """What leaves when the silo has these of its images, and no others.

        Args:
            indices: among its labelled images, then its unlabelled ones.
            number: of this training in the probe: another one has other secret noise.
        Raises: SemisiloError for what a real silo would refuse the task with.
        """
        self._now = chosen_images(self.images, indices)
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            secret = f"{derive_seed(self._seed, 'probe_noise_secret', round=number, silo=self.name)}"
            ledger = PrivacyLedger(folder / "privacy")
            if self._asked.task.dp is not None:
                ledger.keep_secret(hashlib.sha256(secret.encode()).digest())
            trained = self._operations.train(replace(
                self._asked, outgoing_folder=folder / "outgoing", memory_folder=folder / "memory",
                privacy_folder=ledger.path.parent, masking=None))
            spent = ledger.last()
            epsilon = 0.0 if spent is None else spent.study_epsilon
            change = None
            if trained.payload is not None:
                sent = decode_groups(open_outgoing(folder / "outgoing").path(trained.payload.digest),
                                     require_finite=True, references=self._held().get)
                change = self._change(sent)
            return Leaving(change=change, num_examples=trained.num_examples,
                           steps=float(trained.metrics.get(STEPS, 1.0)) or 1.0, epsilon=epsilon)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _held(self) -> dict[str, Mapping[str, Tensor]]:
        return {tensors.group_digest(group): group.tensors for group in self.received.values()}

    def _change(self, sent: Mapping[str, TensorGroup]) -> dict[str, Tensor]:
        if "gradient" in sent:
            return tensors.scale(sent["gradient"].tensors, -float(self.settings.round_lr))
        if "model" in sent:
            return dict(sent["model"].tensors)
        return tensors.subtract(self._parameters({**self.received, **sent}), self.base)

    def _parameters(self, groups: Mapping[str, TensorGroup]) -> dict[str, Tensor]:
        """Of the model that groups make: `model`, or FedMatch's sigma + psi."""
        if "sigma" in groups and "psi" in groups:
            return tensors.add(groups["sigma"].tensors, groups["psi"].tensors)
        return dict(groups["model"].tensors)

    def model(self, change: Mapping[str, Tensor] | None) -> nn.Module:
        """The network that the update makes of the one that was sent, ready to be asked. Batch-norm statistics are
        those of all images of the site, in an update or not: an attacker has others that are much like them."""
        task = self._asked.task
        parameters = self.base if change is None else tensors.add(self.base, change)
        model = loaded_model(self.build, parameters, seed=task.seed, round=task.round, silo=task.silo,
                             device=self.device)
        if batch_norm.layers_of(model):
            batch_norm.load(model, batch_norm.to_tensors(batch_norm.measure(
                model, self.pool.images_NCHW, form=task.image,
                generator=torch_generator(self._seed, "probe_batch_norm"))))
        return model.eval()

    def logits(self, change: Mapping[str, Tensor] | None) -> NDArray[np.float64]:
        """What that network answers to every image of the site, (N, K); labelled ones first."""
        logits_NK = logits_of(self.model(change), self.pool.images_NCHW, self._asked.task.image)
        return logits_NK.double().cpu().numpy()

    @cached_property
    def pool(self) -> ImageSet:
        """All images of the site, labelled ones first, without labels."""
        sets = [each.without_labels() for each in (self.images.labelled, self.images.unlabelled) if each is not None]
        return sets[0] if len(sets) == 1 else joined(*sets)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class that an attacker takes each image for, int64 (N,): its own where it is labelled, else the guess of
        the model that was sent, which is all that anybody has."""
        guessed_N: NDArray[np.int64] = self.logits(None).argmax(axis=1).astype(np.int64)
        labelled = self.images.labelled
        if labelled is not None and labelled.labels_N is not None:
            guessed_N[:len(labelled)] = labelled.labels_N.numpy()
        return guessed_N


def averaged(updates: Sequence[Leaving], settings: Any) -> dict[str, Tensor] | None:
    """The mean of updates with the weights that the method's own settings give them: what a sum behind masks tells.

    Where silos divide by their steps before (`sums_per_step`), so is it here. None where all abstained.
    """
    there = [each for each in updates if each.change is not None]
    if not there:
        return None
    uniform = getattr(settings, "weighting", "size") == "uniform"
    weights = uniform_weights(len(there)) if uniform else size_weights([each.num_examples for each in there])
    if sums_per_step(settings):
        mean_steps = sum(weight * each.steps for weight, each in zip(weights, there, strict=True))
        weights = [weight * mean_steps / each.steps for weight, each in zip(weights, there, strict=True)]
    total: dict[str, Tensor] | None = None
    for weight, each in zip(weights, there, strict=True):
        assert each.change is not None
        part = tensors.scale(each.change, weight)
        total = part if total is None else tensors.add(total, part)
    return total


def images_of_round(images: SiloImages, *, round: int) -> SiloImages:
    """Those that are there in a round, with nothing to come later, and none to measure on."""
    if images.steps_N is None or images.unlabelled is None:
        return replace(images, test=None)
    there = images.data(round=round, scenario="labels-at-silo").unlabelled
    return SiloImages(labelled=images.labelled, unlabelled=there)


def chosen_images(images: SiloImages, indices: NDArray[np.integer]) -> SiloImages:
    """A part of a silo's images, in order. `indices` are among the labelled ones, then the unlabelled ones."""
    first = 0 if images.labelled is None else len(images.labelled)
    ordered = np.sort(np.asarray(indices, dtype=np.int64))
    labelled, unlabelled = ordered[ordered < first], ordered[ordered >= first] - first
    return SiloImages(
        labelled=None if images.labelled is None or not len(labelled) else images.labelled.subset(labelled),
        unlabelled=None if images.unlabelled is None or not len(unlabelled) else images.unlabelled.subset(unlabelled))


def _digest(images: SiloImages) -> str:
    total = hashlib.sha256()
    for each in (images.labelled, images.unlabelled):
        total.update(b"none" if each is None else repr(tuple(each.images_NCHW.shape)).encode())
        if each is not None:
            total.update(np.ascontiguousarray(each.images_NCHW.numpy()).data)
            if each.labels_N is not None:
                total.update(each.labels_N.numpy().astype("<i8").tobytes())
    return total.hexdigest()
