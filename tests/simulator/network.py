"""Lines from silos to the coordinator, at the seam of gRPC: the silo's `Link` gets a channel, the coordinator's
`RoundServicer` is asked through the handlers that it registers. Messages cross as bytes, so both ends parse and check.

As with TCP, the messages of a call keep their order and none is missing within it; calls may overtake each other. What
goes wrong is what happens to connections: they are cut before or after a message, stall, cannot be made for a while,
and the coordinator's end may notice late. Beyond what TLS lets happen a request may come twice, long after the first,
and the last byte of a chunk may be spoilt.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from tests.simulator.loop import LIFE, SeededLoop
from tests.simulator.machine import Life, Machine

__all__ = ["Channel", "Line", "LineFault", "Network", "Server"]

_UP_SECONDS = (0.001, 0.03)
_KEEP_ALIVE_SECONDS = 400.0
"""After so long the coordinator's end finds out by itself that a line has vanished."""
_LONGEST_CALL_SECONDS = 1000.0
"""No call may last longer: polls end after a minute, transfers in which nothing moves are cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineFault:
    """What happens to a line when the so-manieth message, from the beginning of a stretch, is handed to it."""

    number: int
    kind: str
    """"cut": the message is lost with the connection; "cut after": it arrives, nothing after it; "refuse": cut, and no
    connection for a while; "half open": cut, and the coordinator notices late; "vanish": no word of the calls in flight
    comes any more, and nobody tells either end; "outage": cut, and no connection for a while, of several silos;
    "stall": nothing moves for a while;
    "delay": this message comes late; "late": it comes just after the coordinator has reached a mark; "duplicate": the
    request comes again later; "spoil": its last byte changes."""
    seconds: float = 0.0
    mark: str = ""
    """Of "late"; see `AimedDeath`. The message comes after `seconds` at the latest."""
    call: str = ""
    """The messages that are counted, "SubmitUpdate up" for example: of most calls there are few. All where empty."""


@dataclass
class Line:
    """Between one silo and the coordinator."""

    silo: str
    index: int
    refused_until: float = 0.0
    stalled_until: float = 0.0
    calls: dict[Call, None] = field(default_factory=dict)
    """In flight, oldest first."""
    port: int = 40000

    @property
    def peer(self) -> str:
        return f"ipv4:10.0.0.{self.index}:{self.port}"


class Server:
    """What the servicer registers its handlers with."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self._handlers: list[Any] = []
        self._known: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._handlers += handlers

    def handler(self, method: str) -> Any:
        if method not in self._known:
            self._known[method] = next(found for each in self._handlers
                                       if (found := each.service(_Details(method))) is not None)
        return self._known[method]


@dataclass(frozen=True, slots=True)
class _Details:
    """`grpc.HandlerCallDetails`."""

    method: str


class Network:
    """All lines."""

    def __init__(self, loop: SeededLoop, draw: random.Random) -> None:
        self.loop = loop
        self._draw = draw
        self._faults: dict[tuple[str, int], LineFault] = {}
        """By the call ("" for all) and the number of its message."""
        self._handed: Counter[str] = Counter()
        """By call: messages so far."""
        self.lines: dict[str, Line] = {}
        self.server: Server | None = None
        self.messages = 0
        """Handed to lines so far."""
        self.counted: Counter[tuple[str, str, str]] = Counter()
        """(rpc, silo, direction) -> message bytes, as the coordinator's end has them."""
        self.complaints: list[str] = []
        self.trace: Callable[[str], None] | None = None
        self.coordinator: Machine | None = None
        self.longest_seconds = 0.0

    def expect(self, fault: LineFault) -> None:
        """Messages are counted from now on."""
        number = (self._handed[fault.call] if fault.call else self.messages) + fault.number
        while (fault.call, number) in self._faults:
            number += 1
        self._faults[fault.call, number] = fault

    def add_line(self, silo: str) -> Line:
        self.lines[silo] = Line(silo, len(self.lines) + 1)
        return self.lines[silo]

    def latency(self) -> float:
        return self._draw.uniform(*_UP_SECONDS)

    def soon(self) -> float:
        """When an end notices, most often."""
        return self._draw.uniform(0.001, 0.5)

    def late(self) -> float:
        """When an end notices that hears nothing."""
        return self._draw.uniform(20.0, 100.0)

    # Messages ---------------------------------------------------------------------------------------------------------

    def carry(self, call: Call, direction: str, deliver: Callable[[Any], None], message: Any, life: Life) -> None:
        """Takes a message over; it is delivered in that life, if it is still there."""
        self.messages += 1
        if self.trace is not None:
            self.trace(f"{self.loop.time():.6f} {direction} {call.line.silo} {call.rpc} {_size(message)}")
        which = f"{call.rpc} {direction}"
        self._handed[which] += 1
        fault = self._faults.pop(("", self.messages), None) or self._faults.pop((which, self._handed[which]), None)
        extra = 0.0
        if fault is not None:
            if self.trace is not None:
                self.trace(f"fault {fault}")
            if fault.kind == "delay":
                extra = fault.seconds
            elif fault.kind == "stall":
                call.line.stalled_until = max(call.line.stalled_until, self.loop.time() + fault.seconds)
            elif fault.kind == "late":
                extra = fault.seconds
            elif fault.kind == "duplicate":
                call.repeat_after = fault.seconds
            elif fault.kind == "spoil":
                if isinstance(message, bytes) and len(message) > 60 and \
                        (call.rpc, direction) in (("SubmitUpdate", "up"), ("DownloadPayload", "down")):
                    message = message[:-1] + bytes([message[-1] ^ 1])
            elif fault.kind != "cut after":
                if fault.kind == "refuse":
                    call.line.refused_until = self.loop.time() + fault.seconds
                if fault.kind == "outage":
                    others = [line for line in self.lines.values() if line is not call.line]
                    for line in self._draw.sample(others, self._draw.randint(1, len(others))):
                        line.refused_until = self.loop.time() + fault.seconds
                        self.cut(line, notice=self.soon())
                    call.line.refused_until = self.loop.time() + fault.seconds
                if fault.kind == "vanish":
                    for each in call.line.calls:
                        each.cut = True
                        if each.serving is not None:
                            self.loop.call_later(_KEEP_ALIVE_SECONDS, each.serving.cancel,
                                                 context=each.server_life.context)
                else:
                    self.cut(call.line, notice=self.late() if fault.kind == "half open" else self.soon())
                return
        when = max(call.last[direction], self.loop.time() + self.latency() + extra, call.line.stalled_until)
        call.last[direction] = when
        arrived = False

        def arrive() -> None:
            nonlocal arrived
            if call.cut or arrived:
                return
            if call.line.stalled_until > self.loop.time():
                self.loop.call_at(call.line.stalled_until, arrive, context=life.context)
                return
            arrived = True
            kinds = ("message", f"message {call.line.silo}") if life.machine.deaths else ("message",)
            for kind in kinds:
                life.machine.event(kind)
                if not life.alive:
                    return
            deliver(message)
            for kind in kinds:
                if life.alive:
                    life.machine.event(kind, done=True)
            if fault is not None and fault.kind == "cut after":
                self.cut(call.line, notice=self.soon())

        self.loop.call_at(when, arrive, context=life.context)
        if fault is not None and fault.kind == "late" and self.coordinator is not None:
            self.coordinator.awaited.append((fault.mark, lambda: self._let_come(call, direction, arrive, life)))

    def _let_come(self, call: Call, direction: str, arrive: Callable[[], None], life: Life) -> None:
        """A message that was held comes now; so may those after it."""
        call.last[direction] = self.loop.time()
        self.loop.call_later(self.latency(), arrive, context=life.context)

    def cut(self, line: Line, *, notice: float, client_notice: float | None = None) -> None:
        """Ends all calls of a line.

        Args:
            notice: seconds until the coordinator's end notices.
            client_notice: the same of the silo's end; None: soon.
        """
        line.port += 1
        for call in list(line.calls):
            call.cut = True
            del line.calls[call]
            wait = self.soon() if client_notice is None else client_notice
            self.loop.call_later(wait, call.fail, grpc.StatusCode.UNAVAILABLE, "the connection is gone",
                                 context=call.client.context)
            if call.serving is not None:
                self.loop.call_later(notice, call.serving.cancel, context=call.server_life.context)

    def machine_died(self, machine: Machine, *, power: bool) -> None:
        """A process at one end is gone: the system closes its connections; without power nobody says a word."""
        for line in self.lines.values():
            if line.silo == machine.name or machine is self.coordinator:
                wait = self.late() if power else self.soon()
                self.cut(line, notice=wait, client_notice=wait)

    # Serving ----------------------------------------------------------------------------------------------------------

    def serve(self, call: Call) -> None:
        """The first message of a call has come: the coordinator's end begins to work on it."""
        handler = call.server.handler(call.method)
        context = _Context(self, call)
        call.serving = call.server_life.start(self._answer(call, handler, context, call.requests))

    async def _answer(self, call: Call, handler: Any, context: _Context, requests: asyncio.Queue[bytes | None]) -> None:
        key = (call.rpc, call.line.silo)
        try:
            messages = context.messages = _messages(requests, self.counted, key)
            if handler.stream_stream is not None:
                await handler.stream_stream(messages, context)
                context.end(grpc.StatusCode.OK, "", b"")
                return
            data = handler.response_serializer(await handler.stream_unary(messages, context))
            self.counted[*key, "down"] += len(data)
            context.end(grpc.StatusCode.OK, "", data)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            context.end(grpc.StatusCode.CANCELLED, "cancelled", b"")
            raise
        except Exception as error:
            self.complaints.append(f"{call.rpc} raised {error!r}")
            context.end(grpc.StatusCode.UNKNOWN, repr(error), b"")
        finally:
            if call.repeat_after and not call.ghost:
                self._repeat(call)

    def _repeat(self, call: Call) -> None:
        """The same request again, whose answer nobody hears."""
        after, call.repeat_after = call.repeat_after, 0.0
        if not call.seen or not call.server_life.alive:
            return

        def again() -> None:
            ghost = Call(self, call.line, call.method, call.metadata, call.client, call.server)
            ghost.ghost = ghost.cut = True
            for message in [*call.seen, None]:
                ghost.requests.put_nowait(message)
            self.serve(ghost)

        self.loop.call_later(after, again, context=call.server_life.context)


async def _messages(requests: asyncio.Queue[bytes | None], counted: Counter[tuple[str, str, str]],
                    key: tuple[str, str]) -> AsyncIterator[bytes]:
    while (message := await requests.get()) is not None:
        counted[*key, "up"] += len(message)
        yield message


def _size(message: Any) -> str:
    return str(len(message)) if isinstance(message, bytes) else type(message).__name__


class Call:
    """One RPC: both ends."""

    def __init__(self, network: Network, line: Line, method: str, metadata: Any, client: Life, server: Server) -> None:
        self.network = network
        self.line = line
        self.method = method
        self.rpc = method.rpartition("/")[2]
        self.metadata = tuple(metadata or ())
        self.client = client
        self.server = server
        self.server_life = server.life
        self.began = network.loop.time()
        self.last = {"up": 0.0, "down": 0.0}
        self.cut = False
        self.ghost = False
        self.repeat_after = 0.0
        self.seen: list[bytes] = []
        """Requests that have come, for a repetition."""
        self.serving: asyncio.Task[None] | None = None
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.finished: asyncio.Future[bytes] = network.loop.create_future()
        self.initial: asyncio.Future[None] = network.loop.create_future()
        self.status: tuple[grpc.StatusCode, str, Any] | None = None
        self.callbacks: list[Callable[[Any], None]] = []

    # The silo's end ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.line.calls[self] = None

    def send(self, message: bytes | None) -> asyncio.Future[None]:
        """Sends a request, None for the end of a stream; done when it has arrived."""
        arrived: asyncio.Future[None] = self.network.loop.create_future()

        def deliver(data: Any) -> None:
            self.requests.put_nowait(data)
            if data is not None:
                self.seen.append(data)
            if self.serving is None:
                self.network.serve(self)
            # The window opens: the silo's end hears of it.
            self.network.loop.call_later(self.network.latency(), _set, arrived, context=self.client.context)

        self.network.carry(self, "up", deliver, message, self.server_life)
        return arrived

    def fail(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        """The call has ended at the silo's end."""
        self._end((code, details, trailing), b"")

    def _end(self, status: tuple[grpc.StatusCode, str, Any], data: bytes) -> None:
        if self.finished.done():
            return
        self.line.calls.pop(self, None)
        self.status = status
        lasted = self.network.loop.time() - self.began
        self.network.longest_seconds = max(self.network.longest_seconds, lasted)
        if lasted > _LONGEST_CALL_SECONDS:
            self.network.complaints.append(f"{self.rpc} of {self.line.silo} lasted {lasted:.0f} s")
        if status[0] is grpc.StatusCode.OK:
            self.finished.set_result(data)
        else:
            self.finished.set_exception(self.error())
            self.finished.exception()
        if not self.initial.done():
            self.initial.set_result(None)
        self.responses.put_nowait(None)
        for callback in self.callbacks:
            self.network.loop.call_soon(callback, self.handle, context=self.client.context)

    def error(self) -> grpc.aio.AioRpcError:
        assert self.status is not None
        code, details, trailing = self.status
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details)

    def give_up(self) -> None:
        """The silo's end wants it no more."""
        if self.finished.done():
            return
        self.fail(grpc.StatusCode.CANCELLED, "given up")
        if self.serving is not None and not self.cut:
            self.network.loop.call_later(self.network.latency(), self.serving.cancel, context=self.server_life.context)
        self.cut = True

    handle: Any = None


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Context:
    """`grpc.aio.ServicerContext`, as far as the servicer uses it."""

    def __init__(self, network: Network, call: Call) -> None:
        self._network = network
        self._call = call
        self._trailing: Any = ()
        self._ended = False
        self.silo = call.line.silo
        self._peer = call.line.peer
        self.messages: AsyncIterator[bytes]
        """That the silo sends."""

    def invocation_metadata(self) -> Any:
        return self._call.metadata

    def peer(self) -> str:
        return self._peer

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._trailing = metadata

    async def send_initial_metadata(self, metadata: Any) -> None:
        if not self._call.ghost:
            self._network.carry(self._call, "down", lambda _: _set(self._call.initial), b"", self._call.client)

    async def read(self) -> Any:
        return await anext(self.messages, grpc.aio.EOF)

    async def write(self, data: bytes) -> None:
        call = self._call
        self._network.counted[call.rpc, self.silo, "down"] += len(data)
        if call.ghost:
            return
        taken: asyncio.Future[None] = self._network.loop.create_future()

        def deliver(message: Any) -> None:
            call.responses.put_nowait(message)
            self._network.loop.call_later(self._network.latency(), _set, taken, context=call.server_life.context)

        self._network.carry(call, "down", deliver, data, call.client)
        await taken

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self._trailing = trailing_metadata
        self.end(code, details, b"")
        raise grpc.aio.AbortError("aborted")

    def end(self, code: grpc.StatusCode, details: str, data: bytes) -> None:
        call = self._call
        if self._ended or call.ghost or not call.server_life.alive:
            return
        self._ended = True
        status = (code, details, self._trailing)

        def deliver(message: Any) -> None:
            call._end(status, message)

        self._network.carry(call, "down", deliver, data, call.client)


class Channel:
    """`grpc.aio.Channel` of one silo's process."""

    def __init__(self, network: Network, silo: str) -> None:
        self._network = network
        self._line = network.lines[silo]
        self._calls: dict[Call, None] = {}

    def get_state(self, *, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Calls of their own say where there is no line."""
        return grpc.ChannelConnectivity.READY

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any,
                    **options: Any) -> Callable[..., Any]:
        async def ask(message: Any, *, timeout: float, metadata: Any = ()) -> Any:
            assert 0 < timeout < _LONGEST_CALL_SECONDS, "a call without a deadline"
            call = await self._open(method, metadata)
            self._network.loop.call_later(timeout, call.fail, grpc.StatusCode.DEADLINE_EXCEEDED, "too late",
                                          context=call.client.context)
            call.send(request_serializer(message))
            try:
                return response_deserializer(await call.finished)
            finally:
                if call.status is None or call.status[0] is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._hang_up(call)
        return ask

    def unary_stream(self, method: str, request_serializer: Any = None, **options: Any) -> Callable[..., Any]:
        def ask(message: Any, *, metadata: Any = ()) -> Any:
            return _Downloading(self, method, metadata, b"" if request_serializer is None
                                else request_serializer(message))
        return ask

    def stream_unary(self, method: str, response_deserializer: Any = None, **options: Any) -> Callable[..., Any]:
        def ask(*, metadata: Any = ()) -> Any:
            return _Uploading(self, method, metadata, response_deserializer)
        return ask

    async def close(self) -> None:
        for call in list(self._calls):
            call.give_up()

    async def _open(self, method: str, metadata: Any) -> Call:
        """A call on a connection. Raises: AioRpcError when there is none."""
        network, line = self._network, self._line
        life = LIFE.get()
        assert life is not None
        await asyncio.sleep(network.latency())
        server = network.server
        if line.stalled_until > network.loop.time():
            await asyncio.sleep(min(20.0, line.stalled_until - network.loop.time()))
        if server is None or not server.life.alive or line.refused_until > network.loop.time() \
                or line.stalled_until > network.loop.time():
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(),
                                       details="no connection")
        call = Call(network, line, method, metadata, life, server)
        call.begin()
        self._calls = {each: None for each in self._calls if not each.finished.done()}
        self._calls[call] = None
        return call

    def _hang_up(self, call: Call) -> None:
        call.give_up()
        if call.serving is not None and not call.cut:
            call.cut = True
            self._network.loop.call_later(self._network.latency(), call.serving.cancel,
                                          context=call.server_life.context)


class _Streaming:
    """What both kinds of streams have at the silo's end."""

    def __init__(self, channel: Channel, method: str, metadata: Any) -> None:
        self._channel = channel
        self._method = method
        self._metadata = metadata
        self._call: Call | None = None
        self._given_up = False
        self._callbacks: list[Callable[[Any], None]] = []

    async def _opened(self) -> Call:
        if self._call is None:
            self._call = await self._channel._open(self._method, self._metadata)
            self._call.handle = self
            self._call.callbacks = self._callbacks
        return self._call

    def cancel(self) -> bool:
        self._given_up = True
        if self._call is not None:
            self._call.give_up()
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def code(self) -> Any:
        return self._call.status[0] if self._call is not None and self._call.status is not None else None

    async def details(self) -> Any:
        return self._call.status[1] if self._call is not None and self._call.status is not None else None

    async def trailing_metadata(self) -> Any:
        found = self._call.status[2] if self._call is not None and self._call.status is not None else ()
        return grpc.aio.Metadata(*found)


class _Downloading(_Streaming):
    def __init__(self, channel: Channel, method: str, metadata: Any, request: bytes) -> None:
        super().__init__(channel, method, metadata)
        self._request = request

    async def read(self) -> Any:
        if self._call is None:
            (await self._opened()).send(self._request)
        assert self._call is not None
        message = await self._call.responses.get()
        if message is not None:
            return message
        assert self._call.status is not None
        if self._call.status[0] is grpc.StatusCode.OK:
            return grpc.aio.EOF
        raise self._call.error()


class _Uploading(_Streaming):
    def __init__(self, channel: Channel, method: str, metadata: Any, response_deserializer: Any) -> None:
        super().__init__(channel, method, metadata)
        self._parse = response_deserializer

    async def write(self, message: bytes) -> None:
        call = await self._opened()
        if call.finished.done():
            raise call.error() if call.status is not None and call.status[0] is not grpc.StatusCode.OK \
                else asyncio.InvalidStateError("the call has ended")
        arrived = call.send(message)
        await asyncio.wait({arrived, call.finished}, return_when=asyncio.FIRST_COMPLETED)
        if not arrived.done():
            raise call.error() if call.status is not None and call.status[0] is not grpc.StatusCode.OK \
                else asyncio.InvalidStateError("the call has ended")

    async def initial_metadata(self) -> Any:
        call = await self._opened()
        await asyncio.shield(call.initial)
        if call.finished.done() and call.status is not None and call.status[0] is not grpc.StatusCode.OK:
            raise call.error()
        return ()

    async def done_writing(self) -> None:
        call = await self._opened()
        if not call.finished.done():
            call.send(None)

    def __await__(self) -> Any:
        return self._result().__await__()

    async def _result(self) -> Any:
        call = await self._opened()
        return self._parse(await asyncio.shield(call.finished))
