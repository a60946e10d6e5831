"""What the fuzzers run: one function for each place where a stranger's bytes are taken apart.

A target takes any bytes and returns whether they were accepted. Anything but an error of the catalogue, memory without
bound, or an answer that breaks a promise (what decodes is the same twice, and survives encoding) is a defect: an
exception then leaves the target. Nothing here needs the fuzzer, so the kept corpus is replayed by an ordinary test.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError, Message

from semisilo.common.errors import BadConfiguration, BadPayload, LayoutMismatch, WrongBase
from semisilo.common.payload.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    HEADER_BYTES,
    Aim,
    Bits,
    ElementType,
    Plan,
    all_finite,
    coded_kind,
    decode_block,
    encode_blocks,
    parse_header,
)
from semisilo.common.payload.manifest import (
    ReferenceForm,
    manifest_to_proto,
    parse_manifest,
    parse_reference,
    reference_to_proto,
)
from semisilo.common.payload.reader import HeldFile, PayloadReader
from semisilo.common.rpc.chunks import DOWNLOAD_FIELD, SUBMIT_FIELD, Piece, pack_piece, unpack_piece
from semisilo.common.rpc.convert import check_metrics, task_from_proto, task_to_proto
from semisilo.common.wire import round_service_pb2 as round_pb
from semisilo.common.wire import tensors_pb2 as pb

__all__ = ["KINDS", "MAX_PAYLOAD_BYTES", "REFUSALS", "TARGETS", "Finding", "block", "chunk", "message", "payload"]

REFUSALS = (BadPayload, LayoutMismatch, WrongBase, BadConfiguration)
"""What a decoder may raise; every other exception is a finding."""
KINDS: tuple[ElementType, ...] = tuple(
    each for kind in ELEMENT_TYPES.values() for each in (kind, coded_kind(kind)))
MAX_PAYLOAD_BYTES = 2**20
"""What the payloads may have when decoded."""
_REFUSED_LINE_BYTES = 4096
"""An error is one line, and no longer than this however long the names in it are."""


class Finding(AssertionError):
    """A promise that the code under test does not keep."""


def _promise(kept: bool, text: str) -> None:
    if not kept:
        raise Finding(text)


def _check_refusal(error: Exception) -> None:
    line = str(error)
    _promise("\n" not in line, f"the error has several lines: {line!r}")
    _promise(len(line.encode()) <= _REFUSED_LINE_BYTES, f"the error has {len(line)} characters: {line[:200]!r}")


# One block ------------------------------------------------------------------------------------------------------------


def block(data: bytes) -> bool:
    """A block: 1 byte that says its type, 1 byte of flags, the header, the body.

    Flag 1: another number of elements is expected than the header says. Flag 2: a byte less is left than came.
    """
    if len(data) < 2:
        return False
    kind, flags = KINDS[data[0] % len(KINDS)], data[1]
    head, body = data[2:2 + HEADER_BYTES], data[2 + HEADER_BYTES:]
    said = int.from_bytes(head[2:6], "little")
    elements = max(1, min(said, BLOCK_ELEMENTS)) + (flags & 1)
    try:
        header = parse_header(head, elements=elements, remaining_bytes=len(body) - (flags >> 1 & 1), kind=kind)
        out = np.zeros(elements, dtype=kind.bits)
        decode_block(header, body[:header.body_bytes], out, kind=kind)
    except REFUSALS as error:
        _check_refusal(error)
        return False
    _promise(header.elements == elements, "a block of another length was accepted")
    _promise(int(np.count_nonzero(out)) <= header.values, "more elements have a value than the header says")
    if header.value.lossy:
        _promise(all_finite(out, kind), "a lossy form gave an infinity or NaN")
    again = np.zeros(elements, dtype=kind.bits)
    decode_block(header, memoryview(data)[2 + HEADER_BYTES:][:header.body_bytes], again, kind=kind)
    _promise(_same(out, again), "the same block gave two results")
    _check_round_trip(out, kind)
    return True


def _check_round_trip(bits: Bits, kind: ElementType) -> None:
    for aim in (Aim.SMALLEST, Aim.RAW):
        back = np.zeros_like(bits)
        for head, index, values in encode_blocks(bits, kind, Plan(aim=aim)):
            body = index + bytes(values)
            header = parse_header(head, elements=len(bits), remaining_bytes=len(body), kind=kind)
            decode_block(header, body, back, kind=kind)
        _promise(_same(bits, back), f"what was decoded does not survive the aim {aim}")


def _same(a: Bits, b: Bits) -> bool:
    return bool(np.array_equal(a, b))


# A payload file -------------------------------------------------------------------------------------------------------


class _MemoryFile:
    """A file without a disk, used again for every payload."""

    def __init__(self) -> None:
        self._handle = os.memfd_create("payload")
        self.path = Path(f"/proc/self/fd/{self._handle}")

    def write(self, content: bytes) -> Path:
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, content, 0)
        return self.path


@cache
def _files() -> tuple[_MemoryFile, _MemoryFile]:
    return _MemoryFile(), _MemoryFile()


@dataclass(frozen=True)
class _Read:
    """One tensor as it was read."""

    group: str
    name: str
    bits: Bits


def payload(data: bytes) -> bool:
    """Two payload files: 1 byte of flags, 4 bytes with the length of the first, the first, and the second.

    The second is what groups of the first may be coded against. Flag 1: finite values are required. Flag 2: there is no
    second. Flag 4: the first is its own reference.
    """
    if len(data) < 5:
        return False
    flags, length = struct.unpack_from("<BI", data)
    length = min(length, len(data) - 5)
    first, second = _files()
    path = first.write(data[5:5 + length])
    base = None if flags & 2 else path if flags & 4 else second.write(data[5 + length:])
    finite = bool(flags & 1)
    try:
        read = _read_all(path, base, require_finite=finite)
    except REFUSALS as error:
        _check_refusal(error)
        return False
    again = _read_all(path, base, require_finite=finite)
    _promise([(one.group, one.name) for one in read] == [(one.group, one.name) for one in again]
             and all(map(_same, (one.bits for one in read), (one.bits for one in again))), "a file gave two results")
    with PayloadReader(path, max_bytes=MAX_PAYLOAD_BYTES) as reader:
        groups = {group.name: group for group in reader.groups}
        message = manifest_to_proto(reader.groups)
        _promise(parse_manifest(pb.PayloadManifest.FromString(message.SerializeToString())) == reader.groups,
                 "a manifest does not survive the wire")
        for one in read:
            group = groups[one.group]
            spec = next(spec for spec in group.tensors if spec.name == one.name)
            kind = ELEMENT_TYPES[spec.dtype]
            _promise(one.bits.shape == spec.shape and one.bits.dtype == kind.bits, "a tensor has another form")
            _promise(not finite or all_finite(one.bits, kind), "an infinity or NaN passed")
            if group.reference_form is ReferenceForm.ALONE:
                count = max(spec.num_elements - 1, 0)
                _promise(_same(reader.sample(one.group, one.name, count), one.bits.reshape(-1)[:count]),
                         "a tensor alone is another")
    return True


def _read_all(path: Path, base: Path | None, *, require_finite: bool) -> list[_Read]:
    with PayloadReader(path, max_bytes=MAX_PAYLOAD_BYTES, require_finite=require_finite) as reader:
        reference = None if base is None else _opened(base)
        try:
            return [_Read(group.name, spec.name, bits) for group in reader.groups
                    for spec, bits in reader.tensors(group.name, None if reference is None else HeldFile(reference))]
        finally:
            if reference is not None:
                reference.close()


def _opened(path: Path) -> PayloadReader | None:
    """The reference, or None where the second file is no payload: the first alone is then of interest."""
    try:
        return PayloadReader(path, max_bytes=MAX_PAYLOAD_BYTES)
    except REFUSALS as error:
        _check_refusal(error)
        return None


# Messages -------------------------------------------------------------------------------------------------------------


def message(data: bytes) -> bool:
    """A message that is made a dataclass: 1 byte that says which, and its bytes."""
    if not data:
        return False
    message_type, check = _MESSAGES[data[0] % len(_MESSAGES)]
    try:
        arrived = message_type.FromString(data[1:])
    except DecodeError:
        return False
    try:
        check(arrived)
    except REFUSALS as error:
        _check_refusal(error)
        return False
    return True


def _over_the_wire(sent: Message) -> Message:
    return type(sent).FromString(sent.SerializeToString())


def _check_manifest(arrived: pb.PayloadManifest) -> None:
    groups = parse_manifest(arrived)
    _promise(all(group.dense_bytes >= 0 for group in groups), "a group has less than no bytes")
    _promise(parse_manifest(_over_the_wire(manifest_to_proto(groups))) == groups,  # type: ignore[arg-type]
             "a manifest does not survive the wire")


def _check_reference(arrived: pb.PayloadReference) -> None:
    reference = parse_reference(arrived)
    _promise(parse_reference(_over_the_wire(reference_to_proto(reference))) == reference,  # type: ignore[arg-type]
             "a reference does not survive the wire")


def _check_task(arrived: round_pb.Task) -> None:
    spec = replace(task_from_proto(arrived, silo="here"), deadline_unix=0)  # only the coordinator's own are ever sent
    sent = task_to_proto(spec, report_interval_seconds=1)
    _promise(task_from_proto(_over_the_wire(sent), silo="here") == spec,  # type: ignore[arg-type]
             "a task does not survive the wire")


def _check_update(arrived: round_pb.UpdateDeclaration) -> None:
    parse_reference(arrived.payload)
    parse_manifest(arrived.manifest)
    metrics = check_metrics(arrived.metrics)
    _promise(check_metrics(round_pb.UpdateDeclaration(metrics=metrics).metrics) == metrics,
             "metrics do not survive the wire")


_MESSAGES: tuple[tuple[type[Message], Callable[..., None]], ...] = (
    (pb.PayloadManifest, _check_manifest),
    (pb.PayloadReference, _check_reference),
    (round_pb.Task, _check_task),
    (round_pb.UpdateDeclaration, _check_update),
)


# Chunks ---------------------------------------------------------------------------------------------------------------


def chunk(data: bytes) -> bool:
    """A message with a chunk, once as each direction has it: read by hand it must be what protobuf reads."""
    taken = [_agree(DOWNLOAD_FIELD, data, round_pb.DownloadPayloadResponse),
             _agree(SUBMIT_FIELD, data, round_pb.SubmitUpdateRequest)]
    return any(taken)


def _agree(field: int, data: bytes, message_type: type[Message]) -> bool:
    piece = unpack_piece(field, data)
    try:
        parsed = message_type.FromString(data)
    except DecodeError:
        _promise(piece is None, f"protobuf refuses what was read as {piece}")
        return False
    theirs = parsed.chunk  # type: ignore[attr-defined]
    if piece is not None:
        _promise(parsed.HasField("chunk") and _fields(parsed) == ["chunk"], "a field beside the chunk was overlooked")
        _promise((piece.offset, piece.crc32, bytes(piece.data)) == (theirs.offset, theirs.crc32, theirs.data),
                 f"protobuf reads {theirs.offset}, {theirs.crc32}, {theirs.data!r}, not {piece}")
    if parsed.HasField("chunk") and theirs.offset >= 0:
        ours = pack_piece(field, Piece(theirs.offset, theirs.crc32, theirs.data))
        clean = message_type(chunk=pb.Chunk(offset=theirs.offset, crc32=theirs.crc32, data=theirs.data))
        _promise(ours == clean.SerializeToString(), "what is packed by hand is not what protobuf writes")
        again = unpack_piece(field, ours)
        _promise(again is not None and (again.offset, again.crc32, bytes(again.data))
                 == (theirs.offset, theirs.crc32, theirs.data), "what is packed by hand is not read by hand")
    return piece is not None


def _fields(parsed: Message) -> list[str]:
    return [field.name for field, _ in parsed.ListFields()]


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "block": block, "payload": payload, "message": message, "chunk": chunk,
}
