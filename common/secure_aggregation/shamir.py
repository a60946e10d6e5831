"""Shamir's secret sharing over a prime field: any `threshold` of the shares give the secret, fewer tell nothing of it.

The only primitive of secure aggregation that `cryptography` does not have. A share is the value of a polynomial of
degree threshold - 1 at its point, modulo p = 2**521 - 1, a Mersenne prime that a secret of 256 bits fits in with room
to spare. Python's integers take a time that depends on their values; whoever could measure it stands on the machine
that holds the secrets anyway.

Source: Shamir, How to share a secret, CACM 1979.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from semisilo.common.errors import BadShare
from semisilo.common.secure_aggregation.messages import SHARE_BYTES

__all__ = ["PRIME", "SECRET_BYTES", "combine", "share_at", "split"]

PRIME = 2**521 - 1
SECRET_BYTES = 32
_PURPOSE = b"semisilo secure aggregation polynomial v1\0"


def split(secret: bytes, *, threshold: int, points: Sequence[int], coefficients: bytes) -> dict[int, bytes]:
    """The shares of a secret, by point.

    Args:
        secret: SECRET_BYTES.
        threshold: shares that are needed to get it back; at least 1, at most as many as there are points.
        points: distinct, each from 1 to 65535; the secret itself is the value at 0.
        coefficients: 32 secret bytes that the other coefficients are drawn from, so that a repeat gives equal shares.
            They are drawn from the secret as well: two secrets never share a polynomial, even under equal bytes.
    Returns: point -> SHARE_BYTES.
    Raises: ValueError when an argument is none of this: our own mistake, never a stranger's.
    """
    if len(secret) != SECRET_BYTES or len(coefficients) != SECRET_BYTES:
        raise ValueError("A secret and the seed of its polynomial have 32 bytes each.")
    if not 1 <= threshold <= len(points) or len(set(points)) != len(points) \
            or not all(1 <= point < 2**16 for point in points):
        raise ValueError("Points are distinct, from 1 on, and no fewer than the threshold.")
    draw = _uniform(secret, coefficients, threshold)
    polynomial = [int.from_bytes(secret), *(next(draw) for _ in range(threshold - 1))]
    return {point: _value(polynomial, point).to_bytes(SHARE_BYTES) for point in points}


def combine(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """The secret, from the shares of the `threshold` lowest points.

    A wrong share gives a wrong secret, and mostly none at all: whoever combines compares with what the owner has
    published.

    Args:
        shares: point -> SHARE_BYTES.
    Returns: SECRET_BYTES.
    Raises: BadShare for fewer shares than `threshold`, a point or a size that no share has, a value that is not below
        p, or a result of more than 256 bits.
    """
    value = _interpolate(_lowest(shares, threshold), 0)
    if value >= 1 << 8 * SECRET_BYTES:
        raise BadShare("The shares do not belong together: they give no secret of 256 bits.")
    return value.to_bytes(SECRET_BYTES)


def share_at(shares: Mapping[int, bytes], *, threshold: int, point: int) -> bytes:
    """The share that belongs to `point`, from the shares of the `threshold` lowest points: SHARE_BYTES.

    Raises: BadShare, as `combine` does.
    """
    return _interpolate(_lowest(shares, threshold), point).to_bytes(SHARE_BYTES)


def _lowest(shares: Mapping[int, bytes], threshold: int) -> dict[int, int]:
    if threshold < 1 or len(shares) < threshold:
        raise BadShare(f"{len(shares)} shares are there, {threshold} are needed.")
    values: dict[int, int] = {}
    for point in sorted(shares)[:threshold]:
        if not 1 <= point < 2**16 or len(shares[point]) != SHARE_BYTES:
            raise BadShare(f"Share {point}: expected {SHARE_BYTES} bytes at a point from 1 on, "
                           f"found {len(shares[point])} bytes.")
        values[point] = int.from_bytes(shares[point])
        if values[point] >= PRIME:
            raise BadShare(f"Share {point}: its value is not below 2**521 - 1.")
    return values


def _value(polynomial: Sequence[int], point: int) -> int:
    """By Horner's rule; `polynomial` has the lowest coefficient first."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def _interpolate(values: Mapping[int, int], at: int) -> int:
    """The value at `at` of the polynomial of lowest degree through all points (Lagrange)."""
    total = 0
    for point, value in values.items():
        above = below = 1
        for other in values:
            if other != point:
                above = above * (at - other) % PRIME
                below = below * (point - other) % PRIME
        total += value * above * pow(below, -1, PRIME)
    return total % PRIME


def _uniform(secret: bytes, coefficients: bytes, threshold: int) -> Iterator[int]:
    """Integers that are uniform below p: 521 bits each; the one value of them that is p is drawn again."""
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=coefficients,
               info=_PURPOSE + threshold.to_bytes(2)).derive(secret)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    while True:
        value = int.from_bytes(stream.update(bytes(SHARE_BYTES))) & PRIME
        if value != PRIME:
            yield value
