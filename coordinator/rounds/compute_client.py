"""What the engine has the compute process do: open a study, and steps that are tried again when the process dies."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.compute import Compute
from common.config import canonical_json, from_dict
from common.errors import ComputeFailed
from coordinator.bulletin import Bulletin
from coordinator.ledger import Ledger
from coordinator.rows import StudyRow
from coordinator.study import FrozenStudy, StudyConfig

__all__ = ["ComputeSteps", "RunningStudy"]

_LOG = logging.getLogger("semisilo.coordinator")
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class RunningStudy:
    """A study with its checked settings."""

    name: str
    config: StudyConfig
    frozen: FrozenStudy


class ComputeSteps:
    """Steps of the compute process, shown on the bulletin while they run."""

    def __init__(self, *, compute: Compute, ledger: Ledger, bulletin: Bulletin, studies: Path, payloads: Path) -> None:
        """
        Args:
            studies: the folder in which every study has one.
            payloads: the folder of what silos download.
        """
        self._compute = compute
        self._ledger = ledger
        self._bulletin = bulletin
        self._studies = studies
        self._payloads = payloads
        self._opened = ""

    @property
    def opened(self) -> str:
        """The study that the compute process has open; empty when there was none yet."""
        return self._opened

    async def open_study(self, row: StudyRow, config: StudyConfig) -> RunningStudy:
        """Has the images of a study read; the first time, what was found is written to the ledger for good."""
        answer = await self.call("open_study", {
            "name": row.name, "config": row.config, "study_folder": str(self._studies / row.name),
            "payloads_folder": str(self._payloads), "num_silos": config.study.start_with,
            "frozen": row.frozen}, activity="reading images")
        self._opened = row.name
        if row.frozen is None:
            self._ledger.set_study_facts(row.name, frozen=answer["frozen"], numerics=answer["numerics"])
        elif row.numerics is not None and canonical_json(row.numerics) != canonical_json(answer["numerics"]):
            changed = sorted(key for key in answer["numerics"] if answer["numerics"][key] != row.numerics.get(key))
            _LOG.warning("study %s resumes under other numerics (%s): its bits will differ from an undisturbed run",
                         row.name, ", ".join(f"{key}: {row.numerics.get(key)} -> {answer['numerics'][key]}"
                                             for key in changed))
            self._ledger.event("numerics_changed", study=row.name, before=row.numerics, after=answer["numerics"])
        return RunningStudy(row.name, config, from_dict(FrozenStudy, answer["frozen"]))

    async def call(self, operation: str, arguments: dict[str, Any], *, activity: str) -> dict[str, Any]:
        """One step of the compute process; a step that died is tried again, since it gives the same bits.

        The fresh process opens the study again by itself (`common.compute`).
        Args:
            activity: what the operator reads meanwhile.
        Raises: ComputeFailed when it died three times; what the step itself raises, at once.
        """
        self._bulletin.set(activity=activity)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._compute.call(operation, arguments, on_progress=self._bulletin.progress)
            except ComputeFailed as error:
                if attempt == _ATTEMPTS:
                    raise
                _LOG.warning("%s: %s; trying again", operation, error.line())
        raise AssertionError("unreachable")
