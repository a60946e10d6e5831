"""Differential privacy with real processes: the budget holds, a kill spends nothing twice, and everybody is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import CRASHING, STUDY, FederationOfProcesses, federation, run_command

PRIVATE = STUDY.replace("[method]", "[privacy.dp]\nnoise_multiplier = 2.0\nclip_norm = 0.5\n[method]").replace(
    'name = "semifl"', 'name = "fedavg"\nscenario = "labels-at-coordinator"\nobjective = "fixmatch"')


def silo(processes: FederationOfProcesses, name: str, *words: str, status: int = 0) -> str:
    found, out, err = run_command("semisilo.silo.cli.main", *words, "--home", str(processes.folder / name))
    assert found == status, out + err
    return out


def spent(processes: FederationOfProcesses, name: str) -> list[dict[str, object]]:
    path = processes.folder / name / "privacy" / "spent.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_site_refuses_the_round_that_goes_beyond_its_budget_and_the_study_goes_on(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds, each of one step with all 60 images (batches of 100) and noise 2: they spend 1.6, 2.1 and 2.5. Beta
    permits 2.3. Alpha is killed in its first training, and starts again."""
    monkeypatch.syspath_prepend(str(CRASHING))  # where the network is
    with federation(tmp_path, study=PRIVATE) as processes:
        processes.serve()
        for name in processes.silos:
            processes.enroll(name)
        policy = tmp_path / "beta" / "silo.toml"
        assert "max_epsilon = 0.0" in policy.read_text()
        processes.join("alpha", crash="semisilo.silo.trainers.fedavg:FedAvgTrainer.train:1:after")
        policy.write_text(policy.read_text().replace("max_epsilon = 0.0", "max_epsilon = 2.3"))
        processes.join("beta")
        processes.died("alpha")
        assert [line["round"] for line in spent(processes, "alpha")] == [1], "counted before it trained"
        processes.join("alpha")
        processes.finish()
        assert [line["round"] for line in spent(processes, "alpha")] == [1, 2, 3], "and once"
        epsilons = [line["epsilon"] for line in spent(processes, "alpha")]
        assert [line["epsilon"] for line in spent(processes, "beta")] == epsilons[:2]
        assert epsilons[1] < 2.3 < epsilons[2]

        refused = processes.query("SELECT round, reason FROM task WHERE silo = 'beta' AND state = 'refused'")
        assert [row[0] for row in refused] == [3]
        assert "[privacy] max_epsilon = 2.3" in str(refused[0][1])
        status = silo(processes, "beta", "status")
        assert "privacy" in status
        assert "of 2.3 that silo.toml permits" in status
        told = json.loads(silo(processes, "beta", "status", "--json"))["privacy"]
        assert told["epsilon"] == epsilons[1]
        assert told["studies"] == {"first": epsilons[1]}
        left = silo(processes, "alpha", "disclosures")
        assert f"epsilon {epsilons[2]:.3g} spent here so far" in left
        updates = [line for line in json.loads(silo(processes, "alpha", "disclosures", "--json"))["lines"]
                   if line["kind"] == "update"]
        assert [line["content"]["epsilon"] for line in updates] == epsilons
        assert {name for line in updates for name in line["metrics"]} == {"steps", "epsilon"}
        processes.coordinator("report", "first", "--out", str(tmp_path / "report"))
        page = next((tmp_path / "report").glob("**/*.html")).read_text()
        assert "Differential privacy" in page
        assert f"{epsilons[2]:.3g}" in page
        processes.coordinator("export", "first", "--out", str(tmp_path / "export"), "--format", "safetensors")
        card = json.loads((tmp_path / "export" / "model_card.json").read_text())
        assert card["privacy"]["unit"] == "example"
        assert {each["silo"]: each["epsilon"] for each in card["privacy"]["silos"]} == {
            "alpha": epsilons[2], "beta": epsilons[1]}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_site_that_requires_it_takes_no_part_without_and_check_says_how_many_rounds_fit(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CRASHING))
    with federation(tmp_path, study=PRIVATE) as processes:
        processes.serve()
        processes.enroll("alpha")
        policy = tmp_path / "alpha" / "silo.toml"
        text = policy.read_text().replace('# source = "/scans"', f'source = "{processes.sources["alpha"]}"')
        policy.write_text(text.replace("max_epsilon = 0.0", "max_epsilon = 2.3"))
        found = {each["what"]: each for each in json.loads(silo(processes, "alpha", "check", "--json"))["findings"]}
        assert found["privacy"]["state"] == "warning"
        assert found["privacy"]["facts"]["rounds_that_fit"] == 2
        assert found["privacy"]["facts"]["rounds_left"] == 3
        policy.write_text(text.replace("max_epsilon = 0.0", "max_epsilon = 0.5"))
        found = {each["what"]: each
                 for each in json.loads(silo(processes, "alpha", "check", "--json", status=1))["findings"]}
        assert found["privacy"]["state"] == "bad"
        assert found["privacy"]["facts"]["rounds_that_fit"] == 0


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_noise_that_silos_share_is_counted_once_whatever_is_killed(tmp_path: Path) -> None:
    """Four silos of which three share the noise, over two rounds of one step; silos are killed before, while and after
    they mask. Of what was measured they tell epsilon alone."""
    silos = ("alpha", "beta", "delta", "gamma")
    study = PRIVATE.replace("wide_network:wide", 'small_cnn"\nnormalisation = "group').replace(
        "start_with = 2", "start_with = 4").replace("rounds = 3", "rounds = 2").replace(
        "[privacy.dp]", "[privacy]\nsecure_aggregation = true\n[privacy.dp]\nhonest_silos = 3").replace(
        "local_epochs = 1", 'local_epochs = 1\nweighting = "uniform"')
    with federation(tmp_path, study=study, silos=silos) as processes:
        processes.start()
        for step, victim in ((2, "alpha"), (3, "beta"), (4, "coordinator"), (8, "gamma")):
            processes.wait_for(lambda step=step: bool(processes.query(  # type: ignore[misc]
                f"SELECT 1 FROM phase WHERE 5 * (round - 1) + number >= {step}")))
            processes.kill(victim)
            if victim == "coordinator":
                processes.serve()
            else:
                processes.join(victim)
        processes.finish()
        for name in silos:
            assert [(line["round"], line["steps"], line["noise_multiplier"]) for line in spent(processes, name)] == [
                (1, 1, 2.0), (2, 1, 2.0)]
        told = processes.query("SELECT DISTINCT metrics_json FROM task WHERE metrics_json != '{}'")
        assert all(set(json.loads(str(row[0]))) == {"epsilon"} for row in told)
        assert processes.query("SELECT state FROM round WHERE number > 0") == [("completed",), ("completed",)]
