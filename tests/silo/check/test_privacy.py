"""What `silo check` says of a study's cost in privacy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semisilo.common.data.form import AugmentationSettings, ImageForm, Reading
from semisilo.common.errors import NotPermitted
from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of
from semisilo.common.methods.contract import ModelSettings, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.silo.check.needs import StudyNeeds
from semisilo.silo.check.privacy import look_at_privacy
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import DataPolicy, Policy, PrivacyPolicy
from semisilo.silo.site.privacy.images import check_apart
from semisilo.silo.site.privacy.ledger import PrivacyLedger, Spending

DP = DifferentialPrivacy(noise_multiplier=1.0)
LINE = Spending(time="2026-01-01T00:00:00+00:00", study="s", round=1, phase="train", task_id="s/1/0-train/a",
                fingerprint="f1", images=100, noise_multiplier=1.0, clip_norm=1.0, sampling_rate=0.5, steps=2,
                study_delta=1e-5, study_epsilon=5.0, delta=1e-5, epsilon=5.0)


def needs(dp: DifferentialPrivacy | None = DP, *, round: int = 0, **settings: Any) -> StudyNeeds:
    task = TaskSpec(
        task_id="s/check", study="s", round=1, rounds=8, phase="check", silo="a", method="fedavg",
        settings={"objective": "fixmatch", "scenario": "labels-at-coordinator", "unlabelled_batch": 50, **settings},
        model=ModelSettings(), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)),
        augmentation=AugmentationSettings(), numerics=Numerics(), payloads=(), last_folded_round=0, seed=1, dp=dp)
    return StudyNeeds(task=task, begun=True, state="running", round=round, dense_bytes=0, own_rounds=(),
                      typical_update_bytes=0, typical_round_seconds=None, round_timeout_seconds=60.0)


def after(steps: int) -> float:
    return epsilon_of([NoisySteps(noise_multiplier=1.0, sampling_rate=0.5, steps=steps)], 1e-5)


def policy(max_epsilon: float) -> Policy:
    return Policy(privacy=PrivacyPolicy(max_epsilon=max_epsilon))


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "fit", "state"), [(0.0, 8, "ok"), (16, 8, "ok"), (15, 7, "warning"),
                                                     (2, 1, "warning"), (0.5, 0, "bad")])
def test_it_says_how_many_rounds_fit(tmp_path: Path, limit: float, fit: int, state: str) -> None:
    """100 images without a label in steps of 50: two steps a round with rate 1/2, sixteen in all. A whole number is a
    limit that so many steps reach exactly."""
    limit = after(limit) if isinstance(limit, int) else limit
    found, = look_at_privacy(SiloHome(tmp_path), policy(limit), needs(), labelled=40, unlabelled=60)
    assert (found.state, found.facts["rounds_that_fit"]) == (state, fit)
    assert found.facts["epsilon_after_study"] == after(16)
    assert ("[privacy] max_epsilon" in found.remedy) is (fit < 8)


@pytest.mark.slow
def test_it_says_how_many_rounds_the_studys_own_promise_leaves(tmp_path: Path) -> None:
    """Of eight rounds five are done and three of them again, after the study went back to the second."""
    home, promised = SiloHome(tmp_path), needs(DifferentialPrivacy(target_epsilon=2.0, clip_norm=0.5), round=2)
    found, = look_at_privacy(home, policy(0.0), promised, labelled=40, unlabelled=60)
    assert (found.state, found.facts["rounds_that_fit"]) == ("ok", 6)
    noise = found.facts["noise_multiplier"]
    assert isinstance(noise, float)
    PrivacyLedger(home.privacy).append(replace(LINE, study=promised.task.study, noise_multiplier=noise, steps=10))
    found, = look_at_privacy(home, policy(0.0), promised, labelled=40, unlabelled=60)
    assert (found.state, found.facts["rounds_that_fit"]) == ("warning", 3)
    assert "target_epsilon = 2" in found.text


@pytest.mark.slow
def test_what_a_study_of_its_name_has_spent_in_another_federation_leaves_the_promise_as_it_is(tmp_path: Path) -> None:
    home, promised = SiloHome(tmp_path), needs(DifferentialPrivacy(target_epsilon=2.0, clip_norm=0.5), round=2)
    PrivacyLedger(home.privacy).append(replace(LINE, study=promised.task.study, steps=1000, authority="aa"))
    fit = {authority: look_at_privacy(home, policy(0.0), promised, labelled=40, unlabelled=60,
                                      authority=authority)[0].facts["rounds_that_fit"] for authority in ("aa", "bb")}
    assert fit == {"aa": 0, "bb": 6}


def test_what_was_spent_before_and_rounds_that_are_over_count(tmp_path: Path) -> None:
    PrivacyLedger(tmp_path / "privacy").append(LINE)
    found, = look_at_privacy(SiloHome(tmp_path), policy(0.0), needs(round=3), labelled=0, unlabelled=100)
    assert (found.facts["epsilon"], found.facts["rounds_left"]) == (after(2), 5)
    assert found.facts["epsilon_after_study"] == after(12)


def test_images_that_the_study_does_not_use_cost_nothing(tmp_path: Path) -> None:
    sl = needs(scenario="labels-at-silo", objective="sl", labelled_batch=10)
    sl = replace(sl, task=replace(sl.task, settings={"objective": "sl", "labelled_batch": 20}))
    found, = look_at_privacy(SiloHome(tmp_path), policy(0.0), sl, labelled=40, unlabelled=60)
    assert (found.facts["sampling_rate"], found.facts["steps_per_round"]) == (0.5, 2)


def test_noise_behind_masks_counts_one_step_a_round_of_half_the_noise(tmp_path: Path) -> None:
    """An image that is replaced moves a contribution of the clip's length by at most twice that."""
    silos = needs(replace(DP, unit="silo"), weighting="uniform")
    assert look_at_privacy(SiloHome(tmp_path), policy(0.0), silos, labelled=40, unlabelled=60) == []
    found, = look_at_privacy(SiloHome(tmp_path), policy(0.0), replace(silos, task=replace(silos.task, secure=b"x")),
                             labelled=40, unlabelled=60)
    assert found.facts["epsilon_after_study"] == epsilon_of(
        [NoisySteps(noise_multiplier=0.5, sampling_rate=1.0, steps=8)], 1e-5)


def test_without_such_a_study_it_says_what_is_spent_or_nothing(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    assert look_at_privacy(home, policy(0.0), needs(None), labelled=1, unlabelled=1) == []
    PrivacyLedger(home.privacy).append(LINE)
    found, = look_at_privacy(home, policy(0.0), None, labelled=1, unlabelled=1)
    assert found.text == "epsilon 5 spent (delta 1e-05)"


def test_a_damaged_ledger_is_a_finding(tmp_path: Path) -> None:
    PrivacyLedger(tmp_path / "privacy").append(LINE)
    PrivacyLedger(tmp_path / "privacy").path.write_text("{}\n")
    found, = look_at_privacy(SiloHome(tmp_path), policy(0.0), needs(), labelled=40, unlabelled=60)
    assert found.state == "bad"


@pytest.mark.parametrize(("bits", "window", "state"), [(16, False, "bad"), (8, False, "ok"), (16, True, "ok")])
def test_images_whose_black_and_white_are_found_together_are_refused_as_the_first_task_would(
        tmp_path: Path, bits: int, window: bool, state: str) -> None:
    """It promised sixteen noisy steps, and every task was refused."""
    scans = tmp_path / "scans"
    scans.mkdir()
    for number in range(3):
        pixels = np.full((8, 8), 40 * (number + 1), np.uint8) if bits == 8 else np.full((8, 8), 900 * (number + 1),
                                                                                        np.uint16)
        Image.fromarray(pixels).save(scans / f"{number}.png")
    asked = needs()
    if window:
        asked = replace(asked, task=replace(asked.task, image=replace(asked.task.image, reading=Reading(
            window=(1000.0, 2000.0)))))
    site = Policy(data=DataPolicy(source=str(scans)))
    found, = look_at_privacy(SiloHome(tmp_path / "home"), site, asked, labelled=0, unlabelled=3)
    assert found.state == state
    if state == "bad":
        with pytest.raises(NotPermitted) as refused:
            check_apart(DP, ("16 bits",))
        assert (found.text, found.remedy) == (refused.value.text, refused.value.remedy)
        assert found.facts["code"] == NotPermitted.code


@pytest.mark.parametrize(("dp", "site", "said"), [
    (replace(DP, delta=0.5), Policy(), "[privacy.dp] delta of the study = 0.5 says little with 100 images"),
    (DP, Policy(privacy=PrivacyPolicy(delta=0.02)), "[privacy] delta of silo.toml = 0.02 says little with 100 images")])
def test_a_delta_that_says_little_is_told_before_the_first_task(tmp_path: Path, dp: DifferentialPrivacy, site: Policy,
                                                                said: str) -> None:
    found, = look_at_privacy(SiloHome(tmp_path), site, needs(dp), labelled=40, unlabelled=60)
    assert (found.state, found.text.startswith(said)) == ("bad", True)


def test_a_method_without_such_privacy_is_told_before_the_first_task(tmp_path: Path) -> None:
    asked = needs()
    found, = look_at_privacy(SiloHome(tmp_path), Policy(), replace(asked, task=replace(asked.task, method="scaffold")),
                             labelled=40, unlabelled=60)
    assert found.state == "bad"
    assert found.text.startswith("The study's [privacy.dp]: ")
