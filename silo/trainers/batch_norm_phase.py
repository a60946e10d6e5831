"""A silo's part of the phase "statistics": mean, variance and count at every static batch-norm layer.

Where the task brings statistics as well, they are a reference: the silo hands in its moments around it, which can be
added up behind masks (`semisilo.common.learning.averaging.moments`).

Tests: tests/silo/trainers/test_batch_norm_phase.py, tests/silo/trainers/test_semifl.py.
"""

from __future__ import annotations

import torch

from semisilo.common.errors import BadPayload
from semisilo.common.learning import batch_norm
from semisilo.common.learning.averaging.moments import to_moments
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.training import loaded_model
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.spec import MEASURING

__all__ = ["measured_statistics", "outside_training"]


def measured_statistics(task: SiloTask, data: SiloData) -> Update:
    """Measures the model of the group `model` on all images of the silo, labelled and not.

    Abstains with "no_data". Raises: LayoutMismatch when the model, or the reference, is not the task's.
    Source: SemiFL section 3.4.
    """
    sets = [each for each in (data.labelled, data.unlabelled) if each is not None and len(each)]
    if not sets:
        return Update(abstention="no_data")
    images_NCHW = sets[0].images_NCHW if len(sets) == 1 else torch.cat([each.images_NCHW for each in sets])
    model = loaded_model(task.build_model, task.groups["model"].tensors, seed=task.seed, round=task.round,
                         silo=task.silo, device=task.device)
    found = batch_norm.measure(
        model, images_NCHW, form=task.image,
        generator=torch_generator(task.seed, "batch_norm_order", round=task.round, silo=task.silo),
        progress=lambda share: task.report(share, "measuring batch-norm statistics"))
    reference = task.groups.get("batch_norm")
    sent = batch_norm.to_tensors(found, counts=True) if reference is None else to_moments(found, reference.tensors)
    return Update(groups={"batch_norm": TensorGroup(sent)}, num_examples=len(images_NCHW))


def outside_training(task: SiloTask, data: SiloData, method: str) -> Update | None:
    """The update of a phase in which nobody trains, for a method with one training phase; None in that.

    Raises: BadPayload for a phase that the method does not have; otherwise as `measured_statistics`.
    """
    if task.phase in MEASURING:
        return measured_statistics(task, data)
    if task.phase != "train":
        raise BadPayload(f"{method} has no phase '{task.phase}'.")
    return None
