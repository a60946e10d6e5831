"""The steps that `silo check --measure` times are those that a trainer takes: the same optimiser, clipping and all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from semisilo.common.data.form import ImageForm
from semisilo.common.learning.sgd import SGDSettings
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.numerics.passes import Term
from semisilo.silo.check import measure_operations
from semisilo.silo.check.measure_operations import Operations, descent_of
from semisilo.silo.compute.messages import MeasureSteps
from semisilo.silo.trainers.fedavg import sgd_settings
from tests.silo.fake_coordinator import make_task

TASK = replace(make_task(), image=ImageForm(size=8, channels=1, mean=(0.3,), std=(0.35,)),
               model=ModelSettings(name="small_cnn", classes=("0", "1", "2")))


@pytest.mark.slow
def test_the_optimiser_that_trains_is_timed_with_the_settings_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[SGDSettings] = []
    real = measure_operations.learn

    def counting(optimiser: Any, terms: Sequence[Term]) -> None:
        taken.append(optimiser.settings)
        assert len(terms) == 2, "a step of SemiFL has two passes"
        real(optimiser, terms)
        assert optimiser.buffers, "momentum is part of a step"

    monkeypatch.setattr(measure_operations, "learn", counting)
    monkeypatch.setattr(measure_operations, "_MOST_STEPS", 3)
    task = replace(TASK, method="semifl", settings={"momentum": 0.7, "nesterov": True, "clip_norm": 0.25,
                                                    "weight_decay": 0.125})
    found = Operations(lambda fraction, text: None).measure(MeasureSteps(task=task, batch=4))
    assert (found.batch, found.device) == (4, "cpu")
    assert 1 <= found.steps <= 3
    assert found.seconds_per_step > 0
    assert len(taken) == found.steps + 2, "two to warm up, and as many as are said to be timed"
    assert {(each.momentum, each.nesterov, each.clip_norm, each.weight_decay) for each in taken} == {
        (0.7, True, 0.25, 0.125)}


def test_what_is_timed_is_the_descent_of_the_methods_trainer_but_for_the_rate() -> None:
    from semisilo.common.methods.fedavg import FedAvgSettings

    said = {"scenario": "labels-at-silo", "objective": "sl", "momentum": 0.5, "nesterov": True, "clip_norm": 2.0,
            "weight_decay": 0.01}
    settings = FedAvgSettings(**said)  # type: ignore[arg-type]
    trained = sgd_settings(settings, settings.round_lr, nesterov=settings.nesterov)
    assert replace(descent_of(replace(TASK, method="fedavg", settings=said)), lr=trained.lr) == trained


@pytest.mark.parametrize("method", ["fedmatch", "fedmix"])
def test_a_method_without_a_setting_of_its_own_does_not_do_what_it_would_set(method: str) -> None:
    assert not descent_of(replace(TASK, method=method, settings={})).nesterov
