"""Multi-Krum: the mean of the updates that have the nearest neighbours.

Shapes: N updates.
Tests: tests/common/learning/robust/test_krum.py.
Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
descent", NeurIPS 2017, sections 4 and 5.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["fewest_updates", "krum_scores", "multi_krum"]


def fewest_updates(byzantine: int) -> int:
    """2 f + 3: how many updates Krum needs so that f of them may lie."""
    return 2 * byzantine + 3


def krum_scores(distances_NN: Tensor, byzantine: int) -> list[float]:
    """For each update the sum of the squared distances to its N - f - 2 nearest others; small is good.

    Args:
        distances_NN: squared, float64, 0 on the diagonal.
        byzantine: f, with N >= 2 f + 3.
    """
    count = distances_NN.shape[0]
    assert count >= fewest_updates(byzantine)
    nearest_NN = distances_NN.sort(dim=1).values  # the first is the update itself
    return [float(score) for score in nearest_NN[:, 1:count - byzantine - 1].sum(dim=1)]


def multi_krum(distances_NN: Tensor, byzantine: int) -> list[int]:
    """The N - f updates of the smallest scores, in rising order of their index; of equal scores the first.

    Args: as `krum_scores`.
    """
    scores_N = krum_scores(distances_NN, byzantine)
    best = sorted(range(len(scores_N)), key=lambda index: (scores_N[index], index))
    return sorted(best[:len(scores_N) - byzantine])
