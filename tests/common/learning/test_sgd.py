"""SGD against the specification's oracle and against PyTorch's own."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest
import torch
from torch import nn

import semisilo.common.learning.sgd as sgd_module
from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning.sgd import SGDSettings, descend, make_optimiser, momentum_of, step
from semisilo.common.numerics.side_by_side import lanes, set_lanes, shares
from tests.each_of import each_of


class _Vector(nn.Module):
    """A model that is one vector; its loss is chosen by the test."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float64))


def test_oracle_s7_two_clipped_nesterov_steps() -> None:
    model = _Vector([1.0, 2.0])
    sgd = SGDSettings(lr=0.03, momentum=0.9, weight_decay=0.0005, clip_norm=1.0)
    optimiser = make_optimiser(model, sgd)
    expected = [[0.965772, 1.954343], [0.934052, 1.957623]]
    for gradient, w in zip([[3.0, 4.0], [0.3, -0.4]], expected, strict=True):
        step(optimiser, (model.w * torch.tensor(gradient, dtype=torch.float64)).sum())
        assert model.w.tolist() == pytest.approx(w, abs=1e-5)
    assert momentum_of(optimiser)["w"].tolist() == pytest.approx([0.840933, 0.321877], abs=1e-5)


def test_oracle_s7_holds_when_the_momentum_is_taken_out_and_put_back_between_the_steps() -> None:
    w, buffers = [1.0, 2.0], None
    for gradient in ([3.0, 4.0], [0.3, -0.4]):
        model = _Vector(w)
        optimiser = make_optimiser(model, SGDSettings(lr=0.03), buffers)
        step(optimiser, (model.w * torch.tensor(gradient, dtype=torch.float64)).sum())
        w, buffers = model.w.tolist(), momentum_of(optimiser)
    assert w == pytest.approx([0.934052, 1.957623], abs=1e-5)
    assert buffers is not None
    assert buffers["w"].tolist() == pytest.approx([0.840933, 0.321877], abs=1e-5)


@each_of(("gradient", "max_norm", "expected"), [
    ([3.0, 4.0], 1.0, [3 / (5 + 1e-6), 4 / (5 + 1e-6)]), ([0.3, 0.4], 1.0, [0.3, 0.4]), ([3.0, 4.0], 0.0, [3.0, 4.0])])
def test_clipping_scales_the_raw_gradient_to_the_norm_and_never_up(gradient: list[float], max_norm: float,
                                                                   expected: list[float]) -> None:
    model = _Vector([0.0, 0.0])
    sgd = SGDSettings(lr=1.0, momentum=0.0, weight_decay=0.0, nesterov=False, clip_norm=max_norm)
    step(make_optimiser(model, sgd), (model.w * torch.tensor(gradient, dtype=torch.float64)).sum())
    assert (-model.w).tolist() == pytest.approx(expected, abs=1e-9)


def test_momentum_before_any_step_is_zero_and_zero_equals_none() -> None:
    """With buf = 0, momentum * buf + g is g: what the first step without a buffer does."""
    one, two = _Vector([1.0, 2.0]), _Vector([1.0, 2.0])
    sgd = SGDSettings(lr=0.1)
    zeros = momentum_of(make_optimiser(one, sgd))
    assert zeros["w"].tolist() == [0.0, 0.0]
    for model, buffers in ((one, None), (two, zeros)):
        step(make_optimiser(model, sgd, buffers), model.w.square().sum())
    assert torch.equal(one.w, two.w)


def test_momentum_of_another_model_is_refused() -> None:
    with pytest.raises(LayoutMismatch, match="'w'"):
        make_optimiser(_Vector([1.0, 2.0]), SGDSettings(lr=0.1), {"w": torch.zeros(3, dtype=torch.float64)})


@each_of(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, False)])
def test_ten_steps_equal_those_of_pytorch(momentum: float, nesterov: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    optimiser = make_optimiser(ours, SGDSettings(lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.01))
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.01)
    for _ in range(10):
        x, y = torch.randn(8, 5), torch.randint(3, (8,))
        step(optimiser, 20 * nn.functional.cross_entropy(ours(x), y))
        reference.zero_grad()
        (20 * nn.functional.cross_entropy(theirs(x), y)).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        reference.step()
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)
    assert torch.allclose(ours.bias, theirs.bias, atol=1e-6)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, False)])
def test_steps_on_several_cores_have_the_bits_of_one(momentum: float, nesterov: bool) -> None:
    before, found = lanes(), []
    try:
        for count in (1, 3):
            set_lanes(count)
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(500, 600), nn.Linear(600, 500), nn.Linear(500, 3))
            assert len(shares(list(model.parameters()))) == (1 if count == 1 else 3), "the control"
            optimiser = make_optimiser(model, SGDSettings(lr=0.1, momentum=momentum, nesterov=nesterov))
            for _ in range(3):
                step(optimiser, model(torch.randn(4, 500)).square().sum())
            found.append([*model.parameters(), *momentum_of(optimiser).values()])
    finally:
        set_lanes(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_parameters_that_the_loss_does_not_reach_stay() -> None:
    model = nn.ModuleDict({"used": nn.Linear(1, 1), "idle": nn.Linear(1, 1)})
    before = model["idle"].weight.detach().clone()
    optimiser = make_optimiser(model, SGDSettings(lr=0.1))
    for _ in range(2):
        step(optimiser, model["used"](torch.ones(1, 1)).sum())
    assert torch.equal(before, model["idle"].weight)
    assert momentum_of(optimiser)["idle.weight"].tolist() == [[0.0]]


def test_descent_needs_neither_the_optimisers_nor_the_compiler_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.optim` loads the compiler, which would cost every compute process seconds and memory. Here neither can be
    imported, nor had from torch, and the module is executed once more."""
    for name in [each for each in sys.modules if each.startswith(("torch.optim", "torch._dynamo"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("optim", "_dynamo"):
        monkeypatch.setitem(sys.modules, f"torch.{name}", None)
        if name in vars(torch):  # asking with `hasattr` would import it
            monkeypatch.delattr(torch, name)
        with pytest.raises(ImportError):
            importlib.import_module(f"torch.{name}")
    assert sgd_module.__spec__ is not None
    fresh = importlib.util.module_from_spec(sgd_module.__spec__)
    monkeypatch.setitem(sys.modules, fresh.__name__, fresh)  # where its dataclasses look for their types
    assert sgd_module.__spec__.loader is not None
    sgd_module.__spec__.loader.exec_module(fresh)
    model = nn.Linear(1, 1)
    fresh.step(fresh.make_optimiser(model, fresh.SGDSettings(lr=0.1)), model(torch.ones(1, 1)).sum())


@pytest.mark.slow
def test_training_does_not_load_the_compiler_of_torch() -> None:
    """As above with everything that the module imports, in a process of its own."""
    code = ("import sys, torch; from semisilo.common.learning.sgd import *; m = torch.nn.Linear(1, 1);"
            "step(make_optimiser(m, SGDSettings(lr=0.1)), m(torch.ones(1, 1)).sum());"
            "print('torch._dynamo' in sys.modules)")
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.split() == ["False"]


def test_gradients_that_came_from_elsewhere_descend_as_those_of_a_loss_would() -> None:
    sgd = SGDSettings(lr=0.03, momentum=0.9, weight_decay=0.0005, clip_norm=1.0)
    models = _Vector([1.0, 2.0]), _Vector([1.0, 2.0])
    by_loss, by_gradient = (make_optimiser(model, sgd) for model in models)
    for gradient in ([3.0, 4.0], [0.3, -0.4]):
        step(by_loss, (models[0].w * torch.tensor(gradient, dtype=torch.float64)).sum())
        descend(by_gradient, {"w": torch.tensor(gradient, dtype=torch.float64)})
    assert torch.equal(models[0].w, models[1].w)
    descend(by_gradient, {})
    assert torch.equal(models[0].w, models[1].w), "without a gradient it stays"
