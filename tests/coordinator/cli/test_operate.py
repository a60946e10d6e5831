"""The commands that steer a study, and `coordinator page`: what they print, and how they end."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.cli.main import app
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.live_file import LiveStatus, write
from tests.coordinator.ledger_fixture import PHASE, Filled, fill_study

Said = tuple[int, str, str]
Command = Callable[..., Said]


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "hub", done=3, collecting=True)


@pytest.fixture
def command(filled: Filled, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str, folder: Path | None = None) -> Said:
        capsys.readouterr()
        status = run_cli(app, [*words, "--folder", str(folder or filled.federation.folder)], name="coordinator")
        said = capsys.readouterr()
        return status, said.out, said.err
    return run


def test_pause_and_resume_find_the_running_study_by_themselves(filled: Filled, command: Command) -> None:
    status, out, _ = command("pause")
    assert (status, filled.ledger.study_state("first")) == (0, StudyState.PAUSED)
    assert "coordinator resume first" in out
    status, _, error = command("pause", "first")
    assert (status, error.count("\n")) == (2, 1)
    assert "paused already" in error
    status, out, _ = command("resume", "--json")
    assert json.loads(out) == {"study": "first", "state": "running"}
    assert filled.ledger.study_state("first") is StudyState.RUNNING


def test_set_aside_take_back_and_going_back_are_said_by_status(filled: Filled, command: Command,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    silo = "hospital-a"
    assert command("set-aside", silo, "--reason", "it sends noise")[0] == 0
    add_notice(filled.ledger, NoticeKind.STANDS_OUT, study="first", round=3, silo=silo, text="its norm is 31")
    _, out, _ = command("status")
    assert "set aside at the coordinator: it sends noise" in out
    assert f"{silo}, round 3: its norm is 31" in out
    status, _, error = command("set-aside", silo)
    assert (status, "is set aside already" in error, error.count("\n")) == (2, True, 1)
    assert command("set-aside", "nobody")[0] == 2
    assert command("take-back", silo)[0] == 0
    for row in filled.ledger.rounds("first"):
        file = filled.federation.studies / "first" / "states" / f"{row.state_digest}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    status, _, error = command("rollback", "first", "--to", "1", "--yes")
    assert (status, "coordinator pause first" in error) == (2, True)
    command("pause")
    status, _, error = command("rollback", "first", "--to", "1")
    assert (status, "Add --yes" in error) == (2, True)
    typed = io.StringIO("n\n")
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)
    status, _, error = command("rollback", "first", "--to", "1")
    assert (status, "Not gone back." in error) == (1, True)
    assert filled.ledger.study_state("first") is StudyState.PAUSED
    for name in ("export-round-1", "export-round-3", "export-round-20", "export-round-2-mine", "export-labels-alone"):
        (filled.federation.studies / "first" / name).mkdir()
    status, out, _ = command("rollback", "first", "--to", "1", "--reason", "noise", "--yes")
    assert (status, filled.ledger.study_state("first")) == (0, StudyState.QUEUED)
    assert "went back to round 1" in out
    assert f"stay in {filled.federation.studies / 'first'}: export-round-3, export-round-20." in " ".join(out.split())
    assert "rounds 2 to 4 no longer count; noise" in command("status")[1]


def test_stop_asks_before_it_acts(filled: Filled, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, wanted, state in (("n\n", 1, StudyState.RUNNING), ("", 130, StudyState.RUNNING),
                                  ("y\n", 0, StudyState.STOPPED)):
        typed = io.StringIO(answer)
        monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stdin", typed)
        status, _, error = command("stop")
        assert status == wanted
        assert ("Not stopped." in error) == (state is StudyState.RUNNING)
        assert filled.ledger.study_state("first") is state


def test_stop_says_what_to_add_where_nobody_can_answer(filled: Filled, command: Command,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        status, out, error = command("stop")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "Add --yes." in error
    assert filled.ledger.study_state("first") is StudyState.RUNNING


def test_stop_with_yes_asks_nothing_and_says_where_the_model_will_be(filled: Filled, command: Command) -> None:
    status, out, _ = command("stop", "first", "--yes")
    assert status == 0
    assert str(filled.federation.studies / "first" / "model.safetensors") in out
    assert command("stop", "first", "--yes")[0] == 2


def test_extend_moves_the_deadline_by_what_it_says(filled: Filled, command: Command) -> None:
    before = filled.ledger.phase("first", 4, 0).deadline_unix
    status, out, _ = command("extend", "2h", "--json")
    assert status == 0
    facts = json.loads(out)
    assert facts["deadline_unix"] == pytest.approx(before + 7200)
    assert (facts["round"], facts["phase"]) == (4, PHASE)
    status, out, _ = command("extend", "30m", "first")
    assert "ends in" in out
    for words in (("extend", "soon"), ("extend", "400d"), ("extend", "5m", "none")):
        status, out, error = command(*words)
        assert (status, out, error.count("\n")) == (2, "", 1)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("pause",), ("resume",), ("stop", "--yes"), ("extend", "5m")])
def test_where_nothing_runs_that_is_what_is_said(tmp_path: Path, command: Command, words: tuple[str, ...]) -> None:
    over = fill_study(tmp_path / "over", rounds=2)
    over.ledger.close()
    status, out, error = command(*words, folder=over.federation.folder)
    assert (status, out) == (2, "")
    assert "No study is running" in error


def test_the_page_says_where_it_is_and_how_to_unlock_it(filled: Filled, command: Command) -> None:
    status, _, error = command("page")
    assert status == 2
    assert "coordinator serve is not running" in error
    live = LiveStatus(pid=os.getpid(), unix=time.time(), page="http://127.0.0.1:8080")
    write(filled.federation.live, live)
    status, out, _ = command("page")
    assert (status, out.splitlines()[0]) == (0, "http://127.0.0.1:8080")
    assert "coordinator page --token" in out
    assert json.loads(command("page", "--json")[1]) == {"address": "http://127.0.0.1:8080"}
    assert "operator page at http://127.0.0.1:8080" in command("status")[1].replace("\n", " ")
    assert json.loads(command("status", "--json")[1])["live"]["page"] == "http://127.0.0.1:8080"
    write(filled.federation.live, LiveStatus(pid=os.getpid(), unix=time.time()))
    status, _, error = command("page")
    assert status == 2
    assert "[page] listen" in error


def test_the_status_says_what_the_system_refuses_and_that_the_study_waits(filled: Filled, command: Command) -> None:
    trouble = "/hub/spool: No space left on device. Free some space."
    write(filled.federation.live, LiveStatus(pid=os.getpid(), unix=time.time(), study="first", trouble=trouble))
    assert f"study first waits: {trouble} It continues automatically." in command("status")[1].replace("\n", " ")
    assert json.loads(command("status", "--json")[1])["live"]["trouble"] == trouble
    write(filled.federation.live, LiveStatus(pid=os.getpid(), unix=time.time(), study="first"))
    assert "waits:" not in command("status")[1]


def test_the_token_is_made_when_it_is_first_asked_for(filled: Filled, command: Command) -> None:
    path = filled.federation.page_token
    assert not path.exists()
    status, out, _ = command("page", "--token")
    assert (status, out.strip()) == (0, path.read_text().strip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(command("page", "--token", "--json")[1])["token"] == out.strip()


def test_a_page_needs_a_study_that_is_there(filled: Filled, command: Command) -> None:
    status, out, error = command("page", "none")
    assert (status, out) == (2, "")
    assert "Studies: first" in error


def test_a_folder_with_a_ledger_and_no_federation_is_that_of_a_simulation(filled: Filled, tmp_path: Path) -> None:
    from semisilo.coordinator.cli.page import _source

    filled.ledger.close()
    folder = tmp_path / "run"
    folder.mkdir()
    with sqlite3.connect(filled.federation.ledger) as source, sqlite3.connect(folder / "ledger.sqlite") as target:
        source.backup(target)
    found, federation = _source(folder)
    assert (found.federation, found.read_only, federation) == ("run", True, None)
    ledger = Ledger(found.ledger)
    assert ledger.study("first").state is StudyState.RUNNING
    ledger.close()


def test_invitations_and_revocations_of_commands_have_their_origin(filled: Filled, command: Command) -> None:
    from semisilo.coordinator.federation.authority import create_authority

    create_authority(filled.federation.authority, filled.federation.name, now=time.time())
    assert command("invite", "hospital-z")[0] == 0
    assert command("revoke", "hospital-b", "--yes")[0] == 0
    rows = filled.ledger.query("SELECT kind, json_extract(detail_json, '$.origin') AS origin FROM event"
                               " WHERE kind IN ('silo_invited', 'silo_revoked') ORDER BY number DESC LIMIT 2")
    assert [tuple(row) for row in rows] == [("silo_revoked", "command"), ("silo_invited", "command")]
