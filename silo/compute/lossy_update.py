"""Lossy updates: what is sent of a difference, and what is kept back for the next one (error feedback).

    c_t = delta_t + e_t        delta_t: the round's difference, e_t: the residual, zero at first
    sent: C(c_t)               C: top-k, then bf16, int8 or int4
    e_{t+1} = c_t - D(C(c_t))  D(...): what the receiver decodes, read from the written payload

So over any number of rounds the sum of what was decoded is the sum of the differences, less the last residual: nothing
is lost for good, only put off. The residual is the silo's memory: it counts when the round was folded
(`semisilo.silo.site.memory`). Every phase has residuals of its own: within a round each starts from what is committed.

Source: Seide et al. 2014 (1-bit SGD); Stich, Cordonnier and Jaggi 2018 (top-k); Karimireddy et al. 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from semisilo.common.errors import ComputeFailed
from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorGroup
from semisilo.common.methods.uplink import Uplink
from semisilo.common.payload.codec import Aim, Bits, Plan, ValueForm
from semisilo.common.payload.reader import PayloadReader
from semisilo.common.payload.torch_tensors import bits_to_tensor, encoded_input, tensor_spec, tensor_to_bits
from semisilo.common.payload.writer import EncodedInput, TensorInput, write_payload
from semisilo.common.storage.store import PayloadStore

__all__ = ["Residuals", "Sender", "largest", "merged", "plan_of", "write_update"]

_SEPARATOR = "\n"
"""Between the parts of a key: names of groups and tensors have no unprintable characters."""


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """What lossy forms have left out of the updates of a study so far."""

    tensors: dict[str, Tensor]
    """float32, of the shape of the tensor that was sent; by phase, group and tensor, in the order of these keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    """Whose update of which task: names the random numbers of stochastic rounding."""

    seed: int
    """Of the study."""
    round: int
    phase: str
    silo: str


def write_update(store: PayloadStore, groups: Mapping[str, TensorGroup], uplink: Uplink, *, sender: Sender,
                 residuals: Mapping[str, Tensor], link_bytes_per_second: float = 0.0,
                 ) -> tuple[PayloadRef, dict[str, Tensor]]:
    """Writes an update as the study wants it. Only float32 tensors of groups that mean a difference are sent lossily.

    Args:
        groups: of the update, decoded.
        residuals: the committed ones, `Residuals.tensors`; one that does not fit the update counts as zero.
    Returns: (the payload, what the lossy forms left out of it: the new residuals of what was sent; empty without error
        feedback and for what went exactly).
    Raises: ComputeFailed when training has diverged; what `semisilo.common.payload.writer.write_payload` raises.
    """
    plan = plan_of(uplink, link_bytes_per_second=link_bytes_per_second)
    inputs: dict[str, EncodedInput] = {}
    wanted: dict[str, dict[str, Tensor]] = {}
    for name, group in groups.items():
        if not uplink.lossy or group.meaning is not Meaning.DIFFERENCE:
            inputs[name] = encoded_input(group, plan=Plan(aim=plan.aim, link_bytes_per_second=link_bytes_per_second))
            continue
        wanted[name] = _with_residual(name, group, residuals if uplink.error_feedback else {}, sender)
        inputs[name] = _lossy_input(group, wanted[name], plan, uplink, numpy_generator(
            sender.seed, f"rounding{_SEPARATOR}{sender.phase}{_SEPARATOR}{name}", round=sender.round,
            silo=sender.silo))
    payload = write_payload(store, inputs)
    left = dict(_left_out(store, payload, wanted, sender)) if uplink.error_feedback and wanted else {}
    return payload, left


def plan_of(uplink: Uplink, *, link_bytes_per_second: float = 0.0) -> Plan:
    """What the codec is asked for; `top_k` is no matter of the codec, which leaves out zeros anyway."""
    return Plan(aim=Aim(uplink.aim), link_bytes_per_second=link_bytes_per_second, values=ValueForm(uplink.values),
                rounding=uplink.rounding)


def largest(tensors: Sequence[Tensor], count: int) -> list[Tensor]:
    """Which elements are the `count` of largest magnitude over all tensors; of equal ones the first.

    Args:
        tensors: finite, float32, on the CPU, any shapes; n elements in all.
        count: 0 to n.
    Returns: a mask for each tensor, bool, of its shape, contiguous; `count` elements are true in all.
    """
    total = sum(tensor.numel() for tensor in tensors)
    if not 0 < count < total:
        return [torch.full(tensor.shape, count > 0) for tensor in tensors]
    magnitudes = torch.cat([tensor.detach().reshape(-1).abs() for tensor in tensors]).numpy()
    magnitudes.partition(total - count)
    smallest = float(magnitudes[total - count])
    ties = count - int((magnitudes[total - count:] > smallest).sum())
    masks = []
    for tensor in tensors:
        size = tensor.detach().abs().contiguous()
        mask = size > smallest
        if ties:
            positions = torch.nonzero((size == smallest).reshape(-1)).flatten()[:ties]
            mask.view(-1)[positions] = True
            ties -= len(positions)
        masks.append(mask)
    return masks


def merged(*, committed: Mapping[str, Tensor], pending: Mapping[str, Tensor], left: Mapping[str, Tensor],
           phase: str) -> dict[str, Tensor]:
    """All residuals after a phase, in the order of their keys.

    Args:
        committed: of the rounds that were folded.
        pending: of the round under way, after an earlier phase of it; empty when there was none.
        left: what this phase has left out; what it did not send keeps its committed residual.
        phase: this phase, whose pending residuals are those of an attempt that is done again.
    """
    own = f"{phase}{_SEPARATOR}"
    others = {key: tensor for key, tensor in (pending or committed).items() if not key.startswith(own)}
    kept = {key: tensor for key, tensor in committed.items() if key.startswith(own)}
    both = {**others, **kept, **left}
    return {key: both[key] for key in sorted(both, key=str.encode)}


def _key(sender: Sender, group: str, tensor: str) -> str:
    return _SEPARATOR.join((sender.phase, group, tensor))


def _with_residual(name: str, group: TensorGroup, residuals: Mapping[str, Tensor], sender: Sender) -> dict[str, Tensor]:
    """delta + e of the float32 tensors of a group. Raises: ComputeFailed where that is not finite."""
    wanted: dict[str, Tensor] = {}
    for tensor, delta in group.tensors.items():
        if delta.dtype is torch.float32:
            value, residual = delta.detach().cpu(), residuals.get(_key(sender, name, tensor))
            if residual is not None and residual.shape == value.shape and residual.dtype == value.dtype:
                value = value + residual
            if not bool(torch.isfinite(value).all()):
                raise ComputeFailed(f"Training diverged: '{tensor}' of the update has an infinity or NaN.",
                                    remedy="Lower [method] lr, or set clip_norm, in the study file.")
            wanted[tensor] = value
    return wanted


def _lossy_input(group: TensorGroup, wanted: Mapping[str, Tensor], plan: Plan, uplink: Uplink,
                 generator: np.random.Generator) -> EncodedInput:
    count = uplink.sent(sum(tensor.numel() for tensor in wanted.values()))
    masks = dict(zip(wanted, largest(list(wanted.values()), count), strict=True)) if uplink.top_k < 1 else {}
    inputs = [TensorInput(tensor_spec(name, tensor), partial(_chosen_bits, wanted.get(name, tensor), masks.get(name)))
              for name, tensor in group.tensors.items()]
    return EncodedInput(inputs, group.meaning, group.base, plan, generator)


def _chosen_bits(tensor: Tensor, mask: Tensor | None) -> Bits:
    """The elements that are sent; all others are zero in every bit."""
    return tensor_to_bits(tensor if mask is None else torch.where(mask, tensor, 0.0))


def _left_out(store: PayloadStore, payload: PayloadRef, wanted: Mapping[str, dict[str, Tensor]],
              sender: Sender) -> Iterator[tuple[str, Tensor]]:
    """(key, residual) of every tensor that was sent lossily, from what a reader of the payload decodes."""
    with PayloadReader(store.path(payload.digest)) as reader:
        for name, tensors in wanted.items():
            for spec, bits in reader.tensors(name):
                if (value := tensors.pop(spec.name, None)) is not None:
                    yield _key(sender, name, spec.name), value - bits_to_tensor(bits, spec)
