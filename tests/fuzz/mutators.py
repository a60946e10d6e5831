"""Mutators that know the layout of what they change, so that an input gets past the first check.

Lengths are put right after a part has grown, compressed streams are taken apart and compressed again, fields of
messages are set to values at the edge of their range. Now and then a length is left wrong, or bytes are changed
blindly.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from itertools import groupby

import numpy as np
from google.protobuf.message import DecodeError, Message

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec import BLOCK_ELEMENTS, HEADER_BYTES, IndexEncoding, ValueEncoding
from semisilo.common.payload.codec.zstd import compress, content_size, decompress
from semisilo.common.payload.reader import MAGIC, TRAILER
from semisilo.common.rpc.chunks import DOWNLOAD_FIELD, SUBMIT_FIELD
from semisilo.common.wire import round_service_pb2 as round_pb
from semisilo.common.wire import tensors_pb2 as pb
from tests.fuzz.seeds import new_block, new_classes, new_gaps, new_payload, new_rice
from tests.fuzz.targets import KINDS

__all__ = ["MUTATORS", "Havoc", "mutate_block", "mutate_chunk", "mutate_message", "mutate_payload"]

Havoc = Callable[[bytes], bytes]
"""Changes bytes without knowing what they mean."""

_HEADER = struct.Struct("<BBIIII")
_TRAILER = struct.Struct(TRAILER)
_EDGES = (0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 255, 256, 257, 65_535, 65_536, 65_537, 2**20 - 1, 2**20, 2**20 + 1,
          2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**40 + 1, 2**62, 2**63 - 1, -1, -2, -2**31, -2**63)
_LONGEST_STREAM = 2**16


def _near(chance: random.Random, value: int, most: int) -> int:
    """A number beside `value`, or one at the edge of something, 0 to `most`."""
    picked = value + chance.choice((-8, -2, -1, 1, 2, 8)) if chance.random() < 0.6 else chance.choice(_EDGES)
    return min(max(picked, 0), most)


# Blocks ---------------------------------------------------------------------------------------------------------------


def mutate_block(data: bytes, chance: random.Random, havoc: Havoc) -> bytes:
    """Changes an input of the target `block`."""
    if len(data) < 2 + HEADER_BYTES or chance.random() < 0.02:
        return new_block(chance)
    if chance.random() < 0.1:
        return havoc(data)
    changed = _changed_block(data[0], data[2:], chance, havoc)
    kind, flags = data[0], 0
    if chance.random() < 0.02:
        kind = chance.randrange(len(KINDS))
    if chance.random() < 0.01:
        flags = chance.randrange(4)
    return bytes((kind, flags)) + changed


def _changed_block(kind_number: int, data: bytes, chance: random.Random, havoc: Havoc) -> bytes:
    """Changes a header and its body."""
    tag, value, n, nnz, index_bytes, value_bytes = _HEADER.unpack_from(data)
    body = data[HEADER_BYTES:]
    index, values = body[:index_bytes], body[index_bytes:index_bytes + value_bytes]
    what = chance.randrange(16)
    if what == 0:
        tag = chance.choice((*IndexEncoding, 0x85, 0x86, 0x87, tag ^ 0x80, chance.randrange(256)))
    elif what == 1:
        value = chance.choice((*ValueEncoding, chance.randrange(256)))
    elif what == 2:
        n = _near(chance, n, 2**32 - 1 if chance.random() < 0.1 else 6000)
    elif what == 3:
        nnz = _near(chance, nnz, 2**32 - 1 if chance.random() < 0.1 else n)
    elif what == 4:
        index, nnz = _new_index(tag, n, nnz, chance)
    elif what == 5:
        other = new_block(chance, kind_number % len(KINDS), n if 0 < n <= 6000 else None)[2:]
        _, value, _, nnz, skipped, length = _HEADER.unpack_from(other)
        values = other[HEADER_BYTES + skipped:][:length]
    elif what < 11 and index and tag & 0x7F == IndexEncoding.CLASSES and len(index) >= 4:
        index = _changed_classes(index, chance, havoc)
    elif what < 11 and index:
        index = _changed_stream(index, tag & 0x7F in (IndexEncoding.ZSTD_BITMASK, IndexEncoding.ZSTD_GAPS), chance,
                                havoc)
    else:
        values = _changed_values(value, values, n, nnz, KINDS[kind_number % len(KINDS)].size_bytes, chance, havoc)
    if chance.random() < 0.97:
        index_bytes, value_bytes = len(index), len(values)
    return _HEADER.pack(tag, value, n, nnz, index_bytes & 0xFFFF_FFFF, value_bytes & 0xFFFF_FFFF) + index + values


def _new_index(tag: int, n: int, nnz: int, chance: random.Random) -> tuple[bytes, int]:
    """Positions of that form, of which some are perhaps beyond n, and how many values there are then."""
    listed = min(max(n - nnz if tag & 0x80 else nnz, 1), 3000)
    numbers = np.random.default_rng(chance.getrandbits(32))
    gaps = numbers.integers(0, max(1, 2 * min(n, BLOCK_ELEMENTS) // listed), listed)
    if chance.random() < 0.1:
        gaps[-1] = min(_near(chance, n, BLOCK_ELEMENTS), 50_000)
    form = tag & 0x7F
    if form == IndexEncoding.RICE:
        return new_rice(gaps, chance.choice((0, 1, 3, 6, 10, 20))), nnz
    if form == IndexEncoding.ZSTD_GAPS:
        return compress(new_gaps(gaps)), nnz
    if form == IndexEncoding.CLASSES:
        return new_classes(gaps), nnz
    mask = np.zeros(min(n, 6000), dtype=bool)
    mask[(np.cumsum(gaps + 1) - 1)[np.cumsum(gaps + 1) <= len(mask)]] = True
    packed = np.packbits(mask).tobytes()
    return compress(packed) if form == IndexEncoding.ZSTD_BITMASK else packed, int(np.count_nonzero(mask))


def _changed_stream(stream: bytes, compressed: bool, chance: random.Random, havoc: Havoc) -> bytes:
    """Changes a stream; a compressed one mostly by what it holds."""
    if not compressed or chance.random() < 0.3:
        return havoc(stream)
    try:
        size = content_size(stream)
        content = decompress(stream, size) if size <= _LONGEST_STREAM else b""
    except BadPayload:
        return compress(stream)
    how = chance.randrange(8)
    if how == 0:
        return compress(content) + compress(b"x" * chance.randrange(40))  # two frames
    if how == 1:
        return compress(compress(content))  # a frame in a frame
    if how == 2:
        return compress(b"\xff" * chance.choice((1, 10, 1000, _LONGEST_STREAM)) + content)
    return compress(havoc(content) if content else b"\0")


def _changed_classes(index: bytes, chance: random.Random, havoc: Havoc) -> bytes:
    length = int.from_bytes(index[:4], "little")
    classes, low = index[4:4 + length], index[4 + length:]
    if chance.random() < 0.6:
        classes = _changed_stream(classes, True, chance, havoc)
    else:
        low = havoc(low) if chance.random() < 0.3 else (havoc(low) + bytes(len(low)))[:len(low)]
    if chance.random() < 0.95:
        length = len(classes)
    return length.to_bytes(4, "little") + classes + low


def _changed_values(value: int, values: bytes, n: int, nnz: int, size: int, chance: random.Random,
                    havoc: Havoc) -> bytes:
    if value == ValueEncoding.PLANES:
        return _changed_planes(values, nnz, size, chance, havoc)
    if value == ValueEncoding.BF16:
        return _changed_planes(values, nnz, 2, chance, havoc)
    if value in (ValueEncoding.INT8, ValueEncoding.INT4) and len(values) >= 4:
        length = int.from_bytes(values[:4], "little")
        scales, codes = values[4:4 + length], values[4 + length:]
        if chance.random() < 0.5:
            group = 256 if value == ValueEncoding.INT8 else 64
            scales = _changed_planes(scales, -(-nnz // group), 2, chance, havoc)
        else:
            codes = _changed_planes(codes, nnz if value == ValueEncoding.INT8 else -(-nnz // 2), 1, chance, havoc)
        if chance.random() < 0.95:
            length = len(scales)
        return length.to_bytes(4, "little") + scales + codes
    return havoc(values)


def _changed_planes(data: bytes, count: int, size: int, chance: random.Random, havoc: Havoc) -> bytes:
    """Changes one plane, compressed or not, and puts the lengths right."""
    if not data or data[0] >> size or chance.random() < 0.1:
        return havoc(data)
    wide = 2 if count <= 2**16 else 4
    numbers = [number for number in range(size) if data[0] >> number & 1]
    at = 1 + wide * len(numbers)
    planes = []
    for number in range(size):
        offset = 1 + wide * numbers.index(number) if number in numbers else 0
        length = int.from_bytes(data[offset:offset + wide], "little") if offset else count
        planes.append(data[at:at + length])
        at += length
    chosen = chance.randrange(size)
    if chosen in numbers:
        planes[chosen] = _changed_stream(planes[chosen], True, chance, havoc)
    elif chance.random() < 0.3:
        numbers = sorted((*numbers, chosen))
        planes[chosen] = compress(planes[chosen])
    elif planes[chosen] and chance.random() < 0.4:
        offset = chance.randrange(len(planes[chosen]))
        edge = bytes((chance.choice((0, 1, 0x7E, 0x7F, 0x80, 0xF6, 0xF7, 0xF8, 0xFE, 0xFF)),))
        planes[chosen] = planes[chosen][:offset] + edge + planes[chosen][offset + 1:]
    elif planes[chosen]:
        planes[chosen] = (havoc(planes[chosen]) + bytes(count if count < 6000 else 0))[:count]
    lengths = b"".join(min(len(planes[number]), 256**wide - 1).to_bytes(wide, "little") for number in numbers)
    return bytes((sum(1 << number for number in numbers),)) + lengths + b"".join(planes)


# Payloads -------------------------------------------------------------------------------------------------------------


def mutate_payload(data: bytes, chance: random.Random, havoc: Havoc) -> bytes:
    """Changes an input of the target `payload`."""
    if len(data) < 5 or chance.random() < 0.02:
        return new_payload(chance)
    if chance.random() < 0.05:
        return havoc(data)
    flags, length = struct.unpack_from("<BI", data)
    first, second = data[5:5 + length], data[5 + length:]
    if chance.random() < 0.05:
        flags = chance.randrange(8)
    if chance.random() < 0.8:
        first = _changed_file(first, chance, havoc)
    else:
        second = _changed_file(second, chance, havoc)
    return struct.pack("<BI", flags, len(first)) + first + second


def _changed_file(data: bytes, chance: random.Random, havoc: Havoc) -> bytes:
    if len(data) < len(MAGIC) + _TRAILER.size:
        return havoc(data)
    length, _ = _TRAILER.unpack(data[-_TRAILER.size:])
    start = len(data) - _TRAILER.size - length
    try:
        manifest = pb.PayloadManifest.FromString(data[max(start, 0):-_TRAILER.size])
    except DecodeError:
        return havoc(data)
    body = data[len(MAGIC):max(start, len(MAGIC))]
    how = chance.random()
    if how < 0.3 or not manifest.groups:
        _change_message(manifest, chance)
    elif how < 0.35:
        body = havoc(body)
    else:
        body = _changed_body(body, manifest, chance, havoc)
    if chance.random() < 0.02:
        manifest.format = 2
    tail = manifest.SerializeToString()
    return MAGIC + body + tail + _TRAILER.pack(len(tail), MAGIC)


def _changed_body(body: bytes, manifest: pb.PayloadManifest, chance: random.Random, havoc: Havoc) -> bytes:
    """Changes one block, and mostly says so in the manifest."""
    number = chance.randrange(len(manifest.groups))
    at = sum(group.encoded_bytes for group in manifest.groups[:number])
    end = at + manifest.groups[number].encoded_bytes
    if not 0 <= at <= end <= len(body):
        return havoc(body)
    offsets = []
    while at + HEADER_BYTES <= end:
        offsets.append(at)
        index_bytes, value_bytes = struct.unpack_from("<II", body, at + 10)
        at += HEADER_BYTES + index_bytes + value_bytes
    if not offsets:
        return havoc(body)
    which = chance.randrange(len(offsets))
    at, behind = offsets[which], (offsets[which + 1] if which + 1 < len(offsets) else end)
    kind = 0
    runs = [data_type for data_type, _ in groupby(tensor.data_type for tensor in manifest.groups[number].tensors)]
    if which < len(runs):
        kind = 2 * (runs[which] - 1) + (manifest.groups[number].reference_form == 1)
    how = chance.random()
    if how < 0.7:
        part = _changed_block(max(kind, 0), body[at:behind], chance, havoc)
    elif how < 0.9:
        elements = struct.unpack_from("<I", body, at + 2)[0]
        part = new_block(chance, max(kind, 0) % len(KINDS), elements if 0 < elements <= 6000 else None)[2:]
    else:
        part = chance.choice((b"", body[at:behind] * 2, body[offsets[0]:behind]))
    if chance.random() < 0.97:
        grown = manifest.groups[number].encoded_bytes + len(part) - (behind - at)
        manifest.groups[number].encoded_bytes = max(grown, 0)
    return body[:at] + part + body[behind:]


# Messages -------------------------------------------------------------------------------------------------------------

_TYPES: tuple[type[Message], ...] = (pb.PayloadManifest, pb.PayloadReference, round_pb.Task, round_pb.UpdateDeclaration)
_TEXTS = ("", "a", "model", "a/0", "x" * 128, "x" * 129, "é", "\0", "\n", "\u202e", "\ud7ff", "..", "a/b", "smallest",
          "raw", "int8", "small", "none", "group", "fit", "nearest", '{"a": 1e999}', '{"a": "\\ud800"}', "[" * 2000,
          "{}", "[]", '{"a": NaN}', "1" * 5000, '{"a": ' + "9" * 5000 + "}", '{"a": -0.0}', '{"a": 1, "a": 2}')
_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"))


def mutate_message(data: bytes, chance: random.Random, havoc: Havoc) -> bytes:
    """Changes an input of the target `message`."""
    if not data or chance.random() < 0.25:
        return havoc(data)
    try:
        message = _TYPES[data[0] % len(_TYPES)].FromString(data[1:])
    except DecodeError:
        return havoc(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        _change_message(message, chance)
    return data[:1] + message.SerializeToString()


def _change_message(message: Message, chance: random.Random) -> None:
    """Changes one field, perhaps of a message within."""
    field = chance.choice(message.DESCRIPTOR.fields)
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        getattr(message, field.name)[_text(chance)] = chance.choice(_FLOATS)
    elif field.is_repeated:
        values = getattr(message, field.name)
        how = chance.random()
        if how < 0.15 and len(values):
            del values[chance.randrange(len(values))]
        elif how < 0.4 or not len(values):
            if inner is None:
                values.append(_scalar(field, chance))
            elif len(values):
                values.add().CopyFrom(chance.choice(values))
            else:
                _change_message(values.add(), chance)
        elif inner is not None:
            _change_message(chance.choice(values), chance)
        else:
            values[chance.randrange(len(values))] = _scalar(field, chance)
    elif inner is not None:
        if chance.random() < 0.1:
            message.ClearField(field.name)
        else:
            _change_message(getattr(message, field.name), chance)
    elif field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64) and chance.random() < 0.5:
        setattr(message, field.name, min(max(getattr(message, field.name) + chance.choice((-18, -1, 1, 18)), -100),
                                         2**31 - 1))
    else:
        setattr(message, field.name, _scalar(field, chance))


def _text(chance: random.Random) -> str:
    return chance.choice(_TEXTS)


def _scalar(field: object, chance: random.Random) -> object:
    kind: int = field.cpp_type  # type: ignore[attr-defined]
    if kind == 9:
        if field.type == 12:  # type: ignore[attr-defined]
            return bytes(chance.choice((0, 1, 31, 32, 32, 33)))
        return _text(chance)
    if kind in (5, 6):
        return chance.choice(_FLOATS)
    if kind == 7:
        return chance.random() < 0.5
    if kind == 8:
        return chance.choice((0, 1, 2, 3, 4, 7, 8, 99, -1))
    low, high = {1: (-2**31, 2**31 - 1), 2: (-2**63, 2**63 - 1), 3: (0, 2**32 - 1), 4: (0, 2**64 - 1)}[kind]
    return min(max(chance.choice(_EDGES), low), high)


# Chunks ---------------------------------------------------------------------------------------------------------------


def mutate_chunk(data: bytes, chance: random.Random, havoc: Havoc) -> bytes:
    """Changes an input of the target `chunk`, or makes one whose numbers are perhaps longer than they need be."""
    if chance.random() < 0.5:
        return havoc(data)
    fields = []
    content = bytes(chance.randrange(20))
    for number in chance.choice(((1, 2, 3), (1, 2, 3), (1, 3), (2, 3), (3,), (), (3, 2, 1), (1, 1, 2, 3), (1, 2, 3, 3),
                                 (1, 2, 3, 4))):
        fields.append(
            b"\x08" + _varint(chance.choice(_EDGES) & (2**64 - 1), chance) if number == 1 else
            b"\x15" + (zlib.crc32(content) if chance.random() < 0.5 else 0).to_bytes(4, "little") if number == 2 else
            b"\x1a" + _varint(len(content), chance) + content if number == 3 else
            b"\x20\x01")
    inner = b"".join(fields)
    if chance.random() < 0.1:
        inner = inner[:chance.randrange(len(inner) + 1)]
    field = chance.choice((DOWNLOAD_FIELD, SUBMIT_FIELD))
    return bytes((field << 3 | 2,)) + _varint(len(inner), chance) + inner


def _varint(value: int, chance: random.Random) -> bytes:
    """A number in the form of protobuf, at times with bytes at its end that add nothing."""
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    if chance.random() < 0.2:
        groups += [0] * chance.randrange(1, 9)
    return bytes(group | 0x80 for group in groups[:-1]) + bytes((groups[-1],))


MUTATORS: dict[str, Callable[[bytes, random.Random, Havoc], bytes]] = {
    "block": mutate_block, "payload": mutate_payload, "message": mutate_message, "chunk": mutate_chunk,
}
