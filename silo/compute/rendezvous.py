"""How the processes that torchrun has started for one silo find each other, and what they say.

They meet at torchrun's key-value store. Every process that is ready to train writes down that it is present, by a
number that it has drawn; process 0, when it has a task, writes down the next group: the numbers of those that shall be
in it, who say that they are here. A process is in one group in its life. So a group is over as soon as a process of it
has another number, or a later group is there, and whoever notices ends; the light process above it starts a fresh one.

Whoever reaches torchrun's port may write there. So each text that is written begins with a tag: an HMAC, by the token
that the processes share, of the key and the text, and inside a group of its members' numbers, so that what was said in
an earlier group is nothing in a later one. What has another tag is refused. The counter `groups` and the tensors have
none.

Keys: `present/RANK`, `groups` (how many there were), `GROUP/members`, `GROUP/here/RANK`, `GROUP/start`,
`GROUP/call/N`, `GROUP/ready/N/RANK`, `GROUP/go/N`, `GROUP/failed/RANK`, `over`. Tensors go by broadcast, as
safetensors; nothing is pickled.

Tests: tests/silo/compute/test_leader.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import BadConfiguration, ProcessGroupLost
from semisilo.common.methods.contract import Meaning, TaskSpec, TensorGroup
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.numerics.process_group import ProcessGroup
from semisilo.common.process.compute_process import LOST_PEER
from semisilo.common.process.messages import Failure
from semisilo.common.process.torchrun import TOKEN, Place
from semisilo.common.storage import checkpoint
from semisilo.silo.site.home import JoinChoice

__all__ = ["COLLECTIVE_SECONDS", "GroupCall", "Meeting", "Membership", "Ready", "carry", "carry_groups", "own_device"]

_LOG = logging.getLogger("semisilo.work")

COLLECTIVE_SECONDS = 300.0
"""How long a process waits for the others inside a step. Reading images, which may take hours, is not inside one."""
_CONNECT_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_WATCH_SECONDS = 1.0
_GRACE_SECONDS = 15.0
"""After a member is seen to be gone: a library that notices it by itself says more."""
_TAG_DIGITS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCall:
    """A task that all processes shall train: what follows of it without its tensors, and without what code may run,
    which every machine knows from its own silo.toml."""

    task: TaskSpec
    """With the threads that process 0 has found."""
    choice: JoinChoice
    images_folder: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """What a process says before a call begins."""

    host: str
    record: NumericsRecord | None = None
    images: str = ""
    """SHA-256 of the images and labels that it would train on."""
    failure: Failure | None = None
    """Why it cannot."""


@dataclass(frozen=True, kw_only=True)
class _Carried:
    """Tensor groups as they go from process 0 to the others."""

    groups: list[dict[str, str]]
    """Name, meaning, base and digest of each."""
    tensors: dict[str, Tensor]
    """By "NUMBER/NAME"."""


class Meeting:
    """The store at which the processes meet, seen from one of them."""

    def __init__(self, place: Place) -> None:
        """Raises: ProcessGroupLost when there is none at the place's address."""
        assert place.token, "silo join finds the token before it starts a process that meets others"
        self.place = place
        self.number = secrets.token_hex(8)
        """Of this process."""
        try:
            self._store = PrefixStore("semisilo", TCPStore(
                place.address, place.port, is_master=place.rank == 0 and not place.kept_by_torchrun,
                wait_for_workers=False, timeout=timedelta(seconds=_CONNECT_SECONDS)))
        except (RuntimeError, ValueError) as error:
            raise ProcessGroupLost(f"torchrun's store at {place.address}:{place.port} does not answer:"
                                   f" {' '.join(str(error).split())[:200]}") from error
        self.say(f"present/{place.rank}", self.number)

    def say(self, key: str, text: str, *, among: str = "") -> None:
        """Writes a key.

        Args:
            among: the numbers of those to whom it says something; empty for all.
        """
        self._store.set(key, self._tag(key, text, among) + text)

    def heard(self, key: str, *, among: str = "") -> str | None:
        """What a key says; None where it was not written. Raises: ProcessGroupLost where no process of this silo has
        written it, or it has said it to others than those `among` whom this one is."""
        if not self._store.check([key]):
            return None
        found = self._store.get(key).decode(errors="replace")
        tag, text = found[:_TAG_DIGITS], found[_TAG_DIGITS:]
        if not hmac.compare_digest(tag.encode(), self._tag(key, text, among).encode()):
            raise ProcessGroupLost(
                f"What torchrun's store at {self.place.address}:{self.place.port} has as '{key}' was not written by a"
                " process of this silo that trains with this one.",
                remedy=f"Either the machines have different tokens (${TOKEN}, or torchrun.token in the silo's folder)"
                       " or versions, or somebody else reaches that port.")
        return text

    def _tag(self, key: str, text: str, among: str) -> str:
        said = "\0".join((key, among, text))  # no key and no number has a zero in it
        return hmac.new(self.place.token.encode(), said.encode(), hashlib.sha256).hexdigest()

    def unsay(self, key: str) -> None:
        """Removes a key."""
        self._store.delete_key(key)

    def groups(self) -> int:
        """How many groups there were."""
        return int(self._store.add("groups", 0))

    def begin(self, members: list[str]) -> int:
        """Writes the next group down; returns its number, from 1."""
        number = self.groups() + 1
        self.say(f"{number}/members", json.dumps(members))
        self._store.add("groups", 1)
        return number

    def gather(self, *, seconds: float, waits_for: Callable[[int], None]) -> Membership:
        """Begins a group with all other processes, as soon as they are there; for process 0.

        Args:
            seconds: how long to wait for them.
            waits_for: told the rank of one that has not come yet, again and again.
        Raises: ProcessGroupLost when one does not come.
        """
        until, members, group = time.monotonic() + seconds, [""], 0
        while True:
            present = [self.heard(f"present/{rank}") for rank in range(self.place.size)]
            missing = present.index(None) if None in present else -1
            if missing < 0:
                if present != members:  # what stood there may be the number of a process that is gone
                    members = [str(each) for each in present]
                    group = self.begin(members)
                missing = next((rank for rank in range(1, self.place.size)
                                if self.heard(f"{group}/here/{rank}") is None), -1)
                if missing < 0:
                    self.say(f"{group}/start", "yes")
                    return self._joined(group, members)
            if time.monotonic() > until:
                raise ProcessGroupLost(f"Process {missing} of the {self.place.size} of this silo has not come within"
                                       f" {seconds:.0f} s.", remedy="Is torchrun running on every machine?")
            waits_for(missing)
            time.sleep(_LOOK_SECONDS)

    def follow(self) -> Membership | None:
        """The newest group, once it starts; None where this process is not to be in it, or another one comes first.

        Raises: ProcessGroupLost.
        """
        group = self.groups()
        members = [str(each) for each in json.loads(self.heard(f"{group}/members") or "[]")]
        if len(members) != self.place.size or members[self.place.rank] != self.number:
            return None
        self.say(f"{group}/here/{self.place.rank}", "yes")
        while self.heard(f"{group}/start") is None:
            if self.groups() != group:
                return None
            time.sleep(_LOOK_SECONDS)
        return self._joined(group, members)

    def _joined(self, group: int, members: list[str]) -> Membership:
        place, cuda = self.place, torch.cuda.is_available()
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo", store=PrefixStore(f"{group}/group", self._store),
                rank=place.rank, world_size=place.size, timeout=timedelta(seconds=COLLECTIVE_SECONDS))
        except RuntimeError as error:
            raise ProcessGroupLost(f"The {place.size} processes of this silo do not come together:"
                                   f" {' '.join(str(error).split())[:200]}") from error
        return Membership(self, group, members)


class Membership:
    """One group, seen from a member."""

    def __init__(self, meeting: Meeting, group: int, members: list[str]) -> None:
        self._meeting = meeting
        self._group = group
        self._members = members
        self._calls = 0
        self._working = threading.Event()
        self.seen_by_torch = ProcessGroup(rank=meeting.place.rank, size=meeting.place.size)
        threading.Thread(target=self._watch, daemon=True).start()

    def lost(self) -> str:
        """Which member is gone, or what else has ended the group, in words; empty while it is whole."""
        if self._meeting.groups() != self._group:
            return "process 0 has begun anew"
        for rank, number in enumerate(self._members):
            try:
                found = self._meeting.heard(f"present/{rank}")
            except ProcessGroupLost as error:
                return error.line()
            if found != number:
                return f"process {rank} has ended"
        return ""

    def failure(self) -> tuple[int, Failure] | None:
        """What another process has failed of, with its rank. Raises: ProcessGroupLost."""
        for rank in range(len(self._members)):
            if rank != self._meeting.place.rank and (text := self._heard(f"failed/{rank}")):
                return rank, from_dict(Failure, json.loads(text))
        return None

    def fail(self, failure: Failure) -> None:
        """Says what this process has failed of."""
        self._say(f"failed/{self._meeting.place.rank}", json.dumps(to_dict(failure)))

    # Calls: of process 0 ----------------------------------------------------------------------------------------------

    def call(self, call: GroupCall) -> None:
        """Asks all others to make ready for a task."""
        if (heard := self._calls - 1) > 0:  # who has answered the last call has heard all that was said of this one
            for key in (f"call/{heard}", f"go/{heard}", *(
                    f"ready/{heard}/{rank}" for rank in range(1, len(self._members)))):
                self._meeting.unsay(f"{self._group}/{key}")
        self._calls += 1
        self._say(f"call/{self._calls}", json.dumps(to_dict(call)))

    def ready(self, rank: int) -> Ready:
        """What a process has answered, as soon as it has. Raises: ProcessGroupLost."""
        return from_dict(Ready, json.loads(self._when(f"ready/{self._calls}/{rank}")))

    def go(self, begins: bool) -> None:
        """Tells all others whether the call begins."""
        self._say(f"go/{self._calls}", "yes" if begins else "no")

    # Calls: of the others ---------------------------------------------------------------------------------------------

    def next_call(self) -> GroupCall | None:
        """The next task, if there is one already. Raises: ProcessGroupLost."""
        text = self._heard(f"call/{self._calls + 1}")
        if text is None:
            return None
        self._calls += 1
        return from_dict(GroupCall, json.loads(text))

    def answer(self, ready: Ready) -> bool:
        """Says that this process is ready, or why not; returns whether the call begins. Raises: ProcessGroupLost."""
        self._say(f"ready/{self._calls}/{self._meeting.place.rank}", json.dumps(to_dict(ready)))
        return self._when(f"go/{self._calls}") == "yes"

    def working(self, now: bool) -> None:
        """To be told before and after what the processes do in step: whoever waits there cannot look around."""
        if now:
            self._working.set()
        else:
            self._working.clear()

    def _say(self, key: str, text: str) -> None:
        self._meeting.say(f"{self._group}/{key}", text, among="".join(self._members))

    def _heard(self, key: str) -> str | None:
        return self._meeting.heard(f"{self._group}/{key}", among="".join(self._members))

    def _when(self, key: str) -> str:
        looked = time.monotonic()
        while (text := self._heard(key)) is None:
            if time.monotonic() - looked > _WATCH_SECONDS:
                looked = time.monotonic()
                if why := self.lost():
                    raise ProcessGroupLost(f"Of the {len(self._members)} processes of this silo one is lost: {why}.",
                                           remedy="The task is done again.")
            time.sleep(_LOOK_SECONDS)
        return text

    def _watch(self) -> None:
        """Ends this process when it waits for another that is gone: some libraries would wait for ever."""
        while True:
            time.sleep(_WATCH_SECONDS)
            if not self._working.is_set():
                continue
            try:
                why = self.lost()
            except RuntimeError as error:
                why = f"torchrun's store does not answer: {error}"
            if why:
                time.sleep(_GRACE_SECONDS)
                if self._working.is_set():
                    _LOG.error("%s; this process waits for it, and ends", why)
                    logging.shutdown()
                    os._exit(LOST_PEER)


def own_device(place: Place) -> None:
    """Has torch use this process's GPU, where the machine has any. Raises: BadConfiguration when there are fewer than
    processes."""
    if not torch.cuda.is_available():
        return
    if (count := torch.cuda.device_count()) < place.local_size:
        raise BadConfiguration(f"{socket.gethostname()} has {count} GPUs for {place.local_size} processes.",
                               remedy=f"Start torchrun with --nproc-per-node {count}.")
    torch.cuda.set_device(place.local_rank)


def carry(content: bytes | None) -> bytes:
    """The bytes that process 0 gives, in every process; the others give None."""
    length = torch.tensor([len(content or b"")])
    dist.broadcast(length, src=0)
    block = torch.empty(int(length), dtype=torch.uint8) if content is None else torch.frombuffer(
        bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    if len(block):
        dist.broadcast(block, src=0)
    return block.numpy().tobytes()


def carry_groups(groups: Mapping[str, TensorGroup] | None) -> dict[str, TensorGroup]:
    """The tensor groups that process 0 gives, in every process; the others give None."""
    if groups is not None:
        carry(saved(_Carried(
            groups=[{"name": name, "meaning": group.meaning.value, "base": group.base, "digest": group.digest}
                    for name, group in groups.items()],
            tensors={f"{number}/{name}": tensor for number, group in enumerate(groups.values())
                     for name, tensor in group.tensors.items()})))
        return dict(groups)
    carried: _Carried = loaded(carry(None), _Carried)
    tensors: list[dict[str, Tensor]] = [{} for _ in carried.groups]
    for key, tensor in carried.tensors.items():
        number, _, name = key.partition("/")
        tensors[int(number)][name] = tensor
    return {each["name"]: TensorGroup(found, Meaning(each["meaning"]), each["base"], each["digest"])
            for each, found in zip(carried.groups, tensors, strict=True)}


def saved(state: Any) -> bytes:
    """A frozen dataclass with tensors as the bytes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        checkpoint.save(path, state, named=False)
        return path.read_bytes()


def loaded(content: bytes, cls: Any) -> Any:
    """What `saved` was given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        path.write_bytes(content)
        return checkpoint.load(path, cls)
