"""What a payload says about itself: parsed from a stranger's message and checked, before a byte of it is taken.

Tests: tests/common/payload/test_writer.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import groupby

from semisilo.common.errors import BadPayload, LayoutMismatch, WrongBase
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorSpec
from semisilo.common.payload.codec import ELEMENT_TYPES, largest_encoded_bytes, smallest_encoded_bytes
from semisilo.common.wire import tensors_pb2 as pb

__all__ = [
    "DEFAULT_MAX_BYTES", "FORMAT", "MAX_GROUPS", "MAX_TENSORS", "GroupManifest", "ReferenceForm", "check_base",
    "check_manifest", "is_held_reference", "is_meant", "manifest_to_proto", "parse_manifest", "parse_reference",
    "reference_to_proto", "runs_of",
]

FORMAT = 2
MAX_GROUPS = 1024
MAX_TENSORS = 65_536
"""Of all groups together."""
DEFAULT_MAX_BYTES = 64 * 2**30
"""Most bytes that a payload may have when decoded, where the caller knows no tighter limit."""
_MAX_GROUP_NAME_BYTES = 128
_MAX_TENSOR_NAME_BYTES = 256
_MAX_AXES = 8
_MAX_ELEMENTS = 2**40
_REMEMBERED = 32
_LARGEST_REMEMBERED_BYTES = 64 * 1024
"""Of a manifest that is parsed once, as long as it comes again soon: all silos of a round send the same layout, and the
file of an update is opened several times. A larger one is parsed anew, so that strangers fill no memory with them."""

_MEANINGS: dict[Meaning, pb.Meaning] = {
    Meaning.VALUES: pb.MEANING_VALUES,
    Meaning.DIFFERENCE: pb.MEANING_DIFFERENCE,
    Meaning.OVERWRITE: pb.MEANING_OVERWRITE,
}
_DATA_TYPES: dict[str, pb.DataType] = {
    "float32": pb.DATA_TYPE_FLOAT32,
    "float64": pb.DATA_TYPE_FLOAT64,
    "float16": pb.DATA_TYPE_FLOAT16,
    "bfloat16": pb.DATA_TYPE_BFLOAT16,
    "int64": pb.DATA_TYPE_INT64,
    "int32": pb.DATA_TYPE_INT32,
    "uint8": pb.DATA_TYPE_UINT8,
}
_MEANING_OF = {number: meaning for meaning, number in _MEANINGS.items()}
_DTYPE_OF = {number: dtype for dtype, number in _DATA_TYPES.items()}

if set(_DATA_TYPES) != set(ELEMENT_TYPES) or set(_MEANINGS) != set(Meaning):
    raise RuntimeError("Every element type and every meaning needs its number on the wire.")


class ReferenceForm(StrEnum):
    """How a group is coded against tensors that the reader holds: part of the encoding, always exact."""

    ALONE = "alone"
    """It is not."""
    BITS = "bits"
    """Differences of the bit patterns (`semisilo.common.payload.codec.subtract_bits`)."""
    SUM = "sum"
    """Numbers to be added in the type's own arithmetic, where that gives every bit of the result."""


_REFERENCE_FORMS: dict[ReferenceForm, pb.ReferenceForm] = {
    ReferenceForm.ALONE: pb.REFERENCE_FORM_UNSPECIFIED,
    ReferenceForm.BITS: pb.REFERENCE_FORM_BITS,
    ReferenceForm.SUM: pb.REFERENCE_FORM_SUM,
}
_REFERENCE_FORM_OF = {number: form for form, number in _REFERENCE_FORMS.items()}


@dataclass(frozen=True)
class GroupManifest:
    """What a payload says about one tensor group before its bytes are read."""

    name: str
    meaning: Meaning
    base: str
    """Hex digest, or empty for VALUES."""
    tensors: tuple[TensorSpec, ...]
    encoded_bytes: int
    """Payload bytes of the group."""
    tensors_digest: str = ""
    """Hex digest (`semisilo.common.learning.tensors.digest`) of what the blocks decode to; empty where nobody refers to
    it."""
    reference: str = ""
    """Hex digest of the tensors that the blocks are coded against; empty when they stand alone."""
    reference_form: ReferenceForm = ReferenceForm.ALONE

    @cached_property
    def dense_bytes(self) -> int:
        """Bytes of the group's elements when decoded."""
        return sum(spec.num_elements * ELEMENT_TYPES[spec.dtype].size_bytes for spec in self.tensors)

    @cached_property
    def runs(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """Neighbouring tensors of one type (`runs_of`)."""
        return tuple(runs_of(self.tensors))

    @cached_property
    def smallest_bytes(self) -> int:
        """Fewest bytes that its blocks can take, where they are not left out because all is zero."""
        return sum(smallest_encoded_bytes(sum(spec.num_elements for spec in run)) for run in self.runs)


def runs_of(tensors: Sequence[TensorSpec]) -> list[tuple[TensorSpec, ...]]:
    """Neighbouring tensors of one type, which share blocks: a network has many tensors of a few elements."""
    return [tuple(run) for _, run in groupby(tensors, key=lambda spec: spec.dtype)]


def manifest_to_proto(groups: Sequence[GroupManifest]) -> pb.PayloadManifest:
    """The message for a manifest."""
    return pb.PayloadManifest(format=FORMAT, groups=[
        pb.GroupManifest(
            name=group.name,
            meaning=_MEANINGS[group.meaning],
            base_digest=bytes.fromhex(group.base),
            tensors=[pb.TensorSpec(name=spec.name, shape=spec.shape, data_type=_DATA_TYPES[spec.dtype])
                     for spec in group.tensors],
            encoded_bytes=group.encoded_bytes,
            tensors_digest=bytes.fromhex(group.tensors_digest),
            reference_digest=bytes.fromhex(group.reference),
            reference_form=_REFERENCE_FORMS[group.reference_form],
        ) for group in groups])


def parse_manifest(message: pb.PayloadManifest) -> tuple[GroupManifest, ...]:
    """Checks a manifest that arrived and makes it a dataclass.

    Raises: BadPayload, naming the group or tensor, for anything that tensors.proto does not allow and for sizes that
        cannot be: fewer bytes than the block headers take, or more than the elements.
    """
    data = message.SerializeToString()
    return _remembered(data) if len(data) <= _LARGEST_REMEMBERED_BYTES else _parsed(message)


@lru_cache(maxsize=_REMEMBERED)
def _remembered(data: bytes) -> tuple[GroupManifest, ...]:
    return _parsed(pb.PayloadManifest.FromString(data))


def _parsed(message: pb.PayloadManifest) -> tuple[GroupManifest, ...]:
    if message.format != FORMAT:
        raise BadPayload(f"The payload has the layout version {message.format}; this version reads {FORMAT}.",
                         remedy="Update the older side.")
    if len(message.groups) > MAX_GROUPS:
        raise BadPayload(f"The payload has {len(message.groups)} groups; {MAX_GROUPS} are allowed.")
    if (count := sum(len(group.tensors) for group in message.groups)) > MAX_TENSORS:
        raise BadPayload(f"The payload has {count} tensors; {MAX_TENSORS} are allowed.")
    groups = tuple(_parse_group(group) for group in message.groups)
    _check_unique([group.name for group in groups], "group")
    return groups


def _parse_group(message: pb.GroupManifest) -> GroupManifest:
    name = _checked_name(message.name, "group", _MAX_GROUP_NAME_BYTES)
    meaning = _MEANING_OF.get(message.meaning)
    if meaning is None:
        raise BadPayload(f"The group '{name}' has the unknown meaning {message.meaning}.")
    expected = 0 if meaning is Meaning.VALUES else 32
    if len(message.base_digest) != expected:
        raise BadPayload(f"The group '{name}' ({meaning}) has a base digest of {len(message.base_digest)} bytes, "
                         f"not {expected}.")
    form = _REFERENCE_FORM_OF.get(message.reference_form)
    if form is None:
        raise BadPayload(f"The group '{name}' is coded against its reference in the unknown form "
                         f"{message.reference_form}.", remedy="The sender may be newer; update this side.")
    if len(message.tensors_digest) not in (0, 32):
        raise BadPayload(f"The group '{name}' has a tensors_digest of {len(message.tensors_digest)} bytes, not 32.")
    wanted = 0 if form is ReferenceForm.ALONE else 32
    if len(message.reference_digest) != wanted or (wanted and not message.tensors_digest):
        raise BadPayload(f"The group '{name}' has a reference ({form}) that cannot be.")
    if wanted and meaning is Meaning.OVERWRITE and message.reference_digest != message.base_digest:
        raise BadPayload(f"The group '{name}' overwrites one base and is coded against another.")
    tensors = tuple(_parse_tensor(name, tensor) for tensor in message.tensors)
    _check_unique([spec.name for spec in tensors], f"tensor of the group '{name}'")
    lengths = [(sum(spec.num_elements for spec in run), ELEMENT_TYPES[run[0].dtype].size_bytes)
               for run in runs_of(tensors)]
    smallest = sum(smallest_encoded_bytes(elements) for elements, _ in lengths)
    largest = sum(largest_encoded_bytes(elements, size) for elements, size in lengths)
    all_zero = message.encoded_bytes == 0 and (meaning is not Meaning.OVERWRITE or form is not ReferenceForm.ALONE)
    if not (smallest <= message.encoded_bytes <= largest or all_zero):
        raise BadPayload(f"The group '{name}' cannot take {message.encoded_bytes} bytes: its tensors need "
                         f"{smallest} to {largest}.")
    return GroupManifest(name, meaning, message.base_digest.hex(), tensors, message.encoded_bytes,
                         message.tensors_digest.hex(), message.reference_digest.hex(), form)


def _parse_tensor(group: str, message: pb.TensorSpec) -> TensorSpec:
    name = _checked_name(message.name, f"tensor of the group '{group}'", _MAX_TENSOR_NAME_BYTES)
    if len(message.shape) > _MAX_AXES:
        raise BadPayload(f"The tensor '{name}' has {len(message.shape)} axes; {_MAX_AXES} are allowed.")
    # Axes of length 0 are left out of the product: an array library multiplies the others all the same.
    elements = 1
    for length in message.shape:
        if length < 0:
            raise BadPayload(f"The tensor '{name}' has an axis of length {length}.")
        elements *= max(length, 1)
    if elements > _MAX_ELEMENTS:
        raise BadPayload(f"The tensor '{name}' has more than {_MAX_ELEMENTS} elements.")
    dtype = _DTYPE_OF.get(message.data_type)
    if dtype is None:
        raise BadPayload(f"The tensor '{name}' has the unknown type {message.data_type}.")
    return TensorSpec(name, tuple(message.shape), dtype)


def _checked_name(name: str, what: str, limit: int) -> str:
    size = len(name.encode())
    if not 1 <= size <= limit:
        raise BadPayload(f"A {what} has a name of {size} bytes; 1 to {limit} are allowed.")
    if not name.isprintable():
        raise BadPayload(f"A {what} has a name with unprintable characters: {name!r}.")
    return name


def _check_unique(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadPayload(f"The name '{name}' of a {what} occurs twice.")
        seen.add(name)


def check_manifest(groups: Sequence[GroupManifest], *, allowed: Mapping[str, Meaning],
                   layouts: Mapping[str, tuple[TensorSpec, ...]] | None, max_bytes: int,
                   required: Collection[str] = ()) -> None:
    """Checks a manifest against what the method declares.

    Args:
        groups: from `parse_manifest`.
        allowed: meaning of each group that may come (`is_meant`); a name that ends in "/*" stands for numbered groups.
        layouts: tensors that a group must have, exactly and in order, by the names used in `allowed`; groups without
            an entry are bounded by `max_bytes` only.
        max_bytes: most bytes of all groups together, when decoded.
        required: groups that must be there, by the names used in `allowed`.
    Raises: BadPayload, LayoutMismatch; the text names the group or tensor.
    """
    found = set()
    for group in groups:
        rule = _rule_for(group.name, allowed)
        if rule is None:
            raise BadPayload(f"The method has no tensor group '{group.name}'.",
                             remedy=f"It has: {', '.join(sorted(allowed)) or 'none'}.")
        found.add(rule)
        if not is_meant(group.meaning, allowed[rule]):
            raise BadPayload(f"The group '{group.name}' comes as {group.meaning}; the method has {allowed[rule]}.")
        layout = (layouts or {}).get(rule)
        if layout is not None:
            _check_layout(group, layout)
    for rule in required:
        if rule not in found:
            raise BadPayload(f"The group '{rule}' is missing.")
    if (total := sum(group.dense_bytes for group in groups)) > max_bytes:
        raise BadPayload(f"The payload has {total} bytes when decoded; {max_bytes} are allowed here.")


def is_meant(meaning: Meaning, declared: Meaning) -> bool:
    """Whether a group may come so: as declared, or whole where its method declares that it overwrites."""
    return meaning is declared or (declared is Meaning.OVERWRITE and meaning is Meaning.VALUES)


def check_base(group: GroupManifest, base: str) -> None:
    """Checks what a group of an update builds on.

    Args:
        base: hex digest that the task gives it; empty where it builds on nothing.
    Raises: WrongBase for another base; BadPayload for a group that is coded against tensors without overwriting them:
        nobody has told the coordinator to keep those.
    """
    if group.reference and group.meaning is not Meaning.OVERWRITE:
        raise BadPayload(f"The group '{group.name}' is coded against other tensors; an update stands alone.")
    if group.meaning is not Meaning.VALUES and group.base != base:
        raise WrongBase(f"The group '{group.name}' refers to another base than the one of its task.",
                        remedy="The silo drops this update and takes the task again.")


def _rule_for(name: str, allowed: Mapping[str, Meaning]) -> str | None:
    if name in allowed and not name.endswith("/*"):
        return name
    stem, slash, number = name.rpartition("/")
    numbered = slash and number.isascii() and number.isdigit() and str(int(number)) == number
    return f"{stem}/*" if numbered and f"{stem}/*" in allowed else None


def _check_layout(group: GroupManifest, layout: tuple[TensorSpec, ...]) -> None:
    for position, (spec, expected) in enumerate(zip(group.tensors, layout, strict=False)):
        if spec != expected:
            raise LayoutMismatch(
                f"Tensor {position} of the group '{group.name}' is '{spec.name}' {list(spec.shape)} {spec.dtype}; "
                f"'{expected.name}' {list(expected.shape)} {expected.dtype} was expected.",
                remedy="Both sides need the same model and version.")
    if len(group.tensors) != len(layout):
        raise LayoutMismatch(f"The group '{group.name}' has {len(group.tensors)} tensors; {len(layout)} were expected.",
                             remedy="Both sides need the same model and version.")


def reference_to_proto(reference: PayloadRef) -> pb.PayloadReference:
    """The message for a reference."""
    return pb.PayloadReference(digest=bytes.fromhex(reference.digest), size_bytes=reference.size_bytes,
                               groups=reference.groups, tensors_digest=bytes.fromhex(reference.tensors),
                               reference_digest=bytes.fromhex(reference.reference))


def is_held_reference(message: pb.PayloadReference) -> bool:
    """Whether it names no file: a task says so of tensors that the silo holds."""
    return bool(message.tensors_digest) and not message.digest and message.size_bytes == 0


def parse_reference(message: pb.PayloadReference, *, max_bytes: int = DEFAULT_MAX_BYTES) -> PayloadRef:
    """Checks a reference that arrived. Raises: BadPayload."""
    if not is_held_reference(message):
        if len(message.digest) != 32:
            raise BadPayload(f"A payload's digest has {len(message.digest)} bytes, not 32.")
        if not 0 < message.size_bytes <= max_bytes:
            raise BadPayload(f"A payload of {message.size_bytes} bytes cannot be; {max_bytes} are allowed here.")
    if len(message.groups) > MAX_GROUPS:
        raise BadPayload(f"A payload has {len(message.groups)} groups; {MAX_GROUPS} are allowed.")
    names = tuple(_checked_name(name, "group", _MAX_GROUP_NAME_BYTES) for name in message.groups)
    _check_unique(names, "group")
    if len(message.tensors_digest) not in (0, 32) or len(message.reference_digest) not in (0, 32):
        raise BadPayload("A payload's digest of tensors or of its reference does not have 32 bytes.")
    if message.tensors_digest and len(names) != 1:
        raise BadPayload(f"A payload of {len(names)} groups has one digest of tensors.")
    return PayloadRef(message.digest.hex(), message.size_bytes, names, message.tensors_digest.hex(),
                      message.reference_digest.hex())
