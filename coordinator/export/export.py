"""Writes a study's model as a folder for others: weights, ONNX graph, model card. Nothing of the study changes.

    model.safetensors   the network with all that it needs (`semisilo.common.models.exported`)
    model.onnx          the same as a graph, checked against the network
    model_card.md, model_card.html, model_card.json, reliability.png

The folder appears whole or not at all. It works on a study that is over and, beside `coordinator serve`, on one that is
running.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from semisilo.common.config import canonical_json, to_dict
from semisilo.common.data.form import PatientRule
from semisilo.common.data.formats.folder import is_left_behind
from semisilo.common.data.formats.table import COUNTED_ONCE
from semisilo.common.data.image_set import ImageSet
from semisilo.common.data.pixel_digests import pixel_digests, telling_digests
from semisilo.common.data.readers import read_images
from semisilo.common.errors import BadData, StorageDamaged, UsageError
from semisilo.common.learning import batch_norm
from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.learning.tensors import load_into
from semisilo.common.measures.calibration import probabilities
from semisilo.common.measures.findings import FindingsMeasures, measure_findings
from semisilo.common.measures.gain import ImageCounts, PairedGain, interval_of
from semisilo.common.measures.independent_images import independent_images, patient_keys
from semisilo.common.measures.study_measure import ACCURACY
from semisilo.common.methods import find_method
from semisilo.common.methods.contract import Environment
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.models.exported import ModelFacts, logits_of, read_model, write_model
from semisilo.common.models.own.model_file import ModelFile, code_of, file_of, read_file
from semisilo.common.numerics import numerics
from semisilo.common.storage.durable import write_durably
from semisilo.common.storage.state_files import StateFiles
from semisilo.common.text.describe import counted
from semisilo.coordinator.compute.labels_alone_model import read_labels_alone
from semisilo.coordinator.export.card import (
    CARD_FORMAT,
    INTENDED_USE,
    USE_OF_FINDINGS,
    CardData,
    CardFile,
    CoordinatorImages,
    EventChain,
    LabelsAlone,
    ModelCard,
    Provenance,
    card_cost,
    card_findings,
    card_model,
    card_onnx,
    card_privacy,
    card_silos,
    card_sites,
    card_test,
    card_thresholds,
    limits_of,
    settings_shown,
    software_here,
)
from semisilo.coordinator.export.card_pages import card_html, card_markdown
from semisilo.coordinator.export.choose_model import CHANGED_TEST, CHOSEN, STUDY_TEST, ChosenModel, choose_model
from semisilo.coordinator.export.figures import finding_reliability_figure, reliability_figure
from semisilo.coordinator.export.measures import Measures, measure, temperature_for
from semisilo.coordinator.export.onnx_file import OnnxCheck, check_onnx, needs_onnx, write_onnx
from semisilo.coordinator.export.operating_point import (
    CardOperatingPoint,
    PointRates,
    operating_point_for,
    rates_at,
    wanted_point,
    wanted_points,
)
from semisilo.coordinator.export.thresholds import choose_thresholds, thresholds_in_words
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import LABELS_ALONE, LABELS_ALONE_MODEL, StudyRow, cut_short
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.tasks import site_evaluations
from semisilo.coordinator.monitoring.summary import StudySummary, audit, summarise
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.studies.held_out import check_apart, check_patients_apart
from semisilo.coordinator.studies.images import StudyData, read_study_data, warn_of_ranges
from semisilo.coordinator.studies.model_facts import model_facts
from semisilo.coordinator.studies.privacy import masked_sentence
from semisilo.coordinator.studies.study_file import config_from_dict

__all__ = ["FORMATS", "ExportChoice", "Exported", "export_study"]

FORMATS = ("safetensors", "onnx")
"""What can be written; the first one always is."""
_CARD, _PICTURE = "model_card.json", "reliability.png"
_FILES = frozenset({"model.safetensors", "model.onnx", _CARD, "model_card.md", "model_card.html", _PICTURE})
"""What an export may write, but for a file that builds the network: the card names that."""
_RANDOM_IMAGES = 64
_SAME = 1e-6

Progress = Callable[[float, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportChoice:
    """What is to be handed over."""

    round: str = CHOSEN
    """"chosen", "last", the number of a round, "labels-alone" or "best-on-test"."""
    test: str = ""
    """Images to measure on, in any form that a study takes; empty: the study's own test images."""
    patient: PatientRule | None = None
    """How the patients of `test` are known; None: as the study knows those of its images."""
    formats: Collection[str] = FORMATS
    calibrate: bool = False
    """Whether to fit a temperature on the study's validation images; where images may have several labels, a slope and
    an offset of each class's logit."""
    operating_point: str | Sequence[str] = ()
    """Such as "sensitivity 95% for CLASS": a threshold chosen on the study's validation images; empty: none. Where
    images may have several labels, one for each class, or "... for every class"."""
    silo_names: bool = True
    """False: the card numbers the silos."""
    device: str = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A folder that was written."""

    folder: Path
    facts: ModelCard

    @property
    def card(self) -> Mapping[str, Any]:
        """The content of model_card.json, as plain JSON types."""
        content: Mapping[str, Any] = to_dict(self.facts)  # Any: for notebooks, which read it by key
        return content

    @property
    def model(self) -> Path:
        """The weights."""
        return self.folder / "model.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opened:
    """The chosen model in memory, with the coordinator's images."""

    chosen: ChosenModel
    data: StudyData
    model: nn.Module
    facts: ModelFacts
    numerics: NumericsRecord
    seed: int
    at_point: PointRates | None = None
    """On the validation images; None without an operating point."""
    on_validation: tuple[PointRates, ...] = ()
    """Of every class at its threshold, on the same images; () where images have one class, or there are none."""


def export_study(ledger: Ledger, study: str, *, study_folder: Path, out: Path | None = None,
                 choice: ExportChoice | None = None, progress: Progress | None = None) -> Exported:
    """Exports a model of a study. Sets torch's numerics of this process to the study's.

    Args:
        study_folder: with study.toml and the states.
        out: the folder to write; None: `export-round-N`, or `export-labels-alone`, in the study's. An earlier export
            there is replaced; one with other files beside it is refused.
        progress: told the share that is done, 0 to 1, and what is being done.
    Raises: UsageError for what cannot be chosen, or where `out` holds something else; BadData for images that cannot be
        read, or a graph that differs from the network: then no file is left; StorageDamaged for a damaged state.
    """
    choice = choice or ExportChoice()
    _check_choice(choice)
    tell = progress or (lambda share, text: None)
    chosen = choose_model(ledger, study, rule=choice.round, study_folder=study_folder)
    target = out or study_folder / chosen.folder_name
    _check_target(target)
    asked = (choice.operating_point,) if isinstance(choice.operating_point, str) else tuple(choice.operating_point)
    points = tuple(text for text in asked if text)
    opened = _open(chosen, study_folder, choice, lambda share, text: tell(0.3 * share, text))
    images, source = _test_images(opened, choice)
    measures: Measures | FindingsMeasures | None = None
    logits_NK = None
    if opened.facts.task == "multi_label":
        opened = _with_thresholds(opened, points, calibrate=choice.calibrate)
    else:
        if choice.calibrate:
            opened = replace(opened, facts=replace(opened.facts, temperature=_fitted(opened)))
        if len(points) > 1:
            raise UsageError("--operating-point is given more than once; an image has one class, and so the study one"
                             " operating point.", remedy="Give one.")
        if points:
            opened = _with_operating_point(opened, points[0])
    if images is not None:
        assert images.labels_N is not None
        logits_NK = logits_of(opened.model, images.images_NCHW, opened.facts.image,
                              progress=lambda share: tell(0.3 + 0.3 * share, "measuring")).numpy()
        labels_N, classes = images.labels_N.numpy(), opened.facts.model.classes
        worth = opened.data.frozen.test_counts.independent if source == STUDY_TEST else \
            independent_images(images.patients, labels_N, len(classes))
        patients = () if worth is None else images.patients
        measures = measure(logits_NK, labels_N, classes=classes, independent=worth, patients=patients,
                           temperature=opened.facts.temperature) if labels_N.ndim == 1 else measure_findings(
            logits_NK, labels_N, classes=classes, thresholds=opened.facts.thresholds, scaling=opened.facts.scaling,
            thresholds_from=thresholds_in_words(opened.facts), independent=worth, patients=patients)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(target)
    with _working(target) as work:
        card = _write(work, opened, ledger, choice, study_folder, images, source, measures, logits_NK,
                      lambda share, text: tell(0.6 + 0.4 * share, text))
        _put(work, target)
    tell(1.0, "done")
    return Exported(folder=target, facts=card)


# Opening --------------------------------------------------------------------------------------------------------------


def _check_choice(choice: ExportChoice) -> None:
    for name in choice.formats:
        if name not in FORMATS:
            raise UsageError(f"There is no format '{name}'.", remedy=f"Choose among: {', '.join(FORMATS)}.")
    if choice.device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"There is no device '{choice.device}'.", remedy="Choose auto, cpu or cuda.")
    if choice.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("There is no GPU that torch can use.", remedy="Choose --device cpu.")
    if choice.patient is not None and not choice.test:
        raise UsageError(f"--patient {choice.patient}: is said of the images of --test, and there are none.",
                         remedy="Leave it out, or name images with --test.")
    if "onnx" in choice.formats:
        needs_onnx()


def _check_target(target: Path) -> None:
    """Whether a folder may be replaced: also one that a file manager has left files of its own in.

    Raises: UsageError where there is something else than an earlier export, or something beside it.
    """
    if not target.exists() or (target.is_dir() and all(is_left_behind(path.name) and path.is_file()
                                                            for path in target.iterdir())):
        return
    try:
        written = _FILES | json.loads((target / _CARD).read_text(encoding="utf-8"))["files"].keys()
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        raise UsageError(f"{target} exists and is not an earlier export.", remedy="Choose another --out.") from None
    if others := sorted(path.relative_to(target).as_posix() for path in target.rglob("*")
                        if path.name not in written and not is_left_behind(path.name)
                        and (path.is_symlink() or not path.is_dir())):
        raise UsageError(f"{target} is an earlier export with something beside it that no export has written:"
                         f" {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}.",
                         remedy="Move it elsewhere, or choose another --out.")


def _open(chosen: ChosenModel, study_folder: Path, choice: ExportChoice, tell: Progress) -> _Opened:
    row = chosen.study
    config = config_from_dict(row.config, where=f"study {row.name}")
    frozen = row.frozen
    assert frozen is not None, "a model is chosen of a study whose images were read"
    device = ("cuda" if torch.cuda.is_available() else "cpu") if choice.device == "auto" else choice.device
    # What is handed over is used in float32, in torch's own memory format, so that is measured.
    threads = config.numerics.threads or (1 if row.numerics is None else row.numerics.threads)
    record = numerics.apply(replace(config.numerics, threads=threads, precision="fp32", memory_format="contiguous"),
                            device=device)
    data = read_study_data(config, folder=study_folder, frozen=frozen, progress=tell, may_have_changed=True)
    environment = Environment(
        seed=config.study.seed, rounds=config.study.rounds, num_silos=config.study.start_with, data=data.to_build_with,
        build_model=data.build_model, image=data.frozen.image,
        augmentation=config.augmentation.decided(data.frozen.left_out_views),
        num_classes=len(frozen.classes), device=device, trained_before=bool(frozen.weights_digest))
    kind = load_strategy(config.method.name)
    strategy = kind(config.method.settings, environment)
    adjusted = None
    if chosen.rule == LABELS_ALONE:
        assert row.baseline is not None, "their model is chosen once they are trained"
        adjusted = row.baseline.is_adjusted
    facts = model_facts(row.name, config, frozen, data.labelled_of_study, round=chosen.round.number,
                        state=chosen.round.state_digest, alone_adjusted=adjusted)
    if adjusted is not None:
        return _opened_labels_alone(chosen, study_folder, data, facts, numerics=record,
                                    seed=config.study.seed, device=device)
    try:
        state = StateFiles(study_folder / "states").load(chosen.round.state_digest, kind.State)
    except StorageDamaged:
        if (study_folder / "states" / chosen.file_name).exists():
            raise
        raise UsageError(f"The model of round {chosen.round.number} was removed while it was being read.",
                         remedy="The study continues; try again with --round last.") from None
    parameters, statistics = strategy.model(state)
    model = data.build_model()
    load_into(model, parameters)
    if batch_norm.layers_of(model):
        if not statistics:
            raise UsageError(f"The model of round {chosen.round.number} has no batch-norm statistics: no silo has"
                             " measured them yet.", remedy="Choose a later round.")
        batch_norm.load(model, statistics)
    return _Opened(chosen=chosen, data=data, model=model.to(device).eval(), facts=facts, numerics=record,
                   seed=config.study.seed)


def _opened_labels_alone(chosen: ChosenModel, study_folder: Path, data: StudyData, facts: ModelFacts, *,
                         numerics: NumericsRecord, seed: int, device: str) -> _Opened:
    """The model of labels alone. Raises: StorageDamaged when its file is not the one that the ledger names."""
    kept = read_labels_alone(study_folder / LABELS_ALONE_MODEL, digest=chosen.round.state_digest)
    model = data.build_model()
    load_into(model, kept.parameters)
    batch_norm.load(model, kept.batch_norm)
    return _Opened(chosen=chosen, data=data, model=model.to(device).eval(), facts=facts, numerics=numerics, seed=seed)


def _test_images(opened: _Opened, choice: ExportChoice) -> tuple[ImageSet | None, str]:
    """What the model is measured on, and how the card calls it; (None, "") where there is nothing.

    Raises: BadData where images of `--test`, or their patients, are among those that the coordinator has trained or
        chosen with.
    """
    if not choice.test:
        own = opened.data.images.test
        return own, "" if own is None else CHANGED_TEST if "test" in opened.data.changes else STUDY_TEST
    form = opened.facts.image
    selection = config_from_dict(opened.chosen.study.config, where="study").data.selection
    if choice.patient is not None:
        selection = replace(selection, patient=choice.patient)
    with numerics.code_of_others():
        found = read_images(choice.test, size=form.size, channels=form.channels, resize=form.resize,
                            classes=opened.facts.model.classes, labelled=True, on_error="skip", reading=form.reading,
                            multi_label=opened.facts.task == "multi_label", ranges=dict(opened.facts.ranges),
                            selection=selection)
    warn_of_ranges(opened.facts.ranges, found.ranges, part="--test")
    data, frozen = opened.data.images, opened.data.frozen
    sets = {name: each for name, each in (("labelled", data.labelled), ("validation", data.validation),
                                          ("test", found.images)) if each is not None}
    digests = {name: telling_digests(each, pixel_digests(each)) for name, each in sets.items()}
    for name in [each for each in sets if each != "test"]:  # what the two have in common by now is told on the card
        both, where = {each: sets[each] for each in (name, "test")}, f"--test {choice.test}:"
        check_apart(both, digests, where=where)
        if frozen.by_patient or frozen.by_file:  # else the study has not kept patients apart either
            check_patients_apart(both, where=where, else_say="--patient none, or folder or name where those tell"
                                                             " patients of --test apart")
    name = Path(choice.test).name or choice.test
    broken = sum(item.broken for item in found.skipped)
    left_out = f", {counted(broken, 'unreadable file')} left out" if broken else ""
    return found.images, f"other images ({name}{left_out})"


def _with_thresholds(opened: _Opened, points: Sequence[str], *, calibrate: bool) -> _Opened:
    """With a threshold for each class, of validation images where there are any, and a scaling of each if asked for.

    Raises: UsageError for a point or a scaling without validation images, or a point that cannot be had.
    """
    classes = opened.facts.model.classes
    wanted = wanted_points(points, classes)
    validation = opened.data.images.validation
    if not (wanted or calibrate) and (validation is None or len(validation) == 0
                                      or not opened.data.changes.keys() <= {"test"}):
        return opened
    logits_NK, rows_NK = _validation(opened, "Probabilities are fitted on", "--calibrate") if calibrate else \
        _validation(opened, "An operating point is chosen on", "--operating-point")
    found = choose_thresholds(logits_NK, rows_NK, classes=classes, wanted=wanted, calibrate=calibrate,
                              patients=_several_of_one(opened.data.images.validation))
    return replace(opened, on_validation=found.rates,
                   facts=replace(opened.facts, thresholds=found.thresholds, scaling=found.scaling,
                                 operating_points=found.operating_points))


def _fitted(opened: _Opened) -> float:
    logits_NK, labels_N = _validation(opened, "A temperature is fitted on", "--calibrate")
    return temperature_for(logits_NK, labels_N)


def _with_operating_point(opened: _Opened, text: str) -> _Opened:
    classes = opened.facts.model.classes
    wanted = wanted_point(text, classes)
    logits_NK, labels_N = _validation(opened, "An operating point is chosen on", "--operating-point")
    p_NK = probabilities(logits_NK, temperature=opened.facts.temperature)
    point = operating_point_for(wanted, p_NK, labels_N, classes)
    label = classes.index(point.label)
    return replace(opened, facts=replace(opened.facts, operating_point=point),
                   at_point=rates_at(p_NK[:, label], labels_N == label, point.threshold,
                                     patients=_several_of_one(opened.data.images.validation)))


def _several_of_one(images: ImageSet | None) -> Sequence[str]:
    """The patient of each image; () where no two are of one, so that every image counts."""
    patients = () if images is None else images.patients
    return patients if len(set(patient_keys(patients))) < len(patients) else ()


def _validation(opened: _Opened, what: str, option: str) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Logits and labels of the study's validation images, never of test images."""
    validation = opened.data.images.validation
    if validation is None or validation.labels_N is None or len(validation) == 0:
        raise UsageError(f"{what} validation images, and the study has none.",
                         remedy=f"Leave out {option}, or run a study with [data] validation.")
    if changed := [text for name, text in opened.data.changes.items() if name != "test"]:
        raise UsageError(f"{what} validation images, and they are not those of the study any more:"
                         f" {'; '.join(changed)}.",
                         remedy=f"Restore the study's images, or leave out {option}.")
    logits_NK: NDArray[np.float32] = logits_of(opened.model, validation.images_NCHW, opened.facts.image).numpy()
    return logits_NK, validation.labels_N.numpy()


def _card_point(opened: _Opened, images: ImageSet | None, logits_NK: NDArray[np.float32] | None
                ) -> CardOperatingPoint | None:
    point = opened.facts.operating_point
    if point is None or opened.at_point is None:
        return None
    test = None
    if images is not None and logits_NK is not None:
        assert images.labels_N is not None
        label = opened.facts.model.classes.index(point.label)
        p_N = probabilities(logits_NK, temperature=opened.facts.temperature)[:, label]
        test = rates_at(p_N, images.labels_N.numpy() == label, point.threshold, patients=_several_of_one(images))
    return CardOperatingPoint(point=point, validation=opened.at_point, test=test)


# Writing --------------------------------------------------------------------------------------------------------------


def _write(work: Path, opened: _Opened, ledger: Ledger, choice: ExportChoice, study_folder: Path,
           images: ImageSet | None, source: str, measures: Measures | FindingsMeasures | None,
           logits_NK: NDArray[np.float32] | None, tell: Progress) -> ModelCard:
    weights = work / "model.safetensors"
    tell(0.0, "writing the weights")
    own = file_of(opened.facts.model.name)
    if own:  # whoever gets the model needs the file that builds its network
        _, code = read_file(ModelFile(study_folder, opened.facts.model.factory_sha256), name=own)
        (work / own).parent.mkdir(exist_ok=True)
        write_durably(work / own, code)
    write_model(weights, opened.model, opened.facts)
    _check_weights(weights, opened, images, logits_NK)
    check = None
    if "onnx" in choice.formats:
        tell(0.2, "writing the ONNX graph")
        graph = work / "model.onnx"
        opened.model.to("cpu")  # where the graph is checked
        write_onnx(graph, opened.model, opened.facts)
        tell(0.6, "checking the ONNX graph")
        check = _checked(graph, opened, images)
    pictures = {}
    if measures is not None:
        tell(0.8, "drawing")
        pictures[_PICTURE] = reliability_figure(measures) if isinstance(measures, Measures) else \
            finding_reliability_figure(measures)
        write_durably(work / _PICTURE, pictures[_PICTURE])
    tell(0.9, "writing the card")
    summary = summarise(ledger, opened.chosen.study.name)
    card = _card(opened, ledger, summary, study_folder, images, source, measures, check,
                 _card_point(opened, images, logits_NK),
                 {path.name: path for path in [*sorted(work.glob("model.*")), *([work / own] if own else [])]},
                 silo_names=choice.silo_names)
    text = json.dumps(to_dict(card), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    for name, content in ((_CARD, text), ("model_card.md", card_markdown(card)),
                          ("model_card.html", card_html(card, pictures=pictures))):
        write_durably(work / name, content.encode("utf-8"))
    return card


def _check_weights(path: Path, opened: _Opened, images: ImageSet | None, logits_NK: NDArray[np.float32] | None) -> None:
    """Reads the file as its receiver will, and compares the answers bit for bit."""
    again, facts = read_model(path, allow_factories=code_of(opened.facts.model, path.parent),
                              device=str(next(opened.model.parameters()).device))
    if facts != opened.facts:
        raise BadData(f"{path.name}: says something else than was written.")
    if images is not None and logits_NK is not None:
        first = images.images_NCHW[:250]
        found = logits_of(again, first, facts.image).numpy()
        if not np.array_equal(found, logits_NK[:len(found)]):
            raise BadData(f"{path.name}: read again, the network answers otherwise.",
                          remedy="It may hold something that is neither parameter nor buffer, or draw random numbers.")


def _checked(path: Path, opened: _Opened, images: ImageSet | None) -> OnnxCheck:
    """Compares the graph with the network, which is on the CPU, on test images where there are any."""
    own = opened.data.images
    named = (("test", images), ("validation", own.validation), ("labelled", own.labelled))
    kind, chosen = next(((name, each) for name, each in named if each is not None), ("random", None))
    form = opened.facts.image
    if chosen is None:
        generator = numpy_generator(opened.seed, "onnx_check")
        pixels = torch.from_numpy(generator.integers(
            0, 256, (_RANDOM_IMAGES, form.channels, form.size, form.size), dtype=np.uint8))
    else:
        pixels = chosen.images_NCHW[:250]
    return check_onnx(path, logits_of(opened.model, pixels, form).numpy(), pixels.numpy(), source=kind)


def _card(opened: _Opened, ledger: Ledger, summary: StudySummary, study_folder: Path, images: ImageSet | None,
          source: str, measures: Measures | FindingsMeasures | None, check: OnnxCheck | None,
          point: CardOperatingPoint | None, files: Mapping[str, Path], *, silo_names: bool) -> ModelCard:
    chosen, frozen = opened.chosen, opened.data.frozen
    number, labels_alone = chosen.round.number, chosen.rule == LABELS_ALONE
    card = ModelCard(
        format=CARD_FORMAT, intended_use=INTENDED_USE if frozen.task == "single_label" else USE_OF_FINDINGS,
        model=card_model(chosen, opened.facts, find_method(chosen.study.config["method"]["name"])),
        data=CardData(
            coordinator=CoordinatorImages(
                labelled=frozen.num_labelled, validation=frozen.num_validation, test=frozen.num_test,
                labelled_patients=frozen.labelled_patients,
                validation_patients=frozen.validation_patients, test_patients=frozen.test_patients,
                unreadable_files=frozen.num_broken,
                left_out_files=sum(not each.endswith(COUNTED_ONCE) for each in frozen.skipped)),
            silos=card_silos(summary, LedgerRoster(ledger).silos(), up_to=number, names=silo_names)),
        test=card_test(measures, source=source, digest=_digest_of(images))
        if isinstance(measures, Measures) and images is not None else None,
        findings=card_findings(measures, source=source, digest=_digest_of(images))
        if isinstance(measures, FindingsMeasures) and images is not None else None,
        operating_point=point, thresholds=card_thresholds(opened.facts, opened.on_validation),
        sites=card_sites(summary, site_evaluations(ledger, chosen.study.name, round=number,
                                                   labels_alone=labels_alone),
                         round=number, labels_alone=labels_alone, names=silo_names),
        privacy=card_privacy(summary, up_to=number, names=silo_names),
        masked="" if labels_alone else masked_sentence(summary.row.config),
        recorded_accuracy=chosen.round.metrics.get("accuracy") if source == STUDY_TEST else None,
        labelled_only=_labels_alone(chosen.study, test=frozen.test_counts),
        paired=None if labels_alone or source != STUDY_TEST or measures is None or "test" in opened.data.changes else
        _paired(chosen, measures),
        cost=card_cost(summary, up_to=number), onnx=None if check is None else card_onnx(check),
        files={name: CardFile(bytes=path.stat().st_size, sha256=_sha256(path)) for name, path in files.items()},
        provenance=_provenance(opened, ledger, study_folder / "study.toml"),
        settings=settings_shown(chosen.study.config, left_out_views=frozen.left_out_views))
    changed = "; ".join(opened.data.changes.values())
    return replace(card, limits=(*limits_of(card), *([
        f"The coordinator's images are not those with which the study was started: {changed}."] if changed else [])))


def _labels_alone(study: StudyRow, *, test: ImageCounts) -> LabelsAlone | None:
    trained = study.baseline
    accuracy = None if trained is None else trained.metrics.get("accuracy")
    if trained is None or (accuracy is None and "auroc" not in trained.metrics):
        return None
    return LabelsAlone(accuracy=accuracy, num_labelled=trained.num_labelled, epochs=trained.epochs,
                       accuracy_interval=interval_of(ACCURACY, classes=(), images=test, metrics=trained.metrics),
                       cut_short=cut_short(trained),
                       recipe=trained.description, metrics=trained.metrics)


def _paired(chosen: ChosenModel, measures: Measures | FindingsMeasures) -> PairedGain | None:
    """What the study found at its end; None where that was another round, or where float32 and the round's own
    precision give other answers."""
    found = chosen.study.paired
    if found is None or found.round != chosen.round.number:
        return None
    own = measures.metrics
    same = all(math.isclose(value, own[name], abs_tol=_SAME)
               for name, value in chosen.round.metrics.items() if name in own)
    return found if same else None


def _provenance(opened: _Opened, ledger: Ledger, study_file: Path) -> Provenance:
    study = opened.chosen.study
    head, trail = ledger.last_event(), audit(ledger, study.name)
    return Provenance(
        state_sha256=opened.chosen.round.state_digest,
        settings_sha256=hashlib.sha256(canonical_json(study.config).encode()).hexdigest(),
        study_file_sha256=_sha256(study_file) if study_file.is_file() else None,
        event_chain=EventChain(head="" if head is None else head.chain, events=0 if head is None else head.number,
                               intact=not trail.problem),
        numerics_of_training=_sorted(study.numerics), numerics_of_this_card=opened.numerics, software=software_here())


def _sorted(numerics: NumericsRecord | None) -> dict[str, object] | None:
    return None if numerics is None else dict(sorted(to_dict(numerics).items()))


def _digest_of(images: ImageSet) -> str:
    """SHA-256, hex, of shape, pixels and labels; the names of files are not in it."""
    total = hashlib.sha256(str(tuple(images.images_NCHW.shape)).encode())
    total.update(np.ascontiguousarray(images.images_NCHW.numpy()).data)
    assert images.labels_N is not None
    total.update(images.labels_N.numpy().astype("<i8").tobytes())
    return total.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _working(target: Path) -> Iterator[Path]:
    """A folder beside the target, which is gone afterwards if it has not got the target's name; locked meanwhile."""
    work = target.parent / f".{target.name}.{secrets.token_hex(6)}.tmp"
    work.mkdir()
    handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a disk without locks: what a kill leaves there stays
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(handle)


def _remove_left(target: Path) -> None:
    """Removes what exports to the same target have left that were killed, as the page does with those that nobody waits
    for any more: it may be as large as a model. An earlier export that had lost its name gets it back."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}\.(tmp|old)")
    left = sorted(path for path in target.parent.iterdir() if name.fullmatch(path.name))
    if not all(_nobody_works_in(path) for path in left):
        return  # another export is at it
    for path in left:
        if path.suffix == ".old" and not target.exists():
            os.rename(path, target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _nobody_works_in(folder: Path) -> bool:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(handle)
    except OSError:
        return False
    return True


def _put(work: Path, target: Path) -> None:
    """Gives the finished folder its name; an earlier export goes only then."""
    old = None
    _check_target(target)  # again: making the new one has taken a while
    if target.exists():
        old = target.parent / f".{target.name}.{secrets.token_hex(6)}.old"
        os.rename(target, old)
    os.rename(work, target)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
