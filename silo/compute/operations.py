"""What a silo's compute process does: reads the images, runs the trainer, writes update and memory.

Asked through `semisilo.common.process.compute` with the requests of `semisilo.silo.compute.messages`. Nothing is kept
here but a cache of the images that were read.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from semisilo.common.config import from_dict
from semisilo.common.data.form import ImageForm, Reading
from semisilo.common.data.image_set import ImageSet, Skipped
from semisilo.common.errors import BadData, BadPayload, ComputeFailed, SecureSumRefused, SemisiloError, StorageDamaged
from semisilo.common.learning import batch_norm
from semisilo.common.learning.evaluation import AnyEvaluation, Evaluation, MultiLabelEvaluation, evaluation_steps
from semisilo.common.learning.tensors import group_digest
from semisilo.common.learning.training import loaded_model
from semisilo.common.measures.independent_images import independent_images
from semisilo.common.measures.site_evaluation import ClassResult
from semisilo.common.methods import MethodSpec, Scenario, find_method, is_declared, silos_have_labels
from semisilo.common.methods.contract import (
    Meaning,
    ModelBuilder,
    ModelSettings,
    PayloadRef,
    SiloData,
    SiloTask,
    TaskSpec,
    TensorGroup,
    Update,
)
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.methods.parts.label_task import is_multi_label
from semisilo.common.methods.parts.privacy import PrivateTask, SharedNoise, contribution_of, noise_shares, shares_noise
from semisilo.common.methods.parts.secure_sum import divisor_of, totals_of
from semisilo.common.methods.spec import EPSILON, FROZEN, MEASURING, counts_of
from semisilo.common.models.exported import read_model
from semisilo.common.models.factory import check_model, model_builder
from semisilo.common.models.own.model_file import PermittedCode
from semisilo.common.numerics import numerics
from semisilo.common.payload.manifest import GroupManifest, check_manifest
from semisilo.common.process.messages import Handler
from semisilo.common.process.processors import usable_processors
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.messages import MaskSeed
from semisilo.common.storage.state_files import STATE_ENDING, StateFiles
from semisilo.common.storage.store import PayloadStore
from semisilo.common.system_errors import source_trouble
from semisilo.common.text.describe import counted
from semisilo.common.text.logs import printable
from semisilo.silo.compute.feature_likeness import compare_features
from semisilo.silo.compute.images import ReadSilo, SiloImages, read_silo_images, survey_silo_images
from semisilo.silo.compute.lossy_update import Residuals, Sender, merged, write_update
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.compute.masked_update import Summand, write_masked
from semisilo.silo.compute.messages import (
    Evaluated,
    EvaluatedFile,
    EvaluateFile,
    EvaluateReceived,
    Survey,
    Surveyed,
    Train,
    Trained,
)
from semisilo.silo.compute.private_task import Requested, admitted
from semisilo.silo.compute.received import hold, receive
from semisilo.silo.compute.threads import measured_threads
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.site.images_choice import labels_gone
from semisilo.silo.site.stores import open_cache, open_outgoing
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.plugged_in import PluggedIn, build_trainer

__all__ = ["Given", "Operations", "as_asked", "evaluated_on"]

T = TypeVar("T")

_LOG = logging.getLogger("semisilo.work")
_NAMED_FILES = 5
_WIDEST_BYTES = 8
"""Of an element: float64."""
_BESIDES_BYTES = 16 * 2**20
"""That a tensor group may have besides a number for each element of the network."""
_STOPPED = Evaluated(classes=(), why_not="the next task came before it was done")


@dataclass(frozen=True, kw_only=True, slots=True)
class _ImagesKey:
    """What a silo's images in memory depend on. Mean and deviation are applied to batches."""

    choice: JoinChoice
    size: int
    channels: int
    resize: str
    reading: Reading
    scenario: Scenario
    classes: tuple[str, ...]
    """They matter where the silo's own labels do."""
    multi_label: bool
    """So does whether an image may have several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ready:
    """See `Operations._made_ready`."""

    spec: MethodSpec
    settings: Any
    groups: dict[str, TensorGroup]
    """Without those of frozen layers."""
    frozen: TensorGroup | None
    """Those."""
    build: ModelBuilder
    device: str
    record: NumericsRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What a task brings besides what its trainer sees."""

    request: Train
    frozen: TensorGroup | None
    """Tensors of layers that nobody trains."""
    numerics: NumericsRecord
    """In force."""


class _StopRead(Exception):
    """A task has come while images were read for an evaluation."""


class Operations:
    """What a silo's compute process can do."""

    def __init__(self, progress: Callable[[float, str], None], *, device: str = "", processors: int = 0) -> None:
        """
        Args:
            device: "cpu" or "cuda"; empty: an accelerator where there is one.
            processors: how many to keep busy; 0: all that the system lets this process use.
        """
        self._progress = progress
        self._device = device
        self._processors = processors or usable_processors()
        self._read: tuple[_ImagesKey, SiloImages] | None = None
        self._disk: Path | None = None
        """Where images may lie that are too many for memory: see `Train.images_folder`."""
        self._fitting: tuple[ModelSettings, ImageForm, tuple[str, ...]] | None = None
        self._compared: dict[tuple[str, str], int] = {}
        """The round whose model's features were compared last, of each federation's study."""
        self._sized: tuple[tuple[ModelSettings, ImageForm, tuple[str, ...]], int] | None = None
        """The network that was built last to see how large it is, and its elements."""

    def handlers(self) -> tuple[Handler, ...]:
        """See `semisilo.common.process.messages.Operations`."""
        return (Survey.handled_by(self.survey), Train.handled_by(self.train),
                EvaluateReceived.handled_by(self.evaluate_received), EvaluateFile.handled_by(self.evaluate_file))

    def survey(self, request: Survey) -> Surveyed:
        """See `Survey`."""
        return survey_silo_images(request.choice)

    def train(self, request: Train) -> Trained:
        """See `Train`."""
        started = time.monotonic()
        order = request.task
        cache = open_cache(request.cache_folder)
        ready = self._made_ready(request, cache)
        spec, settings, groups, build, device, record = (ready.spec, ready.settings, ready.groups, ready.build,
                                                         ready.device, ready.record)
        images, skipped = self._silo_images(order, settings.scenario, request.choice)
        if request.announced_labelled and _has_lost_its_labels(images, order, settings.scenario, request.choice):
            self._read = None  # it is looked again once something about the files has changed
            raise labels_gone(request.choice, request.announced_labelled, when="when `silo join` began")
        data = images.data(round=order.round, scenario=settings.scenario)
        private = admitted(
            Requested(order=order, spec=spec, settings=settings, groups=groups, frozen=ready.frozen,
                      memory=request.memory, numerics=record, network=ready.build(), masking=request.masking),
            data, policy=request.privacy, folder=request.privacy_folder,
            tied=images.tied, authority=request.authority) if order.dp is not None else None
        trainer = build_trainer(load_trainer(order.method), order.method)
        asked = as_asked(order, settings=settings, groups=groups, build=build, device=device, progress=self._progress,
                         private=private if order.dp is not None and order.dp.unit == "example" else None)
        hidden = private is not None and asked.private is None
        memory = _remembered(trainer.Memory, request.memory)
        try:
            update, keep = self._trained(trainer, asked, data, memory,
                                         given=Given(request=request, frozen=ready.frozen, numerics=record))
        except ComputeFailed as error:
            if not hidden:
                raise
            # Whether it diverges follows from the images, and no noise covers a refusal.
            _LOG.warning("%s %s This silo adds nothing but its noise; the coordinator is not told.", error.text,
                         error.remedy)
            update, keep = _nothing(groups), None
        if asked.private is not None:
            _assert_private(spec, update, shared=asked.private.shared)
        metrics = {} if hidden else _finite(spec, update)
        files = StateFiles(request.memory_folder)
        payload, left, vector = None, None, b""
        if not update.abstention:
            _assert_declared(spec, update, order.phase)
            leaving = _against_received(spec, update, groups)
            payload, left, vector = _written(order, leaving, open_outgoing(request.outgoing_folder),
                                     _left_out(request.residuals), _left_out(request.pending_residuals),
                                     request.link_bytes_per_second, masking=request.masking, add_masks=self._add_masks,
                                     summand=_summand(settings, update, order.phase, request.masking.form,
                                                      least=request.announced_least,
                                                      noise=_shared_noise(order, settings, request.masking, private))
                                     if request.masking else None)
            for name, group in leaving.items():
                if group.meaning is Meaning.OVERWRITE:  # what the next task may build on
                    hold(cache, name, group)
        if order.phase in MEASURING and keep is not None and keep is memory and request.memory is not None \
                and request.memory.parent == request.memory_folder:
            kept: Path | None = request.memory  # as it lies there
        else:
            kept = None if keep is None else files.path(_saved(files, keep, trainer))
        kept_residuals = None if left is None else files.path(files.save(left))
        seconds = time.monotonic() - started
        if request.features_file is not None and order.phase == "train":
            self._compare_features(request.features_file, request, ready, data)
        return Trained(payload=payload, abstention=update.abstention, num_examples=update.num_examples, metrics=metrics,
                       memory=kept, residuals=kept_residuals, seconds=seconds, numerics=record, skipped=skipped,
                       vector=vector)

    def _compare_features(self, file: Path, request: Train, ready: _Ready, data: SiloData) -> None:
        """In a process's first round of a study that brings batch-norm statistics, then in rounds 2, 4, 8, ... times
        that: features change as the model learns, and files may have been exported anew since it was started."""
        order, model_group, statistics = request.task, ready.groups.get("model"), ready.groups.get("batch_norm")
        which = request.authority, order.study
        if model_group is None or statistics is None or order.round < 2 * self._compared.get(which, 0):
            return
        self._compared[which] = order.round
        model = loaded_model(ready.build, model_group.tensors, seed=order.seed, round=order.round, silo=order.silo,
                             device=ready.device)
        compare_features(order, model, data, statistics.tensors, file)

    def _trained(self, trainer: Any, asked: SiloTask, data: SiloData, memory: Any, *,
                 given: Given) -> tuple[Update, Any]:
        """What the trainer answers. To be overridden where several processes train together."""
        update, keep = trainer.train(asked, data, memory)
        return update, keep

    def _add_masks(self, words: np.ndarray, seeds: Sequence[MaskSeed]) -> None:
        """Adds masks to words. To be overridden where there are any."""
        assert not seeds, "masks need cryptography"

    def evaluate_received(self, request: EvaluateReceived) -> Evaluated:
        """See `EvaluateReceived`."""
        order = request.task
        ready = self._made_ready(request, open_cache(request.cache_folder))
        test = self._silo_images(order, ready.settings.scenario, request.choice)[0].test
        if test is None or not len(test):
            return Evaluated(classes=(), why_not="there are no test images")
        model = loaded_model(ready.build, ready.groups["model"].tensors, seed=order.seed, round=order.round,
                             silo=order.silo, device=ready.device)
        statistics = ready.groups.get("batch_norm")
        if statistics is None and batch_norm.layers_of(model):
            return Evaluated(classes=(), why_not="the network needs batch-norm statistics that do not come with a task")
        batch_norm.load(model, {} if statistics is None else statistics.tensors)
        return evaluated_on(model, test, form=order.image, stop_file=request.stop_file, progress=self._progress)

    def evaluate_file(self, request: EvaluateFile) -> EvaluatedFile:
        """See `EvaluateFile`."""
        model, facts = read_model(request.path, allow_factories=request.factories)
        classes, form = facts.model.classes, facts.image
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        key = _ImagesKey(choice=request.choice, size=form.size, channels=form.channels, resize=form.resize,
                         reading=form.reading, scenario="labels-at-coordinator", classes=classes,
                         multi_label=facts.task == "multi_label")
        if self._read is not None and replace(self._read[0], scenario=key.scenario) == key:
            test = self._read[1].test
        else:
            self._read = None  # two sets at once might not fit
            try:  # all of them: a test image that stands among those to train on measures nothing
                with numerics.code_of_others():
                    read = read_silo_images(request.choice, form, classes=classes, scenario=key.scenario,
                                            progress=self._until(request.stop_file), disk=request.images_folder,
                                            multi_label=key.multi_label)
            except _StopRead:
                return EvaluatedFile(classes=(), why_not=_STOPPED.why_not, class_names=classes)
            self._read = (key, read.images)
            _log_skipped(read.skipped)
            _tell_twins(read.twins)
            test = read.images.test
        if test is None:
            raise BadData("There are no test images.", remedy="Name some: silo join --test FOLDER.")
        found = evaluated_on(model.to(device), test, form=form, stop_file=request.stop_file, progress=self._progress)
        return EvaluatedFile(classes=found.classes, why_not=found.why_not, class_names=classes,
                             independent=found.independent)

    def _until(self, stop_file: Path) -> Callable[[float, str], None]:
        """The progress of reading images. It raises _StopRead once the stop file is there."""
        def tell(share: float, text: str) -> None:
            if stop_file.exists():
                raise _StopRead
            self._progress(share, text)

        return tell

    def _made_ready(self, request: Train | EvaluateReceived, cache: PayloadStore) -> _Ready:
        """What training and evaluation begin with: numerics in force, decoded groups, the network."""
        order = request.task
        spec = find_method(order.method)
        settings: Any = from_dict(spec.settings, order.settings, where=f"task {order.task_id}: settings")
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        record = numerics.apply(order.numerics, device=device, processors=self._processors)
        groups = self._received(order, spec, request, cache)
        frozen = groups.pop(FROZEN, None)
        build = model_builder(order.model, order.image, request.factories,
                              frozen=None if frozen is None else frozen.tensors)
        self._check_model(order, build, (*map(str, request.factories), "" if frozen is None else group_digest(frozen)))
        if not order.numerics.threads and request.threads_file is not None and device == "cpu":
            threads = measured_threads(
                order, build, batch=getattr(settings, "unlabelled_batch", 0) or getattr(settings, "labelled_batch", 10),
                passes=getattr(settings, "passes_side_by_side", 1), processors=self._processors,
                file=request.threads_file)
            record = numerics.apply(replace(order.numerics, threads=threads), device=device,
                                    processors=self._processors)
        self._disk = request.images_folder
        return _Ready(spec=spec, settings=settings, groups=groups, frozen=frozen, build=build, device=device,
                      record=record)

    def _received(self, order: TaskSpec, spec: MethodSpec, request: Train | EvaluateReceived,
                  cache: PayloadStore) -> dict[str, TensorGroup]:
        """The tensor groups of a task. To be overridden where several silos share their files."""
        return receive(order, spec, request.payloads, cache,
                       most_bytes=self._most_bytes(order, request.factories))

    def _most_bytes(self, order: TaskSpec, factories: Sequence[PermittedCode]) -> int:
        """That a tensor group of the task may have: a number for each element of the network, of the widest type, and
        some for what a method may send besides. The network is built once for that."""
        model = (order.model, order.image, tuple(map(str, factories)))
        if self._sized is None or self._sized[0] != model:
            with torch.random.fork_rng(devices=[]):
                network = model_builder(order.model, order.image, factories)()
            self._sized = model, sum(tensor.numel() for tensor in network.state_dict().values())
        return _WIDEST_BYTES * self._sized[1] + _BESIDES_BYTES

    def _check_model(self, order: TaskSpec, build: ModelBuilder, besides: tuple[str, ...]) -> None:
        """Once for the same network: it is the same in every round of a study. `besides`: what else it follows from."""
        model = (order.model, order.image, besides)
        if self._fitting != model:
            check_model(build, order.image, len(order.model.classes))
            self._fitting = model

    def _silo_images(self, order: TaskSpec, scenario: Scenario, choice: JoinChoice) -> tuple[SiloImages, int]:
        """The silo's images in the study's form, and how many files were left out; read once for the same form, and
        the number is told once. To be overridden where the images are in memory already."""
        form = order.image
        key = _ImagesKey(choice=choice, size=form.size, channels=form.channels, resize=form.resize,
                         reading=form.reading, scenario=scenario, classes=order.model.classes,
                         multi_label=is_multi_label(order.settings))
        if self._read is None or self._read[0] != key:
            self._read = None  # two sets at once might not fit
            found = _all_images(order, scenario, choice, self._progress, self._disk)
            self._read = (key, found.images)
            _log_skipped(found.skipped)
            _tell_twins(found.twins)
            return found.images, sum(item.broken for item in found.skipped)
        return self._read[1], 0


def as_asked(order: TaskSpec, *, settings: Any, groups: Mapping[str, TensorGroup], build: ModelBuilder, device: str,
             progress: Callable[[float, str], None], private: PrivateTask | None = None) -> SiloTask:
    """A task as its trainer gets it."""
    return SiloTask(
        study=order.study, round=order.round, rounds=order.rounds, phase=order.phase, silo=order.silo, seed=order.seed,
        settings=settings, groups=groups, build_model=build, augmentation=order.augmentation, image=order.image,
        device=device, progress=progress, last_folded_round=order.last_folded_round, private=private)


def evaluated_on(model: nn.Module, test: ImageSet, *, form: ImageForm, stop_file: Path,
                 progress: Callable[[float, str], None]) -> Evaluated:
    """Counts by class of a model on test images, batch by batch until the stop file is there."""
    if stop_file.exists():
        return _STOPPED
    steps = evaluation_steps(model, test, form=form)
    try:
        while True:
            progress(next(steps), "evaluating the global model")
            if stop_file.exists():
                return _STOPPED
    except StopIteration as end:
        found: AnyEvaluation = end.value
    finally:
        steps.close()
    independent = None
    if test.labels_N is not None and test.patients:
        independent = independent_images(test.patients, test.labels_N.numpy(), len(found.per_class_recall)
                                         if isinstance(found, Evaluation) else len(found.class_counts))
    if isinstance(found, MultiLabelEvaluation):
        return Evaluated(independent=independent, classes=tuple(
            ClassResult(images=counts.with_class, correct=counts.true_positives, auroc=area,
                        others=counts.without_class, correct_others=counts.true_negatives, average_precision=precision)
            for counts, area, precision in zip(found.class_counts, found.areas.per_class,
                                               found.average_precisions.per_class, strict=True)))
    return Evaluated(independent=independent, classes=tuple(
        ClassResult(images=sum(row), correct=row[label], auroc=area)
        for label, (row, area) in enumerate(zip(found.confusion, found.per_class_auroc, strict=True))))


def _all_images(order: TaskSpec, scenario: Scenario, choice: JoinChoice,
                progress: Callable[[float, str], None], disk: Path | None) -> ReadSilo:
    """Raises: SystemTrouble where disk or share have gone away, which says nothing of images and is tried again; else
    BadData whatever is wrong with them: of other failures the coordinator hears the text, and one that comes from
    reading may hold the name of a file, which may hold a patient's."""
    try:
        with numerics.code_of_others():  # a format plug-in; read once, while every task has these settings
            return read_silo_images(choice, order.image, classes=order.model.classes, scenario=scenario,
                                    progress=progress, disk=disk, multi_label=is_multi_label(order.settings))
    except MemoryError:
        raise
    except Exception as error:
        where = " or ".join(choice.sources)
        if (trouble := source_trouble(error, Path(where))) is not None:
            raise trouble from error
        if isinstance(error, SemisiloError):
            raise
        _LOG.exception("reading %s failed", where)
        raise BadData(f"{where}: cannot be read: {type(error).__name__}: {error}".rstrip(".") + ".") from error


def _tell_twins(twins: Sequence[str]) -> None:
    """Says on this machine which test images were left out."""
    if twins:
        _LOG.warning("left out of the test images: %s with the pixels of one to train on, first %s",
                     counted(len(twins), "image"), printable(twins[0], limit=300))


def _has_lost_its_labels(images: SiloImages, order: TaskSpec, scenario: Scenario, choice: JoinChoice) -> bool:
    """Whether a study that would train on this silo's labels has none of it. In folders, those that say several labels
    of an image say nothing."""
    return (silos_have_labels(scenario) and choice.use_labels and not is_multi_label(order.settings)
            and not (images.labelled is not None and len(images.labelled)))


def _log_skipped(skipped: tuple[Skipped, ...]) -> None:
    """Names what was left out on this machine; these names never leave it. Warns of what should have been images."""
    broken = [item for item in skipped if item.broken]
    for item in broken[:_NAMED_FILES]:
        _LOG.warning("left out: %s: %s", printable(item.name, limit=300), printable(item.reason, limit=300))
    if len(broken) > _NAMED_FILES:
        _LOG.warning("left out: %d more that cannot be read", len(broken) - _NAMED_FILES)
    unchosen = sum(item.unchosen for item in skipped)
    if unchosen:
        _LOG.info("left out by [data] of silo.toml: %s", counted(unchosen, "file"))
    if others := sum(not (item.broken or item.unchosen or item.counts) for item in skipped):
        _LOG.info("left out because they are not images, or have no class: %s", counted(others, "file"))


def _remembered(cls: type[T], memory: Path | None) -> T | None:
    """The committed memory; None when there is none, or when this version cannot read it."""
    return None if memory is None else _loaded(memory, cls, "training goes on without memory")


def _saved(files: StateFiles, keep: Any, trainer: Any) -> str:
    """Writes what a trainer keeps; returns its digest. Raises: PluginFailed where a plug-in's cannot be written."""
    try:
        return files.save(keep)
    except (TypeError, ValueError) as error:
        if not isinstance(trainer, PluggedIn):
            raise
        raise trainer.cannot_keep(keep, error) from error


def _left_out(residuals: Path | None) -> Mapping[str, torch.Tensor]:
    """What earlier updates have left out; nothing when there is no file, or when this version cannot read it."""
    found = None if residuals is None else _loaded(residuals, Residuals, "what earlier updates left out is lost")
    return {} if found is None else found.tensors


def _loaded(path: Path, cls: type[T], otherwise: str) -> T | None:
    try:
        return StateFiles(path.parent).load(path.name.removesuffix(STATE_ENDING), cls)
    except StorageDamaged as error:
        _LOG.warning("%s: %s", otherwise, error.line())
        return None


def _written(order: TaskSpec, groups: Mapping[str, TensorGroup], outgoing: PayloadStore,
             committed: Mapping[str, torch.Tensor], pending: Mapping[str, torch.Tensor],
             link_bytes_per_second: float, *, masking: Masking | None,
             summand: Summand | None, add_masks: Callable[[np.ndarray, Sequence[MaskSeed]], None],
             ) -> tuple[PayloadRef, Residuals | None, bytes]:
    """The update's payload; all residuals after it, None when there are none and were none; `Trained.vector`."""
    vector = b""
    sender = Sender(seed=order.seed, round=order.round, phase=order.phase, silo=order.silo)
    if masking is None or summand is None:
        payload, left = write_update(outgoing, groups, order.uplink, residuals=committed, sender=sender,
                                     link_bytes_per_second=link_bytes_per_second)
    else:
        payload, left, vector = write_masked(outgoing, groups, masking, summand=summand, sender=sender,
                                             residuals=committed, add_masks=add_masks)
    keeps = (bool(order.uplink.lossy) or bool(left)) and order.uplink.error_feedback
    after = merged(committed=committed, pending=pending, left=left, phase=order.phase) if keeps else {}
    return payload, Residuals(tensors=after) if after or committed or pending else None, vector


def _shared_noise(order: TaskSpec, settings: Any, masking: Masking, private: PrivateTask | None) -> SharedNoise | None:
    """This silo's share of the noise, where silos share it."""
    dp = order.dp
    if dp is None or not shares_noise(dp, secure=True):
        return None
    assert private is not None, "noise without a line in the ledger"
    return SharedNoise(
        noise_multiplier=dp.noise_multiplier / math.sqrt(noise_shares(dp, masking.threshold)), key=private.key,
        clip_norm=dp.clip_norm if dp.unit == "silo" else contribution_of(dp, settings, lr=settings.round_lr))


def _summand(settings: Any, update: Update, phase: str, form: MaskForm, *, least: int,
             noise: SharedNoise | None) -> Summand:
    """What of an update enters a sum beside its tensors, where updates are added up.

    Args:
        form: of the sum.
        least: images that it weighs by at least. Of files that were announced some may turn out to be none, or not be
            of this round, and who weighs less than it has announced spoils the sum of all.
    Raises: SecureSumRefused for a form that weighs by images where the study's method weighs alike: beside small silos
        a large one would stand in the sum nearly alone.
    """
    if form.weight_reference and phase not in MEASURING and getattr(settings, "weighting", "uniform") != "size":
        raise SecureSumRefused("The secure sum weighs silos by their images, and the study weighs them alike.")
    totals = {} if phase in MEASURING else {name: update.totals[name] for name in totals_of(settings)}
    return Summand(num_examples=max(update.num_examples, least), totals=totals, noise=noise, exact=update.exact,
                   divisor=divisor_of(settings, totals) if totals else 1.0)


def _nothing(groups: Mapping[str, TensorGroup]) -> Update:
    """An update that changes nothing."""
    sent = groups["model"]
    return Update(groups={"model": TensorGroup({name: torch.zeros_like(each) for name, each in sent.tensors.items()},
                                               Meaning.DIFFERENCE, group_digest(sent))})


def _finite(spec: MethodSpec, update: Update) -> dict[str, float]:
    """The metrics of an update or abstention. Raises: ComputeFailed when training has diverged."""
    undeclared = [name for name in update.metrics if not is_declared(name, spec.tells)]
    assert not undeclared, f"trainer {spec.name}: undeclared metrics {sorted(undeclared)}"
    for name, value in update.metrics.items():
        if not math.isfinite(value):
            raise ComputeFailed(f"Training diverged: {name} is {value}.",
                                remedy="Lower [method] lr, or set clip_norm, in the study file.")
    return {name: float(value) for name, value in update.metrics.items()}


def _assert_private(spec: MethodSpec, update: Update, *, shared: bool) -> None:
    """What was trained without noise must never leave as if it had been; it would be this program's own mistake."""
    assert bool(update.abstention) or shared == (update.exact is not None), f"trainer {spec.name}: where is the noise?"
    assert update.metrics.keys() == (set() if update.abstention else {"steps", EPSILON}), (
        f"trainer {spec.name}: with differential privacy it tells {sorted(update.metrics)}")


def _assert_declared(spec: MethodSpec, update: Update, phase: str) -> None:
    """What the method does not declare must never leave; it would be this program's own mistake."""
    try:
        check_manifest([GroupManifest(name, group.meaning, group.base, (), 0) for name, group in update.groups.items()],
                       allowed=spec.up, layouts=None, max_bytes=0)
    except BadPayload as error:
        raise AssertionError(f"trainer {spec.name}: {error.text}") from error
    assert update.groups, f"trainer {spec.name}: neither tensors nor a reason why not"
    missing = set(counts_of(spec, phase)) - update.metrics.keys()
    assert not missing, f"trainer {spec.name}: every update brings {sorted(missing)}"


def _against_received(spec: MethodSpec, update: Update, received: Mapping[str, TensorGroup]) -> dict[str, TensorGroup]:
    """The groups of an update; those that overwrite with the tensors that they overwrite, and with their digest."""
    groups = dict(update.groups)
    for name, group in groups.items():
        if group.meaning is Meaning.OVERWRITE:
            sent = received.get(name, TensorGroup({}))
            assert group_digest(sent) == group.base, (
                f"trainer {spec.name}: the group {name} overwrites another than the one of that name in its task")
            groups[name] = replace(group, digest=group_digest(group), base_tensors=sent.tensors)
    return groups
