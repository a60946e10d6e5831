"""What Pillow does not see to in TIFF files of more than 8 bits: colours, of which it keeps the upper 8 alone, and grey
of which 0 is white.

Tests: tests/common/data/formats/test_registry.py.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semisilo.common.data.formats.extras import needed, silence
from semisilo.common.data.formats.pixels import UnusableError
from semisilo.common.data.formats.registry import TIFF
from semisilo.common.errors import BadData

__all__ = ["deep_colours", "has_deep_colours", "zero_is_white"]

_BITS_PER_SAMPLE = 258
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0
_NOT_PACKED, _PACK_BITS, _DEFLATE = 1, 32773, (8, 32946)
_RGB, _OPACITY, _ORIENTATION = 2, 2, 274
"""A photometric interpretation, a kind of extra samples (colours not multiplied by it), a tag."""
_ON_ITS_SIDE = (5, 6, 7, 8)
_OTHER_COLOURS = "its 16-bit colours are not red, green and blue; save it as RGB"
_PACKED = "its 16-bit colours are compressed in a way that is not read; save it uncompressed, or with deflate"
_DAMAGED = "its 16-bit colours are damaged or cut off"


def has_deep_colours(image: Image.Image) -> bool:
    """Whether the page that a Pillow image of a TIFF is at has colours of more than 8 bits."""
    bits: Any = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (1,))
    bits = bits if isinstance(bits, tuple) else (bits,)
    return len(bits) >= 3 and max(bits) > 8


def zero_is_white(image: Image.Image) -> bool:
    """Whether the page that a Pillow image is at says that its smallest value is white."""
    tags: Any = getattr(image, "tag_v2", {})
    return bool(tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO)


def deep_colours(path: Path, page: int, size: tuple[int, int]) -> NDArray[Any]:
    """The colours (H, W, 3) of a page, the right way up, on black where it has opacity.

    Args:
        size: (width, height) that were checked against the largest picture; the page must have them, be it lying on its
            side.
    Raises: UnusableError when it cannot be read; BadData when tifffile is not installed.
    """
    library = needed("tifffile", TIFF, what="TIFF files with colours of more than 8 bits")
    silence("tifffile")
    try:
        with library.TiffFile(path) as file:
            found = file.pages[page]
            if found.photometric is None or int(found.photometric) != _RGB:
                raise UnusableError(_OTHER_COLOURS)
            tag = found.tags.get(_ORIENTATION)
            orientation = 1 if tag is None else int(tag.value)
            width, height = int(found.imagewidth), int(found.imagelength)
            sizes = ((width, height), (height, width)) if orientation in _ON_ITS_SIDE else ((width, height),)
            if size not in sizes or found.samplesperpixel not in (3, 4) or int(found.imagedepth) != 1:
                raise UnusableError("its colours are not as its header says")
            _check_packing(file, found, 2 * width * height * int(found.samplesperpixel) * found.bitspersample // 8)
            pixels: NDArray[Any] = found.asarray()
            if pixels.shape[0] == found.samplesperpixel and pixels.shape[1:] == (height, width):
                pixels = np.moveaxis(pixels, 0, 2)  # one plane per colour
            if pixels.shape[:2] != (height, width):
                raise UnusableError("its colours are not as its header says")
            if found.samplesperpixel == 4 and int(next(iter(found.extrasamples), 0)) == _OPACITY:
                pixels = _on_black(pixels)
            return np.ascontiguousarray(_upright(pixels[..., :3], orientation))
    except (UnusableError, BadData):
        raise
    except MemoryError:
        raise UnusableError("it does not fit into memory") from None
    except Exception as error:  # what the library says may quote a tag
        raise UnusableError(_PACKED if "imagecodecs" in str(error) else _DAMAGED) from None


def _on_black(pixels: NDArray[Any]) -> NDArray[Any]:
    """(H, W, 4) of colours and opacity as colours on black, rounded half up."""
    if pixels.dtype.kind != "u" or pixels.dtype.itemsize > 4:
        raise UnusableError("its opacity is of a kind that is not read; save it without")
    colours, opacity, most = pixels[..., :3], pixels[..., 3:], int(np.iinfo(pixels.dtype).max)
    wide: NDArray[Any] = (colours.astype(np.uint64) * opacity + most // 2) // most
    return wide.astype(pixels.dtype)


def _upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """(H, W, 3) as it is to be looked at. Source: TIFF 6.0, tag Orientation: where the first row and column lie."""
    if orientation in _ON_ITS_SIDE:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def _check_packing(file: Any, page: Any, most: int) -> None:
    """Whether what is packed gives no more bytes than a picture of that size has; the library would take any amount."""
    kind = int(page.compression)
    if kind in (_NOT_PACKED, _PACK_BITS):  # as many bytes as are there, or at most 64 times as many
        return
    if kind not in _DEFLATE:
        raise UnusableError(_PACKED)
    left = most + 2**16
    for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True):
        file.filehandle.seek(offset)
        unpacker = zlib.decompressobj()
        rest = file.filehandle.read(min(count, left))
        while rest and not unpacker.eof and left > 0:
            left -= len(unpacker.decompress(rest, min(left, 2**20)))
            rest = unpacker.unconsumed_tail
        if left <= 0:
            raise UnusableError(_DAMAGED)
