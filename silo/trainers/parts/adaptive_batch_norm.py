"""Labelling with batch-norm statistics of a silo's own scanner, where the model is surer of its answers with them.

The statistics that come with a task are of the images of all silos. Where each hospital has another scanner they fit
none of them, and labels are poor. Statistics of a silo's own images fit its scanner; but behind the first layers they
also have its class shares, under which the classes that it has look like others. What a scanner does to colours,
contrast and noise is seen by the first batch-norm layer, which knows little of classes: so the first one alone gets the
silo's own statistics, the others keep those received. Labels are made with them where the model is surer of its answers
so, for which no label need be known (docs/decisions/0113-labels-by-the-silos-own-first-statistics.md).

Source: AdaBN, Li et al., "Revisiting Batch Normalization For Practical Domain Adaptation", ICLR workshop 2017, which
adapts all layers; certainty as a sign of adaptation, Wang et al., "Tent", ICLR 2021.

Shapes: N images, K classes.

Tests: tests/silo/trainers/parts/test_adaptive_batch_norm.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from semisilo.common.learning import batch_norm
from semisilo.common.methods.contract import SiloTask
from semisilo.silo.trainers.parts.fix_and_mix import logits_of_weak_views

__all__ = ["adapted_statistics", "adaptive_logits", "certainty", "received_logits"]


def adaptive_logits(task: SiloTask, model: nn.Module, images_NCHW: Tensor, *, multi_label: bool = False) -> Tensor:
    """Logits of a weak view of every image, with the received statistics or with `adapted_statistics`, whichever has
    the greater `certainty`; the received ones where they are equal.

    Args:
        model: is left in evaluation mode with the received statistics.
    Returns: float32 (N, K), on the CPU.
    Raises: LayoutMismatch as `load_received_statistics`.
    """
    adapted = adapted_statistics(task, model, images_NCHW)
    own_NK = _together(logits_of_weak_views(task, model, images_NCHW, statistics=adapted)) if adapted else None
    received_NK = received_logits(task, model, images_NCHW)
    if own_NK is None or not certainty(own_NK, multi_label) > certainty(received_NK, multi_label):
        return received_NK
    return own_NK


def received_logits(task: SiloTask, model: nn.Module, images_NCHW: Tensor) -> Tensor:
    """As `adaptive_logits`, always with the received statistics."""
    return _together(logits_of_weak_views(task, model, images_NCHW))


def adapted_statistics(task: SiloTask, model: nn.Module, images_NCHW: Tensor) -> dict[str, Tensor]:
    """The received statistics, those of the first batch-norm layer measured on the images; {} where there are none."""
    group = task.groups.get("batch_norm")
    if group is None:
        return {}
    own = batch_norm.to_tensors(batch_norm.measure_first(model, images_NCHW, form=task.image))
    return {**group.tensors, **own} if own else {}


def certainty(logits_NK: Tensor, multi_label: bool = False) -> float:
    """Mean over images of the largest probability; with several labels for an image of max(p, 1 - p) over all images
    and classes."""
    if multi_label:
        p_NK = torch.sigmoid(logits_NK.double())
        return float(torch.maximum(p_NK, 1.0 - p_NK).mean())
    return float(torch.softmax(logits_NK.double(), dim=1).amax(dim=1).mean())


def _together(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.float().cpu() for part in parts])
