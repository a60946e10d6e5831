"""Runs a study with simulated silos, or goes on with one: `semisilo simulate`, and the same from Python.

Killed at any instant, the same call goes on and gives the same bits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from semisilo.common.errors import UsageError
from semisilo.common.models.own.given import GIVEN, CannotBePacked, packed
from semisilo.common.process.turns import one_simulation
from semisilo.common.storage.durable import without_waiting
from semisilo.common.text.cli_errors import Terminated
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.studies.study_file import check_participation
from semisilo.simulation.dealing import Dealt, deal_study
from semisilo.simulation.federation import SimulatedFederation, SimulationWatcher
from semisilo.simulation.folder import SimulationFolder, begin, holds
from semisilo.simulation.result import SimulationResult, read_result
from semisilo.simulation.settings import SimulatedStudy, check_names, load_simulated_study
from semisilo.simulation.silos import Workplace
from semisilo.simulation.source_stamp import source_stamp

if TYPE_CHECKING:
    from semisilo.simulation.engines.shared_images import SharedImages

__all__ = ["DeviceName", "EngineName", "run", "simulate"]

EngineName = Literal["processes", "process", "ray"]
DeviceName = Literal["auto", "cpu", "cuda"]
_LOOK_SECONDS = 0.2
_LOG = logging.getLogger("semisilo.simulation")


def run(study: Path | str | Mapping[str, Any], *, out: Path, seed: int | None = None, threads: int | None = None,
        engine: EngineName = "processes", device: DeviceName = "auto",
        watcher: SimulationWatcher | None = None, workers: int | None = None,
        labels_alone: Path | None = None) -> SimulationResult:
    """Simulates a study, or goes on with it; returns what came out. A finished one is not run again.

    Args:
        study: its file (or the folder of `study.toml`), or the tables of one.
        out: folder of this simulation alone; made when missing, and stays.
        seed, threads: take the place of [study] seed and [numerics] threads.
        engine: where silos train, with the same bits: "processes": in as many processes as this machine has processors
            for; on an accelerator in this one process. "process": in this one process. "ray": on a Ray cluster.
        device: "auto" takes an accelerator where there is one.
        workers: how many silos train at a time. None: as many as there are processors for (with "ray" of the cluster,
            or accelerators), and with "processes" memory.
        labels_alone: folder of a simulation that is over, on the same labels: its line of labels alone is taken, so
            that none is trained here. None: it is trained here.
    Raises: SemisiloError for what is wrong with settings, images or the folder, and for what ends the study.
    """
    _check(engine, device, workers)
    chosen = load_simulated_study(Path(study) if isinstance(study, str) else study, seed=seed, threads=threads)
    folder, watcher = SimulationFolder(Path(out).absolute()), watcher or SimulationWatcher()
    _check_readable(folder.folder)
    if (over := _result_of_before(chosen, folder, watcher)) is not None:
        return over
    _check_device(device)
    check_names(chosen)
    from semisilo.common.numerics.numerics import left_as_it_was  # torch, only now

    with one_simulation(lambda: watcher.step("waiting for another simulation of this process")), without_waiting(), \
            left_as_it_was():
        return _in_a_loop(lambda: simulate(chosen, folder, engine=engine, device="" if device == "auto" else device,
                                           watcher=watcher, workers=workers, labels_alone=labels_alone))


def _result_of_before(study: SimulatedStudy, folder: SimulationFolder,
                      watcher: SimulationWatcher) -> SimulationResult | None:
    """What came out of a simulation that is over already, without images and torch; None where it is not over, or
    where the images must be dealt to know whether it is the same one."""
    if not folder.record.exists():
        return None
    with folder.lock(to_read=True), without_waiting():
        if not holds(folder, study):
            return None
        ledger = Ledger(folder.ledger, waits=False)
        try:
            states = {row.name: row.state for row in ledger.studies()}
            if states.get(study.name) is not StudyState.COMPLETED:
                return None
            try:
                watcher.finished(ledger, study.name)
            finally:
                watcher.done()
            return read_result(ledger, study.name, folder.folder)
        finally:
            ledger.close()


def _check(engine: str, device: str, workers: int | None) -> None:
    for kind, value, choices in (("engine", engine, get_args(EngineName)), ("device", device, get_args(DeviceName))):
        if value not in choices:
            raise UsageError(f"There is no {kind} '{value}'.", remedy=f"Choose one of: {', '.join(choices)}.")
    if engine == "process" and workers is not None:
        raise UsageError("workers has no effect: in this process one silo trains at a time.",
                         remedy="Leave it out, or choose the engine processes.")


def _check_readable(folder: Path) -> None:
    """Files of tensors are read and written by a library that knows paths of UTF-8 alone."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{folder}: the name of the folder is not in UTF-8.",
                         remedy="Rename it, or choose another folder (--out; from Python out=).") from None


def _check_device(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("There is no GPU that torch can use.", remedy="Choose the device cpu.")


def _in_a_loop(call: Callable[[], Coroutine[Any, Any, SimulationResult]]) -> SimulationResult:
    """Runs a coroutine to its end; in a thread of its own where this one has an event loop, as in a notebook.

    An interrupt (a notebook's stop button) ends it there as it does here. Under `asyncio.run` the first Ctrl-C raises
    nothing: it marks the task for which this is done as cancelled, which only a look at it tells.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call())
    caller = asyncio.current_task()
    cancelled = caller.cancelling() if caller is not None else 0
    import concurrent.futures

    running: concurrent.futures.Future[Callable[[], None]] = concurrent.futures.Future()

    async def noticed() -> SimulationResult:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        running.set_result(cancel)
        return await call()

    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="semisilo-simulation") as executor:
        answer = executor.submit(lambda: asyncio.run(noticed()))
        try:
            # The system may hand a signal to any thread; Python acts on it in this one, unless it sleeps for good.
            while not answer.done():
                concurrent.futures.wait([answer], timeout=_LOOK_SECONDS)
                if caller is not None and caller.cancelling() > cancelled:
                    raise asyncio.CancelledError
            return answer.result()
        except (KeyboardInterrupt, Terminated, asyncio.CancelledError):
            running.result()()
            raise


async def simulate(study: SimulatedStudy, folder: SimulationFolder, *, engine: EngineName, device: str,
                   watcher: SimulationWatcher, workers: int | None = None,
                   labels_alone: Path | None = None) -> SimulationResult:
    """See `run`."""
    with folder.lock():
        if new := not folder.record.exists():
            # Only where one begins: what an earlier version has begun is gone on with, and read.
            check_participation(study.draft, f"study {study.name}", silos=study.simulation.split.silos)
        watcher.step("dealing images to silos")
        stamp = source_stamp(study)
        dealt = deal_study(study, begun=folder.begun_digest())
        for line in (dealt.check_tested_apart(), dealt.left_out_line(), dealt.unlike_line()) if new else ():
            if line:
                watcher.step(line)
        if line := dealt.patients_line():
            watcher.step(line)
        begin(folder, dealt, stamp=stamp)
        with _moved(dealt, engine=engine, device=device, workers=workers) as (dealt, shared):
            ledger = Ledger(folder.ledger, waits=False)
            try:
                federation = SimulatedFederation(dealt, folder, ledger, device=device, watcher=watcher,
                                                 labels_alone=labels_alone)
                if federation.open():
                    workplace = _workplace(dealt, shared, engine=engine, device=device, workers=workers)
                    try:
                        await federation.run(workplace)
                    finally:
                        await workplace.close()
                watcher.finished(ledger, study.name)
                return read_result(ledger, study.name, folder.folder)
            finally:
                watcher.done()
                ledger.close()


@contextmanager
def _moved(dealt: Dealt, *, engine: EngineName, device: str,
           workers: int | None) -> Iterator[tuple[Dealt, SharedImages | None]]:
    """The images where other processes can read them; where none shall, or memory is short, they stay where they are.

    On an accelerator silos train in this process, unless somebody asks for a number of others: each takes the
    accelerator's memory for a model, its activations and the libraries' own.
    """
    import torch

    accelerator = device == "cuda" or (not device and torch.cuda.is_available())
    from semisilo.simulation.engines.processes import most_processes
    from semisilo.simulation.engines.shared_images import share

    wanted = engine == "processes" and (
        workers is not None or (not accelerator and most_processes(dealt.config.numerics.threads) > 1))
    network = b""
    if wanted:
        try:
            network = _handed_over(dealt)
        except CannotBePacked as error:
            _LOG.warning("%s; silos train in this process, one at a time", error)
            yield dealt, None
            return
    shared = share(dealt, device="cuda" if accelerator else "cpu", network=network) if wanted else None
    if shared is None:
        if wanted:
            _LOG.warning("there is too little memory to give the images to other processes; silos train in this one")
        yield dealt, None
        return
    try:
        yield shared
    finally:
        shared[1].close()


def _handed_over(dealt: Dealt) -> bytes:
    """The study's network for other processes, where it was handed over from Python. Raises: CannotBePacked."""
    model = dealt.config.model
    return packed(model.factory_sha256) if model.name.partition(":")[0] == GIVEN else b""


def _workplace(dealt: Dealt, shared: SharedImages | None, *, engine: EngineName, device: str,
               workers: int | None) -> Workplace:
    images, threads = dealt.silos_images(), dealt.config.numerics.threads
    if engine == "ray":
        from semisilo.simulation.engines.ray_cluster import RayWorkplace

        try:
            network = _handed_over(dealt)
        except CannotBePacked as error:
            raise UsageError(str(error), remedy="Choose the engine process.") from error
        return RayWorkplace(images, device=device, workers=workers, threads=threads, network=network)
    if shared is None:
        from semisilo.simulation.engines.one_process import InlineWorkplace

        return InlineWorkplace(images, device=device)
    from semisilo.simulation.engines.processes import ProcessesWorkplace

    return ProcessesWorkplace(images, shared, threads=threads, workers=workers)
