"""How studies end: the model of the last committed round is written, the open round of a stopped study is cancelled."""

from __future__ import annotations

import logging
from pathlib import Path

from common.errors import DiskFull, SemisiloError
from coordinator.bulletin import Bulletin, StandbyReason
from coordinator.compute_steps import ComputeSteps
from coordinator.ledger import Ledger
from coordinator.leftovers import Leftovers
from coordinator.rows import StudyRow
from coordinator.states import ENDED_ROUND, RoundState, StudyState, TaskState
from coordinator.study import config_from_dict

__all__ = ["Endings"]

_LOG = logging.getLogger("semisilo.coordinator")
_WRITTEN, _NOT_WRITTEN = "model_written", "model_not_written"


class Endings:
    """Ends studies, so that one which has committed a round leaves a model for others to use."""

    def __init__(self, *, ledger: Ledger, bulletin: Bulletin, steps: ComputeSteps, leftovers: Leftovers,
                 studies: Path) -> None:
        """
        Args:
            studies: the folder in which every study has one.
        """
        self._ledger = ledger
        self._bulletin = bulletin
        self._steps = steps
        self._leftovers = leftovers
        self._studies = studies

    async def write_model(self, name: str) -> None:
        """Writes the model of the last committed round, for others to use; the study must be the one that is open."""
        digest = self._ledger.committed_digest(name)
        model = self._studies / name / "model.safetensors"
        await self._steps.call("export", {"state": digest, "path": str(model)}, activity="writing the model")
        self._ledger.event(_WRITTEN, study=name, state_digest=digest)

    async def tidy_up(self) -> None:
        """Ends the open round of studies that the operator has stopped, perhaps while nobody served, and writes the
        model of their last committed round.

        Raises: DiskFull, with nothing lost. A model that cannot be written for another reason is reported, once.
        """
        for row in self._ledger.studies():
            if row.state is StudyState.STOPPED:
                self._cancel_open_round(row.name)
                digest = self._ledger.committed_digest(row.name)
                if digest and not self._is_written(row.name, digest):
                    await self._write_model_of_stopped(row, digest)
                if self._bulletin.study == row.name and self._bulletin.reason is not StandbyReason.NO_STUDY:
                    _LOG.info("study %s is stopped", row.name)
                    self._bulletin.set(reason=StandbyReason.NO_STUDY, text=f"study {row.name} was stopped",
                                       activity="", phase="")

    def _cancel_open_round(self, name: str) -> None:
        row = self._ledger.last_round(name)
        if row is None or row.state in ENDED_ROUND:
            return
        with self._ledger.transaction():
            for task in self._ledger.tasks(name, row.number, row.phase):
                if task.state is TaskState.OPEN:
                    self._ledger.close_task(task, TaskState.CANCELLED, reason="the study was stopped")
            self._ledger.set_round_state(name, row.number, RoundState.CANCELLED)
        self._leftovers.remove_updates(name, row.number)

    def _is_written(self, name: str, digest: str) -> bool:
        """Whether the model of a state was written, or could not be."""
        return bool(self._ledger.query(
            "SELECT 1 FROM event WHERE study = ? AND kind IN (?, ?) AND json_extract(detail_json, '$.state_digest') = ?"
            " LIMIT 1", name, _WRITTEN, _NOT_WRITTEN, digest))

    async def _write_model_of_stopped(self, row: StudyRow, digest: str) -> None:
        try:
            if self._steps.opened != row.name:  # it was stopped while nobody served
                await self._steps.open_study(row, config_from_dict(row.config, where=f"study {row.name}"))
            await self.write_model(row.name)
        except DiskFull:
            raise
        except SemisiloError as error:
            _LOG.error("study %s is stopped, but its model could not be written: %s", row.name, error.line())
            self._ledger.event(_NOT_WRITTEN, study=row.name, state_digest=digest, reason=error.line())
