"""Inner products of updates, and the distances that follow from them.

Shapes: N updates, B coordinates of a block.
Tests: tests/common/learning/robust/test_inner_products.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

__all__ = ["inner_products", "squared_distances"]


def inner_products(blocks_NB: Iterable[Tensor]) -> Tensor:
    """G_ij = <d_i, d_j>, float64 (N, N), summed over the blocks in their order.

    Args:
        blocks_NB: the same N updates in every block; at least one block.
    """
    total_NN: Tensor | None = None
    for block_NB in blocks_NB:
        wide_NB = block_NB.double()
        part_NN = wide_NB @ wide_NB.T
        total_NN = part_NN if total_NN is None else total_NN + part_NN
    assert total_NN is not None
    return total_NN


def squared_distances(products_NN: Tensor) -> Tensor:
    """||d_i - d_j||^2 = G_ii + G_jj - 2 G_ij, float64 (N, N), never below 0."""
    squares_N = products_NN.diagonal()
    return (squares_N[:, None] + squares_N[None, :] - 2 * products_NN).clamp_min(0).fill_diagonal_(0.0)
