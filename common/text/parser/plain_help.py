"""Help without names of types: "--silos N", not "--silos <int range>"; "1 to 64", not "1<=x<=64".

The parser words them, and has no setting for it; what is replaced here are the methods that give these words.

Tests: tests/common/text/parser/test_plain_help.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from semisilo.common.text.wrapped import terminal_width

__all__ = ["all_commands", "help_width", "say_plainly"]

_LEAST_COLUMNS = 52
_NUMBERS = {"int", "integer", "float", "number"}


def help_width() -> int | None:
    """How wide help is on a terminal with fewer columns than the parser's least, 52; None for its own choice."""
    width = terminal_width()
    return width - 1 if width is not None and width < _LEAST_COLUMNS else None


def say_plainly(command: Any) -> None:
    """Makes the help of a command, and of those under it, name values by what they are.

    Args:
        command: as the parser has built it. Any: its classes are the parser's own, and differ between its versions.
    """
    width = help_width()
    for each in all_commands(command):
        for parameter in each.params:
            _plain(parameter)
        if width is not None:
            each.context_class = _narrow(each.context_class, width)


def _narrow(context: Any, width: int) -> Any:
    """A context whose help gives names of options a third of the lines at most, so that there is room for what they
    mean."""
    base = context.formatter_class

    class Formatter(base):  # type: ignore[misc, valid-type]
        def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
            super().write_dl(rows, col_max=min(col_max, width // 3), col_spacing=col_spacing)

    return type("NarrowContext", (context,), {"formatter_class": Formatter})


def all_commands(command: Any) -> Iterator[Any]:
    """A command and those under it."""
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from all_commands(each)


def _plain(parameter: Any) -> None:
    is_argument = getattr(parameter, "param_type_name", "") == "argument"
    original: Callable[..., str | None] | None = getattr(parameter, "display_type_rich", None)
    if original is not None:
        def shown(ctx: Any) -> str:
            return "" if is_argument else _words(original(ctx=ctx) or "", name=parameter.name or "")

        parameter.display_type_rich = shown
    if hasattr(parameter, "_get_number_range_help_str"):
        parameter._get_number_range_help_str = lambda: _range(parameter.min, parameter.max)


def _words(text: str, *, name: str) -> str:
    """What help says for what the parser would: "N" for "<int range>", "PATH" for "<path>", the name of the option for
    "<str>", "a|b" for "<a|b>"."""
    several = "..." if text.endswith("...") else ""
    inner = text.removesuffix("...")
    if not (inner.startswith("<") and inner.endswith(">")):
        return text
    inner = inner[1:-1]
    if "|" in inner:
        return inner + several
    kind = inner.split()[0].casefold() if inner.split() else ""
    return ("N" if kind in _NUMBERS else "PATH" if kind in ("path", "file", "directory") else
            name.strip("_").replace("_", "-").upper() or "VALUE") + several


def _range(low: float | None, high: float | None) -> str | None:
    if low is None and high is None:
        return None
    return f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
