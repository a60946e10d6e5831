"""Norms and cosines of updates: exact for small models, near for large ones, and of what an update changes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from semisilo.common.learning.outliers import UpdateMeasure
from semisilo.common.learning.tensors import digest
from semisilo.common.methods.contract import Meaning, TensorGroup
from semisilo.coordinator.compute.update_measures import UpdateMeasures, change_of


def measured(changes: dict[str, list[Tensor]], *, seed: int = 0, round: int = 1) -> dict[str, UpdateMeasure]:
    found = UpdateMeasures(seed=seed, round=round, num_updates=len(changes))
    for silo, change in changes.items():
        found.add(silo, change)
    return found.result()


def test_small_updates_are_measured_exactly() -> None:
    """Units (1, 0), (0, 1), (1, 0): their mean (2/3, 1/3) has length sqrt(5)/3."""
    found = measured({"a": [torch.tensor([3.0, 0.0])], "b": [torch.tensor([0.0, 4.0])],
                      "c": [torch.tensor([9.0, 0.0])]})
    assert [each.norm for each in found.values()] == [3.0, 4.0, 9.0]
    assert [each.cosine for each in found.values()] == pytest.approx([2 / math.sqrt(5), 1 / math.sqrt(5),
                                                                      2 / math.sqrt(5)])


def test_the_longest_update_does_not_make_its_own_direction_the_mean() -> None:
    honest = {f"honest-{number}": [torch.tensor([1.0, 0.1 * number])] for number in range(4)}
    found = measured({**honest, "odd": [torch.tensor([-1e10, 0.0])]})
    cosine = found["odd"].cosine
    assert cosine is not None
    assert cosine < -0.9
    assert all(each.cosine is not None and each.cosine > 0.9 for silo, each in found.items() if silo != "odd")


def test_large_updates_are_measured_by_a_sample_that_the_seed_and_round_fix() -> None:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(300_000, generator=generator)
    changes = {silo: [each[:100_001], each[100_001:]] for silo, each in (
        ("a", base), ("b", base + 0.5 * torch.randn(300_000, generator=generator)), ("c", -base))}
    found = measured(changes)
    assert found == measured(changes)
    assert found != measured(changes, round=2)
    units = torch.stack([torch.cat(parts).double() / torch.linalg.vector_norm(torch.cat(parts).double())
                         for parts in changes.values()])
    mean = units.mean(dim=0)
    for (silo, parts), unit in zip(changes.items(), units, strict=True):
        assert found[silo].norm == pytest.approx(float(torch.linalg.vector_norm(torch.cat(parts).double())))
        assert found[silo].cosine == pytest.approx(float(unit @ mean / torch.linalg.vector_norm(mean)), abs=0.03)


def test_zeros_and_a_single_update_have_no_cosine_and_nothing_has_no_measure() -> None:
    assert measured({"a": [torch.ones(4)]}) == {"a": UpdateMeasure(norm=2.0, cosine=None)}
    found = measured({"a": [torch.zeros(4)], "b": [torch.ones(4)], "c": [torch.ones(4)]})
    assert found["a"] == UpdateMeasure(norm=0.0, cosine=None)
    assert found["b"].cosine == pytest.approx(1.0)
    assert measured({"a": []}) == {}


def test_what_an_update_changes_is_its_difference_or_the_result_less_what_it_overwrites() -> None:
    base = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor([5])}
    result = {"w": torch.tensor([1.0, 4.0]), "n": torch.tensor([9])}
    overwriting = TensorGroup(result, Meaning.OVERWRITE, base=digest(base))
    difference = TensorGroup({"v": torch.tensor([3.0])}, Meaning.DIFFERENCE, base="0" * 64)
    statistics = TensorGroup({"bn.mean": torch.tensor([7.0])})
    found = change_of({"model": difference, "psi": overwriting, "batch_norm": statistics}, {digest(base): base})
    assert [each.tolist() for each in found] == [[3.0], [0.0, 2.0]], "of float tensors alone, without statistics"
    assert [each.tolist() for each in change_of({"batch_norm": statistics}, {})] == [[7.0]], "of these alone"
