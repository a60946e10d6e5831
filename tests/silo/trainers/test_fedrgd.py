"""FedRGD's silo half: FixMatch with labels per batch from the model that the silo was sent, and its edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.methods import METHODS, is_declared
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup
from semisilo.common.methods.fedrgd import FedRGDSettings
from semisilo.common.models.factory import initial_model
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.fedrgd import FedRGDTrainer

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _images(count: int = 24, labels: Tensor | None = None) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, labels, tuple(str(index) for index in range(count)))


def _task(build: Any = _net, *, phase: str = "train", policy: Any = "none", **settings: Any) -> SiloTask:
    w = initial_model(build, 3)
    groups = {"model": TensorGroup(w)}
    model = build()
    tensors.load_into(model, w)
    if found := batch_norm.measure(model, _images().images_NCHW, form=FORM, generator=torch.Generator()):
        groups["batch_norm"] = TensorGroup(batch_norm.to_tensors(found))
    values = {"confidence_threshold": 0.4, "round_lr": 0.1, "unlabelled_batch": 8, "local_epochs": 2, **settings}
    return SiloTask(study="s", round=1, rounds=5, phase=phase, silo="a", seed=1, settings=FedRGDSettings(**values),
                    groups=groups, build_model=build, augmentation=AugmentationSettings(policy=policy), image=FORM)


def _train(task: SiloTask, data: SiloData | None = None) -> Any:
    return FedRGDTrainer().train(task, SiloData(unlabelled=_images()) if data is None else data, None)


def test_every_batch_is_labelled_by_the_model_as_it_is() -> None:
    """A plain reference without augmentation: q = softmax f(u) of the current weights, mean over the whole batch."""
    task = _task(momentum=0.5, weight_decay=0.01)
    update, memory = _train(task)
    received = task.groups["model"].tensors
    model = _net()
    tensors.load_into(model, received)
    x = augment.to_input(_images().images_NCHW, FORM)
    order = torch_generator(1, "unlabelled_order", round=1, silo="a")
    buffers = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    kept = []
    for _ in range(2):
        for batch in torch.split(torch.randperm(24, generator=order), 8):
            logits = model(x[batch])
            confidence, label = torch.softmax(logits.detach(), dim=1).max(dim=1)
            keep = (confidence >= 0.4).float()
            kept.append(float(keep.sum()))
            loss = -(keep * torch.log_softmax(logits, dim=1).gather(1, label[:, None]).squeeze(1)).sum() / 8
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for (name, weight), gradient in zip(model.named_parameters(), gradients, strict=True):
                    buffers[name] = 0.5 * buffers[name] + gradient + 0.01 * weight
                    weight.sub_(0.1 * buffers[name])
    assert 0 < sum(kept[:3]) < 24
    group = update.groups["model"]
    assert (group.meaning, group.base) == (Meaning.DIFFERENCE, tensors.digest(received))
    for name, weight in model.named_parameters():
        assert torch.allclose(group.tensors[name], weight.detach() - received[name], atol=1e-5), name
    assert update.metrics["label_ratio"] * 24 == sum(kept[3:])
    assert update.metrics["steps"] == 6
    assert memory is None
    assert all(is_declared(name, METHODS["fedrgd"].metrics) for name in update.metrics)


def test_a_silo_that_is_sure_of_nothing_answers_all_the_same() -> None:
    update, _ = _train(_task(confidence_threshold=1.0, weight_decay=0.0))
    assert update.abstention == ""
    assert all(not tensor.any() for tensor in update.groups["model"].tensors.values())
    assert update.metrics["label_ratio"] == 0.0


def test_labels_of_a_silo_are_never_learnt_from() -> None:
    """Neither a labelled set, which the scenario does not know, nor what a simulation knows of the unlabelled one."""
    plain, _ = _train(_task())
    told, _ = _train(_task(), SiloData(unlabelled=_images(labels=torch.arange(24) % 3),
                                       labelled=_images(12, labels=torch.zeros(12, dtype=torch.int64))))
    assert tensors.digest(plain.groups["model"].tensors) == tensors.digest(told.groups["model"].tensors)
    assert "pseudo_label_accuracy" in told.metrics


def test_abstentions_and_the_statistics_phase() -> None:
    assert _train(_task(), SiloData())[0].abstention == "no_data"
    assert _train(_task(_flat_net), SiloData(unlabelled=_images(1)))[0].abstention == "no_usable_batch"
    update, _ = _train(_task(_flat_net, phase="statistics"))
    assert set(update.groups) == {"batch_norm"}


def test_momentum_is_kept_where_the_settings_ask_for_it() -> None:
    first, memory = _train(_task(persist_local_momentum=True))
    assert memory is not None
    task = _task(persist_local_momentum=True)
    later = replace(task, round=2)
    fresh, _ = FedRGDTrainer().train(later, SiloData(unlabelled=_images()), None)
    carried, _ = FedRGDTrainer().train(later, SiloData(unlabelled=_images()), memory)
    assert first.abstention == ""
    assert tensors.digest(fresh.groups["model"].tensors) != tensors.digest(carried.groups["model"].tensors)


def test_the_method_is_in_the_tables() -> None:
    assert load_trainer("fedrgd") is FedRGDTrainer
