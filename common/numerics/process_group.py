"""Several processes that train one network together: each computes a share of every batch, and all come to one result.

Every process runs the same program on the same images with the same seeds. What is shared is the passes through the
network: of a batch of B images process r computes its own rows, the logits of all rows are put together again, and
from there on everyone computes the same loss. Going backward each process has the gradient of its rows, and torch's
DistributedDataParallel makes the mean over the processes of them. So batch sizes, the order of images, views, pairs of
MixUp and pseudo-labels are those of one process, and no loss needs to know that it is computed by several; sums of
gradients are added in another order, which changes their last bits. Batch-norm takes its statistics over the whole
batch (`over_processes`). What draws random numbers inside the network (dropout) draws others in every process.

Shapes: B images of a batch, K classes, C channels.

Tests: tests/common/numerics/test_process_group.py.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from semisilo.common.numerics.side_by_side import lanes, set_lanes

__all__ = ["Batch", "ProcessGroup", "averaged", "batch_under_way", "each_by_itself", "over_processes",
           "present", "share_of", "shared", "together"]


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The processes that train together; torch.distributed's default group, seen from one of them."""

    rank: int
    """Of this process, from 0."""
    size: int
    """Processes, from 2."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What of a batch is on its way through the network in this process."""

    here: int
    """Rows of the batch that are computed here; behind them is one that nobody counts, where these are none."""
    everywhere: int
    """B."""


_group: ProcessGroup | None = None
_batch: Batch | None = None


def present() -> ProcessGroup | None:
    """The processes that this one computes with now; None where it computes alone."""
    return _group


def batch_under_way() -> Batch | None:
    """The batch whose share is on its way through a network; None where whole batches are computed here."""
    return _batch


@contextmanager
def together(group: ProcessGroup) -> Iterator[None]:
    """Inside, networks that were made by `shared` share their batches. All processes must run the same program.

    Passes go one after the other: what the processes tell each other must have one order.
    """
    global _group
    before, lanes_before = _group, lanes()
    _group = group
    set_lanes(1)
    try:
        yield
    finally:
        _group = before
        set_lanes(lanes_before)


@contextmanager
def each_by_itself() -> Iterator[None]:
    """Inside, every process computes whole batches: where a layer looks at all that goes through it."""
    global _group
    before, _group = _group, None
    try:
        yield
    finally:
        _group = before


def share_of(count: int, group: ProcessGroup) -> list[slice]:
    """Rows of a batch by process: in order, as equal as can be; empty ones last where there are fewer rows."""
    least, more = divmod(count, group.size)
    ends = [least * rank + min(rank, more) for rank in range(group.size + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


def shared(model: nn.Module) -> nn.Module:
    """The same network, whose passes are shared inside `together`. To be called before it is moved or loaded; its
    parameters keep their names."""
    kind = type(model)
    model.__class__ = type(kind.__name__, (_Shared, kind), {})  # a class, as of `semisilo.common.numerics.numerics`
    return model


def averaged(gradients: Mapping[str, Tensor]) -> None:
    """Puts the mean over the processes into gradients, in place: for weights that are no network's own parameters, so
    that DistributedDataParallel does not know them. Nothing where this process computes alone."""
    if _group is None or not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients.values()])
    torch.distributed.all_reduce(flat)
    flat /= _group.size
    start = 0
    for gradient in gradients.values():
        gradient.copy_(flat[start:start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def over_processes(sum_C: Tensor) -> Tensor:
    """The sum over the processes, with gradient. Raises: what torch.distributed raises when a process is gone."""
    total: Tensor = _Summed.apply(sum_C)
    return total


class _Shared(nn.Module):
    """A network that computes the rows of a batch that are this process's, and returns the logits of all."""

    def forward(self, images_BCHW: Tensor) -> Tensor:
        group, count = _group, len(images_BCHW)
        if group is None or not count:
            whole: Tensor = super().forward(images_BCHW)
            return whole
        rows = share_of(count, group)
        mine = rows[group.rank]
        here = mine.stop - mine.start
        # A process without rows sends one through: all must take part in what the layers tell each other.
        inputs = images_BCHW[mine] if here else images_BCHW[:1]
        with _on_its_way(Batch(here, count)):
            logits = _parallel(self, inputs)(inputs) if self._learns() else super().forward(inputs)
        whole = _Gathered.apply(logits[:here], [each.stop - each.start for each in rows], group)
        return whole

    def _learns(self) -> bool:
        """Whether the gradient goes to this network's own parameters; `functional_call` puts others in their place."""
        return torch.is_grad_enabled() and any(
            each.requires_grad and isinstance(each, nn.Parameter) for each in self.parameters())


def _parallel(network: _Shared, inputs: Tensor) -> nn.Module:
    """The network in DistributedDataParallel, made at the first pass that learns: when it is where it stays."""
    found: nn.Module | None = network.__dict__.get("_in_parallel")
    if found is None:
        from torch.nn.parallel import DistributedDataParallel

        alone = _Alone(network)
        with torch.random.fork_rng(devices=[inputs.device] if inputs.device.type == "cuda" else []):
            reached = _reached(alone(inputs))
        unused = any(each.requires_grad and id(each) not in reached for each in network.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer versions have another name for the first option
            found = DistributedDataParallel(alone, broadcast_buffers=False, find_unused_parameters=unused)
        network.__dict__["_in_parallel"] = found  # not among its modules: names and modes stay as they are
    return found


def _reached(output: Tensor) -> set[int]:
    """Identities of the parameters that a result hangs on. (An auxiliary head has some that it does not.)"""
    found, seen, ahead = set(), set(), [output.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            found.add(id(variable))
        ahead += [each for each, _ in node.next_functions]
    return found


class _Alone(nn.Module):
    """The network's own pass."""

    def __init__(self, network: _Shared) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = super(_Shared, self.network).forward(inputs)
        return logits


@contextmanager
def _on_its_way(batch: Batch) -> Iterator[None]:
    global _batch
    _batch = batch
    try:
        yield
    finally:
        _batch = None


class _Gathered(torch.autograd.Function):
    """Rows of all processes, (B, K) from (B_r, K). Going backward each has the gradient of its own rows, times the
    number of processes, of which the mean is made later."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, counts: Sequence[int], group: ProcessGroup) -> Tensor:
        ctx.rows, ctx.size = slice(sum(counts[:group.rank]), sum(counts[:group.rank + 1])), group.size
        padded = mine.new_zeros((max(counts), *mine.shape[1:]))
        padded[:len(mine)] = mine
        found = [torch.empty_like(padded) for _ in counts]
        torch.distributed.all_gather(found, padded)
        return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.rows] * ctx.size, None, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        return _sum_of(mine)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _sum_of(gradients[0])


def _sum_of(mine: Tensor) -> Tensor:
    total = mine.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(total)
    return total
