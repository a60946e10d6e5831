"""Labels alone, trained in slices: while the coordinator waits for silos and after the rounds, or all before round 1.

Before round 1 where the study starts from their model (docs/decisions/0090-round-0-is-labels-alone.md). Else a slice
begins once nothing has been asked of the compute process for a while, so that what rounds need goes first: an update
that arrives waits for one slice at most, and where rounds are short nothing is done before they are over. What a slice
was about follows from the study alone, so it changes no bits when slices were, or whether one was cut off
(docs/decisions/0022-labels-alone-beside-the-rounds.md). The rounds need nothing of it, so they do not wait for what the
operating system refuses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from semisilo.common.errors import ComputeFailed, SemisiloError, SystemTrouble
from semisilo.common.measures.study_measure import ACCURACY
from semisilo.common.process.compute import ComputeAborted
from semisilo.common.system_errors import SYSTEM_ERRORS, explained
from semisilo.common.text.describe import describe_estimate, describe_metric
from semisilo.common.text.logs import printable
from semisilo.coordinator.compute.messages import Baseline, BaselineFound, BaselineProgress
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import labels_alone_score
from semisilo.coordinator.ledger.records import LABELS_ALONE_FILE, LabelledOnlyResult, cut_short
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.compute_client import ATTEMPTS, ComputeSteps, RunningStudy
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.study_lifecycle import OperatorRequests

__all__ = ["LabelsAloneWork"]

_LOG = logging.getLogger("semisilo.coordinator")
_SLICE_SECONDS = 1.0
_QUIET_SECONDS = 1.0
"""So long nothing must have happened before the first slice; then one follows the other until something does."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""After an error of the system beside the rounds no slice begins for so long; the pauses double."""


class LabelsAloneWork:
    """The work on the line of labels alone of the study that runs, if it is asked for and not done."""

    def __init__(self, *, ledger: Ledger, runtime: RuntimeState, steps: ComputeSteps, operator: OperatorRequests,
                 studies: Path, beside_rounds: bool,
                 given: Callable[[RunningStudy], LabelledOnlyResult | None] | None = None) -> None:
        """
        Args:
            given: gives the line of a study that was trained elsewhere on the same labels, with its model in the
                study's folder; None of one that it does not have.
            studies: the folder in which every study has one.
            beside_rounds: whether it is worked on while silos do; False in a simulation, where they are here as well.
        """
        self._ledger = ledger
        self._runtime = runtime
        self._steps = steps
        self._operator = operator
        self._studies = studies
        self._beside_rounds = beside_rounds
        self._given = given
        self._quiet_seconds = _QUIET_SECONDS
        self._study: RunningStudy | None = None
        self._told = False
        self._failures = 0
        self._trouble = ""
        """What the system refuses, as the log last said it; empty while nothing is in the way."""
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._again = 0.0
        """When the next slice may begin beside the rounds, on the event loop's clock."""

    def begin(self, study: RunningStudy) -> None:
        """Takes up the work of a study that was opened."""
        settings, frozen = study.config.study, study.frozen
        first = study.round_0_steps > 0 and self._ledger.committed_digest(study.name) == ""
        self.leave()
        self._told, self._failures = False, 0
        self._trouble, self._pause_seconds, self._again = "", _FIRST_PAUSE_SECONDS, 0.0
        if self._given is not None and settings.labelled_only_baseline \
                and self._ledger.study(study.name).baseline is None and (given := self._given(study)) is not None \
                and (not first or given.steps == study.round_0_steps):
            self._ledger.set_study_facts(study.name, baseline=given)
            _LOG.info("labels alone, the baseline: taken from a study on the same labels")
        if self._ledger.study(study.name).baseline is not None:
            self._remove_file(study.name)
        elif settings.labelled_only_baseline and frozen.may_have_labels_alone:
            self._study = study
            _LOG.info("labels alone, the baseline: the %s recipe on %d labelled images, %s",
                      settings.baseline_recipe, frozen.num_labelled,
                      "before round 1, which starts from them" if first else
                      "while silos work and after the last round" if self._beside_rounds else "after the last round")

    def leave(self) -> None:
        """Nothing more is done for this study in this life; where it stands is on the disk."""
        self._study, self._runtime.labels_alone = None, ""

    async def wait(self, seconds: float) -> None:
        """Waits as `RuntimeState.wait`, and works once it has been quiet for a while; a slice longer at most. What the
        system refuses is said, and the work is tried again later."""
        if self._study is None or not self._beside_rounds:
            await self._runtime.wait(seconds)
            return
        loop = asyncio.get_running_loop()
        end, happened = loop.time() + seconds, self._runtime.happening()
        await self._runtime.wait(min(self._quiet_seconds, seconds))
        while self._study is not None and not happened.is_set() and self._again <= loop.time() < end:
            try:
                await self._slice(self._study)
            except SYSTEM_ERRORS as error:
                if (trouble := explained(error)) is None:
                    raise
                self._put_off(trouble)
            else:
                self._trouble, self._pause_seconds = "", _FIRST_PAUSE_SECONDS
        if not happened.is_set():
            await self._runtime.wait(max(0.0, end - loop.time()))

    def _put_off(self, trouble: SystemTrouble) -> None:
        line = trouble.line()
        if self._trouble != line:
            self._trouble = line
            _LOG.error("labels alone wait: %s They continue automatically; the rounds do not wait for them.", line)
        if self._study is not None:  # else nothing is left but a file that is of no more use
            self._runtime.labels_alone = f"waits: {printable(line, limit=300)}"
        self._again = asyncio.get_running_loop().time() + self._pause_seconds
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause_seconds)

    async def for_round_0(self, study: RunningStudy) -> LabelledOnlyResult | None:
        """Works as `finish`, and raises what it does. What round 0 starts from; None where that is not to be had: the
        line cannot be trained, or is one that was taken from a study of other steps. None also where the study was
        stopped."""
        await self.finish(before="round 0: ")
        found = self._ledger.study(study.name).baseline
        if found is not None and found.model_digest and found.steps == study.round_0_steps:
            return found
        if not self._operator.is_stopped(study.name):
            _LOG.info("%s: there is no model of labels alone to start from: round 0 trains its own", study.name)
        return None

    async def finish(self, *, before: str = "") -> None:
        """Works until it is done, or the operator stops the study; where it is paused, waits.

        Args:
            before: stands before what is said of the work.
        Raises: SystemTrouble: nothing else is to be done meanwhile.
        """
        while (study := self._study) is not None:
            await self._operator.wait_while_paused(study.name)
            if self._operator.is_stopped(study.name):
                return
            doing = f"labels alone: {self._runtime.labels_alone}" if self._runtime.labels_alone else "labels alone"
            fraction = self._runtime.fraction
            self._runtime.set(reason=StandbyReason.COORDINATOR_WORKING, phase="", activity=f"{before}{doing}")
            self._runtime.progress(fraction, "")
            found = await self._slice(study)
            if found is not None and found.progress is not None:
                self._runtime.progress(found.progress.fraction, "")

    async def _slice(self, study: RunningStudy) -> BaselineFound | None:
        """What a slice has come to; None when it has failed, and the work is given up or begun again from the disk."""
        settings = study.config.study
        try:
            found = await self._steps.call(Baseline(
                recipe=settings.baseline_recipe, epochs=settings.baseline_epochs,
                budget_seconds=settings.baseline_seconds, patience=settings.baseline_patience,
                slice_seconds=_SLICE_SECONDS), activity=None, attempts=1)
        except (SystemTrouble, ComputeAborted):
            raise
        except SemisiloError as error:
            # Counted over all slices: the next one begins before what has failed, and may well succeed.
            self._failures += 1
            if isinstance(error, ComputeFailed) and self._failures < ATTEMPTS:
                _LOG.warning("labels alone: %s; trying again", error.line())
                return None
            # The rounds go on: they need nothing of it.
            _LOG.error("labels alone could not be trained: %s The study continues without this baseline.", error.line())
            self._ledger.event("labels_alone_failed", study=study.name, reason=error.line())
            self.leave()
            return None
        if found.done:
            self._end(study, found.result)
        elif found.progress is not None:
            self._tell(found.progress)
        return found

    def _tell(self, progress: BaselineProgress) -> None:
        left = "" if progress.seconds_left is None else f", about {describe_estimate(progress.seconds_left)} left"
        doing = progress.doing or f"{progress.epochs} of {progress.planned} epochs"
        self._runtime.labels_alone = f"{doing}{left}"
        if not self._told and progress.seconds_left is not None:
            self._told = True
            _LOG.info("labels alone: about %s of work for %d epochs", describe_estimate(progress.seconds_left),
                      progress.planned - progress.epochs)

    def _end(self, study: RunningStudy, result: LabelledOnlyResult | None) -> None:
        if result is not None:
            with self._ledger.transaction():
                if self._ledger.study_state(study.name) is StudyState.QUEUED:
                    result = None  # it begins again, perhaps with other settings
                else:
                    self._ledger.set_study_facts(study.name, baseline=result)
        self.leave()  # not before: where the ledger cannot be written the work ends once more
        if result is None:
            return
        self._remove_file(study.name)
        short, measure = cut_short(result), study.frozen.study_measure
        if (alone := labels_alone_score(self._ledger.study(study.name))) is not None and not study.frozen.num_test:
            _LOG.info("labels alone reach %s of %s on %d validation images%s", measure.with_article,
                      describe_metric(measure.metric, alone), study.frozen.num_validation,
                      f" ({short})" if short else "")
        if "accuracy" in result.metrics or measure.metric in result.metrics:
            told = measure if measure.metric in result.metrics else ACCURACY
            _LOG.info("labels alone reach %s of %s%s", told.with_article,
                      describe_metric(told.metric, result.metrics[told.metric]), f" ({short})" if short else "")
            rest = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items()
                             if name != told.metric and "/" not in name)
            if rest:
                _LOG.info("labels alone: %s", rest)
            if result.description:
                _LOG.info("labels alone: %s", result.description)

    def _remove_file(self, name: str) -> None:
        """What is done needs no file to go on from."""
        (self._studies / name / LABELS_ALONE_FILE).unlink(missing_ok=True)
