"""The loop of a silo: wait for a task, do it, answer, wait again; for ever, or until the study is over.

What happens inside a task is in `silo.assignment`; how calls are repeated in `silo.link`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable

from common import __version__
from common.compute import Compute
from common.describe import describe_bytes
from common.errors import SemisiloError, Unreachable
from common.logs import printable
from common.tensor_cache import TensorCache
from common.wire import round_service_pb2 as pb
from silo.assignment import TaskRunner
from silo.disclosures import DisclosureLog
from silo.display import Display
from silo.home import JoinChoice, SiloHome, StatusFile
from silo.link import Link, is_fatal
from silo.memory import SiloMemory
from silo.policy import Policy
from silo.retry import waits
from silo.stores import open_cache
from silo.traffic import Carried, Traffic

__all__ = ["Agent", "Renewal"]

_LOG = logging.getLogger("semisilo.silo")
_POLL_SECONDS = 25.0
_STATUS_SECONDS = 5.0
_MAX_HELD_DIGESTS = 256
_QUICK_SECONDS = 1.0
"""An answer "nothing to do" that comes sooner, twice for the same reason, is not a long poll: pause before the next."""
_REASONS = {
    pb.Standby.REASON_WAITING_FOR_SILOS: "waiting for other silos to join",
    pb.Standby.REASON_COORDINATOR_WORKING: "waiting for the coordinator",
    pb.Standby.REASON_NOT_SAMPLED: "not needed at the moment: waiting for the next task",
    pb.Standby.REASON_PAUSED: "the study is paused by the coordinator's operator",
    pb.Standby.REASON_NO_STUDY: "connected: the coordinator has no study at the moment",
}


class Agent:
    """Takes part in the studies of one federation. Holds nothing between tasks that a restart would miss."""

    def __init__(self, *, home: SiloHome, silo: str, address: str, policy: Policy, choice: JoinChoice, link: Link,
                 compute: Compute, display: Display, traffic: Traffic, renew: Callable[[], Awaitable[None]],
                 exit_when_finished: bool = False,
                 poll_seconds: float = _POLL_SECONDS, clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            home: folders of this silo; the caller holds its lock.
            silo: this silo's name, from its certificate.
            address: of the coordinator, to show.
            choice: which images.
            link: the connection; its `on_trouble` and `on_contact` should be `trouble` and `contact` of this object.
            compute: runs `silo.work.Operations`.
            renew: renews the certificate when that is due; called before every poll.
            exit_when_finished: `run` returns when there is no study any more after this silo has taken part in one.
            poll_seconds: how long the coordinator may hold a poll.
            clock: Unix seconds.
        """
        self._home = home
        self._silo = silo
        self._address = address
        self._policy = policy
        self._choice = choice
        self._link = link
        self._compute = compute
        self._display = display
        self._traffic = traffic
        self._renew = renew
        self._exit_when_finished = exit_when_finished
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._memory = SiloMemory(home.memory, outgoing=home.outgoing)
        self._cache = open_cache(home.cache)
        self._tensors = TensorCache(self._cache)
        self._status = StatusFile(home.status)
        self._before_start = Carried(self._status.now.sent_bytes, self._status.now.received_bytes)
        self._runner = TaskRunner(silo=silo, policy=policy, choice=choice, link=link, compute=compute,
                                  memory=self._memory, cache=self._cache, display=display,
                                  disclosures=DisclosureLog(home.disclosures))
        self._labelled = 0
        self._unlabelled = 0
        self._contact_unix = self._status.now.last_contact_unix
        self._written = 0.0
        self._in_trouble = False
        self._quick_answers = 0

    # The loop ---------------------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Works until the study is over (with `exit_when_finished`); returns the coordinator's line about its end.

        Raises: BadData when the images cannot be used; what no repetition can mend.
        """
        try:
            # Nobody writes updates now: what a crash has left half-written can go.
            await asyncio.to_thread(self._memory.outgoing.clean)
            await self._survey()
            self._display.state(f"connecting to {self._address}")
            pauses = waits(self._link.backoff, silo=self._silo)
            while True:
                await self._renew()
                asked = time.monotonic()
                answer = await self._link.await_task(self._hello)
                if answer.WhichOneof("answer") == "task":
                    if await self._work(answer.task):
                        pauses = waits(self._link.backoff, silo=self._silo)
                    else:  # it may be given again at once, and end in the same way
                        await asyncio.sleep(next(pauses))
                    continue
                if self._standby(answer.standby):
                    return printable(answer.standby.text)
                await self._no_spin(time.monotonic() - asked)
        except SemisiloError as error:
            self._save(state="stopped", pid=0, last_error=error.line())
            raise
        finally:
            self._display.done()
            if self._status.now.pid:
                self._save(state="stopped", pid=0)

    async def _survey(self) -> None:
        self._save(state="reading the images", pid=os.getpid(), last_error="")
        self._display.state(f"reading the images of {self._choice.source}")
        choice = self._choice
        found = await self._compute.call("survey", {"source": choice.source, "labelled": choice.labelled,
                                                    "test": choice.test})
        self._labelled, self._unlabelled = int(found["labelled"]), int(found["unlabelled"])
        self._runner.num_images = self._labelled + self._unlabelled
        choice.save(self._home.choice)
        self._display.done()
        in_steps = f" that come in {found['steps']} steps" if found.get("steps") else ""
        tested = f"; {found['test']} for testing" if found.get("test") else ""
        where = " and ".join(each for each in (choice.source, choice.labelled) if each)
        self._display.event(f"silo {self._silo}: {self._runner.num_images} images in {where} ({self._labelled} with a "
                            f"label, {self._unlabelled} without{in_steps}{tested})")
        self._save(labelled_count=self._labelled, unlabelled_count=self._unlabelled)

    def _hello(self) -> pb.AwaitTaskRequest:
        study, round_number = self._memory.state()
        request = pb.AwaitTaskRequest(
            version=__version__, methods=self._policy.methods, labelled_count=self._labelled,
            unlabelled_count=self._unlabelled, memory_study=study, memory_round=round_number,
            held_digests=[bytes.fromhex(digest) for digest in self._tensors.digests()[:_MAX_HELD_DIGESTS]])
        request.poll_timeout.FromMicroseconds(round(self._poll_seconds * 1e6))
        request.silo_time.FromMicroseconds(round(self._clock() * 1e6))
        return request

    async def _work(self, task: pb.Task) -> bool:
        """Does a task and tells what became of it; returns whether it was answered."""
        name = f"round {task.round}/{task.round_count}"
        self._save(state=f"{name} of {printable(task.study)}", study=printable(task.study, limit=128),
                   round=task.round, rounds=task.round_count, last_task=printable(task.task_id, limit=700),
                   last_outcome="under way")
        before = self._traffic.total()
        outcome = await self._runner.answer(task)
        carried = self._traffic.total().since(before)
        about = "about " if carried.estimated else ""
        self._display.event(f"{name}: {outcome.text}; on the wire {about}{describe_bytes(carried.sent_bytes)} out, "
                            f"{about}{describe_bytes(carried.received_bytes)} in")
        answered = self._status.now.tasks_answered + int(outcome.answered)
        self._save(last_outcome=outcome.text, tasks_answered=answered)
        return outcome.answered

    def _standby(self, standby: pb.Standby) -> bool:
        """Shows why there is no task; returns whether that was all."""
        text = printable(standby.text)
        study = printable(standby.study, limit=128)
        line = _REASONS.get(standby.reason, "waiting for the coordinator")
        if standby.round_count and standby.reason != pb.Standby.REASON_NO_STUDY:
            line = f"{study}, round {standby.round}/{standby.round_count}: {line}"
        if text:
            line = f"{line} ({text})"
        if standby.reason != pb.Standby.REASON_NO_STUDY:
            self._display.state(line)
            self._save(state=line, study=study or self._status.now.study, round=standby.round,
                       rounds=standby.round_count)
            return False
        was_part = bool(self._status.now.study)
        if was_part:
            self._display.event(f"study {self._status.now.study} is over" + (f": {text}" if text else ""))
        if not (was_part and self._exit_when_finished):
            self._display.state(line)
        self._save(state=line, study="")
        return was_part and self._exit_when_finished

    async def _no_spin(self, waited_seconds: float) -> None:
        self._quick_answers = self._quick_answers + 1 if waited_seconds < _QUICK_SECONDS else 0
        if self._quick_answers > 1:
            await asyncio.sleep(min(5.0, 0.25 * self._quick_answers))

    # What the link tells ----------------------------------------------------------------------------------------------

    def trouble(self, error: SemisiloError, failures: int) -> None:
        """A call failed and is going to be repeated."""
        _LOG.debug("attempt %d failed: %s", failures, error.line())
        self._traffic.total()  # the connection may be gone at the next look
        if failures >= 2:  # a single cut is mended before anyone could do anything about it
            line = error.line()
            self._in_trouble = True
            self._display.state(line if "again" in line else f"{line} Trying again.")
            self._save(last_error=line)

    def contact(self) -> None:
        """The coordinator has answered, or a chunk has come: called often."""
        self._contact_unix = self._clock()
        if self._in_trouble:
            self._in_trouble = False
            self._display.event(f"connected to {self._address} again")
            self._save(last_error="")
        elif self._contact_unix - self._written >= _STATUS_SECONDS:
            self._save()

    def _save(self, **changes: object) -> None:
        carried = self._traffic.total()
        self._written = self._clock()
        try:
            self._status.update(now_unix=self._written, last_contact_unix=self._contact_unix,
                                sent_bytes=self._before_start.sent_bytes + carried.sent_bytes,
                                received_bytes=self._before_start.received_bytes + carried.received_bytes,
                                bytes_estimated=carried.estimated or self._status.now.bytes_estimated, **changes)
        except OSError as error:
            _LOG.warning("the status file cannot be written: %s", error)


class Renewal:
    """Keeps the certificate fresh: `silo.enrollment` does it, this decides when to ask and what a failure means."""

    def __init__(self, renew: Callable[[], Awaitable[bool]], *, due: Callable[[], float], link: Link,
                 display: Display, clock: Callable[[], float] = time.time, pause_seconds: float = 60.0) -> None:
        """
        Args:
            renew: renews, and returns whether there is a new certificate.
            due: when that should happen, Unix seconds.
            link: opened anew after a renewal.
            pause_seconds: between two attempts that fail.
        """
        self._renew = renew
        self._due = due
        self._link = link
        self._display = display
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._not_before = 0.0

    async def __call__(self) -> None:
        """Renews when due. A coordinator that cannot be reached is asked again later: the old certificate still lasts.

        Raises: what no repetition can mend.
        """
        now = self._clock()
        if now < self._due() or now < self._not_before:
            return
        self._not_before = now + self._pause_seconds
        try:
            renewed = await self._renew()
        except SemisiloError as error:
            if is_fatal(error):
                raise
            if not isinstance(error, Unreachable):
                self._display.event(f"the certificate could not be renewed yet: {error.line()}")
            return
        if renewed:
            await self._link.reopen()
            self._not_before = 0.0
            self._display.event("the certificate was renewed")
