"""`docs/adding-a-method.md`, followed word for word: every file that the page shows, then the commands that it says."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plugin_kit import on_the_module_path
from tests.processes import run_command

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "adding-a-method.md"
_FILE = re.compile(r"`([\w./-]+\.(?:toml|py))`[^`]*?\n+```(?:toml|python)\n(.*?)```", re.DOTALL)


def files_of(text: str) -> dict[str, str]:
    """Path -> content of every file that the page shows: a name in backticks, then a block."""
    return dict(_FILE.findall(text))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files."""
    folder = tmp_path_factory.mktemp("method")
    for name, content in files_of(PAGE.read_text(encoding="utf-8")).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def followed(written: Path) -> Path:
    """The same folder with the page's package in `site`, installed as pip installs it."""
    folder = written
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                           "--no-build-isolation", "--target", str(folder / "site"), str(folder / "norm-clipping")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def strategy(written: Path) -> Iterator[Any]:
    with on_the_module_path(written / "norm-clipping"):
        yield importlib.import_module("norm_clipping.strategy")


def test_the_page_shows_every_file_that_it_needs() -> None:
    assert sorted(files_of(PAGE.read_text(encoding="utf-8"))) == [
        "norm-clipping/norm_clipping/__init__.py", "norm-clipping/norm_clipping/method.py",
        "norm-clipping/norm_clipping/strategy.py", "norm-clipping/norm_clipping/trainer.py",
        "norm-clipping/pyproject.toml", "study.toml"]


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank", "simulated_in_one_process")
def test_the_method_of_the_page_learns_in_the_simulation_of_the_page(
        followed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(followed)
    with on_the_module_path(followed / "site"):
        status, _, err = run_command("semisilo.cli.main", "simulate", "study.toml", "--quiet", "--json", "result.json")
    assert status == 0, err
    result = json.loads((followed / "result.json").read_text(encoding="utf-8"))
    assert result["accuracy"] > 0.6, "ten digits: 0.1 is chance"


@pytest.mark.slow
def test_the_method_of_the_page_may_run_nowhere_until_a_silo_names_it(followed: Path) -> None:
    from semisilo.silo.site.policy import Policy

    with on_the_module_path(followed / "site"):
        assert "norm_clipping" not in Policy().methods


def test_a_very_large_max_norm_gives_the_plain_mean_and_one_silo_moves_the_model_by_at_most_c(strategy: Any) -> None:
    from semisilo.common.learning.tensors import subtract
    from semisilo.common.methods.contract import TensorGroup, UpdateHeader

    generator = torch.Generator().manual_seed(3)
    w = {"a": torch.randn(40, generator=generator), "b": torch.randn(5, 3, generator=generator)}
    deltas = [{name: torch.randn(tensor.shape, generator=generator) for name, tensor in w.items()} for _ in range(3)]

    def mean(max_norm: float, used: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        half = strategy.NormClippingStrategy(strategy.NormClippingSettings(max_norm=max_norm), None)
        state = half.start(w)
        headers = tuple(UpdateHeader(f"silo-{number}", 1) for number in range(len(used)))
        tally = half.begin(state, strategy.TRAIN, headers, round=1)
        for header, delta in zip(headers, used, strict=True):
            tally, _ = half.fold(state, tally, header, {"model": TensorGroup(delta)}, None)
        after: dict[str, torch.Tensor] = half.finish(state, strategy.TRAIN, tally, round=1).w
        return subtract(after, w)

    plain = mean(1e9, deltas)
    for name in w:
        torch.testing.assert_close(plain[name], torch.stack([delta[name] for delta in deltas]).mean(0))
    moved = mean(0.5, deltas[:1])
    assert math.isclose(math.sqrt(sum(float(tensor.square().sum()) for tensor in moved.values())), 0.5, rel_tol=1e-4)
    assert all(not torch.equal(moved[name], deltas[0][name]) for name in w)
    assert mean(1.0, [{name: torch.zeros_like(tensor) for name, tensor in w.items()}]).keys() == w.keys()
