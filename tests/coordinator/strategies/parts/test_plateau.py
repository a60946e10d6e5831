"""The learning rate falls when the validation loss does not."""

from __future__ import annotations

import pytest

from semisilo.coordinator.strategies.parts.plateau import LR_FLOOR, Plateau, plateau_lr


def _run(losses: list[float], *, lr: float = 1e-3, factor: float = 3.0, patience: int = 2) -> list[Plateau]:
    state, seen = Plateau(lr=lr, best=None, left=patience), []
    for loss in losses:
        state = plateau_lr(state, loss, factor=factor, patience=patience)
        seen.append(state)
    return seen


def test_oracle_m10() -> None:
    found = [state.lr for state in _run([1.0, 0.9, 0.95, 0.91, 0.92, 0.89, 0.9, 0.9])]
    assert found == pytest.approx([1e-3, 1e-3, 1e-3, 1e-3 / 3, 1e-3 / 3, 1e-3 / 3, 1e-3 / 3, 1e-3 / 9], rel=1e-9)


def test_patience_is_restored_by_an_improvement_and_by_a_division() -> None:
    assert [state.left for state in _run([1.0, 1.0, 0.9, 0.9, 0.9])] == [2, 1, 2, 1, 2]


def test_an_equal_loss_and_nan_are_no_improvement() -> None:
    assert [state.best for state in _run([1.0, 1.0, float("nan"), 0.5])] == [1.0, 1.0, 1.0, 0.5]
    assert _run([float("nan"), float("nan")])[-1].best is None
    assert _run([float("nan"), float("nan")])[-1].lr == pytest.approx(1e-3 / 3)


def test_the_learning_rate_stops_at_the_floor_and_never_rises_to_it() -> None:
    assert _run([1.0] * 200, patience=1)[-1].lr == LR_FLOOR
    assert _run([1.0] * 5, lr=0.0, patience=1)[-1].lr == 0.0


def test_a_factor_of_one_keeps_the_learning_rate() -> None:
    assert {state.lr for state in _run([1.0] * 9, factor=1.0)} == {1e-3}


def test_what_a_silo_has_run_down_stays_down_when_the_loss_falls_again() -> None:
    """As docs/operations.md says beside `set-aside`."""
    found = _run([1.0, *[9.0] * 4, *[1.0 - 0.01 * each for each in range(1, 50)]])
    assert found[4].lr == found[-1].lr == pytest.approx(1e-3 / 9)
    assert found[-1].best == pytest.approx(0.51)
