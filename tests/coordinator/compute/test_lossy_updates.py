"""Updates that were sent lossily at the coordinator: their blocks say how they are coded, and nobody need be told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common import tensors
from common.codec import Aim, Plan, ValueForm
from common.exchange import Meaning, TensorGroup
from common.store import PayloadStore
from common.torch_payload import decode_groups, encode_groups
from tests.coordinator.test_work import PHASE, federation, images, opened, received, tasks_of, update

__all__ = ["federation", "images"]  # fixtures


@pytest.mark.parametrize("values", [form for form in ValueForm if form is not ValueForm.EXACT])
def test_a_lossy_update_is_checked_and_folded_as_what_it_decodes_to(federation: Path, values: ValueForm) -> None:
    """Folding the lossy payload, and folding an exact payload of what it decodes to, give the same state."""
    operations, _ = opened(federation)
    state = operations.prepare()["state"]
    model = received(federation, tasks_of(operations, state, 1, {"a": None})["tasks"]["a"])["model"]
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
        operations.check_update(state, 1, PHASE, str(path), {}, "a", None)
        states.add(operations.aggregate(state, 1, PHASE, [update("a", path)])["state"])
    assert len(states) == 1
    original = store.path(encode_groups(store, {"model": group}).digest)
    assert operations.aggregate(state, 1, PHASE, [update("a", original)])["state"] not in states
