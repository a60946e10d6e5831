"""The process that tells trackers of studies while `coordinator serve` runs; `companion` starts it.

It looks at the ledger every few seconds. What cannot be told is said once and tried again; when it is told to stop, or
its parent has gone, it tells what is left and ends.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from semisilo.common.errors import SemisiloError
from semisilo.common.text.log_context import bound
from semisilo.common.text.logs import set_up_logging
from semisilo.coordinator.federation.folder import Federation, open_federation
from semisilo.coordinator.federation.tracking_table import TrackingSettings, mlflow_target
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.tracking import TrackedStudy, studies_with_results
from semisilo.coordinator.report.report import write_report
from semisilo.coordinator.tracking.facts import RoundReader
from semisilo.coordinator.tracking.mlflow_runs import MlflowRuns
from semisilo.coordinator.tracking.tensorboard_files import write_events
from semisilo.coordinator.tracking.wandb_runs import WandbRuns

__all__ = ["Follower", "artefacts_of"]

_LOG = logging.getLogger("semisilo.tracking")
_LOOK_SECONDS = 2.0
_AGAIN_SECONDS = 30.0


class Follower:
    """Tells trackers what is new, study by study."""

    def __init__(self, federation: Federation, ledger: Ledger, settings: TrackingSettings, *,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._federation = federation
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._readers: dict[str, RoundReader] = {}
        self._done: dict[tuple[str, str], TrackedStudy] = {}
        """(tracker, study) -> how far the study had come when it was told of it."""
        self._runs: MlflowRuns | None = None
        self._wandb_runs: WandbRuns | None = None
        self._trouble: dict[str, tuple[str, float]] = {}
        """Tracker -> (what it said, when to try again)."""

    def look(self, *, last: bool = False) -> bool:
        """Tells what is new; whether all of it could be told.

        Args:
            last: try now what has failed lately as well.
        """
        told = True
        for study in studies_with_results(self._ledger):
            for tracker, tell in self._trackers().items():
                if self._done.get((tracker, study.name)) == study:
                    continue
                if not last and self._clock() < self._trouble.get(tracker, ("", 0.0))[1]:
                    told = False
                elif self._tell(tracker, tell, study.name):
                    self._done[tracker, study.name] = study
                else:
                    told = False
        return told

    def _trackers(self) -> dict[str, Callable[[str], None]]:
        trackers: dict[str, Callable[[str], None]] = {}
        if self._settings.tensorboard:
            trackers["TensorBoard"] = self._tensorboard
        if self._settings.mlflow:
            trackers["MLflow"] = self._mlflow
        if self._settings.wandb:
            trackers["Weights & Biases"] = self._wandb
        return trackers

    def _tell(self, tracker: str, tell: Callable[[str], None], study: str) -> bool:
        try:
            with bound(study=study):
                tell(study)
        except (SemisiloError, OSError) as error:
            text = error.line() if isinstance(error, SemisiloError) else str(error)
            if self._trouble.get(tracker, ("", 0.0))[0] != text:
                _LOG.warning("%s: %s", tracker, text)
            self._trouble[tracker] = text, self._clock() + _AGAIN_SECONDS
            return False
        if self._trouble.pop(tracker, None) is not None:
            _LOG.info("%s: study %s could be told again", tracker, study)
        return True

    def _tensorboard(self, study: str) -> None:
        reader = self._readers.setdefault(study, RoundReader(self._ledger, study))
        write_events(self._ledger, study, self._federation.studies / study / "tensorboard", reader=reader)

    def _mlflow(self, study: str) -> None:
        if self._runs is None:
            self._runs = MlflowRuns(
                self._ledger, mlflow_target(self._settings.mlflow, base=self._federation.folder),
                experiment=self._settings.mlflow_experiment or self._federation.name, federation=self._federation.name)
        self._runs.catch_up(study, artefacts=artefacts_of(self._federation, self._ledger))


    def _wandb(self, study: str) -> None:
        if self._wandb_runs is None:
            self._wandb_runs = WandbRuns(
                self._ledger, self._settings.wandb, mode=self._settings.wandb_mode,
                folder=self._federation.folder, federation=self._federation.name)
        self._wandb_runs.catch_up(study, artefacts=artefacts_of(self._federation, self._ledger))

    def close(self) -> None:
        """Ends; what trackers keep open is written out."""
        if self._wandb_runs is not None:
            try:
                self._wandb_runs.close()
            except SemisiloError as error:
                _LOG.warning("%s", error.line())


def artefacts_of(federation: Federation, ledger: Ledger) -> Callable[[str, Path], Sequence[Path]]:
    """What a study hands over at its end: its report, written anew, and its model."""
    def gather(study: str, folder: Path) -> Sequence[Path]:
        write_report(federation, ledger, study, folder / "report")
        model = federation.studies / study / "model.safetensors"
        return [folder / "report", *([model] if model.is_file() else [])]
    return gather


def _main(folder: str, parent: str) -> None:
    set_up_logging()
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    federation = open_federation(Path(folder))
    ledger = Ledger(federation.ledger)
    follower = Follower(federation, ledger, federation.config.tracking)
    while not stop.is_set():
        follower.look()
        if os.getppid() != int(parent):
            break
        stop.wait(_LOOK_SECONDS)
    follower.look(last=True)
    follower.close()
    ledger.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
