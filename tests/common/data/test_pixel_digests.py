"""The same pixels have the same digest, and no others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semisilo.common.data import pixel_digests as module
from semisilo.common.data.image_set import ImageSet
from semisilo.common.data.pixel_digests import pixel_digests


def test_digests_hang_on_pixels_alone_and_not_on_the_block_that_they_are_read_in(monkeypatch: pytest.MonkeyPatch
                                                                                 ) -> None:
    many = ImageSet(torch.from_numpy(np.random.default_rng(1).integers(0, 256, (7, 3, 5, 5), dtype=np.uint8)), None,
                    tuple("abcdefg"))
    whole = pixel_digests(many)
    assert len(set(whole)) == 7
    monkeypatch.setattr(module, "_BLOCK", 2)
    assert pixel_digests(many) == whole
    assert pixel_digests(many.subset([4])) == whole[4:5]
