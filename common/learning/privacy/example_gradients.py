"""Sums of gradients of single images, each clipped, with noise: a step of DP-SGD (Abadi et al., CCS 2016, algorithm 1).

    g = (sum_i clip(grad l_i, C) + N(0, (sigma C)^2)) / expected images of a step

Every image goes through the network by itself (`torch.func.vmap`), so no layer can mix two. The sum is divided by how
many images are expected, never by how many came: their number is itself a matter of who is there.

Shapes: B images of a step, which may be 0; P parameters of a network together; K classes.

Tests: tests/common/learning/privacy/test_example_gradients.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from semisilo.common.learning import batch_norm
from semisilo.common.learning.privacy.gaussian import SecretStream, grid_of

__all__ = ["ClippedSum", "each_by_itself", "mixes_images"]

ExampleLoss = Callable[..., Tensor]
"""Of the logits of one image, (K,), and of what belongs to that image: its loss, a scalar ()."""

_BLOCK_ELEMENTS = 2**24
"""Numbers in the gradients that are in memory at once: 64 MiB."""
_MOST_AT_ONCE = 128
"""Images whose gradients are in memory at once."""
_SLACK = 1.0 - 2.0**-16
"""What is clipped comes out shorter than C by this: the float32 product by which it is clipped is off by 2^-24."""


def mixes_images(network: nn.Module) -> bool:
    """Whether it has batch-norm layers whose statistics are those of a batch: then every image of it changes what all
    others contribute. Layers with statistics that are fixed for good do not."""
    return bool(batch_norm.layers_of(network)) or any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())


def each_by_itself(model: nn.Module, inputs_BCHW: Tensor) -> Tensor:
    """Logits without gradient, (B, K), of images that see nothing of each other, in the mode that the model has."""
    if not len(inputs_BCHW):
        raise ValueError("no images")
    weights, buffers = _detached(model)

    def one(input_CHW: Tensor) -> Tensor:
        logits_K: Tensor = functional_call(model, (weights, buffers), (input_CHW[None],))[0]
        return logits_K

    with torch.no_grad():
        parts = [vmap(one, randomness="different")(part) for part in torch.split(inputs_BCHW, _MOST_AT_ONCE)]
    return torch.cat(parts)


class ClippedSum:
    """The sum of one step, on a grid of whole numbers; begins with nothing."""

    def __init__(self, model: nn.Module, *, clip_norm: float) -> None:
        """`clip_norm`: C."""
        self._model = model
        self._clip_norm = clip_norm
        self._grid = grid_of(clip_norm)
        self._weights, self._fixed = _detached(model)
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._frozen = {name: self._weights.pop(name) for name in list(self._weights) if name not in trained}
        elements = max(1, sum(weight.numel() for weight in self._weights.values()))
        self._at_once = max(1, min(_MOST_AT_ONCE, _BLOCK_ELEMENTS // elements))
        self.total = {name: torch.zeros(weight.shape, dtype=torch.float64, device=weight.device)
                      for name, weight in self._weights.items()}
        """Whole numbers, in units of the grid; by parameter."""

    def add(self, inputs_BCHW: Tensor, loss: ExampleLoss, *of_image: Tensor) -> None:
        """Adds the clipped gradients of B images.

        Args:
            inputs_BCHW: float, as the network takes them.
            loss: of the logits of an image and its row of each of `of_image`.
            of_image: tensors with B rows.
        A gradient that is not finite counts as 0: it must not take the others with it.
        """
        def one(weights: Mapping[str, Tensor], input_CHW: Tensor, *rows: Tensor) -> Tensor:
            logits_BK = functional_call(self._model, ({**weights, **self._frozen}, self._fixed), (input_CHW[None],))
            return loss(logits_BK[0], *rows)

        gradient_of = vmap(grad(one), in_dims=(None, 0, *(0 for _ in of_image)), randomness="different")
        for part in torch.split(torch.arange(len(inputs_BCHW), device=inputs_BCHW.device), self._at_once):
            if len(part):
                self._add(gradient_of(self._weights, inputs_BCHW[part], *(rows[part] for rows in of_image)))

    def _add(self, gradients: Mapping[str, Tensor]) -> None:
        """Each of the tensors has B rows."""
        norms_B = torch.stack([torch.linalg.vector_norm(each.flatten(1), dim=1, dtype=torch.float64)
                               for each in gradients.values()]).square().sum(dim=0).sqrt()
        factor_B = (self._clip_norm * _SLACK / norms_B).clamp(max=_SLACK)  # 0 gives infinity, hence the slack
        finite_B = torch.isfinite(norms_B)
        scale_B = torch.where(finite_B, factor_B / self._grid, torch.zeros_like(factor_B)).float()
        for name, each in gradients.items():
            rows = (slice(None), *(None,) * (each.dim() - 1))
            # Towards 0, so that nothing becomes longer. Whole numbers below 2^22 in float32; their sum in float64 is
            # exact.
            whole = torch.trunc(torch.where(finite_B[rows], each, torch.zeros_like(each)) * scale_B[rows])
            self.total[name] += whole.sum(dim=0, dtype=torch.float64)

    def with_noise(self, stream: SecretStream, *, step: int, noise_multiplier: float,
                   expected: float) -> dict[str, Tensor]:
        """The gradient of the step, float32 by parameter. Noise is added whether or not anything came before.

        Args:
            step: its number in the task; no two have the same noise.
            noise_multiplier: sigma.
            expected: images that a step has in the mean.
        """
        count = sum(each.numel() for each in self.total.values())
        noise_P = stream.noise("gradient", step, count, noise_multiplier * self._clip_norm / self._grid)
        found, start = {}, 0
        for name, each in self.total.items():
            noise = noise_P[start:start + each.numel()].reshape(each.shape).to(each.device)
            start += each.numel()
            found[name] = ((each + noise) * (self._grid / expected)).to(self._weights[name].dtype)
        return found


def _detached(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return ({name: parameter.detach() for name, parameter in model.named_parameters()}, dict(model.named_buffers()))
