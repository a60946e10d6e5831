"""Prior correction: Saerens et al. by hand, and the estimate on classes whose shares are known."""

from __future__ import annotations

import numpy as np
import pytest

from semisilo.common.learning.imbalance.prevalence import estimate_prevalence, implied_prior, reweighted
from tests.each_of import each_of


def test_reweighted_is_saerens_equation_2_4() -> None:
    """p 0.8, 0.2; trained 0.5, 0.5; prevalence 0.1, 0.9: 0.16 : 0.36."""
    found = reweighted(np.array([[0.8, 0.2]]), trained=[0.5, 0.5], prevalence=[0.1, 0.9])
    assert found[0].tolist() == pytest.approx([0.16 / 0.52, 0.36 / 0.52])


def test_the_prior_of_training_changes_nothing_and_a_class_that_is_not_there_is_never_given() -> None:
    p = np.array([[0.8, 0.1, 0.1], [0.0, 0.0, 1.0]])
    same = reweighted(p, trained=[0.2, 0.3, 0.5], prevalence=[0.2, 0.3, 0.5])
    assert same == pytest.approx(p)
    without = reweighted(p, trained=[0.2, 0.3, 0.5], prevalence=[0.5, 0.5, 0.0])
    assert without[0, 2] == 0
    assert without[1].tolist() == [0.5, 0.5, 0.0], "nothing else is known of it"


@each_of(("trained", "prevalence"), [([0.5], [0.5]), ([0.0, 1.0], [0.5, 0.5]), ([0.5, 0.5], [-1, 2]),
                                     ([0.5, 0.5], [0, 0])])
def test_what_is_no_prior_is_refused(trained: list[float], prevalence: list[float]) -> None:
    with pytest.raises(ValueError, match="shares"):
        reweighted(np.array([[0.5, 0.5]]), trained=trained, prevalence=prevalence)


def test_what_training_implies() -> None:
    """tau 1 and balanced sampling: uniform; tau 0.5 of 0.8, 0.2: 2 : 1."""
    assert implied_prior([0.8, 0.2]).tolist() == pytest.approx([0.8, 0.2])
    assert implied_prior([0.8, 0.2], logit_adjustment=1.0).tolist() == [0.5, 0.5]
    assert implied_prior([0.8, 0.2], class_balanced=True).tolist() == [0.5, 0.5]
    assert implied_prior([0.8, 0.2], logit_adjustment=0.5).tolist() == pytest.approx([2 / 3, 1 / 3])


def test_the_estimate_finds_the_prevalence_that_bayes_was_given() -> None:
    """Two normal distributions one deviation to either side of 0: the posterior under equal classes is 1/(1 + e^{-2x}).
    Of 20,000 draws with 10 % of the one, the estimate finds 10 %."""
    generator = np.random.default_rng(0)
    is_rare = generator.random(20_000) < 0.1
    x = generator.normal(np.where(is_rare, 1.0, -1.0))
    p_rare = 1 / (1 + np.exp(-2 * x))
    found = estimate_prevalence(np.stack([p_rare, 1 - p_rare], axis=1), trained=[0.5, 0.5])
    assert found.settled
    assert found.shares[0] == pytest.approx(float(is_rare.mean()), abs=0.01)
    assert sum(found.shares) == pytest.approx(1)


def test_one_step_of_the_estimate_by_hand() -> None:
    """Certain images are counted: 3 of class 0, 1 of class 1, whatever the prior."""
    p = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]])
    assert estimate_prevalence(p, trained=[0.9, 0.1]).shares == pytest.approx((0.75, 0.25))


def test_smoothing_counts_a_share_of_the_images_once_more_evenly() -> None:
    """Images that could only be of class 0: the shares are its images and the extra ones."""
    p_NK = np.array([[1.0, 0.0, 0.0]] * 20)
    found = estimate_prevalence(p_NK, trained=(0.2, 0.3, 0.5), smoothing=0.3)
    assert found.settled
    assert found.shares == pytest.approx(((1 + 0.1) / 1.3, 0.1 / 1.3, 0.1 / 1.3), abs=1e-7)
    assert estimate_prevalence(p_NK, trained=(0.2, 0.3, 0.5)).shares == pytest.approx((1.0, 0.0, 0.0), abs=1e-7)
