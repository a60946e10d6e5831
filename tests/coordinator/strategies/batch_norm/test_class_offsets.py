"""Offsets of batch-norm statistics: by hand, and on networks without a bias to put them into."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.evaluation import logits_of
from semisilo.coordinator.strategies.batch_norm.class_offsets import class_offsets, classifier_bias, with_offsets

FORM = ImageForm(size=2, channels=1, mean=(0.0,), std=(1.0,))


class _Doubled(nn.Module):
    """Whose logits move by twice what its bias is moved by."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = StaticBatchNorm(1), nn.Linear(4, 2)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return 2 * self.last(self.norm(images_BCHW).flatten(1))


class _Short(nn.Module):
    """As a network is at work in a short type (`semisilo.common.numerics.numerics`)."""

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self._dtype = net, dtype

    def forward(self, images_BCHW: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=self._dtype):
            logits_BK: Tensor = self.net(images_BCHW)
        return logits_BK.float()


def _net(*, bias: bool = True, classes: int = 2) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(StaticBatchNorm(1), nn.Flatten(), nn.Linear(4, classes, bias=bias))


def _labelled(labels: Tensor) -> ImageSet:
    pixels = torch.randint(0, 256, (len(labels), 1, 2, 2), generator=torch.Generator().manual_seed(2),
                           dtype=torch.uint8)
    return ImageSet(pixels, labels, tuple(map(str, range(len(labels)))))


def _statistics(mean: float, var: float) -> dict[str, Tensor]:
    return {"0.mean": torch.tensor([mean]), "0.var": torch.tensor([var])}


BEFORE, AFTER = _statistics(0.5, 0.1), _statistics(0.3, 0.4)
UNEVEN = _labelled(torch.tensor([0, 0, 0, 1]))


def test_offsets_are_the_mean_over_classes_of_what_the_logits_rise_by() -> None:
    """Three images of one class and one of the other weigh 1/6 and 1/2."""
    net = _net().eval()
    rises = []
    for statistics in (BEFORE, AFTER):
        batch_norm.load(net, statistics)
        rises.append(logits_of(net, UNEVEN.images_NCHW, FORM))
    rise_NK = rises[1] - rises[0]
    expected_K = rise_NK[:3].sum(dim=0) / 6 + rise_NK[3] / 2
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = class_offsets(net, UNEVEN, FORM, before=BEFORE, after=AFTER, num_classes=2)
    assert list(found) == ["2.bias"]
    assert found["2.bias"].dtype == torch.float32
    assert torch.allclose(found["2.bias"], expected_K, atol=1e-6)
    assert not torch.allclose(expected_K, rise_NK.mean(dim=0), atol=1e-2), "classes count alike, not images"
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_with_them_taken_out_the_mean_logits_of_the_classes_are_as_before() -> None:
    net = _net().eval()
    batch_norm.load(net, BEFORE)
    wanted_NK = logits_of(net, UNEVEN.images_NCHW, FORM)
    found = class_offsets(net, UNEVEN, FORM, before=BEFORE, after=AFTER, num_classes=2)
    net.load_state_dict(with_offsets(net.state_dict(), found, sign=-1.0))
    batch_norm.load(net, AFTER)
    has_NK = logits_of(net, UNEVEN.images_NCHW, FORM)
    wanted, has = (each[:3].mean(dim=0) + each[3] for each in (wanted_NK, has_NK))
    assert torch.allclose(wanted, has, atol=1e-5)
    assert not torch.allclose(wanted_NK, has_NK, atol=1e-2)


def test_the_same_statistics_raise_nothing() -> None:
    found = class_offsets(_net(), UNEVEN, FORM, before=BEFORE, after=BEFORE, num_classes=2)
    assert found["2.bias"].tolist() == [0.0, 0.0]


def test_under_statistics_to_which_the_images_are_foreign_nothing_is_taken_out() -> None:
    """Logits (-4 z, 4 z) of the normalised brightness z: bright is class 1."""
    head = nn.Linear(4, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[-1.0] * 4, [1.0] * 4]))
        head.bias.zero_()
    net = nn.Sequential(StaticBatchNorm(1), nn.Flatten(), head)
    pixels = torch.tensor([80, 90, 100, 170], dtype=torch.uint8).reshape(4, 1, 1, 1).expand(4, 1, 2, 2)
    images = ImageSet(pixels, torch.tensor([0, 0, 0, 1]), tuple("abcd"))
    own = _statistics(0.5, 0.02)
    losses = {}
    for mean in (0.5, 0.51, 0.52, 0.7):
        batch_norm.load(net.eval(), _statistics(mean, 0.02))
        loss_N = nn.functional.cross_entropy(logits_of(net, pixels, FORM), torch.tensor([0, 0, 0, 1]), reduction="none")
        losses[mean] = float(loss_N[:3].mean() / 2 + loss_N[3] / 2)
        found = class_offsets(net, images, FORM, before=own, after=_statistics(mean, 0.02), num_classes=2)
        assert bool(found) == (losses[mean] - losses[0.5] <= 0.05)
    assert losses[0.51] - losses[0.5] < 0.05 < losses[0.7] - losses[0.5], "a control"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_that_are_computed_in_16_bits_are_moved_as_well(dtype: torch.dtype) -> None:
    net = _Short(_net(classes=10), dtype)
    statistics = [{f"net.{name}": tensor for name, tensor in each.items()} for each in (BEFORE, AFTER)]
    with torch.no_grad():
        net.get_parameter("net.2.bias").add_(11.3)  # where they are coarse, and grow coarser
    assert list(class_offsets(net, UNEVEN, FORM, before=statistics[0], after=statistics[1], num_classes=10)) \
        == ["net.2.bias"]


@pytest.mark.parametrize(("net", "name"), [
    (_net(), "2.bias"), (_net(bias=False), None), (_net(classes=3), None), (nn.Sequential(nn.Flatten()), None),
    (nn.Linear(4, 2), "bias")], ids=["last", "no bias", "other classes", "not linear", "alone"])
def test_the_bias_is_that_of_the_last_linear_layer_with_one_for_every_class(net: nn.Module, name: str | None) -> None:
    assert classifier_bias(net, 2) == name


def test_where_no_bias_moves_the_logits_as_it_is_moved_nothing_is_taken_out() -> None:
    statistics = [{f"norm.{name[2:]}": tensor for name, tensor in each.items()} for each in (BEFORE, AFTER)]
    assert classifier_bias(_Doubled(), 2) == "last.bias"
    assert class_offsets(_Doubled(), UNEVEN, FORM, before=statistics[0], after=statistics[1], num_classes=2) == {}
    frozen = _net()
    frozen.get_parameter("2.bias").requires_grad_(False)
    assert class_offsets(frozen, UNEVEN, FORM, before=BEFORE, after=AFTER, num_classes=2) == {}
    assert class_offsets(_net(bias=False), UNEVEN, FORM, before=BEFORE, after=AFTER, num_classes=2) == {}
