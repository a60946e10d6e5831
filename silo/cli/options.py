"""Options that several commands of `silo` take.

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["HomeOption", "MetricsOption", "NoLabelsOption", "home_of"]

# Not `readable`: what may not be read is no mistake in the words of a command. Who opens it says whose it is, with the
# status by which a service is started again.
HomeOption = Annotated[Path | None, typer.Option(
    "--home", metavar="DIR", show_default=False, readable=False,
    help="The silo's folder: identity, silo.toml, memory. Default: $SEMISILO_HOME, else ~/.semisilo")]
MetricsOption = Annotated[str | None, typer.Option(
    "--metrics", metavar="HOST:PORT", show_default=False,
    help="Serve numbers for Prometheus there, for example 127.0.0.1:9108. Default: [metrics] of silo.toml, else none.")]
NoLabelsOption = Annotated[bool, typer.Option(
    "--no-labels", help="No image of --data has a label, whatever folders it is in: for folders of patients. Always so "
                        "with labels = false in [data] of silo.toml.")]


def home_of(option: Path | None) -> Path:
    """The folder that --home names, else the default one; absolute. Raises: UsageError for root in that of another
    account; SystemTrouble where this user may not enter it."""
    from semisilo.common.process.folder_owner import check_may_enter, refuse_for_root
    from semisilo.silo.site.home import default_home

    home = (option if option is not None else default_home()).expanduser().absolute()
    refuse_for_root(home)
    check_may_enter(home)
    return home
