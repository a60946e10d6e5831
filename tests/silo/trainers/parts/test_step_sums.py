"""What the steps of a round add up to."""

from __future__ import annotations

import logging

import pytest
import torch

from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.silo.trainers.parts.step_sums import StepSums


def test_losses_are_means_over_the_steps_and_batches_that_batch_norm_cannot_use_are_counted() -> None:
    sums = StepSums()
    for value in (1.0, 2.0, None, 6.0):
        with sums.batch():
            if value is None:
                raise OneValuePerChannel("bn1")
            sums.add(loss=torch.tensor(value, requires_grad=True), fix_loss=torch.tensor(2 * value))
    assert (sums.steps, sums.skipped) == (3, 1)
    assert sums.metrics() == {"steps": 3.0, "loss": 3.0, "fix_loss": 6.0}


def test_without_a_step_there_is_no_mean() -> None:
    assert StepSums().metrics() == {"steps": 0.0}


def test_other_errors_pass() -> None:
    sums = StepSums()
    with pytest.raises(ZeroDivisionError), sums.batch():
        raise ZeroDivisionError
    assert sums.skipped == 0


def test_the_log_says_how_many_batches_were_skipped_and_nothing_when_none_was(
        caplog: pytest.LogCaptureFixture) -> None:
    sums = StepSums()
    sums.add(loss=torch.tensor(1.0))
    with caplog.at_level(logging.WARNING):
        sums.tell_skipped()
        assert not caplog.records
        with sums.batch():
            raise OneValuePerChannel("bn1")
        sums.tell_skipped()
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 2 batches were skipped: one value per channel at a batch-norm layer"]
