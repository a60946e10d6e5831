"""A silo's part in one secure sum: a state, and a function for each step from state and question to state and answer.

All secrets are drawn when the sum begins, so that every later step is a function of what is kept: a silo that was
killed answers a repeated question with the same bytes. Another question in a step that was answered is refused, for
good. So the rule for whoever keeps the state: write it down before the answer leaves.

Source: Bonawitz et al., CCS 2017, figure 4, the user's side.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from semisilo.common.config import canonical_json
from semisilo.common.errors import BadKey, BadShare, BadSignature, SecureSumRefused
from semisilo.common.secure_aggregation.keys import (
    agree,
    check_keys,
    commitment,
    mask_context,
    pair_seed,
    public_of,
    seal,
    self_seed,
    sign_keys,
    sign_survivors,
    unseal,
)
from semisilo.common.secure_aggregation.keys import check_survivors as check_signed_survivors
from semisilo.common.secure_aggregation.messages import (
    KEY_BYTES,
    MAX_SILOS,
    MIN_SILOS,
    NONCE_BYTES,
    SEED_BYTES,
    SHARE_BYTES,
    MaskSeed,
    Member,
    RoundKeys,
    SealedShare,
    SecureSum,
    Shares,
    UnmaskAnswer,
    UnmaskRequest,
    in_order,
)
from semisilo.common.secure_aggregation.shamir import split
from semisilo.silo.secure_aggregation.trust import Trust, check_members, check_survivors

__all__ = ["SiloSession", "begin", "check_follows", "confirm", "mask_seeds", "one_vector", "round_keys", "share",
           "unmask"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloSession:
    """What a silo keeps of one sum. Secret until it is answered; `repr` shows none of the secrets."""

    total: SecureSum
    silo: str
    """Its own name."""
    seal_key: bytes = field(repr=False)
    """Private, X25519. This and the next four are empty once the sum is unmasked."""
    mask_key: bytes = field(repr=False)
    """Private, X25519; shared out, so that peers can take the masks away if this silo drops out."""
    self_secret: bytes = field(repr=False)
    """Of the self mask; shared out, so that peers can take it away if this silo survives."""
    key_coefficients: bytes = field(repr=False)
    """Of the polynomial that the mask key is shared with."""
    self_coefficients: bytes = field(repr=False)
    """Of the polynomial that the self mask's secret is shared with."""
    members: tuple[Member, ...] = ()
    """U1, once its shares are made."""
    trusted: tuple[str, ...] = ()
    """The members that count for `min_silos`."""
    min_silos: int = MIN_SILOS
    given: tuple[SealedShare, ...] = ()
    """What peers have sealed for this silo, once it has masked. Their senders and itself are U2."""
    context: bytes | None = None
    """What the masks hang on, as it was given; see `mask_context`."""
    vector: bytes | None = None
    """Digest of the words that the masks are for."""
    survivors: tuple[str, ...] = ()
    """U3, once it has signed it."""
    asked: bytes | None = None
    """Digest of the request to unmask that it has answered."""
    answer: UnmaskAnswer | None = None
    """To that request."""


def begin(total: SecureSum, *, silo: str, random: Callable[[int], bytes] = os.urandom) -> SiloSession:
    """Draws the secrets of a sum: 32 bytes five times. Never twice for one sum; see `check_follows`.

    Args:
        random: the system's generator; another one in tests only.
    Raises: SecureSumRefused for a threshold or a nonce that no sum has.
    """
    if not MIN_SILOS - 1 <= total.threshold <= MAX_SILOS or len(total.nonce) != NONCE_BYTES:
        raise SecureSumRefused(f"A secure sum has a threshold of {MIN_SILOS - 1} to {MAX_SILOS} and a nonce of "
                               f"{NONCE_BYTES} bytes; found {total.threshold} and {len(total.nonce)}.")
    return SiloSession(total=total, silo=silo, seal_key=random(KEY_BYTES), mask_key=random(KEY_BYTES),
                       self_secret=random(SEED_BYTES), key_coefficients=random(SEED_BYTES),
                       self_coefficients=random(SEED_BYTES))


def check_follows(earlier: SiloSession, total: SecureSum) -> None:
    """Whether a silo may begin `total` after `earlier`.

    What a silo has masked in one sum must not enter another: of two sums over the same updates whose survivors differ
    in one silo, the difference is that silo's update.

    Raises: SecureSumRefused when both are of one round and phase of a study, and the silo has masked in the earlier
        one.
    """
    same = (earlier.total.federation, earlier.total.study, earlier.total.round, earlier.total.phase) == \
        (total.federation, total.study, total.round, total.phase)
    if same and earlier.total != total and (earlier.context is not None or earlier.answer is not None):
        raise SecureSumRefused(f"Silo '{earlier.silo}' has masked its update of round {total.round} for another sum: "
                               "two sums of one round would show how they differ.",
                               remedy="Let the round fail; the next one has a sum of its own.")


def round_keys(session: SiloSession, identity_private: bytes) -> RoundKeys:
    """The first step: the public keys of this sum, signed."""
    _open(session)
    seal_key, mask_key = public_of(session.seal_key), public_of(session.mask_key)
    return RoundKeys(seal_key=seal_key, mask_key=mask_key,
                     signature=sign_keys(identity_private, session.total, session.silo, seal_key, mask_key))


def share(session: SiloSession, members: Sequence[Member], trust: Trust) -> tuple[SiloSession, Shares]:
    """The second step: shares of the mask key and of the self mask's secret, sealed for each other member of U1.

    Raises: SecureSumRefused when the members are not those of a sum that would protect this silo's update.
    """
    _open(session)
    members = tuple(members)
    if session.members and members != session.members:
        raise _refused(session, "its shares are made for other members")
    if not session.members:
        _check_members(session, members, trust)
        session = dataclasses.replace(session, members=members, min_silos=trust.min_silos,
                                      trusted=check_members(trust, members, session.total.threshold))
    points, threshold = _points(session), session.total.threshold
    of_key = split(session.mask_key, threshold=threshold, points=tuple(points.values()),
                   coefficients=session.key_coefficients)
    of_self = split(session.self_secret, threshold=threshold, points=tuple(points.values()),
                    coefficients=session.self_coefficients)
    sealed = []
    for member in members:
        if member.silo == session.silo:
            continue
        point = points[member.silo]
        try:
            text = seal(session.seal_key, member.keys.seal_key, session.total, sender=session.silo,
                        recipient=member.silo, plain=of_key[point] + of_self[point])
            agree(session.mask_key, member.keys.mask_key)  # now, not when others count on this silo's masks
        except BadKey:
            raise _refused(session, f"the keys of '{member.silo}' are not keys", against=member.silo) from None
        sealed.append(SealedShare(silo=member.silo, sealed=text))
    return session, Shares(sealed=tuple(sealed), commitment=commitment(session.self_secret))


def mask_seeds(session: SiloSession, *, given: Sequence[SealedShare],
               context: bytes) -> tuple[SiloSession, tuple[MaskSeed, ...]]:
    """The third step: the seeds of the masks that this silo adds to its words.

    One mask with each peer of U2, added by the one that comes first in byte order and taken away by the other; and one
    of its own. They are good for one vector: see `one_vector`.

    Args:
        given: what peers have sealed for this silo; each is opened here already, so that a peer whose shares are no
            good is named while the sum can still go on without it.
        context: what all must have been told alike.
    Raises: SecureSumRefused.
    """
    _open(session)
    if not session.members:
        raise _refused(session, "it has made no shares yet")
    given = tuple(given)
    if session.context is not None and (given, context) != (session.given, session.context):
        raise _refused(session, "it has masked already, among other silos or for another model")
    if session.context is None:
        session = _take_shares(session, given, context)
    bound = _bound(session)
    seeds = [MaskSeed(seed=self_seed(session.self_secret, context=bound), sign=1)]
    for peer in _second(session):
        if peer != session.silo:
            seed = pair_seed(session.mask_key, _member(session, peer).keys.mask_key, context=bound)
            seeds.append(MaskSeed(seed=seed, sign=1 if session.silo.encode() < peer.encode() else -1))
    return session, tuple(seeds)


def one_vector(session: SiloSession, digest: bytes) -> SiloSession:
    """Remembers the words that the masks are for: of two vectors under one mask, the difference is plain.

    Args:
        digest: SHA-256 of the words before they are masked.
    Raises: SecureSumRefused for another one than before.
    """
    _open(session)
    if session.context is None:
        raise _refused(session, "it has no masks yet")
    if session.vector not in (None, digest):
        raise _refused(session, "its masks are used up: they are for one vector")
    return dataclasses.replace(session, vector=digest)


def confirm(session: SiloSession, survivors: Sequence[str], identity_private: bytes) -> tuple[SiloSession, bytes]:
    """The fourth step: this silo's signature under the list U3. It signs one list a sum.

    Raises: SecureSumRefused when the list is not within U2, lacks this silo, or is too short.
    """
    _open(session)
    survivors = tuple(survivors)
    if session.survivors and survivors != session.survivors:
        raise _refused(session, "it has signed another list of survivors")
    if session.context is None:
        raise _refused(session, "it has not masked yet")
    _check_survivors(session, survivors)
    signature = sign_survivors(identity_private, session.total, _bound(session), survivors)
    return dataclasses.replace(session, survivors=survivors), signature


def unmask(session: SiloSession, request: UnmaskRequest) -> tuple[SiloSession, UnmaskAnswer]:
    """The last step: for each silo of U3 the share of its self mask, for each other silo of U2 that of its mask key.

    Returns: the session without its secrets, with the answer to be repeated; and the answer.
    Raises: SecureSumRefused when the list is not the one that this silo has signed, or too few others have.
    """
    digest = hashlib.sha256(canonical_json(request).encode()).digest()
    if session.answer is not None:
        if digest != session.asked:
            raise _refused(session, "it has answered another request to unmask")
        return session, session.answer
    if not session.survivors or request.survivors != session.survivors:
        raise _refused(session, "it has not signed this list of survivors")
    _check_confirmations(session, request)
    self_shares, key_shares = [], []
    opened = _opened(session)
    for silo in _second(session):
        key_share, self_share = opened[silo]
        if silo in session.survivors:
            self_shares.append((silo, self_share))
        else:
            key_shares.append((silo, key_share))
    answer = UnmaskAnswer(self_shares=tuple(self_shares), key_shares=tuple(key_shares))
    return dataclasses.replace(session, seal_key=b"", mask_key=b"", self_secret=b"", key_coefficients=b"",
                               self_coefficients=b"", given=(), asked=digest, answer=answer), answer


# Checks ---------------------------------------------------------------------------------------------------------------


def _refused(session: SiloSession, reason: str, *, against: str = "") -> SecureSumRefused:
    return SecureSumRefused(f"Silo '{session.silo}' refuses the secure sum of round {session.total.round}: {reason}.",
                            against=against)


def _open(session: SiloSession) -> None:
    if session.answer is not None:
        raise _refused(session, "the sum is over")


def _check_members(session: SiloSession, members: tuple[Member, ...], trust: Trust) -> None:
    names = tuple(member.silo for member in members)
    if not MIN_SILOS <= len(members) <= MAX_SILOS:
        raise _refused(session, f"it has {len(members)} members, and {MIN_SILOS} to {MAX_SILOS} are possible")
    if len(set(names)) != len(names) or in_order(names) != names:
        raise _refused(session, "the members are not each listed once and in order")
    if session.total.threshold > len(members):
        raise _refused(session, f"its {len(members)} members cannot reach the threshold of {session.total.threshold}")
    if trust.silo != session.silo or session.silo not in names:
        raise _refused(session, "it is not listed as a member")
    own = members[names.index(session.silo)]
    if (own.keys.seal_key, own.keys.mask_key) != (public_of(session.seal_key), public_of(session.mask_key)):
        raise _refused(session, "it is listed with other keys than its own")
    identities = {member.identity for member in members}
    keys = {key for member in members for key in (member.keys.seal_key, member.keys.mask_key)}
    if len(identities) != len(members) or len(keys) != 2 * len(members):
        raise _refused(session, "two members have the same identity or the same keys")
    for member in members:
        try:
            check_keys(session.total, member)
        except BadSignature:
            raise _refused(session, f"the keys of '{member.silo}' are not signed by its identity") from None


def _take_shares(session: SiloSession, given: tuple[SealedShare, ...], context: bytes) -> SiloSession:
    senders = tuple(item.silo for item in given)
    others = {member.silo for member in session.members} - {session.silo}
    if len(set(senders)) != len(senders) or not set(senders) <= others:
        raise _refused(session, "shares come twice from one silo, or from one that is not another member")
    taken = dataclasses.replace(session, given=given, context=context)
    check_survivors(_second(taken), trusted=session.trusted, threshold=session.total.threshold,
                    min_silos=session.min_silos)
    _opened(taken)
    return taken


def _check_survivors(session: SiloSession, survivors: tuple[str, ...]) -> None:
    if len(set(survivors)) != len(survivors) or in_order(survivors) != survivors:
        raise _refused(session, "survivors are not each listed once and in order")
    if session.silo not in survivors or not set(survivors) <= set(_second(session)):
        raise _refused(session, "survivors lack this silo, or name one that it has no shares of")
    check_survivors(survivors, trusted=session.trusted, threshold=session.total.threshold, min_silos=session.min_silos)


def _check_confirmations(session: SiloSession, request: UnmaskRequest) -> None:
    signers = [confirmation.silo for confirmation in request.confirmations]
    if len(set(signers)) != len(signers) or not set(signers) <= set(session.survivors):
        raise _refused(session, "a confirmation comes twice, or from a silo that is not a survivor")
    if len(signers) < session.total.threshold:
        raise _refused(session, f"{len(signers)} silos have signed the list of survivors, and the threshold is "
                                f"{session.total.threshold}")
    bound = _bound(session)
    for confirmation in request.confirmations:
        try:
            check_signed_survivors(session.total, bound, session.survivors, confirmation,
                                   _member(session, confirmation.silo).identity)
        except BadSignature:
            raise _refused(session, f"'{confirmation.silo}' has not signed this list of survivors") from None


# What the state says --------------------------------------------------------------------------------------------------


def _points(session: SiloSession) -> dict[str, int]:
    """Member -> the point of its shares: its place in the list, from 1."""
    return {member.silo: place for place, member in enumerate(session.members, start=1)}


def _member(session: SiloSession, silo: str) -> Member:
    return next(member for member in session.members if member.silo == silo)


def _second(session: SiloSession) -> tuple[str, ...]:
    """U2: the silos whose shares are here, in byte order."""
    return in_order([session.silo, *(item.silo for item in session.given)])


def _bound(session: SiloSession) -> bytes:
    assert session.context is not None
    return mask_context(session.total, session.members, session.context)


def _opened(session: SiloSession) -> dict[str, tuple[bytes, bytes]]:
    """Silo of U2 -> this silo's share of its mask key, and of its self mask's secret."""
    point, points = _points(session)[session.silo], tuple(_points(session).values())
    own = (split(session.mask_key, threshold=session.total.threshold, points=points,
                 coefficients=session.key_coefficients)[point],
           split(session.self_secret, threshold=session.total.threshold, points=points,
                 coefficients=session.self_coefficients)[point])
    opened = {session.silo: own}
    for item in session.given:
        try:
            plain = unseal(session.seal_key, _member(session, item.silo).keys.seal_key, session.total, sender=item.silo,
                           recipient=session.silo, sealed=item.sealed)
        except (BadShare, BadKey):
            plain = b""
        if len(plain) != 2 * SHARE_BYTES:
            raise _refused(session, f"the shares of '{item.silo}' cannot be opened", against=item.silo)
        opened[item.silo] = (plain[:SHARE_BYTES], plain[SHARE_BYTES:])
    return opened
