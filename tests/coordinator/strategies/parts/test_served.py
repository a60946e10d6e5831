"""What silos are sent of a state: each group once for a state, whoever asks; nothing of it survives the state."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.storage.checkpoint import load, save, settled
from semisilo.coordinator.strategies.parts.served import ServedState


@dataclass(frozen=True, kw_only=True)
class _State(ServedState):
    w: dict[str, Tensor] = field(default_factory=lambda: {"w": torch.ones(3)})
    round: int = 0


def test_a_group_is_made_once_for_a_state_and_anew_for_the_next() -> None:
    state, made = _State(), []

    def make() -> dict[str, Tensor]:
        made.append(1)
        return state.w

    first = state.served.group("model", make)
    assert state.served.group("model", make) is first
    assert first.tensors is state.w
    assert len(made) == 1
    assert replace(state, round=1).served.group("model", make) is not first
    assert len(made) == 2


def test_a_digest_is_computed_where_it_is_asked_for_and_right() -> None:
    state = _State()
    assert state.served.group("model", lambda: state.w).digest == tensors.digest(state.w)
    assert state.served.group("correction", lambda: state.w, digest=False).digest == ""


def test_statistics_are_sent_where_there_are_any_as_the_same_object() -> None:
    state, statistics = _State(), {"1.mean": torch.zeros(2)}
    assert state.served.batch_norm({}) == {}
    assert state.served.batch_norm(statistics)["batch_norm"] is state.served.batch_norm(statistics)["batch_norm"]
    assert state.served.batch_norm(statistics)["batch_norm"].tensors is statistics


def test_what_is_remembered_is_neither_a_field_nor_written_nor_read(tmp_path: Path) -> None:
    state, untouched = _State(), _State()
    state.served.group("model", lambda: state.w)
    assert [each.name for each in fields(state)] == ["w", "round"]
    assert save(tmp_path / "served", state) == save(tmp_path / "untouched", untouched)
    assert load(tmp_path / "served", _State).served is not state.served
    assert settled(state).served is not state.served


def test_groups_go_with_their_state() -> None:
    def doubled(state: _State) -> weakref.ref[Tensor]:
        group = state.served.group("double", lambda: tensors.scale(state.w, 2.0))
        assert group is state.served.group("double", lambda: state.w)
        return weakref.ref(group.tensors["w"])

    states = [_State()]
    found = doubled(states[0])
    assert found() is not None
    states.clear()
    gc.collect()
    assert found() is None
