"""What process 0 of a torchrun shares with the others, and what it says when one of them cannot."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadData, ComputeFailed, ProcessGroupLost
from semisilo.common.methods.contract import Meaning, SiloData, TensorGroup
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.payload.torch_tensors import decode_groups
from semisilo.common.process.compute import ProcessCompute
from semisilo.common.process.messages import Failure
from semisilo.silo.compute import leader, rendezvous
from semisilo.silo.compute.leader import images_digest
from semisilo.silo.compute.messages import Dismiss, Dismissed, Trained
from semisilo.silo.compute.rendezvous import Ready, own_device
from tests.each_of import each_of
from tests.silo.compute.test_operations import Site, digits, operations, site  # noqa: F401 - fixtures

RECORD = NumericsRecord(device="cpu", torch="2.9", cpu_capability="AVX2", threads=1, deterministic=True)
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


class Two:
    """Process 0 and process 1 as torchrun would start them, without a torchrun; process 1 is started again when it
    ends, as `semisilo.silo.compute.torchrun` does it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._environment = {"TORCHELASTIC_RUN_ID": "test", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                             "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
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
                [sys.executable, "-P", "-m", "semisilo.silo.compute.follower", str(os.getpid())],
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
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Tolerance: of an element of the update, 1e-5 of the largest."""
    alone = operations().train(site.request())

    def update(trained: Trained) -> torch.Tensor:
        assert trained.payload is not None
        groups = decode_groups(site.outgoing.path(trained.payload.digest), require_finite=True)
        return torch.cat([tensor.flatten() for tensor in groups["model"].tensors.values()])

    async def work() -> None:
        two, compute = Two(monkeypatch), ProcessCompute("semisilo.silo.compute.leader:LeadingOperations")
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
