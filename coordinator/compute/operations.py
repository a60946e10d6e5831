"""What the coordinator's compute process does: the strategy, its data and its files. Called through common.compute.

Arguments and results are plain JSON types. A state of the strategy is a file `<study>/states/<sha256>.safetensors`; a
payload is a file of the federation's store. Every operation is a function of the files it names, so that a process that
died may be replaced and the operation called again with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from common import numerics
from common.checkpoint import settled
from common.codec import Aim, Plan
from common.config import from_dict, to_dict
from common.encodings import encodings_of_payload
from common.errors import BadPayload, ComputeFailed
from common.exchange import FROM_TASK, Environment, GroupLayout, Phase, Strategy, TensorGroup, UpdateHeader
from common.exported_model import ModelFacts, inference_settings
from common.manifest import GroupManifest, check_manifest
from common.methods import MethodSpec, check_metrics, find_method
from common.methods.spec import FROZEN
from common.models import initial_model
from common.state_files import StateFiles
from common.store import PayloadStore
from common.tensor_cache import TensorCache
from coordinator.baseline import train_labelled_only
from coordinator.downlink import Downlink
from coordinator.evaluation import (
    LocalModels,
    UpdateObserver,
    diagnostics_of,
    export_model,
    measure_model,
    metrics_of,
)
from coordinator.spooled import Expected, SoundFiles, check_file, expected_of
from coordinator.stores import open_payloads
from coordinator.strategies import load_strategy
from coordinator.study import FrozenStudy, StudyConfig, config_from_dict
from coordinator.study_data import StudyData, read_study_data

__all__ = ["Operations"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opened:
    """The study that is open in this process."""

    name: str
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

    def reopening(self, operation: str, arguments: dict[str, Any], result: dict[str, Any]) -> dict[str, Any] | None:
        """How the study is opened again in a fresh process: with what was frozen the first time."""
        return {**arguments, "frozen": result["frozen"]} if operation == "open_study" else None

    def open_study(self, name: str, config: dict[str, Any], study_folder: str, payloads_folder: str, num_silos: int,
                   frozen: dict[str, Any] | None) -> dict[str, Any]:
        """Reads the coordinator's images, freezes what follows from them and builds the strategy.

        Args:
            config: the study's settings, as `to_dict(StudyConfig)`.
            num_silos: silos that must have joined before round 1.
            frozen: what an earlier opening returned; None at the first.
        Returns: {"frozen": FrozenStudy, "numerics": NumericsRecord}.
        Raises: BadConfiguration, BadData or UnknownName for a study that cannot run.
        """
        self._study, self._last, self._expects = None, ("", None), (("", "", 0), {})
        where = f"study {name}"
        settings = config_from_dict(config, where=where)
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        record = numerics.apply(settings.numerics, device=device)
        folder = Path(study_folder)
        before = None if frozen is None else from_dict(FrozenStudy, frozen, where=where)
        data = read_study_data(settings, folder=folder, frozen=before, progress=self._progress)
        environment = Environment(
            seed=settings.study.seed, rounds=settings.study.rounds, num_silos=num_silos, data=data.images,
            build_model=data.build_model, image=data.frozen.image, augmentation=settings.augmentation, device=device,
            progress=self._progress, trained_before=bool(data.frozen.weights_digest))
        strategy = load_strategy(settings.method.name)
        states = StateFiles(folder / "states")
        states.clean()
        self._study = _Opened(
            name=name, config=settings, spec=find_method(settings.method.name), data=data, environment=environment,
            strategy=strategy(settings.method.settings, environment), state_type=strategy.State,
            kept_type=getattr(strategy, "SiloState", type(None)), states=states,
            payloads=open_payloads(Path(payloads_folder)))
        return {"frozen": to_dict(data.frozen), "numerics": to_dict(record)}

    def prepare(self) -> dict[str, Any]:
        """Round 0, from the initial model. Returns: {"state": digest, "metrics": as `evaluate` has them}."""
        study = self._opened()
        state = self._save(study.strategy.start(initial_model(study.data.build_model, study.config.study.seed)))
        return {"state": state, "metrics": self.evaluate(state, 0)["metrics"]}

    def baseline(self, epochs: int) -> dict[str, Any]:
        """The same network trained on the coordinator's labels alone, measured on its test set; {} without either."""
        study = self._opened()
        if study.data.images.test is None or study.data.images.labelled is None:
            return {}
        found = train_labelled_only(study.environment, epochs=epochs)
        return {"metrics": metrics_of(found.evaluation, study.data.frozen.classes), "epochs": found.epochs,
                "lr": found.lr, "batch_size": found.batch_size, "steps": found.steps,
                "num_labelled": found.num_labelled, "history": [to_dict(point) for point in found.history]}

    def phases(self, state: str, round: int) -> dict[str, Any]:
        """The phases of a round: {"phases": [{"name", "asks", "quorum"}]}."""
        phases = self._opened().strategy.phases(self._load(state), round)
        return {"phases": [to_dict(phase) for phase in phases]}

    def tasks(self, state: str, round: int, phase: dict[str, str], silos: dict[str, str | None],
              held: dict[str, list[str]], link_bytes_per_second: float) -> dict[str, Any]:
        """What each silo is asked in a phase, with its payloads written.

        Every tensor group is a payload of its own, so that a group that did not change keeps its digest: what is frozen
        of the network comes with every task, and is sent to a silo once.
        Args:
            silos: by name, the digest of what the strategy keeps for the silo, or None.
            held: by name, the digests of tensor groups that the silo has said to hold.
            link_bytes_per_second: the slowest of the silos' links, which the round waits for; 0 when not measured.
        Returns: {"tasks": {silo: {"settings", "payloads": [PayloadRef]}}, "expects": {group: GroupLayout}}.
        """
        study, now, step = self._opened(), self._load(state), from_dict(Phase, phase)
        plan = Plan(aim=Aim(study.config.wire.downlink), link_bytes_per_second=link_bytes_per_second)
        downlink = Downlink(study.payloads, TensorCache(study.payloads), plan=plan)
        answer: dict[str, Any] = {}
        for number, silo in enumerate(sorted(silos, key=str.encode)):
            task = study.strategy.task(now, step, silo, self._kept(silos[silo]), round=round)
            _assert_declared(study.spec, task.groups)
            groups = dict(task.groups)
            if study.data.frozen_group is not None:
                groups[FROZEN] = study.data.frozen_group
            settings = {**to_dict(study.config.method.settings), **to_dict(dict(task.settings))}
            from_dict(study.spec.settings, settings, where=f"strategy {study.spec.name}")  # as the silo will read it
            answer[silo] = {"settings": settings, "payloads": [
                to_dict(downlink.payload(name, group, held.get(silo, ()))) for name, group in groups.items()]}
            self._progress((number + 1) / len(silos), f"task for {silo}")
        downlink.finish()
        expects = study.strategy.expects(now, step, round=round)
        return {"tasks": answer, "expects": {name: to_dict(layout) for name, layout in expects.items()}}

    def check_update(self, state: str, round: int, phase: dict[str, str], path: str,
                     metrics: dict[str, float], silo: str, kept: str | None) -> dict[str, Any]:
        """Whether an update that has arrived may be folded.

        Args:
            kept: digest of what the strategy keeps for the silo, as when the task was written.
        Returns: {"held": digests of tensors that the silo holds from now on, since its update has overwritten some,
            "encoded": [Encoded], what its blocks take by encoding}.
        Raises: BadPayload, LayoutMismatch or WrongBase, naming the group or tensor.
        """
        study = self._opened()
        check_metrics(study.spec, metrics, update=True, phase=phase["name"])
        step = from_dict(Phase, phase)
        before = self._kept(kept) if self._builds_on_task(state, step, round) else None  # a file as large as the model
        held = check_file(Path(path), self._expected_of(state, step, round, silo, before))
        self._sound.note(Path(path))
        return {"held": held, "encoded": [to_dict(each) for each in encodings_of_payload(Path(path))]}

    def aggregate(self, state: str, round: int, phase: dict[str, str], updates: list[dict[str, Any]]) -> dict[str, Any]:
        """Folds the accepted updates of a phase, one in memory at a time, and finishes the phase.

        Args:
            updates: [{"silo", "num_examples", "metrics", "path", "kept"}] in byte order of the names of silos; may be
                empty.
        Returns: {"state": digest, "kept": {silo: digest or None}, "metrics": {name: number}}; the metrics are those of
            the silos' own models, where the study asks for them.
        Raises: StorageDamaged when a spooled file is not what was accepted.
        """
        study, now, step = self._opened(), self._load(state), from_dict(Phase, phase)
        names = [update["silo"] for update in updates]
        assert names == sorted(set(names), key=str.encode), "updates are folded in silo order, each silo once"
        headers = tuple(UpdateHeader(silo=update["silo"], num_examples=update["num_examples"],
                                     metrics=update["metrics"]) for update in updates)
        observers = self._observers(round)
        tally = study.strategy.begin(now, step, headers, round=round)
        kept: dict[str, str | None] = {}
        for number, (header, update) in enumerate(zip(headers, updates, strict=True)):
            before = self._kept(update["kept"])
            groups = self._sound.read(Path(update["path"]), header.silo,
                                      self._expected_of(state, step, round, header.silo, before))
            tally, after = study.strategy.fold(now, tally, header, groups, before)
            kept[header.silo] = None if after is None else study.states.save(after)
            for observer in observers:
                observer.measure(header.silo, now, groups, before)
            del before, groups, after
            self._progress((number + 1) / len(updates) * 0.5, f"folded the update of {header.silo}")
        metrics = {name: value for observer in observers for name, value in observer.metrics().items()}
        # The strategy gets the only references, so that what it needs no more goes while it trains.
        self._last, handed = ("", None), [now, tally]
        del now, tally
        return {"state": self._save(study.strategy.finish(handed.pop(0), step, handed.pop(), round=round)),
                "kept": kept, "metrics": metrics}

    def _observers(self, round: int) -> list[UpdateObserver]:
        """What looks at every update before it is folded. To be extended where more may be seen than here."""
        study = self._opened()
        return [LocalModels(study.strategy, study.environment)] if study.config.study.local_accuracy else []

    def evaluate(self, state: str, round: int) -> dict[str, Any]:
        """The model of a state on the coordinator's images, and the strategy's diagnostics.

        Returns: {"metrics": {name: number}}; what is measured goes before a diagnostic of the same name.
        """
        study, now = self._opened(), self._load(state)
        parameters, statistics = study.strategy.model(now)
        measured = measure_model(study.environment, study.data.frozen.classes, parameters, statistics)
        return {"metrics": {**diagnostics_of(study.strategy, now), **measured}}

    def export(self, state: str, path: str) -> dict[str, Any]:
        """Writes the model of a state as one safetensors file that needs nothing else to be used."""
        study = self._opened()
        parameters, statistics = study.strategy.model(self._load(state))
        export_model(Path(path), study.environment, parameters, statistics, ModelFacts(
            model=inference_settings(replace(study.config.model, classes=study.data.frozen.classes)),
            image=study.data.frozen.image, study=study.name, method=study.config.method.name, round=None, state=state))
        return {"path": path}

    # Files ------------------------------------------------------------------------------------------------------------

    def _opened(self) -> _Opened:
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
        digest = self._opened().states.save(state)
        # A restart goes on from the file, so what is kept is what reading it back would give.
        self._last = (digest, settled(state))
        return digest

    def _kept(self, digest: str | None) -> Any:
        study = self._opened()
        return None if digest is None else study.states.load(digest, study.kept_type)


def _assert_declared(spec: MethodSpec, groups: Mapping[str, TensorGroup]) -> None:
    """A group that the method does not declare must never leave; it would be this program's own mistake."""
    try:
        check_manifest([GroupManifest(name, group.meaning, group.base, (), 0) for name, group in groups.items()],
                       allowed=spec.down, layouts=None, max_bytes=0)
    except BadPayload as error:
        raise AssertionError(f"strategy {spec.name}: {error.text}") from error

