"""A person's word about a study: `silo approve`, `silo decline`, and the same on the silo's page.

Tests: tests/silo/cli/test_studies.py.
"""

from __future__ import annotations

from semisilo.common.errors import UsageError
from semisilo.silo.study_cards.book import CardBook, CardEntry

__all__ = ["decide", "find_card"]


def find_card(book: CardBook, study: str) -> CardEntry:
    """The card of a study. Raises: UsageError where none has come; StorageDamaged."""
    entry = book.find(study)
    if entry is None:
        known = ", ".join(each.study for each in book.entries()) or "none"
        raise UsageError(f"No card of a study '{study}' has come to this silo.",
                         remedy=f"Known: {known}. A card comes with the first task that `silo join` is given.")
    return entry


def decide(book: CardBook, study: str, *, approved: bool, by: str, now_unix: float, digest: str = "") -> CardEntry:
    """Approves or declines a study; a running agent goes on by itself.

    Args:
        by: the account of the person.
        digest: of the card that the person has looked at; empty where nobody can say.
    Raises: UsageError where no card has come, and where there is another one by now; StorageDamaged.
    """
    entry = find_card(book, study)
    if digest and entry.digest != digest:
        raise UsageError(f"Study '{study}' has another card by now.", remedy="Look at it, then decide.")
    return book.decide(entry, approved=approved, by=by, now_unix=now_unix)
