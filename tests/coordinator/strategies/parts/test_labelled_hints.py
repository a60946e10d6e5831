"""What silos are told of the coordinator's labels, and what a model's probabilities stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.imbalance.labels import class_balanced_order
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import CoordinatorData, Environment
from semisilo.common.methods.parts.imbalance import LABELLED_HINTS
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.models.factory import initial_model
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.parts.labelled_hints import LabelledHints, prior_of_labels_alone, training_prior
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.coordinator.strategies.self_training import SelfTrainingStrategy
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
LABELS = torch.tensor([0] * 8 + [1] * 3 + [2])
METHODS_HERE = ["semifl", "fedavg", "fedprox", "fednova", "scaffold", "fedmix", "fedmatch", "fedrgd", "fedsgd"]


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images() -> ImageSet:
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randint(0, 256, (12, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, LABELS, tuple(map(str, range(12))))


def _environment() -> Environment:
    return Environment(seed=1, rounds=4, num_silos=2, data=CoordinatorData(labelled=_images(), validation=_images()),
                       build_model=_net, image=FORM, augmentation=AugmentationSettings(policy="none"))


def _settings(method: str, **settings: Any) -> Any:
    chosen = method in ("fedavg", "fedprox", "fednova", "scaffold", "fedsgd")
    objective = {"objective": "fixmatch"} if chosen else {}
    return METHODS[method].settings(**{"scenario": "labels-at-coordinator", **objective, **settings})


def _p(w: dict[str, Tensor]) -> np.ndarray[Any, Any]:
    x = augment.to_input(_images().images_NCHW, FORM).double().flatten(1).numpy()
    f = np.exp(x @ w["1.weight"].double().numpy().T + w["1.bias"].double().numpy())
    return f / f.sum(axis=1, keepdims=True)


@each_of("method", METHODS_HERE)
def test_every_method_tells_silos_what_follows_from_the_model_that_it_sends(method: str) -> None:
    strategy = load_strategy(method)(
        _settings(method, distribution_alignment="labels", thresholds="class_relative"), _environment())
    state = strategy.start(initial_model(_net, 3))
    task = strategy.task(state, TRAIN, "a", None, round=1)
    told = {name: task.settings[name] for name in LABELLED_HINTS}
    assert told["labelled_prior"] == pytest.approx((8 / 12, 3 / 12, 1 / 12))
    p, labels = _p(dict(strategy.sent_model(state).tensors)), LABELS.numpy()
    assert told["labelled_confidence"] == pytest.approx(p.max(axis=1).mean(), rel=1e-5)
    assert told["labelled_class_confidence"] == pytest.approx(
        tuple(p[labels == label, label].mean() for label in range(3)), rel=1e-5)
    again = strategy.task(strategy.start(initial_model(_net, 3)), TRAIN, "b", None, round=1)
    assert {name: again.settings[name] for name in LABELLED_HINTS} == told, "all silos and a restart are told the same"


@each_of(("settings", "told"), [
    ({}, set()), ({"distribution_alignment": "uniform"}, set()),
    ({"distribution_alignment": "labels"}, {"labelled_prior"}), ({"thresholds": "relative"}, {"labelled_confidence"}),
    ({"thresholds": "class_relative"}, {"labelled_confidence", "labelled_class_confidence"})])
@each_of("method", METHODS_HERE)
def test_nothing_is_told_that_no_setting_needs(method: str, settings: dict[str, Any], told: set[str]) -> None:
    strategy = load_strategy(method)(_settings(method, **settings), _environment())
    task = strategy.task(strategy.start(initial_model(_net, 3)), TRAIN, "a", None, round=1)
    assert set(task.settings) & set(LABELLED_HINTS) == told


@each_of("method", ["fedmatch", "fedsgd"])
def test_where_silos_have_measured_nothing_yet_confidence_is_under_statistics_of_the_labelled_images(method: str
                                                                                                     ) -> None:
    environment = replace(_environment(), build_model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3),
                                                                            StaticBatchNorm(3)))
    told = []
    for source in ("silos", "coordinator"):
        strategy = load_strategy(method)(_settings(method, thresholds="relative", sbn_source=source), environment)
        state = strategy.start(initial_model(environment.build_model, 3))
        told.append(strategy.task(state, TRAIN, "a", None, round=1).settings["labelled_confidence"])
    assert told[0] == pytest.approx(told[1], rel=1e-6)


def test_with_labels_at_silos_the_coordinator_tells_nothing() -> None:
    settings = METHODS["fedavg"].settings(objective="fixmatch", thresholds="relative", distribution_alignment="labels")
    assert not LabelledHints(_environment(), settings).wanted
    assert training_prior(settings, _images(), 3) == ()


def test_what_probabilities_stand_for_follows_from_how_labels_were_learnt() -> None:
    """Shares 8, 3, 1 of 12; tau 0.5: their square roots; tau 1 and balanced sampling: uniform."""
    assert training_prior(_settings("semifl"), _images(), 3) == pytest.approx((8 / 12, 3 / 12, 1 / 12))
    roots = np.sqrt([8, 3, 1])
    assert training_prior(_settings("semifl", logit_adjustment=0.5), _images(), 3) == pytest.approx(
        tuple(roots / roots.sum()))
    for even in ({"logit_adjustment": 1.0}, {"labelled_sampling": "class_balanced"}):
        assert training_prior(_settings("semifl", **even), _images(), 3) == pytest.approx((1 / 3,) * 3)
    assert training_prior(_settings("semifl"), None, 3) == ()
    assert training_prior(SelfTrainingSettings(), _images(), 3) == pytest.approx((1 / 3,) * 3)
    for scenario in ("labels-at-coordinator", "labels-at-both"):
        assert training_prior(SelfTrainingSettings(scenario=scenario, logit_adjustment=0.0), _images(), 3
                              ) == pytest.approx((8 / 12, 3 / 12, 1 / 12))


@each_of(("settings", "prior"), [({}, (1 / 3,) * 3), ({"task": "multi_label"}, (0.5,) * 3),
                                 ({"logit_adjustment": 0.5, "silo_prior": "model"}, ())])
def test_with_labels_at_silos_self_training_stands_for_what_silos_are_told(settings: dict[str, Any],
                                                                           prior: tuple[float, ...]) -> None:
    found = SelfTrainingSettings(scenario="labels-at-silo", **settings)
    assert training_prior(found, None, 3) == pytest.approx(prior)
    if prior:
        told = SelfTrainingStrategy(found, replace(_environment(), num_classes=3, data=CoordinatorData()))
        assert told._prior == training_prior(found, None, 3)


def test_labels_alone_stand_for_equal_classes_only_where_they_were_adjusted() -> None:
    assert prior_of_labels_alone(_images(), 3, adjusted=True) == pytest.approx((1 / 3,) * 3)
    assert prior_of_labels_alone(_images(), 3, adjusted=False) == pytest.approx((8 / 12, 3 / 12, 1 / 12))
    assert prior_of_labels_alone(None, 3, adjusted=True) == ()


def _descended(method: str, index: Tensor, *, tau: float, weight: float) -> dict[str, Tensor]:
    """One plain step with rate 0.1 on these images, on Menon's loss, by autograd on a fresh network."""
    network = _net()
    w = initial_model(_net, 3)
    network.load_state_dict(w)
    shares = torch.tensor([8, 3, 1]) / 12
    logits = network(augment.to_input(_images().images_NCHW[index], FORM)) + tau * shares.log()
    (weight * nn.functional.cross_entropy(logits, LABELS[index])).backward()
    return {name: (parameter - 0.1 * parameter.grad).detach() for name, parameter in network.named_parameters()
            if parameter.grad is not None}


@pytest.mark.parametrize("settings", [{"logit_adjustment": 1.0}, {"labelled_sampling": "class_balanced"}])
@pytest.mark.parametrize("method", ["semifl", "fedavg"])
def test_the_coordinator_learns_its_labels_as_the_settings_say(method: str, settings: dict[str, Any]) -> None:
    """One epoch in one batch before round 1: the adjusted loss, or the class-balanced order of the named stream."""
    plain = {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip_norm": 0.0, "labelled_batch": 12,
             "coordinator_epochs": 1, "schedule": "constant"}
    made = _settings(method, **plain, **({"lambda_s": 1.0} if method == "fedavg" else {}), **settings)
    strategy = load_strategy(method)(made, _environment())
    found = dict(strategy.sent_model(strategy.start(initial_model(_net, 3))).tensors)
    purpose, round = ("fine_tune_order", 0) if method == "semifl" else ("coordinator_order", 1)
    order = torch.arange(12)
    if "labelled_sampling" in settings:
        order = class_balanced_order(LABELS, torch_generator(1, purpose, round=round))
    expected = _descended(method, order, tau=settings.get("logit_adjustment", 0.0), weight=1.0)
    usual = _descended(method, torch.arange(12), tau=0.0, weight=1.0)
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=1e-6), name
        assert not torch.allclose(found[name], usual[name], atol=1e-4), name


@each_of("method", ["fedmix", "fedmatch", "fedrgd", "fedsgd"])
def test_the_reported_loss_at_the_coordinator_is_the_adjusted_one(method: str) -> None:
    """With rate 0 the loss of the labels is that of the model that was begun with: 8, 3 and 1 of 12 in pi."""
    made = _settings(method, logit_adjustment=1.0, labelled_batch=12, lr=0.0,
                     **({"momentum": 0.0, "nesterov": False} if method == "fedsgd" else {}))
    strategy = load_strategy(method)(made, _environment())
    state = strategy.start(initial_model(_net, 3))
    w = dict(strategy.sent_model(state).tensors) if method != "fedmatch" else \
        {name: state.sigma[name] + state.psi[name] for name in state.sigma}
    p = _p(w) * np.array([8, 3, 1]) / 12
    p /= p.sum(axis=1, keepdims=True)
    expected = float(-np.log(p[np.arange(12), LABELS.numpy()]).mean())
    if method == "fedmatch":
        found = strategy.diagnostics(state)["sigma_loss"]
    elif method == "fedsgd":
        found = strategy._labelled_gradient(_loaded(w), round=1)[1]
    else:
        found = strategy._trained(_loaded(w), state if method == "fedmix" else None, round=1).loss
    assert found == pytest.approx(expected, rel=1e-4)


def _loaded(w: dict[str, Tensor]) -> nn.Module:
    network = _net()
    network.load_state_dict(w)
    return network
