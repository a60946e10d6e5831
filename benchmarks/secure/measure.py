"""One silo's work and the coordinator's in a round with secure aggregation, and the plain path beside it.

Everything runs in this process on one core. Each piece of work is timed several times, in turn with the plain path, so
that both meet the same machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semisilo.common.methods.contract import Meaning, TensorGroup
from semisilo.common.payload.codec import Aim, Plan
from semisilo.common.payload.torch_tensors import encode_groups
from semisilo.common.secure_aggregation.fixed_point import decode_sum, largest_level, quantise, to_words
from semisilo.common.secure_aggregation.keys import identity_of, new_identity
from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import (
    Confirmation,
    MaskSeed,
    Member,
    RoundKeys,
    SecureSum,
    Shares,
    UnmaskAnswer,
    UnmaskRequest,
)
from semisilo.common.secure_aggregation.words import pack, unpack
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.secure_aggregation.sum import deliveries, list_members, unmasking
from semisilo.silo.secure_aggregation.session import begin, confirm, mask_seeds, round_keys, share, unmask
from semisilo.silo.secure_aggregation.trust import Trust

__all__ = ["Clock", "measure_bytes_of_messages", "measure_protocol", "measure_vectors"]

Floats = NDArray[np.float32]
_DEVIATION, _BOUND = 0.01, 0.1
"""Of the updates: a normal distribution, as lossless codecs find it in updates; and the public bound on a value."""


@dataclass
class Clock:
    """Seconds by piece of work: of the processor (this process), and of the wall."""

    processor: dict[str, list[float]] = field(default_factory=dict)
    wall: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def over(self, name: str) -> Iterator[None]:
        """Times what is in the block."""
        processor, wall = time.process_time(), time.perf_counter()
        yield
        self.processor.setdefault(name, []).append(time.process_time() - processor)
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)

    def medians(self) -> dict[str, dict[str, float]]:
        """Piece of work -> median, lowest and highest of the processor's seconds, and the median of the wall's."""
        return {name: {"processor": statistics.median(seconds), "lowest": min(seconds), "highest": max(seconds),
                       "wall": statistics.median(self.wall[name])} for name, seconds in self.processor.items()}


def measure_vectors(*, parameters: int, silos: int, bits: int, repeats: int) -> dict[str, Any]:
    """What is proportional to the model: the silo's quantise, masks and pack, the coordinator's part, the plain path.

    Returns: facts for results.json.
    """
    values = np.random.default_rng(1).normal(0, _DEVIATION, parameters).astype(np.float32)
    level = largest_level(bits, silos)
    clock = Clock()
    sizes: dict[str, int] = {}
    seeds = [MaskSeed(seed=os.urandom(32), sign=1 if number % 2 else -1) for number in range(silos)]
    with tempfile.TemporaryDirectory() as folder:
        store = PayloadStore(Path(folder))
        for repeat in range(repeats):
            for aim in (Aim.RAW, Aim.FASTEST):
                with clock.over(f"plain {aim}"):
                    sizes[f"plain {aim}"] = _written(store, torch.from_numpy(values), aim)
            with clock.over("quantise"):
                levels, _ = quantise(values, bound=_BOUND, level=level, generator=np.random.default_rng(repeat))
                words = to_words(levels)
            with clock.over("masks"):
                add_masks(words, seeds)
            with clock.over("pack"):
                packed = pack(words, bits)
            with clock.over("write"):
                sizes["masked"] = _written(store, torch.from_numpy(packed), Aim.RAW)
            total = np.zeros(parameters, dtype=np.uint32)
            with clock.over("hub: unpack and add, a silo"):
                total += unpack(packed, bits=bits, count=parameters)
            with clock.over("hub: take self masks away"):
                add_masks(total, seeds)
            with clock.over("hub: decode"):
                decode_sum(total, bits=bits, bound=_BOUND, level=level)
    return {"parameters": parameters, "silos": silos, "bits": bits, "level": level, "repeats": repeats,
            "dense_bytes": 4 * parameters, "bytes": sizes, "seconds": clock.medians()}


def _written(store: PayloadStore, tensor: torch.Tensor, aim: Aim) -> int:
    """Writes one group as `common.payload` does, without waiting for the disk; returns its bytes."""
    group = {"model": TensorGroup({"all": tensor}, Meaning.VALUES)}
    reference = encode_groups(store, group, plan=Plan(aim=aim), durable=False)
    store.path(reference.digest).unlink()
    return reference.size_bytes


@dataclass(frozen=True)
class _Sum:
    """A whole sum without vectors."""

    total: SecureSum
    members: tuple[Member, ...]
    shares: Mapping[str, Shares]
    confirmations: tuple[Confirmation, ...]
    answers: Mapping[str, UnmaskAnswer]
    survivors: tuple[str, ...]


_CONTEXT = hashlib.sha256(b"benchmark").digest()


def measure_protocol(*, silos: int, repeats: int) -> dict[str, Any]:
    """What is independent of the model: keys, shares, signatures, for one silo and for the coordinator."""
    clock = Clock()
    for _ in range(repeats):
        for dropped in sorted({0, silos - _threshold(silos)}):
            _whole_sum(silos, dropped, clock)
    return {"silos": silos, "threshold": _threshold(silos), "repeats": repeats, "seconds": clock.medians()}


def measure_bytes_of_messages(silos: int) -> dict[str, int]:
    """Keys, shares, signatures and names that one silo sends and receives in a sum, without the framing of messages."""
    found = _whole_sum(silos, 0, Clock())
    name = found.survivors[0]
    sent = [RoundKeys(seal_key=bytes(32), mask_key=bytes(32), signature=bytes(64)), found.shares[name],
            found.confirmations[0], found.answers[name]]
    request = UnmaskRequest(survivors=found.survivors, confirmations=found.confirmations)
    received = [found.total, found.members, deliveries(found.shares)[name], found.survivors, request]
    return {"sent": _raw_bytes(sent), "received": _raw_bytes(received)}


def _raw_bytes(value: Any) -> int:  # Any: a message, or a field of one
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, int):
        return 4
    parts = value if isinstance(value, (list, tuple)) else [getattr(value, item.name)
                                                            for item in dataclasses.fields(value)]
    return sum(_raw_bytes(part) for part in parts)


def _threshold(silos: int) -> int:
    return 2 * silos // 3 + 1


def _whole_sum(silos: int, dropped: int, clock: Clock) -> _Sum:
    """All steps of all silos; those of the first one, and the coordinator's last one, are timed."""
    total = SecureSum(federation="bench", study="bench", round=1, phase="train", nonce=os.urandom(16),
                      threshold=_threshold(silos))
    names = [f"silo-{number:02d}" for number in range(silos)]
    identities = {name: new_identity() for name in names}
    public = {name: identity_of(private) for name, private in identities.items()}
    kept = {name: begin(total, silo=name) for name in names}

    def each(step: Callable[[str], Any], among: list[str]) -> dict[str, Any]:
        answers = {}
        for name in among:
            if name == names[0] and not dropped:
                with clock.over(step.__name__):
                    answers[name] = step(name)
            else:
                answers[name] = step(name)
        return answers

    def keys(name: str) -> RoundKeys:
        return round_keys(kept[name], identities[name])

    members = list_members(total, each(keys, names), public)

    def shares(name: str) -> Shares:
        trust = Trust(silo=name, identity=public[name], pinned=public)
        kept[name], answer = share(kept[name], members, trust)
        return answer

    handed_in = each(shares, names)
    given = deliveries(handed_in)

    def mask(name: str) -> None:
        kept[name], _ = mask_seeds(kept[name], given=given[name], context=_CONTEXT)

    left = names[:silos - dropped]
    each(mask, left)

    def signed(name: str) -> Confirmation:
        kept[name], signature = confirm(kept[name], left, identities[name])
        return Confirmation(silo=name, signature=signature)

    request = UnmaskRequest(survivors=tuple(left), confirmations=tuple(each(signed, left).values()))

    def answer(name: str) -> UnmaskAnswer:
        kept[name], found = unmask(kept[name], request)
        return found

    answers = each(answer, left)
    with clock.over(f"hub: secrets, {'none' if not dropped else 'most'} dropped out"):
        unmasking(total, context=_CONTEXT, members=members, shares=handed_in, survivors=left, answers=answers)
    return _Sum(total, members, handed_in, request.confirmations, answers, tuple(left))
