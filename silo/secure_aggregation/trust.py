"""Whom a silo takes for a silo, in a federation whose authority is the coordinator's.

The coordinator issues the certificates, so it can issue some for silos that it plays itself. A silo therefore pins the
identities of its peers, which their engineers have read to one another, and counts pinned silos only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from semisilo.common.errors import BadConfiguration, SecureSumRefused
from semisilo.common.secure_aggregation.messages import IDENTITY_BYTES, MIN_SILOS, Member
from semisilo.common.text.describe import counted

__all__ = ["Trust", "check_members", "check_pins", "check_survivors", "fingerprint", "parse_fingerprint",
           "short_number"]

_FINGERPRINT = "ed25519:"
_SHORT_NUMBER = b"semisilo short number v1\0"
_GROUPS, _DIGITS = 6, 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """What one silo knows of its peers."""

    silo: str
    """Its own name."""
    identity: bytes
    """Its own public key."""
    pinned: Mapping[str, bytes] = field(default_factory=dict)
    """Peers whose identities its engineer has compared: silo -> public key."""
    known: Mapping[str, bytes] = field(default_factory=dict)
    """Identities as first seen: silo -> public key. Another one later is refused."""
    require_pinned: bool = False
    """Whether pinned silos alone count even while none is pinned, so that no sum runs before somebody has compared."""
    min_silos: int = MIN_SILOS
    """The fewest trusted silos, itself included, whose updates a sum must hold."""

    def __post_init__(self) -> None:
        if self.min_silos < MIN_SILOS:
            raise ValueError(f"min_silos must be at least {MIN_SILOS}: of two silos, each would learn the other's "
                             "update.")
        for silo, identity in [(self.silo, self.identity), *self.pinned.items(), *self.known.items()]:
            if len(identity) != IDENTITY_BYTES:
                raise ValueError(f"The identity of '{silo}' has {len(identity)} bytes, not {IDENTITY_BYTES}.")
        if self.pinned.get(self.silo, self.identity) != self.identity:
            raise ValueError(f"'{self.silo}' is this silo itself, and is pinned with another identity than its own.")


def check_members(trust: Trust, members: Sequence[Member], threshold: int) -> tuple[str, ...]:
    """Whether a silo may share its secrets among these members.

    Of the n members, p are trusted and c = n - p may be the coordinator's own. Let t be the threshold. Refused unless

        2 (t - c) > p.

    What it is for: every trusted silo reveals, of each member, one kind of share, and it does so for one list of
    survivors that at least t members have signed. Names and keys of all members are in what is signed, so that the
    signers of a list have seen the same members. Which of them it trusts, each silo says for itself, and so protects
    its own secrets whatever others trust.

    - No two lists. A trusted silo signs one list a sum; the c may sign any number. A list with t signatures has at
      least t - c trusted signers, and two lists have none in common: two would need 2 (t - c) trusted silos, and there
      are p. So all that trusted silos reveal, they reveal for one list.
    - No both kinds. To get both secrets of one silo takes t shares of each; the c hold one of each, trusted silos give
      one or the other: again 2 (t - c) trusted silos, and there are p.
    - The c alone hold c shares of everything, and t > c follows from the bound.

    It is the paper's 2 t > n + c.

    If m trusted silos collude with the coordinator after all, they move from p to c: the sum is still safe while
    2 (t - c - m) > p - m, that is for m < 2 (t - c) - p.

    Trusted are: with pins, the silo itself and the members that it has pinned, all others being the coordinator's.
    Without any pin, and unless `require_pinned`, all members: trust on first use, which a coordinator that is hostile
    from the first day passes.

    Args:
        members: whose signatures were checked.
    Returns: the names of trusted members, in the order of `members`.
    Raises: SecureSumRefused, naming the silo whose identity is another than the pinned or the known one, as a complaint
        of it, or the bound.
    """
    for member in members:
        for what, identity in (("its own", trust.identity if member.silo == trust.silo else None),
                               ("the one that is pinned here", trust.pinned.get(member.silo)),
                               ("the one that was seen before", trust.known.get(member.silo))):
            if identity not in (None, member.identity):
                raise SecureSumRefused(
                    f"Silo '{member.silo}' is listed with the identity {short_number(member.identity)}, which is not "
                    f"{what}.", remedy="Ask that silo's engineer whether it has a new identity, and compare the "
                                       "numbers of 'silo peers' before you pin it.",
                    against="" if member.silo == trust.silo else member.silo)
    names = tuple(member.silo for member in members)
    trusted = tuple(name for name in names if name == trust.silo or name in trust.pinned) \
        if trust.pinned or trust.require_pinned else names
    untrusted = len(names) - len(trusted)
    if len(trusted) < trust.min_silos:
        raise SecureSumRefused(f"{len(trusted)} of the {len(names)} silos of the sum are {_kind(trust)}, and silo "
                               f"'{trust.silo}' requires {trust.min_silos}.",
                               remedy="Compare identities with more silos and pin them, or wait for more to take part.")
    if 2 * (threshold - untrusted) <= len(trusted):
        needed = untrusted + len(trusted) // 2 + 1
        raise SecureSumRefused(f"A threshold of {threshold} is too low for {len(names)} silos of which {untrusted} are "
                               f"not {_kind(trust)}: {needed} are needed.",
                               remedy="Raise [privacy] threshold, or pin more silos.")
    return trusted


def check_pins(pins: Collection[str], *, silo: str, require_pinned: bool, min_silos: int) -> None:
    """Whether enough silos can count in a sum, whoever takes part in it: that `check_members` refuses every sum for too
    few of them is known from silo.toml alone.

    Args:
        pins: silos that are pinned.
    Raises: SecureSumRefused.
    """
    count = len({*pins, silo})
    if (pins or require_pinned) and count < min_silos:
        raise SecureSumRefused(f"Only {counted(count, 'silo')} can count in a sum, this one and those in [peers] of"
                               f" silo.toml, and this silo requires {min_silos}: it refuses every sum.",
                               remedy="Compare identities with more silos, as `silo peers` shows them, and pin them.")


def check_survivors(silos: Sequence[str], *, trusted: Sequence[str], threshold: int, min_silos: int) -> None:
    """Whether the sum of these silos hides each of them: enough for the threshold, and enough of them trusted.

    What the coordinator's own silos contribute, it knows and takes away; so only trusted ones count for `min_silos`.

    Raises: SecureSumRefused.
    """
    if len(silos) < threshold:
        raise SecureSumRefused(f"{len(silos)} silos are left, and the threshold is {threshold}.")
    left = len(set(silos) & set(trusted))
    if left < min_silos:
        raise SecureSumRefused(f"{left} trusted silos are left, and {min_silos} are required.")


def short_number(identity: bytes) -> str:
    """A number that two engineers can read to each other: 6 groups of 5 digits, 30 digits or 99.6 bits.

    Each group is five bytes of a SHA-256 over the identity, modulo 100,000, as the numbers of Signal are made. Whoever
    wants another identity with the same number has to try 2**99 keys.
    """
    digest = hashlib.sha256(_SHORT_NUMBER + identity).digest()
    groups = (int.from_bytes(digest[5 * group:5 * group + 5]) % 10**_DIGITS for group in range(_GROUPS))
    return " ".join(f"{group:0{_DIGITS}d}" for group in groups)


def fingerprint(identity: bytes) -> str:
    """An identity as text for silo.toml: the public key itself, "ed25519:" and 64 hex digits."""
    return _FINGERPRINT + identity.hex()


def parse_fingerprint(text: str, *, where: str) -> bytes:
    """The identity of a text that `fingerprint` has made.

    Args:
        where: it stands, for the error.
    Raises: BadConfiguration.
    """
    try:
        identity = bytes.fromhex(text.removeprefix(_FINGERPRINT)) if text.startswith(_FINGERPRINT) else b""
    except ValueError:
        identity = b""
    digits = "".join(text.split())
    if len(digits) == _GROUPS * _DIGITS and digits.isascii() and digits.isdigit():
        raise BadConfiguration(f"{where}: '{text[:100]}' is not an identity, but the number to be read to each other.",
                               remedy=f'When it has been compared, put the line of \'silo peers\' there:'
                                      f' "{_FINGERPRINT}" and 64 hex digits.')
    if len(identity) != IDENTITY_BYTES or fingerprint(identity) != text:
        raise BadConfiguration(f"{where}: {text[:100]!r} is not an identity.",
                               remedy=f'Write "{_FINGERPRINT}" and 64 hex digits, as \'silo peers\' shows them.')
    return identity


def _kind(trust: Trust) -> str:
    return "pinned" if trust.pinned or trust.require_pinned else "there"
