"""MLflow runs of studies: settings as parameters, numbers of each round as metrics, report and model as artefacts.

Which run a study has, and up to which round it was told, stands in the ledger; a run whose creation was cut off by a
kill is found again by its tags. A round that was told just before a kill may be told once more, with the same time and
value, which a database takes for the same. MLflow forgets no number: a study whose rounds are done again, of which it
was told, goes on in another run, and the one before says so (`lineage`).

Tests: tests/coordinator/tracking/test_mlflow.py.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from semisilo.common.errors import Unreachable
from semisilo.common.text.logs import printable
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.tracking import TrackedRun, add_tracked_run, note_complete, note_told, tracked_run
from semisilo.coordinator.tracking.facts import LABELS_ALONE, RoundFacts, RoundReader, flat_settings
from semisilo.coordinator.tracking.lineage import Lineage, forget_what_a_restore_undid, lineage_of

__all__ = ["MlflowRuns"]

_STUDY, _QUEUED, _FEDERATION = "semisilo.study", "semisilo.queued_unix", "semisilo.federation"
_WENT_BACK = "semisilo.went_back"
"""Key of its `Lineage`; the first run of a study has no such tag."""
_REASON, _CONTINUED_IN = "semisilo.reason", "semisilo.continued_in"
_ENDED = {StudyState.COMPLETED: "FINISHED", StudyState.FAILED: "FAILED", StudyState.STOPPED: "KILLED"}
_UNDONE = "KILLED"
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]", re.ASCII)
_PARAMETERS_AT_ONCE, _METRICS_AT_ONCE = 100, 1000
_LONGEST_VALUE, _LONGEST_NAME = 500, 250
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
             "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1", "MLFLOW_ALLOW_FILE_STORE": "true"}
"""Environment of MLflow: it is asked again later by us, and folders are allowed to be what runs are written to."""

T = TypeVar("T")


class MlflowRuns:
    """Keeps the runs of studies at one tracker. For a process of its own: MLflow takes 100 MB, and may hang."""

    def __init__(self, ledger: Ledger, target: str, *, experiment: str, federation: str) -> None:
        """
        Args:
            target: from `mlflow_target`.
            experiment: its name; made when missing.
        Raises: Unreachable when MLflow cannot use the target.
        """
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        # It would tell its makers of its use, from a hospital's hub.
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        # It warns of every try; what cannot be told is said once, by who calls this.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        self._ledger = ledger
        self._target = target
        self._experiment_name = experiment
        self._federation = federation
        self._experiment = ""
        self._readers: dict[str, RoundReader] = {}
        self._with_line: set[str] = set()
        """Studies whose rounds all have the line of labels alone."""
        from mlflow.tracking import MlflowClient

        self._client = self._asked(lambda: MlflowClient(tracking_uri=target))

    def catch_up(self, study: str, *, artefacts: Callable[[str, Path], Sequence[Path]]) -> int:
        """Tells what a study's run does not know yet; returns how many rounds were new.

        Args:
            artefacts: gathers what a study that is over hands over: (study, an empty folder) -> files and folders.
        Raises: Unreachable when MLflow cannot be told; nothing is lost by that.
        """
        row = self._ledger.study(study)
        known = self._run(row)
        reader = self._readers.setdefault(study, RoundReader(self._ledger, study))
        rounds = reader.rounds_after(known.last_round)
        if forget_what_a_restore_undid(self._ledger, study, self._target, last_round=known.last_round, rounds=rounds):
            known = self._run(row)
            rounds = reader.rounds_after(known.last_round)
        run, told, complete = known.run, known.last_round, known.complete
        if complete and not rounds:
            return 0
        if complete:  # it went on after it had ended
            self._asked(lambda: self._client.update_run(run, status="RUNNING"))
            note_complete(self._ledger, study, self._target, complete=False)
        if not complete:
            self._tell_line(run, row, reader, told)
        for entry in rounds:
            self._tell(run, entry)
            note_told(self._ledger, study, self._target, last_round=entry.number)
        if row.state in _ENDED:
            self._end(run, row, artefacts)
            note_complete(self._ledger, study, self._target, complete=True)
        return len(rounds)

    # A run ------------------------------------------------------------------------------------------------------------

    def _run(self, row: StudyRow) -> TrackedRun:
        """The run of a study; made when there is none."""
        if (known := tracked_run(self._ledger, row.name, self._target)) is not None:
            return known
        experiment = self._experiment_id()
        tags = {_STUDY: row.name, _QUEUED: repr(row.queued_unix), _FEDERATION: self._federation}
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        lineage = lineage_of(self._ledger, row.name)
        found = self._asked(lambda: self._client.search_runs([experiment], filter_string=wanted))
        run = next((str(each.info.run_id) for each in found if each.data.tags.get(_WENT_BACK, "") == lineage.key), "")
        if not run:
            created = self._asked(lambda: self._client.create_run(
                experiment, run_name=lineage.name,
                tags={**tags, _WENT_BACK: lineage.key} if lineage.key else tags,
                start_time=round(1000 * (row.started_unix or row.queued_unix))))
            run = str(created.info.run_id)
        for each in found:
            if lineage.key and str(each.info.run_id) != run and _CONTINUED_IN not in each.data.tags:
                self._undo(str(each.info.run_id), lineage, run)
        self._tell_settings(run, row)
        return add_tracked_run(self._ledger, row.name, self._target, run=run)

    def _undo(self, run: str, lineage: Lineage, next_run: str) -> None:
        """Says of a run that its last rounds are not the study's any more."""
        self._asked(lambda: self._client.set_tag(run, _REASON, lineage.reason[:_LONGEST_VALUE]))
        self._asked(lambda: self._client.set_terminated(run, status=_UNDONE, end_time=round(1000 * lineage.unix)))
        self._asked(lambda: self._client.set_tag(run, _CONTINUED_IN, next_run))

    def _experiment_id(self) -> str:
        if not self._experiment:
            found = self._asked(lambda: self._client.get_experiment_by_name(self._experiment_name))
            self._experiment = str(found.experiment_id) if found is not None else str(
                self._asked(lambda: self._client.create_experiment(self._experiment_name)))
        return self._experiment

    def _tell_settings(self, run: str, row: StudyRow) -> None:
        from mlflow.entities import Param

        settings = [Param(_name(name), value[:_LONGEST_VALUE]) for name, value in flat_settings(row.config).items()]
        for some in _batches(settings, _PARAMETERS_AT_ONCE):
            self._asked(partial(self._client.log_batch, run, params=some))

    def _tell(self, run: str, entry: RoundFacts) -> None:
        from mlflow.entities import Metric

        numbers = {_name(name): value for name, value in entry.scalars.items()}
        numbers |= {f"pseudo_labels/{label}": count for label, count in enumerate(entry.pseudo_labels)}
        metrics = [Metric(name, value, round(1000 * entry.unix), entry.number) for name, value in numbers.items()]
        for some in _batches(metrics, _METRICS_AT_ONCE):
            self._asked(partial(self._client.log_batch, run, metrics=some))

    def _tell_line(self, run: str, row: StudyRow, reader: RoundReader, told: int) -> None:
        """Labels alone may be done later than rounds; these are told of it then, once in the life of this process."""
        if row.baseline is None or row.name in self._with_line:
            return
        history = self._asked(partial(self._client.get_metric_history, run, _name(LABELS_ALONE)))
        for entry in reader.labels_alone(up_to=told, known={metric.step for metric in history}):
            self._tell(run, entry)
        self._with_line.add(row.name)

    def _end(self, run: str, row: StudyRow, artefacts: Callable[[str, Path], Sequence[Path]]) -> None:
        with TemporaryDirectory(prefix="semisilo-tracking-") as folder:
            for path in artefacts(row.name, Path(folder)):
                if path.is_dir():
                    self._asked(partial(self._client.log_artifacts, run, str(path), path.name))
                else:
                    self._asked(partial(self._client.log_artifact, run, str(path)))
        if row.reason:
            self._asked(lambda: self._client.set_tag(run, _REASON, row.reason[:_LONGEST_VALUE]))
        self._asked(lambda: self._client.set_terminated(
            run, status=_ENDED[row.state], end_time=round(1000 * (row.ended_unix or row.queued_unix))))

    def _asked(self, call: Callable[[], Any]) -> Any:
        """What MLflow answers. Raises: Unreachable for whatever it raises: its errors are of many kinds."""
        try:
            return call()
        except Exception as error:
            text = printable(str(error), limit=300).strip() or type(error).__name__
            raise Unreachable(f"MLflow at {self._target} cannot be reached: {text}.".replace("..", "."),
                              remedy="The study continues; what MLflow has missed is sent the next time.") from error


def _name(text: str) -> str:
    """A name as MLflow takes it: classes and silos may have others."""
    return _NOT_ALLOWED.sub("_", text)[:_LONGEST_NAME]


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
