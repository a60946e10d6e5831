"""The commands `coordinator backup` and `coordinator restore`: parse, call, print.

Tests: tests/coordinator/cli/test_main.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.coordinator.cli.options import Folder

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(backup)
    app.command()(restore)


def backup(destination: Annotated[Path, typer.Argument(metavar="DEST", help="Folder for the archives, better on "
                                                       "another disk; made if it is not there.")],
           folder: Folder = Path(),
           keep: Annotated[int, typer.Option(min=0, help="How many archives of this federation stay in DEST; 0 for "
                                             "all.")] = 0,
           with_data: Annotated[bool, typer.Option("--with-data", help="Take the images beside the study files along, "
                                                   "too.")] = False,
           as_json: JsonOption = False) -> None:
    """Write one file from which the federation goes on: DEST/NAME-TIME.tar.zst.

    Works while `serve` runs, and holds it up for less than a second. The archive is read again to its end before an
    older one is removed. It holds the keys of the federation: keep it as secret as the folder. Images are left out
    unless --with-data is given; the list of what is missing is printed.

    \b
    Examples:
      coordinator backup /mnt/backup --keep 14
      coordinator backup /mnt/backup --with-data --json
    """
    import time

    from semisilo.common.text.describe import describe_bytes
    from semisilo.coordinator.federation.backup import back_up
    from semisilo.coordinator.federation.folder import open_federation

    federation = open_federation(folder)
    facts = back_up(federation, destination, now=time.time(), keep=keep, with_data=with_data)
    if destination.resolve().is_relative_to(federation.folder.resolve()):
        typer.echo(f"WARNING: {destination} is inside the federation's own folder: whatever destroys that destroys the"
                   " archive too. Name a folder on another disk.", err=True)
    if as_json:
        _print_json(facts)
        return
    typer.echo(f"{facts.archive}: {describe_bytes(facts.archive_bytes)}, {facts.files} files, read again and found"
               " whole.")
    for study in facts.studies:
        typer.echo(f"  study {study.name}: {_where(study.state, study.round)}")
    for path in facts.left_out:
        typer.echo(f"  left out: {path}")
    for path in facts.removed:
        typer.echo(f"  removed: {path}")


def restore(archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="What `coordinator backup` has written.")],
            folder: Annotated[Path, typer.Option("--folder", "-C", help="The new federation folder; must be empty or "
                                                                       "not there.")],
            as_json: JsonOption = False) -> None:
    """Make a federation folder from a backup, checking every byte.

    Afterwards put back what the backup has left out, and start `coordinator serve` over the new folder: its studies go
    on from where they were. Never let the old folder be served as well.

    Example: coordinator restore /mnt/backup/lung-20260102T030405Z.tar.zst --folder lung
    """
    from semisilo.common.identity.certificates import utc_text
    from semisilo.coordinator.cli.acting import command_user
    from semisilo.coordinator.federation.restore import restore as restore_to

    facts = restore_to(archive, folder, by=command_user())
    if as_json:
        _print_json(facts)
        return
    typer.echo(f"Federation {facts.federation} is restored in {facts.folder}, as it was on "
               f"{utc_text(facts.made_unix)}.")
    for study in facts.studies:
        typer.echo(f"  study {study.name}: {_where(study.state, study.round)}")
    typer.echo("\nBefore coordinator serve:")
    for path in facts.left_out:
        typer.echo(f"  put back            {path}")
    typer.echo("  revoke again        silos that were revoked since the backup\n"
               "  set aside again     silos that were set aside since, and those that have left since\n"
               "  invite again        silos that were enrolled since, or whose certificate was renewed since"
               + ("" if facts.withdrawn_invitations == 0 else
                  "\n  and that of the open invitation, which no longer works" if facts.withdrawn_invitations == 1 else
                  f"\n  and those of the {facts.withdrawn_invitations} open invitations, which no longer work"))


def _where(state: str, round: int) -> str:
    return state if round < 0 else f"{state}, round {round} is the last committed one"


def _print_json(facts: object) -> None:
    import json

    from semisilo.common.config import to_dict

    typer.echo(json.dumps(to_dict(facts), indent=2))
