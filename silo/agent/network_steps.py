"""The steps of `semisilo.silo.agent.answer` that a real silo does in its own way: payloads come over the network,
training runs in the compute process, and the day has a budget.

Tests: tests/silo/agent/test_answer.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from semisilo.common.errors import BadData, ComputeFailed, PluginFailed, StorageDamaged, TensorsMissing
from semisilo.common.methods.contract import PayloadRef, TaskSpec
from semisilo.common.methods.spec import MEASURING
from semisilo.common.payload.cache import TensorCache
from semisilo.common.process.compute import Compute, ComputeAborted
from semisilo.common.storage.store import PayloadStore
from semisilo.common.text.describe import counted, describe_bytes
from semisilo.common.text.logs import printable
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.broken_images import OwnImages
from semisilo.silo.agent.daily_budget import DayBudget
from semisilo.silo.agent.task_times import TaskTook
from semisilo.silo.agent.terminal import Display
from semisilo.silo.agent.watch import Watch
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.link.link import Link
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.site.stores import collect_tensors

__all__ = ["NetworkSteps"]

_LOG = logging.getLogger("semisilo.silo")


class NetworkSteps:
    """`semisilo.silo.agent.answer.TaskSteps` of a real silo, for one task after another."""

    def __init__(self, *, choice: JoinChoice, link: Link, compute: Compute, cache: PayloadStore, display: Display,
                 budget: DayBudget, last_upload_bytes: Mapping[str, int], clock: Callable[[], float],
                 count: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            budget: what may cross today.
            count: has it take note of what has crossed.
            last_upload_bytes: size of the last update of each study, as far as it is known.
            clock: Unix seconds.
        """
        self._link = link
        self._compute = compute
        self._cache = cache
        self._tensors = TensorCache(cache)
        self._display = display
        self._budget = budget
        self._count = count
        self._clock = clock
        self._own_images = OwnImages(choice)
        self._last_upload_bytes = dict(last_upload_bytes)
        self._task: TaskSpec
        self._watch: Watch
        self.took: TaskTook
        """What the task at hand has taken so far."""

    def begin(self, task: TaskSpec, watch: Watch, *, images: int) -> None:
        """The next task; to be called before any step of it."""
        self._task, self._watch = task, watch
        self.took = TaskTook(study=task.study, round=task.round, phase=task.phase, method=task.method,
                             unix=self._clock(), images=images)

    @property
    def upload_rate(self) -> float:
        """See `TaskSteps.upload_rate`."""
        return self._link.upload_rate

    def ready_before(self) -> None:
        """See `TaskSteps.ready_before`."""
        self._display.event(f"{self._watch.name}: the answer was ready before; it is sent again")

    async def fetch(self, task: TaskSpec) -> dict[str, Path]:
        """See `TaskSteps.fetch`. Raises: BadData, before anything is fetched, while the images cannot be used."""
        if not self._own_images.knows(task.study):
            broken = await asyncio.to_thread(self._own_images.standing, task.study)
            if broken is not None:  # it would be in vain
                raise broken
        wanted = [reference for reference in task.payloads
                  if not (reference.tensors and self._tensors.find(reference.tensors))]
        for reference in wanted:
            if not reference.digest or (reference.reference and not self._tensors.find(reference.reference)):
                raise TensorsMissing("A tensor group that the task builds on is not here any more.")
        digests = [reference.digest for reference in wanted]
        await asyncio.to_thread(self._cache.clean, keep_partials=digests)
        total = sum(reference.size_bytes for reference in wanted)
        coming = sum(reference.size_bytes for reference in wanted if not self._cache.has(reference.digest))
        # The update's size is known once it is there; one like the last must fit too, or training would be in vain.
        answer = self._last_upload_bytes.get(task.study, 0)
        also = f", with an update like the last ({describe_bytes(answer)})," if answer else ""
        self._budget.check(coming + answer, f"this task's download of {describe_bytes(coming)}{also}", self._clock())
        before, started, left = 0, time.monotonic(), coming
        for reference in wanted:
            if not await self._cached(reference):
                self._watch.stage(pb.ReportProgressRequest.STAGE_DOWNLOADING)
                left = max(left, reference.size_bytes)  # more where one of the cache has turned out to be damaged

                def arrived(count: int, before: int = before) -> None:
                    self._watch.tell((before + count) / total,
                                     f"{describe_bytes(before + count)} of {describe_bytes(total)}")

                def may_go_on(here: int, left: int = left) -> None:
                    self._count()
                    self._budget.check(left - here + answer, f"the rest of this task's download{also}", self._clock())

                arrived(0)
                await self._link.download(task.task_id, reference, self._cache, on_bytes=arrived, may_go_on=may_go_on)
                left -= reference.size_bytes
            before += reference.size_bytes
        self.took = replace(self.took, download_bytes=coming, download_seconds=time.monotonic() - started)
        await asyncio.to_thread(self._collect, task, digests)
        return {digest: self._cache.path(digest) for digest in digests}

    def _collect(self, task: TaskSpec, digests: list[str]) -> None:
        """Lets go of what the task does not need."""
        self._cache.collect(digests)
        collect_tensors(self._tensors, task.payloads)

    async def _cached(self, reference: PayloadRef) -> bool:
        if not self._cache.has(reference.digest):
            return False
        try:
            await asyncio.to_thread(self._cache.verify, reference.digest)
        except StorageDamaged as error:
            _LOG.warning("%s; it is fetched again", error.text)
            self._cache.path(reference.digest).unlink(missing_ok=True)
            return False
        return True

    async def train(self, request: Train) -> Trained:
        """See `TaskSteps.train`; tried a second time when it fails. Remembers images that cannot be used."""
        task = request.task
        state = "" if self._own_images.knows(task.study) else await asyncio.to_thread(self._own_images.before_reading,
                                                                                      task.study)
        images = counted(self.took.images, "image")
        self._display.event(f"{self._watch.name}: measuring batch-norm statistics ({images})" if task.phase in MEASURING
                            else f"{self._watch.name}: training ({task.method}, {images})")
        self._watch.stage(pb.ReportProgressRequest.STAGE_TRAINING)
        try:
            trained = await self._trained(request)
        except BadData as error:
            await self._warn_of_images(task, error, state)
            raise
        self._display.done()
        self.took = replace(self.took, train_seconds=trained.seconds, processes=trained.processes)
        if trained.skipped:
            self._display.event(f"{self._watch.name}: {counted(trained.skipped, 'file')} could not be read: left out")
        self._own_images.were_read(task.study)
        return trained

    async def _trained(self, request: Train) -> Trained:
        try:
            return await self._compute.call(request, on_progress=self._watch.tell)
        except (ComputeAborted, PluginFailed):  # the same again, if it were done again
            raise
        except ComputeFailed as error:
            self._display.event(f"{self._watch.name}: training failed and is tried once more: {error.line()}")
            return await self._compute.call(request, on_progress=self._watch.tell)

    async def _warn_of_images(self, task: TaskSpec, error: BadData, state: str) -> None:
        if await asyncio.to_thread(self._own_images.cannot_be_used, task.study, error, state):
            _LOG.warning(
                "the images of this site cannot be used: %s No task of study %s is fetched, and every one is refused, "
                "until they have changed. `silo data` looks at every file. When this is settled in the files or in "
                "[data] of silo.toml, restart `silo join`.", printable(error.line(), limit=700), task.study)

    def check_room(self, size_bytes: int) -> None:
        """See `TaskSteps.check_room`."""
        self._last_upload_bytes[self._task.study] = size_bytes
        self._budget.check(size_bytes, "this update", self._clock())
