"""What `coordinator track` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.config import from_dict
from common.errors import UsageError
from coordinator.federation import folder_option, open_federation
from coordinator.ledger import Ledger
from coordinator.tracking.settings import TrackingSettings, check_installed, mlflow_target

__all__ = ["track_study"]


def track_study(folder: Path, study: str, *, tensorboard: Path | None, mlflow: str, experiment: str) -> dict[str, Any]:
    """Tells trackers of a study what they do not know yet.

    Args:
        folder: of the federation.
        study: its name; the last one when empty.
        tensorboard: folder for its event file, or None.
        mlflow: a server or a folder, or "".
        experiment: of MLflow; the name of the federation when empty.
    Returns: {"study", "trackers": {name: {"target", "rounds": how many were new}}}.
    Raises: UsageError when nothing is named; BadConfiguration for a package that is missing or a target that cannot be;
        UnknownName; Unreachable.
    """
    if tensorboard is None and not mlflow:
        raise UsageError("Nobody to tell was named.", remedy="Say --tensorboard DIR, --mlflow TARGET, or both.")
    wanted: dict[str, Any] = {"tensorboard": tensorboard is not None, "mlflow": mlflow}
    check_installed(from_dict(TrackingSettings, wanted, where="coordinator track"))
    federation = open_federation(folder)
    ledger = Ledger(federation.ledger)
    try:
        if not study:
            if not (known := ledger.studies()):
                raise UsageError("There is no study yet.",
                                 remedy=f"Run one first: coordinator serve{folder_option(folder)}.")
            study = known[-1].name
        ledger.study(study)
        trackers: dict[str, dict[str, Any]] = {}
        if tensorboard is not None:
            from coordinator.tracking.tensorboard_files import write_events

            trackers["TensorBoard"] = {"target": str(tensorboard.absolute()),
                                       "rounds": write_events(ledger, study, tensorboard)}
        if mlflow:
            from coordinator.tracking.follow import artefacts_of
            from coordinator.tracking.mlflow_runs import MlflowRuns

            target = mlflow_target(mlflow, base=Path.cwd())
            runs = MlflowRuns(ledger, target, experiment=experiment or federation.name, federation=federation.name)
            trackers["MLflow"] = {"target": target,
                                  "rounds": runs.catch_up(study, artefacts=artefacts_of(federation, ledger))}
        return {"study": study, "trackers": trackers}
    finally:
        ledger.close()
