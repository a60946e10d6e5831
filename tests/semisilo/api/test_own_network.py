"""A network and images of one's own in a simulation: `simulate(model=..., labelled=..., unlabelled=...)`."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import semisilo
from semisilo.api.setup import Setup, stored
from semisilo.common.data.formats import archive
from semisilo.common.errors import BadConfiguration, SemisiloError, UsageError
from semisilo.common.models.own import given
from semisilo.simulation import run as run_simulation
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.settings import load_simulated_study
from tests.semisilo.studies import study

QUICK = {"name": "semifl", "local_epochs": 1, "coordinator_epochs": 1, "confidence_threshold": 0.11}
CALL: dict[str, Any] = {"method": QUICK, "silos": 2, "rounds": 1, "labelled_only": False, "progress": False,
                        "device": "cpu", "engine": "process"}


class Net(nn.Module):
    """With a batch-norm layer, which has to be replaced like that of any other network."""

    def __init__(self, num_classes: int, channels: int, size: int, width: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(channels * size * size, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(self.norm(self.hidden(images_BCHW.flatten(1)))))
        return found


class Flat(nn.Module):
    """Without normalisation, which a batch-norm layer over vectors would not survive here."""

    def __init__(self, num_classes: int, channels: int, size: int, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, width), nn.ReLU(),
                                    nn.Linear(width, num_classes))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        found: Tensor = self.layers(images_BCHW)
        return found


class Unlabelled(Dataset[Any]):
    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    found = archive.digits("train", source="digits")
    assert found.images is not None
    assert found.labels_N is not None
    return torch.from_numpy(found.images), torch.from_numpy(np.asarray(found.labels_N))


def sets(digits: tuple[Tensor, Tensor]) -> dict[str, Any]:
    images, labels = digits
    return {"labelled": TensorDataset(images[:40], labels[:40]), "unlabelled": Unlabelled(images[40:240]),
            "test": TensorDataset(images[240:300], labels[240:300])}


def test_data_sets_and_a_network_of_ones_own_are_all_that_a_simulation_needs(digits: tuple[Tensor, Tensor]) -> None:
    found = semisilo.simulate(**sets(digits), model=Flat, **CALL)
    assert found.test_images.total == 60
    assert found.completed[-1].round == 1
    assert found.label_ratio is not None
    silos = {each.silo: each for each in found.silos}
    assert len(silos) == 2
    assert "label_accuracy" not in next(iter(silos.values())).metrics, "nobody knows the classes of these images"


def test_a_network_that_cannot_answer_one_image_is_refused_before_it_is_trained(digits: tuple[Tensor, Tensor]) -> None:
    class Squeezes(Flat):
        def forward(self, images_BCHW: Tensor) -> Tensor:
            return super().forward(images_BCHW).squeeze()

    with pytest.raises(semisilo.SemisiloError, match="answers 1 image in evaluation"):
        semisilo.simulate(**sets(digits), model=Squeezes, **CALL)


@pytest.mark.slow
def test_classes_of_unlabelled_images_are_for_diagnostics_and_change_no_bit(digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    without = semisilo.simulate(**sets(digits), model=Flat, **CALL)
    known = semisilo.simulate(**{**sets(digits), "unlabelled": TensorDataset(images[40:240], labels[40:240])},
                              model=Flat, **CALL)
    assert known.digest == without.digest
    assert known.folder != without.folder


def test_the_coordinator_gets_its_images_whole_and_silos_all_the_others(tmp_path: Path,
                                                                        digits: tuple[Tensor, Tensor]) -> None:
    images, labels = (each.numpy() for each in digits)
    for name, part in {"labelled": slice(0, 40), "unlabelled": slice(40, 240)}.items():
        np.savez(tmp_path / f"{name}.npz", images=images[part],
                 **({"labels": labels[part]} if name == "labelled" else {}))
    tables = study(simulation={"data": "unlabelled.npz", "labelled": "labelled.npz"})
    tables["simulation"]["split"] = {"name": "iid", "silos": 4}
    dealt = deal_study(load_simulated_study(tables))
    own = dealt.coordinator_set("labelled")
    assert own is not None
    assert own.labels_N is not None
    assert np.array_equal(own.images_NCHW[:, 0].numpy(), images[:40])
    assert own.labels_N.tolist() == labels[:40].tolist()
    held = [dealt.silos_images()[index] for index in range(4)]
    assert all(each.unlabelled is not None and each.unlabelled.labels_N is None for each in held)
    together = np.concatenate([each.unlabelled.images_NCHW[:, 0].numpy() for each in held if each.unlabelled])
    assert sorted(map(bytes, together)) == sorted(map(bytes, images[40:240]))
    for key, value in {"num_labelled": 20, "num_test": 10, "fraction": 0.5, "labelled_per_class": 1}.items():
        wrong = {**tables, "simulation": {**tables["simulation"], "split": {"name": "iid", "silos": 4, key: value}}}
        with pytest.raises(BadConfiguration, match=f"{key}.* no effect"):
            deal_study(load_simulated_study(wrong))
    shards = {**tables, "simulation": {**tables["simulation"], "split": {"name": "shards", "silos": 4}}}
    with pytest.raises(BadConfiguration, match="has no labels, which the split"):
        deal_study(load_simulated_study(shards))


def test_unlabelled_images_may_all_have_minus_one_for_a_label(tmp_path: Path) -> None:
    pixels = np.zeros((3, 8, 8), np.uint8)
    found = stored((pixels, np.full(3, -1)), tmp_path, where="unlabelled", labelled=False)
    assert found == stored(pixels, tmp_path, where="unlabelled", labelled=False)
    with pytest.raises(SemisiloError, match="labelled: no image has a label"):
        stored((pixels, np.full(3, -1)), tmp_path, where="labelled")


@pytest.mark.parametrize("colour", ["labelled", "unlabelled", ""])
def test_images_have_colours_where_the_labels_or_the_silos_images_have_them(digits: tuple[Tensor, Tensor],
                                                                            colour: str) -> None:
    images, labels = digits
    for name, part in {"labelled": slice(0, 40), "unlabelled": slice(40, 240)}.items():
        pixels = images[part].numpy()
        np.savez(f"{name}.npz", images=np.stack([pixels] * 3, axis=-1) if name == colour else pixels,
                 **({"labels": labels[part]} if name == "labelled" else {}))
    setup = Setup(labelled=str(Path("labelled.npz").absolute()), data=str(Path("unlabelled.npz").absolute()))
    assert setup.seen().channels == (3 if colour else 1)


@pytest.mark.parametrize(("arguments", "says"), [
    ({"data": "digits", "labelled": "digits"}, "data has no effect"), ({"labelled": "digits"}, "unlabelled is missing"),
    ({"unlabelled": "digits"}, "labelled is missing"), ({}, "There are no images"),
    ({"labelled": "digits#test", "unlabelled": "digits", "num_labelled": 10}, "num_labelled has no effect"),
    ({"data": [1, 2], "num_labelled": 10}, r"data\[0\]: is neither a path"),
    ({"data": {1: 2}, "num_labelled": 10}, "data: is neither a path"),
    ({"data": "digits", "num_labelled": 10, "model": 17}, "neither a network's name nor a network")])
def test_what_contradicts_itself_is_said_before_anything_runs(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(SemisiloError, match=says):
        semisilo.simulate(**arguments, progress=False)


@pytest.mark.slow
def test_another_network_is_another_run_and_the_same_one_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {**CALL, "data": "digits", "num_labelled": 20, "tables": {"simulation": {"split": {"fraction": 0.12}}}}
    first = semisilo.simulate(model=Flat, **call)
    other = semisilo.simulate(model=lambda num_classes, channels, size: Flat(num_classes, channels, size, width=9),
                              **call)
    assert other.folder != first.folder
    monkeypatch.setattr("semisilo.simulation.simulate.simulate", None)
    again = semisilo.simulate(model=Flat, **call)
    assert (again.folder, again.digest) == (first.folder, first.digest)
    monkeypatch.undo()
    monkeypatch.chdir(first.folder.parents[1])
    with pytest.raises(UsageError, match="another config"):
        semisilo.simulate(model=Net, out=first.folder, **call)


def test_a_built_network_starts_with_its_own_weights(tmp_path: Path) -> None:
    network = Flat(10, 1, 8)
    with torch.no_grad():
        network.layers[3].bias.copy_(torch.arange(10.0))
    tables = study("fedavg", scenario="labels-at-silo", rounds=1, settings={"lr": 1e-12, "momentum": 0.0})
    handed = given.give(network, num_classes=10, channels=1, size=8)
    tables["model"] = {"name": handed.name, "factory_sha256": handed.sha256}
    result = run_simulation(tables, out=tmp_path / "run", device="cpu", engine="process")
    exported = semisilo.load_run(result.folder).export(tmp_path / "export", round="last", formats=("safetensors",))
    from safetensors.torch import load_file

    tensors = load_file(exported.folder / "model.safetensors")
    assert torch.allclose(tensors["layers.3.bias"], torch.arange(10.0), atol=1e-6)


@pytest.mark.slow  # quickly: that a packed network reaches another process, in common/models/own/test_given.py
def test_processes_train_a_network_that_was_handed_over_with_the_bits_of_one(tmp_path: Path) -> None:
    handed = given.give(lambda num_classes, channels, size: Net(num_classes, channels, size, width=9),
                        num_classes=10, channels=1, size=8)
    tables = study(rounds=2, silos=3, settings={"lr": 0.001})
    tables["model"] = {"name": handed.name, "factory_sha256": handed.sha256}
    one = run_simulation(tables, out=tmp_path / "one", device="cpu", engine="process")
    two = run_simulation(tables, out=tmp_path / "two", device="cpu", workers=2)
    assert two.digest == one.digest


def test_a_network_that_cannot_leave_the_process_is_trained_here_and_says_so(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()

    def build(num_classes: int, channels: int, size: int) -> nn.Module:
        with lock:
            return Flat(num_classes, channels, size)

    handed = given.give(build, num_classes=10, channels=1, size=8)
    tables = study(rounds=1)
    tables["model"] = {"name": handed.name, "factory_sha256": handed.sha256}
    with caplog.at_level(logging.WARNING, "semisilo.simulation"):
        result = run_simulation(tables, out=tmp_path / "run", device="cpu", workers=2)
    assert len(result.curve) == 2
    assert "cannot be given to other processes: TypeError" in caplog.text
    assert "silos train in this process" in caplog.text


def test_another_process_reads_the_model_once_it_is_handed_the_network(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    call = {**CALL, "data": "digits", "num_labelled": 20, "tables": {"simulation": {"split": {"fraction": 0.12}}}}
    trained = semisilo.simulate(model=Flat, **call)
    expected = trained.predict("digits#test").probabilities
    folder = trained.export(tmp_path / "export", formats="safetensors").folder
    monkeypatch.setattr(given, "_GIVEN", {})  # as in another process
    with pytest.raises(BadConfiguration, match="handed over from Python"):
        semisilo.predict(folder, "digits#test")
    with pytest.raises(UsageError, match="another network than the one that was trained"):
        semisilo.predict(folder, "digits#test", network=lambda num_classes, channels, size: Flat(10, 1, 8, width=9))
    assert np.array_equal(semisilo.predict(folder, "digits#test", network=Flat).probabilities, expected)


@pytest.mark.slow
def test_a_file_beside_the_study_builds_the_network_and_goes_with_the_export(tmp_path: Path) -> None:
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n\ndef build(num_classes, channels, size):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, num_classes))\n")
    call = {**CALL, "data": "digits", "num_labelled": 20, "tables": {"simulation": {"split": {"fraction": 0.12}}}}
    trained = semisilo.simulate(model={"factory": "my_net.py:build"}, **call)
    folder = trained.export(tmp_path / "export", formats=("safetensors",)).folder
    assert (folder / "my_net.py").read_text() == (tmp_path / "my_net.py").read_text()
    with pytest.raises(SemisiloError, match="not permitted"):
        semisilo.predict(folder, "digits#test")
    found = semisilo.predict(folder, "digits#test", allow_factories=("my_net.py:build",))
    assert found.accuracy is not None
    with (tmp_path / "my_net.py").open("a") as file:
        file.write("# another file, so another study\n")
    assert semisilo.simulate(model={"factory": "my_net.py:build"}, **call).folder != trained.folder
