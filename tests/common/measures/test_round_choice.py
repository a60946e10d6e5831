"""The rule that chooses a round: by hand, and that it never goes back to a round whose model is gone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from semisilo.common.measures.round_choice import (
    ScoredRound,
    best_round,
    chosen_at_each,
    chosen_round,
    rounds_without_gain,
    usual_score,
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


LONG = (0, *(0.80 + number / 100 for number in range(1, 21)))


@each_of(("scores", "of", "usual"), [
    ((0.1, 0.8), 1, 0.8), ((0.8, 0.7), 0, 0.8), ((0.9, 0.5, 0.80, 0.82, 0.84), 4, 0.84),
    ((0.9, 0.5, 0.6, 0.80, 0.82, 0.84), 5, 0.83), ((0.9, 0.80, 0.82, 0.84, 0.5, 0.6), 1, 0.81),
    (LONG, 10, 0.90), (LONG, 20, 0.98), (LONG, 1, 0.83), ((*LONG[:18], 0.70, 0.99, 1.0), 20, 0.98)])
def test_a_round_is_worth_what_those_around_it_are_that_are_not_far_below(scores: tuple[float, ...], of: int,
                                                                         usual: float) -> None:
    """Of 4 rounds its own, of 5 those of two, of 20 those of five; never of round 0 for others."""
    found = rounds(*scores)
    assert usual_score(found, found[of]) == pytest.approx(usual)


def test_the_best_of_many_rounds_is_lucky_and_those_around_it_are_less_so() -> None:
    """All rounds are right 77 times of 100: the best scores 10 points higher, with those around it 4."""
    generator, best, usual = np.random.default_rng(3), [], []
    for _ in range(300):
        drawn = rounds(*generator.binomial(100, 0.77, 100) / 100, error=0.042)
        found = best_round(drawn)
        assert found is not None
        best.append(found.score)
        usual.append(usual_score(drawn, found))
    assert np.mean(best) - 0.77 > 0.09
    assert np.mean(usual) - 0.77 < 0.05


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
