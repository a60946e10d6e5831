"""Secure aggregation over the real network: real processes, kills, a silo that is gone, and what a site requires.

Every arrow of a sum with kills, losses and full disks is in tests/simulator; attacks are in
tests/coordinator/secure_aggregation and tests/silo/secure_aggregation.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from semisilo.coordinator.secure_aggregation.groups import split
from tests.processes import STUDY, FederationOfProcesses, federation

SILOS = ("alpha", "beta", "delta", "gamma")
MASKED = STUDY.replace("wide_network:wide", "small_cnn").replace("start_with = 2", "start_with = 4").replace(
    "rounds = 3", "rounds = 2") + "\n[privacy]\nsecure_aggregation = true\n"
TRAINED = "semisilo.silo.agent.secure_steps:SecureSteps.masked:1:before"
"""Where a silo dies that has given its shares and trained, and has sent no masked update."""
STEPS = ["train-keys", "train-shares", "train", "train-confirm", "train-unmask"]


def lines_of(processes: FederationOfProcesses, silo: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (processes.folder / silo / "disclosures.jsonl").read_text().splitlines()]


def start_and_lose(processes: FederationOfProcesses, lost: str) -> None:
    """All take part, and one of them is gone once it has trained in round 1."""
    processes.serve()
    for silo in processes.silos:
        processes.enroll(silo)
    for silo in processes.silos:
        processes.join(silo, crash=TRAINED if silo == lost else "")
    processes.died(lost)


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
            assert kinds.pop(0) == ("study_card", ""), "signed once, before anything else"
            assert kinds == [("update" if step == "train" else "secure_step", step) for step in STEPS] * 2
            update = next(line for line in lines_of(processes, silo) if line["kind"] == "update")
            assert (update["groups"], update["metrics"], update["num_examples"]) == (["masked"], {}, 0)
        dense, = processes.query("SELECT json_extract(frozen_json, '$.dense_bytes') FROM study")[0]
        up, = processes.query("SELECT max(size_bytes) FROM declared_update")[0]
        assert int(str(up)) < 0.6 * int(str(dense))
    return digest, folder


@pytest.mark.slow
def test_a_study_runs_to_its_end(undisturbed: tuple[str, Path]) -> None:
    assert len(undisturbed[0]) == 64


@pytest.mark.slow
def test_no_silo_keeps_a_secret_of_a_sum_that_is_over(undisturbed: tuple[str, Path]) -> None:
    for silo in SILOS:
        kept = json.loads((undisturbed[1] / silo / "secure" / "sums.json").read_text())["studies"]["first"]["session"]
        assert {kept[name] for name in ("seal_key", "mask_key", "self_secret", "key_coefficients",
                                        "self_coefficients")} == {""}


@pytest.mark.slow
def test_kills_of_both_sides_at_every_step_change_no_bit(undisturbed: tuple[str, Path], tmp_path: Path) -> None:
    """A silo and the coordinator in turn, over two rounds of five steps: each side once in every step."""
    kills = enumerate(("alpha", "coordinator", "beta", "coordinator", "gamma", "coordinator", "alpha", "coordinator",
                       "delta", "coordinator"))
    with federation(tmp_path, study=MASKED, silos=SILOS) as processes:
        processes.start()
        for step, victim in kills:
            processes.wait_for(lambda step=step: bool(processes.query(  # type: ignore[misc]
                f"SELECT 1 FROM phase WHERE 5 * (round - 1) + number >= {step}")))
            processes.kill(victim)
            if victim == "coordinator":
                processes.serve()
            else:
                processes.join(victim)
        assert processes.finish() == undisturbed[0]


@pytest.mark.slow
def test_a_silo_that_is_gone_after_its_shares_is_taken_out_of_the_sum(tmp_path: Path) -> None:
    with federation(tmp_path, study=MASKED, silos=SILOS, timeout="30s") as processes:
        start_and_lose(processes, "gamma")
        processes.silos = tuple(silo for silo in SILOS if silo != "gamma")
        processes.finish()
        assert processes.query("SELECT json_extract(outcome_json, '$.silos') FROM secure_sum ORDER BY round") == [
            (3,), (3,)]
        assert processes.query("SELECT state FROM round WHERE number > 0") == [("completed",), ("completed",)]


@pytest.mark.slow
def test_a_silo_that_is_revoked_after_its_masked_update_is_taken_out_of_the_sum(tmp_path: Path) -> None:
    with federation(tmp_path, study=MASKED, silos=SILOS) as processes:
        start_and_lose(processes, "alpha")  # so that the list of survivors waits
        answered = "SELECT 1 FROM task WHERE round = 1 AND silo = '{}' AND state = 'updated'"
        processes.wait_for(lambda: bool(processes.query(answered.format("gamma"))))
        assert not processes.query(answered.format("alpha"))
        processes.coordinator("revoke", "gamma", "--yes")
        processes.silos = tuple(silo for silo in SILOS if silo != "gamma")
        processes.wait_for(lambda: not processes.query(answered.format("gamma")))
        processes.join("alpha")
        processes.finish()
        assert processes.query("SELECT json_extract(outcome_json, '$.silos') FROM secure_sum ORDER BY round") == [
            (3,), (3,)]
        assert processes.query("SELECT state FROM round WHERE number > 0") == [("completed",), ("completed",)]
        assert processes.query("SELECT DISTINCT reason FROM task WHERE round = 1 AND state = 'refused'") == [
            ("silo revoked",)]


@pytest.mark.slow
def test_a_silo_whose_shares_nobody_can_open_costs_one_round(tmp_path: Path) -> None:
    """It failed all of them."""
    with federation(tmp_path, study=MASKED, silos=SILOS) as processes:
        processes.serve()
        for silo in SILOS:
            processes.enroll(silo)
        for silo in SILOS:
            processes.join(silo, lie="semisilo.silo.secure_aggregation.session:seal:shares" if silo == "beta" else "")
        processes.finish()
        assert processes.query("SELECT state FROM round WHERE number > 0") == [("failed",), ("completed",)]
        assert processes.query("SELECT DISTINCT silo FROM task WHERE round = 2 ORDER BY silo") == [
            ("alpha",), ("delta",), ("gamma",)]
        assert processes.query("SELECT json_extract(detail_json, '$.silo'), json_extract(detail_json, '$.origin') FROM"
                               " event WHERE kind = 'silo_set_aside'") == [("beta", "coordinator")]
        status = json.loads(processes.coordinator("status", "--json"))
        assert "alpha, delta, gamma could not use what it had sent" in status["notices"][0]["line"]
        assert "set aside at the coordinator: 3 silos could not use what it had sent" in processes.log("beta")
        processes.coordinator("verify")


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


CORRECTED = """
[study]
seed = 3
rounds = 3
start_with = 4
labelled_only_baseline = false
[model]
normalisation = "group"
[data]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
test = "test.npz"
image = {{ size = 8, channels = 1, mean = [0.5], std = [0.5] }}
[numerics]
threads = 1
[method]
name = "fed_shvr"
lr = 0.05
labelled_batch = 10
unlabelled_batch = 10
[participation]
round_timeout = "{timeout}"
[privacy]
secure_aggregation = true
"""


def give_labels(processes: FederationOfProcesses) -> None:
    """The first images of every silo get labels: more at one silo than at the next, so that they take other steps."""
    labels = load_digits().target
    for number, (silo, source) in enumerate(processes.sources.items()):
        images, start = np.load(source)["train_images"], 100 + 60 * number
        folder = source.with_name(f"{silo}-images")
        for index, image in enumerate(images):
            name = str(labels[start + index]) if index < 10 + 10 * number else "unlabelled"
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / name / f"{index}.png")
        processes.sources[silo] = folder


@pytest.mark.slow
def test_a_correction_that_silos_keep_goes_on_behind_masks_whatever_is_killed(tmp_path: Path) -> None:
    digests = []
    for kills in ((), ((2, "alpha"), (2, "coordinator"), (7, "beta"), (8, "coordinator"), (12, "gamma"))):
        with federation(tmp_path / str(len(kills)), study=CORRECTED, silos=SILOS) as processes:
            give_labels(processes)
            processes.start()
            for step, victim in kills:
                processes.wait_for(lambda step=step: bool(processes.query(  # type: ignore[misc]
                    f"SELECT 1 FROM phase WHERE 5 * (round - 1) + number >= {step}")))
                processes.kill(victim)
                if victim == "coordinator":
                    processes.serve()
                else:
                    processes.join(victim)
            digests.append(processes.finish())
            told = processes.query("SELECT json_extract(outcome_json, '$.totals') FROM secure_sum ORDER BY round")
            steps, joins, lost = zip(*(json.loads(str(row[0])) for row in told), strict=True)
            assert steps == (8.0, 8.0, 8.0), "the mean of 10, 8, 6 and 8"
            assert (joins, lost) == ((1.0, 0.0, 0.0), (0.0, 0.0, 0.0)), "all are new once, and nobody lost anything"
            assert processes.query("SELECT DISTINCT metrics_json FROM task") == [("{}",)], "steps of no silo are told"
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_a_rule_looks_at_groups_and_one_that_loses_a_silo_is_left_out_alone(tmp_path: Path) -> None:
    silos = ("alpha", "beta", "delta", "epsilon", "gamma", "zeta")
    study = MASKED.replace("start_with = 4", "start_with = 6") + (
        "group_size = 3\n[robust]\nrule = \"coordinate_median\"\n")
    with federation(tmp_path, study=study, silos=silos, timeout="30s") as processes:
        start_and_lose(processes, "gamma")
        processes.silos = tuple(silo for silo in silos if silo != "gamma")
        processes.finish()
        assert processes.query("SELECT json_extract(outcome_json, '$.silos') FROM secure_sum ORDER BY round") == [
            (3,), (3,)]
        assert processes.query("SELECT state FROM round WHERE number > 0") == [("completed",), ("completed",)]
        group = next(group for group in split(silos, size=3, seed=3) if "gamma" not in group)
        folded = processes.query("SELECT silo FROM silo_state WHERE last_folded_round = 2 ORDER BY silo")
        assert [silo for silo, in folded] == sorted(group)


@pytest.mark.slow
def test_batch_norm_statistics_are_added_up_whatever_is_killed(tmp_path: Path) -> None:
    study = MASKED.replace("local_epochs = 1", 'local_epochs = 1\nsbn_source = "coordinator+silos"')
    digests = []
    for kills in ((), ((1, "alpha"), (2, "coordinator"), (4, "beta"), (12, "gamma"), (13, "coordinator"))):
        with federation(tmp_path / str(len(kills)), study=study, silos=SILOS) as processes:
            processes.start()
            for step, victim in kills:
                processes.wait_for(lambda step=step: bool(processes.query(  # type: ignore[misc]
                    f"SELECT 1 FROM phase WHERE 15 * (round - 1) + number >= {step}")))
                processes.kill(victim)
                if victim == "coordinator":
                    processes.serve()
                else:
                    processes.join(victim)
            digests.append(processes.finish())
            of_rounds = processes.query("SELECT round, phase, json_extract(outcome_json, '$.silos') FROM secure_sum"
                                        " ORDER BY round, phase")
            assert of_rounds == [(1, "first-statistics", 4), (1, "statistics", 4), (1, "train", 4),
                                 (2, "statistics", 4), (2, "train", 4)]
            assert {line["phase"] for line in lines_of(processes, "beta") if line["kind"] == "update"} == {
                "first-statistics", "statistics", "train"}
            assert processes.query("SELECT sum(example_count) FROM declared_update") == [(0,)]
    assert digests[0] == digests[1]
