"""The built wheel: what is in it, and that it works where a folder holds files with the names of our packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from semisilo.common import __version__
from tests.test_adding_a_method import PAGE, files_of

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("common", "coordinator", "silo")
"""Folders at the top of the repository that `semisilo/` has links to (decision 0018)."""
SCRIPTS = ("coordinator", "silo", "semisilo")
STRAY = ("common", "silo", "coordinator", "torch", "grpc", "typer")
"""Names of files that may lie in the folder where a person calls a command."""
STRAY_FOLDERS = ("common", "coordinator")
"""Packages that a person may have beside a notebook."""


def _run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("PYTHON", "PIP_", "VIRTUAL"))}
    return subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=240)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist made of a copy of the source, unpacked: a build leaves files beside what it builds."""
    source = tmp_path_factory.mktemp("source") / "semisilo"
    source.mkdir()
    for name in ("semisilo", *LINKED, "protos", "docs", "deploy", "tests"):
        shutil.copytree(ROOT / name, source / name, symlinks=True,
                        ignore=shutil.ignore_patterns("__pycache__", "corpus"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("sdist")
    _build("sdist", source, target)
    (packed,) = target.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(target, filter="data")
    (folder,) = (path for path in target.iterdir() if path.is_dir())
    return folder


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist."""
    target = tmp_path_factory.mktemp("wheel")
    _build("wheel", sdist, target)
    (built,) = target.glob("*.whl")
    return built


def _build(what: str, source: Path, target: Path) -> None:
    code = f"import sys; from setuptools import build_meta; build_meta.build_{what}(sys.argv[1])"
    build = _run(sys.executable, "-P", "-c", code, target, cwd=source)
    assert build.returncode == 0, build.stderr


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
    # As plain paths and not as site folders: their .pth files, and with them the editable checkout, stay unread.
    paths = [path for path in sys.path if path.endswith("-packages")]
    (_purelib(folder) / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
    return folder


def _purelib(environment: Path) -> Path:
    found = _run(environment / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                 cwd=environment)
    return Path(found.stdout.strip())


@pytest.fixture
def stray_folder(tmp_path: Path) -> Path:
    """A folder of files that leave a trace when they are imported."""
    trap = "open({trace!r}, 'a').write('{name} ')\nraise RuntimeError('a stray file was imported')\n"
    for name in STRAY_FOLDERS:
        (tmp_path / name).mkdir()
    files = [f"{name}.py" for name in STRAY] + [f"{name}/__init__.py" for name in STRAY_FOLDERS]
    for file in (tmp_path / name for name in files):
        file.write_text(trap.format(trace=str(tmp_path / "imported"), name=file.relative_to(tmp_path)))
    return tmp_path


@pytest.fixture
def notebook_folder(stray_folder: Path) -> Path:
    """The same without the names of libraries: a notebook imports from its own folder first, whatever lies there."""
    for name in ("torch", "grpc", "typer"):
        (stray_folder / f"{name}.py").unlink()
    return stray_folder


def _imported(folder: Path) -> str:
    trace = folder / "imported"
    return trace.read_text() if trace.exists() else ""


@pytest.mark.slow
def test_the_wheel_holds_one_package_with_real_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        links = [each.filename for each in archive.infolist() if each.external_attr >> 16 & 0o170000 == 0o120000]
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"semisilo"}
    assert links == []
    assert {name for name in names if name.endswith(".py")} == set(_sources("*.py"))


def _sources(pattern: str) -> list[str]:
    """Files of the product by their paths below the package, links followed."""
    return [f"semisilo/{path.relative_to(ROOT)}" if name != "semisilo" else str(path.relative_to(ROOT))
            for name in ("semisilo", *LINKED) for path in (ROOT / name).rglob(pattern)
            if path.is_file() and not (name == "semisilo" and path.relative_to(ROOT).parts[1] in LINKED)]


@pytest.mark.slow
def test_the_wheel_carries_pages_templates_and_the_mark_of_types(wheel: Path) -> None:
    patterns = ("*.html.j2", "*.html", "*.js", "*.css", "*.svg", "py.typed")
    files = {name for pattern in patterns for name in _sources(pattern)}
    assert "semisilo/coordinator/page/static/index.html" in files
    assert "semisilo/py.typed" in files
    assert any(name.endswith(".html.j2") for name in files)
    with zipfile.ZipFile(wheel) as archive:
        assert files - set(archive.namelist()) == set()


@pytest.mark.slow
def test_the_sdist_holds_docs_protos_deployment_and_tests(sdist: Path) -> None:
    for name in ("docs/index.md", "protos/generate.py", "deploy/install.sh", "tests/test_packaging.py", "Makefile",
                 "coordinator/serve.py", "semisilo/coordinator/serve.py", "CHANGELOG.md", "LICENSE"):
        assert (sdist / name).is_file(), name
    there = {str(path.relative_to(sdist)) for path in (sdist / "tests").rglob("test_*.py")}
    assert there == {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.slow
def test_import_works_in_a_folder_with_files_and_folders_of_our_names(environment: Path, notebook_folder: Path) -> None:
    """As a notebook does it: the current folder comes first on the path."""
    run = _run(environment / "bin" / "python", "-c", "import semisilo; print(semisilo.__version__, semisilo.simulate)",
               cwd=notebook_folder)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(__version__)
    assert _imported(notebook_folder) == ""


@pytest.mark.slow
def test_a_study_and_a_method_of_others_run_in_a_folder_with_files_and_folders_of_our_names(
        environment: Path, notebook_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, content in files_of(PAGE.read_text(encoding="utf-8")).items():
        path = notebook_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    python = environment / "bin" / "python"
    site = _purelib(environment)
    installed = _run(sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                     "--no-build-isolation", "--target", site, notebook_folder / "norm-clipping", cwd=environment)
    assert installed.returncode == 0, installed.stderr
    code = ("import semisilo\n"
            "for method in ('fedavg', 'norm_clipping'):\n"
            "    run = semisilo.simulate(data='digits', method=method, silos=2, rounds=1, labelled_per_class=2,\n"
            "                            labelled_only=False, progress=False)\n"
            "    print(method, len(run.rounds))\n")
    (notebook_folder / "study.py").write_text(code)
    run = _run(python, "study.py", cwd=notebook_folder)
    assert run.returncode == 0, run.stderr
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["fedavg", "norm_clipping"]
    assert _imported(notebook_folder) == ""


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
               "import semisilo.common.wire.round_service_pb2_grpc as grpc_code\n"
               "import semisilo.common.wire.enrollment_service_pb2_grpc\nprint(grpc_code.__file__)", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).is_relative_to(environment)


@pytest.mark.slow
def test_a_stray_file_does_harm_to_whoever_imports_its_name(environment: Path, stray_folder: Path) -> None:
    """The control: `python -c` does look into the current folder, so the trap of the tests above is a real one."""
    run = _run(environment / "bin" / "python", "-c", "import common", cwd=stray_folder)
    assert run.returncode != 0
    assert _imported(stray_folder).startswith("common")
