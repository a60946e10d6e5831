"""The parts of a network, as freezing takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.catalogue import parts_of
from semisilo.common.models.factory import build_model
from semisilo.common.models.freezing import frozen_names
from tests.processes import run_command


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


@pytest.mark.slow
def test_a_size_that_does_not_fit_is_refused_with_some_that_do() -> None:
    with pytest.raises(BadConfiguration, match="33x33") as caught:
        parts_of("vit_b_16", num_classes=3, size=33, channels=3)
    assert caught.value.remedy == "Sizes that work: 16, 32, 48."


def test_a_network_of_ones_own_has_parts_like_others_and_runs_only_where_it_is_permitted(tmp_path: Path) -> None:
    (tmp_path / "my_net.py").write_text(
        f"# {tmp_path}\nfrom collections import OrderedDict\nfrom torch import nn\n"
        "def build(num_classes, channels, size):\n    print('built')\n"
        "    return nn.Sequential(OrderedDict(flat=nn.Flatten(),"
        " body=nn.Linear(channels * size * size, 8), norm=nn.BatchNorm1d(8), top=nn.Linear(8, num_classes)))\n")
    with pytest.raises(BadConfiguration, match="without the digest"):
        parts_of("my_net.py:build", num_classes=3, size=4, channels=1)
    status, out, err = run_command("semisilo.coordinator.cli.main", "models", f"{tmp_path}/my_net.py:build", "--size",
                                   "4", "--channels", "1", "--classes", "3", "--json")
    assert status == 0, err
    found = json.loads(out)  # with nothing before it that the file has printed
    assert [(part["name"], part["parameters"]) for part in found["parts"]] == [("body", 136), ("norm", 16), ("top", 27)]
    assert found["head"] == ["top.weight", "top.bias"]
    status, _, err = run_command("semisilo.coordinator.cli.main", "models", f"{tmp_path}/none.py:build")
    assert (status, err.count("\n")) == (2, 1)
    assert "none.py: cannot be read: No such file" in err
