"""FedAvg at a silo: train the received model with a local objective, return the difference.

Source: McMahan et al., AISTATS 2017; objectives as baselines.md section 1 has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common import batch_norm, tensors
from common.errors import BadPayload, LayoutMismatch
from common.exchange import Meaning, SiloData, SiloTask, TensorGroup, Update
from common.methods.fedavg import FedAvgSettings
from common.seeds import torch_generator
from common.sgd import SGDSettings, make_optimiser, momentum_of
from common.training import check_finite, named_randomness
from silo.objectives import make_objective, train_locally, usable_data
from silo.objectives.training import Penalty
from silo.statistics import STATISTICS, measured_statistics

__all__ = ["FedAvgMemory", "FedAvgTrainer", "loaded_model", "own_statistics", "sgd_settings", "train_received"]

_LOG = logging.getLogger("semisilo.silo")


@dataclass(frozen=True, kw_only=True)
class FedAvgMemory:
    """What a silo keeps between rounds, where its settings ask for it."""

    round: int
    """The silo's last accepted participation."""
    momentum: dict[str, Tensor] | None = None
    """SGD momentum at its end; kept with persist_local_momentum."""
    teacher: dict[str, Tensor] | None = None
    """The teacher at its end; kept with objective = "mean_teacher", teacher = "local"."""


class FedAvgTrainer:
    """The silo half of FedAvg."""

    Memory = FedAvgMemory

    def train(self, task: SiloTask, data: SiloData, memory: FedAvgMemory | None) -> tuple[Update, FedAvgMemory | None]:
        """Phase "train": train, return the difference. Phase "statistics": measure batch-norm statistics.

        Abstains with "no_data", "no_labelled_data" where the objective has no use for unlabelled images alone, or
        "no_usable_batch" when batch-norm could use no batch; memory then stays as it is.
        Raises: BadPayload for another phase; LayoutMismatch when the model is not the task's; ComputeFailed when
            training diverges.
        """
        return train_received(task, data, memory)


def train_received(task: SiloTask, data: SiloData, memory: FedAvgMemory | None, *,
                   penalty: Callable[[Mapping[str, Tensor]], Penalty] | None = None
                   ) -> tuple[Update, FedAvgMemory | None]:
    """A task of FedAvg, or of a method that adds a term on the weights to every step's loss.

    Args:
        penalty: makes that term from the received parameters, which are on the task's device.
    """
    if task.phase == STATISTICS:
        return measured_statistics(task, data), memory
    if task.phase != "train":
        raise BadPayload(f"There is no phase '{task.phase}' in this method.")
    settings: FedAvgSettings = task.settings
    labelled, unlabelled, missing = usable_data(settings, data)
    if missing:
        return Update(abstention=missing), memory
    size = sum(len(each) for each in (data.labelled, data.unlabelled) if each is not None)
    sent = task.groups["model"]
    received = sent.tensors
    model = loaded_model(task, received)
    statistics = task.groups.get("batch_norm")
    batch_norm.load(model, statistics.tensors if statistics is not None else own_statistics(task, model, data))
    objective = make_objective(task, model, unlabelled, teacher=None if memory is None else memory.teacher)
    optimiser = make_optimiser(model, sgd_settings(settings), _momentum(settings, memory, received))
    term = None if penalty is None else penalty({name: tensor.to(task.device) for name, tensor in received.items()})
    found = train_locally(task, model, optimiser, objective, labelled, unlabelled, penalty=term)
    if found.steps == 0 and found.skipped:
        return Update(abstention="no_usable_batch", num_examples=size), memory
    trained = tensors.parameters_of(model)
    check_finite(trained, where=f"at this silo in round {task.round}")
    group = TensorGroup(tensors.subtract(trained, received), Meaning.DIFFERENCE, tensors.group_digest(sent))
    teacher = objective.kept()
    keep = FedAvgMemory(round=task.round, momentum=momentum_of(optimiser) if settings.persist_local_momentum else None,
                        teacher=None if teacher is None else dict(teacher))
    nothing = keep.momentum is None and keep.teacher is None
    return Update(groups={"model": group}, num_examples=size, metrics=found.metrics), None if nothing else keep


def loaded_model(task: SiloTask, parameters: Mapping[str, Tensor]) -> nn.Module:
    """The task's network with these parameters, on its device. Raises: LayoutMismatch."""
    with named_randomness(task.seed, "unused_weights", round=task.round, silo=task.silo):
        model = task.build_model()
    tensors.load_into(model, parameters)
    return model.to(task.device)


def own_statistics(task: SiloTask, model: nn.Module, data: SiloData) -> dict[str, Tensor]:
    """Batch-norm statistics of a model on the silo's own images, labelled and not, which must be some; {} for a network
    that needs none. For a silo that is alone, and where nobody could be asked in time."""
    if not batch_norm.layers_of(model):
        return {}
    images_NCHW = torch.cat([each.images_NCHW for each in (data.labelled, data.unlabelled) if each is not None])
    return batch_norm.to_tensors(batch_norm.measure(
        model, images_NCHW, form=task.image,
        generator=torch_generator(task.seed, "batch_norm_order", round=task.round, silo=task.silo)))


def sgd_settings(settings: FedAvgSettings) -> SGDSettings:
    """Descent at the round's learning rate."""
    return SGDSettings(lr=settings.round_lr, momentum=settings.momentum, nesterov=settings.nesterov,
                       weight_decay=settings.weight_decay, clip_norm=settings.clip_norm)


def _momentum(settings: FedAvgSettings, memory: FedAvgMemory | None,
              received: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The buffers to go on from; None starts anew: by setting, the first time, or when they are another model's."""
    if memory is None or memory.momentum is None or not settings.persist_local_momentum:
        return None
    try:
        tensors.check_same_layout(received, memory.momentum)
    except LayoutMismatch as error:
        _LOG.warning("momentum starts anew, what was kept does not fit the model: %s", error.text)
        return None
    return memory.momentum
