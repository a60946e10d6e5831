"""SemiFL over three silos in one process, every update written to a payload file and decoded from it as a coordinator
does: what a form of the uplink costs in accuracy, and what it saves in bytes."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from common import batch_norm, tensors
from common.data import splits
from common.data.form import AugmentationSettings, ImageForm
from common.data.image_set import ImageSet
from common.data.readers import measure_form, read_images
from common.evaluation import evaluate
from common.exchange import (
    CoordinatorData,
    Environment,
    ModelSettings,
    Phase,
    SiloData,
    SiloTask,
    TensorGroup,
    UpdateHeader,
)
from common.methods import SemiFLSettings
from common.models import ModelBuilder, initial_model, model_builder
from common.store import PayloadStore
from common.torch_payload import decode_groups
from common.uplink import Uplink
from coordinator.strategies.semifl import SemiFLState, SemiFLStrategy
from silo.compression import Sender, merged, write_update
from silo.trainers.semifl import SemiFLMemory, SemiFLTrainer

__all__ = ["Course", "Setting", "Simulation", "bloodcells", "digits"]

SILOS = ("silo-a", "silo-b", "silo-c")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A study: labelled images at the coordinator, the others without labels at three silos."""

    name: str
    environment: Environment
    settings: SemiFLSettings
    silos: Mapping[str, ImageSet]
    build: ModelBuilder
    form: ImageForm

    @property
    def dense_bytes(self) -> int:
        """4 x the parameters of the network."""
        return 4 * sum(parameter.numel() for parameter in self.build().parameters())


@dataclass(frozen=True, kw_only=True)
class Course:
    """What became of one study."""

    accuracies: tuple[float, ...]
    """On the test images, after round 0 (the coordinator alone) to the last."""
    uplink_bytes: tuple[int, ...]
    """Payload bytes of all silos' updates, in round 1 to the last."""
    sparseness: tuple[float, ...] = ()
    """Share of zeros in the decoded differences of each round."""


def digits(seed: int, *, rounds: int, settings: SemiFLSettings | None = None) -> Setting:
    """The demo's study in larger batches: 20 labelled digits, 1422 others at three silos."""
    settings = settings or SemiFLSettings(local_epochs=3, coordinator_epochs=40, unlabelled_batch=32)
    return _setting("digits", read_images("digits#train", size=8, channels=1).images,
                    read_images("digits#test", size=8, channels=1).images, num_labelled=20,
                    augmentation=AugmentationSettings(policy="small", without=("Invert", "Solarize")),
                    settings=settings, rounds=rounds, seed=seed)


def bloodcells(path: Path, seed: int, *, rounds: int, num_labelled: int = 96, num_unlabelled: int = 1800,
               num_test: int = 1000, settings: SemiFLSettings | None = None) -> Setting:
    """96 labelled blood cells, 1800 others at three silos; from an .npz in MedMNIST's layout."""
    settings = settings or SemiFLSettings(local_epochs=2, coordinator_epochs=20, unlabelled_batch=32)
    found = read_images(f"{path}#train", size=28, channels=3).images
    chosen = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))
    return _setting("bloodcells", found.subset(chosen[:num_labelled + num_unlabelled].numpy()),
                    read_images(f"{path}#test", size=28, channels=3).images.subset(torch.arange(num_test).numpy()),
                    num_labelled=num_labelled, augmentation=AugmentationSettings(
                        policy="small", horizontal_flip=True, vertical_flip=True), settings=settings, rounds=rounds,
                    seed=seed)


def _setting(name: str, images: ImageSet, test: ImageSet, *, num_labelled: int, augmentation: AugmentationSettings,
             settings: SemiFLSettings, rounds: int, seed: int) -> Setting:
    truth = images.labels_N
    assert truth is not None
    classes = tuple(str(label) for label in range(int(truth.max()) + 1))
    labelled = splits.labelled_selection(truth.numpy(), num_labelled, len(classes), seed)
    parts = splits.iid(truth.numpy(), len(SILOS), seed=seed, labelled=labelled)
    mean, std = measure_form(images.subset(labelled))
    form = ImageForm(size=images.images_NCHW.shape[-1], channels=3 if images.images_NCHW.shape[1] == 3 else 1,
                     mean=mean, std=std)
    build = model_builder(ModelSettings(classes=classes), form)
    environment = Environment(seed=seed, rounds=rounds, num_silos=len(SILOS), build_model=build, image=form,
                              augmentation=augmentation,
                              data=CoordinatorData(labelled=images.subset(labelled), test=test))
    silos = {silo: images.subset(part).without_labels() for silo, part in zip(SILOS, parts.silos, strict=True)}
    return Setting(name=name, environment=environment, settings=settings, silos=silos, build=build, form=form)


@dataclass
class Simulation:
    """A coordinator and its silos with one form of the uplink. Every update is folded."""

    setting: Setting
    uplink: Uplink
    memories: dict[str, SemiFLMemory | None] = field(default_factory=dict)
    residuals: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def run(self) -> Course:
        """The whole study."""
        state = self._strategy().start(initial_model(self.setting.build, self.setting.environment.seed))
        accuracies, sizes, zeros = [self._accuracy(state)], [], []
        for number in range(1, self.setting.environment.rounds + 1):
            for phase in self._strategy().phases(state, number):
                state, size, zero = self._phase(state, phase, number)
                sizes.append(size)
                zeros.append(zero)
            accuracies.append(self._accuracy(state))
        return Course(accuracies=tuple(accuracies), uplink_bytes=tuple(sizes), sparseness=tuple(zeros))

    def _strategy(self) -> SemiFLStrategy:
        return SemiFLStrategy(self.setting.settings, self.setting.environment)

    def _phase(self, state: SemiFLState, phase: Phase, number: int) -> tuple[SemiFLState, int, float]:
        strategy, environment = self._strategy(), self.setting.environment
        accepted: dict[str, tuple[UpdateHeader, dict[str, TensorGroup]]] = {}
        size = 0
        for silo in sorted(self.setting.silos):
            task = strategy.task(state, phase, silo, None, round=number)
            work = SiloTask(study="s", round=number, rounds=environment.rounds, phase=phase.name, silo=silo,
                            seed=environment.seed, groups=task.groups, build_model=self.setting.build,
                            settings=dataclasses.replace(self.setting.settings, **task.settings),
                            augmentation=environment.augmentation, image=self.setting.form)
            update, memory = SemiFLTrainer().train(work, SiloData(unlabelled=self.setting.silos[silo]),
                                                   self.memories.get(silo))
            if update.abstention:
                continue
            self.memories[silo] = memory
            sent, bytes_sent = self._send(update.groups, phase.name, silo, number)
            accepted[silo] = UpdateHeader(silo, update.num_examples, update.metrics), sent
            size += bytes_sent
        headers = tuple(accepted[silo][0] for silo in sorted(accepted))
        tally = strategy.begin(state, phase, headers, round=number)
        for header in headers:
            tally, _ = strategy.fold(state, tally, header, accepted[header.silo][1], None)
        values = [tensor.reshape(-1) for _, groups in accepted.values() for group in groups.values()
                  for tensor in group.tensors.values()]
        zeros = float((torch.cat(values) == 0).double().mean()) if values else 1.0
        return strategy.finish(state, phase, tally, round=number), size, zeros

    def _send(self, groups: Mapping[str, TensorGroup], phase: str, silo: str,
              number: int) -> tuple[dict[str, TensorGroup], int]:
        """(what the coordinator decodes, bytes of the payload file)."""
        committed = self.residuals.get(silo, {})
        with tempfile.TemporaryDirectory() as folder:
            store = PayloadStore(Path(folder))
            payload, left = write_update(
                store, groups, self.uplink, residuals=committed,
                sender=Sender(seed=self.setting.environment.seed, round=number, phase=phase, silo=silo))
            self.residuals[silo] = merged(committed=committed, pending={}, left=left, phase=phase)
            return decode_groups(store.path(payload.digest), require_finite=True), payload.size_bytes

    def _accuracy(self, state: SemiFLState) -> float:
        model, test = self.setting.build(), self.setting.environment.data.test
        assert test is not None
        tensors.load_into(model, state.w)
        batch_norm.load(model, state.batch_norm)
        return evaluate(model, test, form=self.setting.form).accuracy
