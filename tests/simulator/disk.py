"""Files of a simulated machine: what was written and not synchronised is forgotten, or torn, when the power goes.

A file remembers its content at the last fsync and every write since. When the power goes each of these writes is on the
disk, or not, or its beginning is, in any combination. A folder remembers the changes of its names since it was last
synchronised; when the power goes the first few of them are on the disk, each folder for itself, but a file that moves
from one folder to another is never lost by both. A new folder is there at once: every journalling file system writes it
with the first thing that is synchronised in it. A kill of the process alone loses nothing but the write under way.

Nothing of the host's file system is used, so a schedule costs no system call.
"""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulator.loop import BEGINNING_UNIX, LIFE, Killed

if TYPE_CHECKING:
    from tests.simulator.machine import Machine

__all__ = ["DESCRIPTORS", "FIRST_DESCRIPTOR", "Disk", "File", "Folder", "Handle", "reset_numbers"]

FIRST_DESCRIPTOR = 1 << 20
"""The system's own descriptors are below."""
DESCRIPTORS = 1 << 20
"""Of each disk."""
_DISK_BYTES = 10**9
_BUFFER_BYTES = io.DEFAULT_BUFFER_SIZE
_numbers = itertools.count(1)


@dataclass(eq=False)
class File:
    """An inode."""

    now: int
    data: bytes | bytearray = b""
    """Bytes as long as they were written at once, which most files are: those are shared and not copied."""
    synced: bytes = b""
    since: list[tuple[int, bytes] | int] = field(default_factory=list)
    """(offset, bytes) of a write, or the length of a truncation, since the last fsync."""
    mode: int = 0o600
    links: int = 0
    changed: int = 0

    def __post_init__(self) -> None:
        self.number = next(_numbers)
        self.changed = self.now

    def write(self, offset: int, data: bytes) -> None:
        if not offset and len(data) >= len(self.data):
            self.data = data
        else:
            content = self._changeable()
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset:offset + len(data)] = data
        self.since.append((offset, data))

    def truncate(self, length: int) -> None:
        content = self._changeable()
        if length < len(content):
            del content[length:]
        else:
            content.extend(bytes(length - len(content)))
        self.since.append(length)

    def _changeable(self) -> bytearray:
        if type(self.data) is not bytearray:
            self.data = bytearray(self.data)
        return self.data  # type: ignore[return-value]

    def rot(self) -> None:
        """Its last byte is another one, for good."""
        self._changeable()[-1] ^= 1
        self.sync()

    def sync(self) -> None:
        self.synced, self.since = bytes(self.data), []

    def lose(self, draw: random.Random, *, everything: bool = False) -> None:
        """The power goes."""
        if not self.since:
            return
        changes, self.since, self.data = self.since, [], self.synced
        for change in () if everything else changes:
            fate = draw.random()
            if fate < 0.4:
                continue
            if isinstance(change, int):
                self.truncate(change)
            else:
                offset, data = change
                self.write(offset, data if fate < 0.8 else data[:draw.randrange(len(data) + 1)])
        self.sync()


@dataclass(eq=False)
class Folder:
    """A directory."""

    now: int
    names: dict[str, File | Folder] = field(default_factory=dict)
    since: list[tuple[str, File | Folder | None, Move | None]] = field(default_factory=list)
    """(name, what it was before, the move that it was part of) of each change since the folder was synchronised."""
    returned: set[str] = field(default_factory=set)
    """Names that were gone and that a loss of power has brought back."""

    def __post_init__(self) -> None:
        self.number = next(_numbers)

    def set(self, name: str, value: File | Folder | None, move: Move | None = None) -> None:
        before = self.names.get(name)
        if value is None:
            del self.names[name]
        else:
            self.names[name] = value
        self.since.append((name, before, move))

    def lose(self, draw: random.Random, *, everything: bool = False) -> None:
        """The power goes."""
        keep = draw.randrange(len(self.since) + 1) if self.since and not everything else 0
        lost, self.since = self.since[keep:], []
        for name, before, move in reversed(lost):
            if before is None:
                self.names.pop(name, None)
            else:
                if name not in self.names:
                    self.returned.add(name)
                self.names[name] = before
            if move is not None:
                move.lost.append(self)


@dataclass(eq=False)
class Move:
    """A file that changes from a name in one folder to a name in another."""

    file: File | Folder
    target: Folder
    target_name: str
    lost: list[Folder] = field(default_factory=list)


@dataclass(eq=False)
class Handle:
    """An open file."""

    file: File | Folder
    flags: int
    position: int = 0


class Disk:
    """The file system of one machine, below the folder `/~NAME`."""

    def __init__(self, machine: Machine, index: int) -> None:
        """`index` tells it from those of the other machines."""
        self._machine = machine
        self.root = Folder(0)
        self._open: dict[int, Handle] = {}
        self._places: dict[str, tuple[Folder, str]] = {}
        """By path, the folder and the name in it, of those that were asked for: no folder is ever removed, and who
        renames one forgets them."""
        self._next = FIRST_DESCRIPTOR + index * DESCRIPTORS
        self.full = False
        """Whether nothing more can be written."""
        self.free_bytes = _DISK_BYTES

    # Who may ----------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        life = LIFE.get()
        if life is not None and not life.alive:
            raise Killed

    def _changing(self) -> None:
        self._check()
        machine = self._machine
        if machine.deaths:
            machine.event("disk")
            self._check()
        else:
            machine.counted["disk"] += 1

    def _changed(self) -> None:
        if self._machine.deaths:
            self._machine.event("disk", done=True)
            self._check()

    def _operate(self, kind: str, path: str = "") -> None:
        """Raises: Killed; OSError when this operation is one that fails."""
        life = LIFE.get()
        if life is not None and not life.alive:
            raise Killed
        if self._machine.has_errors and (number := self._machine.operate(kind)):
            raise _error(number, path) if path else OSError(number, os.strerror(number))

    def _mark(self, what: str, path: str) -> None:
        """Something is done to a name in a folder: a death may be aimed at that."""
        if self._machine.aims or self._machine.awaited:
            folders = _parts(path)[:-1]
            self._machine.mark(f"{what} {folders[-1] if folders else 'home'}")

    def _room(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _now(self) -> int:
        return int((BEGINNING_UNIX + self._machine.loop._now + self._machine.clock_ahead) * 1e9)

    # Names ------------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> File | Folder:
        folder, name = self._parent(path)
        if not name:
            return folder
        found = folder.names.get(name)
        if found is None:
            raise _error(errno.ENOENT, path)
        return found

    def _parent(self, path: str) -> tuple[Folder, str]:
        """The folder and the name in it; an empty name for the disk itself."""
        place = self._places.get(path)
        if place is None:
            *folders, name = _parts(path) or ("",)
            here = self.root
            for each in folders:
                found = here.names.get(each)
                if type(found) is not Folder:
                    raise _error(errno.ENOENT if found is None else errno.ENOTDIR, path)
                here = found
            place = self._places[path] = here, name
        return place

    def stat(self, path: str) -> Any:
        self._operate("stat", path)
        return _Status(self._find(path))

    def listdir(self, path: str) -> list[str]:
        self._operate("list", path)
        found = self._find(path)
        if not isinstance(found, Folder):
            raise _error(errno.ENOTDIR, path)
        return sorted(found.names)

    def entry(self, path: str) -> File | Folder:
        self._check()
        return self._find(path)

    def mkdir(self, path: str) -> None:
        self._operate("mkdir", path)
        if not _parts(path):
            raise _error(errno.EEXIST, path)
        folder, name = self._parent(path)
        if name in folder.names:
            raise _error(errno.EEXIST, path)
        self._changing()
        folder.names[name] = Folder(self._now())
        self._changed()

    def unlink(self, path: str) -> None:
        self._operate("unlink", path)
        self._mark("unlink", path)
        folder, name = self._parent(path)
        found = folder.names.get(name)
        if found is None:
            raise _error(errno.ENOENT, path)
        self._changing()
        if isinstance(found, Folder):
            raise _error(errno.EISDIR, path)
        found.links -= 1
        folder.set(name, None)
        self._changed()

    def replace(self, source: str, target: str) -> None:
        self._operate("replace", target)
        folder, name = self._parent(source)
        found = folder.names.get(name)
        other, other_name = self._parent(target)
        before = other.names.get(other_name)
        self._mark("replace" if before is None else "overwrite", target)
        if found is None:
            raise _error(errno.ENOENT, source)
        self._changing()
        if before is found:
            return
        if isinstance(found, Folder):
            self._places.clear()
        if isinstance(before, File):
            before.links -= 1
        move = Move(found, other, other_name)
        other.set(other_name, found, move)
        folder.set(name, None, move)
        if isinstance(found, File):
            found.changed = self._now()
        self._changed()

    def link(self, source: str, target: str) -> None:
        self._operate("link", target)
        self._mark("link", target)
        found = self._find(source)
        self._changing()
        folder, name = self._parent(target)
        if name in folder.names:
            raise _error(errno.EEXIST, target)
        assert isinstance(found, File)
        found.links += 1
        folder.set(name, found)
        self._changed()

    def utime(self, path: str, ns: tuple[int, int] | None) -> None:
        self._operate("touch", path)
        self._find(path).now = self._now() if ns is None else ns[1]

    # Open files -------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._operate("create" if flags & os.O_CREAT else "open", path)
        folder, name = self._parent(path)
        found = folder.names.get(name) if name else folder
        if found is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            self._changing()
            self._room()
            found = File(self._now(), mode=mode)
            found.links = 1
            folder.set(name, found)
            self._changed()
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        elif flags & os.O_TRUNC and isinstance(found, File) and found.data:
            self._changing()
            found.truncate(0)
            self._changed()
        self._next += 1
        self._open[self._next] = Handle(found, flags, len(found.data) if flags & os.O_APPEND
                                        and isinstance(found, File) else 0)
        return self._next

    def has(self, descriptor: int) -> bool:
        return descriptor in self._open

    def close(self, descriptor: int) -> None:
        self._check()
        if self._open.pop(descriptor, None) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _file(self, descriptor: int) -> tuple[Handle, File]:
        handle = self._open[descriptor]
        if not isinstance(handle.file, File):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        return handle, handle.file

    def fstat(self, descriptor: int) -> Any:
        self._check()
        return _Status(self._open[descriptor].file)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        self._operate("read")
        _, file = self._file(descriptor)
        return bytes(file.data[offset:offset + length])

    def read(self, descriptor: int, length: int) -> bytes:
        self._operate("read")
        handle, file = self._file(descriptor)
        found = bytes(file.data[handle.position:handle.position + length])
        handle.position += len(found)
        return found

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        self._operate("write")
        _, file = self._file(descriptor)
        content = bytes(data)
        try:
            self._changing()
        except Killed:
            if content and self._machine.draw.random() < 0.5:  # the write under way may have got half through
                file.write(offset, content[:self._machine.draw.randrange(len(content))])
            raise
        self._room()
        file.write(offset, content)
        file.now = file.changed = self._now()
        self._changed()
        return len(content)

    def write(self, descriptor: int, data: Any) -> int:
        self._check()
        handle, file = self._file(descriptor)
        if handle.flags & os.O_APPEND:
            handle.position = len(file.data)
        written = self.pwrite(descriptor, data, handle.position)
        handle.position += written
        return written

    def seek(self, descriptor: int, offset: int, whence: int) -> int:
        self._check()
        handle, file = self._file(descriptor)
        start = (0, handle.position, len(file.data))[whence]
        handle.position = start + offset
        return handle.position

    def ftruncate(self, descriptor: int, length: int) -> None:
        self._operate("truncate")
        _, file = self._file(descriptor)
        if length == len(file.data):
            return
        self._changing()
        file.truncate(length)
        self._changed()

    def fsync(self, descriptor: int) -> None:
        self._operate("sync")
        handle = self._open[descriptor]
        self._changing()
        if isinstance(handle.file, File):
            handle.file.sync()
        else:
            handle.file.since.clear()
        self._changed()

    def read_file(self, path: str) -> bytes:
        """All of a file, as who opens it, reads to its end and closes it: most files are read so."""
        self._operate("open", path)
        found = self._find(path)
        self._next += 1
        if type(found) is not File:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if self._machine.has_errors:
            for _ in range(0, len(found.data) + _BUFFER_BYTES, _BUFFER_BYTES):  # the last piece is empty
                self._operate("read")
        return bytes(found.data)

    def write_file(self, path: str, data: Any) -> int:
        """Makes a file of these bytes, as who opens it, writes them in one piece and closes it."""
        descriptor = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            return self.pwrite(descriptor, data, 0) if len(data) else 0
        finally:
            self._open.pop(descriptor, None)

    def stream(self, descriptor: int, mode: str, buffering: int = -1, encoding: str | None = None,
               errors: str | None = None, newline: str | None = None) -> Any:
        """What `open` returns for a descriptor."""
        raw: Any = _Raw(self, descriptor, mode)
        if "b" in mode and buffering == 0:
            return raw
        buffered = io.BufferedWriter(raw) if _writes(mode) else io.BufferedReader(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=encoding, errors=errors,
                                                             newline=newline)

    # Ends -------------------------------------------------------------------------------------------------------------

    def close_all(self) -> None:
        """The process that had them open is gone."""
        self._open.clear()

    def lose_power(self, *, everything: bool = False) -> None:
        """What was not synchronised is lost, or torn; or all of it is lost."""
        self._places.clear()
        files: list[File] = []
        folders: list[Folder] = []
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            folders.append(folder)
            inside = [*folder.names.values(), *(before for _, before, _ in folder.since if before is not None)]
            waiting += [each for each in inside if isinstance(each, Folder) and each not in folders]
            files += [each for each in inside if isinstance(each, File)]
        draw = self._machine.draw
        moves = {id(move): move for folder in folders for _, _, move in folder.since if move is not None}
        for folder in folders:
            folder.lose(draw, everything=everything)
        for move in moves.values():
            if move.target in move.lost and len(move.lost) == 1 and \
                    not any(each is move.file for folder in folders for each in folder.names.values()):
                move.target.names[move.target_name] = move.file  # a move is never lost by both folders
        for file in dict.fromkeys(files):
            file.lose(draw, everything=everything)

    def rot(self) -> None:
        """A byte of every file changes that its owner could make or fetch again, and whose digest it knows: answers of
        a silo that are to be sent, and what it holds of the payloads that came and of the tensors in them."""
        waiting, files = [self.root.names.get(name) for name in ("outgoing", "cache")], list[File]()
        while waiting:
            found = waiting.pop()
            if isinstance(found, Folder):
                waiting += found.names.values()
            elif found is not None and found.data:
                files.append(found)
        for file in dict.fromkeys(files):  # a file may have several names
            file.rot()

    def sync_all(self) -> None:
        """What is there now, stays."""
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            folder.since.clear()
            for each in folder.names.values():
                if isinstance(each, Folder):
                    waiting.append(each)
                else:
                    each.sync()


class _Raw(io.RawIOBase):
    """A file object on a descriptor."""

    def __init__(self, disk: Disk, descriptor: int, mode: str) -> None:
        super().__init__()
        self._disk = disk
        self._descriptor = descriptor
        self._for_writing = _writes(mode)

    def readable(self) -> bool:
        return not self._for_writing

    def writable(self) -> bool:
        return self._for_writing

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def read(self, size: int | None = -1) -> bytes:
        """As `io.RawIOBase` does it, which first makes room for all that is asked for."""
        if size is not None and size >= 0:
            return self._disk.read(self._descriptor, size)
        return b"".join(iter(lambda: self._disk.read(self._descriptor, _BUFFER_BYTES), b""))

    readall = read

    def readinto(self, buffer: Any) -> int:
        data = self._disk.read(self._descriptor, len(buffer))
        buffer[:len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return self._disk.write(self._descriptor, data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._disk.seek(self._descriptor, offset, whence)

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._disk.has(self._descriptor):
                self._disk.close(self._descriptor)


def _writes(mode: str) -> bool:
    return any(letter in mode for letter in "wax+")


@functools.lru_cache(maxsize=16_384)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/")[2:] if part)


def _error(number: int, path: str) -> OSError:
    return OSError(number, _text_of(number), path)


_text_of = functools.lru_cache(maxsize=64)(os.strerror)


class _Status:
    """What `stat` says, as far as anybody asks for it: a real `os.stat_result` takes longer than all else here."""

    __slots__ = ("_changed", "_modified", "st_dev", "st_gid", "st_ino", "st_mode", "st_nlink", "st_size", "st_uid")

    def __init__(self, found: File | Folder) -> None:
        self.st_ino, self.st_dev, self.st_uid, self.st_gid = found.number, 1, 0, 0
        self._modified = self._changed = found.now
        if isinstance(found, File):
            self.st_mode, self.st_nlink, self.st_size = 0o100000 | found.mode, found.links, len(found.data)
            self._changed = found.changed
        else:
            self.st_mode, self.st_nlink, self.st_size = 0o040755, 1, 0

    st_mtime_ns = property(lambda self: self._modified)
    st_atime_ns = st_mtime_ns
    st_ctime_ns = property(lambda self: self._changed)
    st_mtime = property(lambda self: self._modified / 1e9)
    st_atime = st_mtime
    st_ctime = property(lambda self: self._changed / 1e9)


def reset_numbers() -> None:
    """Inodes of a run are numbered from 1."""
    global _numbers
    _numbers = itertools.count(1)
