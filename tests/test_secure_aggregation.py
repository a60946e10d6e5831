"""Secure aggregation over the real network: real processes, kills, a silo that is gone, and what a site requires.

Every arrow of a sum with kills, losses and full disks is in tests/simulator; attacks are in
tests/coordinator/secure_aggregation and tests/silo/secure_aggregation.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import STUDY, FederationOfProcesses, federation

SILOS = ("alpha", "beta", "delta", "gamma")
MASKED = STUDY.replace("wide_network:wide", "small_cnn").replace("start_with = 2", "start_with = 4").replace(
    "rounds = 3", "rounds = 2") + "\n[privacy]\nsecure_aggregation = true\n"
STEPS = ["train-keys", "train-shares", "train", "train-confirm", "train-unmask"]


def lines_of(processes: FederationOfProcesses, silo: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (processes.folder / silo / "disclosures.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(digest of the model, folder) of a study that nothing went wrong in."""
    folder = tmp_path_factory.mktemp("masked")
    with federation(folder, study=MASKED, silos=SILOS) as processes:
        processes.start()
        digest = processes.finish()
        assert [name for name, in processes.query(
            "SELECT name FROM phase WHERE round = 2 ORDER BY number")] == STEPS
        assert processes.query("SELECT count(*) FROM step_answer") == [(0,)], "what opens masks is gone"
        assert processes.query("SELECT sum(example_count) FROM declared_update") == [(0,)]
        assert processes.query("SELECT DISTINCT metrics_json FROM task") == [("{}",)], "nothing is said of single silos"
        for silo in SILOS:
            kinds = [(line["kind"], line["phase"]) for line in lines_of(processes, silo) if line["study"] == "first"]
            assert kinds == [("update" if step == "train" else "secure_step", step) for step in STEPS] * 2
            update = next(line for line in lines_of(processes, silo) if line["kind"] == "update")
            assert (update["groups"], update["metrics"], update["num_examples"]) == (["masked"], {}, 0)
        dense, = processes.query("SELECT json_extract(frozen_json, '$.dense_bytes') FROM study")[0]
        up, = processes.query("SELECT max(size_bytes) FROM declared_update")[0]
        assert int(str(up)) < 0.6 * int(str(dense))
    return digest, folder


def test_a_study_runs_to_its_end(undisturbed: tuple[str, Path]) -> None:
    assert len(undisturbed[0]) == 64


def test_no_silo_keeps_a_secret_of_a_sum_that_is_over(undisturbed: tuple[str, Path]) -> None:
    for silo in SILOS:
        kept = json.loads((undisturbed[1] / silo / "secure" / "sums.json").read_text())["studies"]["first"]["session"]
        assert {kept[name] for name in ("seal_key", "mask_key", "self_secret", "key_coefficients",
                                        "self_coefficients")} == {""}


@pytest.mark.slow
def test_kills_of_both_sides_change_no_bit(undisturbed: tuple[str, Path], tmp_path: Path) -> None:
    with federation(tmp_path, study=MASKED, silos=SILOS) as processes:
        processes.start()
        for step, victim in ((1, "alpha"), (2, "beta"), (2, "coordinator"), (3, "gamma")):
            processes.wait_for(lambda step=step: bool(processes.query(  # type: ignore[misc]
                f"SELECT 1 FROM phase WHERE number >= {step} OR round > 1")))
            processes.kill(victim)
            if victim == "coordinator":
                processes.serve()
            else:
                processes.join(victim)
        assert processes.finish() == undisturbed[0]


@pytest.mark.slow
def test_a_silo_that_is_gone_after_its_shares_is_taken_out_of_the_sum(tmp_path: Path) -> None:
    study = MASKED.replace("local_epochs = 1", "local_epochs = 20") + "\n"
    with federation(tmp_path, study=study, silos=SILOS, timeout="20s") as processes:
        processes.start()
        processes.wait_for(lambda: bool(processes.query("SELECT 1 FROM phase WHERE name = 'train'")))
        processes.kill("gamma")
        processes.silos = tuple(silo for silo in SILOS if silo != "gamma")
        processes.finish()
        assert processes.query("SELECT json_extract(outcome_json, '$.silos') FROM secure_sum ORDER BY round") == [
            (3,), (3,)]
        assert processes.query("SELECT state FROM round WHERE number > 0") == [("completed",), ("completed",)]


@pytest.mark.slow
def test_a_site_that_requires_it_refuses_updates_in_the_clear(tmp_path: Path) -> None:
    clear = MASKED[:MASKED.index("\n[privacy]")]
    with federation(tmp_path, study=clear, silos=SILOS) as processes:
        processes.serve()
        for silo in SILOS:
            processes.enroll(silo)
        policy = processes.folder / "beta" / "silo.toml"
        policy.write_text(policy.read_text().replace("secure_aggregation = false", "secure_aggregation = true"))
        for silo in SILOS:
            processes.join(silo)
        processes.finish()
        found = dict(processes.query("SELECT silo, reason FROM task WHERE state = 'refused' AND round = 1"))
        assert found.keys() == {"beta"}
        assert "This site requires secure aggregation" in str(found["beta"])
        assert not [line for line in lines_of(processes, "beta") if line["kind"] == "update"]
