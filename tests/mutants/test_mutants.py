"""The table of mutants fits the sources, and the runner tells killed, surviving and broken ones apart.

Mirrors no module: it is about tests/mutants itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.each_of import each_of
from tests.mutants.mutant import Mutant
from tests.mutants.run import ROOT, main, run_mutants
from tests.mutants.table import MUTANTS


@each_of("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutants_text_stands_once_in_its_file_and_its_tests_exist(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests or mutant.equivalent
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(async )?def {name.partition('[')[0]}\(", text, re.MULTILINE), name


def test_names_are_unique_and_there_are_enough() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert sum(not mutant.equivalent for mutant in MUTANTS) >= 60


def _project(folder: Path) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "calc.py").write_text("def add(a, b):\n    return a + b\n\n\ndef unseen(a):\n    return a + 1\n")
    (folder / "tests" / "test_calc.py").write_text(
        "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    return folder


def _mutant(name: str, old: str, new: str, **changes: str) -> Mutant:
    return Mutant(**{"name": name, "area": "calc", "file": "calc.py", "old": old, "new": new,
                     "tests": ("tests/test_calc.py::test_add",), **changes})


@pytest.mark.slow
def test_the_runner_tells_what_is_killed_survives_and_is_broken_and_leaves_the_checkout(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`a * b` is as long as `a + b`: that the file has changed shows in neither its size nor its second."""
    project = _project(tmp_path / "project")
    before = {path: path.read_bytes() for path in project.rglob("*.py")}
    reports = run_mutants([_mutant("killed", "a + b", "a * b"), _mutant("survives", "a + 1", "a - 1"),
                           _mutant("broken", "def add(a, b):", "def add(a, b:"),
                           _mutant("same", "a + b", "b + a", equivalent="addition commutes")], root=project, jobs=2,
                          libraries=())
    assert [report.verdict for report in reports] == ["killed", "survived", "broken"]
    assert "test_add" in reports[0].text
    assert "SyntaxError" in reports[2].text
    assert {path: path.read_bytes() for path in project.rglob("*.py")} == before
    assert "killed" in capsys.readouterr().out


@pytest.mark.slow
def test_a_mutant_is_not_taken_for_the_one_before_it_in_the_same_file(tmp_path: Path) -> None:
    reports = run_mutants([_mutant("survives", "a + 1", "a - 1"), _mutant("killed", "a + b", "a * b")],
                          root=_project(tmp_path / "project"), jobs=1, libraries=())
    assert [report.verdict for report in reports] == ["survived", "killed"]


@pytest.mark.slow
def test_a_package_that_is_reached_over_a_link_is_changed_in_the_copy(tmp_path: Path) -> None:
    """As `semisilo/common` is a link to `common/`: the copy's link leads into the copy, where the mutant is."""
    project = _project(tmp_path / "project")
    (project / "arithmetic").mkdir()
    (project / "calc.py").rename(project / "arithmetic" / "calc.py")
    (project / "whole").mkdir()
    (project / "whole" / "arithmetic").symlink_to("../arithmetic")
    (project / "tests" / "test_calc.py").write_text(
        "from whole.arithmetic.calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    reports = run_mutants([_mutant("killed", "a + b", "a * b", file="arithmetic/calc.py")], root=project, libraries=())
    assert [report.verdict for report in reports] == ["killed"]
    assert "a + b" in (project / "arithmetic" / "calc.py").read_text()


def test_a_test_that_fails_without_a_mutant_is_no_verdict(tmp_path: Path) -> None:
    project = _project(tmp_path / "project")
    (project / "tests" / "test_calc.py").write_text("def test_add():\n    assert False\n")
    with pytest.raises(RuntimeError, match="fail without any mutant"):
        run_mutants([_mutant("killed", "a + b", "a - b")], root=project, libraries=())


def test_a_mutant_whose_text_is_not_there_once_is_refused(tmp_path: Path) -> None:
    project = _project(tmp_path / "project")
    with pytest.raises(RuntimeError, match="occurs 2 times"):
        run_mutants([_mutant("twice", "return a + ", "return a - ")], root=project, libraries=())


def test_modules_that_come_from_the_checkout_are_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an editable installation whose finder is asked first."""
    project = _project(tmp_path / "project")
    (project / "tests" / "test_calc.py").write_text(
        f"import sys\nsys.path.insert(0, {str(project)!r})\nfrom calc import add\n\n\n"
        "def test_add():\n    assert add(1, 2) == 3\n")
    with pytest.raises(RuntimeError, match="not from the copy"):
        run_mutants([_mutant("killed", "a + b", "a - b")], root=project, libraries=())


def test_a_name_that_no_mutant_has_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "no-such-mutant"])
    assert "--list" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert MUTANTS[0].name in capsys.readouterr().out
