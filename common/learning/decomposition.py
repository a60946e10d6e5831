"""Decomposed networks: theta = sigma + psi for every trainable tensor, sigma learnt from labels, psi without.

    d theta / d sigma = d theta / d psi = 1: one backward pass gives either gradient, the other part stands still.

Shapes: B images in a batch, K classes.
Source: FedMatch, Jeong et al. (ICLR 2021) section 3.2; initial values from the official code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.sgd import SGD, SGDSettings, momentum_of, step
from semisilo.common.learning.tensors import add, all_like
from semisilo.common.numerics.passes import Descent

__all__ = ["Decomposed", "initial_psi", "parts_of_trained", "theta"]

_PSI_SHARE = 0.2


def theta(sigma: Mapping[str, Tensor], psi: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """sigma + psi, as new tensors. Raises: LayoutMismatch."""
    return add(sigma, psi)


def initial_psi(sigma: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """psi_0 = 0.2 * sigma_0 for weights (two axes or more) [C]; 0 for biases and batch-norm's gamma and beta [O]."""
    return {name: tensor * _PSI_SHARE if tensor.dim() > 1 else torch.zeros_like(tensor)
            for name, tensor in sigma.items()}


def parts_of_trained(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(sigma_0, psi_0) whose sum is a model that was trained before, to the last bit.

    Of weights psi is a fifth of sigma, as at random. As published theta_0 would be 1.2 times the weights: of no
    consequence for random ones, and another model for trained ones. w / 1.2 lies between w / 2 and 2 w, so w - w / 1.2
    is exact (Sterbenz), and so is the sum.
    """
    sigma = {name: tensor / (1.0 + _PSI_SHARE) if tensor.dim() > 1 else tensor.clone()
             for name, tensor in weights.items()}
    return sigma, {name: tensor - sigma[name] for name, tensor in weights.items()}


class Decomposed:
    """A network whose weights are sigma + psi, with a descent for each part."""

    def __init__(self, model: nn.Module, sigma: Mapping[str, Tensor], psi: Mapping[str, Tensor], *, sgd: SGDSettings,
                 sigma_momentum: Mapping[str, Tensor] | None = None) -> None:
        """
        Args:
            model: gives the form of the network, its device and mode; its own weights are never used.
            sigma, psi: the model's trainable parameters in layout; copied.
            sgd: of both parts; their momentum is apart.
            sigma_momentum: buffers to go on from; None starts anew, as psi always does.
        Raises: LayoutMismatch when sigma, psi or the buffers are not the model's.
        """
        self.model = model
        own = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._sigma, self._psi = (
            SGD(settings=sgd, lr=sgd.lr, buffers={}, parameters=copied, descent=Descent(copied, apart=True))
            for copied in ({name: nn.Parameter(tensor) for name, tensor in all_like(own, part).items()}
                           for part in (sigma, psi)))
        if sigma_momentum is not None:
            self._sigma.buffers = all_like(own, sigma_momentum)

    @property
    def sigma(self) -> dict[str, Tensor]:
        """The current sigma on the model's device, detached; it changes with the next step."""
        return {name: parameter.detach() for name, parameter in self._sigma.parameters.items()}

    @property
    def psi(self) -> dict[str, nn.Parameter]:
        """The current psi on the model's device, with gradient; it changes with the next step."""
        return self._psi.parameters

    def weights(self) -> dict[str, Tensor]:
        """theta = sigma + psi as it is now, with gradient to psi alone; good until the next step."""
        return theta(self.sigma, self._psi.parameters)

    def forward(self, inputs_BCHW: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Logits (B, K) with the given weights (this network's `weights`, or a helper's), under the model's mode."""
        logits_BK: Tensor = functional_call(self.model, dict(weights), (inputs_BCHW,))
        return logits_BK

    def sigma_step(self, inputs_BCHW: Tensor, labels_B: Tensor, weight: float, *,
                   loss_of: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> Tensor:
        """sigma -= lr * gradient of weight * CE(labels, f_{sigma + psi*}(inputs)), psi frozen.

        Args:
            loss_of: scalar loss of (logits_BK, labels_B) in the place of cross-entropy.
        Returns: the cross-entropy before the step, without its weight; a scalar (), detached.
        Raises: OneValuePerChannel, with nothing changed.
        """
        frozen = {name: parameter.detach() for name, parameter in self._psi.parameters.items()}
        loss = loss_of(self.forward(inputs_BCHW, theta(self._sigma.parameters, frozen)), labels_B)
        step(self._sigma, weight * loss)
        return loss.detach()

    def psi_step(self, loss: Tensor) -> None:
        """psi -= lr * gradient of `loss`, a scalar made with `forward` and `psi`; sigma is frozen."""
        if loss.requires_grad:
            step(self._psi, loss)

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Contiguous copies of (sigma, psi) on the CPU."""
        sigma, psi = ({name: parameter.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
                       for name, parameter in part.parameters.items()} for part in (self._sigma, self._psi))
        return sigma, psi

    def sigma_momentum(self) -> dict[str, Tensor]:
        """Copies of sigma's momentum buffers on the CPU; zeros where there is none yet."""
        return momentum_of(self._sigma)
