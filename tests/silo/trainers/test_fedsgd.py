"""FedSGD's silo half: the gradient of one batch under each objective, for silos with labels, without, or with both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload, ComputeFailed
from semisilo.common.learning import tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods import METHODS, is_declared
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.fedsgd import FedSGDSettings
from semisilo.common.models.factory import initial_model
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.fedsgd import FedSGDTrainer

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _plain_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _images(count: int, *, seed: int = 0, labelled: bool = False) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3 if labelled else None, tuple(str(i) for i in range(count)))


BOTH = SiloData(labelled=_images(7, seed=5, labelled=True), unlabelled=_images(20))


def _task(build: Any = _net, *, phase: str = "train", policy: Any = "none", round: int = 1,
          **settings: Any) -> SiloTask:
    values = {"scenario": "labels-at-silo", "labelled_batch": 5, "round_lr": 0.1, **settings}
    if values.get("objective") != "sl":
        values = {"unlabelled_batch": 8, "confidence_threshold": 0.4, **values}
    return SiloTask(study="s", round=round, rounds=5, phase=phase, silo="a", seed=1, settings=FedSGDSettings(**values),
                    groups={"model": TensorGroup(initial_model(build, 3))}, build_model=build, image=FORM,
                    augmentation=AugmentationSettings(policy=policy))


def _train(task: SiloTask, data: SiloData = BOTH) -> Update:
    update, memory = FedSGDTrainer().train(task, data, None)
    assert memory is None
    return update


def _model(task: SiloTask) -> nn.Module:
    model = task.build_model()
    tensors.load_into(model, task.groups["model"].tensors)
    return model.train()


def _batch(images: ImageSet, kind: str, size: int) -> tuple[Tensor, Tensor]:
    """Indices and network inputs of the round's batch, without augmentation."""
    index = torch.randperm(len(images), generator=torch_generator(1, f"{kind}_order", round=1, silo="a"))[:size]
    return index, augment.to_input(images.images_NCHW[index], FORM)


def _assert_gradient(update: Update, model: nn.Module, loss: Tensor) -> None:
    parameters = dict(model.named_parameters())
    for (name, tensor), expected in zip(update.groups["gradient"].tensors.items(),
                                        torch.autograd.grad(loss, list(parameters.values())), strict=True):
        assert torch.allclose(tensor, expected, atol=1e-6), name


@pytest.mark.parametrize("mask_mean", ["batch", "kept"])
def test_the_gradient_of_fixmatch_over_labelled_and_unlabelled_images(mask_mean: str) -> None:
    """2 CE(labelled) + 3 mean 1(q >= 0.4) CE(argmax q), each batch normalised by its own statistics."""
    task = _task(lambda_s=2.0, lambda_u=3.0, mask_mean=mask_mean)
    update = _train(task)
    model = _model(task)
    assert BOTH.labelled is not None
    assert BOTH.labelled.labels_N is not None
    assert BOTH.unlabelled is not None
    index, x = _batch(BOTH.labelled, "labelled", 5)
    _, u = _batch(BOTH.unlabelled, "unlabelled", 8)
    logits = model(u)
    confidence, label = torch.softmax(logits.detach(), dim=1).max(dim=1)
    keep = confidence >= 0.4
    assert 0 < int(keep.sum()) < 8
    values = functional.cross_entropy(logits, label, reduction="none")[keep]
    unsupervised = values.sum() / 8 if mask_mean == "batch" else values.mean()
    supervised = functional.cross_entropy(model(x), BOTH.labelled.labels_N[index])
    _assert_gradient(update, model, 2 * supervised + 3 * unsupervised)
    assert update.metrics["label_ratio"] == float(keep.sum()) / 8
    assert update.metrics["labelled_loss"] == pytest.approx(float(supervised.detach()), abs=1e-6)
    assert update.metrics["unlabelled_loss"] == pytest.approx(float(unsupervised.detach()), abs=1e-6)
    assert update.metrics["loss"] == pytest.approx(float((2 * supervised + 3 * unsupervised).detach()), abs=1e-5)
    assert update.num_examples == 27
    assert all(is_declared(name, METHODS["fedsgd"].metrics) for name in update.metrics)


def test_one_step_with_the_gradient_is_what_central_descent_would_do() -> None:
    """The update of plain SGD from the received weights is -lr times what is sent."""
    task = _task(objective="sl", lambda_s=1.0)
    update = _train(task)
    model = _model(task)
    assert BOTH.labelled is not None
    assert BOTH.labelled.labels_N is not None
    index, x = _batch(BOTH.labelled, "labelled", 5)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    functional.cross_entropy(model(x), BOTH.labelled.labels_N[index]).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    received = task.groups["model"].tensors
    for name, weight in model.named_parameters():
        expected = received[name] - 0.5 * update.groups["gradient"].tensors[name]
        assert torch.allclose(weight.detach(), expected, atol=1e-6), name


def test_gradients_are_values_with_the_layout_of_the_model() -> None:
    task = _task()
    group = _train(task).groups["gradient"]
    assert group.meaning is METHODS["fedsgd"].up["gradient"] is Meaning.VALUES
    assert tensors.specs(group.tensors) == tensors.specs(task.groups["model"].tensors)


def test_with_labels_at_the_coordinator_only_the_unlabelled_term_counts() -> None:
    task = _task(scenario="labels-at-coordinator")
    alone, both = _train(task, SiloData(unlabelled=BOTH.unlabelled)), _train(task)
    assert tensors.digest(alone.groups["gradient"].tensors) == tensors.digest(both.groups["gradient"].tensors)
    assert "labelled_loss" not in both.metrics


def test_a_silo_with_only_one_kind_of_image_sends_the_gradient_of_that_term() -> None:
    """The two gradients add up to that of a silo with both, whose random streams are the same."""
    task = _task(policy="small")
    labelled, unlabelled = (_train(task, SiloData(**each)) for each in ({"labelled": BOTH.labelled},
                                                                       {"unlabelled": BOTH.unlabelled}))
    total = tensors.add(labelled.groups["gradient"].tensors, unlabelled.groups["gradient"].tensors)
    for name, tensor in _train(task).groups["gradient"].tensors.items():
        assert torch.allclose(tensor, total[name], atol=1e-6), name
    assert "label_ratio" not in labelled.metrics


def test_a_batch_without_confident_images_gives_zeros_and_is_sent() -> None:
    update = _train(_task(confidence_threshold=1.0), SiloData(unlabelled=BOTH.unlabelled))
    assert update.abstention == ""
    assert all(not tensor.any() for tensor in update.groups["gradient"].tensors.values())
    assert update.metrics["label_ratio"] == 0.0
    kept = _train(_task(confidence_threshold=1.0, mask_mean="kept"), SiloData(unlabelled=BOTH.unlabelled))
    assert all(not tensor.any() for tensor in kept.groups["gradient"].tensors.values())


def test_parameters_that_nothing_reaches_have_a_gradient_of_zero() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(16, 3), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x.flatten(1))
            return out

    gradient = _train(_task(Spare)).groups["gradient"].tensors
    assert not gradient["spare.weight"].any()
    assert gradient["used.weight"].any()


def test_another_round_draws_another_batch() -> None:
    first, second = (_train(_task(_plain_net, round=round)) for round in (1, 2))
    assert tensors.digest(first.groups["gradient"].tensors) != tensors.digest(second.groups["gradient"].tensors)


def test_uda_anneals_the_labelled_term_over_the_rounds() -> None:
    """In round 1 of 5 with "exp" only unlikely labels enter; in the last all do, as without annealing."""
    def labelled_loss(round: int, tsa: str) -> float:
        return _train(_task(_plain_net, objective="uda", tsa=tsa, round=round)).metrics["labelled_loss"]

    assert labelled_loss(5, "exp") == pytest.approx(labelled_loss(5, "none"), abs=1e-6)
    assert labelled_loss(1, "exp") != pytest.approx(labelled_loss(1, "none"), abs=1e-3)


def test_abstentions_say_why() -> None:
    assert _train(_task(), SiloData()).abstention == "no_data"
    assert _train(_task(objective="sl"), SiloData(unlabelled=BOTH.unlabelled)).abstention == "no_labelled_data"
    lonely = _train(_task(_flat_net), SiloData(unlabelled=_images(1)))
    assert (lonely.abstention, dict(lonely.groups)) == ("no_usable_batch", {})


def test_the_statistics_phase_and_an_unknown_one() -> None:
    update = _train(_task(phase="statistics"))
    assert set(update.groups) == {"batch_norm"}
    assert int(update.groups["batch_norm"].tensors["1.count"]) == 27 * 4, "labelled and unlabelled images"
    with pytest.raises(BadPayload, match="guessing"):
        _train(_task(phase="guessing"))


def test_a_gradient_that_is_not_finite_is_never_sent() -> None:
    task = _task(_plain_net)
    huge = {name: torch.full_like(tensor, 3e38) for name, tensor in task.groups["model"].tensors.items()}
    with pytest.raises(ComputeFailed):
        _train(replace(task, groups={"model": TensorGroup(huge)}))


def test_the_method_is_in_the_tables() -> None:
    assert load_trainer("fedsgd") is FedSGDTrainer
