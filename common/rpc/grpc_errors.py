"""How errors of the catalogue travel over gRPC: status, public text, and code and remedy in trailing metadata.

Both sides use it for every service, so a silo shows the coordinator's line and remedy word for word. What the
coordinator's operator must see and a stranger must not (paths, tracebacks) stays in the coordinator's log, under a
request id that both have.

Tests: tests/test_identity_over_the_network.py.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio

from semisilo.common.errors import (
    BadConfiguration,
    BadData,
    BadPayload,
    ComputeFailed,
    ConnectionRefusedByPeer,
    DiskFull,
    PortInUse,
    SemisiloError,
    StorageDamaged,
    SystemTrouble,
    TooManyCalls,
    Unreachable,
    UsageError,
    by_code,
)
from semisilo.common.system_errors import explained
from semisilo.common.text.log_context import bind, call_in, log_context
from semisilo.common.text.logs import printable
from semisilo.common.text.seldom_lines import SeldomLines

__all__ = ["CHECK_SECONDS_KEY", "CODE_KEY", "REMEDY_KEY", "RETRY_KEY", "abort_with", "answering_errors",
           "forget_lines", "from_rpc_error"]

_log = logging.getLogger(__name__)
_lines = SeldomLines()
"""About errors that are the coordinator's own business: a silo may meet one as often as it likes."""

CODE_KEY = "semisilo-error-code"
"""Trailing metadata: the code of the catalogue, ASCII."""
CHECK_SECONDS_KEY = "semisilo-check-seconds"
"""Trailing metadata of an accepted upload: how long the coordinator took after the last byte had come."""
REMEDY_KEY = "semisilo-error-remedy-bin"
"""Trailing metadata: the remedy, UTF-8."""
RETRY_KEY = "semisilo-retry-seconds"
"""Trailing metadata: `SemisiloError.retry_seconds`, a decimal number, where there is one."""
_LONGEST_RETRY_SECONDS = 86400.0
"""What a stranger may ask us to wait."""

_TEXT_LIMIT = 600
_PRIVATE: frozenset[type[SemisiloError]] = frozenset({
    SemisiloError, UsageError, BadConfiguration, BadData, ComputeFailed, StorageDamaged, PortInUse, SystemTrouble,
    DiskFull})
"""Errors about the coordinator's own files and machine: their texts name paths, which are nobody else's business."""


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """Ends an RPC with an error: one of the catalogue as itself, anything else as "internal error" with a request id.

    Raises: always, what gRPC ends an RPC with.
    """
    error = explained(error) or error
    shown = error if isinstance(error, SemisiloError) and type(error) not in _PRIVATE else _concealed(error)
    bind(error_code=error.code if isinstance(error, SemisiloError) else shown.code)
    status = getattr(grpc.StatusCode, shown.status, grpc.StatusCode.INTERNAL)
    await context.abort(status, printable(shown.text, limit=_TEXT_LIMIT), (
        (CODE_KEY, shown.code), (REMEDY_KEY, printable(shown.remedy, limit=_TEXT_LIMIT).encode()),
        *([(RETRY_KEY, f"{shown.retry_seconds:.3f}")] if shown.retry_seconds else [])))
    raise AssertionError("abort returned")


@asynccontextmanager
async def answering_errors(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Around the body of an RPC: whatever it raises reaches the caller through `abort_with`, and log lines on the way
    have the id that the caller gave its request."""
    if "request_id" not in log_context():
        bind(**call_in(context.invocation_metadata()))
    try:
        yield
    except (grpc.aio.BaseError, asyncio.CancelledError, GeneratorExit):
        raise
    except Exception as error:
        await abort_with(context, error)


def from_rpc_error(error: grpc.RpcError) -> SemisiloError:
    """The error that the other side raised, or what gRPC itself has to say in our words.

    Text and remedy come from the network: control characters are removed and the length is bounded.
    `Unreachable` and `ConnectionRefusedByPeer` without a reason of the coordinator's are where a silo asks
    `semisilo.silo.link.diagnosis.diagnose` for more.
    """
    status = error.code() if callable(getattr(error, "code", None)) else grpc.StatusCode.UNKNOWN
    details = printable(str(error.details() or "") if callable(getattr(error, "details", None)) else "",
                        limit=_TEXT_LIMIT)
    metadata = _metadata(error)
    code = metadata.get(CODE_KEY)
    if isinstance(code, str):
        remedy = metadata.get(REMEDY_KEY, b"")
        text = remedy.decode("utf-8", "replace") if isinstance(remedy, bytes) else str(remedy)
        return by_code(code)(details or "The coordinator refused and gave no reason.",
                             remedy=printable(text, limit=_TEXT_LIMIT),
                             retry_seconds=_retry_seconds(str(metadata.get(RETRY_KEY, ""))))
    return _from_status(status, details)


def _from_status(status: grpc.StatusCode, details: str) -> SemisiloError:
    if status is grpc.StatusCode.UNAVAILABLE:
        return Unreachable(f"The coordinator cannot be reached: {details or 'no reason given'}.".replace("..", "."))
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable("The coordinator did not answer in time.", remedy="It is tried again.")
    if status is grpc.StatusCode.CANCELLED:
        return Unreachable("The connection to the coordinator was closed.", remedy="It is tried again.")
    if status in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return ConnectionRefusedByPeer(f"The coordinator refused the call: {details}")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return SemisiloError("What answers at this address does not know this call.",
                             remedy="Check the port, and that coordinator and silo run the same version of semisilo.")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" not in details:
        return TooManyCalls(f"The coordinator takes no more calls at the moment: {details or 'no reason given'}.",
                            remedy="It is tried again.")
    if status in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE):
        return BadPayload(f"A message is larger than allowed: {details}")
    return SemisiloError(f"The call failed ({status.name.lower()}): {details or 'no reason given'}")


def _retry_seconds(text: str) -> float:
    """What the other side wrote; 0.0 for what is no time to wait."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(seconds, _LONGEST_RETRY_SECONDS) if seconds > 0 else 0.0


def _concealed(error: Exception) -> SemisiloError:
    """What a caller may know of an error that is the coordinator's own business; the log has the rest, once an hour for
    each silo and kind of error. Between these it is told the request of the line that stands."""
    request = str(log_context().get("request_id") or secrets.token_hex(4))
    standing = _lines.standing(str(log_context().get("silo", "")), *_kind_of(error), mark=request)
    if standing is not None:
        request = standing
    elif isinstance(error, SemisiloError):
        _log.error("request %s: %s: %s", request, error.code, error.line())
    else:
        _log.error("request %s: unexpected %s", request, type(error).__name__, exc_info=error)
    if isinstance(error, DiskFull):
        return DiskFull(f"The coordinator has no space left (request {request}).",
                        remedy="Nothing is lost; it is tried again. The coordinator's operator must make room.")
    if isinstance(error, SystemTrouble):
        return SystemTrouble(f"The coordinator's system refuses it a file for now (request {request}).",
                             remedy="Nothing is lost; it is tried again. The coordinator's log says what is wrong.")
    remedy = f"Ask the coordinator's operator to look for 'request {request}' in the coordinator's log."
    shown = type(error) if isinstance(error, SemisiloError) else SemisiloError
    return shown(f"Internal error, see the coordinator's log (request {request}).", remedy=remedy)


def _kind_of(error: Exception) -> tuple[str, str]:
    """What tells errors apart: the code of the catalogue, or else the type and where in the program it came from."""
    if isinstance(error, SemisiloError):
        return error.code, ""
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def forget_lines() -> None:
    """The next error is in the log whatever was there before."""
    _lines.forget()


def _metadata(error: grpc.RpcError) -> dict[str, str | bytes]:
    pairs: Iterable[Any] = ()
    if callable(getattr(error, "trailing_metadata", None)):
        pairs = error.trailing_metadata() or ()
    return {str(key): value for key, value in pairs}
