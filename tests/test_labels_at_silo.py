"""Whole federations of real processes whose labels are at the silos: what each of them holds, steps, and a restart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.processes import FederationOfProcesses, federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SILOS = ("alpha", "beta", "gamma")
LABELLED, UNLABELLED = 40, 60
"""Images of each silo."""
STUDY = """
[study]
seed = 3
rounds = 4
start_with = 3
[model]
name = "small_cnn"
[data]
test = "test.npz"
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
image = {{ size = 8, channels = 1, mean = [0.3], std = [0.38] }}
[numerics]
threads = 1
[augmentation]
policy = "small"
without = ["Invert", "Solarize"]
[method]
name = "fedavg"
scenario = "labels-at-silo"
objective = "fixmatch"
local_epochs = 10
labelled_batch = 10
lambda_s = 1.0
lr = 0.05
momentum = 0.9
confidence_threshold = 0.7
[participation]
round_timeout = "{timeout}"
"""


def deal(processes: FederationOfProcesses) -> None:
    """alpha: an .npz of two parts whose unlabelled images come in two steps, of 20 and 40 images, the first for two
    rounds. beta: the same without steps. gamma: folders. No image is held twice."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * 255 / 16).astype(np.uint8)
    for number, silo in enumerate(SILOS):
        start = 100 + (LABELLED + UNLABELLED) * number
        labelled = slice(start, start + LABELLED)
        unlabelled = slice(start + LABELLED, start + LABELLED + UNLABELLED)
        if silo == "gamma":
            continue
        steps = {"unlabelled_steps": np.repeat([0, 1], [20, 40]), "rounds_per_step": np.array(2)}
        np.savez(processes.sources[silo], labelled_images=pixels[labelled], labelled_labels=digits.target[labelled],
                 unlabelled_images=pixels[unlabelled], **(steps if silo == "alpha" else {}))
    folder = processes.sources["gamma"] = processes.folder / "scans"
    for index in range(labelled.start, labelled.stop):
        path = folder / "labelled" / str(digits.target[index]) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[index]).save(path)
    (folder / "unlabelled").mkdir()
    for index in range(unlabelled.start, unlabelled.stop):
        Image.fromarray(pixels[index]).save(folder / "unlabelled" / f"{index}.png")


def run(processes: FederationOfProcesses, *, crash: str = "") -> None:
    """Starts everything, with a crash point in the first silo."""
    deal(processes)
    processes.start(silo_crash=crash)


def test_silos_with_labels_learn_together_and_a_killed_one_changes_no_bit(tmp_path: Path) -> None:
    with federation(tmp_path / "undisturbed", silos=SILOS, study=STUDY) as processes:
        run(processes)
        digest = processes.finish()
        assert processes.query("SELECT name, labelled_count, unlabelled_count FROM silo ORDER BY name") == [
            (silo, LABELLED, UNLABELLED) for silo in SILOS]
        assert processes.query("SELECT state, reason FROM task WHERE state != 'updated'") == []
        examples = {silo: [count for (count,) in processes.query(
            "SELECT example_count FROM declared_update JOIN task USING (task_id) WHERE silo = "
            f"'{silo}' AND json_extract(spec_json, '$.phase') = 'train' ORDER BY round")] for silo in SILOS}
        all_of_it = [LABELLED + UNLABELLED] * 4
        assert examples == {"alpha": [LABELLED + 20] * 2 + [LABELLED + 40] * 2, "beta": all_of_it, "gamma": all_of_it}
        accuracies = [json.loads(str(metrics)).get("accuracy") for (metrics,) in processes.query(
            "SELECT metrics_json FROM round ORDER BY number")]
        assert accuracies[-1] > 0.5, f"ten classes, so chance is 0.1: {accuracies}"
        assert processes.query("SELECT baseline_json FROM study") == [(None,)]
        assert "labelled" in processes.coordinator("status")
        processes.coordinator("report", "first", "--out", str(tmp_path / "report"))
        assert "Labels alone" not in (tmp_path / "report" / "index.html").read_text()
    with federation(tmp_path / "killed", silos=SILOS, study=STUDY) as processes:
        run(processes, crash="semisilo.silo.site.memory:SiloMemory.record_pending:4:before")
        processes.died("alpha")
        processes.join("alpha")
        assert processes.finish() == digest
