"""One silo of three sends 3e38 in every weight and another says that it trained on a billion images: real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.processes import STUDY, federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SILOS = ("alpha", "beta", "gamma")
TRAINER = "semisilo.silo.trainers.semifl:SemiFLTrainer.train"
LYING = (STUDY.replace("start_with = 2", "start_with = 3\nkeep_every = 1")
         .replace('name = "wide_network:wide"', 'name = "small_cnn"')
         .replace('name = "semifl"', 'name = "semifl"\nweighting = "size"'))


def test_two_insiders_are_named_and_the_operator_takes_the_study_back_from_them(tmp_path: Path) -> None:
    with federation(tmp_path, silos=SILOS, study=LYING, images=60) as processes:
        processes.serve()
        for silo in SILOS:
            processes.enroll(silo)
        for silo, lie in (("alpha", ""), ("beta", f"{TRAINER}:weights"), ("gamma", f"{TRAINER}:count")):
            processes.join(silo, lie=lie)
        digest = processes.finish()
        # The one with 3e38 is refused at the door, with the reason; the others' rounds go on.
        refused = processes.query("SELECT silo, count(*), min(reason) FROM task WHERE state = 'refused' GROUP BY silo")
        assert [row[:2] for row in refused] == [("beta", 3)]
        assert "not accepted: " in str(refused[0][2])
        assert "has a value above 1e+12" in str(refused[0][2])
        # The one with a billion images counts as what it has announced, and everybody reads it.
        counts = processes.query("SELECT DISTINCT silo, example_count FROM declared_update JOIN task USING (update_id)"
                                 " WHERE task.state = 'updated' ORDER BY silo")
        assert counts == [("alpha", 60), ("gamma", 60)]
        assert processes.query("SELECT silo, kind, count(*) FROM notice GROUP BY silo, kind") == [
            ("gamma", "count_above", 3)]
        status = json.loads(processes.coordinator("status", "--json"))
        assert "1000000000 images" in status["notices"][0]["line"]
        processes.coordinator("report", "first", "--out", str(tmp_path / "report"))
        page = (tmp_path / "report" / "index.html").read_text()
        assert "1000000000 images" in page
        assert "it has a value above 1e+12" in page
        # No committed state has a value that is not finite.
        states = [str(state) for (state,) in processes.query("SELECT state_digest FROM round")]
        for state in states:
            tensors = load_file(processes.hub / "studies" / "first" / "states" / f"{state}.safetensors")
            assert all(bool(torch.isfinite(each).all()) for each in tensors.values() if each.is_floating_point())
        # The operator goes back to before gamma had a part, and leaves both out: alpha alone trains on.
        for silo in ("beta", "gamma"):
            processes.coordinator("set-aside", silo, "--reason", "it lies")
        assert "went back to round 1" in processes.coordinator("rollback", "first", "--to", "1", "--reason", "liars",
                                                               "--yes")
        processes.serve()
        for silo in SILOS:
            processes.join(silo)
        assert processes.finish() != digest
        rounds = processes.query("SELECT number, sample_json, state FROM round WHERE number > 1")
        assert rounds == [(2, '["alpha"]', "completed"), (3, '["alpha"]', "completed")]
        assert processes.query("SELECT number, state_digest FROM past_round ORDER BY number") == [
            (2, states[2]), (3, states[3])]
        assert "set aside at the coordinator: it lies" in processes.log("gamma")
        processes.coordinator("report", "first", "--out", str(tmp_path / "again"))
        assert "rounds 2 to 3 no longer count; liars" in (tmp_path / "again" / "index.html").read_text()
        processes.coordinator("export", "first", "--out", str(tmp_path / "model"))
