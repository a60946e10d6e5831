"""What `coordinator track` does.

Tests: tests/coordinator/tracking/test_follow.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semisilo.common.config import from_dict
from semisilo.common.errors import UsageError
from semisilo.coordinator.federation.folder import folder_option, open_federation
from semisilo.coordinator.federation.tracking_table import TrackingSettings, check_installed, mlflow_target
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["TrackReport", "TrackerReport", "track_study"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerReport:
    """What one tracker was told."""

    target: str
    """Where it writes: a folder or a server."""
    rounds: int
    """How many of them were new to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackReport:
    """What `coordinator track` has done."""

    study: str
    trackers: dict[str, TrackerReport]
    """"TensorBoard" and "MLflow", those that were asked for."""


def track_study(folder: Path, study: str, *, tensorboard: Path | None, mlflow: str, experiment: str) -> TrackReport:
    """Tells trackers of a study what they do not know yet.

    Args:
        folder: of the federation.
        study: its name; the last one when empty.
        tensorboard: folder for its event file, or None.
        mlflow: a server or a folder, or "".
        experiment: of MLflow; the name of the federation when empty.
    Raises: UsageError when nothing is named; BadConfiguration for a package that is missing or a target that cannot be;
        UnknownName; Unreachable.
    """
    if tensorboard is None and not mlflow:
        raise UsageError("Nobody to tell was named.", remedy="Say --tensorboard DIR, --mlflow TARGET, or both.")
    check_installed(from_dict(TrackingSettings, {"tensorboard": tensorboard is not None, "mlflow": mlflow},
                              where="coordinator track"))
    federation = open_federation(folder)
    ledger = Ledger(federation.ledger)
    try:
        if not study:
            if not (known := ledger.studies()):
                raise UsageError("There is no study yet.",
                                 remedy=f"Run one first: coordinator serve{folder_option(folder)}.")
            study = known[-1].name
        ledger.study(study)
        trackers: dict[str, TrackerReport] = {}
        if tensorboard is not None:
            from semisilo.coordinator.tracking.tensorboard_files import write_events

            trackers["TensorBoard"] = TrackerReport(target=str(tensorboard.absolute()),
                                                    rounds=write_events(ledger, study, tensorboard))
        if mlflow:
            from semisilo.coordinator.tracking.follow import artefacts_of
            from semisilo.coordinator.tracking.mlflow_runs import MlflowRuns

            target = mlflow_target(mlflow, base=Path.cwd())
            runs = MlflowRuns(ledger, target, experiment=experiment or federation.name, federation=federation.name)
            trackers["MLflow"] = TrackerReport(
                target=target, rounds=runs.catch_up(study, artefacts=artefacts_of(federation, ledger)))
        return TrackReport(study=study, trackers=trackers)
    finally:
        ledger.close()
