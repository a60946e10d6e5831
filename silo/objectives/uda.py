"""UDA: the strong view shall give the sharpened probabilities of the original; labels are fed in slowly (TSA).

Tests: tests/silo/objectives/test_objectives.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.learning.consistency import MaskMean, tsa_loss, uda_unsup
from semisilo.common.learning.losses import Threshold, pseudo_labels
from semisilo.silo.objectives.step import LogitsOf, Step, Unlabelled
from semisilo.silo.objectives.supervised import Supervised

__all__ = ["UDA"]


class UDA(Supervised):
    """lambda_s * CE over the labelled x with p(y | x) <= tsa + lambda_u * mean_u[1(max q >= threshold) * CE(softmax(z /
    T), f(strong(u)))], z the logits of the original u, without gradient, q = softmax(z).

    Args:
        tsa: from the number of classes, the largest probability of its class at which a labelled image enters
            (`semisilo.common.learning.consistency.tsa_threshold`); 1 lets all enter.
        mask_mean: as in FixMatch.
    Source: UDA, Xie et al. (NeurIPS 2020) sections 2.2, 3.1 and 3.2; weights as FedMatch (Jeong et al.).
    """

    views = ("original", "strong")

    def __init__(self, form: ImageForm, *, temperature: float, confidence_threshold: Threshold,
                 tsa: Callable[[int], float], lambda_s: float = 1.0, lambda_u: float = 1.0,
                 mask_mean: MaskMean = "batch") -> None:
        super().__init__(form, lambda_s=lambda_s)
        self._temperature, self._threshold, self._tsa = temperature, confidence_threshold, tsa
        self._lambda_u, self._mask_mean = lambda_u, mask_mean

    def unlabelled_weight(self, step: Step) -> float:
        return self._lambda_u

    def labelled(self, model: nn.Module, step: Step) -> Tensor:
        assert step.labels_B is not None
        logits_BK = self.labelled_logits(model, step)
        return tsa_loss(logits_BK, step.labels_B, self._tsa(logits_BK.shape[1])).loss

    def unlabelled(self, model: nn.Module, step: Step) -> Unlabelled:
        original_BCHW, strong_BCHW = step.views
        original_logits_BK = self.logits_of_batch(model, original_BCHW)
        found = uda_unsup(original_logits_BK, self.logits(model, strong_BCHW), temperature=self._temperature,
                          confidence_threshold=self._threshold, mask_mean=self._mask_mean)
        nothing = self._mask_mean == "kept" and not bool(found.labels.keep_B.any())
        return Unlabelled(None if nothing else found.loss, found.labels)

    trained_view = 1

    def labelled_loss(self, logits_K: Tensor, label: Tensor) -> Tensor:
        """0 for an image that the network knows already."""
        return tsa_loss(logits_K[None], label[None], self._tsa(logits_K.shape[0])).loss

    def targets(self, model: nn.Module, views: tuple[Tensor, ...], index_B: Tensor,
                logits_of: LogitsOf) -> tuple[Tensor, ...]:
        """The sharpened probabilities of the original, and whether the image counts."""
        logits_BK = logits_of(model, views[0])
        keep_B = pseudo_labels(logits_BK, self._threshold).keep_B
        return torch.softmax(logits_BK / self._temperature, dim=-1), keep_B

    def unlabelled_loss(self, logits_K: Tensor, *targets: Tensor) -> Tensor:
        """Of the strong view; 0 where the label is not kept."""
        target_K, keep = targets
        return keep * -(target_K * torch.log_softmax(logits_K, dim=-1)).sum()
