"""Updates that were sent lossily at the coordinator: their blocks say how they are coded, and nobody need be told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semisilo.common.learning import tensors
from semisilo.common.methods.contract import Meaning, TensorGroup
from semisilo.common.payload.codec import Aim, Plan, ValueForm
from semisilo.common.payload.torch_tensors import decode_groups, encode_groups
from semisilo.common.storage.store import PayloadStore
from tests.coordinator.compute.test_operations import (
    aggregate,
    check,
    federation,
    images,
    opened,
    prepare,
    received,
    tasks_of,
    update,
)

__all__ = ["federation", "images"]  # fixtures


@pytest.mark.slow
@pytest.mark.parametrize("values", [form for form in ValueForm if form is not ValueForm.EXACT])
def test_a_lossy_update_is_checked_and_folded_as_what_it_decodes_to(federation: Path, values: ValueForm) -> None:
    """Folding the lossy payload, and folding an exact payload of what it decodes to, give the same state."""
    operations, _ = opened(federation)
    state = prepare(operations).state
    model = received(federation, tasks_of(operations, state, 1, {"a": None}).tasks["a"])["model"]
    generator = torch.Generator().manual_seed(1)
    delta = {name: 1e-3 * torch.randn(tensor.shape, generator=generator) for name, tensor in model.tensors.items()}
    store = PayloadStore(federation / "spool")
    group = TensorGroup(delta, Meaning.DIFFERENCE, tensors.digest(model.tensors))
    lossy = store.path(encode_groups(store, {"model": group}, plan=Plan(aim=Aim.SMALLEST, values=values)).digest)
    decoded = decode_groups(lossy, require_finite=True)
    assert tensors.digest(decoded["model"].tensors) != tensors.digest(delta), "the control: something was lost"
    exact = store.path(encode_groups(store, decoded).digest)
    assert lossy.stat().st_size < 0.6 * exact.stat().st_size
    states = set()
    for path in (lossy, exact):
        check(operations, state, path, {})
        states.add(aggregate(operations, state, 1, [update("a", path)]).state)
    assert len(states) == 1
    original = store.path(encode_groups(store, {"model": group}).digest)
    assert aggregate(operations, state, 1, [update("a", original)]).state not in states
