"""The bar for one long step: on a terminal alone, and gone at the end."""

from __future__ import annotations

import io

from rich.console import Console

from semisilo.common.text.progress_bar import progress_bar


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    shown = io.StringIO()
    return Console(file=shown, force_terminal=terminal, width=120, color_system=None,
                   _environ={"TERM": "xterm-256color"}), shown


def test_a_terminal_shows_what_is_done_and_how_far_it_is() -> None:
    made, shown = console(terminal=True)
    with progress_bar(made) as tell:
        tell(0.25, "measuring " + "x" * 100)
        made.file.flush()
    text = shown.getvalue()
    assert "measuring" in text
    assert "x" * 51 not in text, "a long text is cut"
    assert "25%" in text
    assert text.endswith("\x1b[2K"), "the bar is wiped"


def test_elsewhere_nothing_is_written() -> None:
    made, shown = console(terminal=False)
    with progress_bar(made) as tell:
        tell(0.5, "measuring")
    assert shown.getvalue() == ""
