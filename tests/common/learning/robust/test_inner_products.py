"""Inner products and distances against torch on whole vectors."""

from __future__ import annotations

import torch

from semisilo.common.learning.robust.inner_products import inner_products, squared_distances


def test_blocks_give_the_products_and_distances_of_whole_vectors() -> None:
    updates_ND = torch.randn(6, 101, generator=torch.Generator().manual_seed(1))
    products_NN = inner_products(updates_ND.split(13, dim=1))
    torch.testing.assert_close(products_NN, updates_ND.double() @ updates_ND.double().T)
    torch.testing.assert_close(squared_distances(products_NN), torch.cdist(updates_ND.double(), updates_ND.double())**2)


def test_equal_updates_have_no_distance_and_none_is_negative() -> None:
    updates_ND = (1e6 * torch.randn(1, 50, generator=torch.Generator().manual_seed(2))).repeat(4, 1)
    updates_ND[3] *= 1 + 1e-7
    distances_NN = squared_distances(inner_products([updates_ND]))
    assert bool((distances_NN >= 0).all())
    assert distances_NN[0, 1] == 0
