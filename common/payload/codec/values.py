"""The values of a block <-> bytes; one table entry per encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec.elements import Bits, ElementType
from semisilo.common.payload.codec.lossy import INT4, INT8, decode_bf16, encode_bf16
from semisilo.common.payload.codec.plan import ValueForm
from semisilo.common.payload.codec.planes import decode_planes, encode_planes

__all__ = ["VALUE_CODECS", "ValueCodec", "ValueEncoding", "decode_values", "encode_values", "is_lossy_for"]


class ValueEncoding(IntEnum):
    """How the values of a block are written. 0 is never valid."""

    RAW = 1
    """As they lie in memory, little endian."""
    PLANES = 2
    """As byte planes, each compressed where that helps."""
    BF16 = 3
    """Rounded to bfloat16, as byte planes. float32 only, as are the next two."""
    INT8 = 4
    """Codes of 8 bits, and a scale for each 256 of them."""
    INT4 = 5
    """Codes of 4 bits, and a scale for each 64 of them."""

    @property
    def lossy(self) -> bool:
        """Whether what comes out may differ from what went in."""
        return self > ValueEncoding.PLANES


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """One way to write values."""

    encode: Callable[[Bits, ElementType, np.random.Generator | None, bool], bytes | memoryview]
    """From (bits (count,), type, generator for stochastic rounding, whether to compress) to bytes."""
    decode: Callable[[memoryview, int, ElementType], Bits]
    """From (bytes, count of at least 1, type) to bits (count,). Raises BadPayload."""


def _encode_raw(bits: Bits) -> memoryview:
    return np.ascontiguousarray(bits).view(np.uint8).data


def _decode_raw(data: memoryview, count: int, kind: ElementType) -> Bits:
    if len(data) != count * kind.size_bytes:
        raise BadPayload(f"{count} raw values of {kind.name} take {count * kind.size_bytes} bytes, not {len(data)}.")
    return np.frombuffer(data, dtype=kind.bits, count=count)


VALUE_CODECS: dict[ValueEncoding, ValueCodec] = {
    ValueEncoding.RAW: ValueCodec(
        encode=lambda bits, kind, generator, squeeze: _encode_raw(bits),
        decode=_decode_raw),
    ValueEncoding.PLANES: ValueCodec(
        encode=lambda bits, kind, generator, squeeze: encode_planes(bits, kind, squeeze=squeeze),
        decode=decode_planes),
    ValueEncoding.BF16: ValueCodec(
        encode=lambda bits, kind, generator, squeeze: encode_bf16(bits, squeeze=squeeze),
        decode=lambda data, count, kind: decode_bf16(data, count)),
    ValueEncoding.INT8: ValueCodec(
        encode=lambda bits, kind, generator, squeeze: INT8.encode(bits, generator, squeeze=squeeze),
        decode=lambda data, count, kind: INT8.decode(data, count)),
    ValueEncoding.INT4: ValueCodec(
        encode=lambda bits, kind, generator, squeeze: INT4.encode(bits, generator, squeeze=squeeze),
        decode=lambda data, count, kind: INT4.decode(data, count)),
}

_ENCODING_OF_FORM = {
    ValueForm.EXACT: ValueEncoding.PLANES,
    ValueForm.BF16: ValueEncoding.BF16,
    ValueForm.INT8: ValueEncoding.INT8,
    ValueForm.INT4: ValueEncoding.INT4,
}

if set(VALUE_CODECS) != set(ValueEncoding) or set(_ENCODING_OF_FORM) != set(ValueForm):
    raise RuntimeError("Every value encoding needs its codec, and every form its encoding.")


def is_lossy_for(form: ValueForm, kind: ElementType) -> bool:
    """Whether values of that type lose bits in that form; others than float32 are always sent exactly."""
    return form is not ValueForm.EXACT and kind.name == "float32"


def encode_values(bits: Bits, kind: ElementType, form: ValueForm, *, squeeze: bool,
                  generator: np.random.Generator | None = None) -> tuple[ValueEncoding, memoryview]:
    """Writes values in a form, or as they are where that takes no more bytes.

    Args:
        bits: (count,) unsigned integers; finite where the form is lossy.
        kind: their type.
        form: what is sent of a value.
        squeeze: whether to compress.
        generator: for stochastic rounding; None rounds to the nearest.
    Returns: the encoding, and the bytes: never more than the values take in memory, and perhaps a view of them.
    """
    lossy = is_lossy_for(form, kind)
    if len(bits) and (squeeze or lossy):
        encoding = _ENCODING_OF_FORM[form] if lossy else ValueEncoding.PLANES
        data = VALUE_CODECS[encoding].encode(bits, kind, generator, squeeze)
        if len(data) < bits.nbytes:
            return encoding, memoryview(data)
    return ValueEncoding.RAW, _encode_raw(bits)


def decode_values(encoding: ValueEncoding, data: memoryview, count: int, kind: ElementType) -> Bits:
    """Reads `count` values. Returns: bits (count,), perhaps a view of `data`. Raises: BadPayload."""
    if count == 0 and encoding is not ValueEncoding.RAW:
        raise BadPayload(f"A block without values has some in the form {encoding.name}.")
    return VALUE_CODECS[encoding].decode(data, count, kind)
