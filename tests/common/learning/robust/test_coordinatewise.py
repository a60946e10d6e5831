"""Median and trimmed mean against plain loops over coordinates."""

from __future__ import annotations

import statistics

import pytest
import torch

from semisilo.common.learning.robust.coordinatewise import coordinate_median, trimmed_mean, trimmed_statistics
from tests.each_of import each_of


@each_of("count", [1, 2, 5, 8])
def test_the_median_is_that_of_every_coordinate(count: int) -> None:
    updates_ND = torch.randn(count, 33, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = [statistics.median(column.tolist()) for column in updates_ND.T]
    assert coordinate_median(updates_ND).tolist() == pytest.approx(expected, abs=1e-15)


@each_of(("count", "trim"), [(1, 0), (5, 0), (5, 2), (10, 3)])
def test_the_trimmed_mean_leaves_out_both_ends_of_every_coordinate(count: int, trim: int) -> None:
    updates_ND = torch.randn(count, 17, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = [statistics.fmean(sorted(column.tolist())[trim:count - trim]) for column in updates_ND.T]
    assert trimmed_mean(updates_ND, trim=trim).tolist() == pytest.approx(expected, abs=1e-15)


def test_three_of_ten_liars_cannot_leave_the_range_of_the_honest() -> None:
    honest_ND = torch.rand(7, 20, generator=torch.Generator().manual_seed(3))
    lies_ND = torch.full((3, 20), 1e30)
    for found_D in (trimmed_mean(torch.cat([honest_ND, lies_ND]), trim=3),
                    coordinate_median(torch.cat([lies_ND, honest_ND]))):
        assert bool(((found_D >= honest_ND.min(dim=0).values) & (found_D <= honest_ND.max(dim=0).values)).all())


def test_half_precision_sums_are_made_in_double() -> None:
    assert trimmed_mean(torch.tensor([[60000.0], [60000.0]], dtype=torch.float16), trim=0).tolist() == [60000.0]


def test_statistics_without_trimming_are_those_of_all_values() -> None:
    values_NMC = 5 * torch.randn(4, 50, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    values_NMC += torch.arange(4.0)[:, None, None]
    mean_C, var_C = trimmed_statistics(values_NMC.mean(dim=1), values_NMC.var(dim=1, unbiased=False), trim=0)
    pooled_MC = values_NMC.reshape(-1, 3)
    torch.testing.assert_close(mean_C, pooled_MC.mean(dim=0))
    torch.testing.assert_close(var_C, pooled_MC.var(dim=0, unbiased=False))
