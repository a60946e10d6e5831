"""Watches over the work on a task: tells person and coordinator how far it is, and ends it when it is not to go on.

Tests: tests/silo/agent/test_agent.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from semisilo.common.errors import OutsideHours, SemisiloError, TaskClosed
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.text.logs import printable
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.terminal import Display
from semisilo.silo.link.link import Link, is_fatal

__all__ = ["HoursOver", "TaskAborted", "Watch", "cut"]

T = TypeVar("T")

_SHORT_STAGE_SECONDS = 0.25
"""A stage that is over sooner is not reported: the message would only be in the way of the next."""
_PROMPT_SECONDS = 3.0
"""A coordinator that asks for reports more seldom than this has many silos: each then reports at its interval and no
longer whenever a stage begins, for of a thousand silos the reports were a third of all calls."""
_LATE_ABORT_SECONDS = 5.0
"""How long an upload may still finish after the coordinator has said that the task is over: most likely because it is
just that upload that has ended it."""


class TaskAborted(SemisiloError):
    """The coordinator no longer wants the task."""

    code = "TASK_ABORTED"


class HoursOver(OutsideHours):
    """The working hours have ended while the task was under way, and this site wants it to stop then."""


class Watch:
    """Tells person and coordinator how far a task is, and ends the work when the coordinator says so."""

    def __init__(self, task: TaskSpec, link: Link, display: Display, *, interval_seconds: float) -> None:
        self.name = f"{task.study}, round {task.round}/{task.rounds}"
        self._task_id = task.task_id
        self._masked = bool(task.secure)
        self._of_others = task.method not in METHODS
        self._link = link
        self._display = display
        self._interval_seconds = interval_seconds
        self._stage: pb.ReportProgressRequest.Stage | None = None
        self._fraction = 0.0
        self._text = ""
        self._changed = asyncio.Event()
        self._told: tuple[pb.ReportProgressRequest.Stage, float] = (pb.ReportProgressRequest.STAGE_DOWNLOADING, 0.0)

    def stage(self, stage: pb.ReportProgressRequest.Stage) -> None:
        """The next stage begins; the coordinator hears of it at once, unless it is over at once or there are many
        silos."""
        if stage != self._stage:
            self._stage, self._fraction, self._text = stage, 0.0, ""
            self._changed.set()

    def tell(self, fraction: float, text: str) -> None:
        """How far the stage is."""
        self._fraction, self._text = fraction, text
        if self._stage is not None:
            self._display.progress(_STAGE_NAMES[self._stage], fraction, text)

    async def over(self, work: Coroutine[Any, Any, T], *, stop: Callable[[], Awaitable[None]],
                   hours_over: Callable[[], Awaitable[str]]) -> T:
        """Does the work while reporting.

        Args:
            stop: ends what the work has started elsewhere.
            hours_over: returns, with a reason, when this site wants the work to stop.
        Raises: TaskAborted when the coordinator asks to; HoursOver; what the work raises.
        """
        working = asyncio.ensure_future(work)
        reporting = asyncio.ensure_future(self._report())
        ending = asyncio.ensure_future(hours_over())
        try:
            await asyncio.wait({working, reporting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done() and not working.done():
                working.cancel()
                await stop()
                raise HoursOver(ending.result())
            if not working.done() and self._stage == pb.ReportProgressRequest.STAGE_UPLOADING:
                await asyncio.wait({working}, timeout=_LATE_ABORT_SECONDS)
            if working.done():
                return working.result()
            reason = reporting.result()
            working.cancel()
            await stop()
            raise TaskAborted(reason)
        finally:
            for task in (working, reporting, ending):
                await _end(task)
            self._display.done()

    async def _report(self) -> str:
        """Reports until the coordinator asks to abort; returns its reason."""
        while True:
            if self._interval_seconds > _PROMPT_SECONDS:
                await asyncio.sleep(self._interval_seconds)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_seconds):  # not wait_for: see semisilo.silo.link.link
                        await self._changed.wait()
                self._changed.clear()
                await asyncio.sleep(_SHORT_STAGE_SECONDS)
            if self._stage is None or self._only_waits():
                continue
            self._told = self._stage, self._fraction
            try:
                answer = await self._link.report_progress(self._request(self._stage))
            except TaskClosed as error:
                return error.text
            except SemisiloError as error:
                if is_fatal(error):
                    raise
                continue  # the work itself notices when there is no connection, and says so
            if answer.abort:
                return printable(answer.reason or "the coordinator asked to", limit=200)


    def _request(self, stage: pb.ReportProgressRequest.Stage) -> pb.ReportProgressRequest:
        """What the coordinator hears. In a secure sum no words, and tenths alone: words name images and pseudo-labels,
        and of 32 images of so many more the share tells how many these are. Of training by a plug-in no words: they are
        whatever its author writes, and may say what was computed from images."""
        fraction = min(1.0, max(0.0, self._fraction))
        if self._masked:
            return pb.ReportProgressRequest(task_id=self._task_id, stage=stage, fraction=math.floor(10 * fraction) / 10)
        stays = self._of_others and stage == pb.ReportProgressRequest.STAGE_TRAINING
        return pb.ReportProgressRequest(task_id=self._task_id, stage=stage, fraction=fraction,
                                        text="" if stays else cut(printable(self._text, limit=200), 200))

    def _only_waits(self) -> bool:
        """Whether one of many silos waits for its turn to transfer: its call is in flight, by which the coordinator
        knows that it is there, and a report would say nothing that it has not said."""
        return (self._interval_seconds > _PROMPT_SECONDS and self._stage in _TRANSFERS
                and self._told == (self._stage, self._fraction))


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancels a task until it has ended: a library on its way may have swallowed the first time."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
    if not task.cancelled():
        task.exception()  # seen, so that nobody complains that it was not


_TRANSFERS = (pb.ReportProgressRequest.STAGE_DOWNLOADING, pb.ReportProgressRequest.STAGE_UPLOADING)
_STAGE_NAMES = {pb.ReportProgressRequest.STAGE_DOWNLOADING: "downloading",
                pb.ReportProgressRequest.STAGE_TRAINING: "training",
                pb.ReportProgressRequest.STAGE_UPLOADING: "uploading"}


def cut(text: str, limit_bytes: int) -> str:
    """The text, at most so many bytes of UTF-8."""
    return text.encode()[:limit_bytes].decode(errors="ignore")
