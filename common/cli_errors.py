"""The one place where a command's failure becomes a line on the terminal and an exit status."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from common.errors import SemisiloError
from common.logs import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXIT_FAILURE", "EXIT_INTERRUPTED", "EXIT_USAGE", "run_cli"]

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_REMEDIES = {
    errno.ENOSPC: "Free some space, then try again.",
    errno.EDQUOT: "Free some space, then try again.",
    errno.EROFS: "Choose a place that can be written.",
    errno.EACCES: "This user needs the right to it.",
    errno.EPERM: "This user needs the right to it.",
}
_USAGE_EXCEPTION: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""What the parser raises for wrong words; typer brings its own copy of the class from some version on."""


def run_cli(app: typer.Typer, arguments: Sequence[str] | None = None, *, name: str | None = None) -> int:
    """Runs a command line and returns its exit status; nothing but a bug ends in a traceback.

    Args:
        app: the commands. A command may raise `typer.Exit(status)`.
        arguments: words after the command's name; None for those of this process.
        name: the command's name in help and errors; None for that of this process.
    Returns: 0 for success, 2 for wrong usage, 1 for a failure, 130 after an interrupt. The line `error: ...` with the
        remedy goes to standard error.
    """
    try:
        result = app(args=None if arguments is None else list(arguments), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
    except typer.Exit as exit:
        return int(exit.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except SemisiloError as error:
        _say(error.line())
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


def _system_line(error: OSError) -> str:
    """What the operating system refused, where, and what a person can do."""
    place = f"{error.filename}: " if error.filename else ""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{place}{error.strerror or error}. {remedy}".strip()


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


def _say(line: str) -> None:
    sys.stderr.write(f"error: {printable(line, limit=2000)}\n")
    sys.stderr.flush()
