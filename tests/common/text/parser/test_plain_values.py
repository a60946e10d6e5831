"""Values of options: plainly right ones are taken as the parser's validator would take them, without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer

from semisilo.common.text.parser.plain_values import take_plainly
from tests.each_of import each_of

LINES = [
    [], ["one"], ["one", "two"], ["--folder", "here"], ["--folder", ""], ["--file", "here"], ["--file", "-"],
    ["--file", "."],
    ["--name", "x"], ["--name", ""], ["--size", "7"], ["--size", "0"], ["--size", "x"], ["--size", "7.5"],
    ["--share", "0.5"], ["--share", "nan"], ["--share", "2"], ["--form", "json"], ["--form", "JSON"], ["--form", "x"],
    ["--tag", "a", "--tag", "b"], ["--head", "a", "--head", "b"], ["--yes"], ["--must", "none-here"], ["--must", "."],
    ["--must", "closed"],
]


def _app(seen: dict[str, Any]) -> typer.Typer:
    app = typer.Typer(add_completion=False)

    @app.command()
    def work(words: Annotated[list[str] | None, typer.Argument()] = None,
             folder: Annotated[Path, typer.Option(envvar="PLAIN_FOLDER")] = Path(),
             file: Annotated[Path | None, typer.Option(dir_okay=False, allow_dash=True)] = None,
             must: Annotated[Path | None, typer.Option(exists=True)] = None,
             name: Annotated[str, typer.Option()] = "n", size: Annotated[int, typer.Option(min=1, max=9)] = 3,
             share: Annotated[float, typer.Option(min=0, max=1)] = 0.25,
             form: Annotated[Literal["text", "json"], typer.Option()] = "text",
             tag: Annotated[list[str] | None, typer.Option()] = None,
             head: Annotated[list[Path] | None, typer.Option()] = None,
             yes: Annotated[bool, typer.Option(envvar="PLAIN_YES")] = False) -> None:
        seen.update(locals())

    return app


def _run(words: list[str], *, plainly: bool) -> tuple[dict[str, Any], str]:
    seen: dict[str, Any] = {}
    command: Any = typer.main.get_command(_app(seen))
    if plainly:
        take_plainly(command)
    try:
        command(args=words, prog_name="work", standalone_mode=False)
    except Exception as error:  # the parser's own classes
        return {}, f"{type(error).__name__}: {error}"
    seen.pop("seen", None)
    return {name: (type(value), value) for name, value in seen.items()}, ""


@pytest.mark.slow
@each_of("words", LINES)
def test_a_command_gets_what_the_parsers_validator_would_give_it(words: list[str], tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("x")
    monkeypatch.setattr("os.access", lambda path, mode: str(path) != "closed")
    (tmp_path / "closed").write_text("x")
    found = _run(words, plainly=True)
    assert repr(found) == repr(_run(words, plainly=False))
    assert found != ({}, "")


def test_what_stands_in_the_environment_goes_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN_FOLDER", "elsewhere")
    monkeypatch.setenv("PLAIN_YES", "1")
    found, error = _run([], plainly=True)
    assert (found["folder"][1], found["yes"][1], error) == (Path("elsewhere"), True, "")
    monkeypatch.setenv("PLAIN_YES", "perhaps")
    found, error = _run([], plainly=True)
    assert error.startswith("BadParameter")
    assert (found, error) == _run([], plainly=False)


def test_a_folder_that_may_not_be_read_is_the_parsers_to_refuse(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = _run(["--folder", str(tmp_path)], plainly=True)
    assert "not readable" in found[1]
    assert found == _run(["--folder", str(tmp_path)], plainly=False)


def test_a_line_of_plain_values_does_not_load_the_validator() -> None:
    code = ("import sys, typer; from semisilo.common.text.cli_errors import run_cli\n"
            "from semisilo.coordinator.cli.main import app\n"
            "run_cli(app, ['queue', 'first', '--folder', '/nowhere', '--check'], name='coordinator')\n"
            "print('pydantic' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "not a federation folder" in done.stderr
    assert done.stdout == "False\n"
