"""Trained weights, frozen parts and a network of timm on real processes: the bits of the simulation, and the frozen
tensors once for each silo. And images of many sizes, which a study brings to one."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from semisilo.simulation import run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.parts import write_coordinator, write_parts
from semisilo.simulation.settings import load_simulated_study
from tests.processes import federation
from tests.semisilo.studies import study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("simulated_in_one_process"),
              pytest.mark.skipif(find_spec("timm") is None, reason="the extra timm is not installed")]

SILOS = ("silo-000", "silo-001")
AT_COORDINATOR, AT_SILO = "labels-at-coordinator", "labels-at-silo"
METHODS = {AT_COORDINATOR: ("semifl", "fedmatch"), AT_SILO: ("fedavg", "fed_shvr")}
FROZEN = ["conv1", "bn1", "layer1", "layer2"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained network of timm for five classes of colour images."""
    import timm

    torch.manual_seed(4)
    model = timm.create_model("test_resnet", num_classes=5)
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 32, 32))
    path = tmp_path_factory.mktemp("weights") / "test_resnet.safetensors"
    save_file(model.state_dict(), path)
    return path


def tables_of(method: str, scenario: str, weights: Path) -> dict[str, Any]:
    tables = study(method, scenario, silos=len(SILOS))
    tables["model"] = {"name": "timm/test_resnet", "weights": str(weights), "freeze": FROZEN}
    tables["data"]["image"]["size"] = 16
    return tables


@pytest.mark.parametrize("scenario", [AT_COORDINATOR, AT_SILO])
def test_studies_with_frozen_layers_end_with_the_bits_of_the_simulation(
        tmp_path: Path, weights: Path, scenario: str) -> None:
    tables = {method: tables_of(method, scenario, weights) for method in METHODS[scenario]}
    dealt = {method: deal_study(load_simulated_study(each)) for method, each in tables.items()}
    write_parts(dealt[METHODS[scenario][0]], tmp_path / "parts")
    with federation(tmp_path, silos=SILOS) as processes:
        studies = processes.hub / "studies"
        shutil.rmtree(studies / "first")
        for method, each in dealt.items():
            write_coordinator(each, studies / method.replace("_", "-"))
        processes.serve()
        for silo in SILOS:
            processes.enroll(silo)
        for silo in SILOS:
            processes.sources[silo] = tmp_path / "parts" / "silos" / f"{silo}.npz"
            processes.join(silo)
        simulated = {method: run(each, out=tmp_path / f"simulated-{method}", device="cpu")
                     for method, each in tables.items()}
        for name in ("coordinator", *SILOS):
            status = processes.running.pop(name).wait(300)
            assert status == 0, f"{name} ended with {status}:\n{processes.log(name)}"
        for method, result in simulated.items():
            name = method.replace("_", "-")
            (frozen, state), = processes.query(f"SELECT frozen_json, state FROM study WHERE name = '{name}'")
            assert state == "completed", processes.log("coordinator")
            digest, = processes.query(f"SELECT state_digest FROM round WHERE study = '{name}' ORDER BY number DESC"
                                      " LIMIT 1")
            assert digest == (result.digest,)
            sent = processes.query("SELECT silo, count, bytes FROM cost WHERE item = 'frozen' AND kind = 'payload' AND"
                                   f" direction = 'down' AND study = '{name}' ORDER BY silo")
            # Studies run in the order of their names. The second has the same frozen tensors, which its silos hold.
            first = name == min(each.replace("_", "-") for each in METHODS[scenario])
            assert [(silo, count) for silo, count, _ in sent] == ([(silo, 1) for silo in SILOS] if first else [])
            assert all(isinstance(size, int) and size > 4 * 60_000 * 0.7 for *_, size in sent)
            assert processes.query("SELECT 1 FROM cost WHERE item = 'frozen' AND direction = 'up'") == []
            facts = json.loads(str(frozen))
            assert facts["weights"] == "test_resnet.safetensors"
            assert facts["left_random"] == ["fc.weight", "fc.bias"]
            model = load_file(studies / name / "model.safetensors")
            given = load_file(weights)
            for key in ("bn1.weight", "layer1.0.conv1.weight", "layer2.0.bn1.bias"):
                assert torch.equal(model[key], given[key]), key
            assert torch.equal(model["layer1.0.bn1.mean"], given["layer1.0.bn1.running_mean"])
            assert not torch.equal(model["layer4.0.conv1.weight"], given["layer4.0.conv1.weight"])


MIXED = """
[study]
seed = 3
rounds = 2
start_with = 2
labelled_only_baseline = false
[model]
name = "timm/test_resnet"
[data]
labelled = "labelled"
test = "test"
image = {{ size = 24, channels = 3 }}
[numerics]
threads = 1
[augmentation]
policy = "small"
[method]
name = "semifl"
confidence_threshold = 0.0
local_epochs = 1
coordinator_epochs = 1
labelled_batch = 12
unlabelled_batch = 10
lr = 0.02
[participation]
round_timeout = "{timeout}"
"""


def write_pictures(folder: Path, indices: range, *, size: tuple[int, int], ending: str, classes: bool) -> None:
    """Digits as files of one size (width, height), in class folders or flat."""
    from sklearn.datasets import load_digits

    digits = load_digits(n_class=3)
    for index in indices:
        into = folder / f"class-{digits.target[index]}" if classes else folder
        into.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(np.round(digits.images[index] * 255 / 16).astype(np.uint8)).resize(size)
        picture.save(into / f"{index:04d}.{ending}")


def test_a_silo_with_large_photographs_and_one_with_small_pictures_take_part_in_one_study(tmp_path: Path) -> None:
    with federation(tmp_path, study=MIXED) as processes:
        first = processes.hub / "studies" / "first"
        for part, indices in (("labelled", range(24)), ("test", range(24, 60))):
            half = len(indices) // 2
            write_pictures(first / part, indices[:half], size=(512, 480), ending="jpg", classes=True)
            write_pictures(first / part, indices[half:], size=(28, 28), ending="png", classes=True)
        write_pictures(tmp_path / "large", range(60, 90), size=(512, 480), ending="jpg", classes=False)
        write_pictures(tmp_path / "small", range(90, 120), size=(28, 28), ending="png", classes=False)
        processes.sources = {"alpha": tmp_path / "large", "beta": tmp_path / "small"}
        processes.serve()
        for silo in ("alpha", "beta"):
            processes.enroll(silo)
            processes.join(silo)
        processes.finish(seconds=300)
        states = processes.query("SELECT silo, state, count(*) FROM task GROUP BY silo, state ORDER BY silo")
        assert states == [("alpha", "updated", 2), ("beta", "updated", 2)], processes.log("alpha")
        numbers = processes.query("SELECT silo, example_count FROM declared_update JOIN task USING (task_id)"
                                  " ORDER BY silo")
        assert dict(numbers) == {"alpha": 30, "beta": 30}
        metrics = processes.query("SELECT metrics_json FROM round ORDER BY number")
        assert all(0 <= json.loads(str(row[0]))["accuracy"] <= 1 for row in metrics)
