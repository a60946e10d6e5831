"""Multi-Krum against a plain loop over pairs."""

from __future__ import annotations

import pytest
import torch

from semisilo.common.learning.robust.inner_products import inner_products, squared_distances
from semisilo.common.learning.robust.krum import fewest_updates, krum_scores, multi_krum
from tests.each_of import each_of


def _distances(points_ND: torch.Tensor) -> torch.Tensor:
    return squared_distances(inner_products([points_ND]))


@each_of(("count", "byzantine"), [(5, 1), (10, 3), (7, 0)])
def test_scores_are_sums_over_the_nearest_others(count: int, byzantine: int) -> None:
    points = torch.randn(count, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = [sum(sorted(float((points[i] - points[j]).square().sum()) for j in range(count) if j != i)
                    [:count - byzantine - 2]) for i in range(count)]
    assert krum_scores(_distances(points), byzantine) == pytest.approx(expected)


def test_it_leaves_out_liars_that_lie_alone_or_together() -> None:
    honest_ND = torch.randn(7, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    alone_ND = 100 * torch.randn(3, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    together_ND = torch.full((3, 30), 40.0, dtype=torch.float64)
    for lies_ND in (alone_ND, together_ND):
        assert multi_krum(_distances(torch.cat([lies_ND, honest_ND])), 3) == list(range(3, 10))


def test_it_needs_2f_plus_3_and_takes_the_first_of_equals() -> None:
    assert fewest_updates(3) == 9
    with pytest.raises(AssertionError):
        krum_scores(torch.zeros(8, 8, dtype=torch.float64), 3)
    assert multi_krum(torch.zeros(5, 5, dtype=torch.float64), 1) == [0, 1, 2, 3]
