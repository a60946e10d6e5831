"""What each encoding took: every byte of a payload belongs to one of them, and nothing is decoded to know it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.errors import BadPayload
from semisilo.common.learning.tensors import digest
from semisilo.common.methods.contract import Meaning, TensorGroup
from semisilo.common.payload.codec import BLOCK_ELEMENTS, HEADER_BYTES, Aim, Plan, ValueForm
from semisilo.common.payload.reader import PayloadReader
from semisilo.common.payload.torch_tensors import encode_groups
from semisilo.common.payload.usage import (
    FRAMING,
    Encoded,
    Part,
    carried,
    describe_encoding,
    encodings_of_payload,
    parts_of,
)
from semisilo.common.payload.writer import Reference
from semisilo.common.storage.store import PayloadStore


@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    return PayloadStore(tmp_path / "payloads")


def written(store: PayloadStore, plan: Plan = Plan(), **tensors: torch.Tensor) -> Path:
    return store.path(encode_groups(store, {"model": TensorGroup(tensors)}, plan=plan).digest)


def by_name(path: Path) -> dict[str, Encoded]:
    return {row.encoding: row for row in encodings_of_payload(path)}


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def test_a_raw_tensor_takes_its_own_bytes_and_a_header_for_each_block(store: PayloadStore) -> None:
    elements = BLOCK_ELEMENTS + 5
    rows = by_name(written(store, Plan(aim=Aim.RAW), w=noise(elements)))
    assert rows["raw"] == Encoded("raw", 2, 4 * elements + 2 * HEADER_BYTES, 4 * elements)
    assert rows[FRAMING].blocks == rows[FRAMING].dense_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("plan", [Plan(aim=Aim.RAW), Plan(), Plan(aim=Aim.SMALLEST), Plan(values=ValueForm.INT8),
                                  Plan(values=ValueForm.INT4), Plan(values=ValueForm.BF16)])
def test_all_encodings_and_the_framing_are_the_whole_file_and_all_of_its_elements(store: PayloadStore,
                                                                                  plan: Plan) -> None:
    sparse = noise(300_000) * (torch.arange(300_000) % 7 == 0)
    clustered = torch.zeros(200_000)
    clustered[500:900] = 1.5
    path = written(store, plan, dense=noise(1_200_000), sparse=sparse, empty=torch.zeros(1_100_000), few=clustered,
                   count=torch.tensor(3), labels=torch.arange(5000))
    rows = encodings_of_payload(path)
    assert sum(row.bytes for row in rows) == path.stat().st_size
    with PayloadReader(path) as reader:
        assert sum(row.dense_bytes for row in rows) == sum(group.dense_bytes for group in reader.groups)


def test_sparse_and_lossy_blocks_are_called_by_their_index_and_values(store: PayloadStore) -> None:
    sparse = noise(300_000) * (torch.rand(300_000, generator=torch.Generator().manual_seed(1)) < 0.01)
    smallest = by_name(written(store, Plan(aim=Aim.SMALLEST), w=sparse)).keys() - {FRAMING}
    assert len(smallest) == 1
    assert smallest.pop().endswith("+planes")
    assert by_name(written(store, Plan(aim=Aim.SMALLEST, values=ValueForm.INT4), w=noise(300_000))).keys() == {
        FRAMING, "int4"}


def test_what_is_coded_against_a_held_base_says_so_and_saves_what_did_not_change(store: PayloadStore) -> None:
    before = {"w": noise(100_000)}
    base = encode_groups(store, {"model": TensorGroup(before, digest=digest(before))})
    changed = before["w"].clone()
    changed[:10] += 1
    after = {"w": changed}
    coded = encode_groups(store, {"model": TensorGroup(after, digest=digest(after))}, plan=Plan(aim=Aim.SMALLEST),
                          reference=Reference(base.tensors, store.path(base.digest)))
    rows = by_name(store.path(coded.digest))
    name, = rows.keys() - {FRAMING}
    assert name.startswith(("bits:", "sum:"))
    assert rows[name].dense_bytes == 400_000
    assert rows[name].bytes < 200


def test_a_group_of_zeros_takes_no_byte_and_its_elements_still_count(store: PayloadStore) -> None:
    path = store.path(encode_groups(store, {
        "model": TensorGroup({"w": torch.zeros(1000)}, Meaning.DIFFERENCE, "ab" * 32),
        "other": TensorGroup({"w": torch.ones(10)})}, plan=Plan(aim=Aim.RAW)).digest)
    rows = by_name(path)
    assert rows["zeros"] == Encoded("zeros", 0, 0, 4000)
    assert rows["raw"].dense_bytes == 40


@settings(max_examples=60)
@given(st.lists(st.integers(0, 400), max_size=5))
def test_a_download_that_is_cut_anywhere_adds_up_to_one_that_is_not(cuts: list[int]) -> None:
    parts = (Part(FRAMING, 0, 8, 0, 0), Part("raw", 8, 130, 104), Part("bits:zeros", 130, 130, 77, 0),
             Part("planes", 130, 310, 999), Part(FRAMING, 310, 400, 0, 0))
    ends = sorted({0, *cuts, 400})
    added: dict[str, list[int]] = {}
    for low, high in itertools.pairwise(ends):
        for row in carried(parts, low, high):
            sums = added.setdefault(row.encoding, [0, 0, 0])
            for index, value in enumerate((row.blocks, row.bytes, row.dense_bytes)):
                sums[index] += value
    assert added == {row.encoding: [row.blocks, row.bytes, row.dense_bytes] for row in carried(parts, 0, 400)}
    assert sum(sums[1] for sums in added.values()) == 400


def test_a_file_that_is_cut_off_is_refused(store: PayloadStore, tmp_path: Path) -> None:
    whole = written(store, w=noise(1000)).read_bytes()
    damaged = tmp_path / "damaged"
    damaged.write_bytes(whole[:8] + b"\xff" + whole[9:])
    with pytest.raises(BadPayload):
        parts_of(damaged)
    damaged.write_bytes(whole[:-1])
    with pytest.raises(BadPayload):
        parts_of(damaged)


def test_every_encoding_has_words() -> None:
    assert describe_encoding("planes") == "compressed byte planes"
    assert describe_encoding("sum:bitmask+int8") == "difference to what the reader holds, bitmask, int8 (lossy)"
    assert describe_encoding("zstd-gaps+raw") == "compressed gaps, as in memory"
