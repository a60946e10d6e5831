"""Operations of RandAugment on batches of tensors, with the arithmetic of Pillow's ImageOps and ImageEnhance.

Each operation takes a sub-batch whose images all undergo it, every image with its own parameter, so a whole batch costs
a few tensor operations per drawn operation and none per image. Images are uint8; results are bit-equal to Pillow's
except where a docstring says otherwise.

Shapes: n images of the sub-batch, C channels (1 or 3), H rows, W columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "autocontrast", "brightness", "color", "contrast", "cutout", "equalize", "grey", "invert", "posterize", "rotate",
    "sharpness", "shift_columns", "shift_rows", "solarize",
]


def grey(images_nCHW: Tensor) -> Tensor:
    """Luminance (n, 1, H, W), int32 in 0..255, by ITU-R 601 in the fixed-point form of Pillow's convert("L").

    A grey image is its own luminance, as if it were repeated to 3 channels.
    """
    wide = images_nCHW.to(torch.int32)
    if images_nCHW.shape[1] == 1:
        return wide
    total = wide[:, 0:1] * 19595 + wide[:, 1:2] * 38470 + wide[:, 2:3] * 7471 + 0x8000
    return total >> 16


def invert(images_nCHW: Tensor) -> Tensor:
    """255 - image."""
    return 255 - images_nCHW


def posterize(images_nCHW: Tensor, bits_n: Tensor) -> Tensor:
    """Keeps the `bits_n` highest bits of every value: int64 (n,), 0..8; 8 changes nothing, 0 gives black."""
    keep_n = (256 - (1 << (8 - bits_n))).to(torch.uint8)
    return images_nCHW & keep_n[:, None, None, None]


def solarize(images_nCHW: Tensor, threshold_n: Tensor) -> Tensor:
    """Inverts every value that is not below `threshold_n` (float (n,), 0..256); 256 changes nothing, 0 inverts all."""
    return torch.where(images_nCHW < threshold_n[:, None, None, None], images_nCHW, 255 - images_nCHW)


def _blend(degenerate: Tensor, images_nCHW: Tensor, factor_n: Tensor) -> Tensor:
    """degenerate + factor * (image - degenerate), cut to 0..255 and truncated, in float32 as Pillow's Image.blend."""
    base = degenerate.to(torch.float32)
    mixed = base + factor_n.to(torch.float32)[:, None, None, None] * (images_nCHW.to(torch.float32) - base)
    return mixed.clamp_(0, 255).to(torch.uint8)


def brightness(images_nCHW: Tensor, factor_n: Tensor) -> Tensor:
    """Image times factor: 0 gives black, 1 the image."""
    scaled = images_nCHW.to(torch.float32) * factor_n.to(torch.float32)[:, None, None, None]
    return scaled.clamp_(0, 255).to(torch.uint8)


def color(images_nCHW: Tensor, factor_n: Tensor) -> Tensor:
    """Away from (factor > 1) or towards (< 1) the image's own grey version. Changes nothing in a grey image."""
    if images_nCHW.shape[1] == 1:
        return images_nCHW
    return _blend(grey(images_nCHW), images_nCHW, factor_n)


def contrast(images_nCHW: Tensor, factor_n: Tensor) -> Tensor:
    """Away from or towards the image's mean luminance, rounded half up."""
    luminance = grey(images_nCHW)
    pixels = luminance.shape[2] * luminance.shape[3]
    # (2 s + p) // 2 p is floor(s / p + 1/2) without a rounding error.
    mean_n = (2 * luminance.sum(dim=(1, 2, 3)) + pixels) // (2 * pixels)
    return _blend(mean_n[:, None, None, None], images_nCHW, factor_n)


def sharpness(images_nCHW: Tensor, factor_n: Tensor) -> Tensor:
    """Away from or towards the smoothed image (3 x 3, weights 1 and 5 in the middle, over 13; the border is kept)."""
    if min(images_nCHW.shape[2:]) < 3:
        return images_nCHW
    wide = images_nCHW.to(torch.float32)
    box = functional.avg_pool2d(wide, 3, stride=1, divisor_override=1)
    middle = wide[:, :, 1:-1, 1:-1]
    smooth = wide.clone()
    # k / 13 is never half way between two integers, so adding 1/2 and flooring is safe in float32.
    smooth[:, :, 1:-1, 1:-1] = ((box + 4 * middle) / 13 + 0.5).floor_()
    return _blend(smooth, images_nCHW, factor_n)


def autocontrast(images_nCHW: Tensor) -> Tensor:
    """Stretches each channel to 0..255; a channel of one value stays as it is."""
    flat = images_nCHW.flatten(2)
    low = flat.amin(2, keepdim=True).to(torch.float64)
    high = flat.amax(2, keepdim=True).to(torch.float64)
    # float64 in this order: Pillow truncates, so 254.99... instead of 255 must arise where it does there.
    # A true division: `255.0 / tensor` is the rounded reciprocal times 255.
    scale = torch.full_like(low, 255.0) / (high - low)
    stretched = (flat.to(torch.float64) * scale - low * scale).clamp_(0, 255)
    return torch.where(high > low, stretched.to(torch.uint8), flat).view_as(images_nCHW)


def equalize(images_nCHW: Tensor) -> Tensor:
    """Flattens each channel's histogram. As in Pillow, an image of few pixels (below 255 besides those of its brightest
    value) is left as it is, so 8 x 8 images never change."""
    n, channels, height, width = images_nCHW.shape
    if height * width < 256:
        return images_nCHW
    rows = n * channels
    flat = images_nCHW.reshape(rows, height * width).to(torch.int64)
    offset = torch.arange(rows, device=flat.device)[:, None] * 256
    histogram = torch.bincount((flat + offset).flatten(), minlength=rows * 256).view(rows, 256)
    brightest = flat.amax(1, keepdim=True)
    step = (height * width - histogram.gather(1, brightest)) // 255
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp(min=1)).clamp_(max=255)
    mapped = torch.where(step > 0, table.gather(1, flat), flat)
    return mapped.to(torch.uint8).view_as(images_nCHW)


def cutout(images_nCHW: Tensor, top_n: Tensor, left_n: Tensor, side_n: Tensor, *, value: int = 127) -> Tensor:
    """Grey square: rows y with top <= y < top + side and columns likewise; float (n,) bounds, in pixels."""
    height, width = images_nCHW.shape[2:]
    y = torch.arange(height, device=images_nCHW.device)
    x = torch.arange(width, device=images_nCHW.device)
    rows_nH = (y >= top_n[:, None]) & (y < (top_n + side_n)[:, None])
    columns_nW = (x >= left_n[:, None]) & (x < (left_n + side_n)[:, None])
    inside = (rows_nH[:, :, None] & columns_nW[:, None, :])[:, None]
    return images_nCHW.masked_fill(inside, value)


def shift_rows(images_nCHW: Tensor, shift_nH: Tensor, *, resample: Literal["nearest", "bilinear", "bicubic"]) -> Tensor:
    """Moves each row sideways: pixel x of row y becomes what stood at x + shift_nH[:, y]; from outside comes black.

    One function for shear and translation: Pillow's Image.transform with (1, s, t, 0, 1, 0) has
    shift(y) = s * (y + 1/2) + t. Neighbours beyond the edge repeat the edge, as there.
    Args:
        shift_nH: float64 or float32 (n, H), in pixels.
    """
    width = images_nCHW.shape[3]
    channels = images_nCHW.shape[1]
    columns = torch.arange(width, device=images_nCHW.device, dtype=shift_nH.dtype) + 0.5
    source_nHW = columns + shift_nH[:, :, None]
    inside_n1HW = ((source_nHW >= 0) & (source_nHW < width))[:, None]

    def at(index_nHW: Tensor) -> Tensor:
        clipped = index_nHW.clamp(0, width - 1)[:, None].expand(-1, channels, -1, -1)
        return images_nCHW.gather(3, clipped)

    if resample == "nearest":
        return at(source_nHW.floor().to(torch.int64)) * inside_n1HW
    source_nHW -= 0.5
    left_nHW = source_nHW.floor()
    part = (source_nHW - left_nHW)[:, None]
    left = left_nHW.to(torch.int64)
    if resample == "bilinear":
        first = at(left).to(part.dtype)
        value = first + (at(left + 1) - first) * part
    else:
        # The cubic of Pillow's transform (a = -1).
        v1, v2, v3, v4 = (at(left + k).to(part.dtype) for k in (-1, 0, 1, 2))
        value = v2 + part * (v3 - v1 + part * (2 * (v1 - v2) + v3 - v4 + part * (v2 - v1 + v4 - v3)))
        value = value.clamp_(0, 255)
    return value.to(torch.uint8) * inside_n1HW


def shift_columns(
    images_nCHW: Tensor, shift_nW: Tensor, *, resample: Literal["nearest", "bilinear", "bicubic"]
) -> Tensor:
    """`shift_rows` with rows and columns exchanged: moves column x vertically by shift_nW[:, x]."""
    return shift_rows(images_nCHW.transpose(2, 3), shift_nW, resample=resample).transpose(2, 3)


def rotate(images_nCHW: Tensor, degrees_n: Tensor, *, fill: int = 0) -> Tensor:
    """Turns counter-clockwise about the centre, nearest neighbour, `fill` from outside.

    Equal to Pillow's Image.rotate except for pixels whose source lies on the border of two pixels, since Pillow counts
    in 1/65536 pixel.
    Args:
        degrees_n: float64 (n,).
    """
    n, channels, height, width = images_nCHW.shape
    angle = torch.deg2rad(degrees_n)[:, None, None]
    cosine, sine = angle.cos(), angle.sin()
    y = (torch.arange(height, device=images_nCHW.device, dtype=angle.dtype) + 0.5 - height / 2)[:, None]
    x = torch.arange(width, device=images_nCHW.device, dtype=angle.dtype) + 0.5 - width / 2
    # The epsilon keeps a source that is exact on paper (0, 90, 180 degrees) on its own pixel; 1/65536 is Pillow's step.
    source_x = (cosine * x - sine * y + (width / 2 + 1e-6)).floor_().to(torch.int64)
    source_y = (sine * x + cosine * y + (height / 2 + 1e-6)).floor_().to(torch.int64)
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    index = (source_y.clamp_(0, height - 1) * width + source_x.clamp_(0, width - 1)).view(n, 1, height * width)
    turned = images_nCHW.flatten(2).gather(2, index.expand(-1, channels, -1)).view_as(images_nCHW)
    return turned.masked_fill(~inside[:, None], fill)
