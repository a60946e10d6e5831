"""SCAFFOLD's silo half: every gradient is corrected, and the control variate is the mean of the raw ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload, LayoutMismatch
from semisilo.common.learning import tensors
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.scaffold import ScaffoldSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.fedavg import FedAvgTrainer
from semisilo.silo.trainers.scaffold import ScaffoldMemory, ScaffoldTrainer
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int, *, labelled: bool = False) -> ImageSet:
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3 if labelled else None, tuple(map(str, range(count))))


DATA = SiloData(labelled=_images(12, labelled=True))
MODEL = initial_model(_net, 3)
C = {name: torch.full_like(tensor, 0.3) for name, tensor in MODEL.items()}
C_K = {name: torch.full_like(tensor, -0.2, dtype=torch.float64) for name, tensor in MODEL.items()}


def _train(memory: ScaffoldMemory | None = None, *, data: SiloData = DATA, control: Any = None, phase: str = "train",
           trainer: Any = None, **settings: Any) -> tuple[Update, Any]:
    groups = {"model": TensorGroup(MODEL)} | ({} if control is None else {"correction": TensorGroup(control)})
    values = {"lr": 0.1, "round_lr": 0.1, "lambda_s": 1.0, "labelled_batch": 12, "local_epochs": 3,
              "correction_epoch": 1, **settings}
    if values.get("objective", "sl") not in ("sl", "uda", "fixmatch"):
        del values["lambda_s"]
    task = SiloTask(study="s", round=2, rounds=5, phase=phase, silo="a", seed=1, build_model=_net,
                    settings=ScaffoldSettings(**values), groups=groups, image=FORM,
                    augmentation=AugmentationSettings(policy="none"))
    found: tuple[Update, Any] = (trainer or ScaffoldTrainer()).train(task, data, memory)
    return found


@pytest.mark.parametrize(("correction_round", "memory", "d"), [
    pytest.param(1, ScaffoldMemory(c=C_K, epoch=1, round=1), 0.5, id="c - c_k"),
    pytest.param(0, None, 0.3, id="a newcomer's c_k is 0"),
])
def test_three_full_batches_by_hand(correction_round: int, memory: ScaffoldMemory | None, d: float) -> None:
    """w -= lr (g + c - c_k), and afterwards c_k is the mean of the g."""
    update, keep = _train(memory, control=C, correction_round=correction_round)
    model = _net()
    tensors.load_into(model, MODEL)
    x, y = augment.to_input(DATA.labelled.images_NCHW, FORM), DATA.labelled.labels_N  # type: ignore[union-attr]
    raw = []
    for _ in range(3):
        gradients = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))  # type: ignore[arg-type]
        raw.append(gradients)
        with torch.no_grad():
            for w, gradient in zip(model.parameters(), gradients, strict=True):
                w -= 0.1 * (gradient + d)
    for index, (name, w) in enumerate(model.named_parameters()):
        assert torch.allclose(update.groups["model"].tensors[name], w.detach() - MODEL[name], atol=1e-6)
        mean = torch.stack([each[index] for each in raw]).mean(dim=0)
        assert torch.allclose(keep.c[name].float(), mean, atol=1e-5)
    assert (keep.epoch, keep.round, update.metrics["correction_lost"], update.metrics["steps"]) == (1, 2, 0.0, 3.0)
    check_metrics(METHODS["scaffold"], update.metrics, update=True)


def test_without_control_variates_it_is_fedavg_bit_for_bit() -> None:
    ours, theirs = _train()[0], _train(trainer=FedAvgTrainer())[0]
    assert tensors.digest(ours.groups["model"].tensors) == tensors.digest(theirs.groups["model"].tensors)


def test_the_reported_losses_are_without_the_correction() -> None:
    ours, theirs = _train(control=C, local_epochs=1)[0], _train(local_epochs=1)[0]
    assert ours.metrics["loss"] == theirs.metrics["loss"]
    assert tensors.digest(ours.groups["model"].tensors) != tensors.digest(theirs.groups["model"].tensors)


@each_of("memory", [
    None, ScaffoldMemory(c=C_K, epoch=0, round=1), ScaffoldMemory(c=C_K, epoch=1, round=0),
    ScaffoldMemory(c={name: tensor[:1] for name, tensor in C_K.items()}, epoch=1, round=1)],
    ids=["nothing", "older sum", "other round", "other model"])
def test_without_the_control_variate_that_is_in_the_sum_it_goes_without_and_says_so(
        memory: ScaffoldMemory | None) -> None:
    update, keep = _train(memory, control=C, correction_round=1)
    plain, fresh = _train()
    assert update.metrics["correction_lost"] == 1.0
    assert tensors.digest(update.groups["model"].tensors) == tensors.digest(plain.groups["model"].tensors)
    assert tensors.digest(keep.c) == tensors.digest(fresh.c)


def test_abstentions_leave_memory_as_it_is() -> None:
    memory = ScaffoldMemory(c=C_K, epoch=1, round=1)
    nothing, kept = _train(memory, data=SiloData(), control=C, correction_round=1)
    assert (nothing.abstention, kept) == ("no_data", memory)
    unsure, kept = _train(memory, data=SiloData(unlabelled=_images(9)), control=C, correction_round=1,
                          objective="fixmatch", mask_mean="kept", confidence_threshold=1.0)
    assert (unsure.abstention, kept) == ("no_confident_example", memory)
    check_metrics(METHODS["scaffold"], unsure.metrics, update=False)


def test_a_local_teacher_is_kept_beside_the_control_variate_and_survives_the_disk(tmp_path: Path) -> None:
    data = SiloData(labelled=DATA.labelled, unlabelled=_images(9))
    _, keep = _train(data=data, objective="mean_teacher", teacher="local", ema_decay=1.0)
    assert tensors.digest(keep.teacher) == tensors.digest(MODEL)
    checkpoint.save(tmp_path / "memory", keep)
    again = checkpoint.load(tmp_path / "memory", ScaffoldMemory)
    assert (again.epoch, again.round) == (keep.epoch, keep.round)
    assert tensors.digest(again.c) == tensors.digest(keep.c)


def test_a_correction_of_another_model_and_another_phase_are_refused() -> None:
    with pytest.raises(LayoutMismatch, match=r"1\.weight"):
        _train(control={name: tensor[:1] for name, tensor in C.items()})
    with pytest.raises(BadPayload, match="nonsense"):
        _train(phase="nonsense")


def test_the_trainer_is_found_by_name() -> None:
    assert load_trainer("scaffold") is ScaffoldTrainer
