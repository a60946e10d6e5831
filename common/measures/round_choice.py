"""Which round of a study is handed over, and whether to run another one: from selection scores alone.

The rule looks back only: with one round more, the chosen one stays or is the new one. So its state can be kept, and
nothing else need be (docs/decisions/0026-choosing-without-the-test-set.md).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ScoredRound", "best_round", "chosen_at_each", "chosen_round", "rounds_without_gain", "usual_score"]

_AROUND = 5
_SHARE_AROUND = 5
"""Of so many rounds one more is around another: of few rounds the best is hardly lucky, and each differs from the next.
"""
_APART = 3.0
"""Standard errors: the best of a hundred rounds that are alike lies above most of the others by less."""


@dataclass(frozen=True, slots=True)
class ScoredRound:
    """A committed round with its selection score."""

    number: int
    score: float
    """The study's measure on validation images; more is better."""
    error: float
    """Its standard error, at least 0."""


def best_round(rounds: Sequence[ScoredRound]) -> ScoredRound | None:
    """The highest score, of equals the earliest; None of none.

    Args:
        rounds: in order of their numbers.
    """
    return max(rounds, key=lambda each: (each.score, -each.number), default=None)


def chosen_round(rounds: Sequence[ScoredRound]) -> ScoredRound | None:
    """The latest round whose score is not below the best by more than the standard error of the best; None of none.

    The highest of many noisy scores is the luckiest: it is no better than others within its error, and a model that has
    learnt for longer is to be preferred among those that cannot be told apart.

    Args:
        rounds: in order of their numbers.
    Source: the one-standard-error rule of Breiman, Friedman, Olshen and Stone, Classification and Regression Trees
        (1984), section 3.4.3, with the latest round in the place of the simplest model.
    """
    best = best_round(rounds)
    if best is None:
        return None
    return next(each for each in reversed(rounds) if each.score >= best.score - best.error)


def usual_score(rounds: Sequence[ScoredRound], of: ScoredRound) -> float:
    """What a round is worth to compare with a model that nobody has chosen among others: the mean score of the rounds
    around it, itself among them, as far as they are not below it by more than three times its standard error. Five of
    them from 20 rounds on; of fewer one and a fifth of the rounds, so that of four or fewer it is its own.

    A round that was chosen by its score, the more so the best of many, has been lucky on the images; its neighbours are
    nearly the same model and were not chosen. Much lower ones are another model: the first rounds of a short study.

    Args:
        rounds: in order of their numbers, `of` among them. Round 0, which no silo has part in, is no neighbour.
    """
    near = [each for each in rounds if each.number > 0] if of.number > 0 else [of]
    around = min(_AROUND, 1 + len(near) // _SHARE_AROUND)
    first = max(0, min(near.index(of) - around // 2, len(near) - around))
    alike = [each.score for each in near[first:first + around] if each.score >= of.score - _APART * of.error]
    return math.fsum(alike) / len(alike)


def chosen_at_each(rounds: Sequence[ScoredRound]) -> list[ScoredRound]:
    """What `chosen_round` gives after each of the rounds, in one pass: of n rounds n choices.

    Args:
        rounds: in order of their numbers.
    """
    found: list[ScoredRound] = []
    best: ScoredRound | None = None
    waiting: list[ScoredRound] = []  # those that no later one equals or exceeds: their scores fall
    for each in rounds:
        best = each if best is None or each.score > best.score else best
        while waiting and waiting[-1].score <= each.score:
            waiting.pop()
        waiting.append(each)
        near_best = bisect_right(waiting, -(best.score - best.error), key=lambda one: -one.score)
        found.append(waiting[near_best - 1])
    return found


def rounds_without_gain(rounds: Sequence[ScoredRound]) -> int:
    """How many of the rounds come after the best one; 0 of none. A round that has failed has no score and is not among
    them: that silos were out of reach says nothing of the model."""
    best = best_round(rounds)
    return 0 if best is None else sum(each.number > best.number for each in rounds)
