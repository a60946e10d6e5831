"""`coordinator data`, and what a study does with `on_error` and `reading`."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.cli.main import app
from semisilo.coordinator.studies.images import read_study_data
from semisilo.coordinator.studies.study_file import config_from_dict
from tests.each_of import each_of

STUDY = """[data]
labelled = "data/labelled"
test = "data/test"
image = { size = 8, channels = 1 }
[method]
name = "semifl"
"""


@pytest.fixture
def lung(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A federation with a study of cats and dogs, whose test images hold a fox."""
    assert run_cli(app, ["init", "lung", "--folder", str(tmp_path / "lung")], name="coordinator") == 0
    study = tmp_path / "lung/studies/first"
    (study / "study.toml").write_text(STUDY)
    for name, value in (("labelled/cat/a", 10), ("labelled/dog/b", 20), ("test/cat/c", 30), ("test/fox/d", 40)):
        path = study / "data" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), value).save(path)
    capsys.readouterr()
    return tmp_path / "lung"


def run(*words: str) -> int:
    return run_cli(app, ["data", *words], name="coordinator")


def test_a_study_is_looked_at_in_its_own_form_and_the_sheet_lies_in_its_folder(lung, capsys):
    assert run("--study", "first", "--folder", str(lung), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["classes"] == {"cat": 1, "dog": 1}
    sheet = lung / "studies/first/contact-sheet.png"
    assert facts["sheet"] == str(sheet)
    assert Image.open(sheet).format == "PNG"
    assert stat.S_IMODE(sheet.stat().st_mode) == 0o600


def test_its_test_images_are_compared_with_its_classes(lung, capsys):
    assert run("test", "--study", "first", "--folder", str(lung)) == 1
    said = capsys.readouterr().out
    assert "no fit      'fox' is not a class of the study, whose classes are cat, dog." in said
    assert "class 'dog' has no image here" in said
    assert f"sheet       {lung}/studies/first/contact-sheet-test.png" in said, "not that of the labelled images"


@pytest.mark.slow
@pytest.mark.parametrize(("on_error", "status"), [("stop", 1), ("report", 1), ("skip", 0)])
def test_where_a_study_would_stop_at_a_broken_file_looking_says_so_and_fails(lung, capsys, on_error, status):
    study = lung / "studies/first/study.toml"
    study.write_text(STUDY.replace("[data]\n", f'[data]\non_error = "{on_error}"\n'))
    words = ("--study", "first", "--folder", str(lung))
    assert run(*words) == 0
    assert "on_error" not in capsys.readouterr().out
    (lung / "studies/first/data/labelled/cat/bad.png").write_bytes(b"")
    assert run(*words) == status
    said = capsys.readouterr().out
    assert ("and stops here" in said or "this study stops here" in said) == (status == 1)
    assert ('set [data] on_error = "skip"' in said) == (status == 1)
    assert run(*words, "--json") == status
    assert json.loads(capsys.readouterr().out)["study_stops"] == (status == 1)
    assert run(str(lung / "studies/first/data/labelled"), *words) == 0, "the study does not read what is named so"


def test_any_folder_can_be_looked_at_without_a_federation(lung, tmp_path, capsys):
    source = str(lung / "studies/first/data/test")
    assert run(source, "--sheet", str(tmp_path / "sheet.png")) == 0
    said = capsys.readouterr().out
    assert f"{source}: class folders, 2 images" in said
    assert f"sheet       {tmp_path}/sheet.png" in said


@pytest.mark.parametrize(("words", "status", "said"), [
    ((), 2, "No images were named"), (("/nowhere",), 1, "no such folder"),
    (("validation", "--study", "first"), 2, "has no validation images"),
    (("--study", "second"), 2, "study.toml")])
def test_what_cannot_be_looked_at_is_one_line(lung, capsys, words, status, said):
    assert run(*words, *(["--folder", str(lung)] if "--study" in words else [])) == status
    seen = capsys.readouterr()
    assert said in seen.err
    assert seen.err.count("\n") == 1
    assert seen.out == ""


@pytest.mark.parametrize(("share", "copies", "said"), [
    ("50%", 1, "about 1 of 2 are held out of its labelled ones"),
    ("auto", 1, "Study first has no validation images. Add validation to [data] of its file."),
    ("auto", 150, "about 60 of 300 are held out of its labelled ones"),
    ("0%", 150, "Study first has no validation images.")])
def test_validation_images_that_are_held_out_are_not_denied(lung, capsys, share, copies, said):
    study = lung / "studies/first"
    (study / "study.toml").write_text(STUDY.replace("[method]", f'validation_share = "{share}"\n[method]'))
    for path in list((study / "data/labelled").rglob("*.png")):
        for number in range(1, copies):
            shutil.copy(path, path.with_name(f"{path.stem}-{number}.png"))
    assert run("validation", "--study", "first", "--folder", str(lung)) == 2
    assert said in capsys.readouterr().err


def test_a_sheet_that_cannot_be_written_is_one_line(lung, capsys):
    assert run("digits", "--sheet", "/proc/none/sheet.png") == 1
    assert "the contact sheet cannot be written" in capsys.readouterr().err


def test_help_answers_without_numpy():
    code = ("import sys; from semisilo.common.text.cli_errors import run_cli; "
            "from semisilo.coordinator.cli.main import app; "
            "run_cli(app, ['data', '--help'], name='coordinator'); sys.exit('numpy' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


# What a study does ----------------------------------------------------------------------------------------------------


def config(**data: object) -> object:
    images = {"labelled": "labelled", "test": "test", "image": {"size": 8, "channels": 1}}
    return config_from_dict({"data": images | data, "model": {"name": "small_cnn"}, "method": {"name": "semifl"}},
                            where="study.toml")


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Labelled and test images of 12 bits, one of each class; one of each set is broken."""
    for part, values in (("labelled", (1000, 2000)), ("test", (1100, 1900))):
        for name, value in zip(("cat", "dog"), values, strict=True):
            (tmp_path / part / name).mkdir(parents=True)
            Image.fromarray(np.full((8, 8), value, np.uint16)).save(tmp_path / part / name / "a.png")
        (tmp_path / part / "cat/bad.png").write_bytes(b"")
    return tmp_path


def test_report_reads_all_sets_of_a_study_before_it_stops(deep, caplog):
    with pytest.raises(BadData, match="2 files cannot be used; each is named above"):
        read_study_data(config(on_error="report"), folder=deep, frozen=None)
    assert "labelled: cat/bad.png" in caplog.text
    assert "test: cat/bad.png" in caplog.text
    found = read_study_data(config(on_error="skip"), folder=deep, frozen=None)
    assert len(found.frozen.skipped) == 2


def test_the_reading_of_a_study_makes_its_pixels_is_frozen_and_cannot_change(deep):
    image = {"size": 8, "channels": 1, "reading": {"window": [1500, 1000]}}
    found = read_study_data(config(on_error="skip", image=image), folder=deep, frozen=None)
    assert found.images.labelled.images_NCHW[:, 0, 0, 0].tolist() == [0, 255]
    assert found.frozen.image.reading.window == (1500, 1000)
    plain = read_study_data(config(on_error="skip"), folder=deep, frozen=None)
    assert plain.images.labelled.images_NCHW[:, 0, 0, 0].tolist() == [62, 125], "round(255 * value / 4095)"
    with pytest.raises(BadConfiguration, match="reading"):
        read_study_data(config(on_error="skip"), folder=deep, frozen=found.frozen)


def test_with_labels_at_both_the_labels_bring_the_classes_which_must_be_names_that_silos_may_have(deep, caplog):
    def opened(scenario, **data):
        return read_study_data(config_from_dict({
            "data": {"labelled": "labelled", "on_error": "skip", "image": {"size": 8, "channels": 1}, **data},
            "model": {"name": "small_cnn"}, "method": {"name": "self_training", "scenario": scenario}},
            where="study.toml"), folder=deep, frozen=None)

    assert opened("labels-at-both").frozen.classes == ("cat", "dog")
    assert "no labelled image" not in caplog.text
    opened("labels-at-both", classes=["cat", "cow", "dog", "pig"])
    assert "no labelled image of 'cow' and 1 more of the study's classes: what silos learn" in caplog.text
    caplog.clear()
    opened("labels-at-coordinator")
    assert "no labelled image" not in caplog.text
    opened("labels-at-coordinator", classes=["cat", "cow", "dog"])
    assert "no labelled image of 'cow': nobody has labels of such a class, so the model can never" in caplog.text
    (deep / "labelled/dog").rename(deep / "labelled/unlabelled")
    for scenario in ("labels-at-both", "labels-at-coordinator"):
        with pytest.raises(BadData, match="is the folder 'unlabelled' a class"):
            opened(scenario)
    named = ["cat", "unlabelled"]
    with pytest.raises(BadConfiguration, match="no class may be called 'unlabelled'"):
        opened("labels-at-both", classes=named)
    assert opened("labels-at-coordinator", classes=named).frozen.classes == ("cat", "unlabelled"), \
        "silos' folders are not read"


@each_of(("measure", "tau", "said"), [
    ("accuracy", 1.0, True), ("accuracy", 0.0, False), ("balanced_accuracy", 1.0, False)])
def test_a_study_about_accuracy_is_told_that_self_training_makes_a_model_for_balanced_accuracy(
        deep, caplog, measure, tau, said):
    caplog.clear()
    for name in "bcd":
        Image.fromarray(np.full((8, 8), 1000 + ord(name), np.uint16)).save(deep / f"labelled/cat/{name}.png")
    read_study_data(config_from_dict({
        "study": {"measure": measure}, "data": {"labelled": "labelled", "on_error": "skip", "image": {
            "size": 8, "channels": 1}}, "model": {"name": "small_cnn"},
        "method": {"name": "self_training", "logit_adjustment": tau}}, where="study.toml"), folder=deep, frozen=None)
    assert ("logit_adjustment = 0" in caplog.text) == said


@each_of(("measure", "said"), [
    ("balanced_accuracy", True), ("recall:cow", True), ("recall:cat", False), ("accuracy", False)])
def test_classes_that_validation_or_test_images_lack_are_said_where_the_measure_is_about_them(
        deep, caplog, measure, said):
    caplog.clear()
    read_study_data(config_from_dict({
        "study": {"measure": measure}, "data": {"labelled": "labelled", "test": "test", "on_error": "skip",
                                                "classes": ["cat", "cow", "dog", "pig"],
                                                "image": {"size": 8, "channels": 1}},
        "model": {"name": "small_cnn"}, "method": {
            "name": "fedavg", "scenario": "labels-at-silo"}}, where="study.toml"),
        folder=deep, frozen=None)
    more = "" if measure.startswith("recall") else " and 1 more of the study's classes"
    assert (f"the test images, which are what the model is judged by, have none of 'cow'{more}" in caplog.text) == said


ODD = "naevus: atypisch 斑"


@pytest.mark.slow
@each_of(("parts", "refused"), [
    ({"labelled": "ab"}, "of the 6 labelled images none is of 'naevus: atypisch 斑', so no model can learn it"),
    ({"labelled": "abo", "validation": "ab"}, "of the 6 validation images none is of"),
    ({"labelled": "abo", "validation": "o"}, "of the 3 validation images every one is of"),
    ({"labelled": "abo", "test": "ab"}, ""), ({"labelled": "abo", "validation": "abo", "test": "abo"}, ""),
    ({"validation": "abo"}, "")])
def test_the_recall_of_a_class_that_cannot_be_learnt_or_chosen_by_is_refused_before_anything_is_done(
        tmp_path, caplog, parts, refused):
    """A class may be called with a colon, spaces and letters of any script."""
    caplog.clear()
    shutil.rmtree(tmp_path, ignore_errors=True)
    pixels = np.random.default_rng(0)
    for part, kinds in parts.items():
        for kind in kinds:
            folder = tmp_path / part / {"a": "a", "b": "b", "o": ODD}[kind]
            folder.mkdir(parents=True)
            for number in range(3):
                Image.fromarray(pixels.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{number}.png")
    method = {"name": "semifl"} if "labelled" in parts else {
        "name": "fedavg", "scenario": "labels-at-silo"}
    study = config_from_dict({
        "study": {"measure": f"recall:{ODD}"}, "model": {"name": "small_cnn"}, "method": method,
        "data": {**{part: part for part in parts}, "classes": ["a", "b", ODD], "image": {
            "size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}}}, where="study.toml")
    if refused:
        with pytest.raises(BadConfiguration, match=f"\\[study\\] measure = \"recall:{ODD}\": {refused}"):
            read_study_data(study, folder=tmp_path, frozen=None)
        return
    frozen = read_study_data(study, folder=tmp_path, frozen=None).frozen
    assert frozen.study_measure.class_name == ODD
    said = f"have none of '{ODD}': the study's recall of {ODD} is not measured there"
    assert (said in caplog.text) == (parts.get("test") == "ab")


@each_of(("reading", "said"), [
    ({"window": "auto"}, 'window = "auto"'), ({"windw": "file"}, "window"), ({"frames": "last"}, "frames"),
    ({"axis": "top"}, "axial")])
def test_a_reading_that_does_not_exist_is_refused_by_name(reading, said):
    with pytest.raises(BadConfiguration) as caught:
        config(image={"size": 8, "channels": 1, "reading": reading})
    assert said in caught.value.line()
