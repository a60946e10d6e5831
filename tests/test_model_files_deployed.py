"""A study whose network is a file of its own, with real processes: who permits the file trains, nobody else runs it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.processes import STUDY, FederationOfProcesses, run_command

SOURCE = """
import pathlib
from torch import nn

def build(num_classes, channels, size):
    with pathlib.Path({ran!r}).open("a") as file:
        file.write(__file__ + "\\n")
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""


@pytest.mark.slow  # quickly: the policy in silo/site/test_policy.py, the file in common/models/own/test_model_file.py
def test_a_silo_runs_its_own_permitted_copy_of_the_file_and_one_without_refuses_by_name(tmp_path: Path) -> None:
    study = STUDY.replace('name = "wide_network:wide"', 'factory = "my_net.py:build"')
    study = study.replace("rounds = 3", "rounds = 1")
    federation = FederationOfProcesses(tmp_path, study=study)
    ran = tmp_path / "ran.txt"
    own = federation.hub / "studies" / "first" / "my_net.py"
    own.write_text(SOURCE.format(ran=str(ran)))
    sha256 = hashlib.sha256(own.read_bytes()).hexdigest()
    (tmp_path / "sent.py").write_bytes(own.read_bytes())  # by whatever way the hospital gets files
    try:
        federation.serve()
        for silo in federation.silos:
            federation.enroll(silo)
        alpha = tmp_path / "alpha"
        status, _, err = run_command("semisilo.silo.cli.main", "permit-model", str(tmp_path / "sent.py"), "--yes",
                                     "--home", str(alpha))
        assert status == 0, err
        (tmp_path / "sent.py").unlink()
        for silo in federation.silos:
            federation.join(silo)
        federation.finish()
        answers = dict(federation.query("SELECT silo, state FROM task WHERE round = 1"))
        assert answers["alpha"] != answers["beta"] == "refused"
        assert f"my_net.py' (SHA-256 {sha256})" in federation.log("beta")
        assert "silo permit-model my_net.py" in federation.log("beta")
        places = {Path(line).parent for line in ran.read_text().splitlines()}
        assert places == {own.parent, alpha / "model_files"}
        (card,), = federation.query("SELECT card_json FROM study_card")
        assert json.loads(str(card))["model"]["factory_sha256"] == sha256
        assert sha256 in run_command("semisilo.silo.cli.main", "studies", "--show", "first", "--home", str(alpha))[1]
    finally:
        federation.stop()
