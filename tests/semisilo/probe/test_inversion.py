"""Gradient inversion where the answer is known, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from semisilo.common.data.form import ImageForm
from semisilo.common.learning import batch_norm, tensors
from semisilo.probe.inversion import (
    best_matches,
    classification_gradient,
    correlations,
    invert,
    mean_of_trials,
    psnr,
    total_variation,
)

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def dense() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, 3))


def gradient_at(model: nn.Module, images_BCSS: torch.Tensor, labels_B: torch.Tensor):
    parameters = tensors.parameters_of(model)
    gradient_of = classification_gradient(model, parameters, labels_B, names=list(parameters), form=FORM)
    return gradient_of, [each.detach() for each in gradient_of(images_BCSS)]


@pytest.mark.slow
def test_an_image_is_found_in_the_gradient_of_a_dense_network_where_algebra_finds_it_too() -> None:
    """dL/dW_i = (dL/db_i) x for every row i of a first dense layer with a bias, so x = (dL/dW_i) / (dL/db_i): Phong et
    al., IEEE TIFS 2018; Geiping et al., NeurIPS 2020, proposition 3.1. What is searched for must be just that."""
    image_1CSS = torch.rand((1, 1, 4, 4), generator=torch.Generator().manual_seed(1))
    gradient_of, target = gradient_at(dense(), image_1CSS, torch.tensor([2]))
    weights, bias = target[0], target[1]
    row = int(bias.abs().argmax())
    by_algebra = (weights[row] / bias[row]) * 0.25 + 0.5
    assert torch.allclose(by_algebra, image_1CSS.flatten(), atol=1e-4)
    found = invert(gradient_of, target, shape=(1, 1, 4, 4), iterations=300, restarts=1, smoothness=0.0,
                   generator=torch.Generator().manual_seed(2))
    assert found.cosine > 0.9999
    assert float((found.images_BCSS.flatten() - by_algebra).abs().max()) < 0.02


@pytest.mark.slow
def test_nothing_is_found_in_a_gradient_that_is_buried_in_noise() -> None:
    image_1CSS = torch.rand((1, 1, 4, 4), generator=torch.Generator().manual_seed(1))
    gradient_of, target = gradient_at(dense(), image_1CSS, torch.tensor([2]))
    generator = torch.Generator().manual_seed(5)
    noised = [each + 3 * each.norm() * torch.randn(each.shape, generator=generator) for each in target]
    found = invert(gradient_of, noised, shape=(1, 1, 4, 4), iterations=300, restarts=1, smoothness=0.0,
                   generator=torch.Generator().manual_seed(2))
    assert float(correlations(found.images_BCSS.flatten(1), image_1CSS.flatten(1))) < 0.7


def test_of_several_starts_the_nearest_is_kept_and_seeds_repeat_it() -> None:
    image_1CSS = torch.rand((1, 1, 4, 4), generator=torch.Generator().manual_seed(1))
    gradient_of, target = gradient_at(dense(), image_1CSS, torch.tensor([0]))

    def search(restarts: int):
        return invert(gradient_of, target, shape=(1, 1, 4, 4), iterations=15, restarts=restarts,
                      generator=torch.Generator().manual_seed(2))

    assert search(4).cosine >= search(1).cosine
    assert torch.equal(search(2).images_BCSS, search(2).images_BCSS)


def test_the_gradient_is_that_of_training_with_batch_statistics_and_without_dropout() -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), batch_norm.StaticBatchNorm(3), nn.Dropout(0.9), nn.Flatten(),
                          nn.Linear(12, 3))
    images_BCSS, labels_B = torch.rand(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    _, found = gradient_at(model, images_BCSS, labels_B)
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Identity(), nn.Flatten(), nn.Linear(12, 3))
    plain.load_state_dict(model.state_dict(), strict=False)
    functional.cross_entropy(plain.train()((images_BCSS - 0.5) / 0.25), labels_B).backward()
    for mine, parameter in zip(found, plain.parameters(), strict=True):
        assert torch.allclose(mine, parameter.grad, atol=1e-6)
    assert all(module.training for module in model.modules()), "the network is left as it was"


def test_total_variation_is_the_mean_difference_of_neighbours() -> None:
    """Across: |1 - 0|, |0 - 0.5| -> 0.75; down: |0 - 0|, |0.5 - 1| -> 0.25."""
    assert float(total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 0.5]]]]))) == pytest.approx(0.75 + 0.25)


def test_psnr_and_correlation_are_those_of_their_definitions() -> None:
    first, second = torch.tensor([[0.0, 1.0, 0.5, 0.2]]), torch.tensor([[0.1, 0.9, 0.6, 0.1], [0.0, 1.0, 0.5, 0.2]])
    assert psnr(first, second)[0].tolist() == pytest.approx([20.0, 100.0])
    expected = np.corrcoef(first[0].numpy(), second[0].numpy())[0, 1]
    assert correlations(first, second)[0].tolist() == pytest.approx([expected, 1.0], abs=1e-5)
    assert float(correlations(torch.full((1, 4), 0.5), first)) == 0.0


def test_each_image_is_held_against_the_best_of_what_was_found() -> None:
    black, white = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    psnr_N, _, best_N = best_matches(torch.cat([black, white]), torch.cat([0.9 * white, 0.1 * white, white]))
    assert best_N.tolist() == [1, 0, 1]
    assert psnr_N.tolist() == pytest.approx([20.0, 20.0, 100.0])


def test_the_interval_of_few_trials_is_students() -> None:
    """s = 1, n = 3, t(0.975, 2) = 4.3027."""
    found = mean_of_trials([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 - 2.4841, 2 + 2.4841), abs=1e-4)
