"""The file of the ledger: opening, migrations, transactions that survive kill -9, and the hash-chained events."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semisilo.common.audit.chain import ChainedEvent, ChainWalk, link
from semisilo.common.config import canonical_json
from semisilo.common.errors import DiskFull, SemisiloError, StorageDamaged, SystemTrouble
from semisilo.common.system_errors import explained
from semisilo.coordinator.ledger.migrations import MIGRATIONS

__all__ = ["EventHead", "LedgerFile", "LedgerPlace", "checkpoint", "code_of", "connect_existing", "event_of",
           "explained_by_sqlite"]

_BUSY_SECONDS = 30.0
_BUSY_AGAIN_SECONDS = 0.25
"""And once it was waited for so long in vain, until it is given: whoever waits is the event loop of `serve`, which must
not stand still again for every call of every silo."""
_LATEST_CHECKPOINT_PAGES = 16_384
"""64 MiB of changes, for the case that nobody calls `checkpoint` in time; SQLite's own number is 4 MB."""
_STRETCH = 4000
"""Events that are read at a time."""
_FULL_BYTES = 256 * 1024  # with less, SQLite's own complaint may be another one than "full"


@dataclass(frozen=True, kw_only=True, slots=True)
class EventHead:
    """The last event of a ledger: whoever keeps it can tell later whether an earlier one was altered."""

    number: int
    """How many events there are."""
    chain: str
    """SHA-256 over the chain before and the event, hex."""
    unix: float
    """When the event was written."""


class LedgerFile:
    """The open SQLite file. `Ledger` says what it holds."""

    def __init__(self, path: Path, *, waits: bool = True, makes: bool = True) -> None:
        """Opens or creates the ledger and brings it to this version.

        Args:
            makes: False where one that is not there is an error: an empty one in its place would know nothing.
            waits: False where the last transactions may be lost when the machine stops, as in a simulation; a kill of
                the process loses nothing either way.
        Raises: StorageDamaged when the file is no ledger or comes from a newer semisilo; DiskFull; SemisiloError when
        this user may not write it.
        """
        self.path = path
        self.roster_changes = 0
        """How often this process has changed the roster; what others change shows in `data_version`."""
        self._inside = False
        """Whether a transaction is under way. SQLite's own word is not enough: it may have gone back already."""
        if makes:
            _begin_private(path)
        self._waits = waits
        self._origin = ""
        self._by = ""
        self._lasting = waits
        self._appended: EventHead | None = None
        self._lasting_head: EventHead | None = None
        self._checkpoint_pages = 0
        self._log_fails = False
        """Whether the disk has not kept what SQLite has logged; see `_begin_log_anew`."""
        self._locked_long = False
        """Whether another process has kept it locked for as long as is waited for, and does so still."""
        self._opened_to_be_read = False
        """Whether SQLite has found that it may not write: where the system let it only read the file when it was
        opened, it goes on so for good."""
        with self._explaining():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_SECONDS) if makes \
                else connect_existing(path)
            self._set_up(self._db)
            self._migrate()
        self._place = LedgerPlace(path)

    def _set_up(self, db: sqlite3.Connection) -> None:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if self._lasting else 'NORMAL'}")
        db.execute("PRAGMA foreign_keys = ON")
        if self._checkpoint_pages:
            db.execute(f"PRAGMA wal_autocheckpoint = {self._checkpoint_pages}")

    def _open_again(self) -> None:
        """Instead of a connection that may only read; not where the file of this name is another one by now."""
        if not self._place.is_kept():
            return
        db = connect_existing(self.path)
        try:
            self._set_up(db)
        except sqlite3.Error:
            db.close()
            raise
        self._db.close()
        self._db, self._opened_to_be_read = db, False

    def _begin_log_anew(self) -> None:
        """Brings all that was committed into the file itself, and empties the log. A transaction that does not last is
        only written to the log, and the next lasting one waits for both. Where the disk fails then, that one is taken
        back, and the pages of the other count as written from then on (fsync), though they are not; but SQLite reads
        its log up to the first page that is missing, and so whatever is logged behind it would not last either.

        Raises: SystemTrouble while another process reads the log.
        """
        busy, *_ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise SystemTrouble(f"{self.path}: the disk has failed to keep it, and another process has it open.",
                                remedy="Check the disk and the log of the system; end the program that has it open.")
        self._log_fails = False

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def checkpointed_elsewhere(self) -> None:
        """From now on somebody calls `checkpoint` every few seconds, in another thread: a commit here no longer waits
        for the pages of many before it to reach the file itself, unless that has not been done for long."""
        self._checkpoint_pages = _LATEST_CHECKPOINT_PAGES
        self._db.execute(f"PRAGMA wal_autocheckpoint = {self._checkpoint_pages}")

    def _migrate(self) -> None:
        if (version := self._version()) > len(MIGRATIONS):
            raise StorageDamaged(f"{self.path}: written by a newer semisilo (ledger version {version}).",
                                 remedy="Upgrade semisilo on this machine.")
        while (version := self._version()) < len(MIGRATIONS):
            try:
                self._db.executescript(
                    f"BEGIN IMMEDIATE; {MIGRATIONS[version]} PRAGMA user_version = {version + 1}; COMMIT;")
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if self._version() == version:  # else another process has just done the same
                    raise

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """What keeps SQLite from its file becomes an error of the catalogue; a mistake in our SQL stays what it is."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._explained(error) from None

    def _explained(self, error: sqlite3.Error) -> Exception:
        self._opened_to_be_read |= code_of(error) == sqlite3.SQLITE_READONLY
        return explained_by_sqlite(self.path, error) or error

    @contextmanager
    def transaction(self, *, lasting: bool = True) -> Iterator[sqlite3.Connection]:
        """One atomic write. Nested use joins the outer transaction.

        Args:
            lasting: on disk when this returns. False for what does no harm if the *machine* stops before the next
                lasting transaction, which takes it along: a kill of the process loses nothing either way.
        Raises: RuntimeError for a lasting one within one that is not: it would not be on disk when this returns. What
            may be as lasting as the transaction around it is a `part` of that.
        """
        if self._inside:
            if lasting and self._waits and not self._lasting:
                raise RuntimeError("a lasting transaction cannot be part of one that is not lasting")
            yield self._db
            return
        with self._explaining():
            self._inside = True
            try:
                if self._opened_to_be_read:
                    self._open_again()
                if self._db.in_transaction:  # one that failed, and could not be taken back either
                    self._db.execute("ROLLBACK")
                if self._log_fails:
                    self._begin_log_anew()
                lasting = lasting and self._waits
                if lasting != self._lasting:
                    self._db.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
                    self._lasting = lasting
                self._appended = None
                self._lock()
                yield self._db
                self._db.execute("COMMIT")
                if lasting and self._appended is not None:
                    self._lasting_head = self._appended
            except BaseException as error:
                self._log_fails |= getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_FSYNC
                if self._db.in_transaction:  # on a full disk SQLite has rolled back by itself
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                raise
            finally:
                self._inside = False

    def _lock(self) -> None:
        """Begins a transaction that writes, once no other process does."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if code_of(error) == sqlite3.SQLITE_BUSY and not self._locked_long:
                self._locked_long = True
                self._db.execute(f"PRAGMA busy_timeout = {_BUSY_AGAIN_SECONDS * 1000:.0f}")
            raise
        if self._locked_long:
            self._locked_long = False
            self._db.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000:.0f}")

    @contextmanager
    def part(self) -> Iterator[sqlite3.Connection]:
        """What belongs to the transaction around it, and is as lasting as that; where there is none, a lasting one."""
        if self._inside:
            yield self._db
            return
        with self.transaction() as db:
            yield db

    def query(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """Rows of a statement. Only the modules of the ledger call this: other questions get a name there."""
        try:  # as `_explaining` does, without the cost of a context: a round asks this sixty times for each silo
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._explained(error) from None

    def data_version(self) -> int:
        """Changes when another process has written."""
        return int(self.query("PRAGMA data_version")[0][0])

    # Events -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def acting(self, origin: str) -> Iterator[None]:
        """What is written in this block was asked for by an operator; its events say by what way, as `origin`."""
        before, self._origin = self._origin, origin
        try:
            yield
        finally:
            self._origin = before

    @contextmanager
    def acted_by(self, name: str) -> Iterator[None]:
        """What is written in this block was done by somebody: its events say by whom, as `by`."""
        before, self._by = self._by, name
        try:
            yield
        finally:
            self._by = before

    @property
    def by(self) -> str:
        """Who does what is written now; empty when nobody in particular does."""
        return self._by

    @property
    def origin(self) -> str:
        """The way by which an operator has asked for what is written now; empty when nobody has."""
        return self._origin

    def last_event(self) -> EventHead | None:
        """The end of the chain; None before the first event."""
        rows = self.query("SELECT number, chain, unix FROM event ORDER BY number DESC LIMIT 1")
        return EventHead(number=rows[0]["number"], chain=rows[0]["chain"], unix=rows[0]["unix"]) if rows else None

    @property
    def lasting_head(self) -> EventHead | None:
        """The end of the chain as this process last wrote it for good: not even a loss of power takes it back, so that
        others may be told of it. None before the first lasting event."""
        return self._lasting_head

    def event(self, kind: str, *, study: str = "", **detail: Any) -> None:
        """Appends to the audit trail: `chain = sha256(previous chain + this row)`. As lasting as what it tells of."""
        if self._origin:
            detail["origin"] = self._origin
        if self._by:
            detail["by"] = self._by
        with self.part() as db:
            last = self.last_event()
            number, previous = (last.number + 1, last.chain) if last is not None else (1, "")
            unix, text = time.time(), canonical_json(detail)
            chain = link(previous, number=number, unix=unix, kind=kind, study=study, detail_json=text)
            db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?)", (number, unix, kind, study, text, chain))
            self._appended = EventHead(number=number, chain=chain, unix=unix)

    def events_after(self, number: int, *, limit: int, study: str = "", since_unix: float = 0.0) -> list[ChainedEvent]:
        """The next events in order.

        Args:
            study: only those of this study; all when empty.
            since_unix: only those since then.
        """
        # Written so that the table is walked in order: by the index of studies every stretch would sort all of a study.
        return [event_of(row) for row in self.query(
            "SELECT * FROM event WHERE number > ? AND (? = '' OR study = ?) AND unix >= ? ORDER BY number LIMIT ?",
            number, study, study, since_unix, limit)]

    def walk_events(self, walk: ChainWalk, *, look: Callable[[ChainedEvent], None] = lambda event: None) -> None:
        """Walks the chain to its end.

        Args:
            look: told of every event that is sound.
        Raises: StorageDamaged, naming the first event that was altered or is missing.
        """
        while events := self.events_after(walk.number, limit=_STRETCH):
            for event in events:
                if problem := walk.step(event):
                    raise StorageDamaged(f"{self.path}: {problem}.", remedy="Restore the ledger from a backup.")
                look(event)

    def check_events(self) -> int:
        """Recomputes the chain; returns how many events there are.

        Raises: StorageDamaged, naming the first event that was altered.
        """
        walk = ChainWalk()
        self.walk_events(walk)
        return walk.number


def event_of(row: sqlite3.Row) -> ChainedEvent:
    """An event as the table has it."""
    return ChainedEvent(number=row["number"], unix=row["unix"], kind=row["kind"], study=row["study"],
                        detail_json=row["detail_json"], chain=row["chain"])


def _begin_private(path: Path) -> None:
    """Makes the file of a ledger that is not there yet, for its owner alone, whatever the umask; SQLite gives its other
    files the same mode. One that is there is not opened: closing it would end the locks of this process."""
    with suppress(OSError):  # it is there; or cannot be made, which SQLite then explains
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def connect_existing(path: Path) -> sqlite3.Connection:
    """A connection to a ledger that is there; SQLite makes none in its place.

    Raises: sqlite3.OperationalError.
    """
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=_BUSY_SECONDS)


class LedgerPlace:
    """Whether a ledger that is open is still the file of its name. One that was removed, or replaced, goes on taking
    what is written, until the last process closes it: then all of that is lost."""

    def __init__(self, path: Path) -> None:
        """To be made while it is sure to be."""
        self._path = path
        self._opened = _number(path)

    def is_kept(self) -> bool:
        """Whether it is, as far as the system says: an error of the system tells nothing of the file. Not on the event
        loop: its disk may be far away."""
        try:
            return _number(self._path) == self._opened
        except OSError:
            return True


def _number(path: Path) -> tuple[int, int] | None:
    """Of the file there. Raises: OSError when the system does not say."""
    try:
        about = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return about.st_dev, about.st_ino


def checkpoint(path: Path) -> None:
    """Brings what was committed into the file itself, through a connection of its own; nobody waits for it.

    Raises: SemisiloError as any use of the ledger, also when there is none.
    """
    try:
        with closing(connect_existing(path)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    except sqlite3.Error as error:
        raise explained_by_sqlite(path, error) or error from None


def _owner(path: Path) -> str:
    try:
        return f"'{path.owner()}'"
    except (KeyError, OSError):  # nobody here is called so
        return "another one"


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _FULL_BYTES
    except OSError:
        return False


def _is_read_only(folder: Path) -> bool:
    """The whole file system, as the kernel makes one whose disk fails."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def code_of(error: sqlite3.Error) -> int:
    """SQLite's primary code; the rest of it tells only where it was noticed."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)) & 0xFF


def explained_by_sqlite(path: Path, error: sqlite3.Error) -> SemisiloError | None:
    """The error of the catalogue for what SQLite says of its file; None for what is a mistake of ours."""
    code = code_of(error)
    files = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
    if code == sqlite3.SQLITE_FULL or (code in files and _is_full(path.parent)):
        return DiskFull(f"{path}: the disk is full.", remedy="Free some space; everything recorded so far is safe.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        if _is_read_only(path.parent):  # as root, too, and whoever it belongs to
            return explained(OSError(errno.EROFS, os.strerror(errno.EROFS), str(path)))
        if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
            return SystemTrouble(f"{path}: this user may not read and write it.", remedy=f"It belongs to"
                                 f" {_owner(path)}: run this as that user, or give it to this one with chown.")
        also = ", and to open more files (ulimit -n)" if code == sqlite3.SQLITE_CANTOPEN else ""
        return SystemTrouble(f"{path}: {error}.", remedy=f"This user must be able to write {path.parent}{also}.")
    if code == sqlite3.SQLITE_IOERR:
        return SystemTrouble(f"{path}: {error}.", remedy="Check the disk and the log of the system; everything recorded"
                                                         " so far is safe.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return SystemTrouble(f"{path}: another process has kept it locked for {_BUSY_SECONDS:.0f} s.",
                             remedy="End the program that has it open, then try again.")
    if code == sqlite3.SQLITE_CORRUPT:  # SQLite says so as well where the system could not read a page of it (EIO)
        return SystemTrouble(f"{path}: cannot be read as a ledger: {error}.",
                             remedy="Check the disk and the log of the system. If it does not go by, the file is"
                                    " damaged: restore it from a backup.")
    if code == sqlite3.SQLITE_NOTADB:
        return StorageDamaged(f"{path}: cannot be read as a ledger: {error}.",
                              remedy="Check the disk, then restore the file from a backup.")
    return None
