"""An edited method or network of somebody's own is another one: no rounds of the one before are shown for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import semisilo
from semisilo.common.errors import UsageError
from semisilo.common.methods.plugins import load_half
from semisilo.common.models.own.code_stamp import code_of_tables, code_stamp
from semisilo.simulation import run
from tests.plugin_kit import HALVES, install, on_the_module_path
from tests.semisilo.studies import study

NETWORK = ("from torch import nn\n\ndef build(num_classes, channels, size):\n"
           "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, num_classes))\n")


def stamp_of(site: Path, method: str = "semifl", network: str = "small_cnn") -> str:
    """As a process that begins now finds it."""
    with on_the_module_path(site):
        return code_stamp(method, network)


def test_what_is_built_in_or_has_a_digest_of_its_own_has_no_stamp(tmp_path: Path) -> None:
    for network in ("small_cnn", "resnet18", "timm/resnet18", "transformers/folder", "my_net.py:build",
                    "given_in_python:Net"):
        assert code_stamp("semifl", network) == ""
    assert code_of_tables(study()) == {} == code_of_tables({"method": "semifl"}) == code_of_tables({"model": {}})
    run(study(rounds=1, silos=2), out=tmp_path / "run", device="cpu", engine="process")
    assert "code" not in json.loads((tmp_path / "run" / "simulation.json").read_bytes())


def test_a_stamp_follows_from_the_modules_of_a_plug_in_and_from_nothing_else(tmp_path: Path) -> None:
    install(tmp_path)
    first = stamp_of(tmp_path, "gossip")
    found = [first]
    for name in ("gossip_plugin.py", "gossip_plugin_halves.py"):
        with (tmp_path / name).open("a") as file:
            file.write("# edited\n")
        found.append(stamp_of(tmp_path, "gossip"))
    (tmp_path / "another.py").touch()
    assert stamp_of(tmp_path, "gossip") == found[-1]
    assert len({"", *found}) == 4
    (tmp_path / "gossip_plugin_halves.py").write_text(HALVES)
    assert stamp_of(tmp_path, "gossip", "torchvision.models:resnet18") not in found


def test_a_stamp_follows_from_all_files_of_a_package_that_builds_a_network(tmp_path: Path) -> None:
    (tmp_path / "nets" / "parts").mkdir(parents=True)
    (tmp_path / "nets" / "__init__.py").touch()
    (tmp_path / "nets" / "mine.py").write_text(NETWORK)
    (tmp_path / "nets" / "parts" / "blocks.py").write_text("WIDTH = 1\n")
    first = stamp_of(tmp_path, network="nets.mine:build")
    assert stamp_of(tmp_path, network="nets.mine:build") == first
    (tmp_path / "nets" / "parts" / "blocks.py").write_text("WIDTH = 2\n")
    assert stamp_of(tmp_path, network="nets.mine:build") != first


def test_a_process_that_has_imported_the_code_of_before_does_not_run_it_under_the_name_of_the_new(
        tmp_path: Path) -> None:
    install(tmp_path)
    with on_the_module_path(tmp_path):
        code_stamp("gossip", "small_cnn")
        load_half("gossip", "strategy")
        again = code_stamp("gossip", "small_cnn")
        (tmp_path / "gossip_plugin_halves.py").write_text(f"{HALVES}# edited\n")
        with pytest.raises(UsageError, match="has changed since this process imported it") as caught:
            code_stamp("gossip", "small_cnn")
        assert "restart the kernel" in caught.value.remedy
    assert stamp_of(tmp_path, "gossip") != again


def test_the_same_call_with_an_edited_network_is_another_run_and_its_folder_is_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    (site / "nets_of_mine.py").write_text(NETWORK)
    call: dict[str, Any] = {
        "data": "digits", "num_labelled": 20, "silos": 2, "rounds": 1, "labelled_only": False, "progress": False,
        "device": "cpu", "engine": "process", "model": "nets_of_mine:build",
        "method": {"name": "semifl", "local_epochs": 1, "coordinator_epochs": 1, "confidence_threshold": 0.11},
        "tables": {"simulation": {"split": {"fraction": 0.12}}}}
    with on_the_module_path(site):
        first = semisilo.simulate(**call)
        alone = semisilo.simulate(**call, out="here")
        assert semisilo.simulate(**call).folder == first.folder
        compared = semisilo.compare([call["method"]], **{key: value for key, value in call.items() if key != "method"})
    (site / "nets_of_mine.py").write_text(NETWORK.replace("nn.Flatten(),", "nn.Flatten(), nn.Dropout(0.9),"))
    with on_the_module_path(site):
        other = semisilo.simulate(**call)
        assert other.folder != first.folder
        assert other.digest != first.digest
        with pytest.raises(UsageError, match="another code of the method or network") as caught:
            semisilo.simulate(**call, out="here")
        assert "out=" in caught.value.remedy
        again = semisilo.compare([call["method"]], **{key: value for key, value in call.items() if key != "method"})
    assert again.runs[0].folder != compared.runs[0].folder
    assert semisilo.load_run("here").digest == alone.digest
