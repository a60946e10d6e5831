"""A silo's part of the phase "statistics": mean, variance and count at every static batch-norm layer."""

from __future__ import annotations

import torch

from common import batch_norm, tensors
from common.exchange import SiloData, SiloTask, TensorGroup, Update
from common.seeds import torch_generator
from common.training import named_randomness

__all__ = ["STATISTICS", "measured_statistics"]

STATISTICS = "statistics"
"""Name of the phase (`coordinator.static_statistics`)."""


def measured_statistics(task: SiloTask, data: SiloData) -> Update:
    """Measures the model of the group `model` on all images of the silo, labelled and not.

    Abstains with "no_data". Raises: LayoutMismatch when the model is not the task's.
    Source: SemiFL section 3.4.
    """
    sets = [each for each in (data.labelled, data.unlabelled) if each is not None and len(each)]
    if not sets:
        return Update(abstention="no_data")
    images_NCHW = sets[0].images_NCHW if len(sets) == 1 else torch.cat([each.images_NCHW for each in sets])
    with named_randomness(task.seed, "unused_weights", round=task.round, silo=task.silo):
        model = task.build_model()
    tensors.load_into(model, task.groups["model"].tensors)
    found = batch_norm.measure(
        model.to(task.device), images_NCHW, form=task.image,
        generator=torch_generator(task.seed, "batch_norm_order", round=task.round, silo=task.silo),
        progress=lambda share: task.report(share, "measuring batch-norm statistics"))
    group = TensorGroup(batch_norm.to_tensors(found, counts=True))
    return Update(groups={"batch_norm": group}, num_examples=len(images_NCHW))
