"""Evaluates global models on this site's own test images while the silo waits, and says so where the policy permits.

A task goes before: an evaluation that is under way has half a minute to end, then it stops after the batch at hand and
that model is left out. What was found is on disk before anything of it is sent.

Tests: tests/silo/agent/test_site_evaluation.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from semisilo.common.errors import SemisiloError
from semisilo.common.measures.site_evaluation import SiteEvaluation
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.methods.spec import MEASURING
from semisilo.common.process.compute import Compute
from semisilo.common.rpc.convert import evaluation_to_proto, task_from_proto
from semisilo.common.storage.store import PayloadStore
from semisilo.common.text.logs import printable
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.terminal import Display
from semisilo.silo.compute.messages import Evaluated, EvaluateFile, EvaluateReceived
from semisilo.silo.link.link import ModelDescription
from semisilo.silo.site.disclosures import DisclosureLog, message
from semisilo.silo.site.evaluations import EvaluationRecord, RecordedEvaluation, scores_text
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.policy import Policy

__all__ = ["SiteEvaluator"]

_LOG = logging.getLogger("semisilo.silo")
_PATIENCE_SECONDS = 30.0
"""How long a task waits for an evaluation: forward passes over test images are a small part of any round's training,
and whoever has more images than that has them evaluated while it waits anyway."""
_MOST_SENT = 8
"""In one call, as many as the message takes."""


class SiteEvaluator:
    """One evaluation at a time, of the newest global model."""

    def __init__(self, *, home: SiloHome, silo: str, policy: Policy, choice: JoinChoice, compute: Compute,
                 cache: PayloadStore, display: Display, disclosures: DisclosureLog, clock: Callable[[], float],
                 authority: str, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """
        Args:
            home: of this silo; the caller holds its lock.
            cache: of payloads that arrive.
            clock: Unix seconds.
            authority: `authority_id` of the federation, which hears of models of its own studies alone.
            patience_seconds: how long a task waits for an evaluation.
        """
        self._home = home
        self._silo = silo
        self._policy = policy
        self._choice = choice
        self._compute = compute
        self._cache = cache
        self._display = display
        self._disclosures = disclosures
        self._clock = clock
        self._authority = authority
        self._patience_seconds = patience_seconds
        self._record = EvaluationRecord(home.evaluations)
        self._working: asyncio.Task[None] | None = None
        self._told = ""
        newest = self._record.newest
        # Whether the coordinator had it before a restart is not known; it takes no harm from hearing it again.
        self._unsent = [newest] if newest is not None and newest.authority == authority \
            and policy.permit.site_evaluation else []
        self._told_of = list(self._unsent)
        """What this process has told the coordinator, or will with its next calls, and the coordinator still has."""
        self._in_call: tuple[RecordedEvaluation, ...] = ()

    def clean(self) -> None:
        """Removes models that a crash has left here, in part or whole, between fetching and evaluating."""
        if self._home.evaluated_models.is_dir():
            store = PayloadStore(self._home.evaluated_models)
            store.clean()
            for digest in store.digests():
                store.path(digest).unlink(missing_ok=True)

    # Evaluating -------------------------------------------------------------------------------------------------------

    def begin(self, given: pb.Task) -> None:
        """Evaluates the global model of a task that has been done, where it brought one, in the background."""
        if not self._choice.test:
            return
        task = task_from_proto(given, silo=self._silo)
        if task.model_round is None and task.phase in MEASURING:
            pass  # a phase that measures a model which is no round's yet; that of the round comes with the next
        elif task.model_round is None:
            self._tell(f"study {task.study}: tasks do not bring the global model as it is, so that it is not evaluated"
                       " on this site's test images")
        else:
            self._forget_gone(task.study, task.model_round)
            known = self._record.find(task.study, task.model_round, authority=self._authority,
                                      model_digest=task.model_digest)
            if known is None:
                self._start(self._evaluate(task, task.model_round))
            else:
                self._tell_coordinator(known)

    def _forget_gone(self, study: str, newest: int) -> None:
        """What was told of rounds that a study has gone back behind is gone at the coordinator."""
        self._unsent, self._told_of = ([each for each in entries if each.evaluation.study != study
                                        or each.evaluation.round <= newest]
                                       for entries in (self._unsent, self._told_of))

    def _tell_coordinator(self, entry: RecordedEvaluation) -> None:
        """With the next calls, where the policy permits and it has not been told."""
        if self._policy.permit.site_evaluation and entry.authority == self._authority and entry not in self._told_of:
            self._unsent.append(entry)
            self._told_of.append(entry)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._working is None or self._working.done(), "a task makes an evaluation end before it begins"
        self._working = asyncio.ensure_future(work)

    def knows(self, model: ModelDescription) -> bool:
        """Whether that model was evaluated; the coordinator is told what was found, if it has not been."""
        known = self._record.find(model.study, model.round, authority=self._authority,
                                  labels_alone=model.labels_alone, model_digest=model.model_digest)
        if known is not None:
            self._tell_coordinator(known)
        return known is not None

    def begin_file(self, model: ModelDescription, path: Path) -> None:
        """Evaluates the model that a study has handed over, in the background; its file is removed afterwards."""
        self._start(self._evaluate_file(model, path))

    async def _evaluate_file(self, model: ModelDescription, path: Path) -> None:
        which = "labels alone" if model.labels_alone else f"round {model.round}"
        with self._telling_failure(which):
            try:
                self._home.stop_evaluation.unlink(missing_ok=True)
                found = await self._compute.call(EvaluateFile(
                    path=path, choice=self._choice, stop_file=self._home.stop_evaluation,
                    images_folder=self._home.images if self._policy.limits.images_on_disk else None,
                    factories=self._policy.permit.code(self._home.model_files)))
            finally:
                path.unlink(missing_ok=True)
            await self._note(found, study=model.study, round=model.round, labels_alone=model.labels_alone,
                             model_digest=model.model_digest, class_names=found.class_names, measure=model.measure)

    @contextlib.contextmanager
    def _telling_failure(self, which: str) -> Iterator[None]:
        """An evaluation that fails costs nothing but its numbers."""
        try:
            yield
        except (SemisiloError, OSError, ValueError) as error:
            line = error.line() if isinstance(error, SemisiloError) else str(error)
            _LOG.warning("the global model of %s was not evaluated on this site's test images: %s", which,
                         printable(line, limit=500))

    async def _evaluate(self, task: TaskSpec, model_round: int) -> None:
        payloads = {each.digest: self._cache.path(each.digest) for each in task.payloads
                    if each.digest and self._cache.has(each.digest)}
        request = EvaluateReceived(
            task=task, payloads=payloads, cache_folder=self._cache.folder, choice=self._choice,
            images_folder=self._home.images if self._policy.limits.images_on_disk else None,
            factories=self._policy.permit.code(self._home.model_files), threads_file=self._home.threads,
            stop_file=self._home.stop_evaluation)
        with self._telling_failure(f"round {model_round}"):
            self._home.stop_evaluation.unlink(missing_ok=True)
            found = await self._compute.call(request)
            await self._note(found, study=task.study, round=model_round, model_digest=task.model_digest,
                             class_names=task.model.classes, measure=task.measure)

    async def _note(self, found: Evaluated, *, study: str, round: int, class_names: tuple[str, ...], measure: str,
                    model_digest: str, labels_alone: bool = False) -> None:
        """Records what was found. Raises: OSError; ValueError for numbers that cannot be."""
        if not found.classes:
            self._tell(f"study {study}: the global model is not evaluated on this site's test images: {found.why_not}")
            return
        entry = RecordedEvaluation(
            unix=self._clock(), class_names=class_names, measure=measure, independent=found.independent,
            authority=self._authority,
            evaluation=SiteEvaluation(study=study, round=round, labels_alone=labels_alone,
                                      model_digest=model_digest, classes=found.classes))
        await asyncio.to_thread(self._record.add, entry)
        self._tell_coordinator(entry)
        self._display.event(f"{scores_text(entry)} (test images of this site)")

    def _tell(self, text: str) -> None:
        """Once in a row."""
        if text != self._told:
            self._told = text
            _LOG.info("%s", text)

    # Ending -----------------------------------------------------------------------------------------------------------

    async def make_way(self) -> None:
        """Returns when nothing is evaluated any more, for a task is there; what takes too long is left out."""
        if await self._ended_within(self._patience_seconds):
            return
        with contextlib.suppress(OSError):
            self._home.stop_evaluation.touch()
        assert self._working is not None
        await asyncio.wait({self._working})

    async def _ended_within(self, seconds: float) -> bool:
        if self._working is None or self._working.done():
            return True
        await asyncio.wait({self._working}, timeout=seconds)
        return self._working.done()

    async def close(self) -> None:
        """Ends what is being evaluated."""
        if self._working is not None and not self._working.done():
            self._working.cancel()
            await asyncio.wait({self._working})

    # Sending ----------------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether anything is being evaluated."""
        return self._working is not None and not self._working.done()

    @property
    def has_news(self) -> bool:
        """Whether there is something that the coordinator has not heard, and may."""
        return bool(self._unsent)

    def to_send(self) -> list[pb.SiteEvaluation]:
        """What goes along with the next call; it is written down as disclosed. Raises: OSError when that cannot be."""
        self._in_call = tuple(self._unsent[:_MOST_SENT])
        messages = []
        for each in self._in_call:
            found, sent = each.evaluation, evaluation_to_proto(each.evaluation)
            self._disclosures.record(message(
                "evaluation", sent.SerializeToString(deterministic=True), study=found.study, round=found.round,
                text=f"global model: {_told(found)}",
                content={"labels_alone": found.labels_alone, "model": found.model_digest,
                         "images": [one.images for one in found.classes],
                         "correct": [one.correct for one in found.classes],
                         "auroc": [one.auroc for one in found.classes],
                         **({"others": [one.others for one in found.classes],
                             "correct_others": [one.correct_others for one in found.classes],
                             "average_precision": [one.average_precision for one in found.classes]}
                            if found.multi_label else {})}))
            messages.append(sent)
        return messages

    def heard(self) -> None:
        """The coordinator has answered the last call."""
        self._unsent = [each for each in self._unsent if each not in self._in_call]
        self._in_call = ()


def _told(found: SiteEvaluation) -> str:
    if found.multi_label:
        return f"answers to {len(found.classes)} classes on {found.count} test images, right and wrong ones"
    return f"{found.correct} of {found.count} test images right, by class"
