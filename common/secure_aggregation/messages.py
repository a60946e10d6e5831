"""What silos and coordinator say to one another in a secure sum, and what is signed of it.

A secure sum has five steps. In each the coordinator asks silos, and goes on with those that have answered:

    keys      a silo's public keys for this sum, signed by the key that its peers know it by          U1: who answered
    shares    Shamir shares of its two secrets, each sealed for one other silo                        U2
    mask      its masked words: the tensors of the update, and its weight                             U3
    confirm   its signature under the list U3                                                         U4
    unmask    of each silo of U3 a share of its self mask; of each of U2 without U3 one of its mask key

Source: Bonawitz et al., CCS 2017, the protocol of figure 4 (active adversaries), over a complete graph.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from semisilo.common.config import canonical_json
from semisilo.common.methods.contract import SumStep
from semisilo.common.methods.parts.secure_sum import MASKED_GROUP, MAX_SILOS, MIN_SILOS

__all__ = ["IDENTITY_BYTES", "KEY_BYTES", "MASKED_GROUP", "MAX_SILOS", "MIN_SILOS", "NONCE_BYTES",
           "SEALED_SHARES_BYTES", "SEAL_OVERHEAD_BYTES", "SEED_BYTES", "SHARE_BYTES", "SIGNATURE_BYTES", "STEPS",
           "Confirmation", "MaskSeed", "Member", "RoundKeys", "SealedShare", "SecureSum", "Shares", "UnmaskAnswer",
           "UnmaskRequest", "in_order"]

STEPS: tuple[SumStep, ...] = ("keys", "shares", "mask", "confirm", "unmask")
"""In order."""
KEY_BYTES = 32
"""X25519 and Ed25519 public keys."""
IDENTITY_BYTES = KEY_BYTES
SIGNATURE_BYTES = 64
NONCE_BYTES = 16
SEED_BYTES = 32
SHARE_BYTES = 66
"""Of a share of a secret: 521 bits, big-endian."""
SEAL_OVERHEAD_BYTES = 16
"""What a sealed text has beyond the plain one: the tag of Poly1305."""
SEALED_SHARES_BYTES = 2 * SHARE_BYTES + SEAL_OVERHEAD_BYTES
"""Of what one silo seals for another: a share of each of its secrets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SecureSum:
    """Names one sum for all who take part in it; goes into every signature, seal and mask."""

    federation: str
    study: str
    round: int
    phase: str
    """The phase of the method whose updates are added up."""
    nonce: bytes
    """Drawn by the coordinator when it opens the sum; NONCE_BYTES."""
    threshold: int
    """How many silos are needed to unmask."""

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest_of(self)


@functools.lru_cache(maxsize=256)
def _digest_of(total: SecureSum) -> bytes:
    """Kept: it goes into every signature, seal and mask of the sum."""
    return hashlib.sha256(b"semisilo secure sum v1\0" + canonical_json({
        "federation": total.federation, "study": total.study, "round": total.round, "phase": total.phase,
        "nonce": total.nonce.hex(), "threshold": total.threshold}).encode()).digest()


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundKeys:
    """A silo's public keys for one sum."""

    seal_key: bytes
    """X25519: shares are sealed for it."""
    mask_key: bytes
    """X25519: masks are agreed on with it."""
    signature: bytes
    """Ed25519 by the silo's identity, over the sum, the silo's name and both keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A silo of U1, as the coordinator lists it."""

    silo: str
    identity: bytes
    """Ed25519 public key that its peers know it by."""
    keys: RoundKeys


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedShare:
    """Two shares, of the mask key and of the self mask, for one silo alone."""

    silo: str
    """Of shares that a silo hands in: whom they are for. Of those that it is given: whom they are from."""
    sealed: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """What a silo answers in the second step."""

    sealed: tuple[SealedShare, ...]
    """One for every other member, in byte order of names."""
    commitment: bytes
    """SHA-256 of the self mask's secret: a wrong share is found, and whose it is. 32 bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """A silo's signature under the list of survivors."""

    silo: str
    signature: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmaskRequest:
    """The last step's question."""

    survivors: tuple[str, ...]
    """U3, in byte order of names."""
    confirmations: tuple[Confirmation, ...]
    """Of at least `threshold` silos of U3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmaskAnswer:
    """What one silo reveals."""

    self_shares: tuple[tuple[str, bytes], ...]
    """(silo of U3, this silo's share of its self mask's secret), in byte order of names."""
    key_shares: tuple[tuple[str, bytes], ...]
    """(silo of U2 without U3, this silo's share of its private mask key)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSeed:
    """A mask to be added to the words, or taken away."""

    seed: bytes
    """SEED_BYTES; used for one vector and never again."""
    sign: int
    """1 or -1."""


def in_order(silos: Sequence[str]) -> tuple[str, ...]:
    """In byte order of names, the order of all lists here."""
    return tuple(sorted(silos, key=str.encode))
