"""Losses that ask a network to agree with pseudo-labels or with a teacher: pure functions, each with its equation.

Shapes: B images in a batch, K classes. Logits are float (B, K), unnormalised; natural logarithms. Targets never carry a
gradient: `weak_logits_BK`, `original_logits_BK` and `teacher_logits_BK` are detached here, whoever calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from semisilo.common.learning.losses import PseudoLabels, Threshold, example_losses, pseudo_labels

__all__ = [
    "MaskMean", "TSALoss", "TSASchedule", "UDALoss", "UnlabelledLoss", "ema_into", "fixmatch_unsup",
    "masked_mean", "mt_consistency", "pseudo_label_loss", "tsa_loss", "tsa_threshold", "uda_unsup",
]

MaskMean = Literal["batch", "kept"]
"""The denominator of a masked mean: all images of the batch (FixMatch, UDA), or the kept ones (the codes of FedMatch
and SemiFL)."""
TSASchedule = Literal["linear", "exp", "log"]


@dataclass(frozen=True, slots=True)
class UnlabelledLoss:
    """A loss on unlabelled images and the hard labels that it used."""

    loss: Tensor
    """Scalar ()."""
    labels: PseudoLabels


@dataclass(frozen=True, slots=True)
class UDALoss:
    """The unlabelled term of UDA."""

    loss: Tensor
    """Scalar ()."""
    labels: PseudoLabels
    """Of the logits as they are, without the temperature."""
    target_BK: Tensor
    """Sharpened class probabilities, float (B, K)."""


@dataclass(frozen=True, slots=True)
class TSALoss:
    """A cross-entropy under training signal annealing."""

    loss: Tensor
    """Scalar (); 0 when no image enters."""
    keep_B: Tensor
    """Which images enter, bool (B,)."""


def masked_mean(values_B: Tensor, keep_B: Tensor, mask_mean: MaskMean = "batch") -> Tensor:
    """Sum of the kept values over B ("batch") or over the number kept ("kept"); 0 when nothing is kept.

    A value that is not kept contributes neither value nor gradient, whatever it is.
    """
    total = torch.where(keep_B, values_B, torch.zeros_like(values_B)).sum()
    if mask_mean == "batch":
        return total / max(len(values_B), 1)
    return total / keep_B.sum().clamp(min=1)


def fixmatch_unsup(weak_logits_BK: Tensor, strong_logits_BK: Tensor, confidence_threshold: Threshold, *,
                   mask_mean: MaskMean = "batch") -> UnlabelledLoss:
    """mean_b 1(max q_b >= threshold) * CE(argmax q_b, strong_b), q = softmax(weak). Oracle B6.

    With `ClassThresholds` every class is labelled by itself, and the loss of an image is the binary cross-entropy
    summed over its known classes (`example_losses`).
    Source: FixMatch, Sohn et al. (NeurIPS 2020) Eq. 4; mask_mean = "kept" as in the codes of FedMatch and SemiFL.
    """
    labels = pseudo_labels(weak_logits_BK.detach(), confidence_threshold)
    values_B = example_losses(strong_logits_BK, labels.hard_label_B)
    return UnlabelledLoss(masked_mean(values_B, labels.keep_B, mask_mean), labels)


def uda_unsup(original_logits_BK: Tensor, augmented_logits_BK: Tensor, *, temperature: float,
              confidence_threshold: Threshold, mask_mean: MaskMean = "batch") -> UDALoss:
    """mean_b 1(max q_b >= threshold) * CE(softmax(z_b / T), augmented_b), z the original's logits, q = softmax(z).
    Oracle B5.

    Args:
        temperature: T > 0; below 1 it sharpens the target. The mask looks at q, which it does not touch.
    Source: UDA, Xie et al. (NeurIPS 2020) sections 2.2 and 3.2; the paper's KL divergence differs by the entropy of the
        target, which has no gradient.
    """
    logits_BK = original_logits_BK.detach()
    labels = pseudo_labels(logits_BK, confidence_threshold)
    target_BK = torch.softmax(logits_BK / temperature, dim=-1)
    values_B = -(target_BK * torch.log_softmax(augmented_logits_BK, dim=-1)).sum(dim=-1)
    return UDALoss(masked_mean(values_B, labels.keep_B, mask_mean), labels, target_BK)


def tsa_threshold(schedule: TSASchedule, *, t: float, total: float, num_classes: int) -> float:
    """eta = a (1 - 1/K) + 1/K with x = t / total and a = x (linear), exp(5 (x - 1)) (exp), 1 - exp(-5 x) (log).
    Oracle B4.

    Args:
        t: 0..total; rounds, so that all silos anneal together.
    Source: UDA, Xie et al. (NeurIPS 2020) section 3.1, training signal annealing.
    """
    x = min(max(t / total, 0.0), 1.0)
    rate = {"linear": x, "exp": math.exp(5.0 * (x - 1.0)), "log": 1.0 - math.exp(-5.0 * x)}[schedule]
    return rate * (1.0 - 1.0 / num_classes) + 1.0 / num_classes


def tsa_loss(logits_BK: Tensor, labels_B: Tensor, threshold: float) -> TSALoss:
    """Mean of -log p_b over the images with p_b <= threshold, p_b = softmax(logits_b)[label_b]. Oracle B4.

    Images that the network knows already are left out, so that few labels are not learnt by heart.
    Source: UDA, Xie et al. (NeurIPS 2020) section 3.1.
    """
    values_B = functional.cross_entropy(logits_BK, labels_B, reduction="none")
    keep_B = torch.exp(-values_B.detach()) <= threshold
    return TSALoss(masked_mean(values_B, keep_B, "kept"), keep_B)


def mt_consistency(student_logits_BK: Tensor, teacher_logits_BK: Tensor) -> Tensor:
    """mean over images and classes of (softmax(student) - softmax(teacher))^2, a scalar (). Oracle B8.

    Source: Mean teacher, Tarvainen and Valpola (NeurIPS 2017) section 2, with the mean squared error of its section 3.
    """
    teacher_BK = torch.softmax(teacher_logits_BK.detach(), dim=-1)
    return (torch.softmax(student_logits_BK, dim=-1) - teacher_BK).square().mean()


def pseudo_label_loss(logits_BK: Tensor, hard_label_B: Tensor | None = None) -> UnlabelledLoss:
    """Cross-entropy with hard pseudo-labels; every image enters.

    Args:
        hard_label_B: int64 (B,), made earlier; None takes the class that `logits_BK` themselves find likeliest.
    Source: Lee (ICML workshop 2013) Eq. 15 and 16, without their weight alpha(t).
    """
    found = pseudo_labels(logits_BK.detach(), 0.0)
    label_B = found.hard_label_B if hard_label_B is None else hard_label_B
    values_B = functional.cross_entropy(logits_BK, label_B)
    return UnlabelledLoss(values_B, PseudoLabels(found.max_prob_B, label_B, torch.ones_like(label_B, dtype=torch.bool)))


def ema_into(teacher: list[Tensor], student: list[Tensor], *, decay: float) -> None:
    """teacher = decay * teacher + (1 - decay) * student, in place; oracle B7. Lists of equal length and shapes.

    decay = 1 leaves the teacher as it is, 0 makes it the student.
    Source: Mean teacher, Tarvainen and Valpola (NeurIPS 2017) Eq. 2.
    """
    with torch.no_grad():
        torch._foreach_mul_(teacher, decay)
        torch._foreach_add_(teacher, student, alpha=1.0 - decay)
