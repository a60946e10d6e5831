"""Table [robust] of a study: what keeps silos that lie from taking the model over.

The coordinator alone acts by it, so it travels in no task. The rules are in `semisilo.common.learning.robust`, and what
they do not protect from in docs/study.md.

Tests: tests/common/methods/parts/test_robust.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.methods.uplink import Uplink

__all__ = ["NEEDS_BYZANTINE", "RULES", "STATISTICS_BOUND", "WITHOUT_IMAGES", "RobustSettings", "Rule", "fewest_updates",
           "refused"]

Rule = Literal["none", "norm_clipping", "coordinate_median", "trimmed_mean", "geometric_median", "multi_krum",
               "fltrust", "judge"]
RULES: tuple[Rule, ...] = ("norm_clipping", "coordinate_median", "trimmed_mean", "geometric_median", "multi_krum",
                           "fltrust", "judge")
"""All but the plain mean."""
WITHOUT_IMAGES: tuple[Rule, ...] = tuple(rule for rule in RULES if rule not in ("fltrust", "judge"))
"""Those that need no labelled images at the coordinator."""
NEEDS_BYZANTINE: tuple[Rule, ...] = ("trimmed_mean", "multi_krum")
"""Rules that must be told how many silos may lie."""
STATISTICS_BOUND = 0.2
"""Nats. Honest silos raised the loss by 0.02 where their images looked like the coordinator's, by 0.08 with other
scanners (docs/decisions/0110-statistics-on-trial.md)."""
_NOT_SPARSE: tuple[Rule, ...] = ("coordinate_median", "trimmed_mean", "multi_krum")
"""Rules that compare silos number by number: where each sends other ones, the median of nearly all is 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RobustSettings:
    """How updates of one round are put together so that some of them may lie."""

    rule: Rule = "none"
    """How the updates of a round are averaged. "none": as the method says. "norm_clipping": likewise, none longer than
    the median. "coordinate_median", "trimmed_mean" (Yin et al., ICML 2018): of every number by itself, silos counting
    alike. "geometric_median" (RFA; Pillutla et al., 2022). "multi_krum" (Blanchard et al., NeurIPS 2017). "fltrust"
    (Cao et al., NDSS 2021): updates count as far as they point where a step on the coordinator's own labels points.
    "judge": the coordinator tries every update on its own labelled images, leaves out what makes them worse than the
    others do, and learns on them what each of the rest counts, none longer than the median."""
    byzantine_silos: int = 0
    """f: how many of the silos of a round may lie. A round with fewer than 2 f + 1 updates ("multi_krum": 2 f + 3)
    takes nothing over: silos that honestly abstain must not leave it to those that lie. "trimmed_mean" leaves out the f
    largest and the f smallest values of every number, "multi_krum" f updates; both must be told. Where counts of images
    are weights, the f largest together have no more than `largest_weight`: "none" uses it for that alone. Not for
    "fltrust", which compares no silo with others."""
    norm_bound: float = 5.0
    """No update counts with more than so many times the median length (Euclidean norm) of the round's updates; a longer
    one is shortened to that. Acts from three updates on. 0 turns it off. "norm_clipping" and "judge" always shorten to
    the median. Numbers of steps count likewise where updates are multiplied by their mean ("fednova", "fed_shvr"): with
    no more than so many times the median, with a rule than the median."""
    statistics_bound: float = field(default=STATISTICS_BOUND, metadata=ABSENT_AT_DEFAULT)
    """By how many nats batch-norm statistics that silos measure may raise the mean loss on the coordinator's labelled
    images, or its validation images where it has none. Where those of a few silos raise it further, these are left out.
    0 turns it off. With rules that compare silos these have the trimmed mean in its place."""

    def __post_init__(self) -> None:
        if self.byzantine_silos < 0:
            raise ValueError(f"byzantine_silos = {self.byzantine_silos}: must be at least 0.")
        if not (self.norm_bound == 0 or (self.norm_bound >= 1 and math.isfinite(self.norm_bound))):
            raise ValueError(f"norm_bound = {self.norm_bound}: must be at least 1, or 0 for none.")
        if not (self.statistics_bound >= 0 and math.isfinite(self.statistics_bound)):
            raise ValueError(f"statistics_bound = {self.statistics_bound}: must be at least 0; 0 for none.")
        if not self.merges_statistics and self.statistics_bound != STATISTICS_BOUND:
            raise ValueError(f'statistics_bound = {self.statistics_bound:g} has no effect on rule = "{self.rule}",'
                             " which takes the trimmed mean of statistics: leave it out.")
        if self.rule in NEEDS_BYZANTINE and not self.byzantine_silos:
            raise ValueError(f'rule = "{self.rule}" needs byzantine_silos: how many silos may lie, 1 or more.')
        if self.rule == "fltrust" and self.byzantine_silos:
            raise ValueError(f'byzantine_silos = {self.byzantine_silos} has no effect on rule = "{self.rule}": leave it'
                             " out, or choose another rule.")

    @property
    def merges_statistics(self) -> bool:
        """Whether batch-norm statistics of silos are merged by their counts; else they have the trimmed mean."""
        return self.rule in ("none", "norm_clipping")

    @property
    def length_bound(self) -> float:
        """Times the median length that an update counts with at most; 0 for no limit."""
        return 1.0 if self.rule in ("norm_clipping", "judge") else self.norm_bound

    @property
    def steps_bound(self) -> float:
        """Times the median number of steps that one counts with at most in their mean; 0 for no limit."""
        return self.norm_bound if self.rule == "none" else 1.0

    @property
    def capped_together(self) -> int:
        """How many silos together have no more than `largest_weight` in an average by counts; 1 where f is not said."""
        return max(1, self.byzantine_silos)


def fewest_updates(settings: RobustSettings) -> int:
    """How many updates a round must have for the rule to say anything."""
    if settings.rule in ("none", "fltrust"):
        return 1
    f = settings.byzantine_silos
    return 2 * f + 3 if settings.rule == "multi_krum" else 2 * f + 1


def refused(settings: RobustSettings, *, method: str, allowed: Sequence[Rule], uplink: Uplink,
            silos: int | None, groups: bool = False) -> str:
    """Why a rule cannot be used here, with what to do; empty when it can.

    Args:
        method: its name.
        allowed: rules that it is defined with.
        silos: largest number of updates that a round may have; None when that is not known yet.
        groups: whether these are sums of groups of silos.
    """
    rule = settings.rule
    if rule == "none":
        return ""
    if rule not in allowed:
        choice = f"it has: {', '.join(allowed)}" if allowed else "it has none"
        return f'rule = "{rule}" is not defined for the method {method}; {choice}.'
    if "top-k" in uplink.lossy and rule in _NOT_SPARSE:
        return (f'rule = "{rule}" compares silos number by number, and with a top-k uplink each sends other numbers:'
                ' choose "norm_clipping", "geometric_median" or "judge", or another [wire] uplink.')
    if silos is not None and silos < (least := fewest_updates(settings)):
        told = f" with byzantine_silos = {settings.byzantine_silos}" if settings.byzantine_silos else ""
        there = "groups of silos ([privacy] group_size)" if groups else "silos"
        return f'rule = "{rule}"{told} needs {least} updates in a round, and there are {silos} {there} at most.'
    return ""
