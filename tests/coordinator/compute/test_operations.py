"""The coordinator's operations on a real study of digits: what is frozen, tasks, checks, folding, files."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data import room
from semisilo.common.data.form import ImageForm
from semisilo.common.errors import (
    BadConfiguration,
    BadData,
    BadPayload,
    ComputeFailed,
    DiskFull,
    LayoutMismatch,
    NotPermitted,
    PluginFailed,
    StorageDamaged,
    StudyNotOpen,
    UsageError,
    WrongBase,
)
from semisilo.common.learning import averaged_training, batch_norm, tensors
from semisilo.common.methods.contract import (
    CoordinatorData,
    Meaning,
    ModelSettings,
    PayloadRef,
    Phase,
    TensorGroup,
    UpdateHeader,
)
from semisilo.common.models.exported import read_facts
from semisilo.common.models.factory import build_model
from semisilo.common.numerics.thread_count import TrainingStep
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.torch_tensors import decode_groups, encode_groups
from semisilo.common.process.compute import ComputeAborted, ProcessCompute
from semisilo.common.process.compute_process import unusable_after
from semisilo.common.process.messages import Request, answer_from_json, as_json, handlers_of, run_operation
from semisilo.common.storage import checkpoint
from semisilo.common.storage.state_files import StateFiles
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.compute import downlink, start_work
from semisilo.coordinator.compute import operations as operations_module
from semisilo.coordinator.compute.messages import (
    Aggregate,
    Aggregated,
    Baseline,
    BaselineFound,
    CheckedUpdate,
    CheckUpdate,
    Evaluate,
    Evaluated,
    Export,
    OpenedStudy,
    OpenStudy,
    Phases,
    Prepare,
    Prepared,
    SpooledUpdate,
    Tasks,
    WrittenTask,
    WrittenTasks,
)
from semisilo.coordinator.compute.operations import Operations
from semisilo.coordinator.ledger.records import (
    LABELS_ALONE_FILE,
    LABELS_ALONE_MODEL,
    START_FILE,
    BaselineRecipe,
    FrozenStudy,
    LabelledOnlyResult,
)
from semisilo.coordinator.strategies.fedmatch.strategy import FedMatchState
from semisilo.coordinator.strategies.parts.averaging import AverageTally
from semisilo.coordinator.strategies.plugged_in import PluggedIn
from semisilo.coordinator.strategies.self_training import SelfTrainingState, SelfTrainingStrategy
from semisilo.coordinator.strategies.semifl import SemiFLState, SemiFLStrategy
from semisilo.coordinator.studies import images as images_module
from semisilo.coordinator.studies.study_file import config_from_dict
from tests.method_studies import STUDIES, MethodStudy

AnswerT = TypeVar("AnswerT")

PER_CLASS, NUM_TEST = 4, 50
PHASE = Phase("train")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with class folders of 4 digits each, and a test.npz of 50 others."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("images")
    digits = load_digits()
    pixels = (digits.images * 15).astype(np.uint8)
    for label in range(10):
        for index in np.flatnonzero(digits.target == label)[:PER_CLASS]:
            path = folder / "labelled" / f"digit-{label}" / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[index]).save(path)
    np.savez(folder / "test.npz", test_images=pixels[-NUM_TEST:], test_labels=digits.target[-NUM_TEST:])
    return folder


@pytest.fixture
def federation(tmp_path: Path, images: Path) -> Path:
    """A federation's folder with one study whose images are in the study's own folder."""
    shutil.copytree(images, tmp_path / "studies" / "first")
    return tmp_path


def config(**changes: Any) -> dict[str, Any]:
    """The study's settings as the ledger keeps them; `changes` by table."""
    tables: dict[str, Any] = {
        "study": {"seed": 3, "rounds": 4},
        "model": {"name": "small_cnn"},
        "data": {"labelled": "labelled", "test": "test.npz#test",
                 "image": {"size": 8, "channels": 1, "mean": "labelled", "std": "labelled"}},
        "augmentation": {"policy": "none"},
        "numerics": {"threads": 1},
        "method": {"name": "semifl", "coordinator_epochs": 1, "labelled_batch": 20, "lr": 0.05},
    }
    for table, values in changes.items():
        tables[table] = {**tables.get(table, {}), **values}
    settings: dict[str, Any] = to_dict(config_from_dict(tables, where="test"))
    return settings


def opening(federation: Path, frozen: FrozenStudy | None = None, **changes: Any) -> OpenStudy:
    return OpenStudy(name="first", config=config_from_dict(config(**changes), where="test"),
                     study_folder=federation / "studies" / "first", payloads_folder=federation / "payloads",
                     num_silos=2, frozen=frozen)


def opened(federation: Path, frozen: FrozenStudy | None = None, **changes: Any) -> tuple[Operations, OpenedStudy]:
    operations, request = Operations(lambda fraction, text: None), opening(federation, frozen, **changes)
    return operations, answered(operations, request)


def test_the_code_of_a_plug_in_is_frozen_with_the_study_and_told_as_it_is_now(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(federation)[1].frozen.code == opened(federation)[1].code == "", "built in"
    monkeypatch.setattr(operations_module, "code_stamp", lambda method, network: "ab" * 32)
    _, first = opened(federation)
    assert (first.frozen.code, first.code) == ("ab" * 32, "ab" * 32)
    monkeypatch.setattr(operations_module, "code_stamp", lambda method, network: "cd" * 32)
    _, again = opened(federation, first.frozen)
    assert (again.frozen.code, again.code) == ("ab" * 32, "cd" * 32)

    def changed(method: str, network: str) -> str:
        raise UsageError("gossip has changed since this process imported it: what runs here is the code of before.")

    monkeypatch.setattr(operations_module, "code_stamp", changed)
    with pytest.raises(ComputeFailed, match="gossip has changed") as caught:
        opened(federation, first.frozen)
    assert unusable_after(caught.value), "another process tries it, with the code that is installed now"


def test_what_a_format_plug_in_sets_in_torch_ends_with_the_reading(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = images_module.read_images

    def reading(*args: Any, **by_name: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        return read(*args, **by_name)

    monkeypatch.setattr(images_module, "read_images", reading)
    try:
        opened(federation)
        assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, 1)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)


@pytest.mark.parametrize("measure", ["", "accuracy", "recall:digit-3"])
def test_strategies_know_what_the_study_is_about(federation: Path, measure: str) -> None:
    operations, study = opened(federation, study={"measure": measure})
    environment = operations._opened().environment
    assert environment.measure == study.frozen.study_measure
    assert str(environment.measure) == (measure or "accuracy")


def answered(operations: Operations, request: Request[AnswerT]) -> AnswerT:
    """The answer as it arrives in the other process."""
    found = run_operation(handlers_of(operations), request.operation(), as_json(request))
    return answer_from_json(request, as_json(found))


def prepare(operations: Operations) -> Prepared:
    return operations.prepare(Prepare())


def baseline(operations: Operations, epochs: int) -> LabelledOnlyResult | None:
    found = operations.baseline(Baseline(epochs=epochs, slice_seconds=1e9))
    assert found.done
    return found.result


def tasks_of(operations: Operations, state: str, round: int, silos: dict[str, str | None], *,
             held: dict[str, tuple[str, ...]] | None = None) -> WrittenTasks:
    """The tasks of a phase, for silos that hold nothing unless `held` says so."""
    return operations.tasks(Tasks(state=state, round=round, phase=PHASE, silos=silos, held=held or {},
                                  link_bytes_per_second=0.0))


def check(operations: Operations, state: str, path: Path, metrics: dict[str, float]) -> CheckedUpdate:
    """An update of silo a in round 1."""
    declared = SpooledUpdate(header=UpdateHeader("a", 10, metrics), path=path, kept=None)
    return operations.check_update(CheckUpdate(study="first", state=state, round=1, phase=PHASE, update=declared))


def aggregate(operations: Operations, state: str, round: int, updates: Sequence[SpooledUpdate]) -> Aggregated:
    return operations.aggregate(Aggregate(state=state, round=round, phase=PHASE, updates=tuple(updates)))


def received(federation: Path, task: WrittenTask) -> dict[str, TensorGroup]:
    """The groups of a task as a silo decodes them."""
    store = PayloadStore(federation / "payloads")
    groups: dict[str, TensorGroup] = {}
    for ref in task.payloads:
        assert store.verify(ref.digest).stat().st_size == ref.size_bytes
        groups |= decode_groups(store.path(ref.digest), require_finite=True)
    return groups


def spool(federation: Path, model: TensorGroup, *, shift: float) -> Path:
    """An update on its coordinator's disk: every weight is `shift` larger than what was received."""
    store = PayloadStore(federation / "spool")
    delta = {name: torch.full_like(tensor, shift) for name, tensor in model.tensors.items()}
    ref = encode_groups(store, {"model": TensorGroup(delta, Meaning.DIFFERENCE, tensors.digest(model.tensors))})
    return store.path(ref.digest)


def update(silo: str, path: Path, *, kept: str | None = None) -> SpooledUpdate:
    return SpooledUpdate(header=UpdateHeader(silo, 10), path=path, kept=kept)


# What is frozen -------------------------------------------------------------------------------------------------------


def test_opening_freezes_class_order_image_form_and_sizes(federation: Path) -> None:
    _, answer = opened(federation)
    frozen = answer.frozen
    assert frozen.classes == tuple(f"digit-{label}" for label in range(10))
    assert (frozen.num_labelled, frozen.num_validation, frozen.num_test) == (10 * PER_CLASS, 0, NUM_TEST)
    pixels = np.stack([np.asarray(Image.open(path)) for path in (federation / "studies").rglob("*.png")]) / 255
    assert frozen.image.mean == pytest.approx((pixels.mean(),), abs=1e-12)
    assert frozen.image.std == pytest.approx((pixels.std(),), abs=1e-12)
    # 3x3 convolutions 1-32-64-64 without bias, gamma and beta of each, a linear layer 64-10
    convolutions = 9 * (1 * 32 + 32 * 64 + 64 * 64) + 2 * (32 + 64 + 64)
    assert frozen.num_parameters == convolutions + 64 * 10 + 10
    assert frozen.dense_bytes == 4 * frozen.num_parameters
    assert answer.numerics.threads == 1
    assert answer.numerics.deterministic is True


def test_a_study_that_asks_for_no_number_of_threads_has_the_one_that_is_measured(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[TrainingStep] = []

    def measured(step: TrainingStep, *, processors: int) -> int:
        steps.append(step)
        return 2

    before = torch.get_num_threads()
    monkeypatch.setattr(operations_module, "fastest_threads", measured)
    try:
        _, answer = opened(federation, numerics={"threads": 0})
        assert answer.numerics.threads == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    (step,) = steps
    assert (step.image, step.num_classes, step.batch) == (answer.frozen.image, 10, 20)
    _, answer = opened(federation)
    assert (answer.numerics.threads, len(steps)) == (1, 1), "a number that is asked for"


def test_a_study_opened_again_keeps_what_was_frozen_and_is_refused_with_other_images(federation: Path) -> None:
    _, first = opened(federation)
    _, again = opened(federation, first.frozen)
    assert again.frozen == first.frozen
    labelled = federation / "studies" / "first" / "labelled"
    before = first.frozen.num_labelled
    shutil.rmtree(labelled / "digit-3")
    with pytest.raises(BadData, match=f"started: {before} labelled images then, [0-9]+ now"):
        opened(federation, first.frozen)


def test_an_unknown_class_folder_on_opening_again_is_refused(federation: Path) -> None:
    _, first = opened(federation)
    extra = federation / "studies" / "first" / "labelled" / "a-new-class"
    shutil.copytree(extra.parent / "digit-0", extra)
    with pytest.raises(BadData, match="a-new-class"):
        opened(federation, first.frozen)


@pytest.mark.parametrize(("data", "text"), [
    ({"classes": [f"digit-{label}" for label in reversed(range(10))]}, "classes"),
    ({"image": {"size": 9, "channels": 1}}, "size"),
    ({"image": {"size": 8, "channels": 1, "mean": [0.25]}}, "mean")])
def test_settings_that_contradict_what_is_frozen_are_refused(federation: Path, data: dict[str, Any], text: str) -> None:
    _, first = opened(federation)
    with pytest.raises(BadConfiguration, match=text):
        opened(federation, first.frozen, data=data)


def test_the_order_of_classes_in_the_study_file_is_the_order_of_labels(federation: Path) -> None:
    names = [f"digit-{label}" for label in (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)]
    _, answer = opened(federation, data={"classes": names, "test": ""})
    assert answer.frozen.classes == tuple(names)


def test_a_study_without_labels_at_the_coordinator_is_refused(federation: Path) -> None:
    with pytest.raises(BadData, match="label"):
        opened(federation, data={"labelled": "", "test": "", "classes": ["a", "b"],
                                 "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}})
    with pytest.raises(BadConfiguration, match="measured"):
        opened(federation, data={"labelled": "", "test": "", "classes": ["a", "b"]})


AT_SILO = {"name": "fedavg", "scenario": "labels-at-silo", "lr": 0.05}
DIGITS = [f"digit-{label}" for label in range(10)]


def test_with_labels_at_silos_a_study_opens_without_labelled_images(federation: Path) -> None:
    image = {"size": 8, "channels": 1, "mean": [0.3], "std": [0.4]}
    operations, answer = opened(federation, method=AT_SILO, data={
        "labelled": "", "test": "", "classes": DIGITS, "image": image})
    frozen = answer.frozen
    assert (frozen.num_labelled, frozen.num_validation, frozen.num_test) == (0, 0, 0)
    assert frozen.classes == tuple(DIGITS)
    assert prepare(operations).metrics.keys() & {"accuracy", "labelled_accuracy"} == set()
    assert baseline(operations, 1) is None


def test_mean_and_deviation_can_be_measured_on_validation_images_and_are_frozen(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"method": AT_SILO, "data": {
        "labelled": "", "validation": "labelled", "classes": DIGITS,
        "image": {"size": 8, "channels": 1, "mean": "validation", "std": "validation"}}}
    _, answer = opened(federation, **changes)
    _, with_labels = opened(federation)
    for key in ("mean", "std"):
        assert getattr(answer.frozen.image, key) == getattr(with_labels.frozen.image, key), "the same images"
    monkeypatch.setattr("semisilo.coordinator.studies.images.measure_form", lambda images: pytest.fail("measured"))
    _, again = opened(federation, answer.frozen, **changes)
    assert again.frozen == answer.frozen


def test_a_test_set_at_the_coordinator_is_measured_although_there_are_no_labels_to_learn_from(federation: Path) -> None:
    operations, _ = opened(federation, model={"name": "small_cnn", "normalisation": "none"}, method=AT_SILO, data={
        "labelled": "", "classes": [str(label) for label in range(10)],
        "image": {"size": 8, "channels": 1, "mean": [0.3], "std": [0.4]}})
    assert "accuracy" in prepare(operations).metrics
    assert baseline(operations, 1) is None


def test_a_model_that_does_not_fit_the_images_is_refused_before_the_study_starts(federation: Path) -> None:
    with pytest.raises(BadConfiguration, match="8x8"):
        opened(federation, model={"name": "resnet9"})


def test_the_operators_own_study_file_permits_the_factory_that_it_names(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = federation / "code"
    package.mkdir()
    (package / "own_networks.py").write_text(
        "from torch import nn\n\n\ndef linear(*, num_classes, channels, size):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, num_classes))\n")
    monkeypatch.syspath_prepend(str(package))
    _, answer = opened(federation, model={"name": "own_networks:linear"})
    assert answer.frozen.num_parameters == 64 * 10 + 10
    with pytest.raises(NotPermitted):  # the permission is for that name, not for any
        build_model(ModelSettings(name="own_networks:linear", classes=("a", "b")), channels=1, size=8)


def test_an_operation_without_a_study_says_so() -> None:
    with pytest.raises(ComputeFailed, match="No study is open"):
        prepare(Operations(lambda fraction, text: None))


def test_what_silos_bring_of_a_study_that_is_not_open_waits_and_is_held_against_no_other(
        federation: Path) -> None:
    """After a restart another study may be open, whose method and classes say nothing of the update. To be tried again,
    and not INVALID_ARGUMENT, which would end the task of a silo that did nothing wrong."""
    (federation / "update").write_bytes(b"is not looked at")
    asked = CheckUpdate(study="second", state="ab", round=1, phase=PHASE, update=SpooledUpdate(
        header=UpdateHeader("a", 10, {"unknown": 1.0}), path=federation / "update", kept=None))
    wanted = Tasks(study="second", state="ab", round=1, phase=PHASE, silos={"a": None}, held={},
                   link_bytes_per_second=0.0)
    for operations in (Operations(lambda fraction, text: None), opened(federation)[0]):
        for request in (asked, replace(asked, masked={}), wanted):
            with pytest.raises(StudyNotOpen, match="'second'") as caught:
                run_operation(handlers_of(operations), request.operation(), as_json(request))
            assert (caught.value.retry, caught.value.status) == (True, "UNAVAILABLE")
    with pytest.raises(BadPayload):
        operations.check_update(replace(asked, study="first"))


# A round --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def round_one(federation: Path) -> tuple[Operations, str, WrittenTasks]:
    """A study before round 1: operations, digest of the state, answer of `tasks` for two silos. No training at the
    coordinator, so that the numbers can be derived."""
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    state = prepare(operations).state
    return operations, state, tasks_of(operations, state, 1, {"b": None, "a": None})


def test_equal_groups_are_one_payload_and_are_encoded_once(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    def counting(store: PayloadStore, groups: dict[str, TensorGroup], **options: Any) -> PayloadRef:
        encoded.extend(groups)
        return encode_groups(store, groups, **options)

    monkeypatch.setattr(downlink, "encode_groups", counting)
    operations, _ = opened(federation)
    state = prepare(operations).state
    answer = tasks_of(operations, state, 1, {f"silo-{number}": None for number in range(30)})
    assert encoded == ["model", "batch_norm"]
    payloads = [task.payloads for task in answer.tasks.values()]
    assert all(each == payloads[0] for each in payloads)
    assert [payload.groups for payload in payloads[0]] == [("model",), ("batch_norm",)]
    assert list(answer.tasks) == sorted(answer.tasks)


def test_a_task_carries_all_settings_with_those_of_the_round(round_one: tuple[Operations, str, WrittenTasks]) -> None:
    _, _, answer = round_one
    settings = answer.tasks["a"].settings
    assert settings["round_lr"] == 0.05
    assert settings["labelled_batch"] == 20
    assert settings["confidence_threshold"] == 0.95
    assert set(answer.expects) == {"model"}
    json.dumps(to_dict(answer), allow_nan=False)


def test_the_average_of_differences_is_added_to_what_was_sent(
        federation: Path, round_one: tuple[Operations, str, WrittenTasks]) -> None:
    """Server momentum starts with the pseudo-gradient itself, so round 1 gives w + (0.5 + 0.25) / 2 exactly."""
    operations, state, answer = round_one
    model = received(federation, answer.tasks["a"])["model"]
    paths = [spool(federation, model, shift=shift) for shift in (0.5, 0.25)]
    for path in paths:
        checked = check(operations, state, path, {"loss": 0.5})
        assert checked.held == ()
        assert sum(each.bytes for each in checked.encoded) == path.stat().st_size
    folded = aggregate(operations, state, 1, [update("a", paths[0]), update("b", paths[1])])
    assert folded.kept == {"a": None, "b": None}
    after = received(federation, tasks_of(operations, folded.state, 2, {"a": None}).tasks["a"])["model"]
    for name, tensor in after.tensors.items():
        assert torch.allclose(tensor, model.tensors[name] + 0.375, rtol=0, atol=1e-6)


def test_a_round_without_updates_leaves_the_model(
        federation: Path, round_one: tuple[Operations, str, WrittenTasks]) -> None:
    operations, state, answer = round_one
    folded = aggregate(operations, state, 1, [])
    assert folded.kept == {}
    after = tasks_of(operations, folded.state, 2, {"a": None}).tasks["a"]
    assert after.payloads[0] == answer.tasks["a"].payloads[0]


def test_a_silo_is_sent_only_what_it_does_not_hold(
        federation: Path, round_one: tuple[Operations, str, WrittenTasks]) -> None:
    operations, state, answer = round_one
    model = received(federation, answer.tasks["a"])["model"]
    first = {payload.groups[0]: payload.tensors for payload in answer.tasks["a"].payloads}
    assert first["model"] == tensors.digest(model.tensors)
    again = tasks_of(operations, state, 1, {"a": None, "b": None}, held={"a": tuple(first.values())}).tasks
    assert [(each.digest, each.size_bytes, each.tensors) for each in again["a"].payloads] == [
        ("", 0, first["model"]), ("", 0, first["batch_norm"])]
    assert again["b"].payloads == answer.tasks["b"].payloads
    folded = aggregate(operations, state, 1, [update("a", spool(federation, model, shift=2.0**-12))]).state
    coded, whole = (tasks_of(operations, folded, 2, {"a": None}, held=held).tasks["a"].payloads[0]
                    for held in ({"a": tuple(first.values())}, {"b": tuple(first.values())}))
    assert (coded.reference, whole.reference) == (first["model"], "")
    assert coded.tensors == whole.tensors != first["model"]
    assert coded.size_bytes < 0.9 * whole.size_bytes
    store = PayloadStore(federation / "payloads")
    found = [decode_groups(store.path(each.digest), require_finite=True, references=TensorCache(store).find)["model"]
             for each in (coded, whole)]
    assert [tensors.digest(group.tensors) for group in found] == [whole.tensors] * 2


def test_a_restart_before_the_fold_gives_the_same_state_bit_for_bit(federation: Path) -> None:
    operations, first = opened(federation)
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    updates = [update("a", spool(federation, model, shift=0.001)), update("b", spool(federation, model, shift=0.002))]
    undisturbed = aggregate(operations, state, 1, updates).state
    again, _ = opened(federation, first.frozen)
    assert aggregate(again, state, 1, updates).state == undisturbed
    assert prepare(again).state == state
    assert undisturbed != state


@pytest.mark.slow
@pytest.mark.parametrize("robust", [
    pytest.param({}, id="the bound"), pytest.param({"rule": "trimmed_mean", "byzantine_silos": 1}, id="trimmed_mean"),
    pytest.param({"rule": "judge"}, id="judge")])
def test_under_a_rule_a_restart_before_the_fold_gives_the_same_bits(
        federation: Path, robust: dict[str, Any]) -> None:
    """The process that has checked the updates knows their norms, the one after a restart reads them again."""
    settings = config()
    settings["robust"] = robust
    request = replace(opening(federation), config=config_from_dict(settings, where="test"))
    states = []
    for restarted in (False, True):
        operations = Operations(lambda fraction, text: None)
        answered(operations, request)
        state = prepare(operations).state
        task = tasks_of(operations, state, 1, {"a": None}).tasks["a"]
        model = received(federation, task)["model"]
        paths = [spool(federation, model, shift=shift) for shift in (1e-4, 1.1e-4, 1.2e-4, 100.0)]
        if not restarted:
            for path in paths:
                check(operations, state, path, {})
        updates = [update(silo, path) for silo, path in zip("abcd", paths, strict=True)]
        states.append(aggregate(operations, state, 1, updates))
    assert states[0].state == states[1].state
    assert states[0].metrics == states[1].metrics
    longer_than_allowed = 2 if robust.get("rule") == "judge" else 1  # the judge allows none above the median
    assert states[0].metrics["updates_cut"] == longer_than_allowed


def test_updates_that_are_not_in_silo_order_are_our_own_mistake(
        federation: Path, round_one: tuple[Operations, str, WrittenTasks]) -> None:
    operations, state, answer = round_one
    path = spool(federation, received(federation, answer.tasks["a"])["model"], shift=0.5)
    for names in (["b", "a"], ["a", "a"]):
        with pytest.raises(AssertionError, match="silo order"):
            aggregate(operations, state, 1, [update(name, path) for name in names])


def hostile(model: TensorGroup) -> dict[str, tuple[type[Exception], dict[str, TensorGroup]]]:
    """Updates that must be refused, with the error that says why."""
    base = tensors.digest(model.tensors)
    good = {name: torch.zeros_like(tensor) for name, tensor in model.tensors.items()}
    first = next(iter(good))

    def group(changed: dict[str, torch.Tensor], meaning: Meaning = Meaning.DIFFERENCE, base: str = base) -> TensorGroup:
        return TensorGroup(changed, meaning, base)

    reordered = dict(reversed(list(good.items())))
    infinite = {**good, first: torch.full_like(good[first], float("inf"))}
    return {
        "wrong base": (WrongBase, {"model": group(good, base="0" * 64)}),
        "values instead of a difference": (BadPayload, {"model": group(good, Meaning.VALUES, "")}),
        "other shape": (LayoutMismatch, {"model": group({**good, first: torch.zeros(3)})}),
        "other type": (LayoutMismatch, {"model": group({**good, first: good[first].double()})}),
        "a tensor is missing": (LayoutMismatch, {"model": group({n: t for n, t in good.items() if n != first})}),
        "another order": (LayoutMismatch, {"model": group(reordered)}),
        "infinite": (BadPayload, {"model": group(infinite)}),
        "no such group": (BadPayload, {"model": group(good), "sigma": group(good)}),
        "larger than the model": (LayoutMismatch, {"model": group({**good, "more": torch.zeros(10**6)})}),
    }


@pytest.mark.parametrize("case", [
    "wrong base", "values instead of a difference", "other shape", "other type", "a tensor is missing", "another order",
    "infinite", "no such group", "larger than the model"])
def test_an_update_that_is_not_what_was_asked_for_is_refused(
        federation: Path, round_one: tuple[Operations, str, WrittenTasks], case: str) -> None:
    operations, state, answer = round_one
    error, groups = hostile(received(federation, answer.tasks["a"])["model"])[case]
    ref = encode_groups(PayloadStore(federation / "spool"), groups)
    path = PayloadStore(federation / "spool").path(ref.digest)
    with pytest.raises(error):
        check(operations, state, path, {})


def test_undeclared_and_infinite_metrics_and_what_is_no_payload_are_refused(
        federation: Path, round_one: tuple[Operations, str, WrittenTasks]) -> None:
    operations, state, answer = round_one
    path = spool(federation, received(federation, answer.tasks["a"])["model"], shift=0.5)
    with pytest.raises(BadPayload, match="patients"):
        check(operations, state, path, {"patients": 12.0})
    with pytest.raises(BadPayload, match="'loss' is not a finite number"):
        check(operations, state, path, {"loss": float("nan")})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadPayload):
        check(operations, state, path, {})


def test_damaged_files_are_named_and_never_folded(
        federation: Path, round_one: tuple[Operations, str, WrittenTasks]) -> None:
    operations, state, answer = round_one
    path = spool(federation, received(federation, answer.tasks["a"])["model"], shift=0.5)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageDamaged, match="silo a"):
        aggregate(operations, state, 1, [update("a", path)])
    path.unlink()
    with pytest.raises(StorageDamaged, match="missing"):
        aggregate(operations, state, 1, [update("a", path)])
    file = federation / "studies" / "first" / "states" / f"{state}.safetensors"
    other, _ = opened(federation)
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(StorageDamaged, match="damaged"):
        other.evaluate(Evaluate(state=state, round=0))
    file.unlink()
    with pytest.raises(StorageDamaged, match="missing"):
        other.evaluate(Evaluate(state=state, round=0))


@dataclass(frozen=True)
class Shadow:
    """What the strategy below keeps for a silo."""

    rounds: int
    last: dict[str, torch.Tensor]


class Shadowing(SemiFLStrategy):
    """SemiFL that also keeps every silo's last difference, and counts."""

    SiloState = Shadow

    def fold(self, state: SemiFLState, tally: AverageTally, header: UpdateHeader, groups: Mapping[str, TensorGroup],
             kept: Any) -> tuple[AverageTally, Any]:
        tally, _ = super().fold(state, tally, header, groups, kept)
        return tally, Shadow(rounds=1 if kept is None else kept.rounds + 1, last=dict(groups["model"].tensors))


def test_what_a_strategy_keeps_for_a_silo_is_a_file_that_comes_back_at_its_next_fold(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_module, "load_strategy", lambda name: Shadowing)
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    state = prepare(operations).state
    kept: dict[str, str | None] = {"a": None, "b": None}
    for number, silos in ((1, ("a", "b")), (2, ("a",))):
        task = tasks_of(operations, state, number, {silo: kept[silo] for silo in silos}).tasks["a"]
        path = spool(federation, received(federation, task)["model"], shift=0.5 * number)
        folded = aggregate(operations, state, number, [update(silo, path, kept=kept[silo]) for silo in silos])
        state, kept = folded.state, {**kept, **folded.kept}
    files = StateFiles(federation / "studies" / "first" / "states")
    assert kept["a"] is not None
    assert kept["b"] is not None
    first, second = files.load(kept["b"], Shadow), files.load(kept["a"], Shadow)
    assert (first.rounds, second.rounds) == (1, 2)
    assert float(next(iter(first.last.values())).mean()) == 0.5
    assert float(next(iter(second.last.values())).mean()) == 1.0


# Results --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_exported_model_has_the_measured_accuracy_and_equal_states_give_equal_files(federation: Path) -> None:
    operations, first = opened(federation, method={"coordinator_epochs": 20})
    answer = prepare(operations)
    metrics = answer.metrics
    paths = [federation / "one.safetensors", federation / "two.safetensors"]
    for path in paths:
        operations.export(Export(state=answer.state, path=path))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with safe_open(str(paths[0]), framework="pt") as file:
        facts = json.loads(file.metadata()["semisilo"])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert tuple(facts["model"]["classes"]) == first.frozen.classes
    form = from_dict(ImageForm, facts["image"])
    model = build_model(from_dict(ModelSettings, facts["model"]), channels=1, size=form.size)
    statistics = {name: tensor for name, tensor in weights.items() if name.endswith((".mean", ".var"))}
    batch_norm.load(model, statistics)
    tensors.load_into(model, {name: tensor for name, tensor in weights.items() if name not in statistics})
    arrays = np.load(federation / "studies" / "first" / "test.npz")
    images_N1HW = (torch.from_numpy(arrays["test_images"])[:, None].float() / 255 - form.mean[0]) / form.std[0]
    with torch.no_grad():
        predicted_N = model.eval()(images_N1HW).argmax(dim=1).numpy()
    right_N = predicted_N == arrays["test_labels"].ravel()
    assert metrics["accuracy"] == pytest.approx(right_N.mean(), abs=1e-12)
    assert metrics["accuracy"] > 0.3, "the model has learnt something, or equal numbers would prove little"
    for label in range(10):
        recall = right_N[arrays["test_labels"].ravel() == label].mean()
        assert metrics[f"recall/digit-{label}"] == pytest.approx(recall, abs=1e-12)
    assert metrics["balanced_accuracy"] == pytest.approx(
        np.mean([metrics[f"recall/digit-{label}"] for label in range(10)]), abs=1e-12)


def test_without_a_test_set_there_is_no_baseline_and_only_labelled_images_are_measured(federation: Path) -> None:
    operations, _ = opened(federation, data={"test": ""})
    assert prepare(operations).metrics.keys() == {"labelled_accuracy", "fine_tune_loss"}
    assert baseline(operations, 1) is None


def test_a_validation_set_is_measured_beside_the_test_set(federation: Path) -> None:
    """The same images, turned: with the network of round 0 they have other numbers, of the same names."""
    folder = federation / "studies" / "first"
    with np.load(folder / "test.npz") as arrays:
        np.savez(folder / "turned.npz", test_images=arrays["test_images"][:, ::-1], test_labels=arrays["test_labels"])
    operations, opening = opened(federation, data={"validation": "turned.npz#test"})
    metrics = prepare(operations).metrics
    own = {"labelled_accuracy", "fine_tune_loss", "selection_score", "selection_error"}
    on_test = {name for name in metrics if not name.startswith("validation_")} - own
    assert {"auroc", "calibration_error", "balanced_accuracy"} < on_test
    assert {name.removeprefix("validation_") for name in metrics if name.startswith("validation_")} == on_test
    assert opening.frozen.measure == "accuracy"
    assert metrics["selection_score"] == metrics["validation_accuracy"]
    again = opened(federation, study={"measure": "auroc"}, data={"validation": "turned.npz#test"})[0]
    found = prepare(again).metrics
    assert found["selection_score"] == found["validation_auroc"] != found["validation_accuracy"]


@pytest.mark.slow
def test_the_baseline_is_measured_like_every_round(federation: Path) -> None:
    operations, _ = opened(federation)
    found = baseline(operations, 3)
    assert found is not None
    assert found.epochs == 3
    more = {"labelled_accuracy", "fine_tune_loss"}  # of the strategy's diagnostics
    crossfit = {name for name in found.metrics if name.startswith("crossfit_")}
    assert crossfit == {f"crossfit_{name}{end}" for name in ("accuracy", "balanced_accuracy") for end in ("", "_error")}
    assert (found.metrics.keys() - crossfit) | more == prepare(operations).metrics.keys()
    json.dumps(to_dict(found), allow_nan=False)


def test_the_coordinators_images_on_the_disk_give_the_same_bits_as_in_memory(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operations, first = opened(federation)
    expected = prepare(operations)
    monkeypatch.setattr(room, "free_bytes", lambda: 3300)  # of 40 images 2560 bytes; those of the .npz just fit
    mapped = Operations(lambda fraction, text: None)
    again = answered(mapped, dataclasses.replace(opening(federation), images_folder=federation / "images"))
    assert f" {federation.resolve()}/images/" in Path("/proc/self/maps").read_text()
    assert again == first
    assert prepare(mapped) == expected


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["paper", pytest.param("strong", marks=pytest.mark.slow)])
def test_the_baseline_in_slices_of_one_batch_by_processes_that_die_has_the_bits_of_one_run(
        federation: Path, monkeypatch: pytest.MonkeyPatch, recipe: BaselineRecipe) -> None:
    monkeypatch.setattr(start_work, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(start_work, "_SAVING_SHARE", 1e9)
    operations, first = opened(federation)
    epochs = 3 if recipe == "paper" else 12
    expected = operations.baseline(Baseline(recipe=recipe, epochs=epochs, slice_seconds=1e9))
    model = federation / "studies" / "first" / LABELS_ALONE_MODEL
    assert expected.result is not None
    assert hashlib.sha256(model.read_bytes()).hexdigest() == expected.result.model_digest
    file = federation / "studies" / "first" / LABELS_ALONE_FILE
    assert not file.exists()
    operations, _ = opened(federation, first.frozen)
    slices, begun = 1, False
    while not (found := operations.baseline(Baseline(recipe=recipe, epochs=epochs, slice_seconds=0.0))).done:
        assert found.progress is not None
        assert file.exists()
        slices += 1
        if slices % 4 == 0:
            operations, _ = opened(federation, first.frozen)
            begun = begun or found.progress.epochs > 0
    assert found == expected
    assert slices > 10
    assert begun, "a process died after an epoch"
    opened(federation)  # as a study that was queued anew before its first round
    assert not file.exists()
    assert not model.exists()


@pytest.mark.slow
def test_the_baseline_of_a_process_that_is_killed_in_the_middle_of_a_slice_has_the_bits_of_one_run(
        federation: Path) -> None:
    async def scenario(first: FrozenStudy) -> BaselineFound:
        compute = ProcessCompute("semisilo.coordinator.compute.operations:Operations")
        try:
            await compute.call(opening(federation, first))
            found = await compute.call(Baseline(epochs=300, slice_seconds=0.2))
            working = asyncio.Event()
            call = asyncio.ensure_future(compute.call(Baseline(epochs=300, slice_seconds=1e9),
                                                      on_progress=lambda fraction, text: working.set()))
            await working.wait()
            assert compute.pid is not None
            os.kill(compute.pid, signal.SIGKILL)
            with pytest.raises(ComputeFailed):
                await call
            while not found.done:
                found = await compute.call(Baseline(epochs=300, slice_seconds=0.2))
            return found
        finally:
            await compute.close()

    operations, first = opened(federation)
    assert asyncio.run(scenario(first.frozen)) == operations.baseline(Baseline(epochs=300, slice_seconds=1e9))


@pytest.mark.slow
def test_a_warm_up_whose_process_dies_again_and_again_goes_on_where_it_was_and_has_the_bits_of_one_run(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = {"name": "self_training", "warm_up_steps": 12}
    fresh = config()
    fresh["method"] = to_dict(config_from_dict({**fresh, "method": method}, where="test").method)
    begin = dataclasses.replace(opening(federation), config=config_from_dict(fresh, where="test"))
    undisturbed = Operations(lambda fraction, text: None)
    first = answered(undisturbed, begin)
    expected = prepare(undisturbed)
    file = federation / "studies" / "first" / START_FILE
    assert not file.exists()
    monkeypatch.setattr(start_work, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(start_work, "_SAVING_SHARE", 1e9)
    told: list[float] = []

    class Killed(Exception):
        pass

    def dies(fraction: float, text: str) -> None:
        if "warm-up" in text:
            told.append(fraction)
            if len(told) % 3 == 0:  # two steps of every process are kept, the third one is lost
                raise Killed

    processes, found = 0, None
    while found is None and processes < 20:
        operations, processes = Operations(dies), processes + 1
        answered(operations, dataclasses.replace(begin, frozen=first.frozen))
        try:
            found = prepare(operations)
        except Killed:
            assert file.exists()
    assert found is not None
    assert (found, processes) == (expected, 6)
    assert not file.exists()
    file.write_bytes(b"what a kill has left before the first task")
    operations.phases(Phases(state=found.state, round=1, silos=1))
    assert not file.exists()


def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels alone take 24 steps in the place of a thousand and more."""
    monkeypatch.setattr(averaged_training, "_MOST_STEPS", 24)
    monkeypatch.setattr(averaged_training, "_MOST_EPOCHS", 0)


def of_self_training(federation: Path, frozen: FrozenStudy | None = None, *, method: dict[str, Any] | None = None,
                     **changes: Any) -> tuple[Operations, OpenedStudy]:
    """With a warm-up that is labels alone, but for what `changes` say."""
    tables = config(**changes)
    tables["method"] = {"name": "self_training", **(method or {})}
    operations = Operations(lambda fraction, text: None)
    request = dataclasses.replace(opening(federation, frozen), config=config_from_dict(tables, where="test"))
    return operations, answered(operations, request)


def trained_alone(operations: Operations) -> LabelledOnlyResult:
    found = operations.baseline(Baseline(slice_seconds=1e9))
    assert found.result is not None
    return found.result


def from_labels_alone(operations: Operations, alone: LabelledOnlyResult) -> Prepared:
    return answered(operations, Prepare(labels_alone=alone.model_digest, loss=alone.loss))


@pytest.mark.slow
@pytest.mark.parametrize("data", [{}, {"test": "", "validation": "test.npz#test"}], ids=["test", "validation"])
def test_round_0_of_self_training_is_labels_alone_bit_for_bit(
        federation: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any]) -> None:
    few_steps(monkeypatch)
    operations, first = of_self_training(federation, data=data)
    alone = trained_alone(operations)
    assert (first.round_0_steps, alone.steps) == (24, 24)
    assert alone.loss > 0
    found = from_labels_alone(operations, alone)
    state = operations._load(found.state)
    model = load_file(federation / "studies" / "first" / LABELS_ALONE_MODEL)
    parameters = {name.removeprefix("parameters/"): tensor for name, tensor in model.items()
                  if name.startswith("parameters/")}
    assert state.w.keys() == parameters.keys()
    assert len(parameters) > 4
    assert all(torch.equal(state.w[name], tensor) for name, tensor in parameters.items())
    assert found.metrics["labelled_loss"] == alone.loss
    assert state.batch_norm
    key = "validation_accuracy" if data else "accuracy"
    assert found.metrics[key] == pytest.approx(alone.metrics[key], abs=0.05), "statistics alone may differ"
    assert from_labels_alone(of_self_training(federation, first.frozen, data=data)[0], alone) == found
    (federation / "studies" / "first" / LABELS_ALONE_MODEL).write_bytes(b"damaged")
    with pytest.raises(StorageDamaged, match="is not the file that the ledger names"):
        operations.prepare(Prepare(labels_alone=alone.model_digest))


@pytest.mark.slow
def test_labels_alone_that_round_0_starts_from_have_the_same_bits_whenever_the_process_dies(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_steps(monkeypatch)
    operations, first = of_self_training(federation)
    alone = trained_alone(operations)
    expected = from_labels_alone(operations, alone)
    monkeypatch.setattr(start_work, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(start_work, "_SAVING_SHARE", 1e9)
    operations, again = of_self_training(federation, first.frozen)
    slices = 1
    while not (found := operations.baseline(Baseline(slice_seconds=0.0))).done:
        slices += 1
        if slices % 5 == 0:
            operations, again = of_self_training(federation, first.frozen)
            assert again.round_0_steps == 24
    assert slices > 40
    assert found.result == alone
    operations, _ = of_self_training(federation, first.frozen)
    assert from_labels_alone(operations, alone) == expected


@pytest.mark.slow
def test_labels_alone_whose_model_the_disk_has_no_room_for_are_not_trained_again(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All was lost that had been trained since it was last written down, which nothing was where the disk was full."""
    few_steps(monkeypatch)
    operations, first = of_self_training(federation)
    expected = trained_alone(operations)
    operations, _ = of_self_training(federation, first.frozen)
    begun, real = list[object](), operations._begun
    monkeypatch.setattr(operations, "_begun", lambda study, request: begun.append(study) or real(study, request))
    with monkeypatch.context() as full:
        def save(path: Path, content: Any) -> str:
            raise DiskFull(f"{path}: No space left on device.")

        full.setattr(checkpoint, "save", save)
        for _ in range(2):
            with pytest.raises(DiskFull):
                trained_alone(operations)
    assert trained_alone(operations) == expected
    assert len(begun) == 1
    assert operations._labels_alone is None, "no longer held in memory"


@pytest.mark.slow
@pytest.mark.parametrize(("method", "changes", "uneven", "starts"), [
    ({}, {}, False, True),
    ({}, {"study": {"measure": "accuracy"}}, False, True),
    ({"scenario": "labels-at-both"}, {}, False, True),
    ({"logit_adjustment": 0.0}, {}, False, True),  # nothing is adjusted
    ({}, {}, True, True),
    ({"logit_adjustment": 0.5}, {}, True, False),
    ({}, {"study": {"measure": "accuracy"}}, True, False),
    ({"logit_adjustment": 0.0}, {"study": {"measure": "accuracy"}}, True, True),
    ({"warm_up_steps": 1000}, {}, False, False),
    ({}, {"study": {"labelled_only_baseline": False}}, False, False),
    ({}, {"study": {"baseline_recipe": "paper"}}, False, False),
    ({}, {"study": {"baseline_epochs": 800}}, False, False),
    ({}, {"study": {"baseline_budget": "1h"}}, False, False),
    ({}, {"data": {"test": ""}}, False, False),
    ({"name": "semifl"}, {}, False, False),
])
def test_self_training_starts_from_labels_alone_that_stand_for_its_prior_and_else_trains_its_own(
        federation: Path, method: dict[str, Any], changes: dict[str, Any], uneven: bool, starts: bool) -> None:
    if uneven:
        for file in sorted((federation / "studies" / "first" / "labelled" / "digit-0").iterdir())[1:]:
            file.unlink()
    _, found = of_self_training(federation, method=method, **changes)
    assert bool(found.round_0_steps) == starts


def test_a_warm_up_that_an_earlier_version_has_begun_goes_on(federation: Path) -> None:
    _, first = of_self_training(federation)
    assert first.round_0_steps > 0
    (federation / "studies" / "first" / START_FILE).write_bytes(b"where it stands")
    assert of_self_training(federation, first.frozen)[1].round_0_steps == 0
    assert of_self_training(federation)[1].round_0_steps == first.round_0_steps, "queued anew, it begins anew"


def test_work_on_the_baseline_that_cannot_be_written_down_goes_on_in_memory(
        federation: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(self: object) -> None:
        raise DiskFull("No space.")

    monkeypatch.setattr(start_work, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(operations_module.LabelsAlone, "save", full)
    operations, _ = opened(federation)
    slices = 1
    while not operations.baseline(Baseline(recipe="paper", epochs=2, slice_seconds=0.0)).done:
        slices += 1
    assert slices == 2 * (4 + 1 + 1) + 1  # in each epoch 4 batches, one of statistics and one of accuracy
    assert "No space" in caplog.text


@pytest.mark.slow
def test_a_process_gives_the_same_bits_as_this_one(federation: Path) -> None:
    async def scenario() -> tuple[OpenedStudy, Prepared]:
        compute = ProcessCompute("semisilo.coordinator.compute.operations:Operations")
        try:
            return await compute.call(opening(federation)), await compute.call(Prepare())
        finally:
            await compute.close()

    first, prepared = asyncio.run(scenario())
    operations, answer = opened(federation)
    assert answer == first
    assert prepare(operations) == prepared


@pytest.mark.slow
def test_a_process_gives_the_same_bits_as_this_one_and_survives_its_own_death(federation: Path) -> None:
    async def scenario() -> tuple[OpenedStudy, Prepared, Evaluated]:
        compute = ProcessCompute("semisilo.coordinator.compute.operations:Operations")
        try:
            first = await compute.call(opening(federation))
            prepared = await compute.call(Prepare())
            call = asyncio.ensure_future(compute.call(Baseline(epochs=100000, slice_seconds=1e9)))
            await asyncio.sleep(0.5)
            await compute.abort()
            with pytest.raises(ComputeFailed):
                await call
            # The fresh process opens the study by itself, with what was frozen.
            (federation / "studies" / "first" / "labelled" / "digit-0").rename(federation / "digit-0")
            with pytest.raises(BadData, match="not those with which the study was started"):
                await compute.call(Evaluate(state=prepared.state, round=0))
            (federation / "digit-0").rename(federation / "studies" / "first" / "labelled" / "digit-0")
            measured = await compute.call(Evaluate(state=prepared.state, round=0))
            return first, prepared, measured
        finally:
            await compute.close()

    first, prepared, measured = asyncio.run(scenario())
    assert measured.metrics == prepared.metrics
    operations, answer = opened(federation)
    assert answer == first
    assert prepare(operations) == prepared


# Which tasks bring the global model -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("normalisation", ["static_batch", "group"])
@pytest.mark.parametrize(("method", "brings"), [
    ({"name": "semifl", "coordinator_epochs": 1, "labelled_batch": 20, "lr": 0.05}, True),
    ({"name": "fedmix", "coordinator_epochs": 1, "labelled_batch": 20, "lr": 0.05}, True),
    ({"name": "fedavg", "coordinator_epochs": 1, "labelled_batch": 20, "lr": 0.05, "objective": "fixmatch",
      "scenario": "labels-at-coordinator"}, False),
    ({"name": "fedsgd", "scenario": "labels-at-coordinator"}, False),
    ({"name": "fedmatch", "coordinator_epochs": 1, "labelled_batch": 20, "lr": 0.05, "aggregation": "uniform",
      "num_helpers": 0}, False)],
    ids=lambda each: each["name"] if isinstance(each, dict) else "")
def test_a_task_says_that_it_brings_the_model_only_where_its_tensors_are_those_that_are_exported(
        federation: Path, method: dict[str, Any], brings: bool, normalisation: str) -> None:
    """FedAvg with labels at the coordinator sends a copy of the round's model that was trained on; FedSGD no statistics
    of batch normalisation; FedMatch its parts."""
    operations = Operations(lambda fraction, text: None)
    tables = {**config(), "method": method, "model": {"name": "small_cnn", "normalisation": normalisation}}
    brings = brings or (method["name"] == "fedsgd" and normalisation == "group")
    answered(operations, OpenStudy(
        name="first", config=config_from_dict(tables, where="test"), study_folder=federation / "studies" / "first",
        payloads_folder=federation / "payloads", num_silos=2, frozen=None))
    state = prepare(operations).state
    written = tasks_of(operations, state, 1, {"a": None}).tasks["a"]
    assert written.brings_model is brings
    if not brings:
        return
    path = federation / "model.safetensors"
    operations.export(Export(state=state, path=path))
    exported, payloads = load_file(path), PayloadStore(federation / "payloads")
    received: dict[str, torch.Tensor] = {}
    for payload in written.payloads:
        if payload.groups in (("model",), ("batch_norm",)):
            (group,) = decode_groups(payloads.path(payload.digest), require_finite=True).values()
            received |= group.tensors
    assert received.keys() == exported.keys()
    assert all(torch.equal(received[name], exported[name]) for name in received)


def test_a_model_is_written_of_a_study_whose_images_have_changed_since_without_what_they_would_choose(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study that was stopped while nobody served lost its model for one image that had been removed."""
    operations, study = opened(federation)
    state, path = prepare(operations).state, federation / "model.safetensors"
    operations.export(Export(state=state, path=path))
    before = load_file(path)
    assert len(read_facts(path).training_prior) == 10
    path.unlink()
    first = sorted((federation / "studies/first/labelled").rglob("*.png"))[0]
    first.unlink()
    with pytest.raises(BadData, match="40 labelled images then, 39 now"):
        opened(federation, study.frozen)
    again = Operations(lambda fraction, text: None)
    answered(again, replace(opening(federation, study.frozen), may_have_changed=True))
    chosen: list[bool] = []
    real = operations_module.export_model
    monkeypatch.setattr(operations_module, "export_model", lambda *arguments, with_thresholds: (
        chosen.append(with_thresholds), real(*arguments, with_thresholds=with_thresholds)))
    again.export(Export(state=state, path=path))
    assert chosen == [False]
    assert read_facts(path).training_prior == (), "of other labels it would be another one"
    after = load_file(path)
    assert all(torch.equal(before[name], after[name]) for name in before | after)


_AT_COORDINATOR = {each.method: each for each in STUDIES if each.scenario != "labels-at-silo"}


@pytest.mark.slow
@pytest.mark.parametrize(("study", "how"), [*((each, "gone") for each in _AT_COORDINATOR.values()),
                                            (_AT_COORDINATOR["semifl"], "broken")],
                         ids=[*_AT_COORDINATOR, "broken"])
def test_a_model_is_written_of_a_study_whose_images_cannot_be_read_any_more(federation: Path, study: MethodStudy,
                                                                           how: str) -> None:
    """A study that was stopped while nobody served lost its model for a share that was not mounted any more."""
    tables = {**config(), "method": {"name": study.method, "scenario": study.scenario, **study.settings}}
    tables["data"] = {**tables["data"], "validation_share": "25%"}
    first = replace(opening(federation), config=config_from_dict(tables, where="test"))
    operations = Operations(lambda fraction, text: None)
    frozen = answered(operations, first).frozen
    state, path = prepare(operations).state, federation / "model.safetensors"
    operations.export(Export(state=state, path=path))
    before = load_file(path)
    path.unlink()
    folder = federation / "studies/first"
    for each in (folder / "test.npz", *(folder / "labelled").rglob("*.png")):
        each.unlink() if how == "gone" else each.write_bytes(b"no picture")
    again = Operations(lambda fraction, text: None)
    with pytest.raises(BadData):
        answered(again, replace(first, frozen=frozen))
    assert answered(again, replace(first, frozen=frozen, may_have_changed=True)).frozen == frozen
    again.export(Export(state=state, path=path))
    after = load_file(path)
    assert all(torch.equal(before[name], after[name]) for name in before | after)
    assert read_facts(path).training_prior == ()
    found = again._opened().data
    assert found.unread == {"labelled", "validation", "test"} == found.changes.keys()
    assert "cannot be read" in found.changes["labelled"]
    assert found.images == CoordinatorData(), "nothing is measured on what stands in its place"


# No one silo in command -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", [{"coordinator_epochs": 1}, AT_SILO], ids=["semifl", "fedavg"])
def test_an_update_that_breaks_the_model_is_left_out_and_named(federation: Path, method: dict[str, Any]) -> None:
    """Every value of it is finite, and may arrive. SemiFL diverges when it trains from there; FedAvg's sum is finite as
    well, and the network overflows."""
    data = {} if method is not AT_SILO else {
        "labelled": "", "test": "", "classes": DIGITS,
        "image": {"size": 8, "channels": 1, "mean": [0.3], "std": [0.4]}}
    operations, _ = opened(federation, method=method, data=data, model={"name": "small_cnn", "normalisation": "none"},
                           robust={"norm_bound": 0.0})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    paths = {"a": spool(federation, model, shift=0.001), "b": spool(federation, model, shift=9e11),
             "c": spool(federation, model, shift=0.002)}
    check(operations, state, paths["b"], {})
    found = aggregate(operations, state, 1, [update(silo, path) for silo, path in paths.items()])
    assert list(found.left_out) == ["b"]
    assert list(found.kept) == ["a", "c"]
    assert "with this update the model is not finite" in found.left_out["b"]
    without = aggregate(operations, state, 1, [update(silo, paths[silo]) for silo in ("a", "c")])
    assert (found.state, without.left_out) == (without.state, {}), "a control"
    elements = sum(each.numel() for each in model.tensors.values())
    assert {silo: each.norm for silo, each in found.measures.items()} == pytest.approx(
        {"a": 0.001 * elements**0.5, "b": 9e11 * elements**0.5, "c": 0.002 * elements**0.5}, rel=1e-5)
    assert all(each.cosine == pytest.approx(1.0) for each in found.measures.values()), "all shift all weights alike"


def test_a_strategy_knows_how_much_one_silo_weighs_at_most(federation: Path) -> None:
    operations, _ = opened(federation, participation={"largest_weight": "30%"})
    assert operations._opened().environment.largest_weight == pytest.approx(0.3)


def test_steps_that_break_the_model_are_laid_to_the_silo_that_says_them(federation: Path) -> None:
    """Without a bound, all updates are stretched by 10^9 steps of one silo, whose own is the shortest. Four honest
    silos were refused."""
    operations, _ = opened(federation, method={"name": "fednova", "scenario": "labels-at-silo", "lr": 0.05}, data={
        "labelled": "", "test": "", "classes": DIGITS,
        "image": {"size": 8, "channels": 1, "mean": [0.3], "std": [0.4]}},
        model={"name": "small_cnn", "normalisation": "none"}, robust={"norm_bound": 0.0})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    updates = [SpooledUpdate(
        header=UpdateHeader(silo, 10, {"steps": 1e9 if silo == "c" else 50.0}), kept=None,
        path=spool(federation, model, shift=1e-4 if silo == "c" else 1e4)) for silo in "abcde"]
    found = aggregate(operations, state, 1, updates)
    assert list(found.left_out) == ["c"]
    assert "it says that it has taken 1000000000 steps, the median is 50" in found.left_out["c"]


def test_what_silos_that_take_no_part_any_more_have_left_in_a_sum_goes_with_them(federation: Path) -> None:
    operations, _ = opened(federation, method={"name": "scaffold", "scenario": "labels-at-silo", "lr": 0.05}, data={
        "labelled": "", "test": "", "classes": DIGITS,
        "image": {"size": 8, "channels": 1, "mean": [0.3], "std": [0.4]}},
        model={"name": "small_cnn", "normalisation": "none"})
    state, members = prepare(operations).state, {}
    for round, gone in ((1, ()), (2, ()), (3, ("c",))):
        model = received(federation, tasks_of(operations, state, round, {"a": None}).tasks["a"])["model"]
        updates = tuple(SpooledUpdate(header=UpdateHeader(silo, 10, {"steps": 5.0}), kept=None,
                                      path=spool(federation, model, shift=1e-4)) for silo in "abc"[:4 - round])
        state = operations.aggregate(Aggregate(state=state, round=round, phase=PHASE, updates=updates, gone=gone)).state
        members[round] = operations._load(state).members
    assert members == {1: {"a": 1, "b": 1, "c": 1}, 2: {"a": 2, "b": 2, "c": 1}, 3: {}}


def _fedmatch_paths(federation: Path, operations: Operations, state: str, moved: Mapping[str, Mapping[str, float]]
                    ) -> dict[str, Path]:
    """Updates of silos that add numbers to tensors of the psi that they were sent; "" stands for all others."""
    task = tasks_of(operations, state, 1, dict.fromkeys(moved)).tasks["a"]
    sent = received(federation, task)["psi"].tensors
    store = PayloadStore(federation / "spool")
    return {silo: store.path(encode_groups(store, {"psi": TensorGroup(
        {name: tensor + add.get(name, add.get("", 0.0)) for name, tensor in sent.items()}, Meaning.OVERWRITE,
        tensors.digest(sent))}).digest) for silo, add in moved.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("rules", "left_out"), [
    ({"aggregation": "uniform", "helpers": "similarity", "lambda_l2": 0.0}, ["b"]),
    ({"aggregation": "reliability"}, [])], ids=["similarity", "reliability"])
def test_a_model_that_is_too_large_for_batch_norm_statistics_fails_no_study(
        federation: Path, caplog: pytest.LogCaptureFixture, rules: dict[str, Any], left_out: list[str]) -> None:
    """FedMatch scores and embeds each silo's own model with statistics of its own, and those are not finite."""
    operations, _ = opened(federation, method={"name": "fedmatch", "lr": 0.001, **rules}, model={"name": "small_cnn"},
                           data={"validation": "test.npz#test", "test": ""})
    state = prepare(operations).state
    paths = _fedmatch_paths(federation, operations, state, {"a": {"": 0.001}, "b": {"": 9e11}, "c": {"": 0.002}})
    assert check(operations, state, paths["b"], {"num_unlabelled": 10.0}).held
    updates = [SpooledUpdate(header=UpdateHeader(silo, 10, {"num_unlabelled": 10.0}), path=path, kept=None)
               for silo, path in paths.items()]
    found = aggregate(operations, state, 1, updates)
    assert list(found.left_out) == left_out
    assert "the model of silo b gives no finite answer" in caplog.text
    states = StateFiles(federation / "studies" / "first" / "states")
    after = states.load(found.state, FedMatchState)
    assert {name.partition("/")[0] for name in after.pool} == {"a", "c"}, "it helps nobody"
    assert after.scores.get("b", 0.0) == 0.0
    assert "b" not in after.embeddings
    honest = states.load(aggregate(operations, state, 1, [updates[0], updates[2]]).state, FedMatchState)
    assert all(torch.equal(after.psi[name], honest.psi[name]) for name in honest.psi), "a control"


def test_an_update_that_a_strategy_cannot_fold_is_left_out_and_named_whatever_its_length(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four, and neither is the longest: the others stay."""
    class Particular(SemiFLStrategy):
        def fold(self, state: SemiFLState, tally: AverageTally, header: UpdateHeader,
                 groups: Mapping[str, TensorGroup], kept: Any) -> tuple[AverageTally, Any]:
            if header.silo in ("b", "d"):
                raise BadPayload(f"Nobody can add up what {header.silo} sends.")
            return super().fold(state, tally, header, groups, kept)

    monkeypatch.setattr(operations_module, "load_strategy", lambda name: Particular)
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    updates = [update(silo, spool(federation, model, shift=shift))
               for silo, shift in (("a", 0.02), ("b", 0.001), ("c", 0.01), ("d", 0.005))]
    found = aggregate(operations, state, 1, updates)
    assert found.left_out == {silo: "not accepted: it cannot be folded. Nobody can add up what "
                                    f"{silo} sends." for silo in ("b", "d")}
    assert (list(found.kept), sorted(found.measures)) == (["a", "c"], ["a", "b", "c", "d"])
    assert found.state == aggregate(operations, state, 1, [updates[0], updates[2]]).state, "a control"


def _of_a_plug_in(monkeypatch: pytest.MonkeyPatch, half: type[Any]) -> None:
    monkeypatch.setattr(operations_module, "load_strategy", lambda name: half)
    monkeypatch.setattr(operations_module, "build_strategy", lambda half, name, settings, environment: PluggedIn(
        half, settings, environment, what="The strategy 'x:Y' of the method plug-in 'x'"))


@pytest.mark.parametrize("where", ["begin", "fold", "finish", "nan"])
def test_a_plug_in_that_cannot_compute_with_any_update_is_at_fault_and_no_silo(
        federation: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """All silos were blamed, and the study went on with none of them; or the step was tried three times."""
    class Broken(SemiFLStrategy):
        def begin(self, state: Any, phase: Any, headers: Any, *, round: int) -> Any:
            if where == "begin":
                raise ValueError("no key 'w'")
            return super().begin(state, phase, headers, round=round)

        def fold(self, *args: Any) -> Any:
            if where == "fold":
                raise RuntimeError("sizes differ")
            return super().fold(*args)

        def finish(self, state: Any, phase: Any, tally: Any, *, round: int) -> Any:
            if where == "finish":
                raise ValueError("no key 'w'")
            finished = super().finish(state, phase, tally, round=round)
            if where == "nan" and tally.delta is not None:
                return replace(finished, w={name: each * float("nan") for name, each in finished.w.items()})
            return finished

    _of_a_plug_in(monkeypatch, Broken)
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    updates = [update(silo, spool(federation, model, shift=0.01)) for silo in ("a", "b", "c")]
    with pytest.raises(PluginFailed, match="The strategy 'x:Y' of the method plug-in 'x'"):
        aggregate(operations, state, 1, updates)


def test_an_update_on_which_a_plug_in_raises_anything_is_left_out_where_others_are_not(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One silo could stop a study of a plug-in with an update that it raises a KeyError on."""
    class Particular(SemiFLStrategy):
        def fold(self, state: Any, tally: Any, header: UpdateHeader, groups: Any, kept: Any) -> Any:
            if header.silo == "b":
                raise KeyError("b")
            return super().fold(state, tally, header, groups, kept)

    _of_a_plug_in(monkeypatch, Particular)
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    updates = [update(silo, spool(federation, model, shift=0.01)) for silo in ("a", "b", "c")]
    found = aggregate(operations, state, 1, updates)
    assert found.left_out == {"b": "not accepted: it cannot be folded. The strategy 'x:Y' of the method plug-in 'x' "
                                   "failed in fold: KeyError: 'b'."}
    assert list(found.kept) == ["a", "c"]


def test_a_state_of_a_plug_in_that_cannot_be_written_names_it(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(SemiFLStrategy):
        def start(self, initial: Any) -> Any:
            return replace(super().start(initial), opt_buf=torch.zeros(3))

    _of_a_plug_in(monkeypatch, Odd)
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    with pytest.raises(PluginFailed, match=r"returned a SemiFLState that cannot be written: TypeError: .*Tensor"):
        prepare(operations)


def _scaled(federation: Path, model: TensorGroup, factor: float) -> Path:
    """An update that multiplies the model: by 1 + factor."""
    store = PayloadStore(federation / "spool")
    delta = {name: factor * tensor for name, tensor in model.tensors.items()}
    return store.path(encode_groups(store, {"model": TensorGroup(
        delta, Meaning.DIFFERENCE, tensors.digest(model.tensors))}).digest)


def _gated(federation: Path, robust: dict[str, Any]) -> tuple[Operations, str, TensorGroup]:
    """A study of self-training with these settings of [robust]: what opened it, its state after round 0, and the model
    that silos are sent."""
    settings = config_from_dict({
        "study": {"seed": 3, "rounds": 4}, "model": {"name": "small_cnn", "normalisation": "none"},
        "data": {"labelled": "labelled", "test": "test.npz#test",
                 "image": {"size": 8, "channels": 1, "mean": "labelled", "std": "labelled"}},
        "augmentation": {"policy": "none"}, "numerics": {"threads": 1}, "robust": robust,
        "method": {"name": "self_training", "lr": 0.05, "warm_up_steps": 80, "coordinator_steps": 0}}, where="test")
    operations = Operations(lambda fraction, text: None)
    answered(operations, replace(opening(federation), config=settings))
    state = prepare(operations).state
    return operations, state, received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]


@pytest.mark.slow
def test_a_shut_gate_stays_shut_where_more_may_lie_than_so_few_updates_can_do_with(
        federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipping would take nothing over of four where two may lie, and the round said that it had. Beside one that is
    left out the others are looked at all the same."""
    class Particular(SelfTrainingStrategy):
        def fold(self, state: Any, tally: Any, header: UpdateHeader, groups: Any, kept: Any) -> Any:
            if header.silo == "e":
                raise BadPayload("Nobody can add that up.")
            return super().fold(state, tally, header, groups, kept)

    monkeypatch.setattr(operations_module, "load_strategy", lambda name: Particular)
    steps = {}
    for byzantine, factors in ((1, (10.0, 10.0, -50.0, -10.0)), (2, (10.0, 10.0, -50.0, -10.0)),
                               (0, (10.0, 10.0, -50.0, -10.0, 10.0))):
        operations, state, model = _gated(federation, {"byzantine_silos": byzantine})
        found = aggregate(operations, state, 1, [update(silo, _scaled(federation, model, factor))
                                                 for silo, factor in zip("abcde", factors, strict=False)])
        states = StateFiles(federation / "studies" / "first" / "states")
        steps[byzantine] = states.load(found.state, SelfTrainingState).accepted_step
        assert "c" in found.notices
        assert list(found.left_out) == ["e"][:len(factors) - 4]
    assert steps == {1: 1.0, 2: 0.0, 0: 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "lies", "step"), [
    ("none", (-50.0,) * 3, 1.0), ("none", (-50.0,) * 8, 0.0), ("norm_clipping", (-50.0,) * 8, 0.0),
    ("none", (10.0,) * 3, 1.0)], ids=["three of ten", "a majority", "a majority under a rule", "honest"])
def test_where_the_gate_shuts_silos_are_named_and_updates_cut_to_the_median_may_pass(
        federation: Path, rule: str, lies: tuple[float, ...], step: float) -> None:
    """Seven silos return the model 11 times over, which changes no prediction; others the same the other way round."""
    operations, state, model = _gated(federation, {"rule": rule})
    silos = "abcdefghijklmno"[:7 + len(lies)]
    updates = [update(silo, _scaled(federation, model, factor))
               for silo, factor in zip(silos, (10.0,) * 7 + lies, strict=True)]
    found = aggregate(operations, state, 1, updates)
    states = StateFiles(federation / "studies" / "first" / "states")
    after = states.load(found.state, SelfTrainingState)
    assert after.accepted_step == step
    if lies[0] > 0:
        assert found.notices == {}
        return
    named = silos[7:] if len(lies) < 7 else silos[:7]  # eight against seven: the seven point away
    assert list(found.notices) == list(named)
    assert all(text.startswith("nothing of the round's updates was taken over, and its update points away")
               for text in found.notices.values())
    if step:
        mean = (7 * 10.0 - 3 * 10.0) / 10
        before = states.load(state, SelfTrainingState)
        assert all(torch.allclose(after.w[name], (1 + mean) * before.w[name], rtol=1e-4) for name in after.w)
        assert found.metrics["updates_cut"] == 3.0
    assert aggregate(operations, state, 1, updates) == found, "a control: again, the same"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begin", "appraise"])
def test_an_update_with_which_nothing_can_be_weighed_is_left_out_and_named(
        federation: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    class Particular(SemiFLStrategy):
        def begin(self, state: SemiFLState, phase: Phase, headers: tuple[UpdateHeader, ...], *, round: int) -> Any:
            if step == "begin" and len(headers) == 3:
                raise BadPayload("These cannot be weighed.")
            return super().begin(state, phase, headers, round=round)

        def appraise(self, state: SemiFLState, phase: Phase, tally: Any, updates: Any, *, round: int) -> Any:
            if step == "appraise" and max(updates.norms("model")) > 100:
                raise ComputeFailed("These cannot be weighed.")
            return super().appraise(state, phase, tally, updates, round=round)

    monkeypatch.setattr(operations_module, "load_strategy", lambda name: Particular)
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    updates = [update(silo, spool(federation, model, shift=shift))
               for silo, shift in (("a", 0.001), ("b", 20.0), ("c", 0.002))]
    found = aggregate(operations, state, 1, updates)
    assert list(found.left_out) == ["b"]
    assert {"begin": "with this update the model is not finite; its norm is",
            "appraise": "it cannot be folded. These cannot be weighed."}[step] in found.left_out["b"]


@pytest.mark.slow
def test_no_update_that_is_next_to_nothing_ends_a_study_under_fltrust(federation: Path) -> None:
    """It points the coordinator's way, and stretching it to the length of the coordinator's step overflowed."""
    operations, _ = opened(federation, method={"coordinator_epochs": 0}, robust={"rule": "fltrust"})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    updates = [update(silo, _scaled(federation, model, factor))
               for silo, factor in (("a", 1e-3), ("b", 1e-40), ("c", -1e-40), ("d", 2e-3))]
    found = aggregate(operations, state, 1, updates)
    assert (found.left_out, list(found.kept)) == ({}, ["a", "b", "c", "d"])
    assert found.metrics["updates_left_out"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begin", "appraise", "fold"])
@pytest.mark.parametrize("error", [RuntimeError("value cannot be converted to type float without overflow"),
                                   OverflowError("math range error"), ZeroDivisionError("division by zero")],
                         ids=["runtime", "overflow", "division"])
def test_what_arithmetic_raises_is_laid_to_whose_numbers_it_was(
        federation: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception) -> None:
    """Of the shortest of three, so nobody is suspected of it by the length of its update."""
    def fail(silos: list[str], where: str) -> None:
        if where == step and "b" in silos:
            raise error

    class Particular(SemiFLStrategy):
        def begin(self, state: SemiFLState, phase: Phase, headers: tuple[UpdateHeader, ...], *, round: int) -> Any:
            fail([header.silo for header in headers], "begin")
            return super().begin(state, phase, headers, round=round)

        def appraise(self, state: SemiFLState, phase: Phase, tally: Any, updates: Any, *, round: int) -> Any:
            fail([header.silo for header in updates.headers], "appraise")
            return super().appraise(state, phase, tally, updates, round=round)

        def fold(self, state: SemiFLState, tally: AverageTally, header: UpdateHeader,
                 groups: Mapping[str, TensorGroup], kept: Any) -> tuple[AverageTally, Any]:
            fail([header.silo], "fold")
            return super().fold(state, tally, header, groups, kept)

    monkeypatch.setattr(operations_module, "load_strategy", lambda name: Particular)
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    updates = [update(silo, spool(federation, model, shift=shift))
               for silo, shift in (("a", 0.02), ("b", 0.001), ("c", 0.01))]
    found = aggregate(operations, state, 1, updates)
    assert found.left_out == {
        "b": f"not accepted: it cannot be folded. {type(error).__name__}: {error}."}
    assert found.state == aggregate(operations, state, 1, [updates[0], updates[2]]).state, "a control"


@pytest.mark.parametrize("error", [
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("unable to write: No space left on device"),
    ComputeAborted("'Aggregate' was aborted.")], ids=["accelerator", "memory", "disk", "Ctrl-C of a simulation"])
def test_what_the_machine_lacks_or_a_person_ends_is_laid_to_no_silo(
        federation: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Particular(SemiFLStrategy):
        def fold(self, state: SemiFLState, tally: AverageTally, header: UpdateHeader,
                 groups: Mapping[str, TensorGroup], kept: Any) -> tuple[AverageTally, Any]:
            raise error

    monkeypatch.setattr(operations_module, "load_strategy", lambda name: Particular)
    operations, _ = opened(federation, method={"coordinator_epochs": 0})
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    with pytest.raises(type(error)) as caught:
        aggregate(operations, state, 1, [update("a", spool(federation, model, shift=0.01))])
    assert caught.value is error


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedmatch"])
def test_of_statistics_that_nobody_can_have_nothing_is_merged_and_their_silo_is_named(
        federation: Path, name: str) -> None:
    """Also under methods that no rule of [robust] is defined for. Three silos have measured nearly alike."""
    method: dict[str, Any] = {"name": name, "scenario": "labels-at-silo", "lr": 0.05} | (
        {"coordinator_epochs": 0, "aggregation": "uniform", "helpers": "similarity", "lambda_l2": 0.0}
        if name == "fedmatch" else {})
    image = {"size": 8, "channels": 1, "mean": [0.3], "std": [0.4]}
    operations, _ = opened(federation, method=method, data={
        "labelled": "", "test": "", "classes": DIGITS, "image": image})
    state, phase = prepare(operations).state, Phase("statistics", asks="roster", quorum="any")
    expects = operations.tasks(Tasks(state=state, round=1, phase=phase, silos={"a": None}, held={},
                                     link_bytes_per_second=0.0)).expects["batch_norm"]
    store = PayloadStore(federation / "spool")

    def measured(mean: float, var: float) -> Path:
        found = {spec.name: torch.full(spec.shape, {"mean": mean, "var": var}.get(spec.name.rpartition(".")[2], 900.0)
                                       ).to(torch.int64 if spec.dtype == "int64" else torch.float32)
                 for spec in expects.tensors}
        return store.path(encode_groups(store, {"batch_norm": TensorGroup(found, Meaning.VALUES)}).digest)

    updates = [update(silo, measured(*each)) for silo, each in
               (("a", (0.1, 1.0)), ("b", (0.2, 1.1)), ("c", (0.3, 0.9)), ("d", (1e11, 1e11)))]
    found = operations.aggregate(Aggregate(state=state, round=1, phase=phase, updates=tuple(updates)))
    assert list(found.notices) == ["d"]
    assert "its batch-norm statistics are far from the others' and are left out: at layer" in found.notices["d"]
    assert (found.left_out, found.measures, list(found.kept)) == ({}, {}, ["a", "b", "c", "d"])
    honest = operations.aggregate(Aggregate(state=state, round=1, phase=phase, updates=tuple(updates[:3])))
    assert (honest.state, honest.notices) == (found.state, {}), "a control"


def test_training_that_diverges_without_any_update_is_nobodys_fault(
        federation: Path, monkeypatch: pytest.MonkeyPatch, round_one: tuple[Operations, str, WrittenTasks]) -> None:
    operations, state, written = round_one
    model = received(federation, written.tasks["a"])["model"]

    def diverges(*args: Any, **kwargs: Any) -> SemiFLState:
        raise ComputeFailed("Training diverged.", remedy="Lower [method] lr.")

    monkeypatch.setattr(SemiFLStrategy, "finish", diverges)
    with pytest.raises(ComputeFailed, match="Training diverged"):
        aggregate(operations, state, 1, [update("a", spool(federation, model, shift=0.5))])


@pytest.mark.parametrize("shift", [3e38, -3e38, 2e12])
def test_a_value_that_is_absurd_is_refused_when_it_arrives(
        federation: Path, round_one: tuple[Operations, str, WrittenTasks], shift: float) -> None:
    operations, state, written = round_one
    model = received(federation, written.tasks["a"])["model"]
    with pytest.raises(BadPayload, match=r"has a value above 1e\+12"):
        check(operations, state, spool(federation, model, shift=shift), {})


def test_no_silo_weighs_more_than_the_study_lets_it(federation: Path) -> None:
    """Under "50%" a billion images count as all those of the others; under "100%" they outweigh them."""
    states = {}
    for share in ("50%", "100%"):
        operations, _ = opened(federation, method={"coordinator_epochs": 0, "weighting": "size"},
                               participation={"largest_weight": share})
        state = prepare(operations).state
        model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
        paths = {"a": spool(federation, model, shift=0.0), "b": spool(federation, model, shift=1.0)}
        for count in (10, 10**9):
            found = aggregate(operations, state, 1, [
                SpooledUpdate(header=UpdateHeader(silo, 10 if silo == "a" else count), path=path, kept=None)
                for silo, path in paths.items()])
            states[share, count] = found.state
    assert states["50%", 10] == states["50%", 10**9]
    assert states["100%", 10] != states["100%", 10**9]


def test_as_many_silos_as_may_lie_have_no_more_than_the_share_together(federation: Path) -> None:
    """Two of ten move by 1 and announce a billion images: each has less than half, both together had 0.9999996."""
    moved = {}
    for may_lie in (0, 2):
        operations, _ = opened(federation, method={"coordinator_epochs": 0, "weighting": "size"},
                               robust={"byzantine_silos": may_lie})
        state = prepare(operations).state
        model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
        updates = [SpooledUpdate(header=UpdateHeader(silo, 10**9 if silo in "ij" else 100), kept=None,
                                 path=spool(federation, model, shift=1.0 if silo in "ij" else 0.0))
                   for silo in "abcdefghij"]
        before = operations._load(state).w
        after = operations._load(aggregate(operations, state, 1, updates).state).w
        moved[may_lie] = max(float((after[name] - before[name]).abs().max()) for name in before)
    assert moved[0] > 0.999, "the default bounds each silo alone"
    assert moved[2] == pytest.approx(0.5, abs=1e-3)
