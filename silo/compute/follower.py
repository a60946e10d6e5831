"""The processes 1, 2, ... that torchrun has started for a silo: each trains its share of what process 0 is asked for.

Runs as `python -P -m semisilo.silo.compute.follower PARENT HOME`, started by `semisilo.silo.compute.torchrun`, which
starts it again when it ends with another status than 0. It has no connection to the coordinator, no identity and no
memory, and writes nothing: what it computes is in process 0 as well. Which code may build a network it takes from
nobody but the silo.toml of its own machine.

Tests: tests/silo/compute/test_leader.py.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from semisilo.common.config import from_dict
from semisilo.common.errors import NotPermitted, SemisiloError
from semisilo.common.methods import MethodSpec, find_method
from semisilo.common.methods.contract import ModelSettings, SiloData
from semisilo.common.methods.spec import FROZEN
from semisilo.common.models.factory import model_builder
from semisilo.common.models.own.model_file import PermittedCode
from semisilo.common.numerics import numerics, process_group
from semisilo.common.process.allocator import settle_allocator
from semisilo.common.process.compute_process import LOST_PEER, describe, die_with_parent
from semisilo.common.process.processors import usable_processors
from semisilo.common.process.torchrun import Place, place
from semisilo.common.text.logs import set_up_child_logging
from semisilo.silo.compute.leader import images_digest
from semisilo.silo.compute.operations import Operations, as_asked
from semisilo.silo.compute.rendezvous import (
    GroupCall,
    Meeting,
    Membership,
    Ready,
    carry,
    carry_groups,
    loaded,
    own_device,
)
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import Permit, check_code, load_policy, names_code
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.plugged_in import build_trainer

__all__ = ["FollowingOperations", "follow"]

_LOG = logging.getLogger("semisilo.work")
_LOOK_SECONDS = 0.05
_WIDE_LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """A call for which this process is ready."""

    call: GroupCall
    code: tuple[PermittedCode, ...]
    """That may build the network here."""
    spec: MethodSpec
    settings: Any
    data: SiloData
    device: str
    ready: Ready


class FollowingOperations(Operations):
    """Reads images and trains as process 0 does."""

    def __init__(self, place: Place, home: SiloHome) -> None:
        super().__init__(lambda fraction, text: None, processors=max(1, usable_processors() // place.local_size))
        self._home = home

    @functools.cached_property
    def _permit(self) -> Permit:
        """Read where code is asked for, and once, as process 0 does. Other machines may have no such file, and then
        permit no code, or lack a plug-in that it names and nobody asks for."""
        return load_policy(self._home.policy).permit

    def prepare(self, call: GroupCall) -> _Prepared:
        """Puts the numerics in force and reads the images. Raises: SemisiloError."""
        order = call.task
        code = self._permitted(order.model)
        spec = find_method(order.method)
        settings: Any = from_dict(spec.settings, order.settings, where=f"task {order.task_id}: settings")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        record = numerics.apply(order.numerics, device=device, processors=self._processors)
        self._disk = call.images_folder
        images, _ = self._silo_images(order, settings.scenario, call.choice)
        data = images.data(round=order.round, scenario=settings.scenario)
        return _Prepared(call=call, code=code, spec=spec, settings=settings, data=data, device=device, ready=Ready(
            host=socket.gethostname(), record=record, images=images_digest(data)))

    def _permitted(self, model: ModelSettings) -> tuple[PermittedCode, ...]:
        if not names_code(model):
            return ()
        try:
            check_code(self._permit, model)
        except NotPermitted as error:
            raise NotPermitted(error.text, remedy=f"{socket.gethostname()} goes by its own {self._home.policy}: put"
                                                  " silo.toml and model_files of process 0's machine there.") from None
        return self._permit.code(self._home.model_files)

    def take_part(self, prepared: _Prepared, membership: Membership) -> None:
        """Trains with the others; what comes of it is process 0's to send."""
        order = prepared.call.task
        groups = carry_groups(None)
        frozen = groups.pop(FROZEN, None)
        trainer = build_trainer(load_trainer(order.method), order.method)
        kept = carry(None)
        build = model_builder(order.model, order.image, prepared.code,
                              frozen=None if frozen is None else frozen.tensors)
        asked = as_asked(order, settings=prepared.settings, groups=groups, device=prepared.device,
                         build=lambda: process_group.shared(build()), progress=self._progress)
        with process_group.together(membership.seen_by_torch):
            trainer.train(asked, prepared.data, loaded(kept, trainer.Memory) if kept else None)


def follow(place: Place, home: SiloHome) -> None:
    """Takes part in one group until it is over. Returns when process 0 has dismissed all others.

    Args:
        home: of the silo, whether or not this machine has it.
    Raises: SemisiloError and what else ends the group; this process must end then.
    """
    own_device(place)
    operations, meeting = FollowingOperations(place, home), Meeting(place)
    membership: Membership | None = None
    looked = 0.0
    while True:
        if time.monotonic() - looked > _WIDE_LOOK_SECONDS or membership is None:
            looked = time.monotonic()
            if meeting.heard("over") is not None:
                return
            if membership is None:
                membership = meeting.follow()
            elif why := membership.lost():
                _LOG.info("%s", why)
                _leave(LOST_PEER)
        call = None if membership is None else membership.next_call()
        if call is None or membership is None:
            time.sleep(_LOOK_SECONDS if membership is not None else 4 * _LOOK_SECONDS)
            continue
        try:
            prepared = operations.prepare(call)
        except Exception as error:
            membership.answer(Ready(host=socket.gethostname(), failure=describe(error)))
            continue
        if not membership.answer(prepared.ready):
            continue
        membership.working(True)
        try:
            operations.take_part(prepared, membership)
        except Exception as error:
            if isinstance(error, SemisiloError) or "gloo" not in str(error):
                membership.fail(describe(error))
            raise
        membership.working(False)


def _leave(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(status)  # a damaged device context, or a library that waits, must not hang the usual way out


def _main(parent: str, home: str) -> NoReturn:
    die_with_parent(int(parent))
    for number in (signal.SIGINT, signal.SIGTERM):  # the light process decides when this one ends
        signal.signal(number, signal.SIG_IGN)
    settle_allocator(arenas=1 + usable_processors())
    set_up_child_logging()
    found = place()
    assert found is not None, "this process was not started by torchrun"
    try:
        follow(found, SiloHome(Path(home)))
    except SemisiloError as error:
        _LOG.warning("process %d: %s", found.rank, error.line())
        _leave(1)
    except Exception as error:
        _LOG.warning("process %d: %s: %s", found.rank, type(error).__name__, " ".join(str(error).split())[:500])
        _LOG.debug("%s", traceback.format_exc())
        _leave(1)
    _leave(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
