"""Images like the study's are told from others: the limits, measured on digits as they are and as they should not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.preview.likeness import ChannelStatistics, statistics_of, unlikeness
from semisilo.common.data.preview.preview import sample_of
from tests.each_of import each_of

Digits = Any


@pytest.fixture(scope="module")
def digits() -> Digits:
    """uint8 (1797, 1, 8, 8)."""
    from sklearn.datasets import load_digits

    return np.round(load_digits().images * 255 / 16).astype(np.uint8)[:, None]


@pytest.fixture(scope="module")
def study(digits: Digits) -> ChannelStatistics:
    """Of the first 80."""
    return statistics_of(list(digits[:80]))


def test_statistics_are_over_all_pixels_of_a_channel() -> None:
    first = np.array([[[0, 255]], [[51, 51]], [[0, 0]]], dtype=np.uint8)
    second = np.array([[[255, 255]], [[153, 153]], [[0, 0]]], dtype=np.uint8)
    found = statistics_of([first, second])
    assert found.images == 2
    assert found.mean == pytest.approx((0.75, 0.4, 0.0))
    assert found.std == pytest.approx((math.sqrt(3) / 4, 0.2, 0.0))


def blurred(images: Digits) -> Digits:
    padded = np.pad(images.astype(float), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    return (sum(padded[:, :, row:row + 8, column:column + 8] for row in range(3) for column in range(3)) / 9
            ).astype(np.uint8)


@pytest.mark.parametrize(("change", "word"), [
    (lambda images: 255 - images, "brighter"), (blurred, "less contrast"),
    (lambda images: np.clip(images.astype(int) + 40, 0, 255).astype(np.uint8), "brighter"),
    (lambda images: images // 2, "darker")], ids=["inverted", "blurred", "shifted", "darkened"])
def test_digits_that_are_inverted_blurred_shifted_or_darkened_are_unlike(
        digits: Digits, study: ChannelStatistics, change: Callable[[Digits], Digits], word: str) -> None:
    for count in (20, 64, 300):
        (line,) = unlikeness(statistics_of(list(change(digits[100:100 + count]))), study)
        assert word in line


def test_other_digits_and_single_classes_are_like(digits: Digits, study: ChannelStatistics) -> None:
    from sklearn.datasets import load_digits

    generator, labels = np.random.default_rng(0), load_digits().target
    for count in (20, 64, 200):
        for _ in range(50):
            assert unlikeness(statistics_of(list(digits[generator.choice(1797, count, replace=False)])), study) == ()
    for label in range(10):
        assert unlikeness(statistics_of(list(digits[labels == label][:64])), study) == ()


def test_a_single_colour_that_is_off_is_named() -> None:
    study = ChannelStatistics(images=50, mean=(0.7, 0.5, 0.6), std=(0.2, 0.2, 0.2))
    site = ChannelStatistics(images=50, mean=(0.7, 0.44, 0.6), std=(0.2, 0.3, 0.2))
    assert unlikeness(site, study) == (
        "green: darker: mean 0.440, the study's 0.500; more contrast: standard deviation 0.300, the study's 0.200",)


@each_of(("mean", "std", "unlike"), [
    (0.5 + 0.049, 0.2, False), (0.5 + 0.051, 0.2, True), (0.5 - 0.051, 0.2, True), (0.5, 0.161, False),
    (0.5, 0.159, True), (0.5, 0.249, False), (0.5, 0.251, True)])
def test_the_limits_are_a_quarter_deviation_and_a_factor_of_four_fifths(mean: float, std: float, unlike: bool) -> None:
    found = unlikeness(ChannelStatistics(images=20, mean=(mean,), std=(std,)),
                       ChannelStatistics(images=20, mean=(0.5,), std=(0.2,)))
    assert bool(found) is unlike


def test_too_few_images_on_either_side_tell_nothing() -> None:
    off, study = ChannelStatistics(images=20, mean=(0.9,), std=(0.2,)), ChannelStatistics(
        images=20, mean=(0.5,), std=(0.2,))
    assert unlikeness(off, study)
    assert unlikeness(ChannelStatistics(images=19, mean=(0.9,), std=(0.2,)), study) == ()
    assert unlikeness(off, ChannelStatistics(images=19, mean=(0.5,), std=(0.2,))) == ()
    assert unlikeness(off, ChannelStatistics(images=20, mean=(0.5,), std=(0.0,))) == ()
    with pytest.raises(ValueError, match="channels"):
        unlikeness(off, ChannelStatistics(images=20, mean=(0.5,) * 3, std=(0.2,) * 3))


@each_of("changes", [{"mean": (math.nan,)}, {"std": (-0.1,)}, {"mean": (0.1, 0.2)}, {"images": -1}])
def test_statistics_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    good: dict[str, Any] = {"images": 20, "mean": (0.5,), "std": (0.2,)}
    ChannelStatistics(**good)
    with pytest.raises(ValueError, match="cannot be"):
        ChannelStatistics(**good | changes)


def test_a_sample_is_spread_over_files_and_leaves_out_what_cannot_be_read(tmp_path: Path, digits: Digits) -> None:
    for index in range(200):
        Image.fromarray(np.full((4, 4), index, dtype=np.uint8)).save(tmp_path / f"{index:03d}.png")
    (tmp_path / "000.png").write_bytes(b"no picture")
    form = Geometry(size=4, channels=1, resize="fit")
    values = [int(square[0, 0, 0]) for square in sample_of(str(tmp_path), form=form)]
    assert 45 < len(values) <= 64
    assert values == sorted(values)
    assert (values[0] < 10, values[-1] > 190) == (True, True)
    np.savez(tmp_path / "some.npz", train_images=digits[:30, 0])
    assert len(sample_of(str(tmp_path / "some.npz"), form=Geometry(size=8, channels=1, resize="fit"))) == 30
