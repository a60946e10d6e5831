"""Pictures that Pillow reads: PNG, JPEG, TIFF and their like, from a file or from the bytes of one within another.

Shapes: C channels, S side of the square.

Tests: tests/common/data/formats/test_registry.py.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from semisilo.common.data.form import Reading
from semisilo.common.data.formats.codestream import stream_bits, stream_samples, stream_size
from semisilo.common.data.formats.extras import needed, silence
from semisilo.common.data.formats.picture import Header, Picture, chosen, part_of
from semisilo.common.data.formats.pixels import Geometry, UnusableError, eight_bits, fitted, square
from semisilo.common.data.formats.registry import IMAGE_FORMATS, JPEG
from semisilo.common.data.formats.tiff import deep_colours, has_deep_colours, zero_is_white
from semisilo.common.system_errors import may_be_of_one_file, source_trouble

__all__ = ["OpenedRaster", "is_raster", "most_pixels", "open_raster"]

_DEEP_PNG = 16
_END_OF_IMAGE = b"\xff\xd9"
_START = 2**18
"""Bytes in which a JPEG says how large it is, whatever stands before."""
_FORMATS = tuple(each.pillow for each in IMAGE_FORMATS if each.pillow)


def most_pixels() -> int:
    """The largest picture that is decoded."""
    return Image.MAX_IMAGE_PIXELS or 89_478_485


def is_raster(path: Path) -> bool:
    """Whether a file whose suffix says nothing starts like an image. Raises: SystemTrouble where disk or share have
    gone away."""
    try:
        with warnings.catch_warnings(), Image.open(path, formats=_FORMATS):
            return True
    except Exception as error:  # Pillow raises nearly anything on damaged bytes
        if (trouble := source_trouble(error, path)) is not None:
            if may_be_of_one_file(error):
                return True  # it may be: decoding tells what is wrong with it, and with how many others
            raise trouble from error
        return False


def open_raster(path: Path, content: bytes | None = None) -> OpenedRaster:
    """A picture that nobody has looked into yet.

    Args:
        content: the file itself, where it lies within another one at `path`; then its first page alone counts.
    """
    return OpenedRaster(path, content)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedRaster:
    """A picture, or a TIFF with its pages. Its methods raise whatever Pillow does with damaged bytes."""

    path: Path
    content: bytes | None

    def header(self, reading: Reading) -> Header:
        """See `OpenedImage`."""
        if (jpeg := self._deep_jpeg()) is not None:
            return Header(size=jpeg.size, channels=1 if jpeg.samples == 1 else 3, bits=jpeg.bits, pictures=1)
        with self._image() as image:
            pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
            return Header(size=image.size, channels=1 if _is_grey(image) else 3, bits=_bits(image), pictures=pages)

    def pictures(self, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> list[Picture]:
        """See `OpenedImage`."""
        if (jpeg := self._deep_jpeg()) is not None:
            return [jpeg.picture(self._bytes(), form, reading, ranges)]
        found = []
        with self._image() as image:
            several = image.format == "TIFF" and self.content is None
            pages = getattr(image, "n_frames", 1) if several else 1
            those = chosen(pages, reading.frames) if several else [0]
            for page in those:
                if several and page:
                    image.seek(page)
                if image.width * image.height > most_pixels():
                    raise UnusableError(f"{image.width} x {image.height} pixels are too many (limit {most_pixels()});"
                                        " scale it down")
                width, height, bits = *image.size, _bits(image)
                if several and has_deep_colours(image):
                    deep = deep_colours(self.path, page, image.size)
                    shown, divided = eight_bits(deep, reading=reading, ranges=ranges)
                    pixels, channels = fitted(Image.fromarray(shown), form), 3
                else:
                    channels = 1 if _is_grey(image) else 3
                    pixels, divided = square(image, form, reading=reading, ranges=ranges,
                                             deep_inverted=zero_is_white(image))
                found.append(Picture(square=pixels, channels=channels, part=part_of(those, pages, page),
                                     divided=divided, width=width, height=height, bits=bits))
        return found

    def _deep_jpeg(self) -> _DeepJpeg | None:
        """What a JPEG of more than 8 bits says of itself, which Pillow does not know; None for any other file."""
        if self._bytes(2) != b"\xff\xd8":
            return None
        start = self._bytes(_START)
        bits, size = stream_bits(start), stream_size(start)
        if bits is None or size is None or bits <= 8:
            return None
        return _DeepJpeg(bits, size, samples=stream_samples(start) or 1)

    def _bytes(self, number: int = -1) -> bytes:
        if self.content is not None:
            return self.content if number < 0 else self.content[:number]
        with self.path.open("rb") as file:
            return file.read(number)

    def _image(self) -> Image.Image:
        return Image.open(self.path if self.content is None else io.BytesIO(self.content), formats=_FORMATS)


@dataclass(frozen=True, slots=True)
class _DeepJpeg:
    """A JPEG whose values have more than 8 bits, 12 as a rule: medical devices write such."""

    bits: int
    size: tuple[int, int]
    """(width, height)."""
    samples: int
    """Values of a pixel."""

    def picture(self, content: bytes, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> Picture:
        """Raises: UnusableError; BadData when the decoder is not installed."""
        width, height = self.size
        if width * height > most_pixels():
            raise UnusableError(f"{width} x {height} pixels are too many (limit {most_pixels()}); scale it down")
        if self.samples not in (1, 3):
            raise UnusableError(f"it is a JPEG of {self.bits} bits and {self.samples} colours, which is not read; save"
                                " it as PNG")
        decoder = needed("libjpeg", JPEG, what=f"JPEG files of {self.bits} bits")
        silence("libjpeg")
        try:
            if _END_OF_IMAGE not in content:  # the library fills up what is missing
                raise ValueError("cut off")
            values = decoder.decode(content)
        except Exception:  # the library on bytes of any kind
            raise UnusableError(f"it is a JPEG of {self.bits} bits that is damaged, cut off, or compressed in a way"
                                " that is not read; save it as PNG") from None
        if values.shape[:2] != (height, width):
            raise UnusableError("its pixels are not as many as its header says")
        shown, divided = eight_bits(values, reading=reading, ranges=ranges)
        return Picture(square=fitted(Image.fromarray(shown), form), channels=1 if self.samples == 1 else 3,
                       divided=divided, width=width, height=height, bits=self.bits)


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I")


def _bits(image: Image.Image) -> int:
    if image.format == "PNG":  # of 16-bit colours Pillow keeps 8; the file's own word is in the header's 25th byte
        file = getattr(image, "fp", None)
        if file is not None:
            offset = file.tell()
            file.seek(24)
            depth = file.read(1)
            file.seek(offset)
            if depth == bytes([_DEEP_PNG]):
                return _DEEP_PNG
    if image.format == "TIFF" and has_deep_colours(image):
        return 16
    if image.mode == "1":
        return 1
    return 16 if image.mode.startswith("I;16") else 32 if image.mode in ("I", "F") else 8
