"""Local-only training at a silo: its own model goes on from round to round and never leaves.

The model, its momentum and its teacher are the silo's memory. Memory is kept only with an update that is folded, so a
round brings one, which holds nothing but the number of steps; how good the model is stands in the metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semisilo.common.errors import BadPayload
from semisilo.common.learning import batch_norm
from semisilo.common.learning.evaluation import evaluate_classes
from semisilo.common.learning.sgd import make_optimiser, momentum_of, sgd_settings
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.local import LocalSettings
from semisilo.silo.objectives import make_objective, train_locally, usable_data
from semisilo.silo.trainers.parts.model import own_statistics, task_model, that_fits, trained_parameters

__all__ = ["LocalMemory", "LocalTrainer"]


@dataclass(frozen=True, kw_only=True)
class LocalMemory:
    """What a silo keeps between rounds."""

    round: int
    """The silo's last accepted participation."""
    model: dict[str, Tensor]
    """Its parameters."""
    momentum: dict[str, Tensor]
    """SGD momentum, which goes on as if there were no rounds."""
    teacher: dict[str, Tensor] | None = None
    """With objective = "mean_teacher", teacher = "local"."""


class LocalTrainer:
    """The silo half of local-only training."""

    Memory = LocalMemory

    def train(self, task: SiloTask, data: SiloData, memory: LocalMemory | None) -> tuple[Update, LocalMemory | None]:
        """Trains the silo's own model and measures it; the first time, or when memory is lost, from the group `model`.

        "local_accuracy" is measured on the silo's test set where it has one, "local_labelled_accuracy" on its labelled
        images. Static batch-norm statistics, which both need, are measured on the silo's own images.
        Abstains and raises as `FedAvgTrainer`.
        """
        if task.phase != "train":
            raise BadPayload(f"There is no phase '{task.phase}' in local-only training.")
        settings: LocalSettings = task.settings
        labelled, unlabelled, missing = usable_data(settings, data)
        if missing:
            return Update(abstention=missing), memory
        size = sum(len(each) for each in (data.labelled, data.unlabelled) if each is not None)
        initial = task.groups["model"].tensors
        before = None if memory is None or that_fits(memory.model, initial, "training") is None else memory
        model = task_model(task, initial if before is None else before.model)
        batch_norm.load(model, own_statistics(task, model, data))
        objective = make_objective(task, model, labelled, unlabelled,
                                   teacher=None if before is None else before.teacher)
        sgd = sgd_settings(settings, settings.round_lr, nesterov=settings.nesterov)
        optimiser = make_optimiser(model, sgd, None if before is None else before.momentum)
        found = train_locally(task, model, optimiser, objective, labelled, unlabelled)
        if found.steps == 0 and found.skipped:
            return Update(abstention="no_usable_batch", num_examples=size), memory
        trained = trained_parameters(task, model)
        batch_norm.load(model, own_statistics(task, model, data))
        metrics = dict(found.metrics)
        for name, images in (("local_accuracy", data.test), ("local_labelled_accuracy", labelled)):
            if images is not None and len(images) and images.labels_N is not None:
                metrics[name] = evaluate_classes(model, images, form=task.image).accuracy
        teacher = objective.kept()
        keep = LocalMemory(round=task.round, model=trained, momentum=momentum_of(optimiser),
                           teacher=None if teacher is None else dict(teacher))
        done = TensorGroup({"steps": torch.tensor([found.steps], dtype=torch.int64)})
        return Update(groups={"steps": done}, num_examples=size, metrics=metrics), keep
