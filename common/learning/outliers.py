"""Updates that stand out among those of a phase: by their norm, and by their cosine to the mean.

A robust z-score says how far a value is from the median, in units of the median absolute deviation,

    z_k = (x_k - median x) / max(1.4826 median |x - median x|, least),

1.4826 because that makes the second a standard deviation where values are normal. |z| above 3.5 stands out (Iglewicz
and Hoaglin 1993, "How to detect and handle outliers", ASQC). Of norms x is the logarithm, so that a hundredth stands
out as a hundred times does. `least` keeps values that are nearly equal from standing out for nothing: a norm must
differ from the median by a factor of two at least, a cosine by 0.35.

Where a round is lost, a coarser look points to those that may have done it (`point_away`): against the mean, or twice
as long as the median.

None of this is a defence: it names a silo, and a person looks. No torch here, since the light process reads it.

Tests: tests/common/learning/test_outliers.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["FEWEST", "LONG", "THRESHOLD", "StandsOut", "UpdateMeasure", "has_long", "point_away", "robust_z_scores",
           "stand_out"]

THRESHOLD = 3.5
"""|z| above which a value stands out."""
FEWEST = 3
"""Of two updates nobody can say which one stands out."""
_SIGMAS_PER_DEVIATION = 1.4826
_LEAST_LOG_NORM = math.log(2) / THRESHOLD
_LEAST_COSINE = 0.1
LONG = 2.0
"""So many times as long as the median an update is too long not to be looked at where a round is lost."""
_SMALLEST_SHARE = 1e-6
"""Of the median norm: smaller ones count as this, so that the logarithm of 0 is not asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateMeasure:
    """What the coordinator measures of one update, the change that it is to what its silo was sent."""

    norm: float
    """Euclidean, over all elements; finite."""
    cosine: float | None
    """Of the angle to the mean of the phase's updates, -1 to 1; None where either is 0, or no other update came."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandsOut:
    """In what an update stands out."""

    what: str
    """"norm" or "cosine"."""
    value: float
    middle: float
    """The median of the phase."""
    z: float
    """Robust z-score, signed; of a norm that of its logarithm."""

    @property
    def text(self) -> str:
        """For a person: "the norm of its update is 31.2, the median 1.05 (robust z 9.8)"."""
        name = "norm of its update" if self.what == "norm" else "cosine of its update to the mean"
        return f"the {name} is {self.value:.3g}, the median {self.middle:.3g} (robust z {self.z:.1f})"


def robust_z_scores(values: Sequence[float], *, least: float) -> list[float]:
    """z_k of the formula above.

    Args:
        values: finite; at least one.
        least: what the deviation is held for at least; above 0.
    """
    middle = median(values)
    deviation = _SIGMAS_PER_DEVIATION * median(abs(value - middle) for value in values)
    return [(value - middle) / max(deviation, least) for value in values]


def stand_out(measures: Mapping[str, UpdateMeasure]) -> dict[str, tuple[StandsOut, ...]]:
    """Silo -> in what its update stands out among those of the same phase, in both directions; silos that do not are
    not in it. Nothing of fewer than `FEWEST` updates, nor of norms where most are 0."""
    found: dict[str, list[StandsOut]] = {}
    norms = {silo: each.norm for silo, each in measures.items()}
    if len(norms) >= FEWEST and (middle := median(norms.values())) > 0:
        logs = [math.log(max(norm, middle * _SMALLEST_SHARE)) for norm in norms.values()]
        for (silo, norm), z in zip(norms.items(), robust_z_scores(logs, least=_LEAST_LOG_NORM), strict=True):
            if abs(z) > THRESHOLD:
                found.setdefault(silo, []).append(StandsOut(what="norm", value=norm, middle=middle, z=z))
    cosines = {silo: each.cosine for silo, each in measures.items() if each.cosine is not None}
    if len(cosines) >= FEWEST:
        scores = robust_z_scores(list(cosines.values()), least=_LEAST_COSINE)
        for (silo, cosine), z in zip(cosines.items(), scores, strict=True):
            if abs(z) > THRESHOLD:
                found.setdefault(silo, []).append(
                    StandsOut(what="cosine", value=cosine, middle=median(cosines.values()), z=z))
    return {silo: tuple(each) for silo, each in found.items()}


def has_long(measures: Mapping[str, UpdateMeasure]) -> bool:
    """Whether an update is more than `LONG` times as long as the median one. Never of fewer than `FEWEST`."""
    norms = [each.norm for each in measures.values()]
    return len(norms) >= FEWEST and max(norms) > LONG * median(norms) > 0


def point_away(measures: Mapping[str, UpdateMeasure]) -> dict[str, str]:
    """Silo -> for a person, of those whose update has a negative cosine to the mean of the phase or is more than twice
    as long as the median: coarser than `stand_out`, for a round of which nothing was taken over. Nothing of fewer than
    `FEWEST` updates."""
    if len(measures) < FEWEST:
        return {}
    middle = median(each.norm for each in measures.values())
    found: dict[str, list[str]] = {}
    for silo, each in measures.items():
        if each.cosine is not None and each.cosine < 0:
            found.setdefault(silo, []).append(f"its update points away from the mean (cosine {each.cosine:.2f})")
        if each.norm > LONG * middle > 0:
            found.setdefault(silo, []).append(f"its update is {each.norm / middle:.3g} times as long as the median")
    return {silo: " and ".join(each) for silo, each in found.items()}
