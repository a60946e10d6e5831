"""Frozen dataclasses and tensors survive the disk bit for bit, or are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from semisilo.common.errors import StorageDamaged
from semisilo.common.storage import checkpoint
from semisilo.common.system_errors import explained_text


@dataclass(frozen=True)
class _State:
    w: dict[str, Tensor]
    buffer: dict[str, Tensor] | None
    empty: dict[str, Tensor]
    number: int
    lr: float
    name: str
    flag: bool
    nothing: str | None
    pair: tuple[int, ...]
    table: dict[str, Any]


@dataclass(frozen=True)
class _Other:
    w: dict[str, Tensor]


def _state() -> _State:
    w = {"z/weight": torch.tensor([[1.5, -0.0], [float("nan"), float("inf")]]),
         "a": torch.tensor(2**53 + 1), "half": torch.tensor([1.1, -3e-5], dtype=torch.bfloat16),
         "none": torch.empty(0, 4), "turned": torch.arange(6.0).reshape(2, 3).t(), "mask": torch.tensor([True, False])}
    return _State(w=w, buffer=None, empty={}, number=7, lr=0.1 + 0.2, name="è/\n", flag=True, nothing=None,
                  pair=(1, 2), table={"list": [1, None, {"x": 0.1}]})


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return (a.shape == b.shape and a.dtype == b.dtype and
            torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)))


def test_a_state_comes_back_bit_for_bit_with_its_order(tmp_path: Path) -> None:
    state = _state()
    checkpoint.save(tmp_path / "state", state)
    found = checkpoint.load(tmp_path / "state", _State)
    assert list(found.w) == list(state.w)
    assert all(_same_bits(found.w[name], state.w[name]) for name in state.w)
    for field in ("buffer", "empty", "number", "lr", "name", "flag", "nothing", "pair", "table"):
        assert getattr(found, field) == getattr(state, field), field


def test_a_settled_state_is_what_reading_it_back_would_give(tmp_path: Path) -> None:
    state = _state()
    digest = checkpoint.save(tmp_path / "state", state)
    assert digest == hashlib.sha256((tmp_path / "state").read_bytes()).hexdigest()
    found, settled = checkpoint.load(tmp_path / "state", _State), checkpoint.settled(state)
    for name in state.w:
        assert _same_bits(settled.w[name], found.w[name])
        assert settled.w[name].stride() == found.w[name].stride(), name
    for field in ("buffer", "empty", "number", "lr", "name", "flag", "nothing", "pair", "table"):
        assert getattr(settled, field) == getattr(found, field), field


def test_equal_states_give_equal_bytes(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "one", _state())
    checkpoint.save(tmp_path / "two", checkpoint.load(_saved(tmp_path), _State))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_tensors_that_share_memory_are_both_written_whole(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    checkpoint.save(tmp_path / "t", _Other({"whole": whole, "same": whole, "part": whole[2:4]}))
    found = checkpoint.load(tmp_path / "t", _Other).w
    assert torch.equal(found["same"], whole)
    assert found["part"].tolist() == [2.0, 3.0]


def test_named_tensors_keep_their_order(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "t", _Other({"b": torch.ones(2), "a": torch.zeros(1)}))
    assert list(checkpoint.load(tmp_path / "t", _Other).w) == ["b", "a"]


def test_loaded_tensors_do_not_hang_on_the_file(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    found = checkpoint.load(path, _State)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert math.isnan(found.w["z/weight"][1, 0].item())
    assert found.w["z/weight"][0, 0].item() == 1.5


def test_nothing_but_the_file_is_left_and_an_old_one_is_replaced(tmp_path: Path) -> None:
    _saved(tmp_path)
    _saved(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _saved(tmp_path).read_bytes()

    def fails(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("semisilo.common.storage.checkpoint.os.replace", fails)
    with pytest.raises(OSError, match="the disk is gone"):
        checkpoint.save(tmp_path / "state", _state())
    assert (tmp_path / "state").read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def test_a_file_cut_anywhere_is_refused_as_damaged(tmp_path: Path) -> None:
    content = _saved(tmp_path).read_bytes()
    for length in (0, 4, 8, 50, len(content) // 2, len(content) - 1):
        (tmp_path / "state").write_bytes(content[:length])
        with pytest.raises(StorageDamaged):
            checkpoint.load(tmp_path / "state", _State)


def test_a_missing_file_another_class_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageDamaged, match="cannot be read"):
        checkpoint.load(tmp_path / "absent", _State)
    with pytest.raises(StorageDamaged, match="holds _State, expected _Other"):
        checkpoint.load(_saved(tmp_path), _Other)
    save_file({"w": torch.ones(1)}, str(tmp_path / "foreign"))
    with pytest.raises(StorageDamaged, match="not one of ours"):
        checkpoint.load(tmp_path / "foreign", _Other)


def test_a_field_that_is_younger_than_a_file_has_its_default_and_no_other_field_may_be_absent(tmp_path: Path) -> None:
    def other(**metadata: bool) -> type[Any]:
        return dataclasses.make_dataclass("_Other", [("w", dict[str, Tensor]), (
            "count", int, dataclasses.field(default=3, metadata=metadata))])

    younger, strict = other(**checkpoint.YOUNGER), other()
    checkpoint.save(tmp_path / "state", _Other(w={"a": torch.ones(1)}))
    assert checkpoint.load(tmp_path / "state", younger).count == 3
    with pytest.raises(StorageDamaged, match="fields"):
        checkpoint.load(tmp_path / "state", strict)
    checkpoint.save(tmp_path / "state", younger({"a": torch.ones(1)}, 5))
    assert checkpoint.load(tmp_path / "state", younger).count == 5
    with pytest.raises(StorageDamaged, match="fields"):
        checkpoint.load(tmp_path / "state", _Other)


@pytest.mark.parametrize("header", [
    "not json", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "class": "_Other", "fields": {}, "groups": []}',
    '{"format": 1, "class": "_Other", "fields": {}, "groups": {"w": ["missing"]}}',
    '{"format": 1, "class": "_Other", "fields": {"extra": 1}, "groups": {"w": ["a"]}}',
    '{"format": 1, "class": "_Other", "fields": {}, "groups": {}}',
    '{"format": 1, "class": "_Other", "fields": {"w": 1}, "groups": {}}',
])
def test_a_header_that_does_not_fit_is_refused(tmp_path: Path, header: str) -> None:
    save_file({"w/a": torch.ones(1)}, str(tmp_path / "state"), metadata={"semisilo": header})
    with pytest.raises(StorageDamaged):
        checkpoint.load(tmp_path / "state", _Other)


@pytest.mark.parametrize("names", [("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "empty", "scalar", "ä"), ()])
def test_a_file_is_byte_for_byte_what_the_formats_own_library_writes(names: tuple[str, ...], tmp_path: Path) -> None:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool, torch.float32]
    tensors = {name: torch.arange(6).reshape(2, 3).to(kinds[index % len(kinds)]) for index, name in enumerate(names)}
    if tensors:
        tensors |= {"empty": torch.zeros(0, 4), "scalar": torch.tensor(2.5), "sliced": torch.arange(9.0)[::2]}
    checkpoint.save(tmp_path / "ours", _Other(tensors))
    with safe_open(str(tmp_path / "ours"), framework="pt") as file:
        metadata = file.metadata()
    theirs = {f"w/{name}": tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(theirs, str(tmp_path / "theirs"), metadata=metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_type_that_the_format_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'w/w' of type torch"):
        checkpoint.save(tmp_path / "t", _Other({"w": torch.zeros(2, dtype=torch.complex64)}))
    assert list(tmp_path.iterdir()) == []


def _saved(folder: Path) -> Path:
    checkpoint.save(folder / "state", _state())
    return folder / "state"


@pytest.mark.parametrize("free", [0, 1])
def test_too_many_open_files_are_no_damaged_state(tmp_path: Path, free: int) -> None:
    """The library says that there is no such file, or fails with words of its own: with no file left, and with one."""
    path = tmp_path / "state"
    checkpoint.save(path, _Other(w={"a": torch.ones(3)}))
    next_one = os.dup(0)
    os.close(next_one)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + free, before[1]))
    try:
        checkpoint.load(path, _Other)
    except Exception as error:
        found = explained_text(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found is not None
    assert "open files" in found.text
