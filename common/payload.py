"""The payload file: a checked manifest, then the encoded blocks of every tensor, group by group.

Layout (also at `PayloadManifest` in tensors.proto): the 8 bytes "SEMISILO", the manifest's length as 4 bytes little
endian, the manifest, the blocks. Everything read here may come from a stranger: counts, names, shapes and sizes are
checked before memory is taken.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
from google.protobuf.message import DecodeError

from common.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    HEADER_BYTES,
    Bits,
    IndexEncoding,
    all_finite,
    decode_block,
    encode_blocks,
    largest_encoded_bytes,
    parse_header,
    smallest_encoded_bytes,
)
from common.errors import BadPayload, DiskFull, LayoutMismatch
from common.exchange import Meaning, PayloadRef, TensorSpec
from common.manifest import (
    DEFAULT_MAX_BYTES,
    MAX_GROUPS,
    GroupManifest,
    check_manifest,
    manifest_to_proto,
    parse_manifest,
    parse_reference,
    reference_to_proto,
)
from common.store import PayloadStore
from common.wire import tensors_pb2 as pb

__all__ = [
    "DEFAULT_MAX_BYTES", "MAX_GROUPS", "MAX_MANIFEST_BYTES", "EncodedInput", "GroupManifest", "PayloadReader",
    "TensorInput", "check_manifest", "manifest_to_proto", "parse_manifest", "parse_reference", "read_manifest",
    "reference_to_proto", "write_payload",
]

MAGIC = b"SEMISILO"
MAX_MANIFEST_BYTES = 2 * 2**20
"""About 25 groups of 1000 tensors each; parsing one takes at most some tens of MiB."""
_LENGTH = struct.Struct("<I")
_HEAD_BYTES = len(MAGIC) + _LENGTH.size
_COPY_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TensorInput:
    """One tensor to be written."""

    spec: TensorSpec
    bits: Callable[[], Bits]
    """Gives the elements as little-endian unsigned integers, contiguous; called once, when the tensor's turn comes."""


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """One tensor group to be written."""

    tensors: Sequence[TensorInput]
    meaning: Meaning = Meaning.VALUES
    base: str = ""
    """Hex digest of the tensors that a DIFFERENCE or OVERWRITE refers to; else empty."""


def write_payload(store: PayloadStore, groups: Mapping[str, EncodedInput]) -> PayloadRef:
    """Encodes tensor groups into a payload of the store; durable when this returns.

    One tensor is in memory at a time. The manifest comes first in the file, but its sizes are known last: the file is
    written with the sizes of an encoding without any saving, and copied behind the right manifest where that was wrong.

    Raises: BadPayload for groups that no reader would accept (`parse_manifest`); DiskFull, nothing is left then.
    """
    planned = tuple(
        GroupManifest(name, group.meaning, group.base, tuple(tensor.spec for tensor in group.tensors),
                      sum(_largest(tensor.spec) for tensor in group.tensors))
        for name, group in groups.items())
    temporary = store.temporary()
    try:
        head = _head(planned)
        sizes, digest = _write_body(temporary, head, groups)
        actual = tuple(replace(group, encoded_bytes=size) for group, size in zip(planned, sizes, strict=True))
        if actual != planned:
            digest = _replace_head(store, temporary, len(head), _head(actual))
        size_bytes = temporary.stat().st_size
        store.add_file(temporary, digest=digest)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"The disk of {store.folder} is full.", remedy="Free some space.") from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return PayloadRef(digest, size_bytes, tuple(groups))


def _largest(spec: TensorSpec) -> int:
    if spec.dtype not in ELEMENT_TYPES:
        raise BadPayload(f"The tensor '{spec.name}' has the type {spec.dtype}, which cannot be sent.",
                         remedy=f"Types: {', '.join(ELEMENT_TYPES)}.")
    return largest_encoded_bytes(spec.num_elements, ELEMENT_TYPES[spec.dtype].size_bytes)


def _head(groups: Sequence[GroupManifest]) -> bytes:
    message = manifest_to_proto(groups)
    parse_manifest(message)  # so that nothing is sent which the other side must refuse
    manifest = message.SerializeToString(deterministic=True)
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise BadPayload(f"The manifest has {len(manifest)} bytes; {MAX_MANIFEST_BYTES} are allowed.",
                         remedy="Send fewer groups, or shorter tensor names.")
    return MAGIC + _LENGTH.pack(len(manifest)) + manifest


def _write_body(path: Path, head: bytes, groups: Mapping[str, EncodedInput]) -> tuple[list[int], str]:
    """Writes head and blocks; returns the encoded bytes of each group, and the SHA-256 of the file."""
    total = hashlib.sha256(head)
    sizes = []
    with path.open("wb", buffering=0) as file:
        _write_all(file.fileno(), head)
        for group in groups.values():
            size = 0
            for tensor in group.tensors:
                bits = tensor.bits()
                kind = ELEMENT_TYPES[tensor.spec.dtype]
                if bits.dtype != kind.bits or bits.size != tensor.spec.num_elements:
                    raise LayoutMismatch(f"The tensor '{tensor.spec.name}' is not what its specification says.")
                for parts in encode_blocks(bits, every_value=group.meaning is Meaning.OVERWRITE):
                    for part in parts:
                        total.update(part)
                        _write_all(file.fileno(), part)
                        size += len(part)
            sizes.append(size)
    return sizes, total.hexdigest()


def _replace_head(store: PayloadStore, path: Path, old_head_bytes: int, head: bytes) -> str:
    """Puts another head in front of the body of a file; returns the SHA-256 of the result."""
    total = hashlib.sha256(head)
    body = store.temporary()
    try:
        os.replace(path, body)
        with body.open("rb", buffering=0) as source, path.open("wb", buffering=0) as target:
            source.seek(old_head_bytes)
            _write_all(target.fileno(), head)
            while data := source.read(_COPY_BYTES):
                total.update(data)
                _write_all(target.fileno(), data)
    finally:
        body.unlink(missing_ok=True)
    return total.hexdigest()


def _write_all(handle: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view):]


class PayloadReader:
    """Reads a payload file: its checked manifest at once, its tensors one at a time when asked for."""

    def __init__(self, path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, require_finite: bool = False) -> None:
        """Opens the file and checks its head.

        Args:
            path: the file.
            max_bytes: most bytes that its groups may have when decoded.
            require_finite: refuse infinities and NaN in float tensors.
        Raises: BadPayload when the file is not a payload, its size is not what the manifest says, or it is too large.
        """
        self._require_finite = require_finite
        self._file = path.open("rb", buffering=0)
        try:
            self.groups, start = self._read_head()
            size = os.fstat(self._file.fileno()).st_size
            if (expected := start + sum(group.encoded_bytes for group in self.groups)) != size:
                raise BadPayload(f"The payload has {size} bytes; its manifest says {expected}.")
            if (dense := sum(group.dense_bytes for group in self.groups)) > max_bytes:
                raise BadPayload(f"The payload has {dense} bytes when decoded; {max_bytes} are allowed here.")
        except BaseException:
            self._file.close()
            raise
        self._starts: dict[str, int] = {}
        for group in self.groups:
            self._starts[group.name] = start
            start += group.encoded_bytes

    def __enter__(self) -> PayloadReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def group(self, name: str) -> GroupManifest:
        """The manifest of one group. Raises: BadPayload when the payload does not have it."""
        for group in self.groups:
            if group.name == name:
                return group
        raise BadPayload(f"The payload has no group '{name}'.")

    def tensors(self, name: str) -> Iterator[tuple[TensorSpec, Bits]]:
        """Decodes the tensors of one group in order, one at a time.

        Yields: (spec, bits), bits in the tensor's shape as little-endian unsigned integers of the element's width.
        Raises: BadPayload, naming the tensor.
        """
        group = self.group(name)
        position = self._starts[name]
        end = position + group.encoded_bytes
        later = sum(smallest_encoded_bytes(spec.num_elements) for spec in group.tensors)
        for spec in group.tensors:
            # What the tensors behind this one need at least is not for this one to take.
            later -= smallest_encoded_bytes(spec.num_elements)
            try:
                bits, position = self._read_tensor(group, spec, position, end - later)
            except BadPayload as error:
                raise BadPayload(f"Tensor '{spec.name}' of the group '{name}': {error.text}",
                                 remedy=error.remedy) from None
            yield spec, bits
        if position != end:
            raise BadPayload(f"The group '{name}' has {end - position} bytes after its last tensor.")

    def _read_head(self) -> tuple[tuple[GroupManifest, ...], int]:
        start = self._read(_HEAD_BYTES, 0)
        if len(start) != _HEAD_BYTES or not start.startswith(MAGIC):
            raise BadPayload("The file is not a payload: it does not begin with SEMISILO.")
        length: int = _LENGTH.unpack_from(start, len(MAGIC))[0]
        if length > MAX_MANIFEST_BYTES:
            raise BadPayload(f"The manifest has {length} bytes; {MAX_MANIFEST_BYTES} are allowed.")
        data = self._read(length, _HEAD_BYTES)
        if len(data) != length:
            raise BadPayload(f"The manifest of {length} bytes ends after {len(data)}.")
        try:
            message = pb.PayloadManifest.FromString(data)
        except DecodeError:
            raise BadPayload("The manifest is no message of the expected form.") from None
        return parse_manifest(message), _HEAD_BYTES + length

    def _read_tensor(self, group: GroupManifest, spec: TensorSpec, position: int, end: int) -> tuple[Bits, int]:
        """Decodes the blocks from `position` on, none of which may reach beyond `end`."""
        kind = ELEMENT_TYPES[spec.dtype]
        elements = spec.num_elements
        # Zeroed memory is taken from the system page by page as it is written, so empty blocks cost nothing yet.
        flat = _zeros(elements, spec)
        for start in range(0, elements, BLOCK_ELEMENTS):
            out = flat[start:start + BLOCK_ELEMENTS]
            head = self._read(min(HEADER_BYTES, end - position), position)
            position += HEADER_BYTES
            header = parse_header(head, elements=len(out), remaining_bytes=end - position, kind=kind)
            if group.meaning is Meaning.OVERWRITE and header.index is not IndexEncoding.DENSE:
                raise BadPayload("It overwrites only some elements, which this version cannot read.",
                                 remedy="Update this side.")
            decode_block(header, self._read(header.body_bytes, position), out, kind=kind)
            position += header.body_bytes
            if self._require_finite and not all_finite(out, kind):
                raise BadPayload("It has an infinity or NaN.", remedy="Look for a learning rate that is too high.")
        return flat.reshape(spec.shape), position

    def _read(self, length: int, position: int) -> bytes:
        return os.pread(self._file.fileno(), length, position)


def _zeros(elements: int, spec: TensorSpec) -> Bits:
    try:
        return np.zeros(elements, dtype=ELEMENT_TYPES[spec.dtype].bits)
    except MemoryError:
        raise BadPayload(f"There is no memory for {elements} elements.") from None


def read_manifest(path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[GroupManifest, ...]:
    """The checked manifest of a payload file. Raises: BadPayload, as `PayloadReader`."""
    with PayloadReader(path, max_bytes=max_bytes) as reader:
        return reader.groups
