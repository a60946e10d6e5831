"""When updates may be added up behind masks: keys of table [privacy] of a study.

What secure aggregation hides and what it does not is in docs/secure-aggregation.md.

Tests: tests/common/methods/parts/test_secure_sum.py.
"""

from __future__ import annotations

from semisilo.common.methods.uplink import Uplink

__all__ = ["MAX_SILOS", "MIN_SILOS", "WORD_BITS", "threshold_of", "why_not_summed"]

MAX_SILOS = 32
"""Of one sum: every silo shares its secrets with every other."""
MIN_SILOS = 3
"""With two, each would learn the other's update from the sum."""
WORD_BITS = (16, 32)
"""Fewest and most."""
_SUMMED_WEIGHTINGS = ("uniform", "size")
"""Of methods that can weigh otherwise as well."""


def threshold_of(threshold: int, min_silos: int, num_asked: int) -> int:
    """How many silos unmask a sum that `num_asked` are asked for: as set, else floor(2/3 n) + 1; at least `min_silos`.

    Args:
        threshold: as set; 0 for the default.
    """
    return max(threshold or 2 * num_asked // 3 + 1, min_silos)


def why_not_summed(*, method: str, summed: bool, weighting: str, robust_rule: str, uplink: Uplink, local_accuracy: bool,
                   most_silos: int | None) -> str:
    """Why a study cannot be summed behind masks, with what to do; empty when it can.

    Args:
        summed: whether the method's updates are added up with weights that everybody knows (`MethodSpec.summed`).
        weighting: of the method's settings; "uniform" where it has none.
        most_silos: that a round may ask; None where it is a share of those that have joined.
    """
    if not summed:
        return (f"secure_aggregation is not possible with the method {method}: it computes with each silo's update by"
                " itself. Choose a method that averages, such as self_training, semifl or fedavg.")
    if weighting not in _SUMMED_WEIGHTINGS:
        return (f'secure_aggregation is not possible with [method] weighting = "{weighting}": the weights change with'
                ' who answers. Choose "uniform" or "size".')
    if robust_rule != "none":
        return (f'secure_aggregation is not possible with [robust] rule = "{robust_rule}", which looks at each update'
                " by itself. Leave one of the two out.")
    if uplink.lossy:
        return ("secure_aggregation is not possible with a lossy [wire] uplink: masked numbers have a form of their own"
                " (word_bits). Leave uplink out.")
    if local_accuracy:
        return "secure_aggregation is not possible with [study] local_accuracy, which needs each silo's own model."
    if most_silos is not None and most_silos > MAX_SILOS:
        return (f"secure_aggregation is possible with up to {MAX_SILOS} silos in a round, and [participation]"
                f" silos_per_round = {most_silos}.")
    return ""
