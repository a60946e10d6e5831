"""What a model is measured on when it is handed over: nothing that it was trained or chosen with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from semisilo.common.config import to_dict
from semisilo.common.errors import BadData, UsageError
from semisilo.coordinator.export.card import card_test, limits_of
from semisilo.coordinator.export.choose_model import CHANGED_TEST, STUDY_TEST
from semisilo.coordinator.export.export import ExportChoice, _Opened, _test_images, export_study
from semisilo.coordinator.studies.images import StudyData, read_study_data
from semisilo.coordinator.studies.model_facts import model_facts
from semisilo.coordinator.studies.study_file import config_from_dict
from tests.coordinator.export.test_card import COMPLETE, MEASURES

CONFIG = config_from_dict({
    "study": {"seed": 4}, "model": {"name": "small_cnn"}, "method": {"name": "semifl"},
    "data": {"labelled": "labelled.npz", "validation": "validation.npz", "test": "test.npz",
             "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.25]}}}, where="study")


def write(path: Path, *, seed: int, patients: Mapping[str, int] | None = None) -> None:
    """Eight images of eight patients, no two alike; some patients may be given by their place."""
    names = [f"{path.stem}{index}" for index in range(8)]
    for name, index in (patients or {}).items():
        names[index] = name
    np.savez(path, images=np.random.default_rng(seed).integers(0, 256, (8, 8, 8), dtype=np.uint8),
             labels=np.arange(8) % 2, patients=np.array(names))


@pytest.fixture
def data(tmp_path: Path) -> StudyData:
    for seed, name in enumerate(("labelled", "validation", "test")):
        write(tmp_path / f"{name}.npz", seed=seed)
    return read_study_data(CONFIG, folder=tmp_path, frozen=None)


def opened(data: StudyData) -> _Opened:
    """What an export works on, without a model."""
    chosen = cast(Any, SimpleNamespace(study=SimpleNamespace(config=to_dict(CONFIG), frozen=data.frozen)))
    facts = model_facts("s", CONFIG, data.frozen, data.images.labelled, round=1, state="0" * 64)
    return _Opened(chosen=chosen, data=data, model=torch.nn.Identity(), facts=facts, numerics=cast(Any, None), seed=1)


@pytest.mark.parametrize("of", ["labelled", "validation"])
def test_other_test_images_of_patients_that_were_learnt_or_chosen_from_are_refused(data: StudyData, tmp_path: Path,
                                                                                   of: str) -> None:
    write(tmp_path / "other.npz", seed=9, patients={f"{of}3": 5})
    with pytest.raises(BadData) as caught:
        _test_images(opened(data), ExportChoice(test=str(tmp_path / "other.npz")))
    assert caught.value.text == (f"--test {tmp_path / 'other.npz'}: 1 patient of the test images have {of} ones as well"
                                 f" (other.npz[5] and {of}.npz[3]).")
    assert "--patient none" in caught.value.remedy
    choice = ExportChoice(test=str(tmp_path / "other.npz"), patient="none")
    assert _test_images(opened(data), choice)[0] is not None, "others of the same names"


def test_how_patients_are_known_is_said_of_other_test_images_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--patient none: is said of the images of --test, and there are none"):
        export_study(cast(Any, None), "s", study_folder=tmp_path, choice=ExportChoice(patient="none"))


def test_patients_are_not_looked_at_for_a_study_that_has_not_kept_them_apart(data: StudyData, tmp_path: Path) -> None:
    """Its own sets may share patients."""
    write(tmp_path / "other.npz", seed=9, patients={"labelled3": 5})
    begun_before = replace(data, frozen=replace(data.frozen, by_patient=False))
    assert _test_images(opened(begun_before), ExportChoice(test=str(tmp_path / "other.npz")))[0] is not None


def test_those_of_patients_of_their_own_are_measured(data: StudyData, tmp_path: Path) -> None:
    write(tmp_path / "other.npz", seed=9, patients={"test3": 5})  # tested before: nothing was learnt from it
    found, source = _test_images(opened(data), ExportChoice(test=str(tmp_path / "other.npz")))
    assert found is not None
    assert (len(found), source) == (8, "other images (other.npz)")


def test_what_is_measured_on_changed_test_images_is_compared_with_nothing_of_before(data: StudyData) -> None:
    """Labels alone and the round were measured on the others."""
    assert _test_images(opened(data), ExportChoice())[1] == STUDY_TEST
    changed = replace(data, changes={"test": "8 test images then, 9 now"})
    images, source = _test_images(opened(changed), ExportChoice())
    assert images is not None
    assert source == CHANGED_TEST
    assert _test_images(opened(replace(data, changes={"labelled": "8 then, 9 now"})), ExportChoice())[1] == STUDY_TEST
    card = replace(COMPLETE, test=card_test(MEASURES, source=source, digest="ab"))
    assert (COMPLETE.shows_gain, card.shows_gain, card.gain) == (True, False, None)
    assert any("was shown while the study ran" in each for each in limits_of(card)), "many of them are the same"
