"""What a person says of the classes' prevalence where a model is used: how it is written, and what is made of it.

Shapes: N images, K classes.

Tests: tests/semisilo/prediction/test_prevalence.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from semisilo.common.errors import UsageError
from semisilo.common.learning.imbalance.prevalence import estimate_prevalence, reweighted

__all__ = ["Prevalence", "at_prevalence", "wanted_prevalence"]

_NUMBER = re.compile(r"(\d*\.?\d+(?:[eE][+-]?\d+)?)(%?)(?:,|$)")
_SUM_TOLERANCE = 1e-6
_EXAMPLE = "Write for example: --prevalence melanoma=0.02, or --prevalence estimate."


@dataclass(frozen=True, kw_only=True, slots=True)
class Prevalence:
    """Shares of the classes that probabilities were brought to."""

    shares: tuple[float, ...]
    """In label order."""
    trained: tuple[float, ...]
    """Those that the model was made for."""
    how: Literal["stated", "estimated"]
    settled: bool = True
    """Of an estimate: whether it came to rest."""

    def describe(self, classes: Sequence[str]) -> str:
        """One line, such as "prevalence stated: melanoma 2 %, naevus 98 %"."""
        each = ", ".join(f"{name} {100 * share:.3g} %" for name, share in zip(classes, self.shares, strict=True))
        return f"prevalence {self.how}: {each}{'' if self.settled else ' (the estimate did not come to rest)'}"


def wanted_prevalence(text: str, classes: Sequence[str], trained: Sequence[float]) -> tuple[float, ...]:
    """The shares that "CLASS=0.02,CLASS=5%" states, in label order.

    What the classes that are not named share among them is the rest, in the proportions of training. Names may hold
    commas and equals signs: they are looked for as they are, the longest first.
    Raises: UsageError for a name that is no class, one named twice, and shares that do not make 1.
    """
    stated: dict[str, float] = {}
    rest = text.strip()
    while rest:
        name = next((each for each in sorted(classes, key=len, reverse=True) if rest.startswith(f"{each}=")), None)
        if name is None:
            # Of a class alone there is no share; with blanks before the sign it is not found either.
            alone = next((each for each in sorted(classes, key=len, reverse=True)
                          if rest.startswith(each) and rest[len(each):].lstrip()[:1] in ("", ",", "=")), None)
            if alone is not None:
                raise UsageError(f"--prevalence: '{alone}' has no share.", remedy=f"Write {alone}=0.02.")
            given = rest.split("=")[0]
            near = difflib.get_close_matches(given, classes, n=1)
            raise UsageError(f"--prevalence: there is no class '{given}'.",
                             remedy=f"Did you mean '{near[0]}'?" if near else f"The classes are: {', '.join(classes)}.")
        match = _NUMBER.match(rest, len(name) + 1)
        if match is None or name in stated:
            what = f"'{name}' is named twice" if name in stated else f"'{name}' has no share from 0 to 1"
            raise UsageError(f"--prevalence: {what}.", remedy=_EXAMPLE)
        stated[name] = float(match[1]) / (100 if match[2] else 1)
        rest = rest[match.end():].lstrip()
    if not stated:
        raise UsageError("--prevalence: says nothing.", remedy=_EXAMPLE)
    total, others = sum(stated.values()), [name for name in classes if name not in stated]
    if total > 1 + _SUM_TOLERANCE or (not others and abs(total - 1) > _SUM_TOLERANCE):
        raise UsageError(f"--prevalence: the shares make {total:g}, {'more than' if total > 1 else 'not'} 1.",
                         remedy="Shares of all classes are 1 together; those left out share the rest.")
    of_others = sum(share for name, share in zip(classes, trained, strict=True) if name in others)
    return tuple(stated[name] if name in stated else max(0.0, 1 - total) * share / of_others
                 for name, share in zip(classes, trained, strict=True))


def at_prevalence(probabilities_NK: NDArray[np.float64], text: str, classes: Sequence[str], trained: Sequence[float]
                  ) -> tuple[NDArray[np.float64], Prevalence]:
    """The probabilities for the stated prevalence, or with "estimate" for the one that these images show.

    Args:
        trained: the model's prior; empty where it is not known.
    Raises: UsageError where it is not known, or as `wanted_prevalence`.
    """
    if not trained:
        raise UsageError("--prevalence needs the class shares that the model was trained for, and its file does not say"
                         " them.", remedy="Export it again with this version, from a study with labels at the"
                         " coordinator; where the labels were at silos they are known of self_training with"
                         " logit_adjustment = 1 alone.")
    if text.strip() == "estimate":
        found = estimate_prevalence(probabilities_NK, trained=trained)
        prevalence = Prevalence(shares=found.shares, trained=tuple(trained), how="estimated", settled=found.settled)
    else:
        prevalence = Prevalence(shares=wanted_prevalence(text, classes, trained), trained=tuple(trained), how="stated")
    return reweighted(probabilities_NK, trained=trained, prevalence=prevalence.shares), prevalence
