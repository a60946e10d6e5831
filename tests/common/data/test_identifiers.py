"""Class folders that look like patients: asked about, and real classes left alone."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.identifiers import patients_for_classes
from semisilo.common.data.preview.preview import look_at
from tests.each_of import each_of

FORM = Geometry(size=8, channels=1, resize="fit")


@each_of("names", [
    [f"PAT{number:05d}" for number in range(300)], [str(4711000 + number) for number in range(12)],
    [f"patient {number}" for number in range(1, 9)], [f"{number:08x}-90ab" for number in range(20)],
    [f"1.2.840.113619.{number}" for number in range(6)], [f"Mustermann_{chr(97 + n % 26)}{n}" for n in range(60)]])
def test_folders_of_patients_are_asked_about(names):
    said = patients_for_classes(dict.fromkeys(names, 2))
    assert said.startswith(f"are these {len(names)} folders patients or examinations, and no classes?")
    assert f"'{names[0]}'" in said


@each_of("counts", [
    {"covid": 3, "healthy": 2, "pneumonia": 4, "other": 1, "none": 2}, {str(digit): 150 for digit in range(10)},
    {f"n0144{number:04d}": 1300 for number in range(1000)}, {"grade 0": 5, "grade 1": 5, "grade 2": 5, "grade 3": 5,
                                             "grade 4": 5}, {"PAT001": 1, "PAT002": 2}, {}])
def test_classes_are_not(counts):
    assert patients_for_classes(counts) == ""


def scans(folder: Path) -> str:
    for number in range(6):
        (folder / f"PAT{number:03d}").mkdir(parents=True)
        Image.new("L", (8, 8), number).save(folder / f"PAT{number:03d}" / "a.png")
    return str(folder)


def test_a_look_asks_and_names_what_to_do_until_somebody_has_said_it(tmp_path):
    source = scans(tmp_path)
    (question,) = look_at(source, form=FORM, at_silo=True).questions
    assert "a folder" not in question
    assert "one folder called 'unlabelled'" in question
    (tmp_path / "PAT999").mkdir()
    assert look_at(source, form=FORM, at_silo=True).notes == (), "an empty folder is no class without images, then"
    assert "labels = false in [data] of silo.toml" in question
    assert "--no-labels" in question
    (question,) = look_at(source, form=FORM).questions
    assert "a folder for each class" in question
    told = look_at(source, form=FORM, at_silo=True, use_labels=False)
    assert (told.questions, told.labelled, told.unlabelled, told.classes) == ((), 0, 6, {})
