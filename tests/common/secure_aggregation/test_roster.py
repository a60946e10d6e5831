"""The roster: what it says, and that gaps, changes, forks and cut ends are refused in words."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import BadRoster
from semisilo.common.secure_aggregation.roster import (
    ADDED,
    EMPTY,
    REMOVED,
    Roster,
    RosterEntry,
    append,
    replay,
    roster_of,
)
from tests.each_of import each_of


def key(number: int) -> bytes:
    return bytes([number]) * 32


def chain_of(*changes: tuple[str, int, str]) -> list[RosterEntry]:
    roster, entries = Roster(), []
    for silo, number, change in changes:
        roster, entry = append(roster, silo=silo, identity=key(number), change=change)
        entries.append(entry)
    return entries


FIVE = chain_of(("a", 1, ADDED), ("b", 2, ADDED), ("a", 1, REMOVED), ("a", 3, ADDED), ("c", 4, ADDED))
OTHER_FIVE = chain_of(("a", 1, ADDED), ("b", 2, ADDED), ("a", 1, REMOVED), ("a", 9, ADDED), ("c", 4, ADDED))


def test_a_roster_says_who_is_there_with_which_identity() -> None:
    assert roster_of(FIVE).present == {"a": key(3), "b": key(2), "c": key(4)}
    assert roster_of([]).head == EMPTY


@settings(max_examples=50)
@given(cuts=st.tuples(*[st.integers(0, 5)] * 3).map(sorted))
def test_a_silo_goes_on_from_what_it_has_seen(cuts: list[int]) -> None:
    """Whatever overlaps: the same roster as from the beginning."""
    begin, first, end = cuts
    assert replay(roster_of(FIVE[:first]), FIVE[begin:end]) == roster_of(FIVE[:end])


def test_nothing_new_changes_nothing() -> None:
    assert replay(roster_of(FIVE), []) == roster_of(FIVE)


@each_of(("seen", "entries", "said"), [
    (FIVE[:2], FIVE[3:], "Entry 3 of the roster is missing: 4 follows"),
    ([], [FIVE[0], FIVE[2]], "Entry 2 of the roster is missing: 3 follows"),
    ([], FIVE[1:], "Entry 1 of the roster is missing: 2 follows"),
    (FIVE, OTHER_FIVE, "another one than this silo has seen: entry 5"),
    (FIVE[:4], OTHER_FIVE[4:], "Entry 5 of the roster does not continue what this silo has seen"),
    (FIVE, OTHER_FIVE[4:], "another one than this silo has seen"),
    (FIVE, FIVE[:3], "ends at entry 3; this silo has seen 5"),
    ([], [dataclasses.replace(FIVE[0], number=0)], "an entry 0"),
    ([], [dataclasses.replace(FIVE[0], silo="z")], "Entry 1 of the roster does not continue"),
    ([], [dataclasses.replace(FIVE[0], identity=key(7))], "Entry 1 of the roster does not continue"),
    ([], [dataclasses.replace(FIVE[0], change=REMOVED)], "Entry 1 of the roster does not continue"),
])
def test_other_chains_are_refused(seen: list[RosterEntry], entries: list[RosterEntry], said: str) -> None:
    with pytest.raises(BadRoster, match=said):
        replay(roster_of(seen), entries)


@each_of(("silo", "number", "change", "said"), [
    ("a", 5, ADDED, "adds silo 'a', which is there"),
    ("z", 2, ADDED, "gives silo 'z' the identity of another"),
    ("z", 5, REMOVED, "does not have"), ("a", 5, REMOVED, "does not have"),
    ("z", 5, "changed", "not a change of an identity"),
])
def test_entries_without_sense_are_refused_by_both_sides(silo: str, number: int, change: str, said: str) -> None:
    roster = roster_of(FIVE)
    with pytest.raises(BadRoster, match=said):
        append(roster, silo=silo, identity=key(number), change=change)


def test_two_rosters_with_the_same_silos_have_different_heads() -> None:
    """The way there counts: whoever was in between may have shares of somebody."""
    short = chain_of(("b", 2, ADDED), ("a", 3, ADDED), ("c", 4, ADDED))
    assert roster_of(short).present == roster_of(FIVE).present
    digests = {roster_of(entries).head.digest() for entries in (short, FIVE, OTHER_FIVE, FIVE[:4], [])}
    assert len(digests) == 5
    assert {len(digest) for digest in digests} == {32}


def test_a_roster_is_kept_and_read_again() -> None:
    roster = roster_of(FIVE)
    assert from_dict(Roster, to_dict(roster)) == roster
    assert from_dict(RosterEntry, to_dict(FIVE[0])) == FIVE[0]
