"""How often a step of the compute process is tried."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from semisilo.common.errors import ComputeFailed, PluginFailed
from semisilo.coordinator.compute.messages import Phases
from semisilo.coordinator.rounds.compute_client import ComputeSteps


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
