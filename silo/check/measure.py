"""`silo check --measure`: a few plain training steps of the study's network, in a compute process of their own.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict

from semisilo.common.config import from_dict
from semisilo.common.errors import SemisiloError
from semisilo.common.methods import find_method, silos_have_labels
from semisilo.common.models.own.model_file import PermittedCode
from semisilo.common.process.compute import ProcessCompute
from semisilo.common.text.describe import describe_seconds
from semisilo.silo.check.finding import Finding, bad
from semisilo.silo.check.needs import StudyNeeds
from semisilo.silo.compute.messages import MeasuredSteps, MeasureSteps

__all__ = ["measure_steps", "steps_per_round"]

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
    batch, steps = steps_per_round(needs, labelled=labelled, unlabelled=unlabelled)

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
    seconds = steps * found.seconds_per_step
    return Finding(
        what="training", state="ok",
        text=f"{1000 * found.seconds_per_step:.1f} ms for a step with {batch} images on {found.device} "
             f"({found.steps} steps timed); {steps} such steps a round: {describe_seconds(seconds)}",
        facts={**asdict(found), "steps_per_round": steps, "seconds_per_round": round(seconds, 3)}), seconds


def steps_per_round(needs: StudyNeeds, *, labelled: int, unlabelled: int) -> tuple[int, int]:
    """(images in a batch, steps in a round) of this silo by the settings of the study: passes over all its images.

    Where `labelled_steps` says how many steps its labels get, these and passes over the other images.

    Methods whose steps follow another rule take about as many; what they do beside plain steps is not in it.
    """
    spec = find_method(needs.task.method)
    settings: object = from_dict(spec.settings, needs.task.settings, where=f"settings of {spec.name}")
    batch = int(getattr(settings, "unlabelled_batch", 0) or getattr(settings, "labelled_batch", 0) or 32)
    epochs = int(getattr(settings, "local_epochs", 1) or 1)
    own = 0
    if labelled and silos_have_labels(getattr(settings, "scenario", "labels-at-silo")):
        own = int(getattr(settings, "labelled_steps", 0))
    images = unlabelled if own else labelled + unlabelled
    return batch, max(1, own + epochs * math.ceil(images / batch))
