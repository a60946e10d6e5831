"""Whether a silo's pseudo-labels of this round are spread over the classes as those of its rounds before.

The Jensen-Shannon distance d(p, q) = sqrt(H((p + q) / 2) - (H(p) + H(q)) / 2), entropies H in bits, is 0 for equal
histograms and 1 for histograms that share no class (Lin 1991, "Divergence measures based on the Shannon entropy",
IEEE Trans. Inf. Theory 37; a metric: Endres and Schindelin 2003, IEEE Trans. Inf. Theory 49).

Two histograms of few labels differ by chance. For labels drawn independently from one distribution, n for p and m for
q, d^2 is about (1 / (8 ln 2)) (1/n + 1/m) X with X chi-squared of K - 1 degrees of freedom (a second-order expansion,
as in Grosse et al. 2002, Phys. Rev. E 65, 041905). A round is marked when d is above what chance gives once in a
thousand rounds, and above a floor below which a change is of no interest however many labels show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from semisilo.common.methods.spec import MAX_COUNT

__all__ = ["EARLIER_ROUNDS", "FLOOR", "MOST_CLASSES", "Drift", "chi_squared_quantile", "class_shares", "drift_of",
           "jensen_shannon_distance", "pseudo_label_counts"]

EARLIER_ROUNDS = 10
"""How many rounds before make up what a round is compared with: a method that learns labels more classes over time."""
FLOOR = 0.15
"""With two classes about what it takes to move from 50:50 to 67:33."""
_ALARM_PROBABILITY = 0.001
_PREFIX = "pseudo_labels/"
MOST_CLASSES = 10_000
"""Of a study whose classes are not known."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a round's histogram is from those before."""

    distance: float
    """Jensen-Shannon distance, 0 to 1."""
    threshold: float
    """Distance above which it is marked; above 1 when there are too few labels to tell."""

    @property
    def marked(self) -> bool:
        """Whether a person should look."""
        return self.distance > self.threshold


def pseudo_label_counts(metrics: Mapping[str, float], *, num_classes: int = MOST_CLASSES,
                        num_images: int = MAX_COUNT) -> dict[int, float]:
    """Class -> how many images of it got a pseudo-label, among the numbers that a silo sent; empty without any.

    Args:
        num_classes: labels that are not below it are nobody's.
        num_images: that the silo's update is from: a larger count counts as this.
    """
    counts = {}
    for name, value in metrics.items() if num_images > 0 else ():
        label = name.removeprefix(_PREFIX)
        if label != name and label.isascii() and label.isdigit() and len(label) < 6 and int(label) < num_classes \
                and isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
            counts[int(label)] = float(min(value, num_images))
    return counts


def class_shares(counts: Mapping[int, float]) -> dict[int, float]:
    """Counts over their sum; empty when nothing was counted."""
    total = sum(counts.values())
    return {label: count / total for label, count in counts.items()} if total > 0 else {}


def jensen_shannon_distance(p: Mapping[int, float], q: Mapping[int, float]) -> float:
    """Distance of two histograms whose shares add up to 1; bits, so 0 to 1."""
    divergence = 0.0
    for label in p.keys() | q.keys():
        a, b = p.get(label, 0.0), q.get(label, 0.0)
        middle = (a + b) / 2
        divergence += sum(share * math.log2(share / middle) for share in (a, b) if share > 0) / 2
    return math.sqrt(min(1.0, max(0.0, divergence)))


def chi_squared_quantile(degrees: int, probability: float) -> float:
    """Value that a chi-squared variable stays below with this probability; up to 4 % too high in the upper tail.

    Source: Wilson and Hilferty 1931, "The distribution of chi-square", PNAS 17.
    """
    part = 2 / (9 * degrees)
    return degrees * (1 - part + NormalDist().inv_cdf(probability) * math.sqrt(part)) ** 3


def drift_of(counts: Mapping[int, float], earlier: Sequence[Mapping[int, float]]) -> Drift | None:
    """Compares a round with the mean of the rounds before; None when either has no pseudo-labels.

    Args:
        counts: class -> pseudo-labels of this round.
        earlier: the same of this silo's rounds before, oldest first; the last `EARLIER_ROUNDS` with labels count.
    """
    before = [entry for entry in earlier if sum(entry.values()) > 0][-EARLIER_ROUNDS:]
    total = sum(counts.values())
    if not before or total <= 0:
        return None
    mean: dict[int, float] = {}
    for entry in before:
        for label, share in class_shares(entry).items():
            mean[label] = mean.get(label, 0.0) + share / len(before)
    # The variance of a mean of shares, each from its own number of labels, is that of 1 / m labels.
    one_over_m = sum(1 / sum(entry.values()) for entry in before) / len(before) ** 2
    degrees = max(1, len(mean.keys() | counts.keys()) - 1)
    chance = chi_squared_quantile(degrees, 1 - _ALARM_PROBABILITY) * (1 / total + one_over_m) / (8 * math.log(2))
    return Drift(distance=jensen_shannon_distance(class_shares(counts), mean),
                 threshold=max(FLOOR, math.sqrt(chance)))
