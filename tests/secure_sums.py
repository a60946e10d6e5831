"""Secure sums in one process: honest silos as objects, a coordinator that a test can drive arrow by arrow, and a plain
sum to hold the result against.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.secure_aggregation.keys import identity_of
from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import (
    Confirmation,
    Member,
    RoundKeys,
    SealedShare,
    SecureSum,
    Shares,
    UnmaskAnswer,
    UnmaskRequest,
    in_order,
)
from semisilo.coordinator.secure_aggregation.sum import Unmasked, deliveries, list_members, unmasking
from semisilo.silo.secure_aggregation.session import (
    SiloSession,
    begin,
    confirm,
    mask_seeds,
    one_vector,
    round_keys,
    share,
    unmask,
)
from semisilo.silo.secure_aggregation.trust import Trust

CONTEXT = hashlib.sha256(b"the model, the settings and the roster of a test").digest()
Words = NDArray[np.uint32]
T = TypeVar("T")


def draws(seed: str) -> Callable[[int], bytes]:
    """A generator for tests: what `os.urandom` is for the product."""
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{seed} {count}".encode()).digest(size)

    return draw


def a_total(threshold: int, *, round_number: int = 1, nonce: bytes = b"n" * 16) -> SecureSum:
    return SecureSum(federation="lungs", study="first", round=round_number, phase="train", nonce=nonce,
                     threshold=threshold)


def some_words(silo: str, count: int) -> Words:
    """Small signed integers in two's complement, as quantised updates are."""
    generator = np.random.default_rng(list(silo.encode()))
    return generator.integers(-1000, 1001, size=count, dtype=np.int32).view(np.uint32)


def plain_sum(vectors: Sequence[Words]) -> Words:
    """With Python's integers, one element at a time: nothing in common with what is tested."""
    return np.array([sum(int(vector[i]) for vector in vectors) % 2**32 for i in range(len(vectors[0]))],
                    dtype=np.uint32)


@dataclass
class Silo:
    """An honest silo: its state is written and read again after every step, as by a process that is killed."""

    name: str
    identity: bytes
    words: Words
    session: SiloSession
    trust: Trust
    sent: list[bytes] = field(default_factory=list)
    """All that has left it."""
    kill: bool = True

    def round_keys(self) -> RoundKeys:
        return self._said(round_keys(self.session, self.identity))

    def share(self, members: Sequence[Member]) -> Shares:
        session, answer = share(self.session, members, self.trust)
        self._kept(session)
        return self._said(answer)

    def mask(self, given: Sequence[SealedShare], context: bytes = CONTEXT) -> Words:
        session, seeds = mask_seeds(self.session, given=given, context=context)
        self._kept(one_vector(session, hashlib.sha256(self.words.tobytes()).digest()))
        masked = self.words.copy()
        add_masks(masked, seeds)
        self.sent.append(masked.tobytes())
        return masked

    def confirm(self, survivors: Sequence[str]) -> Confirmation:
        session, signature = confirm(self.session, survivors, self.identity)
        self._kept(session)
        self.sent.append(signature)
        return Confirmation(silo=self.name, signature=signature)

    def unmask(self, request: UnmaskRequest) -> UnmaskAnswer:
        session, answer = unmask(self.session, request)
        self._kept(session)
        return self._said(answer)

    def _said(self, answer: T) -> T:
        self.sent.append(canonical_json(answer).encode())
        return answer

    def _kept(self, session: SiloSession) -> None:
        self.session = from_dict(SiloSession, to_dict(session)) if self.kill else session


def name_of(number: int) -> str:
    return f"hospital-{number:02d}"


def identity_private(name: str) -> bytes:
    return hashlib.sha256(b"identity of " + name.encode()).digest()


def make_silos(count: int, total: SecureSum, *, words: int = 50, pinned: Sequence[str] | None = None,
               min_silos: int = 3, seed: str = "") -> dict[str, Silo]:
    """Silos that have pinned one another: all of them, or those of `pinned`."""
    names = [name_of(number) for number in range(count)]
    pins = {name: identity_of(identity_private(name)) for name in (names if pinned is None else pinned)}
    return {name: Silo(name=name, identity=identity_private(name), words=some_words(name, words),
                       session=begin(total, silo=name, random=draws(seed + total.nonce.hex() + name)),
                       trust=Trust(silo=name, identity=identity_of(identity_private(name)), pinned=pins,
                                   min_silos=min_silos))
            for name in names}


@dataclass
class Run:
    """What a coordinator has after each arrow."""

    members: tuple[Member, ...] = ()
    shares: dict[str, Shares] = field(default_factory=dict)
    masked: dict[str, Words] = field(default_factory=dict)
    confirmations: tuple[Confirmation, ...] = ()
    answers: dict[str, UnmaskAnswer] = field(default_factory=dict)
    unmasked: Unmasked | None = None
    result: Words | None = None

    @property
    def survivors(self) -> tuple[str, ...]:
        return in_order(tuple(self.masked))

    @property
    def request(self) -> UnmaskRequest:
        return UnmaskRequest(survivors=self.survivors, confirmations=self.confirmations)


def identities_of(silos: Mapping[str, Silo]) -> dict[str, bytes]:
    return {name: identity_of(silo.identity) for name, silo in silos.items()}


def up_to_answers(total: SecureSum, silos: Mapping[str, Silo], *, drop: Mapping[str, int] | None = None,
                  context: bytes = CONTEXT) -> Run:
    """All arrows from silos to the coordinator.

    Args:
        drop: silo -> the first of the steps 1 to 5 that it no longer answers.
    """
    gone = drop or {}

    def there(step: int, among: Sequence[str]) -> list[Silo]:
        return [silos[name] for name in in_order(tuple(among)) if gone.get(name, 6) > step]

    run = Run()
    run.members = list_members(total, {silo.name: silo.round_keys() for silo in there(1, tuple(silos))},
                               identities_of(silos))
    run.shares = {silo.name: silo.share(run.members) for silo in there(2, [member.silo for member in run.members])}
    given = deliveries(run.shares)
    run.masked = {silo.name: silo.mask(given[silo.name], context) for silo in there(3, tuple(run.shares))}
    run.confirmations = tuple(silo.confirm(run.survivors) for silo in there(4, tuple(run.masked)))
    run.answers = {silo.name: silo.unmask(run.request)
                   for silo in there(5, [confirmation.silo for confirmation in run.confirmations])}
    return run


def finish(total: SecureSum, run: Run, *, context: bytes = CONTEXT) -> Words:
    """The sum of the survivors' words, by the product's own code."""
    run.unmasked = unmasking(total, context=context, members=run.members, shares=run.shares, survivors=run.survivors,
                             answers=run.answers)
    words = np.zeros_like(next(iter(run.masked.values())))
    for masked in run.masked.values():
        words += masked
    add_masks(words, run.unmasked.seeds)
    run.result = words
    return words
