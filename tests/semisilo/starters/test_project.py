"""`semisilo new PROJECT`: what it makes runs at once."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

import semisilo
from semisilo.simulation.settings import load_simulated_study
from tests.processes import run_command

MODULE = "semisilo.cli.main"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_project_has_a_study_a_script_and_a_place_for_images(tmp_path: Path) -> None:
    status, out, err = run_command(MODULE, "new", "eye-scans")
    assert (status, err) == (0, "")
    assert out.splitlines() == ["Made. Next:", "  cd eye-scans", "  semisilo simulate study.toml",
                                "  python compare.py"]
    project = tmp_path / "eye-scans"
    assert sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()) == [
        ".gitignore", "README.md", "compare.py", "data/README.md", "study.toml"]
    assert load_simulated_study(project / "study.toml").name == "eye-scans"
    assert "runs/eye-scans" in (project / "README.md").read_text()


@pytest.mark.slow  # quickly: that the study can be read, above
@pytest.mark.usefixtures("pictures_left_blank", "simulated_in_one_process")
def test_its_study_and_its_script_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_command(MODULE, "new", "eye-scans")
    project = tmp_path / "eye-scans"
    monkeypatch.chdir(project)
    study = (project / "study.toml").read_text()
    for shown, quick in (("rounds = 10", "rounds = 1\nlabelled_only_baseline = false"),
                         ("num_labelled = 50", "num_labelled = 50, fraction = 0.1")):
        assert shown in study
        study = study.replace(shown, quick)
    (project / "study.toml").write_text(study)
    status, _, err = run_command(MODULE, "simulate", "study.toml", "--quiet")
    assert status == 0, err
    assert (project / "runs" / "eye-scans" / "report" / "index.html").is_file()
    calls: list[dict[str, Any]] = []
    real = semisilo.compare

    def quick(**arguments: Any) -> Any:
        calls.append(arguments)
        return real(**{**arguments, "rounds": 1, "labelled_only": False, "progress": False}, num_test=900,
                    engine="process")

    monkeypatch.setattr(semisilo, "compare", quick)
    runpy.run_path(str(project / "compare.py"), run_name="__main__")
    assert (calls[0]["data"], calls[0]["rounds"]) == ("digits", 5)
    assert (project / "comparison.png").is_file()


@pytest.mark.parametrize(("words", "says"), [
    (("new",), "Missing argument"), (("new", "taken"), "taken: is there already, and not empty"),
    (("new", "method"), "A method needs a name"), (("new", "a", "b"), "'b' is one word too many"),
    (("new", "method", "semifl"), "'semifl' is built in"), (("new", "method", "Über"), "cannot name a method"),
    (("new", "method", "json"), "'json' cannot name a method: `import json` is another package"),
    (("new", "method", "torch"), "`import torch` is another package"),
    (("new", "method", "pytest"), "`import pytest` is another package"),
    (("new", "method", "test"), "`import test` is another package"),
    (("new", "method", "class"), "cannot name a method"), (("new", "method", "../x"), "cannot name a method"),
    (("new", "file/x"), "cannot be written")])
def test_what_cannot_be_made_is_a_wrong_use_and_nothing_is_written(tmp_path: Path, words: tuple[str, ...],
                                                                   says: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(os.listdir(tmp_path))
    status, _, err = run_command(MODULE, *words)
    assert status == 2
    assert says in err
    assert sorted(os.listdir(tmp_path)) == before


def test_a_project_may_be_called_whatever_a_folder_may(tmp_path: Path) -> None:
    assert run_command(MODULE, "new", "my study & co")[0] == 0
    project = tmp_path / "my study & co"
    name = load_simulated_study(project / "study.toml").name
    assert name == "my-study-co"
    text = (project / "README.md").read_text()
    assert text.startswith("# my study & co\n")
    assert f"a report in runs/{name}\n" in text


def test_a_project_may_be_called_method(tmp_path: Path) -> None:
    assert run_command(MODULE, "new", "./method")[0] == 0
    assert (tmp_path / "method" / "study.toml").is_file()
