"""Whatever a command raises becomes one line and the right exit status."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from typing import Any

import pytest
import typer
from rich.console import Console

from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.text.cli_errors import run_cli


def app_that(raises: BaseException | None) -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    def act(count: int = 1) -> None:
        if raises is not None:
            raise raises
    return app


@pytest.mark.parametrize(("raises", "status", "line"), [
    (None, 0, ""),
    (typer.Exit(3), 3, ""),
    (BadData("No images.", remedy="Add some."), 1, "error: No images. Add some.\n"),
    (BadConfiguration("Bad key.\nerror: fake"), 2, "error: Bad key. error: fake\n"),
    (KeyboardInterrupt(), 130, ""),
    (FileNotFoundError(2, "No such file or directory", "/scans"), 1, "error: /scans: No such file or directory.\n"),
    (typer.BadParameter("not so"), 2, "error: Invalid value: not so."),
])
def test_each_kind_of_end_has_its_status_and_line(
        raises: BaseException | None, status: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(app_that(raises), [], name="test") == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(line)
    assert said.err.count("\n") == (1 if line else 0)


_ENDS_AT_THE_WRONG_MOMENT = """
import os, signal, sys, time
from semisilo.common.text.cli_errors import interrupt_on_termination

class Ends:
    def __del__(self):
        os.kill(os.getpid(), signal.{number})
        for _ in range(1000):
            pass

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is begun without it
with interrupt_on_termination():
    Ends()
    time.sleep(60)
print("gone on")
"""


@pytest.mark.parametrize(("number", "status"), [("SIGTERM", 143), ("SIGINT", -signal.SIGINT)])
def test_a_signal_that_comes_where_an_exception_goes_no_further_ends_the_work_all_the_same(
        number: str, status: int) -> None:
    """Python tells of an exception at the end of an object's life, and goes on."""
    ended = subprocess.run([sys.executable, "-c", _ENDS_AT_THE_WRONG_MOMENT.replace("{number}", number)],
                           capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert "Exception ignored" not in ended.stderr


class _Out(io.TextIOWrapper):
    """Standard output of a process in another locale."""

    def __init__(self, encoding: str, *, terminal: bool, errors: str) -> None:
        self.written = io.BytesIO()
        super().__init__(self.written, encoding=encoding, errors=errors)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize(("encoding", "terminal", "written"), [
    ("iso8859-1", True, b"\xe4 ?\n"), ("iso8859-1", False, b"\xe4 \\u2013\n"), ("ascii", True, b"? ?\n"),
    ("utf-8", True, "\xe4 \u2013\n".encode())])
def test_a_character_that_the_locale_lacks_ends_no_command(encoding: str, terminal: bool, written: bytes, errors: str,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(lambda: Console(width=40).print("\xe4 \u2013"))
    out = _Out(encoding, terminal=terminal, errors=errors)
    monkeypatch.setattr(sys, "stdout", out)
    assert run_cli(app, [], name="test") == 0
    out.flush()
    assert out.written.getvalue() == written


def test_a_wrong_value_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(app_that(None), ["--count", "many"], name="test") == 2
    assert "--count" in capsys.readouterr().err


def test_a_bug_is_not_dressed_up_as_a_mistake_of_the_persons() -> None:
    with pytest.raises(ZeroDivisionError):
        run_cli(app_that(ZeroDivisionError()), [], name="test")


def test_a_line_that_names_a_command_builds_that_one_alone(monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer(name="two", add_completion=False, rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command("one")(lambda: typer.echo("did one"))

    @app.command()
    def the_other() -> None:
        """Does another thing."""

    built: list[list[Any]] = []
    get_command = typer.main.get_command
    monkeypatch.setattr(typer.main, "get_command",
                        lambda of: (built.append(list(of.registered_commands)), get_command(of))[1])
    assert run_cli(app, ["one"], name="two") == 0
    assert run_cli(app, ["the-other", "--help"], name="two") == 0
    said = capsys.readouterr().out
    assert "did one" in said
    assert "Usage: two the-other [OPTIONS]" in said
    assert [len(each) for each in built] == [1, 1]
    assert run_cli(app, ["--help"], name="two") == 0
    assert run_cli(app, ["neither"], name="two") == 2
    shown = capsys.readouterr()
    assert "Does another thing." in shown.out
    assert "No such command 'neither'" in shown.err
    assert [len(each) for each in built] == [1, 1, 2], "all are built once"
    assert len(app.registered_commands) == 2
