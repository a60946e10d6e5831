"""How many calls of one silo are served: in flight, and in a second; and how long their requests may be together.
Decided by the certificate of the connection, before the request is parsed and before the ledger is asked.

Our silos have three calls in flight at most and make a handful in a second; they never meet this. A silo that restarts
may leave a call behind that waits for a task: a newer one takes its place.

Tests: tests/coordinator/rpc/test_silo_calls.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from semisilo.common.errors import BadPayload, TooManyCalls, Unreachable
from semisilo.common.payload.reader import MAX_MANIFEST_BYTES
from semisilo.common.rpc.grpc_errors import answering_errors
from semisilo.coordinator.federation.token_bucket import TokenBucket
from semisilo.coordinator.rpc.caller import caller_silo
from semisilo.coordinator.rpc.endable import Endable

__all__ = ["SiloCalls"]

_IN_FLIGHT = 32
_POLLS = 2
"""Of these, calls that wait for a task: one that goes on, and one that a silo has left behind."""
_AT_ONCE, _PER_SECOND = 400, 50.0
"""Calls of one silo. A round of a study that needs no time to train is about ten."""
_READ_AT_ONCE = 8
"""Of these, calls of which the request is not here yet: what has come of one is in gRPC's memory until it is whole. Our
silos' are here at once, but for what a broken line has left behind. More are refused: gRPC takes bytes of calls that
wait as well."""
_REQUEST_SECONDS = 60.0
"""A declaration of some hundred kilobytes passes a line of 50 kbit/s in that time."""
_MAX_REQUEST_BYTES = MAX_MANIFEST_BYTES + 64 * 1024
"""Of one request; the longest there can be is a declaration with its manifest."""
_BYTES_AT_ONCE, _BYTES_PER_SECOND = 2 * _MAX_REQUEST_BYTES, 128 * 1024.0
"""Of the requests of one silo, unpacked: what a call costs us grows with them, up to half a microsecond a byte, and on
the line they may be a tenth. Our silos send some hundred bytes a second, and a declaration in a phase."""
_AGAIN_SECONDS = 1.0

_Context = grpc.aio.ServicerContext[Any, Any]
_Work = Callable[[Any, _Context], Awaitable[Any]]


@dataclass(slots=True)
class _Silo:
    rate: TokenBucket = field(default_factory=lambda: TokenBucket(_AT_ONCE, _PER_SECOND))
    bytes: TokenBucket = field(default_factory=lambda: TokenBucket(_BYTES_AT_ONCE, _BYTES_PER_SECOND))
    in_flight: int = 0
    reading: int = 0
    polls: list[Endable] = field(default_factory=list)
    """Oldest first."""


class SiloCalls:
    """Handlers for gRPC that admit a call first. One for all services of a port.

    All are registered as streams of requests, also where there is one: gRPC then hands a call over before it has read
    its request. On the wire that is the same.
    """

    def __init__(self, federation: str, *, request_seconds: float = _REQUEST_SECONDS,
                 called: Callable[[str, str], None] = lambda peer, silo: None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            called: told of each call as it comes: the peer of its connection, and the silo of its certificate.
            request_seconds: how long a call may take to send its request.
            clock: seconds, never steps.
        """
        self._federation = federation
        self._called = called
        self._request_seconds = request_seconds
        self._clock = clock
        self._silos: dict[str, _Silo] = {}
        """By name, which the authority has signed: no more than were ever invited."""

    def unary(self, work: _Work, request: type[Message], *, poll: bool = False) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler of one request and one answer.

        Args:
            work: the servicer's method.
            request: the class of its request.
            poll: whether the answer may take long: a newer call then takes the place of an older one.
        """
        return grpc.stream_unary_rpc_method_handler(self._with_request(work, request, poll=poll),
                                                    response_serializer=_serialized)

    def download(self, work: _Work, request: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler of one request and a stream of answers, which the work writes as bytes."""
        return grpc.stream_stream_rpc_method_handler(self._with_request(work, request))

    def upload(self, work: _Work) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler of a stream of requests, which the work reads as bytes, and one answer."""
        async def admit(requests: AsyncIterator[bytes], context: _Context) -> Any:
            async with answering_errors(context):
                with self._admitted(context):
                    return await work(requests, context)

        return grpc.stream_unary_rpc_method_handler(admit, response_serializer=_serialized)

    def _with_request(self, work: _Work, request: type[Message], *, poll: bool = False) -> Any:
        async def admit(requests: AsyncIterator[bytes], context: _Context) -> Any:
            async with answering_errors(context):
                with self._admitted(context, poll=poll) as silo:
                    return await work(await self._read(context, request, silo), context)

        return admit

    @contextmanager
    def _admitted(self, context: _Context, *, poll: bool = False) -> Iterator[_Silo]:
        """Around a call. Raises: TooManyCalls; WrongAuthority."""
        name = caller_silo(context, self._federation).silo
        self._called(context.peer(), name)
        silo = self._silos.get(name)
        if silo is None:
            silo = self._silos[name] = _Silo()
        if wait := silo.rate.take(self._clock()):
            raise TooManyCalls(f"This silo calls more often than {_PER_SECOND:.0f} times a second.",
                               remedy="It is tried again.", retry_seconds=max(wait, _AGAIN_SECONDS))
        if silo.in_flight >= _IN_FLIGHT:
            raise TooManyCalls(f"This silo has {_IN_FLIGHT} calls in flight already.",
                               remedy="It is tried again.", retry_seconds=_AGAIN_SECONDS)
        silo.in_flight += 1
        try:
            with ExitStack() as polls:
                if poll:
                    polls.enter_context(_newest(silo.polls))
                yield silo
        finally:
            silo.in_flight -= 1

    async def _read(self, context: _Context, kind: type[Message], silo: _Silo) -> Message:
        """The one request. One that is too long for any, or for the silo's rate, is not even parsed: nested messages
        take many times their bytes.

        It is read from the context, not from gRPC's iterator of requests: of that one a generator would be left that
        waits for more requests. Python's collector finds thousands of them at once, and each takes a task to be closed.
        Raises: TooManyCalls; BadPayload; Unreachable.
        """
        if silo.reading >= _READ_AT_ONCE:
            raise TooManyCalls(f"This silo has begun {_READ_AT_ONCE} requests and not ended them.",
                               remedy="It is tried again.", retry_seconds=_AGAIN_SECONDS)
        silo.reading += 1
        try:
            async with asyncio.timeout(self._request_seconds):
                message: Any = await context.read()
        except TimeoutError:
            raise Unreachable(f"The request did not arrive within {self._request_seconds:.0f} s.",
                              remedy="It is tried again.") from None
        finally:
            silo.reading -= 1
        if message is grpc.aio.EOF:
            raise BadPayload("The call brings no request.")
        if len(message) > _MAX_REQUEST_BYTES:
            raise BadPayload(f"A request of {len(message)} bytes: at most {_MAX_REQUEST_BYTES}.")
        if wait := silo.bytes.take(self._clock(), len(message)):
            raise TooManyCalls(f"This silo's requests bring more than {_BYTES_PER_SECOND / 1024:.0f} KiB a second.",
                               remedy="It is tried again.", retry_seconds=max(wait, _AGAIN_SECONDS))
        try:
            return kind.FromString(message)
        except DecodeError:
            raise BadPayload("The request cannot be read.") from None


@contextmanager
def _newest(polls: list[Endable]) -> Iterator[None]:
    """Around a call that waits for a task, one of few of its silo."""
    if len(polls) >= _POLLS:
        polls.pop(0).end(TooManyCalls("A newer call of this silo waits for a task in the place of this one.",
                                      remedy="It is tried again.", retry_seconds=_AGAIN_SECONDS))
    poll = Endable()
    polls.append(poll)
    try:
        with poll.block():
            yield
    finally:
        if poll in polls:
            polls.remove(poll)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
