"""What silos may ask of the coordinator, without any transport: the gRPC servicer and the in-process link call it.

The caller's name is always an argument that the transport has established; nothing here trusts what a silo says.
Updates and evaluations have files of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from semisilo.common import __version__
from semisilo.common.errors import (
    BadPayload,
    BadRoster,
    NotPermitted,
    PayloadNotServed,
    StorageDamaged,
    TaskClosed,
)
from semisilo.common.measures.site_evaluation import SiteEvaluation
from semisilo.common.methods import check_metrics, find_method
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.methods.parts.capabilities import CAPABILITIES, lacking
from semisilo.common.process.compute import Compute
from semisilo.common.secure_aggregation.conversion import answer_from_proto, answer_to_proto, question_from_hex
from semisilo.common.storage.store import PayloadStore
from semisilo.common.text.describe import describe_moment, describe_seconds
from semisilo.common.text.logs import printable
from semisilo.common.text.seldom_lines import SeldomLines
from semisilo.common.wire.secure_aggregation_pb2 import SecureAnswer
from semisilo.coordinator.compute.messages import Tasks
from semisilo.coordinator.ledger.costs import Cost, add_to_cost
from semisilo.coordinator.ledger.encodings import DownloadEncodings, add_encoded, held_groups
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import TaskRow
from semisilo.coordinator.ledger.roster import LedgerRoster, set_aside_text
from semisilo.coordinator.ledger.secure_sums.complaints import add_complaints
from semisilo.coordinator.ledger.secure_sums.roster import note_identity
from semisilo.coordinator.ledger.secure_sums.sums import answer_step
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.rounds.runtime import FEW_SILOS, RuntimeState, StandbyReason
from semisilo.coordinator.rounds.secure_sums import method_phase
from semisilo.coordinator.secure_aggregation.answer_check import check_answer
from semisilo.coordinator.studies.describe import StudyDescription, describe_study
from semisilo.coordinator.tasks.open_tasks import BeginAnswer, OpenTasks
from semisilo.coordinator.tasks.silo_warnings import SiloWarnings
from semisilo.coordinator.tasks.site_evaluations import SiteEvaluations
from semisilo.coordinator.tasks.update_service import UpdateService

__all__ = ["Hello", "Standby", "TaskService"]

_LOG = logging.getLogger("semisilo.coordinator")
_LONGEST_AWAY_SECONDS = 31 * 86400.0
_SHORTEST_AWAY_SECONDS = 90.0
"""How long a silo that says it is away counts so at least: until its next call, which comes after a poll of a minute
at most."""
_CLOCK_SECONDS = 60.0
"""By so much the end of a silo's being away may have passed when it is heard, with clocks that are right."""
_IDLE_POLL_SECONDS = 5.0  # with no study, so that a silo that should end hears of it soon
_IDLE_SPREAD = 0.4
"""Of many silos each waits by its name for up to this share longer: those that have come together would else come
together again and again, and whoever calls then waits for all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """What a silo says of itself in AwaitTask."""

    version: str
    methods: tuple[str, ...]
    labelled_count: int
    unlabelled_count: int
    memory_study: str = ""
    memory_round: int = 0
    held: frozenset[str] = frozenset()
    """Digests of the tensor groups that it holds."""
    away_reason: str = ""
    """Why it takes no task, by its own policy; empty when it takes tasks."""
    away_until_unix: float = 0.0
    awaits_approval: bool = False
    """Whether that is because a person there must approve the study."""
    evaluations: tuple[SiteEvaluation, ...] = ()
    """What global models are worth on its own test images."""
    process: bytes = b""
    """Names its process at random; empty when it does not say, and in a simulation."""
    address: str = ""
    """Where the call comes from."""
    identity: bytes = b""
    """Public key by which other silos know it in secure sums; empty when it has none."""
    masked_study: str = ""
    masked_round: int = 0
    masked_phase: str = ""
    """The last round of that study, and phase of it, in which it has masked an update; it does so once for each."""
    capabilities: frozenset[str] = CAPABILITIES
    """What of a task it honours beside its method."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standby:
    """There is no task, and why."""

    reason: StandbyReason
    """Never COLLECTING: while others work a silo without a task is NOT_SAMPLED."""
    study: str
    round: int
    rounds: int
    text: str


class TaskService:
    """Answers silos from the ledger, the payload store and the spool."""

    def __init__(self, *, ledger: Ledger, roster: LedgerRoster, runtime: RuntimeState, payloads: PayloadStore,
                 spool: PayloadStore, compute: Compute, clock: Callable[[], float] = time.time,
                 simulated: bool = False) -> None:
        """
        Args:
            simulated: whether silos are, so that they may know the truth about their unlabelled images.
        """
        self._ledger = ledger
        self._simulated = simulated
        self._roster = roster
        self._runtime = runtime
        self._payloads = payloads
        self._compute = compute
        self._clock = clock
        self._turn = asyncio.Lock()
        """Held by what silos have asked of the compute process: of that one request at a time is in its queue, and the
        engine waits for no more than that one."""
        self._tasks = OpenTasks(ledger, runtime)
        self.updates = UpdateService(self._tasks, ledger=ledger, roster=roster, runtime=runtime, spool=spool,
                                     compute=compute, turn=self._turn, clock=clock, simulated=simulated)
        self.evaluations = SiteEvaluations(ledger, clock=clock)
        self._encodings = DownloadEncodings(payloads)
        self.dismissed: dict[str, float] = {}
        """Silo -> when it was last told that there is no study; of `time.monotonic`."""
        self.warnings = SiloWarnings(ledger)
        """What silos should hear beside the answers to their calls for a task."""
        self._lines = SeldomLines()
        """About keys that are not taken: a silo may call with others at any rate."""
        self._told_aside: dict[str, str] = {}
        """Silo -> why it is set aside, as it was told: at once, and then when its call has waited as long as it may."""
        self._rewritten: dict[str, tuple[frozenset[str], asyncio.Future[TaskSpec | None]]] = {}
        """Task -> for what held tensors its payloads are being written anew. What a silo that hangs up leaves behind
        goes on, and no limit on calls counts it: so there is one of a kind."""

    # Tasks ------------------------------------------------------------------------------------------------------------

    async def await_task(self, silo: str, hello: Hello, *, timeout_seconds: float) -> TaskSpec | Standby:
        """The silo's open task; waits for one up to `timeout_seconds`. Its first call makes the silo join."""
        now = self._clock()
        away = bool(hello.away_reason)
        # It takes no task whatever its clock says, so it must not be asked and waited for.
        until = min(max(hello.away_until_unix, now + _SHORTEST_AWAY_SECONDS), now + _LONGEST_AWAY_SECONDS)
        with self._ledger.transaction(lasting=False):
            self._roster.joined(silo, version=hello.version, methods=hello.methods,
                                labelled_count=hello.labelled_count, unlabelled_count=hello.unlabelled_count,
                                memory_study=hello.memory_study, memory_round=hello.memory_round, now_unix=now)
            if not (hello.awaits_approval and self._runtime.reason is StandbyReason.NO_STUDY):
                self._roster.away(silo, reason=hello.away_reason if away else "", until_unix=until if away else 0.0)
            if hello.identity:
                self._note_identity(silo, hello.identity, now)
        self.warnings.called(silo, hello.process, address=hello.address, memory_study=hello.memory_study,
                             memory_round=hello.memory_round)
        if hello.capabilities >= CAPABILITIES:
            self.warnings.too_old(silo, "")
        self._note_clock(silo, hello, now)
        for each in hello.evaluations:
            self.evaluations.note(silo, each)
        self._runtime.held[silo] = hello.held
        self._runtime.masked[silo] = hello.masked_study, hello.masked_round, hello.masked_phase
        self._runtime.notify()
        first = self._runtime.reason
        end = time.monotonic() + (min(timeout_seconds, self._idle_seconds(silo)) if first is StandbyReason.NO_STUDY
                                  else timeout_seconds)
        while True:
            task = None if hello.away_reason else self._tasks.current(silo)
            if task is not None and (lacks := lacking(task.spec, hello.capabilities)):
                self._not_given(task, hello.version, lacks)
                continue
            if task is not None:
                self.warnings.given(task, hello.process, memory_study=hello.memory_study,
                                    memory_round=hello.memory_round)
                if (spec := await self._give(task, hello.held)) is not None:
                    return spec
                newer = self._tasks.current(silo)
                if newer is not None and newer.task_id != task.task_id:
                    continue
            aside = self._why_aside(silo)
            if aside is not None and (self._told_aside.get(silo) != aside or time.monotonic() >= end):
                self._told_aside[silo] = aside
                return Standby(reason=StandbyReason.SET_ASIDE, study=self._runtime.study, round=self._runtime.round,
                               rounds=self._runtime.rounds, text=set_aside_text(aside))
            if aside is None:
                self._told_aside.pop(silo, None)
            reason = self._runtime.reason
            if time.monotonic() >= end or (reason is not first and reason is StandbyReason.NO_STUDY):
                if reason is StandbyReason.NO_STUDY:
                    self.dismissed[silo] = time.monotonic()
                    if hello.awaits_approval:  # it may never call again, and the study needs nobody's approval any more
                        with self._ledger.transaction(lasting=False):
                            self._roster.away(silo, reason="", until_unix=0.0)
                return Standby(reason=reason.for_silo(), study=self._runtime.study, round=self._runtime.round,
                               rounds=self._runtime.rounds, text=self._runtime.text)
            await self._runtime.wait_for_call(end - time.monotonic())

    def _idle_seconds(self, silo: str) -> float:
        """How long a silo's call waits while there is no study."""
        if len(self._runtime.held) <= FEW_SILOS:
            return _IDLE_POLL_SECONDS
        return _IDLE_POLL_SECONDS * (1 + _IDLE_SPREAD * zlib.crc32(silo.encode()) / 2**32)

    def _not_given(self, task: TaskRow, version: str, lacks: Sequence[str]) -> None:
        """Ends a task that its silo would not do as it is asked, which counts as a refusal."""
        text = (f"its semisilo {version or 'of unknown version'} does not know {' and '.join(lacks)}, and would work"
                f" without; it takes part once it has been upgraded to {__version__} or later")
        with contextlib.suppress(TaskClosed):  # another process has ended it meanwhile
            self._ledger.close_task(task, TaskState.REFUSED, reason=f"{NotPermitted.code}: {text}")
            _LOG.warning("%s is not given to silo %s: %s", task.task_id, task.silo, text)
        self.warnings.too_old(task.silo, f"study {task.study}: silo '{task.silo}' is asked nothing: {text}")
        self._runtime.notify()

    def _note_identity(self, silo: str, identity: bytes, now_unix: float) -> None:
        """Takes a silo's key for secure sums into the roster. A home that was copied brings the key of another silo,
        a key may be changed so often, and a roster is full at some time: a silo whose key is not taken takes part in
        everything but secure sums, and its signatures under study cards are not kept."""
        try:
            new = note_identity(self._ledger, silo, identity, now_unix=now_unix)
        except BadRoster as error:
            what = "can have no part in secure sums, and its signatures under study cards are not kept"
            self.warnings.key_not_taken(silo, f"silo '{silo}' {what}: {error.line()}")
            if self._lines.standing(silo, "key") is None:
                _LOG.warning("silo %s %s: %s", silo, what, error.line())
            return
        self.warnings.key_not_taken(silo, "")
        if new:
            _LOG.debug("silo %s: the roster has its key for secure sums", silo)

    def _note_clock(self, silo: str, hello: Hello, now_unix: float) -> None:
        """Says of a silo that is away until a moment that has passed by how much the clocks differ: it takes no task
        then, and nothing else would say why."""
        late = now_unix - hello.away_until_unix
        if not (hello.away_reason and hello.away_until_unix > 0 and late > _CLOCK_SECONDS):
            self.warnings.clock(silo, "")
            return
        text = (f"it takes no task until {describe_moment(hello.away_until_unix)}, which is"
                f" {describe_seconds(late)} ago by the coordinator's clock")
        self.warnings.clock(silo, f"silo '{silo}': {text}: one of the clocks is wrong by at least that; set it")
        if self._lines.standing(silo, "clock") is None:
            _LOG.warning("silo %s: %s", silo, text)

    def _why_aside(self, silo: str) -> str | None:
        """Why the operator leaves a silo out of what runs; None where it takes part, or no study runs."""
        status = None if self._runtime.reason is StandbyReason.NO_STUDY else self._roster.silo_status(silo)
        return None if status is None else status.set_aside

    async def _give(self, task: TaskRow, held: frozenset[str]) -> TaskSpec | None:
        """The task, with a note of what it need not send when it is told for the first time; None when it has ended
        before it could be told."""
        spec = task.spec if _can_read(task.spec, held) else await self._written_anew(task, held)
        if spec is not None and task.given_unix is None:
            with self._ledger.transaction(lasting=False):
                if self._ledger.task_given(task.task_id):
                    add_encoded(self._ledger, held_groups(spec.payloads), study=task.study, round=task.round,
                                direction="down")
        return spec

    async def _written_anew(self, task: TaskRow, held: frozenset[str]) -> TaskSpec | None:
        """The task with payloads that a silo which holds `held` can read: they were written for what it held when the
        phase opened, and it may have lost that since. None when the task has ended meanwhile."""
        while (running := self._rewritten.get(task.task_id)) is not None and running[0] != held:
            await asyncio.wait({running[1]})
        if running is None:
            future = asyncio.ensure_future(self._write_anew(task, held))
            running = self._rewritten[task.task_id] = held, future
            future.add_done_callback(lambda _: self._rewritten.pop(task.task_id))
        # A silo that hangs up now must not cut this off: cancelling it would end the compute process.
        return await asyncio.shield(running[1])

    async def _write_anew(self, task: TaskRow, held: frozenset[str]) -> TaskSpec | None:
        async with self._turn:
            now = self._ledger.task(task.task_id)
            if now is None or self._tasks.why_over(now):
                return None
            if _can_read(now.spec, held):  # what it waited for has written that
                return now.spec
            row = self._ledger.round(now.study, now.round)
            written = await self._compute.call(Tasks(
                study=now.study, state=row.state_digest, round=now.round, phase=method_phase(row.phases[now.phase]),
                silos={now.silo: self._ledger.silo_state(now.study, now.silo, round=now.round)[1]},
                held={now.silo: tuple(sorted(held))}, link_bytes_per_second=0.0))
        return self._ledger.replace_payloads(now, written.tasks[now.silo].payloads)

    def describe_study(self, silo: str) -> StudyDescription | None:
        """What the study that runs or is next asks of a silo; None when there is none."""
        return describe_study(self._ledger, silo)

    def report(self, silo: str, task_id: str, *, stage: str, fraction: float, text: str) -> str:
        """Takes note of progress; returns the reason to abort, or an empty text to go on."""
        task = self._ledger.task(task_id)
        if task is None or task.silo != silo:
            return "the coordinator knows no such task"
        if ended := self._tasks.why_over(task):
            return ended
        if not math.isfinite(fraction):
            fraction = 0.0
        self._runtime.heard(silo, task_id=task_id, stage=stage, fraction=min(1.0, max(0.0, fraction)),
                            text=printable(text, limit=200))
        return ""

    def payload_for(self, silo: str, task_id: str, digest: str) -> Path:
        """The file of a payload that the caller's open task names.

        Raises: TaskClosed, PayloadNotServed.
        """
        task = self._tasks.still_open(silo, task_id)
        if digest not in {payload.digest for payload in task.spec.payloads}:
            raise PayloadNotServed("No open task of this silo names that payload.")
        if not self._payloads.has(digest):
            raise StorageDamaged(f"The payload {self._payloads.path(digest)} of {task_id} is missing.",
                                 remedy="Restore the folder from a backup.")
        return self._payloads.path(digest)

    def downloaded(self, silo: str, task_id: str, digest: str, sent_bytes: int, *, offset: int = 0) -> None:
        """Accounts for the bytes of a payload that went out in one stream from `offset` on, complete or not."""
        task = self._tasks.of(silo, task_id)
        groups = next((payload.groups for payload in task.spec.payloads if payload.digest == digest), ())
        encoded = self._encodings.carried(digest, offset=offset, sent_bytes=sent_bytes)
        with self._ledger.transaction(lasting=False):
            add_to_cost(self._ledger, Cost(study=task.study, round=task.round, phase=task.spec.phase, silo=silo,
                                           direction="down", kind="payload", item="+".join(groups), bytes=sent_bytes,
                                           count=1))
            add_encoded(self._ledger, encoded, study=task.study, round=task.round, direction="down")

    # Outcomes ---------------------------------------------------------------------------------------------------------

    def answer_step(self, silo: str, task_id: str, answer: SecureAnswer) -> BeginAnswer:
        """An answer to a step of a secure sum. Safe to repeat; another answer to the same step is not looked at.

        Raises: BadPayload for one that does not fit the step; its silo has no further part in the sum.
        """
        task = self._tasks.of(silo, task_id)
        if task.state is TaskState.ANSWERED:
            return BeginAnswer("have")
        if self._tasks.why_over(task):
            return self._tasks.refuse_late(task)
        if not task.spec.secure:
            raise BadPayload("The task is not a step of a secure sum.")
        question = question_from_hex(task.spec.secure)
        try:
            found = answer_from_proto(answer, question.step)
            check_answer(question, found, silo=silo)
        except BadPayload as error:
            _LOG.warning("answer of silo %s for %s was not accepted: %s", silo, task.task_id, error)
            self._ledger.close_task(task, TaskState.REFUSED, reason=f"not accepted: {error.text}")
            self._runtime.notify()
            raise
        answer_step(self._ledger, task, answer_to_proto(found).SerializeToString(deterministic=True))
        self._runtime.notify()
        return BeginAnswer("have")

    def abstain(self, silo: str, task_id: str, reason: str, metrics: Mapping[str, float]) -> BeginAnswer:
        """A valid answer without an update."""
        task = self._tasks.of(silo, task_id)
        if task.state is TaskState.ABSTAINED:
            return BeginAnswer("have")
        if self._tasks.why_over(task):
            return self._tasks.refuse_late(task)
        check_metrics(find_method(task.spec.method), metrics, update=False, phase=task.spec.phase,
                      num_classes=len(task.spec.model.classes), truth=self._simulated)
        self._ledger.close_task(task, TaskState.ABSTAINED, reason=printable(reason, limit=64), metrics=metrics)
        self._tasks.note_held(task)
        self._runtime.notify()
        return BeginAnswer("have")

    def refuse(self, silo: str, task_id: str, code: str, text: str, *, against: str = "") -> BeginAnswer:
        """The silo's policy or data does not allow the task, or its training failed.

        Args:
            against: the silo of the same secure sum that this one complains of; empty without a complaint. Another name
                is not looked at.
        """
        task = self._tasks.of(silo, task_id)
        if task.state is TaskState.REFUSED:
            return BeginAnswer("have")
        if self._tasks.why_over(task):
            return self._tasks.refuse_late(task)
        reason = f"{printable(code, limit=64)}: {printable(text, limit=500)}"
        with self._ledger.transaction():
            self._ledger.close_task(task, TaskState.REFUSED, reason=reason)
            if against and against != silo and task.spec.secure and against in {
                    member.silo for member in question_from_hex(task.spec.secure).members}:
                add_complaints(self._ledger, task.study, task.round, [(silo, against)])
        _LOG.warning("silo %s refused %s: %s", silo, task_id, reason)
        self._runtime.notify()
        return BeginAnswer("have")


def _can_read(spec: TaskSpec, held: frozenset[str]) -> bool:
    """Whether a silo that holds `held` can read the payloads of a task."""
    return all(not payload.tensors or payload.tensors in held
               or (payload.digest and (not payload.reference or payload.reference in held))
               for payload in spec.payloads)

