"""The method that benchmarks use: what it changes is what its settings say, and averaging touches nothing else."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.methods.contract import Meaning, Phase, SiloData, SiloTask, TensorGroup, UpdateHeader
from tests.plugin_kit import on_the_module_path

PLUGIN = Path(__file__).resolve().parents[1] / "benchmarks" / "wire" / "perturb"


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Any]:
    """The plug-in, found by its entry point; torch.nn modules of it are imported by the tests."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    facts = tmp_path / "semisilo_perturb-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()))
    with on_the_module_path(tmp_path), on_the_module_path(PLUGIN):
        from semisilo.common.methods.plugins import find_plugin

        yield find_plugin("perturb")


def _task(plugin: Any, w: dict[str, torch.Tensor], *, silo: str, round: int = 1, density: float = 1.0) -> SiloTask:
    return SiloTask(study="s", round=round, rounds=3, phase="train", silo=silo, seed=1,
                    settings=plugin.spec.settings(density=density), groups={"model": TensorGroup(w)},
                    build_model=torch.nn.Identity, augmentation=None, image=None)  # type: ignore[arg-type]


def _deltas(plugin: Any, w: dict[str, torch.Tensor], **options: Any) -> dict[str, torch.Tensor]:
    from semisilo.common.methods.plugins import load_half

    update, memory = load_half("perturb", "trainer")().train(_task(plugin, w, **options), SiloData(), None)
    assert memory is None
    group = update.groups["model"]
    assert group.meaning is Meaning.DIFFERENCE
    return dict(group.tensors)


@pytest.mark.parametrize("count", [1000, 1001, 99_999, 1_500_000, 25_000_000])
def test_a_network_has_exactly_as_many_parameters_as_its_name_says(plugin: Any, count: int) -> None:
    from semisilo_perturb import network

    model = getattr(network, f"parameters_{count}")(num_classes=2, channels=1, size=8)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert all(math.prod(parameter.shape) > 0 for parameter in model.parameters())
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 2)


@pytest.mark.parametrize("name", ["parameters_999", "parameters_", "parameters_1e6", "other"])
def test_a_network_of_another_name_does_not_exist(plugin: Any, name: str) -> None:
    from semisilo_perturb import network

    with pytest.raises(AttributeError, match=name):
        getattr(network, name)


@pytest.mark.slow
@pytest.mark.parametrize("density", [1.0, 0.1])
def test_a_silo_changes_the_share_of_elements_that_is_asked_at_places_of_its_own(plugin: Any, density: float) -> None:
    """The share of 3 million independent draws is off by more than 0.002 once in more than 10^20 runs."""
    w = {"a": torch.ones(3_000_000)}
    first, again, second, later = (_deltas(plugin, w, density=density, **options)["a"] for options in (
        {"silo": "a"}, {"silo": "a"}, {"silo": "b"}, {"silo": "a", "round": 2}))
    assert torch.equal(first, again)
    for other in (second, later):
        assert not torch.equal(first, other)
    for delta in (first, second, later):
        assert abs(float((delta != 0).double().mean()) - density) < 0.002
    if density < 1:
        both = float(((first != 0) & (second != 0)).double().mean())
        assert abs(both - density**2) < 0.002, "two silos choose independently"


@pytest.mark.slow
def test_the_average_is_added_and_untouched_elements_keep_their_bits(plugin: Any) -> None:
    from semisilo_perturb.strategy import PerturbState, PerturbStrategy, PerturbTally

    generator = torch.Generator().manual_seed(4)
    w = {"a": torch.randn(5000, generator=generator), "b": torch.randn(7, 11, generator=generator)}
    kept = {name: tensor.clone() for name, tensor in w.items()}
    updates = {silo: _deltas(plugin, w, silo=silo, density=0.1) for silo in ("a", "b", "c")}
    strategy = PerturbStrategy.__new__(PerturbStrategy)
    strategy._served = None
    state = PerturbState(w=w, digest="")
    headers = tuple(UpdateHeader(silo, 4) for silo in updates)
    tally: PerturbTally = strategy.begin(state, Phase("train"), headers, round=1)
    for header in headers:
        tally, _ = strategy.fold(state, tally, header, {"model": TensorGroup(updates[header.silo])}, None)
    after = strategy.finish(state, Phase("train"), tally, round=1).w
    for name, before in kept.items():
        assert torch.equal(w[name], before), "the state before stays as it was"
        changed = sum((delta[name] != 0).int() for delta in updates.values())
        assert torch.equal(after[name][changed == 0], before[changed == 0])
        mean = torch.stack([delta[name].double() for delta in updates.values()]).mean(0)
        torch.testing.assert_close(after[name].double(), before.double() + mean, rtol=0, atol=1e-6)
