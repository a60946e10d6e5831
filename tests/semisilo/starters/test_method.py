"""`semisilo new method NAME`: a plug-in that is found, learns, and whose own test passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semisilo.common.methods.plugins import find_plugin, load_half, plugin_names
from semisilo.silo.site.policy import Permit
from tests.plugin_kit import on_the_module_path
from tests.processes import run_command

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    status, out, err = run_command("semisilo.cli.main", "new", "method", "my_mean")
    assert (status, err) == (0, "")
    assert "  cd my-mean" in out
    return tmp_path / "my-mean"


def test_the_three_files_are_a_plug_in_that_is_found_once_it_is_installed(package: Path, tmp_path: Path) -> None:
    assert sorted(str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()) == [
        "README.md", "my_mean/__init__.py", "my_mean/method.py", "my_mean/strategy.py", "my_mean/trainer.py",
        "pyproject.toml", "study.toml", "tests/test_my_mean.py"]
    facts = package / "my_mean-0.1.dist-info"  # as an installer would write it, from pyproject.toml
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my-mean\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text("[semisilo.methods]\nmy_mean = my_mean.method:MY_MEAN\n")
    with on_the_module_path(package):
        assert "my_mean" in plugin_names()
        assert find_plugin("my_mean").spec.name == "my_mean"
        assert load_half("my_mean", "strategy").__name__ == "MyMeanStrategy"
        assert load_half("my_mean", "trainer").__name__ == "MyMeanTrainer"
        permitted, crosses = Permit(), find_plugin("my_mean").spec
    missing = {*crosses.metrics} - {*permitted.metrics} | {*crosses.down, *crosses.up} - {*permitted.groups}
    readme, page = (path.read_text() for path in (package / "README.md", ROOT / "docs" / "adding-a-method.md"))
    assert missing == {"train_loss"}, "what a silo refuses the whole task for"
    assert "`train_loss` under `[permit] metrics`" in readme
    assert '`"train_loss"` in `[permit] metrics`' in page


@pytest.mark.slow  # quickly: that its parts are found
def test_its_own_test_passes_once_pip_has_installed_it(package: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                           "--no-build-isolation", "--target", str(site), str(package)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(package),
                           str(package / "tests")], cwd=package, env=environment, capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
