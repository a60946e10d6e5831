"""The geometric median against a descent on its own definition, and against known medians."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from semisilo.common.learning.robust.geometric_median import geometric_median_weights
from semisilo.common.learning.robust.inner_products import inner_products


def _median(points_ND: Tensor, weights: list[float]) -> Tensor:
    return torch.tensor(geometric_median_weights(inner_products([points_ND]), weights), dtype=torch.float64) @ points_ND


def _by_definition(points_ND: Tensor, weights: list[float]) -> Tensor:
    """argmin of the weighted sum of distances, by a general method."""
    points, weights_N = points_ND.numpy(), np.array(weights)
    found = minimize(lambda z_D: float((weights_N * np.linalg.norm(points - z_D, axis=1)).sum()), points.mean(axis=0),
                     method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 5000})
    return torch.from_numpy(found.x)


@pytest.mark.parametrize("weights", [[0.2] * 5, [0.4, 0.3, 0.1, 0.1, 0.1]])
def test_it_minimises_the_sum_of_distances(weights: list[float]) -> None:
    points_ND = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(_median(points_ND, weights), _by_definition(points_ND, weights), atol=1e-5, rtol=0)


def test_of_a_square_with_its_centre_it_is_the_centre() -> None:
    points_ND = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(_median(points_ND, [0.2] * 5), torch.zeros(2, dtype=torch.float64))


def test_liars_far_away_move_it_no_further_than_the_honest_lie() -> None:
    honest_ND = torch.randn(7, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for far in (1e1, 1e3, 1e6):
        lies_ND = torch.full((3, 50), far, dtype=torch.float64)
        moved = float(_median(torch.cat([honest_ND, lies_ND]), [0.1] * 10).norm())
        assert moved < 2 * float(honest_ND.norm(dim=1).max())


def test_equal_updates_keep_their_weights() -> None:
    found = geometric_median_weights(torch.ones(4, 4, dtype=torch.float64), [0.25] * 4)
    assert found == pytest.approx([0.25] * 4)
    assert geometric_median_weights(torch.zeros(3, 3, dtype=torch.float64), [0.5, 0.25, 0.25]) == pytest.approx(
        [0.5, 0.25, 0.25])
