"""A study that begins from the model of an earlier one, opened again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semisilo.common.data.form import ImageForm
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.exported import ModelFacts, write_model
from semisilo.common.models.factory import model_builder
from semisilo.coordinator.studies.images import StudyData, read_study_data
from semisilo.coordinator.studies.study_file import config_from_dict

FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.25,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a study, with the model of one that had its classes in another order."""
    settings = ModelSettings(name="small_cnn", classes=("fox", "cat", "dog"))
    torch.manual_seed(1)
    model = model_builder(settings, FORM)()
    write_model(tmp_path / "first.safetensors", model, ModelFacts(
        model=settings, image=FORM, study="first", method="semifl", round=3, state=""))
    pixels = np.random.default_rng(1).integers(0, 256, (9, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "labelled.npz", images=pixels, labels=np.arange(9) % 3, classes=np.array(["cat", "dog", "fox"]))
    return tmp_path


def read(folder: Path, before: Any = None) -> StudyData:
    config = config_from_dict({
        "study": {"seed": 4}, "method": {"name": "semifl"},
        "model": {"name": "small_cnn", "weights": "first.safetensors"},
        "data": {"labelled": "labelled.npz", "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.25]}},
    }, where="study")
    return read_study_data(config, folder=folder, frozen=before)


def start_of(found: StudyData) -> dict[str, torch.Tensor]:
    return dict(found.build_model().named_parameters())


def test_the_head_goes_by_its_classes_and_a_study_of_an_earlier_version_keeps_its_own(
        folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = read(folder)
    assert first.frozen.head_by_class
    assert "another order" in caplog.text
    caplog.clear()
    again = read(folder, first.frozen)
    assert all(torch.equal(tensor, start_of(first)[name]) for name, tensor in start_of(again).items())
    earlier = read(folder, replace(first.frozen, head_by_class=False))
    head = {name for name, tensor in start_of(earlier).items() if not torch.equal(tensor, start_of(first)[name])}
    assert head
    assert all(torch.equal(start_of(earlier)[name][[1, 2, 0]], start_of(first)[name]) for name in head)
    assert not caplog.text
