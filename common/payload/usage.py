"""What the blocks of a payload file took, by encoding: read from their headers, so that nothing is decoded for it.

Every byte of a file belongs to one `Part`: a block with its header, or the framing around the blocks (magic, manifest).
So what was counted adds up to what crossed, also where a download was cut and gone on with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.payload.codec import BlockHeader, IndexEncoding, ValueEncoding
from semisilo.common.payload.manifest import ReferenceForm
from semisilo.common.payload.reader import PayloadReader

__all__ = ["FRAMING", "HELD", "UNKNOWN", "Encoded", "Part", "carried", "describe_encoding", "encodings_in",
           "encodings_of_payload", "parts_of"]

FRAMING = "framing"
"""Not a block: the magic and the manifest of a payload."""
HELD = "held"
"""A tensor group that was not sent, because the reader holds just these tensors."""
UNKNOWN = "unknown"
"""Bytes of a file that could not be looked into."""

_INDEX_NAMES = {
    IndexEncoding.BITMASK: "bitmask", IndexEncoding.ZSTD_BITMASK: "zstd-bitmask", IndexEncoding.ZSTD_GAPS: "zstd-gaps",
    IndexEncoding.RICE: "rice-gaps", IndexEncoding.CLASSES: "gap-classes"}
_WORDS = {
    "raw": "as in memory", "planes": "compressed byte planes", "bf16": "bf16 (lossy)", "int8": "int8 (lossy)",
    "int4": "int4 (lossy)", "zeros": "nothing but zeros", "bitmask": "bitmask", "zstd-bitmask": "compressed bitmask",
    "zstd-gaps": "compressed gaps", "rice-gaps": "Rice-coded gaps", "gap-classes": "classed gaps",
    "bits": "bits that changed since what the reader holds", "sum": "difference to what the reader holds",
    FRAMING: "framing: names and shapes", HELD: "not sent: the reader holds it", UNKNOWN: "not known"}


@dataclass(frozen=True, slots=True)
class Encoded:
    """Blocks of one encoding."""

    encoding: str
    """As `Part` has it."""
    blocks: int
    bytes: int
    """What they took, headers included."""
    dense_bytes: int
    """What the same elements take as they lie in memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes `start` to `end` of a payload file."""

    encoding: str
    """`[FORM:][INDEX+]VALUES`: "planes", "zstd-gaps+planes", "sum:bitmask+int8", "bits:zeros"; or "framing". FORM is
    there where a group is coded against tensors that its reader holds
    (`semisilo.common.payload.manifest.ReferenceForm`), INDEX where only some elements have a value
    (`semisilo.common.payload.codec.IndexEncoding`)."""
    start: int
    end: int
    dense_bytes: int
    blocks: int = 1


def parts_of(path: Path) -> tuple[Part, ...]:
    """All parts of a payload file in order, without a gap. Raises: BadPayload, FileNotFoundError."""
    with PayloadReader(path) as reader:
        return _parts(reader)


def _parts(reader: PayloadReader) -> tuple[Part, ...]:
    at = reader.first_block
    parts = [Part(FRAMING, 0, at, 0, 0)]
    for group in reader.groups:
        prefix = "" if group.reference_form is ReferenceForm.ALONE else f"{group.reference_form}:"
        if not group.encoded_bytes:  # all of it is zero, and takes no byte
            parts.append(Part(f"{prefix}zeros", at, at, group.dense_bytes, 0))
            continue
        for header, kind in reader.headers(group.name):
            end = at + header.all_bytes
            parts.append(Part(prefix + _name(header), at, end, header.elements * kind.size_bytes))
            at = end
    parts.append(Part(FRAMING, at, reader.size_bytes, 0, 0))
    return tuple(parts)


def _name(header: BlockHeader) -> str:
    if header.index is IndexEncoding.EMPTY:
        return "zeros"
    value = ValueEncoding(header.value).name.lower()
    return value if header.index is IndexEncoding.DENSE else f"{_INDEX_NAMES[header.index]}+{value}"


def carried(parts: Sequence[Part], start: int, end: int) -> tuple[Encoded, ...]:
    """What bytes `start` to `end` of a file carried, by encoding.

    A block counts where its last byte is, its dense bytes in proportion; so two streams that meet add up to the whole.
    """
    blocks: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    dense: Counter[str] = Counter()
    for part in parts:
        length = part.end - part.start
        low, high = max(part.start, start), min(part.end, end)
        if length and low < high:
            sizes[part.encoding] += high - low
            dense[part.encoding] += (part.dense_bytes * (high - part.start) // length
                                     - part.dense_bytes * (low - part.start) // length)
            blocks[part.encoding] += part.blocks if high == part.end else 0
        elif not length and start <= part.start < end:
            dense[part.encoding] += part.dense_bytes
    return tuple(Encoded(name, blocks[name], sizes[name], dense[name]) for name in sorted({*sizes, *dense}))


def encodings_of_payload(path: Path) -> tuple[Encoded, ...]:
    """What a whole payload file holds, by encoding. Raises: BadPayload, FileNotFoundError."""
    with PayloadReader(path) as reader:
        return encodings_in(reader)


def encodings_in(reader: PayloadReader) -> tuple[Encoded, ...]:
    """What a whole payload file that is open holds, by encoding. Raises: BadPayload."""
    return carried(_parts(reader), 0, reader.size_bytes)


def describe_encoding(name: str) -> str:
    """An encoding in words, for a person."""
    form, _, rest = name.rpartition(":")
    words = [_WORDS.get(word, word) for word in rest.split("+")]
    return ", ".join(([_WORDS.get(form, form)] if form else []) + words)


