"""Study cards at the coordinator: told by digest, signed by the key in the roster, kept once, checked again."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.common.errors import BadSignature, StudyCardGone
from semisilo.common.secure_aggregation.keys import identity_of, new_identity, sign_card
from semisilo.coordinator.federation.study_cards import StudyCards
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.study_cards import (
    CardSignature,
    count_signatures,
    latest_card,
    note_card,
    note_signature,
    signatures,
)
from semisilo.coordinator.ledger.secure_sums.roster import note_identity
from tests.study_cards import CARD

KEY = new_identity()


def test_a_signature_is_kept_once_and_stands_in_the_trail(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    cards = StudyCards(ledger, federation="f", clock=lambda: 9.0)
    assert latest_card(ledger, "s") is None
    assert note_card(ledger, CARD, now_unix=1.0) == note_card(ledger, CARD, now_unix=2.0) == CARD.digest()
    assert latest_card(ledger, "s") == CARD
    assert cards.text("s", CARD.digest()) == CARD.text()
    right = sign_card(KEY, federation="f", silo="a", study="s", digest=CARD.digest())
    with pytest.raises(BadSignature, match="The roster of keys has none of silo 'a'"):
        cards.sign("a", "s", CARD.digest(), right)
    note_identity(ledger, "a", identity_of(KEY), now_unix=1.0)
    for wrong in (b"", b"x" * 64, b"x" * 10_000, sign_card(KEY, federation="f", silo="b", study="s",
                                                           digest=CARD.digest())):
        with pytest.raises(BadSignature, match="is not that of silo 'a'"):
            cards.sign("a", "s", CARD.digest(), wrong)
    for _ in range(2):
        cards.sign("a", "s", CARD.digest(), right)
    assert [(each.silo, each.unix) for each in signatures(ledger, "s", CARD.digest())] == [("a", 9.0)]
    assert [count_signatures(ledger, "s", silos=silos) for silos in (("a", "b"), ("a",), ("b",), ())] == [1, 1, 0, 0]
    kinds = [row["kind"] for row in ledger.query("SELECT kind FROM event WHERE study = 's' ORDER BY number")]
    assert kinds == ["study_card", "study_card_signed"]
    assert cards.wrong("s", CARD.digest()) == []
    ledger.query("UPDATE card_signature SET signature = ?", b"y" * 64)
    assert cards.wrong("s", CARD.digest()) == ["a"]
    ledger.query("DELETE FROM card_signature")
    other = new_identity()
    forged = sign_card(other, federation="f", silo="a", study="s", digest=CARD.digest())
    insert = "INSERT INTO card_signature VALUES ('s', ?, ?, ?, ?, 1.0)"
    ledger.query(insert, CARD.digest(), "a", identity_of(other), forged)
    assert cards.wrong("s", CARD.digest()) == ["a"], "by a key that nobody has told"
    ledger.query("DELETE FROM card_signature")
    note_signature(ledger, "s", CARD.digest(), CardSignature(silo="a", identity=identity_of(other), signature=forged,
                                                             unix=1.0))
    assert cards.wrong("s", CARD.digest()) == ["a"], "an event does not make it the silo's key"
    ledger.query("DELETE FROM card_signature")
    own = sign_card(KEY, federation="f", silo="b", study="s", digest=CARD.digest())
    ledger.query(insert, CARD.digest(), "b", identity_of(KEY), own)
    assert cards.wrong("s", CARD.digest()) == ["b"], "a key of another silo"
    ledger.query("DELETE FROM card_signature")
    ledger.query(insert, CARD.digest(), "a", identity_of(KEY), right)
    note_identity(ledger, "a", identity_of(other), now_unix=2.0)
    assert cards.wrong("s", CARD.digest()) == [], "a key that the silo has changed since"
    ledger.close()


def test_a_card_that_is_not_there_is_neither_told_nor_signed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    cards = StudyCards(ledger, federation="f")
    for ask in (lambda: cards.text("s", "00" * 32), lambda: cards.sign("a", "s", "00" * 32, b"")):
        with pytest.raises(StudyCardGone):
            ask()
    ledger.close()
