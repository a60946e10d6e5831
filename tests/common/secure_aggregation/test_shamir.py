"""Shamir's sharing: polynomials computed by hand, an implementation of its own, and what is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadShare
from semisilo.common.secure_aggregation.messages import SHARE_BYTES
from semisilo.common.secure_aggregation.shamir import PRIME, combine, share_at, split
from tests.each_of import each_of

SECRET = bytes(range(32))
SEED = b"c" * 32


def as_share(value: int) -> bytes:
    return value.to_bytes(66, "big")


def as_secret(value: int) -> bytes:
    return value.to_bytes(32, "big")


def solved(points: dict[int, int], prime: int) -> int:
    """f(0) by Gaussian elimination on the Vandermonde matrix: no formula in common with Lagrange's."""
    rows = [[pow(x, power, prime) for power in range(len(points))] + [y] for x, y in points.items()]
    for column in range(len(rows)):
        pivot = next(row for row in rows[column:] if row[column])
        rows.remove(pivot)
        rows.insert(column, pivot)
        inverse = pow(pivot[column], prime - 2, prime)
        pivot[:] = [value * inverse % prime for value in pivot]
        for row in rows:
            if row is not pivot:
                factor = row[column]
                row[:] = [(value - factor * other) % prime for value, other in zip(row, pivot, strict=True)]
    return rows[0][-1]


def test_the_field_is_that_of_the_thirteenth_mersenne_prime() -> None:
    """2**521 - 1 is prime: Lucas and Lehmer's test, which is exact for Mersenne numbers."""
    value = 4
    for _ in range(521 - 2):
        value = (value * value - 2) % PRIME
    assert value == 0


def test_vectors_computed_by_hand() -> None:
    """f(x) = 1234 + 166 x + 94 x^2: f(1) = 1494, f(2) = 1942, f(3) = 2578, f(4) = 3402, f(5) = 4414, f(6) = 5614."""
    values = {1: 1494, 2: 1942, 3: 2578, 4: 3402, 5: 4414, 6: 5614}
    for chosen in itertools.combinations(values, 3):
        assert combine({x: as_share(values[x]) for x in chosen}, threshold=3) == as_secret(1234)
    assert share_at({2: as_share(1942), 4: as_share(3402), 5: as_share(4414)}, threshold=3, point=6) == as_share(5614)


def test_a_vector_that_wraps_around_the_prime() -> None:
    """f(x) = 7 - 10 x: f(1) = -3 and f(2) = -13, which are p - 3 and p - 13."""
    assert combine({1: as_share(PRIME - 3), 2: as_share(PRIME - 13)}, threshold=2) == as_secret(7)


def test_a_vector_of_the_product_s_own_polynomials_does_not_change() -> None:
    """Sessions that were kept by an older version must give the same shares. The value is checked by elimination."""
    shares = split(SECRET, threshold=3, points=range(1, 6), coefficients=SEED)
    assert solved({x: int.from_bytes(shares[x], "big") for x in (2, 3, 5)}, PRIME) == int.from_bytes(SECRET, "big")
    assert shares[1].hex() == FIRST_SHARE


FIRST_SHARE = ("0097f2fff5221ef205ac7f99d8b3dc7226638ca69a5e2edc3a2b3cc99491bf373b"
               "22a89415010a444769d5330866875f22cbc8ea7ba5f7ee083803daeebb975cadbf")


@settings(max_examples=30)
@given(secret=st.binary(min_size=32, max_size=32), seed=st.binary(min_size=32, max_size=32), data=st.data())
def test_any_threshold_of_the_shares_give_the_secret(secret: bytes, seed: bytes, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 32))
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, threshold=threshold, points=range(1, count + 1), coefficients=seed)
    chosen = data.draw(st.permutations(sorted(shares)))[:threshold]
    assert combine({x: shares[x] for x in chosen}, threshold=threshold) == secret
    assert solved({x: int.from_bytes(shares[x], "big") for x in chosen}, PRIME) == int.from_bytes(secret, "big")
    assert all(len(share) == SHARE_BYTES for share in shares.values())


def test_fewer_shares_fit_every_secret() -> None:
    """With threshold - 1 shares there is, for any secret, exactly one polynomial: so they tell nothing of the right
    one."""
    shares = split(SECRET, threshold=3, points=(1, 2, 3), coefficients=SEED)
    for other in (0, 1, 2**256 - 1):
        # The line of f(x) = other + a x + b x^2 through the two known shares, over the field.
        y1, y2 = (int.from_bytes(shares[x], "big") - other for x in (1, 2))
        b = (y2 - 2 * y1) * pow(2, -1, PRIME) % PRIME
        a = (y1 - b) % PRIME
        third = (other + 3 * a + 9 * b) % PRIME
        assert combine({1: shares[1], 2: shares[2], 3: as_share(third)}, threshold=3) == as_secret(other)


@pytest.mark.parametrize("threshold", [2, 3, 17, 32])
def test_one_share_fewer_than_the_threshold_gives_another_secret(threshold: int) -> None:
    """The polynomial has its full degree: its highest coefficient is not 0."""
    shares = split(SECRET, threshold=threshold, points=range(1, threshold + 1), coefficients=SEED)
    few = {x: int.from_bytes(shares[x], "big") for x in range(1, threshold)}
    assert solved(few, PRIME) != int.from_bytes(SECRET, "big")
    assert solved({x: int.from_bytes(value, "big") for x, value in shares.items()}, PRIME) \
        == int.from_bytes(SECRET, "big")


def test_a_repeat_gives_equal_shares_and_another_secret_another_polynomial() -> None:
    first = split(SECRET, threshold=2, points=(1, 2), coefficients=SEED)
    assert split(SECRET, threshold=2, points=(1, 2), coefficients=SEED) == first
    other = split(bytes(32), threshold=2, points=(1, 2), coefficients=SEED)
    slopes = [(int.from_bytes(shares[2], "big") - int.from_bytes(shares[1], "big")) % PRIME
              for shares in (first, other)]
    assert slopes[0] != slopes[1], "with one slope for both, the difference of two shares is that of the secrets"


def test_coefficients_are_spread_over_the_whole_field() -> None:
    """The mean of n uniform values is p / 2, give or take 5 / sqrt(12 n)."""
    values = [int.from_bytes(split(SECRET, threshold=2, points=(1, 2), coefficients=bytes([i // 256, i % 256]) * 16)[1],
                             "big") for i in range(500)]
    mean = Fraction(sum(values), len(values) * PRIME)
    assert abs(float(mean) - 0.5) < 5 / (12 * 500) ** 0.5


@each_of(("shares", "said"), [
    ({1: as_share(5)}, "1 shares are there, 2 are needed"),
    ({1: as_share(5), 2: as_share(5)[:-1]}, "expected 66 bytes"),
    ({1: as_share(5), 2: b"\0" + as_share(5)}, "expected 66 bytes"),
    ({0: as_share(5), 2: as_share(5)}, "expected 66 bytes at a point from 1 on"),
    ({1: as_share(5), 2: as_share(PRIME)}, "not below 2\\*\\*521 - 1"),
    ({1: b"\xff" * 66, 2: as_share(5)}, "not below"),
    ({1: as_share(0), 2: as_share(PRIME - 1)}, None),
    ({1: as_share(2**300), 2: as_share(2**300)}, "no secret of 256 bits"),
])
def test_shares_that_are_none_are_refused(shares: dict[int, bytes], said: str | None) -> None:
    if said is None:  # f(x) = 1 - x: the edge that is still right
        assert combine(shares, threshold=2) == as_secret(1)
        return
    with pytest.raises(BadShare, match=said):
        combine(shares, threshold=2)


@each_of("points", [(), (1,), (0, 1), (1, 1), (1, 2**16)])
def test_points_that_would_give_the_secret_away_or_collide_are_our_own_mistake(points: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Points"):
        split(SECRET, threshold=2, points=points, coefficients=SEED)


@each_of(("secret", "seed"), [(bytes(31), SEED), (bytes(33), SEED), (SECRET, b""), (SECRET, bytes(33))])
def test_secrets_of_another_size_are_our_own_mistake(secret: bytes, seed: bytes) -> None:
    with pytest.raises(ValueError, match="have 32 bytes each"):
        split(secret, threshold=2, points=(1, 2), coefficients=seed)
