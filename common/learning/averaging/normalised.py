"""Local steps of different numbers without bias, gradients without drift: pure functions on numbers and named tensors.

A silo k that took tau_k steps of plain SGD with learning rate lr has moved by -lr * tau_k * Delta_k, where Delta_k is
the mean of the gradients it followed. Normalised averaging weighs these means, not the distances:

    w_{t+1} = w_t - lr * tau_bar * sum_k p_k Delta_k,      tau_bar = sum_k p_k tau_k                          (Eq. 14)

What a silo followed is its own gradient plus a correction d_k. The paper's rule for d_k (Eq. 15) and VRL-SGD's,

    d_k + (w_t - w_{t+1}) / (lr tau_bar) - (w_t - w_k) / (lr tau_k)      and      d_k - (w_{t+1} - w_k) / (lr tau_k),

are defined while every silo takes part. Both are differences of *control variates*:
with c_k the mean raw gradient of silo k's last round, and s_k = 1 (Fed-SHVR) or tau_k (VRL-SGD),

    C = sum_k p_k s_k c_k / sum_k p_k,      d_k = C / s_k - c_k,      hence sum_k p_k s_k d_k = 0,

and in this form (`correction`, `next_control`, `control_increment`) they are defined whoever takes part. Fed-SHVR uses
this one; its tests hold it against the two others.

Sources: Fed-SHVR, Wang et al. (2021) Eq. 14 and 15; FedNova, Wang et al. (NeurIPS 2020); VRL-SGD, Liang et al. (2019);
the form for partial participation after SCAFFOLD, Karimireddy et al. (ICML 2020), option II.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from semisilo.common.learning import tensors

__all__ = ["control_increment", "correction", "effective_steps", "local_steps", "mean_gradient", "mean_steps",
           "next_control", "normalised_factors"]


def local_steps(num_labelled: int, num_unlabelled: int, *, epochs: int, labelled_batch: int,
                unlabelled_batch: int) -> int:
    """tau_k = max(1, floor(E M_k / B_u), floor(E N_k / B_l)); oracle V5.

    Args:
        num_labelled, num_unlabelled: N_k and M_k.
    Source: Fed-SHVR section IV; rounding down is what its own 371 shows, the 1 is ours.
    """
    return max(1, epochs * num_unlabelled // unlabelled_batch, epochs * num_labelled // labelled_batch)


def mean_steps(weights: Sequence[float], steps: Sequence[float]) -> float:
    """tau_bar = sum p_k tau_k; oracle V5. The weights need not sum to 1, but not to 0."""
    return sum(weight * count for weight, count in zip(weights, steps, strict=True)) / sum(weights)


def effective_steps(steps: int, *, momentum: float) -> float:
    """||a_k||_1 = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho): by how many gradients tau steps with momentum rho
    have moved, starting from no momentum; tau itself for rho = 0.

    With buf = rho buf + g the gradient of step i acts in all later ones: 1 + rho + ... + rho^(tau - i) times.
    Source: FedNova, Wang et al. (NeurIPS 2020) section 4, proximal and momentum variants.
    """
    return (steps - momentum * (1.0 - momentum**steps) / (1.0 - momentum)) / (1.0 - momentum)


def normalised_factors(weights: Sequence[float], steps: Sequence[float], *,
                       counted: Sequence[float] | None = None) -> list[float]:
    """p_k tau_bar / tau_k: what each difference w_k - w_t is multiplied by to get w_{t+1} - w_t. Oracle V8.

    With equal steps these are exactly the weights, over their sum.

    Args:
        weights: whole numbers (of examples) or shares, not negative; they need not sum to 1, but not to 0.
        steps: tau_k >= 1; whole numbers, or FedNova's for steps with momentum.
        counted: what tau_bar is the mean of, where some tau_k are not to stretch it for all; None for `steps`.
    Source: Fed-SHVR Eq. 14; FedNova Eq. 6.
    """
    total = sum(weights)
    together = sum(weight * count for weight, count in zip(weights, steps if counted is None else counted, strict=True))
    return [weight / total * (together / (total * count)) for weight, count in zip(weights, steps, strict=True)]


def mean_gradient(difference: Mapping[str, Tensor], *, lr: float, steps: float) -> dict[str, Tensor]:
    """Delta_k = (w_t - w_k) / (lr tau_k), float64: the mean of what the silo followed, corrections included. Oracle V8.

    Args:
        difference: w_k - w_t.
    """
    return {name: tensor.double() / -(lr * steps) for name, tensor in difference.items()}


def correction(mean_control: Mapping[str, Tensor], control: Mapping[str, Tensor], *, share: int = 1
               ) -> dict[str, Tensor]:
    """d_k = C / s_k - c_k, in the type of C: what is added to every gradient of the silo.

    c_k is rounded to that type first, so that a silo which is alone, whose C is its own c_k, gets exactly 0.

    Args:
        mean_control: C as the silo received it.
        control: c_k, of the same names and shapes, of any float type.
        share: s_k, 1 or tau_k.
    """
    return {name: mean / share - control[name].to(mean.dtype) for name, mean in mean_control.items()}


def next_control(followed: Mapping[str, Tensor], mean_control: Mapping[str, Tensor] | None,
                 control: Mapping[str, Tensor] | None, *, share: int = 1) -> dict[str, Tensor]:
    """The silo's mean raw gradient after a round, float64: c_k + Delta_k - C / s_k; Delta_k where d_k was 0.

    Adding to the old value what the coordinator adds to its sum (`control_increment`), instead of taking d_k off
    Delta_k, keeps the two in step: the rounding of d_k does not pile up over the rounds.

    Args:
        followed: Delta_k, float64.
        mean_control, control: C and c_k that d_k was made of; both None where d_k was 0.
    """
    if mean_control is None or control is None:
        return dict(followed)
    return {name: control[name].double() + tensor - mean_control[name].double() / share
            for name, tensor in followed.items()}


def control_increment(followed: Mapping[str, Tensor], mean_control: Mapping[str, Tensor] | None, *, share: int = 1
                      ) -> dict[str, Tensor]:
    """s_k (c_k_new - c_k), float64, without knowing c_k: s_k Delta_k - C; s_k Delta_k for a silo new to the sum.

    Args:
        followed: Delta_k, float64.
        mean_control: C as it was sent; None where d_k was 0.
    """
    grown = tensors.scale(followed, float(share))
    if mean_control is None:
        return grown
    return {name: tensor - mean_control[name].to(torch.float64) for name, tensor in grown.items()}
