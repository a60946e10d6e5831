"""A TCP proxy for tests: counts every byte, independently of the code under test, and does harm on request.

    with Proxy("127.0.0.1", port) as proxy:
        proxy.cut_after_seconds = 2.0        # from now on, for connections that begin after this
        connect_to(proxy.port)
        assert proxy.total_up == ...

"up" is from whoever connects (a silo) to the target (the coordinator). Runs an event loop in a thread of its own.
Settings may be changed at any time; those per connection are read when a connection begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import random
import socket
import struct
import termios
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

__all__ = ["Proxy", "ProxyConnection"]

_READ_BYTES = 65_536
_QUEUED_PIECES = 4096
_ARRIVAL_SECONDS = 10.0
"""How long a cut waits for what was forwarded before it: for a receiver that takes nothing, not for a slow one."""


@dataclass
class ProxyConnection:
    """What one connection has carried."""

    source_port: int
    """The port that the connecting side uses."""
    outgoing_port: int = 0
    """The port that the proxy uses towards the target."""
    up_bytes: int = 0
    """Read from the connecting side."""
    down_bytes: int = 0
    """Read from the target."""
    closed: bool = False
    forgotten: bool = False
    """Whether whatever comes is swallowed."""
    last_monotonic: float = field(default_factory=time.monotonic)
    """When it last carried a byte."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list, repr=False)


class Proxy:
    """Forwards a local port to a target."""

    def __init__(self, host: str, port: int, *, listen_host: str = "127.0.0.1", listen_port: int = 0) -> None:
        self.target = (host, port)
        """May be changed, for example after a restart on another port."""
        self.refuse = False
        """Reset new connections at once."""
        self.cut_after_seconds: float | None = None
        """Reset every new connection this long after it began."""
        self.cut_after_up_bytes: int | None = None
        """Reset every new connection after forwarding exactly so many bytes up; the far kernel has them by then."""
        self.cut_after_down_bytes: int | None = None
        """The same, down."""
        self.delay_seconds = 0.0
        """How long each byte is under way, in each direction; does not limit the rate."""
        self.bytes_per_second = 0.0
        """How fast each direction of each connection goes; 0 for as fast as it can. Read all the time."""
        self.late_share = 0.0
        """This share of the pieces that are read comes 0.2 to 1 s later, and so does all behind it: what losing a
        packet looks like above TCP, which sends it again. Drawn from the seed 0."""
        self.forget_after_seconds: float | None = None
        """A connection that has carried nothing for so long is forgotten, as an address translator does: it stays open
        on both sides, and swallows whatever comes."""
        self.flip_up_at: int | None = None
        """Invert the byte at this position of each new connection's way up."""
        self.flip_down_at: int | None = None
        """The same, down."""
        self.connections: list[ProxyConnection] = []
        self._listen = (listen_host, listen_port)
        self._draw = random.Random(0)
        self._still_until = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where the proxy listens."""
        return self._listen[1]

    @property
    def total_up(self) -> int:
        """Bytes up, of all connections."""
        return sum(each.up_bytes for each in self.connections)

    @property
    def total_down(self) -> int:
        """Bytes down, of all connections."""
        return sum(each.down_bytes for each in self.connections)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop_listening()
        self.cut()
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)
        self._loop.close()

    def listen(self) -> None:
        """Listens (again), on the same port as before."""
        async def start() -> asyncio.Server:
            return await asyncio.start_server(self._accept, *self._listen, limit=_READ_BYTES)

        self._server = asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)
        self._listen = (self._listen[0], self._server.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Refuses connections as a host does where nothing listens; those that exist go on."""
        server, self._server = self._server, None
        if server is not None:
            async def stop() -> None:
                server.close()

            asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)

    def cut(self) -> None:
        """Resets every connection now."""
        async def cut() -> None:
            for connection in self.connections:
                _reset(connection)

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(10)

    def stand_still(self, seconds: float) -> None:
        """From now on nothing is delivered for so long; connections stay open."""
        self._still_until = self._loop.time() + seconds

    def wait_until_closed(self, timeout_seconds: float = 10.0) -> None:
        """Returns when both sides have closed every connection, so that the counts are final."""
        limit = time.monotonic() + timeout_seconds
        while not all(each.closed for each in self.connections):
            if time.monotonic() > limit:
                raise TimeoutError("A connection through the proxy is still open.")
            time.sleep(0.005)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ProxyConnection(writer.get_extra_info("peername")[1], writers=[writer])
        if self.refuse:
            _reset(connection)
            return
        self.connections.append(connection)
        timer: asyncio.TimerHandle | None = None
        try:
            try:
                far_reader, far_writer = await asyncio.open_connection(*self.target, limit=_READ_BYTES)
            except OSError:
                _reset(connection)
                return
            connection.writers.append(far_writer)
            connection.outgoing_port = far_writer.get_extra_info("sockname")[1]
            if self.cut_after_seconds is not None:
                timer = self._loop.call_later(self.cut_after_seconds, _reset, connection)
            await asyncio.gather(
                self._carry(connection, reader, far_writer, "up_bytes", self.cut_after_up_bytes, self.flip_up_at),
                self._carry(connection, far_reader, writer, "down_bytes", self.cut_after_down_bytes,
                            self.flip_down_at))
        finally:
            if timer is not None:
                timer.cancel()
            for each in connection.writers:
                each.close()
            connection.closed = True

    async def _carry(self, connection: ProxyConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                     counter: str, cut_after: int | None, flip_at: int | None) -> None:
        """Carries one direction until it ends; an end is passed on as a half-close."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED_PIECES)
        delivery = asyncio.create_task(self._deliver(connection, writer, pieces))
        position = 0
        try:
            while data := await reader.read(_READ_BYTES):
                if self._has_forgotten(connection):
                    continue
                if cut_after is not None and position + len(data) >= cut_after:
                    data = data[:cut_after - position]
                setattr(connection, counter, getattr(connection, counter) + len(data))
                if flip_at is not None and position <= flip_at < position + len(data):
                    offset = flip_at - position
                    data = data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1:]
                position += len(data)
                late = self._draw.uniform(0.2, 1.0) if self._draw.random() < self.late_share else 0.0
                await pieces.put((self._loop.time() + self.delay_seconds + late, data))
                if self.bytes_per_second:
                    await asyncio.sleep(len(data) / self.bytes_per_second)
                if cut_after is not None and position >= cut_after:
                    await pieces.join()
                    await self._arrived(writer)
                    _reset(connection)
                    return
            if connection.forgotten:
                return
            await pieces.put((self._loop.time() + self.delay_seconds, b""))
            await delivery
        except OSError:
            _reset(connection)
        finally:
            delivery.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await delivery

    async def _arrived(self, writer: asyncio.StreamWriter) -> None:
        """Returns when the far kernel has acknowledged all that was written: a reset throws away what it has not."""
        sock: socket.socket = writer.get_extra_info("socket")
        limit = self._loop.time() + _ARRIVAL_SECONDS
        while sock.fileno() >= 0 and self._loop.time() < limit:
            (unacknowledged,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
            if not unacknowledged and not writer.transport.get_write_buffer_size():
                return
            await asyncio.sleep(0.001)

    def _has_forgotten(self, connection: ProxyConnection) -> bool:
        """Whether what has just come on it is swallowed."""
        before, connection.last_monotonic = connection.last_monotonic, time.monotonic()
        if self.forget_after_seconds is not None and time.monotonic() - before > self.forget_after_seconds:
            connection.forgotten = True
        return connection.forgotten

    async def _deliver(self, connection: ProxyConnection, writer: asyncio.StreamWriter,
                       pieces: asyncio.Queue[tuple[float, bytes]]) -> None:
        broken = False
        while True:
            due, data = await pieces.get()
            try:
                while (wait := max(due, self._still_until) - self._loop.time()) > 0 and not broken:
                    await asyncio.sleep(wait)
                if not data:
                    if not broken:
                        with contextlib.suppress(OSError, RuntimeError):
                            writer.write_eof()
                    return
                if not broken:
                    writer.write(data)
                    await writer.drain()
            except (OSError, RuntimeError):
                broken = True  # what is still queued is taken and dropped, so that the reader never waits for room
                _reset(connection)
            finally:
                pieces.task_done()

    async def _drain(self) -> None:
        """Lets the tasks of cut connections end."""
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _reset(connection: ProxyConnection) -> None:
    """Closes both sides with a reset, as a lost path looks after a while."""
    for writer in connection.writers:
        sock: socket.socket | None = writer.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if writer.transport is not None:
            writer.transport.abort()
