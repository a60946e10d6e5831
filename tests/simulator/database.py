"""The ledger's file on a simulated machine.

SQLite itself is taken as it is: what it promises of a file in WAL mode is what happens to the file here. A kill rolls
back the transaction under way. When the power goes the database is as after some commit: the last one that was made
under `synchronous = FULL`, or one of those after it. So the simulation finds out what our use of these promises is
worth; whether SQLite keeps them is tested by SQLite's authors. The database lies in memory, as SQLite's own.
"""

from __future__ import annotations

import errno
import sqlite3
from typing import TYPE_CHECKING, Any

from tests.simulator.loop import LIFE, Killed

if TYPE_CHECKING:
    from tests.simulator.machine import Machine

__all__ = ["Database", "connect"]


_SAYS = {
    errno.EIO: (sqlite3.SQLITE_IOERR, "disk I/O error"),
    errno.ENOSPC: (sqlite3.SQLITE_FULL, "database or disk is full"),
    errno.EROFS: (sqlite3.SQLITE_READONLY, "attempt to write a readonly database"),
    errno.EACCES: (sqlite3.SQLITE_CANTOPEN, "unable to open database file"),
    errno.EMFILE: (sqlite3.SQLITE_CANTOPEN, "unable to open database file"),
    errno.ENFILE: (sqlite3.SQLITE_CANTOPEN, "unable to open database file"),
}
"""What SQLite makes of an error of the system."""


class Database:
    """What lies on the disk."""

    def __init__(self, machine: Machine, content: bytes | None = None, *, may_lose_power: bool) -> None:
        """
        Args:
            content: of the file at first; None for a new one.
            may_lose_power: whether earlier commits are kept to go back to, which costs time.
        """
        self._machine = machine
        self._db = _opened(content)
        self._may_lose_power = may_lose_power
        self._commits: list[bytes] = [] if content is None else [content]
        """Contents that may be found after a loss of power."""
        self._lasting = True
        machine.on_kill.append(self._killed)
        machine.on_power_loss.append(self._lose_power)

    @property
    def raw(self) -> sqlite3.Connection:
        """The connection, for those who look at it from outside."""
        return self._db

    def execute(self, sql: str, *values: Any) -> Any:
        """One statement of a process."""
        _check()
        self.operate(sql)
        if sql.startswith("PRAGMA synchronous = "):
            self._lasting = sql.endswith("FULL")
        if sql != "COMMIT":
            return self._db.execute(sql, *values)
        self._machine.event("commit")
        _check()
        found = self._db.execute(sql)
        if self._may_lose_power:
            if self._lasting:
                self._commits.clear()
            self._commits.append(self._db.serialize())
        self._machine.event("commit", done=True)
        _check()
        return found

    def operate(self, sql: str) -> None:
        """Raises: what SQLite raises when this statement is one that fails. Of a transaction that cannot be written
        SQLite goes back by itself, or leaves that to whoever began it."""
        if sql == "ROLLBACK":
            return
        write = not sql.lstrip().startswith(("SELECT", "PRAGMA", "WITH"))
        kind = "sql write" if write else "sql read"
        number = self._machine.operate(kind) or (0 if self._db.in_transaction else self._machine.operate("sql open"))
        if number:
            if write and self._db.in_transaction and number in (errno.EIO, errno.ENOSPC) \
                    and self._machine.draw.random() < 0.5:
                self._db.execute("ROLLBACK")
            code, text = _SAYS[number]
            error = sqlite3.OperationalError(text)
            error.sqlite_errorcode = code
            raise error

    def _killed(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _lose_power(self) -> None:
        self._commits = [self._machine.draw.choice(self._commits)]
        self._db.close()
        self._db = _opened(self._commits[0])

    def content(self) -> bytes:
        """The file."""
        return self._db.serialize()


def _opened(content: bytes | None) -> sqlite3.Connection:
    """A new connection each time: statements that a connection has prepared do not survive `deserialize`."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    if content is not None:
        db.deserialize(content)
    return db


class _Connection:
    """A process's connection, as `sqlite3.connect` returns one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def execute(self, sql: str, *values: Any) -> Any:
        return self._database.execute(sql, *values)

    def executemany(self, sql: str, rows: Any) -> Any:
        _check()
        self._database.operate(sql)
        return self._database.raw.executemany(sql, rows)

    def executescript(self, sql: str) -> Any:
        _check()
        return self._database.raw.executescript(sql)

    @property
    def in_transaction(self) -> bool:
        _check()
        return self._database.raw.in_transaction

    @property
    def row_factory(self) -> Any:
        return self._database.raw.row_factory

    @row_factory.setter
    def row_factory(self, value: Any) -> None:
        self._database.raw.row_factory = value

    def close(self) -> None:
        pass


databases: dict[str, Database] = {}
"""By machine."""


def connect(machine: Machine) -> Any:
    """A connection of the process that runs on a machine."""
    _check()
    return _Connection(databases[machine.name])


def _check() -> None:
    life = LIFE.get()
    if life is not None and not life.alive:
        raise Killed
