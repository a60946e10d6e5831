"""What a study asks of its silos in a round, from the coordinator's own engine: the tasks, and no answer to them.

Before that round the other silos train as in any simulation. The probed site abstains until then: it comes new to the
study, so that nothing of its images is in the model that it is sent.

Tests: tests/semisilo/probe/test_probe.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from semisilo.common.errors import SemisiloError, UsageError
from semisilo.common.methods.spec import MEASURING
from semisilo.common.process.compute import OnProgress
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.silo.compute.images import SiloImages
from semisilo.silo.compute.messages import Train, Trained
from semisilo.simulation.dealing import Dealt
from semisilo.simulation.engines.one_process import InlineWorkplace
from semisilo.simulation.federation import SimulatedFederation, SimulationWatcher
from semisilo.simulation.folder import SimulationFolder, begin

__all__ = ["asked_of_silos"]


async def asked_of_silos(dealt: Dealt, folder: SimulationFolder, *, site: str, round: int, device: str,
                         progress: Callable[[float, str], None]) -> dict[str, Train]:
    """The training tasks of all silos that are asked in a round, by silo; among them is the site.

    Args:
        folder: of this simulation alone; what it holds is gone on with.
        round: the first one that may be taken; it is the first from there on in which the site is asked.
        device: "cpu" or "cuda"; empty: an accelerator where there is one.
    Raises: UsageError when the site is asked in no such round; SemisiloError for what ends the study before.
    """
    folder.folder.mkdir(parents=True, exist_ok=True)
    begin(folder, dealt, stamp="")
    ledger = Ledger(folder.ledger, waits=False)
    try:
        watcher = _Watcher(progress, round)
        workplace = _Watching(dealt.silos_images(), ledger, study=dealt.study.name, silos=dealt.silos, site=site,
                              round=round, device=device)
        federation = SimulatedFederation(dealt, folder, ledger, device=device, watcher=watcher)
        if not federation.open():
            raise _never_asked(site, round)
        running = asyncio.ensure_future(federation.run(workplace))
        there = asyncio.ensure_future(workplace.complete.wait())
        try:
            await asyncio.wait({running, there}, return_when=asyncio.FIRST_COMPLETED)
            if not there.done():
                running.result()
                raise _never_asked(site, round)
        finally:
            for each in (running, there):
                each.cancel()
            await asyncio.gather(running, there, return_exceptions=True)
            await workplace.close()
        return dict(sorted(workplace.asked.items()))
    finally:
        ledger.close()


def _never_asked(site: str, round: int) -> SemisiloError:
    return UsageError(f"The study asks {site} for nothing in round {round} or later.",
                      remedy="Choose an earlier --round, or another --silo.")


class _Watching:
    """A workplace (`semisilo.simulation.silos.Workplace`) where silos train until the round comes; from then on it
    keeps what they are asked, and nobody gets an answer."""

    def __init__(self, images: Sequence[SiloImages], ledger: Ledger, *, study: str, silos: Sequence[str], site: str,
                 round: int, device: str) -> None:
        self._training = InlineWorkplace(images, device=device)
        self._ledger, self._study, self._silos = ledger, study, silos
        self._site, self._round = site, round
        self.asked: dict[str, Train] = {}
        self.complete = asyncio.Event()

    @property
    def room(self) -> int:
        """All at once: their tasks are what is wanted."""
        return len(self._silos)

    async def train(self, request: Train, *, on_progress: OnProgress | None = None) -> Trained:
        """See `semisilo.simulation.silos.Workplace.train`."""
        task = request.task
        if task.phase in MEASURING:
            return await self._training.train(request, on_progress=on_progress)
        now = self._ledger.last_round(self._study)
        assert now is not None, "there is no task without a round"
        asked = self._ledger.task_states(self._study, now.number, now.phase)
        if task.round < self._round or self._site not in asked:
            if task.silo == self._site:
                return Trained(payload=None, abstention="not_there_yet", metrics={}, memory=None, residuals=None,
                               seconds=0.0)
            return await self._training.train(request, on_progress=on_progress)
        self.asked[task.silo] = request
        if self.asked.keys() >= set(asked):
            self.complete.set()
        await asyncio.Event().wait()  # until the simulation is ended
        raise AssertionError("nobody sets it")

    async def close(self) -> None:
        """See `semisilo.simulation.silos.Workplace.close`."""
        await self._training.close()


class _Watcher(SimulationWatcher):
    """Tells how far the rounds before are."""

    def __init__(self, progress: Callable[[float, str], None], round: int) -> None:
        self._progress = progress
        self._round = round

    def progress(self, ledger: Ledger, study: str, text: str, fraction: float) -> None:
        """See `SimulationWatcher.progress`."""
        last = ledger.last_round(study)
        number = 0 if last is None else last.number
        self._progress(min(1.0, number / self._round), f"round {number} of the study: {text}" if text else "")
