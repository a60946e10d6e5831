"""Patched views: every place once with every filling, and nothing else is changed."""

from __future__ import annotations

import torch

from semisilo.common.learning.robust.patches import FILLINGS, GRID, patched_views
from tests.each_of import each_of


@each_of(("side", "channels"), [(8, 1), (28, 3), (5, 1)])
def test_each_view_changes_one_square_of_a_quarter_of_the_side(side: int, channels: int) -> None:
    images_NCHW = torch.full((2, channels, side, side), 100, dtype=torch.uint8)
    views = list(patched_views(images_NCHW, torch.Generator().manual_seed(1)))
    assert len(views) == GRID * GRID * len(FILLINGS)
    assert bool((images_NCHW == 100).all())
    places = set()
    for index, view_NCHW in enumerate(views):
        changed = (view_NCHW != 100).nonzero()
        assert len(changed) == 2 * channels * (side // GRID) ** 2
        places.add((int(changed[:, 2].min()), int(changed[:, 3].min())))
        values = set(view_NCHW[view_NCHW != 100].tolist())
        assert values <= {"bright": {255}, "dark": {0}, "noise": {0, 255}}[FILLINGS[index % len(FILLINGS)]]
    assert len(places) == GRID * GRID
