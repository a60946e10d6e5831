"""One pass over labelled images: accuracy, loss, recall of every class, confusion.

Shapes: N images, K classes, B images in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning.losses import first_argmax

__all__ = ["Evaluation", "evaluate", "evaluation_steps", "inference_batches", "outcome"]

OutcomeT = TypeVar("OutcomeT")


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


def inference_batches(count: int, batch_size: int) -> Iterator[slice]:
    """Slices of `batch_size` in order; the last may be shorter."""
    return (slice(start, min(start + batch_size, count)) for start in range(0, count, batch_size))


def evaluate(model: nn.Module, images: ImageSet, *, form: ImageForm, batch_size: int = 250,
             progress: Callable[[float], None] | None = None) -> Evaluation:
    """Evaluates in evaluation mode, without augmentation; ties go to the lowest class. The model's mode is restored.

    Raises: BadData when there are no images or no labels, or a label is not one of the model's classes;
        StatisticsMissing when batch-norm statistics are not loaded.
    """
    return outcome(evaluation_steps(model, images, form=form, batch_size=batch_size), progress)


def evaluation_steps(model: nn.Module, images: ImageSet, *, form: ImageForm,
                     batch_size: int = 250) -> Generator[float, None, Evaluation]:
    """`evaluate`, which may be left after every batch; yields the share that is done.

    The model belongs to it until it has ended.
    """
    if images.labels_N is None or len(images) == 0:
        raise BadData("Evaluation needs labelled images; the set has none.")
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    losses: list[float] = []
    predictions: list[Tensor] = []
    classes = 0
    try:
        for cut in inference_batches(len(images), batch_size):
            with torch.no_grad():
                logits_BK = model(augment.to_input(images.images_NCHW[cut].to(device), form))
                classes = logits_BK.shape[1]
                labels_B = _checked(images.labels_N[cut], classes).to(device)
                losses.append(float(functional.cross_entropy(logits_BK, labels_B, reduction="sum")))
                predictions.append(first_argmax(logits_BK).cpu())
            yield cut.stop / len(images)
    finally:
        model.train(was_training)
    pairs_N = images.labels_N.cpu() * classes + torch.cat(predictions)
    confusion_KK = torch.bincount(pairs_N, minlength=classes * classes).reshape(classes, classes)
    per_class_K, hits_K = confusion_KK.sum(dim=1).tolist(), confusion_KK.diagonal().tolist()
    recall = tuple(hit / size if size else None for hit, size in zip(hits_K, per_class_K, strict=True))
    present = [value for value in recall if value is not None]
    return Evaluation(accuracy=sum(hits_K) / len(images), loss=sum(losses) / len(images), correct=sum(hits_K),
                      count=len(images), balanced_accuracy=sum(present) / len(present), per_class_recall=recall,
                      confusion=tuple(tuple(row) for row in confusion_KK.tolist()))


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


def _checked(labels_B: Tensor, classes: int) -> Tensor:
    if int(labels_B.min()) < 0 or int(labels_B.max()) >= classes:
        raise BadData(f"A label is not one of the model's {classes} classes.")
    return labels_B
