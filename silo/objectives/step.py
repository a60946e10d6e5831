"""What one step of local training sees and what an objective makes of it: the interface of the local objectives.

Shapes: B images of a step, K classes. A step's loss is

    labelled_weight * labelled + unlabelled_weight * unlabelled

with one forward pass for each term, so that batch-norm uses the statistics of each batch.

Tests: tests/silo/objectives/test_objectives.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.learning.imbalance.pseudo_labels import Alignment
from semisilo.common.learning.losses import PseudoLabels, cross_entropy
from semisilo.common.numerics.passes import Gradients, Term
from semisilo.silo.objectives.views import View

__all__ = ["LogitsOf", "Objective", "Step", "StepLosses", "StepTerms", "Unlabelled"]

LogitsOf = Callable[[nn.Module, Tensor], Tensor]
"""From a network and images as it takes them, float (B, C, H, W), to logits (B, K) without gradient."""


@dataclass(frozen=True, slots=True)
class Step:
    """The images of one step, uint8 on the task's device. A silo without labelled or unlabelled images has None."""

    epoch: int
    """Local epochs so far, this one included: counted from 1, over all rounds of the study."""
    labelled_BCHW: Tensor | None
    """The view of the labelled images that the settings ask for."""
    labels_B: Tensor | None
    """int64, or multi-hot rows."""
    index_B: Tensor
    """Which of the silo's unlabelled images these are; int64, on the CPU."""
    views: tuple[Tensor, ...]
    """Of the unlabelled images: one (B, C, H, W) for each of the objective's `views`; empty where there are none."""


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """The unlabelled term of a step, without its weight."""

    loss: Tensor | None
    """Scalar (); None when the step has nothing to learn from its unlabelled images."""
    labels: PseudoLabels
    soft_BK: Tensor | None = None
    """Soft pseudo-labels, where the objective has such."""


@dataclass(frozen=True, slots=True)
class StepLosses:
    """The losses of a step, scalars (), detached; None for a term that has nothing to learn from."""

    labelled: Tensor | None
    unlabelled: Tensor | None
    total: Tensor | None
    """With their weights; None where both are."""


class Objective:
    """A local objective of one task: plain cross-entropy on labels, and what a subclass adds. Used for one round."""

    views: tuple[View, ...] = ()
    """Of unlabelled images, what a step needs; empty for an objective that does not look at them."""

    def __init__(self, form: ImageForm) -> None:
        self._form = form
        self.adjust: Callable[[Tensor], Tensor] | None = None
        """Logit adjustment of labelled images; set by `make_objective` where the settings ask for it."""
        self.labelled_loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy
        """Of (logits_BK, labels_B); with weights of the classes likewise."""
        self.alignment: Alignment | None = None
        """Distribution alignment of the logits that pseudo-labels are made of, likewise."""

    def labelled_weight(self, step: Step) -> float:
        """Of the labelled term in this step."""
        return 1.0

    def unlabelled_weight(self, step: Step) -> float:
        """Of the unlabelled term in this step."""
        return 1.0

    def labelled(self, model: nn.Module, step: Step) -> Tensor:
        """The labelled term, a scalar (), for a step that has labelled images."""
        assert step.labels_B is not None
        return self.labelled_loss_of(self.labelled_logits(model, step), step.labels_B)

    def unlabelled(self, model: nn.Module, step: Step) -> Unlabelled:
        """The unlabelled term, for a step that has unlabelled images. The model is in training mode."""
        raise AssertionError(f"{type(self).__name__} looks at no unlabelled images, and was given some")

    # With differential privacy: the same terms, image by image -------------------------------------------------------

    trained_view = 0
    """Which of `views` the gradient goes through."""

    def labelled_loss(self, logits_K: Tensor, label: Tensor) -> Tensor:
        """The labelled term of one image, a scalar (), from its logits and its class, int64 (), or multi-hot row
        (K,)."""
        return self.labelled_loss_of(logits_K[None], label[None])

    def targets(self, model: nn.Module, views: tuple[Tensor, ...], index_B: Tensor,
                logits_of: LogitsOf) -> tuple[Tensor, ...]:
        """What the unlabelled images of a step are trained towards, without gradient: tensors with B rows, each of
        which follows from its own image alone.

        Args:
            views: one for each of `views`, as the network takes them, float (B, C, H, W).
            index_B: which of the silo's unlabelled images these are; int64, on the CPU.
            logits_of: sends images through a network by themselves.
        """
        raise AssertionError(f"{type(self).__name__} looks at no unlabelled images, and was given some")

    def unlabelled_loss(self, logits_K: Tensor, *targets: Tensor) -> Tensor:
        """The unlabelled term of one image, a scalar (), from its logits and its rows of `targets`."""
        raise AssertionError(f"{type(self).__name__} looks at no unlabelled images, and was given some")

    def after_step(self, model: nn.Module) -> None:
        """Told after every change of the model."""

    def kept(self) -> Mapping[str, Tensor] | None:
        """Tensors on the CPU that the silo keeps for its next round; None for nothing."""
        return None

    @property
    def labels(self) -> PseudoLabels | None:
        """The pseudo-labels of the round, for all unlabelled images; None where they are made in every step."""
        return None

    def labelled_logits(self, model: nn.Module, step: Step) -> Tensor:
        """What the labelled term is taken of: the logits of the labelled images, adjusted where that is wanted."""
        assert step.labelled_BCHW is not None
        logits_BK = self.logits(model, step.labelled_BCHW)
        return logits_BK if self.adjust is None else self.adjust(logits_BK)

    def logits(self, model: nn.Module, images_BCHW: Tensor) -> Tensor:
        """A forward pass over uint8 images; float (B, K)."""
        logits_BK: Tensor = model(augment.to_input(images_BCHW, self._form))
        return logits_BK

    def logits_of_batch(self, model: nn.Module, images_BCHW: Tensor) -> Tensor:
        """As `logits` without gradient: what labels a batch, with that batch's own statistics in batch-norm, as the
        official code of SemiFL has it (its Table 2, per-batch labels). Aligned where that is wanted."""
        with torch.no_grad():
            logits_BK = self.logits(model, images_BCHW)
        return logits_BK if self.alignment is None else self.alignment.batch(logits_BK)


class StepTerms:
    """One step of an objective as terms whose passes do not need each other."""

    def __init__(self, objective: Objective, model: nn.Module, step: Step) -> None:
        self._objective, self._model, self._step = objective, model, step
        self._before = None if objective.alignment is None else objective.alignment.position()
        self.found: Unlabelled | None = None
        """What was found on the unlabelled images, once their pass is done."""

    def terms(self) -> list[Term]:
        """The labelled term, then the unlabelled one, of those for which the step has images."""
        terms = []
        if self._step.labelled_BCHW is not None:
            terms.append(Term(self._objective.labelled_weight(self._step),
                              lambda: self._objective.labelled(self._model, self._step)))
        if self._step.views:
            terms.append(Term(self._objective.unlabelled_weight(self._step), self._unlabelled))
        return terms

    def losses(self, found: Gradients) -> StepLosses:
        """The losses behind the gradients of `terms`."""
        losses = iter(found.losses)
        labelled = next(losses) if self._step.labelled_BCHW is not None else None
        unlabelled = next(losses) if self._step.views else None
        nothing = labelled is None and unlabelled is None
        return StepLosses(labelled, unlabelled, None if nothing else found.total)

    def undo(self) -> None:
        """As if its batch had not come: where the step was left out, or is done once more, the running mean of
        distribution alignment is that of before, whichever passes had been made."""
        if self._objective.alignment is not None and self._before is not None:
            self._objective.alignment.go_back_to(self._before)

    def _unlabelled(self) -> Tensor | None:
        self.undo()
        self.found = self._objective.unlabelled(self._model, self._step)
        return self.found.loss
