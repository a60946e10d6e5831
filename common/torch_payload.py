"""Torch tensors <-> payload files, bit for bit. For the compute processes: light processes do not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from common.codec import ELEMENT_TYPES, Bits
from common.errors import BadPayload
from common.exchange import PayloadRef, TensorGroup, TensorSpec
from common.payload import DEFAULT_MAX_BYTES, EncodedInput, PayloadReader, TensorInput, write_payload
from common.store import PayloadStore

__all__ = ["bits_to_tensor", "decode_groups", "encode_groups", "tensor_spec", "tensor_to_bits"]

_TORCH_TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ELEMENT_TYPES}
_NAMES = {dtype: name for name, dtype in _TORCH_TYPES.items()}
_SIGNED = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32),
           8: (torch.int64, np.int64)}
"""Integers of an element's width that both libraries know."""


def tensor_spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Name, shape and type of a tensor. Raises: BadPayload for a type that cannot be sent."""
    if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
        raise BadPayload(f"The tensor '{name}' ({tensor.dtype}, {tensor.layout}) cannot be sent.",
                         remedy=f"Types: {', '.join(ELEMENT_TYPES)}.")
    return TensorSpec(name, tuple(tensor.shape), _NAMES[tensor.dtype])


def tensor_to_bits(tensor: torch.Tensor) -> Bits:
    """The elements as little-endian unsigned integers (n,); shares memory with a contiguous tensor on the CPU."""
    kind = ELEMENT_TYPES[_NAMES[tensor.dtype]]
    signed, _ = _SIGNED[kind.size_bytes]
    flat = tensor.detach().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(signed).numpy().view(f"=u{kind.size_bytes}").astype(kind.bits, copy=False)


def bits_to_tensor(bits: Bits, spec: TensorSpec) -> torch.Tensor:
    """The tensor on the CPU, of the spec's shape and type; shares memory with `bits` on little-endian machines."""
    _, signed = _SIGNED[ELEMENT_TYPES[spec.dtype].size_bytes]
    native = bits.reshape(-1).astype(bits.dtype.newbyteorder("="), copy=False).view(signed)
    return torch.from_numpy(native).view(_TORCH_TYPES[spec.dtype]).reshape(spec.shape)


def encode_groups(store: PayloadStore, groups: Mapping[str, TensorGroup]) -> PayloadRef:
    """Writes tensor groups into a payload of the store; `common.payload.write_payload` says what it raises."""
    return write_payload(store, {
        name: EncodedInput(
            tensors=[TensorInput(tensor_spec(key, tensor), partial(tensor_to_bits, tensor))
                     for key, tensor in group.tensors.items()],
            meaning=group.meaning, base=group.base)
        for name, group in groups.items()})


def decode_groups(path: Path, *, require_finite: bool, max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, TensorGroup]:
    """Reads every group of a payload file; groups and tensors are in the manifest's order.

    Args:
        path: the file.
        require_finite: refuse infinities and NaN.
        max_bytes: most bytes that the groups may have when decoded.
    Raises: BadPayload.
    """
    with PayloadReader(path, max_bytes=max_bytes, require_finite=require_finite) as reader:
        return {group.name: TensorGroup(
            tensors={spec.name: bits_to_tensor(bits, spec) for spec, bits in reader.tensors(group.name)},
            meaning=group.meaning, base=group.base) for group in reader.groups}
