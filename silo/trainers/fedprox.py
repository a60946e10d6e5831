"""FedProx at a silo: FedAvg's training, held near the received model.

Source: Li et al., MLSys 2020, Eq. 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semisilo.common.learning.tensors import check_same_layout
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.common.methods.fedprox import FedProxSettings
from semisilo.silo.objectives.training import Penalty
from semisilo.silo.trainers.fedavg import FedAvgMemory, train_received

__all__ = ["FedProxTrainer", "proximal_term"]


class FedProxTrainer:
    """The silo half of FedProx."""

    Memory = FedAvgMemory

    def train(self, task: SiloTask, data: SiloData, memory: FedAvgMemory | None) -> tuple[Update, FedAvgMemory | None]:
        """As FedAvg's, with mu (w - w_t) added to every gradient; without a step for mu = 0."""
        settings: FedProxSettings = task.settings

        def penalty(received: Mapping[str, Tensor]) -> Penalty:
            return lambda model: proximal_term(_parameters(model), received, mu=settings.mu)

        return train_received(task, data, memory, penalty=penalty if settings.mu else None)


def proximal_term(local: Mapping[str, Tensor], received: Mapping[str, Tensor], *, mu: float) -> Tensor:
    """Keeps a silo near the model that it received: (mu / 2) * ||w - w_t||^2. Oracle B3.

    Args:
        local: trainable parameters w.
        received: w_t, detached; the same object for the whole round.
        mu: strength, at least 0.
    Returns: scalar (), summed over all elements: neither a mean nor an unsquared norm. Its gradient is mu (w - w_t).
    Raises: LayoutMismatch, naming the first tensor that differs.
    Source: FedProx, Li et al. (MLSys 2020) Eq. 2.
    """
    check_same_layout(local, received)
    return 0.5 * mu * torch.stack([(local[name] - received[name]).square().sum() for name in local]).sum()


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
