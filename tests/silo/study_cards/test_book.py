"""Study cards at a silo: what became of each, and that it survives a restart."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.errors import NotPermitted, StorageDamaged, UsageError
from semisilo.silo.study_cards.book import BY_POLICY, CardBook, CardEntry
from tests.study_cards import CARD

OTHER = replace(CARD, rounds=9)


def test_without_a_person_a_card_is_approved_by_the_policy_and_signed(tmp_path: Path) -> None:
    entry = CardBook(tmp_path).arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=1.0)
    assert (entry.state, entry.by, entry.told) == ("approved", BY_POLICY, False)
    signed = CardBook(tmp_path).signed(entry, b"x" * 64, now_unix=2.0)
    again = CardBook(tmp_path)
    assert again.find("s") == signed
    assert again.arrived("s", CARD.digest(), CARD.text(), approval=True, now_unix=3.0) == signed, "signed once"
    assert again.told(signed).told
    assert again.find("t") is None


def test_a_change_needs_a_new_signature_and_says_what_has_changed(tmp_path: Path) -> None:
    book = CardBook(tmp_path)
    first = book.signed(book.arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=1.0), b"x" * 64,
                        now_unix=2.0)
    entry = book.arrived("s", OTHER.digest(), OTHER.text(), approval=True, now_unix=3.0)
    assert (entry.state, entry.signature, entry.changed) == ("waiting", "", "rounds: 3 is now 9")
    assert [(each.digest, each.signed_unix) for each in entry.earlier] == [(first.digest, 2.0)]
    assert book.decide(entry, approved=True, by="ann", now_unix=4.0).by == "ann"


def test_a_person_may_decline_what_is_signed_and_approve_it_again(tmp_path: Path) -> None:
    book = CardBook(tmp_path)
    entry = book.signed(book.arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=1.0), b"x" * 64,
                        now_unix=2.0)
    assert book.decide(entry, approved=True, by="ann", now_unix=3.0) == entry
    declined = book.decide(entry, approved=False, by="ann", now_unix=3.0)
    assert declined.state == "declined"
    assert book.arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=4.0) == declined
    assert book.decide(declined, approved=True, by="bea", now_unix=5.0).state == "approved"


@pytest.mark.parametrize("approval", [False, True])
def test_another_card_of_a_study_that_was_declined_is_declined_until_a_person_approves(tmp_path: Path, approval: bool
                                                                                       ) -> None:
    book = CardBook(tmp_path)
    first = book.signed(book.arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=1.0), b"x" * 64,
                        now_unix=2.0)
    book.decide(first, approved=False, by="ann", now_unix=3.0)
    entry = book.arrived("s", OTHER.digest(), OTHER.text(), approval=approval, now_unix=4.0)
    assert (entry.digest, entry.state, entry.by, entry.unix) == (OTHER.digest(), "declined", "ann", 3.0)
    assert entry.changed == "rounds: 3 is now 9"
    assert book.arrived("s", OTHER.digest(), OTHER.text(), approval=approval, now_unix=5.0) == entry
    assert book.decide(entry, approved=True, by="bea", now_unix=6.0).state == "approved"


def test_where_no_person_must_approve_any_more_what_waits_goes_on(tmp_path: Path) -> None:
    book = CardBook(tmp_path)
    assert book.arrived("s", CARD.digest(), CARD.text(), approval=True, now_unix=1.0).state == "waiting"
    assert book.arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=2.0).state == "approved"


def test_a_file_that_cannot_be_read_says_how_to_go_on(tmp_path: Path) -> None:
    book = CardBook(tmp_path)
    book.arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=1.0)
    next(tmp_path.glob("*.json")).write_text("{")
    with pytest.raises(StorageDamaged, match="cannot be read"):
        book.entries()


def test_a_persons_word_is_not_written_over_by_what_the_agent_read_before(tmp_path: Path) -> None:
    book = CardBook(tmp_path)
    approved = book.arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=1.0)
    declined = book.decide(approved, approved=False, by="ann", now_unix=2.0)
    assert book.signed(approved, b"x" * 64, now_unix=3.0) == declined == book.find("s")
    signed = book.signed(book.decide(declined, approved=True, by="ann", now_unix=4.0), b"x" * 64, now_unix=5.0)
    again = book.decide(signed, approved=False, by="bea", now_unix=6.0)
    told = book.told(signed)
    assert (told.state, told.by, told.told) == ("declined", "bea", True)
    assert book.find("s") == told == replace(again, told=True)


def test_another_card_that_has_come_meanwhile_is_declined_and_not_approved(tmp_path: Path) -> None:
    book = CardBook(tmp_path)
    seen = book.arrived("s", CARD.digest(), CARD.text(), approval=True, now_unix=1.0)
    book.arrived("s", OTHER.digest(), OTHER.text(), approval=True, now_unix=2.0)
    with pytest.raises(UsageError, match="another card by now"):
        book.decide(seen, approved=True, by="ann", now_unix=3.0)
    declined = book.decide(seen, approved=False, by="ann", now_unix=3.0)
    assert (declined.digest, declined.state) == (OTHER.digest(), "declined")


def test_a_word_about_a_study_of_another_federation_is_none_about_this_ones(tmp_path: Path) -> None:
    """Both federations have a study `first`; a person has declined that of federation a."""
    before = CardBook(tmp_path)  # a file of a version that wrote no authority
    entry = before.arrived("first", CARD.digest(), CARD.text(), approval=True, now_unix=1.0)
    before.decide(entry, approved=False, by="ann", now_unix=2.0)
    book = CardBook(tmp_path)
    book.belong_to("aa" * 32)
    declined = book.find("first")
    assert declined is not None
    assert declined.state == "declined"
    path, = tmp_path.glob("*.json")
    assert set(json.loads(path.read_text())) == {
        "format", "study", "digest", "text", "state", "unix", "by", "signature", "told", "earlier", "signed_text"
    }, "earlier versions read it"
    other = CardBook(tmp_path)
    other.belong_to("bb" * 32)
    assert (other.find("first"), other.entries()) == (None, [])
    assert other.arrived("first", OTHER.digest(), OTHER.text(), approval=False, now_unix=3.0).state == "approved"
    back = CardBook(tmp_path)
    back.belong_to("aa" * 32)
    assert back.entries() == [declined]
    other.belong_to("bb" * 32)
    assert [each.digest for each in other.entries()] == [OTHER.digest()]


@pytest.mark.parametrize("returns", ["aa", "bb"])
@pytest.mark.parametrize("step", range(6))
def test_a_silo_that_is_killed_as_it_moves_on_finds_every_card_where_it_belongs(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, returns: str) -> None:
    """Two cards go, the owner is written, and two come: five steps."""
    book = CardBook(tmp_path)
    for authority in ("bb", "aa"):
        book.belong_to(authority)
        for study in ("first", "second"):
            card = OTHER if authority == "bb" else CARD
            book.arrived(study, card.digest(), card.text(), approval=True, now_unix=1.0)
    left = step

    def killed_at(source: Path, target: Path) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        real(source, target)
    real = os.rename
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed_at)
        patch.setattr(os, "replace", killed_at)
        if step < 5:
            with pytest.raises(KeyboardInterrupt):
                book.belong_to("bb")
        else:
            book.belong_to("bb")
    for authority in (returns, "aa", "bb"):
        CardBook(tmp_path).belong_to(authority)
        expected = OTHER if authority == "bb" else CARD
        assert {(each.study, each.digest) for each in book.entries()} == {
            ("first", expected.digest()), ("second", expected.digest())}


def test_a_card_that_cannot_be_read_stops_no_other_study(tmp_path: Path) -> None:
    """It is said when its own study comes; until then it goes with the others of its federation."""
    book = CardBook(tmp_path)
    book.belong_to("aa" * 32)
    book.arrived("broken", CARD.digest(), CARD.text(), approval=False, now_unix=1.0)
    path, = tmp_path.glob("*.json")
    path.write_text("{")
    book.arrived("whole", CARD.digest(), CARD.text(), approval=False, now_unix=1.0)
    for authority, cards in (("aa", 2), ("bb", 0), ("aa", 2)):
        again = CardBook(tmp_path)
        again.belong_to(authority * 32)
        assert len(list(tmp_path.glob("*.json"))) == cards
    assert again.find("whole") is not None
    with pytest.raises(StorageDamaged, match="cannot be read"):
        again.find("broken")


def test_of_too_many_cards_the_oldest_go_but_for_those_that_a_person_has_declined(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator may name a new study with every task."""
    monkeypatch.setattr("semisilo.silo.study_cards.book._MOST_KEPT", 3)
    book = CardBook(tmp_path)

    def comes(study: str, unix: float, *, approval: bool) -> CardEntry:
        return book.arrived(study, CARD.digest(), CARD.text(), approval=approval, now_unix=unix)

    book.decide(comes("declined", 1.0, approval=True), approved=False, by="ann", now_unix=1.0)
    book.signed(comes("signed", 2.0, approval=False), b"x" * 64, now_unix=2.0)
    comes("waiting", 3.0, approval=True)
    comes("another", 4.0, approval=True)
    assert {each.study for each in book.entries()} == {"declined", "signed", "another"}
    book.signed(comes("second", 5.0, approval=False), b"x" * 64, now_unix=5.0)
    book.signed(comes("third", 6.0, approval=False), b"x" * 64, now_unix=6.0)
    assert {each.study for each in book.entries()} == {"declined", "second", "third"}
    for study in ("second", "third"):
        found = book.find(study)
        assert found is not None
        book.decide(found, approved=False, by="ann", now_unix=7.0)
    with pytest.raises(NotPermitted, match="has declined 3 studies"):
        comes("fourth", 8.0, approval=True)
