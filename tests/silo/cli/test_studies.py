"""`silo studies`, `silo approve`, `silo decline`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from semisilo.common.text.cli_errors import run_cli
from semisilo.silo.cli.main import app
from semisilo.silo.site.home import SiloHome, StatusFile
from semisilo.silo.study_cards.book import CardBook
from tests.processes import run_command
from tests.study_cards import CARD

MODULE = "semisilo.silo.cli.main"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    book = CardBook(SiloHome(tmp_path).cards)
    book.arrived("s", CARD.digest(), CARD.text(), approval=True, now_unix=1.0)
    return tmp_path


def test_a_study_that_waits_is_listed_with_what_to_type(home: Path) -> None:
    status, out, _ = run_command(MODULE, "studies", "--home", str(home))
    assert status == 0
    assert "s: waits for a person: silo approve s, or silo decline s" in out
    shown = " ".join(out.split())  # where it is wrapped hangs on the terminal
    assert "semifl, 3 rounds, network small_cnn; updates in the clear; no differential privacy" in shown
    assert f"card {CARD.digest()[:16]}" in out


@pytest.mark.parametrize("works_on", ["", "another"])
def test_a_study_that_is_over_is_not_said_to_wait_for_a_person(home: Path, works_on: str) -> None:
    """With the words of one who waits, a person approved what nothing came of any more."""
    status = StatusFile(SiloHome(home).status)
    for study, shown, over in (("s", "s: waits for a person: silo approve s", False),
                               (works_on, "s: not approved, and the study is over", True)):
        status.update(now_unix=2.0, study=study)
        _, out, _ = run_command(MODULE, "studies", "--home", str(home))
        assert shown in out
        assert ("silo approve" in out) != over
        _, out, _ = run_command(MODULE, "studies", "--home", str(home), "--json")
        assert [(each["state"], each["over"]) for each in json.loads(out)] == [("waiting", over)]


def test_the_whole_card_is_shown(home: Path) -> None:
    status, out, _ = run_command(MODULE, "studies", "--show", "s", "--home", str(home))
    assert status == 0
    assert '"confidence_threshold": 0.95' in out


@pytest.mark.parametrize(("command", "state"), [("approve", "approved"), ("decline", "declined")])
def test_a_persons_word_is_kept_with_who_gave_it(home: Path, command: str, state: str) -> None:
    status, out, _ = run_command(MODULE, command, "s", "--home", str(home), "--json")
    assert (status, json.loads(out)["state"]) == (0, state)
    entry = CardBook(SiloHome(home).cards).find("s")
    assert entry is not None
    assert (entry.state, bool(entry.by)) == (state, True)
    status, out, _ = run_command(MODULE, "studies", "--home", str(home))
    assert f"{state} by {entry.by}" in out


@pytest.mark.parametrize(("command", "state"), [("approve", "approved"), ("decline", "declined")])
def test_an_account_without_a_name_is_its_number_whatever_user_says(
        home: Path, command: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container; it ended in a traceback, or believed $USER."""
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    for name, user in (("s", "mallory"), ("s", "")):
        for variable in ("USER", "LOGNAME", "LNAME", "USERNAME"):
            monkeypatch.setenv(variable, user)
        assert run_cli(app, [command, name, "--home", str(home)], name="silo") == 0
        entry = CardBook(SiloHome(home).cards).find("s")
        assert entry is not None
        assert (entry.state, entry.by) == (state, "987654")


def test_a_study_that_nobody_knows_is_named_with_those_that_are_known(home: Path) -> None:
    status, _, err = run_command(MODULE, "approve", "t", "--home", str(home))
    assert status == 2
    assert "No card of a study 't' has come to this silo. Known: s." in err


def test_without_cards_it_says_when_they_come(tmp_path: Path) -> None:
    status, out, _ = run_command(MODULE, "studies", "--home", str(tmp_path))
    assert (status, "No study card has come yet" in out) == (0, True)
    for command, *words in (["studies"], ["approve", "first"], ["decline", "first"]):
        status, _, err = run_command(MODULE, command, *words, "--home", str(tmp_path / "nowhere"))
        assert (status, "nowhere holds no silo" in err) == (2, True)


@pytest.mark.parametrize("columns", [40, 60])
def test_studies_fit_a_narrow_terminal(home: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole, _ = run_command(MODULE, "studies", "--home", str(home))
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run_command(MODULE, "studies", "--home", str(home))
    assert max(map(len, out.splitlines())) <= columns
    assert out.split() == whole.split()
