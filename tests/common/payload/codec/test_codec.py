"""Blocks: what goes in comes out bit for bit, and nothing that is not a block gets through."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    HEADER_BYTES,
    Aim,
    IndexEncoding,
    Plan,
    ValueEncoding,
    ValueForm,
    all_finite,
    block_count,
    coded_kind,
    decode_block,
    encode_blocks,
    largest_encoded_bytes,
    parse_header,
    smallest_encoded_bytes,
)
from tests.common.codec_samples import FLOAT32, sparse_floats, there_and_back
from tests.each_of import each_of

RAW = Plan()
SMALLEST = Plan(aim=Aim.SMALLEST)
FASTEST = Plan(aim=Aim.FASTEST)
EXACT_PLANS = [RAW, SMALLEST, FASTEST, Plan(aim=Aim.FASTEST, link_bytes_per_second=1e9)]


def header(index: int = 2, value: int = 1, n: int = 4, nnz: int = 4, index_bytes: int = 0,
           value_bytes: int = 16) -> bytes:
    return struct.pack("<BBIIII", index, value, n, nnz, index_bytes, value_bytes)


def parse(data: bytes, elements: int = 4, remaining: int = 1000, dtype: str = "float32") -> None:
    parse_header(data, elements=elements, remaining_bytes=remaining, kind=ELEMENT_TYPES[dtype])


@settings(max_examples=60)
@given(dtype=st.sampled_from(sorted(ELEMENT_TYPES)), shape=st.lists(st.integers(0, 5), max_size=4), data=st.data(),
       plan=st.sampled_from(EXACT_PLANS), every_value=st.booleans())
def test_any_bits_of_any_type_and_shape_come_back_as_they_were(
        dtype: str, shape: list[int], data: st.DataObject, plan: Plan, every_value: bool) -> None:
    kind = ELEMENT_TYPES[dtype]
    size = int(np.prod(shape, dtype=np.int64))
    raw = data.draw(st.one_of(st.binary(min_size=size * kind.size_bytes, max_size=size * kind.size_bytes),
                              st.just(bytes(size * kind.size_bytes))))
    bits = np.frombuffer(raw, dtype=kind.bits).reshape(shape)
    trip = there_and_back(bits, kind, plan, every_value=every_value)
    assert trip.bits.shape == bits.shape
    assert trip.bits.tobytes() == raw


@settings(max_examples=150)
@given(dtype=st.sampled_from(sorted(ELEMENT_TYPES)), elements=st.integers(1, 5000), density=st.floats(0, 1),
       seed=st.integers(0, 2**32 - 1), run=st.sampled_from([1, 7, 300]), levels=st.sampled_from([2, 50, 2**63]),
       plan=st.sampled_from(EXACT_PLANS), coded=st.booleans())
def test_any_density_and_pattern_comes_back_and_never_takes_more_than_all_values(
        dtype: str, elements: int, density: float, seed: int, run: int, levels: int, plan: Plan, coded: bool) -> None:
    kind = coded_kind(ELEMENT_TYPES[dtype]) if coded else ELEMENT_TYPES[dtype]
    random = np.random.default_rng(seed)
    bits = random.integers(0, min(levels, 2 ** (8 * kind.size_bytes)), elements, dtype=kind.bits.type)
    kept = np.repeat(random.random(-(-elements // run)) < density, run)[:elements]
    bits = np.where(kept, bits, 0).astype(kind.bits)
    trip = there_and_back(bits, kind, plan)
    assert trip.bits.tobytes() == bits.tobytes()
    assert smallest_encoded_bytes(elements) <= trip.size_bytes <= largest_encoded_bytes(elements, kind.size_bytes)


@each_of("plan", EXACT_PLANS)
def test_special_floats_come_back_bit_for_bit(plan: Plan) -> None:
    for dtype, patterns in {
            "float32": [0x7FC0_0001, 0xFFFF_FFFF, 0x7F80_0001, 0x7F80_0000, 0xFF80_0000, 0x8000_0000, 1, 0x8000_0001],
            "float64": [2**64 - 1, 0x7FF0 << 48, 0x7FF8_0000_0000_1234, 1 << 63, 1],
            "float16": [0x7C00, 0xFFFF, 0x8000, 1, 0x7E01], "bfloat16": [0x7F80, 0xFFFF, 0x8000, 1, 0x7FC1]}.items():
        kind = ELEMENT_TYPES[dtype]
        bits = np.zeros(4096, dtype=kind.bits)
        bits[::7] = np.resize(np.array(patterns, dtype=kind.bits), len(bits[::7]))
        assert np.array_equal(there_and_back(bits, kind, plan).bits, bits)


@pytest.mark.parametrize("plan", [RAW, SMALLEST])
@pytest.mark.parametrize("elements", [1, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1,
                                      2 * BLOCK_ELEMENTS + 7])
def test_tensors_around_the_block_size_come_back(elements: int, plan: Plan) -> None:
    bits = np.arange(1, elements + 1, dtype="<u4")
    trip = there_and_back(bits, FLOAT32, plan)
    assert np.array_equal(trip.bits, bits)
    assert len(trip.headers) == block_count(elements) == -(-elements // 2**20)


def test_tensors_that_are_not_contiguous_come_back() -> None:
    bits = sparse_floats(6000, 0.3).view("<u4").reshape(60, 100)[::2, ::-3].T
    for plan in EXACT_PLANS:
        assert np.array_equal(there_and_back(bits, FLOAT32, plan).bits, bits)


def test_a_raw_block_is_an_18_byte_header_and_the_values_as_they_lie_in_memory() -> None:
    values = np.array([1.0, -2.5], dtype="<f4")
    [(head, index, body)] = encode_blocks(values.view("<u4"), FLOAT32)
    assert head + index + bytes(body) == bytes.fromhex("02 01 02000000 02000000 00000000 08000000") + values.tobytes()


@each_of("plan", EXACT_PLANS)
def test_a_block_of_zeros_costs_its_header_only_but_a_negative_zero_is_a_value(plan: Plan) -> None:
    [(head, index, body)] = encode_blocks(np.zeros(1000, dtype="<u4"), FLOAT32, plan)
    assert (len(head), len(index), len(body)) == (18, 0, 0)
    zeros = np.zeros(1000, dtype="<f4")
    zeros[7] = -0.0
    trip = there_and_back(zeros.view("<u4"), FLOAT32, plan)
    assert trip.headers[0].values > 0
    assert np.array_equal(trip.bits, zeros.view("<u4"))


@each_of("plan", EXACT_PLANS)
def test_zeros_that_overwrite_are_sent_as_values_since_elements_without_one_are_kept(plan: Plan) -> None:
    [(head, index, _)] = encode_blocks(np.zeros(1000, dtype="<u4"), FLOAT32, plan, every_value=True)
    assert (head[0], index) == (IndexEncoding.DENSE, b"")


def test_the_same_tensor_gives_the_same_bytes() -> None:
    bits = sparse_floats(50_000, 0.2).view("<u4")
    for plan in [*EXACT_PLANS, Plan(aim=Aim.SMALLEST, values=ValueForm.INT8)]:
        first, second = ([b"".join(map(bytes, parts)) for parts in encode_blocks(bits, FLOAT32, plan)] for _ in "ab")
        assert first == second


@each_of(("data", "message"), [
    (header()[:-1], "only 17 are left"),
    (b"", "only 0 are left"),
    (bytes(HEADER_BYTES), "unknown encoding 0/0"),
    (header(index=8), "unknown encoding 8/1"),
    (header(value=6), "unknown encoding 2/6"),
    (header(value=0), "unknown encoding 2/0"),
    (header(index=0x80), "unknown encoding 128/1"),
    (header(index=0x82), "unknown encoding 130/1"),
    (header(index=0x83), "unknown encoding 131/1"),
    (header(index=0x45), "unknown encoding 69/1"),
    (header(n=5), "5 elements where 4 belong"),
    (header(n=3, nnz=3, value_bytes=12), "3 elements where 4 belong"),
    (header(nnz=5), "5 values for 4 elements"),
    (header(nnz=3, value_bytes=12), "DENSE cannot have 3 values"),
    (header(index=1, nnz=1, value_bytes=4), "EMPTY cannot have 1 values"),
    (header(index_bytes=1), "1 index bytes"),
    (header(index=3, index_bytes=2), "2 index bytes; BITMASK takes at most 1"),
    (header(index=6, index_bytes=2**32 - 1), "4294967295 index bytes"),
    (header(value_bytes=17), "17 value bytes"),
    (header(value=2, value_bytes=2**32 - 1), "4294967295 value bytes"),
])
def test_a_header_that_cannot_be_is_refused(data: bytes, message: str) -> None:
    parse(header())  # the control: untouched, it is accepted
    with pytest.raises(BadPayload, match=message):
        parse(data)


def test_lossy_values_of_another_type_than_float32_are_refused() -> None:
    for tag in (3, 4, 5):
        parse(header(value=tag))
        with pytest.raises(BadPayload, match="float32 only"):
            parse(header(value=tag), dtype="int32")


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


@pytest.mark.slow
@settings(max_examples=300)
@given(index=st.sampled_from([1, 2, 3, 4, 5, 6, 0x85, 0x86]), value=st.integers(1, 5), nnz=st.integers(0, 40),
       index_data=st.binary(max_size=5), value_data=st.binary(max_size=160))
def test_random_bytes_are_refused_or_decoded_and_nothing_else(index: int, value: int, nnz: int, index_data: bytes,
                                                              value_data: bytes) -> None:
    head = header(index, value, 40, nnz, len(index_data), len(value_data))
    body = index_data + value_data
    try:
        parsed = parse_header(head, elements=40, remaining_bytes=len(body), kind=FLOAT32)
        decode_block(parsed, body, np.zeros(40, dtype="<u4"), kind=FLOAT32)
    except BadPayload:
        pass


@pytest.mark.slow
@settings(max_examples=300)
@given(density=st.sampled_from([0.003, 0.05, 0.15, 0.4, 0.8, 0.999, 1]), form=st.sampled_from(list(ValueForm)),
       where=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_block_is_refused_or_decoded_with_the_right_number_of_values(
        density: float, form: ValueForm, where: float, change: int, cut: bool) -> None:
    bits = sparse_floats(2000, density, seed=1).view("<u4")
    [(head, index, values)] = encode_blocks(bits, FLOAT32, Plan(aim=Aim.SMALLEST, values=form))
    data = bytearray(head + index + bytes(values))
    data[int(where * len(data))] ^= change
    del data[len(data) - (change if cut else 0):]
    try:
        parsed = parse_header(bytes(data[:18]), elements=2000, remaining_bytes=len(data) - 18, kind=FLOAT32)
        out = np.zeros(2000, dtype="<u4")
        decode_block(parsed, bytes(data[18:18 + parsed.body_bytes]), out, kind=FLOAT32)
    except BadPayload:
        return
    assert np.count_nonzero(out) <= parsed.values


def test_bodies_may_be_memoryviews_of_a_larger_buffer() -> None:
    bits = sparse_floats(4000, 0.2).view("<u4")
    [(head, index, values)] = encode_blocks(bits, FLOAT32, SMALLEST)
    buffer = bytearray(b"x" + index + bytes(values) + b"y")
    parsed = parse_header(head, elements=4000, remaining_bytes=len(buffer), kind=FLOAT32)
    out = np.zeros(4000, dtype="<u4")
    decode_block(parsed, memoryview(buffer)[1:-1], out, kind=FLOAT32)
    assert np.array_equal(out, bits)


@each_of(("dtype", "numpy_type"), [("float32", "<f4"), ("float64", "<f8"), ("float16", "<f2")])
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


def test_tags_on_the_wire_do_not_change() -> None:
    assert {encoding.name: encoding.value for encoding in IndexEncoding} == {
        "EMPTY": 1, "DENSE": 2, "BITMASK": 3, "ZSTD_BITMASK": 4, "ZSTD_GAPS": 5, "RICE": 6, "CLASSES": 7}
    assert {encoding.name: encoding.value for encoding in ValueEncoding} == {
        "RAW": 1, "PLANES": 2, "BF16": 3, "INT8": 4, "INT4": 5}
