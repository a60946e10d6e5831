"""Reading a payload file, tensor by tensor. Everything in it may come from a stranger: counts, names, shapes and sizes
are checked before memory is taken. `common.payload` writes the file and describes its layout.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np
from google.protobuf.message import DecodeError

from common.codec import (
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
    smallest_encoded_bytes,
)
from common.errors import BadPayload, LayoutMismatch, WrongBase
from common.exchange import Meaning, TensorSpec
from common.manifest import DEFAULT_MAX_BYTES, MAX_GROUPS, GroupManifest, ReferenceForm, parse_manifest
from common.reference_form import add_reference, can_sum
from common.wire import tensors_pb2 as pb

__all__ = ["MAGIC", "MAX_MANIFEST_BYTES", "TRAILER", "PayloadReader", "read_manifest"]

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
            size = os.fstat(self._file.fileno()).st_size
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

    def tensors(self, name: str, reference: PayloadReader | None = None) -> Iterator[tuple[TensorSpec, Bits]]:
        """Decodes the tensors of one group in order, one at a time.

        Args:
            reference: of the tensors that the group is coded against, in its first group; not looked at for a group
                that stands alone. The caller knows that they have the digest `group.reference`, and compares the digest
                of what comes out with `group.tensors_digest`.
        Yields: (spec, bits), bits in the tensor's shape as little-endian unsigned integers of the element's width.
        Raises: BadPayload, naming the tensor; WrongBase without the reference, LayoutMismatch with a different one.
        """
        group = self.group(name)
        theirs = self._open_reference(group, reference)
        position = self._starts[name]
        end = position + group.encoded_bytes
        later = sum(smallest_encoded_bytes(spec.num_elements) for spec in group.tensors)
        for spec in group.tensors:
            # What the tensors behind this one need at least is not for this one to take.
            later -= smallest_encoded_bytes(spec.num_elements)
            with _naming(spec, name):
                bits, position = self._read_tensor(group, spec, position, end - later)
                if theirs is not None:
                    add_reference(bits.reshape(-1), next(theirs)[1].reshape(-1), ELEMENT_TYPES[spec.dtype],
                                  group.reference_form)
                if self._require_finite and not all_finite(bits, ELEMENT_TYPES[spec.dtype]):
                    raise BadPayload("It has an infinity or NaN.", remedy="Look for a learning rate that is too high.")
            yield spec, bits
        if position != end:
            raise BadPayload(f"The group '{name}' has {end - position} bytes after its last tensor.")

    def tensor(self, name: str, tensor: str) -> Bits:
        """Decodes one tensor of a group that stands alone; the others are passed over. Raises: BadPayload."""
        group = self.group(name)
        assert group.reference_form is ReferenceForm.ALONE, "a tensor alone is only read of what stands alone"
        position = self._starts[name]
        end = position + group.encoded_bytes
        for spec in group.tensors:
            with _naming(spec, name):
                if spec.name == tensor:
                    return self._read_tensor(group, spec, position, end)[0]
                position = self._pass_over(spec, position, end)
        raise BadPayload(f"The group '{name}' has no tensor '{tensor}'.")

    def _open_reference(self, group: GroupManifest,
                        reference: PayloadReader | None) -> Iterator[tuple[TensorSpec, Bits]] | None:
        if group.reference_form is ReferenceForm.ALONE:
            return None
        if reference is None:
            raise WrongBase(f"The group '{group.name}' is coded against tensors that are not here.",
                            remedy="The whole group is sent when the task is taken again.")
        if not reference.groups or reference.groups[0].tensors != group.tensors:
            raise LayoutMismatch(f"The group '{group.name}' is coded against tensors of another layout.")
        if group.reference_form is ReferenceForm.SUM:
            for spec in group.tensors:
                if not can_sum(ELEMENT_TYPES[spec.dtype]):
                    raise BadPayload(f"Tensor '{spec.name}' of the group '{group.name}': a sum of {spec.dtype} cannot"
                                     " be.")
        return reference.tensors(reference.groups[0].name)

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
        data = self._read(length, start)
        if _has_more_fields(data, MAX_GROUPS + _MAX_OTHER_FIELDS):
            raise BadPayload(f"The payload has more groups than the {MAX_GROUPS} that are allowed.")
        try:
            message = pb.PayloadManifest.FromString(data)
        except DecodeError:
            raise BadPayload("The manifest is no message of the expected form.") from None
        return parse_manifest(message), start

    def _read_tensor(self, group: GroupManifest, spec: TensorSpec, position: int, end: int) -> tuple[Bits, int]:
        """Decodes the blocks from `position` on, none of which may reach beyond `end`."""
        kind = ELEMENT_TYPES[spec.dtype]
        if group.reference_form is ReferenceForm.BITS:
            kind = coded_kind(kind)
        # Zeroed memory is taken from the system page by page as it is written, so empty blocks cost nothing yet.
        flat = _zeros(spec)
        for start in range(0, spec.num_elements, BLOCK_ELEMENTS):
            out = flat[start:start + BLOCK_ELEMENTS]
            header = self._read_header(len(out), position, end, kind)
            position += HEADER_BYTES
            if group.meaning is Meaning.OVERWRITE and header.index is not IndexEncoding.DENSE:
                raise BadPayload("It overwrites only some elements, which this version cannot read.",
                                 remedy="Update this side.")
            if header.index is IndexEncoding.DENSE and header.value is ValueEncoding.RAW:  # no copy on the way
                if os.preadv(self._file.fileno(), [out.view(np.uint8).data], position) != header.body_bytes:
                    raise BadPayload(f"A block of {header.body_bytes} bytes is cut off.")
            else:
                decode_block(header, self._read(header.body_bytes, position), out, kind=kind)
            position += header.body_bytes
        return flat.reshape(spec.shape), position

    def _pass_over(self, spec: TensorSpec, position: int, end: int) -> int:
        """Where the tensor behind the one at `position` begins."""
        for start in range(0, spec.num_elements, BLOCK_ELEMENTS):
            elements = min(BLOCK_ELEMENTS, spec.num_elements - start)
            header = self._read_header(elements, position, end, ELEMENT_TYPES[spec.dtype])
            position += HEADER_BYTES + header.body_bytes
        return position

    def _read_header(self, elements: int, position: int, end: int, kind: ElementType) -> BlockHeader:
        data = self._read(max(0, min(HEADER_BYTES, end - position)), position)
        return parse_header(data, elements=elements, remaining_bytes=end - position - HEADER_BYTES, kind=kind)

    def _read(self, length: int, position: int) -> bytes:
        return os.pread(self._file.fileno(), length, position)


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


@contextmanager
def _naming(spec: TensorSpec, group: str) -> Iterator[None]:
    """What is wrong with a tensor says which tensor."""
    try:
        yield
    except BadPayload as error:
        raise BadPayload(f"Tensor '{spec.name}' of the group '{group}': {error.text}", remedy=error.remedy) from None


def _zeros(spec: TensorSpec) -> Bits:
    try:
        return np.zeros(spec.num_elements, dtype=ELEMENT_TYPES[spec.dtype].bits)
    except MemoryError:
        raise BadPayload(f"There is no memory for {spec.num_elements} elements.") from None


def read_manifest(path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[GroupManifest, ...]:
    """The checked manifest of a payload file. Raises: BadPayload, as `PayloadReader`."""
    with PayloadReader(path, max_bytes=max_bytes) as reader:
        return reader.groups
