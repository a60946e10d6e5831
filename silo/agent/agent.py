"""The loop of a silo: wait for a task, do it, answer, wait again, until it is stopped or the study is over.

What happens inside a task is in `semisilo.silo.agent.task_runner`; how calls are repeated in `semisilo.silo.link.link`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from semisilo.common import __version__
from semisilo.common.errors import (
    ClockSkew,
    ConnectionRefusedByPeer,
    DailyBudget,
    OutsideHours,
    SemisiloError,
    SystemTrouble,
    TooManyCalls,
    Unreachable,
)
from semisilo.common.methods.parts.capabilities import CAPABILITIES
from semisilo.common.payload.cache import TensorCache
from semisilo.common.process.compute import Compute, ComputeDied
from semisilo.common.secure_aggregation.keys import prove_identity, sign_card
from semisilo.common.system_errors import SYSTEM_ERRORS, explained
from semisilo.common.text.describe import counted, describe_bytes
from semisilo.common.text.log_context import bound, new_trace_id
from semisilo.common.text.logs import printable
from semisilo.common.text.seldom_lines import SeldomLines
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.asked import AskedRecord
from semisilo.silo.agent.away import Away, away_now
from semisilo.silo.agent.daily_budget import DayBudget
from semisilo.silo.agent.final_model import FinalModel
from semisilo.silo.agent.secure_steps import SecureSteps
from semisilo.silo.agent.shared_model import forget_unfinished
from semisilo.silo.agent.site_evaluation import SiteEvaluator
from semisilo.silo.agent.task_runner import TaskOutcome, TaskRunner
from semisilo.silo.agent.task_times import note_task, read_tasks
from semisilo.silo.agent.terminal import Display, ToldDisplay
from semisilo.silo.compute.messages import Survey, Surveyed
from semisilo.silo.link.link import Link
from semisilo.silo.link.retrying_calls import is_fatal, waits
from semisilo.silo.link.traffic import Carried, Traffic
from semisilo.silo.secure_aggregation.store import SecureStore
from semisilo.silo.site.audit_heads import HeadRecord
from semisilo.silo.site.disclosures import DisclosureLog, announcement, message
from semisilo.silo.site.home import JoinChoice, SiloHome, StatusFile
from semisilo.silo.site.images_choice import labels_gone
from semisilo.silo.site.memory import SiloMemory
from semisilo.silo.site.policy import Policy
from semisilo.silo.site.stores import open_cache
from semisilo.silo.site.working_hours import closes_at
from semisilo.silo.study_cards.agreement import Agreement
from semisilo.silo.study_cards.book import CardBook

__all__ = ["Agent", "Renewal"]

_LOG = logging.getLogger("semisilo.silo")
_POLL_SECONDS = 25.0
"""How long a call for a task waits. Longer saves little: a call is a small message each way. Shorter than the minute
between two keep-alives, so that the line is never that quiet; what the silo says of itself is no older than this."""
_FIRST_POLL_SECONDS = 1.0
"""The first call's: its answer shows the person that there is a connection, and what is waited for."""
_STATUS_SECONDS = 5.0
"""`silo status` may be so far behind about the last contact: every message is a contact, each chunk too, and a
writing replaces a file."""
_PROCESS_BYTES = 8
"""Of the number by which the coordinator tells this process from one with a copy of the identity."""
_PROGRESS_SECONDS = 1.0
"""How far the work is stands in the status file, and is written this often."""
_SHORT_STAGE_SECONDS = 0.25
"""A stage that is over sooner is not written: nobody would have seen it, and a writing replaces a file."""
_MAX_HELD_DIGESTS = 256
"""As many as the message takes (`AwaitTaskRequest.held_digests`): 8 KiB."""
_QUICK_SECONDS = 1.0
"""An answer "nothing to do" that comes sooner, twice for the same reason, is not a long poll: pause before the next."""
_REFUSED_SECONDS = 5.0
"""The longest pause after tasks that were refused, several in a row."""
_LAST_WORD_SECONDS = 15.0
"""How long a silo that has ended evaluates on, and tries to tell; a coordinator that ends waits as long."""
_LEAVING_POLL_SECONDS = 0.2
"""Between two calls in that time: they keep the coordinator there."""
_LINE = (ClockSkew, ConnectionRefusedByPeer, TooManyCalls, Unreachable)
"""Troubles that are over once any call is answered."""
_REASONS = {
    pb.Standby.REASON_WAITING_FOR_SILOS: "waiting for other silos to join",
    pb.Standby.REASON_COORDINATOR_WORKING: "waiting for the coordinator",
    pb.Standby.REASON_NOT_SAMPLED: "not needed at the moment: waiting for the next task",
    pb.Standby.REASON_PAUSED: "the study is paused at the coordinator",
    pb.Standby.REASON_NO_STUDY: "connected: the coordinator has no study at the moment",
    pb.Standby.REASON_SET_ASIDE: "not asked until further notice",
}


class Agent:
    """Takes part in the studies of one federation. Holds nothing between tasks that a restart would miss."""

    def __init__(self, *, home: SiloHome, silo: str, address: str, policy: Policy, choice: JoinChoice, link: Link,
                 compute: Compute, display: Display, traffic: Traffic, renew: Callable[[], Awaitable[None]],
                 exit_when_finished: bool = False, idle_seconds: float = math.inf, federation: str = "",
                 heads: HeadRecord | None = None,
                 poll_seconds: float = _POLL_SECONDS, clock: Callable[[], float] = time.time,
                 on_task: Callable[[TaskOutcome], None] = lambda outcome: None) -> None:
        """
        Args:
            home: folders of this silo; the caller holds its lock.
            silo: this silo's name, from its certificate.
            address: of the coordinator, to show.
            federation: its name, likewise.
            heads: checks and keeps the heads of the coordinator's audit trail; None where there is no authority to
                check them against.
            choice: which images.
            link: the connection; its `on_trouble`, `on_contact`, `on_through` and `on_stream` should be `trouble`,
                `contact`, `through` and `count` of this object.
            compute: runs `semisilo.silo.compute.operations.Operations`.
            renew: renews the certificate when that is due; called before every poll.
            exit_when_finished: `run` returns when there is no study any more after this silo has taken part in one.
            idle_seconds: `run` returns as well when there was nothing to do for so long after it has begun.
            poll_seconds: how long the coordinator may hold a poll.
            clock: Unix seconds.
            on_task: told what became of each task.
        """
        self._on_task = on_task
        self._home = home
        self._silo = silo
        self._address = address
        self._where = f"{federation} at {address}" if federation else address
        self._heads = heads
        self._process = secrets.token_bytes(_PROCESS_BYTES)
        self._heard = False
        self._first_line = ""
        self._policy = policy
        self._choice = choice
        self._link = link
        self._compute = compute
        self._display = ToldDisplay(display, self._progressed)
        self._traffic = traffic
        self._renew = renew
        self._exit_when_finished = exit_when_finished
        self._idle_seconds = idle_seconds
        self.has_worked = False
        """Whether there was a study to take part in, or the end of one was heard."""
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._memory = SiloMemory(home.memory, outgoing=home.outgoing, clock=clock)
        self._cache = open_cache(home.cache)
        self._tensors = TensorCache(self._cache)
        self._status = StatusFile(home.status)
        self._before_start = Carried(self._status.now.sent_bytes, self._status.now.received_bytes)
        authority = "" if heads is None else heads.authority
        self._disclosures = DisclosureLog(home.disclosures, authority=authority)
        self._asked = AskedRecord(home.asked)
        self._budget = DayBudget(home.day, bytes_per_day=policy.limits.bytes_per_day, hours=policy.hours,
                                 now_unix=clock())
        self._secure = SecureStore(home.secure)
        self._cards = CardBook(home.cards)
        self._proof = prove_identity(self._secure.private_identity(), federation=federation, silo=silo) \
            if federation else b""  # without a name there are no secure sums
        self._agreement = Agreement(
            self._cards, link, approval=policy.require.approval, clock=clock, note=self._note_signature,
            sign=lambda study, digest: sign_card(self._secure.private_identity(), federation=federation, silo=silo,
                                                 study=study, digest=digest)) if federation else None
        self._runner = TaskRunner(silo=silo, policy=policy, choice=choice, link=link, compute=compute,
                                  memory=self._memory, cache=self._cache, display=self._display,
                                  disclosures=self._disclosures, budget=self._budget, clock=clock,
                                  threads_file=home.threads, features_file=home.study_features,
                                  images_folder=home.images, privacy_folder=home.privacy,
                                  authority=authority,
                                  model_files=home.model_files,
                                  last_upload_bytes={task.study: task.upload_bytes for task in read_tasks(home.rounds)
                                                     if task.upload_bytes},
                                  secure=SecureSteps(self._secure, federation=federation, silo=silo,
                                                     policy=policy), agreement=self._agreement, count=self.count)
        self._sites = SiteEvaluator(home=home, silo=silo, policy=policy, choice=choice, compute=compute,
                                    cache=self._cache, display=self._display, disclosures=self._disclosures,
                                    clock=clock, authority=authority)
        self._final = FinalModel(folder=home.evaluated_models, link=link, sites=self._sites, policy=policy,
                                 budget=self._budget, disclosures=self._disclosures, agreement=self._agreement,
                                 clock=clock, count=self.count)
        self._labelled = 0
        self._unlabelled = 0
        self._contact_unix = self._status.now.last_contact_unix
        self._written = self._progress_written = 0.0
        self._told = "", 0.0, ""
        """The stage, and how far it is, as they were last told of."""
        self._stage_timer: asyncio.TimerHandle | None = None
        self._troubled_by: SemisiloError | None = None
        """What the status says is in the way."""
        self._quick_answers = 0
        self._said_away = False
        self._lines = SeldomLines()
        """About records that cannot be written: they are tried with every call."""
        self._put_off = "", ""
        """The task that was worked on last, and what became of it."""
        self._leaving = False

    # The loop ---------------------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Works until the study is over (with `exit_when_finished`), or there was none for `idle_seconds`; returns the
        coordinator's line about its end, if there is one.

        Raises: BadData when the images cannot be used; what no repetition can fix.
        """
        try:
            await self._until_well(self._begin)
            began = time.monotonic()
            self._display.state(f"connecting to {self._address}")
            self._save(state=f"connecting to {self._address}")
            pauses, unanswered = waits(self._link.backoff, silo=self._silo), ""
            while True:
                await self._until_well(self._renew)
                asked = time.monotonic()
                answer = await self._next_answer(asked - began)
                if answer is None:
                    return ""
                self._sites.heard()
                self._heed(answer.warning)
                first, self._heard = not self._heard, True
                if answer.WhichOneof("answer") == "task":
                    self._first_line = ""
                    if first:
                        self._display.event(f"connected to {self._where}")
                    self._keep_head(answer)
                    away = self._away()
                    if away is not None and not self._said_away:
                        continue  # given in the moment in which that began: the next call says so
                    if not await self._work(answer.task, away):  # given again at once, it may end in the same way
                        if answer.task.task_id != unanswered:  # what became of another says nothing of this one
                            pauses, unanswered = waits(self._link.backoff, silo=self._silo), answer.task.task_id
                        await asyncio.sleep(next(pauses))
                    elif (refused := self._status.now.refusals) > 1:  # each is written down here, for good
                        await asyncio.sleep(min(_REFUSED_SECONDS, self._link.backoff.first_seconds * refused))
                    continue
                ended = self._standby(answer.standby, first=first)
                if self._status.now.final_of:
                    await self._fetch_final(self._status.now.final_of)
                if ended:
                    await self._say_last()
                    if self._status.now.final_of:
                        self._display.event(f"the model of study {self._status.now.final_of} could not be fetched yet,"
                                            " so it is not evaluated here: the next silo join does so")
                    return printable(answer.standby.text)
                await self._no_spin(time.monotonic() - asked)
        except SemisiloError as error:
            self._save(state="stopped", pid=0, last_error=error.line())
            raise
        finally:
            await self._sites.close()
            self._display.done()
            if self._status.now.pid:  # a person or the system has stopped it
                why = "" if self._troubled_by is None else "; it could not reach the coordinator" \
                    if isinstance(self._troubled_by, Unreachable) else "; it was in trouble"
                self._save(state=f"stopped{why}", pid=0)

    async def _next_answer(self, since_seconds: float) -> pb.AwaitTaskResponse | None:
        """What the coordinator answers, or None when there was nothing to do for too long.

        Args:
            since_seconds: how long ago this began.
        """
        if self.has_worked or math.isinf(self._idle_seconds):
            return await self._link.await_task(self._hello)
        try:
            async with asyncio.timeout(max(0.0, self._idle_seconds - since_seconds)):
                return await self._link.await_task(self._hello)
        except TimeoutError:  # a task that was on its way is given again
            return None

    async def _begin(self) -> None:
        # Nobody writes updates now: what a crash has left half-written can go.
        await asyncio.to_thread(self._memory.outgoing.clean)
        if self._heads is not None:
            # Two federations may both have a study `first`; what was kept for one is nothing to the other.
            if self._memory.is_of_another(self._heads.authority):
                await asyncio.to_thread(self._tensors.collect, (), spare=0)
                await asyncio.to_thread(self._cache.collect, ())
            for belong_to in (self._secure.belong_to, self._memory.belong_to, self._cards.belong_to):
                await asyncio.to_thread(belong_to, self._heads.authority)
        await asyncio.to_thread(self._sites.clean)
        await asyncio.to_thread(forget_unfinished, self._home, now_unix=self._clock())
        await self._survey()

    async def _until_well(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does what an error of the system may stop, again until it is done. Calls and tasks have ways of their own to
        put off what they do: `semisilo.silo.link.retrying_calls`, `semisilo.silo.agent.task_runner`."""
        for failures, pause in enumerate(waits(self._link.backoff, silo=self._silo), start=1):
            try:
                return await work()
            except SYSTEM_ERRORS as error:
                if (trouble := explained(error)) is None:
                    raise
                self.trouble(trouble, failures)
            await asyncio.sleep(pause)

    async def _fetch_final(self, study: str) -> None:
        """Has the model that a study hands over evaluated, where this site has test images; a restart goes on with
        what is put off, and while this site takes no task it is."""
        if not self._choice.test:
            return self._save(final_of="")
        if self._away() is not None:
            return
        later = await self._final.evaluate(study, not_before_unix=self._status.now.final_from_unix)
        self.through()  # what was in its way is in no task's
        self._save(final_of="") if later is None else self._save(final_from_unix=later)

    async def _say_last(self) -> None:
        """What is still being evaluated when the study is over, and may be told, goes out before this silo leaves."""
        self._leaving = True
        with contextlib.suppress(TimeoutError, SemisiloError):
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                while self._sites.is_busy or self._sites.has_news:
                    await self._link.await_task(self._hello)
                    self._sites.heard()
                    await asyncio.sleep(_LEAVING_POLL_SECONDS)

    async def _survey(self) -> None:
        self._save(state="reading the images", pid=os.getpid(), last_error="", refusals=0, refusal_code="",
                   last_refusal="", warning="", set_aside="")
        self._display.state(f"reading the images of {self._choice.source}")
        choice = self._choice
        found = await self._surveyed(choice)
        before = self._status.now.labelled_count
        if before and not found.labelled and choice.use_labels and JoinChoice.load(self._home.choice) == choice:
            raise labels_gone(choice, before, when="when this silo was here last")
        self._labelled, self._unlabelled = found.labelled, found.unlabelled
        self._runner.num_images, self._runner.num_labelled = self._labelled + self._unlabelled, self._labelled
        choice.save(self._home.choice)
        self._display.done()
        in_steps = f" that come in {found.steps} steps" if found.steps else ""
        tested = f"; {found.test} for testing" if found.test else ""
        where = " and ".join(each for each in (choice.source, choice.labelled) if each)
        self._display.event(f"silo {self._silo}: {counted(self._runner.num_images, 'image')} in {where} "
                            f"({self._labelled} with a label, {self._unlabelled} without{in_steps}{tested})")
        if found.layout:
            self._display.event(f"its folders are taken for {printable(found.layout, limit=600)}")
        if found.question:
            self._display.event(f"question: {printable(f'{found.question}. {found.remedy}', limit=600)}")
        self._save(labelled_count=self._labelled, unlabelled_count=self._unlabelled)

    async def _surveyed(self, choice: JoinChoice) -> Surveyed:
        """Counts the images; once more where the process was killed meanwhile, as a task is tried once more."""
        try:
            return await self._compute.call(Survey(choice=choice))
        except ComputeDied as error:
            _LOG.warning("the images are read once more: %s", error.line())
            return await self._compute.call(Survey(choice=choice))

    def _hello(self) -> pb.AwaitTaskRequest:
        study, round_number = self._memory.state()
        request = pb.AwaitTaskRequest(
            version=__version__, methods=self._policy.methods, labelled_count=self._labelled,
            unlabelled_count=self._unlabelled, memory_study=study, memory_round=round_number,
            held_digests=[bytes.fromhex(digest) for digest in self._tensors.digests()[:_MAX_HELD_DIGESTS]],
            process=self._process, secure_identity=self._secure.identity() if self._proof else b"",
            masked_study=self._secure.last_study,
            secure_identity_proof=self._proof, capabilities=sorted(CAPABILITIES))
        request.masked_round, request.masked_phase = self._secure.last_masked(self._secure.last_study)
        now, away = self._clock(), self._away()
        self._said_away = away is not None
        if away is not None:
            request.away.reason = away.reason
            request.away.until_time.FromMicroseconds(round(away.until_unix * 1e6))
        # The next call comes when the hours begin or end, so that what it says is true for as long as it waits.
        change = away.until_unix if away is not None else closes_at(self._policy.hours, now) or now
        longest = self._poll_seconds if self._heard else min(self._poll_seconds, _FIRST_POLL_SECONDS)
        if self._leaving:
            longest = min(longest, _LEAVING_POLL_SECONDS)
        request.poll_timeout.FromMicroseconds(round(min(longest, max(0.2, change - now)) * 1e6))
        request.silo_time.FromMicroseconds(round(now * 1e6))
        self._announce(request)
        return request

    def _announce(self, request: pb.AwaitTaskRequest) -> None:
        """Records what the request says of this silo, if it is news.

        Raises: SemisiloError when that cannot be; it must not be sent then.
        """
        content = {"version": request.version, "methods": list(request.methods),
                   "capabilities": list(request.capabilities),
                   "labelled_count": request.labelled_count, "unlabelled_count": request.unlabelled_count}
        if request.HasField("away"):
            content |= {"away": pb.Away.Reason.Name(request.away.reason).removeprefix("REASON_").lower(),
                        "away_until": request.away.until_time.ToJsonString()}
        try:
            self._disclosures.record(announcement(content, size_bytes=request.ByteSize()))
            request.evaluations.extend(self._sites.to_send())
        except OSError as error:
            raise SystemTrouble(f"{self._home.disclosures}: what leaves cannot be recorded: {error.strerror or error}.",
                                remedy="Nothing is sent before it can; free some space, or the right to write.") \
                from None

    def _away(self) -> Away | None:
        return away_now(self._policy.hours, self._budget, self._clock(),
                        awaits=None if self._agreement is None else self._agreement.awaits())

    def _note_signature(self, study: str, digest: str, signature: bytes) -> None:
        sent = pb.SignStudyCardRequest(study=study, digest=bytes.fromhex(digest), signature=signature)
        self._disclosures.record(message("study_card", sent.SerializeToString(deterministic=True), study=study,
                                         text="this silo's signature under the study's card"))

    def count(self, *, durably: bool = False) -> None:
        """Takes note of what the connection has carried; to be called now and then."""
        with contextlib.suppress(OSError):
            self._budget.carried(self._traffic.total(), self._clock(), durably=durably)

    def _keep_head(self, answer: pb.AwaitTaskResponse) -> None:
        """Checks and keeps the head of the audit trail that came with a task. What is wrong with it is said, and is no
        reason to stop: who has tampered with the trail would else have stopped the study as well."""
        if self._heads is None or not answer.HasField("audit_head"):
            return
        try:
            news = self._heads.saw(answer.audit_head, study=printable(answer.task.study, limit=128),
                                   round=answer.task.round, seen_unix=self._clock())
        except OSError as error:
            if self._lines.standing("head") is None:  # the task comes again and again meanwhile
                _LOG.warning("%s: the head of the coordinator's audit trail cannot be kept: %s", self._home.heads,
                             error.strerror or error)
            return
        if news.problem:
            _LOG.error("the coordinator's audit trail: %s", news.problem)
            self._display.event(f"WARNING: the coordinator's audit trail: {news.problem}. This silo keeps the proof and"
                                " goes on. See: silo disclosures --check")
        elif news.text:
            self._display.event(f"{news.text}.")

    async def _work(self, task: pb.Task, away: Away | None) -> bool:
        """Does a task, or refuses it when this site is `away`, and tells what became of it; whether it was answered."""
        self.has_worked = True
        name = f"{task.study}, round {task.round}/{task.round_count}"
        self._save(state=printable(f"{name}: works on it"), set_aside="", study=printable(task.study, limit=128),
                   round=task.round, rounds=task.round_count, last_task=printable(task.task_id, limit=700),
                   last_outcome="under way")
        with contextlib.suppress(OSError, ValueError):
            self._asked.came(task, now_unix=self._clock())
        before = self._traffic.total()
        self.count(durably=True)
        await self._sites.make_way()
        with bound(silo=self._silo, study=task.study, round=task.round, phase=task.phase, task_id=task.task_id,
                   trace_id=new_trace_id()):
            outcome = await (self._runner.answer(task) if away is None else self._runner.refuse(task, away.error))
            if not outcome.wanted:
                # Before another task is asked for: a later phase of the round would bring in what this one has left.
                await self._until_well(lambda: asyncio.to_thread(self._memory.refused, task.task_id))
        carried = self._traffic.total().since(before)
        self.count(durably=True)
        self._on_task(outcome)
        with contextlib.suppress(OSError, ValueError):
            self._asked.ended(task, outcome=outcome.kind, code="" if outcome.error is None else outcome.error.code,
                              text=outcome.text, now_unix=self._clock())
        if outcome.done:  # what is refused is not looked at either, whatever the coordinator says to the refusal
            self._sites.begin(task)
        if outcome.took is not None and outcome.kind != "answered":
            with contextlib.suppress(OSError):
                note_task(self._home.rounds, replace(outcome.took, sent_bytes=carried.sent_bytes,
                                                     received_bytes=carried.received_bytes))
        about = "about " if carried.estimated else ""
        text = (f"{name}: {outcome.text}; on the wire {about}{describe_bytes(carried.sent_bytes)} out, "
                f"{about}{describe_bytes(carried.received_bytes)} in")
        if outcome.kind == "put_off" and (task.task_id, outcome.text) == self._put_off:
            _LOG.debug("%s", text)  # it has been said, and may be tried again for days
            self._display.state(f"{name}: {outcome.text}")
        elif outcome.kind == "answered":  # four small messages a round, which the record of disclosures has as well
            _LOG.debug("%s", text)
            self._display.state(f"{name}: {outcome.text}")
        else:
            self._display.event(text)
        self._put_off = task.task_id, outcome.text
        answered = self._status.now.tasks_answered + int(outcome.answered)
        self._save(last_outcome=outcome.text, tasks_answered=answered, stage="", stage_fraction=0.0, stage_text="",
                   **self._refusal(outcome))
        return outcome.answered

    def _refusal(self, outcome: TaskOutcome) -> dict[str, object]:
        """What the status says of refusals after a task. Hours and budget are no trouble: others show them."""
        error = outcome.error
        if error is not None and not isinstance(error, (DailyBudget, OutsideHours)):
            return {"refusals": self._status.now.refusals + 1, "refusal_code": error.code,
                    "last_refusal": printable(error.line(), limit=1000)}
        done = outcome.kind in ("updated", "abstained")
        return {"refusals": 0, "refusal_code": "", "last_refusal": ""} if done else {}

    def _standby(self, standby: pb.Standby, *, first: bool = False) -> bool:
        """Shows why there is no task, with the connection when it is the `first` answer; returns whether that was
        all."""
        text = printable(standby.text)
        study = printable(standby.study, limit=128)
        over = standby.reason == pb.Standby.REASON_NO_STUDY
        if self._agreement is not None:
            self._agreement.heard_of("" if over else study)
        line = _REASONS.get(standby.reason, "waiting for the coordinator")
        if (away := self._away()) is not None:
            line = f"connected, but takes no task: {away.error.text}"
            if away.reason == pb.Away.REASON_AWAITING_APPROVAL and self._agreement is not None:
                line = f"waits for a person: silo approve {printable(self._agreement.waiting, limit=128)}"
        if standby.round_count and not over:
            line = f"{study}, round {standby.round}/{standby.round_count}: {line}"
        if text and text not in line:
            line = f"{line} ({text})"
        aside = text or line if standby.reason == pb.Standby.REASON_SET_ASIDE else ""
        if not over:
            self.has_worked = True
            self._display.state(self._greeting(line, first=first))
            self._save(state=line, study=study or self._status.now.study, round=standby.round,
                       rounds=standby.round_count, set_aside=aside)
            return False
        was_part = bool(self._status.now.study)
        self.has_worked = self.has_worked or was_part
        if was_part:
            self._save(final_of=self._status.now.study, final_from_unix=0.0)  # a restart fetches it as well
            self._display.event(f"study {self._status.now.study} is over" + (f": {text}" if text else ""))
        if not (was_part and self._exit_when_finished):
            self._display.state(self._greeting(line, first=first))
        self._save(state=line, study="", set_aside="")
        return was_part and self._exit_when_finished

    def _heed(self, warning: str) -> None:
        """Shows what the coordinator says that somebody here should know, once as long as it says the same."""
        text = printable(warning, limit=1000)
        if text == self._status.now.warning:
            return
        if text:
            self._display.event(f"the coordinator warns: {text}")
        self._save(warning=text)

    def _greeting(self, line: str, *, first: bool) -> str:
        """The line, and as long as it is the first one, what it is connected to."""
        if first:
            self._first_line = line
        if line != self._first_line:
            self._first_line = ""
            return line
        what = line.removeprefix("connected: ").removeprefix("connected, but ")
        return f"connected to {self._where}; {what}"

    async def _no_spin(self, waited_seconds: float) -> None:
        self._quick_answers = self._quick_answers + 1 if waited_seconds < _QUICK_SECONDS else 0
        if self._quick_answers > 1:
            await asyncio.sleep(min(5.0, 0.25 * self._quick_answers))

    # What the link tells ----------------------------------------------------------------------------------------------

    def trouble(self, error: SemisiloError, failures: int) -> None:
        """A call failed and is going to be repeated."""
        _LOG.debug("attempt %d failed: %s", failures, error.line())
        self._traffic.total()  # the connection may be gone at the next look
        if failures >= 2:  # a single cut is fixed before anyone could do anything about it
            line = error.line()
            if failures == 2 and not isinstance(error, _LINE):
                _LOG.warning("does not get on, and goes on trying: %s", line)
            self._troubled_by = error
            self._display.state(line if "again" in line else f"{line} Trying again.")
            self._save(last_error=line)

    @property
    def contact_unix(self) -> float:
        """When the coordinator has answered last, also before a restart; 0 for never."""
        return self._contact_unix

    def contact(self) -> None:
        """The coordinator has answered, or a chunk has come: called often."""
        self._contact_unix = self._clock()
        # What the coordinator objects to one call is not mended by its answer to another, as to a report of progress.
        if isinstance(self._troubled_by, _LINE):
            self.through()
            if self._heard:  # else the first answer says so, at once
                self._display.event(f"connected to {self._address} again")
        elif self._contact_unix - self._written >= _STATUS_SECONDS:
            self._save()

    def through(self) -> None:
        """A call that is repeated until it gets through has: nothing is in the way now."""
        if self._troubled_by is not None:
            self._troubled_by = None
            self._save(last_error="")

    def _progressed(self, what: str, fraction: float, text: str) -> None:
        """How far the work is, for who looks at the status from elsewhere."""
        now, stage = self._clock(), printable(what, limit=100)
        self._told = stage, min(1.0, max(0.0, fraction)), printable(text, limit=200)
        if stage != self._status.now.stage:
            if self._stage_timer is None:
                self._stage_timer = asyncio.get_running_loop().call_later(_SHORT_STAGE_SECONDS, self._write_stage)
        elif not 0 <= now - self._progress_written < _PROGRESS_SECONDS:
            self._write_stage()

    def _write_stage(self) -> None:
        stage, fraction, text = self._told
        self._progress_written = self._clock()
        self._save(stage=stage, stage_fraction=fraction, stage_text=text)

    def _save(self, **changes: object) -> None:
        if "state" in changes:  # another state is another work
            changes = {"stage": "", "stage_fraction": 0.0, "stage_text": "", **changes}
        if "stage" in changes and self._stage_timer is not None:
            self._stage_timer.cancel()
            self._stage_timer = None
        carried = self._traffic.total()
        self._written = self._clock()
        try:
            self._status.update(now_unix=self._written, last_contact_unix=self._contact_unix,
                                sent_bytes=self._before_start.sent_bytes + carried.sent_bytes,
                                received_bytes=self._before_start.received_bytes + carried.received_bytes,
                                bytes_estimated=carried.estimated or self._status.now.bytes_estimated, **changes)
        except OSError as error:
            if self._lines.standing("status") is None:
                _LOG.warning("%s: the status cannot be written: %s", self._home.status, error.strerror or error)


class Renewal:
    """Keeps the certificate fresh: `semisilo.silo.membership.enrollment` does it, this decides when to ask and what a
    failure means."""

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
        self._not_before = -math.inf
        """Of `time.monotonic`."""

    async def __call__(self) -> None:
        """Renews when due. A coordinator that cannot be reached is asked again later: the old certificate still lasts.

        Raises: what no repetition can fix.
        """
        now = time.monotonic()
        if self._clock() < self._due() or now < self._not_before:
            return
        self._not_before = now + self._pause_seconds
        try:
            renewed = await self._renew()
        except (SemisiloError, OSError) as problem:
            error = explained(problem) or problem
            if isinstance(error, OSError) or is_fatal(error):
                raise error from None
            self._not_before = now + max(self._pause_seconds, error.retry_seconds)
            if not isinstance(error, Unreachable):
                self._display.event(f"the certificate could not be renewed yet: {error.line()}")
            return
        if renewed:
            await self._link.reopen()
            self._not_before = -math.inf
            self._display.event("the certificate was renewed")
