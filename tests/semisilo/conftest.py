"""What the tests of simulations stand on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import blank_picture


@pytest.fixture(scope="session", autouse=True)
def _here(simulated_in_one_process: None) -> None:
    """See `simulated_in_one_process`."""


@pytest.fixture(scope="package", autouse=True)
def _pictures_left_blank() -> Iterator[Any]:
    """See `pictures_left_blank`: so are those of reports and exports of simulations, whose pictures tests/coordinator
    draws. Yields what matplotlib does instead."""
    from matplotlib.figure import Figure

    savefig = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", blank_picture)
        yield savefig


@pytest.fixture
def pictures_drawn(_pictures_left_blank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of pictures that are drawn nowhere else."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", _pictures_left_blank)
