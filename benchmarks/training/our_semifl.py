"""A silo's round of SemiFL as semisilo runs it: the trainer with a task, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm
from semisilo.common.learning.tensors import parameters_of
from semisilo.common.methods.contract import ModelBuilder, ModelSettings, SiloData, SiloTask, TensorGroup
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.models.factory import model_builder
from semisilo.common.numerics import numerics
from semisilo.common.numerics.thread_count import TrainingStep, fastest_threads
from semisilo.common.process.allocator import settle_allocator
from semisilo.common.process.processors import usable_processors
from semisilo.silo.trainers.semifl import SemiFLTrainer

__all__ = ["OurSilo"]


class OurSilo:
    """A silo whose round can be timed again and again. Sets the numerics of this process."""

    def __init__(self, network: str, images_NHWC: NDArray[np.uint8], *, mean: Sequence[float], std: Sequence[float],
                 batch: int, epochs: int, chosen: Numerics) -> None:
        """`chosen.threads` of 0 are measured, as at a silo."""
        settle_allocator(arenas=1 + usable_processors())
        device = "cuda" if torch.cuda.is_available() else "cpu"
        form = ImageForm(size=images_NHWC.shape[1], channels=3, mean=tuple(mean), std=tuple(std))
        model = ModelSettings(name=network, classes=tuple("abcdefghij"))
        self.record = numerics.apply(chosen, device=device)
        build = model_builder(model, form)
        # Threshold 0: all images are kept, so that every round has the same work.
        settings = SemiFLSettings(confidence_threshold=0.0, unlabelled_batch=batch, local_epochs=epochs, round_lr=0.03)
        if not chosen.threads and device == "cpu":
            threads = fastest_threads(TrainingStep(build=build, image=form, num_classes=10, batch=batch,
                                                   passes=settings.passes_side_by_side),
                                      processors=usable_processors())
            self.record = numerics.apply(Numerics(threads=threads, precision=chosen.precision,
                                                  memory_format=chosen.memory_format), device=device)
        images = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images_NHWC, 3, 1)))
        self._data = SiloData(unlabelled=ImageSet(images, None, tuple(map(str, range(len(images))))))
        self._task = _task(build, images, form, settings, device)

    def round_seconds(self) -> float:
        """Seconds of one round: labels for all images, then the epochs."""
        began = time.perf_counter()
        update, _ = SemiFLTrainer().train(self._task, self._data, None)
        assert not update.abstention, update.abstention
        return time.perf_counter() - began


def _task(build: ModelBuilder, images_NCHW: torch.Tensor, form: ImageForm, settings: SemiFLSettings,
          device: str) -> SiloTask:
    torch.manual_seed(1)
    network = build().to(device)
    found = batch_norm.measure(network, images_NCHW[:50], form=form, generator=torch.Generator().manual_seed(1))
    groups = {"model": TensorGroup(parameters_of(network)), "batch_norm": TensorGroup(batch_norm.to_tensors(found))}
    return SiloTask(study="benchmark", round=1, rounds=1, phase="train", silo="a", seed=1, settings=settings,
                    groups=groups, build_model=build,
                    augmentation=AugmentationSettings(policy="semifl_official", horizontal_flip=True),
                    image=form, device=device, progress=None)
