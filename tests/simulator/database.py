"""The ledger's file on a simulated machine.

SQLite itself is taken as it is: what it promises of a file in WAL mode is what happens to the file here. A kill rolls
back the transaction under way. When the power goes the database is as after some commit: the last one that was made
under `synchronous = FULL`, or one of those after it. So the simulation finds out what our use of these promises is
worth; whether SQLite keeps them is tested by SQLite's authors. The database lies in memory, as SQLite's own.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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
_SAYS_OF_PAGES = sqlite3.SQLITE_CORRUPT, "database disk image is malformed"
"""What it makes of EIO where it reads a page (SQLITE_IOERR_CORRUPTFS)."""


_SETTLE_COMMITS = 32
"""After so many the file is copied: to write them again is more work than that, at every loss of power."""


_STATEMENTS = 512
"""That a connection keeps ready: a run has more of them than Python keeps by itself, and each is prepared anew else."""


class _Statement(NamedTuple):
    sql: str
    values: Any
    many: bool


class _Answer:
    """A cursor with all of its rows."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchall(self) -> list[Any]:
        return self._rows.copy()

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


_NO_OTHER = _Answer([(1,)])


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
        self._first = content
        self._commits: list[list[_Statement]] = []
        """What each commit since then has written, to write it again up to one of them: a copy of the file at every
        commit takes more time than all statements together."""
        self._fewest = 0
        """So many of them are on the disk for sure."""
        self._written: list[_Statement] = []
        """By the transaction under way."""
        self._lasting = True
        self.answers: dict[tuple[str, Any], list[Any]] = {}
        """Rows of statements that were asked since something was written last."""
        machine.on_kill.append(self._killed)
        machine.on_power_loss.append(self._lose_power)

    @property
    def raw(self) -> sqlite3.Connection:
        """The connection, for those who look at it from outside."""
        return self._db

    def execute(self, sql: str, *values: Any) -> Any:
        """One statement of a process."""
        _check()
        if self._machine.has_errors:
            self.operate(sql)
        if sql[:6] == "SELECT" or sql == "PRAGMA data_version":
            return self.ask(sql, *values)
        if sql.startswith("PRAGMA synchronous = "):  # SQLite's own database is in memory: nothing to tell it
            self._lasting = sql.endswith("FULL")
            return None
        if (self._machine.aims or self._machine.awaited) and sql[:6] in ("INSERT", "UPDATE", "DELETE"):
            self._machine.mark(" ".join(sql.split(None, 4)[:4]))
        if sql != "COMMIT":
            if sql != "BEGIN IMMEDIATE":
                self.answers.clear()
            found = self._db.execute(sql, *values)
            self._keep(sql, *values)
            return found
        self._machine.event("commit")
        _check()
        found = self._db.execute(sql)
        if self._may_lose_power:
            self._commits.append(self._written)
            self._written = []
            if self._lasting:
                self._fewest = len(self._commits)
                if self._fewest >= _SETTLE_COMMITS:
                    self.settle()
        self._machine.event("commit", done=True)
        _check()
        return found

    def ask(self, sql: str, values: Any = ()) -> _Answer:
        """What is there, which is looked up once until something is written: the two sides ask the same again and
        again."""
        if sql == "PRAGMA data_version":  # never another: no other connection writes here
            return _NO_OTHER
        rows = self.answers.get((sql, values))
        if rows is None:
            rows = self.answers[sql, values] = self._db.execute(sql, values).fetchall()
        return _Answer(rows)

    def execute_many(self, sql: str, rows: Any) -> Any:
        """One statement of a process for many rows."""
        _check()
        self.operate(sql)
        rows = list(rows)
        self.answers.clear()
        found = self._db.executemany(sql, rows)
        self._keep(sql, rows, many=True)
        return found

    def _keep(self, sql: str, values: Any = (), *, many: bool = False) -> None:
        if not self._may_lose_power or sql.startswith(("PRAGMA", "BEGIN")):
            return
        if sql == "ROLLBACK":
            self._written = []
        else:
            assert self._db.in_transaction, f"outside a transaction: {sql}"
            self._written.append(_Statement(sql, values, many))

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
                self.answers.clear()
                self._db.execute("ROLLBACK")
                self._written = []
            code, text = _SAYS_OF_PAGES if number == errno.EIO and not write else _SAYS[number]
            error = sqlite3.DatabaseError(text) if code == sqlite3.SQLITE_CORRUPT else sqlite3.OperationalError(text)
            error.sqlite_errorcode = code
            raise error

    def _killed(self) -> None:
        self.answers.clear()
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._written = []

    def _lose_power(self, everything: bool = False) -> None:
        if not everything:  # that was not made to last
            self._fewest = self._machine.draw.choice(range(self._fewest, len(self._commits) + 1))
        del self._commits[self._fewest:]
        self._db.close()
        self.answers.clear()
        self._db = _opened(self._first)
        for commit in self._commits:
            self._db.execute("BEGIN")
            for statement in commit:
                if statement.many:
                    self._db.executemany(statement.sql, statement.values)
                else:
                    self._db.execute(statement.sql, statement.values)
            self._db.execute("COMMIT")

    def settle(self) -> None:
        """What is there now stays, if all of it does anyway: to go back to a later commit is less work then."""
        if self._commits and self._fewest == len(self._commits) and not self._db.in_transaction:
            self._first, self._commits, self._fewest = self._db.serialize(), [], 0

    def content(self) -> bytes:
        """The file."""
        return self._db.serialize()


def _opened(content: bytes | None) -> sqlite3.Connection:
    """A new connection each time: statements that a connection has prepared do not survive `deserialize`."""
    db = sqlite3.connect(":memory:", isolation_level=None, cached_statements=_STATEMENTS)
    if content is not None:
        db.deserialize(content)
    return db


class _Connection:
    """A process's connection, as `sqlite3.connect` returns one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def execute(self, sql: str, *values: Any) -> Any:
        database = self._database
        if (sql[:6] == "SELECT" or sql == "PRAGMA data_version") and not database._machine.has_errors:
            life = LIFE.get()  # most statements, and nothing befalls them
            if life is not None and not life.alive:
                raise Killed
            return database.ask(sql, *values)
        return database.execute(sql, *values)

    def executemany(self, sql: str, rows: Any) -> Any:
        return self._database.execute_many(sql, rows)

    def executescript(self, sql: str) -> Any:
        _check()
        self._database.answers.clear()
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
        self._database.answers.clear()
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
