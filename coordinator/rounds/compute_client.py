"""What the engine has the compute process do: open a study, and steps that are tried again when the process dies.

Tests: tests/coordinator/rounds/test_study_lifecycle.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from semisilo.common.config import to_dict
from semisilo.common.errors import ComputeFailed, PluginFailed
from semisilo.common.process.compute import Compute
from semisilo.common.process.messages import Request
from semisilo.coordinator.compute.messages import OpenStudy
from semisilo.coordinator.ledger.ledger import Ledger, RoundGone
from semisilo.coordinator.ledger.records import FrozenStudy, StudyRow
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.runtime import RuntimeState
from semisilo.coordinator.studies.study_file import StudyConfig

__all__ = ["ATTEMPTS", "ComputeSteps", "RunningStudy"]

AnswerT = TypeVar("AnswerT")

_LOG = logging.getLogger("semisilo.coordinator")
ATTEMPTS = 3
"""How often a step is tried that fails, or whose process dies."""


@dataclass(frozen=True, slots=True)
class RunningStudy:
    """A study with its checked settings."""

    name: str
    config: StudyConfig
    frozen: FrozenStudy
    round_0_steps: int = 0
    """See `semisilo.coordinator.compute.messages.OpenedStudy`."""


class ComputeSteps:
    """Steps of the compute process, shown on the runtime state while they run."""

    def __init__(self, *, compute: Compute, ledger: Ledger, runtime: RuntimeState, studies: Path,
                 payloads: Path, images: Path | None = None) -> None:
        """
        Args:
            studies: the folder in which every study has one.
            payloads: the folder of what silos download.
            images: where decoded images lie that are too many for memory; None where they must not.
        """
        self._compute = compute
        self._ledger = ledger
        self._runtime = runtime
        self._studies = studies
        self._payloads = payloads
        self._images = images
        self._opened = ""

    @property
    def opened(self) -> str:
        """The study that the compute process has open; empty when there is none."""
        return self._opened

    async def open_study(self, row: StudyRow, config: StudyConfig, *, may_have_changed: bool = False) -> RunningStudy:
        """Has the images of a study read; the first time, what was found is written to the ledger for good.

        Args:
            may_have_changed: see `OpenStudy`.
        Raises: RoundGone where the study was stopped and queued again meanwhile, perhaps with other settings.
        """
        self._opened = ""  # the process lets go of the one before, also where it cannot open this one
        opened = await self.call(OpenStudy(
            name=row.name, config=config, study_folder=self._studies / row.name, payloads_folder=self._payloads,
            images_folder=self._images, num_silos=config.study.start_with, frozen=row.frozen,
            threads=0 if row.numerics is None else row.numerics.threads,
            may_have_changed=may_have_changed), activity="reading images")
        self._opened = row.name
        if row.frozen is None:
            if self._ledger.study_state(row.name) is StudyState.QUEUED:
                raise RoundGone(f"Study '{row.name}' is queued again.")
            self._ledger.set_study_facts(row.name, frozen=opened.frozen, numerics=opened.numerics)
            _LOG.info("study %s: %s", row.name, opened.frozen.choice_line)
            if opened.frozen.left_out_views:
                _LOG.info("study %s: strong views are made without %s: %s", row.name,
                          ", ".join(opened.frozen.left_out_views), opened.frozen.left_out_views_reason)
        elif row.frozen.code and opened.code != row.frozen.code:
            _LOG.warning("study %s resumes with other code of its method plug-in or network than it began with (SHA-256"
                         " %.12s..., now %.12s...): its bits will differ from an undisturbed run", row.name,
                         row.frozen.code, opened.code or "none")
            self._ledger.event("code_changed", study=row.name, before=row.frozen.code, after=opened.code)
        if row.frozen is not None and row.numerics is not None and row.numerics != opened.numerics:
            before, after = to_dict(row.numerics), to_dict(opened.numerics)
            _LOG.warning("study %s resumes under other numerics (%s): its bits will differ from an undisturbed run",
                         row.name, ", ".join(f"{key}: {before[key]} -> {after[key]}"
                                             for key in sorted(after) if after[key] != before[key]))
            self._ledger.event("numerics_changed", study=row.name, before=before, after=after)
        return RunningStudy(row.name, config, opened.frozen, opened.round_0_steps)

    async def call(self, request: Request[AnswerT], *, activity: str | None,
                   attempts: int = ATTEMPTS) -> AnswerT:
        """One step of the compute process; a step that died or failed is tried again, since it gives the same bits.

        After a death, and after an error that nobody foresaw, it is tried in a fresh process, which opens the study
        again by itself (`semisilo.common.process.compute`).
        Args:
            activity: what the operator reads meanwhile; None leaves what is there.
            attempts: how often it is tried.
        Raises: ComputeFailed when it failed each time; PluginFailed, which says that it would, and other errors that
            the step raises, at once.
        """
        if activity is not None:
            self._runtime.set(activity=activity)
        on_progress = None if activity is None else self._runtime.progress
        for attempt in range(1, attempts + 1):
            try:
                return await self._compute.call(request, on_progress=on_progress)
            except ComputeFailed as error:
                if attempt == attempts or isinstance(error, PluginFailed):
                    raise
                _LOG.warning("%s: %s; trying again", request.operation(), error.line())
        raise AssertionError("unreachable")
