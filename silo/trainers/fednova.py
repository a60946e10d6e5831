"""FedNova at a silo: FedAvg's half. The coordinator needs the number of steps, so a silo that took none abstains.

Source: Wang et al., NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import replace

from semisilo.common.learning.averaging.normalised import effective_steps
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.common.methods.parts.secure_sum import STEPS
from semisilo.silo.trainers.fedavg import FedAvgMemory, train_received

__all__ = ["FedNovaTrainer"]


class FedNovaTrainer:
    """The silo half of FedNova."""

    Memory = FedAvgMemory

    def train(self, task: SiloTask, data: SiloData, memory: FedAvgMemory | None) -> tuple[Update, FedAvgMemory | None]:
        """As FedAvg's; abstains with "no_confident_example" where no batch held anything to learn from."""
        update, keep = train_received(task, data, memory)
        if task.phase == "train" and not update.abstention and not update.metrics["steps"]:
            return Update(abstention="no_confident_example", num_examples=update.num_examples,
                          metrics=update.metrics), memory
        if task.phase == "train" and not update.abstention:
            taken = effective_steps(int(update.metrics["steps"]), momentum=task.settings.momentum)
            update = replace(update, totals={STEPS: taken})
        return update, keep
