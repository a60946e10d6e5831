"""The number of threads is measured, and nothing else changes by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.models.small_cnn import SmallCNN
from semisilo.common.numerics import thread_count
from semisilo.common.numerics.side_by_side import lanes
from semisilo.common.numerics.thread_count import TrainingStep, candidates, fastest, fastest_threads
from tests.each_of import each_of


@each_of(("processors", "expected"), [
    (1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))])
def test_candidates_are_powers_of_two_and_all_processors(processors: int, expected: tuple[int, ...]) -> None:
    assert candidates(processors) == expected


def test_the_quickest_wins_and_of_equally_quick_ones_the_fewest_threads() -> None:
    assert fastest({1: 1.0, 2: 0.6, 4: 0.4}) == 4
    assert fastest({1: 1.0, 2: 0.6, 4: 0.58}) == 2, "4 % are not worth two threads more"
    assert fastest({1: 0.3, 2: 0.6}) == 1
    assert fastest({1: 0.003, 2: 0.001}) == 1, "not worth it"


def _step(build: Callable[[], nn.Module] | None = None, *, passes: int = 1) -> TrainingStep:
    return TrainingStep(build=build or (lambda: SmallCNN(num_classes=3, channels=1, size=8)), num_classes=3, batch=4,
                        image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), passes=passes)


@pytest.mark.slow
def test_measuring_leaves_threads_lanes_and_random_numbers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_count, "_SECONDS", 0.01)
    monkeypatch.setattr(thread_count, "_QUICK_SECONDS", 0.0)
    before = torch.get_num_threads(), lanes(), torch.get_rng_state()
    assert fastest_threads(_step(passes=2), processors=2) in (1, 2)
    assert (torch.get_num_threads(), lanes()) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_where_there_is_one_processor_nothing_is_measured() -> None:
    class Unbuilt(nn.Module):
        def __init__(self) -> None:
            raise AssertionError("it was built")

    assert fastest_threads(_step(Unbuilt), processors=1) == 1
    with pytest.raises(AssertionError, match="built"):
        fastest_threads(_step(Unbuilt), processors=2)


def test_the_passes_of_a_step_share_the_processors_that_one_operation_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes on four processors: with 1 and 2 threads they go side by side, with 4 in turn."""
    seen: dict[int, int] = {}

    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 3)

        def forward(self, images_BCHW: Tensor) -> Tensor:
            seen[torch.get_num_threads()] = lanes()
            found: Tensor = self.head(images_BCHW.flatten(1))
            return found

    monkeypatch.setattr(thread_count, "_SECONDS", 0.0)
    monkeypatch.setattr(thread_count, "_QUICK_SECONDS", 0.0)
    fastest_threads(_step(Seen, passes=2), processors=4)
    assert seen == {1: 2, 2: 2, 4: 1}


@pytest.mark.parametrize(("quick", "steps"), [(1000.0, 2), (0.0, 2 * (1 + thread_count._MOST_STEPS))])
def test_what_is_quick_on_one_thread_is_not_tried_on_more(monkeypatch: pytest.MonkeyPatch, quick: float, steps: int
                                                          ) -> None:
    """One step that is not timed and one that is; the control has all steps on 1 and on 2 threads."""
    seen: list[int] = []

    class Seen(nn.Linear):
        def forward(self, images_BCHW: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(images_BCHW.flatten(1))

    monkeypatch.setattr(thread_count, "_SECONDS", 1000.0)
    monkeypatch.setattr(thread_count, "_QUICK_SECONDS", quick)
    found = fastest_threads(_step(lambda: Seen(64, 3)), processors=2)
    assert len(seen) == steps
    assert set(seen) == ({1} if quick else {1, 2})
    assert found == 1 or not quick
