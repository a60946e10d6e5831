"""What `coordinator track` does.

Tests: tests/coordinator/tracking/test_follow.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semisilo.common.config import from_dict
from semisilo.common.errors import UsageError
from semisilo.coordinator.federation.folder import folder_option, open_federation
from semisilo.coordinator.federation.tracking_table import TrackingSettings, WandbMode, check_installed, mlflow_target
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
    """"TensorBoard", "MLflow" and "Weights & Biases", those that were asked for."""


def track_study(folder: Path, study: str, *, tensorboard: Path | None, mlflow: str, experiment: str, wandb: str = "",
                wandb_mode: WandbMode = "offline") -> TrackReport:
    """Tells trackers of a study what they do not know yet.

    Args:
        folder: of the federation.
        study: its name; the last one when empty.
        tensorboard: folder for its event file, or None.
        mlflow: a server or a folder, or "".
        experiment: of MLflow; the name of the federation when empty.
        wandb: a project of Weights & Biases, or "".
        wandb_mode: as of `TrackingSettings`; offline, runs are written to the folder wandb of the federation folder.
    Raises: UsageError when nothing is named, or a file for a folder; BadConfiguration for a package that is missing or
        a target that cannot be; UnknownName; Unreachable.
    """
    if tensorboard is None and not mlflow and not wandb:
        raise UsageError("Nobody to tell was named.",
                         remedy="Say --tensorboard DIR, --mlflow TARGET or --wandb PROJECT, one or several.")
    if tensorboard is not None and tensorboard.exists() and not tensorboard.is_dir():
        raise UsageError(f"--tensorboard {tensorboard} is a file; TensorBoard reads folders.",
                         remedy="Name a folder, which is made when missing.")
    check_installed(from_dict(TrackingSettings, {"tensorboard": tensorboard is not None, "mlflow": mlflow,
                                                 "wandb": wandb, "wandb_mode": wandb_mode},
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
        if wandb:
            from semisilo.coordinator.tracking.follow import artefacts_of
            from semisilo.coordinator.tracking.wandb_runs import WandbRuns

            found = WandbRuns(ledger, wandb, mode=wandb_mode, folder=federation.folder, federation=federation.name)
            new = found.catch_up(study, artefacts=artefacts_of(federation, ledger))
            found.close()
            trackers["Weights & Biases"] = TrackerReport(
                target=str(federation.folder / "wandb") if wandb_mode == "offline" else f"project {wandb}", rounds=new)
        return TrackReport(study=study, trackers=trackers)
    finally:
        ledger.close()
