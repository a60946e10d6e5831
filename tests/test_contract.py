"""What every method promises, held against all of them by both sides of a federation in one process.

Groups are what the method declares, through the real codec; whatever is kept survives the disk; neither the order of
arrival nor new objects for every step change a bit; silos may abstain, come late or be alone; numbers that a strategy
computes with are checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.config import from_dict
from semisilo.common.errors import BadPayload
from semisilo.common.learning import tensors
from semisilo.common.measures.study_measure import VALIDATION_PREFIX
from semisilo.common.methods import METHODS, coordinator_has_labels, find_method, is_declared
from semisilo.common.methods.contract import Meaning, TaskSpec
from semisilo.common.methods.spec import counts_of
from semisilo.common.payload.codec import ELEMENT_TYPES
from semisilo.common.payload.manifest import is_meant
from semisilo.coordinator.compute import operations as coordinator_work
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.monitoring.results.study_numbers import MODEL_METRICS
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.semifl import SemiFLStrategy
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration
from semisilo.silo.compute import operations as silo_work
from semisilo.silo.trainers import load_trainer
from tests.both_sides import (
    CLASSES,
    Federation,
    Images,
    Sent,
    quickly,
    study_tables,
    write_images,
)
from tests.method_studies import AT_BOTH, AT_COORDINATOR, AT_SILO, STUDIES, MethodStudy

SILOS = ("a", "b", "c")
FIRST = tuple(each for number, each in enumerate(STUDIES)
              if (each.method, each.scenario) not in {(other.method, other.scenario) for other in STUDIES[:number]})
"""One study of each method and scenario."""
CASES = [*((study, "batch norm") for study in STUDIES), *((study, "plain") for study in FIRST)]

every_method = pytest.mark.parametrize("study", [
    pytest.param(each, marks=pytest.mark.slow) if each.scenario == AT_BOTH else each for each in FIRST], ids=str)
_OF_SEMIFL = next(each for each in STUDIES if each.method == "semifl")
_WITH_MEMORY = ("semifl", "fedmatch", "scaffold", "fed_shvr")
"""Methods that keep something for each silo, or from round to round."""
every_case = pytest.mark.parametrize(("study", "network"), [
    pytest.param(study, network, marks=pytest.mark.slow) if study.scenario == AT_BOTH or study not in FIRST
    or (network == "plain" and study.method not in ("semifl", "scaffold")) else (study, network)
    for study, network in CASES], ids=[f"{study}-{net}" for study, net in CASES])
"""Quickly one study of each method and scenario; what other settings change, the tests of strategies and trainers say.
Labels at both are what the two other scenarios have together: tests/silo/trainers/test_self_training.py. A network
without batch-norm statistics sends a group less, which two methods show quickly."""
every_case_of_memory = pytest.mark.parametrize(("study", "network"), [
    pytest.param(study, network, marks=pytest.mark.slow) if study.method not in _WITH_MEMORY
    or study not in FIRST or (network == "plain" and study.method not in ("semifl", "scaffold"))
    else (study, network) for study, network in CASES], ids=[f"{study}-{net}" for study, net in CASES])
"""Quick for methods that keep something, once each; of the others the engine's own tests are the quick guard. A
network without batch-norm statistics matters where more than a model is held: by one that holds it for the round and
one that holds it for each silo."""
every_method_slowly = pytest.mark.parametrize("study", [
    each if each.method in _WITH_MEMORY else pytest.param(each, marks=pytest.mark.slow) for each in FIRST], ids=str)
"""Quick for methods that keep something; for those that keep nothing the engine's own tests, and test_overwriting.py
for lost tensors, are the quick guard."""


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module")
def images(folder: Path) -> Images:
    return write_images(folder, SILOS)


def federation(folder: Path, images: Images, study: MethodStudy, network: str = "batch norm", *, fresh: bool = False,
               silos: tuple[str, ...] = SILOS, rounds: int = 2, start_with: int = 0, **settings: Any) -> Federation:
    method = {"name": study.method, "scenario": study.scenario, **study.settings, **settings}
    tables = study_tables(images, method=method, network=network, silos=start_with or len(silos), rounds=rounds,
                          study={"local_accuracy": True})
    return Federation(folder, tables, images, silos, fresh=fresh)


@dataclass
class Tensors:
    """What each half handed over and got: (round, phase, silo, group, digest of the tensors)."""

    strategy_sent: set[tuple[int, str, str, str, str]] = field(default_factory=set)
    trainer_got: set[tuple[int, str, str, str, str]] = field(default_factory=set)
    trainer_sent: set[tuple[int, str, str, str, str]] = field(default_factory=set)
    strategy_got: set[tuple[int, str, str, str, str]] = field(default_factory=set)
    diagnostics: set[str] = field(default_factory=set)


def recorded(patch: pytest.MonkeyPatch) -> Tensors:
    """From now on the halves of methods tell what they hand over and get."""
    seen = Tensors()

    def strategy_of(name: str) -> type[Any]:
        base = load_strategy(name)

        class Recording(base):  # type: ignore[misc, valid-type]
            def task(self, state: Any, phase: Any, silo: str, kept: Any, *, round: int) -> Any:
                task = super().task(state, phase, silo, kept, round=round)
                for group, content in task.groups.items():
                    digest = tensors.digest(content.tensors)
                    seen.strategy_sent.add((round, phase.name, silo, group, digest))
                    assert content.digest in ("", digest)
                    if content.meaning is Meaning.OVERWRITE and content.base_tensors is not None:
                        assert tensors.digest(content.base_tensors) == content.base
                return task

            def begin(self, state: Any, phase: Any, headers: Any, *, round: int) -> Any:
                self.at = (round, phase.name)
                return super().begin(state, phase, headers, round=round)

            def fold(self, state: Any, tally: Any, header: Any, groups: Any, kept: Any) -> Any:
                for group, content in groups.items():
                    seen.strategy_got.add((*self.at, header.silo, group, tensors.digest(content.tensors)))
                return super().fold(state, tally, header, groups, kept)

            if hasattr(base, "diagnostics"):
                def diagnostics(self, state: Any) -> Any:
                    found = super().diagnostics(state)
                    seen.diagnostics |= found.keys()
                    return found

        Recording.__name__ = base.__name__
        return Recording

    def trainer_of(name: str) -> type[Any]:
        base = load_trainer(name)

        class Recording(base):  # type: ignore[misc, valid-type]
            def train(self, task: Any, data: Any, memory: Any) -> Any:
                at = task.round, task.phase, task.silo
                before = {group: tensors.digest(content.tensors) for group, content in task.groups.items()}
                seen.trainer_got |= {(*at, group, digest) for group, digest in before.items()}
                assert (data.labelled is None) is (task.settings.scenario == "labels-at-coordinator")
                update, after = super().train(task, data, memory)
                for group, content in task.groups.items():
                    assert tensors.digest(content.tensors) == before[group], "what was received is left as it was"
                seen.trainer_sent |= {(*at, group, tensors.digest(content.tensors))
                                      for group, content in update.groups.items()}
                return update, after

        Recording.__name__ = base.__name__
        return Recording

    patch.setattr(coordinator_work, "load_strategy", strategy_of)
    patch.setattr(silo_work, "load_trainer", trainer_of)
    return seen


@dataclass(frozen=True)
class Undisturbed:
    """What came out when nothing happened."""

    digest: str
    found: Federation
    seen: Tensors


@pytest.fixture(scope="module")
def undisturbed(folder: Path, images: Images) -> Any:
    """Runs a study once, however many tests look at it."""
    @cache
    def run(study: MethodStudy, network: str) -> Undisturbed:
        with pytest.MonkeyPatch.context() as patch:
            seen = recorded(patch)
            found = federation(folder / f"{STUDIES.index(study)}-{network}", images, study, network)
            return Undisturbed(found.run(), found, seen)

    return run


# The table ------------------------------------------------------------------------------------------------------------


def test_every_method_and_each_of_its_scenarios_has_a_study_here() -> None:
    assert {(each.method, each.scenario) for each in STUDIES} == {
        (spec.name, scenario) for spec in METHODS.values() for scenario in spec.scenarios}
    assert len({str(each) for each in STUDIES}) == len(STUDIES), "names tell them apart"


def test_every_method_has_both_halves_and_a_consistent_spec() -> None:
    for name, spec in METHODS.items():
        assert spec.name == name
        assert load_strategy(name).__module__.startswith(f"semisilo.coordinator.strategies.{name}")
        assert load_trainer(name).__module__.startswith(f"semisilo.silo.trainers.{name}")
        assert spec.scenarios
        assert set(spec.counts) <= set(spec.metrics)
        assert spec.discloses.strip().endswith(".")
        fields = spec.settings.__dataclass_fields__
        assert set(spec.set_by_strategy) <= set(fields)
        for scenario in spec.scenarios:
            assert "scenario" in fields
            study = next(each for each in STUDIES if (each.method, each.scenario) == (name, scenario))
            from_dict(spec.settings, {"scenario": scenario, **study.settings})


def test_what_is_disclosed_names_the_classes_of_pseudo_labels_and_the_losses_that_leave_a_silo() -> None:
    """Class counts say what kind of patients a silo has: an operator must read of them before joining."""
    for name, spec in METHODS.items():
        if "pseudo_labels/*" in spec.metrics:
            assert "class" in spec.discloses, name
        if any(metric.endswith("loss") for metric in spec.metrics):
            assert "losses" in spec.discloses, name


# Groups and numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_case
def test_what_crosses_is_what_the_method_declares_and_arrives_bit_for_bit(
        undisturbed: Any, study: MethodStudy, network: str) -> None:
    run: Undisturbed = undisturbed(study, network)
    spec = find_method(study.method)
    assert run.found.down()
    for sent, declared in ((sent, spec.down) for sent in run.found.down()):
        _check_declared(sent, declared)
    for sent in run.found.up():
        _check_declared(sent, spec.up)
    assert run.seen.trainer_got == run.seen.strategy_sent
    assert run.seen.strategy_got == run.seen.trainer_sent
    assert run.seen.strategy_got
    for task in run.found.tasks():
        expects = run.found.ledger.phase(task.study, task.round, task.phase).expects
        groups = {sent.name: sent for sent in run.found.silos[task.silo].up if sent.task_id == task.task_id}
        assert groups.keys() == (expects.keys() if task.state is TaskState.UPDATED else set())
        assert expects.keys() <= spec.up.keys(), "updates have no numbered groups"
        for name, sent in groups.items():
            layout = expects[name]
            assert layout.meaning is spec.up[name]
            assert sent.dense_bytes == sum(ELEMENT_TYPES[each.dtype].size_bytes * each.num_elements
                                           for each in layout.tensors)


def _check_declared(sent: Sent, declared: Any) -> None:
    assert is_declared(sent.name, declared), sent
    rule = sent.name if sent.name in declared else f"{sent.name.rpartition('/')[0]}/*"
    assert sent.meaning is None or is_meant(sent.meaning, declared[rule]), sent


def test_a_star_stands_for_a_number_of_few_ascii_digits() -> None:
    """int() fails on some that str.isdigit takes, and a list up to others takes all memory."""
    for label in ("0", "7", "10", "99999"):
        assert is_declared(f"pseudo_labels/{label}", ("loss", "pseudo_labels/*"))
    for label in ("", "\u00b2", "\u0663", "1\u00b2", "-1", "+1", "1_0", " 1", "01", "00", "100000", "9" * 400):
        assert not is_declared(f"pseudo_labels/{label}", ("loss", "pseudo_labels/*")), label


@every_case
def test_metrics_are_declared_finite_and_complete(undisturbed: Any, study: MethodStudy, network: str) -> None:
    run: Undisturbed = undisturbed(study, network)
    spec, own_models = find_method(study.method), hasattr(load_strategy(study.method), "local_model")
    states = set()
    for task in run.found.tasks():
        states.add(task.state)
        assert all(is_declared(name, spec.metrics) for name in task.metrics), task.metrics
        assert all(math.isfinite(value) for value in task.metrics.values())
        if task.state is TaskState.UPDATED:
            assert set(counts_of(spec, task.spec.phase)) <= task.metrics.keys()
    assert states == {TaskState.UPDATED}, "these studies leave nobody without something to say"
    for number in (0, 1, 2):
        metrics = run.found.metrics(number)
        json.dumps(metrics, allow_nan=False)
        own = {"local_accuracy", *(f"local_accuracy/{silo}" for silo in SILOS)}
        assert (own & metrics.keys()) in (set(), own)
        assert number or not own & metrics.keys()
        model = {*MODEL_METRICS, *(f"{of}/{name}" for of in ("recall", "auroc") for name in CLASSES)}
        measured = {*model, *(f"{VALIDATION_PREFIX}{name}" for name in model), *own}
        reported = set() if own_models else {name for name in run.seen.diagnostics if name in own}  # by silos
        assert measured & run.seen.diagnostics == reported, "a number of the strategy is taken for a measurement"
        bound = {"updates_cut", "update_norm_limit"}  # of [robust], in a round in which an update is shortened
        assert metrics.keys() <= measured | run.seen.diagnostics | bound
        evaluated = number > 0 and (study.has_statistics or network == "plain")
        assert {"accuracy", "validation_accuracy"} <= metrics.keys() or not evaluated
        assert ("labelled_accuracy" in metrics) is coordinator_has_labels(study.scenario) or not evaluated
    assert "local_accuracy" in run.found.metrics(2) or not own_models


@pytest.mark.slow
@pytest.mark.parametrize("study", [each for each in FIRST if METHODS[each.method].counts], ids=str)
def test_a_number_that_the_strategy_computes_with_is_refused_when_it_cannot_be(
        tmp_path: Path, images: Images, undisturbed: Any, study: MethodStudy) -> None:
    found = federation(tmp_path / "f", images, study)
    refused = 0

    async def try_lies(task: TaskSpec, declaration: UpdateDeclaration) -> None:
        nonlocal refused
        for name in counts_of(find_method(study.method), task.phase):
            for lie in (None, 0.0, -1.0, 0.5, 1e30, math.nan, math.inf, -math.inf):
                metrics = {key: value for key, value in declaration.metrics.items() if key != name}
                if lie is not None:
                    metrics[name] = lie
                with pytest.raises(BadPayload, match=name):
                    await found.task_service.updates.begin(task.silo, task.task_id, "e" * 32,
                                                          replace(declaration, metrics=metrics))
                refused += 1

    for silo in found.silos.values():
        silo.before_declaring = try_lies
    assert found.run() == undisturbed(study, "batch norm").digest
    assert refused >= 6 * 8


# The same bits --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_case_of_memory
def test_new_objects_for_every_step_and_another_order_of_arrival_change_no_bit(
        tmp_path: Path, images: Images, undisturbed: Any, study: MethodStudy, network: str) -> None:
    """State, what is kept for silos and their memory go through their files before every use, under another state of
    torch's global generator."""
    run: Undisturbed = undisturbed(study, network)
    again = federation(tmp_path / "f", images, study, network, fresh=True)
    assert again.run(order=lambda names: sorted(names, reverse=True)) == run.digest
    assert again.remembered() == run.found.remembered()
    assert [again.metrics(number) for number in (0, 1, 2)] == [run.found.metrics(number) for number in (0, 1, 2)]


class Forgetful(SemiFLStrategy):
    """Halves the weights of the second round it folds in: what no state holds."""

    def finish(self, state: Any, phase: Any, tally: Any, *, round: int) -> Any:
        self.rounds = getattr(self, "rounds", 0) + 1
        after = super().finish(state, phase, tally, round=round)
        return replace(after, w=tensors.scale(after.w, 0.5)) if self.rounds == 2 else after


@pytest.mark.slow
def test_the_control_a_strategy_that_keeps_something_beside_its_state_is_found_out(
        tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_work, "load_strategy", lambda name: Forgetful)
    assert len({federation(tmp_path / str(fresh), images, _OF_SEMIFL, fresh=fresh).run()
                for fresh in (False, True)}) == 2


@pytest.mark.slow
@every_method_slowly
def test_silos_that_lose_their_tensors_are_sent_the_same_bits_again(
        tmp_path: Path, images: Images, undisturbed: Any, study: MethodStudy) -> None:
    found = federation(tmp_path / "f", images, study)
    found.absent = lambda name: found.silos[name].lose_tensors() is not None
    run = undisturbed(study, "batch norm")
    assert found.run() == run.digest
    assert found.remembered() == run.found.remembered()


# Who is there ---------------------------------------------------------------------------------------------------------


@every_method
def test_rounds_in_which_everybody_abstains_leave_the_model_as_it_is(
        tmp_path: Path, images: Images, study: MethodStudy) -> None:
    found = federation(tmp_path / "f", images, study, **study.quiet)
    found.abstains = lambda task: True
    found.run()
    before, after = found.model(0), found.model(2)
    parameters = {name for name in before if not name.endswith((".mean", ".var"))}
    assert parameters
    assert tensors.digest({name: before[name] for name in parameters}) == tensors.digest(
        {name: after[name] for name in parameters})
    assert [row.state for row in found.ledger.rounds("s")] == [RoundState.COMPLETED] * 3
    assert {found.ledger.silo_state("s", silo) for silo in SILOS} == {(0, None)}


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True], ids=["at first", "never"])
@pytest.mark.parametrize(("method", "scenario", "settings"), [
    ("fedmatch", AT_SILO, {}), ("fedmatch", AT_COORDINATOR, {}),
    ("fedmatch", AT_COORDINATOR, {"thresholds": "relative", "distribution_alignment": "labels"}),
    ("fedsgd", AT_COORDINATOR, {"thresholds": "relative"}), ("self_training", AT_COORDINATOR, {"warm_up_steps": 2}),
    ("self_training", AT_SILO, {"warm_up_rounds": 0}), ("fed_shvr", AT_SILO, {}),
    ("fedavg", AT_SILO, {"objective": "fixmatch", "thresholds": "relative"})])
def test_a_study_goes_on_where_no_silo_has_measured_batch_norm_statistics_in_time(
        tmp_path: Path, images: Images, method: str, scenario: Any, settings: dict[str, Any], always: bool) -> None:
    """Silos alone are to measure, and none does: before round 1, or ever."""
    threshold = {} if method == "fed_shvr" else {"confidence_threshold": 0.3}
    study = MethodStudy(method, scenario, {"labelled_batch": 6, "unlabelled_batch": 9, **threshold,
                                           "sbn_source": "silos", **settings})
    found = federation(tmp_path / "f", images, study)
    found.abstains = lambda task: task.phase == "statistics" and (always or "/1/0-" in task.task_id)
    found.run()
    assert [row.state for row in found.ledger.rounds("s")] == [RoundState.COMPLETED] * 3
    assert ("accuracy" in found.metrics(2)) is not always


@every_method_slowly
def test_one_silo_alone_is_enough(tmp_path: Path, images: Images, study: MethodStudy) -> None:
    found = federation(tmp_path / "f", images, study, silos=("a",))
    found.run()
    assert {task.state for task in found.tasks()} == {TaskState.UPDATED}
    assert ("accuracy" in found.metrics(2)) is study.has_statistics


@pytest.mark.slow
@every_method_slowly
def test_a_silo_that_comes_late_and_one_that_abstains_now_and_then_take_part(
        tmp_path: Path, images: Images, study: MethodStudy) -> None:
    """Silo c is there from round 2 on, and b has nothing to say in round 2."""
    _run_with_a_late_silo(tmp_path / "f", images, study, fresh=False)


@pytest.mark.slow
@every_method
def test_with_a_late_and_an_abstaining_silo_order_and_disk_change_no_bit(
        tmp_path: Path, images: Images, study: MethodStudy) -> None:
    assert len({_run_with_a_late_silo(tmp_path / str(fresh), images, study, fresh=fresh)
                for fresh in (False, True)}) == 1


def _run_with_a_late_silo(folder: Path, images: Images, study: MethodStudy, *, fresh: bool) -> str:
    """The digest at the end; `fresh`: through the disk, and in the reverse order."""
    found = federation(folder, images, study, fresh=fresh, rounds=4, start_with=2)
    found.abstains = lambda task: (task.silo, task.round) == ("b", 2)
    found.absent = lambda silo: silo == "c" and not _has_begun(found, 2)
    digest = found.run(order=lambda names: sorted(names, reverse=fresh))
    asked = {(task.silo, task.round): task.state for task in found.tasks() if task.spec.phase == "train"}
    assert ("c", 1) not in asked
    assert asked["c", 3] is asked["c", 4] is asked["b", 3] is TaskState.UPDATED
    assert asked["b", 2] is TaskState.ABSTAINED
    return digest


def _has_begun(found: Federation, number: int) -> bool:
    row = found.ledger.last_round("s")
    return row is not None and row.number >= number and row.state is not RoundState.PREPARING
