"""Writing a payload file: the encoded blocks of every tensor, group by group, then the manifest.

Layout (also at `PayloadManifest` in tensors.proto): the 8 bytes "SEMISILO", the blocks, the manifest, its length as 4
bytes little endian, "SEMISILO" again. So a file is written and hashed in one pass. `semisilo.common.payload.reader`
reads it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from semisilo.common.errors import BadPayload, LayoutMismatch
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorSpec
from semisilo.common.payload.codec import BLOCK_ELEMENTS, ELEMENT_TYPES, Bits, Plan, coded_kind, encode_blocks
from semisilo.common.payload.manifest import GroupManifest, ReferenceForm, manifest_to_proto, parse_manifest, runs_of
from semisilo.common.payload.reader import MAGIC, MAX_MANIFEST_BYTES, TRAILER, HeldFile, PayloadReader
from semisilo.common.payload.reference import HeldTensors, choose_form, code_against
from semisilo.common.storage.store import PayloadStore
from semisilo.common.system_errors import explained

__all__ = ["EncodedInput", "Reference", "TensorInput", "write_payload"]

_PIECE_BYTES = 2**20
"""Small parts are gathered until there are so many bytes, so that a network of small tensors costs few writes."""
_PIECES_UNDER_WAY = 2
"""Pieces that wait for hash and disk while further blocks are encoded: bounds the memory."""


@dataclass(frozen=True, slots=True)
class TensorInput:
    """One tensor to be written."""

    spec: TensorSpec
    bits: Callable[[], Bits]
    """Gives the elements as little-endian unsigned integers, contiguous; called when the tensor's turn comes."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Tensors that the reader of a payload will hold, of the same layout."""

    digest: str
    """Hex digest of the tensors."""
    source: Path | HeldTensors
    """A payload file with one group that stands alone, or the tensors themselves."""

    @contextmanager
    def opened(self) -> Iterator[HeldTensors]:
        """The tensors. Raises: BadPayload or OSError when the file is not what it should be."""
        if isinstance(self.source, Path):
            with PayloadReader(self.source) as reader:
                yield HeldFile(reader)
        else:
            yield self.source


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """One tensor group to be written."""

    tensors: Sequence[TensorInput]
    meaning: Meaning = Meaning.VALUES
    base: str = ""
    """Hex digest of the tensors that a DIFFERENCE or OVERWRITE refers to; else empty."""
    plan: Plan = field(default_factory=Plan)
    generator: np.random.Generator | None = None
    """For a plan with stochastic rounding."""
    digest: str = ""
    """Hex digest of the tensors; needed with a reference, and where a later payload may refer to them."""
    reference: Reference | None = None
    """What the group may be coded against; used only where that makes it smaller. The reference of an OVERWRITE is its
    base; where it is smaller alone, it is written as VALUES, which say the same."""


def write_payload(store: PayloadStore, groups: Mapping[str, EncodedInput], *, durable: bool = True) -> PayloadRef:
    """Encodes tensor groups into a payload of the store. Encoding, hashing and writing overlap.

    One tensor is in memory at a time, beside a few blocks that wait to be written.

    Args:
        durable: on disk for good when this returns; False for what can be made again from what is.
    Returns: the reference; `tensors` and `reference` are set for a payload of one group with a digest.
    Raises: BadPayload for groups that no reader would accept (`parse_manifest`); SystemTrouble, nothing is left then.
    """
    temporary = store.temporary(expected_bytes=_dense_bytes(groups))
    try:
        with _open_pieces(temporary) as pieces:
            pieces.add(MAGIC)
            manifest = [_write_group(pieces, name, group) for name, group in groups.items()]
            pieces.add(_tail(manifest))
            digest, size_bytes = pieces.finish()
        store.add_file(temporary, digest=digest, durable=durable)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise explained(error, store.folder) or error from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    single = manifest[0] if len(manifest) == 1 else None
    return PayloadRef(digest, size_bytes, tuple(groups), tensors=single.tensors_digest if single else "",
                      reference=single.reference if single else "")


def _write_group(pieces: _Pieces, name: str, group: EncodedInput) -> GroupManifest:
    for tensor in group.tensors:
        _check_type(tensor.spec)
    if group.reference is None:
        return _manifest(name, group, _write_blocks(pieces, group, _rows(group)))
    assert group.digest, "what is coded against a reference is checked by its own digest"
    with group.reference.opened() as held:
        form = choose_form(held, [(tensor.spec, tensor.bits) for tensor in group.tensors], group.plan)
        if form is not ReferenceForm.ALONE:
            size = _write_blocks(pieces, group, _coded(group, held, form), form)
            return _manifest(name, group, size, group.reference.digest, form)
    if group.meaning is Meaning.OVERWRITE:
        group = replace(group, meaning=Meaning.VALUES, base="")
    return _manifest(name, group, _write_blocks(pieces, group, _rows(group)))


def _manifest(name: str, group: EncodedInput, size: int, reference: str = "",
              form: ReferenceForm = ReferenceForm.ALONE) -> GroupManifest:
    return GroupManifest(name, group.meaning, group.base, tuple(tensor.spec for tensor in group.tensors), size,
                         group.digest, reference, form)


def _rows(group: EncodedInput) -> Iterator[Bits]:
    return (_elements(tensor) for tensor in group.tensors)


def _elements(tensor: TensorInput) -> Bits:
    """The tensor's elements (n,)."""
    bits = tensor.bits()
    if bits.dtype != ELEMENT_TYPES[tensor.spec.dtype].bits or bits.size != tensor.spec.num_elements:
        raise LayoutMismatch(f"The tensor '{tensor.spec.name}' is not what its specification says.")
    return bits.reshape(-1)


def _coded(group: EncodedInput, held: HeldTensors, form: ReferenceForm) -> Iterator[Bits]:
    """The tensors' elements against those of the reference."""
    for tensor, base in zip(group.tensors, held.rows(), strict=True):
        yield code_against(_elements(tensor), base, ELEMENT_TYPES[tensor.spec.dtype], form)


def _write_blocks(pieces: _Pieces, group: EncodedInput, rows: Iterator[Bits],
                  form: ReferenceForm = ReferenceForm.ALONE) -> int:
    """Encodes a group, run by run; returns its bytes, 0 when there is nothing but zeros.

    Blocks of zeros wait until another one follows: at the end of the group they say nothing if there was no other.
    """
    before = pieces.size_bytes
    waiting: list[bytes] = []
    written = False
    for run in runs_of([tensor.spec for tensor in group.tensors]):
        kind = ELEMENT_TYPES[run[0].dtype]
        kind = coded_kind(kind) if form is ReferenceForm.BITS else kind
        for block in _cut(islice(rows, len(run))):
            for header, index, values in encode_blocks(block, kind, group.plan, generator=group.generator,
                                                       every_value=_lists_all(group.meaning, form)):
                if not written and not index and not values:
                    waiting.append(header)
                    continue
                parts: list[bytes | memoryview] = [*waiting, header, index, values]
                for part in parts:
                    pieces.add(part)
                waiting, written = [], True
    return pieces.size_bytes - before


def _lists_all(meaning: Meaning, form: ReferenceForm) -> bool:
    """Whether an element without a value would not be zero: of an OVERWRITE that stands alone."""
    return meaning is Meaning.OVERWRITE and form is ReferenceForm.ALONE


def _cut(rows: Iterable[Bits]) -> Iterator[Bits]:
    """Cuts rows of elements, laid end to end, into blocks; one that lies within a row is a view of it."""
    parts: list[Bits] = []
    held = 0
    for row in rows:
        start = 0
        while start < len(row):
            part = row[start:start + BLOCK_ELEMENTS - held]
            parts.append(part)
            start, held = start + len(part), held + len(part)
            if held == BLOCK_ELEMENTS:
                yield parts[0] if len(parts) == 1 else np.concatenate(parts)
                parts, held = [], 0
    if parts:
        yield parts[0] if len(parts) == 1 else np.concatenate(parts)


def _dense_bytes(groups: Mapping[str, EncodedInput]) -> int:
    """What the file is going to take when nothing is saved."""
    return sum(tensor.spec.num_elements * ELEMENT_TYPES[tensor.spec.dtype].size_bytes
               for group in groups.values() for tensor in group.tensors if tensor.spec.dtype in ELEMENT_TYPES)


def _check_type(spec: TensorSpec) -> None:
    if spec.dtype not in ELEMENT_TYPES:
        raise BadPayload(f"The tensor '{spec.name}' has the type {spec.dtype}, which cannot be sent.",
                         remedy=f"Types: {', '.join(ELEMENT_TYPES)}.")


def _tail(groups: Sequence[GroupManifest]) -> bytes:
    message = manifest_to_proto(groups)
    parse_manifest(message)  # so that nothing is sent which the other side must refuse
    manifest = message.SerializeToString(deterministic=True)
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise BadPayload(f"The manifest has {len(manifest)} bytes; {MAX_MANIFEST_BYTES} are allowed.",
                         remedy="Send fewer groups, or shorter tensor names.")
    return manifest + struct.pack(TRAILER, len(manifest), MAGIC)


class _Pieces:
    """A file that is hashed and written by a thread while the next blocks are encoded."""

    def __init__(self, handle: int, worker: ThreadPoolExecutor) -> None:
        self.size_bytes = 0
        """Bytes added so far."""
        self._handle = handle
        self._worker = worker
        self._hash = hashlib.sha256()
        self._small = bytearray()
        self._under_way: list[Future[None]] = []

    def add(self, part: bytes | memoryview) -> None:
        """Appends bytes; a view must keep its content until `finish`."""
        self.size_bytes += len(part)
        if len(part) < _PIECE_BYTES // 4:
            self._small += part
            if len(self._small) >= _PIECE_BYTES:
                self._flush()
        else:
            self._flush()
            self._hand_over(part)

    def finish(self) -> tuple[str, int]:
        """(SHA-256 of the file in hex, its size), once all of it is written."""
        self._flush()
        self._wait(0)
        os.ftruncate(self._handle, self.size_bytes)  # the file may be an old one that is written over
        return self._hash.hexdigest(), self.size_bytes

    def _flush(self) -> None:
        if self._small:
            self._hand_over(bytes(self._small))
            self._small.clear()

    def _hand_over(self, piece: bytes | memoryview) -> None:
        self._wait(_PIECES_UNDER_WAY - 1)
        self._under_way.append(self._worker.submit(self._write, piece))

    def _wait(self, most: int) -> None:
        while len(self._under_way) > most:
            self._under_way.pop(0).result()

    def _write(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        view = memoryview(piece)
        while view:
            view = view[os.write(self._handle, view):]


@contextmanager
def _open_pieces(path: Path) -> Iterator[_Pieces]:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="payload") as worker:
            yield _Pieces(handle, worker)
    finally:
        os.close(handle)
