"""What comes out of simulations, for people at a keyboard: typed numbers, tables, plots.

Tests: tests/semisilo/api/test_simulate.py.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from semisilo.common.config import to_dict
from semisilo.common.errors import UsageError
from semisilo.common.measures.gain import (
    Gain,
    ImageCounts,
    PairedGain,
    gain_interval_text,
    gain_of,
    gain_text,
    gain_verdict,
    mean_gain,
)
from semisilo.common.measures.intervals import Interval
from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure, common_measure, parse_measure
from semisilo.common.text.describe import describe_bytes, describe_metric, describe_percentage
from semisilo.common.text.html import Table, render_html
from semisilo.common.text.python_arguments import (
    checked_folder,
    checked_function,
    checked_texts,
    checked_yes_or_no,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import ENDED_STUDY, RoundState
from semisilo.coordinator.monitoring.results.study_numbers import method_name
from semisilo.coordinator.monitoring.summary import RoundSummary, summarise
from semisilo.coordinator.studies.model_choice import ChoiceFacts, no_silo_in
from semisilo.coordinator.studies.participation import ParticipationFacts
from semisilo.prediction.predictor import Cell, Predictions, data_frame, predict
from semisilo.simulation.result import SiloResult, silo_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from semisilo.coordinator.export.export import Exported

__all__ = ["Comparison", "Round", "Run", "Summary", "read_run"]

Along = Literal["round", "bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One round of a study."""

    round: int
    """0 is the preparation, before any silo has worked."""
    state: str
    """"completed", "failed", or where it stands."""
    accuracy: float | None
    """On the test images after the round, 0 to 1; None where it was not measured."""
    balanced_accuracy: float | None
    """Mean recall of the classes."""
    label_ratio: float | None
    """Mean over the silos of the share of their images that got a pseudo-label; None where nobody reported it."""
    payload_down: int
    """Bytes of encoded tensors from the coordinator to the silos in this round."""
    payload_up: int
    wire_down: int | None
    """Bytes on the network; None in a simulation, which has none."""
    wire_up: int | None
    dense_bytes: int
    """What the same transfers would have been as dense tensors."""
    seconds: float | None
    metrics: Mapping[str, float]
    """All numbers of the round."""
    updates: int = 0
    """Updates of silos that were accepted, in all phases."""
    taken_in: bool = True
    """Whether anything of them is in the model: not where the gate has accepted nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One study: what a simulation, or a federation, has done so far."""

    label: str
    """How it is called in tables and plots."""
    study: str
    method: str
    seed: int
    folder: Path
    """Of the simulation or federation."""
    state: str
    """Of the study: "completed", "running", ..."""
    classes: tuple[str, ...]
    rounds: tuple[Round, ...]
    labelled_only_accuracy: float | None
    """Of the same network trained on the coordinator's labels alone; None where that was not done."""
    labelled_only: Mapping[str, float]
    """All its numbers, named as those of a round; on validation images "validation_...", by cross-validation on the
    labels "crossfit_..." with the standard error under "..._error". {} where that was not done."""
    digest: str
    """SHA-256, hex, of the last committed state."""
    dense_bytes: int
    """Bytes of one dense model."""
    silos: tuple[SiloResult, ...]
    """What each silo answered, task by task."""
    choice: ChoiceFacts
    """Which round is handed over, by which measure and why; `choice.text` says it in one line."""
    test_images: ImageCounts
    """How many test images there are, in all and of each class."""
    paired: PairedGain | None = None
    """Intervals of what the round that is handed over is better by than labels alone, by what both models answer to
    each test image; None until the study is over."""
    simulated: bool = True
    labelled_only_steps: int = 0
    """Steps that the labels alone took; 0 where that was not done."""
    participation: ParticipationFacts = field(default_factory=ParticipationFacts)
    """On how many of how many silos it ran; `participation.text` says it in one line."""

    @property
    def completed(self) -> tuple[Round, ...]:
        """The committed rounds, round 0 included."""
        return tuple(each for each in self.rounds if each.state == RoundState.COMPLETED)

    @property
    def accuracy(self) -> float | None:
        """After the last committed round; None without a test set."""
        return self.completed[-1].accuracy if self.completed else None

    @property
    def chosen(self) -> Round | None:
        """The round that is handed over: chosen on validation images, without any the last; None before the first, and
        where labels alone are handed over (`choice.labels_alone`)."""
        if self.choice.labels_alone:
            return None
        return next((each for each in self.rounds if each.round == self.choice.round), None)

    @property
    def shown(self) -> Round | None:
        """The round that gain and table speak of: the last committed one while the study runs; once it is over the
        chosen one, also where labels alone are handed over in its place. None before the first."""
        if self.state in ENDED_STUDY:
            return next((each for each in self.completed if each.round == self.choice.round), None)
        return self.completed[-1] if self.completed else None

    @property
    def no_gain(self) -> str:
        """Why silos have brought nothing, whatever the numbers are; empty where a gain may be spoken of."""
        shown = self.shown
        if shown is None:
            return ""
        if self.state in ENDED_STUDY and self.choice.labels_alone:
            return "labels alone are handed over"
        taken_in = any(each.updates and each.taken_in for each in self.completed if each.round <= shown.round)
        return "" if taken_in else no_silo_in(shown.round)

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """(round, accuracy) of every committed round that was measured."""
        return tuple((each.round, each.accuracy) for each in self.completed if each.accuracy is not None)

    @property
    def test_score(self) -> float | None:
        """The study's measure (`choice.measure`) after the last committed round, on the test images, 0 to 1."""
        return self.completed[-1].metrics.get(self.choice.metric) if self.completed else None

    def curve_of(self, metric: str) -> tuple[tuple[int, float], ...]:
        """(round, a number of it) of every committed round that has one of this name, such as "balanced_accuracy".

        Raises: UsageError for a name that no committed round has, where there is one.
        """
        metric, names = str(metric), sorted({name for each in self.completed for name in each.metrics})
        if names and metric not in names:
            near = difflib.get_close_matches(metric, names, n=1, cutoff=0.5)
            raise UsageError(f"No round has a number called '{metric}'.",
                             remedy=f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(names)}.")
        return tuple((each.round, each.metrics[metric]) for each in self.completed if metric in each.metrics)

    @property
    def payload_bytes(self) -> int:
        """Both ways, of all rounds."""
        return sum(each.payload_down + each.payload_up for each in self.rounds)

    @property
    def wire_bytes(self) -> int | None:
        """Both ways, of all rounds; None in a simulation."""
        return None if self.simulated else sum((each.wire_down or 0) + (each.wire_up or 0) for each in self.rounds)

    @property
    def label_ratio(self) -> float | None:
        """Of the last round in which a silo reported one."""
        found = [each.label_ratio for each in self.rounds if each.label_ratio is not None]
        return found[-1] if found else None

    def bytes_so_far(self) -> tuple[int, ...]:
        """For each round the bytes up to its end: on the wire, or of payloads in a simulation."""
        total, found = 0, []
        for each in self.rounds:
            total += each.payload_down + each.payload_up if self.simulated \
                else (each.wire_down or 0) + (each.wire_up or 0)
            found.append(total)
        return tuple(found)

    def rows(self) -> list[dict[str, Cell]]:
        """A dictionary of plain numbers for each round."""
        found = []
        for each, so_far in zip(self.rounds, self.bytes_so_far(), strict=True):
            row: dict[str, Cell] = {"label": self.label, "method": self.method, "seed": self.seed, **to_dict(each),
                                    "bytes_so_far": so_far}
            del row["metrics"]
            found.append(row)
        return found

    def to_dict(self) -> dict[str, object]:
        """Everything as plain JSON types."""
        return {**to_dict(self), "accuracy": self.accuracy, "payload_bytes": self.payload_bytes,
                "wire_bytes": self.wire_bytes}

    def to_pandas(self) -> Any:
        """`rows` as a pandas.DataFrame. Raises: UsageError where pandas is not installed."""
        return data_frame(self.rows())

    def plot(self, *, by: Along = "round") -> Figure:
        """The study's measure on the test images by round, or by bytes so far, with the line of the labels alone."""
        from semisilo.api.plot import plot_runs

        measure = _measure_of((self,))
        return plot_runs([(self.label, (self,))], by=by, labelled_only=self.labelled_only.get(measure.metric),
                         measure=measure)

    def export(self, out: Path | str | None = None, *,
               round: int | Literal["chosen", "last", "labels-alone", "best-on-test"] = "chosen",
               test: Path | str = "",
               patient: Literal["auto", "folder", "name", "none"] | None = None, formats: str | Collection[str] =
               ("safetensors", "onnx"), calibrate: bool = False, operating_point: str | Sequence[str] = (),
               progress: Callable[[float, str], None] | None = None) -> Exported:
        """Writes the model with its card: see `semisilo export`.

        Args:
            out: the folder; None: `export-round-N`, or `export-labels-alone`, beside the run's files.
            round: "chosen" on validation images, without any the last; "last"; a number; "labels-alone"; or
                "best-on-test", after which the test images no longer measure the model.
            test: labelled images to measure on instead of the study's own.
            patient: how their patients are known; "none": not at all, for other patients of the same names; None: as
                the study knows its own.
            formats: one or several; "safetensors" is always written, "onnx" needs an extra.
            calibrate: whether to fit a temperature on the validation images; where images may have several labels, a
                slope and an offset for each class.
            operating_point: such as "sensitivity 95% for CLASS", chosen on the validation images; where images may have
                several labels also several, or "sensitivity 95% for every class".
        Returns: `.folder`, and `.card` with what stands in model_card.json.
        Raises: UsageError for the run of a federation, where it is `coordinator export`; what that raises.
        """
        if not self.simulated:
            raise UsageError(f"{self.folder} is a federation.", remedy=f"Run: coordinator export {self.study}.")
        from semisilo.common.numerics.numerics import left_as_it_was
        from semisilo.common.process.turns import at_torch
        from semisilo.simulation.output import export_run

        if not isinstance(test, (str, os.PathLike)):
            raise UsageError(f"test: is a {type(test).__name__}; images for an export are in a folder or file.",
                             remedy="Write its path, or measure with predict(), which takes arrays and data sets.")
        out = None if out is None else checked_folder(out, "out")
        formats = checked_texts(formats, "formats", example="onnx")
        points = checked_texts(operating_point, "operating_point", example="sensitivity 95% for CLASS")
        calibrate = checked_yes_or_no(calibrate, "calibrate")
        progress = checked_function(progress, "progress", takes="a share and a text")
        with at_torch(), left_as_it_was():
            return export_run(self.folder, out=out, round=str(round), test=str(test), patient=patient, formats=formats,
                              calibrate=calibrate, operating_point=points, progress=progress)

    def predict(self, source: Any) -> Predictions:
        """What the chosen model says of images: see `semisilo.predict`.

        Raises: UsageError before the study is complete.
        """
        model = self.folder / "studies" / self.study / "model.safetensors"
        if not model.is_file():
            raise UsageError(f"Study '{self.study}' is {self.state}; its model is written when it is complete.",
                             remedy="Finish it first.")
        return predict(model, source)

    def __repr__(self) -> str:
        """In one line: a notebook keeps it beside the table, and all that is in here may have 100,000 letters."""
        return (f"Run(label={self.label!r}, study={self.study!r}, seed={self.seed}, state={self.state!r},"
                f" rounds={len(self.rounds)}, accuracy={self.accuracy}, folder={str(self.folder)!r})")

    def _repr_html_(self) -> str:
        """For notebooks: the main numbers and the curve."""
        return _html([_summary(self.label, (self,))], self.plot() if _measured(self, self.choice.metric) else None)

    def __str__(self) -> str:
        table = _text_table([_summary(self.label, (self,))])
        return f"{self.study} {self.participation.text}\n{table}" if self.participation.text else table


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The runs of one method, over its seeds."""

    label: str
    runs: int
    accuracy: float | None
    """Mean accuracy of the models that are handed over, until a study is over of its last round; where labels alone
    are handed over, of the chosen round, as are the others here."""
    accuracy_std: float | None
    """Standard deviation over seeds (n - 1); None for one seed."""
    labelled_only: float | None
    """Mean accuracy of the labels alone, over the seeds of the comparison."""
    measure: str
    """What the studies are compared by, as a study file names it; accuracy where they do not agree."""
    test_score: float | None
    """Mean of that measure of those models, on the test images."""
    test_score_std: float | None
    """Standard deviation over seeds (n - 1); None for one seed."""
    labelled_only_score: float | None
    """Mean of that measure of the labels alone, over the seeds of the comparison."""
    labelled_only_metrics: Mapping[str, float]
    """Mean of every number of the labels alone, likewise."""
    metrics: Mapping[str, float]
    """Mean of every number that those models of all runs have."""
    gain: float | None
    """test_score - labelled_only_score; None also where silos have no part in what any of the runs hands over."""
    gain_interval: Interval | None
    """Of 95 %, of the images alone: how far seeds differ is `test_score_std`. None where it is not known."""
    gain_verdict: str
    """What that comes to: "no difference shown", or who has helped; empty where it is not known."""
    payload_bytes: float
    """Mean, of all rounds both ways."""
    share_of_dense: float | None
    """Payload bytes over those of dense transfers."""
    label_ratio: float | None
    """Mean of the last round's."""
    no_gain: str = ""
    """Why there is no gain, where silos have no part in what runs hand over."""
    gain_patients: int = 0
    """How many patients the interval goes by, where several test images are of one; 0 where every image counts."""
    gain_paired: bool = False
    """Whether the interval is of what both models answer to each image, in every run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Several methods on the same images, each with the same seeds."""

    runs: tuple[Run, ...]
    """Method by method, seed by seed."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods, in the order that they were given in."""
        return tuple(dict.fromkeys(run.label for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, likewise."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    def of(self, label: str) -> tuple[Run, ...]:
        """The runs of one method. Raises: UsageError for one that is not compared."""
        found = tuple(run for run in self.runs if run.label == label)
        if not found:
            raise UsageError(f"'{label}' is not compared here.", remedy=f"There are: {', '.join(self.labels)}.")
        return found

    def summary(self) -> tuple[Summary, ...]:
        """One line per method."""
        return tuple(_summary(label, self.of(label), among=self.runs) for label in self.labels)

    def rows(self) -> list[dict[str, Cell]]:
        """A dictionary of plain numbers for each round of each run."""
        return [row for run in self.runs for row in run.rows()]

    def to_dict(self) -> dict[str, object]:
        """Everything as plain JSON types."""
        return {"summary": [to_dict(each) for each in self.summary()], "runs": [run.to_dict() for run in self.runs]}

    def to_pandas(self) -> Any:
        """`rows` as a pandas.DataFrame. Raises: UsageError where pandas is not installed."""
        return data_frame(self.rows())

    def plot(self, *, by: Along = "round") -> Figure:
        """The studies' measure on the test images by round, or by payload bytes so far: a line per method, the mean
        over seeds, with a band from the lowest to the highest seed; dashed, the labels alone."""
        from semisilo.api.plot import plot_runs

        measure = _measure_of(self.runs)
        return plot_runs([(label, self.of(label)) for label in self.labels], by=by, measure=measure,
                         labelled_only=_labelled_only(self.runs, measure))

    def __repr__(self) -> str:
        """In one line, likewise."""
        return f"Comparison(labels={self.labels}, seeds={self.seeds}, runs={len(self.runs)})"

    def _repr_html_(self) -> str:
        """For notebooks: the summary and the curves."""
        return _html(self.summary(), self.plot() if any(
            _measured(run, _measure_of(self.runs).metric) for run in self.runs) else None)

    def __str__(self) -> str:
        return _text_table(self.summary())


def read_run(ledger: Ledger, study: str, folder: Path, *, label: str = "", simulated: bool = True) -> Run:
    """The run of a study in a ledger.

    Raises: UnknownName when there is no such study.
    """
    summary = summarise(ledger, study)
    row = summary.row
    method = method_name(row)
    return Run(label=label or method, study=study, method=method, seed=row.config["study"]["seed"], folder=folder,
               state=str(row.state), classes=row.classes,
               rounds=tuple(_round(each, simulated=simulated) for each in summary.rounds),
               choice=summary.choice, participation=summary.participation,
               test_images=ImageCounts(0) if row.frozen is None else row.frozen.test_counts,
               paired=row.paired, labelled_only_accuracy=summary.labelled_only,
               labelled_only={} if row.baseline is None else row.baseline.metrics,
               labelled_only_steps=0 if row.baseline is None else row.baseline.steps,
               digest=ledger.committed_digest(study),
               dense_bytes=row.dense_bytes, silos=silo_results(ledger, study), simulated=simulated)


def _round(entry: RoundSummary, *, simulated: bool) -> Round:
    traffic = entry.traffic
    return Round(round=entry.number, state=str(entry.state), accuracy=entry.accuracy,
                 balanced_accuracy=entry.metrics.get("balanced_accuracy"),
                 label_ratio=_mean(entry.label_ratio.values()), payload_down=traffic.payload_down,
                 payload_up=traffic.payload_up, wire_down=None if simulated else traffic.wire_down,
                 wire_up=None if simulated else traffic.wire_up,
                 dense_bytes=traffic.dense_total, seconds=entry.seconds, metrics=entry.metrics, updates=entry.updates,
                 taken_in=entry.taken_in)


def _measure_of(runs: Sequence[Run]) -> StudyMeasure:
    """What the runs are compared by: their studies' measure; where these do not agree accuracy, or AUROC where a run
    has no accuracy."""
    return common_measure([parse_measure(run.choice.measure) for run in runs], has_accuracy=all(
        run.accuracy is not None or not run.completed for run in runs))


def _labelled_only(runs: Sequence[Run], measure: StudyMeasure) -> float | None:
    """Mean over seeds; the same network on the same labels, whichever run has measured it."""
    return _mean([line[measure.metric] for line in _lines(runs).values() if measure.metric in line])


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of the numbers that all have."""
    names = [name for name in found[0] if all(name in each for each in found)] if found else []
    return {name: math.fsum(each[name] for each in found) / len(found) for name in names}


def _lines(runs: Sequence[Run]) -> dict[int, Mapping[str, float]]:
    """Seed -> all numbers of the labels alone: of those that took the most steps, where runs have others, as after a
    method more that looks at more labels."""
    trained = sorted((run for run in runs if run.labelled_only), key=lambda run: run.labelled_only_steps)
    return {run.seed: run.labelled_only for run in trained}


def _spread(values: Sequence[float]) -> float | None:
    """Standard deviation (n - 1); None of fewer than two."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(sum((each - mean) ** 2 for each in values) / (len(values) - 1))


def _gain(run: Run, alone: Mapping[str, float], measure: StudyMeasure) -> Gain | None:
    """Of one run against the labels alone of its seed; None where silos have no part in what it hands over."""
    if run.shown is None or run.no_gain:
        return None
    known = run.paired is not None and run.paired.round == run.shown.round and alone == run.labelled_only
    return gain_of(measure, classes=run.classes, images=run.test_images, federated=run.shown.metrics,
                   labels_alone=alone, paired=run.paired if known else None)


def _summary(label: str, runs: Sequence[Run], *, among: Sequence[Run] = ()) -> Summary:
    """
    Args:
        among: all that are compared: labels alone may be of others of the same seeds.
    """
    among = among or runs
    measure, alone = _measure_of(among), _lines(among)
    shown = [run.shown for run in runs if run.shown is not None]
    accuracies = [each.accuracy for each in shown if each.accuracy is not None]
    scores = [each.metrics[measure.metric] for each in shown if measure.metric in each.metrics]
    mean, line = _mean(scores), _labelled_only(among, measure)
    gains = [found for run in runs if (found := _gain(run, alone.get(run.seed, {}), measure)) is not None]
    gain = mean_gain(gains) if len(gains) == len(scores) else None
    dense = sum(each.dense_bytes for run in runs for each in run.rounds)
    none = [run.no_gain for run in runs if run.no_gain]
    return Summary(
        label=label, runs=len(runs), accuracy=_mean(accuracies), accuracy_std=_spread(accuracies),
        labelled_only=_labelled_only(among, ACCURACY), measure=str(measure), test_score=mean,
        test_score_std=_spread(scores), labelled_only_score=line,
        labelled_only_metrics=_means(list(alone.values())), metrics=_means([each.metrics for each in shown]),
        gain=None if mean is None or line is None or none else mean - line,
        gain_interval=None if gain is None else gain.interval,
        gain_verdict="" if gain is None else gain_verdict(gain), gain_patients=0 if gain is None else gain.patients,
        gain_paired=gain is not None and gain.paired,
        payload_bytes=sum(run.payload_bytes for run in runs) / len(runs),
        share_of_dense=sum(run.payload_bytes for run in runs) / dense if dense else None,
        label_ratio=_mean([run.label_ratio for run in runs if run.label_ratio is not None]),
        no_gain="; ".join(dict.fromkeys(none)) + (f" ({len(none)} of {len(runs)} runs)" if len(runs) > 1 else "")
        if none else "")


def _mean(values: Collection[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _with_accuracy(lines: Sequence[Summary]) -> bool:
    """Whether accuracy stands beside the measure: where it is another, and any run has an accuracy."""
    return parse_measure(lines[0].measure) != ACCURACY and any(each.accuracy is not None for each in lines)


def _columns(measure: StudyMeasure, *, accuracy: bool) -> tuple[str, ...]:
    beside = (ACCURACY.title,) if accuracy else ()
    return ("method", "seeds", measure.title, *beside, "gain", "95 % interval", "payload", "of dense", "label ratio")


def _cells(each: Summary, *, accuracy: bool) -> tuple[str, ...]:
    measure = parse_measure(each.measure)
    beside = (_mean_text(ACCURACY, each.accuracy, each.accuracy_std),) if accuracy else ()
    gain, interval = "–", each.no_gain or "–"
    if each.gain is not None and each.test_score is not None and each.labelled_only_score is not None:  # means of runs
        of_all = Gain(measure=measure, federated=each.test_score, labels_alone=each.labelled_only_score,
                      interval=each.gain_interval, patients=each.gain_patients, paired=each.gain_paired)
        gain = gain_text(of_all, decimals=2)
        interval = ", ".join(filter(None, (gain_interval_text(of_all).removeprefix("95 % interval "),
                                           each.gain_verdict)))
    return (each.label, str(each.runs), _mean_text(measure, each.test_score, each.test_score_std), *beside, gain,
            interval, describe_bytes(each.payload_bytes), describe_percentage(each.share_of_dense),
            describe_percentage(each.label_ratio))


def _mean_text(measure: StudyMeasure, mean: float | None, spread: float | None) -> str:
    text = describe_metric(measure.metric, mean, decimals=2)
    return text if mean is None or spread is None else \
        f"{text.removesuffix(' %')} ± {describe_metric(measure.metric, spread, decimals=2)}"


def _note(lines: Sequence[Summary]) -> str:
    found = next((each for each in lines if each.labelled_only_score is not None), None)
    if found is None:
        return ""
    measure = parse_measure(found.measure)
    named = "" if measure == ACCURACY else f"{measure.title} "
    more = [f"{words} {each.labelled_only_metrics[name]:.3f} (federated: "
            + ", ".join(f"{each.metrics[name]:.3f}" if name in each.metrics else "–" for each in lines) + ")"
            for name, words in (("balanced_accuracy", "balanced accuracy"), ("auroc", "AUROC"),
                                ("calibration_error", "calibration error"))
            for each in (found,) if name in each.labelled_only_metrics and name != measure.metric]
    alone = describe_metric(measure.metric, found.labelled_only_score, decimals=2)
    return "; ".join([f"labels alone: {named}{alone}", *more])


def _text_table(lines: Sequence[Summary]) -> str:
    accuracy = _with_accuracy(lines)
    columns = _columns(parse_measure(lines[0].measure), accuracy=accuracy)
    rows = [columns, *(_cells(each, accuracy=accuracy) for each in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    text = ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]
    return "\n".join([*text, *([_note(lines)] if _note(lines) else [])])


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the template shows in a notebook."""

    table: Table
    note: str
    measure: str
    """What the picture draws."""
    picture_uri: str
    """Empty where nothing was measured."""


def _measured(run: Run, metric: str) -> bool:
    return any(metric in each.metrics for each in run.completed)


def _html(lines: Sequence[Summary], figure: Figure | None) -> str:
    from semisilo.api.plot import picture_uri

    accuracy = _with_accuracy(lines)
    table = Table("methods", _columns(parse_measure(lines[0].measure), accuracy=accuracy),
                  [_cells(each, accuracy=accuracy) for each in lines])
    return render_html(__name__, _Shown(table, _note(lines), parse_measure(lines[0].measure).title,
                                        "" if figure is None else picture_uri(figure)))
