"""A tensor group coded against tensors that the reader holds: the forms, their arithmetic, and payloads made so."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload, LayoutMismatch, SemisiloError, WrongBase
from semisilo.common.learning.tensors import digest
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorGroup, TensorSpec
from semisilo.common.payload.codec import BLOCK_ELEMENTS, ELEMENT_TYPES, Aim, Bits, Plan
from semisilo.common.payload.manifest import GroupManifest, ReferenceForm, manifest_to_proto
from semisilo.common.payload.reader import PayloadReader, read_manifest
from semisilo.common.payload.reference import add_reference, can_sum, choose_form, code_against
from semisilo.common.payload.torch_tensors import (
    bits_to_tensor,
    decode_groups,
    encode_groups,
    tensor_spec,
    tensor_to_bits,
)
from semisilo.common.payload.writer import EncodedInput, Reference, TensorInput, write_payload
from semisilo.common.storage.store import PayloadStore

SMALLEST = Plan(aim=Aim.SMALLEST)
FORMS = (ReferenceForm.BITS, ReferenceForm.SUM)
F4 = ELEMENT_TYPES["float32"]


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(tmp_path / "payloads")


def noise(count: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def group_of(tensors: Mapping[str, torch.Tensor]) -> TensorGroup:
    return TensorGroup(dict(tensors), digest=digest(tensors))


def kept(store: PayloadStore, group: TensorGroup) -> Reference:
    """A group as the reader of a later payload holds it."""
    written = encode_groups(store, {"model": group})
    assert written.tensors == group.digest
    return Reference(group.digest, store.path(written.digest))


def path_of(reference: Reference) -> Path:
    assert isinstance(reference.source, Path)
    return reference.source


def form_for(store: PayloadStore, new: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor],
             plan: Plan = SMALLEST) -> ReferenceForm:
    with kept(store, group_of(base)).opened() as held:
        return choose_form(held, [(tensor_spec(name, tensor), partial(tensor_to_bits, tensor))
                                  for name, tensor in new.items()], plan)


def back(store: PayloadStore, written: PayloadRef, *references: Reference, require_finite: bool = False) -> TensorGroup:
    known = {reference.digest: path_of(reference) for reference in references}
    return decode_groups(store.path(written.digest), require_finite=require_finite, references=known.get)["model"]


# The arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=300)
@given(dtype=st.sampled_from(sorted(ELEMENT_TYPES)), count=st.integers(0, 9), data=st.data())
def test_any_patterns_of_any_type_come_back_from_their_differences(dtype: str, count: int, data: st.DataObject) -> None:
    kind = ELEMENT_TYPES[dtype]
    size = count * kind.size_bytes
    bits, base = (np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), dtype=kind.bits) for _ in range(2))
    coded = code_against(bits, base, kind, ReferenceForm.BITS)
    assert coded.dtype == bits.dtype
    add_reference(coded, base, kind, ReferenceForm.BITS)
    assert coded.tobytes() == bits.tobytes()
    assert not code_against(bits, bits, kind, ReferenceForm.BITS).any()


@settings(max_examples=200)
@given(dtype=st.sampled_from(["float32", "float64"]), data=st.data())
def test_a_model_made_by_adding_an_update_is_the_sum_again(dtype: str, data: st.DataObject) -> None:
    """Small whole numbers: every sum of theirs is exact, and so is what is sent."""
    kind, floats = ELEMENT_TYPES[dtype], np.dtype(dtype)
    base, step = (np.array(data.draw(st.lists(st.integers(1, 2**20), min_size=5, max_size=5)), dtype=floats)
                  for _ in range(2))
    bits = (base + step).view(kind.bits)
    coded = code_against(bits, base.view(kind.bits), kind, ReferenceForm.SUM)
    assert coded.view(floats).tolist() == step.tolist()
    add_reference(coded, base.view(kind.bits), kind, ReferenceForm.SUM)
    assert coded.tobytes() == bits.tobytes()


def test_sums_are_for_the_two_types_whose_arithmetic_numpy_has() -> None:
    assert [name for name, kind in ELEMENT_TYPES.items() if can_sum(kind)] == ["float32", "float64"]


# The choice -----------------------------------------------------------------------------------------------------------


def test_a_sparse_update_is_smallest_as_a_sum(store: PayloadStore) -> None:
    base = noise(50_000).abs() + 1
    update = torch.zeros(50_000)
    update[::50] = 0.25
    assert form_for(store, {"w": base + update}, {"w": base}) is ReferenceForm.SUM


def test_a_model_trained_a_little_further_is_smallest_as_bits(store: PayloadStore) -> None:
    base = noise(50_000)
    assert form_for(store, {"w": base * (1 + 1e-4 * noise(50_000, seed=1))}, {"w": base}) is ReferenceForm.BITS


def test_tensors_that_have_nothing_in_common_stand_alone(store: PayloadStore) -> None:
    base = torch.from_numpy(np.random.default_rng(1).integers(0, 2**31 - 1, 50_000, dtype=np.int32))
    assert form_for(store, {"w": torch.full((50_000,), 7, dtype=torch.int32)}, {"w": base}) is ReferenceForm.ALONE
    assert form_for(store, {}, {}) is ReferenceForm.ALONE


SIGNALLING = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(("value", "old_value"), [
    (torch.tensor([-0.0, 1.0]), torch.tensor([-0.0, 1.0])), (SIGNALLING, torch.tensor([1.0])),
    (torch.tensor([1e-45]), torch.tensor([1.0])), (torch.tensor([1.0]), torch.tensor([float("inf")])),
    (torch.tensor([2]), torch.tensor([1])), (torch.tensor([1.5], dtype=torch.bfloat16),) * 2],
    ids=["negative zero", "signalling NaN", "rounding", "infinity", "integers", "bfloat16"])
def test_one_element_whose_sum_is_not_exact_rules_the_sum_out_for_the_whole_group(
        store: PayloadStore, value: torch.Tensor, old_value: torch.Tensor) -> None:
    """The sample is of the largest tensor, which does sum exactly; the small one does not."""
    base = noise(50_000).abs() + 1
    update = torch.zeros(50_000)
    update[::50] = 0.25
    new, old = {"w": base + update, "n": value}, {"w": base, "n": old_value}
    form = form_for(store, new, old)
    assert form is not ReferenceForm.SUM
    reference, group = kept(store, group_of(old)), group_of(new)
    written = encode_groups(store, {"model": group}, plan=SMALLEST, reference=reference)
    assert digest(back(store, written, reference).tensors) == group.digest


def test_a_reference_with_other_tensors_is_the_callers_mistake(store: PayloadStore) -> None:
    with pytest.raises(LayoutMismatch):
        form_for(store, {"w": noise(5)}, {"w": noise(6)})
    with pytest.raises(LayoutMismatch):
        form_for(store, {"w": noise(5)}, {"v": noise(5)})
    assert read_manifest(next(iter(store.folder.glob("?" * 64))))  # the reference itself is sound


# Payloads -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=st.lists(st.tuples(st.sampled_from(sorted(ELEMENT_TYPES)), st.lists(st.integers(0, 4), max_size=3)),
                       max_size=4),
       alike=st.booleans(), aim=st.sampled_from(list(Aim)), data=st.data())
def test_any_group_comes_back_bit_for_bit_from_any_reference(
        store: PayloadStore, layout: list[tuple[str, list[int]]], alike: bool, aim: Aim, data: st.DataObject) -> None:
    def drawn() -> dict[str, torch.Tensor]:
        found = {}
        for number, (dtype, shape) in enumerate(layout):
            kind = ELEMENT_TYPES[dtype]
            size = int(np.prod(shape, dtype=np.int64)) * kind.size_bytes
            raw = data.draw(st.binary(min_size=size, max_size=size))
            found[f"t{number}"] = bits_to_tensor(np.frombuffer(raw, dtype=kind.bits).copy(),
                                                 TensorSpec("t", tuple(shape), dtype))
        return found
    old = drawn()
    new = old if alike else drawn()
    reference, group = kept(store, group_of(old)), group_of(new)
    written = encode_groups(store, {"model": group}, plan=Plan(aim=aim), reference=reference)
    found = back(store, written, reference)
    assert list(found.tensors) == list(new)
    assert digest(found.tensors) == group.digest
    assert written.tensors == group.digest
    assert written.reference in ("", reference.digest)


@pytest.mark.parametrize("form", FORMS)
def test_a_payload_against_a_reference_is_smaller_and_says_what_it_needs(
        store: PayloadStore, form: ReferenceForm) -> None:
    base = noise(BLOCK_ELEMENTS + 5).abs() + 1  # two blocks
    update = torch.zeros(BLOCK_ELEMENTS + 5)
    update[::50] = 0.25
    after = base + update if form is ReferenceForm.SUM else base * (1 + 1e-5 * noise(BLOCK_ELEMENTS + 5, seed=2))
    old, new = group_of({"w": base, "b": torch.ones(3)}), group_of({"w": after, "b": torch.ones(3)})
    reference = kept(store, old)
    alone = encode_groups(store, {"model": new}, plan=SMALLEST)
    written = encode_groups(store, {"model": new}, plan=SMALLEST, reference=reference)
    [manifest] = read_manifest(store.path(written.digest))
    assert (manifest.reference_form, manifest.reference, manifest.tensors_digest) == (form, old.digest, new.digest)
    assert (written.tensors, written.reference) == (new.digest, old.digest)
    assert (alone.tensors, alone.reference) == (new.digest, "")
    assert written.size_bytes < 0.6 * alone.size_bytes
    found = back(store, written, reference, require_finite=True)
    assert (digest(found.tensors), found.digest, found.meaning) == (new.digest, new.digest, Meaning.VALUES)


def coded(store: PayloadStore) -> tuple[PayloadRef, Reference, TensorGroup]:
    base = noise(2000)
    old, new = group_of({"w": base, "v": noise(3)}), group_of({"w": base * 1.00001, "v": noise(3)})
    reference = kept(store, old)
    written = encode_groups(store, {"model": new}, plan=SMALLEST, reference=reference)
    assert written.reference == old.digest, "otherwise the tests that use this show nothing"
    return written, reference, new


def test_without_its_reference_a_payload_is_refused_with_the_way_out(store: PayloadStore) -> None:
    written, _, _ = coded(store)
    with pytest.raises(WrongBase, match="not here") as error:
        back(store, written)
    assert "whole group" in error.value.remedy


def test_every_damage_to_the_reference_is_noticed(store: PayloadStore) -> None:
    written, reference, new = coded(store)
    content = path_of(reference).read_bytes()
    manifest_bytes = struct.unpack("<I", content[-12:-8])[0]
    harmless = 0
    for offset in range(0, len(content), 41):
        damaged = bytearray(content)
        damaged[offset] ^= 0x41
        path_of(reference).write_bytes(damaged)
        try:
            found = back(store, written, reference)
        except (BadPayload, LayoutMismatch, WrongBase):
            continue
        harmless += 1
        assert offset >= len(content) - 12 - manifest_bytes, "only what the manifest says beside the layout may differ"
        assert digest(found.tensors) == new.digest
    assert harmless < len(content) / 41 / 10
    path_of(reference).write_bytes(content)
    assert digest(back(store, written, reference).tensors) == new.digest


def test_a_reference_of_another_layout_or_without_groups_is_refused(store: PayloadStore) -> None:
    written, reference, _ = coded(store)
    other = kept(store, group_of({"w": noise(2001), "v": noise(3)}))
    empty = store.path(write_payload(store, {}).digest)
    for path in (path_of(other), empty):
        with pytest.raises(LayoutMismatch, match="another layout"):
            back(store, written, Reference(reference.digest, path))


def test_the_other_groups_of_a_file_need_no_reference(store: PayloadStore) -> None:
    _, reference, new = coded(store)
    inputs = [TensorInput(tensor_spec(name, tensor), partial(tensor_to_bits, tensor))
              for name, tensor in new.tensors.items()]
    written = write_payload(store, {
        "model": EncodedInput(inputs, plan=SMALLEST, digest=new.digest, reference=reference),
        "other": EncodedInput(inputs)})
    assert (written.tensors, written.reference) == ("", "")
    with PayloadReader(store.path(written.digest)) as reader:
        assert [spec.name for spec, _ in reader.tensors("other")] == list(new.tensors)
        with pytest.raises(WrongBase):
            list(reader.tensors("model"))
        with reference.opened() as theirs:
            found = {spec.name: bits_to_tensor(bits, spec) for spec, bits in reader.tensors("model", theirs)}
    assert digest(found) == new.digest


def test_a_digest_that_only_the_file_vouches_for_is_not_passed_on(store: PayloadStore) -> None:
    """A stranger could give the digest of the model, and its own tensors would be taken for it."""
    lie = TensorGroup({"w": noise(4)}, digest="ab" * 32)
    path = store.path(encode_groups(store, {"model": lie}).digest)
    assert decode_groups(path, require_finite=True)["model"].digest == ""
    assert decode_groups(path, require_finite=True, trust_digests=True)["model"].digest == "ab" * 32


def test_what_comes_out_must_be_finite_even_if_what_was_sent_is(store: PayloadStore) -> None:
    old, new = group_of({"w": torch.tensor([1.0] * 500)}), group_of({"w": torch.tensor([1.0] * 499 + [float("nan")])})
    reference = kept(store, old)
    written = encode_groups(store, {"model": new}, plan=SMALLEST, reference=reference)
    assert written.reference == old.digest
    assert digest(back(store, written, reference).tensors) == new.digest
    with pytest.raises(BadPayload, match="infinity or NaN"):
        back(store, written, reference, require_finite=True)


def test_a_reference_that_is_no_payload_stops_the_writer_and_leaves_nothing(store: PayloadStore) -> None:
    _, reference, new = coded(store)
    before = store.digests()
    path_of(reference).write_bytes(path_of(reference).read_bytes()[:-1])
    with pytest.raises(BadPayload):
        encode_groups(store, {"model": new}, plan=SMALLEST, reference=reference)
    path_of(reference).unlink()
    with pytest.raises(FileNotFoundError):
        encode_groups(store, {"model": new}, plan=SMALLEST, reference=reference)
    assert store.digests() == before - {path_of(reference).name}
    assert list((store.folder / "incoming").iterdir()) == []


# Hostile files --------------------------------------------------------------------------------------------------------


def raw_block(bits: Bits) -> bytes:
    return struct.pack("<BBIIII", 2, 1, bits.size, bits.size, 0, bits.nbytes) + bits.tobytes()


def hostile(tmp_path: Path, blocks: bytes, **changes: Any) -> tuple[Path, Path]:
    """A file that claims to be coded against a sound one, and the sound one."""
    spec = TensorSpec("w", (4,), "float32")
    sound = GroupManifest("model", Meaning.VALUES, "", (spec,), 34)
    claimed = replace(sound, encoded_bytes=len(blocks), tensors_digest="ab" * 32, reference="cd" * 32,
                      reference_form=ReferenceForm.BITS)
    paths = []
    for name, group, body in (("file", replace(claimed, **changes), blocks),
                              ("reference", sound, raw_block(np.ones(4, dtype="<f4").view("<u4")))):
        manifest = manifest_to_proto([group]).SerializeToString()
        path = tmp_path / name
        path.write_bytes(b"SEMISILO" + body + manifest + struct.pack("<I", len(manifest)) + b"SEMISILO")
        paths.append(path)
    return paths[0], paths[1]


@pytest.mark.parametrize(("blocks", "changes", "error", "text"), [
    (raw_block(np.zeros(4, "<u4")), {}, WrongBase, "does not come out as it was sent"),
    (raw_block(np.full(4, 2**32 - 1, "<u4")), {}, WrongBase, "does not come out"),
    (raw_block(np.zeros(4, "<u4")), {"reference_form": ReferenceForm.SUM}, WrongBase, "does not come out"),
    (raw_block(np.zeros(3, "<u4")), {}, BadPayload, "Tensor 'w'"),
    (raw_block(np.zeros(4, "<u4"))[:-4] + bytes(3), {}, BadPayload, "Tensor 'w'"),
    (raw_block(np.zeros(8, "<u2")), {"tensors": (TensorSpec("w", (8,), "float16"),)}, LayoutMismatch, "another layout"),
    (raw_block(np.zeros(4, "<u4")), {"tensors": (TensorSpec("w", (4,), "int32"),)}, LayoutMismatch, "another layout"),
    (raw_block(np.zeros(4, "<u4")), {"tensors": (TensorSpec("w", (2, 2), "float32"),)}, LayoutMismatch, "another"),
])
def test_blocks_that_do_not_belong_to_the_reference_are_refused(
        tmp_path: Path, blocks: bytes, changes: dict[str, Any], error: type[SemisiloError], text: str) -> None:
    path, reference = hostile(tmp_path, blocks, **changes)
    with pytest.raises(error, match=text):
        decode_groups(path, require_finite=False, references={"cd" * 32: reference}.get)


def test_a_sum_of_a_type_that_has_none_is_refused(tmp_path: Path) -> None:
    spec = TensorSpec("w", (4,), "int32")
    path, reference = hostile(tmp_path, raw_block(np.zeros(4, "<u4")), tensors=(spec,),
                              reference_form=ReferenceForm.SUM)
    manifest = manifest_to_proto([GroupManifest("model", Meaning.VALUES, "", (spec,), 34)]).SerializeToString()
    reference.write_bytes(b"SEMISILO" + raw_block(np.zeros(4, "<u4")) + manifest + struct.pack("<I", len(manifest))
                          + b"SEMISILO")
    with pytest.raises(BadPayload, match="sum of int32"):
        decode_groups(path, require_finite=False, references={"cd" * 32: reference}.get)


@pytest.mark.slow
def test_every_altered_byte_of_a_coded_file_is_refused_with_an_error_of_the_catalogue(store: PayloadStore) -> None:
    written, reference, new = coded(store)
    content = store.path(written.digest).read_bytes()
    path = store.folder / "altered"
    for offset in range(0, len(content), 7):
        for mask in (0x01, 0x80):
            altered = bytearray(content)
            altered[offset] ^= mask
            path.write_bytes(altered)
            with contextlib.suppress(BadPayload, LayoutMismatch, WrongBase):
                found = decode_groups(path, require_finite=False, references={reference.digest: path_of(reference)}.get)
                assert all(digest(group.tensors) == new.digest for group in found.values()), "or nothing was altered"
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(BadPayload):
            decode_groups(path, require_finite=False, references={reference.digest: path_of(reference)}.get)
