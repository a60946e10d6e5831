"""From a task to an answer that may be sent: the same steps at a real silo and at a simulated one.

The policy is asked, memory brought up to date, payloads come, training runs in the compute process, what leaves is held
against the policy, the answer is made durable, and what it discloses is written down: all that before a byte of it is
sent. A real and a simulated silo differ in `TaskSteps` alone: how payloads come and where training runs.

Every step may be repeated: a task whose answer is durable already is not done again, so a silo that was killed anywhere
sends the same bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from semisilo.common.config import canonical_json, to_dict
from semisilo.common.errors import DailyBudget
from semisilo.common.methods import MethodSpec
from semisilo.common.methods.contract import PayloadRef, TaskSpec
from semisilo.common.methods.parts.privacy import spends_at_site
from semisilo.common.methods.spec import EPSILON, reason_that_leaves
from semisilo.common.payload.manifest import GroupManifest
from semisilo.common.payload.reader import read_manifest
from semisilo.common.rpc.convert import check_metrics
from semisilo.common.text.logs import printable
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.site.disclosures import Disclosure, DisclosureLog, message
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.site.memory import PendingUpdate, SiloMemory, update_id_of
from semisilo.silo.site.policy import Policy, check_task, check_update
from semisilo.silo.site.privacy.ledger import PrivacyLedger

__all__ = ["ReadyAnswer", "Site", "TaskSteps", "abstention_request", "answer_task", "least_announced"]

P = ParamSpec("P")
T = TypeVar("T")

_LOG = logging.getLogger("semisilo.silo")


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What a silo has and permits, whichever task comes."""

    policy: Policy
    choice: JoinChoice
    """Its images."""
    memory: SiloMemory
    cache_folder: Path
    """Of payloads that arrive."""
    disclosures: DisclosureLog
    announced_labelled: Callable[[], int] = lambda: 0
    """See `semisilo.silo.compute.messages.Train`, likewise the next."""
    announced_least: Callable[[], int] = lambda: 0
    threads_file: Path | None = None
    """See `semisilo.silo.compute.messages.Train`."""
    features_file: Path | None = None
    """See `semisilo.silo.compute.messages.Train`; None for a simulated silo."""
    privacy_folder: Path
    """Of the site's `semisilo.silo.site.privacy.ledger.PrivacyLedger`."""
    authority: str = ""
    """Of the federation whose tasks these are; see `semisilo.silo.compute.messages.Train`."""
    images_folder: Path | None = None
    """Where decoded images lie that are too many for memory, if the policy permits; None for a simulated silo."""
    model_files: Path = Path("model_files")
    """Where the files lie that may build networks."""
    in_threads: bool = True
    """Whether files are read and written in threads, for calls of the coordinator must be answered meanwhile. Where
    there is no such call, as in a simulation, a thread only costs time: it has to wake another one for every file."""


class TaskSteps(Protocol):
    """What is done otherwise at a real silo than at a simulated one."""

    @property
    def upload_rate(self) -> float:
        """Bytes per second that updates last went out with; 0.0 when that was not measured."""

    def ready_before(self) -> None:
        """Is told that the answer was ready before a restart: nothing is fetched and nothing trained."""

    async def fetch(self, task: TaskSpec) -> Mapping[str, Path]:
        """The task's payloads on disk, each verified, by digest; those of tensor groups that are here are left out."""

    async def train(self, request: Train) -> Trained:
        """Runs the request where this silo trains. Raises: SemisiloError."""

    def check_room(self, size_bytes: int) -> None:
        """Whether an update of this size may still be sent today. Raises: DailyBudget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyAnswer:
    """An answer to a task that may be sent: durable, permitted, and written down in the record of disclosures."""

    task: TaskSpec
    pending: PendingUpdate
    manifest: tuple[GroupManifest, ...]
    """Of the update's file; empty for an abstention."""


def least_announced(labelled: int, unlabelled: int) -> int:
    """Images that an update is from at least, by what a silo has announced: a method may use either kind."""
    return min((count for count in (labelled, unlabelled) if count > 0), default=0)


async def answer_task(task: TaskSpec, site: Site, steps: TaskSteps, *, masking: Masking | None = None,
                      masked: Callable[[bytes], None] = lambda vector: None) -> ReadyAnswer:
    """Does a task, unless that was done before, up to the moment in which the answer can be sent.

    Args:
        masking: how the update is hidden, in step "mask" of a secure sum. Of such an answer nothing else leaves but
            the epsilon that is spent.
        masked: told `Trained.vector` before the answer is kept; may raise, so that it is not.
    Raises: NotPermitted and what else `check_task` raises, before anything is fetched; NotPermitted when the answer
        holds what must not leave, and DailyBudget when it does not fit into the day: nothing is recorded as disclosed
        then; DiskFull when there is no room for the answer; what `steps` and training raise.
    """
    spec = check_task(site.policy, task)
    before = await _at_files(site, _done_before, site.memory, task)
    if before is None:
        payloads = await steps.fetch(task)
        await _at_files(site, site.memory.check_room, task.study)
        request = await _at_files(site, _request, task, site, payloads, steps.upload_rate)
        trained = _without_words(task, spec, await steps.train(
            request if masking is None else replace(request, masking=masking)))
        if masking is not None:
            told = {name: value for name, value in trained.metrics.items() if name == EPSILON}
            trained = replace(trained, metrics=told, num_examples=0)
            if trained.vector:
                await _at_files(site, masked, trained.vector)
        pending, manifest = await _at_files(site, _made_durable, task, spec, site, trained)
    else:
        steps.ready_before()
        pending, manifest = before, await _at_files(site, _permitted, task, spec, site, before)
        if pending.payload is None:  # an earlier version may have kept any text
            pending = replace(pending, abstention=reason_that_leaves(spec, pending.abstention))
    if pending.payload is not None:
        try:
            steps.check_room(pending.payload.size_bytes)
        except DailyBudget:
            await _at_files(site, site.memory.refused, task.task_id)
            raise
    await _at_files(site, _recorded, site, task, pending)
    return ReadyAnswer(task=task, pending=pending, manifest=manifest)


def abstention_request(task_id: str, pending: PendingUpdate) -> pb.BeginUpdateRequest:
    """The message that says that there is no update, and why."""
    return pb.BeginUpdateRequest(task_id=task_id, update_id=pending.update_id, abstention=pb.Abstention(
        reason=pending.abstention, metrics=pending.metrics))


def _without_words(task: TaskSpec, spec: MethodSpec, trained: Trained) -> Trained:
    """The answer, without a reason that the method does not declare: it may hold what was computed from images, and no
    policy is asked about it. It stays here, in the log."""
    if trained.payload is not None or (leaves := reason_that_leaves(spec, trained.abstention)) == trained.abstention:
        return trained
    _LOG.warning("task %s: %s has no update, and says why: %s. The coordinator hears '%s': the method does not declare"
                 " this reason.", task.task_id, task.method, printable(trained.abstention, limit=500), leaves)
    return replace(trained, abstention=leaves)


def _done_before(memory: SiloMemory, task: TaskSpec) -> PendingUpdate | None:
    """The answer to this task that only needs sending. A coordinator that was restored from a backup gives tasks of the
    same names once more, and their models may be others: an answer to one of the rounds that are gone is dropped."""
    memory.resolve(task.study, task.last_folded_round, round=task.round, task_id=task.task_id)
    pending = memory.pending_for(task.task_id)
    if pending is None or pending.update_id in (
            _update_id(task, pending.payload, pending.abstention),
            update_id_of(task.task_id, _content(pending.payload, pending.abstention))):  # of an earlier version
        return pending
    _LOG.warning("task %s: the answer that is here was to another task of this name, as of before the coordinator was"
                 " restored from a backup; it is dropped, and the task is done", task.task_id)
    memory.refused(task.task_id)
    return None


def _update_id(task: TaskSpec, payload: PayloadRef | None, abstention: str) -> str:
    """Names an answer to exactly this task, however its tensors come."""
    tensors = sorted((*each.groups, each.tensors or each.digest) for each in task.payloads)
    about = canonical_json([to_dict(replace(task, payloads=(), deadline_unix=0.0)), tensors])
    return update_id_of(task.task_id, f"{_content(payload, abstention)}\n{about}")


def _content(payload: PayloadRef | None, abstention: str) -> str:
    return payload.digest if payload else f"abstention {abstention}"


def _request(task: TaskSpec, site: Site, payloads: Mapping[str, Path], upload_rate: float) -> Train:
    memory = site.memory.committed(task.study)
    residuals, pending_residuals = site.memory.residuals(task.study, round=task.round)
    return Train(
        task=task, payloads=dict(payloads), cache_folder=site.cache_folder, choice=site.choice,
        announced_labelled=site.announced_labelled(), announced_least=site.announced_least(),
        images_folder=site.images_folder if site.policy.limits.images_on_disk else None,
        factories=site.policy.permit.code(site.model_files), memory=memory, residuals=residuals,
        pending_residuals=pending_residuals, outgoing_folder=site.memory.outgoing.folder,
        memory_folder=site.memory.folder, privacy=site.policy.privacy,
        privacy_folder=site.privacy_folder, authority=site.authority, link_bytes_per_second=upload_rate,
        threads_file=site.threads_file, features_file=site.features_file)


def _made_durable(task: TaskSpec, spec: MethodSpec, site: Site,
                  trained: Trained) -> tuple[PendingUpdate, tuple[GroupManifest, ...]]:
    """The answer, with the manifest of its file (`_permitted`). Raises: NotPermitted, with nothing kept unless the file
    is not what was said about it; BadPayload for metrics that cannot be sent."""
    payload, metrics = trained.payload, check_metrics(trained.metrics)
    check_update(site.policy, spec, groups=payload.groups if payload else (), metrics=metrics,
                 size_bytes=payload.size_bytes if payload else 0, masked=bool(task.secure))
    pending = site.memory.record_pending(
        task.study, round=task.round, task_id=task.task_id, update_id=_update_id(task, payload, trained.abstention),
        memory=trained.memory, residuals=trained.residuals, payload=payload, abstention=trained.abstention,
        num_examples=trained.num_examples, metrics=metrics, seconds=trained.seconds)
    return pending, _permitted(task, spec, site, pending)


def _permitted(task: TaskSpec, spec: MethodSpec, site: Site, pending: PendingUpdate) -> tuple[GroupManifest, ...]:
    """The manifest of the update's file, which is held against the policy: the file itself, not what was said about it;
    and again after a restart, for silo.toml may have changed. Empty for an abstention. Raises: NotPermitted."""
    if pending.payload is None:
        check_update(site.policy, spec, groups=(), metrics=pending.metrics, size_bytes=0)
        return ()
    path = site.memory.outgoing.path(pending.payload.digest)
    manifest = read_manifest(path)
    check_update(site.policy, spec, groups=[group.name for group in manifest], metrics=pending.metrics,
                 size_bytes=path.stat().st_size, masked=bool(task.secure))
    return manifest


def _recorded(site: Site, task: TaskSpec, pending: PendingUpdate) -> None:
    site.disclosures.record(_disclosure(task, pending, _budget_spent(site, task)))


def _budget_spent(site: Site, task: TaskSpec) -> dict[str, object]:
    """What the record of disclosures says of the privacy budget as it is by now; nothing for a study without
    differential privacy of images."""
    if not spends_at_site(task.dp, secure=bool(task.secure)):
        return {}
    ledger = PrivacyLedger(site.privacy_folder)
    # Not the line of the task: where a study has gone back, the very same task has another name and no line of its own.
    study, last = ledger.of_study(task.study, authority=site.authority), ledger.last()
    return {} if study is None or last is None else {
        "epsilon": last.epsilon, "delta": last.delta, "study_epsilon": study.study_epsilon,
        "study_delta": study.study_delta}


def _disclosure(task: TaskSpec, pending: PendingUpdate, budget: dict[str, object]) -> Disclosure:
    if pending.payload is None:
        request = abstention_request(task.task_id, pending)
        return message("abstention", request.SerializeToString(deterministic=True), update_id=pending.update_id,
                       study=task.study, round=task.round, phase=task.phase, method=task.method,
                       metrics=pending.metrics, text=request.abstention.reason)
    payload = pending.payload
    return Disclosure(kind="update", study=task.study, round=task.round, phase=task.phase, method=task.method,
                      update_id=pending.update_id, groups=payload.groups, bytes=payload.size_bytes,
                      digest=payload.digest, num_examples=pending.num_examples, metrics=pending.metrics,
                      content=budget)


async def _at_files(site: Site, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs, where the site says so in a thread, to its end: whoever is cancelled meanwhile goes on only when nobody
    touches the files of this silo any more."""
    if not site.in_threads:
        return work(*args, **kwargs)
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
