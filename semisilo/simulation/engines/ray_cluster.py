"""Silos that train on a Ray cluster, or on all processors of this machine, with the bits of one process.

The driver keeps everything that lasts: ledger, memory of silos, payloads. A trainer gets the bytes of the files that a
task needs and the silo's images by reference, and returns the bytes of what came out; no disk is shared. So a task may
be given to another trainer when a machine is lost.

Tests: tests/semisilo/simulation/engines/test_ray.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from semisilo.common.config import canonical_json
from semisilo.common.errors import ComputeFailed, SemisiloError, Unreachable, UsageError, by_code
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.models.own.given import unpack
from semisilo.common.payload.cache import TensorCache
from semisilo.common.process.compute import OnProgress
from semisilo.common.process.messages import Failure
from semisilo.common.storage.store import PayloadStore
from semisilo.common.text.installing import how_to_install
from semisilo.common.text.logs import printable
from semisilo.silo.compute.images import SiloImages
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.site.home import SiloHome

__all__ = ["RayWorkplace", "Shipment", "ShipmentOutcome", "train_shipment"]

_LOG = logging.getLogger("semisilo.simulation")
_ATTEMPTS = 3
_HOST_AND_PORT = re.compile(r"(ray://)?(?P<host>[^\s/\[\]:]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_CONNECT_SECONDS = 10.0
_ObjectRef = Any
"""Ray's handle of an object in its store; Ray has no type that could be named without importing it."""
_SHARED_FILES = 16
"""How many files that many silos need stay in Ray's store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shipment:
    """A request to train with the bytes of all files that it needs."""

    request: Train
    """Its paths are those of the driver: of them only the names count."""
    device: str
    tensors: Mapping[str, bytes]
    """Files of tensor groups that the silo holds and the task builds on, by digest of the tensors."""
    payloads: Mapping[str, bytes]
    memory: bytes | None
    residuals: bytes | None
    pending_residuals: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShipmentOutcome:
    """What came of a task."""

    trained: Trained | None
    """Of its paths only the names count; None after an error."""
    payload: bytes | None = None
    memory: bytes | None = None
    residuals: bytes | None = None
    tensors: Mapping[str, bytes] = field(default_factory=dict)
    """Files of tensor groups that the silo holds since, by digest of the tensors."""
    error: Failure | None = None
    """With details for a mistake of the program."""


def train_shipment(shipment: Shipment, images: SiloImages, folder: Path) -> ShipmentOutcome:
    """Trains in an empty folder, from bytes to bytes."""
    from semisilo.simulation.engines.one_process import SimulatedOperations

    home = SiloHome(folder)
    request = _unpack(shipment, home)
    operations = SimulatedOperations(lambda fraction, text: None, lambda index: images, device=shipment.device,
                                     processors=1)
    try:
        trained = operations.train(request)
    except SemisiloError as error:
        return ShipmentOutcome(trained=None, error=Failure(code=error.code, text=error.text, remedy=error.remedy))
    except Exception as error:
        return ShipmentOutcome(trained=None, error=Failure(
            code=ComputeFailed.code, text=f"Training failed: {type(error).__name__}: {error}",
            details=traceback.format_exc()))
    made = TensorCache(PayloadStore(home.cache))
    return ShipmentOutcome(
        trained=trained, memory=_read(trained.memory), residuals=_read(trained.residuals),
        payload=None if trained.payload is None else (home.outgoing / trained.payload.digest).read_bytes(),
        tensors={digest: made.path(digest).read_bytes() for digest in made.digests()
                 if digest not in shipment.tensors})


def _unpack(shipment: Shipment, home: SiloHome) -> Train:
    """Writes the files of a shipment; the request with their paths here."""
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

    request = shipment.request
    return replace(request, payloads=payloads, cache_folder=home.cache, outgoing_folder=home.outgoing,
                   memory_folder=home.memory, memory=file(request.memory, shipment.memory),
                   residuals=file(request.residuals, shipment.residuals),
                   pending_residuals=file(request.pending_residuals, shipment.pending_residuals))


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


class _Trainer:
    """Lives in a process of Ray's, one task at a time."""

    def __init__(self, network: bytes) -> None:
        if network:
            unpack(network)

    def train(self, shipment: Shipment, shared: Mapping[str, _ObjectRef], images: SiloImages) -> ShipmentOutcome:
        """`shared` are files of tensor groups in Ray's store, by digest of the tensors."""
        import ray

        from semisilo.common.storage.durable import without_waiting

        held = dict(zip(shared, ray.get(list(shared.values())), strict=True))
        with without_waiting(), tempfile.TemporaryDirectory(prefix="semisilo-") as folder:
            return train_shipment(replace(shipment, tensors=held), images, Path(folder))


class RayWorkplace:
    """Trainers on a Ray cluster: the one of RAY_ADDRESS, or else the one of this machine, started where none runs."""

    def __init__(self, images: Sequence[SiloImages], *, device: str, threads: int, workers: int | None = None,
                 network: bytes = b"") -> None:
        """
        Args:
            images: of each silo.
            threads: processors that one trainer keeps busy.
            network: one that was handed over from Python; empty without.
            workers: trainers; None: as many as the cluster has accelerators, or else processors for.
        Raises: UsageError when Ray is not installed or the cluster has no room; Unreachable when it cannot be used.
        """
        try:
            import ray
        except ImportError:
            raise UsageError("The engine 'ray' needs Ray, which is not installed.",
                             remedy=how_to_install("semisilo[ray]")) from None
        self._ray = ray
        self._device = device
        self._numerics: set[str] = set()
        self._shared: dict[str, _ObjectRef] = {}
        self._images = images
        self._network = network
        self._stored_images: dict[int, _ObjectRef] = {}
        """Of the silos that have had a task."""
        self._started = not ray.is_initialized()
        if self._started:
            _connect(ray)
        try:
            self._trainers = self._hire(threads, workers, most=len(images))
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
            raise UsageError("The Ray cluster has no GPU.", remedy="Choose --device cpu.")
        room = accelerators if on_accelerators else max(1, processors // threads)
        number = min(most, workers or room)
        share = {"num_gpus": min(1.0, accelerators / number)} if on_accelerators else {}
        if on_accelerators and number > accelerators:  # several on each; Ray counts in ten-thousandths
            share = {"num_gpus": accelerators / number // 1e-4 * 1e-4}
        actor = self._ray.remote(
            num_cpus=min(threads, processors / number), max_restarts=_ATTEMPTS, max_task_retries=_ATTEMPTS,
            **share)(_Trainer)
        return [actor.remote(self._network) for _ in range(number)]

    @property
    def room(self) -> int:
        """See `Workplace.room`."""
        return len(self._trainers)

    async def train(self, request: Train, *, on_progress: OnProgress | None = None) -> Trained:
        """See `Workplace.train`."""
        shipment = Shipment(
            request=request, device=self._device, tensors={},
            payloads={digest: path.read_bytes() for digest, path in request.payloads.items()},
            memory=_read(request.memory), residuals=_read(request.residuals),
            pending_residuals=_read(request.pending_residuals))
        shared = self._share(request)
        trainer = await self._idle.get()
        try:
            outcome: ShipmentOutcome = await asyncio.wrap_future(
                trainer.train.remote(shipment, shared, self._images_of(int(request.choice.source))).future())
        except self._ray.exceptions.RayError as error:
            raise ComputeFailed(f"Ray could not train {request.task.silo}: {error}",
                                remedy="See the logs of the Ray cluster.") from RuntimeError("Ray")
        finally:
            self._idle.put_nowait(trainer)
        trained = _unpacked(outcome, request)
        self._compare(trained.numerics)
        return trained

    def _images_of(self, silo: int) -> _ObjectRef:
        """The images of a silo in Ray's store."""
        if silo not in self._stored_images:
            self._stored_images[silo] = self._ray.put(self._images[silo])
        return self._stored_images[silo]

    def _share(self, request: Train) -> dict[str, _ObjectRef]:
        """The files of tensor groups that the task builds on, in Ray's store; one copy for all silos."""
        cache = TensorCache(PayloadStore(request.cache_folder))
        shared = {}
        for digest in {each for payload in request.task.payloads for each in (payload.tensors, payload.reference)}:
            path = cache.find(digest) if digest else None
            if path is not None:
                held = self._shared.pop(digest, None)
                self._shared[digest] = self._ray.put(path.read_bytes()) if held is None else held
                shared[digest] = self._shared[digest]
        for oldest in list(self._shared)[:-_SHARED_FILES]:
            del self._shared[oldest]
        return shared

    def _compare(self, numerics: NumericsRecord | None) -> None:
        """Warns once when machines of the cluster compute differently."""
        self._numerics.add(canonical_json(numerics))
        if len(self._numerics) == 2:
            _LOG.warning("the machines of the Ray cluster differ (%s): other bits than on one of them may follow",
                         " and ".join(sorted(self._numerics)))

    async def close(self) -> None:
        """See `Workplace.close`."""
        self._shut_down()

    def _shut_down(self) -> None:
        self._shared.clear()
        if self._started:  # trainers end with the connection; one that is killed at work is reported by Ray
            self._ray.shutdown()
            return
        for trainer in getattr(self, "_trainers", ()):
            self._ray.kill(trainer)


def _connect(ray: Any) -> None:
    """Joins the cluster of RAY_ADDRESS, or that of this machine, or starts one.

    Raises: Unreachable.
    """
    address = os.environ.get("RAY_ADDRESS", "").strip()
    _check_listens(address)  # Ray itself tries for many minutes
    # Ray's own usage report and its dashboard are of no use here and would open ports.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        raise _unusable(address, str(error)) from error


def _check_listens(address: str) -> None:
    """Raises: Unreachable when nothing listens at the address of a cluster, where it has a host and a port."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        return
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unusable(address, f"nothing answers there: {error}") from None


def _unusable(address: str, why: str) -> Unreachable:
    why = printable(why.strip().partition("\n")[0], limit=300).rstrip(".")
    if not address:
        return Unreachable(f"No Ray cluster could be used: {why}.",
                           remedy="Or train without one: --engine processes.")
    return Unreachable(f"The Ray cluster of RAY_ADDRESS = {printable(address, limit=100)} cannot be used: {why}.",
                       remedy="Look whether it runs there: ray status. One with a token, as `ray start` makes it, also"
                              " needs RAY_AUTH_MODE=token here. Without RAY_ADDRESS a cluster is started for the run.")


def _unpacked(outcome: ShipmentOutcome, request: Train) -> Trained:
    """What was trained, with the files in the silo's folders. Raises: the error of an outcome."""
    if outcome.error is not None:
        raise _rebuilt(outcome.error)
    trained = outcome.trained
    assert trained is not None, "neither an answer nor an error"
    if outcome.payload is not None:
        assert trained.payload is not None, "bytes of a payload that nobody names"
        store = PayloadStore(request.outgoing_folder)
        temporary = store.temporary()
        temporary.write_bytes(outcome.payload)
        store.add_file(temporary, digest=trained.payload.digest)
    cache = TensorCache(PayloadStore(request.cache_folder))
    for digest, content in outcome.tensors.items():
        _put(cache.path(digest), content)

    def file(there: Path | None, content: bytes | None) -> Path | None:
        return None if there is None or content is None else _put(request.memory_folder / there.name, content)

    return replace(trained, memory=file(trained.memory, outcome.memory),
                   residuals=file(trained.residuals, outcome.residuals))


def _put(path: Path, content: bytes) -> Path:
    """A file that is there wholly or not at all."""
    half = path.with_name(f".{path.name}.tmp")
    half.write_bytes(content)
    os.replace(half, path)
    return path


def _rebuilt(failure: Failure) -> SemisiloError:
    error = by_code(failure.code)(failure.text, remedy=failure.remedy)
    if failure.details:
        _LOG.error("a trainer has failed:\n%s", failure.details)
        error.__cause__ = RuntimeError(failure.text)
    return error
