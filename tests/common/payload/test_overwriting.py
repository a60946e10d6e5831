"""Groups that overwrite: coded against what the reader holds, in memory or in a file. Exact, small, no way to lie."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload, LayoutMismatch, SemisiloError, WrongBase
from semisilo.common.learning.tensors import digest
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorGroup, TensorSpec
from semisilo.common.payload.codec import ELEMENT_TYPES, Aim, Plan
from semisilo.common.payload.manifest import (
    GroupManifest,
    ReferenceForm,
    check_base,
    check_manifest,
    is_meant,
    manifest_to_proto,
    parse_manifest,
)
from semisilo.common.payload.reader import HeldFile, PayloadReader, read_manifest
from semisilo.common.payload.torch_tensors import (
    bits_to_tensor,
    decode_group,
    decode_groups,
    encode_groups,
    held_in_memory,
)
from semisilo.common.payload.writer import Reference
from semisilo.common.storage.store import PayloadStore
from tests.each_of import each_of

COUNT = 100_000
A, B = "ab" * 32, "cd" * 32


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(tmp_path / "payloads")


def noise(count: int = COUNT, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def sparsely_changed(base: torch.Tensor, share: float, *, seed: int = 1) -> torch.Tensor:
    """A share of the elements has other values, among them explicit zeros and negative zeros."""
    result = base.clone()
    indices = torch.randperm(base.numel(), generator=torch.Generator().manual_seed(seed))[:round(share * base.numel())]
    result[indices] = noise(len(indices), seed=seed + 1)
    result[indices[0::3]] = 0.0
    result[indices[1::3]] = -0.0
    return result


def overwriting(new: dict[str, torch.Tensor], old: dict[str, torch.Tensor]) -> TensorGroup:
    return TensorGroup(new, Meaning.OVERWRITE, digest(old), base_tensors=old)


def send(store: PayloadStore, group: TensorGroup, aim: Aim = Aim.SMALLEST) -> PayloadRef:
    return encode_groups(store, {"psi": group}, plan=Plan(aim=aim))


def receive(store: PayloadStore, written: PayloadRef, *held: dict[str, torch.Tensor]) -> TensorGroup:
    known = {digest(tensors): tensors for tensors in held}
    return decode_groups(store.path(written.digest), require_finite=True, references=known.get)["psi"]


# Bits and bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aim", list(Aim))
def test_a_hundredth_of_the_elements_costs_about_a_hundredth_whatever_the_aim(store: PayloadStore, aim: Aim) -> None:
    """1000 of 100 000 values: 4 bytes each, positions of about 1 byte (a mask of entropy 0.081 bit per element), and a
    manifest of 200 bytes: below 2 % of dense. As values, exponents may be compressed and nothing else."""
    old = {"w": noise(), "b": noise(10, seed=5)}
    new = {"w": sparsely_changed(old["w"], 0.01), "b": old["b"]}
    written = send(store, overwriting(new, old), aim)
    dense = 4 * (COUNT + 10)
    assert written.size_bytes < 0.02 * dense
    assert send(store, TensorGroup(new), aim).size_bytes > 0.75 * dense, "the control: as values it is not small"
    manifest, = read_manifest(store.path(written.digest))
    assert (manifest.meaning, manifest.base, manifest.reference) == (Meaning.OVERWRITE, digest(old), digest(old))
    found = receive(store, written, old)
    assert digest(found.tensors) == digest(new) == found.digest == manifest.tensors_digest
    assert (found.meaning, found.base) == (Meaning.OVERWRITE, digest(old))
    assert bool(torch.signbit(found.tensors["w"][found.tensors["w"] == 0]).any()), "negative zeros are among them"


def test_raw_lists_what_changed_and_compresses_nothing(store: PayloadStore) -> None:
    """Twice the value is the same difference of the patterns everywhere: one more in the exponent. RAW writes it a
    thousand times, with 4 bytes each."""
    old = {"w": noise().abs() + 1}
    new = {"w": old["w"].clone()}
    new["w"][::100] = old["w"][::100] * 2
    sizes = {aim: read_manifest(store.path(send(store, overwriting(new, old), aim).digest))[0].encoded_bytes
             for aim in (Aim.RAW, Aim.SMALLEST)}
    assert sizes[Aim.RAW] >= 18 + 4 * 1000
    assert sizes[Aim.SMALLEST] < 2000


@pytest.mark.parametrize("aim", list(Aim))
def test_nothing_changed_takes_no_bytes(store: PayloadStore, aim: Aim) -> None:
    old = {"w": noise(), "n": torch.arange(5), "e": torch.zeros(0)}
    written = send(store, overwriting(dict(old), old), aim)
    manifest, = read_manifest(store.path(written.digest))
    assert (manifest.encoded_bytes, manifest.meaning) == (0, Meaning.OVERWRITE)
    assert digest(receive(store, written, old).tensors) == digest(old)


def test_what_is_smaller_alone_is_written_as_values_which_say_the_same(store: PayloadStore) -> None:
    """Everything becomes zero: alone that is nothing at all, against the base it is every element."""
    old = {"w": noise()}
    new = {"w": torch.zeros(COUNT)}
    written = send(store, overwriting(new, old))
    manifest, = read_manifest(store.path(written.digest))
    assert (manifest.meaning, manifest.base, manifest.reference) == (Meaning.VALUES, "", "")
    assert manifest.encoded_bytes == 0
    found = receive(store, written)  # the base is not needed
    assert (found.meaning, digest(found.tensors)) == (Meaning.VALUES, digest(new))


def test_without_its_base_at_hand_a_group_that_overwrites_has_a_value_for_every_element(store: PayloadStore) -> None:
    new = {"w": torch.zeros(1000)}
    written = send(store, TensorGroup(new, Meaning.OVERWRITE, A))
    manifest, = read_manifest(store.path(written.digest))
    assert (manifest.meaning, manifest.base, manifest.reference) == (Meaning.OVERWRITE, A, "")
    assert manifest.encoded_bytes > 0
    assert digest(receive(store, written).tensors) == digest(new)


def test_a_base_in_memory_and_one_in_a_file_give_the_same_bytes_and_read_the_same(store: PayloadStore) -> None:
    old = {"w": noise(), "b": noise(3, seed=4).double()}
    new = {"w": sparsely_changed(old["w"], 0.05), "b": old["b"] * 2}
    file = store.path(encode_groups(store, {"psi": TensorGroup(old)}).digest)
    group = TensorGroup(new, digest=digest(new))
    written = {encode_groups(store, {"psi": group}, plan=Plan(aim=Aim.SMALLEST),
                             reference=Reference(digest(old), source)).digest
               for source in (file, held_in_memory(old, new))}
    assert len(written) == 1
    path = store.path(written.pop())
    for source in (file, old):
        found = decode_groups(path, require_finite=True, references={digest(old): source}.get)["psi"]
        assert digest(found.tensors) == group.digest
    with PayloadReader(path) as reader, PayloadReader(file) as base:
        rows = [bits_to_tensor(bits, spec) for spec, bits in reader.tensors("psi", HeldFile(base))]
    assert digest(dict(zip(new, rows, strict=True))) == group.digest


def test_the_base_may_name_its_tensors_in_another_order(store: PayloadStore) -> None:
    old = {"a": noise(500), "b": noise(300, seed=2)}
    new = {"a": sparsely_changed(old["a"], 0.1), "b": old["b"]}
    turned = dict(reversed(list(old.items())))
    written = send(store, overwriting(new, turned))
    assert written.reference == digest(old)
    for base in (old, turned):
        assert digest(receive(store, written, base).tensors) == digest(new)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=st.lists(st.tuples(st.sampled_from(sorted(ELEMENT_TYPES)), st.lists(st.integers(0, 4), max_size=3)),
                       max_size=4),
       keep=st.floats(0, 1), aim=st.sampled_from(list(Aim)), data=st.data())
def test_any_bits_over_any_others_come_out_as_they_were(
        store: PayloadStore, layout: list[tuple[str, list[int]]], keep: float, aim: Aim, data: st.DataObject) -> None:
    old, new = {}, {}
    for number, (dtype, shape) in enumerate(layout):
        kind = ELEMENT_TYPES[dtype]
        size = int(np.prod(shape, dtype=np.int64)) * kind.size_bytes
        before, after = (np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), dtype=kind.bits).copy()
                         for _ in range(2))
        same = round(keep * len(after))
        after[:same] = before[:same]
        spec = TensorSpec("t", tuple(shape), dtype)
        old[f"t{number}"], new[f"t{number}"] = bits_to_tensor(before, spec), bits_to_tensor(after, spec)
    written = send(store, overwriting(new, old), aim)
    found = decode_groups(store.path(written.digest), require_finite=False, references={digest(old): old}.get)["psi"]
    assert digest(found.tensors) == digest(new)


# Bases that are not right ---------------------------------------------------------------------------------------------


def written_sparsely(store: PayloadStore) -> tuple[PayloadRef, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    old = {"w": noise(2000)}
    new = {"w": sparsely_changed(old["w"], 0.05)}
    written = send(store, overwriting(new, old))
    assert written.reference, "otherwise the tests that use this show nothing"
    return written, new, old


def test_without_the_base_a_group_is_refused_with_the_way_out(store: PayloadStore) -> None:
    written, _, _ = written_sparsely(store)
    with pytest.raises(WrongBase, match="not here"):
        receive(store, written)


def test_a_base_with_one_other_bit_is_noticed_even_where_nothing_was_sent(store: PayloadStore) -> None:
    written, new, old = written_sparsely(store)
    index = int(torch.nonzero(old["w"] == new["w"])[0])
    other = {"w": old["w"].clone()}
    other["w"][index] = -other["w"][index]
    with pytest.raises(WrongBase, match="does not come out as it was sent"):
        decode_groups(store.path(written.digest), require_finite=True, references=lambda _: other)


@pytest.mark.parametrize("other", [{"w": noise(1999)}, {"w": noise(2000).double()}, {"v": noise(2000)},
                                   {"w": noise(2000), "v": noise(1)}, {}])
def test_a_base_of_another_layout_is_refused_by_reader_and_writer(
        store: PayloadStore, other: dict[str, torch.Tensor]) -> None:
    written, new, _ = written_sparsely(store)
    with pytest.raises(LayoutMismatch):
        decode_groups(store.path(written.digest), require_finite=True, references=lambda _: other)
    with pytest.raises(LayoutMismatch):
        send(store, overwriting(new, other))


def test_a_digest_that_is_a_lie_is_never_taken_over(store: PayloadStore) -> None:
    """A stranger says that its update gives the tensors of somebody else."""
    _, new, old = written_sparsely(store)
    lie = replace(overwriting(new, old), digest=digest(old))
    path = store.path(send(store, lie).digest)
    with PayloadReader(path) as reader, pytest.raises(WrongBase):
        decode_group(reader, "psi", references={digest(old): old}.get)
    alone = store.path(send(store, TensorGroup(new, Meaning.OVERWRITE, digest(old), digest=digest(old))).digest)
    with PayloadReader(alone) as reader:
        assert decode_group(reader, "psi").digest == ""


def test_what_comes_out_must_be_finite_even_where_the_base_is_not(store: PayloadStore) -> None:
    old = {"w": noise(500)}
    old["w"][3] = float("nan")
    new = {"w": old["w"].clone()}
    new["w"][4] = 1.0
    written = send(store, overwriting(new, old))
    assert written.reference == digest(old)
    with pytest.raises(BadPayload, match="infinity or NaN"):
        receive(store, written, old)


def test_every_altered_byte_of_a_file_is_refused_or_changes_nothing(store: PayloadStore) -> None:
    written, new, old = written_sparsely(store)
    content = store.path(written.digest).read_bytes()
    path = store.folder / "altered"
    for offset in range(0, len(content), 5):
        altered = bytearray(content)
        altered[offset] ^= 0x81
        path.write_bytes(altered)
        try:
            found = decode_groups(path, require_finite=False, references={digest(old): old}.get)
        except (BadPayload, LayoutMismatch, WrongBase):
            continue
        assert all(digest(group.tensors) == digest(new) for group in found.values())
    os.unlink(path)


# Manifests ------------------------------------------------------------------------------------------------------------

GROUP = GroupManifest("psi", Meaning.OVERWRITE, A, (TensorSpec("w", (4,), "float32"),), 22, B, A, ReferenceForm.BITS)


def test_a_manifest_of_a_group_that_overwrites_survives_the_wire() -> None:
    for group in (GROUP, replace(GROUP, encoded_bytes=0), replace(GROUP, reference_form=ReferenceForm.SUM)):
        assert parse_manifest(manifest_to_proto([group])) == (group,)


@each_of(("changes", "text"), [
    ({"reference": B}, "overwrites one base and is coded against another"),
    ({"base": B}, "overwrites one base and is coded against another"),
    ({"base": ""}, "base digest of 0 bytes"),
    ({"tensors_digest": ""}, "reference"),
    ({"reference": ""}, "reference"),
    ({"reference_form": ReferenceForm.ALONE}, "reference"),
    ({"reference_form": ReferenceForm.ALONE, "reference": "", "encoded_bytes": 0}, "cannot take 0 bytes"),
    ({"encoded_bytes": 17}, "cannot take 17 bytes"),
    ({"encoded_bytes": 18 + 16 + 1}, "cannot take 35 bytes"),
    ({"encoded_bytes": 2**50}, "cannot take")])
def test_a_manifest_that_cannot_be_is_refused_before_a_byte_is_taken(changes: dict[str, object], text: str) -> None:
    with pytest.raises(BadPayload, match=text):
        parse_manifest(manifest_to_proto([replace(GROUP, **changes)]))  # type: ignore[arg-type]


@each_of(("meaning", "declared", "meant"), [
    (Meaning.OVERWRITE, Meaning.OVERWRITE, True), (Meaning.VALUES, Meaning.OVERWRITE, True),
    (Meaning.DIFFERENCE, Meaning.OVERWRITE, False), (Meaning.OVERWRITE, Meaning.VALUES, False),
    (Meaning.OVERWRITE, Meaning.DIFFERENCE, False), (Meaning.VALUES, Meaning.DIFFERENCE, False)])
def test_whole_values_may_come_wherever_a_method_overwrites_and_nothing_else(
        meaning: Meaning, declared: Meaning, meant: bool) -> None:
    assert is_meant(meaning, declared) is meant
    group = GroupManifest("psi/0", meaning, "" if meaning is Meaning.VALUES else A, GROUP.tensors, 22)
    with nullcontext() if meant else pytest.raises(BadPayload, match="comes as"):
        check_manifest([group], allowed={"psi/*": declared}, layouts=None, max_bytes=100)


CASES: list[tuple[str, GroupManifest, type[SemisiloError] | None]] = [
    ("right", GROUP, None),
    ("whole", replace(GROUP, meaning=Meaning.VALUES, base="", reference="", reference_form=ReferenceForm.ALONE), None),
    ("alone", replace(GROUP, reference="", reference_form=ReferenceForm.ALONE), None),
    ("another base", replace(GROUP, base=B, reference=B), WrongBase),
    ("values against tensors", replace(GROUP, meaning=Meaning.VALUES, base=""), BadPayload),
    ("a difference against tensors", replace(GROUP, meaning=Meaning.DIFFERENCE), BadPayload),
    ("a difference to another base", replace(GROUP, meaning=Meaning.DIFFERENCE, base=B, reference="",
                                             reference_form=ReferenceForm.ALONE), WrongBase)]


@each_of(("group", "error"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_update_builds_on_its_task_and_on_nothing_else(
        group: GroupManifest, error: type[SemisiloError] | None) -> None:
    with nullcontext() if error is None else pytest.raises(error):
        check_base(group, A)
