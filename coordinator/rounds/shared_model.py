"""The model that a study hands over, for silos that have had part in it, where the study allows that.

What is served is the file that the end of a study has written: `studies/<name>/model.safetensors`.

Tests: tests/coordinator/rounds/test_shared_model.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.errors import ModelNotReady, ModelNotShared, PayloadNotServed
from semisilo.common.text.logs import printable
from semisilo.coordinator.ledger.events import is_model_written
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.tasks import first_update, has_taken_part
from semisilo.coordinator.rounds.study_lifecycle import model_to_write
from semisilo.coordinator.studies.model_choice import choice_of

__all__ = ["SharedModel", "SharedModels"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedModel:
    """A file that a silo may fetch."""

    study: str
    path: Path
    digest: str
    """SHA-256, hex."""
    size_bytes: int
    round: int
    """That gave the model; 0 where it is that of labels alone."""
    labels_alone: bool
    model_digest: str
    """That of the state it was written from, hex: it tells the model apart from another of the same round."""
    measure: str
    """What the study compares rounds by."""
    conclusion: str
    """What the study has come to, for a person."""


class SharedModels:
    """Which silo may fetch which model."""

    def __init__(self, ledger: Ledger, studies: Path) -> None:
        """
        Args:
            studies: the folder in which every study has one.
        """
        self._ledger = ledger
        self._studies = studies
        self._digests: dict[tuple[Path, int, int], str] = {}

    async def describe(self, silo: str, study: str) -> SharedModel:
        """The model of a study, for one silo.

        Raises: ModelNotShared for a silo without part in such a study, and where the study keeps its model; a stranger
            to a study cannot tell whether there is one. ModelNotReady until it has ended.
        """
        row = self._ledger.find_study(study)
        name = printable(study, limit=128)
        if row is None or not has_taken_part(self._ledger, study, silo):
            raise ModelNotShared(f"This silo has had no part in a study '{name}'.",
                                 remedy="Models go to the silos that have answered a task of their study.")
        if not row.config.get("study", {}).get("share_model", False):
            raise ModelNotShared(f"Study '{name}' does not share its model with silos.",
                                 remedy="The coordinator's operator decides that, with [study] share_model.")
        wanted, path = model_to_write(self._ledger, study), self._studies / study / "model.safetensors"
        if row.state not in (StudyState.COMPLETED, StudyState.STOPPED) or wanted is None:
            raise ModelNotReady(f"Study '{name}' is {row.state}: its model is shared once it is over.")
        if not is_model_written(self._ledger, study, wanted.state) or not path.is_file():
            raise ModelNotReady(f"The model of study '{name}' is not written yet.",
                                remedy="Try again in a minute; else ask the coordinator's operator for an export.")
        choice = choice_of(row, round_heads(self._ledger, study), first_update=first_update(self._ledger, study))
        digest, size = await asyncio.to_thread(self._digest_of, path)
        return SharedModel(study=study, path=path, digest=digest, size_bytes=size, labels_alone=choice.labels_alone,
                           model_digest=wanted.state,
                           round=0 if choice.labels_alone else choice.round or 0, measure=choice.measure,
                           conclusion=choice.conclusion)

    async def path_for(self, silo: str, study: str, digest: str) -> SharedModel:
        """The file of a model that was described to a silo.

        Raises: what `describe` raises; PayloadNotServed when the model is another one by now.
        """
        found = await self.describe(silo, study)
        if found.digest != digest:
            raise PayloadNotServed("The study's model is another one by now.", remedy="Fetch it again.")
        return found

    def _digest_of(self, path: Path) -> tuple[str, int]:
        """(SHA-256, bytes); computed once for a file, which is replaced as a whole when it changes."""
        with path.open("rb") as file:
            status = os.fstat(file.fileno())  # of this one: another may have taken its name by now
            key = path, status.st_mtime_ns, status.st_size
            if key not in self._digests:
                self._digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[key], status.st_size
