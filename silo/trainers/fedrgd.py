"""FedRGD at a silo: FixMatch from the model that it was sent, which in the paper's mode is its group's.

Source: Zhang et al., arXiv 2008.11364v2.
"""

from __future__ import annotations

from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.silo.trainers.fedavg import FedAvgMemory, train_received

__all__ = ["FedRGDTrainer"]


class FedRGDTrainer:
    """The silo half of FedRGD."""

    Memory = FedAvgMemory

    def train(self, task: SiloTask, data: SiloData, memory: FedAvgMemory | None) -> tuple[Update, FedAvgMemory | None]:
        """As FedAvg's with objective = "fixmatch": what is different happens at the coordinator.

        Where no image reaches the threshold only weight decay acts; the update is returned all the same.
        """
        return train_received(task, data, memory)
