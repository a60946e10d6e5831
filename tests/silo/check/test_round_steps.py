"""The steps of a round as `silo check` tells them: those that the trainer takes, and batches that may not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semisilo.common.methods.contract import TaskSpec
from semisilo.silo.check.needs import StudyNeeds
from semisilo.silo.check.round_steps import look_at_batch, steps_of_round
from tests.each_of import each_of
from tests.silo.fake_coordinator import make_task

AT_SILO = {"scenario": "labels-at-silo"}
FIXMATCH = {**AT_SILO, "objective": "fixmatch"}


def needs(method: str, settings: dict[str, Any]) -> StudyNeeds:
    task: TaskSpec = replace(make_task(), method=method, settings=settings)
    return StudyNeeds(task=task, begun=True, state="running", round=1, dense_bytes=0, own_rounds=(),
                      typical_update_bytes=0, typical_round_seconds=None, round_timeout_seconds=60.0)


@each_of(("method", "settings", "labelled", "steps"), [
    ("semifl", {"local_epochs": 3, "unlabelled_batch": 10}, 20, 3 * 12),
    ("self_training", {"local_epochs": 3, "unlabelled_batch": 10}, 20, 3 * 12),
    ("self_training", {"local_epochs": 3, "unlabelled_batch": 10, "scenario": "labels-at-both"}, 20, 3 * 10 + 40),
    ("self_training", {"local_epochs": 3, "unlabelled_batch": 10, "scenario": "labels-at-both"}, 0, 3 * 10),
])
def test_the_steps_of_a_round_are_passes_over_the_images_and_the_steps_that_labels_get(
        method: str, settings: dict[str, object], labelled: int, steps: int) -> None:
    found = steps_of_round(needs(method, settings), labelled=labelled, unlabelled=100)
    assert (found.timed_batch, found.batch, found.steps) == (10, 10, steps)


@pytest.mark.parametrize(("method", "settings", "labelled", "steps", "batch", "timed"), [
    ("fedavg", FIXMATCH, 8, 1, 20_000, 100),
    ("fedavg", FIXMATCH, 500, 50, 400, 100),
    ("fedavg", {**FIXMATCH, "local_epochs": 2}, 0, 400, 100, 100),
    ("fedavg", {**FIXMATCH, "steps_rule": "fed_shvr"}, 8, 200, 100, 100),
    ("fedavg", {**AT_SILO, "objective": "sl", "labelled_batch": 4}, 8, 2, 4, 4),
    ("fedprox", {"scenario": "labels-at-coordinator", "objective": "fixmatch"}, 8, 200, 100, 100),
    ("fedsgd", {**FIXMATCH, "unlabelled_batch": 70}, 8, 1, 70, 70),
    ("fedmatch", {**AT_SILO, "preset": "paper_v3", "local_epochs": 3}, 8, 3, 20_000, 100),
    ("fedmatch", {**AT_SILO, "preset": "paper_v1", "local_epochs": 3}, 8, 1200, 50, 50),
    ("fed_shvr", {"local_epochs": 2}, 8, 1250, 32, 32),
])
def test_where_a_method_has_a_plan_it_is_that_of_its_trainer(
        method: str, settings: dict[str, object], labelled: int, steps: int, batch: int, timed: int) -> None:
    """20,000 images without a label: batches of 100 and 201 steps were forecast where there was one of 20,000."""
    found = steps_of_round(needs(method, settings), labelled=labelled, unlabelled=20_000 - (
        labelled if method == "fedprox" else 0))
    assert (found.steps, found.batch, found.timed_batch) == (steps, batch, timed)


@pytest.mark.parametrize(("method", "settings", "mend"), [
    ("fedavg", FIXMATCH, 'steps_rule = "fed_shvr"'),
    ("fedmatch", {**AT_SILO, "preset": "paper_v3"}, 'steps_by = "unlabelled"')])
def test_a_batch_far_above_what_the_study_says_is_told_with_what_mends_it(
        method: str, settings: dict[str, object], mend: str) -> None:
    finding, = look_at_batch(needs(method, settings), labelled=8, unlabelled=20_000)
    assert finding.state == "warning"
    assert "a step takes 20000 unlabelled images at once" in finding.text
    assert "unlabelled_batch = 100" in finding.text
    assert mend in finding.remedy
    key, _, value = mend.partition(" = ")
    mended = needs(method, {**settings, key: value.strip('"')})
    for other, labelled, unlabelled in ((mended, 8, 20_000), (needs(method, settings), 0, 20_000),
                                        (needs(method, settings), 8, 400), (needs("semifl", {}), 8, 20_000)):
        assert look_at_batch(other, labelled=labelled, unlabelled=unlabelled) == []
