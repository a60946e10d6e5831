"""The payload file: written in one piece, read tensor by tensor, refused when anything is not as declared."""

from __future__ import annotations

import contextlib
import hashlib
import struct
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload, DiskFull, LayoutMismatch
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorGroup, TensorSpec
from semisilo.common.payload.codec import BLOCK_ELEMENTS, ELEMENT_TYPES
from semisilo.common.payload.manifest import (
    MAX_GROUPS,
    GroupManifest,
    ReferenceForm,
    check_manifest,
    is_held_reference,
    manifest_to_proto,
    parse_manifest,
    parse_reference,
    reference_to_proto,
)
from semisilo.common.payload.reader import MAX_MANIFEST_BYTES, PayloadReader, read_manifest
from semisilo.common.payload.torch_tensors import (
    bits_to_tensor,
    decode_groups,
    encode_groups,
    tensor_spec,
    tensor_to_bits,
)
from semisilo.common.payload.writer import EncodedInput, TensorInput, write_payload
from semisilo.common.storage.store import PayloadStore
from semisilo.common.wire import tensors_pb2 as pb
from tests.each_of import each_of

BASE = "ab" * 32
SPEC = TensorSpec("w", (2, 3), "float32")


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(tmp_path / "payloads")


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (left.dtype == right.dtype and left.shape == right.shape
            and tensor_to_bits(left).tobytes() == tensor_to_bits(right).tobytes())


def group_of(name: str = "model", *, meaning: Meaning = Meaning.VALUES, base: str = "", encoded_bytes: int = 42,
             tensors: tuple[TensorSpec, ...] = (SPEC,)) -> GroupManifest:
    return GroupManifest(name, meaning, base, tensors, encoded_bytes)


def file_bytes(message: pb.PayloadManifest, body: bytes) -> bytes:
    manifest = message.SerializeToString()
    return framed(body, manifest)


def framed(body: bytes, manifest: bytes, *, length: int | None = None) -> bytes:
    """A file with these parts, and with another length of the manifest than its own if asked for."""
    return (b"SEMISILO" + body + manifest
            + struct.pack("<I", len(manifest) if length is None else length) + b"SEMISILO")


def dense_block(values: np.ndarray) -> bytes:
    return struct.pack("<BBIIII", 2, 1, values.size, values.size, 0, values.nbytes) + values.tobytes()


VALUES = np.arange(6, dtype="<f4")
GOOD = file_bytes(manifest_to_proto([group_of()]), dense_block(VALUES))
BODY, MANIFEST = dense_block(VALUES), manifest_to_proto([group_of()]).SerializeToString()


def read_all(path: Path, *, require_finite: bool = False) -> dict[str, TensorGroup]:
    return decode_groups(path, require_finite=require_finite)


# Round trips

AWKWARD = {
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0),
    "empty_axis": torch.zeros(3, 0, 2),
    "nan_payloads": torch.tensor([0x7FC00001, 0x7F800001, -1, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32),
    "infinities": torch.tensor([float("inf"), float("-inf")]),
    "negative_zero": torch.tensor([-0.0, 0.0]),
    "zeros": torch.zeros(5, 5),
    "subnormal": torch.tensor([1e-45, -1e-45]),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "strided": torch.arange(20, dtype=torch.int64)[::3],
    "expanded": torch.tensor([7.0]).expand(4, 4),
    "bfloat16": torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),
    "float16": torch.tensor([1.5, float("inf"), 6e-8], dtype=torch.float16),
    "float64": torch.tensor([1 / 3, float("nan")], dtype=torch.float64),
    "int64": torch.tensor([-2**63, 2**63 - 1]),
    "int32": torch.tensor([[-2**31]], dtype=torch.int32),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


def test_awkward_tensors_come_back_bit_for_bit_and_in_order(store: PayloadStore) -> None:
    groups = {"model": TensorGroup(AWKWARD), "delta": TensorGroup(AWKWARD, Meaning.DIFFERENCE, BASE),
              "psi": TensorGroup(AWKWARD, Meaning.OVERWRITE, BASE), "none": TensorGroup({})}
    reference = encode_groups(store, groups)
    back = read_all(store.path(reference.digest))
    assert list(back) == list(groups) == list(reference.groups)
    for name, group in back.items():
        assert (group.meaning, group.base) == (groups[name].meaning, groups[name].base)
        assert list(group.tensors) == list(groups[name].tensors)
        for key, tensor in group.tensors.items():
            assert same_bits(tensor, AWKWARD[key].detach()), key


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dtype=st.sampled_from(sorted(ELEMENT_TYPES)), shape=st.lists(st.integers(0, 4), max_size=4), data=st.data())
def test_random_tensors_come_back_bit_for_bit(store: PayloadStore, dtype: str, shape: list[int],
                                              data: st.DataObject) -> None:
    kind = ELEMENT_TYPES[dtype]
    size = int(np.prod(shape, dtype=np.int64)) * kind.size_bytes
    raw = data.draw(st.binary(min_size=size, max_size=size))
    spec = TensorSpec("t", tuple(shape), dtype)
    tensor = bits_to_tensor(np.frombuffer(raw, dtype=kind.bits).copy(), spec)
    assert tensor_spec("t", tensor) == spec
    reference = encode_groups(store, {"g": TensorGroup({"t": tensor})})
    back = read_all(store.path(reference.digest))["g"].tensors["t"]
    assert same_bits(back, tensor)
    assert tensor_to_bits(back).tobytes() == raw


def test_a_tensor_of_several_blocks_comes_back(store: PayloadStore) -> None:
    tensor = torch.randn(BLOCK_ELEMENTS * 2 + 5, generator=torch.Generator().manual_seed(1))
    tensor[BLOCK_ELEMENTS:2 * BLOCK_ELEMENTS] = 0
    reference = encode_groups(store, {"model": TensorGroup({"w": tensor})})
    assert same_bits(read_all(store.path(reference.digest))["model"].tensors["w"], tensor)
    [group] = read_manifest(store.path(reference.digest))
    assert group.encoded_bytes == 3 * 18 + 4 * (BLOCK_ELEMENTS + 5)


def test_the_file_is_laid_out_as_the_proto_says_and_named_by_its_digest(store: PayloadStore) -> None:
    reference = encode_groups(store, {"model": TensorGroup({"w": torch.arange(6.0).reshape(2, 3)})})
    content = store.path(reference.digest).read_bytes()
    assert content == GOOD
    assert reference == PayloadRef(hashlib.sha256(GOOD).hexdigest(), len(GOOD), ("model",))


def test_saved_bytes_are_counted_and_the_digest_is_that_of_the_file(store: PayloadStore) -> None:
    zeros = encode_groups(store, {"model": TensorGroup({"w": torch.zeros(2**20), "v": torch.ones(2)})})
    content = store.path(zeros.digest).read_bytes()
    assert hashlib.sha256(content).hexdigest() == zeros.digest
    assert read_manifest(store.path(zeros.digest))[0].encoded_bytes == 18 + 18 + 8


def test_a_group_of_zeros_takes_no_bytes_and_comes_back(store: PayloadStore) -> None:
    tensors = {"w": torch.zeros(3, 2**20), "counts": torch.zeros(5, dtype=torch.int64), "v": torch.zeros(())}
    for meaning, base in ((Meaning.VALUES, ""), (Meaning.DIFFERENCE, BASE)):
        zeros = encode_groups(store, {"model": TensorGroup(tensors, meaning, base)})
        assert read_manifest(store.path(zeros.digest))[0].encoded_bytes == 0
        back = read_all(store.path(zeros.digest))["model"].tensors
        assert all(same_bits(back[name], tensor) for name, tensor in tensors.items())
    overwriting = encode_groups(store, {"psi": TensorGroup(tensors, Meaning.OVERWRITE, BASE)})
    assert read_manifest(store.path(overwriting.digest))[0].encoded_bytes > 0


def test_neighbours_of_one_type_share_blocks(store: PayloadStore) -> None:
    tensors = {f"t{number}": torch.full((7,), float(number + 1)) for number in range(100)}
    few = encode_groups(store, {"model": TensorGroup(tensors)})
    assert read_manifest(store.path(few.digest))[0].encoded_bytes == 18 + 100 * 7 * 4
    tensors |= {"n": torch.ones(3, dtype=torch.int64), "last": torch.ones(2)}
    mixed = encode_groups(store, {"model": TensorGroup(tensors)})
    assert read_manifest(store.path(mixed.digest))[0].encoded_bytes == 3 * 18 + 100 * 7 * 4 + 3 * 8 + 2 * 4
    back = read_all(store.path(mixed.digest))["model"].tensors
    assert all(same_bits(back[name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in (store.folder / "incoming").iterdir()] == []


def test_equal_groups_make_equal_files(store: PayloadStore) -> None:
    first = encode_groups(store, {"model": TensorGroup(AWKWARD)})
    assert encode_groups(store, {"model": TensorGroup(AWKWARD)}) == first
    assert store.digests() == {first.digest}


def test_a_few_blocks_at_a_time_are_in_memory_while_writing_and_reading(store: PayloadStore) -> None:
    """60 tensors of 1 MiB: the peak stays below four blocks, where holding all would take 60 MiB."""
    specs = [TensorSpec(f"t{number}", (2**18,), "float32") for number in range(60)]
    inputs = EncodedInput([TensorInput(spec, lambda: np.ones(2**18, dtype="<u4")) for spec in specs])
    tracemalloc.start()
    reference = write_payload(store, {"model": inputs})
    with PayloadReader(store.path(reference.digest)) as reader:
        count = sum(1 for _ in reader.tensors("model"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 60
    assert peak < 18 * 2**20


def test_a_single_group_is_read_without_the_others(store: PayloadStore) -> None:
    reference = encode_groups(store, {"a": TensorGroup({"x": torch.ones(3)}), "b": TensorGroup({"y": torch.zeros(2)})})
    with PayloadReader(store.path(reference.digest)) as reader:
        [(spec, bits)] = reader.tensors("b")
        assert spec.name == "y"
        assert not bits.any()
        with pytest.raises(BadPayload, match="no group 'c'"):
            next(reader.tensors("c"))


def test_a_type_that_cannot_be_sent_is_named(store: PayloadStore) -> None:
    with pytest.raises(BadPayload, match=r"'mask' \(torch.bool"):
        encode_groups(store, {"model": TensorGroup({"mask": torch.ones(2, dtype=torch.bool)})})


def test_a_writer_does_not_send_what_readers_refuse_and_leaves_nothing_behind(store: PayloadStore) -> None:
    for name in ("", "x" * 129, "line\nbreak"):
        with pytest.raises(BadPayload, match="name"):
            encode_groups(store, {name: TensorGroup({})})
    with pytest.raises(BadPayload, match="base digest"):
        encode_groups(store, {"model": TensorGroup({}, Meaning.DIFFERENCE)})
    with pytest.raises(LayoutMismatch, match="'w' is not what"):
        write_payload(store, {"m": EncodedInput([TensorInput(SPEC, lambda: np.ones(5, dtype="<u4"))])})
    assert store.total_bytes() == 0


def test_a_full_store_refuses_a_payload_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path, limit_bytes=500)
    encode_groups(store, {"model": TensorGroup({"w": torch.ones(50)})})
    before = store.total_bytes()
    with pytest.raises(DiskFull, match="500"):
        encode_groups(store, {"model": TensorGroup({"w": torch.full((50,), 2.0)})})
    assert store.total_bytes() == before


def test_finite_is_required_only_when_asked_and_the_tensor_is_named(store: PayloadStore) -> None:
    for value, dtype in ((float("nan"), torch.float32), (float("inf"), torch.bfloat16)):
        bad = TensorGroup({"good": torch.ones(2), "bad": torch.tensor([0.0, value], dtype=dtype)})
        path = store.path(encode_groups(store, {"model": bad}).digest)
        read_all(path)
        with pytest.raises(BadPayload, match="Tensor 'bad' of the group 'model': It has an infinity or NaN"):
            read_all(path, require_finite=True)


# Hostile files

def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "hostile"
    path.write_bytes(content)
    return path


def test_the_untouched_file_of_these_tests_is_accepted(tmp_path: Path) -> None:
    tensors = read_all(written(tmp_path, GOOD), require_finite=True)["model"].tensors
    assert tensors["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("content", "message"), [
    (b"", "not a payload"),
    (b"SEMISIL", "not a payload"),
    (b"PICKLED!" + GOOD[8:], "not a payload"),
    (b"SEMISILO", "does not end with SEMISILO|not a payload"),
    (b"SEMISILO" * 2, "not a payload"),
    (GOOD[:-1], "does not end with SEMISILO"),
    (GOOD + b"\0", "does not end with SEMISILO"),
    (GOOD[:-8] + b"semisilo", "does not end with SEMISILO"),
    (framed(BODY, MANIFEST, length=MAX_MANIFEST_BYTES + 1), "2097152 are allowed"),
    (framed(BODY, MANIFEST, length=2**32 - 1), "2097152 are allowed"),
    (framed(BODY, MANIFEST, length=5000), "of 5000 bytes does not fit"),
    (framed(BODY, MANIFEST, length=len(BODY + MANIFEST) + 1), "does not fit"),
    (framed(BODY, b"\xff" * len(MANIFEST)), "does not have the expected form"),
    (framed(BODY, b""), "layout version 0"),
    (framed(BODY + b"\0", MANIFEST), "51 bytes before its manifest, which says 50"),
    (framed(BODY[:-1], MANIFEST), "49 bytes before its manifest, which says 50"),
    (framed(b"", BODY + MANIFEST), "does not have the expected form|layout version"),
    (b"SEMISILO" + struct.pack("<I", len(MANIFEST)) + MANIFEST + BODY, "does not end with SEMISILO"),
    (file_bytes(manifest_to_proto([group_of()]), b"\0" * 42), "unknown encoding 0/0"),
    (file_bytes(manifest_to_proto([group_of(encoded_bytes=41)]), dense_block(VALUES)[:-1]), "does not fit"),
    (file_bytes(manifest_to_proto([group_of(encoded_bytes=30)]),
                struct.pack("<BBIIII", 1, 1, 6, 0, 0, 0) + bytes(12)), "12 bytes after its last tensor"),
    (file_bytes(manifest_to_proto([group_of(tensors=(SPEC, TensorSpec("v", (1,), "uint8")), encoded_bytes=42)]),
                dense_block(VALUES)), "does not fit into the 6 left"),
    (file_bytes(manifest_to_proto([group_of(meaning=Meaning.OVERWRITE, base=BASE, encoded_bytes=18)]),
                struct.pack("<BBIIII", 1, 1, 6, 0, 0, 0)), "overwrites only some elements"),
])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(BadPayload, match=message):
        read_all(written(tmp_path, content))


def test_a_small_file_that_claims_a_terabyte_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """Once with impossible sizes; once with the sizes of empty blocks, and once really made of empty blocks."""
    spec = TensorSpec("w", (2**38,), "float32")
    terabyte = manifest_to_proto([group_of(tensors=(spec,), encoded_bytes=0)])
    cases = []
    for size in (900, 2**18 * 18):
        message = pb.PayloadManifest()
        message.CopyFrom(terabyte)
        message.groups[0].encoded_bytes = size
        cases.append(file_bytes(message, bytes(900)))
    blocks = 1000
    bomb = TensorSpec("w", (blocks * BLOCK_ELEMENTS,), "float64")
    empty = struct.pack("<BBIIII", 1, 1, BLOCK_ELEMENTS, 0, 0, 0) * blocks
    cases.append(file_bytes(manifest_to_proto([group_of(tensors=(bomb,), encoded_bytes=len(empty))]), empty))
    for content in cases:
        path = written(tmp_path, content)
        tracemalloc.start()
        try:
            with pytest.raises(BadPayload):
                decode_groups(path, require_finite=False, max_bytes=2**30)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2**20


def test_every_shortened_or_altered_file_is_refused_or_read_without_another_error(tmp_path: Path) -> None:
    for length in range(len(GOOD)):
        with pytest.raises(BadPayload):
            read_all(written(tmp_path, GOOD[:length]))
    for offset in range(len(GOOD)):
        altered = bytearray(GOOD)
        altered[offset] ^= 0x81
        with contextlib.suppress(BadPayload):
            read_all(written(tmp_path, bytes(altered)))


# Hostile manifests

def message_with(**changes: object) -> pb.PayloadManifest:
    """The manifest of GOOD with fields of its group, or with `w_...` of its tensor, set to something else."""
    message = manifest_to_proto([group_of()])
    for name, value in changes.items():
        target = message.groups[0].tensors[0] if name.startswith("w_") else message.groups[0]
        field = name.removeprefix("w_")
        if isinstance(value, list):
            del getattr(target, field)[:]
            getattr(target, field).extend(value)
        else:
            setattr(target, field, value)
    return message


def test_a_manifest_survives_the_wire() -> None:
    groups = (group_of(), group_of("helper_psi/0", meaning=Meaning.OVERWRITE, base=BASE),
              group_of("delta", meaning=Meaning.DIFFERENCE, base=BASE, tensors=(), encoded_bytes=0))
    message = pb.PayloadManifest.FromString(manifest_to_proto(groups).SerializeToString())
    assert parse_manifest(message) == groups
    assert groups[0].dense_bytes == 24


def test_a_manifest_that_comes_again_is_parsed_once_and_a_large_or_a_wrong_one_every_time() -> None:
    small = manifest_to_proto([group_of()])
    assert parse_manifest(small) is parse_manifest(pb.PayloadManifest.FromString(small.SerializeToString()))
    tensors = tuple(TensorSpec(f"{number:0200}", (1,), "float32") for number in range(400))
    large = manifest_to_proto([group_of(tensors=tensors, encoded_bytes=1614)])
    assert large.ByteSize() > 64 * 1024
    assert parse_manifest(large) == parse_manifest(large)
    assert parse_manifest(large) is not parse_manifest(large), "strangers' manifests fill no memory"
    small.groups[0].encoded_bytes = 1
    for _ in range(2):
        with pytest.raises(BadPayload, match="cannot take 1 bytes"):
            parse_manifest(small)


def test_digests_and_the_reference_of_a_manifest_survive_the_wire() -> None:
    alone = GroupManifest("model", Meaning.VALUES, "", (SPEC,), 42, "cd" * 32)
    groups = (alone, replace(alone, name="a", reference=BASE, reference_form=ReferenceForm.BITS),
              replace(alone, name="b", reference=BASE, reference_form=ReferenceForm.SUM))
    message = pb.PayloadManifest.FromString(manifest_to_proto(groups).SerializeToString())
    assert parse_manifest(message) == groups


@each_of(("message", "text"), [
    (pb.PayloadManifest(), "layout version 0"),
    (pb.PayloadManifest(format=1), "layout version 1"),
    (pb.PayloadManifest(format=3), "layout version 3"),
    (pb.PayloadManifest(format=2, groups=[pb.GroupManifest()] * (MAX_GROUPS + 1)), "1025 groups"),
    (pb.PayloadManifest(format=2, groups=[pb.GroupManifest(tensors=[pb.TensorSpec()] * 65_537)]), "65537 tensors"),
    (manifest_to_proto([group_of(), group_of()]), "'model' of a group occurs twice"),
    (manifest_to_proto([group_of(tensors=(SPEC, SPEC), encoded_bytes=84)]), "'w' of a tensor .* occurs twice"),
    (message_with(name=""), "0 bytes"),
    (message_with(name="é" * 65), "130 bytes"),
    (message_with(name="a\x1b[2J"), "unprintable"),
    (message_with(w_name=""), "0 bytes"),
    (message_with(w_name="x" * 257), "257 bytes"),
    (message_with(w_name="a\0b"), "unprintable"),
    (message_with(meaning=0), "unknown meaning 0"),
    (message_with(meaning=77), "unknown meaning 77"),
    (message_with(base_digest=b"x"), "base digest of 1 bytes, not 0"),
    (message_with(meaning=pb.MEANING_DIFFERENCE), "base digest of 0 bytes, not 32"),
    (message_with(meaning=pb.MEANING_OVERWRITE, base_digest=bytes(33)), "base digest of 33 bytes"),
    (message_with(w_shape=[1] * 9), "9 axes"),
    (message_with(w_shape=[-1]), "length -1"),
    (message_with(w_shape=[2**62, 4]), "more than"),
    (message_with(w_shape=[2**62, 0]), "more than"),
    (message_with(w_shape=[2**32, 2**32]), "more than"),
    (message_with(w_data_type=0), "unknown type 0"),
    (message_with(w_data_type=99), "unknown type 99"),
    (message_with(encoded_bytes=-1), "cannot take -1 bytes"),
    (message_with(encoded_bytes=17), "need 18 to 42"),
    (message_with(encoded_bytes=43), "need 18 to 42"),
    (message_with(w_shape=[2**38], encoded_bytes=1000), "cannot take 1000 bytes"),
    (message_with(tensors_digest=b"x"), "tensors_digest of 1 bytes"),
    (message_with(tensors_digest=bytes(33)), "tensors_digest of 33 bytes"),
    (message_with(reference_digest=bytes(32)), "a reference .alone. that cannot be"),
    (message_with(reference_digest=bytes(32), tensors_digest=bytes(32)), "a reference .alone. that cannot be"),
    (message_with(reference_form=pb.REFERENCE_FORM_BITS, tensors_digest=bytes(32)), "a reference .bits. that cannot"),
    (message_with(reference_form=pb.REFERENCE_FORM_BITS, reference_digest=bytes(32)), "a reference .bits. that cannot"),
    (message_with(reference_form=pb.REFERENCE_FORM_SUM, reference_digest=bytes(31), tensors_digest=bytes(32)),
     "a reference .sum. that cannot"),
    (message_with(reference_form=3, reference_digest=bytes(32), tensors_digest=bytes(32)), "unknown form 3"),
    (message_with(reference_form=-1, reference_digest=bytes(32), tensors_digest=bytes(32)), "unknown form -1"),
])
def test_a_manifest_that_breaks_the_rules_is_refused(message: pb.PayloadManifest, text: str) -> None:
    with pytest.raises(BadPayload, match=text):
        parse_manifest(message)


ALLOWED: Mapping[str, Meaning] = {"model": Meaning.VALUES, "helper/*": Meaning.VALUES}


def test_a_manifest_that_fits_the_method_passes() -> None:
    groups = (group_of(), group_of("helper/0"), group_of("helper/12"))
    check_manifest(groups, allowed=ALLOWED, layouts={"model": (SPEC,), "helper/*": (SPEC,)}, max_bytes=72,
                   required=("model", "helper/*"))
    check_manifest(groups, allowed=ALLOWED, layouts=None, max_bytes=72)


@each_of("name", ["other", "helper", "helper/", "helper/*", "helper/x", "helper/01", "helper/-1",
                  "helper/1/2", "helper/²", "Model"])
def test_a_group_that_the_method_does_not_declare_is_refused(name: str) -> None:
    with pytest.raises(BadPayload, match="no tensor group"):
        check_manifest([group_of(name)], allowed=ALLOWED, layouts=None, max_bytes=10**6)


def test_wrong_meaning_size_or_missing_group_is_refused() -> None:
    with pytest.raises(BadPayload, match="comes as difference; the method has values"):
        check_manifest([group_of(meaning=Meaning.DIFFERENCE, base=BASE)], allowed=ALLOWED, layouts=None, max_bytes=100)
    with pytest.raises(BadPayload, match="24 bytes when decoded; 23"):
        check_manifest([group_of()], allowed=ALLOWED, layouts=None, max_bytes=23)
    with pytest.raises(BadPayload, match="'model' is missing"):
        check_manifest([group_of("helper/0")], allowed=ALLOWED, layouts=None, max_bytes=100, required=("model",))


@each_of("layout", [
    (TensorSpec("v", (2, 3), "float32"),), (TensorSpec("w", (3, 2), "float32"),), (TensorSpec("w", (2, 3), "float16"),),
    (), (SPEC, TensorSpec("v", (), "float32"))])
def test_another_layout_is_refused(layout: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(LayoutMismatch, match="'model'"):
        check_manifest([group_of()], allowed=ALLOWED, layouts={"model": layout}, max_bytes=100)


def test_a_reference_survives_the_wire_and_is_checked() -> None:
    for reference in (PayloadRef(BASE, 1234, ("model", "batch_norm")),
                      PayloadRef(BASE, 1234, ("model",), tensors="cd" * 32),
                      PayloadRef(BASE, 1234, ("model",), tensors="cd" * 32, reference="ef" * 32)):
        assert parse_reference(reference_to_proto(reference)) == reference
        assert not is_held_reference(reference_to_proto(reference))
    changes: dict[str, Any]
    for changes in ({"digest": b"x"}, {"size_bytes": 0}, {"size_bytes": -5}, {"size_bytes": 2**60},
                    {"groups": ["a", "a"]}, {"groups": [""]}, {"groups": [str(n) for n in range(1025)]},
                    {"tensors_digest": b"x"}, {"reference_digest": b"x"}, {"digest": b"", "size_bytes": 0},
                    {"tensors_digest": bytes(32), "groups": ["a", "b"]}, {"tensors_digest": bytes(32), "groups": []},
                    {"tensors_digest": bytes(32), "digest": b""}, {"tensors_digest": bytes(32), "size_bytes": 0}):
        good: dict[str, Any] = {"digest": bytes(32), "size_bytes": 100, "groups": ["a"]}
        parse_reference(pb.PayloadReference(**good))
        message = pb.PayloadReference(**{**good, **changes})
        with pytest.raises(BadPayload):
            parse_reference(message)


def test_a_reference_to_tensors_that_the_reader_holds_names_no_file() -> None:
    held = PayloadRef("", 0, ("model",), tensors="cd" * 32)
    message = reference_to_proto(held)
    assert is_held_reference(message)
    assert parse_reference(message) == held
    assert not is_held_reference(pb.PayloadReference(groups=["model"]))
