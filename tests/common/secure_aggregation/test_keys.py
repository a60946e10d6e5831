"""Keys: vectors of the RFCs, what is bound into what, and keys that are none."""

from __future__ import annotations

import dataclasses

import pytest

from semisilo.common.errors import BadKey, BadShare, BadSignature
from semisilo.common.secure_aggregation.keys import (
    agree,
    check_keys,
    check_survivors,
    commitment,
    identity_of,
    mask_context,
    new_identity,
    new_key,
    pair_seed,
    public_of,
    seal,
    self_seed,
    sign_keys,
    sign_survivors,
    unseal,
)
from semisilo.common.secure_aggregation.messages import SEAL_OVERHEAD_BYTES, Confirmation, Member, RoundKeys
from tests.each_of import each_of
from tests.secure_sums import a_total

TOTAL = a_total(3)
ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
ALICE_PUBLIC = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
LOW_ORDER = (bytes(32), b"\1" + bytes(31),
             bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
             bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
             bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
             bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
             bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"))


def test_agreement_is_x25519() -> None:
    """RFC 7748, section 6.1."""
    alice, bob = bytes.fromhex(ALICE), bytes.fromhex(BOB)
    assert public_of(alice).hex() == ALICE_PUBLIC
    assert public_of(bob).hex() == BOB_PUBLIC
    assert agree(alice, bytes.fromhex(BOB_PUBLIC)).hex() == SHARED
    assert agree(bob, bytes.fromhex(ALICE_PUBLIC)).hex() == SHARED


@each_of("peer", LOW_ORDER)
def test_keys_of_low_order_are_refused(peer: bytes) -> None:
    """The seven of small order on the curve or its twist: with them, the secret is 0 whatever the private key."""
    for _ in range(2):
        with pytest.raises(BadKey, match="not a key to agree on a secret with"):
            agree(new_key(), peer)


@each_of("call", [
    lambda: agree(new_key(), bytes(31)), lambda: agree(bytes(31), public_of(new_key())), lambda: public_of(b""),
    lambda: identity_of(bytes(33)), lambda: sign_survivors(b"", TOTAL, b"", ()),
])
def test_keys_of_the_wrong_size_are_refused(call: object) -> None:
    with pytest.raises(BadKey):
        call()  # type: ignore[operator]


def test_both_sides_agree_and_new_keys_differ() -> None:
    one, other = new_key(), new_key()
    assert one != other
    assert agree(one, public_of(other)) == agree(other, public_of(one))
    assert new_identity() != new_identity()


def a_member() -> tuple[bytes, Member]:
    identity, seal_key, mask_key = new_identity(), public_of(new_key()), public_of(new_key())
    signature = sign_keys(identity, TOTAL, "a", seal_key, mask_key)
    return identity, Member(silo="a", identity=identity_of(identity),
                            keys=RoundKeys(seal_key=seal_key, mask_key=mask_key, signature=signature))


def test_signed_keys_are_good_for_one_sum_one_silo_and_both_keys_in_their_places() -> None:
    _, member = a_member()
    check_keys(TOTAL, member)
    keys = member.keys
    wrong = [(dataclasses.replace(TOTAL, round=2), member), (TOTAL, dataclasses.replace(member, silo="b")),
             (TOTAL, dataclasses.replace(member, identity=identity_of(new_identity()))),
             (TOTAL, dataclasses.replace(member, identity=b"")),
             *((TOTAL, dataclasses.replace(member, keys=changed)) for changed in (
                 dataclasses.replace(keys, seal_key=keys.mask_key, mask_key=keys.seal_key),
                 dataclasses.replace(keys, mask_key=public_of(new_key())),
                 dataclasses.replace(keys, signature=b""), dataclasses.replace(keys, signature=bytes(64))))]
    for total, other in wrong:
        with pytest.raises(BadSignature, match="not signed by its identity"):
            check_keys(total, other)


def test_a_signed_list_is_good_for_one_sum_one_context_and_one_order() -> None:
    private = new_identity()
    identity, survivors = identity_of(private), ("a", "b", "c")
    confirmation = Confirmation(silo="a", signature=sign_survivors(private, TOTAL, b"c", survivors))
    check_survivors(TOTAL, b"c", survivors, confirmation, identity)
    for total, context, listed in ((dataclasses.replace(TOTAL, nonce=b"m" * 16), b"c", survivors),
                                   (TOTAL, b"d", survivors), (TOTAL, b"c", ("a", "b")), (TOTAL, b"c", ("b", "a", "c")),
                                   (TOTAL, b"c", ('a","b', "c"))):
        with pytest.raises(BadSignature, match="Silo 'a' has not signed this list"):
            check_survivors(total, context, listed, confirmation, identity)


def test_a_signature_for_one_purpose_is_good_for_no_other() -> None:
    """Even over fields that could be read as the other's: the purpose is signed as well."""
    private = new_identity()
    seal_key, mask_key = public_of(new_key()), public_of(new_key())
    signature = sign_keys(private, TOTAL, "a", seal_key, mask_key)
    with pytest.raises(BadSignature):
        check_survivors(TOTAL, b"", ("a", seal_key.hex(), mask_key.hex()), Confirmation(silo="a", signature=signature),
                        identity_of(private))


def test_what_is_sealed_opens_for_one_recipient_of_one_sender_in_one_sum() -> None:
    sender, recipient = new_key(), new_key()
    sealed = seal(sender, public_of(recipient), TOTAL, sender="a", recipient="b", plain=b"shares")
    assert len(sealed) == len(b"shares") + SEAL_OVERHEAD_BYTES
    assert b"shares" not in sealed
    assert unseal(recipient, public_of(sender), TOTAL, sender="a", recipient="b", sealed=sealed) == b"shares"
    ways = [(recipient, public_of(sender), TOTAL, "b", "a", sealed),
            (recipient, public_of(sender), TOTAL, "c", "b", sealed),
            (recipient, public_of(sender), dataclasses.replace(TOTAL, round=2), "a", "b", sealed),
            (new_key(), public_of(sender), TOTAL, "a", "b", sealed),
            (recipient, public_of(new_key()), TOTAL, "a", "b", sealed),
            (recipient, public_of(sender), TOTAL, "a", "b", sealed[:-1]),
            (recipient, public_of(sender), TOTAL, "a", "b", b""),
            (recipient, public_of(sender), TOTAL, "a", "b", bytes([sealed[0] ^ 1]) + sealed[1:])]
    for private, peer, total, from_, to, text in ways:
        with pytest.raises(BadShare, match=f"silo '{from_}' has sealed for '{to}' cannot be opened"):
            unseal(private, peer, total, sender=from_, recipient=to, sealed=text)


def test_the_two_directions_and_two_sums_have_different_keys() -> None:
    """A key of ChaCha20-Poly1305 is used once: equal texts give unrelated bytes."""
    one, other = new_key(), new_key()
    texts = {seal(one, public_of(other), TOTAL, sender="a", recipient="b", plain=bytes(132)),
             seal(other, public_of(one), TOTAL, sender="b", recipient="a", plain=bytes(132)),
             seal(one, public_of(other), dataclasses.replace(TOTAL, nonce=b"m" * 16), sender="a", recipient="b",
                  plain=bytes(132))}
    assert len({text[:16] for text in texts}) == 3


def test_seeds_hang_on_the_context_and_on_their_purpose() -> None:
    one, other = new_key(), new_key()
    assert pair_seed(one, public_of(other), context=b"c") == pair_seed(other, public_of(one), context=b"c")
    secret = agree(one, public_of(other))
    seeds = {pair_seed(one, public_of(other), context=b"c"), pair_seed(one, public_of(other), context=b"d"),
             self_seed(secret, context=b"c"), self_seed(secret, context=b"d"), secret, commitment(secret)}
    assert len(seeds) == 6
    assert {len(seed) for seed in seeds} == {32}


def test_the_context_of_masks_has_all_that_silos_must_have_been_told_alike() -> None:
    (_, one), (_, two) = a_member(), a_member()
    members = (one, dataclasses.replace(two, silo="b"))
    contexts = {mask_context(TOTAL, members, b"model"), mask_context(TOTAL, members, b"other model"),
                mask_context(TOTAL, members[:1], b"model"),
                mask_context(dataclasses.replace(TOTAL, threshold=4), members, b"model"),
                mask_context(TOTAL, (one, two), b"model"),
                mask_context(TOTAL, (one, dataclasses.replace(members[1], identity=one.identity)), b"model"),
                mask_context(TOTAL, (one, dataclasses.replace(members[1], keys=one.keys)), b"model")}
    assert len(contexts) == 7
