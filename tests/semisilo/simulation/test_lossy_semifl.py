"""SemiFL on the digits with lossy updates: against the accuracy of exact ones, and what the strongest form costs."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.lossy.simulation import Course, digits, simulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOISE = 0.03
"""With silos of other names exact updates ended at 94.4, 95.5 and 93.5 % with seeds 1, 2 and 3 after 20 rounds
(benchmarks/lossy/RESULTS.md): a standard deviation of 1.0 points. One accuracy on 355 images near 94 % has a standard
error of 1.3, a difference of two at most 1.8.

In 8 rounds, which take a third of the time, exact updates ended at 89.3, 91.3 and 91.0 % and the control at 81.4, 77.2
and 82.3 %.
"""
SHORT, LONG = 8, 20
"""Rounds. In 8 of them top-k 10 % ended 0.8 above, 3.4 and 1.4 below exact updates: too little is sent by then."""


@cache
def course(uplink: str, rounds: int, *, error_feedback: bool = True) -> Course:
    """So many rounds from 20 labels with seed 1, as in benchmarks/lossy; with the default rounding."""
    return simulated(digits(1, rounds=rounds), uplink, error_feedback=error_feedback)


@pytest.mark.parametrize(("uplink", "most_bytes", "rounds"), [
    ("bf16", 0.36, SHORT), ("int8", 0.26, SHORT), ("int4", 0.14, SHORT), ("top-k 10%", 0.12, LONG)])
def test_a_lossy_form_reaches_the_accuracy_of_exact_updates(uplink: str, most_bytes: float, rounds: int) -> None:
    """With error feedback and the default rounding; `most_bytes` is the largest share of a dense update, 226 kB.

    In 8 rounds with seeds 1, 2 and 3, in points from exact updates: bf16 +0.8, -1.7, -1.1; int8 0.0, +0.5, -0.9; int4
    -0.3, -1.2, -0.3.
    """
    exact, lossy = course("smallest", rounds), course(uplink, rounds)
    assert exact.accuracies[-1] > exact.accuracies[0] + 0.1, "the study learns"
    assert lossy.accuracies[0] == exact.accuracies[0], "round 0 is the coordinator alone"
    assert lossy.accuracies[-1] > exact.accuracies[-1] - NOISE, (lossy.accuracies, exact.accuracies)
    assert max(lossy.uplink_bytes) < most_bytes * 3 * exact.dense_bytes < min(exact.uplink_bytes)


def test_a_hundredth_of_the_elements_keeps_most_of_the_gain() -> None:
    """In 20 rounds top-k 1 % ended 0.2 above, 4.2 below and 2.2 below exact updates with seeds 1, 2 and 3: not within
    noise, so the bound is twice as wide; what is left without it, the control, was 11 below. Here its elements have 8
    bits besides, and the bound is the same; elements as they are come to it by top-k 10 %."""
    exact, lossy = course("smallest", LONG), course("top-k 1% int8", LONG)
    assert lossy.accuracies[-1] > exact.accuracies[-1] - 2 * NOISE, (lossy.accuracies, exact.accuracies)
    assert max(lossy.uplink_bytes) < 0.009 * 3 * lossy.dense_bytes


def test_the_control_an_update_that_lost_nearly_everything_is_noticed() -> None:
    """6 of 56 554 elements a round and no error feedback: little more than the coordinator's own training is left."""
    exact = course("smallest", SHORT)
    lost = course("top-k 0.01%", SHORT, error_feedback=False)
    assert lost.accuracies[-1] < exact.accuracies[-1] - 2 * NOISE, (lost.accuracies, exact.accuracies)
