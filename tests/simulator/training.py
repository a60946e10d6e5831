"""The compute processes of both sides, in this thread: vectors of a few numbers instead of networks, but trained, kept,
folded and remembered as networks are, so that a wrong base, order, memory or repetition shows in the bits.

    delta = sin(w + noise(round, phase, silo)) / 8 + c / 16 + m / 4 + f / 32        a silo's update
    m'    = m / 2 + delta                                                           its memory
    w'    = w + sum over silos in order of n_k / n * delta_k                        the coordinator's model
    c'    = c / 2 + delta                                                           what the strategy keeps for a silo

Behind masks the coordinator keeps nothing for a silo (c = 0), and n_k delta_k are integers on a public scale:

    w'    = w + sum over silos of levels_k / sum of n_k's levels                    `mean_of_words`

w comes with every task, c is a silo's own, f is frozen: it comes once and is then held. All in float32. Files are real
payloads and are written through the product's stores; only torch's checkpoints are replaced (`use_vector_files`).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadPayload, ComputeFailed, StorageDamaged, StudyNotOpen, TensorsMissing
from semisilo.common.methods.contract import GroupLayout, Meaning, PayloadRef, Phase, TaskSpec, TensorSpec
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.codec import ELEMENT_TYPES, Aim, Plan, encode_blocks
from semisilo.common.payload.manifest import GroupManifest, check_manifest
from semisilo.common.payload.reader import MAGIC, PayloadReader
from semisilo.common.payload.usage import encodings_of_payload
from semisilo.common.payload.writer import _tail
from semisilo.common.process.child import ComputeAborted, ComputeDied
from semisilo.common.process.messages import Request
from semisilo.common.secure_aggregation.fixed_point import decode_sum, largest_level, quantise, to_words
from semisilo.common.secure_aggregation.mask_form import EXTRA_WORDS, MaskForm, SumOutcome, weight_of
from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import MASKED_GROUP
from semisilo.common.secure_aggregation.words import pack, unpack
from semisilo.common.storage.durable import sync_file, sync_folder
from semisilo.common.storage.state_files import StateFiles
from semisilo.common.storage.store import PayloadStore, hash_file
from semisilo.coordinator.compute.messages import (
    Aggregate,
    Aggregated,
    CheckedUpdate,
    CheckUpdate,
    Evaluate,
    Evaluated,
    Export,
    Exported,
    MaskedSum,
    OpenedStudy,
    OpenStudy,
    Phases,
    PhasesOfRound,
    Prepare,
    Prepared,
    Tasks,
    WrittenTask,
    WrittenTasks,
)
from semisilo.coordinator.ledger.cleanup import open_payloads
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.silo.compute.messages import Survey, Surveyed, Train, Trained
from semisilo.silo.site.stores import open_cache, open_outgoing

__all__ = ["CoordinatorWork", "SiloWork", "SimulatedCompute", "Vector", "abstains", "delta_of", "digest_of",
           "examples_of", "first_vector", "folded", "kept_after", "mean_of_words", "memory_after", "use_vector_files",
           "words_of"]

Numbers = NDArray[np.float32]
AnswerT = TypeVar("AnswerT")
_SIZE = 24
_SPEC = TensorSpec("weight", (_SIZE,), "float32")
_PLAN = Plan(aim=Aim.RAW)
_REMEMBERED = 4096
"""Files whose content is kept."""
_groups_read: dict[tuple[bytes, str], Numbers] = {}
_checked: dict[tuple[bytes, object], CheckedUpdate] = {}


# The maths ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vector:
    """A state of the strategy, what it keeps for a silo, or a silo's memory."""

    numbers: bytes
    """(24,) float32, as they lie in memory."""

    @property
    def array(self) -> Numbers:
        return np.frombuffer(self.numbers, dtype=np.float32)


def _noise(*words: object) -> Numbers:
    seed = int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(_SIZE, dtype=np.float32)


_noises: dict[tuple[object, ...], Numbers] = {}


def noise(*words: object) -> Numbers:
    """(24,) float32, the same for the same words."""
    if words not in _noises:
        _noises[words] = _noise(*words)
    return _noises[words]


ZEROS: Numbers = np.zeros(_SIZE, dtype=np.float32)


def first_vector(study: str) -> Numbers:
    """The model before round 1."""
    return noise("first", study)


def frozen_vector() -> Numbers:
    """What nobody trains."""
    return noise("frozen")


def delta_of(w: Numbers, c: Numbers, m: Numbers, f: Numbers, *, round: int, phase: str, silo: str) -> Numbers:
    """A silo's update."""
    return (np.sin(w + noise(round, phase, silo)) / np.float32(8) + c / np.float32(16) + m / np.float32(4)
            + f / np.float32(32)).astype(np.float32)


def memory_after(m: Numbers, delta: Numbers) -> Numbers:
    """What the silo keeps."""
    return (m / np.float32(2) + delta).astype(np.float32)


def kept_after(c: Numbers, delta: Numbers) -> Numbers:
    """What the strategy keeps for the silo."""
    return (c / np.float32(2) + delta).astype(np.float32)


def folded(w: Numbers, updates: list[tuple[int, Numbers]]) -> Numbers:
    """The model after a phase, of (images, delta) in silo order."""
    total = sum(count for count, _ in updates)
    for count, delta in updates:
        w = (w + np.float32(count / total) * delta).astype(np.float32)
    return w


def words_of(delta: Numbers, form: MaskForm, *, silo: str, round: int, phase: str) -> NDArray[np.uint32]:
    """A silo's update as words without masks."""
    level, weight = largest_level(form.bits, form.silo_count), weight_of(form, examples_of(silo))
    seed = int.from_bytes(hashlib.sha256(repr(("round", silo, round, phase)).encode()).digest()[:8], "big")
    levels, cut = quantise(delta * np.float32(weight), bound=form.bounds[0], level=level,
                           generator=np.random.default_rng(seed))
    return np.concatenate([to_words(levels), np.array([round_half(weight * level), cut], dtype=np.uint32)])


def round_half(value: float) -> int:
    """The nearest whole number."""
    return int(np.rint(value))


def mean_of_words(total: NDArray[np.uint32], form: MaskForm, *, silos: int) -> tuple[Numbers, SumOutcome]:
    """The mean of updates from the sum of their words, and what the next scale follows from."""
    level = largest_level(form.bits, form.silo_count)
    weight = float(decode_sum(total[-2:-1], bits=form.bits, bound=1.0, level=level)[0])
    cut = round_half(float(decode_sum(total[-1:], bits=form.bits, bound=float(level), level=level)[0]))
    assert 0 < weight <= silos * (1 + 1e-6), "the masks have not vanished"
    mean = (decode_sum(total[:-2], bits=form.bits, bound=form.bounds[0], level=level) / weight).astype(np.float32)
    return mean, SumOutcome(silos=silos, weight=weight, cut=cut, elements=_SIZE, largest=(float(np.abs(mean).max()),))


def examples_of(silo: str) -> int:
    """How many images a silo has."""
    return 10 + sum(silo.encode()) % 7


def abstains(silo: str, *, round: int, phase: str) -> bool:
    """Whether a silo has nothing to send."""
    return hashlib.sha256(f"{silo} {round} {phase}".encode()).digest()[0] < 20


# Files ----------------------------------------------------------------------------------------------------------------


def _content(state: Vector) -> bytes:
    return b"VECTOR" + state.numbers


def digest_of(numbers: Numbers) -> str:
    """The digest of a state's file."""
    return hashlib.sha256(_content(Vector(numbers.tobytes()))).hexdigest()


def _save(path: Path, state: Vector, *, named: bool = True) -> str:
    """`semisilo.common.storage.checkpoint.save`, step by step, of a vector."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    content = _content(state)
    try:
        with open(temporary, "wb", buffering=0) as file:
            file.write(content)
            sync_file(file.fileno())
        os.replace(temporary, path)
        if named:
            sync_folder(path.parent)
        return hashlib.sha256(content).hexdigest()
    finally:
        Path(temporary).unlink(missing_ok=True)


def _load(path: Path, cls: type[Vector]) -> Vector:
    content = path.read_bytes()
    if not content.startswith(b"VECTOR"):
        raise StorageDamaged(f"{path}: no vector.")
    return cls(content[6:])


def use_vector_files() -> None:
    """From now on `semisilo.common.storage.checkpoint` writes vectors, and nobody imports torch."""
    from tests.simulator.system import put_module

    module: Any = ModuleType("semisilo.common.storage.checkpoint")
    module.save, module.load = _save, _load
    put_module("semisilo.common.storage.checkpoint", module)


def _write_payload(store: PayloadStore, groups: Mapping[str, tuple[Numbers, Meaning, str]], *, tensors: str = "",
                   durable: bool = True) -> PayloadRef:
    """A real payload file, by the store's own way, without the threads of the real writer."""
    content = _encoded(tuple((name, numbers.tobytes(), meaning, base) for name, (numbers, meaning, base)
                             in groups.items()), tensors)
    return _write_file(store, content, tuple(groups), tensors=tensors, durable=durable)


@functools.lru_cache(maxsize=_REMEMBERED)
def _encoded(groups: tuple[tuple[str, bytes, Meaning, str], ...], tensors: str) -> bytes:
    """The content of a payload file."""
    parts, manifest = [MAGIC], []
    for name, numbers, meaning, base in groups:
        blocks = _blocks(np.frombuffer(numbers, dtype="<u4"), "float32")
        parts.append(blocks)
        manifest.append(GroupManifest(name, meaning, base, (_SPEC,), len(blocks), tensors))
    return b"".join([*parts, _tail(manifest)])


def _write_words(store: PayloadStore, packed: NDArray[np.uint8]) -> PayloadRef:
    """A masked update's payload file."""
    blocks = _blocks(packed, "uint8")
    manifest = [GroupManifest(MASKED_GROUP, Meaning.VALUES, "", (TensorSpec("words", (len(packed),), "uint8"),),
                              len(blocks))]
    return _write_file(store, b"".join([MAGIC, blocks, _tail(manifest)]), (MASKED_GROUP,))


def _blocks(bits: Any, kind: str) -> bytes:
    return b"".join(b"".join((header, index, bytes(values)))
                    for header, index, values in encode_blocks(bits, ELEMENT_TYPES[kind], _PLAN))


def _write_file(store: PayloadStore, content: bytes, groups: tuple[str, ...], *, tensors: str = "",
                durable: bool = True) -> PayloadRef:
    temporary = store.temporary(expected_bytes=len(content))
    handle = os.open(temporary, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, content)
    finally:
        os.close(handle)
    digest = store.add_file(temporary, digest=hashlib.sha256(content).hexdigest(), durable=durable)
    return PayloadRef(digest, len(content), groups, tensors=tensors)


def _once(known: dict[Any, Any], key: object, find: Callable[[], AnswerT]) -> AnswerT:
    """What was found for the same bytes before, or what is found now: the same silos train the same numbers run after
    run. What is refused is read again each time."""
    if key not in known:
        if len(known) >= _REMEMBERED:
            known.clear()
        known[key] = find()
    return known[key]  # type: ignore[no-any-return]


def _read_group(path: Path, name: str = "") -> Numbers:
    """The numbers of a group, the first one where none is named."""
    return _once(_groups_read, (path.read_bytes(), name), lambda: _decoded(path, name))


def _decoded(path: Path, name: str) -> Numbers:
    with PayloadReader(path, require_finite=True) as reader:
        (_, bits), = list(reader.tensors(name or reader.groups[0].name))
    return np.frombuffer(bits.tobytes(), dtype=np.float32)


def _tensors_digest(numbers: Numbers) -> str:
    return hashlib.sha256(b"tensors" + numbers.tobytes()).hexdigest()


# Operations -----------------------------------------------------------------------------------------------------------


class CoordinatorWork:
    """What the coordinator's compute process does."""

    def __init__(self, phases: tuple[Phase, ...], settings: dict[str, object]) -> None:
        self._phases = phases
        self._settings = settings
        self._study: OpenStudy | None = None

    def answer(self, request: Request[Any]) -> Any:
        if isinstance(request, OpenStudy):
            return self._open(request)
        if isinstance(request, CheckUpdate | Tasks) and request.study and (
                self._study is None or self._study.name != request.study):
            raise StudyNotOpen(f"The study {request.study} is not open.")
        if self._study is None:
            raise ComputeFailed("No study is open in the compute process.")
        if isinstance(request, Prepare):
            first = Vector(first_vector(self._study.name).tobytes())
            return Prepared(state=self._states.save(first), metrics={"accuracy": 0.5})
        if isinstance(request, Phases):
            return PhasesOfRound(phases=self._phases)
        if isinstance(request, Tasks):
            return self._tasks(request)
        if isinstance(request, CheckUpdate):
            return self._check(request)
        if isinstance(request, Aggregate):
            return self._aggregate(request)
        if isinstance(request, Evaluate):
            return Evaluated(metrics={"accuracy": int(request.state[:4], 16) / 65535})
        if isinstance(request, Export):
            _save(request.path, self._states.load(request.state, Vector))
            return Exported(path=request.path)
        raise AssertionError(f"{request} is not asked of this stand-in")

    def _open(self, request: OpenStudy) -> OpenedStudy:
        self._study = request
        self._masked = request.config.privacy.secure_aggregation
        self._states = StateFiles(request.study_folder / "states")
        self._states.clean()
        self._payloads = open_payloads(request.payloads_folder)
        return OpenedStudy(
            frozen=FrozenStudy(classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)),
                               num_labelled=0, num_validation=0, num_test=4, num_parameters=_SIZE,
                               dense_bytes=4 * _SIZE),
            numerics=NumericsRecord(device="cpu", torch="0", cpu_capability="", threads=1, deterministic=True))

    def _vector(self, digest: str | None) -> Numbers:
        return ZEROS if digest is None else self._states.load(digest, Vector).array

    def _tasks(self, request: Tasks) -> WrittenTasks:
        w = self._vector(request.state)
        written = {}
        for silo, kept in request.silos.items():
            groups = {"model": w, "correction": self._vector(kept), "frozen": frozen_vector()}
            if self._masked:  # fedavg has none
                del groups["correction"]
            written[silo] = WrittenTask(settings=self._settings, brings_model=True, payloads=tuple(
                self._payload(name, numbers, request.held.get(silo, ())) for name, numbers in groups.items()))
        return WrittenTasks(tasks=written, largest=(float(np.abs(w).max()),), expects={
            "model": GroupLayout(Meaning.DIFFERENCE, _tensors_digest(w), (_SPEC,))})

    def _payload(self, name: str, numbers: Numbers, held: tuple[str, ...]) -> PayloadRef:
        tensors = _tensors_digest(numbers)
        if tensors in held:
            return PayloadRef("", 0, (name,), tensors=tensors, held_bytes=numbers.nbytes)
        return _write_payload(self._payloads, {name: (numbers, Meaning.VALUES, "")}, tensors=tensors)

    def _check(self, request: CheckUpdate) -> CheckedUpdate:
        w, masked = self._vector(request.state), request.masked
        key = request.update.path.read_bytes(), _tensors_digest(w) if masked is None else masked[MASKED_GROUP].tensors
        return _once(_checked, key, lambda: self._check_anew(request, w))

    def _check_anew(self, request: CheckUpdate, w: Numbers) -> CheckedUpdate:
        if request.masked is not None:
            with PayloadReader(request.update.path) as reader:
                check_manifest(reader.groups, allowed={MASKED_GROUP: Meaning.VALUES}, max_bytes=10_000,
                               layouts={MASKED_GROUP: request.masked[MASKED_GROUP].tensors}, required=(MASKED_GROUP,))
                list(reader.tensors(MASKED_GROUP))
            return CheckedUpdate(encoded=tuple(encodings_of_payload(request.update.path)))
        with PayloadReader(request.update.path, require_finite=True) as reader:
            check_manifest(reader.groups, allowed={"model": Meaning.DIFFERENCE}, layouts={"model": (_SPEC,)},
                           max_bytes=10_000, required=("model",))
            if reader.groups[0].base != _tensors_digest(w):
                raise BadPayload("another base")
            list(reader.tensors("model"))
        return CheckedUpdate(encoded=tuple(encodings_of_payload(request.update.path)))

    def _aggregate(self, request: Aggregate) -> Aggregated:
        w, updates, kept = self._vector(request.state), [], {}
        names = [update.header.silo for update in request.updates]
        assert names == sorted(set(names), key=str.encode), "each silo once, in order"
        if request.masked is not None:
            return self._add_up(request, request.masked, w)
        for update in request.updates:
            path, silo = update.path, update.header.silo
            if not path.exists() or hash_file(path) != path.name:
                raise StorageDamaged(f"{path}: the spooled update of {silo} is missing or damaged.")
            delta = _read_group(path, "model")
            updates.append((update.header.num_examples, delta))
            kept[silo] = self._states.save(Vector(kept_after(self._vector(update.kept), delta).tobytes()))
        return Aggregated(state=self._states.save(Vector(folded(w, updates).tobytes())), kept=dict(kept), metrics={})


    def _add_up(self, request: Aggregate, masked: MaskedSum, w: Numbers) -> Aggregated:
        if not request.updates:
            return Aggregated(state=request.state, kept={}, metrics={})
        total = np.zeros(_SIZE + EXTRA_WORDS, dtype=np.uint32)
        for update in request.updates:
            if not update.path.exists() or hash_file(update.path) != update.path.name:
                raise StorageDamaged(f"{update.path}: a spooled update is missing or damaged.")
            with PayloadReader(update.path) as reader:
                (_, packed), = list(reader.tensors(MASKED_GROUP))
            total += unpack(packed, bits=masked.form.bits, count=len(total))
        (group,) = masked.groups
        add_masks(total, group.seeds)
        mean, outcome = mean_of_words(total, masked.form, silos=len(group.silos))
        return Aggregated(state=self._states.save(Vector((w + mean).astype(np.float32).tobytes())), kept={}, metrics={},
                          outcome=outcome)


class SiloWork:
    """What a silo's compute process does."""

    def answer(self, request: Request[Any]) -> Any:
        if isinstance(request, Survey):
            return Surveyed(labelled=5, unlabelled=11)  # no silo has more
        assert isinstance(request, Train), request
        return self._train(request)

    def _train(self, request: Train) -> Trained:
        task, store = request.task, open_cache(request.cache_folder)
        groups = {payload.groups[0]: self._received(task, payload, request, store) for payload in task.payloads}
        files = StateFiles(request.memory_folder)
        memory = ZEROS if request.memory is None else files.load(request.memory.name.partition(".")[0], Vector).array
        delta = delta_of(groups["model"], groups.get("correction", ZEROS), memory, groups["frozen"], round=task.round,
                         phase=task.phase, silo=task.silo)
        keep = files.path(files.save(Vector(memory_after(memory, delta).tobytes())))
        if abstains(task.silo, round=task.round, phase=task.phase):
            return Trained(payload=None, abstention="no_confident_example", num_examples=0, metrics={}, memory=keep,
                           residuals=None, seconds=0.1)
        if request.masking is not None:
            words = words_of(delta, request.masking.form, silo=task.silo, round=task.round, phase=task.phase)
            vector = hashlib.sha256(words.tobytes()).digest()
            add_masks(words, request.masking.seeds)
            payload = _write_words(open_outgoing(request.outgoing_folder), pack(words, request.masking.form.bits))
            return Trained(payload=payload, num_examples=examples_of(task.silo), metrics={}, memory=keep,
                           residuals=None, seconds=0.1, vector=vector)
        payload = _write_payload(open_outgoing(request.outgoing_folder),
                                 {"model": (delta, Meaning.DIFFERENCE, _tensors_digest(groups["model"]))})
        return Trained(payload=payload, num_examples=examples_of(task.silo), metrics={"steps": 3.0}, memory=keep,
                       residuals=None, seconds=0.1)

    def _received(self, task: TaskSpec, payload: PayloadRef, request: Train, store: PayloadStore) -> Numbers:
        """As `semisilo.silo.compute.received.receive` goes about it."""
        cache, name = TensorCache(store), payload.groups[0]
        path = cache.find(payload.tensors)
        if path is not None:
            try:
                numbers = _read_group(path)
                if _tensors_digest(numbers) == payload.tensors:
                    return numbers
            except (BadPayload, ValueError):
                pass
            cache.drop(payload.tensors)
        if payload.digest not in request.payloads:
            raise TensorsMissing("A tensor group that the task builds on is not here any more.")
        numbers = _read_group(request.payloads[payload.digest], name)
        if _tensors_digest(numbers) != payload.tensors:
            raise BadPayload(f"The group '{name}' of {task.task_id} is not the one that the task names.")
        cache.put(payload.tensors, request.payloads[payload.digest])
        return numbers


class SimulatedCompute:
    """`semisilo.common.process.compute.Compute`: one request at a time, which takes a while; the process may die, and
    does when a call is cancelled."""

    def __init__(self, build: Callable[[], CoordinatorWork | SiloWork], draw: random.Random, *, slow_seconds: float,
                 deaths: set[int], failures: set[int], counted: Callable[[], int]) -> None:
        """
        Args:
            deaths: numbers of the calls in which it dies.
            failures: numbers of the calls that fail for good, or the next one where that checks an update.
            counted: the number of this call, over all processes of the machine.
        """
        self._build = build
        self._draw = draw
        self._slow_seconds = slow_seconds
        self._deaths = deaths
        self._failures = failures
        self._counted = counted
        self._work: CoordinatorWork | SiloWork | None = None
        self._reopen: Request[Any] | None = None
        self._lock = asyncio.Lock()
        self._running: asyncio.Future[None] | None = None
        self._closed = False

    async def call(self, request: Request[AnswerT], *, on_progress: Any = None) -> AnswerT:
        async with self._lock:
            if self._closed:
                raise ComputeAborted("closed")
            number = self._counted()
            dies, fails = number in self._deaths, number in self._failures
            if fails and isinstance(request, CheckUpdate):
                fails = False
                self._failures.add(number + 1)
            seconds = self._draw.random() * self._slow_seconds
            try:
                await self._wait(seconds)
                if self._work is None:
                    self._work = self._build()
                    if self._reopen is not None and type(self._reopen) is not type(request):
                        self._work.answer(self._reopen)
                if dies and self._draw.random() < 0.5:
                    raise ComputeDied("the compute process has died")
                if fails:
                    raise StorageDamaged("This call was to fail.")
                answer: AnswerT = self._work.answer(request)
                if dies:
                    raise ComputeDied("the compute process has died")
                await self._wait(seconds / 10)
            except (asyncio.CancelledError, ComputeDied, ComputeAborted):
                self._work = None
                raise
            self._reopen = request.reopening(answer) or self._reopen
            return answer

    async def _wait(self, seconds: float) -> None:
        self._running = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._running
        except TimeoutError:
            return
        finally:
            self._running = None

    async def start(self) -> None:
        """See `semisilo.common.process.compute.ProcessCompute.start`."""

    async def abort(self) -> None:
        if self._running is not None and not self._running.done():
            self._running.set_exception(ComputeAborted("aborted"))

    async def close(self) -> None:
        self._closed = True
        await self.abort()

