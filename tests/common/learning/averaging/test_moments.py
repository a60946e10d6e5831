"""Moments around a reference: their weighted mean gives the statistics of all images, as merging gives them."""

from __future__ import annotations

import pytest
import torch

from semisilo.common.errors import BadPayload, LayoutMismatch
from semisilo.common.learning import batch_norm
from semisilo.common.learning.averaging.moments import from_moments, to_moments
from semisilo.common.learning.batch_norm import LayerStatistics, Statistics

REFERENCE = {"a.mean": torch.tensor([0.0, 5.0, -1.0]), "a.var": torch.tensor([1.0, 0.01, 0.0]),
             "b.mean": torch.tensor([2.0]), "b.var": torch.tensor([9.0])}
COUNTS = {"one": 3, "two": 50, "three": 700}


def values_of(silo: str) -> dict[str, torch.Tensor]:
    """What reaches two layers, float64 (values, channels); the last channel of the first is the same everywhere."""
    generator = torch.Generator().manual_seed(len(silo))
    number = COUNTS[silo]
    noise = torch.randn(number, 3, generator=generator, dtype=torch.float64)
    first = noise * torch.tensor([2.0, 0.2, 0.0]) + torch.tensor([float(len(silo)), 5.0, 4.0])
    return {"a": first, "b": torch.rand(4 * number, 1, generator=generator, dtype=torch.float64) * 30}


def statistics_of(values: dict[str, torch.Tensor]) -> Statistics:
    return {name: LayerStatistics(float(len(each)), each.mean(0), each.var(0)) for name, each in values.items()}


def added(silos: dict[str, Statistics]) -> Statistics:
    """The mean of the silos' moments by their images, and what follows from it."""
    total = sum(COUNTS[silo] for silo in silos)
    moments = {silo: to_moments(each, REFERENCE) for silo, each in silos.items()}
    mean = {name: torch.stack([COUNTS[silo] / total * moments[silo][name].double() for silo in silos]).sum(0)
            for name in next(iter(moments.values()))}
    return from_moments(mean, REFERENCE, {"a": float(total), "b": 4.0 * total})


def test_the_mean_of_moments_gives_what_all_values_together_have() -> None:
    values = {silo: values_of(silo) for silo in COUNTS}
    found = added({silo: statistics_of(each) for silo, each in values.items()})
    merged = batch_norm.merge([statistics_of(each) for each in values.values()])
    for name in ("a", "b"):
        together = torch.cat([each[name] for each in values.values()])
        assert found[name].count == merged[name].count == len(together)
        for one, other in ((found[name].mean, together.mean(0)), (found[name].var, together.var(0)),
                           (found[name].mean, merged[name].mean), (found[name].var, merged[name].var)):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_wrong_reference_changes_the_precision_alone() -> None:
    far = {name: tensor * 3 + 0.5 for name, tensor in REFERENCE.items()}
    one = statistics_of(values_of("two"))
    found = from_moments(to_moments(one, far), far, {"a": 50.0, "b": 200.0})
    assert torch.allclose(found["a"].mean, one["a"].mean, rtol=1e-5)
    assert torch.allclose(found["b"].var, one["b"].var, rtol=1e-4)


def test_a_channel_that_the_reference_knows_nothing_of_stays_within_a_few_deviations() -> None:
    """Its scale is a tenth of the layer's: mean 4 around -1, where the layer's variances are 1, 0.01 and 0."""
    moments = to_moments(statistics_of(values_of("two")), REFERENCE)
    assert moments["a.mean"][2].item() == pytest.approx(5 / (0.01 * 1.01 / 3 + 1e-5) ** 0.5, rel=1e-5)
    assert moments["a.square"][2].item() == pytest.approx(25 / (0.01 * 1.01 / 3 + 1e-5), rel=1e-5)


def test_one_value_has_no_variance() -> None:
    one = {"b": LayerStatistics(1.0, torch.tensor([7.0]).double(), torch.zeros(1).double())}
    reference = {name: tensor for name, tensor in REFERENCE.items() if name.startswith("b")}
    found = from_moments(to_moments(one, reference), reference, {"b": 1.0})["b"]
    assert found.mean.item() == pytest.approx(7.0)
    assert found.var.item() == pytest.approx(0.0, abs=1e-5)


def test_rounding_makes_no_variance_negative() -> None:
    moments = to_moments(statistics_of(values_of("two")), REFERENCE)
    moments["a.square"] = moments["a.mean"].square() * (1 - 1e-3) - 1e-3
    assert from_moments(moments, REFERENCE, {"a": 50.0, "b": 200.0})["a"].var.tolist() == [0.0, 0.0, 0.0]


def test_other_layers_and_numbers_that_are_none_are_refused() -> None:
    statistics = statistics_of(values_of("two"))
    with pytest.raises(LayoutMismatch, match="other layers"):
        to_moments({"a": statistics["a"]}, REFERENCE)
    with pytest.raises(LayoutMismatch, match="number of channels"):
        to_moments({"a": statistics["b"], "b": statistics["b"]}, REFERENCE)
    with pytest.raises(LayoutMismatch, match=r"reference of batch-norm layer 'a'"):
        to_moments(statistics, {name: tensor for name, tensor in REFERENCE.items() if name != "a.var"})
    moments = to_moments(statistics, REFERENCE)
    with pytest.raises(LayoutMismatch, match=r"Moments of batch-norm layer 'c'"):
        from_moments(moments, {**REFERENCE, "c.mean": torch.zeros(1), "c.var": torch.ones(1)}, {"c": 1.0})
    with pytest.raises(BadPayload, match="not finite"):
        from_moments({**moments, "b.mean": torch.tensor([float("nan")])}, REFERENCE, {"a": 1.0, "b": 1.0})
