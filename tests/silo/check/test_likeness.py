"""`silo check` and `silo data` warn of images that are unlike the study's, and only of these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semisilo.common.data.form import ImageForm
from semisilo.common.data.preview.likeness import FEWEST_IMAGES
from semisilo.common.errors import BadPayload
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.studies import describe
from semisilo.silo.check.likeness import look_at_likeness
from semisilo.silo.check.needs import StudyNeeds, needs_of
from semisilo.silo.cli.main import app
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import DataPolicy, Policy
from semisilo.silo.site.study_images import StudyImages, note_study_images, read_study_images
from tests.silo.check.test_report import described, needs


@pytest.fixture(scope="module")
def pixels() -> Any:
    """uint8 (1797, 8, 8)."""
    from sklearn.datasets import load_digits

    return np.round(load_digits().images * 255 / 16).astype(np.uint8)


def digits_study(pixels: Any, **changes: Any) -> StudyNeeds:
    """A study that was normalised on 80 digits."""
    form = ImageForm(size=8, channels=1, mean=(float(pixels[:80].mean()) / 255,),
                     std=(float(pixels[:80].std()) / 255,))
    made = needs()
    return replace(made, **{"task": replace(made.task, image=form), "begun": True, "normalisation_images": 80,
                            **changes})


def site(folder: Path, images: Any) -> tuple[SiloHome, Policy]:
    np.savez(folder / "scans.npz", train_images=images)
    return SiloHome(folder), Policy(data=DataPolicy(source=str(folder / "scans.npz")))


def test_like_images_are_well_and_inverted_ones_a_warning_with_what_to_do(tmp_path: Path, pixels: Any) -> None:
    home, policy = site(tmp_path, pixels[200:400])
    (found,) = look_at_likeness(home, policy, digits_study(pixels))
    assert (found.state, found.what) == ("ok", "likeness")
    assert found.facts["site"]["images"] == 64
    home, policy = site(tmp_path, 255 - pixels[200:400])
    (found,) = look_at_likeness(home, policy, digits_study(pixels))
    assert found.state == "warning"
    assert "unlike those of the study: brighter: mean 0.6" in found.text
    assert "silo data" in found.remedy


@pytest.mark.parametrize("changes", [{"normalisation_images": 19}, {"normalisation_images": 0}, {"begun": False}])
def test_without_measured_normalisation_there_is_nothing_to_compare_with(tmp_path: Path, pixels: Any,
                                                                         changes: dict[str, Any]) -> None:
    home, policy = site(tmp_path, 255 - pixels[:100])
    assert look_at_likeness(home, policy, digits_study(pixels, **changes)) == []
    assert not home.study_images.exists()


def test_where_each_image_is_standardised_by_itself_it_is_said_what_still_counts(
        tmp_path: Path, pixels: Any, capsys: pytest.CaptureFixture[str]) -> None:
    home, policy = site(tmp_path, 255 - pixels[200:400])
    needs = digits_study(pixels)
    by_image = replace(needs, task=replace(needs.task, image=replace(needs.task.image, standardise="image")))
    by_study, found = (look_at_likeness(home, policy, each)[0] for each in (needs, by_image))
    assert (found.state, found.text) == ("warning", by_study.text)
    assert "tell the coordinator's operator" in by_study.remedy
    assert "if it is right, there is nothing to do" in found.remedy
    words = ["data", str(tmp_path / "scans.npz"), "--home", str(tmp_path)]
    said = "hardly count; black and white the wrong way round"
    assert run_cli(app, words, name="silo") == 0
    assert (shown := " ".join(capsys.readouterr().out.split())).count("unlike the images of study") == 1
    assert said in shown
    look_at_likeness(home, policy, needs)
    assert run_cli(app, words, name="silo") == 0
    assert said not in (shown := " ".join(capsys.readouterr().out.split()))
    assert "unlike the images of study" in shown


def test_few_images_and_none_at_all_are_not_judged(tmp_path: Path, pixels: Any) -> None:
    home, policy = site(tmp_path, 255 - pixels[:19])
    assert look_at_likeness(home, policy, digits_study(pixels)) == []
    missing = Policy(data=DataPolicy(source=str(tmp_path / "nothing")))
    assert look_at_likeness(home, missing, digits_study(pixels)) == []


def test_silo_data_says_the_same_of_every_source_once_check_has_heard_of_a_study(
        tmp_path: Path, pixels: Any, capsys: pytest.CaptureFixture[str]) -> None:
    home, policy = site(tmp_path, 255 - pixels[200:400])
    words = ["data", str(tmp_path / "scans.npz"), "--home", str(tmp_path)]
    assert run_cli(app, words, name="silo") == 0
    assert "unlike" not in capsys.readouterr().out
    look_at_likeness(home, policy, digits_study(pixels))
    assert run_cli(app, words, name="silo") == 0
    assert "unlike the images of study" in capsys.readouterr().out
    assert run_cli(app, [*words, "--size", "96"], name="silo") == 0
    assert "unlike" not in capsys.readouterr().out, "another size has other contrast"
    np.savez(tmp_path / "scans.npz", train_images=pixels[200:400])
    assert run_cli(app, words, name="silo") == 0
    assert "unlike" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"{}", b'{"study": "s", "images": -1, "form": {"size": 8, "channels": 1, '
                                     b'"mean": [0.5], "std": [0.5]}}'])
def test_a_damaged_note_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "study_images.json"
    note = StudyImages(study="s", images=80, form=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)))
    note_study_images(path, note)
    assert read_study_images(path) == note
    path.write_bytes(content)
    assert read_study_images(path) is None


def test_how_many_images_a_study_was_normalised_on_is_told_from_20_on_and_only_where_it_was_measured() -> None:
    from semisilo.coordinator.ledger.records import FrozenStudy
    from semisilo.coordinator.studies.study_file import ImageSettings

    assert describe._FEWEST_IMAGES == FEWEST_IMAGES
    frozen = FrozenStudy(classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)),
                         num_labelled=20, num_validation=30, num_test=0, num_parameters=1, dense_bytes=4)
    measured = ImageSettings(size=8, channels=1)
    count = describe._normalisation_images
    assert count(measured, frozen) == 20
    assert count(measured, replace(frozen, num_labelled=19)) == 0
    assert count(replace(measured, mean="validation", std="validation"), frozen) == 30
    assert count(replace(measured, mean=(0.5,)), frozen) == 0
    assert count(measured, None) == 0


def test_a_count_that_cannot_be_is_refused() -> None:
    assert needs_of(described(normalisation_image_count=80), silo="a")[0] is not None
    found, finding = needs_of(described(normalisation_image_count=-1), silo="a")
    assert (found, finding.state if finding else "") == (None, "bad")
    assert BadPayload.code in str(finding)
