"""Networks with theta = sigma + psi: one part learns, the other stands still."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.decomposition import Decomposed, initial_psi, parts_of_trained, theta
from semisilo.common.learning.sgd import SGDSettings
from semisilo.common.learning.tensors import load_into, parameters_of

PLAIN = SGDSettings(lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0, clip_norm=0.0)


def _net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(1, 2, 3), StaticBatchNorm(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def _parts() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    sigma = parameters_of(_net())
    generator = torch.Generator().manual_seed(4)
    return sigma, {name: torch.randn(tensor.shape, generator=generator) * 0.1 for name, tensor in sigma.items()}


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(5)), torch.tensor([0, 1, 2, 1, 0])


def _plain_gradient(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of the cross-entropy at `weights`, from an ordinary network that holds them."""
    model, (x, y) = _net(), _batch()
    load_into(model, weights)
    nn.functional.cross_entropy(model.train()(x), y).backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_psi_starts_as_a_fifth_of_the_weights_and_zero_elsewhere() -> None:
    sigma = parameters_of(_net())
    psi = initial_psi(sigma)
    assert list(psi) == list(sigma)
    for name in sigma:
        share = 0.2 if name in ("0.weight", "4.weight") else 0.0  # biases, gamma and beta start with psi = 0
        assert torch.equal(psi[name], sigma[name] * share), name


def test_trained_weights_are_split_into_parts_that_add_up_to_them_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    weights = {"w": torch.randn(64, 33, generator=generator) * 10.0 ** torch.randint(-12, 12, (64, 33)),
               "tiny": torch.full((2, 2), 1e-42), "b": torch.randn(7, generator=generator), "zero": torch.zeros(3, 3)}
    sigma, psi = parts_of_trained(weights)
    assert all(torch.equal(each, weights[name]) for name, each in theta(sigma, psi).items())
    assert torch.allclose(psi["w"], 0.2 * sigma["w"], rtol=1e-5), "a fifth, as at random"
    assert bool(psi["b"].eq(0).all())
    at_random = theta(weights, initial_psi(weights))
    assert not torch.equal(at_random["w"], weights["w"]), "the control: as published it would be another model"


def test_a_step_of_sigma_takes_the_gradient_at_the_sum_and_leaves_psi() -> None:
    sigma, psi = _parts()
    network = Decomposed(_net(), sigma, psi, sgd=PLAIN)
    x, y = _batch()
    network.model.train()
    loss = network.sigma_step(x, y, 10.0)
    gradient = _plain_gradient(theta(sigma, psi))
    after, still = network.parts()
    for name in sigma:
        assert torch.allclose(after[name], sigma[name] - 0.1 * 10.0 * gradient[name], atol=1e-6), name
        assert torch.equal(still[name], psi[name]), name
    model = _net()
    load_into(model, theta(sigma, psi))
    assert float(loss) == pytest.approx(float(nn.functional.cross_entropy(model.train()(x), y)), rel=1e-5)


def test_a_step_of_psi_takes_the_same_gradient_and_leaves_sigma() -> None:
    sigma, psi = _parts()
    network = Decomposed(_net(), sigma, psi, sgd=PLAIN)
    x, y = _batch()
    network.model.train()
    network.psi_step(nn.functional.cross_entropy(network.forward(x, network.weights()), y))
    gradient = _plain_gradient(theta(sigma, psi))
    still, after = network.parts()
    for name in psi:
        assert torch.allclose(after[name], psi[name] - 0.1 * gradient[name], atol=1e-6), name
        assert torch.equal(still[name], sigma[name]), name


def test_the_parts_have_their_own_momentum_and_sigmas_goes_on() -> None:
    """Two steps of sigma with momentum 0.5, a step of psi between them, equal two steps of ordinary SGD on theta while
    psi is put back; and a network that is handed the buffer goes on as if it had never stopped."""
    sigma, psi = _parts()
    sgd = SGDSettings(lr=0.1, momentum=0.5, nesterov=False, weight_decay=0.0, clip_norm=0.0)
    x, y = _batch()

    def step_of(network: Decomposed, part: str) -> None:
        network.model.train()
        if part == "sigma":
            network.sigma_step(x, y, 1.0)
        else:
            network.psi_step(network.forward(x, network.weights()).square().sum())

    through = Decomposed(_net(), sigma, psi, sgd=sgd)
    step_of(through, "sigma")
    first, _ = through.parts()
    g1 = _plain_gradient(theta(sigma, psi))
    step_of(through, "psi")
    _, moved = through.parts()
    g2 = _plain_gradient(theta(first, moved))
    resumed = Decomposed(_net(), first, moved, sgd=sgd, sigma_momentum=through.sigma_momentum())
    for network in (through, resumed):
        step_of(network, "sigma")
        for name, tensor in network.parts()[0].items():
            assert torch.allclose(tensor, first[name] - 0.1 * (0.5 * g1[name] + g2[name]), atol=1e-5), name


def test_without_gradient_a_step_of_psi_changes_nothing() -> None:
    sigma, psi = _parts()
    network = Decomposed(_net(), sigma, psi, sgd=PLAIN)
    network.psi_step(torch.zeros(()))
    assert all(torch.equal(network.parts()[1][name], psi[name]) for name in psi)


@pytest.mark.parametrize("wrong", [0, 1])
def test_parts_of_another_model_are_refused(wrong: int) -> None:
    parts: list[Any] = [*_parts()]
    parts[wrong] = {**parts[wrong], "0.weight": torch.zeros(1)}
    with pytest.raises(LayoutMismatch, match=r"0\.weight"):
        Decomposed(_net(), *parts, sgd=PLAIN)
