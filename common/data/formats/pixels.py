"""From any picture to uint8 squares of the study's size and channels.

Two entrances, one result: `square` for one Pillow image, `squares` for a stack of arrays. Both resample with Pillow's
antialiased bilinear filter ("pad" resamples nothing), and grey is ITU-R 601 luminance.

Depth. Values of 8 bits are taken as they are. 16-bit values are divided by 4095 when none exceeds 4095, since scanners
put 12 bits into 16-bit files, else by 65535; other whole numbers likewise, but by 255 when none exceeds 255. Fractions
are taken as 0..1 when none exceeds 1, else as 0..255. Negative values, larger ones and NaN are refused: which window
shows them is a medical choice, not ours. The range is that of the whole source (of an .npz: of its split), so that a
dark picture stays dark; what a study found on its labelled images is the least for its other sets, and where its model
is used. A window that the study names, or "image", takes the place of all this.

Shapes: N images, H rows, W columns, C channels, S side of the square.

Tests: tests/common/data/test_readers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from semisilo.common.data.form import DEEP_LIMITS, Reading
from semisilo.common.data.formats import grey

__all__ = ["Geometry", "NoPictureError", "Range", "Resize", "UnusableError", "eight_bits", "fitted", "range_of",
           "square", "squares"]

Resize = Literal["fit", "crop", "stretch", "pad"]
Pixels = NDArray[np.uint8]
Range = tuple[str, float]
"""What deep values were divided by: a kind of values ("16 bits", "whole numbers", "fractions") and the limit."""

_FILTER = Image.Resampling.BILINEAR
_CHUNK = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """The squares that pictures are brought to."""

    size: int
    channels: int
    resize: str


class UnusableError(ValueError):
    """A picture that cannot be turned into pixels; the text is the reason and names no file."""

    def __init__(self, text: str, *, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


class NoPictureError(UnusableError):
    """A file that is whole and holds no picture, such as a report among scans: left out whatever else is wrong."""


def square(image: Image.Image, form: Geometry, *, reading: Reading, ranges: Mapping[str, float],
           deep_inverted: bool = False) -> tuple[Pixels, Range | None]:
    """The picture as uint8 (C, S, S), and what its values were divided by if they have more than 8 bits.

    The orientation that a camera noted is applied, transparency lies on black, a palette is resolved, of several frames
    the first is taken. Resizing: "fit" pads to a square with black, "crop" takes the centre square, "stretch" neither;
    then scaled. "pad" puts black around the picture, the same on both sides (an odd pixel goes right and below), and
    scales nothing.
    Args:
        ranges: the range that other pictures of the source need at least.
        deep_inverted: whether 0 is white, of a picture of more than 8 bits. Pillow sees to those of 8 bits.
    Raises: UnusableError with the reason; whatever Pillow raises for damaged data.
    """
    image = ImageOps.exif_transpose(image)
    if image.width == 0 or image.height == 0:
        raise UnusableError("it has no pixels")
    divided = None
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        if values.dtype == np.int32 and values.min() >= 0 and values.max() <= 65535:
            values = values.astype(np.uint16)  # Pillow hands some 16-bit files over in 32 bits
        shown, divided = eight_bits(values, reading=reading, ranges=ranges)
        image = Image.fromarray(255 - shown if deep_inverted else shown)
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("RGB")
    elif image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return fitted(image, form), divided


def fitted(image: Image.Image, form: Geometry) -> Pixels:
    """A picture of 8 bits without opacity as uint8 (C, S, S)."""
    scaled = _scale(image.convert("L" if form.channels == 1 else "RGB"), form.size, form.resize)
    pixels = np.asarray(scaled, dtype=np.uint8)
    return pixels[None] if form.channels == 1 else np.moveaxis(pixels, 2, 0)


def squares(
    images: NDArray[np.generic], *, size: int, channels: int, resize: str, reading: Reading = Reading(),
    progress: Callable[[float], None] | None = None, ranges: Mapping[str, float] = MappingProxyType({}),
) -> Pixels:
    """A stack of pictures as uint8 (N, C, S, S).

    Args:
        images: (N, H, W), (N, H, W, 1), (N, H, W, 3) or (N, H, W, 4), the last channel being opacity.
        ranges: the range that other pictures need at least.
        progress: told the share that is done, 0 to 1.
    Raises: UnusableError with the reason.
    """
    images_NHWC = images[..., None] if images.ndim == 3 else images
    number, height, width, _ = images_NHWC.shape
    low, high = _ends(images_NHWC, reading, ranges)[:2] if reading.window != "image" else (0.0, 0.0)
    done = np.empty((number, channels, size, size), dtype=np.uint8)
    for start in range(0, number, _CHUNK):
        stop = min(start + _CHUNK, number)
        chunk = _to_channels(_by_image(images_NHWC[start:stop]) if reading.window == "image"
                             else _convert(images_NHWC[start:stop], low, high), channels)
        if (height, width) == (size, size):
            done[start:stop] = np.moveaxis(chunk, 3, 1)
        else:
            for index, picture in enumerate(chunk, start):
                image = Image.fromarray(picture[..., 0] if channels == 1 else picture)
                scaled = np.asarray(_scale(image, size, resize))
                done[index] = scaled[None] if channels == 1 else np.moveaxis(scaled, 2, 0)
        if progress is not None:
            progress(stop / number)
    return done


def range_of(images: NDArray[np.generic], *, reading: Reading, ranges: Mapping[str, float] = MappingProxyType({})
             ) -> Range | None:
    """What `squares` divides a stack of pictures by, where it finds that in the values of all of them.

    Raises: UnusableError as `squares`.
    """
    return None if reading.window == "image" else _ends(images, reading, ranges)[2]


def eight_bits(values: NDArray[Any], *, reading: Reading, ranges: Mapping[str, float]) -> tuple[Pixels, Range | None]:
    """uint8 of the same shape, by the rule of depth above, and the range that was used.

    Raises: UnusableError for negative values, values above 65535 (fractions: above 255) unless the study names a
        window; for NaN or infinities.
    """
    low, high, divided = _ends(values, reading, ranges)
    return _convert(values, low, high), divided


def _ends(values: NDArray[Any], reading: Reading, ranges: Mapping[str, float]) -> tuple[float, float, Range | None]:
    """The values that become 0 and 255."""
    if values.dtype == np.bool_:
        return 0.0, 1.0, None
    if values.dtype == np.uint8 or values.size == 0:
        return 0.0, 255.0, None
    if values.dtype.kind not in "iuf":
        raise UnusableError(f"its pixels have the type {values.dtype}, not numbers")
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise UnusableError("it has pixels that are NaN or infinite")
    if reading.window == "image":
        return low, high, None
    if not isinstance(reading.window, str):
        centre, width = reading.window
        return centre - width / 2, centre + width / 2, None
    if low < 0:
        raise UnusableError(f"it has negative pixels ({low:g}); name a window, or convert it to 8-bit grey, windowed as"
                            " it is read")
    kind = "fractions" if values.dtype.kind == "f" else (
        "16 bits" if values.dtype.kind == "u" and values.dtype.itemsize == 2 else "whole numbers")
    for limit in DEEP_LIMITS[kind]:
        if high <= limit:
            limit = max(limit, ranges.get(kind, 0.0))
            return 0.0, limit, (kind, limit)
    raise UnusableError(f"its brightest pixel is {high:g}, beyond {DEEP_LIMITS[kind][-1]:g}; name a window, or convert"
                        " it to 8-bit grey")


def _by_image(values: NDArray[Any]) -> Pixels:
    """Each picture of (N, H, W, C) from its own smallest value to its largest."""
    if values.dtype == np.uint8:
        return values
    done = np.empty(values.shape, dtype=np.uint8)
    for index, picture in enumerate(values):
        done[index] = _convert(picture, *_ends(picture, Reading(window="image"), {})[:2])
    return done


def _convert(values: NDArray[Any], low: float, high: float) -> Pixels:
    if values.dtype == np.uint8:
        return values.astype(np.uint8, copy=False)
    return grey.looked_up(values, lambda some: grey.rounded(grey.spread(some, low, high)))


def _to_channels(pixels_NHWC: Pixels, channels: int) -> Pixels:
    if pixels_NHWC.shape[3] == 4:
        # round(colour * opacity / 255): on black.
        wide = pixels_NHWC[..., :3].astype(np.uint32) * pixels_NHWC[..., 3:]
        pixels_NHWC = ((2 * wide + 255) // 510).astype(np.uint8)
    if pixels_NHWC.shape[3] == channels:
        return pixels_NHWC
    if channels == 3:
        return np.repeat(pixels_NHWC, 3, axis=3)
    wide = pixels_NHWC.astype(np.uint32)
    total = wide[..., :1] * 19595 + wide[..., 1:2] * 38470 + wide[..., 2:] * 7471 + 0x8000  # as Pillow's convert("L")
    luminance: Pixels = (total >> 16).astype(np.uint8)
    return luminance


def _scale(image: Image.Image, size: int, resize: str) -> Image.Image:
    """`image` (L or RGB) as a square of the side `size`."""
    if image.size == (size, size):
        return image
    width, height = image.size
    if resize == "pad":
        if max(width, height) > size:
            raise UnusableError(f'with {width}x{height} pixels it does not fit into {size}x{size}, and resize = "pad"'
                                " scales nothing", remedy=f"Set size = {max(width, height)} in [data] image, or"
                                ' resize = "fit".')
        larger = Image.new(image.mode, (size, size))
        larger.paste(image, ((size - width) // 2, (size - height) // 2))
        return larger
    if resize == "stretch" or width == height:
        return image.resize((size, size), _FILTER)
    if resize == "crop":
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        return image.resize((size, size), _FILTER, box=(left, top, left + side, top + side))
    # The two axes are resampled apart, the long one first: padding at full size would need (long side)^2 pixels, which
    # a long thin picture makes enormous.
    side = max(width, height)
    if width > height:
        image = image.resize((size, height), _FILTER)
        padded = Image.new(image.mode, (size, side))
        padded.paste(image, (0, (side - height) // 2))
    else:
        image = image.resize((width, size), _FILTER)
        padded = Image.new(image.mode, (side, size))
        padded.paste(image, ((side - width) // 2, 0))
    return padded.resize((size, size), _FILTER)
