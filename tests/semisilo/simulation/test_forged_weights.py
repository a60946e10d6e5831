"""A silo that lies about its weight in a sum behind masks, against the whole of the product but the masks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semisilo.silo.compute import masked_update
from semisilo.simulation import run


def tables(**privacy: Any) -> dict[str, Any]:
    return {
        "study": {"seed": 1, "rounds": 3, "labelled_only_baseline": False},
        "model": {"name": "small_cnn", "normalisation": "group"},
        "data": {"image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.3]}}, "augmentation": {"policy": "none"},
        "method": {"name": "fedavg", "labelled_batch": 20, "lr": 0.1, "lambda_s": 1.0, "weighting": "size"},
        "privacy": {"secure_aggregation": True, **privacy},
        "simulation": {"data": "digits", "split": {"name": "iid", "silos": 6, "all_labelled": True, "num_test": 100,
                                                   "fraction": 0.3}}}


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In round 2 the first silo that is asked says that it weighs -1; its name."""
    names: list[str] = []
    honest = masked_update.plain_words

    def plain_words(*args: Any, **options: Any) -> Any:
        words, left = honest(*args, **options)
        sender, form = options["sender"], args[1].form
        if sender.round == 2 and (not names or sender.silo == names[0]):
            names[:] = [sender.silo]
            words[-2] = np.uint32(-masked_update.largest_level(form.bits, form.silo_count) & 0xffffffff)
        return words, left

    monkeypatch.setattr(masked_update, "plain_words", plain_words)
    return names


@pytest.mark.slow
def test_a_weight_that_is_forged_ends_its_round_and_the_study_goes_on(
        tmp_path: Path, liar: list[str], caplog: pytest.LogCaptureFixture) -> None:
    found = run(tables(), out=tmp_path / "run", device="cpu", engine="process")
    assert len(liar) == 1
    assert [each.state for each in found.rounds] == ["completed", "completed", "failed", "completed"]
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(lines) == 1
    assert "round 2 failed: The sum of 6 masked updates is not used: their weights add up to" in lines[0]
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.slow
def test_in_groups_that_of_the_liar_alone_is_left_out(
        tmp_path: Path, liar: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="semisilo.coordinator")
    found = run(tables(group_size=3), out=tmp_path / "run", device="cpu", engine="process")
    assert [each.state for each in found.rounds] == ["completed"] * 4
    line, = (each.getMessage() for each in caplog.records if "is not used" in each.getMessage())
    assert f"{liar[0]}" in line.partition(" is added up: ")[0]
    assert "The sum of 3 masked updates is not used" in line
    added = [each.getMessage() for each in caplog.records if "added up in" in each.getMessage()]
    assert [each.partition("masked updates of ")[2] for each in added] == [
        "6 silos added up in 2 groups", "3 silos added up in 1 group", "6 silos added up in 2 groups"]
