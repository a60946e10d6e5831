"""Where simulated silos train: in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.compute import InlineCompute, OnProgress
from common.config import to_dict
from common.exchange import TaskSpec, TensorGroup
from common.methods import MethodSpec, Scenario
from common.store import PayloadStore
from common.tensor_cache import TensorCache
from semisilo.simulation.silos import Job
from silo.home import JoinChoice
from silo.images import SiloImages
from silo.received import receive
from silo.work import Operations

__all__ = ["InlineWorkplace", "SimulatedOperations", "training_arguments"]


_SHARED_GROUPS = 5
"""How many tensor groups stay in memory, for the next silo that gets the same ones."""


class SimulatedOperations(Operations):
    """The operations of a silo's compute process, whose images are in memory already."""

    def __init__(self, progress: Callable[[float, str], None], images: Callable[[int], SiloImages], *,
                 device: str = "") -> None:
        """`images` gives those of a silo by its place among all silos."""
        super().__init__(progress, device=device)
        self._images_of = images
        self._shared: dict[Any, dict[str, TensorGroup]] = {}

    def _received(self, order: TaskSpec, spec: MethodSpec, payloads: Mapping[str, str],
                  cache: PayloadStore) -> dict[str, TensorGroup]:
        """As a silo reads them; what many silos get in the same file is read once."""
        groups: dict[str, TensorGroup] = {}
        for payload in order.payloads:
            found = TensorCache(cache).find(payload.tensors) if payload.tensors else None
            place = None if found is None else found.stat()
            key = None if place is None else (payload.groups, payload.tensors, place.st_ino, place.st_mtime_ns)
            if key is None or key not in self._shared:
                read = receive(replace(order, payloads=(payload,)), spec, payloads, cache)
                if key is None:
                    groups |= read
                    continue
                self._shared = {**dict(list(self._shared.items())[-_SHARED_GROUPS + 1:]), key: read}
            groups |= {name: replace(group, tensors={each: tensor.clone() for each, tensor in group.tensors.items()})
                       for name, group in self._shared[key].items()}
        return groups

    def _silo_images(self, order: TaskSpec, scenario: Scenario, choice: JoinChoice) -> tuple[SiloImages, int]:
        return self._images_of(int(choice.source)), 0


class InlineWorkplace:
    """All silos in this process, one at a time."""

    def __init__(self, images: Sequence[SiloImages], *, factories: Sequence[str], device: str) -> None:
        """`images` of each silo; `factories`: model factories that may be imported."""
        self._factories = list(factories)
        self._compute = InlineCompute(
            lambda progress: SimulatedOperations(progress, images.__getitem__, device=device))

    @property
    def room(self) -> int:
        """See `Workplace.room`."""
        return 1

    async def train(self, job: Job, *, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """See `Workplace.train`."""
        return await self._compute.call("train", training_arguments(job, self._factories), on_progress=on_progress)

    async def close(self) -> None:
        """See `Workplace.close`."""
        await self._compute.close()


def training_arguments(job: Job, factories: Sequence[str]) -> dict[str, Any]:
    """A job as `silo.work.Operations.train` takes it; the silo's place stands for the source of its images."""
    return {
        "task": to_dict(job.task), "payloads": {digest: str(path) for digest, path in job.payloads.items()},
        "cache_folder": str(job.home.cache), "source": str(job.place), "on_error": "stop",
        "factories": list(factories), "memory": None if job.memory is None else str(job.memory),
        "residuals": None if job.residuals is None else str(job.residuals),
        "pending_residuals": None if job.pending_residuals is None else str(job.pending_residuals),
        "outgoing_folder": str(job.home.outgoing), "memory_folder": str(job.home.memory)}
