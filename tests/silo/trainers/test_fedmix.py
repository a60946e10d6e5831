"""FedMix's silo half: labels from several views in every batch, the pull to sigma, and what is returned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload, ComputeFailed, LayoutMismatch
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods import METHODS, is_declared
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.fedmix import FedMixSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.numerics.passes import Descent
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.fedmix import FedMixTrainer
from tests.overflows import overflowing

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _plain_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int = 23, labels: Tensor | None = None) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, labels, tuple(str(index) for index in range(count)))


def _statistics(build: Any, w: dict[str, Tensor]) -> dict[str, Tensor]:
    model = build()
    tensors.load_into(model, w)
    found = batch_norm.measure(model, _images().images_NCHW, form=FORM, generator=torch.Generator().manual_seed(1))
    return batch_norm.to_tensors(found)


def _task(build: Any = _net, *, policy: Any = "none", phase: str = "train", sigma_shift: float = 0.0,
          progress: Any = None, round: int = 1, **settings: Any) -> SiloTask:
    w = initial_model(build, 3)
    sigma = {name: tensor + sigma_shift for name, tensor in w.items()}
    groups = {"model": TensorGroup(w), "sigma": TensorGroup(sigma)}
    if statistics := _statistics(build, w):
        groups["batch_norm"] = TensorGroup(statistics)
    values = {"confidence_threshold": 0.0, "round_lr": 0.03, "local_epochs": 2, "unlabelled_batch": 10, "num_views": 3,
              "lambda_1": 1.0, "lambda_2": 0.1, **settings}
    return SiloTask(study="s", round=round, rounds=5, phase=phase, silo="a", seed=1, settings=FedMixSettings(**values),
                    groups=groups, build_model=build, image=FORM, progress=progress,
                    augmentation=AugmentationSettings(policy=policy, horizontal_flip=policy != "none"))


def _train(task: SiloTask, images: ImageSet | None = None) -> Update:
    update, memory = FedMixTrainer().train(task, SiloData(unlabelled=_images() if images is None else images), None)
    assert memory is None
    return update


def test_training_is_the_specified_sequence_of_steps() -> None:
    """A plain reference: views from one generator, the next image to be learnt from another; labels of every batch in
    evaluation mode with the received statistics and the weights as they are; one forward pass; written-out descent."""
    task = _task(policy="small", sigma_shift=0.2, confidence_threshold=0.45, lambda_l1=0.01, momentum=0.5)
    update = _train(task)
    received, sigma = task.groups["model"].tensors, task.groups["sigma"].tensors
    model = _net()
    tensors.load_into(model, received)
    batch_norm.load(model, task.groups["batch_norm"].tensors)
    order, label_views, train_views = (torch_generator(1, purpose, round=1, silo="a")
                                       for purpose in ("local_order", "label_views", "local_views"))
    buffers = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    kept_of_epoch = [0, 0]
    for epoch in range(2):
        chosen = torch.randperm(23, generator=order)
        images = _images().images_NCHW[chosen]
        views = [augment.weak(images, task.augmentation, label_views) for _ in range(3)]
        learnt = augment.weak(images, task.augmentation, train_views)
        for start in range(0, 23, 10):
            batch = slice(start, start + 10)
            model.eval()
            with torch.no_grad():
                probs = [torch.softmax(model(augment.to_input(view[batch], FORM)), dim=1) for view in views]
            confidence, label = (torch.stack(probs).sum(dim=0) / 3).max(dim=1)
            kept = confidence >= 0.45
            kept_of_epoch[epoch] += int(kept.sum())
            model.train()
            parameters = dict(model.named_parameters())
            loss = torch.zeros(())
            for name, parameter in parameters.items():
                loss = loss + 0.1 * (sigma[name] - parameter).square().sum() + 0.01 * parameter.abs().sum()
            if kept.any():
                log_prob = torch.log_softmax(model(augment.to_input(learnt[batch], FORM)), dim=1)
                loss = loss - log_prob[kept, label[kept]].mean()
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            with torch.no_grad():
                for (name, weight), gradient in zip(parameters.items(), gradients, strict=True):
                    assert gradient is not None
                    buffers[name] = 0.5 * buffers[name] + gradient
                    weight.sub_(0.03 * buffers[name])
    assert 0 < kept_of_epoch[0] < 23
    for name, w in model.named_parameters():
        assert torch.allclose(update.groups["model"].tensors[name], w.detach() - received[name], atol=1e-5), name
    assert update.metrics["label_ratio"] == pytest.approx(kept_of_epoch[1] / 23)
    assert update.metrics["steps"] == 6


def test_an_update_is_a_difference_to_the_received_model() -> None:
    task = _task()
    update = _train(task)
    group = update.groups["model"]
    assert set(update.groups) == {"model"}
    assert group.meaning is METHODS["fedmix"].up["model"] is Meaning.DIFFERENCE
    assert group.base == tensors.digest(task.groups["model"].tensors)
    assert list(group.tensors) == list(task.groups["model"].tensors)
    assert update.num_examples == 23
    assert all(is_declared(name, METHODS["fedmix"].metrics) for name in update.metrics)


def test_when_nothing_is_confident_psi_is_pulled_to_sigma_alone_and_returned() -> None:
    """psi - sigma shrinks by 1 - 2 lr lambda_2 in each of 6 steps: 0.5 (1 - 2 * 0.03 * 2)^6."""
    update = _train(_task(confidence_threshold=1.0, lambda_2=2.0, lambda_l1=0.0, sigma_shift=0.5))
    moved = 0.5 * (1 - (1 - 2 * 0.03 * 2.0) ** 6)
    for name, tensor in update.groups["model"].tensors.items():
        assert torch.allclose(tensor, torch.full_like(tensor, moved), atol=1e-5), name
    assert update.abstention == ""
    assert update.metrics["label_ratio"] == 0.0
    assert update.metrics["unlabelled_loss"] == 0.0


def test_in_the_first_round_an_unconfident_silo_returns_the_model_it_was_sent() -> None:
    """sigma_0 = w_0, so the penalty is 0 as well; the difference is exact zeros, which cost nothing on the wire."""
    update = _train(_task(confidence_threshold=1.0, lambda_l1=0.0))
    assert all(not tensor.any() for tensor in update.groups["model"].tensors.values())
    assert update.metrics["sigma_distance"] == 0.0


def test_without_any_penalty_an_unconfident_silo_still_answers() -> None:
    update = _train(_task(confidence_threshold=1.0, lambda_2=0.0, lambda_l1=0.0))
    assert update.abstention == ""
    assert all(not tensor.any() for tensor in update.groups["model"].tensors.values())


def test_labels_follow_the_model_as_it_learns() -> None:
    """At a threshold that the received model never reaches, a long first epoch of learning is what changes labels; here
    the model is drawn to a sigma that is sure of one class, so the second epoch keeps images and the first none."""
    task = _task(_plain_net, lambda_2=5.0, lambda_l1=0.0, confidence_threshold=0.9, local_epochs=1, round_lr=0.05,
                 unlabelled_batch=23)
    sure = {name: torch.zeros_like(tensor) for name, tensor in task.groups["model"].tensors.items()}
    sure["1.bias"] = torch.tensor([0.0, 12.0, 0.0])
    task = replace(task, groups={**task.groups, "sigma": TensorGroup(sure)})
    once = _train(task)
    twice = _train(replace(task, settings=replace(task.settings, local_epochs=2)))
    assert once.metrics["label_ratio"] == 0.0
    assert twice.metrics["label_ratio"] == 1.0
    assert twice.metrics["pseudo_labels/1"] == 23


def test_truth_is_reported_and_never_learnt_from() -> None:
    truths = torch.arange(23) % 3, torch.zeros(23, dtype=torch.int64)
    plain, *told = (_train(_task(), _images(labels=labels)) for labels in (None, *truths))
    assert "pseudo_label_accuracy" not in plain.metrics
    assert all("pseudo_label_accuracy" in update.metrics for update in told)
    assert len({tensors.digest(update.groups["model"].tensors) for update in (plain, *told)}) == 1


def test_more_views_and_votes_change_what_is_learnt() -> None:
    """Controls: the settings reach the training. The weights are large, so that views of an image disagree."""
    settings: tuple[dict[str, Any], ...] = ({}, {"num_views": 1}, {"label_rule": "vote"}, {"lambda_1": 0.5},
                                            {"round": 2})
    digests = set()
    for values in settings:
        task = _task(_plain_net, policy="small", **values)
        loud = TensorGroup(tensors.scale(task.groups["model"].tensors, 20.0))
        update = _train(replace(task, groups={**task.groups, "model": loud}))
        digests.add(tensors.digest(update.groups["model"].tensors))
    assert len(digests) == 5


def test_thresholds_of_the_sparse_transfer_leave_out_what_is_small() -> None:
    dense = _train(_task(sigma_shift=0.1))
    sparse = _train(_task(sigma_shift=0.1, delta_thres=0.005))
    for name, tensor in dense.groups["model"].tensors.items():
        expected = torch.where(tensor.abs() > 0.005, tensor, 0.0)
        assert torch.equal(sparse.groups["model"].tensors[name], expected), name
    zeroed = _train(_task(sigma_shift=0.1, l1_thres=1e9))
    received = _task().groups["model"].tensors
    assert all(torch.equal(zeroed.groups["model"].tensors[name], -received[name]) for name in received)


def test_a_silo_without_images_abstains() -> None:
    for data in (SiloData(), SiloData(unlabelled=_images(0))):
        assert FedMixTrainer().train(_task(), data, None)[0].abstention == "no_data"


def test_a_batch_of_one_value_per_channel_is_skipped_and_alone_means_abstaining() -> None:
    """23 images in batches of 22 leave one behind, which this batch-norm cannot use."""
    update = _train(_task(_flat_net, unlabelled_batch=22))
    assert update.metrics["steps"] == 2
    lonely = _train(_task(_flat_net), _images(1))
    assert lonely.abstention == "no_usable_batch"
    assert not lonely.groups
    assert lonely.metrics["label_ratio"] == 1.0


def test_a_batch_that_overflows_is_no_step_and_alone_means_abstaining(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Descent, "gradients", overflowing(2))
    assert _train(_task()).metrics["steps"] == 4
    monkeypatch.setattr(Descent, "gradients", overflowing(6))
    assert _train(_task()).abstention == "no_usable_batch"


def test_the_statistics_phase_measures_the_model() -> None:
    task = _task(phase="statistics")
    update, _ = FedMixTrainer().train(replace(task, groups={"model": task.groups["model"]}),
                                      SiloData(unlabelled=_images()), None)
    found, expected = update.groups["batch_norm"].tensors, task.groups["batch_norm"].tensors
    assert all(torch.allclose(found[name], tensor, atol=1e-5) for name, tensor in expected.items())
    assert int(found["1.count"]) == 23 * 4


def test_an_unknown_phase_and_a_foreign_sigma_are_refused() -> None:
    with pytest.raises(BadPayload, match="guessing"):
        _train(_task(phase="guessing"))
    task = _task()
    foreign = TensorGroup({**task.groups["sigma"].tensors, "4.bias": torch.zeros(4)})
    with pytest.raises(LayoutMismatch, match=r"4\.bias"):
        _train(replace(task, groups={**task.groups, "sigma": foreign}))


def test_training_that_diverges_fails_and_says_what_to_do() -> None:
    with pytest.raises(ComputeFailed) as caught:
        _train(_task(sigma_shift=1.0, lambda_2=1e20, round_lr=1e10))
    assert "lr" in caught.value.remedy


def test_progress_rises_to_one_and_received_tensors_stay() -> None:
    seen: list[float] = []
    task = _task(progress=lambda share, text: seen.append(share))
    before = {name: tensors.digest(group.tensors) for name, group in task.groups.items()}
    _train(task)
    assert seen == sorted(seen)
    assert math.isclose(seen[-1], 1.0)
    assert {name: tensors.digest(group.tensors) for name, group in task.groups.items()} == before


def test_the_global_generator_has_no_say() -> None:
    digests = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        digests.add(tensors.digest(_train(_task(policy="small")).groups["model"].tensors))
    assert len(digests) == 1


def test_the_method_is_in_the_tables() -> None:
    assert load_trainer("fedmix") is FedMixTrainer
