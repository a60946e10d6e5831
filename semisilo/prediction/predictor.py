"""Runs an exported model on images: `semisilo predict`, and the same from Python.

Images are read and brought to the model's form as in training, batch by batch, so that a folder may be larger than
memory. An ONNX graph is run by onnxruntime; with a folder of images torch is then not loaded at all.

Shapes: N images, B images of a batch, K classes, C channels, S side of the square.

Tests: tests/semisilo/prediction/test_predict.py.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from semisilo.common.config import to_dict
from semisilo.common.data.datasets import SizedDataset
from semisilo.common.data.form import Selection
from semisilo.common.data.image_set import Skipped
from semisilo.common.errors import BadData, UsageError
from semisilo.common.measures.calibration import probabilities
from semisilo.common.measures.finding_calibration import finding_probabilities
from semisilo.common.measures.findings import FindingsMeasures, measure_findings
from semisilo.common.measures.independent_images import independent_images
from semisilo.common.measures.multi_label import AVERAGE_CUT
from semisilo.common.models.exported import METADATA_KEY, ModelFacts, OperatingPoint, facts_from_json
from semisilo.common.models.onnx_runtime import onnx_runtime
from semisilo.common.models.own.given import GIVEN, Network, give
from semisilo.common.models.own.model_file import ModelFile, names_file
from semisilo.common.process.turns import at_torch
from semisilo.common.storage.durable import write_durably
from semisilo.common.text.describe import describe_metric, describe_percentage
from semisilo.common.text.html import Table, render_html
from semisilo.common.text.installing import how_to_install
from semisilo.common.text.python_arguments import (
    checked_function,
    checked_path,
    checked_texts,
    checked_whole,
    checked_yes_or_no,
)
from semisilo.common.text.spreadsheet import no_formula
from semisilo.prediction.images import OnError, Source, open_source
from semisilo.prediction.prevalence import Prevalence, at_prevalence

__all__ = ["Cell", "Predictions", "Predictor", "open_predictor", "predict"]

_SHOWN = 20
"""Rows of a table in a notebook."""
_MOST_PIXELS = 2**24
"""Of a batch: a model's file says how large its images are. 250 images may have 256 x 256."""

Device = Literal["auto", "cpu", "cuda"]
Arrays = tuple[NDArray[Any], Sequence[Any] | NDArray[Any]]
Cell = str | int | float | None
"""Of a row that becomes a line of a CSV file or of a table."""


class Predictor(Protocol):
    """A model that is ready to answer."""

    @property
    def facts(self) -> ModelFacts:
        """What the model is for."""

    def logits(self, images_BCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits (B, K) of pictures in the model's form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictions:
    """What a model says of a set of images."""

    classes: tuple[str, ...]
    files: tuple[str, ...]
    """A name per image: its path within the folder, or "file.npz[12]"."""
    predicted: NDArray[np.int64]
    """(N,), indices into `classes`."""
    probabilities: NDArray[np.float64]
    """(N, K), in the order of `classes`."""
    true: NDArray[np.int64]
    """(N,), -1 where the source has no class for an image."""
    skipped: tuple[Skipped, ...] = field(default=())
    """Files that are left out, and why: `broken` says of each whether it should have been an image."""
    operating_point: OperatingPoint | None = None
    """The threshold by which one class was predicted; None: the largest probability."""
    prevalence: Prevalence | None = None
    """What the probabilities were brought to; None: they are for the classes' shares of training."""
    thresholds: tuple[float, ...] = ()
    """Where an image may show several classes or none: what each class's probability must reach to count as shown, in
    the order of `classes`; () where an image has one class. `predicted` is then the class that exceeds its own by
    most."""
    truth: NDArray[np.int8] | None = None
    """Likewise, (N, K): 1 where the source says that the image shows the class, 0 where it does not, -1 where it does
    not say; None where an image has one class."""
    measures: FindingsMeasures | None = None
    """Likewise, of the images of which a class is known, at the thresholds; None without any."""
    not_compared: str = ""
    """Which labels of the source do not count, and why; empty where all do."""
    read_with: tuple[str, ...] = ()
    """How images of more than 8 bits were read, where the files do not say it: a line for each kind of values."""

    def notes(self) -> tuple[str, ...]:
        """What whoever reads the predictions must know, a line each."""
        found = list(self.read_with)
        if self.thresholds:
            found.append("thresholds: " + ", ".join(f"{name} {cut:.4g}" for name, cut in zip(
                self.classes, self.thresholds, strict=True)))
        if (point := self.operating_point) is not None:
            found.append(f"operating point: {point.describe()}, threshold {point.threshold:.4g}"
                         + (" on the probability before --prevalence" if self.prevalence is not None else ""))
        if self.prevalence is not None:
            found.append(self.prevalence.describe(self.classes))
        if self.not_compared:
            found.append(self.not_compared)
        return tuple(found)

    @property
    def multi_label(self) -> bool:
        """Whether an image may show several classes or none."""
        return bool(self.thresholds)

    @property
    def shown(self) -> NDArray[np.bool_]:
        """Which classes count as shown, (N, K). With one class for an image the predicted one."""
        if self.multi_label:
            reached: NDArray[np.bool_] = self.probabilities >= np.array(self.thresholds)
            return reached
        one: NDArray[np.bool_] = np.arange(len(self.classes)) == self.predicted[:, None]
        return one

    def findings(self, index: int) -> tuple[str, ...]:
        """The names of the classes that an image shows; () for none."""
        return tuple(name for name, is_shown in zip(self.classes, self.shown[index].tolist(), strict=True) if is_shown)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labelled(self) -> int:
        """Images whose class is known; where an image may show several, those of which any class is known."""
        return int((self.true >= 0).sum()) if self.truth is None else int((self.truth >= 0).any(axis=1).sum())

    @property
    def right(self) -> int:
        """Images whose class is known and predicted."""
        return int((self.predicted == self.true).sum())

    @property
    def accuracy(self) -> float | None:
        """right / labelled; None where no class is known, and where an image may show several: see `measures`."""
        return self.right / self.labelled if self.labelled and not self.multi_label else None

    def rows(self, *, top: int | None = None) -> list[dict[str, Cell]]:
        """A dictionary for each image: file, predicted, probability, perhaps true, and the probabilities of all classes
        ("p_CLASS"), or the `top` likeliest ("class_1", "probability_1", ...).

        Where an image may show several classes or none: file, findings (names with "|" between them, "" for none), and
        of every class "p_CLASS" and "shown_CLASS", 1 where it counts as shown, else 0; where the source knows labels
        also "true_CLASS", 1, 0 or "" where it does not know this one.
        """
        top = None if top is None else checked_whole(top, "top")
        if self.multi_label:
            return self._rows_of_findings(top)
        found: list[dict[str, Cell]] = []
        for index, name in enumerate(self.files):
            label, p_K = int(self.predicted[index]), self.probabilities[index]
            row: dict[str, Cell] = {"file": name, "predicted": self.classes[label], "probability": float(p_K[label])}
            if self.labelled:
                row["true"] = self.classes[self.true[index]] if self.true[index] >= 0 else ""
            if top is None:
                row |= {f"p_{each}": float(p) for each, p in zip(self.classes, p_K, strict=True)}
            else:
                for rank, best in enumerate(np.argsort(-p_K, kind="stable")[:top].tolist(), 1):
                    row |= {f"class_{rank}": self.classes[best], f"probability_{rank}": float(p_K[best])}
            found.append(row)
        return found

    def _rows_of_findings(self, top: int | None) -> list[dict[str, Cell]]:
        found = []
        known = self.truth is not None and self.labelled > 0
        for index, (name, p_K, is_shown_K) in enumerate(zip(self.files, self.probabilities, self.shown.tolist(),
                                                            strict=True)):
            row: dict[str, Cell] = {"file": name, "findings": "|".join(self.findings(index))}
            if known and self.truth is not None:
                row |= {f"true_{each}": truth if truth >= 0 else ""
                        for each, truth in zip(self.classes, self.truth[index].tolist(), strict=True)}
            if top is None:
                for each, p, is_shown in zip(self.classes, p_K.tolist(), is_shown_K, strict=True):
                    row |= {f"p_{each}": p, f"shown_{each}": int(is_shown)}
            else:
                for rank, best in enumerate(np.argsort(-p_K, kind="stable")[:top].tolist(), 1):
                    row |= {f"class_{rank}": self.classes[best], f"probability_{rank}": float(p_K[best])}
            found.append(row)
        return found

    def to_dict(self, *, top: int | None = None) -> dict[str, object]:
        """Everything as plain JSON types."""
        return {"classes": list(self.classes), "images": len(self), "labelled": self.labelled,
                "right": self.right if self.labelled and not self.multi_label else None, "accuracy": self.accuracy,
                "operating_point": to_dict(self.operating_point), "prevalence": to_dict(self.prevalence),
                **({"thresholds": dict(zip(self.classes, self.thresholds, strict=True)),
                    "measures": to_dict(self.measures), "not_compared": self.not_compared}
                   if self.multi_label else {}),
                "predictions": self.rows(top=top),
                "skipped": [{"file": each.name, "reason": each.reason, "broken": each.broken} for each in self.skipped]}

    def to_csv(self, path: Path | str | None = None, *, top: int | None = None) -> str:
        """One line per image, with a heading; also written to `path`, whole or not at all. A name that begins like a
        formula has an apostrophe before it."""
        path = None if path is None else checked_path(path, "path")
        stream = io.StringIO()
        rows = self.rows(top=top)
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(map(no_formula, rows[0] if rows else ["file"]))
        lines.writerows([f"{value:.6f}" if isinstance(value, float) else no_formula(value) if isinstance(value, str)
                         else value for value in row.values()] for row in rows)
        if path is not None:
            write_durably(path, stream.getvalue().encode("utf-8", "surrogateescape"))
        return stream.getvalue()

    def to_pandas(self) -> Any:
        """`rows` as a pandas.DataFrame. Raises: UsageError where pandas is not installed."""
        return data_frame(self.rows())

    def __repr__(self) -> str:
        """In one line: there may be a million names in here."""
        return (f"Predictions(images={len(self)}, classes={len(self.classes)}, labelled={self.labelled},"
                f" accuracy={self.accuracy}, skipped={len(self.skipped)})")

    def _repr_html_(self) -> str:
        """A table of the first images, for notebooks."""
        share = "" if self.accuracy is None else \
            f", {self.right} of {self.labelled} right ({describe_percentage(self.accuracy)})"
        if self.measures is not None:
            share = f", macro AUROC {describe_metric('auroc', self.measures.auroc_macro)} of {self.measures.images}" \
                " with known labels"
        rows = [(name, "|".join(self.findings(index)) or "no finding" if self.multi_label else self.classes[label],
                 f"{p_K[label]:.3f}")
                for index, (name, label, p_K) in enumerate(zip(self.files[:_SHOWN], self.predicted[:_SHOWN].tolist(),
                                                               self.probabilities[:_SHOWN], strict=True))]
        table = Table("predictions", ("file", "predicted", "probability"), rows, words=2)
        return render_html(__name__, _Shown(f"{len(self)} images{share}", table, more=max(0, len(self) - _SHOWN),
                                            lost=sum(each.broken for each in self.skipped)))


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the template shows in a notebook."""

    heading: str
    table: Table
    """The first images."""
    more: int
    """Images that are not in the table."""
    lost: int
    """Files that could not be read."""


def data_frame(rows: Sequence[Mapping[str, Cell]]) -> Any:
    """A pandas.DataFrame. Raises: UsageError where pandas is not installed, which we do not need."""
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        raise UsageError("pandas is not installed.", remedy=f"{how_to_install('pandas')} Or use rows().") from None
    return pandas.DataFrame(rows)


def predict(model: Path | str | Predictor, source: Path | str | NDArray[Any] | Arrays | SizedDataset, *,
            device: Device = "auto", batch_size: int = 250, on_error: OnError = "skip",
            allow_factories: Collection[str] = (), progress: Callable[[float, str], None] | None = None,
            operating_point: bool = True, prevalence: str = "", network: Network | None = None,
            selection: Selection | None = None) -> Predictions:
    """What a model says of images.

    Args:
        model: an export's folder, its model.safetensors or its model.onnx, or an opened predictor.
        source: whatever a study reads (a folder, an .npz file, "digits", ...); or images uint8 (N, H, W) or
            (N, H, W, 3); or (images, labels), labels being names of the model's classes or indices into them, or where
            an image may show several (N, K) of 1, 0 and -1 for what is not known; or a torch.utils.data.Dataset.
        device: "auto" takes an accelerator where there is one.
        batch_size: images at a time, fewer where they would have more than 16.8 million pixels together. With 250, the
            bits are those of the coordinator's own evaluation.
        on_error: at a file that cannot be read, "skip" (and list) it or "stop".
        allow_factories: "package.module:factory" names of networks that may be imported, or "file.py:factory" of a file
            beside the model.
        progress: told the share that is done, 0 to 1, and a line of text.
        operating_point: whether the model's operating point is used, where it has one: its class is predicted where it
            reaches the threshold, else the likeliest other class.
        prevalence: the classes' shares at this place, as "melanoma=0.02", or "estimate" from these images: the
            probabilities are brought to them (Saerens et al., 2002). The operating point looks at the probabilities as
            they were before, since its sensitivity and specificity do not depend on prevalence.
        network: what `semisilo.simulate(model=...)` was given, for a model that was trained so by another process.
        selection: which DICOM files count, and which format plug-ins read files of other kinds, as [data] dicom and
            formats of a study; without one every file that is an image.
    Returns: predictions in byte order of paths; where the source has classes that the model knows, with these.
    Raises: BadData, naming the file; UsageError for what does not fit.
    """
    batch_size = checked_whole(batch_size, "batch_size")
    for kind, value, choices in (("on_error", on_error, get_args(OnError)), ("device", device, get_args(Device))):
        if not isinstance(value, str) or value not in choices:
            raise UsageError(f"There is no {kind} '{value}'.", remedy=f"Choose one of: {', '.join(choices)}.")
    progress = checked_function(progress, "progress", takes="a share and a text")
    operating_point = checked_yes_or_no(operating_point, "operating_point")
    if not isinstance(prevalence, str):
        raise UsageError(f"prevalence = {str(prevalence)[:80]}: must be a text.",
                         remedy='Write prevalence="melanoma=0.02,naevus=0.98", or "estimate".')
    if selection is not None and not isinstance(selection, Selection):
        raise UsageError(f"selection = {str(selection)[:80]}: must be a Selection.",
                         remedy='Write Selection(dicom={"Modality": ("CR", "DX")}), of semisilo.common.data.form.')
    opened = _opened(model, device=device, allow_factories=checked_texts(
        allow_factories, "allow_factories", example="my_net.py:build"), network=network)
    facts = opened.facts
    if facts.task == "multi_label":
        _check_options_of_findings(operating_point=operating_point, prevalence=prevalence)
    at_once = max(1, min(batch_size, _MOST_PIXELS // facts.image.size**2))
    images = open_source(source, form=facts.image, classes=facts.model.classes, on_error=on_error,
                         batch_size=at_once, multi_label=facts.task == "multi_label", least=dict(facts.ranges),
                         selection=selection or Selection())
    parts: list[NDArray[np.float32]] = []
    files: list[str] = []
    true: list[int] = []
    rows: list[NDArray[np.int8]] = []
    patients: list[str] = []
    for batch in images:
        answer_BK = opened.logits(batch.images_BCHW)
        if answer_BK.shape != (len(batch.files), len(facts.model.classes)) or not bool(np.isfinite(answer_BK).all()):
            raise BadData("The model's answers are not finite, or not one per class.", remedy="Export it again.")
        parts.append(answer_BK)
        files += batch.files
        true += batch.labels
        rows += [] if batch.rows_BK is None else [batch.rows_BK]
        patients += batch.patients
        if progress is not None:
            progress(batch.share, f"{len(files)} images")
    if not files:
        first = next((each for each in images.skipped if each.broken), None)
        raise BadData(f"None of the images can be read: first is {first.name}, {first.reason}." if first else
                      "There are no images.",
                      remedy="Check that the files were copied completely.")
    logits_NK = np.concatenate(parts)
    classes = facts.model.classes
    if facts.task == "multi_label":
        unknown_NK = np.full(logits_NK.shape, -1, dtype=np.int8)
        return _of_findings(logits_NK, np.concatenate(rows) if rows else unknown_NK, facts, tuple(files), images,
                            patients=tuple(patients))
    plain_NK = p_NK = probabilities(logits_NK, temperature=facts.temperature)
    predicted_N, brought_to = logits_NK.argmax(axis=1), None
    if prevalence:
        p_NK, brought_to = at_prevalence(plain_NK, prevalence, classes, facts.training_prior)
        predicted_N = p_NK.argmax(axis=1)
    point = facts.operating_point if operating_point else None
    if point is not None:
        label = classes.index(point.label)
        others_NK = p_NK.copy()
        others_NK[:, label] = -1.0
        predicted_N = np.where(plain_NK[:, label] >= point.threshold, label, others_NK.argmax(axis=1))
    return Predictions(classes=classes, files=tuple(files), predicted=predicted_N, probabilities=p_NK,
                       true=np.array(true, dtype=np.int64), skipped=tuple(images.skipped), operating_point=point,
                       prevalence=brought_to, read_with=_read_with(images.ranges, facts))


def _read_with(ranges: Mapping[str, float], facts: ModelFacts) -> tuple[str, ...]:
    """How deep images were read, a line for each kind of values."""
    found = []
    for kind, limit in sorted(ranges.items()):
        of_study = dict(facts.ranges).get(kind)
        why = "as far as these images show; the model does not say what its study took" if of_study is None else \
            "as in the model's study" if of_study == limit else \
            f"since these images go beyond {of_study:g}, the white of the model's study: the model sees them darker"
        found.append(f"values of {kind}: {limit:g} and above are white, {why}")
    return tuple(found)


def _check_options_of_findings(*, operating_point: bool, prevalence: str) -> None:
    """Raises: UsageError for options of models whose images have one class."""
    if prevalence:
        raise UsageError("--prevalence is for models whose images have one class; here an image may show several or"
                         " none.",
                         remedy="Leave it out.")
    if not operating_point:
        raise UsageError("--no-operating-point is for models whose images have one class; here every class has a"
                         " threshold, in the place of the likeliest class.",
                         remedy="Leave it out; the probabilities p_CLASS are without thresholds.")


def _of_findings(logits_NK: NDArray[np.float32], rows_NK: NDArray[np.int8], facts: ModelFacts, files: tuple[str, ...],
                 images: Source, *, patients: tuple[str, ...]) -> Predictions:
    """Predictions of a model whose images may show several classes or none, compared with what the source knows.

    Args:
        patients: whom each image is of, "" where it is not known; () of none.
    """
    classes = facts.model.classes
    p_NK = finding_probabilities(logits_NK, facts.scaling)
    cuts = facts.thresholds or (AVERAGE_CUT,) * len(classes)
    known_N = (rows_NK >= 0).any(axis=1)
    compared = [patients[image] for image in np.flatnonzero(known_N).tolist()] if patients else []
    worth = independent_images(compared, rows_NK[known_N], len(classes)) if compared else None
    measures = None if not known_N.any() else measure_findings(
        logits_NK[known_N], rows_NK[known_N], classes=classes, thresholds=cuts, scaling=facts.scaling,
        thresholds_from="those of the model", independent=worth, patients=() if worth is None else compared)
    return Predictions(classes=classes, files=files, predicted=(p_NK - np.array(cuts)).argmax(axis=1),
                       probabilities=p_NK, true=np.full(len(files), -1, dtype=np.int64),
                       skipped=tuple(images.skipped), thresholds=cuts, truth=rows_NK, measures=measures,
                       not_compared=images.not_compared, read_with=_read_with(images.ranges, facts))


def _opened(model: Path | str | Predictor, *, device: Device, allow_factories: Collection[str],
            network: Network | None) -> Predictor:
    if isinstance(model, (str, os.PathLike)):
        return open_predictor(checked_path(model, "model"), device=device, allow_factories=allow_factories,
                              network=network)
    if not hasattr(model, "facts") or not hasattr(model, "logits"):
        raise UsageError(f"model: is a {type(model).__name__}, not the path of an exported model.",
                         remedy="Write the folder of an export, such as run.export().folder; of a run,"
                                " run.predict(images).")
    return model


def open_predictor(model: Path | str, *, device: Device = "auto", allow_factories: Collection[str] = (),
                   network: Network | None = None) -> Predictor:
    """Reads an exported model.

    Args:
        model: an export's folder (its weights, or else its graph), a .safetensors or an .onnx file.
    Raises: BadData for a file that is none, or damaged; UsageError for a folder without a model, or where onnxruntime
        is not installed; NotPermitted for a model factory that is not listed.
    """
    path = _file_of(Path(model).expanduser())
    if path.suffix.lower() == ".onnx":
        return _OnnxPredictor(path, device=device)
    return _TorchPredictor(path, device=device, allow_factories=allow_factories, network=network)


def _file_of(path: Path) -> Path:
    if path.is_dir():
        for name in ("model.safetensors", "model.onnx"):
            if (path / name).is_file():
                return path / name
        raise UsageError(f"{path}: holds no model.safetensors and no model.onnx.",
                         remedy="Name the folder that `coordinator export` or `semisilo export` has written.")
    if not path.is_file():
        raise UsageError(f"{path}: no such folder or file.",
                         remedy="Name the folder that `coordinator export` or `semisilo export` has written.")
    return path


class _TorchPredictor:
    def __init__(self, path: Path, *, device: Device, allow_factories: Collection[str],
                 network: Network | None) -> None:
        import torch

        from semisilo.common.models.exported import read_facts, read_model

        if device == "cuda" and not torch.cuda.is_available():
            raise UsageError("There is no GPU that torch can use.", remedy="Choose --device cpu.")
        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        facts = read_facts(path)
        model = facts.model
        if network is not None:
            if model.name.partition(":")[0] != GIVEN:
                raise UsageError(f"{path}: its network is '{model.name}': network has no effect.",
                                 remedy="Leave it out.")
            give(network, num_classes=len(model.classes), channels=facts.image.channels, size=facts.image.size,
                 sha256=model.factory_sha256)
        code = tuple(ModelFile(path.parent, model.factory_sha256) if each == model.name and names_file(each) else each
                     for each in allow_factories)
        self._model, self._facts = read_model(path, allow_factories=code, device=chosen)

    @property
    def facts(self) -> ModelFacts:
        """See `Predictor`."""
        return self._facts

    def logits(self, images_BCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See `Predictor`."""
        import torch

        from semisilo.common.models.exported import logits_of
        from semisilo.common.numerics.numerics import as_handed_over

        pixels = torch.from_numpy(np.ascontiguousarray(images_BCHW))
        with at_torch(), as_handed_over():
            answer: NDArray[np.float32] = logits_of(self._model, pixels, self._facts.image,
                                                    batch_size=max(1, len(pixels))).numpy()
        return answer


class _OnnxPredictor:
    def __init__(self, path: Path, *, device: Device) -> None:
        try:
            onnxruntime = onnx_runtime()
        except ImportError:
            raise UsageError("An ONNX graph needs onnxruntime, which is not installed.",
                             remedy=f"{how_to_install('semisilo[onnx]')} Or use model.safetensors.") from None
        there = onnxruntime.get_available_providers()
        if device == "cuda" and "CUDAExecutionProvider" not in there:
            raise UsageError("This onnxruntime cannot use a GPU.", remedy="Choose --device cpu, or use"
                             " model.safetensors.")
        providers = [name for name in ("CUDAExecutionProvider",) if name in there and device != "cpu"]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options,
                                                         providers=[*providers, "CPUExecutionProvider"])
            metadata = dict(self._session.get_modelmeta().custom_metadata_map)
        except Exception as error:  # onnxruntime has classes of its own for every failure
            raise BadData(f"{path}: cannot be read as an ONNX graph: {str(error).strip().splitlines()[0]}.",
                          remedy="Check the copy.") from None
        if METADATA_KEY not in metadata:
            raise BadData(f"{path}: is an ONNX graph, but says nothing about its images and classes.",
                          remedy="Export it with: coordinator export STUDY, or semisilo export RUN.")
        self._facts = facts_from_json(metadata[METADATA_KEY], where=str(path))
        form = self._facts.image
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        wanted = [form.channels, form.size, form.size]
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or list(inputs[0].shape[1:]) != wanted \
                or len(outputs) != 1:
            raise BadData(f"{path}: its input is not one batch of {form.channels} x {form.size} x {form.size} numbers.",
                          remedy="Export it again.")
        self._names = inputs[0].name, outputs[0].name
        self._path = path

    @property
    def facts(self) -> ModelFacts:
        """See `Predictor`."""
        return self._facts

    def logits(self, images_BCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See `Predictor`."""
        fractions_BCHW = images_BCHW.astype(np.float32) / np.float32(255)
        try:
            answer = self._session.run([self._names[1]], {self._names[0]: fractions_BCHW})[0]
        except Exception as error:
            raise BadData(f"{self._path}: the graph fails: {str(error).strip().splitlines()[0]}.",
                          remedy="Export it again.") from None
        return np.asarray(answer, dtype=np.float32)
