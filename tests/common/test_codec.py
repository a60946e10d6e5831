"""Blocks: what goes in comes out bit for bit, and nothing that is not a block gets through."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    HEADER_BYTES,
    INDEX_CODECS,
    VALUE_CODECS,
    Bits,
    IndexEncoding,
    ValueEncoding,
    all_finite,
    block_count,
    decode_block,
    encode_blocks,
    largest_encoded_bytes,
    parse_header,
    smallest_encoded_bytes,
)
from common.errors import BadPayload

FLOAT32 = ELEMENT_TYPES["float32"]


def header(index: int = 2, value: int = 1, n: int = 4, nnz: int = 4, index_bytes: int = 0,
           value_bytes: int = 16) -> bytes:
    return struct.pack("<BBIIII", index, value, n, nnz, index_bytes, value_bytes)


def parse(data: bytes, elements: int = 4, remaining: int = 1000) -> None:
    parse_header(data, elements=elements, remaining_bytes=remaining, kind=FLOAT32)


def round_trip(bits: Bits, dtype: str) -> Bits:
    kind = ELEMENT_TYPES[dtype]
    out = np.zeros(bits.size, dtype=kind.bits)
    start = 0
    for head, index, values in encode_blocks(bits):
        body = index + bytes(values)
        elements = min(BLOCK_ELEMENTS, bits.size - start)
        parsed = parse_header(head, elements=elements, remaining_bytes=len(body), kind=kind)
        decode_block(parsed, body, out[start:start + elements], kind=kind)
        start += elements
    assert start == bits.size
    return out.reshape(bits.shape)


def test_every_encoding_has_its_entry_and_zero_is_never_a_tag() -> None:
    assert set(INDEX_CODECS) == set(IndexEncoding)
    assert set(VALUE_CODECS) == set(ValueEncoding)
    assert 0 not in [*IndexEncoding, *ValueEncoding]


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(sorted(ELEMENT_TYPES)), shape=st.lists(st.integers(0, 5), max_size=4), data=st.data())
def test_any_bits_of_any_type_and_shape_come_back_as_they_were(dtype: str, shape: list[int],
                                                               data: st.DataObject) -> None:
    kind = ELEMENT_TYPES[dtype]
    size = int(np.prod(shape, dtype=np.int64))
    raw = data.draw(st.one_of(st.binary(min_size=size * kind.size_bytes, max_size=size * kind.size_bytes),
                              st.just(bytes(size * kind.size_bytes))))
    bits = np.frombuffer(raw, dtype=kind.bits).reshape(shape)
    assert round_trip(bits, dtype).tobytes() == raw


@pytest.mark.parametrize("elements", [1, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1,
                                      2 * BLOCK_ELEMENTS + 7])
def test_tensors_around_the_block_size_come_back(elements: int) -> None:
    bits = np.arange(1, elements + 1, dtype="<u4")
    assert np.array_equal(round_trip(bits, "float32"), bits)
    assert len(list(encode_blocks(bits))) == block_count(elements) == -(-elements // 2**20)


def test_a_dense_block_is_an_18_byte_header_and_the_values_as_they_lie_in_memory() -> None:
    values = np.array([1.0, -2.5], dtype="<f4")
    [(head, index, body)] = encode_blocks(values.view("<u4"))
    assert head + index + bytes(body) == bytes.fromhex("02 01 02000000 02000000 00000000 08000000") + values.tobytes()


def test_a_block_of_zeros_costs_its_header_only_but_a_negative_zero_is_a_value() -> None:
    [(head, index, body)] = encode_blocks(np.zeros(1000, dtype="<u4"))
    assert (len(head), len(index), len(body)) == (18, 0, 0)
    zeros = np.zeros(1000, dtype="<f4")
    zeros[7] = -0.0
    [(_, _, body)] = encode_blocks(zeros.view("<u4"))
    assert len(body) == 4000


def test_zeros_that_overwrite_are_sent_as_values_since_elements_without_one_are_kept() -> None:
    [(head, _, body)] = encode_blocks(np.zeros(10, dtype="<u4"), every_value=True)
    assert head[0] == IndexEncoding.DENSE
    assert len(body) == 40


def test_encoded_sizes_lie_within_the_bounds_that_readers_check() -> None:
    for elements in (0, 1, BLOCK_ELEMENTS + 1):
        for fill in (0, 9):
            blocks = list(encode_blocks(np.full(elements, fill, dtype="<u8")))
            size = sum(len(part) for block in blocks for part in block)
            assert smallest_encoded_bytes(elements) <= size <= largest_encoded_bytes(elements, 8)


@pytest.mark.parametrize(("data", "message"), [
    (header()[:-1], "only 17 are left"),
    (b"", "only 0 are left"),
    (bytes(HEADER_BYTES), "unknown encoding 0/0"),
    (header(index=9), "unknown encoding 9/1"),
    (header(value=2), "unknown encoding 2/2"),
    (header(n=5), "5 elements where 4 belong"),
    (header(n=3, nnz=3, value_bytes=12), "3 elements where 4 belong"),
    (header(nnz=5), "5 values for 4 elements"),
    (header(nnz=3, value_bytes=12), "DENSE cannot have 3 values"),
    (header(index=1, nnz=1, value_bytes=4), "EMPTY cannot have 1 values"),
    (header(index_bytes=1), "1 index bytes"),
    (header(value_bytes=17), "17 value bytes"),
    (header(value_bytes=2**32 - 1), "4294967295 value bytes"),
])
def test_a_header_that_cannot_be_is_refused(data: bytes, message: str) -> None:
    parse(header())  # the control: untouched, it is accepted
    with pytest.raises(BadPayload, match=message):
        parse(data)


def test_a_block_larger_than_what_is_left_is_refused_before_it_is_read() -> None:
    parse(header(), remaining=16)
    with pytest.raises(BadPayload, match="does not fit into the 15 left"):
        parse(header(), remaining=15)


def test_values_of_another_length_than_declared_are_refused() -> None:
    parsed = parse_header(header(), elements=4, remaining_bytes=16, kind=FLOAT32)
    with pytest.raises(BadPayload, match="ends after 12"):
        decode_block(parsed, bytes(12), np.zeros(4, dtype="<u4"), kind=FLOAT32)
    short = parse_header(header(value_bytes=12), elements=4, remaining_bytes=16, kind=FLOAT32)
    with pytest.raises(BadPayload, match="take 16 bytes, not 12"):
        decode_block(short, bytes(12), np.zeros(4, dtype="<u4"), kind=FLOAT32)


@settings(max_examples=200, deadline=None)
@given(head=st.binary(min_size=0, max_size=20), body=st.binary(max_size=40))
def test_random_bytes_are_refused_or_decoded_and_nothing_else(head: bytes, body: bytes) -> None:
    out = np.zeros(4, dtype="<u4")
    try:
        parsed = parse_header(head, elements=4, remaining_bytes=len(body), kind=FLOAT32)
        decode_block(parsed, body[:parsed.body_bytes], out, kind=FLOAT32)
    except BadPayload:
        pass


@pytest.mark.parametrize(("dtype", "numpy_type"), [("float32", "<f4"), ("float64", "<f8"), ("float16", "<f2")])
def test_finite_agrees_with_numpy(dtype: str, numpy_type: str) -> None:
    kind = ELEMENT_TYPES[dtype]
    for special in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(numpy_type).max, np.finfo(numpy_type).tiny):
        values = np.ones(70_001, dtype=numpy_type)
        values[-1] = special
        assert all_finite(values.view(kind.bits), kind) == bool(np.isfinite(values).all())


def test_finite_reads_bfloat16_by_its_exponent_and_lets_integers_pass() -> None:
    for pattern, finite in ((0x7F80, False), (0xFF80, False), (0x7FC1, False), (0x7F7F, True), (0x8000, True)):
        assert all_finite(np.array([pattern], dtype="<u2"), ELEMENT_TYPES["bfloat16"]) is finite
    assert all_finite(np.array([0x7F80_0000], dtype="<u4"), ELEMENT_TYPES["int32"])
