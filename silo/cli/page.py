"""`silo page`.

Tests: tests/silo/page/test_command.py.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from semisilo.common.text.cli_errors import clean_exit_on_termination
from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(page)


def page(
    home: HomeOption = None,
    token: Annotated[bool, typer.Option("--token", help="Print the token that unlocks approving and declining, and end."
                                        )] = False,
    listen: Annotated[str | None, typer.Option(
        "--listen", metavar="HOST:PORT", show_default=False,
        help="Where to serve it. Default: 127.0.0.1:8090, or any free port where that is taken.")] = None,
    host: Annotated[list[str] | None, typer.Option(
        "--host", metavar="NAME", show_default=False,
        help="A name under which browsers may ask besides localhost, such as that of a reverse proxy; may be given "
             "several times.")] = None,
    json_: JsonOption = False,
) -> None:
    """Shows this silo in a browser.

    What it is and does, studies, what left this site day by day, what the coordinator asked and what became of it, how
    good the models are on this site's test images, and the rules of silo.toml in plain words. Studies are approved and
    declined there as with `silo approve` and `silo decline`.

    The page reads the silo's folder, so it works whether `silo join` runs or not. It listens on this machine only.
    Looking needs no token; deciding does, and so does what may name files of this site.

    \b
    Examples:
      silo page
      silo page --token                      paste what it prints into the page
      silo page --listen 127.0.0.1:9000
      ssh -L 8090:127.0.0.1:8090 gpu-box     then http://127.0.0.1:8090 at your desk

    \b
    Exit status: 0 stopped by SIGTERM; 1 failure; 2 wrong usage; 130 Ctrl-C.
    """
    with clean_exit_on_termination():
        from semisilo.common.errors import UsageError
        from semisilo.common.text.command_line import tell
        from semisilo.silo.site.home import SiloHome, home_option

        folder = home_of(home)
        if not folder.is_dir():
            raise UsageError(f"{folder} holds no silo.", remedy="Say which one: silo page --home DIR")
        silo = SiloHome(folder)
        if token:
            from semisilo.common.page.token import page_token

            value = page_token(silo.page_token)
            tell(json_, {"token": value}, value)
            return
        from semisilo.common.text.logs import set_up_logging
        from semisilo.common.text.wrapped import fitted, terminal_width
        from semisilo.silo.page.server import serve

        set_up_logging(verbose=False, log_format="text")

        def ready(address: str) -> None:
            lines = [f"The page of this silo: {address}"]
            if sys.stdout.isatty():
                lines += ["", *fitted("To approve or decline there, paste what this prints into the page:",
                                      terminal_width()),
                          f"    silo page --token{home_option(folder)}", "", "End it with Ctrl-C."]
            tell(json_, {"address": address}, "\n".join(lines))
            sys.stdout.flush()

        raise typer.Exit(serve(silo, listen=listen, hosts=tuple(host or ()), ready=ready))
