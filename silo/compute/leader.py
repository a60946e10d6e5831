"""The operations of a silo that torchrun has started as several processes, in process 0: training is shared, the rest
is done here alone.

What is shared is every task of the phase "train": its trainer runs in all processes, on the same images with the same
seeds, and its passes through networks are shared (`semisilo.common.numerics.process_group`). Measuring batch-norm
statistics, evaluation, and training with differential privacy of single images go on in this process alone.

Tests: tests/silo/compute/test_leader.py.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadData, ComputeFailed, ProcessGroupLost, SemisiloError, by_code
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.common.methods.spec import FROZEN
from semisilo.common.numerics import process_group
from semisilo.common.process.compute_process import ends_process
from semisilo.common.process.messages import Failure, Handler
from semisilo.common.process.processors import usable_processors
from semisilo.common.process.torchrun import Place, place
from semisilo.silo.compute.masking import MaskingOperations
from semisilo.silo.compute.messages import Dismiss, Dismissed, Train, Trained
from semisilo.silo.compute.operations import Given
from semisilo.silo.compute.rendezvous import (
    GroupCall,
    Meeting,
    Membership,
    Ready,
    carry,
    carry_groups,
    own_device,
    saved,
)

__all__ = ["LeadingOperations", "images_digest"]

_LOG = logging.getLogger("semisilo.work")
_COME_SECONDS = 120.0
"""How long process 0 waits for the others to be there."""
_REASON_SECONDS = 5.0
"""How long it waits for what another process says of its end."""
_HASHED_AT_ONCE = 256
"""Images."""


class LeadingOperations(MaskingOperations):
    """See `semisilo.silo.compute.operations.Operations`."""

    def __init__(self, progress: Callable[[float, str], None]) -> None:
        """Raises: BadConfiguration when this machine has fewer GPUs than processes."""
        found = place()
        assert found is not None, "this process was not started by torchrun"
        own_device(found)
        super().__init__(progress, processors=max(1, usable_processors() // found.local_size))
        self._place: Place = found
        self._meeting: Meeting | None = None
        self._membership: Membership | None = None
        self._shared = False

    def handlers(self) -> tuple[Handler, ...]:
        """As of a single process, and `Dismiss`."""
        return (*super().handlers(), Dismiss.handled_by(self.dismiss))

    def dismiss(self, request: Dismiss) -> Dismissed:
        """See `Dismiss`."""
        self._met().say("over", self._met().number)
        return Dismissed()

    def train(self, request: Train) -> Trained:
        """See `Train`."""
        self._shared = False
        trained = super().train(request)
        return replace(trained, processes=self._place.size) if self._shared else trained

    def _trained(self, trainer: Any, asked: SiloTask, data: SiloData, memory: Any, *,
                 given: Given) -> tuple[Update, Any]:
        if why := _alone(asked):
            _LOG.info("%s: done by one of %d processes", why, self._place.size)
            return super()._trained(trainer, asked, data, memory, given=given)
        membership = self._member()
        self._progress(0.0, "the other processes read the images")
        try:
            self._make_ready(membership, data, given)
        except ProcessGroupLost as error:
            ends_process(error)  # the others may wait for the rest of this call
            raise
        self._shared = True
        _LOG.info("round %d of study %s: trained by %d processes", asked.round, asked.study, self._place.size)
        membership.working(True)
        try:
            groups = dict(asked.groups)
            carry_groups(groups if given.frozen is None else {**groups, FROZEN: given.frozen})
            carry(b"" if memory is None else saved(memory))
            with process_group.together(membership.seen_by_torch):
                update, keep = trainer.train(
                    replace(asked, build_model=lambda: process_group.shared(asked.build_model())), data, memory)
        except Exception as error:
            self._failed(membership, error)
        finally:
            membership.working(False)
        return update, keep

    def _met(self) -> Meeting:
        if self._meeting is None:
            self._meeting = Meeting(self._place)
            self._meeting.unsay("over")  # of processes before these
        return self._meeting

    def _member(self) -> Membership:
        """The group of this process, with all others. Raises: ProcessGroupLost."""
        if self._membership is not None:
            if why := self._membership.lost():
                error = ProcessGroupLost(f"Of the {self._place.size} processes of this silo one is lost: {why}.",
                                         remedy="The task is done again.")
                ends_process(error)
                raise error
            return self._membership
        try:
            self._membership = self._met().gather(seconds=_COME_SECONDS, waits_for=lambda rank: self._progress(
                0.0, f"waiting for process {rank} of {self._place.size}"))
        except ProcessGroupLost as error:
            ends_process(error)
            raise
        return self._membership

    def _make_ready(self, membership: Membership, data: SiloData, given: Given) -> None:
        """Has all others make ready. Raises: what one of them cannot do; BadData when it would train on other images,
        BadConfiguration when it computes otherwise."""
        order, record = given.request.task, given.numerics
        membership.call(GroupCall(
            task=replace(order, numerics=replace(order.numerics, threads=record.threads)), choice=given.request.choice,
            images_folder=given.request.images_folder))
        own = Ready(host=socket.gethostname(), record=record, images=images_digest(data))
        problem: SemisiloError | None = None
        for rank in range(1, self._place.size):
            problem = problem or _problem(rank, membership.ready(rank), own)
        membership.go(problem is None)
        if problem is not None:
            raise problem

    def _failed(self, membership: Membership, error: Exception) -> NoReturn:
        """After an error in the middle of what processes do in step: the group is over. Raises: the error, or what
        another process has failed of, or ProcessGroupLost."""
        raised: Exception = error
        if _is_of_a_peer(error):
            raised = ProcessGroupLost(f"One of the {self._place.size} processes of this silo was lost in the middle of"
                                      " training.", remedy="The task is done again.")
            until = time.monotonic() + _REASON_SECONDS
            while time.monotonic() < until:
                try:
                    found = membership.failure()
                except ProcessGroupLost as forged:
                    raised = forged
                    break
                if found is not None:
                    raised = _from_process(*found)
                    break
                time.sleep(0.2)
            _LOG.warning("%s: %s", type(error).__name__, " ".join(str(error).split())[:500])
        ends_process(raised)
        raise raised


def _alone(asked: SiloTask) -> str:
    """Why a task is not shared; empty where it is."""
    if asked.private is not None:
        return "training with differential privacy of single images"
    return "" if asked.phase == "train" else f"phase '{asked.phase}'"


def _is_of_a_peer(error: Exception) -> bool:
    """Whether it is torch's error about another process."""
    known = (torch.distributed.DistBackendError, torch.distributed.DistNetworkError, torch.distributed.DistStoreError)
    return isinstance(error, known) or (isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")))


def _problem(rank: int, ready: Ready, own: Ready) -> SemisiloError | None:
    """Why a process cannot train with this one."""
    where = f"Process {rank} of this silo, on {ready.host},"
    if ready.failure is not None:
        return _from_process(rank, ready.failure)
    if ready.record != own.record:
        return BadConfiguration(f"{where} computes differently from process 0: {ready.record}, not {own.record}.",
                                remedy="All need the same version of torch, processor and kind of GPU.")
    if ready.images != own.images:
        return BadData(f"{where} reads other images than process 0 on {own.host}.",
                       remedy="All processes must see the same images under the same path.")
    return None


def _from_process(rank: int, failure: Failure) -> SemisiloError:
    if failure.details:
        _LOG.error("process %d failed:\n%s", rank, failure.details)
    kind = by_code(failure.code)
    error = (ComputeFailed if failure.details else kind)(f"Process {rank} of this silo: {failure.text}",
                                                         remedy=failure.remedy)
    error.words_of_others = failure.words_of_others or bool(failure.details)
    return error


def images_digest(data: SiloData) -> str:
    """SHA-256 of the images and labels that a task is trained on."""
    digest = hashlib.sha256()
    for images in (data.labelled, data.unlabelled):
        digest.update(_of_set(images))
    return digest.hexdigest()


_known: list[tuple[torch.Tensor, bytes]] = []
"""Pixels that were looked at: they are the same in every round, and looking at many takes time."""


def _of_set(images: ImageSet | None) -> bytes:
    if images is None:
        return b"none"
    labels = b"" if images.labels_N is None else images.labels_N.contiguous().numpy().tobytes()
    for pixels, found in _known:
        if pixels is images.images_NCHW:
            return found + labels
    digest = hashlib.sha256(repr(tuple(images.images_NCHW.shape)).encode())
    for start in range(0, len(images), _HASHED_AT_ONCE):
        digest.update(images.images_NCHW[start:start + _HASHED_AT_ONCE].contiguous().numpy().tobytes())
    _known[:] = [*_known[-1:], (images.images_NCHW, digest.digest())]
    return digest.digest() + labels
