"""Views of many steps at once: each image its own, drawn on the CPU in an order that follows from sizes alone."""

from __future__ import annotations

import torch

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings
from semisilo.silo.objectives.views import View, viewed

SMALL = AugmentationSettings(policy="small", horizontal_flip=True)


def _images(count: int = 30) -> torch.Tensor:
    return torch.randint(0, 256, (count, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def _viewed(*views: View, batches: list[list[int]],
            seed: int = 1) -> list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]:
    index = [torch.tensor(batch, dtype=torch.int64) for batch in batches]
    return list(viewed(_images(), index, views, batch=4, augmentation=SMALL,
                       generator=torch.Generator().manual_seed(seed), device="cpu"))


def test_originals_are_the_images_of_the_step() -> None:
    found = _viewed("original", batches=[[3, 1, 4, 1], [], [5, 9]])
    assert [index.tolist() for index, _ in found] == [[3, 1, 4, 1], [], [5, 9]]
    assert all(torch.equal(view, _images()[index]) for index, (view,) in found)


def test_views_are_drawn_one_kind_after_the_other_for_a_whole_block() -> None:
    """A plain reference: the block's images together, weak first, then strong, from one generator."""
    batches = [[3, 1, 4], [5, 9, 2, 6]]
    generator = torch.Generator().manual_seed(1)
    block = _images()[torch.tensor([3, 1, 4, 5, 9, 2, 6])]
    weak, strong = augment.weak(block, SMALL, generator), augment.strong(block, SMALL, generator)
    found = _viewed("weak", "strong", batches=batches)
    assert torch.equal(torch.cat([views[0] for _, views in found]), weak)
    assert torch.equal(torch.cat([views[1] for _, views in found]), strong)


def test_the_same_view_twice_is_two_draws() -> None:
    (_, (one, other)), = _viewed("weak", "weak", batches=[list(range(20))])
    assert not torch.equal(one, other)


def test_many_steps_are_cut_into_blocks_that_fit_memory() -> None:
    """1024 images are augmented at once: 256 steps of 4. The 257th step starts a block with draws of its own."""
    batches = [[index % 30] * 4 for index in range(300)]
    found = _viewed("weak", batches=batches)
    generator = torch.Generator().manual_seed(1)
    images = _images()[torch.tensor(batches).flatten()]
    expected = torch.cat([augment.weak(part, SMALL, generator) for part in torch.split(images, 1024)])
    assert torch.equal(torch.cat([view for _, (view,) in found]), expected)
