"""Help says what a value is, not how a program calls its type."""

from __future__ import annotations

import re

import pytest
import typer

from semisilo.cli.main import app as semisilo
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.cli.main import app as coordinator
from semisilo.silo.cli.main import app as silo
from tests.each_of import each_of

APPS = {"coordinator": coordinator, "silo": silo, "semisilo": semisilo}
COMMANDS = [(name, command) for name, app in APPS.items()
            for command in sorted(typer.main.get_command(app).commands)]  # type: ignore[attr-defined]


@each_of(("name", "command"), COMMANDS)
def test_no_help_names_a_type(name: str, command: str, capsys: pytest.CaptureFixture[str],
                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run_cli(APPS[name], [command, "--help"], name=name) == 0
    said = capsys.readouterr().out
    assert "Usage:" in said
    assert not re.search(r"<(str|int|float|path|bool|uuid|file)\b|\bx[<>]=|<=x", said), said
    assert not re.search(r" <[a-z0-9|-]+>", said), said


def test_numbers_paths_choices_and_texts_are_named(capsys: pytest.CaptureFixture[str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    run_cli(semisilo, ["demo", "--help"], name="semisilo")
    said = capsys.readouterr().out
    assert re.search(r"--silos N +How many silos", said)
    assert "1 to 64" in said
    assert "at least 1" in said
    assert re.search(r"--method METHOD ", said)
    run_cli(coordinator, ["serve", "--help"], name="coordinator")
    said = capsys.readouterr().out
    assert re.search(r"--folder PATH ", said)
    assert "--log-format text|json" in said
    run_cli(coordinator, ["init", "--help"], name="coordinator")
    assert re.search(r"^  NAME  +Name of the federation", capsys.readouterr().out, re.MULTILINE)
