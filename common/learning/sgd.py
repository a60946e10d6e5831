"""Stochastic gradient descent with momentum, whose buffers are named tensors that may be taken out and put back.

Formulas are PyTorch's: g = grad + wd * w; buf = momentum * buf + g (first step: buf = g); plain w -= lr * buf, Nesterov
w -= lr * (g + momentum * buf). Clipping scales the raw gradient, before weight decay. Written out here rather than
taken from `torch.optim`, whose import alone costs 3 seconds and 150 MB in every compute process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from semisilo.common.learning.tensors import all_like
from semisilo.common.numerics.passes import Descent, Gradients, Term
from semisilo.common.numerics.side_by_side import shares, side_by_side

__all__ = ["SGD", "SGDSettings", "descend", "learn", "make_optimiser", "momentum_of", "sgd_settings",
           "step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SGDSettings:
    """README convention 7 of the specification."""

    lr: float
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    clip_norm: float = 1.0
    """Largest global norm of the raw gradient; 0 turns clipping off."""


class DescentFields(Protocol):
    """Settings of a method that descends: what of them SGD needs, besides the learning rate."""

    @property
    def momentum(self) -> float:
        """0 for none."""

    @property
    def weight_decay(self) -> float:
        """L2 decay of every parameter."""

    @property
    def clip_norm(self) -> float:
        """As in `SGDSettings`."""


def sgd_settings(settings: DescentFields, lr: float, *, nesterov: bool = False) -> SGDSettings:
    """Descent as the settings of a method have it, with this learning rate."""
    return SGDSettings(lr=lr, momentum=settings.momentum, nesterov=nesterov, weight_decay=settings.weight_decay,
                       clip_norm=settings.clip_norm)


@dataclass(kw_only=True, slots=True)
class SGD:
    """A descent under way: the parameters it changes, and its momentum so far."""

    settings: SGDSettings
    lr: float
    """Learning rate of the next step; may be changed between steps."""
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    """Momentum by parameter; a name is missing until its first step."""
    descent: Descent
    """Finds the gradients."""


def make_optimiser(model: nn.Module, settings: SGDSettings, momentum: Mapping[str, Tensor] | None = None) -> SGD:
    """SGD over the trainable parameters, going on from copies of momentum buffers; None starts from nothing.

    Raises: LayoutMismatch when the buffers are not the parameters' in name, shape and type.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    buffers: dict[str, Tensor] = {}
    if momentum is not None:
        buffers = all_like(parameters, momentum)
    return SGD(settings=settings, lr=settings.lr, parameters=parameters, buffers=buffers, descent=Descent(parameters))


def momentum_of(optimiser: SGD) -> dict[str, Tensor]:
    """Contiguous copies of the momentum buffers on the CPU, in the order of the parameters; zeros where there is none
    yet.

    Zeros give the same first step as no buffer: momentum * 0 + g = g.
    """
    return {name: optimiser.buffers[name].to("cpu", copy=True, memory_format=torch.contiguous_format)
            if name in optimiser.buffers else torch.zeros(parameter.shape, dtype=parameter.dtype)
            for name, parameter in optimiser.parameters.items()}


def _clipping(gradients: list[Tensor], max_norm: float) -> Tensor:
    """min(1, max_norm / (norm + 1e-6)), norm over all gradients, a scalar (). A core for each share of them."""
    of_shares = side_by_side([partial(torch._foreach_norm, gradients[share]) for share in shares(gradients)])
    norm: Tensor = torch.linalg.vector_norm(torch.stack([each for norms in of_shares for each in norms]))
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


def step(optimiser: SGD, loss: Tensor) -> Gradients:
    """Gradient of the scalar `loss`, clipping, one update of the parameters in place; none where it overflows (fp16).

    A parameter that the loss does not reach stays as it is, without weight decay, as in PyTorch.
    """
    return learn(optimiser, [Term(1.0, lambda: loss)])


def learn(optimiser: SGD, terms: Sequence[Term], *, without_pass: Callable[[], Tensor] | None = None) -> Gradients:
    """Gradient of sum weight * loss, clipping, one update of the parameters in place.

    Args:
        terms: losses with a pass through the network each, which go side by side where that gives the same bits.
        without_pass: one more term, of the weights alone.
    Raises: what a term raises, with nothing changed.
    """
    found = optimiser.descent.gradients(terms, without_pass=without_pass)
    descend(optimiser, found.by_name)
    return found


def descend(optimiser: SGD, by_name: Mapping[str, Tensor]) -> None:
    """One update of the parameters in place from their gradients, which it may change (clipping).

    A parameter without a gradient stays as it is.
    """
    settings = optimiser.settings
    reached = {name: parameter for name, parameter in optimiser.parameters.items() if name in by_name}
    if not reached:
        return
    with torch.no_grad():
        weights: list[Tensor] = list(reached.values())
        gradients = [by_name[name] for name in reached]
        if settings.momentum:
            for name, gradient in zip(reached, gradients, strict=True):
                if name not in optimiser.buffers:  # 0 now, so that it becomes g
                    optimiser.buffers[name] = torch.zeros_like(gradient)
        buffers = [optimiser.buffers[name] for name in reached] if settings.momentum else []
        factor = _clipping(gradients, settings.clip_norm) if settings.clip_norm > 0 else None
        # Every element for itself: on several cores it has the bits of one.
        side_by_side([partial(_update, weights[share], gradients[share], buffers[share], factor, settings, optimiser.lr)
                      for share in shares(weights)])


def _update(weights: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], factor: Tensor | None,
            settings: SGDSettings, lr: float) -> None:
    """The formulas above, in place."""
    if factor is not None:
        torch._foreach_mul_(gradients, factor)
    if settings.weight_decay:
        torch._foreach_add_(gradients, weights, alpha=settings.weight_decay)
    if settings.momentum:
        torch._foreach_mul_(buffers, settings.momentum)
        torch._foreach_add_(buffers, gradients)
        if settings.nesterov:
            torch._foreach_add_(gradients, buffers, alpha=settings.momentum)
        else:
            gradients = buffers
    torch._foreach_add_(weights, gradients, alpha=-lr)
