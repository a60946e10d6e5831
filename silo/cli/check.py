"""`silo check`.

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

if TYPE_CHECKING:
    from semisilo.silo.check.report import CheckReport

__all__ = ["add_to"]

_MARKS = {"ok": "ok", "warning": "note", "bad": "BAD", "unknown": "?"}


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(check)


def check(
    home: HomeOption = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time a few training steps of the study's network as well; "
                                                            "takes half a minute.")] = False,
    json_: JsonOption = False,
) -> None:
    """Shows what works, what does not and how to fix it.

    Also what a round will take. Looks at the identity and certificate, silo.toml, the way to the coordinator (name,
    proxy, TLS, a call), both clocks and versions, the images by their names and the headers of some hundred (`silo
    data` looks at every file), what `silo join` last refused, disk, memory, GPU, at what the current study needs
    against what this site permits, and whether a sample of the images has brightness and contrast like the study's.
    Joins nothing, and changes nothing but the record of disclosures, which gets a line before the coordinator is
    asked, and a note of what the study's images are like. Works beside a running `silo join`, too.

    \b
    Examples:
      silo check
      silo check --measure
      silo check --json | jq '.findings[] | select(.state == "bad")'

    \b
    Exit status: 0 all is well; 1 something keeps this silo from taking part (BAD).
    """
    import os
    import time

    from semisilo.common.text.logs import set_up_logging

    # Nothing is multiplied here, and starting numpy's threads takes longer than all else.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from semisilo.silo.check.report import check as look

    set_up_logging()
    found = look(home_of(home), now=time.time, measure=measure)
    if json_:
        import json

        typer.echo(json.dumps(found.to_json(), ensure_ascii=False, indent=2, default=str))
    else:
        typer.echo("\n".join(_lines(found)))
    if not found.well:
        raise typer.Exit(1)


def _lines(found: CheckReport) -> list[str]:
    from semisilo.common.text.describe import counted
    from semisilo.common.text.logs import printable
    from semisilo.common.text.wrapped import terminal_width, wrapped
    from semisilo.silo.check.forecast import line_of

    width = min(120, terminal_width() or 100)
    rows: list[str] = []

    def row(mark: str, what: str, text: str) -> None:
        rows.extend(wrapped(f"{mark:<5}{what:<12}" if mark or what else "", printable(text, limit=2000), indent=18,
                            width=width))

    for finding in found.findings:
        row(_MARKS[finding.state], finding.what, finding.text)
        if finding.remedy:
            row("", "", f"-> {finding.remedy}")
    if found.forecast is not None:
        row("", "forecast", line_of(found.forecast))
    rows.append("")
    number = sum(finding.state == "bad" for finding in found.findings)
    running = "`silo join` is running here." if found.running else "`silo join` is not running here."
    rows.append(f"{'All is well' if found.well else counted(number, 'thing') + ' to fix first'}. {running}")
    return rows
