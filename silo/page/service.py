"""What the routes of a silo's page call: the reader in a thread of its own, with answers kept for a moment.

Tests: tests/silo/page/test_page.py.
"""

from __future__ import annotations

import asyncio
import getpass
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Literal, TypeVar

from semisilo.common.page.responses import to_json
from semisilo.common.page.token import TokenGate, page_token
from semisilo.silo.page.reader import SiloReader
from semisilo.silo.site.disclosure_table import csv_pieces, json_pieces
from semisilo.silo.site.disclosures import Broken, Line
from semisilo.silo.site.home import SiloHome, home_option
from semisilo.silo.study_cards.book import CardBook
from semisilo.silo.study_cards.decision import decide
from semisilo.silo.study_cards.table import facts_of

__all__ = ["ExportForm", "SiloPage"]

ExportForm = Literal["csv", "json"]
Result = TypeVar("Result")

_KEEP_SECONDS = 0.5
"""Several tabs ask at about the same time."""
_MOST_KEPT = 32
_PIECES = 500
"""Lines that an export makes at a time; others are answered in between."""
_READ_ON_SECONDS = 0.02


class SiloPage:
    """One silo's page."""

    def __init__(self, home: SiloHome) -> None:
        self._home = home
        self.gate = TokenGate()
        self.token_command = f"silo page --token{home_option(home.folder)}"
        """What prints the token."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="page")
        self._reader = SiloReader(home)
        self._kept: dict[str, tuple[float, bytes]] = {}

    def token(self) -> str:
        """Of this page; made when there is none. Raises: BadConfiguration where others can read it."""
        return page_token(self._home.page_token)

    async def facts(self, key: str, build: Callable[[SiloReader], Any]) -> bytes:
        """JSON of facts, perhaps a moment old. `build` runs in the thread; equal keys mean equal facts."""
        return await self._in_thread(lambda: self._build(key, build))

    async def decide(self, study: str, digest: str, *, approved: bool) -> dict[str, object]:
        """Approves or declines the card with that digest. Raises: as `decide`."""
        def work() -> dict[str, object]:
            try:
                return facts_of(decide(CardBook(self._home.cards), study, approved=approved, digest=digest,
                                       by=f"{getpass.getuser()} (page)", now_unix=time.time()))
            finally:
                self._kept.clear()
        return await self._in_thread(work)

    async def export(self, form: ExportForm, *, study: str | None, kind: str) -> AsyncIterator[str]:
        """The record of disclosures as text, made piece by piece in the thread."""
        def fitting() -> Iterator[Line | Broken]:
            for line in self._reader.book.lines():
                if isinstance(line, Broken):
                    if form == "json":
                        yield line
                elif (study is None or line.study == study) and (not kind or line.kind == kind):
                    yield line

        pieces = json_pieces(fitting(), path=self._home.disclosures.name) if form == "json" else \
            csv_pieces(line for line in fitting() if isinstance(line, Line))
        while text := await self._in_thread(lambda: "".join(islice(pieces, _PIECES))):
            yield text

    async def read_on(self) -> None:
        """Reads a record that is longer than one look until all of it is known; until cancelled."""
        while not await self._in_thread(self._reader.book.refresh):
            await asyncio.sleep(_READ_ON_SECONDS)

    async def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _build(self, key: str, build: Callable[[SiloReader], Any]) -> bytes:
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is not None and now - kept[0] < _KEEP_SECONDS:
            return kept[1]
        content = to_json(build(self._reader))
        self._kept.pop(key, None)
        self._kept[key] = time.monotonic(), content
        while len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return content
