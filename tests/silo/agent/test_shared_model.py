"""Fetching a study's model from a coordinator that nobody can reach. With one that answers: test_own_test_images.py."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from semisilo.common.errors import SemisiloError
from semisilo.silo.agent.shared_model import fetch_model
from tests.silo.page.home_kit import filled_home


def test_why_nothing_arrives_is_told_and_after_a_while_it_is_given_up(tmp_path: Path) -> None:
    """It waited for ever without a word."""
    home, told = filled_home(tmp_path / "home"), list[str]()
    with pytest.raises(SemisiloError) as caught:
        fetch_model(home.folder, "s", tmp_path / "s.safetensors", now=time.time, patience_seconds=1.5,
                    on_trouble=lambda error: told.append(error.line()), use_http_proxy=False)
    assert told
    assert all("hub.example" in line for line in (*told, caught.value.line()))
    assert not (tmp_path / "s.safetensors").exists()
