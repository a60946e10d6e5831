"""Local-only training: the silo's own model goes on from round to round, and is told of in numbers alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.evaluation import evaluate
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.local import LocalSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.silo.trainers.local import LocalMemory, LocalTrainer

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _images(count: int, seed: int) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


DATA = SiloData(labelled=_images(12, 1), unlabelled=_images(26, 2), test=_images(20, 3))


def _train(memory: LocalMemory | None = None, *, round: int = 1, data: SiloData = DATA, phase: str = "train",
           **settings: Any) -> tuple[Update, LocalMemory | None]:
    values = {"round_lr": 0.1, "labelled_batch": 4, "momentum": 0.9, **settings}
    task = SiloTask(study="s", round=round, rounds=5, phase=phase, silo="a", seed=1, settings=LocalSettings(**values),
                    groups={"model": TensorGroup(initial_model(_net, 3))}, build_model=_net, image=FORM,
                    augmentation=AugmentationSettings(policy="none"))
    return LocalTrainer().train(task, data, memory)


def test_no_model_leaves_the_silo() -> None:
    update, _ = _train(objective="fixmatch")
    assert set(update.groups) == {"steps"}
    group = update.groups["steps"]
    assert group.meaning is Meaning.VALUES
    assert group.tensors["steps"].dtype == torch.int64
    assert group.tensors["steps"].tolist() == [3]
    check_metrics(METHODS["local"], update.metrics, update=True)


def test_rounds_are_one_descent() -> None:
    """SL on full batches without augmentation is deterministic descent: three rounds of one epoch are one round of
    three, momentum included."""
    memory = None
    for round in (1, 2, 3):
        _, memory = _train(memory, round=round, labelled_batch=12)
        assert memory is not None
        assert memory.round == round
    _, together = _train(local_epochs=3, labelled_batch=12)
    assert memory is not None
    assert together is not None
    for part in ("model", "momentum"):
        for name, tensor in getattr(together, part).items():
            assert torch.allclose(tensor, getattr(memory, part)[name], atol=1e-5), (part, name)


def test_accuracies_are_those_of_the_silos_own_model() -> None:
    update, memory = _train(objective="pseudo_label", round_lr=2.0, local_epochs=3)  # far from where it started
    assert memory is not None
    model = _net()
    tensors.load_into(model, memory.model)
    assert DATA.labelled is not None
    assert DATA.unlabelled is not None
    everything = torch.cat([DATA.labelled.images_NCHW, DATA.unlabelled.images_NCHW])
    found = batch_norm.measure(model, everything, form=FORM, generator=torch.Generator().manual_seed(1))
    batch_norm.load(model, batch_norm.to_tensors(found))
    assert DATA.test is not None
    assert update.metrics["local_accuracy"] == evaluate(model, DATA.test, form=FORM).accuracy
    assert update.metrics["local_labelled_accuracy"] == evaluate(model, DATA.labelled, form=FORM).accuracy


def test_without_a_test_set_only_the_labelled_images_tell() -> None:
    update, _ = _train(data=replace(DATA, test=None))
    assert "local_accuracy" not in update.metrics
    assert "local_labelled_accuracy" in update.metrics
    unlabelled_only, _ = _train(data=SiloData(unlabelled=_images(26, 2)), objective="pseudo_label")
    assert "local_labelled_accuracy" not in unlabelled_only.metrics


def test_lost_or_foreign_memory_starts_from_the_initial_model() -> None:
    _, first = _train()
    foreign = LocalMemory(round=1, model={"x": torch.ones(1)}, momentum={"x": torch.ones(1)})
    _, again = _train(foreign)
    assert first is not None
    assert again is not None
    assert tensors.digest(again.model) == tensors.digest(first.model)


def test_a_teacher_goes_on_with_the_model() -> None:
    settings: dict[str, Any] = {"objective": "mean_teacher", "teacher": "local", "ema_decay": 1.0}
    _, first = _train(**settings)
    _, second = _train(first, round=2, **settings)
    assert second is not None
    assert second.teacher is not None
    assert tensors.digest(second.teacher) == tensors.digest(initial_model(_net, 3))
    assert tensors.digest(second.model) != tensors.digest(second.teacher)


def test_memory_survives_the_disk(tmp_path: Path) -> None:
    _, memory = _train()
    assert memory is not None
    checkpoint.save(tmp_path / "m.safetensors", memory)
    again = checkpoint.load(tmp_path / "m.safetensors", LocalMemory)
    assert again.teacher is None
    assert tensors.digest(again.model) == tensors.digest(memory.model)


def test_abstentions_leave_memory_as_it_is_and_other_phases_are_refused() -> None:
    _, memory = _train()
    for data, reason in ((SiloData(), "no_data"), (SiloData(unlabelled=_images(3, 1)), "no_labelled_data")):
        update, kept = _train(memory, data=data)
        assert update.abstention == reason
        assert kept is memory
    with pytest.raises(BadPayload, match="statistics"):
        _train(phase="statistics")
