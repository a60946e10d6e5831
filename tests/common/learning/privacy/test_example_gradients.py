"""Clipped sums against a loop over images, and the known ways to be wrong, each planted and found."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.learning.privacy.example_gradients import ClippedSum, each_by_itself
from semisilo.common.learning.privacy.gaussian import SecretStream, grid_of
from tests.each_of import each_of

KEY = b"k" * 32


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def batch(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, 1, 4, 4, generator=generator) * 3,
            torch.randint(0, 3, (count,), generator=generator))


def loss(logits_K: Tensor, label: Tensor) -> Tensor:
    return functional.cross_entropy(logits_K[None], label[None])


def gradient(model: nn.Module, inputs_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """Of the mean loss of a batch, flat."""
    found = torch.autograd.grad(functional.cross_entropy(model(inputs_BCHW), labels_B), list(model.parameters()))
    return torch.cat([each.flatten() for each in found])


def by_hand(model: nn.Module, inputs_BCHW: Tensor, labels_B: Tensor, clip_norm: float) -> Tensor:
    """The sum of clipped gradients, image after image, flat float64."""
    total = torch.zeros(sum(each.numel() for each in model.parameters()), dtype=torch.float64)
    for index in range(len(inputs_BCHW)):
        each = gradient(model, inputs_BCHW[index:index + 1], labels_B[index:index + 1]).double()
        total += each * min(1.0, clip_norm / float(each.norm()))
    return total


def summed(model: nn.Module, inputs_BCHW: Tensor, labels_B: Tensor, clip_norm: float) -> Tensor:
    found = ClippedSum(model, clip_norm=clip_norm)
    found.add(inputs_BCHW, loss, labels_B)
    return torch.cat([each.flatten() for each in found.total.values()]) * grid_of(clip_norm)


@pytest.mark.slow
@given(count=st.integers(1, 9), seed=st.integers(0, 50), clip=st.floats(1e-3, 50.0))
@settings(max_examples=30)
def test_the_sum_is_that_of_a_loop_over_images(count: int, seed: int, clip: float) -> None:
    """To one grid unit an image, and 1e-4 of what it is (float32 in another order, and the slack of 2^-16)."""
    model, (inputs, labels) = network(seed), batch(count, seed)
    found, expected = summed(model, inputs, labels, clip), by_hand(model, inputs, labels, clip)
    assert float((found - expected).abs().max()) <= count * (grid_of(clip) + 1e-4 * clip)


@pytest.mark.slow
@given(seed=st.integers(0, 100), clip=st.floats(1e-3, 10.0), scale=st.sampled_from([1e-6, 1.0, 1e4, 1e30]))
@settings(max_examples=40)
def test_one_image_moves_the_sum_by_at_most_c(seed: int, clip: float, scale: float) -> None:
    """Sensitivity, exactly: sums are whole numbers, so no order of adding can make it more (Casacuberta et al.)."""
    model, (inputs, labels) = network(seed), batch(6, seed)
    inputs[-1] *= scale
    difference = summed(model, inputs, labels, clip) - summed(model, inputs[:-1], labels[:-1], clip)
    assert float(difference.norm()) <= clip


def clipped_after_summing(model: nn.Module, inputs: Tensor, labels: Tensor, clip: float) -> Tensor:
    """Planted: accumulation; the gradient of the batch is clipped, not those of its images."""
    total = gradient(model, inputs, labels).double() * len(inputs)
    return total * min(1.0, clip * len(inputs) / float(total.norm()))


def each_tensor_clipped(model: nn.Module, inputs: Tensor, labels: Tensor, clip: float) -> Tensor:
    """Planted: every layer is clipped at C by itself, so that an image moves the sum by sqrt(layers) C."""
    total = []
    for index in range(len(inputs)):
        found = torch.autograd.grad(functional.cross_entropy(model(inputs[index:index + 1]), labels[index:index + 1]),
                                    list(model.parameters()))
        total.append(torch.cat([(each * min(1.0, clip / float(each.norm() + 1e-30))).flatten() for each in found]))
    return torch.stack(total).double().sum(dim=0)


def not_clipped(model: nn.Module, inputs: Tensor, labels: Tensor, clip: float) -> Tensor:
    """Planted."""
    return gradient(model, inputs, labels).double() * len(inputs)


@each_of("planted", [clipped_after_summing, each_tensor_clipped, not_clipped])
def test_planted_ways_to_clip_wrongly_move_the_sum_by_more(
        planted: Callable[[nn.Module, Tensor, Tensor, float], Tensor]) -> None:
    """The control of the test above: the same measure finds each of them."""
    model, (inputs, labels), clip = network(), batch(6), 0.01
    inputs[-1] *= 1e4
    assert float((planted(model, inputs, labels, clip) - planted(model, inputs[:-1], labels[:-1], clip)).norm()) > clip


class Mixing(nn.Module):
    """Planted: an operation across images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, inputs_BCHW: Tensor) -> Tensor:
        logits_BK: Tensor = self.layers(inputs_BCHW - inputs_BCHW.mean(dim=0, keepdim=True) * 0.5)
        return logits_BK


@pytest.mark.slow
def test_a_network_that_mixes_images_gets_them_one_by_one() -> None:
    """Each image's gradient and logits are what they are without the others, whatever the network does with a batch."""
    model, (inputs, labels) = Mixing(), batch(5)
    assert not torch.allclose(model(inputs)[:1], model(inputs[:1]))
    assert torch.allclose(each_by_itself(model, inputs), torch.cat([model(each[None]) for each in inputs]), atol=1e-5)
    found, expected = summed(model, inputs, labels, 0.1), by_hand(model, inputs, labels, 0.1)
    assert float((found - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_image_whose_gradient_is_not_finite_does_not_take_the_others_with_it(bad: float) -> None:
    model, (inputs, labels) = network(), batch(4)
    without = summed(model, inputs[:3], labels[:3], 0.5)
    inputs[3, 0, 0, 0] = bad
    assert torch.equal(summed(model, inputs, labels, 0.5), without)


def noised(count: int, *, step: int = 0, key: bytes = KEY, expected: float = 8.0, noise: float = 1.0) -> Tensor:
    found = ClippedSum(network(), clip_norm=0.5)
    inputs, labels = batch(8)
    found.add(inputs[:count], loss, labels[:count])
    stream = SecretStream(key)
    return torch.cat([each.flatten() for each in found.with_noise(
        stream, step=step, noise_multiplier=noise, expected=expected).values()]).double()


def test_the_divisor_is_the_expected_number_whoever_came() -> None:
    """Division by the batch size: with the same noise, 3 and 8 images differ by exactly the clipped gradients of the 5
    over the expected 8. Divided by 3 and by 8 the noise would not cancel: the planted error is larger by far."""
    model, (inputs, labels) = network(), batch(8)
    added = by_hand(model, inputs[3:], labels[3:], 0.5) / 8.0
    assert float(((noised(8) - noised(3)) - added).abs().max()) < 1e-4
    planted = noised(8, expected=8.0) - noised(3, expected=3.0)
    assert float((planted - added).abs().max()) > 1e-2


def test_an_empty_step_has_noise_of_full_size() -> None:
    """Zero-size batches: sigma C over what is expected. To leave the step out would tell that nobody was in it."""
    empty = torch.stack([noised(0, step=number) for number in range(60)])
    assert float(empty.std()) == pytest.approx(1.0 * 0.5 / 8.0, rel=0.03)
    assert not torch.equal(empty[0], torch.zeros_like(empty[0]))


@pytest.mark.slow
def test_the_noise_of_a_step_has_the_deviation_that_is_counted() -> None:
    """sigma C / expected around the clipped sum, with images as without."""
    exact = noised(8, noise=0.1) * 0 + by_hand(network(), *batch(8), 0.5) / 8.0
    rest = torch.stack([noised(8, step=number, noise=2.0) - exact for number in range(60)])
    assert float(rest.std()) == pytest.approx(2.0 * 0.5 / 8.0, rel=0.03)
    assert abs(float(rest.mean())) < 5 * float(rest.std()) / math.sqrt(rest.numel())


def test_no_two_steps_and_no_two_silos_have_the_same_noise() -> None:
    """Reused noise: of the same images with the same noise the difference would be 0."""
    for other in (noised(8, step=1), noised(8, key=b"j" * 32)):
        difference = noised(8) - other
        assert float(difference.std()) == pytest.approx(math.sqrt(2) * 0.5 / 8.0, rel=0.15)
    assert torch.equal(noised(8), noised(8))


def test_what_leaves_lies_on_the_grid() -> None:
    """Floating point: times what is expected, every number is a whole multiple of the grid, up to float32."""
    units = noised(5) * 8.0 / grid_of(0.5)
    assert float((units - units.round()).abs().max()) < 2.0**-24 * float(units.abs().max()) + 1e-9


def test_frozen_parameters_have_no_gradient_and_take_no_part_in_the_norm() -> None:
    model, (inputs, labels) = network(), batch(4)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    found = ClippedSum(model, clip_norm=0.1)
    found.add(inputs, loss, labels)
    assert set(found.total) == {name for name, each in model.named_parameters() if each.requires_grad}


def test_dropout_draws_for_every_image_by_itself() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    inputs = torch.ones(64, 1, 4, 4)
    torch.manual_seed(0)
    assert len(each_by_itself(model.train(), inputs).unique(dim=0)) > 32


def test_many_images_are_added_block_by_block_with_the_same_sum() -> None:
    """More images than are in memory at once: whole numbers add up to the same in any order."""
    model, (inputs, labels) = network(), batch(300)
    at_once = ClippedSum(model, clip_norm=0.5)
    at_once.add(inputs, loss, labels)
    piecewise = ClippedSum(model, clip_norm=0.5)
    for start in range(0, 300, 128):
        piecewise.add(inputs[start:start + 128], loss, labels[start:start + 128])
    assert all(torch.equal(at_once.total[name], piecewise.total[name]) for name in at_once.total)
