"""What the tests of simulations stand on."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _here(simulated_in_one_process: None) -> None:
    """See `simulated_in_one_process`."""
