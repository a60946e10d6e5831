"""`silo model`.

Tests: tests/test_own_test_images.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(model)


def model(
    study: Annotated[str, typer.Argument(metavar="STUDY", show_default=False,
                                         help="The study's name, as `silo status` shows it.")],
    out: Annotated[Path | None, typer.Option(
        "--out", metavar="FILE", show_default=False,
        help="The file to write; STUDY.safetensors here by default. One that is there is replaced.")] = None,
    home: HomeOption = None,
    json_: JsonOption = False,
) -> None:
    """Fetches the model that a study hands over, once it is over.

    Where the study shares its model, and this silo has had part in it. The file is what the coordinator exports:
    weights with the network's name, classes and form of the images; `semisilo predict` runs it on a folder. A fetch
    that was cut goes on where it was. Works beside a running `silo join`, too.

    \b
    Examples:
      silo model lung
      silo model lung --out /models/lung.safetensors
      silo model lung --json | jq .sha256

    \b
    Exit status: 0 the file is there; 1 not shared, not over, cannot be written, or nothing has arrived for ten
    minutes; 2 there is no silo here.
    """
    import time

    from semisilo.common.text.cli_errors import interrupt_on_termination
    from semisilo.common.text.describe import describe_bytes
    from semisilo.common.text.logs import printable, set_up_logging
    from semisilo.common.text.progress_bar import progress_bar
    from semisilo.silo.agent.shared_model import fetch_model

    set_up_logging()
    with interrupt_on_termination(), progress_bar() as progress:
        found = fetch_model(
            home_of(home), study, out, now=time.time, on_bytes=lambda here, all_bytes: progress(
                here / all_bytes, f"{describe_bytes(here)} of {describe_bytes(all_bytes)}"),
            on_trouble=lambda error: typer.echo(error.line(), err=True))
    if json_:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(found), ensure_ascii=False, indent=2))
        return
    which = "labels alone" if found.labels_alone else f"round {found.round}"
    typer.echo(f"{found.path}: the model of {which} of study {printable(found.study, limit=128)}, "
               f"{describe_bytes(found.size_bytes)}")
    if found.conclusion:
        typer.echo(printable(found.conclusion, limit=2000))
    typer.echo(f"Next: semisilo predict {shlex.quote(found.path)} IMAGES")
