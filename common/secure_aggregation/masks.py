"""Masks: keystreams that are added to a vector of words, and vanish from the sum of all vectors.

A mask is the ChaCha20 keystream of a seed of 256 bits, read as little-endian uint32. Words are added modulo 2**32
whatever their width on the wire: a sum modulo 2**32 reduces to one modulo 2**bits, so that whoever packs keeps the low
bits, and one path serves all widths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from semisilo.common.secure_aggregation.messages import SEED_BYTES, MaskSeed

__all__ = ["MAX_WORDS", "add_masks"]

MAX_WORDS = 2**36
"""Of a vector: ChaCha20 counts blocks of 64 bytes in 32 bits."""
_BLOCK_BYTES = 1 << 17
"""Of keystream at a time: it and the words that it is added to stay in a core's cache."""


def add_masks(words: NDArray[np.uint32], seeds: Sequence[MaskSeed], *,
              progress: Callable[[int], None] | None = None) -> None:
    """Adds the mask of each seed to the words, or takes it away, in place and modulo 2**32.

    The seed is the key of ChaCha20, with nonce and counter 0: a key is used for one vector and never again.

    Args:
        words: uint32 (W,), contiguous.
        seeds: in any order; the result is the same.
        progress: is called with the number of words that are done, after each block.
    """
    if words.dtype != np.uint32 or words.ndim != 1 or not words.flags.c_contiguous or len(words) > MAX_WORDS:
        raise ValueError(f"Words are contiguous uint32 (W,), found {words.dtype} {words.shape}.")
    if any(len(seed.seed) != SEED_BYTES or seed.sign not in (1, -1) for seed in seeds):
        raise ValueError("A seed has 32 bytes, and its sign is 1 or -1.")
    streams = [(Cipher(algorithms.ChaCha20(seed.seed, bytes(16)), mode=None).encryptor(), seed.sign) for seed in seeds]
    zeros, buffer = bytes(_BLOCK_BYTES), bytearray(_BLOCK_BYTES)
    keystream = np.frombuffer(buffer, dtype=np.uint8)
    step = _BLOCK_BYTES // 4
    for begin in range(0, len(words), step):
        block = words[begin:begin + step]
        for stream, sign in streams:
            stream.update_into(memoryview(zeros)[:4 * len(block)], buffer)
            mask = keystream[:4 * len(block)].view("<u4")
            if sign > 0:
                np.add(block, mask, out=block)
            else:
                np.subtract(block, mask, out=block)
        if progress is not None:
            progress(begin + len(block))
