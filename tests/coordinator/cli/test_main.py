"""The commands of the operator: what they print, what they leave, and how they end."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

import pytest
import typer

from semisilo.common import __version__
from semisilo.common.identity.invitation import decode_invitation
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.cli.main import app
from semisilo.coordinator.federation.folder import open_federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import StudyState

GOOD = '[data]\nlabelled = "digits"\nimage = { size = 8, channels = 1 }\n[method]\nname = "semifl"\n'


class Said:
    """Exit status and output of a command."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


class Command(Protocol):
    """Runs a command over the federation of the test."""

    def __call__(self, *words: str, folder: Path | None = ...) -> Said: ...


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command over the federation in this test's folder."""
    def run(*words: str, folder: Path | None = tmp_path / "lung") -> Said:
        capsys.readouterr()
        status = run_cli(app, [*words, *(() if folder is None else ("--folder", str(folder)))], name="coordinator")
        said = capsys.readouterr()
        return Said(status, said.out, said.err)
    assert run("init", "lung", "--address", "hub.example:8443").status == 0
    return run


def refused(said: Said, *words: str, status: int = 2) -> None:
    assert said.status == status, said.err
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")
    assert all(word in said.err for word in words), said.err
    assert said.out == ""


def test_init_makes_a_federation_that_every_other_command_works_with(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "lung"
    assert {path.name for path in folder.iterdir()} >= {"federation.toml", "authority", "ledger.sqlite", "studies"}
    assert (folder / "studies" / "first" / "study.toml").is_file()
    assert (folder / "authority" / "ca.key").stat().st_mode & 0o777 == 0o600
    for words in (("status",), ("invite", "hospital-a"), ("new", "second"), ("queue", "second", "--no-images")):
        assert command(*words).status == 0
    refused(command("init", "lung"), "not empty", "another name")


def test_a_study_of_one_round_is_queued_in_the_singular(command: Command, tmp_path: Path) -> None:
    (tmp_path / "lung" / "studies" / "first" / "study.toml").write_text(GOOD + "[study]\nrounds = 1\n")
    assert command("queue", "first", "--no-images").out == "Study first is queued: semifl, 1 round.\n"


@pytest.mark.parametrize(("words", "warned"), [((), True), (("--address", "hub.example:8443"), False)])
def test_init_without_an_address_says_that_it_is_for_this_machine(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], warned: bool) -> None:
    assert run_cli(app, ["init", "lung", *words, "--folder", str(tmp_path / "hub")], name="coordinator") == 0
    said = capsys.readouterr().out
    assert ("only silos on this machine can" in said) == warned
    assert (str(tmp_path / "hub" / "federation.toml") in said) == warned


def test_a_command_closes_the_ledger_that_it_opens_also_when_it_fails(command: Command, monkeypatch: pytest.MonkeyPatch
                                                                      ) -> None:
    opened: list[Ledger] = []
    closed: list[Ledger] = []

    def close(self: Ledger) -> None:
        closed.append(self)
        self._db.close()

    def note_opened(self: Ledger) -> None:
        opened.append(self)

    monkeypatch.setattr(Ledger, "_migrate", note_opened)  # the last that opening does
    monkeypatch.setattr(Ledger, "close", close)
    for words in (("status",), ("invite", "hospital-a"), ("invite", "no name"), ("revoke", "hospital-a"),
                  ("queue", "first"), ("queue", "second"), ("pause",), ("resume",), ("stop", "--yes"),
                  ("extend", "5m"), ("report",), ("page", "second")):
        before = len(opened)
        command(*words)
        assert len(opened) == before + 1, words
        assert opened == closed, words


def test_a_study_file_can_be_made_for_labels_at_silos(command: Command, tmp_path: Path) -> None:
    assert command("init", "heart", "--scenario", "labels-at-silo", folder=tmp_path / "heart").status == 0
    assert command("new", "second", "--scenario", "labels-at-silo").status == 0
    for path in (tmp_path / "heart" / "studies" / "first", tmp_path / "lung" / "studies" / "second"):
        assert 'scenario = "labels-at-silo"' in (path / "study.toml").read_text()
    assert 'scenario = "labels-at-coordinator"' in (tmp_path / "lung" / "studies" / "first" / "study.toml").read_text()
    assert "self_training" in command("queue", "second", "--no-images").out
    assert command("new", "both", "--scenario", "labels-at-both").status == 0
    assert 'scenario = "labels-at-both"' in (tmp_path / "lung" / "studies" / "both" / "study.toml").read_text()
    assert "self_training" in command("queue", "both", "--no-images").out
    assert command("new", "third", "--scenario", "labels").status == 2


def test_an_invitation_is_one_line_on_standard_output_and_nothing_else(command: Command) -> None:
    said = command("invite", "hospital-a", "--life", "2h")
    assert (said.status, said.err, said.out.count("\n")) == (0, "", 1)
    line = decode_invitation(said.out.strip())
    assert (line.silo, line.federation, line.address, line.enrollment_address) == (
        "hospital-a", "lung", "hub.example:8443", "hub.example:8444")
    assert abs(line.expires_unix - time.time() - 7200) < 60


def test_a_silo_that_is_revoked_is_gone_at_once_and_an_unknown_one_is_named(command: Command, tmp_path: Path) -> None:
    roster = LedgerRoster(Ledger(tmp_path / "lung" / "ledger.sqlite"))
    roster.add_invitation(silo="alpha", token_hash=b"t", expires_unix=4e9)
    roster.use_invitation(b"t", key_fingerprint=b"k", certificate_der=b"c", serial=1, not_after_unix=4e9)
    assert command("revoke", "alpha", "--yes").out == "Silo alpha is revoked.\n"
    status = roster.silo_status("alpha")
    assert status is not None
    assert status.revoked
    refused(command("revoke", "alfa"), "'alfa'", "alpha")


def test_a_study_is_checked_when_it_is_queued_and_status_shows_it(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "lung" / "studies" / "second" / "study.toml"
    assert str(path) in command("new", "second").out
    refused(command("new", "second"), "exists already")
    path.write_text(GOOD.replace("name =", "nme ="))
    refused(command("queue", "second"), str(path), "[method]")
    refused(command("queue", "third"), "third", "first, second", "coordinator new third")
    path.write_text(GOOD)
    assert command("queue", "second").out == "Study second is queued: semifl, 100 rounds.\n"
    refused(command("queue", "second"), "is queued")
    facts = json.loads(command("status", "--json").out)
    assert [(study["name"], study["state"]) for study in facts["studies"]] == [("second", "queued")]


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
def test_a_study_that_cannot_start_is_in_status_with_its_reason(command: Command, tmp_path: Path) -> None:
    ledger = Ledger(open_federation(tmp_path / "lung").ledger)
    ledger.refuse_study("second", "study.toml: [study]: unknown key 'ronds'. Did you mean 'rounds'?")
    said = command("status")
    assert "Did you mean 'rounds'?" in said.out
    facts = json.loads(command("status", "--json").out)["studies"][0]
    assert (facts["state"], facts["rounds"], "ronds" in facts["reason"]) == (StudyState.FAILED, 0, True)
    assert command("report", "second", "--out", str(tmp_path / "report")).status == 0


@pytest.mark.slow
@pytest.mark.parametrize(("words", "said"), [
    (("report",), ("no study",)), (("report", "nothing"), ("'nothing'",)), (("status", "--jason"), ("--jason",)),
    (("invite",), ("'SILO'", "--help")), (("invite", "Hospital A"), ("'Hospital A'",)),
    (("invite", "a", "--life", "soon"), ("--life", "'soon'", '"2h"')),
    (("invite", "a", "--life", "0s"), ("at least one minute", "0s")),
    (("invite", "a", "--life", "59s"), ("at least one minute", "24h")),
    (("invite", "Universitätsklinik Köln"), ("'universitaetsklinik-koeln'",)),
    (("new", "Münster Süd"), ("'Muenster-Sued'",)), (("new", "病院"), ("letters",)),
    (("new", "../second"), ("'../second'",)), (("queue", "../first"), ("first",)), (("sever",), ("serve",))])
def test_wrong_words_are_one_line_and_exit_status_2(command: Command, words: tuple[str, ...],
                                                    said: tuple[str, ...]) -> None:
    refused(command(*words), *said)


def test_every_command_says_that_a_folder_is_no_federation(command: Command, tmp_path: Path) -> None:
    for words in (("status",), ("serve",), ("invite", "a"), ("revoke", "a"), ("new", "x"), ("queue", "x"), ("report",)):
        refused(command(*words, folder=tmp_path / "nowhere"), "not a federation folder", "coordinator init")


@pytest.mark.parametrize("name", sorted(typer.main.get_command(app).commands))  # type: ignore[attr-defined]
def test_help_flows_at_80_columns_and_names_what_it_wants_in_capitals(name: str, capsys: pytest.CaptureFixture[str],
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_cli(app, [name, "--help"], name="coordinator") == 0
    usage, text = capsys.readouterr().out.split("\n", 1)
    assert usage.partition("[OPTIONS]")[2] == usage.partition("[OPTIONS]")[2].upper()
    for paragraph in text.partition("\nOptions:")[0].partition("\nArguments:")[0].split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line.strip() and not line.startswith("    ")]
        for line, following in itertools.pairwise(lines):
            assert len(line) + 1 + len(following.split()[0]) > 78, f"broken too early: {line}"


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--help",), ("--version",), ("serve", "--help")])
def test_help_and_version_load_neither_grpc_nor_torch(words: tuple[str, ...]) -> None:
    code = "import sys; from semisilo.common.text.cli_errors import run_cli\n" \
           "from semisilo.coordinator.cli.main import app\n" \
           f"status = run_cli(app, {list(words)!r}, name='coordinator')\n" \
           "heavy = {'torch', 'grpc', 'cryptography', 'numpy', 'sqlite3'} & sys.modules.keys()\n" \
           "print(f'status {status}, loaded {sorted(heavy)}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("status 0, loaded []\n"), done.stdout + done.stderr
    if words == ("--version",):
        assert done.stdout.startswith(f"semisilo {__version__}\n")


# Before what cannot be taken back -------------------------------------------------------------------------------------


def test_revoke_asks_and_yes_answers(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = LedgerRoster(Ledger(tmp_path / "lung" / "ledger.sqlite"))
    roster.add_invitation(silo="alpha", token_hash=b"t", expires_unix=4e9)
    roster.use_invitation(b"t", key_fingerprint=b"k", certificate_der=b"c", serial=1, not_after_unix=4e9)
    refused(command("revoke", "alpha"), "asks before a membership ends", "--yes")
    refused(command("revoke", "alfa", "--yes"), "'alfa'", "alpha")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda question, err: "Revoke silo alpha?" not in question)
    said = command("revoke", "alpha")
    assert (said.status, said.err) == (1, "Not revoked.\n")
    status = roster.silo_status("alpha")
    assert status is not None
    assert not status.revoked
    monkeypatch.setattr(typer, "confirm", lambda question, err: "Revoke silo alpha?" in question)
    assert command("revoke", "alpha").status == 0
    status = roster.silo_status("alpha")
    assert status is not None
    assert status.revoked
