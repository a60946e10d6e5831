"""A silo's operations with the real trainer of SemiFL on digits: what goes in, what comes out, what is refused."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from semisilo.common.config import from_dict
from semisilo.common.data import partly_labelled, readers
from semisilo.common.data.form import AugmentationSettings, ImageForm, OnError
from semisilo.common.errors import BadData, BadPayload, ComputeFailed, NotPermitted, SecureSumRefused, SystemTrouble
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods.contract import Meaning, ModelSettings, PayloadRef, TaskSpec, TensorGroup, Update
from semisilo.common.methods.numerics import Numerics
from semisilo.common.models.exported import ModelFacts, inference_settings, write_model
from semisilo.common.models.factory import initial_model, model_builder
from semisilo.common.payload.codec import Aim, Plan
from semisilo.common.payload.reader import PayloadReader
from semisilo.common.payload.torch_tensors import decode_groups, encode_groups
from semisilo.common.process.compute import ProcessCompute
from semisilo.common.process.messages import as_json
from semisilo.common.secure_aggregation.fixed_point import largest_level
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.words import unpack
from semisilo.common.storage.state_files import StateFiles
from semisilo.common.storage.store import PayloadStore
from semisilo.silo.compute import images as images_module
from semisilo.silo.compute import operations as operations_module
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.compute.messages import Evaluated, EvaluateFile, EvaluateReceived, Survey, Surveyed, Train, Trained
from semisilo.silo.compute.operations import Operations
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.trainers.fedavg import FedAvgTrainer
from semisilo.silo.trainers.semifl import SemiFLMemory, SemiFLTrainer
from tests.common.payload.codec.test_hostile_bytes import MIB, peak_of
from tests.fuzz.seeds import payload_file

NUM_IMAGES = 60
CLASSES = tuple(str(digit) for digit in range(10))
FORM = ImageForm(size=8, channels=1, mean=(0.3,), std=(0.35,))
MODEL = ModelSettings(name="small_cnn", classes=CLASSES)
SETTINGS = {"local_epochs": 1, "unlabelled_batch": 20, "confidence_threshold": 0.1, "round_lr": 0.05}


@functools.cache
def all_digits() -> Any:
    """scikit-learn's digits, with `images` of 0 to 16 and `target`, to be left as they are: it takes a second to import
    and a part of one to read."""
    from sklearn.datasets import load_digits

    return load_digits()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An .npz of 60 digits without labels."""
    path = tmp_path_factory.mktemp("scans") / "scans.npz"
    np.savez(path, train_images=(all_digits().images[:NUM_IMAGES] * 15).astype(np.uint8))
    return str(path)


class Site:
    """The folders of a silo and the task that it was given."""

    def __init__(self, folder: Path, source: str) -> None:
        self.source = source
        self.cache = PayloadStore(folder / "cache")
        self.outgoing = PayloadStore(folder / "outgoing")
        self.memory = folder / "memory"
        self.model = initial_model(model_builder(MODEL, FORM), 1)
        self.given: dict[str, TensorGroup] = {"model": TensorGroup(self.model),
                                              "batch_norm": TensorGroup(self._statistics())}
        self.spec = TaskSpec(
            task_id="s/1/0-train/a", study="s", round=1, rounds=4, phase="train", silo="a", method="semifl",
            settings=SETTINGS, model=MODEL, image=FORM, augmentation=AugmentationSettings(policy="none"),
            numerics=Numerics(), payloads=(), last_folded_round=0, seed=1)

    def _statistics(self) -> dict[str, torch.Tensor]:
        network = model_builder(MODEL, FORM)()
        tensors.load_into(network, self.model)
        images_NCHW = torch.from_numpy((all_digits().images[:100] * 15).astype(np.uint8))[:, None]
        return batch_norm.to_tensors(batch_norm.measure(network, images_NCHW, form=FORM,
                                                        generator=torch_generator(1, "test")))

    def request(self, *, on_error: OnError = "stop", **changes: Any) -> Train:
        """The request as it arrives in the other process; `changes` by name of a field."""
        payloads = [encode_groups(self.cache, {name: group}) for name, group in self.given.items()]
        request = Train(
            task=replace(self.spec, payloads=tuple(payloads)),
            payloads={ref.digest: self.cache.path(ref.digest) for ref in payloads}, cache_folder=self.cache.folder,
            choice=JoinChoice(source=self.source, on_error=on_error), memory=None, residuals=None,
            pending_residuals=None, outgoing_folder=self.outgoing.folder, memory_folder=self.memory)
        return from_dict(Train, as_json(replace(request, **changes)))


@pytest.fixture
def site(tmp_path: Path, digits: str) -> Site:
    return Site(tmp_path, digits)


def operations() -> Operations:
    return Operations(lambda fraction, text: None)


def survey(source: str, *, labelled: str = "", test: str = "") -> Surveyed:
    return operations().survey(Survey(choice=JoinChoice(source=source, labelled=labelled, test=test)))


def test_files_that_are_no_images_are_not_told_as_images_that_cannot_be_read(tmp_path: Path) -> None:
    for number in range(12):
        Image.new("L", (8, 8), 20 * number).save(tmp_path / f"{number}.png")
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.7 no picture")
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "cut.png").write_bytes((tmp_path / "1.png").read_bytes()[:40])
    site = Site(tmp_path, str(tmp_path))
    assert operations().train(site.request(on_error="skip")).skipped == 1


def test_files_that_cannot_be_read_do_not_spoil_a_sum_in_which_silos_weigh_by_what_they_have_announced(
        tmp_path: Path) -> None:
    """The coordinator knows of as many files as there are, and uses no sum in which silos weigh less."""
    for number in range(12):
        Image.new("L", (8, 8), 20 * number).save(tmp_path / f"{number}.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "1.png").read_bytes()[:40])
    site, found = Site(tmp_path, str(tmp_path)), survey(str(tmp_path))
    assert (found.labelled, found.unlabelled) == (0, 13)
    form = MaskForm(bits=24, bounds=(1.0,) * len(list(model_builder(MODEL, FORM)().parameters())), silo_count=3,
                    weight_reference=26)
    site.spec = replace(site.spec, settings={**SETTINGS, "weighting": "size"})
    for announced, weight in ((0, 12 / 26), (13, 0.5)):
        update = operations().train(site.request(on_error="skip", announced_least=announced, masking=Masking(
            form=form, phase="train", threshold=3, seeds=()))).payload
        assert update is not None
        with PayloadReader(site.outgoing.path(update.digest)) as reader:
            ((spec, packed),) = reader.tensors("masked")
        words = unpack(packed, bits=24, count=8 * spec.num_elements // 24)
        assert int(words[-2]) == round(weight * largest_level(24, 3))


def test_a_silo_of_many_images_does_not_stand_alone_in_a_sum_of_a_study_that_weighs_silos_alike(site: Site) -> None:
    form = MaskForm(bits=24, bounds=(1.0,) * len(list(model_builder(MODEL, FORM)().parameters())), silo_count=3)
    masking = Masking(form=form, phase="train", threshold=3, seeds=())
    assert operations().train(site.request(masking=masking)).payload is not None
    with pytest.raises(SecureSumRefused, match="weighs silos by their images, and the study weighs them alike"):
        operations().train(site.request(masking=replace(masking, form=replace(form, weight_reference=NUM_IMAGES))))


def test_the_update_is_a_difference_to_what_was_received_and_lies_in_the_outgoing_store(site: Site) -> None:
    result = operations().train(site.request())
    json.dumps(as_json(result), allow_nan=False)
    assert from_dict(Trained, as_json(result)) == result
    assert result.abstention == ""
    assert result.num_examples == NUM_IMAGES
    assert result.metrics["label_ratio"] == 1.0, "no probability of ten classes has its maximum below 0.1"
    assert result.skipped == 0
    assert result.seconds > 0
    assert result.numerics is not None
    assert result.numerics.threads == 1
    ref = result.payload
    assert ref is not None
    assert ref.groups == ("model",)
    groups = decode_groups(site.outgoing.verify(ref.digest), require_finite=True)
    assert (groups["model"].meaning, groups["model"].base) == (Meaning.DIFFERENCE, tensors.digest(site.model))
    assert tensors.specs(groups["model"].tensors) == tensors.specs(site.model)
    assert tensors.norm(groups["model"].tensors) > 0


def test_the_memory_is_a_file_called_by_its_digest_and_holds_the_momentum(site: Site) -> None:
    result = operations().train(site.request())
    path = Path(str(result.memory))
    assert path.parent == site.memory
    memory = StateFiles(path.parent).load(path.stem, SemiFLMemory)
    assert memory.round == 1
    assert tensors.specs(memory.momentum) == tensors.specs(site.model)


def test_the_same_task_again_gives_the_same_bytes_and_other_memory_gives_others(site: Site) -> None:
    first = operations().train(site.request())
    again = operations().train(site.request())
    assert (again.payload, again.memory) == (first.payload, first.memory)
    with_memory = operations().train(site.request(memory=first.memory))
    assert with_memory.payload != first.payload


def test_memory_that_a_phase_leaves_as_it_is_is_not_written_again(site: Site, tmp_path: Path) -> None:
    memory = operations().train(site.request()).memory
    assert memory is not None
    before = memory.stat()
    site.spec = replace(site.spec, phase="statistics")
    del site.given["batch_norm"]
    measured = operations().train(site.request(memory=memory))
    assert measured.payload is not None
    assert measured.payload.groups == ("batch_norm",)
    assert measured.memory == memory
    assert (memory.stat().st_ino, memory.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    elsewhere = tmp_path / "brought" / memory.name
    elsewhere.parent.mkdir()
    memory.rename(elsewhere)
    assert operations().train(site.request(memory=elsewhere)).memory == memory, "it lies where it is kept"
    assert memory.is_file()


def test_memory_that_is_damaged_counts_as_none_and_is_said_so(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    first = operations().train(site.request())
    path = Path(str(first.memory))
    path.write_bytes(path.read_bytes()[:-4] + b"\1\2\3\4")
    with caplog.at_level(logging.WARNING):
        without = operations().train(site.request(memory=first.memory))
    assert without.payload == first.payload
    assert "goes on without memory" in caplog.text


def with_test_images(site: Site, folder: Path, *, images: int = 120) -> tuple[JoinChoice, EvaluateReceived]:
    """The site's images with labelled ones for testing, and the request to evaluate what its task has brought."""
    digits = all_digits()
    np.savez(folder / "test.npz", train_images=(digits.images[200:200 + images] * 15).astype(np.uint8),
             train_labels=digits.target[200:200 + images])
    choice = JoinChoice(source=site.source, test=str(folder / "test.npz"))
    order = site.request()
    request = EvaluateReceived(task=order.task, payloads=order.payloads, cache_folder=order.cache_folder, choice=choice,
                               stop_file=folder / "stop")
    return choice, from_dict(EvaluateReceived, as_json(request))


def test_the_received_model_is_evaluated_on_the_test_images_alone_by_class(site: Site, tmp_path: Path) -> None:
    _, request = with_test_images(site, tmp_path)
    found = operations().evaluate_received(request)
    assert from_dict(Evaluated, as_json(found)) == found
    network = model_builder(MODEL, FORM)()
    tensors.load_into(network, site.model)
    batch_norm.load(network, site.given["batch_norm"].tensors)
    digits = all_digits()
    images_NCHW = torch.from_numpy((digits.images[200:320] * 15).astype(np.uint8))[:, None]
    network.eval()
    with torch.no_grad():
        predicted_N = network((images_NCHW.float() / 255 - 0.3) / 0.35).argmax(dim=1).numpy()
    for label, each in enumerate(found.classes):
        of_class_N = digits.target[200:320] == label
        assert each.images == of_class_N.sum()
        assert each.correct == (predicted_N[of_class_N] == label).sum()
        assert each.auroc is not None
    assert len(found.classes) == len(CLASSES)


@pytest.mark.slow
def test_an_evaluation_changes_no_bit_of_what_is_trained_before_and_after_it(site: Site, tmp_path: Path) -> None:
    choice, request = with_test_images(site, tmp_path)
    plain = operations()
    alone = [plain.train(site.request()).payload for _ in range(2)]
    beside = operations()
    found = []
    for _ in range(2):
        found.append(beside.train(site.request(choice=choice)).payload)
        assert beside.evaluate_received(request).classes
    assert found == alone


def test_an_evaluation_stops_at_the_next_batch_when_a_task_waits(site: Site, tmp_path: Path) -> None:
    _, request = with_test_images(site, tmp_path, images=1000)
    told: list[float] = []

    def progress(fraction: float, text: str) -> None:
        if text == "evaluating the global model":
            told.append(fraction)
            request.stop_file.touch()

    found = Operations(progress).evaluate_received(request)
    assert found == Evaluated(classes=(), why_not="the next task came before it was done")
    assert len(told) == 1
    assert told[0] < 1
    assert Operations(progress).evaluate_received(request).classes == ()  # not even begun
    assert len(told) == 1


def handed_over(site: Site, path: Path) -> Path:
    """A model file as a study hands it over, of the site's network."""
    network = model_builder(MODEL, FORM)()
    tensors.load_into(network, site.model)
    batch_norm.load(network, site.given["batch_norm"].tensors)
    write_model(path, network, ModelFacts(model=inference_settings(MODEL), image=FORM, study="s", method="semifl",
                                          round=3, state="ab" * 32))
    return path


@pytest.mark.parametrize("trained_before", [False, True])
def test_a_model_that_is_handed_over_is_not_measured_on_images_that_were_trained_on(
        site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, trained_before: bool) -> None:
    """As models of rounds are not; whether their images are in memory or not."""
    choice, received = with_test_images(site, tmp_path)
    images, labels = (all_digits().images[:320] * 15).astype(np.uint8), all_digits().target[:320]
    np.savez(tmp_path / "mixed.npz", images=np.concatenate([images[190:200], images[200:320]]),
             labels=np.concatenate([labels[190:200], labels[200:320]]))
    np.savez(tmp_path / "own.npz", images=images[:200])
    choice = replace(choice, source=str(tmp_path / "own.npz"), test=str(tmp_path / "mixed.npz"))
    done = operations()
    if trained_before:
        done.train(site.request(choice=choice))
    request = EvaluateFile(path=handed_over(site, tmp_path / "model.safetensors"), choice=choice,
                           stop_file=received.stop_file)
    with caplog.at_level(logging.WARNING):
        found = done.evaluate_file(request)
    assert sum(each.images for each in found.classes) == 120
    assert "left out of the test images: 10 images with the pixels of one to train on" in caplog.text
    alone = done.evaluate_received(replace(received, choice=choice))
    assert found.classes == alone.classes


def test_a_model_that_is_handed_over_is_not_measured_on_patients_that_were_trained_on(
        site: Site, tmp_path: Path) -> None:
    _, received = with_test_images(site, tmp_path)
    for index, name in enumerate(("own/PAT1_a.png", "own/PAT2_a.png", "test/3/PAT1_b.png")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 20 * index).save(tmp_path / name)
    choice = JoinChoice(source=str(tmp_path / "own"), test=str(tmp_path / "test"), patient="name")
    with pytest.raises(BadData, match="1 patient of the test images"):
        operations().evaluate_file(EvaluateFile(path=handed_over(site, tmp_path / "model.safetensors"), choice=choice,
                                                stop_file=received.stop_file))


def test_reading_images_for_a_model_that_is_handed_over_makes_way_for_a_task_and_is_done_once(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, received = with_test_images(site, tmp_path)
    for index, name in enumerate(("own/a.png", "own/b.png", "test/3/c.png")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 20 * index).save(tmp_path / name)
    choice = JoinChoice(source=str(tmp_path / "own"), test=str(tmp_path / "test"))
    request = EvaluateFile(path=handed_over(site, tmp_path / "model.safetensors"), choice=choice,
                           stop_file=received.stop_file)
    sources: list[str] = []
    for module in (images_module, partly_labelled):
        real = module.read_images
        monkeypatch.setattr(module, "read_images", lambda source, _real=real, **keywords: (
            sources.append(Path(source).name), _real(source, **keywords))[1])
    done = operations()
    request.stop_file.touch()
    found = done.evaluate_file(request)
    assert (found.classes, found.why_not) == ((), "the next task came before it was done")
    assert sources == ["own"], "it ends with the first files"
    request.stop_file.unlink()
    sources.clear()
    assert [sum(each.images for each in done.evaluate_file(request).classes) for _ in range(2)] == [1, 1]
    assert sources == ["own", "test"], "kept for the next model"


def test_without_the_statistics_that_a_network_needs_it_is_not_evaluated(site: Site, tmp_path: Path) -> None:
    del site.given["batch_norm"]
    site.spec = replace(site.spec, method="fedsgd", settings={})
    _, request = with_test_images(site, tmp_path)
    found = operations().evaluate_received(request)
    assert found.classes == ()
    assert "batch-norm statistics" in found.why_not


def test_an_abstention_has_a_reason_and_no_payload(site: Site) -> None:
    site.spec = replace(site.spec, settings={**SETTINGS, "confidence_threshold": 1.0})
    result = operations().train(site.request())
    assert result.abstention == "no_confident_example"
    assert result.payload is None
    assert result.memory is None
    assert result.metrics == {"label_ratio": 0.0}
    assert site.outgoing.digests() == set()


def test_images_are_read_once_for_the_same_form(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = readers.read_images

    def counting(source: str, **keywords: Any) -> Any:
        sizes.append(keywords["size"])
        return real(source, **keywords)

    monkeypatch.setattr(partly_labelled, "read_images", counting)
    same = operations()
    for _ in range(2):
        same.train(site.request())
    site.spec = replace(site.spec, image=replace(FORM, mean=(0.5,)))
    same.train(site.request())
    assert sizes == [8], "mean and deviation are applied to batches, not to what is in memory"
    site.spec = replace(site.spec, image=replace(FORM, size=9))
    same.train(site.request())
    assert sizes == [8, 9]


def test_labels_at_a_silo_are_never_seen_by_the_trainer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.source = "digits"
    seen: list[Any] = []

    def look(self: SemiFLTrainer, task: Any, data: Any, memory: Any) -> tuple[Update, None]:
        seen.append(data)
        return Update(abstention="no_data"), None

    monkeypatch.setattr(SemiFLTrainer, "train", look)
    operations().train(site.request())
    assert seen[0].labelled is None
    assert seen[0].unlabelled.labels_N is None
    assert len(seen[0].unlabelled) == 1797


AT_SILO = {"scenario": "labels-at-silo", "objective": "sl", "labelled_batch": 4, "round_lr": 0.05}


def part(folder: Path, *, labelled: int, unlabelled: int, **arrays: Any) -> str:
    """A silo's part of digits: the first ones are labelled."""
    pixels = (all_digits().images * 15).astype(np.uint8)
    np.savez(folder / "part.npz", labelled_images=pixels[:labelled], labelled_labels=all_digits().target[:labelled],
             unlabelled_images=pixels[labelled:labelled + unlabelled], **arrays)
    return str(folder / "part.npz")


def test_with_labels_at_silos_the_trainer_sees_both_kinds_and_in_each_round_its_step(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.source = part(tmp_path, labelled=5, unlabelled=9, unlabelled_steps=np.repeat([0, 1, 2], [2, 3, 4]),
                       rounds_per_step=2)
    site.spec = replace(site.spec, method="fedavg", settings=AT_SILO)
    seen: list[Any] = []
    read: list[str] = []
    real = partly_labelled.read_images

    def look(self: FedAvgTrainer, task: Any, data: Any, memory: Any) -> tuple[Update, None]:
        seen.append(data)
        return Update(abstention="no_data"), None

    def counting(source: str, **keywords: Any) -> Any:
        read.append(source.rpartition("#")[2])
        return real(source, **keywords)

    monkeypatch.setattr(FedAvgTrainer, "train", look)
    monkeypatch.setattr(partly_labelled, "read_images", counting)
    same = operations()
    for number in (1, 2, 3, 6, 7):
        site.spec = replace(site.spec, round=number, rounds=9)
        same.train(site.request())
    assert [len(data.unlabelled) for data in seen] == [2, 2, 3, 4, 4]
    assert {len(data.labelled) for data in seen} == {5}
    assert seen[0].labelled.labels_N.tolist() == all_digits().target[:5].tolist()
    assert all(data.unlabelled.labels_N is None for data in seen)
    assert read == ["labelled", "unlabelled"], "once for all rounds"
    site.spec = replace(site.spec, settings={**AT_SILO, "scenario": "labels-at-coordinator", "objective": "fixmatch"})
    same.train(site.request())
    assert (seen[-1].labelled, len(seen[-1].unlabelled)) == (None, 5 + 4), "another scenario is read anew"
    assert seen[-1].unlabelled.labels_N is None
    assert len(read) == 4


def test_a_silo_with_labels_trains_on_them(site: Site, tmp_path: Path) -> None:
    site.source = part(tmp_path, labelled=30, unlabelled=0)
    site.spec = replace(site.spec, method="fedavg", settings=AT_SILO)
    result = operations().train(site.request())
    assert (result.abstention, result.num_examples) == ("", 30)
    assert result.metrics["labelled_loss"] > 0


@pytest.mark.parametrize("method", ["semifl", "fedavg"])
def test_a_silo_without_any_image_abstains(site: Site, tmp_path: Path, method: str) -> None:
    site.source = part(tmp_path, labelled=0, unlabelled=0)
    assert survey(site.source) == Surveyed(labelled=0, unlabelled=0, test=0, steps=0)
    site.spec = replace(site.spec, method=method, settings=AT_SILO if method == "fedavg" else SETTINGS)
    result = operations().train(site.request())
    assert (result.abstention, result.payload) == ("no_data", None)


def _setting_torch(read: Any) -> Any:
    """As a format plug-in may, or what it imports."""
    def reading(*args: Any, **by_name: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(5)
        torch.set_deterministic_debug_mode("warn")
        torch.set_num_threads(torch.get_num_threads() + 1)
        return read(*args, **by_name)

    return reading


def test_what_a_format_plug_in_sets_in_torch_ends_with_the_reading(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are read once, so the first task after a restart would be trained with other settings than the rest."""
    usual = operations().train(site.request()).payload
    monkeypatch.setattr(operations_module, "read_silo_images", _setting_torch(operations_module.read_silo_images))
    generator = torch.get_rng_state()
    working = operations()
    try:
        working._silo_images(site.spec, "labels-at-coordinator", JoinChoice(source=site.source))
        assert (torch.get_default_dtype(), torch.get_deterministic_debug_mode()) == (torch.float32, 2)
        assert torch.get_num_threads() == 1
        assert torch.equal(torch.get_rng_state(), generator)
        assert operations().train(site.request()).payload == usual
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_class_that_the_study_does_not_have_is_refused_where_labels_count(site: Site, tmp_path: Path) -> None:
    site.source = part(tmp_path, labelled=10, unlabelled=50)
    site.spec = replace(site.spec, model=replace(MODEL, classes=CLASSES[:5]))
    choice = JoinChoice(source=site.source)
    with pytest.raises(BadData, match=r"part\.npz#labelled: label 9 of image 9 is out of range") as caught:
        operations()._silo_images(site.spec, "labels-at-silo", choice)
    assert "the study has 5 classes" in caught.value.text
    images, _ = operations()._silo_images(site.spec, "labels-at-coordinator", choice)
    assert images.unlabelled is not None
    assert len(images.unlabelled) == 60


@pytest.mark.parametrize(("given", "text"), [
    ({"sigma": TensorGroup({"w": torch.zeros(2)})}, "sigma"),
    ({"model": TensorGroup({"w": torch.zeros(2)}, Meaning.DIFFERENCE, "0" * 64)}, "difference"),
    ({"model": TensorGroup({"w": torch.tensor([float("nan")])})}, "NaN")])
def test_groups_that_the_method_does_not_declare_and_numbers_that_are_not_finite_are_refused(
        site: Site, given: dict[str, TensorGroup], text: str) -> None:
    site.given |= given
    with pytest.raises(BadPayload, match=text):
        operations().train(site.request())


def test_a_group_much_larger_than_the_network_is_refused_before_memory_is_taken(site: Site) -> None:
    """40 kB that stand for 400 MB: of numbers that are all the same, or all zero."""
    for value in (0.0, 0.1):
        big = {f"w{number}": torch.full((2**20,), value) for number in range(2)}
        small = encode_groups(site.cache, {"model": TensorGroup(big)}, plan=Plan(aim=Aim.SMALLEST))
        path = site.cache.path(small.digest)
        with PayloadReader(path) as reader:
            group, = reader.groups
            body = path.read_bytes()[reader.first_block:][:group.encoded_bytes // 2] * 100
        specs = tuple(replace(group.tensors[0], name=f"w{number}") for number in range(100))
        content = payload_file([replace(group, tensors=specs, encoded_bytes=len(body))], body)
        assert len(content) < 50_000
        payload = PayloadRef(hashlib.sha256(content).hexdigest(), len(content), ("model",))
        request = site.request()
        request = replace(request, task=replace(request.task, payloads=(payload,)),
                          payloads={payload.digest: site.cache.add_bytes(content, payload.digest)})

        def work(request: Train = request) -> None:
            with pytest.raises(BadPayload, match=r"^The group 'model' has 419\.4 MB when decoded; with the network of"
                                                 r" study s at most 17\.2 MB can be\.(\n|$)"):
                operations().train(request)

        assert peak_of(work) < 16 * MIB


def test_a_task_for_which_there_is_no_memory_is_put_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.silo.compute.received.free_bytes", lambda: 1000)
    with pytest.raises(SystemTrouble, match=r"need .* of memory; 1.* kB are free"):
        operations().train(site.request())


def test_a_group_that_comes_twice_or_was_not_fetched_is_refused(site: Site) -> None:
    request = site.request()
    again = encode_groups(site.cache, {"model": TensorGroup(tensors.scale(site.model, 2.0))})
    request = replace(request, task=replace(request.task, payloads=(*request.task.payloads, again)))
    with pytest.raises(BadPayload, match="not fetched"):
        operations().train(request)
    request.payloads[again.digest] = site.cache.path(again.digest)
    with pytest.raises(BadPayload, match="twice"):
        operations().train(request)


def test_a_model_factory_is_imported_only_if_this_silo_permits_it(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sent_networks.py").write_text(
        "from torch import nn\n\n\ndef linear(*, num_classes, channels, size):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, num_classes))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = ModelSettings(name="sent_networks:linear", classes=CLASSES)
    weights = initial_model(model_builder(model, FORM, ("sent_networks:linear",)), 1)
    site.spec, site.given = replace(site.spec, model=model), {"model": TensorGroup(weights)}
    with pytest.raises(NotPermitted):
        operations().train(site.request())
    assert operations().train(site.request(factories=("sent_networks:linear",))).payload is not None


def test_a_metric_that_is_not_finite_means_that_training_diverged(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Update(groups={"model": TensorGroup(site.model, Meaning.DIFFERENCE, "0" * 64)},
                    metrics={"loss": float("nan")})
    monkeypatch.setattr(SemiFLTrainer, "train", lambda *arguments: (update, None))
    with pytest.raises(ComputeFailed, match="diverged: loss is nan"):
        operations().train(site.request())
    assert site.outgoing.digests() == set()


@pytest.mark.parametrize("update", [
    Update(groups={"patients": TensorGroup({"x": torch.zeros(1)})}),
    Update(groups={"model": TensorGroup({"x": torch.zeros(1)})}),
    Update(groups={"model": TensorGroup({"x": torch.zeros(1)}, Meaning.DIFFERENCE, "0" * 64)}, metrics={"age": 1.0}),
    Update()], ids=["undeclared group", "undeclared meaning", "undeclared metric", "nothing at all"])
def test_what_the_method_does_not_declare_is_never_written_out(
        site: Site, monkeypatch: pytest.MonkeyPatch, update: Update) -> None:
    monkeypatch.setattr(SemiFLTrainer, "train", lambda *arguments: (update, None))
    with pytest.raises(AssertionError, match="trainer semifl"):
        operations().train(site.request())
    assert site.outgoing.digests() == set()


def test_a_survey_counts_with_and_without_class(site: Site, tmp_path: Path) -> None:
    assert survey(site.source) == Surveyed(labelled=0, unlabelled=NUM_IMAGES, test=0, steps=0)
    assert survey("digits") == Surveyed(labelled=1797, unlabelled=0, test=0, steps=0)
    assert survey(site.source, labelled="digits#train", test="digits#test") == Surveyed(
        labelled=1442, unlabelled=NUM_IMAGES, test=355, steps=0)
    with pytest.raises(BadData):
        survey(str(tmp_path / "nothing"))


@pytest.mark.slow
def test_a_process_gives_the_same_bits_as_this_one(site: Site, tmp_path: Path) -> None:
    here = operations().train(site.request())
    heard: list[float] = []

    async def scenario() -> Trained:
        compute = ProcessCompute("semisilo.silo.compute.operations:Operations")
        try:
            request = site.request(outgoing_folder=tmp_path / "other", memory_folder=tmp_path / "kept")
            return await compute.call(request, on_progress=lambda fraction, text: heard.append(fraction))
        finally:
            await compute.close()

    there = asyncio.run(scenario())
    assert there.payload == here.payload
    assert Path(str(there.memory)).name == Path(str(here.memory)).name
    assert there.metrics == here.metrics
    assert there.numerics == here.numerics
    assert heard[-1] == 1.0


def test_a_silo_that_has_announced_labels_does_not_train_without_them(tmp_path: Path) -> None:
    """A share below the source that goes away leaves an empty folder; once it is back, the task is done."""
    scans = tmp_path / "scans"
    for name in ("labelled/0/a.png", "labelled/1/b.png", "unlabelled/c.png", "unlabelled/d.png"):
        (scans / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(ord(name[-5])).integers(0, 256, (8, 8))
        Image.fromarray(pixels.astype(np.uint8)).save(scans / name)
    silo = Site(tmp_path / "silo", str(scans))
    silo.spec = replace(silo.spec, method="fedavg", settings={"scenario": "labels-at-silo", "round_lr": 0.05})
    done = operations()
    (scans / "labelled").rename(tmp_path / "mounted")
    (scans / "labelled").mkdir()
    for _ in range(2):
        with pytest.raises(BadData, match="2 images had a label when `silo join` began, and none has now"):
            done.train(silo.request(announced_labelled=2))
    (scans / "labelled").rmdir()
    (tmp_path / "mounted").rename(scans / "labelled")
    assert done.train(silo.request(announced_labelled=2)).payload is not None
