"""What a person is told to do about a missing library, with pip and without."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from semisilo.common.text.installing import how_to_install

ROOT = Path(__file__).resolve().parents[3]


def test_with_pip_it_is_a_command() -> None:
    assert how_to_install("semisilo[onnx]") == "Install it: pip install 'semisilo[onnx]'."
    assert how_to_install("pandas") == "Install it: pip install pandas."


def test_without_pip_it_is_what_works_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our images have no pip: `pip install` would be no remedy."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = how_to_install("semisilo[onnx]")
    assert "pip install" not in said
    assert "EXTRAS" in said
    assert "--extras onnx" in said
    assert "pip install" not in how_to_install("pandas")
    for name in ("coordinator.Dockerfile", "silo.Dockerfile"):
        assert "ARG EXTRAS=" in (ROOT / "deploy" / name).read_text()
    assert "--extras LIST" in (ROOT / "deploy" / "install.sh").read_text()


def test_no_remedy_names_pip_by_itself() -> None:
    """What is said to authors of plug-ins is no remedy: they have an environment of their own."""
    own = ("installing.py", "method.py")
    found = [str(path.relative_to(ROOT)) for side in ("common", "coordinator", "silo", "semisilo")
             for path in (ROOT / side).rglob("*.py")
             if "pip install" in path.read_text(encoding="utf-8") and path.name not in own]
    assert found == []
