"""Masks: the keystream of RFC 8439, signs, blocks, and that every bit of a seed counts."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import MaskSeed
from tests.each_of import each_of


def quarter(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[x] = (state[x] + state[y]) % 2**32
        mixed = state[z] ^ state[x]
        state[z] = (mixed << turn | mixed >> 32 - turn) % 2**32


def keystream(key: bytes, blocks: int) -> list[int]:
    """ChaCha20 with nonce 0 and counter from 0, from the text of RFC 8439, section 2.3: 16 words a block."""
    words: list[int] = []
    for counter in range(blocks):
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
        state = list(start)
        for _ in range(10):
            for a, b, c, d in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                               (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
                quarter(state, a, b, c, d)
        words += [(value + first) % 2**32 for value, first in zip(state, start, strict=True)]
    return words


def masked(count: int, *seeds: MaskSeed) -> list[int]:
    words = np.zeros(count, dtype=np.uint32)
    add_masks(words, seeds)
    result: list[int] = words.tolist()
    return result


def test_the_oracle_gives_the_vector_of_the_rfc() -> None:
    """RFC 8439, appendix A.1, vector 1: key and nonce 0, block 0 begins with 76 b8 e0 ad a0 f1 3d 90."""
    assert struct.pack("<2I", *keystream(bytes(32), 1)[:2]).hex() == "76b8e0ada0f13d90"


def test_a_mask_is_the_keystream_of_its_seed() -> None:
    seed = bytes(range(32))
    assert masked(100, MaskSeed(seed=seed, sign=1)) == keystream(seed, 7)[:100]
    assert masked(100, MaskSeed(seed=seed, sign=-1)) == [-word % 2**32 for word in keystream(seed, 7)[:100]]


def test_masks_of_both_signs_vanish_and_words_stay() -> None:
    words = np.arange(100_001, dtype=np.uint32) * np.uint32(2654435761)
    before = words.copy()
    one, other = bytes(32), b"\1" * 32
    add_masks(words, [MaskSeed(seed=one, sign=1), MaskSeed(seed=other, sign=-1)])
    assert np.count_nonzero(words == before) < 10
    add_masks(words, [MaskSeed(seed=other, sign=1), MaskSeed(seed=one, sign=-1)])
    assert (words == before).all()


@each_of("count", [0, 1, 15, 16, 17, 2**15 - 1, 2**15, 2**15 + 1, 3 * 2**15 + 7])
def test_blocks_leave_no_seam(count: int) -> None:
    """A keystream that began anew, or lost bytes, at a block's end would differ from one that is made at once."""
    at_once = Cipher(algorithms.ChaCha20(b"s" * 32, bytes(16)), mode=None).encryptor().update(bytes(4 * count))
    assert masked(count, MaskSeed(seed=b"s" * 32, sign=1)) == list(struct.unpack(f"<{count}I", at_once))


def test_every_bit_of_a_seed_changes_the_mask() -> None:
    """All 256: a seed that is folded to 32 bits somewhere has bits, or pairs of them, that make no difference."""
    seed = bytes(range(1, 33))
    seen = {tuple(masked(4, MaskSeed(seed=seed, sign=1)))}
    for bit in range(256):
        other = bytearray(seed)
        other[bit // 8] ^= 1 << bit % 8
        seen.add(tuple(masked(4, MaskSeed(seed=bytes(other), sign=1))))
        other[(bit // 8 + 4) % 32] ^= 1 << bit % 8  # and the same bit of the next word: no change of a sum
        seen.add(tuple(masked(4, MaskSeed(seed=bytes(other), sign=1))))
    assert len(seen) == 1 + 2 * 256


def test_masks_are_uniform() -> None:
    """Chi-square over the 256 values of each of the four bytes: expected 255, standard deviation 22.6."""
    words = np.zeros(1 << 18, dtype=np.uint32)
    add_masks(words, [MaskSeed(seed=b"u" * 32, sign=1)])
    for place in range(4):
        counts = np.bincount(words.view(np.uint8)[place::4], minlength=256)
        chi = float((np.square(counts - 1024.0) / 1024.0).sum())
        assert abs(chi - 255) < 6 * 22.6


def test_progress_is_told_up_to_the_last_word() -> None:
    told: list[int] = []
    add_masks(np.zeros(70_000, dtype=np.uint32), [], progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 70_000


@each_of("words", [np.zeros(4, dtype=np.int32), np.zeros((2, 2), dtype=np.uint32),
                   np.zeros(8, dtype=np.uint32)[::2]])
def test_words_of_another_kind_are_our_own_mistake(words: np.ndarray) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="contiguous uint32"):
        add_masks(words, [])


@pytest.mark.parametrize("seed", [MaskSeed(seed=bytes(31), sign=1), MaskSeed(seed=bytes(32), sign=0)])
def test_seeds_of_another_kind_are_our_own_mistake(seed: MaskSeed) -> None:
    with pytest.raises(ValueError, match="A seed has 32 bytes"):
        add_masks(np.zeros(4, dtype=np.uint32), [seed])
