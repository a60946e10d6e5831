"""Bytes of somebody who means harm: refused with an error of the catalogue, and before memory is taken for them.

Tests of a single module stand beside that module's others; here are blocks and what they cost, and in
test_hostile_payloads.py what is made of them. The fuzzers in tests/fuzz look for what nobody has thought of.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    HEADER_BYTES,
    Bits,
    IndexEncoding,
    ValueEncoding,
    decode_block,
    parse_header,
)
from semisilo.common.payload.codec.positions import COMPLEMENT
from semisilo.common.payload.codec.zstd import compress
from tests.each_of import each_of
from tests.fuzz.seeds import new_block, new_classes, new_gaps, new_rice
from tests.fuzz.targets import KINDS

MIB = 2**20
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


def peak_mib(line: str = "VmHWM") -> float:
    """MiB that the whole process has at most had; VmHWM: in memory, VmPeak: of addresses."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(each for each in lines if each.startswith(line)).split()[1]) / 1024


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
                listed = struct.pack("<I", len(stream)) + stream + bytes(2 if len(stream) % 2 else 0)
                yield f"classes, {what}, {complement}", in_index(IndexEncoding.CLASSES | complement, listed), "uint8"
        else:
            data = planes_of(stream)
            yield what, block(IndexEncoding.DENSE, ValueEncoding.PLANES, N, N, b"", data), "uint8"
            yield f"{what}, codes", block(IndexEncoding.DENSE, ValueEncoding.INT8, N, N, b"", (
                struct.pack("<I", 1 + 2 * (N // 256)) + bytes(1 + 2 * (N // 256)) + data)), "float32"
    for what, classes, low in (("far", b"\x4b" * 1000, 2250), ("none is that high", b"\x4c" * 1000, 2250),
                               ("the highest byte", b"\xff" * 1000, 8000), ("no low bits", b"\x4b" * 1000, 0),
                               ("a byte too many", bytes(1000), 1), ("a byte too few", b"\x10" * 1000, 499)):
        stream = compress(classes)
        for complement, length in itertools.product((0, COMPLEMENT), (len(stream), len(stream) + 1, 2**32 - 1, 0)):
            listed = struct.pack("<I", length) + stream + bytes(low)
            yield (f"classes: {what}, {complement}, {length}", in_index(IndexEncoding.CLASSES | complement, listed),
                   "uint8")
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


@each_of(("data", "dtype"), [(data, dtype) for _, data, dtype in BOMBS],
                         ids=[what for what, _, _ in BOMBS])
def test_a_bomb_in_a_block_is_refused_within_the_scratch_of_a_block(data: bytes, dtype: str) -> None:
    def work() -> None:
        with pytest.raises(BadPayload):
            decode(data, dtype=dtype)

    assert peak_of(work) < BLOCK_SCRATCH


@each_of("field", ["n", "nnz", "index_bytes", "value_bytes"])
def test_a_header_with_huge_numbers_is_refused_before_anything_is_taken(field: str) -> None:
    offset = {"n": 2, "nnz": 6, "index_bytes": 10, "value_bytes": 14}[field]
    for index, value, number in itertools.product(list(IndexEncoding)[2:], ValueEncoding, (2**31, 2**32 - 1)):
        data = bytearray(block(index, value, 1000, 10, b"", bytes(40)))
        struct.pack_into("<I", data, offset, number)

        def work(data: bytes = bytes(data)) -> None:
            with pytest.raises(BadPayload):
                decode(data, elements=1000)

        assert peak_of(work) < 2**16


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_a_frame_that_asks_for_a_window_of_2_gib_does_not_get_it() -> None:
    """What zstd takes is not Python's. It reads a frame at one go where the content fits, without any window."""
    before = peak_mib("VmPeak")
    for blocks in ((repeated(0, 1000, last=True),), (repeated(0, 500), repeated(0, 500, last=True)),
                   (repeated(0, 999), repeated(0, 2, last=True)), (repeated(0, 1000),), (repeated(0, 1000), b"\x01")):
        for size in (1000, None):
            with contextlib.suppress(BadPayload):
                decode(in_index(IndexEncoding.ZSTD_GAPS, frame(size, *blocks, window_log=31)), dtype="uint8")
    assert peak_mib("VmPeak") - before < 64


# Positions beyond n, too few or too many, in every form that can say so. None can say them out of order or twice.

def longer(gaps: np.ndarray, by: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.append(gaps[:-1], gaps[-1] + by)


INDEX_STREAMS: dict[int, Callable[[np.ndarray], bytes]] = {  # type: ignore[type-arg]
    IndexEncoding.ZSTD_GAPS: lambda gaps: compress(new_gaps(gaps)),
    IndexEncoding.RICE: lambda gaps: new_rice(gaps, 3),
    IndexEncoding.CLASSES: new_classes,
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
@pytest.mark.parametrize("form", [form for form in IndexEncoding if form.lists])
def test_a_list_of_wrong_positions_is_refused(form: IndexEncoding, complement: int) -> None:
    n, positions = 4000, np.array([3, 50, 2000, 3999])
    gaps = np.diff(positions, prepend=-1) - 1
    write = INDEX_STREAMS[form]

    def data(gaps: np.ndarray, listed: int, elements: int = n) -> bytes:  # type: ignore[type-arg]
        nnz = elements - listed if complement else listed
        return listing(form | complement, write(gaps), nnz=nnz, n=elements)

    right = decode(data(gaps, 4), dtype="uint8")
    assert np.flatnonzero(right == (0 if complement else 1)).tolist() == positions.tolist()
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
    indexes = {*IndexEncoding, *(form | COMPLEMENT for form in IndexEncoding if form.lists)}
    known = set(itertools.product(indexes, ValueEncoding))
    for index, value in itertools.product(range(256), range(256)):
        if (index, value) not in known:
            with pytest.raises(BadPayload, match="unknown encoding"):
                decode(block(index, value, 8, 8, b"", bytes(32)))


@functools.cache
def all_forms() -> dict[str, tuple[bytes, str]]:
    """A small block of every pair of forms: name -> (block, type). Made when first asked for: it takes seconds."""
    seen, found = set(), {}
    for number in (*range(500), 1374):  # the last has the rarest pair; those between have none that is new
        for kind in (0, 2):  # float32, float64
            data = new_block(random.Random(number), kind, ELEMENTS)[2:]
            if (*data[:2], kind) in seen:
                continue
            with contextlib.suppress(BadPayload):  # a form that takes more than all values is refused
                decode(data, dtype=KINDS[kind].name)
                seen.add((*data[:2], kind))
                found[f"{data[0]}/{data[1]} {KINDS[kind].name}"] = data, KINDS[kind].name
    return found


ELEMENTS = 1500


def test_the_samples_have_every_form() -> None:
    indexes = set(IndexEncoding) | {form | COMPLEMENT for form in IndexEncoding if form.lists}
    assert {data[0] for data, _ in all_forms().values()} == indexes
    assert {data[1] for data, _ in all_forms().values()} == set(ValueEncoding)


@pytest.mark.parametrize("index", [*IndexEncoding, *(form | COMPLEMENT for form in IndexEncoding if form.lists)])
def test_a_block_that_is_cut_anywhere_is_refused(index: int) -> None:
    forms = {name: form for name, form in all_forms().items() if form[0][0] == index}
    assert forms
    for data, dtype in forms.values():
        _refused_where_it_is_cut(data, dtype)


def _refused_where_it_is_cut(data: bytes, dtype: str) -> None:
    decode(data, dtype=dtype)
    for length in range(len(data)):
        with pytest.raises(BadPayload):
            decode(data[:length], dtype=dtype, elements=ELEMENTS)
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
