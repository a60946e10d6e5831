"""Pseudo-labels: the class that the model finds likeliest counts as the image's own (Fed-Pseudo).

Tests: tests/silo/objectives/test_objectives.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.learning.consistency import pseudo_label_loss
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.imbalance.pseudo_labels import Alignment
from semisilo.common.learning.losses import PseudoLabels, cross_entropy, first_argmax, pseudo_labels
from semisilo.common.learning.privacy.example_gradients import each_by_itself
from semisilo.silo.objectives.step import LogitsOf, Objective, Step, Unlabelled
from semisilo.silo.objectives.views import View

__all__ = ["PseudoLabel", "label_all"]

_BLOCK = 512
"""Images that are brought to the device at once."""


class PseudoLabel(Objective):
    """CE(y, f(x)) + alpha0(t) * CE(hard label, f(u)); every unlabelled image enters.

    Args:
        alpha0: weight in a local epoch, counted from 1 over all rounds.
        labels: of all unlabelled images, made with the received model (`label_all`): Fed-SHVR with alpha1 = alpha2 = 0.
            None labels every batch with the model under training.
        weak_view: the view that is trained on; without `labels` it is labelled as well.
    Source: Lee (ICML workshop 2013); Fed-SHVR (Wang et al.), whose rival Fed-Pseudo it is.
    """

    def __init__(self, form: ImageForm, *, alpha0: Callable[[int], float], labels: PseudoLabels | None = None,
                 weak_view: View = "weak") -> None:
        super().__init__(form)
        self.views = (weak_view,)
        self._alpha0, self._labels = alpha0, labels

    @property
    def labels(self) -> PseudoLabels | None:
        return self._labels

    def unlabelled_weight(self, step: Step) -> float:
        return self._alpha0(step.epoch)

    def unlabelled(self, model: nn.Module, step: Step) -> Unlabelled:
        images_BCHW, = step.views
        hard_label_B, logits_BK = None, self.logits(model, images_BCHW)
        if self._labels is not None:
            hard_label_B = self._labels.hard_label_B[step.index_B].to(images_BCHW.device)
        elif self.alignment is not None:
            hard_label_B = first_argmax(self.alignment.batch(logits_BK.detach()))
        found = pseudo_label_loss(logits_BK, hard_label_B)
        return Unlabelled(found.loss, found.labels)

    def targets(self, model: nn.Module, views: tuple[Tensor, ...], index_B: Tensor,
                logits_of: LogitsOf) -> tuple[Tensor, ...]:
        """The hard label, of the round or of the network under training."""
        if self._labels is not None:
            return (self._labels.hard_label_B[index_B].to(views[0].device),)
        return (first_argmax(logits_of(model, views[0])),)

    def unlabelled_loss(self, logits_K: Tensor, *targets: Tensor) -> Tensor:
        label, = targets
        return cross_entropy(logits_K[None], label[None])


def label_all(model: nn.Module, images_NCHW: Tensor, form: ImageForm, *,
              alignment: Alignment | None = None, progress: Callable[[float], None] | None = None,
              alone: bool = False) -> PseudoLabels:
    """Hard labels of all images as they are, in evaluation mode, with the statistics that the model has; on the CPU.

    All are kept. With `alignment` the predictions are aligned by their mean over all images. The model is left in
    evaluation mode. With `alone` each image goes through it by itself, whatever the network would do with a batch.
    Source: Fed-SHVR (Wang et al.) algorithm 1, with alpha1 = 0.
    """
    model.eval()
    if alone:
        device = next(model.parameters()).device
        blocks = (augment.to_input(block.to(device), form) for block in torch.split(images_NCHW, _BLOCK))
        return PseudoLabels.joined([pseudo_labels(each_by_itself(model, block), 0.0) for block in blocks])
    logits_NK = logits_of(model, images_NCHW, form, progress=progress)
    return PseudoLabels.joined([pseudo_labels(logits_NK if alignment is None else alignment.whole(logits_NK), 0.0)])
