"""What process 0 of a torchrun shares with the others, and what it says when one of them cannot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadData, ComputeFailed, NotPermitted, ProcessGroupLost
from semisilo.common.methods.contract import Meaning, SiloData, TensorGroup
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.models.own.model_file import ModelFile, digest_of_file
from semisilo.common.payload.torch_tensors import decode_groups
from semisilo.common.process.compute import ProcessCompute
from semisilo.common.process.compute_process import unusable_after
from semisilo.common.process.messages import Failure
from semisilo.common.process.torchrun import TOKEN, Place
from semisilo.silo.compute import leader, rendezvous
from semisilo.silo.compute.follower import FollowingOperations
from semisilo.silo.compute.leader import images_digest
from semisilo.silo.compute.messages import Dismiss, Dismissed, Trained
from semisilo.silo.compute.rendezvous import GroupCall, Meeting, Membership, Ready, own_device
from semisilo.silo.site.home import JoinChoice, SiloHome
from tests.each_of import each_of
from tests.silo.compute.test_operations import Site, digits, operations, site  # noqa: F401 - fixtures

RECORD = NumericsRecord(device="cpu", torch="2.9", cpu_capability="AVX2", threads=1, deterministic=True)
PLACE = Place(rank=1, size=2, local_rank=1, local_size=2, address="localhost", port=1, kept_by_torchrun=True)
OWN = Ready(host="node0", record=RECORD, images="00")


@each_of(("ready", "error", "text"), [
    (replace(OWN, host="node1", images="01"), BadData, "on node1, reads other images than process 0 on node0"),
    (replace(OWN, host="node1", record=replace(RECORD, torch="2.8")), BadConfiguration, "computes differently"),
    (Ready(host="node1", failure=Failure(code="BAD_DATA", text="/scans: no such folder.")), BadData,
     "Process 1 of this silo: /scans: no such folder."),
    (Ready(host="node1", failure=Failure(code="COMPUTE_FAILED", text="KeyError: 1", details="Traceback")),
     ComputeFailed, "Process 1 of this silo: KeyError: 1")])
def test_a_process_that_would_compute_something_else_is_named(ready: Ready, error: type[Exception], text: str) -> None:
    assert leader._problem(1, OWN, OWN) is None
    found = leader._problem(1, ready, OWN)
    assert type(found) is error
    assert text in str(found)
    assert found.words_of_others is (ready.failure is not None and bool(ready.failure.details)), (
        "what nobody foresaw may hold anything, as in process 0, where the coordinator hears its class alone")


def test_images_that_differ_in_a_pixel_or_a_label_have_another_digest() -> None:
    pixels = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    images = ImageSet(pixels, torch.tensor([0, 1, 2]), ("a", "b", "c"))
    other = pixels.clone()
    other[2, 0, 3, 3] = 1
    found = [images_digest(SiloData(labelled=labelled, unlabelled=unlabelled)) for labelled, unlabelled in (
        (images, None), (None, images), (replace(images, labels_N=torch.tensor([0, 1, 1])), None),
        (replace(images, images_NCHW=other), None))]
    assert len(set(found)) == 4
    relabelled = replace(images, images_NCHW=pixels.clone(), labels_N=torch.tensor([0, 1, 1]))
    assert images_digest(SiloData(labelled=relabelled, unlabelled=None)) == found[2], "read anew, the same digest"
    assert images_digest(SiloData(labelled=replace(images, images_NCHW=pixels.clone()), unlabelled=None)) == found[0]


def test_more_processes_than_gpus_are_refused_with_the_number_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    place: Any = SimpleNamespace(local_rank=1, local_size=2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadConfiguration, match="1 GPUs for 2 processes") as refused:
        own_device(place)
    assert "--nproc-per-node 1" in refused.value.remedy


def test_tasks_that_are_not_shared_say_why() -> None:
    asked: Any = SimpleNamespace(phase="train", private=None)
    assert leader._alone(asked) == ""
    asked.phase = "statistics"
    assert "statistics" in leader._alone(asked)
    asked.phase, asked.private = "train", object()
    assert "differential privacy" in leader._alone(asked)


def test_groups_go_from_one_process_to_another_with_all_that_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second process: what the first sends is given to the receiving half."""
    sent: list[bytes] = []
    monkeypatch.setattr(rendezvous, "carry", lambda content: sent.append(content) or content if content else sent[0])
    groups = {"model": TensorGroup({"a/b": torch.randn(2, 3), "c": torch.zeros(())}),
              "helper_psi/0": TensorGroup({"a": torch.ones(2, dtype=torch.bfloat16)}, Meaning.OVERWRITE, "be", "da"),
              "nothing": TensorGroup({})}
    rendezvous.carry_groups(groups)
    found = rendezvous.carry_groups(None)
    assert list(found) == list(groups)
    for name, group in groups.items():
        assert (found[name].meaning, found[name].base, found[name].digest) == (group.meaning, group.base, group.digest)
        assert found[name].tensors.keys() == group.tensors.keys()
        assert all(torch.equal(tensor, found[name].tensors[key]) for key, tensor in group.tensors.items())


class Store:
    """Of a torchrun, and who meets there: two processes of a silo, and whoever else reaches the port. It is torch's, in
    memory: a connection to one with a port takes seconds now and then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raw = HashStore()
        """As whoever reaches the port has it."""
        monkeypatch.setattr(rendezvous, "TCPStore", lambda *where, **how: self.raw)
        monkeypatch.setattr(rendezvous, "PrefixStore", lambda prefix, store: store)
        monkeypatch.setattr(Membership, "_watch", lambda self: None)
        self.place = replace(PLACE, rank=0, token="the token of this silo")
        self.first, self.second = Meeting(self.place), Meeting(replace(self.place, rank=1))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(monkeypatch)


def test_what_a_stranger_has_written_into_the_store_is_refused_in_one_line_that_says_what_to_do(store: Store) -> None:
    store.first.say("over", "yes")
    written = store.raw.get("over")
    assert store.second.heard("over") == "yes"
    assert store.second.heard("9/start") is None
    for key, forged in (("over", b"yes"), ("over", b""), ("over", b"\xff" * 80), ("over", b"0" * 64 + b"yes"),
                        ("over", written[:-1]), ("1/start", written)):
        store.raw.set(key, forged)
        with pytest.raises(ProcessGroupLost) as refused:
            store.second.heard(key)
        assert f"localhost:{store.place.port} has as '{key}'" in refused.value.text
        assert f"${TOKEN}, or torchrun.token" in refused.value.remedy
        assert "\n" not in refused.value.line()
    store.raw.set("over", written)
    assert store.second.heard("over") == "yes"


def test_a_process_with_another_token_is_in_no_group(store: Store) -> None:
    """Nor does it follow one: `carry_groups` and what comes behind it belong to a group."""
    Meeting(replace(store.place, rank=1, token="what a stranger guesses"))
    with pytest.raises(ProcessGroupLost, match="'present/1' was not written by a process of this silo"):
        store.first.gather(seconds=60, waits_for=lambda rank: None)
    stranger = Meeting(replace(store.place, token="what a stranger guesses"))
    stranger.begin([stranger.number, store.second.number])
    with pytest.raises(ProcessGroupLost, match="'1/members' was not written"):
        store.second.follow()


def test_what_was_said_in_a_group_is_nothing_in_another(store: Store) -> None:
    """Whoever reads the store may keep it, and write it down again once the processes have begun anew."""
    first, second = (Membership(meeting, 1, ["a", "b"]) for meeting in (store.first, store.second))
    first.go(True)
    assert second._when("go/0") == "yes"
    later = Membership(store.second, 1, ["a", "c"])
    with pytest.raises(ProcessGroupLost, match="'1/go/0' was not written"):
        later._when("go/0")


def test_a_group_is_lost_to_whom_a_stranger_interrupts(store: Store) -> None:
    group = Membership(store.second, 0, [store.first.number, store.second.number])
    assert group.lost() == ""
    store.raw.set("present/1", "a stranger")
    assert "'present/1' was not written by a process of this silo" in group.lost()


def test_after_a_call_that_a_stranger_interrupts_the_group_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may wait for the rest of that call, and this process would wait for their answers to the next."""
    def interrupted(*words: object) -> None:
        raise ProcessGroupLost("not written by a process of this silo")

    leading: Any = leader.LeadingOperations.__new__(leader.LeadingOperations)
    leading._membership, leading._progress = SimpleNamespace(lost=lambda: ""), lambda fraction, text: None
    monkeypatch.setattr(leading, "_make_ready", interrupted)
    asked: Any = SimpleNamespace(phase="train", private=None)
    with pytest.raises(ProcessGroupLost) as lost:
        leading._trained(None, asked, None, None, given=None)
    assert unusable_after(lost.value)


def own_network(site: Site, folder: Path) -> str:  # noqa: F811
    """Has the site's study build its network with a file; returns the line of silo.toml that permits it."""
    folder.mkdir()
    (folder / "net.py").write_text(
        "from semisilo.common.methods.contract import ModelSettings\n"
        "from semisilo.common.models.factory import build_model\n\n\n"
        "def build(num_classes, channels, size):\n"
        "    settings = ModelSettings(name='small_cnn', classes=tuple(map(str, range(num_classes))))\n"
        "    return build_model(settings, channels=channels, size=size)\n")
    digest = digest_of_file(folder / "net.py")
    site.spec = replace(site.spec, model=replace(site.spec.model, name="net.py:build", factory_sha256=digest))
    return f'[permit]\nmodel_files = ["{digest}"]\n'


def test_code_builds_a_network_only_where_the_machines_own_silo_toml_permits_it(
        site: Site, tmp_path: Path) -> None:  # noqa: F811
    """Process 0 has no word in that: a call has nothing that names code beside the study's network."""
    assert {field.name for field in fields(GroupCall)} == {"task", "choice", "images_folder"}
    home = SiloHome(tmp_path / "home")
    line = own_network(site, home.folder)
    home.model_files.mkdir()
    (home.folder / "net.py").rename(home.model_files / "net.py")
    call = GroupCall(task=site.spec, choice=JoinChoice(source=site.source), images_folder=None)
    for content in ("", '[permit]\nmodel_files = ["' + "b" * 64 + '"]\n'):
        home.policy.write_text(content)
        with pytest.raises(NotPermitted, match=r"does not permit the file 'net\.py'") as refused:
            FollowingOperations(PLACE, home).prepare(call)
        assert f"{socket.gethostname()} goes by its own {home.policy}" in refused.value.remedy
        assert "\n" not in refused.value.line()
    home.policy.write_text(line)
    prepared = FollowingOperations(PLACE, home).prepare(call)
    assert prepared.code == (ModelFile(home.model_files, site.spec.model.factory_sha256),)
    home.policy.write_text("no policy at all")
    plain = replace(site.spec, model=replace(site.spec.model, name="small_cnn", factory_sha256=""))
    assert FollowingOperations(PLACE, home).prepare(replace(call, task=plain)).code == (), "what is not asked for"


class Two:
    """Process 0 and process 1 as torchrun would start them, without a torchrun; process 1 is started again when it
    ends, as `semisilo.silo.compute.torchrun` does it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self._home = home
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._environment = {"TORCHELASTIC_RUN_ID": "test", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                             "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                             TOKEN: "the token of this silo"}
        for name, value in self._environment.items():
            monkeypatch.setenv(name, value)
        self.statuses: list[int] = []
        """Of the processes 1 that have ended."""
        self._follower: subprocess.Popen[bytes] | None = None
        self._over = False
        self._thread = threading.Thread(target=self._look_after)
        self._thread.start()

    def _look_after(self) -> None:
        while not self._over and 0 not in self.statuses:
            self._follower = subprocess.Popen(
                [sys.executable, "-P", "-m", "semisilo.silo.compute.follower", str(os.getpid()), str(self._home)],
                env={**os.environ, **self._environment, "RANK": "1", "LOCAL_RANK": "1"})
            self.statuses.append(self._follower.wait())

    def kill(self) -> None:
        assert self._follower is not None
        self._follower.kill()

    def stop(self) -> None:
        self._over = True
        self.kill()
        self._thread.join()


@pytest.mark.slow
def test_two_processes_do_a_task_as_one_does_and_when_one_is_killed_do_it_again(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Tolerance: of an element of the update, 1e-5 of the largest."""
    alone = operations().train(site.request())

    def update(trained: Trained) -> torch.Tensor:
        assert trained.payload is not None
        groups = decode_groups(site.outgoing.path(trained.payload.digest), require_finite=True)
        return torch.cat([tensor.flatten() for tensor in groups["model"].tensors.values()])

    async def work() -> None:
        two, compute = Two(monkeypatch, tmp_path), ProcessCompute("semisilo.silo.compute.leader:LeadingOperations")
        try:
            trained = await compute.call(site.request())
            assert trained.processes == 2
            assert (trained.num_examples, trained.metrics.keys()) == (alone.num_examples, alone.metrics.keys())
            ours, theirs = update(alone), update(trained)
            assert 0 < float((ours - theirs).abs().max()) < 1e-5 * float(ours.abs().max())
            assert (await compute.call(site.request())).payload == trained.payload, "the same bits again"
            two.kill()
            losses, again = 0, None
            while again is None:
                try:
                    again = await compute.call(site.request())
                except ProcessGroupLost:
                    losses += 1
            assert losses > 0
            assert again.payload == trained.payload
            assert await compute.call(Dismiss()) == Dismissed()
            while 0 not in two.statuses:
                await asyncio.sleep(0.05)
        finally:
            await compute.close()
            two.stop()

    asyncio.run(asyncio.wait_for(work(), 500))


@pytest.mark.slow
def test_a_network_of_a_file_is_trained_by_two_processes_once_both_permit_it(
        site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    line = own_network(site, tmp_path / "model_files")
    request = site.request(factories=(ModelFile(tmp_path / "model_files", site.spec.model.factory_sha256),))

    async def work() -> None:
        two, compute = Two(monkeypatch, tmp_path), ProcessCompute("semisilo.silo.compute.leader:LeadingOperations")
        try:
            with pytest.raises(NotPermitted, match=r"Process 1 of this silo: .* does not permit the file 'net\.py'"):
                await compute.call(request)
            (tmp_path / "silo.toml").write_text(line)
            two.kill()
            trained = None
            while trained is None:
                with contextlib.suppress(ProcessGroupLost):
                    trained = await compute.call(request)
            assert trained.processes == 2
        finally:
            await compute.close()
            two.stop()

    asyncio.run(asyncio.wait_for(work(), 500))
