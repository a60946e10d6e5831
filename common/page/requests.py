"""Requests of a page as its routes read them, and what its routes answer when something is wrong.

Tests: tests/coordinator/page/test_access.py.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from semisilo.common.errors import SemisiloError
from semisilo.common.page.guard import TOO_LARGE, TooLarge
from semisilo.common.page.responses import failure, failure_of
from semisilo.common.page.token import TokenGate
from semisilo.common.system_errors import explained

__all__ = ["SHARED", "TOKEN_SHOWN", "bearer_of", "caller_of", "check_query", "failures", "read_body", "static_files",
           "token_refused", "token_shown", "whole_number"]

SHARED = Path(__file__).parent / "static"
"""The design: styles, letters, and scripts that know no side."""
TOKEN_SHOWN = "token_shown"
"""In the state of a request: what to call once the right token has come with it."""
_NUMBER_DIGITS = 15
Failure = Callable[[Request, Exception], Awaitable[Response]]


def static_files(own: Path) -> StaticFiles:
    """The files of a page: its own first, then those that both sides share."""
    return StaticFiles(directory=own, packages=[("semisilo.common.page", SHARED.name)], check_dir=False)


def bearer_of(request: Request) -> str:
    """The token in the Authorization header; empty where there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def caller_of(request: Request) -> str:
    """The address that a request comes from; empty where that is not known."""
    return request.client.host if request.client is not None else ""


def token_shown(request: Request) -> None:
    """Notes that the right token has come on this connection: it is kept before those of strangers when there are too
    many."""
    note: Callable[[], None] = request.scope.get("state", {}).get(TOKEN_SHOWN, lambda: None)
    note()


def token_refused(request: Request, gate: TokenGate, given: str, *, wrong: str, missing: str, remedy: str) -> Response:
    """What is answered to a token that is not the right one, or to none; a wrong one counts against the caller.

    The right one is always heard, however many wrong ones came: behind a proxy all come from one address, and a
    stranger must not be able to keep the owner out. 256 random bits are not guessed, however often one may try.

    Args:
        wrong: what is said to a wrong token; `missing`: to none.
        remedy: where the right one is.
    """
    caller = caller_of(request)
    wait = gate.wait_seconds(caller)
    if wait > 0:
        return failure(429, "TOO_MANY_TOKENS", "Too many wrong tokens came from this address.",
                       f"Try again in {wait:.0f} s.", retry_seconds=wait)
    if given:
        gate.wrong(caller)
    return failure(401, "WRONG_TOKEN", wrong if given else missing, remedy)


def check_query(request: Request, known: set[str]) -> None:
    """Raises: HTTPException for a name in the query that means nothing here."""
    if unknown := sorted(request.query_params.keys() - known):
        raise HTTPException(400, f"There is no parameter {unknown[0][:100]!r}; there are {', '.join(sorted(known))}")


def whole_number(text: str, what: str) -> int:
    """A number in an address. Raises: HTTPException for what is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS):
        raise HTTPException(400, f"'{what}' must be a whole number")
    return int(text)


# Any: each value has the type that `fields` names for it, which is checked here.
async def read_body(request: Request, fields: Mapping[str, Any]) -> dict[str, Any] | Response:
    """The JSON object of a request with these fields and no others; those of type (T, default) may be left out. Or the
    answer that says what is wrong with it."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return failure(415, "NOT_JSON", "Send JSON, with Content-Type: application/json.")
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        return failure(400, "NOT_JSON", "The request is not JSON.")
    if not isinstance(found, dict):
        return failure(400, "NOT_JSON", "Send one JSON object.")
    unknown = sorted(found.keys() - fields.keys())
    if unknown:
        return failure(400, "UNKNOWN_FIELD", f"There is no field {unknown[0][:100]!r}.",
                       f"Fields: {', '.join(fields) or 'none'}.")
    values = {}
    for name, kind in fields.items():
        needed, default = kind if isinstance(kind, tuple) else (kind, None)
        value = found.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float) if needed is float else needed):
            return failure(400, "WRONG_FIELD", f"The field '{name}' must be a {_KINDS[needed]}.")
        if isinstance(value, str) and len(value) > 1000:
            return failure(400, "WRONG_FIELD", f"The field '{name}' is too long.")
        if isinstance(value, str) and not value.isprintable():
            return failure(400, "WRONG_FIELD", f"The field '{name}' has characters that are not text.")
        if needed is float:
            try:
                value = float(value)
            except OverflowError:
                return failure(400, "WRONG_FIELD", f"The field '{name}' is too large.")
        values[name] = value
    return values


_KINDS = {str: "text", float: "number"}


# Failures -------------------------------------------------------------------------------------------------------------


def failures(log: str) -> Mapping[Any, Failure]:
    """What Starlette calls for an exception.

    Args:
        log: where a person finds more about a mistake of ours, as a sentence.
    """
    async def unexpected(request: Request, error: Exception) -> Response:
        """A mistake of ours: the guard has it in the log. Or an error of the system, of which it has a line."""
        if (trouble := explained(error)) is not None:
            return failure_of(trouble)
        return failure(500, "INTERNAL", "The page could not answer.", log)

    return {HTTPException: _http_failure, SemisiloError: _catalogue_failure, TooLarge: _too_large,
            ClientDisconnect: _gone, Exception: unexpected}


async def _http_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {400: "BAD_REQUEST", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "HTTP")
    answer = failure(error.status_code, code, f"{error.detail}.")
    answer.headers.update(error.headers or {})  # which methods are allowed
    return answer


async def _catalogue_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, SemisiloError)
    return failure_of(error)


async def _too_large(request: Request, error: Exception) -> Response:
    return failure(*TOO_LARGE)


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody hears it: the caller has hung up within its request, which is no news for the log either."""
    return failure(400, "BAD_REQUEST", "The request broke off.")
