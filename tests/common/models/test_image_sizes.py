"""A network that does not take the study's image size names sizes that it takes, as far as that can be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model
from semisilo.common.models.image_sizes import sizes_that_work
from semisilo.coordinator.studies.images import read_study_data
from semisilo.coordinator.studies.study_file import config_from_dict

CLASSES = ("a", "b", "c")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "near"), [
    ("squeezenet1_1", 8), ("resnet9", 28), pytest.param("timm/test_vit", 28, marks=pytest.mark.slow), ("cnn13", 8)])
def test_the_sizes_named_work_and_the_asked_one_is_not_among_them(name: str, near: int) -> None:
    settings = ModelSettings(name=name, classes=CLASSES)
    found = sizes_that_work(settings, channels=3, near=near)
    assert found
    assert near not in found
    assert list(found) == sorted(found)
    for size in found[:1]:
        model = build_model(settings, channels=3, size=size)
        with torch.no_grad():
            assert model.train()(torch.zeros(2, 3, size, size)).shape == (2, 3)


@pytest.mark.slow
def test_the_nearest_come_first() -> None:
    assert sizes_that_work(ModelSettings(name="vit_b_16", classes=CLASSES), channels=1, near=100) == (80, 96, 112)
    assert sizes_that_work(ModelSettings(name="resnet9", classes=CLASSES), channels=1, near=224) == (32,)


def test_of_a_factory_nothing_is_known_and_nothing_is_run() -> None:
    assert sizes_that_work(ModelSettings(name="antigravity:fly", classes=CLASSES), channels=1, near=28) == ()


def tables(name: str, size: int) -> dict[str, Any]:
    return {"model": {"name": name}, "method": {"name": "semifl"},
            "data": {"labelled": "digits#train", "image": {"size": size, "channels": 1, "mean": [0.3], "std": [0.4]}}}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "good"), [
    pytest.param("vit_b_16", 28, "16, 32, 48", marks=pytest.mark.slow),
    ("squeezenet1_1", 8, "28, 32, 48"), ("timm/test_vit", 40, "32, 48, 64")])
def test_a_study_that_cannot_start_says_which_sizes_could(tmp_path: Path, name: str, size: int, good: str) -> None:
    with pytest.raises(BadConfiguration, match=f"{size}x{size}") as caught:
        read_study_data(config_from_dict(tables(name, size), where="test"), folder=tmp_path, frozen=None)
    assert f"Sizes that work: {good}" in caught.value.remedy
    assert "\n" not in caught.value.line()
