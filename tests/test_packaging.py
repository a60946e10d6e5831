"""The built wheel: what is in it, and that it works where a folder holds files with the names of our packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from common import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("coordinator", "silo", "common", "semisilo")
SCRIPTS = ("coordinator", "silo", "semisilo")
STRAY = ("common", "silo", "coordinator", "semisilo", "torch", "grpc", "typer")
"""Names of files that may lie in the folder where a person calls a command."""


def _run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("PYTHON", "PIP_", "VIRTUAL"))}
    return subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=240)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the source: a build leaves files beside what it builds."""
    source = tmp_path_factory.mktemp("source") / "semisilo"
    source.mkdir()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("wheel")
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    build = _run(sys.executable, "-P", "-c", code, target, cwd=source)
    assert build.returncode == 0, build.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that holds the wheel and sees what it depends on, but not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    made = _run(sys.executable, "-P", "-m", "venv", folder, cwd=folder)
    assert made.returncode == 0, made.stderr
    python = folder / "bin" / "python"
    installed = _run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel,
                     cwd=folder)
    assert installed.returncode == 0, installed.stderr
    # As a plain path and not as a site folder: its .pth files, and with them the editable checkout, stay unread.
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).stdout.strip())
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return folder


@pytest.fixture
def stray_folder(tmp_path: Path) -> Path:
    """A folder of files that leave a trace when they are imported."""
    for name in STRAY:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n"
                                             "raise RuntimeError('a stray file was imported')\n")
    return tmp_path


def _imported(folder: Path) -> str:
    trace = folder / "imported"
    return trace.read_text() if trace.exists() else ""


@pytest.mark.slow
def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


@pytest.mark.slow
def test_the_wheel_carries_every_file_of_the_operator_page(wheel: Path) -> None:
    folder = ROOT / "coordinator" / "page" / "static"
    files = {str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.is_file()}
    assert any(name.endswith("index.html") for name in files)
    with zipfile.ZipFile(wheel) as archive:
        assert files - set(archive.namelist()) == set()


@pytest.mark.slow
def test_the_wheel_carries_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        licences = [name for name in archive.namelist() if re.search(r"\.dist-info/licenses/LICENSE$", name)]
        assert len(licences) == 1
        assert "Apache License" in archive.read(licences[0]).decode()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_an_installed_command_tells_its_version_in_a_folder_with_files_of_our_names(
        environment: Path, stray_folder: Path, script: str) -> None:
    run = _run(environment / "bin" / script, "--version", cwd=stray_folder)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == __version__
    assert _imported(stray_folder) == ""


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_an_installed_command_lists_its_commands_in_a_folder_with_files_of_our_names(
        environment: Path, stray_folder: Path, script: str) -> None:
    run = _run(environment / "bin" / script, "--help", cwd=stray_folder)
    assert run.returncode == 0, run.stderr
    assert "Commands" in run.stdout
    assert _imported(stray_folder) == ""


@pytest.mark.slow
def test_an_installed_coordinator_makes_a_federation_in_a_folder_with_files_of_our_names(
        environment: Path, stray_folder: Path) -> None:
    run = _run(environment / "bin" / "coordinator", "init", "lung", "--address", "127.0.0.1:8443", cwd=stray_folder)
    assert run.returncode == 0, run.stderr
    assert (stray_folder / "lung" / "studies" / "first" / "study.toml").is_file()
    assert _imported(stray_folder) == ""


@pytest.mark.slow
def test_the_generated_protos_import_from_the_installed_wheel(environment: Path, tmp_path: Path) -> None:
    run = _run(environment / "bin" / "python", "-c",
               "import common.wire.round_service_pb2_grpc as grpc_code, common.wire.enrollment_service_pb2_grpc\n"
               "print(grpc_code.__file__)", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).is_relative_to(environment)


@pytest.mark.slow
def test_a_stray_file_does_harm_where_nothing_keeps_it_off_the_path(environment: Path, stray_folder: Path) -> None:
    """The control: `python -c` does look into the current folder, so the trap of the tests above is a real one."""
    run = _run(environment / "bin" / "python", "-c", "import common", cwd=stray_folder)
    assert run.returncode != 0
    assert _imported(stray_folder) == "common "
