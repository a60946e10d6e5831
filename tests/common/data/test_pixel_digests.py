"""The same pixels have the same digest, and no others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semisilo.common.data import pixel_digests as module
from semisilo.common.data.image_set import ImageSet
from semisilo.common.data.pixel_digests import pixel_digests, telling_digests


def test_digests_hang_on_pixels_alone_and_not_on_the_block_that_they_are_read_in(monkeypatch: pytest.MonkeyPatch
                                                                                 ) -> None:
    many = ImageSet(torch.from_numpy(np.random.default_rng(1).integers(0, 256, (7, 3, 5, 5), dtype=np.uint8)), None,
                    tuple("abcdefg"))
    whole = pixel_digests(many)
    assert len(set(whole)) == 7
    monkeypatch.setattr(module, "_BLOCK", 2)
    assert pixel_digests(many) == whole
    assert pixel_digests(many.subset([4])) == whole[4:5]


def test_plain_images_of_one_value_or_colour_have_no_digest_that_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.zeros((5, 3, 4, 4), dtype=torch.uint8)
    pixels[1] = 255
    pixels[2] = torch.tensor([200, 0, 30], dtype=torch.uint8)[:, None, None]
    pixels[3, 2, 3, 3] = 1
    images = ImageSet(pixels, None, tuple("abcde"))
    whole = pixel_digests(images)
    monkeypatch.setattr(module, "_BLOCK", 2)
    assert telling_digests(images, whole) == [b"", b"", b"", whole[3], b""]
