"""Named operators in the ledger: a token each, of which only a hash is kept, and an event for every change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.common.errors import UnknownName, UsageError
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.operators import add_operator, operator_of, operators, remove_operator


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.sqlite", waits=False)
    yield made
    made.close()


def test_a_token_names_its_operator_until_that_is_removed(ledger: Ledger) -> None:
    with ledger.acted_by("cli:root"):
        alice, bob = add_operator(ledger, "alice"), add_operator(ledger, "bob@hub.example")
    assert len(alice) >= 43
    assert (operator_of(ledger, alice), operator_of(ledger, bob), operator_of(ledger, "x")) == \
        ("alice", "bob@hub.example", None)
    remove_operator(ledger, "alice")
    assert operator_of(ledger, alice) is None
    assert [each.name for each in operators(ledger)] == ["bob@hub.example"]
    again = add_operator(ledger, "alice")
    assert (operator_of(ledger, again), operator_of(ledger, alice)) == ("alice", None)
    events = ledger.events_after(0, limit=10)
    assert [(event.kind, event.detail["operator"], event.detail.get("by")) for event in events] == [
        ("operator_added", "alice", "cli:root"), ("operator_added", "bob@hub.example", "cli:root"),
        ("operator_removed", "alice", None), ("operator_added", "alice", None)]


def test_only_a_hash_of_the_token_is_on_the_disk(ledger: Ledger) -> None:
    token = add_operator(ledger, "alice")
    (row,) = ledger.query("SELECT * FROM operator")
    assert row["token_hash"] == hashlib.sha256(token.encode()).digest()
    ledger.close()
    assert all(token.encode() not in file.read_bytes() for file in ledger.path.parent.iterdir())


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a\nb", "=1", "a" * 65, "ä"])
def test_a_name_that_is_none_is_refused(ledger: Ledger, name: str) -> None:
    with pytest.raises(UsageError, match="is not allowed"):
        add_operator(ledger, name)
    assert ledger.last_event() is None


def test_a_name_is_given_once_and_an_unknown_one_is_named_with_those_there_are(ledger: Ledger) -> None:
    add_operator(ledger, "alice")
    with pytest.raises(UsageError, match="an operator 'alice' already"):
        add_operator(ledger, "alice")
    with pytest.raises(UnknownName) as caught:
        remove_operator(ledger, "bob")
    assert "alice" in caught.value.remedy
