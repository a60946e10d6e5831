"""`silo check --measure`: a few plain training steps of the study's network, in a compute process of their own.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from semisilo.common.errors import SemisiloError
from semisilo.common.models.own.model_file import PermittedCode
from semisilo.common.process.compute import ProcessCompute
from semisilo.common.text.describe import counted, describe_seconds
from semisilo.silo.check.finding import Finding, bad
from semisilo.silo.check.needs import StudyNeeds
from semisilo.silo.check.round_steps import steps_of_round
from semisilo.silo.compute.messages import MeasuredSteps, MeasureSteps

__all__ = ["measure_steps"]

_LONGEST_SECONDS = 120.0


def measure_steps(needs: StudyNeeds, code: tuple[PermittedCode, ...], *, labelled: int,
                  unlabelled: int) -> tuple[Finding, float | None]:
    """Times steps, and what a round of them would take; (finding, seconds of a round or None).

    Args:
        code: what may build networks here.
        labelled, unlabelled: images of this silo with and without a label.
    """
    if not needs.begun:
        return Finding(what="training", state="unknown", text="Not measured: the form of the images is known once the "
                                                              "study has begun."), None
    plan = steps_of_round(needs, labelled=labelled, unlabelled=unlabelled)
    batch, steps = plan.timed_batch, plan.steps

    async def ask() -> MeasuredSteps:
        compute = ProcessCompute("semisilo.silo.check.measure_operations:Operations")
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                return await compute.call(MeasureSteps(task=needs.task, batch=batch,
                                                       factories=code))
        finally:
            await compute.close()

    try:
        found = asyncio.run(ask())
    except SemisiloError as error:
        return bad("training", error), None
    except TimeoutError:
        return Finding(what="training", state="warning",
                       text=f"A training step of the study's network takes longer than {_LONGEST_SECONDS:.0f} s.",
                       remedy="Use a machine with a GPU, or more threads in the study's [numerics]."), None
    seconds = steps * found.seconds_per_step * plan.batch / batch
    larger = "" if plan.batch == batch else f" of {plan.batch} images each"
    return Finding(
        what="training", state="ok",
        text=f"{1000 * found.seconds_per_step:.1f} ms for a step with {batch} images on {found.device} "
             f"({found.steps} steps timed); {counted(steps, 'step')}{larger} a round: {describe_seconds(seconds)}",
        facts={**asdict(found), "steps_per_round": steps, "largest_batch": plan.batch,
               "seconds_per_round": round(seconds, 3)}), seconds
