"""Windows against the formulas of DICOM PS3.3 C.11.2, written out here value by value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from semisilo.common.data.formats import grey


def written_out(x: float, c: float, w: float) -> float:
    """C.11.2.1.2.1 as the standard prints it, for one value, y from 0 to 255."""
    if x <= c - 0.5 - (w - 1) / 2:
        return 0.0
    if x > c - 0.5 + (w - 1) / 2:
        return 255.0
    return ((x - (c - 0.5)) / (w - 1) + 0.5) * 255


@pytest.mark.parametrize(("centre", "width"), [(2048, 4096), (40, 400), (-600, 1500), (0, 100), (127, 2)])
def test_the_linear_window_is_the_standards(centre, width):
    values = np.arange(-3000, 5000)
    expected = [written_out(float(x), centre, width) for x in values]
    assert grey.linear(values, centre, width) == pytest.approx(expected, abs=1e-9)


def test_the_standards_own_example_holds():
    """PS3.3 C.11.2.1.2.1: with c = 2048, w = 4096 the values 0 to 4095 become the whole range; with w = 1 and c = 0
    values below 0 are black and others white."""
    assert grey.linear(np.array([0, 4095]), 2048, 4096).tolist() == [0.0, 255.0]
    assert grey.linear(np.array([-1, 0, 1]), 0, 1).tolist() == [0.0, 255.0, 255.0]
    assert grey.linear(np.array([-50, 0, 49]), 0, 100) == pytest.approx([0, (0.5 / 99 + 0.5) * 255, 255])


def test_the_exact_window_differs_by_half_a_value():
    """C.11.2.1.3.2: y = ((x - c) / w + 0.5) * 255; with c = 0, w = 100 the value 0 is the very middle."""
    assert grey.linear_exact(np.array([-50, -25, 0, 25, 50, 51]), 0, 100).tolist() == [
        0.0, 63.75, 127.5, 191.25, 255.0, 255.0]


def test_the_sigmoid_is_the_standards_and_never_overflows():
    values = np.array([-1e9, -200.0, 0.0, 37.0, 50.0, 1e9])
    expected = [255 / (1 + math.exp(min(700.0, -4 * (x - 50) / 300))) for x in values]
    assert grey.sigmoid(values, 50, 300) == pytest.approx(expected)
    assert grey.rounded(grey.sigmoid(np.array([50.0]), 50, 300)).tolist() == [128], "127.5 is rounded up"


def test_a_table_gives_what_the_curve_gives_for_every_value():
    """Large pictures of 16 bits go through a table; the same values in a small picture do not."""
    noise = np.random.default_rng(0).integers(-5000, 20000, (300, 300)).astype(np.int16)
    assert noise.size > 2**16
    curve = lambda values: grey.rounded(grey.linear(values, 100, 3000))  # noqa: E731
    assert np.array_equal(grey.looked_up(noise, curve), curve(noise))
    assert np.array_equal(grey.looked_up(noise.astype(np.float32), curve), curve(noise))
    wide = noise.view(np.uint16)
    assert np.array_equal(grey.looked_up(wide, curve), curve(wide))


def test_a_constant_picture_and_nan_are_black():
    assert grey.rounded(grey.spread(np.array([7.0, 7.0]), 7, 7)).tolist() == [0, 0]
    assert grey.rounded(np.array([math.nan, 254.5])).tolist() == [0, 255]
