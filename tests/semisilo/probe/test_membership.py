"""LiRA on scores whose leak is known, and what differential privacy allows."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from semisilo.probe.membership import (
    allowed_area,
    allowed_hits,
    attacked,
    confidence_logits,
    halves,
    likelihood_ratios,
    of_replacement,
)
from tests.each_of import each_of

NORMAL = NormalDist()


def scores_of(leak: float, *, pairs: int, images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal scores around a middle of each image, higher by `leak` deviations where it was trained on; and who was."""
    generator = np.random.default_rng(seed)
    members_UN = halves(images, pairs, generator=generator)
    middle_N = 3 * generator.normal(size=images)
    return middle_N + generator.normal(size=members_UN.shape) + leak * members_UN, members_UN


def attack(leak: float, *, pairs: int = 16, images: int = 100, seed: int = 0, rates: tuple[float, ...] = (0.1,)):
    scores_UN, members_UN = scores_of(leak, pairs=pairs, images=images, seed=seed)
    return attacked(likelihood_ratios(scores_UN, members_UN), members_UN, rates=rates,
                    generator=np.random.default_rng(seed))


def test_confidence_is_the_logit_of_the_probability_and_does_not_overflow() -> None:
    logits_NK = np.array([[0.3, -1.2, 2.0], [1.0, 1.0, -4.0]])
    labels_N = np.array([2, 1])
    p_N = (np.exp(logits_NK) / np.exp(logits_NK).sum(axis=1, keepdims=True))[np.arange(2), labels_N]
    assert confidence_logits(logits_NK, labels_N) == pytest.approx(np.log(p_N / (1 - p_N)))
    assert confidence_logits(np.array([[900.0, -900.0]]), np.array([0])) == pytest.approx([1800.0])
    with pytest.raises(ValueError, match="two classes"):
        confidence_logits(np.zeros((1, 1)), np.array([0]))


def test_every_image_is_in_half_of_the_updates_and_in_one_of_each_pair() -> None:
    members_UN = halves(10, 7, generator=np.random.default_rng(1))
    assert (members_UN.sum(axis=0) == 7).all()
    assert (members_UN.sum(axis=1) == 5).all()
    assert (members_UN[0::2] ^ members_UN[1::2]).all()
    with pytest.raises(ValueError, match="halved"):
        halves(9, 7, generator=np.random.default_rng(1))


def test_ratios_are_those_of_a_plain_loop_over_shadows() -> None:
    scores_UN, members_UN = scores_of(1.0, pairs=4, images=6, seed=3)
    found = likelihood_ratios(scores_UN, members_UN)
    for update in range(8):
        for image in range(6):
            shadows = [other for other in range(8) if other // 2 != update // 2]
            inside = [scores_UN[other, image] for other in shadows if members_UN[other, image]]
            outside = [scores_UN[other, image] for other in shadows if not members_UN[other, image]]
            assert len(inside) == len(outside) == 3
            rest = sum((value - np.mean(inside)) ** 2 for value in inside) + sum(
                (value - np.mean(outside)) ** 2 for value in outside)
            deviation = math.sqrt(rest / 4)
            expected = (math.log(NormalDist(np.mean(inside), deviation).pdf(scores_UN[update, image]))
                        - math.log(NormalDist(np.mean(outside), deviation).pdf(scores_UN[update, image])))
            assert found[update, image] == pytest.approx(expected)


def test_fewer_than_three_pairs_or_updates_that_are_no_pairs_are_refused() -> None:
    scores_UN, members_UN = scores_of(1.0, pairs=3, images=6, seed=3)
    with pytest.raises(ValueError, match="three pairs"):
        likelihood_ratios(scores_UN[:4], members_UN[:4])
    with pytest.raises(ValueError, match="two halves"):
        likelihood_ratios(scores_UN, np.roll(members_UN, 1, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("leak", [0.5, 1.0, 2.0])
def test_with_many_shadows_the_area_is_that_of_the_best_attack_there_is(leak: float) -> None:
    """Two normal distributions that are d deviations apart: the likelihood ratio's area is Phi(d / sqrt 2), and at the
    false-positive rate f it finds Phi(Phi^-1(f) + d)."""
    found = attack(leak, pairs=150, images=40)
    assert found.area.value == pytest.approx(NORMAL.cdf(leak / math.sqrt(2)), abs=0.015)
    (rate, hits), = found.hits
    assert hits.value == pytest.approx(NORMAL.cdf(NORMAL.inv_cdf(rate) + leak), abs=0.03)


@pytest.mark.slow
def test_where_nothing_leaks_the_interval_holds_chance() -> None:
    found = [attack(0.0, pairs=8, images=60, seed=seed) for seed in range(12)]
    assert sum(each.area.low <= 0.5 <= each.area.high for each in found) >= 11
    assert np.mean([each.area.value for each in found]) == pytest.approx(0.5, abs=0.015)
    assert sum(each.hits[0][1].low <= 0.1 <= each.hits[0][1].high for each in found) >= 11


def test_a_leak_that_is_there_lies_outside_of_chance() -> None:
    assert attack(1.0, pairs=8, images=60).area.low > 0.6


def test_scores_that_are_all_the_same_tell_nothing() -> None:
    members_UN = halves(20, 4, generator=np.random.default_rng(0))
    ratios_UN = likelihood_ratios(np.full(members_UN.shape, 2.5), members_UN)
    found = attacked(ratios_UN, members_UN, rates=(0.5,), generator=np.random.default_rng(0))
    assert (found.area.value, found.area.low, found.area.high) == (0.5, 0.5, 0.5)
    assert found.hits[0][1].value == 0.5


def test_rates_that_the_images_do_not_allow_are_left_out() -> None:
    """8 updates of 50 images outside each: 400, of which 1 % are 4 and 10 % are 40."""
    found = attack(0.0, pairs=4, images=100, rates=(0.01, 0.1))
    assert [rate for rate, _ in found.hits] == [0.1]
    assert found.trials == 800


@each_of("epsilon", [0.1, 1.0, 4.0])
def test_randomised_response_reaches_what_epsilon_allows_and_no_more(epsilon: float) -> None:
    """It tells the truth with p = e^eps / (1 + e^eps): found p, falsely accused 1 - p, and the area under the straight
    lines from there to (0, 0) and (1, 1) is p. Half way along them it finds p / 2 and (1 + p) / 2."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert allowed_hits(1 - truth, epsilon=epsilon, delta=0.0) == pytest.approx(truth)
    assert allowed_hits((1 - truth) / 2, epsilon=epsilon, delta=0.0) == pytest.approx(truth / 2)
    assert allowed_hits(1 - truth / 2, epsilon=epsilon, delta=0.0) == pytest.approx((1 + truth) / 2)
    assert allowed_area(epsilon=epsilon, delta=0.0) == pytest.approx(truth)


def test_the_gaussian_mechanism_stays_below_what_its_epsilon_and_delta_allow_and_touches_it() -> None:
    """delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2): Balle and Wang, ICML 2018, theorem 8. Its ROC curve
    is Phi(Phi^-1(f) + mu), which the line e^eps f + delta touches where its slope is e^eps."""
    mu, epsilon = 1.0, 1.5
    delta = NORMAL.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * NORMAL.cdf(-epsilon / mu - mu / 2)
    for rate in (0.001, 0.01, 0.1, 0.3, 0.7, 0.99):
        assert NORMAL.cdf(NORMAL.inv_cdf(rate) + mu) <= allowed_hits(rate, epsilon=epsilon, delta=delta) + 1e-12
    touching = NORMAL.cdf(-epsilon / mu - mu / 2)
    assert NORMAL.cdf(NORMAL.inv_cdf(touching) + mu) == pytest.approx(
        allowed_hits(touching, epsilon=epsilon, delta=delta))


def test_without_a_promise_everything_is_allowed_and_with_a_perfect_one_chance() -> None:
    assert allowed_hits(0.2, epsilon=1000.0, delta=0.0) == 1.0
    assert allowed_hits(0.2, epsilon=0.0, delta=0.0) == pytest.approx(0.2)
    assert allowed_area(epsilon=0.0, delta=0.0) == pytest.approx(0.5)
    assert allowed_area(epsilon=0.0, delta=1.0) == 1.0


def test_exchanging_an_image_for_another_costs_two_steps() -> None:
    """P(a) <= e^eps P(o) + delta and P(o) <= e^eps P(b) + delta, so P(a) <= e^(2 eps) P(b) + (1 + e^eps) delta."""
    assert of_replacement(math.log(2), 0.001) == pytest.approx((2 * math.log(2), 0.003))
