"""A method that overwrites, over both sides: few bytes, the same bits whatever is lost or killed, and no way to lie."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.errors import BadPayload, LayoutMismatch, SemisiloError, WrongBase
from semisilo.common.learning import tensors
from semisilo.common.methods import METHODS, MethodPlugin
from semisilo.common.methods.builtin import BUILT_IN
from semisilo.common.methods.contract import Meaning, TaskSpec, TensorGroup
from semisilo.common.payload.manifest import GroupManifest, ReferenceForm
from semisilo.common.payload.reader import read_manifest
from semisilo.common.payload.torch_tensors import decode_groups, encode_groups
from semisilo.common.storage.state_files import StateFiles
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.compute.messages import CheckedUpdate
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.tasks.task_service import Hello
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration
from tests.both_sides import (
    Federation,
    Images,
    Killed,
    Silo,
    deliver,
    quickly,
    study_tables,
    write_images,
)
from tests.overwriting_method import OVERWRITING, Kept

SILOS = ("a", "b", "c")
METHOD = {"name": "overwriting", "scenario": "labels-at-coordinator", "threshold": 1e-3}


@pytest.fixture(scope="module", autouse=True)
def _method() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "overwriting", OVERWRITING)
        patch.setitem(BUILT_IN, "overwriting", MethodPlugin(
            spec=OVERWRITING, strategy="tests.overwriting_method:OverwritingStrategy",
            trainer="tests.overwriting_method:OverwritingTrainer"))
        quickly(patch)
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return write_images(tmp_path_factory.mktemp("images"), SILOS)


def federation(folder: Path, images: Images, *, fresh: bool = False, rounds: int = 3, **tables: Any) -> Federation:
    return Federation(folder, study_tables(images, method=METHOD, network="wide", rounds=rounds, **tables), images,
                      SILOS, fresh=fresh)


@dataclass(frozen=True)
class Run:
    """What came out of a study that nothing disturbed."""

    found: Federation
    digest: str

    def check(self, other: Federation, digest: str) -> None:
        """That another run has the same bits, and the same metrics."""
        assert digest == self.digest
        assert other.remembered() == self.found.remembered()
        for number in range(4):
            assert other.metrics(number) == self.found.metrics(number)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Run:
    found = federation(tmp_path_factory.mktemp("undisturbed") / "f", images, study={"local_accuracy": True})
    return Run(found, found.run())


# Bytes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("aim", [pytest.param("raw", marks=pytest.mark.slow), "smallest", "auto"])
def test_only_what_is_overwritten_crosses_and_every_aim_gives_the_same_bits(
        tmp_path: Path, images: Images, undisturbed: Run, aim: str) -> None:
    """Up, a hundredth of the elements is replaced; down, at most what three silos have replaced since."""
    found = federation(tmp_path / "f", images, wire={"uplink": aim, "downlink": aim})
    assert found.run() == undisturbed.digest
    psi = {"down": [sent for sent in found.down() if sent.name == "psi"], "up": [
        sent for sent in found.up() if sent.name == "psi"]}
    assert [len(each) for each in psi.values()] == [9, 9]
    for sent in psi["up"]:
        assert (sent.meaning, sent.reference != "") == (Meaning.OVERWRITE, True)
        assert sent.bytes < 0.02 * sent.dense_bytes
    for sent in psi["down"]:
        if sent.task_id.startswith("s/1/"):
            assert sent.meaning is Meaning.VALUES, "nobody has a shadow yet"
            assert sent.bytes > 0.5 * sent.dense_bytes
        else:
            assert (sent.meaning, sent.reference != "") == (Meaning.OVERWRITE, True)
            assert sent.bytes < 0.06 * sent.dense_bytes
    held = {silo: {sent.tensors for sent in found.silos[silo].up if sent.name == "psi"} for silo in SILOS}
    assert all(sent.reference in held[sent.silo] for sent in psi["down"] if sent.reference), "of its own shadow each"


def test_the_coordinators_shadow_is_what_the_silo_holds_bit_for_bit(undisturbed: Run) -> None:
    found = undisturbed.found
    files = StateFiles(found.folder / "studies" / "s" / "states")
    zeros = 0
    for silo, (kept, _) in found.remembered().items():
        shadow = files.load(kept, Kept)
        last = [sent.tensors for sent in found.silos[silo].up if sent.name == "psi"][-1]
        assert tensors.digest(shadow.psi) == last
        assert last in found.silos[silo].held()
        assert shadow.rounds == 3
        zeros += sum(int((torch.signbit(tensor) & (tensor == 0)).sum()) for tensor in shadow.psi.values())
    assert zeros > 100, "negative zeros came through as such"


def test_what_one_silo_is_sent_is_no_reference_for_others_and_takes_no_room_at_the_coordinator(
        undisturbed: Run) -> None:
    found = undisturbed.found
    cached = {path.name for path in (found.folder / "payloads" / "tensors").iterdir()}
    own = {sent.tensors for sent in found.down() if sent.name == "psi" and sent.meaning is Meaning.OVERWRITE}
    assert len(own) == 6
    assert not own & cached


@pytest.mark.slow
def test_a_silo_keeps_what_it_made_over_rounds_that_ask_it_for_other_things_only(
        tmp_path: Path, images: Images) -> None:
    """One silo is sampled in a round, and all are asked to look. Whoever trains again has its base still; whoever was
    alone in the round before has even the average."""
    found = federation(tmp_path / "f", images, rounds=12, participation={"silos_per_round": 1})
    found.run()
    waits = []
    for silo in found.silos.values():
        came = [sent for sent in silo.down if sent.name == "psi"]
        rounds = [int(sent.task_id.split("/")[1]) for sent in came]
        waits += [later - sooner for sooner, later in pairwise(rounds)]
        for (sooner, later), sent in zip(pairwise(rounds), came[1:], strict=True):
            assert sent.meaning is (None if later == sooner + 1 else Meaning.OVERWRITE)
    assert max(waits) >= 4, "otherwise this shows little"


# Losses and restarts --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_new_objects_for_every_operation_and_another_order_of_arrival_change_no_bit(
        tmp_path: Path, images: Images, undisturbed: Run) -> None:
    again = federation(tmp_path / "f", images, fresh=True, study={"local_accuracy": True})
    undisturbed.check(again, again.run(order=lambda names: sorted(names, reverse=True)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_silos_lose_before_they_ask_costs_bytes_and_no_bit(
        tmp_path: Path, images: Images, undisturbed: Run, seed: int) -> None:
    found, chance, lost = federation(tmp_path / "f", images), random.Random(seed), 0

    def loses(name: str) -> bool:
        nonlocal lost
        if chance.random() < 0.3:
            lost += bool(found.silos[name].held())
            found.silos[name].lose_tensors()
        return False

    found.absent = loses
    assert found.run() == undisturbed.digest
    assert lost
    assert [sent for sent in found.down() if sent.name == "psi" and sent.meaning is Meaning.VALUES
            and not sent.task_id.startswith("s/1/")], "some came whole"


@pytest.mark.slow
def test_what_a_silo_loses_after_it_was_given_the_task_comes_whole_when_it_asks_again(
        tmp_path: Path, images: Images, undisturbed: Run) -> None:
    found = federation(tmp_path / "f", images)
    seen: set[str] = set()

    def loses(silo: Silo, task: TaskSpec) -> None:
        if task.task_id not in seen:
            seen.add(task.task_id)
            silo.lose_tensors()

    found.before_answer = loses
    assert found.run() == undisturbed.digest
    later = [sent for sent in found.down() if sent.name == "psi" and not sent.task_id.startswith("s/1/")]
    assert [sent.meaning for sent in later] == [Meaning.VALUES] * 6


@pytest.mark.slow
def test_a_coordinator_that_has_lost_all_it_could_code_against_still_checks_and_folds_the_same(
        tmp_path: Path, images: Images, undisturbed: Run) -> None:
    found = federation(tmp_path / "f", images)
    found.compute.before = lambda operation, arguments: [
        path.unlink() for path in (tmp_path / "f" / "payloads").glob("tensors/*")] and None
    assert found.run() == undisturbed.digest
    assert {sent.meaning for sent in found.up() if sent.name == "psi"} == {Meaning.OVERWRITE}


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "hit"), [("tasks", 3), ("check_update", 8), ("aggregate", 3), ("evaluate", 2)])
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_kill_of_both_sides_anywhere_changes_neither_bits_nor_metrics(
        tmp_path: Path, images: Images, undisturbed: Run, operation: str, hit: int, when: str) -> None:
    first = federation(tmp_path / "f", images, study={"local_accuracy": True})
    hits = 0

    def kill(name: str, _: object) -> None:
        nonlocal hits
        hits += name == operation
        if name == operation and hits == hit:
            raise Killed

    setattr(first.compute, when, kill)
    with pytest.raises(Killed):
        first.run()
    first.close()
    second = federation(tmp_path / "f", images, study={"local_accuracy": True})
    undisturbed.check(second, second.run())


# Lies -----------------------------------------------------------------------------------------------------------------

async def _second_round(found: Federation) -> dict[str, TaskSpec]:
    """Round 1 is done; the tasks of round 2 are given and not answered."""
    tasks: dict[str, TaskSpec] = {}
    engine = asyncio.ensure_future(found.engine.run_next())
    while len(tasks) < len(SILOS):
        for name in SILOS:
            silo = found.silos[name]
            hello = Hello(version="0", methods=(), labelled_count=10_000, unlabelled_count=10_000, held=silo.held())
            task = await found.task_service.await_task(name, hello, timeout_seconds=0)
            if isinstance(task, TaskSpec) and task.round == 1:
                await silo.answer(task, found.task_service)
            elif isinstance(task, TaskSpec):
                tasks[name] = task
        await asyncio.sleep(0.001)
    engine.cancel()
    await asyncio.gather(engine, return_exceptions=True)
    return tasks


def _received(found: Federation, task: TaskSpec) -> TensorGroup:
    """The group psi of a task as its silo decodes it."""
    payload, = task.payloads
    path = found.payloads.path(payload.digest)
    groups = decode_groups(path, require_finite=True, references=found.silos[task.silo].tensors.find)
    return replace(groups["psi"], digest=payload.tensors)


def _update(received: TensorGroup, value: float = 0.5) -> TensorGroup:
    new = {name: tensor.clone() for name, tensor in received.tensors.items()}
    next(iter(new.values())).view(-1)[::40] = value
    return TensorGroup(new, Meaning.OVERWRITE, received.digest, base_tensors=received.tensors)


async def _announce(found: Federation, task: TaskSpec, group: TensorGroup,
                    said: Callable[[GroupManifest], GroupManifest] = lambda group: group,
                    store: PayloadStore | None = None) -> None:
    """Sends an update whose declaration says something else than the file."""
    store = store or PayloadStore(found.folder / "lies")
    path = store.path(encode_groups(store, {"psi": group}).digest)
    content = path.read_bytes()
    manifest, = read_manifest(path)
    await deliver(found.task_service, task, content, UpdateDeclaration(
        digest=hashlib.sha256(content).hexdigest(), size_bytes=len(content), groups=(said(manifest),), example_count=1,
        metrics={"changed": 1.0}, training_seconds=0.1), hashlib.sha256(content).hexdigest()[:32])


@pytest.mark.slow
def test_an_update_that_refers_to_anything_but_what_its_silo_was_sent_is_refused_before_a_byte_comes(
        tmp_path: Path, images: Images) -> None:
    async def scenario() -> None:
        found = federation(tmp_path / "f", images)
        tasks = await _second_round(found)
        received = {name: _received(found, task) for name, task in tasks.items()}
        assert received["a"].digest != received["b"].digest
        update, other = _update(received["a"]), _update(received["b"])
        before = {name: silo.up[0].tensors for name, silo in found.silos.items()}

        def as_difference(group: GroupManifest) -> GroupManifest:
            return replace(group, meaning=Meaning.DIFFERENCE)

        def as_values(group: GroupManifest) -> GroupManifest:
            return replace(group, meaning=Meaning.VALUES, base="")

        def against_shadow(group: GroupManifest) -> GroupManifest:
            return replace(group, base=before["a"], reference=before["a"])

        cases: list[tuple[TensorGroup, Callable[[GroupManifest], GroupManifest], type[SemisiloError], str]] = [
            (other, lambda group: group, WrongBase, "another base"),
            (update, against_shadow, WrongBase, "another base"),
            (update, as_values, BadPayload, "coded against other tensors"),
            (update, as_difference, BadPayload, "comes as difference"),
            (update, lambda group: replace(group, tensors=group.tensors[:-1]), LayoutMismatch, "tensors"),
            (update, lambda group: replace(group, encoded_bytes=2**40), BadPayload, "fewer bytes")]
        for group, said, error, text in cases:
            with pytest.raises(error, match=text):
                await _announce(found, tasks["a"], group, said)
        assert found.spool.total_bytes() == 0
        await _announce(found, tasks["a"], update)  # the control
        assert found.ledger.task(tasks["a"].task_id).state is TaskState.UPDATED  # type: ignore[union-attr]
        found.close()
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_file_that_is_not_what_was_announced_ends_the_task_when_it_is_decoded(
        tmp_path: Path, images: Images) -> None:
    """The declaration is right; the bytes refer to another base, lie about what comes out, or are not finite."""
    async def scenario() -> None:
        found = federation(tmp_path / "f", images)
        tasks = await _second_round(found)
        received = {name: _received(found, task) for name, task in tasks.items()}
        good = _update(received["a"])
        store = PayloadStore(found.folder / "lies")
        right, = read_manifest(store.path(encode_groups(store, {"psi": good}).digest))
        cases: dict[str, tuple[TensorGroup, type[SemisiloError], str]] = {
            "a": (_update(received["b"]), WrongBase, "another base"),
            "b": (replace(_update(received["b"]), digest=received["a"].digest), WrongBase, "does not come out"),
            "c": (_update(received["c"], float("nan")), BadPayload, "infinity or NaN")}
        for name, (group, error, text) in cases.items():
            base = received[name].digest
            with pytest.raises(error, match=text):
                await _announce(found, tasks[name], group, lambda group, base=base: replace(
                    right, base=base, reference=base, encoded_bytes=group.encoded_bytes))
            row = found.ledger.task(tasks[name].task_id)
            assert row is not None
            assert row.state is TaskState.REFUSED
            assert "not accepted" in row.reason
        found.close()
    asyncio.run(scenario())


@pytest.mark.slow
def test_an_update_may_come_whole_instead(tmp_path: Path, images: Images) -> None:
    """VALUES say the same as overwriting everything; a silo's update is then as large as the model."""
    async def scenario() -> None:
        found = federation(tmp_path / "f", images)
        tasks = await _second_round(found)
        answers: list[CheckedUpdate] = []
        found.compute.after = lambda operation, answer: answers.append(answer)
        for name, coded in (("a", True), ("b", False)):
            group = _update(_received(found, tasks[name]))
            if not coded:
                group = TensorGroup(group.tensors)
            await _announce(found, tasks[name], group)
            assert answers.pop().held == (tensors.digest(group.tensors),)
            assert answers == []
            assert tensors.digest(group.tensors) in found.runtime.held[name], "before the silo says so itself"
        found.close()
    asyncio.run(scenario())


@pytest.mark.slow
def test_a_declared_count_that_cannot_be_is_refused(tmp_path: Path, images: Images) -> None:
    async def scenario() -> None:
        found = federation(tmp_path / "f", images)
        tasks = await _second_round(found)
        for changed in (None, 0.0, -1.0, 1.5, 1e30, float("nan"), float("inf")):
            metrics = {} if changed is None else {"changed": changed}
            declaration = UpdateDeclaration(
                digest="a" * 64, size_bytes=1000, example_count=1, metrics=metrics, training_seconds=0.1,
                groups=(GroupManifest("psi", Meaning.OVERWRITE, tasks["a"].payloads[0].tensors, _specs(found), 100,
                                      "cd" * 32, tasks["a"].payloads[0].tensors, ReferenceForm.BITS),))
            with pytest.raises(BadPayload, match="changed"):
                await found.task_service.updates.begin("a", tasks["a"].task_id, "b" * 32, declaration)
        found.close()
    asyncio.run(scenario())


def _specs(found: Federation) -> Any:
    expects = found.ledger.phase("s", 2, 0).expects["psi"]
    assert expects.base == "task", "one rule for all silos, not one layout for each"
    return expects.tensors


# Diagnostics ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_models_of_silos_are_measured_where_the_study_asks_for_it(
        tmp_path: Path, images: Images, undisturbed: Run) -> None:
    for number in (1, 2, 3):
        metrics = undisturbed.found.metrics(number)
        own = {name: value for name, value in metrics.items() if name.startswith("local_accuracy/")}
        assert list(own) == [f"local_accuracy/{silo}" for silo in SILOS]
        assert metrics["local_accuracy"] == pytest.approx(sum(own.values()) / 3, abs=1e-15)
    assert not any(name.startswith("local_accuracy") for name in undisturbed.found.metrics(0))
    plain = federation(tmp_path / "f", images, rounds=1)
    plain.run()
    assert plain.metrics(1).items() < undisturbed.found.metrics(1).items(), "the control: nobody asked"
    assert not any(name.startswith("local_accuracy") for name in plain.metrics(1))


def test_a_strategy_adds_its_own_finite_numbers_and_cannot_change_what_is_measured(undisturbed: Run) -> None:
    metrics = undisturbed.found.metrics(3)
    assert metrics["seen"] > 1.0
    assert "nonsense" not in metrics
    assert metrics["accuracy"] <= 1.0
    assert {"labelled_accuracy", "validation_accuracy"} <= metrics.keys()
    json.dumps(metrics, allow_nan=False)


@pytest.mark.slow
def test_own_models_that_were_measured_are_not_measured_again_after_a_kill_before_the_commit(
        tmp_path: Path, images: Images, undisturbed: Run) -> None:
    first = federation(tmp_path / "f", images, study={"local_accuracy": True})

    def kill(operation: str, request: Any) -> None:
        if operation == "evaluate" and request.round == 2:
            raise Killed

    first.compute.before = kill
    with pytest.raises(Killed):
        first.run()
    assert first.metrics(2).keys() == {"local_accuracy", *(f"local_accuracy/{silo}" for silo in SILOS)}
    first.close()
    second = federation(tmp_path / "f", images, study={"local_accuracy": True})
    folded: list[int] = []
    second.compute.before = lambda operation, request: (
        folded.append(request.round) if operation == "aggregate" else None)
    undisturbed.check(second, second.run())
    assert folded == [3, 3]
