"""FedProx's silo half: the oracle of a step, its gradient, and mu = 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.fedprox import FedProxSettings
from semisilo.common.models.factory import initial_model
from semisilo.silo.trainers.fedavg import FedAvgTrainer
from semisilo.silo.trainers.fedprox import FedProxTrainer, proximal_term

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int, seed: int) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


DATA = SiloData(labelled=_images(12, 1), unlabelled=_images(26, 2))


def _train(*, mu: float, **settings: Any) -> Update:
    values = {"round_lr": 0.1, "labelled_batch": 4, "local_epochs": 2, "objective": "fixmatch", **settings}
    task = SiloTask(study="s", round=1, rounds=5, phase="train", silo="a", seed=1, image=FORM, build_model=_net,
                    settings=FedProxSettings(mu=mu, **values), groups={"model": TensorGroup(initial_model(_net, 3))},
                    augmentation=AugmentationSettings(policy="none"))
    return FedProxTrainer().train(task, DATA, None)[0]


def test_oracle_b3_penalty_and_step() -> None:
    w = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    penalty = proximal_term({"w": w}, {"w": torch.zeros(2, dtype=torch.float64)}, mu=0.01)
    assert float(penalty.detach()) == pytest.approx(0.01, abs=1e-5)
    (w.sum() * 0.5 + penalty).backward()
    assert w.grad is not None
    assert (w - 0.1 * w.grad).tolist() == pytest.approx([0.949, -1.049], abs=1e-5)


def test_models_of_different_layout_are_refused() -> None:
    with pytest.raises(LayoutMismatch, match="'w'"):
        proximal_term({"w": torch.zeros(2)}, {"w": torch.zeros(3)}, mu=1.0)


def test_without_mu_a_silo_is_fedavgs_bit_for_bit() -> None:
    ours = _train(mu=0.0)
    values: dict[str, Any] = {"round_lr": 0.1, "labelled_batch": 4, "local_epochs": 2, "objective": "fixmatch"}
    task = SiloTask(study="s", round=1, rounds=5, phase="train", silo="a", seed=1, image=FORM, build_model=_net,
                    settings=FedAvgSettings(**values), groups={"model": TensorGroup(initial_model(_net, 3))},
                    augmentation=AugmentationSettings(policy="none"))
    theirs = FedAvgTrainer().train(task, DATA, None)[0]
    assert tensors.digest(ours.groups["model"].tensors) == tensors.digest(theirs.groups["model"].tensors)
    assert ours.metrics == theirs.metrics


def test_two_steps_are_written_out_with_mu_times_the_distance() -> None:
    """The first step has no distance to the received model; the second has that of the first step. Full batches, so
    that the gradient is a known function of the weights: g(w) + mu (w - w_t)."""
    mu, lr = 0.5, 0.1
    update = _train(mu=mu, objective="sl", lambda_s=1.0, labelled_batch=12)
    start = initial_model(_net, 3)
    model = _net()
    tensors.load_into(model, start)
    assert DATA.labelled is not None
    x = (DATA.labelled.images_NCHW.float() / 255 - 0.5) / 0.25
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(x), DATA.labelled.labels_N)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for (name, w), g in zip(model.named_parameters(), gradients, strict=True):
                w -= lr * (g + mu * (w - start[name]))
    for name, w in model.named_parameters():
        assert torch.allclose(update.groups["model"].tensors[name], w.detach() - start[name], atol=1e-6), name


def test_the_reported_loss_is_the_objectives_alone() -> None:
    update = _train(mu=1.0, objective="sl", lambda_s=1.0)
    assert update.metrics["loss"] == pytest.approx(update.metrics["labelled_loss"])
