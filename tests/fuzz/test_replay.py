"""The kept corpus of the fuzzers, run again without them; and some of what their mutators make of the seeds."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.fuzz.mutators import MUTATORS
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
MOST_BYTES = 300 * 1024

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="payloads are kept in a file without a disk")


def test_every_target_has_a_corpus_and_all_of_them_are_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_refused_or_accepted_without_another_error(target: str) -> None:
    """A finding is an exception; that some are accepted shows that the decoder itself was reached."""
    accepted = [TARGETS[target](path.read_bytes()) for path in sorted((CORPUS / target).iterdir())]
    assert any(accepted)
    assert not all(accepted)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_accepted_and_what_mutators_make_of_them_gives_no_other_error(target: str) -> None:
    inputs = list(seeds(target))
    assert sum(map(TARGETS[target], inputs)) > len(inputs) // 2
    chance = random.Random(2)

    def havoc(data: bytes) -> bytes:
        changed = bytearray(data or b"\0")
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.1:
            del changed[chance.randrange(len(changed)):]
        return bytes(changed)

    results = set()
    for _ in range(1500):
        data = MUTATORS[target](chance.choice(inputs), chance, havoc)
        inputs[chance.randrange(len(inputs))] = data
        results.add(TARGETS[target](data))
    assert results == {False, True}
