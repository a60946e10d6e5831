"""The clock of a simulation: held, jumped and released, it never goes back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from semisilo.simulation.clock import PhaseClock


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the machine's time."""
    now = [1000.0]
    monkeypatch.setattr("semisilo.simulation.clock.time", SimpleNamespace(time=lambda: now[0]))

    def set_to(unix: float) -> None:
        now[0] = unix
    return set_to


def test_it_shows_the_time_and_stands_still_while_it_is_held(real: Callable[[float], None]) -> None:
    clock = PhaseClock()
    assert clock() == 1000.0
    clock.hold()
    real(1050.0)
    assert clock() == 1000.0
    clock.release()
    assert clock() == 1050.0, "real time has passed meanwhile"


def test_after_a_jump_it_goes_on_from_there(real: Callable[[float], None]) -> None:
    clock = PhaseClock()
    clock.jump(5000.0)
    assert clock() == 5000.0
    clock.jump(4000.0)
    assert clock() == 5000.0, "never back"
    real(1010.0)
    clock.release()
    assert clock() == 5000.0
    real(1013.0)
    assert clock() == 5003.0
    clock.release()
    assert clock() == 5003.0, "nothing was held"
