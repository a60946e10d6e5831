"""Images from a gradient: those whose own gradient points where the update does, and how like the real ones they are.

Pure functions; whose update it is and what it is compared with is decided in `semisilo.probe.probe`.

Shapes: B images that are searched for, N images that they are compared with, P pixels of an image, C channels, S side
of the square, K classes. Pixels are on the scale 0 to 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.learning import batch_norm
from semisilo.common.measures.intervals import LEVEL
from semisilo.probe.membership import Measured

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GradientOf", "Inverted", "best_matches", "classification_gradient", "correlations", "invert",
           "mean_of_trials", "psnr", "total_variation"]

GradientOf = Callable[[Tensor], Sequence[Tensor]]
"""From images (B, C, S, S) to the gradient of their loss by the weights, which can be differentiated again."""

_DECAYS = (3 / 8, 5 / 8, 7 / 8)
"""Shares of the iterations after which steps are a tenth."""
_LEAST_ERROR = 1e-10
"""Mean squared error that counts as none: 100 dB."""


@dataclass(frozen=True, slots=True, eq=False)
class Inverted:
    """What was found."""

    images_BCSS: Tensor
    """Float32, 0 to 1."""
    cosine: float
    """Of their gradient with the one that was to be met: 1 where it points the same way."""


def total_variation(images_BCSS: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, over both directions; scalar ().

    Source: Rudin, Osher and Fatemi, Physica D 60 (1992), in the anisotropic form that Geiping et al. use.
    """
    across = (images_BCSS[..., 1:] - images_BCSS[..., :-1]).abs().mean()
    down = (images_BCSS[..., 1:, :] - images_BCSS[..., :-1, :]).abs().mean()
    return across + down


def classification_gradient(model: nn.Module, parameters: Mapping[str, Tensor], labels_B: Tensor, *,
                            names: Sequence[str], form: ImageForm) -> GradientOf:
    """The gradient of the mean cross-entropy of images with these labels, by the parameters of these names.

    Batch-norm layers take the batch's own statistics, as in training; dropout is off.
    Args:
        parameters: of the model that the site was sent.
        labels_B: int64; the attacker is given them, which makes him stronger than one who has to guess.
    """
    device = labels_B.device
    mean_C11, deviation_C11 = (torch.tensor(values, dtype=torch.float32, device=device).reshape(-1, 1, 1)
                               for values in (form.mean, form.std))
    leaves = {name: parameters[name].detach().to(device).requires_grad_(name in names) for name in parameters}

    def gradient(images_BCSS: Tensor) -> Sequence[Tensor]:
        with _as_in_training(model):
            seen_BCSS = augment.standardised(images_BCSS) if form.standardise == "image" else (
                images_BCSS - mean_C11) / deviation_C11
            logits_BK = functional_call(model, leaves, (seen_BCSS,))
        loss = functional.cross_entropy(logits_BK, labels_B)
        found = torch.autograd.grad(loss, [leaves[name] for name in names], create_graph=True, allow_unused=True)
        return [torch.zeros_like(leaves[name]) if each is None else each
                for name, each in zip(names, found, strict=True)]

    return gradient


@contextmanager
def _as_in_training(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    for layer in batch_norm.layers_of(model).values():
        layer.training = True
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def invert(gradient_of: GradientOf, target: Sequence[Tensor], *, shape: tuple[int, int, int, int], iterations: int,
           restarts: int, generator: torch.Generator, smoothness: float = 1e-3, step: float = 0.1,
           progress: Callable[[float], None] | None = None) -> Inverted:
    """Images whose gradient points where `target` does: of several starts the one that comes nearest.

        minimise 1 - <g(x), g> / (|g(x)| |g|) + smoothness TV(x)   over x in [0, 1]

    by Adam on the signs of the gradient from random pixels. Lengths do not count, so the target may be an update of
    many steps: the sum of its gradients, as if all had been taken at the model that was sent.

    Args:
        target: a tensor for each of `gradient_of`.
        shape: (B, C, S, S).
        generator: of the first pixels, on the CPU.
    Source: Geiping et al., NeurIPS 2020, equation 4 and section 5.
    """
    device = target[0].device
    goal = torch.cat([each.detach().reshape(-1) for each in target])
    best: Inverted | None = None
    for restart in range(restarts):
        images = torch.rand(shape, generator=generator).to(device).requires_grad_(True)
        optimiser = torch.optim.Adam([images], lr=step)
        falling = torch.optim.lr_scheduler.MultiStepLR(
            optimiser, milestones=sorted({max(1, int(share * iterations)) for share in _DECAYS}), gamma=0.1)
        for iteration in range(iterations):
            loss = 1 - _cosine(gradient_of(images), goal) + smoothness * total_variation(images)
            images.grad = torch.autograd.grad(loss, [images])[0].sign()
            optimiser.step()
            falling.step()
            with torch.no_grad():
                images.clamp_(0, 1)
            if progress is not None and iteration % 10 == 9:
                progress((restart + (iteration + 1) / iterations) / restarts)
        found = Inverted(images.detach().cpu(), float(_cosine(gradient_of(images), goal).detach()))
        if best is None or not best.cosine >= found.cosine:
            best = found
    assert best is not None
    return best


def _cosine(gradients: Sequence[Tensor], goal: Tensor) -> Tensor:
    return functional.cosine_similarity(torch.cat([each.reshape(-1) for each in gradients]), goal, dim=0, eps=1e-12)


def psnr(first_BP: Tensor, second_NP: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of every image with every other, in dB, (B, N): -10 log10 of the mean squared error of
    the pixels, which are on the scale 0 to 1. At most 100.

    Args:
        first_BP, second_NP: flat images.
    """
    error_BN = (first_BP[:, None] - second_NP[None]).square().mean(dim=-1)
    return -10 * torch.log10(error_BN.clamp(min=_LEAST_ERROR))


def correlations(first_BP: Tensor, second_NP: Tensor) -> Tensor:
    """Pearson's correlation of the pixels of every image with every other, (B, N); 0 with an image of one grey.

    Unlike the error of the pixels it does not reward a grey average.
    """
    first, second = (each - each.mean(dim=1, keepdim=True) for each in (first_BP, second_NP))
    first, second = (each / each.norm(dim=1, keepdim=True).clamp(min=math.sqrt(_LEAST_ERROR))
                     for each in (first, second))
    found_BN: Tensor = first @ second.T
    return found_BN


def best_matches(found_BCSS: Tensor, images_NCSS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each image how well the best of those found shows it: PSNR (N,), correlation (N,), and which is best by PSNR.

    The best correlation may be another one's.
    """
    found_BP, images_NP = found_BCSS.flatten(1), images_NCSS.flatten(1)
    ratios_BN = psnr(found_BP, images_NP)
    best = ratios_BN.max(dim=0)
    return best.values, correlations(found_BP, images_NP).max(dim=0).values, best.indices


def mean_of_trials(values: Sequence[float]) -> Measured:
    """Mean of independent trials, with Student's interval: m -+ t s / sqrt(n), t the quantile with n - 1 degrees of
    freedom. Trials are few, so a bootstrap over them would be too narrow.

    Args:
        values: at least two.
    """
    from scipy.special import stdtrit

    mean, count = statistics.fmean(values), len(values)
    reach = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * statistics.stdev(values) / math.sqrt(count)
    return Measured(mean, mean - reach, mean + reach)
