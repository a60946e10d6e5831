"""SCAFFOLD at a silo: FedAvg's training with c - c_k added to every gradient, and c_k kept for the next round.

c_k is kept together with the difference that was sent, so that it counts only when the coordinator has folded that
difference. The task says which round of this silo is in c; a silo that does not have exactly that c_k trains without
correction and says so (metric correction_lost).

Source: SCAFFOLD, Karimireddy et al. (ICML 2020), Algorithm 1 with option II; symbols are those of
`semisilo.common.learning.averaging.normalised`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning import tensors
from semisilo.common.learning.averaging.normalised import correction, mean_gradient, next_control
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.common.methods.scaffold import ScaffoldSettings
from semisilo.silo.objectives.training import Penalty
from semisilo.silo.trainers.fedavg import FedAvgMemory, train_received

__all__ = ["ScaffoldMemory", "ScaffoldTrainer", "UsedControls", "control_to_keep", "used_controls"]

_LOG = logging.getLogger("semisilo.silo")


@dataclass(frozen=True, kw_only=True)
class ScaffoldMemory:
    """What a silo keeps between rounds."""

    c: dict[str, Tensor]
    """c_k: mean raw gradient of the silo's last accepted round, float64."""
    epoch: int
    """`correction_epoch` of the coordinator's sum that it is in."""
    round: int
    """That round."""
    teacher: dict[str, Tensor] | None = None
    """The teacher at its end; kept with objective = "mean_teacher", teacher = "local"."""


@dataclass(frozen=True, slots=True)
class UsedControls:
    """The control variates of a round; None where they are 0."""

    mean: Mapping[str, Tensor] | None = None
    """c, as it was received."""
    own: Mapping[str, Tensor] | None = None
    """c_k, in float64 or the type of c."""
    lost: bool = False
    """Whether c holds a c_k that this silo no longer has; then both count as 0."""

    def correction(self) -> dict[str, Tensor] | None:
        """c - c_k, in the type of the model; None where it is 0."""
        return None if self.mean is None or self.own is None else correction(self.mean, self.own)


class ScaffoldTrainer:
    """The silo half of SCAFFOLD."""

    Memory = ScaffoldMemory

    def train(self, task: SiloTask, data: SiloData, memory: ScaffoldMemory | None
              ) -> tuple[Update, ScaffoldMemory | None]:
        """As FedAvg's; abstains with "no_confident_example" where no batch held anything to learn from.

        Raises: LayoutMismatch also when the correction is not of the model's layout.
        """
        if task.phase != "train":
            return train_received(task, data, None)[0], memory
        used = used_controls(task, memory)
        d = used.correction()
        before = None if memory is None else FedAvgMemory(round=memory.round, teacher=memory.teacher)
        update, keep = train_received(task, data, before, penalty=None if d is None else lambda _: _along(d, task))
        if update.abstention:
            return update, memory
        if not update.metrics["steps"]:
            return Update(abstention="no_confident_example", num_examples=update.num_examples,
                          metrics=update.metrics), memory
        c = control_to_keep(task, used, update.groups["model"].tensors, steps=int(update.metrics["steps"]))
        return (replace(update, metrics={**update.metrics, "correction_lost": float(used.lost)}),
                ScaffoldMemory(c=c, epoch=task.settings.correction_epoch, round=task.round,
                               teacher=None if keep is None else keep.teacher))


def used_controls(task: SiloTask, memory: ScaffoldMemory | None) -> UsedControls:
    """c and c_k of a round, from what was sent and what the silo keeps.

    Raises: LayoutMismatch when what was sent does not fit the model.
    """
    settings: ScaffoldSettings = task.settings
    group = task.groups.get("correction")
    if group is not None:
        tensors.check_same_layout(task.groups["model"].tensors, group.tensors)
    if settings.correction_round == 0:
        return UsedControls() if group is None else UsedControls(group.tensors, tensors.zeros_like(group.tensors))
    if (group is not None and memory is not None and memory.epoch == settings.correction_epoch
            and memory.round == settings.correction_round and _fits(group.tensors, memory.c)):
        return UsedControls(group.tensors, memory.c)
    _LOG.warning("round %d has no correction: what was kept of round %d is lost",
                 task.round, settings.correction_round)
    return UsedControls(lost=True)


def control_to_keep(task: SiloTask, used: UsedControls, difference: Mapping[str, Tensor], *,
                    steps: int) -> dict[str, Tensor]:
    """c_k' = c_k - c + Delta_k after a round, float64.

    Args:
        difference: w_k - w as it is sent.
        steps: tau_k, those that were done.
    """
    return next_control(mean_gradient(difference, lr=task.settings.round_lr, steps=steps), used.mean, used.own)


def _along(d: Mapping[str, Tensor], task: SiloTask) -> Penalty:
    """<d, w>, a term of the loss whose gradient is d."""
    added: dict[str, Tensor] = {}

    def term(model: nn.Module) -> Tensor:
        parameters = dict(model.named_parameters())
        if not added:
            added.update(tensors.all_like({name: parameters[name] for name in d}, d))
        return torch.stack([(parameters[name] * tensor).sum() for name, tensor in added.items()]).sum()

    return term


def _fits(mean: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    try:
        tensors.check_same_layout({name: each.double() for name, each in mean.items()}, own)
    except LayoutMismatch:
        return False
    return True
