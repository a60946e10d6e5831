"""Numbers of steps and the images of each: the papers' formulas, and that no image is lost or comes twice."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from semisilo.silo.objectives.steps import StepPlan, image_batches, plan_steps
from tests.each_of import each_of


def _fedmatch(n: int, m: int, *, epochs: int = 1, labelled: int = 10, unlabelled: int = 100) -> StepPlan:
    return plan_steps("fedmatch", num_labelled=n, num_unlabelled=m, epochs=epochs, labelled_batch=labelled,
                      unlabelled_batch=unlabelled)


def _fed_shvr(n: int, m: int, *, epochs: int = 2, labelled: int = 32, unlabelled: int = 32) -> StepPlan:
    return plan_steps("fed_shvr", num_labelled=n, num_unlabelled=m, epochs=epochs, labelled_batch=labelled,
                      unlabelled_batch=unlabelled)


def _batches(plan: StepPlan, count: int, batch: int) -> list[list[int]]:
    return [part.tolist() for part in image_batches(plan, count, batch, torch.Generator().manual_seed(0))]


@each_of(("n", "m", "steps", "unlabelled"), [
    (50, 490, 5, 98),   # FedMatch on CIFAR-10, paper's count
    (50, 510, 5, 102),  # the code's count: its 102
    (57, 60, 6, 10), (55, 60, 6, 10), (45, 60, 4, 15),  # 5.7 -> 6; 5.5 -> 6 and 4.5 -> 4, half to even
    (3, 40, 1, 40),     # less than a batch: one step
    (50, 0, 5, 0),      # no unlabelled images
    (0, 490, 5, 100), (0, 30, 1, 100),  # no labels: from unlabelled_batch
])
def test_fedmatchs_steps_follow_the_labels(n: int, m: int, steps: int, unlabelled: int) -> None:
    plan = _fedmatch(n, m)
    assert (plan.steps, plan.steps_per_epoch, plan.unlabelled_batch) == (steps, steps, unlabelled)
    assert _fedmatch(n, m, epochs=3).steps == 3 * steps


@each_of(("n", "m", "steps"), [
    (60, 5940, 371),  # the paper's own number, floor(2 * 5940 / 32)
    (60, 0, 3),       # FedAvg with 600 labels on MNIST
    (100, 640, 40), (5, 0, 1), (0, 5, 1), (320, 64, 20),
])
def test_fed_shvrs_steps_follow_the_larger_set(n: int, m: int, steps: int) -> None:
    assert _fed_shvr(n, m).steps == steps


def test_a_silo_without_images_has_no_plan() -> None:
    with pytest.raises(ValueError, match="without images"):
        _fedmatch(0, 0)


def test_in_an_epoch_every_image_comes_at_most_once() -> None:
    plan = _fedmatch(52, 488, epochs=2)  # 5 steps of 98: 490 places for 488 images
    for count, batch, missing in ((52, plan.labelled_batch, 2), (488, plan.unlabelled_batch, 0)):
        parts = _batches(plan, count, batch)
        epochs = [list(chain(*parts[:5])), list(chain(*parts[5:]))]
        assert all(len(set(epoch)) == len(epoch) == count - missing for epoch in epochs)
        assert epochs[0] != epochs[1]


def test_late_steps_of_an_epoch_may_have_no_unlabelled_image() -> None:
    plan = _fedmatch(50, 6)
    assert [len(part) for part in _batches(plan, 6, plan.unlabelled_batch)] == [2, 2, 2, 0, 0]


def test_cycled_sets_come_round_evenly_in_full_batches() -> None:
    plan = _fed_shvr(60, 640)
    parts = _batches(plan, 60, plan.labelled_batch)
    assert len(parts) == plan.steps == 40
    assert {len(part) for part in parts} == {32}
    seen = list(chain(*parts))
    assert sorted(seen[:60]) == sorted(seen[60:120]) == list(range(60))
    assert seen[:60] != seen[60:120]


def test_a_set_smaller_than_a_batch_is_the_batch() -> None:
    plan = _fed_shvr(20, 64)
    assert plan.labelled_batch == 20
    assert all(sorted(part) == list(range(20)) for part in _batches(plan, 20, plan.labelled_batch))


def test_without_images_all_steps_are_empty() -> None:
    assert _batches(_fedmatch(50, 0), 0, 0) == [[]] * 5


def test_the_last_pass_holds_every_image_once_as_far_as_batches_go() -> None:
    plan = _fedmatch(50, 488, epochs=3)
    assert plan.last_pass(plan.unlabelled_batch, 488) == 10
    cycled = _fed_shvr(0, 100, epochs=4)  # 12 steps of 32; one pass takes 4
    assert cycled.last_pass(cycled.unlabelled_batch, 100) == 8
