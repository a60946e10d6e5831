"""Where simulated silos train: in this process, one after the other.

Tests: tests/semisilo/simulation/engines/test_ray.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from semisilo.common.methods import MethodSpec, Scenario
from semisilo.common.methods.contract import TaskSpec, TensorGroup
from semisilo.common.payload.cache import TensorCache
from semisilo.common.process.compute import InlineCompute, OnProgress
from semisilo.common.storage.store import PayloadStore
from semisilo.silo.compute.images import SiloImages
from semisilo.silo.compute.messages import EvaluateReceived, Train, Trained
from semisilo.silo.compute.operations import Operations
from semisilo.silo.compute.received import receive
from semisilo.silo.site.home import JoinChoice

__all__ = ["InlineWorkplace", "SimulatedOperations"]


_WORTH_TELLING_SECONDS = 0.2
_SHARED_GROUPS = 5
"""How many tensor groups stay in memory, for the next silo that gets the same ones."""


@dataclass(frozen=True, slots=True)
class _SharedFile:
    """A file of a tensor group that several silos are sent."""

    groups: tuple[str, ...]
    """What it is called in the task."""
    tensors: str
    """Hex digest of its tensors."""
    inode: int
    mtime_ns: int


class SimulatedOperations(Operations):
    """The operations of a silo's compute process, whose images are in memory already."""

    def __init__(self, progress: Callable[[float, str], None], images: Callable[[int], SiloImages], *,
                 device: str = "", processors: int = 0) -> None:
        """`images` gives those of a silo by its index among all silos; the rest is as of `Operations`."""
        super().__init__(self._tell, device=device, processors=processors)
        self._listener = progress
        self._tell_from = 0.0
        self._images_of = images
        self._shared: dict[_SharedFile, dict[str, TensorGroup]] = {}

    def train(self, request: Train) -> Trained:
        """As a silo does it; the progress of what takes a moment only is told nobody: each report wakes a thread or a
        process, which would take as long as the task."""
        self._tell_from = time.monotonic() + _WORTH_TELLING_SECONDS
        return super().train(request)

    def _tell(self, fraction: float, text: str = "") -> None:
        if time.monotonic() >= self._tell_from:
            self._listener(fraction, text)

    def _received(self, order: TaskSpec, spec: MethodSpec, request: Train | EvaluateReceived,
                  cache: PayloadStore) -> dict[str, TensorGroup]:
        """As a silo reads them; what many silos get in the same file is read once."""
        groups: dict[str, TensorGroup] = {}
        for payload in order.payloads:
            found = TensorCache(cache).find(payload.tensors) if payload.tensors else None
            at = None if found is None else found.stat()
            key = None if at is None else _SharedFile(payload.groups, payload.tensors, at.st_ino, at.st_mtime_ns)
            if key is None or key not in self._shared:
                read = receive(replace(order, payloads=(payload,)), spec, request.payloads, cache)
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

    def __init__(self, images: Sequence[SiloImages], *, device: str) -> None:
        """`images` of each silo."""
        self._compute = InlineCompute(
            lambda progress: SimulatedOperations(progress, images.__getitem__, device=device))

    @property
    def room(self) -> int:
        """See `Workplace.room`. One trains; the next one's task is ready when it has done."""
        return 2

    async def train(self, request: Train, *, on_progress: OnProgress | None = None) -> Trained:
        """See `Workplace.train`."""
        return await self._compute.call(request, on_progress=on_progress)

    async def close(self) -> None:
        """See `Workplace.close`."""
        await self._compute.close()
