"""Which elements carry a value: the forms, their sizes against the entropy, and streams that no encoder wrote."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec import BLOCK_ELEMENTS, Aim, IndexEncoding, Plan
from common.codec.positions import COMPLEMENT, Mask, decode_positions, encode_mask, positions_of
from common.codec.zstd import compress
from common.errors import BadPayload
from tests.common.codec_samples import FLOAT32, entropy_bytes, sparse_floats, there_and_back

SMALLEST = Plan(aim=Aim.SMALLEST)
BITMASK, ZSTD_BITMASK, GAPS, RICE = (IndexEncoding.BITMASK, IndexEncoding.ZSTD_BITMASK, IndexEncoding.ZSTD_GAPS,
                                     IndexEncoding.RICE)


def encoded(mask: Mask, compact: bool = True) -> tuple[IndexEncoding, bool, bytes]:
    tag, data = encode_mask(mask, positions_of(mask), compact=compact)
    return IndexEncoding(tag & ~COMPLEMENT), bool(tag & COMPLEMENT), data


def decoded(encoding: IndexEncoding, data: bytes, n: int, with_value: int, complement: bool = False) -> list[int]:
    positions = decode_positions(encoding, complement, memoryview(data), n, with_value)
    assert isinstance(positions, np.ndarray)
    return [int(position) for position in positions]


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


@pytest.mark.parametrize(("density", "form", "complement"), [
    (0.001, RICE, False), (0.01, RICE, False), (0.1, GAPS, False), (0.4, ZSTD_BITMASK, False), (0.5, BITMASK, False),
    (0.6, ZSTD_BITMASK, False), (0.9, GAPS, True), (0.99, RICE, True)])
def test_the_smallest_form_is_found_by_itself(density: float, form: IndexEncoding, complement: bool) -> None:
    mask = np.random.default_rng(0).random(2**18) < density
    assert encoded(mask)[:2] == (form, complement)
    assert encoded(mask, compact=False)[:2] == (BITMASK, False)


@settings(max_examples=200, deadline=None)
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


def test_one_position_anywhere_in_a_block_takes_few_bytes() -> None:
    for place in (0, 1, 254, 255, 256, 12_345, BLOCK_ELEMENTS - 1):
        for complement in (False, True):
            mask = np.full(BLOCK_ELEMENTS, complement)
            mask[place] = not complement
            encoding, is_complement, data = encoded(mask)
            assert is_complement == complement
            assert len(data) <= 24
            assert decoded(encoding, data, len(mask), int(mask.sum()), complement) == np.flatnonzero(mask).tolist()


def test_gaps_around_255_come_back() -> None:
    for gap in (253, 254, 255, 256, 509, 510, 511, 512):
        positions = [gap, 2 * gap + 1, 3 * gap + 2]
        stream = b"".join(bytes([255] * (gap // 255) + [gap % 255]) for _ in positions)
        assert decoded(GAPS, compress(stream), 2000, 3) == positions


def test_the_forms_are_as_documented() -> None:
    assert decoded(BITMASK, bytes([0b1010_0000, 0b0100_0000]), 10, 3) == [0, 2, 9]
    assert decoded(ZSTD_BITMASK, compress(bytes([0b1010_0000, 0b0100_0000])), 10, 3) == [0, 2, 9]
    assert decoded(GAPS, compress(bytes([0, 1, 6])), 10, 3) == [0, 2, 9]
    # k = 1: gaps 0, 1, 6 have remainders 0, 1, 0 and quotients 0, 0, 3.
    assert decoded(RICE, bytes([1, 0b0100_0000, 0b1100_0100]), 10, 3) == [0, 2, 9]
    assert decoded(RICE, bytes([1, 0b0100_0000, 0b1100_0100]), 10, 7, complement=True) == [1, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("encoding", "data"), [
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
])
def test_streams_that_do_not_list_three_of_ten_positions_are_refused(encoding: IndexEncoding, data: bytes) -> None:
    with pytest.raises(BadPayload):
        decoded(encoding, data, 10, 3)
    if encoding.lists:
        with pytest.raises(BadPayload):
            decoded(encoding, data, 10, 7, complement=True)


def test_complements_of_impossible_counts_are_refused() -> None:
    for encoding, data in ((GAPS, compress(b"")), (RICE, bytes([0])), (RICE, b"")):
        with pytest.raises(BadPayload):
            decoded(encoding, data, 10, 10, complement=True)  # nothing is listed: no encoder writes that
    with pytest.raises(BadPayload):
        decoded(GAPS, compress(bytes([0, 1, 6])), 10, 8, complement=True)


@settings(max_examples=500, deadline=None)
@given(encoding=st.sampled_from([BITMASK, ZSTD_BITMASK, GAPS, RICE]), data=st.binary(max_size=30),
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


@pytest.mark.parametrize("encoding", [ZSTD_BITMASK, GAPS])
def test_a_stream_that_grows_without_bound_is_refused_before_memory_is_taken(encoding: IndexEncoding) -> None:
    bomb = compress(bytes(64 * 2**20))
    assert len(bomb) < 10_000
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload):
            decoded(encoding, bomb, BLOCK_ELEMENTS, 1000)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
