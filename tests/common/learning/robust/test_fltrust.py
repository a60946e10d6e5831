"""FLTrust against its algorithm on whole vectors."""

from __future__ import annotations

import pytest
import torch

from semisilo.common.learning.robust.fltrust import trust_weights


def test_it_is_the_mean_of_rescaled_updates_by_their_rectified_cosine() -> None:
    generator = torch.Generator().manual_seed(1)
    own_D = torch.randn(20, generator=generator, dtype=torch.float64)
    updates_ND = torch.randn(6, 20, generator=generator, dtype=torch.float64) + 0.3 * own_D
    updates_ND[2] *= 1000
    updates_ND[4] = -updates_ND[4].abs() * own_D.sign()
    trust_N = torch.nn.functional.cosine_similarity(updates_ND, own_D[None], dim=1).clamp_min(0)
    rescaled_ND = updates_ND / updates_ND.norm(dim=1, keepdim=True) * own_D.norm()
    expected_D = (trust_N[:, None] * rescaled_ND).sum(dim=0) / trust_N.sum()
    weights = trust_weights((updates_ND @ own_D).tolist(), updates_ND.norm(dim=1).tolist(), float(own_D.norm()))
    torch.testing.assert_close(torch.tensor(weights, dtype=torch.float64) @ updates_ND, expected_D)
    assert weights[4] == 0


def test_where_nobody_points_its_way_nobody_counts() -> None:
    assert trust_weights([-1.0, 0.0], [1.0, 2.0], 3.0) == [0.0, 0.0]
    assert trust_weights([1.0, 1.0], [1.0, 2.0], 0.0) == [0.0, 0.0]
    assert trust_weights([0.0, 2.0], [0.0, 2.0], 1.0) == pytest.approx([0.0, 0.5])


def test_an_update_too_short_to_be_stretched_counts_nothing() -> None:
    """The factor was beyond float32, which ended the study of all."""
    assert trust_weights([1e-40, 1.0], [1e-40, 1.0], 1.0) == [0.0, 1.0]
    (weight,) = trust_weights([1e-25], [1e-25], 1.0)
    assert weight == pytest.approx(1e25)
