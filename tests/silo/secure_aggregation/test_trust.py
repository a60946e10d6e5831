"""Whom a silo trusts: pins, first use, the bound on the threshold, and numbers that people read to each other."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from semisilo.common.errors import BadConfiguration, SecureSumRefused
from semisilo.common.secure_aggregation.messages import Member
from semisilo.coordinator.secure_aggregation.sum import list_members
from semisilo.silo.secure_aggregation.trust import (
    Trust,
    check_members,
    check_survivors,
    fingerprint,
    parse_fingerprint,
    short_number,
)
from tests.each_of import each_of
from tests.secure_sums import a_total, identities_of, make_silos, name_of


def members_of(count: int, threshold: int = 3) -> tuple[tuple[Member, ...], dict[str, bytes]]:
    total = a_total(threshold)
    silos = make_silos(count, total)
    return (list_members(total, {name: silo.round_keys() for name, silo in silos.items()}, identities_of(silos)),
            identities_of(silos))


def a_trust(identities: dict[str, bytes], *pinned: int, **changes: object) -> Trust:
    trust = Trust(silo=name_of(0), identity=identities[name_of(0)],
                  pinned={name_of(number): identities[name_of(number)] for number in pinned})
    return dataclasses.replace(trust, **changes)  # type: ignore[arg-type]


def test_pinned_silos_and_itself_are_trusted() -> None:
    members, identities = members_of(5)
    assert check_members(a_trust(identities, 1, 2, 3), members, 4) == tuple(name_of(number) for number in range(4))


def test_without_pins_all_are_trusted_unless_pins_are_required() -> None:
    members, identities = members_of(4)
    assert check_members(a_trust(identities), members, 3) == tuple(identities)
    with pytest.raises(SecureSumRefused, match=r"1 of the 4 silos of the sum are pinned, .* requires 3"):
        check_members(a_trust(identities, require_pinned=True), members, 3)


@pytest.mark.parametrize("where", ["pinned", "known"])
def test_another_identity_than_the_pinned_or_known_one_is_refused_by_name(where: str) -> None:
    members, identities = members_of(4)
    trust = a_trust(identities, 1, 2, 3) if where == "pinned" else a_trust(identities)
    trust = dataclasses.replace(trust, **{where: {**getattr(trust, where), name_of(2): b"\7" * 32}})
    said = "is pinned here" if where == "pinned" else "was seen before"
    told = f"'hospital-02' is listed with the identity .* one that {said}"
    with pytest.raises(SecureSumRefused, match=told) as error:
        check_members(trust, members, 3)
    assert error.value.against == "hospital-02"


def test_its_own_name_with_another_identity_is_refused() -> None:
    members, identities = members_of(4)
    with pytest.raises(SecureSumRefused, match=r"'hospital-00' is listed .* not its own") as error:
        check_members(dataclasses.replace(a_trust(identities), identity=b"\7" * 32), members, 3)
    assert error.value.against == "", "a complaint of itself"


@pytest.mark.slow
def test_the_bound_on_the_threshold_is_exact() -> None:
    """2 (t - c) > p, counted here from its meaning: no two disjoint sets of t - c trusted silos."""
    for trusted, count in itertools.combinations_with_replacement(range(3, 13), 2):
        members, identities = members_of(count)
        trust = a_trust(identities, *range(1, trusted))
        for threshold in range(2, count + 1):
            untrusted = count - trusted
            each = threshold - untrusted
            safe = each > 0 and (2 * each > trusted)
            if safe:
                assert len(check_members(trust, members, threshold)) == trusted
            else:
                with pytest.raises(SecureSumRefused, match=f"A threshold of {threshold} is too low for {count} silos"):
                    check_members(trust, members, threshold)


def test_the_threshold_that_a_refusal_names_is_the_lowest_that_is_taken() -> None:
    for count, trusted in itertools.product(range(3, 12), range(3, 12)):
        if trusted > count:
            continue
        members, identities = members_of(count)
        trust = a_trust(identities, *range(1, trusted))
        with pytest.raises(SecureSumRefused) as refused:
            check_members(trust, members, 1)
        needed = int(re.findall(r"(\d+) are needed", refused.value.text)[0])
        assert check_members(trust, members, needed)
        with pytest.raises(SecureSumRefused):
            check_members(trust, members, needed - 1)


def test_as_many_colluding_silos_as_the_docstring_says_keep_it_safe() -> None:
    """m < 2 (t - c) - p is 2 (t - c - m) > p - m, for all small numbers."""
    for p, c, t, m in itertools.product(range(1, 12), range(6), range(12), range(6)):
        assert (2 * (t - c - m) > p - m) == (m < 2 * (t - c) - p)


def test_trusted_survivors_alone_count() -> None:
    trusted = ("a", "b", "c")
    check_survivors(("a", "b", "c", "x"), trusted=trusted, threshold=4, min_silos=3)
    with pytest.raises(SecureSumRefused, match="2 trusted silos are left, and 3 are required"):
        check_survivors(("a", "b", "x", "y"), trusted=trusted, threshold=4, min_silos=3)
    with pytest.raises(SecureSumRefused, match="3 silos are left, and the threshold is 4"):
        check_survivors(("a", "b", "c"), trusted=trusted, threshold=4, min_silos=3)


@each_of(("changes", "said"), [
    ({"min_silos": 2}, "at least 3"), ({"identity": b"x"}, "has 1 bytes"), ({"pinned": {"b": b""}}, "'b' has 0 bytes"),
    ({"known": {"b": bytes(33)}}, "'b' has 33 bytes"), ({"pinned": {"a": bytes(32)}}, "another identity than its own"),
])
def test_a_trust_that_makes_no_sense_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(Trust(silo="a", identity=b"i" * 32), **changes)  # type: ignore[arg-type]


def test_a_short_number_is_six_groups_of_five_digits_and_hangs_on_every_bit() -> None:
    numbers = {short_number(bytes(32))}
    for bit in range(256):
        numbers.add(short_number((1 << bit).to_bytes(32)))
    assert len(numbers) == 257
    assert all(re.fullmatch(r"\d{5}( \d{5}){5}", number) for number in numbers)


def test_a_fingerprint_is_read_again_and_nothing_else_is() -> None:
    identity = bytes(range(32))
    text = fingerprint(identity)
    assert text == "ed25519:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    assert parse_fingerprint(text, where="silo.toml") == identity
    for wrong in ("", text[:-2], text + "00", text.upper(), text[8:], text.replace("00", "0g"), "ed25519: " + text[8:]):
        with pytest.raises(BadConfiguration, match=r"silo\.toml: .* is not an identity"):
            parse_fingerprint(wrong, where="silo.toml")


def test_the_number_that_is_read_aloud_is_no_identity_and_is_called_what_it_is() -> None:
    number = short_number(bytes(32))
    for text in (number, number.replace(" ", ""), f" {number}"):
        with pytest.raises(BadConfiguration, match=r"silo\.toml: .*, but the number to be read to each") as caught:
            parse_fingerprint(text, where="silo.toml")
        assert "put the line of 'silo peers' there" in caught.value.remedy
    with pytest.raises(BadConfiguration, match=r"is not an identity\.(\n|$)"):
        parse_fingerprint(number[:-1], where="silo.toml")
