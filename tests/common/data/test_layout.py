"""Usual layouts of folders: what each is taken for, and that `silo data`, `silo check` and `silo join` say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from semisilo.common.data.formats.folder import list_images
from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.layout import Layout, layout_of
from semisilo.common.data.partly_labelled import check_partly_labelled
from semisilo.common.data.preview.preview import look_at
from semisilo.common.data.preview.preview_text import lines
from semisilo.common.data.readers import read_images
from semisilo.common.errors import BadData
from semisilo.silo.check.site import look_at_images
from semisilo.silo.compute.images import survey_silo_images
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.policy import DataPolicy, Policy

FORM = Geometry(size=8, channels=1, resize="fit")
PARTS = ["train/covid/a.png", "train/healthy/b.png", "val/covid/c.png", "test/covid/d.png", "test/healthy/e.png"]
PATIENTS = [f"PAT{number:04}/x.png" for number in range(8)]


def site(folder: Path, names: list[str]) -> str:
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), index).save(folder / name)
    return str(folder)


def of(folder: Path, names: list[str], **more: object) -> Layout:
    return layout_of(site(folder, names), list_images(folder), at_silo=True, **more)


@pytest.mark.parametrize("name", ["unlabelled", "Labelled", "no_label"])
def test_at_the_hub_a_folder_that_is_called_as_if_it_were_no_class_is_asked_about(tmp_path: Path, name: str) -> None:
    """It was one more class, and a third of the labels were wrong, without a word."""
    source = site(tmp_path, ["covid/a.png", "healthy/b.png", f"{name}/c.png"])
    found = layout_of(source, list_images(tmp_path))
    assert (found.question, found.is_refused) == (f"is '{name}' a class?", False)
    assert "[data] classes" in found.remedy
    with pytest.raises(BadData, match=f"is the folder '{name}' a class") as refused:
        read_images(source, size=8, channels=1)
    assert "move it out" in refused.value.remedy
    classes = ("covid", "healthy", name)
    assert layout_of(source, list_images(tmp_path), classes=classes).question == ""
    assert read_images(source, size=8, channels=1, classes=classes).classes == classes


@pytest.mark.parametrize(("names", "understood"), [
    (["a.png"], "images without a label, in no folder"), (["unlabelled/P1/a.png"], "images without a label, in"
                                                                                 " 'unlabelled'"),
    (["covid/a.png", "healthy/b.png", "unlabelled/c.png", "d.png"],
     "class folders: covid, healthy; 'unlabelled' without a label; 1 image beside them without a label"),
    (["labelled/covid/a.png", "labelled/healthy/b.png", "unlabelled/c.png"],
     "class folders: covid, healthy in 'labelled'; all else without a label"),
    (["labelled/train/a.png", "labelled/test/b.png"], "class folders: test, train in 'labelled'; all else without a"
                                                      " label"),
    (["test/a.png", "covid/b.png"], "class folders: covid, test"), (["test/a.png"], "class folders: test")])
def test_what_is_clear_is_said_and_asks_nothing(tmp_path: Path, names: list[str], understood: str) -> None:
    found = of(tmp_path, names)
    assert (found.understood, found.asks, found.is_refused) == (understood, "", False)


def test_an_empty_folder_for_labelled_images_is_asked_about(tmp_path: Path) -> None:
    """A share that is not mounted leaves one."""
    (tmp_path / "labelled" / "covid").mkdir(parents=True)
    found = of(tmp_path, ["unlabelled/a.png", "b.png"])
    assert found.question == "is the folder 'labelled' meant to be empty?"
    assert survey_silo_images(JoinChoice(source=str(tmp_path))).question == found.question
    assert not found.is_refused


def test_an_empty_folder_for_labelled_images_lifts_no_refusal_of_parts(tmp_path: Path) -> None:
    (tmp_path / "labelled").mkdir()
    assert of(tmp_path, PARTS).is_refused
    with pytest.raises(BadData, match="parts of a data set, not classes"):
        survey_silo_images(JoinChoice(source=str(tmp_path)))


@pytest.mark.parametrize("names", [["train", "test"], ["Training", "Testing"], ["training_set", "valid", "test-images"],
                                   ["train", "dev"], ["train"], ["val", "test"]])
def test_parts_of_a_data_set_are_no_classes_until_the_study_has_such_a_class(tmp_path: Path, names: list[str]) -> None:
    files = [f"{name}/covid/a.png" for name in names]
    assert of(tmp_path, files).is_refused
    assert not of(tmp_path, files, classes=tuple(names)).is_refused


def test_parts_say_which_to_name_where(tmp_path: Path) -> None:
    found = of(tmp_path, PARTS)
    assert found.understood.startswith("parts of a data set, not classes: 'test' (class folders: covid, healthy), ")
    assert f'source = "{tmp_path}/train", test = "{tmp_path}/test"' in found.remedy
    assert f"silo join --data {tmp_path}/train --test {tmp_path}/test; 'val' is then not used" in found.remedy
    at_hub = layout_of(str(tmp_path), list_images(tmp_path))
    assert f'labelled = "{tmp_path}/train", validation = "{tmp_path}/val", test = "{tmp_path}/test"' in at_hub.remedy


def test_test_images_without_classes_are_not_named_as_such(tmp_path: Path) -> None:
    flat = of(tmp_path / "flat", ["train/a.png", "test/b.png"])
    assert "'test' (no folders)" in flat.understood
    patients = of(tmp_path / "patients", [*(f"train/{name}" for name in PATIENTS), "test/PAT9000/x.png"])
    assert "'test' (1 folder that may be patients), 'train' (8 folders that may be patients)" in patients.understood
    for found in (flat, patients):
        assert "--test" not in found.remedy
        assert "'test' is then not used" in found.remedy


def test_a_name_that_is_nearly_unlabelled_is_asked_about(tmp_path: Path) -> None:
    found = of(tmp_path, ["covid/a.png", "unlabeled/b.png"])
    assert (found.question, found.is_refused) == ("is 'unlabeled' a class?", False)
    assert "call it 'unlabelled'" in found.remedy


@pytest.mark.parametrize(("names", "refused"), [(PARTS, True), (PATIENTS, False),
                                                (["covid/a.png", "healthy/b.png", "unlabelled/c.png"], False)])
def test_data_check_and_join_say_the_same(tmp_path: Path, names: list[str], refused: bool) -> None:
    source = site(tmp_path / "scans", names)
    expected = layout_of(source, list_images(tmp_path / "scans"), at_silo=True)
    text = lines(look_at(source, form=FORM, at_silo=True))
    assert f"  taken for   {expected.understood}" in text
    assert (f"  question    {expected.asks}" in text) == bool(expected.asks)
    checked, _ = look_at_images(SiloHome(tmp_path), Policy(data=DataPolicy(source=source)))
    assert checked.state == ("bad" if refused else "warning" if expected.question else "ok")
    assert expected.understood in checked.text
    assert expected.remedy in (checked.remedy or "")
    chosen = JoinChoice(source=source)
    if refused:
        with pytest.raises(BadData) as joined:
            survey_silo_images(chosen)
        assert (joined.value.text, joined.value.remedy) == (checked.text, checked.remedy)
    else:
        told = survey_silo_images(chosen)
        assert (told.layout, told.question, told.remedy) == (expected.understood, expected.question, expected.remedy)
    without = survey_silo_images(JoinChoice(source=source, use_labels=False))
    assert (without.layout, without.unlabelled) == ("", len(names)), "the site has said that nothing has a label"


def test_what_is_not_clear_in_a_table_is_asked_by_check_and_join_as_well(tmp_path: Path) -> None:
    site(tmp_path, ["a.png", "b.png"])
    (tmp_path / "list.csv").write_text("filename,age,ward\na.png,40,A1\nb.png,41,A2\n")
    source = str(tmp_path / "list.csv")
    (question,) = look_at(source, form=FORM, at_silo=True).questions
    told = survey_silo_images(JoinChoice(source=source))
    assert question == f"{told.question}. {told.remedy}."
    checked, _ = look_at_images(SiloHome(tmp_path), Policy(data=DataPolicy(source=source)))
    assert (checked.state, told.question in checked.text) == ("warning", True)
    assert survey_silo_images(JoinChoice(source=f"{source}#label=none")).question == ""


def test_the_hub_refuses_parts_as_classes_and_a_study_with_classes_refuses_patients_as_such(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="parts of a data set, not classes"):
        read_images(site(tmp_path / "parts", PARTS), size=8, channels=1)
    assert len(read_images(str(tmp_path / "parts" / "train"), size=8, channels=1).images) == 2
    with pytest.raises(BadData, match="no folder has the name of a class of the study; are these 8 folders") as raised:
        check_partly_labelled(site(tmp_path / "patients", PATIENTS), classes=("covid", "healthy"))
    assert "--no-labels" in raised.value.remedy
