"""Updates that stand out: robust z-scores of norms and cosines, in both directions."""

from __future__ import annotations

import math

import pytest

from semisilo.common.learning.outliers import (
    THRESHOLD,
    UpdateMeasure,
    has_long,
    point_away,
    robust_z_scores,
    stand_out,
)
from tests.each_of import each_of


def measures(*norms: float, cosines: tuple[float | None, ...] = ()) -> dict[str, UpdateMeasure]:
    given = cosines or (None,) * len(norms)
    return {f"silo-{number}": UpdateMeasure(norm=norm, cosine=cosine)
            for number, (norm, cosine) in enumerate(zip(norms, given, strict=True))}


def test_a_robust_z_score_is_the_distance_from_the_median_in_scaled_absolute_deviations() -> None:
    """Of 1, 2, 3, 4, 100: median 3, deviations 2, 1, 0, 1, 97 with median 1."""
    found = robust_z_scores([1.0, 2.0, 3.0, 4.0, 100.0], least=1e-9)
    assert found == pytest.approx([-2 / 1.4826, -1 / 1.4826, 0.0, 1 / 1.4826, 97 / 1.4826])
    assert robust_z_scores([1.0, 2.0, 3.0], least=10.0) == pytest.approx([-0.1, 0.0, 0.1])


@each_of(("norm", "sign"), [(31.0, 1), (0.01, -1), (0.0, -1), (3e14, 1)])
def test_an_update_far_longer_or_shorter_than_the_others_stands_out_with_its_numbers(norm: float, sign: int) -> None:
    found = stand_out(measures(1.0, 1.1, 0.9, norm))
    assert list(found) == ["silo-3"]
    (only,) = found["silo-3"]
    assert (only.what, only.value, math.copysign(1, only.z)) == ("norm", norm, sign)
    assert abs(only.z) > THRESHOLD
    assert f"the norm of its update is {norm:.3g}" in only.text
    assert f"robust z {only.z:.1f}" in only.text


def test_updates_of_like_length_do_not_stand_out_however_like_the_others_are() -> None:
    assert stand_out(measures(1.0, 1.0, 1.0, 1.9)) == {}, "less than twice the median"
    assert list(stand_out(measures(1.0, 1.0, 1.0, 2.1))) == ["silo-3"], "a control"


@pytest.mark.parametrize(("odd", "sign"), [(-0.6, -1), (0.99, 1)])
def test_an_update_that_points_elsewhere_or_is_the_mean_itself_stands_out(odd: float, sign: int) -> None:
    found = stand_out(measures(*[1.0] * 5, cosines=(0.4, 0.45, 0.5, 0.42, odd)))
    assert list(found) == ["silo-4"]
    assert [(each.what, each.value) for each in found["silo-4"]] == [("cosine", odd)]
    assert math.copysign(1, found["silo-4"][0].z) == sign


@each_of("given", [{}, measures(5.0), measures(1.0, 1e9, cosines=(1.0, -1.0)),
                   measures(0.0, 0.0, 0.0, 7.0)], ids=["none", "one", "two", "nothing but zeros"])
def test_where_nobody_can_say_who_is_odd_nobody_stands_out(given: dict[str, UpdateMeasure]) -> None:
    assert stand_out(given) == {}


def test_against_the_mean_or_twice_as_long_as_the_median_points_away() -> None:
    """However much honest updates differ: none of these three stands out, for nothing is nearly equal."""
    given = measures(1.0, 0.4, 3.0, 1.2, 0.7, 2.5, 1.0, cosines=(0.2, 0.5, -0.1, 0.6, 0.3, 0.1, -0.2))
    assert stand_out(given) == {}
    assert point_away(given) == {
        "silo-2": "its update points away from the mean (cosine -0.10) and its update is 3 times as long as the median",
        "silo-5": "its update is 2.5 times as long as the median",
        "silo-6": "its update points away from the mean (cosine -0.20)"}
    assert has_long(given)
    assert not has_long(measures(1.0, 1.0, 1.9))
    assert point_away(measures(1.0, 1.0, 1.9)) == point_away(measures(1.0, 9.0)) == {}
    assert not has_long(measures(1.0, 9.0))
