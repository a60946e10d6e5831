"""The last head of the audit trail that was signed for silos, and what of the trail it depends on: the last restore."""

from __future__ import annotations

import json

from semisilo.common import __version__
from semisilo.common.audit.chain import RESTORED, Restore
from semisilo.common.audit.head import AuditHead, SignedHead
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["keep_signed_head", "last_restore", "note_start", "restores_of", "signed_head", "tasks_given_since_start"]

_STARTED = "coordinator_started"


def note_start(ledger: Ledger) -> None:
    """Notes that a coordinator begins to serve. The event is lasting, so that a head can be handed out at once."""
    ledger.event(_STARTED, version=__version__)


def last_restore(ledger: Ledger) -> tuple[float, float]:
    """(when the federation last went on from a backup, when that was made), Unix seconds; zeros for never."""
    rows = ledger.query("SELECT unix, detail_json FROM event WHERE study = '' AND kind = ?"
                        " ORDER BY number DESC LIMIT 1", RESTORED)
    return (rows[0]["unix"], float(json.loads(rows[0]["detail_json"])["backup_made_unix"])) if rows else (0.0, 0.0)


def restores_of(ledger: Ledger, study: str) -> tuple[Restore, ...]:
    """Every time that the federation went on from a backup in which a study was, in order."""
    return tuple(Restore(number=row["number"], unix=row["unix"],
                         backup_unix=float(json.loads(row["detail_json"])["backup_made_unix"]))
                 for row in ledger.query(
                     "SELECT number, unix, detail_json FROM event WHERE study = '' AND kind = ? AND number >"
                     " (SELECT min(number) FROM event WHERE study = ?) ORDER BY number", RESTORED, study))


def keep_signed_head(ledger: Ledger, signed: SignedHead) -> None:
    """Replaces the last signed head. What loses it loses the task with which it was given as well."""
    head = signed.head
    with ledger.transaction(lasting=False) as db:
        db.execute("INSERT OR REPLACE INTO audit_head VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
                   (head.number, head.chain, head.unix, head.restored_unix, head.backup_unix, signed.signature,
                    signed.certificate_der))


def signed_head(ledger: Ledger) -> SignedHead | None:
    """The last head that was signed; None before the first."""
    rows = ledger.query("SELECT * FROM audit_head")
    if not rows:
        return None
    row = rows[0]
    return SignedHead(signature=row["signature"], certificate_der=row["certificate_der"], head=AuditHead(
        number=row["number"], chain=row["chain"], unix=row["unix"], restored_unix=row["restored_unix"],
        backup_unix=row["backup_unix"]))


def tasks_given_since_start(ledger: Ledger) -> int:
    """Tasks that were given since a coordinator has started that signs: each of them brought a head."""
    return int(ledger.query("SELECT count(*) AS n FROM task WHERE given_unix >= (SELECT min(unix) FROM event WHERE"
                            " kind = ?)", _STARTED)[0]["n"])
