"""Whose update is left out so that a phase ends with a finite model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.learning.outliers import UpdateMeasure
from semisilo.coordinator.compute.left_out import answers_finitely, fewest_left_out, not_finite_in, suspects
from tests.each_of import each_of

NAMES = tuple("abcdefghij")


@each_of("needed", range(1, len(NAMES) + 1))
def test_the_shortest_beginning_that_works_is_left_out(needed: int) -> None:
    asked: list[int] = []

    def works(without: frozenset[str]) -> bool:
        asked.append(len(without))
        return without >= set(NAMES[:needed])

    assert fewest_left_out(NAMES, works) == set(NAMES[:needed])
    assert len(asked) <= 2 * math.ceil(math.log2(len(NAMES))) + 1, "not once for every silo"


def test_where_nothing_helps_nobody_is_to_blame() -> None:
    asked: list[int] = []
    assert fewest_left_out(NAMES, lambda without: bool(asked.append(len(without)))) is None
    assert asked[-1] == len(NAMES)
    assert fewest_left_out((), lambda without: True) is None


def test_the_largest_update_is_suspected_first() -> None:
    def measure(norm: float) -> UpdateMeasure:
        return UpdateMeasure(norm=norm, cosine=None)

    assert suspects({"b": measure(1.0), "a": measure(1.0), "c": measure(5.0)}) == ("c", "a", "b")


def test_who_stretches_the_updates_of_all_is_suspected_before_those_whose_updates_are_stretched() -> None:
    """Half as long an update as the others', and 10^9 steps; and what is short and counts much goes before what is long
    and counts little."""
    def measure(norm: float) -> UpdateMeasure:
        return UpdateMeasure(norm=norm, cosine=None)

    measures = {**{f"silo-{index}": measure(1.0) for index in range(9)}, "silo-9": measure(0.5)}
    steps = {**dict.fromkeys(measures, 50.0), "silo-9": 1e9}
    assert suspects(measures)[-1] == "silo-9"
    assert suspects(measures, steps=steps)[0] == "silo-9"
    assert suspects({**measures, "silo-3": measure(1e12)}, steps=steps)[:2] == ("silo-3", "silo-9")
    weights = {**dict.fromkeys(measures, 0.1), "silo-9": 5.0}
    assert suspects(measures, weights=weights)[0] == "silo-9"


@dataclass(frozen=True)
class _State:
    w: dict[str, Tensor]
    round: int = 3
    buffer: dict[str, Tensor] | None = None
    counts: dict[str, Tensor] = field(default_factory=dict)


def test_a_state_with_a_value_that_is_not_finite_is_told_by_its_field() -> None:
    good = {"a": torch.ones(3)}
    assert not_finite_in(_State(w=good, counts={"n": torch.tensor([2**40])})) == ""
    assert not_finite_in(_State(w=good, buffer={"a": torch.tensor([1.0, math.nan])})) == "buffer"
    assert not_finite_in(_State(w={"a": torch.tensor(math.inf)})) == "w"


def test_a_network_whose_finite_weights_overflow_does_not_answer() -> None:
    form = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.5,))
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2)).train()
    assert answers_finitely(model, form)
    assert model.training, "its mode is restored"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3e37)
    assert not answers_finitely(model, form)
