"""FedMatch's equations: votes, inter-client consistency, the regulariser of psi and its proximal step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning.agreement import agreement_votes, iccs_kl, psi_regulariser, soft_threshold_


def _t(values: list[object]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_oracle_m1_votes_with_two_helpers_and_the_lowest_index_in_a_tie() -> None:
    local = _t([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.4, 0.35, 0.25], [0.05, 0.15, 0.8], [0.1, 0.1, 0.8]])
    helpers = [_t([[0.2, 0.7, 0.1], [0.3, 0.4, 0.3], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.5, 0.2, 0.3]]),
               _t([[0.1, 0.6, 0.3], [0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1], [0.6, 0.2, 0.2]])]
    found = agreement_votes(local, helpers, 0.75)
    assert found.keep_B.tolist() == [True, True, False, True, True]
    assert found.votes_BK.tolist() == [[1, 2, 0], [1, 2, 0], [1, 2, 0], [1, 1, 1], [2, 0, 1]]
    assert found.pseudo_label_B[found.keep_B].tolist() == [1, 1, 0, 0]


def test_oracle_m2_a_tie_goes_to_the_local_model() -> None:
    local = _t([[0.05, 0.15, 0.8], [0.75, 0.15, 0.1]])
    helpers = [_t([[0.1, 0.8, 0.1], [0.1, 0.8, 0.1]]), _t([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])]
    found = agreement_votes(local, helpers, 0.75, tie_break="local_first")
    assert found.keep_B.tolist() == [True, True]
    assert found.votes_BK.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert found.pseudo_label_B.tolist() == [2, 0]


def test_local_first_yields_to_a_majority_and_to_a_tie_that_it_is_not_in() -> None:
    """Local says 3. Helpers say (1, 1): class 1 wins. Helpers say (2, 2, 1, 1): 1 and 2 are tied, the lower wins."""
    def says(*classes: int) -> list[Tensor]:
        return [torch.nn.functional.one_hot(torch.tensor([label]), 4).double() for label in classes]

    local, = says(3)
    assert agreement_votes(local, says(1, 1), 0.5, tie_break="local_first").pseudo_label_B.tolist() == [1]
    assert agreement_votes(local, says(2, 2, 1, 1), 0.5, tie_break="local_first").pseudo_label_B.tolist() == [1]


@pytest.mark.parametrize("tie_break", ["lowest_index", "local_first"])
def test_without_helpers_the_local_model_votes_alone(tie_break: str) -> None:
    found = agreement_votes(_t([[0.2, 0.8], [0.5, 0.5]]), [], 0.75, tie_break=tie_break)  # type: ignore[arg-type]
    assert found.pseudo_label_B.tolist() == [1, 0]
    assert found.keep_B.tolist() == [True, False]


def test_a_row_of_nan_is_not_kept() -> None:
    assert agreement_votes(_t([[float("nan")] * 2]), [], 0.0).keep_B.tolist() == [False]


LOCAL = [[0.5, 0.5], [0.8, 0.2]]
HELPERS = [[[0.7, 0.3], [0.8, 0.2]], [[0.5, 0.5], [0.4, 0.6]]]


@pytest.mark.parametrize(("over_helpers", "expected"), [("mean", 0.116048), ("sum", 0.232096)])
def test_oracles_m3_and_m3b_inter_client_consistency(over_helpers: str, expected: float) -> None:
    found = iccs_kl(_t(LOCAL).log(), [_t(helper) for helper in HELPERS],
                    over_helpers=over_helpers)  # type: ignore[arg-type]
    assert found.per_helper_H.tolist() == pytest.approx([0.041141, 0.190954], abs=1e-5)
    assert float(found.loss) == pytest.approx(expected, abs=1e-5)


def test_consistency_pulls_the_local_model_towards_the_mean_of_the_helpers() -> None:
    """d/dz of sum_j KL(p_hj || softmax z) = sum_j (p - p_hj), here for one image."""
    logits = _t([[0.3, -0.4, 0.1]]).requires_grad_()
    helpers = [_t([[0.7, 0.2, 0.1]]), _t([[0.0, 0.5, 0.5]])]
    iccs_kl(torch.log_softmax(logits, dim=-1), helpers, over_helpers="sum").loss.backward()
    p = torch.softmax(logits.detach(), dim=-1)
    assert logits.grad is not None
    assert torch.allclose(logits.grad, 2 * p - helpers[0] - helpers[1])


def test_without_helpers_there_is_no_consistency_term() -> None:
    found = iccs_kl(_t(LOCAL).log(), [])
    assert float(found.loss) == 0.0
    assert found.per_helper_H.tolist() == []


def test_oracle_m6_regulariser_and_one_step() -> None:
    sigma, psi = {"w": _t([0.5, -0.2, 0.0])}, {"w": _t([0.1, 0.3, -0.4]).requires_grad_()}
    found = psi_regulariser(sigma, psi, lambda_l2=10.0, lambda_l1=1e-4)
    found.loss.backward()
    assert float(found.loss.detach()) == pytest.approx(5.70008, abs=1e-5)
    assert psi["w"].grad is not None
    assert psi["w"].grad.tolist() == pytest.approx([-7.9999, 10.0001, -8.0001], abs=1e-5)
    assert (psi["w"].detach() - 0.001 * psi["w"].grad).tolist() == pytest.approx([0.108, 0.29, -0.392], abs=1e-5)


def test_a_weight_of_zero_leaves_its_term_out() -> None:
    sigma, psi = {"w": _t([1.0])}, {"w": _t([3.0]).requires_grad_()}
    assert psi_regulariser(sigma, psi, lambda_l2=2.0, lambda_l1=0.0).loss.item() == 8.0
    assert psi_regulariser(sigma, psi, lambda_l2=0.0, lambda_l1=2.0).loss.item() == 6.0
    assert not psi_regulariser(sigma, psi, lambda_l2=0.0, lambda_l1=0.0).loss.requires_grad


def test_the_regulariser_names_a_tensor_that_does_not_fit() -> None:
    with pytest.raises(LayoutMismatch, match="'w'"):
        psi_regulariser({"w": torch.zeros(2)}, {"w": torch.zeros(3)}, lambda_l2=1.0, lambda_l1=0.0)


def test_soft_thresholding_solves_its_own_minimisation() -> None:
    """argmin_x (x - v)^2 / 2 + width |x|, found by trying a fine grid."""
    grid = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    values = _t([-2.0, -0.5, -0.1, 0.0, 0.3, 0.5, 1.7])
    best = [float(grid[((grid - value).square() / 2 + 0.5 * grid.abs()).argmin()]) for value in values.tolist()]
    parameter, untouched = torch.nn.Parameter(values.clone()), torch.nn.Parameter(values.clone())
    soft_threshold_([parameter], 0.5)
    soft_threshold_([untouched], 0.0)
    assert parameter.tolist() == pytest.approx(best, abs=1e-3)
    assert parameter[1:6].tolist() == [0.0] * 5, "exact zeros"
    assert untouched.tolist() == values.tolist()
