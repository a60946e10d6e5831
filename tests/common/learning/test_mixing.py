"""FedMix's equations against the specification's oracles and plain references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning.mixing import LabelRule, fedmix_client_loss, fedmix_mix, fedmix_pseudo, mean_over_views
from semisilo.common.learning.tensors import digest
from tests.each_of import each_of

X5 = {"mix_alpha": 0.5, "mix_beta": 0.3, "mix_gamma": 0.2}
X6 = torch.tensor([[[0.75, 0.25], [0.6, 0.4]], [[0.875, 0.125], [0.3, 0.7]], [[0.625, 0.375], [0.9, 0.1]],
                   [[0.75, 0.25], [0.5, 0.5]], [[0.75, 0.25], [0.8, 0.2]]])


def _vector(*values: float, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=dtype)}


def test_oracle_x5_mixing_and_solving_back() -> None:
    """What a silo of the paper infers: sigma = (w_next - alpha psi - gamma w) / beta."""
    psi, sigma, w = _vector(1.0, 2.0), _vector(0.0, -1.0), _vector(0.5, 0.5)
    mixed = fedmix_mix(psi, sigma, w, **X5)
    assert mixed["w"].tolist() == pytest.approx([0.6, 0.8], abs=1e-5)
    assert ((mixed["w"] - 0.5 * psi["w"] - 0.2 * w["w"]) / 0.3).tolist() == pytest.approx([0.0, -1.0], abs=1e-5)


@each_of(("weights", "kept"), [((0.0, 0.0, 1.0), "w"), ((0.0, 1.0, 0.0), "sigma"),
                               ((1.0, 0.0, 0.0), "psi")])
def test_a_whole_share_keeps_the_bits_of_that_model(weights: tuple[float, float, float], kept: str) -> None:
    """Signed zeros and huge numbers of the other models must leave no trace."""
    models = {"psi": _vector(1e38, -3.0, 0.1, dtype=torch.float32), "sigma": _vector(-1e38, 0.0, 7.0,
                                                                                 dtype=torch.float32),
              "w": _vector(-0.0, 0.3, 1e-42, dtype=torch.float32)}
    alpha, beta, gamma = weights
    mixed = fedmix_mix(models["psi"], models["sigma"], models["w"], mix_alpha=alpha, mix_beta=beta, mix_gamma=gamma)
    assert digest(mixed) == digest(models[kept])
    assert mixed["w"].data_ptr() != models[kept]["w"].data_ptr()


def test_mixing_leaves_its_models_as_they_were_and_refuses_foreign_ones() -> None:
    psi, sigma, w = _vector(1.0), _vector(2.0), _vector(3.0)
    fedmix_mix(psi, sigma, w, **X5)
    assert (float(psi["w"]), float(sigma["w"]), float(w["w"])) == (1.0, 2.0, 3.0)
    with pytest.raises(LayoutMismatch, match="'w' has shape 2"):
        fedmix_mix(psi, _vector(1.0, 2.0), w, **X5)


@pytest.mark.parametrize("rule", ["mean", "vote"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_oracle_x6_labels_from_five_views(rule: LabelRule, dtype: torch.dtype) -> None:
    """The first image stands exactly at the threshold and is kept, the second is dropped."""
    found = fedmix_pseudo(X6.to(dtype), 0.75, rule=rule)
    assert mean_over_views(X6.to(dtype)).flatten().tolist() == pytest.approx([0.75, 0.25, 0.62, 0.38], abs=1e-5)
    assert found.max_prob_B.tolist() == pytest.approx([0.75, 0.62], abs=1e-5)
    assert [label if kept else None for label, kept in zip(found.hard_label_B.tolist(), found.keep_B.tolist(),
                                                           strict=True)] == [0, None]


def test_a_vote_may_differ_from_the_mean_and_is_as_confident_as_the_class_that_won() -> None:
    """Mean (0.6, 0.4); two of three views say class 1."""
    views_ABK = torch.tensor([[[0.9, 0.1]], [[0.45, 0.55]], [[0.45, 0.55]]])
    mean, vote = (fedmix_pseudo(views_ABK, 0.5, rule=rule) for rule in ("mean", "vote"))
    assert (mean.hard_label_B.tolist(), mean.keep_B.tolist()) == ([0], [True])
    assert (vote.hard_label_B.tolist(), vote.keep_B.tolist()) == ([1], [False])
    assert float(vote.max_prob_B) == pytest.approx(0.4, abs=1e-6)


def test_ties_go_to_the_lowest_class_under_both_rules() -> None:
    views_ABK = torch.tensor([[[0.1, 0.6, 0.3]], [[0.1, 0.3, 0.6]]])
    for rule in ("mean", "vote"):
        assert fedmix_pseudo(views_ABK, 0.0, rule=rule).hard_label_B.tolist() == [1]


def test_above_three_quarters_both_rules_keep_the_same_labels() -> None:
    """If p_bar_c > 3/4, fewer than half of the views can have another winner. Control: at 0.5 the rules differ."""
    generator = torch.Generator().manual_seed(0)
    logits_ABK = 3 * torch.randn(5, 20_000, 4, generator=generator)
    prob_ABK = torch.softmax(logits_ABK + 3 * torch.randn(1, 20_000, 4, generator=generator), dim=-1)
    differ = {}
    for threshold in (0.5, 0.7501):
        mean, vote = (fedmix_pseudo(prob_ABK, threshold, rule=rule) for rule in ("mean", "vote"))
        assert bool(mean.keep_B.any())
        differ[threshold] = bool((mean.keep_B != vote.keep_B).any())
        both_B = mean.keep_B & vote.keep_B
        assert torch.equal(mean.hard_label_B[both_B], vote.hard_label_B[both_B])
    assert differ == {0.5: True, 0.7501: False}


def test_one_view_is_the_plain_pseudo_label_and_nan_is_never_kept() -> None:
    found = fedmix_pseudo(torch.tensor([[[0.2, 0.8], [float("nan"), float("nan")]]]), 0.0)
    assert found.hard_label_B.tolist()[0] == 1
    assert found.keep_B.tolist() == [True, False]


def _x7(keep: list[bool], logits: Tensor | None, **changes: float) -> tuple[float, float, float, float]:
    weights = {"lambda_1": 0.01, "lambda_2": 10.0, "lambda_l1": 1e-5, **changes}
    found = fedmix_client_loss(logits, torch.tensor([0, 1]), torch.tensor(keep), psi=_vector(0.1, 0.3),
                               sigma=_vector(0.5, -0.2), **weights)
    return float(found.ce), float(found.l2), float(found.l1), float(found.loss)


X7_LOGITS = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)


def test_oracle_x7_loss_of_a_silo() -> None:
    assert _x7([True, False], X7_LOGITS) == pytest.approx((0.313262, 0.41, 0.4, 4.103137), abs=1e-5)


def test_the_mean_is_over_the_kept_images() -> None:
    """log(1 + e^-1) and log(1 + e^-3), halved; one dropped image changes nothing for the other."""
    ce = (0.3132617 + 0.0485874) / 2
    assert _x7([True, True], X7_LOGITS)[0] == pytest.approx(ce, abs=1e-6)


@pytest.mark.parametrize("logits", [None, X7_LOGITS])
def test_when_nothing_is_kept_the_penalties_act_alone(logits: Tensor | None) -> None:
    assert _x7([False, False], logits) == pytest.approx((0.0, 0.41, 0.4, 10 * 0.41 + 1e-5 * 0.4), abs=1e-9)


def test_the_gradient_pulls_psi_to_sigma_and_to_zero() -> None:
    """d/dpsi = 2 lambda_2 (psi - sigma) + lambda_l1 sign(psi), nothing for sigma."""
    psi = torch.tensor([0.1, -0.3, 0.0], dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.5, -0.2, 0.0], dtype=torch.float64)
    found = fedmix_client_loss(None, torch.zeros(1, dtype=torch.int64), torch.tensor([False]), psi={"w": psi},
                               sigma={"w": sigma}, lambda_1=1.0, lambda_2=3.0, lambda_l1=0.5)
    found.loss.backward()  # type: ignore[no-untyped-call]
    assert psi.grad is not None
    assert psi.grad.tolist() == pytest.approx([6 * -0.4 + 0.5, 6 * -0.1 - 0.5, 0.0], abs=1e-12)
