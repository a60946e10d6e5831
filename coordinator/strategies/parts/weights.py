"""Weights of accepted updates: pure functions from what is known of the silos to p_k, which sum to 1.

All take the accepted silos of one phase in silo order and give one weight each, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from semisilo.coordinator.strategies.parts.count_cap import capped_weights

__all__ = ["FedFreqRule", "Weighting", "counted", "fedfreq_weights", "no_larger", "share_weights", "size_weights",
           "uniform_weights", "weights_of"]

Weighting = Literal["uniform", "size", "fedfreq"]
FedFreqRule = Literal["share", "inverse"]


def uniform_weights(count: int) -> list[float]:
    """1 / |S| each; oracle B2."""
    return [1.0 / count] * count


def share_weights(scores: Sequence[float]) -> list[float]:
    """score_k / sum of scores; uniform when all are 0. Oracles B1, M4, M5.

    Args:
        scores: not negative, finite.
    """
    total = sum(scores)
    return [score / total for score in scores] if total > 0 else uniform_weights(len(scores))


def size_weights(num_examples: Sequence[int]) -> list[float]:
    """n_k / sum n; oracle B1. Negative numbers count as 0."""
    return share_weights([float(max(count, 0)) for count in num_examples])


def fedfreq_weights(counts: Sequence[int], rule: FedFreqRule = "share") -> list[float]:
    """FedFreq: who has taken part more often weighs less. Oracles X1 to X4.

        share:    p_k = (1 - q_k / sum_j q_j) / (|S| - 1)
        inverse:  p_k = (1 / q_k) / sum_j (1 / q_j)

    Args:
        counts: q_k >= 1, accepted updates of silo k so far, the current round's included.
    Source: FedMix, Zhang et al. (arXiv 2110.13388), Eq. 10 as fedmix.md reconstructs it.
    """
    if len(counts) == 1:
        return [1.0]
    if rule == "inverse":
        return share_weights([1.0 / count for count in counts])
    total = sum(counts)
    return [(1.0 - count / total) / (len(counts) - 1) for count in counts]


def counted(participation: Mapping[str, int], silos: Sequence[str]) -> dict[str, int]:
    """The counts q after a round in which these silos' updates were accepted, in byte order of names."""
    counts = {**participation, **{silo: participation.get(silo, 0) + 1 for silo in silos}}
    return {silo: counts[silo] for silo in sorted(counts, key=str.encode)}


def no_larger(weights: Sequence[float], largest_share: float, *, together: int = 1) -> list[float]:
    """p_k whose sum is 1 and of which none, or no so many together, have more than their share: the very same numbers
    where none has, else min(p_k, c) over their sum.

    Args: as of `capped_weights`.
    """
    capped = capped_weights(weights, largest_share, together=together)
    return capped if capped == list(weights) else share_weights(capped)


def weights_of(rule: Weighting, silos: Sequence[str], num_examples: Sequence[int], participation: Mapping[str, int],
               fedfreq_rule: FedFreqRule = "share", *, largest_share: float = 1.0, together: int = 1
               ) -> dict[str, float]:
    """p_k by silo under a rule.

    Args:
        participation: q after this round, see `counted`; needed for "fedfreq" alone.
        largest_share, together: bound what "fedfreq" gives, for a silo may abstain as often as it likes. Counts of
            images are cut before.
    """
    if not silos:
        return {}
    if rule == "fedfreq":
        weights = no_larger(fedfreq_weights([participation[silo] for silo in silos], fedfreq_rule), largest_share,
                            together=together)
    else:
        weights = uniform_weights(len(silos)) if rule == "uniform" else size_weights(num_examples)
    return dict(zip(silos, weights, strict=True))
