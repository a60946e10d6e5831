"""A page over a real ledger for tests, asked through ASGI as a browser would ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from semisilo.coordinator.page.log_lines import LogLines
from semisilo.coordinator.page.login_proxy import LoginProxy
from semisilo.coordinator.page.reader import PageSource
from semisilo.coordinator.page.routes import page_app
from semisilo.coordinator.page.service import PageService
from semisilo.coordinator.rounds.live_file import LiveStatus
from tests.coordinator.ledger_fixture import Filled

TOKEN = "a-token-that-is-long-enough"


@dataclass(slots=True)
class Page:
    """A client and what it talks to."""

    client: httpx.AsyncClient
    service: PageService
    acted: list[bool]

    async def get(self, path: str, **options: Any) -> Any:
        """JSON of an answer that must be there."""
        answer = await self.client.get(path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def act(self, name: str, body: Any, *, token: str = TOKEN, **options: Any) -> httpx.Response:
        """POST of an action."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await self.client.post(f"/api/actions/{name}", json=body, headers=headers, **options)


@asynccontextmanager
async def page(filled: Filled, *, live: LiveStatus | None = None, token: str | None = TOKEN,
               hosts: tuple[str, ...] = (), listen_host: str = "127.0.0.1", federation: bool = True,
               caller: str = "127.0.0.1", proxy: LoginProxy | None = None,
               logs: LogLines | None = None) -> AsyncIterator[Page]:
    """A page over a ledger; without a token it only reads."""
    acted: list[bool] = []
    service = PageService(
        PageSource(federation="lung-federation", address="hub.example:8443", ledger=filled.ledger.path,
                   read_only=token is None),
        live=lambda: live, federation=filled.federation if federation else None,
        token=None if token is None else lambda: token, acted=lambda: acted.append(True), logs=logs)
    transport = httpx.ASGITransport(page_app(service, listen_host=listen_host, hosts=hosts, proxy=proxy),
                                    client=(caller, 4711), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        try:
            yield Page(client, service, acted)
        finally:
            await service.close()


def asking(filled: Filled, work: Callable[[Page], Awaitable[None]], **options: Any) -> None:
    """Runs a scenario against a page."""
    async def scenario() -> None:
        async with page(filled, **options) as opened:
            await work(opened)
    asyncio.run(scenario())
