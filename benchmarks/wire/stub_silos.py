"""Many silos in one process, for measuring a coordinator: real agents, links, certificates and files; no training.

    python -m benchmarks.wire.stub_silos HOMES silo-000 silo-001 ...

Each silo is the agent of `silo join` with its own connection over mutual TLS. Only what its compute process would do
is done here, without torch: an update of noise that is the same in every round. Runs until it is ended by a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import zlib
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from semisilo.common.methods.contract import Meaning, TensorSpec
from semisilo.common.payload.codec import Bits
from semisilo.common.payload.reader import read_manifest
from semisilo.common.payload.writer import EncodedInput, TensorInput, write_payload
from semisilo.common.process.compute import OnProgress
from semisilo.common.process.messages import Request
from semisilo.common.rpc.meter import MessageMeter
from semisilo.common.storage.store import PayloadStore
from semisilo.silo.agent.agent import Agent
from semisilo.silo.compute.messages import Survey, Surveyed, Train, Trained
from semisilo.silo.link.link import Link
from semisilo.silo.link.traffic import Carried
from semisilo.silo.membership.enrollment import open_channel
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.identity_store import load_identity
from semisilo.silo.site.policy import load_policy

__all__ = ["NoDisplay", "NoTraffic", "StubCompute", "run_silos"]

T = TypeVar("T")

_IMAGES = 4


class StubCompute:
    """Answers for a silo's compute process: images that nobody reads, an update without training."""

    async def call(self, request: Request[T], *, on_progress: OnProgress | None = None) -> T:
        """See `semisilo.common.process.compute.Compute.call`; `Survey` and `Train` as
        `semisilo.silo.compute.operations.Operations` answers them."""
        answer: object = Surveyed(labelled=0, unlabelled=_IMAGES)
        if not isinstance(request, Survey):
            assert isinstance(request, Train), request
            answer = await asyncio.to_thread(_update, request)
        return cast(T, answer)

    async def abort(self) -> None:
        """There is nothing to end."""

    async def close(self) -> None:
        """There is nothing to end."""


class NoDisplay:
    """Shows nothing."""

    def event(self, text: str) -> None:
        """Says nothing."""

    def state(self, text: str) -> None:
        """Says nothing."""

    def progress(self, what: str, fraction: float, text: str = "") -> None:
        """Says nothing."""

    def done(self) -> None:
        """Says nothing."""

    def close(self) -> None:
        """Says nothing."""


class NoTraffic:
    """Counts nothing: the sockets of one process cannot be told apart here, and the coordinator counts them anyway."""

    def __init__(self) -> None:
        self.messages = MessageMeter()

    def total(self) -> Carried:
        """Nothing."""
        return Carried()

    def close(self) -> None:
        """There is nothing to let go of."""


async def run_silos(homes: Path, names: list[str]) -> None:
    """Runs agents until they are cancelled; all of them end when one fails."""
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(_silo(SiloHome(homes / name), name))


async def _silo(home: SiloHome, name: str) -> None:
    identity = load_identity(home.folder)
    traffic: Any = NoTraffic()
    link = Link(lambda: open_channel(identity, use_http_proxy=False), silo=name, messages=traffic.messages)
    agent = Agent(home=home, silo=name, address=identity.address, federation=identity.federation,
                  policy=load_policy(home.policy),
                  choice=JoinChoice(source="stub", on_error="stop"), link=link, compute=StubCompute(),
                  display=NoDisplay(), traffic=traffic, renew=_never)
    try:
        await agent.run()
    finally:
        await link.close()


async def _never() -> None:
    """Certificates outlive a measurement."""


def _update(request: Train) -> Trained:
    """An update in the layout of the payload that came: noise, as a difference to the model of the task."""
    task = request.task
    (reference,) = task.payloads
    (group,) = read_manifest(request.payloads[reference.digest])
    payload = write_payload(PayloadStore(request.outgoing_folder), {group.name: EncodedInput(
        [TensorInput(spec, partial(_noise, spec, task.silo)) for spec in group.tensors], meaning=Meaning.DIFFERENCE,
        base=reference.tensors)})
    return Trained(payload=payload, num_examples=_IMAGES, metrics={}, memory=None, residuals=None, seconds=0.0)


@lru_cache(maxsize=64)
def _normal(count: int) -> NDArray[np.float32]:
    """(count,) standard normal."""
    return np.random.default_rng(1).standard_normal(count, dtype=np.float32)


def _noise(spec: TensorSpec, silo: str) -> Bits:
    """(n,) little-endian bits of float32 noise of a silo's own: equal files would be sent once."""
    factor = 1e-3 * (1 + zlib.crc32(silo.encode()) / 2**32)
    bits: Bits = (_normal(spec.num_elements) * np.float32(factor)).view("<u4")
    return bits


async def _until_signal(homes: Path, names: list[str]) -> None:
    running = asyncio.ensure_future(run_silos(homes, names))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(_until_signal(Path(sys.argv[1]), sys.argv[2:]))
