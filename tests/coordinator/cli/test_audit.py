"""`coordinator verify` and `coordinator audit`: what they print, and how they end."""

from __future__ import annotations

import csv
import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from semisilo.cli.json_file import write_json_file
from semisilo.common.audit.chain import ChainWalk
from semisilo.common.audit.export import read_export
from semisilo.common.process.account import account
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.cli.main import app
from semisilo.coordinator.federation.authority import create_authority
from semisilo.coordinator.ledger.oversight.operators import operator_of
from semisilo.silo.cli.main import app as silo_app
from tests.coordinator.ledger_fixture import Filled, fill_study


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    made = fill_study(tmp_path / "hub", done=2)
    create_authority(made.federation.authority, made.federation.name, now=time.time())
    return made


def coordinator(filled: Filled, *words: str) -> int:
    return run_cli(app, [*words, "--folder", str(filled.federation.folder)], name="coordinator")


def test_verify_is_quiet_about_an_honest_ledger_and_names_each_problem(filled: Filled,
                                                                       capsys: pytest.CaptureFixture[str]) -> None:
    assert coordinator(filled, "verify") == 0
    events = filled.ledger.check_events()
    assert capsys.readouterr().out == f"{events} events, signed up to event 0: all as it was written.\n"
    filled.ledger.query("UPDATE round SET state_digest = 'ab'")
    assert coordinator(filled, "verify") == 1
    said = capsys.readouterr()
    assert "3 problems." in said.out
    assert said.err.count("WRONG: round ") == said.err.count("\n") == 3
    assert coordinator(filled, "verify", "--json") == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 3


def test_the_export_is_the_whole_trail_or_a_part_of_it(filled: Filled, tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.json"
    assert coordinator(filled, "audit", "--format", "json", "-o", str(path)) == 0
    walk = ChainWalk()
    assert [walk.step(event) for event in read_export(path)] == [""] * filled.ledger.check_events()
    capsys.readouterr()
    assert coordinator(filled, "audit", "--study", "first") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {row["study"] for row in rows} == {"first"}
    assert datetime.fromisoformat(rows[0]["time"]).utcoffset() is not None
    assert coordinator(filled, "audit", "--format", "json", "--since", "1s") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["complete"], document["federation"]) == (False, "lung-federation")
    assert len(document["events"]) < walk.number


@pytest.mark.parametrize(("words", "said"), [(("--study", "nobody"), "There is no study 'nobody'"),
                                             (("--since", "soon"), "'soon' is neither a time span nor a date")])
def test_what_cannot_be_exported_is_said_in_a_line(filled: Filled, words: tuple[str, ...], said: str,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert coordinator(filled, "audit", *words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (("--study", "nobody"), "nobody"), (("--since", "soon"), "soon"), ((), "no folder")])
def test_a_wrong_option_leaves_an_earlier_export_as_it_was(filled: Filled, tmp_path: Path, words: tuple[str, ...],
                                                           said: str, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = tmp_path / "audit.csv"
    earlier.write_text("the trail of May")
    out = earlier if words else tmp_path / "none" / "audit.csv"
    assert coordinator(filled, "audit", *words, "-o", str(out)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert earlier.read_text() == "the trail of May"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_said_with_the_file_that_has_no_room(filled: Filled, tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    """What the system says of an open file names none: an administrator is told where there is no room."""
    assert coordinator(filled, "audit", "-o", "/dev/full") == 1
    assert capsys.readouterr().err == "error: /dev/full: No space left on device. Free some space, then try again.\n"
    (tmp_path / "silo").mkdir()
    words = ["disclosures", "--home", str(tmp_path / "silo"), "--csv", "/dev/full"]
    assert run_cli(silo_app, words, name="silo") == 1
    assert capsys.readouterr().err == "error: /dev/full: No space left on device. Free some space, then try again.\n"
    with pytest.raises(OSError, match="/dev/full"):
        write_json_file("{}", Path("/dev/full"))


def test_a_dash_is_standard_output_as_with_other_commands(
        filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It was a file of that name."""
    assert coordinator(filled, "audit") == 0
    trail = capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert coordinator(filled, "audit", "-o", "-") == 0
    assert capsys.readouterr().out == trail
    assert set(tmp_path.iterdir()) == before


def test_a_study_without_a_card_is_json_where_json_is_asked_for(filled: Filled,
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    assert coordinator(filled, "card", "first", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"study": "first", "digest": None, "card": None, "wrong": [],
                                                   "signatures": []}


def test_a_file_in_the_place_of_the_folder_of_a_report_is_wrong_usage(filled: Filled, tmp_path: Path,
                                                                      capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report").write_text("")
    assert coordinator(filled, "report", "first", "--out", str(tmp_path / "report")) == 2
    assert "Name a folder" in capsys.readouterr().err


# Who did it -----------------------------------------------------------------------------------------------------------


def test_a_command_names_the_account_that_the_kernel_knows(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "mallory")
    monkeypatch.setenv("LOGNAME", "mallory")
    assert coordinator(filled, "set-aside", "hospital-a") == 0
    assert coordinator(filled, "revoke", "hospital-b", "--yes") == 0
    rows = filled.ledger.query("SELECT kind, json_extract(detail_json, '$.by') AS by FROM event WHERE kind IN"
                               " ('silo_set_aside', 'silo_revoked') ORDER BY number")
    assert [row["by"] for row in rows] == [f"cli:{account()}"] * 2
    assert "mallory" not in rows[0]["by"]


def test_operators_are_added_listed_and_removed(filled: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    assert coordinator(filled, "operator", "add", "alice") == 0
    shown = capsys.readouterr()
    token = shown.out.strip()
    assert ("is shown only now" in shown.err, token in shown.err) == (True, False)
    assert operator_of(filled.ledger, token) == "alice"
    assert coordinator(filled, "operator", "list") == 0
    assert capsys.readouterr().out.startswith("alice  since ")
    assert coordinator(filled, "operator", "remove", "alice", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"operator": "alice", "state": "removed"}
    assert operator_of(filled.ledger, token) is None
    for words in (("add",), ("list", "alice"), ("remove", "bob"), ("add", "a b")):
        assert coordinator(filled, "operator", *words) == 2
        assert capsys.readouterr().err.count("\n") == 1
