"""Networks against the specification's counts and initialisation, and every way a name can be wrong."""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, NotPermitted, UnknownName
from semisilo.common.learning import batch_norm
from semisilo.common.learning.batch_norm import Normalisation, StaticBatchNorm
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.alexnet_like import AlexNetLike
from semisilo.common.models.cnn13 import CNN13
from semisilo.common.models.factory import (
    build_model,
    check_answers,
    check_model,
    check_what_is_kept,
    initial_model,
    model_builder,
)
from semisilo.common.models.mlp_5000 import MLP5000
from semisilo.common.models.resnet9 import ResNet9
from semisilo.common.models.starting_point import starting_point
from semisilo.common.models.wide_resnet import WideResNet28
from tests.each_of import each_of

CLASSES = tuple(f"class {index}" for index in range(10))


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("widen", "classes", "parameters"), [
    (2, 10, 1_467_610), (2, 100, 1_479_220), (8, 100, 23_401_012), (8, 10, 23_354_842)])
def test_wide_resnet_has_the_published_number_of_parameters(widen: int, classes: int, parameters: int) -> None:
    with torch.device("meta"):
        assert _count(WideResNet28(widen=widen, num_classes=classes)) == parameters


def test_wide_resnet_28_2_has_the_published_blocks_layers_and_tensors() -> None:
    model = WideResNet28(widen=2, num_classes=10)
    blocks = [_count(block) for block in model.blocks]
    assert blocks == [14_432, 18_560, 18_560, 18_560, 57_536, *[73_984] * 3, 229_760, *[295_424] * 3]
    assert (_count(model.stem), _count(model.norm), _count(model.classifier)) == (432, 256, 1_290)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == 28
    layers = [module for module in model.modules() if isinstance(module, StaticBatchNorm)]
    assert (len(layers), sum(layer.num_features for layer in layers)) == (25, 1_808)
    assert len(list(model.parameters())) == 80


@pytest.mark.slow
@pytest.mark.parametrize("normalisation", ["static_batch", "group", "layer", "none"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_wide_resnet_writes_over_nothing_that_its_backward_pass_needs(normalisation: Normalisation,
                                                                       precision: torch.dtype) -> None:
    """Against the same equations without a tensor that is written over. Without normalisation, what is activated is
    the block's own input, which the shortcut needs."""
    def plain(block: nn.Module, x_BCHW: torch.Tensor) -> torch.Tensor:
        h_BCHW = functional.relu(block.norm1(x_BCHW))
        y_BCHW = block.conv2(functional.relu(block.norm2(block.conv1(h_BCHW))))
        return (x_BCHW if block.shortcut is None else block.shortcut(h_BCHW)) + y_BCHW

    torch.manual_seed(1)
    model = WideResNet28(widen=1, num_classes=3, normalisation=normalisation)
    images_BCHW = torch.randn(4, 3, 8, 8)
    found = []
    for ours in (True, False):
        with torch.autocast("cpu", dtype=precision, enabled=precision is not torch.float32):
            if ours:
                logits_BK = model(images_BCHW)
            else:
                x_BCHW = model.stem(images_BCHW)
                for block in model.blocks:
                    x_BCHW = plain(block, x_BCHW)
                logits_BK = model.classifier(functional.relu(model.norm(x_BCHW)).mean(dim=(2, 3)))
        gradients = torch.autograd.grad(logits_BK.float().square().sum(), list(model.parameters()))
        found.append((logits_BK, *gradients))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_wide_resnet_28_8_has_the_published_batch_norm_channels() -> None:
    with torch.device("meta"):
        model = WideResNet28(widen=8, num_classes=100)
        blocks = [_count(block) for block in model.blocks]
    assert sum(m.num_features for m in model.modules() if isinstance(m, StaticBatchNorm)) == 7_184
    assert blocks == [168_224, *[295_424] * 3, 918_272, *[1_180_672] * 3, 3_671_552, *[4_720_640] * 3]


def test_wide_resnet_starts_with_the_specified_statistics() -> None:
    """std sqrt(2 / (area * out)) and mean 0: for n normal values the sample std has relative error 1/sqrt(2n), so five
    of those is a bound that a right initialisation passes and one with fan-in fails."""
    torch.manual_seed(1)
    model = WideResNet28(widen=2, num_classes=10)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            n = module.weight.numel()
            std = math.sqrt(2 / (module.kernel_size[0] * module.kernel_size[1] * module.out_channels))
            assert abs(float(module.weight.detach().std()) / std - 1) < 5 / math.sqrt(2 * n)
            assert abs(float(module.weight.detach().mean())) < 5 * std / math.sqrt(n)
        if isinstance(module, StaticBatchNorm):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()
    assert model.classifier.bias.eq(0).all()
    bound = 1 / math.sqrt(128)
    assert float(model.classifier.weight.detach().abs().max()) <= bound
    assert float(model.classifier.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.08)


def test_the_shortcut_convolution_takes_the_activated_input_and_a_plain_block_the_raw_one() -> None:
    """With the residual branch silenced, a first block gives conv1x1(relu(bn(x))), another block gives x itself."""
    torch.manual_seed(0)
    model = WideResNet28(widen=2, num_classes=10)
    first, second = model.blocks[0], model.blocks[1]
    for block in (first, second):
        nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 16, 8, 8)
    normal = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(first(x), nn.functional.conv2d(normal.relu(), first.shortcut.weight), atol=1e-5)
    y = torch.randn(2, 32, 8, 8)
    assert torch.equal(second(y), y)


@each_of(("name", "channels", "size", "normalisation", "parameters"), [
    ("wide_resnet_28_2", 3, 32, "auto", 1_467_610),
    ("resnet9", 3, 32, "auto", 6_568_640),
    ("resnet9", 3, 32, "static_batch", 6_573_120),
    ("alexnet_like", 3, 32, "auto", 12_815_818),
    ("alexnet_like", 1, 28, "none", 9_143_754),
    ("mlp_5000", 1, 28, "auto", 3_975_010),
    ("cnn13", 3, 32, "auto", 3_123_850),
    ("cnn13_no_bias", 3, 32, "auto", 3_121_802),
    ("cnn13", 3, 32, "group", 3_123_850),
    ("cnn13", 3, 32, "none", 3_123_850 - 2 * 2_048),
])
def test_the_networks_of_the_papers_have_their_numbers_of_parameters(
        name: str, channels: int, size: int, normalisation: str, parameters: int) -> None:
    settings = ModelSettings(name=name, classes=CLASSES, normalisation=normalisation)  # type: ignore[arg-type]
    with torch.device("meta"):
        assert _count(build_model(settings, channels=channels, size=size)) == parameters


@pytest.mark.slow
@pytest.mark.parametrize(("name", "channels", "size"), [
    ("resnet9", 1, 32), ("alexnet_like", 1, 8),
    *(pytest.param("alexnet_like", *each, marks=pytest.mark.slow) for each in ((3, 32), (1, 12), (1, 28))),
    ("mlp_5000", 1, 28), ("mlp_5000", 3, 8), ("cnn13", 3, 32), ("cnn13", 1, 28), ("cnn13_no_bias", 3, 12)])
def test_the_networks_of_the_papers_take_their_images(name: str, channels: int, size: int) -> None:
    form = ImageForm(size=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)  # type: ignore[arg-type]
    assert check_model(model_builder(ModelSettings(name=name, classes=CLASSES), form), form, 10) > 100_000


@each_of(("name", "size", "fits"), [
    ("resnet9", 28, "32x32"), ("resnet9", 64, "32x32"), ("alexnet_like", 7, "at least 8x8"),
    ("cnn13", 8, "at least 12x12")])
def test_a_network_of_a_paper_names_the_image_size_that_fits(name: str, size: int, fits: str) -> None:
    with pytest.raises(BadConfiguration) as caught:
        build_model(ModelSettings(name=name, classes=CLASSES), channels=3, size=size)
    assert fits in caught.value.text
    assert f"{size}x{size}" in caught.value.text
    assert "size = 32" in caught.value.remedy


@each_of(("name", "kind"), [
    ("resnet9", "none"), ("alexnet_like", "none"), ("mlp_5000", "none"), ("cnn13", "static_batch"),
    ("cnn13_no_bias", "static_batch"), ("small_cnn", "static_batch"), ("wide_resnet_28_2", "static_batch"),
    ("resnet18", "static_batch"), ("hospital_nets:tiny", "static_batch")])
def test_normalisation_is_what_the_networks_paper_has_unless_the_study_says_otherwise(name: str, kind: str) -> None:
    assert ModelSettings(name=name).normalisation_layers == kind
    assert ModelSettings(name=name, normalisation="group").normalisation_layers == "group"


@pytest.mark.parametrize("name", ["resnet9", "cnn13"])
@pytest.mark.parametrize("kind", ["static_batch", "group", "layer", "none"])
def test_a_network_with_a_place_for_normalisation_takes_any(name: str, kind: str) -> None:
    settings = ModelSettings(name=name, classes=CLASSES, normalisation=kind)  # type: ignore[arg-type]
    with torch.device("meta"):
        model = build_model(settings, channels=3, size=32)
    num_convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    kinds = {"static_batch": StaticBatchNorm, "group": nn.GroupNorm, "layer": nn.GroupNorm, "none": nn.Identity}
    assert sum(isinstance(module, kinds[kind]) for module in model.modules()) == num_convolutions


@each_of(("name", "kind"), [
    ("alexnet_like", "static_batch"), ("mlp_5000", "group"), ("vit_b_16", "static_batch"), ("alexnet", "layer")])
def test_normalisation_that_a_network_has_no_place_for_is_refused(name: str, kind: str) -> None:
    settings = ModelSettings(name=name, classes=CLASSES, normalisation=kind)  # type: ignore[arg-type]
    with torch.device("meta"), pytest.raises(BadConfiguration, match="has no effect") as caught:
        build_model(settings, channels=3, size=64)
    assert name in caught.value.text
    assert kind in caught.value.text


@pytest.mark.slow
def test_resnet9_computes_its_table() -> None:
    """The layers of models.md applied one by one with plain functions."""
    torch.manual_seed(0)
    model = ResNet9(num_classes=10)
    weights = [parameter for name, parameter in model.named_parameters() if not name.startswith("classifier")]
    assert [tuple(w.shape[:2]) for w in weights] == [
        (64, 3), (128, 64), (128, 128), (128, 128), (256, 128), (512, 256), (512, 512), (512, 512)]
    assert not any("bias" in name for name, _ in model.named_parameters())
    functional = nn.functional

    def conv(x: torch.Tensor, number: int) -> torch.Tensor:
        return functional.conv2d(x, weights[number - 1], padding=1).relu()

    x = images = torch.randn(2, 3, 32, 32)
    x = functional.max_pool2d(conv(conv(x, 1), 2), 2)
    x = x + conv(conv(x, 3), 4)
    x = functional.max_pool2d(conv(x, 5), 2)
    x = functional.max_pool2d(conv(x, 6), 2)
    x = x + conv(conv(x, 7), 8)
    x = functional.max_pool2d(x, 4)
    assert x.shape == (2, 512, 1, 1)
    assert torch.allclose(model(images), x.flatten(1) @ model.classifier.weight.T, atol=1e-5)


def test_an_even_kernel_pads_one_more_on_the_right_and_below() -> None:
    """A 4x4 kernel has one pixel of padding before and two after, so its entry (1, 1) lies on the output's own pixel; a
    2x2 kernel has none before and one after."""
    model = AlexNetLike(num_classes=10, channels=1, size=8)
    pads = [module for module in model.features if isinstance(module, nn.ZeroPad2d)]
    assert [pad.padding for pad in pads] == [(1, 2, 1, 2), (1, 1, 1, 1), (0, 1, 0, 1)]
    first = model.features[1]
    with torch.no_grad():
        first.weight.zero_()
        first.weight[:, :, 1, 1] = 1.0
    image = torch.rand(1, 1, 8, 8)
    assert torch.equal(first(pads[0](image))[:, :1], image), "the kernel's entry (1, 1) is the pixel itself"
    assert model.features[:4](image).shape == (1, 64, 4, 4)


def test_alexnet_like_flattens_to_the_published_sizes() -> None:
    with torch.device("meta"):
        assert AlexNetLike(num_classes=10).classifier[0].in_features == 4096
        assert AlexNetLike(num_classes=10, channels=1, size=28).classifier[0].in_features == 2304
        weights = [p for name, p in AlexNetLike(num_classes=10).named_parameters() if name.endswith("weight")]
    assert sum(weight.numel() for weight in weights) == 12_811_264, "without biases"


def test_cnn13_has_the_published_layers() -> None:
    model = CNN13(num_classes=10, bias=False)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [module.weight.numel() for module in convolutions] == [
        3_456, 147_456, 147_456, 294_912, 589_824, 589_824, 1_179_648, 131_072, 32_768]
    assert sum(m.num_features for m in model.modules() if isinstance(m, StaticBatchNorm)) == 2_048
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == [0.5, 0.5]
    assert {module.negative_slope for module in model.modules() if isinstance(module, nn.LeakyReLU)} == {0.1}
    kinds = [type(module).__name__ for module in model.features]
    unit = ["Conv2d", "StaticBatchNorm", "LeakyReLU"]
    assert kinds == [*unit * 3, "MaxPool2d", "Dropout", *unit * 3, "MaxPool2d", "Dropout", *unit * 3]
    model.train()
    sizes = [model.features[:stage](torch.randn(2, 3, 32, 32)).shape[2:] for stage in (11, 22, 25, 31)]
    assert [tuple(size) for size in sizes] == [(16, 16), (8, 8), (6, 6), (6, 6)]


@pytest.mark.slow
@pytest.mark.parametrize(("network", "channels", "size"), [(ResNet9, 3, 32), (AlexNetLike, 1, 8)])
def test_networks_of_fedmatch_start_by_variance_scaling(network: type[nn.Module], channels: int, size: int) -> None:
    """Variance 1 / fan-in after cutting at two sigmas of 1 / sqrt(fan-in) / 0.87962566. Of n values the sample variance
    has a relative error below sqrt(2 / n) (less, the tails being cut), so five of those are allowed."""
    torch.manual_seed(3)
    model = network(num_classes=10, channels=channels, size=size)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            weight = module.weight.detach().double()
            n, fan_in = weight.numel(), weight[0].numel()
            sigma = math.sqrt(1 / fan_in) / 0.87962566
            assert abs(float(weight.square().mean()) * fan_in - 1) < 5 * math.sqrt(2 / n)
            assert 1.9 * sigma < float(weight.abs().max()) <= 2 * sigma * (1 + 1e-6)
            assert abs(float(weight.mean())) < 5 / math.sqrt(n * fan_in)
            assert module.bias is None or bool(module.bias.eq(0).all())


def test_mlp_5000_starts_as_torch_does() -> None:
    torch.manual_seed(4)
    model = MLP5000(num_classes=10)
    torch.manual_seed(4)
    hidden, last = nn.Linear(784, 5000), nn.Linear(5000, 10)
    assert torch.equal(model.hidden.weight, hidden.weight)
    assert torch.equal(model.classifier.bias, last.bias)
    images = torch.randn(2, 1, 28, 28)
    assert torch.allclose(model(images), last(hidden(images.reshape(2, 784)).clamp(min=0)))


@pytest.mark.parametrize("name", [
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet9", "alexnet_like")), "mlp_5000", "cnn13"])
def test_a_network_of_a_paper_follows_from_the_seed(name: str) -> None:
    size = 32 if name == "resnet9" else 12
    form = ImageForm(size=size, channels=1, mean=(0.5,), std=(0.5,))
    builder = model_builder(ModelSettings(name=name, classes=CLASSES), form)
    one, again, other = (initial_model(builder, seed) for seed in (7, 7, 8))
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not any(torch.equal(one[key], other[key]) for key in one if one[key].dim() > 1)


@each_of(("size", "channels"), [(4, 1), (8, 1), (13, 3), (28, 1), (32, 3), (64, 3)])
def test_small_cnn_takes_small_images_of_any_size(size: int, channels: int) -> None:
    form = ImageForm(size=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)  # type: ignore[arg-type]
    parameters = check_model(model_builder(ModelSettings(classes=CLASSES), form), form, 10)
    assert 10_000 < parameters < 500_000


@pytest.mark.parametrize("kind", ["static_batch", "group", "layer", "none"])
def test_every_normalisation_builds_and_trains(kind: batch_norm.Normalisation) -> None:
    for name in ("small_cnn", "wide_resnet_28_2"):
        model = build_model(ModelSettings(name=name, classes=CLASSES, normalisation=kind), channels=1, size=8)
        assert bool(batch_norm.layers_of(model)) is (kind == "static_batch")
        model.train()(torch.randn(2, 1, 8, 8)).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_torchvision_network_gets_the_studys_head_and_static_batch_norm() -> None:
    """torchvision's ResNet-18 has 11,176,512 parameters besides its head of 513 per class."""
    with torch.device("meta"):
        model = build_model(ModelSettings(name="resnet18", classes=CLASSES[:7]), channels=3, size=32)
    assert _count(model) == 11_176_512 + 513 * 7
    assert len(batch_norm.layers_of(model)) == 20
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


@pytest.mark.slow
def test_a_grey_image_enters_as_the_repeated_image_would() -> None:
    settings = ModelSettings(name="resnet18", classes=CLASSES)
    torch.manual_seed(5)
    colour = build_model(settings, channels=3, size=32)
    torch.manual_seed(5)
    grey = build_model(settings, channels=1, size=32)
    x = torch.randn(3, 1, 32, 32, dtype=torch.float64)  # the order of sums is the machine's
    assert torch.allclose(grey.double()(x), colour.double()(x.expand(-1, 3, -1, -1)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("mobilenet_v3_small", 32), ("vit_b_16", 32), ("googlenet", 32)])
def test_other_kinds_of_torchvision_networks_fit_the_study(name: str, size: int) -> None:
    form = ImageForm(size=size, channels=1, mean=(0.5,), std=(0.5,))
    assert check_model(model_builder(ModelSettings(name=name, classes=CLASSES), form), form, 10) > 10_000


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("alexnet", 8), ("vit_b_16", 20), ("inception_v3", 16)])
def test_a_network_that_does_not_fit_the_images_is_refused_in_one_line(name: str, size: int) -> None:
    form = ImageForm(size=size, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(BadConfiguration, match=f"{size}x{size}") as caught:
        check_model(model_builder(ModelSettings(name=name, classes=CLASSES), form), form, 10)
    assert "\n" not in caught.value.line()
    assert caught.value.remedy


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no model 'wide_resnet_28_3'") as caught:
        build_model(ModelSettings(name="wide_resnet_28_3", classes=CLASSES), channels=3, size=32)
    assert "wide_resnet_28_" in caught.value.remedy
    with pytest.raises(UnknownName) as caught:
        build_model(ModelSettings(name="resnet8", classes=CLASSES), channels=3, size=32)
    assert "Did you mean 'resnet18'?" in caught.value.remedy


def test_fewer_than_two_classes_are_refused() -> None:
    with pytest.raises(BadConfiguration, match="at least 2 classes"):
        build_model(ModelSettings(classes=("only",)), channels=1, size=8)


@pytest.fixture
def hospital(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    module = types.ModuleType("hospital_nets")

    def tiny(*, num_classes: int, channels: int, size: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 12), nn.BatchNorm1d(12),
                             nn.Linear(12, num_classes))

    def wrong_size(**_: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(5, 5))

    def wrong_head(*, channels: int, size: int, **_: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 99))

    def not_a_module(**_: int) -> str:
        return "a network, honestly"

    def breaks(**_: int) -> nn.Module:
        raise RuntimeError("first line\nsecond line")

    def ends_the_process(**_: int) -> nn.Module:
        return sys.exit(2)  # as argparse does at a command line that is not a script's own

    def of_another_type(*, channels: int, size: int, num_classes: int) -> nn.Module:
        torch.set_default_dtype(torch.float64)  # some files do, and nobody sets it back
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, num_classes))

    def scripted(*, channels: int, size: int, num_classes: int) -> nn.Module:
        return torch.jit.ScriptModule()  # type: ignore[no-untyped-call]

    def half(*, channels: int, size: int, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, num_classes)).half()

    def like_ctrl_c(**_: int) -> nn.Module:
        raise KeyboardInterrupt

    class Ends(nn.Module):
        def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
            return sys.exit(3)

    def ends_when_called(**_: int) -> nn.Module:
        return nn.Sequential(Ends())

    for function in (tiny, wrong_size, wrong_head, not_a_module, breaks, ends_the_process, of_another_type, half,
                     like_ctrl_c, ends_when_called, scripted):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "hospital_nets", module)
    yield module
    torch.set_default_dtype(torch.float32)


def test_a_permitted_factory_is_called_and_its_batch_norm_replaced(hospital: types.ModuleType) -> None:
    name = "hospital_nets:tiny"
    model = build_model(ModelSettings(name=name, classes=CLASSES), channels=1, size=8, allow_factories=[name])
    assert _count(model) == 64 * 12 + 12 + 24 + 12 * 10 + 10
    assert list(batch_norm.layers_of(model)) == ["2"]


def test_a_factory_that_is_not_listed_is_not_even_imported() -> None:
    with pytest.raises(NotPermitted, match="'antigravity:fly' is not permitted"):
        build_model(ModelSettings(name="antigravity:fly", classes=CLASSES), channels=1, size=8,
                    allow_factories=["hospital_nets:tiny"])
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(("function", "says"), [
    ("absent", "failed: AttributeError"), ("not_a_module", "returned str"), ("breaks", "RuntimeError: first line."),
    ("ends_the_process", "failed: SystemExit: 2"), ("like_ctrl_c", r"failed: KeyboardInterrupt\."),
    ("ends_when_called", "cannot take images of 1x8x8: SystemExit: 3"),
    ("of_another_type", "which are float32: its parameter '1.weight' is float64"),
    ("half", r"which are float32: its parameter '1.weight' is float16: .* Leave out .half\(\)"),
    ("scripted", "returned a network of TorchScript"),
    ("wrong_size", "cannot take images of 1x8x8"), ("wrong_head", r"\(2, 99\)")])
def test_a_bad_factory_is_refused_in_one_line(hospital: types.ModuleType, function: str, says: str) -> None:
    name, form = f"hospital_nets:{function}", ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    with pytest.raises(BadConfiguration) as caught:
        check_model(model_builder(ModelSettings(name=name, classes=CLASSES), form, [name]), form, 10)
    assert re.search(says, caught.value.line())
    assert "\n" not in caught.value.line()
    assert ("larger image size" in caught.value.remedy) is (function in ("wrong_size", "ends_when_called"))


class Keeps(nn.Module):
    """A network that keeps a tensor besides what it learns, as `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(64, 10)
        fixed = torch.eye(64)
        fixed[0, 1] = torch.nan
        drawn = torch.randn(64, 64)
        self.made: Tensor | None
        if how == "drawn buffer":
            self.register_buffer("basis", drawn)
        elif how == "drawn tensor":
            self.basis = drawn
        elif how == "drawn parameter":
            self.basis = nn.Parameter(drawn, requires_grad=False)
        else:
            self.register_buffer("basis", fixed)
        self.register_buffer("mean_of_all", torch.zeros(()))
        self.register_buffer("made", None)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        features_BF = images_BCHW.flatten(1)
        if self.how == "average":
            self.mean_of_all = 0.9 * self.mean_of_all + 0.1 * features_BF.mean().abs() + 0.1 * features_BF.var()
        if self.how == "made by the first images":
            self.made = torch.ones(2) if self.made is None else self.made
            if self.basis.shape[1] != 3:
                self.basis = torch.ones(64, 3)
        if self.how == "set by the first images":
            self.mean_of_all = torch.ones(())
        if self.how == "average made by the first images":
            self.made = features_BF.var() if self.made is None else 0.5 * (self.made + features_BF.var())
        found: Tensor = self.head(features_BF)
        return found


@pytest.mark.parametrize(("how", "says"), [
    ("drawn buffer", "keeps 'basis' besides its parameters, with other values each time"),
    ("drawn tensor", "keeps 'basis' besides its parameters, with other values each time"),
    ("average", "changes 'mean_of_all' while it trains"), ("set by the first images", "changes 'mean_of_all' while"),
    ("average made by the first images", "changes 'made' while"),
    ("drawn parameter", ""), ("fixed buffer", ""), ("made by the first images", "")])
def test_a_network_that_would_be_another_one_at_every_silo_is_refused_by_the_tensors_name(
        monkeypatch: pytest.MonkeyPatch, how: str, says: str) -> None:
    """Only parameters travel; a network that is drawn anew, or moves, in anything else answers otherwise."""
    module, form = types.ModuleType("keeping_nets"), ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    module.build = lambda **_: Keeps(how)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keeping_nets", module)
    settings, allowed = ModelSettings(name="keeping_nets:build", classes=CLASSES), ("keeping_nets:build",)

    def looked_at() -> int:
        start = starting_point(settings, form, seed=3, allow_factories=allowed)
        return check_model(start.builder, form, 10)

    if says:
        with pytest.raises(BadConfiguration, match=says) as caught:
            looked_at()
        assert "requires_grad=False" in caught.value.remedy
    else:
        assert looked_at() == 650


def test_the_constant_scale_of_spectral_norm_moves_while_it_trains() -> None:
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10)))

    with pytest.raises(BadConfiguration, match=r"changes '1\.parametrizations\.weight\.0\._[uv]' while it trains"):
        check_model(build, form, 10)


class Answers(nn.Module):
    """A network whose answers are as somebody may have written them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.head, self.norm = how, nn.Linear(64, 10), nn.BatchNorm1d(64)
        self.seen, self.first_F = 0, torch.zeros(64)
        if how == "not finite":
            self.scale = nn.Parameter(torch.full((3,), torch.nan))

    def forward(self, images_BCHW: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features_BF: Tensor = self.norm(images_BCHW.mul_(1.5).flatten(1))  # its own images are not to be asked twice
        if self.how == "always dropout":
            features_BF = nn.functional.dropout(features_BF)
        if self.how == "changes its mode":
            features_BF = nn.functional.dropout(features_BF, training=self.train().training)
        if self.how == "random":
            features_BF = features_BF + torch.rand(1)
        if self.how == "counts":
            self.seen += 1
            features_BF = features_BF * (1 + 0.01 * self.seen)
        if self.how == "remembers":
            features_BF = features_BF - self.first_F
            self.first_F = features_BF.detach()[0] if self.training else self.first_F
        if self.how == "dropout while it trains":
            features_BF = nn.functional.dropout(features_BF, training=self.training)
        logits_BK: Tensor = self.head(features_BF)
        if self.how == "squeezes":
            return logits_BK.squeeze()
        if self.how == "fails":
            return logits_BK if self.training else logits_BK.reshape(7, -1)
        return (logits_BK, features_BF) if self.how == "two answers" and not self.training else logits_BK


@pytest.mark.parametrize(("how", "says"), [
    ("squeezes", r"1 image in evaluation with \(10,\); expected logits \(1, 10\)"),
    ("two answers", "2 images in evaluation with tuple"), ("fails", "fails in evaluation"),
    ("always dropout", "otherwise a second time"), ("changes its mode", "otherwise a second time"),
    ("random", "otherwise a second time"), ("counts", "otherwise a second time"),
    ("remembers", "otherwise a second time"), ("not finite", "'scale' begins with numbers that are not finite"),
    ("dropout while it trains", ""), ("plain", "")])
def test_a_network_of_ones_own_answers_in_evaluation_as_it_must_or_is_refused(how: str, says: str) -> None:
    """Else a study fails at the first batch of one image, or its measures and its export are chance."""
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))

    def build() -> nn.Module:
        model = Answers(how)
        batch_norm.convert(model, "static_batch")
        return model

    assert check_model(build, form, 10) > 650, "what two images show while it trains is as it must be"
    if not says:
        check_answers(build, form, 10)
        return
    with pytest.raises(BadConfiguration, match=says) as caught:
        check_answers(build, form, 10)
    assert caught.value.remedy


@pytest.mark.parametrize(("dtype", "remedy"), [(torch.complex64, "view_as_real"), (torch.bool, "float32")])
def test_a_parameter_of_a_type_that_is_not_sent_is_refused(dtype: torch.dtype, remedy: str) -> None:
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))

    def build() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        model.register_parameter("extra", nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False))
        return model

    with pytest.raises(BadConfiguration, match=f"'extra' is of the type {str(dtype)[6:]}, which is not sent") as caught:
        check_model(build, form, 10)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("name", ["small_cnn", "wide_resnet_28_2", "resnet18"])
def test_a_built_in_network_keeps_nothing_and_is_neither_built_nor_asked_a_second_time(name: str) -> None:
    form, again, passes = ImageForm(size=32, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3), [], []
    model = model_builder(ModelSettings(name=name, classes=CLASSES), form)()
    model.register_forward_pre_hook(lambda module, _: passes.append(module))

    def build() -> nn.Module:
        again.append(name)
        return model

    check_what_is_kept(model, build)
    assert again == []
    check_model(build, form, 10)
    assert len(passes) == 1


@each_of("name", ["os.system:", ":x", "a b:c", "../x:y", "a:b:c"])
def test_a_malformed_factory_name_is_refused_before_any_import(name: str) -> None:
    with pytest.raises(BadConfiguration, match=r"package\.module:factory"):
        build_model(ModelSettings(name=name, classes=CLASSES), channels=1, size=8, allow_factories=[name])


def test_the_initial_model_follows_from_the_seed_and_disturbs_nobody() -> None:
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    builder = model_builder(ModelSettings(classes=CLASSES), form)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = initial_model(builder, 7)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(2)
    two, three = initial_model(builder, 7), initial_model(builder, 8)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["classifier.weight"], three["classifier.weight"])
