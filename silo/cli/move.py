"""`silo move`: the coordinator has another address; checked there before it is kept.

Tests: tests/silo/cli/test_move.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

if TYPE_CHECKING:
    from semisilo.silo.site.home import SiloHome
    from semisilo.silo.site.identity_store import Identity

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(move)


def move(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the coordinator serves work now, as its "
                                                                     "operator says.")],
    home: HomeOption = None,
    json_: JsonOption = False,
) -> None:
    """Goes to the coordinator at another address from now on.

    Needs no new invitation. What answers there must prove, with the authority of the invitation, to be the coordinator
    of this federation, and must take this silo for a member; else nothing is changed here. Stop `silo join` first, and
    start it again afterwards. Key, certificate, memory and caches stay.

    \b
    Examples:
      silo move hub.example:8443
      silo move [2001:db8::7]:8443 --home /var/lib/semisilo
    """
    import json
    from dataclasses import replace

    from semisilo.common.text.logs import set_up_logging
    from semisilo.silo.site.home import SiloHome, home_option
    from semisilo.silo.site.identity_store import load_identity, move_identity

    set_up_logging()
    folder = home_of(home)
    load_identity(folder)  # before a lock is made in a folder that is no silo's
    with SiloHome(folder).stopped(f"silo move {address}{home_option(folder)}"):
        identity = load_identity(folder)
        _check(SiloHome(folder), replace(identity, about=replace(identity.about, address=address)))
        moved = move_identity(folder, identity, address)
        _forget_trouble(SiloHome(folder), identity)
    if json_:
        typer.echo(json.dumps({"silo": moved.silo, "federation": moved.federation, "address": moved.address,
                               "address_before": identity.address}, ensure_ascii=False, indent=2))
        return
    typer.echo(f"Silo '{moved.silo}' of federation '{moved.federation}' goes to {moved.address} from now on; before, "
               f"to {identity.address}.")
    typer.echo(f"Next: silo join{home_option(folder)}")


def _forget_trouble(home: SiloHome, before: Identity) -> None:
    """What was in the way to the address that is left is in nobody's way now; `silo status` and `silo check` would go
    on naming it until the next `silo join`."""
    import contextlib

    from semisilo.common.rpc.tls import split_address
    from semisilo.silo.site.home import StatusFile

    status = StatusFile.load(home.status)
    if split_address(before.address)[0] in status.last_error:
        with contextlib.suppress(OSError):
            StatusFile(home.status).update(now_unix=status.updated_unix, last_error="")


def _check(home: SiloHome, identity: Identity) -> None:
    """Raises: what is in the way to the coordinator at the identity's address, as `silo check` finds it."""
    import time

    from semisilo.common.errors import ConnectionRefusedByPeer, by_code
    from semisilo.silo.check.link import look_at_link

    findings, answer = look_at_link(home, identity, now=time.time)
    if answer is not None:
        return
    for finding in findings:
        if finding.state == "bad":
            raise by_code(str(finding.facts.get("code", "")))(
                finding.text, remedy=f"{finding.remedy} Nothing was changed here.".strip())
    # The port for enrolment shows the same certificate, and knows none of a silo's calls.
    raise ConnectionRefusedByPeer(f"The coordinator answers at {identity.address}, but serves no work there.",
                                  remedy="Check the port: it is the coordinator's work port that is wanted. Nothing "
                                         "was changed here.")
