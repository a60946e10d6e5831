"""Options that several commands of `silo` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["HomeOption", "JsonOption", "home_of"]

HomeOption = Annotated[Path | None, typer.Option(
    "--home", metavar="DIR", show_default=False,
    help="The silo's folder: identity, silo.toml, memory. Default: $SEMISILO_HOME, else ~/.semisilo")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print facts as JSON.")]


def home_of(option: Path | None) -> Path:
    """The folder that --home names, else the default one; absolute."""
    from silo.home import default_home

    return (option if option is not None else default_home()).expanduser().absolute()
