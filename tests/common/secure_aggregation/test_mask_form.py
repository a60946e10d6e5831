"""The public scale of a secure sum, and how it follows the sums before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semisilo.common.secure_aggregation.mask_form import (
    MaskForm,
    SumOutcome,
    first_bounds,
    next_bounds,
    share_count,
    together,
    weight_of,
    wider_bounds,
)
from tests.each_of import each_of


def outcome(*, cut: int = 0, largest: tuple[float, ...] = (0.5, 0.001)) -> SumOutcome:
    return SumOutcome(silos=4, weight=4.0, cut=cut, elements=100_000, largest=largest)


def test_the_first_bounds_are_the_largest_weights_and_at_least_a_tenth() -> None:
    assert first_bounds([2.0, 0.0, 0.05]) == (2.0, 0.1, 0.1)


def test_bounds_fall_to_sixteen_times_the_mean_by_half_at_most() -> None:
    assert next_bounds((100.0, 0.02), outcome()) == (50.0, 0.016)


def test_bounds_never_rise_without_a_cut_and_grow_fourfold_with_one() -> None:
    assert next_bounds((1.0, 1.0), outcome(largest=(9.0, 9.0))) == (1.0, 1.0)
    assert next_bounds((1.0, 1.0), outcome(cut=5)) == (4.0, 4.0)
    assert next_bounds((1.0, 1.0), outcome(cut=4, largest=(9.0, 9.0))) == (1.0, 1.0)  # 1e-5 of all elements


def test_bounds_of_moments_stay_but_where_much_was_cut() -> None:
    assert wider_bounds((4096.0, 4096.0), outcome(largest=(0.1, 1.0))) == (4096.0, 4096.0)
    assert wider_bounds((4096.0, 4096.0), outcome(cut=5)) == (16384.0, 16384.0)


def test_bounds_of_a_tensor_that_nobody_changes_stay_above_zero() -> None:
    bounds = (1.0,)
    for _ in range(200):
        bounds = next_bounds(bounds, outcome(largest=(0.0,)))
    assert bounds[0] > 0


def test_weights_are_shares_of_the_largest_silo() -> None:
    form = MaskForm(bits=18, bounds=(1.0,), silo_count=4, weight_reference=200)
    assert [weight_of(form, count) for count in (0, 50, 200, 10**9)] == [0.0, 0.25, 1.0, 1.0]
    assert weight_of(MaskForm(bits=18, bounds=(1.0,), silo_count=4), 0) == 1.0


def test_behind_the_tensors_come_three_words_for_each_total_and_two_more() -> None:
    form = MaskForm(bits=18, bounds=(1.0,), silo_count=4)
    assert (form.extra_words, replace(form, totals=("steps", "lost")).extra_words) == (2, 8)


def test_what_several_sums_have_told_is_weighed_together() -> None:
    one = SumOutcome(silos=3, weight=2.0, cut=1, elements=9, largest=(0.5, 2.0), totals=(10.0,))
    other = SumOutcome(silos=4, weight=1.0, cut=2, elements=9, largest=(1.0, 1.0), totals=(40.0,))
    assert together([one, other]) == SumOutcome(silos=7, weight=3.0, cut=3, elements=9, largest=(1.0, 2.0),
                                                totals=(20.0,))
    assert together([one]) == one


@each_of(("share", "elements", "count"), [(1.0, 7, 7), (0.01, 7, 1), (0.5, 7, 4), (0.5, 0, 0)])
def test_a_share_is_rounded_up(share: float, elements: int, count: int) -> None:
    assert share_count(share, elements) == count


@each_of("wrong", [{"bits": 15}, {"bits": 33}, {"silo_count": 0}, {"silo_count": 33},
                   {"bounds": (0.0,)}, {"bounds": (float("inf"),)}, {"bounds": (float("nan"),)},
                   {"weight_reference": -1}, {"totals": ("x",) * 9}, {"totals": ("",)},
                   {"random_k": 0.0}, {"random_k": 1.5}])
def test_a_form_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"bits": 18, "bounds": (1.0,), "silo_count": 3}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MaskForm(**{**right, **wrong})  # type: ignore[arg-type]
