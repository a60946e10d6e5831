"""What a silo that lies sends in place of its update: something else in every round."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from semisilo.common.payload.codec import ELEMENT_TYPES, IndexEncoding, ValueEncoding
from semisilo.common.payload.codec.planes import encode_planes
from semisilo.common.payload.manifest import GroupManifest, manifest_to_proto
from semisilo.common.payload.reader import MAGIC, TRAILER, PayloadReader
from semisilo.common.wire import tensors_pb2 as pb

_HEADER = struct.Struct("<BBIIII")


def lying(upload: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`Link.upload` that lies from the second update on, as long as there are lies."""
    lies = [None, *_LIES]

    @functools.wraps(upload)
    async def wrapper(link: object, request: Any, path: Path, **more: Any) -> Any:
        lie = lies.pop(0) if lies else None
        if lie is None:
            return await upload(link, request, path, **more)
        told = type(request).FromString(request.SerializeToString())
        content, manifest = lie(path)
        target = path.with_suffix(".lie")
        target.write_bytes(content)
        told.update.payload.digest, told.update.payload.size_bytes = hashlib.sha256(content).digest(), len(content)
        told.update.manifest.CopyFrom(manifest)
        told.update_id = hashlib.sha256(content).hexdigest()[:32]
        try:
            return await upload(link, told, target, **more)
        finally:
            target.unlink()
    return wrapper


def _with_block(path: Path, index: int, value: int, indices: bytes, values: bytes, *,
                listed: int) -> tuple[bytes, pb.PayloadManifest]:
    """The update with its model as one block of that form."""
    groups, bodies = _parts(path)
    at = [group.name for group in groups].index("model")
    elements = sum(spec.num_elements for spec in groups[at].tensors)
    bodies[at] = _HEADER.pack(index, value, elements, listed, len(indices), len(values)) + indices + values
    groups[at] = replace(groups[at], encoded_bytes=len(bodies[at]))
    manifest = manifest_to_proto(groups)
    return _file(bodies, manifest), manifest


def _parts(path: Path) -> tuple[list[GroupManifest], list[bytes]]:
    with PayloadReader(path) as reader:
        groups, at, content, bodies = list(reader.groups), reader.first_block, path.read_bytes(), []
        for group in groups:
            bodies.append(content[at:at + group.encoded_bytes])
            at += group.encoded_bytes
    return groups, bodies


def _file(bodies: list[bytes], manifest: pb.PayloadManifest) -> bytes:
    tail = manifest.SerializeToString()
    return MAGIC + b"".join(bodies) + tail + struct.pack(TRAILER, len(tail), MAGIC)


def _elements(path: Path) -> int:
    with PayloadReader(path) as reader:
        return sum(spec.num_elements for spec in reader.group("model").tensors)


def _scale_that_is_no_number(path: Path) -> tuple[bytes, pb.PayloadManifest]:
    scales = encode_planes(np.full(1, 0x7FC0, "<u2"), ELEMENT_TYPES["bfloat16"])
    codes = encode_planes(np.full(8, 200, "u1"), ELEMENT_TYPES["uint8"])
    return _with_block(path, IndexEncoding.BITMASK, ValueEncoding.INT8, b"\xff" + bytes((_elements(path) - 1) // 8),
                       struct.pack("<I", len(scales)) + scales + codes, listed=8)


def _position_beyond_the_end(path: Path) -> tuple[bytes, pb.PayloadManifest]:
    """One gap of 2^20 - 1 in the form of Rice, its quotient by 2^20 being 0."""
    return _with_block(path, IndexEncoding.RICE, ValueEncoding.RAW, b"\x14" + b"\x80" * 20 + b"\x80",
                       np.ones(1, "<f4").tobytes(), listed=1)


def _bomb(path: Path) -> tuple[bytes, pb.PayloadManifest]:
    """Planes that say how long they are and hold 128 KiB in every 4 bytes."""
    elements = _elements(path)
    block = (2 | 131_072 << 3).to_bytes(3, "little") + b"\1"
    frame = b"\xe0" + elements.to_bytes(8, "little") + block * (elements // 4 - 100)
    lengths = struct.pack("<B4H" if elements <= 2**16 else "<B4I", 15, *[len(frame)] * 4)
    return _with_block(path, IndexEncoding.DENSE, ValueEncoding.PLANES, b"", lengths + frame * 4, listed=elements)


def _all_numbers_instead_of_a_few(path: Path) -> tuple[bytes, pb.PayloadManifest]:
    elements = _elements(path)
    return _with_block(path, IndexEncoding.DENSE, ValueEncoding.RAW, b"", np.full(elements, 0.01, "<f4").tobytes(),
                       listed=elements)


def _other_tensors_than_declared(path: Path) -> tuple[bytes, pb.PayloadManifest]:
    groups, bodies = _parts(path)
    declared = manifest_to_proto(groups)
    first, *others = groups[0].tensors
    groups[0] = replace(groups[0], tensors=(replace(first, name=f"{first.name}x"), *others))
    return _file(bodies, manifest_to_proto(groups)), declared


_LIES = (_scale_that_is_no_number, _position_beyond_the_end, _bomb, _all_numbers_instead_of_a_few,
         _other_tensors_than_declared)
