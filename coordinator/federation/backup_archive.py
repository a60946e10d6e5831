"""The file of a backup: a tar archive, compressed with zstd, whose first member says what the others must be.

Writing streams: memory does not grow with the files. Reading trusts nothing: a member has the name, the size and the
SHA-256 that the first one promises, in that order, and is a plain file; anything else is refused before it is written.
`tar --zstd -xf` reads it as well.

Tests: tests/coordinator/federation/test_backup.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import BadConfiguration, DiskFull, SemisiloError, StorageDamaged
from semisilo.common.payload.codec.zstd import zstd
from semisilo.common.storage.durable import sync_file, sync_folder
from semisilo.common.system_errors import explained

__all__ = ["MANIFEST", "ArchivedFile", "BackupManifest", "read_archive", "write_archive"]

MANIFEST = "backup.json"
FORMAT = 1
_BLOCK = tarfile.BLOCKSIZE
_PIECE_BYTES = 2**20
_MOST_MANIFEST_BYTES = 64 * 2**20
_LONGEST_PATH = 4096
_LONGEST_NAME = 255
_ENCODING: dict[int, int] = {zstd.CompressionParameter.compression_level: 3, zstd.CompressionParameter.checksum_flag: 1}
"""Weights hardly get smaller, and ledgers do at any level. A byte that changes is found also where it is padding."""
_DECODING: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 27}
"""128 MiB: more memory a stream may not ask for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedFile:
    """One file of a backup."""

    path: str
    """Where it belongs, from the federation folder on, with "/"."""
    bytes: int
    sha256: str
    """Hex."""

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if (any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > _LONGEST_NAME for part in parts)
                or len(os.fsencode(self.path)) > _LONGEST_PATH):
            raise ValueError(f"the path {self.path[:200]!r} leads out of the folder or cannot be a file.")
        if self.bytes < 0 or len(self.sha256) != 64 or not set(self.sha256) <= set("0123456789abcdef"):
            raise ValueError(f"{self.path[:200]!r} has no size or SHA-256.")


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupManifest:
    """What a backup says of itself: its first member."""

    format: int
    semisilo: str
    """The version that wrote it."""
    federation: str
    made_unix: float
    with_data: bool
    files: tuple[ArchivedFile, ...]
    left_out: tuple[str, ...] = ()
    """What the folder held besides and a restore must put back: mostly images. From the federation folder on, with "/"
    at the end of folders; absolute for what lies elsewhere."""

    def __post_init__(self) -> None:
        paths = [file.path for file in self.files]
        folders = {"/".join(parts[:length]) for parts in (path.split("/") for path in paths)
                   for length in range(1, len(parts))}
        if len(set(paths)) < len(paths) or folders & set(paths) or MANIFEST in paths:
            raise ValueError("two files have one place.")

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)


def write_archive(path: Path, manifest: BackupManifest, sources: Mapping[str, Path]) -> None:
    """Writes a backup durably, readable by the owner only, under a name that nobody else has.

    Args:
        sources: where the content of each file of the manifest is.
    Raises: StorageDamaged when a file is not what the manifest says of it; DiskFull. The archive is gone then.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                with zstd.ZstdFile(file, "w", options=_ENCODING) as stream:
                    text = json.dumps(to_dict(manifest), indent=1).encode()  # ASCII: names may be no UTF-8
                    _header(stream, MANIFEST, len(text), manifest.made_unix)
                    stream.write(text)
                    _pad(stream, len(text))
                    for each in manifest.files:
                        _header(stream, each.path, each.bytes, manifest.made_unix)
                        _copy_in(stream, each, sources[each.path])
                        _pad(stream, each.bytes)
                    stream.write(bytes(2 * _BLOCK))
                file.flush()
                sync_file(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _disk_error(error, path) from error


def read_archive(path: Path, *, into: Path | None = None) -> BackupManifest:
    """Reads a backup to its end and checks every byte.

    Args:
        into: an empty folder for its files, which are on disk for good when this returns, with mode 0600 in folders of
            mode 0700. None: nothing is written.
    Raises: StorageDamaged for what is no whole backup, or has been altered; DiskFull before anything is written that
        does not fit.
    """
    with _explaining(path), path.open("rb") as file, zstd.ZstdFile(file, "r", options=_DECODING) as stream:
        manifest = _manifest(stream, path)
        if into is not None and manifest.total_bytes > shutil.disk_usage(into).free:
            raise DiskFull(f"{into}: the backup needs {manifest.total_bytes} bytes, more than the disk has left.",
                           remedy="Free some space, or choose another disk.")
        folders = {into} if into is not None else set()
        for each in manifest.files:
            name, size = _read_header(stream)
            if (name, size) != (each.path, each.bytes):
                raise ValueError(f"{name[:200]!r} of {size} bytes stands where {each.path[:200]!r} of {each.bytes} was"
                                 " announced")
            target = None if into is None else into / each.path
            if target is not None and into is not None:
                folders |= _make_folders(into, each.path)
            _copy_out(stream, each, target)
        _check_end(stream)
        for folder in folders:
            sync_folder(folder)
    return manifest


def _manifest(stream: zstd.ZstdFile, path: Path) -> BackupManifest:
    name, size = _read_header(stream)
    if name != MANIFEST or size > _MOST_MANIFEST_BYTES:
        raise ValueError(f"its first member is not {MANIFEST}")
    data = json.loads(_exactly(stream, size))
    _exactly(stream, -size % _BLOCK)
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise StorageDamaged(f"{path}: written by a newer semisilo ({str(data.get('semisilo'))[:40]}).",
                             remedy="Upgrade semisilo on this machine.")
    return from_dict(BackupManifest, data, where=MANIFEST)


def _header(stream: zstd.ZstdFile, name: str, size: int, made_unix: float) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(made_unix)
    stream.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))


def _read_header(stream: zstd.ZstdFile) -> tuple[str, int]:
    """(name, bytes) of the next plain file. The module tarfile would read extended headers of any size by itself."""
    info = _parse_header(stream)
    long_name = ""
    if info.type == tarfile.GNUTYPE_LONGNAME:
        if not 0 < info.size <= _LONGEST_PATH + 1:
            raise ValueError(f"a name of {info.size} bytes")
        long_name = os.fsdecode(_exactly(stream, info.size).rstrip(b"\0"))
        _exactly(stream, -info.size % _BLOCK)
        info = _parse_header(stream)
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.size < 0:
        raise ValueError(f"{info.name[:200]!r} is not a plain file")
    return long_name or info.name, info.size


def _parse_header(stream: zstd.ZstdFile) -> tarfile.TarInfo:
    return tarfile.TarInfo.frombuf(_exactly(stream, _BLOCK), "utf-8", "surrogateescape")


def _copy_in(stream: zstd.ZstdFile, file: ArchivedFile, source: Path) -> None:
    found, left = hashlib.sha256(), file.bytes
    try:
        with source.open("rb", buffering=0) as content:
            while left and (piece := content.read(min(left, _PIECE_BYTES))):
                found.update(piece)
                stream.write(piece)
                left -= len(piece)
            if content.read(1):
                left = -1
    except FileNotFoundError:
        left = -1
    if left or found.hexdigest() != file.sha256:
        raise StorageDamaged(f"{file.path}: the file is damaged, or was changed while it was copied.",
                             remedy="Try again; if it stays, check the disk.")


def _copy_out(stream: zstd.ZstdFile, file: ArchivedFile, target: Path | None) -> None:
    found, left = hashlib.sha256(), file.bytes
    descriptor = -1 if target is None else os.open(
        target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while left:
            piece = _exactly(stream, min(left, _PIECE_BYTES))
            found.update(piece)
            left -= len(piece)
            view = memoryview(piece)
            while descriptor >= 0 and view:
                view = view[os.write(descriptor, view):]
        if descriptor >= 0:
            sync_file(descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    _exactly(stream, -file.bytes % _BLOCK)
    if found.hexdigest() != file.sha256:
        raise ValueError(f"{file.path!r} does not have its SHA-256")


def _make_folders(into: Path, path: str) -> set[Path]:
    folder, made = into, set()
    for part in path.split("/")[:-1]:
        folder /= part
        if not folder.exists():
            folder.mkdir(mode=0o700)
        made.add(folder)
    return made


def _check_end(stream: zstd.ZstdFile) -> None:
    rest = stream.read(64 * _BLOCK)
    if len(rest) < 2 * _BLOCK or any(rest) or stream.read(1):
        raise ValueError("it has more than was announced, or its end is missing")


def _exactly(stream: zstd.ZstdFile, size: int) -> bytes:
    parts, left = [], size
    while left:
        piece = stream.read(min(left, _PIECE_BYTES))
        if not piece:
            raise EOFError("it ends too early")
        parts.append(piece)
        left -= len(piece)
    return b"".join(parts)


def _pad(stream: zstd.ZstdFile, size: int) -> None:
    stream.write(bytes(-size % _BLOCK))


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except SemisiloError as error:
        if not isinstance(error, BadConfiguration):
            raise
        raise _damaged(path, error.text) from None
    except (ValueError, EOFError, RecursionError, tarfile.TarError, zstd.ZstdError) as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise _disk_error(error, path) from error


def _damaged(path: Path, why: Any) -> StorageDamaged:
    return StorageDamaged(f"{path}: not a whole backup: {str(why).rstrip('.')}.", remedy="Use another backup.")


def _disk_error(error: OSError, path: Path) -> Exception:
    if isinstance(explained(error), DiskFull):
        return DiskFull(f"{path}: the disk is full.", remedy="Free some space, then try again.")
    return error
