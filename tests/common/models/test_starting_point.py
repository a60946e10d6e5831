"""A study's network starts from a file as torch's own loading would have it, and says what the file did not give.

torchvision is imported by the tests: it takes seconds, which every process of pytest would spend only to find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.exported import ModelFacts, write_model
from semisilo.common.models.factory import check_model, initial_model, model_builder
from semisilo.common.models.starting_point import StartingPoint, starting_point

COLOUR = ImageForm(size=32, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
GREY = ImageForm(size=32, channels=1, mean=(0.5,), std=(0.5,))
NAMES = tuple("abcdefg")
SEED = 11
NETWORK = "shufflenet_v2_x0_5"
"""Of torchvision's networks with batch-norm the one with the fewest parameters: 0.35 million for 7 classes."""
NUM_LAYERS = 56
"""Its batch-norm layers."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def from_torchvision() -> nn.Module:
    from torchvision import models

    model: nn.Module = models.get_model(NETWORK, num_classes=7)
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`NETWORK` as torchvision makes it for 7 classes, which has seen some images, as a state_dict."""
    torch.manual_seed(2)
    model = from_torchvision()
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(4, 3, 32, 32))
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    path = tmp_path_factory.mktemp("weights") / "trained.safetensors"
    save_file(model.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def started_digest(trained: Path) -> str:
    """Of the model that a study starts from with `trained`."""
    return tensors.digest(initial_model(start(trained).builder, SEED))


def reference(path: Path) -> nn.Module:
    from safetensors.torch import load_file

    model = from_torchvision()
    model.load_state_dict(load_file(path))
    return model.eval()


def start(path: Path | None, *, form: ImageForm = COLOUR, classes: tuple[str, ...] = NAMES, name: str = NETWORK,
          freeze: Any = (), **settings: Any) -> StartingPoint:
    return starting_point(ModelSettings(name=name, classes=classes, freeze=freeze, **settings), form, seed=SEED,
                          weights=path, allow_factories=(SMALL_VIT, SMALL_SWIN))


def small_vit(*, num_classes: int, channels: int, size: int) -> nn.Module:
    """torchvision's vision transformer, which has no small one among its own, with one layer for 32 x 32 patches."""
    from torchvision import models

    assert channels == 3
    return models.VisionTransformer(image_size=size, patch_size=32, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=16,
                                    num_classes=num_classes)


def small_swin(*, num_classes: int, channels: int, size: int) -> nn.Module:
    """torchvision's Swin transformer, likewise."""
    from torchvision import models

    assert (channels, size) == (3, 32)
    return models.SwinTransformer(patch_size=[4, 4], embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=[7, 7],
                                  num_classes=num_classes)


SMALL_VIT, SMALL_SWIN = (f"{__name__}:{factory.__name__}" for factory in (small_vit, small_swin))


def rewritten(path: Path, target: Path, change: Any) -> Path:
    from safetensors.torch import load_file

    found = change(load_file(path))
    if target.suffix == ".safetensors":
        save_file({name: each.contiguous() for name, each in found.items()}, target)
    else:
        torch.save(found, target)
    return target


# What comes out -------------------------------------------------------------------------------------------------------


def test_the_network_computes_what_torchvisions_own_loading_gives(trained: Path) -> None:
    found = start(trained)
    model, expected = found.builder(), reference(trained)
    parameters = dict(expected.named_parameters())
    assert tensors.parameters_of(model).keys() == parameters.keys()
    assert all(torch.equal(each, parameters[name]) for name, each in tensors.parameters_of(model).items())
    assert found.left_random == ()
    assert found.frozen == {}
    assert found.notes == ()
    statistics = {f"{name}.{kind}": getattr(module, f"running_{kind}") for name, module in expected.named_modules()
                  if isinstance(module, nn.BatchNorm2d) for kind in ("mean", "var")}
    batch_norm.load(model, statistics)
    x = torch.randn(3, 3, 32, 32)
    assert torch.allclose(model.eval()(x), expected(x), atol=1e-5)


def test_frozen_as_a_whole_but_the_head_it_is_the_files_network_in_training_as_well(trained: Path) -> None:
    found = start(trained, freeze="backbone")
    model, expected = found.builder(), reference(trained)
    assert tensors.parameters_of(model).keys() == {"fc.weight", "fc.bias"}
    assert batch_norm.layers_of(model) == {}
    x = torch.randn(3, 3, 32, 32)
    assert torch.allclose(model.train()(x), expected(x), atol=1e-5)
    statistics = {name for name in found.frozen if name.endswith((".mean", ".var"))}
    assert len(statistics) == 2 * NUM_LAYERS
    assert found.num_frozen == sum(found.frozen[name].numel() for name in found.frozen.keys() - statistics)
    assert found.num_frozen + 1024 * 7 + 7 == sum(each.numel() for each in expected.parameters())


def test_the_study_begins_with_the_weights_of_the_file_and_a_random_head_of_its_seed(trained: Path) -> None:
    found = start(trained, classes=("x", "y"))
    initial = initial_model(found.builder, SEED)
    at_random = initial_model(model_builder(ModelSettings(name=NETWORK, classes=("x", "y")), COLOUR), SEED)
    parameters = dict(reference(trained).named_parameters())
    for name, each in initial.items():
        if name.startswith("fc."):
            assert torch.equal(each, at_random[name])
        else:
            assert torch.equal(each, parameters[name])
            assert not torch.equal(each, at_random[name]), "the control"
    assert found.left_random == ("fc.weight", "fc.bias")
    (note,) = found.notes
    assert "head starts at random" in note
    assert "fc.weight" in note
    other = initial_model(found.builder, SEED + 1)
    assert not torch.equal(other["fc.weight"], initial["fc.weight"])


def test_a_grey_image_enters_as_the_repeated_image_would(trained: Path) -> None:
    found = start(trained, form=GREY, freeze="backbone")
    x = torch.randn(3, 1, 32, 32)
    assert torch.allclose(found.builder().eval()(x), reference(trained)(x.expand(-1, 3, -1, -1)), atol=1e-4)
    (note,) = found.notes
    assert "conv1.0.weight" in note
    assert "summed over the colours" in note


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "prefix"), [
    ("safetensors", "module."), ("pth", "module."), ("safetensors", "model."), ("safetensors", "backbone."),
    ("safetensors", "module.model."), ("pth", "_orig_mod.module.backbone.")])
def test_prefixes_of_wrappers_are_taken_off(
        trained: Path, started_digest: str, tmp_path: Path, prefix: str, ending: str) -> None:
    path = rewritten(trained, tmp_path / f"w.{ending}", lambda each: {prefix + name: v for name, v in each.items()})
    assert tensors.digest(initial_model(start(path).builder, SEED)) == started_digest


def test_a_backbone_with_a_prefix_beside_a_head_of_its_own_name_is_understood(trained: Path, tmp_path: Path) -> None:
    path = rewritten(trained, tmp_path / "w.safetensors", lambda each: {
        name if name.startswith("fc.") else f"backbone.{name}": v for name, v in each.items()})
    assert start(path).left_random == ()


def test_a_file_without_its_head_leaves_the_head_random(trained: Path, tmp_path: Path) -> None:
    path = rewritten(trained, tmp_path / "w.pth", lambda each: {
        name: v for name, v in each.items() if not name.startswith("fc.")})
    assert start(path).left_random == ("fc.weight", "fc.bias")


def test_names_of_a_network_that_begin_like_a_wrapper_stay(tmp_path: Path) -> None:
    """torchvision's ViT has parameters that begin with "encoder."."""
    with torch.random.fork_rng():
        model = small_vit(num_classes=3, channels=3, size=32)
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    found = start(tmp_path / "vit.safetensors", name=SMALL_VIT, classes=("a", "b", "c"))
    assert found.left_random == ()
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(found.builder().eval()(x), model.eval()(x), atol=1e-5)


def test_a_network_of_timm_takes_the_weights_that_timm_writes(tmp_path: Path) -> None:
    timm: Any = pytest.importorskip("timm")
    torch.manual_seed(5)
    model = timm.create_model("test_efficientnet", num_classes=7)
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 32, 32))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    found = start(tmp_path / "w.safetensors", name="timm/test_efficientnet", freeze="backbone")
    x = torch.randn(3, 3, 32, 32)
    assert torch.allclose(found.builder().train()(x), model.eval()(x), atol=1e-5)


def test_a_model_of_an_earlier_study_is_a_file_of_weights(trained: Path, tmp_path: Path) -> None:
    """What we write calls statistics "mean" and "var"."""
    path = rewritten(trained, tmp_path / "w.safetensors", lambda each: {
        name.replace("running_", ""): v for name, v in each.items() if not name.endswith("num_batches_tracked")})
    ours, theirs = start(path, freeze="backbone"), start(trained, freeze="backbone")
    assert tensors.digest(ours.frozen) == tensors.digest(theirs.frozen)


def handed_over(tmp_path: Path, classes: tuple[str, ...], form: ImageForm = GREY) -> tuple[Path, dict[str, Tensor]]:
    """A small model as a study of these classes hands it over; the file, and its parameters."""
    found = initial_model(model_builder(ModelSettings(name="small_cnn", classes=classes), form), 4)
    model = model_builder(ModelSettings(name="small_cnn", classes=classes), form)()
    model.load_state_dict(found, strict=False)
    path = tmp_path / "model.safetensors"
    write_model(path, model, ModelFacts(model=ModelSettings(name="small_cnn", classes=classes), image=form,
                                        study="first", method="semifl", round=3, state=""))
    return path, found


def test_classes_in_another_order_put_the_head_of_an_earlier_study_into_it(tmp_path: Path) -> None:
    path, before = handed_over(tmp_path, ("cat", "dog", "fox"))
    found = start(path, form=GREY, name="small_cnn", classes=("fox", "cat", "dog"))
    now = initial_model(found.builder, SEED)
    moved = {name for name, tensor in before.items() if not torch.equal(now[name], tensor)}
    assert moved
    assert all(torch.equal(now[name], before[name][[2, 0, 1]]) for name in moved)
    assert (found.left_random, found.head_by_class, len(found.notes)) == ((), True, 1)
    assert "another order" in found.notes[0]


def test_as_many_other_classes_leave_the_head_of_an_earlier_study_out(tmp_path: Path) -> None:
    path, before = handed_over(tmp_path, ("cat", "dog", "fox"))
    plain = initial_model(start(None, form=GREY, name="small_cnn", classes=("cat", "dog", "owl")).builder, SEED)
    found = start(path, form=GREY, name="small_cnn", classes=("cat", "dog", "owl"))
    now = initial_model(found.builder, SEED)
    assert found.left_random
    assert all(torch.equal(now[name], plain[name]) for name in found.left_random)
    assert all(torch.equal(now[name], before[name]) for name in before.keys() - set(found.left_random))
    assert "other classes" in found.notes[0]
    assert found.head_by_class


def test_the_same_classes_and_what_an_earlier_version_began_take_the_head_as_it_is(tmp_path: Path) -> None:
    path, before = handed_over(tmp_path, ("cat", "dog", "fox"))
    same = start(path, form=GREY, name="small_cnn", classes=("cat", "dog", "fox"))
    begun = starting_point(ModelSettings(name="small_cnn", classes=("fox", "cat", "dog")), GREY, seed=SEED,
                           weights=path, by_class=False)
    for found in (same, begun):
        now = initial_model(found.builder, SEED)
        assert all(torch.equal(now[name], tensor) for name, tensor in before.items())
        assert (found.left_random, found.head_by_class, found.notes) == ((), False, ())


def test_weights_for_images_that_were_standardised_otherwise_are_said(tmp_path: Path) -> None:
    path, _ = handed_over(tmp_path, ("cat", "dog"))
    notes = start(path, form=replace(GREY, standardise="image"), name="small_cnn", classes=("cat", "dog")).notes
    assert len(notes) == 1
    assert 'standardise was "study" there and is "image" here' in notes[0]


def test_half_precision_becomes_the_networks_type(trained: Path, tmp_path: Path) -> None:
    path = rewritten(trained, tmp_path / "w.safetensors", lambda each: {
        name: v.bfloat16() if v.is_floating_point() else v for name, v in each.items()})
    found = initial_model(start(path).builder, SEED)
    expected = dict(reference(trained).named_parameters())
    assert {each.dtype for each in found.values()} == {torch.float32}
    assert torch.equal(found["conv1.0.weight"], expected["conv1.0.weight"].bfloat16().float())


def test_statistics_are_left_out_and_said_where_the_study_normalises_otherwise(trained: Path) -> None:
    found = start(trained, normalisation="group", freeze="backbone")
    assert not any(name.endswith((".mean", ".var")) for name in found.frozen)
    assert any(f"{NUM_LAYERS} batch-norm layers" in note for note in found.notes)
    assert check_model(found.builder, COLOUR, 7) == 1024 * 7 + 7


def test_layers_that_are_trained_are_measured_as_ever(trained: Path) -> None:
    found = start(trained, freeze=["conv1", "stage2"])
    layers = batch_norm.layers_of(found.builder())
    assert len(layers) == NUM_LAYERS - 1 - (5 + 3 * 3), "a first unit has 5, the others 3"
    assert not any(name.startswith(("conv1", "stage2")) for name in layers)


def test_without_weights_and_frozen_parts_nothing_is_different() -> None:
    found = start(None)
    assert (found.frozen, found.weights_digest, found.left_random, found.notes) == ({}, "", (), ())
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    start(None, freeze=["conv1"])
    assert torch.equal(before, torch.random.get_rng_state()), "random numbers of others stay"


def test_what_is_frozen_at_random_is_what_the_study_would_have_begun_with() -> None:
    found = start(None, freeze=["conv1"])
    plain = initial_model(model_builder(ModelSettings(name=NETWORK, classes=NAMES), COLOUR), SEED)
    assert found.frozen.keys() == {"conv1.0.weight", "conv1.1.weight", "conv1.1.bias"}
    assert all(torch.equal(each, plain[name]) for name, each in found.frozen.items())
    rest = initial_model(found.builder, SEED)
    assert rest.keys() | found.frozen.keys() == plain.keys()
    assert all(torch.equal(each, plain[name]) for name, each in rest.items())


# What does not fit ----------------------------------------------------------------------------------------------------


def refused(path: Path, **options: Any) -> BadConfiguration:
    with pytest.raises(BadConfiguration) as caught:
        start(path, **options)
    assert "\n" not in caught.value.line()
    assert path.name in caught.value.text
    assert caught.value.remedy
    return caught.value


def test_tensors_that_are_missing_unknown_or_of_another_shape_are_named(trained: Path, tmp_path: Path) -> None:
    def change(each: dict[str, Tensor]) -> dict[str, Tensor]:
        del each["stage2.0.branch1.0.weight"]
        each["layer9.weight"] = torch.zeros(3)
        each["conv1.1.bias"] = torch.zeros(25)
        return each

    text = refused(rewritten(trained, tmp_path / "w.pth", change)).text
    assert "missing in the file: stage2.0.branch1.0.weight" in text
    assert "unknown to the network: layer9.weight" in text
    assert "conv1.1.bias is [25] in the file and [24] here" in text


def test_the_weights_of_another_network_are_recognised_as_such(trained: Path) -> None:
    error = refused(trained, name="mobilenet_v3_large")
    assert "probably not of a mobilenet_v3_large" in error.remedy
    assert " more" in error.text, "not all of the many names"


def test_weights_for_another_image_size_name_the_setting(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        weights = small_vit(num_classes=7, channels=3, size=64).state_dict()
    save_file(weights, tmp_path / "vit.safetensors")
    error = refused(tmp_path / "vit.safetensors", name=SMALL_VIT)
    assert "encoder.pos_embedding is [1, 5, 8] in the file and [1, 2, 8] here" in error.text
    assert "[data] image size" in error.remedy


def test_normalisation_layers_that_the_study_has_left_out_are_named(trained: Path) -> None:
    assert "normalisation" in refused(trained, normalisation="none").remedy


def test_other_values_of_a_buffer_are_refused_since_silos_would_not_get_them(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        weights = small_swin(num_classes=7, channels=3, size=32).state_dict()
    name = next(each for each in weights if each.endswith("relative_position_index"))
    save_file({key: each.contiguous() for key, each in weights.items()}, tmp_path / "good.safetensors")
    assert start(tmp_path / "good.safetensors", name=SMALL_SWIN).left_random == ()
    weights[name] = weights[name] + 1
    save_file({key: each.contiguous() for key, each in weights.items()}, tmp_path / "bad.safetensors")
    assert f"{name} has other values" in refused(tmp_path / "bad.safetensors", name=SMALL_SWIN).text


def test_a_tensor_that_claims_to_be_enormous_is_only_compared(trained: Path, tmp_path: Path) -> None:
    """A view without memory behind it: 2^60 elements of one."""
    path = rewritten(trained, tmp_path / "w.pth", lambda each: {**each, "conv1.1.bias": torch.zeros(1).expand(2**60)})
    assert "conv1.1.bias is [1152921504606846976]" in refused(path).text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stage2.0.branch1.0.weight", "fc.bias"])
def test_numbers_that_are_not_finite_are_refused(trained: Path, tmp_path: Path, name: str) -> None:
    def change(each: dict[str, Tensor]) -> dict[str, Tensor]:
        each[name].view(-1)[3] = torch.nan
        return each

    assert f"{name} has numbers that are not finite" in refused(rewritten(trained, tmp_path / "w.pth", change)).text


def test_a_missing_file_is_named_with_where_paths_start(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="there is no such file") as caught:
        start(tmp_path / "none.safetensors")
    assert "folder of the study file" in caught.value.remedy


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, num_classes: int, channels: int, size: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(channels * size * size, channels * size * size), nn.Linear(64, 64)
        self.two.weight = self.one.weight
        self.head = nn.Linear(64, num_classes)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        found: Tensor = self.head(self.two(self.one(images_BCHW.flatten(1)).relu()))
        return found


def test_weights_of_a_network_whose_layers_share_a_tensor_are_read_under_each_of_its_names(tmp_path: Path) -> None:
    """A state_dict, and the file that a study writes at its end, have it twice."""
    form, settings = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), ModelSettings(
        name="tests.common.models.test_starting_point:Tied", classes=NAMES)
    network, path = Tied(7, 1, 8), tmp_path / "w.pth"

    def started() -> StartingPoint:
        return starting_point(settings, form, seed=SEED, weights=path, allow_factories=(settings.name,))

    torch.save(network.state_dict(), path)
    begins = initial_model(started().builder, SEED)
    assert list(begins) == ["one.weight", "one.bias", "two.bias", "head.weight", "head.bias"]
    assert all(torch.equal(begins[name], parameter) for name, parameter in network.named_parameters())
    torch.save({name: tensor for name, tensor in network.state_dict().items() if name != "one.weight"}, path)
    assert torch.equal(initial_model(started().builder, SEED)["one.weight"], network.two.weight)
    torch.save({**network.state_dict(), "two.weight": torch.zeros(64, 64)}, path)
    with pytest.raises(BadConfiguration, match=r"two\.weight has other values in the file than one\.weight"):
        started()
