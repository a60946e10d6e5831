"""`silo permit-model`: a file that a study may build its network with.

Tests: tests/silo/cli/test_permit_model.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from semisilo.silo.cli.options import HomeOption, home_of

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("permit-model")(permit_model)


def permit_model(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False,
                                         help="The file, as the coordinator's operator has given it to you.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: somebody has read the file.")] = False,
    home: HomeOption = None,
) -> None:
    """Permits a file that a study builds its network with.

    No code travels: a study with [model] factory = "my_net.py:build" names the file's digest, and a silo runs its own
    copy of that very file, or refuses. It runs with your rights, so read it first. It is copied into the silo's folder,
    and its digest is listed in silo.toml, [permit] model_files; remove that line to forbid it again. The config.json of
    a network of Transformers is no code, and is permitted in the same way.

    \b
    Examples:
      silo permit-model my_net.py
      silo permit-model my_net.py --yes
      silo permit-model vit-tiny/config.json
    """
    from semisilo.common.errors import UsageError
    from semisilo.silo.site.home import SiloHome
    from semisilo.silo.site.own_code.model_files import look_at, permit_file

    found = look_at(file)
    typer.echo(f"{file}: {found.lines} lines, SHA-256 {found.sha256}")
    typer.echo(f"  makes     {', '.join(found.factories) or 'nothing that a study could name'}")
    typer.echo(f"  imports   {', '.join(found.imports) or 'nothing'}")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("silo permit-model asks before it permits code, and nobody can answer here.",
                             remedy="Add --yes.")
        if not typer.confirm("It will run with your rights, where the images are. Have you read it, and do you permit"
                             " it?", err=True):
            raise UsageError("Nothing was permitted.")
    folder = SiloHome(home_of(home))
    if permit_file(folder, found):
        typer.echo(f"Permitted: listed in {folder.policy}. A running `silo join` must be started again.")
    else:
        typer.echo(f"It was permitted already in {folder.policy}.")
