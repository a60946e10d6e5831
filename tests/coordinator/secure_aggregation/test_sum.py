"""Whole sums: bit-equal to the plain sum of the same integers, whoever drops out, and whoever lies among the silos."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadSignature, SecureSumFailed
from semisilo.common.secure_aggregation.keys import commitment, sign_keys
from semisilo.common.secure_aggregation.messages import Confirmation, Member, RoundKeys, SecureSum, UnmaskAnswer
from semisilo.common.secure_aggregation.shamir import combine, share_at
from semisilo.coordinator.secure_aggregation.sum import check_confirmation, deliveries, list_members
from tests.secure_sums import (
    CONTEXT,
    Run,
    Silo,
    Words,
    a_total,
    finish,
    identities_of,
    make_silos,
    name_of,
    plain_sum,
    some_words,
    up_to_answers,
)


def threshold_of(silos: int) -> int:
    """The paper's choice against an active adversary: more than two thirds."""
    return 2 * silos // 3 + 1


@pytest.mark.parametrize("count", [3, 4, 5, 10, pytest.param(32, marks=pytest.mark.slow)])
def test_the_sum_is_the_plain_one_bit_by_bit(count: int) -> None:
    total = a_total(threshold_of(count))
    silos = make_silos(count, total, words=200)
    run = up_to_answers(total, silos)
    assert len(run.answers) == count
    assert (finish(total, run) == plain_sum([silo.words for silo in silos.values()])).all()
    assert run.unmasked is not None
    assert run.unmasked.wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "step"), [
    (count, step) if count < 32 or step == 3 else pytest.param(count, step, marks=pytest.mark.slow)
    for count in (5, 8, 32) for step in (1, 2, 3, 4, 5)])
def test_silos_may_drop_out_at_each_arrow_down_to_the_threshold(count: int, step: int) -> None:
    """The sum is that of the silos that have masked: those that go after it stay in it."""
    total = a_total(threshold_of(count))
    silos = make_silos(count, total)
    drop = {name_of(number): step for number in range(1, 1 + count - total.threshold)}
    run = up_to_answers(total, silos, drop=drop)
    assert len(run.answers) == total.threshold
    assert set(run.survivors) == (set(silos) - set(drop) if step <= 3 else set(silos))
    assert (finish(total, run) == plain_sum([silos[name].words for name in run.survivors])).all()


def test_one_silo_more_that_drops_out_ends_the_sum() -> None:
    total = a_total(4)
    run = up_to_answers(total, make_silos(5, total), drop={name_of(0): 5, name_of(1): 5})
    with pytest.raises(SecureSumFailed, match="3 shares of the self mask of 'hospital-00' have come back, and 4"):
        finish(total, run)


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
def test_any_silos_may_drop_out_at_any_arrows(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 12))
    threshold = data.draw(st.integers(count // 2 + 1, count))
    total = a_total(threshold)
    silos = make_silos(count, total, words=7)
    going = data.draw(st.lists(st.sampled_from(sorted(silos)), max_size=count - max(threshold, 3), unique=True))
    run = up_to_answers(total, silos, drop={name: data.draw(st.integers(1, 5)) for name in going})
    assert (finish(total, run) == plain_sum([silos[name].words for name in run.survivors])).all()


# Another implementation of what a silo sends --------------------------------------------------------------------------


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, one block, from its text."""
    pseudorandom = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(pseudorandom, info + b"\x01", hashlib.sha256).digest()


def mask_of(seed: bytes, count: int) -> list[int]:
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(4 * count))
    return [int.from_bytes(stream[4 * i:4 * i + 4], "little") for i in range(count)]


def context_of(total: SecureSum, members: tuple[Member, ...], context: bytes) -> bytes:
    listed = ",".join(f'["{m.silo}","{m.identity.hex()}","{m.keys.seal_key.hex()}","{m.keys.mask_key.hex()}"]'
                      for m in members)
    text = f'["{total.digest().hex()}",[{listed}],"{context.hex()}"]'
    return hashlib.sha256(b"semisilo secure aggregation context v1\0" + text.encode()).digest()


def masked_by(silo: Silo, silos: dict[str, Silo], run: Run) -> Words:
    """x_u + PRG(b_u) + sum of PRG(s_uv) for u < v, less that for u > v: the equation of the paper's round 2."""
    salt = context_of(silo.session.total, run.members, CONTEXT)
    key = X25519PrivateKey.from_private_bytes(silo.session.mask_key)
    words = [int(value) for value in silo.words]
    masks = [(1, hkdf(silo.session.self_secret, salt, b"semisilo secure aggregation self mask v1\0"))]
    for other in run.shares:
        if other != silo.name:
            public = X25519PrivateKey.from_private_bytes(silos[other].session.mask_key).public_key().public_bytes_raw()
            shared = key.exchange(X25519PublicKey.from_public_bytes(public))
            masks.append((1 if silo.name < other else -1,
                          hkdf(shared, salt, b"semisilo secure aggregation pair mask v1\0")))
    for sign, seed in masks:
        words = [(value + sign * mask) % 2**32 for value, mask in zip(words, mask_of(seed, len(words)), strict=True)]
    return np.array(words, dtype=np.uint32)


def test_what_a_silo_sends_is_the_paper_s_equation() -> None:
    total = a_total(3)
    silos = make_silos(4, total, words=100)
    kept = {name: dataclasses.replace(silo, session=silo.session) for name, silo in silos.items()}
    run = up_to_answers(total, silos, drop={name_of(2): 3})
    for name in run.survivors:
        assert (run.masked[name] == masked_by(kept[name], kept, run)).all()


def test_masks_vanish_for_every_width_of_words() -> None:
    """A sum modulo 2**32 reduces to one modulo 2**bits: packing keeps the low bits, and nothing else is needed."""
    total = a_total(3)
    silos = make_silos(5, total, words=100)
    run = up_to_answers(total, silos, drop={name_of(1): 3})
    plain = plain_sum([silos[name].words for name in run.survivors])
    for bits in (24, 20, 16):
        narrow = np.uint32(2**bits - 1)
        run.masked = {name: words & narrow for name, words in run.masked.items()}
        assert (finish(total, run) & narrow == plain & narrow).all()


# Who is listed, and what is passed on ---------------------------------------------------------------------------------


def test_keys_with_a_bad_signature_or_a_key_of_another_silo_are_not_listed() -> None:
    total = a_total(3)
    silos = make_silos(5, total)
    answers = {name: silo.round_keys() for name, silo in silos.items()}
    bent = answers[name_of(1)]
    answers[name_of(1)] = dataclasses.replace(bent, signature=bytes([bent.signature[0] ^ 1]) + bent.signature[1:])
    answers["stranger"] = answers[name_of(2)]
    members = list_members(total, answers, identities_of(silos))
    assert [member.silo for member in members] == [name_of(number) for number in (0, 2, 3, 4)]


@pytest.mark.parametrize("which", ["seal", "mask"])
def test_a_silo_whose_key_is_none_is_not_listed(which: str) -> None:
    """One silo with a key of low order, rightly signed, would have all others refuse the sum."""
    total = a_total(3)
    silos = make_silos(4, total)
    answers = {name: silo.round_keys() for name, silo in silos.items()}
    name, low = name_of(2), b"\1" + bytes(31)
    seal_key, mask_key = (low if each == which else bytes([9]) + bytes(31) for each in ("seal", "mask"))
    answers[name] = RoundKeys(seal_key=seal_key, mask_key=mask_key,
                              signature=sign_keys(silos[name].identity, total, name, seal_key, mask_key))
    assert name not in [member.silo for member in list_members(total, answers, identities_of(silos))]
    assert len(list_members(total, answers, identities_of(silos))) == 3


def test_two_silos_with_one_identity_are_both_left_out() -> None:
    total = a_total(3)
    silos = make_silos(4, total)
    silos[name_of(3)].identity = silos[name_of(1)].identity
    members = list_members(total, {name: silo.round_keys() for name, silo in silos.items()}, identities_of(silos))
    assert [member.silo for member in members] == [name_of(0), name_of(2)]


def test_a_silo_is_given_the_shares_of_those_alone_that_have_handed_theirs_in() -> None:
    total = a_total(3)
    silos = make_silos(4, total)
    members = list_members(total, {name: silo.round_keys() for name, silo in silos.items()}, identities_of(silos))
    shares = {name: silo.share(members) for name, silo in silos.items() if name != name_of(1)}
    given = deliveries(shares)
    assert set(given) == set(shares)
    assert [item.silo for item in given[name_of(0)]] == [name_of(2), name_of(3)]
    assert given[name_of(0)][0].sealed == next(i.sealed for i in shares[name_of(2)].sealed if i.silo == name_of(0))


def test_a_confirmation_of_another_list_is_found() -> None:
    total = a_total(3)
    run = up_to_answers(total, make_silos(4, total))
    first = run.confirmations[0]
    check_confirmation(total, context=CONTEXT, members=run.members, survivors=run.survivors, confirmation=first)
    for changed in ({"survivors": run.survivors[1:]}, {"context": b"another"}, {"members": run.members[1:]},
                    {"confirmation": Confirmation(silo=name_of(2), signature=first.signature)}):
        with pytest.raises(BadSignature):
            check_confirmation(**{"total": total, "context": CONTEXT, "members": run.members,
                                  "survivors": run.survivors, "confirmation": first} | changed)


# Silos that lie -------------------------------------------------------------------------------------------------------


def bend(answer: UnmaskAnswer) -> UnmaskAnswer:
    def bent(shares: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
        return tuple((silo, value[:-1] + bytes([value[-1] ^ 1])) for silo, value in shares)

    return UnmaskAnswer(self_shares=bent(answer.self_shares), key_shares=bent(answer.key_shares))


@pytest.mark.slow
@pytest.mark.parametrize("liars", [(0,), (7,), (0, 1), (2, 6)])
def test_silos_with_wrong_shares_are_named_and_the_sum_is_right(liars: tuple[int, ...]) -> None:
    total = a_total(5)
    silos = make_silos(9, total)
    run = up_to_answers(total, silos, drop={name_of(8): 3})
    for number in liars:
        run.answers[name_of(number)] = bend(run.answers[name_of(number)])
    assert (finish(total, run) == plain_sum([silos[name].words for name in run.survivors])).all()
    assert run.unmasked is not None
    assert tuple(run.unmasked.wrong) == tuple(name_of(number) for number in liars)


def test_a_wrong_share_without_others_to_spare_ends_the_sum() -> None:
    """Exactly as many answers as the threshold, one of them wrong: no sum at all is better than a wrong one."""
    total = a_total(4)
    run = up_to_answers(total, make_silos(6, total), drop={name_of(4): 5, name_of(5): 5})
    run.answers[name_of(1)] = bend(run.answers[name_of(1)])
    with pytest.raises(SecureSumFailed, match="No 4 of the 4 shares of the self mask of 'hospital-00'"):
        finish(total, run)


@pytest.mark.parametrize("answer", [
    UnmaskAnswer(self_shares=(), key_shares=()),
    UnmaskAnswer(self_shares=tuple((name_of(number), b"\xff" * 66) for number in range(6)), key_shares=()),
    UnmaskAnswer(self_shares=tuple((name_of(number), b"") for number in range(6)), key_shares=()),
    UnmaskAnswer(self_shares=tuple((name_of(0), bytes(66)) for _ in range(3)), key_shares=(("nobody", bytes(66)),)),
])
def test_answers_of_another_shape_are_wrong_and_do_no_harm(answer: UnmaskAnswer) -> None:
    total = a_total(4)
    silos = make_silos(6, total)
    run = up_to_answers(total, silos)
    run.answers[name_of(3)] = answer
    assert (finish(total, run) == plain_sum([silo.words for silo in silos.values()])).all()
    assert run.unmasked is not None
    assert tuple(run.unmasked.wrong) == (name_of(3),)


@pytest.mark.slow
def test_too_many_liars_end_the_sum_in_bounded_time() -> None:
    total = a_total(17)
    run = up_to_answers(total, make_silos(32, total))
    for number in range(16):
        run.answers[name_of(number)] = bend(run.answers[name_of(number)])
    with pytest.raises(SecureSumFailed, match="No 17 of the 32 shares of the self mask of 'hospital-00'"):
        finish(total, run)


@pytest.mark.slow
def test_any_two_of_the_most_silos_that_lie_are_found() -> None:
    """All pairs would take minutes; those at the ends and across the lowest 17 are the different cases."""
    total = a_total(17)
    silos = make_silos(32, total, words=3)
    run = up_to_answers(total, silos)
    plain = plain_sum([silo.words for silo in silos.values()])
    honest = dict(run.answers)
    for liars in itertools.combinations((0, 15, 16, 31), 2):
        run.answers = honest | {name_of(number): bend(honest[name_of(number)]) for number in liars}
        assert (finish(total, run) == plain).all()
        assert run.unmasked is not None
        assert tuple(run.unmasked.wrong) == tuple(name_of(number) for number in liars)


@pytest.mark.slow
def test_liars_cannot_frame_others() -> None:
    """Errors at points 1 and 16 of a polynomial through points 1 to 17 cancel at 0, where the weights are 17 and -17:
    the secret is right, and all shares beyond the 17 seem wrong."""
    total = a_total(17)
    silos = make_silos(24, total, words=3)
    run = up_to_answers(total, silos)
    for number in (0, 15):
        given = [(silo, (int.from_bytes(value) + 1).to_bytes(66)) for silo, value
                 in run.answers[name_of(number)].self_shares]
        run.answers[name_of(number)] = UnmaskAnswer(self_shares=tuple(given), key_shares=())
    owner = name_of(0)
    shares = {number + 1: dict(run.answers[name_of(number)].self_shares)[owner] for number in range(17)}
    assert commitment(combine(shares, threshold=17)) == run.shares[owner].commitment
    assert (finish(total, run) == plain_sum([silo.words for silo in silos.values()])).all()
    assert run.unmasked is not None
    assert tuple(run.unmasked.wrong) == (name_of(0), name_of(15))


def test_a_dealer_of_shares_that_fit_by_half_costs_no_more_than_one_that_is_honest(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven of its 16 shares lie on a polynomial, too few to say who has lied: every set of nine of them was held
    against the other five, with 32 silos for seconds."""
    total = a_total(9)
    silos = make_silos(16, total, words=3)
    run = up_to_answers(total, silos)
    for number in range(11, 16):
        answer = run.answers[name_of(number)]
        bent = dict(bend(answer).self_shares)
        run.answers[name_of(number)] = dataclasses.replace(answer, self_shares=tuple(
            (silo, bent[silo] if silo == name_of(0) else value) for silo, value in answer.self_shares))
    looked = 0

    def counted(shares: dict[int, bytes], *, threshold: int, point: int) -> bytes:
        nonlocal looked
        looked += 1
        return share_at(shares, threshold=threshold, point=point)

    monkeypatch.setattr("semisilo.coordinator.secure_aggregation.sum.share_at", counted)
    assert (finish(total, run) == plain_sum([silo.words for silo in silos.values()])).all()
    assert run.unmasked is not None
    assert run.unmasked.wrong == {}, "who has lied cannot be told from who is framed"
    assert looked == 16 * (16 - 9)


def test_a_silo_that_has_committed_to_another_secret_is_named() -> None:
    total = a_total(3)
    run = up_to_answers(total, make_silos(4, total))
    run.shares[name_of(2)] = dataclasses.replace(run.shares[name_of(2)], commitment=bytes(32))
    with pytest.raises(SecureSumFailed, match="'hospital-02' give what it has published"):
        finish(total, run)


def test_nobody_is_listed_whose_identity_is_not_known() -> None:
    total = a_total(3)
    keys = RoundKeys(seal_key=bytes(32), mask_key=bytes(32), signature=bytes(64))
    assert list_members(total, {"a": keys}, {}) == ()
    assert some_words("a", 3).dtype == np.uint32
