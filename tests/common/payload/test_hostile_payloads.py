"""Payload files, chunks and tasks of somebody who means harm: refused before memory is taken for them."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semisilo.common.errors import BadConfiguration, BadPayload, LayoutMismatch, WrongBase
from semisilo.common.methods.contract import Meaning, TensorSpec
from semisilo.common.payload.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    HEADER_BYTES,
    Aim,
    Bits,
    IndexEncoding,
    Plan,
    ValueEncoding,
    encode_blocks,
)
from semisilo.common.payload.manifest import GroupManifest, ReferenceForm, manifest_to_proto, parse_manifest
from semisilo.common.payload.reader import MAGIC, MAX_MANIFEST_BYTES, TRAILER, HeldFile, PayloadReader
from semisilo.common.payload.reference import code_against
from semisilo.common.rpc.chunks import MAX_CHUNK_BYTES, SUBMIT_FIELD, Piece, pack_piece, receive_into, unpack_piece
from semisilo.common.rpc.convert import task_from_proto, task_to_proto
from semisilo.common.storage.store import PayloadStore
from semisilo.common.wire import round_service_pb2 as round_pb
from tests.common.codec_samples import sparse_floats
from tests.common.payload.codec.test_hostile_bytes import MIB, block, peak_mib, peak_of
from tests.each_of import each_of
from tests.fuzz.seeds import TASK, payload_file

BASE = "ab" * 32


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
        return [bits for group in reader.groups for _, bits in reader.tensors(group.name, HeldFile(base))]


def test_the_payload_of_these_tests_is_read(tmp_path: Path, old: Path) -> None:
    got = read(tmp_path / "p", RICH, old)
    assert len(got) == 10
    assert all(np.array_equal(bits.reshape(-1), wanted) for bits, wanted in zip(got, NEW + NEW, strict=True))


def test_a_payload_that_is_cut_anywhere_is_refused(tmp_path: Path, old: Path) -> None:
    """At every byte of its ends, where the manifest and what leads to it stand, and of those around each block; inside
    of blocks at every 17th."""
    ends = (0, *itertools.accumulate(map(len, blocks_of(ALONE + AGAINST))))
    near = {end + step for end in ends for step in range(-2, HEADER_BYTES + 9)}
    start = RICH.index(ALONE)
    after = start + len(ALONE + AGAINST)
    for length in range(len(RICH)):
        if start <= length < after and length - start not in near and length % 17:
            continue
        with pytest.raises(BadPayload):
            read(tmp_path / "p", RICH[:length], old)


def test_a_body_that_is_cut_anywhere_is_refused_though_the_manifest_says_so(tmp_path: Path, old: Path) -> None:
    ends = set(itertools.accumulate(map(len, blocks_of(ALONE))))
    for length in (length for length in range(1, len(ALONE)) if length % 23 == 0 or length + 1 in ends):
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
    for order in ((b, a, c, f), (a, c, b, f), (f, b, c), (a, a, b, c, f), (a, b, c, f, f), (a, b, c), (b, c, f)):
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
                    payload_file([replace(GROUP, encoded_bytes=0)], b"\0"),
                    payload_file([replace(GROUP, encoded_bytes=len(ALONE) + 1)], ALONE + b"\0")):
        with pytest.raises(BadPayload):
            read(tmp_path / "p", content, old)


def test_a_damaged_byte_gives_an_error_of_the_catalogue_or_other_tensors_and_nothing_else(tmp_path: Path,
                                                                                         old: Path) -> None:
    for offset in (*range(0, len(ALONE + AGAINST), 61), *range(len(ALONE + AGAINST), len(RICH), 3)):
        content = bytearray(RICH)
        content[offset] ^= 1 << offset % 8
        try:
            got = read(tmp_path / "p", bytes(content), old)
        except (BadPayload, LayoutMismatch, WrongBase):
            continue
        assert [bits.shape for bits in got] == [spec.shape for spec in LAYOUT] * 2 or offset > len(ALONE + AGAINST)


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
    before = peak_mib()
    try:
        PayloadReader(path)
    except BadPayload:
        return peak_mib() - before
    raise AssertionError("it was accepted")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("number", range(4), ids=[what for what, _ in manifest_bombs()])
def test_the_largest_manifest_takes_at_most_some_tens_of_mib(tmp_path: Path, number: int) -> None:
    """What protobuf takes is not Python's, so the process itself is looked at."""
    program = ("from pathlib import Path; from tests.common.payload.test_hostile_payloads import refuse_manifest_bomb;"
               f" print(refuse_manifest_bomb(Path({str(tmp_path)!r}), {number}))")
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True,
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


@each_of("padding", range(1, 9))
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


@each_of("settings", ['{"a": 1e999}', '{"a": [-1e999]}', '{"a": NaN}', '{"a": "\\ud800"}',
                      '{"\\udfff": 1}', '{"a": ' + "[" * 30_000, '{"a": ' + "9" * 5000 + "}", "[]", "",
                      '{"a": ' + "[" * 700 + "]" * 700 + "}", '{"a": ' + "[" * 32 + "]" * 32 + "}",
                      '{"a": ' * 33 + "1" + "}" * 33, json.dumps({"a": "x" * 65_536})])
def test_settings_that_cannot_be_written_again_are_refused(settings: str) -> None:
    task_from_proto(task(settings_json='{"a": 1e99, "b": "\\ud83d\\ude00"}'), silo="here")
    task_from_proto(task(settings_json='{"a": ' + "[" * 31 + "]" * 31 + "}"), silo="here")
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
