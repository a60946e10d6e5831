"""A study whose images have several labels, on real processes: the bits are those of the simulation, the silo tests the
global model on its own images, and a table with "A|B" is what a silo joins with."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisilo.simulation import run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.parts import write_coordinator, write_parts
from semisilo.simulation.settings import load_simulated_study
from tests.processes import federation
from tests.semisilo.simulation.test_multi_label import tables_of
from tests.two_digits import CLASSES, write_two_digits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("simulated_in_one_process")]

SILOS = ("silo-000", "silo-001")


def test_a_deployed_study_of_several_labels_ends_with_the_bits_of_the_simulation(tmp_path: Path) -> None:
    images = write_two_digits(tmp_path / "two.npz", train=300, test=100)
    tables = tables_of(images, {"name": "self_training", "scenario": "labels-at-both", "warm_up_steps": 20,
                                "coordinator_steps": 5, "labelled_steps": 5, "local_epochs": 1})
    tables["numerics"] = {"threads": 1}
    dealt = deal_study(load_simulated_study(tables))
    parts = tmp_path / "parts"
    write_parts(dealt, parts)
    with federation(tmp_path / "hub", silos=SILOS) as processes:
        studies = processes.hub / "studies"
        shutil.rmtree(studies / "first")
        write_coordinator(dealt, studies / "two-digits")
        processes.serve()
        for silo in SILOS:
            processes.enroll(silo)
            processes.sources[silo] = parts / "silos" / f"{silo}.npz"
            processes.join(silo, words=("--exit-when-finished", "--test",
                                        str(parts / "coordinator" / "data" / "test.npz")))
        simulated = run(tables, out=tmp_path / "simulated", device="cpu")
        processes.wait_for(lambda: processes.query("SELECT state FROM study") == [("completed",)], seconds=500)
        rounds = processes.query("SELECT number, state_digest, metrics_json FROM round ORDER BY number")
        assert [(number, json.loads(str(metrics))) for number, _, metrics in rounds] == [
            (row.round, dict(row.metrics)) for row in simulated.rounds]
        assert rounds[-1][1] == simulated.digest
        assert simulated.rounds[-1].metrics["auroc"] > 0.6
        for silo in SILOS:
            assert processes.running[silo].wait(300) == 0, processes.log(silo)
            assert "AUROC" in processes.log(silo), "what the model is worth on this site's own test images"
            assert "accuracy" not in processes.log(silo)


def test_a_silo_of_a_study_of_several_labels_reads_a_table_with_bars(tmp_path: Path) -> None:
    """The silo's half alone: the labels of a table are those of the .npz that it was made from."""
    from semisilo.common.data.form import ImageForm
    from semisilo.silo.compute.images import read_silo_images, survey_silo_images
    from semisilo.silo.site.home import JoinChoice

    path = write_two_digits(tmp_path / "two.npz", train=30, test=10)
    with np.load(path) as arrays:
        pictures, rows = arrays["train_images"], arrays["train_labels"]
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("image", "finding"))
        for index, (picture, row) in enumerate(zip(pictures, rows, strict=True)):
            Image.fromarray(picture).save(tmp_path / f"{index:02d}.png")
            names = "|".join(f"digit {name}" for name, shown in zip(CLASSES, row, strict=True) if shown)
            lines.writerow((f"{index:02d}.png", names or "No Finding") if index < 20 else (f"{index:02d}.png", ""))
    choice = JoinChoice(source=str(tmp_path / "labels.csv"))
    assert survey_silo_images(choice).labelled == 20
    found = read_silo_images(choice, ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,), resize="stretch"),
                             classes=tuple(f"digit {name}" for name in CLASSES), scenario="labels-at-silo",
                             multi_label=True).images
    assert found.labelled is not None
    assert found.labelled.labels_N is not None
    assert found.labelled.labels_N.tolist() == rows[:20].tolist()
    assert found.unlabelled is not None
    assert len(found.unlabelled) == 10
