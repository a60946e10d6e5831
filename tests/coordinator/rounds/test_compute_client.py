"""How often a step of the compute process is tried."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import ComputeFailed, PluginFailed
from semisilo.coordinator.compute.messages import OpenedStudy, Phases
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.rounds.compute_client import ComputeSteps
from semisilo.coordinator.studies.study_file import config_from_dict

FROZEN = FrozenStudy(classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), num_labelled=2,
                     num_validation=0, num_test=0, num_parameters=4, dense_bytes=16)


@pytest.mark.parametrize(("kind", "times"), [(ComputeFailed, 3), (PluginFailed, 1)])
def test_a_step_that_fails_is_tried_again_unless_it_says_that_it_fails_in_the_same_way(
        kind: type[ComputeFailed], times: int) -> None:
    asked: list[object] = []

    class Failing:
        async def call(self, request: object, *, on_progress: object = None) -> None:
            asked.append(request)
            raise kind("The strategy is broken.")

    steps = ComputeSteps(compute=cast(Any, Failing()), ledger=cast(Any, None), runtime=cast(Any, None),
                         studies=cast(Any, None), payloads=cast(Any, None))
    with pytest.raises(kind):
        asyncio.run(steps.call(Phases(state="00", round=1, silos=1), activity=None))
    assert len(asked) == times


@pytest.mark.parametrize(("before", "now", "told"), [
    ("ab" * 32, "cd" * 32, True), ("ab" * 32, "ab" * 32, False), ("ab" * 32, "", True), ("", "cd" * 32, False)])
def test_a_study_that_resumes_with_other_code_of_a_plug_in_says_so_and_writes_it_down(
        caplog: pytest.LogCaptureFixture, before: str, now: str, told: bool) -> None:
    """As after an upgrade of the package in the middle of it; of a study of an earlier version nothing is known."""
    events: list[tuple[str, dict[str, object]]] = []
    frozen = replace(FROZEN, code=before)

    class Opening:
        async def call(self, request: object, *, on_progress: object = None) -> OpenedStudy:
            return OpenedStudy(frozen=frozen, numerics=cast(Any, None), code=now)

    ledger = SimpleNamespace(event=lambda kind, **about: events.append((kind, about)))
    runtime = SimpleNamespace(set=lambda **about: None, progress=None)
    steps = ComputeSteps(compute=cast(Any, Opening()), ledger=cast(Any, ledger), runtime=cast(Any, runtime),
                         studies=Path("studies"), payloads=Path("payloads"))
    row = SimpleNamespace(name="first", frozen=frozen, numerics=None)
    with caplog.at_level(logging.WARNING):
        asyncio.run(steps.open_study(cast(Any, row), config_from_dict(
            {"data": {"image": {"size": 8, "channels": 1}}, "method": {"name": "semifl"}}, where="test")))
    assert events == ([("code_changed", {"study": "first", "before": before, "after": now})] if told else [])
    assert ("resumes with other code" in caplog.text) is told
