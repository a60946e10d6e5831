"""When updates may be added up behind masks: keys of table [privacy] of a study.

What secure aggregation hides and what it does not is in docs/secure-aggregation.md.

Tests: tests/common/methods/parts/test_secure_sum.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from semisilo.common.methods.uplink import Uplink

__all__ = ["MASKED_GROUP", "MAX_SILOS", "MIN_SILOS", "STEPS", "WORD_BITS", "divisor_of", "keeps_weights",
           "sums_per_step", "threshold_of", "totals_of", "why_not_summed"]

MASKED_GROUP = "masked"
"""The only tensor group of a masked update."""
MAX_SILOS = 32
"""Of one sum: every silo shares its secrets with every other."""
MIN_SILOS = 3
"""With two, each would learn the other's update from the sum."""
WORD_BITS = (16, 32)
"""Fewest and most."""
_SUMMED_WEIGHTINGS = ("uniform", "size")
"""Of methods that can weigh otherwise as well."""
STEPS = "steps"
"""The total that normalised averaging divides by."""


def totals_of(settings: object) -> tuple[str, ...]:
    """Numbers that a method's silos add up beside their updates: the property `sum_totals` of its settings.

    Normalised averaging needs the mean number of steps, a correction whether somebody has lost his part of it. Such a
    number never leaves a silo but behind a mask.
    """
    return tuple(getattr(settings, "sum_totals", ()))


def sums_per_step(settings: object) -> bool:
    """Whether silos divide their update by their total "steps" before it is added up, and the coordinator multiplies
    the mean by the mean of that total: the property `sums_per_step` of a method's settings.

        sum_k p_k (tau_bar / tau_k) d_k = tau_bar sum_k p_k (d_k / tau_k)        (FedNova Eq. 6; Fed-SHVR Eq. 14)
    """
    return bool(getattr(settings, "sums_per_step", False))


def keeps_weights(settings: object) -> bool:
    """Whether what a silo weighs in a sum must be the same in every round, since something of it stays with that
    weight: the property `keeps_weights` of a method's settings."""
    return bool(getattr(settings, "keeps_weights", False))


def divisor_of(settings: object, totals: Mapping[str, float]) -> float:
    """What a silo divides its update by before it is added up."""
    return totals[STEPS] if sums_per_step(settings) else 1.0


def threshold_of(threshold: int, min_silos: int, num_asked: int) -> int:
    """How many silos unmask a sum that `num_asked` are asked for: as set, else floor(2/3 n) + 1; at least `min_silos`.

    Args:
        threshold: as set; 0 for the default.
    """
    return max(threshold or 2 * num_asked // 3 + 1, min_silos)


def why_not_summed(*, method: str, summed: bool, weighting: str, robust_rule: str, group_size: int, uplink: Uplink,
                   random_k: float, needs_exact: bool, local_accuracy: bool, most_silos: int | None) -> str:
    """Why a study cannot be summed behind masks, with what to do; empty when it can.

    Args:
        summed: whether the method's updates are added up with weights that everybody knows (`MethodSpec.summed`).
        weighting: of the method's settings; "uniform" where it has none.
        group_size: of the study; 0 where all updates are in one sum.
        random_k: share of an update that is sent.
        needs_exact: whether method and settings need exact updates.
        most_silos: that a round may ask; None where it is a share of those that have joined.
    """
    if not summed:
        return (f"secure_aggregation is not possible with the method {method}: it computes with each silo's update by"
                " itself. Choose a method that averages, such as self_training, semifl or fedavg.")
    if weighting not in _SUMMED_WEIGHTINGS:
        return (f'secure_aggregation is not possible with [method] weighting = "{weighting}": the weights change with'
                ' who answers. Choose "uniform" or "size".')
    if robust_rule != "none" and not group_size:
        return (f'secure_aggregation is not possible with [robust] rule = "{robust_rule}", which looks at each update'
                f" by itself. Leave one of the two out, or have it look at random groups of silos: group_size ="
                f" {MIN_SILOS} or more.")
    if random_k < 1 and needs_exact:
        return (f"random_k is not possible with the method {method} and these settings: its corrections need every"
                " number of an update. Leave it out.")
    if uplink.lossy:
        return ("secure_aggregation is not possible with a lossy [wire] uplink: masked numbers have a form of their own"
                " (word_bits). Leave uplink out.")
    if local_accuracy:
        return "secure_aggregation is not possible with [study] local_accuracy, which needs each silo's own model."
    if most_silos is not None and most_silos > MAX_SILOS and not group_size:
        return (f"secure_aggregation is possible with up to {MAX_SILOS} silos in a sum, and [participation]"
                f" silos_per_round = {most_silos}. Ask fewer, or set group_size.")
    return ""
