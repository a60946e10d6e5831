"""FedSGD's coordinator half: one step with the averaged gradient, the labelled term where labels are, the edges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.config import from_dict
from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.consistency import tsa_loss, tsa_threshold
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.training import cosine_lr
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fedsgd import FEDSGD, FedSGDSettings
from semisilo.common.methods.spec import EitherScenario
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.fedsgd import FedSGDState, FedSGDStrategy
from semisilo.coordinator.strategies.parts.phases import TRAIN
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
PLAIN: dict[str, Any] = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip_norm": 0.0,
                         "schedule": "constant", "lr": 0.5}


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _images(count: int = 12) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


def _strategy(labelled: ImageSet | None = None, build: Any = _net, **settings: Any) -> FedSGDStrategy:
    at_coordinator = settings.get("scenario", "labels-at-coordinator") == "labels-at-coordinator"
    data = CoordinatorData(labelled=_images() if labelled is None else labelled) if at_coordinator else \
        CoordinatorData(validation=_images())
    environment = Environment(seed=1, rounds=4, num_silos=2, data=data, build_model=build, image=FORM,
                              augmentation=AugmentationSettings(policy="none"))
    return FedSGDStrategy(FedSGDSettings(**{"labelled_batch": 5, **settings}), environment)


def _started(strategy: FedSGDStrategy, build: Any = _net) -> FedSGDState:
    return strategy.start(initial_model(build, 1))


def _round(strategy: FedSGDStrategy, state: FedSGDState, gradients: dict[str, float], *, round: int = 1,
           sizes: dict[str, int] | None = None) -> FedSGDState:
    headers = tuple(UpdateHeader(silo, (sizes or {}).get(silo, 10)) for silo in sorted(gradients))
    tally = strategy.begin(state, TRAIN, headers, round=round)
    for header in headers:
        values = {name: torch.full_like(tensor, gradients[header.silo]) for name, tensor in state.w.items()}
        tally, kept = strategy.fold(state, tally, header, {"gradient": TensorGroup(values)}, None)
        assert kept is None
    return strategy.finish(state, TRAIN, tally, round=round)


def _labelled_gradient(w: dict[str, Tensor], loss_of: Any) -> dict[str, Tensor]:
    """Of `loss_of(logits, labels)` on the batch that the round draws."""
    model = _net()
    tensors.load_into(model, w)
    index = torch.randperm(12, generator=torch_generator(1, "coordinator_order", round=1))[:5]
    labels_N = _images().labels_N
    assert labels_N is not None
    loss = loss_of(model.train()(augment.to_input(_images().images_NCHW[index], FORM)), labels_N[index])
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def test_a_step_follows_the_average_of_the_gradients() -> None:
    """w - 0.5 (1/4 * 1 + 3/4 * 3) with sizes 100 and 300; w - 0.5 * 2 with equal weights."""
    for weighting, step in (("size", 0.5 * 2.5), ("uniform", 0.5 * 2.0)):
        strategy = _strategy(scenario="labels-at-silo", weighting=weighting, **PLAIN)
        state = _started(strategy)
        after = _round(strategy, state, {"a": 1.0, "b": 3.0}, sizes={"a": 100, "b": 300})
        assert all(torch.allclose(after.w[name], w - step, atol=1e-6) for name, w in state.w.items())


@pytest.mark.slow
def test_rounds_are_steps_of_one_descent_with_momentum_decay_and_clipping() -> None:
    """Against PyTorch's own optimiser over three rounds, the cosine included."""
    strategy = _strategy(scenario="labels-at-silo", lr=0.1, momentum=0.9, weight_decay=0.01, clip_norm=2.0)
    state = _started(strategy)
    model = _net()
    tensors.load_into(model, state.w)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    for number, gradient in enumerate((1.0, -0.01, 0.5), 1):
        state = _round(strategy, state, {"a": gradient}, round=number)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimiser.param_groups[0]["lr"] = cosine_lr(0.1, round=number, rounds=4)
        optimiser.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(state.w[name], parameter.detach(), atol=1e-5), name


def test_the_coordinators_labelled_gradient_is_added_to_the_sum() -> None:
    strategy = _strategy(lambda_s=2.0, **PLAIN)
    state = _started(strategy)
    after = _round(strategy, state, {"a": 1.0, "b": 3.0})
    own = _labelled_gradient(state.w, lambda logits, labels: 2 * functional.cross_entropy(logits, labels))
    for name, w in state.w.items():
        assert torch.allclose(after.w[name], w - 0.5 * (2.0 + own[name]), atol=1e-5), name
    found = strategy.diagnostics(after)
    assert found["coordinator_gradient_norm"] == pytest.approx(tensors.norm(own), rel=1e-5)
    elements = sum(w.numel() for w in state.w.values())
    assert found["silo_gradient_norm"] == pytest.approx(2.0 * elements ** 0.5, rel=1e-6)


def test_under_uda_the_labelled_term_is_annealed_at_the_coordinator_too() -> None:
    strategy = _strategy(objective="uda", tsa="exp", **PLAIN)
    state = _started(strategy)
    after = _round(strategy, state, {"a": 0.0})
    threshold = tsa_threshold("exp", t=1, total=4, num_classes=3)
    own = _labelled_gradient(state.w, lambda logits, labels: tsa_loss(logits, labels, threshold).loss)
    plain = _labelled_gradient(state.w, functional.cross_entropy)
    assert not torch.allclose(own["4.bias"], plain["4.bias"], atol=1e-4), "the control: annealing matters here"
    for name, w in state.w.items():
        assert torch.allclose(after.w[name], w - 0.5 * own[name], atol=1e-5), name


@pytest.mark.parametrize("scenario", get_args(EitherScenario))
def test_without_an_accepted_gradient_model_and_momentum_stay_bit_for_bit(scenario: str) -> None:
    strategy = _strategy(scenario=scenario)
    state = _round(strategy, _started(strategy), {"a": 1.0})
    empty = _round(strategy, state, {}, round=2)
    assert tensors.digest(empty.w) == tensors.digest(state.w)
    assert state.opt_buf is not None
    assert empty.opt_buf is not None
    assert tensors.digest(empty.opt_buf) == tensors.digest(state.opt_buf)
    assert (empty.round, strategy.diagnostics(empty)) == (2, {})


def test_gradients_of_zero_are_an_answer_and_let_the_coordinator_learn() -> None:
    """Before any image is confident the labelled term alone moves the model."""
    strategy = _strategy(**PLAIN)
    state = _started(strategy)
    after = _round(strategy, state, {"a": 0.0, "b": 0.0})
    own = _labelled_gradient(state.w, functional.cross_entropy)
    assert all(torch.allclose(after.w[name], w - 0.5 * own[name], atol=1e-5) for name, w in state.w.items())


def test_a_batch_that_batch_norm_cannot_use_leaves_the_step_to_the_silos() -> None:
    strategy = _strategy(labelled=_images(1), build=_flat_net, **PLAIN)
    state = _started(strategy, _flat_net)
    after = _round(strategy, state, {"a": 1.0})
    assert all(torch.allclose(after.w[name], w - 0.5, atol=1e-6) for name, w in state.w.items())
    assert "coordinator_loss" not in strategy.diagnostics(after)


def test_silos_are_sent_the_model_and_asked_for_a_gradient() -> None:
    strategy = _strategy()
    state = _started(strategy)
    one, other = (strategy.task(state, TRAIN, silo, None, round=1) for silo in "ab")
    assert set(one.groups) == {"model"}
    assert one.groups["model"] is other.groups["model"]
    assert FEDSGD.down["model"] is one.groups["model"].meaning
    layout = strategy.expects(state, TRAIN, round=1)["gradient"]
    assert (layout.meaning, layout.base, layout.tensors) == (Meaning.VALUES, "", tensors.specs(state.w))
    assert strategy.task(state, TRAIN, "a", None, round=3).settings == {"round_lr": pytest.approx(0.015)}


def test_statistics_follow_the_model_and_silos_measure_where_the_coordinator_has_no_images() -> None:
    strategy = _strategy(scenario="labels-at-silo", **PLAIN)
    state = _round(strategy, _started(strategy), {"a": 0.1})
    model = _net()
    tensors.load_into(model, state.w)
    found = batch_norm.measure(model, _images().images_NCHW, form=FORM, generator=torch.Generator())
    for name, tensor in batch_norm.to_tensors(found).items():
        assert torch.allclose(state.batch_norm[name], tensor, atol=1e-5), name
    alone = FedSGDStrategy(FedSGDSettings(scenario="labels-at-silo"), Environment(
        seed=1, rounds=4, num_silos=2, data=CoordinatorData(), build_model=_net, image=FORM,
        augmentation=AugmentationSettings(policy="none")))
    start = _started(alone)
    assert [phase.name for phase in alone.phases(start, 1)] == ["statistics", "train", "statistics"]
    assert start.batch_norm == {}
    measured = replace(start, batch_norm=batch_norm.to_tensors(found))
    assert _round(alone, measured, {"a": 0.1}).batch_norm.keys() == measured.batch_norm.keys()


def test_the_state_survives_the_disk_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    strategy = _strategy()
    state = _round(strategy, _started(strategy), {"a": 0.3, "b": -0.1})
    checkpoint.save(tmp_path / "state", state)
    loaded = checkpoint.load(tmp_path / "state", FedSGDState)
    one, other = (_round(_strategy(), each, {"a": 0.2}, round=2) for each in (state, loaded))
    assert tensors.digest(one.w) == tensors.digest(other.w)
    assert one.diagnostics == other.diagnostics


def test_labels_are_needed_where_the_scenario_puts_them_at_the_coordinator() -> None:
    with pytest.raises(BadData, match="labelled images at the coordinator"):
        _strategy(labelled=_images().without_labels())
    _strategy(scenario="labels-at-silo")


@each_of(("values", "text"), [
    ({"objective": "sl"}, "labels-at-coordinator"),
    ({"objective": "mean_teacher"}, "mean_teacher"),
    ({"local_epochs": 2}, "local_epochs"),
    ({"steps_rule": "fed_shvr"}, "steps_rule"),
    ({"scenario": "labels-at-silo", "objective": "sl", "lambda_u": 2.0}, "lambda_u"),
    ({"momentum": 0.0}, "nesterov"),
    ({"clip_norm": -1.0}, "clip_norm"),
])
def test_settings_that_cannot_be_honoured_are_refused_by_name(values: dict[str, Any], text: str) -> None:
    with pytest.raises(BadConfiguration, match=text):
        from_dict(FedSGDSettings, values)


def test_the_method_is_in_the_tables() -> None:
    assert METHODS["fedsgd"] is FEDSGD
    assert load_strategy("fedsgd") is FedSGDStrategy
    assert FEDSGD.scenarios == get_args(EitherScenario)
