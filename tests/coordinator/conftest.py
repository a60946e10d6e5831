"""What several rooms of the coordinator's tests use."""

from __future__ import annotations

from typing import Any, BinaryIO

import pytest
from PIL import Image


@pytest.fixture
def pictures_left_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of a report's words: every plot is drawn into its axes, and its picture is one white pixel. To lay a
    picture out and to render it takes most of a report's time; some reports of tests/coordinator/report have theirs."""

    def blank(self: object, target: BinaryIO, **options: Any) -> None:
        Image.new("L", (1, 1), 255).save(target, format="PNG")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank)
