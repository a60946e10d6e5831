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


def _raised(net: nn.Module, images: ImageSet, of: Tensor) -> Tensor:
    """What the logits rise by from BEFORE to AFTER, images weighed by `of`."""
    logits = []
    for statistics in (BEFORE, AFTER):
        batch_norm.load(net.eval(), statistics)
        logits.append(logits_of(net, images.images_NCHW, FORM))
    return of @ (logits[1] - logits[0])


THREE = _labelled(torch.tensor([0, 0, 0, 1, 2, 2]))
ALIKE = torch.tensor([1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 6, 1 / 6])
"""Classes count alike."""
ALONG = torch.tensor([3.0, 1.0, 2.0]).log() - torch.tensor([3.0, 1.0, 2.0]).log().mean()


def test_offsets_are_what_logits_rise_by_along_the_label_shares_classes_counting_alike() -> None:
    net = _net(classes=3)
    raised_K, of_images_K = (_raised(net, THREE, of) for of in (ALIKE, torch.full((6,), 1 / 6)))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = class_offsets(net, THREE, FORM, before=BEFORE, after=AFTER, num_classes=3)
    assert list(found) == ["2.bias"]
    assert found["2.bias"].dtype == torch.float32
    expected_K = (raised_K @ ALONG) / (ALONG @ ALONG) * ALONG
    assert torch.allclose(found["2.bias"], expected_K, atol=1e-6)
    assert abs(float(of_images_K @ ALONG - raised_K @ ALONG)) > 1e-2, "classes count alike, not images"
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_what_other_devices_do_to_the_logits_across_the_label_shares_stays() -> None:
    net = _net(classes=3)
    raised_K = _raised(net, THREE, ALIKE)
    found = class_offsets(net, THREE, FORM, before=BEFORE, after=AFTER, num_classes=3)
    left_K = raised_K - found["2.bias"]
    assert float(left_K @ ALONG) == pytest.approx(0.0, abs=1e-5)
    assert float(left_K.std()) > 0.02
    batch_norm.load(net, AFTER)
    has_NK = logits_of(net, THREE.images_NCHW, FORM)
    net.load_state_dict(with_offsets(net.state_dict(), found, sign=-1.0))
    assert torch.allclose(logits_of(net, THREE.images_NCHW, FORM), has_NK - found["2.bias"], atol=1e-5)


def test_of_two_classes_all_that_no_softmax_sees_is_left() -> None:
    """By how much the first rises above the second is made up for in full, by whatever shares."""
    net = _net()
    raised_K = _raised(net, UNEVEN, torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 2]))
    found = class_offsets(net, UNEVEN, FORM, before=BEFORE, after=AFTER, num_classes=2)
    assert torch.allclose(found["2.bias"], raised_K - raised_K.mean(), atol=1e-6)
    assert abs(float(found["2.bias"][0])) > 0.01


def test_balanced_labels_have_no_shares_to_go_along() -> None:
    even = _labelled(torch.tensor([0, 1, 0, 1]))
    assert class_offsets(_net(), even, FORM, before=BEFORE, after=AFTER, num_classes=2) == {}


def test_a_class_without_labels_counts_as_one_of_one_image() -> None:
    net, labelled = _net(classes=3), _labelled(torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]))
    raised_K = _raised(net, labelled, torch.tensor([1 / 6] * 3 + [1 / 10] * 5))
    along_K = torch.tensor([3.0, 5.0, 1.0]).log()
    along_K -= along_K.mean()
    found = class_offsets(net, labelled, FORM, before=BEFORE, after=AFTER, num_classes=3)
    assert torch.allclose(found["2.bias"], (raised_K @ along_K) / (along_K @ along_K) * along_K, atol=1e-6)


def test_the_same_statistics_raise_nothing() -> None:
    found = class_offsets(_net(), UNEVEN, FORM, before=BEFORE, after=BEFORE, num_classes=2)
    assert found["2.bias"].tolist() == [0.0, 0.0]


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
