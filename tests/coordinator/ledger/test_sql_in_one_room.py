"""All SQL lies in the ledger's room, so that another database can come: read off the syntax trees of the product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.each_of import each_of

ROOT = Path(__file__).resolve().parents[3]

ROOM = ("coordinator/ledger/*.py",)
"""The files of the room, from the top of the repository."""

_SQL = re.compile(r"\b(SELECT\s.+\sFROM\s|SELECT\s1\b|INSERT\s+(OR\s+\w+\s+)?INTO\s|UPDATE\s+\w+\s+SET\s"
                  r"|DELETE\s+FROM\s|CREATE\s+(TABLE|INDEX|TRIGGER|VIEW)\s|ALTER\s+TABLE\s|DROP\s+(TABLE|TRIGGER)\s|PRAGMA\s"
                  r"|BEGIN\s+IMMEDIATE|ORDER\s+BY\s|GROUP\s+BY\s)", re.DOTALL)
_CALLS = {"query", "execute", "executemany", "executescript", "fetchall", "fetchone"}
_WORDS = re.compile("|".join(rf"\b{word}\b" for word in (
    "sqlite3", "transaction", *sorted(_CALLS), "SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP",
    "PRAGMA", "BEGIN", "ORDER", "GROUP")))
"""Without any of these a file does nothing with SQL."""


def sql_in(source: str) -> list[str]:
    """What a file does with SQL: the text of a statement, a call that runs one, a connection of its own."""
    if not _WORDS.search(source):  # most files end here, and trees take time
        return []
    return list(_found(ast.parse(source)))


def _found(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "sqlite3" for alias in node.names):
            yield f"line {node.lineno}: imports sqlite3"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sqlite3":
            yield f"line {node.lineno}: imports from sqlite3"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS:
            yield f"line {node.lineno}: calls {node.func.attr}"
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                call = item.context_expr
                if item.optional_vars is not None and isinstance(call, ast.Call) \
                        and isinstance(call.func, ast.Attribute) and call.func.attr == "transaction":
                    yield f"line {node.lineno}: takes the connection of a transaction"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (sql := _SQL.search(node.value)):
            yield f"line {node.lineno}: has the text of a statement: {sql[0][:40]}"


def in_room(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in ROOM)


def sql_outside(root: Path) -> dict[str, list[str]]:
    """Files of the product that are not of the room -> what they do with SQL."""
    found = {}
    for package in ("common", "coordinator", "silo", "semisilo"):
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if not in_room(file) and (sql := sql_in(path.read_text(encoding="utf-8"))):
                found[file] = sql
    return found


@pytest.mark.slow
def test_no_file_outside_the_room_has_sql() -> None:
    assert sql_outside(ROOT) == {}


def test_the_room_itself_is_found_to_have_it() -> None:
    files = [path for package in ("coordinator",) for path in (ROOT / package).rglob("*.py")
             if in_room(path.relative_to(ROOT).as_posix())]
    assert sum(bool(sql_in(path.read_text(encoding="utf-8"))) for path in files) >= 5


@each_of("source", [
    "import sqlite3", "from sqlite3 import connect", "import sqlite3.dbapi2",
    "ledger.query('whatever')", "db.execute(text)", "def f(db):\n    return db.cursor().executemany(text, rows)",
    "with ledger.transaction() as db:\n    pass",
    "with closing(x) as y, ledger.transaction(lasting=False) as db:\n    pass",
    "TEXT = 'SELECT name FROM study'", "TEXT = 'SELECT a,'\\\n    ' b FROM study'", "TEXT = 'DELETE FROM study'",
    "TEXT = f'UPDATE study SET {column} = ?'", "TEXT = 'INSERT OR IGNORE INTO silo VALUES (?)'",
    "TEXT = 'PRAGMA synchronous = OFF'", "TEXT = ' ORDER BY number DESC'"])
def test_sql_is_noticed(source: str) -> None:
    assert sql_in(source)


@each_of("source", [
    "with ledger.transaction():\n    pass", "'Select a study from the list.'",
    "print('from here, update the settings')", "ledger.query_plan", "'drops the table'"])
def test_what_is_no_sql_is_not_taken_for_it(source: str) -> None:
    assert sql_in(source) == []
