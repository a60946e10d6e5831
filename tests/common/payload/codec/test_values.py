"""Values as byte planes, and what of zstd is believed."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec import ELEMENT_TYPES, ValueEncoding, ValueForm, coded_kind
from semisilo.common.payload.codec.planes import decode_planes, encode_planes
from semisilo.common.payload.codec.values import encode_values
from semisilo.common.payload.codec.zstd import compress, content_size, decompress, zstd
from tests.common.codec_samples import FLOAT32, sparse_floats
from tests.each_of import each_of

UINT8 = ELEMENT_TYPES["uint8"]
MAGIC = bytes.fromhex("28b52ffd")


@settings(max_examples=150)
@given(dtype=st.sampled_from(sorted(ELEMENT_TYPES)), count=st.integers(1, 3000), bits=st.integers(1, 64),
       coded=st.booleans(), squeeze=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_planes_give_any_numbers_back(dtype: str, count: int, bits: int, coded: bool, squeeze: bool, seed: int) -> None:
    kind = coded_kind(ELEMENT_TYPES[dtype]) if coded else ELEMENT_TYPES[dtype]
    width = min(bits, 8 * kind.size_bytes)
    numbers = np.random.default_rng(seed).integers(0, 2**width, count, dtype=np.uint64).astype(kind.bits)
    data = encode_planes(numbers, kind, squeeze=squeeze)
    assert len(data) <= 1 + numbers.nbytes
    assert np.array_equal(decode_planes(memoryview(data), count, kind), numbers)


@each_of("count", [2**16 - 1, 2**16, 2**16 + 1])
def test_lengths_of_planes_around_two_bytes_come_back(count: int) -> None:
    bits = sparse_floats(count, 1).view("<u4")
    data = encode_planes(bits, FLOAT32)
    assert len(data) < bits.nbytes
    assert np.array_equal(decode_planes(memoryview(data), count, FLOAT32), bits)


def test_the_layout_of_planes_is_as_documented() -> None:
    numbers = np.array([0x8000_0001, 0x4030_2010], dtype="<u4")
    # The sign goes to the bottom: 0x0000_0003 and 0x8060_4020.
    assert encode_planes(numbers, FLOAT32, squeeze=False).hex(" ") == "00 03 20 00 40 00 60 00 80"
    assert encode_planes(numbers, coded_kind(FLOAT32), squeeze=False).hex(" ") == "00 01 10 00 20 00 30 80 40"
    zeros = np.zeros(1000, dtype="u1")
    frame = zstd.compress(zeros.tobytes())[4:]
    assert np.array_equal(decode_planes(memoryview(b"\1" + struct.pack("<H", len(frame)) + frame), 1000, UINT8), zeros)


def test_only_planes_that_compress_are_frames() -> None:
    bits = sparse_floats(100_000, 1).view("<u4")
    data = encode_planes(bits, FLOAT32)
    assert data[0] == 0b1000  # the exponents of normal floats; their mantissas are noise
    assert len(data) < 0.84 * bits.nbytes
    noise = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype="<u4")
    assert encode_planes(noise, FLOAT32)[0] == 0
    assert encode_values(noise, FLOAT32, ValueForm.EXACT, squeeze=True)[0] is ValueEncoding.RAW


def test_differences_of_near_floats_leave_low_bits_that_compress_too() -> None:
    random = np.random.default_rng(0)
    before = (random.standard_normal(100_000) * 0.05).astype("<f4")
    update = (before + (random.standard_normal(100_000) * 1e-4).astype("<f4")) - before
    data = encode_planes(update.view("<u4"), FLOAT32)
    assert data[0] & 0b0001
    assert len(data) < 0.75 * update.nbytes


def test_values_never_take_more_bytes_than_in_memory() -> None:
    random = np.random.default_rng(0)
    for count in (0, 1, 2, 31, 32, 33, 200):
        bits = random.integers(0, 2**32, count, dtype="<u4") & np.uint32(0x7F7F_FFFF)
        for form in ValueForm:
            for squeeze in (False, True):
                assert len(encode_values(bits, FLOAT32, form, squeeze=squeeze)[1]) <= bits.nbytes


def frame_of(count: int, value: int = 0) -> bytes:
    return compress(bytes([value]) * count)


@each_of("data", [
    b"",
    b"\2" + bytes(100),  # a uint8 has no second plane
    b"\1",
    b"\1\0",
    b"\0" + bytes(99),
    b"\0" + bytes(101),
    b"\1" + struct.pack("<H", 200) + bytes(10),
    b"\1" + struct.pack("<H", 0),
    b"\1" + struct.pack("<H", len(frame_of(99))) + frame_of(99),
    b"\1" + struct.pack("<H", len(frame_of(101))) + frame_of(101),
    b"\1" + struct.pack("<H", len(frame_of(100)) + 1) + frame_of(100) + b"\0",
    b"\1" + struct.pack("<H", len(frame_of(100))) + frame_of(100) + b"\0",
    b"\1" + struct.pack("<H", len(frame_of(100)) - 1) + frame_of(100)[:-1],
])
def test_planes_of_another_size_than_a_hundred_bytes_are_refused(data: bytes) -> None:
    good = b"\1" + struct.pack("<H", len(frame_of(100))) + frame_of(100)
    assert not decode_planes(memoryview(good), 100, UINT8).any()  # the control
    with pytest.raises(BadPayload):
        decode_planes(memoryview(data), 100, UINT8)


def test_a_frame_gives_its_content_and_says_its_size() -> None:
    for data in (b"", b"a", bytes(10**6), np.random.default_rng(0).bytes(70_000)):
        frame = compress(data)
        assert content_size(frame) == len(data)
        assert decompress(frame, len(data)) == data
        assert MAGIC + frame == zstd.compress(data, options={100: 1, 107: 1, 105: 7, 102: 6})


def test_a_stream_of_layers_that_differ_takes_less_than_with_one_huffman_code() -> None:
    random = np.random.default_rng(0)
    layers = [(low + random.integers(0, 16, 16_000)).astype(np.uint8).tobytes() for low in range(0, 256, 64)]
    stream = b"".join(layers)
    frame = compress(stream)
    assert decompress(frame, len(stream)) == stream
    assert len(frame) < 0.8 * len(zstd.compress(stream, options={100: 1, 107: 1, 105: 7, 102: 6}))
    same = random.integers(0, 16, 64_000).astype(np.uint8).tobytes()  # the control: nothing to gain, nothing lost
    assert MAGIC + compress(same) == zstd.compress(same, options={100: 1, 107: 1, 105: 7, 102: 6})


def test_a_frame_that_claims_another_size_or_none_is_refused() -> None:
    with pytest.raises(BadPayload, match="claims 100 bytes; 99 belong"):
        decompress(compress(bytes(100)), 99)
    silent = zstd.compress(bytes(100), options={zstd.CompressionParameter.content_size_flag: 0})[4:]
    with pytest.raises(BadPayload, match="does not say its size"):
        decompress(silent, 100)


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    honest = bytearray(zstd.compress(bytes(10_000))[4:])
    offset = bytes(honest).index(struct.pack("<H", 10_000 - 256))
    for claimed in (9_999, 10_001, 300):
        honest[offset:offset + 2] = struct.pack("<H", claimed - 256)
        with pytest.raises(BadPayload):
            decompress(bytes(honest), claimed)


def test_a_second_frame_a_rest_and_a_missing_end_are_refused() -> None:
    frame = compress(bytes(range(100)))
    for data in (frame + MAGIC + frame, frame + b"\0", frame[:-1], frame[1:], b"", MAGIC + frame):
        with pytest.raises(BadPayload):
            decompress(data, 100)


def test_a_frame_with_a_window_that_no_block_needs_is_refused() -> None:
    large = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    data = np.random.default_rng(0).bytes(100)
    large.set_pledged_input_size(100_000)
    frame = large.compress(data * 1000) + large.flush()
    bomb = bytearray(frame[4:])
    bomb[0:1] = bytes([bomb[0] & ~0x20])  # not a single segment: a window descriptor follows
    bomb[1:1] = bytes([(24 - 10) << 3])
    with pytest.raises(BadPayload):
        decompress(bytes(bomb), 100_000)
    bomb[1] = (17 - 10) << 3  # the control: with a small window the same frame passes
    assert decompress(bytes(bomb), 100_000) == data * 1000


def test_a_bomb_takes_no_memory() -> None:
    bomb = compress(bytes(2**26))
    body = b"\1" + struct.pack("<H", len(bomb)) + bomb
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload):
            decode_planes(memoryview(body), 1000, UINT8)
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()
