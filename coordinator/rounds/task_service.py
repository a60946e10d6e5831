"""What silos may ask of the coordinator, without any transport: the gRPC servicer and the in-process link call it.

The caller's name is always an argument that the transport has established; nothing here trusts what a silo says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from semisilo.common import __version__
from semisilo.common.errors import (
    BadPayload,
    BadRoster,
    NotPermitted,
    PayloadNotServed,
    SemisiloError,
    StorageDamaged,
    TaskClosed,
    UpdateConflict,
    WrongBase,
)
from semisilo.common.measures.site_evaluation import SiteEvaluation
from semisilo.common.methods import check_metrics, find_method
from semisilo.common.methods.contract import NUM_LABELLED, TaskSpec
from semisilo.common.methods.parts.capabilities import CAPABILITIES, lacking
from semisilo.common.process.compute import Compute
from semisilo.common.secure_aggregation.conversion import answer_from_proto, answer_to_proto, question_from_hex
from semisilo.common.storage.store import PartialFile, PayloadStore
from semisilo.common.text.describe import describe_moment, describe_seconds
from semisilo.common.text.log_context import bind
from semisilo.common.text.logs import printable
from semisilo.common.text.seldom_lines import SeldomLines
from semisilo.common.wire.secure_aggregation_pb2 import SecureAnswer
from semisilo.coordinator.compute.messages import CheckedUpdate, CheckUpdate, SpooledUpdate, Tasks
from semisilo.coordinator.ledger.costs import Cost, add_costs, add_to_cost
from semisilo.coordinator.ledger.encodings import DownloadEncodings, add_encoded, held_groups
from semisilo.coordinator.ledger.events import note_late_answer
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.records import DeclaredUpdate, PhaseRow, TaskRow
from semisilo.coordinator.ledger.roster import LedgerRoster, set_aside_text
from semisilo.coordinator.ledger.secure_sums.complaints import add_complaints
from semisilo.coordinator.ledger.secure_sums.roster import note_identity
from semisilo.coordinator.ledger.secure_sums.sums import answer_step
from semisilo.coordinator.ledger.states import ENDED_STUDY, TaskState
from semisilo.coordinator.ledger.tasks import add_site_evaluation, has_taken_part, is_committed, is_other_model
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.secure_sums import method_phase
from semisilo.coordinator.rounds.silo_warnings import SiloWarnings
from semisilo.coordinator.rounds.update_declaration import UpdateDeclaration, check_declaration, check_lengths
from semisilo.coordinator.secure_aggregation.answer_check import check_answer
from semisilo.coordinator.studies.describe import StudyDescription, describe_study

__all__ = ["Asked", "BeginAnswer", "Hello", "Standby", "TaskService", "UpdateDeclaration"]

_LOG = logging.getLogger("semisilo.coordinator")
_UPDATE_ID = re.compile(r"[0-9a-f]{16,64}")
_LONGEST_AWAY_SECONDS = 31 * 86400.0
_SHORTEST_AWAY_SECONDS = 90.0
"""How long a silo that says it is away counts so at least: until its next call, which comes after a poll of a minute
at most."""
_CLOCK_SECONDS = 60.0
"""By so much the end of a silo's being away may have passed when it is heard, with clocks that are right."""
_REPLACED = "The silo has declared another update since."
_FEW_SILOS = 50
_GATHERING_SECONDS_PER_SILO, _LONGEST_GATHERING_SECONDS = 0.0001, 0.1
"""Where more silos than these few are connected, an update that was checked waits so long for others, which are then
written with one wait for the disk: of a thousand silos some ten at a time. The round is longer by one such moment."""
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


@dataclass(frozen=True, slots=True)
class BeginAnswer:
    """What the coordinator wants of an outcome."""

    state: Literal["send", "have", "refused"]
    resume_offset: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a declaration is about, as the ledger had it in one moment."""

    task: TaskRow
    known: DeclaredUpdate | None
    """The declaration itself, where it is repeated."""
    phase: PhaseRow | None
    """Of the task, which the declaration is held against; None where it is not: a repeated one is known, and a task
    that is over takes none."""

    def wants_manifest(self, *, num_groups: int, num_tensors: int) -> bool:
        """Whether the manifest of the declaration is looked at: to parse it costs time by its length.

        Raises: BadPayload and LayoutMismatch when there are more groups or tensors than the task asks for.
        """
        if self.phase is not None:
            check_lengths(self.phase, num_groups=num_groups, num_tensors=num_tensors)
        return self.phase is not None


@dataclass(slots=True, eq=False)
class _Acceptance:
    """An update that is being accepted, also when the silo has hung up. All who bring this update wait for it."""

    future: asyncio.Task[None]
    waits: bool = False
    """For its turn with the compute process."""
    replaced: bool = False
    """By another update of its task, so that it need not wait for its turn."""


@dataclass(slots=True, eq=False)
class _Checked:
    """An update that was checked and is to answer its task."""

    silo: str
    update: DeclaredUpdate
    checked: CheckedUpdate
    answered: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Whether the task was answered with it only now. Looked at only where it waits for others."""


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
        self._spool = spool
        self._compute = compute
        self._clock = clock
        self._encodings = DownloadEncodings(payloads)
        self.dismissed: dict[str, float] = {}
        """Silo -> when it was last told that there is no study; of `time.monotonic`."""
        self._late_tasks: set[str] = set()
        """Of which the audit trail says that an answer came late."""
        self.warnings = SiloWarnings(ledger)
        """What silos should hear beside the answers to their calls for a task."""
        self._above: dict[str, dict[str, str]] = {}
        """Silo -> of what its update last claimed more than the silo has announced -> the task of it."""
        self._lines = SeldomLines()
        """About keys that are not taken and evaluations that are dropped: a silo may call with others at any rate."""
        self._told_aside: dict[str, str] = {}
        """Silo -> why it is set aside, as it was told: at once, and then when its call has waited as long as it may."""
        # What a silo that hangs up leaves behind goes on, and no limit on calls counts it: so there is one of a kind.
        self._acceptances: dict[str, _Acceptance] = {}
        """By update_id."""
        self._rewritten: dict[str, tuple[frozenset[str], asyncio.Future[TaskSpec | None]]] = {}
        """Task -> for what held tensors its payloads are being written anew."""
        self._offsets: dict[str, asyncio.Future[int]] = {}
        """By update_id: what is on disk of it is being looked at."""
        self._checked: list[_Checked] = []
        """That are answered together in a moment."""
        self._turn = asyncio.Lock()
        """Held by what silos have asked of the compute process: of that one request at a time is in its queue, and the
        engine waits for no more than that one."""

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
            self._roster.away(silo, reason=hello.away_reason if away else "", until_unix=until if away else 0.0)
            if hello.identity:
                self._note_identity(silo, hello.identity, now)
        self.warnings.called(silo, hello.process, address=hello.address, memory_study=hello.memory_study,
                             memory_round=hello.memory_round)
        if hello.capabilities >= CAPABILITIES:
            self.warnings.too_old(silo, "")
        self._note_clock(silo, hello, now)
        for each in hello.evaluations:
            self._note_evaluation(silo, each)
        self._runtime.held[silo] = hello.held
        self._runtime.masked[silo] = hello.masked_study, hello.masked_round, hello.masked_phase
        self._runtime.notify()
        first = self._runtime.reason
        end = time.monotonic() + (min(timeout_seconds, self._idle_seconds(silo)) if first is StandbyReason.NO_STUDY
                                  else timeout_seconds)
        while True:
            task = None if hello.away_reason else self._current_task(silo)
            if task is not None and (lacks := lacking(task.spec, hello.capabilities)):
                self._not_given(task, hello.version, lacks)
                continue
            if task is not None:
                self.warnings.given(task, hello.process, memory_study=hello.memory_study,
                                    memory_round=hello.memory_round)
                if (spec := await self._give(task, hello.held)) is not None:
                    return spec
                newer = self._current_task(silo)
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
                return Standby(reason=reason.for_silo(), study=self._runtime.study, round=self._runtime.round,
                               rounds=self._runtime.rounds, text=self._runtime.text)
            await self._runtime.wait_for_call(end - time.monotonic())

    def _idle_seconds(self, silo: str) -> float:
        """How long a silo's call waits while there is no study."""
        if len(self._runtime.held) <= _FEW_SILOS:
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
            if now is None or self._why_over(now):
                return None
            if _can_read(now.spec, held):  # what it waited for has written that
                return now.spec
            row = self._ledger.round(now.study, now.round)
            written = await self._compute.call(Tasks(
                state=row.state_digest, round=now.round, phase=method_phase(row.phases[now.phase]),
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
        if ended := self._why_over(task):
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
        task = self._open_task_of(silo, task_id)
        if digest not in {payload.digest for payload in task.spec.payloads}:
            raise PayloadNotServed("No open task of this silo names that payload.")
        if not self._payloads.has(digest):
            raise StorageDamaged(f"The payload {self._payloads.path(digest)} of {task_id} is missing.",
                                 remedy="Restore the folder from a backup.")
        return self._payloads.path(digest)

    def downloaded(self, silo: str, task_id: str, digest: str, sent_bytes: int, *, offset: int = 0) -> None:
        """Accounts for the bytes of a payload that went out in one stream from `offset` on, complete or not."""
        task = self._task_of(silo, task_id)
        groups = next((payload.groups for payload in task.spec.payloads if payload.digest == digest), ())
        encoded = self._encodings.carried(digest, offset=offset, sent_bytes=sent_bytes)
        with self._ledger.transaction(lasting=False):
            add_to_cost(self._ledger, Cost(study=task.study, round=task.round, phase=task.spec.phase, silo=silo,
                                           direction="down", kind="payload", item="+".join(groups), bytes=sent_bytes,
                                           count=1))
            add_encoded(self._ledger, encoded, study=task.study, round=task.round, direction="down")

    # Outcomes ---------------------------------------------------------------------------------------------------------

    def asked_for(self, silo: str, task_id: str, update_id: str) -> Asked:
        """What a declaration is about, to be looked at before its manifest is parsed. It holds for this turn of the
        event loop, in which `begin_update` may go by it instead of asking the ledger once more.

        Raises: TaskClosed where the silo has no such task.
        """
        task = self._task_of(silo, task_id)
        known = self._ledger.declared_update(update_id)
        wanted = not self._why_over(task) and known is None
        return Asked(task, known, self._ledger.phase(task.study, task.round, task.phase) if wanted else None)

    async def begin_update(self, silo: str, task_id: str, update_id: str, declaration: UpdateDeclaration, *,
                           asked: Asked | None = None) -> BeginAnswer:
        """Declares an update; says from which byte to send it. Safe to repeat.

        Args:
            asked: what `asked_for` has said of these in this turn of the event loop; None where it was not asked.
        Raises: BadPayload, LayoutMismatch or WrongBase when it cannot be what the task asks for; UpdateConflict when
        the id was declared with other content; DiskFull when the spool is full.
        """
        _check_update_id(update_id)
        if asked is None:
            asked = self.asked_for(silo, task_id, update_id)
        task, known, phase = asked.task, asked.known, asked.phase
        if known is not None and ((known.task_id, known.digest, known.size_bytes)
                                  != (task_id, declaration.digest, declaration.size_bytes)):
            raise UpdateConflict("This update_id was declared before with other content.")
        if known is not None and task.update_id == update_id:
            return BeginAnswer("have")
        if self._why_over(task):
            return self._refuse_late(task)
        if phase is not None:  # it is not known
            check_declaration(declaration, task=task, phase=phase, truth=self._simulated)
            replaced = self._ledger.declare_update(DeclaredUpdate(
                update_id=update_id, task_id=task_id, digest=declaration.digest, size_bytes=declaration.size_bytes,
                groups={group.name: group.encoded_bytes for group in declaration.groups},
                example_count=self._credible_count(task, declaration),
                metrics=self._credible_metrics(task, declaration),
                training_seconds=declaration.training_seconds, declared_unix=self._clock(), accepted_unix=None,
                folded=False))
            if replaced:  # a silo that trained again; what came of the first attempt is of no use
                await self._drop(replaced)
        if self._in_spool(declaration.digest, declaration.size_bytes):
            return BeginAnswer("send", resume_offset=declaration.size_bytes)
        if self._spool.resume_offset(update_id) == 0 and self._spool.has_room(declaration.size_bytes):
            return BeginAnswer("send")
        return BeginAnswer("send", resume_offset=await self._resume_offset(update_id, declaration.size_bytes))

    async def _drop(self, replaced: Sequence[str]) -> None:
        """Forgets updates that another one has taken the place of."""
        for update_id in replaced:
            accepting = self._acceptances.get(update_id)
            if accepting is not None and accepting.waits and not accepting.replaced:
                accepting.replaced = True
                accepting.future.cancel()

        def drop() -> None:
            for update_id in replaced:
                self._spool.drop_partial(update_id)

        await asyncio.to_thread(drop)  # all of them, also when the silo hangs up

    async def _resume_offset(self, update_id: str, size_bytes: int) -> int:
        """From which byte an update goes on. One thread at a time looks at what is on disk of it, however often it is
        asked: after a restart it has to be read, and others need these threads as well.

        Raises: DiskFull.
        """
        def look() -> int:
            with self._spool.partial(update_id, size_bytes=size_bytes) as partial:
                return partial.committed_bytes

        looking = self._offsets.get(update_id)
        if looking is None:
            looking = self._offsets[update_id] = asyncio.ensure_future(asyncio.to_thread(look))
            looking.add_done_callback(lambda _: self._offsets.pop(update_id))
        return await asyncio.shield(looking)

    def _credible_count(self, task: TaskRow, declaration: UpdateDeclaration) -> int:
        """How many images an update counts as: no more than its silo has announced. Told of once for each task."""
        announced = self._roster.announced(task.silo)
        if declaration.example_count <= announced:
            return declaration.example_count
        self._tell_above(task, "images", declaration.example_count, announced)
        return announced

    def _credible_metrics(self, task: TaskRow, declaration: UpdateDeclaration) -> dict[str, float]:
        """Its metrics, with no more images with a label than its silo has announced: whether an update counts among
        those that have any may hang on them."""
        metrics = dict(declaration.metrics)
        if NUM_LABELLED not in metrics or metrics[NUM_LABELLED] <= (
                announced := self._roster.announced_labelled(task.silo)):
            return metrics
        self._tell_above(task, "images with a label", metrics[NUM_LABELLED], announced)
        return {**metrics, NUM_LABELLED: float(announced)}

    def _tell_above(self, task: TaskRow, what: str, claimed: float, announced: int) -> None:
        told = self._above.setdefault(task.silo, {})
        if told.get(what) == task.task_id:
            return
        told[what] = task.task_id
        text = (f"its update says that it is from {claimed:.0f} {what}, and it has announced {announced}: it counts as"
                f" from {announced}")
        _LOG.warning("%s, round %d: %s: %s", task.study, task.round, task.silo, text)
        add_notice(self._ledger, NoticeKind.COUNT_ABOVE, study=task.study, round=task.round, silo=task.silo, text=text)

    def answer_step(self, silo: str, task_id: str, answer: SecureAnswer) -> BeginAnswer:
        """An answer to a step of a secure sum. Safe to repeat; another answer to the same step is not looked at.

        Raises: BadPayload for one that does not fit the step; its silo has no further part in the sum.
        """
        task = self._task_of(silo, task_id)
        if task.state is TaskState.ANSWERED:
            return BeginAnswer("have")
        if self._why_over(task):
            return self._refuse_late(task)
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
        task = self._task_of(silo, task_id)
        if task.state is TaskState.ABSTAINED:
            return BeginAnswer("have")
        if self._why_over(task):
            return self._refuse_late(task)
        check_metrics(find_method(task.spec.method), metrics, update=False, phase=task.spec.phase,
                      num_classes=len(task.spec.model.classes), truth=self._simulated)
        self._ledger.close_task(task, TaskState.ABSTAINED, reason=printable(reason, limit=64), metrics=metrics)
        self._note_held(task)
        self._runtime.notify()
        return BeginAnswer("have")

    def refuse(self, silo: str, task_id: str, code: str, text: str, *, against: str = "") -> BeginAnswer:
        """The silo's policy or data does not allow the task, or its training failed.

        Args:
            against: the silo of the same secure sum that this one complains of; empty without a complaint. Another name
                is not looked at.
        """
        task = self._task_of(silo, task_id)
        if task.state is TaskState.REFUSED:
            return BeginAnswer("have")
        if self._why_over(task):
            return self._refuse_late(task)
        reason = f"{printable(code, limit=64)}: {printable(text, limit=500)}"
        with self._ledger.transaction():
            self._ledger.close_task(task, TaskState.REFUSED, reason=reason)
            if against and against != silo and task.spec.secure and against in {
                    member.silo for member in question_from_hex(task.spec.secure).members}:
                add_complaints(self._ledger, task.study, task.round, [(silo, against)])
        _LOG.warning("silo %s refused %s: %s", silo, task_id, reason)
        self._runtime.notify()
        return BeginAnswer("have")

    def awaited(self, silo: str, update_id: str) -> DeclaredUpdate:
        """A declared update whose bytes are wanted now.

        Raises: TaskClosed when it was never declared, is not the caller's, or the phase has closed.
        """
        _check_update_id(update_id)
        update = self._ledger.declared_update(update_id)
        if update is None:
            raise TaskClosed("This update was not declared.", remedy="Call BeginUpdate first.")
        self._open_task_of(silo, update.task_id)
        return update

    async def upload(self, silo: str, update_id: str) -> tuple[PartialFile, DeclaredUpdate]:
        """Where the bytes of a declared update go; the caller closes the file.

        Raises: what `awaited` raises; DiskFull.
        """
        update = self.awaited(silo, update_id)
        if self._spool.resume_offset(update_id) is None:  # then to open it is quick
            await self._resume_offset(update_id, update.size_bytes)
        return await asyncio.to_thread(self._spool.partial, update_id, size_bytes=update.size_bytes), update

    def is_accepting(self, update: DeclaredUpdate) -> bool:
        """Whether all of an update has come and is being accepted: who brings it again waits for that with `accept`."""
        return update.update_id in self._acceptances

    def has_all(self, update: DeclaredUpdate) -> bool:
        """Whether the bytes of a declared update lie in the spool already, so that none need to come."""
        return self._in_spool(update.digest, update.size_bytes)

    def still_wanted(self, update: DeclaredUpdate) -> bool:
        """Whether the task of an update is still open; asked now and then while bytes arrive."""
        task = self._ledger.task(update.task_id)
        return task is not None and not self._why_over(task)

    def has_none(self, update: DeclaredUpdate) -> bool:
        """Whether nothing of a declared update has come yet: should all of it come in one piece, `store` takes that."""
        return self._spool.resume_offset(update.update_id) == 0

    async def store(self, update: DeclaredUpdate, data: bytes | memoryview) -> None:
        """Puts an update that has come in one piece into the spool; `accept` then finds it there.

        Raises: BadPayload when the bytes do not have the declared digest; DiskFull.
        """
        await asyncio.to_thread(self._spool.add_bytes, data, update.digest)

    async def accept(self, silo: str, update: DeclaredUpdate, partial: PartialFile | None) -> None:
        """Checks a complete upload, makes it durable and answers the task.

        Args:
            partial: where its bytes have come; None when they lie in the spool already (`has_all`).
        Raises: BadPayload when the bytes do not have the declared digest (dropped, to be sent again); BadPayload,
        LayoutMismatch or WrongBase when the content is not what the task allows, which ends the task. TaskClosed when
        the phase closed meanwhile; nothing of it stays then.

        Goes on when it is cancelled: to cut off the check would end the compute process. So an update that is brought
        again, as often as a silo likes, is checked once.
        """
        acceptance = self._acceptances.get(update.update_id)
        if acceptance is None:
            future = asyncio.ensure_future(self._accept_or_remove(silo, update, partial))
            acceptance = self._acceptances[update.update_id] = _Acceptance(future)
            future.add_done_callback(lambda _: self._acceptances.pop(update.update_id))
        await asyncio.shield(acceptance.future)

    async def _accept_or_remove(self, silo: str, update: DeclaredUpdate, partial: PartialFile | None) -> None:
        try:
            await self._accept(silo, update, partial)
        except TaskClosed:
            if not self._ledger.may_be_folded(update.digest):  # all of it may have come after the round was tidied up
                await asyncio.to_thread(self._spool.path(update.digest).unlink, missing_ok=True)
            raise

    async def _accept(self, silo: str, update: DeclaredUpdate, partial: PartialFile | None) -> None:
        if self.has_all(update):
            path = self._spool.path(update.digest)
            if not self._spool.lasts(update.digest):
                await asyncio.to_thread(self._spool.make_last, update.digest)
        else:
            assert partial is not None, "the bytes are in the spool, or come through a partial file"
            path = await asyncio.to_thread(partial.finish, update.digest)
        async with self._turn_to_check(update):
            task = self._task_of(silo, update.task_id)
            if not self._is_awaited(update, task):  # while it waited for its turn
                return
            row = self._ledger.round(task.study, task.round)
            try:
                checked = await self._compute.call(CheckUpdate(
                    state=row.state_digest, round=task.round, phase=method_phase(row.phases[task.phase]),
                    update=SpooledUpdate(header=update.header(silo), path=path,
                                         kept=self._ledger.silo_state(task.study, silo, round=task.round)[1]),
                    masked=self._ledger.phase(task.study, task.round, task.phase).expects if task.spec.secure
                    else None))
            except (SemisiloError, OSError) as error:
                # If its phase ended meanwhile its file may be gone, and the model that it was held against another one.
                self._check_open(self._task_of(silo, update.task_id))
                if isinstance(error, SemisiloError) and (isinstance(error, (BadPayload, WrongBase))
                                                         or error.status == "INVALID_ARGUMENT"):
                    _LOG.warning("update of silo %s for %s was not accepted: %s", silo, task.task_id, error)
                    self._ledger.close_task(task, TaskState.REFUSED, reason=f"not accepted: {error.text}")
                    self._runtime.notify()
                raise
        if await self._answered(_Checked(silo, update, checked)):
            self._note_held(task, made=checked.held)
            self._runtime.notify()

    async def _answered(self, found: _Checked) -> bool:
        """Answers the task of an update that was checked; whether it did, on disk for good then.

        To wait for the disk holds up all silos. Where there are many, those that come within a moment are answered with
        one wait. Raises: TaskClosed; what the ledger raises.
        """
        silos = len(self._runtime.connected)
        if silos <= _FEW_SILOS:
            return self._answer_one(found)
        if not self._checked:
            asyncio.get_running_loop().call_later(min(_LONGEST_GATHERING_SECONDS, silos * _GATHERING_SECONDS_PER_SILO),
                                                  self._answer_checked)
        self._checked.append(found)
        return await found.answered

    def _answer_checked(self) -> None:
        """Answers the tasks of all that wait for it, in the order in which they were checked."""
        together, self._checked = [each for each in self._checked if not each.answered.done()], []
        if not together:  # the coordinator ends, and its ledger may be closed
            return
        try:
            with self._ledger.transaction():
                answers = [self._write_answer(each) for each in together]
        except Exception:  # nothing of them is written: each by itself, so that one that cannot be hinders no other
            for each in together:
                try:
                    each.answered.set_result(self._answer_one(each))
                except Exception as error:
                    each.answered.set_exception(error)
        else:
            for each, answer in zip(together, answers, strict=True):
                each.answered.set_result(answer)

    def _answer_one(self, found: _Checked) -> bool:
        """See `_answered`."""
        with self._ledger.transaction():
            return self._write_answer(found)

    def _write_answer(self, found: _Checked) -> bool:
        """Part of a transaction. False where the task has been answered with the update. Raises: TaskClosed."""
        update = found.update
        task = self._task_of(found.silo, update.task_id)
        if not self._is_awaited(update, task):  # while it was checked, or has waited for others
            return False
        self._ledger.accept_update(update, task)
        sizes = [*update.groups.items(), ("manifest", update.size_bytes - sum(update.groups.values()))]
        add_costs(self._ledger, [Cost(study=task.study, round=task.round, phase=task.spec.phase, silo=found.silo,
                                      direction="up", kind="payload", item=item, bytes=size, count=1)
                                 for item, size in sizes])
        add_encoded(self._ledger, found.checked.encoded, study=task.study, round=task.round, direction="up")
        return True

    @contextlib.asynccontextmanager
    async def _turn_to_check(self, update: DeclaredUpdate) -> AsyncIterator[None]:
        """Around the check of an update. Raises: TaskClosed when another update takes its place while it waits."""
        if not self._ledger.is_declared(update.update_id):  # or has taken it
            raise TaskClosed(_REPLACED)
        acceptance = self._acceptances[update.update_id]
        acceptance.waits = True
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:
            if not acceptance.replaced:
                raise
            acceptance.future.uncancel()
            raise TaskClosed(_REPLACED) from None
        finally:
            acceptance.waits = False
        try:
            yield
        finally:
            self._turn.release()

    def _is_awaited(self, update: DeclaredUpdate, task: TaskRow) -> bool:
        """False for an update that its task has been answered with: of two uploads of the same the other was quicker.

        Raises: TaskClosed when the task is over, or another update has taken the place of this one.
        """
        if task.update_id == update.update_id:
            return False
        self._check_open(task)
        if not self._ledger.is_declared(update.update_id):
            raise TaskClosed(_REPLACED)
        return True

    # Evaluations ------------------------------------------------------------------------------------------------------

    def may_hear_of(self, silo: str, study: str, *, num_classes: int) -> bool:
        """Whether there is such a study and it has so many classes: to be asked before an evaluation is parsed, which
        costs time by its classes. Says in the log that it is dropped where not."""
        row = self._ledger.find_study(study)
        if row is not None and num_classes == len(row.classes):
            return True
        if row is None:
            self._drop_evaluation(silo, "there is no such study")
        else:
            self._drop_evaluation(silo, "the study has other classes", f"{len(row.classes)} of them")
        return False

    def _note_evaluation(self, silo: str, found: SiteEvaluation) -> None:
        """Takes what a silo says of a model that it may have; anything else is dropped, for the silo must go on."""
        if not self.may_hear_of(silo, found.study, num_classes=len(found.classes)):
            return
        row = self._ledger.study(found.study)
        about = f"round {found.round}"
        if row.frozen is None or found.multi_label != (row.frozen.task == "multi_label"):
            why = "its counts are those of another kind of label"
        elif not is_committed(self._ledger, found.study, found.round):
            why = "its round is not committed"
        elif found.labels_alone and (row.baseline is None or not row.baseline.model_digest):
            why = "there is no model of labels alone"
        elif is_other_model(self._ledger, row, found):
            why = "the model of its round is another one by now"
        elif not has_taken_part(self._ledger, found.study, silo):
            why = "the silo has had no part in the study"
        else:
            with self._ledger.transaction(lasting=False):
                add_site_evaluation(self._ledger, silo, found, now_unix=self._clock())
            return
        self._drop_evaluation(silo, why, about)

    def _drop_evaluation(self, silo: str, why: str, about: str = "") -> None:
        """Says so in the log, once an hour for each reason of a silo.

        Args:
            about: what else is to be said, which may be different each time.
        """
        if self._lines.standing(silo, why) is None:
            _LOG.warning("an evaluation of silo %s is dropped: %s%s", silo, why, f" ({about})" if about else "")

    # Checks -----------------------------------------------------------------------------------------------------------

    def _current_task(self, silo: str) -> TaskRow | None:
        """The open task of the study that runs; a study that has failed keeps its tasks open for another try."""
        if self._runtime.reason in (StandbyReason.PAUSED, StandbyReason.NO_STUDY) or not self._runtime.study:
            return None
        return self._ledger.open_task(silo, study=self._runtime.study)

    def _why_over(self, task: TaskRow) -> str:
        """Why a task takes no more answers; empty while it does."""
        if task.state is not TaskState.OPEN:
            return f"the task is over: {task.reason or task.state}"
        state = task.study_state or self._ledger.study_state(task.study)
        return f"the study {task.study} is {state}" if state in ENDED_STUDY else self._why_later(task)

    def _why_later(self, task: TaskRow) -> str:
        """Why an open task has to wait: its study failed and is in the queue again, and another one runs, so that
        nothing can be held against its model. Empty where it need not. When the study goes on, its silo is given the
        task again."""
        running = self._runtime.study
        return f"the study {task.study} waits for its turn" if running not in ("", task.study) else ""

    def _open_task_of(self, silo: str, task_id: str) -> TaskRow:
        task = self._task_of(silo, task_id)
        self._check_open(task)
        return task

    def _check_open(self, task: TaskRow) -> None:
        if ended := self._why_over(task):
            raise TaskClosed(f"{ended[0].upper()}{ended[1:]}.")

    def _in_spool(self, digest: str, size_bytes: int) -> bool:
        """Whether a complete file is there, as when the coordinator died before it was recorded."""
        if not self._spool.has(digest):
            return False
        found = self._spool.path(digest).stat().st_size
        if found != size_bytes:
            raise BadPayload(f"The update is declared with {size_bytes} bytes; what has its digest has {found}.")
        return True

    def _task_of(self, silo: str, task_id: str) -> TaskRow:
        task = self._ledger.task(task_id)
        if task is None or task.silo != silo:
            raise TaskClosed("The coordinator knows no such task of this silo.")
        bind(study=task.study, round=task.round, phase=task.spec.phase, task_id=task.task_id)
        return task

    def _note_held(self, task: TaskRow, *, made: Collection[str] = ()) -> None:
        """A silo that has answered a task holds what came with it, and what its update has made of that: the next phase
        may open before it says so."""
        came = frozenset(payload.tensors for payload in task.spec.payloads if payload.tensors)
        self._runtime.held[task.silo] = self._runtime.held.get(task.silo, frozenset()) | came | frozenset(made)

    def _refuse_late(self, task: TaskRow) -> BeginAnswer:
        """Raises: TaskClosed for a task that only has to wait: its silo keeps the answer, and will send it then."""
        state = task.study_state or self._ledger.study_state(task.study)
        if task.state is TaskState.OPEN and state not in ENDED_STUDY:
            self._check_open(task)
        if task.task_id not in self._late_tasks:  # once, however often the silo repeats it
            self._late_tasks.add(task.task_id)
            note_late_answer(self._ledger, task)
        return BeginAnswer("refused", reason=self._why_over(task))


def _can_read(spec: TaskSpec, held: frozenset[str]) -> bool:
    """Whether a silo that holds `held` can read the payloads of a task."""
    return all(not payload.tensors or payload.tensors in held
               or (payload.digest and (not payload.reference or payload.reference in held))
               for payload in spec.payloads)


def _check_update_id(update_id: str) -> None:
    if _UPDATE_ID.fullmatch(update_id) is None:
        raise BadPayload("update_id must be 16 to 64 lower-case hex digits.")
