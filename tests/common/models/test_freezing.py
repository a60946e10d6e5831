"""Which parts are frozen, and a network that has them: everything else is trained, and nothing else crosses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, BadPayload, LayoutMismatch
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.sgd import SGDSettings, make_optimiser, step
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model, model_builder
from semisilo.common.models.freezing import fixed_statistics, freeze, frozen_names, head_of
from tests.each_of import each_of

FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
CLASSES = ("a", "b", "c")


def network(name: str = "small_cnn", **settings: Any) -> nn.Module:
    torch.manual_seed(1)
    return build_model(ModelSettings(name=name, classes=CLASSES, **settings), channels=1, size=8)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "head"), [
    ("small_cnn", 8, {"classifier.weight", "classifier.bias"}),
    ("wide_resnet_28_2", 8, {"classifier.weight", "classifier.bias"}),
    ("resnet9", 32, {"classifier.weight"}),
    ("resnet18", 32, {"fc.weight", "fc.bias"}),
    ("squeezenet1_1", 64, {"classifier.1.weight", "classifier.1.bias"}),
    ("densenet121", 32, {"classifier.weight", "classifier.bias"}),
    ("vit_b_16", 32, {"heads.head.weight", "heads.head.bias"}),
    ("mobilenet_v3_small", 32, {"classifier.3.weight", "classifier.3.bias"}),
    ("timm/test_resnet", 32, {"fc.weight", "fc.bias"}),
    ("timm/test_convnext", 32, {"head.fc.weight", "head.fc.bias"}),
    ("timm/test_vit", 32, {"head.weight", "head.bias"})])
def test_the_head_is_what_follows_the_number_of_classes(name: str, size: int, head: set[str]) -> None:
    found = head_of(lambda classes: build_model(ModelSettings(name=name, classes=tuple(map(str, range(classes)))),
                                                channels=3, size=size), 7)
    assert found == head


def test_the_head_of_a_network_that_looks_at_its_own_numbers_while_it_is_made() -> None:
    class Curious(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.body, self.out = nn.Linear(4, 4), nn.Linear(4, classes)
            float(self.body.weight.sum())  # not possible without memory

    before = torch.random.get_rng_state()
    assert head_of(Curious, 3) == {"out.weight", "out.bias"}
    assert torch.equal(before, torch.random.get_rng_state()), "random numbers of others stay"


@each_of(("entries", "expected"), [
    (["classifier"], {"classifier.weight", "classifier.bias"}),
    (["classifier.bias"], {"classifier.bias"}),
    (["features.0", "features.1"], {"features.0.weight", "features.1.weight", "features.1.bias"}),
    (["features.?"], {f"features.{layer}.{kind}" for layer, kind in (
        (0, "weight"), (1, "weight"), (1, "bias"), (4, "weight"), (5, "weight"), (5, "bias"), (7, "weight"),
        (8, "weight"), (8, "bias"))}),
    (["*.bias"], {"features.1.bias", "features.5.bias", "features.8.bias", "classifier.bias"}),
    ([], set())])
def test_an_entry_is_a_parameter_a_module_or_a_pattern(entries: list[str], expected: set[str]) -> None:
    model = network()
    chosen = frozen_names(model, tuple(entries), lambda: ())
    assert set(chosen) == expected
    order = [name for name, _ in model.named_parameters()]
    assert list(chosen) == sorted(chosen, key=order.index)


def test_a_module_name_does_not_stand_for_others_that_begin_like_it() -> None:
    model = nn.ModuleDict({"layer1": nn.Linear(2, 2), "layer10": nn.Linear(2, 2)})
    assert set(frozen_names(model, ("layer1",), lambda: ())) == {"layer1.weight", "layer1.bias"}


@each_of(("entry", "remedy"), [
    ("clasifier", "Did you mean 'classifier'?"), ("features.11.weight", "Did you mean 'features."),
    ("zzz", "Its parts are: features, classifier.")])
def test_an_entry_that_fits_nothing_is_refused_with_the_nearest(entry: str, remedy: str) -> None:
    with pytest.raises(BadConfiguration, match=f"nothing called '{entry}'") as caught:
        frozen_names(network(), (entry,), lambda: ())
    assert remedy in caught.value.remedy
    assert "\n" not in caught.value.line()


def test_something_has_to_be_left_to_train() -> None:
    with pytest.raises(BadConfiguration, match="nothing to train"):
        frozen_names(network(), ("features", "classifier"), lambda: ())
    with pytest.raises(BadConfiguration, match="its head cannot be identified"):
        frozen_names(network(), "backbone", lambda: ())


def test_what_the_networks_maker_has_frozen_is_sent_as_well() -> None:
    """At random it would be another one at every site."""
    model = network()
    model.get_parameter("features.4.weight").requires_grad_(False)
    assert frozen_names(model, (), lambda: ()) == ("features.4.weight",)


def test_freeze_is_a_list_or_the_word_backbone() -> None:
    assert ModelSettings(freeze="backbone").freeze == "backbone"
    with pytest.raises(ValueError, match=r'freeze = "layer1": write a list of names, such as \["layer1"\]'):
        ModelSettings(freeze="layer1")


# A network with frozen parts ------------------------------------------------------------------------------------------


def test_frozen_and_trained_parameters_are_all_and_training_leaves_the_frozen_ones() -> None:
    model = network()
    everything = {name: parameter.numel() for name, parameter in model.named_parameters()}
    group = {name: torch.randn(model.get_parameter(name).shape) for name in (
        "features.0.weight", "features.1.weight", "features.1.bias", "features.4.weight")}
    freeze(model, group)
    trained = tensors.parameters_of(model)
    assert group.keys() | trained.keys() == everything.keys()
    assert not group.keys() & trained.keys()
    optimiser = make_optimiser(model, SGDSettings(lr=0.5))
    assert optimiser.parameters.keys() == trained.keys()
    for _ in range(3):
        step(optimiser, model.train()(torch.randn(6, 1, 8, 8)).square().mean())
    for name, tensor in group.items():
        assert torch.equal(model.get_parameter(name), tensor)
    changed = [name for name in trained if not torch.equal(model.get_parameter(name), trained[name])]
    assert set(changed) == trained.keys()
    tensors.load_into(model, trained)
    assert all(torch.equal(model.get_parameter(name), tensor) for name, tensor in group.items())


def test_a_builder_with_frozen_tensors_gives_them_to_every_network() -> None:
    frozen = {"features.0.weight": torch.full((32, 1, 3, 3), 0.25)}
    build = model_builder(ModelSettings(classes=CLASSES), FORM, frozen=frozen)
    one, other = build(), build()
    frozen["features.0.weight"].zero_()
    for model in (one, other):
        assert bool((model.get_parameter("features.0.weight") == 0.25).all()), "a copy, not the tensor itself"
        assert not model.get_parameter("features.0.weight").requires_grad
    assert not torch.equal(one.get_parameter("classifier.weight"), other.get_parameter("classifier.weight"))


def test_a_layer_with_fixed_statistics_is_torchs_batch_norm_in_evaluation_whatever_the_mode() -> None:
    model, reference = network(), nn.BatchNorm2d(32).eval()
    layer = model.get_submodule("features.1")
    group = {"features.1.weight": torch.randn(32), "features.1.bias": torch.randn(32),
             "features.1.mean": torch.randn(32), "features.1.var": torch.rand(32) + 0.1}
    freeze(model, group)
    with torch.no_grad():
        for name, tensor in zip(("weight", "bias", "running_mean", "running_var"), group.values(), strict=True):
            getattr(reference, name).copy_(tensor)
    x = torch.randn(5, 32, 4, 4) * 3 + 1
    for mode in (True, False):
        assert torch.equal(layer.train(mode)(x), reference(x))
    assert torch.isfinite(layer.train()(x[:1, :, :1, :1])).all(), "one value per channel is enough"


def test_a_layer_with_fixed_statistics_is_neither_measured_nor_sent() -> None:
    model = network()
    mean, var = torch.randn(32), torch.rand(32) + 0.1
    freeze(model, {"features.1.weight": torch.ones(32), "features.1.bias": torch.zeros(32), "features.1.mean": mean,
                   "features.1.var": var})
    assert list(batch_norm.layers_of(model)) == ["features.5", "features.8"]
    assert list(batch_norm.layers_of(model, fixed_too=True)) == ["features.1", "features.5", "features.8"]
    images = torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8)
    found = batch_norm.measure(model, images, form=FORM, generator=torch.Generator().manual_seed(0))
    assert list(found) == ["features.5", "features.8"]
    batch_norm.load(model, batch_norm.to_tensors(found))
    layer = batch_norm.layers_of(model, fixed_too=True)["features.1"]
    assert layer.mean is not None
    assert torch.equal(layer.mean, mean)
    assert torch.isfinite(model.eval()(torch.randn(2, 1, 8, 8))).all()


def test_statistics_are_fixed_where_a_layer_is_frozen_as_a_whole_and_they_are_known() -> None:
    model = network()
    known = {name: (torch.zeros(layer.num_features), torch.ones(layer.num_features))
             for name, layer in batch_norm.layers_of(model).items()}
    whole = ("features.1.weight", "features.1.bias", "features.5.weight")
    assert list(fixed_statistics(model, whole, known)) == ["features.1.mean", "features.1.var"]
    assert fixed_statistics(model, whole, {}) == {}


def test_a_batch_norm_layer_without_parameters_can_be_frozen_by_its_name() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), batch_norm.StaticBatchNorm(4, affine=False), nn.Conv2d(4, 2, 3))
    names = frozen_names(model, ("1",), lambda: ())
    assert names == ("1",)
    group = fixed_statistics(model, names, {"1": (torch.zeros(4), torch.ones(4))})
    freeze(model, group)
    assert batch_norm.layers_of(model) == {}


@each_of(("group", "error", "says"), [
    ({"features.99.weight": torch.zeros(1)}, LayoutMismatch, "'features.99.weight' is not the network's"),
    ({"features.0.weight": torch.zeros(32, 1, 3)}, LayoutMismatch, r"\[32, 1, 3\] float32; the network has"),
    ({"features.0.weight": torch.zeros(32, 1, 3, 3).half()}, LayoutMismatch, "float16"),
    ({"features.1.mean": torch.zeros(32)}, LayoutMismatch, "either the mean or the variance is missing"),
    ({"features.1.mean": torch.zeros(31), "features.1.var": torch.ones(32)}, LayoutMismatch, r"\[31\]"),
    ({"features.1.mean": torch.zeros(32), "features.1.var": -torch.ones(32)}, BadPayload, "negative variance"),
    ({"classifier.mean": torch.zeros(3)}, LayoutMismatch, "is not the network's")])
def test_tensors_that_are_not_the_networks_are_refused(
        group: dict[str, torch.Tensor], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        freeze(network(), group)
