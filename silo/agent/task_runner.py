"""One task at a silo, from the policy's check to the coordinator's acknowledgement. Every step may be repeated safely.

The order makes it so: an answer is durable (memory, payload, record) before a byte of it is sent, its identifier
follows from its content, and the coordinator accepts an identifier once. A process that dies anywhere is given the same
task again and either does the same work or sends the same bytes.

Tests: tests/silo/agent/test_agent.py.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from semisilo.common.errors import (
    BadData,
    DailyBudget,
    NotPermitted,
    SecureSumRefused,
    SemisiloError,
    StorageDamaged,
    StudyNotApproved,
    TaskClosed,
)
from semisilo.common.methods.contract import PayloadRef, TaskSpec
from semisilo.common.methods.spec import MEASURING
from semisilo.common.payload.manifest import manifest_to_proto
from semisilo.common.process.compute import Compute, ComputeCrashed
from semisilo.common.rpc.convert import reference_to_proto, task_from_proto
from semisilo.common.secure_aggregation.conversion import SumQuestion, answer_to_proto, question_from_hex
from semisilo.common.storage.store import PayloadStore
from semisilo.common.system_errors import SYSTEM_ERRORS, explained
from semisilo.common.text.describe import describe_bytes, describe_seconds
from semisilo.common.text.logs import printable
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.answer import ReadyAnswer, Site, abstention_request, answer_task, least_announced
from semisilo.silo.agent.daily_budget import DayBudget
from semisilo.silo.agent.network_steps import NetworkSteps
from semisilo.silo.agent.secure_steps import STEP_TEXTS, SecureSteps
from semisilo.silo.agent.task_times import TaskTook
from semisilo.silo.agent.terminal import Display
from semisilo.silo.agent.watch import HoursOver, TaskAborted, Watch, cut
from semisilo.silo.link.link import Link, Verdict, is_fatal
from semisilo.silo.site.disclosures import DisclosureLog, message
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.site.memory import SiloMemory, update_id_of
from semisilo.silo.site.policy import Policy, check_task
from semisilo.silo.site.working_hours import closes_at, opens_at, time_text
from semisilo.silo.study_cards.agreement import Agreement

__all__ = ["OUTCOME_KINDS", "OutcomeKind", "TaskOutcome", "TaskRunner"]

_LOG = logging.getLogger("semisilo.silo")
_REPORT_SECONDS = 3.0
_PATH = re.compile(r"(?<![\w<])(?:[A-Za-z]:)?[/\\](?=\S).*", re.DOTALL)
"""A path and all that follows: names of folders may have blanks, so where a path ends cannot be seen."""

OutcomeKind = Literal["updated", "abstained", "answered", "refused", "put_off", "dropped", "unwanted"]
OUTCOME_KINDS: tuple[OutcomeKind, ...] = get_args(OutcomeKind)


@dataclass(frozen=True, slots=True)
class TaskOutcome:
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
    wanted: bool = True
    """Whether the coordinator took the answer; if not, it has said that it is too late."""
    done: bool = False
    """Whether the task was done, wanted or not: this site has permitted it, and its tensor groups are here."""


class TaskRunner:
    """Works on tasks, one at a time."""

    def __init__(self, *, silo: str, policy: Policy, choice: JoinChoice, link: Link, compute: Compute,
                 memory: SiloMemory, cache: PayloadStore, disclosures: DisclosureLog, display: Display,
                 budget: DayBudget, privacy_folder: Path, authority: str = "", images_folder: Path | None = None,
                 model_files: Path = Path("model_files"),
                 threads_file: Path | None = None, features_file: Path | None = None,
                 last_upload_bytes: Mapping[str, int] | None = None,
                 clock: Callable[[], float] = time.time, secure: SecureSteps | None = None,
                 agreement: Agreement | None = None, count: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            count: has `budget` take note of what has crossed.
            agreement: holds tasks against the cards of their studies; None where nothing is signed.
            secure: answers steps of secure sums; None where they are refused.
            threads_file, features_file: see `semisilo.silo.compute.messages.Train`.
            budget: what may cross today.
            privacy_folder: of the site's `semisilo.silo.site.privacy.ledger.PrivacyLedger`.
            authority: of the federation (`authority_id`), as `Site` has it.
            images_folder: where decoded images lie that are too many for memory, if the policy permits.
            model_files: where the files lie that may build networks.
            last_upload_bytes: size of the last update of each study, as far as it is known.
            clock: Unix seconds.
        """
        self._silo = silo
        self._secure = secure
        self._agreement = agreement
        self._policy = policy
        self._link = link
        self._compute = compute
        self._display = display
        self._budget = budget
        self._clock = clock
        self._site = Site(policy=policy, choice=choice, memory=memory, cache_folder=cache.folder,
                          disclosures=disclosures, privacy_folder=privacy_folder, authority=authority,
                          threads_file=threads_file, features_file=features_file,
                          images_folder=images_folder, model_files=model_files,
                          announced_labelled=lambda: self.num_labelled, announced_least=lambda: least_announced(
                              self.num_labelled, self.num_images - self.num_labelled))
        self._steps = NetworkSteps(choice=choice, link=link, compute=compute, cache=cache, display=display,
                                   budget=budget, last_upload_bytes=last_upload_bytes or {}, clock=clock, count=count)
        self.num_images = 0
        """For the line that announces training; known after the survey."""
        self.num_labelled = 0
        """Of these, as the coordinator is told."""

    async def refuse(self, task: pb.Task, error: SemisiloError) -> TaskOutcome:
        """Tells the coordinator that this silo does not do a task, and why, without having looked at it.

        Raises: as `answer`.
        """
        return await _put_off_by_system(self._refuse(task, error))

    async def answer(self, task: pb.Task) -> TaskOutcome:
        """Does a task, or says why not.

        Raises: only what no repetition can fix (`is_fatal`). Everything else becomes a refusal that the coordinator
            sees, or an outcome without an answer, after which the same task comes again.
        """
        return await _put_off_by_system(self._answer_or_refuse(task))

    async def _answer_or_refuse(self, task: pb.Task) -> TaskOutcome:
        try:
            return await self._answer(task)
        except HoursOver as error:
            return TaskOutcome(f"put off: {error.text}", answered=False, kind="put_off")
        except TaskAborted as error:
            return TaskOutcome(f"dropped: {error.text}", answered=False, kind="dropped")
        except TaskClosed as error:
            return TaskOutcome(f"dropped: {error.line()}", answered=False, kind="dropped")
        except SemisiloError as error:
            if is_fatal(error):
                raise
            if error.retry or isinstance(error, StudyNotApproved):
                return TaskOutcome(f"put off: {error.line()}", answered=False, kind="put_off")
            return await self._refuse(task, error)

    async def _answer(self, given: pb.Task) -> TaskOutcome:
        task = task_from_proto(given, silo=self._silo)
        interval = given.report_interval.seconds + given.report_interval.nanos / 1e9 or _REPORT_SECONDS
        watch = Watch(task, self._link, self._display, interval_seconds=min(30.0, max(0.2, interval)))
        self._steps.begin(task, watch, images=self.num_images)
        outcome = await watch.over(self._work(task, watch), stop=self._compute.abort, hours_over=self._hours_over)
        return replace(outcome, took=replace(self._steps.took, unix=self._clock()))

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

    async def _work(self, task: TaskSpec, watch: Watch) -> TaskOutcome:
        if self._agreement is not None:
            await self._agreement.check(task, check_task(self._site.policy, task))
        if not task.secure:
            answer = await answer_task(task, self._site, self._steps)
        else:
            question = question_from_hex(task.secure)
            if question.step != "mask":
                return await self._answer_step(task, question)
            check_task(self._site.policy, task)
            masking = await asyncio.to_thread(self._sums().masking, task, question)
            answer = await answer_task(task, self._site, self._steps, masking=masking, masked=partial(
                self._sums().masked, task, question))
        if answer.pending.payload is None:
            return await self._send_abstention(answer)
        return await self._send_update(answer, answer.pending.payload, watch)

    # Answer -----------------------------------------------------------------------------------------------------------

    async def _answer_step(self, task: TaskSpec, question: SumQuestion) -> TaskOutcome:
        """A step of a secure sum that asks for no update."""
        check_task(self._site.policy, task)
        answer = answer_to_proto(await asyncio.to_thread(self._sums().answer, task, question))
        content = answer.SerializeToString(deterministic=True)
        request = pb.BeginUpdateRequest(task_id=task.task_id, update_id=update_id_of(task.task_id, content.hex()),
                                        secure=answer)
        await asyncio.to_thread(self._site.disclosures.record, message(
            "secure_step", request.SerializeToString(deterministic=True), update_id=request.update_id, study=task.study,
            round=task.round, phase=task.phase, method=task.method, text=STEP_TEXTS[question.step]))
        verdict = await self._link.declare(request)
        return _outcome(verdict, f"secure sum, step {question.step}: {STEP_TEXTS[question.step]}", kind="answered")

    def _sums(self) -> SecureSteps:
        if self._secure is None:
            raise SecureSumRefused("This silo takes part in no secure sums.")
        return self._secure

    async def _send_update(self, answer: ReadyAnswer, payload: PayloadRef, watch: Watch) -> TaskOutcome:
        task, pending = answer.task, answer.pending
        # What its groups are coded against stands in the manifest, group by group; the reference only names the file.
        file = PayloadRef(payload.digest, payload.size_bytes, payload.groups)
        request = pb.BeginUpdateRequest(task_id=task.task_id, update_id=pending.update_id, update=pb.UpdateDeclaration(
            payload=reference_to_proto(file), manifest=manifest_to_proto(answer.manifest),
            example_count=pending.num_examples, metrics=pending.metrics))
        request.update.training_duration.FromMicroseconds(round(pending.seconds * 1e6))
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
            verdict = await self._link.upload(request, self._site.memory.outgoing.path(payload.digest),
                                              on_bytes=handed_over)
        except DailyBudget:
            await asyncio.to_thread(self._site.memory.refused, task.task_id)
            raise
        self._display.done()
        seconds = time.monotonic() - started
        self._steps.took = replace(self._steps.took, upload_bytes=payload.size_bytes, upload_seconds=seconds)
        what, done = ("batch-norm statistics", "measured") if task.phase in MEASURING else ("update", "trained")
        what, examples = (f"masked {what}", "") if task.secure else (what, f"{pending.num_examples} examples, ")
        return replace(_outcome(verdict, f"{what} of {describe_bytes(payload.size_bytes)} sent in "
                                         f"{describe_seconds(seconds)} ({examples}{done} in "
                                         f"{describe_seconds(pending.seconds)})", kind="updated"), done=True)

    async def _send_abstention(self, answer: ReadyAnswer) -> TaskOutcome:
        request = abstention_request(answer.task.task_id, answer.pending)
        verdict = await self._link.declare(request)
        return replace(_outcome(verdict, f"nothing to send this round: {request.abstention.reason}",
                                kind="abstained"), done=True)

    async def _refuse(self, task: pb.Task, error: SemisiloError) -> TaskOutcome:
        """Tells the coordinator that this silo does not do the task, and why."""
        self._display.done()
        text = cut(_public_text(error), 500)
        request = pb.BeginUpdateRequest(
            task_id=task.task_id, update_id=update_id_of(task.task_id, f"refusal {error.code}"),
            refusal=pb.Refusal(code=error.code, text=text,
                               against=error.against if isinstance(error, SecureSumRefused) else ""))
        await asyncio.to_thread(self._site.disclosures.record, message(
            "refusal", request.SerializeToString(deterministic=True), update_id=request.update_id,
            study=printable(task.study, limit=128), round=task.round, phase=printable(task.phase, limit=128),
            method=printable(task.method, limit=128), text=f"{error.code}: {text}"))
        try:
            verdict = await self._link.declare(request)
        except SemisiloError as objection:
            if is_fatal(objection):
                raise
            return TaskOutcome(f"refused here ({error.line()}), and the coordinator did not take the refusal: "
                               f"{objection.line()}", answered=False, kind="refused", error=error)
        late = "" if verdict.accepted else f" ({_not_wanted(verdict)})"
        return TaskOutcome(f"refused: {error.line()}{late}", answered=verdict.accepted, kind="refused", error=error,
                           wanted=verdict.accepted)


async def _put_off_by_system(work: Awaitable[TaskOutcome]) -> TaskOutcome:
    """What became of a task; put off where the system refuses a file meanwhile, as a record on a full disk."""
    try:
        return await work
    except SYSTEM_ERRORS as error:
        if (trouble := explained(error)) is None:
            raise
        return TaskOutcome(f"put off: {trouble.line()}", answered=False, kind="put_off")


def _outcome(verdict: Verdict, text: str, *, kind: OutcomeKind) -> TaskOutcome:
    if verdict.accepted:
        return TaskOutcome(text, answered=True, kind=kind)
    return TaskOutcome(_not_wanted(verdict), answered=False, kind="unwanted", wanted=False)


def _not_wanted(verdict: Verdict) -> str:
    return f"not wanted any more: {printable(verdict.reason or 'no reason given')}"


def _public_text(error: SemisiloError) -> str:
    """What the coordinator may know: names of files on this machine (which may hold names of patients) stay here."""
    if isinstance(error, (BadData, StorageDamaged)):
        return "The silo's images or files cannot be used as they are; its operator sees which and why."
    if error.words_of_others:
        return ("The work was ended by code that is not semisilo's, such as a method plug-in, a network or a library of"
                " this silo; the silo's log has its words.")
    if isinstance(error, ComputeCrashed):
        return f"The work ended with an error that nobody foresaw ({error.kind}); the silo's log has the details."
    return printable(_PATH.sub("[path]", error.line() if isinstance(error, NotPermitted) else error.text), limit=500)
