"""The coordinator's part in a secure sum: whom it lists, what it passes on, which masks are left in the sum.

Nothing here can be trusted by a silo, and nothing has to be: what protects an update is checked by the silos. What is
checked here protects the sum from silos that answer wrong.

Source: Bonawitz et al., CCS 2017, figure 4, the server's side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from semisilo.common.errors import BadKey, BadShare, BadSignature, SecureSumFailed
from semisilo.common.secure_aggregation.keys import (
    agree,
    check_keys,
    check_survivors,
    commitment,
    mask_context,
    new_key,
    pair_seed,
    public_of,
    self_seed,
)
from semisilo.common.secure_aggregation.messages import (
    SHARE_BYTES,
    Confirmation,
    MaskSeed,
    Member,
    RoundKeys,
    SealedShare,
    SecureSum,
    Shares,
    UnmaskAnswer,
    in_order,
)
from semisilo.common.secure_aggregation.shamir import combine, share_at

__all__ = ["MAX_TRIES", "Unmasked", "check_confirmation", "deliveries", "list_members", "unmasking"]

MAX_TRIES = 1000
"""Sets of shares that are tried in vain for one sum, a fraction of a millisecond each. All that leave out two or fewer
of 32 are 529."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmasked:
    """How the masks leave a sum."""

    seeds: tuple[MaskSeed, ...]
    """To be added to the sum of the survivors' words, with their signs."""
    wrong: Mapping[str, tuple[str, ...]]
    """Silo that has answered with a share that is wrong, or without one that was asked for -> whose secrets these are
    of. Both in byte order. A wrong share may also be the fault of the one whose secret it is of, who has dealt it
    so."""


def list_members(total: SecureSum, answers: Mapping[str, RoundKeys],
                 identities: Mapping[str, bytes]) -> tuple[Member, ...]:
    """U1: the silos whose keys are signed by the identity that they are known by, in byte order of names.

    A silo that is in `answers` and not in the result has no identity here, a bad signature, or a key that another silo
    has as well (then both are left out: every silo would refuse the list).
    """
    probe = new_key()
    members = []
    for silo in in_order(tuple(answers)):
        member = Member(silo=silo, identity=identities.get(silo, b""), keys=answers[silo])
        try:
            check_keys(total, member)
            agree(probe, member.keys.seal_key)
            agree(probe, member.keys.mask_key)
        except (BadKey, BadSignature):
            continue
        members.append(member)
    seen = [value for member in members for value in (member.identity, member.keys.seal_key, member.keys.mask_key)]
    return tuple(member for member in members
                 if all(seen.count(value) == 1
                        for value in (member.identity, member.keys.seal_key, member.keys.mask_key)))


def deliveries(shares: Mapping[str, Shares]) -> dict[str, tuple[SealedShare, ...]]:
    """What each silo of U2 is given: the shares that the others of U2 have sealed for it, in byte order of senders.

    Args:
        shares: silo of U2 -> what it has handed in.
    """
    given: dict[str, list[SealedShare]] = {silo: [] for silo in in_order(tuple(shares))}
    for sender in in_order(tuple(shares)):
        for item in shares[sender].sealed:
            if item.silo in given and item.silo != sender:
                given[item.silo].append(SealedShare(silo=sender, sealed=item.sealed))
    return {silo: tuple(items) for silo, items in given.items()}


def check_confirmation(total: SecureSum, *, context: bytes, members: Sequence[Member], survivors: Sequence[str],
                       confirmation: Confirmation) -> None:
    """Whether a silo has signed this list: one wrong signature among the confirmations, and every silo refuses.

    Raises: BadSignature, naming the silo.
    """
    identity = next((member.identity for member in members if member.silo == confirmation.silo), b"")
    check_survivors(total, mask_context(total, members, context), survivors, confirmation, identity)


def unmasking(total: SecureSum, *, context: bytes, members: Sequence[Member], shares: Mapping[str, Shares],
              survivors: Sequence[str], answers: Mapping[str, UnmaskAnswer]) -> Unmasked:
    """The masks that are left in the sum of the survivors' words, to be taken away.

    These are the self mask of each survivor, and the masks between each survivor and each silo that dropped out after
    it had handed in its shares. Their secrets are put together from the answers' shares and compared with what their
    owners have published. Where that fails, other sets of shares are tried, at most MAX_TRIES in all; any two silos
    that lie are got around. (A silo whose published key or commitment does not fit its own shares cannot be told from
    too many liars; it is named, and the sum fails.)

    Args:
        context: as the silos were given it.
        members: U1.
        shares: silo of U2 -> what it has handed in.
        survivors: U3.
        answers: silo of U5 -> its answer. It is looked at here only.
    Raises: SecureSumFailed when a secret cannot be put together.
    """
    points = {member.silo: place for place, member in enumerate(members, start=1)}
    by_name = {member.silo: member for member in members}
    bound = mask_context(total, members, context)
    second, left = in_order(tuple(shares)), in_order(tuple(survivors))
    dropped = [silo for silo in second if silo not in left]
    collector = _Collector(total.threshold, points)
    seeds = []
    for silo in left:
        published = shares[silo].commitment
        given = {holder: _only(answer.self_shares, silo) for holder, answer in answers.items()}
        secret = collector.secret(silo, "self mask", given, published, commitment)
        seeds.append(MaskSeed(seed=self_seed(secret, context=bound), sign=-1))
    for silo in dropped:
        published = by_name[silo].keys.mask_key
        given = {holder: _only(answer.key_shares, silo) for holder, answer in answers.items()}
        secret = collector.secret(silo, "mask key", given, published, public_of)
        for survivor in left:
            seed = pair_seed(secret, by_name[survivor].keys.mask_key, context=bound)
            # The survivor has added it if it comes first, and taken it away otherwise; the other way round here.
            seeds.append(MaskSeed(seed=seed, sign=-1 if survivor.encode() < silo.encode() else 1))
    return Unmasked(seeds=tuple(seeds), wrong={holder: in_order(tuple(collector.wrong[holder]))
                                               for holder in in_order(tuple(collector.wrong))})


def _only(given: Sequence[tuple[str, bytes]], owner: str) -> bytes:
    """The share of a secret of `owner`; empty where there is none, or two."""
    found = [value for silo, value in given if silo == owner]
    return found[0] if len(found) == 1 else b""


class _Collector:
    """Puts secrets together, and remembers who has lied: their shares are left out of the next ones first."""

    def __init__(self, threshold: int, points: Mapping[str, int]) -> None:
        self.wrong: dict[str, set[str]] = {}
        """Who has sent wrong shares -> whose secrets they are of."""
        self._threshold = threshold
        self._tries_left = MAX_TRIES
        self._points = points
        self._names = {point: silo for silo, point in points.items()}

    def secret(self, owner: str, what: str, given: Mapping[str, bytes], published: bytes,
               publish: Callable[[bytes], bytes]) -> bytes:
        """The secret of `owner` of which `publish` makes what it has published.

        Raises: SecureSumFailed.
        """
        sized = {self._points[holder]: value for holder, value in given.items()
                 if holder in self._points and len(value) == SHARE_BYTES}
        self._note([holder for holder in given if self._points.get(holder) not in sized], owner)
        if len(sized) < self._threshold:
            raise SecureSumFailed(f"{len(sized)} shares of the {what} of '{owner}' have come back, and "
                                  f"{self._threshold} are needed.")
        secret = None
        fitting: list[set[int]] = []  # of each polynomial that was looked at: the points whose shares lie on it
        for chosen in self._sets(sized):
            # A dealer can have a thousand sets lie on one polynomial: each is looked at once.
            if not any(chosen.keys() <= points for points in fitting):
                try:
                    candidate = combine(chosen, threshold=self._threshold)
                except BadShare:
                    candidate = b""
                if candidate and publish(candidate) == published:
                    secret = candidate
                    # Liars can also make up shares that give the right secret and another polynomial, which honest
                    # shares do not fit. Two polynomials that agree at 0 agree at threshold - 2 points at most: so this
                    # is the right one if those that do not fit it are too few to be all the honest ones but
                    # threshold - 2.
                    odd = self._odd(sized, chosen)
                    if 2 * len(odd) < len(sized) - self._threshold + 2:
                        self._note(odd, owner)
                        return secret
                    fitting.append({point for point in sized if self._names[point] not in odd})
            if not self._tries_left:
                break
            self._tries_left -= 1
        if secret is not None:
            return secret  # the sum is right; who has lied cannot be told from who is framed
        raise SecureSumFailed(f"No {self._threshold} of the {len(sized)} shares of the {what} of '{owner}' give what "
                              "it has published: it has dealt wrong shares, or several silos lie.", against=owner)

    def _note(self, holders: Collection[str], owner: str) -> None:
        for holder in holders:
            self.wrong.setdefault(holder, set()).add(owner)

    def _sets(self, shares: Mapping[int, bytes]) -> Iterator[dict[int, bytes]]:
        """Sets of `threshold` shares, the likeliest first: without known liars, then without one more share, then
        two."""
        trusted = sorted(point for point in shares if self._names[point] not in self.wrong)
        suspects = sorted(set(shares) - set(trusted))
        order = [*trusted, *suspects]
        for without in range(len(order) - self._threshold + 1):
            seen: set[tuple[int, ...]] = set()
            for left_out in itertools.combinations(order, without):
                kept = tuple(point for point in order if point not in left_out)[:self._threshold]
                if kept not in seen:
                    seen.add(kept)
                    yield {point: shares[point] for point in kept}

    def _odd(self, shares: Mapping[int, bytes], chosen: Mapping[int, bytes]) -> set[str]:
        """The silos whose shares do not lie on the polynomial of the chosen ones."""
        return {self._names[point] for point, value in shares.items()
                if point not in chosen and value != share_at(chosen, threshold=self._threshold, point=point)}
