"""An update's file is opened once to be checked and once to be folded, and its norm has the same bits as ever."""

from __future__ import annotations

import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from semisilo.common.errors import BadPayload
from semisilo.common.methods.contract import GroupLayout, Meaning, TensorGroup
from semisilo.common.methods.uplink import parse_uplink
from semisilo.common.payload.reader import PayloadReader, read_manifest
from semisilo.common.payload.torch_tensors import encode_groups
from semisilo.common.payload.usage import encodings_of_payload
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.compute import update_reader
from semisilo.coordinator.compute.update_reader import Expected, SoundFiles, check_file, group_norm

TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)


def spooled(folder: Path, tensors: dict[str, torch.Tensor]) -> tuple[Path, Expected]:
    store = PayloadStore(folder)
    made = encode_groups(store, {"model": TensorGroup(tensors, Meaning.DIFFERENCE, "ab" * 32)})
    (group,) = read_manifest(store.path(made.digest))
    return store.path(made.digest), Expected({"model": GroupLayout(
        tensors=group.tensors, meaning=group.meaning, base=group.base)})


def norm_of(tensors: dict[str, torch.Tensor]) -> float:
    """As the norms in ledgers were computed: every element as float64, pieces of 2**20 elements."""
    return math.sqrt(math.fsum(
        math.fsum(float(np.square(piece.double().numpy()).sum()) for piece in torch.split(tensor.reshape(-1), 2**20))
        for tensor in tensors.values() if tensor.numel()))


@pytest.mark.parametrize("shape", [(), (0, 3), (7, 11), (3, 400_000)])
def test_the_norm_of_every_type_has_the_bits_of_a_sum_over_float64(tmp_path: Path, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = {str(kind): (50 * torch.rand(shape, generator=generator)).to(kind) for kind in TYPES}
    path, expected = spooled(tmp_path, tensors)
    wanted = norm_of(tensors)
    assert check_file(path, expected).norms == {"model": wanted}
    assert group_norm(TensorGroup(tensors)) == wanted


def test_an_update_is_opened_once_to_be_checked_and_once_to_be_read(tmp_path: Path) -> None:
    tensors = {"weight": torch.randn(100, 30), "bias": torch.zeros(30)}
    path, expected = spooled(tmp_path, tensors)
    opened = list[Path]()
    before = PayloadReader.__init__

    def counted(self: PayloadReader, path: Path, **more: object) -> None:
        opened.append(path)
        before(self, path, **more)  # type: ignore[arg-type]
    sound = SoundFiles()
    with mock.patch.object(PayloadReader, "__init__", counted):
        found = check_file(path, expected)
        assert len(opened) == 1
        sound.note(path, found.norms)
        groups = sound.read(path, "alpha", expected)
        assert len(opened) == 2
    assert found.encoded == encodings_of_payload(path)
    assert all(torch.equal(groups["model"].tensors[name], tensor) for name, tensor in tensors.items())


def test_of_updates_that_are_never_read_only_the_last_are_remembered(tmp_path: Path) -> None:
    """Each round may have some that came too late, and the process lives for years."""
    path, expected = spooled(tmp_path, {"weight": torch.zeros(3)})
    sound = SoundFiles()
    with mock.patch.object(update_reader, "_REMEMBERED_FILES", 4):
        for number in range(10):
            late = path.with_name(f"late-{number}")
            late.write_bytes(path.read_bytes())
            sound.note(late, {})
        sound.note(path, {"model": 0.5})
    assert (len(sound._looks), len(sound._norms)) == (4, 4)
    assert sound.norms(path) == {"model": 0.5}
    assert "model" in sound.read(path, "alpha", expected)


def test_an_update_with_more_numbers_than_top_k_leaves_is_refused(tmp_path: Path) -> None:
    """Also where they hide among zeros of a dense block; integers are always sent whole."""
    tensors = {"weight": torch.zeros(10, 20), "steps": torch.ones(50, dtype=torch.int64)}
    uplink = parse_uplink("top-k 7%")
    tensors["weight"].view(-1)[-14:] = 0.5
    path, expected = spooled(tmp_path, tensors)
    check_file(path, expected, uplink)
    tensors["weight"].view(-1)[0] = -0.0
    path, expected = spooled(tmp_path, tensors)
    with pytest.raises(BadPayload, match=r"^The group 'model' has 15 numbers that are not zero; of its 200, top-k 7%"
                                         r" leaves 14\.(\n|$)"):
        check_file(path, expected, uplink)
    check_file(path, expected, parse_uplink("int8"))
