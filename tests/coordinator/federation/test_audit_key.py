"""The key of the audit trail in its folder, and who signs with it: only what no loss of power takes back."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.audit.record import find_head
from semisilo.common.audit.signature import check_head
from semisilo.coordinator.federation.audit_key import HeadSigner, ensure_audit_key
from semisilo.coordinator.federation.authority import create_authority
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.signed_heads import (
    last_restore,
    note_start,
    signed_head,
    tasks_given_since_start,
)
from tests.audit_kit import NOW, audit_key
from tests.coordinator.ledger_fixture import SILOS, open_collecting_round, open_federation_with_silos, study_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_authority(tmp_path / "authority", "lung", now=NOW)
    return tmp_path / "authority"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.sqlite")
    made.query("PRAGMA synchronous = OFF")
    yield made
    made.close()


def test_the_key_is_made_once_and_only_its_owner_reads_it(folder: Path) -> None:
    one = ensure_audit_key(folder, now=NOW)
    again = ensure_audit_key(folder, now=NOW + 86400 * 400)
    assert again.certificate_der == one.certificate_der
    assert again.key.public_key() == one.key.public_key()
    assert stat.S_IMODE((folder / "audit.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(("file", "content"), [("audit.key", None), ("audit.pem", None), ("audit.key", b"rubbish"),
                                               ("audit.pem", b"rubbish"), ("audit.key", "ca.key"),
                                               ("audit.pem", "ca.pem"), ("audit.key", "of another start")])
def test_a_pair_that_does_not_fit_is_made_anew_and_what_was_signed_stays_good(folder: Path, ledger: Ledger, file: str,
                                                                              content: bytes | str | None) -> None:
    one = ensure_audit_key(folder, now=NOW)
    ledger.event("something")
    before = HeadSigner(ledger, one).current()
    assert before is not None
    if content is None:
        (folder / file).unlink()
    elif content == "of another start":
        key = (folder / file).read_bytes()
        (folder / "audit.pem").unlink()
        ensure_audit_key(folder, now=NOW)
        (folder / file).write_bytes(key)
    else:
        (folder / file).write_bytes(content if isinstance(content, bytes) else (folder / content).read_bytes())
    other = ensure_audit_key(folder, now=NOW)
    assert other.certificate_der != one.certificate_der
    assert ensure_audit_key(folder, now=NOW).certificate_der == other.certificate_der
    check_head(before, other.authority)


def test_the_head_is_that_of_the_last_event_on_disk_for_good(ledger: Ledger) -> None:
    signer = HeadSigner(ledger, audit_key())
    assert signer.current() is None, "nothing is there yet"
    ledger.event("one")
    first = signer.current()
    assert first is not None
    assert signer.current() is first, "each is signed once"
    with ledger.transaction(lasting=False):
        ledger.event("two")
    assert signer.current() is first, "a loss of power may take the second event back"
    ledger.event("three")
    third = signer.current()
    assert third is not None
    assert third.head.number == 3
    check_head(third, audit_key().authority)
    walk = ChainWalk({1, 3})
    ledger.walk_events(walk)
    assert [find_head(each.head, walk).problem for each in (first, third)] == ["", ""]
    assert signed_head(ledger) == third


def test_a_transaction_that_is_rolled_back_leaves_no_head(ledger: Ledger) -> None:
    ledger.event("one")
    def fail() -> None:
        with ledger.transaction():
            ledger.event("two")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    head = HeadSigner(ledger, audit_key()).current()
    assert head is not None
    assert head.head.number == 1
    with ledger.transaction():
        pass
    assert ledger.lasting_head == ledger.last_event()


def test_a_coordinator_that_starts_has_a_head_at_once_and_tells_of_a_restore(tmp_path: Path, ledger: Ledger) -> None:
    ledger.event("restored", backup_made_unix=NOW - 9.0)
    (restored,) = ledger.query("SELECT unix FROM event")
    again = Ledger(tmp_path / "ledger.sqlite")
    signer = HeadSigner(again, audit_key())
    assert signer.current() is None
    note_start(again)
    head = signer.current()
    assert head is not None
    assert (head.head.number, head.head.restored_unix, head.head.backup_unix) == (2, restored["unix"], NOW - 9.0)
    assert last_restore(again) == (restored["unix"], NOW - 9.0)
    again.close()


def test_tasks_count_that_were_given_by_a_coordinator_that_signs(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "hub")
    filled.ledger.queue_study("first", study_config(rounds=3))
    open_collecting_round(filled.ledger, "first", 0, SILOS)
    filled.ledger.task_given(f"first/0/0-train/{SILOS[0]}")
    assert tasks_given_since_start(filled.ledger) == 0, "that was an earlier version"
    note_start(filled.ledger)
    filled.ledger.task_given(f"first/0/0-train/{SILOS[1]}")
    assert tasks_given_since_start(filled.ledger) == 1
    filled.ledger.close()
