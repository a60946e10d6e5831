"""A silo whose key the roster does not have takes part in everything but secure sums: both sides whole, on simulated
machines, and over real processes.

The simulator answers for the operating system, so it runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import STUDY, federation, run_command

ROOT = Path(__file__).resolve().parents[1]
_RUN = """
import json
from semisilo.coordinator.ledger.secure_sums import roster
from tests.simulator import federation, invariants
from tests.simulator.schedule import Schedule

roster.MAX_ROSTER, roster._FOR_REMOVALS = 4, 0
check = invariants.broken_invariants

def look(run):
    tasks, signed, keys = (
        sorted(map(list, run.database.raw.execute(sql))) for sql in (
            "SELECT DISTINCT silo, CASE WHEN state = 'abstained' THEN 'updated' ELSE state END, CASE WHEN state ="
            " 'refused' THEN reason ELSE '' END FROM task", "SELECT silo FROM card_signature",
            "SELECT silo FROM silo_identity"))
    print(json.dumps({"tasks": tasks, "signed": signed, "keys": keys}))
    return check(run)

invariants.broken_invariants = look
done = federation.run_schedule(Schedule(seed=1, masked=MASKED, quorum=4))
assert not done.violations, done.violations
"""


def _five_silos_and_a_roster_of_four(*, masked: bool) -> tuple[str, dict[str, Any]]:
    """The silo that came last, and what is in the ledger at the end."""
    done = subprocess.run([sys.executable, "-c", _RUN.replace("MASKED", str(masked))], cwd=ROOT, text=True,
                          capture_output=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"})
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["keys"] == found["signed"]
    (outside,) = {"B", "a", "c", "d", "e"} - {silo for silo, in found["keys"]}
    return outside, found


@pytest.mark.slow
def test_a_silo_without_room_in_the_roster_does_all_tasks_of_a_study_without_secure_sums() -> None:
    """Forty of a thousand silos were asked for ever: each handed its signature in again and again."""
    _, found = _five_silos_and_a_roster_of_four(masked=False)
    assert found["tasks"] == [[silo, "updated", ""] for silo in ("B", "a", "c", "d", "e")]


@pytest.mark.slow
def test_in_secure_sums_it_refuses_and_the_others_go_on() -> None:
    outside, found = _five_silos_and_a_roster_of_four(masked=True)
    refused = [outside, "refused", "SECURE_SUM_REFUSED: The roster does not list this silo with its own key."]
    assert refused in found["tasks"]
    assert {silo for silo, state, _ in found["tasks"] if state == "updated"} == {"B", "a", "c", "d", "e"} - {outside}


@pytest.mark.slow
def test_a_home_that_was_copied_trains_and_both_sides_say_what_it_has_no_part_in(tmp_path: Path) -> None:
    study = STUDY.replace("wide_network:wide", "small_cnn").replace("rounds = 3", "rounds = 2").replace(
        "[participation]", "[participation]\nquorum = 2")
    with federation(tmp_path, study=study) as processes:
        processes.serve()
        for silo in processes.silos:
            processes.enroll(silo)
        processes.join("alpha")
        processes.wait_for(lambda: processes.query("SELECT silo FROM silo_identity") == [("alpha",)])
        home = processes.folder / "beta"
        shutil.copytree(processes.folder / "alpha" / "secure", home / "secure", dirs_exist_ok=True)
        processes.join("beta")
        processes.wait_for(lambda: bool(processes.query(
            "SELECT 1 FROM task WHERE silo = 'beta' AND state = 'updated'")))
        status, out, _ = run_command("semisilo.silo.cli.main", "status", "--json", "--home", str(home))
        assert status == 0
        assert "no part in secure sums, and its signatures under study cards are not kept" in json.loads(out)["warning"]
        processes.finish()
        assert processes.query("SELECT silo, state FROM task WHERE state NOT IN ('updated', 'abstained')") == []
        assert "for 1 whose key the roster" not in processes.coordinator("status"), "the study is over"
        assert processes.query("SELECT silo FROM card_signature") == [("alpha",)]
    log = processes.log("beta")
    assert log.count("does not keep this site's signature under the card of study first: The roster of keys has") == 1
    assert log.count("the coordinator warns: silo 'beta' can have no part in secure sums") == 1
    assert processes.log("coordinator").count("silo beta can have no part in secure sums, and its signatures") == 1
