"""Sets of 16 bits: what is white of the labelled images is so of the others, and is handed over with the model."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from semisilo.common.config import to_dict
from semisilo.common.methods.contract import CoordinatorData
from semisilo.coordinator.export.export import ExportChoice, _Opened, _test_images
from semisilo.coordinator.studies.images import StudyData, read_study_data
from semisilo.coordinator.studies.model_facts import model_facts
from semisilo.coordinator.studies.study_file import StudyConfig, config_from_dict

HALF = 2000
"""A value that is mid-grey of 12 bits and nearly black of 16."""


def config() -> StudyConfig:
    return config_from_dict({
        "study": {"seed": 4}, "model": {"name": "small_cnn"}, "method": {"name": "semifl"},
        "data": {"labelled": "labelled.npz", "validation": "validation.npz", "test": "test.npz",
                 "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.25]}}}, where="study")


def write(path: Path, *, seed: int, brightest: int, dtype: str = "uint16") -> None:
    pixels = np.random.default_rng(seed).integers(0, 255 if dtype == "uint8" else HALF, (8, 8, 8)).astype(dtype)
    pixels[:, 0, 0] = HALF % 256 if dtype == "uint8" else HALF
    pixels[0, 1, 1] = brightest
    np.savez(path, images=pixels, labels=np.arange(8) % 2)


def opened(folder: Path, before: StudyData | None = None) -> StudyData:
    return read_study_data(config(), folder=folder, frozen=None if before is None else before.frozen)


def corners(data: StudyData) -> list[int]:
    """The value that HALF has become in each set."""
    sets = (data.images.labelled, data.images.validation, data.images.test)
    return [int(each.images_NCHW[1, 0, 0, 0]) for each in sets if each is not None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Bright labelled images, and dark ones to choose and to measure with."""
    write(tmp_path / "labelled.npz", seed=1, brightest=60000)
    write(tmp_path / "validation.npz", seed=2, brightest=3000)
    write(tmp_path / "test.npz", seed=3, brightest=3000)
    return tmp_path


def test_all_sets_are_read_with_the_range_of_the_labelled_images_which_the_model_keeps(folder: Path) -> None:
    data = opened(folder)
    assert corners(data) == [8, 8, 8]
    assert data.frozen.ranges == (("16 bits", 65535.0),)
    assert corners(opened(folder, before=data)) == [8, 8, 8]
    facts = model_facts("s", config(), data.frozen, data.images.labelled, round=1, state="0" * 64)
    assert facts.ranges == data.frozen.ranges


def test_other_test_images_are_measured_with_it_as_well(folder: Path) -> None:
    data = opened(folder)
    facts = model_facts("s", config(), data.frozen, data.images.labelled, round=1, state="0" * 64)
    write(folder / "other.npz", seed=5, brightest=3000)
    found, _ = _test_images(opened_model(data, facts), ExportChoice(test=str(folder / "other.npz")))
    assert found is not None
    assert int(found.images_NCHW[1, 0, 0, 0]) == 8


def test_other_test_images_that_are_brighter_are_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder / "labelled.npz", seed=1, brightest=3000)
    data = opened(folder)
    facts = model_facts("s", config(), data.frozen, data.images.labelled, round=1, state="0" * 64)
    for name, brightest in (("as_bright", 4000), ("brighter", 60000)):
        write(folder / f"{name}.npz", seed=5, brightest=brightest)
        caplog.clear()
        _test_images(opened_model(data, facts), ExportChoice(test=str(folder / f"{name}.npz")))
        said = [record.getMessage() for record in caplog.records if "go up to" in record.getMessage()]
        assert said == ([] if name == "as_bright" else [
            "values of 16 bits go up to 65535 in the --test images, and not beyond 4095 in those that the study learns"
            " from: they are read darker; set [data.image.reading] window"])


def opened_model(data: StudyData, facts: Any, **study: Any) -> _Opened:
    """What an export works on, without a model."""
    chosen = cast(Any, SimpleNamespace(study=SimpleNamespace(config=to_dict(config()), frozen=data.frozen, **study)))
    return _Opened(chosen=chosen, data=data, model=torch.nn.Identity(), facts=facts, numerics=cast(Any, None), seed=1)


def test_a_study_that_an_earlier_version_began_goes_on_as_it_read(folder: Path) -> None:
    data = opened(folder)
    earlier = replace(data.frozen, ranges=(), labelled_digest="", validation_digest="", test_digest="", read_with="")
    assert corners(opened(folder, before=replace(data, frozen=earlier))) == [8, 125, 125]


def test_a_set_that_is_brighter_than_the_labelled_images_is_said(folder: Path, caplog: pytest.LogCaptureFixture
                                                                ) -> None:
    write(folder / "labelled.npz", seed=1, brightest=3000)
    write(folder / "test.npz", seed=3, brightest=60000)
    with caplog.at_level(logging.WARNING, logger="semisilo.study"):
        data = opened(folder)
    assert corners(data) == [125, 125, 8]
    assert [record.getMessage() for record in caplog.records if "white" in record.getMessage() or
            "go up to" in record.getMessage()] == [
        "values of 16 bits go up to 65535 in the test images, and not beyond 4095 in those that the study learns from:"
        " they are read darker; set [data.image.reading] window"]


def test_of_8_bits_nothing_is_kept(folder: Path) -> None:
    for name, seed in (("labelled", 1), ("validation", 2), ("test", 3)):
        write(folder / f"{name}.npz", seed=seed, brightest=250, dtype="uint8")
    frozen = opened(folder).frozen
    assert frozen.ranges == ()
    assert "ranges" not in to_dict(frozen)
    assert isinstance(opened(folder).images, CoordinatorData)
