"""The one place where a command's failure becomes a line on the terminal and an exit status."""

from __future__ import annotations

import codecs
import copy
import functools
import io
import logging
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from semisilo.common.errors import SemisiloError
from semisilo.common.system_errors import remedy_of
from semisilo.common.text.logs import printable, writes_json
from semisilo.common.text.parser.plain_help import help_width, say_plainly
from semisilo.common.text.parser.plain_values import take_plainly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typer.models import CommandInfo

__all__ = ["EXIT_FAILURE", "EXIT_INTERRUPTED", "EXIT_USAGE", "Terminated", "clean_exit_on_termination",
           "interrupt_on_termination", "run_cli"]

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
_AGAIN_SECONDS = 0.01


class Terminated(SystemExit):
    """A signal other than Ctrl-C's asks this process to end: with the status that a shell gives a process which the
    signal has ended. Not a KeyboardInterrupt, of which the parser makes status 130."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number, self.exit_status = number, 128 + number


@contextmanager
def clean_exit_on_termination() -> Iterator[None]:
    """Around a command that SIGTERM ends with status 0, from its first moment: as long as its event loop has not taken
    the signal over, nothing has begun that would have to be ended."""
    def leave(number: int, frame: object) -> None:
        sys.exit(0)

    if threading.current_thread() is not threading.main_thread():  # as in a test; signals are not its business
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP act like Ctrl-C, so that clearing up happens then too; the exit status tells them
    apart. A SIGHUP that is ignored stays so: with nohup the work goes on when the connection to the machine ends.

    A signal that comes where an exception goes no further, as at the end of an object's life, is sent again; so is
    that of Ctrl-C.
    """
    def interrupt(number: int, frame: object) -> None:
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    numbers = (signal.SIGTERM, *hang_up)
    before, hook = [signal.signal(number, interrupt) for number in numbers], sys.unraisablehook

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        error = lost.exc_value
        number = error.number if isinstance(error, Terminated) else \
            signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
        if number is None:
            hook(lost)
        else:  # once that place is left
            threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


_USAGE_EXCEPTION: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""What the parser raises for wrong words; typer brings its own copy of the class from some version on."""


@functools.cache
def _command_of(app: typer.Typer, name: str) -> Any:
    """The commands of an app, or the one of that name alone: made once in a process, however many lines it runs."""
    if name:
        alone = copy.copy(app)
        alone.registered_commands = [each for each in app.registered_commands if _name_of(each) == name]
        app = alone
    command = typer.main.get_command(app)
    say_plainly(command)
    take_plainly(command)
    return command


def _name_of(command: CommandInfo) -> str:
    callback = command.callback
    return command.name or (typer.main.get_command_name(callback.__name__) if callback is not None else "")


def _named(app: typer.Typer, words: Sequence[str]) -> str:
    """The command that a line names with its first word; empty where it does not. Building what no line of this process
    needs takes longer than all else that a short command does."""
    named = words[0] if words else ""
    is_group = app.registered_callback is not None  # of one command alone the parser would make no group
    return named if is_group and named in map(_name_of, app.registered_commands) else ""


def run_cli(app: typer.Typer, arguments: Sequence[str] | None = None, *, name: str | None = None) -> int:
    """Runs a command line and returns its exit status; nothing but a bug ends in a traceback.

    Args:
        app: the commands. A command may raise `typer.Exit(status)`.
        arguments: words after the command's name; None for those of this process.
        name: the command's name in help and errors; None for that of this process.
    Returns: 0 for success, 2 for wrong usage, 1 for a failure, 130 after an interrupt, 143 after a SIGTERM that cut the
        work short (`Terminated`). The line `error: ...` with the remedy goes to standard error.
    """
    _write_in_any_encoding()
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        result = _command_of(app, _named(app, words))(args=words, prog_name=name, standalone_mode=False,
                                                      terminal_width=help_width())
        sys.stdout.flush()
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
    except typer.Exit as exit:
        return int(exit.exit_code)
    except Terminated as termination:
        return termination.exit_status
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except SemisiloError as error:
        _say(error.line(), code=error.code)
        return error.exit_status
    except _USAGE_EXCEPTION as error:
        return _usage(error)
    except BrokenPipeError:
        # The reader of our output (`silo status | head`) has gone: what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        _say(_system_line(error))
        return EXIT_FAILURE


def _write_in_any_encoding() -> None:
    """Where the locale's encoding lacks a character, such as the dash of tables in ISO 8859-1, a terminal shows "?" for
    it, and a file gets its number; Python would end the command with an error of its own, also in the locale C where
    its UTF-8 mode is off. Of UTF-8 it lacks none."""
    out = sys.stdout
    refuses = ("strict", "surrogateescape")
    if isinstance(out, io.TextIOWrapper) and out.errors in refuses and codecs.lookup(out.encoding).name != "utf-8":
        out.reconfigure(errors="replace" if out.isatty() else "backslashreplace")


def _system_line(error: OSError) -> str:
    """What the operating system refused, where, and what a person can do."""
    where = f"{error.filename}: " if error.filename else ""
    clause = remedy_of(error.errno, of_file=error.filename is not None,
                       path=error.filename if isinstance(error.filename, str) else "")
    remedy = f"{clause}, then try again." if clause else ""
    return f"{where}{error.strerror or error}. {remedy}".strip()


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error.format_message()}\n")
        return EXIT_USAGE
    hint = ""
    context = getattr(error, "ctx", None)
    if context is not None:
        hint = f" Try '{context.command_path} --help'."
    text = " ".join(str(error.format_message()).split()).replace("Value error, ", "")
    _say(f"{text}{'' if text.endswith(('.', '?', '!')) else '.'}{hint}")
    return int(error.exit_code)


def _say(line: str, *, code: str = "") -> None:
    if writes_json():  # who reads that log can read nothing else
        logging.getLogger("semisilo").error("%s", line, extra={"error_code": code})
        return
    sys.stderr.write(f"error: {printable(line, limit=2000)}\n")
    sys.stderr.flush()
