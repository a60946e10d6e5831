"""Mirrors tests/compiled_tests.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.compiled_tests import _compile, _share, compile_share, is_compiled

SOURCE = "import a_module_that_is_not_there\n\ndef test_it(): assert {value}\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = tmp_path / "tests" / "deeper"
    folder.mkdir(parents=True)
    (folder / "helper.py").write_text("")
    made = [folder / f"test_{number}.py" for number in range(5)]
    for file in made:
        file.write_text(SOURCE.format(value=1))
    return made


def test_each_of_the_processes_compiles_its_share_and_runs_nothing(
        files: list[Path], pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pytestconfig, "args", [str(tmp_path / "tests"), str(files[0])])
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    compile_share(pytestconfig)
    assert [is_compiled(file) for file in files] == [False, True, False, True, False]
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    compile_share(pytestconfig)
    assert all(is_compiled(file) for file in files)


def test_the_program_is_compiled_once_too(
        pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is there already is left to Python, which knows whether it is current."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    made = [tmp_path / package / "room" / "noun.py" for package in ("common", "coordinator", "silo")]
    for file in made:
        file.parent.mkdir(parents=True)
        file.write_text("raise RuntimeError\n")
    made[1].write_text("def of(:\n")
    kept = [Path(importlib.util.cache_from_source(str(file))) for file in made]
    kept[2].parent.mkdir()
    kept[2].write_bytes(b"earlier")
    monkeypatch.setattr(type(pytestconfig), "rootpath", tmp_path)
    monkeypatch.setattr(pytestconfig, "args", [])
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "1")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    compile_share(pytestconfig)
    assert [file.exists() for file in kept] == [True, False, True]
    assert kept[2].read_bytes() == b"earlier"


def test_without_other_processes_nothing_is_done_beforehand(
        files: list[Path], pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pytestconfig, "args", [str(tmp_path / "tests")])
    for variable in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(variable, raising=False)
    compile_share(pytestconfig)
    assert not any(is_compiled(file) for file in files)


def test_what_was_compiled_is_what_pytest_imports(files: list[Path], pytestconfig: pytest.Config,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    file = files[0]
    file.write_text("value = 1\nassert value\n")
    _compile(pytestconfig, file)
    monkeypatch.setattr("_pytest.assertion.rewrite._rewrite_test", lambda *_: pytest.fail("compiled once more"))
    hook = pytestconfig.pluginmanager.rewrite_hook
    spec = importlib.util.spec_from_file_location(file.stem, file, loader=hook)  # type: ignore[arg-type]
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.value == 1


def test_a_file_that_cannot_be_compiled_is_left_to_pytest(files: list[Path], pytestconfig: pytest.Config) -> None:
    files[0].write_text("def of(:\n")
    _compile(pytestconfig, files[0])
    assert not is_compiled(files[0])


def test_shares_are_all_and_begin_where_collecting_begins(files: list[Path], tmp_path: Path) -> None:
    shares = [_share([tmp_path, tmp_path / "not there"], "test_*.py", number, 3) for number in range(3)]
    assert sorted(file for share in shares for file in share) == files
    assert [share[0] for share in shares] == files[:3]
