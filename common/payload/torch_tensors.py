"""Torch tensors <-> payload files, bit for bit. For the compute processes: light processes do not import torch.

Tests: tests/common/payload/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from semisilo.common.errors import BadPayload, LayoutMismatch, WrongBase
from semisilo.common.learning.tensors import digest, group_digest
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorGroup, Tensors, TensorSpec
from semisilo.common.payload.codec import ELEMENT_TYPES, Bits, Plan
from semisilo.common.payload.manifest import DEFAULT_MAX_BYTES, GroupManifest
from semisilo.common.payload.reader import HeldFile, PayloadReader
from semisilo.common.payload.reference import HeldInMemory, HeldTensors
from semisilo.common.payload.writer import EncodedInput, Reference, TensorInput, write_payload
from semisilo.common.storage.store import PayloadStore

__all__ = [
    "bits_to_tensor", "decode_group", "decode_groups", "encode_groups", "encoded_input", "held_in_memory",
    "tensor_spec", "tensor_to_bits",
]

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


def encode_groups(store: PayloadStore, groups: Mapping[str, TensorGroup], *, plan: Plan = Plan(),
                  reference: Reference | None = None, durable: bool = True) -> PayloadRef:
    """Writes tensor groups into a payload of the store; `semisilo.common.payload.writer.write_payload` says what it
    raises.

    Args:
        plan: how blocks are encoded; lossless here (`semisilo.silo.compute.lossy_update` sends lossily).
        reference: what a single group may be coded against; the group then has its digest.
        durable: as `write_payload` has it.
    """
    return write_payload(store, {name: encoded_input(group, plan=plan, reference=reference)
                                 for name, group in groups.items()}, durable=durable)


def encoded_input(group: TensorGroup, *, plan: Plan = Plan(), reference: Reference | None = None,
                  generator: np.random.Generator | None = None) -> EncodedInput:
    """A tensor group as `write_payload` takes it.

    An OVERWRITE that comes with its base is coded against it, whatever the plan: that is what it is for.
    Raises: BadPayload for a type that cannot be sent; LayoutMismatch when its base has other tensors.
    """
    if group.meaning is Meaning.OVERWRITE and group.base_tensors is not None:
        reference = Reference(group.base, held_in_memory(group.base_tensors, group.tensors))
        group, plan = replace(group, digest=group_digest(group)), replace(plan, sparse=True)
    return EncodedInput(
        tensors=[TensorInput(tensor_spec(key, tensor), partial(tensor_to_bits, tensor))
                 for key, tensor in group.tensors.items()],
        meaning=group.meaning, base=group.base, plan=plan, generator=generator, digest=group.digest,
        reference=reference)


def held_in_memory(tensors: Tensors, names: Iterable[str]) -> HeldInMemory:
    """Tensors that a payload is coded against, in the order that the payload has.

    Raises: LayoutMismatch when they are not called so; BadPayload for a type that cannot be sent.
    """
    order = list(names)
    if tensors.keys() != set(order):
        odd = sorted(tensors.keys() ^ set(order))[0]
        raise LayoutMismatch(f"The base of a tensor group has other tensors: '{odd}' is on one side only.")
    return HeldInMemory([(tensor_spec(name, tensors[name]), partial(tensor_to_bits, tensors[name])) for name in order])


def decode_groups(path: Path, *, require_finite: bool, max_bytes: int = DEFAULT_MAX_BYTES,
                  references: Callable[[str], Path | Tensors | None] = lambda digest: None,
                  trust_digests: bool = False) -> dict[str, TensorGroup]:
    """Reads every group of a payload file; groups and tensors are in the manifest's order.

    Args:
        path: the file.
        require_finite: refuse infinities and NaN.
        max_bytes: most bytes that the groups may have when decoded.
        references: the tensors of a digest, or the payload file that holds them, or None where they are not here.
        trust_digests: take the digest that the file gives for tensors that stand alone. Without it such groups come
            without one: a stranger could give the digest of other tensors.
    Raises: BadPayload; WrongBase when a group is coded against tensors that are not here, or that are not those which
        the sender had: then its digest is not what the manifest says.
    """
    with PayloadReader(path, max_bytes=max_bytes, require_finite=require_finite) as reader:
        return {group.name: _decoded(reader, group, references, trust_digests) for group in reader.groups}


def decode_group(reader: PayloadReader, name: str, *,
                 references: Callable[[str], Path | Tensors | None] = lambda digest: None) -> TensorGroup:
    """One group of a payload that is open; see `decode_groups`. Its own digest is not trusted."""
    return _decoded(reader, reader.group(name), references, False)


def _decoded(reader: PayloadReader, group: GroupManifest, references: Callable[[str], Path | Tensors | None],
             trust_digests: bool) -> TensorGroup:
    found = references(group.reference) if group.reference else None
    if found is None:
        return TensorGroup(_tensors(reader, group.name), group.meaning, group.base,
                           group.tensors_digest if trust_digests else "")
    with ExitStack() as stack:
        held = (HeldFile(stack.enter_context(PayloadReader(found))) if isinstance(found, Path)
                else held_in_memory(found, [spec.name for spec in group.tensors]))
        tensors = _tensors(reader, group.name, held)
    if digest(tensors) != group.tensors_digest:
        raise WrongBase(f"The group '{group.name}' does not come out as it was sent: its reference is damaged here.",
                        remedy="The whole group is sent when the task is taken again.")
    return TensorGroup(tensors, group.meaning, group.base, group.tensors_digest)


def _tensors(reader: PayloadReader, name: str, reference: HeldTensors | None = None) -> dict[str, torch.Tensor]:
    return {spec.name: bits_to_tensor(bits, spec) for spec, bits in reader.tensors(name, reference)}
