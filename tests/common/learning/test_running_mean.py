"""A mean that is summed where its values are."""

from __future__ import annotations

import math

import torch

from semisilo.common.learning.running_mean import RunningMean


def test_the_mean_of_what_was_added_each_as_often_as_it_counts() -> None:
    mean = RunningMean()
    mean.add(torch.tensor(1.0))
    mean.add(torch.tensor(4.0), count=2)
    assert mean.value() == 3.0
    assert mean.named("loss") == {"loss": 3.0}


def test_nothing_has_no_mean_and_no_name() -> None:
    assert math.isnan(RunningMean().value())
    assert RunningMean().value(otherwise=0.0) == 0.0
    assert RunningMean().named("loss") == {}


def test_sums_are_of_float64_so_that_many_steps_lose_nothing() -> None:
    mean = RunningMean()
    mean.add(torch.tensor(2.0**24))
    for _ in range(16):
        mean.add(torch.tensor(1.0))
    assert mean.value() == (2**24 + 16) / 17, "float32 would have stopped at 2^24"
