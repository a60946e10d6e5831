"""Valid inputs for every target, from which the fuzzers start; and new ones whenever a mutator asks.

Everything follows from a `random.Random`, so that the same number gives the same bytes.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.methods.contract import Meaning, ModelSettings, PayloadRef, TaskSpec, TensorSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.uplink import Uplink
from semisilo.common.payload.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    Aim,
    Bits,
    ElementType,
    IndexEncoding,
    Plan,
    ValueEncoding,
    ValueForm,
    coded_kind,
    encode_blocks,
)
from semisilo.common.payload.codec.lossy import INT4, INT8, encode_bf16
from semisilo.common.payload.codec.planes import encode_planes
from semisilo.common.payload.codec.positions import COMPLEMENT
from semisilo.common.payload.codec.zstd import compress
from semisilo.common.payload.manifest import (
    GroupManifest,
    ReferenceForm,
    manifest_to_proto,
    reference_to_proto,
    runs_of,
)
from semisilo.common.payload.reader import MAGIC, TRAILER
from semisilo.common.payload.reference import can_sum, code_against
from semisilo.common.rpc.chunks import DOWNLOAD_FIELD, SUBMIT_FIELD, Piece, pack_piece
from semisilo.common.rpc.convert import task_to_proto
from semisilo.common.wire import round_service_pb2 as round_pb
from tests.fuzz.targets import KINDS

__all__ = ["chunk_seeds", "message_seeds", "new_block", "new_classes", "new_gaps", "new_payload", "new_rice",
           "payload_file", "seeds"]

_BASE = "ab" * 32
_INDEX_FORMS = [form for form in IndexEncoding if form is not IndexEncoding.EMPTY]
_SIZES = (1, 2, 7, 8, 9, 63, 64, 65, 200, 255, 256, 257, 600, 2048, 5000)
_SHAPES: tuple[tuple[int, ...], ...] = (
    (), (1,), (3,), (8, 9), (0,), (2, 0, 5), (33, 4), (300,), (1, 1, 1, 1, 1, 1, 1, 1))


# Blocks ---------------------------------------------------------------------------------------------------------------


def some_bits(chance: random.Random, elements: int, kind: ElementType, *, finite: bool = False) -> Bits:
    """(elements,) of a type: normal or random bit patterns, of which some share is zero, perhaps in runs."""
    numbers = np.random.default_rng(chance.getrandbits(32))
    if kind.name == "float32" and (finite or chance.random() < 0.7):
        scale = 10.0 ** chance.randint(-30, 30) if chance.random() < 0.3 else 1e-3
        bits: Bits = (numbers.standard_normal(elements) * scale).astype("<f4").view("<u4")
    elif finite and kind.is_float:
        bits = numbers.integers(0, kind.exponent_mask, elements, dtype=kind.bits)
    elif chance.random() < 0.5:
        bits = numbers.integers(0, 7, elements).astype(kind.bits)
    else:
        bits = numbers.integers(0, 256, elements * kind.size_bytes, dtype=np.uint8).view(kind.bits)
    density = chance.choice((0, 0.002, 0.02, 0.1, 0.3, 0.5, 0.8, 0.97, 1, 1))
    run = chance.choice((1, 1, 1, 20))
    keep = np.repeat(numbers.random(-(-elements // run)) < density, run)[:elements]
    return np.where(keep, bits, kind.bits.type(0)).astype(kind.bits)


def new_block(chance: random.Random, kind_number: int | None = None, elements: int | None = None) -> bytes:
    """A valid input of the target `block`: what the encoder makes of some tensor, or any pair of forms put together."""
    if kind_number is None:
        kind_number = chance.choice((0, 0, 0, chance.randrange(len(KINDS))))
    kind = KINDS[kind_number]
    elements = chance.choice(_SIZES) if elements is None else elements
    bits = some_bits(chance, elements, kind, finite=True)
    if chance.random() < 0.4:
        form = chance.choice(list(ValueForm))
        plan = Plan(aim=chance.choice(list(Aim)), values=form)
        [(head, index, values)] = encode_blocks(bits, kind, plan, every_value=chance.random() < 0.1)
        return bytes((kind_number, 0)) + head + index + values
    return bytes((kind_number, 0)) + _any_pair(chance, bits, kind)


def _any_pair(chance: random.Random, bits: Bits, kind: ElementType) -> bytes:
    mask = bits != 0
    form = chance.choice(_INDEX_FORMS)
    complement = form.lists and chance.random() < 0.5
    positions = np.flatnonzero(~mask if complement else mask)
    chosen = bits[mask]
    if len(chosen) == 0 or (len(positions) == 0 and form.lists):
        form, complement, chosen = IndexEncoding.DENSE, False, bits
    index = {
        IndexEncoding.DENSE: lambda: b"",
        IndexEncoding.BITMASK: lambda: np.packbits(mask).tobytes(),
        IndexEncoding.ZSTD_BITMASK: lambda: compress(np.packbits(mask).data),
        IndexEncoding.ZSTD_GAPS: lambda: compress(new_gaps(np.diff(positions, prepend=-1) - 1)),
        IndexEncoding.RICE: lambda: new_rice(np.diff(positions, prepend=-1) - 1, chance.choice((0, 1, 2, 3, 5, 8))),
        IndexEncoding.CLASSES: lambda: new_classes(np.diff(positions, prepend=-1) - 1),
    }[form]()
    squeeze = chance.random() < 0.6
    choices = [ValueEncoding.RAW, ValueEncoding.PLANES]
    if kind.name == "float32":
        choices += [ValueEncoding.BF16, ValueEncoding.INT8, ValueEncoding.INT4] * 2
    value = chance.choice(choices)
    data = {
        ValueEncoding.RAW: lambda: chosen.tobytes(),
        ValueEncoding.PLANES: lambda: encode_planes(chosen, kind, squeeze=squeeze),
        ValueEncoding.BF16: lambda: encode_bf16(chosen, squeeze=squeeze),
        ValueEncoding.INT8: lambda: INT8.encode(chosen, None, squeeze=squeeze),
        ValueEncoding.INT4: lambda: INT4.encode(chosen, None, squeeze=squeeze),
    }[value]()
    tag = form | (COMPLEMENT if complement else 0)
    return struct.pack("<BBIIII", tag, value, len(bits), len(chosen), len(index), len(data)) + index + data


def new_gaps(gaps: np.ndarray) -> bytes:  # type: ignore[type-arg]
    """The bytes of a gap stream before compression."""
    return b"".join(b"\xff" * (int(gap) // 255) + bytes((int(gap) % 255,)) for gap in gaps)


def new_rice(gaps: np.ndarray, shift: int) -> bytes:  # type: ignore[type-arg]
    """A Rice stream with that k."""
    planes = b"".join(np.packbits((gaps >> bit & 1).astype(bool)).tobytes() for bit in range(shift))
    unary = "".join("0" * (int(gap) >> shift) + "1" for gap in gaps)
    unary += "0" * (-len(unary) % 8)
    return bytes((shift,)) + planes + int(unary or "0", 2).to_bytes(len(unary) // 8, "big")


def new_classes(gaps: np.ndarray) -> bytes:  # type: ignore[type-arg]
    """A list of classes and low bits."""
    numbers = [int(gap) + 4 for gap in gaps]
    lengths = [number.bit_length() - 3 for number in numbers]
    classes = bytes((length << 2) + (number >> length) - 4 for number, length in zip(numbers, lengths, strict=True))
    low = at = 0
    for number, length in zip(numbers, lengths, strict=True):
        low |= (number & (1 << length) - 1) << at
        at += length
    frame = compress(classes)
    return struct.pack("<I", len(frame)) + frame + low.to_bytes(-(-at // 8), "little")


# Payloads -------------------------------------------------------------------------------------------------------------


def payload_file(groups: list[GroupManifest], body: bytes) -> bytes:
    """A payload file with that manifest, right or not."""
    manifest = manifest_to_proto(groups).SerializeToString()
    return MAGIC + body + manifest + struct.pack(TRAILER, len(manifest), MAGIC)


def _encoded(chance: random.Random, tensors: Sequence[Bits], layout: Sequence[TensorSpec], *, coded: bool = False,
             every_value: bool = False) -> bytes:
    """Neighbours of one type share blocks."""
    body, at = b"", 0
    for run in runs_of(layout):
        kind = coded_kind(ELEMENT_TYPES[run[0].dtype]) if coded else ELEMENT_TYPES[run[0].dtype]
        bits = np.concatenate(tensors[at:at + len(run)])
        at += len(run)
        finite = kind.name == "float32" and bool((bits & 0x7F80_0000 != 0x7F80_0000).all())
        values = chance.choice(list(ValueForm)) if finite else ValueForm.EXACT
        plan = Plan(aim=chance.choice(list(Aim)), values=values)
        body += b"".join(bytes(part) for parts in encode_blocks(bits, kind, plan, every_value=every_value)
                         for part in parts)
    return body


def _layout(chance: random.Random) -> tuple[TensorSpec, ...]:
    types = chance.sample(list(ELEMENT_TYPES), chance.choice((1, 2, 3)))
    return tuple(TensorSpec(f"t{number}", chance.choice(_SHAPES), chance.choice(types))
                 for number in range(chance.randint(0, 5)))


def new_payload(chance: random.Random) -> bytes:
    """A valid input of the target `payload`: groups of all meanings, alone or against a reference."""
    layout = _layout(chance)
    base = [some_bits(chance, spec.num_elements, ELEMENT_TYPES[spec.dtype], finite=True) for spec in layout]
    base_body = _exact(base, layout)
    second = payload_file([GroupManifest("base", Meaning.VALUES, "", layout, len(base_body))], base_body)
    groups: list[GroupManifest] = []
    body = b""
    for number in range(chance.randint(0, 3)):
        against = chance.random() < 0.5
        specs = layout if against else _layout(chance)
        meaning = chance.choice((Meaning.VALUES, Meaning.OVERWRITE) if against else tuple(Meaning))
        forms = [ReferenceForm.BITS]
        if all(can_sum(ELEMENT_TYPES[spec.dtype]) for spec in specs):
            forms.append(ReferenceForm.SUM)
        form = chance.choice(forms) if against else ReferenceForm.ALONE
        tensors = [some_bits(chance, spec.num_elements, ELEMENT_TYPES[spec.dtype], finite=chance.random() < 0.8)
                   for spec in specs]
        if against:
            tensors = [code_against(bits, old, ELEMENT_TYPES[spec.dtype], form)
                       for bits, old, spec in zip(tensors, base, specs, strict=True)]
        part = _encoded(chance, tensors, specs, coded=form is ReferenceForm.BITS,
                        every_value=meaning is Meaning.OVERWRITE and not against)
        if (against or meaning is not Meaning.OVERWRITE) and chance.random() < 0.1:
            part = b""  # all zero
        groups.append(GroupManifest(
            f"group/{number}", meaning, "" if meaning is Meaning.VALUES else _BASE, specs, len(part),
            "cd" * 32 if against else "", _BASE if against else "", form))
        body += part
    first = payload_file(groups, body)
    return struct.pack("<BI", chance.choice((0, 0, 1)), len(first)) + first + second


def _exact(tensors: Sequence[Bits], layout: Sequence[TensorSpec]) -> bytes:
    body, at = b"", 0
    for run in runs_of(layout):
        bits = np.concatenate(tensors[at:at + len(run)])
        at += len(run)
        body += b"".join(bytes(part) for parts in encode_blocks(bits, ELEMENT_TYPES[run[0].dtype],
                                                                Plan(aim=Aim.SMALLEST)) for part in parts)
    return body


# Messages and chunks --------------------------------------------------------------------------------------------------

TASK = TaskSpec(
    task_id="first/3/train/north", study="first", round=3, rounds=10, phase="train", silo="north", method="semifl",
    settings={"epochs": 2, "threshold": 0.95, "names": ["a", "é"], "deep": {"on": True, "none": None}},
    model=ModelSettings(classes=("cat", "dog", "Füchse"), normalisation="group"),
    image=ImageForm(size=28, channels=3, mean=(0.1, 0.2, 0.3), std=(1.0, 0.5, 0.25)),
    augmentation=AugmentationSettings(horizontal_flip=True, without=("Invert",)),
    payloads=(PayloadRef(_BASE, 1000, ("model", "batch_norm")),
              PayloadRef("", 0, ("model",), "cd" * 32), PayloadRef("ef" * 32, 7, ("model",), "cd" * 32, _BASE)),
    numerics=Numerics(threads=2),
    last_folded_round=2, seed=-5, deadline_unix=1.8e9, uplink=Uplink(aim="smallest", values="int8", top_k=0.01),
)


def message_seeds() -> Iterator[bytes]:
    """Valid inputs of the target `message`."""
    spec = TensorSpec("w", (2, 3), "float32")
    group = GroupManifest("model", Meaning.VALUES, "", (spec,), 42, "cd" * 32)
    groups = [group, replace(group, name="a/0", reference=_BASE, reference_form=ReferenceForm.BITS),
              replace(group, name="b", meaning=Meaning.DIFFERENCE, base=_BASE, reference=_BASE,
                      reference_form=ReferenceForm.SUM),
              replace(group, name="d", meaning=Meaning.OVERWRITE, base=_BASE, reference=_BASE, encoded_bytes=0,
                      reference_form=ReferenceForm.BITS),
              GroupManifest("c", Meaning.OVERWRITE, _BASE, (spec, TensorSpec("s", (), "uint8"),
                                                           TensorSpec("e", (0, 2**40), "int64")), 50)]
    manifest = manifest_to_proto(groups)
    yield b"\0" + manifest.SerializeToString()
    yield b"\0" + manifest_to_proto([]).SerializeToString()
    for reference in TASK.payloads:
        yield b"\1" + reference_to_proto(reference).SerializeToString()
    yield b"\2" + task_to_proto(TASK, report_interval_seconds=5).SerializeToString()
    yield b"\3" + round_pb.UpdateDeclaration(
        payload=reference_to_proto(TASK.payloads[0]), manifest=manifest, example_count=5,
        metrics={"loss": 0.5, "é": -1e300}).SerializeToString()


def chunk_seeds() -> Iterator[bytes]:
    """Valid inputs of the target `chunk`, and the layouts that only protobuf reads."""
    for field in (DOWNLOAD_FIELD, SUBMIT_FIELD):
        for offset in (0, 1, 127, 128, 2**35, 2**63 - 1):
            for data in (b"", b"x", bytes(range(200))):
                yield pack_piece(field, Piece(offset, zlib.crc32(data), data))
    request = round_pb.SubmitUpdateRequest(update_id="u")
    request.chunk.data = b"abc"
    yield request.SerializeToString()
    request.chunk.offset = -1
    yield request.SerializeToString()


def seeds(target: str) -> Iterator[bytes]:
    """The first corpus of a target."""
    chance = random.Random(target)
    if target == "block":
        for number in range(len(KINDS)):
            for _ in range(12):
                yield new_block(chance, number)
        for _ in range(150):
            yield new_block(chance, 0)
        yield bytes((0, 0)) + struct.pack("<BBIIII", IndexEncoding.EMPTY, ValueEncoding.RAW, BLOCK_ELEMENTS, 0, 0, 0)
    elif target == "payload":
        for _ in range(200):
            yield new_payload(chance)
    else:
        yield from {"message": message_seeds, "chunk": chunk_seeds}[target]()
