"""The block codec: tensor elements <-> bytes.

`encode_blocks` cuts a tensor into blocks of at most 2^20 elements and writes each in the form that its `Plan` asks for;
`parse_header` and `decode_block` read them back, trusting nothing. See `semisilo.common.payload.codec.blocks` for the
layout.
"""

from semisilo.common.payload.codec.blocks import (
    BLOCK_ELEMENTS,
    HEADER_BYTES,
    BlockHeader,
    block_count,
    decode_block,
    encode_blocks,
    largest_encoded_bytes,
    parse_header,
    smallest_encoded_bytes,
)
from semisilo.common.payload.codec.elements import ELEMENT_TYPES, Bits, ElementType, all_finite, coded_kind, exceeds
from semisilo.common.payload.codec.plan import DEFAULT_LINK_BYTES_PER_SECOND, Aim, Plan, ValueForm
from semisilo.common.payload.codec.positions import IndexEncoding
from semisilo.common.payload.codec.reference import add_bits, subtract_bits
from semisilo.common.payload.codec.values import ValueEncoding

__all__ = [
    "BLOCK_ELEMENTS", "DEFAULT_LINK_BYTES_PER_SECOND", "ELEMENT_TYPES", "HEADER_BYTES", "Aim", "Bits", "BlockHeader",
    "ElementType", "IndexEncoding", "Plan", "ValueEncoding", "ValueForm", "add_bits", "all_finite", "block_count",
    "coded_kind", "decode_block", "encode_blocks", "exceeds", "largest_encoded_bytes", "parse_header",
    "smallest_encoded_bytes", "subtract_bits",
]
