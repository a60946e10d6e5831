"""One pass over labelled images: accuracy, loss, recall and AUROC of every class, calibration, confusion; where images
have several labels or none, what can be said class by class.

Shapes: N images, K classes, B images in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning.losses import example_losses, first_argmax
from semisilo.common.measures.calibration import Auroc, auroc, calibration_of, probabilities
from semisilo.common.measures.finding_calibration import calibration_errors
from semisilo.common.measures.multi_label import (
    AVERAGE_CUT,
    ByClass,
    ClassCounts,
    average_precisions,
    counts_at,
    exact_match,
    f1_of,
    finding_areas,
    sigmoid,
)
from semisilo.common.numerics.side_by_side import results_in_order

__all__ = ["AnyEvaluation", "Evaluation", "MultiLabelEvaluation", "evaluate", "evaluate_classes", "evaluation_steps",
           "inference_batches", "logits_of", "outcome"]

OutcomeT = TypeVar("OutcomeT")

_SUMMED = 250
"""Images whose losses are summed in float32, before these sums are added in float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How well a model classifies a set of images."""

    accuracy: float
    """correct / count, 0..1."""
    loss: float
    """Mean cross-entropy."""
    correct: int
    count: int
    balanced_accuracy: float
    """Mean recall over the classes that occur."""
    per_class_recall: tuple[float | None, ...]
    """By label; None for a class that does not occur."""
    confusion: tuple[tuple[int, ...], ...]
    """confusion[true][predicted], in images."""
    auroc: float | None
    """Mean area under the curve, one class against the rest, over the classes that have one; None where none has, or a
    logit is not finite."""
    per_class_auroc: tuple[float | None, ...]
    """By label; None for a class that no image or every image has, or where a logit is not finite."""
    calibration_error: float | None
    """Expected calibration error of the probabilities, 15 bins; None where a logit is not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiLabelEvaluation:
    """How well a model answers a set of images that show several findings each, or none.

    There is no accuracy: whether an answer is right hangs on a cut-off for each class, and "no finding" everywhere
    would look good. What needs a cut-off here has a probability of 0.5.
    """

    loss: float
    """Mean over the images of binary cross-entropy, summed over the known classes; images without any do not count."""
    count: int
    areas: ByClass
    """Under the receiver operating characteristic; all None where a logit is not finite."""
    average_precisions: ByClass
    """Likewise."""
    class_counts: tuple[ClassCounts, ...]
    """By label, of answers at 0.5."""
    exact_match: float
    """Share of the images of which every known class is answered rightly at 0.5; likewise."""
    calibration_errors: ByClass
    """Expected calibration error of each class's probability, 15 bins; all None where a logit is not finite."""
    is_finite: bool
    """Whether every logit is."""

    @property
    def f1(self) -> ByClass:
        """At 0.5; None for a class that no image shows."""
        return ByClass(tuple(f1_of(each) for each in self.class_counts))

    @property
    def sensitivity(self) -> ByClass:
        """Likewise: the share of the images of a class that are found."""
        return ByClass(tuple(each.sensitivity for each in self.class_counts))


AnyEvaluation = Evaluation | MultiLabelEvaluation
"""Which of the two, the labels of the images say."""


def inference_batches(count: int, batch_size: int) -> Iterator[slice]:
    """Slices of `batch_size` in order; the last may be shorter."""
    return (slice(start, min(start + batch_size, count)) for start in range(0, count, batch_size))


def logits_of(model: nn.Module, images_NCHW: Tensor, form: ImageForm, *,
              progress: Callable[[float], None] | None = None) -> Tensor:
    """Logits float (N, K) of uint8 images on the model's device, under the model's mode, without gradient.

    Pieces of the size that is quickest go side by side. In evaluation mode an image's logits do not depend on what else
    is in its batch.
    """
    return outcome(_logit_steps(model, images_NCHW, form), progress)


def _logit_steps(model: nn.Module, images_NCHW: Tensor, form: ImageForm) -> Generator[float, None, Tensor]:
    """`logits_of`, which may be left after every piece; yields the share that is done."""
    device = next(model.parameters()).device
    cuts = list(inference_batches(len(images_NCHW), _piece(form, device)))

    def logits(cut: slice) -> Tensor:
        logits_BK: Tensor = model(augment.to_input(images_NCHW[cut].to(device), form))
        return logits_BK

    parts: list[Tensor] = []
    with closing(results_in_order(partial(logits, cut) for cut in cuts)) as found:
        for cut in cuts:
            with torch.no_grad():
                parts.append(next(found))
            yield cut.stop / len(images_NCHW)
    return torch.cat(parts).detach()  # a network may answer with a parameter itself


def _piece(form: ImageForm, device: torch.device) -> int:
    """Images that go forward at once. What a CPU computes of 50 images of 32 pixels stays in its cache, of 250 it does
    not (a third slower); an accelerator wants many."""
    best, least, most = (50, 8, 250) if device.type == "cpu" else (1000, 50, 1000)
    return min(most, max(least, best * 32 * 32 // (form.size * form.size)))


def evaluate(model: nn.Module, images: ImageSet, *, form: ImageForm,
             progress: Callable[[float], None] | None = None) -> AnyEvaluation:
    """Evaluates in evaluation mode, without augmentation; ties go to the lowest class. The model's mode is restored.

    Raises: BadData when there are no images or no labels, or a label is not one of the model's classes;
        StatisticsMissing when batch-norm statistics are not loaded.
    """
    return outcome(evaluation_steps(model, images, form=form), progress)


def evaluate_classes(model: nn.Module, images: ImageSet, *, form: ImageForm) -> Evaluation:
    """`evaluate` of images that have one class each."""
    found = evaluate(model, images, form=form)
    assert isinstance(found, Evaluation), "of images with several labels there is no accuracy"
    return found


def evaluation_steps(model: nn.Module, images: ImageSet, *, form: ImageForm) -> Generator[float, None, AnyEvaluation]:
    """`evaluate`, which may be left after every batch; yields the share that is done.

    The model belongs to it until it has ended.
    """
    if images.labels_N is None or len(images) == 0:
        raise BadData("Evaluation needs labelled images; the set has none.")
    was_training = model.training
    model.eval()
    try:
        logits_NK = yield from _logit_steps(model, images.images_NCHW, form)
    finally:
        model.train(was_training)
    if images.labels_N.ndim == 2:
        return _of_findings(logits_NK, images.labels_N)
    classes = logits_NK.shape[1]
    labels_N = _checked(images.labels_N, classes).to(logits_NK.device)
    losses = [float(functional.cross_entropy(logits_NK[cut], labels_N[cut], reduction="sum"))
              for cut in inference_batches(len(images), _SUMMED)]
    pairs_N = images.labels_N.cpu() * classes + first_argmax(logits_NK).cpu()
    confusion_KK = torch.bincount(pairs_N, minlength=classes * classes).reshape(classes, classes)
    per_class_K, hits_K = confusion_KK.sum(dim=1).tolist(), confusion_KK.diagonal().tolist()
    recall = tuple(hit / size if size else None for hit, size in zip(hits_K, per_class_K, strict=True))
    present = [value for value in recall if value is not None]
    areas, calibration_error = _ranking(logits_NK, images.labels_N)
    return Evaluation(accuracy=sum(hits_K) / len(images), loss=sum(losses) / len(images), correct=sum(hits_K),
                      count=len(images), balanced_accuracy=sum(present) / len(present), per_class_recall=recall,
                      confusion=tuple(tuple(row) for row in confusion_KK.tolist()),
                      auroc=None if areas is None else areas.macro,
                      per_class_auroc=(None,) * classes if areas is None else areas.per_class,
                      calibration_error=calibration_error)


def _of_findings(logits_NK: Tensor, rows_NK: Tensor) -> MultiLabelEvaluation:
    """Of images with multi-hot rows. Raises: BadData for rows of another number of classes."""
    if rows_NK.shape != logits_NK.shape:
        raise BadData(f"Labels of {rows_NK.shape[1]} classes; the model has {logits_NK.shape[1]}.")
    on_device_NK = rows_NK.to(logits_NK.device)
    losses = [float(example_losses(logits_NK[cut], on_device_NK[cut]).sum())
              for cut in inference_batches(len(rows_NK), _SUMMED)]
    is_finite, rows, none = bool(torch.isfinite(logits_NK).all()), rows_NK.cpu().numpy(), ByClass(
        (None,) * rows_NK.shape[1])
    p_NK, cuts_K = sigmoid(logits_NK.float().cpu().numpy()), np.full(rows.shape[1], AVERAGE_CUT)
    return MultiLabelEvaluation(
        loss=sum(losses) / max(1, int((rows >= 0).any(axis=1).sum())), count=len(rows),
        areas=finding_areas(p_NK, rows) if is_finite else none,
        average_precisions=average_precisions(p_NK, rows) if is_finite else none,
        class_counts=counts_at(p_NK, rows, cuts_K), exact_match=exact_match(p_NK, rows, cuts_K), is_finite=is_finite,
        calibration_errors=calibration_errors(p_NK, rows) if is_finite else none)


def _ranking(logits_NK: Tensor, labels_N: Tensor) -> tuple[Auroc | None, float | None]:
    """Areas under the curve and expected calibration error; (None, None) where a logit is not finite."""
    if not bool(torch.isfinite(logits_NK).all()):
        return None, None
    p_NK, labels = probabilities(logits_NK.float().cpu().numpy()), labels_N.cpu().numpy()
    return auroc(p_NK, labels), calibration_of(p_NK, labels).expected_error


def outcome(steps: Generator[float, None, OutcomeT], progress: Callable[[float], None] | None = None) -> OutcomeT:
    """What steps come to that are done one after another; `progress` hears the share after each, and may raise."""
    try:
        while True:
            share = next(steps)
            if progress is not None:
                progress(share)
    except StopIteration as end:
        return cast(OutcomeT, end.value)
    finally:
        steps.close()


def _checked(labels_N: Tensor, classes: int) -> Tensor:
    if int(labels_N.min()) < 0 or int(labels_N.max()) >= classes:
        raise BadData(f"A label is not one of the model's {classes} classes.")
    return labels_N
