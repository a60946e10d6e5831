"""A silo's round of SemiFL as somebody would write it with plain PyTorch: torchvision's transforms in a DataLoader,
`torch.optim.SGD`, two forward passes, clipping; the settings of the paper and of its official code.

It is what our own trainer is timed against. Pseudo-labels are made as in the official code: one pass over all images.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from semisilo.common.learning.batch_norm import StaticBatchNorm

__all__ = ["plain_network", "round_seconds"]

_LABEL_BATCH = 250


def plain_network(model: nn.Module) -> nn.Module:
    """The network with torch's own batch-norm layers, which keep no statistics, in the place of ours."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, StaticBatchNorm):
                setattr(module, name, nn.BatchNorm2d(child.num_features, track_running_stats=False))
    return model


class _Views(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Weak and strong views of images, each with its label."""

    def __init__(self, images_NHWC: NDArray[np.uint8], labels_N: Sequence[int], *, mean: Sequence[float],
                 std: Sequence[float]) -> None:
        self._images = [Image.fromarray(image) for image in images_NHWC]
        self._labels = torch.as_tensor(labels_N)
        size = images_NHWC.shape[1]
        weak = [transforms.RandomHorizontalFlip(), transforms.RandomCrop(size, padding=size // 8,
                                                                         padding_mode="reflect")]
        tensor = [transforms.ToTensor(), transforms.Normalize(mean, std)]
        self._weak = transforms.Compose([*weak, *tensor])
        self._strong = transforms.Compose([*weak, transforms.RandAugment(num_ops=2, magnitude=10), *tensor])

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        image = self._images[index]
        return self._weak(image), self._strong(image), self._labels[index]


def round_seconds(model: nn.Module, images_NHWC: NDArray[np.uint8], *, mean: Sequence[float], std: Sequence[float],
                  batch: int, epochs: int, workers: int = 0) -> float:
    """Seconds of a silo's round: labels for all images, then epochs over all of them.

    Args:
        images_NHWC: uint8, three channels.
        workers: processes of the DataLoader; 0 loads in this one.
    """
    began = time.perf_counter()
    _labels(model, _Views(images_NHWC, [0] * len(images_NHWC), mean=mean, std=std))
    views = _Views(images_NHWC, np.random.randint(0, 10, len(images_NHWC)).tolist(), mean=mean, std=std)
    fix = DataLoader(views, batch_size=batch, shuffle=True, num_workers=workers)
    other = DataLoader(views, batch_size=batch, num_workers=workers,
                       sampler=torch.utils.data.RandomSampler(views, replacement=True, num_samples=len(views)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)
    model.train()
    beta = torch.distributions.Beta(0.75, 0.75)
    for _ in range(epochs):
        for (weak, strong, labels), (mixed, _, others) in _pairs(fix, other):
            share = float(beta.sample())
            loss = functional.cross_entropy(model(strong), labels)
            logits = model(share * weak + (1 - share) * mixed)
            loss = loss + share * functional.cross_entropy(logits, labels) \
                + (1 - share) * functional.cross_entropy(logits, others)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            loss.item()  # for the mean that is logged
    return time.perf_counter() - began


def _pairs(fix: DataLoader[tuple[Tensor, Tensor, Tensor]], other: DataLoader[tuple[Tensor, Tensor, Tensor]]
           ) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]]:
    return zip(fix, other, strict=True)


def _labels(model: nn.Module, views: _Views) -> Tensor:
    model.train(False)
    with torch.no_grad():
        return torch.cat([torch.softmax(model(weak), dim=-1).max(dim=-1)[1]
                          for weak, _, _ in DataLoader(views, batch_size=_LABEL_BATCH)])
