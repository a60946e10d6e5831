"""The random share of elements that all silos of a sum send."""

from __future__ import annotations

import numpy as np

from semisilo.common.secure_aggregation.positions import chosen_positions


def chosen(**other: object) -> np.ndarray:
    found = chosen_positions(**{"seed": 1, "round": 3, "phase": "train", "share": 0.1, "elements": 1000, **other})  # type: ignore[arg-type]
    assert found is not None
    return found


def test_all_elements_need_no_positions() -> None:
    assert chosen_positions(seed=1, round=1, phase="train", share=1.0, elements=10) is None


def test_positions_are_ascending_and_different() -> None:
    found = chosen()
    assert len(found) == 100
    assert (np.diff(found) > 0).all()
    assert found[0] >= 0
    assert found[-1] < 1000


def test_they_follow_from_study_round_and_phase_alone() -> None:
    assert (chosen() == chosen()).all()
    for other in ({"seed": 2}, {"round": 4}, {"phase": "statistics"}):
        assert not np.array_equal(chosen(), chosen(**other))


def test_over_rounds_nearly_every_element_has_its_turn() -> None:
    seen = np.concatenate([chosen(round=number) for number in range(1, 60)])
    assert len(np.unique(seen)) > 980
