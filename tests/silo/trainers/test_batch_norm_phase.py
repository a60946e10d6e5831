"""What a silo hands in where it only measures: its statistics, or moments around a reference."""

from __future__ import annotations

import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.averaging.moments import to_moments
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup
from semisilo.silo.trainers.batch_norm_phase import outside_training

IMAGES = ImageSet(torch.randint(0, 256, (9, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)),
                  labels_N=None, names=("",) * 9)
REFERENCE = {"1.mean": torch.tensor([0.5, -0.5]), "1.var": torch.tensor([2.0, 0.5])}


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), StaticBatchNorm(2))


def answer(phase: str, *, reference: bool) -> dict[str, torch.Tensor]:
    groups = {"model": TensorGroup(tensors.parameters_of(net_with_weights()))}
    if reference:
        groups["batch_norm"] = TensorGroup(REFERENCE)
    task = SiloTask(study="s", round=1, rounds=1, phase=phase, silo="a", seed=1, settings=None, groups=groups,
                    build_model=net, augmentation=AugmentationSettings(),
                    image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)))
    update = outside_training(task, SiloData(unlabelled=IMAGES), "This method")
    assert update is not None
    assert update.num_examples == 9
    return dict(update.groups["batch_norm"].tensors)


def net_with_weights() -> nn.Module:
    torch.manual_seed(0)
    return net()


def test_without_a_reference_statistics_leave_and_with_one_the_moments_around_it() -> None:
    plain = answer("statistics", reference=False)
    assert list(plain) == ["1.mean", "1.var", "1.count"]
    for phase in ("statistics", "first-statistics"):
        summed = answer(phase, reference=True)
        expected = to_moments(batch_norm.from_tensors(plain), REFERENCE)
        assert list(summed) == ["1.mean", "1.square"]
        assert all(tensor.dtype is torch.float32 for tensor in summed.values())
        assert all(torch.allclose(summed[name], expected[name], rtol=1e-5) for name in expected)
