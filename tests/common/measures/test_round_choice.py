"""The rule that chooses a round: by hand, and that it never goes back to a round whose model is gone."""

from __future__ import annotations

import itertools

import numpy as np

from semisilo.common.measures.round_choice import (
    ScoredRound,
    best_round,
    chosen_at_each,
    chosen_round,
    rounds_without_gain,
)
from tests.each_of import each_of


def rounds(*scores: float, error: float = 0.05) -> list[ScoredRound]:
    return [ScoredRound(number, score, error) for number, score in enumerate(scores)]


@each_of(("scores", "chosen"), [
    ((0.5,), 0), ((0.5, 0.6, 0.7), 2), ((0.5, 0.9, 0.86), 2), ((0.5, 0.9, 0.84), 1), ((0.5, 0.9, 0.86, 0.1), 2),
    ((0.9, 0.1, 0.2), 0), ((0.7, 0.7, 0.7), 2)])
def test_the_latest_round_within_one_error_of_the_best_is_chosen(scores: tuple[float, ...], chosen: int) -> None:
    found = chosen_round(rounds(*scores))
    assert found is not None
    assert found.number == chosen


def test_it_is_the_error_of_the_best_that_counts() -> None:
    """0.80 is within 0.15 of 0.9, but not within 0.05."""
    sharp, blunt = ScoredRound(1, 0.9, 0.05), ScoredRound(1, 0.9, 0.15)
    later = ScoredRound(2, 0.8, 0.15)
    assert chosen_round([sharp, later]) == sharp
    assert chosen_round([blunt, later]) == later


def test_without_rounds_there_is_nothing_to_choose() -> None:
    assert chosen_round([]) is None
    assert best_round([]) is None
    assert chosen_at_each([]) == []
    assert rounds_without_gain([]) == 0


def test_with_one_round_more_the_chosen_one_stays_or_is_the_new_one() -> None:
    """Over random walks with errors of their own: so the state of the chosen round is always still kept."""
    generator = np.random.default_rng(11)
    for _ in range(300):
        scores, errors = generator.random(30).round(2), (0.3 * generator.random(30)).round(2)
        all_rounds = [ScoredRound(n, float(s), float(e)) for n, (s, e) in enumerate(zip(scores, errors, strict=True))]
        chosen = [chosen_round(all_rounds[:n]) for n in range(1, 31)]
        assert chosen_at_each(all_rounds) == chosen
        for before, after in itertools.pairwise(chosen):
            assert before is not None
            assert after is not None
            assert after.number in (before.number, all_rounds[chosen.index(after)].number)
            assert after == before or after.number == chosen.index(after)


def test_patience_counts_from_the_earliest_of_the_best() -> None:
    scored = rounds(0.5, 0.9, 0.9, 0.8)
    assert rounds_without_gain(scored) == 2, "an equal score is no gain"
    assert rounds_without_gain(rounds(0.1, 0.2)) == 0


def test_patience_does_not_count_rounds_that_have_failed() -> None:
    assert rounds_without_gain([ScoredRound(1, 0.9, 0.05), ScoredRound(7, 0.8, 0.05)]) == 1
