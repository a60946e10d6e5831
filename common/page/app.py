"""A page as an application: the routes of its side, its one page of HTML, its files, and the guard before all of it.

Tests: tests/coordinator/page/test_access.py, tests/coordinator/page/test_server.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from semisilo.common.page.guard import Guard
from semisilo.common.page.requests import failures, static_files
from semisilo.common.page.responses import failure

__all__ = ["guarded_page", "table_file"]


def guarded_page(routes: Sequence[Route], static: Path, *, facts_at: str, page: str, log: str, more_in: str,
                 listen_host: str, hosts: tuple[str, ...], unknown_host: str) -> ASGIApp:
    """The whole page, behind its guard.

    Args:
        static: the side's own files; index.html among them.
        facts_at: address of the facts, for an installation without that file.
        page: what it is called in messages.
        log: name of the logger that hears what goes wrong.
        more_in: where a person finds more about a mistake of ours, as a sentence.
        listen_host: the host that it listens on; `hosts`: further names under which browsers may ask.
        unknown_host: what to do where a browser asks under another name.
    """
    async def index(request: Request) -> Response:
        """The one page."""
        if not (static / "index.html").is_file():
            return failure(404, "NOT_FOUND", f"This installation has no page; the facts are at {facts_at}.")
        return FileResponse(static / "index.html", headers={"cache-control": "no-cache"})

    app = Starlette(routes=[Route("/", index), *routes, Mount("/static", static_files(static))],
                    exception_handlers=failures(more_in))
    app.router.redirect_slashes = False
    return Guard(app, page=page, log=log, listen_host=listen_host, hosts=hosts, unknown_host=unknown_host)


async def table_file(pieces: AsyncIterator[str], form: Literal["csv", "json"], *, name: str) -> Response:
    """A long text as a file to keep, sent while it is made. Raises: what making its first piece does, so that an answer
    has begun only when there is one."""
    first = await anext(pieces, "")

    async def text() -> AsyncIterator[str]:
        yield first
        async for piece in pieces:
            yield piece

    return StreamingResponse(text(), media_type="text/csv" if form == "csv" else "application/json", headers={
        "content-disposition": f'attachment; filename="{name}.{form}"'})
