"""Study cards and who has signed them, in the ledger.

Tests: tests/coordinator/federation/test_study_cards.py.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semisilo.coordinator.ledger.ledger import Ledger

if TYPE_CHECKING:
    from semisilo.common.methods.study_card import StudyCard

__all__ = ["CardSignature", "card_text", "count_signatures", "has_card", "latest_card", "note_card", "note_signature",
           "signatures", "signatures_given", "silos_without_key"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CardSignature:
    """One silo's."""

    silo: str
    identity: bytes
    """Its Ed25519 key, 32 bytes."""
    signature: bytes
    unix: float


def note_card(ledger: Ledger, card: StudyCard, *, now_unix: float) -> str:
    """Keeps the card of a study that is about to run; nothing where it stands there. Returns: its digest."""
    digest = card.digest()
    with ledger.part() as db:
        if db.execute("INSERT OR IGNORE INTO study_card VALUES (?, ?, ?, ?)",
                      (card.study, digest, card.text(), now_unix)).rowcount:
            ledger.event("study_card", study=card.study, digest=digest)
    return digest


def has_card(ledger: Ledger, study: str) -> bool:
    """Whether a study has a card: it has one as soon as it has begun."""
    return bool(ledger.query("SELECT 1 FROM study_card WHERE study = ? LIMIT 1", study))


def latest_card(ledger: Ledger, study: str) -> StudyCard | None:
    """The card of a study that was made last; None before it has begun."""
    from semisilo.common.methods.study_card import card_from_text  # late: `coordinator status` reads no card

    rows = ledger.query("SELECT card_json FROM study_card WHERE study = ? ORDER BY made_unix DESC, rowid DESC LIMIT 1",
                        study)
    return card_from_text(rows[0]["card_json"]) if rows else None


def card_text(ledger: Ledger, study: str, digest: str) -> str | None:
    """The text of a card; None where there is none of that digest."""
    rows = ledger.query("SELECT card_json FROM study_card WHERE study = ? AND digest = ?", study, digest)
    return rows[0]["card_json"] if rows else None


def note_signature(ledger: Ledger, study: str, digest: str, signed: CardSignature) -> None:
    """Keeps a silo's signature, which was checked; the first one stays."""
    with ledger.part() as db:
        if db.execute("INSERT OR IGNORE INTO card_signature VALUES (?, ?, ?, ?, ?, ?)", (
                study, digest, signed.silo, signed.identity, signed.signature, signed.unix)).rowcount:
            ledger.event("study_card_signed", study=study, silo=signed.silo, digest=digest,
                         identity=signed.identity.hex(), signature=signed.signature.hex())


def signatures(ledger: Ledger, study: str, digest: str) -> Sequence[CardSignature]:
    """Of a card, in byte order of silos."""
    rows = ledger.query("SELECT * FROM card_signature WHERE study = ? AND digest = ?", study, digest)
    return [CardSignature(silo=row["silo"], identity=bytes(row["identity"]), signature=bytes(row["signature"]),
                          unix=row["signed_unix"]) for row in sorted(rows, key=lambda row: row["silo"].encode())]


def signatures_given(ledger: Ledger, study: str, digest: str) -> set[tuple[str, bytes, bytes]]:
    """(silo, identity, signature) of a card, by the audit trail."""
    details = (json.loads(row["detail_json"]) for row in ledger.query(
        "SELECT detail_json FROM event WHERE kind = 'study_card_signed' AND study = ?", study))
    return {(each["silo"], bytes.fromhex(each["identity"]), bytes.fromhex(each["signature"]))
            for each in details if each["digest"] == digest}


def count_signatures(ledger: Ledger, study: str, *, silos: Collection[str]) -> int:
    """How many of some silos have signed the card of a study that was made last."""
    rows = ledger.query("SELECT count(*) AS count FROM card_signature WHERE study = ? AND digest = (SELECT digest FROM"
                        " study_card WHERE study = ? ORDER BY made_unix DESC, rowid DESC LIMIT 1) AND silo IN (SELECT"
                        " value FROM json_each(?))", study, study, json.dumps(list(silos)))
    return int(rows[0]["count"])


def silos_without_key(ledger: Ledger, silos: Collection[str]) -> tuple[str, ...]:
    """Those of some silos for which no key stands in the roster, so that their signatures are not kept: it was full,
    another silo has theirs, or they have not called yet. In the given order."""
    # Of a silo additions and removals take turns. Not by the roster's own module: `status` would load masks for it.
    held = {row["silo"] for row in ledger.query("SELECT silo FROM silo_identity GROUP BY silo HAVING count(*) % 2 = 1")}
    return tuple(silo for silo in silos if silo not in held)
