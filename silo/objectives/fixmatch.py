"""FixMatch: the strong view shall have the class that the weak one shows with confidence.

Tests: tests/silo/objectives/test_objectives.py.
"""

from __future__ import annotations

from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.learning.consistency import MaskMean, fixmatch_unsup
from semisilo.common.learning.losses import Threshold, cross_entropy, pseudo_labels
from semisilo.silo.objectives.step import LogitsOf, Step, Unlabelled
from semisilo.silo.objectives.supervised import Supervised
from semisilo.silo.objectives.views import View

__all__ = ["FixMatch"]


class FixMatch(Supervised):
    """lambda_s * CE(y, f(x)) + lambda_u * mean_u[1(max q >= threshold) * CE(argmax q, f(strong(u)))], q = softmax
    f(weak(u)) of the model under training, without gradient. With several labels for an image every class is labelled
    by
    itself: `semisilo.common.learning.losses.ClassThresholds`.

    Args:
        weak_view: "weak", or "original" for FedMatch v3, where weak augmentation hurt.
        mask_mean: with "kept" a batch in which nothing is kept has no unlabelled term, as in SemiFL's code.
    Source: FixMatch, Sohn et al. (NeurIPS 2020) Eq. 3 and 4; weights as FedMatch (Jeong et al.).
    """

    def __init__(self, form: ImageForm, *, confidence_threshold: Threshold, lambda_s: float = 1.0,
                 lambda_u: float = 1.0, mask_mean: MaskMean = "batch", weak_view: View = "weak") -> None:
        super().__init__(form, lambda_s=lambda_s)
        self.views = (weak_view, "strong")
        self._threshold, self._lambda_u, self._mask_mean = confidence_threshold, lambda_u, mask_mean

    def unlabelled_weight(self, step: Step) -> float:
        return self._lambda_u

    def unlabelled(self, model: nn.Module, step: Step) -> Unlabelled:
        weak_BCHW, strong_BCHW = step.views
        weak_logits_BK = self.logits_of_batch(model, weak_BCHW)
        found = fixmatch_unsup(weak_logits_BK, self.logits(model, strong_BCHW), self._threshold,
                               mask_mean=self._mask_mean)
        nothing = self._mask_mean == "kept" and not bool(found.labels.keep_B.any())
        return Unlabelled(None if nothing else found.loss, found.labels)

    trained_view = 1

    def targets(self, model: nn.Module, views: tuple[Tensor, ...], index_B: Tensor,
                logits_of: LogitsOf) -> tuple[Tensor, ...]:
        """The hard label of the weak view, and whether the image counts."""
        labels = pseudo_labels(logits_of(model, views[0]), self._threshold)
        return labels.hard_label_B, labels.keep_B

    def unlabelled_loss(self, logits_K: Tensor, *targets: Tensor) -> Tensor:
        """Of the strong view; 0 where the label is not kept."""
        label, keep = targets
        return keep * cross_entropy(logits_K[None], label[None])
