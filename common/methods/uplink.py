"""How an update becomes bytes: the setting `[wire] uplink` of a study, as it travels in every task."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

__all__ = ["LOSSY_FORMS", "RANDOM_K", "Uplink", "parse_uplink"]

RANDOM_K = "random-k"
LOSSY_FORMS = ("bf16", "int8", "int4", "top-k", RANDOM_K)
"""What a silo's policy may forbid, by name; exact encodings change nothing and need no permission."""

_TOP_K = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, kw_only=True, slots=True)
class Uplink:
    """The form of an update. Only groups that mean a difference are ever sent lossily."""

    aim: Literal["raw", "auto", "smallest"] = "raw"
    """By what the form of a block is chosen; lossless in itself."""
    values: Literal["exact", "bf16", "int8", "int4"] = "exact"
    """What is sent of a value."""
    top_k: float = 1.0
    """Share of the elements that is sent, those of largest magnitude, in (0, 1]; 1: all."""
    rounding: Literal["nearest", "stochastic"] = "stochastic"
    """Of int8 and int4."""
    error_feedback: bool = True
    """Whether a silo keeps what a lossy form left out and adds it to its next update."""

    def __post_init__(self) -> None:
        if not (0 < self.top_k <= 1 and math.isfinite(self.top_k)):
            raise ValueError(f"top_k = {self.top_k}: must be above 0 and at most 1.")

    @property
    def lossy(self) -> tuple[str, ...]:
        """The lossy forms in it, by the names of `LOSSY_FORMS`; empty when an update arrives as it left."""
        forms = () if self.values == "exact" else (self.values,)
        return forms if self.top_k == 1 else (*forms, "top-k")

    def sent(self, elements: int) -> int:
        """How many of the float32 elements of a group that means a difference are sent: ceil(top_k * elements), of the
        share as it is written. 7 % of 100 is 7, although 0.07 * 100 > 7 in float64."""
        return min(elements, math.ceil(Fraction(self.top_k).limit_denominator(10**9) * elements))


def parse_uplink(text: str, *, rounding: Literal["nearest", "stochastic"] = "stochastic",
                 error_feedback: bool = True) -> Uplink:
    """The setting of a study file: "raw", "auto", "smallest", or lossy forms: "bf16", "int8", "int4", "top-k 1%",
    "top-k 1% int8".

    Raises: ValueError, naming what was not understood.
    """
    if text in ("raw", "auto", "smallest"):
        return Uplink(aim=text, rounding=rounding, error_feedback=error_feedback)  # type: ignore[arg-type]
    values, top_k, rest = "exact", 1.0, text.strip()
    if rest.startswith("top-k"):
        rest = rest.removeprefix("top-k").strip()
        match = _TOP_K.match(rest)
        if match is None or not 0 < float(match[1]) <= 100:
            raise ValueError(f'"{text}": top-k needs a share, for example "top-k 1%".')
        top_k, rest = float(match[1]) / 100, rest[match.end():].strip()
        if not rest:
            return Uplink(aim="smallest", top_k=top_k, rounding=rounding, error_feedback=error_feedback)
    if rest not in ("bf16", "int8", "int4"):
        raise ValueError(f'"{text}": give "raw", "auto", "smallest", "bf16", "int8", "int4", "top-k 1%" or'
                         ' "top-k 1% int8".')
    values = rest
    return Uplink(aim="smallest", values=values, top_k=top_k, rounding=rounding,  # type: ignore[arg-type]
                  error_feedback=error_feedback)
