"""Files that are either wholly there or not there at all, whenever the power fails; secrets are born with mode 0600."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["naming", "start_writing", "sync_file", "sync_folder", "sync_found", "without_waiting", "write_durably",
           "write_secret", "writing_text"]

_not_waiting: list[None] = []
"""An item for each `without_waiting` that is open, of whatever thread; a list takes and gives one at a time."""
_PIECE_BYTES = 2**20


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Meanwhile nobody in this process waits for the disk: files are whole or not there after a kill, but what was
    written last may be lost when the machine stops. For simulations, which nobody else relies on."""
    _not_waiting.append(None)
    try:
        yield
    finally:
        _not_waiting.pop()


def sync_file(descriptor: int) -> None:
    """Returns once the content of an open file is on disk for good."""
    if not _not_waiting:
        os.fsync(descriptor)


def write_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replaces the file at `path` by `content`, atomically and lastingly.

    The mode holds before the first byte is written, whatever the umask; nobody ever sees half a file.
    Raises: OSError that names `path`, with nothing changed there.
    """
    try:
        _write_durably(path, content, mode)
    except OSError as error:
        if error.errno is None:
            raise
        # A write that fails names no file, and the name of the temporary one tells nobody anything.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _write_durably(path: Path, content: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if os.name == "posix":
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            sync_file(file.fileno())
        _replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def _replace(temporary: Path, path: Path) -> None:
    """Gives a file the name of another, which goes; a kill leaves the one or the other under that name.

    Where nobody waits for the disk, the two change names and the old one is removed: ext4 sends the content of a file
    that replaces another to the disk at once, which takes milliseconds, but not of one that changes names with it.
    """
    if _not_waiting and (exchange := _renameat2()) is not None \
            and exchange(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(path), _RENAME_EXCHANGE) == 0:
        temporary.unlink()
    else:  # there is no file of that name yet, or this system or disk cannot
        os.replace(temporary, path)


@functools.cache
def _renameat2() -> ctypes._NamedFuncPointer | None:
    try:
        call = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return call


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Of Linux: paths are from the working folder; the two change names."""


@contextlib.contextmanager
def writing_text(path: Path) -> Iterator[IO[str]]:
    """A file to write text into, in UTF-8 with its line ends as they are; when all is written it takes the place of one
    of that name. What is no plain file, such as a pipe, or lies in a folder where no file may be made, is written as it
    is.

    Raises: OSError that names `path`.
    """
    if (path.exists() and not path.is_file()) or path.is_symlink() \
            or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        with naming(path), path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with naming(path), beside.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            descriptor = file.fileno()
            sync_file(descriptor)
        if path.exists():
            shutil.copymode(path, beside)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def write_secret(path: Path, content: bytes) -> None:
    """As `write_durably`, readable by the owner only. The one function that writes private keys."""
    write_durably(path, content, mode=0o600)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Has errors of the system name a file meanwhile: those of an open file, of which it says none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def start_writing(descriptor: int, offset: int, length: int) -> None:
    """Lets the disk begin with a part of a file that will be synchronised later; promises nothing, waits for nothing.

    Does nothing where the system has no such call.
    """
    call = _sync_file_range()
    if call is not None:
        call(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> ctypes._NamedFuncPointer | None:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_SYNC_FILE_RANGE_WRITE = 2


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder last; does nothing where folders cannot be synchronised."""
    if os.name != "posix" or _not_waiting:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_found(path: Path) -> None:
    """Makes last the content and the name of a file that is to be believed, if there is one.

    To be called where a process looks at what another one has left: that may have been killed after it wrote, before
    it could wait for the disk. What is done upon such a file would outlive the file if the power went then.
    Raises: OSError.
    """
    if _not_waiting:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        _write_again(path)
        raise
    finally:
        os.close(descriptor)
    sync_folder(path.parent)


def _write_again(path: Path) -> None:
    """Writes over a file what it holds. After an fsync that has failed the system takes for written what it could not
    write, and the next one would say that all of it lasts."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR)
        try:
            offset = 0
            while data := os.pread(descriptor, _PIECE_BYTES, offset):
                offset += os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)
