"""Which elements carry a value: the forms, their sizes against the entropy, and streams that no encoder wrote."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec import BLOCK_ELEMENTS, Aim, IndexEncoding, Plan
from semisilo.common.payload.codec.positions import COMPLEMENT, Mask, decode_positions, encode_mask, positions_of
from semisilo.common.payload.codec.zstd import compress
from tests.common.codec_samples import FLOAT32, entropy_bytes, sparse_floats, there_and_back
from tests.each_of import each_of

SMALLEST = Plan(aim=Aim.SMALLEST)
BITMASK, ZSTD_BITMASK, GAPS, RICE, CLASSES = (
    IndexEncoding.BITMASK, IndexEncoding.ZSTD_BITMASK, IndexEncoding.ZSTD_GAPS, IndexEncoding.RICE,
    IndexEncoding.CLASSES)


def encoded(mask: Mask, compact: bool = True) -> tuple[IndexEncoding, bool, bytes]:
    tag, data = encode_mask(mask, positions_of(mask), compact=compact)
    return IndexEncoding(tag & ~COMPLEMENT), bool(tag & COMPLEMENT), data


def with_length(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "little") + frame


def gap_stream(gaps: Iterable[int]) -> bytes:
    return b"".join(bytes([255] * (gap // 255) + [gap % 255]) for gap in gaps)


def rice_bytes(gaps: NDArray[np.int64], shift: int) -> int:
    return 1 + shift * -(-len(gaps) // 8) + -(-int((gaps >> shift).sum() + len(gaps)) // 8)


def class_stream(gaps: Iterable[int]) -> bytes:
    """The layout of CLASSES, bit by bit."""
    classes, bits = [], []
    for number in (gap + 4 for gap in gaps):
        below = number.bit_length() - 3
        classes.append(4 * below + (number >> below) - 4)
        bits += [number >> bit & 1 for bit in range(below)]
    return with_length(compress(bytes(classes))) + np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()


def decoded(encoding: IndexEncoding, data: bytes, n: int, with_value: int, complement: bool = False) -> list[int]:
    positions = decode_positions(encoding, complement, memoryview(data), n, with_value)
    assert isinstance(positions, np.ndarray)
    found: list[int] = positions.tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("density", "limit"), [
    (0.99, 1.02), (0.9, 1.02), (0.7, 1.02), (0.5, 1.02), (0.4, 1.02), (0.3, 1.02), (0.2, 1.02), (0.1, 1.02),
    (0.05, 1.02), (0.02, 1.02), (0.01, 1.02), (0.003, 1.02), (0.001, 1.03)])
def test_positions_without_structure_take_hardly_more_than_their_entropy(density: float, limit: float) -> None:
    values = sparse_floats(BLOCK_ELEMENTS, density, seed=3)
    trip = there_and_back(values.view("<u4"), FLOAT32, SMALLEST)
    assert np.array_equal(trip.bits, values.view("<u4"))
    assert trip.index_bytes <= limit * entropy_bytes(BLOCK_ELEMENTS, np.count_nonzero(values) / BLOCK_ELEMENTS)


@pytest.mark.parametrize("density", [0.3, 0.2, 0.1, 0.05, 0.01])
def test_clustered_positions_take_less_than_the_entropy_of_unstructured_ones(density: float) -> None:
    values = sparse_floats(BLOCK_ELEMENTS, density, seed=3, clustered=True)
    trip = there_and_back(values.view("<u4"), FLOAT32, SMALLEST)
    assert np.array_equal(trip.bits, values.view("<u4"))
    assert trip.index_bytes < 0.85 * entropy_bytes(BLOCK_ELEMENTS, np.count_nonzero(values) / BLOCK_ELEMENTS)


@each_of(("density", "form", "complement"), [
    (0.001, RICE, False), (0.01, RICE, False), (0.1, GAPS, False), (0.4, ZSTD_BITMASK, False), (0.5, BITMASK, False),
    (0.6, ZSTD_BITMASK, False), (0.9, GAPS, True), (0.99, RICE, True)])
def test_the_smallest_form_is_found_by_itself(density: float, form: IndexEncoding, complement: bool) -> None:
    mask = np.random.default_rng(0).random(2**18) < density
    assert encoded(mask)[:2] == (form, complement)
    assert encoded(mask, compact=False)[:2] == (BITMASK, False)


@pytest.mark.slow
@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("density", [0.05, 0.02, 0.005])
def test_few_clustered_positions_are_listed_by_class_in_less_than_any_other_form(density: float,
                                                                                 complement: bool) -> None:
    mask = (sparse_floats(BLOCK_ELEMENTS, density, seed=3, clustered=True) != 0) ^ complement
    form, is_complement, data = encoded(mask)
    assert (form, is_complement) == (CLASSES, complement)
    count = int(np.count_nonzero(mask))
    assert decoded(form, data, len(mask), count, complement) == np.flatnonzero(mask).tolist()
    gaps = np.diff(np.flatnonzero(mask ^ complement), prepend=-1) - 1
    assert data == class_stream(gaps.tolist())
    assert len(data) < 0.99 * len(compress(gap_stream(gaps.tolist())))
    assert len(data) < 0.99 * min(rice_bytes(gaps, shift) for shift in range(12))


@each_of(("elements", "density", "run"), [
    (400, 0.1, 1), (400, 0.26, 1), (400, 0.35, 1), (2**14, 0.35, 1), (2**14, 0.26, 8), (2**14, 0.4, 8),
    (2**18, 0.26, 30), (2**18, 0.4, 30)])
def test_the_rarer_kind_of_elements_is_listed(elements: int, density: float, run: int) -> None:
    """Below one half those with a value, above it those without, in the very same bytes."""
    mask = np.repeat(np.random.default_rng(3).random(-(-elements // run)) < density, run)[:elements]
    form, complement, data = encoded(mask)
    assert form.lists, form
    assert not complement
    assert encoded(~mask) == (form, True, data)


def test_positions_at_one_distance_are_listed_by_their_gaps() -> None:
    mask = np.zeros(2**18, dtype=np.bool_)
    mask[::100] = True
    form, _, data = encoded(mask)
    assert form is GAPS
    assert len(data) < 100


@settings(max_examples=200)
@given(n=st.integers(2, 3000), density=st.floats(0, 1), run=st.sampled_from([1, 5, 700]), compact=st.booleans(),
       seed=st.integers(0, 2**32 - 1))
def test_any_mask_comes_back_in_at_most_the_bytes_of_a_bitmask(n: int, density: float, run: int, compact: bool,
                                                               seed: int) -> None:
    mask = np.repeat(np.random.default_rng(seed).random(-(-n // run)) < density, run)[:n]
    mask[0], mask[-1] = True, False
    encoding, complement, data = encoded(mask, compact)
    assert len(data) <= -(-n // 8)
    count = int(np.count_nonzero(mask))
    assert decoded(encoding, data, n, count, complement) == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("far", [True, False])
def test_a_gap_across_the_whole_block_does_not_explode(far: bool) -> None:
    """One remainder length serves near and far positions; the unary part could have grown with n."""
    mask = np.zeros(BLOCK_ELEMENTS, dtype=np.bool_)
    mask[:1000] = True
    mask[-1] = far
    encoding, complement, data = encoded(mask)
    count = int(mask.sum())
    assert len(data) < 1000
    assert decoded(encoding, data, len(mask), count, complement) == np.flatnonzero(mask).tolist()


@pytest.mark.slow
def test_one_position_anywhere_in_a_block_takes_few_bytes() -> None:
    for position in (0, 1, 254, 255, 256, 12_345, BLOCK_ELEMENTS - 1):
        for complement in (False, True):
            mask = np.full(BLOCK_ELEMENTS, complement)
            mask[position] = not complement
            encoding, is_complement, data = encoded(mask)
            assert is_complement == complement
            assert len(data) <= 24
            assert decoded(encoding, data, len(mask), int(mask.sum()), complement) == np.flatnonzero(mask).tolist()


def test_gaps_around_255_come_back() -> None:
    for gap in (253, 254, 255, 256, 509, 510, 511, 512):
        positions = [gap, 2 * gap + 1, 3 * gap + 2]
        assert decoded(GAPS, compress(gap_stream([gap] * 3)), 2000, 3) == positions


def test_classes_of_any_gap_come_back() -> None:
    """One and two gaps of every size near a power of two, where a class begins or ends, and the largest."""
    near = {gap for power in range(21) for gap in range(2**power - 6, 2**power + 7) if 0 <= gap < BLOCK_ELEMENTS}
    for gap in sorted(near):
        assert decoded(CLASSES, class_stream([gap]), BLOCK_ELEMENTS, 1) == [gap]
        assert decoded(CLASSES, class_stream([3, gap, 0]), gap + 6, 3) == [3, gap + 4, gap + 5]


def test_the_forms_are_as_documented() -> None:
    assert decoded(BITMASK, bytes([0b1010_0000, 0b0100_0000]), 10, 3) == [0, 2, 9]
    assert decoded(ZSTD_BITMASK, compress(bytes([0b1010_0000, 0b0100_0000])), 10, 3) == [0, 2, 9]
    assert decoded(GAPS, compress(bytes([0, 1, 6])), 10, 3) == [0, 2, 9]
    # k = 1: gaps 0, 1, 6 have remainders 0, 1, 0 and quotients 0, 0, 3.
    assert decoded(RICE, bytes([1, 0b0100_0000, 0b1100_0100]), 10, 3) == [0, 2, 9]
    assert decoded(RICE, bytes([1, 0b0100_0000, 0b1100_0100]), 10, 7, complement=True) == [1, 3, 4, 5, 6, 7, 8]
    # 0, 1, 6 with 4 added are 0b100, 0b101, 0b101_0: classes 0, 1 and 4 + 1, the last with a low bit that is 0.
    assert decoded(CLASSES, with_length(compress(bytes([0, 1, 5]))) + b"\0", 10, 3) == [0, 2, 9]
    assert decoded(CLASSES, with_length(compress(bytes([0, 1, 5]))) + b"\1", 11, 3) == [0, 2, 10]


@each_of(("encoding", "data"), [
    (BITMASK, b""),
    (BITMASK, bytes([0b1010_0000])),
    (BITMASK, bytes([0b1010_0000, 0b0100_0000, 0])),
    (BITMASK, bytes([0b1010_0000, 0])),  # two positions
    (BITMASK, bytes([0b1010_0000, 0b1100_0000])),  # four
    (BITMASK, bytes([0b1010_0000, 0b0010_0000])),  # position 10 of 10
    (ZSTD_BITMASK, b""),
    (ZSTD_BITMASK, bytes([0b1010_0000, 0b0100_0000])),
    (ZSTD_BITMASK, compress(bytes([0b1010_0000]))),
    (ZSTD_BITMASK, compress(bytes([0b1010_0000, 0]))),
    (ZSTD_BITMASK, compress(bytes([0b1010_0000, 0b0100_0000])) + b"\0"),
    (GAPS, b""),
    (GAPS, bytes([0, 1, 6])),
    (GAPS, compress(b"")),
    (GAPS, compress(bytes([0, 1]))),
    (GAPS, compress(bytes([0, 1, 6, 0]))),
    (GAPS, compress(bytes([0, 1, 7]))),  # position 10 of 10
    (GAPS, compress(bytes([0, 1, 255]))),  # ends with a skip
    (GAPS, compress(bytes([255, 0, 1, 6]))),
    (GAPS, compress(bytes(10**6))),
    (GAPS, compress(bytes([0, 1, 6])) + b"\0"),
    (RICE, b""),
    (RICE, bytes([1])),
    (RICE, bytes([1, 0b0100_0000])),
    (RICE, bytes([21, *bytes(21), 0b1110_0000])),  # no gap has 21 bits
    (RICE, bytes([255, 0b0100_0000, 0b1100_0100])),
    (RICE, bytes([1, 0b0100_0000, 0b1100_0000])),  # two ones
    (RICE, bytes([1, 0b0100_0000, 0b1100_0110])),  # four ones
    (RICE, bytes([1, 0b0100_0000, 0b1100_0010])),  # quotient 4: beyond the end
    (RICE, bytes([1, 0b1100_0000, 0b1100_0100])),  # remainder 1 more: beyond the end
    (RICE, bytes([0, 0b1110_0000, 0])),  # a byte behind the last one
    (RICE, bytes([0, *bytes(10), 0b1110_0000])),  # more unary bits than elements
    (CLASSES, b""),
    (CLASSES, bytes(3)),
    (CLASSES, bytes(4)),
    (CLASSES, bytes(5)),
    (CLASSES, with_length(bytes([0, 1, 5])) + b"\0"),
    (CLASSES, with_length(compress(b"")) + b"\0"),
    (CLASSES, with_length(compress(bytes([0, 1]))) + b"\0"),
    (CLASSES, with_length(compress(bytes([0, 1, 5, 0]))) + b"\0"),
    (CLASSES, with_length(compress(bytes(10**6)))),
    (CLASSES, with_length(compress(bytes([0, 1, 5])))),  # no low bits
    (CLASSES, with_length(compress(bytes([0, 1, 5]))) + bytes(2)),  # too many
    (CLASSES, with_length(compress(bytes([0, 1, 2]))) + bytes(1)),  # some where none belong
    (CLASSES, with_length(compress(bytes([0, 1, 5]))) + b"\1"),  # position 10 of 10
    (CLASSES, with_length(compress(bytes([0, 1, 6]))) + b"\0"),  # 11
    (CLASSES, with_length(compress(bytes([0, 1, 75]))) + bytes(3)),  # the largest class
    (CLASSES, with_length(compress(bytes([0, 1, 76]))) + bytes(3)),  # no gap has that
    (CLASSES, with_length(compress(bytes([0, 1, 255]))) + bytes(8)),
    (CLASSES, with_length(compress(bytes([0, 1, 5])) + b"\0")),
    (CLASSES, (2**32 - 1).to_bytes(4, "little") + compress(bytes([0, 1, 5])) + b"\0"),
])
def test_streams_that_do_not_list_three_of_ten_positions_are_refused(encoding: IndexEncoding, data: bytes) -> None:
    with pytest.raises(BadPayload):
        decoded(encoding, data, 10, 3)
    if encoding.lists:
        with pytest.raises(BadPayload):
            decoded(encoding, data, 10, 7, complement=True)


def test_complements_of_impossible_counts_are_refused() -> None:
    for encoding, data in ((GAPS, compress(b"")), (RICE, bytes([0])), (RICE, b""), (CLASSES, bytes(4)),
                           (CLASSES, with_length(compress(b"")))):
        with pytest.raises(BadPayload):
            decoded(encoding, data, 10, 10, complement=True)  # nothing is listed: no encoder writes that
    with pytest.raises(BadPayload):
        decoded(GAPS, compress(bytes([0, 1, 6])), 10, 8, complement=True)


@pytest.mark.slow
@settings(max_examples=500)
@given(encoding=st.sampled_from([BITMASK, ZSTD_BITMASK, GAPS, RICE, CLASSES]), data=st.binary(max_size=30),
       wrap=st.booleans(), n=st.integers(1, 200), count=st.integers(0, 200), complement=st.booleans())
def test_whatever_is_decoded_is_increasing_in_range_and_of_the_right_number(
        encoding: IndexEncoding, data: bytes, wrap: bool, n: int, count: int, complement: bool) -> None:
    try:
        positions = decoded(encoding, compress(data) if wrap else data, n, min(n, count),
                            complement and encoding.lists)
    except BadPayload:
        return
    assert len(positions) == min(n, count)
    assert positions == sorted(set(positions))
    assert all(0 <= position < n for position in positions)


@settings(max_examples=300)
@given(classes=st.binary(min_size=1, max_size=40), low=st.binary(max_size=40), n=st.integers(1, 3000),
       exact=st.booleans())
def test_whatever_classes_are_listed_is_increasing_and_in_range_or_refused(classes: bytes, low: bytes, n: int,
                                                                           exact: bool) -> None:
    known = bytes(number % 24 for number in classes)
    bits = sum(number >> 2 for number in known)
    low = (low + bytes(100))[:-(-bits // 8)] if exact else low
    try:
        listed = decoded(CLASSES, with_length(compress(known)) + low, n, len(known))
    except BadPayload:
        return
    assert len(low) == -(-bits // 8)
    assert len(listed) == len(known)
    assert listed == sorted(set(listed))
    assert all(0 <= position < n for position in listed)


@pytest.mark.parametrize("encoding", [ZSTD_BITMASK, GAPS, CLASSES])
def test_a_stream_that_grows_without_bound_is_refused_before_memory_is_taken(encoding: IndexEncoding) -> None:
    bomb = compress(bytes(64 * 2**20))
    assert len(bomb) < 10_000
    bomb = with_length(bomb) if encoding is CLASSES else bomb
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload):
            decoded(encoding, bomb, BLOCK_ELEMENTS, 1000)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
