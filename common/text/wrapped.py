"""Lines of facts on a terminal: broken at words, with what follows indented below where it begins.

Tests: tests/common/text/test_wrapped.py.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

__all__ = ["fitted", "terminal_width", "wrapped"]

_NARROW = 60
"""Below that there is no room for an indent as wide as the names are."""
_LEAST = 20


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is, or that $COLUMNS says; None for a file or a pipe, whose reader
    wants whole lines."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        return None
    return max(_LEAST, shutil.get_terminal_size((80, 24)).columns)


def wrapped(name: str, text: str, *, indent: int, width: int | None) -> list[str]:
    """ "name  text" in lines of at most `width` characters; words that are longer, such as paths, stay whole.

    Args:
        indent: where the text begins, and where it goes on; 2 on a narrow terminal, below the name.
        width: None for a single line.
    """
    head = f"{name:<{indent}}"
    if width is None:
        return [f"{head}{text}".rstrip()]
    narrow = width < _NARROW and len(head) + len(text) > width
    if narrow:
        body = textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False,
                             break_on_hyphens=False)
        return [name.rstrip(), *body] if name.strip() else body
    return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False,
                         break_on_hyphens=False, drop_whitespace=True) or [head.rstrip()]


def fitted(line: str, width: int | None) -> list[str]:
    """A line of text in lines of at most `width` characters; what follows is two deeper than where the line begins.

    Args:
        width: None for the line as it is.
    """
    if width is None or len(line) <= width:
        return [line]
    begin = line[:len(line) - len(line.lstrip())]
    return textwrap.wrap(line.strip(), width, initial_indent=begin, subsequent_indent=f"{begin}  ",
                         break_long_words=False, break_on_hyphens=False)
