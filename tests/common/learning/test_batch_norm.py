"""Static batch-norm: measured statistics equal their closed form, however the images are cut and spread."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadPayload, LayoutMismatch
from semisilo.common.learning import batch_norm
from semisilo.common.learning.batch_norm import LayerStatistics, OneValuePerChannel, StaticBatchNorm, StatisticsMissing
from tests.each_of import each_of

FORM = ImageForm(size=6, channels=1, mean=(0.4,), std=(0.2,))


def _images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count, 1, 6, 6), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def _generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class _Net(nn.Module):
    """A layer on the input and one behind a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = StaticBatchNorm(1)
        self.conv = nn.Conv2d(1, 3, 3)
        self.second = StaticBatchNorm(3)
        self.dropout = nn.Dropout(0.9)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.dropout(self.second(self.conv(self.first(images))))
        return hidden.mean(dim=(2, 3))


class _Through(nn.Module):
    """Sends the same values through a layer, whatever image comes."""

    def __init__(self, layer: nn.Module, values: torch.Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.values = values

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        through: torch.Tensor = self.layer(self.values)
        return through


def test_what_is_left_of_a_merge_without_one_of_its_parts() -> None:
    parts = [{"a": LayerStatistics(count, torch.randn(3, generator=_generator(index), dtype=torch.float64),
                                   torch.rand(3, generator=_generator(index + 9), dtype=torch.float64))}
             for index, count in enumerate((50.0, 7.0, 300.0))]
    merged = batch_norm.merge(parts)
    for gone in range(3):
        left = batch_norm.without(merged, parts[gone])["a"]
        wanted = batch_norm.merge([part for index, part in enumerate(parts) if index != gone])["a"]
        assert left.count == wanted.count
        assert torch.allclose(left.mean, wanted.mean, rtol=1e-12, atol=1e-12)
        assert torch.allclose(left.var, wanted.var, rtol=1e-10, atol=1e-12)
    assert batch_norm.without(parts[0], parts[0]) == {}


def test_oracle_s4_merge_of_three_parts() -> None:
    parts = [{"bn": LayerStatistics(float(n), torch.tensor([m], dtype=torch.float64),
                                    torch.tensor([v], dtype=torch.float64))}
             for n, m, v in ((4, 1.0, 0.5), (6, 2.0, 1.5), (2, -1.0, 2.0))]
    found = batch_norm.merge(parts)["bn"]
    assert found.count == 12.0
    assert found.mean.tolist() == pytest.approx([1.166667], abs=1e-5)
    assert found.var.tolist() == pytest.approx([2.242424], abs=1e-5)


def test_merging_parts_equals_measuring_the_whole() -> None:
    """mean and unbiased var of a sample do not depend on how it is cut; a part of one value has variance 0."""
    values = torch.randn(50, 4, dtype=torch.float64, generator=_generator()) * 3 + 7
    parts = [{"bn": LayerStatistics(float(len(part)), part.mean(0), part.var(0) if len(part) > 1 else part[0] * 0)}
             for part in values.split([1, 30, 2, 17])]
    found = batch_norm.merge(parts)["bn"]
    assert torch.allclose(found.mean, values.mean(0), atol=1e-12)
    assert torch.allclose(found.var, values.var(0), atol=1e-12)


def test_one_big_batch_gives_the_closed_form_at_every_layer() -> None:
    """With one batch the second layer sees the first's own normalisation, so plain torch can be asked for both."""
    torch.manual_seed(0)
    net, images = _Net(), _images(40)
    found = batch_norm.measure(net, images, form=FORM, generator=_generator())
    x = augment.to_input(images, FORM).double()
    normal = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
    hidden = nn.functional.conv2d(normal, net.conv.weight.double(), net.conv.bias.double())
    assert found["first"].count == 40 * 36
    assert found["second"].count == 40 * 16
    assert torch.allclose(found["first"].mean, x.mean(dim=(0, 2, 3)), atol=1e-6)
    assert torch.allclose(found["first"].var, x.var(dim=(0, 2, 3), correction=1), atol=1e-5)
    assert torch.allclose(found["second"].mean, hidden.mean(dim=(0, 2, 3)), atol=1e-5)
    assert torch.allclose(found["second"].var, hidden.var(dim=(0, 2, 3), correction=1), atol=1e-5)


@each_of("shape", [(40, 3), (40, 3, 9), (20, 3, 6, 7), (10, 3, 4, 5, 6)], ids=str)
@each_of("layout", ["as made", "channels last", "a part of another"])
def test_a_layer_measures_as_exactly_as_float32_holds_its_input(shape: tuple[int, ...], layout: str) -> None:
    """Also of a channel whose mean is large against its spread, whose squares alone would say nothing."""
    far_and_near = torch.tensor([3000.0, 0.0, -2.0]).reshape(1, 3, *(1,) * (len(shape) - 2))
    input = torch.randn(shape, generator=_generator()) * 0.1 + far_and_near
    if layout == "channels last" and len(shape) == 4:
        input = input.contiguous(memory_format=torch.channels_last)
    elif layout == "a part of another":
        input = torch.cat([input, input + 1])[:len(input)]
    layer, seen = StaticBatchNorm(3), list[torch.Tensor]()
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].double()))
    found = batch_norm.measure(_Through(layer, input), torch.zeros((1, 1, 6, 6), dtype=torch.uint8), form=FORM,
                               generator=_generator())["layer"]
    axes = [axis for axis in range(len(shape)) if axis != 1]
    assert found.count == input.numel() / 3
    assert torch.allclose(found.mean, seen[0].mean(axes), rtol=1e-7, atol=1e-7)
    assert torch.allclose(found.var, seen[0].var(axes), rtol=1e-6, atol=0)


def test_the_first_layer_does_not_depend_on_batches_or_order() -> None:
    net, images = _Net(), _images(101)
    whole = batch_norm.measure(net, images, form=FORM, generator=_generator(), batch_size=500)["first"]
    cut = batch_norm.measure(net, images, form=FORM, generator=_generator(9), batch_size=10)["first"]
    assert cut.count == whole.count
    assert torch.allclose(cut.mean, whole.mean, atol=1e-6)
    assert torch.allclose(cut.var, whole.var, atol=1e-5)


def test_the_first_layer_alone_is_measured_without_what_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    net, images = _Net(), _images(45)
    net.train()
    net.second.training = False
    whole = batch_norm.measure(net, images, form=FORM, generator=_generator())["first"]
    monkeypatch.setattr(net.conv, "forward", lambda input: pytest.fail("what is behind the layer is computed"))
    found = batch_norm.measure_first(net, images, form=FORM, batch_size=11)
    assert list(found) == ["first"]
    assert found["first"].count == whole.count
    assert torch.allclose(found["first"].mean, whole.mean)
    assert torch.allclose(found["first"].var, whole.var)
    assert (net.training, net.first.training, net.second.training) == (True, True, False)
    assert net.first._watch is None
    assert batch_norm.measure_first(nn.Flatten(), images, form=FORM) == {}


def test_of_layers_that_no_image_reaches_nothing_is_measured() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.aside, self.last = StaticBatchNorm(1), nn.Linear(36, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.last(images.flatten(1))
            return logits

    assert batch_norm.measure_first(Aside(), _images(4), form=FORM) == {}


def test_measuring_leaves_modes_weights_and_statistics_alone() -> None:
    net = _Net().train()
    net.second.eval()
    before = [parameter.clone() for parameter in net.parameters()]
    batch_norm.measure(net, _images(4), form=FORM, generator=_generator())
    assert net.training
    assert net.first.training
    assert not net.second.training
    assert net.first.mean is None
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_the_same_seed_measures_the_same_bits() -> None:
    net, images = _Net(), _images(60)
    one, two = (batch_norm.measure(net, images, form=FORM, generator=_generator(), batch_size=16) for _ in range(2))
    assert torch.equal(one["second"].var, two["second"].var)


def test_training_normalises_by_the_batch_and_keeps_nothing() -> None:
    layer = StaticBatchNorm(2)
    x = torch.randn(5, 2, 3, 3, generator=_generator())
    expected = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(layer(x), expected, atol=1e-5)
    assert layer.mean is None
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_inference_uses_the_loaded_statistics_and_the_affine_parameters() -> None:
    layer = nn.Sequential(StaticBatchNorm(2))
    with torch.no_grad():
        layer[0].weight.copy_(torch.tensor([2.0, 1.0]))
        layer[0].bias.copy_(torch.tensor([0.0, 5.0]))
    batch_norm.load(layer, {"0.mean": torch.tensor([1.0, -1.0]), "0.var": torch.tensor([4.0, 1.0])})
    found = layer.eval()(torch.tensor([[3.0, 0.0]]))
    assert found.tolist()[0] == pytest.approx([2.0 * (3 - 1) / (4 + 1e-5) ** 0.5, 5 + 1 / (1 + 1e-5) ** 0.5])


def test_inference_without_statistics_is_refused() -> None:
    with pytest.raises(StatisticsMissing):
        StaticBatchNorm(2).eval()(torch.zeros(3, 2))


def test_one_value_per_channel_is_a_condition_of_its_own_in_training_but_not_when_measuring() -> None:
    layer = StaticBatchNorm(2)
    with pytest.raises(OneValuePerChannel):
        layer(torch.zeros(1, 2))
    with pytest.raises(OneValuePerChannel):
        layer(torch.zeros(1, 2, 1, 1))
    layer(torch.zeros(1, 2, 2, 1))  # two values: fine

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = StaticBatchNorm(36)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.bn(images.flatten(1))
            return out

    found = batch_norm.measure(Flat(), _images(1), form=FORM, generator=_generator())["bn"]
    assert found.count == 1.0
    assert found.var.tolist() == [0.0] * 36


def test_a_last_batch_of_one_image_joins_the_batch_before() -> None:
    assert [(cut.start, cut.stop) for cut in batch_norm.batches(501, 250)] == [(0, 250), (250, 501)]
    assert [(cut.start, cut.stop) for cut in batch_norm.batches(502, 250)] == [(0, 250), (250, 500), (500, 502)]
    assert [(cut.start, cut.stop) for cut in batch_norm.batches(1, 250)] == [(0, 1)]
    assert [(cut.start, cut.stop) for cut in batch_norm.batches(3, 1)] == [(0, 1), (1, 3)]


def test_statistics_travel_with_counts_and_come_back() -> None:
    found = batch_norm.measure(_Net(), _images(20), form=FORM, generator=_generator())
    tensors = batch_norm.to_tensors(found, counts=True)
    assert list(tensors) == ["first.mean", "first.var", "first.count", "second.mean", "second.var", "second.count"]
    back = batch_norm.from_tensors(tensors)
    assert {name: layer.count for name, layer in back.items()} == {"first": 720.0, "second": 320.0}
    assert torch.allclose(back["second"].var, found["second"].var, atol=1e-6)


@each_of(("name", "tensor"), [
    ("bn.var", torch.tensor([-1e-3, 1.0])), ("bn.var", torch.tensor([float("nan"), 1.0])),
    ("bn.mean", torch.tensor([float("inf"), 1.0])), ("bn.count", torch.tensor([0])), ("bn.count", torch.tensor([-5])),
    ("bn.count", torch.tensor([2**62])), ("bn.count", torch.tensor([1, 2])), ("bn.var", torch.zeros(3)),
    ("stray", torch.zeros(2)), ("bn.extra", torch.zeros(2)),
])
def test_impossible_statistics_from_the_network_are_refused(name: str, tensor: torch.Tensor) -> None:
    good = {"bn.mean": torch.zeros(2), "bn.var": torch.ones(2), "bn.count": torch.tensor([3])}
    assert batch_norm.from_tensors(good)["bn"].count == 3.0
    with pytest.raises(BadPayload):
        batch_norm.from_tensors({**good, name: tensor})


def test_statistics_of_other_layers_are_refused_by_name() -> None:
    net, ones = nn.Sequential(StaticBatchNorm(2)), torch.ones(2)
    for tensors, says in (({}, "'0.mean' is missing"), ({"0.mean": ones}, "'0.var' is missing"),
                          ({"0.mean": ones, "0.var": torch.ones(3)}, "'0.var' must have 2 values"),
                          ({"0.mean": ones, "0.var": ones, "9.mean": ones}, "'9.mean' belongs to no layer")):
        with pytest.raises(LayoutMismatch, match=says):
            batch_norm.load(net, tensors)
    with pytest.raises(LayoutMismatch):
        batch_norm.merge([{"a": LayerStatistics(1.0, ones, ones)}, {"b": LayerStatistics(1.0, ones, ones)}])


@each_of(("kind", "expected"), [
    ("static_batch", StaticBatchNorm), ("group", nn.GroupNorm), ("layer", nn.GroupNorm), ("none", nn.Identity)])
def test_every_batch_norm_of_a_model_is_replaced(kind: batch_norm.Normalisation, expected: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 48, 3), nn.BatchNorm2d(48, eps=1e-3), nn.Sequential(nn.BatchNorm1d(48)))
    with torch.no_grad():
        model[1].weight.fill_(0.5)
    batch_norm.convert(model, kind)
    assert isinstance(model[1], expected)
    assert isinstance(model[2][0], expected)
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if kind == "static_batch":
        assert model[1].eps == 1e-3
    if kind != "none":
        assert model[1].weight.tolist() == [0.5] * 48


@each_of(("channels", "groups"), [(16, 16), (64, 32), (48, 24), (7, 7), (37, 1), (128, 32)])
def test_group_norm_has_32_groups_or_the_largest_divisor_below(channels: int, groups: int) -> None:
    layer = batch_norm.normalisation_layer("group", channels)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups
