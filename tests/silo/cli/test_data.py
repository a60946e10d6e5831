"""`silo data`: looks at this site's images and leaves what it saw here; and `report` at a silo."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from PIL import Image

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadData
from semisilo.common.text.cli_errors import run_cli
from semisilo.silo.cli.main import app
from semisilo.silo.compute.images import read_silo_images
from semisilo.silo.site.home import JoinChoice


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Labelled and unlabelled images; one file that is none."""
    for name, value in (("scans/labelled/cat/a.png", 1), ("scans/labelled/dog/b.png", 2), ("scans/unlabelled/c.png", 3),
                        ("held/cat/d.png", 4)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), value).save(tmp_path / name)
    (tmp_path / "scans/unlabelled/bad.png").write_bytes(b"")
    return tmp_path


def run(*words: str) -> int:
    return run_cli(app, ["data", *words], name="silo")


def test_a_source_is_looked_at_as_a_silo_reads_it(site, capsys):
    home = site / "home"
    assert run(str(site / "scans"), "--home", str(home), "--json", "--classes", "cat, dog") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["labelled"], facts["unlabelled"], facts["classes"]) == (2, 1, {"cat": 1, "dog": 1})
    assert [item["name"] for item in facts["skipped"]] == ["unlabelled/bad.png"]
    sheet = home / "contact-sheet.png"
    assert facts["sheet"] == str(sheet)
    assert stat.S_IMODE(sheet.stat().st_mode) == 0o600, "it shows images of patients"


def test_a_class_that_the_study_does_not_have_ends_with_status_1(site, capsys):
    assert run(str(site / "scans"), "--home", str(site / "home"), "--classes", "cat,hound") == 1
    assert "'dog' is not a class of the study" in capsys.readouterr().out


def test_without_a_source_all_that_the_silo_knows_is_looked_at(site, capsys):
    home = site / "home"
    home.mkdir()
    assert run("--home", str(home)) == 2
    said = capsys.readouterr().err
    assert "No images were named" in said
    assert f"Say where they are: silo data --home {home} /scans" in " ".join(said.split()), "and not to join at once"
    (home / "silo.toml").write_text(f'[data]\nsource = "{site}/scans"\ntest = "{site}/held"\n')
    assert run("--home", str(home), "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["source"], second["source"]) == (f"{site}/scans", f"{site}/held")
    assert sorted(path.name for path in home.glob("*.png")) == ["contact-sheet-2.png", "contact-sheet.png"]
    (home / "silo.toml").unlink()
    JoinChoice(source=f"{site}/held").save(home / "join.json")
    assert run("--home", str(home)) == 0
    assert "held: class folders, 1 image" in capsys.readouterr().out


def test_test_images_that_are_trained_on_as_well_are_told_before_a_study_is_joined(site, capsys):
    def picture(name: str, value: int) -> None:
        Image.linear_gradient("L").resize((8, 8)).point(lambda grey: grey // 2 + value).save(site / name)

    home = site / "home"
    home.mkdir()
    (home / "silo.toml").write_text(f'[data]\nsource = "{site}/scans"\ntest = "{site}/held"\n')
    picture("scans/unlabelled/e.png", 5)
    for name, value in (("held/cat/copy.png", 5), ("held/dog/other.png", 90)):
        (site / name).parent.mkdir(exist_ok=True)
        picture(name, value)
    assert run("--home", str(home)) == 0
    said = capsys.readouterr().out
    assert "1 test image with the pixels of one to train on, first cat/copy.png: not tested with" in said
    for name in ("held/dog/other.png", "held/cat/d.png"):
        (site / name).unlink()
    assert run("--home", str(home)) == 1, "a study would refuse it"
    assert "no fit      every test image has the pixels of one to train on, first cat/copy.png." in \
        capsys.readouterr().out


def test_report_at_a_silo_reads_all_its_sources_before_it_stops(site, caplog):
    (site / "held/cat/worse.png").write_bytes(b"hello")
    choice = JoinChoice(source=str(site / "scans"), test=str(site / "held"), on_error="report")
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    with pytest.raises(BadData, match="2 files cannot be used"):
        read_silo_images(choice, form, classes=("cat", "dog"), scenario="labels-at-silo")
    assert "unlabelled/bad.png" in caplog.text
    assert "cat/worse.png" in caplog.text


def test_folders_of_patients_are_asked_about_and_the_option_answers(tmp_path, capsys):
    for number in range(7):
        (tmp_path / f"scans/PAT{number:03}").mkdir(parents=True)
        Image.new("L", (8, 8), number).save(tmp_path / f"scans/PAT{number:03}/x.png")
    words = (str(tmp_path / "scans"), "--home", str(tmp_path / "home"))
    assert run(*words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "question are these 7 folders patients or examinations, and no classes?" in said
    assert run(*words, "--no-labels", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["questions"], facts["labelled"], facts["unlabelled"]) == ([], 0, 7)
    (tmp_path / "home/silo.toml").write_text("[data]\nlabels = false\n")
    assert run(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["unlabelled"] == 7


def test_dicom_files_are_chosen_by_silo_toml_and_the_others_counted(tmp_path, capsys):
    pytest.importorskip("pydicom")
    from tests.common.data.formats.test_dicom import STORED, made

    (tmp_path / "scans").mkdir()
    for name, view in (("a", "PA"), ("b", "LL"), ("c", "AP")):
        made(tmp_path / f"scans/{name}.dcm", STORED, WindowCenter=40, WindowWidth=400, ViewPosition=view,
             PatientID=name, BurnedInAnnotation="YES")
    (tmp_path / "scans/report.pdf").write_bytes(b"%PDF")
    home = tmp_path / "home"
    home.mkdir()
    (home / "silo.toml").write_text(f'[data]\nsource = "{tmp_path}/scans"\ndicom = {{ ViewPosition = ["PA", "AP"] }}\n')
    assert run("--home", str(home)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  left out    1 by a setting of this site" in lines
    assert "    b.dcm: its ViewPosition is none of those that [data] dicom asks for" in lines
    assert "  left out    1 that are no images" in lines
    assert "  patients    2" in lines
    assert any("there is writing in them: 2 (BurnedInAnnotation" in line for line in lines)
    (home / "silo.toml").write_text(f'[data]\nsource = "{tmp_path}/scans"\ndicom = {{ viewposition = "PA" }}\n')
    assert run("--home", str(home)) == 2
    assert "'viewposition' is not a keyword of a DICOM tag" in capsys.readouterr().err
