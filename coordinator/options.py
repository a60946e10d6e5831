"""Options that several commands of `coordinator` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Folder", "JsonOption"]

Folder = Annotated[Path, typer.Option("--folder", "-C", envvar="SEMISILO_FEDERATION",
                                      help="The federation folder; the current one by default.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print facts as JSON.")]
