"""One task at a silo, from the policy's check to the coordinator's acknowledgement. Every step may be repeated safely.

The order makes it so: an answer is durable (memory, payload, record) before a byte of it is sent, its identifier
follows from its content, and the coordinator accepts an identifier once. A process that dies anywhere is given the same
task again and either does the same work or sends the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from common.compute import Compute, ComputeAborted, ComputeCrashed
from common.config import from_dict, to_dict
from common.convert import check_metrics, reference_to_proto, task_from_proto
from common.describe import counted, describe_bytes, describe_seconds
from common.errors import (
    BadData,
    ComputeFailed,
    DailyBudget,
    NotPermitted,
    SemisiloError,
    StorageDamaged,
    TaskClosed,
    TensorsMissing,
)
from common.exchange import PayloadRef, TaskSpec
from common.logs import printable
from common.manifest import manifest_to_proto
from common.methods import MethodSpec
from common.payload_reader import read_manifest
from common.store import PayloadStore
from common.tensor_cache import TensorCache
from common.wire import round_service_pb2 as pb
from silo.budget import DayBudget
from silo.disclosures import Disclosure, DisclosureLog, Kind, message
from silo.display import Display
from silo.home import JoinChoice
from silo.hours import closes_at, opens_at, time_text
from silo.link import Link, Verdict, is_fatal
from silo.memory import PendingUpdate, SiloMemory, update_id_of
from silo.own_images import OwnImages
from silo.policy import Policy, check_task, check_update
from silo.rounds import TaskTook
from silo.stores import collect_tensors
from silo.watch import HoursOver, TaskAborted, Watch, cut

__all__ = ["OUTCOME_KINDS", "Outcome", "OutcomeKind", "TaskRunner"]

_LOG = logging.getLogger("semisilo.silo")
_REPORT_SECONDS = 3.0
_PATH = re.compile(r"(?<![\w<])(?:[A-Za-z]:)?[/\\](?=\S).*", re.DOTALL)
"""A path and all that follows: names of folders may have blanks, so where a path ends cannot be seen."""

OutcomeKind = Literal["updated", "abstained", "refused", "put_off", "dropped", "unwanted"]
OUTCOME_KINDS: tuple[OutcomeKind, ...] = get_args(OutcomeKind)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task."""

    text: str
    """A line for a person."""
    answered: bool
    """Whether the coordinator has acknowledged an answer; if not, the task may be given again."""
    took: TaskTook | None = None
    """What the task took, when it was done; without the bytes on the wire."""
    kind: OutcomeKind = "dropped"
    """For counting."""
    error: SemisiloError | None = None
    """Why this silo has refused it."""


class TaskRunner:
    """Works on tasks, one at a time."""

    def __init__(self, *, silo: str, policy: Policy, choice: JoinChoice, link: Link, compute: Compute,
                 memory: SiloMemory, cache: PayloadStore, disclosures: DisclosureLog, display: Display,
                 budget: DayBudget, last_upload_bytes: Mapping[str, int] | None = None,
                 clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            budget: what may cross today.
            last_upload_bytes: size of the last update of each study, as far as it is known.
            clock: Unix seconds.
        """
        self._silo = silo
        self._policy = policy
        self._choice = choice
        self._link = link
        self._compute = compute
        self._memory = memory
        self._cache = cache
        self._tensors = TensorCache(cache)
        self._disclosures = disclosures
        self._display = display
        self._budget = budget
        self._clock = clock
        self._own_images = OwnImages(choice)
        self._took: dict[str, Any] = {}
        self._last_upload_bytes = dict(last_upload_bytes or {})
        self.num_images = 0
        """For the line that announces training; known after the survey."""

    async def refuse(self, task: pb.Task, error: SemisiloError) -> Outcome:
        """Tells the coordinator that this silo does not do a task, and why, without having looked at it."""
        return await self._refuse(task, error)

    async def answer(self, task: pb.Task) -> Outcome:
        """Does a task, or says why not.

        Raises: only what no repetition can mend (`is_fatal`). Everything else becomes a refusal that the coordinator
            sees, or an outcome without an answer, after which the same task comes again.
        """
        try:
            return await self._answer(task)
        except HoursOver as error:
            return Outcome(f"put off: {error.text}", answered=False, kind="put_off")
        except TaskAborted as error:
            return Outcome(f"dropped: {error.text}", answered=False, kind="dropped")
        except TaskClosed as error:
            return Outcome(f"dropped: {error.line()}", answered=False, kind="dropped")
        except SemisiloError as error:
            if is_fatal(error):
                raise
            if error.retry:
                return Outcome(f"put off: {error.line()}", answered=False, kind="put_off")
            return await self._refuse(task, error)
        except OSError as error:
            return Outcome(f"put off: {error}", answered=False, kind="put_off")

    async def _answer(self, given: pb.Task) -> Outcome:
        task = task_from_proto(given, silo=self._silo)
        spec = check_task(self._policy, task)
        await asyncio.to_thread(self._memory.resolve, task.study, task.last_folded_round, round=task.round,
                                task_id=task.task_id)
        interval = given.report_interval.seconds + given.report_interval.nanos / 1e9 or _REPORT_SECONDS
        watch = Watch(task, self._link, self._display, interval_seconds=min(30.0, max(0.2, interval)))
        self._took = {}
        outcome = await watch.over(self._work(task, spec, watch), stop=self._compute.abort, hours_over=self._hours_over)
        return replace(outcome, took=TaskTook(
            study=task.study, round=task.round, phase=task.phase, method=task.method, unix=self._clock(),
            images=self.num_images, **self._took))

    async def _hours_over(self) -> str:
        """Returns when the working hours end and the site wants no task to go on beyond; the reason, for a person."""
        hours = self._policy.hours
        if hours.at_end == "finish":
            await asyncio.Event().wait()
        while True:
            now = self._clock()
            end = closes_at(hours, now)
            if end is None:
                return f"the working hours of this silo are over until {time_text(hours, opens_at(hours, now))}"
            # Not all at once: the machine may sleep, or its clock be set.
            await asyncio.sleep(min(max(0.05, end - now), 30.0))

    async def _work(self, task: TaskSpec, spec: MethodSpec, watch: Watch) -> Outcome:
        pending = await asyncio.to_thread(self._memory.pending_for, task.task_id)
        if pending is None:
            broken = await asyncio.to_thread(self._own_images.standing, task.study)
            if broken is not None:  # before anything is fetched: it would be in vain
                raise broken
            payloads = await self._fetch(task, watch)
            state = await asyncio.to_thread(self._own_images.before_reading, task.study)
            try:
                pending = await self._train(task, spec, payloads, watch)
            except BadData as error:
                await self._warn_of_images(task, error, state)
                raise
            self._own_images.were_read(task.study)
        else:
            self._display.event(f"{watch.name}: the answer was ready before; it is sent again")
        if pending.payload is None:
            return await self._send_abstention(task, spec, pending)
        return await self._send_update(task, spec, pending, pending.payload, watch)

    async def _warn_of_images(self, task: TaskSpec, error: BadData, state: str) -> None:
        if await asyncio.to_thread(self._own_images.cannot_be_used, task.study, error, state):
            _LOG.warning(
                "the images of this site cannot be used: %s No task of study %s is fetched, and every one is refused, "
                "until they have changed. `silo data` looks at every file: mend the file, or set on_error = \"skip\" "
                "in [data] of silo.toml; then restart `silo join`.", printable(error.text, limit=500), task.study)

    # Fetch and train --------------------------------------------------------------------------------------------------

    async def _fetch(self, task: TaskSpec, watch: Watch) -> dict[str, Path]:
        """The task's payloads on disk, each verified, by digest; tensor groups that are here are not fetched."""
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
        before, started = 0, time.monotonic()
        for reference in wanted:
            if not await self._cached(reference):
                watch.stage(pb.ReportProgressRequest.STAGE_DOWNLOADING)

                def arrived(count: int, before: int = before) -> None:
                    watch.tell((before + count) / total, f"{describe_bytes(before + count)} of {describe_bytes(total)}")

                arrived(0)
                await self._link.download(task.task_id, reference, self._cache, on_bytes=arrived)
            before += reference.size_bytes
        self._took |= {"download_bytes": coming, "download_seconds": time.monotonic() - started}
        await asyncio.to_thread(self._cache.collect, digests)
        await asyncio.to_thread(collect_tensors, self._tensors, task.payloads)
        return {digest: self._cache.path(digest) for digest in digests}

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

    async def _train(self, task: TaskSpec, spec: MethodSpec, payloads: dict[str, Path], watch: Watch) -> PendingUpdate:
        """Trains in the compute process and makes the answer durable."""
        self._display.event(f"{watch.name}: training ({task.method}, {counted(self.num_images, 'image')})")
        watch.stage(pb.ReportProgressRequest.STAGE_TRAINING)
        memory = await asyncio.to_thread(self._memory.committed, task.study)
        committed, pending = await asyncio.to_thread(self._memory.residuals, task.study, round=task.round)
        arguments: dict[str, Any] = {
            "task": to_dict(task), "payloads": {digest: str(path) for digest, path in payloads.items()},
            "cache_folder": str(self._cache.folder),
            "link_bytes_per_second": self._link.upload_rate,
            **asdict(self._choice),
            "factories": list(self._policy.permit.factories), "memory": None if memory is None else str(memory),
            "residuals": None if committed is None else str(committed),
            "pending_residuals": None if pending is None else str(pending),
            "outgoing_folder": str(self._memory.outgoing.folder), "memory_folder": str(self._memory.folder)}
        started = time.monotonic()
        try:
            result = await self._compute.call("train", arguments, on_progress=watch.tell)
        except ComputeAborted:
            raise
        except ComputeFailed as error:
            self._display.event(f"{watch.name}: training failed and is tried once more: {error.line()}")
            result = await self._compute.call("train", arguments, on_progress=watch.tell)
        self._display.done()
        self._took["train_seconds"] = float(result.get("seconds") or time.monotonic() - started)
        if result.get("skipped"):
            self._display.event(f"{watch.name}: {counted(result['skipped'], 'file')} could not be "
                                "read: left out")
        payload = from_dict(PayloadRef, result["payload"]) if result.get("payload") else None
        metrics = check_metrics(result.get("metrics") or {})
        check_update(self._policy, spec, groups=payload.groups if payload else (), metrics=metrics,
                     size_bytes=payload.size_bytes if payload else 0)
        content = payload.digest if payload else f"abstention {result.get('abstention')}"
        return await asyncio.to_thread(
            self._memory.record_pending, task.study, round=task.round, task_id=task.task_id,
            update_id=update_id_of(task.task_id, content),
            memory=Path(result["memory"]) if result.get("memory") else None,
            residuals=Path(result["residuals"]) if result.get("residuals") else None, payload=payload,
            abstention=str(result.get("abstention") or ""), num_examples=int(result.get("num_examples") or 0),
            metrics=metrics, seconds=float(result.get("seconds") or time.monotonic() - started))

    # Answer -----------------------------------------------------------------------------------------------------------

    async def _send_update(self, task: TaskSpec, spec: MethodSpec, pending: PendingUpdate, payload: PayloadRef,
                           watch: Watch) -> Outcome:
        path = self._memory.outgoing.path(payload.digest)
        manifest = await asyncio.to_thread(read_manifest, path)
        # Of the file itself, not of what was said about it; and again after a restart, for silo.toml may have changed.
        check_update(self._policy, spec, groups=[group.name for group in manifest], metrics=pending.metrics,
                     size_bytes=path.stat().st_size)
        self._last_upload_bytes[task.study] = payload.size_bytes
        try:
            self._budget.check(payload.size_bytes, "this update", self._clock())
        except DailyBudget:
            await asyncio.to_thread(self._memory.refused, task.task_id)
            raise
        # What its groups are coded against stands in the manifest, group by group; the reference only names the file.
        file = PayloadRef(payload.digest, payload.size_bytes, payload.groups)
        request = pb.BeginUpdateRequest(task_id=task.task_id, update_id=pending.update_id, update=pb.UpdateDeclaration(
            payload=reference_to_proto(file), manifest=manifest_to_proto(manifest),
            example_count=pending.num_examples, metrics=pending.metrics))
        request.update.training_duration.FromMicroseconds(round(pending.seconds * 1e6))
        await self._disclose(_disclosure(task, "update", pending.update_id, groups=payload.groups,
                                         bytes=payload.size_bytes, digest=payload.digest,
                                         num_examples=pending.num_examples, metrics=pending.metrics))
        watch.stage(pb.ReportProgressRequest.STAGE_UPLOADING)

        reached = 0

        def handed_over(count: int) -> None:
            nonlocal reached
            if count <= reached:  # wanted again, though handed over before: that must fit as well, give or take a piece
                self._budget.check(payload.size_bytes - count, "sending this update again", self._clock())
            reached = count
            watch.tell(count / payload.size_bytes,
                       f"{describe_bytes(count)} of {describe_bytes(payload.size_bytes)}")

        started = time.monotonic()
        try:
            verdict = await self._link.upload(request, path, on_bytes=handed_over)
        except DailyBudget:
            await asyncio.to_thread(self._memory.refused, task.task_id)
            raise
        self._display.done()
        self._took |= {"upload_bytes": payload.size_bytes, "upload_seconds": time.monotonic() - started}
        if not verdict.accepted:
            await asyncio.to_thread(self._memory.refused, task.task_id)
        return _outcome(verdict, f"update of {describe_bytes(payload.size_bytes)} sent in "
                                 f"{describe_seconds(time.monotonic() - started)} ({pending.num_examples} examples, "
                                 f"trained in {describe_seconds(pending.seconds)})", kind="updated")

    async def _send_abstention(self, task: TaskSpec, spec: MethodSpec, pending: PendingUpdate) -> Outcome:
        check_update(self._policy, spec, groups=(), metrics=pending.metrics, size_bytes=0)
        reason = pending.abstention[:64] or "no_update"
        request = pb.BeginUpdateRequest(task_id=task.task_id, update_id=pending.update_id,
                                        abstention=pb.Abstention(reason=reason, metrics=pending.metrics))
        await self._disclose(_said("abstention", request, study=task.study, round=task.round, phase=task.phase,
                                   method=task.method, metrics=pending.metrics, text=reason))
        verdict = await self._link.declare(request)
        return _outcome(verdict, f"nothing to send this round: {reason}", kind="abstained")

    async def _refuse(self, task: pb.Task, error: SemisiloError) -> Outcome:
        """Tells the coordinator that this silo does not do the task, and why."""
        self._display.done()
        text = cut(_public_text(error), 500)
        request = pb.BeginUpdateRequest(
            task_id=task.task_id, update_id=update_id_of(task.task_id, f"refusal {error.code}"),
            refusal=pb.Refusal(code=error.code, text=text))
        await self._disclose(_said(
            "refusal", request, study=printable(task.study, limit=128), round=task.round,
            phase=printable(task.phase, limit=128), method=printable(task.method, limit=128),
            text=f"{error.code}: {text}"))
        try:
            verdict = await self._link.declare(request)
        except SemisiloError as objection:
            if is_fatal(objection):
                raise
            return Outcome(f"refused here ({error.line()}), and the coordinator did not take the refusal: "
                           f"{objection.line()}", answered=False, kind="refused", error=error)
        return replace(_outcome(verdict, f"refused: {error.line()}", kind="refused"), error=error)

    async def _disclose(self, disclosure: Disclosure) -> None:
        await asyncio.to_thread(self._disclosures.record, disclosure)


def _said(kind: Kind, request: pb.BeginUpdateRequest, **content: Any) -> Disclosure:
    """The record of an answer without an update."""
    return message(kind, request.SerializeToString(deterministic=True), update_id=request.update_id, **content)


def _disclosure(task: TaskSpec, kind: Any, update_id: str, **content: Any) -> Disclosure:
    return Disclosure(kind=kind, study=task.study, round=task.round, phase=task.phase, method=task.method,
                      update_id=update_id, **content)


def _outcome(verdict: Verdict, text: str, *, kind: OutcomeKind) -> Outcome:
    if verdict.accepted:
        return Outcome(text, answered=True, kind=kind)
    return Outcome(f"not wanted any more: {printable(verdict.reason or 'no reason given')}", answered=False,
                   kind="unwanted")


def _public_text(error: SemisiloError) -> str:
    """What the coordinator may know: names of files on this machine (which may hold names of patients) stay here."""
    if isinstance(error, (BadData, StorageDamaged)):
        return "The silo's images or files cannot be used as they are; its operator sees which and why."
    if isinstance(error, ComputeCrashed):
        return f"The work ended with an error that nobody foresaw ({error.kind}); the silo's log has the details."
    line = error.line() if isinstance(error, NotPermitted) else error.text
    return printable(_PATH.sub("[path]", line) if isinstance(error, ComputeFailed) else line, limit=500)
