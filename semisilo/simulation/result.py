"""What came out of a simulation, read from its ledger: accuracy and bytes by round, what each silo reported.

Tests: tests/semisilo/simulation/test_simulate.py.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.config import to_dict
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.ledger.tasks import answers_of_study
from semisilo.coordinator.monitoring.results.study_numbers import MeasureBeside
from semisilo.coordinator.monitoring.summary import RoundSummary, summarise
from semisilo.coordinator.studies.model_choice import ChoiceFacts
from semisilo.coordinator.studies.shown_model import ShownModel
from semisilo.simulation.folder import SimulationFolder
from semisilo.simulation.splits.splits import WholePatients

__all__ = ["RoundResult", "SiloResult", "SimulationResult", "read_result", "silo_results"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """One round."""

    round: int
    """0 is the preparation."""
    state: str
    accuracy: float | None
    """On the test images after the round; None without any."""
    metrics: Mapping[str, float]
    """All numbers of the round."""
    answers: Mapping[str, int]
    """How many silos gave which answer: "updated", "abstained", "refused", "expired", ..."""
    payload_down: int
    """Bytes of all payloads that silos were sent in the round."""
    payload_up: int
    dense_bytes: int
    """What the same transfers would have been as dense tensors."""
    seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloResult:
    """One silo's answer to one task."""

    round: int
    phase: str
    silo: str
    state: str
    num_examples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationResult:
    """A simulation that is over."""

    study: str
    method: str
    seed: int
    folder: Path
    rounds: tuple[RoundResult, ...]
    """In order, round 0 included."""
    silos: tuple[SiloResult, ...]
    """All answers, by round, phase and silo."""
    labelled_only_accuracy: float | None
    """Of the same network trained on the coordinator's labels alone; None where that was not trained."""
    choice: ChoiceFacts
    """Which round is handed over, by which measure and why."""
    beside: tuple[MeasureBeside, ...]
    """All numbers of the chosen round, of the last one until the study is over, beside those of labels alone; () where
    these were not trained."""
    shown: ShownModel
    """Which round that is."""
    digest: str
    """SHA-256 of the final state's file: equal to that of a run with real silos."""
    dense_bytes: int
    """Of one dense model: 4 x its parameters."""
    seconds: float
    """From the start to the end, pauses included."""
    patients: WholePatients | None = None
    """What it took that no patient is in two parts; None where that took nothing, or patients are not known."""

    @property
    def accuracy(self) -> float | None:
        """On the test images after the last completed round; None without any."""
        done = [each.accuracy for each in self.rounds if each.state == RoundState.COMPLETED]
        return done[-1] if done else None

    @property
    def test_score(self) -> float | None:
        """The study's measure (`choice.measure`) of the shown model on the test images; None where it was not
        measured."""
        return self.shown.metrics.get(self.choice.metric)

    @property
    def labels_alone_test_score(self) -> float | None:
        """The same of labels alone."""
        return next((each.labels_alone for each in self.beside if each.name == self.choice.metric), None)

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """(round, accuracy) of every completed round, round 0 included."""
        return tuple((each.round, each.accuracy) for each in self.rounds
                     if each.accuracy is not None and each.state == RoundState.COMPLETED)

    @property
    def model(self) -> Path:
        """The model of the chosen round, a safetensors file."""
        return self.folder / "studies" / self.study / "model.safetensors"

    def to_json(self) -> str:
        """All facts but the folder as one JSON object."""
        facts = {name: value for name, value in to_dict(self).items() if name != "folder"}
        return json.dumps({**facts, "accuracy": self.accuracy}, indent=2) + "\n"

    def to_csv(self) -> str:
        """One line per round: its state, accuracy, bytes, answers and all metrics that any round has."""
        answers = sorted({name for each in self.rounds for name in each.answers})
        names = sorted({name for each in self.rounds for name in each.metrics} - {"accuracy"})
        stream = io.StringIO()
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(["round", "state", "accuracy", "payload_down", "payload_up", "dense_bytes", "seconds",
                        *answers, *names])
        for each in self.rounds:
            lines.writerow([each.round, each.state, each.accuracy, each.payload_down, each.payload_up,
                            each.dense_bytes, each.seconds, *(each.answers.get(name, 0) for name in answers),
                            *(each.metrics.get(name, "") for name in names)])
        return stream.getvalue()


def read_result(ledger: Ledger, study: str, folder: Path) -> SimulationResult:
    """The result of a study in the ledger of a simulation."""
    summary = summarise(ledger, study)
    row = summary.row
    return SimulationResult(
        study=study, method=row.config["method"]["name"], seed=row.config["study"]["seed"], folder=folder,
        rounds=tuple(_round(each) for each in summary.rounds), silos=silo_results(ledger, study),
        labelled_only_accuracy=summary.labelled_only, choice=summary.choice, beside=summary.beside,
        shown=summary.shown,
        digest=ledger.committed_digest(study), dense_bytes=row.dense_bytes, seconds=summary.seconds or 0.0,
        patients=SimulationFolder(folder).read_record().patients)


def _round(entry: RoundSummary) -> RoundResult:
    counts = Counter(str(state) for state in entry.outcomes.values())
    return RoundResult(round=entry.number, state=str(entry.state), accuracy=entry.accuracy, metrics=entry.metrics,
                       answers=dict(counts), payload_down=entry.traffic.payload_down,
                       payload_up=entry.traffic.payload_up, dense_bytes=entry.traffic.dense_total,
                       seconds=entry.seconds)


def silo_results(ledger: Ledger, study: str) -> tuple[SiloResult, ...]:
    """What each silo answered, task by task: by round, phase and silo."""
    return tuple(SiloResult(round=each.round, phase=each.phase, silo=each.silo, state=str(each.state),
                            num_examples=each.example_count or 0, metrics=each.metrics)
                 for each in answers_of_study(ledger, study))
