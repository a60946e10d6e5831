"""FedRGD's grouped averaging: the oracle, who falls into which group, and the limits."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning.averaging.grouped import group_mean, mean_of_groups, split_into_groups
from tests.each_of import each_of


def _model(values: list[float]) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def _silos(count: int) -> list[str]:
    return [f"silo-{number:02d}" for number in range(count)]


def test_oracle_b9_group_averages_and_their_mean() -> None:
    groups = [[[2.0, 0.0], [3.0, 1.0]], [[5.0, 4.0], [0.0, 0.0]]]
    sums = [[sum(column) for column in zip(*group, strict=True)] for group in groups]
    means = [group_mean(_model([1.0, 1.0]), _model(total), 2) for total in sums]
    assert [mean["w"].tolist() for mean in means] == [pytest.approx([2.0, 0.666667], abs=1e-5),
                                                      pytest.approx([2.0, 1.666667], abs=1e-5)]
    assert mean_of_groups(means)["w"].tolist() == pytest.approx([2.0, 1.166667], abs=1e-5)


def test_true_sizes_count_where_groups_are_unequal() -> None:
    """w_s = 0, groups {6} and {3, 6}: (0 + 6) / 2 = 3 and (0 + 9) / 3 = 3."""
    means = [group_mean(_model([0.0]), _model([6.0]), 1), group_mean(_model([0.0]), _model([9.0]), 2)]
    assert [float(mean["w"]) for mean in means] == [3.0, 3.0]


def test_differences_from_a_common_model_give_the_difference_of_the_mean() -> None:
    w, own, total = _model([10.0]), _model([1.0]), _model([5.0])
    by_values = group_mean(_model([11.0]), _model([2 * 10.0 + 5.0]), 2)
    assert float(by_values["w"]) == pytest.approx(float(w["w"] + group_mean(own, total, 2)["w"]), abs=1e-12)


def test_one_group_is_the_mean_of_everybody_with_the_coordinator() -> None:
    mean = group_mean(_model([1.0]), _model([2.0 + 3.0 + 6.0]), 3)
    assert float(mean["w"]) == 3.0
    assert float(mean_of_groups([mean])["w"]) == 3.0


@each_of(("silos", "groups", "sizes"), [(10, 2, [5, 5]), (5, 2, [3, 2]), (47, 5, [10, 10, 9, 9, 9]),
                                        (1, 2, [1]), (2, 5, [1, 1]), (3, 1, [3]), (0, 2, [])])
def test_groups_are_as_equal_as_they_can_be_and_never_empty(silos: int, groups: int, sizes: list[int]) -> None:
    found = split_into_groups(_silos(silos), groups, torch.Generator().manual_seed(1))
    assert list(found) == _silos(silos)
    assert [count for _, count in sorted(Counter(found.values()).items())] == sizes


def test_the_split_is_random_and_follows_its_generator() -> None:
    """Over 2000 draws every pair of 6 silos shares one of 2 groups with probability 2/5: 800, deviation 22."""
    together: Counter[tuple[str, str]] = Counter()
    generator = torch.Generator().manual_seed(3)
    for _ in range(2000):
        found = split_into_groups(_silos(6), 2, generator)
        together.update((a, b) for a in found for b in found if a < b and found[a] == found[b])
    assert len(together) == 15
    assert all(abs(count - 800) < 5 * 22 for count in together.values())
    again = [split_into_groups(_silos(6), 2, torch.Generator().manual_seed(9)) for _ in range(2)]
    assert again[0] == again[1]


def test_a_foreign_model_is_refused() -> None:
    with pytest.raises(LayoutMismatch):
        group_mean(_model([1.0]), _model([1.0, 2.0]), 1)
