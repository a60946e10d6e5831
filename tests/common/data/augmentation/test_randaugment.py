"""Each operation against Pillow, whose arithmetic the published policies were written for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from semisilo.common.data.augmentation import randaugment as ra
from tests.each_of import each_of

FACTORS = (0.1, 0.5, 1.0, 1.37, 1.9, 0.0)


def pictures(side: int, channels: int) -> torch.Tensor:
    """Noise, a narrow range, one value, one dark value per channel, a ramp, black and white: uint8 (6, C, S, S)."""
    generator = np.random.default_rng(side * 10 + channels)
    images = generator.integers(0, 256, (6, channels, side, side)).astype(np.uint8)
    images[1] = images[1] // 3 + 20
    images[2] = 77
    images[3] = np.arange(channels)[:, None, None] * 40
    images[4] = (np.arange(side)[:, None] * 255 // (side - 1)).astype(np.uint8)
    images[5] = (images[5] > 200) * 255
    return torch.from_numpy(images)


def pillow(images: torch.Tensor, operation: Callable[[Image.Image, int], Image.Image]) -> torch.Tensor:
    results = []
    for number, image_CHW in enumerate(images.numpy()):
        picture = Image.fromarray(image_CHW[0] if len(image_CHW) == 1 else np.moveaxis(image_CHW, 0, -1))
        array = np.array(operation(picture, number))
        results.append(torch.from_numpy(array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0).copy()))
    return torch.stack(results)


@pytest.fixture(params=[(8, 1), (8, 3), (28, 3), (32, 1), (32, 3)], ids=lambda shape: f"{shape[1]}x{shape[0]}")
def images(request: pytest.FixtureRequest) -> torch.Tensor:
    return pictures(*request.param)


@each_of(("ours", "enhancer"), [
    (ra.brightness, ImageEnhance.Brightness), (ra.color, ImageEnhance.Color),
    (ra.contrast, ImageEnhance.Contrast), (ra.sharpness, ImageEnhance.Sharpness)])
def test_enhancers_equal_those_of_pillow(images, ours, enhancer):
    got = ours(images, torch.tensor(FACTORS, dtype=torch.float64))
    assert torch.equal(got, pillow(images, lambda picture, i: enhancer(picture).enhance(FACTORS[i])))


@each_of(("ours", "reference"), [
    (ra.autocontrast, ImageOps.autocontrast), (ra.equalize, ImageOps.equalize), (ra.invert, ImageOps.invert)])
def test_operations_without_a_parameter_equal_those_of_pillow(images, ours, reference):
    assert torch.equal(ours(images), pillow(images, lambda picture, i: reference(picture)))


def test_posterize_and_solarize_equal_those_of_pillow(images):
    bits = (1, 4, 5, 6, 7, 8)
    assert torch.equal(ra.posterize(images, torch.tensor(bits)),
                       pillow(images, lambda picture, i: ImageOps.posterize(picture, bits[i])))
    thresholds = (0.0, 10.0, 128.0, 200.5, 255.0, 256.0)
    assert torch.equal(ra.solarize(images, torch.tensor(thresholds)),
                       pillow(images, lambda picture, i: ImageOps.solarize(picture, thresholds[i])))


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_shear_equals_that_of_pillow(images, resample):
    filter = Image.Resampling[resample.upper()]
    shear = torch.tensor([0.3, -0.3, 0.1, -0.07, 0.21, 0.0], dtype=torch.float64)
    shift = shear[:, None] * (torch.arange(images.shape[2]) + 0.5)

    def reference(matrix: Callable[[float], tuple[float, ...]]) -> torch.Tensor:
        return pillow(images, lambda picture, i: picture.transform(
            picture.size, Image.Transform.AFFINE, matrix(shear[i].item()), filter))

    assert torch.equal(ra.shift_rows(images, shift, resample=resample), reference(lambda s: (1, s, 0, 0, 1, 0)))
    assert torch.equal(ra.shift_columns(images, shift, resample=resample), reference(lambda s: (1, 0, 0, s, 1, 0)))


@each_of("resample", ["nearest", "bilinear", "bicubic"])
def test_translation_equals_that_of_pillow(images, resample):
    side = images.shape[2]
    pixels = [0.3 * side, -0.3 * side, 1.0, -2.0, 0.13 * side, 100.0]
    shift = torch.tensor(pixels, dtype=torch.float64)[:, None].expand(-1, side)
    expected = pillow(images, lambda picture, i: picture.transform(
        picture.size, Image.Transform.AFFINE, (1, 0, pixels[i], 0, 1, 0), Image.Resampling[resample.upper()]))
    got = ra.shift_rows(images, shift, resample=resample)
    assert torch.equal(got, expected)
    assert not got[5].any(), "100 pixels leave nothing"


def test_rotation_equals_that_of_pillow(images):
    degrees = (30.0, -30.0, 90.0, 180.0, 13.5, 275.0)
    got = ra.rotate(images, torch.tensor(degrees, dtype=torch.float64))
    expected = pillow(images, lambda picture, i: picture.rotate(degrees[i]))
    # A source on the border of two pixels may fall to either side: Pillow counts in 1/65536 pixel.
    assert (got != expected).float().mean() < 0.002
    grey = ra.rotate(images, torch.tensor(degrees, dtype=torch.float64), fill=128)
    assert (grey[0, :, 0, 0] == 128).all(), "30 degrees turn a corner outside"


def test_cutout_covers_exactly_the_stated_pixels():
    image = torch.full((1, 1, 8, 8), 9, dtype=torch.uint8)
    got = ra.cutout(image, torch.tensor([1.0]), torch.tensor([5.0]), torch.tensor([4.0]))
    expected = image.clone()
    expected[0, 0, 1:5, 5:8] = 127
    assert torch.equal(got, expected)


def test_operations_leave_their_input_alone():
    images = pictures(32, 3)
    before = images.clone()
    factor = torch.full((6,), 1.9, dtype=torch.float64)
    for operation in (ra.autocontrast, ra.equalize, ra.invert):
        operation(images)
    for operation in (ra.brightness, ra.color, ra.contrast, ra.sharpness, ra.solarize, ra.rotate):
        operation(images, factor)
    ra.shift_rows(images, factor[:, None].expand(-1, 32), resample="bicubic")
    assert torch.equal(images, before)
