"""What one of several processes does in a simulation: it trains whichever silo it is asked for.

Tests: tests/semisilo/simulation/engines/test_processes.py.
"""

from __future__ import annotations

import sys

from semisilo.common.models.own.given import unpack
from semisilo.common.process.compute_process import Build, OnProgress
from semisilo.common.storage.durable import without_waiting
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.trainers import load_trainer
from semisilo.simulation.engines.one_process import SimulatedOperations
from semisilo.simulation.engines.shared_images import read_working

__all__ = ["WorkerOperations", "prepared"]


class WorkerOperations(SimulatedOperations):
    """The operations of such a process."""

    def train(self, request: Train) -> Trained:
        """As a silo does it; nobody waits for the disk, as in the process that has asked."""
        with without_waiting():
            return super().train(request)


def prepared(descriptor: int) -> Build:
    """Reads the images and imports the method; what comes of it makes the operations of a process.

    Args:
        descriptor: of what `semisilo.simulation.engines.shared_images.share` has written.
    """
    working = read_working(descriptor)
    sys.path[:] = working.path
    load_trainer(working.method)
    if working.network:
        unpack(working.network)

    def build(progress: OnProgress) -> WorkerOperations:
        return WorkerOperations(progress, working.images.__getitem__, device=working.device, processors=1)

    return build
