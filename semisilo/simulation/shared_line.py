"""Labels alone, trained once for several simulations on the same labels: the others take the first one's line.

A line is the result in the ledger and the file of its model in the study's folder, so whoever has taken it may hand it
over, export it and predict with it as if it had been trained there. A study whose round 0 starts from its line takes
only one of as many steps as it would train (`semisilo.coordinator.rounds.labels_alone`): its bits are then those of a
study by itself.

Tests: tests/semisilo/api/test_simulate.py.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from semisilo.common.storage.durable import write_durably
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import LABELS_ALONE_MODEL, FrozenStudy, LabelledOnlyResult
from semisilo.coordinator.rounds.compute_client import RunningStudy
from semisilo.simulation.folder import SimulationFolder

__all__ = ["SharedLine"]

_LOG = logging.getLogger("semisilo.simulation")


class SharedLine:
    """The line of a simulation that is over."""

    def __init__(self, trained: Path, studies: Path) -> None:
        """
        Args:
            trained: folder of that simulation.
            studies: where the studies of the simulation that takes it have their folders.
        """
        self._trained = SimulationFolder(trained)
        self._studies = studies

    def __call__(self, study: RunningStudy) -> LabelledOnlyResult | None:
        """The result, once its model is in the study's folder; None where it is not of the same labels, images and
        network, or the file is lost: then the study trains its own."""
        name = self._trained.read_record().study
        ledger = Ledger(self._trained.ledger, waits=False)
        try:
            row = ledger.study(name)
        finally:
            ledger.close()
        if row.baseline is None or row.frozen is None or _facts(row.frozen) != _facts(study.frozen):
            return None
        if row.baseline.model_digest:
            try:
                content = (self._trained.studies / name / LABELS_ALONE_MODEL).read_bytes()
            except OSError:
                content = b""
            if hashlib.sha256(content).hexdigest() != row.baseline.model_digest:
                _LOG.warning("labels alone of %s: the file of the model is not there; trained again", name)
                return None
            write_durably(self._studies / study.name / LABELS_ALONE_MODEL, content)
        return row.baseline


def _facts(frozen: FrozenStudy) -> tuple[object, ...]:
    """What a line depends on and is measured with, as far as it is not in settings that were compared before."""
    return (frozen.classes, frozen.image, frozen.num_labelled, frozen.num_validation, frozen.num_test,
            frozen.test_images, frozen.test_without, frozen.num_parameters, frozen.num_frozen, frozen.frozen_digest,
            frozen.weights_digest, frozen.measure)
