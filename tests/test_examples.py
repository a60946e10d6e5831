"""`examples/`: every script and notebook runs, with fewer rounds than it shows."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.each_of import each_of
from tests.processes import free_ports

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
_LESS = '"study": {"baseline_epochs": 2}, "augmentation"'
_FEW = '"simulation": {"split": {"fraction": 0.2}}, ' + _LESS
"""Instead of "augmentation": a fifth of the images that silos have as well."""


def code_of(name: str) -> str:
    """A script, or the code cells of a notebook one after the other."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")


def run_quickly(name: str, folder: Path, *replaced: tuple[str, str]) -> str:
    """Runs an example in a process of its own, with texts replaced that must be in it; returns what it printed."""
    code = code_of(name)
    for shown, quick in replaced:
        assert shown in code, f"{name} has changed: {shown}"
        code = code.replace(shown, quick)
    (folder / "example.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", "example.py"], cwd=folder, capture_output=True, text=True, timeout=900,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@each_of("name", NOTEBOOKS)
def test_a_notebook_has_code_that_parses_and_no_outputs(name: str) -> None:
    notebook = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    ast.parse(code_of(name))


def test_every_example_is_listed_and_nothing_else_is() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w.]+\.(?:py|ipynb))\)", index)) == files
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert all(name.rpartition(".")[0] in page for name in files)


def test_ten_lines_are_ten_and_the_notebook_has_the_same_ones() -> None:
    def plain(text: str) -> list[str]:
        statements = ast.parse(text).body
        return [ast.unparse(each) for each in statements if isinstance(each, (ast.Import, ast.Assign))]

    script = code_of("digits_in_ten_lines.py")
    assert plain(script) == plain(code_of("digits_in_ten_lines.ipynb"))
    body = script.split('"""')[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["digits_in_ten_lines.py", "digits_in_ten_lines.ipynb"])
def test_digits_in_ten_lines(name: str, tmp_path: Path) -> None:
    run_quickly(name, tmp_path, ("rounds=6", "rounds=1"), ('"local_epochs": 3', '"local_epochs": 1'),
                ('"augmentation"', _FEW))
    assert len(list((tmp_path / "runs").glob("*-seed-1-*"))) == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_your_own_network(tmp_path: Path) -> None:
    out = run_quickly("own_network.ipynb", tmp_path, ('"rounds": 4', '"rounds": 1'),
                      ("slice(60, 1400)", "slice(60, 360)"),
                      ('"augmentation"', '"method": {"warm_up_steps": 20, "coordinator_steps": 20, "local_epochs": 1}, '
                       + _LESS))
    assert re.search(r"16 channels: 0\.\d+ +24 channels: 0\.\d+", out)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_choosing_a_method(tmp_path: Path) -> None:
    out = run_quickly("choosing_a_method.ipynb", tmp_path, ("rounds=5, seeds=[1, 2]", "rounds=1, seeds=[1]"),
                      ("answer.round == 5", "answer.round == 1"), ('"augmentation"', _FEW))
    assert re.search(r"^SemiFL +\d", out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_privacy(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    out = run_quickly("privacy.ipynb", tmp_path, ('"rounds": 4', '"rounds": 1'),
                      ('"local_epochs": 5', '"local_epochs": 1'))
    spent = dict(re.findall(r"target (\d\.0): .*'silo-000': (\d+\.\d+)", out))
    assert spent.keys() == {"2.0", "8.0"}
    assert all(0 < float(value) <= float(target) for target, value in spent.items())
    assert "epsilon 1: 73.1 %" in out  # e / (1 + e)


def blood_cells(folder: Path, *words: str) -> tuple[int, str]:
    """Runs the example with these words; its exit status and its errors."""
    done = subprocess.run([sys.executable, "-P", EXAMPLES / "blood_cells.py", *words], cwd=folder, capture_output=True,
                          text=True, timeout=600, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return done.returncode, done.stderr


def test_blood_cells_says_in_a_line_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "images.npz").write_bytes(b"")
    (tmp_path / "taken").mkdir()
    for words, line in ((("nosuch.npz",), "nosuch.npz: no such file"),
                        (("images.npz", "--folder", "taken"), f"{tmp_path / 'taken'} exists already: remove it")):
        status, said = blood_cells(tmp_path, *words)
        assert (status, "Traceback" in said) == (2, False)
        assert line in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images.npz", "taken"]


@pytest.mark.slow
def test_blood_cells_ends_with_the_status_of_a_command_that_failed_and_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "images.npz").write_bytes(b"no archive")
    status, said = blood_cells(tmp_path, "images.npz", "--folder", "work here")
    assert (status, "Traceback" in said) == (1, False)
    assert "images.npz" in said


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_blood_cells_with_three_real_silos_here_of_digits(tmp_path: Path) -> None:
    """Tests have no blood cells: digits in the layout of MedMNIST stand for them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * 255 / 16).astype(np.uint8)
    np.savez(tmp_path / "images.npz", train_images=pixels[:1400], train_labels=digits.target[:1400],
             test_images=pixels[1400:], test_labels=digits.target[1400:])
    done = subprocess.run(
        [sys.executable, "-P", EXAMPLES / "blood_cells.py", "images.npz", "--folder", "work here", "--rounds", "1",
         "--labels", "20", "--size", "8", "--channels", "1", "--fraction", "0.2", "--port",
         str(free_ports()), "--no-baseline", "--settings", "local_epochs = 1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "work here" / "hub" / "studies" / "first" / "report" / "index.html").is_file()
    assert (tmp_path / "work here" / "model" / "model.safetensors").is_file()
    assert "ran on 3 of 3 silos" in done.stdout
