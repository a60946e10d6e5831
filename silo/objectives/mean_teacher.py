"""Mean teacher: the model shall agree with a moving average of itself (Fed-MT).

Tests: tests/silo/objectives/test_objectives.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.learning import tensors
from semisilo.common.learning.consistency import ema_into, mt_consistency
from semisilo.common.learning.losses import pseudo_labels
from semisilo.silo.objectives.step import LogitsOf, Objective, Step, Unlabelled
from semisilo.silo.objectives.views import View

__all__ = ["MeanTeacher"]


class MeanTeacher(Objective):
    """CE(y, f(x)) + alpha0(t) * mean over images and classes of (softmax f(u) - softmax f_teacher(u'))^2, u and u' two
    independent weak views; after every step teacher = a * teacher + (1 - a) * student. The student is uploaded.

    Args:
        teacher: a network of its own on the task's device, with the weights that the teacher starts from.
        alpha0: weight in a local epoch, counted from 1 over all rounds.
        decay: a.
        keeps: whether `kept` gives the teacher, for the silo's next round.
        weak_view: "original" gives both the same image.
    The teacher's batch-norm uses its batch's own statistics, as the student's does.
    Source: Tarvainen and Valpola (NeurIPS 2017); Fed-SHVR (Wang et al.), whose rival Fed-MT it is, names no more than
        "combined with FedAvg": the rest is reconstructed, baselines.md section 3.
    """

    def __init__(self, form: ImageForm, *, teacher: nn.Module, alpha0: Callable[[int], float], decay: float,
                 keeps: bool = False, weak_view: View = "weak") -> None:
        super().__init__(form)
        self.views = (weak_view, weak_view)
        self._teacher = teacher.train()
        self._weights = [parameter for parameter in teacher.parameters() if parameter.requires_grad]
        self._alpha0, self._decay, self._keeps = alpha0, decay, keeps

    def unlabelled_weight(self, step: Step) -> float:
        return self._alpha0(step.epoch)

    def unlabelled(self, model: nn.Module, step: Step) -> Unlabelled:
        student_BCHW, teacher_BCHW = step.views
        teacher_logits_BK = self.logits_of_batch(self._teacher, teacher_BCHW)
        loss = mt_consistency(self.logits(model, student_BCHW), teacher_logits_BK)
        return Unlabelled(loss, pseudo_labels(teacher_logits_BK, 0.0), torch.softmax(teacher_logits_BK, dim=-1))

    def targets(self, model: nn.Module, views: tuple[Tensor, ...], index_B: Tensor,
                logits_of: LogitsOf) -> tuple[Tensor, ...]:
        """What the teacher says of its view, as probabilities."""
        return (torch.softmax(logits_of(self._teacher, views[1]), dim=-1),)

    def unlabelled_loss(self, logits_K: Tensor, *targets: Tensor) -> Tensor:
        """Mean over the classes of the squared difference to the teacher."""
        teacher_K, = targets
        return (torch.softmax(logits_K, dim=-1) - teacher_K).square().mean()

    def after_step(self, model: nn.Module) -> None:
        student = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
        ema_into([weight.detach() for weight in self._weights], student, decay=self._decay)

    def kept(self) -> dict[str, Tensor] | None:
        return tensors.parameters_of(self._teacher) if self._keeps else None
