"""Networks of timm: built without the internet, with the study's classes, channels, size and normalisation."""

from __future__ import annotations

import builtins
import socket
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, NotPermitted, UnknownName
from semisilo.common.learning import batch_norm
from semisilo.common.learning.batch_norm import NoReplacement, StaticBatchNorm
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model, check_model, model_builder
from semisilo.common.models.libraries.timm_models import build_timm_model, timm_names
from semisilo.silo.site.policy import Policy, check_task
from tests.silo.site.test_policy import TASK

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="the extra timm is not installed")
"""timm is imported by the tests: it takes a second, which every process of pytest would spend only to find them."""

CLASSES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("timm must not look for anything on the internet")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "channels"), [
    ("timm/test_resnet", 28, 1), ("timm/test_vit", 48, 3), ("timm/test_vit", 32, 1), ("timm/test_convnext", 40, 1),
    ("timm/test_efficientnet", 30, 3), ("timm/test_byobnet", 32, 1), ("timm/test_nfnet", 32, 3),
    ("timm/resnet18", 28, 1), ("timm/mixer_s32_224", 64, 1)])
def test_networks_of_every_kind_fit_the_study(name: str, size: int, channels: int) -> None:
    form = ImageForm(size=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)  # type: ignore[arg-type]
    builder = model_builder(ModelSettings(name=name, classes=CLASSES), form)
    assert check_model(builder, form, 3) == sum(each.numel() for each in builder().parameters())


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_byobnet"])
def test_static_batch_norm_computes_what_timms_layers_compute_in_training(name: str) -> None:
    """BatchNormAct2d has drop and activation behind the normalisation: they must not get lost."""
    import timm

    torch.manual_seed(3)
    ours = build_timm_model(f"timm/{name}", num_classes=3, channels=1, size=32)
    theirs = timm.create_model(name, pretrained=False, num_classes=3, in_chans=1)
    theirs.load_state_dict(ours.state_dict())
    batch_norm.convert(ours, "static_batch")
    x = torch.randn(4, 1, 32, 32)
    assert torch.equal(ours.train()(x), theirs.train()(x))
    assert [key for key, _ in ours.named_parameters()] == [key for key, _ in theirs.named_parameters()]
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in ours.modules())
    statistics = {key: (module.running_mean, module.running_var) for key, module in theirs.named_modules()
                  if isinstance(module, nn.modules.batchnorm._BatchNorm)}
    assert len(statistics) == len(batch_norm.layers_of(ours)) > 5
    batch_norm.load(ours, {f"{key}.{kind}": each for key, pair in statistics.items()
                           for kind, each in zip(("mean", "var"), pair, strict=True) if each is not None})
    assert torch.allclose(ours.eval()(x), theirs.eval()(x), atol=1e-6)


@pytest.mark.parametrize(("kind", "layer"), [("group", nn.GroupNorm), ("layer", nn.GroupNorm), ("none", nn.Identity)])
def test_other_normalisation_keeps_the_activation(kind: Any, layer: type[nn.Module]) -> None:
    x = torch.randn(2, 1, 32, 32)
    model = build_model(ModelSettings(name="timm/test_efficientnet", classes=CLASSES, normalisation=kind), channels=1,
                        size=32)
    first = model.get_submodule("bn1")
    assert isinstance(first, layer)
    assert isinstance(first, nn.GroupNorm) is (kind != "none")
    if isinstance(first, nn.GroupNorm):
        assert (first.num_groups == 1) is (kind == "layer")
    behind = model.get_submodule("conv_stem")(x)
    before = behind.detach().clone()
    if isinstance(first, nn.GroupNorm):
        normalised = nn.functional.group_norm(behind, first.num_groups, first.weight, first.bias, first.eps)
    else:
        normalised = behind
    assert torch.allclose(first(behind), nn.functional.silu(normalised), atol=1e-6)
    assert torch.equal(behind, before), "timm's activations work in place, which no layer may do to what it is given"
    model(x).sum().backward()


@pytest.mark.parametrize("name", ["timm/test_vit", "timm/test_convnext", "timm/test_nfnet",
                                  "timm/test_efficientnet_gn"])
def test_networks_with_layer_or_group_norm_have_no_place_for_others(name: str) -> None:
    settings = ModelSettings(name=name, classes=CLASSES)
    assert batch_norm.layers_of(build_model(settings, channels=3, size=32)) == {}
    with pytest.raises(BadConfiguration, match="has no effect"):
        build_model(ModelSettings(name=name, classes=CLASSES, normalisation="group"), channels=3, size=32)


def test_layers_that_keep_statistics_of_their_own_are_refused_by_name() -> None:
    from timm.layers import EvoNorm2dB0, SplitBatchNorm2d  # type: ignore[attr-defined, unused-ignore]

    with pytest.raises(NoReplacement, match=r"its layer 1 \(EvoNorm2dB0\) keeps statistics"):
        batch_norm.convert(nn.Sequential(nn.Conv2d(1, 4, 3), EvoNorm2dB0(4)), "static_batch")
    with pytest.raises(NoReplacement, match=r"its layer 1 is a batch-norm of its own kind \(SplitBatchNorm2d\)"):
        batch_norm.convert(nn.Sequential(nn.Conv2d(1, 4, 3), SplitBatchNorm2d(4, num_splits=2)), "static_batch")
    with pytest.raises(NoReplacement, match="keeps statistics"):
        batch_norm.convert(nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True)), "group")


def test_such_a_network_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.layers import EvoNorm2dB0  # type: ignore[attr-defined, unused-ignore]

    monkeypatch.setattr("semisilo.common.models.factory.build_timm_model",
                        lambda name, **_: nn.Sequential(nn.Conv2d(1, 4, 3), EvoNorm2dB0(4)))
    with pytest.raises(BadConfiguration, match="cannot be trained in a federation: its layer 1 ") as caught:
        build_model(ModelSettings(name="timm/resnet18", classes=CLASSES), channels=1, size=8)
    assert "\n" not in caught.value.line()


def test_a_subclass_that_only_has_other_defaults_is_replaced_as_torchs_own() -> None:
    class Wide(nn.BatchNorm2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels, eps=0.01)

    model = nn.Sequential(Wide(4))
    batch_norm.convert(model, "static_batch")
    assert isinstance(model[0], StaticBatchNorm)
    assert model[0].eps == 0.01


@pytest.mark.parametrize(("name", "remedy"), [
    ("timm/resnet18.a1_in1k", 'Write name = "timm/resnet18"'), ("timm/resnet19", "Did you mean 'timm/resnet1"),
    ("timm/qqqqqqqqqqqqqqqqqqqqqq", "timm/NAME"), ("timmy/resnet18", "Did you mean 'resnet18'?")])
def test_a_name_that_timm_does_not_have_is_refused_with_the_nearest(name: str, remedy: str) -> None:
    with pytest.raises(UnknownName, match=f"no model '{name}'") as caught:
        build_model(ModelSettings(name=name, classes=CLASSES), channels=3, size=32)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("name", ["timm/hf-hub:someone/net", "timm/hf_hub:someone/net", "timm/local-dir:/tmp/x"])
def test_a_name_that_would_fetch_something_is_no_name(name: str) -> None:
    with pytest.raises(BadConfiguration):
        build_model(ModelSettings(name=name, classes=CLASSES), channels=3, size=32)


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "timm":
            raise ImportError(name)
        return real(name, *arguments, **options)

    timm_names.cache_clear()
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.setattr(builtins, "__import__", without)
    try:
        with pytest.raises(BadConfiguration, match="not installed here") as caught:
            build_model(ModelSettings(name="timm/resnet18", classes=CLASSES), channels=3, size=32)
    finally:
        timm_names.cache_clear()
    assert caught.value.remedy == "Install it: pip install 'semisilo[timm]'."


def test_a_network_of_timm_needs_no_permission_of_a_silo() -> None:
    """It comes with a package that the silo's own operator has installed, as torchvision's do; a factory is code."""
    check_task(Policy(), replace(TASK, model=ModelSettings(name="timm/resnet18", classes=CLASSES)))
    with pytest.raises(NotPermitted):
        check_task(Policy(), replace(TASK, model=ModelSettings(name="theirs:resnet18", classes=CLASSES)))
