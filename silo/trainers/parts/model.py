"""The model of a task: made from what was received, and taken back as the difference that training has made."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.training import check_finite, loaded_model
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup

__all__ = ["difference", "lacks_statistics", "load_received_statistics", "own_statistics", "task_model", "that_fits",
           "trained_parameters"]

_LOG = logging.getLogger("semisilo.silo")


def task_model(task: SiloTask, parameters: Mapping[str, Tensor]) -> nn.Module:
    """The task's network with these parameters, on its device. Raises: LayoutMismatch."""
    return loaded_model(task.build_model, parameters, seed=task.seed, round=task.round, silo=task.silo,
                        device=task.device)


def lacks_statistics(task: SiloTask, model: nn.Module) -> bool:
    """Whether nobody has measured the batch-norm statistics yet that the network needs to label images: where silos
    alone measure, and none of them has answered in time."""
    return "batch_norm" not in task.groups and bool(batch_norm.layers_of(model))


def load_received_statistics(task: SiloTask, model: nn.Module) -> None:
    """Puts the batch-norm statistics that came with the task into a model. Raises: LayoutMismatch, also where the
    network needs some and none came."""
    group = task.groups.get("batch_norm")
    batch_norm.load(model, group.tensors if group is not None else {})


def own_statistics(task: SiloTask, model: nn.Module, data: SiloData) -> dict[str, Tensor]:
    """Batch-norm statistics of a model on the silo's own images, labelled and not, which must be some; {} for a network
    that needs none. For a silo that is alone, and where nobody could be asked in time."""
    if not batch_norm.layers_of(model):
        return {}
    sets = [each.images_NCHW for each in (data.labelled, data.unlabelled) if each is not None]
    images_NCHW = sets[0] if len(sets) == 1 else torch.cat(sets)  # one that lies on the disk stays there
    return batch_norm.to_tensors(batch_norm.measure(
        model, images_NCHW, form=task.image,
        generator=torch_generator(task.seed, "batch_norm_order", round=task.round, silo=task.silo)))


def that_fits(kept: dict[str, Tensor], received: Mapping[str, Tensor], what: str) -> dict[str, Tensor] | None:
    """What was kept of a model; None, with a warning that `what` starts anew, where it is another model's."""
    try:
        tensors.check_same_layout(received, kept)
    except LayoutMismatch as error:
        _LOG.warning("%s starts anew, what was kept does not fit the model: %s", what, error.text)
        return None
    return kept


def trained_parameters(task: SiloTask, model: nn.Module) -> dict[str, Tensor]:
    """The parameters of a model after training. Raises: ComputeFailed when training has diverged."""
    trained = tensors.parameters_of(model)
    check_finite(trained, where=f"at this silo in round {task.round}")
    return trained


def difference(task: SiloTask, trained: Mapping[str, Tensor]) -> TensorGroup:
    """w_k - w: what goes back of a trained model, as the difference to the group `model` of the task."""
    sent = task.groups["model"]
    return TensorGroup(tensors.subtract(trained, sent.tensors), Meaning.DIFFERENCE, tensors.group_digest(sent))
