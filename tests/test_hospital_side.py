"""The hospital's side with real processes: check before, during and after; hours and budget seen at the hub; leave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import STUDY, FederationOfProcesses, federation

LONG = STUDY.replace("rounds = 3", "rounds = 400").replace("start_with = 2", "start_with = 1")


def silo(processes: FederationOfProcesses, name: str, *words: str, status: int = 0) -> str:
    """Runs a silo command; returns what it prints."""
    done = subprocess.run([sys.executable, "-P", "-m", "semisilo.silo.cli.main", *words,
                           "--home", str(processes.folder / name)],
                          capture_output=True, text=True, timeout=300, env=processes._environment(""))
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def look(processes: FederationOfProcesses, name: str, *words: str, status: int = 0) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(silo(processes, name, "check", "--json", *words, status=status))
    return facts | {"by": {finding["what"]: finding for finding in facts["findings"]}}


def at_hub(processes: FederationOfProcesses) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(processes.coordinator("status", "--json"))
    return facts | {"by": {each["name"]: each for each in facts["silos"]}}


def policy(processes: FederationOfProcesses, name: str, old: str, new: str) -> None:
    path = processes.folder / name / "silo.toml"
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))


def stop(processes: FederationOfProcesses, name: str) -> None:
    process = processes.running.pop(name)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0, processes.log(name)


def closed_hours() -> str:
    """A span of the day, UTC, that begins in two to three hours."""
    hour = (time.gmtime().tm_hour + 3) % 24
    return f'train = ["{hour:02d}:00-{hour:02d}:30"]\n'


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_check_status_hours_budget_and_leave_against_a_live_coordinator(tmp_path: Path) -> None:
    if (left_seconds := 86_400 - time.time() % 86_400) < 300:  # the budget and the hours are those of one day
        time.sleep(left_seconds + 1)
    with federation(tmp_path, silos=("alpha", "beta"), study=LONG) as processes:
        processes.serve()
        for name in processes.silos:
            processes.enroll(name)
        processes.wait_for(lambda: at_hub(processes)["studies"][0]["state"] == "waiting")
        # Before it joins: all but the images is known, and the forecast is a whole model.
        before = look(processes, "alpha")
        assert before["by"]["images"]["state"] == "warning"
        assert before["by"]["study"]["facts"]["method"] == "semifl"
        assert before["forecast"]["train_seconds"] is None
        dense = before["by"]["study"]["facts"]["dense_bytes"]
        assert before["forecast"]["down_bytes"] == dense > 1_000_000
        assert abs(before["by"]["clock"]["facts"]["skew_seconds"]) < 5
        assert at_hub(processes)["by"]["alpha"]["state"] == "enrolled"  # asking is not joining
        measured = look(processes, "alpha", "--measure")
        assert measured["by"]["training"]["facts"]["seconds_per_step"] > 0
        assert measured["forecast"]["train_seconds"] > 0
        # Outside its hours beta connects and takes nothing; the hub says until when, and goes on with alpha.
        policy(processes, "beta", "train = []\n", closed_hours())
        policy(processes, "beta", 'zone = ""', 'zone = "UTC"')
        processes.join("beta")
        processes.wait_for(lambda: at_hub(processes)["by"]["beta"]["state"] == "away by policy")
        away = at_hub(processes)["by"]["beta"]
        assert away["away_reason"] == "outside working hours"
        assert 0 < away["away_until_unix"] - time.time() < 4 * 3600
        processes.join("alpha")
        processes.wait_for(lambda: at_hub(processes)["studies"][0]["round"] >= 3)
        assert processes.query("SELECT count(*) FROM task WHERE silo = 'beta'") == [(0,)]
        # While it works: images, forecast from its own rounds.
        during = look(processes, "alpha")
        assert (during["running"], during["by"]["images"]["state"]) == (True, "ok")
        assert "median of this silo's last" in during["forecast"]["bytes_from"]
        assert during["forecast"]["train_seconds"] > 0
        status = json.loads(silo(processes, "alpha", "status", "--json"))
        assert status["budget"]["used_bytes"] > dense
        assert status["last_disclosure"]["kind"] == "update"
        assert status["hours"]["text"] == "at any time"
        # With a budget that is used up it refuses the next task, with the reason at the hub, and is then away.
        stop(processes, "alpha")
        used = json.loads(silo(processes, "alpha", "status", "--json"))["budget"]["used_bytes"]
        assert used >= status["budget"]["used_bytes"]
        policy(processes, "alpha", "bytes_per_day = 0", f"bytes_per_day = {used + 200_000}")
        processes.join("alpha")
        processes.wait_for(lambda: at_hub(processes)["by"]["alpha"]["state"] == "away by policy")
        facts = at_hub(processes)
        assert facts["by"]["alpha"]["away_reason"] == "daily budget used up"
        (refusal,) = facts["refusals"]
        assert refusal["silo"] == "alpha"
        assert refusal["reason"].startswith("DAILY_BUDGET: The daily budget of this silo does not suffice")
        assert "The next day begins on" in refusal["reason"]
        assert processes.query("SELECT count(*) FROM event WHERE kind = 'task_refused' AND detail_json LIKE"
                               " '%DAILY_BUDGET%'") == [(1,)]
        # Leaving: not while it runs; then the hub shows it as left, and its certificate opens nothing.
        assert "Stop it first" not in silo(processes, "alpha", "leave", "--yes", status=1)
        stop(processes, "alpha")
        kept = load_copy(processes, "alpha")
        assert "has left federation 'testing'" in silo(processes, "alpha", "leave", "--yes")
        assert at_hub(processes)["by"]["alpha"]["state"] == "left"
        assert "Removed" not in silo(processes, "alpha", "disclosures")
        kinds = {line["kind"] for line in json.loads(silo(processes, "alpha", "disclosures", "--json"))["lines"]}
        assert kinds == {"enrolment", "check", "announcement", "study_card", "update", "refusal", "leaving"}
        restored = look(processes, kept, status=1)
        assert restored["by"]["coordinator"]["facts"]["code"] == "SILO_LEFT"
        processes.enroll("alpha")
        assert at_hub(processes)["by"]["alpha"]["state"] == "enrolled"
        # Once the coordinator is gone, check says what it cannot reach.
        process = processes.running.pop("coordinator")
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        gone = look(processes, "beta", status=1)
        assert gone["by"]["address"]["facts"]["code"] == "UNREACHABLE"


def load_copy(processes: FederationOfProcesses, name: str) -> str:
    """A copy of a silo's home, as a thief or a backup has it; returns its name."""
    import shutil

    shutil.copytree(processes.folder / name, processes.folder / f"{name}-copy", symlinks=True)
    return f"{name}-copy"
