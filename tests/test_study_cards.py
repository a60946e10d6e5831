"""Study cards over real processes: signed before the first task, and by a person where a site wants that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import STUDY, federation, run_command


@pytest.mark.slow
def test_a_study_goes_on_once_a_person_has_approved_it_and_all_have_signed_its_card(tmp_path: Path) -> None:
    study = STUDY.replace("wide_network:wide", "small_cnn").replace("rounds = 3", "rounds = 2").replace(
        "[participation]", "[participation]\nquorum = 2")  # no round ends before a person has decided
    with federation(tmp_path, study=study) as processes:
        processes.serve()
        for silo in processes.silos:
            processes.enroll(silo)
        home = processes.folder / "beta"
        policy = home / "silo.toml"
        policy.write_text(policy.read_text().replace("approval = false", "approval = true"))
        assert "approval = true" in policy.read_text()
        for silo in processes.silos:
            processes.join(silo)

        def listed() -> list[dict[str, object]]:
            status, out, _ = run_command("semisilo.silo.cli.main", "studies", "--json", "--home", str(home))
            assert status == 0
            return json.loads(out)  # type: ignore[no-any-return]

        processes.wait_for(lambda: bool(listed()))
        (waiting,) = listed()
        assert (waiting["study"], waiting["state"]) == ("first", "waiting")
        processes.kill("beta")  # what waits is there after a restart
        processes.join("beta")
        status, out, _ = run_command("semisilo.silo.cli.main", "approve", "first", "--home", str(home))
        assert (status, "is approved" in out) == (0, True)
        processes.finish()
        (signed,) = listed()
        assert (signed["state"], signed["told"]) == ("signed", True)
        updates = processes.query("SELECT silo, count(*) FROM task WHERE state = 'updated' GROUP BY silo ORDER BY silo")
        assert ("beta", 2) in updates or ("beta", 1) in updates
        shown = json.loads(processes.coordinator("card", "first", "--json"))
        assert (shown["digest"], shown["wrong"]) == (signed["digest"], [])
        assert [each["silo"] for each in shown["signatures"]] == ["alpha", "beta"]
        lines = [json.loads(line) for line in (home / "disclosures.jsonl").read_text().splitlines()]
        kinds = [line["kind"] for line in lines if line["kind"] in ("study_card", "update")]
        assert kinds[0] == "study_card", "the card is signed before anything else leaves"
