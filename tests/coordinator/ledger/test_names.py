"""Names for the shell: what is there, and nothing where the ledger is in the way. `tests/test_keyboard.py` has more."""

from __future__ import annotations

from pathlib import Path

from semisilo.coordinator.ledger.names import names_of_silos, names_of_studies
from tests.coordinator.ledger_fixture import SILOS, open_federation_with_silos, study_config


def test_studies_come_in_order_of_the_queue_and_silos_that_are_members_by_name(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "federation")
    for name in ("zeta", "alpha"):
        filled.ledger.queue_study(name, study_config(rounds=2))
    filled.roster.revoke(SILOS[0])
    filled.roster.leave(SILOS[2])
    assert names_of_studies(filled.ledger.path) == ["zeta", "alpha"]
    assert names_of_silos(filled.ledger.path) == [SILOS[1]]


def test_a_ledger_that_is_not_there_or_is_none_gives_no_names_and_is_not_made(tmp_path: Path) -> None:
    assert names_of_studies(tmp_path / "ledger.sqlite") == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "ledger.sqlite").write_bytes(b"no database, but long enough to be looked at" * 100)
    assert names_of_silos(tmp_path / "ledger.sqlite") == []
