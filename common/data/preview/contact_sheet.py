"""A contact sheet: pictures of a source in a grid, class by class, as the network would see them.

Shapes: C channels, S side of a square.

Tests: tests/common/data/preview/test_preview.py.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from semisilo.common.data.preview.preview import Tile

__all__ = ["contact_sheet"]

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
_COLUMNS = 8
_SMALLEST, _LARGEST = 64, 160
"""Sides of a picture on the sheet, in pixels."""
_MOST_NAMES = 200
_GAP, _TEXT = 6, 18
_PAPER, _INK, _FAINT = (255, 255, 255), (20, 20, 20), (120, 120, 120)


def contact_sheet(tiles: Sequence[Tile], *, title: str, counts: Mapping[str, int], unlabelled: int) -> bytes:
    """A PNG with the pictures of each class under its name and count.

    Args:
        tiles: in any order of classes.
        counts: images of each class, in the order of the sheet; those without a picture are named too, of a few
            classes.
        unlabelled: images without a class; their pictures come last.
    """
    side = _side(tiles)
    names = [*counts, *([""] if unlabelled or any(not tile.class_name for tile in tiles) else [])]
    if len(names) > _MOST_NAMES:  # a picture must be one that can be opened
        shown = {tile.class_name for tile in tiles}
        names = [name for name in names if name in shown]
    groups = [(name, [tile for tile in tiles if tile.class_name == name]) for name in names]
    rows = sum(-(-len(group) // _COLUMNS) for _, group in groups)
    width = _COLUMNS * (side + _GAP) + _GAP
    sheet = Image.new("RGB", (width, (_TEXT + _GAP) * (len(groups) + 1) + rows * (side + _GAP) + 2 * _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=13)
    _write(draw, (_GAP, _GAP), title, font, _FAINT, width)
    y = _TEXT + 2 * _GAP
    for name, group in groups:
        count = counts.get(name, 0) if name else unlabelled
        _write(draw, (_GAP, y), f"{name or 'unlabelled'} ({count})", font, _INK, width)
        y += _TEXT
        for index, tile in enumerate(group):
            column, row = index % _COLUMNS, index // _COLUMNS
            sheet.paste(_scaled(tile, side), (_GAP + column * (side + _GAP), y + row * (side + _GAP)))
        y += -(-len(group) // _COLUMNS) * (side + _GAP) + _GAP
    written = io.BytesIO()
    sheet.save(written, "PNG")
    return written.getvalue()


def _side(tiles: Sequence[Tile]) -> int:
    side = max((tile.square.shape[-1] for tile in tiles), default=_SMALLEST)
    while side < _SMALLEST:
        side *= 2
    return min(side, _LARGEST)


def _scaled(tile: Tile, side: int) -> Image.Image:
    """Larger by whole pixels, so that it is seen as it is; smaller smoothly."""
    pixels = tile.square[0] if tile.square.shape[0] == 1 else np.moveaxis(tile.square, 0, 2)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    way = Image.Resampling.NEAREST if image.width < side else Image.Resampling.BILINEAR
    return image.resize((side, side), way).convert("RGB")


def _write(draw: ImageDraw.ImageDraw, position: tuple[int, int], text: str, font: _Font, colour: tuple[int, int, int],
           width: int) -> None:
    """Text on one line, cut off where the sheet ends."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:200])
    while shown and draw.textlength(shown, font=font) > width - 2 * _GAP:
        shown = f"{shown[:-2]}…" if len(shown) > 2 else ""
    draw.text(position, shown, font=font, fill=colour)
