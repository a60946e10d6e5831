"""Who harms more than the others, against Hampel's rule written out."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from semisilo.common.learning.robust.outliers import NORMAL_MAD, not_worse_than_others


def test_it_is_hampels_rule_on_one_side() -> None:
    harm = [0.1, 0.3, 0.2, -5.0, 0.25, 0.9, 0.15]
    middle = statistics.median(harm)
    spread = NORMAL_MAD * statistics.median(abs(value - middle) for value in harm)
    found = not_worse_than_others(torch.tensor(harm, dtype=torch.float64)[:, None], deviations=3.0, least=0.0)
    assert found.tolist() == [value <= middle + 3.0 * spread for value in harm]
    assert found.tolist() == [True, True, True, True, True, False, True]


def test_every_view_counts_and_small_differences_do_not() -> None:
    harm_NV = torch.zeros(5, 3, dtype=torch.float64)
    harm_NV[1, 2], harm_NV[3, 0] = 2.0, 0.5
    assert not_worse_than_others(harm_NV, deviations=4.0, least=1.0).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("lie", [1e3, math.inf])
def test_fewer_than_half_cannot_get_an_honest_update_left_out_nor_stay(lie: float) -> None:
    harm_NV = torch.tensor([[0.1], [0.2], [0.3], [0.4], [lie], [lie], [lie]], dtype=torch.float64)
    assert not_worse_than_others(harm_NV, deviations=4.0, least=0.2).tolist() == [True] * 4 + [False] * 3
    assert not not_worse_than_others(torch.full((3, 1), math.inf), deviations=4.0, least=0.2).any()
