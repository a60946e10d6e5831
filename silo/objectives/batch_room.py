"""Whether a step's unlabelled images fit into memory, where a silo with few labels takes very many of them at once.

Rules by which labels say how many steps there are put all unlabelled images into as many batches: 20,000 into one
beside 8 labels. In the papers, whose silos have few images, such a batch is about `unlabelled_batch`.

Tests: tests/silo/objectives/test_batch_room.py.
"""

from __future__ import annotations

import logging

import torch
from torch import nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.room import free_bytes
from semisilo.common.errors import ComputeFailed
from semisilo.common.learning.training import named_randomness, unloaded_model
from semisilo.common.methods.contract import SiloTask
from semisilo.common.numerics import process_group
from semisilo.common.text.describe import describe_bytes

__all__ = ["check_batch_fits", "check_images_fit", "kept_bytes_per_image", "large_batch_text", "warn_of_large_batch"]

_LOG = logging.getLogger("semisilo.silo")

_FAR = 4
"""Times `unlabelled_batch` that are worth a word."""
_SAID: set[tuple[str, str]] = set()
"""What this process has said of large batches."""


def large_batch_text(batch: int, usual: int) -> str:
    """What is to be said of a step with so many unlabelled images; empty where it is not far above the usual.

    Args:
        batch: of the plan.
        usual: `unlabelled_batch` of the settings.
    """
    if batch <= _FAR * usual:
        return ""
    return (f"a step takes {batch} unlabelled images at once, where the study has unlabelled_batch = {usual}: this"
            " silo's labels say how many steps there are, and they are few")


def check_batch_fits(task: SiloTask, batch: int, usual: int, *, remedy: str) -> None:
    """To be called before a round's steps, each of which has a pass with gradients over `batch` unlabelled images. Of a
    batch far above the usual the log says so.

    Args:
        remedy: what the study may set instead.
    Raises: ComputeFailed where what is kept for the way back alone is more than `free_bytes` finds, which counts no
            swap.
    """
    if warn_of_large_batch(task, batch, usual, remedy=remedy):
        check_images_fit(task, batch, usual, per_image=kept_bytes_per_image(task), remedy=remedy)


def check_images_fit(task: SiloTask, batch: int, usual: int, *, per_image: int, remedy: str) -> None:
    """The same right before a pass with gradients, by a method that knows only then of how many images it is.

    Args:
        per_image: `kept_bytes_per_image`.
    """
    if process_group.present() is not None or (free := _free_bytes(task.device)) is None:
        return  # of several processes each has its part of a batch
    needed = batch * per_image
    if needed > free:
        raise ComputeFailed(
            f"A step takes {batch} unlabelled images at once (unlabelled_batch = {usual}), of which the network keeps"
            f" {describe_bytes(needed)}; {describe_bytes(free)} are free.", remedy=remedy)


def warn_of_large_batch(task: SiloTask, batch: int, usual: int, *, remedy: str) -> bool:
    """Whether a batch is far above the usual, which the log says: once, and not in each round of each silo."""
    text = large_batch_text(batch, usual)
    if text and (text, remedy) not in _SAID:
        _SAID.add((text, remedy))
        _LOG.warning("round %d: %s; it may not fit into memory. %s", task.round, text, remedy)
    return bool(text)


def kept_bytes_per_image(task: SiloTask) -> int:
    """What a pass of the task's network keeps of one image for its way back, weights apart; the network's own are not
    looked at, and torch's generators stay."""
    form, model = task.image, unloaded_model(task.build_model, seed=task.seed, device=task.device).train()
    with named_randomness(task.seed, "batch_room", device=task.device):
        few, more = (_kept_bytes(model, augment.to_input(torch.zeros(
            (count, form.channels, form.size, form.size), dtype=torch.uint8, device=task.device), form))
            for count in (2, 4))
    return max(0, more - few) // 2


def _kept_bytes(model: nn.Module, inputs_BCHW: torch.Tensor) -> int:
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answers = model(inputs_BCHW)  # held, or memory of what is kept would be used again
    del answers
    return sum(storages.values())


def _free_bytes(device: str) -> int | None:
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0] + torch.cuda.memory_reserved() \
            - torch.cuda.memory_allocated()
    return free_bytes()
