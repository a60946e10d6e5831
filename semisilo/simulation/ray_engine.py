"""Silos that train on a Ray cluster, or on all processors of this machine, with the bits of one process.

The driver keeps everything that lasts: ledger, memory of silos, payloads. A trainer gets the bytes of the files that a
task needs and the silo's images by reference, and returns the bytes of what came out; no disk is shared. So a task may
be given to another trainer when a machine is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.compute import OnProgress
from common.config import canonical_json
from common.errors import ComputeFailed, SemisiloError, UsageError, by_code
from common.store import PayloadStore
from common.tensor_cache import TensorCache
from semisilo.simulation.silos import Job
from silo.home import SiloHome
from silo.images import SiloImages

__all__ = ["Outcome", "RayWorkplace", "Shipment", "train_shipment"]

_LOG = logging.getLogger("semisilo.simulation")
_ATTEMPTS = 3
_SHARED_FILES = 16
"""How many files that many silos need stay in Ray's store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shipment:
    """A task with the bytes of all files that its training needs."""

    job: Job
    """Its paths are those of the driver: of them only the names count."""
    factories: tuple[str, ...]
    device: str
    tensors: Mapping[str, bytes]
    """Files of tensor groups that the silo holds and the task builds on, by digest of the tensors."""
    payloads: Mapping[str, bytes]
    memory: bytes | None
    residuals: bytes | None
    pending_residuals: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a task."""

    result: dict[str, Any]
    """As `silo.work.Operations.train` gives it; of paths only the names count. Empty after an error."""
    payload: bytes | None = None
    memory: bytes | None = None
    residuals: bytes | None = None
    tensors: Mapping[str, bytes]
    """Files of tensor groups that the silo holds since, by digest of the tensors."""
    error: tuple[str, str, str, str] | None = None
    """Code, text, remedy and, for a mistake of the program, its traceback."""


def train_shipment(shipment: Shipment, images: SiloImages, folder: Path) -> Outcome:
    """Trains in an empty folder, from bytes to bytes."""
    from semisilo.simulation.workplace import SimulatedOperations, training_arguments

    job = _unpack(shipment, SiloHome(folder))
    operations = SimulatedOperations(lambda fraction, text: None, lambda place: images, device=shipment.device)
    try:
        result = operations.train(**training_arguments(job, shipment.factories))
    except SemisiloError as error:
        return Outcome(result={}, tensors={}, error=(error.code, error.text, error.remedy, ""))
    except Exception as error:
        text = f"Training failed: {type(error).__name__}: {error}"
        return Outcome(result={}, tensors={}, error=(ComputeFailed.code, text, "", traceback.format_exc()))
    payload = result["payload"]
    made = TensorCache(PayloadStore(job.home.cache))
    return Outcome(
        result=result, memory=_read(result["memory"]), residuals=_read(result["residuals"]),
        payload=None if payload is None else (job.home.outgoing / payload["digest"]).read_bytes(),
        tensors={digest: made.path(digest).read_bytes() for digest in made.digests()
                 if digest not in shipment.tensors})


def _unpack(shipment: Shipment, home: SiloHome) -> Job:
    """Writes the files of a shipment; the job with their paths here."""
    cache = TensorCache(PayloadStore(home.cache))
    for digest, content in shipment.tensors.items():
        cache.path(digest).write_bytes(content)
    payloads = {}
    for digest, content in shipment.payloads.items():
        payloads[digest] = home.cache / digest
        payloads[digest].write_bytes(content)
    home.memory.mkdir(parents=True)

    def file(before: Path | None, content: bytes | None) -> Path | None:
        if before is None or content is None:
            return None
        (home.memory / before.name).write_bytes(content)
        return home.memory / before.name

    job = shipment.job
    return replace(job, home=home, payloads=payloads, memory=file(job.memory, shipment.memory),
                   residuals=file(job.residuals, shipment.residuals),
                   pending_residuals=file(job.pending_residuals, shipment.pending_residuals))


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


class _Trainer:
    """Lives in a process of Ray's, one task at a time."""

    def train(self, shipment: Shipment, shared: Mapping[str, Any], images: SiloImages) -> Outcome:
        """`shared` are files of tensor groups in Ray's store, by digest of the tensors."""
        import ray

        from common.durable import without_waiting

        held = dict(zip(shared, ray.get(list(shared.values())), strict=True))
        with without_waiting(), tempfile.TemporaryDirectory(prefix="semisilo-") as folder:
            return train_shipment(replace(shipment, tensors=held), images, Path(folder))


class RayWorkplace:
    """Trainers on a Ray cluster: the one of RAY_ADDRESS, or else the one of this machine, started where none runs."""

    def __init__(self, images: Sequence[SiloImages], *, factories: Sequence[str], device: str, threads: int,
                 workers: int | None = None) -> None:
        """
        Args:
            images: of each silo.
            threads: processors that one trainer keeps busy.
            workers: trainers; None: as many as the cluster has accelerators, or else processors for.
        Raises: UsageError when Ray is not installed or the cluster has no room.
        """
        try:
            import ray
        except ImportError:
            raise UsageError("The engine 'ray' needs Ray, which is not installed.",
                             remedy="Install it: pip install 'semisilo[ray]'.") from None
        self._ray = ray
        self._factories = tuple(factories)
        self._device = device
        self._numerics: set[str] = set()
        self._shared: dict[str, Any] = {}
        self._started = not ray.is_initialized()
        if self._started:
            # Ray's own usage report and its dashboard are of no use here and would open ports.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        try:
            self._trainers = self._hire(threads, workers, most=len(images))
            self._images = [ray.put(each) for each in images]
        except BaseException:
            self._shut_down()
            raise
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        for trainer in self._trainers:
            self._idle.put_nowait(trainer)

    def _hire(self, threads: int, workers: int | None, *, most: int) -> list[Any]:
        """Trainers, each with its share of the cluster."""
        there = self._ray.cluster_resources()
        processors, accelerators = int(there.get("CPU", 0)), int(there.get("GPU", 0))
        on_accelerators = self._device != "cpu" and accelerators > 0
        if self._device == "cuda" and not accelerators:
            raise UsageError("The Ray cluster has no accelerator.", remedy="Choose --device cpu.")
        room = accelerators if on_accelerators else max(1, processors // threads)
        number = min(most, workers or room)
        share = {"num_gpus": min(1.0, accelerators / number)} if on_accelerators else {}
        if on_accelerators and number > accelerators:  # several on each; Ray counts in ten-thousandths
            share = {"num_gpus": accelerators / number // 1e-4 * 1e-4}
        actor = self._ray.remote(
            num_cpus=min(threads, processors / number), max_restarts=_ATTEMPTS, max_task_retries=_ATTEMPTS,
            **share)(_Trainer)
        return [actor.remote() for _ in range(number)]

    @property
    def room(self) -> int:
        """See `Workplace.room`."""
        return len(self._trainers)

    async def train(self, job: Job, *, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """See `Workplace.train`."""
        shipment = Shipment(
            job=job, factories=self._factories, device=self._device, tensors={},
            payloads={digest: path.read_bytes() for digest, path in job.payloads.items()}, memory=_read(job.memory),
            residuals=_read(job.residuals), pending_residuals=_read(job.pending_residuals))
        shared = self._share(job)
        trainer = await self._idle.get()
        try:
            outcome: Outcome = await asyncio.wrap_future(
                trainer.train.remote(shipment, shared, self._images[job.place]).future())
        except self._ray.exceptions.RayError as error:
            raise ComputeFailed(f"Ray could not train {job.task.silo}: {error}",
                                remedy="See the logs of the Ray cluster.") from RuntimeError("Ray")
        finally:
            self._idle.put_nowait(trainer)
        if outcome.error is not None:
            raise _rebuilt(*outcome.error)
        self._compare(outcome.result["numerics"])
        return _unpacked(outcome, job.home)

    def _share(self, job: Job) -> dict[str, Any]:
        """The files of tensor groups that the task builds on, in Ray's store; one copy for all silos."""
        cache = TensorCache(PayloadStore(job.home.cache))
        shared = {}
        for digest in {each for payload in job.task.payloads for each in (payload.tensors, payload.reference)}:
            path = cache.find(digest) if digest else None
            if path is not None:
                held = self._shared.pop(digest, None)
                self._shared[digest] = self._ray.put(path.read_bytes()) if held is None else held
                shared[digest] = self._shared[digest]
        for oldest in list(self._shared)[:-_SHARED_FILES]:
            del self._shared[oldest]
        return shared

    def _compare(self, numerics: Mapping[str, Any]) -> None:
        """Warns once when machines of the cluster compute differently."""
        self._numerics.add(canonical_json(numerics))
        if len(self._numerics) == 2:
            _LOG.warning("the machines of the Ray cluster differ (%s): other bits than on one of them may follow",
                         " and ".join(sorted(self._numerics)))

    async def close(self) -> None:
        """See `Workplace.close`."""
        self._shut_down()

    def _shut_down(self) -> None:
        for trainer in getattr(self, "_trainers", ()):
            self._ray.kill(trainer)
        self._shared.clear()
        if self._started:
            self._ray.shutdown()


def _unpacked(outcome: Outcome, home: SiloHome) -> dict[str, Any]:
    """The result, with the files in the silo's folders."""
    result = dict(outcome.result)
    store = PayloadStore(home.outgoing)
    if outcome.payload is not None:
        temporary = store.temporary()
        temporary.write_bytes(outcome.payload)
        store.add_file(temporary, digest=result["payload"]["digest"])
    for key, content in (("memory", outcome.memory), ("residuals", outcome.residuals)):
        if content is not None:
            result[key] = str(_put(home.memory / Path(result[key]).name, content))
    cache = TensorCache(PayloadStore(home.cache))
    for digest, content in outcome.tensors.items():
        _put(cache.path(digest), content)
    return result


def _put(path: Path, content: bytes) -> Path:
    """A file that is there wholly or not at all."""
    half = path.with_name(f".{path.name}.tmp")
    half.write_bytes(content)
    os.replace(half, path)
    return path


def _rebuilt(code: str, text: str, remedy: str, details: str) -> SemisiloError:
    error = by_code(code)(text, remedy=remedy)
    if details:
        _LOG.error("a trainer has failed:\n%s", details)
        error.__cause__ = RuntimeError(text)
    return error
