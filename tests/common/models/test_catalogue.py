"""What `coordinator models` shows: names that can be built, and the parts of a network as freezing takes them."""

from __future__ import annotations

import json

import pytest
import torch

from semisilo.common.errors import BadConfiguration, UnknownName
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.catalogue import ListedNetwork, listed, matching, parts_of
from semisilo.common.models.factory import build_model
from semisilo.common.models.freezing import frozen_names
from semisilo.common.models.timm_models import timm_is_installed
from semisilo.common.text.cli_errors import run_cli

NETWORKS = tuple(ListedNetwork(name, "timm") for name in ("timm/vit_tiny", "timm/resnet18", "resnet18", "vit_b_16"))


@pytest.mark.parametrize(("pattern", "found"), [
    ("", ["timm/vit_tiny", "timm/resnet18", "resnet18", "vit_b_16"]), ("vit", ["timm/vit_tiny", "vit_b_16"]),
    ("timm/*18", ["timm/resnet18"]), ("resnet*", ["resnet18"]), ("vit_?_16", ["vit_b_16"])])
def test_a_pattern_is_part_of_a_name_or_has_stars(pattern: str, found: list[str]) -> None:
    assert [each.name for each in matching(NETWORKS, pattern)] == found


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(UnknownName, match="like 'resnext'"):
        matching(NETWORKS, "resnext")


def test_every_network_there_is_is_listed_once_with_whose_it_is() -> None:
    catalogue = listed()
    names = [each.name for each in catalogue.networks]
    assert len(set(names)) == len(names)
    of = {each.name: each.of for each in catalogue.networks}
    assert of["small_cnn"] == "semisilo"
    assert of["resnet18"] == "torchvision"
    assert catalogue.has_timm is timm_is_installed() is any(name.startswith("timm/") for name in names)


@pytest.mark.parametrize(("name", "parts", "head"), [
    ("resnet18", ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4.0", "layer4.1", "fc"],
     ["fc.weight", "fc.bias"]),
    ("small_cnn", ["features.0", "features.1", "features.4", "features.5", "features.8", "features.9", "features.12",
                   "features.13", "features.15", "features.16", "classifier"],
     ["classifier.weight", "classifier.bias"])])
def test_the_parts_of_a_network_are_names_that_can_be_frozen_and_add_up(
        name: str, parts: list[str], head: list[str]) -> None:
    found = parts_of(name, num_classes=7, size=32, channels=1)
    assert [part.name for part in found.parts] == parts
    assert sum(part.parameters for part in found.parts) == found.parameters
    assert list(found.head) == head
    with torch.device("meta"):
        model = build_model(ModelSettings(name=name, classes=tuple("abcdefg")), channels=1, size=32)
    for part in found.parts[:-1]:
        chosen = frozen_names(model, (part.name,), lambda: ())
        assert sum(model.get_parameter(each).numel() for each in chosen) == part.parameters
    assert [part.has_head for part in found.parts] == [False] * (len(parts) - 1) + [True]
    assert sum(part.batch_norm_layers for part in found.parts) == (20 if name == "resnet18" else 5)


def test_a_size_that_does_not_fit_is_refused_with_some_that_do() -> None:
    with pytest.raises(BadConfiguration, match="33x33") as caught:
        parts_of("vit_b_16", num_classes=3, size=33, channels=3)
    assert caught.value.remedy == "Sizes that work: 16, 32, 48."


def test_the_command_prints_names_or_parts_and_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    from semisilo.coordinator.cli.main import app

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run_cli(app, ["models", *words], name="coordinator")
        said = capsys.readouterr()
        return status, said.out, said.err

    status, out, _ = run("wide_resnet_28")
    assert (status, out) == (0, "wide_resnet_28_2\nwide_resnet_28_8\n")
    status, out, _ = run("wide_resnet_28*", "--json")
    assert json.loads(out)["networks"] == [{"name": f"wide_resnet_28_{each}", "of": "semisilo"} for each in (2, 8)]
    status, out, _ = run("small_cnn", "--classes", "10", "--size", "8", "--channels", "1")
    assert status == 0
    assert "56,554 parameters with 10 classes" in out, "9 x (32 + 32 x 64 + 64 x 64), 2 x (32 + 64 + 64), 65 x 10"
    assert 'freeze = "backbone" leaves 650 to train: classifier.weight, classifier.bias' in out
    status, out, _ = run("small_cnn", "--json", "--size", "8")
    assert json.loads(out)["head"] == ["classifier.weight", "classifier.bias"]
    status, out, err = run("no_such_net")
    assert (status, out) == (2, "")
    assert err.startswith("error: There is no network like 'no_such_net'.")
    assert run("small_cnn", "--channels", "2")[0] == 2
