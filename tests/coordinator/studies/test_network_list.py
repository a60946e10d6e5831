"""What `coordinator models` lists: the names that can be built, found without importing what builds them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from semisilo.common.errors import UnknownName
from semisilo.common.models.factory import model_names
from semisilo.common.models.libraries.monai_models import monai_names
from semisilo.common.models.libraries.timm_models import timm_names
from semisilo.common.models.libraries.torchvision_models import torchvision_names
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.studies import network_list
from semisilo.coordinator.studies.network_list import ListedNetwork, listed_networks, matching
from tests.each_of import each_of

NETWORKS = tuple(ListedNetwork(name, "timm") for name in ("timm/vit_tiny", "timm/resnet18", "resnet18", "vit_b_16"))


@each_of(("pattern", "found"), [
    ("", ["timm/vit_tiny", "timm/resnet18", "resnet18", "vit_b_16"]), ("vit", ["timm/vit_tiny", "vit_b_16"]),
    ("timm/*18", ["timm/resnet18"]), ("resnet*", ["resnet18"]), ("vit_?_16", ["vit_b_16"])])
def test_a_pattern_is_part_of_a_name_or_has_stars(pattern: str, found: list[str]) -> None:
    assert [each.name for each in matching(NETWORKS, pattern)] == found


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(UnknownName, match="like 'resnext'"):
        matching(NETWORKS, "resnext")


def test_the_list_is_what_can_be_built_here_in_the_same_order() -> None:
    listed = listed_networks()
    own = [each.name for each in listed.networks if each.of not in ("timm", "monai")]
    assert own == list(model_names())
    assert [each.name for each in listed.networks if each.of == "torchvision"] == list(torchvision_names())


@pytest.mark.slow
def test_the_networks_of_timm_are_those_that_it_lists_itself() -> None:
    pytest.importorskip("timm")
    listed = listed_networks()
    assert listed.has_timm
    assert [each.name for each in listed.networks if each.of == "timm"] == list(timm_names())


def test_the_networks_of_monai_are_listed_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def monai_is(there: bool) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: (
            found("json") if there else None) if name == "monai" else found(name, *more))

    monai_is(True)
    listed = listed_networks()
    assert listed.has_monai
    assert [each.name for each in listed.networks if each.of == "monai"] == list(monai_names())
    assert [each.name for each in matching(listed.networks, "monai/*b8")] == ["monai/efficientnet-b8"]
    monai_is(False)
    listed = listed_networks()
    assert not listed.has_monai
    assert not [each for each in listed.networks if each.of == "monai"]
    with pytest.raises(UnknownName, match="like 'monai/dense'") as refused:
        matching(listed.networks, "monai/dense")
    assert "semisilo[monai]" in refused.value.remedy


def test_packages_without_their_source_are_asked_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = listed_networks()
    monkeypatch.setattr(network_list, "_registered", lambda package: set())
    if expected.has_timm:
        assert listed_networks() == expected
    else:
        assert [each.name for each in listed_networks().networks if each.of != "monai"] == list(model_names())


def test_a_name_is_the_functions_own_or_that_of_the_decorator() -> None:
    source = ('@register_model()\n@legacy(weights=("pretrained", None))\ndef one(*, weights=None):\n    pass\n\n\n'
              '@register_model(name="two")\ndef make_two():\n    pass\n\n\n@register_model\ndef three(\n'
              '        a=1):\n    pass\n\n\n# @register_model\n# def no():\ndef no():\n    pass\n')
    assert [found["name"] or found["function"] for found in network_list._REGISTERED.finditer(source)] == [
        "one", "two", "three"]


def test_names_are_listed_without_torch() -> None:
    script = ("import sys\nfrom semisilo.coordinator.studies.network_list import listed_networks\nlisted_networks()\n"
              "print(sorted({'torch', 'torchvision', 'timm', 'monai'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True,
                          check=True).stdout == "[]\n"


@pytest.mark.slow
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
