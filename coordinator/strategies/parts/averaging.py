"""Averaging of what silos return, one update at a time: weights, the running sum, the step of the server.

    w' = w + sum p_k (w_k - w)        p_k by a rule of `semisilo.coordinator.strategies.parts.weights`

Strategies average differences to what was sent, never models: float subtraction loses bits, so that w + (w_k - w) is
not w_k, and the coordinator has to go on from what it received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self, TypedDict

from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.methods.contract import Environment, GroupLayout, Meaning, TensorGroup, UpdateHeader
from semisilo.coordinator.strategies.parts.weights import FedFreqRule, Weighting, counted, weights_of

__all__ = ["AverageTally", "WeightLimits", "apply_global_momentum", "difference_to", "own_model", "weighed",
           "weight_limits"]


@dataclass(frozen=True, kw_only=True)
class AverageTally:
    """A training phase being folded: a weighted sum of what silos return."""

    weights: dict[str, float] = field(default_factory=dict)
    """p_k by silo, summing to 1 unless a method says otherwise; empty when no update was accepted."""
    delta: dict[str, Tensor] | None = None
    """sum p_k (w_k - w) so far, w what was sent; None before the first."""
    participation: dict[str, int] = field(default_factory=dict)
    """q_k: accepted updates of every silo, this phase's included."""
    settled: bool = False
    """Whether `delta` is what a rule made of all updates before they are folded: then these add nothing to it."""

    def plus(self, silo: str, returned: Mapping[str, Tensor], *, like: Mapping[str, Tensor]) -> Self:
        """With p_k times what one silo has returned.

        Args:
            like: gives names, shapes and types of the sum. Raises: LayoutMismatch where `returned` has others.
        """
        if self.settled:
            return self
        so_far = tensors.zeros_like(like) if self.delta is None else self.delta
        return replace(self, delta=tensors.add(so_far, returned, factor=self.weights[silo]))


class WeightLimits(TypedDict, total=False):
    """What `weights_of` and `capped_weights` are told."""

    largest_share: float
    together: int


def weight_limits(environment: Environment) -> WeightLimits:
    """How much one silo, or as many as may lie, weigh in a study at most."""
    return {"largest_share": environment.largest_weight, "together": environment.robust.capped_together}


def weighed(rule: Weighting, headers: tuple[UpdateHeader, ...], participation: Mapping[str, int],
            fedfreq_rule: FedFreqRule = "share", *, environment: Environment | None = None) -> AverageTally:
    """The tally that a training phase begins with: weights of the accepted updates, and who has taken part how often.

    Args:
        participation: q_k before this phase.
        environment: says what no weight is larger than; None for no limit.
    """
    silos = [header.silo for header in headers]
    counts = counted(participation, silos)
    limits: WeightLimits = {} if environment is None else weight_limits(environment)
    weights = weights_of(rule, silos, [header.num_examples for header in headers], counts, fedfreq_rule, **limits)
    return AverageTally(weights=weights, participation=counts)


def difference_to(sent: TensorGroup) -> dict[str, GroupLayout]:
    """What an update must hold that is a model as the difference to the one that was sent."""
    return {"model": GroupLayout(Meaning.DIFFERENCE, tensors.group_digest(sent), tensors.specs(sent.tensors))}


def own_model(sent: TensorGroup, groups: Mapping[str, TensorGroup]) -> dict[str, Tensor]:
    """w_k: a silo's own model, from the difference that it has returned. Raises: KeyError without such a group."""
    return tensors.add(sent.tensors, groups["model"].tensors)


def apply_global_momentum(w: Mapping[str, Tensor], buffer: Mapping[str, Tensor] | None,
                          delta: Mapping[str, Tensor] | None, *, momentum: float
                          ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """Server momentum on the pseudo-gradient g = w - average = -delta; oracles S5 and S8.

        buffer = g (the first time) or momentum * buffer + g;   w = w - buffer

    Args:
        w: the model that the silos started from.
        buffer: None until a round accepts an update.
        delta: sum p_k (w_k - w), or None when no update was accepted: then both come back untouched.
        momentum: beta_g, 0..1.
    Returns: the new model and buffer.
    Source: SemiFL section 3.5.
    """
    if delta is None:
        return dict(w), None if buffer is None else dict(buffer)
    gradient = tensors.scale(delta, -1.0)
    new = gradient if buffer is None else tensors.add(gradient, buffer, factor=momentum)
    return tensors.subtract(w, new), new
