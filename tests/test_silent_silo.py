"""A hospital that is switched off, with real processes: it costs one round, and takes part again when it is back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import STUDY, FederationOfProcesses, federation

SILOS = ("alpha", "beta", "gamma")
LONG = STUDY.replace("rounds = 3", "rounds = 500").replace("start_with = 2", "start_with = 3") + "quorum = 1\n"


def last_round(processes: FederationOfProcesses) -> int:
    (number,), = processes.query("SELECT coalesce(max(number), 0) FROM round")
    assert isinstance(number, int)
    return number


def is_silent(processes: FederationOfProcesses) -> bool:
    return bool(processes.query("SELECT 1 FROM silo WHERE name = 'gamma' AND silent_unix IS NOT NULL"))


@pytest.mark.slow
def test_later_rounds_do_not_wait_for_a_silo_that_was_killed_and_it_takes_part_when_it_is_back(tmp_path: Path) -> None:
    with federation(tmp_path, silos=SILOS, study=LONG, timeout="90s") as processes:
        settings = processes.hub / "federation.toml"
        settings.write_text(settings.read_text().replace('# silent_after = "3m"', 'silent_after = "30s"'))
        processes.start()
        processes.wait_for(lambda: bool(processes.query(
            "SELECT 1 FROM task WHERE silo = 'gamma' AND state IN ('open', 'updated')")))
        processes.kill("gamma")
        processes.wait_for(lambda: is_silent(processes))
        silent_in = last_round(processes)
        processes.wait_for(lambda: last_round(processes) > silent_in + 2)

        asked = [number for number, sample in processes.query("SELECT number, sample_json FROM round WHERE number > 0")
                 if "gamma" in json.loads(str(sample))]
        assert max(asked) <= silent_in, "no later round asks it"
        late = processes.query("SELECT round FROM task WHERE silo = 'gamma' AND state = 'expired'")
        assert len(late) <= 1, "it has cost one round at most"
        assert "silo gamma: silent, last heard on" in processes.coordinator("status")
        facts = json.loads(processes.coordinator("status", "--json"))
        assert {silo["name"]: silo["state"] == "silent" for silo in facts["silos"]} == \
            {"alpha": False, "beta": False, "gamma": True}

        processes.join("gamma")
        processes.wait_for(lambda: bool(processes.query(
            f"SELECT 1 FROM task WHERE silo = 'gamma' AND state = 'updated' AND round > {silent_in}")))
        assert not is_silent(processes)
