"""What the coordinator's compute process does: the strategy, its data and its files. Called through
semisilo.common.process.compute.

`semisilo.coordinator.compute.messages` has the requests and answers. A state of the strategy is a file
`<study>/states/<sha256>.safetensors`; a payload is a file of the federation's store. Every operation is a function of
the files it names, so that a process that died may be replaced and the operation called again with the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import (
    BadConfiguration,
    BadPayload,
    ComputeFailed,
    PluginFailed,
    SemisiloError,
    StudyNotOpen,
    UsageError,
)
from semisilo.common.learning.outliers import UpdateMeasure, has_long, point_away
from semisilo.common.measures.study_measure import VALIDATION_PREFIX
from semisilo.common.methods import MethodSpec, check_metrics, find_method
from semisilo.common.methods.contract import (
    FROM_TASK,
    Environment,
    GroupLayout,
    Meaning,
    Phase,
    Strategy,
    TensorGroup,
    Tensors,
)
from semisilo.common.methods.parts.imbalance import check_class_prior
from semisilo.common.methods.parts.label_task import check_class_weights
from semisilo.common.methods.parts.privacy import SiloNoise
from semisilo.common.methods.parts.secure_sum import sums_per_step
from semisilo.common.methods.spec import FROZEN, MEASURING
from semisilo.common.models.factory import initial_model
from semisilo.common.models.own.code_stamp import code_stamp
from semisilo.common.numerics import numerics
from semisilo.common.numerics.thread_count import TrainingStep, fastest_threads
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.codec import Aim, Plan
from semisilo.common.payload.manifest import GroupManifest, check_manifest
from semisilo.common.payload.usage import encodings_of_payload
from semisilo.common.process.child import ComputeAborted
from semisilo.common.process.compute_process import ends_process, unusable_after
from semisilo.common.process.messages import Handler
from semisilo.common.process.processors import usable_processors
from semisilo.common.secure_aggregation.messages import MaskSeed
from semisilo.common.storage import checkpoint
from semisilo.common.storage.state_files import StateFiles
from semisilo.common.storage.store import PayloadStore
from semisilo.common.system_errors import explained_text
from semisilo.coordinator.compute.baseline import PAPER_EPOCHS, PaperLabelsAlone, PaperRecipe
from semisilo.coordinator.compute.downlink import Downlink
from semisilo.coordinator.compute.evaluation import (
    LocalModels,
    MeasuredModel,
    UpdateObserver,
    compare_models,
    diagnostics_of,
    export_model,
    measurable,
    measure_model,
    metrics_of,
)
from semisilo.coordinator.compute.labels_alone import LabelledOnly, LabelsAlone
from semisilo.coordinator.compute.labels_alone_model import LabelsAloneModel, read_labels_alone
from semisilo.coordinator.compute.left_out import answers_finitely, fewest_left_out, not_finite_in, suspects
from semisilo.coordinator.compute.messages import (
    Aggregate,
    Aggregated,
    Baseline,
    BaselineFound,
    BaselineProgress,
    CheckedUpdate,
    CheckUpdate,
    Compare,
    Compared,
    Evaluate,
    Evaluated,
    Export,
    Exported,
    MaskedSum,
    OpenedStudy,
    OpenStudy,
    Phases,
    PhasesOfRound,
    Prepare,
    Prepared,
    SpooledUpdate,
    Tasks,
    WrittenTask,
    WrittenTasks,
)
from semisilo.coordinator.compute.silo_noise import check_network, silo_noise
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates
from semisilo.coordinator.compute.start_work import SavingPace, StartWork
from semisilo.coordinator.compute.strong_baseline import (
    StrongLabelsAlone,
    StrongRecipe,
    batch_size_of,
    images_of_study,
    planned_steps,
)
from semisilo.coordinator.compute.update_measures import BATCH_NORM, UpdateMeasures, change_of
from semisilo.coordinator.compute.update_reader import Expected, SoundFiles, check_file, expected_of
from semisilo.coordinator.ledger.cleanup import open_payloads
from semisilo.coordinator.ledger.records import (
    LABELS_ALONE_FILE,
    LABELS_ALONE_MODEL,
    START_FILE,
    FrozenStudy,
    LabelledOnlyResult,
)
from semisilo.coordinator.secure_aggregation.masked_updates import check_masked
from semisilo.coordinator.secure_aggregation.summed_updates import SummedUpdates
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.parts.count_cap import capped_counts
from semisilo.coordinator.strategies.plugged_in import PluggedIn, build_strategy
from semisilo.coordinator.studies.images import StudyData, read_study_data
from semisilo.coordinator.studies.model_facts import model_facts
from semisilo.coordinator.studies.study_file import StudyConfig

__all__ = ["Operations", "check_study"]

_LOG = logging.getLogger("semisilo.study")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opened:
    """The study that is open in this process."""

    name: str
    folder: Path
    config: StudyConfig
    spec: MethodSpec
    data: StudyData
    environment: Environment
    strategy: Strategy[Any]
    state_type: type[Any]
    kept_type: type[Any]
    """What the strategy keeps per silo; NoneType for nothing."""
    states: StateFiles
    payloads: PayloadStore


class _NotFinite(Exception):
    """A phase with these updates ends with a model that nobody can use, or does not get so far."""

    def __init__(self, reason: SemisiloError, *, before_end: bool = False) -> None:
        """Args:
            before_end: whether an update could not be weighed or folded.
        """
        super().__init__(reason.line())
        self.reason = reason
        self.before_end = before_end


@contextmanager
def _guarded(*, before_end: bool = True) -> Iterator[None]:
    """Around what a strategy computes with what silos have sent. What cannot be read back from the disk passes.

    Before the end nothing is trained, and what arithmetic libraries raise follows from numbers that silos have chosen:
    one too large for its type, a division by 0. Short memory, a broken accelerator and what the system says do not.

    Raises: _NotFinite where it fails.
    """
    try:
        yield
    except ComputeAborted:  # from outside, as by Ctrl-C in a simulation: it says nothing of what silos have sent
        raise
    except PluginFailed as error:
        if not before_end:  # what it trains with its own state
            raise
        raise _NotFinite(error, before_end=True) from error
    except (ComputeFailed, BadPayload) as error:
        raise _NotFinite(error, before_end=before_end) from error
    except (RuntimeError, OverflowError, ZeroDivisionError) as error:
        if not before_end or unusable_after(error) or explained_text(error) is not None:
            raise
        _LOG.debug("the strategy cannot compute with what silos have sent", exc_info=error)
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
        raise _NotFinite(ComputeFailed(f"{text}."), before_end=True) from error


def strategy_of(config: StudyConfig, data: StudyData, *, folder: Path, num_silos: int, device: str,
                progress: Callable[[float, str], None],
                noise: SiloNoise | None = None) -> tuple[Environment, Strategy[Any]]:
    """The coordinator's half of a study's method, over its images.

    Args:
        noise: where the study hides whole silos.
    Raises: BadConfiguration or UnknownName where method and images do not fit each other.
    """
    check_class_prior(config.method.settings, data.frozen.classes)
    check_class_weights(config.method.settings, data.frozen.classes)
    check_network(config.privacy.dp, data.build_model, seed=config.study.seed)
    environment = Environment(
        seed=config.study.seed, rounds=config.study.rounds, num_silos=num_silos, data=data.to_build_with,
        build_model=data.build_model, image=data.frozen.image,
        augmentation=config.augmentation.decided(data.frozen.left_out_views),
        num_classes=len(data.frozen.classes), device=device, progress=progress, robust=config.robust,
        largest_weight=config.participation.largest_share,
        trained_before=bool(data.frozen.weights_digest), start_work=StartWork(folder / START_FILE), silo_noise=noise,
        summed=config.privacy.secure_aggregation, measure=data.frozen.study_measure)
    return environment, build_strategy(
        load_strategy(config.method.name), config.method.name, config.method.settings, environment)


def _code_of(config: StudyConfig) -> str:
    """`FrozenStudy.code` as it is installed now.

    Raises: ComputeFailed, after which another process tries, where this one runs the code of before an upgrade.
    """
    try:
        return code_stamp(config.method.name, config.model.name)
    except UsageError as error:
        failed = ComputeFailed(error.text)
        ends_process(failed)
        raise failed from error


def check_study(config: StudyConfig, *, folder: Path, frozen: FrozenStudy | None, num_silos: int,
                images_folder: Path | None, progress: Callable[[float, str], None]) -> FrozenStudy:
    """Refuses what opening a study would refuse, in the same words: network, weights, images, classes, images in two
    sets. Reads all images of the coordinator, trains nothing and writes nothing.

    Returns: what would be frozen.
    Raises: BadConfiguration, BadData or UnknownName.
    """
    data = read_study_data(config, folder=folder, frozen=frozen, progress=progress, disk=images_folder)
    strategy_of(config, data, folder=folder, num_silos=num_silos, device="cpu", progress=progress)
    return data.frozen


class Operations:
    """The operations by name; one study is open at a time."""

    def __init__(self, progress: Callable[[float, str], None], *, device: str = "") -> None:
        """`device` is "cpu" or "cuda"; empty: an accelerator where there is one."""
        self._progress = progress
        self._device = device
        self._study: _Opened | None = None
        self._last: tuple[str, Any] = ("", None)
        self._expects: tuple[tuple[str, str, int], Mapping[str, GroupLayout]] = (("", "", 0), {})
        self._sound = SoundFiles()
        self._labels_alone: LabelsAlone[Any, Any] | None = None
        self._alone_pace = SavingPace(what="labels alone")

    def handlers(self) -> tuple[Handler, ...]:
        """See `semisilo.common.process.messages.Operations`."""
        return (OpenStudy.handled_by(self.open_study), Prepare.handled_by(self.prepare),
                Baseline.handled_by(self.baseline), Phases.handled_by(self.phases), Tasks.handled_by(self.tasks),
                CheckUpdate.handled_by(self.check_update), Aggregate.handled_by(self.aggregate),
                Evaluate.handled_by(self.evaluate), Compare.handled_by(self.compare), Export.handled_by(self.export))

    def open_study(self, request: OpenStudy) -> OpenedStudy:
        """Reads the coordinator's images, freezes what follows from them and builds the strategy.

        Raises: BadConfiguration, BadData or UnknownName for a study that cannot run.
        """
        self._study, self._last, self._expects, self._labels_alone = None, ("", None), (("", "", 0), {}), None
        settings, folder = request.config, request.study_folder
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        now = replace(settings.numerics, threads=settings.numerics.threads or request.threads)
        record = numerics.apply(now, device=device)
        if request.frozen is None:  # what other settings have begun no longer counts
            for name in (START_FILE, LABELS_ALONE_FILE, LABELS_ALONE_MODEL):
                (folder / name).unlink(missing_ok=True)
        data = read_study_data(settings, folder=folder, frozen=request.frozen, progress=self._progress,
                               disk=request.images_folder, may_have_changed=request.may_have_changed)
        if not now.threads and device == "cpu":
            threads = fastest_threads(TrainingStep(
                build=data.build_model, image=data.frozen.image, num_classes=len(data.frozen.classes),
                batch=getattr(settings.method.settings, "labelled_batch", 10)), processors=usable_processors())
            record = numerics.apply(replace(now, threads=threads), device=device)
        environment, strategy = strategy_of(settings, data, folder=folder, num_silos=request.num_silos, device=device,
                                            progress=self._progress, noise=silo_noise(settings.privacy, folder))
        half = load_strategy(settings.method.name)
        code = _code_of(settings)
        if request.frozen is None and code:
            data = replace(data, frozen=replace(data.frozen, code=code))
        states = StateFiles(folder / "states")
        states.clean()
        self._study = _Opened(
            name=request.name, folder=folder, config=settings, spec=find_method(settings.method.name), data=data,
            environment=environment, strategy=strategy,
            state_type=half.State, kept_type=getattr(half, "SiloState", type(None)), states=states,
            payloads=open_payloads(request.payloads_folder))
        return OpenedStudy(frozen=data.frozen, numerics=record, code=code,
                           round_0_steps=self._round_0_steps(self._study))

    def prepare(self, request: Prepare) -> Prepared:
        """Round 0, from the initial model or from that of labels alone.

        Raises: StorageDamaged where the file of these is not what the ledger names.
        """
        study = self._opened()
        strategy: Any = study.strategy
        if request.labels_alone:
            alone = read_labels_alone(study.folder / LABELS_ALONE_MODEL, digest=request.labels_alone)
            state = self._save(strategy.start_from(alone.parameters, loss=request.loss))
        else:
            state = self._save(strategy.start(initial_model(study.data.build_model, study.config.study.seed)))
        StartWork(study.folder / START_FILE).done()
        measured = self._measured(state)
        return Prepared(state=state, metrics=measured.metrics, confusion=measured.confusion)

    def baseline(self, request: Baseline) -> BaselineFound:
        """A slice of the same network's training on the coordinator's labels alone, measured on its test and
        validation images.

        What is done stays in memory, and is written to the study's folder now and then for a process that comes after.
        Raises: SystemTrouble where its model cannot be written; the next slice tries that again.
        """
        study = self._opened()
        images = study.data.images
        if images.labelled is None or (images.test is None and images.validation is None):
            return BaselineFound(done=True, result=None)
        alone, self._labels_alone = self._labels_alone, None  # after an error it is of no more use
        if alone is None:
            alone = self._begun(study, request)
            self._alone_pace.start()
        alone.work(request.slice_seconds)
        if (found := alone.found) is not None:
            self._labels_alone = alone  # until its model is on the disk
            model = LabelsAloneModel(parameters=found.parameters, batch_norm=found.statistics)
            digest = checkpoint.save(study.folder / LABELS_ALONE_MODEL, model)
            self._labels_alone = None
            return BaselineFound(done=True, result=LabelledOnlyResult(
                metrics=_metrics_alone(found, study.data.frozen.classes), epochs=found.epochs, asked=found.asked,
                ended=found.ended, lr=found.lr, batch_size=found.batch_size, steps=found.steps,
                loss=found.loss, num_labelled=found.num_labelled, history=found.history, recipe=found.recipe,
                description=found.description, model_digest=digest))
        self._alone_pace.save(alone.save)
        self._labels_alone = alone
        return BaselineFound(done=False, result=None, progress=BaselineProgress(
            epochs=alone.epochs, planned=alone.planned, fraction=alone.fraction, seconds_left=alone.seconds_left,
            doing=alone.doing))

    def _begun(self, study: _Opened, request: Baseline) -> LabelsAlone[Any, Any]:
        """The work on labels alone from where an earlier process has left it."""
        file = study.folder / LABELS_ALONE_FILE
        if request.recipe == "paper":
            return PaperLabelsAlone(study.environment, PaperRecipe(
                epochs=request.epochs or PAPER_EPOCHS, budget_seconds=request.budget_seconds,
                patience=request.patience), file=file)
        return StrongLabelsAlone(study.environment, self._strong_recipe(study, request), file=file)

    def _strong_recipe(self, study: _Opened, request: Baseline) -> StrongRecipe:
        return StrongRecipe(
            epochs=request.epochs, budget_seconds=request.budget_seconds,
            study_images=images_of_study(study.config.method.settings, rounds=study.config.study.rounds,
                                         num_labelled=study.data.frozen.num_labelled),
            num_classes=len(study.data.frozen.classes), measure=str(study.environment.measure))

    def _round_0_steps(self, study: _Opened) -> int:
        """See `OpenedStudy.round_0_steps`."""
        settings, labelled = study.config.study, study.data.images.labelled
        starts_from = getattr(study.strategy, "starts_from_labels_alone", None)
        if not (settings.labelled_only_baseline and settings.baseline_recipe == "strong"
                and not settings.baseline_epochs and not settings.baseline_seconds
                and study.data.frozen.may_have_labels_alone and labelled is not None
                and starts_from is not None and starts_from()):
            return 0
        if (study.folder / START_FILE).exists():
            return 0  # a warm-up of its own has begun: by an earlier version, or since labels alone cannot be trained
        return planned_steps(self._strong_recipe(study, Baseline(slice_seconds=0.0)), num_labelled=len(labelled),
                             batch_size=batch_size_of(len(labelled)))

    def phases(self, request: Phases) -> PhasesOfRound:
        """The phases of a round."""
        StartWork(self._opened().folder / START_FILE).done()  # a kill may have come between the state and this
        study, now, digest = self._opened(), self._load(request.state), request.state
        if (opened := getattr(study.strategy, "opened", None)) is not None and (
                after := opened(now, round=request.round, silos=request.silos)) is not now:
            now, digest = after, self._save(after)
        phases = study.strategy.phases(now, request.round)
        for phase in phases if study.config.privacy.secure_aggregation else ():
            for name, layout in study.strategy.expects(now, phase, round=request.round).items():
                if (layout.meaning is not Meaning.DIFFERENCE and name != BATCH_NORM) or any(
                        spec.dtype != "float32" for spec in layout.tensors):
                    raise BadConfiguration(
                        f"[privacy] secure_aggregation: what silos send in the phase '{phase.name}' is not a difference"
                        " to the model, so it cannot be added up behind masks.", remedy="Choose another method.")
        return PhasesOfRound(phases=phases, state=digest)

    def tasks(self, request: Tasks) -> WrittenTasks:
        """What each silo is asked in a phase, with its payloads written.

        Raises: StudyNotOpen where the named study is not open.
        """
        study, now, step, round = self._opened(request.study), self._load(request.state), request.phase, request.round
        plan = Plan(aim=Aim(study.config.wire.downlink), link_bytes_per_second=request.link_bytes_per_second)
        downlink = Downlink(study.payloads, TensorCache(study.payloads), plan=plan)
        written: dict[str, WrittenTask] = {}
        model: tuple[Tensors, Tensors] | None = None
        for number, silo in enumerate(sorted(request.silos, key=str.encode)):
            task = study.strategy.task(now, step, silo, self._kept(request.silos[silo]), round=round)
            _assert_declared(study.spec, task.groups)
            groups = dict(task.groups)
            if study.data.frozen_group is not None:
                groups[FROZEN] = study.data.frozen_group
            settings = {**to_dict(study.config.method.settings), **to_dict(dict(task.settings))}
            from_dict(study.spec.settings, settings, where=f"strategy {study.spec.name}")  # as the silo will read it
            if "model" in groups and model is None:  # of some methods it is a sum, made anew each time
                model = study.strategy.model(now)
            written[silo] = WrittenTask(settings=settings, payloads=tuple(
                downlink.payload(name, group, request.held.get(silo, ())) for name, group in groups.items()),
                brings_model=model is not None and _brings(groups, *model))
            self._progress((number + 1) / len(request.silos), f"task for {silo}")
        downlink.finish()
        expects = dict(study.strategy.expects(now, step, round=round))
        return WrittenTasks(tasks=written, expects=expects, largest=self._largest(now, expects))

    def _largest(self, now: Any, expects: Mapping[str, GroupLayout]) -> tuple[float, ...]:
        """See `WrittenTasks.largest`."""
        study = self._opened()
        if not study.config.privacy.secure_aggregation:
            return ()
        parameters, _ = study.strategy.model(now)
        return tuple(float(parameters[spec.name].abs().max()) if spec.name in parameters and spec.num_elements else 0.0
                     for name in sorted(expects, key=str.encode) for spec in expects[name].tensors)

    def check_update(self, request: CheckUpdate) -> CheckedUpdate:
        """Whether an update that has arrived may be folded.

        Raises: BadPayload, LayoutMismatch or WrongBase, naming the group or tensor; StudyNotOpen.
        """
        study, state, round, step = self._opened(request.study), request.state, request.round, request.phase
        update, header = request.update, request.update.header
        if request.masked is not None:
            check_masked(update.path, request.masked)
            return CheckedUpdate(encoded=tuple(encodings_of_payload(update.path)))
        check_metrics(study.spec, header.metrics, update=True, phase=step.name,
                      num_classes=len(study.data.frozen.classes))
        # What is kept for a silo is a file as large as the model.
        before = self._kept(update.kept) if self._builds_on_task(state, step, round) else None
        found = check_file(update.path, self._expected_of(state, step, round, header.silo, before),
                           study.config.wire.uplink_form())
        self._sound.note(update.path, found.norms)
        return CheckedUpdate(held=found.held, encoded=found.encoded)

    def aggregate(self, request: Aggregate) -> Aggregated:
        """Folds the accepted updates of a phase, one in memory at a time, and finishes the phase.

        Updates with which the phase does not end with a finite model are left out, as few as will do: first those that
        cannot be folded even alone, then the largest. Each of their values is finite, and still one silo could break
        the model of all.

        Raises: StorageDamaged when a spooled file is not what was accepted; ComputeFailed when the model is not finite
        without them either.
        """
        names = [update.header.silo for update in request.updates]
        assert names == sorted(set(names), key=str.encode), "updates are folded in silo order, each silo once"
        study = self._opened()
        if request.masked is not None:
            return self._summed(request, request.masked)
        measures = UpdateMeasures(seed=study.config.study.seed, round=request.round, num_updates=len(names))
        try:
            folded = self._folded(request, request.updates, measures)
            return self._of_shut_gate(request, replace(folded, measures=self._shown(request, measures.result())))
        except _NotFinite as error:
            if not names:
                raise error.reason from None
            _LOG.warning("round %d: with all %d updates the model is not finite: %s Looking for whose fault it is.",
                         request.round, len(names), error.reason.line())
            failure = error
        found, alone = measures.result(), dict[str, str]()
        if failure.before_end:
            found, alone = self._each_alone(request)
        tried: dict[frozenset[str], Aggregated] = {}

        def works(without: frozenset[str]) -> bool:
            try:
                tried[without] = self._folded(
                    request, tuple(each for each in request.updates if each.header.silo not in without))
            except _NotFinite:
                return False
            return True

        by_steps = sums_per_step(study.config.method.settings) and request.phase.name not in MEASURING
        steps = {update.header.silo: update.header.metrics["steps"] for update in request.updates if by_steps}
        in_order = suspects(found, weights=measures.weights, steps=steps)
        left_out = fewest_left_out((*alone, *(silo for silo in in_order if silo not in alone)), works)
        if left_out is None:
            raise failure.reason
        if len(left_out) == len(names) > 1 and isinstance(study.strategy, PluggedIn):
            raise PluginFailed(f"{study.strategy.what} cannot compute with any of the {len(names)} updates of round"
                               f" {request.round}: {failure.reason.text.removeprefix(f'{study.strategy.what} ')}",
                               remedy="It is more likely at fault than all silos are.")
        middle = median(each.norm for each in found.values()) if found else 0.0
        also = {silo: f"; it says that it has taken {count:.0f} steps, the median is {median(steps.values()):.0f}"
                for silo, count in steps.items()}
        folded = replace(tried[left_out], measures=self._shown(request, found), left_out={silo: (
            f"not accepted: it cannot be folded. {alone[silo]}" if silo in alone else
            f"not accepted: with this update the model is not finite; its norm is {found[silo].norm:.3g}, the median of"
            f" the round {middle:.3g}{also.get(silo, '')}") for silo in sorted(left_out, key=str.encode)})
        return self._of_shut_gate(replace(request, updates=tuple(
            update for update in request.updates if update.header.silo not in left_out)), folded)

    def _of_shut_gate(self, request: Aggregate, folded: Aggregated) -> Aggregated:
        """The phase as it is closed, where the strategy has taken nothing over of the updates: with whom to look at,
        and, if one update is much longer than the others, once more with all cut to the median length. That counts if
        something of it is taken over. The same object where there is nothing to be done."""
        study = self._opened()
        if not (folded.measures and hasattr(study.strategy, "accepted")
                and study.strategy.accepted(self._load(folded.state)) == 0.0):
            return folded
        measures = {silo: each for silo, each in folded.measures.items() if silo not in folded.left_out}
        told = replace(folded, notices=folded.notices | {
            silo: f"nothing of the round's updates was taken over, and {text}"
            for silo, text in point_away(measures).items()})
        environment = study.environment
        # Where more silos may lie than a rule can do with, clipping would take nothing over and say that it had.
        enough = len(request.updates) > 2 * environment.robust.byzantine_silos
        if not (has_long(measures) and enough and environment.robust.rule == "none" and environment.silo_noise is None
                and "norm_clipping" in study.spec.robust_rules):
            return told
        method = study.config.method
        clipping: Any = build_strategy(load_strategy(method.name), method.name, method.settings, replace(
            environment, robust=replace(environment.robust, rule="norm_clipping")))
        try:
            again = self._folded(request, request.updates, strategy=clipping)
        except _NotFinite:
            return told
        if clipping.accepted(self._load(again.state)) == 0.0:
            return told
        _LOG.info("round %d: with updates no longer than the median something is taken over", request.round)
        return replace(again, measures=told.measures, notices=told.notices, left_out=told.left_out)

    def _each_alone(self, request: Aggregate) -> tuple[dict[str, UpdateMeasure], dict[str, str]]:
        """All updates of a phase that could not be folded together, one after another.

        Returns: their measures; and by the silo of each that cannot be folded even alone, why.
        """
        study, now, step = self._opened(), self._load(request.state), request.phase
        measures = UpdateMeasures(seed=study.config.study.seed, round=request.round, num_updates=len(request.updates))
        failed: dict[str, str] = {}
        for update in request.updates:
            header, before = update.header, self._kept(update.kept)
            expected = self._expected_of(request.state, step, request.round, header.silo, before)
            groups = self._sound.read(update.path, header.silo, expected, again=True)
            measures.add(header.silo, change_of(groups, expected.bases))
            try:
                with _guarded():
                    tally = study.strategy.begin(now, step, (header,), round=request.round)
                    study.strategy.fold(now, tally, header, groups, before)
                self._weigh_alone(request, update, groups, before)
            except _NotFinite as error:
                failed[header.silo] = error.reason.line()
        return measures.result(), failed

    def _weigh_alone(self, request: Aggregate, update: SpooledUpdate, groups: Mapping[str, TensorGroup], before: Any
                     ) -> None:
        """Folds an update as the rule of [robust] weighs it alone, besides as the method does: some rules take nothing
        over of one. Raises: _NotFinite where it cannot be."""
        study, now, step, header = self._opened(), self._load(request.state), request.phase, update.header
        if (appraise := getattr(study.strategy, "appraise", None)) is None:
            return
        with SpooledUpdates((header,), lambda _: groups, norms=self._norms_of((update,)),
                            scratch=study.folder) as spooled, _guarded():
            tally = study.strategy.begin(now, step, (header,), round=request.round)
            tally, _ = appraise(now, step, tally, spooled, round=request.round)
            study.strategy.fold(now, tally, header, groups, before)

    def _summed(self, request: Aggregate, masked: MaskedSum) -> Aggregated:
        """The phase with the means of masked updates, each in the place of a single silo's update. Of no updates the
        phase ends as one that nobody has answered.

        Raises: SecureSumFailed where no sum is right; ComputeFailed when the model is not finite with them.
        """
        study, now, step, round = self._opened(), self._load(request.state), request.phase, request.round
        means = SummedUpdates(
            masked.form, masked.groups, {update.header.silo: update.path for update in request.updates},
            self._expected(request.state, step, round), settings=study.config.method.settings,
            seed=study.config.study.seed, round=round, phase=step.name, add_masks=self._add_masks)
        headers = tuple(map(means.header, range(len(means))))
        self._progress(0.5, f"added up {len(request.updates)} masked updates")
        tally = study.strategy.begin(now, step, headers, round=round)
        metrics: Mapping[str, float] = {}
        appraise = getattr(study.strategy, "appraise", None)
        if study.config.privacy.group_size and headers and appraise is not None:
            with SpooledUpdates(headers, means.read, norms=[None] * len(headers), scratch=study.folder) as spooled:
                tally, metrics = appraise(now, step, tally, spooled, round=round)
        for index, header in enumerate(headers):
            tally, _ = study.strategy.fold(now, tally, header, means.read(index), None)
        try:
            finished = study.strategy.finish(now, step, tally, round=round)
        except BadPayload as error:
            raise ComputeFailed(error.text, remedy=error.remedy) from error
        if field := not_finite_in(finished):
            raise ComputeFailed(f"The model of round {round} is not finite: {field}.")
        return Aggregated(state=self._save(finished), kept={}, metrics=dict(metrics), outcome=means.outcome,
                          left_out=means.left_out)

    def _add_masks(self, words: np.ndarray, seeds: Sequence[MaskSeed]) -> None:
        """Adds masks to words. To be overridden where there are any."""
        assert not seeds, "masks need cryptography"

    def _shown(self, request: Aggregate, found: dict[str, UpdateMeasure]) -> dict[str, UpdateMeasure]:
        """What is noted of updates: of batch-norm statistics alone nothing, which change no model."""
        groups = self._expected(request.state, request.phase, request.round).keys()
        return found if groups - {BATCH_NORM} else {}

    def _folded(self, request: Aggregate, updates: tuple[SpooledUpdate, ...],
                measures: UpdateMeasures | None = None, *, strategy: Strategy[Any] | None = None) -> Aggregated:
        """The phase with some of its updates; `measures` takes them all in before the phase is finished.

        Args:
            strategy: that does it; None for the study's.
        Raises: _NotFinite when the state after it is not finite, its model's answers are not, or the strategy cannot
            compute with an update.
        """
        study, now, step = self._opened(), self._load(request.state), request.phase
        strategy = strategy or study.strategy
        state, round = request.state, request.round
        counts = capped_counts([update.header.num_examples for update in updates],
                               study.config.participation.largest_share,
                               together=study.config.robust.capped_together)
        headers = tuple(replace(update.header, num_examples=count, uncut_examples=update.header.num_examples)
                        for update, count in zip(updates, counts, strict=True))
        observers = self._observers(round)
        with _guarded():
            tally = strategy.begin(now, step, headers, round=round)
            if request.gone and (leave := getattr(strategy, "leave", None)) is not None:
                tally = leave(step, tally, request.gone)
        if measures is not None:
            measures.weights = getattr(tally, "weights", {})
        appraised: Mapping[str, float] = {}
        if (appraise := getattr(strategy, "appraise", None)) is not None:
            with SpooledUpdates(headers, partial(self._read_again, request, updates), norms=self._norms_of(updates),
                                scratch=study.folder) as spooled, _guarded():
                tally, appraised = appraise(now, step, tally, spooled, round=round)
        kept: dict[str, str | None] = {}
        for number, (header, update) in enumerate(zip(headers, updates, strict=True)):
            before = self._kept(update.kept)
            expected = self._expected_of(state, step, round, header.silo, before)
            groups = self._sound.read(update.path, header.silo, expected)
            if measures is not None:
                measures.add(header.silo, change_of(groups, expected.bases))
            with _guarded():
                tally, after = strategy.fold(now, tally, header, groups, before)
            kept[header.silo] = None if after is None else study.states.save(after)
            for observer in observers:
                observer.measure(header.silo, now, groups, before)
            del before, groups, after, expected
            self._progress((number + 1) / len(updates) * 0.5, f"folded the update of {header.silo}")
        notices = dict(strategy.notices(tally)) if hasattr(strategy, "notices") else {}
        metrics = {**appraised, **{name: value for observer in observers for name, value in observer.metrics().items()}}
        # The strategy gets the only references, so that what it needs no more goes while it trains.
        self._last, handed = ("", None), [now, tally]
        del now, tally
        with _guarded(before_end=False):
            finished = strategy.finish(handed.pop(0), step, handed.pop(), round=round)
        if field := not_finite_in(finished):
            raise _NotFinite(ComputeFailed(f"The model of round {round} is not finite: {field}."))
        if updates and not self._answers_finitely(finished):
            raise _NotFinite(ComputeFailed(f"The model of round {round} gives outputs that are not finite."))
        return Aggregated(state=self._save(finished), kept=kept, metrics=metrics, notices=notices)

    def _answers_finitely(self, state: Any) -> bool:
        """Whether the model of a state can be asked anything; true where it lacks batch-norm statistics."""
        study = self._opened()
        parameters, statistics = study.strategy.model(state)
        model = measurable(study.environment, parameters, statistics)
        return model is None or answers_finitely(model, study.environment.image)

    def _read_again(self, request: Aggregate, updates: tuple[SpooledUpdate, ...], index: int
                    ) -> dict[str, TensorGroup]:
        """One update that will be read once more."""
        update = updates[index]
        silo = update.header.silo
        return self._sound.read(update.path, silo, self._expected_of(
            request.state, request.phase, request.round, silo, self._kept(update.kept)), again=True)

    def _norms_of(self, updates: tuple[SpooledUpdate, ...]) -> Sequence[Mapping[str, float] | None]:
        """What the check of each update found; None where another process has checked it."""
        return [self._sound.norms(update.path) for update in updates]

    def _observers(self, round: int) -> list[UpdateObserver]:
        """What looks at every update before it is folded. To be extended where more may be seen than here."""
        study = self._opened()
        return [LocalModels(study.strategy, study.environment)] if study.config.study.local_accuracy else []

    def evaluate(self, request: Evaluate) -> Evaluated:
        """The model of a state on the coordinator's images, and the strategy's diagnostics."""
        measured = self._measured(request.state)
        return Evaluated(metrics=measured.metrics, confusion=measured.confusion)

    def _measured(self, state: str) -> MeasuredModel:
        """What is measured goes before a diagnostic of the same name."""
        study, now = self._opened(), self._load(state)
        parameters, statistics = study.strategy.model(now)
        measured = measure_model(study.environment, study.data.frozen.classes, parameters, statistics,
                                 measure=study.data.frozen.study_measure)
        return replace(measured, metrics={**diagnostics_of(study.strategy, now), **measured.metrics})

    def compare(self, request: Compare) -> Compared:
        """The model of a state against that of labels alone, by their answers to each test image.

        Raises: StorageDamaged where the file of these is not what the ledger names.
        """
        study = self._opened()
        alone = read_labels_alone(study.folder / LABELS_ALONE_MODEL, digest=request.labels_alone)
        return compare_models(study.environment, study.data.frozen.classes,
                              study.strategy.model(self._load(request.state)), alone.tensors,
                              measure=study.data.frozen.study_measure)

    def export(self, request: Export) -> Exported:
        """Writes the model of a state as one safetensors file that needs nothing else to be used."""
        study = self._opened()
        if request.labels_alone:
            alone = read_labels_alone(study.folder / LABELS_ALONE_MODEL, digest=request.state)
            parameters, statistics = alone.tensors
        else:
            parameters, statistics = study.strategy.model(self._load(request.state))
        export_model(request.path, study.environment, parameters, statistics, model_facts(
            study.name, study.config, study.data.frozen, study.data.labelled_of_study, state=request.state,
            alone_adjusted=request.adjusted if request.labels_alone else None),
            with_thresholds=study.data.changes.keys() <= {"test"})
        return Exported(path=request.path)

    # Files ------------------------------------------------------------------------------------------------------------

    def _opened(self, name: str = "") -> _Opened:
        """The study that is open.

        Args:
            name: that of the study it must be; empty where who asks has opened it.
        Raises: StudyNotOpen where it is not that one; ComputeFailed where none is open.
        """
        if name and (self._study is None or self._study.name != name):
            raise StudyNotOpen(f"The coordinator does not have the study '{name}' open yet.",
                               remedy="It is tried again.")
        if self._study is None:
            raise ComputeFailed("No study is open in the compute process.")
        return self._study

    def _load(self, digest: str) -> Any:
        """The state of a digest; the last one is kept in memory, since operations of a phase share it."""
        if self._last[0] != digest:
            study = self._opened()
            self._last = ("", None)
            self._last = (digest, study.states.load(digest, study.state_type))
        return self._last[1]

    def _expected(self, state: str, phase: Phase, round: int) -> Mapping[str, GroupLayout]:
        """What updates of a phase must hold; asked for with every update, and it takes a digest of the model."""
        key = (state, phase.name, round)
        if self._expects[0] != key:
            self._expects = (key, self._opened().strategy.expects(self._load(state), phase, round=round))
        return self._expects[1]

    def _builds_on_task(self, state: str, phase: Phase, round: int) -> bool:
        """Whether updates of a phase overwrite what their silo was sent in its task."""
        return any(layout.base == FROM_TASK for layout in self._expected(state, phase, round).values())

    def _expected_of(self, state: str, phase: Phase, round: int, silo: str, kept: Any) -> Expected:
        """What the update of one silo must be. What it was sent is asked for again where it builds on just that: a
        task is a function of state, silo and what is kept, while a cache may be lost."""
        layouts = self._expected(state, phase, round)
        if not self._builds_on_task(state, phase, round):
            return Expected(layouts)
        return expected_of(layouts, self._opened().strategy.task(self._load(state), phase, silo, kept, round=round))

    def _save(self, state: Any) -> str:
        try:
            digest = self._opened().states.save(state)
        except (TypeError, ValueError) as error:
            if not isinstance(strategy := self._opened().strategy, PluggedIn):
                raise
            raise strategy.cannot_keep(state, error) from error
        # A restart goes on from the file, so what is kept is what reading it back would give.
        self._last = (digest, checkpoint.settled(state))
        return digest

    def _kept(self, digest: str | None) -> Any:
        study = self._opened()
        return None if digest is None else study.states.load(digest, study.kept_type)


def _brings(groups: Mapping[str, TensorGroup], parameters: Tensors, statistics: Tensors) -> bool:
    """Whether a task's groups are a model with its statistics: the very tensors, for equal ones that are others cost a
    pass over the model to find out."""
    model, batch_norm = groups.get("model"), groups.get("batch_norm")
    if model is None or not _same(model.tensors, parameters):
        return False
    return _same({} if batch_norm is None else batch_norm.tensors, statistics)


def _same(first: Tensors, second: Tensors) -> bool:
    return first.keys() == second.keys() and all(first[name] is second[name] for name in first)


def _assert_declared(spec: MethodSpec, groups: Mapping[str, TensorGroup]) -> None:
    """A group that the method does not declare must never leave; it would be this program's own mistake."""
    try:
        check_manifest([GroupManifest(name, group.meaning, group.base, (), 0) for name, group in groups.items()],
                       allowed=spec.down, layouts=None, max_bytes=0)
    except BadPayload as error:
        raise AssertionError(f"strategy {spec.name}: {error.text}") from error



def _metrics_alone(found: LabelledOnly, classes: tuple[str, ...]) -> dict[str, float]:
    """All numbers of labels alone, named as those of a round."""
    metrics = {} if found.evaluation is None else metrics_of(found.evaluation, classes)
    if found.validation is not None:
        metrics |= {f"{VALIDATION_PREFIX}{name}": value
                    for name, value in metrics_of(found.validation, classes).items()}
    return {**metrics, **found.crossfit}
