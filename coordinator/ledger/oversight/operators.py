"""Named operators: each has a token of its own for the operator page, of which the ledger keeps a hash only."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass

from semisilo.common.errors import UnknownName, UsageError
from semisilo.common.text.logs import printable
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["Operator", "add_operator", "is_operator_name", "operator_of", "operators", "remove_operator"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_TOKEN_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """Who may act on the page under a name."""

    name: str
    added_unix: float


def is_operator_name(name: str) -> bool:
    """Whether it is a name of an operator, such as "alice" or "alice@hub.example": at most 64 letters."""
    return _NAME.fullmatch(name) is not None


def add_operator(ledger: Ledger, name: str) -> str:
    """Lets somebody act under a name; returns the token, which is kept nowhere.

    Raises: UsageError for a name that is not allowed or is there already.
    """
    if not is_operator_name(name):
        raise UsageError(f"The operator's name {printable(name, limit=80)!r} is not allowed.",
                         remedy="Use at most 64 letters, digits and . _ @ + -, for example 'alice'.")
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with ledger.transaction() as db:
        if any(each.name == name for each in operators(ledger)):
            raise UsageError(f"There is an operator '{name}' already.",
                             remedy=f"For another token, first: coordinator operator remove {name}")
        db.execute("INSERT INTO operator (name, token_hash, added_unix) VALUES (?, ?, ?)",
                   (name, _hash(token), time.time()))
        ledger.event("operator_added", operator=name)
    return token


def remove_operator(ledger: Ledger, name: str) -> None:
    """Ends somebody's token at once; what was done with it stays under the name.

    Raises: UnknownName, with the names there are.
    """
    with ledger.transaction() as db:
        if not db.execute("UPDATE operator SET removed_unix = ? WHERE name = ? AND removed_unix IS NULL",
                          (time.time(), name)).rowcount:
            names = ", ".join(each.name for each in operators(ledger)) or "none yet"
            raise UnknownName(f"There is no operator {printable(name, limit=80)!r}.", remedy=f"Operators: {names}.")
        ledger.event("operator_removed", operator=name)


def operators(ledger: Ledger) -> list[Operator]:
    """Who may act, by name."""
    return [Operator(name=row["name"], added_unix=row["added_unix"]) for row in ledger.query(
        "SELECT name, added_unix FROM operator WHERE removed_unix IS NULL ORDER BY name")]


def operator_of(ledger: Ledger, token: str) -> str | None:
    """Whose token it is; None when it is nobody's. That it is looked up by its hash tells nothing by its time."""
    rows = ledger.query("SELECT name FROM operator WHERE token_hash = ? AND removed_unix IS NULL", _hash(token))
    return str(rows[0]["name"]) if rows else None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
