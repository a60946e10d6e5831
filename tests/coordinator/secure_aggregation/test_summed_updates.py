"""Means of masked updates as a strategy sees them: of one group or several, normalised by steps or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from semisilo.common.errors import SecureSumFailed
from semisilo.common.methods.contract import ALL_SILOS, GroupLayout, Meaning, TensorGroup, TensorSpec
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import MaskSeed
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.secure_aggregation import summed_updates
from semisilo.coordinator.secure_aggregation.groups import MaskedGroup
from semisilo.coordinator.secure_aggregation.summed_updates import SummedUpdates
from semisilo.silo.compute.lossy_update import Sender
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.compute.masked_update import Summand, write_masked

LAYOUT = {"model": GroupLayout(Meaning.DIFFERENCE, "11" * 32, (TensorSpec("weight", (40,), "float32"),))}
STEPS = {"a": 3.0, "b": 5.0, "c": 10.0, "d": 1.0}
EXAMPLES = {"a": 10, "b": 40, "c": 20, "d": 40}
FORM = MaskForm(bits=32, bounds=(1.0,), silo_count=4, weight_reference=40, totals=("steps",))


@dataclass(frozen=True)
class Settings:
    """Of a method."""

    sums_per_step: bool = True


def update_of(silo: str) -> torch.Tensor:
    return torch.rand(40, generator=torch.Generator().manual_seed(ord(silo))) - 0.5


def summed(folder: Path, groups: dict[tuple[str, ...], MaskSeed | None], *, per_step: bool = True,
           least_weights: dict[tuple[str, ...], float] | None = None) -> SummedUpdates:
    """A mask that is given is taken off the group's sum, and was added by its first silo."""
    store, paths = PayloadStore(folder), {}
    for group, mask in groups.items():
        for silo in group:
            payload, _, _ = write_masked(
                store, {"model": TensorGroup({"weight": update_of(silo)}, Meaning.DIFFERENCE, "11" * 32)},
                Masking(form=FORM, phase="train", threshold=3,
                        seeds=() if mask is None or silo != group[0] else (mask,)),
                summand=Summand(num_examples=EXAMPLES[silo], divisor=STEPS[silo] if per_step else 1.0,
                                totals={"steps": STEPS[silo]}),
                sender=Sender(seed=7, round=1, phase="train", silo=silo), residuals={}, add_masks=add_masks)
            paths[silo] = store.path(payload.digest)
    return SummedUpdates(FORM, tuple(
        MaskedGroup(silos=group, seeds=() if mask is None else (MaskSeed(seed=mask.seed, sign=-1),),
                    least_weight=(least_weights or {}).get(group, 0.0))
        for group, mask in groups.items()), paths, LAYOUT, settings=Settings(per_step), seed=7, round=1, phase="train",
        add_masks=add_masks)


def normalised(silos: str) -> torch.Tensor:
    """sum p_k (tau_bar / tau_k) d_k, FedNova Eq. 6, in float64."""
    total = sum(EXAMPLES[silo] for silo in silos)
    tau = sum(EXAMPLES[silo] * STEPS[silo] for silo in silos) / total
    return sum((EXAMPLES[silo] / total * tau / STEPS[silo] * update_of(silo).double() for silo in silos),
               start=torch.zeros(40, dtype=torch.float64))


def test_normalised_updates_give_the_normalised_average(tmp_path: Path) -> None:
    found = summed(tmp_path, {("a", "b", "c", "d"): None})
    header = found.header(0)
    assert (header.silo, header.num_examples) == (ALL_SILOS, 110)
    assert header.metrics["steps"] == pytest.approx((30 + 200 + 200 + 40) / 110, rel=1e-6)
    assert torch.allclose(found.read(0)["model"].tensors["weight"].double(), normalised("abcd"), atol=1e-6)
    assert (found.read(0)["model"].meaning, found.read(0)["model"].base) == (Meaning.DIFFERENCE, "11" * 32)


def test_without_normalising_it_is_the_plain_mean(tmp_path: Path) -> None:
    found = summed(tmp_path, {("a", "b", "c", "d"): None}, per_step=False).read(0)["model"].tensors["weight"].double()
    right = sum((EXAMPLES[silo] / 110 * update_of(silo).double() for silo in "abcd"),
                start=torch.zeros(40, dtype=torch.float64))
    assert torch.allclose(found, right, atol=1e-6)
    assert not torch.allclose(right, normalised("abcd"), atol=1e-2)


@pytest.mark.parametrize("in_memory", [1 << 20, 0])
def test_every_group_has_a_sum_and_masks_of_its_own(tmp_path: Path, in_memory: int,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summed_updates, "_IN_MEMORY_BYTES", in_memory)
    one, other = (MaskSeed(seed=each * 32, sign=1) for each in (b"1", b"2"))
    found = summed(tmp_path, {("a", "c"): one, ("b", "d"): other})
    assert [found.header(index).silo for index in range(2)] == ["group-1", "group-2"]
    assert [found.header(index).num_examples for index in range(2)] == [30, 80]
    for index, silos in enumerate(("ac", "bd")):
        assert torch.allclose(found.read(index)["model"].tensors["weight"].double(), normalised(silos), atol=1e-6)
    outcome = found.outcome
    assert outcome is not None
    assert (outcome.silos, outcome.weight, outcome.elements) == (4, pytest.approx(110 / 40, rel=1e-6), 40)
    assert outcome.totals[0] == pytest.approx(470 / 110, rel=1e-6)


def test_noise_is_found_before_anything_is_folded(tmp_path: Path) -> None:
    one = MaskSeed(seed=b"1" * 32, sign=1)
    store = PayloadStore(tmp_path)
    payload, _, _ = write_masked(
        store, {"model": TensorGroup({"weight": update_of("a")}, Meaning.DIFFERENCE, "11" * 32)},
        Masking(form=FORM, phase="train", threshold=3, seeds=(one,)),
        summand=Summand(num_examples=1, totals={"steps": 1.0}), sender=Sender(seed=7, round=1, phase="train", silo="a"),
        residuals={}, add_masks=add_masks)
    with pytest.raises(SecureSumFailed, match="noise"):
        SummedUpdates(FORM, (MaskedGroup(silos=("a",), seeds=()),), {"a": store.path(payload.digest)}, LAYOUT,
                      settings=Settings(), seed=7, round=1, phase="train", add_masks=add_masks)


def test_of_no_groups_nothing_is_learned(tmp_path: Path) -> None:
    assert summed(tmp_path, {}).outcome is None


def test_a_group_whose_weights_cannot_be_is_left_out_alone(tmp_path: Path) -> None:
    """In its own group a liar spoils the sum; it must not end that of all the others."""
    found = summed(tmp_path, {("a", "c"): None, ("b", "d"): None}, least_weights={("a", "c"): 0.9})
    assert found.left_out.keys() == {"a", "c"}
    assert "did not do as it was asked" in found.left_out["a"]
    assert len(found) == 1
    assert found.header(0).num_examples == 80
    assert torch.allclose(found.read(0)["model"].tensors["weight"].double(), normalised("bd"), atol=1e-6)
    assert found.outcome is not None
    assert found.outcome.silos == 2
    with pytest.raises(SecureSumFailed):
        summed(tmp_path, {("a", "c"): None}, least_weights={("a", "c"): 0.9})
