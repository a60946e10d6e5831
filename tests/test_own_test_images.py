"""What the model is worth at home, with real processes: silos evaluate it on their own test images, one may say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from semisilo.common.storage.store import PayloadStore
from tests.processes import CRASHING, STUDY, FederationOfProcesses, federation, run_command

LONGER = STUDY.replace("rounds = 3", "rounds = 4")
SHARED = LONGER.replace("seed = 3", "seed = 3\nshare_model = true")


def silo(processes: FederationOfProcesses, name: str, *words: str) -> str:
    status, out, err = run_command("semisilo.silo.cli.main", *words, "--home", str(processes.folder / name))
    assert status == 0, err
    return out


def write_test_images(path: Path, first: int) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * 255 / 16).astype(np.uint8)
    np.savez(path, train_images=pixels[first:first + 120], train_labels=digits.target[first:first + 120])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sites_evaluate_the_model_and_the_coordinator_hears_what_the_policy_permits(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CRASHING))  # where the network is
    with federation(tmp_path, study=LONGER) as processes:
        processes.serve()
        for number, name in enumerate(processes.silos):
            processes.enroll(name)
            write_test_images(tmp_path / f"{name}-test.npz", 400 + 120 * number)
        policy = tmp_path / "alpha" / "silo.toml"
        policy.write_text(policy.read_text().replace("site_evaluation = false", "site_evaluation = true"))
        for name in processes.silos:
            processes.join(name, words=("--exit-when-finished", "--test", str(tmp_path / f"{name}-test.npz")))
        processes.finish()
        seen = {name: json.loads(silo(processes, name, "status", "--json"))["evaluations"]
                for name in processes.silos}
        for name, found in seen.items():
            assert [each["round"] for each in found] == [0, 1, 2, 3], processes.log(name)
            assert [each["count"] for each in found] == [120] * 4
            assert all(each["accuracy"]["low"] < each["accuracy"]["value"] < each["accuracy"]["high"]
                       for each in found)
            assert "at this site  study first, model of round 3: accuracy" in silo(processes, name, "status")
        rows = processes.query("SELECT silo, round, classes_json FROM site_evaluation ORDER BY round")
        assert [row[:2] for row in rows] == [("alpha", number) for number in range(4)]
        told = [json.loads(str(row[2])) for row in rows]
        assert [sum(each["correct"] for each in one) for one in told] == \
            [sum(each["correct"] for each in one["classes"].values()) for one in seen["alpha"]]
        assert [sum(each["images"] for each in one) for one in told] == [120] * 4
        left = json.loads(silo(processes, "beta", "disclosures", "--json"))["totals"]
        assert "update" in left
        assert "evaluation" not in left
        processes.coordinator("report", "first", "--out", str(tmp_path / "report"))
        text = next((tmp_path / "report").glob("**/*.html")).read_text()
        assert "own test images" in text
        assert "sent none" in text
        processes.coordinator("export", "first", "--out", str(tmp_path / "export"), "--format", "safetensors")
        card = json.loads((tmp_path / "export" / "model_card.json").read_text())
        assert {each["silo"] for each in card["sites"]} == {"alpha", "beta"}


def ask(processes: FederationOfProcesses, name: str, *words: str) -> tuple[int, str]:
    """`silo model` against a coordinator that serves: (exit status, what it said)."""
    status, out, err = run_command("semisilo.silo.cli.main", "model", *words, "--home", str(processes.folder / name))
    return status, out + err


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_silo_fetches_the_model_that_the_study_shares_and_evaluates_it_by_itself(tmp_path: Path) -> None:
    with federation(tmp_path, study=SHARED, silos=("alpha", "beta", "gamma")) as processes:
        processes.serve()
        for name in processes.silos:
            processes.enroll(name)
        write_test_images(tmp_path / "test.npz", 400)
        policy = tmp_path / "alpha" / "silo.toml"
        policy.write_text(policy.read_text().replace("site_evaluation = false", "site_evaluation = true"))
        status, said = ask(processes, "gamma", "first")
        assert (status, said.count("\n")) == (1, 1)
        assert "This silo has had no part in a study 'first'." in said
        processes.join("alpha", words=("--exit-when-finished", "--test", str(tmp_path / "test.npz")))
        processes.join("beta", words=())
        processes.wait_for(lambda: processes.query("SELECT 1 FROM study WHERE state = 'running'") != [])
        assert processes.running["alpha"].wait(300) == 0, processes.log("alpha")
        found = json.loads(silo(processes, "alpha", "status", "--json"))["evaluations"]
        assert [each["round"] for each in found] == [0, 1, 2, 3, 4], "the last round's model comes with no task"
        assert processes.query("SELECT round FROM site_evaluation ORDER BY round") == [(each,) for each in range(5)]
        del processes.running["alpha"]
        written = processes.hub / "studies" / "first" / "model.safetensors"
        # A second coordinator: the first has ended with its study. What a cut fetch has left is gone on with.
        assert processes.running.pop("coordinator").wait(300) == 0
        processes._start("coordinator", "semisilo.coordinator.cli.main", "serve", "--folder", str(processes.hub),
                         crash="")
        out = tmp_path / "alpha.safetensors"
        status, said = ask(processes, "alpha", "first", "--out", str(out))
        assert status == 0, said
        assert out.read_bytes() == written.read_bytes()
        assert "the model of round 4 of study first" in said
        models = tmp_path / "alpha" / "models"
        assert [PayloadStore(folder).digests() for folder in (models, models / "evaluated")] == [set(), set()]
        assert "model" in json.loads(silo(processes, "alpha", "disclosures", "--json"))["totals"]
        assert "had no part in a study 'second'" in ask(processes, "alpha", "second")[1]
        policy.write_text(policy.read_text().replace("max_download_bytes = 17179869184", "max_download_bytes = 1000"))
        status, said = ask(processes, "alpha", "first", "--out", str(tmp_path / "never"))
        assert (status, (tmp_path / "never").exists()) == (1, False)
        assert "Raise [limits] max_download_bytes" in said
