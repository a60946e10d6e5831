"""Values of options that are plainly right are taken without the validator that the parser brings for all of them:
importing that takes longer than most commands.

The parser has no setting for it; what is replaced here is the method that gives its validator. A value that is not
plainly right goes the parser's own way, with its words.

Tests: tests/common/text/parser/test_plain_values.py.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from semisilo.common.text.parser.plain_help import all_commands

__all__ = ["take_plainly"]

_ASK = object()
"""What the parser has to look at."""


def take_plainly(command: Any) -> None:
    """Makes a command, and those under it, take the values of their options plainly where they can.

    Args:
        command: as the parser has built it. Any: its classes are the parser's own, and differ between its versions;
            those that bring no such validator stay as they are.
    """
    for each in all_commands(command):
        _take_plainly(each)


def _take_plainly(command: Any) -> None:
    original: Callable[[Any], list[Any]] = command.get_params

    def get_params(ctx: Any) -> list[Any]:
        found = original(ctx)  # with --help, which the parser makes late
        for parameter in found:
            kind = getattr(parameter, "type_descriptor", None)
            if kind is not None and "get_runtime_param" not in vars(parameter):
                taken = _Taken(parameter.get_runtime_param, kind.annotation, kind.parameter_info)
                parameter.get_runtime_param = functools.partial(_the, taken)
        return found

    command.get_params = get_params


def _the(taken: _Taken) -> _Taken:
    return taken


@dataclass(frozen=True, slots=True)
class _Taken:
    """Stands in the place of the parser's validator of one parameter."""

    original: Callable[[], Any]
    annotation: Any
    asked: Any
    """What the command's author has asked of the value: the least, the greatest, a file that exists, ..."""

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """The value as the command gets it; raises what the parser raises."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        found = _ASK if self.asked.parser is not None else _plain(value, self.annotation, self.asked)
        return self.original().coerce(value, param=param, ctx=ctx) if found is _ASK else found


def _plain(value: Any, annotation: Any, asked: Any) -> Any:
    """The value where it is plainly right, else `_ASK`."""
    if annotation is str:
        return value if type(value) is str else _ASK
    if annotation is Path:
        return _path(value, asked)
    if annotation in (int, float):
        in_range = type(value) is annotation and (asked.min is None or value >= asked.min) \
            and (asked.max is None or value <= asked.max)
        return value if in_range else _ASK
    if get_origin(annotation) is Literal:
        return value if asked.case_sensitive and type(value) is str and value in get_args(annotation) else _ASK
    if get_origin(annotation) is list and isinstance(value, (list, tuple)):
        each, = get_args(annotation)
        found = [_plain(item, each, asked) for item in value]
        return _ASK if any(item is _ASK for item in found) else found
    return _ASK


def _path(value: Any, asked: Any) -> Any:
    if not isinstance(value, (str, Path)) or asked.exists or asked.writable or asked.resolve_path or asked.allow_dash \
            or asked.path_type is not None or not (asked.file_okay and asked.dir_okay):
        return _ASK
    path = Path(value)
    try:
        os.stat(path)
    except OSError:  # it need not be there
        return path
    return _ASK if asked.readable and not os.access(path, os.R_OK) else path
