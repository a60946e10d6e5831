"""Payload files on disk, named by the SHA-256 of their bytes, and the partial files that become them.

`<folder>/<digest>` is a complete payload. `<folder>/incoming/` holds what is on its way: `*.part` files that a transfer
appends to, each with a journal of its chunks, and `*.temporary` files that this side is writing itself; also a few
`*.spare` files (`SpareFiles`) that the next ones are written over.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, NamedTuple

from semisilo.common.errors import BadPayload, DiskFull, StorageDamaged
from semisilo.common.storage.durable import naming, start_writing, sync_file, sync_folder
from semisilo.common.storage.half_written import nobody_has_open
from semisilo.common.system_errors import explained

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["MAX_CHUNK_BYTES", "SMALLEST_SPARE_BYTES", "SPARE_SUFFIX", "PartialFile", "PayloadStore", "SpareFiles",
           "hash_file"]

MAX_CHUNK_BYTES = 4 * 2**20
"""Largest piece that may be appended at once."""

_JOURNAL_ENTRY = struct.Struct("<QI")
"""End of a chunk in the file, CRC-32 of its bytes."""
_READ_BYTES = 2**20
_WRITE_BEHIND_BYTES = 16 * 2**20
_HEX_DIGITS = frozenset("0123456789abcdef")


@dataclass(slots=True)
class _Turn:
    """Whose turn it is with one partial file."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class _Committed(NamedTuple):
    """What a partial file that was closed holds, so that nobody has to read it to go on with it."""

    files: tuple[tuple[int, ...], ...]
    """Number, size and times of file and journal: who finds others has to read them."""
    hash: _Hash
    bytes: int
    journal_bytes: int


class PayloadStore:
    """Content-addressed files in one folder. Several processes may use the folder; partial files belong to one."""

    def __init__(self, folder: Path, *, limit_bytes: int = 0, spare_files: int = 0, durable: bool = True) -> None:
        """Opens the store and makes its folders.

        Args:
            folder: where the files lie; on the ledger's disk, since both are needed to resume.
            limit_bytes: most bytes that the store may take, partial files included; 0 for no limit of its own.
            spare_files: most files that `collect` keeps to be written over, which is quicker than to write new ones.
                They count in `total_bytes`, and go when there is no room for something else.
            durable: False where what has arrived need not survive a stop of the machine: who uses a file verifies it,
                and fetches it again.
        """
        self.folder = folder
        self.durable = durable
        self.limit_bytes = limit_bytes
        self._incoming = folder / "incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._spares = SpareFiles(self._incoming, spare_files)
        self._open: dict[Path, PartialFile] = {}
        self._committed: dict[Path, _Committed] = {}
        """Of partial files that this process has closed; as many as there are files."""
        self._turns: dict[Path, _Turn] = {}
        self._room_bytes = 0
        """What is sure to fit below the limit: found by listing the folder, less what was let in since."""
        self._unsynced: set[str] = set()
        """Payloads whose names are there, or will be at once, and may not be on disk yet; their bytes are."""
        self._table = threading.Lock()
        """Held for a look into these tables only, so that an event loop may wait for it."""
        self._room = threading.Lock()
        """Held while a file is let in: the folder may be listed and spares removed."""

    def path(self, digest: str) -> Path:
        """Where the payload lies, or would lie. Raises: BadPayload for what is no SHA-256 in lower-case hex."""
        if len(digest) != 64 or not _HEX_DIGITS.issuperset(digest):
            raise BadPayload(f"{digest[:80]!r} is not a SHA-256 in hex.")
        return self.folder / digest

    def has(self, digest: str) -> bool:
        """Whether the payload is complete on disk. Whether for good, `lasts` says."""
        return self.path(digest).is_file()

    def lasts(self, digest: str) -> bool:
        """Whether a payload that is there is on disk for good: not while the disk is waited for, nor where that has
        failed. Then `make_last` waits once more."""
        return digest not in self._unsynced

    def make_last(self, digest: str) -> None:
        """Returns once a payload that is there is on disk for good. Not for an event loop. Raises: SystemTrouble."""
        try:
            sync_folder(self.folder)
        except OSError as error:
            raise explained(error, self.path(digest)) or error from error
        self._unsynced.discard(digest)

    def digests(self) -> set[str]:
        """The payloads that are complete on disk."""
        with os.scandir(self.folder) as entries:
            return {entry.name for entry in entries if len(entry.name) == 64 and _HEX_DIGITS.issuperset(entry.name)}

    def verify(self, digest: str) -> Path:
        """The payload's path after reading all of it.

        Raises: StorageDamaged when it is missing or has another digest.
        """
        path = self.path(digest)
        try:
            found = hash_file(path)
        except FileNotFoundError:
            raise StorageDamaged(f"The payload {path} is missing.",
                                 remedy="Restore the folder from a backup.") from None
        if found != digest:
            raise StorageDamaged(f"The payload {path} is damaged: its SHA-256 is {found}.",
                                 remedy="Check the disk, then restore the file from a backup.")
        return path

    def temporary(self, *, expected_bytes: int = 0) -> Path:
        """A file beside the payloads, for `add_file`. `clean` removes it if nobody does.

        Args:
            expected_bytes: roughly what will be written, where the caller writes over what the file holds and cuts it
                behind its own last byte; then a spare file may come back. With 0 the file is empty.
        """
        handle, name = mkstemp(suffix=".temporary", dir=self._incoming)
        os.close(handle)
        path = Path(name)
        self._spares.take(path, expected_bytes)
        return path

    def add_file(self, temporary: Path, *, digest: str = "", durable: bool = True) -> str:
        """Takes a finished file into the store, durably.

        Args:
            temporary: a file on the same disk; it is moved.
            digest: its SHA-256 where the caller has computed it while writing; else the file is read.
            durable: False for a file that can be made again: it may be lost when the machine stops.
        Returns: the SHA-256, hex.
        Raises: DiskFull when the store's limit does not allow it; the temporary file is gone then.
        """
        digest = digest or hash_file(temporary)
        final = self.path(digest)
        try:
            if not final.exists():
                self._room_bytes = 0  # the file is there already, and nobody was asked
                self._check_room(temporary.stat().st_size, own_bytes=temporary.stat().st_size)
            if durable:
                _sync_file(temporary)
            os.replace(temporary, final)
            if durable:
                sync_folder(self.folder)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise explained(error, final) or error from error
        except DiskFull:
            temporary.unlink(missing_ok=True)
            raise
        return digest

    def partial(self, key: str, *, size_bytes: int) -> PartialFile:
        """Opens the partial file of a transfer, or starts it. Reads what is there, so not for an event loop.

        A second opening of the same key takes the file over: the older handle refuses further chunks.

        Args:
            key: names the transfer, for example a digest or an update's id; any text.
            size_bytes: size of the whole file, as declared; the file never grows beyond it.
        Raises: DiskFull when the whole file would not fit; nothing is written then.
        """
        path = self._partial_path(key)
        with self._alone_with(path):
            older = self._open.get(path)
            if older is not None:
                older.close()
            with self._room:
                with self._table:
                    self._open.pop(path, None)
                own_bytes = path.stat().st_size if path.exists() else 0
                self._check_room(size_bytes, own_bytes=own_bytes)
                if not own_bytes:
                    # In this order: a journal without its file would vouch for a spare's bytes.
                    _journal_path(path).unlink(missing_ok=True)
                    self._spares.take(path, size_bytes)
                opened = PartialFile(path, self, size_bytes=size_bytes)
                with self._table:
                    self._open[path] = opened
                    committed = self._committed.pop(path, None)
            # Without the lock of all: it may be read from its first byte to its last, while others come and go.
            try:
                opened.go_on_from(committed)
            except BaseException:
                opened.close()
                self._closed(opened)
                raise
            return opened

    def resume_offset(self, key: str) -> int | None:
        """From which byte a transfer goes on, where that is known without reading: 0 when nothing of it has come. None
        when something has, or room must be looked for: then `partial` tells. Quick enough for an event loop."""
        path = self._partial_path(key)
        return None if path in self._open or path.exists() else 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether a file is sure to fit, by what is known without listing the folder. Quick enough for an event loop;
        where it does not know, `partial` and `add_bytes` do."""
        if self.limit_bytes and size_bytes >= self._room_bytes:
            return False
        return size_bytes <= self._free_bytes()

    def add_bytes(self, data: bytes | memoryview, digest: str) -> Path:
        """Takes a whole file that has come in one piece; on disk for good when this returns, in a durable store.

        What came in one piece has nothing to resume, so it needs no journal and no partial file. Not for an event loop.

        Args:
            digest: the expected SHA-256, hex.
        Returns: the payload's path.
        Raises: BadPayload when the digest differs; DiskFull; nothing is left then.
        """
        final = self.path(digest)
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            raise BadPayload(f"A payload has the SHA-256 {found} instead of {digest}.",
                             remedy="The sender starts it again.")
        with self._room:
            self._check_room(len(data), own_bytes=0)
        handle, name = mkstemp(suffix=".temporary", dir=self._incoming)
        try:
            try:
                _write_all(handle, data, 0)
                if self.durable:
                    sync_file(handle)
            finally:
                os.close(handle)
            self._name(name, digest)
        except OSError as error:
            with suppress(OSError):
                os.unlink(name)
            raise explained(error, final) or error from error
        return final

    def _name(self, file: Path | str, digest: str) -> None:
        """Gives a whole file the name of a payload; on disk for good when this returns, in a durable store."""
        if self.durable:
            self._unsynced.add(digest)
        os.replace(file, self.path(digest))
        if self.durable:
            sync_folder(self.folder)
            self._unsynced.discard(digest)

    def drop_partial(self, key: str) -> None:
        """Forgets a transfer and what it has brought. Waits for what is being done to its file, so not for an event
        loop."""
        path = self._partial_path(key)
        with self._alone_with(path):
            older = self._open.get(path)
            if older is not None:
                older.close()
            with self._table:
                self._open.pop(path, None)
                self._committed.pop(path, None)
            _unlink_partial(path)

    def collect(self, keep: Collection[str]) -> int:
        """Removes complete payloads that are not in `keep`; returns the bytes that became free.

        The first few become spare files instead, up to `spare_files`; their bytes are not free.
        """
        return sum(self.recycle(self.folder / digest) for digest in self.digests() - set(keep))

    def recycle(self, path: Path) -> int:
        """Removes a file on the store's disk, or keeps it as a spare; returns the bytes that became free: 0 where it
        has another name still, and where somebody else has removed it, as an update that came too late is removed by
        whoever notices first."""
        try:
            about = path.stat()
            if self._spares.add(path):
                return 0
            path.unlink()
        except FileNotFoundError:
            return 0
        return about.st_size if about.st_nlink == 1 else 0

    def drop_spares(self) -> int:
        """Removes the spare files, as when there is nothing more to come; returns the bytes that became free."""
        return self._spares.drop()

    @property
    def spare_bytes(self) -> int:
        """Bytes that the spare files take, which the next ones are written over."""
        return self._spares.size_bytes

    def clean(self, *, keep_partials: Collection[str] = (), before_unix: float = math.inf) -> None:
        """Removes what a crash has left: temporary files, partial files whose key is not in `keep_partials`, and
        journals of files that are whole by now; only what was written last before `before_unix`, in seconds.

        To be called when a process starts, before anyone writes. Spare files stay, up to `spare_files`. In a durable
        store every payload that is there stays for good from then on: the process before may have been killed between
        its giving a file its name and its waiting for the disk.
        """
        if self.durable:
            sync_folder(self.folder)
        kept = {self._partial_path(key) for key in keep_partials}
        for path in self._incoming.iterdir():
            needed = path.with_suffix(".part").exists() if path.suffix == ".journal" else path in kept
            if path.suffix != SPARE_SUFFIX and not needed and (
                    before_unix == math.inf or _written_unix(path) < before_unix):
                _unlink_partial(path)
        self._spares.drop(keep=self._spares.limit)

    def total_bytes(self) -> int:
        """Bytes that the store takes; an open partial file counts with its declared size."""
        total = 0
        for folder in (self.folder, self._incoming):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and not entry.name.endswith(".journal"):
                        opened = self._open.get(Path(entry.path))
                        with suppress(FileNotFoundError):  # renamed or removed since the folder was read
                            total += opened.size_bytes if opened is not None else entry.stat().st_size
        return total

    def _partial_path(self, key: str) -> Path:
        # Hashed, since a key may come from a silo and would otherwise choose a file name here.
        return self._incoming / f"{hashlib.sha256(key.encode()).hexdigest()}.part"

    def _check_room(self, size_bytes: int, *, own_bytes: int) -> None:
        """Raises DiskFull unless a file of that size fits, of which `own_bytes` are on disk already.

        Spare files go before anything is refused; while they fit, they count as what they are.
        """
        try:
            self._check_size(size_bytes, own_bytes=own_bytes)
        except DiskFull:
            if not self._spares.drop():
                raise
            self._check_size(size_bytes, own_bytes=own_bytes)

    def _check_size(self, size_bytes: int, *, own_bytes: int) -> None:
        if self.limit_bytes:
            wanted = size_bytes - own_bytes
            if wanted >= self._room_bytes:
                # A listing takes the longer the more files there are: not for each of a thousand silos.
                self._room_bytes = self.limit_bytes - self.total_bytes()
            if wanted > self._room_bytes:
                raise DiskFull(f"A payload of {size_bytes} bytes does not fit: {self.folder} may take"
                               f" {self.limit_bytes}.", remedy="Raise the limit, or wait until a round is committed.")
            self._room_bytes -= max(0, wanted)
        if size_bytes - own_bytes > self._free_bytes():
            raise DiskFull(f"A payload of {size_bytes} bytes does not fit on the disk of {self.folder}.",
                           remedy="Free some space; the transfer is tried again.")

    def _free_bytes(self) -> int:
        """Of the disk, without what other open transfers have still to bring."""
        promised = sum(max(0, each.size_bytes - each.held_bytes) for each in list(self._open.values()))
        return shutil.disk_usage(self.folder).free - promised

    def _closed(self, partial: PartialFile) -> None:
        with self._table:
            if self._open.get(partial.path) is partial:
                del self._open[partial.path]

    def _remember(self, path: Path, committed: _Committed) -> None:
        with self._table:
            self._committed[path] = committed

    @contextmanager
    def _alone_with(self, path: Path) -> Iterator[None]:
        """Around what opens or removes a partial file: nobody else does so with the same one meanwhile."""
        with self._table:
            turn = self._turns.setdefault(path, _Turn())
            turn.users += 1
        try:
            with turn.lock:
                yield
        finally:
            with self._table:
                turn.users -= 1
                if not turn.users:
                    del self._turns[path]


class PartialFile:
    """A payload file that is arriving. Chunks are appended in order; a crash costs at most the last one.

    The journal beside it has the end and the CRC-32 of every chunk, so that after a crash the file is cut to the last
    chunk that is wholly on disk. Behind `committed_bytes` there may be what a spare file held before; it is never read,
    and cut off at the end. Methods may be called from any thread.
    """

    def __init__(self, path: Path, store: PayloadStore, *, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        """Size of the whole file, as declared."""
        self.committed_bytes = 0
        """Bytes on disk: from here the sender goes on."""
        self._store = store
        self._lock = threading.Lock()
        self._hash = hashlib.sha256()
        self._journal_bytes = 0
        self._length = 0
        self._under_way = 0
        self._ended = False
        self._whole = False
        """Whether it is known what file and journal hold."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._journal = -1
        try:
            self._journal = os.open(_journal_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._length = os.fstat(self._file).st_size
        except BaseException:
            self._close_files()
            raise

    def go_on_from(self, committed: _Committed | None) -> None:
        """Finds what is there: by what was known when the files were closed, where they are as they were; else reads
        all of it. To be called once, before anything else."""
        if committed is not None and committed.bytes <= self.size_bytes and committed.files == self._files():
            self._hash = committed.hash
            self.committed_bytes, self._journal_bytes = committed.bytes, committed.journal_bytes
        else:
            self._recover()
        if self._journal_bytes or os.fstat(self._journal).st_size:
            self._cut()
        # Else nothing has come yet, and what is there is a spare's.
        self._whole = True

    @property
    def held_bytes(self) -> int:
        """Length of the file, what a spare brought along included."""
        return max(self._length, self.committed_bytes)

    def append(self, data: bytes | memoryview, *, offset: int, crc32: int) -> int:
        """Writes one chunk behind the others.

        Args:
            data: 1 byte to 4 MiB.
            offset: where it belongs; must be `committed_bytes`.
            crc32: of `data`, checked by the caller (`semisilo.common.rpc.chunks.check_piece`); kept to find a torn
                chunk later.
        Returns: the new `committed_bytes`.
        Raises: BadPayload when it does not belong here; DiskFull when the disk is full: nothing is lost, and the same
            chunk may be sent again.
        """
        with self._held():
            self._check_open()
            if offset != self.committed_bytes:
                raise BadPayload(f"A chunk for offset {offset} arrived where {self.committed_bytes} was expected.")
            if not 1 <= len(data) <= MAX_CHUNK_BYTES:
                raise BadPayload(f"A chunk has {len(data)} bytes; 1 to {MAX_CHUNK_BYTES} are allowed.")
            if offset + len(data) > self.size_bytes:
                raise BadPayload(f"A chunk ends at {offset + len(data)}, after the declared {self.size_bytes} bytes.")
            try:
                _write_all(self._file, data, offset)
                entry = _JOURNAL_ENTRY.pack(offset + len(data), crc32)
                _write_all(self._journal, entry, self._journal_bytes)
            except OSError as error:
                self._whole = False  # what a disk that fails has kept, only reading tells
                self._cut()
                raise explained(error, self.path) or error from error
            self._hash.update(data)
            self._journal_bytes += _JOURNAL_ENTRY.size
            self.committed_bytes += len(data)
            if self._store.durable and self.committed_bytes - self._under_way >= _WRITE_BEHIND_BYTES:
                # So that little is left for `finish`.
                start_writing(self._file, self._under_way, self.committed_bytes - self._under_way)
                self._under_way = self.committed_bytes
            return self.committed_bytes

    def finish(self, digest: str) -> Path:
        """Verifies the whole file and moves it into the store; on disk for good when this returns, in a durable store.

        Args:
            digest: the expected SHA-256, hex.
        Returns: the payload's path.
        Raises: BadPayload when size or digest differ, SystemTrouble when the disk does not keep the bytes; the partial
            file is gone then.
        """
        final = self._store.path(digest)
        with self._held():
            self._check_open()
            found = self._hash.hexdigest()
            if self.committed_bytes != self.size_bytes or found != digest:
                what = (f"has {self.committed_bytes} bytes instead of {self.size_bytes}"
                        if self.committed_bytes != self.size_bytes else f"has the SHA-256 {found} instead of {digest}")
                self._whole = False
                self._close_files()
                _unlink_partial(self.path)
                problem: BadPayload | None = BadPayload(f"A payload {what}.", remedy="The sender starts it again.")
            else:
                problem = None
                try:
                    if os.fstat(self._file).st_size > self.size_bytes:  # a spare's, or of a chunk that failed
                        self._cut()
                    if self._store.durable:
                        self._sync()
                    self._store._name(self.path, digest)
                except OSError as error:
                    self._whole = False
                    raise explained(error, final) or error from error
                self._whole = False
                self._close_files()
                _journal_path(self.path).unlink(missing_ok=True)
        self._store._closed(self)
        if problem is not None:
            raise problem
        return final

    def close(self) -> None:
        """Gives the file up; what is committed stays and a later opening goes on from there. May be repeated.

        Waits for what is being done to it, also for the disk, so not for an event loop.
        """
        with self._lock:
            self._close_files()

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, *exception: object) -> None:
        """Gives the file up as `close` does, without waiting: who is just appending or finishing closes it then."""
        self._ended = True
        if self._lock.acquire(blocking=False):
            try:
                self._close_files()
            finally:
                self._lock.release()
            self._store._closed(self)

    @contextmanager
    def _held(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            if self._ended:
                self.close()
                self._store._closed(self)

    def _recover(self) -> None:
        """Reads and hashes the chunks that are wholly there."""
        size = os.fstat(self._file).st_size
        while True:
            entry = os.pread(self._journal, _JOURNAL_ENTRY.size, self._journal_bytes)
            if len(entry) < _JOURNAL_ENTRY.size:
                break
            end, crc32 = _JOURNAL_ENTRY.unpack(entry)
            length = end - self.committed_bytes
            if not 1 <= length <= MAX_CHUNK_BYTES or end > min(size, self.size_bytes):
                break
            data = os.pread(self._file, length, self.committed_bytes)
            if len(data) != length or zlib.crc32(data) != crc32:
                break
            self._hash.update(data)
            self.committed_bytes = end
            self._journal_bytes += _JOURNAL_ENTRY.size

    def _files(self) -> tuple[tuple[int, ...], ...]:
        return tuple((about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
                     for about in map(os.fstat, (self._file, self._journal)))

    def _cut(self) -> None:
        """Cuts file and journal to what is committed."""
        os.ftruncate(self._file, self.committed_bytes)
        os.ftruncate(self._journal, self._journal_bytes)
        self._length = self.committed_bytes

    def _sync(self) -> None:
        """Raises: OSError, with the partial file gone. The system takes for written what it could not write, and a
        second try would succeed without these bytes: only bytes that come anew are sure to reach the disk."""
        try:
            sync_file(self._file)
        except OSError:
            self._whole = False
            self._close_files()
            for path in (_journal_path(self.path), self.path):  # without its journal a file is begun anew
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            raise

    def _check_open(self) -> None:
        if self._file < 0:
            raise BadPayload("The transfer has ended here: it was closed, or a newer connection continues it.")

    def _close_files(self) -> None:
        if self._whole and self._file >= 0 and self._journal >= 0 and self.committed_bytes:
            with suppress(OSError):  # then it is read once more
                self._store._remember(self.path, _Committed(self._files(), self._hash, self.committed_bytes,
                                                            self._journal_bytes))
        for handle in (self._file, self._journal):
            if handle >= 0:
                os.close(handle)
        self._file = self._journal = -1


def hash_file(path: Path) -> str:
    """SHA-256 of a file, hex; reads it in pieces of 1 MiB. Raises: OSError that names it."""
    total = hashlib.sha256()
    with naming(path), path.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            total.update(data)
    return total.hexdigest()


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        sync_file(handle)
    finally:
        os.close(handle)


def _journal_path(path: Path) -> Path:
    return path.with_suffix(".journal")


def _written_unix(path: Path) -> float:
    """When it was written last; never where it has gone meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _unlink_partial(path: Path) -> None:
    path.unlink(missing_ok=True)
    _journal_path(path).unlink(missing_ok=True)


def _write_all(handle: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view = view[written:]
        offset += written


SPARE_SUFFIX = ".spare"
SMALLEST_SPARE_BYTES = 2**20
"""Smaller files are written anew: there is little to gain."""


class SpareFiles:
    """Finished files that nobody needs any more, kept to be written over by the next ones: at most `limit` files
    `*.spare` in a folder. Several processes may take from it; their renames decide.

    The system has to find and clear a page of memory for every 4 KiB of a new file, and does not for bytes that replace
    others: 100 MB take 0.09 to 0.27 s to write into a new file and 0.01 s into an old one (measured). What a spare
    holds is never read again: whoever takes one goes by its own account of what it has written, and cuts the rest off.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """
        Args:
            folder: on the disk of the files that come and go.
            limit: most files that are kept; 0 for none.
        """
        self.limit = limit
        self._folder = folder

    def add(self, path: Path) -> bool:
        """Keeps a file as a spare, under another name; False, with nothing changed, when there is no use for it.

        A payload that is a tensor group as well has two names, and what bears the other one is not written over: it is
        of use when that one goes too. Until then it would only take the place of a spare."""
        about = path.stat()
        if about.st_size < SMALLEST_SPARE_BYTES or about.st_nlink > 1 or len(list(self._files())) >= self.limit:
            return False
        os.replace(path, self._folder / f"{path.name}{SPARE_SUFFIX}")
        return True

    def take(self, target: Path, size_bytes: int) -> bool:
        """Renames the spare that fits best to `target`; False when none fits or somebody still has it open.

        Args:
            target: on the same disk; what is there is replaced.
            size_bytes: what is going to be written; a spare of half to twice that size fits.
        """
        if not self.limit or size_bytes < SMALLEST_SPARE_BYTES:
            return False
        for size, path in sorted(self._files(), key=lambda each: abs(each[0] - size_bytes)):
            if size_bytes <= 2 * size <= 4 * size_bytes and nobody_has_open(path):
                with suppress(FileNotFoundError):  # another process was quicker
                    os.replace(path, target)
                    return True
        return False

    @property
    def size_bytes(self) -> int:
        """Of all spares together."""
        return sum(size for size, _ in self._files())

    def drop(self, *, keep: int = 0) -> int:
        """Removes spares until `keep` are left; returns the bytes that became free."""
        freed = 0
        for size, path in list(self._files())[keep:]:
            with suppress(FileNotFoundError):
                path.unlink()
                freed += size
        return freed

    def _files(self) -> Iterator[tuple[int, Path]]:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(SPARE_SUFFIX):
                    with suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False).st_size, Path(entry.path)
