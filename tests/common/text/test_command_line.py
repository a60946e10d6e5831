"""What all three commands say in the same way."""

from __future__ import annotations

import json

import pytest
import typer

from semisilo.cli.main import app as semisilo_app
from semisilo.common import __version__
from semisilo.common.text.cli_errors import run_cli
from semisilo.common.text.command_line import json_lines, show_version, tell
from semisilo.coordinator.cli.main import app as coordinator_app
from semisilo.silo.cli.main import app as silo_app


def test_facts_are_for_programs_and_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"silo": "a", "path": "/Bücher", "count": 3}
    tell(False, facts, "Silo a is in /Bücher.")
    assert capsys.readouterr().out == "Silo a is in /Bücher.\n"
    tell(True, facts, "Silo a is in /Bücher.")
    shown = capsys.readouterr().out
    assert json.loads(shown) == facts
    assert "Bücher" in shown, "as it is written, not as escapes"


def test_long_facts_have_a_line_for_each_entry_and_are_the_same_json() -> None:
    facts = {"folder": "/Bücher", "live": None, "none": [], "silos": [{"name": "a", "seen": [1, 2.5]}, {"name": "b"}]}
    shown = json_lines(facts)
    assert json.loads(shown) == facts
    assert len(shown.splitlines()) == 2 + len(facts) + len(facts["silos"]) + 1
    assert json.loads(json_lines({"only": 1})) == {"only": 1}


@pytest.mark.parametrize("app", [coordinator_app, silo_app, semisilo_app], ids=["coordinator", "silo", "semisilo"])
def test_every_command_says_its_version_and_ends(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(app, ["--version"]) == 0
    assert capsys.readouterr().out == f"semisilo {__version__}\n"


def test_without_the_option_the_command_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    show_version(False)
    assert capsys.readouterr().out == ""
