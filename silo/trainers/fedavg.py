"""FedAvg at a silo: train the received model with a local objective, return the difference.

Source: McMahan et al., AISTATS 2017; objectives as baselines.md section 1 has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.sgd import make_optimiser, momentum_of, sgd_settings
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.silo.objectives import make_objective, train_locally, usable_data
from semisilo.silo.objectives.training import Penalty
from semisilo.silo.trainers.batch_norm_phase import outside_training
from semisilo.silo.trainers.parts.model import (
    difference,
    load_received_statistics,
    own_statistics,
    task_model,
    that_fits,
    trained_parameters,
)

__all__ = ["FedAvgMemory", "FedAvgTrainer", "train_received"]


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
        "no_usable_batch" when batch-norm could use no batch, or gradients of all overflowed (fp16); memory then stays.
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
    if (measured := outside_training(task, data, "This method")) is not None:
        return measured, memory
    settings: FedAvgSettings = task.settings
    labelled, unlabelled, missing = usable_data(settings, data)
    if missing:
        return Update(abstention=missing), memory
    size = sum(len(each) for each in (data.labelled, data.unlabelled) if each is not None)
    received = task.groups["model"].tensors
    model = task_model(task, received)
    if "batch_norm" in task.groups:
        load_received_statistics(task, model)
    else:
        batch_norm.load(model, own_statistics(task, model, data))
    objective = make_objective(task, model, labelled, unlabelled, teacher=None if memory is None else memory.teacher)
    optimiser = make_optimiser(model, sgd_settings(settings, settings.round_lr, nesterov=settings.nesterov),
                               _momentum(settings, memory, received))
    term = None if penalty is None else penalty(tensors.all_like(optimiser.parameters, received))
    found = train_locally(task, model, optimiser, objective, labelled, unlabelled, penalty=term)
    if found.steps == 0 and found.skipped:
        return Update(abstention="no_usable_batch", num_examples=size), memory
    group = difference(task, trained_parameters(task, model))
    teacher = objective.kept()
    keep = FedAvgMemory(round=task.round, momentum=momentum_of(optimiser) if settings.persist_local_momentum else None,
                        teacher=None if teacher is None else dict(teacher))
    nothing = keep.momentum is None and keep.teacher is None
    return (Update(groups={"model": group}, num_examples=size, metrics=found.metrics, exact=found.exact),
            None if nothing else keep)


def _momentum(settings: FedAvgSettings, memory: FedAvgMemory | None,
              received: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The buffers to go on from; None starts anew: by setting, the first time, or when they are another model's."""
    if memory is None or memory.momentum is None or not settings.persist_local_momentum:
        return None
    return that_fits(memory.momentum, received, "momentum")
