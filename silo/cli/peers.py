"""`silo peers`: which silos this one knows, so that engineers can compare their keys.

Tests: tests/silo/cli/test_peers.py.
"""

from __future__ import annotations

from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(peers)


def peers(
    home: HomeOption = None,
    forget: Annotated[str, typer.Option(
        "--forget", metavar="SILO", show_default=False,
        help="Forget the key that this silo was first seen with, once its engineer has said that it has a new one."
        )] = "",
    json_: JsonOption = False,
) -> None:
    """Shows the silos that this one knows, and their numbers.

    Engineers read the numbers to each other.
    Secure aggregation hides a silo's update among those of other silos. The coordinator says which silos there are, and
    could make some up. So call the other hospitals: if the numbers are equal there and here, put their lines into
    [peers] of silo.toml. With [require] pinned_peers = true only those count.

    \b
    Examples:
      silo peers
      silo peers --forget hospital-b
      silo peers --json
    """
    import json

    from semisilo.common.text.command_line import tell
    from semisilo.silo.site.home import SiloHome
    from semisilo.silo.site.peers import forget_peer, peer_lines, peers_of

    folder = home_of(home)
    if forget:
        tell(json_, {"forgotten": forget}, forget_peer(SiloHome(folder), forget))
        return
    found = peers_of(SiloHome(folder))
    if json_:
        typer.echo(json.dumps([each.facts() for each in found], indent=2))
    else:
        from semisilo.common.text.wrapped import terminal_width

        for line in peer_lines(found, width=terminal_width()):
            typer.echo(line)
