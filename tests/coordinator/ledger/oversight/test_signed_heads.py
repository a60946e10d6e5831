"""The last signed head in the ledger: one row, the newest."""

from __future__ import annotations

from pathlib import Path

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.signed_heads import keep_signed_head, last_restore, signed_head
from tests.audit_kit import signed


def test_the_newest_head_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", waits=False)
    assert signed_head(ledger) is None
    assert last_restore(ledger) == (0.0, 0.0)
    for number in (3, 8):
        keep_signed_head(ledger, signed(number, restored_unix=7.5, backup_unix=2.25))
        assert signed_head(ledger) == signed(number, restored_unix=7.5, backup_unix=2.25)
    ledger.close()
