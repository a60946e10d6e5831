"""FedMatch in equations: pseudo-labels by vote, inter-client consistency, and what keeps psi sparse and near sigma.

Shapes: B images in a batch, K classes, H helpers (frozen models of other silos).
Source: FedMatch, Jeong et al., arXiv 2006.12097 (v1) and ICLR 2021 (v3) section 3, with the official code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from semisilo.common.learning.losses import first_argmax, reaches
from semisilo.common.learning.tensors import check_same_layout

__all__ = ["AgreementVotes", "ConsistencyLoss", "OverHelpers", "PsiRegulariser", "TieBreak", "agreement_votes",
           "iccs_kl", "psi_regulariser", "soft_threshold_"]

TieBreak = Literal["lowest_index", "local_first"]
"""Which class wins among those with equally many votes: the lowest, as in the official code, or the local model's if it
is one of them, else the lowest."""
OverHelpers = Literal["sum", "mean"]


@dataclass(frozen=True, slots=True)
class AgreementVotes:
    """Pseudo-labels of a batch."""

    keep_B: Tensor
    """Whether the local model is confident; the helpers have no say in it. bool (B,)."""
    votes_BK: Tensor
    """Votes by class, local model and helpers alike; their dtype is that of the probabilities."""
    pseudo_label_B: Tensor
    """The class with most votes, also of images that are not kept. int64 (B,)."""


@dataclass(frozen=True, slots=True)
class ConsistencyLoss:
    """The inter-client term of a batch."""

    loss: Tensor
    """Sum or mean of `per_helper_H`; 0 without helpers. Scalar ()."""
    per_helper_H: Tensor
    """Mean KL(p_hj || p) over the batch for every helper, (H,)."""


@dataclass(frozen=True, slots=True)
class PsiRegulariser:
    """What acts on psi in every step, kept images or none."""

    loss: Tensor
    """Scalar ()."""
    l2: Tensor
    """||sigma - psi||^2 before its weight, a sum over all elements; 0 where its weight is."""
    l1: Tensor
    """||psi||_1 before its weight, likewise."""


def agreement_votes(local_prob_BK: Tensor, helper_probs: Sequence[Tensor], confidence_threshold: float | Tensor, *,
                    tie_break: TieBreak = "lowest_index") -> AgreementVotes:
    """votes = onehot(argmax p) + sum_j onehot(argmax p_hj); label = argmax votes. Oracles M1 and M2.

    Args:
        local_prob_BK: p, class probabilities of the silo's own model.
        helper_probs: p_hj of every helper, each (B, K); may be empty: then the label is the local model's.
        confidence_threshold: an image is kept when max p is at least this, or its class's, (K,). A row of NaN is
            not kept.
    """
    classes = local_prob_BK.shape[-1]
    local_B = first_argmax(local_prob_BK)
    votes_BK = functional.one_hot(local_B, classes).to(local_prob_BK.dtype)
    for prob_BK in helper_probs:
        votes_BK = votes_BK + functional.one_hot(first_argmax(prob_BK), classes).to(votes_BK.dtype)
    label_B = first_argmax(votes_BK)
    if tie_break == "local_first":
        tied_B = votes_BK.gather(1, local_B[:, None]).squeeze(1) == votes_BK.amax(dim=1)
        label_B = torch.where(tied_B, local_B, label_B)
    return AgreementVotes(reaches(local_prob_BK.amax(dim=-1), local_B, confidence_threshold), votes_BK, label_B)


def iccs_kl(local_log_prob_BK: Tensor, helper_probs: Sequence[Tensor], *,
            over_helpers: OverHelpers = "mean") -> ConsistencyLoss:
    """R_j mean_b KL(p_hj(b) || p(b)), R the sum (v1) or the mean (v3) over helpers; oracles M3 and M3b.

    Args:
        local_log_prob_BK: log p, with gradient; the kept images only.
        helper_probs: p_hj of the same images, (B, K) each, without gradient. A probability of 0 contributes 0.
    """
    zero = local_log_prob_BK.new_zeros(())
    if not helper_probs:
        return ConsistencyLoss(zero, local_log_prob_BK.new_zeros(0))
    per_helper_H = torch.stack([
        (torch.xlogy(prob_BK, prob_BK) - prob_BK * local_log_prob_BK).sum(dim=-1).mean() for prob_BK in helper_probs])
    return ConsistencyLoss(per_helper_H.sum() if over_helpers == "sum" else per_helper_H.mean(), per_helper_H)


def psi_regulariser(sigma: Mapping[str, Tensor], psi: Mapping[str, Tensor], *, lambda_l2: float,
                    lambda_l1: float) -> PsiRegulariser:
    """lambda_l2 * ||sigma - psi||^2 + lambda_l1 * ||psi||_1; oracle M6.

    Args:
        sigma: what psi is pulled to; detached by the caller. Same layout and device.
        lambda_l2, lambda_l1: at least 0; a term of weight 0 is not computed, since each reads every parameter.
    Returns: sums over all elements: neither means nor square roots. The gradient of |x| at 0 is 0.
    Raises: LayoutMismatch.
    """
    check_same_layout(sigma, psi)
    zero = next(iter(psi.values())).new_zeros(())
    l2 = sum(((sigma[name] - psi[name]).square().sum() for name in psi), start=zero) if lambda_l2 else zero
    l1 = sum((psi[name].abs().sum() for name in psi), start=zero) if lambda_l1 else zero
    return PsiRegulariser(lambda_l2 * l2 + lambda_l1 * l1, l2, l1)


def soft_threshold_(parameters: Iterable[Tensor], width: float) -> None:
    """sign(x) * max(|x| - width, 0), in place: the proximal step of width * ||x||_1, which makes exact zeros.

    Args:
        parameters: changed without gradient.
        width: lr * lambda_l1, at least 0.
    Source: ISTA, Daubechies et al. 2004; in FedMatch ours (`l1_update = "proximal"`).
    """
    with torch.no_grad():
        for parameter in parameters:
            parameter.sub_(parameter.clamp(-width, width))
