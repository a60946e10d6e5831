"""Frozen parts of a network, for every method, with both sides of a federation in one process: they come once, never
go, and stay as they are; what is trained is all the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from semisilo.common.errors import BadPayload, LayoutMismatch, NotPermitted
from semisilo.common.learning import tensors
from semisilo.common.methods import find_method
from semisilo.common.methods.contract import Meaning, ModelSettings, TaskSpec, TensorGroup
from semisilo.common.models.exported import read_model
from semisilo.common.models.factory import initial_model, model_builder
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.torch_tensors import encode_groups
from semisilo.common.rpc.convert import model_from_proto, model_to_proto
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.rpc.round_service import description_to_proto
from semisilo.coordinator.studies.describe import describe_study
from semisilo.silo.check.needs import needs_of
from semisilo.silo.check.study import look_at_study
from semisilo.silo.compute.messages import Train
from semisilo.silo.compute.operations import Operations
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.site.policy import Permit, Policy, check_task, check_update
from tests.both_sides import (
    CLASSES,
    Federation,
    Images,
    Silo,
    network_with_batch_norm,
    quickly,
    study_tables,
    write_images,
)
from tests.method_studies import AT_BOTH, STUDIES, MethodStudy

SILOS = ("a", "b", "c")
FIRST = tuple(each for number, each in enumerate(STUDIES)
              if (each.method, each.scenario) not in {(other.method, other.scenario) for other in STUDIES[:number]})
FROZEN_PARAMETERS = ("0.weight", "1.weight", "1.bias")
FROZEN_BYTES = 4 * (4 * 9 + 4 + 4 + 4 + 4)
"""A convolution of 4 x 1 x 3 x 3, gamma, beta, mean and variance of 4 channels."""

every_method = pytest.mark.parametrize("study", [
    pytest.param(each, marks=pytest.mark.slow) if each.method in ("fedprox", "fednova", "fedrgd", "fedsgd")
    or each.scenario == AT_BOTH else each for each in FIRST], ids=str)
"""FedProx and FedNova hand over what FedAvg does, FedRGD and FedSGD what FedAvg and SemiFL do, and with labels at both
what methods do with labels at silos."""


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frozen")


@pytest.fixture(scope="module")
def images(folder: Path) -> Images:
    return write_images(folder, SILOS)


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[str, torch.Tensor]:
    """A file of trained weights for the network with batch-norm, as torch names them."""
    generator = torch.Generator().manual_seed(7)
    network = network_with_batch_norm(num_classes=len(CLASSES), channels=1, size=8)
    found = {name: torch.randn(parameter.shape, generator=generator) * 0.3
             for name, parameter in network.named_parameters()}
    found |= {"1.running_mean": torch.randn(4, generator=generator) * 0.1,
              "1.running_var": torch.rand(4, generator=generator) + 0.5, "1.num_batches_tracked": torch.tensor(12)}
    save_file(found, folder / "trained.safetensors")
    return found


def federation(root: Path, folder: Path, images: Images, study: MethodStudy, *, freeze: Any = ("0", "1"),
               fresh: bool = False, network: str = "batch norm", weights: bool = True, rounds: int = 2) -> Federation:
    method = {"name": study.method, "scenario": study.scenario, **study.settings}
    model = {"freeze": freeze if isinstance(freeze, str) else list(freeze)}
    if weights:
        model["weights"] = str(folder / "trained.safetensors")
    return Federation(root, study_tables(images, method=method, network=network, silos=len(SILOS), rounds=rounds,
                                         model=model), images, SILOS, fresh=fresh)


@dataclass(frozen=True)
class Run:
    """A study that has come to its end."""

    found: Federation
    digest: str


@pytest.fixture(scope="module")
def undisturbed(folder: Path, images: Images, trained: dict[str, torch.Tensor]) -> Callable[[MethodStudy], Run]:
    """Runs a study once, however many tests look at it."""
    @cache
    def run(study: MethodStudy) -> Run:
        found = federation(folder / str(study), folder, images, study)
        return Run(found, found.run())

    return run


@pytest.mark.slow
@every_method
def test_frozen_tensors_come_once_never_go_and_stay_bit_for_bit(
        trained: dict[str, torch.Tensor], undisturbed: Callable[[MethodStudy], Run], study: MethodStudy) -> None:
    found = undisturbed(study).found
    down = [sent for sent in found.down() if sent.name == "frozen"]
    carried = [sent for sent in down if sent.meaning is not None]
    assert sorted(sent.silo for sent in carried) == sorted(SILOS), "each silo is sent it once"
    assert {sent.dense_bytes for sent in carried} == {FROZEN_BYTES}
    assert len(down) == len(found.tasks()) > len(carried), "and every task names it"
    assert {sent.name for sent in found.up()} <= find_method(study.method).up.keys()
    # Of what went up and down besides, nothing is as large as the whole network.
    network = network_with_batch_norm(num_classes=3, channels=1, size=8)
    trained_bytes = 4 * sum(parameter.numel() for name, parameter in network.named_parameters()
                            if name not in FROZEN_PARAMETERS)
    models = [sent.dense_bytes for sent in (*found.up(), *found.down())
              if sent.name not in ("frozen", "batch_norm", "steps") and sent.meaning is not None]
    assert models
    assert set(models) == {trained_bytes}
    facts = found.ledger.study("s").frozen
    assert facts is not None
    assert facts.num_frozen == 36 + 4 + 4
    assert facts.num_parameters + facts.num_frozen == sum(each.numel() for each in network.parameters())
    assert facts.dense_bytes == trained_bytes
    for number in (0, 2):
        model = found.model(number)
        for name in FROZEN_PARAMETERS:
            assert torch.equal(model[name], trained[name]), f"{name} after round {number}"
        assert torch.equal(model["1.mean"], trained["1.running_mean"])
        assert torch.equal(model["1.var"], trained["1.running_var"])
    if study.has_statistics:  # a study that does not evaluate a model of its own may leave it as it was
        assert not torch.equal(found.model(2)["5.weight"], trained["5.weight"]), "the head has learnt"
    held = [silo.tensors.find(carried[0].tensors) for silo in found.silos.values()]
    assert None not in held


@pytest.mark.slow
@pytest.mark.parametrize("study", [
    pytest.param(each, id=str(each), marks=() if each.method == "semifl" else pytest.mark.slow) for each in FIRST])
def test_frozen_layers_give_the_same_bits_through_the_disk_and_in_another_order(
        tmp_path: Path, folder: Path, images: Images, undisturbed: Callable[[MethodStudy], Run], study: MethodStudy
        ) -> None:
    one = undisturbed(study)
    other = federation(tmp_path / "other", folder, images, study, fresh=True)
    assert one.digest == other.run(order=lambda names: sorted(names, reverse=True))
    assert one.found.remembered() == other.remembered()
    assert one.found.metrics(2) == other.metrics(2)


@pytest.mark.slow
def test_a_silo_that_has_lost_its_cache_is_sent_the_frozen_tensors_again(
        tmp_path: Path, folder: Path, images: Images, undisturbed: Callable[[MethodStudy], Run]) -> None:
    found = federation(tmp_path / "other", folder, images, FIRST[0])
    found.absent = lambda name: name == "b" and found.silos[name].lose_tensors() is not None
    assert found.run() == undisturbed(FIRST[0]).digest
    sent = [each.silo for each in found.down() if each.name == "frozen" and each.meaning is not None]
    assert sent.count("a") == sent.count("c") == 1
    assert sent.count("b") == 2


@pytest.mark.slow
def test_without_a_weights_file_the_frozen_tensors_are_those_of_the_seed(
        tmp_path: Path, folder: Path, images: Images) -> None:
    """Their batch-norm layers are measured as ever: nobody knows statistics for them."""
    plain = federation(tmp_path / "plain", folder, images, FIRST[0], freeze=(), weights=False)
    plain.run()
    found = federation(tmp_path / "frozen", folder, images, FIRST[0], weights=False)
    found.run()
    task = found.tasks()[0]
    spec = task.spec
    start = initial_model(model_builder(spec.model, spec.image, [spec.model.name]), spec.seed)
    last = found.model(2)
    for name, tensor in start.items():
        assert torch.equal(last[name], tensor) is (name in FROZEN_PARAMETERS), name
        assert not torch.equal(plain.model(2)[name], tensor), "the control: it would have been trained"
    sent = [each for each in found.down() if each.name == "frozen" and each.meaning is not None]
    assert {each.dense_bytes for each in sent} == {4 * (36 + 4 + 4)}, "without statistics"
    assert not any(each.name == "frozen" for each in plain.down())


@pytest.mark.slow
def test_backbone_freezes_all_but_the_head(
        tmp_path: Path, folder: Path, images: Images, trained: dict[str, torch.Tensor]) -> None:
    study = FIRST[0]
    by_word = federation(tmp_path / "word", folder, images, study, freeze="backbone")
    by_name = federation(tmp_path / "name", folder, images, study, freeze=["0.*", "1"])
    assert by_word.run() == by_name.run()
    model = by_word.model(2)
    assert all(torch.equal(model[name], trained[name]) for name in FROZEN_PARAMETERS)


@pytest.mark.slow
def test_a_study_goes_on_after_a_restart_with_the_same_frozen_tensors_or_not_at_all(
        tmp_path: Path, folder: Path, images: Images, trained: dict[str, torch.Tensor],
        undisturbed: Callable[[MethodStudy], Run]) -> None:
    own = tmp_path / "weights"
    own.mkdir()
    (own / "trained.safetensors").write_bytes((folder / "trained.safetensors").read_bytes())

    def stop_in_round_two(silo: Silo, task: TaskSpec) -> None:
        if task.round == 2:
            raise KeyboardInterrupt

    again = federation(tmp_path / "two", own, images, FIRST[0])
    again.before_answer = stop_in_round_two
    with pytest.raises(KeyboardInterrupt):
        again.run()
    again.close()
    save_file({**trained, "0.weight": trained["0.weight"] + 1}, own / "trained.safetensors")
    other = federation(tmp_path / "two", own, images, FIRST[0])
    with pytest.raises(AssertionError, match="another file"):
        other.run()
    other.close()
    (own / "trained.safetensors").write_bytes((folder / "trained.safetensors").read_bytes())
    config = federation(tmp_path / "two", own, images, FIRST[0])
    config.ledger.requeue_study("s", config.ledger.study("s").config)
    assert config.run() == undisturbed(FIRST[0]).digest


def test_the_models_file_holds_the_whole_network_and_says_nothing_of_the_hubs_files(
        folder: Path, trained: dict[str, torch.Tensor], undisturbed: Callable[[MethodStudy], Run]) -> None:
    found = undisturbed(FIRST[0]).found
    written = found.model(2)
    path = found.folder / "model-2.safetensors"
    assert str(folder).encode() not in path.read_bytes()
    model, facts = read_model(path, allow_factories=("tests.both_sides:network_with_batch_norm",))
    assert facts.model.weights == ""
    x = torch.randn(5, 1, 8, 8)
    hidden = torch.nn.functional.batch_norm(
        torch.nn.functional.conv2d(x, trained["0.weight"]), trained["1.running_mean"], trained["1.running_var"],
        trained["1.weight"], trained["1.bias"], False, 0.0, 1e-5)
    expected = torch.nn.functional.max_pool2d(hidden.relu(), 2).flatten(1) @ written["5.weight"].T + written["5.bias"]
    assert torch.allclose(model(x), expected, atol=1e-5)


# What a stranger may send ---------------------------------------------------------------------------------------------


def a_task(tmp_path: Path, folder: Path, images: Images) -> tuple[Federation, list[TaskSpec]]:
    found = federation(tmp_path / "f", folder, images, FIRST[0], rounds=1)
    seen: list[TaskSpec] = []
    found.before_answer = lambda silo, task: seen.append(task)
    found.run()
    return found, seen


@pytest.mark.slow
@pytest.mark.parametrize(("change", "says"), [
    (lambda group: {**group, "9.weight": torch.zeros(2)}, "'9.weight' is not the network's"),
    (lambda group: {**group, "0.weight": torch.zeros(4, 1, 5, 5)}, r"'0.weight' is \[4, 1, 5, 5\] float32"),
    (lambda group: {**group, "0.weight": group["0.weight"].double()}, "float64; the network has"),
    (lambda group: {name: each for name, each in group.items() if name != "1.var"}, "mean or the variance is missing"),
    (lambda group: {**group, "1.var": -group["1.var"]}, "negative variance"),
    (lambda group: {**group, "5.weight": torch.zeros(3, 36)}, "'model' has|is not expected|is missing"),
], ids=["unknown", "shape", "type", "half of a layer", "variance", "what is trained"])
def test_a_task_whose_frozen_tensors_are_not_the_networks_is_refused(
        tmp_path: Path, folder: Path, images: Images, trained: dict[str, torch.Tensor], change: Any, says: str) -> None:
    found, seen = a_task(tmp_path, folder, images)
    silo, task = found.silos["a"], next(task for task in seen if task.silo == "a")
    names = ("0.weight", "1.weight", "1.bias")
    good = {**{name: trained[name] for name in names}, "1.mean": trained["1.running_mean"],
            "1.var": trained["1.running_var"]}
    group = TensorGroup(change(dict(good)))
    store = PayloadStore(tmp_path / "hostile", durable=False)
    written = encode_groups(store, {"frozen": replace(group, digest=tensors.digest(group.tensors))})
    payloads, cache = [], silo.cache
    for payload in task.payloads:
        if payload.groups == ("frozen",):
            payloads.append(replace(written, tensors=tensors.digest(group.tensors)))
        else:
            payloads.append(replace(payload, digest="", size_bytes=0, reference=""))  # held already
    result: Any = None
    with pytest.raises((LayoutMismatch, BadPayload), match=says):
        result = Operations(lambda fraction, text: None, device="cpu").train(Train(
            task=replace(task, payloads=tuple(payloads)), payloads={written.digest: store.path(written.digest)},
            cache_folder=cache.folder, choice=JoinChoice(source=images.unlabelled("a")),
            factories=("tests.both_sides:network_with_batch_norm",), memory=None, residuals=None,
            pending_residuals=None, outgoing_folder=tmp_path / "out", memory_folder=tmp_path / "memory"))
    assert result is None


def test_a_silo_that_does_not_permit_the_group_refuses_before_it_fetches_anything(
        tmp_path: Path, folder: Path, images: Images, trained: dict[str, torch.Tensor]) -> None:
    found, seen = a_task(tmp_path, folder, images)
    factories = ("tests.both_sides:network_with_batch_norm",)
    check_task(Policy(permit=Permit(factories=factories)), seen[0])
    groups = tuple(name for name in Permit().groups if name != "frozen")
    with pytest.raises(NotPermitted, match="receive the tensor group 'frozen'") as caught:
        check_task(Policy(permit=Permit(factories=factories, groups=groups)), seen[0])
    assert "[permit] groups" in caught.value.remedy
    plain = replace(seen[0], payloads=tuple(each for each in seen[0].payloads if each.groups != ("frozen",)))
    check_task(Policy(permit=Permit(factories=factories, groups=groups)), plain)
    assert {task.state for task in found.tasks()} == {TaskState.UPDATED}


@pytest.mark.slow
def test_silo_check_hears_of_frozen_parts_and_holds_them_against_silo_toml(
        tmp_path: Path, folder: Path, images: Images, trained: dict[str, torch.Tensor]) -> None:
    found = federation(tmp_path / "f", folder, images, FIRST[0])
    told = []
    found.before_answer = lambda silo, task: told.append(describe_study(found.ledger, silo.name))
    found.run()
    assert told[0] is not None
    assert told[0].frozen_bytes == 4 * (36 + 4 + 4)
    message = description_to_proto(replace(told[0], model=ModelSettings(classes=CLASSES)), now_unix=1.0)
    needs, _ = needs_of(message, silo="a")
    assert needs is not None
    without = Permit(groups=tuple(name for name in Permit().groups if name != "frozen"))
    states = {permits: finding.state for permits, policy in ((True, Policy()), (False, Policy(permit=without)))
              for finding in look_at_study(policy, needs) if finding.what == "permission"}
    assert states == {True: "ok", False: "bad"}
    message.frozen_bytes = 0
    needs, _ = needs_of(message, silo="a")
    assert needs is not None
    (finding,) = (each for each in look_at_study(Policy(permit=without), needs) if each.what == "permission")
    assert finding.state == "ok"
    message.frozen_bytes = 2**62
    assert needs_of(message, silo="a")[0] is None


@pytest.mark.slow
@pytest.mark.parametrize("study", [STUDIES[0], next(each for each in STUDIES if each.method == "fedmatch")], ids=str)
def test_frozen_tensors_never_leave_a_silo_and_are_not_taken_by_the_coordinator(
        tmp_path: Path, folder: Path, images: Images, trained: dict[str, torch.Tensor], study: MethodStudy) -> None:
    spec = find_method(study.method)
    with pytest.raises(NotPermitted, match="'frozen', which may not leave"):
        check_update(Policy(), spec, groups=("frozen",), metrics={}, size_bytes=10)
    found = federation(tmp_path / "f", folder, images, study)
    refused = []

    async def send_it_along(task: TaskSpec, declaration: Any) -> None:
        group = replace(declaration.groups[0], name="frozen", meaning=Meaning.VALUES, base="")
        with pytest.raises(BadPayload, match="no tensor group 'frozen'"):
            await found.task_service.updates.begin(task.silo, task.task_id, "e" * 32,
                                                  replace(declaration, groups=(*declaration.groups, group)))
        refused.append(task.silo)

    for silo in found.silos.values():
        silo.before_declaring = send_it_along
    found.run()
    assert set(refused) == set(SILOS)


def test_a_methods_own_group_cannot_be_called_frozen() -> None:
    spec = find_method("semifl")
    with pytest.raises(ValueError, match="'frozen' is not a method's own"):
        replace(spec, up={**spec.up, "frozen": Meaning.VALUES})
    assert "frozen" not in spec.down
    assert spec.receives["frozen"] is Meaning.VALUES


def test_weights_and_what_is_frozen_stay_at_the_coordinator(
        tmp_path: Path, folder: Path, images: Images, trained: dict[str, torch.Tensor]) -> None:
    """Paths of the hub are nobody's business, and the tensors say what is frozen."""
    _, seen = a_task(tmp_path, folder, images)
    assert {(task.model.weights, task.model.freeze) for task in seen} == {("", ())}
    whole = ModelSettings(name="timm/resnet18", classes=("a", "b"), weights="/home/x.pth", freeze="backbone")
    assert model_from_proto(model_to_proto(whole)) == ModelSettings(name="timm/resnet18", classes=("a", "b"))


@pytest.mark.slow
def test_the_cache_of_a_silo_keeps_the_frozen_tensors_while_others_come_and_go(
        tmp_path: Path, folder: Path, images: Images, trained: dict[str, torch.Tensor]) -> None:
    found = federation(tmp_path / "f", folder, images, FIRST[0], rounds=6)
    found.run()
    (digest,) = {sent.tensors for sent in found.down() if sent.name == "frozen"}
    for silo in found.silos.values():
        assert digest in TensorCache(silo.cache).digests()
    assert sum(sent.meaning is not None for sent in found.down() if sent.name == "frozen") == len(SILOS)
