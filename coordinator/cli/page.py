"""`coordinator page`: where the page is, the operator's token, and a page over a study without `coordinator serve`.

Tests: tests/coordinator/cli/test_operate.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from semisilo.common.errors import UsageError
from semisilo.common.page.token import page_token
from semisilo.common.text.command_line import tell
from semisilo.coordinator.federation.folder import Federation, PageSettings, folder_option, open_federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.page.reader import PageSource
from semisilo.coordinator.rounds.live_file import read

__all__ = ["print_token", "say_where", "show"]


def print_token(folder: Path, *, as_json: bool) -> None:
    """Prints the operator's token of a federation."""
    token = page_token(open_federation(folder).page_token)
    tell(as_json, {"token": token}, token)


def say_where(folder: Path, *, as_json: bool) -> None:
    """Prints the address of the page of a running coordinator.

    Raises: UsageError when there is none.
    """
    federation = open_federation(folder)
    live = read(federation.live)
    if live is None:
        raise UsageError("coordinator serve is not running, so there is no page.",
                         remedy=f"Start it: coordinator serve{folder_option(folder)}. Or show a study: coordinator"
                                f" page STUDY{folder_option(folder)}.")
    if not live.page:
        why = "it is switched off" if not federation.config.page.listen else \
            f"coordinator serve could not listen on {federation.config.page.listen}"
        raise UsageError(f"There is no operator page: {why}.",
                         remedy=f'Set [page] listen = "127.0.0.1:8080" (or another port) in '
                                f"{federation.folder / 'federation.toml'}, then restart coordinator serve.")
    tell(as_json, {"address": live.page},
         f"{live.page}\n\nTo unlock its actions (pause, stop, invite, ...), paste what this prints into the page:\n"
         "    coordinator page --token")


def show(folder: Path, study: str, *, listen: str, as_json: bool) -> None:
    """Serves a page that only reads over a ledger until interrupted.

    Raises: UsageError, UnknownName, PortInUse.
    """
    source, federation = _source(folder)
    with contextlib.closing(Ledger(source.ledger)) as ledger:
        name = ledger.study(study).name
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(source, federation, name, PageSettings(listen=listen), as_json=as_json))


def _source(folder: Path) -> tuple[PageSource, Federation | None]:
    """A federation's folder, or that of a simulation, which has a ledger only."""
    path = folder / "ledger.sqlite"
    if not (folder / "federation.toml").is_file() and path.is_file():
        return PageSource(federation=folder.resolve().name, address="", ledger=path, read_only=True), None
    federation = open_federation(folder)
    return PageSource(federation=federation.name, address=federation.config.address.public, ledger=federation.ledger,
                      read_only=True), federation


async def _serve(source: PageSource, federation: Federation | None, study: str, settings: PageSettings, *,
                 as_json: bool) -> None:
    from semisilo.coordinator.page.server import PageServer, bind
    from semisilo.coordinator.page.service import PageService

    service = PageService(source, federation=federation,
                          live=lambda: read(federation.live) if federation is not None else None)
    server = PageServer(service, bind(settings.listen), settings)
    address = f"{server.address}/#/study/{study}"
    tell(as_json, {"address": address}, f"{address}\n\nEnd it with Ctrl-C." if sys.stdout.isatty() else address)
    sys.stdout.flush()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running = asyncio.ensure_future(server.run())
    await stop.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
