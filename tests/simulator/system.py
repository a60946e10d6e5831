"""Puts simulated machines under the product: what it asks the operating system about files below `/~NAME`, about time
and for random bytes is answered by the machine. All else goes to the host as before.

Only for a process that does nothing else: `python -m tests.simulator.run`.
"""

from __future__ import annotations

import builtins
import fcntl
import functools
import hashlib
import io
import os
import random
import secrets
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PosixPath
from types import ModuleType
from typing import Any

from tests.simulator.database import connect
from tests.simulator.disk import DESCRIPTORS, FIRST_DESCRIPTOR, Disk, File, Folder
from tests.simulator.loop import BEGINNING_UNIX, LIFE, Killed
from tests.simulator.machine import Machine

__all__ = ["simulated", "use_small_pieces"]

_machines: list[Machine] = []
_by_name: dict[str, Machine] = {}
_disks: dict[str, Disk] = {}
_by_path: dict[str, Disk] = {}
"""Where each path lies that was asked for before: some hundreds, thousands of times."""
_draw = random.Random(0)
_over = False


@contextmanager
def simulated(machines: list[Machine], draw: random.Random) -> Iterator[None]:
    """Meanwhile the product runs on these machines."""
    global _draw, _over
    _machines[:] = machines
    _by_name.clear()
    _by_name.update({machine.name: machine for machine in machines})
    _disks.clear()
    _by_path.clear()
    _disks.update({machine.name: machine.disk for machine in machines})
    _draw, _over = draw, False
    _install()
    try:
        yield
    finally:
        _by_path.clear()
        _over = True  # what dead processes do when they are collected has no effect


def _machine() -> Machine | None:
    life = LIFE.get()
    return None if life is None else life.machine


def _disk_of(path: str) -> Disk:
    found = _by_path.get(path)
    if found is not None:
        return found
    if _over:
        raise Killed
    end = path.find("/", 2)
    found = _by_path[path] = _disks[path[2:] if end < 0 else path[2:end]]
    return found


def _disk_with(descriptor: int) -> Disk:
    if _over:
        raise Killed
    return _machines[(descriptor - FIRST_DESCRIPTOR) // DESCRIPTORS].disk


# Files ----------------------------------------------------------------------------------------------------------------

_installed = False


def _install() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    for name in ("stat", "listdir", "mkdir", "unlink", "open"):
        _take_over_path(os, name)
    _take_over_path(os, "remove", "unlink")
    _take_over_path(os, "lstat", "stat")
    for name in ("fstat", "read", "pread", "write", "pwrite", "ftruncate", "fsync", "close"):
        _take_over_descriptor(name)
    _take_over_two("replace", "replace")
    _take_over_two("rename", "replace")
    _take_over_two("link", "link")
    _take_over_others()
    _take_over_whole_files()
    _take_over_digests()
    _remember_joins()
    _take_over_time()
    _take_over_chance()
    _take_over_sqlite()


def _simulated_path(path: Any) -> str | None:
    kind = type(path)
    if kind is PosixPath:
        try:
            path = path._str  # type: ignore[attr-defined]  # once somebody has asked for it
        except AttributeError:
            path = str(path)
    elif kind is not str:
        if not hasattr(path, "__fspath__"):
            return None
        path = path.__fspath__()
    return path if path[:2] == "/~" else None


def _take_over_path(module: ModuleType, name: str, as_name: str = "") -> None:
    real, method = getattr(module, name), getattr(Disk, as_name or name)

    def call(path: Any = ".", *args: Any, **options: Any) -> Any:
        text = _simulated_path(path)
        if text is None:
            return real(path, *args, **options)
        return method(_by_path.get(text) or _disk_of(text), text)

    def call_open(path: Any, *args: Any, **options: Any) -> Any:
        text = _simulated_path(path)
        if text is None:
            return real(path, *args, **options)
        return method(_by_path.get(text) or _disk_of(text), text, *args)

    setattr(module, name, call_open if name == "open" else call)


def _take_over_descriptor(name: str) -> None:
    real, method = getattr(os, name), getattr(Disk, name)

    def call(descriptor: int, *args: Any) -> Any:
        if type(descriptor) is not int or descriptor < FIRST_DESCRIPTOR:
            return real(descriptor, *args)
        if _over:
            raise Killed
        return method(_machines[(descriptor - FIRST_DESCRIPTOR) // DESCRIPTORS].disk, descriptor, *args)

    setattr(os, name, call)


def _take_over_two(name: str, method: str) -> None:
    real = getattr(os, name)

    def call(source: Any, target: Any, **options: Any) -> Any:
        first, second = _simulated_path(source), _simulated_path(target)
        if first is None or second is None:
            return real(source, target, **options)
        return getattr(_disk_of(first), method)(first, second)

    setattr(os, name, call)


def _remember_joins() -> None:
    """A schedule joins a few hundred paths, thousands of times, and a path does not change."""
    join = PosixPath.__truediv__

    @functools.lru_cache(maxsize=16_384)
    def joined(folder: str, name: str) -> PosixPath:
        return join(PosixPath(folder), name)

    def call(path: PosixPath, name: Any) -> PosixPath:
        return joined(str(path), name) if type(name) is str and type(path) is PosixPath else join(path, name)

    PosixPath.__truediv__ = call  # type: ignore[method-assign]


def _take_over_whole_files() -> None:
    """Files that a path reads or writes at once, which pass through three objects of `io` otherwise."""
    read_bytes, read_text, write_bytes = PosixPath.read_bytes, PosixPath.read_text, PosixPath.write_bytes

    def bytes_of(path: PosixPath) -> bytes:
        text = str(path)
        return _disk_of(text).read_file(text) if text[:2] == "/~" else read_bytes(path)

    def text_of(path: PosixPath, encoding: str | None = None, errors: str | None = None) -> str:
        text = str(path)
        if text[:2] != "/~" or encoding != "utf-8" or errors is not None:
            return read_text(path, encoding, errors)
        content = _disk_of(text).read_file(text).decode()
        return content.replace("\r\n", "\n").replace("\r", "\n") if "\r" in content else content

    def write(path: PosixPath, data: Any) -> int:
        text = str(path)
        return _disk_of(text).write_file(text, data) if text[:2] == "/~" else write_bytes(path, data)

    PosixPath.read_bytes, PosixPath.read_text, PosixPath.write_bytes = bytes_of, text_of, write  # type: ignore[assignment, method-assign]


def _take_over_digests() -> None:
    """`hash_file` of files that are small, so that they are read at once."""
    from semisilo.common.storage import state_files, store
    from semisilo.silo.site import memory
    from tests.simulator import training

    real = store.hash_file

    def hash_file(path: Any) -> str:
        text = _simulated_path(path)
        return real(path) if text is None else hashlib.sha256(_disk_of(text).read_file(text)).hexdigest()

    for module in (store, state_files, memory, training):
        module.hash_file = hash_file  # type: ignore[attr-defined]


class _Entry:
    """What `os.scandir` yields."""

    def __init__(self, folder: str, name: str, disk: Disk) -> None:
        self.name = name
        self.path = f"{folder}/{name}"
        self._disk = disk

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._disk.stat(self.path)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(File)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(Folder)

    def is_symlink(self) -> bool:
        return False

    def __fspath__(self) -> str:
        return self.path

    def _is(self, kind: type) -> bool:
        try:
            return isinstance(self._disk.entry(self.path), kind)
        except FileNotFoundError:
            return False


class _Entries:
    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _take_over_others() -> None:
    scandir, utime, statvfs, fdopen, preadv = os.scandir, os.utime, os.statvfs, os.fdopen, os.preadv
    fchmod, open_file, chmod, flock = os.fchmod, io.open, os.chmod, fcntl.flock

    def scan(path: Any = ".") -> Any:
        text = _simulated_path(path)
        if text is None:
            return scandir(path)
        disk = _disk_of(text)
        return _Entries([_Entry(text.rstrip("/"), name, disk) for name in disk.listdir(text)])

    def touch(path: Any, times: Any = None, *, ns: Any = None, **options: Any) -> None:
        text = _simulated_path(path)
        if text is not None:
            _disk_of(text).utime(text, ns)
        elif ns is None:
            utime(path, times, **options)
        else:
            utime(path, ns=ns, **options)

    def space(path: Any) -> Any:
        text = _simulated_path(path)
        if text is None:
            return statvfs(path)
        disk = _disk_of(text)
        free = 0 if disk.full else disk.free_bytes
        return os.statvfs_result((1, 1, disk.free_bytes, free, free, 1, 1, 1, 0, 255))

    def from_descriptor(descriptor: int, mode: str = "r", *args: Any, **options: Any) -> Any:
        if descriptor < FIRST_DESCRIPTOR:
            return fdopen(descriptor, mode, *args, **options)
        return _disk_with(descriptor).stream(descriptor, mode, *args, **options)

    def into(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if descriptor < FIRST_DESCRIPTOR:
            return preadv(descriptor, buffers, offset, flags)
        data = _disk_with(descriptor).pread(descriptor, len(buffers[0]), offset)
        buffers[0][:len(data)] = data
        return len(data)

    def lock(descriptor: int, operation: int) -> None:
        """Each machine has one process, and a command that runs beside it is over before that goes on."""
        if descriptor < FIRST_DESCRIPTOR:
            flock(descriptor, operation)

    def change_mode(descriptor: int, mode: int) -> None:
        if descriptor < FIRST_DESCRIPTOR:
            fchmod(descriptor, mode)

    def change_mode_of(path: Any, mode: int, **options: Any) -> None:
        if _simulated_path(path) is None:
            chmod(path, mode, **options)

    def open_path(path: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
                  errors: str | None = None, newline: str | None = None, *args: Any, **options: Any) -> Any:
        text = None if isinstance(path, int) else _simulated_path(path)
        if text is None:
            return open_file(path, mode, buffering, encoding, errors, newline, *args, **options)
        flags = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "a": os.O_WRONLY | os.O_CREAT
                 | os.O_APPEND, "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL}[mode[0]]
        disk = _disk_of(text)
        return disk.stream(disk.open(text, flags, 0o644), mode, buffering, encoding, errors, newline)

    os.scandir, os.utime, os.statvfs, os.fdopen, os.preadv = scan, touch, space, from_descriptor, into  # type: ignore[assignment]
    fcntl.flock = lock  # type: ignore[assignment]
    os.fchmod, os.chmod = change_mode, change_mode_of  # type: ignore[assignment]
    io.open = builtins.open = open_path  # type: ignore[assignment]


# Time, chance, SQLite -------------------------------------------------------------------------------------------------


def _take_over_time() -> None:
    real = time.time, time.monotonic, time.time_ns

    def wall() -> float:
        life = LIFE.get()
        if life is None:
            return real[0]()
        return BEGINNING_UNIX + life.machine.loop._now + life.machine.clock_ahead

    def steady() -> float:
        life = LIFE.get()
        return real[1]() if life is None else life.machine.loop._now

    time.time, time.monotonic, time.time_ns = wall, steady, lambda: int(wall() * 1e9)


def _take_over_chance() -> None:
    token, random_bytes, process = secrets.token_hex, os.urandom, os.getpid()

    def some_bytes(count: int) -> bytes:
        return random_bytes(count) if _machine() is None else _draw.randbytes(count)

    secrets.token_hex = lambda nbytes=None: token(nbytes) if _machine() is None else some_bytes(nbytes or 32).hex()
    os.urandom = some_bytes
    secrets.token_bytes = lambda nbytes=None: some_bytes(nbytes or 32)
    os.getpid = lambda: process if _machine() is None else 4242

    class Names:
        def __iter__(self) -> Names:
            return self

        def __next__(self) -> str:
            return random_bytes(6).hex() if _machine() is None else _draw.randbytes(6).hex()

    tempfile._name_sequence = Names()  # type: ignore[attr-defined]
    _take_over_temporary_files(Names())


def _take_over_temporary_files(names: Iterator[str]) -> None:
    """`tempfile.mkstemp`, without what it asks of a host: nobody else makes names on a simulated disk."""
    real = tempfile.mkstemp

    def make(suffix: str | None = None, prefix: str | None = None, dir: Any = None, text: bool = False) -> Any:
        folder = None if dir is None else _simulated_path(dir)
        if folder is None:
            return real(suffix, prefix, dir, text)
        path = f"{folder}/{'tmp' if prefix is None else prefix}{next(names)}{suffix or ''}"
        return _disk_of(path).open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), path

    from semisilo.common.storage import store

    tempfile.mkstemp = store.mkstemp = make  # type: ignore[assignment]


class _Sqlite(ModuleType):
    """The module sqlite3, whose `connect` knows simulated files."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)

    @staticmethod
    def connect(path: Any, **options: Any) -> Any:
        text = _simulated_path(path)
        if type(path) is str and path.startswith("file:///~"):  # as a URI
            text = path.removeprefix("file://")
        return sqlite3.connect(path, **options) if text is None else connect(_by_name[text[2:].split("/", 1)[0]])


def _take_over_sqlite() -> None:
    from semisilo.coordinator.ledger import database

    database.sqlite3 = _Sqlite("sqlite3")  # type: ignore[misc]


def use_small_pieces(chunk_bytes: int) -> None:
    """Payloads of a few hundred bytes cross in several chunks; pieces are written by callbacks, not by a thread."""
    from semisilo.common.rpc import chunks
    from semisilo.coordinator.rpc.round_service import RoundServicer
    from semisilo.silo.link import transfers

    chunks.stream_pieces.__kwdefaults__["chunk_bytes"] = chunk_bytes
    chunks._Writer = _LoopWriter  # type: ignore[assignment, misc]
    RoundServicer._chunk_bytes = lambda self: chunk_bytes  # type: ignore[method-assign]
    transfers.CHUNK_BYTES = chunk_bytes  # type: ignore[misc]


class _LoopWriter:
    """`semisilo.common.rpc.chunks._Writer` whose thread is work of the simulated loop: it appends, in order, a moment
    after a piece has come."""

    def __init__(self, partial: Any) -> None:
        import asyncio

        self._partial = partial
        self._loop: Any = asyncio.get_running_loop()
        self._waiting: list[Any] = []
        self._writing: Any = None
        self._problem: BaseException | None = None

    async def put(self, piece: Any) -> None:
        self._waiting.append(piece._replace(data=bytes(piece.data)))
        if self._writing is None or self._writing.done():
            self._writing = self._loop.run_in_executor(None, self._append_all)
        if self._problem is not None:
            raise self._problem

    def _append_all(self) -> None:
        while self._waiting:
            piece = self._waiting.pop(0)
            if self._problem is None:
                try:
                    self._partial.append(piece.data, offset=piece.offset, crc32=piece.crc32)
                except Exception as problem:
                    self._problem = problem

    async def end(self) -> None:
        import asyncio

        if self._writing is not None:
            await asyncio.shield(self._writing)

    def check(self) -> None:
        if self._problem is not None:
            raise self._problem


def put_module(name: str, module: ModuleType) -> None:
    """What is imported by that name from now on."""
    sys.modules[name] = module


_Real = Callable[..., Any]
