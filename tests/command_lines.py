"""What the three console scripts accept, asked of their real parsers without running a command."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import typer

__all__ = ["SCRIPTS", "commands_of", "problem_of"]

SCRIPTS = {"coordinator": "semisilo.coordinator.cli.main", "silo": "semisilo.silo.cli.main",
           "semisilo": "semisilo.cli.main"}
"""Console script -> the module that holds its `app`."""


@functools.cache
def commands_of(script: str) -> dict[str, Any]:
    """The commands that `--help` lists, by name."""
    group: Any = typer.main.get_command(importlib.import_module(SCRIPTS[script]).app)
    return {name: command for name, command in group.commands.items() if not command.hidden}


def problem_of(words: Sequence[str]) -> str:
    """Why a command line such as ["silo", "join", "--data", "/scans"] is not accepted; empty when it is.

    Words are parsed and converted to the types of the parameters, as they would be for a run.
    """
    script, *rest = words
    if rest in (["--version"], ["--help"]):
        return ""
    commands = commands_of(script)
    if not rest or rest[0] not in commands:
        return f"there is no command '{' '.join(words[:2])}'"
    command, arguments = commands[rest[0]], list(rest[1:])
    if arguments == ["--help"]:
        return ""
    context = command.make_context(rest[0], [], resilient_parsing=True)
    try:
        values, surplus, _ = _strict(command.make_parser, context).parse_args(args=arguments)
        for parameter in command.params:
            if parameter.name in values:
                parameter.process_value(context, values[parameter.name])
            elif parameter.required and not parameter.envvar:
                return f"'{parameter.opts[0]}' is missing"
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    return f"'{surplus[0]}' is one word too many" if surplus else ""


def _strict(make_parser: Any, context: Any) -> Any:
    """A parser that refuses what it does not know: one of a resilient context would pass over it."""
    context.resilient_parsing = False
    return make_parser(context)
