"""A file of weights that somebody gave us: read where it holds tensors alone, refused in one line where not."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from semisilo.common.errors import BadData
from semisilo.common.models.weights_file import read_weights

TENSORS = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.tensor([0.5, -0.5])}


def same(found: Any) -> bool:
    return found.keys() == TENSORS.keys() and all(torch.equal(found[name], each) for name, each in TENSORS.items())


def test_safetensors_are_read_with_the_digest_of_the_file(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "w.safetensors")
    told: list[float] = []
    found = read_weights(tmp_path / "w.safetensors", progress=lambda share, text: told.append(share))
    assert same(found.tensors)
    assert found.digest == hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    assert told[-1] == 1.0


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: {"state_dict": each, "epoch": 3},
                                  lambda each: {"model": each, "best": 0.5, "args": ["--lr", "1"]},
                                  lambda each: {"state_dict": {"model_state_dict": each}}])
def test_what_torch_saves_is_read_also_among_other_things(tmp_path: Path, wrap: Any, new: bool) -> None:
    for ending in ("pth", "pt", "bin"):
        path = tmp_path / f"w.{ending}"
        torch.save(wrap(TENSORS), path, _use_new_zipfile_serialization=new)
        assert same(read_weights(path).tensors)


def test_buffers_and_numbers_beside_tensors_are_no_tensors(tmp_path: Path) -> None:
    torch.save({**TENSORS, "note": "trained on x", 3: torch.zeros(1)}, tmp_path / "w.pth")
    assert same(read_weights(tmp_path / "w.pth").tensors)


class _Malicious:
    """What a pickle can do: runs a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._mark}",)


@pytest.mark.parametrize("new", [True, False])
def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path, new: bool) -> None:
    mark = tmp_path / "it ran".replace(" ", "_")
    torch.save({**TENSORS, "x": _Malicious(mark)}, tmp_path / "w.pth", _use_new_zipfile_serialization=new)
    with pytest.raises(BadData, match=r"holds more than tensors \(posix\.system\), and is not read") as caught:
        read_weights(tmp_path / "w.pth")
    assert not mark.exists()
    assert "\n" not in caught.value.line()
    assert "safetensors" in caught.value.remedy
    with (tmp_path / "plain.pth").open("wb") as file:
        pickle.dump(_Malicious(mark), file)
    with pytest.raises(BadData):
        read_weights(tmp_path / "plain.pth")
    assert not mark.exists()
    torch.load(tmp_path / "w.pth", weights_only=False)
    assert mark.exists(), "the control: it would have run"


def test_a_whole_network_is_not_read_since_it_names_classes(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "w.pt")
    with pytest.raises(BadData, match=r"torch\.nn\.modules\.linear\.Linear") as caught:
        read_weights(tmp_path / "w.pt")
    assert "state_dict" in caught.value.remedy


def _bomb(tmp_path: Path, header: bytes, *, length: int | None = None, rest: bytes = b"") -> Path:
    path = tmp_path / "bomb.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + rest)
    return path


@pytest.mark.parametrize("length", [2**63, 2**40, 2**25, 100])
def test_a_header_longer_than_the_file_takes_no_memory(tmp_path: Path, length: int) -> None:
    with pytest.raises(BadData, match="not a complete safetensors file"):
        read_weights(_bomb(tmp_path, b"{}", length=length))


def test_a_header_of_many_megabytes_is_not_parsed(tmp_path: Path) -> None:
    header = b"{" + b" " * (2**24 + 1) + b"}"
    with pytest.raises(BadData, match="not a complete safetensors file"):
        read_weights(_bomb(tmp_path, header))


@pytest.mark.parametrize("header", [
    b"[" * 100_000, b"[]", b"{}x", b"\xff\xfe", b"",
    json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode(),
    json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}).encode(),
    json.dumps({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 8]}}).encode(),
    json.dumps({"a": {"dtype": "no", "shape": [2], "data_offsets": [0, 8]}}).encode(),
    json.dumps({"a": 3}).encode()])
def test_a_header_that_is_none_is_refused_in_one_line(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(BadData) as caught:
        read_weights(_bomb(tmp_path, header, rest=bytes(8)))
    assert "\n" not in caught.value.line()
    assert "bomb.safetensors" in caught.value.text


def test_an_archive_that_unpacks_to_more_than_itself_is_not_unpacked(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "w.pth") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content + bytes(50_000_000 if name.endswith("data/0") else 0))
    assert (tmp_path / "bomb.pth").stat().st_size < 100_000
    with pytest.raises(BadData, match="unpacks to more than its size"):
        read_weights(tmp_path / "bomb.pth")


def test_an_archive_of_several_disks_is_refused(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "w.pth")
    content = bytearray((tmp_path / "w.pth").read_bytes())
    end = content.rindex(b"PK\x05\x06")
    locator = content.rfind(b"PK\x06\x07")
    offsets = [end + 4] if locator < 0 else [end + 4, locator + 16]
    for offset in offsets:
        content[offset] = 9
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(BadData) as caught:
        read_weights(tmp_path / "w.pth")
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize("cut", [0, 1, 4, 100, 400, -1, -30])
@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_half_a_file_is_refused(tmp_path: Path, cut: int, ending: str) -> None:
    path = tmp_path / f"w.{ending}"
    if ending == "pth":
        torch.save(TENSORS, path)
    else:
        save_file({name: each.repeat(10, *[1] * (each.dim() - 1)) for name, each in TENSORS.items()}, path)
    content = path.read_bytes()
    path.write_bytes(content[:cut])
    with pytest.raises(BadData) as caught:
        read_weights(path)
    assert "\n" not in caught.value.line()


def test_other_kinds_of_files_and_none_are_refused(tmp_path: Path) -> None:
    for name, says in (("w.onnx", "weights are read from"), ("missing.pth", "there is no such file")):
        with pytest.raises(BadData, match=says):
            read_weights(tmp_path / name)
    (tmp_path / "folder.pth").mkdir()
    with pytest.raises(BadData, match="cannot be read"):
        read_weights(tmp_path / "folder.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(BadData, match="holds a list"):
        read_weights(tmp_path / "list.pth")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    with pytest.raises(BadData, match="holds no tensors"):
        read_weights(tmp_path / "none.pth")
