"""What the routes of a silo's page call: the reader in a thread of its own, with answers kept for a moment.

Tests: tests/silo/page/test_page.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

from semisilo.common.page.answers import Answers
from semisilo.common.page.token import TokenGate, page_token
from semisilo.common.process.account import account
from semisilo.silo.page.reader import SiloReader
from semisilo.silo.site.disclosure_table import csv_pieces, json_pieces
from semisilo.silo.site.disclosures import Broken, Line
from semisilo.silo.site.home import SiloHome, home_option
from semisilo.silo.study_cards.book import CardBook
from semisilo.silo.study_cards.decision import decide
from semisilo.silo.study_cards.table import facts_of

__all__ = ["ExportForm", "SiloPage"]

ExportForm = Literal["csv", "json"]

_SHARE_SECONDS = 0.5
_READ_ON_SECONDS = 0.02


class SiloPage:
    """One silo's page."""

    def __init__(self, home: SiloHome) -> None:
        self._home = home
        self.gate = TokenGate()
        self.token_command = f"silo page --token{home_option(home.folder)}"
        """What prints the token."""
        self._answers = Answers(share_seconds=_SHARE_SECONDS)
        self._reader = SiloReader(home)

    def token(self) -> str:
        """Of this page; made when there is none. Raises: BadConfiguration where others can read it."""
        return page_token(self._home.page_token)

    async def facts(self, key: str, build: Callable[[SiloReader], Any]) -> bytes:
        """JSON of facts, perhaps a moment old. `build` runs in the thread; equal keys mean equal facts."""
        return await self._answers.in_thread(lambda: self._answers.json_of(
            key, lambda: build(self._reader)))

    async def decide(self, study: str, digest: str, *, approved: bool) -> dict[str, object]:
        """Approves or declines the card with that digest. Raises: as `decide`."""
        def work() -> dict[str, object]:
            try:
                return facts_of(decide(CardBook(self._home.cards), study, approved=approved, digest=digest,
                                       by=f"{account()} (page)", now_unix=time.time()))
            finally:
                self._answers.forget()
        return await self._answers.in_thread(work)

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
        async for text in self._answers.text_of(pieces):
            yield text

    async def read_on(self) -> None:
        """Reads a record that is longer than one look until all of it is known; until cancelled."""
        while not await self._answers.in_thread(self._reader.book.refresh):
            await asyncio.sleep(_READ_ON_SECONDS)

    async def close(self) -> None:
        """Ends the thread."""
        self._answers.end()
