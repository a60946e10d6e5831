"""Reading a payload file, tensor by tensor. Everything in it may come from a stranger: counts, names, shapes and sizes
are checked before memory is taken. `semisilo.common.payload.writer` writes the file and describes its layout.

Tests: tests/common/payload/test_hostile_payloads.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from google.protobuf.message import DecodeError

from semisilo.common.errors import BadPayload, LayoutMismatch, WrongBase
from semisilo.common.methods.contract import Meaning, TensorSpec
from semisilo.common.payload.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    HEADER_BYTES,
    Bits,
    BlockHeader,
    ElementType,
    IndexEncoding,
    ValueEncoding,
    all_finite,
    coded_kind,
    decode_block,
    parse_header,
)
from semisilo.common.payload.manifest import (
    DEFAULT_MAX_BYTES,
    MAX_GROUPS,
    GroupManifest,
    ReferenceForm,
    parse_manifest,
)
from semisilo.common.payload.reference import HeldTensors, add_reference, can_sum
from semisilo.common.wire import tensors_pb2 as pb

__all__ = ["MAGIC", "MAX_MANIFEST_BYTES", "TRAILER", "HeldFile", "PayloadReader", "check_finite", "read_manifest"]

MAGIC = b"SEMISILO"
TRAILER = "<I8s"
"""Behind the manifest: its length and the magic."""
MAX_MANIFEST_BYTES = 2 * 2**20
"""About 25 groups of 1000 tensors each; parsing one takes at most some tens of MiB."""
_MAX_OTHER_FIELDS = 64
"""Of a manifest beside its groups: the version, and what a newer one may add."""
_TRAILER = struct.Struct(TRAILER)


class PayloadReader:
    """Reads a payload file: its checked manifest at once, its tensors one at a time when asked for."""

    def __init__(self, path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, require_finite: bool = False) -> None:
        """Opens the file and checks its manifest.

        Args:
            path: the file.
            max_bytes: most bytes that its groups may have when decoded.
            require_finite: refuse infinities and NaN in float tensors.
        Raises: BadPayload when the file is not a payload, its size is not what the manifest says, or it is too large.
        """
        self._require_finite = require_finite
        self._file = path.open("rb", buffering=0)
        try:
            self.size_bytes = size = os.fstat(self._file.fileno()).st_size
            self.groups, end = self._read_manifest(size)
            if (expected := len(MAGIC) + sum(group.encoded_bytes for group in self.groups)) != end:
                raise BadPayload(f"The payload has {end} bytes before its manifest, which says {expected}.")
            if (dense := sum(group.dense_bytes for group in self.groups)) > max_bytes:
                raise BadPayload(f"The payload has {dense} bytes when decoded; {max_bytes} are allowed here.")
        except BaseException:
            self._file.close()
            raise
        self._starts: dict[str, int] = {}
        start = len(MAGIC)
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

    def tensors(self, name: str, reference: HeldTensors | None = None, *,
                require_finite: bool | None = None) -> Iterator[tuple[TensorSpec, Bits]]:
        """Decodes the tensors of one group in order, one at a time.

        Args:
            reference: the tensors that the group is coded against; not looked at for a group that stands alone. The
                caller knows that they have the digest `group.reference`, and compares the digest of what comes out with
                `group.tensors_digest`.
            require_finite: None for what the reader was opened with; False for a caller that looks at every element
                itself.
        Yields: (spec, bits), bits in the tensor's shape as little-endian unsigned integers of the element's width.
        Raises: BadPayload, naming the tensor; WrongBase without the reference, LayoutMismatch with a different one.
        """
        group = self.group(name)
        theirs = self._open_reference(group, reference)
        finite = self._require_finite if require_finite is None else require_finite
        start = self._starts[name]
        blocks = _Blocks(self._file.fileno(), group, start, start + group.encoded_bytes)
        for run in group.runs:
            blocks.begin(run)
            for spec in run:
                kind = ELEMENT_TYPES[spec.dtype]
                with _naming(spec, name):
                    flat = _memory(spec, cleared=not blocks.as_large_as_elements)
                    blocks.fill(flat)
                    if theirs is not None:
                        add_reference(flat, next(theirs), kind, group.reference_form)
                if finite:
                    check_finite(flat, spec, name)
                yield spec, flat.reshape(spec.shape)
        blocks.finish()

    def sample(self, name: str, tensor: str, count: int) -> Bits:
        """The first `count` elements, or all, of one tensor of a group that stands alone; others are passed over.

        Raises: BadPayload.
        """
        group = self.group(name)
        assert group.reference_form is ReferenceForm.ALONE, "a tensor alone is only read of what stands alone"
        start = self._starts[name]
        blocks = _Blocks(self._file.fileno(), group, start, start + group.encoded_bytes)
        for run in group.runs:
            blocks.begin(run)
            for spec in run:
                with _naming(spec, name):
                    if spec.name == tensor:
                        found = np.zeros(min(count, spec.num_elements), dtype=ELEMENT_TYPES[spec.dtype].bits)
                        blocks.fill(found)
                        return found
                    blocks.skip(spec.num_elements)
        raise BadPayload(f"The group '{name}' has no tensor '{tensor}'.")

    @property
    def first_block(self) -> int:
        """Where the blocks begin in the file."""
        return len(MAGIC)

    def headers(self, name: str) -> Iterator[tuple[BlockHeader, ElementType]]:
        """The checked headers of the blocks of a group in order, with the type of their elements; nothing is decoded.

        Nothing for a group without bytes, which is zero in every bit. Raises: BadPayload.
        """
        group = self.group(name)
        if not group.encoded_bytes:
            return
        start = self._starts[name]
        blocks = _Blocks(self._file.fileno(), group, start, start + group.encoded_bytes)
        for run in group.runs:
            blocks.begin(run)
            left = _count(run)
            while left:
                elements = min(BLOCK_ELEMENTS, left)
                yield blocks.pass_over(elements), ELEMENT_TYPES[run[0].dtype]
                left -= elements
        blocks.finish()

    def _open_reference(self, group: GroupManifest, reference: HeldTensors | None) -> Iterator[Bits] | None:
        if group.reference_form is ReferenceForm.ALONE:
            return None
        if reference is None:
            raise WrongBase(f"The group '{group.name}' is coded against tensors that are not here.",
                            remedy="The whole group is sent when the task is taken again.")
        if reference.specs != group.tensors:
            raise LayoutMismatch(f"The group '{group.name}' is coded against tensors of another layout.")
        if group.reference_form is ReferenceForm.SUM:
            for spec in group.tensors:
                if not can_sum(ELEMENT_TYPES[spec.dtype]):
                    raise BadPayload(f"Tensor '{spec.name}' of the group '{group.name}': a sum of {spec.dtype} cannot"
                                     " be.")
        return reference.rows()

    def _read_manifest(self, size: int) -> tuple[tuple[GroupManifest, ...], int]:
        """The checked manifest and where it begins."""
        least = len(MAGIC) + _TRAILER.size
        if size < least or self._read(len(MAGIC), 0) != MAGIC:
            raise BadPayload("The file is not a payload: it does not begin with SEMISILO.")
        length, magic = _TRAILER.unpack(self._read(_TRAILER.size, size - _TRAILER.size))
        if magic != MAGIC:
            raise BadPayload("The file is not a whole payload: it does not end with SEMISILO.")
        if length > MAX_MANIFEST_BYTES:
            raise BadPayload(f"The manifest has {length} bytes; {MAX_MANIFEST_BYTES} are allowed.")
        if length > size - least:
            raise BadPayload(f"The manifest of {length} bytes does not fit into a file of {size}.")
        start = size - _TRAILER.size - length
        return _groups_in(self._read(length, start)), start

    def _read(self, length: int, position: int) -> bytes:
        return os.pread(self._file.fileno(), length, position)


def _groups_in(data: bytes) -> tuple[GroupManifest, ...]:
    """The groups of a serialised manifest. Raises: BadPayload."""
    if _has_more_fields(data, MAX_GROUPS + _MAX_OTHER_FIELDS):
        raise BadPayload(f"The payload has more groups than the {MAX_GROUPS} that are allowed.")
    try:
        message = pb.PayloadManifest.FromString(data)
    except DecodeError:
        raise BadPayload("The manifest does not have the expected form.") from None
    return parse_manifest(message)


def _has_more_fields(data: bytes, most: int) -> bool:
    """Whether a message has more than that many fields at its top.

    Looked at before protobuf takes its 100 bytes for each: an empty group is 2 bytes. What protobuf refuses counts as
    it may.
    """
    at = 0
    for _ in range(most):
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type == 0:
            at = _varint(data, at)[1]
        elif wire_type == 2:
            length, at = _varint(data, at)
            at += length
        else:
            at += {1: 8, 5: 4}.get(wire_type, 0)
        if at >= len(data):
            return False
    return True


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, position behind it); what is cut off counts as 0."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            break
    return value, at


class _Blocks:
    """Goes through the blocks of a group and gives out their elements, whatever tensors they belong to."""

    def __init__(self, handle: int, group: GroupManifest, start: int, end: int) -> None:
        """The blocks lie at `start` to `end` of the file; none when the group has no bytes: all is zero then."""
        self._handle = handle
        self._group = group
        self._position = start
        self._end = end
        self._all_zero = start == end
        self.as_large_as_elements = end - start >= group.dense_bytes > 0
        """Whether the file holds as many bytes as its elements take: then memory that it is decoded into need not be
        cleared before, which takes as long as reading it. Else a few bytes of a stranger could make this process touch
        all the memory that they claim to need."""
        self._later = 0 if self._all_zero else group.smallest_bytes
        self._kind = ELEMENT_TYPES["float32"]
        self._left = 0
        self._rest = np.empty(0, dtype=np.uint8)

    def begin(self, run: tuple[TensorSpec, ...]) -> None:
        """The next run; the last one was given out to its end."""
        kind = ELEMENT_TYPES[run[0].dtype]
        self._kind = coded_kind(kind) if self._group.reference_form is ReferenceForm.BITS else kind
        self._left = _count(run)
        self._rest = np.empty(0, dtype=kind.bits)

    def fill(self, out: Bits) -> None:
        """Writes the next elements to `out` (n,), zero in every bit, or anything where the group is
        `as_large_as_elements`. Raises: BadPayload."""
        if self._all_zero:
            return
        done = 0
        while done < len(out):
            if len(self._rest):
                part = self._rest[:len(out) - done]
                out[done:done + len(part)] = part
                self._rest = self._rest[len(part):]
                done += len(part)
                continue
            count = min(BLOCK_ELEMENTS, self._left)
            if count <= len(out) - done:
                self._decode(out[done:done + count])
                done += count
            else:
                self._rest = np.zeros(count, dtype=self._kind.bits)
                self._decode(self._rest)

    def skip(self, count: int) -> None:
        """Passes over elements, decoding only a block that others are in. Raises: BadPayload."""
        while count and not self._all_zero:
            if len(self._rest):
                step = min(count, len(self._rest))
                self._rest = self._rest[step:]
                count -= step
            elif (block := min(BLOCK_ELEMENTS, self._left)) <= count:
                self.pass_over(block)
                count -= block
            else:
                self._rest = np.zeros(block, dtype=self._kind.bits)
                self._decode(self._rest)

    def pass_over(self, elements: int) -> BlockHeader:
        """The header of the next block, which must have that many elements and is not decoded. Raises: BadPayload."""
        header = self._header(elements)
        self._position += header.body_bytes
        return header

    def finish(self) -> None:
        """Raises: BadPayload when there is something after the last tensor."""
        if self._position != self._end:
            raise BadPayload(f"The group '{self._group.name}' has {self._end - self._position} bytes after its last"
                             " tensor.")

    def _decode(self, out: Bits) -> None:
        header = self._header(len(out))
        if header.index is IndexEncoding.DENSE and header.value is ValueEncoding.RAW:  # no copy on the way
            if os.preadv(self._handle, [out.view(np.uint8).data], self._position) != header.body_bytes:
                raise BadPayload(f"A block of {header.body_bytes} bytes is cut off.")
        else:
            if self.as_large_as_elements:
                out[:] = 0  # it may come as it was found
            decode_block(header, os.pread(self._handle, header.body_bytes, self._position), out, kind=self._kind)
        self._position += header.body_bytes

    def _header(self, elements: int) -> BlockHeader:
        """Of the next block, of which the position is then behind the header."""
        # What the blocks behind this one need at least is not for this one to take.
        self._later -= HEADER_BYTES
        end = self._end - self._later
        data = os.pread(self._handle, max(0, min(HEADER_BYTES, end - self._position)), self._position)
        self._position += HEADER_BYTES
        header = parse_header(data, elements=elements, remaining_bytes=end - self._position, kind=self._kind)
        alone = self._group.reference_form is ReferenceForm.ALONE
        if alone and self._group.meaning is Meaning.OVERWRITE and header.index is not IndexEncoding.DENSE:
            raise BadPayload("It overwrites only some elements, and is not coded against its base.",
                             remedy="Update the sender.")
        self._left -= elements
        return header


def _count(run: tuple[TensorSpec, ...]) -> int:
    return sum(spec.num_elements for spec in run)


def check_finite(bits: Bits, spec: TensorSpec, group: str) -> None:
    """Raises: BadPayload, naming the tensor, when one of its elements is an infinity or NaN."""
    if not all_finite(bits, ELEMENT_TYPES[spec.dtype]):
        with _naming(spec, group):
            raise BadPayload("It has an infinity or NaN.", remedy="Look for a learning rate that is too high.")


@contextmanager
def _naming(spec: TensorSpec, group: str) -> Iterator[None]:
    """What is wrong with a tensor says which tensor."""
    try:
        yield
    except BadPayload as error:
        raise BadPayload(f"Tensor '{spec.name}' of the group '{group}': {error.text}", remedy=error.remedy) from None


def _memory(spec: TensorSpec, *, cleared: bool) -> Bits:
    """(n,) elements of a tensor; zero in every bit if `cleared`."""
    try:
        return (np.zeros if cleared else np.empty)(spec.num_elements, dtype=ELEMENT_TYPES[spec.dtype].bits)
    except MemoryError:
        raise BadPayload(f"There is no memory for {spec.num_elements} elements.") from None


def read_manifest(path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[GroupManifest, ...]:
    """The checked manifest of a payload file. Raises: BadPayload, as `PayloadReader`."""
    with PayloadReader(path, max_bytes=max_bytes) as reader:
        return reader.groups


@dataclass(frozen=True, slots=True)
class HeldFile:
    """The first group of a payload that stands alone; what is read raises BadPayload as `PayloadReader` does."""

    reader: PayloadReader

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """As the manifest says; nothing for a file without groups."""
        return self.reader.groups[0].tensors if self.reader.groups else ()

    def rows(self) -> Iterator[Bits]:
        """See `HeldTensors`."""
        if self.reader.groups:
            for _, bits in self.reader.tensors(self.reader.groups[0].name):
                yield bits.reshape(-1)

    def sample(self, name: str, count: int) -> Bits:
        """See `HeldTensors`."""
        return self.reader.sample(self.reader.groups[0].name, name, count)
