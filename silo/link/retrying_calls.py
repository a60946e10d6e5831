"""Calls to the coordinator that do not give up: one connection, deadlines, repetition, and the cause of a failure.

Tests: tests/silo/link/test_link.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio

from semisilo.common.errors import (
    BadKey,
    BadPayload,
    BadRoster,
    BadShare,
    BadSignature,
    CertificateExpired,
    CertificateRevoked,
    ClockSkew,
    LayoutMismatch,
    ModelNotReady,
    ModelNotShared,
    NotPermitted,
    PayloadNotServed,
    SecureSumFailed,
    SecureSumRefused,
    SemisiloError,
    StudyCardGone,
    TaskClosed,
    UnknownSilo,
    Unreachable,
    UpdateConflict,
    UsageError,
    WrongAuthority,
    WrongBase,
)
from semisilo.common.learning.seeds import derive_seed
from semisilo.common.rpc.grpc_errors import from_rpc_error
from semisilo.common.rpc.meter import MessageMeter
from semisilo.common.system_errors import explained
from semisilo.common.text.log_context import (
    REQUEST_ID_KEY,
    TRACEPARENT_KEY,
    bound,
    log_context,
    new_request_id,
    new_trace_id,
    traceparent,
)
from semisilo.common.text.logs import log_call, printable
from semisilo.common.wire import round_service_pb2_grpc as pb_grpc

__all__ = ["Backoff", "LinkSettings", "RetryingCalls", "TryAgain", "is_answer", "is_fatal", "waits"]

T = TypeVar("T")
_LOG = logging.getLogger("semisilo.silo")

_FATAL = (CertificateExpired, CertificateRevoked, UnknownSilo, WrongAuthority)
_ANSWERS = (BadKey, BadPayload, BadRoster, BadShare, BadSignature, LayoutMismatch, ModelNotReady, ModelNotShared,
            NotPermitted, PayloadNotServed, SecureSumFailed, SecureSumRefused, StudyCardGone, TaskClosed,
            UpdateConflict, UsageError, WrongBase)


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Waiting times that double from the first to the largest, each multiplied by a random share."""

    first_seconds: float = 0.2
    """Wait after the first failure."""
    largest_seconds: float = 30.0
    """No wait is longer."""
    jitter: float = 0.5
    """A wait is drawn evenly from (1 - jitter) to 1 times its nominal length, so that silos that lost the same
    coordinator do not come back in step."""


def waits(backoff: Backoff, *, silo: str, seed: int = 0) -> Iterator[float]:
    """Endless waiting times in seconds; a fresh iterator starts from the shortest.

    Args:
        backoff: lengths and jitter.
        silo: name of the silo, so that each has its own sequence.
        seed: counts the fresh starts of one silo.
    """
    draw = random.Random(derive_seed(seed, "backoff", silo=silo))
    nominal = backoff.first_seconds
    while True:
        yield nominal * (1 - backoff.jitter * draw.random())
        nominal = min(backoff.largest_seconds, 2 * nominal)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSettings:
    """Patience of the silo's end."""

    call_seconds: float = 30.0
    """Deadline of a unary call, on top of the time that a long poll may wait."""
    stall_seconds: float = 60.0
    """A transfer in which no byte has moved for so long is cut and gone on with."""
    answer_seconds: float = 300.0
    """Longest wait for a place to upload, and for the answer to a complete upload: the coordinator checks it and writes
    it to disk first."""
    backoff: Backoff = field(default_factory=Backoff)
    """Pauses between attempts."""
    diagnose_after: int = 2
    """Failures in a row after which the silo looks for the cause itself."""
    diagnose_every_seconds: float = 60.0
    """And how often it looks again."""


class TryAgain(SemisiloError):
    """An answer of the coordinator's that may differ next time."""

    retry = True


def is_fatal(error: SemisiloError) -> bool:
    """Whether no repetition can help: a person has to act."""
    return isinstance(error, _FATAL)


def is_answer(error: SemisiloError) -> bool:
    """Whether the coordinator has said so on purpose: the same request would get the same answer."""
    return isinstance(error, _ANSWERS)


class RetryingCalls:
    """The connection, the calls on it and their repetition; every message is counted, every call has an id."""

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel], *, silo: str, settings: LinkSettings,
                 on_trouble: Callable[[SemisiloError, int], None], on_contact: Callable[[], None],
                 on_through: Callable[[], None], diagnose: Callable[[], SemisiloError | None],
                 by_own_clock: Callable[[SemisiloError], SemisiloError], messages: MessageMeter) -> None:
        """See `semisilo.silo.link.link.Link`, which hands on what it is given."""
        self._open_channel = open_channel
        self._silo = silo
        self._settings = settings
        self._on_trouble = on_trouble
        self._on_contact = on_contact
        self._on_through = on_through
        self._diagnose = diagnose
        self._by_own_clock = by_own_clock
        self._messages = messages
        self._diagnosed = float("-inf")
        self._found: SemisiloError | None = None
        self._starts = 0
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    @property
    def settings(self) -> LinkSettings:
        """How long to wait for what."""
        return self._settings

    # The connection ---------------------------------------------------------------------------------------------------

    @property
    def channel(self) -> grpc.aio.Channel:
        """The connection; opened when it is first asked for."""
        if self._channel is None:
            self._channel = self._open_channel()
        return self._channel

    async def reopen(self) -> None:
        """Closes the connection, which ends a running call; the next call makes a new one."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    @property
    def _calls(self) -> Any:
        if self._stub is None:
            self._stub = pb_grpc.RoundServiceStub(self.channel)  # type: ignore[no-untyped-call]
        return self._stub

    # One call ---------------------------------------------------------------------------------------------------------

    async def ask(self, rpc: str, message: Any, *, wait_seconds: float = 0.0) -> Any:
        """One unary call, once. Raises: grpc.aio.AioRpcError.

        Args:
            wait_seconds: how long the coordinator may wait before it answers, by what the message says.
        """
        with self.request(rpc) as metadata:
            self.said(rpc, message.ByteSize())
            answer = await getattr(self._calls, rpc)(message, timeout=wait_seconds + self._settings.call_seconds,
                                                     metadata=metadata)
            self.heard(rpc, answer.ByteSize())
            return answer

    @contextmanager
    def request(self, rpc: str) -> Iterator[tuple[tuple[str, str], ...]]:
        """Around one RPC: gives it an id, which both sides write into their logs, and writes our line. It belongs to
        the trace of the task that it is about, or to one of its own."""
        request, began, ended = new_request_id(), time.monotonic(), "the coordinator has answered"
        trace = str(log_context().get("trace_id") or new_trace_id())
        with bound(silo=self._silo, trace_id=trace, request_id=request, rpc=rpc):
            try:
                yield (REQUEST_ID_KEY, request), (TRACEPARENT_KEY, traceparent(trace, request))
            except grpc.aio.AioRpcError as error:
                ended = f"failed: {from_rpc_error(error).code}"
                _LOG.debug("request %s: %s: %s", request, rpc, printable(str(error.details())))
                raise
            except BaseException:
                ended = "given up"
                raise
            finally:
                log_call(rpc, f"{rpc}: {ended}", seconds=time.monotonic() - began)

    def said(self, rpc: str, message_bytes: int, *, calls: int = 1) -> None:
        """Counts a message to the coordinator; `calls` is 0 for all but the first of a stream."""
        self._messages.add(message_bytes, rpc=rpc, silo=self._silo, direction="up", calls=calls)

    def heard(self, rpc: str, message_bytes: int) -> None:
        """Counts a message of the coordinator's: there is contact."""
        self._messages.add(message_bytes, rpc=rpc, silo=self._silo, direction="down")
        self._on_contact()

    def said_by(self, error: grpc.aio.AioRpcError) -> SemisiloError:
        """What the coordinator has said, or the line; that our certificate has ended, as far as we believe it."""
        return self._by_own_clock(from_rpc_error(error))

    # Patience ---------------------------------------------------------------------------------------------------------

    async def persist(self, attempt: Callable[[], Awaitable[T]], *, moved: Callable[[], int] = lambda: 0,
                      tries: int | None = None) -> T:
        """Repeats `attempt` until it succeeds or there is no use.

        Args:
            moved: tells how far it has come.
            tries: how often in a row it may fail with nothing moved; None: for ever.
        Raises: what the coordinator has answered on purpose, what no repetition can fix, and the last failure.
        """
        pauses, failures, before = self._pauses(), 0, moved()
        while True:
            try:
                result = await attempt()
            except grpc.aio.AioRpcError as error:
                problem: SemisiloError = self.said_by(error)
            except TimeoutError as error:  # or ETIMEDOUT of a share with this side's files
                problem = explained(error) or Unreachable(
                    f"Nothing has moved on the connection for {self._settings.stall_seconds:.0f} s.",
                    remedy="It is tried again.")
            except SemisiloError as error:
                problem = error
            except (OSError, RuntimeError) as error:  # of this side's files and threads
                if (trouble := explained(error)) is None:
                    raise
                problem = trouble
            else:
                self._on_through()
                return result
            if is_fatal(problem) or is_answer(problem):
                raise problem
            if moved() > before:
                pauses, failures, before = self._pauses(), 0, moved()
            failures += 1
            if failures == tries:
                raise problem
            self._on_trouble(await self._cause(problem, failures), failures)
            await asyncio.sleep(max(next(pauses), problem.retry_seconds))

    def _pauses(self) -> Iterator[float]:
        self._starts += 1
        return waits(self._settings.backoff, silo=self._silo, seed=self._starts)

    async def _cause(self, problem: SemisiloError, failures: int) -> SemisiloError:
        """What to tell the person: the failure itself, or what looking for its cause has found.

        Raises: the cause, when no repetition can fix it.
        """
        if failures == 1:
            self._found = None
        due = time.monotonic() - self._diagnosed >= self._settings.diagnose_every_seconds
        if failures < self._settings.diagnose_after or isinstance(problem, TryAgain | ClockSkew) or \
                not (due or failures == self._settings.diagnose_after):
            # One cause, one wording: what was found stands until it is looked for again.
            return self._found if self._found is not None and isinstance(problem, Unreachable) else problem
        self._diagnosed = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.call_seconds):
                found = await asyncio.to_thread(self._diagnose)
        except (TimeoutError, OSError):
            return problem
        except RuntimeError as error:
            if explained(error) is None:
                raise
            return problem
        if found is None:
            return problem
        if is_fatal(found):
            raise found
        self._found = found
        return found
