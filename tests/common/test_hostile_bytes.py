"""Bytes of somebody who means harm: refused with an error of the catalogue, and before memory is taken for them.

Tests of a single module stand beside that module's others; here are whole payloads, whole blocks and what they cost.
The fuzzers in tests/fuzz look for what nobody has thought of.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.chunks import MAX_CHUNK_BYTES, SUBMIT_FIELD, Piece, pack_piece, receive_into, unpack_piece
from common.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    HEADER_BYTES,
    Aim,
    Bits,
    IndexEncoding,
    Plan,
    ValueEncoding,
    ValueForm,
    decode_block,
    encode_blocks,
    parse_header,
)
from common.codec.positions import COMPLEMENT
from common.codec.zstd import compress
from common.convert import task_from_proto, task_to_proto
from common.errors import BadConfiguration, BadPayload, LayoutMismatch, WrongBase
from common.exchange import Meaning, TensorSpec
from common.manifest import GroupManifest, ReferenceForm, manifest_to_proto, parse_manifest
from common.payload_reader import MAGIC, MAX_MANIFEST_BYTES, TRAILER, PayloadReader
from common.reference_form import code_against
from common.store import PayloadStore
from common.wire import round_service_pb2 as round_pb
from tests.common.codec_samples import sparse_floats
from tests.fuzz.seeds import TASK, new_gaps, new_rice, payload_file

MIB = 2**20
BASE = "ab" * 32
BLOCK_SCRATCH = 40 * MIB
"""What a block of 2^20 elements may take while its positions are worked out: a few numbers of 8 bytes for each."""


def peak_of(work: Callable[[], object]) -> int:
    """Bytes that Python and numpy have at most taken while it ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Blocks ---------------------------------------------------------------------------------------------------------------


def block(index: int, value: int, n: int, nnz: int, index_data: bytes, value_data: bytes) -> bytes:
    return struct.pack("<BBIIII", index, value, n, nnz, len(index_data), len(value_data)) + index_data + value_data


def decode(data: bytes, *, dtype: str = "float32", elements: int | None = None) -> Bits:
    """The block of a stranger, read as `PayloadReader` does it: memory for the elements comes first."""
    kind = ELEMENT_TYPES[dtype]
    elements = struct.unpack_from("<I", data, 2)[0] if elements is None else elements
    header = parse_header(data[:HEADER_BYTES], elements=elements, remaining_bytes=len(data) - HEADER_BYTES, kind=kind)
    out = np.zeros(header.elements, dtype=kind.bits)
    decode_block(header, data[HEADER_BYTES:HEADER_BYTES + header.body_bytes], out, kind=kind)
    return out


def frame(content_bytes: int | None, *blocks: bytes, window_log: int = 0) -> bytes:
    """A zstd frame, without the bytes that all begin with, that claims so much content and holds these blocks."""
    window = bytes(((window_log - 10) << 3,)) if window_log else b""
    if content_bytes is None:
        return b"\0" + (window or b"\x50") + b"".join(blocks)
    return bytes((0xC0 | (0 if window else 0x20),)) + window + content_bytes.to_bytes(8, "little") + b"".join(blocks)


def repeated(byte: int, count: int, *, last: bool = False) -> bytes:
    """A zstd block of 4 bytes that stands for up to 128 KiB."""
    return (int(last) | 2 | count << 3).to_bytes(3, "little") + bytes((byte,))


def test_frames_put_together_by_hand_are_read() -> None:
    """So that the hostile ones below are refused for what is wrong with them."""
    planes = b"\x01" + struct.pack("<H", 13) + frame(1000, repeated(7, 1000, last=True))
    out = decode(block(IndexEncoding.DENSE, ValueEncoding.PLANES, 1000, 1000, b"", planes), dtype="uint8")
    assert (out == 7).all()


N = BLOCK_ELEMENTS
FULL = 131_072
"""What one zstd block can stand for."""
BIT_BYTES = N // 8
CRAMMED = repeated(1, FULL) * (BIT_BYTES // 4 - 8)
"""As many zstd blocks as fit into the index bytes of a block: they stand for 4 GiB."""


def planes_of(stream: bytes) -> bytes:
    """The values of a block of 2^20 bytes, of type uint8, as one compressed plane."""
    return b"\x01" + struct.pack("<I", len(stream)) + stream


def in_index(form: int, stream: bytes, *, listed: int = 1000) -> bytes:
    nnz = N - listed if form & COMPLEMENT else listed
    values = b"\0" if nnz > 1000 else b"\x01" * nnz
    return block(form, ValueEncoding.PLANES if nnz > 1000 else ValueEncoding.RAW, N, nnz, stream, values)


def hostile_streams() -> Iterator[tuple[str, bytes, int]]:
    """(what is wrong, the stream, bytes that it claims to be or should be)."""
    for name, size in (("masks", BIT_BYTES), ("gaps", 1000), ("planes", N)):
        yield f"{name}: huge", frame(2**63, repeated(0, FULL, last=True)), size
        yield f"{name}: the largest size", frame(2**64 - 2, repeated(0, FULL, last=True)), size
        yield f"{name}: no size", frame(None, repeated(0, min(size, FULL), last=True)), size
        yield f"{name}: one byte more", frame(size + 1, repeated(0, min(size, FULL), last=True)), size
        yield f"{name}: nothing", frame(0, repeated(0, 0, last=True)), size
        yield f"{name}: more than it says", frame(size, CRAMMED), size
        yield f"{name}: more than it says, over a window", frame(size, CRAMMED, window_log=20), size
        yield f"{name}: less than it says", frame(size, repeated(0, min(size, FULL) - 1, last=True)), size
        yield f"{name}: more than it says, over 2 GiB", frame(size, CRAMMED, window_log=31), size
        yield f"{name}: two frames", compress(bytes(size)) + compress(bytes(size)), size
        yield f"{name}: two halves", compress(bytes(size // 2)) + bytes.fromhex("28b52ffd") + compress(
            bytes(size - size // 2)), size
        yield f"{name}: a frame in a frame", compress(compress(bytes(2**24))), size
        yield f"{name}: something behind it", compress(bytes(size)) + b"\0", size
        yield f"{name}: cut", compress(bytes(size))[:-1], size
        yield f"{name}: a dictionary", b"\xe1" + b"\x07" + size.to_bytes(8, "little") + repeated(
            0, min(size, FULL), last=True), size
        yield f"{name}: empty", b"", size
        yield f"{name}: no frame", b"\xff" * 30, size


def bombs() -> Iterator[tuple[str, bytes, str]]:
    """(what is wrong, a block of 2^20 elements, their type)."""
    for what, stream, _ in hostile_streams():
        if what.startswith("masks"):
            yield what, in_index(IndexEncoding.ZSTD_BITMASK, stream), "uint8"
        elif what.startswith("gaps"):
            for complement in (0, COMPLEMENT):
                yield f"{what}, {complement}", in_index(IndexEncoding.ZSTD_GAPS | complement, stream), "uint8"
        else:
            data = planes_of(stream)
            yield what, block(IndexEncoding.DENSE, ValueEncoding.PLANES, N, N, b"", data), "uint8"
            yield f"{what}, codes", block(IndexEncoding.DENSE, ValueEncoding.INT8, N, N, b"", (
                struct.pack("<I", 1 + 2 * (N // 256)) + bytes(1 + 2 * (N // 256)) + data)), "float32"
    skips = compress(b"\xff" * (1000 + N // 255))
    for complement in (0, COMPLEMENT):
        yield f"gaps: skips alone, {complement}", in_index(IndexEncoding.ZSTD_GAPS | complement, skips), "uint8"
        for shift in (0, 1, 10, 20):
            planes = bytes(shift * 125)
            room = -(-((N >> shift) + 1000) // 8)
            for what, unary in (("zeros", bytes(room)), ("ones", b"\xff" * room), ("too long", b"\x01" * (room + 1)),
                                ("none", b"")):
                yield (f"Rice: {what}, k = {shift}, {complement}",
                       in_index(IndexEncoding.RICE | complement, bytes((shift,)) + planes + unary), "uint8")
        yield f"Rice: k = 21, {complement}", in_index(IndexEncoding.RICE | complement, b"\x15" + bytes(5000)), "uint8"
        yield f"Rice: k = 255, {complement}", in_index(IndexEncoding.RICE | complement, b"\xff" * 40_000), "uint8"
        yield f"Rice: nothing, {complement}", in_index(IndexEncoding.RICE | complement, b""), "uint8"
        far = np.full(1000, 2**20 - 1)
        yield f"Rice: far, {complement}", in_index(IndexEncoding.RICE | complement, new_rice(far, 20)), "uint8"


BOMBS = list(bombs())


@pytest.mark.parametrize(("data", "dtype"), [(data, dtype) for _, data, dtype in BOMBS],
                         ids=[what for what, _, _ in BOMBS])
def test_a_bomb_in_a_block_is_refused_within_the_scratch_of_a_block(data: bytes, dtype: str) -> None:
    def work() -> None:
        with pytest.raises(BadPayload):
            decode(data, dtype=dtype)

    assert peak_of(work) < BLOCK_SCRATCH


@pytest.mark.parametrize("field", ["n", "nnz", "index_bytes", "value_bytes"])
def test_a_header_with_huge_numbers_is_refused_before_anything_is_taken(field: str) -> None:
    place = {"n": 2, "nnz": 6, "index_bytes": 10, "value_bytes": 14}[field]
    for index, value, number in itertools.product((3, 4, 5, 6, 0x85, 0x86), (1, 2, 3, 4, 5), (2**31, 2**32 - 1)):
        data = bytearray(block(index, value, 1000, 10, b"", bytes(40)))
        struct.pack_into("<I", data, place, number)

        def work(data: bytes = bytes(data)) -> None:
            with pytest.raises(BadPayload):
                decode(data, elements=1000)

        assert peak_of(work) < 2**16


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_a_frame_that_asks_for_a_window_of_2_gib_does_not_get_it() -> None:
    """What zstd takes is not Python's. It reads a frame at one go where the content fits, without any window."""
    before = _peak_mib("VmPeak")
    for blocks in ((repeated(0, 1000, last=True),), (repeated(0, 500), repeated(0, 500, last=True)),
                   (repeated(0, 999), repeated(0, 2, last=True)), (repeated(0, 1000),), (repeated(0, 1000), b"\x01")):
        for size in (1000, None):
            with contextlib.suppress(BadPayload):
                decode(in_index(IndexEncoding.ZSTD_GAPS, frame(size, *blocks, window_log=31)), dtype="uint8")
    assert _peak_mib("VmPeak") - before < 64


# Positions beyond n, too few or too many, in every form that can say so. None can say them out of order or twice.

def longer(gaps: np.ndarray, by: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.append(gaps[:-1], gaps[-1] + by)


INDEX_STREAMS: dict[int, Callable[[np.ndarray], bytes]] = {  # type: ignore[type-arg]
    IndexEncoding.ZSTD_GAPS: lambda gaps: compress(new_gaps(gaps)),
    IndexEncoding.RICE: lambda gaps: new_rice(gaps, 3),
}


def listing(form: int, stream: bytes, *, nnz: int, n: int = 100) -> bytes:
    return block(form, ValueEncoding.RAW, n, nnz, stream, b"\x01" * nnz)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_bitmask_of_wrong_positions_is_refused(compressed: bool) -> None:
    form = IndexEncoding.ZSTD_BITMASK if compressed else IndexEncoding.BITMASK
    write: Callable[[bytes], bytes] = compress if compressed else bytes
    n = 1600  # so that a compressed one is not refused for its length
    right = bytearray(200)
    right[0], right[199] = 0x10, 0x01
    assert np.flatnonzero(decode(listing(form, write(bytes(right)), nnz=2, n=n), dtype="uint8")).tolist() == [3, 1599]
    for mask, nnz, elements in ((right, 1, n), (right, 3, n), (right, 0, n), (right, 2, n - 1), (right, 2, n + 1),
                                (right + b"\0", 2, n), (right[:-1], 1, n), (b"", 0, n)):
        with pytest.raises(BadPayload):
            decode(listing(form, write(bytes(mask)), nnz=nnz, n=elements), dtype="uint8")


@pytest.mark.parametrize("complement", [0, COMPLEMENT])
@pytest.mark.parametrize("form", [IndexEncoding.ZSTD_GAPS, IndexEncoding.RICE])
def test_a_list_of_wrong_positions_is_refused(form: IndexEncoding, complement: int) -> None:
    n, places = 4000, np.array([3, 50, 2000, 3999])
    gaps = np.diff(places, prepend=-1) - 1
    write = INDEX_STREAMS[form]

    def data(gaps: np.ndarray, listed: int, elements: int = n) -> bytes:  # type: ignore[type-arg]
        nnz = elements - listed if complement else listed
        return listing(form | complement, write(gaps), nnz=nnz, n=elements)

    right = decode(data(gaps, 4), dtype="uint8")
    assert np.flatnonzero(right == (0 if complement else 1)).tolist() == places.tolist()
    assert np.count_nonzero(right) == (n - 4 if complement else 4)
    for wrong in (data(longer(gaps, 1), 4), data(longer(gaps, 300), 4), data(gaps, 4, n - 1), data(gaps, 3),
                  data(gaps, 5), data(gaps, 0), data(gaps, n), data(gaps[:0], 4), data(np.append(gaps, 0), 4)):
        with pytest.raises(BadPayload):
            decode(wrong, dtype="uint8")


def test_a_gap_that_never_ends_is_refused() -> None:
    for stream in (b"\x03\xff", b"\xff\xff\xff", b"\x03\x04\xff"):
        with pytest.raises(BadPayload):
            decode(listing(IndexEncoding.ZSTD_GAPS, compress(stream), nnz=2, n=4000), dtype="uint8")


def test_no_encoding_beyond_those_of_this_version_is_read() -> None:
    known = {(index, value) for index in (1, 2, 3, 4, 5, 6, 0x85, 0x86) for value in (1, 2, 3, 4, 5)}
    for index, value in itertools.product(range(256), range(256)):
        if (index, value) not in known:
            with pytest.raises(BadPayload, match="unknown encoding"):
                decode(block(index, value, 8, 8, b"", bytes(32)))


def all_forms() -> Iterator[tuple[str, bytes, str]]:
    """A small block of every pair of forms that the encoder writes: (name, block, type)."""
    seen = set()
    for density, run, form, dtype in itertools.product(
            (0.01, 0.03, 0.2, 0.45, 0.8, 0.995, 1), (False, True), ValueForm, ("float32", "float64")):
        kind = ELEMENT_TYPES[dtype]
        values = sparse_floats(1500, density, seed=5)
        if run:  # the first few, and a stretch of all
            values = np.sort(np.abs(values))[::-1] if density > 0.1 else values
        bits = values.astype(f"<f{kind.size_bytes}").view(kind.bits)
        for parts in encode_blocks(bits, kind, Plan(aim=Aim.SMALLEST, values=form)):
            data = b"".join(bytes(part) for part in parts)
            if (*data[:2], dtype) not in seen:
                seen.add((*data[:2], dtype))
                yield f"{data[0]}/{data[1]} {dtype}", data, dtype


FORMS = list(all_forms())


def test_the_samples_have_every_form() -> None:
    assert {data[1] for _, data, _ in FORMS} >= set(ValueEncoding) - {ValueEncoding.RAW}
    assert {data[0] & ~COMPLEMENT for _, data, _ in FORMS} >= set(IndexEncoding) - {IndexEncoding.EMPTY,
                                                                                      IndexEncoding.BITMASK}


@pytest.mark.parametrize(("data", "dtype"), [(data, dtype) for _, data, dtype in FORMS],
                         ids=[name for name, _, _ in FORMS])
def test_a_block_that_is_cut_anywhere_is_refused(data: bytes, dtype: str) -> None:
    decode(data, dtype=dtype)
    for length in range(len(data)):
        with pytest.raises(BadPayload):
            decode(data[:length], dtype=dtype, elements=1500)
    index_bytes, value_bytes = struct.unpack_from("<II", data, 10)
    for cut in range(1, min(index_bytes, 200) + 1):  # and with lengths that fit
        shorter = bytearray(data[:18 + index_bytes - cut] + data[18 + index_bytes:])
        struct.pack_into("<I", shorter, 10, index_bytes - cut)
        with pytest.raises(BadPayload):
            decode(bytes(shorter), dtype=dtype)
    for cut in range(1, min(value_bytes, 200) + 1):
        shorter = bytearray(data[:-cut])
        struct.pack_into("<I", shorter, 14, value_bytes - cut)
        with pytest.raises(BadPayload):
            decode(bytes(shorter), dtype=dtype)


# Payload files --------------------------------------------------------------------------------------------------------

LAYOUT = (TensorSpec("a", (30, 50), "float32"), TensorSpec("b", (3,), "int64"), TensorSpec("c", (), "float32"),
          TensorSpec("e", (0, 4), "uint8"), TensorSpec("f", (1500,), "float32"))


def tensors_of(seed: int) -> list[Bits]:
    numbers = np.random.default_rng(seed)
    return [sparse_floats(1500, 0.1, seed=seed).view("<u4"), numbers.integers(0, 9, 3).astype("<u8"),
            np.array([1.5], "<f4").view("<u4"), np.zeros(0, "u1"), sparse_floats(1500, 0.9, seed=seed + 1).view("<u4")]


def encoded(tensors: list[Bits], *, plain: bool = False) -> bytes:
    parts = []
    for bits, spec in zip(tensors, LAYOUT, strict=True):
        kind = ELEMENT_TYPES[spec.dtype]
        if plain:
            kind = replace(kind, exponent_mask=0, name="plain")
        parts += [bytes(part) for block in encode_blocks(bits, kind, Plan(aim=Aim.SMALLEST)) for part in block]
    return b"".join(parts)


OLD, NEW = tensors_of(1), tensors_of(2)
ALONE = encoded(NEW)
AGAINST = encoded([code_against(new, old, ELEMENT_TYPES[spec.dtype], ReferenceForm.BITS)
                   for new, old, spec in zip(NEW, OLD, LAYOUT, strict=True)], plain=True)
GROUP = GroupManifest("model", Meaning.VALUES, "", LAYOUT, len(ALONE))
CODED = GroupManifest("coded", Meaning.VALUES, "", LAYOUT, len(AGAINST), BASE, "cd" * 32, ReferenceForm.BITS)
RICH = payload_file([GROUP, CODED], ALONE + AGAINST)
OLD_FILE = payload_file([replace(GROUP, encoded_bytes=len(encoded(OLD)))], encoded(OLD))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old"
    path.write_bytes(OLD_FILE)
    return path


def read(path: Path, content: bytes, old: Path, *, max_bytes: int = MIB) -> list[Bits]:
    path.write_bytes(content)
    with PayloadReader(path, max_bytes=max_bytes) as reader, PayloadReader(old) as base:
        return [bits for group in reader.groups for _, bits in reader.tensors(group.name, base)]


def test_the_payload_of_these_tests_is_read(tmp_path: Path, old: Path) -> None:
    got = read(tmp_path / "p", RICH, old)
    assert len(got) == 10
    assert all(np.array_equal(bits.reshape(-1), wanted) for bits, wanted in zip(got, NEW + NEW, strict=True))


def test_a_payload_that_is_cut_anywhere_is_refused(tmp_path: Path, old: Path) -> None:
    for length in range(len(RICH)):
        with pytest.raises(BadPayload):
            read(tmp_path / "p", RICH[:length], old)


def test_a_body_that_is_cut_anywhere_is_refused_though_the_manifest_says_so(tmp_path: Path, old: Path) -> None:
    ends = set(itertools.accumulate(map(len, blocks_of(ALONE))))
    for length in (length for length in range(len(ALONE)) if length % 23 == 0 or length + 1 in ends):
        group = replace(GROUP, encoded_bytes=length)
        with pytest.raises(BadPayload):
            read(tmp_path / "p", payload_file([group], ALONE[:length]), old)


def blocks_of(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        end = at + HEADER_BYTES + sum(struct.unpack_from("<II", body, at + 10))
        found.append(body[at:end])
        at = end
    return found


def test_blocks_in_another_order_repeated_or_left_out_are_refused(tmp_path: Path, old: Path) -> None:
    a, b, c, f = blocks_of(ALONE)
    assert a + b + c + f == ALONE
    for order in ((b, a, c, f), (a, c, b, f), (f, b, c), (a, a, b, c, f), (a, b, c, f, f), (a, b, c), (b, c, f), ()):
        body = b"".join(order)
        with pytest.raises(BadPayload):
            read(tmp_path / "p", payload_file([replace(GROUP, encoded_bytes=len(body))], body), old)


def test_groups_and_tensors_that_are_repeated_are_refused(tmp_path: Path, old: Path) -> None:
    twice = replace(GROUP, tensors=LAYOUT * 2, encoded_bytes=2 * len(ALONE))
    for groups in ([GROUP, GROUP], [twice]):
        with pytest.raises(BadPayload, match="twice"):
            read(tmp_path / "p", payload_file(groups, ALONE * 2), old)


def test_anything_beside_the_groups_is_refused(tmp_path: Path, old: Path) -> None:
    for content in (payload_file([GROUP], ALONE + b"\0"), payload_file([GROUP], b"\0" + ALONE), RICH + RICH,
                    RICH + b"\0", b"\0" + RICH, payload_file([], b"\0"), payload_file([GROUP], b""),
                    payload_file([replace(GROUP, encoded_bytes=len(ALONE) + 1)], ALONE + b"\0")):
        with pytest.raises(BadPayload):
            read(tmp_path / "p", content, old)


def test_a_damaged_byte_gives_an_error_of_the_catalogue_or_other_tensors_and_nothing_else(tmp_path: Path,
                                                                                         old: Path) -> None:
    for place in (*range(0, len(ALONE + AGAINST), 61), *range(len(ALONE + AGAINST), len(RICH), 3)):
        content = bytearray(RICH)
        content[place] ^= 1 << place % 8
        try:
            got = read(tmp_path / "p", bytes(content), old)
        except (BadPayload, LayoutMismatch, WrongBase):
            continue
        assert [bits.shape for bits in got] == [spec.shape for spec in LAYOUT] * 2 or place > len(ALONE + AGAINST)


SHAPES = ((2**38,), (2**20, 2**18), (2**32, 2**32), (2**62, 4), (2**63 - 1,) * 8, (2**31, 2**31, 4), (0, 2**62, 2**62),
          (2**40 + 1,), (2**63 - 1, 0, 2))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_shapes_that_claim_a_terabyte_or_overflow_are_refused_before_memory_is_taken(
        tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    message = manifest_to_proto([GroupManifest("g", Meaning.VALUES, "", (TensorSpec("w", (1,), dtype),), 900)])
    message.groups[0].tensors[0].ClearField("shape")
    message.groups[0].tensors[0].shape.extend(shape)
    elements = 1
    for length in shape:
        elements *= length
    for size in (900, -1, 2**63 - 1, elements * 8 % 2**63, -(-elements // BLOCK_ELEMENTS) * HEADER_BYTES % 2**63):
        message.groups[0].encoded_bytes = size
        tail = message.SerializeToString()
        path = tmp_path / "p"
        path.write_bytes(MAGIC + bytes(900) + tail + struct.pack(TRAILER, len(tail), MAGIC))

        def work(path: Path = path) -> None:
            with pytest.raises(BadPayload):
                PayloadReader(path)

        assert peak_of(work) < MIB


def test_an_axis_of_a_negative_length_is_refused() -> None:
    for shape in ((-1,), (-1, -1), (-2**63,), (2**31, -2**31, -4), (0, -1)):
        message = manifest_to_proto([GROUP])
        message.groups[0].tensors[0].ClearField("shape")
        message.groups[0].tensors[0].shape.extend(shape)
        with pytest.raises(BadPayload, match="axis of length -"):
            parse_manifest(message)


def test_a_megabyte_of_empty_blocks_that_claims_a_terabyte_takes_nothing(tmp_path: Path) -> None:
    """Each block is right and says that it is all zeros: only the limit of the caller stands in the way."""
    blocks = 60_000
    spec = TensorSpec("w", (blocks * BLOCK_ELEMENTS,), "float64")
    body = block(IndexEncoding.EMPTY, ValueEncoding.RAW, BLOCK_ELEMENTS, 0, b"", b"") * blocks
    assert len(body) < 1.1 * MIB
    content = payload_file([GroupManifest("g", Meaning.VALUES, "", (spec,), len(body))], body)
    path = tmp_path / "p"
    path.write_bytes(content)

    def work() -> None:
        with pytest.raises(BadPayload, match="allowed here"):
            PayloadReader(path)
        with pytest.raises(BadPayload, match="allowed here"):
            PayloadReader(path, max_bytes=2**30)

    assert peak_of(work) < MIB


def manifest_bombs() -> Iterator[tuple[str, bytes]]:
    """Manifests of the most bytes allowed, made of what is smallest on the wire and large in memory."""
    room = MAX_MANIFEST_BYTES - 64
    yield "groups", b"\x08\x02" + b"\x12\x00" * (room // 2)
    yield "groups between unknown fields", b"\x12\x00\x78\x01" * (room // 4)
    for what, inner in (("tensors", b"\x22\x00"), ("axes", b"\x22\x06\x12\x04\x01\x01\x01\x01")):
        group = inner * (room // len(inner))
        yield what, b"\x08\x02\x12" + _varint(len(group)) + group


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def refuse_manifest_bomb(folder: Path, number: int) -> float:
    """Opens one in this process. Returns: MiB by which it has grown."""
    content = list(manifest_bombs())[number][1]
    path = folder / "p"
    path.write_bytes(MAGIC + content + struct.pack(TRAILER, len(content), MAGIC))
    before = _peak_mib()
    try:
        PayloadReader(path)
    except BadPayload:
        return _peak_mib() - before
    raise AssertionError("it was accepted")


def _peak_mib(line: str = "VmHWM") -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(each for each in lines if each.startswith(line)).split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("number", range(4), ids=[what for what, _ in manifest_bombs()])
def test_the_largest_manifest_takes_at_most_some_tens_of_mib(tmp_path: Path, number: int) -> None:
    """What protobuf takes is not Python's, so the process itself is looked at."""
    program = ("from pathlib import Path; from tests.common.test_hostile_bytes import refuse_manifest_bomb;"
               f" print(refuse_manifest_bomb(Path({str(tmp_path)!r}), {number}))")
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True,
                          text=True, check=True)
    assert float(done.stdout) < 80


# Chunks ---------------------------------------------------------------------------------------------------------------


def pieces_of(content: bytes, size: int = 1000) -> list[Piece]:
    return [Piece(at, zlib.crc32(content[at:at + size]), content[at:at + size])
            for at in range(0, len(content), size)]


async def stream(pieces: list[Piece]) -> AsyncIterator[Piece]:
    for piece in pieces:
        yield piece


def test_chunks_that_are_reordered_repeated_oversized_or_damaged_are_refused(tmp_path: Path) -> None:
    content = RICH[:5000]
    a, b, c, d, e = pieces_of(content)
    wrong = {
        "reordered": [b, a, c, d, e], "repeated": [a, a, b, c, d, e], "left out": [a, c, d, e], "cut": [a, b, c, d],
        "one more": [a, b, c, d, e, Piece(5000, zlib.crc32(b"x"), b"x")], "another sum": [a._replace(crc32=1)],
        "empty": [Piece(0, 0, b"")], "overlapping": [a, b._replace(offset=999)], "before": [a._replace(offset=-1)],
        "longer than declared": pieces_of(content + bytes(1000), 6000),
        "huge": [Piece(0, zlib.crc32(bytes(MAX_CHUNK_BYTES + 1)), bytes(MAX_CHUNK_BYTES + 1))],
    }
    for what, pieces in wrong.items():
        partial = PayloadStore(tmp_path / what).partial("u", size_bytes=5000)
        with pytest.raises(BadPayload):
            asyncio.run(receive_into(partial, stream(pieces), 5000))
        assert partial.committed_bytes <= 5000
        partial.close()


def test_a_file_of_another_digest_is_refused_and_deleted(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path / "store")
    partial = store.partial("u", size_bytes=len(RICH))
    altered = bytes((RICH[0] ^ 1,)) + RICH[1:]
    asyncio.run(receive_into(partial, stream(pieces_of(altered)), len(RICH)))  # every chunk has its own right sum
    with pytest.raises(BadPayload):
        partial.finish(hashlib.sha256(RICH).hexdigest())
    assert store.digests() == set()


@pytest.mark.parametrize("padding", range(1, 9))
def test_a_chunk_whose_lengths_are_longer_than_they_need_be_is_left_to_protobuf(padding: int) -> None:
    """Protobuf takes some of them and refuses others; read by hand, all were taken."""
    message = pack_piece(SUBMIT_FIELD, Piece(5, zlib.crc32(b"abc"), b"abc"))
    assert message[1] == len(message) - 2
    padded = message[:1] + bytes((message[1] | 0x80,)) + b"\x80" * (padding - 1) + b"\0" + message[2:]
    assert unpack_piece(SUBMIT_FIELD, message) == Piece(5, zlib.crc32(b"abc"), b"abc")
    assert unpack_piece(SUBMIT_FIELD, padded) is None


# Tasks ----------------------------------------------------------------------------------------------------------------


def task(**changes: object) -> round_pb.Task:
    message = task_to_proto(TASK, report_interval_seconds=1)
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize("settings", ['{"a": 1e999}', '{"a": [-1e999]}', '{"a": NaN}', '{"a": "\\ud800"}',
                                      '{"\\udfff": 1}', '{"a": ' + "[" * 30_000, '{"a": ' + "9" * 5000 + "}", "[]", "",
                                      '{"a": ' + "[" * 700 + "]" * 700 + "}", json.dumps({"a": "x" * 65_536})])
def test_settings_that_cannot_be_written_again_are_refused(settings: str) -> None:
    task_from_proto(task(settings_json='{"a": 1e99, "b": "\\ud83d\\ude00"}'), silo="here")
    with pytest.raises(BadPayload, match="settings"):
        task_from_proto(task(settings_json=settings), silo="here")


def test_an_error_about_a_megabyte_of_text_is_still_one_short_line() -> None:
    for hostile in ("x" * MIB, "x\n" * 1000):
        message = task()
        message.augmentation.policy = hostile
        with pytest.raises(BadConfiguration) as caught:
            task_from_proto(message, silo="here")
        assert len(caught.value.line()) < 500
        assert "\n" not in caught.value.line()
