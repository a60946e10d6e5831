"""What silos bring of updates, without any transport: declarations, their bytes, and the check that accepts them.

The caller's name is always an argument that the transport has established; nothing here trusts what a silo says.

Tests: tests/coordinator/tasks/test_update_service.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from semisilo.common.errors import BadPayload, SemisiloError, TaskClosed, UpdateConflict, WrongBase
from semisilo.common.methods.contract import NUM_LABELLED
from semisilo.common.process.compute import Compute
from semisilo.common.storage.store import PartialFile, PayloadStore
from semisilo.coordinator.compute.messages import CheckedUpdate, CheckUpdate, SpooledUpdate
from semisilo.coordinator.ledger.costs import Cost, add_costs
from semisilo.coordinator.ledger.encodings import add_encoded
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.records import DeclaredUpdate, PhaseRow, TaskRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.rounds.runtime import FEW_SILOS, RuntimeState
from semisilo.coordinator.rounds.secure_sums import method_phase
from semisilo.coordinator.tasks.open_tasks import BeginAnswer, OpenTasks
from semisilo.coordinator.tasks.update_declaration import UpdateDeclaration, check_declaration, check_lengths

__all__ = ["Asked", "UpdateService"]

_LOG = logging.getLogger("semisilo.coordinator")
_UPDATE_ID = re.compile(r"[0-9a-f]{16,64}")
_REPLACED = "The silo has declared another update since."
_GATHERING_SECONDS_PER_SILO, _LONGEST_GATHERING_SECONDS = 0.0001, 0.1
"""Where more silos than a few are connected, an update that was checked waits so long for others, which are then
written with one wait for the disk: of a thousand silos some ten at a time. The round is longer by one such moment."""


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

    future: asyncio.Task[SemisiloError | None]
    """Its result is what it was refused for."""
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


class UpdateService:
    """Takes the updates that answer tasks, from their declaration to the ledger."""

    def __init__(self, tasks: OpenTasks, *, ledger: Ledger, roster: LedgerRoster, runtime: RuntimeState,
                 spool: PayloadStore, compute: Compute, turn: asyncio.Lock, clock: Callable[[], float],
                 simulated: bool) -> None:
        """
        Args:
            turn: held by what silos have asked of the compute process.
            simulated: whether silos are, so that they may know the truth about their unlabelled images.
        """
        self._tasks = tasks
        self._ledger = ledger
        self._roster = roster
        self._runtime = runtime
        self._spool = spool
        self._compute = compute
        self._turn = turn
        self._clock = clock
        self._simulated = simulated
        self._above: dict[str, dict[str, str]] = {}
        """Silo -> of what its update last claimed more than the silo has announced -> the task of it."""
        # What a silo that hangs up leaves behind goes on, and no limit on calls counts it: so there is one of a kind.
        self._acceptances: dict[str, _Acceptance] = {}
        """By update_id."""
        self._offsets: dict[str, asyncio.Future[int]] = {}
        """By update_id: what is on disk of it is being looked at."""
        self._checked: list[_Checked] = []
        """That are answered together in a moment."""

    def asked_for(self, silo: str, task_id: str, update_id: str) -> Asked:
        """What a declaration is about, to be looked at before its manifest is parsed. It holds for this turn of the
        event loop, in which `begin` may go by it instead of asking the ledger once more.

        Raises: TaskClosed where the silo has no such task.
        """
        task = self._tasks.of(silo, task_id)
        known = self._ledger.declared_update(update_id)
        wanted = not self._tasks.why_over(task) and known is None
        return Asked(task, known, self._ledger.phase(task.study, task.round, task.phase) if wanted else None)

    async def begin(self, silo: str, task_id: str, update_id: str, declaration: UpdateDeclaration, *,
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
        if self._tasks.why_over(task):
            return self._tasks.refuse_late(task)
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

    def awaited(self, silo: str, update_id: str) -> DeclaredUpdate:
        """A declared update whose bytes are wanted now.

        Raises: TaskClosed when it was never declared, is not the caller's, or the phase has closed.
        """
        _check_update_id(update_id)
        update = self._ledger.declared_update(update_id)
        if update is None:
            raise TaskClosed("This update was not declared.", remedy="Call BeginUpdate first.")
        self._tasks.still_open(silo, update.task_id)
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
        return task is not None and not self._tasks.why_over(task)

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
        the phase closed meanwhile; nothing of it stays then. StudyNotOpen while nothing can be said of the content, as
        after a restart: its bytes stay, and the task is open.

        Goes on when it is cancelled: to cut off the check would end the compute process. So an update that is brought
        again, as often as a silo likes, is checked once.
        """
        acceptance = self._acceptances.get(update.update_id)
        if acceptance is None:
            future = asyncio.ensure_future(self._accept_or_remove(silo, update, partial))
            acceptance = self._acceptances[update.update_id] = _Acceptance(future)
            future.add_done_callback(lambda _: self._acceptances.pop(update.update_id))
        if (refused := await asyncio.shield(acceptance.future)) is not None:
            raise refused

    async def _accept_or_remove(self, silo: str, update: DeclaredUpdate,
                                partial: PartialFile | None) -> SemisiloError | None:
        """What `accept` raises, if anything. Raised here, it would stand in the log with a traceback wherever the silo
        has hung up meanwhile and nobody waits for it."""
        try:
            await self._accept(silo, update, partial)
        except TaskClosed as error:
            if not self._ledger.may_be_folded(update.digest):  # all of it may have come after the round was tidied up
                await asyncio.to_thread(self._spool.path(update.digest).unlink, missing_ok=True)
            return error
        except SemisiloError as error:
            return error
        return None

    async def _accept(self, silo: str, update: DeclaredUpdate, partial: PartialFile | None) -> None:
        if self.has_all(update):
            path = self._spool.path(update.digest)
            if not self._spool.lasts(update.digest):
                await asyncio.to_thread(self._spool.make_last, update.digest)
        else:
            assert partial is not None, "the bytes are in the spool, or come through a partial file"
            path = await asyncio.to_thread(partial.finish, update.digest)
        async with self._turn_to_check(update):
            task = self._tasks.of(silo, update.task_id)
            if not self._is_awaited(update, task):  # while it waited for its turn
                return
            row = self._ledger.round(task.study, task.round)
            try:
                checked = await self._compute.call(CheckUpdate(
                    study=task.study, state=row.state_digest, round=task.round,
                    phase=method_phase(row.phases[task.phase]),
                    update=SpooledUpdate(header=update.header(silo), path=path,
                                         kept=self._ledger.silo_state(task.study, silo, round=task.round)[1]),
                    masked=self._ledger.phase(task.study, task.round, task.phase).expects if task.spec.secure
                    else None))
            except (SemisiloError, OSError) as error:
                # If its phase ended meanwhile its file may be gone, and the model that it was held against another one.
                self._tasks.check_open(self._tasks.of(silo, update.task_id))
                if isinstance(error, SemisiloError) and (isinstance(error, (BadPayload, WrongBase))
                                                         or error.status == "INVALID_ARGUMENT"):
                    _LOG.warning("update of silo %s for %s was not accepted: %s", silo, task.task_id, error)
                    self._ledger.close_task(task, TaskState.REFUSED, reason=f"not accepted: {error.text}")
                    self._runtime.notify()
                raise
        if await self._answered(_Checked(silo, update, checked)):
            self._tasks.note_held(task, made=checked.held)
            self._runtime.notify()

    async def _answered(self, found: _Checked) -> bool:
        """Answers the task of an update that was checked; whether it did, on disk for good then.

        To wait for the disk holds up all silos. Where there are many, those that come within a moment are answered with
        one wait. Raises: TaskClosed; what the ledger raises.
        """
        silos = len(self._runtime.connected)
        if silos <= FEW_SILOS:
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
        task = self._tasks.of(found.silo, update.task_id)
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
        self._tasks.check_open(task)
        if not self._ledger.is_declared(update.update_id):
            raise TaskClosed(_REPLACED)
        return True

    def _in_spool(self, digest: str, size_bytes: int) -> bool:
        """Whether a complete file is there, as when the coordinator died before it was recorded."""
        if not self._spool.has(digest):
            return False
        found = self._spool.path(digest).stat().st_size
        if found != size_bytes:
            raise BadPayload(f"The update is declared with {size_bytes} bytes; what has its digest has {found}.")
        return True


def _check_update_id(update_id: str) -> None:
    if _UPDATE_ID.fullmatch(update_id) is None:
        raise BadPayload("update_id must be 16 to 64 lower-case hex digits.")
